"""Goal: groups of readers at a real node: what a client was told is committed outlives a kill of the topic worker, of
the client and of all of the node; queues of a client that is gone go to the others.

Method: a real node; members are clients of this process and of another one, which is killed; they ask the topic worker
by its requests (engine/topics/control.py).
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import warren
from warren.engine.errors import Fenced, PeerLost, TimedOut
from warren.engine.topics import control
from warren.workers.client.client import Client

from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
ROLE = "topic_worker"
QUEUES, MESSAGES = 4, 100


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as node:
        fill(node.directory)
        yield node


def fill(directory: Path) -> None:
    with warren.attach(directory) as node:
        topic = node.topic("flights", queues=QUEUES)
        for queue in range(QUEUES):
            topic.append_many([b"%d" % number for number in range(MESSAGES)], queue=queue)


class Reader:
    """A member of a group: asks until it is answered, as a program would."""

    def __init__(self, directory: Path) -> None:
        self.client = Client(directory, None, 30.0)
        self.topic = self.client.catalog().topics["flights"].id
        self.held: dict[int, int] = {}  # queue → generation

    def sync(self, *, give: bool = True) -> control.Assigned:
        held = list(self.held.items())
        told = self.client.ask_topics(control.SyncGroup(self.topic, "report", 1, held), control.Assigned, 60.0)
        if give and told.give_back:
            request = control.SyncGroup(self.topic, "report", 1, held, released=told.give_back)
            told = self.client.ask_topics(request, control.Assigned, 60.0)
        self.held = {queue: generation for queue, generation, _offset in told.given}
        return told

    def commit(self, offset: int) -> None:
        commits = [(queue, generation, offset) for queue, generation in self.held.items()]
        request = control.CommitOffsets(self.topic, "report", 1, commits)
        self.client.ask_topics(request, control.Done, 60.0 * patience())

    def offsets(self) -> list[int]:
        request = control.DescribeGroup(self.topic, "report")
        return self.client.ask_topics(request, control.Described, 60.0).offsets

    def close(self) -> None:
        self.client.close()


def read_on(directory: Path, told: Connection) -> None:
    """A process that is a member, and says what it has whenever it is asked."""
    reader = Reader(directory)
    while told.recv() is not None:
        reader.sync()
        told.send(reader.held)


def test_commits_outlive_kills_of_the_worker_and_of_all(running: RealNode) -> None:
    reader = Reader(running.directory)
    reader.sync()
    assert set(reader.held) == set(range(QUEUES))
    for number in range(1, 31):
        if number % 10 == 0:
            running.kill(ROLE)
        while True:
            try:
                reader.commit(number)
                break
            except (PeerLost, TimedOut, Fenced):
                reader.sync()  # committing again is committing once
        assert reader.offsets() == [number] * QUEUES
    reader.close()
    running.kill_all()
    with RealNode(running.directory) as again:
        reader = Reader(again.directory)
        assert reader.offsets() == [30] * QUEUES
        reader.close()


def test_queues_of_a_killed_process_go_to_the_others_at_what_was_committed(running: RealNode) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=read_on, args=(running.directory, theirs))
    process.start()
    reader = Reader(running.directory)
    try:
        other: dict[int, int] = {}

        def shared() -> bool:
            nonlocal other
            reader.sync()
            ours.send(True)
            assert ours.poll(60 * patience())
            other = ours.recv()
            return len(other) == len(reader.held) == QUEUES // 2

        wait_until(shared, 60, what="both have half of the queues")
        assert not set(other) & set(reader.held)
        reader.commit(7)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60 * patience())
        wait_until(lambda: len(reader.sync().given) == QUEUES, 60, what="the queues of the killed one")
        offsets = {queue: offset for queue, _generation, offset in reader.sync().given}
        assert offsets == {queue: -1 if queue in other else 7 for queue in range(QUEUES)}
        reader.commit(MESSAGES)
        assert reader.offsets() == [MESSAGES] * QUEUES
    finally:
        reader.close()
        process.kill()
        process.join()


def test_who_was_stopped_and_comes_back_is_fenced(running: RealNode) -> None:
    first, second = Reader(running.directory), Reader(running.directory)
    try:
        first.sync()
        before = dict(first.held)
        second.sync()
        first.sync()
        assert set(second.sync().give_back) == set()
        assert set(second.held) == set(range(QUEUES)) - set(first.held)
        second.commit(50)
        first.held = before
        with pytest.raises(Fenced, match="not this reader's any more"):
            first.commit(10)
        first.sync()
        first.commit(10)
        assert sorted(first.offsets()) == [10, 10, 50, 50]
    finally:
        first.close()
        second.close()
