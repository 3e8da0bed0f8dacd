"""A store server without a supervisor: a hand-made superblock, a forked server, and bare clients of it.

`with StoreNode(tmp_path / "node") as node: node.start(); node.client().write([(id, body)])` returns when synced.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import sysv_ipc

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.kernel.paths import store_folder
from warren.engine.kernel.protocol import LAYOUT_HASH, PROTOCOL
from warren.engine.store import file_summary
from warren.ipc import _core as shared
from warren.ipc import mailbox, names
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, LINK, PAGE_BYTES
from warren.ipc.region import (
    Region,
    RegionError,
    posix_names,
    posix_open,
    posix_unlink,
    sysv_create,
    sysv_remove,
)
from warren.ipc.superblock import DEAD, FREE, GEOMETRY, SlotView, Superblock
from warren.workers.process import logs
from warren.workers.servers.store_server import run_store_server

from support.waiting import patience, wait_until

SECOND = 1_000_000_000
SYNCED, WRITTEN, NONE = PROTOCOL["FLAG_SYNCED"], PROTOCOL["FLAG_WRITTEN"], 0
OK, NO = PROTOCOL["RESULT_OK"], PROTOCOL["RESULT_NO"]
READY = CONSTANTS["SERVER_READY"]

SMALL: dict[str, int] = {
    "file_bytes": 256 * 1024,
    "images_n": 2,
    "ring_records": 1024,
    "delivery_slots": 64,
    "arena_bytes": 1 << 20,
    "reply_bytes": 4096,
    "message_bytes_max": 128 * 1024,
    "directory_rows": 16384,
    "dense_blocks": 64,
    "summary_rows": 256,
    "index_rows": 1024,
}


def message_id(n: int, epoch: int = 7) -> bytes:
    """A message id."""
    return epoch.to_bytes(8, "big") + n.to_bytes(8, "big")


class StoreNode:
    """A superblock and a store server for a directory. `workers`: queue workers that the geometry has room for."""

    def __init__(self, directory: Path, workers: int = 0, node_id: int | None = None, **settings: int) -> None:
        self.directory = directory
        self.node_id = node_id or random.getrandbits(47) | 1
        self.workers = workers
        self.settings = Settings(**{**SMALL, **settings})
        self.pid = 0
        self.clients: list[Client] = []
        self.superblock: Superblock
        self._semaphores: list[sysv_ipc.Semaphore] = []
        self.node_epoch = 0
        self.make()

    def make(self) -> None:
        """Make a new superblock, as the supervisor does at a cold start."""
        self.node_epoch += 1
        self._semaphores = [sysv_ipc.Semaphore(None, sysv_ipc.IPC_CREX, 0o600, value) for value in (0, 1)]
        live, lock = (semaphore.key for semaphore in self._semaphores)
        geometry = {name: getattr(self.settings, name) for name in GEOMETRY if name != "servers_n"}
        geometry["servers_n"] = 2 + self.workers
        self.superblock = Superblock.create(
            self.node_id, self.node_epoch, live, lock, geometry, layout_hash=LAYOUT_HASH
        )
        self.superblock.set_state(CONSTANTS["NODE_STARTING"])

    def remove(self) -> None:
        """Remove everything that is shared, as at the end of a node."""
        for client in self.clients:
            client.forget()  # clients may hold each other's regions
        for client in list(self.clients):
            client.close()
        for name in posix_names(names.node_prefix(self.node_id)):
            posix_unlink(name)
        mailbox.clear(self.directory)
        self.superblock.close()
        for semaphore in self._semaphores:
            semaphore.remove()
        self._semaphores.clear()

    def restart_cold(self) -> None:
        """After kill or stop: a new superblock, as after a power loss or `warren up`."""
        self.remove()
        self.make()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.remove()

    # -- the server ---------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.directory / "store.log"

    def fork(self) -> None:
        """Start the server process."""
        self.directory.mkdir(exist_ok=True)
        for server in (0, 1):
            self.superblock.server_set(server, "state", CONSTANTS["SERVER_RECOVERING"])
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 99
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stderr = os.fdopen(os.dup(log), "w")  # not pytest's
            logs.begin("store", self.log, self.settings, streams=False)
            code = run_store_server(self.directory, self.node_id, self.settings, None)
        except BaseException:  # noqa: BLE001 - the last line of a process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def start(self) -> None:
        """Start the server and wait until it serves."""
        epoch = self.epoch
        self.fork()

        def ready() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                raise AssertionError(f"the server ended with {os.waitstatus_to_exitcode(status)}: {self.log_text()}")
            return self.epoch > epoch and self.superblock.server_get(1, "state") == READY

        wait_until(ready, 20, what="the store server")

    @property
    def epoch(self) -> int:
        return self.superblock.server_get(1, "epoch")

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        """kill -9 the server."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGCONT)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait_end()

    def wait_end(self) -> int:
        """Wait until the server has ended by itself; returns its exit code."""
        ended: list[int] = []

        def over() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(pid)

        wait_until(over, 30, what="the end of the store server")
        self.pid = 0
        return ended[0]

    # -- looking ------------------------------------------------------------------------------------------------

    def folder(self, server: int = 0) -> Path:
        return store_folder(self.directory, server)

    def files(self, server: int = 0) -> list[int]:
        """Numbers of the segment files on disk."""
        return sorted(int(path.stem) for path in self.folder(server).glob("*.rdq"))

    def get(self, name: str, server: int = 0) -> int:
        """A field of the server's row."""
        return self.superblock.server_get(server, name)

    def counted(self, name: str) -> int:
        """The same, of what a server counts, when it has done all that it was asked: it shows that before it sleeps."""
        wait_until(lambda: self.get("sleeping"), 60, what="the sleep of the store server")
        return self.get(name)

    def summary(self, server: int = 0) -> list[file_summary.FileRow]:
        region = posix_open(
            self.superblock.region_name("summary", server, self.get("generation", server)), writable=True
        )
        try:
            return list(file_summary.files(region.buffer))
        finally:
            region.close()

    def directory_rows(self, server: int = 0) -> int:
        """Rows in use in the directory of cur_file_cache."""
        name = self.superblock.region_name("directory", server, self.get("generation", server))
        region = posix_open(name)
        try:
            words = region.buffer.cast("Q")
            used = sum(1 for word in words if word)
            words.release()
            return used
        finally:
            region.close()

    # -- clients ------------------------------------------------------------------------------------------------

    def client(self, server: int = 0, name: str = "test", worker: int = -1) -> "Client":
        """`worker`: it is the queue worker of this number."""
        client = Client(self, server, name, worker)
        self.clients.append(client)
        return client


