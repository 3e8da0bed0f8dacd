"""A reader of a topic in an event loop: warren.Reader, awaited.

What reads, and what asks the topic worker, runs in the threads for what blocks, one call after the other; messages are
handed out in the loop. So a task that is cancelled in `get` has taken none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from warren.engine._core import Record
from warren.engine.errors import ClosedError, Error, UsageError
from warren.workers.client.arguments import checked_count
from warren.workers.faces import topic_reader
from warren.workers.faces.aio.base import deadline_of, is_late, time_left
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.aio.work_queue import QueueEmpty
from warren.workers.faces.topic_reader import (
    PREFETCH_MAX,
    Start,
    all_done,
    join_group,
    no_message,
    prepare,
    take_ready,
)

P = ParamSpec("P")
T = TypeVar("T")

#: how often who waits for a message looks for one: first and at most
LOOK_FIRST_S, LOOK_S = 0.001, 0.02


class Reader:
    """Reads queues of a topic, alone or as a member of a group: an async iterator and context manager. It joins its
    group with `async with`, or with its first call. Made by `topic.reader()`.
    """

    def __init__(self, loop: Loop, reader: topic_reader.Reader) -> None:
        self._loop = loop
        self._reader = reader
        self._getting = False
        self._running: asyncio.Task[Any] | None = None  # in a thread

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a reader of warren.aio belongs to its event loop: give another process the node's directory and the "
            "topic's name, and make a reader of its own there"
        )

    def __repr__(self) -> str:
        return f"<aio.{repr(self._reader)[1:]}"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._reader.topic

    @property
    def group(self) -> str | None:
        """The group's name; None: it reads alone."""
        return self._reader.group

    @property
    def assigned(self) -> list[int]:
        """The queues that it reads, as far as it has heard."""
        return self._reader.assigned

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._reader.closed

    @property
    def skipped(self) -> int:
        """Messages that were gone before they were read (on_data_loss="skip")."""
        return self._reader.skipped

    @property
    def damaged(self) -> int:
        """Places that were passed by because they were damaged (damage="skip")."""
        return self._reader.damaged

    @property
    def fenced(self) -> int:
        """How often queues were taken away with work that was done and not committed yet."""
        return self._reader.fenced

    # -- messages -----------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> Record:
        """The next message: as warren.Reader.get. Who waits looks every 20 ms."""
        found = await self._get(1, timeout)
        if not found:
            raise QueueEmpty(no_message(self._reader, timeout))
        return found[0]

    async def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Record]:
        """The next messages, 1 to `max`, of one queue: as warren.Reader.get_many."""
        return await self._get(checked_count(max, "max", 1, PREFETCH_MAX), timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next message, without end: until the reader is closed."""
        try:
            return await self.get()
        except ClosedError:
            if self._reader.closed:
                raise StopAsyncIteration from None
            raise

    async def _get(self, most: int, timeout: float | None) -> list[Record]:
        self._loop.enter()
        deadline = deadline_of(timeout)
        if self._getting:
            raise UsageError("another task is in get() of this reader: make one for each, or share what one gets")
        self._getting = True
        try:
            pause_s, sure = LOOK_FIRST_S, False
            while not (found := take_ready(self._reader, most, sure)):
                sure = await self._do(prepare, self._reader)
                if sure:
                    continue
                if is_late(deadline):
                    return []
                await asyncio.sleep(pause_s if deadline is None else min(pause_s, time_left(deadline) or 0))
                pause_s = min(2 * pause_s, LOOK_S)
            return found
        finally:
            self._getting = False

    async def _do(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """In a thread, when the call before has ended: a task that was cancelled does not end its own."""
        while self._running is not None:
            await asyncio.wait([self._running])
        running = asyncio.create_task(self._loop.do(call, *args, **named))
        self._running = running

        def ended(done: asyncio.Task[T]) -> None:
            self._running = None
            if not done.cancelled():
                done.exception()  # of a task that was cancelled: the next call says it again

        running.add_done_callback(ended)
        return await asyncio.shield(running)

    # -- what a program says --------------------------------------------------------------------------------------

    async def commit(self, record: Record | None = None, timeout: float | None = None) -> None:
        """Commit what was handed out, or up to a message: as warren.Reader.commit."""
        await self._do(self._reader.commit, record, timeout)

    async def retry(self, record: Record, delay: float | None = None, timeout: float | None = None) -> None:
        """Give a message to the group again, later: as warren.Reader.retry."""
        await self._do(self._reader.retry, record, delay, timeout)

    async def seek(self, queue: int, where: int | Start, timeout: float | None = None) -> None:
        """Go on at another place of a queue: as warren.Reader.seek."""
        await self._do(self._reader.seek, queue, where, timeout)

    async def lag(self) -> dict[int, int]:
        """Of each of its queues how many messages are not committed: as warren.Reader.lag."""
        return await self._do(self._reader.lag)

    async def close(self, timeout: float | None = None) -> None:
        """Leave the group: as warren.Reader.close."""
        await self._do(self._reader.close, timeout)

    async def __aenter__(self) -> Self:
        await self._do(join_group, self._reader)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            all_done(self._reader)
        try:
            await self.close()
        except Error:
            if kind is None:
                raise
