"""A subscription in an event loop: warren.Subscription, awaited. Each call asks a worker or reads, in the threads for
what blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

from warren.workers.faces import subscription
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.browse import UNLIMITED
from warren.workers.faces.message import Message

if TYPE_CHECKING:
    import pyarrow as pa


class Subscription:
    """Durable numbered claims on messages of a queue. Created by `await queue.subscription(name)`."""

    def __init__(self, loop: Loop, queue: Any, underneath: subscription.Subscription) -> None:
        self.queue = queue  #: the Queue that it claims from
        self._loop = loop
        self._subscription = underneath

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a subscription of warren.aio belongs to its event loop: give another process the node's directory and the "
            "names, and use warren.aio.attach there"
        )

    def __repr__(self) -> str:
        return f"<aio.Subscription {self.name!r} of {self.queue.name!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._subscription.name

    @property
    def incarnation(self) -> str:
        """Another one after the subscription was deleted and made anew: its claim numbers mean other messages."""
        return self._subscription.incarnation

    async def claim(self, max_messages: int, max_bytes: int = UNLIMITED) -> tuple[int, int]:
        """Claim ready messages of the queue, in order: as warren.Subscription.claim."""
        return await self._loop.do(self._subscription.claim, max_messages, max_bytes)

    async def range(self) -> tuple[int, int]:
        """[lowest unacked claim, end of the claims)."""
        return await self._loop.do(self._subscription.range)

    async def ready(self) -> int:
        """Number of messages in the queue that nobody has claimed or taken yet."""
        return await self._loop.do(self._subscription.ready)

    async def read(self, start: int, end: int) -> list[Message]:
        """The claimed messages [start, end), in order: as warren.Subscription.read. They are acked by `ack(upto)`."""
        return await self._loop.do(self._subscription.read, start, end)

    async def read_arrow(
        self,
        start: int,
        end: int,
        max_bytes: int = UNLIMITED,
        *,
        max_messages: int = UNLIMITED,
        columns: Collection[str] | None = None,
    ) -> pa.RecordBatch:
        """The same as an Arrow batch: as warren.Subscription.read_arrow."""
        return await self._loop.do(
            self._subscription.read_arrow, start, end, max_bytes, max_messages=max_messages, columns=columns
        )

    async def measure(self, start: int, end: int, max_bytes: int = UNLIMITED) -> tuple[int, int]:
        """How far claims go that have so many bytes: as warren.Subscription.measure."""
        return await self._loop.do(self._subscription.measure, start, end, max_bytes)

    async def ack(self, upto: int) -> int:
        """Ack every claim below `upto`; returns how many there were."""
        return await self._loop.do(self._subscription.ack, upto)

    async def release(self) -> int:
        """Start over as a new reader: returns the lowest unacked claim."""
        return await self._loop.do(self._subscription.release)

    async def delete(self) -> int:
        """Return all unacked claims to the end of the queue (redelivered), and delete the subscription."""
        return await self._loop.do(self._subscription.delete)
