"""Class tx: what a channel publishes and settles takes effect at its commit.

A commit publishes everything in order and waits until it is as durable as a confirm would say; then it settles. As with
RabbitMQ that is atomic for one queue at most: a gateway that is killed within a commit may have published a part of it,
and no ack of it then counts.

After a rollback, messages that were acked are held as before, and can be acked again.

What is kept counts (backlog.py) until the commit has published it: properties, acks and empty messages, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from warren.workers.amqp.backlog import EACH, FLOOR, STAYS_MAX, size_of_messages
from warren.workers.amqp.consumers import Taken
from warren.workers.amqp.faults import ChannelFault

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker


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
        self._kept = channel.connection.kept
        self._bytes = 0

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        """Keep what is published until the commit. Raises faults."""
        self._channel.publisher.check(exchange, key, flags)
        self._keep(FLOOR + size_of_messages(properties, bodies))
        self._published.append(_Published(exchange, key, flags, properties, bodies))
        return None

    def _keep(self, size: int) -> None:
        """Something more is kept. Raises ChannelFault."""
        if not self._kept.reserve(size):
            raise ChannelFault(
                406,
                f"transactions of a connection keep {STAYS_MAX} bytes of messages and acks at most, and those of all "
                "connections together a share of setting amqp_backlog_bytes: commit more often",
            )
        self._bytes += size

    def settle(self, tag: int, multiple: bool, ack: bool, requeue: bool) -> None:
        """Keep an ack or nack until the commit. Raises ChannelFault: nothing is held with that tag."""
        channel = self._channel
        taken = channel.take_up_to(tag, True) if multiple else [channel.take(tag)]
        self._settled.append(_Settled(taken, ack, requeue))
        self._keep(FLOOR + EACH * sum(len(part.deliveries) for part in taken))  # if not, they are put back

    async def commit(self) -> None:
        """Publish and settle what was kept. Raises ChannelFault 406: a queue refused some, none is settled."""
        published, self._published = self._published, []
        size, self._bytes = self._bytes, 0
        publisher, connection = self._channel.publisher, self._channel.connection
        try:
            with publisher.waited_for() as confirms:
                for one in published:
                    if connection.flooded:  # by returns, for a client that does not read
                        await connection.until_writable()
                    under_way = publisher.publish(*one)
                    if under_way is not None:
                        await under_way
            published.clear()
            if False in [await publisher.confirmed(confirm) for confirm in confirms]:
                raise ChannelFault(406, "partial tx completion")
        finally:
            self._kept.release(size)
        settled, self._settled = self._settled, []  # not before: the channel may end meanwhile
        for part in settled:
            self._channel.done(part.taken, part.ack, part.requeue)
        await asyncio.sleep(0)  # acks of this turn are submitted

    def rollback(self) -> None:
        """Forget what was kept."""
        self._published = []
        self._kept.release(self._bytes)
        self._bytes = 0
        settled, self._settled = self._settled, []
        for part in reversed(settled):
            self._channel.unacked.put_back(part.taken)

    def ended(self) -> None:
        """The channel is over: what it held returns."""
        self.rollback()
