"""What may be on a disk when the power fails: a model of files and directories fed with a recording.

    disk = Disk(records, root); disk.advance(p); state = disk.crash(rng)

`p` only grows; there may be any number of states at a point.

The rules, as pessimistic as POSIX lets a file system be (ext4 promises more):
- What a sync covers is there: calls that had returned before the sync began, when it returned 0.
- What was stored into a mapped file counts as written when it was seen; a sync of a range covers its pages. A hole
  that was made is written as zeros.
- A sync of a file that failed drops what it covers: processes go on reading it, but no later sync covers it. A write
  into a sector writes all of the sector, with what was dropped in it. (Names and sizes go through the journal of the
  file system, which is read-only once that has failed: a later sync of those does not succeed.)
- Every other write may be there or not, each 512-byte sector of it by itself, in any order; a sector is whole.
- Sizes and reserved space of one file change in order; a size that grew only by a write may have grown or not.
- A name that was made, moved or removed is certain after a sync of its directory (both directories of a rename).
  Others: either a prefix of them in order, as in a journal, or any of them independently; a rename is one change.
- A directory that is not there takes with it what lies in it.

A state is a dict from path (relative to the root) to bytes, None for a directory; two names of one file have the same
object (`put_down` makes links of them). Paths for which `ignore` says so, of
files that nothing relies on, are left out.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warren.tools.crash.recording import NEVER, Record, RecordingError

SECTOR = 512

#: how what is not certain comes out
STYLES = ("none", "all", "prefix", "whole", "sectors")

#: changes of bytes; others are of sizes
WRITES = ("write", "store")

State = dict[str, bytes | None]


def put_down(state: State, folder: Path) -> None:
    """Make a state into files; `folder` is there, and empty."""
    made: dict[int, Path] = {}
    for path, content in sorted(state.items()):
        place = folder / path
        if content is None:
            place.mkdir(mode=0o700)
        elif len(content) > 1 and id(content) in made:  # Python has one object only for each shorter string
            place.hardlink_to(made[id(content)])
        else:
            place.write_bytes(content)
            made[id(content)] = place


@dataclass(slots=True)
class _Change:
    """One change of a file that no sync covers yet."""

    kind: str  #: write, store, size, space
    over: int
    at: int
    length: int
    data: bytes
    dropped: bool = False  #: a write that a failed sync covered


@dataclass(eq=False, slots=True)
class _File:
    """A file, whatever its name is: what is certain, and what is not."""

    certain: bytearray = field(default_factory=bytearray)
    changes: list[_Change] = field(default_factory=list)

    def now(self) -> bytes:
        """What processes read."""
        content = bytearray(self.certain)
        for change in self.changes:
            _apply(content, change)
        return bytes(content)

    def seen(self, number: int, at: int, data: bytes) -> None:
        """What it holds there: the sectors that differ from what calls wrote were stored."""
        there = self.now()
        for low in range(at, at + len(data), SECTOR):
            part = data[low - at : low - at + SECTOR]
            if there[low : low + len(part)] != part:
                self.changes.append(_Change("store", number, low, len(part), part))

    def synced(self, number: int, at: int = 0, length: int = 0) -> None:
        """A sync that began at this record returned 0. `length`: of a range of pages that it was for; 0: of all."""
        left: list[_Change] = []
        read = bytearray(self.certain) if any(change.dropped for change in self.changes) else None
        for change in self.changes:
            if read is not None:
                _apply(read, change)
            beside = length and change.kind == "store" and not at <= change.at < at + length
            if change.dropped or beside or change.over > number:
                left.append(change)
                continue
            _apply(self.certain, change)
            if read is not None and change.kind in WRITES:
                left = self._written_again(read, change, left)
        self.changes = left

    def _written_again(self, read: bytearray, change: _Change, before: list[_Change]) -> list[_Change]:
        """The sectors of a write are certain, with what was read in them then; returns what is left of those `before`
        it."""
        low = change.at // SECTOR * SECTOR
        high = min(-(-(change.at + len(change.data)) // SECTOR) * SECTOR, len(self.certain))
        self.certain[low:high] = read[low:high]
        left = []
        for old in before:
            end = old.at + len(old.data)
            if not old.dropped or end <= low or old.at >= high:
                left.append(old)
                continue
            for a, b in ((old.at, low), (high, end)):
                if a < b:
                    left.append(_Change(old.kind, old.over, a, b - a, old.data[a - old.at : b - old.at], True))
        return left

    def failed(self, number: int) -> None:
        """A sync that began at this record failed."""
        for change in self.changes:
            if change.kind in WRITES and change.over <= number:
                change.dropped = True


@dataclass(slots=True)
class _Naming:
    """One change of names: path → file, None for a directory, absent (False) for nothing."""

    number: int
    names: dict[str, _File | bool | None]
    unsynced: set[str]  #: directories that must be synced before it is certain


def _apply(content: bytearray, change: _Change) -> None:
    if change.kind == "store":  # it makes no file longer
        end = min(change.at + len(change.data), len(content))
        content[change.at : end] = change.data[: max(0, end - change.at)]
    elif change.kind == "write":
        end = change.at + len(change.data)
        if end > len(content):
            content.extend(bytes(end - len(content)))
        content[change.at : end] = change.data
    elif change.kind == "size":
        if change.at < len(content):
            del content[change.at :]
        else:
            content.extend(bytes(change.at - len(content)))
    elif change.at + change.length > len(content):
        content.extend(bytes(change.at + change.length - len(content)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class Disk:
    """The disk of one recording."""

    def __init__(
        self, records: Sequence[Record], root: str, ignore: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.records = records
        self.root = root
        self.ignore = ignore
        self.at = 0
        self.names: dict[str, _File | None] = {root: None}  #: what is certain of the names
        self.live: dict[str, _File | None] = {root: None}  #: the names as processes see them
        self.early: list[str] = []  #: names that files got before what had been written into them was certain
        self._stamps: dict[str, int] = {}  #: number of the last certain change of a name
        self._namings: list[_Naming] = []
        self._files: dict[int, _File] = {}  #: by inode
        self._ignored: set[int] = set()
        self._ends: dict[int, list[int]] = defaultdict(list)
        for number, record in enumerate(records):
            if record.kind in ("sync", "syncfs") and record.over != NEVER:
                self._ends[record.over].append(number)

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self, to: int) -> None:
        """Go on until `to` records have begun; syncs that ended before the next one count."""
        while self.at < to:
            self._begin(self.at, self.records[self.at])
            self.at += 1
            for number in self._ends.get(self.at, ()):
                self._synced(number, self.records[number])

    def _begin(self, number: int, record: Record) -> None:
        kind = record.kind
        if kind == "write":
            file = self._file(record)
            if file is not None:
                whole = 0 <= record.result == len(record.data)
                data = record.data[: record.result] if record.result > 0 else record.data
                over = record.over if whole or record.result > 0 else NEVER
                file.changes.append(_Change("write", over, record.at, len(data), data))
        elif kind == "seen":
            file = self._file(record)
            if file is not None:
                file.seen(number, record.at, record.data)
        elif kind == "hole":
            file = self._file(record)
            if file is not None:
                file.changes.append(_Change("write", number, record.at, record.length, bytes(record.length)))
        elif kind in ("size", "space"):
            file = self._file(record)
            if file is not None:
                file.changes.append(_Change(kind, number, record.at, record.length, b""))
        elif kind == "create":
            if self.ignore(self._inner(record.path)):
                self._ignored.add(record.inode)
                self._files.pop(record.inode, None)
            else:
                self._ignored.discard(record.inode)
                made = self._files[record.inode] = _File()
                self._name(number, {record.path: made})
        elif kind == "mkdir":
            self._name(number, {record.path: None})
        elif kind in ("unlink", "rmdir"):
            if record.path in self.live:
                self._name(number, {record.path: False})
        elif kind in ("rename", "link"):
            if record.path not in self.live:
                if self.ignore(self._inner(record.path)):
                    return
                raise RecordingError(f"{record.path} was renamed and never made")
            moved = self.live[record.path]
            if moved is None:
                raise RecordingError(f"the directory {record.path} was renamed: the campaign has no model of that")
            if any(change.kind in WRITES for change in moved.changes):
                self.early.append(f"{self._inner(record.path)} became {self._inner(record.to)} before it was synced")
            self._name(number, {record.to: moved} if kind == "link" else {record.path: False, record.to: moved})

    def _inner(self, path: str) -> str:
        return path[len(self.root) + 1 :]

    def _file(self, record: Record) -> _File | None:
        file = self._files.get(record.inode)
        if file is None and record.inode not in self._ignored:
            raise RecordingError(f"{record.kind} of inode {record.inode}, which was never made")
        return file

    def _name(self, number: int, names: dict[str, _File | bool | None]) -> None:
        for path, what in names.items():
            if what is False:
                self.live.pop(path, None)
            else:
                self.live[path] = what  # type: ignore[assignment]  # True does not occur
        self._namings.append(_Naming(number, names, {_folder(path) for path in names}))

    def _synced(self, number: int, record: Record) -> None:
        if record.kind == "syncfs":
            for each in self._files.values():
                each.synced(number)
        elif not record.path:
            file = self._files.get(record.inode)
            if file is not None and record.result:
                file.failed(number)
            elif file is not None:
                file.synced(number, record.at, record.length)
            return
        if record.result:
            return
        left_namings = []
        for naming in self._namings:
            if naming.number < number:
                naming.unsynced -= {record.path} if record.path else naming.unsynced
            if naming.unsynced:
                left_namings.append(naming)
                continue
            for path, what in naming.names.items():
                if self._stamps.get(path, -1) < naming.number:
                    self._stamps[path] = naming.number
                    _assign(self.names, path, what)
        self._namings = left_namings

    def now(self) -> State:
        """What processes find."""
        read = {id(file): file.now() for file in self.live.values() if file}
        names = self.live.items()
        return {self._inner(path): read[id(file)] if file else None for path, file in names if path != self.root}

    # -- a power failure ----------------------------------------------------------------------------------------

    def crash(self, rng: random.Random) -> State:
        """One of the states that may be found now."""
        style = rng.choice((*STYLES, "mixed", "mixed"))
        names = self._crash_names(rng, style)
        contents: dict[int, bytes] = {}
        state: State = {}
        there = {self.root}
        for path in sorted(names):  # a directory before what lies in it
            if path == self.root or _folder(path) not in there:
                continue
            file = names[path]
            if file is None:
                there.add(path)
                state[self._inner(path)] = None
                continue
            if id(file) not in contents:
                contents[id(file)] = _crash_content(file, rng, rng.choice(STYLES) if style == "mixed" else style)
            state[self._inner(path)] = contents[id(file)]
        return state

    def _crash_names(self, rng: random.Random, style: str) -> dict[str, _File | None]:
        names = dict(self.names)
        unsure = self._namings
        if style == "none":
            chosen: Sequence[_Naming] = ()
        elif style == "all":
            chosen = unsure
        elif rng.random() < 0.5:
            chosen = unsure[: rng.randint(0, len(unsure))]
        else:
            share = rng.choice((0.2, 0.5, 0.8))
            chosen = [naming for naming in unsure if rng.random() < share]
        for naming in chosen:
            for path, what in naming.names.items():
                if self._stamps.get(path, -1) < naming.number:
                    _assign(names, path, what)
        return names


def _assign(names: dict[str, _File | None], path: str, what: _File | bool | None) -> None:
    if what is False:
        names.pop(path, None)
    else:
        names[path] = what  # type: ignore[assignment]  # True does not occur


def _crash_content(file: _File, rng: random.Random, style: str) -> bytes:
    changes = file.changes
    if not changes or style == "none":
        return bytes(file.certain)
    if style == "all":
        return file.now()
    content = bytearray(file.certain)
    resizes = sum(change.kind not in WRITES for change in changes)
    sized = rng.randint(0, resizes)  # so many changes of size are there, in order
    kept = rng.randint(0, len(changes)) if style == "prefix" else len(changes)
    share = rng.choice((0.1, 0.5, 0.9))
    for number, change in enumerate(changes):
        if change.kind not in WRITES:
            if sized:
                sized -= 1
                _apply(content, change)
        elif (style == "prefix" and number < kept) or (style == "whole" and rng.random() < share):
            _apply(content, change)
        elif style == "sectors" or (style == "prefix" and number == kept):
            _torn(content, change, rng, share)
    return bytes(content)


def _torn(content: bytearray, change: _Change, rng: random.Random, share: float) -> None:
    """Some sectors of a write; by runs, or each for itself."""
    start, end = change.at, change.at + len(change.data)
    first, last = start // SECTOR, -(-end // SECTOR)
    if rng.random() < 0.5:  # up to a point, or from one on
        cut = rng.randint(first, last)
        spans = [(first, cut)] if rng.random() < 0.7 else [(cut, last)]
    else:
        spans = []
        at = first
        mean = rng.choice((1, 1, 4, 16))
        while at < last:
            n = rng.randint(1, 2 * mean - 1)
            if rng.random() < share:
                spans.append((at, min(at + n, last)))
            at += n
    for low, high in spans:
        a, b = max(low * SECTOR, start), min(high * SECTOR, end)
        if a < b:
            _apply(content, _Change(change.kind, 0, a, b - a, change.data[a - start : b - start]))
    if (
        change.kind == "write" and end > len(content) and rng.random() < 0.5
    ):  # the size had grown, the bytes were not there
        content.extend(bytes(end - len(content)))
