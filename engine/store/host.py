"""The store server's process around its C loop (`engine/store/store.h`): both stores, helper threads, mailbox, clients.

Invariants
  Whatever blocks (making and unlinking files, writing lists) runs on helper threads; their results are handed over in
  the loop, where long work (dropping the entries of a file) goes on in slices, one a round.
  A new incarnation is announced last of all (epoch): recovered, clients taken up, regions published.
"""

from __future__ import annotations

import errno
import functools
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import LimitError, StoreError, errno_of
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.paths import STORE_FOLDERS
from warren.engine.saying import counted, inert, quoted
from warren.engine.store import start_report
from warren.engine.store.collection import GarbageCollection
from warren.engine.store.folder import data_path
from warren.engine.store.message_store import ALARM_DISK, ALARM_SYNC_FAILED, MessageStore, say
from warren.ipc import mailbox
from warren.ipc.layout import CLIENT_SLOTS, CONSTANTS
from warren.ipc.region import Region, RegionError, sysv_attach
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING, SlotView, Superblock

STOP_TIMEOUT_S = 20.0
RUN_NS = 1_000_000_000


def called(view: SlotView) -> str:
    """A client, for a line of the log."""
    return quoted(view.name) if view.name else str(view.pid)


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
        self.spares_n = store.spares.__len__
        self.spares_useful = store.spares_useful
        self.drop_spares = store.drop_spares
        self._pool = pool

    def helper(self, work: Callable[[], None]) -> None:
        """Run on the thread that writes lists and removes files: a file's list is there before the file goes."""
        self._pool.ask(self._run, work)

    @staticmethod
    def _run(work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, StoreError) as error:
            say(str(error), WARNING)


