"""Goal: a frame is accepted exactly when it was written whole, for its file.

Method: google-crc32c and the vectors of RFC 3720 as oracles, round trips of random frames, small files with every bit
flipped and cut at every length, and the bytes of the declared structure read by Python.
"""

import itertools
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.kernel import frame
from warren.engine.kernel.formats import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_STORE,
    FRAME,
    FRAME_BYTES_MIN,
    FRAME_MARKER,
    KIND_ACK,
    KIND_MESSAGE,
    KIND_PADDING,
    KIND_PUBLISH,
    PADDING_ID,
)
from warren.engine.kernel.rows import FRAME_ROW

SALT = 0x1122_3344_5566_7788

#: RFC 3720, appendix B.4
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_crc_of_the_standard(data: bytes, crc: int) -> None:
    to = bytearray(len(data))
    assert _core.crc32c(data) == crc
    assert _core.copy_crc32c(to, data) == crc
    assert to == data
    assert _core.copy_crc32c_table(to, data) == crc


def test_crc_against_google(seed: int) -> None:
    google = pytest.importorskip("google_crc32c")
    rng = random.Random(seed)
    lengths = [*range(100), *(rng.randrange(100, 70000) for _ in range(60)), 767, 768, 769, 12287, 12288, 12289]
    for length in lengths:
        data = rng.randbytes(length)
        to = bytearray(length + 3)
        expected = google.value(data)
        assert _core.crc32c(data) == expected
        assert _core.copy_crc32c(to, data) == expected
        assert bytes(to[:length]) == data
        cut = rng.randrange(length + 1)
        assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == expected


def test_copy_needs_room() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        _core.copy_crc32c(bytearray(3), b"four")


def test_bytes_of_a_frame() -> None:
    """The bytes are what engine/kernel/formats.py says, and the CRC what its docstring says."""
    body = b"metadata and payload"
    made = frame.encode(
        KIND_PUBLISH, body, salt=SALT, id=bytes(range(16)), flags=3, client_epoch=5, sequence=7, extra=9, meta_length=8
    )
    read = {item.name: FRAME.unpack(made, item.name) for item in FRAME.fields if item.type != "bytes"}
    assert read.pop("crc") == _core.crc32c(made[:28] + made[32:-1], _core.crc32c(struct.pack(">Q", SALT)))
    assert read == {
        "size": 16 + len(made) - 24 - 1,
        "version": 1,
        "kind": KIND_PUBLISH,
        "flags": 3,
        "client_epoch": 5,
        "sequence": 7,
        "extra": 9,
        "meta_length": 8,
        "part": 0,
    }
    assert FRAME.get_bytes(made, "id") == bytes(range(16))
    assert made[FRAME.size : -1] == body
    assert made[-1] == FRAME_MARKER
    assert len(made) == read["size"] + 9


@given(
    body=st.binary(max_size=2000),
    id=st.binary(min_size=16, max_size=16),
    numbers=st.tuples(*(st.integers(0, (1 << bits) - 1) for bits in (16, 64, 64, 32, 16, 64))),
    before=st.binary(max_size=20),
)
def test_round_trip(body: bytes, id: bytes, numbers: tuple[int, ...], before: bytes) -> None:
    flags, client_epoch, sequence, extra, meta_length, salt = numbers
    made = frame.encode(
        KIND_MESSAGE,
        body,
        salt=salt,
        id=id,
        flags=flags,
        client_epoch=client_epoch,
        sequence=sequence,
        extra=extra,
        meta_length=meta_length,
    )
    buffer = before + made + b"after"
    found = frame.check(buffer, len(before), salt)
    assert found == (len(made), KIND_MESSAGE, flags, id, client_epoch, sequence, extra, meta_length)
    assert frame.body(buffer, len(before), found.total) == body
    assert frame.why_not(buffer, len(before), salt ^ 1) == "crc"
    assert frame.check(memoryview(buffer), len(before), salt) == found


