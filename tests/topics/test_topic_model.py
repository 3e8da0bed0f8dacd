"""Topics against lists: whatever is appended, read, looked up, deleted and made again in whatever order, a topic
answers as the lists of its messages do.

Goal: offsets and statuses, ranges, tag filters, times (both boundaries), keys with a time range and a limit, ids,
Arrow, deletion, over files that roll and over deaths of the topic worker. Method: a Hypothesis state machine over one
real node with small files; the model keeps for each queue the list of what was appended. WARREN_MACHINE_EXAMPLES makes
it try more.
"""

import os
import signal
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import warren
from warren.tools.crash.victims import Node, send
from warren.workers.faces.topic_scans import ReadStatus

from support.real_node import RealNode

SETTINGS: dict[str, Any] = {
    "workers": 1,
    "file_bytes": 1 << 20,
    "arena_bytes": 1 << 20,
    "message_bytes_max": 100_000,
    "log_file_bytes": 1 << 20,
    "topic_ring_bytes": 256 << 10,
    "consume_queue_entries": 7,
    "index_slots": 3,
    "index_entries": 11,
}
TIMEOUT_S = 60.0
#: some have the hash of another: a look-up by one of them never finds the other's
KEYS = ("Aa", "BB", "k1", "k2", "polygenelubricants", "ключ")
TAGS = ("Aa", "BB", "UA")
LIMIT = 1 << 20
EXAMPLES, STEPS = 12, 40

keys_of = st.lists(st.sampled_from(KEYS), max_size=2, unique=True)
tags_of = st.none() | st.sampled_from(TAGS)
messages = st.lists(st.tuples(keys_of, tags_of, st.sampled_from((0, 1, 100, 5000))), min_size=1, max_size=12)
places = st.integers(0, 3)
anywhere = st.integers(0, 1 << 20)


@dataclass(frozen=True)
class Kept:
    """A message of the model."""

    queue: int
    offset: int
    position: int
    id: str
    stored: int
    keys: tuple[str, ...]
    tag: str | None
    body: bytes


