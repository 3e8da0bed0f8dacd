"""A queue worker's policy around its C engine: files, catalog, clients. The hot loop is C (engine/queues/queue.h).

One thread serves (`serve`, which alternates between the C loop and the events it returns). Two helpers do slow things
with the disk (engine/queues/helpers.py); control requests are answered by engine/queues/control.py.

Invariants
  A client's region is detached only when the engine has finished it; then server_done is written.
  A queue of the catalog exists in the engine, and no other, but ghosts (named by frames of the past) until their claims
  are back. A durable answer to a control request leaves only after its frames are synced (the engine holds the link).
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from warren.engine import _core
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.errors import CorruptRecord, QueueNotFound, StoreError, errno_of
from warren.engine.kernel import atomic_file, quarantine, segment
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import FILE_JOURNAL, LISTED_DATA, LISTED_JOURNAL, LISTED_SUBSCRIPTIONS
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.queues import control, recovery
from warren.engine.queues.folder import Folder, Reached, read_subscriptions, remove_queue, write_subscriptions
from warren.engine.queues.helpers import FileMaker, IndexKeeper, prepare
from warren.engine.queues.policy import give_policy
from warren.engine.queues.recovered import Recovered
from warren.engine.queues.terms import write_terms
from warren.ipc import region as regions
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING, SlotView, Superblock

TURN_NS = 250_000_000
RETRY_S = 0.2  #: after the disk refused a file
ROWS_KEPT_S = 2.0  #: after a flush, the memory of its rows
CATALOG_TURN_S = 0.001  #: how long changes of the catalog are followed before others are served
CATALOG_TURN_N = 8  #: how many queues come or go between two looks at the clock
CATALOG_PAUSE_NS = 4_000_000  #: between two pieces of changes for which nobody waits
PREPARE_S = 2.0  #: after the start, at the earliest, what flushes need is loaded

Say = Callable[[str], None]


class Declaration(Protocol):
    """What a worker needs to know of a queue (warren.engine.catalog.catalog.QueueDeclaration)."""

    @property
    def id(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def subscription_of(self) -> int: ...
    @property
    def dead_letters_of(self) -> int: ...
    @property
    def policy(self) -> QueueArguments: ...


class Changes(NamedTuple):
    """A piece of what changed in the catalog."""

    came: list[Declaration]
    went: list[int]
    more: bool  #: another piece follows, in which may be what belongs to a queue of this one


@dataclass
class Options:
    """What a queue service is made of."""

    superblock: Superblock
    worker: int
    folder: Folder
    node_id: int
    file_bytes: int
    reply_bytes: int
    load_catalog: Callable[[], list[Declaration]]
    open_store: Callable[[int], None]  #: attach the regions of a store and tell the engine; RegionError: later
    ids_end: Callable[[], int] = lambda: 0  #: the loaded catalog never gave an id from here on; 0: nobody knows
    #: what changed next since it was asked last or the catalog was loaded, up to a version; None: load it
    follow_catalog: Callable[[int], Changes | None] = lambda _version: None
    own_slot: int = -1
    memory_bytes: int = 0  #: rows of messages beyond this leave memory; 0: never
    next_transient: int = 0  #: first file number of the transient journal
    timer: Callable[[], None] = lambda: None  #: called some times a second
    say: Say = lambda line: None
    reached: Reached = lambda point: None


@dataclass
class QueueService:
    """One queue worker's engine and everything around it."""

    engine: _core.QueueEngine
    options: Options
    recovered: Recovered = field(default_factory=Recovered)
    _regions: dict[int, tuple[int, regions.Region]] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _declared: dict[int, Declaration] = field(default_factory=dict)
    _coming: dict[int, Declaration] = field(default_factory=dict)  # of the catalog, not yet in the engine
    _companions: dict[int, int] = field(default_factory=dict)  # of those that come: queue → queue of its dead letters
    _going: dict[int, Declaration] = field(default_factory=dict)  # in the engine, not in the catalog any more
    _subscriptions: dict[int, int] = field(default_factory=dict)
    _catalog_failed: bool = False
    _catalog_seen: int = 0  # the version that was read last
    _catalog_behind: bool = False  # some of what was told is not done
    _retry: dict[bool, float] = field(default_factory=dict)
    _wanted: set[bool] = field(default_factory=set)
    _no_space: set[bool] = field(default_factory=set)  # journals without a next file
    _zero_since: dict[int, int] = field(default_factory=dict)
    _flush_failed_at: float = 0.0
    _rows: bytearray = field(default_factory=bytearray)  #: of the flush under way; the next one uses the memory again
    _rows_at: float = math.inf  #: when a flush ended
    _timer_at: float = 0.0
    _unserved: set[int] = field(default_factory=set)  #: claims of clients whose regions there was no memory to attach
    _unlink_at: float = 0.0
    _prepare_at: float = math.inf
    _lost_said: int = 0
    _lost_told: int = 0
    _damaged_said: int = 0
    _unreadable_said: int = 0
    _spill_error_said: int = 0
    _memory_short: bool = False
    _write_refused: int = 0  #: errno of a write to a journal that found no space
    _acks_waiting: bytes = b""
    _unlink_later: list[tuple[Path, Key | None]] = field(default_factory=list)
    _doomed: deque[int] = field(default_factory=deque)  # journal files that nothing needs, oldest first
    _doomed_wait: bool = False  # the oldest of them could not be removed
    _listed: bool = False  #: the list of files is loaded

    def __post_init__(self) -> None:
        self.server = SERVER_WORKER_FIRST + self.options.worker
        self._next = {False: 0, True: 0}
        self._list = FileRegister(self.options.folder.files, self.options.node_id, self.server)
        self._files = FileMaker(self._make, self.engine.kick)
        self._index = IndexKeeper(self.engine.kick)

    # ---- start and stop ----

    def start(self, held: Mapping[int, memoryview] | None = None) -> Recovered:
        """Recover, begin the journals, take up every client. Serving can begin; the epoch is given by `begin`.
        `held`: journal files that are in memory (`journal_images.held_files`)."""
        o = self.options
        had_subscriptions = o.folder.subscriptions.exists()
        try:
            self._subscriptions = read_subscriptions(o.folder)
        except CorruptRecord as error:
            quarantine.move(o.folder.path, o.folder.subscriptions, str(error))
            had_subscriptions = False
        self._declare(o.load_catalog())
        if o.memory_bytes:
            try:
                self.engine.open_pages(o.folder.segments, o.folder.spill, o.node_id, o.memory_bytes)
            except OSError as error:
                raise atomic_file.explain(error, f"cannot make {o.folder.spill}") from error
        self.recovered = recovery.recover(
            self.engine, o.folder, o.node_id, self.server, o.reached, held, self._list, had_subscriptions, o.ids_end()
        )
        self._listed = True
        for line in [*self.recovered.damaged, *self.recovered.strangers]:
            o.say(f"damaged: {line}")
        if self.recovered.unknown:
            o.superblock.server_add(self.server, "lost_unknown_n", self.recovered.unknown)
        self._next = {False: self.recovered.next_file, True: o.next_transient}
        for transient in (False, True):
            self.engine.offer(transient, *self._make_next(transient))
        if self.engine.files(False):
            self.engine.begin_journal()
        for thread in (
            threading.Thread(target=self.engine.commit_run, args=(False,), name="warren-commit", daemon=True),
            threading.Thread(target=self.engine.commit_run, args=(True,), name="warren-tcommit", daemon=True),
            self._files,
            self._index,
        ):
            thread.start()
            self._threads.append(thread)
        self._bury_ghosts()
        self._scan_slots(starting=True)
        return self.recovered

    def begin(self, epoch: int) -> None:
        """Serve from now on under this epoch."""
        self.engine.begin(epoch)
        self._prepare_at = time.monotonic() + PREPARE_S

    def serve(self) -> None:
        """Until the node drains or `engine.request_stop` was called."""
        while not self.turn(CATALOG_PAUSE_NS if self._catalog_behind else TURN_NS) & _core.QUEUE_EVENT_STOP:
            pass

    def turn(self, max_ns: int, until_event: bool = True) -> int:
        """One run of the C loop and what it asks for; returns its events."""
        events = self.engine.run(max_ns, until_event)
        if events & _core.QUEUE_EVENT_KICK:
            self._take_results()
        if events & _core.QUEUE_EVENT_NEED_FILE:
            self._want(False)
        if events & _core.QUEUE_EVENT_NEED_TRANSIENT_FILE:
            self._want(True)
        if events & _core.QUEUE_EVENT_CATALOG_CHANGED or self._catalog_behind:
            self._reload_catalog()
        if events & (_core.QUEUE_EVENT_SLOTS_CHANGED | _core.QUEUE_EVENT_FINISHED):
            if events & _core.QUEUE_EVENT_SLOTS_CHANGED:
                self._scan_slots()
                self.engine.pending(_core.QUEUE_EVENT_FINISHED, False)
            if events & _core.QUEUE_EVENT_FINISHED:
                self._let_go()
        if events & _core.QUEUE_EVENT_CONTROL:
            control.serve(self, self.options.reply_bytes)
        if events & _core.QUEUE_EVENT_FILES_MANY:
            self._flush()
        if events & _core.QUEUE_EVENT_FILES_EMPTY:
            self._delete_files()
        if events & _core.QUEUE_EVENT_STORE_EPOCH:
            self._open_stores()
        if events & _core.QUEUE_EVENT_LOG_FAILED:
            number = self.engine.counters()["failed"]
            why = f"the journal failed ({os.strerror(number)}): nothing more is confirmed; check the disk and restart"
            if number == errno.ESTALE:
                why = "the journal file in use was removed or cut: nothing more is confirmed; restart"
            self.options.say(f"{why} the node")
        # By the clock, not by TIMER: under load some other event always comes first.
        now = time.monotonic()
        if now >= self._timer_at:
            self._timer_at = now + TURN_NS / 1e9
            self._timer()
        return events

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Finish what was submitted, sync, write the clean mark, release everything.

        True when the stop is a clean one.
        """
        o = self.options
        engine = self.engine
        engine.pending(_core.QUEUE_EVENT_STOP, True)
        engine.freeze(True)
        deadline = time.monotonic() + timeout_s
        # Rows whose bodies a killed node never wrote go when the store has answered: a clean stop leaves none of them.
        while not self._agrees_with_stores() and time.monotonic() < deadline:
            self.turn(1_000_000)
        while not self.turn(1_000_000, False) & _core.QUEUE_EVENT_TIMER and time.monotonic() < deadline:
            pass
        clean = engine.sync(int(timeout_s * 1e9))
        engine.run(0, False)  # the confirms of what was synced
        for helper in (self._files, self._index):
            helper.stop()
            if helper.ident is not None:
                helper.join(timeout_s)
        self._take_results()
        clean = clean and engine.sync(int(timeout_s * 1e9)) and not engine.counters()["failed"]
        if clean:
            file, end = engine.position()
            write_terms(engine, o.folder, o.node_id, self.server, file, end)
        self.release()
        return clean

    def _agrees_with_stores(self) -> bool:
        """Whether the stores have said which bodies they have; nobody waits for one that does not serve."""
        o = self.options
        stores = (SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT)
        ready = all(o.superblock.server_get(store, "state") == CONSTANTS["SERVER_READY"] for store in stores)
        return o.own_slot < 0 or not ready or bool(self.engine.counters()["resynced"])

    def release(self) -> None:
        """Stop the threads and close the engine and the clients' regions, without any promise about the disk."""
        self.engine.stop_logs()
        for helper in (self._files, self._index):
            helper.stop()
        for thread in self._threads:
            thread.join()
        while self._files.made:
            _transient, made = self._files.made.popleft()
            if isinstance(made, segment.Created):
                os.close(made.fd)
        self._threads.clear()
        self.engine.close()
        for _generation, region in self._regions.values():
            region.close()
        self._regions.clear()

    def _timer(self) -> None:
        self.engine.pending(
            _core.QUEUE_EVENT_STORE_EPOCH | _core.QUEUE_EVENT_CONTROL | _core.QUEUE_EVENT_FINISHED, False
        )
        now = time.monotonic()
        for transient, when in list(self._retry.items()):
            if now >= when:
                del self._retry[transient]
                self._want(transient)
        if self._flush_failed_at and now - self._flush_failed_at > 1.0:
            self._flush_failed_at = 0.0
            self.engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, False)
        if (self._unlink_later or self._doomed_wait) and now >= self._unlink_at:
            self._unlink_at = now + 1.0
            later, self._unlink_later = self._unlink_later, []
            for path, key in later:
                self._unlink(path, key)
            if self._doomed_wait:
                self._doomed_wait = False
                self._remove_doomed()
        if self._acks_waiting:
            acks, self._acks_waiting = self._acks_waiting, b""
            self._apply(acks)
        if now > self._rows_at + ROWS_KEPT_S:
            self._rows, self._rows_at = bytearray(), math.inf
        if self._unserved:
            self._scan_slots()
        self._remove_data_files()
        changed = self.options.superblock.get("catalog_version") != self._catalog_seen
        if self._catalog_failed or (changed and not self._catalog_behind):
            self._reload_catalog()  # changes that do not concern this worker, too: it is never far behind
        elif self._going and not self._coming:
            self._catch_up(now + CATALOG_TURN_S)
        if now >= self._prepare_at and len(self.engine.files(False)) > 1:
            self._prepare_at = math.inf
            self._index.ask(prepare, lambda _: None)
        counters = self.engine.counters()
        if counters["no_memory"] != self._memory_short:
            self._memory_short = bool(counters["no_memory"])
            self._alarm("ALARM_MEMORY", self._memory_short)
            if self._memory_short:
                self.options.say("there is no memory for the images of the journals: publishers wait for it")
        self._look_for_space(counters["no_space"])
        lost, damaged = counters["lost"], counters["damaged"]
        unreadable = counters["unreadable"]
        if (more := self.recovered.lost + lost + damaged + unreadable) != self._lost_told:
            self.options.superblock.server_add(self.server, "lost_n", more - self._lost_told)
            self._lost_told = more
        if lost != self._lost_said:
            more = lost - self._lost_said
            what = f"{more} messages dropped: the store does not have their bodies"
            self.options.say(what)
            entry = quarantine.Entry("store/persistent", 0, 0, what, more)
            self._index.ask(partial(quarantine.note, self.options.folder.path, entry), lambda _: None)
            self._lost_said = lost
        if damaged != self._damaged_said:
            self.options.say(
                f"{damaged - self._damaged_said} messages dropped: their entries in {self.options.folder.segments} are "
                "damaged; check the disk"
            )
            self._damaged_said = damaged
        if unreadable != self._unreadable_said:
            self._tell_unreadable(unreadable)
        spill_error = counters["spill_error"]
        if spill_error != self._spill_error_said:
            self._spill_error_said = spill_error
            if spill_error:
                self.options.say(
                    f"rows of transient messages stay in memory, {self.options.folder.spill} cannot be written: "
                    f"{os.strerror(spill_error)}"
                )
        self.options.timer()

    def _tell_unreadable(self, n: int) -> None:
        """Name the messages that consumers found damaged, and write them down for people."""
        found = self.engine.unreadable(self._unreadable_said)
        if more := n - self._unreadable_said - len(found):
            self.options.say(f"{more} messages dropped: they are damaged; the next lines name only the last of them")
        self._unreadable_said = n
        folder, parts = self.options.folder, []
        for queue, sequence, location, file, offset, size in found:
            where = f"message {sequence} of queue {queue}"
            if location >= PROTOCOL["LOCATION_STORE"]:
                self.options.say(f"{where} dropped: its body in the store is damaged; `warren check` names the place")
                continue
            of_kind = {
                PROTOCOL["LOCATION_SEGMENT"]: folder.data_file,
                PROTOCOL["LOCATION_JOURNAL"]: folder.journal_file,
                PROTOCOL["LOCATION_JOURNAL_TRANSIENT"]: folder.transient_file,
            }
            path = of_kind[location](file)
            self.options.say(f"{where} dropped: its {size} bytes in {path} at {offset} are damaged")
            name = str(path.relative_to(folder.path))
            parts.append(quarantine.Entry(name, offset, offset + size, f"{where}, damaged", 1, size))
        if parts:
            self._index.ask(partial(quarantine.note, folder.path, *parts), lambda _: None)

    # ---- journal files ----

    def _make(self, transient: bool, file: int) -> segment.Created:
        o = self.options
        path = o.folder.transient_file(file) if transient else o.folder.journal_file(file)
        made = segment.create(path, FILE_JOURNAL, o.node_id, self.server, file, o.file_bytes)
        if not transient:
            try:
                self._list.note({(LISTED_JOURNAL, 0, file): Entry(made.salt, o.file_bytes)})
            except StoreError:
                os.close(made.fd)
                path.unlink(missing_ok=True)  # its number is wanted again
                raise
        return made

    def _make_next(self, transient: bool) -> tuple[int, int, int, bytes]:
        made = self._make(transient, self._next[transient])
        self._next[transient] += 1
        return made.fd, made.file, made.salt, made.header

    def _want(self, transient: bool) -> None:
        if transient in self._wanted or transient in self._retry:
            return
        self.engine.pending(_core.QUEUE_EVENT_NEED_TRANSIENT_FILE if transient else _core.QUEUE_EVENT_NEED_FILE, True)
        self._wanted.add(transient)
        self._files.want(transient, self._next[transient])

    def _short_of_space(self, transient: bool, error: StoreError | None) -> None:
        """Raise or clear this worker's disk alarm; the supervisor sums up those of all servers."""
        short, before = error is not None, bool(self._no_space)
        if short or not self._no_space - {transient}:
            self.options.superblock.server_set(self.server, "file_error", errno_of(error))
        (self._no_space.add if short else self._no_space.discard)(transient)
        if bool(self._no_space) != before:
            self._alarm("ALARM_DISK", bool(self._no_space or self._write_refused))

    def _look_for_space(self, number: int) -> None:
        """A write to a journal finds no space, and is tried again by itself (`number`: its errno): say so, once."""
        if number == self._write_refused:
            return
        self._write_refused = number
        if number:
            self.options.superblock.server_set(self.server, "file_error", number)
            self.options.say(f"publishers wait: the disk has no space for the journal: {os.strerror(number)}")
        else:
            self.options.say("there is space for the journal again")
        self._alarm("ALARM_DISK", bool(self._no_space or number))

    def _alarm(self, name: str, on: bool) -> None:
        self.options.superblock.server_alarm(self.server, CONSTANTS[name], on)

    def _take_results(self) -> None:
        for crash in (self._files.crash, self._index.crash):
            if crash is not None:
                raise crash
        while self._files.made:
            transient, made = self._files.made.popleft()
            self._wanted.discard(transient)
            if isinstance(made, segment.Created):
                self._next[transient] += 1
                self.engine.offer(transient, made.fd, made.file, made.salt, made.header)
            else:
                self._retry[transient] = time.monotonic() + RETRY_S
                self.options.say(f"no new journal file: {made}")
            self._short_of_space(transient, None if isinstance(made, segment.Created) else made)
            self.engine.pending(_core.QUEUE_EVENT_CONTROL, False)
        while self._index.done:
            then, result = self._index.done.popleft()
            then(result)

    # ---- flush and removal ----

    def _flush(self) -> None:
        """Move what is alive of the oldest journal file into segments."""
        o = self.options
        file = self.engine.files(False)[0][0]
        rows_bytes = self.engine.export_file(file, self._rows)
        rows = memoryview(self._rows)[:rows_bytes]
        self.engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, True)

        def then(result: StoreError | None) -> None:
            if result is not None:
                self._rows = bytearray()  # the error may keep what it was raised in, and with it a view of the rows
                o.say(f"journal file {file} stays: {result}")
                self._flush_failed_at = time.monotonic()
                return
            self.engine.flushed(file, rows)
            rows.release()
            self._rows_at = time.monotonic()
            o.reached("flush.forgotten")
            self.engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, False)

        live, named = self.recovered.segment_live, self.recovered.named

        def job() -> None:
            from warren.engine.queues import flush as queue_flush

            queue_flush.flush(o.folder, o.node_id, self.server, file, rows, live, named, self._list, o.reached)

        self._index.ask(job, then)

    def _delete_files(self) -> None:
        """Remove journal files that nothing needs, oldest first, after their acks of segment entries are applied."""
        o = self.options
        engine = self.engine
        while (files := engine.files(True)) and len(files) > 1 and files[0][1] == 0:
            engine.drop_first(True)
            self._unlink(o.folder.transient_file(files[0][0]))
        while (files := engine.files(False)) and len(files) > 1 and files[0][1] == 0 and engine.may_delete(files[0][0]):
            file = files[0][0]
            acks = engine.segment_acks(file)
            if acks:
                engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, True)
                self._apply(acks)
                return
            engine.drop_first(False)
            if file not in self.recovered.foreign:
                self._doomed.append(file)
                if not self._doomed_wait:
                    self._remove_doomed()
        if acks := engine.early_acks():
            engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, True)
            self._apply(acks)

    def _apply(self, acks: bytes) -> None:
        o = self.options
        live = self.recovered.segment_live

        def then(result: int | StoreError) -> None:
            if isinstance(result, StoreError):
                o.say(f"acks wait for the disk: {result}")
                self._acks_waiting = acks  # the timer tries again
                return
            self.engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, False)

        def job() -> int:
            from warren.engine.queues import flush as queue_flush

            return queue_flush.apply_acks(o.folder, acks, live, self._list, o.reached)

        self._index.ask(job, then)

    def _remove_doomed(self) -> None:
        """Remove journal files, each when all older ones are gone for good: a younger one has the acks of what an older
        one publishes (rule Q33). One that cannot be removed keeps those behind it."""
        doomed = self._doomed

        def job() -> None:
            while doomed:
                self._remove(self.options.folder.journal_file(doomed[0]), (LISTED_JOURNAL, 0, doomed[0]))
                doomed.popleft()

        def then(result: StoreError | None) -> None:
            if result is not None and doomed:  # the next job may have removed it meanwhile
                path = self.options.folder.journal_file(doomed[0])
                self.options.say(f"cannot remove {path}; trying again: {result}")
                self._doomed_wait = True

        self._index.ask(job, then)

    def _unlink(self, path: Path, key: Key | None = None) -> None:
        """Remove a file that may stay longer than others."""

        def then(result: StoreError | None) -> None:
            if result is not None:
                self.options.say(f"cannot remove {path}; trying again: {result}")
                self._unlink_later.append((path, key))

        self._index.ask(partial(self._remove, path, key), then)

    def _remove(self, path: Path, key: Key | None) -> None:
        """Remove a file; one of the list leaves that first, and is gone for good. Raises StoreError, OSError."""
        if key is not None:
            self._list.note(gone=[key])
        path.unlink(missing_ok=True)
        if key is not None:
            segment.sync_directory(path.parent)

    def _remove_data_files(self) -> None:
        """Segment data files without live entries go, once the acks that emptied them are durable."""
        for file, live in self.engine.data_files().items():
            if live:
                self._zero_since.pop(file, None)
            elif file not in self._zero_since:
                self._zero_since[file] = self.engine.position()[0]
            elif self.engine.settled() or self.engine.may_delete(self._zero_since[file]):
                del self._zero_since[file]
                self.engine.forget_data_file(file)
                self._unlink(self.options.folder.data_file(file), (LISTED_DATA, 0, file))

    # ---- catalog ----

    def _declare(self, wanted: list[Declaration]) -> None:
        """Take up queues, all at once. `subscriptions`: whose claims a subscription holds is remembered beyond its
        deletion, until a start has found nothing of it."""
        self._remember(wanted)
        companions = {item.dead_letters_of: item.id for item in wanted if item.dead_letters_of}
        for item in wanted:
            self._take_up(item, companions.get(item.id, 0))

    def _remember(self, wanted: list[Declaration]) -> None:
        subscriptions = {item.id: item.subscription_of for item in wanted if item.subscription_of}
        if not subscriptions.items() <= self._subscriptions.items():
            self._subscriptions |= subscriptions
            write_subscriptions(self.options.folder, self._subscriptions)
            if self._listed:
                self._list.note({(LISTED_SUBSCRIPTIONS, 0, 0): Entry()})

    def _take_up(self, item: Declaration, companion: int) -> None:
        if item.id in self._declared:
            return
        self.engine.declare(item.id, item.durable)
        give_policy(self.engine, item.id, item.policy, companion)
        self._declared[item.id] = item

    def _reload_catalog(self, *, whole: bool = False) -> None:
        """Follow the catalog, a piece at a time: what is left is done in the next turns, after others were served.
        `whole`: all that was told is read now."""
        o = self.options
        version = o.superblock.get("catalog_version")
        deadline = time.monotonic() + CATALOG_TURN_S
        try:
            self._catalog_behind = not self._learn(version, math.inf if whole else deadline)
        except StoreError as error:
            if not self._catalog_failed:
                o.say(f"the catalog cannot be read, the old one is used until it can be: {error}")
            self._catalog_failed, self._catalog_behind = True, False
            self.engine.catalog_loaded(version)
            return
        self._catalog_failed = False
        if self._catalog_behind:
            return  # what belongs to a queue may come in the next piece
        self._catalog_seen = version
        self._catalog_behind = not self._catch_up(deadline)
        if not self._catalog_behind:
            self.engine.catalog_loaded(version)

    def _learn(self, version: int, deadline: float) -> bool:
        """What came and what went up to a version goes to `_coming` and `_going`; False: there is more of it."""
        while self._learn_piece(version):
            if time.monotonic() >= deadline:
                return False
        return True

    def _learn_piece(self, version: int) -> bool:
        """True when there is more."""
        found = self.options.follow_catalog(version)
        if found is None:
            wanted = {item.id: item for item in self.options.load_catalog()}
            came = [item for id, item in wanted.items() if id not in self._declared and id not in self._coming]
            gone = [item for item in (*self._declared.values(), *self._coming.values()) if item.id not in wanted]
            went = [item.id for item in sorted(gone, key=lambda item: item.subscription_of == 0)]
            more = False
        else:
            came, went, more = found
        self._remember(came)
        self._coming |= {item.id: item for item in came}
        self._companions |= {item.dead_letters_of: item.id for item in came if item.dead_letters_of}
        for id in went:
            if self._coming.pop(id, None) is None and id in self._declared:
                self._going[id] = self._declared[id]
        return more

    def _catch_up(self, deadline: float) -> bool:
        """Let queues come and go until it is time to serve others; True when what can be done is done."""
        done: list[int] = []
        for id, item in self._coming.items():
            if len(done) % CATALOG_TURN_N == CATALOG_TURN_N - 1 and time.monotonic() >= deadline:
                break
            self._take_up(item, self._companions.get(id, 0))
            done.append(id)
        for id in done:
            del self._coming[id]
        if self._coming:
            return False
        self._companions.clear()
        done.clear()
        # Subscriptions come first: their claims go back to their queue, unless that goes, too.
        for id, item in self._going.items():
            if len(done) % CATALOG_TURN_N == CATALOG_TURN_N - 1 and time.monotonic() >= deadline:
                break
            of = item.subscription_of
            if of in self._declared and of not in self._going and not self.release_claims(id, of):
                continue  # the journal has no room now: with the next turn
            self.engine.drop(id)
            del self._declared[id]
            done.append(id)
            if not of:
                live = self.recovered.segment_live
                removal = partial(remove_queue, self.options.folder, id, live, self._list)
                self._index.ask(removal, lambda _: None)
        timely = len(done) == len(self._going) or time.monotonic() < deadline
        for id in done:
            del self._going[id]
        return timely

    def _bury_ghosts(self) -> None:
        """After recovery: claims of subscriptions deleted since go back to their queue, other leftovers go.

        The segments of a ghost stay as long as they have entries on disk: a MOVE frame in the journal may need them.
        """
        o = self.options
        for id, claimed_from, entries in self.engine.ghosts():
            of = claimed_from or self._subscriptions.get(id, 0)
            if entries and of in self._declared:
                if not self.release_claims(id, of):
                    raise StoreError(
                        f"the journal has no room to bring back the claims of subscription {id}: raise file_bytes"
                    )
                self.engine.drop(id)
                continue
            self.engine.drop(id)  # before its segments go: rows that are not in memory are read from them once more
            if entries or not any(n > 0 for (queue, _m), n in self.recovered.segment_live.items() if queue == id):
                remove_queue(o.folder, id, self.recovered.segment_live, self._list)

    # ---- clients ----

    def _scan_slots(self, *, starting: bool = False) -> None:
        o = self.options
        version = o.superblock.get("slots_version")
        unserved: set[int] = set()
        for view in o.superblock.slots():
            if view.state not in (ACTIVE, LEAVING, DEAD) or o.superblock.worker_of(view.slot) >= 0:
                continue  # a worker asks the stores alone for something
            known = self._regions.get(view.slot)
            try:
                if known is None and not self._attach(view):
                    continue
            except regions.RegionError as error:  # what it submitted is there: the next timer tries again
                if starting:
                    raise
                unserved.add(view.claim)
                if view.claim not in self._unserved:
                    o.say(f"client {view.name!r} (slot {view.slot}) waits until there is memory: {error}")
                continue
            if view.state != ACTIVE and self._regions[view.slot][0] == view.generation:
                self.engine.closing(view.slot)
        self._unserved = unserved
        self.engine.slots_seen(version)

    def _attach(self, view: SlotView) -> bool:
        """Serve a client; False: nothing of it can be served. Raises RegionError when the system has no memory now."""
        o = self.options
        done = o.superblock.server_done(view.slot, self.server) == view.generation & 0xFF
        if view.state != ACTIVE and done:
            return False
        try:
            region = regions.sysv_attach(view.shmid)
        except regions.RegionError as error:
            if atomic_file.is_limit(error):
                raise
            if view.state != ACTIVE:
                o.superblock.set_server_done(view.slot, self.server, view.generation)
            else:
                o.say(f"client {view.name!r} (slot {view.slot}) cannot be attached: {error}")
            return False
        try:
            self.take_up(view.slot, view.generation, view.client_epoch, region)
        except OSError as error:
            region.close()
            o.say(f"client {view.name!r} (slot {view.slot}) has a region of the wrong form: {error}")
            o.superblock.set_server_done(view.slot, self.server, view.generation)
            return False
        return True

    def take_up(self, slot: int, generation: int, client_epoch: int, region: regions.Region) -> None:
        """Serve a client whose region is attached;

        it is closed when the client has ended. Raises OSError (wrong form).
        """
        self.engine.attach(slot, generation, client_epoch, region.buffer)
        self._regions[slot] = (generation, region)

    def _let_go(self) -> None:
        """Clients that have ended and of whom nothing is left.

        A publisher's arena holds the bodies that a dead incarnation of this worker wrote to the stores, until these are
        done with it: a store that is killed meanwhile executes those writes again. Until then no publisher may go.
        """
        if self._predecessor_there():
            self.engine.pending(_core.QUEUE_EVENT_FINISHED, True)  # until the slots change, or the next timer
            return
        for slot, generation, _closing, finished, _evicted in self.engine.attached():
            if finished and self.engine.detach(slot):
                self._regions.pop(slot)[1].close()
                self.options.superblock.set_server_done(slot, self.server, generation)
                self.options.superblock.ring_all()

    def _predecessor_there(self) -> bool:
        """Whether a dead incarnation of this worker that may have submitted something still has its slot."""
        superblock = self.options.superblock
        own = (superblock.slot(slot) for slot in superblock.slots_of_worker(self.options.worker))
        return any(view.slot != self.options.own_slot and view.state in (ACTIVE, LEAVING, DEAD) for view in own)

    def _open_stores(self) -> None:
        self.engine.pending(_core.QUEUE_EVENT_STORE_EPOCH, True)  # until the next timer, if this does not work
        done = True
        for store in (0, 1):
            try:
                self.options.open_store(store)
            except regions.RegionError:
                done = False
        if done:
            self.engine.pending(_core.QUEUE_EVENT_STORE_EPOCH, False)

    # ---- control requests ----

    def known(self, id: int) -> Declaration:
        """A queue that is served, taken up now if the catalog has it. Raises QueueNotFound."""
        if id not in self._declared:
            self._reload_catalog(whole=True)
        if id in self._coming:  # its turn has not come: it comes now
            self._take_up(self._coming[id], self._companions.get(id, 0))
        if id not in self._declared or id in self._going:
            raise QueueNotFound(f"worker {self.options.worker} has no queue with id {id}: declare it first")
        return self._declared[id]

    def release_claims(self, source: int, target: int) -> bool:
        """Everything of a subscription goes back to the end of its queue; False when the journal has no room now."""
        while True:
            moved = self.engine.move(source, target, 1 << 62, 1 << 62, True, 0, 0)
            if moved is None:
                return False
            if moved[0] == moved[1]:
                return True
