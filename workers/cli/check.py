"""`warren check DIR`: read every file of a data directory, and say what is wrong. It changes nothing, with the node up
or down. `--repair`, with the node down: the stores' folders are repaired (`engine/store/check.py`), and checked again;
what is derived from the log of topics is made again, and what is sound in files of newest messages is kept
(`engine/topics/check.py`); queues that the workers have records of and the catalog lost are declared anew; rows that
Spark's tasks staged and no commit names are removed (`engine/transactions/check.py`).

`--accept-loss`, with `--repair`: what the log of topics has lost, so that a start refuses it, is named
(`engine/topics/log_loss.py`), and given up when somebody says yes: at the terminal, or with `--yes`.

A problem is damage: bytes that are not what was written. It costs what stood there; the rest is served. A note is no
damage: the torn tail of the last file after an unclean stop (what was confirmed lies before it), files that do not
belong here, files that a killed process had not finished, missing lists. With the node up the last file of each folder
is being written: its end is not judged. Exit code 0: no problem (any more); 1: problems; 2: --repair with the node up,
or a loss that nobody accepted.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from warren.engine import _core
from warren.engine.catalog import catalog, ownership
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.errors import (
    CorruptRecord,
    DirectoryInUse,
    FormatVersionError,
    LimitError,
    StoreError,
    SystemLimit,
    UsageError,
)
from warren.engine.kernel import atomic_file, data_files, file_register, quarantine, segment
from warren.engine.kernel.file_register import Entry, Key
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    LISTED_DATA,
    LISTED_INDEX,
    LISTED_JOURNAL,
    QUEUE_SEGMENT_ENTRY,
    SEGMENT_ENTRY_COUNT,
)
from warren.engine.kernel.paths import STORE_FOLDERS, TRANSACTIONS, TopicsFolder, queues_of, store_folder
from warren.engine.queues import body_check, segment_stamp
from warren.engine.queues.folder import Folder, read_subscriptions
from warren.engine.queues.replay import last_begun, vouched, was_cut
from warren.engine.queues.terms import read_terms
from warren.engine.saying import command, counted
from warren.engine.store import clean_mark
from warren.engine.store.check import Damage, StoreCheck
from warren.engine.store.folder import DATA, STAMP
from warren.engine.topics import check as topics_check
from warren.engine.topics.found import Found
from warren.engine.topics.log_loss import Loss
from warren.engine.transactions import check as transactions_check
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST
from warren.ipc.region import RegionError
from warren.workers.cli import consent, output
from warren.workers.node import absence, catalog_cut, displaced
from warren.workers.node.displaced import Displaced
from warren.workers.process.tie import data_folders, owning, served, workers_there

TERMS_MAGIC = b"WRNTERM1"
LOOKS = 3  #: times in a row that damage of a running node's file must be seen, the list of files being the same
TRIES = 20
PAUSE_S = 0.05
PARTS_MAX = 10  #: damaged parts of a file, and lost ids of a part, that are shown to people
_NO_ENTRY = bytes(QUEUE_SEGMENT_ENTRY.size)


class LossRefused(UsageError):
    """Somebody has to say yes to a loss."""


@dataclass
class Checked:
    """One file: how many records it has, and what is wrong."""

    path: str
    kind: str
    bytes: int = 0
    records: int = 0
    problem: str = ""
    note: str = ""
    damage: list[Damage] = field(default_factory=list)


@dataclass
class _Hidden:
    """What is hidden by something else that lies in its place (workers/node/displaced.py), and what it holds."""

    by: Displaced
    queues: set[str] = field(default_factory=set)
    messages: int = 0
    unknown: bool = False  #: … and others, of which nobody can say how many

    def holds(self, messages: int | None, queue: str = "") -> None:
        """Messages that are lost without it; None: nobody can say how many."""
        self.messages += messages or 0
        self.unknown = self.unknown or messages is None
        self.queues |= {queue} if queue else set()

    @property
    def text(self) -> str:
        """For people."""
        shown = sorted(self.queues)[:PARTS_MAX]
        more = f" and {len(self.queues) - len(shown)} more" if len(self.queues) > len(shown) else ""
        of = f" of queue{'s' if len(self.queues) > 1 else ''} {', '.join(shown)}{more}" if shown else ""
        counts = [f"at most {counted(self.messages, 'message')}{of}"] if self.messages else []
        counts += [f"{'others' if counts else 'messages'} of which nobody can say how many"] if self.unknown else []
        cost = f"; lost if it is not put back: {' and '.join(counts)}" if counts else ""
        return f"{self.by.text}{cost}: {self.by.advice}"


@dataclass
class Report:
    """What a check found."""

    dir: str
    running: bool
    files: list[Checked] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    loss: dict[str, Any] | None = None  #: of the log of topics, that was accepted
    hidden: dict[Path, _Hidden] = field(default_factory=dict)  #: by the path of what hides it

    def hidden_by(self, path: Path) -> _Hidden | None:
        """What lies in the place of a path, or of a folder above it."""
        return next((self.hidden[each] for each in (path, *path.parents) if each in self.hidden), None)

    def reaches(self, folder: Path) -> bool:
        """Whether it is a folder that can be read."""
        return self.hidden_by(folder) is None and folder.is_dir()

    @property
    def problems(self) -> list[str]:
        return [f"{item.path}: {item.problem}" for item in self.files if item.problem]

    @property
    def notes(self) -> list[str]:
        return [f"{item.path}: {item.note}" for item in self.files if item.note]


@dataclass(frozen=True)
class _Place:
    """A folder of segment files."""

    folder: Path
    suffix: str
    kind: int
    owner: int
    #: the newest file is being written
    appended: bool


def places(report: Report, workers: Iterable[tuple[Path, int]]) -> Iterator[_Place]:
    """The folders of queue workers that have segment files; those that can be read."""
    for worker, owner in workers:
        folder = Folder(worker)
        found = [_Place(folder.journal, ".jnl", FILE_JOURNAL, owner, True)]
        found += [_Place(folder.transient, ".jnl", FILE_JOURNAL, owner, True)]
        found += [_Place(folder.segments, ".dat", FILE_JOURNAL, owner, False)]
        if report.reaches(folder.segments):
            queues = sorted(path for path in folder.segments.glob("*") if path.name.isdigit())
            found += [_Place(queue, ".idx", FILE_SEGMENT, owner, False) for queue in queues]
        yield from (place for place in found if report.reaches(place.folder))


def verify(
    directory: NodeDirectory, progress: Any = None, repair: bool = False, accepts: Callable[[Loss], bool] | None = None
) -> Report:
    """Check everything; `progress(done, all)` is called after each file.

    `repair`: the stores are repaired first; the caller holds the lock. `accepts` is asked whether what the log of
    topics has lost is given up; if not, nothing is changed. Raises NodeNotRunning when there is no data directory,
    LossRefused, StoreError.
    """
    node = directory.read()
    tell = progress if progress is not None else lambda _done, _all: None
    report = Report(str(directory.path), not repair and (directory.in_use() or served(directory.path)))
    with _told(report, directory.path, "directory"):
        report.hidden = {item.path: _Hidden(item) for item in displaced.find(directory.path)}
    identity = directory.path / "node.json"
    report.files.append(Checked(str(identity), "node", identity.stat().st_size))
    if accepts is not None:  # before anything is changed
        _accept_loss(report, directory.path, node, tell, accepts)
    loaded = _catalog(report, directory.path, node.node_id, repair)
    if not report.running:  # else its processes notice it
        _absent(report, directory.path, node, loaded, repair)
    persistent: StoreCheck | None = None
    for store, folder in stores(directory.path):
        if report.reaches(folder):
            checking = StoreCheck(folder, node.node_id, store, report.running)
            with _told(report, folder, "store", repair):
                _store(report, checking, tell, repair)
                persistent = checking if store == SERVER_STORE_PERSISTENT else persistent
    if report.reaches(TopicsFolder.of(directory.path).path):
        _topics(report, directory.path, node, tell, repair)
    if report.reaches(directory.path / TRANSACTIONS):
        with _told(report, directory.path / TRANSACTIONS, "sinks", repair):
            _sinks(report, directory.path, node.node_id, repair)
    entries: dict[Path, Entry] = {}
    there = [(path, owner) for path, owner in workers(directory.path) if report.reaches(path)]
    for worker, owner in there:
        report.files += _subscriptions(Folder(worker))
        with _told(report, worker, "worker"):
            entries |= _listed(report, directory.path, Folder(worker), node.node_id, owner)
    work: list[tuple[_Place, int, Path, bool]] = []
    for place in places(report, there):
        with _told(report, place.folder, "folder"):
            listing = segment.list_files(place.folder, place.suffix)
            report.files += _strangers(listing, place, report.running)
            last = last_begun(listing.files) if place.appended else -1
            work += [(place, number, path, place.appended and number >= last) for number, path in listing.files]
            report.files += _marks(place.folder)
    ends: dict[Path, int] = {}
    for done, (place, number, path, is_last) in enumerate(work, 1):
        look = partial(_segment_file, place, number, path, node.node_id, is_last, report.running, ends)
        checked = look(entries.get(path))
        if report.running and checked is not None and checked.problem:
            checked = _looked_again(directory.path, place, path, node.node_id, look)
        if checked is not None:
            report.files.append(checked)
        tell(done, len(work))
    if not report.running:
        whole = [(path, owner) for path, owner in there if _whole(report, path)]
        for worker, owner in whole:
            with _told(report, worker, "mark"):
                report.files += _mark_fits(Folder(worker), node.node_id, owner, ends)
        if loaded is not None and (persistent is not None or not report.hidden):
            report.files += _bodies(directory, node, loaded, persistent, whole, tell)
    _name_hidden(report, directory.path)
    with _told(report, directory.path, "directory"):
        _name_planted(report, directory.path, bool(node.settings.group))
    return report


@contextlib.contextmanager
def _told(report: Report, path: Path, kind: str, raises: bool = False) -> Iterator[None]:
    """What cannot be read is a problem, and the rest is read all the same. `raises`: something is being repaired."""
    try:
        yield
    except (FormatVersionError, SystemLimit):
        raise
    except (StoreError, OSError) as error:
        if raises:
            with atomic_file.file_explained(f"cannot repair {path}"):
                raise
        what = str(error) if isinstance(error, StoreError) else f"cannot be read: {error.strerror or error}"
        report.files.append(Checked(str(path), kind, problem=what))


def _whole(report: Report, folder: Path) -> bool:
    """Whether nothing in a folder is hidden."""
    return report.hidden_by(folder) is None and not any(path.is_relative_to(folder) for path in report.hidden)


def _name_hidden(report: Report, directory: Path) -> None:
    """Each thing in the place of another is one problem. Topics tell of theirs, and what to do, by themselves."""
    topics = TopicsFolder.of(directory).path
    for path, hidden in report.hidden.items():
        of_it = [item for item in report.files if item.path == str(path)]
        if topics in path.parents and any(item.problem for item in of_it):
            continue
        _report_only(report, Checked(str(path), "displaced", problem=hidden.text))


def _name_planted(report: Report, directory: Path, shared: bool) -> None:
    """What lies where members make something, too: in a node without a group nobody may have put it there."""
    for path, what in displaced.planted(directory):
        of_it = [item for item in report.files if item.path == str(path)]
        told = [f"{what} lies here: nothing follows or reads it; move it away"]
        told += [item.problem for item in of_it if item.problem]
        text = "; ".join(told)
        harmless = shared and len(told) == 1
        _report_only(
            report, Checked(str(path), "displaced", problem="" if harmless else text, note=text if harmless else "")
        )


def _report_only(report: Report, found: Checked) -> None:
    """Report this about a path, and nothing else."""
    report.files = [item for item in report.files if item.path != found.path]
    report.files.append(found)


def _sinks(report: Report, directory: Path, node_id: int, repair: bool) -> None:
    left: list[transactions_check.Checked] = []
    if repair:
        done, left = transactions_check.repair(directory, node_id)
        report.repaired += done
    for item in [*left, *transactions_check.examine(directory, node_id)]:
        told = str(item.path), item.kind, item.bytes, item.records, item.problem, item.note
        report.files.append(Checked(*told))


def _absent(report: Report, directory: Path, node: NodeFile, loaded: Catalog | None, repair: bool) -> None:
    """Folders that a start would miss."""
    try:
        missing = absence.find(directory, node.node_epoch, loaded)
        if missing and repair:
            report.repaired += absence.repair(directory, node.node_id, node.node_epoch, missing)
            return
    except StoreError as error:
        report.files.append(Checked(str(directory), "missing", problem=str(error)))
        return
    for item in missing:
        if (hidden := report.hidden_by(item.path)) is not None:
            hidden.holds(None)
        if item.path in report.hidden or (item.unsure and item.path / STAMP in report.hidden):
            continue
        what = item.text(directory).removeprefix(f"{item.path} ")
        report.files.append(Checked(str(item.path), "missing", problem=what))


def _bodies(
    directory: NodeDirectory,
    node: NodeFile,
    loaded: Catalog,
    store: StoreCheck | None,
    workers: Iterable[tuple[Path, int]],
    progress: Callable[[int, int], None],
) -> Iterator[Checked]:
    """Rows of queues whose bodies the message store does not have; files of large messages."""
    owners = dict(workers)
    numbers = {owner - SERVER_WORKER_FIRST: path for path, owner in owners.items()}
    try:
        found, large = body_check.compare(
            directory.path,
            node.node_id,
            loaded,
            sorted(numbers),
            store.lists if store is not None else tuple,
            node.settings.queue_memory_bytes // 2,
            progress,
        )
    except StoreError as error:
        what = f"cannot be compared with the message store: {error}"
        yield Checked(str(directory.path / "queues"), "bodies", problem=what)
        return
    for file in large:
        yield Checked(str(file.path), "large", file.size, 1, problem=file.problem)
    if not found:
        return
    torn = _copied_while_it_ran(directory, node)
    for number, path in sorted(numbers.items()):
        of_worker = [item for item in found if item.queue.worker == number]
        if not of_worker:
            continue
        messages = sum(item.messages for item in of_worker)
        shown = [f"{item.queue.name!r} ({item.messages})" for item in of_worker[:PARTS_MAX]]
        more = f" and {len(of_worker) - PARTS_MAX} more queues" if len(of_worker) > PARTS_MAX else ""
        what = f"{counted(messages, 'message')} without a body in the message store, of queues {', '.join(shown)}{more}"
        ended = "the next start drops them and counts them as lost"
        checked = Checked(str(path), "bodies")
        if torn:
            checked.problem = f"{what}: this directory was copied while its node ran; {ended}"
        elif not _stopped_whole(Folder(path), node.node_id, owners[path], store):
            why = "the node did not stop in good order"
            if store is not None and _marked(store):
                why = "the worker could not finish them before the node stopped, as on a disk without space"
            checked.note = (
                f"{what}: {why}, and nothing says that they were not being published or acknowledged just then; {ended}"
            )
        elif store is not None and _told_since(Folder(path), store.folder) >= messages:
            checked.note = f"{what}: a repair of the store has given them up; {ended}"
        else:
            checked.problem = f"{what}; {ended}"
        yield checked


def _stopped_whole(folder: Folder, node_id: int, owner: int, store: StoreCheck | None) -> bool:
    """Whether a worker and the message store ended in good order: then nothing was on its way between them."""
    if store is None:
        return True  # it is missing, which a stop does not do
    return _marked(store) and read_terms(folder, node_id, owner) is not None


def _marked(store: StoreCheck) -> bool:
    """Whether the message store ended in good order."""
    return clean_mark.read(store.folder, store.node_id, store.owner) is not None


def _told_since(folder: Folder, store: Path) -> float:
    """How many messages were reported as lost by the store since a worker stopped, that is by a repair; infinite, when
    nobody can say how many."""
    stopped = folder.terms.stat().st_mtime
    told = [entry.messages for entry in quarantine.entries(store) if entry.time >= stopped]
    return float("inf") if None in told else float(sum(messages or 0 for messages in told))


def _copied_while_it_ran(directory: NodeDirectory, node: NodeFile) -> bool:
    """Whether this is a copy, and something in it was written after another part of it had been copied. As far as the
    files tell: a copy keeps the times of what it copies. A snapshot has the inode numbers of its original."""
    if not node.place[1] or node.place[1] == directory.place[1]:
        return False
    patterns = ("queues/worker-*/journal/*.jnl", "queues/worker-*/segments/**/*.*")
    times = [path.lstat() for pattern in patterns for path in directory.path.glob(pattern)]
    copied = max((item.st_ctime_ns for item in times), default=0)
    store = store_folder(directory.path, SERVER_STORE_PERSISTENT)
    of_store = [path.lstat() for path in store.glob("*.rdq")]
    if any(entry.time * 1e9 >= copied for entry in quarantine.entries(store)):
        of_store = [item for item in of_store if item.st_mtime_ns < copied]  # else written by a repair of the copy
    times += of_store
    # Where both are the same the copy kept no times; a second name changes the one and not the other.
    written = [item.st_mtime_ns for item in times if item.st_mtime_ns != item.st_ctime_ns and item.st_nlink == 1]
    return bool(written) and max(written) > min(item.st_ctime_ns for item in times)


def workers(directory: Path) -> Iterator[tuple[Path, int]]:
    """Folder and server number of each queue worker."""
    for number in workers_there(directory):
        yield directory / queues_of(number), SERVER_WORKER_FIRST + number


def _listed(report: Report, directory: Path, folder: Folder, node_id: int, owner: int) -> dict[Path, Entry]:
    """What a worker's list of files says, by path; what it names and is not there is reported."""
    checked = Checked(str(folder.files), "files")
    try:
        listed = file_register.read(folder.files, node_id, owner)
    except StoreError as error:
        checked.problem = str(error)
        report.files.append(checked)
        return {}
    checked.records = len(listed.entries)
    checked.problem = listed.problem
    if not listed.there and folder.journal.is_dir() and segment.list_files(folder.journal, ".jnl").files:
        checked.problem = (
            "is missing, so other missing files cannot be noticed; the next start of the node makes it again"
        )
    report.files.append(checked)

    def lacks(key: Key) -> bool:
        path = folder.path_of(key)
        return report.hidden_by(path) is not None or not path.is_file()

    missing = [key for key in listed.entries if lacks(key)]
    if missing and report.running:  # some may have gone since
        again = file_register.read(folder.files, node_id, owner).entries
        missing = [key for key in missing if key in again and lacks(key)]
    names = _names(directory) if missing else {}
    for key in missing:
        kind, queue, _number = key
        entry = listed.entries[key]
        name = names.get(queue, f"with id {queue}") if queue else ""
        of = f" of queue {name}" if name else ""
        cost = f"; at most {counted(entry.messages, 'message')} lost" if kind == LISTED_INDEX else ""
        gone = Checked(str(folder.path_of(key)), "missing")
        empty = kind == LISTED_JOURNAL and entry.sealed and entry.end <= FILE_HEADER_BYTES
        if (hidden := report.hidden_by(folder.path_of(key))) is not None:
            if kind == LISTED_INDEX:
                hidden.holds(entry.messages, name)
            elif kind in (LISTED_JOURNAL, LISTED_DATA) and not empty:
                hidden.holds(None)
            continue
        if empty:
            cost = "; nothing was in it"
        gone.problem = f"is missing{of}{cost}: removed, or not copied at the same moment as the other files"
        report.files.append(gone)
    _told_before(report, folder.path)
    return {folder.path_of(key): entry for key, entry in listed.entries.items()}


