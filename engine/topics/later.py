"""The snapshot of a topic worker's messages that are to come later (`topics/later`): from where a start reads the log.

What is pending is in the core's memory (engine/topics/pending.h), and is what the log says: records of messages that
are to come, and records by which they came. The snapshot has all of it as of a position, so a start reads the log from
there. It is a cache of the log: one that is damaged or missing is named, and all is read from the log again.

A thread writes it, after LOG_BYTES of log, or EACH times its own size if that is more: so it costs little beside the
log, however much is pending, and a start reads little.

Invariants
  It is written only when the log is synced up to its position: what it leaves out has come, and stays so.
  The log is there from `needed` on: where the snapshot ends, or the first message lies that is to come.
Crash points: between two steps of writing it (atomic_file) the old one is there, and more log is read; later.saved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from pathlib import Path
from typing import NamedTuple

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.file_maker import FileMaker
from warren.engine.saying import Say, counted
from warren.engine.topics.keeper import Log

LOG_BYTES = 64 << 20  #: of log between two snapshots, and what the next start reads at most …
EACH = 8  #: … but for a larger one: so many times its own size
DAMAGED = ".damaged"


class _Copy(NamedTuple):
    """What is pending as of a position behind a commit."""

    position: int
    number: int
    messages: bytes


@dataclass
class Later:
    """The snapshot, and what is said of messages that are to come."""

    server: _core.TopicServer
    path: Path
    node: bytes
    say: Say
    reached: Callable[[str], None] = lambda _point: None
    refused: bool = False  #: the last snapshot could not be written
    _waits: _Copy | None = field(default=None, repr=False)  #: for the log to be synced up to it

    def __post_init__(self) -> None:
        self._epoch = 0
        self._saved = -1  # position of the file; -1: there is none that counts
        self._next = 0  # not before the log is sealed up to here
        self._writing = False
        self._again_at = 0.0
        self._unreadable = 0
        self.writer: FileMaker[_Copy, tuple[int, int]] = FileMaker(self._write, self.server.kick)

    # -- start --------------------------------------------------------------------------------------------------

    def load(self, log: Log) -> None:
        """Take up what is pending, between the server's settle and begin. Raises StoreError."""
        with atomic_file.explained(f"cannot read {self.path}"):
            found = self._read_snapshot(bool(log.position))
        with atomic_file.file_explained(f"cannot read the log of topics for {self.path}"):
            if found is not None and found[0] <= log.position:
                end, _gaps = self.server.later_walk(False, *found)
                if end == log.position:
                    return
            self._saved = -1
            self._read_all(log)

    def _read_snapshot(self, expected: bool) -> tuple[int, int, int] | None:
        """(position, epoch, number); None: there is none. What is no snapshot is set aside. Raises OSError."""
        try:
            file = self.path.read_bytes()
        except FileNotFoundError:
            if expected:
                self.say(f"{self.path} is missing: messages that come later are read from the whole log", WARNING)
            return None
        try:
            found = self.server.later_read(file)
        except ValueError as why:
            aside = self.path.with_name(self.path.name + DAMAGED)
            os.replace(self.path, aside)
            self.say(
                f"{self.path} is damaged ({why}): it was moved to {aside.name}, and messages that come later are read "
                "from the whole log of topics",
                ERROR,
            )
            return None
        self._saved = found[0]
        self._next = self._saved + max(LOG_BYTES, EACH * len(file))
        return found

    def _read_all(self, log: Log) -> None:
        end, gaps = self.server.later_walk(True, log.first, 0, 0) if log.position else (0, 0)
        if gaps or end != log.position:
            where = f"{counted(gaps, 'place')} of it" if end == log.position else f"it behind position {end}"
            self.say(
                f"the log of topics was read for messages that come later, and {where} is damaged: those that were to "
                "come are lost there, and those that had come may come again",
                ERROR,
            )

    def begin(self, epoch: int) -> None:
        """The server has begun, in this epoch of its log. Raises StoreError."""
        self._epoch = epoch
        if self._saved < 0:
            self._made(*self._write(_Copy(*self.server.later_copy())))

    # -- the snapshot -------------------------------------------------------------------------------------------

    def _write(self, copy: _Copy) -> tuple[int, int]:
        """On the writer's thread, too. Its position and size. Raises StoreError."""
        file = self.server.later_encode(self.node, copy.position, self._epoch, copy.number, copy.messages)
        atomic_file.replace(self.path, file)
        self.reached("later.saved")
        return copy.position, len(file)

    def _made(self, position: int, size: int) -> None:
        self._saved = position
        self._next = position + max(LOG_BYTES, EACH * size)

    def take(self) -> None:
        """Hear of snapshots that the thread has written."""
        if self.writer.crash is not None:
            raise self.writer.crash
        while self.writer.made:
            _copy, made = self.writer.made.popleft()
            self._writing = False
            if isinstance(made, StoreError):
                if not self.refused:
                    self.say(f"no new snapshot of the messages that come later, tried again: {made}", WARNING)
                self.refused, self._again_at = True, time.monotonic() + 1.0
            else:
                self.refused = False
                self._made(*made)

    def on_timer(self, now: float) -> None:
        """Some times a second."""
        self.take()
        counters = self.server.counters()
        if self._waits is not None and counters["synced"] >= self._waits.position:
            self.writer.want(self._waits)
            self._waits, self._writing = None, True
        if not self._writing and self._waits is None and counters["sealed"] >= self._next and now >= self._again_at:
            self._waits = _Copy(*self.server.later_copy())
        if counters["unreadable"] != self._unreadable:
            self._unreadable = counters["unreadable"]
            self.say(
                "a message that is due cannot be read, at position "
                f"{counters['unreadable_at']:,} of the log of topics: it is tried again each minute; "
                "`warren check` says what is damaged",
                ERROR,
            )

    def needed(self, first: int) -> int:
        """From where on the log is needed when its files below `first` shall go: where the snapshot ends, or the first
        message lies that is to come. If the snapshot is further back, another one is written soon.
        """
        if self._saved < first:
            self._next = 0
        lowest = self.server.later_lowest()
        return max(self._saved if lowest is None else min(lowest, self._saved), 0)

    @property
    def owes(self) -> bool:
        """Whether another snapshot is to be written, because the log is needed no more where the last one ends."""
        return not self._next or self._writing or self._waits is not None

    # -- end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop the writer's thread."""
        self.writer.stop()
        if self.writer.ident is not None:
            self.writer.join()

    def close(self) -> None:
        """The log is synced, and nobody is served any more: write the last snapshot. Without it the next start reads
        more of the log.
        """
        self.end()
        self.take()
        counters = self.server.counters()
        if self._saved == counters["sealed"] or counters["synced"] < counters["sealed"]:
            return
        try:
            self._write(_Copy(*self.server.later_copy()))
        except StoreError as error:
            self.say(f"no last snapshot of the messages that come later: {error}", WARNING)
