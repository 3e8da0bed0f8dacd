"""Goal: a message that was confirmed is there for everyone who asks afterwards: by offset, in a range, by time, key and
id, in every process, in asyncio, whoever else appends with whichever durability, and whenever
the topic worker is killed.

Method: a real node; producers that look for what they appended as soon as it is confirmed, each time in another way.
No look is repeated: each has to find it.
"""

import asyncio
import concurrent.futures
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

import warren
import warren.aio
from warren import ReadStatus

from support.real_node import RealNode, frozen
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

QUEUES = 3


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as running:
        yield running


def check(topic: warren.Topic, where: warren.Position, body: bytes, key: str, kind: int) -> None:
    """It is there, says one way to look for it."""
    queue, offset = where.queue, where.offset
    if kind == 0:
        result = topic.read(queue, offset, max=1)
        assert result.status is ReadStatus.FOUND, result
        assert result.records[0].body == body
    elif kind == 1:  # some that are shown for long lie before it
        first = max(0, offset - 5)
        records = topic.read(queue, first, max=offset + 1 - first).records  # others may have appended behind it
        assert [record.offset for record in records] == list(range(first, offset + 1))
    elif kind == 2:
        assert topic.offsets(queue)[1] > offset
    elif kind == 3:
        at = topic.offset_at(queue, 1 << 50, "upper")
        assert at is not None
        assert at >= offset
    elif kind == 4:
        assert [record.body for record in topic.find(key)] == [body]
    elif kind == 5:
        record = topic.find_id(where.message_id)
        assert record is not None
        assert record.body == body
    else:
        assert body in topic.read_arrow(queue, max(0, offset - 3)).column("value").to_pylist()


KINDS = 7


def produce(topic: warren.Topic, name: str, n: int, durabilities: list[warren.Durability]) -> None:
    chosen = random.Random(name)
    for i in range(n):
        body, key = f"{name} {i}".encode(), f"{name}-{i}"
        where = topic.append(body, key=key, queue=chosen.randrange(QUEUES), durability=chosen.choice(durabilities))
        check(topic, where, body, key, i % KINDS)


@pytest.mark.parametrize("durability", ["synced", "written"])
def test_one_producer_finds_what_it_appended(own: RealNode, durability: warren.Durability) -> None:
    with warren.attach(own.directory) as node:
        produce(node.topic("t", queues=QUEUES), durability, 40 * KINDS, [durability])


def test_producers_of_all_durabilities_find_what_they_appended(own: RealNode) -> None:
    """What is only accepted is promised to nobody; it comes between."""
    over = threading.Event()

    def accept(topic: warren.Topic) -> None:
        while not over.is_set():
            topic.append(b"accepted", queue=0, durability="none")
            over.wait(0.0005)

    with (
        warren.attach(own.directory) as one,
        warren.attach(own.directory) as other,
        concurrent.futures.ThreadPoolExecutor(5) as pool,
    ):
        topics = [node.topic("t", queues=QUEUES) for node in (one, other)]
        accepting = pool.submit(accept, topics[0])
        mixed: list[list[warren.Durability]] = [["synced"], ["written"], ["synced", "written"], ["written"]]
        sent = [pool.submit(produce, topics[i % 2], f"p{i}", 15 * KINDS, mixed[i]) for i in range(4)]
        try:
            for producer in sent:
                producer.result()
        finally:
            over.set()
        accepting.result()


def test_a_batch_is_read_whole_and_what_was_accepted_before_it_too(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=1)
        for n in range(60):
            topic.append(b"accepted", durability="none")
            topic.append_many([b"%d" % i for i in range(9)], durability="written" if n % 2 else "synced")
            assert topic.stats()["messages"] == 10 * (n + 1)
            found = topic.read(0, 10 * n, max=100)
            assert [record.body for record in found.records] == [b"accepted", *(b"%d" % i for i in range(9))]


def look(topic: warren.Topic, told: Connection) -> None:
    """A process that is told of each message."""
    while (item := told.recv()) is not None:
        try:
            check(topic, *item)
            told.send("")
        except AssertionError as error:
            told.send(repr(error))


def test_another_process_finds_what_it_is_told_of(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=QUEUES)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=look, args=(topic, there))
        process.start()
        for n in range(30 * KINDS):
            where = topic.append(b"%d" % n, key=f"k{n}", queue=n % QUEUES, durability="written" if n % 4 else "synced")
            here.send((where, b"%d" % n, f"k{n}", n % KINDS))
            assert here.poll(60 * patience())
            assert here.recv() == ""
        here.send(None)
        process.join(60 * patience())
        assert process.exitcode == 0


def test_what_was_confirmed_is_found_whenever_the_worker_is_killed(own: RealNode) -> None:
    over = threading.Event()

    def appends(durability: warren.Durability) -> int:
        n = 0
        while not over.is_set():
            produce(topic, f"{durability}{n}", KINDS, [durability])
            n += 1
        return n

    with warren.attach(own.directory) as node, concurrent.futures.ThreadPoolExecutor(2) as pool:
        topic = node.topic("t", queues=QUEUES)
        levels: list[warren.Durability] = ["synced", "written"]
        sent = [pool.submit(appends, level) for level in levels]
        try:
            for _kill in range(4):
                own.kill("topic_worker")
                produce(topic, f"kill{_kill}", KINDS, ["synced"])
        finally:
            over.set()
        assert all(producer.result() for producer in sent)


def test_what_a_worker_confirmed_that_this_client_never_saw_is_waited_for(own: RealNode) -> None:
    """It served while the client did not ask, ended in order, and took its memory along; the next one is to come."""
    with (
        warren.attach(own.directory) as node,
        warren.attach(own.directory) as other,
        concurrent.futures.ThreadPoolExecutor(KINDS + 1) as pool,
    ):
        topic = node.topic("t", queues=QUEUES)
        check(topic, topic.append(b"1", key="1"), b"1", "1", 0)
        own.kill("topic_worker")
        where = other.topic("t").append(b"2", key="2", queue=1)
        ending = psutil.Process(own.pids()["topic_worker"])
        with frozen(own, "supervisor"):  # which starts the next one
            ending.terminate()
            wait_until(lambda: ending.status() == psutil.STATUS_ZOMBIE, 30)
            looks = [pool.submit(check, topic, where, b"2", "2", kind) for kind in range(KINDS)]
            held = pool.submit(topic.hold, 1, where.offset)
            time.sleep(0.1)  # who does not wait answers now
        for looked in looks:
            looked.result(60 * patience())
        with held.result(60 * patience()) as hold:
            assert (hold.start, hold.end) == (where.offset, where.offset + 1)


def test_in_asyncio_too(own: RealNode) -> None:
    async def appends(topic: warren.aio.Topic, who: int) -> None:
        for n in range(30):
            body, queue = b"%d %d" % (who, n), n % QUEUES
            where = await topic.append(body, key=f"{who}-{n}", queue=queue, durability="written" if n % 3 else "synced")
            if n % 4 == 0:
                assert (await topic.read(queue, where.offset, max=1)).records[0].body == body
            elif n % 4 == 1:
                assert (await topic.offsets(queue))[1] > where.offset
            elif n % 4 == 2:
                assert [record.body for record in await topic.find(f"{who}-{n}")] == [body]
            else:
                assert await topic.find_id(where.message_id) is not None

    async def main() -> None:
        async with warren.aio.attach(own.directory) as node:
            topic = await node.topic("t", queues=QUEUES)
            await asyncio.gather(*(appends(topic, who) for who in range(5)))

    asyncio.run(main())
