"""The message store's policy around the C loop (`engine/core/store.h`): regions, files, growth, start and stop.

    MessageStore   one store: its folder, its four regions, its files
    StoreHost      both stores in one process: the loop, the committers, the clients' regions

Invariants
  A file number is never used twice in a folder, also over restarts.
  Regions are new at every start; the old ones are retired and unlinked when the new ones are announced (epoch, last).
  Whatever blocks (making and unlinking files) runs on helper threads; their results are handed over in the loop.
Crash points
  anywhere: regions of a dead server are removed by the next one; files are recovered (`engine/recovery.py`).
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from warren.engine import _core, file_summary, index, recovery, segment
from warren.engine.config import Settings
from warren.engine.errors import LimitError, StoreError
from warren.engine.formats import FILE_STORE
from warren.ipc import names
from warren.ipc.layout import (
    CONSTANTS,
    PAGE_BYTES,
    SERVER_STORE_PERSISTENT,
    SERVER_STORE_TRANSIENT,
)
from warren.ipc.region import Region, RegionError, posix_create, posix_names, posix_open, posix_unlink, sysv_attach
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING, SlotView, Superblock

FOLDERS = {SERVER_STORE_PERSISTENT: "persistent", SERVER_STORE_TRANSIENT: "transient"}
WORKER_NAME = "queue-worker-"
STOP_TIMEOUT_S = 20.0
RUN_NS = 1_000_000_000

ALARM_MEMORY, ALARM_DISK = CONSTANTS["ALARM_MEMORY"], CONSTANTS["ALARM_DISK"]
ALARM_SYNC_FAILED = CONSTANTS["ALARM_SYNC_FAILED"]


def store_folder(directory: Path, server: int) -> Path:
    """The folder of a store's files: DIR/store/persistent, DIR/store/transient."""
    return directory / "store" / FOLDERS[server]


