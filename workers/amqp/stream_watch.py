"""Who waits at the end of a stream: one look for all consumers of a gateway, in one thread, however many wait.

Looks are dense at first, for who has just read something, and rest 20 ms between two of them when nothing comes.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from warren.engine.errors import Error
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.topic_reading import TopicReading

#: pause between two looks: first and at most
LOOK_FIRST_S, LOOK_S = 0.001, 0.02


class _Waiting(NamedTuple):
    reading: TopicReading
    offset: int  #: there is nothing to be read from here on yet
    future: asyncio.Future[None]


class StreamWatch:
    """That of a gateway. It costs nothing while nobody waits."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[_Waiting] = []
        self._pause = LOOK_FIRST_S
        self._task: asyncio.Task[None] | None = None

    async def more(self, reading: TopicReading, offset: int) -> None:
        """Return when there is something behind this offset, or a reason why it cannot be known."""
        waiting = _Waiting(reading, offset, self._loop.events.create_future())
        self._waiting.append(waiting)
        self._pause = LOOK_FIRST_S
        if self._task is None or self._task.done():
            self._task = self._loop.spawn(self._look())
        try:
            await waiting.future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def _look(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LOOK_S)
                if not self._waiting:
                    return
                for found in await self._loop.do(_moved, list(self._waiting)):
                    if not found.future.done():
                        found.future.set_result(None)
        finally:  # whoever is left looks by himself, and comes again
            for left in self._waiting:
                if not left.future.done():
                    left.future.set_result(None)


def _moved(waiting: list[_Waiting]) -> list[_Waiting]:
    """Those that have something to read. In a thread; a consumer meets its own error when it reads."""
    found = []
    for one in waiting:
        try:
            moved = one.reading.offsets(0)[1] > one.offset
        except Error:
            moved = True
        if moved:
            found.append(one)
    return found
