"""One channel of a connection, as the connection sees it: what it is asked happens in order, and nothing waits for it
but its own next events.

Invariants
  At most one call of a channel is under way. While one is, or while the client is flooded, the next events are kept
  here, as they came: tables of arguments are not looked at before. They and the one under way count (backlog.py).
  `ended` is called once, after the last call has returned or was cancelled.
  A channel that the gateway closed hears nothing more; its number is free when the client has said close-ok.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Any

from warren.engine._core import amqp_arguments
from warren.engine.amqp import spec
from warren.engine.errors import ClosedError, Error, NodeNotRunning
from warren.engine.saying import inert
from warren.workers.amqp.backlog import size_of
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.interfaces import Channel, Link

log = logging.getLogger("warren.amqp")


class Slot:
    """A channel number in use."""

    __slots__ = ("_connection", "_events", "_task", "channel", "closing", "number", "over", "published")

    def __init__(self, connection: Link, number: int, channel: Channel) -> None:
        self._connection = connection
        self._events: deque[tuple[tuple[Any, ...], int]] = deque()  # with their sizes
        self._task: asyncio.Task[None] | None = None
        self.number = number
        self.channel = channel
        self.closing = False  #: channel.close was sent
        self.over = False  #: `ended` was called
        self.published = 0

    @property
    def busy(self) -> bool:
        """A call is under way."""
        return self._task is not None

    def feed(self, event: tuple[Any, ...]) -> None:
        """An event of the client for this channel. Raises ConnectionFault."""
        if self._task is None and not self._connection.flooded:
            under_way = self._do(event)
            if under_way is not None:
                size = size_of(event)
                self._connection.kept.came(size)
                self._go_on_soon(under_way, _id_of(event), size)
            return
        size = size_of(event)
        self._connection.kept.came(size)
        self._events.append((event, size))
        if self._task is None:
            self._go_on_soon(None, 0, 0)

    def _go_on_soon(self, under_way: Awaitable[None] | None, id: int, size: int) -> None:
        self._task = self._connection.gateway.events.create_task(self._go_on(under_way, id, size))

    def _do(self, event: tuple[Any, ...]) -> Awaitable[None] | None:
        """Have the channel do what an event asks for; mistakes are told. What is under way is returned."""
        if self.over:
            return None
        id = _id_of(event)
        try:
            if event[0] == spec.PUBLISH:
                self.published += len(event[6])
                return self.channel.publish(event[2], event[3], event[4], event[5], event[6])
            if id == spec.CHANNEL_CLOSE:
                self.end()
                self._connection.channel_closed(self.number)
                return None
            if id == spec.CHANNEL_FLOW:
                self._flow(event[3][0])
                return None
            arguments = event[3]
            return self.channel.method(id, amqp_arguments(id, arguments) if isinstance(arguments, bytes) else arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the channel or the connection, and is told
            self._failed(error, id)
            return None

    def _flow(self, active: bool) -> None:
        if not active:
            raise ConnectionFault(spec.NOT_IMPLEMENTED, "active=false")
        self._connection.send_method(self.number, spec.CHANNEL_FLOW_OK, (True,))

    async def _go_on(self, under_way: Awaitable[None] | None, id: int, size: int) -> None:
        """Wait for what is under way (`id`: the method, `size`: what it counts), then do what was kept meanwhile."""
        connection = self._connection
        try:
            if under_way is not None:
                await self._waited(under_way, id)
            while True:
                connection.kept.done(size)
                size = 0
                connection.may_read()
                if self._events and connection.flooded:
                    await connection.until_writable()
                if self.over or not self._events:
                    break
                event, size = self._events.popleft()
                under_way = self._do(event)
                if under_way is not None:
                    id = _id_of(event)
                    del event  # what is under way has what it needs of it
                    await self._waited(under_way, id)
        finally:
            self._task = None
            connection.kept.done(size)
            connection.may_read()
            connection.channel_rests()

    async def _waited(self, under_way: Awaitable[None], id: int) -> None:
        try:
            await under_way
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, id)

    def _failed(self, error: Exception, method: int) -> None:
        """Tell the client what went wrong."""
        connection = self._connection
        if self.over or connection.closing:
            return
        if isinstance(error, ChannelFault):
            self.fail(error, method)
        elif isinstance(error, ConnectionFault):
            connection.fail(error, method)
        elif isinstance(error, ClosedError | NodeNotRunning):
            connection.fail(ConnectionFault(spec.CONNECTION_FORCED, f"the node is not there any more: {error}"), method)
        else:
            level = logging.ERROR if not isinstance(error, Error) else logging.WARNING
            log.log(
                level,
                "connection %s, channel %d: %s failed: %s",
                connection.peer.name,
                self.number,
                spec.METHODS[method].name if method in spec.METHODS else method,
                error,
                exc_info=None if isinstance(error, Error) else error,
            )
            connection.fail(ConnectionFault(spec.INTERNAL_ERROR, f"{type(error).__name__}: {error}"), method)

    def fail(self, fault: ChannelFault, method: int = 0) -> None:
        """Close the channel with a reply code."""
        if self.over or self.closing:
            return
        self.closing = True
        log.warning(
            "connection %s (user %s, vhost %s): channel %d is closed: %s",
            self._connection.peer.name,
            inert(self._connection.user_name),
            inert(self._connection.vhost),
            self.number,
            inert(str(fault)),
        )
        crossed = any(_id_of(event) == spec.CHANNEL_CLOSE for event, _size in self._events)  # the client closes it, too
        self.end()
        self._connection.channel_closes(self.number)
        self._connection.send_method(self.number, spec.CHANNEL_CLOSE, self._connection.told(fault, method))
        if crossed:
            self._connection.send_method(self.number, spec.CHANNEL_CLOSE_OK)

    def end(self) -> None:
        """The channel hears nothing more."""
        if self.over:
            return
        self.over = True
        self._connection.published += self.published
        self._forget()
        try:
            self.channel.ended()
        except Exception:
            log.exception("connection %s: the end of channel %d failed", self._connection.peer.name, self.number)

    def _forget(self) -> None:
        """Drop the events that were not begun."""
        self._connection.kept.done(sum(size for _event, size in self._events))
        self._events.clear()

    async def stop(self) -> None:
        """Cancel what is under way, then end."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._forget()
            await asyncio.sleep(0)  # so that it has begun: one that has not never comes to its end
            task.cancel()
            await asyncio.wait([task])
        self.end()


def _id_of(event: tuple[Any, ...]) -> int:
    """The method of an event."""
    id: int = spec.BASIC_PUBLISH if event[0] == spec.PUBLISH else event[2]
    return id
