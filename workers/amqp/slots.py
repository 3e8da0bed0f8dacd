"""One channel of a connection, as the connection sees it: what it is asked happens in order, and nothing waits for it
but its own next events.

Invariants
  At most one call of a channel is under way. While one is, or while the client is flooded, the next events are kept
  here.
  `ended` is called once, after the last call has returned or was cancelled.
  A channel that the gateway closed hears nothing more; its number is free when the client has said close-ok.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Any

from warren.engine.amqp import spec
from warren.engine.errors import ClosedError, Error, NodeNotRunning
from warren.engine.saying import inert
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.interfaces import Channel, Link

log = logging.getLogger("warren.amqp")

#: events, and bytes of bodies in them, that a channel keeps before its socket is not read any more
KEPT_EVENTS, KEPT_BYTES = 256, 1 << 20


class Slot:
    """A channel number in use."""

    __slots__ = ("_connection", "_events", "_kept_bytes", "_task", "channel", "closing", "number", "over", "published")

    def __init__(self, connection: Link, number: int, channel: Channel) -> None:
        self._connection = connection
        self._events: deque[tuple[Any, ...]] = deque()
        self._kept_bytes = 0
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

    @property
    def full(self) -> bool:
        """It keeps so much that its socket should not be read."""
        return len(self._events) >= KEPT_EVENTS or self._kept_bytes >= KEPT_BYTES

    def feed(self, event: tuple[Any, ...]) -> None:
        """An event of the client for this channel. Raises ConnectionFault."""
        if self._task is None and not self._connection.flooded:
            under_way = self._do(event)
            if under_way is not None:
                self._go_on_soon(under_way, _id_of(event))
            return
        self._events.append(event)
        if event[0] == spec.PUBLISH:
            self._kept_bytes += sum(map(len, event[6]))
        if self._task is None:
            self._go_on_soon(None, 0)

    def _go_on_soon(self, under_way: Awaitable[None] | None, id: int) -> None:
        self._task = self._connection.gateway.events.create_task(self._go_on(under_way, id))

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
            return self.channel.method(id, event[3])
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the channel or the connection, and is told
            self._failed(error, id)
            return None

    def _flow(self, active: bool) -> None:
        if not active:
            raise ConnectionFault(spec.NOT_IMPLEMENTED, "active=false")
        self._connection.send_method(self.number, spec.CHANNEL_FLOW_OK, (True,))

    async def _go_on(self, under_way: Awaitable[None] | None, id: int) -> None:
        """Wait for what is under way (`id`: the method), then do what was kept meanwhile."""
        try:
            if under_way is not None:
                await self._waited(under_way, id)
            while self._events:
                if self._connection.flooded:
                    await self._connection.until_writable()
                if self.over:
                    break
                event = self._events.popleft()
                if event[0] == spec.PUBLISH:
                    self._kept_bytes -= sum(map(len, event[6]))
                under_way = self._do(event)
                if under_way is not None:
                    await self._waited(under_way, _id_of(event))
                if not self.full:
                    self._connection.may_read()
        finally:
            self._task = None
            self._connection.may_read()
            self._connection.channel_rests()

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
        crossed = any(_id_of(event) == spec.CHANNEL_CLOSE for event in self._events)  # the client closes it, too
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
        self._events.clear()
        self._kept_bytes = 0
        try:
            self.channel.ended()
        except Exception:
            log.exception("connection %s: the end of channel %d failed", self._connection.peer.name, self.number)

    async def stop(self) -> None:
        """Cancel what is under way, then end."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._events.clear()
            await asyncio.sleep(0)  # so that it has begun: one that has not never comes to its end
            task.cancel()
            await asyncio.wait([task])
        self.end()


def _id_of(event: tuple[Any, ...]) -> int:
    """The method of an event."""
    id: int = spec.BASIC_PUBLISH if event[0] == spec.PUBLISH else event[2]
    return id
