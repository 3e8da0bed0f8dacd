"""What a soak does with topics, each in processes of its own, and how it is judged while it goes on:

    appender   appends to a topic with a retention by size, more in a backlog than that keeps
    member     two readers of a group, which stand still in the backlog, and come and go in the churn
    updater    writes values and tombstones of keys into a compacted topic
    halver     prepares half messages: commits, rolls back, or leaves them to its own on_check

Invariants (what breaks them ends the run)
  a record lies once, where its number says, in the order of its appender; what was confirmed is read by the group, but
  for what it was told as DataLoss
  retention takes nothing while the topic has no more than it may keep, by a message
  what a group has committed never goes back
  a reader of the compacted topic, and a look-up, get the newest value of each key, and none of a key whose newest is a
  tombstone
  a half message that was committed is there once, for the next read; one that was rolled back never; none is left
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import warren
from warren.tools.soak_clock import CALL_TIMEOUT_S, END_TIMEOUT_S, HEAD, Clock, paced, told_to_stop

MIB = 1 << 20
LOG, TABLE, HALVES, GROUP, QUEUES = "soak-log", "soak-table", "soak-halves", "soak-group", 2
#: in the order in which they are told to end
ROLES = ("appender", "updater", "halver", "member")
#: role, name of one
ACTORS = (("member", "0"), ("member", "1"), ("appender", ""), ("updater", ""), ("halver", ""))
#: of a node that the run makes: so that files, passes and questions come within a cycle
SETTINGS: dict[str, Any] = {
    "log_file_bytes": 4 * MIB,
    "topic_ring_bytes": MIB,
    "consume_queue_entries": 20_000,
    "index_slots": 50_000,
    "index_entries": 200_000,
    "retention_check_s": 0.5,
    "compaction_tombstone_s": 3.0,
    "half_after_s": 0.5,
    "half_interval_s": 1.0,
    "half_outcomes_kept": 1000,
}
KEPT_BYTES = 6 * MIB
KEPT_HALVES_S = 60.0  #: not by size: few messages would keep the log of all topics
APPENDED, APPENDED_SIZE = {"steady": 300.0, "burst": 2000.0, "backlog": 4000.0, "churn": 50.0}, 1000
UPDATED, UPDATED_SIZE = {"steady": 300.0, "burst": 2000.0, "backlog": 500.0, "churn": 50.0}, 1000
PREPARED, PREPARED_SIZE = {"steady": 10.0, "burst": 30.0, "backlog": 5.0, "churn": 5.0}, 300
KEYS, TOMBSTONES, LOOK_S, LOOKED_UP = 300, 0.1, 2.0, 5
#: by the last digit of a number; others are left behind
COMMITTED, ROLLED_BACK = range(5), range(5, 8)
RECORD_BYTES_MAX = 2 * APPENDED_SIZE  #: of one message in the log


class Wrong(Exception):
    """An invariant is broken; the message says which."""


def opened(node: warren.Node, name: str) -> warren.Topic:
    """One of the topics."""
    if name == LOG:
        return node.topic(LOG, queues=QUEUES, retention_bytes=KEPT_BYTES)
    if name == TABLE:
        return node.topic(TABLE, queues=QUEUES, compacted=True)
    return node.topic(HALVES, queues=1, retention_s=KEPT_HALVES_S)


def play(role: str, name: str, directory: str, clock: Clock, scale: float) -> dict[str, Any]:
    """One of these processes until SIGTERM, or until something is wrong; what it has to say then."""
    told = told_to_stop()
    with warren.attach(directory, name=f"soak-{role}{name}") as node:
        try:
            if role == "appender":
                return _append(node, clock, scale, told)
            if role == "member":
                return Member(node, comes_and_goes=name == "1").run(clock, told)
            if role == "updater":
                return Updater(node).run(clock, scale, told)
            return Halver(node).run(clock, scale, told)
        except Wrong as wrong:
            return {"complaints": [f"{role}: {wrong}"]}


# ---- a topic with a retention, and its group ------------------------------------------------------------------------


def _append(node: warren.Node, clock: Clock, scale: float, told: list[int]) -> dict[str, Any]:
    topic, incarnation, filler = opened(node, LOG), os.getpid(), bytes(APPENDED_SIZE - HEAD.size)
    numbers, ends = [0] * QUEUES, [-1] * QUEUES
    queue = 0
    for count in paced(clock, APPENDED, scale, told):
        if not count:
            continue
        queue = (queue + 1) % QUEUES
        bodies = [HEAD.pack(incarnation, numbers[queue] + n) + filler for n in range(count)]
        for position in topic.append_many(bodies, queue=queue, timeout=CALL_TIMEOUT_S):
            if ends[queue] not in (-1, position.offset):
                raise Wrong(f"queue {queue}: a message was confirmed at {position.offset}, behind {ends[queue] - 1}")
            ends[queue] = position.offset + 1
        numbers[queue] += count
    return {"appended": sum(numbers)}


class Ranges:
    """Which offsets of queues somebody had: parts that touch are one."""

    def __init__(self) -> None:
        self.parts: dict[int, list[list[int]]] = defaultdict(list)

    def add(self, queue: int, start: int, end: int) -> None:
        """These, too."""
        parts = self.parts[queue]
        if parts and parts[-1][0] <= start <= parts[-1][1]:
            parts[-1][1] = max(parts[-1][1], end)
        else:
            parts.append([start, end])

    def plain(self) -> list[tuple[int, int, int]]:
        """(queue, start, end) of each part."""
        return [(queue, start, end) for queue, parts in self.parts.items() for start, end in parts]


def missing(parts: Iterable[tuple[int, int, int]], first: dict[int, int], ends: dict[int, int]) -> list[str]:
    """What none of these parts has between `first` and `ends` of each queue."""
    found = []
    for queue, end in ends.items():
        at = first.get(queue, 0)
        for _queue, start, stop in sorted(part for part in parts if part[0] == queue):
            if start > at:
                found.append(f"queue {queue}: {at} to {start - 1}")
            at = max(at, stop)
        if at < end:
            found.append(f"queue {queue}: {at} to {end - 1}")
    return found


class Member:
    """A reader of the group; it commits by hand."""

    def __init__(self, node: warren.Node, *, comes_and_goes: bool) -> None:
        self.topic, self.comes_and_goes = opened(node, LOG), comes_and_goes
        self.read = self.gone = 0
        self.had = Ranges()
        self._bases: dict[tuple[int, int], int] = {}  #: queue, incarnation of the appender → offset of its number 0

    def run(self, clock: Clock, told: list[int]) -> dict[str, Any]:
        """Read but in the backlog."""
        done = False
        while not done:
            with self.topic.reader(group=GROUP, start="earliest", commit="manual") as reader:
                done = self._read(reader, clock, told)
            time.sleep(0.1)
        return {"read": self.read, "gone": self.gone, "ranges": self.had.plain()}

    def _read(self, reader: warren.Reader, clock: Clock, told: list[int]) -> bool:
        """Until there is nothing left and the run ends (True), or this reader goes for a moment."""
        began = time.monotonic()
        while True:
            phase = clock.phase(time.monotonic())
            if not told and phase == "backlog":
                time.sleep(0.05)
                continue
            if not told and self.comes_and_goes and phase == "churn" and time.monotonic() - began > 0.5:
                return False
            try:
                records = reader.get_many(1000, timeout=0.2)
            except warren.DataLoss as loss:
                if loss.minimum <= loss.wanted:
                    raise Wrong(f"queue {loss.queue}: {loss.wanted} is gone, and {loss.minimum} is there") from loss
                self.gone += loss.minimum - loss.wanted
                self.had.add(loss.queue, loss.wanted, loss.minimum)
                reader.seek(loss.queue, loss.minimum)
                continue
            except warren.TimedOut:  # nobody got a processor
                continue
            for record in records:
                self._take(record)
            with contextlib.suppress(warren.Fenced, warren.TimedOut):  # the next one gets that again
                if records:
                    reader.commit()
            if told and not records:
                return True

    def _take(self, record: warren.Record) -> None:
        incarnation, number = HEAD.unpack_from(record.body)
        base = self._bases.setdefault((record.queue, incarnation), record.offset - number)
        if record.offset - number != base or len(record.body) != APPENDED_SIZE:
            raise Wrong(
                f"queue {record.queue}: number {number} of {incarnation} with {len(record.body)} bytes lies at "
                f"{record.offset}, and its first one at {base}"
            )
        self.had.add(record.queue, record.offset, record.offset + 1)
        self.read += 1


# ---- a compacted topic ----------------------------------------------------------------------------------------------


class Updater:
    """The only one who writes there, so it knows what a reader has to get."""

    def __init__(self, node: warren.Node) -> None:
        self.topic, self.rng = opened(node, TABLE), random.Random()
        self.newest = self._table()  #: key → body, without those that have none
        self.updates = self.looks = 0

    def run(self, clock: Clock, scale: float, told: list[int]) -> dict[str, Any]:
        """Write, and look each few seconds."""
        incarnation, filler, following = os.getpid(), bytes(UPDATED_SIZE - HEAD.size), 0.0
        for count in paced(clock, UPDATED, scale, told):
            if count:
                keys = [f"k{self.rng.randrange(KEYS)}" for _ in range(count)]
                bodies = [
                    b"" if self.rng.random() < TOMBSTONES else HEAD.pack(incarnation, self.updates + n) + filler
                    for n in range(count)
                ]
                self.topic.append_many(bodies, keys=keys, timeout=CALL_TIMEOUT_S)
                self.newest.update(zip(keys, bodies, strict=True))
                self.updates += count
            if time.monotonic() > following:
                following = time.monotonic() + LOOK_S
                self._look()
        self._look()
        return {"updates": self.updates, "looks": self.looks}

    def _table(self) -> dict[str, bytes]:
        """What a reader from the beginning has in the end."""
        found: dict[str, bytes] = {}
        for queue in range(QUEUES):
            at, end = self.topic.offsets(queue)
            while at < end:
                answer = self.topic.read(queue, at, max=1000)
                found.update((record.key or "", bytes(record.body)) for record in answer.records)
                at = answer.next_offset
        return {key: body for key, body in found.items() if body}

    def _look(self) -> None:
        self.looks += 1
        self.newest = {key: body for key, body in self.newest.items() if body}
        found = self._table()
        for key in sorted(found.keys() | self.newest.keys()):
            _same(key, found.get(key, b""), self.newest.get(key, b""), "a reader")
        for key in self.rng.sample([f"k{number}" for number in range(KEYS)], LOOKED_UP):
            records = self.topic.find(key, limit=1)
            _same(key, bytes(records[0].body) if records else b"", self.newest.get(key, b""), "a look-up")


def _same(key: str, found: bytes, wanted: bytes, how: str) -> None:
    if found != wanted:
        heads = [HEAD.unpack_from(body) if len(body) >= HEAD.size else body for body in (found, wanted)]
        raise Wrong(f"{how} gets {heads[0]!r} of key {key}, and its newest is {heads[1]!r} (b'': none)")


# ---- half messages --------------------------------------------------------------------------------------------------


class Halver:
    """Prepares, decides, reads, and answers for what it left behind."""

    def __init__(self, node: warren.Node) -> None:
        self.incarnation = os.getpid()
        opened(node, HALVES)
        self.topic = node.topic(HALVES, on_check=self._answer)
        self.at = self.topic.offsets(0)[1]
        self.due: set[int] = set()  #: committed, and not read yet
        self.left: set[int] = set()  #: left behind, to be committed by an answer, and not read yet
        self.halves = self.answered = 0

    def run(self, clock: Clock, scale: float, told: list[int]) -> dict[str, Any]:
        """Prepare and finish, and read what became of it."""
        filler = bytes(PREPARED_SIZE - HEAD.size)
        for count in paced(clock, PREPARED, scale, told):
            for _ in range(count):
                number = self.halves
                self.halves += 1
                self._decide(number, HEAD.pack(self.incarnation, number) + filler)
            if count or self.left:
                self._read()
        deadline = time.monotonic() + END_TIMEOUT_S / 2
        while left := self.topic.halves():
            if time.monotonic() > deadline:
                raise Wrong(
                    f"{len(left)} half messages are pending at the end, the first asked for {left[0].asked} times"
                )
            time.sleep(0.05)
        self._read()
        if self.left:
            raise Wrong(f"{len(self.left)} half messages were answered for with commit, and are not there: {self.left}")
        return {"halves": self.halves, "answered": self.answered}

    def _decide(self, number: int, body: bytes) -> None:
        fate = number % 10
        if fate not in COMMITTED and fate not in ROLLED_BACK and fate % 2:
            self.left.add(number)  # before it can be asked for
        half = self.topic.prepare(body, key=f"h{number}", timeout=CALL_TIMEOUT_S)
        if fate in COMMITTED:
            half.commit(timeout=CALL_TIMEOUT_S)
            self.due.add(number)
        elif fate in ROLLED_BACK:
            half.rollback(timeout=CALL_TIMEOUT_S)

    def _answer(self, left: warren.HalfMessage) -> bool | None:
        """The first question about one is answered with "unknown". What an earlier run left is rolled back."""
        incarnation, number = HEAD.unpack_from(left.body)
        if incarnation != self.incarnation:
            return False
        if number % 10 in COMMITTED or number % 10 in ROLLED_BACK:
            return None  # it is about to be decided
        if left.asked < 2 and number % 4 == 0:
            return None
        self.answered += 1
        return bool(number % 2)

    def _read(self) -> None:
        """All that came; what was committed has to be there."""
        while True:
            answer = self.topic.read(0, self.at, max=1000)
            for record in answer.records:
                if record.offset != self.at:
                    raise Wrong(f"queue 0 of {HALVES} goes on at {record.offset}, behind {self.at - 1}")
                self.at += 1
                incarnation, number = HEAD.unpack_from(record.body)
                if incarnation != self.incarnation:
                    continue
                if number in self.due:
                    self.due.discard(number)
                elif number in self.left:
                    self.left.discard(number)
                else:
                    raise Wrong(f"half message {number} came twice, or without a commit, at {record.offset}")
            if not answer.records:
                break
        if self.due:
            raise Wrong(f"half messages {sorted(self.due)[:9]} were committed, and are not there")


# ---- the judge of the whole -----------------------------------------------------------------------------------------


class Judge:
    """In the process of the soak: looks at each sample, and adds up at the end."""

    def __init__(self, node: warren.Node, disk_forced: float) -> None:
        self.topic = opened(node, LOG)
        for name in (TABLE, HALVES):
            opened(node, name)
        self._disk_forced = disk_forced
        self._committed: dict[int, int] = {}
        self._first = {queue: self.topic.offsets(queue)[0] for queue in range(QUEUES)}
        with contextlib.suppress(warren.UsageError):  # of an earlier run
            for row in self.topic.group(GROUP)["queues"]:
                self._first[row["queue"]] = max(self._first[row["queue"]], row["committed"] or 0)
        self._parts: list[tuple[int, int, int]] = []

    def look(self, node: warren.Node, directory: Path) -> list[str]:
        """What is wrong now."""
        gone = sum(self.topic.offsets(queue)[0] for queue in range(QUEUES))
        (row,) = (row for row in node.status()["topics"] if row["name"] == LOG)
        usage = shutil.disk_usage(directory)
        judged = usage.used / (usage.used + usage.free) < self._disk_forced - 0.02
        return (kept(gone, row["bytes"]) if judged else []) + self._look_at_group()

    def _look_at_group(self) -> list[str]:
        try:
            rows = self.topic.group(GROUP)["queues"]
        except (warren.UsageError, warren.TimedOut, warren.PeerLost):  # no member has come yet
            return []
        found = []
        for row in rows:
            queue, committed = row["queue"], row["committed"] or 0
            if committed < self._committed.get(queue, 0):
                found.append(f"group: queue {queue} is committed up to {committed}, after {self._committed[queue]}")
            self._committed[queue] = committed
        return found

    def take(self, said: dict[str, Any]) -> list[str]:
        """What a process says at its end, as far as it is no number to be added up."""
        self._parts += [tuple(part) for part in said.pop("ranges", [])]
        return list(said.pop("complaints", []))

    def end(self) -> list[str]:
        """The group has read what was confirmed, but for what it was told to be gone."""
        ends = {queue: self.topic.offsets(queue)[1] for queue in range(QUEUES)}
        return [f"group: no member had {text}" for text in missing(self._parts, self._first, ends)]


def kept(gone: int, left_bytes: int) -> list[str]:
    """Messages of the topic with a retention went, and what is left is less than may be kept?"""
    if not gone or left_bytes + RECORD_BYTES_MAX >= KEPT_BYTES:
        return []
    return [f"retention: {gone:,} messages went; {left_bytes:,} bytes are left, and {KEPT_BYTES:,} may be kept"]
