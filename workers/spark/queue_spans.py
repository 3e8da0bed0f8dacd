"""What a batch read of a queue planned: spans of sequences, cut for the executors, and compared with what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from warren.workers.spark.offsets import cut

#: rows of (first, end), ascending and apart
Spans = np.ndarray[Any, np.dtype[np.int64]]


def cut_spans(spans: Spans, *, parts_min: int, records_max: int | None) -> list[Spans]:
    """Cut spans into parts of about as many sequences, as `cut` cuts a range."""
    ends = np.cumsum(spans[:, 1] - spans[:, 0])
    total = int(ends[-1]) if len(ends) else 0
    parts = []
    for low, high in cut(0, total, parts_min=parts_min, records_max=records_max):
        first, last = int(np.searchsorted(ends, low, side="right")), int(np.searchsorted(ends, high, side="left"))
        part = spans[first : last + 1].copy()
        part[-1, 1] -= ends[last] - high
        part[0, 0] = spans[first, 1] - (ends[first] - low)
        parts.append(part)
    return parts


class Plan:
    """Spans that a task reads."""

    def __init__(self, spans: Spans) -> None:
        self._first, self._end = spans[:, 0], spans[:, 1]
        self._before = np.concatenate([[0], np.cumsum(self._end - self._first)])
        self.start, self.end = int(self._first[0]), int(self._end[-1])

    def count(self, start: int, end: int) -> int:
        """How many sequences of [start, end) are planned."""
        return self._below(end) - self._below(start)

    def _below(self, sequence: int) -> int:
        at = int(np.searchsorted(self._first, sequence, side="left")) - 1
        if at < 0:
            return 0
        return int(self._before[at] + min(sequence, int(self._end[at])) - self._first[at])

    def of(self, batch: pa.RecordBatch, start: int) -> tuple[pa.RecordBatch, int]:
        """The rows of `batch`, which was read from `start` on, that are planned; and how far it reached."""
        if not batch.num_rows:
            return batch, self.end
        found = batch.column("offset").to_numpy()
        reached = int(found[-1]) + 1
        spans = np.searchsorted(self._first, found[[0, -1]], side="right") - 1
        if spans[0] == spans[1] and spans[0] >= 0 and found[-1] < self._end[spans[0]]:
            return batch, reached
        at = np.searchsorted(self._first, found, side="right") - 1
        planned = (at >= 0) & (found < self._end[np.maximum(at, 0)])
        return batch.filter(pa.array(planned)), reached
