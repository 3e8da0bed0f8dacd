"""Which messages of a topic retention takes: those that are too old, those beyond its size, and on a full disk those
before a position of the log. Rows say what there is, consume queues and log where it lies (engine/topics/retain.h); no
server is asked.

Age is that of the store time, which never steps back: so the messages that are too old are the first ones of a queue.
Size is that of the records in the log, of all queues of the topic together; the oldest go, whatever their queue, and
the newest one of the topic stays, however large it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from warren.engine import _core
from warren.engine.kernel import data_files
from warren.engine.kernel.protocol import TOPIC_ROW, TOPIC_ROWS
from warren.engine.topics.declared import Declaration

if TYPE_CHECKING:
    from warren.engine.topics.retention import Place

#: (topic, queue) → (offset of its first message, when that was stored)
Due = dict[tuple[int, int], tuple[int, int]]

NO_RECORD = (1 << 64) - 1
_WORDS = TOPIC_ROW.size // 8
_KEY, _MINIMUM, _MAXIMUM, _BYTES, _FROM = (
    TOPIC_ROW.offset(name) // 8 for name in ("key", "minimum", "maximum", "bytes", "from")
)


class Row(NamedTuple):
    """What a queue of a topic has."""

    minimum: int
    maximum: int
    bytes: int  #: of its records
    first: int  #: position of the first one; NO_RECORD: there is none


def is_limited(topic: Declaration) -> bool:
    """Whether a topic has a retention: of one that has none nothing ever goes."""
    return topic.retention_s is not None or topic.retention_bytes is not None


def rows_of(region: Any) -> dict[int, list[Row]]:
    """The rows of all topics, by id and queue, of the region that the worker shows them in. Of a topic that comes or
    goes at this moment some may be missing.
    """
    count = min(TOPIC_ROWS.unpack(region, "rows_n"), (len(region) - TOPIC_ROWS.size) // TOPIC_ROW.size)
    with (
        memoryview(region) as view,
        view[TOPIC_ROWS.size : TOPIC_ROWS.size + count * TOPIC_ROW.size] as part,
        part.cast("B").cast("Q") as words,
    ):
        numbers = words.tolist()
    found: dict[int, dict[int, Row]] = {}
    for at in range(0, len(numbers), _WORDS):
        if key := numbers[at + _KEY]:
            of_topic = found.setdefault(key >> 32, {})
            row = (numbers[at + word] for word in (_MINIMUM, _MAXIMUM, _BYTES, _FROM))
            of_topic[(key & 0xFFFFFFFF) - 1] = Row(*row)
    return {id: [of_topic[queue] for queue in sorted(of_topic)] for id, of_topic in found.items()}


def reader_of(place: Place, root: int, topic: Declaration, newest_of: bytes | None = None) -> _core.TopicReader:
    """A reader of the log, below the minimum only what lies there still. `root`: a descriptor of the topics' folder;
    `newest_of`: the node whose files of newest messages it takes.
    """
    sizes = place.consume_queue_entries, place.index_slots, place.index_entries
    reader = _core.TopicReader(
        root, topic.id, topic.name.encode(), place.log_file_bytes, place.ring_bytes, *sizes, newest_of
    )
    reader.begin(place.ring, place.rows)
    return reader


class Rules:
    """Asks for one look of retention; a context, which has files open."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._root = data_files.open_folder(place.folder.path)
        self._reader: tuple[int, _core.TopicReader] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._drop()
        os.close(self._root)

    def _drop(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
        self._reader = None

    def _of(self, topic: Declaration) -> _core.TopicReader:
        if self._reader is not None and self._reader[0] == topic.id:
            return self._reader[1]
        self._drop()
        reader = reader_of(self._place, self._root, topic)
        self._reader = topic.id, reader
        return reader

    def minima(self, topic: Declaration, rows: Sequence[Row], now_ms: int, forced: int, due: Due) -> list[int]:
        """Where the queues of a topic shall begin. `forced`: messages before this position of the log go, too. `due`:
        kept between two looks: when the first message of a queue was stored.
        """
        found = [row.minimum for row in rows]
        if topic.retention_s is not None:
            cutoff = now_ms - math.ceil(topic.retention_s * 1000)
            found = [self._by_age(topic, queue, row, cutoff, due) for queue, row in enumerate(rows)]
        size = topic.retention_bytes
        if size is not None and (excess := sum(row.bytes for row in rows) - size) > 0:
            taken = self._of(topic).excess(len(rows), excess)
            found = list(map(max, found, taken or found))
        for queue, row in enumerate(rows):
            if row.first < forced:
                found[queue] = max(found[queue], self._of(topic).offset_of(queue, forced) or 0)
        return found

    def _by_age(self, topic: Declaration, queue: int, row: Row, cutoff: int, due: Due) -> int:
        if row.minimum >= row.maximum:
            return row.minimum
        key = topic.id, queue
        minimum, stored = due.get(key, (-1, 0))
        if minimum != row.minimum:
            first = self._of(topic).first_time(queue)
            if first is None:
                return row.minimum
            stored = first
            due[key] = row.minimum, stored
        if stored >= cutoff:
            return row.minimum
        return max(row.minimum, self._of(topic).seek(queue, cutoff, False) or 0)

    def behind(self, topic: Declaration, rows: Sequence[Row], minima: Sequence[int]) -> int:
        """A position of the log behind all that goes with these minima."""
        found = 0
        for queue, (row, minimum) in enumerate(zip(rows, minima, strict=True)):
            if minimum > row.minimum:
                last = self._of(topic).position_of(queue, minimum - 1)
                found = max(found, 0 if last is None else last + 1)  # -1: they were lost, and nobody holds them
        return found

    def capped(self, topic: Declaration, rows: Sequence[Row], minima: Sequence[int], position: int) -> list[int]:
        """The same minima, but none above a message at a position of the log or behind it."""
        found = []
        for queue, (row, minimum) in enumerate(zip(rows, minima, strict=True)):
            if minimum > row.minimum:
                minimum = max(row.minimum, min(minimum, self._of(topic).offset_of(queue, position) or 0))
            found.append(minimum)
        return found
