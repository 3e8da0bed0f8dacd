"""A half message in an event loop: warren.Half, awaited."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import EllipsisType, TracebackType
from typing import Self

from warren.engine._core import Position
from warren.engine.errors import Error
from warren.workers.faces import topic_halves
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.topic_halves import HalfMessage

#: a function, or a coroutine function, that answers for half messages
Check = Callable[[HalfMessage], object | Awaitable[object]]


class Half:
    """A half message: as warren.Half. `async with` commits it at the end of the block, or rolls it back."""

    def __init__(self, loop: Loop, half: topic_halves.Half) -> None:
        self._loop = loop
        self._half = half

    def __repr__(self) -> str:
        return f"<aio.Half {self.message_id} of topic {self.topic!r}, {self.state}>"

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._half.topic

    @property
    def message_id(self) -> str:
        """Of the half message: as warren.Half.message_id."""
        return self._half.message_id

    @property
    def state(self) -> str:
        """What became of it: as warren.Half.state."""
        return self._half.state

    @property
    def position(self) -> Position | None:
        """Where the message lies: as warren.Half.position."""
        return self._half.position

    async def commit(self, timeout: float | EllipsisType | None = ...) -> Position:
        """Append the message to its topic: as warren.Half.commit."""
        return await self._loop.do(self._half.commit, timeout)

    async def rollback(self, timeout: float | EllipsisType | None = ...) -> None:
        """The message will never be seen: as warren.Half.rollback."""
        await self._loop.do(self._half.rollback, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self.state != "pending":
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Error as failed:  # the block's own error says more
            error.add_note(f"the half message {self.message_id} could not be rolled back: {failed}")


def check_in(loop: asyncio.AbstractEventLoop, check: Check | None) -> Callable[[HalfMessage], object] | None:
    """A function for the thread that asks: a coroutine function runs in the event loop."""
    if check is None or not inspect.iscoroutinefunction(check):
        return check

    @functools.wraps(check)
    def in_thread(message: HalfMessage) -> object:
        return asyncio.run_coroutine_threadsafe(check(message), loop).result()

    return in_thread
