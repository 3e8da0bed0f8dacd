"""Compacted topics: their files of newest messages, read by the tables of the format with `struct` alone, against the
log, against what a reader was given, and against what a client was told (docs/design/029-compaction.md).

- where the minimum of a queue has risen its file is there, and ends there or later, and not behind the last message
- a file has of each key one record at most, the newest one below its end, byte for byte as the log had it
- of each key the newest message that was confirmed is found, or a newer one; nothing only where a tombstone says so
- a reader from the beginning is given what file and log have, and nothing else
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warren.tools.crash.topic_content import keys_of, number_of
from warren.tools.crash.topic_life import Row, Seen
from warren.tools.crash.topic_log import BadFileError, Logged, record_of
from warren.tools.crash.topic_messages import key_hash
from warren.tools.crash.topic_truth import APPENDED, HALF, Batch, TopicTruth

HEAD = struct.Struct(">8sII16sIIQQQQQQQQ")
BLOCK = struct.Struct(">II")
KEY = struct.Struct(">IQ")
PLACE = struct.Struct(">QQQQ")
TOMBSTONE = struct.Struct(">QQ")
MAGIC, VERSION = b"WRCOMPAC", 1
PAGE_BYTES, PAGE_HEAD_BYTES = 4096, 4


@dataclass(frozen=True)
class Newest:
    """A file of newest messages: what is alive below its end."""

    end: int
    records: tuple[Logged, ...]


def newest_of(path: Path, topic: int, queue: int) -> Newest | None:
    """The file of a queue; None: there is none. Raises BadFileError."""
    if not path.exists():
        return None
    try:
        return _parsed(path, path.read_bytes(), topic, queue)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: {error}") from error


def _parsed(path: Path, data: bytes, topic: int, queue: int) -> Newest:
    magic, version, _crc, _node, of_topic, of_queue, end, _made, size, keys_at, keys_n, records_n, blocks_n, dead_n = (
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
    page_n = (PAGE_BYTES - PAGE_HEAD_BYTES) // KEY.size
    keys: list[tuple[int, int]] = []
    at = keys_at
    while len(keys) < keys_n:
        count = min(page_n, keys_n - len(keys))
        keys += (KEY.unpack_from(data, at + PAGE_HEAD_BYTES + KEY.size * number) for number in range(count))
        at += PAGE_BYTES
    at = len(data) - dead_n * TOMBSTONE.size - blocks_n * PLACE.size
    told_places = [PLACE.unpack_from(data, at + PLACE.size * number) for number in range(blocks_n)]
    at += blocks_n * PLACE.size
    dead = [TOMBSTONE.unpack_from(data, at + TOMBSTONE.size * number)[0] for number in range(dead_n)]
    due = sorted((key_hash(record.topic, key), record.offset) for record in records for key in record.keys)
    offsets = [record.offset for record in records]
    for what, told, there in (
        ("records", records_n, len(records)),
        ("places of blocks", told_places, places),
        ("keys", keys, due),
        ("tombstones", dead, [record.offset for record in records if not record.body]),
        ("offsets below its end", offsets, sorted({offset for offset in offsets if offset < end})),
    ):
        if told != there:
            raise BadFileError(f"{path}: its {what} are {told}, and should be {there}")
    return Newest(end, tuple(records))


def newest_in(folder: Path, topics: Mapping[int, int]) -> dict[tuple[int, int], Newest]:
    """All files, of topics with so many queues, by id and queue. Raises BadFileError."""
    found = {
        (topic, queue): newest_of(folder / str(topic) / str(queue), topic, queue)
        for topic, queues in topics.items()
        for queue in range(queues)
    }
    return {place: file for place, file in found.items() if file is not None}


# -- what is there ----------------------------------------------------------------------------------------------------


def key_of(record: Logged) -> str:
    """Several keys of a message count as one."""
    return " ".join(record.keys)


def unlike_files(
    files: Mapping[tuple[int, int], Newest],
    rows: Mapping[tuple[int, int], Row],
    compacted: set[int],
    log: Mapping[tuple[int, int], Sequence[Logged]],
    read: Mapping[tuple[int, int], Sequence[Seen]],
) -> Iterator[str]:
    """Files against rows, the log's records by topic and queue, and what readers were given."""
    for place, row in rows.items():
        if place[0] not in compacted:
            continue
        name, file = f"{place[0]}/{place[1]}", files.get(place)
        if row.minimum and (file is None or file.end < row.minimum):
            what = "is missing" if file is None else f"ends at {file.end}"
            yield f"{name}: its minimum is {row.minimum}, and its file of newest messages {what}"
        of_log = log.get(place, ())
        if file is not None:
            yield from _unlike_file(name, file, row, of_log)
        given = [Seen(record.offset, record.tag or None, record.body) for record in visible(file, row, of_log)]
        if place in read and (seen := list(read[place])) != given:
            wrong = sorted(Counter(one.offset for one in seen).items() ^ Counter(one.offset for one in given).items())
            yield f"{name}: a reader is given {len(seen)} messages of {len(given)}, differing at {wrong[:5]}"


