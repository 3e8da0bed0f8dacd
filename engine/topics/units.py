"""Units of consume queues as Python reads them: sums, without a look at each; and the last one of a queue."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.topics import foreign
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT, LOG_HEAD, UNIT_EMPTY

_UNIT = CONSUME_QUEUE_UNIT.size
_SIZE_AT = CONSUME_QUEUE_UNIT.offset("size")
_PART = 1 << 16  #: units that are read at once


def bytes_between(folder: Path, file_entries: int, first: int, end: int) -> int:
    """Bytes of the records of a queue's messages from one offset up to another, by its units. What is not there any
    more counts as nothing. Raises StoreError.
    """
    sum_n = 0
    while first < end:
        file, at = divmod(first, file_entries)
        n = min(end - first, file_entries - at, _PART)
        sum_n += _sizes(folder / f"{file * file_entries * _UNIT:020d}", at * _UNIT, n * _UNIT)
        first += n
    return sum_n


def _sizes(path: Path, at: int, n: int) -> int:
    with atomic_file.explained(f"cannot read {path}"):
        try:
            with data_files.reading(path) as file:
                file.seek(at)
                found = file.read(n)
        except FileNotFoundError:
            return 0
    empty = found[_SIZE_AT::_UNIT].count(UNIT_EMPTY >> 24)  # no record is so large
    return sum(sum(found[_SIZE_AT + place :: _UNIT]) << 8 * (3 - place) for place in range(4)) - empty * UNIT_EMPTY


class LastUnit(NamedTuple):
    """The last unit of a consume queue that is not zeros."""

    offset: int  #: of its message
    position: int  #: of its record
    size: int


def last_of(folder: Path) -> LastUnit | None:
    """The last unit in the folder of a queue; None: there is none. Raises OSError."""
    try:
        files = sorted(path for path in folder.iterdir() if foreign.POSITION.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for path in reversed(files):
        if foreign.instead(path):
            continue
        with data_files.reading(path) as file:
            for at, units in _backwards(file.fileno()):
                if n := -(-len(units.rstrip(b"\0")) // _UNIT):
                    unit = units[(n - 1) * _UNIT : n * _UNIT].ljust(_UNIT, b"\0")
                    position, size = (CONSUME_QUEUE_UNIT.unpack(unit, name) for name in ("physical_offset", "size"))
                    return LastUnit(int(path.name) // _UNIT + at // _UNIT + n - 1, position, size)
    return None


def _backwards(fd: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a file that are no holes, each with the place where it begins, from the last one on."""
    data: list[tuple[int, int]] = []
    at = 0
    while True:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        data.append((begin, at))
    for begin, end in reversed(data):
        while end > begin:
            part = max(begin, end - _PART * _UNIT) // _UNIT * _UNIT
            yield part, os.pread(fd, end - part, part)
            end = part


def told_end(folder: TopicsFolder, file_bytes: int, topics: Iterable[tuple[int, bytes, int]]) -> int:
    """Where the record ends that is the furthest of those which units tell and the log has, whatever became of its
    body: a server made its unit when it had written all of its commit. 0: there is none. `topics`: (id, name, queues).
    Not after a loss of power, which may have lost the commit and not the unit. Raises StoreError.
    """
    end = 0
    with atomic_file.explained(f"cannot read {folder.path}"):
        for _id, topic, queues in topics:
            for queue in range(queues):
                unit = last_of(folder.queues / topic.decode() / str(queue))
                if unit is not None and unit.position + unit.size > end and _is_there(folder, file_bytes, queue, unit):
                    end = unit.position + unit.size
    return end


def _is_there(folder: TopicsFolder, file_bytes: int, queue: int, unit: LastUnit) -> bool:
    base = unit.position // file_bytes * file_bytes
    path = folder.log / f"{base:020d}"
    if not os.path.lexists(path) or foreign.instead(path):
        return False
    with data_files.reading(path) as file:
        head = os.pread(file.fileno(), LOG_HEAD.size, unit.position - base)
    told = {"size": unit.size, "queue_id": queue, "queue_offset": unit.offset, "physical_offset": unit.position}
    return len(head) == LOG_HEAD.size and all(LOG_HEAD.unpack(head, name) == value for name, value in told.items())
