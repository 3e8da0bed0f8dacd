"""The losses of a commit log, most of which a start refuses, and a log that is whole without them, once somebody has
accepted that (docs/design/047-accepted-losses.md).

`find` changes nothing. It walks the intact parts, wherever they are. Losses are files that are missing, cut or another
node's, bytes that differ from what was written, and an end before that known to the checkpoint, the consume queues or
the groups. These files show which offsets existed: rows of the checkpoint, units, groups, files of newest messages.

`accept` makes the log whole: commits without a message replace lost ones (filler.py), a record of LOST_TOPIC names the
next offset of each queue, and the log continues after every position that it had. So no offset and no message id is
given twice, and groups that had committed lost offsets skip no new message.

Order, each step durable before the next: bytes to be overwritten are copied to the quarantine; the report names the
losses; the file `loss` holds the whole plan; files are made, and the log is filled; consume queues, index and
checkpoint are made again (the caller); `loss` is removed. Killed anywhere: until `loss` exists the log is unchanged;
from then on a start refuses, `find` reads the plan, and all of it is done again, with the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, data_files, quarantine, segment
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import counted, shown
from warren.engine.topics import bounds, filler, foreign, log_files, newest_files, offsets, units
from warren.engine.topics.bounds import Bound
from warren.engine.topics.filler import Commit
from warren.engine.topics.formats import BLANK, LOST_TOPIC
from warren.engine.topics.records import Record
from warren.engine.topics.snapshots import Unreadable
from warren.ipc import access

RANGES_MAX = 20  #: of offsets of a queue that are named one by one
COPY_BYTES = 1 << 20

Place = tuple[int, bytes, bytes, int, int, int, int]
Range = tuple[int, int]
Reached = Callable[[str], None]


@dataclass(frozen=True)
class Hole:
    """A part of the log between sound ones."""

    after: Commit
    end: int
    number: int  #: of the last commit that is lost

    @property
    def begin(self) -> int:
        return self.after.end


@dataclass
class LostQueue:
    """The lost messages of a queue of a topic."""

    topic: str
    id: int
    queue: int
    ranges: list[Range]  #: of offsets, at most
    next: int  #: its next offset

    @property
    def messages(self) -> int:
        return sum(to - begin for begin, to in self.ranges)

    @property
    def text(self) -> str:
        named = ", ".join(_offsets(begin, to) for begin, to in self.ranges[:RANGES_MAX])
        more = f" and {len(self.ranges) - RANGES_MAX} more" if len(self.ranges) > RANGES_MAX else ""
        what = f"at most {counted(self.messages, 'message')} of queue {self.queue} of topic {shown(self.topic)}"
        return f"{what}: offsets {named}{more}; its next offset is {self.next:,}"


@dataclass(frozen=True)
class LostGroup:
    """A group that had committed more of a queue than is left of it."""

    group: str
    topic: str
    queue: int
    committed: int

    @property
    def text(self) -> str:
        return (
            f"group {shown(self.group)} of topic {shown(self.topic)} had committed up to offset {self.committed:,} of "
            f"queue {self.queue}, where nothing is left: it gets the messages that are appended from now on"
        )


@dataclass
class Loss:
    """Everything that is lost, and how the log continues without it."""

    folder: str  #: of the log
    reasons: list[tuple[str, int, int, str]] = field(default_factory=list)  #: name of the file, from, to, why
    queues: list[LostQueue] = field(default_factory=list)
    groups: list[LostGroup] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  #: entries named like a file of the log that are not one
    bases: list[int] = field(default_factory=list)  #: of the files that are there
    end: Commit = field(default_factory=Commit)  #: of the intact part
    begin: int = 0  #: the log's first file
    limit: int = 0  #: positions below it were given out
    first: int = 0  #: the log may begin here from now on
    nothing: bool = False  #: no commit is left
    lost: list[Bound] = field(default_factory=list)  #: where queues go on of which the log does not say so

    @property
    def messages(self) -> int:
        return sum(item.messages for item in self.queues)

    @property
    def lines(self) -> list[str]:
        """For people: all that goes."""
        why = [f"{self.folder}/{name}: {reason}" for name, _from, _to, reason in self.reasons]
        what = [item.text for item in self.queues] or ["no message that anything knows of"]
        rest = (
            "delayed messages, half messages and commits of groups in these parts are lost, too, and nobody can say "
            "how many; consume queues and key index are made again from what is left"
        )
        return [*why, *(f"lost: {line}" for line in what), *(item.text for item in self.groups), rest]

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "files": [
                {"file": f"{self.folder}/{name}", "from": a, "to": b, "reason": why} for name, a, b, why in self.reasons
            ],
            "queues": [
                {"topic": item.topic, "queue": item.queue, "offsets": item.ranges, "next": item.next}
                for item in self.queues
            ],
            "groups": [
                {"group": item.group, "topic": item.topic, "queue": item.queue, "committed": item.committed}
                for item in self.groups
            ],
        }


def _offsets(begin: int, to: int) -> str:
    return f"{begin:,}" if to == begin + 1 else f"{begin:,} to {to - 1:,}"


class LogLoss:
    """The log of one folder of topics; nobody else has it."""

    def __init__(
        self,
        folder: TopicsFolder,
        place: Place,
        topics: Sequence[tuple[int, bytes, int]],
        compacted: Collection[int],
        progress: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._place = place
        self._node = place[1]
        self._file_bytes = place[3]
        self._topics = topics
        self._compacted = compacted
        self._progress = progress
        self._rows: dict[tuple[int, int], list[Range]] = {}  # offsets that sound parts of the log have, in order

    # -- find ---------------------------------------------------------------------------------------------------

    def find(self) -> Loss | None:
        """Find what is lost; None: nothing. Raises OSError, StoreError."""
        if (begun := self._begun()) is not None:
            return begun
        loss = Loss(str(self._folder.log))
        self._rows = {}
        missing = self._files(loss)
        looked = _core.topics_preview(*self._place, loss.begin)
        loss.limit = 0 if looked["shorter"] or looked["foreign"] else looked["position"]
        _kind, checkpoint = _core.topics_checkpoint(*self._place)
        if checkpoint is not None and checkpoint["survived"]:
            loss.limit = max(loss.limit, units.told_end(self._folder, self._file_bytes, self._topics))
        told = self._walk(loss, bool(missing or loss.strange))
        sure = looked["checkpoint"] in ("good", "settings", "older")
        gone = looked["empty"] and not (loss.bases and sure) and log_files.derived_of(self._folder) is not None
        loss.nothing = not loss.end.number and (looked["shorter"] or looked["foreign"] or gone or bool(loss.reasons))
        if loss.bases and not loss.nothing and loss.begin > max(told, looked["first"]):
            first = max(told, looked["first"])
            why = f"the log begins at position {loss.begin:,}: its files before are missing"
            loss.reasons.append((self._name(first), 0, loss.begin - first, why))
            loss.first = loss.begin
        if looked["shorter"] or loss.nothing:
            self._cut_end(loss, looked)
        if not loss.reasons:
            return None
        self._what_is_lost(loss, checkpoint["rows"] if checkpoint is not None else None)
        return loss

    def _begun(self) -> Loss | None:
        """The loss of a repair that was not finished. Raises OSError, StoreError."""
        try:
            return msgspec.json.decode(foreign.read(self._folder.loss), type=Loss)
        except FileNotFoundError:
            return None
        except (IsADirectoryError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"{self._folder.loss} is not what a repair has written there ({error}): {log_files.RESTORE_ALL}"
            ) from error

    def _name(self, position: int) -> str:
        """Of the file in which a position lies."""
        return log_files.path_of(self._folder, position // self._file_bytes * self._file_bytes).name

    def _files(self, loss: Loss) -> list[int]:
        """The log's files; those that are missing in between."""
        for path in sorted(self._folder.log.iterdir()):
            if not foreign.POSITION.fullmatch(path.name):
                continue
            what = foreign.instead(path) or ("a file under a wrong name" if int(path.name) % self._file_bytes else "")
            if what:
                loss.strange.append(path.name)
                loss.reasons.append((path.name, 0, 0, f"is {what}, and no file of the log"))
            else:
                loss.bases.append(int(path.name))
                if (size := path.stat().st_size) < self._file_bytes:
                    loss.reasons.append((path.name, size, self._file_bytes, f"was cut to {size:,} bytes"))
        loss.begin = loss.bases[0] if loss.bases else 0
        there = set(loss.bases)
        wanted = range(loss.begin, loss.bases[-1], self._file_bytes) if loss.bases else range(0)
        missing = [base for base in wanted if base not in there]
        for base in missing:
            loss.reasons.append((self._name(base), 0, self._file_bytes, "is missing"))
        return missing

    def _walk(self, loss: Loss, broken: bool) -> int:
        """Walk what is sound; returns below which position retention may have removed files. Below `loss.limit` nothing
        is a torn tail: the commit that ends there was synced, and its record is there.
        """
        position, epoch, number, told = loss.begin, 0, 0, 0
        anew, hurt, search, before = True, broken, position, 0
        while loss.bases:
            end, epoch, number, store_ms, damaged, stranger, first, rows = _core.topics_survey(
                *self._place, position, epoch, number, anew, self._progress
            )
            told, damaged = max(told, first), damaged or end < loss.limit
            if end > position or anew:
                if not anew:
                    loss.holes.append(Hole(loss.end, position, before))
                loss.end = Commit(end, epoch, number, store_ms)
                for topic, queue, begin, to in rows:
                    self._rows.setdefault((topic, queue), []).append((begin, to))
                if stranger or damaged:
                    self._wrong(loss, end, stranger)
                hurt = broken or stranger or damaged
            anew = False
            found = self._search(loss, max(search, end)) if hurt else None
            if found is None:
                break
            position, epoch, number, search = found
            before = number
        return told

    def _search(self, loss: Loss, position: int) -> tuple[int, int, int, int] | None:
        """The next commit behind a position, in files that follow or in later ones, whose place can be filled up."""
        while True:
            found = _core.topics_next_commit(*self._place, position, loss.end.epoch, loss.end.number)
            if found is None:
                base = position // self._file_bytes * self._file_bytes
                later = [at for at in loss.bases if at > base]
                if not later:
                    return None
                position = later[0]
            elif self._fills(loss, found[0], found[2]):
                return found
            else:
                position = found[3]

    def _fills(self, loss: Loss, to: int, number: int) -> bool:
        try:
            self._filled(Hole(loss.end, to, number))
        except filler.CannotFill:
            return False
        return True

    def _filled(self, hole: Hole) -> Iterator[tuple[int, bytes]]:
        """What fills a hole. At the log's begin any number of commits may be lost: as few as fill it."""
        after, count = hole.after, hole.number - hole.after.number
        if not after.number and hole.number:
            count = max(1, -(-(hole.end - hole.begin) // filler.COMMIT_BYTES_MAX))
            after = Commit(after.end, after.epoch, hole.number - count, after.store_ms)
        return filler.fill(self._node, self._file_bytes, after, hole.end, count)

    def _wrong(self, loss: Loss, at: int, stranger: bool) -> None:
        name, begin = self._name(at), at % self._file_bytes
        what = "commits of another node are there" if stranger else "a commit there is not what was written"
        if all(item[:2] != (name, begin) for item in loss.reasons):
            loss.reasons.append((name, begin, self._file_bytes, f"from byte {begin:,} on: {what}"))

    def _cut_end(self, loss: Loss, looked: dict[str, Any]) -> None:
        loss.limit = max(loss.limit, looked["position"])
        what = f"the log ends at position {loss.end.end:,}, and had reached {loss.limit:,}"
        if loss.nothing:
            loss.end = Commit(loss.end.end, looked["epoch"], looked["number"], 0)
            what = "no commit of this node is left"
        name, at = self._name(loss.end.end), loss.end.end % self._file_bytes
        to = at + max(loss.limit - loss.end.end, 0)
        cut = [item for item in loss.reasons if item[0] == name and item[1] >= at]  # the same bytes are named once
        loss.reasons = [item for item in loss.reasons if item not in cut]
        to = max([to, *(item[2] for item in cut)])
        loss.reasons.append((name, at, to, "; ".join([*(item[3] for item in cut), what])))

    # -- what it costs ------------------------------------------------------------------------------------------

    def _what_is_lost(self, loss: Loss, rows: list[tuple[int, ...]] | None) -> None:
        """`rows`: of the checkpoint, None: it tells none."""
        ends = {(topic, queue): max(next, durable) for topic, queue, _minimum, next, durable, *_rest in rows or ()}
        minima = {(topic, queue): minimum for topic, queue, minimum, *_rest in rows or ()}
        committed = self._committed()
        beyond = max([loss.limit, *loss.bases]) + 2 * self._file_bytes  # a unit that says more is none
        for id, name, queues in self._topics:
            for queue in range(queues):
                key, topic = (id, queue), name.decode(errors="replace")
                kept = self._kept(id, queue)
                unit_end, position = self._units(topic, queue)
                loss.limit = max(loss.limit, position if position <= beyond else 0)
                groups = [
                    (group, at) for (of, group), done in committed.items() if of == id and (at := done.get(queue))
                ]
                left = self._rows.get(key, [])
                end = left[-1][1] if left else -1
                next = max([unit_end, ends.get(key, 0), kept, end, *(at for _group, at in groups)])
                begins = left[0][0] if left and rows is None and loss.begin and not loss.first else 0
                ranges = _between(left, max(minima.get(key, begins), kept), next)
                if next > max(end, 0):
                    loss.lost.append(Bound(id, queue, min(kept, next) if id in self._compacted else next, next))
                if ranges:
                    loss.queues.append(LostQueue(topic, id, queue, ranges, next))
                beyond_end = [(group, at) for group, at in groups if next > max(end, 0) and at > max(end, 0)]
                loss.groups += [LostGroup(group, topic, queue, at) for group, at in beyond_end]

    def _committed(self) -> dict[tuple[int, str], dict[int, int]]:
        """What groups have committed, as far as their snapshot knows."""
        try:
            found = offsets.decode_snapshot(self._node, foreign.read(self._folder.groups))
        except (FileNotFoundError, IsADirectoryError, Unreadable):
            return {}
        return {key: {queue: item.offset for queue, item in of.items()} for key, of in found.offsets.items()}

    def _kept(self, topic: int, queue: int) -> int:
        """Where the file of a queue's newest messages ends."""
        if topic not in self._compacted:
            return 0
        try:
            file = newest_files.look(
                newest_files.path_of(self._folder.compacted, topic, queue), self._node, topic, queue
            )
        except OSError:
            return 0
        return file.end if file is not None else 0

    def _units(self, topic: str, queue: int) -> tuple[int, int]:
        """The end of a consume queue: offset, and position in the log."""
        unit = units.last_of(self._folder.queues / topic / str(queue))
        if unit is None:
            return 0, 0
        return unit.offset + 1, unit.position + unit.size if unit.position else 0

    # -- accept -------------------------------------------------------------------------------------------------

    def accept(self, loss: Loss, reached: Reached = lambda _point: None) -> list[str]:
        """Make the log whole without what is lost; returns what was done. Raises DiskFull, SyncFailed, StoreError; then
        it can be repeated.
        """
        with atomic_file.explained(f"cannot repair {self._folder.log}"):
            if not self._folder.loss.exists():
                kept = self._keep(loss)
                reached("loss.kept")
                self._report(loss, kept)
                reached("loss.reported")
                atomic_file.replace(self._folder.loss, msgspec.json.encode(loss))
            reached("loss.planned")
            self._have_files(loss)
            reached("loss.files")
            for hole in loss.holes:
                self._zero(hole.begin, hole.end)
                self._write(self._filled(hole))
                reached("loss.filled")
            self._end(loss)
            reached("loss.ended")
        aside = self._folder.path / quarantine.QUARANTINE
        what = f"a loss was accepted: at most {counted(loss.messages, 'message')}; what is lost is named in "
        where = f"{aside / quarantine.REPORT}, and copies of overwritten bytes are next to it"
        return [f"{self._folder.log}: {what}{where}", *(item.text for item in loss.queues)]

    def finish(self) -> None:
        """All is done, and what is derived from the log was made again. Raises StoreError."""
        with atomic_file.explained(f"cannot remove {self._folder.loss}"):
            data_files.unlink(self._folder.loss, missing_ok=True)
            segment.sync_directory(self._folder.path)

    def _going(self, loss: Loss) -> Iterator[Range]:
        """Parts of the files that are written over."""
        for hole in loss.holes:
            yield hole.begin, hole.end
        if loss.bases and not loss.nothing:
            yield loss.end.end, loss.bases[-1] + self._file_bytes

    def _each(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The part in each file: (base, from, to)."""
        while begin < end:
            base = begin // self._file_bytes * self._file_bytes
            yield base, begin - base, min(end - base, self._file_bytes)
            begin = base + self._file_bytes

    def _keep(self, loss: Loss) -> dict[tuple[int, int], str]:
        """Copy what will be written over to the quarantine: (base, from) → name there."""
        kept, place = {}, self._folder.path / quarantine.QUARANTINE
        atomic_file.make_directories(place)
        for begin, end in self._going(loss):
            for base, at, to in self._each(begin, end):
                name = f"commitlog-{base:020d}-from-{at}"
                if base in loss.bases and (there := self._copy(base, at, to, place, name)):
                    kept[base, at] = there
        segment.sync_directory(place)
        segment.sync_directory(self._folder.path)
        return kept

    def _copy(self, base: int, at: int, to: int, place: Path, name: str) -> str:
        """The name of a copy; empty: there were zeros alone. One that is there with the same bytes, of a repair that
        was killed, is taken.
        """
        new, any_ = place / f"{name}{atomic_file.NEW_SUFFIX}", False
        with data_files.reading(log_files.path_of(self._folder, base)) as source:
            target = data_files.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, access.file_mode())
            try:
                for place_of, end_of in _data(source.fileno(), at, to):
                    part = os.pread(source.fileno(), end_of - place_of, place_of)
                    if part.strip(b"\0"):
                        atomic_file.write_all(target, part, place_of - at)
                        any_ = True
                os.fsync(target)
            finally:
                os.close(target)
        same = [path for path in place.glob(f"{name}*") if path != new and _same(path, new)]
        if same or not any_:
            data_files.unlink(new)
            return same[0].name if same and any_ else ""
        free = quarantine.free_name(self._folder.path, name)
        data_files.rename(new, place / free)
        return free

    def _report(self, loss: Loss, kept: dict[tuple[int, int], str]) -> None:
        root, entries = self._folder.path, []
        for name, begin, end, why in loss.reasons:
            moved = kept.get((int(name), begin), "") if name not in loss.strange else ""
            entries.append(
                quarantine.Entry(
                    f"{self._folder.log.name}/{name}", begin, end, f"an accepted loss: {why}", 0, end - begin, moved
                )
            )
        for item in loss.queues:
            for begin, end in item.ranges:
                why = f"an accepted loss: messages of offsets {_offsets(begin, end)}"
                name = f"consumequeue/{item.topic}/{item.queue}"
                entries.append(quarantine.Entry(name, begin, end, why, end - begin))
        for at in range(0, len(entries), quarantine.ENTRIES_MAX):
            quarantine.note(root, *entries[at : at + quarantine.ENTRIES_MAX])
        there = {entry.key for entry in quarantine.entries(root)}
        if any(entry.key not in there for entry in entries):
            report = root / quarantine.QUARANTINE / quarantine.REPORT
            raise StoreError(f"cannot write {report}: free some space and try again; nothing was changed")

    def _have_files(self, loss: Loss) -> None:
        """Make the log's files, each with its size."""
        for name in loss.strange:
            path = self._folder.log / name
            if foreign.instead(path) or (int(name) % self._file_bytes and path.exists()):
                foreign.set_aside(path)
        for base in loss.bases if not loss.nothing else ():
            with self._opened(base) as fd:
                if os.fstat(fd).st_size < self._file_bytes:
                    os.ftruncate(fd, self._file_bytes)
                    os.fsync(fd)
        there = set(loss.bases)
        for base in range(loss.begin, loss.bases[-1], self._file_bytes) if loss.bases and not loss.nothing else ():
            if base not in there:
                os.close(log_files.make(self._folder, self._file_bytes, base))

    def _end(self, loss: Loss) -> None:
        """The log's end: where queues go on, and nothing below the positions that were given out."""
        after = loss.end
        if loss.nothing:
            after = self._begin_anew(loss)
        elif loss.bases:
            self._zero(after.end, loss.bases[-1] + self._file_bytes)
        if loss.lost or loss.first or loss.limit > after.end:
            after = self._say_lost(loss, after)
        self._pass(after.end, loss.limit)

    def _begin_anew(self, loss: Loss) -> Commit:
        """No commit is left: what there is of files is set aside, and the log begins behind all that it ever had."""
        for base in loss.bases:
            path = log_files.path_of(self._folder, base)
            if not path.exists():  # a repair that was killed has moved it
                continue
            if quarantine.move(self._folder.path, path, "an accepted loss: no commit of this node is left") is None:
                raise StoreError(f"cannot move {path} to the quarantine: free some space and try again")
        top = max([loss.limit, *(base + self._file_bytes for base in loss.bases)])
        loss.first = -(-top // self._file_bytes) * self._file_bytes
        return Commit(loss.first, loss.end.epoch, loss.end.number, loss.end.store_ms)

    def _say_lost(self, loss: Loss, after: Commit) -> Commit:
        """A commit that says where queues go on."""
        of = Record(topic=LOST_TOPIC, born_timestamp=after.store_ms, store_timestamp=after.store_ms)
        bodies = [dataclasses.replace(of, body=body) for body in bounds.encode(loss.first, loss.lost)]
        for body in bodies:
            commit = filler.made(self._node, after, [body])
            base = after.end // self._file_bytes * self._file_bytes
            if after.end + len(commit) + BLANK.size > base + self._file_bytes:
                self._pass(after.end, after.end + 1)
                after = Commit(base + self._file_bytes, after.epoch, after.number, after.store_ms)
                commit = filler.made(self._node, after, [body])
            self._write([(after.end, commit)])
            after = Commit(after.end + len(commit), after.epoch, after.number + 1, after.store_ms)
        return after

    def _pass(self, at: int, limit: int) -> None:
        """Blanks up to the end of the file in which `limit` lies."""
        while at < limit:
            end = (at // self._file_bytes + 1) * self._file_bytes
            self._write([(at, filler.blank(end - at))])
            at = end

    # -- writing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, base: int) -> Iterator[int]:
        path = log_files.path_of(self._folder, base)
        if path.exists():
            fd = data_files.open(path, os.O_RDWR)
        else:
            fd = log_files.make(self._folder, self._file_bytes, base)
        try:
            yield fd
        finally:
            os.close(fd)

    def _zero(self, begin: int, end: int) -> None:
        for base, at, to in self._each(begin, end):
            with self._opened(base) as fd:
                for begin_of, end_of in _data(fd, at, to):
                    atomic_file.write_all(fd, bytes(end_of - begin_of), begin_of)
                os.fsync(fd)

    def _write(self, parts: Iterator[tuple[int, bytes]] | Sequence[tuple[int, bytes]]) -> None:
        """Write parts, each within a file, and sync them."""
        for position, part in parts:
            base = position // self._file_bytes * self._file_bytes
            with self._opened(base) as fd:
                atomic_file.write_all(fd, part, position - base)
                os.fsync(fd)


def _data(fd: int, at: int, to: int) -> Iterator[Range]:
    """Parts, of COPY_BYTES at most, of what a file has between two bytes; what lies between them are holes."""
    while at < to:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # there is no more
        if begin >= to:
            return
        at = min(os.lseek(fd, begin, os.SEEK_HOLE), begin + COPY_BYTES, to)
        yield begin, at


def _same(path: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    with data_files.reading(path) as one, data_files.reading(other) as two:
        if os.fstat(one.fileno()).st_size != os.fstat(two.fileno()).st_size:
            return False
        while part := one.read(COPY_BYTES):
            if part != two.read(COPY_BYTES):
                return False
    return True


def _between(left: list[Range], begin: int, next: int) -> list[Range]:
    """Offsets that no sound part has, of those from `begin` up to `next`."""
    ranges, at = [], begin
    for first, to in left:
        if first > at:
            ranges.append((at, first))
        at = max(at, to)
    if next > at:
        ranges.append((at, next))
    return ranges
