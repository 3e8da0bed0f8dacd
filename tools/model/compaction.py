"""Model of compacted topics: one queue, its file of newest records, the minimum, and files of the log that go (029).

What is modelled
  producers  append records of two keys, and tombstones; syncs come when they come, and readers see records before
  a pass     fixes its end, writes the file beside the old one, syncs it, renames it, syncs the folder, raises the
             minimum, tells it in the log (which syncs that); files of the log go by what was told
  time       a tombstone's time begins in the first pass behind the one that took it in: then nobody finds the value any
             more that it took away. It goes in a pass when time has passed since
  a reader   of another process: below the minimum it reads the file that it has open, from there on the log; between
             two reads anything may happen
  kills      of the worker: its memory is gone, a minimum falls back to what was told; the reader goes on
  power      leaves of the log any end behind what was synced, and of a file that was renamed, or written, and not
             synced, the one before, the new one, or nonsense

A file of the log is one record, a file of newest records is there as a whole or nonsense: which block of it is damaged
makes no difference. Damage, holds and retention by age are not modelled.

Invariants: in every state a reader from 0 would find the newest record of each key, or nothing where that is a
tombstone; what it finds at an offset is what was appended there last. A reader that has come to the end has that of
each key, too, unless a tombstone's time passed while it read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

KEYS = "ab"
WRITTEN, FILE_SYNCED, RENAMED, FOLDER_SYNCED, RAISED = range(5)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    content_is_synced: bool = True  #: a file is synced before it gets its name
    folder_is_synced: bool = True  #: the folder is synced before the minimum rises
    raised_behind_rename: bool = True  #: the file has its name before the minimum rises
    found_is_synced: bool = True  #: a file that a start finds is synced again, and its folder, before the minimum rises
    replaced_as_a_whole: bool = True  #: written beside the old one, never over it
    ends_below_synced: bool = True  #: a pass ends where the log's sync ends
    told_before_files: bool = True  #: files of the log go by the minimum that was told
    readers_open_again: bool = True  #: whose file ends below the minimum opens the present one
    tombstones_stay: bool = True  #: a tombstone does not go in the pass that takes it in
    time_begins_later: bool = True  #: a tombstone's time begins when its minimum has risen, not when it is taken in


NOT_YET = -1


class Record(NamedTuple):
    """One in the log; `serial`: no other one has it."""

    key: str
    tombstone: bool
    serial: int


class Kept(NamedTuple):
    """One in a file of newest records; `since`: of a tombstone, when its time began, NOT_YET: it has not."""

    offset: int
    record: Record
    since: int


class File(NamedTuple):
    """All that is alive below `end`."""

    end: int
    kept: tuple[Kept, ...]


NOTHING = File(0, ())  #: there is no file
NONSENSE = File(-1, ())


class Pass(NamedTuple):
    step: int
    file: File


class Reader(NamedTuple):
    """`last`: of each key the offset and the serial of what it read last."""

    at: int
    file: File | None
    last: tuple[tuple[int, int] | None, ...]
    began: int


class State(NamedTuple):
    """Everything."""

    log: tuple[Record, ...]  #: all that were appended, also those whose files are gone
    synced: int
    first: int  #: files of the log below are gone
    minimum: int
    told: int
    file: File
    disk: tuple[File, ...]  #: what power may leave of it
    found: bool  #: a start found the file, and has not synced it
    pass_: Pass | None
    reader: Reader | None
    clock: int
    serial: int
    appends: int
    passes: int
    ticks: int
    kills: int
    losses: int
    readers: int


@dataclass(frozen=True)
class Model:
    """A model of these sizes."""

    appends: int = 3
    passes: int = 2
    ticks: int = 1
    kills: int = 1
    losses: int = 1
    readers: int = 0
    rules: Rules = Rules()

    def start(self) -> State:
        return State(
            *((), 0, 0, 0, 0, NOTHING, (NOTHING,), False, None, None, 0, 0),
            *(self.appends, self.passes, self.ticks, self.kills, self.losses, self.readers),
        )

    # -- steps --------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        if s.appends:
            for key in KEYS:
                for tombstone in (False, True):
                    log = (*s.log, Record(key, tombstone, s.serial))
                    name = f"append {key}{' -' if tombstone else ''}"
                    yield name, s._replace(log=log, serial=s.serial + 1, appends=s.appends - 1)
        if s.synced < len(s.log):
            yield "sync", s._replace(synced=len(s.log))
        if s.ticks:
            yield "~time passes", s._replace(clock=s.clock + 1, ticks=s.ticks - 1)
        yield from self.compact(s)
        until = s.told if self.rules.told_before_files else s.minimum
        if s.first < until:
            yield "a file of the log goes", s._replace(first=s.first + 1)
        yield from self.read(s)
        if s.kills:
            yield "~kill", self.end(s)._replace(kills=s.kills - 1)
        if s.losses:
            for end in {s.synced, len(s.log)}:
                for number, file in enumerate(s.disk):
                    left = self.end(s)._replace(log=s.log[:end], synced=end, file=file, disk=(file,), reader=None)
                    yield f"~power: {end} records, file {number}", left._replace(losses=s.losses - 1)

    @staticmethod
    def end(s: State) -> State:
        """The worker ends, and the next one begins: it knows what was told."""
        return s._replace(minimum=s.told, pass_=None, found=s.file.end > s.told)

    # -- a pass -------------------------------------------------------------------------------------------------

    def compact(self, s: State) -> Iterator[tuple[str, State]]:
        at = s.pass_
        if at is None:
            if s.file.end > s.minimum:
                yield from self.take_up(s)
            elif s.minimum > s.told:
                yield "tell", s._replace(told=s.minimum, synced=len(s.log))
            elif s.passes:
                file = self.compacted(s)
                if file != s.file:
                    yield f"write a file up to {file.end}", self.write(s, file)
            return
        if at.step == WRITTEN:
            if not self.rules.replaced_as_a_whole:
                yield "the last byte", s._replace(file=at.file, disk=(at.file,), pass_=Pass(FOLDER_SYNCED, at.file))
            elif self.rules.content_is_synced:
                yield "sync the file", s._replace(pass_=Pass(FILE_SYNCED, at.file))
            else:
                yield from self.rename(s, (at.file, NONSENSE))
        elif at.step == FILE_SYNCED:
            yield from self.rename(s, (at.file,))
        elif at.step == RENAMED:
            if self.rules.folder_is_synced:
                disk = tuple(file for file in s.disk if file in (at.file, NONSENSE))
                yield "sync the folder", s._replace(disk=disk, pass_=Pass(FOLDER_SYNCED, at.file))
            else:
                yield "raise", self.raise_to(s, at.file.end)
        elif at.step == FOLDER_SYNCED:
            yield "raise", self.raise_to(s, at.file.end)
        elif at.step == RAISED:  # of a broken rule: before it has its name
            yield "rename", s._replace(file=at.file, disk=(at.file,), pass_=None)

    def write(self, s: State, file: File) -> State:
        s = s._replace(passes=s.passes - 1, pass_=Pass(WRITTEN, file))
        return s if self.rules.replaced_as_a_whole else s._replace(file=NONSENSE, disk=(NONSENSE,))

    def rename(self, s: State, left: tuple[File, ...]) -> Iterator[tuple[str, State]]:
        at = s.pass_
        assert at is not None
        if not self.rules.raised_behind_rename:
            yield "raise", s._replace(minimum=at.file.end, pass_=Pass(RAISED, at.file))
            return
        before = tuple(file for file in s.disk if file not in left)
        yield "rename", s._replace(file=at.file, disk=(*before, *left), pass_=Pass(RENAMED, at.file))

    def take_up(self, s: State) -> Iterator[tuple[str, State]]:
        """A file that ends behind the minimum: its pass was cut short."""
        if s.found and self.rules.found_is_synced:
            yield "sync what was found", s._replace(disk=(s.file,), found=False)
        else:
            yield "raise", self.raise_to(s, s.file.end)

    @staticmethod
    def raise_to(s: State, minimum: int) -> State:
        return s._replace(minimum=max(s.minimum, minimum), pass_=None, found=False)

    def compacted(self, s: State) -> File:
        """What a pass makes of the file and the log behind it."""
        begin = max(s.file.end, 0)
        end = s.synced if self.rules.ends_below_synced else len(s.log)
        if end < begin or s.file == NONSENSE:
            return s.file  # there is nothing to do, or it is for a repair
        fresh = [(offset, s.log[offset]) for offset in range(begin, end)]
        newest = {record.key: offset for offset, record in fresh}
        kept = [old for old in s.file.kept if old.record.key not in newest]
        kept = [old for old in kept if not old.record.tombstone or old.since in (NOT_YET, s.clock)]
        kept = [old._replace(since=s.clock) if old.since == NOT_YET else old for old in kept]
        since = NOT_YET if self.rules.time_begins_later else s.clock
        for offset, record in fresh:
            if newest[record.key] == offset and (not record.tombstone or self.rules.tombstones_stay):
                kept.append(Kept(offset, record, since if record.tombstone else 0))
        return File(end, tuple(kept))

    # -- a reader -----------------------------------------------------------------------------------------------

    def read(self, s: State) -> Iterator[tuple[str, State]]:
        r = s.reader
        if r is None:
            if s.readers:
                begun = Reader(0, None, (None,) * len(KEYS), s.clock)
                yield "~a reader begins", s._replace(reader=begun, readers=s.readers - 1)
        elif r.at < s.minimum:
            file = r.file
            if file is None or (self.rules.readers_open_again and file.end < s.minimum):
                file = s.file
            last = r.last
            for kept in file.kept:
                if r.at <= kept.offset < s.minimum:
                    last = noted(last, kept.offset, kept.record)
            yield "~it reads the file", s._replace(reader=Reader(s.minimum, file, last, r.began))
        elif r.at < len(s.log):
            last = noted(r.last, r.at, s.log[r.at])
            yield "~it reads the log", s._replace(reader=r._replace(at=r.at + 1, last=last))

    # -- what must hold -----------------------------------------------------------------------------------------

    def wrong(self, s: State) -> str | None:
        """Which invariant is broken."""
        seen: tuple[tuple[int, int] | None, ...] = (None,) * len(KEYS)
        for kept in s.file.kept:
            if kept.offset < s.minimum:
                if kept.offset >= len(s.log) or s.log[kept.offset] != kept.record:
                    return f"offset {kept.offset} of the file is another record"
                seen = noted(seen, kept.offset, kept.record)
        for offset in range(max(s.minimum, s.first), len(s.log)):
            seen = noted(seen, offset, s.log[offset])
        found = self.differs(s, seen, slow=False)
        if found is None and s.reader is not None and s.reader.at >= max(len(s.log), s.minimum):
            found = self.differs(s, s.reader.last, slow=s.reader.began != s.clock)
            return None if found is None else f"a reader at the end: {found}"
        return found

    @staticmethod
    def differs(s: State, seen: tuple[tuple[int, int] | None, ...], slow: bool) -> str | None:
        """What of each key was seen, and is not its newest. `slow`: a tombstone's time may have passed meanwhile."""
        for key, last in zip(KEYS, seen, strict=True):
            newest = next(((at, s.log[at]) for at in range(len(s.log) - 1, -1, -1) if s.log[at].key == key), None)
            if newest is None:
                if last is not None:
                    return f"{key}: {last} was seen, and never was there"
                continue
            offset, record = newest
            if last == (offset, record.serial):
                continue
            if record.tombstone and (last is None or slow):
                continue
            return f"{key}: {last} was seen, and offset {offset} is its newest"
        return None

    def rest(self, s: State) -> str | None:
        """Nothing more happens by itself: what a file holds is not in the log, too."""
        if s.pass_ is not None or not s.first == s.told == s.minimum >= s.file.end:
            return "a pass has no end, or files of the log stay that nobody needs"
        return None


def noted(last: tuple[tuple[int, int] | None, ...], offset: int, record: Record) -> tuple[tuple[int, int] | None, ...]:
    """What was read last of each key, with one more."""
    at = KEYS.index(record.key)
    return (*last[:at], (offset, record.serial), *last[at + 1 :])


STANDARD = {
    "3 records, 2 passes, a kill and a loss of power": Model(),
    "2 records, 3 passes, a reader, a kill": Model(appends=2, passes=3, losses=0, readers=1),
}
#: in which of them a rule that is broken shows soonest
WHERE = dict.fromkeys(
    ("readers_open_again", "tombstones_stay", "time_begins_later"), "2 records, 3 passes, a reader, a kill"
)
DEEP = {
    "4 records, 2 passes, a kill and a loss of power": Model(appends=4),
    "3 records, 3 passes, a reader": Model(passes=3, kills=0, losses=0, readers=1),
    "2 records, 3 passes, a reader, a kill and a loss of power": Model(appends=2, passes=3, readers=1),
}