def small_file(bodies: list[bytes]) -> tuple[bytes, list[int]]:
    """A file without header: a frame per body, padding in the middle. Returns its bytes and the frames' positions."""
    data = b""
    positions = []
    for number, body in enumerate(bodies):
        positions.append(len(data))
        data += frame.encode(KIND_MESSAGE, body, salt=SALT, sequence=number + 1, id=bytes([number]) * 16)
        if number == len(bodies) // 2:
            data += frame.pad(FRAME_BYTES_MIN + 40, salt=SALT)
    return data, positions


def test_every_flipped_bit_is_detected() -> None:
    """The scan ends at the damaged frame, with all before it; only the filler of a padding frame may be anything."""
    data, positions = small_file([b"one", b"", b"three" * 5])
    whole = frame.scan(data, SALT, 0)
    assert len(whole) == 3
    assert whole.clean
    padding = positions[2] - FRAME_BYTES_MIN - 40
    filler = range(padding + FRAME.size, positions[2] - 1)
    starts = sorted([*positions, padding])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = frame.scan(damaged, SALT, 0)
        if bit // 8 in filler:
            assert found == whole
            continue
        assert not found.clean, bit
        assert found.end == max(start for start in starts if start <= bit // 8)
        assert found.packed == whole.packed[: len(found.packed)]
        assert len(found) == sum(position < found.end for position in positions)


@pytest.mark.parametrize("rest", ["nothing", "zeros", "old bytes"])
def test_torn_tail_at_every_length(rest: str) -> None:
    """A write that ended anywhere leaves all frames before the torn one, whatever lies behind it."""
    data, positions = small_file([b"one", b"two" * 30, b"", b"four" * 10])
    other = frame.encode(KIND_ACK, b"x" * 40, salt=SALT + 1) * 8
    ends = [*positions[1:], len(data)]
    for length in range(len(data) + 1):
        torn = data[:length]
        if rest == "zeros":
            torn = torn.ljust(len(data) + 200, b"\0")
        elif rest == "old bytes":
            torn += other[length % len(other) :] + other
        found = frame.scan(torn, SALT, 0)
        expected = [
            position for position, end in zip(positions, ends, strict=True) if whole_by(data, position) <= length
        ]
        assert [int(offset) for offset in found.rows["offset"]] == expected
        assert found.end <= length
        if rest == "old bytes" and length == found.end:
            assert not found.clean


def whole_by(data: bytes, position: int) -> int:
    """Where the frame at `position` ends."""
    return position + FRAME.unpack(data, "size", position) + 9


def test_scan_lists_all_columns_and_skips_padding(seed: int) -> None:
    rng = random.Random(seed)
    data = b"\0" * FILE_HEADER_BYTES
    expected = []
    for sequence in range(3000):
        if rng.random() < 0.1:
            data += frame.pad(FRAME_BYTES_MIN + rng.randrange(300), salt=SALT)
        head = {
            "id": rng.randbytes(16),
            "flags": rng.getrandbits(16),
            "client_epoch": rng.getrandbits(64),
            "sequence": sequence,
            "extra": rng.getrandbits(32),
            "meta_length": rng.getrandbits(16),
        }
        made = frame.encode(KIND_ACK, rng.randbytes(rng.randrange(50)), salt=SALT, **head)  # type: ignore[arg-type]
        expected.append({**head, "offset": len(data), "total": len(made), "kind": KIND_ACK})
        data += made
    found = frame.scan(data + bytes(5000), SALT)
    assert (found.end, found.reason, len(found)) == (len(data), "zeros", 3000)
    rows = found.rows
    assert rows.dtype.itemsize == FRAME_ROW.size
    for name in ("offset", "total", "client_epoch", "sequence", "extra", "flags", "meta_length", "kind"):
        assert rows[name].tolist() == [row[name] for row in expected]
    assert [bytes(id) for id in rows["id"]] == [row["id"] for row in expected]
    assert frame.scan(data, SALT).reason == "end"


def test_scan_of_nothing() -> None:
    for data, reason in ((b"", "end"), (bytes(100), "zeros"), (b"\0" * 99 + b"\1", "size"), (b"x" * 10, "short")):
        found = frame.scan(data, SALT, 0)
        assert (len(found), found.end, found.reason) == (0, 0, reason)
        assert len(found.rows) == 0
    assert frame.scan(b"abc", SALT, 99).end == 99


def test_padding_frame() -> None:
    for size in (FRAME_BYTES_MIN, FRAME_BYTES_MIN + 1, 4096 + 56):
        made = frame.pad(size, salt=SALT)
        assert len(made) == size
        found = frame.check(made, 0, SALT)
        assert found is not None
        assert (found.total, found.kind, found.id) == (size, KIND_PADDING, PADDING_ID)
        assert frame.why_not(made, 0, SALT + 1) == "crc"
    with pytest.raises(ValueError, match="57 bytes at least"):
        frame.pad(FRAME_BYTES_MIN - 1, salt=SALT)


def test_big_frame() -> None:
    body = random.Random(4).randbytes(8 << 20)
    made = bytearray(frame.encode(KIND_MESSAGE, body, salt=SALT))
    found = frame.check(made, 0, SALT)
    assert found is not None
    assert found.total == len(made) == len(body) + FRAME_BYTES_MIN
    for position in (56, 4 << 20, len(made) - 2):
        made[position] ^= 1
        assert frame.why_not(made, 0, SALT) == "crc"
        made[position] ^= 1


def test_reasons() -> None:
    made = frame.encode(KIND_MESSAGE, b"body", salt=SALT)

    def damaged(name: str, value: int) -> bytes:
        copy = bytearray(made)
        FRAME.pack_into(copy, name, value)
        return bytes(copy)

    assert frame.why_not(made, 0, SALT) is None
    assert frame.why_not(made, 1 << 63, SALT) == "short"
    assert frame.why_not(made[:56], 0, SALT) == "short"
    for size in (0, 47, len(made) - 8, 1 << 63, (1 << 64) - 1, (1 << 64) - 9):
        assert frame.why_not(damaged("size", size), 0, SALT) == "size"
    assert frame.why_not(damaged("size", len(made) - 10), 0, SALT) == "marker"
    assert frame.why_not(damaged("version", 2), 0, SALT) == "version"
    assert frame.why_not(damaged("kind", 7), 0, SALT) == "kind"
    assert frame.why_not(damaged("part", 1), 0, SALT) == "crc"


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        frame.encode(KIND_MESSAGE, b"", salt=0, id=b"short")
    for name, value in (("flags", 1 << 16), ("extra", 1 << 32), ("meta_length", 1 << 16), ("sequence", 1 << 64)):
        with pytest.raises(OverflowError):
            frame.encode(KIND_MESSAGE, b"", salt=0, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        frame.encode(KIND_MESSAGE, b"", salt=-1)
    with pytest.raises(TypeError):
        _core.frame_encode(1)  # type: ignore[call-arg]


def test_file_header() -> None:
    page = _core.file_header_pack(FILE_STORE, 11, 2, 33, SALT, 44)
    assert len(page) == FILE_HEADER_BYTES
    assert FILE_HEADER.unpack(page, "created_ns") == 44
    assert _core.file_header_check(page, FILE_STORE, 11, 2, 33) == (None, SALT)
    places = {"kind": (9, 11, 2, 33), "node": (1, 12, 2, 33), "owner": (1, 11, 3, 33), "file": (1, 11, 2, 34)}
    for reason, place in places.items():
        assert _core.file_header_check(page, *place) == (reason, 0)
    assert _core.file_header_check(page[:-1], FILE_STORE, 11, 2, 33) == ("short", 0)
    for bit in itertools.chain(range(64 * 8), range(64 * 8, 4096 * 8, 61)):
        damaged = bytearray(page)
        damaged[bit // 8] ^= 1 << bit % 8
        assert _core.file_header_check(damaged, FILE_STORE, 11, 2, 33)[0] in ("magic", "version", "crc")


def test_numpy_is_not_imported_by_itself() -> None:
    code = (
        "import sys; from warren.engine.kernel import frame, segment; "
        "assert len(frame.scan(frame.encode(1, b'x', salt=1), 1, 0)) == 1; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
