"""Compaction: of each key of a compacted topic the newest message stays, in a file for each queue below its minimum.

A thread looks each `check_s` seconds, and makes one pass after the other over the queues where it is due, those with
the most to gain first. Retention raises their minima then (Retention.compacted). Formats, order and crash points:
docs/design/029-compaction.md. What a pass does is C (engine/topics/compact.h).

Invariants
  `ends` has a file's end when file and name are on stable storage: a minimum rises only to there.
  A file is replaced as a whole, by one that has all that is alive below a higher end.
  Nobody else makes, renames or removes anything in the folder while this runs.
Crash points: compact.written (a start removes the file beside), compact.renamed (a start syncs the file again).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import NamedTuple

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.atomic_file import NEW_SUFFIX
from warren.engine.saying import Say, counted, quoted
from warren.engine.topics import retention_rules
from warren.engine.topics.declared import Declaration
from warren.engine.topics.looker import Looker, Stopped
from warren.engine.topics.newest_files import File, gap_of, look, path_of
from warren.engine.topics.retention import Retention
from warren.engine.topics.retention_rules import Row
from warren.ipc import access

#: what to do about a damaged, old or missing file
CHECK = "`warren check` says more; with --repair, when the node is down, it keeps what is sound, and gives up the rest"
DAMAGED_S = 3600.0  #: until a queue with damage is tried again


@dataclass
class Rates:
    """Settings."""

    dirty: float = 0.5  #: a pass is due when the log has this share of the file's bytes
    keys_max: int = 1_000_000  #: different keys of which a pass takes the newest messages
    tombstone_s: float = 86_400.0  #: how long a tombstone stays when nobody finds what it took away
    bytes_per_s: int = 64 << 20
    bytes_min: int = 1 << 20  #: of the log that a pass is worth


class _Due(NamedTuple):
    gain: int
    topic: Declaration
    queue: int
    row: Row


@dataclass
class _Trouble:
    """Queues that were not compacted."""

    until: dict[tuple[int, int], float] = field(default_factory=dict)
    said: dict[tuple[int, int], str] = field(default_factory=dict)


class Compaction(Looker):
    """Compaction of one topic worker. The serving thread calls take, wake and end."""

    REFUSED = "compacted topics wait"

    def __init__(
        self,
        server: _core.TopicServer,
        retention: Retention,
        node: bytes,
        rates: Rates,
        topics: Callable[[], list[Declaration]],
        say: Say,
        reached: Callable[[str], None],
    ) -> None:
        """`node`: whose files; `topics`: those that are served; `reached`: called at crash points."""
        super().__init__("warren-compact", server.kick, lambda: retention.policy.check_s, say)
        self._server, self._retention, self._node, self._rates = server, retention, node, rates
        self._place, self._policy = retention.place, retention.policy
        self._folder = self._place.folder.compacted
        self._topics, self._reached = topics, reached
        self._stop_pass = bytearray(1)
        self._files: dict[tuple[int, int], File] = {}
        self._known: set[int] = set()  # topics whose files were looked for
        self._trouble = _Trouble()
        self.ends: dict[tuple[int, int], int] = {}  #: (topic, queue) → the end of its file
        self.passes_n = 0  #: that were done
        retention.compacted = self.ends

    def end(self) -> None:
        """Stop the thread; what a pass has written so far is left to the next start."""
        self._stop_pass[0] = 1
        super().end()

    def look(self) -> bool:
        """Make the passes that are due."""
        topics = {topic.id: topic for topic in self._topics() if topic.compacted}
        with atomic_file.explained(f"cannot read {self._folder}"):
            self._remove_others(topics)
        for topic in topics.values():
            if topic.id not in self._known:
                self._find(topic)
        for due in self._due(topics):
            self._check_stop()
            self._pass(due)
        return False

    def _remove_others(self, topics: dict[int, Declaration]) -> None:
        """Folders of topics that were deleted. An id is given once, so nobody makes such a folder meanwhile."""
        try:
            there = list(self._folder.iterdir())
        except FileNotFoundError:
            return
        for path in there:
            if path.name.isdecimal() and int(path.name) not in topics and path.is_dir() and not path.is_symlink():
                data_files.remove_tree(path)
                id = int(path.name)
                self._known.discard(id)
                for known in (self._files, self.ends, self._trouble.until, self._trouble.said):
                    for key in [key for key in known if key[0] == id]:
                        del known[key]

    def _find(self, topic: Declaration) -> None:
        """Its files, as a start finds them: renamed, and perhaps not synced yet."""
        folder = self._folder / str(topic.id)
        rows = retention_rules.rows_of(self._place.rows).get(topic.id, [])
        if len(rows) != topic.queues:
            return  # it is shown in a moment
        with atomic_file.explained(f"cannot read {folder}"):
            if folder.is_dir():
                for path in folder.glob(f"*{NEW_SUFFIX}"):
                    if path.is_file():
                        data_files.unlink(path)
            for queue, row in enumerate(rows):
                self._find_file(topic, queue, row)
            if folder.is_dir():
                atomic_file.sync_directory(folder)
                atomic_file.sync_directory(self._folder)
        self._known.add(topic.id)
        self._retention.wake()

    def _find_file(self, topic: Declaration, queue: int, row: Row) -> None:
        path, key = path_of(self._folder, topic.id, queue), (topic.id, queue)
        self._files.pop(key, None)
        self.ends.pop(key, None)
        try:
            found = look(path, self._node, *key)
        except OSError as error:
            if error.errno != errno.EUCLEAN:
                raise
            self._damaged(key, f"{path}: {error.strerror}")
            return
        if row.minimum > (found.end if found is not None else 0):
            what = "is missing" if found is None else f"is an older one, which ends at offset {found.end}"
            gap = gap_of(found.end if found is not None else 0, row.minimum)
            self._damaged(key, f"topic {quoted(topic.name)}, queue {queue}: {path} {what}: {gap}")
            return
        if found is not None:
            fd = data_files.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._files[key] = found
            self.ends[key] = found.end

    # -- what is due --------------------------------------------------------------------------------------------

    def _due(self, topics: dict[int, Declaration]) -> list[_Due]:
        """Queues, those with the most to gain first."""
        if not topics:
            return []
        rows = retention_rules.rows_of(self._place.rows)
        log_end: int = self._on_loop(self._server.counters)["synced"]
        forced = self._policy.marks.force(self._retention.share())
        forced_to = self._retention.first + self._place.log_file_bytes if forced else 0
        turn = max(self._place.log_file_bytes, sum(file.bytes for file in self._files.values()))
        now = time.monotonic()
        found: list[_Due] = []
        for topic in topics.values():
            of_topic = rows.get(topic.id, [])
            if topic.id not in self._known or len(of_topic) != topic.queues:
                continue
            for queue, row in enumerate(of_topic):
                key = topic.id, queue
                file = self._files.get(key)
                until = self._trouble.until.get(key)
                if until is not None and until <= now:
                    del self._trouble.until[key]
                    self._known.discard(topic.id)  # its file is looked at anew
                if until is not None or (file is not None and file.end > row.minimum):
                    continue  # damaged; or its minimum has not risen yet
                if self._is_due(row, file, min(forced_to, log_end), log_end - turn):
                    found.append(_Due(row.bytes, topic, queue, row))
        return sorted(found, key=lambda item: -item.gain)

    def _is_due(self, row: Row, file: File | None, forced_to: int, too_old: int) -> bool:
        """`forced_to`, `too_old`: what lies below in the log shall go, or holds up more than all files have."""
        size = file.bytes if file is not None else 0
        if file is None and row.minimum:
            return True  # what it had was given up
        much = row.bytes >= max(self._rates.bytes_min, self._rates.dirty * size) or row.first < max(forced_to, too_old)
        if much and row.maximum > row.minimum:
            return True
        if file is None or not file.tombstone_ms:
            return False
        return self._policy.clock.now_ms() >= file.tombstone_ms + self._rates.tombstone_s * 1000

    # -- a pass -------------------------------------------------------------------------------------------------

    def _pass(self, due: _Due) -> None:
        topic, queue = due.topic, due.queue
        key, path = (topic.id, queue), path_of(self._folder, topic.id, queue)
        new = path.with_name(path.name + NEW_SUFFIX)
        began = time.monotonic()
        try:
            with contextlib.ExitStack() as closing:
                atomic_file.make_directories(path.parent)
                end, size, records, gone = self._write(due, path, new, closing)
            self._reached("compact.written")
            data_files.rename(new, path)
            atomic_file.sync_directory(path.parent)
            self._reached("compact.renamed")
            found = look(path, self._node, *key)
            if found is None:
                raise OSError(errno.EUCLEAN, f"{path} is gone")
        except OSError as error:
            self._known.discard(topic.id)  # it may have its name, and not be durable: its files are looked at anew
            with contextlib.suppress(OSError):
                data_files.unlink(new, missing_ok=True)
            self._failed(due, path, error)
            return
        self._files[key] = found
        self.ends[key] = end
        self._trouble.until.pop(key, None)
        self._trouble.said.pop(key, None)
        self.passes_n += 1
        self._retention.wake()
        if not gone:  # tombstones have their time now
            return
        took = time.monotonic() - began
        kept = f"{counted(records, 'message')} of {size:,} bytes stay, {gone:,} went"
        self._say(
            f"topic {quoted(topic.name)}, queue {queue} was compacted below offset {end}: {kept}; {took:.1f} s", INFO
        )

    def _write(self, due: _Due, path: Path, new: Path, closing: contextlib.ExitStack) -> tuple[int, int, int, int]:
        """The new file, synced. Raises OSError."""
        topic, row, rates = due.topic, due.row, self._rates
        file = self._files.get((topic.id, due.queue))
        synced: int = self._on_loop(self._server.counters)["synced"]

        def opened(path: Path, flags: int) -> int:
            fd = data_files.open(path, flags, access.file_mode())
            closing.callback(os.close, fd)
            return fd

        root = opened(self._place.folder.path, os.O_RDONLY | os.O_DIRECTORY)
        old = -1
        if file is not None:
            try:
                old = opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                raise OSError(errno.EUCLEAN, f"{path}: {error.strerror}") from error
        fd = opened(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        access.let_in(fd, access.file_mode())
        reader = retention_rules.reader_of(self._place, root, topic, self._node)
        closing.callback(reader.close)
        now, tombstone_ms = self._policy.clock.now_ms(), int(rates.tombstone_s * 1000)
        limits = rates.keys_max, now, tombstone_ms, rates.bytes_per_s
        start = row.minimum
        return reader.compact(due.queue, old, start, row.maximum, synced, *limits, fd, self._stop_pass)

    def _failed(self, due: _Due, path: Path, error: OSError) -> None:
        key = due.topic.id, due.queue
        if error.errno == errno.ECANCELED:
            raise Stopped
        if error.errno == errno.ESTALE:
            return  # the topic was deleted, or what was read went: the next look sees that
        if error.errno == errno.EINVAL:
            return  # another file is there than this worker made: the next look sees which
        if error.errno == errno.EUCLEAN:
            self._damaged(key, f"topic {quoted(due.topic.name)}, queue {due.queue}: {error.strerror}")
            return
        text = (
            f"topic {quoted(due.topic.name)}, queue {due.queue}: cannot write {path}: {os.strerror(error.errno or 0)}"
        )
        if self._trouble.said.get(key) != text:
            self._trouble.said[key] = text
            self._say(f"{text}; its messages stay where they are, and it is tried again", WARNING)

    def _damaged(self, key: tuple[int, int], what: str) -> None:
        self._trouble.until[key] = time.monotonic() + DAMAGED_S
        if self._trouble.said.get(key) != what:
            self._trouble.said[key] = what
            self._say(f"not compacted, and tried again in an hour: {what}; {CHECK}", ERROR)
