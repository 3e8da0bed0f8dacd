"""Goal: a reader in an event loop hands out what a blocking one does, and none that a cancelled task would have got.

Method: a real node; tasks of one loop.
"""

import asyncio
import pickle
from pathlib import Path

import pytest

import warren
import warren.aio

from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

QUEUES, MESSAGES = 2, 300
TIMEOUT = 60 * patience()


@pytest.fixture
def topic(node: warren.Node, name: str) -> warren.Topic:
    topic = node.topic(name, queues=QUEUES)
    for queue in range(QUEUES):
        topic.append_many([b"%d" % n for n in range(MESSAGES)], queue=queue)
    return topic


def test_all_in_order_and_goes_on_where_it_was(directory: Path, topic: warren.Topic) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            mine = await node.topic(topic.name)
            found: list[tuple[int, int]] = []
            async with mine.reader(group="report", prefetch=20) as reader:
                assert reader.assigned == list(range(QUEUES))
                async for record in reader:
                    found.append((record.queue, record.offset))
                    if len(found) == 100:
                        break
            async with mine.reader(group="report", prefetch=20, commit="manual") as reader:
                assert sum((await reader.lag()).values()) == QUEUES * MESSAGES - 100
                while many := await reader.get_many(50, 0):
                    found += [(record.queue, record.offset) for record in many]
                await reader.commit(many[-1] if many else None)
                await reader.seek(1, 7)
                assert (await reader.get(TIMEOUT)).offset == 7
            for queue in range(QUEUES):
                assert [offset for of, offset in found if of == queue] == list(range(MESSAGES))

    asyncio.run(main())


def test_a_cancelled_task_has_taken_none(directory: Path, topic: warren.Topic) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            mine = await node.topic(topic.name)
            found: list[tuple[int, int]] = []
            async with mine.reader(group="report", prefetch=2) as reader:
                while len(found) < QUEUES * MESSAGES:
                    getting = asyncio.create_task(reader.get(TIMEOUT))
                    for _ in range(len(found) % 5):
                        await asyncio.sleep(0)
                    getting.cancel()
                    try:
                        record = await getting
                    except asyncio.CancelledError:
                        record = await reader.get(TIMEOUT)
                    found.append((record.queue, record.offset))
            for queue in range(QUEUES):
                assert [offset for of, offset in found if of == queue] == list(range(MESSAGES))

    asyncio.run(main())


def test_what_waits_hears_of_messages_and_of_its_end(directory: Path, topic: warren.Topic) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            mine = await node.topic(topic.name)
            reader = mine.reader(group="report", start="latest")
            with pytest.raises(warren.aio.QueueEmpty, match="no message for this reader"):
                await reader.get(0)
            getting = asyncio.create_task(reader.get(TIMEOUT))
            await asyncio.sleep(0)
            with pytest.raises(warren.UsageError, match="another task"):
                await reader.get(0)
            await mine.append(b"new")
            assert (await getting).body == b"new"
            getting = asyncio.create_task(reader.get(TIMEOUT))
            await asyncio.sleep(0)
            await reader.close()
            with pytest.raises(warren.ClosedError):
                await getting
            assert reader.closed
            assert [record async for record in reader] == []
            with pytest.raises(TypeError, match="event loop"):
                pickle.dumps(reader)

    asyncio.run(main())


def test_who_did_not_call_for_too_long_is_told_once_and_goes_on(directory: Path, topic: warren.Topic) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            mine = await node.topic(topic.name)
            limits = {"session_timeout": None, "max_poll_interval": 1}
            async with mine.reader(group="report", commit="manual", **limits) as reader:  # type: ignore[arg-type]
                assert await reader.get_many(5, TIMEOUT)
                await asyncio.to_thread(wait_until, alone, TIMEOUT, what="its session has ended")
                with pytest.raises(warren.SessionExpired, match="max_poll_interval is 1 s"):
                    await reader.commit()
                while not (found := await again(reader)):
                    pass
                assert {record.offset for record in found} == {0}

    def alone() -> bool:
        return topic.groups() == []

    async def again(reader: warren.aio.Reader) -> list[warren.Record]:
        try:
            return await reader.get_many(1, TIMEOUT)
        except warren.SessionExpired:  # a loaded machine
            return []

    asyncio.run(main())
