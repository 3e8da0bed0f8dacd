"""`warren check` of the snapshots that a topic worker keeps beside the log (`groups`, `later`, `halves`), and what a
repair does with them. Each is read by the code that a start reads it with.

They are caches of the log, so one that is damaged or missing is a note: the next start reads the log instead. It is a
problem where the log has not all of it any more (`Kept.GONE`). No other file has that: a repair sets the damaged file
aside, and writes down what is lost; then a check notes it, and names it as a problem no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import quarantine
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.topics import foreign, offsets
from warren.engine.topics.found import Found
from warren.engine.topics.halves import Halves
from warren.engine.topics.kept import gone_of
from warren.engine.topics.later import Later
from warren.engine.topics.snapshots import Unreadable, log_from

KIND = "snapshot"


@dataclass(frozen=True)
class _Kind:
    """One of the files."""

    path: Path
    what: str  #: is in it, in words
    read: Callable[[bytes], tuple[int, int]]  #: (position, how much is in it); raises Unreadable
    gone: str = ""  #: what it alone has of a log that does not begin at 0


@dataclass
class _Lost:
    """A problem."""

    path: Path
    wrong: str  #: why the file counts no more; it is there
    gone: str


@dataclass
class SnapshotCheck:
    """The snapshots of one node."""

    folder: TopicsFolder
    node: bytes
    running: bool
    _lost: list[_Lost] = field(default_factory=list)

    def _kinds(self) -> tuple[_Kind, ...]:
        def read(kind: str, file: bytes) -> tuple[int, int]:
            try:
                return _core.topics_snapshot(kind, self.node, file)
            except ValueError as why:
                raise Unreadable(str(why)) from why

        def groups(file: bytes) -> tuple[int, int]:
            found = offsets.decode_snapshot(self.node, file)
            return found.position, len(found.offsets)

        folder = self.folder
        return (
            _Kind(folder.groups, "offsets of groups", groups),
            _Kind(folder.later, Later.WHAT, partial(read, "later")),
            _Kind(folder.halves, Halves.WHAT, partial(read, "halves"), Halves.GONE),
        )

    def examine(self, first: int, end: int) -> list[Found]:
        """Look at each. The log begins and ends there; 0: it has no commit, so there need be none. Raises OSError."""
        self._lost = []
        told = {(entry.file, entry.reason) for entry in quarantine.entries(self.folder.path)}
        found = [self._look(kind, first, end, told) for kind in self._kinds()]
        return [item for item in found if item is not None] + self._aside()

    def _look(self, kind: _Kind, first: int, end: int, told: set[tuple[str, str]]) -> Found | None:
        item, wrong = Found(kind.path, KIND), ""
        try:
            file = foreign.read(kind.path)
        except FileNotFoundError:
            if not end:
                return None
            file = None
        except IsADirectoryError as error:
            file, wrong = None, str(error.strerror).removeprefix("it ")
        if file is not None:
            item.bytes = len(file)
            try:
                position, item.records = kind.read(file)
            except Unreadable as why:
                wrong = f"is damaged ({why})"
            else:
                if first <= position and (position <= end or self.running or not kind.gone):
                    return item
                wrong = f"is as of position {position:,}, which the log does not have"
        what = f"{wrong or 'is missing'}: the next start reads {kind.what} from the {log_from(first)}"
        if self.running:
            what += ", unless the worker, which has them in memory, writes another one before"
        gone = gone_of(kind.gone, first) if kind.gone and first else ""
        if not gone:
            item.note = what
        elif (kind.path.name, gone) in told and not wrong:
            item.note = f"{what}; {gone} is lost, as was written down"
        else:
            item.problem = (
                f"{what}; {gone} is lost then, and no other file has it: `warren check --repair` accepts that"
            )
            self._lost.append(_Lost(kind.path, wrong, gone))
        return item

    def _aside(self) -> list[Found]:
        """What starts and repairs have set aside."""
        paths = sorted(path for path in self.folder.path.iterdir() if foreign.is_aside(path.name))
        return [Found(path, "damaged", note=foreign.ASIDE) for path in paths]

    def repair(self) -> list[str]:
        """Accept what the last look found lost. Returns what was done. Raises StoreError."""
        done = []
        for lost in self._lost:
            said = f"{lost.path}: {lost.gone} is lost"
            if lost.wrong:
                target = quarantine.move(self.folder.path, lost.path, lost.wrong)
                if target is None:
                    raise StoreError(f"cannot move {lost.path} to the quarantine: free some space and try again")
                said += f"; the file, which {lost.wrong}, was moved to {target}"
            quarantine.note(self.folder.path, quarantine.Entry(lost.path.name, 0, 0, lost.gone))
            done.append(f"{said}; written down in {quarantine.QUARANTINE}/{quarantine.REPORT}")
        return done
