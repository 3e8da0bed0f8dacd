"""The store server's process: both message stores, single by a kernel lock, alive without its supervisor.

Life: attach the superblock, own DIR/store (workers/process/tie.py), take the store lock of this node (a System V
semaphore with SEM_UNDO, so the kernel gives it back whoever dies how), recover, announce, serve; on SIGTERM, or when
the node drains and no queue worker is left, execute and sync everything, save, and end.

When the supervisor dies the server goes on. It looks every 250 ms whether the directory's lock is free, and then starts
a new supervisor, which adopts what is alive (launch.py: one at a time).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from logging import ERROR, INFO, WARNING
from pathlib import Path
from types import FrameType

import sysv_ipc

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.errors import FormatVersionError, LimitError, PermissionRefused, StoreError, SystemLimit
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.store.host import StoreHost
from warren.engine.store.message_store import say
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT
from warren.ipc.superblock import Superblock
from warren.workers.process import logs, remains
from warren.workers.process.exit_codes import EXIT_DO_NOT_RESTART
from warren.workers.process.launch import Succession
from warren.workers.process.tie import COLLECTOR, SEMAPHORES, STORE, Tie, described, end

STORES = (SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT)
LOCK_WAIT_S = 10.0
DRAINING = CONSTANTS["NODE_DRAINING"]


def run_store_server(directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int | None) -> int:
    """Serve both stores of a node until it is told to end; returns the exit code.

    0: ended in good order. 1: it may be started again. 3: it must not, the reason was printed. What it lacks is raised.
    """
    superblock = Superblock.attach(shared_id, LAYOUT_HASH)
    tie = Tie(directory, superblock)
    try:
        return _run(directory, superblock, tie, settings, supervisor_pidfd)
    finally:
        remains.remove_lost(superblock, tie)


def _run(directory: Path, superblock: Superblock, tie: Tie, settings: Settings, supervisor_pidfd: int | None) -> int:
    tie.enter()
    needed = COLLECTOR if superblock.server_get(SERVER_STORE_PERSISTENT, "epoch") else ""
    if not tie.take(STORE, say, needed):
        return 0  # the node ends, and nothing was begun
    if len(tie.semaphores) != len(SEMAPHORES):
        raise StoreError("node.json does not name the store lock of this node: stop the node, and start it again")
    lock = _take_lock(tie.semaphores[1])
    if lock is None:
        say(f"another store server of this node still runs after {LOCK_WAIT_S:g} s", ERROR)
        return 1
    error = max(superblock.server_get(server, "error") for server in STORES)
    if error:
        say(f"the disk failed before ({os.strerror(error)}): stop the node, check the disk, and start it again", ERROR)
        return EXIT_DO_NOT_RESTART
    me = Identity.current()
    for server in STORES:
        superblock.server_set(server, "state", CONSTANTS["SERVER_RECOVERING"])
        superblock.server_set(server, "start_time", me.start_time)
        superblock.server_set(server, "pid", me.pid)
    watch = _SupervisorWatch(directory, superblock, supervisor_pidfd, tie)
    host = StoreHost(superblock, Path(), settings, watch.look)
    watch.host = host

    def terminate(_number: int, _frame: FrameType | None) -> None:
        host.stopping = True

    signal.signal(signal.SIGTERM, terminate)
    try:
        host.start()
    except (FormatVersionError, PermissionRefused, LimitError) as refused:
        say(str(refused), ERROR)
        host.close()
        return 1 if isinstance(refused, SystemLimit) else EXIT_DO_NOT_RESTART
    except BaseException:
        with contextlib.suppress(BufferError):  # frames of the error may hold the regions still; the process ends
            host.close()  # ends the committers, so that the process can end
        raise
    served_at = time.monotonic()
    host.serve()
    stopping_at = time.monotonic()
    durable = host.stop()
    ends = superblock.state == DRAINING
    for server in STORES:
        superblock.server_set(server, "state", CONSTANTS["SERVER_DOWN"])
    host.close(unlink=ends)
    _give_back(lock)
    why = "the node is being stopped" if ends else "it was told to"
    kept = "everything is durable" if durable else "not everything is durable"
    say(
        logs.ended(f"{why}; {kept}", stopping_at - served_at, time.monotonic() - stopping_at),
        INFO if durable else ERROR,
    )
    return 0 if durable else 1


def _take_lock(key: int) -> sysv_ipc.Semaphore | None:
    """Become the node's only store server; None when another one does not go away in time. Raises StoreError."""
    try:
        return _acquired(key)
    except sysv_ipc.ExistentialError as error:
        raise StoreError("the store lock was removed: stop the node, and start it again") from error
    except sysv_ipc.PermissionsError as error:
        raise PermissionRefused("the store lock belongs to another user") from error
    except (sysv_ipc.Error, OSError) as error:
        raise SystemLimit(f"cannot get the store lock: {error}; see kernel.sem and `ipcs -s`") from error


def _acquired(key: int) -> sysv_ipc.Semaphore | None:
    semaphore = sysv_ipc.Semaphore(key)
    semaphore.undo = True
    semaphore.block = False  # this package has no timeout for semaphores
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            semaphore.acquire()
        except (sysv_ipc.ExistentialError, sysv_ipc.PermissionsError):
            raise
        except sysv_ipc.Error:  # busy, or interrupted
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.001)  # the one before us is on its way out
        else:
            return semaphore


def _give_back(lock: sysv_ipc.Semaphore) -> None:
    try:
        lock.release()
    except sysv_ipc.ExistentialError:
        say("the store lock was removed while this server ran", WARNING)
    except (sysv_ipc.Error, OSError, MemoryError) as error:
        say(f"the store lock was not released ({error}): the system does that when this process has ended", WARNING)


class _SupervisorWatch:
    """What the server does every 250 ms beside serving: look after its supervisor, and see that a drain ends."""

    def __init__(self, directory: Path, superblock: Superblock, pidfd: int | None, tie: Tie) -> None:
        self.host: StoreHost | None = None
        self._tie = tie
        self._directory = NodeDirectory(directory)
        self._superblock = superblock
        self._pidfd = pidfd
        self._seen = superblock.supervisor
        self._succession = Succession(self._directory, say)

    def look(self) -> None:
        """Called in the server's loop."""
        self._succession.poll()
        if self._pidfd is not None and not self._lost():
            return  # who tells us when to end: between a worker's death and its last start there may be no worker
        if self._superblock.state == DRAINING and self.host is not None and not self._workers_alive():
            self.host.stopping = True
            return
        if self._pidfd is None:
            return
        if not (ending := self._tie.look()):
            self._succession.start(f"supervisor {self._seen.pid} is gone")
        elif not self._superblock.get("ending"):
            say(f"the node ends: {described(ending, self._directory.path)}", WARNING)
            end(self._superblock, ending)

    def _lost(self) -> bool:
        """True while no supervisor lives that we know of. A new one is known by what it wrote into the superblock."""
        assert self._pidfd is not None
        if not select.select([self._pidfd], [], [], 0)[0]:
            return False
        now = self._superblock.supervisor
        if now == self._seen or not now.alive():
            return True
        try:
            pidfd = now.open_pidfd()
        except OSError:
            return False  # it lives, and there is no descriptor for it now: looked at again
        if pidfd is None:
            return True
        say(f"supervisor {self._seen.pid} died; {now.pid} has taken over", WARNING)
        os.close(self._pidfd)
        self._pidfd, self._seen = pidfd, now
        return False

    def _workers_alive(self) -> bool:
        for server in self._superblock.queue_workers:
            identity = self._superblock.server_identity(server)
            if identity.pid and identity.alive():
                return True
        return False
