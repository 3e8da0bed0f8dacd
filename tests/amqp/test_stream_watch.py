"""Goal: however many consumers wait at the end of streams, there is one look at a time for all of them.

Method: readings with an end that the test moves, in an event loop that counts the looks; a node is not needed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from warren.engine.errors import TopicNotFound
from warren.workers.amqp.stream_watch import StreamWatch
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.topic_reading import TopicReading


class Reading:
    """A stream whose end is `high`."""

    def __init__(self) -> None:
        self.high = 0
        self.gone = False

    def offsets(self, _queue: int) -> tuple[int, int]:
        if self.gone:
            raise TopicNotFound("it was deleted")
        return 0, self.high


def with_watch(body: Callable[[StreamWatch, list[int]], Coroutine[Any, Any, None]]) -> None:
    """Run it in an event loop, with a watch and the number of those who waited at each look."""

    async def run() -> None:
        looks: list[int] = []

        async def do(call: Callable[[Any], Any], waiting: list[Any]) -> Any:
            looks.append(len(waiting))
            return call(waiting)

        loop = SimpleNamespace(events=asyncio.get_running_loop(), spawn=asyncio.ensure_future, do=do)
        await asyncio.wait_for(body(StreamWatch(cast("Loop", loop)), looks), 60)

    asyncio.run(run())


def waits(watch: StreamWatch, reading: Reading, offset: int) -> "asyncio.Task[None]":
    return asyncio.ensure_future(watch.more(cast("TopicReading", reading), offset))


def test_one_look_is_for_all_and_each_returns_when_it_has_something() -> None:
    async def body(watch: StreamWatch, looks: list[int]) -> None:
        readings = [Reading() for _ in range(50)]
        tasks = [waits(watch, reading, 0) for reading in readings]
        while not looks:
            await asyncio.sleep(0.001)
        assert looks[0] == 50
        readings[7].high = 1
        await tasks[7]
        assert [task.done() for task in tasks].count(True) == 1
        for reading in readings:
            reading.high = 1
        await asyncio.gather(*tasks)
        seen = len(looks)
        await asyncio.sleep(0.1)
        assert len(looks) == seen, "nobody waits: nobody looks"
        again = waits(watch, readings[0], 1)
        while len(looks) == seen:
            await asyncio.sleep(0.001)
        assert not again.done()
        readings[0].high = 2
        await again

    with_watch(body)


def test_who_is_cancelled_is_looked_for_no_more_and_who_meets_an_error_reads_to_see_it() -> None:
    async def body(watch: StreamWatch, looks: list[int]) -> None:
        first, second = Reading(), Reading()
        leaving, staying = waits(watch, first, 0), waits(watch, second, 0)
        while not looks:
            await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        while looks[-1] != 1:
            await asyncio.sleep(0.001)
        second.gone = True
        await staying

    with_watch(body)