class _Mail:
    """The mailbox of this process, read by a thread of its own: the loop sleeps on a futex and cannot wait for both."""

    def __init__(self, hand_over: Callable[..., None], read: Callable[[dict[str, Any]], None]) -> None:
        self._hand_over, self._read = hand_over, read
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._said = False
        self._mailbox = self._make()
        self._thread = threading.Thread(target=self._run, name="mail")
        self._thread.start()

    def _make(self) -> mailbox.Mailbox | None:
        try:
            return mailbox.Mailbox(Path(), "store")
        except OSError as error:
            if not self._said:
                self._said = True
                say(
                    f"cannot make the mailbox ({error}): no garbage is collected until there is one; trying again",
                    WARNING,
                )
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
        self.stores = [MessageStore(self.core, superblock, n, directory, settings) for n in STORE_FOLDERS]
        self._garbage: dict[int, GarbageCollection] = {}  #: of each store, from the start on
        self.clients: dict[int, tuple[SlotView, Region]] = {}
        self._unserved: set[int] = set()  #: claims of clients whose regions the system had no memory to attach
        self.stopping = False  #: set by a signal handler
        self._committers: list[threading.Thread] = []
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._makers = _Helper("make-file", self._hand_over)
        self._growers = _Helper("make-index", self._hand_over)
        #: lists are written and files removed by one thread: a file's list is there before the file is asked to go
        self._removers = _Helper("delete-file", self._hand_over)
        self._epochs = [superblock.server_get(n, "epoch") + 1 for n in STORE_FOLDERS]
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
        # A thread that the system refuses is a lack of the start, not of the first write.
        self._makers.ask(lambda: None)
        for store in self.stores:
            thread = threading.Thread(target=self._commit_run, args=(store.number,), name=f"commit-{store.number}")
            thread.start()
            self._committers.append(thread)
        self._scan_slots(starting=True)
        self.superblock.crash_point(CONSTANTS["CRASH_START_ATTACHED"])
        for store, epoch, report in zip(self.stores, self._epochs, reports, strict=True):
            garbage = self._garbage[store.number] = GarbageCollection(
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
                garbage.verify(report.next_file)
        for store, report in zip(self.stores, reports, strict=True):
            # Old files go when there is a current one; a store without any gets its first with the first write.
            store.file_wanted = bool(report.files)
        self.core.kick()
        self._mail = _Mail(self._hand_over, self._read)
        for store in self.stores:
            store.announce()
            self.superblock.server_set(store.number, "error", 0)
            self.superblock.server_set(store.number, "alarms", 0)
        for store, epoch in zip(self.stores, self._epochs, strict=True):
            self.superblock.server_set(store.number, "state", CONSTANTS["SERVER_READY"])
            self.superblock.server_set(store.number, "epoch", epoch)

    @staticmethod
    def _tell(store: MessageStore, report: start_report.Report, seconds: float) -> None:
        for line in report.damaged:
            say(line, ERROR)
        for path in report.foreign:
            say(f"{inert(str(path))} is not a file of this store; it is left alone", WARNING)
        if report.dropped:
            say(f"{counted(report.dropped, 'message')} dropped: the file is gone that held them", ERROR)
        if report.torn_bytes:
            say(f"a torn tail of at most {report.torn_bytes} bytes was cut: it was never confirmed", WARNING)
        if report.written_again:
            say(f"{counted(report.written_again, 'byte')} written again that may not have been synced")
        how = " after a clean stop" if report.clean else f" by reading {report.scanned} of them"
        files = counted(report.files, "file")
        say(f"{STORE_FOLDERS[store.number]} store: {files}, started{how if report.files else ''} in {seconds:.3f} s")

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
                store.file_wanted |= bool(self.core.look(store.number)["wants_next"])
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
                self._garbage[store.number].on_empty(self.core.take_gone(store.number))
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
            garbage = self._garbage[store.number]
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
        if store.short("images", short) and short:
            say(
                f"there is no memory for any image of the {STORE_FOLDERS[store.number]} store: writes wait for it",
                WARNING,
            )

    def _look_for_space(self, store: MessageStore) -> None:
        """A write to the log finds no space, and is tried again by itself: say so, once."""
        number = self.core.look(store.number)["no_space"]
        if number == store.no_space:
            return
        store.no_space = number
        if number:
            self.superblock.server_set(store.number, "file_error", number)
            why = os.strerror(number)
            say(f"{STORE_FOLDERS[store.number]} store: writes wait: the disk has no space for them: {why}", WARNING)
        elif not store.disk_full:
            say(f"{STORE_FOLDERS[store.number]} store: there is space again, writes go on")
        store.alarm(ALARM_DISK, bool(number) or store.disk_full)

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
                    if (
                        isinstance(number, int)
                        and number in STORE_FOLDERS
                        and isinstance(until, int)
                        and 0 < until < 1 << 64
                    ):
                        self.core.client_dying(number, slot, generation, until)
        elif isinstance(server, int) and server in STORE_FOLDERS:
            garbage = self._garbage[server]
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
                data_files.unlink(data_path(store.folder, made.file), missing_ok=True)
            except StoreError as failure:
                say(f"file {made.file} stays, and was never used: {failure}", WARNING)
            store.file_wanted = True
            self._block(
                store, f"file {made.file} has no row in the file summary ({error}): raise the setting summary_rows", 0
            )
            return
        look = self.core.look(store.number)
        store.made = {file for file in store.made if file >= look["file"]} | {made.file}
        # The current one may have been missing as well, and be almost full by now.
        store.file_wanted = bool(look["wants_next"])
        if store.disk_full:
            store.disk_full = False
            if not store.no_space:
                say(f"{STORE_FOLDERS[store.number]} store: there is space again, writes go on")
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
            say(f"{STORE_FOLDERS[store.number]} store: writes wait: {reason}", WARNING)
        store.alarm(ALARM_DISK, True)

    @staticmethod
    def _write_list(store: MessageStore, file_list: _core.FileList) -> None:
        """Helper thread: write the list of a rolled file; without it the file is read when it is needed."""
        try:
            store.write_list(file_list)
        except StoreError as error:
            say(str(error), ERROR)

    def _want_extent(self, store: MessageStore) -> None:
        """Have another extent of the index made; counted ids go to the hash part meanwhile."""
        store.extent_wanted = True  # until there is one: the core asks once
        if self.core.look(store.number)["wants_extent"] and not store.extent_coming:
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
        store.no_extent = False
        store.take_extent(region)

    @staticmethod
    def _no_extent(store: MessageStore, error: RegionError) -> None:
        """The hash part takes what it can, and says when that is too much. Tried again with the next timer."""
        store.extent_coming = False
        if store.no_extent:
            return
        store.no_extent = True
        say(f"the index of the {STORE_FOLDERS[store.number]} store cannot have another extent: {error}", WARNING)

    def _want_index(self, store: MessageStore) -> None:
        """Have a new index made when this one is tight; the old one goes on meanwhile."""
        look = self.core.look(store.number)
        store.index_wanted = True  # until there is one: the core asks once
        if not look["index_tight"]:  # messages went meanwhile
            store.short("index", False)
        elif not store.index_coming:
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
        store.short("index", False)
        self._growers.ask(store.drop_index, store.take_index(region, rows))

    def _no_index(self, store: MessageStore, error: RegionError | LimitError) -> None:
        """The old table goes on to its last row; then writes wait. Tried again with the next timer."""
        store.index_coming = False
        if store.short("index", True):
            say(f"the index of the {STORE_FOLDERS[store.number]} store cannot grow: {error}", WARNING)

    def _failed(self) -> None:
        for store in self.stores:
            number = self.core.look(store.number)["failed"]
            if number and not self.superblock.server_get(store.number, "error"):
                self.superblock.server_set(store.number, "error", number)
                store.alarm(ALARM_SYNC_FAILED, True)
                why = f"the disk failed ({errno.errorcode.get(number, number)}: {os.strerror(number)})"
                if number == errno.ESTALE:
                    why = "the file that was being written was removed or cut"
                say(
                    f"{STORE_FOLDERS[store.number]} store: {why}; nothing more is confirmed until the node is reopened",
                    ERROR,
                )

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
                    unserved.add(view.claim)  # the slot's next client waits for the next timer
                    continue
                known = None
            try:
                if known is None and not self._attach(view, starting):
                    continue
            except RegionError as error:  # what it submitted is there, and so is what workers submitted in its name
                if starting:
                    raise
                unserved.add(view.claim)
                if view.claim not in self._unserved:
                    say(
                        f"client {called(view)} in slot {view.slot} waits until there is memory: {error}",
                        WARNING,
                    )
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
                say(f"client {called(view)} in slot {view.slot} is not served: {error}", WARNING)
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
            say(f"client {called(view)} in slot {view.slot} is not served: {error}", WARNING)
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
            self._garbage[store.number].stop()
        deadline = time.monotonic() + timeout
        durable = False
        while not durable and time.monotonic() < deadline:
            self._handle(self.core.run(5_000_000))
            durable = self.core.all_durable() and not any(self._garbage[store.number].busy for store in self.stores)
        self._handle(self.core.run(0))  # publishes the last horizons
        self._finish_retiring()
        for pool in (self._makers, self._growers, self._removers):
            pool.shutdown(wait=True)
        while not self._done.empty():
            self._done.get()()
        self._end_committers()
        failed = any(self.core.look(store.number)["failed"] for store in self.stores)
        if durable and not failed:
            for store in self.stores:
                store.save()
        else:
            say("stopped without everything being durable; the next start reads all files", ERROR)
        return durable and not failed

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
        self._makers.shutdown(wait=True)
        self._growers.shutdown(wait=True)
        self._removers.shutdown(wait=True)
        self._end_committers()
        self._garbage.clear()
        del self.core
        for store in self.stores:
            del store.core  # the last of them lets go of all buffers
        for store in self.stores:
            store.close(unlink)
        for _view, region in self.clients.values():
            region.close()
        self.clients.clear()
