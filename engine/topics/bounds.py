"""Bounds as bytes: bodies of records of BOUNDS_TOPIC, which say what retention takes, of queues and of the log. The
formats: engine/topics/formats.py; who reads them: engine/topics/dispatch.c, examine.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from warren.engine.topics.formats import BOUND, BOUNDS, BOUNDS_VERSION

ROWS_AT_ONCE = 1000  #: bounds of one record

_HEAD, _ROW = struct.Struct(">IIQ"), struct.Struct(">IIQQ")
assert (_HEAD.size, _ROW.size) == (BOUNDS.size, BOUND.size)


class Bound(NamedTuple):
    """A queue whose minimum rose, or of which the log has no message any more: where it goes on."""

    topic: int
    queue: int
    minimum: int
    next: int


def encode(first: int, bounds: Sequence[Bound]) -> Iterator[bytes]:
    """Bodies of records: files of the log below `first` may be missing from now on. One at least."""
    for at in range(0, max(1, len(bounds)), ROWS_AT_ONCE):
        part = bounds[at : at + ROWS_AT_ONCE]
        yield _HEAD.pack(BOUNDS_VERSION, len(part), first) + b"".join(_ROW.pack(*bound) for bound in part)


def encoded_bytes(bounds: Sequence[Bound]) -> int:
    """About how much of the log they take."""
    return len(bounds) * _ROW.size + (len(bounds) // ROWS_AT_ONCE + 1) * 512
