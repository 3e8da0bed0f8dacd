"""Goal: what a client held is back when its close() returns, in order, and the names that were its own are free.

Method: one client holds messages in every way and leaves; another takes, with no time to wait, what must be there.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROUNDS = 30


def hold_unacked(queue: warren.Queue) -> object:
    return [queue.get(timeout=5) for _ in range(3)]


def hold_many(queue: warren.Queue) -> object:
    return queue.get_many(5, timeout=5)


def hold_ahead(queue: warren.Queue) -> object:
    messages = queue.consume(prefetch=8, timeout=5)
    return next(messages), messages


def hold_one(queue: warren.Queue) -> object:
    """Nacked a moment before."""
    first, second = queue.get(timeout=5), queue.get(timeout=5)
    first.nack()
    return second


@pytest.mark.parametrize("hold", [hold_unacked, hold_many, hold_ahead, hold_one])
def test_what_a_client_held_is_back_when_close_returns(
    directory: Path, name: str, hold: Callable[[warren.Queue], object]
) -> None:
    bodies = [b"%d" % n for n in range(10)]
    with warren.attach(directory) as other:
        queue = other.queue(name)
        queue.put_many(bodies)
        for _ in range(ROUNDS):
            node = warren.attach(directory)
            held = hold(node.queue(name))
            node.close()
            got = queue.get_many(100, timeout=0)
            assert [message.body for message in got] == bodies
            queue.nack(got)
            queue.release()
            del held


def test_what_a_work_queue_held_is_back_when_close_returns(directory: Path, name: str) -> None:
    with warren.attach(directory) as node, warren.attach(directory) as other:
        mine, theirs = node.work_queue(name), other.work_queue(name)
        for n in range(10):
            mine.put(b"%d" % n)
        for _ in range(ROUNDS):
            for _ in range(4):
                mine.get(timeout=5)
            mine.close()
            assert [theirs.get(timeout=0) for _ in range(10)] == [b"%d" % n for n in range(10)]
            theirs.close()


def test_what_an_asyncio_client_held_is_back_when_close_returns(directory: Path, name: str) -> None:
    async def hold() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            await queue.get(timeout=5)
            async for _message in queue.consume(prefetch=5, timeout=5):
                break

    bodies = [b"%d" % n for n in range(10)]
    with warren.attach(directory) as other:
        queue = other.queue(name)
        queue.put_many(bodies)
        for _ in range(ROUNDS):
            asyncio.run(hold())
            got = queue.get_many(100, timeout=0)
            assert [message.body for message in got] == bodies
            queue.nack(got)
            queue.release()


def test_what_a_loop_leaves_is_back_when_it_is_left(directory: Path, name: str) -> None:
    with warren.attach(directory) as node, warren.attach(directory) as other:
        mine, theirs = node.queue(name), other.queue(name)
        mine.put_many([b"%d" % n for n in range(10)])
        for _ in range(ROUNDS):
            with mine:
                for message in mine.consume(prefetch=10):
                    message.nack()
                    break
            got = theirs.get_many(100, timeout=0)
            assert sorted(message.body for message in got) == [b"%d" % n for n in range(10)]
            theirs.nack(got)
            theirs.release()


def test_the_name_of_an_exclusive_queue_is_free_when_its_client_has_closed(directory: Path, name: str) -> None:
    with warren.attach(directory) as other:
        for _ in range(ROUNDS):
            node = warren.attach(directory)
            node.queue(name, exclusive=True).put(b"mine")
            node.queue(f"{name}-too", exclusive=True)
            node.close()
            assert not {name, f"{name}-too"} & set(other.queues())
            assert other.queue(name, exclusive=True).depth() == 0
            other.delete_queue(name)


def test_the_name_of_an_exclusive_queue_is_free_when_its_client_was_killed(directory: Path, name: str) -> None:
    with warren.attach(directory) as other:
        for _ in range(5):
            read, write = os.pipe()
            child = os.fork()
            if not child:
                node = warren.attach(directory)
                node.queue(name, exclusive=True)
                os.write(write, b"x")
                signal.pause()
            os.close(write)
            assert os.read(read, 1) == b"x"
            os.close(read)
            with pytest.raises(warren.ResourceLocked):
                other.queue(name)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert other.queue(name, exclusive=True).depth() == 0
            other.delete_queue(name)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as running:
        yield running


@pytest.mark.parametrize("role", ["worker-0", "store", "supervisor"])
def test_close_ends_when_a_server_does_not_answer(own: RealNode, role: str) -> None:
    pid = own.pids()[role]
    node = warren.attach(own.directory)
    queue = node.queue("q", exclusive=True)
    queue.put_many([b"1", b"2"])
    held = queue.get(timeout=5)
    os.kill(pid, signal.SIGSTOP)
    closing = threading.Thread(target=node._client.close, args=(1.5,))
    try:
        closing.start()
        closing.join(20)
        assert not closing.is_alive(), "it waits until the server goes on"
    finally:
        os.kill(pid, signal.SIGCONT)
        closing.join()
    del held
    with warren.attach(own.directory) as other:
        wait_until(lambda: other.queues() == [], 10, what="the exclusive queue to be gone")
