"""Goal: whatever dies, stands still or comes back, a group's members are handed each message at least once, in order
while a queue is one member's; a queue is one member's at a time; what was not handed out is never committed; who was
stopped for too long may not commit over its successor.

Method: a real node; members are processes that write down what they are handed out before they ask for more. They are
killed and stopped by signals, the topic worker is killed, at random with a seed, and what they wrote is looked at.
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import warren
from warren.engine.topics import control
from warren.workers.faces.topic_reader import ANSWER_S
from warren.workers.process.control import ControlClient

from support.command_line import warren as command
from support.real_node import RealNode, frozen
from support.seeds import new_seed
from support.waiting import kill, patience, wait_until

pytestmark = pytest.mark.integration
QUEUES, MESSAGES = 4, 400
RELEASE_S = 0.5
TIMEOUT = 60 * patience()
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1, group_release_s=RELEASE_S) as node:
        fill(node.directory, MESSAGES)
        yield node


def fill(directory: Path, count: int) -> None:
    with warren.attach(directory) as node:
        topic = node.topic("flights", queues=QUEUES)
        for queue in range(QUEUES):
            topic.append_many([b"%d" % n for n in range(count)], queue=queue)


def described(topic: warren.Topic) -> control.Described:
    client = topic._client
    return client.ask_topics(
        control.DescribeGroup(client.catalog().topics[topic.name].id, "report"), control.Described, TIMEOUT
    )


# -- members as processes ---------------------------------------------------------------------------------------------


def serve(directory: Path, asked: Connection, commit: str) -> None:
    """A member that does what it is asked to."""
    with warren.attach(directory) as node:
        reader = node.topic("flights").reader(group="report", commit=commit, prefetch=20)  # type: ignore[arg-type]
        asked.send(reader.assigned)
        while (what := asked.recv()) is not None:
            try:
                if what == "commit":
                    reader.commit(timeout=TIMEOUT)
                    asked.send("committed")
                else:
                    found = reader.get_many(what, TIMEOUT)
                    asked.send([(record.queue, record.offset) for record in found])
            except warren.Fenced as error:
                asked.send(str(error))
        reader.close()


class Asked:
    """Such a member."""

    def __init__(self, directory: Path, commit: str = "manual") -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(directory, theirs, commit))
        self.process.start()
        self.hear()

    def hear(self) -> object:
        assert self.pipe.poll(TIMEOUT)
        return self.pipe.recv()

    def ask(self, what: object) -> object:
        self.pipe.send(what)
        return self.hear()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def test_who_was_stopped_for_too_long_is_fenced_and_goes_on_with_what_it_has(running: RealNode) -> None:
    member = Asked(running.directory)
    try:
        first = member.ask(20)
        assert isinstance(first, list)
        assert {queue for queue, _offset in first} == set(range(QUEUES))
        member.signal(signal.SIGSTOP)
        with warren.attach(running.directory) as node:
            topic = node.topic("flights")
            with topic.reader(group="report", commit="manual", prefetch=4) as reader:
                taken = reader.get_many(50, TIMEOUT)  # when the other one was waited for
                mine = {record.queue for record in taken}
                assert len(reader.assigned) == QUEUES // 2
                reader.commit()
                before = described(topic).offsets
                member.signal(signal.SIGCONT)
                assert "went to other readers" in str(member.ask("commit"))
                after = described(topic).offsets
                for queue in range(QUEUES):  # it stepped over nobody, and committed what is its own still
                    assert after[queue] == (before[queue] if queue in reader.assigned else 5)
                assert mine <= set(reader.assigned)
                assert member.ask("commit") == "committed"  # of nothing
                theirs = member.ask(20)
                assert isinstance(theirs, list)
                assert {queue for queue, _offset in theirs}.isdisjoint(reader.assigned)
                assert {offset for _queue, offset in theirs} == set(range(5, 15))
                assert member.ask("commit") == "committed"
    finally:
        member.end()


def test_a_killed_worker_costs_a_lone_reader_nothing(running: RealNode) -> None:
    """Without a rebalance nothing comes twice, whatever becomes of the worker."""
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        with topic.reader(group="report", prefetch=10) as reader:
            found: list[tuple[int, int]] = []
            for number in range(QUEUES * MESSAGES):
                if number % 300 == 100:
                    running.kill("topic_worker")
                record = reader.get(TIMEOUT)
                found.append((record.queue, record.offset))
            assert reader.fenced == 0
            reader.commit(timeout=TIMEOUT)
        assert len(set(found)) == len(found) == QUEUES * MESSAGES
        for queue in range(QUEUES):
            assert [offset for of, offset in found if of == queue] == list(range(MESSAGES))
        assert described(topic).offsets == [MESSAGES] * QUEUES


def test_a_worker_that_does_not_come_back_soon_keeps_no_message_back(running: RealNode) -> None:
    """What is read needs no worker, so a reader waits for none, whatever is due to be committed; then all is."""
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        with topic.reader(group="report", prefetch=10) as reader:
            found = {(record.queue, record.offset) for record in reader.get_many(20, timeout=TIMEOUT)}
            worker = running.pids()["topic_worker"]
            with frozen(running, "supervisor"):  # so that nobody restarts it
                kill(worker)
                ends = time.monotonic() + 2 * ANSWER_S
                while time.monotonic() < ends:
                    record = reader.get(timeout=TIMEOUT)
                    found.add((record.queue, record.offset))
                    time.sleep(0.01)
            reader.commit(timeout=TIMEOUT)
            assert sum(described(topic).offsets) == len(found)
            assert reader.fenced == 0


def test_worker_and_member_killed_at_once(running: RealNode) -> None:
    member = Asked(running.directory, "auto")
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        reader = topic.reader(group="report")
        try:
            seen = set()
            while len(reader.assigned) != QUEUES // 2:
                found = member.ask(10)
                assert isinstance(found, list)
                seen |= set(found)
                seen |= {(record.queue, record.offset) for record in reader.get_many(10, 0)}
            member.signal(signal.SIGSTOP)
            member.signal(signal.SIGKILL)
            running.kill("topic_worker")
            while len(seen) < QUEUES * MESSAGES:
                seen |= {(record.queue, record.offset) for record in reader.get_many(100, TIMEOUT)}
            assert reader.assigned == list(range(QUEUES))
        finally:
            reader.close()
            member.end()


def test_all_of_the_node_killed_and_started_again(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        with topic.reader(group="report", prefetch=QUEUES) as reader:
            first = [reader.get(TIMEOUT) for _ in range(100)]
            reader.commit(timeout=TIMEOUT)
            running.kill_all()
            running.start()

            def goes_on() -> warren.Record | None:
                try:
                    return reader.get(1)
                except (warren.PeerLost, warren.ClosedError, warren.TimedOut):
                    return None

            record = wait_until(goes_on, 60, what="a message of the next node")
            assert record is not None
            assert record.offset == len([one for one in first if one.queue == record.queue])


def test_status_tells_of_lags(running: RealNode) -> None:
    """By the snapshot, so within about a second, and of a node whose worker is not asked."""

    def told() -> list[dict[str, object]]:
        with ControlClient(running.directory) as supervisor:
            (row,) = supervisor.call("status", pattern="flights")["topics"]
        found: list[dict[str, object]] = row["groups"]
        return found

    assert told() == []
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        topic.seek_group("b", 50, queue=1)
        topic.seek_group("a", "latest")
        none = {"members": 0, "last_call_s": None}
        both = [{"name": "a", "lag": 0, **none}, {"name": "b", "lag": QUEUES * MESSAGES - 50, **none}]
        wait_until(lambda: told() == both, 30, what="both groups")
        topic.append(b"new", queue=3)
        wait_until(lambda: [row["lag"] for row in told()] == [1, QUEUES * MESSAGES - 49], 30, what="the lag of now")
        topic.delete_group("b")
        wait_until(lambda: len(told()) == 1, 30, what="one group")
    assert "lag" in command("status", running.directory).stdout


# -- at random --------------------------------------------------------------------------------------------------------


def follow(directory: Path, who: int, path: Path, commit: str) -> None:
    """A member that writes down each message that it has, with the generation of its queue, and asks for the next."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with warren.attach(directory) as node:
        reader = node.topic("flights").reader(group="report", commit=commit, prefetch=12)  # type: ignore[arg-type]
        joined(path, os.getpid()).touch()
        count = 0
        while True:
            try:
                record = reader.get()
                place = reader._places.get(record.queue)
                assert place is not None
                os.write(file, b"%d %d %d %d\n" % (who, record.queue, place.generation, record.offset))
                count += 1
                if commit == "manual" and count % 7 == 0:
                    reader.commit(record if count % 2 else None)
            except (warren.Fenced, warren.TimedOut, warren.PeerLost):
                pass  # what it says is tested elsewhere; here it goes on


