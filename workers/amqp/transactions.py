"""Class tx: what a channel publishes and settles takes effect at its commit.

A commit publishes everything in order and waits until it is as durable as a confirm would say; then it settles. As with
RabbitMQ that is atomic for one queue at most: a gateway that is killed within a commit may have published a part of it,
and no ack of it then counts.

After a rollback, messages that were acked are held as before, and can be acked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from warren.workers.amqp.consumers import Taken
from warren.workers.amqp.faults import ChannelFault

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker

#: bodies that a transaction may keep in memory
BYTES_MAX = 256 << 20


class _Published(NamedTuple):
    exchange: str
    key: str
    flags: int
    properties: list[bytes]
    bodies: list[bytes]


class _Settled(NamedTuple):
    taken: list[Taken]
    ack: bool
    requeue: bool


class Transaction:
    """That of a channel, over and over."""

    def __init__(self, channel: Speaker) -> None:
        self._channel = channel
        self._published: list[_Published] = []
        self._settled: list[_Settled] = []
        self._bytes = 0

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        """Keep what is published until the commit. Raises faults."""
        self._channel.publisher.check(exchange, key, flags)
        self._bytes += sum(map(len, bodies)) + sum(map(len, properties))
        if self._bytes > BYTES_MAX:
            raise ChannelFault(406, f"a transaction keeps {BYTES_MAX} bytes of messages at most: commit more often")
        self._published.append(_Published(exchange, key, flags, properties, bodies))
        return None

    def settle(self, tag: int, multiple: bool, ack: bool, requeue: bool) -> None:
        """Keep an ack or nack until the commit. Raises ChannelFault: nothing is held with that tag."""
        channel = self._channel
        taken = channel.take_up_to(tag, True) if multiple else [channel.take(tag)]
        self._settled.append(_Settled(taken, ack, requeue))

    async def commit(self) -> None:
        """Publish and settle what was kept. Raises ChannelFault 406: a queue refused some, none is settled."""
        published, self._published, self._bytes = self._published, [], 0
        publisher = self._channel.publisher
        with publisher.waited_for() as confirms:
            for one in published:
                under_way = publisher.publish(*one)
                if under_way is not None:
                    await under_way
        if False in [await publisher.confirmed(confirm) for confirm in confirms]:
            raise ChannelFault(406, "partial tx completion")
        settled, self._settled = self._settled, []  # not before: the channel may end meanwhile
        for part in settled:
            self._channel.done(part.taken, part.ack, part.requeue)
        await asyncio.sleep(0)  # acks of this turn are submitted

    def rollback(self) -> None:
        """Forget what was kept."""
        self._published, self._bytes = [], 0
        settled, self._settled = self._settled, []
        for part in reversed(settled):
            self._channel.unacked.put_back(part.taken)

    def ended(self) -> None:
        """The channel is over: what it held returns."""
        self.rollback()