def _told_before(report: Report, folder: Path) -> None:
    """What was found damaged before, and what that cost."""
    reported = quarantine.entries(folder)
    if not reported:
        return
    lost = sum(entry.messages or 0 for entry in reported)
    unknown = sum(entry.messages is None for entry in reported)
    parts = "1 damaged part was" if len(reported) == 1 else f"{len(reported)} damaged parts were"
    cost = f"{counted(lost, 'message')} lost as far as it is known"
    if unknown:
        which = "that" if unknown == len(reported) else f"{unknown} of them"
        rest = f"how many messages {which} cost is not known"
        cost = f"{counted(lost, 'message')} lost at least; {rest}" if lost else rest
    place = folder / quarantine.QUARANTINE
    note = f"{parts} found earlier; {cost}: see {quarantine.REPORT}"
    report.files.append(Checked(str(place), "quarantine", note=note))


def _subscriptions(folder: Folder) -> Iterator[Checked]:
    if folder.subscriptions.exists():
        checked = Checked(str(folder.subscriptions), "subscriptions")
        try:
            checked.records = len(read_subscriptions(folder))
        except StoreError as error:
            checked.problem = str(error)
        yield checked


def _names(directory: Path) -> dict[int, str]:
    try:
        return {id: item.name for id, item in catalog_log.load(directory).catalog.by_id.items()}
    except StoreError:
        return {}


