"""The process of one queue worker: regions, its own client slot towards the stores, start, serving, stop.

What it serves is engine/queues/service.py. The order of a start and of a stop: Worker.run. Crash points: until the
epoch is published clients wait; regions of unfinished starts are found by their names and unlinked by the next one,
after it has salvaged them. What the topic worker does in the same way, exit codes too, is in worker_process.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from warren.engine import _core
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.kernel.image_room import parts, sure
from warren.engine.kernel.paths import queues_of
from warren.engine.kernel.protocol import LAYOUT_HASH, PROTOCOL, QUEUE_STATS
from warren.engine.queues import journal_images
from warren.engine.queues.folder import Folder
from warren.engine.queues.options import Changes, Declaration, Options
from warren.engine.queues.recovered import Recovered
from warren.engine.queues.service import QueueService
from warren.engine.saying import Voice, counted
from warren.ipc import mailbox
from warren.ipc import region as regions
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, PAGE_BYTES, SERVER_WORKER_FIRST
from warren.ipc.superblock import CLAIMED, SlotsFull, SlotView, Superblock
from warren.workers.process import logs
from warren.workers.servers.worker_process import WorkerProcess, run_worker

if TYPE_CHECKING:
    from warren.workers.servers.dead_letters import Forwarder

STATS_ROWS = PROTOCOL["QUEUES_PER_WORKER_MAX"]
CATALOG_STEPS = 100  #: of a change that are read before the clock is looked at
SLOT_WAIT_S = 1.0
#: of a client that consumes nothing: as few as a client can have
OWN_DELIVERY_SLOTS = 64
SLOT_POLL_S = 0.01
DEAD_LETTERS_STOP_S = 5.0  #: how long the stop waits for the forwarder of dead letters

#: one line into the worker's log
say = Voice()


@dataclass
class _Memory:
    """The regions of one incarnation, and what the last one left in them."""

    old: list[int]  #: generations of regions that were there
    generation: int
    images: regions.Region
    transient: regions.Region
    statistics: regions.Region
    held: dict[int, memoryview]  #: journal files that the images hold as they are on disk
    next_transient: int


class Worker(WorkerProcess):
    """One incarnation of a queue worker."""

    WHATS = ("images", "timages", "qstats")
    CRASH_POINTS: ClassVar[Mapping[str, int]] = {
        "flush.dat-synced": CONSTANTS["CRASH_WORKER_FLUSH_DATA"],
        "flush.idx-synced": CONSTANTS["CRASH_WORKER_FLUSH_INDEX"],
        "slot.claimed": CONSTANTS["CRASH_WORKER_CLAIMED"],
        "slot.recovered": CONSTANTS["CRASH_WORKER_RECOVERED"],
        "slot.active": CONSTANTS["CRASH_WORKER_ATTACHED"],
    }

    def __init__(
        self, directory: Path, shared_id: int, worker: int, settings: Settings, supervisor_pidfd: int | None
    ) -> None:
        server = SERVER_WORKER_FIRST + worker
        superblock = Superblock.attach(shared_id, LAYOUT_HASH)
        super().__init__(directory, shared_id, server, settings, supervisor_pidfd, superblock, say)
        self.worker = worker
        self.folder = Folder.of(Path(), worker)  # `tie.enter`: of the directory that is open, not of its path
        self.salvaged = 0
        self._stores: dict[int, tuple[int, regions.Region]] = {}
        self._slot: SlotView | None = None
        self._dead_letters: Forwarder | None = None
        self._serving = self._served = False
        self._has_companions = False
        self._catalog = catalog_log.Reader(Path())
        self._ids_end = 0
        self.service: QueueService | None = None

    # -- memory -------------------------------------------------------------------------------------------------

    def _salvage(self, generations: list[int]) -> int:
        salvaged = 0
        size = PAGE_BYTES + self.settings.images_n * self.settings.file_bytes
        for generation in generations:
            try:
                region = regions.posix_open(self._name("images", generation), owner=os.geteuid())
            except regions.RegionError:
                continue
            try:
                if region.size == size:
                    salvaged += journal_images.salvage(
                        region.buffer, self.settings.images_n, self.settings.file_bytes, self.folder
                    )
            finally:
                region.close()
        return salvaged

    def _images(self, what: str, generation: int, sure_bytes: int, old: list[int]) -> regions.Region:
        """The region of a journal's images. A dead worker's one is taken over under the new name, because its pages are
        there already; file numbers never repeat in it, so who still maps it never takes a new frame for an old one."""
        name = self._name(what, generation)
        size = PAGE_BYTES + self.settings.images_n * self.settings.file_bytes
        for before in reversed(old):
            try:
                os.rename(regions.SHM_DIRECTORY + self._name(what, before), regions.SHM_DIRECTORY + name)
                region = regions.posix_open(name, owner=os.geteuid())
            except (FileNotFoundError, PermissionError, regions.RegionError):  # it is gone, or another user's
                continue
            if region.size == size:
                self._stack.callback(region.close)
                return region
            region.close()
            regions.posix_drop(name)
        return self._region(what, generation, size, parts(sure_bytes, self.settings.file_bytes))

    def _claim(self) -> regions.Region:
        """A slot that only the supervisor knows of until `_activate`: a start that fails gives it back, and from one
        that is killed the supervisor takes it without asking a server. Returns its region.
        """
        view = self._free_slot()
        self._stack.callback(self._give_back, view)
        self._reached("slot.claimed")
        # a worker sends no bodies: most of its region is never used
        region = regions.sysv_create(
            self.superblock.region_bytes(OWN_DELIVERY_SLOTS), touch=False, owner=self.superblock.owner
        )
        self.superblock.set_segment(view, region.id)
        self.superblock.sign(region)
        self._stack.callback(region.close)
        self._stack.callback(self._remove_segment, region)
        self._slot = view
        return region

    def _free_slot(self) -> SlotView:
        """One of this worker's slots. When it was killed twice in short time the stores are not done with both yet.

        Raises SlotsFull after a second: the store server does not serve, and the start is repeated as without room.
        """
        deadline = time.monotonic() + SLOT_WAIT_S
        while True:
            try:
                return self.superblock.claim(
                    Identity.current(), f"queue-worker-{self.worker}", self.worker, OWN_DELIVERY_SLOTS
                )
            except SlotsFull:
                if time.monotonic() > deadline:
                    raise
            time.sleep(SLOT_POLL_S)

    def _activate(self) -> None:
        """Everything is recovered, and nothing was submitted yet: the servers may know of the slot."""
        assert self._slot is not None
        self._reached("slot.recovered")
        self._slot = self.superblock.activate(self._slot)
        self._reached("slot.active")
        self._register()

    def _remove_segment(self, region: regions.Region) -> None:
        """Of a slot that no server ever saw; it goes with its last mapping."""
        if self._slot is not None and self._slot.state == CLAIMED:
            regions.sysv_remove(region.id)

    def _give_back(self, view: SlotView) -> None:
        if self._slot is None or self._slot.state == CLAIMED:
            self.superblock.give_back(view)

    # -- life ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to stop; returns the exit code.

        The order of the steps is the crash protocol: a death between any two leaves what the next start needs.
          take          the folder is this process's alone; the state is RECOVERING
          salvage       what the dead worker had written to memory and not to its files: into its files, first of all
          make_regions  under a higher generation, from the dead worker's where they fit; nobody looks for them yet
          claim         a client slot that only the supervisor knows of
          recover       files and memory are read: the last step that may fail, and nothing was submitted yet
          activate      the servers may know of the slot
          announce      generation, alarms, READY, and last the epoch: from then on clients come
          serve         until told to stop: rings finished, journal synced, clean mark
          leave         slot left, regions unlinked
        """
        began = time.monotonic()
        if not self._take():
            return 0
        old = self._old_generations()
        self.salvaged = self._salvage(old)
        memory = self._make_regions(old)
        own = self._claim()
        service = self.service = self._service(memory, own)
        with self._signals(service.engine):
            try:
                recovered = self._recover(service, memory)
                self._activate()
                self._announce(service, memory)
                say(
                    f"ready in {time.monotonic() - began:.3f} s: "
                    f"{counted(service.engine.counters()['messages'], 'message')}, "
                    f"{counted(recovered.frames, 'frame')}, {'clean' if recovered.clean else 'unclean'} start, "
                    f"{counted(self.salvaged, 'byte')} salvaged, "
                    f"{counted(recovered.written_again, 'byte')} written again"
                )
                clean = self._serve(service)
            except BaseException:
                service.release()
                raise
        self._leave(memory, clean)
        kept = "everything is saved" if clean else "without the clean mark: the next start reads its files"
        self._tell_end(clean, kept)
        return 0

    def _take(self) -> bool:
        """Own the folder, and say that it is being recovered. False: the node ends, or another one has it."""
        superblock = self.superblock
        self.tie.enter()
        needed = str(self.folder.files) if superblock.server_get(self.server, "epoch") else ""
        if not self.tie.take(queues_of(self.worker), say, needed):
            superblock.server_set(self.server, "state", CONSTANTS["SERVER_DOWN"])  # nothing was begun
            return False
        superblock.server_set(self.server, "state", CONSTANTS["SERVER_RECOVERING"])
        self.folder.make()
        return True

    def _make_regions(self, old: list[int]) -> _Memory:
        """The regions of this incarnation, and what is known of the dead worker's images."""
        settings = self.settings
        generation = max([*old, self.superblock.server_get(self.server, "generation")]) + 1
        reserved = sure(settings)
        images = self._images("images", generation, reserved.journal, old)
        # before the engine takes the images for its own files
        held = journal_images.held_files(images.buffer, settings.images_n, settings.file_bytes, self.folder)
        transient = self._images("timages", generation, reserved.transient_journal, old)
        next_transient = journal_images.next_file_of(transient.buffer, settings.images_n)
        statistics = self._region("qstats", generation, STATS_ROWS * QUEUE_STATS.size, [(0, PAGE_BYTES)])
        self._stack.callback(self._forget_statistics, statistics.name)
        return _Memory(old, generation, images, transient, statistics, held, next_transient)

    def _service(self, memory: _Memory, own: regions.Region) -> QueueService:
        """The engine and the service around it; they have touched nothing yet."""
        assert self._slot is not None
        settings, superblock = self.settings, self.superblock
        engine = _core.QueueEngine(
            superblock.buffer,
            self.server,
            memory.images.buffer,
            memory.transient.buffer,
            memory.statistics.buffer,
            own.buffer,
            self._slot.slot,
            self._slot.generation,
            self._slot.client_epoch,
            images_n=settings.images_n,
            file_bytes=settings.file_bytes,
            spin_us=settings.spin_us,
            tick_ms=settings.sync_tick_ms,
            commit_bytes=settings.commit_bytes,
            journal_files_max=settings.journal_files_max,
        )
        return QueueService(
            engine,
            Options(
                superblock=superblock,
                worker=self.worker,
                folder=self.folder,
                node_id=superblock.node_id,
                file_bytes=settings.file_bytes,
                reply_bytes=settings.reply_bytes,
                load_catalog=self._load_catalog,
                follow_catalog=self._follow_catalog,
                open_store=self._open_store,
                ids_end=lambda: self._ids_end,
                own_slot=self._slot.slot,
                # The other half: what a flush has in hand, and what the allocator keeps.
                memory_bytes=settings.queue_memory_bytes // (2 * (superblock.workers_n)),
                next_transient=memory.next_transient,
                timer=self._timer,
                reached=self._reached,
                say=say,
            ),
        )

    def _recover(self, service: QueueService, memory: _Memory) -> Recovered:
        recovered = service.start(memory.held)
        memory.held.clear()
        return recovered

    def _announce(self, service: QueueService, memory: _Memory) -> None:
        """Clients look at the epoch, and then at what was said before it."""
        superblock = self.superblock
        epoch = superblock.server_get(self.server, "epoch") + 1
        service.begin(epoch)
        superblock.server_set(self.server, "generation", memory.generation)
        superblock.server_set(self.server, "queue_stats_generation", memory.generation)
        superblock.server_set(self.server, "error", 0)
        superblock.server_set(self.server, "alarms", 0)
        superblock.server_set(self.server, "state", CONSTANTS["SERVER_READY"])
        superblock.server_set(self.server, "epoch", epoch)
        self._unlink(memory.old)

    def _serve(self, service: QueueService) -> bool:
        """Serve until told to stop; whether everything is on disk then, and marked clean."""
        self._serving = self._served = True
        self._served_at = time.monotonic()
        self._forward_dead_letters()
        service.serve()
        self._stopping_at = time.monotonic()
        self.superblock.server_set(self.server, "state", CONSTANTS["SERVER_STOPPING"])
        self._stop_dead_letters(service)
        return service.stop()

    def _leave(self, memory: _Memory, clean: bool) -> None:
        assert self._slot is not None
        superblock = self.superblock
        superblock.leave(self._slot.slot, self._slot.generation)
        if clean:
            self._unlink([memory.generation])
        superblock.server_set(self.server, "state", CONSTANTS["SERVER_DOWN"])

    def close(self) -> None:
        """Unmap everything."""
        for _epoch, region in self._stores.values():
            region.close()
        self._stores.clear()
        super().close()

    def _forget_statistics(self, name: str) -> None:
        """A start that failed leaves no region that the next one does not take over: it may fail for long."""
        if not self._served:
            regions.posix_drop(name)

    def _register(self) -> None:
        """Tell the supervisor about the slot; it also scans by itself."""
        assert self._slot is not None
        mailbox.post(Path(), "supervisor", "register", mailbox.PRIORITY_CLIENT, slot=self._slot.slot)

    # -- dead letters -------------------------------------------------------------------------------------------

    def _forward_dead_letters(self) -> None:
        """Start the forwarder when there is something to forward; it stays until the worker ends."""
        if self._serving and self._has_companions and self._dead_letters is None and self.service is not None:
            from warren.workers.servers.dead_letters import Forwarder  # a client, which few workers need

            self._dead_letters = Forwarder(self.directory, self.worker, say, self.service.queues.causes)
            self._dead_letters.start()

    def _stop_dead_letters(self, service: QueueService) -> None:
        """End the forwarder. It is a client of this worker, so the worker goes on serving until it is gone."""
        forwarder = self._dead_letters
        if forwarder is None:
            return
        self._serving = False
        forwarder.stop()
        deadline = time.monotonic() + DEAD_LETTERS_STOP_S
        while forwarder.is_alive() and time.monotonic() < deadline:
            service.turn(5_000_000, False)
        if forwarder.is_alive():
            say(
                "the forwarder of dead letters did not end in time: what it had in hand is forwarded after the next "
                "start",
                WARNING,
            )

    # -- what the service asks for --------------------------------------------------------------------------------

    def _load_catalog(self) -> list[Declaration]:
        # what was told, and nothing that may still be taken back
        catalog = self._catalog.load(self.superblock.get("catalog_version"))
        self._ids_end = catalog.next_queue_id
        wanted = catalog.of_worker(self.worker)
        self._found(wanted)
        return list(wanted)

    def _follow_catalog(self, version: int) -> Changes | None:
        steps = self._catalog.piece(version, CATALOG_STEPS)
        if steps is None:
            return None
        came: dict[int, QueueDeclaration] = {}
        went: list[int] = []
        for step in steps:
            if step.queue is None or step.queue.worker != self.worker:
                continue
            if not step.gone:
                came[step.queue.id] = step.queue
            elif came.pop(step.queue.id, None) is None:
                went.append(step.queue.id)
        self._found(came.values())
        return Changes(list(came.values()), went, self._catalog.version < version)

    def _found(self, queues: Iterable[QueueDeclaration]) -> None:
        self._has_companions = self._has_companions or any(item.dead_letters_of for item in queues)
        self._forward_dead_letters()

    def _open_store(self, store: int) -> None:
        """Attach a store's directory when its epoch is new. Raises RegionError (it is just starting)."""
        assert self.service is not None
        superblock = self.superblock
        epoch = superblock.server_get(store, "epoch")
        known = self._stores.get(store)
        if known is not None and known[0] == epoch:
            return
        generation = superblock.server_get(store, "generation")
        region = regions.posix_open(superblock.region_name("directory", store, generation))
        if superblock.server_get(store, "epoch") != epoch:
            region.close()
            raise regions.RegionError(2, "the store has been restarted since")
        self.service.engine.set_store(store, epoch, region.buffer)
        if known is not None:
            known[1].close()
        self._stores[store] = (epoch, region)


def run_queue_worker(
    directory: Path, shared_id: int, worker: int, settings: Settings, supervisor_pidfd: int | None
) -> int:
    """The whole life of a queue worker process; returns its exit code (worker_process.py)."""
    return run_worker(lambda: Worker(directory, shared_id, worker, settings, supervisor_pidfd), say)


def main() -> int:
    """For tests: `python -m warren.workers.servers.queue_worker DIR SHARED_ID WORKER` with the default settings."""
    directory, shared_id, worker = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = NodeDirectory(directory).read().settings
    logs.begin(f"worker-{worker}", NodeDirectory(directory).log_file(f"worker-{worker}"), settings, streams=False)
    return run_queue_worker(directory, shared_id, worker, settings, None)


if __name__ == "__main__":
    os._exit(main())
