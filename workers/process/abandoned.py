"""What killed nodes have left in shared memory: found by what the kernel knows, and removed when no process has it.

The proof is a write lease (fcntl F_SETLEASE): the kernel grants it only while nobody else has the file open or mapped,
whoever that is and in whichever PID namespace. Every process of a node, and every client, maps the superblock; so when
that is granted, nobody lives who uses any of it. Nothing is judged by its age.

    superblock, free            all that carries its number goes, the superblock last
    regions without one         each goes that is free itself: a node makes its superblock first, and removes it last
    segments of clients         those in the superblock; without one, what nobody has attached and says whose it was
    another IPC namespace       its segments and semaphores cannot be seen from here: all stays, and is named

Races: who makes a superblock has it open before it has a name, and who takes a node over maps it before it decides; so
neither finds it removed. Whoever opens it while the lease is held waits for the removal, and finds it gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.saying import Say, silent
from warren.ipc import kernel_locks, names, region
from warren.ipc.identity import Namespaces
from warren.ipc.layout import CLIENT, CLIENT_MAGIC, CONSTANTS, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC
from warren.ipc.region import Region, RegionError
from warren.ipc.superblock import Superblock
from warren.workers.process import remains
from warren.workers.process.shared_objects import region_users, segments

#: a start removes the remains of at most this many other nodes; `warren clean` removes all
AT_A_START = 64
STOPPED = CONSTANTS["NODE_STOPPED"]
_NAME = re.compile(r"warren-([0-9a-f]{12})-(.+)", re.ASCII)


@dataclass(frozen=True)
class Left:
    """The remains of one killed node. `kept`: why they stay; "": they are, or would be, removed."""

    shared_id: int
    directory: str  #: "": not known
    regions: int
    segments: int
    bytes: int
    kept: str = ""


def clean(*, most: int = 0, dry_run: bool = False, without: int = 0) -> list[Left]:
    """Remove what this user's killed nodes left and no living process uses. `most`: of this many nodes at most,
    0: all; `dry_run`: only look; `without`: a node to skip. Raises RegionError: /dev/shm cannot be listed.
    """
    found: list[Left] = []
    removed = 0
    for shared_id, regions in sorted(_by_node().items()):
        if most and removed >= most:
            break
        if shared_id != without:
            left = _node(shared_id, regions, dry_run)
            if left is not None:
                found.append(left)
                removed += not left.kept
    found += _segments_of_nobody(dry_run)
    return found


def _by_node() -> dict[int, list[str]]:
    """This user's objects in /dev/shm whose names contain the number of a node."""
    found: dict[int, list[str]] = {}
    try:
        with os.scandir(region.SHM_DIRECTORY) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    with contextlib.suppress(FileNotFoundError):
                        seen = entry.stat(follow_symlinks=False)
                        if seen.st_uid == os.geteuid() and stat.S_ISREG(seen.st_mode):
                            found.setdefault(int(match[1], 16), []).append("/" + entry.name)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RegionError(error.errno or errno.EIO, f"cannot list {region.SHM_DIRECTORY}: {error.strerror}") from error
    return found


@contextlib.contextmanager
def _alone(name: str) -> Iterator[tuple[int, str] | None]:
    """A descriptor of what has this name, and "", while nobody else has it open or mapped; or -1 and why that is not
    known. None: somebody has it, or it is gone.
    """
    try:
        how = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(region.SHM_DIRECTORY + name, how)
    except OSError as error:  # EWOULDBLOCK: another one cleans it
        yield None if error.errno in (errno.ENOENT, errno.EWOULDBLOCK) else (-1, f"cannot open it: {error.strerror}")
        return
    try:
        answer: tuple[int, str] | None = (descriptor, "")
        try:
            # who opens it meanwhile waits for us, and the signal that tells us so is one that is ignored
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            if region.posix_inode(name) != os.fstat(descriptor).st_ino:
                answer = None  # it has gone, and its name may be another's
        except OSError as error:
            said = "this system does not say whether somebody has it open"
            answer = None if error.errno == errno.EAGAIN else (-1, f"{said} ({error.strerror})")
        yield answer
    finally:
        os.close(descriptor)  # with it ends the lease


def _node(shared_id: int, regions: list[str], dry_run: bool) -> Left | None:
    """None: a process has it."""
    superblock = names.superblock(shared_id)
    if superblock not in regions:
        return _without_superblock(shared_id, regions, dry_run)
    with _alone(superblock) as answer:
        if answer is None:
            return None
        descriptor, why = answer
        size = sum(map(region.posix_bytes, regions))
        if descriptor < 0:
            return Left(shared_id, "", len(regions), 0, size, why)
        found = os.fstat(descriptor)
        if found.st_size < SUPERBLOCK_BYTES:  # its maker was killed at that moment
            return _removed(Left(shared_id, "", len(regions), 0, size), dry_run)
        memory = Region(mmap.mmap(descriptor, SUPERBLOCK_BYTES), SUPERBLOCK_BYTES, superblock, -1, found)
        try:
            return _with_superblock(Superblock(memory, shared_id), len(regions), size, dry_run)
        finally:
            memory.close()