class Client:
    """A registered client of one store."""

    def __init__(self, node: StoreNode, server: int, name: str, worker: int = -1) -> None:
        self.node = node
        self.server = server
        superblock = node.superblock
        self.region: Region = sysv_create(superblock.region_bytes())
        view = superblock.claim(Identity.current(), name, worker)
        superblock.set_segment(view, self.region.id)
        self.core = _core.StoreClient(
            superblock.buffer, self.region.buffer, view.slot, view.generation, view.client_epoch, server
        )
        self.view: SlotView = superblock.activate(view)
        self.maps: list[Region] = []
        self.folder_fd = -1
        self.epoch = -1
        self.open()

    @property
    def slot(self) -> int:
        return self.view.slot

    def open(self) -> None:
        """Map the store's regions as they are now."""
        old, old_fd = self.maps, self.folder_fd
        get = self.node.get
        generation = get("generation", self.server)
        self.maps = [
            posix_open(self.node.superblock.region_name(what, self.server, generation))
            for what in ("images", "directory", "summary")
        ]
        self.folder_fd = os.open(self.node.folder(self.server), os.O_RDONLY | os.O_DIRECTORY)
        self.core.set_regions(*(region.buffer for region in self.maps), self.folder_fd)
        self.epoch = get("epoch", self.server)
        for region in old:
            region.close()
        if old_fd >= 0:
            os.close(old_fd)

    def announce_death(self, until: int) -> None:
        """What its delete_and_terminate writes into its own region before it tells the server."""
        shared.store64(self.region.buffer, PAGE_BYTES + self.server * LINK.size + LINK.offset("dying_until"), until)

    def refresh(self) -> None:
        if self.epoch != self.node.get("epoch", self.server):
            self.open()

    def write(self, messages: Sequence[tuple[bytes, bytes]], flags: int = SYNCED, timeout: float = 10.0) -> int:
        """Write and wait for the durability that `flags` name; returns the horizon."""
        self.refresh()
        horizon = self.core.write_many(list(messages), flags, True)
        self.wait(horizon, flags, timeout)
        return horizon

    def wait(self, horizon: int, flags: int = SYNCED, timeout: float = 10.0) -> None:
        name = "synced" if flags & SYNCED else "written" if flags & WRITTEN else "processed"
        assert self.core.wait(name, horizon, int(timeout * SECOND)), (
            f"{name} stays at {self.core.horizon(name)} of {horizon}; {self.node.log_text()}"
        )

    def call(self, op: str, flags: int = 0, id: bytes = bytes(16), ids: Sequence[bytes] = ()) -> int:
        """Send a command, wait until it is executed, return its result."""
        sequence = self.core.command(PROTOCOL[op], flags, id, list(ids))
        self.wait(sequence + 1, flags)
        return self.core.result(sequence)

    def contains(self, id: bytes) -> bool:
        return self.call("OP_STORE_CONTAINS", id=id) == OK

    def barrier(self, flags: int = SYNCED) -> None:
        assert self.call("OP_STORE_BARRIER", flags) == OK

    def remove(self, ids: Sequence[bytes], sync: bool = True) -> int:
        """Remove; returns how many writes were eliminated."""
        self.refresh()
        horizon, eliminated = self.core.remove(list(ids))
        if sync:
            self.barrier()
        else:
            self.wait(horizon, NONE)
        return eliminated

    def read(self, id: bytes, timeout: float = 10.0) -> bytes | None:
        """Read, following the store's regions when they are replaced."""
        deadline = time.monotonic() + timeout * patience()
        while True:
            try:
                return self.core.read(id)
            except OSError as error:
                if error.errno != 116 or time.monotonic() > deadline:  # ESTALE
                    raise
            try:
                self.open()
            except RegionError:
                time.sleep(0.001)

    def die(self) -> None:
        """What the supervisor does when this process dies: the slot becomes DEAD."""
        assert self.node.superblock.slot_move(self.node.superblock.slot(self.slot), DEAD)
        self.node.superblock.slots_changed()

    def swept(self) -> bool:
        superblock = self.node.superblock
        return all(superblock.server_done(self.slot, n) == self.view.generation & 0xFF for n in (0, 1))

    def free(self) -> None:
        """What the supervisor does when all servers are done with it."""
        superblock = self.node.superblock
        assert superblock.slot_move(superblock.slot(self.slot), FREE)
        superblock.slots_changed()

    def set_other(self, other: "Client") -> None:
        self.core.set_other(other.slot, other.view.generation, other.region.buffer)

    def forget(self) -> None:
        """Let go of the C side, and with it of every buffer."""
        vars(self).pop("core", None)

    def close(self) -> None:
        """Let go of all memory."""
        if self not in self.node.clients:
            return
        self.node.clients.remove(self)
        self.forget()
        for region in self.maps:
            region.close()
        if self.folder_fd >= 0:
            os.close(self.folder_fd)
        sysv_remove(self.region.id)
        self.region.close()
