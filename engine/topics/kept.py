"""What the core keeps in memory of the log beside its queues, as messages that come later: a start reads a snapshot of
it, and then the log from there on.

What it is, is what the log says: a function of its records. The snapshot has all of it as of a position. A thread
writes it, after LOG_BYTES of log, or EACH times its own size if that is more: so it costs little beside the log,
however much is kept, and a start reads little.

It is no more than a cache where the log still has what it is from. Of what lay in files that retention has removed, a
snapshot may have more (`GONE`): that is lost with it, said, and written down in the quarantine's report.

Invariants
  It is written only when the log is synced up to its position: what records below it took out stays out.
  The log is there from `needed` on: where the snapshot ends, or the first record lies that is still needed.
Crash points: those of snapshots.py; a death right behind the new name is `reached`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from typing import ClassVar, NamedTuple

from warren.engine import _core
from warren.engine.kernel import atomic_file, quarantine
from warren.engine.saying import Say, counted
from warren.engine.topics.keeper import Log
from warren.engine.topics.snapshots import Snapshot, Unreadable

LOG_BYTES = 64 << 20  #: of log between two snapshots, and what the next start reads at most …
EACH = 8  #: … but for a larger one: so many times its own size


def gone_of(what: str, first: int) -> str:
    """What is lost without a snapshot, where the log begins at `first`."""
    return f"{what} before position {first:,} of the log of topics"


class Copied(NamedTuple):
    """What is kept as of a position behind a commit."""

    position: int
    number: int
    content: bytes


@dataclass
class Kept(ABC):
    """The snapshot of one such thing."""

    server: _core.TopicServer
    path: Path
    node: bytes
    say: Say
    reached: Callable[[], None] = lambda: None

    WHAT: ClassVar[str]  #: it is, in words
    LOST: ClassVar[str]  #: what is lost where the log is damaged
    GONE: ClassVar[str] = ""  #: what the snapshot alone has, of the log before its begin: `gone_of`; "": nothing

    def __post_init__(self) -> None:
        self._epoch = 0
        self._next = 0  # not before the log is sealed up to here
        self._waits: Copied | None = None  # for the log to be synced up to it
        self.lost = 0  #: parts that this start found lost, and of which nobody can say what they cost
        self.snapshot: Snapshot[Copied] = Snapshot(
            self.path, self.WHAT, self._encoded, self.server.kick, self.say, self.reached
        )

    # -- of the core --------------------------------------------------------------------------------------------

    @abstractmethod
    def _take_up(self, file: bytes) -> tuple[int, int, int]:
        """Take up a snapshot: (position, epoch, number). Raises ValueError: it is none."""

    @abstractmethod
    def _walk(self, anew: bool, position: int, epoch: int, number: int) -> tuple[int, int]:
        """Take up what the log says behind it, or (`anew`) in all: (where the walk ended, damaged places)."""

    @abstractmethod
    def _copy(self) -> Copied:
        """What there is as of the last sealed commit."""

    @abstractmethod
    def _encode(self, copied: Copied, epoch: int) -> bytes:
        """The file of it. Any thread."""

    @abstractmethod
    def _lowest(self) -> int | None:
        """Position of the first record that is still needed; None: none is."""

    # -- start --------------------------------------------------------------------------------------------------

    def load(self, log: Log) -> None:
        """Take up what is kept, between the server's settle and begin. Raises StoreError."""
        with atomic_file.explained(f"cannot read {self.path}"):
            found = self.snapshot.read(self._decode, bool(log.position), log.first)
        if found is not None:
            self._made(found[0])
        with atomic_file.file_explained(f"cannot read the log of topics for {self.path}"):
            if found is not None and found[0] <= log.position:
                end, _gaps = self._walk(False, *found)
                if end == log.position:
                    return
            self.snapshot.saved = -1
            self._read_all(log)

    def _decode(self, file: bytes) -> tuple[int, int, int]:
        try:
            return self._take_up(file)
        except ValueError as why:
            raise Unreadable(str(why)) from why

    def _read_all(self, log: Log) -> None:
        end, gaps = self._walk(True, log.first, 0, 0) if log.position else (0, 0)
        if gaps or end != log.position:
            where = f"{counted(gaps, 'place')} of it" if end == log.position else f"it behind position {end}"
            self.say(f"the log of topics was read for {self.WHAT}, and {where} is damaged: {self.LOST}", ERROR)
        if log.first and self.GONE:
            self._tell_gone(gone_of(self.GONE, log.first))

    def _tell_gone(self, gone: str) -> None:
        """Said and counted once; a repair may have accepted it before."""
        folder, entry = self.path.parent, quarantine.Entry(self.path.name, 0, 0, gone)
        if not quarantine.is_reported(folder, entry):
            quarantine.note(folder, entry)
            self.lost += 1
        self.say(f"{gone} is lost: no other file has it", ERROR)

    def begin(self, epoch: int) -> None:
        """The server has begun, in this epoch of its log. Raises StoreError."""
        self._epoch = epoch
        if self.snapshot.saved < 0:
            self.snapshot.save(self._copy())
            self._made(self.snapshot.saved)

    # -- the snapshot -------------------------------------------------------------------------------------------

    def _encoded(self, copied: Copied) -> bytes:
        return self._encode(copied, self._epoch)

    def _made(self, position: int) -> None:
        self.snapshot.saved = position
        self._next = position + max(LOG_BYTES, EACH * self.snapshot.size)

    def take(self) -> None:
        """Hear of snapshots that the thread has written."""
        before = self.snapshot.saved
        self.snapshot.take()
        if self.snapshot.saved != before:
            self._made(self.snapshot.saved)

    def on_timer(self, now: float) -> None:
        """Some times a second."""
        self.take()
        counters = self.server.counters()
        if self._waits is not None and counters["synced"] >= self._waits.position:
            self.snapshot.want(self._waits)
            self._waits = None
        if self._waits is None and counters["sealed"] >= self._next and self.snapshot.may_write(now):
            self._waits = self._copy()

    def needed(self, first: int) -> int:
        """From where on the log is needed when its files below `first` shall go: where the snapshot ends, or the first
        record lies that is needed. If the snapshot is further back, another one is written soon.
        """
        if self.snapshot.saved < first:
            self._next = 0
        lowest, saved = self._lowest(), self.snapshot.saved
        return max(saved if lowest is None else min(lowest, saved), 0)

    @property
    def owes(self) -> bool:
        """Whether another snapshot is to be written, because the log is needed no more where the last one ends."""
        return not self._next or self.snapshot.writing or self._waits is not None

    # -- end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop the writer's thread."""
        self.snapshot.end()

    def close(self) -> None:
        """The log is synced, and nobody is served any more: write the last snapshot."""
        self.snapshot.close(self._last)

    def _last(self) -> Copied | None:
        counters = self.server.counters()
        if self.snapshot.saved == counters["sealed"] or counters["synced"] < counters["sealed"]:
            return None
        return self._copy()