def _mark_fits(folder: Folder, node_id: int, owner: int, ends: dict[Path, int]) -> Iterator[Checked]:
    """The clean mark names the very end of the journal."""
    terms = read_terms(folder, node_id, owner)
    if terms is None:
        return
    end = ends.get(folder.journal_file(terms.file), 0)
    if end != terms.end:
        what = (
            f"the journal ends at byte {end} of file {terms.file}, and ended at {terms.end} when the node was stopped"
        )
        yield Checked(str(folder.terms), "mark", problem=f"{what}: it was cut, or one of the two is an older copy")


def stores(directory: Path) -> Iterator[tuple[int, Path]]:
    """Server number and folder of each store."""
    for number in STORE_FOLDERS:
        yield number, store_folder(directory, number)


def _store(report: Report, check: StoreCheck, progress: Callable[[int, int], None], repair: bool) -> None:
    if check.owner == SERVER_STORE_TRANSIENT and not report.running:
        report.files.append(Checked(str(check.folder), "transient", note="is emptied by the next start; not read"))
        return
    found = check.repair(progress) if repair else check.examine(progress)
    report.repaired += check.actions
    for item in found:
        if item.path in report.hidden and item.path.suffix == DATA and item.problem:
            report.hidden[item.path].holds(item.damage[0].messages if item.damage else None)
    report.files += [
        Checked(str(item.path), item.kind, item.bytes, item.records, item.problem, item.note, item.damage)
        for item in found
    ]
    _told_before(report, check.folder)


