"""Goal: an event loop that was closed while tasks waited, or that does not run for a while, keeps no message from
others; a loop that runs again goes on.

Method: a real node, and loops as programs leave them. What another client receives tells: it is not marked, and was not
counted as delivered.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import warren
import warren.aio

from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    if not made.is_closed():
        for task in asyncio.all_tasks(made):
            task.cancel()
        made.run_until_complete(asyncio.sleep(0))
        made.close()


def received(queue: warren.Queue, count: int) -> list[tuple[bytes, bool, int]]:
    """The next messages, as another client gets them: bodies, marks, deliveries before."""
    found: list[tuple[bytes, bool, int]] = []

    def enough() -> bool:
        for message in queue.get_many(count - len(found), timeout=0.2):
            found.append((message.body, message.redelivered, message.delivery_count))
            message.ack()
        return len(found) == count

    wait_until(enough, 60, what="the messages")
    return found


def one_waits(queue: warren.aio.Queue, seen: list[bytes]) -> list[Any]:
    async def wait() -> None:
        while True:
            message = await queue.get()
            seen.append(message.body)
            await message.ack()

    return [wait()]


def many_wait(queue: warren.aio.Queue, seen: list[bytes]) -> list[Any]:
    return [part for _number in range(5) for part in one_waits(queue, seen)]


def consumer(prefetch: int | None) -> Callable[[warren.aio.Queue, list[bytes]], list[Any]]:
    def consumers(queue: warren.aio.Queue, seen: list[bytes]) -> list[Any]:
        async def consume() -> None:
            async with queue.consume(prefetch) as messages:
                async for message in messages:
                    seen.append(message.body)
                    await message.ack()

        return [consume()]

    return consumers


WAITING = {"get": one_waits, "gets": many_wait, "consume": consumer(None), "prefetch": consumer(10)}


def begin(loop: asyncio.AbstractEventLoop, node: warren.Node, name: str, how: str, seen: list[bytes]) -> list[Any]:
    """Tasks wait for messages, and the loop is left alone. Returns what has to be kept."""
    kept: list[Any] = []

    async def wait() -> None:
        mine = await warren.aio.attach(node.directory, name="resting")
        queue = await mine.queue(name)
        kept.extend([mine, queue, *(asyncio.ensure_future(part) for part in WAITING[how](queue, seen))])
        while not (await queue.stats())["consumers"]:
            await asyncio.sleep(0.01)

    loop.run_until_complete(wait())
    return kept


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", WAITING)
def test_a_closed_loop_keeps_nothing(node: warren.Node, name: str, how: str, loop: asyncio.AbstractEventLoop) -> None:
    """Messages that came before the close, and those that come afterwards."""
    queue = node.queue(name)
    seen: list[bytes] = []
    kept = begin(loop, node, name, how, seen)
    queue.put_many([b"1", b"2", b"3"])
    wait_until(lambda: queue.stats()["unacked"], 30)
    loop.close()
    wait_until(lambda: queue.stats()["ready"] == 3, 60, what="the return of what came before")
    assert received(queue, 3) == [(b"1", False, 0), (b"2", False, 0), (b"3", False, 0)]
    for number in range(5):
        queue.put(b"%d" % number)
        assert received(queue, 1) == [(b"%d" % number, False, 0)]
    assert seen == []
    wait_until(lambda: queue.stats()["consuming"] == 0, 30)

    async def go_on() -> bytes:
        """In the next loop."""
        queue.release()
        queue.put(b"last")
        message = await kept[1].get(timeout=30)
        await message.ack()
        body: bytes = message.body
        await kept[0].close()
        return body

    assert asyncio.run(go_on()) == b"last"
    kept.clear()
    gc.collect()


@pytest.mark.parametrize("how", WAITING)
def test_a_loop_that_rests_keeps_nothing_and_goes_on(
    node: warren.Node, name: str, how: str, loop: asyncio.AbstractEventLoop
) -> None:
    queue = node.queue(name)
    seen: list[bytes] = []
    kept = begin(loop, node, name, how, seen)

    async def until_seen() -> None:
        while len(seen) < 2:
            await asyncio.sleep(0.01)

    for _again in range(2):
        queue.put_many([b"1", b"2", b"3"])
        wait_until(lambda: queue.stats()["ready"] == 3, 60, what="the return of what came for nobody")
        assert received(queue, 3) == [(b"1", False, 0), (b"2", False, 0), (b"3", False, 0)]
        assert seen == []
        queue.release()
        queue.put_many([b"4", b"5"])
        loop.run_until_complete(asyncio.wait_for(until_seen(), 60))
        assert sorted(seen) == [b"4", b"5"]
        seen.clear()
    loop.run_until_complete(kept[0].close())


def test_what_was_given_to_a_task_that_did_not_run_any_more_returns(
    node: warren.Node, name: str, loop: asyncio.AbstractEventLoop
) -> None:
    """The loop stops between the message and its task. When it goes on, the task waits for the next one."""
    queue = node.queue(name)
    seen: list[bytes] = []
    kept = begin(loop, node, name, "get", seen)

    def come_and_stop() -> None:
        queue.put(b"1")
        wait_until(lambda: queue.stats()["unacked"] == 1, 30)
        wait_until(lambda: len(loop._ready) > 0, 30, what="the bell")  # type: ignore[attr-defined]
        loop.call_soon(loop.stop)

    loop.call_soon(come_and_stop)
    loop.run_forever()
    assert received(queue, 1) == [(b"1", False, 0)]
    assert seen == []
    queue.release()
    queue.put(b"2")

    async def until_seen() -> None:
        while not seen:
            await asyncio.sleep(0.01)

    loop.run_until_complete(asyncio.wait_for(until_seen(), 60))
    assert seen == [b"2"]
    loop.run_until_complete(kept[0].close())


@pytest.mark.parametrize("how", WAITING)
def test_a_run_that_is_left_keeps_nothing(node: warren.Node, name: str, how: str) -> None:
    """asyncio.run ends by an exception: the node was not closed, and the program goes on."""
    queue = node.queue(name)
    seen: list[bytes] = []
    kept: list[Any] = []

    async def main() -> None:
        mine = await warren.aio.attach(node.directory, name="left")
        theirs = await mine.queue(name)
        kept.append(mine)
        kept.extend(asyncio.ensure_future(part) for part in WAITING[how](theirs, seen))
        while not (await theirs.stats())["consumers"]:
            await asyncio.sleep(0.01)
        raise KeyError("a mistake")

    with contextlib.suppress(KeyError):
        asyncio.run(main())
    queue.put_many([b"1", b"2"])
    wait_until(lambda: queue.stats()["ready"] == 2, 60, what="the return of what came for nobody")
    assert received(queue, 2) == [(b"1", False, 0), (b"2", False, 0)]
    assert seen == []

    async def close() -> None:
        await kept[0].close()

    asyncio.run(close())
