"""Goal: one consumer sees the messages of a queue in the order of their publication, each once, however often what was
delivered ahead returns while it goes on: docs/python.md, order.

Method: a real node with a backlog; a thread (a task) that returns what lies ready all the time.
"""

import asyncio
import itertools
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import warren
import warren.aio

from support.real_node import RealNode

pytestmark = pytest.mark.integration

RETURNS = 500
AHEAD = 20_000
NUMBER = struct.Struct("<Q")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("node") / "data", workers=1) as running:
        yield running.directory


def got(queue: warren.Queue) -> list[warren.Message]:
    return [queue.get(timeout=20)]


def got_many(queue: warren.Queue) -> list[warren.Message]:
    return queue.get_many(100, timeout=20)


def consumed(queue: warren.Queue) -> list[warren.Message]:
    messages = queue.consume(prefetch=64, timeout=20)
    try:
        return list(itertools.islice(messages, 50))
    finally:
        messages.close()  # type: ignore[attr-defined]  # a generator


@pytest.mark.parametrize("take", [got, got_many, consumed])
def test_returns_keep_the_order(directory: Path, take: Callable[[warren.Queue], list[warren.Message]]) -> None:
    """The thread returns what lies ready, as the one does that looks after a loop of gets which has stopped."""
    with warren.attach(directory) as node:
        queue = node.queue(f"q-{uuid4().hex[:8]}")
        ended = threading.Event()
        releases = published = following = 0

        def release() -> None:
            nonlocal releases
            while not ended.wait(0.0005):
                queue.release()
                releases += 1

        thread = threading.Thread(target=release)
        thread.start()
        try:
            while releases < RETURNS or following < published:
                if releases < RETURNS and published - following < AHEAD:
                    queue.put_many([NUMBER.pack(published + number) for number in range(500)], durability="none")
                    published += 500
                messages = take(queue)
                found = [NUMBER.unpack(message.body)[0] for message in messages]
                assert found == list(range(following, following + len(found))), f"after {releases} returns"
                following += len(found)
                queue.ack(messages)
        finally:
            ended.set()
            thread.join()


def test_returns_of_a_loop_keep_the_order(directory: Path) -> None:
    """A task gives back what lies ready, as it is done when nobody gets any more, while gets come and go."""

    async def work() -> None:
        async with await warren.aio.attach(directory) as node:
            queue = await node.queue(f"q-{uuid4().hex[:8]}")
            published = following = returns = 0
            ended = False

            async def give_back() -> None:
                nonlocal returns
                while not ended:
                    await queue._line._give_back()
                    returns += 1
                    await asyncio.sleep(0.0003)

            giving = asyncio.create_task(give_back())
            while returns < 4 * RETURNS or following < published:
                if returns < 4 * RETURNS and published - following < AHEAD:
                    await queue.put_many([NUMBER.pack(published + n) for n in range(500)], durability="none")
                    published += 500
                messages = await queue.get_many(random.randrange(1, 60), timeout=20)
                found = [NUMBER.unpack(message.body)[0] for message in messages]
                assert found == list(range(following, following + len(found))), f"after {returns} returns"
                following += len(found)
                await queue.ack(messages)
                await asyncio.sleep(random.random() / 5000)
            ended = True
            await giving

    asyncio.run(asyncio.wait_for(work(), 120))