def joined(path: Path, pid: int) -> Path:
    """A file that is there when a process that writes to `path` is a member."""
    return path.with_name(f"joined-{pid}")


class Members:
    """Members that come and go; each one that comes has another number."""

    def __init__(self, directory: Path, path: Path, random: random.Random) -> None:
        self._directory, self._path, self._random = directory, path, random
        self._number = 0
        self.alive: list[BaseProcess] = []

    def come(self) -> None:
        self._number += 1
        commit = self._random.choice(["auto", "manual"])
        process = SPAWN.Process(target=follow, args=(self._directory, self._number, self._path, commit))
        process.start()
        self.alive.append(process)

    def go(self) -> None:
        process = self.alive.pop(self._random.randrange(len(self.alive)))
        process.kill()
        process.join()
        process.close()

    def have_joined(self) -> bool:
        """All that are alive are members."""
        return all(process.pid is not None and joined(self._path, process.pid).exists() for process in self.alive)

    def any(self) -> BaseProcess:
        """One of them."""
        return self._random.choice(self.alive)

    def end(self) -> None:
        while self.alive:
            self.go()


@pytest.mark.parametrize("worker", [False, True], ids=["members", "worker"])
def test_members_killed_and_stopped_at_random(running: RealNode, tmp_path: Path, worker: bool) -> None:
    """`worker`: so is the topic worker, also together with a member."""
    choose = random.Random(new_seed())
    path = tmp_path / "handed-out"
    path.touch()
    members = Members(running.directory, path, choose)
    ways = ["kill", "stop", "come", *(["worker", "both"] if worker else [])]
    with warren.attach(running.directory) as node:
        topic = node.topic("flights")
        appender = Appender(running.directory)
        try:
            for _ in range(3):
                members.come()
            for _ in range(8):
                more(path)
                disturb(running, topic, members, choose.choice(ways))
                committed = described(topic).offsets
                handed = {(queue, offset) for _who, queue, _generation, offset in read(path)}
                for queue, offset in enumerate(committed):
                    assert {(queue, before) for before in range(offset)} <= handed, "committed, and not handed out"
            every = {(queue, offset) for queue, end in enumerate(appender.end()) for offset in range(end)}
            wait_until(lambda: every <= {(line[1], line[3]) for line in read(path)}, 120, what="all handed out")
        finally:
            appender.end()
            members.end()
    check(read(path), strict=not worker)