def _topics_of(directory: Path, node: NodeFile, running: bool) -> topics_check.TopicsCheck | None:
    """The check of the folder of topics; None: without a catalog nobody can say which records are whose."""
    try:
        declared = catalog_log.load(directory).catalog.topics
    except StoreError:
        return None  # the check of the catalog tells it
    topics = [(item.id, item.name.encode(), item.queues) for item in declared.values()]
    compacted = {item.id for item in declared.values() if item.compacted}
    folder = TopicsFolder.of(directory)
    return topics_check.TopicsCheck(folder, node.node_id, node.settings, topics, running, compacted)


def _topics_run(directory: Path) -> bool:
    """Whether somebody writes there: the topic worker of a running node may have failed."""
    try:
        superblock = NodeDirectory(directory).superblock()
    except RegionError:  # it is going, or coming
        return True
    with contextlib.closing(superblock):
        return superblock.server_identity(superblock.get("topic_server")).alive()


def _accept_loss(
    report: Report,
    directory: Path,
    node: NodeFile,
    progress: Callable[[int, int], None],
    accepts: Callable[[Loss], bool],
) -> None:
    """Give up what the log of topics has lost. Raises LossRefused, StoreError."""
    checking = _topics_of(directory, node, False) if TopicsFolder.of(directory).log.is_dir() else None
    loss = checking.loss(progress) if checking is not None else None
    if checking is None or loss is None:
        return
    report.loss = loss.as_json()
    if not accepts(loss):
        raise LossRefused("nothing was changed: answer at a terminal, or give --yes, to go on without what is lost")
    report.repaired += checking.accept(loss, progress)


