"""Goal: a list says what its file holds, from Python too, and no list file whatever breaks who reads it.

Method: frames of interleaved writers in any order (hypothesis), found again by a scan and through a list file; damage
of a file and of a list file anywhere; absurd fields under a right checksum. tests/store/file_list_test.c does the same
in C, with lists built while appending.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.kernel import frame
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    KIND_ADD_REFERENCE,
    KIND_MESSAGE,
    KIND_REMOVE,
    LIST_HEADER,
    LIST_RUN,
)

NODE, OWNER, FILE, SALT = 77, 1, 9, 0xF0E1D2C3B4A59687
WHOLE = 0xFFFF


def message_id(epoch: int, n: int) -> bytes:
    return epoch.to_bytes(8, "big") + (n % (1 << 64)).to_bytes(8, "big")


@dataclass
class File:
    """A file's bytes and what is in it."""

    data: bytes
    items: list[tuple[bytes, int, int, int, int, int]]
    waters: dict[int, int]


def build(records: list[tuple[int, int, int, int, int, bool]], last: bool = False) -> File:
    """(kind, epoch, number, length, extra, commit) of each record."""
    data = bytearray(FILE_HEADER_BYTES)
    made = File(b"", [], {})
    for sequence, (kind, epoch, number, length, extra, commit) in enumerate(records, 1):
        at = len(data)
        id = message_id(epoch, number)
        if kind == KIND_REMOVE:
            ids = [message_id(epoch, number + n * (1 + n % 3)) for n in range(length % 20 + 1)]
            data += frame.encode(kind, b"".join(ids), salt=SALT, client_epoch=epoch, sequence=sequence, extra=len(ids))
            made.items += [(each, at, len(data) - at, 0, 0, kind) for each in ids]
        else:
            meta = min(length, 3)
            data += frame.encode(
                kind,
                bytes([number & 255]) * length,
                salt=SALT,
                id=id,
                client_epoch=epoch,
                sequence=sequence,
                extra=extra,
                meta_length=meta,
            )
            made.items.append((id, at, len(data) - at, extra, meta, kind))
        made.waters[epoch] = sequence << 16 | WHOLE
        if commit:
            data += pad(len(data))
    data += pad(len(data), last) + (b"\xee" if last else b"\0") * 8192
    made.data = bytes(data)
    return made


def pad(at: int, last: bool = False) -> bytes:
    size = -at % 4096
    return frame.pad(size if size >= 57 else size + 4096, salt=SALT, last=last)


def scan(data: bytes) -> tuple[_core.FileList, str]:
    return _core.scan_list(FILE, SALT, data)


def decode(data: bytes, file_bytes: int = 1 << 30) -> _core.FileList | str:
    return _core.decode_list(data, NODE, OWNER, FILE, SALT, file_bytes)


