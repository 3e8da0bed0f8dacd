"""A queue worker around its C engine: it starts, serves in turns, and stops. The hot loop is C (engine/queues/queue.h).

One thread serves (`serve`, which alternates between the C loop and the events it returns) and hands each event to the
part that knows it. Two helpers do slow things with the disk (engine/queues/helpers.py).

    declared.py     the queues of the catalog
    clients.py      the clients' regions
    next_files.py   the journals' next files
    emptying.py     journal files go to segments, and are removed
    large_files.py  messages in files of their own
    losses.py       what was lost is counted and said
    control.py      control requests

Invariant: a durable answer to a control request leaves only after its frames are synced (the engine holds the link).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import ERROR, WARNING

from warren.engine import _core
from warren.engine.kernel import atomic_file, ending
from warren.engine.kernel.file_register import FileRegister
from warren.engine.queues import control, recovery
from warren.engine.queues.clients import Clients
from warren.engine.queues.declared import DeclaredQueues
from warren.engine.queues.emptying import Emptying
from warren.engine.queues.folder import open_pages
from warren.engine.queues.helpers import IndexKeeper
from warren.engine.queues.large_files import LargeFiles
from warren.engine.queues.losses import Losses
from warren.engine.queues.next_files import NextFiles
from warren.engine.queues.options import Options
from warren.engine.queues.recovered import Recovered
from warren.engine.queues.terms import write_terms
from warren.ipc import region as regions
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST

TURN_NS = 250_000_000
HINDERED_S = 0.25  #: for a store without space, which may just get some
CATALOG_PAUSE_NS = 4_000_000  #: between two pieces of changes for which nobody waits


@dataclass
class QueueService:
    """One queue worker's engine and everything around it."""

    engine: _core.QueueEngine
    options: Options
    recovered: Recovered = field(default_factory=Recovered)
    _threads: list[threading.Thread] = field(default_factory=list)
    _timer_at: float = 0.0
    _memory_short: bool = False

    def __post_init__(self) -> None:
        engine, options = self.engine, self.options
        self.server = SERVER_WORKER_FIRST + options.worker
        self._list = FileRegister(options.folder.files, options.node_id, self.server)
        self._index = IndexKeeper(engine.kick)
        self._files = NextFiles(engine, options, self.server, self._list)
        self._emptying = Emptying(engine, options, self.server, self._list, self._index)
        self._large = LargeFiles(engine, options, self._index)
        self._losses = Losses(engine, options, self.server, self._index)
        self._clients = Clients(engine, options, self.server)
        self.queues = DeclaredQueues(engine, options, self._list, self._index.ask)

    # ---- start and stop ----

    def start(self, held: Mapping[int, memoryview] | None = None) -> Recovered:
        """Recover, begin the journals, take up every client. Serving can begin; the epoch is given by `begin`.
        `held`: journal files that are in memory (`journal_images.held_files`)."""
        o = self.options
        had_subscriptions = self.queues.load()
        if o.memory_bytes:
            try:
                open_pages(self.engine, o.folder, o.node_id, o.memory_bytes)
            except OSError as error:
                raise atomic_file.explain(error, f"cannot open {error.filename or o.folder.spill}") from error
        self.recovered = self._emptying.recovered = recovery.recover(
            self.engine, o.folder, o.node_id, self.server, o.reached, held, self._list, had_subscriptions, o.ids_end()
        )
        self.queues.recovered(self.recovered)
        for line in [*self.recovered.damaged, *self.recovered.strangers]:
            o.say(f"damaged: {line}", ERROR)
        self._large.compare(self.recovered)
        if self.recovered.unknown:
            o.superblock.server_add(self.server, "lost_unknown_n", self.recovered.unknown)
        self._files.begin(self.recovered.next_file, o.next_transient)
        if self.engine.files(False):
            self.engine.begin_journal()
        for thread in (
            threading.Thread(target=self.engine.commit_run, args=(False,), name="warren-commit", daemon=True),
            threading.Thread(target=self.engine.commit_run, args=(True,), name="warren-tcommit", daemon=True),
            self._files.maker,
            self._index,
        ):
            thread.start()
            self._threads.append(thread)
        self.queues.drop_past()
        self._clients.scan(starting=True)
        return self.recovered

    def begin(self, epoch: int) -> None:
        """Serve from now on under this epoch."""
        self.engine.begin(epoch)
        self._emptying.begin()

    def take_up(self, slot: int, generation: int, client_epoch: int, region: regions.Region) -> None:
        """Serve a client; its region is closed when it has ended. Raises OSError (a region of the wrong form)."""
        self._clients.take_up(slot, generation, client_epoch, region)

    def serve(self) -> None:
        """Until the node drains or `engine.request_stop` was called."""
        while not self.turn(CATALOG_PAUSE_NS if self.queues.behind else TURN_NS) & _core.QUEUE_EVENT_STOP:
            pass

    def turn(self, max_ns: int, until_event: bool = True) -> int:
        """One run of the C loop and what it asks for; returns its events."""
        events = self.engine.run(max_ns, until_event)
        if events & _core.QUEUE_EVENT_KICK:
            self._take_results()
        if events & _core.QUEUE_EVENT_NEED_FILE:
            self._files.want(False)
        if events & _core.QUEUE_EVENT_NEED_TRANSIENT_FILE:
            self._files.want(True)
        if events & _core.QUEUE_EVENT_CATALOG_CHANGED or self.queues.behind:
            self.queues.reload()
        if events & (_core.QUEUE_EVENT_SLOTS_CHANGED | _core.QUEUE_EVENT_FINISHED):
            if events & _core.QUEUE_EVENT_SLOTS_CHANGED:
                self._clients.scan()
                self.engine.pending(_core.QUEUE_EVENT_FINISHED, False)
            if events & _core.QUEUE_EVENT_FINISHED:
                self._clients.let_go()
                self._large.look_soon()
        if events & _core.QUEUE_EVENT_CONTROL:
            control.serve(self.queues, self.options.reply_bytes)
        self._emptying.serve(events)
        if events & _core.QUEUE_EVENT_STORE_EPOCH:
            self._open_stores()
        if events & _core.QUEUE_EVENT_LOG_FAILED:
            number = self.engine.counters()["failed"]
            why = f"the journal failed ({os.strerror(number)}): nothing more is confirmed; check the disk and restart"
            if number == errno.ESTALE:
                why = "the journal file in use was removed or cut: nothing more is confirmed; restart"
            self.options.say(f"{why} the node", WARNING)
        # By the clock, not by TIMER: under load some other event always comes first.
        now = time.monotonic()
        if now >= self._timer_at:
            self._timer_at = now + TURN_NS / 1e9
            self._timer()
        return events

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Finish what was submitted, sync, close the links (queues/closing.h), write the clean mark, and release
        everything.

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
        engine.end_links()
        ending.catch_up(engine, lambda: self.turn(ending.TURN_NS, False), deadline)
        stored = self._bodies_stored(deadline)
        clean = engine.sync(int(timeout_s * 1e9)) and stored
        engine.run(0, False)  # the confirms of what was synced
        for helper in (self._files.maker, self._index):
            helper.stop()
            if helper.ident is not None:
                helper.join(timeout_s)
        self._take_results()
        clean = clean and engine.sync(int(timeout_s * 1e9)) and not engine.counters()["failed"]
        self._large.end()
        if self._ends_for_good() and not engine.counters()["failed"]:
            engine.close_links()
        if clean:
            file, end = engine.position()
            write_terms(engine, o.folder, o.node_id, self.server, file, end)
        self.release()
        return clean

    def _ends_for_good(self) -> bool:
        """Whether the node ends: else another worker goes on with the clients' rings."""
        return self.options.superblock.state == CONSTANTS["NODE_DRAINING"]

    def _bodies_stored(self, deadline: float) -> bool:
        """Whether the stores have taken all bodies that were sent: rows without theirs are no clean stop. One that has
        no space, or has failed, takes none, and is not waited for.
        """
        superblock = self.options.superblock
        stores = (SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT)
        hindered_until = time.monotonic() + HINDERED_S
        while self.engine.counters()["stores_behind"]:
            ready = all(superblock.server_get(store, "state") == CONSTANTS["SERVER_READY"] for store in stores)
            hindered = any(superblock.server_get(store, "alarms") for store in stores)
            if not ready or time.monotonic() >= (min(hindered_until, deadline) if hindered else deadline):
                return False
            self.turn(1_000_000)
        return True

    def _agrees_with_stores(self) -> bool:
        """Whether the stores have said which bodies they have; nobody waits for one that does not serve."""
        o = self.options
        stores = (SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT)
        ready = all(o.superblock.server_get(store, "state") == CONSTANTS["SERVER_READY"] for store in stores)
        return o.own_slot < 0 or not ready or bool(self.engine.counters()["resynced"])

    def release(self) -> None:
        """Stop the threads and close the engine and the clients' regions, without any promise about the disk."""
        self.engine.stop_logs()
        for helper in (self._files.maker, self._index):
            helper.stop()
        for thread in self._threads:
            thread.join()
        self._files.close()
        self._threads.clear()
        self._large.close()
        self.engine.close()
        self._clients.close()

    def _timer(self) -> None:
        self.engine.pending(
            _core.QUEUE_EVENT_STORE_EPOCH | _core.QUEUE_EVENT_CONTROL | _core.QUEUE_EVENT_FINISHED, False
        )
        now = time.monotonic()
        self._files.on_timer(now)
        self._emptying.on_timer(now)
        self._large.on_timer(now)
        self._clients.on_timer()
        self.queues.on_timer(now)
        counters = self.engine.counters()
        if counters["no_memory"] != self._memory_short:
            self._memory_short = bool(counters["no_memory"])
            self.options.superblock.server_alarm(self.server, CONSTANTS["ALARM_MEMORY"], self._memory_short)
            if self._memory_short:
                self.options.say("there is no memory for any image of a journal: what writes to it waits", WARNING)
        self._files.look_for_space(counters["no_space"])
        self._losses.look(counters, self.recovered.lost)
        self.options.timer()

    def _take_results(self) -> None:
        for crash in (self._files.maker.crash, self._index.crash):
            if crash is not None:
                raise crash
        self._files.take()
        while self._index.done:
            then, result = self._index.done.popleft()
            then(result)

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