def _topics(
    report: Report, directory: Path, node: NodeFile, progress: Callable[[int, int], None], repair: bool
) -> None:
    """The log of topics, and what is derived from it. Beside a running node damage is what several looks find."""

    def look() -> topics_check.TopicsCheck | None:
        return _topics_of(directory, node, report.running and _topics_run(directory))

    def examined() -> list[Found] | None:
        """What a look finds that retention did not end early, by removing the file that it was in."""
        found: list[Found] | None = None
        for _ in range(LOOKS):
            checking = look()
            if checking is None:
                break
            found = checking.examine(progress)
            if not checking.shrunk:
                break
        return found

    if repair:
        checking = look()
        if checking is None:
            return
        report.repaired += checking.repair(progress)
    found = examined()
    if found is None:
        return
    for _ in range(LOOKS - 1):
        if not report.running or not any(item.problem for item in found):
            break
        time.sleep(PAUSE_S)
        again = examined()
        if again is None:
            break
        before = {item.path for item in found if item.problem}
        found = [item for item in again if not item.problem or item.path in before]
    report.files += [
        Checked(str(item.path), item.kind, item.bytes, item.records, item.problem, item.note) for item in found
    ]
    _told_before(report, TopicsFolder.of(directory).path)


def _catalog(report: Report, directory: Path, node_id: int, repair: bool) -> Catalog | None:
    """The catalog and its log; one of the two has the problem, if there is one, and its path is in the words. Returns
    the catalog; None: it cannot be read."""
    path = directory / catalog.FILE_NAME
    checked = Checked(str(path), "catalog", path.stat().st_size if path.exists() else 0)
    report.files.append(checked)
    try:
        loaded = catalog_log.load(directory)
    except StoreError as error:
        checked.problem = str(error)
        return None
    if not report.running:  # else it was looked at when the node started
        try:
            hurt = [number for number in workers_there(directory) if not _whole(report, directory / queues_of(number))]
            cuts = catalog_cut.find(directory, node_id, loaded.catalog, hurt)
            if cuts and repair:
                report.repaired += catalog_cut.repair(directory, loaded.catalog, cuts)
                loaded = catalog_log.load(directory)
            elif cuts:
                checked.problem = "; ".join(cut.text for cut in cuts)
        except (StoreError, LimitError) as error:
            checked.problem = str(error)
    checked.records = len(loaded.catalog.queues)
    if loaded.place is not None:
        path = catalog_log.log_path(directory, loaded.place.begins)
        log = Checked(str(path), "catalog log", loaded.place.end + loaded.torn, loaded.changes)
        if loaded.torn:
            log.note = (
                f"its last {loaded.torn} bytes are of a change that was never confirmed; the next start cuts them off"
            )
        report.files.append(log)
    return loaded.catalog


