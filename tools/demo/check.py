"""The demo's self-check: what came out of the job against what was computed straight from the file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warren.tools.demo.consumer import BAD, REDELIVERED, ROW
from warren.tools.demo.direct import Direct, Group
from warren.tools.demo.stream import Row

if TYPE_CHECKING:
    from warren.workers.faces.topics import Topic

#: of percentiles, and of sums of numbers that are not whole: the order of operations shows in the last digits
TOLERANCE = 1e-9
PROBLEMS_MAX = 20


class _Numbered(msgspec.Struct, gc=False):
    n: int


@dataclass
class QueueCheck:
    """One queue, or one topic: every message of it exactly once."""

    name: str
    expected: int
    received: int = 0  #: different messages
    redelivered: int = 0  #: deliveries that were marked so
    again: int = 0  #: deliveries of messages that had come before; each of them must be marked
    missing: int = 0
    foreign: int = 0  #: never published, or damaged
    doubled: int = 0  #: came again without the mark

    @property
    def ok(self) -> bool:
        return not (self.missing or self.foreign or self.doubled) and self.received == self.expected


@dataclass
class Check:
    """All of it."""

    queues: list[QueueCheck] = field(default_factory=list)
    topics: list[QueueCheck] = field(default_factory=list)
    groups: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems and all(each.ok for each in (*self.queues, *self.topics))


def read_records(files: dict[Path, list[str]]) -> dict[str, NDArray[np.void]]:
    """Return what the consumers wrote down, by queue. A torn last row (its message was never acked) is left out."""
    parts: dict[str, list[NDArray[np.void]]] = {}
    for path, queues in files.items():
        if not path.exists():
            continue
        data = path.read_bytes()
        rows = np.frombuffer(data[: len(data) // ROW.itemsize * ROW.itemsize], ROW)
        for index, name in enumerate(queues):
            parts.setdefault(name, []).append(rows[rows["queue"] == index])
    return {name: np.concatenate(found) for name, found in parts.items()}


def check_queue(name: str, expected: NDArray[np.int64], rows: NDArray[np.void]) -> QueueCheck:
    """Compare what came with what had to; a message that came k times needs k - 1 redelivered marks."""
    good = rows[(rows["flags"] & BAD) == 0]
    numbers, places, counts = np.unique(good["n"], return_inverse=True, return_counts=True)
    marks = np.bincount(places, (good["flags"] & REDELIVERED) != 0, len(numbers)).astype(np.int64)
    again = counts - 1
    return QueueCheck(
        name,
        expected=len(expected),
        received=len(np.intersect1d(numbers, expected, assume_unique=True)),
        redelivered=int(marks.sum()),
        again=int(again.sum()),
        missing=len(np.setdiff1d(expected, numbers, assume_unique=True)),
        foreign=len(np.setdiff1d(numbers, expected, assume_unique=True)) + len(rows) - len(good),
        doubled=int(np.maximum(again - marks, 0).sum()),
    )


def read_topic(topic: Topic) -> NDArray[np.int64]:
    """The record numbers of all messages of a topic; -1 for a body that has none."""
    decoder = msgspec.json.Decoder(_Numbered)
    numbers: list[int] = []
    for queue in range(topic.queues):
        at, end = topic.offsets(queue)
        while at < end:
            batch = topic.read_arrow(queue, at, end)
            for body in batch.column("value").to_pylist():
                try:
                    numbers.append(decoder.decode(body).n)
                except msgspec.MsgspecError:
                    numbers.append(-1)
            at = batch.column("offset")[-1].as_py() + 1
    return np.array(numbers, np.int64)


def check_topic(name: str, expected: NDArray[np.int64], found: NDArray[np.int64]) -> QueueCheck:
    """Compare what is in a topic with what has to be: a topic is not acked, so nothing may be there twice."""
    numbers, counts = np.unique(found, return_counts=True)
    return QueueCheck(
        name,
        expected=len(expected),
        received=len(np.intersect1d(numbers, expected, assume_unique=True)),
        missing=len(np.setdiff1d(expected, numbers, assume_unique=True)),
        foreign=len(np.setdiff1d(numbers, expected, assume_unique=True)),
        doubled=int((counts - 1).sum()),
    )


def check_groups(direct: Direct, rows: list[Row], where: str) -> list[str]:
    """Compare result rows with the direct computation; the differences in words."""
    problems = []
    found: dict[tuple[str, int | None], Row] = {}
    for row in rows:
        key = (row.key, row.hour)
        other = found.setdefault(key, row)
        if other != row:
            problems.append(f"{where}: group {key} came twice, and differs")
    problems += [f"{where}: group {key} is missing" for key in direct.groups.keys() - found.keys()]
    for key, row in found.items():
        group = direct.groups.get(key)
        if group is None:
            problems.append(f"{where}: there is no group {key} in the file")
            continue
        problems += [f"{where}: group {key}: {text}" for text in _differences(group, row, direct.whole_numbers)]
    return problems


def _differences(group: Group, row: Row, whole_numbers: bool) -> list[str]:
    exact = [
        ("messages", group.messages, row.messages),
        ("sum of record numbers", group.n_sum, row.n_sum),
        ("values", group.present, row.present),
    ]
    near = [("95th percentile", group.value_p95, row.value_p95)]
    sums = [("sum", group.value_sum, row.value_sum or 0.0), ("mean", group.value_mean, row.value_mean)]
    (exact if whole_numbers else near).extend(sums)  # type: ignore[arg-type]
    found = [f"{name} is {theirs}, and {ours} in the file" for name, ours, theirs in exact if ours != theirs]
    for name, a, b in near:
        if (a is None) != (b is None) or (
            a is not None and b is not None and not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        ):
            found.append(f"{name} is {b}, and {a} in the file")
    return found


def read_parquet(path: Path) -> list[Row]:
    """Return the rows of the Parquet files."""
    return [Row(**row) for row in pq.read_table(path.resolve()).to_pylist()]


def compare(
    direct: Direct,
    records: dict[str, NDArray[np.void]],
    topics: dict[str, NDArray[np.int64]],
    report: list[Row],
    parquet: list[Row],
) -> Check:
    """Check everything: each consumed queue, the topics, the report queue and the Parquet files."""
    check = Check(groups=len(direct.groups))
    check.topics = [check_topic(name, expected, topics[name]) for name, expected in direct.in_topics.items()]
    for name, rows in records.items():
        check.queues.append(check_queue(name, direct.expected[name], rows))
    check.problems += check_groups(direct, report, "queue report")
    check.problems += check_groups(direct, parquet, "Parquet")
    return check
