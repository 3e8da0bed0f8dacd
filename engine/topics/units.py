"""Units of consume queues as Python reads them: sums, without a look at each."""

from __future__ import annotations

from pathlib import Path

from warren.engine.kernel import atomic_file, data_files
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT, UNIT_EMPTY

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