def _strangers(listing: segment.Listing, place: _Place, running: bool) -> Iterable[Checked]:
    for path in listing.foreign:
        if (place.suffix == ".dat" and path.is_dir()) or (place.suffix == ".idx" and path.name == "terms"):
            continue
        if place.folder.name == "transient" and path.name == "rows":
            continue
        yield Checked(str(path), "foreign", note="does not belong here; it is left alone")
    for path in listing.unfinished if not running else ():
        yield Checked(str(path), "unfinished", note="was being made when its process died; it holds nothing")


def _marks(folder: Path) -> Iterator[Checked]:
    """Checksum of the terms of a queue worker."""
    path = folder.parent / "terms"
    if folder.name != "journal":
        return
    try:
        content = data_files.read(path)
    except OSError:
        return
    checked = Checked(str(path), "mark", len(content))
    if content[:8] != TERMS_MAGIC or int.from_bytes(content[8:12], "big") != zlib.crc32(content[12:]):
        checked.problem = "has a wrong checksum: all messages of this worker count as delivered before"
    yield checked


def _segment_file(
    place: _Place,
    number: int,
    path: Path,
    node_id: int,
    is_last: bool,
    running: bool,
    ends: dict[Path, int],
    entry: Entry | None,
) -> Checked | None:
    """Check one file; None when it was deleted meanwhile. `entry`: what the worker's list says of it."""
    checked = Checked(str(path), place.suffix[1:])
    try:
        if place.kind == FILE_SEGMENT:
            _index_entries(checked, path, node_id, place.owner, number, entry)
            return checked
        found = segment.scan_file(path, kind=place.kind, node_id=node_id, owner=place.owner, file=number)
    except (CorruptRecord, FormatVersionError) as error:
        if is_last and running:
            return None  # just being made
        checked.problem = str(error)
        return checked
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        checked.problem = str(error)
        return checked
    checked.bytes, checked.records = len(found.data), len(found.frames)
    if not found.frames.clean:
        is_last = is_last and not vouched(memoryview(found.data), found.frames.end, found.header.salt)
        what = f"no valid record at byte {found.frames.end} ({found.frames.reason})"
        rest = len(found.data) - found.frames.end
        behind = _core.frame_behind(found.data, found.frames.end, found.header.salt)
        if not is_last or _stopped_clean(place):
            served = (
                f"what follows from byte {behind} on is served" if behind else f"{rest} bytes behind it are not served"
            )
            checked.problem = f"{what}; {served}"
        elif not running:
            checked.note = f"{what}: the torn tail of an unclean stop, which the next start cuts off"
    ends[path] = _last_end(found)
    if entry is not None and not checked.problem:
        checked.problem = _as_listed(place, found, entry, is_last)
    return checked


