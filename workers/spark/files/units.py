"""Positions of the log that consume queues name: where a range can be cut, and where it goes on behind damage.

Of each queue positions rise with offsets, so they are found by bisection, in a few reads. A damaged unit misleads
nobody: who takes a position looks first whether a record begins there.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.engine.topics import foreign
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT, UNIT_EMPTY
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.files.reading import opened, read_at

UNIT = np.dtype(CONSUME_QUEUE_UNIT.columns())
QUEUES_MAX = 64  #: queues that are asked for a place to cut
BLOCK_BYTES = 256 * UNIT.itemsize  #: what a bisection reads at once
BLOCKS_AT_ONCE = 4
TRIES = 8  #: positions of one queue that are looked at, behind one that is no record


@dataclass
class _Queue:
    """The files of one queue, and the first position that each names."""

    paths: list[Path]
    firsts: list[int]


class Units:
    """The consume queues of a directory, read when they are asked for."""

    def __init__(self, directory: Directory) -> None:
        self._folder = directory.topics_folder.queues
        self._queues: list[_Queue] | None = None

    def _all(self) -> list[_Queue]:
        if self._queues is None:
            self._queues = [found for folder in self._folders() if (found := _queue(folder)).paths]
        return self._queues

    def _folders(self) -> Iterator[Path]:
        for topic in sorted(self._folder.glob("*")):
            for queue in sorted(topic.glob("*")) if topic.is_dir() else ():
                if foreign.NUMBER.fullmatch(queue.name) and queue.is_dir() and not queue.is_symlink():
                    yield queue

    def cuts(self, start: int, stop: int, bytes_max: int, is_record: Callable[[int], bool]) -> list[int]:
        """Positions in (start, stop), about `bytes_max` from each other."""
        cuts: list[int] = []
        at = start
        while stop - at > bytes_max + bytes_max // 2:
            found = self.first_from(at + bytes_max, is_record)
            if found is None or found >= stop:
                break
            cuts.append(found)
            at = found
        return cuts

    def first_from(self, position: int, is_record: Callable[[int], bool]) -> int | None:
        """A position at or behind another one where a record begins: the lowest that some queues name."""
        queues = self._all()
        step = max(1, len(queues) // QUEUES_MAX)
        named = sorted(found for queue in queues[::step] for found in _behind(queue, position, 1))
        return next((found for found in named[:TRIES] if is_record(found)), None)

    def first_behind(self, position: int, stop: int, is_record: Callable[[int], bool]) -> int | None:
        """The lowest position in (position, stop) that any queue names and where a record begins: all units are read
        that may say so."""
        found: list[NDArray[np.int64]] = []
        for queue in self._all():
            for path in queue.paths:
                named = _positions(path)
                found.append(named[(named > position) & (named < stop)])
        for each in np.unique(np.concatenate(found)).tolist() if found else ():
            if is_record(each):
                return int(each)
        return None

    def last_below(self, position: int) -> int | None:
        """The highest position below another one that a queue names."""
        highest = -1
        for queue in self._all():
            at = bisect.bisect_left(queue.firsts, position) - 1
            if at >= 0:
                named = _positions(queue.paths[at])
                named = named[named < position]
                highest = max(highest, int(named.max()) if len(named) else -1)
        return highest if highest >= 0 else None


def _queue(folder: Path) -> _Queue:
    paths, firsts = [], []
    for path in sorted(folder.glob("*")):
        if foreign.POSITION.fullmatch(path.name) and not foreign.instead(path):
            named = _positions(path, 256)
            if len(named):
                paths.append(path)
                firsts.append(int(named[0]))
    return _Queue(paths, firsts)


def units_of(path: Path, first: int = 0, count: int | None = None) -> NDArray[np.void] | None:
    """Units of a file; None: it is not there. Raises StoreError."""
    with opened(path) as fd:
        if fd is None:
            return None
        count = path.stat().st_size // UNIT.itemsize - first if count is None else count
        data = read_at(fd, first * UNIT.itemsize, max(count, 0) * UNIT.itemsize)
    return np.frombuffer(data[: len(data) // UNIT.itemsize * UNIT.itemsize], dtype=UNIT)


def _positions(path: Path, count: int | None = None) -> NDArray[np.int64]:
    units = units_of(path, 0, count)
    if units is None:
        return np.zeros(0, dtype=np.int64)
    return _named(units)


def _named(units: NDArray[np.void]) -> NDArray[np.int64]:
    there = (units["size"] != 0) & (units["size"] != UNIT_EMPTY) & (units["physical_offset"] < 1 << 62)
    found: NDArray[np.int64] = units["physical_offset"][there].astype(np.int64)
    return found


def _behind(queue: _Queue, position: int, count: int) -> list[int]:
    """The first positions of a queue at or behind another one."""
    at = max(bisect.bisect_right(queue.firsts, position) - 1, 0)
    for path in queue.paths[at : at + 2]:
        with opened(path) as fd:
            named = _from_block(fd, path.stat().st_size, position) if fd is not None else []
        if named:
            return named[:count]
    return []


def _from_block(fd: int, size: int, position: int) -> list[int]:
    """Positions of a file from the last block on that begins below another one, by bisection."""
    low, high = 0, -(-size // BLOCK_BYTES)
    while high - low > 1:
        middle = (low + high) // 2
        first = _of_block(fd, middle, 1)
        if len(first) and first[0] < position:
            low = middle
        else:
            high = middle
    found = np.sort(_of_block(fd, low, BLOCKS_AT_ONCE))
    return found[found >= position].tolist()  # type: ignore[no-any-return]


def _of_block(fd: int, block: int, count: int) -> NDArray[np.int64]:
    data = read_at(fd, block * BLOCK_BYTES, count * BLOCK_BYTES)
    return _named(np.frombuffer(data[: len(data) // UNIT.itemsize * UNIT.itemsize], dtype=UNIT))
