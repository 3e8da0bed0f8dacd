"""Shared memory regions: POSIX ones by name (made by the node) and System V ones by id (made by clients).

POSIX regions are reserved with posix_fallocate when they are made, because a full tmpfs otherwise shows itself as
SIGBUS at the first touch. System V segments are accounted by the kernel at creation and freed at the last detach after
IPC_RMID, whoever dies when; their attach count is true even after kill -9.
"""

from __future__ import annotations

import errno
import functools
import logging
import mmap
import os
import stat
import sys
import time
from collections.abc import Iterable, Sequence

import posix_ipc
import sysv_ipc

from warren.ipc import _core, access
from warren.ipc.access import ALONE

#: how long a lease on shared memory is waited for at most; it is held for an instant
LEASED_S = 30.0
SHM_DIRECTORY = "/dev/shm"  # noqa: S108 (where Linux shows POSIX shared memory)

log = logging.getLogger("warren.ipc")


class RegionError(OSError):
    """A region could not be made or attached; the message says why and what to do."""


class SegmentRefused(RegionError):
    """The kernel makes no System V segment of that size: a limit, or no memory."""


class ForeignRegion(RegionError):
    """Another user, of whom nothing was expected, has taken the name: ENOENT, for the region is not there."""

    def __init__(self, name: str, owner: int) -> None:
        self.owner = owner
        super().__init__(errno.ENOENT, f"{SHM_DIRECTORY}{name} belongs to {access.user(owner)}, and is passed by")


class Region:
    """A mapped region. `.buffer` is a writable memoryview of `size` bytes; it stays valid until close()."""

    def __init__(
        self,
        memory: mmap.mmap | sysv_ipc.SharedMemory,
        size: int,
        name: str,
        id: int,
        found: os.stat_result | None = None,
    ) -> None:
        self._memory: mmap.mmap | sysv_ipc.SharedMemory | None = memory
        self.inode = found.st_ino if found else 0  #: of a POSIX region: whether its name still leads to it
        #: of a POSIX region: its user, and the group that may use it, too (ALONE: none)
        self.owner = (found.st_uid, found.st_gid if found.st_mode & 0o060 == 0o060 else ALONE) if found else (-1, ALONE)
        self.size = size
        self.name = name
        self.id = id
        self.buffer = memoryview(memory).cast("B")[:size]

    def close(self) -> None:
        """Unmap (detach). Does nothing when done before. Raises BufferError while somebody still holds the buffer."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        try:
            self.buffer.release()
            if isinstance(memory, mmap.mmap):
                memory.close()
            else:
                memory.detach()
        except BufferError:
            self._memory = memory
            raise


MADV_POPULATE_WRITE = 23


@functools.cache
def _can_populate() -> bool:
    """Whether the kernel gives memory ahead of the first touch, and says when there is none (Linux 5.14)."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(MADV_POPULATE_WRITE)
        except OSError:
            return False
    return True


def posix_create(name: str, size: int, reserve: Iterable[tuple[int, int]] | None = None) -> Region:
    """Make and reserve a POSIX region; who may use it, access.py says. Raises RegionError (exists, no space in shared
    memory).

    `reserve`: only these parts, each (from, bytes). Whoever uses the rest must populate it first, and live with being
    refused.
    """
    try:
        memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
    except posix_ipc.ExistentialError as error:
        raise RegionError(errno.EEXIST, f"shared memory {name} exists already") from error
    except (OSError, ValueError) as error:
        raise RegionError(
            getattr(error, "errno", None) or errno.EIO, f"cannot make shared memory {name}: {error}"
        ) from error
    try:
        os.ftruncate(memory.fd, size)
        for start, length in [(0, size)] if reserve is None or not _can_populate() else reserve:
            os.posix_fallocate(memory.fd, start, length)
        mapped = mmap.mmap(memory.fd, size)
        access.let_in(memory.fd, access.object_mode())
        found = os.fstat(memory.fd)
    except OSError as error:
        memory.close_fd()
        posix_unlink(name)
        if error.errno == errno.ENOSPC:
            raise RegionError(
                errno.ENOSPC,
                f"no space for {size} bytes in {SHM_DIRECTORY} ({name}): free some, or enlarge it",
            ) from error
        raise RegionError(
            error.errno or errno.EIO, f"cannot reserve {size} bytes of shared memory {name}: {error}"
        ) from error
    memory.close_fd()
    return Region(mapped, size, name, -1, found)


def free_bytes() -> int:
    """Shared memory that is free for POSIX regions; what nobody limits counts as very much."""
    found = os.statvfs(SHM_DIRECTORY)
    return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize


def _opened(path: str, how: int) -> int:
    """A descriptor. Another process that asks whether anybody has it (workers/process/abandoned.py) is waited for."""
    end = time.monotonic() + LEASED_S
    while True:
        try:
            return os.open(path, how)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
        time.sleep(0.001)


