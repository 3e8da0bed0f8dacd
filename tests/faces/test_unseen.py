"""Goal: what was delivered ahead and handed to nobody returns in order, and its delivery does not count, also when the
client was killed.

Method: a real node; a delivery limit that one counted return would pass.
"""

import asyncio
import os
import signal
from pathlib import Path
from uuid import uuid4

import pytest

import warren
import warren.aio

from support.waiting import wait_until

pytestmark = pytest.mark.integration

BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture
def name(directory: Path) -> str:
    """A queue of twenty messages, each of which may be returned once."""
    made = f"q-{uuid4().hex[:8]}"
    with warren.attach(directory) as node:
        node.queue(made, delivery_limit=1).put_many(BODIES)
    return made


def counts(directory: Path, name: str) -> list[tuple[bytes, int]]:
    """All that is left: bodies and how often they were delivered before."""
    with warren.attach(directory) as node:
        queue = node.queue(name, create=False)
        wait_until(lambda: queue.stats()["unacked"] == 0)
        found: list[warren.Message] = []
        while part := queue.get_many(100, timeout=0.2):
            found += part
        queue.ack(found)
        return [(message.body, message.delivery_count) for message in found]


def unacked(directory: Path, name: str, count: int) -> None:
    """Wait until so many are delivered and not acked."""
    with warren.attach(directory) as node:
        wait_until(lambda: node.queue(name, create=False).stats()["unacked"] == count)


def test_leaving_consume_does_not_count(directory: Path, name: str) -> None:
    with warren.attach(directory) as node, node.queue(name, create=False) as queue:
        for number in range(3):
            messages = queue.consume(prefetch=20)
            message = next(messages)
            assert (message.body, message.delivery_count) == (BODIES[number], 0)
            unacked(directory, name, len(BODIES) - number)  # all the others lie here
            message.ack()
            messages.close()  # type: ignore[attr-defined]  # a generator
            unacked(directory, name, 0)
    assert counts(directory, name) == [(body, 0) for body in BODIES[3:]]


def test_closing_does_not_count(directory: Path, name: str) -> None:
    for number in range(3):
        with warren.attach(directory) as node:
            messages = node.queue(name, create=False).consume(prefetch=20)
            message = next(messages)
            assert (message.body, message.delivery_count) == (BODIES[number], 0)
            unacked(directory, name, len(BODIES) - number)
            message.ack()
        unacked(directory, name, 0)
        messages.close()  # type: ignore[attr-defined]  # a generator
    assert counts(directory, name) == [(body, 0) for body in BODIES[3:]]


def test_closing_a_node_of_asyncio_does_not_count(directory: Path, name: str) -> None:
    async def take(number: int) -> None:
        async with warren.aio.attach(directory) as node:
            messages = (await node.queue(name, create=False)).consume(prefetch=20)
            message = await anext(messages)
            assert (message.body, message.delivery_count) == (BODIES[number], 0)
            await asyncio.get_running_loop().run_in_executor(None, unacked, directory, name, len(BODIES) - number)
            await message.ack()

    for number in range(3):
        asyncio.run(take(number))
        unacked(directory, name, 0)
    assert counts(directory, name) == [(body, 0) for body in BODIES[3:]]


def test_what_was_handed_out_counts(directory: Path, name: str) -> None:
    for _round in range(2):
        with warren.attach(directory) as node:
            node.queue(name, create=False).get(timeout=10)
        unacked(directory, name, 0)
    assert counts(directory, name) == [(body, 0) for body in BODIES[1:]], "the first was returned twice: the limit"


def test_of_a_killed_client_counts_what_it_had_handed_out(directory: Path, name: str) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with warren.attach(directory) as node:
                queue = node.queue(name, create=False)
                messages = queue.consume(prefetch=20)
                next(messages)
                next(messages)
                wait_until(lambda: queue.stats()["unacked"] == len(BODIES))
                os.write(write, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with warren.attach(directory) as node:
        wait_until(lambda: node.queue(name, create=False).stats()["unacked"] == 0, 20)
    assert counts(directory, name) == [(body, int(place < 2)) for place, body in enumerate(BODIES)]
