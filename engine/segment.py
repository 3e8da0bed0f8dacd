"""Segment files on disk: make, list, read and repair them. Appending is the log's business (`engine/core/log.c`).

Invariants
- A file under its final name has a valid header page and all its space: it is made under `<name>.new`, filled, synced,
  and only then renamed; the directory is synced after that. A leftover `.new` file holds nothing and may be removed.
- File numbers are never reused within a directory, and one process writes to it; so the rename replaces nothing.
- A file once found torn is cut in place and never appended to again.

Crash points of `create`: before the rename a `.new` file is left; after it an empty file of the right form.
Files are read with `pread` and not through a mapping: a sector that cannot be read is then an error of one file, where
a mapping would kill the process by SIGBUS.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from warren.engine import _core
from warren.engine.errors import (
    CorruptRecord,
    DiskFull,
    FormatVersionError,
    PermissionRefused,
    StoreError,
    SyncFailed,
)
from warren.engine.formats import FILE_HEADER, FILE_HEADER_BYTES, FILE_MAGIC, FORMAT_VERSION
from warren.engine.frame import Scan, scan

UNFINISHED = ".new"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Created(NamedTuple):
    """A new file, open for writing: what `Log.offer` wants. Whoever gets it owns `fd`."""

    fd: int
    file: int
    salt: int
    header: bytes
    direct: bool  #: O_DIRECT is on: writes must be whole pages from aligned memory


class Header(NamedTuple):
    """A checked header page."""

    version: int
    kind: int
    node_id: int
    owner: int
    file: int
    salt: int
    created_ns: int


class Listing(NamedTuple):
    """The files of a directory."""

    files: list[tuple[int, Path]]  #: by rising number
    foreign: list[Path]  #: not ours: never touched, to be reported
    unfinished: list[Path]  #: left by a `create` that was killed: to be removed


@dataclass(frozen=True)
class FileScan:
    """A file's header, all its bytes, and the frames in them."""

    path: Path
    header: Header
    data: bytearray
    frames: Scan


def _raise(error: OSError, doing: str, path: Path) -> NoReturn:
    """Turn an error of the system into ours; it says what to do."""
    said = f"cannot {doing} {path}: {error.strerror or error}"
    if error.errno in _NO_SPACE:
        raise DiskFull(f"{said}; nothing was lost, it goes on when there is space again") from error
    if error.errno in _REFUSED:
        raise PermissionRefused(
            error.errno, f"{said}; give the user who runs the node the right to write there"
        ) from error
    raise StoreError(said) from error


def _sync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno in _NO_SPACE:
            _raise(error, "sync", path)
        raise SyncFailed(f"cannot sync {path}: {error.strerror}; check the disk, then reopen the node") from error


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises SyncFailed."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _raise(error, "open", directory)
    try:
        _sync(fd, directory)
    finally:
        os.close(fd)


def _write_header(fd: int, page: mmap.mmap) -> None:
    written = os.pwrite(fd, page, 0)
    if written != len(page):
        # The space is reserved already: a short write of one page is an error of the disk.
        raise OSError(errno.EIO, f"only {written} bytes of the header page were written")