def _looked_again(
    directory: Path, place: _Place, path: Path, node_id: int, look: Callable[[Entry | None], Checked | None]
) -> Checked | None:
    """Beside a running node a file and the list change between two looks: damage is what stays when they do not."""
    folder = Folder.of(directory, place.owner - SERVER_WORKER_FIRST)

    def listed() -> Entry | None:
        entries = file_register.read(folder.files, node_id, place.owner).entries
        return next((entry for key, entry in entries.items() if folder.path_of(key) == path), None)

    seen, same = "", 0
    entry = listed()
    for _ in range(TRIES):
        checked = look(entry)
        if checked is None or not checked.problem:
            return checked
        before, entry = entry, listed()
        same = same + 1 if (entry, checked.problem) == (before, seen) else 0
        seen = checked.problem
        if same == LOOKS - 1:
            return checked
        time.sleep(PAUSE_S)
    return Checked(str(path), place.suffix[1:], note="changed during each look; a check with the node down is exact")


def _last_end(found: segment.FileScan) -> int:
    """Where the last frame ends, damaged ones in between or not."""
    end, salt = found.frames.end, found.header.salt
    if found.frames.clean:
        return end
    while behind := _core.frame_behind(found.data, end, salt):
        _rows, end, reason = _core.frame_scan(found.data, salt, behind)
        if reason in ("end", "zeros"):
            break
    return end


def _as_listed(place: _Place, found: segment.FileScan, entry: Entry, is_last: bool) -> str:
    """What the file lacks that the list says it had."""
    size, end = len(found.data), found.frames.end
    if found.header.salt != entry.salt:
        return "is not the file that was written: another one, or one of another time"
    if place.suffix == ".dat":
        return f"has {size} bytes, and had {entry.end}: it was cut, or is an older copy" if size < entry.end else ""
    if cut := was_cut(size, entry):
        return cut
    last = found.frames.reason == "end" and end < size
    if end >= entry.end or (not entry.sealed and (last or is_last)):
        return ""
    return f"its records end at byte {end} and not as they once did: it was cut, or is an older copy"


def _stopped_clean(place: _Place) -> bool:
    """Whether the server that owns the folder marked that it ended in good order, and none has begun since."""
    return place.suffix == ".jnl" and (place.folder.parent / "terms").is_file()


