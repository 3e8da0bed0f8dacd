"""What a campaign's stream copies: numbers; and which of them have to be in the topics that it writes.

    Rate         Spark's own source `rate-micro-batch`: batch n has the numbers n · rows …
    FromTopic    a topic of the node: number n is message n // 3 of queue n % 3; keys and bodies follow from the number,
                 so that each message that was copied is compared whole
    FromQueue    a queue of the node, without keys: number n is its message n, and so claim n of the stream

With which messages a committed batch ends is read from Spark's log of offsets, which lies below the driver's folder.
Messages are published while the stream runs, always some batches ahead of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import warren

SOURCE = "numbers"
QUEUES = 3
#: batches that the source is ahead at least, and gets ahead then
AHEAD_MIN, AHEAD = 40, 80
#: bodies have up to so many bytes behind their number
PADDING_MAX = 400


def body(number: int) -> bytes:
    """The body of a number."""
    return b"%d " % number + b"%x" % (number * 2_654_435_761 % 251) * (number * 7 % (PADDING_MAX // 2))


def key(number: int) -> str | None:
    """The key of a number: every third has none."""
    return f"k{number % 97}" if number % 3 else None


class Rate:
    """Numbers of Spark's own source."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def number(self, value: bytes, key: str | None) -> int:
        """The number of a message that was copied."""
        return int(value)

    def keep_ahead(self, work: Path) -> None:
        """Nothing: Spark makes them."""

    def wanted(self, work: Path, batch: int) -> set[int]:
        """The numbers that are there when a batch is committed."""
        return set(range((batch + 1) * self._rows))


class FromTopic:
    """Numbers of a topic of the node at `data`, made here."""

    def __init__(self, data: Path, rows: int) -> None:
        self._data = data
        self._rows = rows
        self._appended = 0
        with warren.attach(data, name="campaign") as node:
            node.topic(SOURCE, queues=QUEUES)

    def number(self, value: bytes, key_of: str | None) -> int:
        """The number of a message that was copied. Raises ValueError when it is not as it was."""
        number = int(value.split(b" ")[0])
        if value != body(number) or key_of != key(number):
            raise ValueError(f"number {number} came with key {key_of!r} and body {value[:100]!r}…")
        return number

    def keep_ahead(self, work: Path) -> None:
        """Append messages, unless the stream has enough before it."""
        read = self._offsets(_newest(work), work)
        if self._appended - sum(read) >= AHEAD_MIN * self._rows:
            return
        end = (sum(read) + AHEAD * self._rows) // QUEUES * QUEUES
        with warren.attach(self._data, name="campaign") as node:
            topic = node.topic(SOURCE)
            for queue in range(QUEUES):
                numbers = range(self._appended + queue, end, QUEUES)
                topic.append_many([body(n) for n in numbers], [key(n) for n in numbers], queue=queue, timeout=60.0)
        self._appended = end

    def wanted(self, work: Path, batch: int) -> set[int]:
        """The numbers that are there when a batch is committed."""
        return {place * QUEUES + queue for queue, end in enumerate(self._offsets(batch, work)) for place in range(end)}

    def _offsets(self, batch: int, work: Path) -> list[int]:
        return [0] * QUEUES if batch < 0 else [_position(work, batch)[str(queue)] for queue in range(QUEUES)]


class FromQueue:
    """Numbers of a queue of the node at `data`, made here."""

    def __init__(self, data: Path, rows: int) -> None:
        self._data = data
        self._rows = rows
        self._put = 0
        with warren.attach(data, name="campaign") as node:
            node.queue(SOURCE)

    def number(self, value: bytes, key: str | None) -> int:
        """The number of a message that was copied. Raises ValueError when it is not as it was."""
        number = int(value.split(b" ")[0])
        if value != body(number) or key is not None:
            raise ValueError(f"number {number} came with key {key!r} and body {value[:100]!r}…")
        return number

    def keep_ahead(self, work: Path) -> None:
        """Publish messages, unless the stream has enough before it."""
        claimed = self._next(_newest(work), work)
        if self._put - claimed >= AHEAD_MIN * self._rows:
            return
        numbers = range(self._put, claimed + AHEAD * self._rows)
        with warren.attach(self._data, name="campaign") as node:
            node.queue(SOURCE).put_many([body(n) for n in numbers], timeout=60.0)
        self._put = numbers.stop

    def wanted(self, work: Path, batch: int) -> set[int]:
        """The numbers that are there when a batch is committed."""
        return set(range(self._next(batch, work)))

    def _next(self, batch: int, work: Path) -> int:
        return 0 if batch < 0 else int(_position(work, batch)["next"])


def _newest(work: Path) -> int:
    """The last batch in Spark's log of offsets; -1: none."""
    folder = work / "checkpoint" / "offsets"
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def _position(work: Path, batch: int) -> dict[str, Any]:
    """The offset with which a batch ends."""
    found: dict[str, Any] = json.loads((work / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2])
    position: dict[str, Any] = found[SOURCE]
    return position