def _with_superblock(superblock: Superblock, regions: int, size: int, dry_run: bool) -> Left:
    """The caller holds the lease of the superblock."""
    whole = superblock.get("magic") == SUPERBLOCK_MAGIC
    if not whole or superblock.get("layout_hash") != LAYOUT_HASH:
        # of another version: what is not in /dev/shm stands where only that version knows
        return _removed(Left(superblock.shared_id, "", regions, 0, size), dry_run)
    here = Namespaces.current()
    if superblock.get("ipc_namespace") != here.ipc:
        why = "it ran in another IPC namespace: clean it there"
        return Left(superblock.shared_id, superblock.directory, regions, 0, size, why)
    mine = {item.id: item.size for item in segments() if item.uid == os.geteuid()}
    found = [mine[view.shmid] for view in superblock.slots() if view.shmid in mine]
    left = Left(superblock.shared_id, superblock.directory, regions, len(found), size + sum(found))
    if not dry_run:
        remains.remove_system_v(superblock, remains.abandoned_keys(superblock))
    return _removed(left, dry_run)


def _without_superblock(shared_id: int, regions: list[str], dry_run: bool) -> Left | None:
    removed = size = 0
    why = ""
    for name in regions:
        with _alone(name) as answer:
            if answer is not None:
                why = why or answer[1]
                removed += 1
                size += region.posix_bytes(name)
                if not dry_run and not answer[1]:
                    region.posix_drop(name)
    return Left(shared_id, "", removed, 0, size, why) if removed else None


def in_use() -> list[Left]:
    """Killed nodes of this user that living clients keep, and by whom they are kept. Raises RegionError."""
    found = []
    for shared_id, regions in sorted(_by_node().items()):
        try:
            superblock = Superblock.attach(shared_id, LAYOUT_HASH, os.geteuid())
        except (RegionError, OSError):  # it is another version's, or just going
            continue
        try:
            if superblock.namespaces.unlike(Namespaces.current()) or _lives(superblock):
                continue
            pids = region_users(names.node_prefix(shared_id))
            who = ", ".join(map(str, pids)) or "that cannot be seen from here"
            sizes = {item.id: item.size for item in segments() if item.uid == os.geteuid()}
            mine = [sizes[view.shmid] for view in superblock.slots() if view.shmid in sizes]
            size = sum(map(region.posix_bytes, regions)) + sum(mine)
            why = f"in use by process{'es' if len(pids) > 1 else ''} {who}"
            found.append(Left(shared_id, superblock.directory, len(regions), len(mine), size, why))
        finally:
            superblock.close()
    return found


def _removed(left: Left, dry_run: bool) -> Left:
    if not dry_run:
        remains.remove_older_mailboxes(left.shared_id)
        remains.remove_regions(left.shared_id, silent)
    return left


def _segments_of_nobody(dry_run: bool) -> list[Left]:
    """Regions of clients whose superblock somebody removed: nobody has them attached, and nobody will."""
    sizes: dict[int, list[int]] = {}
    here = Namespaces.current().shm
    for item in segments():
        if item.uid != os.geteuid() or item.attached or item.size < CLIENT.size:
            continue
        try:
            memory = region.sysv_attach(item.id, read_only=True)
        except RegionError:  # it has gone, or may not be seen
            continue
        try:
            said = {name: CLIENT.unpack(memory.buffer, name) for name in ("magic", "shared_id", "shm_device")}
        finally:
            memory.close()
        ours = said["magic"] == CLIENT_MAGIC and said["shared_id"] and said["shm_device"] == here
        if ours and not region.posix_inode(names.superblock(said["shared_id"])):
            sizes.setdefault(said["shared_id"], []).append(item.size)
            if not dry_run:
                region.sysv_remove(item.id)
    return [Left(shared_id, "", 0, len(found), sum(found)) for shared_id, found in sizes.items()]


# -- the node that was here before ------------------------------------------------------------------------------------


def end_earlier(directory: NodeDirectory, say: Say) -> None:
    """Of nodes that were killed in this directory, or in another one at its path: say to clients of theirs that still
    live that they are over, and remove the rest. The caller holds the directory's lock, and has not made a superblock.

    Without it a client that waits for nothing, as who acks, would take its memory for that of a node to come.
    """
    for shared_id in _by_node():
        try:
            superblock = Superblock.attach(shared_id, LAYOUT_HASH, os.geteuid())
        except (RegionError, OSError):  # it is another version's, or just going
            continue
        try:
            if _was_here(superblock, directory) and superblock.state != STOPPED and not _lives(superblock):
                say(f"the node that was at {directory.path} before was killed: its clients attach to this one", WARNING)
                superblock.set_state(STOPPED)
                remains.remove_system_v(superblock, remains.abandoned_keys(superblock))
                remains.remove_regions(shared_id, say)
        finally:
            superblock.close()


def _was_here(superblock: Superblock, directory: NodeDirectory) -> bool:
    if superblock.namespaces.unlike(Namespaces.current()):
        return False  # whether it lives cannot be seen from here
    at = superblock.directory
    return superblock.place == directory.place or (bool(at) and Path(at) == directory.path)


def _lives(superblock: Superblock) -> bool:
    """Whether a process of the node lives, or has the lock of its directory, wherever that is now."""
    servers = map(superblock.server_identity, range(superblock.servers_n))
    gateways = map(superblock.gateway_identity, range(CONSTANTS["GATEWAYS_MAX"]))
    own = (superblock.supervisor, superblock.collector, *servers, *gateways)
    if any(identity.pid and identity.alive() for identity in own):
        return True
    wanted = kernel_locks.place_of(*superblock.place)
    return any(place == wanted for place, _pid in kernel_locks.taken())
