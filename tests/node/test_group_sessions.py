"""Goal: a member of a group whose process is stopped, or whose program hangs, holds its queues for its session at most:
another one gets them, from what is committed on; the first cannot commit over it, is told what happened, and joins
again. Who beats is not given up for what the worker slept through.

Method: a real node in which nothing but a session takes a queue away (`group_release_s` is an hour); members are
processes that do what they are asked, stopped by SIGSTOP or left without a call. The victim's session is the shortest,
that of all others has no end, so nothing depends on anybody's pace: a victim that is given up too soon, on a slow
machine, joins again before it is stopped.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import warren
from warren.workers.process.control import ControlClient

from support.command_line import warren as command
from support.real_node import RealNode, frozen
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
QUEUES, MESSAGES = 2, 10
TIMEOUT = 60 * patience()
SPAWN = multiprocessing.get_context("spawn")
#: what a member is asked
Work = tuple[str, int]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data", workers=1, group_release_s=3600) as node:
        yield node


@pytest.fixture
def topic(running: RealNode, request: pytest.FixtureRequest) -> Iterator[warren.Topic]:
    with warren.attach(running.directory) as node:
        topic = node.topic(request.node.name[:60].replace("[", "-").replace("]", ""), queues=QUEUES)
        for queue in range(QUEUES):
            topic.append_many([b"%d" % n for n in range(MESSAGES)], queue=queue)
        yield topic


def serve(directory: Path, name: str, asked: Connection, limits: dict[str, float | None]) -> None:
    """A member that does what it is asked to, and answers with the error's name when that fails."""
    with warren.attach(directory) as node:
        reader = node.topic(name).reader(group="report", commit="manual", **limits)  # type: ignore[arg-type]
        found: list[warren.Record] = []
        asked.send("joined")
        while (what := asked.recv()) != "close":
            try:
                if what == "commit":
                    reader.commit(timeout=TIMEOUT)
                elif what == "retry":
                    reader.retry(found[0], delay=0, timeout=TIMEOUT)
                else:
                    found = reader.get_many(1000, what)
                asked.send([(record.queue, record.offset, record.reconsume_times) for record in found])
            except warren.Error as error:
                asked.send((type(error).__name__, str(error)))
        reader.close()


class Asked:
    """Such a member."""

    def __init__(self, running: RealNode, topic: warren.Topic, **limits: float | None) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(running.directory, topic.name, theirs, limits))
        self.process.start()
        assert self.hear() == "joined"

    def hear(self) -> object:
        assert self.pipe.poll(TIMEOUT)
        return self.pipe.recv()

    def ask(self, what: object) -> object:
        self.pipe.send(what)
        return self.hear()

    def takes(self) -> list[tuple[int, int, int]]:
        """Messages; it may have to join again before."""
        while not isinstance(found := self.ask(TIMEOUT), list):
            assert found[0] == "SessionExpired"  # type: ignore[index]
        return found

    def stop(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


@pytest.fixture
def asked(running: RealNode, topic: warren.Topic) -> Iterator[Callable[..., Asked]]:
    all_of_them: list[Asked] = []

    def make(**limits: float | None) -> Asked:
        all_of_them.append(Asked(running, topic, **limits))
        return all_of_them[-1]

    yield make
    for one in all_of_them:
        one.end()


def all_of_it(reader: warren.Reader, count: int) -> list[warren.Record]:
    found: list[warren.Record] = []
    while len(found) < count:
        found += reader.get_many(1000, TIMEOUT)
    return found


def committed(topic: warren.Topic) -> list[int | None]:
    return [row["committed"] for row in topic.group("report")["queues"]]


@pytest.mark.parametrize("way", ["stopped", "hangs"])
def test_who_is_silent_is_followed_by_another(topic: warren.Topic, asked: Callable[..., Asked], way: str) -> None:
    """`hangs`: the process runs, and beats; its program makes no call."""
    stopped = way == "stopped"
    one = asked(session_timeout=1 if stopped else None, max_poll_interval=None if stopped else 1)
    assert one.takes()
    if stopped:
        one.stop()
    with topic.reader("report", commit="manual", session_timeout=None, max_poll_interval=None) as reader:
        found = all_of_it(reader, QUEUES * MESSAGES)
        assert reader.assigned == list(range(QUEUES))
        for queue in range(QUEUES):  # all messages are delivered again, in order
            assert [record.offset for record in found if record.queue == queue] == list(range(MESSAGES))
        reader.commit(next(record for record in found if record.offset == 3 and record.queue == 0))
        before = committed(topic)
        assert before[0] == 4
        one.go_on()
        name, text = one.ask("commit")  # type: ignore[misc]
        assert name == "SessionExpired"
        assert ("session_timeout" if stopped else "max_poll_interval") in text
        assert committed(topic) == before
        reader.commit()
    for queue in range(QUEUES):
        topic.append(b"new", queue=queue)
    assert {offset for _queue, offset, _times in one.takes()} == {MESSAGES}  # it has joined again


def test_what_is_tried_again_is_not_held_either(topic: warren.Topic, asked: Callable[..., Asked]) -> None:
    """A reader is a member of its retry topic, too. One error is raised for both."""
    one = asked(session_timeout=1, max_poll_interval=None)
    assert one.takes()
    while isinstance(one.ask("retry"), tuple):
        one.takes()
    while not any(times for _queue, _offset, times in one.takes()):
        pass
    one.stop()
    with topic.reader("report", commit="manual", session_timeout=None, max_poll_interval=None) as reader:
        found: list[warren.Record] = []
        while not any(record.reconsume_times for record in found):
            found += reader.get_many(1000, TIMEOUT)
        one.go_on()
        answer = one.ask(0)
        assert answer[0] == "SessionExpired"  # type: ignore[index]


def test_who_beats_outlives_a_stop_of_the_worker(
    running: RealNode, topic: warren.Topic, asked: Callable[..., Asked]
) -> None:
    session_s = 6.0
    one = asked(session_timeout=session_s, max_poll_interval=session_s)
    assert one.takes()
    with frozen(running, "topic_worker"):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + session_s + 1, TIMEOUT, what="more than a session")
    assert isinstance(one.ask("commit"), list)
    assert committed(topic) != [None, None]


def test_a_group_tells_how_long_ago_its_members_called(
    running: RealNode, topic: warren.Topic, asked: Callable[..., Asked]
) -> None:
    asked(session_timeout=None, max_poll_interval=None)

    def age() -> float:
        (member,) = topic.group("report")["members"]
        found: float = member["last_call_s"]
        return found

    wait_until(lambda: age() > 1, TIMEOUT, what="a second without a call")
    (row,) = topic.groups()
    assert row["last_call_s"] > 1
    topic.seek_group("report", "earliest", force=True)  # so that the snapshot knows it

    def told() -> list[dict[str, object]]:
        with ControlClient(running.directory) as supervisor:
            (item,) = supervisor.call("status", pattern=topic.name)["topics"]
        found: list[dict[str, object]] = item["groups"]
        return found

    wait_until(lambda: [row["members"] for row in told()] == [1], TIMEOUT, what="the member in the status")
    assert told()[0]["last_call_s"] > 1  # type: ignore[operator]
    assert "last call" in command("status", running.directory).stdout
