"""Goal: consumers without a number of their own share the work: a slow one has nothing ahead that another could do, a
fast one has enough.

Method: a real node; what lies at a consumer is counted (unacked, of the worker), nothing is timed. A message is held
for HELD_S, which is several times the work that pays to have ahead (4 ms).
"""

import asyncio
import functools
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.workers.client.client import Client
from warren.workers.faces.queues import counts_of

from support.waiting import wait_until

pytestmark = pytest.mark.integration

HELD_S = 0.02


def work(directory: Path, name: str, parent: Connection) -> None:
    """A worker as in the guide: it says how many slow tasks it has done."""
    with warren.attach(directory) as node:
        queue, done = node.queue(name), 0
        parent.send("here")
        assert parent.recv() == "go"
        for message in queue.consume():
            if message.body == b"end":
                message.ack()
                break
            time.sleep(HELD_S)  # the task
            done += 1
            message.ack()
        parent.send(done)


@pytest.mark.parametrize("waits", [True, False], ids=["the workers wait", "the tasks wait"])
def test_slow_tasks_are_shared(node: warren.Node, directory: Path, name: str, waits: bool) -> None:
    tasks, processes, pipes = node.queue(name), [], []
    context = multiprocessing.get_context("spawn")
    for _number in range(4):
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(directory, name, theirs))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(mine)
    for pipe in pipes:
        assert pipe.recv() == "here"
    if waits:
        for pipe in pipes:
            pipe.send("go")
        wait_until(lambda: tasks.stats()["consumers"] == 4)
        tasks.put_many([b"task"] * 80)
    else:
        tasks.put_many([b"task"] * 80)
        for pipe in pipes:
            pipe.send("go")
    tasks.put_many([b"end"] * 4)
    done = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sum(done) == 80
    assert min(done) >= 10, f"{done}: with equal shares each has 20"


@pytest.fixture
def theirs(directory: Path, name: str) -> Iterator[warren.Queue]:
    """The same queue of another client, who looks and takes."""
    with warren.attach(directory) as attached:
        yield attached.queue(name)


def fast(messages: Iterator[warren.Message], count: int) -> list[int]:
    """Messages that are acked at once."""
    found = []
    for message in itertools.islice(messages, count):
        found.append(int(message.body))
        message.ack()
    return found


def fill(queue: warren.Queue, count: int) -> None:
    queue.put_many([b"%d" % number for number in range(count)])


def test_a_slow_consumer_has_nothing_ahead(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 50)
    for number, message in enumerate(itertools.islice(node.queue(name).consume(), 15)):
        assert int(message.body) == number
        time.sleep(HELD_S)
        wait_until(lambda: counts_of(theirs)["unacked"] == 1, what="only what it works on is unacked")
        message.ack()


def test_a_fast_consumer_has_many_ahead(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 5000)
    queue = node.queue(name)
    messages, most = queue.consume(), 0
    for message in itertools.islice(messages, 4000):
        most = max(most, queue._handle.pending)
        message.ack()
    assert most >= 64


def test_what_lies_at_a_consumer_that_is_busy_goes_to_another(
    node: warren.Node, theirs: warren.Queue, name: str
) -> None:
    """It was fast, and now it works on one message for long: the others return by themselves, unseen."""
    fill(theirs, 1000)
    queue = node.queue(name)
    messages = queue.consume()
    begun = 0
    while not queue._handle.pending:
        begun += len(fast(messages, 1))
        assert begun < 900
    held = next(messages)
    assert int(held.body) == begun
    wait_until(lambda: counts_of(theirs)["unacked"] == 1, what="the others are back")
    assert theirs.stats()["consumers"] == 1, "it is a consumer still"
    found = []
    while len(found) < 999 - begun:
        part = theirs.get_many(1000, timeout=20)
        assert part
        assert not any(message.redelivered or message.delivery_count for message in part), "nobody has seen them"
        found += [int(message.body) for message in part]
        theirs.ack(part)
    assert found == list(range(begun + 1, 1000))
    held.ack()
    theirs.put_many([b"1000", b"1001"])
    assert fast(messages, 2) == [1000, 1001]


