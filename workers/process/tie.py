"""What ties a process of a node to its data directory: it owns what it writes, and notices when it lost it.

Invariants
  A server holds a kernel lock (flock) on the folder whose files it writes, from before it opens or changes anything
  there until its process ends: DIR/store, DIR/queues/worker-<i>, and for the collector DIR/store/persistent. So there
  are never two writers, whoever started them, in whatever namespaces they are, and whatever became of the shared
  memory.
  It works inside the directory (its working directory is there), not at a path: what another directory of the same name
  holds is never changed. The directory stays open, so its place (device, inode) is given to no other one meanwhile.
Once a second it looks whether
  the directory and its folder are still where they were, and no log
  has lost the file that it writes (engine/kernel/log.c)               else ENDING_REMOVED, ENDING_MOVED
  node.json still says the epoch of its superblock                   else ENDING_TAKEN_OVER: a later node has begun
  the name of the superblock still leads to the one it has mapped,
  and both semaphores that it names are there                        else ENDING_SHARED_MEMORY
If not, the node ends: by its supervisor, or when that is dead by whoever notices, in good order (state DRAINING, as for
`stop`). That confirms nothing wrongly, because the locks are held to the end, and a log whose file was removed or cut
fails by itself before it confirms anything (engine/kernel/log.c).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from logging import ERROR, WARNING
from pathlib import Path

import msgspec

from warren.engine.catalog.node_directory import (
    NODE,
    NodeDirectory,
    NodeFile,
    held_by_another,
    open_directory,
    place_of,
)
from warren.engine.errors import DirectoryInUse, Error, UsageError
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import STORES, TOPICS, store_folder
from warren.engine.saying import Say, command
from warren.ipc import access, kernel_locks
from warren.ipc.identity import Identity, Namespaces, pidfd_dead
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT
from warren.ipc.region import SHM_DIRECTORY
from warren.ipc.superblock import Superblock
from warren.workers.process.shared_objects import semaphore_exists

LOOK_S = 1.0
#: a dead predecessor's lock is free at once; who waits longer says so
TELL_S = 0.25
POLL_S = 0.005
GONE_S = 3.0  #: a supervisor sees earlier that a folder is gone
REMOVED, MOVED = CONSTANTS["ENDING_REMOVED"], CONSTANTS["ENDING_MOVED"]
TAKEN_OVER, SHARED_MEMORY = CONSTANTS["ENDING_TAKEN_OVER"], CONSTANTS["ENDING_SHARED_MEMORY"]
DRAINING = CONSTANTS["NODE_DRAINING"]
#: folders that the store server and the collector own; a queue worker owns queues_of(worker)
STORE, COLLECTOR = STORES, str(store_folder(Path(), SERVER_STORE_PERSISTENT))
#: fields of the superblock with keys of System V semaphores: live clients, store lock
SEMAPHORES = ("live_semaphore_key", "store_lock_key")
COMM_BYTES = 15  #: the kernel cuts the name of a process there

log = logging.getLogger("warren.node")


def workers_there(directory: Path) -> list[int]:
    """Numbers of the queue workers that have a folder."""
    numbers = [path.name.removeprefix("worker-") for path in directory.glob("queues/worker-*") if path.is_dir()]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def described(ending: int, directory: Path | str) -> str:
    """Why a node ended by itself, and what to do; empty for ENDING_NONE."""
    return {
        REMOVED: (
            f"the data directory {directory}, or a part of it, was removed while the node ran, or a file in use was "
            "cut; nothing was confirmed after that: restore it from a backup, or start a new node"
        ),
        MOVED: (
            f"the data directory {directory} was moved, or replaced by another one, while the node ran; what was "
            "confirmed is in the directory that was moved: start the node where it is now"
        ),
        TAKEN_OVER: (
            f"another node was started for {directory} after this one had lost its supervisor: attach to that one"
        ),
        SHARED_MEMORY: (
            f"the shared memory of the node of {directory}, or a semaphore of it, was removed while it ran (systemd "
            "does that when a user logs out; RemoveIPC=no in logind.conf prevents it, or a system user): start the "
            "node again"
        ),
    }.get(ending, "")


#: how it is shared with the node's container, by what differs
_SHARE = {
    "PID namespace": "--pid=container:NAME or --pid=host",
    "IPC namespace": "--ipc=container:NAME or --ipc=host",
    "time namespace": "unshare --time makes another one: leave it out",
    "/dev/shm": "--ipc=container:NAME, or one volume at /dev/shm",  # noqa: S108
}


def elsewhere(directory: NodeDirectory, unlike: list[str]) -> UsageError:
    """What is said to a process that cannot see the node of a directory, which runs; `unlike`: Namespaces.unlike."""
    pid = directory.lock_holder()
    there = f"another {' and another '.join(unlike)}"
    share = " and ".join(f"{'' if item[0] == '/' else 'the '}{item} ({_SHARE[item]})" for item in unlike)
    return UsageError(
        f"a node runs for {directory.path}{f' (there it is process {pid})' if pid else ''}, but in {there}, which this "
        f"process cannot see: start this one in the same container, or share {share}"
    )


def orphaned_elsewhere(directory: NodeDirectory) -> list[str]:
    """What differs (Namespaces.unlike) when servers of the directory live without a supervisor, and their shared memory
    cannot be seen from here; empty: they do not.
    """
    unlike = directory.holder_namespaces().unlike(Namespaces.current())
    if SHM_DIRECTORY not in unlike or directory.locked():
        return []
    folders = (directory.path / STORE, directory.path / TOPICS, *directory.path.glob("queues/*"))
    return unlike if any(map(_held, folders)) else []


def _held(folder: Path) -> bool:
    """Whether a server has this folder."""
    try:
        return held_by_another(open_directory(folder))
    except OSError:
        return False


class Tie:
    """Of one process to the directory of its node."""

    def __init__(self, path: Path, superblock: Superblock) -> None:
        self.ending = 0  #: ENDING_…, once it is lost
        self._path = path
        self._superblock = superblock
        self._descriptor = open_directory(path)
        self._place = place_of(self._descriptor)
        self._taken: list[int] = []
        self._folders: dict[str, tuple[int, int] | None] = {}
        self._node = (0, 0)
        self.semaphores = self._keys()  #: of this node, live clients first; members write none of them
        self._look_at = 0.0

    @property
    def directory(self) -> Path:
        """A path to the directory, whatever its name leads to now."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def lock(self) -> bool:
        """Take the lock of the directory, which this process has from now on; False: another one has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go of the directory, and of what was taken of it."""
        for descriptor in self._taken:
            os.close(descriptor)
        self._taken.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def enter(self) -> None:
        """Work in the directory from now on: a relative path leads there, whatever its name is then. What a Python is
        imported from stays where it was.
        """
        sys.path[:] = [os.path.abspath(entry) for entry in sys.path]
        if given := os.environ.get("PYTHONPATH"):
            os.environ["PYTHONPATH"] = os.pathsep.join(
                os.path.abspath(item) for item in given.split(os.pathsep) if item
            )
        os.fchdir(self._descriptor)

    # -- owning -------------------------------------------------------------------------------------------------

    def take(self, folder: str, say: Say, needed: str = "") -> bool:
        """Own a folder (after `enter`), waiting for whoever has it. False: the node ends before it is free. `needed`: a
        path that was there when a server of this node served the folder; without it nothing is made anew, and the node
        ends.

        Raises UsageError (a file system without locks), StoreError.
        """
        began, told = time.monotonic(), False
        while needed and not os.path.exists(needed):
            if self._superblock.state >= DRAINING or self.look():
                return False
            if not told:
                told = True
                say(
                    f"{self._path / needed} was removed while no server used it: the node ends, and nothing is made "
                    "again",
                    ERROR,
                )
            if time.monotonic() - began > GONE_S and not self._superblock.supervisor.alive():
                end(self._superblock, REMOVED)
            time.sleep(POLL_S)
        began, told = time.monotonic(), False
        while True:
            descriptor = self._lock(folder)
            if descriptor is not None:
                self._taken.append(descriptor)
                self._folders[folder] = place_of(descriptor)
                if told:
                    say(f"{folder} is free: going on")
                return True
            if self._superblock.state >= DRAINING or self.look():
                return False
            if not told and time.monotonic() - began > TELL_S:
                told = True
                line = f"waits for {self._owner(folder)} that still holds {self._path / folder}"
                say(line, WARNING)
                self._note(line)
            time.sleep(POLL_S)

    def _lock(self, folder: str) -> int | None:
        """A locked descriptor of a folder, which is made if it is not there; None: another process has it."""
        try:
            atomic_file.make_directories(Path(folder))
            descriptor = open_directory(folder)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot open {self._path / folder}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.stat(folder)
            if (found.st_dev, found.st_ino) == place_of(descriptor):
                return descriptor
        except FileNotFoundError:  # it was removed while we took it
            pass
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                raise UsageError(
                    f"the file system of {self._path} cannot lock {folder} ({error.strerror}): use a local disk"
                ) from error
        os.close(descriptor)
        return None

    def _owner(self, folder: str) -> str:
        with contextlib.suppress(OSError):
            found = os.stat(folder)
            for holder in kernel_locks.holders(found):
                return f"{holder} of an earlier node" if holder.uid == found.st_uid else str(holder)
            if pid := lock_owner(found):
                return f"process {pid} of an earlier node"
        return "a process of an earlier node"

    def _note(self, line: str) -> None:
        """Into the supervisor's log and `status`."""
        from warren.workers.process.control import ControlClient

        with contextlib.suppress(Error), contextlib.closing(ControlClient(self._path)) as control:
            control.call("note", text=f"a server {line}", timeout=1.0)

    def watch(self, *folders: str) -> None:
        """Folders of others that belong to the directory, too, once they are there."""
        self._folders |= dict.fromkeys(folders)

    # -- noticing -----------------------------------------------------------------------------------------------

    def look(self) -> int:
        """ENDING_… when something was lost, else 0. It looks at most once a second."""
        now = time.monotonic()
        if not self.ending and now >= self._look_at:
            self._look_at = now + LOOK_S
            self.ending = self.look_now()
        return self.ending

    def look_now(self) -> int:
        """The same, without waiting for the next second, and forgotten again."""
        try:
            return self._find()
        except OSError:  # no answer is no loss: the next look asks again
            return 0

    def _find(self) -> int:
        if os.fstat(self._descriptor).st_nlink == 0:
            return REMOVED
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return MOVED
        if (found.st_dev, found.st_ino) != self._place:
            return MOVED
        for folder, place in self._folders.items():
            try:
                found = os.stat(folder, dir_fd=self._descriptor)
            except (FileNotFoundError, NotADirectoryError):
                if place is not None:
                    return REMOVED
                continue
            if place not in (None, (found.st_dev, found.st_ino)):
                return REMOVED
            self._folders[folder] = found.st_dev, found.st_ino
        if self._superblock.get("place_inode"):
            place = self._superblock.get("place_device"), self._superblock.get("place_inode")
            if place != self._place:
                return MOVED  # before this process was there
            ending = self._look_at_node()
            if ending:
                return ending
        block = self._superblock
        if any(block.server_get(server, "error") == errno.ESTALE for server in range(block.servers_n)):
            return REMOVED
        if not self._superblock.named or not all(map(semaphore_exists, self.semaphores)):
            return SHARED_MEMORY
        return 0

    def _look_at_node(self) -> int:
        """What node.json says; it is read when it was replaced."""
        try:
            found = os.stat(NODE, dir_fd=self._descriptor)
        except FileNotFoundError:
            return REMOVED
        seen = found.st_ino, found.st_mtime_ns
        if seen == self._node:
            return 0
        node = self._read_node()
        if node is None:
            return 0  # somebody is editing it; the next start reports it
        block = self._superblock
        if (node.node_id, node.node_epoch, node.shared_id) != (
            block.node_id,
            block.get("node_epoch"),
            block.shared_id,
        ):
            return TAKEN_OVER
        self._node = seen
        return 0

    def _read_node(self) -> NodeFile | None:
        """None: it does not make sense. Raises OSError."""
        descriptor = data_files.open(NODE, os.O_RDONLY, folder=self._descriptor)
        try:
            content = os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
        try:
            return msgspec.json.decode(content, type=NodeFile)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _keys(self) -> tuple[int, ...]:
        block = self._superblock
        if block.owner[1] == access.ALONE:  # nobody else could write it
            return tuple(key for name in SEMAPHORES if (key := block.get(name)))
        try:
            node = self._read_node()
        except OSError:  # it has gone, and with it this node
            return ()
        if node is None or node.superblock_at(self._place) != block.shared_id:
            return ()
        return tuple(key for key in node.semaphore_keys if key)


