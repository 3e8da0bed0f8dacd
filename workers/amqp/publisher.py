"""What a channel publishes: routes, returns, confirms.

The connection hands over runs: messages with the same exchange, routing key and flags. A run is looked up once, its
metadata and options are made by one call of the core, and it is submitted by another. What Python has to look at itself
(copies, a user id, …) goes one by one.

Confirms are sent in the order of publishing, and merged: an ack of the last one with `multiple`. Persistent messages of
a durable queue are confirmed when they are synced, others when the workers have taken them. A channel without confirms
waits for nothing. Messages that a full queue refuses (reject-publish) are nacked.

When there is no room (ring, arena, an alarm) the channel waits, and with it its connection stops reading; nothing is
submitted by halves: a run goes in parts that fit.

Crash points: killed before a part is submitted, it is not stored, and the client has no confirm; afterwards it is
stored, unconfirmed, as with any server that dies.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.amqp import spec
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.metadata import META_BYTES_MAX
from warren.engine.errors import (
    ClosedError,
    DiskFull,
    Error,
    ExchangeNotFound,
    LimitError,
    MessageTooLarge,
    NodeNotRunning,
    PeerLost,
    QueueFull,
    QueueNotFound,
    TimedOut,
    TopicNotFound,
)
from warren.workers.amqp import odd, permissions
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.mapping import REPLY_TO, described, engine_name, stream_name
from warren.workers.client import topic_parts
from warren.workers.client.client import Client
from warren.workers.client.publish import PLAIN
from warren.workers.client.routes import Route
from warren.workers.faces.aio.base import META

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker

MANDATORY, IMMEDIATE = 1, 2
#: levels of durability, as the core counts them
NONE, SYNCED = 0, 2
#: messages of one part of a run, and its share of the arena
PART, ARENA_SHARE = 1024, 4
#: routing keys of one message, with its copies
KEYS_MAX = 1024

Options = tuple[int, int, bytes | None, bool]
#: no queue has an empty name
_NOWHERE = Route(_core.Route([], None), (), False, b"")


def _any_persistent(options: Options | list[Options | None] | None) -> bool:
    if isinstance(options, list):
        return any(one is None or one[3] for one in options)
    return options is None or options[3]


class _Sent:
    """Messages that wait for their confirm: numbers first … last. `confirm` None: there is nothing to wait for."""

    __slots__ = ("confirm", "first", "last", "refused")

    def __init__(self, first: int, last: int, confirm: _core.Confirm[Any] | None, refused: bool = False) -> None:
        self.first, self.last, self.confirm = first, last, confirm
        self.refused = refused  #: all of them


class Publisher:
    """The publishing side of one channel."""

    def __init__(self, channel: Speaker) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.loop = channel.taps.loop
        self.client: Client = self.loop.client
        self.confirming = False
        self.next = 1  #: number of the next message, once confirms are on
        self._told = 0  # number of the last message whose confirm was sent
        self.held = 0  #: submissions that wait for room, or for the end of an alarm
        self.published_n = 0
        self.returned_n = 0
        self._waiting: deque[_Sent] = deque()
        self._watched: _core.Confirm[Any] | None = None
        self._kept: list[_core.Confirm[Any]] | None = None  # of a commit
        attachment = self.client.attached
        superblock = None if attachment is None else attachment.superblock
        # a message that is larger than what goes through shared memory is a part of its own, and is written in a thread
        self._arena = (
            1 << 20
            if superblock is None
            else min(superblock.get("arena_bytes") // ARENA_SHARE, superblock.get("shared_bytes_max"))
        )
        self._part = min(PART, 64 if superblock is None else superblock.get("ring_records") // 4)

    @property
    def unconfirmed(self) -> int:
        """How many messages wait for their confirm."""
        return self.next - self._waiting[0].first if self._waiting else 0

    @property
    def _sure(self) -> bool:
        """Whether somebody waits until it is durable."""
        return self.confirming or self._kept is not None

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[list[_core.Confirm[Any]]]:
        """What is published within is waited for: its confirms."""
        self._kept = []
        try:
            yield self._kept
        finally:
            self._kept = None

    async def confirmed(self, confirm: _core.Confirm[Any]) -> bool:
        """Wait for a confirm of `waited_for`; False: a full queue refused something. Raises ConnectionFault: it will
        not come.
        """
        try:
            await self.loop.confirmed(confirm, None)
        except QueueFull:
            return False
        except (QueueNotFound, TopicNotFound):
            return True  # as RabbitMQ: a transaction does not hear of that
        except Error as error:
            raise ConnectionFault(541, f"not everything was committed: {error}") from None
        return True

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        """Publish a run. None: it is done; else there was no room for all of it. Raises faults."""
        if flags and self._waits_first(flags):
            return self._after_drops(exchange, key, flags, properties, bodies)
        route = self._checked(exchange, key)
        if route is None:
            return self._one_by_one(exchange, key, flags, properties, bodies)
        metas, options, found = _core.amqp_prepare(exchange, key, properties, time.time_ns() // 1_000_000)
        if found:
            return self._one_by_one(exchange, key, flags, properties, bodies)
        return self._send(route, exchange, key, flags, properties, bodies, metas, options)

    def _waits_first(self, flags: int) -> bool:
        """Whether it may be returned because of a queue that is going just now. Raises ConnectionFault."""
        if flags & IMMEDIATE:
            raise ConnectionFault(540, "immediate=true")
        return self.channel.taps.dropping

    async def _after_drops(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> None:
        await self.channel.declarations.ready()
        under_way = self.publish(exchange, key, flags, properties, bodies)
        if under_way is not None:
            await under_way

    def check(self, exchange: str, key: str, flags: int) -> None:
        """What a publish of a transaction is refused for at once."""
        if flags & IMMEDIATE:
            raise ConnectionFault(540, "immediate=true")
        self._checked(exchange, key)

    def _checked(self, exchange: str, key: str) -> Route | None:
        """The route; None: it depends on headers. Raises ChannelFault."""
        connection = self.connection
        permissions.check(self.channel.user, connection.vhost, "write", "exchange", exchange)
        try:
            return self._route(exchange, key)
        except AttachmentLost:
            return None  # another attachment is made by who waits
        except LimitError as error:
            raise ChannelFault(406, str(error)) from None

    def _route(self, exchange: str, key: str) -> Route | None:
        vhost = self.connection.vhost
        router = self.client.router()
        if not exchange:
            return self.client.route("", self._named(router.catalog, key)) if key else _NOWHERE
        name = engine_name(vhost, exchange)
        found = router.catalog.exchanges.get(name)
        if found is None:
            raise ChannelFault(404, f"no exchange '{exchange}' in vhost '{vhost}'")
        if found.internal:
            raise ChannelFault(403, f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'")
        if found.type == "topic":
            permissions.check_topic(self.channel.user, vhost, "write", exchange, key)
        return None if name in router.by_headers else self.client.route(name, key)

    def _named(self, catalog: Catalog, key: str) -> str:
        """What the default exchange's routing key names in the node: a queue, or a stream."""
        name = engine_name(self.connection.vhost, key)
        if name not in catalog.queues and catalog.topics:
            stream = stream_name(self.connection.vhost, key)
            if stream in catalog.topics:
                return stream
        return name

    def _send(
        self,
        route: Route,
        exchange: str,
        key: str,
        flags: int,
        properties: list[bytes],
        bodies: list[bytes],
        metas: Any,
        options: Any,
    ) -> Awaitable[None] | None:
        count = len(bodies)
        self.published_n += count
        if not route.queues and not route.topics:
            if flags & MANDATORY:
                self.returned(exchange, key, properties, bodies)
            self._note(count, None)
            return None
        if flags & MANDATORY and not exchange and key.startswith(REPLY_TO):
            self.returned(exchange, key, properties, bodies)  # as RabbitMQ does, though it is delivered
        level = NONE
        if self._sure and route.durable and _any_persistent(options):
            level = SYNCED
        size = sum(map(len, bodies)) + count * META if count > 1 else len(bodies[0]) + META
        if count <= self._part and size <= self._arena and not route.topics:
            done, confirm = self._submit_now(route, bodies, level, metas, options, count, size)
            if done:
                self._note(count, confirm)
                return None
        return self._in_parts(route, exchange, key, bodies, level, metas, options)

    def _submit_now(
        self, route: Route, bodies: list[bytes], level: int, metas: Any, options: Any, count: int, size: int
    ) -> tuple[bool, _core.Confirm[Any] | None]:
        """Submit it if there is room now."""
        core = self.loop.core
        if core is None or core.over:
            return False, None
        try:
            for server in route.servers:
                if core.room(server, count, size, size) is not None:
                    return False, None
            return True, self._submit(core, route, bodies, level, metas, options)
        except AttachmentLost:  # or the catalog has changed: route again
            return False, None
        except (TimedOut, DiskFull, PeerLost):  # an alarm
            return False, None

    def _submit(
        self, core: _core.Client, route: Route, bodies: list[bytes], level: int, metas: Any, options: Any
    ) -> _core.Confirm[Any] | None:
        told: list[topic_parts.Parts | None] | None = None
        if route.topics:
            found = topic_parts.parts_each(self.client.turns, [route], len(bodies), metas, options, PLAIN)
            told = [found] * len(bodies) if isinstance(found, tuple) else found
        if len(bodies) == 1:
            meta = metas[0] if isinstance(metas, list) else metas
            chosen = options[0] if isinstance(options, list) else options
            return core.publish(route.core, bodies[0], level, meta, 0.0, False, chosen, told[0] if told else None)
        return core.publish_many(route.core, bodies, level, metas, 0.0, False, options, told)

    async def _in_parts(
        self,
        route: Route,
        exchange: str,
        key: str,
        bodies: list[bytes],
        level: int,
        metas: Any,
        options: Any,
    ) -> None:
        """Submit it part by part, waiting for room."""
        start = 0
        while start < len(bodies):
            end, size = start, 0
            while end < len(bodies) and end - start < self._part:
                more = len(bodies[end]) + META
                if end > start and size + more > self._arena:
                    break
                size += more
                end += 1
            confirm = await self._submit_when_possible(
                route,
                exchange,
                key,
                bodies[start:end],
                level,
                metas[start:end] if isinstance(metas, list) else metas,
                options[start:end] if isinstance(options, list) else options,
                size,
            )
            self._note(end - start, confirm)
            start = end

    async def _submit_when_possible(
        self,
        route: Route | None,
        exchange: str,
        key: str,
        bodies: list[bytes],
        level: int,
        metas: Any,
        options: Any,
        size: int,
    ) -> _core.Confirm[Any] | None:
        loop = self.loop
        chosen = route

        def call() -> _core.Confirm[Any] | None:
            nonlocal chosen
            core = self.client.core
            if chosen is None:
                chosen = self._route(exchange, key)
            assert chosen is not None
            now, chosen = chosen, None  # another try routes anew
            if not now.queues and not now.topics:
                return None
            return self._submit(core, now, bodies, level, metas, options)

        self.held += 1
        try:
            return await loop.submit(call, (len(bodies), size), None, topics=len(route.topics) if route else 0)
        except ExchangeNotFound:
            raise ChannelFault(404, f"no exchange '{exchange}' in vhost '{self.connection.vhost}'") from None
        except (MessageTooLarge, LimitError) as error:
            raise ChannelFault(406, str(error)) from None
        except (ClosedError, NodeNotRunning) as error:
            raise ConnectionFault(320, f"the node is stopping: {error}") from None
        except Error as error:
            raise ConnectionFault(541, str(error)) from None
        finally:
            self.held -= 1

    # -- one by one ---------------------------------------------------------------------------------------------

    async def _one_by_one(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> None:
        """Messages that Python has to look at."""
        for told, body in zip(properties, bodies, strict=True):
            await self._odd(exchange, key, flags, told, body)

    async def _odd(self, exchange: str, key: str, flags: int, told: bytes, body: bytes) -> None:
        loop = self.loop
        await loop.ready()
        look = odd.checked(told, self.channel.user, self.channel.reply_name)
        headers: dict[str, Any] | None = look.headers
        look = look._replace(headers={})  # while it waits they are bytes alone, a fraction of this
        now_ms = time.time_ns() // 1_000_000
        metas, options, _odd = _core.amqp_prepare(exchange, key, [look.properties], now_ms)
        meta = metas[0] if isinstance(metas, list) else metas
        if meta is None:  # ODD_SIZE
            raise ChannelFault(
                311,
                f"properties of {len(look.properties)} bytes: with exchange and routing key a message of this server "
                f"has room for {META_BYTES_MAX}; send large things as the body",
            )
        chosen = options[0] if isinstance(options, list) else options
        while True:
            try:
                if headers is None:
                    headers = _core.amqp_properties(look.properties).get("headers") or {}
                route = self._route_of(exchange, [key, *look.copies], headers)
            except AttachmentLost:
                headers = None
                await loop.ready()
                continue
            except LimitError as error:
                raise ChannelFault(406, str(error)) from None
            self.published_n += 1
            if not route.queues and not route.topics:
                if flags & MANDATORY:
                    self.returned(exchange, key, [look.properties], [body])
                self._note(1, None)
                return
            if flags & MANDATORY and not exchange and key.startswith(REPLY_TO):
                self.returned(exchange, key, [look.properties], [body])
            level = SYNCED if self._sure and route.durable and (chosen is None or chosen[3]) else NONE
            call = functools.partial(self._submit_held, route, body, level, meta, chosen)
            size = len(body) + META
            headers = None
            try:
                confirm = await loop.submit(call, (1, size), None, topics=len(route.topics))
            except _RouteAgain:
                self.published_n -= 1
                continue
            except (MessageTooLarge, LimitError) as error:
                raise ChannelFault(406, str(error)) from None
            except (ClosedError, NodeNotRunning) as error:
                raise ConnectionFault(320, f"the node is stopping: {error}") from None
            except Error as error:
                raise ConnectionFault(541, str(error)) from None
            self._note(1, confirm)
            return

    def _submit_held(self, route: Route, body: bytes, level: int, meta: Any, options: Any) -> _core.Confirm[Any] | None:
        try:
            return self._submit(self.client.core, route, [body], level, meta, options)
        except AttachmentLost:
            raise _RouteAgain from None

    def _route_of(self, exchange: str, keys: list[str], headers: dict[str, Any]) -> Route:
        """Where copies lead together. Raises ChannelFault, AttachmentLost."""
        vhost = self.connection.vhost
        name = engine_name(vhost, exchange)
        catalog = self.client.router().catalog
        found = catalog.exchanges.get(name)
        if found is None:
            raise ChannelFault(404, f"no {described('exchange', exchange, vhost)}")
        if len(keys) > KEYS_MAX:
            raise ChannelFault(406, f"a message goes by {KEYS_MAX} routing keys at most, by CC too, not {len(keys)}")
        if found.type == "topic":
            for key in keys:
                permissions.check_topic(self.channel.user, vhost, "write", exchange, key)
        if not exchange:
            keys = [self._named(catalog, key) for key in keys if key]
        if len(keys) == 1:
            return self.client.route(name, keys[0], headers)
        return self.client.route_all(name, keys, headers)

    # -- returns, confirms --------------------------------------------------------------------------------------

    def returned(self, exchange: str, key: str, properties: list[bytes], bodies: list[bytes]) -> None:
        """Nobody gets these: they go back to who published them."""
        connection = self.connection
        self.returned_n += len(bodies)
        for told, body in zip(properties, bodies, strict=True):
            connection.send(
                _core.amqp_content(
                    self.channel.number,
                    spec.BASIC_RETURN,
                    (spec.NO_ROUTE, "NO_ROUTE", exchange, key),
                    told,
                    body,
                    connection.frame_max,
                )
            )

    def _note(self, count: int, confirm: _core.Confirm[Any] | None) -> None:
        """So many messages were published."""
        if self._kept is not None:
            if confirm is not None:
                self._kept.append(confirm)
            return
        if not self.confirming:
            return
        first = self.next
        self.next += count
        waiting = self._waiting
        if confirm is None and waiting and waiting[-1].confirm is None:
            waiting[-1].last = self.next - 1  # however many follow one that takes its time
            return
        waiting.append(_Sent(first, self.next - 1, confirm))
        if len(waiting) == 1:
            self._drain()

    def _drain(self) -> None:
        """Send what is known, and watch the first that is not."""
        if self.channel.over:
            self._waiting.clear()
            return
        waiting, sure = self._waiting, 0
        while waiting:
            sent = waiting[0]
            confirm = sent.confirm
            if confirm is not None:
                if not confirm.done():
                    if confirm is self._watched:
                        break
                    if self.loop.when_confirmed(confirm, self._confirmed):
                        self._watched = confirm
                        break
                lost = self._lost(sent, confirm)
            else:
                lost = ()
            waiting.popleft()
            if not lost:
                sure = sent.last
                continue
            for number in range(sent.first, sent.last + 1):
                if number - sent.first not in lost:
                    sure = number
                    continue
                if sure:
                    self._ack(sure)
                    sure = 0
                self._nack(number)
        if sure:
            self._ack(sure)

    def _confirmed(self, confirm: _core.Confirm[Any], error: Error | None) -> None:
        if confirm is self._watched:
            self._watched = None
            if error is not None:  # nobody is left who could confirm
                self._nack_all()
                return
            self._drain()

    def _nack_all(self) -> None:
        waiting = self._waiting
        while waiting:
            sent = waiting.popleft()
            for number in range(sent.first, sent.last + 1):
                self._nack(number)

    @staticmethod
    def _lost(sent: _Sent, confirm: _core.Confirm[Any]) -> Sequence[int]:
        """Which of the messages were not taken."""
        everything = range(sent.last - sent.first + 1)
        try:
            confirm.wait(0)
        except QueueFull as error:
            return error.refused if len(everything) > 1 else everything
        except ClosedError as error:
            return error.not_taken or everything
        except (QueueNotFound, TopicNotFound):
            return ()  # it was deleted meanwhile, and nobody else wants the message
        except Error:
            return everything
        return ()

    def _ack(self, number: int) -> None:
        several = number != self._told + 1
        self._told = number
        self.connection.send(_core.amqp_method(self.channel.number, spec.BASIC_ACK, (number, several)))

    def _nack(self, number: int) -> None:
        self._told = number
        self.connection.send(_core.amqp_method(self.channel.number, spec.BASIC_NACK, (number, False, False)))

    def ended(self) -> None:
        """The channel is over: nobody is told any more."""
        self._waiting.clear()
        self._watched = None


class _RouteAgain(Exception):
    """The catalog has changed since the route was made."""
