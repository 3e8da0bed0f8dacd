"""What a start misses above the level of files: a queue worker's whole folder, the message store's, or that of topics;
and one of them that is an older copy, put beside the rest as it is now.

A folder that is missing looks like one that was never made. A worker that makes it anew serves empty queues, and the
store gives up every body that no worker names; a store that is made anew costs the queues their rows. Then putting the
folder back does not help any more. So a start refuses (DataMissing) before anything is made, removed or given again.

An older copy of a folder is sound in itself: its worker would serve what was acked since, and nothing that came since.
So each start stamps the folders with its number (the epoch) before node.json has it, and the next start refuses a
folder whose stamp is below node.json's. A copy made since the last start cannot be told from a node that was killed.

Invariants, each by the order in which things become durable
  A catalog has a durable queue of a worker ⇒ the worker's folder has its list, `files`: the folder is there before the
  node serves, and nothing is declared before that; a move writes its target before the catalog names it.
  A catalog has a topic ⇒ the folder of topics has its commit log, and a stamp.
  node.json has an epoch ⇒ the store's folder has its list, `files`: it is made before the first epoch is written.
  node.json has epoch E ⇒ no stamp is below E. A folder without a stamp is of before there were stamps.
A directory from before there were lists has journal files, or the store's own, in their place. Queues that go with the
node (transient ones, exclusive ones) prove nothing, and lose nothing.

Crash points: between any two steps of `prepare_…` and `repair`: the next start, or repair, goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.errors import DataMissing
from warren.engine.kernel import atomic_file, data_files, quarantine, segment
from warren.engine.kernel.file_register import FileRegister
from warren.engine.kernel.paths import TOPICS, TopicsFolder, store_folder
from warren.engine.queues.folder import Folder
from warren.engine.saying import command
from warren.engine.store.folder import FILES, STAMP, list_files
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_WORKER_FIRST

STORE = store_folder(Path(), SERVER_STORE_PERSISTENT)
NO_START = -1  #: what a stamp says that is damaged
STAMP_BYTES_MAX = 32
NAMES_MAX = 10  #: queues that are named one by one


@dataclass(frozen=True)
class Missing:
    """A folder that was there. `worker`: whose, None: the store's or, `topics`, theirs."""

    path: Path
    worker: int | None
    reason: str  #: what is wrong with it, for people
    cost: str  #: what goes without it
    older: bool = False  #: it is there, as it was at an earlier start
    unsure: bool = False  #: … or perhaps not
    topics: bool = False

    def text(self, directory: Path) -> str:
        """What is missing, what that costs, and what to do."""
        accept = command("check", directory, "--repair")
        if self.older:
            lacks = "if so, it lacks" if self.unsure else "it lacks"
            return (
                f"{self.path} {self.reason}; {lacks} {self.cost}; nothing was changed: put back the newer one, "
                f"restore the whole of {directory} from one backup, or accept the loss with {accept}"
            )
        return (
            f"{self.path} {self.reason}, and with it {self.cost}; nothing was changed: put it back from a backup of "
            f"{directory}, or accept the loss with {accept}"
        )


def find(directory: Path, node_epoch: int, catalog: Catalog | None) -> list[Missing]:
    """What is missing; nothing is changed. `catalog`: as it is on disk, None: it cannot be read. Raises StoreError."""
    found = []
    with atomic_file.explained(f"cannot look at {directory}"):
        what = "the messages of at least `embed_bytes_max` bytes, and what programs keep in the store"
        if node_epoch and (reason := _store_lacks(directory / STORE)):
            found.append(Missing(directory / STORE, None, reason, what))
        elif reason := _older(directory / STORE, node_epoch):
            cost, unsure = f"what was added since to {what}", stamped(directory / STORE) == NO_START
            found.append(Missing(directory / STORE, None, reason, cost, older=True, unsure=unsure))
        lasting: dict[int, list[QueueDeclaration]] = {}
        for item in catalog.by_id.values() if catalog is not None else ():
            if item.outlives_node:
                lasting.setdefault(item.worker, []).append(item)
        for worker, queues in sorted(lasting.items()):
            folder = Folder.of(directory, worker)
            if reason := _worker_lacks(folder):
                found.append(Missing(folder.path, worker, reason, f"the messages of {_names(queues)}"))
            elif reason := _older(folder.path, node_epoch):
                cost = f"what was put since into {_names(queues)} (what was acked since is delivered again)"
                unsure = stamped(folder.path) == NO_START
                found.append(Missing(folder.path, worker, reason, cost, older=True, unsure=unsure))
        if catalog is not None and catalog.topics:
            found += _topics_missing(TopicsFolder.of(directory), node_epoch, sorted(catalog.topics))
    return found


