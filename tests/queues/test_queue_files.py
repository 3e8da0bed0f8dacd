"""Goal: a list of files tells a record that was lost from an append that a power loss tore.

Method: a list that is appended to; records are zeroed in what it wrote. Of the last append any part may be missing, for
it was not synced, and whatever is listed next makes the list whole; of an earlier one nothing may.
"""

import itertools
from pathlib import Path

import pytest

from warren.engine.kernel import file_register
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import FILES_HEADER, FILES_RECORD, LISTED_DATA, LISTED_JOURNAL

NODE, OWNER = 7, 3
BEGUN: dict[Key, Entry] = {(LISTED_JOURNAL, 0, n): Entry(n, 4096) for n in (1, 2)}
APPENDS: tuple[dict[Key, Entry], ...] = (
    {(LISTED_DATA, 0, n): Entry(n, 100) for n in (1, 2, 3)},
    {(LISTED_DATA, 0, n): Entry(n, 100) for n in (4, 5, 6)},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files = FileRegister(tmp_path / "files", NODE, OWNER)
    files.begin(BEGUN, [])
    for entries in APPENDS:
        files.note(entries)
    return files.path


def zero(path: Path, *records: int) -> None:
    content = bytearray(path.read_bytes())
    for number in records:
        at = FILES_HEADER.size + number * FILES_RECORD.size
        content[at : at + FILES_RECORD.size] = bytes(FILES_RECORD.size)
    path.write_bytes(content)


@pytest.mark.parametrize("lost", [lost for n in range(4) for lost in itertools.combinations((5, 6, 7), n)])
def test_any_part_of_the_last_append_may_be_missing(path: Path, lost: tuple[int, ...]) -> None:
    zero(path, *lost)
    files = FileRegister(path, NODE, OWNER)
    listed = files.load()
    assert not listed.problem
    there = {(LISTED_DATA, 0, number - 1): Entry(number - 1, 100) for number in (5, 6, 7) if number not in lost}
    assert listed.entries == BEGUN | APPENDS[0] | there
    more: dict[Key, Entry] = {(LISTED_DATA, 0, 8): Entry(8, 100), (LISTED_DATA, 0, 9): Entry(9, 100)}
    files.note(more)
    again = file_register.read(path, NODE, OWNER)
    assert not again.problem
    assert again.entries == listed.entries | more


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (3,), (4,), (2, 3, 4), (4, 5)])
def test_what_was_lost_before_the_last_append_is_damage(path: Path, lost: tuple[int, ...]) -> None:
    zero(path, *lost)
    missing = sum(number < 5 for number in lost)
    assert file_register.read(path, NODE, OWNER).problem == f"has lost {missing} of its records"
