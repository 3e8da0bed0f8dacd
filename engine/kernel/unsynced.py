"""What is read of a file and may not be on its disk: it is written again, and synced.

After a sync that failed the file reads as it was written, the system takes its pages for clean, and the next sync
returns 0 without writing them. So who goes on with what another process left, and cannot know that it was synced, must
not rely on a sync alone (docs/design/021-failed-syncs.md).

Crash points: anywhere; a death leaves the same bytes, and who comes next begins anew.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from warren.engine.kernel import atomic_file, data_files, segment
from warren.ipc.layout import PAGE_BYTES

STEP_BYTES = 1 << 20


def write_again(path: Path, start: int = 0, end: int | None = None) -> int:
    """Make durable what a file holds from byte `start` to `end` (None: its end), whatever its last writer's sync did;
    returns how many bytes were written for it.

    Zeros, too: they may be what was written last. Pages that the disk refuses to read stay as they are: who reads the
    file says what is damaged. Raises StoreError and its kinds, SyncFailed.
    """
    written, opened = 0, False
    try:
        descriptor = segment.again(lambda: data_files.open(path, os.O_RDWR))
        try:
            opened = True
            size = os.fstat(descriptor).st_size
            end = size if end is None else min(end, size)
            for at in range(start, end, STEP_BYTES):
                for low, part in _read(descriptor, at, min(at + STEP_BYTES, end)):
                    atomic_file.write_all(descriptor, part, low)
                    written += len(part)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        what = f"cannot write again what the disk may lack of {path}"
        raise atomic_file.explain(error, what, syncing=opened) from error
    return written


def _read(descriptor: int, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a part of a file, by runs, without the pages that the disk refuses."""
    try:
        yield at, segment.again(lambda: os.pread(descriptor, end - at, at))
        return
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    next_page = (at // PAGE_BYTES + 1) * PAGE_BYTES
    if next_page >= end:
        return
    middle = max(next_page, (at + end) // 2 // PAGE_BYTES * PAGE_BYTES)
    yield from _read(descriptor, at, middle)
    yield from _read(descriptor, middle, end)
