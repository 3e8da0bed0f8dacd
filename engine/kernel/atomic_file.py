"""Small files that are replaced as a whole: a reader sees the old content or the new one, also after power loss.

Order: write `<name>.new`, sync it, rename it over the file, sync the directory. A crash in between leaves the old
file and perhaps a `.new`, which the next replacement overwrites. One writer per file (the supervisor, under the
directory's lock).

`write_all` is the one place of the engine that writes: a system may write less than it was given and call that a
success (a full disk, a signal). No other module calls write or pwrite; tests/house/test_house.py looks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from warren.engine.errors import DiskFull, Error, PermissionRefused, StoreError, SyncFailed, SystemLimit
from warren.engine.kernel import data_files
from warren.ipc import access

if TYPE_CHECKING:
    from typing_extensions import Buffer

NEW_SUFFIX = ".new"


def write_all(descriptor: int, content: Buffer, at: int) -> None:
    """Write all of `content` at byte `at` of a file. Raises OSError; then any part of it may have been written."""
    with memoryview(content) as whole, whole.cast("B") as rest:
        done = 0
        while done < len(rest):
            with rest[done:] as part:  # released whatever comes: the caller may have to unmap what it is a view of
                written = os.pwrite(descriptor, part, at + done)
            if written <= 0:
                raise OSError(errno.EIO, f"{len(rest) - done} of {len(rest)} bytes were not written")
            done += written


def write_synced(path: Path, content: Buffer) -> None:
    """Make a file of `content`, synced; its name is not. Raises OSError; then it is not whole."""
    descriptor = data_files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, access.file_mode())
    try:
        write_all(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes, mode: int | None = None) -> None:
    """Make `content` the durable content of `path`; on an error the file is what it was before. `mode`: other than
    what this process makes for others.

    Raises DiskFull, PermissionRefused, SyncFailed, StoreError.
    """
    new = path.with_name(path.name + NEW_SUFFIX)
    syncing = False
    try:
        data_files.unlink(new, missing_ok=True)  # of whomever it is
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = data_files.open(new, flags, access.file_mode() if mode is None else mode)
        try:
            write_all(descriptor, content, 0)
            syncing = True
            os.fsync(descriptor)
            syncing = False
        finally:
            os.close(descriptor)
        data_files.rename(new, path)
        syncing = True
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            data_files.unlink(new)
        raise explain(error, f"cannot write {path}", syncing=syncing) from error


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable. Raises OSError."""
    descriptor = data_files.open_folder(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, mode: int | None = None) -> None:
    """Make a directory and what is missing above it, each durable in its parent before anything is put into
    it. The lowest that exists is synced in its parent, too: it may be of a start that was cut short. `mode`: of the
    directory itself, other than what this process makes for others. Raises OSError.
    """
    lowest = path
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    with contextlib.suppress(PermissionError):  # not ours to read; whoever made it there could
        sync_directory(path.parent)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):
            data_files.make_folder(made, mode=mode if made == lowest else None)
        sync_directory(made.parent)


#: what the system has no more of, by errno: what to do about it
_LIMITS = {
    errno.EMFILE: "close what is not needed, or raise `ulimit -n` of this process (now {descriptors})",
    errno.ENFILE: "the machine has too many open files: close some, or raise the sysctl fs.file-max",
    errno.ENOMEM: "free memory, or raise `ulimit -v`, the sysctl vm.max_map_count or the container's limit",
    errno.ENOBUFS: "free memory, or raise the container's limit",
    errno.EAGAIN: "raise `ulimit -u` of this user, or the container's limit of processes and threads",
}


def is_limit(error: BaseException) -> bool:
    """True when it says that the system has no more of something, rather than what is wrong with a file."""
    return isinstance(error, OSError) and error.errno in _LIMITS and error.errno != errno.EAGAIN


#: what refuses a right; a sync that is answered with the last one has failed: the disk became read-only under it
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def explain(error: OSError, doing: str, *, syncing: bool = False) -> StoreError:
    """The Warren error for what the operating system said while `doing`: the one place that chooses its class and says
    what to do. `syncing`: what was written before may not be durable."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{doing}: {reason}; nothing was lost: make space; a node that serves continues by itself, a start or a "
            "command has to be repeated"
        )
    if error.errno in _REFUSED and not (syncing and error.errno == errno.EROFS):
        return PermissionRefused(
            f"{doing}: {reason}; run as the owner of the directory, give the user who runs the node the right to write "
            "there, or choose another directory"
        )
    if syncing:
        return SyncFailed(f"{doing}: {reason}; check the disk, then start the node again")
    if error.errno in _LIMITS:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return SystemLimit(f"{doing}: {reason}; {_LIMITS[error.errno].format(descriptors=soft)}")
    return StoreError(f"{doing}: {reason}")


def explain_errno(number: int, doing: str) -> StoreError:
    """The same for the C core."""
    return explain(OSError(number, os.strerror(number)), doing)


def explain_any(error: Exception, doing: str) -> Exception:
    """The same for whatever making a thing of the system raises (a thread: RuntimeError); anything else as it is."""
    if isinstance(error, Error):
        return error
    if isinstance(error, OSError):
        return explain(error, doing)
    if isinstance(error, MemoryError):
        return explain_errno(errno.ENOMEM, doing)
    if isinstance(error, RuntimeError) and "thread" in str(error):  # Python says no more: can't start new thread
        return explain_errno(errno.EAGAIN, doing)
    return error


@contextlib.contextmanager
def file_explained(doing: str) -> Iterator[None]:
    """What the system refuses of files inside is raised as the Warren error for it; what is one stays as it is."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise explain(error, doing) from error


@contextlib.contextmanager
def explained(doing: str, *, limits_alone: bool = False) -> Iterator[None]:
    """What the system refuses inside is raised as the Warren error for it. `limits_alone`: an OSError only where it
    says that there are no more descriptors, or no more memory.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if limits_alone and isinstance(error, OSError) and not is_limit(error):
            raise
        told = explain_any(error, doing)
        if told is error:
            raise
        raise told from error