def visible(file: Newest | None, row: Row, log: Sequence[Logged]) -> list[Logged]:
    """What a reader finds: below the minimum what the file has, from there on the log."""
    below = [record for record in file.records if record.offset < row.minimum] if file is not None else []
    return below + [record for record in log if record.offset >= row.minimum]


def _unlike_file(name: str, file: Newest, row: Row, log: Sequence[Logged]) -> Iterator[str]:
    if file.end > row.maximum:
        yield f"{name}: its file of newest messages ends at {file.end}, and the last message is before {row.maximum}"
    of_offset = {record.offset: record for record in log}
    newest: dict[str, int] = {}
    for record in file.records:
        key = key_of(record)
        if key in newest:
            yield f"{name}: its file has key {key!r} at {newest[key]} and {record.offset}"
        newest[key] = record.offset
        if of_offset.get(record.offset, record) != record:
            yield f"{name}: its file has another message at {record.offset} than the log"
    below = {key_of(record): record for record in log if record.offset < file.end}  # of each key the last one
    for key, record in below.items():
        there = newest.get(key)
        if there is None and not record.body:
            continue  # a tombstone goes when its time has come
        if there is None or there < record.offset:
            yield f"{name}: its file has {there} of key {key!r}, and {record.offset} was the newest below its end"


# -- against what a client was told -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sure:
    """The newest message of a key that was confirmed."""

    number: int
    offset: int
    asked: int  #: number of the note before it


def unlike_newest(
    found: Mapping[tuple[int, int], Sequence[Logged]], truth: TopicTruth, point: int, end: int, name: str
) -> Iterator[str]:
    """What a reader finds of each key. `found`: by topic and queue, of compacted topics, which have that name."""
    sure: dict[tuple[int, int, str], _Sure] = {}
    for batch, number, offset, _position in truth.sure(point, end):
        if (batch.topic, batch.queue) in found:
            place = batch.topic, batch.queue, " ".join(keys_of(name, number))
            if place not in sure or offset > sure[place].offset:
                sure[place] = _Sure(number, offset, _asked(batch, number, truth, point))
    there: dict[tuple[int, int, str], Logged] = {}
    for (topic, queue), records in found.items():
        there.update(((topic, queue, key_of(record)), record) for record in records)  # the last one is the newest
    tombstones = _tombstones(truth, point, name)
    for place, newest in sure.items():
        of_key, record = f"{place[0]}/{place[1]}, key {place[2]!r}", there.get(place)
        if record is not None:
            if record.offset < newest.offset:
                number = number_of(record.topic, record.body, record.tag)
                yield f"{of_key}: {number} at {record.offset} is found, and {newest.number} at {newest.offset} was last"
            continue
        if not any(
            number == newest.number or asked is None or asked > newest.asked for number, asked in tombstones[place]
        ):
            yield f"{of_key}: {newest.number} at {newest.offset} was confirmed, nothing takes it away, and it is gone"


def _asked(batch: Batch, number: int, truth: TopicTruth, point: int) -> int:
    """When it was asked for what gave a message its place."""
    if batch.kind != HALF:
        return batch.submitted
    return next(finish.submitted for finish in truth.finished(number, point) if finish.commit)


def _tombstones(
    truth: TopicTruth, point: int, name: str
) -> defaultdict[tuple[int, int, str], list[tuple[int, int | None]]]:
    """(number, when it was asked for) of each tombstone that may have come; None: nobody knows when it came."""
    found: defaultdict[tuple[int, int, str], list[tuple[int, int | None]]] = defaultdict(list)
    for batch in truth.batches:
        if batch.submitted >= point:
            break
        for number, size in batch.items:
            if not size and (batch.kind != HALF or any(finish.commit for finish in truth.finished(number, point))):
                asked = batch.submitted if batch.kind == APPENDED else None
                found[batch.topic, batch.queue, " ".join(keys_of(name, number))].append((number, asked))
    return found
