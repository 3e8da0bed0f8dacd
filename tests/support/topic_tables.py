"""The formats of topics with `struct` alone, written from the tables of RocketMQ's store and from nothing of ours.

It is the other opinion of the tests in tests/topics: what it writes the core must read, and the other way round. It is
slow, trusts nothing, and knows no reasons: bytes are a record, a blank, an end, or bad.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import google_crc32c

HEAD = struct.Struct(">IIIIIQQIQ")  # size, magic, crc, queue, flag, queue offset, physical offset, sys flag, born
TAIL = struct.Struct(">IQI")  # reconsume times, prepared transaction offset, body length
V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
BORN_V6, STORE_V6 = 1 << 4, 1 << 5
INT_MAX, SHORT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 15) - 1, (1 << 63) - 1

UNIT = struct.Struct(">QIq")
INDEX_HEADER = struct.Struct(">qqQQII")
ENTRY = struct.Struct(">IQII")

Fields = dict[str, Any]


def write_properties(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def write(fields: Fields) -> bytes:
    """A record: fields by name, texts as str, hosts as their bytes."""
    topic, body = fields["topic"].encode(), fields["body"]
    properties = write_properties(fields["properties"])
    v2 = len(topic) > 127
    tail = TAIL.pack(fields["reconsume_times"], fields["prepared_transaction_offset"], len(body))
    rest = (
        fields["born_host"]
        + struct.pack(">Q", fields["store_timestamp"])
        + fields["store_host"]
        + tail
        + body
        + struct.pack(">H" if v2 else ">B", len(topic))
        + topic
        + struct.pack(">H", len(properties))
        + properties
    )
    head = HEAD.pack(
        HEAD.size + len(rest),
        V2 if v2 else V1,
        zlib.crc32(body) & INT_MAX,
        fields["queue_id"],
        fields["flag"],
        fields["queue_offset"],
        fields["physical_offset"],
        fields["sys_flag"],
        fields["born_timestamp"],
    )
    return head + rest


def is_text(text: bytes) -> bool:
    try:
        return not set(text.decode()) & {"\0", "\1", "\2"}
    except UnicodeDecodeError:
        return False


def read_properties(properties: bytes) -> dict[str, str] | None:
    """None: illegal."""
    found = {}
    pieces = properties.split(b"\2")
    if not pieces[-1]:
        pieces.pop()  # the last one's end, which may be missing
    for piece in pieces:
        name, separator, value = piece.partition(b"\1")
        if not name or not separator or not is_text(name) or not is_text(value):
            return None
        found[name.decode()] = value.decode()
    return found


def read(data: bytes, position: int, at: int = 0) -> tuple[str, int, Fields | None]:
    """(what, size, fields) of what begins with the byte `at`; `position`: where that byte is in the log."""
    head = data[at : at + 8]
    if not any(head):
        return "end", 0, None
    if len(head) < 8:
        return "bad", 0, None
    size, magic = struct.unpack(">II", head)
    if magic == BLANK:
        return ("blank", size, None) if 8 <= size <= INT_MAX else ("bad", 0, None)
    if magic not in (V1, V2) or not 91 < size <= len(data) - at or size > INT_MAX:
        return "bad", 0, None
    try:
        fields = _read(data[at : at + size], magic == V2)
    except (struct.error, _BadError):
        return "bad", 0, None
    return ("record", size, fields) if fields["physical_offset"] == position else ("bad", 0, None)


class _BadError(Exception):
    pass


def _good(condition: object) -> None:
    if not condition:
        raise _BadError


def _read(data: bytes, v2: bool) -> Fields:
    _, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = HEAD.unpack_from(data)
    at = HEAD.size
    born_bytes = 20 if sys_flag & BORN_V6 else 8
    store_bytes = 20 if sys_flag & STORE_V6 else 8
    born_host = data[at : at + born_bytes]
    at += born_bytes
    (stored,) = struct.unpack_from(">Q", data, at)
    store_host = data[at + 8 : at + 8 + store_bytes]
    at += 8 + store_bytes
    reconsume_times, prepared, body_length = TAIL.unpack_from(data, at)
    at += TAIL.size
    body = data[at : at + body_length]
    at += body_length
    (topic_length,) = struct.unpack_from(">H" if v2 else ">B", data, at)
    at += 2 if v2 else 1
    topic = data[at : at + topic_length]
    at += topic_length
    (properties_length,) = struct.unpack_from(">H", data, at)
    at += 2
    properties = read_properties(data[at:])
    _good(at + properties_length == len(data) and len(body) == body_length and len(topic) == topic_length)
    _good(0 < topic_length <= (SHORT_MAX if v2 else 127) and properties_length <= SHORT_MAX and is_text(topic))
    _good(max(queue_id, reconsume_times) <= INT_MAX and max(queue_offset, physical_offset) <= LONG_MAX)
    _good(properties is not None and crc == zlib.crc32(body) & INT_MAX)
    return {
        "topic": topic.decode(),
        "body": body,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "properties": properties,
        "flag": flag,
        "sys_flag": sys_flag,
        "born_timestamp": born,
        "born_host": born_host,
        "store_timestamp": stored,
        "store_host": store_host,
        "reconsume_times": reconsume_times,
        "prepared_transaction_offset": prepared,
    }


def java_hash(text: str) -> int:
    """Java's int."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for (unit,) in struct.iter_unpack(">H", units):
        found = (found * 31 + unit) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def key_hash(topic: str, key: str) -> int:
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found > INT_MAX else found


@dataclass
class Index:
    """A file of the key index, as the tables describe it."""

    slots: int
    entries: int

    def __post_init__(self) -> None:
        self.file = bytearray(INDEX_HEADER.size + 4 * self.slots + ENTRY.size * self.entries)

    def link(self, name: str, previous: str, end: int) -> None:
        """Say in the file of a name which one comes before it, and where its last record lies."""
        said = struct.pack(">QQ", int(previous or "0"), end)
        checksum = google_crc32c.value(name.encode() + said)
        self.file[self._at(0) : self._at(1)] = said + struct.pack(">I", checksum)

    def put(self, key: int, offset: int, time_ms: int) -> bool:
        begin, _, begin_offset, _, used, count = INDEX_HEADER.unpack_from(self.file)
        count = count or 1
        if count >= self.entries:
            return False
        if count == 1:
            begin, begin_offset = time_ms, offset
        slot = INDEX_HEADER.size + 4 * (key % self.slots)
        (previous,) = struct.unpack_from(">I", self.file, slot)
        diff = min(max(time_ms - begin, 0) // 1000, INT_MAX)
        ENTRY.pack_into(self.file, self._at(count), key, offset, diff, previous)
        struct.pack_into(">I", self.file, slot, count)
        used += not previous
        INDEX_HEADER.pack_into(self.file, 0, begin, time_ms, begin_offset, offset, used, count + 1)
        return True

    def _at(self, number: int) -> int:
        return INDEX_HEADER.size + 4 * self.slots + ENTRY.size * number

    def find(self, key: int) -> list[int]:
        """The offsets of a hash, newest first."""
        (number,) = struct.unpack_from(">I", self.file, INDEX_HEADER.size + 4 * (key % self.slots))
        found = []
        while number:
            its_key, offset, _, number = ENTRY.unpack_from(self.file, self._at(number))
            if its_key == key:
                found.append(offset)
        return found