def _topics_missing(folder: TopicsFolder, node_epoch: int, names: list[str]) -> Iterator[Missing]:
    what = _listed("topic", names)
    if not _is_folder(folder.log):
        reason = "has no commit log" if _is_folder(folder.path) else "is missing"
        yield Missing(folder.path, None, reason, f"the messages of {what}", topics=True)
    elif reason := _older(folder.path, node_epoch):
        unsure = stamped(folder.path) == NO_START
        cost = f"what was appended since to {what}"
        yield Missing(folder.path, None, reason, cost, older=True, unsure=unsure, topics=True)


def refuse(directory: Path, node_epoch: int, catalog: Catalog | None) -> None:
    """Raises DataMissing when something is missing, StoreError."""
    if found := find(directory, node_epoch, catalog):
        raise DataMissing("; ".join(item.text(directory) for item in found))


def _store_lacks(path: Path) -> str:
    """Why the store's folder is not the one that was made; empty: it is, as far as a folder can tell."""
    if not _is_folder(path):
        return "is missing"
    return "" if any(name != quarantine.QUARANTINE for name in os.listdir(path)) else "is empty"


def _worker_lacks(folder: Folder) -> str:
    if not _is_folder(folder.path):
        return "is missing"
    journals = _is_folder(folder.journal) and segment.list_files(folder.journal, ".jnl").files
    segments = _is_folder(folder.segments) and os.listdir(folder.segments)
    return "" if folder.files.exists() or journals or segments else "has neither its list of files nor a journal"


def _is_folder(path: Path) -> bool:
    """Nothing is looked at through a link."""
    return path.is_dir() and not data_files.instead(path, folder=True)


def _older(folder: Path, node_epoch: int) -> str:
    """Why a folder is an older copy, or may be one; empty: it is none, as far as its stamp can tell."""
    epoch = stamped(folder)
    if epoch is None or epoch >= node_epoch:
        return ""
    if epoch == NO_START:
        return f"may be an older copy: its file `{STAMP}`, which names the last start that used it, is damaged"
    return f"is an older copy: it is of start {epoch} of the node, and the last one was start {node_epoch}"