def posix_open(name: str, writable: bool = True, owner: int = -1) -> Region:
    """Map an existing POSIX region whole; `owner`: the user whose it has to be. Raises RegionError (ENOENT: not there;
    EACCES: not yours), ForeignRegion.

    What the system has no more of (descriptors, memory) says nothing about the region: that stays an OSError.
    """
    try:  # not by posix_ipc, whose errors carry no number
        how = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        descriptor = _opened(SHM_DIRECTORY + name, how | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise RegionError(errno.ENOENT, f"shared memory {name} does not exist") from error
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise
        whose = posix_owner(name)
        if error.errno != errno.EACCES or owner not in (-1, whose):  # a folder, a symbolic link, a socket: none of ours
            raise ForeignRegion(name, whose) from error
        raise RegionError(errno.EACCES, f"shared memory {name} belongs to {access.user(whose)}") from error
    try:
        found = os.fstat(descriptor)
        if owner not in (-1, found.st_uid) or not stat.S_ISREG(found.st_mode):
            raise ForeignRegion(name, found.st_uid)
        if found.st_size == 0:
            raise RegionError(errno.ENOENT, f"shared memory {name} is still being made")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(descriptor, found.st_size, prot=protection)
    finally:
        os.close(descriptor)
    return Region(mapped, found.st_size, name, -1, found)


def posix_drop(name: str) -> bool:
    """Remove a name, if it can be: what another user has put there is passed by, and named in the log. Raises
    RegionError: something else is wrong.
    """
    try:
        return posix_unlink(name)
    except ForeignRegion as error:
        log.warning("%s", error.strerror)
        return False


def posix_unlink(name: str) -> bool:
    """Remove a name; mappings stay valid. Returns False when there was none. Raises RegionError, ForeignRegion."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        return False
    except (OSError, posix_ipc.Error) as error:
        whose = posix_owner(name)
        if whose not in (-1, os.geteuid()):
            raise ForeignRegion(name, whose) from error
        raise _failed(error, f"cannot remove shared memory {name}") from error
    return True


def posix_names(prefix: str) -> list[str]:
    """Names in /dev/shm that begin with `prefix` (which begins with a slash), of all users. Raises RegionError."""
    try:
        entries = os.listdir(SHM_DIRECTORY)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _failed(error, f"cannot list {SHM_DIRECTORY}") from error
    return sorted("/" + entry for entry in entries if ("/" + entry).startswith(prefix))


def posix_inode(name: str) -> int:
    """Inode number of the POSIX region that has this name now, 0 when there is none. Raises OSError: not known."""
    try:
        return os.stat(SHM_DIRECTORY + name, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return 0


def posix_bytes(name: str) -> int:
    """Memory of what has this name in /dev/shm, 0: nothing has."""
    try:
        return os.stat(SHM_DIRECTORY + name, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def posix_owner(name: str) -> int:
    """User id that owns what has this name in /dev/shm, -1: nothing has."""
    try:
        return os.stat(SHM_DIRECTORY + name, follow_symlinks=False).st_uid
    except FileNotFoundError:
        return -1


def sysv_create(
    size: int, touch: bool = True, owner: tuple[int, int] = (-1, ALONE), late: Sequence[tuple[int, int]] = ()
) -> Region:
    """Make a System V segment of `size` zero bytes, attached. `.id` is its shmid. `touch`: every page, now; else each
    costs its first user up to 14 us, and is no memory until then; so do those of the parts `late` (from, bytes), whole
    pages in order. When it fails nothing stays.

    `owner` (user, group) of a node with a group: the segment becomes that user's, who may remove it, mode 0660. Without
    a group it stays its maker's, mode 0600.
    """
    try:
        id = _core.segment_create(size, *owner)
    except (OSError, ValueError, OverflowError) as error:
        raise SegmentRefused(
            getattr(error, "errno", None) or errno.EINVAL,
            f"cannot make a System V segment of {size} bytes: {getattr(error, 'strerror', None) or error}; "
            "see limits kernel.shmmni, kernel.shmmax, kernel.shmall",
        ) from error
    try:
        made = sysv_attach(id)
        if touch:
            begin = 0
            for start, length in (*late, (size, 0)):
                made.buffer[begin : start : mmap.PAGESIZE] = bytes(-(-(start - begin) // mmap.PAGESIZE))
                begin = start + length
    except BaseException:
        sysv_remove(id)  # it goes at the last detach
        raise
    return made


def sysv_attach(id: int, read_only: bool = False) -> Region:
    """Attach a System V segment. Raises RegionError (ENOENT: it is gone; EACCES: not yours; ENOMEM: no room for it)."""
    try:
        memory = sysv_ipc.attach(id, None, sysv_ipc.SHM_RDONLY if read_only else 0)
    except sysv_ipc.ExistentialError as error:
        raise RegionError(errno.ENOENT, f"System V segment {id} does not exist") from error
    except sysv_ipc.PermissionsError as error:
        raise RegionError(errno.EACCES, f"System V segment {id} belongs to another user") from error
    except (OSError, ValueError, MemoryError, sysv_ipc.Error) as error:
        raise _failed(error, f"cannot attach System V segment {id}") from error
    try:
        return Region(memory, memory.size, "", id)
    except sysv_ipc.ExistentialError as error:
        memory.detach()
        raise RegionError(errno.ENOENT, f"System V segment {id} does not exist") from error
    except BaseException:
        memory.detach()
        raise


def _failed(error: Exception, doing: str) -> RegionError:
    """What the system said while `doing`, with its number; what has none is a lack of memory, or of sense (EINVAL)."""
    number = getattr(error, "errno", None) or (errno.ENOMEM if isinstance(error, MemoryError) else errno.EINVAL)
    return RegionError(number, f"{doing}: {getattr(error, 'strerror', None) or str(error) or os.strerror(number)}")


def sysv_remove(id: int) -> bool:
    """IPC_RMID: the segment goes at the last detach. Returns False when it was gone already."""
    try:
        sysv_ipc.remove_shared_memory(id)
    except sysv_ipc.ExistentialError:
        return False
    except ValueError:
        return False
    return True


def sysv_attached(id: int) -> int:
    """Number of attachments the kernel counts; 0 when the segment is gone. Raises RegionError when nobody can say."""
    try:
        memory = sysv_ipc.attach(id)
    except (sysv_ipc.ExistentialError, ValueError):
        return 0
    except (OSError, MemoryError, sysv_ipc.Error) as error:
        raise _failed(error, f"cannot attach System V segment {id}") from error
    try:
        count: int = memory.number_attached
    finally:
        memory.detach()
    return count - 1