def _index_entries(checked: Checked, path: Path, node_id: int, owner: int, number: int, listed: Entry | None) -> None:
    try:
        data = data_files.read(path)
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    header = segment.check_header(
        path, data[:FILE_HEADER_BYTES], kind=FILE_SEGMENT, node_id=node_id, owner=owner, file=number
    )
    checked.bytes = len(data)
    place = struct.Struct(">QIQ")  # what seeds an entry's CRC: salt, queue, sequence
    queue = int(path.parent.name)
    size = QUEUE_SEGMENT_ENTRY.size
    wrong = []
    for slot in range(min(SEGMENT_ENTRY_COUNT, (len(data) - FILE_HEADER_BYTES) // size)):
        entry = data[FILE_HEADER_BYTES + slot * size : FILE_HEADER_BYTES + (slot + 1) * size]
        if entry == _NO_ENTRY:
            continue
        seed = _core.crc32c(place.pack(header.salt, queue, number * SEGMENT_ENTRY_COUNT + slot))
        if _core.crc32c(entry[4:], seed) == QUEUE_SEGMENT_ENTRY.unpack(entry, "crc"):
            checked.records += 1
        else:
            wrong.append(slot)
    if wrong:
        at = FILE_HEADER_BYTES + wrong[0] * size
        checked.problem = f"{counted(len(wrong), 'damaged entry', 'damaged entries')}, the first at byte {at}"
    elif listed is not None:
        stamp = data[segment_stamp.STAMP_AT : segment_stamp.STAMP_AT + segment_stamp.STAMP_BYTES]
        changes = segment_stamp.changes_of(stamp, header.salt, queue, number)
        if header.salt != listed.salt:
            checked.problem = "is not the file that was written: another one, or one of another time"
        elif listed.end and len(data) < segment_stamp.STAMP_AT:
            checked.problem = f"was cut to {len(data)} bytes"
        elif listed.end and (changes or 0) < listed.end:
            checked.problem = "its stamp is damaged" if changes is None else "is an older copy"
        elif checked.records < listed.messages:
            missing = counted(listed.messages - checked.records, "missing entry", "missing entries")
            checked.problem = f"{missing}: something wrote zeros there"


def _verify(target: NodeDirectory, repair: bool, bar: bool, accepts: Callable[[Loss], bool] | None) -> Report:
    if not bar:
        return verify(target, repair=repair, accepts=accepts)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("reading files", total=None)

        def tell(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        def ask(loss: Loss) -> bool:
            shown.stop()  # the question stands alone
            said = accepts is not None and accepts(loss)
            shown.start()
            return said

        return verify(target, tell, repair, None if accepts is None else ask)


def _accepts(loss: Loss, yes: bool, as_json: bool) -> bool:
    """Say what is lost, and ask."""
    if as_json and not yes:
        output.print_json({"ok": False, "loss": loss.as_json()})
        return False
    for line in () if as_json else loss.lines:
        print(f"loss     {output.escaped(line)}")
    if yes:
        return True
    sys.stdout.flush()
    if not sys.stdin.isatty():
        return False
    consent.ask("Go on without what is lost?", "nothing was changed")
    return True


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--repair",
    is_flag=True,
    help="Quarantine damaged files, keep their good records, make missing lists, declare lost queues anew; of topics, "
    "make consume queues and key index again from the log, and keep what is sound of compacted ones.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --repair: say what the log of topics has lost, ask, and go on without it.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask whether a loss is accepted.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.option("--verbose", is_flag=True, help="List every file.")
def check(directory: str, repair: bool, accept_loss: bool, yes: bool, as_json: bool, verbose: bool) -> int:
    """Verify every file of DIR: checksums, numbers, owners, lists. Changes nothing without --repair, which wants the
    node down. Exit code 1 when something is damaged.
    """
    if accept_loss and not repair:
        raise UsageError("--accept-loss goes with --repair")
    if yes and not accept_loss:
        raise UsageError("--yes goes with --accept-loss")
    target = NodeDirectory(directory)
    target.check_made(makes=False)
    if repair:
        target.check_owner()
        displaced.refuse(target.path)
        ownership.share(target.read().settings.group)
        try:
            target.lock()
        except DirectoryInUse as error:
            raise DirectoryInUse(
                target.foreign_lock()
                or f"{target.path} cannot be repaired while its node runs: stop it with {command('stop', target.path)}"
            ) from error
    accepts = partial(_accepts, yes=yes, as_json=as_json) if accept_loss else None
    try:
        with owning(target.path, data_folders(target.path)) if repair else contextlib.nullcontext():
            report = _verify(target, repair, sys.stderr.isatty() and not as_json, accepts)
    finally:
        target.unlock()
    if as_json:
        found = {
            "dir": report.dir,
            "running": report.running,
            "ok": not report.problems,
            "files": [asdict(item) for item in report.files],
            "problems": report.problems,
            "notes": report.notes,
            "repaired": report.repaired,
        }
        output.print_json(found | ({"loss": report.loss} if accept_loss else {}))
        return 1 if report.problems else 0
    named = partial(output.found_path, directory=report.dir)
    for item in report.files:
        if verbose and not item.problem:
            print(f"ok       {named(item.path)}: {counted(item.records, 'record')}, {output.bytes_text(item.bytes)}")
    for done in report.repaired:
        print(f"repaired {output.escaped(done)}")
    for item in report.files:
        if item.note:
            print(f"note     {named(item.path)}: {output.escaped(item.note)}")
    for item in report.files:
        if not item.problem:
            continue
        print(f"PROBLEM  {named(item.path)}: {output.escaped(item.problem)}")
        for part in item.damage[:PARTS_MAX]:
            cost = "unknown" if part.messages is None else str(part.messages)
            ids = f": {', '.join(part.ids[:PARTS_MAX])}" if part.ids else ""
            reason = output.escaped(part.reason)
            print(f"           bytes {part.start} to {part.end}, {reason}, messages lost: {cost}{ids}")
        if len(item.damage) > PARTS_MAX:
            print(f"           and {len(item.damage) - PARTS_MAX} more, see --json")
    records = sum(item.records for item in report.files)
    total = sum(item.bytes for item in report.files)
    verdict = counted(len(report.problems), "problem") if report.problems else "no problem"
    print(f"{counted(len(report.files), 'file')}, {counted(records, 'record')}, {output.bytes_text(total)}: {verdict}")
    return 1 if report.problems else 0
