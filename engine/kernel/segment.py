"""Segment files on disk: make, list, read and repair them. Appending is the log's business (`engine/kernel/log.c`).

Invariants
- A file under its final name has a valid header page and all its space: it is made under `<name>.new`, filled, synced,
  and only then renamed; the directory is synced after that. A leftover `.new` file holds nothing and may be removed.
- File numbers are never reused within a directory, and one process writes to it; so the rename replaces nothing.
- A file once found torn is cut in place and never appended to again.

Crash points of `create`: before the rename a `.new` file or a spare is left; after it an empty file of the right form.
"Empty" means that no record in it validates: behind its first page a spare (engine/store/folder.py) has whatever it
had. `create` syncs the directory before it takes one: what made it a spare must be durable before its header changes.
Files are read with `pread` and not through a mapping: a sector that cannot be read is then an error of one file, where
a mapping would kill the process by SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from warren.engine import _core
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.atomic_file import explain
from warren.engine.kernel.formats import FILE_HEADER, FILE_HEADER_BYTES, FILE_MAGIC, FORMAT_VERSION, FRAME_BYTES_MIN
from warren.engine.kernel.frame import Scan, pad, scan
from warren.ipc import access
from warren.ipc.layout import CONSTANTS, PAGE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_BYTES_MAX = 1 << 30  #: no more of a file is read, whatever its length (the largest file_bytes)
UNFINISHED = ".new"

#: how often a disk is asked for what it refuses with EIO
READS_MAX = 3

T = TypeVar("T")


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
    position_low: int  #: a collected file stands for the positions low … high; any other for its own number
    position_high: int


class Listing(NamedTuple):
    """The files of a directory, each by rising number."""

    files: list[tuple[int, Path]]
    foreign: list[Path]  #: not ours: never touched, to be reported
    unfinished: list[Path]  #: left by a `create` or a collection that was killed: to be removed
    beside: dict[str, list[tuple[int, Path]]]  #: files with the other suffixes that were asked for


@dataclass(frozen=True)
class FileScan:
    """A file's header, all its bytes, and the frames in them."""

    path: Path
    header: Header
    data: bytearray
    frames: Scan


def unfinished_path(path: Path) -> Path:
    """The name that a file has until it counts."""
    return path.with_name(path.name + UNFINISHED)


def again(read: Callable[[], T]) -> T:
    """What a disk refuses with EIO is asked for twice more before it counts as damage, because what is damaged is given
    up for good, and a disk behind a network or a bus that comes back is not.
    """
    for _ in range(READS_MAX - 1):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
    return read()


def _sync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise explain(error, f"cannot sync {path}", syncing=True) from error


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises StoreError, SyncFailed."""
    fd = _open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(fd, directory)
    finally:
        os.close(fd)


def _open_direct(path: Path, page: mmap.mmap) -> int | None:
    """Open for O_DIRECT and write the header page so; None where the file system refuses one or the other."""
    try:
        fd = data_files.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    try:
        atomic_file.write_all(fd, page, 0)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    return fd


def _write_first(fd: int, path: Path, header: bytes) -> tuple[int, bool]:
    """Write the header page and sync it; returns the descriptor to go on with, and whether it is direct."""
    with mmap.mmap(-1, FILE_HEADER_BYTES) as page:  # memory that O_DIRECT takes: aligned to the page
        page[:] = header
        direct = _open_direct(path, page)
        if direct is None:
            atomic_file.write_all(fd, page, 0)
            _sync(fd, path)
            return fd, False
    try:
        _sync(direct, path)
    except BaseException:
        os.close(direct)
        raise
    os.close(fd)
    return direct, True


def _make(path: Path, header: bytes, size: int) -> tuple[int, bool]:
    """Make the unfinished file: all its space, its header, synced. Returns (descriptor, direct)."""
    fd = data_files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, access.file_mode())
    try:
        os.posix_fallocate(fd, 0, size)
        return _write_first(fd, path, header)
    except BaseException:
        os.close(fd)
        raise


def _nothing_passed(_point: int) -> None:
    pass


def _take_spare(spare: Path, size: int, header: bytes) -> tuple[int, bool] | None:
    """Give a spare its new header, synced. None: it was not of the right kind, or the disk refused; it is gone."""
    try:
        found = spare.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != size or found.st_nlink != 1:
            raise OSError(errno.EINVAL, "no file of the right size")
        fd = data_files.open(spare, os.O_RDWR)
        try:
            return _write_first(fd, spare, header)
        except BaseException:
            os.close(fd)
            raise
    except OSError:
        with contextlib.suppress(OSError):
            data_files.unlink(spare, missing_ok=True)
        return None


class SpareFiles(Protocol):
    """Files that went and may be made new ones."""

    def take(self) -> Path | None:
        """One that is the caller's from now on; None: there is none."""


