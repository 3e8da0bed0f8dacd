"""The message store's policy around the C loop (`engine/store/store.h`): regions, files, growth, start and stop.

    MessageStore   one store: its folder, its regions, its files
    StoreHost      both stores in one process: the loop, the committers, the clients' regions

Invariants
  A file number is never used twice in a folder, also over restarts.
  Regions are new at every start; the old ones are retired and unlinked when the new ones are announced (epoch, last).
  Whatever blocks (making and unlinking files, writing lists) runs on helper threads; their results are handed over in
  the loop, where long work (dropping the entries of a file) goes on in slices, one a round.
Crash points
  anywhere: regions of a dead server are removed by the next one; files are recovered (`engine/store/recovery.py`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import queue
import re
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import posix_ipc

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import LimitError, StoreError, errno_of
from warren.engine.kernel import atomic_file, quarantine, segment
from warren.engine.kernel.file_register import Entry, FileRegister
from warren.engine.kernel.formats import FILE_STORE, KIND_MESSAGE
from warren.engine.saying import Voice
from warren.engine.store import collection, file_summary, index, recovery
from warren.engine.store.collection import GarbageCollection, Loss
from warren.ipc import _core as shared
from warren.ipc import mailbox, names
from warren.ipc.layout import (
    CLIENT_SLOTS,
    CONSTANTS,
    PAGE_BYTES,
    SERVER_STORE_PERSISTENT,
    SERVER_STORE_TRANSIENT,
    SUMMARY_ROW,
)
from warren.ipc.region import Region, RegionError, posix_create, posix_names, posix_open, posix_unlink, sysv_attach
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING, SlotView, Superblock

FOLDERS = {SERVER_STORE_PERSISTENT: "persistent", SERVER_STORE_TRANSIENT: "transient"}
STOP_TIMEOUT_S = 20.0
RUN_NS = 1_000_000_000

ALARM_MEMORY, ALARM_DISK = CONSTANTS["ALARM_MEMORY"], CONSTANTS["ALARM_DISK"]
ALARM_SYNC_FAILED = CONSTANTS["ALARM_SYNC_FAILED"]


def store_folder(directory: Path, server: int) -> Path:
    """The folder of a store's files: DIR/store/persistent, DIR/store/transient."""
    return directory / "store" / FOLDERS[server]


#: one line for people, into the server's log
say = Voice("store: ")