class Home:
    """The node of all examples."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.public = warren.attach(directory, name="model")
        self.kills = self.steps = self.topics = 0

    def kill_worker(self) -> None:
        """kill -9 of the topic worker, if it is not just being restarted, or has died too often."""
        node = Node(self.directory)
        try:
            victim = node.find("topics")
            if victim is not None and self.kills < 4 and send(victim, signal.SIGKILL):
                self.kills += 1
        finally:
            node.superblock.close()


home: Home | None = None


def kept_of(record: warren.Record) -> Kept:
    return Kept(
        record.queue, record.offset, record.physical_offset, record.message_id, record.timestamp, tuple(record.keys),
        record.tag, bytes(record.body),
    )  # fmt: skip


class TopicMachine(RuleBasedStateMachine):
    """One example: a topic of its own."""

    def __init__(self) -> None:
        super().__init__()
        assert home is not None
        self.home = home
        home.topics += 1
        self.name = f"model-{home.topics}"
        self.gone: list[Kept] = []
        self.counter = 0

    @initialize(queues=st.integers(1, 3))
    def begin(self, queues: int) -> None:
        self._declare(queues)

    def _declare(self, queues: int) -> None:
        self.topic = self.home.public.topic(self.name, queues=queues)
        self.queues: list[list[Kept]] = [[] for _ in range(queues)]

    def _queue(self, place: int) -> int:
        return place % len(self.queues)

    def _one(self, at: int) -> Kept | None:
        everything = [kept for queue in self.queues for kept in queue]
        return everything[at % len(everything)] if everything else None

    # -- changes --------------------------------------------------------------------------------------------------

    @rule(
        content=messages,
        place=st.none() | places,
        level=st.sampled_from(("none", "written", "synced")),
        together=st.booleans(),
    )
    def append(
        self, content: list[tuple[list[str], str | None, int]], place: int | None, level: Any, together: bool
    ) -> None:
        self.home.steps += 1
        bodies = []
        for _keys, _tag, size in content:
            self.counter += 1
            bodies.append(b"%d " % self.counter + bytes([self.counter % 251]) * size)
        keys = [list(keys) or None for keys, _tag, _size in content]
        tags = [tag for _keys, tag, _size in content]
        queue = None if place is None else self._queue(place)
        append = self.topic.append_many
        if together:
            positions = append(bodies, keys, tags, queue=queue, durability=level, timeout=TIMEOUT_S)
        else:
            confirms = [
                self.topic.append(body, key, tag, queue=queue, durability=level, wait=False, timeout=TIMEOUT_S)
                for body, key, tag in zip(bodies, keys, tags, strict=True)
            ]
            positions = [confirm.result(TIMEOUT_S) for confirm in confirms]
        for position, key, tag, body in zip(positions, keys, tags, bodies, strict=True):
            there = self.queues[position.queue]
            assert position.offset == len(there)
            assert queue is None or position.queue == queue
            if key is not None and queue is None:
                assert position.queue == self.topic.queue_of(key[0])
            read = self.topic.read(position.queue, position.offset, max=1, timeout=TIMEOUT_S)
            (record,) = read.records
            found = kept_of(record)
            assert (found.queue, found.offset) == (position.queue, position.offset)
            assert (found.keys, found.tag, found.body) == (tuple(key or ()), tag, body)
            if level != "none":
                assert (found.position, found.id) == (position.physical_offset, position.message_id)
            assert not there or there[-1].stored <= found.stored
            there.append(found)

    @rule(queues=st.integers(1, 3))
    def delete_and_make_again(self, queues: int) -> None:
        self.home.steps += 1
        self.gone += [kept for queue in self.queues for kept in queue][-5:]
        self.topic.delete()
        self._declare(queues)

    @rule(dice=st.integers(1, 6))
    def kill_the_worker(self, dice: int) -> None:
        if dice == 6:
            self.home.kill_worker()

    # -- looks ----------------------------------------------------------------------------------------------------

    @rule(place=places, at=anywhere, most=st.integers(1, 20))
    def read(self, place: int, at: int, most: int) -> None:
        queue = self._queue(place)
        there = self.queues[queue]
        offset = at % (len(there) + 3)
        found = self.topic.read(queue, offset, max=most)
        wanted = there[offset : offset + most]
        assert [kept_of(record) for record in found.records] == wanted
        assert (found.min_offset, found.max_offset) == (0, len(there))
        if wanted:
            assert (found.status, found.next_offset) == (ReadStatus.FOUND, offset + len(wanted))
        elif not there:
            assert (found.status, found.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        elif offset == len(there):
            assert (found.status, found.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, offset)
        else:
            assert (found.status, found.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, len(there))

    @rule(place=places, at=anywhere, most_bytes=st.sampled_from((1, 200, 6000, 1 << 20)))
    def read_bytes(self, place: int, at: int, most_bytes: int) -> None:
        """One comes whatever its size, then as many as fit, and none is left out."""
        queue = self._queue(place)
        there = self.queues[queue]
        if not there:
            return
        offset = at % len(there)
        found = self.topic.read(queue, offset, max=100, max_bytes=most_bytes)
        assert len(found.records) >= 1
        assert [kept_of(record) for record in found.records] == there[offset : found.next_offset]
        bodies = sum(len(record.body) for record in found.records[1:])
        assert bodies <= most_bytes

    @rule(
        place=places,
        at=anywhere,
        most=st.integers(1, 5),
        tags=st.lists(st.sampled_from((*TAGS, "Bb")), min_size=1, max_size=2),
    )
    def read_tags(self, place: int, at: int, most: int, tags: list[str]) -> None:
        queue = self._queue(place)
        there = self.queues[queue]
        if not there:
            return
        offset = at % len(there)
        found = self.topic.read(queue, offset, max=most, tag=tags)
        wanted = [kept for kept in there[offset:] if kept.tag in tags][:most]
        assert [kept_of(record) for record in found.records] == wanted
        if wanted:
            assert found.status == ReadStatus.FOUND
            assert wanted[-1].offset < found.next_offset <= len(there)
            assert not any(kept.tag in tags for kept in there[wanted[-1].offset + 1 : found.next_offset])
        else:
            assert (found.status, found.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, len(there))

    @rule(place=places, at=anywhere, beside=st.integers(-2, 2))
    def times(self, place: int, at: int, beside: int) -> None:
        queue = self._queue(place)
        stored = [kept.stored for kept in self.queues[queue]]
        when = (stored[at % len(stored)] if stored else 1_700_000_000_000) + beside
        assert self.topic.offset_at(queue, when) == bisect_left(stored, when)
        last = bisect_right(stored, when) - 1
        assert self.topic.offset_at(queue, when, "upper") == (last if last >= 0 else None)

    @rule(
        key=st.sampled_from((*KEYS, "nobody")),
        since=st.none() | anywhere,
        until=st.none() | anywhere,
        limit=st.sampled_from((1, 3, LIMIT)),
    )
    def find(self, key: str, since: int | None, until: int | None, limit: int) -> None:
        chosen = [self._one(at) if at is not None else None for at in (since, until)]
        low, high = (kept.stored if kept is not None else None for kept in chosen)
        wanted = sorted(
            (
                kept
                for queue in self.queues
                for kept in queue
                if key in kept.keys and (low is None or kept.stored >= low) and (high is None or kept.stored <= high)
            ),
            key=lambda kept: -kept.position,
        )[:limit]
        found = self.topic.find(key, since=low, until=high, limit=limit)
        assert [kept_of(record) for record in found] == wanted

    @rule(at=anywhere)
    def find_id(self, at: int) -> None:
        kept = self._one(at)
        if kept is not None:
            found = self.topic.find_id(kept.id)
            assert found is not None
            assert kept_of(found) == kept
            for position in (kept.position + beside for beside in (-1, 1, 7)):
                if position >= 0:  # the log's first record lies at 0
                    assert self.topic.find_id(f"{kept.id[:-16]}{position:016X}") is None
        for gone in self.gone[-3:]:
            assert self.topic.find_id(gone.id) is None

    @rule(place=places, at=anywhere, count=st.integers(0, 20))
    def arrow(self, place: int, at: int, count: int) -> None:
        queue = self._queue(place)
        there = self.queues[queue]
        start = at % (len(there) + 1)
        wanted = there[start : start + count]
        batch = self.topic.read_arrow(queue, start, start + count)
        assert batch["offset"].to_pylist() == [kept.offset for kept in wanted]
        assert batch["value"].to_pylist() == [kept.body for kept in wanted]
        assert batch["tag"].to_pylist() == [kept.tag for kept in wanted]
        assert batch["key"].to_pylist() == [" ".join(kept.keys) or None for kept in wanted]
        assert batch["message_id"].to_pylist() == [kept.id for kept in wanted]

    @rule()
    def bounds(self) -> None:
        assert [self.topic.offsets(queue) for queue in range(len(self.queues))] == [
            (0, len(there)) for there in self.queues
        ]

    def teardown(self) -> None:
        """All of it once more; then it goes, and nothing of it is found."""
        if not hasattr(self, "topic"):
            return
        for queue, there in enumerate(self.queues):
            read = self.topic.read(queue, 0, max=len(there) + 1, max_bytes=1 << 26)
            assert [kept_of(record) for record in read.records] == there
        self.topic.delete()
        with pytest.raises(warren.TopicNotFound):
            self.home.public.topic(self.name, create=False)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Home]:
    global home
    with RealNode(tmp_path / "node", **SETTINGS):
        home = Home(tmp_path / "node")
        try:
            yield home
        finally:
            home.public.close()
            home = None


@pytest.mark.integration
def test_topics_are_what_the_lists_say(running: Home, seed: int) -> None:
    examples = int(os.environ.get("WARREN_MACHINE_EXAMPLES", EXAMPLES))
    run_state_machine_as_test(
        hypothesis.seed(seed)(TopicMachine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
    assert running.steps > examples
