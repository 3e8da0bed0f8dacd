"""The folder of a queue worker: names of its files, its subscriptions; which workers have something in theirs.

    queues/worker-<i>/journal/<n>.jnl    frames (warren.engine.kernel.formats), appended by the C engine
    queues/worker-<i>/transient/<n>.jnl  the same for transient messages; removed at every start
    queues/worker-<i>/transient/rows     their rows while they are not in memory (engine/queues/spill.h); the same
    queues/worker-<i>/segments/<n>.dat   <n>.jnl itself (a second link), or the few frames of it that were still alive
    queues/worker-<i>/segments/<queue>/<m>.idx   header page, then 16384 entries of 64 bytes, by sequence mod 16384
    queues/worker-<i>/segments/<queue>/terms   what a queue that was moved here brought along (engine/queues/moving.py)
    queues/worker-<i>/large/<id>         a message in a file of its own, made by its publisher (engine/kernel/large.h)
    queues/worker-<i>/subscriptions.json   whose claims a subscription holds, also after its deletion
    queues/worker-<i>/files              which of these files there are: the register (engine/kernel/file_register.py)
    queues/worker-<i>/terms              clean mark: who was delivered how often; removed before work starts

Invariants
  An .idx entry that validates names a frame in a .dat that was synced before it.
  A journal file goes only after the entries that it alone knows are in segments, synced, and after all older ones.
  An .idx entry is zeroed only for a message that is gone; the journal file with its ACK goes only after that is synced.
  A large message's file is durable before the PUBLISH frame that names it is made, and goes when its ACK is synced.
  `terms` counts only if it names the very end of the journal.
In the register
    journal/<n>.jnl          listed before its first byte is offered for appending
    segments/<n>.dat,
    segments/<queue>/<m>.idx listed when they are durable, and before the journal file that they replace goes
    segments/<queue>/terms   listed before the catalog names the queue here (a move)
    subscriptions.json       listed when it is there
  A journal file that is not the newest ends with its LAST frame, is full, or is listed as sealed with its end.
  An .idx has changed at least as often as the register says (its stamp), a .dat has at least as many bytes.
Crash points (tests kill at each): flush.linked, flush.dat, flush.dat-synced, flush.idx-new (a segment under its
unfinished name), flush.idx, flush.idx-synced, flush.forgotten (journal file still there), acks.zeroed, acks.synced,
recover.salvaged. After each the next start finds every message once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from warren.engine import _core
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import LISTED_DATA, LISTED_INDEX, LISTED_JOURNAL, LISTED_TERMS
from warren.engine.kernel.paths import WorkerFolder
from warren.engine.saying import undecoded
from warren.ipc import access

#: called with the name of a crash point; tests kill the process there
Reached = Callable[[str], None]


def nowhere(point: str) -> None:
    """The crash points of a process that is not being tested."""


NO_SUBSCRIPTIONS = "is missing: claims of subscriptions that were deleted cannot go back to their queue"


class Folder(WorkerFolder):
    """The directory of one queue worker, with all that is in it."""

    @property
    def spill(self) -> Path:
        return self.transient / "rows"

    @property
    def subscriptions(self) -> Path:
        return self.path / "subscriptions.json"

    @property
    def terms(self) -> Path:
        return self.path / "terms"

    @property
    def files(self) -> Path:
        return self.path / "files"

    def journal_file(self, file: int) -> Path:
        return self.journal / f"{file}.jnl"

    def transient_file(self, file: int) -> Path:
        return self.transient / f"{file}.jnl"

    def data_file(self, file: int) -> Path:
        return self.segments / f"{file}.dat"

    def index_file(self, queue: int, number: int) -> Path:
        return self.segments / str(queue) / f"{number}.idx"

    def queue_terms(self, queue: int) -> Path:
        return self.segments / str(queue) / "terms"

    def path_of(self, key: Key) -> Path:
        """Where a listed file has to be."""
        kind, queue, number = key
        if kind == LISTED_JOURNAL:
            return self.journal_file(number)
        if kind == LISTED_DATA:
            return self.data_file(number)
        if kind == LISTED_INDEX:
            return self.index_file(queue, number)
        return self.queue_terms(queue) if kind == LISTED_TERMS else self.subscriptions

    def make(self) -> None:
        """Make the directories and empty the transient one. Raises PermissionRefused, DiskFull, StoreError."""
        try:
            for path in (self.journal, self.transient, self.segments, self.large):
                if what := data_files.instead(path, folder=True):
                    raise StoreError(f"{path}: {what} lies here, where a folder belongs: put the folder in its place")
                atomic_file.make_directories(path, access.meeting_mode() if path == self.large else None)
            for entry in os.scandir(self.transient):
                data_files.unlink(entry.path)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot make the directories of {self.path}") from error


def open_pages(
    engine: _core.QueueEngine, folder: Folder, node_id: int, memory_bytes: int, *, spills: bool = True
) -> None:
    """Have rows paged out beyond memory_bytes. `spills`: those of transient messages, too. Raises OSError."""
    with contextlib.ExitStack() as opened:
        segments = data_files.open_folder(folder.segments)
        opened.callback(os.close, segments)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        spill = (
            data_files.open(folder.spill, flags, access.file_mode())
            if spills
            else os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        )
        opened.callback(os.close, spill)
        engine.open_pages(segments, spill, node_id, memory_bytes)
        opened.pop_all()


def read_subscriptions(folder: Folder) -> dict[int, int]:
    """Subscription queue → the queue whose claims it holds, also of subscriptions deleted since. Raises CorruptRecord,
    StoreError."""
    if what := data_files.instead(folder.subscriptions):
        raise CorruptRecord(folder.subscriptions, 0, "a map of queue ids", what)
    try:
        return msgspec.json.decode(data_files.read(folder.subscriptions), type=dict[int, int])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise CorruptRecord(folder.subscriptions, 0, "a map of queue ids", undecoded(error)) from error
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {folder.subscriptions}") from error


def write_subscriptions(folder: Folder, subscriptions: dict[int, int]) -> None:
    """Remember it durably. Raises DiskFull, SyncFailed, StoreError."""
    atomic_file.replace(folder.subscriptions, msgspec.json.encode(subscriptions) + b"\n")


def remove_queue(folder: Folder, queue: int, live: dict[tuple[int, int], int], files: FileRegister) -> None:
    """The segments of a deleted queue. Raises DiskFull, SyncFailed, StoreError; then it can be repeated."""
    own = folder.segments / str(queue)
    try:
        names = os.listdir(own)
    except FileNotFoundError:
        names = []
    numbers = [int(number) for name in names if (number := name.removesuffix(".idx")).isdigit()]
    files.note(gone=[(LISTED_TERMS, queue, 0), *((LISTED_INDEX, queue, number) for number in numbers)])
    for each in numbers:
        live.pop((queue, each), None)
    data_files.remove_tree(own, ignore_errors=True)


def give_names_back(folder: Folder, wrong: Mapping[Key, int], entries: Mapping[Key, Entry]) -> dict[Key, Key]:
    """Files that lie under each other's names get their own: `wrong` is the salt found under each name. Returns what
    was found where (right key → key it lay under). What has no other place stays where it is. Raises OSError."""
    owners = {(key[0], entry.salt): key for key, entry in entries.items() if entry.salt}
    moves = {key: owners[key[0], salt] for key, salt in wrong.items() if (key[0], salt) in owners}
    while stuck := [key for key, to in moves.items() if to not in moves and folder.path_of(to).exists()]:
        for key in stuck:  # what lies there has no other place
            del moves[key]
    between = {}
    for key, right in moves.items():
        path = folder.path_of(key)
        between[right] = path.with_name(path.name + ".swapped")
        data_files.rename(path, between[right])
    for right, path in between.items():
        data_files.rename(path, folder.path_of(right))
    for directory in {folder.path_of(key).parent for pair in moves.items() for key in pair}:
        segment.sync_directory(directory)
    return {right: key for key, right in moves.items()}


def workers_needed(directory: Path, wanted: int, used: Iterable[int], most: int) -> int:
    """How many workers a start needs: as many as are wanted, and those that still have something.

    `used`: workers of queues in the catalog; `most`: as many as there can be. A worker that did not stop in good order
    may have something in its journal that the store knows of, whatever the catalog says.
    """
    needed = max([wanted, *(worker + 1 for worker in used)])
    for worker in range(needed, most):
        folder = Folder.of(directory, worker)
        if folder.journal.exists() and not folder.terms.is_file():
            needed = worker + 1
    return needed
