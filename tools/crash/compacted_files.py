"""Files of the newest messages of compacted topics, read by the tables of their format with `struct` alone, and held
against the log (docs/design/029-compaction.md).

- a file ends where its queue ends, or before; its tables say what its records are
- it has of each key one record at most, the newest one below its end, byte for byte as the log has it
- it has nothing of a key whose newest message there is a tombstone that had its time; of every other key it has one

The log may have lost its first files. Of what lay in those it says nothing; a log that has all its files says exactly
what a file has to have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warren.tools.crash.topic_log import BadFileError, Logged, record_of
from warren.tools.crash.topic_messages import key_hash, key_of

HEAD = struct.Struct(">8sII16sIIQQQQQQQQ")
BLOCK = struct.Struct(">II")
KEY = struct.Struct(">IQ")
PLACE = struct.Struct(">QQQQ")
TOMBSTONE = struct.Struct(">QQ")
MAGIC, VERSION = b"WRCOMPAC", 1
PAGE_KEYS_N, PAGE_HEAD_BYTES = 341, 4


@dataclass(frozen=True)
class NewestFile:
    """A file of newest messages: what is alive below its end."""

    end: int  #: offset
    records: tuple[Logged, ...]
    made: int = 0  #: milliseconds since 1970


def newest_of(path: Path, topic: int, queue: int) -> NewestFile | None:
    """The file of a queue; None: there is none. Raises BadFileError."""
    if not path.exists():
        return None
    try:
        return _parsed(path, path.read_bytes(), topic, queue)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: {error}") from error


def newest_in(folder: Path, topics: Mapping[int, int]) -> dict[tuple[int, int], NewestFile]:
    """All files, of topics with so many queues, by id and queue. Raises BadFileError."""
    found = {
        (topic, queue): newest_of(folder / str(topic) / str(queue), topic, queue)
        for topic, queues in topics.items()
        for queue in range(queues)
    }
    return {place: file for place, file in found.items() if file is not None}


def _parsed(path: Path, data: bytes, topic: int, queue: int) -> NewestFile:
    magic, version, _crc, _node, of_topic, of_queue, end, made, size, keys_at, keys_n, records_n, blocks_n, dead_n = (
        HEAD.unpack_from(data)
    )
    if (magic, version, of_topic, of_queue, size) != (MAGIC, VERSION, topic, queue, len(data)):
        raise BadFileError(f"{path}: its head is of {magic!r} {version}, {of_topic}/{of_queue}, {size} bytes")
    records: list[Logged] = []
    places: list[tuple[int, int, int, int]] = []
    at = HEAD.size
    while at < keys_at:
        _crc, length = BLOCK.unpack_from(data, at)
        place, at = at, at + BLOCK.size
        over, first = at + length, len(records)
        while at < over:
            records.append(record_of(data, at, path))
            at += records[-1].size
        head = records[first]
        places.append((head.offset, head.position, head.stored, place))
    keys: list[tuple[int, int]] = []
    for number in range(keys_n):
        at += PAGE_HEAD_BYTES if number % PAGE_KEYS_N == 0 else 0
        keys.append(KEY.unpack_from(data, at))
        at += KEY.size
    told_places = [PLACE.unpack_from(data, at + PLACE.size * number) for number in range(blocks_n)]
    at += blocks_n * PLACE.size
    dead = [TOMBSTONE.unpack_from(data, at + TOMBSTONE.size * number)[0] for number in range(dead_n)]
    at += dead_n * TOMBSTONE.size
    due = sorted((key_hash(record.topic, key), record.offset) for record in records for key in record.keys)
    offsets = [record.offset for record in records]
    for what, told, there in (
        ("records", records_n, len(records)),
        ("places of blocks", told_places, places),
        ("keys", keys, due),
        ("tombstones", dead, [record.offset for record in records if not record.body]),
        ("offsets below its end", offsets, sorted({offset for offset in offsets if offset < end})),
        ("bytes", size, at),
    ):
        if told != there:
            raise BadFileError(f"{path}: its {what} are {told}, and should be {there}")
    return NewestFile(end, tuple(records), made)


def unlike_log(name: str, file: NewestFile, maximum: int, log: Sequence[Logged], tombstone_ms: float) -> Iterator[str]:
    """What a file has too much or too little. `maximum`: offset behind the last message of its queue; `log`: the
    records of the queue that the log has, in order; `tombstone_ms`: how long tombstones stay.
    """
    if file.end > maximum:
        yield f"{name}: its file of newest messages ends at {file.end}, and the last message is before {maximum}"
    begin = log[0].offset if log else maximum
    if log and file.end < begin:
        yield f"{name}: its file of newest messages ends at {file.end}, and the log begins at {begin}"
    of_offset = {record.offset: record for record in log}
    newest: dict[str, int] = {}
    for record in file.records:
        key = key_of(record.keys)
        if key in newest:
            yield f"{name}: its file has key {key!r} at {newest[key]} and {record.offset}"
        newest[key] = record.offset
        if record.offset >= begin and of_offset.get(record.offset) != record:
            yield f"{name}: its file has another message at {record.offset} than the log"
    below = {key_of(record.keys): record for record in log if record.offset < file.end}  # of each key the last one
    for key, record in below.items():
        there = newest.get(key)
        if there is None and not record.body and file.made >= record.stored + tombstone_ms:
            continue
        if there is None or there < record.offset:
            yield f"{name}: its file has {there} of key {key!r}, and {record.offset} was the newest below its end"
