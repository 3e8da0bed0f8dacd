"""`warren check` of the folder of topics: the log, and whether what is derived from it says the same; and its repair.

`examine` changes nothing and may run beside the node. What it judges of consume queues and key index is what a start
does not make again by itself: units and keys of records below the checkpoint. Damage of the log is told from a torn
tail as a start does it (engine/topics/walk.h).

`loss` and `accept`: what the log has lost (engine/topics/log_loss.py).

`repair` wants the folder for itself. It cuts files that somebody appended to: what lies behind their size is never
read. It makes consume queues, index and checkpoint again, from the log alone, when that is whole. What is damaged of
the log itself stays as it is: no other file has it. Whatever the log is, files of the newest messages of compacted
topics are looked at and repaired by engine/topics/compacted_check.py, and snapshots by engine/topics/snapshot_check.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import counted, shown
from warren.engine.topics import foreign, log_files, units
from warren.engine.topics.compacted_check import KIND as COMPACTED
from warren.engine.topics.compacted_check import CompactedCheck
from warren.engine.topics.formats import consume_queue_bytes, key_index_bytes
from warren.engine.topics.found import Found
from warren.engine.topics.log_files import RESTORE, named
from warren.engine.topics.log_loss import LogLoss, Loss, Reached
from warren.engine.topics.names import node_bytes
from warren.engine.topics.service import boot_bytes
from warren.engine.topics.snapshot_check import KIND as SNAPSHOT
from warren.engine.topics.snapshot_check import SnapshotCheck

#: (id, name, queues) of a topic of the catalog
Declared = tuple[int, bytes, int]
Progress = Callable[[int, int], None]

_MiB = 1 << 20
AGAIN = "`warren check --repair` makes it again from the log"
#: how each problem ends for which a start refuses to serve topics
NOT_SERVED = f": topics do not serve; {RESTORE}"
#: what the next start does with a checkpoint that is none
_CHECKPOINTS = {
    "damaged": "is damaged",
    "foreign": "is of another node",
    "newer": "was written by a newer version of Warren",
    "settings": "is of other settings (consume_queue_entries, index_slots, index_entries)",
    "older": "was written by an older version of Warren",
    "none": "is missing",
}


class TopicsCheck:
    """The folder of topics of one node."""

    def __init__(
        self,
        folder: TopicsFolder,
        node_id: int,
        settings: Settings,
        topics: Sequence[Declared],
        running: bool,
        compacted: Collection[int] = (),
    ) -> None:
        """`compacted`: ids of those of the topics that are compacted."""
        self.folder = folder
        self.running = running
        self.found: list[Found] = []
        #: the log lost its first file while it was looked at: what lies behind that may not have been
        self.shrunk = False
        #: files that are larger than they were made → their sizes then, and what is said of that
        self._larger: dict[Path, tuple[int, str]] = {}
        #: a start refuses to serve topics
        self._refused = False
        #: what lies in place of derived files and folders, and is none
        self._foreign: list[Path] = []
        #: the newest file of the key index, and the one that the checkpoint names
        self._newest = self._synced_index = ""
        self._settings = settings
        self._topics = tuple(topics)
        self._node = node_bytes(node_id)
        kept = {id: (name, queues) for id, name, queues in self._topics if id in compacted}
        self._compacted = CompactedCheck(folder, self._node, kept, running)
        self._snapshots = SnapshotCheck(folder, self._node, running)

    # -- look ---------------------------------------------------------------------------------------------------

    def examine(self, progress: Progress = lambda _done, _all: None) -> list[Found]:
        """Look at everything. Raises StoreError when the folder cannot be read."""
        self.found, self._larger, self._foreign = [], {}, []
        self._refused = os.path.lexists(self.folder.loss)
        with atomic_file.explained(f"cannot read {self.folder.path}"), self._opened() as place:
            kind, checkpoint = _core.topics_checkpoint(*place)
            bases = self._log_files()
            limit = checkpoint["position"] if checkpoint is not None else 0
            looked = _core.topics_preview(*place, bases[0] if bases else 0)
            reached = looked["position"]  # of other settings, too
            if checkpoint is not None and checkpoint["survived"] and not self.running:
                reached = max(reached, units.told_end(self.folder, self._settings.log_file_bytes, self._topics))
            synced = _synced(checkpoint)
            self._synced_index = checkpoint["index"] if checkpoint is not None else ""
            self._derived_files(synced)
            end = (bases[-1] + self._settings.log_file_bytes) if bases else 0
            tell = self._teller(progress, end)
            ends, wrongs, counts, told = _core.topics_examine(
                *place, self._topics, limit, reached, synced, tuple(self._runs(bases)), tell
            )
            whole = len(ends) == 1 and not any(wrong[0].startswith("commitlog/") for wrong in wrongs)
            self.found += self._compacted.examine(
                {(topic, queue): (least, first if whole else least) for topic, queue, least, first in told}
            )
            for path, made in self._compacted.larger.items():
                self._check_size(path, COMPACTED, made)
            first = min(bases[0], counts["first"]) if bases else 0  # one that somebody removed is to be put back
            self.found += self._snapshots.examine(first, ends[-1][0] if counts["commits"] else 0)
        self._sum_up(counts)
        for file, count, at, reason in wrongs:
            if not file.startswith("commitlog/"):
                self._wrong(file, count, at, reason)
        self._check_checkpoint(kind, counts)
        if checkpoint is not None and checkpoint["index"] and not (self.folder.index / checkpoint["index"]).exists():
            self._problem(self.folder.index / checkpoint["index"], "keys", f"is missing; {AGAIN}")
        if looked["foreign"] and bases and not any(stranger is not None for *_at, stranger in ends):
            self._not_served(log_files.path_of(self.folder, bases[0]), "begins with commits of another node")
        self._check_log(bases, ends, counts, reached, kind)
        of_log = [
            wrong for wrong in wrongs if wrong[0].startswith("commitlog/") and not self._written(wrong[2], reached)
        ]
        self._refused |= any(at >= limit for _file, _count, at, _reason in of_log)
        for file, count, at, reason in of_log:  # last, because the text says whether topics serve
            self._wrong_in_log(self.folder.path / file, count, at, reason, kind)
        self._check_there(bases, kind, counts)
        if os.path.lexists(self.folder.loss):
            self._problem(self.folder.loss, "log", f"is there: {log_files.UNFINISHED}")
        self.shrunk = bool(bases) and not log_files.path_of(self.folder, bases[0]).exists()
        return self.found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, bytes, bytes, int, int, int, int]]:
        """A place of the core: the folder, open, whose it is, and the sizes of its files."""
        settings = self._settings
        root = data_files.open_folder(self.folder.path)
        try:
            sizes = settings.consume_queue_entries, settings.index_slots, settings.index_entries
            yield root, self._node, boot_bytes(root), settings.log_file_bytes, *sizes
        finally:
            os.close(root)

    def _teller(self, progress: Progress, end: int) -> Callable[[int], None]:
        return lambda position: progress(position // _MiB, max(end, position) // _MiB)

    # -- files --------------------------------------------------------------------------------------------------

    def _log_files(self) -> list[int]:
        """Positions at which files of the log begin."""
        bases = []
        for path in self._listed(self.folder.log, foreign.POSITION):
            base = int(path.name)
            if base % self._settings.log_file_bytes:
                self.found.append(Found(path, "foreign", note="does not belong here; it is left alone"))
                continue
            bases.append(base)
            self._check_size(path, "log", self._settings.log_file_bytes)
        return bases

    def _derived_files(self, synced: tuple[str, int] | None) -> None:
        known = {name.decode(): queues for _id, name, queues in self._topics}
        bytes_of_queue = consume_queue_bytes(self._settings.consume_queue_entries)
        for name in sorted(known):
            self._check_folder(self.folder.queues / name)
        for topic in self._folders(self.folder.queues):
            if topic.name not in known:
                if not self.running:  # else it was deleted or declared just now
                    what = f"is of no topic that is declared ({shown(topic.name)}); the next start removes what is its"
                    self.found.append(Found(topic, "foreign", note=what))
                continue
            numbers = {str(number) for number in range(known[topic.name])}
            for number in sorted(numbers):
                self._check_folder(topic / number)
            for queue in self._folders(topic):
                if queue.name not in numbers:
                    self.found.append(Found(queue, "foreign", note="does not belong here; it is left alone"))
                    continue
                for path in self._listed(queue, foreign.POSITION):
                    self._check_made(path, "units", bytes_of_queue)
        bytes_of_index = key_index_bytes(self._settings.index_slots, self._settings.index_entries)
        for path in self._listed(self.folder.index, foreign.TIME):
            self._newest = path.name
            if synced is None or path.name <= synced[0]:
                self._check_made(path, "keys", bytes_of_index)

    def _folders(self, folder: Path) -> list[Path]:
        if self._check_folder(folder):
            return []
        try:
            return sorted(path for path in folder.iterdir() if not foreign.instead(path, folder=True))
        except FileNotFoundError:
            return []

    def _check_folder(self, path: Path) -> bool:
        """Whether something lies there that is no folder."""
        return self._strange(path, foreign.instead(path, folder=True))

    def _strange(self, path: Path, what: str) -> bool:
        if not what or path in self._foreign:
            return bool(what)
        if path.is_relative_to(self.folder.log):
            self._refused = True
            said = f"is {what}: topics do not serve; {foreign.MOVE}, and {RESTORE}"
            self._problem(path, "log", said)
        else:
            self._foreign.append(path)
            kind = "keys" if path.is_relative_to(self.folder.index) else "units"
            said = f"is {what}: {foreign.MOVE}; {foreign.REPAIR}"
            self._problem(path, "checkpoint" if path == self.folder.checkpoint else kind, said)
        return True

    def _listed(self, folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
        """The files of a folder that have such names; others are noted."""
        if self._check_folder(folder):
            return
        try:
            paths = sorted(folder.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            if name.fullmatch(path.name):
                if not self._strange(path, foreign.instead(path)):
                    yield path
            elif foreign.is_aside(path.name):
                self.found.append(Found(path, "damaged", note=foreign.ASIDE))
            elif path.name == "new" or path.name.endswith(atomic_file.NEW_SUFFIX):
                if not self.running:
                    note = "was being made when its process died; it holds nothing"
                    self.found.append(Found(path, "unfinished", note=note))
            else:
                self.found.append(Found(path, "foreign", note="does not belong here; it is left alone"))

    def _check_made(self, path: Path, kind: str, wanted: int) -> None:
        """One that was made and did not get its size holds nothing: what it lacks is told by what the log has."""
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                self._check_size(path, kind, wanted)

    def _check_size(self, path: Path, kind: str, wanted: int) -> None:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return  # removed meanwhile
        if size < wanted:
            what = f"has {size:,} bytes, and had {wanted:,}: it was cut, or replaced"
            if kind == "log":
                self._not_served(path, what)
            else:
                self._problem(path, kind, f"{what}; {AGAIN}")
        elif size > wanted:
            what = log_files.surplus(path, size, wanted).removeprefix(f"{path} ")
            self._larger[path] = wanted, f"{what}; `warren check --repair` cuts it off"
            self._problem(path, kind, self._larger[path][1])

    def _runs(self, bases: list[int]) -> Iterator[int]:
        """The first of each files that follow each other; what is missing in between is told."""
        before: int | None = None
        for base in bases:
            if before is None or base != before + self._settings.log_file_bytes:
                yield base
                for gap in (
                    range(before + self._settings.log_file_bytes, base, self._settings.log_file_bytes)
                    if (before is not None)
                    else ()
                ):
                    self._not_served(self.folder.log / f"{gap:020d}", "is missing, with the messages in it")
            before = base

    # -- what was found -----------------------------------------------------------------------------------------

    def _problem(self, path: Path, kind: str, what: str) -> None:
        for item in self.found:
            if item.path == path and item.problem:
                before = item.problem.removesuffix(NOT_SERVED) if what.endswith(NOT_SERVED) else item.problem
                item.problem = f"{before}; {what}"  # the advice stands once, at the end
                return
        self.found.append(Found(path, kind, problem=what))

    def _not_served(self, path: Path, what: str) -> None:
        """A problem of the log for which a start refuses to serve topics."""
        self._refused = True
        self._problem(path, "log", f"{what}{NOT_SERVED}")

    def _is_damage(self, item: Found) -> bool:
        """More than bytes behind a file's end."""
        return bool(item.problem) and item.problem != self._larger.get(item.path, (0, ""))[1]

    def _sum_up(self, counts: dict[str, int]) -> None:
        places = ((self.folder.log, "log", "records"), (self.folder.queues, "units", "units"))
        for path, kind, word in (*places, (self.folder.index, "keys", "keys")):
            if path.is_dir():
                self.found.append(Found(path, kind, _bytes_below(path), counts[word]))

    def _written(self, at: int, reached: int) -> bool:
        """Whether a part of the log is being written just now."""
        return self.running and at >= reached

    def _wrong_in_log(self, path: Path, count: int, at: int, reason: str, kind: str) -> None:
        what = (
            f"{counted(count, 'byte')} from byte {at % self._settings.log_file_bytes} on hold {reason}, although they "
            "were confirmed: messages in them are lost"
        )
        if self._refused and kind != "settings":
            self._not_served(path, what)
            return
        served = (
            "with these settings topics do not serve"
            if self._refused
            else "what is sound there is read, and topics go on"
        )
        self._problem(
            path,
            "log",
            f"{what}; {served}. Does a backup of the folder of topics have them? It lacks what was appended after it, "
            f"so read that first; {log_files.OTHERWISE}",
        )

    def _wrong(self, file: str, count: int, at: int, reason: str) -> None:
        path = self.folder.path / file
        if path == self.folder.index:
            what = f"{counted(count, 'key')} of messages are in none of its files: one is missing; {AGAIN}"
            self._problem(path, "keys", what)
            return
        if any(path.is_relative_to(strange) for strange in self._foreign):
            return  # it was said
        units = file.startswith("consumequeue/")
        if reason == "is missing":
            self._problem(path, "keys", f"{reason}, with the keys in it; {AGAIN}")
            return
        if not path.is_file():
            what = f"{counted(count, 'unit')}" if units else counted(count, "key")
            self._problem(path, "units" if units else "keys", f"is missing, with {what}; {AGAIN}")
            return
        if count == 1 and not units and self._may_be_empty(path) and _is_zeros(path):
            note = "is empty: its content was lost with the power, after it got its name; the next start makes it again"
            self.found.append(Found(path, "keys", note=note))
            return
        thing = "damaged unit" if units else "damaged place"
        self._problem(
            path, "units" if units else "keys", f"{counted(count, thing)}, the first at byte {at} ({reason}); {AGAIN}"
        )

    def _may_be_empty(self, path: Path) -> bool:
        """Whether it is the newest file of the key index, and the checkpoint knows nothing of it."""
        return path.name == self._newest and path.name > self._synced_index

    def _check_checkpoint(self, kind: str, counts: dict[str, int]) -> None:
        path = self.folder.checkpoint
        if self._strange(path, foreign.instead(path)):
            return
        if kind == "good" or (kind == "none" and not counts["commits"] and not any(map(_files_in, self._derived()))):
            self.found.append(Found(path, "checkpoint", _bytes_of(path), int(kind == "good")))
        elif kind in ("settings", "older"):
            note = f"{_CHECKPOINTS[kind]}: the next start makes consume queues and key index again from the log"
            self.found.append(Found(path, "checkpoint", _bytes_of(path), note=note))
        else:
            what = f"{_CHECKPOINTS[kind]}: the next start makes consume queues and key index again from the log"
            self._problem(path, "checkpoint", what)

    def _derived(self) -> tuple[Path, Path]:
        return self.folder.queues, self.folder.index

    def _check_log(self, bases: list[int], ends: list[Any], counts: dict[str, int], reached: int, kind: str) -> None:
        file_bytes = self._settings.log_file_bytes
        position, _number, _store_ms, torn, _stranger = ends[-1] if ends else (0, 0, 0, False, None)
        last = self.folder.log / f"{max(position - 1, 0) // file_bytes * file_bytes:020d}"
        for at, _number, _store_ms, _torn, stranger in ends:
            if stranger is not None:
                path = self.folder.log / f"{at // file_bytes * file_bytes:020d}"
                what = f"from byte {at % file_bytes} on it holds commits of another node, {named(stranger)}"
                self._not_served(path, what)
        if position < reached:
            what = f"the log ends at position {position:,}, and had reached {reached:,}: it was cut, zeroed, or is an "
            self._not_served(last, f"{what}older copy; messages behind are lost")
        elif torn and not counts["commits"] and kind not in ("good", "settings"):  # else nothing was confirmed yet
            self._not_served(last, "holds nothing that this node has written: it is damaged from its first byte on")
        elif torn and not self.running:
            path = self.folder.log / f"{position // file_bytes * file_bytes:020d}"
            note = (
                f"ends in a commit that is not whole, from byte {position % file_bytes} on: the torn tail of an "
                "unclean stop, which nothing says was confirmed; the next start cuts it off"
            )
            self.found.append(Found(path, "log", note=note))
        if bases and bases[0] > counts["first"]:
            what = (
                f"is missing, with its messages: the log begins at position {bases[0]:,}, and should at "
                f"{counts['first']:,}"
            )
            self._not_served(self.folder.log / f"{bases[0] - file_bytes:020d}", what)
        elif counts["missing"]:
            missing = counts["missing"]
            note = f"{counted(missing, 'message')} that once {'was' if missing == 1 else 'were'} there "
            note += f"{'is' if missing == 1 else 'are'} in no sound record"
            self.found.append(Found(self.folder.log, "log", note=note))

    def _check_there(self, bases: list[int], kind: str, counts: dict[str, int]) -> None:
        """What a start refuses (log_files.refuse_absent): there is no log, and something that was derived from one."""
        if counts["commits"] or any(self._is_damage(item) for item in self.found if item.kind == "log"):
            return
        known = kind in ("good", "settings", "older")
        derived = any(map(_files_in, self._derived())) and not (bases and known)
        if derived or (not bases and not known and kind != "none"):
            what = "has no commit, and there are files that were derived from some"
            self._not_served(self.folder.log / f"{bases[0] if bases else 0:020d}", what)

    # -- what the log has lost ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _losses(self, progress: Progress) -> Iterator[LogLoss]:
        with self._opened() as place:
            tell = self._teller(progress, 0)
            yield LogLoss(self.folder, place, self._topics, set(self._compacted.topics), tell)

    def loss(self, progress: Progress = lambda _done, _all: None) -> Loss | None:
        """Find what the log has lost; None: nothing. Raises StoreError."""
        with atomic_file.explained(f"cannot read {self.folder.path}"), self._losses(progress) as losses:
            return losses.find()

    def accept(self, loss: Loss, progress: Progress, reached: Reached = lambda _point: None) -> list[str]:
        """Go on without what is lost; returns what was done. Raises StoreError; then it can be repeated."""
        with self._losses(progress) as losses:
            done = [*losses.accept(loss, reached), self._make_again(progress)]
            reached("loss.rebuilt")
            losses.finish()
        return done

    # -- repair -------------------------------------------------------------------------------------------------

    def repair(self, progress: Progress = lambda _done, _all: None) -> list[str]:
        """Repair files of newest messages; make again what is derived from the log, when that is whole and something of
        it is damaged. Returns what was done. Raises StoreError.
        """
        found = self.examine(progress)
        kept = self._cut_larger()
        if kept:
            found = self.examine(progress)
        with atomic_file.explained(f"cannot repair {self.folder.path}"), self._opened() as place:
            bases = self._bases()
            end = bases[-1] + self._settings.log_file_bytes if bases else 0
            kept += self._compacted.repair(place, bases[0] if bases else 0, self._teller(progress, end))
        problems = [item for item in found if item.problem and item.kind != COMPACTED]
        if any(item.kind == "log" for item in problems):  # a backup of it may have what a snapshot lacks
            return kept
        with atomic_file.explained(f"cannot repair {self.folder.path}"):
            kept += self._snapshots.repair()
        if all(item.kind == SNAPSHOT for item in problems):
            return kept
        with atomic_file.explained(f"cannot repair {self.folder.path}"):
            for path in self._foreign:  # before anything is removed: nothing could be made in its place
                kept.append(f"{path} was no file, or no folder, of Warren's: moved to {foreign.set_aside(path).name}")
        return [*kept, self._make_again(progress)]

    def _bases(self) -> list[int]:
        return sorted(int(path.name) for path in self._listed(self.folder.log, foreign.POSITION))

    def _make_again(self, progress: Progress) -> str:
        """Make again what is derived from the log. Returns what was done. Raises StoreError."""
        with atomic_file.explained(f"cannot repair {self.folder.path}"), self._opened() as place:
            bases = self._bases()
            end = bases[-1] + self._settings.log_file_bytes if bases else 0
            first = bases[0] if bases else 0
            units, keys = _core.topics_rebuild(*place, self._topics, first, self._teller(progress, end))
        done = f"{self.folder.path}: consume queues, key index and checkpoint were made again from the log: "
        return f"{done}{counted(units, 'message')}, {counted(keys, 'key')}"

    def _cut_larger(self) -> list[str]:
        """Cut files to the sizes that they were made with: nothing that lies behind is ever read."""
        done = []
        with atomic_file.explained(f"cannot repair {self.folder.path}"):
            for path, (wanted, _what) in self._larger.items():
                fd = data_files.open(path, os.O_RDWR)
                try:
                    more = counted(os.fstat(fd).st_size - wanted, "byte")
                    os.ftruncate(fd, wanted)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                done.append(f"{path}: {more} that somebody had appended, cut off")
        return done


def _synced(checkpoint: dict[str, Any] | None) -> tuple[str, int] | None:
    """Of the key index: the newest file that was synced, and how many entries of it; None: the machine was not started
    since, so all that was stored is there.
    """
    if checkpoint is None:
        return "", 0
    return None if checkpoint["survived"] else (checkpoint["index"], checkpoint["index_count"])


def _is_zeros(path: Path) -> bool:
    """Whether a sparse file has no byte but zeros."""
    with data_files.reading(path) as file:
        at = 0
        while True:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # the rest is a hole
                    return True
                raise
            found = os.pread(file.fileno(), _MiB, at)
            if any(found):
                return False
            at += len(found)


def _files_in(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


def _bytes_of(path: Path) -> int:
    """What a file takes on the disk: most are sparse."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return min(found.st_size, found.st_blocks * 512) if stat.S_ISREG(found.st_mode) else 0


def _bytes_below(folder: Path) -> int:
    return sum(map(_bytes_of, folder.rglob("*")))
