"""The demo's figures computed straight from the file, without Warren and without Spark: what its results must equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from warren.tools.demo.inputs import AUDIT, LATE, MANIFESTS, RECORDS, SPARK, Input

GroupKey = tuple[str, int | None]
P95 = 0.95


@dataclass
class Group:
    """The figures of one group: per carrier and hour, or per key."""

    messages: int = 0
    n_sum: int = 0  #: of record numbers: tells a lost and a doubled message from none
    present: int = 0  #: records with a value (departures); the others are cancellations
    value_sum: float = 0.0
    value_mean: float | None = None
    value_p95: float | None = None


@dataclass
class Direct:
    """Everything the job's results are compared with."""

    records: int = 0
    blocks: int = 0
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    #: queue → sorted numbers of its messages; a manifest's number is -1 - block
    expected: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    #: the same of topics
    in_topics: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    whole_numbers: bool = True  #: all values are: sums must be equal to the last digit


def percentile(values: list[float], share: float) -> float | None:
    """Return the exact percentile, linearly interpolated between neighbours: the definition of Spark's `percentile`."""
    if not values:
        return None
    values = sorted(values)
    position = (len(values) - 1) * share
    lower, higher = math.floor(position), math.ceil(position)
    return values[lower] + (position - lower) * (values[higher] - values[lower])


def compute(given: Input) -> Direct:
    """Read the input and compute."""
    result = Direct()
    values: dict[GroupKey, list[float]] = {}
    by_route: dict[str, list[int]] = {}
    blocks: set[int] = set()
    late: list[int] = []
    for record in given.records():
        key = (record.key, record.hour)
        group = result.groups.get(key)
        if group is None:
            group = result.groups[key] = Group()
            values[key] = []
        group.messages += 1
        group.n_sum += record.n
        if record.value is not None:
            values[key].append(record.value)
            if record.value >= given.late_from:
                late.append(record.n)
        by_route.setdefault(record.routing_key, []).append(record.n)
        blocks.add(record.block)
        result.records += 1
    for key, found in values.items():
        group = result.groups[key]
        group.present = len(found)
        group.value_sum = math.fsum(found)
        group.value_mean = group.value_sum / len(found) if found else None
        group.value_p95 = percentile(found, P95)
        result.whole_numbers = result.whole_numbers and all(float(v).is_integer() for v in found)
    result.blocks = len(blocks)
    manifests = [-1 - block for block in blocks]
    for queue, pattern in given.bindings().items():
        numbers = [n for route, found in by_route.items() if _matches(pattern, route) for n in found]
        if queue in (AUDIT, MANIFESTS):
            numbers += manifests
        result.expected[queue] = np.sort(np.array(numbers, np.int64))
    assert len(result.expected[SPARK]) == result.records
    result.in_topics = {RECORDS: result.expected[SPARK], LATE: np.array(late, np.int64)}
    return result


def _matches(pattern: str, route: str) -> bool:
    """Topic matching for the few patterns of the demo, spelled out here on purpose: not the engine's code."""
    ours, theirs = pattern.split("."), route.split(".")
    if ours[-1] == "#":
        return ours[:-1] == theirs[: len(ours) - 1]
    return len(ours) == len(theirs) and all(a in ("*", b) for a, b in zip(ours, theirs, strict=True))
