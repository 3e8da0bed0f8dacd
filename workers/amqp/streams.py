"""Streams: a queue of type `stream` is a topic with one queue, which consumers read without taking anything away.

A consumer begins where `x-stream-offset` says: first, last, next (the default), an offset, a time. It needs a prefetch
and acks by hand, which is its credit; what it acks is kept nowhere. Each message has its offset in the header
`x-stream-offset`. Consumers of a stream ask one reader whether there is more.

Differences from RabbitMQ: `last` is the last message (there: the last chunk).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from warren.engine import _core
from warren.engine.amqp import spec
from warren.engine.amqp.values import Int64
from warren.engine.catalog import amqp_metadata
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import ClosedError, Error, NodeNotRunning, TopicNotFound
from warren.engine.saying import inert, quoted
from warren.workers.amqp.consumers import Run
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.mapping import described
from warren.workers.amqp.types import class_of, type_of
from warren.workers.client import carried
from warren.workers.faces.topic_reading import TopicReading

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker

log = logging.getLogger("warren.amqp")

OFFSET = "x-stream-offset"
#: messages, and bytes of log, that are read at once
BATCH, BATCH_BYTES = 128, 1 << 18
#: pause after trouble with the topic worker
AGAIN_S = 0.2
#: level of durability, as the core counts them
SYNCED = 2
_INTERVAL = re.compile(r"(\d{1,9})(Y|M|D|h|m|s)", re.ASCII)
_SECONDS = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}


class StreamConsumer:
    """One consumer of a stream."""

    def __init__(
        self, channel: Speaker, stream: TopicDeclaration, queue: str, tag: str, prefetch: int, offset: int
    ) -> None:
        self.channel, self.stream, self.queue, self.tag = channel, stream, queue, tag
        self.no_ack = self.exclusive = False
        self.priority = 0
        self.prefetch = prefetch
        self.held = 0
        self.offset = offset
        self._reading = TopicReading(channel.taps.loop.client, stream)
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def made(
        cls,
        channel: Speaker,
        stream: TopicDeclaration,
        queue: str,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, Any],
    ) -> StreamConsumer:
        """A consumer, which has not begun yet. Raises faults."""
        what = described("queue", queue, channel.connection.vhost)
        if no_ack:
            raise ConnectionFault(
                spec.NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream queues {what}"
            )
        if channel.limit:
            raise ConnectionFault(spec.NOT_IMPLEMENTED, f"{what} does not support global qos")
        if not channel.prefetch:
            raise ChannelFault(406, f"consumer prefetch count is not set for '{what}'")
        made = cls(channel, stream, queue, tag, channel.prefetch, 0)
        made.offset = await channel.taps.loop.do(made._start, arguments.get(OFFSET, "next"), what)
        return made

    def _start(self, where: Any, what: str) -> int:
        """The offset that x-stream-offset means. In a thread."""
        client = self.channel.taps.loop.client
        client.core.barrier(client.attachment().superblock.topic_server, SYNCED, client.call_timeout)
        low, high = self._reading.offsets(0)
        if where == "first":
            return low
        if where == "next":
            return high
        if where == "last":
            return max(low, high - 1)
        if class_of(where) == "int":
            return max(low, int(where))
        when: float | None = None
        if type_of(where) == "timestamp":
            when = float(where.timestamp()) if hasattr(where, "timestamp") else float(where)
        elif isinstance(where, str) and (found := _INTERVAL.fullmatch(where)):
            when = time.time() - int(found[1]) * _SECONDS[found[2]]
        if when is None:
            raise ChannelFault(406, f"invalid arg '{OFFSET}' for {what}: {{invalid_offset_arg,{where}}}")
        found_at = self._reading.offset_at(0, round(when * 1000), "lower")
        return high if found_at is None else max(low, found_at)

    def begin(self) -> None:
        """Read and send, until `end`."""
        self.channel.taps.stream_came(self)
        self._task = self.channel.taps.loop.spawn(self._run())

    def end(self) -> None:
        """Nothing more is sent."""
        self.channel.taps.stream_went(self)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    def wake(self) -> None:
        """There may be room again."""
        self._room.set()

    def settled(self, count: int) -> None:
        """It holds so many less."""
        self.held -= count
        self.channel.consumed -= count
        self._room.set()

    def lost(self) -> None:
        """Its stream has gone."""
        self.end()
        self.channel.consumer_lost(self)

    async def _run(self) -> None:
        try:
            await self._read_and_send()
        except Exception:
            log.exception("stream %s: its consumer %s ends", quoted(self.queue), quoted(self.tag))
            self.lost()

    async def _read_and_send(self) -> None:
        loop, watch = self.channel.taps.loop, self.channel.taps.watch
        while True:
            room = self.prefetch - self.held if self.channel.connection.writable else 0
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                found = await loop.do(self._reading.read, 0, self.offset, min(room, BATCH), BATCH_BYTES, damage="skip")
            except TopicNotFound:
                self.lost()
                return
            except (ClosedError, NodeNotRunning):
                return  # the connection is told by others
            except Error as error:
                log.warning("stream %s: %s", quoted(self.queue), inert(str(error)))
                await asyncio.sleep(AGAIN_S)
                continue
            for damage in found.damaged:
                name, why = quoted(self.queue), inert(str(damage))
                log.error("stream %s: a message cannot be read, and is not delivered: %s", name, why)
            self.offset = max(self.offset, found.next_offset) if not found.records else found.next_offset
            if found.records:
                self._send(found.records)
                await asyncio.sleep(0)
            else:
                await watch.more(self._reading, self.offset)

    def _send(self, records: list[_core.Record]) -> None:
        channel = self.channel
        connection = channel.connection
        first = channel.tagged(len(records))
        for tag, record in enumerate(records, first):
            message = carried.message_of(record.properties, self.queue)
            told = message.amqp or amqp_metadata.written(message.headers, message.properties)
            connection.send(
                _core.amqp_content(
                    channel.number,
                    spec.BASIC_DELIVER,
                    (self.tag, tag, False, message.exchange, message.routing_key),
                    amqp_metadata.with_more(told, {OFFSET: Int64(record.offset)}, {}),
                    record.body,
                    connection.frame_max,
                )
            )
        channel.delivered_n += len(records)
        self.held += len(records)
        channel.consumed += len(records)
        channel.unacked.add(StreamRun(first, len(records), self))


class StreamRun(Run):
    """What a stream consumer got together: only counted."""

    __slots__ = ("stream_consumer",)

    def __init__(self, first: int, count: int, consumer: StreamConsumer) -> None:
        super().__init__(first, list(range(count)), None, 0, None)
        self.stream_consumer = consumer

    def settle(self, deliveries: list[Any], ack: bool, requeue: bool) -> None:
        """These of it are settled: there is room for as many more."""
        consumer = self.stream_consumer
        if not ack and not consumer.channel.over:
            what = described("queue", consumer.queue, consumer.channel.connection.vhost)
            raise ConnectionFault(
                spec.NOT_IMPLEMENTED, f"basic.nack and basic.reject not supported by stream queues {what}"
            )
        self.stream_consumer.settled(len(deliveries))
