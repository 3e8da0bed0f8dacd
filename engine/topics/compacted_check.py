"""`warren check` of the files of newest messages of compacted topics, and their repair
(docs/design/029-compaction.md §6).

What lies in them and in the log no more is in no other file. `repair` writes the sound messages of a damaged file into
another one and sets the damaged one aside. Then it makes the file again from the log, as far as that reaches back: all
of it, when no file of the log was removed yet. What is in neither it writes down in the quarantine's report: readers go
on behind it.

Order of a repair: the new file written and synced, the damaged one linked into the quarantine and that synced, then the
new one renamed over it and the folder synced. A kill anywhere leaves a file with all that is sound at its place. What
is gone is in the report before a file says that nothing is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, data_files, quarantine
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import counted
from warren.engine.topics import foreign
from warren.engine.topics.found import Found
from warren.engine.topics.log_loss import Place
from warren.engine.topics.newest_files import gap_of
from warren.ipc import access

KIND = "compacted"
PARTS_MAX = 10  #: damaged places of a file that are named
_ALONE = "does not belong here; it is left alone"

#: by topic and queue: the minimum that log and checkpoint tell, and the first offset that the log has, if that is below
Minima = Mapping[tuple[int, int], tuple[int, int]]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class _Wrong:
    """A damaged place; the same offset twice: no message is lost with it."""

    at: int
    first: int
    next: int
    reason: str

    @classmethod
    def of(cls, log_from: int | None, at: int, first: int, next: int, reason: str) -> Self:
        """What lies at `log_from` or behind it, the log has, too. None: it is not known."""
        return cls(at, first, next if log_from is None else max(first, min(next, log_from)), reason)

    @property
    def text(self) -> str:
        lost = f"; messages of offsets {self.first:,} to {self.next - 1:,} are lost" if self.first < self.next else ""
        return f"at byte {self.at}: {self.reason}{lost}"


@dataclass
class _File:
    """A queue's file, and what is wrong with it."""

    path: Path
    topic: int
    queue: int
    minimum: int
    log_from: int  #: the first offset below the minimum that the log has, else the minimum
    there: bool = False
    bytes: int = 0
    end: int = 0
    records: int = 0  #: as its head says
    sound: int = 0
    unusable: str = ""  #: why nothing of it can be read
    wrongs: list[_Wrong] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """At most: of a damaged place nobody knows how many of its messages the log has, too."""
        return max(self.records - self.sound, 0) if any(wrong.first < wrong.next for wrong in self.wrongs) else 0

    @property
    def kept_end(self) -> int:
        """Where a file of what is sound ends: the log has what lies behind the minimum, with what is damaged here."""
        return min(self.end, self.minimum or self.end)

    @property
    def gap(self) -> bool:
        """Whether it is another file than was written last, or none: messages below the minimum are not in it."""
        return self.end < self.minimum

    @property
    def gone(self) -> str:
        """Of a gap: what is in no file; "": the log has all of it."""
        return gap_of(self.end, self.log_from) if self.end < self.log_from else ""

    @property
    def places(self) -> str:
        shown = "; ".join(wrong.text for wrong in self.wrongs[:PARTS_MAX])
        more = f"; and {len(self.wrongs) - PARTS_MAX:,} more" if len(self.wrongs) > PARTS_MAX else ""
        return f"{counted(len(self.wrongs), 'damaged place')}: {shown}{more}"

    @property
    def cost(self) -> str:
        if not self.lost:
            return "no message is lost"
        return f"{self.lost:,} of {counted(self.records, 'message')} are lost"


