"""Subscriptions: durable numbered claims on messages of a queue, as a reader sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn

from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.queues import control
from warren.engine.queues.control import AnswerOf
from warren.workers.client.arguments import (
    checked_count,
)
from warren.workers.faces.browse import BROWSE_ROWS, UNLIMITED, browse
from warren.workers.faces.message import Message
from warren.workers.faces.queue_range import QueueRange, incarnation_of

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.workers.client.client import Client


class Subscription:
    """Durable numbered claims on messages of a queue: a claimed message can be read by its number until it is acked.

    No process owns a subscription. If a reader dies, the next one begins at `range()[0]`.
    """

    def __init__(self, client: Client, queue: Any, name: str, declaration: QueueDeclaration) -> None:
        self.name = name
        self.queue = queue  #: the Queue that it claims from
        self._client = client
        self._claims = _Claims(queue.name, declaration)
        #: another one after the subscription was deleted and made anew: its claim numbers mean other messages
        self.incarnation = incarnation_of(client, declaration)

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a subscription stays in the process that opened it: give another one its queue and its name, and call "
            "queue.subscription(name) there"
        )

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.queue.name!r}>"

    def _ask(self, request: Callable[[QueueDeclaration], control.Request], answers: type[AnswerOf]) -> AnswerOf:
        return self._client.ask_queue(self._claims.declaration, request, answers)

    def claim(self, max_messages: int, max_bytes: int = UNLIMITED) -> tuple[int, int]:
        """Claim ready messages of the queue, in order. Returns their numbers [start, end), which are durable by then.
        It does not wait for messages: if none is ready, start and end are equal.

        Raises UsageError, QueueNotFound, TimedOut, PeerLost, SyncFailed.
        """
        messages = min(checked_count(max_messages, "max_messages"), UNLIMITED)
        size = min(checked_count(max_bytes, "max_bytes"), UNLIMITED)
        claimed = self._ask(
            lambda claims: control.Claim(claims.subscription_of, claims.id, messages, size), control.Claimed
        )
        return claimed.start, claimed.end

    def range(self) -> tuple[int, int]:
        """[lowest unacked claim, end of the claims)."""
        found = self._ask(lambda claims: control.Ranges(claims.id), control.Range)
        return found.base, found.next

    def ready(self) -> int:
        """Number of messages in the queue that nobody has claimed or taken yet."""
        return int(self.queue.depth())

    def read(self, start: int, end: int) -> list[Message]:
        """The claimed messages [start, end), in order; `delivery_tag` is the number. Acked ones are missing."""
        start, end = checked_count(start, "start", 0), checked_count(end, "end", 0)
        read: list[Message] = []
        at = start
        while 0 <= at < end:
            count = min(end - at, BROWSE_ROWS)
            found, at = browse(self._client, self._claims, self._claims.declaration, at, count, ready_only=False)
            read += [message for message in found if message is not None and message.delivery_tag < end]
        return read

    def read_arrow(
        self,
        start: int,
        end: int,
        max_bytes: int = UNLIMITED,
        *,
        max_messages: int = UNLIMITED,
        columns: Collection[str] | None = None,
    ) -> pa.RecordBatch:
        """The same as an Arrow batch (faces/arrow.py) of `max_messages` and about `max_bytes` of bodies at most, of at
        least one message. `columns`: names of those that are wanted; bodies that are not are not read.
        """
        from warren.workers.faces.arrow import checked_columns

        start, end = checked_count(start, "start", 0), checked_count(end, "end", 0)
        bytes_max, rows_max = checked_count(max_bytes, "max_bytes"), checked_count(max_messages, "max_messages")
        wanted = checked_columns(columns)
        return self._range().read_arrow(start, end, rows_max=rows_max, bytes_max=bytes_max, columns=wanted)

    def measure(self, start: int, end: int, max_bytes: int = UNLIMITED) -> tuple[int, int]:
        """How far claims from `start` on go that have `max_bytes` bytes of metadata and bodies at most, but one claim
        at least: the number behind them, `end` at most, and how many bytes they have.
        """
        start, end = checked_count(start, "start", 0), checked_count(end, "end", 0)
        return self._range().measure(start, end, min(checked_count(max_bytes, "max_bytes"), UNLIMITED))

    def _range(self) -> QueueRange:
        return QueueRange(self._client, self._claims, self._claims.declaration)

    def ack(self, upto: int) -> int:
        """Ack every claim below `upto`; returns how many there were."""
        below = min(checked_count(upto, "upto", 0), UNLIMITED)
        return self._ask(lambda claims: control.AckTo(claims.id, below), control.Count).count

    def release(self) -> int:
        """Start over as a new reader: returns the lowest unacked claim. Claims keep their numbers and their order."""
        return self.range()[0]

    def delete(self) -> int:
        """Return all unacked claims to the end of the queue (redelivered), and delete the subscription."""
        count = self._ask(lambda claims: control.Release(claims.subscription_of, claims.id), control.Count).count
        self._client.control("subscription", queue=self.queue.name, name=self.name, delete=True)
        return count


class _Claims:
    """The hidden queue of a subscription, as the owner of messages that are read from it: it has the queue's name."""

    def __init__(self, name: str, declaration: QueueDeclaration) -> None:
        self.name = name
        self.declaration = declaration
