"""Goal: who holds all that a worker may deliver to a client is told so (LimitError) by all that receives, in both
interfaces, also when it waits already; nothing says "empty" then, and after an ack all go on.

Method: a real node; a client that acks nothing.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio

pytestmark = pytest.mark.integration

#: the setting delivery_slots
SLOTS = 4096


def filled(queue: warren.Queue) -> None:
    queue.put_many([b"%d" % number for number in range(SLOTS + 100)])


async def hold_all(queue: warren.aio.Queue) -> list[warren.aio.Message]:
    found: list[warren.aio.Message] = []
    while len(found) < SLOTS:
        found += await queue.get_many(SLOTS - len(found), timeout=60)
    return found


async def next_of(messages: Any) -> Any:
    async with messages:
        return await anext(messages)


TASKS: dict[str, Callable[[warren.aio.Queue, float | None], Awaitable[Any]]] = {
    "get": lambda queue, timeout: queue.get(timeout=timeout),
    "get_many": lambda queue, timeout: queue.get_many(10, timeout=timeout),
    "consume": lambda queue, timeout: next_of(queue.consume(timeout=timeout)),
    "consume(10)": lambda queue, timeout: next_of(queue.consume(10, timeout=timeout)),
}
THREADS: dict[str, Callable[[warren.Queue, float | None], Any]] = {
    "get": lambda queue, timeout: queue.get(timeout=timeout),
    "get_many": lambda queue, timeout: queue.get_many(10, timeout=timeout),
    "consume": lambda queue, timeout: next(iter(queue.consume(timeout=timeout))),
    "consume(10)": lambda queue, timeout: next(iter(queue.consume(10, timeout=timeout))),
}


def test_a_task_that_holds_every_slot_is_told(node: warren.Node, directory: Path, name: str) -> None:
    filled(node.queue(name))

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name)
            held = await hold_all(queue)
            for what, call in TASKS.items():
                for timeout in (0, 0.2, None):
                    with pytest.raises(warren.LimitError, match="delivery_slots"):
                        async with asyncio.timeout(120):
                            pytest.fail(f"{what} with timeout={timeout} gave {await call(queue, timeout)!r}")
            await held[0].ack()
            assert (await queue.get(timeout=60)).body == b"%d" % SLOTS

    asyncio.run(main())


def test_a_thread_that_holds_every_slot_is_told(directory: Path, name: str) -> None:
    with warren.attach(directory) as mine:
        queue = mine.queue(name)
        filled(queue)
        held: list[warren.Message] = []
        while len(held) < SLOTS:
            held += queue.get_many(SLOTS - len(held), timeout=60)
        for what, call in THREADS.items():
            for timeout in (0, 0.2, None):
                with pytest.raises(warren.LimitError, match="delivery_slots"):
                    pytest.fail(f"{what} with timeout={timeout} gave {call(queue, timeout)!r}")
        held[0].ack()
        assert queue.get(timeout=60).body == b"%d" % SLOTS


def test_a_work_queue_whose_items_nobody_finishes_says_so(node: warren.Node, directory: Path, name: str) -> None:
    filled(node.queue(name))
    with warren.attach(directory) as mine:
        tasks = mine.work_queue(name)
        for _number in range(SLOTS):
            tasks.get(timeout=60)
        for call in (lambda: tasks.get(timeout=0.2), tasks.get_nowait, tasks.get):
            with pytest.raises(warren.LimitError, match="delivery_slots"):
                call()
        tasks.task_done()
        assert tasks.get(timeout=60) == b"%d" % SLOTS

    async def main() -> None:
        async with warren.aio.attach(directory) as other:
            items = await other.work_queue(name)
            for _number in range(SLOTS):
                await items.get(timeout=60)
            for get in (lambda: items.get(timeout=0.2), items.get_nowait, items.get):
                with pytest.raises(warren.LimitError, match="delivery_slots"):
                    async with asyncio.timeout(120):
                        await get()
            items.task_done()
            await items.get(timeout=60)

    asyncio.run(main())


def test_who_waits_is_told_when_it_becomes_full(directory: Path, name: str) -> None:
    """Of one queue nothing comes; messages of another one of the same worker take all slots meanwhile."""
    with warren.attach(directory) as node:
        names, worker = [], None
        while len(names) < 2:
            made = f"{name}-{len(node.queues())}"
            node.queue(made)
            index = next(queue["worker"] for queue in node.status()["queues"] if queue["name"] == made)
            if worker in (None, index):
                worker = index
                names.append(made)
        empty, other = names
        filled(node.queue(other))

        async def main() -> None:
            async with warren.aio.attach(directory) as mine:
                queue = await mine.queue(empty)
                waiting = [asyncio.create_task(queue.get()), asyncio.create_task(next_of(queue.consume()))]
                await asyncio.sleep(0)
                held = await hold_all(await mine.queue(other))
                for task in waiting:
                    with pytest.raises(warren.LimitError, match="delivery_slots"):
                        async with asyncio.timeout(120):
                            await task
                await held[0].ack()
                await queue.put(b"goes on")
                async with await queue.get(timeout=60) as message:
                    assert message.body == b"goes on"

        asyncio.run(main())

        told: list[BaseException] = []
        idle = node.queue(empty)

        def wait() -> None:
            try:
                idle.get()
            except warren.LimitError as error:
                told.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        source, held = node.queue(other), 0
        while held < SLOTS:
            held += len(source.get_many(SLOTS - held, timeout=60))
        thread.join(120)
        assert told


def test_one_get_many_returns_at_most_half_of_the_slots(node: warren.Node, name: str) -> None:
    """As its docstring says: the next call goes on, in order, as long as what was got is settled."""
    queue = node.queue(name)
    filled(queue)
    found: list[warren.Message] = []
    while len(found) < SLOTS + 100:
        some = queue.get_many(100_000, timeout=30)
        assert 0 < len(some) <= SLOTS // 2
        queue.ack(some)
        found += some
    assert [message.body for message in found] == [b"%d" % number for number in range(SLOTS + 100)]
