"""Goal: CRC-32 is zlib's, whatever way it is computed, of any bytes wherever they lie.

Method: zlib as the oracle; all lengths up to 4096 at changing alignments of source and target; inputs cut into pieces
that the processor's instruction and the tables sum in turn. tests/kernel/crc32_test.c watches what is read.
"""

import random
import zlib
from collections.abc import Callable

import pytest

from warren.engine import _core

LENGTH_MAX = 4096
Copy = Callable[[memoryview, memoryview, int], int]


def test_crc_of_the_standard() -> None:
    to = bytearray(9)
    assert _core.crc32(b"123456789") == 0xCBF43926
    assert _core.copy_crc32(to, b"123456789") == 0xCBF43926
    assert to == b"123456789"
    assert _core.copy_crc32_table(to, b"123456789") == 0xCBF43926
    assert _core.crc32(b"") == 0
    assert _core.crc32(b"", 7) == 7


def test_crc_of_all_lengths_is_that_of_zlib(seed: int) -> None:
    data = memoryview(random.Random(seed).randbytes(LENGTH_MAX + 64))
    for n in range(LENGTH_MAX + 1):
        for begin in {n % 16, n * 7 % 16, 15, 16}:
            assert _core.crc32(data[begin : begin + n]) == zlib.crc32(data[begin : begin + n]), (n, begin)


@pytest.mark.parametrize("copy", [_core.copy_crc32, _core.copy_crc32_table])
def test_copies_of_all_lengths_are_whole_and_no_longer(seed: int, copy: Copy) -> None:
    data = memoryview(random.Random(seed).randbytes(LENGTH_MAX + 64))
    to = memoryview(bytearray(b"\xaa" * (LENGTH_MAX + 64)))
    for n in range(LENGTH_MAX + 1):
        begin, target = n % 16, n * 5 % 16
        source = data[begin : begin + n]
        assert copy(to[target:], source, n) == zlib.crc32(source, n), n
        assert to[target : target + n] == source
        assert to[target + n : target + n + 16] == b"\xaa" * 16
        assert to[:target] == b"\xaa" * target
        to[target : target + n] = b"\xaa" * n


def test_pieces_summed_in_turn_by_instruction_and_tables(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        data = rng.randbytes(rng.choice((20, 200, 3000, 20000)))
        crc = at = 0
        while at < len(data):
            piece = data[at : at + rng.randrange(1 + len(data) // rng.randrange(1, 9))]
            to = bytearray(len(piece))
            way = rng.randrange(3)
            if way:
                crc = (_core.copy_crc32, _core.copy_crc32_table)[way - 1](to, piece, crc)
                assert to == piece
            else:
                crc = _core.crc32(piece, crc)
            at += len(piece)
        assert crc == zlib.crc32(data)


def test_large_bodies(seed: int) -> None:
    data = random.Random(seed).randbytes((1 << 20) + 5)
    to = bytearray(len(data))
    assert _core.crc32(data) == _core.copy_crc32(to, data) == zlib.crc32(data)
    assert to == data


def test_copy_needs_room() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        _core.copy_crc32(bytearray(3), b"four")
