"""The files of topics, read by the tables of their formats with `struct` alone, and held against each other.

With the node stopped in good order: every record of the log whose topic is there has its unit at its offset and each of
its keys once in the key index, and there is no unit and no key of anything else.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warren.tools.crash.topic_messages import INT_MAX, java_hash, key_hash

HEAD = struct.Struct(">IIIIIQQIQ8sQ8sIQI")
UNIT = struct.Struct(">QIq")
INDEX_HEADER = struct.Struct(">qqQQII")
ENTRY = struct.Struct(">IQII")
V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
OWN = "WARREN_SYS_"


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of the log."""

    topic: str
    topic_id: int
    queue: int
    offset: int
    position: int
    size: int
    stored: int
    body: bytes
    tag: str
    keys: tuple[str, ...]


class BadFileError(Exception):
    """A file does not follow its format; the message says where."""


def logged(folder: Path) -> Iterator[Logged]:
    """The records of all topics of programs, in the order of the log. Raises BadFileError."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.name.isdecimal():
            continue
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if not size and not magic:
                if any(data[at:]):
                    raise BadFileError(f"{path}: bytes behind the end at {at}")
                break
            if magic == BLANK:
                break
            record = _record(data, at, int(path.name), path)
            if not record.topic.startswith(OWN):
                yield record
            at += record.size


def _record(data: bytes, at: int, base: int, path: Path) -> Logged:
    fields = HEAD.unpack_from(data, at)
    size, magic, crc, queue, flag, offset, position, _sys, _born, _host, stored, _by, _times, _prepared, length = fields
    where = at + HEAD.size
    body = data[where : where + length]
    where += length
    wide = magic == V2
    topic_bytes = int.from_bytes(data[where : where + 1 + wide], "big")
    where += 1 + wide
    topic = data[where : where + topic_bytes].decode()
    where += topic_bytes
    properties_bytes = int.from_bytes(data[where : where + 2], "big")
    where += 2
    properties = dict(
        part.partition("\1")[::2] for part in data[where : where + properties_bytes].decode().split("\2") if part
    )
    where += properties_bytes
    if magic not in (V1, V2) or where - at != size or position != base + at or crc != zlib.crc32(body) & INT_MAX:
        raise BadFileError(f"{path}: no sound record at {at}")
    keys = dict.fromkeys([properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")])
    return Logged(
        topic, flag, queue, offset, position, size, stored, body, properties.get("TAGS", ""), tuple(filter(None, keys))
    )


def differences(
    folder: Path, topics: dict[str, tuple[int, int]], index_slots: int, *, behind: bool = False
) -> Iterator[str]:
    """What consume queues and key index have too much or too little. `topics`: name → (id, queues). `index_slots`: the
    setting. `behind`: units of records that the log lost with its power may lie behind the last one, until they are
    written over; no reader comes there. Raises BadFileError.
    """
    records = list(logged(folder / "commitlog"))
    living = {id: name for name, (id, _queues) in topics.items()}
    wanted: dict[tuple[str, int], list[Logged]] = {
        (name, queue): [] for name, (_id, queues) in topics.items() for queue in range(queues)
    }
    for record in records:
        if record.topic_id in living:
            place = (living[record.topic_id], record.queue)
            if place not in wanted or record.topic != place[0] or record.offset != len(wanted[place]):
                yield f"log: the record at {record.position} is {record.topic}/{record.queue}:{record.offset}"
                continue
            wanted[place].append(record)
    for (name, queue), there in wanted.items():
        yield from _units(folder / "consumequeue" / name / str(queue), name, queue, there, behind)
    yield from _index(folder / "index", records, set(living), index_slots)


def _units(folder: Path, name: str, queue: int, records: list[Logged], behind: bool) -> Iterator[str]:
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir())) if folder.is_dir() else b""
    for offset, record in enumerate(records):
        unit = UNIT.unpack_from(data, offset * UNIT.size) if (offset + 1) * UNIT.size <= len(data) else None
        if unit != (record.position, record.size, java_hash(record.tag)):
            yield f"consume queue: {name}/{queue}:{offset} is {unit}, and the log has {record.position}, {record.size}"
    if not behind and any(data[len(records) * UNIT.size :]):
        yield f"consume queue: {name}/{queue} has units behind {len(records)}"


def _index(folder: Path, records: list[Logged], living: set[int], slots: int) -> Iterator[str]:
    keys: Counter[tuple[int, int]] = Counter()  # of everything that the log has
    due: set[tuple[int, int]] = set()  # of topics that are there
    for record in records:
        for key in record.keys:
            entry = (key_hash(record.topic, key), record.position)
            keys[entry] += 1
            if record.topic_id in living:
                due.add(entry)
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found.update(_entries(path, slots))
    for entry, count in found.items():
        if count > keys[entry]:
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
