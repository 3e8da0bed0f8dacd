"""Offsets of topics in a checkpoint, and how a backlog is shared out: nothing is lost, doubled or forgotten."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.errors import UsageError
from warren.workers.spark.topic_offsets import (
    Place,
    Range,
    TopicOffsets,
    TopicPosition,
    share,
    share_bytes,
    split,
)

RANGES = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.integers(0, 50), st.integers(0, 60)).map(lambda told: (told[0], told[0] + told[1])),
    min_size=1,
)


def length(ranges: dict[Place, Range]) -> int:
    return sum(end - start for start, end in ranges.values())


def test_json_is_sorted_and_comes_back() -> None:
    offsets = TopicOffsets({"b": TopicPosition("00ab-7", {10: 1, 9: 2, 0: 3}), "a": TopicPosition("00ab-6", {0: 0})})
    told = json.dumps(offsets.to_json())
    assert told == '{"a": {"0": 0, "id": "00ab-6"}, "b": {"0": 3, "10": 1, "9": 2, "id": "00ab-7"}}'
    assert TopicOffsets.from_json(json.loads(told)) == offsets
    assert TopicOffsets.from_json({}).to_json() == {}


@pytest.mark.parametrize(
    "value",
    [
        {"orders": {"id": "x", "next": 4, "subscription": "s"}},
        {"t": {"0": 4}},
        {"t": 5},
        {"t": {"id": "x", "0": -1}},
        {"t": {"id": "x", "0": "4"}},
    ],
)
def test_what_is_no_offset_of_topics(value: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        TopicOffsets.from_json(value)


@given(RANGES, st.integers(1, 200))
def test_rows_are_shared_by_backlog(ranges: dict[Place, Range], most: int) -> None:
    found = share(ranges, most)
    assert length(found) == min(most, length(ranges))
    for place, (start, end) in ranges.items():
        assert found[place][0] == start
        assert found[place][1] <= end
        fair = (end - start) * most / max(1, length(ranges))
        assert length(ranges) <= most or abs((found[place][1] - start) - fair) < 1


@given(RANGES, st.integers(1, 3000), st.integers(1, 40))
def test_bytes_are_shared_evenly(ranges: dict[Place, Range], most: int, size: int) -> None:
    def span(_place: Place, at: int, end: int, limit: int) -> tuple[int, int]:
        stop = min(end, at + limit // size)
        return stop, (stop - at) * size

    found = share_bytes(ranges, most, span)
    assert all(ranges[place][0] == start and end <= ranges[place][1] for place, (start, end) in found.items())
    assert length(found) * size <= max(most, size)
    assert length(found) or not length(ranges), "no progress"
    if length(found) < length(ranges):
        assert length(found) * size + size > most, "room was left"
    short = [end - start for place, (start, end) in found.items() if end < ranges[place][1]]
    assert not short or max(short) - min(short) <= 3, "one of eight is ahead"


@given(RANGES, st.none() | st.integers(1, 30), st.none() | st.integers(1, 20))
def test_parts_are_the_ranges(ranges: dict[Place, Range], least: int | None, most: int | None) -> None:
    parts = split(ranges, least, most)
    for place, (start, end) in ranges.items():
        of_place = [(low, high) for each, low, high in parts if each == place]
        if start == end:
            assert of_place == []
            continue
        assert (of_place[0][0], of_place[-1][1]) == (start, end)
        assert all(left[1] == right[0] for left, right in itertools.pairwise(of_place))
        assert all(0 < high - low <= (most or end) for low, high in of_place)
    if least is not None:
        assert len(parts) >= min(least, length(ranges))
    elif most is None:
        assert len(parts) == sum(start < end for start, end in ranges.values())
