"""Goal: `consume(exclusive=True)` is the only consumer of its queue, among threads, tasks and processes, until it ends;
who is refused learns who is in the way. Kills of the queue's worker and of the consumer's process change that as they
should.

Method: a real node; clients of it in this process (each is a client of its own) and in another one that is killed.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
import warren.aio

from support.real_node import RealNode, frozen
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node with one worker, so that it is the queues' own that is killed, or stands still."""
    directory = tmp_path_factory.mktemp("exclusive") / "data"
    with RealNode(directory, profile="small", workers=1) as running:
        yield running


@pytest.fixture
def one(node: RealNode) -> Iterator[warren.Node]:
    with warren.attach(node.directory, name="one") as attached:
        yield attached


@pytest.fixture
def other(node: RealNode) -> Iterator[warren.Node]:
    with warren.attach(node.directory, name="other") as attached:
        yield attached


def test_one_consumer_alone_until_it_ends(one: warren.Node, other: warren.Node) -> None:
    mine, theirs = one.queue("alone"), other.queue("alone")
    mine.put_many([b"a", b"b", b"c", b"d"])
    messages = mine.consume(prefetch=1, exclusive=True)
    next(messages).ack()
    for exclusive in (True, False):
        with pytest.raises(warren.ResourceLocked, match=rf"by process {os.getpid()} \('one'\) alone.*end that"):
            next(theirs.consume(exclusive=exclusive))
    with pytest.raises(warren.ResourceLocked, match="another consumer of this client alone"):
        next(mine.consume())
    theirs.get(timeout=5).ack()  # a get is not kept out
    messages.close()
    with_others = theirs.consume(timeout=5)
    next(with_others).ack()
    with pytest.raises(warren.ResourceLocked, match=r"has another consumer, process \d+ \('other'\)"):
        next(mine.consume(exclusive=True))
    with pytest.raises(warren.ResourceLocked, match="has another consumer of this client"):
        next(theirs.consume(exclusive=True))
    with_others.close()
    assert next(mine.consume(timeout=5, exclusive=True)).body == b"d"
    mine.delete()


def test_a_killed_worker_changes_nothing(node: RealNode, one: warren.Node, other: warren.Node) -> None:
    mine, theirs = one.queue("restarted"), other.queue("restarted")
    messages = mine.consume(timeout=30, exclusive=True)
    mine.put(b"1")
    next(messages).ack()
    node.kill("worker-0")
    with pytest.raises(warren.ResourceLocked, match="alone"):
        next(theirs.consume(exclusive=True))
    mine.put(b"2")
    next(messages).ack()
    messages.close()
    theirs.put(b"3")
    assert next(theirs.consume(timeout=30, exclusive=True)).body == b"3"
    mine.delete()


CONSUMER = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    queue = node.queue("killed")
    for message in queue.consume(exclusive=True):
        print(message.body.decode(), flush=True)
