"""A process as a client of a node: its attachment, what it knows of the catalog, and how it comes back after trouble.

    Client       one per warren.open / warren.attach; lives until close(); makes attachments, as many as it takes
    Attachment   one registration: a client slot, a region of its own, the core that uses them, the servers' regions

Life of an attachment
  claim a slot → segment → core → one unit of the live semaphore (SEM_UNDO) → ACTIVE → mailbox `register`
  end: what was submitted is waited for → LEAVING → mailbox `deregister` → detach. The servers return what it held.
  A sudden death needs nothing of this: the supervisor sees the pidfd, the kernel undoes the semaphore and detaches.
When an attachment is over (node stopped and started anew, link closed by a server, fork) the core raises AttachmentLost
before anything is submitted; whoever called asks for another attachment and calls again. What was submitted and not
confirmed is reported as PeerLost, never repeated by itself. Whoever asks for the attachment in use gets none that is
over: a node that was stopped says so in the superblock, which stays mapped (`over`, one load), so nobody is told what
the catalog or the statistics of a node of the past say.

Invariants
  A child of fork never touches its parent's region: the core refuses by itself, and the child unmaps it.
  Waiting is the core's; `_hook` mends what it can (regions of a restarted server, a new catalog) or raises.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

import msgspec
import sysv_ipc

from warren.engine import _core, errors
from warren.engine._core import AttachmentLost
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog import metadata
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.names import check_routing_key
from warren.engine.catalog.node_directory import NodeDirectory, open_directory, place_of
from warren.engine.catalog.routing import Router
from warren.engine.errors import (
    ClosedError,
    DiskFull,
    Error,
    LimitError,
    NodeNotRunning,
    PeerLost,
    PermissionRefused,
    QueueNotFound,
    StoreError,
    SyncFailed,
    TimedOut,
    Unroutable,
)
from warren.engine.kernel.atomic_file import explain, explained
from warren.engine.saying import command
from warren.ipc import mailbox, names
from warren.ipc.identity import Identity, Namespaces
from warren.ipc.layout import (
    CONSTANTS,
    QUEUE_STATS,
    SERVER_STORE_PERSISTENT,
    SERVER_STORE_TRANSIENT,
    SERVER_WORKER_FIRST,
    eviction,
)
from warren.ipc.region import Region, RegionError, posix_open, sysv_create, sysv_remove
from warren.ipc.superblock import FREE, SlotsFull, SlotView, Superblock
from warren.workers.client.arguments import checked_client_name, checked_exchange, checked_seconds, checked_timeout
from warren.workers.process import alarm_words as alarms
from warren.workers.process.control import WAIT_MAX_S, ControlClient
from warren.workers.process.tie import described, elsewhere

NODE_RUNNING, NODE_DRAINING, NODE_STOPPED = (CONSTANTS[f"NODE_{name}"] for name in ("RUNNING", "DRAINING", "STOPPED"))
SERVER_READY, SERVER_FAILED = CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_FAILED"]
#: how long a call without a timeout waits for room, when it does not wait for what becomes of a thing
CALL_TIMEOUT_S = 30.0
#: how long close() waits for what was submitted
CLOSE_WAIT_S = 10.0
#: how long close() waits for the worker's last word on what was delivered ahead
GIVE_BACK_S = 1.0
#: how long statistics are believed after a look whether their worker lives
ALIVE_S = 0.1
#: how often close() looks whether anybody lives who could give back what was held
LOOK_S = 0.25
#: how often close() looks whether what was held is back: first and at most
RETURN_FIRST_S, RETURN_MOST_S = 0.0001, 0.005
#: how long close() waits for threads that were waiting inside; they are woken before
UNMAP_WAIT_S = 2.0
#: how long every process of a node may be dead before a waiting call gives it up
ABANDONED_S = 2.0
#: how long a region of a restarted server is looked for
REGION_WAIT_S = 2.0
#: how often queues with messages delivered ahead are looked at, after a hot loop of gets
HOARD_S = 0.1
ROUTES_MAX = 65536
_NO_ROUTES: Mapping[Any, Route] = {}


@dataclass(frozen=True, eq=False)
class Route:
    """Where messages of one exchange and routing key go: for the core, and what of it lasts."""

    core: _core.Route
    queues: tuple[QueueDeclaration, ...]
    durable: bool
    meta: bytes


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
    """One registration of this process with a node; `counted`: among the live clients of the node's semaphore."""

    def __init__(
        self,
        superblock: Superblock,
        directory: NodeDirectory,
        name: str,
        hook: Callable[[int, int, str], None],
        counted: bool = True,
        call_timeout: float | None = None,
        descriptor: int = -1,
    ) -> None:
        self.superblock = superblock
        self.directory = directory
        self.descriptor = descriptor  #: of the directory, from success on: the files are found by it, not by a path
        self.pid = os.getpid()
        self.node_epoch = superblock.get("node_epoch")
        self.workers: dict[int, _WorkerRegions] = {}
        self.stores: dict[int, list[Region]] = {}
        self.statistics: dict[int, _Statistics] = {}
        self._look_at: dict[int, float] = {}  # when statistics of a server are believed no longer
        self.control_locks = [threading.Lock() for _server in range(superblock.servers_n)]
        self._semaphore: sysv_ipc.Semaphore | None = None
        try:
            slot = superblock.claim(Identity.current(), name)
        except SlotsFull as error:
            raise LimitError(
                f"{error} ({command('status', directory.path, '--all')} shows whose they are; queue workers have some)"
            ) from error
        region: Region | None = None
        try:
            region = sysv_create(superblock.get("client_region_bytes"))
            superblock.set_segment(slot, region.id)
            self.core = _core.Client(
                superblock.buffer, region.buffer, slot.slot, slot.generation, slot.client_epoch, hook
            )
            self.core.call_timeout = call_timeout
            if counted:
                self._raise_live_count()
            self.slot: SlotView = superblock.activate(slot)
            self.region = region
            mailbox.post(
                names.mailbox(superblock.shared_id, "supervisor"),
                "register",
                mailbox.PRIORITY_CLIENT,
                slot=self.slot.slot,
            )
        except BaseException as error:
            self._undo(slot, region)
            if isinstance(error, RegionError) and error.errno != errno.EMFILE:
                raise LimitError(
                    f"no shared memory for another client: {error.strerror}; or lower the setting arena_bytes"
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

    # -- end ----------------------------------------------------------------------------------------------------

    def leave(self, error: Error | None, wait_s: float = 0.0) -> bool:
        """End it in good order; False when `wait_s` was too short for what was submitted (it is executed still), or for
        what was held to be back in its queues.
        """
        settled = True
        deadline = time.monotonic() + wait_s
        if self.pid == os.getpid():
            if wait_s and self.deserted():
                wait_s, deadline, settled = 0.0, 0.0, False
            if not self.core.ended and wait_s and self.superblock.state < NODE_STOPPED:
                try:
                    settled = self.core.settle(wait_s)
                except (Error, AttachmentLost):
                    settled = False
            self.core.end(error)
            if self.superblock.leave(self.slot.slot, self.slot.generation):
                mailbox.post(
                    names.mailbox(self.superblock.shared_id, "supervisor"),
                    "deregister",
                    mailbox.PRIORITY_CLIENT,
                    slot=self.slot.slot,
                )
                settled = self._wait_returned(deadline) and settled
            self._lower_live_count()
        else:
            self.core.end(error)
        self.unmap()
        return settled

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
        return self.superblock.supervisor.alive() or self.directory.locked()

    def served(self) -> bool:
        """Whether any server lives: those that do start a supervisor that is missing."""
        return any(self.superblock.server_identity(server).alive() for server in range(self.superblock.servers_n))

    def deserted(self) -> bool:
        """Whether every process of the node is dead, so that nobody answers before it is started again."""
        try:
            return not self.supervised() and not self.served()
        except (Error, OSError):
            return False  # not known

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
        with contextlib.suppress(BufferError):
            self.superblock.close()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _raise_live_count(self) -> None:
        key = self.superblock.get("live_semaphore_key")
        if key:
            try:
                semaphore = sysv_ipc.Semaphore(key)
                semaphore.undo = True
                semaphore.release()
            except (sysv_ipc.ExistentialError, sysv_ipc.PermissionsError) as error:
                raise NodeNotRunning("the node is going away: its semaphore is gone") from error
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
        base = f"queues/worker-{server - SERVER_WORKER_FIRST}"
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
                    raise given_up(self.directory, server) from error
                if time.monotonic() > deadline:
                    raise PeerLost(
                        f"the memory of {names.role_of(server)} is not there ({error}): try again"
                    ) from error
                time.sleep(0.002)
        images, transient = regions
        folders: list[int] = []
        try:
            folders = _folders(self.descriptor, base, "journal", "transient", "segments")
            self.core.set_worker(server, images.buffer, transient.buffer, folders[0], folders[1], folders[2], epoch)
        except BaseException:
            _close_all(folders)
            for region in regions:
                close_region(region)
            raise
        old = self.workers.get(server)
        self.workers[server] = _WorkerRegions(generation, images, transient)
        if old is not None:
            for gone in (old.images, old.transient_images):
                if gone is not None:
                    close_region(gone)

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
                    raise PeerLost(f"the memory of the store is not there ({error}): try again") from error
                time.sleep(0.002)
        folders: list[int] = []
        try:
            name = "persistent" if server == SERVER_STORE_PERSISTENT else "transient"
            folders = _folders(self.descriptor, "store", name)
            directory, summary, images = (region.buffer for region in regions)
            self.core.set_store(server, directory, summary, images, folders[0], epoch)
        except BaseException:
            _close_all(folders)
            for region in regions:
                close_region(region)
            raise
        old, self.stores[server] = self.stores.get(server, []), regions
        for region in old:
            close_region(region)

    def _open_regions(self, server: int, generation: int, *wanted: tuple[str, bool]) -> list[Region]:
        """Regions of a server, each (what, writable): all, or none. Raises RegionError, OSError."""
        opened: list[Region] = []
        try:
            for what, writable in wanted:
                name = names.region(self.superblock.shared_id, what, server, generation)
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
                region = posix_open(
                    names.region(self.superblock.shared_id, "qstats", server, generation), writable=False
                )
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


def given_up(directory: NodeDirectory, server: int) -> PeerLost:
    """What a call says that needs a server which the supervisor does not start again."""
    role = names.role_of(server)
    return PeerLost(
        f"{role} has failed and is not started again, its queues wait as they are: see {directory.log_file(role)}, "
        "mend what it says, then stop and start the node"
    )


def _folder(directory: int, path: str) -> int:
    """A descriptor of a folder of an open directory, -1 when it is not there. Raises OSError otherwise: its files would
    seem to be gone.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _folders(directory: int, base: str, *names: str) -> list[int]:
    """Descriptors of folders in `base` of an open directory, all or (OSError) none."""
    opened: list[int] = []
    try:
        for name in names:
            opened.append(_folder(directory, f"{base}/{name}"))  # noqa: PERF401 - those before a failure are closed
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


class Client:
    """This process at one node, from attach to close; safe for threads and for fork."""

    def __init__(
        self,
        directory: Path | str,
        name: str | None,
        timeout: float,
        *,
        counted: bool = True,
        call_timeout: float | None = CALL_TIMEOUT_S,
    ) -> None:
        self._counted = counted
        checked_seconds(timeout, endless=False)
        self.call_timeout = checked_timeout(call_timeout)
        self.directory = NodeDirectory(directory)
        self.name = checked_client_name(name) or _default_name()
        self.closed = False
        self.pid = os.getpid()
        self._lock = threading.RLock()
        self._control_lock = threading.Lock()
        self._control = ControlClient(self.directory.path)
        self._attachment: Attachment | None = None
        self._catalog = catalog_log.Reader(self.directory.path)
        self._router: Router | None = None
        self._routes: dict[str, dict[Any, Route]] = {}  # of each exchange, by routing key
        self._routes_n = 0
        self._handles: weakref.WeakValueDictionary[int, _core.QueueHandle] = weakref.WeakValueDictionary()
        self._older: weakref.WeakSet[_core.QueueHandle] = weakref.WeakSet()
        self._hot: dict[int, _core.QueueHandle] = {}
        self._tidier: threading.Thread | None = None
        self._silence: tuple[float, int] | None = None  #: since when all are dead, and pid of the supervisor that died
        self._owner_epoch = 0  #: the attachment that declared an exclusive queue
        self._attachment = self._attach(timeout)
        _clients.add(self)

    # -- attachments --------------------------------------------------------------------------------------------

    def attachment(self, timeout: float = 5.0) -> Attachment:
        """The attachment in use; a new one when there is none any more. Raises ClosedError, LimitError."""
        attachment = self._attachment
        if attachment is not None and not attachment.core.over:
            return attachment
        with self._lock:
            if self.closed:
                raise ClosedError(f"this client of {self.directory.path} is closed: attach again")
            attachment = self._attachment
            if attachment is not None and not attachment.core.over:
                return attachment
            forget_control = self.pid != os.getpid()
            if attachment is not None:
                attachment.leave(None)
                self._attachment = None
            self.pid = os.getpid()
            if forget_control:
                self.name = _child_name(self.name)
            try:
                self._attachment = self._attach(timeout)
            except NodeNotRunning as error:
                raise ClosedError(
                    f"the node of {self.directory.path} was stopped: start it again, or close this client"
                ) from error
            return self._attachment

    @property
    def epoch(self) -> int:
        """The client epoch of the attachment in use; exclusive queues belong to one."""
        return self.attachment().slot.client_epoch

    @property
    def core(self) -> _core.Client:
        """The core of the attachment in use."""
        return self.attachment().core

    def _attach(self, timeout: float) -> Attachment:
        with explained(f"cannot attach to the node of {self.directory.path}"):
            return self._attach_within(time.monotonic() + timeout)

    def _attach_within(self, deadline: float) -> Attachment:
        while True:
            superblock, descriptor = find_superblock(self.directory, deadline)
            try:
                attachment = Attachment(
                    superblock,
                    self.directory,
                    self.name,
                    self._hook_weakly(),
                    self._counted,
                    self.call_timeout,
                    descriptor,
                )
            except BaseException:
                with contextlib.suppress(BufferError):
                    superblock.close()
                os.close(descriptor)
                raise
            self._router = None
            self._catalog = catalog_log.Reader(f"/proc/self/fd/{attachment.descriptor}")  # of no other directory
            self._routes, self._routes_n = {}, 0
            self._silence = None
            try:
                if superblock.state < NODE_STOPPED:
                    return attachment
            except BaseException:
                attachment.leave(None)
                raise
            attachment.leave(None)

    def _hook_weakly(self) -> Callable[[int, int, str], None]:
        """The hook for a core. It does not keep the client: one that is forgotten goes away."""
        reference = weakref.ref(self)

        def hook(code: int, server: int, what: str) -> None:
            client = reference()
            if client is None:
                raise ClosedError("the client was dropped")
            client._hook(code, server, what)

        return hook

    def _lose(self, attachment: Attachment | None, error: Error | None) -> None:
        """The attachment is over: nobody submits anything any more; the next call makes another."""
        if attachment is not None:
            attachment.core.end(error)

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Wait for what was submitted, deregister, detach: `wait_s` at most in all. When this returns in time, what was
        delivered and not acked is back in its queues, and exclusive queues are gone.
        """
        deadline = time.monotonic() + wait_s
        with self._lock:
            if self.closed:
                return
            self.closed = True
            attachment, self._attachment = self._attachment, None
            self._hot.clear()
        if attachment is not None:
            error = ClosedError(f"this client of {self.directory.path} was closed: attach again")
            mine = attachment.pid == os.getpid()
            if mine:
                with contextlib.suppress(Error, AttachmentLost):  # the servers return it all the same
                    self._give_back(attachment, min(wait_s, GIVE_BACK_S))
                if self._owner_epoch == attachment.slot.client_epoch and not attachment.deserted():
                    with contextlib.suppress(Error):  # the supervisor finds them without an owner
                        self._release_queues(attachment, min(wait_s, GIVE_BACK_S))
            attachment.leave(error, max(0.0, deadline - time.monotonic()) if mine else 0.0)
        self._control.close()
        _clients.discard(self)

    def deserted(self) -> bool:
        """Whether nobody lives at the node of the attachment in use, if there is one."""
        attachment = self._attachment
        return attachment is not None and not attachment.core.over and attachment.deserted()

    def _release_queues(self, attachment: Attachment, wait_s: float) -> None:
        """Delete the exclusive queues of this client, so that their names are free when it has left."""
        deadline = time.monotonic() + wait_s
        if attachment.superblock.state < NODE_DRAINING and self._control_lock.acquire(timeout=wait_s):
            try:
                left = max(0.0, deadline - time.monotonic())
                self._control.call("release_queues", timeout=left, client=attachment.slot.client_epoch)
            finally:
                self._control_lock.release()

    def _give_back(self, attachment: Attachment, wait_s: float) -> None:
        """What was delivered ahead and handed to nobody returns as such: its delivery does not count."""
        handles = [handle for handle in list(self._handles.values()) if handle.usable]
        asked = [handle for handle in handles if handle.stop() is not None or handle.pending]
        if asked and attachment.superblock.state < NODE_DRAINING and not attachment.deserted():
            attachment.core.settle(wait_s)  # behind the CANCEL nothing comes any more
            for handle in asked:
                handle.give_back()

    def _after_fork(self) -> None:
        """In a child: locks are new, the parent's memory is let go."""
        self._lock = threading.RLock()
        self._control_lock = threading.Lock()
        self._hot = {}
        self._tidier = None
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.core.end(None)
            attachment.unmap()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not sys.is_finalizing():
            self.close()

    # -- trouble ------------------------------------------------------------------------------------------------

    def _hook(self, code: int, server: int, what: str) -> None:
        with explained(f"cannot use the node of {self.directory.path}"):
            self._act(code, server, what)

    def _act(self, code: int, server: int, what: str) -> None:
        attachment = self._attachment
        if attachment is None:
            raise ClosedError(f"this client of {self.directory.path} was closed: attach again")
        if code == _core.HOOK_EPOCH:
            with self._lock:
                if server < SERVER_WORKER_FIRST:
                    attachment.open_store(server)
                else:
                    attachment.open_worker(server)
        elif code == _core.HOOK_CATALOG:
            self._reload(attachment)
        elif code == _core.HOOK_HOT:
            self._look_after(server)
        elif code == _core.HOOK_CHECK:
            self._check(attachment, server)
        elif code == _core.HOOK_STOPPING:
            self._stopping(attachment)
        elif code == _core.HOOK_FROZEN:
            number = attachment.superblock.server_get(server, "error")
            if number == errno.ESTALE:
                raise SyncFailed(described(CONSTANTS["ENDING_REMOVED"], self.directory.path))
            raise SyncFailed(
                f"the {names.role_of(server)} could not make data durable ({os.strerror(number)}); "
                "it refuses writes until "
                "the node is reopened: look at the disk, then stop and start the node"
            )
        elif code == _core.HOOK_FAILED:
            raise given_up(self.directory, server)
        elif code == _core.HOOK_EVICTED:
            lost = PeerLost(
                f"the {names.role_of(server)} closed this client's link: "
                f"{eviction(attachment.core.evicted(server))}; the next call attaches anew"
            )
            self._lose(attachment, None)
            raise lost
        elif code == _core.HOOK_TIMED_OUT:
            self._timed_out(attachment, server, what)
        elif code == _core.HOOK_SILENT:
            superblock = attachment.superblock
            worker = superblock.server_identity(server)
            ready = superblock.server_get(server, "state") == SERVER_READY
            if not (ready and worker.alive()) or worker.stands_still():
                self._timed_out(attachment, server, what)

    def _stopping(self, attachment: Attachment) -> None:
        if attachment.superblock.state == NODE_DRAINING and not _forsaken(attachment.superblock):
            why = described(attachment.superblock.get("ending"), self.directory.path)
            raise ClosedError(f"the node of {self.directory.path} is being stopped{': ' if why else ''}{why}")
        if attachment.superblock.state >= NODE_DRAINING:
            self._lose(attachment, None)
            raise AttachmentLost("the node was stopped")

    def _check(self, attachment: Attachment, server: int) -> None:
        """A second has passed without an answer. Is there anybody left who could give one?"""
        superblock = attachment.superblock
        if superblock.slot(attachment.slot.slot).claim != attachment.slot.claim:
            self._lose(attachment, None)
            raise AttachmentLost("this client's slot was taken away")
        if superblock.server_identity(server).alive() or superblock.supervisor.alive():
            self._silence = None
            return
        if _forsaken(superblock):
            self._lose(attachment, None)
            raise AttachmentLost("the shared memory of the node was removed, and its processes are dead")
        if attachment.supervised() or attachment.served():
            self._silence = None
            return
        now, silence, died = time.monotonic(), self._silence, superblock.supervisor.pid
        if silence is None or silence[1] != died:  # nobody has looked since it was started anew, and died again
            self._silence = (now, died)
        elif now - silence[0] >= ABANDONED_S:
            raise self._abandoned()

    def _abandoned(self, what: str = "") -> NodeNotRunning:
        return NodeNotRunning(
            f"{what}{what and ': '}every process of the node of {self.directory.path} has died: start it again with "
            f"{command('up', self.directory.path)}; what was submitted is still here"
        )

    def _timed_out(self, attachment: Attachment, server: int, what: str) -> None:
        superblock = attachment.superblock
        on = superblock.get("alarms")
        publishing = what == "publish"
        kept = "publishing is blocked" if publishing else f"{what}: not done within the timeout"
        if on & alarms.DISK and what != _core.THE_ANSWER:
            raise DiskFull(f"{kept}: {alarms.cause(superblock, alarms.DISK)}; {alarms.advice(superblock, alarms.DISK)}")
        if on & alarms.MEMORY and (publishing or what == "room for the message"):
            raise TimedOut(
                f"{kept}: {alarms.cause(superblock, alarms.MEMORY)}; {alarms.advice(superblock, alarms.MEMORY)}"
            )
        state = superblock.server_get(server, "state")
        if state != SERVER_READY or not superblock.server_identity(server).alive():
            raise self._down(attachment, server, what)
        limits = (
            " (the ring or the arena of this client is full: settings ring_records, arena_bytes)"
            if "room" in what
            else ""
        )
        raise TimedOut(f"{what}: not done within the timeout{limits}")

    def _down(self, attachment: Attachment, server: int, what: str) -> PeerLost:
        """A server is not there: who starts it again?"""
        if attachment.deserted():
            return self._abandoned(what)
        doing = "it is being restarted"
        if not attachment.supervised():
            doing = "and so is the supervisor: the servers that live start another one, which restarts it"
        return PeerLost(
            f"{what}: the {names.role_of(server)} is down ({doing}); what was submitted is kept. Try again, or give "
            "more time"
        )

    # -- catalog ------------------------------------------------------------------------------------------------

    def router(self) -> Router:
        """Routes by the catalog of now."""
        attachment = self.attachment()
        router = self._router
        if router is None or attachment.core.behind:
            while not self._reload(attachment):
                attachment = self.attachment()
            router = self._router
            assert router is not None
        return router

    def catalog(self) -> Catalog:
        """The catalog of now, for whoever asks what there is. That is asked less often than routes are, so it is looked
        as well whether this is the memory of a node that died, and whose name is another's by now.
        """
        attachment = self.attachment()
        if _forsaken(attachment.superblock):
            self._lose(attachment, None)
        return self.router().catalog

    def _reload(self, attachment: Attachment) -> bool:
        """Read what is new in the catalog; False when another attachment was made meanwhile."""
        with self._lock:
            if attachment is not self._attachment:
                return False
            version = attachment.superblock.get("catalog_version")
            if self._router is not None and version == attachment.core.catalog_seen:
                return True
            if not self._follow(version):
                catalog = self._catalog.load(version)
                self._routes, self._routes_n = {}, 0
                self._router = Router(catalog)
                for handle in [*self._handles.values(), *self._older]:
                    if handle.queue not in catalog.by_id:
                        self._kill(handle)
            attachment.core.catalog_seen = version
            return True

    def _follow(self, version: int) -> bool:
        """Do what changed in the catalog since it was read; False when all of it has to be read."""
        router = self._router
        news = self._catalog.follow(version) if router is not None else None
        if router is None or news is None:
            return False
        if news.state is None:
            return True
        try:
            router.catalog.follow(news.steps, news.state)
            stale = router.follow(news.steps)
        except (KeyError, ValueError):  # it is not what the writer has: begin anew
            self._router = None
            return False
        for exchange in stale.exchanges:
            self._routes_n -= len(self._routes.pop(exchange, ()))
        for exchange, key in stale.keys:
            if key in self._routes.get(exchange, _NO_ROUTES):
                del self._routes[exchange][key]
                self._routes_n -= 1
        for step in news.steps:
            if step.gone and step.queue is not None:
                self._deleted(step.queue.id)
        return True

    def _deleted(self, queue: int) -> None:
        found = self._handles.get(queue)
        for handle in [*([] if found is None else [found]), *(item for item in self._older if item.queue == queue)]:
            self._kill(handle)

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Route:
        """The route of an exchange, a routing key and (headers exchange) headers.

        Raises ExchangeNotFound, UsageError.
        """
        self.router()
        routes = self._routes
        try:
            known = routes.get(exchange)
            found = known.get(routing_key) if known is not None else None
        except TypeError:  # it cannot be looked for, and is no name
            found = None
        return found if found is not None else self._find_route(exchange, routing_key, headers)

    def _find_route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None) -> Route:
        checked_exchange(exchange)
        check_routing_key(routing_key)
        with self._lock:  # nobody follows the catalog meanwhile
            router = self.router()
            queues = router.route(exchange, routing_key, headers)
            key: Any = routing_key
            if exchange in router.by_headers:
                key = (routing_key, *(queue.id for queue in queues))
            found = self._routes.get(exchange, _NO_ROUTES).get(key)
            if found is None:
                found = self.route_to(queues, metadata.encode(exchange, routing_key))
                if self._routes_n >= ROUTES_MAX:
                    self._routes, self._routes_n = {}, 0
                self._routes.setdefault(exchange, {})[key] = found
                self._routes_n += 1
            return found

    def route_to(self, queues: Iterable[QueueDeclaration], meta: bytes) -> Route:
        """The route to just these queues."""
        targets = tuple(queues)
        by_worker: dict[int, list[int]] = {}
        for queue in targets:
            by_worker.setdefault(SERVER_WORKER_FIRST + queue.worker, []).append(queue.id)
        return Route(_core.Route(list(by_worker.items())), targets, any(queue.durable for queue in targets), meta)

    def mandatory_route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Route:
        """The same; raises Unroutable when it leads nowhere."""
        route = self.route(exchange, routing_key, headers)
        if not route.queues:
            raise Unroutable(
                f"exchange {exchange!r} has no queue for routing key {routing_key!r}: "
                "bind one, or publish without mandatory"
            )
        return route

    def handle(self, queue: QueueDeclaration, owner: object, messages: type[_core.Delivery]) -> _core.QueueHandle:
        """A core handle of a queue; one per queue and attachment."""
        with self._lock:
            core = self.attachment().core
            found = self._handles.get(queue.id)
            if found is not None and found.usable and found.owner is owner:
                return found
            made = _core.QueueHandle(core, SERVER_WORKER_FIRST + queue.worker, queue.id, owner, messages)
            if found is not None:
                self._older.add(found)  # its owner may wait with it still
            # what lay ready at a client would not count there, and pass the maximum
            made.exact = bool({"max_length", "max_length_bytes"} & queue.arguments.keys())
            self._handles[queue.id] = made
            # Under the lock of _reload: a queue that went since the caller looked is not waited for. When the catalog
            # has another version by now, the next call or the next slice of a wait reads it.
            router = self._router
            if router is not None and queue.id not in router.catalog.by_id and not self._catalog_is_old(core):
                self._kill(made)
            return made

    def _catalog_is_old(self, core: _core.Client) -> bool:
        attachment = self._attachment
        return attachment is None or attachment.superblock.get("catalog_version") != core.catalog_seen

    def _kill(self, handle: _core.QueueHandle) -> None:
        """Its queue is gone: who calls or waits with it looks for the queue anew."""
        handle.kill("the queue was deleted")
        if self._handles.get(handle.queue) is handle:
            del self._handles[handle.queue]
        self._older.discard(handle)

    # -- questions ----------------------------------------------------------------------------------------------

    def control(self, op: str, *, timeout: float | EllipsisType | None = ..., **fields: Any) -> dict[str, Any]:
        """Ask the supervisor (warren.workers.process.control); `timeout`, else call_timeout, is for waiting for other
        threads of this client, too.
        """
        if self.closed:
            raise ClosedError(f"this client of {self.directory.path} is closed: attach again")
        given = self.call_timeout if isinstance(timeout, EllipsisType) else timeout
        limit = WAIT_MAX_S if given is None else min(given, WAIT_MAX_S)
        deadline = time.monotonic() + limit
        if not self._control_lock.acquire(timeout=limit):
            raise TimedOut(f"the supervisor of {self.directory.path} did not answer other threads within {limit:g} s")
        try:
            return self._control.call(op, timeout=max(0.0, deadline - time.monotonic()), **fields)
        finally:
            self._control_lock.release()

    def declare(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the supervisor as this client, to whom exclusive queues may belong."""
        epoch = self.epoch
        answer = self.control(op, client=epoch, **fields)
        if op == "declare_queue" and answer["queue"].get("owner"):
            self._owner_epoch = epoch
        return answer

    def current(self, queue: QueueDeclaration) -> QueueDeclaration:
        """The queue as the catalog has it now: a node that was started with other workers has it elsewhere, under
        another id. Raises QueueNotFound when it was deleted: its worker may not have heard of that yet.
        """
        found = self.catalog().queues.get(queue.name)
        if found is None or found.lasting_id != queue.lasting_id:
            what = "subscription" if queue.subscription_of else "queue"
            raise QueueNotFound(f"{what} {queue.name!r} was deleted: declare it again")
        return found

    def ask_queue(
        self,
        queue: QueueDeclaration,
        op: str,
        fields: Callable[[QueueDeclaration], dict[str, Any]] = lambda queue: {"queue": queue.id},
        timeout: float | EllipsisType | None = ...,
    ) -> dict[str, Any]:
        """Ask the worker of a queue, wherever it is; `fields` names it. Raises what it refused, PeerLost, TimedOut
        (without a `timeout` after call_timeout).
        """
        limit = self.call_timeout if isinstance(timeout, EllipsisType) else timeout
        while True:
            now = self.current(queue)
            try:
                return self._ask_worker(SERVER_WORKER_FIRST + now.worker, op, fields(now), limit)
            except AttachmentLost:
                continue

    def _ask_worker(self, server: int, op: str, fields: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Ask a queue worker (OP_CONTROL)."""
        request = msgspec.msgpack.encode({"op": op, **fields})
        attachment = self.attachment()
        if server >= len(attachment.control_locks):
            raise AttachmentLost("the node was started with fewer workers meanwhile")
        deadline = None if timeout is None else time.monotonic() + timeout
        lock = attachment.control_locks[server]  # one answer area for each server
        if not lock.acquire(timeout=-1 if timeout is None else min(timeout, WAIT_MAX_S)):
            raise TimedOut(f"{names.role_of(server)} did not answer other threads within {timeout:g} s")
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            result, reply = attachment.core.control(server, request, left)
        finally:
            lock.release()
        try:
            answer = msgspec.msgpack.decode(reply, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise StoreError(f"{names.role_of(server)} answered {op} with nonsense: {error}") from error
        if result == CONSTANTS["RESULT_ERROR"]:
            raise errors.by_name(str(answer.get("error")), str(answer.get("message")))
        return answer

    # -- what was delivered ahead and is not asked for ----------------------------------------------------------

    def _look_after(self, queue: int) -> None:
        """A hot loop of gets has messages delivered ahead: a thread returns them when the loop stops, and ends then."""
        handle = self._handles.get(queue)
        if handle is None:
            return
        with self._lock:
            self._hot[queue] = handle
            if self._tidier is None or not self._tidier.is_alive():
                tidier = threading.Thread(target=_tidy, args=(weakref.ref(self),), name="warren-tidier", daemon=True)
                tidier.start()
                self._tidier = tidier

    def _tidy_once(self) -> bool:
        """Return what idle loops left; False when there is nothing more to look after."""
        for queue, handle in list(self._hot.items()):
            with self._lock:  # a handle that begins to hoard again says so under this lock, after this look
                hoard = handle.hoard()
                if hoard == 0:
                    self._hot.pop(queue, None)
            if hoard > 0:
                with contextlib.suppress(Error, AttachmentLost):  # when the attachment is over the servers return it
                    handle.tidy()
        with self._lock:
            if self._hot and not self.closed:
                return True
            self._tidier = None
            return False


def _tidy(reference: weakref.ref[Client]) -> None:
    """Body of the thread that returns what a stopped loop of gets left."""
    while True:
        time.sleep(HOARD_S)
        client = reference()
        if client is None or not client._tidy_once():
            return
        del client


def _forsaken(superblock: Superblock) -> bool:
    """True when nobody serves this memory any more, and nobody can find it who would."""
    try:
        if superblock.named or superblock.supervisor.alive():
            return False
    except OSError:
        return False
    return not any(superblock.server_identity(server).alive() for server in range(superblock.servers_n))


def find_superblock(directory: NodeDirectory, deadline: float) -> tuple[Superblock, int]:
    """The superblock of a running node and a descriptor of its directory, waiting until `deadline` for one that starts.

    Raises NodeNotRunning, UsageError (it runs where this process cannot see it).
    """
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
            superblock = _mapped(directory, names.shared_id(node.node_id, place_of(descriptor)))
            unlike: list[str] = []
            if superblock is not None:
                state = superblock.state
                unlike = superblock.namespaces.unlike(Namespaces.current())
                alive = (state == NODE_RUNNING and not unlike) and (
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
        locked = directory.locked()
        if not locked and not first:
            raise NodeNotRunning(
                f"no node runs for {directory.path}: start one with {command('up', directory.path)} "
                "(in a program: warren.open)"
            )
        if locked and not first:  # what the lock file says is of before for an instant
            unlike = unlike or directory.holder_namespaces().unlike(Namespaces.current())
            if unlike:
                raise elsewhere(directory, unlike)
        if time.monotonic() > deadline:
            doing = "is being stopped" if found in (NODE_DRAINING, NODE_STOPPED) else "did not come up in time"
            raise NodeNotRunning(
                f"the node of {directory.path} {doing}: see {directory.log_file('supervisor')}, or give more time"
            )
        first = False
        time.sleep(0.005)


def _mapped(directory: NodeDirectory, shared_id: int) -> Superblock | None:
    """The superblock of this name, None when there is none."""
    try:
        return Superblock.attach(shared_id)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PermissionRefused(f"the node of {directory.path} belongs to another user") from error
    except RegionError as error:
        if error.errno == errno.ENOENT:
            return None
        raise PeerLost(f"cannot attach to the node of {directory.path}: {error}") from error


def _default_name() -> str:
    program = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else sys.executable)
    return f"{program}-{os.getpid()}"


def _child_name(name: str) -> str:
    head, _dash, tail = name.rpartition("-")
    return f"{head if head and tail.isdigit() else name}-{os.getpid()}"


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_clients):
        client._after_fork()


def _at_exit() -> None:
    for client in list(_clients):
        if client.pid == os.getpid():
            client.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
assert SERVER_STORE_TRANSIENT == SERVER_STORE_PERSISTENT + 1
