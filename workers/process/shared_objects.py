"""What the kernel knows of shared memory: whose a System V segment is, who maps what, how many clients live.

It is asked before anything is removed, because a slot is memory that a broken client may have written.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass

import sysv_ipc

from warren.ipc import access, region
from warren.ipc.layout import CLIENT, CLIENT_MAGIC
from warren.ipc.superblock import SlotView

UNMAPPING_S = 0.2


@dataclass(frozen=True)
class Segment:
    """One line of /proc/sysvipc/shm."""

    id: int
    size: int
    creator: int
    attached: int
    uid: int
    gid: int
    mode: int
    changed: int  #: when it was made, or its owner or mode changed; seconds since 1970


def segments() -> list[Segment]:
    """The System V segments of this IPC namespace."""
    try:
        with open("/proc/sysvipc/shm") as file:
            header, *rows = (line.split() for line in file)
    except FileNotFoundError:
        return []
    at = [header.index(name) for name in ("shmid", "size", "cpid", "nattch", "uid", "gid", "perms", "ctime")]
    return [
        Segment(id, size, creator, attached, uid, gid, int(str(mode), 8), changed)
        for id, size, creator, attached, uid, gid, mode, changed in (
            [int(row[column]) for column in at] for row in rows
        )
    ]


def _of_node(item: Segment, group: int) -> bool:
    """Whether a segment can be a client's of a node with this group. Members of it write the slots and the sizes: they
    may name one of the owner's, which is no client's unless the group may write it.
    """
    shared = (item.gid, item.mode & 0o777) == (group, 0o660)
    return item.uid == os.geteuid() and (group == access.ALONE or shared)


def belongs(view: SlotView, size: int, group: int = access.ALONE) -> bool:
    """True when the segment that a slot names is that client's: its creator and size fit, or it carries its client
    epoch. `group`: of its node.
    """
    for item in segments():
        if item.id == view.shmid:
            if not _of_node(item, group):
                return False
            if (item.creator, item.size) == (view.pid, size):
                return True
    try:
        found = region.sysv_attach(view.shmid, read_only=True)
    except region.RegionError:
        return False
    try:
        if found.size != size:
            return False
        magic, epoch = CLIENT.unpack(found.buffer, "magic"), CLIENT.unpack(found.buffer, "client_epoch")
        return magic == CLIENT_MAGIC and epoch == view.client_epoch
    finally:
        found.close()


def remove_unrecorded(pid: int, size: int, before: float = math.inf, group: int = access.ALONE) -> int:
    """Remove segments of `size` bytes made by a dead process and attached by nobody; returns how many.

    `before`: when another process began that has the pid now (seconds since 1970); what may be its own stays.
    One that is attached is another node's, or the kernel is still taking the dead one's memory apart, which who reads
    that process in /proc delays: it is looked at again for a moment.
    """
    removed = 0
    deadline = time.monotonic() + UNMAPPING_S
    while True:
        made = [item for item in segments() if (item.creator, item.size) == (pid, size) and _of_node(item, group)]
        made = [item for item in made if item.changed + 1 < before]
        removed += sum(region.sysv_remove(item.id) for item in made if not item.attached)
        if not any(item.attached for item in made) or time.monotonic() > deadline:
            return removed
        time.sleep(UNMAPPING_S / 20)


def mappings_of_segment(pid: int, shmid: int) -> int:
    """How often a process maps a System V segment."""
    count = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
        for line in file:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].startswith("/SYSV") and parts[4] == str(shmid):
                count += 1
    return count


def region_users(prefix: str) -> list[int]:
    """Pids that map a POSIX region of this user whose name begins with `prefix`, as far as this user may see; not this
    process.
    """
    found = []
    ours = {
        str(region.posix_inode(name)) for name in region.posix_names(prefix) if region.posix_owner(name) == os.geteuid()
    }
    path = region.SHM_DIRECTORY + prefix
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/maps") as file:
                if any(path in line and line.split(maxsplit=5)[4] in ours for line in file):
                    found.append(int(name))
    return sorted(found)


def create_semaphore(key: int, value: int) -> bool:
    """Make a System V semaphore; who may use it, access.py says. False when somebody has that key."""
    try:
        made = sysv_ipc.Semaphore(key, sysv_ipc.IPC_CREX, mode=0o600, initial_value=value)
    except sysv_ipc.ExistentialError:
        return False
    if access.group() != access.ALONE:
        made.gid = access.group()
        made.mode = access.object_mode()
    return True


def remove_semaphore(key: int) -> bool:
    """Remove a semaphore; False when there is none, or it is not ours: keys are given again."""
    try:
        found = sysv_ipc.Semaphore(key)
        if found.cuid != os.geteuid():
            return False
        found.remove()
    except (sysv_ipc.Error, ValueError):
        return False
    return True


def semaphore_exists(key: int) -> bool:
    """False when there is no semaphore of that key. Raises OSError: it is not known."""
    try:
        sysv_ipc.Semaphore(key)
    except sysv_ipc.ExistentialError:
        return False
    except sysv_ipc.Error as error:
        raise OSError(str(error)) from error
    return True


def semaphore_value(key: int) -> int | None:
    """Value of a semaphore (live clients: the kernel keeps it true), None when it is not there."""
    try:
        value: int = sysv_ipc.Semaphore(key).value
    except (sysv_ipc.Error, ValueError):
        return None
    return value