class MessageStore:
    """One store of a StoreHost."""

    def __init__(
        self, core: _core.StoreServer, superblock: Superblock, number: int, directory: Path, settings: Settings
    ) -> None:
        self.core = core
        self.superblock = superblock
        self.number = number
        self.folder = store_folder(directory, number)
        self.spares = segment.Spares(self.folder)
        self.settings = settings
        self.node_id = superblock.node_id
        self.shared_id = superblock.shared_id
        self.next_file = 0
        self.generation = 0
        self.index_generation = 0
        self.regions: dict[str, Region] = {}
        self.index_rows = 0
        self.file_wanted = False  #: the log asks for its next file
        self.file_coming = False  #: a helper thread makes it
        self.index_wanted = self.index_coming = False
        self.extents = 0
        self._ahead: dict[int, Future[Region]] = {}  #: extents that a start will want
        self.extent_wanted = self.extent_coming = False
        self.folder_fd = -1
        self.disk_full = False  #: there is no next file
        self.no_space = 0  #: errno of a write to the current one that found no space
        self.memory_short = False  #: the log has no memory for its images
        self.made: set[int] = set()  #: files offered to the log and perhaps not yet used
        self.garbage: GarbageCollection | None = None  #: from the start on
        self.listed: FileRegister | None = None  #: which files there are; the transient store has no such list

    # -- regions ------------------------------------------------------------------------------------------------

    def _name(self, what: str, generation: int) -> str:
        return names.region(self.shared_id, what, self.number, generation)

    def _existing(self, what: str) -> list[int]:
        prefix = f"{names.node_prefix(self.shared_id)}{what}-{self.number}-"
        return sorted(int(name[len(prefix) :]) for name in posix_names(prefix) if name[len(prefix) :].isdigit())

    def _make_regions(self, messages: int, extents: int = 0) -> None:
        """New regions under a generation that was never used, with an index for so many messages.

        `extents` of its dense part are made beside them, by a thread: a start will want them at once.
        """
        published = self.superblock.server_get(self.number, "generation")
        published_index = self.superblock.server_get(self.number, "index_generation")
        whats = ("images", "summary", "directory", "dense")
        self.generation = max([published, *(n for what in whats for n in self._existing(what))]) + 1
        self.index_generation = max([published_index, *self._existing("index")]) + 1
        for what in whats:  # of a server that died before it announced them
            for leftover in self._existing(what):
                if leftover != published:
                    posix_unlink(self._name(what, leftover))
        for leftover in self._existing("index"):
            if leftover != published_index:
                posix_unlink(self._name("index", leftover))
        for name, generation in self._existing_extents():
            if generation != published:
                posix_unlink(name)
        if extents:
            maker = ThreadPoolExecutor(1, thread_name_prefix="make-extent")
            for n in range(extents):
                self._ahead[n] = maker.submit(self._new_extent, n)
            maker.shutdown(wait=False)
        get = self.superblock.get
        self.index_rows = index.rows_for(messages, self.settings.index_rows)
        sizes = {
            "images": PAGE_BYTES + get("images_n") * get("file_bytes"),
            "directory": get("directory_rows") * 8,
            "summary": file_summary.region_bytes(get("summary_rows")),
            "dense": index.dense_bytes(get("dense_blocks")),
        }
        for what, size in sizes.items():
            # The log asks for the memory of its images itself, as it needs it.
            reserve = PAGE_BYTES if what == "images" else None
            self.regions[what] = posix_create(self._name(what, self.generation), size, reserve)
        self.regions["index"] = posix_create(
            self._name("index", self.index_generation), index.region_bytes(self.index_rows)
        )
        region = self.regions
        self.core.open(
            self.number,
            region["images"].buffer,
            region["directory"].buffer,
            region["summary"].buffer,
            region["index"].buffer,
            region["dense"].buffer,
        )
        self.folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.core.set_folder(self.number, self.folder_fd)

    def _existing_extents(self) -> list[tuple[str, int]]:
        """Names and generations of the extents of this store's index, whoever made them."""
        prefix = f"{names.node_prefix(self.shared_id)}dense"
        pattern = re.compile(rf"{re.escape(prefix)}[0-9]+-{self.number}-([0-9]+)", re.ASCII)
        matches = [(name, pattern.fullmatch(name)) for name in posix_names(prefix)]
        return [(name, int(match[1])) for name, match in matches if match is not None]

    def announce(self) -> None:
        """Publish the generations and remove the regions of the server before.

        Both parts of its index are marked as replaced first, so that no reader takes an old part and a new one for one.
        """
        old_index = [
            name for n in self._existing("index") if n != self.index_generation for name in [self._name("index", n)]
        ]
        old_dense = [name for n in self._existing("dense") if n != self.generation for name in [self._name("dense", n)]]
        for name in old_index + old_dense:
            self._retire(name)
        self.superblock.server_set(self.number, "generation", self.generation)
        self.superblock.server_set(self.number, "index_generation", self.index_generation)
        for name in old_index + old_dense:
            posix_unlink(name)
        for what in ("images", "summary", "directory"):
            for generation in self._existing(what):
                if generation != self.generation:
                    posix_unlink(self._name(what, generation))
        for name, generation in self._existing_extents():
            if generation != self.generation:
                posix_unlink(name)

    @staticmethod
    def _retire(name: str) -> None:
        try:
            old = posix_open(name, writable=True)
        except RegionError:
            return
        index.retire(old.buffer)
        old.close()

    def alarm(self, bit: int, on: bool) -> None:
        """Raise or clear an alarm of this store; the supervisor sums up those of all servers."""
        alarms = self.superblock.server_get(self.number, "alarms")
        self.superblock.server_set(self.number, "alarms", alarms | bit if on else alarms & ~bit)

    def make_index(self, rows_now: int, live: int) -> tuple[Region, int]:
        """A region for a larger or cleaned table, its pages touched; any thread. Raises RegionError, LimitError."""
        rows = index.rows_after(rows_now, live)
        if rows == rows_now and live > rows * index.FULL:
            raise LimitError(f"the index of the store has reached its limit of {index.ROWS_MAX} rows")
        region = posix_create(self._name("index", self.index_generation + 1), index.region_bytes(rows))
        _core.populate(region.buffer)
        self.superblock.crash_point(CONSTANTS["CRASH_INDEX_GROWING"])
        return region, rows

    def take_index(self, region: Region, rows: int) -> Region:
        """Go over to the index that was made; returns the old one, for drop_index."""
        self.core.replace_index(self.number, region.buffer)
        old, self.regions["index"] = self.regions["index"], region
        self.index_generation, self.index_rows = self.index_generation + 1, rows
        if self.superblock.server_get(self.number, "generation") == self.generation:
            self.superblock.server_set(self.number, "index_generation", self.index_generation)
        index.retire(old.buffer)
        return old

    def grow_index(self) -> None:
        """Make a new index and go over to it at once (recovery). Raises RegionError, LimitError."""
        look = self.core.look(self.number)
        self.drop_index(self.take_index(*self.make_index(look["index_rows"], look["index_live"])))

    def make_extent(self) -> Region:
        """The next extent of the index, its pages touched; any thread. Raises RegionError."""
        ahead = self._ahead.pop(self.extents, None)
        return ahead.result() if ahead is not None else self._new_extent(self.extents)

    def _new_extent(self, number: int) -> Region:
        region = posix_create(self._name(f"dense{number}", self.generation), index.EXTENT_BYTES)
        _core.populate(region.buffer)
        self.superblock.crash_point(CONSTANTS["CRASH_INDEX_EXTENT"])
        return region

    def take_extent(self, region: Region) -> None:
        """Give the index the extent that was made."""
        self.core.add_extent(self.number, region.buffer)
        self.regions[f"dense{self.extents}"] = region
        self.extents += 1

    def add_extent(self) -> None:
        """Make an extent and take it at once (recovery). Raises RegionError."""
        self.take_extent(self.make_extent())

    @staticmethod
    def drop_index(old: Region) -> None:
        """Unlink and unmap an index that was replaced. On any thread: freeing its pages takes long."""
        posix_unlink(old.name)
        old.close()

    # -- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> recovery.Report:
        """Make the regions and fill them from the folder. Raises StoreError and its kinds, RegionError, LimitError."""
        try:
            atomic_file.make_directories(self.folder)
            collection.remove_leftovers(self.folder)
        except OSError as error:
            raise StoreError(f"cannot make {self.folder}, or clean it: {error}") from error
        if self.number == SERVER_STORE_TRANSIENT:
            report = self._wipe()
        else:
            starting = recovery.Recovery(
                self.core,
                self.number,
                self.folder,
                self.node_id,
                self._make_regions,
                self.grow_index,
                self.add_extent,
                self.superblock,
                say,
            )
            report = starting.run()
            self.listed = starting.files
            unknown = self.superblock.server_get(self.number, "lost_unknown_n") + report.unknown
            self.superblock.server_set(self.number, "lost_unknown_n", unknown)
        self.next_file = report.next_file
        return report

    def _wipe(self) -> recovery.Report:
        """The transient store begins empty; its numbers go on, so that no reader takes a new file for an old one."""
        listing = segment.list_files(self.folder, recovery.SUFFIX)
        report = recovery.Report(next_file=max((number for number, _path in listing.files), default=-1) + 1)
        lists = segment.list_files(self.folder, recovery.LIST_SUFFIX)
        theirs = {path for _number, path in lists.files} | set(lists.unfinished)
        report.foreign = [path for path in listing.foreign if path not in theirs]
        for path in [*(path for _number, path in listing.files), *listing.unfinished, *theirs]:
            path.unlink(missing_ok=True)
        self._make_regions(0)
        self.core.finish(self.number)
        return report

    def save(self) -> None:
        """After the committer has ended: the lists that are missing, and last the clean mark. Raises StoreError."""
        if self.number == SERVER_STORE_TRANSIENT:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        while (rolled := self.core.take_list(self.number)) is not None:
            self.write_list(rolled)
        current = self.core.current_list(self.number)
        if current is not None:
            # Behind its frames may lie what the blocks held before; its list may go before it does.
            segment.end_file(self.folder / f"{current.file}{recovery.SUFFIX}", current.used, current.salt)
            self.write_list(current)
        self.superblock.crash_point(CONSTANTS["CRASH_STOP_LISTS"])
        files = [row.file for row in file_summary.files(self.regions["summary"].buffer)]
        unused = self.made - set(files)  # made ahead, and never written to
        self.forget(unused)
        for number in unused:
            (self.folder / f"{number}{recovery.SUFFIX}").unlink(missing_ok=True)
        missing = [n for n in files if not recovery.list_path(self.folder, n).exists()]
        if missing:
            say(f"{self.folder}: files {missing} have no list; the next start reads them")
            return
        recovery.save_clean(self.folder, self.node_id, self.number, self.next_file, files)
        self.superblock.crash_point(CONSTANTS["CRASH_STOP_MARKED"])

    def close(self, unlink: bool) -> None:
        """Unmap the regions, after the core let go of them; `unlink`: the node ends."""
        for number, ahead in self._ahead.items():
            with contextlib.suppress(RegionError):
                self.regions[f"dense{number}"] = ahead.result()
        self._ahead.clear()
        for region in self.regions.values():
            region.close()
            if unlink:
                posix_unlink(region.name)
        self.regions.clear()
        if self.folder_fd >= 0:
            os.close(self.folder_fd)
            self.folder_fd = -1

    # -- files --------------------------------------------------------------------------------------------------

    def take_number(self) -> int:
        """A number for a file, whose row of the summary is free. In the loop thread."""
        summary, rows = self.regions["summary"].buffer, self.superblock.get("summary_rows")
        coming = {number % rows for number in self.made}
        for number in range(self.next_file, self.next_file + rows):
            row = number % rows
            if row not in coming and not shared.load64(summary, row * SUMMARY_ROW.size):
                break
        else:
            number = self.next_file  # none is free: who wants to use it is told so
        self.next_file = number + 1
        return number

    def give_back(self, number: int) -> None:
        """The file with this number was not made; the number is free again if nothing has its name."""
        if self.next_file == number + 1 and not os.path.lexists(self.folder / f"{number}{recovery.SUFFIX}"):
            self.next_file = number

    def make_file(self, number: int) -> segment.Created:
        """On a helper thread: the next file. Raises DiskFull, StoreError."""
        path = self.folder / f"{number}{recovery.SUFFIX}"
        size = self.superblock.get("file_bytes")
        made = segment.create(
            path,
            FILE_STORE,
            self.node_id,
            self.number,
            number,
            size,
            spares=self.spares,
            passed=self.superblock.crash_point,
        )
        try:
            self.remember(number, made.salt, size)
        except StoreError:
            os.close(made.fd)
            with contextlib.suppress(OSError):  # the first error counts
                path.unlink(missing_ok=True)
            raise
        self.superblock.crash_point(CONSTANTS["CRASH_FILE_MADE"])
        return made

    def remember(self, number: int, salt: int, size: int) -> None:
        """On a helper thread: a file is there for good; from now on it is missed. Raises StoreError."""
        if self.listed is not None:
            self.listed.note({recovery.key_of(number): Entry(salt, size)})

    def forget(self, numbers: Iterable[int]) -> None:
        """On a helper thread: files are about to go. Raises StoreError; then they must stay."""
        if self.listed is not None:
            self.listed.note(gone=[recovery.key_of(number) for number in numbers])

    def write_list(self, file_list: _core.FileList) -> None:
        """Any thread: write the list of a file. Raises StoreError."""
        recovery.write_list(self.folder, self.node_id, self.number, file_list)
        self.superblock.crash_point(CONSTANTS["CRASH_LIST_WRITTEN"])

    def files(self) -> list[file_summary.FileRow]:
        """The file summary as it is now."""
        return list(file_summary.files(self.regions["summary"].buffer))

    def discard(self, path: Path) -> None:
        """On a helper thread: a file that goes becomes a spare, while there are few. Raises StoreError."""
        most = 0 if self.disk_full or self.superblock.get("alarms") & ALARM_DISK else self.settings.spare_files
        segment.recycle(path, self.superblock.get("file_bytes"), self.spares, most)

    def quarantine(self, path: Path, losses: list[Loss]) -> None:
        """On a helper thread: a damaged file that was collected is kept for people. Raises StoreError."""
        for loss in losses:
            entry = quarantine.Entry(path.name, loss.offset, loss.offset + loss.total, loss.reason)
            entry.messages, entry.bytes = int(loss.kind == KIND_MESSAGE), loss.total
            quarantine.note(self.folder, entry)
        lost = sum(loss.kind == KIND_MESSAGE for loss in losses)
        if quarantine.move(self.folder, path, "damaged records found by a collection", lost) is None:
            raise StoreError(f"{path} cannot be moved to {self.folder / segment.QUARANTINE}")