def create(
    path: Path,
    kind: int,
    node_id: int,
    owner: int,
    file: int,
    size: int,
    *,
    spares: SpareFiles | None = None,
    positions: tuple[int, int] | None = None,
    passed: Callable[[int], None] = _nothing_passed,
) -> Created:
    """Make a segment file of `size` bytes (a multiple of the page) with a new salt, durable in its directory.

    `spares`: out of one of these, if there is one. `passed` is told the crash points on the way.
    Raises DiskFull, PermissionRefused, SyncFailed, StoreError (exists already, or as the system says). No file is left
    unless the disk refuses to remove it, too; one under its unfinished name goes with the next try.
    """
    salt = secrets.randbits(64)
    header = _core.file_header_pack(kind, node_id, owner, file, salt, time.time_ns(), *(positions or ()))
    unfinished = unfinished_path(path)
    fd = -1
    try:
        if path.exists():
            raise StoreError(f"{path} exists already: file numbers are never reused")
        data_files.unlink(unfinished, missing_ok=True)
        made = None
        if spares:
            sync_directory(path.parent)
        while spares is not None and made is None and (spare := spares.take()) is not None:
            made = _take_spare(spare, size, header)
            if made is not None:
                unfinished = spare
                passed(CONSTANTS["CRASH_FILE_RECYCLED"])
        fd, direct = made if made is not None else _make(unfinished, header, size)
        data_files.rename(unfinished, path)
        sync_directory(path.parent)
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
            with contextlib.suppress(OSError):  # the first error counts
                data_files.unlink(path, missing_ok=True)
        with contextlib.suppress(OSError):
            data_files.unlink(unfinished, missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise explain(error, f"cannot make {path}") from error
        raise
    return Created(fd, file, salt, header, direct)


def _open(path: Path, flags: int) -> int:
    try:
        return again(lambda: data_files.open(path, flags))
    except OSError as error:
        raise explain(error, f"cannot open {path}") from error


def _read(fd: int, path: Path, size: int) -> bytearray:
    """The first `size` bytes of a file, fewer if it is shorter."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    try:
        while got < size:
            n = again(lambda: os.preadv(fd, [view[got:]], got))  # noqa: B023 - called at once
            if n == 0:
                break
            got += n
    except OSError as error:
        raise explain(error, f"cannot read byte {got} of {path}") from error
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
        low, high = (found(name) - 1 if found(name) else file for name in ("position_low", "position_high"))
        if not low <= high <= file:
            raise CorruptRecord(
                path, FILE_HEADER.offset("position_low"), f"positions up to {file}", f"positions {low} to {high}"
            )
        return Header(FORMAT_VERSION, kind, node_id, owner, file, salt, found("created_ns"), low, high)
    if reason == "magic":
        raise CorruptRecord(
            path, 0, f"{FILE_MAGIC!r} (a segment file of Warren)", f"{bytes(page[:8])!r} (a foreign file)"
        )
    if reason == "version":
        # Magic, version and checksum of the page stay where they are in every version: a wrong checksum is damage.
        version = found("version")
        if version < FORMAT_VERSION or found("crc") != _core.crc32c(page[: FILE_HEADER.offset("crc")]):
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


def mended_header(page: bytes | bytearray) -> bytes | None:
    """The header page with the one bit put right that is wrong in it; None: it is right, or more is wrong.

    Pages that differ in a bit or two never have the same CRC, so what is found is what was written.
    """
    at = FILE_HEADER.offset("crc")
    if len(page) < FILE_HEADER_BYTES:
        return None
    wrong = int.from_bytes(page[at : at + 4], "big") ^ _core.crc32c(page[:at])
    if wrong == 0:
        return None
    mended = bytearray(page[:FILE_HEADER_BYTES])
    if wrong.bit_count() == 1:  # in the checksum itself
        mended[at : at + 4] = _core.crc32c(page[:at]).to_bytes(4, "big")
        return bytes(mended)
    stored = int.from_bytes(page[at : at + 4], "big")
    body = memoryview(mended)[:at]
    for place in range(at):
        for bit in range(8):
            mended[place] ^= 1 << bit
            if _core.crc32c(body) == stored:
                return bytes(mended)
            mended[place] ^= 1 << bit
    return None


def check_or_mend(
    path: Path, page: bytes | bytearray, *, kind: int, node_id: int, owner: int, file: int
) -> tuple[Header, bytes | None]:
    """As check_header, but a page with one flipped bit is taken for what it was: then that page is returned, too."""
    try:
        return check_header(path, page, kind=kind, node_id=node_id, owner=owner, file=file), None
    except CorruptRecord:
        right = mended_header(page)
        if right is None:
            raise
        return check_header(path, right, kind=kind, node_id=node_id, owner=owner, file=file), right


def rewrite_header(path: Path, page: bytes) -> None:
    """Put a mended header page into its file, durably. Raises StoreError, SyncFailed."""
    fd = _open(path, os.O_WRONLY)
    try:
        atomic_file.write_all(fd, page, 0)
        _sync(fd, path)
    except OSError as error:
        raise explain(error, f"cannot repair the header of {path}") from error
    finally:
        os.close(fd)


def read_page(path: Path) -> bytearray:
    """The first page of a file, less if it is shorter. Raises StoreError."""
    fd = _open(path, os.O_RDONLY)
    try:
        return _read(fd, path, FILE_HEADER_BYTES)
    finally:
        os.close(fd)


def never_begun(path: Path) -> bool:
    """Is a file empty, or are there only zeros in it? Raises StoreError."""
    zeros, at = bytes(1 << 20), 0
    fd = _open(path, os.O_RDONLY)
    try:
        while got := again(lambda: os.pread(fd, len(zeros), at)):  # noqa: B023 - called at once
            if got != zeros[: len(got)]:
                return False
            at += len(got)
    except OSError as error:
        raise explain(error, f"cannot read byte {at} of {path}") from error
    finally:
        os.close(fd)
    return True


def read_header(path: Path, *, kind: int, node_id: int, owner: int, file: int) -> Header:
    """Read and check a file's header page.

    Raises CorruptRecord (foreign, damaged, or of another directory, writer or number), FormatVersionError, StoreError.
    """
    return check_header(path, read_page(path), kind=kind, node_id=node_id, owner=owner, file=file)


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
    """Write zeros over a file from byte `at` on, durably; returns how many bytes that are.

    It keeps its length all the time: a file that is shorter than it was made was cut by somebody else. A death in
    between leaves a part of the tail, which is a torn one, too. Raises StoreError, SyncFailed.
    """
    fd = _open(path, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        if not FILE_HEADER_BYTES <= at <= size:
            raise ValueError(f"{path} of {size} bytes cannot be cut at {at}")
        try:
            step = 1 << 20
            for start in range(at, size, step):
                part = os.pread(fd, min(step, size - start), start)
                if used := len(part.rstrip(b"\0")):
                    atomic_file.write_all(fd, bytes(used), start)
        except OSError as error:
            raise explain(error, f"cannot cut the torn tail of {path}") from error
        _sync(fd, path)
    finally:
        os.close(fd)
    return size - at


def end_file(path: Path, at: int, salt: int) -> None:
    """Say in a file that nothing follows byte `at`, durably: a last padding frame, or the file is cut there.

    What stood there (a torn tail, remains of a spare) is never looked at again. Repeating it does the same.
    Raises StoreError, SyncFailed.
    """
    fd = _open(path, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        if not FILE_HEADER_BYTES <= at <= size:
            raise ValueError(f"{path} of {size} bytes cannot end at {at}")
        room = -at % PAGE_BYTES or PAGE_BYTES
        room += PAGE_BYTES if room < FRAME_BYTES_MIN else 0
        try:
            if at + room > size:
                os.ftruncate(fd, at)
            else:
                atomic_file.write_all(fd, pad(room, salt=salt, last=True), at)
        except OSError as error:
            raise explain(error, f"cannot end {path}") from error
        _sync(fd, path)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make durable what was written to a file by whomever. Raises StoreError, SyncFailed."""
    fd = _open(path, os.O_RDONLY)
    try:
        _sync(fd, path)
    finally:
        os.close(fd)


def scan_memory(*paths: Path) -> mmap.mmap:
    """Memory for the largest of some files, in large pages: a first touch of each small one would cost more than the
    file's bytes."""
    sizes = [PAGE_BYTES]
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sizes.append(min(path.stat().st_size, FILE_BYTES_MAX))
    memory = mmap.mmap(-1, max(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def list_files(directory: Path, suffix: str, *beside: str) -> Listing:
    """The files `<number><suffix>` of a directory, and those with the suffixes `beside`. Raises StoreError when it
    cannot be read."""
    suffixes = "|".join(re.escape(each) for each in (suffix, *beside))
    pattern = re.compile(rf"(0|[1-9][0-9]{{0,18}})({suffixes})({re.escape(UNFINISHED)})?", re.ASCII)
    listing = Listing([], [], [], {each: [] for each in beside})
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        for entry in entries:
            path = Path(entry.path)
            match = pattern.fullmatch(entry.name)
            if match is None or not entry.is_file(follow_symlinks=False):
                listing.foreign.append(path)
            elif match[3]:
                listing.unfinished.append(path)
            elif match[2] == suffix:
                listing.files.append((int(match[1]), path))
            else:
                listing.beside[match[2]].append((int(match[1]), path))
    except OSError as error:
        raise explain(error, f"cannot list {directory}") from error
    for found in (listing.files, *listing.beside.values()):
        found.sort()
    return listing


def salt_of(page: Buffer) -> int | None:
    """The salt of a header page that is whole, whatever file it is of; None: it is damaged, or no header page."""
    page = bytes(page)
    at = FILE_HEADER.offset("crc")
    if (
        len(page) < FILE_HEADER_BYTES
        or page[:8] != FILE_MAGIC
        or FILE_HEADER.unpack(page, "crc") != _core.crc32c(page[:at])
    ):
        return None
    return FILE_HEADER.unpack(page, "salt")
