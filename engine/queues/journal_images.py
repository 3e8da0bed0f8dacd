"""What a killed worker had in memory: the images of its journal files, a region of shared memory (protocol.IMAGE).

The journal on disk is behind them by what was appended and not yet written. Before anything else a start completes the
files from them; after that, who reads a file in its image does not wait for the disk.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import FILE_HEADER_BYTES
from warren.engine.kernel.protocol import IMAGE
from warren.engine.queues.folder import Folder
from warren.ipc import _core as atomics


class _Image(NamedTuple):
    """What an image of a journal holds: a file's number, where in the region its bytes start, how many were
    appended, and how many of them are durable. Numbers, no views: whoever fails with one in hand could not
    unmap the region."""

    file: int
    start: int
    appended: int
    durable: int


def _images(buffer: memoryview, images_n: int, file_bytes: int) -> list[_Image]:
    """The images of a region that hold frames, by file."""
    found = []
    for image in range(images_n):
        base = image * IMAGE.size
        file = atomics.load64(buffer, base + IMAGE.offset("file")) - 1
        appended = atomics.load64(buffer, base + IMAGE.offset("appended"))
        durable = atomics.load64(buffer, base + IMAGE.offset("durable"))
        if file >= 0 and FILE_HEADER_BYTES < appended <= file_bytes:
            found.append(_Image(file, FILE_HEADER_BYTES + image * file_bytes, appended, durable))
    return sorted(found)


def salvage(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> int:
    """Write into the journal files what the images of a dead worker hold beyond them, and sync; returns the bytes.

    The image's header page must be the file's: an image of another life is left alone. Raises SyncFailed, StoreError.
    """
    salvaged = 0
    # Older files first: nothing of a file may be durable while an older one is not.
    for file, start, appended, durable in _images(buffer, images_n, file_bytes):
        if durable >= appended:
            continue
        path = folder.journal_file(file)
        try:
            fd = data_files.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            if os.pread(fd, FILE_HEADER_BYTES, 0) != buffer[start : start + FILE_HEADER_BYTES]:
                continue
            at = max(durable, FILE_HEADER_BYTES)
            with buffer[start + at : start + appended] as rest:
                atomic_file.write_all(fd, rest, at)
            os.fdatasync(fd)
            salvaged += appended - at
        except OSError as error:
            raise atomic_file.explain(
                error, f"cannot complete {path} after the worker's death", syncing=True
            ) from error
        finally:
            os.close(fd)
    return salvaged


def next_file_of(buffer: memoryview, images_n: int) -> int:
    """A file number above all that the images of a region hold."""
    return max(atomics.load64(buffer, image * IMAGE.size + IMAGE.offset("file")) for image in range(images_n))


def held_files(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> dict[int, memoryview]:
    """Journal files that images hold as they are on disk (after `salvage`): number → bytes. Whoever reads them there
    does not wait for the disk. Good until the journals begin."""
    held = {}
    for file, start, appended, _durable in _images(buffer, images_n, file_bytes):
        with contextlib.suppress(FileNotFoundError), data_files.reading(folder.journal_file(file)) as disk:
            if disk.read(FILE_HEADER_BYTES) == buffer[start : start + FILE_HEADER_BYTES]:
                held[file] = buffer[start : start + appended]
    return held
