"""Goal: one consumer sees the messages of a queue in the order of their publication, each once, however often what was
delivered ahead returns while it goes on: docs/python.md, order.

Method: a real node with a backlog; a thread (a task) that returns what lies ready all the time.
"""

import asyncio
import itertools
import os
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.waiting import wait_until

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


# -- what returns comes first (rule Q11) ------------------------------------------------------------------------------


def declared(directory: Path, **arguments: Any) -> str:
    """A queue with twenty messages."""
    name = f"q-{uuid4().hex[:8]}"
    with warren.attach(directory) as node:
        node.queue(name, **arguments).put_many([b"%d" % number for number in range(20)])
    return name


KINDS = [{}, {"durable": False}, {"max_priority": 3}, {"max_length": 30}, {"message_ttl": 3600.0}]


@pytest.mark.parametrize("arguments", KINDS, ids=str)
def test_what_is_nacked_is_the_next_of_gets(directory: Path, arguments: dict[str, Any]) -> None:
    """A loop of gets has messages ahead: these make way."""
    with warren.attach(directory) as node:
        queue = node.queue(declared(directory, **arguments), create=False)
        held = [queue.get(timeout=20) for _ in range(6)]
        held[3].nack()
        held[1].nack()
        again = [queue.get(timeout=20) for _ in range(3)]
        assert [message.body for message in again] == [b"1", b"3", b"6"]


@pytest.mark.parametrize("arguments", KINDS, ids=str)
def test_what_is_nacked_is_the_next_of_gets_of_a_loop(directory: Path, arguments: dict[str, Any]) -> None:
    async def work() -> None:
        async with await warren.aio.attach(directory) as node:
            queue = await node.queue(declared(directory, **arguments), create=False)
            held = [await queue.get(timeout=20) for _ in range(6)]
            await held[3].nack()
            await held[1].nack()
            again = [await queue.get(timeout=20) for _ in range(3)]
            assert [message.body for message in again] == [b"1", b"3", b"6"]
            await queue.nack([*held[4:], *again])
            found = await queue.get_many(20, timeout=20)
            assert [message.body for message in found] == [b"1", *(b"%d" % number for number in range(3, 20))]

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("end", ["leaves", "nacks", "closes", "is killed"])
def test_the_next_single_active_consumer_gets_what_the_last_one_had_first(directory: Path, end: str) -> None:
    """It had two of six that were delivered to it in hand; the next one waits meanwhile."""
    name = declared(directory, single_active_consumer=True)
    read, write = os.pipe()
    proceed, go_on = os.pipe()
    child = os.fork()
    if not child:
        try:
            with warren.attach(directory) as node:
                queue = node.queue(name, create=False)
                messages = queue.consume(prefetch=6, timeout=20)
                held = [next(messages), next(messages)]
                os.write(write, b"x")
                os.read(proceed, 1)
                if end != "is killed":
                    messages.close()  # type: ignore[attr-defined]  # a generator: the four return
                if end == "nacks":
                    queue.nack(held[::-1])
                os.write(write, b"x")
                if end != "closes":
                    os.read(proceed, 1)
        finally:
            os._exit(0)
    try:
        assert os.read(read, 1) == b"x"
        with warren.attach(directory) as node:
            queue = node.queue(name, create=False)
            found: list[bytes] = []
            consumed = queue.consume(prefetch=20, timeout=60)
            thread = threading.Thread(target=lambda: found.extend(next(consumed).body for _ in range(20)))
            thread.start()
            wait_until(lambda: queue.stats()["consumers"] == 2, what="the next consumer")
            os.write(go_on, b"x")
            assert os.read(read, 1) == b"x"
            if end in ("leaves", "is killed"):
                os.kill(child, signal.SIGKILL)
            thread.join()
            assert found == [b"%d" % number for number in range(20)]
    finally:
        os.write(go_on, b"xx")
        for end_of_pipe in (read, write, proceed, go_on):
            os.close(end_of_pipe)
        os.waitpid(child, 0)