def _open_direct(path: Path, page: mmap.mmap) -> int | None:
    """Open for O_DIRECT and write the header page so; None where the file system refuses one or the other."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    try:
        _write_header(fd, page)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    return fd


def _make(path: Path, header: bytes, size: int) -> tuple[int, bool]:
    """Make the unfinished file: all its space, its header, synced. Returns (descriptor, direct)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        with mmap.mmap(-1, FILE_HEADER_BYTES) as page:  # memory that O_DIRECT takes: aligned to the page
            page[:] = header
            direct = _open_direct(path, page)
            if direct is None:
                _write_header(fd, page)
            else:
                os.close(fd)
                fd = direct
        _sync(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, direct is not None


def create(path: Path, kind: int, node_id: int, owner: int, file: int, size: int) -> Created:
    """Make a segment file of `size` bytes (a multiple of the page) with a new salt, durable in its directory.

    Raises DiskFull, PermissionRefused, SyncFailed, StoreError (exists already, or as the system says); no file is left.
    """
    salt = secrets.randbits(64)
    header = _core.file_header_pack(kind, node_id, owner, file, salt, time.time_ns())
    unfinished = path.with_name(path.name + UNFINISHED)
    fd = -1
    try:
        if path.exists():
            raise StoreError(f"{path} exists already: file numbers are never reused")
        unfinished.unlink(missing_ok=True)
        fd, direct = _make(unfinished, header, size)
        unfinished.rename(path)
        sync_directory(path.parent)
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
            path.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            _raise(error, "make", path)
        raise
    return Created(fd, file, salt, header, direct)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        _raise(error, "open", path)


def _read(fd: int, path: Path, size: int) -> bytearray:
    """The first `size` bytes of a file, fewer if it is shorter."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    try:
        while got < size:
            n = os.preadv(fd, [view[got:]], got)
            if n == 0:
                break
            got += n
    except OSError as error:
        _raise(error, f"read byte {got} of", path)
    finally:
        view.release()
    del data[got:]
    return data


def check_header(path: Path, page: bytes | bytearray, *, kind: int, node_id: int, owner: int, file: int) -> Header:
    """Check a header page against what its place says. Raises CorruptRecord, FormatVersionError."""
    if len(page) < FILE_HEADER_BYTES:
        raise CorruptRecord(path, 0, f"a header page of {FILE_HEADER_BYTES} bytes", f"a file of {len(page)} bytes")
    reason, salt = _core.file_header_check(page, kind, node_id, owner, file)

    def found(name: str) -> int:
        return FILE_HEADER.unpack(page, name)

    if reason is None:
        return Header(FORMAT_VERSION, kind, node_id, owner, file, salt, found("created_ns"))
    if reason == "magic":
        raise CorruptRecord(
            path, 0, f"{FILE_MAGIC!r} (a segment file of Warren)", f"{bytes(page[:8])!r} (a foreign file)"
        )
    if reason == "version":
        # A flipped bit in the number is damage; only a page that is not ours but for the number is a newer format.
        restored = bytearray(page[:FILE_HEADER_BYTES])
        FILE_HEADER.pack_into(restored, "version", FORMAT_VERSION)
        version = found("version")
        if version < FORMAT_VERSION or found("crc") == _core.crc32c(restored[: FILE_HEADER.offset("crc")]):
            raise CorruptRecord(path, FILE_HEADER.offset("version"), f"format version {FORMAT_VERSION}", str(version))
        raise FormatVersionError(
            f"{path} has format version {version}, this Warren reads up to {FORMAT_VERSION}: "
            "open the directory with the Warren that wrote it, or a newer one"
        )
    if reason == "crc":
        raise CorruptRecord(
            path,
            FILE_HEADER.offset("crc"),
            f"CRC32C {_core.crc32c(page[: FILE_HEADER.offset('crc')]):#010x} of the header page",
            f"{found('crc'):#010x}",
        )
    expected = {"kind": kind, "node_id": node_id, "owner": owner, "file": file}
    name = "node_id" if reason == "node" else reason
    raise CorruptRecord(path, FILE_HEADER.offset(name), f"{name} {expected[name]}", f"{name} {found(name)}")


def read_header(path: Path, *, kind: int, node_id: int, owner: int, file: int) -> Header:
    """Read and check a file's header page.

    Raises CorruptRecord (foreign, damaged, or of another directory, writer or number), FormatVersionError, StoreError.
    """
    fd = _open(path, os.O_RDONLY)
    try:
        page = _read(fd, path, FILE_HEADER_BYTES)
    finally:
        os.close(fd)
    return check_header(path, page, kind=kind, node_id=node_id, owner=owner, file=file)


def scan_file(path: Path, *, kind: int, node_id: int, owner: int, file: int) -> FileScan:
    """Read a whole file and list its frames. Raises as read_header; what is wrong further on is in `frames.reason`."""
    fd = _open(path, os.O_RDONLY)
    try:
        data = _read(fd, path, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    header = check_header(path, data[:FILE_HEADER_BYTES], kind=kind, node_id=node_id, owner=owner, file=file)
    return FileScan(path, header, data, scan(data, header.salt))


def truncate_torn_tail(path: Path, at: int) -> int:
    """Cut a file at byte `at` and give it back its length in zeros, durably; returns how many bytes were cut.

    A death in between leaves a shorter file, which a scan reads just as well. Raises StoreError, SyncFailed.
    """
    fd = _open(path, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        if not FILE_HEADER_BYTES <= at <= size:
            raise ValueError(f"{path} of {size} bytes cannot be cut at {at}")
        try:
            os.ftruncate(fd, at)
            os.ftruncate(fd, size)
        except OSError as error:
            _raise(error, "cut the torn tail of", path)
        _sync(fd, path)
    finally:
        os.close(fd)
    return size - at


def list_files(directory: Path, suffix: str) -> Listing:
    """The files `<number><suffix>` of a directory. Raises StoreError when it cannot be read."""
    pattern = re.compile(rf"(0|[1-9][0-9]{{0,18}}){re.escape(suffix)}({re.escape(UNFINISHED)})?", re.ASCII)
    listing = Listing([], [], [])
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        for entry in entries:
            path = Path(entry.path)
            match = pattern.fullmatch(entry.name)
            if match is None or not entry.is_file(follow_symlinks=False):
                listing.foreign.append(path)
            elif match[2]:
                listing.unfinished.append(path)
            else:
                listing.files.append((int(match[1]), path))
    except OSError as error:
        _raise(error, "list", directory)
    listing.files.sort()
    return listing