@contextlib.contextmanager
def owning(directory: Path, folders: Iterable[str]) -> Iterator[None]:
    """Own folders of a node, those that are there, for work on files that no server may write meanwhile.

    Raises DirectoryInUse: a process of an earlier node still has one.
    """
    with contextlib.ExitStack() as held:
        for folder in folders:
            try:
                descriptor = open_directory(directory / folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise atomic_file.explain(error, f"cannot open {directory / folder}") from error
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                found = os.fstat(descriptor)
                for holder in kernel_locks.holders(found):
                    if holder.uid != found.st_uid:  # a member of the group may read the folder, so he may lock it
                        raise DirectoryInUse(
                            f"{directory / folder} is locked by {holder}, which is none of the node: end that process"
                        ) from error
                pid = lock_owner(found)
                raise DirectoryInUse(
                    f"{directory / folder} is in use by {f'process {pid}' if pid else 'a process'} of a node whose "
                    f"supervisor is dead: stop it with {command('stop', directory)}, or end that process"
                ) from error
        yield


def data_folders(directory: Path) -> list[str]:
    """The folders of a data directory that a process may own: what is in their place, and no folder, nobody does."""
    found = [STORE, COLLECTOR, TOPICS, *sorted(f"queues/{path.name}" for path in directory.glob("queues/worker-*"))]

    def hidden(path: Path) -> bool:
        inside = [each for each in (path, *path.parents) if directory in each.parents]
        return any(data_files.instead(each, folder=True) for each in inside)

    return [name for name in found if not hidden(directory / name)]


def served(directory: Path) -> bool:
    """True while some process owns data of the directory, also without a supervisor."""
    try:
        with owning(directory, data_folders(directory)):
            return False
    except DirectoryInUse:
        return True


def end(superblock: Superblock, ending: int) -> None:
    """End a node in good order, because it lost something. Whoever notices; doing it twice changes nothing."""
    if not superblock.get("ending"):
        superblock.set("ending", ending)
    if superblock.state < DRAINING:
        superblock.set_state(DRAINING)
    superblock.ring_all()


def open_server(identity: Identity, name: str, directory: Path) -> int | None:
    """A pidfd (the caller closes it) of the server of this name (a role: store, worker-0, amqp-1 …) of the node of this
    directory; None: there is none. Raises OSError when there is no descriptor for it.

    Members of the node's group write the superblock in which `identity` stands. So the kernel decides: a process is
    that server only when it runs as the users of this one, and has the lock of the folder that its role owns, or its
    name and its working directory, before it has the lock. A gateway has its command line.
    """
    pidfd = identity.open_pidfd() if identity.pid else None
    if pidfd is None:
        return None
    # what was read is of this very process if it still lives afterwards
    if _serves(identity.pid, name, directory) and not pidfd_dead(pidfd):
        return pidfd
    if not pidfd_dead(pidfd):
        log.warning(
            "the shared memory says that process %d is %s, which it is not: it is left alone, and %s is taken for dead",
            identity.pid, name, name,
        )  # fmt: skip
    os.close(pidfd)
    return None


def _serves(pid: int, name: str, directory: Path) -> bool:
    try:
        status = _data_of(pid, "status")
        users = next(line.split()[1:] for line in status.splitlines() if line.startswith(b"Uid:"))
        if [int(user) for user in users] != [*os.getresuid(), os.geteuid()]:
            return False
        place = _place_at(directory)
        if name.startswith("amqp-"):
            *_command, module, path, index = [b"", b"", *_data_of(pid, "cmdline").split(b"\0")[:-1]]
            ours = (module, index) == (b"warren.workers.amqp", name.removeprefix("amqp-").encode())
            return ours and _place_at(os.fsdecode(path)) == place
        if _has_lock(pid, directory / _folder_of(name)):
            return True
        named = _data_of(pid, "comm").rstrip(b"\n") == f"warren-{name}".encode()[:COMM_BYTES]
        return named and _place_at(f"/proc/{pid}/cwd") == place
    except (OSError, ValueError):  # it has ended, or its files in /proc cannot be read
        return False


def lock_holder(name: str, directory: Path) -> Identity | None:
    """The process that has the lock of the folder of this role, as far as it can be seen; a gateway has none."""
    try:
        return Identity.of(lock_owner(os.stat(directory / _folder_of(name), follow_symlinks=False)))
    except OSError:
        return None


def _folder_of(name: str) -> str:
    """Which folder a role owns."""
    return {"store": STORE, "collector": COLLECTOR, TOPICS: TOPICS}.get(name, f"queues/{name}")


def _data_of(pid: int, name: str) -> bytes:
    """A file about a process in /proc, which the kernel writes. Raises OSError."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def _place_at(path: Path | str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _has_lock(pid: int, folder: Path) -> bool:
    try:
        descriptor = data_files.open_folder(folder)
    except OSError:  # it is not made yet
        return False
    try:
        device, inode = place_of(descriptor)
    finally:
        os.close(descriptor)
    return (kernel_locks.place_of(device, inode), pid) in kernel_locks.taken()


def lock_owner(found: os.stat_result) -> int:
    """The process that has the kernel lock on a file, as far as it can be seen from here; else 0."""
    return next(iter(kernel_locks.pids(found)), 0)