class _Helper(ThreadPoolExecutor):
    """One thread. What it raises and nobody expected the loop raises: a store that waits for it for ever must end."""

    def __init__(self, name: str, hand_over: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._hand_over = hand_over

    def ask(self, work: Callable[..., None], *values: Any) -> None:
        """Run `work(*values)` on the thread, after what was asked before."""
        self.submit(self._run, work, values)

    def _run(self, work: Callable[..., None], values: tuple[Any, ...]) -> None:
        try:
            work(*values)
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            failure = error

            def fail() -> None:
                raise failure

            self._hand_over(fail)


class _Around:
    """What a StoreHost lends to the garbage collection of one of its stores (collection.Surroundings)."""

    def __init__(self, store: MessageStore, pool: _Helper, hand_over: Callable[..., None]) -> None:
        self.hand_over = hand_over
        self.take_number = store.take_number
        self.files = store.files
        self.remember = store.remember
        self.forget = store.forget
        self.discard = store.discard
        self.quarantine = store.quarantine
        self._pool = pool

    def helper(self, work: Callable[[], None]) -> None:
        """Run on the thread that writes lists and removes files: a file's list is there before the file goes."""
        self._pool.ask(self._run, work)

    @staticmethod
    def _run(work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, StoreError) as error:
            say(str(error))


class _Mail:
    """The mailbox of this process, read by a thread of its own: the loop sleeps on a futex and cannot wait for both."""

    def __init__(self, shared_id: int, hand_over: Callable[..., None], read: Callable[[dict[str, Any]], None]) -> None:
        self._hand_over, self._read = hand_over, read
        self._name = names.mailbox(shared_id, "store")
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._said = False
        self._mailbox = self._make()
        self._thread = threading.Thread(target=self._run, name="mail")
        self._thread.start()

    def _make(self) -> mailbox.Mailbox | None:
        try:
            return mailbox.Mailbox(self._name, create=True, bytes_max=1024)
        except (posix_ipc.Error, OSError) as error:
            if not self._said:
                self._said = True
                say(f"no mailbox ({error}): until there is one no garbage is collected; it is tried again")
            return None

    def _run(self) -> None:
        while True:
            watched = [self._stop_read] if self._mailbox is None else [self._mailbox.fileno(), self._stop_read]
            ready, _, _ = select.select(watched, [], [], 1.0 if self._mailbox is None else None)
            if self._stop_read in ready:
                return
            if self._mailbox is None:
                self._mailbox = self._make()
            while self._mailbox is not None and (message := self._mailbox.receive()) is not None:
                self._hand_over(functools.partial(self._read, message))

    def stop(self) -> None:
        """End the thread. May be called again."""
        if self._stop_write < 0:
            return
        os.close(self._stop_write)  # its other end becomes readable
        self._stop_write = -1
        self._thread.join()
        if self._mailbox is not None:
            self._mailbox.close()
        os.close(self._stop_read)


class StoreHost:
    """Both stores, their loop and their clients."""

    def __init__(
        self, superblock: Superblock, directory: Path, settings: Settings, on_timer: Callable[[], None] = lambda: None
    ) -> None:
        self.superblock = superblock
        self.on_timer = on_timer
        self.core = _core.StoreServer(
            superblock.buffer, settings.commit_bytes, settings.sync_tick_ms * 1_000_000, settings.spin_us * 1000
        )
        self.stores = [MessageStore(self.core, superblock, n, directory, settings) for n in FOLDERS]
        self.clients: dict[int, tuple[SlotView, Region]] = {}
        self._unserved: set[int] = set()  #: claims of clients whose regions the system had no memory to attach
        self.stopping = False  #: set by a signal handler
        self._committers: list[threading.Thread] = []
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._makers = _Helper("make-file", self._hand_over)
        self._growers = _Helper("make-index", self._hand_over)
        #: lists are written and files removed by one thread: a file's list is there before the file is asked to go
        self._removers = _Helper("delete-file", self._hand_over)
        self._epochs = [superblock.server_get(n, "epoch") + 1 for n in FOLDERS]
        self._drain = False
        self._mail: _Mail | None = None

    # -- start --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover, take up every client, announce the new incarnation. Raises StoreError, RegionError, LimitError."""
        reports = []
        for store, epoch in zip(self.stores, self._epochs, strict=True):
            # From now on files go that the index of the one before leads into: its readers wait for this one.
            self.superblock.server_set(store.number, "begun", epoch)
        for store in self.stores:
            began = time.monotonic()
            report = store.start()
            reports.append(report)
            self._tell(store, report, time.monotonic() - began)
            for found in report.lists:
                self._removers.ask(self._write_list, store, found)
        for store in self.stores:
            thread = threading.Thread(target=self._commit_run, args=(store.number,), name=f"commit-{store.number}")
            thread.start()
            self._committers.append(thread)
        self._scan_slots(starting=True)
        self.superblock.crash_point(CONSTANTS["CRASH_START_ATTACHED"])
        for store, epoch, report in zip(self.stores, self._epochs, reports, strict=True):
            store.garbage = GarbageCollection(
                self.core,
                self.superblock,
                store.number,
                store.folder,
                self.superblock.get("file_bytes"),
                store.settings.garbage_fraction,
                epoch,
                _Around(store, self._removers, self._hand_over),
                say,
            )
            if report.files and not report.clean:
                store.garbage.verify(report.next_file)
        self._mail = _Mail(self.superblock.shared_id, self._hand_over, self._read)
        for store in self.stores:
            store.announce()
            self.superblock.server_set(store.number, "error", 0)
            self.superblock.server_set(store.number, "alarms", 0)
        for store, epoch in zip(self.stores, self._epochs, strict=True):
            self.superblock.server_set(store.number, "state", CONSTANTS["SERVER_READY"])
            self.superblock.server_set(store.number, "epoch", epoch)

    @staticmethod
    def _tell(store: MessageStore, report: recovery.Report, seconds: float) -> None:
        for line in report.damaged:
            say(line)
        for path in report.foreign:
            say(f"{path} is not a file of this store; it is left alone")
        if report.dropped:
            say(f"{report.dropped} messages had no file any more and were dropped")
        if report.torn_bytes:
            say(f"a torn tail of at most {report.torn_bytes} bytes was cut: it was never confirmed")
        if report.files:
            how = "after a clean stop" if report.clean else f"by reading {report.scanned} of them"
            say(f"{FOLDERS[store.number]} store: {report.files} files, started {how} in {seconds:.3f} s")

    # -- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run until the node drains, or `stopping` is set."""
        while not self.stopping:
            self._handle(self.core.run(RUN_NS))

    def _handle(self, events: int) -> None:
        if events & _core.STORE_EVENT_STOP:
            self.core.set_draining(True)  # seen; who decides when to stop is on_timer
            self.on_timer()
        if events & _core.STORE_EVENT_SLOTS:
            self._scan_slots(starting=False)
        if events & _core.STORE_EVENT_FILE:
            for store in self.stores:
                store.file_wanted = not self.core.look(store.number)["has_next"]
        if events & _core.STORE_EVENT_INDEX:
            for store in self.stores:
                self._want_index(store)
        if events & _core.STORE_EVENT_EXTENT:
            for store in self.stores:
                self._want_extent(store)
        if events & _core.STORE_EVENT_LIST:
            for store in self.stores:
                while (rolled := self.core.take_list(store.number)) is not None:
                    self._removers.ask(self._write_list, store, rolled)
        if events & _core.STORE_EVENT_EMPTY:
            for store in self.stores:
                self._garbage(store).on_empty(self.core.take_gone(store.number))
        if events & _core.STORE_EVENT_FAILED:
            self._failed()
        for _ in range(self._done.qsize()):  # what these put there waits for the next round
            self._done.get()()
        for store in self.stores:
            if store.extent_wanted and events & _core.STORE_EVENT_TIMER:
                self._want_extent(store)
            if store.index_wanted and events & _core.STORE_EVENT_TIMER:
                self._want_index(store)
            if (
                store.file_wanted
                and not store.file_coming
                and (not store.disk_full or events & _core.STORE_EVENT_TIMER)
            ):
                store.file_wanted, store.file_coming = False, True
                self._makers.ask(self._make, store, store.take_number())
            garbage = self._garbage(store)
            if events & _core.STORE_EVENT_TIMER:
                garbage.on_timer()
                self._look_for_memory(store)
                self._look_for_space(store)
            if garbage.go_on():
                self.core.kick()  # the next slice, after a round
        if events & _core.STORE_EVENT_TIMER:
            if self._unserved:
                self._scan_slots(starting=False)
            self._detach_gone()
            self.on_timer()

    def _look_for_memory(self, store: MessageStore) -> None:
        """The log waits for memory for its images: say so, once."""
        short = bool(self.core.look(store.number)["no_memory"])
        if short != store.memory_short:
            store.memory_short = short
            store.alarm(ALARM_MEMORY, short)
            if short:
                say(f"there is no memory for the images of the {FOLDERS[store.number]} store: writes wait for it")

    def _look_for_space(self, store: MessageStore) -> None:
        """A write to the log finds no space, and is tried again by itself: say so, once."""
        number = self.core.look(store.number)["no_space"]
        if number == store.no_space:
            return
        store.no_space = number
        if number:
            self.superblock.server_set(store.number, "file_error", number)
            say(f"{FOLDERS[store.number]} store: writes wait: the disk has no space for them: {os.strerror(number)}")
        elif not store.disk_full:
            say(f"{FOLDERS[store.number]} store: there is space again, writes go on")
        store.alarm(ALARM_DISK, bool(number) or store.disk_full)

    @staticmethod
    def _garbage(store: MessageStore) -> GarbageCollection:
        assert store.garbage is not None
        return store.garbage

    def _hand_over(self, action: Callable[[], None]) -> None:
        self._done.put(action)
        self.core.kick()

    def _read(self, message: dict[str, Any]) -> None:
        """A message to this process; in the loop. Whoever sends nonsense is not answered."""
        kind, server = message["kind"], message.get("server")
        if kind == "client_dying":
            slot, generation = message.get("slot"), message.get("generation")
            if isinstance(slot, int) and isinstance(generation, int) and 0 <= slot < CLIENT_SLOTS:
                known = self.clients.get(slot)
                if known is not None and known[0].generation == generation:
                    number, until = message.get("store"), message.get("until")
                    if isinstance(number, int) and number in FOLDERS and isinstance(until, int) and 0 < until < 1 << 64:
                        self.core.client_dying(number, slot, generation, until)
        elif isinstance(server, int) and server in FOLDERS:
            garbage = self._garbage(self.stores[server])
            answers = {"collected": garbage.on_answer, "damage": garbage.on_damage, "verified": garbage.on_verified}
            if kind in answers:
                answers[kind](message)

    def _make(self, store: MessageStore, number: int) -> None:
        """Helper thread: make a file, then offer it in the loop."""
        try:
            made = store.make_file(number)
        except StoreError as error:
            failure = error
            self._hand_over(lambda: self._not_made(store, number, failure))
            return
        self._hand_over(lambda: self._offer(store, made))

    def _offer(self, store: MessageStore, made: segment.Created) -> None:
        store.file_coming = False
        try:
            self.core.offer(store.number, made.fd, made.file, made.salt, made.header)
        except OSError as error:
            os.close(made.fd)
            try:
                store.forget([made.file])
                (store.folder / f"{made.file}{recovery.SUFFIX}").unlink(missing_ok=True)
            except StoreError as failure:
                say(f"file {made.file} stays, and was never used: {failure}")
            store.file_wanted = True
            self._block(
                store, f"file {made.file} has no row in the file summary ({error}): raise the setting summary_rows", 0
            )
            return
        look = self.core.look(store.number)
        store.made = {file for file in store.made if file >= look["file"]} | {made.file}
        # The current one may have been missing as well.
        store.file_wanted = not look["has_next"]
        if store.disk_full:
            store.disk_full = False
            if not store.no_space:
                say(f"{FOLDERS[store.number]} store: there is space again, writes go on")
                store.alarm(ALARM_DISK, False)

    def _not_made(self, store: MessageStore, number: int, error: StoreError) -> None:
        store.give_back(number)
        store.file_coming = False
        store.file_wanted = True
        self._block(store, str(error), errno_of(error))

    def _block(self, store: MessageStore, reason: str, number: int) -> None:
        """Writes wait; the next try is at the next timer. `number`: the errno, 0: it is something else."""
        self.superblock.server_set(store.number, "file_error", number)
        if not store.disk_full:
            store.disk_full = True
            say(f"{FOLDERS[store.number]} store: writes wait: {reason}")
        store.alarm(ALARM_DISK, True)

    @staticmethod
    def _write_list(store: MessageStore, file_list: _core.FileList) -> None:
        """Helper thread: write the list of a rolled file; without it the file is read when it is needed."""
        try:
            store.write_list(file_list)
        except StoreError as error:
            say(str(error))

    def _want_extent(self, store: MessageStore) -> None:
        """Have another extent of the index made; counted ids go to the hash part meanwhile."""
        store.extent_wanted = bool(self.core.look(store.number)["wants_extent"])
        if store.extent_wanted and not store.extent_coming:
            store.extent_coming = True
            self._growers.ask(self._make_extent, store)

    def _make_extent(self, store: MessageStore) -> None:
        """Helper thread: make an extent, then give it to the index in the loop."""
        try:
            region = store.make_extent()
        except RegionError as error:
            failure = error
            self._hand_over(lambda: self._no_extent(store, failure))
            return
        self._hand_over(lambda: self._take_extent(store, region))

    @staticmethod
    def _take_extent(store: MessageStore, region: Region) -> None:
        store.extent_coming = store.extent_wanted = False
        store.alarm(ALARM_MEMORY, False)
        store.take_extent(region)

    @staticmethod
    def _no_extent(store: MessageStore, error: RegionError) -> None:
        """The hash part takes what it can. Tried again with the next timer."""
        store.extent_coming = False
        store.alarm(ALARM_MEMORY, True)
        say(f"the index of the {FOLDERS[store.number]} store cannot have another extent: {error}")

    def _want_index(self, store: MessageStore) -> None:
        """Have a new index made when this one is tight; the old one goes on meanwhile."""
        look = self.core.look(store.number)
        store.index_wanted = bool(look["index_tight"])
        if store.index_wanted and not store.index_coming:
            store.index_coming = True
            self._growers.ask(self._make_index, store, look["index_rows"], look["index_live"])

    def _make_index(self, store: MessageStore, rows_now: int, live: int) -> None:
        """Helper thread: make a table, then go over to it in the loop."""
        try:
            region, rows = store.make_index(rows_now, live)
        except (RegionError, LimitError) as error:
            failure = error
            self._hand_over(lambda: self._no_index(store, failure))
            return
        self._hand_over(lambda: self._take_index(store, region, rows))

    def _take_index(self, store: MessageStore, region: Region, rows: int) -> None:
        store.index_coming = store.index_wanted = False
        store.alarm(ALARM_MEMORY, False)
        self._growers.ask(store.drop_index, store.take_index(region, rows))

    def _no_index(self, store: MessageStore, error: RegionError | LimitError) -> None:
        """The old table goes on to its last row; then writes wait. Tried again with the next timer."""
        store.index_coming = False
        store.alarm(ALARM_MEMORY, True)
        say(f"the index of the {FOLDERS[store.number]} store cannot grow: {error}")

    def _failed(self) -> None:
        for store in self.stores:
            number = self.core.look(store.number)["failed"]
            if number and not self.superblock.server_get(store.number, "error"):
                self.superblock.server_set(store.number, "error", number)
                store.alarm(ALARM_SYNC_FAILED, True)
                why = f"the disk failed ({errno.errorcode.get(number, number)}: {os.strerror(number)})"
                if number == errno.ESTALE:
                    why = "somebody removed or cut the file that was being written"
                say(f"{FOLDERS[store.number]} store: {why}; nothing is confirmed any more until the node is reopened")

    # -- clients ------------------------------------------------------------------------------------------------

    def _scan_slots(self, starting: bool) -> None:
        """Attach, close and detach as the slots say."""
        version = self.superblock.get("slots_version")
        unserved: set[int] = set()
        for view in self.superblock.slots():
            if view.state not in (ACTIVE, LEAVING, DEAD):
                continue
            known = self.clients.get(view.slot)
            if known is not None and known[0].generation != view.generation:
                if not self._detach(view.slot):
                    continue  # at the next timer
                known = None
            try:
                if known is None and not self._attach(view, starting):
                    continue
            except RegionError as error:  # what it submitted is there, and so is what workers submitted in its name
                if starting:
                    raise
                unserved.add(view.claim)
                if view.claim not in self._unserved:
                    say(f"client {view.name or view.pid} in slot {view.slot} waits until there is memory: {error}")
                continue
            if view.state != ACTIVE:
                self.core.close_slot(view.slot)
        self._detach_gone()
        self._unserved = unserved
        self.core.set_unserved(bool(unserved))
        self.core.slots_seen(version)

    def _attach(self, view: SlotView, starting: bool) -> bool:
        """Serve a client; False: nothing of it can be served. Raises RegionError when the system has no memory now."""
        try:
            region = sysv_attach(view.shmid)
        except RegionError as error:
            if atomic_file.is_limit(error):
                raise
            if view.state == ACTIVE:
                say(f"client {view.name or view.pid} in slot {view.slot} is not served: {error}")
            else:  # a half-made client left nothing to execute
                for store in self.stores:
                    self.superblock.set_server_done(view.slot, store.number, view.generation)
            return False
        try:
            self.core.attach(
                view.slot,
                view.generation,
                view.client_epoch,
                region.buffer,
                self.superblock.worker_of(view.slot),
                self._epochs[0],
                self._epochs[1],
                starting,
            )
        except OSError as error:
            region.close()
            say(f"client {view.name or view.pid} in slot {view.slot} is not served: {error}")
            for store in self.stores:
                self.superblock.set_server_done(view.slot, store.number, view.generation)
            return False
        self.clients[view.slot] = (view, region)
        return True

    def _detach(self, slot: int) -> bool:
        if not self.core.detach(slot):
            return False
        _view, region = self.clients.pop(slot)
        region.close()
        return True

    def _detach_gone(self) -> None:
        """Let go of regions whose slot is free or has another owner."""
        for slot, (known, _region) in list(self.clients.items()):
            view = self.superblock.slot(slot)
            if view.generation != known.generation or view.state not in (ACTIVE, LEAVING, DEAD):
                self.core.close_slot(slot)
                self._detach(slot)

    # -- stop ---------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> bool:
        """Execute and sync everything submitted until now, save, and end. False: not everything could be made durable.

        What clients submit meanwhile stays in their rings, for the next server.
        """
        for store in self.stores:
            self.superblock.server_set(store.number, "state", CONSTANTS["SERVER_STOPPING"])
        self.core.set_draining(True)
        self._scan_slots(starting=False)  # who came since the last look has submitted, too
        self.core.freeze()
        if self._mail is not None:
            self._mail.stop()
        for store in self.stores:
            self._garbage(store).stop()
        deadline = time.monotonic() + timeout
        settled = False
        while not settled and time.monotonic() < deadline:
            self._handle(self.core.run(5_000_000))
            settled = self.core.settle() and not any(self._garbage(store).busy for store in self.stores)
        self._handle(self.core.run(0))  # publishes the last horizons
        self._finish_retiring()
        for pool in (self._makers, self._growers, self._removers):
            pool.shutdown(wait=True)
        while not self._done.empty():
            self._done.get()()
        self._end_committers()
        failed = any(self.core.look(store.number)["failed"] for store in self.stores)
        if settled and not failed:
            for store in self.stores:
                store.save()
        else:
            say("stopped without everything being durable; the next start reads all files")
        return settled and not failed

    def _finish_retiring(self) -> None:
        """What has begun to go, goes: a file half gone would be read by the next start."""
        while True:
            for pool in (self._makers, self._growers, self._removers):
                pool.submit(lambda: None).result()
            if self._done.empty():
                return
            while not self._done.empty():
                self._done.get()()

    def _commit_run(self, number: int) -> None:
        """A thread that could not start keeps its target: were that the core's, the regions could not be let go of."""
        self.core.commit_run(number)

    def _end_committers(self) -> None:
        for store in self.stores[: len(self._committers)]:
            self.core.stop(store.number)
        for thread in self._committers:
            thread.join()
        self._committers.clear()

    def close(self, unlink: bool = False) -> None:
        """Let go of everything. After stop(), or after a start that failed."""
        if self._mail is not None:
            self._mail.stop()
            if unlink:
                mailbox.unlink(names.mailbox(self.superblock.shared_id, "store"))
        self._makers.shutdown(wait=True)
        self._growers.shutdown(wait=True)
        self._removers.shutdown(wait=True)
        self._end_committers()
        del self.core
        for store in self.stores:
            store.garbage = None
            del store.core  # the last of them lets go of all buffers
        for store in self.stores:
            store.close(unlink)
        for _view, region in self.clients.values():
            region.close()
        self.clients.clear()
