"""A queue of the node that behaves like asyncio.Queue, across processes: for programs that are written for that.

    tasks = await node.work_queue("tasks", maxsize=1000, serializer="json")
    await tasks.put({"page": 1})                    # durable when it returns
    item = await tasks.get()
    tasks.task_done()                               # only now is it removed
    await tasks.join()                              # until all items of all processes are done

What differs from asyncio.Queue
  What asks a worker is awaited: put_nowait, get_nowait, qsize, empty and full, too. task_done and shutdown are not.
  get, put and join take a timeout.
  task_done() acknowledges the oldest unfinished item of the calling task or, if that has none, of this node.
  The rest is as with the blocking work queue (workers/faces/work_queue.py).

Invariants
  An item is in `_undone` from get() to task_done(). A child of fork has none: they are its parent's.
  An item that the serializer cannot read is in the dead letters, or in `_unread` until the caller settles it or close()
  gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections import deque
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

from warren.engine import _core, errors
from warren.engine.errors import AckTimedOut, DiskFull, PeerLost, TimedOut, Undecodable
from warren.workers.client.arguments import checked_flag
from warren.workers.faces.aio.base import Body, deadline_of, is_late, run_blocking, time_left
from warren.workers.faces.aio.queue import Message, Queue, line_of, underneath_of
from warren.workers.faces.full import Room
from warren.workers.faces.interrupts import is_interrupt
from warren.workers.faces.queues import End, arguments_of, client_of, counts_of, waiting_of
from warren.workers.faces.serializer import Serializer
from warren.workers.faces.work_queue import ANSWER_LEAST_S, PAUSE_FIRST_S, PAUSE_MOST_S

T = TypeVar("T")


class QueueEmpty(errors.QueueEmpty, asyncio.QueueEmpty):
    """No item arrived within the timeout."""


class QueueFull(errors.QueueFull, asyncio.QueueFull):
    """The work queue is full."""


if sys.version_info >= (3, 13):

    class ShutDown(errors.ShutDown, asyncio.QueueShutDown):
        """This work queue was shut down in this process."""

else:

    class ShutDown(errors.ShutDown):
        """This work queue was shut down in this process."""


class WorkQueue(Generic[T]):
    """asyncio.Queue over a queue of the node. Created by `await node.work_queue`. An asynchronous context manager."""

    def __init__(self, queue: Queue, maxsize: int = 0, serializer: object = None) -> None:
        self.queue = queue
        self.maxsize = maxsize
        self._serializer = Serializer(serializer, queue.name)
        self._unpack = self._serializer.unpack
        self._pid = os.getpid()
        self._undone: deque[tuple[object, Message]] = deque()
        self._unread: list[Message] = []
        self._shut = End()
        self._drained = False

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a work queue of warren.aio belongs to its event loop: give another process the node's directory and the "
            "queue's name, and use warren.aio.attach there"
        )

    def __repr__(self) -> str:
        return f"<aio.WorkQueue {self.queue.name!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- putting ------------------------------------------------------------------------------------------------

    @overload
    async def put(self: WorkQueue[bytes], item: Body, timeout: float | None = None) -> None: ...
    @overload
    async def put(self, item: T, timeout: float | None = None) -> None: ...
    async def put(self, item: Any, timeout: float | None = None) -> None:
        """Put an item; when this returns it is stored (durable queue: on stable storage).

        With a maxsize it waits for a place for at most `timeout` seconds, as warren.WorkQueue.put, and raises the same:
        QueueFull is an asyncio.QueueFull, too. If it is cancelled while it waits, the item may be stored.
        """
        if self._shut.come:
            raise self._is_shut("nothing can be put into it by this object")
        deadline = deadline_of(timeout)
        body = self._serializer.packed(item)
        underneath = underneath_of(self.queue)
        room: Room | None = None
        while True:
            try:
                confirm = await self.queue.put(body, wait=False, timeout=time_left(deadline))
            except (TimedOut, DiskFull) as error:  # nothing was handed over
                if self._shut.come:
                    raise self._is_shut("publishers were blocked, and the item was not put") from error
                if deadline is None:
                    continue  # it waited for call_timeout, and goes on
                raise QueueFull(f"queue {self.queue.name!r} took nothing more within the timeout: {error}") from error
            try:
                await confirm.wait(self._storing(deadline))
                return
            except errors.QueueFull as error:
                room = room or Room(client_of(underneath), deadline)
                if not await underneath.wait_for(room, self._shut):
                    if self._shut.come:
                        raise self._is_shut("it was full, and the item was not put") from None
                    raise QueueFull(str(error)) from None

    def _storing(self, deadline: float | None) -> float | None:
        """How long a put waits until what was handed over is stored."""
        most = client_of(underneath_of(self.queue)).call_timeout
        return None if deadline is None or most is None else max(most, time_left(deadline) or 0.0)

    @overload
    async def put_nowait(self: WorkQueue[bytes], item: Body) -> None: ...
    @overload
    async def put_nowait(self, item: T) -> None: ...
    async def put_nowait(self, item: Any) -> None:
        """put(item, timeout=0): raises QueueFull at once. It still waits until the item is stored."""
        await self.put(item, 0)

    # -- getting ------------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> T:
        """The next item. Raises QueueEmpty (also an asyncio.QueueEmpty) if none arrives within `timeout` seconds; after
        shutdown() ShutDown, if none is left; Undecodable as warren.WorkQueue.get, whose `message` is awaited here.

        Cancelling a get loses no item.
        """
        message = await self._next(timeout)
        try:
            item: T = self._unpack(message.body)
        except BaseException as error:
            if not is_interrupt(error):
                raise await self._unreadable(message, error) from error
            await message.nack()
            raise
        self._mine().append((asyncio.current_task(), message))
        return item

    async def _next(self, timeout: float | None) -> Message:
        line = line_of(self.queue)
        if not self._shut.come:
            try:
                found = await line.get(1, timeout, self)
            except ShutDown:
                if not self._shut.come:
                    raise
            else:
                if not found:
                    raise QueueEmpty(f"queue {self.queue.name!r} had no item within {timeout} s")
                return found[0]  # type: ignore[return-value]  # the class given to Underneath
        if self._drained:
            raise self._is_shut("its items are left to other processes")
        found = await line.get(1, 0)
        if not found:
            raise self._is_shut("it is empty")
        return found[0]  # type: ignore[return-value]  # the class given to Underneath

    async def get_nowait(self) -> T:
        """get(timeout=0): does not wait for an item to arrive, only for the worker's answer."""
        return await self.get(0)

    async def _unreadable(self, message: Message, error: BaseException) -> Undecodable:
        """What to raise for an item that cannot be read: in the dead letters, or the caller's."""
        exchange = arguments_of(underneath_of(self.queue)).get("dead_letter_exchange")
        if exchange is not None:
            await message.reject()
        else:
            self._mine()
            self._unread = [one for one in self._unread if not one.settled] + [message]
        return self._serializer.undecodable(message, error, exchange)

    def task_done(self) -> None:
        """Acknowledge the oldest unfinished item of this task or, if it has none, of this node. Never waits.

        Raises ValueError if there is none, and if it went back to the queue PeerLost (its attachment has ended) or
        AckTimedOut (it was unfinished for longer than the queue's ack_timeout).
        """
        undone = self._mine()
        if not undone:
            raise ValueError("task_done() called too many times: this node has no item that is not done")
        me: object = None
        with contextlib.suppress(RuntimeError):  # a callback of no loop
            me = asyncio.current_task()
        at = 0 if undone[0][0] is me else next((at for at, (task, _message) in enumerate(undone) if task is me), 0)
        message = undone[at][1]
        del undone[at]
        line_of(self.queue).settle_soon([message], functools.partial(_core.Delivery.ack, message))

    async def join(self, timeout: float | None = None) -> None:
        """Wait until every item that any process put is done: as warren.WorkQueue.join. Raises TimedOut."""
        deadline = deadline_of(timeout)
        pause_s = PAUSE_FIRST_S
        known: int | None = None
        while True:
            try:
                known = await self._not_done(deadline)
            except TimedOut:
                if known is None or not is_late(deadline):
                    raise
            if known == 0:
                return
            if is_late(deadline):
                raise TimedOut(f"queue {self.queue.name!r}: not done within {timeout} s; items left: {known}")
            left = time_left(deadline)
            await asyncio.sleep(pause_s if left is None else min(pause_s, left))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    async def _not_done(self, deadline: float | None) -> int:
        """How many items are not done: the worker's answer. Raises TimedOut if it does not come."""
        underneath = underneath_of(self.queue)
        limit = client_of(underneath).call_timeout
        if deadline is not None:
            left = max(ANSWER_LEAST_S, deadline - time.monotonic())
            limit = left if limit is None else min(limit, left)
        counts = await run_blocking(counts_of, underneath, limit)
        return counts["ready"] + counts["unacked"]

    # -- looking ------------------------------------------------------------------------------------------------

    async def qsize(self) -> int:
        """Number of items that nobody has received, as known to the worker after everything this node did: as
        warren.WorkQueue.qsize.
        """
        line = line_of(self.queue)
        line.loop.enter()
        return await run_blocking(waiting_of, underneath_of(self.queue)) + line.kept

    async def empty(self) -> bool:
        """Whether qsize() is 0; it may have changed by the time you read it."""
        return not await self.qsize()

    async def full(self) -> bool:
        """Whether there is no place left; never without a maxsize."""
        return 0 < self.maxsize <= await self.qsize()

    # -- ending -------------------------------------------------------------------------------------------------

    def shutdown(self, immediate: bool = False) -> None:
        """End it for this object, as asyncio.Queue.shutdown of Python 3.13 and warren.WorkQueue.shutdown: put raises
        ShutDown from now on, and get does when no item is left; tasks that wait in either are woken. Nothing is dropped
        or counted as done. With `immediate`, get raises at once.
        """
        checked_flag(immediate, "immediate", numbers=True)
        self._shut.come = True
        self._drained = self._drained or bool(immediate)
        line = line_of(self.queue)
        line.send_away(self, lambda: self._is_shut("nothing came any more"))
        if immediate:
            line.release_soon()

    def _is_shut(self, what: str) -> ShutDown:
        return ShutDown(f"work queue {self.queue.name!r} was shut down in this process: {what}")

    async def close(self) -> None:
        """Return the unfinished items of this node, those it could not read, and those delivered ahead, in order:
        others receive them, marked redelivered. It does not wait for items to be done, and can be used again.
        """
        messages = [message for _task, message in self._mine()] + self._unread
        messages.sort(key=lambda message: message.delivery_tag)
        self._undone.clear()
        self._unread = []
        with contextlib.suppress(PeerLost):  # they were got from an attachment that has ended: they are back already
            for message in messages:
                if not message.settled:  # what could not be read is the caller's
                    with contextlib.suppress(AckTimedOut):  # it is back already
                        await message.nack()
        await self.queue.release()

    def _mine(self) -> deque[tuple[Any, Message]]:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._undone = deque()
            self._unread = []
        return self._undone
