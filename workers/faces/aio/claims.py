"""Consuming a queue alone, or beside others, in an event loop: the worker is asked before a consumer comes, and told
when the last one has gone (workers/client/joining.py).

Invariants
  What the worker was asked is taken back when it comes to nothing: the LEAVE is sent behind the question, whatever was
  answered, and before anybody here asks anew.
  Who asks counts here from then on, so of two that ask at once one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from warren.engine._core import AttachmentLost
from warren.engine.errors import Error
from warren.workers.client import joining
from warren.workers.faces.aio.base import RETRY_S, Underneath, run_blocking
from warren.workers.faces.aio.loop import Loop


class Claims:
    """Those of one queue. `in_use`: whether somebody consumes here; `heard`: waits until the worker has done what it
    was told, but not for long.
    """

    def __init__(
        self, loop: Loop, queue: Underneath, in_use: Callable[[], bool], heard: Callable[[], Awaitable[object]]
    ) -> None:
        self._loop, self._queue = loop, queue
        self._in_use, self._heard = in_use, heard
        self.alone = False  #: who consumes here has the queue alone
        self.joined = False  #: the worker was asked whether we may consume
        self._coming = 0  # consumers that are about to come
        self._departing: asyncio.Task[None] | None = None

    async def claim(self, exclusive: bool, always: bool = False) -> None:
        """A consumer is about to come: may it, and have the queue alone? `always`: the worker is asked in any case. Who
        does not come after all says so by `unclaim`. Raises ResourceLocked and what joining.join raises.
        """
        if self.alone or (exclusive and (self._in_use() or self._coming)):
            raise joining.of_own(self._queue.name, self.alone)
        self._coming += 1
        self.alone = exclusive
        asking: asyncio.Future[None] | None = None
        try:
            while self._departing is not None and not self._departing.done():
                await asyncio.wait([self._departing])
            always = always and not (self.joined and self._in_use())
            if not self._queue.is_own and (exclusive or always or self._queue.has_to_ask):
                self.joined = True  # perhaps, whatever comes of it: so it is taken back
                asking = asyncio.ensure_future(run_blocking(self._queue.join, exclusive))
                await asyncio.shield(asking)
        except BaseException:
            self._coming -= 1
            if exclusive:
                self.alone = False
            self.depart(asking)
            raise
        self._coming -= 1

    def unclaim(self) -> None:
        """Who claimed does not come."""
        self.depart(None)

    def depart(self, after: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
        """A consumer has gone. If it was the last one the worker is told, when `after` is done. What to wait for."""
        if self._in_use() or self._coming:
            return after
        self.alone = False
        if not self.joined or self._loop.closing:
            return after
        self._departing = self._loop.spawn(self._say_so(after))
        return self._departing

    async def _say_so(self, after: asyncio.Future[Any] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
            with contextlib.suppress(Error, AttachmentLost, asyncio.CancelledError):
                after.result()  # so that nobody misses it
        self.joined = False
        with contextlib.suppress(Error, AttachmentLost):  # it goes with the attachment
            while self._queue.handle.usable and not self._queue.handle.leave():
                await asyncio.sleep(RETRY_S)
            await self._heard()

    def again(self) -> None:
        """Whoever consumes here does so by another attachment now. It blocks; raises what joining.join raises."""
        if self._in_use() and not self._queue.is_own and (self.joined or self._queue.has_to_ask):
            self.joined = True
            self._queue.join(self.alone)

    def left(self) -> bool:
        """In a thread, when the event loop rests: False: there is no room to say it now."""
        return not self.joined or self._queue.handle.leave()
