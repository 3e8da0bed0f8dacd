"""A queue of the node that behaves like queue.Queue, across processes: for programs that are written for that.

    tasks = node.work_queue("tasks", maxsize=1000, serializer="pickle")
    tasks.put({"page": 1})                          # durable when it returns
    item = tasks.get(timeout=5)
    tasks.task_done()                               # only now is it removed
    tasks.join()                                    # until all items of all processes are done

What differs from queue.Queue
  An unfinished item whose process died or closed the queue goes to the next get.
  task_done() acknowledges the oldest unfinished item of the calling thread or, if that thread has none, of the process.
  So a thread that takes one item at a time acknowledges its own.
  maxsize counts items that nobody has received yet, as in queue.Queue. It is part of the declaration (max_length with
  reject-publish), so all processes have the same. join() and the sizes count what all processes put; what was delivered
  ahead to a process, and handed to none of its threads, counts as in the queue.
  shutdown() is for the threads of one process: the queue is durable, and others go on with it.

Invariants
  An item is in `_undone` from get() to task_done(). A child of fork has none: they are its parent's.
  An item that the serializer cannot read never stands before the next one, and is not lost: it goes to the dead letters
  or, in a queue without them, stays in `_unread` until the caller settles it or close() gives it back. What is no fault
  of the item (interrupts.py) gives it back.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from warren.engine.errors import (
    AckTimedOut,
    DiskFull,
    PeerLost,
    QueueEmpty,
    QueueFull,
    ShutDown,
    TimedOut,
    Undecodable,
)
from warren.workers.client.arguments import checked_count, checked_flag, checked_seconds
from warren.workers.client.publish import Body
from warren.workers.faces.full import Room
from warren.workers.faces.interrupts import is_interrupt
from warren.workers.faces.message import Message
from warren.workers.faces.queues import (
    End,
    Queue,
    arguments_of,
    client_of,
    counts_of,
    full,
    get_until,
    wait_for_room,
    waiting_of,
    wake,
)
from warren.workers.faces.serializer import Serializer

T = TypeVar("T")

#: how often a queue that is joined is looked at: first and at most
PAUSE_FIRST_S = 0.0005
PAUSE_MOST_S = 0.02
#: how long join() waits for the worker's answer at least, so that a short timeout still tells how many items are left
ANSWER_LEAST_S = 0.5


class WorkQueue(Generic[T]):
    """queue.Queue over a queue of the node. Created by `node.work_queue`; thread- and fork-safe. A context manager."""

    def __init__(self, queue: Queue, maxsize: int = 0, serializer: object = None) -> None:
        self.queue = queue
        self.maxsize = maxsize
        self._serializer = Serializer(serializer, queue.name)
        self._unpack = self._serializer.unpack
        self._lock = threading.Lock()
        self._undone: deque[tuple[int, Message]] = deque()
        self._unread: list[Message] = []
        self._shut = End()
        self._drained = False
        _work_queues.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process that unpickles it attaches by itself when it uses it (docs/python.md): the same queue,
        maximum and serializer. Unfinished items stay with this process, and a shutdown() is its own.
        """
        given = self._serializer.given
        by_name = given.__name__ if isinstance(given, ModuleType) else None
        return _unpickled, (type(self), self.queue, self.maxsize, by_name, None if by_name else given)

    def __repr__(self) -> str:
        return f"<WorkQueue {self.queue.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # -- putting ------------------------------------------------------------------------------------------------

    @overload
    def put(self: WorkQueue[bytes], item: Body, block: bool = True, timeout: float | None = None) -> None: ...
    @overload
    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None: ...
    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; when this returns it is stored (durable queue: on stable storage).

        With a maxsize it waits for a place for at most `timeout` seconds (also while an alarm blocks publishers); then,
        if a timeout was given, at most the node's call_timeout until the item is stored. Raises warren.QueueFull (a
        queue.Full) if there was no place, ShutDown, UsageError (also if the serializer cannot write the item),
        MessageTooLarge; TimedOut, PeerLost, SyncFailed (the item may be stored).
        """
        if self._shut.come:
            raise self._is_shut("nothing can be put into it by this object")
        deadline = _deadline(checked_flag(block, "block", numbers=True), timeout)
        body = self._serializer.packed(item)
        room: Room | None = None
        while True:
            try:
                confirm = self.queue.put(body, wait=False, timeout=None if deadline is None else _left(deadline))
            except (TimedOut, DiskFull) as error:  # nothing was handed over
                if self._shut.come:
                    raise self._is_shut("publishers were blocked, and the item was not put") from error
                if deadline is None:
                    continue  # it waited for call_timeout, and goes on
                raise QueueFull(f"queue {self.queue.name!r} took nothing more within the timeout: {error}") from error
            try:
                confirm.result(None if deadline is None else self._storing(deadline))
                return
            except QueueFull as error:
                room = room or Room(client_of(self.queue), deadline)
                if not wait_for_room(self.queue, room, self._shut):
                    if self._shut.come:
                        raise self._is_shut("it was full, and the item was not put") from None
                    raise full(self.queue, error) from None

    def _storing(self, deadline: float) -> float | None:
        """How long a put waits until what was handed over is stored."""
        most = client_of(self.queue).call_timeout
        return None if most is None else max(most, _left(deadline))

    @overload
    def put_nowait(self: WorkQueue[bytes], item: Body) -> None: ...
    @overload
    def put_nowait(self, item: T) -> None: ...
    def put_nowait(self, item: Any) -> None:
        """put(item, block=False): raises QueueFull at once. It still waits until the item is stored."""
        self.put(item, block=False)

    # -- getting ------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None, *, ahead: bool = True) -> T:
        """The next item. Raises warren.QueueEmpty (a queue.Empty) if none arrives within `timeout` seconds; after
        shutdown() ShutDown, if none is left.

        Raises warren.Undecodable (a ValueError) for an item that the serializer cannot read, whatever it raises; the
        next get continues behind it. The error has the bytes as `body`. If the queue has dead letters, the item was
        rejected to them. Otherwise the error's `message` is yours: reject() drops it, ack() removes it, nack() puts it
        back (the next get meets it again). Until then it counts as unfinished; it comes back when this process closes
        the work queue or ends. task_done() does not cover it.

        `ahead`: as for warren.Queue.get; with ahead=False a loop of gets takes nothing away from other processes.
        """
        if timeout is not None:
            checked_seconds(timeout)
        if not (block is True or checked_flag(block, "block", numbers=True)):
            timeout = 0
        message = get_until(self.queue, timeout, ahead, self._shut)
        if message is None:
            if not self._shut.come:
                raise QueueEmpty(f"queue {self.queue.name!r} had no item within {timeout} s")
            message = self._get_last(ahead)
        try:
            item: T = self._unpack(message.body)
        except BaseException as error:
            if not is_interrupt(error):
                raise self._unreadable(message, error) from error
            message.nack()
            raise
        with self._lock:
            self._undone.append((threading.get_ident(), message))
        return item

    def _get_last(self, ahead: bool) -> Message:
        """After shutdown(): what is there is handed out, and nothing is waited for."""
        if self._drained:
            raise self._is_shut("its items are left to other processes")
        try:
            return self.queue.get(0, ahead)
        except QueueEmpty:
            raise self._is_shut("it is empty") from None

    def _is_shut(self, what: str) -> ShutDown:
        return ShutDown(f"work queue {self.queue.name!r} was shut down in this process: {what}")

    def _unreadable(self, message: Message, error: BaseException) -> Undecodable:
        """What to raise for an item that cannot be read: in the dead letters, or the caller's."""
        exchange = arguments_of(self.queue).get("dead_letter_exchange")
        if exchange is not None:
            message.reject()
        else:
            with self._lock:
                self._unread = [one for one in self._unread if not one.settled] + [message]
        return self._serializer.undecodable(message, error, exchange)

    def get_nowait(self) -> T:
        """get(block=False)."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Acknowledge the oldest unfinished item of this thread or, if it has none, of this process.

        Raises ValueError if there is none, and if it went back to the queue PeerLost (its attachment has ended) or
        AckTimedOut (it was unfinished for longer than the queue's ack_timeout).
        """
        me = threading.get_ident()
        undone = self._undone
        with self._lock:
            if not undone:
                raise ValueError("task_done() called too many times: this process has no item that is not done")
            thread, message = undone[0]
            if thread == me:
                undone.popleft()
            else:
                at = next((at for at, (thread, _message) in enumerate(undone) if thread == me), 0)
                message = undone[at][1]
                del undone[at]
        message.ack()

    def join(self, timeout: float | None = None) -> None:
        """Wait until every item that any process put is done. Raises TimedOut after `timeout` seconds, and
        QueueNotFound if the queue is deleted meanwhile.

        It does not wait for delayed items, nor for those that were dead-lettered. It does wait for an item that could
        not be read, until the message of its Undecodable is settled.
        """
        deadline = _deadline(True, timeout)
        pause_s = PAUSE_FIRST_S
        known: int | None = None
        while True:
            try:
                known = self._not_done(deadline)
            except TimedOut:
                if known is None or deadline is None or time.monotonic() < deadline:
                    raise
            if known == 0:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(f"queue {self.queue.name!r}: not done within {timeout} s; items left: {known}")
            time.sleep(pause_s if deadline is None else min(pause_s, _left(deadline)))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    # -- looking ------------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Number of items that nobody has received, as known to the worker after everything this process did.

        What was delivered ahead to this or another process, and handed to no thread there, is among them. So a get of
        this process may find nothing for a moment: what another process has ahead returns after a tenth of a second.
        """
        return waiting_of(self.queue)

    def empty(self) -> bool:
        """Whether qsize() is 0; it may have changed by the time you read it, as with queue.Queue."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether there is no place left; never without a maxsize."""
        return 0 < self.maxsize <= self.qsize()

    def shutdown(self, immediate: bool = False) -> None:
        """End it for this process, as queue.Queue.shutdown of Python 3.13: put raises warren.ShutDown from now on, and
        get does when no item is left; threads that wait in either are woken within a twentieth of a second. It cannot
        be undone; open the work queue once more to go on.

        With `immediate`, get raises at once. Unlike queue.Queue this drops nothing and lets no item count as done: what
        is in the queue stays for other processes and for work queues that are opened later, which notice nothing.
        task_done(), join() and close() work as before; join() waits for the items of all processes.
        """
        checked_flag(immediate, "immediate", numbers=True)
        with self._lock:
            self._shut.come = True
            self._drained = self._drained or bool(immediate)
        wake(self.queue)
        if immediate:
            self.queue.release()  # what was delivered ahead is the others'

    def close(self) -> None:
        """Return the unfinished items of this process, those it could not read, and those delivered ahead, in order:
        others receive them, marked redelivered.

        It does not wait for items to be done (join() does) and deletes nothing; other threads that wait in get()
        continue. The work queue can be used again. task_done() for a returned item is one call too many.
        """
        with self._lock:
            messages = [message for _thread, message in self._undone]
            messages += self._unread
            messages.sort(key=lambda message: message.delivery_tag)
            self._undone.clear()
            self._unread = []
        with contextlib.suppress(PeerLost):  # they were got from an attachment that has ended: they are back already
            for message in messages:
                if not message.settled:  # what could not be read is the caller's
                    with contextlib.suppress(AckTimedOut):  # it is back already
                        message.nack()
        self.queue.release()

    def _not_done(self, deadline: float | None) -> int:
        """How many items are not done: the worker's answer. Raises TimedOut if it does not come."""
        limit = client_of(self.queue).call_timeout
        if deadline is not None:
            left = max(ANSWER_LEAST_S, _left(deadline))
            limit = left if limit is None else min(limit, left)
        counts = counts_of(self.queue, limit)
        return counts["ready"] + counts["unacked"]


_work_queues: weakref.WeakSet[WorkQueue[Any]] = weakref.WeakSet()


def _in_child() -> None:
    """What the parent got is the parent's; a thread of it that held a lock does not exist in a child of fork."""
    for work_queue in list(_work_queues):
        work_queue._lock = threading.Lock()
        work_queue._undone = deque()
        work_queue._unread = []


os.register_at_fork(after_in_child=_in_child)


def limited(maxsize: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a queue that takes so many items; any number below 1 is no limit, as in queue.Queue. Raises
    UsageError."""
    most = checked_count(maxsize, "maxsize", -sys.maxsize)
    return {**arguments, "max_length": most, "overflow": "reject-publish"} if most > 0 else {**arguments}


def _unpickled(kind: type[WorkQueue[T]], queue: Queue, maxsize: int, module: str | None, given: object) -> WorkQueue[T]:
    return kind(queue, maxsize, given if module is None else importlib.import_module(module))


def _deadline(block: bool, timeout: float | None) -> float | None:
    if not block:
        return time.monotonic()
    checked_seconds(timeout)
    if timeout is None:
        return None
    return time.monotonic() + timeout


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
