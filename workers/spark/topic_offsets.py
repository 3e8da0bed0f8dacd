"""Offsets of topics in Spark's checkpoint, and how a backlog is limited and cut into partitions.

An offset is `{"<topic>": {"id": "<incarnation>", "0": 123, "1": 45}}`: of each partition the first message that is not
done. Spark compares offsets as JSON strings, so keys are sorted, always. The incarnation tells a topic from a later
one of the same name, whose offsets mean other messages.

Invariant: a topic, or a partition, is in an offset for the first time with the place where its reading begins, which is
so written down before anything of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.spark.offsets import cut

#: a partition of a topic
Place = tuple[str, int]
#: offsets of a partition: from, and behind the last
Range = tuple[int, int]


@dataclass(frozen=True)
class TopicPosition:
    """How far one topic was read."""

    incarnation: str
    offsets: Mapping[int, int]


@dataclass(frozen=True)
class TopicOffsets:
    """How far a query is, in each topic."""

    topics: Mapping[str, TopicPosition]

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that goes into the checkpoint, keys sorted."""
        found: dict[str, Any] = {}
        for name in sorted(self.topics):
            position = self.topics[name]
            told: dict[str, Any] = {str(partition): offset for partition, offset in position.offsets.items()}
            told["id"] = position.incarnation
            found[name] = {key: told[key] for key in sorted(told)}
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TopicOffsets:
        """Return the offsets in a checkpoint; UsageError when they are none of this source."""
        found: dict[str, TopicPosition] = {}
        try:
            for name, told in value.items():
                numbers = {key: offset for key, offset in told.items() if key != "id"}
                if not all(re.fullmatch("[0-9]+", key) for key in numbers):
                    raise ValueError(f"partitions of {name!r}")
                found[name] = TopicPosition(told["id"], {int(key): offset for key, offset in numbers.items()})
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise UsageError(
                f"the checkpoint holds an offset that is not of Warren's topics: {shown(dict(value))}; it is of a "
                "queue, or of another source: give this query a checkpointLocation of its own"
            ) from problem
        for name, position in found.items():
            for offset in position.offsets.values():
                if type(offset) is not int or offset < 0:
                    raise UsageError(f"the checkpoint's offset of topic {name!r} is damaged: {shown(offset)}")
        return cls(found)


def share(ranges: Mapping[Place, Range], rows_max: int) -> dict[Place, Range]:
    """Shorten ranges to `rows_max` offsets together, each by its part of them all, as far as whole numbers go."""
    total = sum(end - start for start, end in ranges.values())
    if total <= rows_max:
        return dict(ranges)
    found: dict[Place, Range] = {}
    rest: list[tuple[int, Place]] = []
    for place, (start, end) in ranges.items():
        whole, remainder = divmod((end - start) * rows_max, total)
        found[place] = (start, start + whole)
        rest.append((-remainder, place))
    left = rows_max - sum(end - start for start, end in found.values())
    for _remainder, place in sorted(rest)[:left]:
        start, end = found[place]
        found[place] = (start, end + 1)
    return found


def share_bytes(
    ranges: Mapping[Place, Range], bytes_max: int, span: Callable[[Place, int, int, int], tuple[int, int]]
) -> dict[Place, Range]:
    """Shorten ranges to records of `bytes_max` bytes together: each gets as much as the others, and what one does not
    need is theirs. Where that is not enough for a message of each, those with most messages come first, and at least
    one message stays. `span`: of a place, from an offset and below an end, how far so many
    bytes reach, and how many there are.
    """
    found = {place: (start, start) for place, (start, _end) in ranges.items()}
    some = [place for place, (start, end) in ranges.items() if start < end]
    longest_first = sorted(some, key=lambda place: (ranges[place][0] - ranges[place][1], place))
    open_places = longest_first
    left = bytes_max
    while open_places and left > 0:
        each = max(1, left // len(open_places))
        before, still = left, []
        for place in open_places:
            start, at = found[place]
            end = ranges[place][1]
            stop, size = span(place, at, end, min(each, left))
            found[place] = (start, stop)
            left -= size
            if stop < end:
                still.append(place)
        if left == before and len(still) == len(open_places):
            if each == left:
                break  # none of them has a message so small
            still = still[: len(still) // 2]  # fewer places with more for each
        open_places = still
    if longest_first and all(start == end for start, end in found.values()):
        start = ranges[longest_first[0]][0]
        found[longest_first[0]] = (start, start + 1)
    return found


def split(
    ranges: Mapping[Place, Range], parts_min: int | None, records_max: int | None
) -> list[tuple[Place, int, int]]:
    """Cut ranges into parts for tasks: none above `records_max` offsets; if there are fewer than `parts_min`, larger
    ones are cut further, each by its share. None is empty, and parts of a place are in order.
    """
    some = {place: (start, end) for place, (start, end) in sorted(ranges.items()) if start < end}
    total = sum(end - start for start, end in some.values())
    parts = {
        place: 1 if records_max is None else -(-(end - start) // records_max) for place, (start, end) in some.items()
    }
    if parts_min is not None and sum(parts.values()) < parts_min:
        for place, (start, end) in some.items():
            parts[place] = min(end - start, max(parts[place], -(-(end - start) * parts_min // total)))
    return [
        (place, low, high)
        for place, (start, end) in some.items()
        for low, high in cut(start, end, parts_min=parts[place], records_max=None)
    ]
