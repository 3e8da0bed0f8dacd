"""One registration of a process with a node: its slot, its region, the core that uses them, the servers' regions.

Life of an attachment
  claim a slot → segment → core → one unit of the live semaphore (SEM_UNDO) → ACTIVE → mailbox `register`
  end: what was submitted is waited for → LEAVING → mailbox `deregister` → detach. The servers return what it held.
  A sudden death needs nothing of this: the supervisor sees the pidfd, the kernel undoes the semaphore and detaches.

Invariant: a child of fork never touches its parent's region: the core refuses by itself, and the child unmaps it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import sysv_ipc

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NODE, NodeDirectory, open_directory, place_of
from warren.engine.errors import (
    ClosedError,
    Error,
    LimitError,
    NodeNotRunning,
    PeerLost,
)
from warren.engine.kernel import data_files
from warren.engine.kernel.atomic_file import explain
from warren.engine.kernel.paths import WorkerFolder, store_folder
from warren.engine.kernel.protocol import LAYOUT_HASH, QUEUE_STATS
from warren.engine.saying import command, in_a_program
from warren.ipc import mailbox, names
from warren.ipc.access import ALONE
from warren.ipc.identity import Identity, Namespaces
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.region import ForeignRegion, Region, RegionError, posix_open, sysv_create, sysv_remove
from warren.ipc.superblock import FREE, SlotsFull, SlotView, Superblock
from warren.workers.client.topic_place import TopicPlace
from warren.workers.process.refusals import because
from warren.workers.process.tie import elsewhere, orphaned_elsewhere

NODE_RUNNING, NODE_DRAINING, NODE_STOPPED = (CONSTANTS[f"NODE_{name}"] for name in ("RUNNING", "DRAINING", "STOPPED"))
SERVER_READY, SERVER_FAILED = CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_FAILED"]
SERVER_RECOVERING = CONSTANTS["SERVER_RECOVERING"]
#: how long statistics are believed after a look whether their worker lives
ALIVE_S = 0.1
#: how often close() looks whether anybody lives who could give back what was held
LOOK_S = 0.25
#: how often close() looks whether what was held is back: first and at most
RETURN_FIRST_S, RETURN_MOST_S = 0.0001, 0.005
#: how long close() waits for threads that were waiting inside; they are woken before
UNMAP_WAIT_S = 2.0
#: bytes of the log that one command appends at most, whatever the settings: the worker serves other clients in between
APPEND_BYTES = 256 << 10
#: how long a region of a restarted server is looked for
REGION_WAIT_S = 2.0

log = logging.getLogger("warren.client")


@dataclass
class _WorkerRegions:
    generation: int
    images: Region | None
    transient_images: Region | None


@dataclass
class _Statistics:
    generation: int
    region: Region
    rows: dict[int, int] = field(default_factory=dict)


class Attachment:
    """One registration of this process with a node; `counted`: among the live clients of the node's semaphore.
    `delivery_slots`: messages of each queue worker that it can hold unacked, a power of two; 0: the node's number.
    """

    def __init__(
        self,
        superblock: Superblock,
        directory: NodeDirectory,
        name: str,
        hook: Callable[[int, int, str], None],
        counted: bool = True,
        call_timeout: float | None = None,
        descriptor: int = -1,
        delivery_slots: int = 0,
    ) -> None:
        self.superblock = superblock
        self.directory = directory
        self.descriptor = descriptor  #: of the directory, from success on: the files are found by it, not by a path
        self.pid = os.getpid()
        #: messages of one queue worker that it can hold unacked
        self.delivery_slots = delivery_slots or superblock.get("delivery_slots")
        self.node_epoch = superblock.get("node_epoch")
        self.workers: dict[int, _WorkerRegions] = {}
        self.stores: dict[int, list[Region]] = {}
        self.statistics: dict[int, _Statistics] = {}
        self._topics: TopicPlace | None = None
        self._topics_lock = threading.Lock()
        self._look_at: dict[int, float] = {}  # when statistics of a server are believed no longer
        self.control_locks = [threading.Lock() for _server in range(superblock.servers_n)]
        self._semaphore: sysv_ipc.Semaphore | None = None
        self._known: tuple[
            int, ...
        ] = ()  # node.json and directory, when it was looked last whether they are this node's
        self._was_here = True
        try:
            slot = superblock.claim(Identity.current(), name, delivery_slots=delivery_slots)
        except SlotsFull as error:
            raise LimitError(
                f"{error} ({command('status', directory.path, '--all')} shows who has them; queue workers have some, "
                "too)"
            ) from error
        region: Region | None = None
        try:
            region = sysv_create(
                superblock.region_bytes(delivery_slots),
                owner=superblock.owner,
                late=superblock.late_parts(delivery_slots),
            )
            superblock.set_segment(slot, region.id)
            superblock.sign(region)
            self.core = _core.Client(
                superblock.buffer, region.buffer, slot.slot, slot.generation, slot.client_epoch, hook
            )
            self.core.call_timeout = call_timeout
            if counted:
                self._raise_live_count()
            self.slot: SlotView = superblock.activate(slot)
            self.region = region
            mailbox.post(
                descriptor,
                "supervisor",
                "register",
                mailbox.PRIORITY_CLIENT,
                slot=self.slot.slot,
            )
        except BaseException as error:
            self._undo(slot, region)
            if isinstance(error, RegionError) and error.errno != errno.EMFILE:
                raise LimitError(
                    f"no shared memory for another client: {error.strerror}; or lower a setting: arena_bytes, "
                    "delivery_slots, amqp_delivery_slots"
                ) from error
            raise

    def _undo(self, slot: SlotView, region: Region | None) -> None:
        """Attaching failed half-way, wherever: nothing of it stays."""
        core = getattr(self, "core", None)
        if core is not None:
            core.end(None)
        self._lower_live_count()
        if region is not None:
            sysv_remove(region.id)  # it goes with its last mapping
            close_region(region)
        if not self.superblock.leave(slot.slot, slot.generation):  # it was not active yet
            self.superblock.give_back(slot)

    @functools.cached_property
    def append_bytes(self) -> int:
        """How many bytes of the log one command appends at most, if it has several messages: half of what a commit of a
        small log can have.
        """
        settings = self.directory.read().settings
        return min(APPEND_BYTES, settings.topic_ring_bytes // 4, settings.log_file_bytes // 4)

    @functools.cached_property
    def record_limit(self) -> tuple[int, str]:
        """How many bytes the largest record of the topics' log has; the setting that says so, and what to do."""
        settings = self.directory.read().settings
        ring, file = settings.topic_ring_bytes, settings.log_file_bytes
        limit = f"topic_ring_bytes = {ring}: split it, or start the node with a larger one"
        if file < ring:
            limit = f"log_file_bytes = {file}: split it, or make a directory with a larger one"
        return _core.topic_record_bytes_max(ring, file), limit

    # -- end ----------------------------------------------------------------------------------------------------

    def leave(self, error: Error | None, wait_s: float = 0.0) -> bool:
        """End it in good order; False when `wait_s` was too short for what was submitted (it is executed still), or for
        what was held to be back in its queues.
        """
        done = True
        deadline = time.monotonic() + wait_s
        if self.pid == os.getpid():
            if wait_s and self.deserted():
                wait_s, deadline, done = 0.0, 0.0, False
            if not self.core.ended and wait_s and self.superblock.state < NODE_STOPPED:
                try:
                    done = self.core.wait_submitted(wait_s)
                except (Error, AttachmentLost):
                    done = False
            self.core.end(error)
            if self.superblock.leave(self.slot.slot, self.slot.generation):
                mailbox.post(
                    self.descriptor,
                    "supervisor",
                    "deregister",
                    mailbox.PRIORITY_CLIENT,
                    slot=self.slot.slot,
                )
                done = self._wait_returned(deadline) and done
            self._lower_live_count()
        else:
            self.core.end(error)
        self.unmap()
        return done

    def _wait_returned(self, deadline: float) -> bool:
        """Wait until the workers that this client consumed from have back what it held; False: not by the deadline."""
        slot, generation = self.slot.slot, self.slot.generation
        pause = RETURN_FIRST_S
        look_at = time.monotonic() + LOOK_S
        for server in self.workers:
            while self.superblock.server_done(slot, server) != generation & 0xFF:
                now = self.superblock.slot(slot)
                if now.generation != generation or now.state == FREE or self.superblock.state >= NODE_STOPPED:
                    break
                moment = time.monotonic()
                if moment >= deadline:
                    return False
                if moment >= look_at:
                    look_at = moment + LOOK_S
                    if self.deserted():
                        return False
                time.sleep(pause)
                pause = min(2 * pause, RETURN_MOST_S)
        return True

    # -- who lives ----------------------------------------------------------------------------------------------

    def supervised(self) -> bool:
        """Whether there is a supervisor, or one that begins or ends: it starts servers that are missing."""
        return self.superblock.supervisor.alive() or (self._is_here() and self.directory.locked())

    def _is_here(self) -> bool:
        """Whether the path of the directory leads to the one whose node this memory is of: what else is said of the
        directory by its path, as whether somebody has its lock, is said of another one.
        """
        try:
            seen = os.stat(self.directory.path / NODE)
            known = seen.st_dev, seen.st_ino, seen.st_mtime_ns, *self.directory.place
            if known != self._known:
                is_here = self.directory.shared_id == self.superblock.shared_id
                self._known, self._was_here = known, is_here
            return self._was_here
        except (FileNotFoundError, NotADirectoryError, NodeNotRunning):
            return False

    def served(self) -> bool:
        """Whether any server lives: those that do start a supervisor that is missing."""
        return any(self.superblock.server_identity(server).alive() for server in range(self.superblock.servers_n))

    def deserted(self) -> bool:
        """Whether every process of the node is dead, so that nobody answers before it is started again."""
        try:
            return not self.supervised() and not self.served()
        except (Error, OSError):
            return False  # not known

    def forsaken(self) -> bool:
        """True when nobody serves this memory any more, and nobody can find it who would."""
        try:
            if (self.superblock.named and self._is_here()) or self.superblock.supervisor.alive():
                return False
        except (Error, OSError):  # it cannot be known now
            return False
        return not self.served()

    def lose(self) -> None:
        """It is over: nobody submits anything any more; the next call of the client makes another."""
        self.core.end(None)

    def unmap(self) -> None:
        """Detach from all memory, when the threads that were woken by its end are out of it."""
        deadline = time.monotonic() + UNMAP_WAIT_S
        while self.core.busy and time.monotonic() < deadline:
            time.sleep(0.0005)
        regions = [self.region]
        for worker in self.workers.values():
            regions += [item for item in (worker.images, worker.transient_images) if item is not None]
        for store in self.stores.values():
            regions += store
        regions += [item.region for item in self.statistics.values()]
        self.workers, self.stores, self.statistics = {}, {}, {}
        for region in regions:
            close_region(region)
        topics, self._topics = self._topics, None
        if topics is not None:
            topics.close(forked=self.pid != os.getpid())
        with contextlib.suppress(BufferError):
            self.superblock.close()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _raise_live_count(self) -> None:
        key = self.superblock.get("live_semaphore_key")
        if self.superblock.owner[1] != ALONE:  # members of the group write the superblock, but not node.json
            node = self.directory.read()
            if node.shared_id != self.superblock.shared_id:
                raise NodeNotRunning("the node is ending: another one was started for its directory")
            key = node.semaphore_keys[0]
        if key:
            try:
                semaphore = sysv_ipc.Semaphore(key)
                semaphore.undo = True
                semaphore.release()
            except (sysv_ipc.ExistentialError, sysv_ipc.PermissionsError) as error:
                raise NodeNotRunning("the node is ending: its semaphore was removed") from error
            except (sysv_ipc.Error, OSError, ValueError) as error:
                raise LimitError(
                    f"cannot count this client in the node's semaphore ({error}): see the sysctl kernel.sem"
                ) from error
            self._semaphore = semaphore

    def _lower_live_count(self) -> None:
        semaphore, self._semaphore = self._semaphore, None
        if semaphore is not None:
            # The node went, and took it along; or the kernel refuses, and lowers it when this process ends.
            with contextlib.suppress(sysv_ipc.Error, OSError):
                semaphore.acquire(0)

    # -- regions of servers -------------------------------------------------------------------------------------

    def open_worker(self, server: int) -> None:
        """Open the regions of a worker's present incarnation and give them to the core."""
        folder = WorkerFolder.of(Path(), server - SERVER_WORKER_FIRST)
        deadline = time.monotonic() + REGION_WAIT_S
        regions: list[Region] = []
        epoch = generation = 0
        while not regions:
            epoch = self.core.link_epoch(server)
            generation = self.superblock.server_get(server, "generation")
            try:
                regions = self._open_regions(server, generation, ("images", False), ("timages", False))
            except RegionError as error:  # it was restarted once more meanwhile
                if self.superblock.server_get(server, "state") == SERVER_FAILED:
                    raise given_up(self.directory, self.superblock.role_of(server)) from error
                if time.monotonic() > deadline:
                    raise self._unavailable(self.superblock.role_of(server), error) from error
                time.sleep(0.002)
        images, transient = regions
        folders: list[int] = []
        try:
            folders = _folders(self.descriptor, folder.journal, folder.transient, folder.segments)
            self.core.set_worker(server, images.buffer, transient.buffer, folders[0], folders[1], folders[2], epoch)
        except BaseException:
            _close_all(folders)
            for region in regions:
                close_region(region)
            raise
        old = self.workers.get(server)
        self.workers[server] = _WorkerRegions(generation, images, transient)
        if old is not None:
            self._tell_restart(server)
            for gone in (old.images, old.transient_images):
                if gone is not None:
                    close_region(gone)

    def open_large(self, server: int) -> None:
        """Give the core the folder of a worker's large messages. Raises OSError, AttachmentLost."""
        folder = WorkerFolder.of(Path(), server - SERVER_WORKER_FIRST).large
        descriptor = data_files.open_folder(str(folder), folder=self.descriptor)
        try:
            self.core.set_large(server, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def open_store(self, server: int) -> None:
        """Open the regions of a store's present incarnation, if there are any, and give them to the core."""
        deadline = time.monotonic() + REGION_WAIT_S
        regions: list[Region] = []
        epoch = 0
        while not regions:
            epoch = self.superblock.server_get(server, "epoch")
            generation = self.superblock.server_get(server, "generation")
            if not epoch:
                return
            try:
                regions = self._open_regions(
                    server, generation, ("directory", True), ("summary", False), ("images", False)
                )
            except RegionError as error:
                if time.monotonic() > deadline:
                    raise self._unavailable("the store", error) from error
                time.sleep(0.002)
        folders: list[int] = []
        try:
            folders = _folders(self.descriptor, store_folder(Path(), server))
            directory, summary, images = (region.buffer for region in regions)
            self.core.set_store(server, directory, summary, images, folders[0], epoch)
        except BaseException:
            _close_all(folders)
            for region in regions:
                close_region(region)
            raise
        old, self.stores[server] = self.stores.get(server, []), regions
        if old:
            self._tell_restart(server)
        for region in old:
            close_region(region)

    def topics(self) -> TopicPlace:
        """Where topics are read from, of the topic worker's present incarnation; of an earlier one while there is no
        other yet (`past`, when another has served since). Raises PeerLost, OSError, AttachmentLost (by another thread,
        just now).
        """
        server = self.superblock.topic_server
        place, generation = self._topics, self.superblock.server_get(server, "generation")
        if place is not None and place.generation == generation:
            return place
        deadline = time.monotonic() + REGION_WAIT_S
        while True:
            with self._topics_lock:
                place, generation = self._topics, self.superblock.server_get(server, "generation")
                if place is not None and place.generation == generation:
                    return place
                try:
                    return self._open_topics(generation)
                except RegionError as error:  # it has ended in order, or was restarted once more
                    if place is not None:
                        place.past = True
                        return place
                    if self.superblock.server_get(server, "state") == SERVER_FAILED:
                        raise given_up(self.directory, self.superblock.role_of(server)) from error
                    if time.monotonic() > deadline:
                        raise self._unavailable("the topics", error) from error
            time.sleep(0.002)

    def _open_topics(self, generation: int) -> TopicPlace:
        settings = self.directory.read().settings
        fresh = TopicPlace(self.superblock, generation, settings, self.descriptor)
        old, self._topics = self._topics, fresh
        if self.core.over:  # `unmap` sees what it has to close, or this sees that it is over
            fresh.close()
            raise AttachmentLost("another thread has ended this attachment")
        if old is not None:
            self._tell_restart(self.superblock.topic_server)
            old.close()
        return fresh

    def _tell_restart(self, server: int) -> None:
        who, pid = self.superblock.server_name(server), self.superblock.server_identity(server).pid
        log.info("%s of the node of %s was restarted (process %d): attached to it", who, self.directory.path, pid)

    def _unavailable(self, whose: str, error: RegionError) -> Error:
        """What is raised when a server's shared memory is not there for long."""
        if self.superblock.state >= NODE_DRAINING:
            return ClosedError(f"the node of {self.directory.path} is being stopped, or has stopped")
        return PeerLost(f"the shared memory of {whose} is not available ({error}): try again")

    def _open_regions(self, server: int, generation: int, *wanted: tuple[str, bool]) -> list[Region]:
        """Regions of a server, each (what, writable): all, or none. Raises RegionError, OSError."""
        opened: list[Region] = []
        try:
            for what, writable in wanted:
                name = self.superblock.region_name(what, server, generation)
                opened.append(posix_open(name, writable=writable))
        except BaseException:
            for region in opened:
                region.close()
            raise
        return opened

    def statistics_of(self, server: int, queue: int) -> memoryview | None:
        """The statistics row (wr_queue_stats) of a queue, None when the worker shows none now, or has been
        dead for longer than ALIVE_S.
        """
        if (now := time.monotonic()) >= self._look_at.get(server, 0.0):  # a look costs more than all the rest
            if not self.superblock.server_identity(server).alive():
                return None
            self._look_at[server] = now + ALIVE_S
        generation = self.superblock.server_get(server, "queue_stats_generation")
        found = self.statistics.get(server)
        if found is None or found.generation != generation:
            if found is not None:
                close_region(self.statistics.pop(server).region)
            if not generation:
                return None
            try:
                region = posix_open(self.superblock.region_name("qstats", server, generation), writable=False)
            except RegionError:
                return None
            except OSError as error:
                raise explain(error, "cannot look at the statistics of queues") from error
            found = self.statistics[server] = _Statistics(generation, region)
        size = QUEUE_STATS.size
        row = found.rows.get(queue)
        if row is None or int.from_bytes(found.region.buffer[row * size : row * size + 8], sys.byteorder) != queue:
            used = min(self.superblock.server_get(server, "queue_stats_rows"), found.region.size // size)
            row = _find_row(found.region.buffer[: used * size], queue)
            if row is None:
                return None
            found.rows[queue] = row
        return found.region.buffer[row * size : (row + 1) * size]


def _find_row(rows: memoryview, queue: int) -> int | None:
    """The row of a queue among the rows of a statistics region that are used."""
    if not len(rows):
        return None
    ids = rows.cast("Q")[:: QUEUE_STATS.size // 8].tobytes()
    wanted, at = queue.to_bytes(8, sys.byteorder), -1
    while (at := ids.find(wanted, at + 1)) >= 0:
        if at % 8 == 0:
            return at // 8
    return None


def _folder(directory: int, path: str) -> int:
    """A descriptor of a folder of an open directory, -1 when it is not there. Raises OSError otherwise: its files would
    seem to be gone.
    """
    try:
        return data_files.open_folder(path, folder=directory)
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _folders(directory: int, *paths: Path) -> list[int]:
    """Descriptors of folders below an open directory, all or (OSError) none."""
    opened: list[int] = []
    try:
        for path in paths:
            opened.append(_folder(directory, str(path)))  # noqa: PERF401 - those before a failure are closed
    except BaseException:
        _close_all(opened)
        raise
    return opened


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def close_region(region: Region) -> None:
    """Unmap; when a thread still reads it, the mapping goes with the last reader."""
    with contextlib.suppress(BufferError):
        region.close()


def find_superblock(directory: NodeDirectory, deadline: float) -> tuple[Superblock, int]:
    """The superblock of a running node and a descriptor of its directory, waiting until `deadline` for one that starts.

    Raises NodeNotRunning, UsageError (it runs where this process cannot see it), PermissionRefused.
    """
    ownership.check_user(directory.path)
    first = True
    while True:
        node = directory.read()
        superblock: Superblock | None = None
        found = None
        try:
            descriptor = open_directory(directory.path)
        except OSError as error:
            raise explain(error, f"cannot open {directory.path}") from error
        try:
            place, owner = place_of(descriptor), os.fstat(descriptor).st_uid
            superblock, foreign = _mapped(directory, node.superblock_at(place), owner)
            unlike: list[str] = []
            if superblock is not None:
                state = superblock.state
                unlike = superblock.namespaces.unlike(Namespaces.current())
                alive = (state == NODE_RUNNING and not unlike and superblock.place == place) and (
                    superblock.supervisor.alive()
                    or any(superblock.server_identity(server).alive() for server in range(superblock.servers_n))
                )
                if alive and superblock.get("magic"):
                    served, superblock, descriptor, held = superblock, None, -1, descriptor
                    return served, held
                found = state
        finally:
            if superblock is not None:
                superblock.close()
            if descriptor >= 0:
                os.close(descriptor)
        locked = directory.in_use() if foreign < 0 else directory.locked()  # its owner may be another one now
        if not locked and not first:
            if unlike := orphaned_elsewhere(directory):
                raise elsewhere(directory, unlike)
            raise NodeNotRunning(f"{directory.none_runs()}{in_a_program('warren.open')}")
        if locked and not first:  # what the lock file says is of before for an instant
            unlike = unlike or directory.holder_namespaces().unlike(Namespaces.current())
            if unlike:
                raise elsewhere(directory, unlike)
        if time.monotonic() > deadline:
            if foreign >= 0:
                ownership.check_served(directory.path, (foreign, ALONE))
            doing = "is being stopped" if found in (NODE_DRAINING, NODE_STOPPED) else "did not come up in time"
            raise NodeNotRunning(
                f"the node of {directory.path} {doing}: see {directory.log_file('supervisor')}, or give more time"
            )
        first = False
        time.sleep(0.005)


def _mapped(directory: NodeDirectory, shared_id: int, owner: int) -> tuple[Superblock | None, int]:
    """The superblock of this name, which is the directory's owner's, None when there is none; and the other user who
    has something of that name, -1: nobody.
    """
    try:
        found = Superblock.attach(shared_id, LAYOUT_HASH, owner)
    except ForeignRegion as error:
        return None, error.owner
    except RegionError as error:
        if error.errno == errno.ENOENT:
            return None, -1
        if error.errno == errno.EACCES:
            ownership.check_served(directory.path, (owner, ALONE))
        raise PeerLost(f"cannot attach to the node of {directory.path}: {error}") from error
    try:
        ownership.check_served(directory.path, found.owner)
    except BaseException:
        found.close()
        raise
    return found, -1


def given_up(directory: NodeDirectory, role: str) -> PeerLost:
    """What a call says that needs a server which the supervisor does not start again."""
    kept = "the topics" if role == names.TOPICS else "its queues"
    return PeerLost(
        f"{role} has failed and is not restarted{because(directory.log_file(role))}, {kept} are kept as they are: see "
        f"{directory.log_file(role)} and supervisor.log beside it, remove the cause, then stop and start the node"
    )
