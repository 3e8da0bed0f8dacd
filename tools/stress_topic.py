"""What `warren stress --topic` does otherwise than with a queue: producers append to a topic, and the consumers are the
members of a group. A message has one position in a topic, for ever, so more is known of it than in a queue:

    lost        confirmed, and read by nobody of the group: must be 0
    doubled     the same message lies at two offsets: must be 0
    foreign     read and never sent, with a wrong body, or read elsewhere than its confirm said: must be 0

A message may be read again, at the same offset, by who has a queue after a member that had not committed it yet.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warren.engine.errors import Fenced, PeerLost, TimedOut, UsageError

if TYPE_CHECKING:
    from warren.tools.stress import Verdict

TOPIC = GROUP = "stress"
#: confirmed: producer, incarnation, first number, how many, how long the call took, and where they lie
APPENDED = np.dtype(
    [
        ("producer", "<u4"),
        ("incarnation", "<u4"),
        ("first", "<u8"),
        ("count", "<u4"),
        ("microseconds", "<u4"),
        ("queue", "<u4"),
        ("offset", "<u8"),
    ]
)
#: read by a member; `whole`: the body was what was sent
READ = np.dtype(
    [
        ("producer", "<u4"),
        ("incarnation", "<u4"),
        ("number", "<u8"),
        ("queue", "<u4"),
        ("offset", "<u8"),
        ("whole", "u1"),
    ]
)
KEYS = ("producer", "incarnation", "number")
PLACE = ("queue", "offset")


def opened(node: Any, options: argparse.Namespace) -> Any:
    """The topic of the campaign."""
    return node.topic(TOPIC, queues=options.queues)


def lag(topic: Any) -> int | None:
    """How many messages the group has not committed; None: nobody says so at this moment, or no member has come yet."""
    with contextlib.suppress(PeerLost, TimedOut, UsageError):
        found: int = topic.group(GROUP)["lag"]
        return found
    return None


def runs(positions: Sequence[Any]) -> Iterator[tuple[int, int, int, int]]:
    """Parts of a call that lie together: (number of the first, how many, queue, offset)."""
    begin = 0
    for at in range(1, len(positions) + 1):
        first = positions[begin]
        whole = at < len(positions) and positions[at].queue == first.queue
        if not whole or positions[at].offset != first.offset + at - begin:
            yield begin, at - begin, first.queue, first.offset
            begin = at


def append(topic: Any, bodies: list[bytes], options: argparse.Namespace, number: int, log: int, timeout: float) -> None:
    """One call of a producer, and what was confirmed to it. Raises PeerLost, TimedOut: it counts as not confirmed."""
    began = time.monotonic()
    positions = topic.append_many(bodies, durability=options.durability, timeout=timeout)
    took = min(0xFFFF_FFFF, int((time.monotonic() - began) * 1e6))
    me = options.index, options.incarnation
    rows = [(*me, number + at, count, took, queue, offset) for at, count, queue, offset in runs(positions)]
    os.write(log, np.array(rows, APPENDED).tobytes())


def read(reader: Any, options: argparse.Namespace, log: int, known: Any) -> None:
    """One call of a member; it commits when what it got is written down. `known`: (body, size) → head and whether it
    is whole. Raises what get_many and commit raise.
    """
    records = reader.get_many(options.batch, timeout=0.2)
    if not records:
        return
    rows = np.empty(len(records), READ)
    for i, record in enumerate(records):
        head, whole = known(bytes(record.body), options.size)
        rows[i] = (*head, record.queue, record.offset, whole)
    os.write(log, rows.tobytes())
    with contextlib.suppress(Fenced):  # the next one gets that again
        reader.commit()


def consume(topic: Any, options: argparse.Namespace, log: int, stopping: list[int], known: Any) -> None:
    """A member of the group until it is told to stop."""
    with topic.reader(group=GROUP, start="earliest", commit="manual") as reader:
        while not stopping:
            with contextlib.suppress(PeerLost, TimedOut):
                read(reader, options, log, known)


def values_of(rows: np.ndarray[Any, Any], names: Sequence[str]) -> np.ndarray[Any, Any]:
    """These fields of each row together as one value of bytes: numpy compares such ones ten times as fast as rows."""
    packed = np.empty(len(rows), [(name, rows.dtype[name]) for name in names])
    for name in names:
        packed[name] = rows[name]
    return packed.view(f"S{packed.dtype.itemsize}")


def judge(confirmed: np.ndarray[Any, Any], received: np.ndarray[Any, Any], verdict: Verdict) -> None:
    """Compare what was confirmed with what was read."""
    counts = confirmed["count"].astype(np.int64)
    within = np.arange(int(counts.sum()), dtype=np.uint64)
    within -= np.repeat(np.cumsum(counts) - counts, counts).astype(np.uint64)
    told = np.empty(len(within), [(name, READ[name]) for name in (*KEYS, *PLACE)])
    for name, begin in (
        ("producer", None),
        ("incarnation", None),
        ("queue", None),
        ("number", "first"),
        ("offset", "offset"),
    ):
        told[name] = np.repeat(confirmed[begin or name], counts) + (within if begin else 0)
    came = np.unique(values_of(received, (*KEYS, *PLACE)))
    messages = np.unique(values_of(came.view(told.dtype), KEYS))
    verdict.confirmed = len(told)
    verdict.received = len(messages)
    verdict.redelivered = len(received) - len(came)
    verdict.lost = len(np.setdiff1d(values_of(told, KEYS), messages))
    verdict.doubled = len(came) - len(messages)
    elsewhere = len(np.setdiff1d(values_of(told, (*KEYS, *PLACE)), came)) - verdict.lost
    verdict.foreign = int((received["whole"] == 0).sum()) + elsewhere
    if len(confirmed):
        verdict.longest_put_s = round(float(confirmed["microseconds"].max()) / 1e6, 3)
