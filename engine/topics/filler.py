"""Commits that hold no message, for places of the log whose own commits are lost: with them the log is whole again, for
whoever walks it, and every position stays what it was.

Bytes alone, by the tables of formats.py; where they go says engine/topics/log_loss.py. A commit has at most
COMMIT_BYTES_MAX (engine/topics/walk.h), never crosses the end of a file, and has the next number; a file ends at its
end or in a blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from warren.engine import _core
from warren.engine.topics.formats import BLANK, BLANK_MAGIC, COMMIT, COMMIT_TOPIC, COMMIT_VERSION
from warren.engine.topics.records import Record, encode

COMMIT_BYTES_MAX = 48 << 20  #: of one that is made here: walkers take up to 64 MiB
#: what fills a commit: a record of a topic that cannot be, because no id is so high and no name is so
_PAD = Record(topic=".", flag=0xFFFFFFFF)


class CannotFill(Exception):
    """So many commits do not fill this place."""


@dataclass(frozen=True)
class Commit:
    """Where a commit ends, and what the next one has to follow."""

    end: int = 0
    epoch: int = 0
    number: int = 0
    store_ms: int = 0


@cache
def _least() -> tuple[int, int]:
    """Bytes of a commit without a record, and of the smallest record that fills one."""
    return len(made(bytes(16), Commit(), ())), len(encode(_PAD))


def made(node: bytes, after: Commit, bodies: Sequence[Record]) -> bytes:
    """A commit with these records, at the end of the one before."""
    records, at = bytearray(), after.end
    for record in bodies:
        records += encode(replace(record, physical_offset=at + len(records)))
    body = bytearray(COMMIT.size)
    COMMIT.set_bytes(body, "node", node)
    numbers = {
        "version": COMMIT_VERSION,
        "epoch": after.epoch,
        "number": after.number + 1,
        "from": at,
        "synced": at,
        "store_timestamp": after.store_ms,
        "crc": _core.crc32c(records),
    }
    for name, value in numbers.items():
        COMMIT.pack_into(body, name, value)
    end = Record(
        topic=COMMIT_TOPIC,
        body=bytes(body),
        queue_offset=after.number + 1,
        physical_offset=at + len(records),
        born_timestamp=after.store_ms,
        store_timestamp=after.store_ms,
    )
    return bytes(records) + encode(end)


def blank(n: int) -> bytes:
    """The head of n bytes at a file's end that hold nothing."""
    head = bytearray(BLANK.size)
    BLANK.pack_into(head, "size", n)
    BLANK.pack_into(head, "magic", BLANK_MAGIC)
    return bytes(head)


def fill(node: bytes, file_bytes: int, after: Commit, to: int, count: int) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of `count` commits from the end of `after` up to `to`; what lies between them is zeros.
    Raises CannotFill, before it gives any.
    """
    parts = list(_parts(file_bytes, after.end, to))
    counts = _counts(parts, file_bytes, count)
    return _filled(node, file_bytes, after, parts, counts)


def _parts(file_bytes: int, begin: int, to: int) -> Iterator[tuple[int, int]]:
    """The parts of each file that are to be filled: (from, to)."""
    while begin < to:
        end = min(to, (begin // file_bytes + 1) * file_bytes)
        yield begin, end
        begin = end


def _counts(parts: list[tuple[int, int]], file_bytes: int, count: int) -> list[int]:
    """How many commits each part gets: those that end with their file take any number, the last one has to be full."""
    smallest, pad = _least()
    last = parts[-1][1] - parts[-1][0] if parts and parts[-1][1] % file_bytes else 0
    free = [(end - begin - BLANK.size) // smallest for begin, end in (parts[:-1] if last else parts)]
    of_last = max(-(-last // COMMIT_BYTES_MAX), count - sum(max(n, 0) for n in free))
    rest = last - of_last * smallest
    if of_last > count or (not last and of_last > 0) or rest < 0 or 0 < rest < pad:
        raise CannotFill
    left, counts = count - of_last, []
    for most in free:
        counts.append(min(left, max(most, 0)))
        left -= counts[-1]
    return [*counts, of_last] if last else counts


def _filled(
    node: bytes, file_bytes: int, after: Commit, parts: list[tuple[int, int]], counts: list[int]
) -> Iterator[tuple[int, bytes]]:
    smallest, pad = _least()
    for (begin, end), count in zip(parts, counts, strict=True):
        after = replace(after, end=begin)
        for left in range(count - 1, -1, -1):
            size = smallest
            if end % file_bytes:
                size = min(end - after.end - left * smallest, COMMIT_BYTES_MAX)
                rest = end - after.end - size - left * smallest
                size -= 2 * pad if 0 < rest < pad else 0
            record = replace(_PAD, body=bytes(size - smallest - pad)) if size > smallest else None
            commit = made(node, after, [record] if record is not None else ())
            yield after.end, commit
            after = replace(after, end=after.end + len(commit), number=after.number + 1)
        if not end % file_bytes and after.end < end:
            yield after.end, blank(end - after.end)
