"""Goal: what was confirmed of a publish to queues and topics is in both, once, whoever is killed meanwhile. What was
not is in each once or not at all. Who publishes elsewhere does not wait for a topic worker.

Method: real nodes whose topic worker, queue worker and publishers are killed or stand still; then the log is read from
its files by the format alone, and the queues are emptied.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren

from support.real_node import RealNode, frozen
from support.topic_log import bodies, by_queue, log_files, logged
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
ROLE = "topic_worker"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data") as started:
        with warren.attach(started.directory) as node:
            node.declare_exchange("e", "topic")
            for name in ("a", "b"):
                node.bind(node.queue(f"q-{name}"), "e", "#")
                node.topic(f"t-{name}", queues=2)
                node.bind_topic(f"t-{name}", "e", "#")
        yield started


def emptied(node: warren.Node, name: str) -> list[bytes]:
    """All messages of a queue."""
    queue, found = node.queue(name), []
    while messages := queue.get_many(1000, timeout=0.5 * patience() if len(found) else 5.0):
        found += [message.body for message in messages]
        messages[-1].ack(multiple=True)
    return found


def check(running: RealNode, confirmed: set[bytes], sent: set[bytes]) -> None:
    """What was confirmed is everywhere once, and nothing is anywhere that was not sent."""
    with warren.attach(running.directory) as node:
        queues = {name: emptied(node, name) for name in ("q-a", "q-b")}
    topics = {}
    for name in ("t-a", "t-b"):
        records = logged(running.directory, name)
        by_queue(records)
        topics[name] = bodies(records)
    for name, found in (queues | topics).items():
        counts = Counter(found)
        assert counts.keys() <= sent, name
        assert not confirmed - counts.keys(), (name, len(confirmed - counts.keys()))
        assert set(counts.values()) <= {1}, name


class Publisher:
    """Publishes numbers until it is told to end; knows what it sent and what was confirmed."""

    def __init__(self, directory: Path, who: int) -> None:
        self.sent: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.told = threading.Event()
        self.error: BaseException | None = None
        self._directory = directory
        self._who = who
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with warren.attach(self._directory) as node:
                number = 0
                while not self.told.is_set():
                    count = number % 5 + 1
                    batch = [b"%d %d" % (self._who, number + more) for more in range(count)]
                    number += count
                    self.sent |= set(batch)
                    if count == 1:
                        node.publish(batch[0], "e", f"k.{number}", timeout=120 * patience())
                    else:
                        headers = [{"n": number}] * count if count % 2 else None
                        confirm = node.publish_many(batch, "e", "k", headers=headers, wait=False)
                        confirm.wait(120 * patience())
                    self.confirmed |= set(batch)
        except BaseException as error:  # noqa: BLE001 - looked at by `end`
            self.error = error

    def wait_for(self, more: int) -> None:
        """Until so many more are confirmed."""
        wanted = len(self.confirmed) + more
        wait_until(lambda: len(self.confirmed) >= wanted or self.error, 60, what=f"{wanted} confirms")

    def end(self) -> None:
        """End it; raises what it raised."""
        self.told.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def test_workers_that_are_killed_under_load(running: RealNode) -> None:
    publishers = [Publisher(running.directory, who) for who in range(2)]
    try:
        for role in (ROLE, "worker-0", ROLE, "worker-1"):
            for publisher in publishers:
                publisher.wait_for(100)
            running.kill(role)
        for publisher in publishers:
            publisher.wait_for(100)
    finally:
        for publisher in publishers:
            publisher.told.set()
    for publisher in publishers:
        publisher.end()
    check(
        running,
        set().union(*(publisher.confirmed for publisher in publishers)),
        set().union(*(publisher.sent for publisher in publishers)),
    )


KILLED = """
import sys, warren
directory, who = sys.argv[1:]
with warren.attach(directory) as node:
    number = 0
    while True:
        batch = [b"%s %d" % (who.encode(), number + more) for more in range(1 + number % 7)]
        node.publish_many(batch, "e", "k", headers=[{"n": number}] * len(batch))
        number += len(batch)
        print(number, flush=True)
