"""Goal: whatever commits a log has lost, and wherever, the commits that fill their places make it whole: walked from
its begin it has every other commit, and ends where it ended. Method: logs of small files with commits of random sizes,
of which some that follow each other are replaced; the core walks them.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.topics import filler
from warren.engine.topics.filler import CannotFill, Commit
from warren.engine.topics.records import Record, encode

FILE = 4096
NODE = b"node" * 4
PLACED = tuple[int, bytes, Commit]  #: position, bytes, the commit that ends with them


def written(sizes: list[list[int]]) -> list[PLACED]:
    """Commits with records of these bodies, one after the other, and the blanks between them."""
    found: list[PLACED] = []
    after = Commit(0, 7, 0, 1000)
    for bodies in sizes:
        records = [Record(topic="t", flag=1, body=bytes(size)) for size in bodies]
        commit = filler.made(NODE, after, records)
        base = after.end // FILE * FILE
        if after.end + len(commit) + 8 > base + FILE:
            after = replace(after, end=base + FILE)
            commit = filler.made(NODE, after, records)
        after = Commit(after.end + len(commit), 7, after.number + 1, 1000)
        found.append((after.end - len(commit), commit, after))
    return found


def store(folder: Path, parts: list[tuple[int, bytes]]) -> None:
    (folder / "commitlog").mkdir(exist_ok=True)
    for path in (folder / "commitlog").iterdir():
        path.unlink()
    for base in range(0, max(at for at, _part in parts) + 1, FILE):
        content = bytearray(FILE)
        for at, part in parts:
            if base <= at < base + FILE:
                assert at + len(part) <= base + FILE, "nothing crosses the end of a file"
                content[at - base : at - base + len(part)] = part
        (folder / "commitlog" / f"{base:020d}").write_bytes(content)


def walked(folder: Path) -> tuple[int, int, bool, bool]:
    """(where it ends, number of the last commit, …) of all that is sound from the first byte on."""
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        place = (root, NODE, NODE, FILE, 1, 1, 2)
        end, _epoch, number, _ms, damaged, foreign, _first, _rows = _core.topics_survey(*place, 0, 0, 0, True, int)
    finally:
        os.close(root)
    return end, number, damaged, foreign


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_filled_is_a_whole_log(tmp_path: Path, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.lists(st.integers(0, 700), max_size=4), min_size=3, max_size=30))
    log = written(sizes)
    begin = data.draw(st.integers(0, len(log) - 2))
    end = data.draw(st.integers(begin + 1, len(log) - 1))
    after = log[begin - 1][2] if begin else Commit(0, 7, 0, 1000)
    to, _bytes, _commit = log[end]
    kept = [(at, part) for at, part, _commit in log[:begin] + log[end:]]
    for (at, part, _commit), (next_at, _part, _next) in itertools.pairwise(log):
        if next_at > at + len(part) and not after.end <= at + len(part) < to:
            kept.append((at + len(part), filler.blank(next_at - at - len(part))))
    filled = list(filler.fill(NODE, FILE, after, to, end - begin))
    store(tmp_path, kept + filled)
    last = log[-1][2]
    assert walked(tmp_path) == (last.end, last.number, False, False)
    if begin and filled:
        store(tmp_path, kept)
        assert walked(tmp_path) != (last.end, last.number, False, False), "without them it is not"


def test_what_cannot_be_filled_is_refused() -> None:
    """A place for less than one commit, or for none, or for more than there were."""
    least = len(filler.made(NODE, Commit(), ()))
    pad = len(encode(Record(topic="t")))
    for size, count in ((least - 1, 1), (least + pad - 1, 1), (least, 0), (least, 2), (0, 1)):
        with pytest.raises(CannotFill):
            filler.fill(NODE, FILE, Commit(0, 7, 3), size, count)
    (part,) = filler.fill(NODE, FILE, Commit(0, 7, 3), least, 1)
    assert len(part[1]) == least
    assert list(filler.fill(NODE, FILE, Commit(FILE, 7, 3), FILE, 0)) == []
