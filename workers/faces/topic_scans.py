"""What reads a topic by ranges and times, wherever its files and rows are: at a node that serves it (topic_reading.py),
or in a data directory, of whose node nothing is needed (topic_files.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from warren.engine import _core
from warren.engine.errors import CorruptRecord, TopicNotFound, UsageError
from warren.engine.kernel.paths import TOPICS
from warren.engine.saying import shown
from warren.workers.client.arguments import checked_count, milliseconds

if TYPE_CHECKING:
    from warren.engine.catalog.topics import TopicDeclaration
    from warren.workers.faces.topic_holds import Hold

T = TypeVar("T")
P = ParamSpec("P")

END = (1 << 64) - 1
TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1
TAGS_MAX = 64


class ReadStatus(IntEnum):
    """What came of a read, by RocketMQ's names. Whatever it is, the next read begins at `next_offset`.

        FOUND                  there are messages
        NO_MATCHED_MESSAGE     there are, none with a wanted tag; a timeout waits for one
        OFFSET_OVERFLOW_ONE    nothing yet: this is the end, where a timeout waits
        NO_MESSAGE_IN_QUEUE    the queue never had one; next_offset is 0, where a timeout waits
        OFFSET_FOUND_NULL      the log lost these, or has newer ones of their keys; a timeout goes on behind them

    These come at once, whatever the timeout:

        OFFSET_TOO_SMALL       messages were removed, and are missed; next_offset is the first that is there
        OFFSET_OVERFLOW_BADLY  this is beyond the end, which is next_offset
        MESSAGE_WAS_REMOVING   messages are being removed just now, and are missed
    """

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    OFFSET_TOO_SMALL = 2
    OFFSET_OVERFLOW_ONE = 3
    OFFSET_OVERFLOW_BADLY = 4
    NO_MESSAGE_IN_QUEUE = 5
    OFFSET_FOUND_NULL = 6
    MESSAGE_WAS_REMOVING = 7


#: of the core: what is damaged is named, next_offset lies behind it
DAMAGED = 8
#: of a message that is damaged
GO_ON = "go on at offset {next} of queue {queue}, or give damage='skip'"
#: of what is derived from the log
AGAIN = "`warren check --repair`, when the node is down, makes it again from the log"
#: of the newest messages of a compacted topic
SOUND = "no other file has them: does a backup? `warren check --repair`, when the node is down, keeps what is sound"


@dataclass(frozen=True, slots=True)
class Scan:
    """Which messages a scan is about (all of them, if nothing else is said), and which columns it makes of them:
    `_core.WANT_…`, added. A message has one of `tags`, one of `keys`, and was stored at `since` or later, and before
    `until` (milliseconds since 1970). `advice`: what to do about damage, with `{next}`, the offset behind it, and
    `{queue}`.
    """

    want: int
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    since: int = TIME_MIN
    until: int = TIME_MAX
    advice: str = GO_ON


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan gives. `status`: as of a read, None: something is damaged, which `damage` names; `next_offset`: where
    the next one begins; `min_offset`: the first message of the queue; `columns`: of the rows that are wanted, of which
    there may be none.
    """

    status: ReadStatus | None
    next_offset: int
    min_offset: int
    columns: _core.Columns
    damage: CorruptRecord | None


class TopicScans(ABC):
    """Reads ranges of one topic; safe for threads. Raises TopicNotFound, and what its kind of place raises."""

    def __init__(self, topic: TopicDeclaration) -> None:
        self.declared = topic

    @abstractmethod
    def _ask(self, call: Callable[Concatenate[_core.TopicReader, P], T | None], *args: P.args, **names: P.kwargs) -> T:
        """The answer of a reader. None of it says that there is no such queue there."""

    @abstractmethod
    def _directory(self) -> Path:
        """The data directory, for texts."""

    @abstractmethod
    def hold(self, queue: int, start: int, end: int | None = None) -> Hold | None:
        """Keep a range from retention: as Topic.hold. None: nobody can from here."""

    @abstractmethod
    def reach(self, queue: int, end: int, timeout: float) -> None:
        """Wait until all below an offset that was there elsewhere is seen from here. Raises TimedOut."""

    @abstractmethod
    def check_there(self, queue: int = 0) -> None:
        """Not all answers of the core say that the topic is gone. Raises TopicNotFound."""

    def scan(self, queue: int, start: int, end: int, rows_max: int, bytes_max: int, wanted: Scan) -> Scanned:
        """Columns of messages of a queue from offset `start` on and below `end`, made of `rows_max` messages at most,
        as far as `bytes_max` of log go.

        Raises TopicNotFound, PeerLost, ClosedError; what else is wrong says the answer.
        """
        code, following, low, _high, columns, found = self._ask(
            _core.TopicReader.scan,
            queue,
            start,
            end,
            rows_max,
            bytes_max,
            wanted.tags,
            wanted.keys,
            wanted.since,
            wanted.until,
            wanted.want,
        )
        if code == DAMAGED:
            return Scanned(None, following, low, columns, self._corrupt(found, queue, following, False, wanted.advice))
        return Scanned(ReadStatus(code), following, low, columns, None)

    def span(self, queue: int, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """How far from offset `start` on, and below `end`, messages of `bytes_max` of log together reach: an offset,
        and how many bytes they have.
        """
        return self._ask(_core.TopicReader.span, self._queue(queue), start, end, bytes_max)

    def offsets(self, queue: int = 0) -> tuple[int, int]:
        """(the first offset that is there, behind the last that a reader sees)."""
        return self.counted(queue)[:2]

    def counted(self, queue: int) -> tuple[int, int, int]:
        """The same, and how many messages a reader sees there."""
        return self._ask(_core.TopicReader.bounds, self._queue(queue))

    def offset_at(self, queue: int, when: datetime | float, boundary: str = "lower") -> int | None:
        """The offset of a time (a datetime, or milliseconds since 1970), by when messages were stored. "lower": of the
        first message that is so late or later, behind the last if there is none; "upper": of the last one that is so
        late or earlier, None if there is none.
        """
        queue = self._queue(queue)
        if boundary not in ("lower", "upper"):
            raise UsageError(f"boundary must be 'lower' or 'upper', not {shown(boundary)}")
        upper = boundary == "upper"
        moment = milliseconds(when, "when", up=not upper)
        found = self._ask(_core.TopicReader.seek, queue, moment, upper)
        return None if found < 0 else found

    def _queue(self, queue: object) -> int:
        return checked_count(queue, f"queue of topic {self.declared.name!r}", 0, self.declared.queues - 1)

    def _corrupt(
        self, found: tuple[str, int, str, str] | None, queue: int, following: int, strict: bool, advice: str = GO_ON
    ) -> CorruptRecord:
        assert found is not None
        error = self._named(found, advice.format(next=following, queue=queue))
        if strict:
            raise error
        return error

    def _named(self, found: tuple[str, int, str, str], advice: str) -> CorruptRecord:
        file, position, expected, there = found
        if file.startswith("compacted/"):
            advice = f"{advice}; {SOUND}"
        elif not file.startswith("commitlog/"):
            advice = f"{advice}; {AGAIN}"
        return CorruptRecord(self._directory() / TOPICS / file, position, expected, there, advice)


def deleted(topic: str) -> TopicNotFound:
    """The error of a topic that was there."""
    return TopicNotFound(f"topic {topic!r} was deleted: what it had is gone, and one that has the name now is another")
