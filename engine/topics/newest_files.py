"""Files of the newest messages of compacted topics: where they are, and what they say of themselves."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple

from warren.engine import _core
from warren.engine.kernel import data_files


class File(NamedTuple):
    """What a queue's file says of itself."""

    end: int  #: offset
    bytes: int
    records: int
    tombstone_ms: int  #: since when the oldest one is there or counts, milliseconds since 1970; 0: there is none


def path_of(folder: Path, topic: int, queue: int) -> Path:
    """The file of a queue, in the folder `compacted`."""
    return folder / str(topic) / str(queue)


def look(path: Path, node: bytes, topic: int, queue: int) -> File | None:
    """What a file says of itself; None: there is none. Raises OSError; EUCLEAN: it is damaged, another queue's, or no
    file.
    """
    try:
        fd = data_files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EPERM):
            raise
        raise OSError(errno.EUCLEAN, "it is no file") from error
    try:
        found = _core.compacted_look(fd, node, topic, queue)
    finally:
        os.close(fd)
    oldest = found["oldest"] or found["made"] if found["tombstones"] else 0
    return File(found["end"], found["bytes"], found["records"], oldest)


def of_topic(folder: Path, node: bytes, topic: int, queues: int) -> list[File | None]:
    """What the file of each queue says; None: there is none, or nothing of it can be read: readers are told why."""
    found: list[File | None] = [None] * queues
    for queue in range(queues):
        with contextlib.suppress(OSError):
            found[queue] = look(path_of(folder, topic, queue), node, topic, queue)
    return found


def gap_of(end: int, minimum: int) -> str:
    """What a file that ends there, or is missing (0), lacks."""
    return f"messages of offsets {end:,} to {minimum - 1:,} that were kept for readers are gone"
