"""Consume queues and key index of topics, read by the tables of their formats with `struct` alone, and held against the
log (topic_log.py).

With the node stopped in good order: every record of the log whose topic is there has its unit at its offset and each of
its keys once in the key index, and there is no unit and no key of anything else.

Where retention or compaction took messages: below a queue's minimum units may be gone, with whole files, and keys, too;
and the log, which begins later, has nothing more to say of keys of records before its begin.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from warren.tools.crash.topic_log import BadFileError, Logged, begin_of, logged
from warren.tools.crash.topic_messages import java_hash, key_hash

UNIT = struct.Struct(">QIq")
INDEX_HEADER = struct.Struct(">qqQQII")
ENTRY = struct.Struct(">IQII")


def differences(
    folder: Path,
    topics: dict[str, tuple[int, int]],
    index_slots: int,
    *,
    behind: bool = False,
    minima: Mapping[tuple[int, int], int] | None = None,
    records: Sequence[Logged] | None = None,
) -> Iterator[str]:
    """What consume queues and key index have too much or too little. `topics`: name → (id, queues). `index_slots`: the
    setting. `behind`: units of records that the log lost with its power may lie behind the last one, until they are
    written over; no reader comes there. `minima`: by id and queue, of those from which messages went; `records`: what
    `logged` says. Raises BadFileError.
    """
    log = folder / "commitlog"
    records = list(logged(log)) if records is None else records
    begin = begin_of(log) if log.is_dir() else 0
    living = {id: name for name, (id, _queues) in topics.items()}
    lowest = minima or {}
    wanted: dict[tuple[str, int], list[Logged]] = {
        (name, queue): [] for name, (_id, queues) in topics.items() for queue in range(queues)
    }
    for record in records:
        if record.topic_id in living:
            place = (living[record.topic_id], record.queue)
            before = wanted.get(place)
            minimum = lowest.get((record.topic_id, record.queue), 0)
            # only where files of the log went it begins in the middle of a queue, and not above the minimum
            follows = record.offset == (before[-1].offset + 1 if before else min(record.offset, minimum * (begin > 0)))
            if before is None or record.topic != place[0] or not follows:
                yield f"log: the record at {record.position} is {record.topic}/{record.queue}:{record.offset}"
                continue
            before.append(record)
    for (name, queue), there in wanted.items():
        minimum = lowest.get((topics[name][0], queue), 0)
        yield from _units(folder / "consumequeue" / name / str(queue), name, queue, there, minimum, behind)
    yield from _index(folder / "index", records, set(living), index_slots, begin, lowest)


def _units(folder: Path, name: str, queue: int, records: list[Logged], minimum: int, behind: bool) -> Iterator[str]:
    files = {int(path.name): path.read_bytes() for path in (sorted(folder.iterdir()) if folder.is_dir() else ())}
    begins = list(files)
    for record in records:
        if record.offset < minimum:
            continue
        at = record.offset * UNIT.size
        begin = begins[max(bisect_right(begins, at) - 1, 0)] if begins else 0
        inside = 0 <= at - begin <= len(files.get(begin, b"")) - UNIT.size
        unit = UNIT.unpack_from(files[begin], at - begin) if inside else None
        if unit != (record.position, record.size, java_hash(record.tag)):
            place = f"{name}/{queue}:{record.offset}"
            yield f"consume queue: {place} is {unit}, and the log has {record.position}, {record.size}"
    end = records[-1].offset + 1 if records else minimum
    if not behind and any(any(data[max(end * UNIT.size - begin, 0) :]) for begin, data in files.items()):
        yield f"consume queue: {name}/{queue} has units behind {end}"


def _index(
    folder: Path,
    records: Sequence[Logged],
    living: set[int],
    slots: int,
    begin: int,
    minima: Mapping[tuple[int, int], int],
) -> Iterator[str]:
    keys: Counter[tuple[int, int]] = Counter()  # of everything that the log has
    due: set[tuple[int, int]] = set()  # of topics that are there, from their minima on
    for record in records:
        for key in record.keys:
            entry = (key_hash(record.topic, key), record.position)
            keys[entry] += 1
            if record.topic_id in living and record.offset >= minima.get((record.topic_id, record.queue), 0):
                due.add(entry)
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found.update(_entries(path, slots))
    for entry, count in found.items():
        if count > keys[entry] and entry[1] >= begin:
            yield f"key index: {entry} is there {count} times, and {keys[entry]} times in the log: stale, or doubled"
    for entry in due:
        if found[entry] < keys[entry]:
            yield f"key index: {entry} is there {found[entry]} times, and {keys[entry]} times in the log"


def _entries(path: Path, slots: int) -> Iterator[tuple[int, int]]:
    """(hash, position) of all entries of a file that a look-up comes to."""
    data = path.read_bytes()
    *_times, _begin, _end, _used, count = INDEX_HEADER.unpack_from(data)
    first = INDEX_HEADER.size + 4 * slots
    seen = 0
    for slot in range(slots):
        (number,) = struct.unpack_from(">I", data, INDEX_HEADER.size + 4 * slot)
        while number:
            if number >= count:
                raise BadFileError(f"{path}: slot {slot} leads to entry {number} of {count}")
            hashed, position, _diff, before = ENTRY.unpack_from(data, first + ENTRY.size * number)
            if hashed % slots != slot or before >= number:
                raise BadFileError(f"{path}: entry {number} does not belong to slot {slot}")
            yield hashed, position
            seen += 1
            number = before
    if seen != max(count, 1) - 1:
        raise BadFileError(f"{path}: {seen} entries are in its slots, and it says {count} less one")
