"""Goal: every call of every face ends in its time, or in the node's call_timeout, whatever does not answer.

Method: a node of which one process is stopped (SIGSTOP: it is not dead, so nobody replaces it), or that is short of
disk or memory. Each call has a client and a thread of its own, and must return or raise an error of Warren's. What has
a timeout is given TIMEOUT_S; the rest has the node's call_timeout.
"""

import abc
import asyncio
import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import warren
import warren.aio
from warren.workers.process import alarm_words as alarms

from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
T = TypeVar("T")
TIMEOUT_S = 0.4
#: far beyond what any call may take, so that what hangs is told from what is slow
HANGS_S = 60.0
#: less than the 30 s that a call has where nobody said otherwise
TAKES_S = 20.0
CONDITIONS = ("worker-0", "store", "supervisor", "disk", "memory")
TOPIC_CONDITIONS = ("topic_worker", "supervisor", "disk")


def at_last(call: Callable[[], T]) -> T:
    """What a call returns when it gets its answer in time, which a busy machine may not give it at once."""

    def answered() -> list[T] | None:
        try:
            return [call()]
        except warren.TimedOut:
            return None

    return wait_until(answered, 30, what="an answer in time")[0]


class Attached(abc.ABC):
    """A call's own client."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.node = warren.attach(directory, call_timeout=TIMEOUT_S)

    @abc.abstractmethod
    async def opened(self, node: warren.aio.Node) -> tuple[Any, ...]:
        """What a call in asyncio is given."""

    async def awaited(self, call: Callable[..., Any]) -> None:
        node = await warren.aio.attach(self.node.directory, timeout=10, call_timeout=TIMEOUT_S)
        try:
            await call(*await self.opened(node))
        finally:
            await node.close()


def in_asyncio(call: Callable[..., Any]) -> Callable[[Attached], object]:
    return lambda hand: asyncio.run(hand.awaited(call))


class Hand(Attached):
    """What a call has to do with: a node, a queue with messages, some of them in hand, and a store."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self.queue = at_last(lambda: self.node.queue(name))
        self.tasks = at_last(lambda: self.node.work_queue(f"{name}-tasks"))
        self.store = at_last(self.node.store)
        self.held: list[Any] = []

    def prepare(self) -> None:
        """While everything answers: something to take, and something in hand."""
        at_last(lambda: self.queue.put_many([b"%d" % n for n in range(20)]))
        self.held = [at_last(lambda: self.queue.get(timeout=10)) for _ in range(3)]
        self.subscription = at_last(lambda: self.queue.subscription("s"))
        self.messages = self.queue.consume(prefetch=5, timeout=TIMEOUT_S)

    def fill(self) -> None:
        """Leave no room: what is handed over and not taken fills the ring or the arena."""
        with contextlib.suppress(warren.Error):
            for _ in range(5000):
                self.queue.put(b"x" * 1000, durability="none", wait=False)

    async def opened(self, node: warren.aio.Node) -> tuple[Any, ...]:
        return node, await node.queue(self.name)