def stamped(folder: Path) -> int | None:
    """The number of the last start that used a folder; None: it has no stamp, and is of before there were any;
    NO_START: what it has is no number. Raises OSError.
    """
    if data_files.instead(folder / STAMP):
        return NO_START
    try:
        content = data_files.read(folder / STAMP, most=STAMP_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return NO_START
    number = int(content) if content.strip().isdigit() else NO_START
    return number if number < 1 << 63 else NO_START


def _names(queues: list[QueueDeclaration]) -> str:
    shown = sorted(item.name for item in queues if not item.hidden)
    hidden = len(queues) > len(shown)
    said = _listed("queue", shown)
    return f"{said}, with their subscriptions and dead letters" if hidden else said


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{what}{'s' if len(names) != 1 else ''} {', '.join(map(repr, names[:NAMES_MAX]))}{more}"


# ---- what a start makes ---------------------------------------------------------------------------------------------


def prepare_store(directory: Path, node_id: int) -> None:
    """Before a first epoch is written: the store's folder and its list are there, durably. Raises StoreError."""
    path = directory / STORE
    with atomic_file.explained(f"cannot make {path}"):
        atomic_file.make_directories(path)
        if not (path / FILES).exists() and not list_files(path).files:
            FileRegister(path / FILES, node_id, SERVER_STORE_PERSISTENT).begin({}, [])


def prepare_workers(directory: Path, node_id: int, epoch: int, workers: Iterable[int]) -> None:
    """Before the node serves: folders, lists and stamps of its workers are there, durably. What has no list and yet a
    journal is of before there were lists, and its worker says so. Raises StoreError."""
    for worker in workers:
        folder = Folder.of(directory, worker)
        with atomic_file.explained(f"cannot make {folder.path}"):
            if _worker_lacks(folder):
                _make_worker(folder, node_id, worker)
            if stamped(folder.path) != epoch:
                _stamp(folder.path, epoch)


def _make_worker(folder: Folder, node_id: int, worker: int) -> None:
    atomic_file.make_directories(folder.path)
    FileRegister(folder.files, node_id, SERVER_WORKER_FIRST + worker).begin({}, [])


def prepare_topics(directory: Path, epoch: int) -> None:
    """Before the catalog has a topic: the folder with its commit log is there, with the stamp of this start, durably.
    Raises StoreError."""
    folder = TopicsFolder.of(directory)
    with atomic_file.explained(f"cannot make {folder.path}"):
        if not folder.log.is_dir():
            atomic_file.make_directories(folder.log)
        if stamped(folder.path) != epoch:
            _stamp(folder.path, epoch)


def next_epoch(directory: Path, node_epoch: int) -> int:
    """The number of a start that begins: above node.json's and every stamp (an older node.json gives no epoch again).
    Raises StoreError.
    """
    with atomic_file.explained(f"cannot look at {directory}"):
        stamps = [stamped(folder) or 0 for folder in _stamped_folders(directory)]
        return max([node_epoch, *stamps]) + 1


def stamp(directory: Path, epoch: int) -> None:
    """Before node.json has this epoch: the folders that are there have it. Raises StoreError."""
    for folder in _stamped_folders(directory):
        _stamp(folder, epoch)


def _stamped_folders(directory: Path) -> Iterator[Path]:
    """The folders that are there of the store, of topics and of every worker, whatever the catalog says: it may have
    been cut.
    """
    for path in [directory / STORE, directory / TOPICS, *sorted(directory.glob("queues/worker-*"))]:
        if _is_folder(path):
            yield path


def _stamp(folder: Path, epoch: int) -> None:
    atomic_file.replace(folder / STAMP, b"%d\n" % epoch)


# ---- repair ---------------------------------------------------------------------------------------------------------


def repair(directory: Path, node_id: int, node_epoch: int, missing: Iterable[Missing]) -> list[str]:
    """Accept the loss: make what the next start needs, and write down what it cost; returns what was done.

    Raises DiskFull, SyncFailed, StoreError; then it can be repeated.
    """
    said = []
    for item in missing:
        with atomic_file.explained(f"cannot make {item.path}"):
            if item.older:
                said.append(_accept(item, node_epoch))
                continue
            # The report first: with the list the folder is not missed any more, and nobody would say what it cost.
            atomic_file.make_directories(item.path)
            lost = f"the folder {item.reason}, and was made again by `warren check --repair`: {item.cost} are lost"
            quarantine.note(item.path, quarantine.Entry(".", 0, 0, lost))
            if item.topics:
                _make_topics(TopicsFolder(item.path))
                _stamp(item.path, node_epoch)
            elif item.worker is None:
                FileRegister(item.path / FILES, node_id, SERVER_STORE_PERSISTENT).begin({}, [])
            else:
                _make_worker(Folder(item.path), node_id, item.worker)
        said.append(f"{item.path}: was missing or empty, and is made again: {item.cost} are lost")
    return said


def _make_topics(folder: TopicsFolder) -> None:
    """An empty log. What was derived from the one that is gone leads nowhere, and without its log nobody serves it."""
    data_files.unlink(folder.checkpoint, missing_ok=True)
    for derived in (folder.queues, folder.index):
        if derived.is_dir():
            data_files.remove_tree(derived)
    atomic_file.sync_directory(folder.path)
    atomic_file.make_directories(folder.log)


def _accept(item: Missing, node_epoch: int) -> str:
    """An older copy is what there is. What it says of deliveries is of then: without the mark of a clean stop all that
    is there counts as delivered before.
    """
    lost = "is lost, if it is one" if item.unsure else "is lost"
    said = f"the folder {item.reason}, and was accepted by `warren check --repair`: {item.cost} {lost}"
    quarantine.note(item.path, quarantine.Entry(".", 0, 0, said))
    if item.worker is not None:
        data_files.unlink(Folder(item.path).terms, missing_ok=True)
        atomic_file.sync_directory(item.path)
    _stamp(item.path, node_epoch)
    return f"{item.path}: {item.reason}; it is accepted as it is: {item.cost} {lost}"