"""


def test_it_goes_with_its_process(node: RealNode, one: warren.Node) -> None:
    queue = one.queue("killed")
    queue.put(b"held")
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, node.directory], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "held\n"
            with pytest.raises(warren.ResourceLocked, match=f"process {program.pid}"):
                next(queue.consume(exclusive=True))
        finally:
            program.kill()
    found: list[warren.Message] = []

    def taken() -> bool:
        try:
            found.append(next(queue.consume(timeout=30, exclusive=True)))
        except warren.ResourceLocked:
            return False
        return True

    wait_until(taken, 20, what="the end of what a killed process had")
    assert found[0].redelivered
    found[0].ack()
    queue.delete()


def test_threads_of_one_process(one: warren.Node) -> None:
    """Of many that begin at once, one is alone, and the others hear of it."""
    queue = one.queue("threads")
    queue.put_many([b"."] * 20)
    outcomes: list[str] = []
    begin, done = threading.Barrier(8), threading.Barrier(8)

    def consume() -> None:
        begin.wait()
        try:
            with_it = queue.consume(prefetch=1, timeout=30, exclusive=True)
            next(with_it).ack()
            outcomes.append("alone")
        except warren.ResourceLocked:
            outcomes.append("refused")
        done.wait()

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["alone"] + ["refused"] * 7
    queue.delete()


def test_a_worker_that_stands_still_lets_nobody_in_later(node: RealNode, other: warren.Node) -> None:
    """Who gave up is not let in when the worker goes on."""
    theirs = other.queue("frozen")
    with warren.attach(node.directory, call_timeout=0.5) as impatient:
        mine = impatient.queue("frozen")
        with frozen(node, "worker-0"), pytest.raises((warren.TimedOut, warren.PeerLost)):
            next(mine.consume(exclusive=True))
        theirs.put(b"x")
        assert next(theirs.consume(timeout=30, exclusive=True)).body == b"x"
    theirs.delete()


def test_a_queue_with_a_single_active_consumer_needs_none(one: warren.Node) -> None:
    queue = one.queue("single", single_active_consumer=True)
    with pytest.raises(warren.UsageError, match="leave out exclusive"):
        queue.consume(exclusive=True)
    with pytest.raises(warren.UsageError, match="exclusive must be True or False"):
        queue.consume(exclusive=1)  # type: ignore[arg-type]
    queue.delete()


def test_tasks(node: RealNode, other: warren.Node) -> None:
    async def main() -> None:
        theirs = other.queue("tasks")
        async with await warren.aio.attach(node.directory, name="tasks") as mine:
            queue = await mine.queue("tasks")
            await queue.put_many([b"1", b"2", b"3"])
            async with queue.consume(prefetch=1, exclusive=True) as messages:
                await (await anext(messages)).ack()
                with pytest.raises(warren.ResourceLocked, match="consumer of this client alone"):
                    await anext(queue.consume())
                with pytest.raises(warren.ResourceLocked, match=r"process \d+ \('tasks'\) alone"):
                    await asyncio.to_thread(next, theirs.consume())
                await asyncio.to_thread(node.kill, "worker-0")
                await (await anext(messages)).ack()
                with pytest.raises(warren.ResourceLocked):
                    await asyncio.to_thread(next, theirs.consume(exclusive=True))
            with_it = theirs.consume(timeout=30, exclusive=True)
            (await asyncio.to_thread(next, with_it)).ack()
            with pytest.raises(warren.ResourceLocked, match=r"process \d+ \('other'\) alone"):
                await anext(queue.consume())
            waiting = asyncio.ensure_future(anext(queue.consume(exclusive=True)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises((asyncio.CancelledError, warren.ResourceLocked)):
                await waiting
            await asyncio.to_thread(with_it.close)
            await queue.put(b"4")
            async with queue.consume(timeout=30, exclusive=True) as messages:
                assert (await anext(messages)).body == b"4"
        theirs.delete()

    asyncio.run(main())


def test_a_cancelled_task_gives_it_back(node: RealNode, other: warren.Node) -> None:
    """Also when it is cancelled before it knows that it has it."""

    async def main() -> None:
        async with await warren.aio.attach(node.directory) as mine:
            queue = await mine.queue("cancelled")
            for turns in range(6):
                consumer = queue.consume(exclusive=True)
                task = asyncio.ensure_future(anext(consumer))
                for _ in range(turns):
                    await asyncio.sleep(0.001 * turns)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await consumer.aclose()
            theirs = other.queue("cancelled")
            await queue.put(b"x")
            assert (await asyncio.to_thread(taken_alone, theirs)).body == b"x"
        theirs.delete()

    asyncio.run(main())


def taken_alone(queue: warren.Queue) -> warren.Message:
    found: list[warren.Message] = []

    def taken() -> bool:
        try:
            found.append(next(queue.consume(timeout=30, exclusive=True)))
        except warren.ResourceLocked:
            return False
        return True

    wait_until(taken, 20, what="the end of a cancelled consumer")
    return found[0]


def test_a_new_attachment_asks_again(tmp_path: Path) -> None:
    """A kill of the whole node leaves the queue with whoever had it. When it was stopped and started, who is there
    first has it, and the other one hears of that.
    """
    with (
        RealNode(tmp_path / "data", profile="small", workers=1) as node,
        warren.attach(node.directory, name="one") as one,
        warren.attach(node.directory, name="other") as other,
    ):
        mine, theirs = one.queue("q"), other.queue("q")
        mine.put_many([b"1", b"2"])
        messages = mine.consume(prefetch=1, timeout=60, exclusive=True)
        first = next(messages)
        first.ack()
        node.kill_all()
        node.start()
        with pytest.raises(warren.ResourceLocked, match=r"\('one'\) alone"):
            next(theirs.consume(exclusive=True))
        node.stop()
        node.start()
        with_it = theirs.consume(prefetch=1, timeout=60, exclusive=True)
        next(with_it).ack()
        with pytest.raises(warren.ResourceLocked, match=r"\('other'\) alone"):
            next(messages)
        with_it.close()