"""


def test_publishers_that_are_killed(running: RealNode, tmp_path: Path) -> None:
    script = tmp_path / "publisher.py"
    script.write_text(KILLED)
    confirmed: set[bytes] = set()
    sent: set[bytes] = set()
    for who in range(4):
        command = [sys.executable, str(script), str(running.directory), str(who)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            assert publisher.stdout is not None
            lines = [publisher.stdout.readline() for _ in range(random.randrange(1, 60))]
            publisher.kill()
            lines += publisher.stdout.read().splitlines()
        done = max(int(line) for line in lines if line.strip().isdigit())
        confirmed |= {b"%d %d" % (who, number) for number in range(done)}
        sent |= {b"%d %d" % (who, number) for number in range(done + 7 * 1000)}
    check(running, confirmed, sent)


def test_a_topic_worker_that_stands_still_holds_up_only_what_goes_to_it(running: RealNode) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        other.queue("alone")
        node.publish(b"1", "e", "k")
        with frozen(running, ROLE):
            confirm = node.publish(b"2", "e", "k", wait=False)
            assert not confirm.done()
            with pytest.raises(warren.TimedOut):
                confirm.wait(0.05)
            with pytest.raises(warren.TimedOut):
                node.publish(b"3", "e", "k", timeout=0.05)
            for number in range(100):
                other.publish(b"%d" % number, "", "alone")
            os.kill(running.pids()[ROLE], signal.SIGKILL)
        confirm.wait(120 * patience())
        node.publish(b"4", "e", "k", timeout=120 * patience())
        assert len(emptied(other, "alone")) == 100
    check(running, {b"1", b"2", b"3", b"4"}, {b"1", b"2", b"3", b"4"})


def test_a_full_ring_of_the_topic_worker_refuses_a_message_everywhere(running: RealNode) -> None:
    """Nothing goes to the queues when there is no room for what goes to the topics: the client waits, and gives up."""
    with warren.attach(running.directory) as node:
        sent: set[bytes] = set()
        with frozen(running, ROLE):
            for number in range(100_000):
                try:
                    node.publish(b"%d" % number, "e", "k", wait=False, timeout=0.2, durability="written")
                except warren.TimedOut:
                    break
                sent.add(b"%d" % number)
            assert 100 < len(sent) < 100_000
            node.publish(b"elsewhere", "", "q-a", timeout=60 * patience())
        node.publish(b"last", "e", "k", timeout=120 * patience())
    with warren.attach(running.directory) as node:
        found = emptied(node, "q-a")
        assert Counter(found) == Counter([*sent, b"elsewhere", b"last"])
        assert Counter(emptied(node, "q-b")) == Counter([*sent, b"last"])
    for name in ("t-a", "t-b"):
        assert Counter(bodies(logged(running.directory, name))) == Counter([*sent, b"last"])


def test_topics_and_queues_that_are_deleted_under_load(running: RealNode) -> None:
    """A publisher learns that one of them was deleted, or its message is in the other."""
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        ended = threading.Event()
        wrong: list[BaseException] = []
        confirmed: list[bytes] = []

        def publish() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                try:
                    node.publish(b"%d" % number, "e", "k")
                except (warren.TopicNotFound, warren.QueueNotFound):
                    continue
                except BaseException as error:  # noqa: BLE001 - looked at below
                    wrong.append(error)
                    return
                confirmed.append(b"%d" % number)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            for _ in range(4):
                wanted = len(confirmed) + 20
                wait_until(lambda wanted=wanted: len(confirmed) >= wanted or wrong, 60, what="confirms")  # type: ignore[misc]
                other.topic("t-a").delete()
                other.bind_topic(other.topic("t-a", queues=2), "e", "#")
                other.delete_queue("q-a")
                other.bind(other.queue("q-a"), "e", "#")
        finally:
            ended.set()
            thread.join()
        assert not wrong
        assert set(confirmed) <= set(emptied(other, "q-b"))
    assert set(confirmed) <= set(bodies(logged(running.directory, "t-b")))


def test_a_topic_worker_that_was_given_up(running: RealNode) -> None:
    """Publishes to what a topic is bound to fail, and put nothing into queues; those elsewhere go on."""
    with warren.attach(running.directory) as node:
        alone, bound = node.queue("alone"), node.queue("q-a")
        node.publish(b"1", "e", "k")
        log = min(log_files(running.directory / "topics" / "commitlog"))
        with frozen(running, ROLE):
            os.truncate(log, 100)  # what was confirmed is gone: the next worker does not serve
            os.kill(running.pids()[ROLE], signal.SIGKILL)
        wait_until(lambda: "server_failed" in str(node.status()["alarm_details"]), 20, what="the alarm")
        for _ in range(3):
            with pytest.raises(warren.PeerLost):
                node.publish(b"2", "e", "k")
            with pytest.raises(warren.PeerLost):
                node.publish_many([b"2"] * 3, "e", "k")
        node.publish(b"3", "", "alone")
        assert emptied(node, bound.name) == [b"1"]
        assert emptied(node, alone.name) == [b"3"]
        node.unbind_topic("t-a", "e", "#")
        node.unbind_topic("t-b", "e", "#")
        node.publish(b"4", "e", "k")
        assert emptied(node, bound.name) == [b"4"]
