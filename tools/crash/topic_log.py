"""The log of topics, read by the tables of its format with `struct` alone, and what it says of messages that wait."""

from __future__ import annotations

import functools
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warren.tools.crash.topic_messages import INT_MAX

HEAD = struct.Struct(">IIIIIQQIQ8sQ8sIQI")
V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
OWN = "WARREN_SYS_"
HALF, HALF_OVER, HALF_ASIDE = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
LATER = frozenset({"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"})
#: topics of RocketMQ's own, which have no consume queues and no keys
SYSTEM = LATER | {HALF, HALF_OVER, HALF_ASIDE}
#: which part of `flags` says what became of a half message
OUTCOME, COMMITTED, ROLLED_BACK = 12, 8, 12


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
    flags: int = 0
    prepared: int = 0  #: position of the half message; of a message that came later, of its record there, + 1
    properties: Mapping[str, str] = field(default_factory=dict)
    whole: int = 0  #: checksum of all its bytes: only what is the same byte for byte is equal

    @property
    def real(self) -> tuple[str, int]:
        """Of a message that waits: topic and queue that it is for."""
        return self.properties.get("REAL_TOPIC", ""), int(self.properties.get("REAL_QID", "0"))


class BadFileError(Exception):
    """A file does not follow its format; the message says where."""


def logged(folder: Path) -> Iterator[Logged]:
    """The records of all topics of programs, in the order of the log. Raises BadFileError."""
    return (record for record in walked(folder) if record.topic not in SYSTEM)


def begin_of(folder: Path) -> int:
    """Where the log begins; 0 without one."""
    return min((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0)


def walked(folder: Path) -> Iterator[Logged]:
    """The same, and those of RocketMQ's own topics, as messages that wait. Raises BadFileError."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.name.isdecimal():
            continue
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if not size and not magic:
                if data.count(0, at) != len(data) - at:
                    raise BadFileError(f"{path}: bytes behind the end at {at}")
                break
            if magic == BLANK:
                break
            record = record_of(data, at, path)
            if record.position != int(path.name) + at:
                raise BadFileError(f"{path}: the record at {at} says that it lies at {record.position}")
            if not record.topic.startswith(OWN):
                yield record
            at += record.size


def record_of(data: bytes, at: int, path: Path) -> Logged:
    """The record that lies at `at` in the bytes of a file. Raises BadFileError."""
    if at + HEAD.size <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        found = _record(data[at : at + size])  # the same records come again in each state
        if found is not None:
            return found
    raise BadFileError(f"{path}: no sound record at {at}")


@functools.lru_cache(maxsize=1 << 15)
def _record(data: bytes) -> Logged | None:
    if len(data) < HEAD.size:
        return None
    fields = HEAD.unpack_from(data)
    size, magic, crc, queue, id, offset, position, flags, _born, _host, stored, _by, _times, prepared, length = fields
    where = HEAD.size
    body = data[where : where + length]
    where += length
    wide = magic == V2
    topic_bytes = int.from_bytes(data[where : where + 1 + wide], "big")
    where += 1 + wide
    topic = data[where : where + topic_bytes]
    where += topic_bytes
    properties_bytes = int.from_bytes(data[where : where + 2], "big")
    where += 2
    said = data[where : where + properties_bytes]
    where += properties_bytes
    if magic not in (V1, V2) or where != size or crc != zlib.crc32(body) & INT_MAX:
        return None
    properties = dict(part.partition("\1")[::2] for part in said.decode().split("\2") if part)
    keys = dict.fromkeys([properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")])
    return Logged(
        topic.decode(),
        id,
        queue,
        offset,
        position,
        size,
        stored,
        body,
        properties.get("TAGS", ""),
        tuple(filter(None, keys)),
        flags,
        prepared,
        properties,
        zlib.crc32(data),
    )


def is_commit(record: Logged) -> bool:
    """Whether a record is a half message that was committed."""
    return record.topic not in SYSTEM and record.flags & OUTCOME == COMMITTED


class Waits:
    """What the log says of messages that wait, or waited."""

    def __init__(self, records: Sequence[Logged]) -> None:
        """`records`: all of the log, as `walked` gives them."""
        self.halves = {record.position: record for record in records if record.topic == HALF}
        self.later = {record.position: record for record in records if record.topic in LATER}
        self.outcomes: defaultdict[int, list[Logged]] = defaultdict(list)  #: by the half message's position
        self.came: defaultdict[int, list[Logged]] = defaultdict(list)  #: by the position of the record that waited
        for record in records:
            if record.topic in (HALF_OVER, HALF_ASIDE) or is_commit(record):
                self.outcomes[record.prepared].append(record)
            elif record.topic not in SYSTEM and record.prepared:
                self.came[record.prepared - 1].append(record)

    def pending(self, living: set[int]) -> tuple[list[int], list[int]]:
        """Positions of half messages that are pending, and of messages that are to come."""
        halves = (at for at, record in self.halves.items() if record.topic_id in living and at not in self.outcomes)
        later = (at for at, record in self.later.items() if record.topic_id in living and at not in self.came)
        return sorted(halves), sorted(later)