class TopicHand(Attached):
    """What a call has to do with: a node, and a topic with messages, a group, readers, a half message and a queue."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self.topic = at_last(lambda: self.node.topic(name, queues=1))
        self.queue = at_last(lambda: self.node.queue(f"{name}-q"))

    def prepare(self) -> None:
        """While everything answers: messages that a group has, with one of them in hand."""
        at_last(lambda: self.topic.append_many([b"%d" % n for n in range(20)], keys=["k"] * 20, queue=0))
        self.reader = at_last(lambda: self.topic.reader(group="g", commit="manual"))
        self.record = at_last(lambda: self.reader.get(10))
        self.half = at_last(lambda: self.topic.prepare(b"half", queue=0))
        at_last(self.reader.commit)
        left = at_last(lambda: self.topic.reader(group="left"))
        at_last(lambda: left.get(10))
        at_last(left.commit)
        left.close()

    def fill(self) -> None:
        """Leave no room in the ring."""
        with contextlib.suppress(warren.Error):
            for _ in range(5000):
                self.topic.append(b"x" * 1000, durability="none", wait=False)

    async def opened(self, node: warren.aio.Node) -> tuple[Any, ...]:
        return (await node.topic(self.name),)


TOPIC_CALLS: dict[str, Callable[[TopicHand], object]] = {
    "append": lambda hand: hand.topic.append(b"x", timeout=TIMEOUT_S),
    "append ahead": lambda hand: hand.topic.append(b"x", wait=False),
    "append_many": lambda hand: hand.topic.append_many([b"x"] * 50, timeout=TIMEOUT_S),
    "append_many ahead": lambda hand: hand.topic.append_many([b"x" * 1000] * 500, wait=False),
    "confirm": lambda hand: hand.topic.append(b"x", wait=False).wait(TIMEOUT_S),
    "append later": lambda hand: hand.topic.append(b"x", delay=1, timeout=TIMEOUT_S),
    "prepare": lambda hand: hand.topic.prepare(b"x", timeout=TIMEOUT_S),
    "half commit": lambda hand: hand.half.commit(TIMEOUT_S),
    "half rollback": lambda hand: hand.half.rollback(),
    "halves": lambda hand: hand.topic.halves(timeout=TIMEOUT_S),
    "read": lambda hand: hand.topic.read(0, 100, timeout=TIMEOUT_S),
    "offset_at": lambda hand: hand.topic.offset_at(0, 0),
    "find": lambda hand: hand.topic.find("k"),
    "find_id": lambda hand: hand.topic.find_id(hand.record.message_id),
    "reader": lambda hand: hand.topic.reader(group="h"),
    "get": lambda hand: [hand.reader.get(TIMEOUT_S) for _ in range(25)],
    "get_many": lambda hand: [hand.reader.get_many(10, TIMEOUT_S) for _ in range(3)],
    "commit": lambda hand: hand.reader.commit(timeout=TIMEOUT_S),
    "retry": lambda hand: hand.reader.retry(hand.record, timeout=TIMEOUT_S),
    "seek": lambda hand: hand.reader.seek(0, 5, TIMEOUT_S),
    "lag": lambda hand: hand.reader.lag(),
    "reader close": lambda hand: hand.reader.close(TIMEOUT_S),
    "groups": lambda hand: hand.topic.groups(),
    "group": lambda hand: hand.topic.group("g"),
    "seek_group": lambda hand: hand.topic.seek_group("left", "earliest"),
    "delete_group": lambda hand: hand.topic.delete_group("left"),
    "set": lambda hand: hand.topic.set(retention_s=1000),
    "hold": lambda hand: hand.topic.hold(0, 5).release(),
    "replay": lambda hand: hand.topic.replay(hand.queue, "earliest", timeout=TIMEOUT_S),
    "topic stats": lambda hand: hand.topic.stats(),
    "declare": lambda hand: hand.node.topic(f"{hand.name}-new"),
    "bind_topic": lambda hand: hand.node.bind_topic(hand.topic, "amq.fanout"),
    "delete topic": lambda hand: hand.topic.delete(),
    "aio append": in_asyncio(lambda topic: topic.append(b"x", timeout=TIMEOUT_S)),
    "aio append ahead": in_asyncio(lambda topic: topic.append(b"x", wait=False)),
    "aio append_many": in_asyncio(lambda topic: topic.append_many([b"x"] * 50, timeout=TIMEOUT_S)),
    "aio prepare": in_asyncio(lambda topic: topic.prepare(b"x", timeout=TIMEOUT_S)),
    "aio read": in_asyncio(lambda topic: topic.read(0, 100, timeout=TIMEOUT_S)),
    "aio halves": in_asyncio(lambda topic: topic.halves()),
    "close": lambda hand: hand.node.close(),
}
#: the same with a full ring
TOPIC_FULL = (
    "append",
    "append ahead",
    "append_many ahead",
    "prepare",
    "half commit",
    "commit",
    "retry",
    "replay",
    "close",
)
#: calls of one topic: what they waited for names it
OF_A_TOPIC = (
    *("append", "append ahead", "append_many", "append_many ahead", "append later", "prepare", "half commit"),
    *("half rollback", "halves", "commit"),
    *("aio append", "aio append ahead", "aio append_many", "aio prepare", "aio halves"),
)


CALLS: dict[str, Callable[[Hand], object]] = {
    "put": lambda hand: hand.queue.put(b"x", timeout=TIMEOUT_S),
    "put ahead": lambda hand: hand.queue.put(b"x", wait=False),
    "put_many": lambda hand: hand.queue.put_many([b"x"] * 50, timeout=TIMEOUT_S),
    "put_many ahead": lambda hand: hand.queue.put_many([b"x" * 1000] * 5000, wait=False),
    "publish": lambda hand: hand.node.publish(b"x", routing_key=hand.name, timeout=TIMEOUT_S),
    "publish ahead": lambda hand: hand.node.publish(b"x", routing_key=hand.name, wait=False),
    "publish_many ahead": lambda hand: hand.node.publish_many([b"x"] * 50, routing_key=hand.name, wait=False),
    "confirm": lambda hand: _confirm(hand).wait(TIMEOUT_S),
    "get": lambda hand: hand.queue.get(timeout=TIMEOUT_S),
    "get now": lambda hand: hand.queue.get(timeout=0),
    "get_many": lambda hand: hand.queue.get_many(10, timeout=TIMEOUT_S),
    "consume": lambda hand: list(hand.messages),
    "ack": lambda hand: hand.held[0].ack(),
    "ack multiple": lambda hand: hand.held[-1].ack(multiple=True),
    "nack": lambda hand: hand.held[0].nack(),
    "ack many": lambda hand: hand.queue.ack(hand.held),
    "stats": lambda hand: hand.queue.stats(),
    "browse": lambda hand: hand.queue.browse(5),
    "purge": lambda hand: hand.queue.purge(TIMEOUT_S),
    "claim": lambda hand: hand.subscription.claim(1),
    "range": lambda hand: hand.subscription.range(),
    "declare": lambda hand: hand.node.queue(f"{hand.name}-new"),
    "delete": lambda hand: hand.queue.delete(),
    "bind": lambda hand: hand.queue.bind("amq.fanout"),
    "status": lambda hand: hand.node.status(),
    "ping": lambda hand: hand.node.ping(),
    "attach": lambda hand: warren.attach(hand.node.directory, timeout=TIMEOUT_S).close(),
    "store write": lambda hand: hand.store.write(hand.store.new_id(), b"x", timeout=TIMEOUT_S),
    "store write ahead": lambda hand: _write_ahead(hand, 5000),
    "store write_many ahead": lambda hand: hand.store.write_many(
        [hand.store.new_id() for _ in range(5000)], [b"x" * 1000] * 5000, wait=False
    ),
    "store remove": lambda hand: hand.store.remove([hand.store.new_id() for _ in range(20)]),
    "store contains": lambda hand: hand.store.contains(hand.store.new_id(), timeout=TIMEOUT_S),
    "store read": lambda hand: hand.store.read(hand.store.new_id()),
    "store barrier": lambda hand: hand.store.barrier(timeout=TIMEOUT_S),
    "store delete_and_terminate": lambda hand: hand.store.delete_and_terminate(timeout=TIMEOUT_S),
    "work put": lambda hand: hand.tasks.put(b"x", timeout=TIMEOUT_S),
    "work get": lambda hand: hand.tasks.get(timeout=TIMEOUT_S),
    "work size": lambda hand: hand.tasks.qsize(),
    "work join": lambda hand: hand.tasks.join(timeout=TIMEOUT_S),
    "aio put": in_asyncio(lambda _node, queue: queue.put(b"x", timeout=TIMEOUT_S)),
    "aio put ahead": in_asyncio(lambda _node, queue: queue.put(b"x", wait=False)),
    "aio put_many ahead": in_asyncio(lambda _node, queue: queue.put_many([b"x" * 1000] * 5000, wait=False)),
    "aio get": in_asyncio(lambda _node, queue: queue.get(timeout=TIMEOUT_S)),
    "aio stats": in_asyncio(lambda _node, queue: queue.stats()),
    "aio status": in_asyncio(lambda node, _queue: node.status()),
    "release": lambda hand: hand.queue.release(),
    "close": lambda hand: hand.node.close(),
}
#: the same with a full ring
FULL = (
    "put",
    "put ahead",
    "publish ahead",
    "ack",
    "ack multiple",
    "nack",
    "ack many",
    "get",
    "purge",
    "release",
    "close",
)


#: calls of one queue: what they waited for names it
OF_A_QUEUE = (
    *("put", "put ahead", "put_many", "put_many ahead", "get", "get now", "get_many", "consume"),
    *("stats", "browse", "purge", "release", "aio get", "aio stats", "aio put", "aio put ahead", "aio put_many ahead"),
)


def _confirm(hand: Hand) -> Any:
    return hand.queue.put(b"x", wait=False)


def _write_ahead(hand: Hand, count: int) -> None:
    for _ in range(count):
        hand.store.write(hand.store.new_id(), b"x" * 1000, wait=False)


#: a node; what makes its trouble; and what ends it
Trouble = tuple[RealNode, Callable[[], None], Callable[[], None]]


@pytest.fixture
def trouble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trouble]:
    """A node; what makes its trouble; and what ends it."""
    condition = request.param
    with RealNode(tmp_path / "data", workers=1) as running, warren.attach(running.directory) as watcher:
        if condition == "topic_worker":
            watcher.topic("first")  # it begins with the first topic
        pids = running.pids()
        superblock = watcher._client.attachment().superblock
        stopped: list[int] = []

        def begin() -> None:
            if condition in pids:
                stopped.append(pids[condition])
            else:  # nobody looks at the machine meanwhile, so the alarm stays
                stopped.append(pids["supervisor"])
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            if condition not in pids:
                superblock.set("alarms", alarms.DISK if condition == "disk" else alarms.MEMORY)

        def end() -> None:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            stopped.clear()

        try:
            yield running, begin, end
        finally:
            end()


@pytest.mark.parametrize("trouble", CONDITIONS, indirect=True)
def test_every_call_ends_in_its_time(trouble: Trouble) -> None:
    end_in_time(trouble, Hand, "queue", CALLS, FULL, OF_A_QUEUE)


@pytest.mark.parametrize("trouble", TOPIC_CONDITIONS, indirect=True)
def test_every_call_of_a_topic_ends_in_its_time(trouble: Trouble) -> None:
    end_in_time(trouble, TopicHand, "topic", TOPIC_CALLS, TOPIC_FULL, OF_A_TOPIC)


def end_in_time(
    trouble: Trouble,
    made: Callable[[Path, str], Any],
    kind: str,
    calls: dict[str, Callable[[Any], object]],
    full_ones: tuple[str, ...],
    named: tuple[str, ...],
) -> None:
    """`made`: what a call has to do with; `named`: calls whose error names the queue or topic (`kind`)."""
    running, begin, end = trouble
    wanted = [(name, False) for name in calls] + [(name, True) for name in full_ones]
    hands = {each: made(running.directory, f"q{number}") for number, each in enumerate(wanted)}
    for hand in hands.values():
        hand.prepare()
    told: dict[tuple[str, bool], object] = {}
    took: dict[tuple[str, bool], float] = {}

    def call(each: tuple[str, bool]) -> None:
        name, full = each
        began = time.monotonic()
        try:
            if full:
                hands[each].fill()
            told[each] = calls[name](hands[each])
        except Exception as error:  # noqa: BLE001 - it is judged below
            told[each] = error
        took[each] = time.monotonic() - began

    threads = {each: threading.Thread(target=call, args=(each,), daemon=True) for each in wanted}
    begin()
    try:
        for thread in threads.values():
            thread.start()
        for thread in threads.values():
            thread.join(HANGS_S)
        hang = [each for each, thread in threads.items() if thread.is_alive()]
    finally:
        end()
        for thread in threads.values():
            thread.join(HANGS_S)
        for hand in hands.values():
            hand.node.close()
    assert hang == []
    assert {each: seconds for each, seconds in took.items() if seconds > TAKES_S * patience()} == {}
    assert [
        (each, found)
        for each, found in told.items()
        if isinstance(found, Exception) and not isinstance(found, warren.Error)
    ] == []
    late = {each: str(found) for each, found in told.items() if isinstance(found, warren.TimedOut)}
    assert {
        each: said for each, said in late.items() if each[0] in named and f"{kind} '{hands[each].name}'" not in said
    } == {}
    told_s = {each: re.search(r"within ([\d.]+) s\b", said) for each, said in late.items()}
    assert {each: late[each] for each, found in told_s.items() if found is None} == {}
    # all of its time or, after another attachment, what was left of it; release has 10 s
    figures = {each: found[1] for each, found in told_s.items() if found is not None}
    assert {each: said for each, said in figures.items() if float(said) > TIMEOUT_S and said != "10"} == {}
    assert len([said for said in figures.values() if said == f"{TIMEOUT_S:g}"]) >= len(figures) // 2
