"""Store files that are read as a whole, because they have no list or are checked: several at a time.

What the disk cannot read counts as zeros, and is said. A hole at the end of a file is not read.
"""

from __future__ import annotations

import errno
import mmap
import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files, segment
from warren.ipc.layout import PAGE_BYTES

Found = TypeVar("Found")


@dataclass
class StoreFile:
    """A file whose first page is in order."""

    number: int
    path: Path
    salt: int
    low: int
    high: int
    size: int

    @property
    def collected(self) -> bool:
        return (self.low, self.high) != (self.number, self.number)


@dataclass
class Scanned:
    """A file that was read."""

    found: _core.FileList
    reason: str  #: why the reading ended at found.used
    unreadable: list[tuple[int, int]]  #: what the disk could not read, it counts as zeros
    head: bytes  #: the bytes where the reading ended

    @property
    def whole(self) -> bool:
        return self.reason in ("end", "zeros") and not self.found.damage and not self.unreadable


def _data_end(fd: int, size: int) -> int:
    """Where the last bytes lie that are not a hole: behind it there is nothing to read."""
    end = at = 0
    try:
        for _ in range(4096):
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = at = os.lseek(fd, start, os.SEEK_HOLE)
            if at >= size:
                return size
    except OSError as error:
        if error.errno == errno.ENXIO:  # no more data
            return end
    return size  # too many pieces, or a file system that does not tell


def read_file(path: Path, buffer: memoryview) -> tuple[int, list[tuple[int, int]]]:
    """Read a file into a buffer: bytes, and the parts that the disk could not read. Raises StoreError."""
    unreadable: list[tuple[int, int]] = []
    try:
        fd = segment.again(lambda: data_files.open(path, os.O_RDONLY))
    except OSError as error:
        raise atomic_file.explain(error, f"cannot open {path}") from error
    try:
        size = min(os.fstat(fd).st_size, len(buffer))
        end = _data_end(fd, size)
        got = 0
        while got < end:
            try:
                n = os.preadv(fd, [buffer[got:end]], got)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise atomic_file.explain(error, f"cannot read {path}") from error
                n = _read_page(fd, buffer, got, end, unreadable)
            if n == 0:
                break
            got += n
    finally:
        os.close(fd)
    return got, unreadable


def _read_page(fd: int, buffer: memoryview, at: int, end: int, unreadable: list[tuple[int, int]]) -> int:
    """Read up to the next page end; what the disk refuses is zeros, and noted."""
    to = min((at // PAGE_BYTES + 1) * PAGE_BYTES, end)
    try:
        return segment.again(lambda: os.preadv(fd, [buffer[at:to]], at))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    buffer[at:to] = bytes(to - at)
    if unreadable and unreadable[-1][1] == at:
        unreadable[-1] = (unreadable[-1][0], to)
    else:
        unreadable.append((at, to))
    return to - at


def scan_into(path: Path, number: int, salt: int, buffer: memoryview) -> Scanned:
    """The list of a file by reading all of it into a buffer, for the most part without the GIL. Raises StoreError."""
    length, unreadable = read_file(path, buffer)
    found, reason = _core.scan_list(number, salt, buffer[:length])
    return Scanned(found, reason, unreadable, bytes(buffer[found.used : min(found.used + 64, length)]))


def scan(path: Path, file: int, salt: int) -> tuple[_core.FileList, str]:
    """The list of a file by reading all of it, and why the reading ended. Raises StoreError."""
    with segment.scan_memory(path) as memory, memoryview(memory) as view:
        scanned = scan_into(path, file, salt, view)
    return scanned.found, scanned.reason


class Readers(Generic[Found]):
    """Files looked at by threads, as many at a time as there are processors, each with one buffer for all its files."""

    def __init__(self, files: list[StoreFile], look: Callable[[StoreFile, memoryview], Found]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(files))), thread_name_prefix="read")
        self._paths = [file.path for file in files]
        self._free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        self._all: list[mmap.mmap] = []
        self._found: dict[int, Future[Found]] = {file.number: self._pool.submit(self._read, file) for file in files}

    def _read(self, file: StoreFile) -> Found:
        try:
            memory = self._free.get_nowait()
        except queue.Empty:
            memory = segment.scan_memory(*self._paths)
            self._all.append(memory)
        with memoryview(memory) as view:
            found = self._look(file, view)
        self._free.put(memory)
        return found

    def take(self, number: int) -> Found:
        """What was found in a file; waits for it. Raises StoreError."""
        return self._found.pop(number).result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for memory in self._all:
            memory.close()