class Appender:
    """Appends a few messages again and again, as a client of its own."""

    def __init__(self, directory: Path) -> None:
        self._stop = threading.Event()
        self._directory = directory
        self._ends = [MESSAGES] * QUEUES
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with warren.attach(self._directory) as node:
            topic = node.topic("flights")
            while not self._stop.wait(0.02):
                queue = sum(self._ends) // 5 % QUEUES
                topic.append_many([b"more"] * 5, queue=queue, timeout=TIMEOUT)
                self._ends[queue] += 5

    def end(self) -> list[int]:
        """Where each queue ends, when it has stopped."""
        self._stop.set()
        self._thread.join()
        return self._ends


def more(path: Path) -> None:
    """Members write on."""
    size = path.stat().st_size
    wait_until(lambda: path.stat().st_size > size, 60, what="messages")


def disturb(running: RealNode, topic: warren.Topic, members: "Members", what: str) -> None:
    if what == "stop":
        stand_still(topic, members)
    if what in ("kill", "both"):
        members.go()
    if what in ("worker", "both"):
        running.kill("topic_worker")
    if len(members.alive) < 4:
        members.come()


def stand_still(topic: warren.Topic, members: Members) -> None:
    """One is stopped until its queues are others', and goes on then."""
    while len(members.alive) >= QUEUES:  # there is a queue for who comes
        members.go()
    wait_until(members.have_joined, 60, what="who came is a member")
    wait_until(lambda: len(described(topic).members) == len(members.alive), 60, what="who was killed is none")
    stopped = members.any()
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        members.come()  # so that there is something to give back

        def moved() -> bool:
            now = described(topic)
            return len(now.members) == len(members.alive) and sorted({*now.owners}) == list(range(len(now.members)))

        wait_until(moved, 60, what="queues for who came")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    members.go()


Line = tuple[int, int, int, int]  # who, queue, generation, offset


def read(path: Path) -> list[Line]:
    """What members wrote down, in the order in which they did."""
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [tuple(map(int, line.split())) for line in whole.splitlines()]  # type: ignore[misc]


def check(found: list[Line], *, strict: bool) -> None:
    """Not `strict`: a worker that was killed may give a generation again that a dead member had."""
    reached = [0] * QUEUES
    runs: dict[tuple[int, int], tuple[int, int]] = {}  # queue, generation → who, next
    for who, queue, generation, offset in found:
        owner, following = runs.get((queue, generation), (who, -1))
        if strict:
            assert owner == who, f"queue {queue} has two owners in generation {generation}"
            assert following in (-1, offset), f"queue {queue}: {offset} was handed out, and {following} was next"
        assert offset <= reached[queue], f"queue {queue}: what lies before {offset} was never handed out"
        reached[queue] = max(reached[queue], offset + 1)
        runs[queue, generation] = who, offset + 1
