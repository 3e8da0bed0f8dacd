"""Retention of topics: messages go by age, by size, and when the disk gets full; then files of the log that hold none.

A thread looks each `check_s` seconds, and does what there is to do in steps; what belongs to the serving thread it has
done there (`take`). The decisions and crash points: docs/design/023-retention.md.

    retention_rules.py   which messages of a topic go
    bounds.py            what is said in the log before its files go
    retention_clock.py   what time it is

Invariants
  A minimum rises only to an offset whose predecessors nobody holds (engine/topics/holds.h), unless the disk is full.
  What a look raised the log says, synced, before the look ends, unless the log has no room.
  A file of the log goes when no queue has a message in it or before it, the checkpoint has come past it, nobody else
  needs it (`needed`), and log and checkpoint say so on stable storage. The file in which the log ends never goes.
  Files go in order, and one's folder is synced before the next one goes: what is left has no hole.
Crash points: retain.raised (a start finds the lower minima, with all their messages), retain.told, retain.removed (a
start finds files that may go, and goes on).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import INFO, WARNING
from typing import Any

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.removal import Removal
from warren.engine.saying import Say, quoted
from warren.engine.topics import bounds, log_files, retention_rules
from warren.engine.topics.declared import Declaration
from warren.engine.topics.formats import BOUNDS_TOPIC
from warren.engine.topics.looker import LOOK_S, Looker, Stopped
from warren.engine.topics.retention_clock import RetentionClock
from warren.engine.topics.retention_rules import Row, Rules
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock

PACE_S = 0.25  #: between two files of the log, while the disk has room
CLEARS = 0.02  #: the alarm ends when so much less of the disk is in use


@dataclass(frozen=True)
class Marks:
    """Shares of the file system in use above which retention does more; 1: it never does that."""

    quick: float = 0.75  #: files go without a pause
    forced: float = 0.85  #: the oldest messages of topics with a retention go before their time
    full: float = 0.90  #: nothing is appended, and holds count no more

    def force(self, share: float) -> bool:
        """Messages go before their time."""
        return self.forced < 1 and share >= self.forced

    def refuse(self, share: float) -> bool:
        """Nothing is appended."""
        return self.full < 1 and share >= self.full


@dataclass(frozen=True)
class Place:
    """Where retention works."""

    folder: TopicsFolder
    log_file_bytes: int
    ring: Any  #: buffer of the log's ring
    rows: Any  #: buffer of the rows
    consume_queue_entries: int
    index_slots: int
    index_entries: int
    ring_bytes: int


@dataclass
class Policy:
    """Settings, and what tests replace."""

    check_s: float = 10.0
    marks: Marks = field(default_factory=Marks)
    clock: RetentionClock = field(default_factory=RetentionClock)
    disk: Callable[[str], tuple[int, int]] | None = None  #: (bytes in use, bytes in all) of the file system of a path


def disk_use(path: str) -> tuple[int, int]:
    """(bytes in use, those and what this user may still write), as df has them; (0, 1) of one that does not say."""
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    return (used * found.f_frsize, (used + found.f_bavail) * found.f_frsize) if found.f_blocks else (0, 1)


class Retention(Looker):
    """Retention of one topic worker. The serving thread calls begin, take, on_timer, wake and end."""

    REFUSED = "nothing is removed of topics"

    def __init__(
        self,
        server: _core.TopicServer,
        superblock: Superblock,
        index: int,
        place: Place,
        policy: Policy,
        topics: Callable[[], list[Declaration]],
        say: Say,
        reached: Callable[[str], None],
    ) -> None:
        """`index`: of the server; `topics`: those that are served."""
        super().__init__("warren-retain", server.kick, lambda: policy.check_s, say)
        self._server, self._superblock, self._index = server, superblock, index
        self.place, self.policy, self._topics = place, policy, topics
        self._reached = reached
        self._disk = policy.disk or disk_use
        self._first = 0  # where the log's first file begins
        self._full = False
        self._stuck = ""  # why nothing went, though the disk asks for it
        self._clean_error = 0
        self._due: dict[tuple[int, int], tuple[int, int]] = {}  # when the first message of a queue was stored
        self._untold: set[tuple[int, int]] = set()  # queues whose minimum rose, and the log does not say so yet
        #: X → from where on the log is needed because of X, if the files below a position shall go (on the serving
        #: thread): who needs it from further back may do something about it until it is asked the next time
        self.needed: dict[str, Callable[[int], int]] = {}
        #: X → append what of X the log below a position alone has; where that ends, 0: nowhere (on the serving thread).
        #: None: there is no room in the log now
        self.carried: dict[str, Callable[[int], int | None]] = {}
        #: (topic, queue) → the offset below which another file has what is alive of a compacted topic
        self.compacted: Mapping[tuple[int, int], int] = {}

    # -- the serving thread -------------------------------------------------------------------------------------

    def begin(self, first: int) -> None:
        """The server has begun, with a log whose first file begins here."""
        self._first = first

    @property
    def first(self) -> int:
        """Where the log's first file begins."""
        return self._first

    def share(self) -> float:
        """How much of the disk is in use, of what may be."""
        used, total = self._disk(str(self.place.folder.path))
        return used / total

    def on_timer(self) -> None:
        """Some times a second: the alarm of a disk that is too full."""
        used, total = self._disk(str(self.place.folder.path))
        share, marks = used / total, self.policy.marks
        full = marks.refuse(share + (CLEARS if self._full else 0))
        self._superblock.set("topics_disk_used", used)
        self._superblock.set("topics_disk_total", total)
        self._superblock.set("topics_disk_limit", int(marks.full * total))
        if full != self._full:
            self._full = full
            self._superblock.server_alarm(self._index, CONSTANTS["ALARM_TOPICS_DISK"], full)
            self.wake()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _until(self, done: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until counters of the server say something."""
        while not done(self._on_loop(self._server.counters)):
            if self._stop.wait(LOOK_S):
                raise Stopped

    def look(self) -> bool:
        """Raise minima and remove files, as far as that is due; whether to look again at once."""
        share = self.share()
        topics = {topic.id: topic for topic in self._topics()}
        self._due = {key: known for key, known in self._due.items() if key[0] in topics}
        self._raise(topics, share)
        before = self._first
        self._remove(share)
        self._tell_raised()
        self._tell_clean()
        return self._first > before and self.policy.marks.force(self.share())

    # -- minima -------------------------------------------------------------------------------------------------

    def _raise(self, topics: dict[int, Declaration], share: float) -> None:
        rows = retention_rules.rows_of(self.place.rows)
        forced = self._forced_to(topics, rows, share)
        now_ms = self.policy.clock.now_ms()
        with Rules(self.place) as rules:
            wanted: dict[int, list[int]] = {}
            for topic in topics.values():
                of_topic = rows.get(topic.id, [])
                if len(of_topic) != topic.queues:
                    continue
                if topic.compacted:
                    minima = self._compacted_to(topic, of_topic)
                elif retention_rules.is_limited(topic):
                    self._check_stop()
                    minima = rules.minima(topic, of_topic, now_ms, forced, self._due)
                else:
                    continue
                if any(new > row.minimum for new, row in zip(minima, of_topic, strict=True)):
                    wanted[topic.id] = minima
            if wanted:
                self._close_and_raise(rules, topics, rows, wanted)
                if any(row.first < forced for id in wanted for row in rows[id]):
                    self._say(
                        f"the disk of topics is full to {share:.0%}: messages of topics with a retention go before "
                        f"their time, up to position {forced:,} of the log",
                        WARNING,
                    )

    def _compacted_to(self, topic: Declaration, rows: Sequence[Row]) -> list[int]:
        ends = (self.compacted.get((topic.id, queue), 0) for queue in range(len(rows)))
        return [max(row.minimum, min(end, row.maximum)) for row, end in zip(rows, ends, strict=True)]

    def _close_and_raise(
        self,
        rules: Rules,
        topics: dict[int, Declaration],
        rows: dict[int, list[Row]],
        wanted: dict[int, list[int]],
    ) -> None:
        """Nobody takes a hold of what goes from here on; who has one keeps it."""
        place, buffer = self.place, self._superblock.buffer
        behind = max(rules.behind(topics[id], rows[id], minima) for id, minima in wanted.items())
        try:
            found = _core.topic_close(place.rows, buffer, behind)
            if found is not None and found[0] < behind and not self._full:
                wanted = {id: rules.capped(topics[id], rows[id], minima, found[0]) for id, minima in wanted.items()}
                _core.topic_close(place.rows, buffer, found[0])
            ticket = self._on_loop(lambda: self._retain(wanted))
            self._until(lambda counters: counters["retained"] >= ticket)
            self._untold.update((id, queue) for id, minima in wanted.items() for queue in range(len(minima)))
            self._reached("retain.raised")
        finally:
            _core.topic_close(place.rows, buffer, 0)

    def _retain(self, wanted: dict[int, list[int]]) -> int:
        ticket = 0
        for id, minima in wanted.items():
            try:
                ticket = self._server.retain(id, minima)
            except KeyError:  # it was deleted just now
                continue
        return ticket

    def _forced_to(self, topics: dict[int, Declaration], rows: dict[int, list[Row]], share: float) -> int:
        """The position of the log below which messages go before their time; 0: none do. A file at a time, and only
        where that frees it.
        """
        if not self.policy.marks.force(share):
            self._stuck = ""
            return 0
        to = self._first + self.place.log_file_bytes
        if to > self._on_loop(self._server.counters)["saved_position"] - 1:  # in the file in which the log ends
            return 0
        why = self._keeps(topics, rows, to)
        if why and why != self._stuck:
            self._say(f"the disk of topics is full to {share:.0%}, and nothing can be removed: {why}", WARNING)
        self._stuck = why
        return 0 if why else to

    def _keeps(self, topics: dict[int, Declaration], rows: dict[int, list[Row]], position: int) -> str:
        """What keeps the log's files below a position, though messages in them might go before their time."""
        for id, of_topic in rows.items():
            topic = topics.get(id)
            limited = topic is not None and (topic.compacted or retention_rules.is_limited(topic))
            if not limited and any(row.first < position for row in of_topic):
                name = repr(topic.name) if topic is not None else f"with id {id}"
                return f"topic {name} has messages there, and no retention: give it one, or delete it"
        found = _core.topic_close(self.place.rows, self._superblock.buffer, 0)
        if found is not None and found[0] < position and not self._full:
            view = self._superblock.slot(found[1])
            return f"client {quoted(view.name)} (pid {view.pid}) holds messages there"
        return ""

    # -- files --------------------------------------------------------------------------------------------------

    def _remove(self, share: float) -> None:
        file_bytes = self.place.log_file_bytes
        counters = self._on_loop(self._server.counters)  # before the rows: what is below its position is in them
        rows = retention_rules.rows_of(self.place.rows)
        found = [row.first for of_topic in rows.values() for row in of_topic]
        least = min([*found, max(0, counters["saved_position"] - 1)])
        end = least // file_bytes * file_bytes
        if end <= self._first:
            return
        end = (
            self._on_loop(lambda: min([end, *(need(end) for need in self.needed.values())])) // file_bytes * file_bytes
        )
        told = self._bounds(rows, lambda key, row: row.first == retention_rules.NO_RECORD or key in self._untold)
        if end - self._first < 2 * bounds.encoded_bytes(told):  # it would take as much as it gives
            return
        self._tell(end, told)
        self._untold.clear()
        for base in range(self._first, end, file_bytes):
            self._unlink(base)
            if share < self.policy.marks.quick and self._stop.wait(PACE_S):
                raise Stopped
        self._say(f"retention removed files of the log up to position {end:,}", INFO)

    @staticmethod
    def _bounds(rows: dict[int, list[Row]], wanted: Callable[[tuple[int, int], Row], bool]) -> list[bounds.Bound]:
        return [
            bounds.Bound(id, queue, row.minimum, row.maximum)
            for id, of_topic in rows.items()
            for queue, row in enumerate(of_topic)
            if row.maximum and wanted((id, queue), row)
        ]

    def _tell_raised(self) -> None:
        """Say in the log which minima rose, though no file went: the checkpoint is a cache, and may be lost."""
        if not self._untold:
            return
        rows = retention_rules.rows_of(self.place.rows)
        end = 0
        for body in bounds.encode(self._first, self._bounds(rows, lambda key, _row: key in self._untold)):
            at = self._on_loop(partial(self._append, body))
            if at is None:  # the log has no room now: the next look says it
                return
            end = at
        self._untold.clear()
        self._until(lambda counters: counters["synced"] >= end)

    def _tell(self, first: int, told: Sequence[bounds.Bound]) -> None:
        """Say in the log and in the checkpoint what goes."""
        pending: list[Callable[[], int | None]] = [
            *(lambda carry=carry: carry(first) for carry in self.carried.values()),
            *(lambda body=body: self._append(body) for body in bounds.encode(first, told)),
        ]
        end = 0
        for step in pending:
            while (at := self._on_loop(step)) is None:  # the log has no room now
                if self._stop.wait(LOOK_S):
                    raise Stopped
            end = max(end, at)
        self._until(lambda counters: counters["synced"] >= end)
        ticket = self._on_loop(lambda: self._server.retain_log(first))
        self._until(lambda counters: counters["saved"] >= ticket)
        self._reached("retain.told")

    def _append(self, body: bytes) -> int | None:
        end: int | None = self._server.append_system(BOUNDS_TOPIC.encode(), body)
        return end

    def _unlink(self, base: int) -> None:
        path = log_files.path_of(self.place.folder, base)
        with atomic_file.file_explained(f"cannot remove {path}"), Removal() as removal:
            removal.add(path)
            data_files.unlink(path, missing_ok=True)
            self._reached("retain.removed")
            segment.sync_directory(self.place.folder.log)
            removal.give_back()
        self._first = base + self.place.log_file_bytes

    def _tell_clean(self) -> None:
        number = self._on_loop(self._server.counters)["clean_error"]
        if number and number != self._clean_error:
            what = "files of consume queues or key index that nobody needs could not be removed"
            self._say(f"{what} ({os.strerror(number)}): they take space", WARNING)
        self._clean_error = number
