"""A loop that handles the messages of a queue with a coroutine function, many at a time: node.worker of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from warren.engine.errors import AckTimedOut, ClosedError, TimedOut
from warren.workers.client.arguments import checked_count, checked_seconds
from warren.workers.faces.aio.base import run_blocking
from warren.workers.faces.aio.queue import Message, Queue, underneath_of
from warren.workers.faces.calls import HAS_FAILED, LAST_S, TROUBLE, asks, failed, finished, shortly, unanswerable
from warren.workers.faces.interrupts import is_interrupt
from warren.workers.faces.queues import client_of, tell_cause
from warren.workers.faces.worker import (
    CAUSE_CHARACTERS,
    COUNTED,
    LOOK_S,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    Retries,
    checked_function,
    log,
    log_failure,
    log_spent,
    log_trouble,
    stopped_by_signals,
)


def _cancelled(error: BaseException) -> bool:
    """Whether this task is cancelled. A function that awaits what was cancelled raises the same, and has failed."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class Answering:
    """A function of Worker that answers with what `function` returns, or says what it raised."""

    def __init__(self, function: Callable[[Message], Awaitable[Any]]) -> None:
        checked_function(function, asynchronous=True)
        self._function = function

    async def __call__(self, message: Message) -> object:
        """Returns HAS_FAILED when the function has; raises what ends a program, as sys.exit: run() raises it, too."""
        queue = message.queue
        try:
            body = finished(await self._function(message), asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            if _cancelled(error):
                raise
            failure = error
        except GeneratorExit:  # this coroutine is thrown away: it cannot await anything
            raise
        except BaseException as error:
            with contextlib.suppress(*TROUBLE):  # then nobody was told: another server may have it
                asked = asks(message, error)
                if asked:
                    with unanswerable(message):
                        await queue.reply(message, b"", failed(error), timeout=LAST_S)
                if asked or not is_interrupt(error):  # the same call ends no other server
                    await message.ack()
            raise
        else:
            try:
                if asks(message):
                    await queue.reply(message, b"" if body is None else body)
                return None
            except TROUBLE:
                raise  # nobody was answered: another try
            except Exception as error:  # noqa: BLE001 - it is no answer, and the caller is told so
                failure = error
        if asks(message, failure):
            with unanswerable(message):
                await queue.reply(message, b"", failed(failure))
        return HAS_FAILED


class Worker:
    """Handles messages of a queue with a coroutine function. Created by `await node.worker`."""

    def __init__(
        self,
        handled: Queue,
        function: Callable[[Message], Awaitable[object]],
        concurrency: int,
        retries: Retries,
    ) -> None:
        checked_function(function, asynchronous=True)
        self._queue = handled
        self._function = function
        self._most = checked_count(concurrency, "concurrency")
        self._retries = retries
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._raised: BaseException | None = None
        self._interrupted: list[Message] = []  #: they return when nothing of ours can get them again

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a worker of warren.aio belongs to its event loop: give another process the node's directory and the "
            "queue's name, and use warren.aio.attach there"
        )

    def __repr__(self) -> str:
        return f"<aio.Worker of {self._queue.name!r}, {self._most} at a time>"

    @property
    def counts(self) -> dict[str, int]:
        """As warren.Worker.counts."""
        return dict(self._counts)

    def stop(self) -> None:
        """No further message is taken; run() returns when those in hand are done. From the event loop."""
        self._stop.set()

    async def run(self, grace: float = 30.0) -> None:
        """Handle messages until stop(), SIGTERM or SIGINT: as warren.Worker.run.

        What still runs `grace` seconds after the stop, or when this is cancelled, is cancelled, and its message returns
        to the queue; after the grace TimedOut says so. What interrupts a function (SystemExit) is raised here.
        """
        checked_seconds(grace, endless=False, what="grace")
        loop = asyncio.get_running_loop()
        with stopped_by_signals(functools.partial(loop.call_soon_threadsafe, self.stop)):
            try:
                await self._take()
                if self._tasks and not isinstance(self._raised, KeyboardInterrupt):
                    await asyncio.wait(self._tasks, timeout=grace)
            finally:
                late = list(self._tasks)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
                while self._interrupted:
                    message = self._interrupted.pop()
                    log_trouble(message, self._queue.name, await self._settle(message, message.nack))
        if self._raised is not None:
            raise self._raised
        if late:
            raise TimedOut(
                f"queue {self._queue.name!r}: functions that still ran {grace:g} s after the stop: {len(late)}; they "
                f"were cancelled, and their messages are back in the queue"
            )

    async def _take(self) -> None:
        pause = PAUSE_FIRST_S
        while not self._stop.is_set():
            try:
                async with self._queue.consume(self._most, LOOK_S) as messages:
                    async for message in messages:
                        pause = PAUSE_FIRST_S
                        task = asyncio.create_task(self._handle(message))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                        if self._stop.is_set():
                            break
            except (*TROUBLE, ClosedError) as error:
                if client_of(underneath_of(self._queue)).closed:
                    raise
                log.warning("queue %r: %s; the worker tries again in %g s", self._queue.name, error, pause)
                try:
                    await asyncio.wait_for(self._stop.wait(), pause)
                except TimeoutError:
                    pause = min(2 * pause, PAUSE_MOST_S)

    async def _handle(self, message: Message) -> None:
        name = self._queue.name
        if self._retries.spent(message, underneath_of(self._queue)):
            log_spent(message, name, await self._settle(message, message.reject, "rejected"))
            return
        try:
            found = finished(await self._function(message), asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:  # logged, and tried again
            if _cancelled(error):  # the message is somebody else's
                log_trouble(message, name, await self._settle(message, message.nack))
                raise
            pause, done = self._retries.pause(message), message.settled
            if pause is None:
                if not done:
                    said = shortly(error, CAUSE_CHARACTERS)
                    await run_blocking(tell_cause, underneath_of(self._queue), message, said)
                trouble = await self._settle(message, message.reject, "rejected")
            else:
                trouble = await self._settle(message, lambda: message.nack(delay=pause), "failed")
            log_failure(message, name, error, pause, done, trouble)
        except BaseException as error:  # noqa: BLE001 - an interrupt: run() raises it, and the message is another's
            self._raised = error
            self._interrupted.append(message)
            self.stop()
        else:
            counted = "failed" if found is HAS_FAILED else "handled"
            log_trouble(message, name, await self._settle(message, message.ack, counted))

    async def _settle(
        self, message: Message, how: Callable[[], Awaitable[None]], counted: str | None = None
    ) -> Exception | None:
        """Settle it, unless the function did, and count it; what prevented that."""
        trouble: Exception | None = None
        if not message.settled:
            try:
                await how()
            except AckTimedOut as error:
                trouble, counted = error, "late"
            except TROUBLE as error:
                trouble, counted = error, None
        if counted:
            self._counts[counted] += 1
        return trouble