def say(text: str) -> None:
    """One line for people, into the server's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} store: {text}", file=sys.stderr, flush=True)


class MessageStore:
    """One store of a StoreHost."""

    def __init__(
        self, core: _core.StoreServer, superblock: Superblock, number: int, directory: Path, settings: Settings
    ) -> None:
        self.core = core
        self.superblock = superblock
        self.number = number
        self.folder = store_folder(directory, number)
        self.settings = settings
        self.node_id = superblock.node_id
        self.next_file = 0
        self.generation = 0
        self.index_generation = 0
        self.regions: dict[str, Region] = {}
        self.index_rows = 0
        self.file_wanted = False  #: the log asks for its next file
        self.file_coming = False  #: a helper thread makes it
        self.index_wanted = self.index_coming = False
        self.disk_full = False
        self.made: set[int] = set()  #: files offered to the log and perhaps not yet used

    # -- regions ------------------------------------------------------------------------------------------------

    def _name(self, what: str, generation: int) -> str:
        return names.region(self.node_id, what, self.number, generation)

    def _existing(self, what: str) -> list[int]:
        prefix = f"{names.node_prefix(self.node_id)}{what}-{self.number}-"
        return sorted(int(name[len(prefix) :]) for name in posix_names(prefix) if name[len(prefix) :].isdigit())

    def _make_regions(self, messages: int) -> None:
        """New regions under a generation that was never used, with an index for so many messages."""
        published = self.superblock.server_get(self.number, "generation")
        published_index = self.superblock.server_get(self.number, "index_generation")
        whats = ("images", "summary", "directory")
        self.generation = max([published, *(n for what in whats for n in self._existing(what))]) + 1
        self.index_generation = max([published_index, *self._existing("index")]) + 1
        for what in whats:  # of a server that died before it announced them
            for leftover in self._existing(what):
                if leftover != published:
                    posix_unlink(self._name(what, leftover))
        for leftover in self._existing("index"):
            if leftover != published_index:
                posix_unlink(self._name("index", leftover))
        get = self.superblock.get
        self.index_rows = index.rows_for(messages, self.settings.index_rows)
        sizes = {
            "images": PAGE_BYTES + get("images_n") * get("file_bytes"),
            "directory": get("directory_rows") * 8,
            "summary": file_summary.region_bytes(get("summary_rows")),
        }
        for what, size in sizes.items():
            self.regions[what] = posix_create(self._name(what, self.generation), size)
        self.regions["index"] = posix_create(
            self._name("index", self.index_generation), index.region_bytes(self.index_rows)
        )
        buffers = [self.regions[what].buffer for what in ("images", "directory", "summary", "index")]
        self.core.open(self.number, *buffers)

    def announce(self) -> None:
        """Publish the generations and remove the regions of the server before; its index is marked as replaced."""
        self.superblock.server_set(self.number, "generation", self.generation)
        self.superblock.server_set(self.number, "index_generation", self.index_generation)
        for generation in self._existing("index"):
            if generation != self.index_generation:
                self._retire(generation)
        for what in ("images", "summary", "directory"):
            for generation in self._existing(what):
                if generation != self.generation:
                    posix_unlink(self._name(what, generation))

    def _retire(self, generation: int) -> None:
        name = self._name("index", generation)
        try:
            old = posix_open(name)
        except RegionError:
            return
        index.retire(old.buffer)
        old.close()
        posix_unlink(name)

    def alarm(self, bit: int, on: bool) -> None:
        """Raise or clear an alarm of this store; the supervisor sums up those of all servers."""
        alarms = self.superblock.server_get(self.number, "alarms")
        self.superblock.server_set(self.number, "alarms", alarms | bit if on else alarms & ~bit)

    def make_index(self, rows_now: int, live: int) -> tuple[Region, int]:
        """A region for a larger or cleaned table, its pages touched; any thread. Raises RegionError, LimitError."""
        rows = index.rows_after(rows_now, live)
        if rows == rows_now and live > rows // 10 * 7:
            raise LimitError(f"the index of the store has reached its limit of {index.ROWS_MAX} rows")
        region = posix_create(self._name("index", self.index_generation + 1), index.region_bytes(rows))
        _core.populate(region.buffer)
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

    @staticmethod
    def drop_index(old: Region) -> None:
        """Unlink and unmap an index that was replaced. On any thread: freeing its pages takes long."""
        posix_unlink(old.name)
        old.close()

    # -- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> recovery.Report:
        """Make the regions and fill them from the folder. Raises StoreError and its kinds, RegionError, LimitError."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {self.folder}: {error}") from error
        if self.number == SERVER_STORE_TRANSIENT:
            report = self._wipe()
        else:
            starting = recovery.Recovery(
                self.core, self.number, self.folder, self.node_id, self._make_regions, self.grow_index
            )
            report = starting.run()
        self.next_file = report.next_file
        return report

    def _wipe(self) -> recovery.Report:
        """The transient store begins empty; its numbers go on, so that no reader takes a new file for an old one."""
        listing = segment.list_files(self.folder, recovery.SUFFIX)
        report = recovery.Report(next_file=max((number for number, _path in listing.files), default=-1) + 1)
        report.foreign = listing.foreign
        for path in [*(path for _number, path in listing.files), *listing.unfinished]:
            path.unlink(missing_ok=True)
        self._make_regions(0)
        self.core.finish(self.number)
        return report

    def save(self) -> None:
        """After the committer has ended: the snapshot, and last the clean mark. Raises StoreError."""
        if self.number == SERVER_STORE_TRANSIENT:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        rows = self.core.live_rows(self.number)
        files = [row for row in file_summary.files(self.regions["summary"].buffer) if not row.locked]
        unused = self.made - {row.file for row in files}
        for number in unused:  # made ahead, and never written to
            (self.folder / f"{number}{recovery.SUFFIX}").unlink(missing_ok=True)
        recovery.save(self.folder, self.node_id, self.number, self.next_file, rows, files)

    def close(self, unlink: bool) -> None:
        """Unmap the regions, after the core let go of them; `unlink`: the node ends."""
        for region in self.regions.values():
            region.close()
            if unlink:
                posix_unlink(region.name)
        self.regions.clear()

    # -- files --------------------------------------------------------------------------------------------------

    def make_file(self) -> segment.Created:
        """On a helper thread: the next file. Raises DiskFull, StoreError."""
        number = self.next_file
        path = self.folder / f"{number}{recovery.SUFFIX}"
        size = self.superblock.get("file_bytes")
        return segment.create(path, FILE_STORE, self.node_id, self.number, number, size)

    def unlink_files(self, files: list[int]) -> list[int]:
        """On a helper thread: delete empty files; returns those that are gone for good."""
        gone = []
        for number in files:
            try:
                (self.folder / f"{number}{recovery.SUFFIX}").unlink(missing_ok=True)
                gone.append(number)
            except OSError as error:
                say(f"cannot delete {self.folder}/{number}{recovery.SUFFIX}: {error}; it stays until the next start")
        segment.sync_directory(self.folder)
        return gone


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
        self.stopping = False  #: set by a signal handler
        self._committers: list[threading.Thread] = []
        self._makers = ThreadPoolExecutor(1, thread_name_prefix="make-file")
        self._growers = ThreadPoolExecutor(1, thread_name_prefix="make-index")
        self._removers = ThreadPoolExecutor(1, thread_name_prefix="delete-file")
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._epochs = [superblock.server_get(n, "epoch") + 1 for n in FOLDERS]
        self._drain = False

    # -- start --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover, take up every client, announce the new incarnation. Raises StoreError, RegionError, LimitError."""
        for store in self.stores:
            began = time.monotonic()
            report = store.start()
            self._tell(store, report, time.monotonic() - began)
        for store in self.stores:
            thread = threading.Thread(target=self.core.commit_run, args=(store.number,), name=f"commit-{store.number}")
            thread.start()
            self._committers.append(thread)
        self._scan_slots(starting=True)
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
            say(f"{report.dropped} messages of the snapshot had no file any more and were dropped")
        if report.torn_bytes:
            say(f"a torn tail of {report.torn_bytes} bytes was cut: it was never confirmed")
        if report.files:
            how = "from its snapshot" if report.clean else f"by reading {report.frames} records"
            say(f"{FOLDERS[store.number]} store: {report.files} files, started {how} in {seconds:.3f} s")

    # -- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run until the node drains, or `stopping` is set."""
        while not self.stopping:
            self._handle(self.core.run(RUN_NS))

    def _handle(self, events: int) -> None:
        if events & _core.EVENT_STOP:
            self.core.set_draining(True)  # seen; who decides when to stop is on_timer
            self.on_timer()
        if events & _core.EVENT_SLOTS:
            self._scan_slots(starting=False)
        if events & _core.EVENT_FILE:
            for store in self.stores:
                store.file_wanted = not self.core.look(store.number)["has_next"]
        if events & _core.EVENT_INDEX:
            for store in self.stores:
                self._want_index(store)
        if events & _core.EVENT_EMPTY:
            for store in self.stores:
                files = self.core.take_gone(store.number)
                if files:
                    self._removers.submit(self._remove, store, files)
        if events & _core.EVENT_FAILED:
            self._failed()
        while not self._done.empty():
            self._done.get()()
        for store in self.stores:
            if store.index_wanted and events & _core.EVENT_TIMER:
                self._want_index(store)
            if store.file_wanted and not store.file_coming and (not store.disk_full or events & _core.EVENT_TIMER):
                store.file_wanted, store.file_coming = False, True
                self._makers.submit(self._make, store)
        if events & _core.EVENT_TIMER:
            self._detach_gone()
            self.on_timer()

    def _hand_over(self, action: Callable[[], None]) -> None:
        self._done.put(action)
        self.core.kick()

    def _make(self, store: MessageStore) -> None:
        """Helper thread: make a file, then offer it in the loop."""
        try:
            made = store.make_file()
        except StoreError as error:
            failure = error
            self._hand_over(lambda: self._not_made(store, failure))
            return
        self._hand_over(lambda: self._offer(store, made))

    def _offer(self, store: MessageStore, made: segment.Created) -> None:
        store.file_coming = False
        store.next_file = made.file + 1
        try:
            self.core.offer(store.number, made.fd, made.file, made.salt, made.header)
        except OSError as error:
            os.close(made.fd)
            (store.folder / f"{made.file}{recovery.SUFFIX}").unlink(missing_ok=True)
            store.file_wanted = True
            self._block(
                store, f"file {made.file} has no row in the file summary ({error}): raise the setting summary_rows"
            )
            return
        look = self.core.look(store.number)
        store.made = {file for file in store.made if file >= look["file"]} | {made.file}
        # The current one may have been missing as well.
        store.file_wanted = not look["has_next"]
        if store.disk_full:
            store.disk_full = False
            say(f"{FOLDERS[store.number]} store: there is space again, writes go on")
            store.alarm(ALARM_DISK, False)

    def _not_made(self, store: MessageStore, error: StoreError) -> None:
        store.file_coming = False
        store.file_wanted = True
        self._block(store, str(error))

    def _block(self, store: MessageStore, reason: str) -> None:
        """Writes wait; the next try is at the next timer."""
        if not store.disk_full:
            store.disk_full = True
            say(f"{FOLDERS[store.number]} store: writes wait: {reason}")
        store.alarm(ALARM_DISK, True)

    def _remove(self, store: MessageStore, files: list[int]) -> None:
        """Helper thread: unlink files, then tell the loop."""
        try:
            gone = store.unlink_files(files)
        except StoreError as error:
            say(f"{error}")
            return

        def tell() -> None:
            for file in gone:
                self.core.file_gone(store.number, file)

        self._hand_over(tell)

    def _want_index(self, store: MessageStore) -> None:
        """Have a new index made when this one is tight; the old one goes on meanwhile."""
        look = self.core.look(store.number)
        store.index_wanted = index.tight(look["index_used"], look["index_rows"])
        if store.index_wanted and not store.index_coming:
            store.index_coming = True
            self._growers.submit(self._make_index, store, look["index_rows"], look["index_live"])

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
        self._growers.submit(store.drop_index, store.take_index(region, rows))

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
                say(
                    f"{FOLDERS[store.number]} store: the disk failed ({errno.errorcode.get(number, number)}: "
                    f"{os.strerror(number)}); nothing is confirmed any more until the node is reopened"
                )

    # -- clients ------------------------------------------------------------------------------------------------

    def _scan_slots(self, starting: bool) -> None:
        """Attach, close and detach as the slots say."""
        version = self.superblock.get("slots_version")
        for view in self.superblock.slots():
            if view.state not in (ACTIVE, LEAVING, DEAD):
                continue
            known = self.clients.get(view.slot)
            if known is not None and known[0].generation != view.generation:
                if not self._detach(view.slot):
                    continue  # at the next timer
                known = None
            if known is None and not self._attach(view, starting):
                continue
            if view.state != ACTIVE:
                self.core.close_slot(view.slot)
        self._detach_gone()
        self.core.slots_seen(version)

    def _attach(self, view: SlotView, starting: bool) -> bool:
        try:
            region = sysv_attach(view.shmid)
        except RegionError as error:
            if view.state == ACTIVE:
                say(f"client {view.name or view.pid} in slot {view.slot} is not served: {error}")
            else:  # a half-made client left nothing to execute
                for store in self.stores:
                    self.superblock.set_server_done(view.slot, store.number, view.generation)
            return False
        worker = view.name[len(WORKER_NAME) :] if view.name.startswith(WORKER_NAME) else ""
        holder = int(worker) if worker.isdigit() and int(worker) < CONSTANTS["WORKERS_MAX"] else -1
        try:
            self.core.attach(
                view.slot,
                view.generation,
                view.client_epoch,
                region.buffer,
                holder,
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
        """Execute and sync everything submitted, save, and end. False: not everything could be made durable."""
        for store in self.stores:
            self.superblock.server_set(store.number, "state", CONSTANTS["SERVER_STOPPING"])
        self.core.set_draining(True)
        deadline = time.monotonic() + timeout
        settled = False
        while not settled and time.monotonic() < deadline:
            self._handle(self.core.run(5_000_000))
            settled = self.core.settle()
        self._handle(self.core.run(0))  # publishes the last horizons
        self._makers.shutdown(wait=True)
        self._growers.shutdown(wait=True)
        self._removers.shutdown(wait=True)
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

    def _end_committers(self) -> None:
        for store in self.stores[: len(self._committers)]:
            self.core.stop(store.number)
        for thread in self._committers:
            thread.join()
        self._committers.clear()

    def close(self, unlink: bool = False) -> None:
        """Let go of everything. After stop(), or after a start that failed."""
        self._makers.shutdown(wait=True)
        self._growers.shutdown(wait=True)
        self._removers.shutdown(wait=True)
        self._end_committers()
        del self.core
        for store in self.stores:
            del store.core  # the last of them lets go of all buffers
        for store in self.stores:
            store.close(unlink)
        for _view, region in self.clients.values():
            region.close()
        self.clients.clear()
