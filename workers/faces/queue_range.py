"""Where messages of a queue lie, and those of a range of sequences: for readers that come back to what they saw.

A `QueueRange` looks at a queue, or at the claims of a subscription, and takes nothing. Its incarnation tells a queue
from a later one of the same name, whose sequences are other messages.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from warren.engine.queues import control

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from warren.engine.catalog.catalog import QueueDeclaration
    from warren.workers.client.client import Client


def incarnation_of(client: Client, queue: QueueDeclaration) -> str:
    """Another one after the queue was deleted and declared anew, and in every other node."""
    return f"{client.attachment().superblock.node_id:012x}-{queue.lasting_id}"


def number_of(incarnation: str) -> int:
    """The number that tells a queue or subscription from all others of its node, ever."""
    return int(incarnation.rpartition("-")[2])


def _ready_spans(start: int, queue: QueueDeclaration) -> control.ReadySpans:
    return control.ReadySpans(queue.id, start)


def _measure(start: int, end: int, size: int, one: bool, queue: QueueDeclaration) -> control.Measure:
    return control.Measure(queue.id, start, end, size, one)


class QueueRange:
    """The messages of a queue by their sequences. `owner` has the name of the queue."""

    def __init__(self, client: Client, owner: Any, queue: QueueDeclaration) -> None:
        self.incarnation = incarnation_of(client, queue)
        self._client = client
        self._owner = owner
        self._queue = queue

    def ready(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Spans of sequences of ready messages that have not expired: rows of (first, end), ascending.

        Raises QueueNotFound, TimedOut, PeerLost.
        """
        import numpy as np

        found: list[np.ndarray[Any, Any]] = []
        start, end = 0, 1
        while start < end:
            answer = self._client.ask_queue(self._queue, partial(_ready_spans, start), control.Spans)
            found.append(np.frombuffer(answer.spans, "<i8").reshape(-1, 2))
            start, end = answer.next, answer.end
        spans = np.concatenate(found)
        spans[:, 1] += spans[:, 0]
        if len(spans) < 2:
            return spans
        begins = np.append(True, spans[1:, 0] != spans[:-1, 1])  # else an answer ended in the middle of it
        return np.stack([spans[begins, 0], spans[np.append(begins[1:], True), 1]], axis=1)

    def measure(self, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """The sequence behind the messages from `start` on that have `max_bytes` bytes of metadata and bodies at most,
        but one message at least, `end` at most; and how many bytes they have. Raises as ready().
        """
        at, size = start, 0
        while at < end:
            request = partial(_measure, at, end, max(0, max_bytes - size), at == start)
            answer = self._client.ask_queue(self._queue, request, control.Measured)
            going, at, size = answer.next > at and not answer.full, answer.next, size + answer.bytes
            if not going:
                break
        return at, size

    def read_arrow(
        self, start: int, end: int, *, rows_max: int, bytes_max: int, columns: Collection[str] | None = None
    ) -> pa.RecordBatch:
        """The messages that are there of [start, end), ready or with a consumer, in order: an Arrow batch
        (faces/arrow.py) of `rows_max` rows and about `bytes_max` bytes of bodies, one at least.

        Raises QueueNotFound, also when the queue was declared anew, TimedOut, PeerLost, StoreError.
        """
        from warren.workers.faces.arrow import Batches

        batches = Batches(self._client, self._owner, self._queue, ready_only=False, columns=columns)
        return next(batches.read(start, end, rows_max=rows_max, bytes_max=bytes_max), None) or batches.empty()
