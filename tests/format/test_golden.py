"""Goal: files of every released format version can be read for ever, and today's code writes the newest one bit by bit.

Method: one committed golden file per version with a frame of each kind, compared with what the code makes and finds.
A changed format gets a new version, a new golden file and a reader for the old; an old one is never written again.
To make the file of a new version: python tests/format/test_golden.py
"""

import hashlib
import sys
from pathlib import Path

from warren.engine import _core, frame, segment
from warren.engine.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FRAME_BYTES_MIN,
    FRAME_STORED,
    FRAME_TRANSIENT,
    KIND_ACK,
    KIND_ADD_REFERENCE,
    KIND_DELIVER,
    KIND_MESSAGE,
    KIND_MOVE,
    KIND_PUBLISH,
    KIND_REMOVE,
    RANGE,
    ROUTE,
)

FOLDER = Path(__file__).parent / "golden"
V1 = FOLDER / "v1.jnl"
V1_SHA256 = "4bb26a363c715a18302263ecc4fb41a2d67136e98b0657f0a7d7736596df580e"
PLACE = {"kind": FILE_JOURNAL, "node_id": 0x0102030405060708, "owner": 3, "file": 9}
SALT = 0xF0E1D2C3B4A59687
CREATED_NS = 1_700_000_000_000_000_000


def route(queue: int, sequence: int) -> bytes:
    data = bytearray(ROUTE.size)
    ROUTE.pack_into(data, "queue", queue)
    ROUTE.pack_into(data, "sequence", sequence)
    return bytes(data)


def range_(queue: int, count: int, first: int, to: int = 0) -> bytes:
    data = bytearray(RANGE.size)
    for name, value in (("queue", queue), ("count", count), ("first", first), ("to", to)):
        RANGE.pack_into(data, name, value)
    return bytes(data)


#: (kind, id, flags, client_epoch, sequence, extra, meta_length, body) of each frame of version 1
FRAMES = [
    (KIND_MESSAGE, bytes(range(16)), 0, 1 << 32 | 5, 1, 3, 4, b"metapayload"),
    (KIND_ADD_REFERENCE, bytes(range(16)), 0, 1 << 32 | 5, 2, 0, 0, b""),
    (KIND_REMOVE, bytes(16), 0, 1 << 32 | 5, 3, 2, 0, bytes(range(16)) + b"\xee" * 16),
    (KIND_PUBLISH, bytes(range(16, 32)), 0, 1 << 32 | 6, 1, 2, 0, route(7, 0) + route(8, 99) + b"embedded"),
    (KIND_PUBLISH, bytes(range(32, 48)), FRAME_STORED, 1 << 32 | 6, 2, 1, 0, route(7, 1) + b"\0\1\0\0"),
    (KIND_PUBLISH, b"\xff" * 16, FRAME_TRANSIENT, (1 << 64) - 1, (1 << 64) - 1, 1, 5, route(7, 2) + b"\xff" * 300),
    (KIND_DELIVER, bytes(16), 0, 0, 0, 1, 0, range_(7, 3, 0)),
    (KIND_ACK, bytes(16), 0, 0, 0, 2, 0, range_(7, 2, 0) + range_(8, 1, 99)),
    (KIND_MOVE, bytes(16), 0, 0, 0, 2, 0, range_(8, 10, 100, 1 << 40) + range_(9, 10, 1 << 40)),
]


def build() -> bytes:
    """The file as today's code writes it: after the fourth frame and at the end padding to a page, then zeros."""
    data = _core.file_header_pack(PLACE["kind"], PLACE["node_id"], PLACE["owner"], PLACE["file"], SALT, CREATED_NS)
    for number, (kind, id, flags, client_epoch, sequence, extra, meta_length, body) in enumerate(FRAMES):
        data += _core.frame_encode(kind, id, flags, client_epoch, sequence, extra, meta_length, body, SALT)
        if number in (3, len(FRAMES) - 1):
            data += frame.pad(-len(data) % 4096, salt=SALT)
    return data + bytes(4096)


def test_golden_file_itself_is_unchanged() -> None:
    assert hashlib.sha256(V1.read_bytes()).hexdigest() == V1_SHA256


def test_version_1_is_written_as_ever() -> None:
    assert build() == V1.read_bytes()


def test_version_1_is_read() -> None:
    found = segment.scan_file(V1, **PLACE)
    assert found.header == segment.Header(1, FILE_JOURNAL, PLACE["node_id"], 3, 9, SALT, CREATED_NS)
    assert (found.frames.end, found.frames.reason) == (3 * 4096, "zeros")
    assert len(found.frames) == len(FRAMES)
    for row, (kind, id, flags, client_epoch, sequence, extra, meta_length, body) in zip(
        found.frames.rows, FRAMES, strict=True
    ):
        offset, total = int(row["offset"]), int(row["total"])
        assert frame.check(found.data, offset, SALT) == (
            total, kind, flags, id, client_epoch, sequence, extra, meta_length
        )  # fmt: skip
        assert frame.body(found.data, offset, total) == body


def test_padding_of_version_1() -> None:
    """Padding lies where a group commit ended, fills its page, and is no shorter than a frame can be."""
    data = V1.read_bytes()
    for page_end in (2 * 4096, 3 * 4096):
        size = next(
            size for size in range(FRAME_BYTES_MIN, 4096) if frame.check(data, page_end - size, SALT) is not None
        )
        made = frame.pad(size, salt=SALT)
        assert data[page_end - size : page_end] == made


def test_version_1_ends_where_its_salt_ends() -> None:
    assert len(frame.scan(V1.read_bytes(), SALT + 1)) == 0
    assert frame.scan(V1.read_bytes(), SALT + 1).end == FILE_HEADER_BYTES


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    V1.write_bytes(build())
    sys.stdout.write(hashlib.sha256(build()).hexdigest() + "\n")