class CompactedCheck:
    """The files of newest messages of one node."""

    def __init__(
        self, folder: TopicsFolder, node: bytes, topics: Mapping[int, tuple[bytes, int]], running: bool
    ) -> None:
        """`topics`: name and number of queues of each compacted one, by id."""
        self._folder = folder
        self._node = node
        self.topics = topics
        self._running = running
        self._files: list[_File] = []
        self.larger: dict[Path, int] = {}  #: files that somebody appended to, and how large they were made

    # -- look ---------------------------------------------------------------------------------------------------

    def examine(self, minima: Minima) -> Iterator[Found]:
        """Look at every file. The minima were read before: they only rise, and a file that serves them is there before
        they do. Raises OSError.
        """
        yield from self._strangers()
        self._files, self.larger = [], {}
        for id, (name, queues) in sorted(self.topics.items()):
            for queue in range(queues):
                file = self._look(id, queue, name, *minima.get((id, queue), (0, 0)))
                self._files.append(file)
                if file.there or file.gap:
                    yield self._found(file)

    def _found(self, file: _File) -> Found:
        found = Found(file.path, KIND, file.bytes, file.sound)
        if file.gap:
            what = file.unusable or (
                f"ends at offset {file.end:,}: it is an older copy" if file.there else "is missing"
            )
            repair = "`warren check --repair` makes it again"
            if file.gone:
                found.problem = (
                    f"{what}; {file.gone}; does a backup of the folder of topics have them? {repair} without"
                )
            else:
                found.problem = f"{what}; the log has what it lacks: {repair}, and no message is lost"
        elif file.unusable:
            found.problem = f"{file.unusable}; the log has all that was in it; `warren check --repair` sets it aside"
        elif file.wrongs:
            found.problem = f"{file.places}; {file.cost}; `warren check --repair` keeps what is sound"
        return found

    def _name(self, file: _File) -> str:
        return str(file.path.relative_to(self._folder.path))

    def _strangers(self) -> Iterator[Found]:
        for topic in _listed(self._folder.compacted):
            if not topic.is_dir() or not foreign.NUMBER.fullmatch(topic.name):
                yield Found(topic, "foreign", note=_ALONE)
            elif int(topic.name) in self.topics:
                queues = self.topics[int(topic.name)][1]
                for path in _listed(topic):
                    yield from self._stranger(path, queues)
            elif not self._running:  # else it was deleted or declared just now
                what = f"is of no compacted topic that is declared (id {topic.name}); the next start removes it"
                yield Found(topic, "foreign", note=what)

    def _stranger(self, path: Path, queues: int) -> Iterator[Found]:
        if foreign.NUMBER.fullmatch(path.name) and int(path.name) < queues and path.is_file():
            return
        if not path.name.endswith(atomic_file.NEW_SUFFIX):
            yield Found(path, "foreign", note=_ALONE)
        elif not self._running:
            note = "was being made when its process died; the file that it was to replace counts"
            yield Found(path, "unfinished", note=note)

    def _look(self, topic: int, queue: int, name: bytes, minimum: int, log_from: int) -> _File:
        file = _File(self._folder.compacted / str(topic) / str(queue), topic, queue, minimum, log_from)
        if not file.path.is_file():
            return file
        try:
            descriptor = data_files.open(file.path, os.O_RDONLY)
        except FileNotFoundError:  # removed meanwhile
            return file
        file.there = True
        try:
            file.bytes = os.fstat(descriptor).st_size
            head = _core.compacted_look(descriptor, self._node, topic, queue)
            file.end, file.records = head["end"], head["records"]
            if file.bytes > head["bytes"]:
                self.larger[file.path] = head["bytes"]
            file.sound, wrongs = _core.compacted_check(descriptor, self._node, topic, queue, name, -1, 0, 0)
            file.wrongs = [_Wrong.of(log_from if minimum else None, *wrong) for wrong in wrongs]
        except OSError as error:
            if error.errno not in (errno.EUCLEAN, errno.EIO):
                raise
            file.unusable = error.strerror or str(error)
        finally:
            os.close(descriptor)
        return file

    # -- repair -------------------------------------------------------------------------------------------------

    def repair(self, place: Place, first: int, progress: Progress) -> list[str]:
        """Repair what the last look found. `first`: where the first file of the log begins. Returns what was done.
        Raises OSError, StoreError.
        """
        done = []
        for file in self._files:
            if file.unusable or (file.gap and file.there and file.gone):  # what an older copy has may be replaced
                done.append(self._set_aside(file))
            elif file.wrongs:
                done.append(self._rewrite(file))
            if file.gap or (file.wrongs and file.log_from < file.minimum):
                done.append(self._make_again(file, place, first, progress))
        return done

    def _make_again(self, file: _File, place: Place, first: int, progress: Progress) -> str:
        """Take from the log what it has. What no file has is written down before."""
        root, name = self._folder.path, self._name(file)
        lost = file.gone if file.gap else ""
        gone = quarantine.Entry(name, 0, 0, lost, None)
        if lost and not quarantine.note(root, gone) and not quarantine.is_reported(root, gone):
            raise StoreError(
                f"cannot write {root / quarantine.QUARANTINE / quarantine.REPORT}: free some space and try again"
            )
        if file.path.is_dir():
            self._set_aside(file)
        new = file.path.with_name(file.path.name + atomic_file.NEW_SUFFIX)
        atomic_file.make_directories(file.path.parent)
        topic, made = self.topics[file.topic][0], time.time_ns() // 1_000_000
        with contextlib.ExitStack() as stack:
            old = -1
            if file.there and not file.unusable and not lost:
                old = data_files.open(file.path, os.O_RDONLY)
                stack.callback(os.close, old)
            to = stack.enter_context(self._made(new))
            if file.log_from < file.minimum:
                records = _core.topics_newest(
                    *place, file.topic, topic, file.queue, file.minimum, first, old, to, made, progress
                )
            else:
                records = 0
                _core.compacted_empty(to, self._node, file.topic, file.queue, topic, file.minimum, made)
        data_files.rename(new, file.path)
        atomic_file.sync_directory(file.path.parent)
        done = f"{file.path}: made again, with {counted(records, 'message')}"
        if not lost:
            return f"{done}, from what the log has"
        report = f"{quarantine.QUARANTINE}/{quarantine.REPORT}"
        return f"{done}; {lost}; written down in {report}; readers go on at offset {file.log_from:,}"

    @staticmethod
    @contextlib.contextmanager
    def _made(new: Path) -> Iterator[int]:
        """A descriptor of an empty file."""
        to = data_files.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, access.file_mode())
        try:
            yield to
        finally:
            os.close(to)

    def _set_aside(self, file: _File) -> str:
        why = file.unusable or f"an older copy, which ends at offset {file.end:,}"
        target = quarantine.move(self._folder.path, file.path, why)
        if target is None:
            raise StoreError(f"cannot move {file.path} to the quarantine: free some space and try again")
        return f"{file.path}: {why}; moved to {target}"

    def _rewrite(self, file: _File) -> str:
        """The sound messages of a damaged file in another one in its place."""
        new = file.path.with_name(file.path.name + atomic_file.NEW_SUFFIX)
        try:
            self._write(file, new)
            aside = self._link(file)
        except BaseException:
            with contextlib.suppress(OSError):
                data_files.unlink(new)
            raise
        data_files.rename(new, file.path)
        atomic_file.sync_directory(file.path.parent)
        return f"{file.path}: {file.places}; {file.cost}; the file is {aside}"

    def _write(self, file: _File, new: Path) -> None:
        name = self.topics[file.topic][0]
        old = data_files.open(file.path, os.O_RDONLY)
        try:
            with self._made(new) as to:
                made = time.time_ns() // 1_000_000
                _core.compacted_check(old, self._node, file.topic, file.queue, name, to, made, file.kept_end)
                head = _core.compacted_look(to, self._node, file.topic, file.queue)
                os.fsync(to)
        finally:
            os.close(old)
        if head["end"] != file.kept_end or (file.kept_end == file.end and head["records"] != file.sound):
            raise StoreError(f"{file.path} changed while it was repaired: another process writes there")

    def _link(self, file: _File) -> Path:
        """The damaged file's name in the quarantine, reported there. It keeps its own until another one gets it, but
        where the file system has no links.
        """
        place = self._folder.path / quarantine.QUARANTINE
        atomic_file.make_directories(place)
        for path in place.iterdir():
            if path.samefile(file.path):  # of a repair that was killed
                return path
        aside = place / quarantine.free_name(self._folder.path, self._name(file).replace("/", "-"))
        entry = quarantine.Entry(self._name(file), 0, file.bytes, file.places, file.lost, file.bytes, aside.name)
        quarantine.note(self._folder.path, entry)
        try:
            data_files.link(file.path, aside)
        except OSError:
            data_files.rename(file.path, aside)
        atomic_file.sync_directory(place)
        return aside


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
