"""Goal: the right files are collected: empty ones not at all, mostly dead ones soon, full ones never, and no file twice
for nothing.

Method: the policy's pure functions over made-up file summaries; a store is simulated by applying what they choose.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from warren.engine.store.choose import choose, pressed, triggered
from warren.engine.store.file_summary import FileRow
from warren.engine.store.job import Job

FILE = 1 << 20
HEAD = 4096


def row(
    file: int, valid: float, *, size: float = 1.0, low: int | None = None, high: int | None = None, **more: Any
) -> FileRow:
    """A file that no ring replays; `valid` and `size` in shares of a full one."""
    fields: dict[str, Any] = {
        "file": file,
        "valid_total_size": int(valid * FILE),
        "file_size": int(size * FILE),
        "left": None,
        "right": None,
        "locked": False,
        "image": None,
        "pin_low": 0,
        "pin_high": 0,
        "position_low": file if low is None else low,
        "position_high": file if high is None else high,
        "replay_free": True,
        "ghosts": False,
        "messages": 1,
    }
    return FileRow(**fields | more)


def chosen(*rows: FileRow, pinned: Sequence[int] = (), **more: Any) -> list[int]:
    return [found.file for found in choose(rows, pinned=pinned, file_bytes=FILE, fraction=0.5, **more)]


def test_the_threshold() -> None:
    assert not triggered(2, 0, 100 * FILE, FILE, 0.5)
    assert triggered(3, 0, 3 * FILE, FILE, 0.5)
    assert not triggered(10, 5 * FILE, 10 * FILE, FILE, 0.5)
    assert triggered(10, 5 * FILE - 1, 10 * FILE, FILE, 0.5)
    assert not triggered(10, 0, 2 * FILE, FILE, 0.5)
    assert pressed(FILE, 9 * FILE, FILE)
    assert not pressed(FILE, 8 * FILE, FILE)


def test_neighbours_are_combined_from_the_eldest() -> None:
    assert chosen(row(1, 0.3), row(2, 0.3), row(3, 0.3), row(4, 0.3)) == [1, 2, 3]
    assert chosen(row(1, 0.9), row(2, 0.9), row(3, 0.2), row(4, 0.1)) == [3, 4]


def test_order_is_by_position() -> None:
    assert chosen(row(9, 0.2, low=1, high=4), row(5, 0.2), row(6, 0.9)) == [9, 5]


def test_full_files_stay() -> None:
    assert chosen(row(1, 0.95), row(2, 0.95), row(3, 0.9)) == []
    assert chosen() == []


def test_a_mostly_dead_file_between_full_ones_goes_alone() -> None:
    assert chosen(row(1, 0.95), row(2, 0.3), row(3, 0.95)) == [2]


@pytest.mark.parametrize("why", [{"replay_free": False}, {"locked": True}, {"valid_total_size": 0}])
def test_what_may_not_be_touched_parts_the_neighbours(why: dict[str, Any]) -> None:
    assert chosen(row(1, 0.6), row(2, 0.1, **why), row(3, 0.2), row(4, 0.2)) == [3, 4]
    assert chosen(row(1, 0.1, **why)) == []


def test_a_pinned_file_without_live_records_is_a_candidate() -> None:
    rows = [row(1, 0.9), row(2, 0.0), row(3, 0.9)]
    assert chosen(*rows, pinned=[2]) == [2]
    # what it speaks of is gone: it goes by itself
    assert chosen(*rows) == []


def test_only_the_core_says_what_is_pinned() -> None:
    """Pins that point to the right, where nothing can lie that a control frame speaks of, do not count; a ghost does,
    which no pin points to."""
    rows = [row(1, 0.9, ghosts=True), row(2, 0.0), row(3, 0.9)]
    assert chosen(*rows, pinned=[2]) == [2]
    rows = [row(1, 0.9), row(2, 0.0, pin_low=4, pin_high=4), row(3, 0.9)]
    assert chosen(*rows) == []


def test_control_frames_that_were_needed_are_not_collected_again() -> None:
    rows = [row(1, 0.9), row(2, 0.0, size=0.8)]
    assert chosen(*rows, pinned=[2]) == [2]
    assert chosen(*rows, pinned=[2], floors={2: int(0.8 * FILE) - HEAD}) == []


def test_a_damaged_file_goes_first() -> None:
    assert chosen(row(1, 0.1), row(2, 0.1), row(3, 1.0), suspects=[3]) == [3]
    assert chosen(row(1, 0.1), row(2, 0.1), row(3, 1.0, replay_free=False), suspects=[3]) == [1, 2]
    assert chosen(row(1, 0.1), row(2, 0.1), refused=[1]) == [2]


def test_small_files_are_combined_when_there_are_too_many() -> None:
    rows = [row(n, 0.09, size=0.1) for n in range(20)]
    assert chosen(*rows) == []
    assert chosen(*rows, crowded=True) == list(range(11))


def test_a_job_travels() -> None:
    job = Job(0, 3, 17, 1 << 63, [(1, 1, 4, False), (5, 5, 5, True)], 1000, True)
    assert Job.of(job.message()) == job
    for broken in ({}, {"sources": 3}, {**job.message(), "sources": [[1]]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Job.of(broken)


@pytest.mark.parametrize("seed", range(20))
def test_collecting_ends_with_at_least_half_in_use(seed: int) -> None:
    """From any state the rule comes to an end with as little garbage as it promises, and copies little."""
    chance = random.Random(seed)
    rows = [
        row(n, chance.choice((0.02, 0.1, 0.45, 0.6, 0.97)) * chance.random()) for n in range(chance.randrange(2, 60))
    ]
    live = sum(found.valid_total_size for found in rows)
    copied, number = 0, 1000
    while True:
        total = sum(found.file_size for found in rows)
        if not triggered(len(rows) + 1, live, total, FILE, 0.5):
            break
        run = choose(rows, pinned=(), file_bytes=FILE, fraction=0.5)
        assert run, "the rule says that there is too much garbage, and finds none"
        places = [found.position_low for found in rows]
        assert places == sorted(places)
        first = rows.index(run[0])
        assert rows[first : first + len(run)] == run
        needed = sum(found.valid_total_size for found in run)
        size = HEAD + (needed + 57 + HEAD - 1) // HEAD * HEAD
        assert size <= FILE
        assert size < sum(found.file_size for found in run)
        copied += needed
        number += 1
        rows[first : first + len(run)] = [
            row(number, needed / FILE, size=size / FILE, low=run[0].position_low, high=run[-1].position_high)
        ]
    assert copied <= 2 * live
