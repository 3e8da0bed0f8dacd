"""Goal: what an append confirmed is in the log once, in order, where its position says, whoever is killed meanwhile,
and however full the disk is. What was not confirmed is there once or not at all.

Method: a real node, whose topic worker, producers and all of it are killed; then the log's files are read by the format
alone, and every offset of every queue must be there.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren

from support.real_node import RealNode, frozen
from support.small_disk import LIMIT, Disk, alarm_off, filled
from support.topic_log import by_queue, holds, log_files, logged
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
#: the topic worker among the processes of a node
ROLE = "topic_worker"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as started:
        yield started


class Producer:
    """Appends numbers until it is told to end, single ones and batches; knows what was confirmed."""

    def __init__(self, topic: warren.Topic, who: int) -> None:
        self.who = who
        self.positions: dict[bytes, warren.Position] = {}
        self.told = threading.Event()
        self.error: BaseException | None = None
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            number = 0
            under_way: list[tuple[list[bytes], Any]] = []
            while not self.told.is_set():
                bodies = [b"%d %d" % (self.who, number + more) for more in range(1 if number % 3 else 7)]
                number += len(bodies)
                level: Any = ("written", "synced")[number % 2]
                if len(bodies) == 1:
                    confirm: Any = self._topic.append(bodies[0], key=f"k{number % 5}", durability=level, wait=False)
                else:
                    confirm = self._topic.append_many(bodies, queue=self.who, durability=level, wait=False)
                under_way.append((bodies, confirm))
                if len(under_way) > 200:
                    self._note(*under_way.pop(0))
            for sent in under_way:
                self._note(*sent)
        except BaseException as error:  # noqa: BLE001 - looked at by `end`
            self.error = error

    def _note(self, bodies: list[bytes], confirm: Any) -> None:
        result = confirm.result(120 * patience())
        positions = result if isinstance(result, list) else [result]
        self.positions.update(zip(bodies, positions, strict=True))

    def wait_for(self, more: int) -> None:
        """Until so many more are confirmed."""
        wanted = len(self.positions) + more
        wait_until(lambda: len(self.positions) >= wanted or self.error, 60, what=f"{wanted} confirms")

    def end(self) -> dict[bytes, warren.Position]:
        """What was confirmed, all of it."""
        self.told.set()
        self._thread.join(240 * patience())
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.positions


def check(directory: Path, name: str, confirmed: dict[bytes, warren.Position]) -> None:
    """Each that was confirmed is there once, at its place; each that is there is in the order in which it was sent."""
    found = logged(directory, name)
    bodies = [record.body for record in found]
    assert len(set(bodies)) == len(bodies), "one is there twice"
    holds(directory, name, list(confirmed.values()), list(confirmed))
    for records in by_queue(found).values():
        last: dict[int, int] = {}
        for record in records:
            who, number = map(int, record.body.split())
            assert number > last.get(who, -1)
            last[who] = number


def test_a_topic_worker_that_is_killed_under_load(running: RealNode) -> None:
    with contextlib.ExitStack() as held:
        nodes = [held.enter_context(warren.attach(running.directory)) for _ in range(3)]
        producers = [Producer(node.topic("t", queues=3), who) for who, node in enumerate(nodes)]
        for _ in range(3):
            for producer in producers:
                producer.wait_for(500)
            running.kill(ROLE)
        for producer in producers:
            producer.wait_for(500)
        confirmed: dict[bytes, warren.Position] = {}
        for producer in producers:
            confirmed |= producer.end()
    assert len(confirmed) >= 6000
    check(running.directory, "t", confirmed)


def test_waits_go_on_with_the_next_worker(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        topic = node.topic("t", queues=1)
        topic.append(b"0 0")
        with frozen(running, ROLE):
            confirms = [topic.append(b"0 %d" % number, wait=False) for number in range(1, 500)]
            with pytest.raises(warren.TimedOut, match="topic 't'"):
                topic.append(b"0 500", timeout=0.05)
            assert not any(confirm.done() for confirm in confirms)
            old = running.pids()[ROLE]
            os.kill(old, signal.SIGKILL)
        positions = [confirm.result(120 * patience()) for confirm in confirms]
        assert [position.offset for position in positions] == list(range(1, 500))
        assert topic.append(b"0 501").offset in (500, 501)
    check(running.directory, "t", {b"0 %d" % number: position for number, position in enumerate(positions, 1)})


def test_a_node_that_is_killed_whole(running: RealNode) -> None:
    node = warren.attach(running.directory)
    producer = Producer(node.topic("t", queues=2), 0)
    producer.wait_for(2000)
    running.kill_all()
    known = dict(producer.positions)
    running.start()
    with contextlib.suppress(warren.Error):
        producer.end()
    with contextlib.suppress(warren.Error):
        node.close()
    with warren.attach(running.directory) as other:
        topic = other.topic("t", create=False)
        end = {queue: topic.append(b"9 %d" % queue, queue=queue) for queue in range(2)}
        found = by_queue(logged(running.directory, "t"))
        assert {queue: position.offset for queue, position in end.items()} == {
            queue: next(record.queue_offset for record in records if record.body == b"9 %d" % queue)
            for queue, records in found.items()
        }
    assert len(known) >= 2000
    check(running.directory, "t", known | producer.positions)


KILLED = """
import sys
import warren

