"""Goal: of gets that run together in one process none reports an empty queue while messages are ready for it.

Method: the worker stands still while the gets ask it, so that they share what is asked for, which is less than they
want together; then it answers all at once. Threads do so in rounds: what one takes of what was asked for another
is a matter of moments.
"""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import warren
import warren.aio

from support.real_node import RealNode, frozen
from support.waiting import wait_until

pytestmark = pytest.mark.integration
#: number of gets, and for how many of them the worker is asked: for the first ones, which are more than half
GETS, ASKED = 7, 4
ROUNDS = 20
#: time is up at once, and yet it is not a look
MOMENT_S = 1e-6


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node with one worker."""
    with RealNode(tmp_path_factory.mktemp("node") / "data", workers=1) as started:
        yield started


@pytest.mark.parametrize("ready", [GETS + 2, GETS])
def test_no_task_finds_a_queue_empty_that_is_not(running: RealNode, name: str, ready: int) -> None:
    async def main() -> list[warren.aio.Message]:
        async with warren.aio.attach(running.directory) as node:
            queue = await node.queue(name, max_length=100)  # no more is asked for than is wanted
            await queue.put_many([b"x"] * ready)
            loop, handle = queue._loop, queue._underneath.handle
            core = loop.core
            assert core is not None
            gets: list[asyncio.Task[warren.aio.Message]] = []

            async def each_waits_for_an_answer() -> None:
                while sum(get.done() for get in gets) + len(loop._until) < len(gets):
                    await asyncio.sleep(0)

            with frozen(running):
                for many in (ASKED, GETS):
                    gets += [asyncio.create_task(queue.get(timeout=0)) for _ in range(many - len(gets))]
                    await each_waits_for_an_answer()
            wait_until(
                lambda: core.lying(handle.server) and handle.pending == ASKED, what="messages for the first ones"
            )
            with frozen(running):
                await asyncio.wait(gets[:ASKED])
                await each_waits_for_an_answer()
            return [await get for get in gets]

    assert len(asyncio.run(asyncio.wait_for(main(), 60))) == GETS


@pytest.mark.parametrize("timeout", [0, MOMENT_S])
def test_no_thread_finds_a_queue_empty_that_is_not(running: RealNode, name: str, timeout: float) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue, others = node.queue(name, max_length=100), other.queue(name)
        for _round in range(ROUNDS):
            others.put_many([b"x"] * (GETS + 2))
            begin = threading.Barrier(GETS + 1)
            found: list[str] = []

            def take(begin: threading.Barrier = begin, found: list[str] = found) -> None:
                begin.wait()
                while True:
                    try:
                        queue.get(timeout=timeout).ack()
                        return found.append("a message")
                    except warren.TimedOut:  # nobody has answered yet
                        continue
                    except warren.QueueEmpty:
                        return found.append("empty")

            threads = [threading.Thread(target=take) for _ in range(GETS)]
            with frozen(running):
                for thread in threads:
                    thread.start()
                begin.wait()
            for thread in threads:
                thread.join(60)
            assert found == ["a message"] * GETS
            queue.ack(queue.get_many(GETS, timeout=5))
