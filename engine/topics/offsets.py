"""Offsets of groups as bytes: bodies of records of OFFSETS_TOPIC, and the snapshot of all of them (`topics/groups`).
The formats: engine/topics/formats.py. What they are for: docs/design/022-groups.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from warren.engine import _core
from warren.engine.topics.formats import GROUPS, GROUPS_MAGIC, GROUPS_VERSION, OFFSET, OFFSETS, OFFSETS_VERSION
from warren.engine.topics.groups import Committed
from warren.engine.topics.snapshots import Unreadable

#: a topic's id and a group's name → how far each of its queues is done
Key = tuple[int, str]
Offsets = dict[Key, dict[int, Committed]]

_HEAD = struct.Struct(">IIII")
_OFFSET = struct.Struct(">IQQ")
assert (_HEAD.size, _OFFSET.size) == (OFFSETS.size, OFFSET.size)
_CRC_END = GROUPS.offset("crc") + 4


@dataclass
class All:
    """What a snapshot says."""

    position: int = 0  #: what was committed below is in `offsets`
    epoch: int = 0
    number: int = 0
    offsets: Offsets = field(default_factory=dict)


def encode(key: Key, offsets: Mapping[int, Committed]) -> bytes:
    """The body of a record: offsets of a group; none: the group was deleted."""
    topic, group = key
    name = group.encode()
    head = _HEAD.pack(OFFSETS_VERSION, topic, len(name), len(offsets))
    return head + b"".join(_OFFSET.pack(queue, *committed) for queue, committed in offsets.items()) + name


def apply(to: Offsets, body: bytes) -> None:
    """Take up what a record says. Raises Unreadable."""
    key, offsets, end = _decode(body, 0)
    if end != len(body):
        raise Unreadable(f"{len(body) - end} bytes too many")
    if offsets:
        to.setdefault(key, {}).update(offsets)
    else:
        to.pop(key, None)


def encode_snapshot(node: bytes, snapshot: All) -> bytes:
    """The file of a snapshot."""
    bodies = b"".join(encode(key, offsets) for key, offsets in snapshot.offsets.items())
    file = bytearray(GROUPS.size) + bodies
    GROUPS.set_bytes(file, "magic", GROUPS_MAGIC.encode())
    GROUPS.set_bytes(file, "node", node)
    numbers = {
        "version": GROUPS_VERSION,
        "position": snapshot.position,
        "epoch": snapshot.epoch,
        "number": snapshot.number,
        "groups_n": len(snapshot.offsets),
    }
    for name, value in numbers.items():
        GROUPS.pack_into(file, name, value)
    GROUPS.pack_into(file, "crc", _sum(file))
    return bytes(file)


def decode_snapshot(node: bytes, file: bytes) -> All:
    """What a file says. Raises Unreadable."""
    if len(file) < GROUPS.size or GROUPS.get_bytes(file, "magic") != GROUPS_MAGIC.encode():
        raise Unreadable("it is no snapshot of groups")
    if GROUPS.unpack(file, "version") != GROUPS_VERSION:
        raise Unreadable(f"it has version {GROUPS.unpack(file, 'version')}, not {GROUPS_VERSION}")
    if GROUPS.unpack(file, "crc") != _sum(file):
        raise Unreadable("its checksum is wrong")
    if GROUPS.get_bytes(file, "node") != node:
        raise Unreadable("it is of another node")
    position, epoch, number = (GROUPS.unpack(file, name) for name in ("position", "epoch", "number"))
    found = All(position, epoch, number)
    at = GROUPS.size
    for _ in range(GROUPS.unpack(file, "groups_n")):
        key, offsets, at = _decode(file, at)
        found.offsets[key] = offsets
    if at != len(file):
        raise Unreadable(f"{len(file) - at} bytes too many")
    return found


def _sum(file: bytes | bytearray) -> int:
    return _core.crc32c(file[_CRC_END:], _core.crc32c(file[: _CRC_END - 4]))


def _decode(data: bytes, at: int) -> tuple[Key, dict[int, Committed], int]:
    """(group, its offsets, where the bytes behind begin). Raises Unreadable."""
    try:
        version, topic, name_n, queues_n = _HEAD.unpack_from(data, at)
        if version != OFFSETS_VERSION:
            raise Unreadable(f"offsets of version {version}, not {OFFSETS_VERSION}")
        name_at = at + _HEAD.size + queues_n * _OFFSET.size
        end = name_at + name_n
        if end > len(data):
            raise Unreadable(f"{end - len(data)} bytes are missing")
        offsets = dict(_offsets(data, at + _HEAD.size, queues_n))
        return (topic, data[name_at:end].decode()), offsets, end
    except (struct.error, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def _offsets(data: bytes, at: int, count: int) -> Iterator[tuple[int, Committed]]:
    for place in range(at, at + count * _OFFSET.size, _OFFSET.size):
        queue, generation, offset = _OFFSET.unpack_from(data, place)
        yield queue, Committed(generation, offset)