with warren.attach(sys.argv[1]) as node:
    topic, who, number = node.topic("t", queues=2), int(sys.argv[2]), 0
    under_way = []
    while True:
        many = [b"%d %d" % (who, number + more) for more in range(1 + number % 9)]
        number += len(many)
        under_way.append((many, topic.append_many(many, queue=0, durability="written", wait=False)))
        if len(under_way) > 20:
            bodies, confirm = under_way.pop(0)
            for body, position in zip(bodies, confirm.result(), strict=True):
                print(body.decode(), position.queue, position.offset, position.physical_offset, position.message_id)
            sys.stdout.flush()
"""


def test_a_producer_that_is_killed_leaves_nothing_that_stalls_anybody(running: RealNode, tmp_path: Path) -> None:
    script = tmp_path / "producer.py"
    script.write_text(KILLED)
    confirmed: dict[bytes, warren.Position] = {}
    with warren.attach(running.directory) as node:
        topic = node.topic("t", queues=2)
        for who in range(6):
            command = [sys.executable, str(script), str(running.directory), str(who)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as producer:
                assert producer.stdout is not None
                lines = [producer.stdout.readline() for _ in range(random.randrange(1, 400))]
                producer.kill()
                lines += producer.stdout.read().splitlines()
            for line in lines:
                words = line.split()
                if len(words) == 6 and len(words[5]) == 32:  # the last one may be torn
                    numbers = [int(word) for word in words[2:5]]
                    confirmed[f"{words[0]} {words[1]}".encode()] = warren.Position(*numbers, words[5])
            assert topic.append(b"100 %d" % who, queue=0).queue == 0
        whole = logged(running.directory, "t")
    assert len(confirmed) > 100
    check(running.directory, "t", confirmed)
    # a batch of somebody who is dead is there as a whole, or not at all
    for who in range(6):
        numbers = [int(record.body.split()[1]) for record in whole if record.body.startswith(b"%d " % who)]
        assert numbers == list(range(len(numbers)))
        sums = [0]
        while sums[-1] < len(numbers):
            sums.append(sums[-1] + 1 + sums[-1] % 9)
        assert sums[-1] == len(numbers)


def test_a_full_disk_blocks_appends_and_loses_nothing(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with (
        RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT, log_file_bytes=1 << 20) as running,
        warren.attach(disk.directory) as node,
    ):
        topic = node.topic("t", queues=1)
        sent = [b"0 %d" % number for number in range(100)]
        positions = topic.append_many(sent)
        under_way = [topic.append(b"0 %d" % (100 + number), wait=False) for number in range(50)]
        filled(disk)
        refusals: list[Callable[[], Any]] = [
            lambda: topic.append(b"no", timeout=0.1),
            lambda: topic.append(b"no", timeout=0.1, wait=False),
            lambda: topic.append_many([b"no"] * 3, timeout=0.1),
        ]
        for refused in refusals:
            with pytest.raises(warren.DiskFull, match="publishing is blocked"):
                refused()
        disk.empty()
        positions += [confirm.result(60 * patience()) for confirm in under_way]
        alarm_off(running.directory)
        positions.append(topic.append(b"0 150"))
    assert [position.offset for position in positions] == list(range(151))
    check(disk.directory, "t", {b"0 %d" % number: position for number, position in enumerate(positions)})


def test_small_files_and_a_small_ring(tmp_path: Path) -> None:
    settings = {"log_file_bytes": 1 << 20, "topic_ring_bytes": 1 << 16}
    with RealNode(tmp_path / "data", workers=1, **settings) as running, warren.attach(running.directory) as node:
        topic = node.topic("t", queues=2)
        sent = [b"0 %d" % number + bytes(random.randrange(2000)) for number in range(3000)]
        positions = topic.append_many(sent)
        with pytest.raises(warren.MessageTooLarge, match="topic_ring_bytes"):
            topic.append(bytes(100_000))
        with pytest.raises(warren.MessageTooLarge, match="topic_ring_bytes"):
            topic.append(bytes(100_000), wait=False).result(60 * patience())
        holds(running.directory, "t", positions, sent)
        assert len(log_files(running.directory / "topics" / "commitlog")) >= 3


def test_what_is_under_way_when_the_client_closes_is_appended(running: RealNode) -> None:
    node = warren.attach(running.directory)
    topic = node.topic("t", queues=1)
    confirms = [topic.append(b"0 %d" % number, wait=False) for number in range(1000)]
    node.close()
    positions = [confirm.result(0) for confirm in confirms]
    assert [position.offset for position in positions] == list(range(1000))
    check(running.directory, "t", {b"0 %d" % number: position for number, position in enumerate(positions)})


def test_a_topic_that_is_deleted_under_load(running: RealNode) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        topic = node.topic("t", queues=1)
        topic.append(b"0 0")
        ended = threading.Event()
        refused: list[BaseException] = []

        def append() -> None:
            while not ended.is_set():
                try:
                    topic.append_many([b"x"] * 10)
                except warren.TopicNotFound as error:
                    refused.append(error)
                    return

        threads = [threading.Thread(target=append) for _ in range(3)]
        for thread in threads:
            thread.start()
        other.topic("t").delete()
        try:
            for thread in threads:
                thread.join(60 * patience())
        finally:
            ended.set()
        assert len(refused) == 3
        other.topic("t", queues=1)
        assert topic.append(b"new").offset == 0