records = st.lists(
    st.tuples(
        st.sampled_from([KIND_MESSAGE, KIND_MESSAGE, KIND_MESSAGE, KIND_ADD_REFERENCE, KIND_REMOVE]),
        st.integers(1, 3),
        st.one_of(st.integers(0, 6), st.integers((1 << 64) - 3, (1 << 64) - 1)),
        st.one_of(st.just(100), st.integers(0, 300)),
        st.sampled_from([0, 0, 1, 30]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=60,
)
EASY = [(KIND_MESSAGE, 1, n, 100, 0, n % 10 == 9) for n in range(100)]


@settings(max_examples=150, deadline=None)
@given(records, st.booleans())
def test_scan_and_list_file_say_what_is_there(records: list[tuple[int, int, int, int, int, bool]], last: bool) -> None:
    made = build(records, last)
    found, reason = scan(made.data)
    again = decode(found.encode(NODE, OWNER), len(made.data))
    assert not isinstance(again, str)
    for each in (found, again):
        assert each.items() == made.items
        assert each.waters == made.waters
        assert (each.file, each.salt, each.used) == (FILE, SALT, len(made.data) - 8192)
        assert (each.messages, each.controls) == (
            sum(item[5] == KIND_MESSAGE for item in made.items),
            sum(item[5] != KIND_MESSAGE for item in made.items),
        )
        assert each.message_bytes == sum(item[2] for item in made.items if item[5] == KIND_MESSAGE)
        assert (each.damage, each.damaged) == ([], 0)
        assert each.verify(made.data) == ([], 0)
    assert reason == ("end" if last else "zeros")
    assert again.encode(NODE, OWNER) == found.encode(NODE, OWNER)


def test_long_runs_are_short_lists() -> None:
    found, _reason = scan(build(EASY).data)
    assert found.runs == 10  # one a commit
    assert len(found.encode(NODE, OWNER)) == LIST_HEADER.size + 10 * LIST_RUN.size + 16


@settings(max_examples=200, deadline=None)
@given(records.filter(bool), st.data())
def test_damage_costs_only_what_it_hit(
    records: list[tuple[int, int, int, int, int, bool]], choices: st.DataObject
) -> None:
    made = build(records)
    data = bytearray(made.data)
    at = choices.draw(st.integers(FILE_HEADER_BYTES, len(data) - 8193))
    harm = choices.draw(st.binary(min_size=1, max_size=200))
    data[at : at + len(harm)] = harm
    data = data[: len(made.data)]
    found, reason = scan(bytes(data))
    items = found.items()
    assert set(items) <= set(made.items)
    if found.damage and reason in ("end", "zeros"):
        low, high = found.damage[0][0], found.damage[-1][1]
        assert [item for item in made.items if not low <= item[1] < high] == [
            item for item in items if not low <= item[1] < high
        ]
        assert found.damaged == len(found.damage)
        assert decode(found.encode(NODE, OWNER)).damaged == found.damaged  # type: ignore[union-attr]
    # The whole list names just the ids whose frames are bad, and the rest can be copied elsewhere.
    whole, _reason = scan(made.data)
    bad, n = whole.verify(bytes(data))
    good = [item for item in made.items if frame.check(data, item[1], SALT) is not None]
    assert n == len(bad) == len(made.items) - len(good)
    copy = bytearray(len(data) + 4096)
    end = _core.rewrite_list(whole, bytes(data), copy, SALT + 5)
    moved, reason = _core.scan_list(FILE, SALT + 5, bytes(copy))
    assert (moved.used, reason, moved.damage) == (end, "end" if good else "zeros", [])
    assert [(item[0], *item[2:]) for item in moved.items()] == [(item[0], *item[2:]) for item in good]


def test_one_bad_frame_costs_one() -> None:
    made = build(EASY)
    for victim in (0, 5, 9, 50, 98):
        at, total = made.items[victim][1:3]
        data = bytearray(made.data)
        data[at + 70] ^= 1
        found, _reason = scan(bytes(data))
        assert found.damage == [(at, at + total, "crc")]
        assert found.items() == made.items[:victim] + made.items[victim + 1 :]
        data = bytearray(made.data)
        data[at + 3] ^= 1  # the size: the next one is searched
        found, _reason = scan(bytes(data))
        assert found.damage == [(at, at + total, "size")]
        assert found.items() == made.items[:victim] + made.items[victim + 1 :]


def test_hostile_list_files() -> None:
    made = build(
        [*EASY, (KIND_REMOVE, 1, 0, 9, 0, False), (KIND_MESSAGE, 2, 0, 7, 0, False), (KIND_MESSAGE, 2, 1, 8, 0, 0)]
    )
    found, _reason = scan(made.data)
    good = found.encode(NODE, OWNER)
    for at in range(len(good)):
        assert isinstance(decode(good[:at]), str)
        assert isinstance(decode(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]), str)
    absurd = (0, 1, 56, 57, 4095, 4096, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63), (1 << 64) - 1)
    crc_at = LIST_HEADER.offset("crc")
    for at in range(16, LIST_HEADER.size + 3 * LIST_RUN.size, 2):
        for width in (2, 4, 8):
            for value in absurd:
                bad = bytearray(good)
                bad[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
                bad[crc_at : crc_at + 4] = _core.crc32c(bad[16:]).to_bytes(4, "big")
                result = decode(bytes(bad), len(made.data))
                if not isinstance(result, str):
                    assert all(item[1] >= 4096 and item[1] + item[2] <= len(made.data) for item in result.items())
    for other, reason in (
        ((NODE + 1, OWNER, FILE, SALT), "node"),
        ((NODE, OWNER + 1, FILE, SALT), "owner"),
        ((NODE, OWNER, FILE + 1, SALT), "file"),
        ((NODE, OWNER, FILE, SALT + 1), "salt"),
    ):
        assert _core.decode_list(good, *other, len(made.data)) == reason
    assert decode(good, found.used) != "size"
    assert decode(good, found.used - 1) == "size"
    assert decode(b"") == "size"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=600), st.binary(min_size=16, max_size=16))
def test_random_bytes(data: bytes, head: bytes) -> None:
    decode(data)
    body = head[12:] + data
    crc = _core.crc32c(body).to_bytes(4, "big")
    decode(b"WRNLST01\0\0\0\1" + crc + body)
    found, _reason = scan(bytes(FILE_HEADER_BYTES) + data)
    assert found.items() == []


def test_types_are_checked() -> None:
    found, _reason = scan(bytes(8192))
    with pytest.raises(TypeError):
        _core.FileList()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _core.rewrite_list(b"no list", b"", bytearray(9), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit"):
        _core.rewrite_list(scan(build(EASY).data)[0], build(EASY).data, bytearray(8192), 1)
    with pytest.raises(OverflowError):
        found.encode(NODE, 1 << 32)
