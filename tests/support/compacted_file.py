"""Files of newest messages from the tables of their format alone (engine/topics/formats.py): made as a test wants them,
with checksums that fit, and read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import google_crc32c

from support import topic_tables as tables

HEAD = struct.Struct(">8sII16sIIQQQQQQQQ")
BLOCK = struct.Struct(">II")
PLACE = struct.Struct(">QQQQ")
KEY = struct.Struct(">IQ")
TOMBSTONE = struct.Struct(">QQ")
BOUND = struct.Struct(">16sIIQQQ")
PAGE_KEYS = 341
_HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


def record(queue: int, offset: int, key: str, body: bytes, topic: str = "flights", **more: object) -> bytes:
    """A record of topic 7 that lies at 1000 * offset of the log."""
    fields: tables.Fields = {
        "topic": topic,
        "body": body,
        "properties": {"KEYS": key},
        "queue_id": queue,
        "queue_offset": offset,
        "physical_offset": 1000 * offset,
        "flag": 7,
        "sys_flag": 0,
        "reconsume_times": 0,
        "born_timestamp": 1,
        "store_timestamp": 1_700_000_000_000 + offset,
        "prepared_transaction_offset": 0,
        "born_host": _HOST,
        "store_host": _HOST,
    }
    return tables.write(fields | more)


def _of(data: bytes) -> tables.Fields:
    """A record that may be damaged in its body."""
    size, _magic, _crc, queue, flag, offset, position = struct.unpack_from(">IIIIIQQ", data)
    return {"size": size, "queue": queue, "flag": flag, "offset": offset, "position": position}


def _time_of(data: bytes) -> int:
    found: int = struct.unpack_from(">Q", data, tables.HEAD.size + 8)[0]
    return found


@dataclass
class CompactedFile:
    """What a file says. `keys_n`, `records_n`: what its head says where that is not what is there."""

    node: bytes
    topic: int
    queue: int
    end: int
    blocks: list[list[bytes]]
    since: dict[int, int] = field(default_factory=dict)  #: of tombstones
    keys: list[tuple[int, int]] = field(default_factory=list)  #: hash, offset
    made: int = 1_700_000_000_000
    records_n: int | None = None
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)  #: of a block, in place of its first record

    def sum_of(self, at: int, part: bytes) -> int:
        bound = BOUND.pack(self.node, self.topic, self.queue, self.end, self.made, at)
        found: int = google_crc32c.extend(google_crc32c.value(bound), part)
        return found

    def encode(self) -> bytes:
        data = bytearray(HEAD.size)
        places = b""
        for number, block in enumerate(self.blocks):
            first = _of(block[0])
            place = self.places.get(number, (first["offset"], first["position"], _time_of(block[0])))
            places += PLACE.pack(*place, len(data))
            rest = struct.pack(">I", sum(map(len, block))) + b"".join(block)
            data += struct.pack(">I", self.sum_of(len(data), rest)) + rest
        keys_at, keys = len(data), sorted(self.keys)
        for at in range(0, len(keys), PAGE_KEYS):
            page = b"".join(KEY.pack(*key) for key in keys[at : at + PAGE_KEYS])
            data += struct.pack(">I", self.sum_of(len(data), page)) + page
        tail = places + b"".join(TOMBSTONE.pack(*item) for item in sorted(self.since.items()))
        data += tail
        count = sum(map(len, self.blocks)) if self.records_n is None else self.records_n
        numbers = (len(data), keys_at, len(keys), count, len(self.blocks), len(self.since))
        who = (self.node, self.topic, self.queue, self.end, self.made)
        head = bytearray(HEAD.pack(b"WRCOMPAC", 1, 0, *who, *numbers))
        crc = google_crc32c.extend(google_crc32c.value(bytes(head[:12] + head[16:])), bytes(tail))
        head[12:16] = struct.pack(">I", crc)
        return bytes(head + data[HEAD.size :])


def decode(data: bytes) -> CompactedFile:
    """A file that is whole."""
    magic, version, _crc, node, topic, queue, end, made, size, keys_at, keys_n, records_n, blocks_n, tombstones_n = (
        HEAD.unpack_from(data)
    )
    assert (magic, version, size) == (b"WRCOMPAC", 1, len(data))
    tail = size - blocks_n * PLACE.size - tombstones_n * TOMBSTONE.size
    found = CompactedFile(node, topic, queue, end, [], made=made)
    for number in range(blocks_n):
        _offset, _position, _time, at = PLACE.unpack_from(data, tail + number * PLACE.size)
        _crc, length = BLOCK.unpack_from(data, at)
        rest, block = data[at + BLOCK.size : at + BLOCK.size + length], []
        while rest:
            block.append(rest[: _of(rest)["size"]])
            rest = rest[len(block[-1]) :]
        found.blocks.append(block)
    assert sum(map(len, found.blocks)) == records_n
    for number in range(keys_n):
        at = keys_at + 4 + number // PAGE_KEYS * 4 + number * KEY.size
        found.keys.append(KEY.unpack_from(data, at))
    for number in range(tombstones_n):
        offset, since = TOMBSTONE.unpack_from(data, size - (tombstones_n - number) * TOMBSTONE.size)
        found.since[offset] = since
    return found


def places_of(data: bytes) -> dict[str, int]:
    """Where parts of a whole file begin."""
    found = HEAD.unpack_from(data)
    keys_at, blocks_n, tombstones_n = found[9], found[12], found[13]
    tombstones = len(data) - tombstones_n * TOMBSTONE.size
    blocks = tombstones - blocks_n * PLACE.size
    starts = {f"block{number}": PLACE.unpack_from(data, blocks + number * PLACE.size)[3] for number in range(blocks_n)}
    return starts | {"keys": keys_at, "places": blocks, "tombstones": tombstones}