def test_a_consumer_that_becomes_slow_gives_back(
    node: warren.Node, theirs: warren.Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is held for so short a time that nobody comes to look after the others."""
    monkeypatch.setattr(Client, "_tidy_once", lambda _client: True)
    fill(theirs, 1000)
    queue = node.queue(name)
    messages = queue.consume()
    following = 0
    while queue._handle.pending < 64:
        assert fast(messages, 1) == [following]
        following += 1
        assert following < 800
    for _number in range(60):
        message = next(messages)
        assert (int(message.body), message.redelivered, message.delivery_count) == (following, False, 0)
        time.sleep(HELD_S)
        message.ack()
        following += 1
    assert queue._handle.pending <= 2
    assert theirs.stats()["ready"] >= 1000 - following - 3
    queue.release()


def test_a_number_is_kept(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 100)
    queue = node.queue(name)
    messages = queue.consume(prefetch=7)
    for message in itertools.islice(messages, 10):
        wait_until(lambda: theirs.stats()["unacked"] == 7)
        time.sleep(HELD_S)
        assert queue._handle.hoard() == 0, "nothing that would return"
        message.ack()
    assert len(list(queue.consume(prefetch=7, timeout=0.2))) == 7


def test_without_a_number_500_are_unacked_at_most(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 1200)
    queue = node.queue(name)
    found = list(queue.consume(timeout=0.5))
    assert [int(message.body) for message in found] == list(range(500))
    messages = queue.consume()
    queue.ack(found)
    assert fast(messages, 700) == list(range(500, 1200))


def test_threads_of_a_process_consume_together(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    """Each may hold a message while the others go on."""
    fill(theirs, 10)
    queue = node.queue(name)
    loops = [queue.consume(timeout=10) for _number in range(5)]
    held = [next(loop) for loop in loops]
    assert [int(message.body) for message in held] == list(range(5))
    queue.ack(held)
    assert [int(next(loop).body) for loop in loops] == list(range(5, 10))


def test_a_queue_with_a_maximum_is_consumed_alike(node: warren.Node, name: str) -> None:
    queue = node.queue(name, max_length=1000)
    fill(queue, 1000)
    messages, most, found = queue.consume(), 0, []
    for message in itertools.islice(messages, 1000):
        most = max(most, queue._handle.pending)
        found.append(int(message.body))
        message.ack()
    assert found == list(range(1000))
    assert most >= 16


def test_what_was_nacked_comes_again_behind_what_lies_here(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 300)
    queue = node.queue(name)
    messages = queue.consume()
    fast(messages, 100)
    message = next(messages)
    message.nack()
    found = fast(messages, 200)
    assert sorted(found) == list(range(100, 300))
    assert [number for number in found if number != 100] == list(range(101, 300))


# ---- asyncio ---------------------------------------------------------------------------------------------------------


async def fast_ones(messages: warren.aio.Consumer, count: int) -> list[int]:
    found = []
    while len(found) < count:
        message = await anext(messages)
        found.append(int(message.body))
        await message.ack()
    return found


async def until(condition: Callable[[], object], what: str) -> None:
    """wait_until beside an event loop."""
    await asyncio.get_running_loop().run_in_executor(None, functools.partial(wait_until, condition, what=what))


def test_a_slow_task_has_nothing_ahead(directory: Path, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 60)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)

            async def work(count: int) -> int:
                async with queue.consume() as messages:
                    for _number in range(count):
                        message = await anext(messages)
                        await asyncio.sleep(HELD_S)
                        await message.ack()
                return count

            one = asyncio.create_task(work(10))
            while not one.done():
                assert theirs.stats()["unacked"] <= 2, "what it works on, and what comes just now"
                await asyncio.sleep(HELD_S / 4)
            assert await one == 10
            assert sum(await asyncio.gather(*(work(5) for _task in range(10)))) == 50

    asyncio.run(main())
    assert counts_of(theirs)["ready"] == 0


def test_a_fast_task_has_many_ahead(directory: Path, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 5000)

    async def main() -> int:
        async with warren.aio.attach(directory) as node:
            queue, most = await node.queue(name), 0
            async with queue.consume() as messages:
                for _number in range(4000):
                    message = await anext(messages)
                    most = max(most, queue._underneath.handle.pending)
                    await message.ack()
            return most

    assert asyncio.run(main()) >= 16


def test_what_lies_at_tasks_that_are_busy_goes_to_another(directory: Path, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 2000)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            async with queue.consume() as messages:
                begun = 0
                while not queue._underneath.handle.pending:
                    begun += len(await fast_ones(messages, 1))
                    assert begun < 1900
                held = await anext(messages)
                await until(lambda: counts_of(theirs)["unacked"] == 1, "the others are back")
                assert theirs.stats()["consumers"] == 1
                part = theirs.get_many(100, timeout=20, ahead=False)
                assert [int(message.body) for message in part] == list(range(begun + 1, begun + 101))
                assert not any(message.redelivered or message.delivery_count for message in part)
                theirs.ack(part)
                await held.ack()
                assert await fast_ones(messages, 300) == list(range(begun + 101, begun + 401))

    asyncio.run(main())


def test_a_task_that_becomes_slow_gives_back(directory: Path, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 2000)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            handle = queue._underneath.handle
            async with queue.consume() as messages:
                following = 0
                while handle.pending < 16:
                    assert await fast_ones(messages, 1) == [following]
                    following += 1
                    assert following < 1900
                for _number in range(60):
                    message = await anext(messages)
                    assert (int(message.body), message.redelivered) == (following, False)
                    await asyncio.sleep(HELD_S)
                    await message.ack()
                    following += 1
                assert handle.pending <= 2

    asyncio.run(main())


def test_more_tasks_than_500_consume_together(directory: Path, theirs: warren.Queue, name: str) -> None:
    """Each may hold one."""
    fill(theirs, 600)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            consumers = [queue.consume(timeout=60) for _task in range(600)]
            held = await asyncio.gather(*(anext(messages) for messages in consumers))
            assert sorted(int(message.body) for message in held) == list(range(600))
            for message in held:
                await message.ack()
            for messages in consumers:
                await messages.aclose()

    asyncio.run(main())


def test_tasks_with_and_without_a_number_consume_together(directory: Path, theirs: warren.Queue, name: str) -> None:
    fill(theirs, 400)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)

            async def work(prefetch: int | None) -> list[int]:
                async with queue.consume(prefetch) as messages:
                    return await fast_ones(messages, 100)

            found = await asyncio.gather(*(work(prefetch) for prefetch in (None, 5, None, 1)))
            assert sorted(number for part in found for number in part) == list(range(400))

    asyncio.run(main())
