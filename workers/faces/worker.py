"""A loop that handles the messages of a queue with a function: in this thread, or in threads (in processes:
workers/faces/worker_processes.py).

    def handle(message):
        print(message.body)

    node.worker("tasks", handle, concurrency=4).run()       # until SIGTERM, SIGINT or stop()

What happens to a message
  The function returns: it is acked. It raises: it waits for `backoff` seconds, twice as long after each further try,
  and is delivered again; after `retries` of them it is rejected to the dead letters. What the function settles itself
  stays so. When its process dies the message goes to another consumer at once. When the function takes longer than the
  queue's ack_timeout, another consumer gets the message meanwhile; what this one made of it counts for nothing more. So
  in a queue with an ack_timeout, a message that comes for more than the `retries` + first time is rejected before the
  function is called: afterwards it would be too late for that, each time.

Invariants
  No more than `prefetch` messages are held. Without one: with threads, as many as are being handled; else as many as
  consume() has ahead. A message is taken when a thread is free: until then its ack_timeout does not run.
  The log says what was done, after it was done.
  run() returns with nothing in hand, or raises TimedOut.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from warren.engine.errors import AckTimedOut, ClosedError, TimedOut, UsageError
from warren.engine.saying import raised
from warren.workers.client.arguments import checked_count, checked_seconds
from warren.workers.faces.calls import HAS_FAILED, TROUBLE, WITHOUT_YIELD, finished, shortly
from warren.workers.faces.queues import Queue, arguments_of, client_of, tell_cause

if TYPE_CHECKING:
    from warren.workers.faces.message import Message

log = logging.getLogger("warren.worker")

#: how often a loop looks whether it was stopped
LOOK_S = 0.5
#: the pause before a loop asks a node again that does not answer, and before a process that died is started again: at
#: first and at most
PAUSE_FIRST_S = 0.5
PAUSE_MOST_S = 15.0

#: what a worker counts
COUNTED = ("handled", "failed", "rejected", "late")
#: of what was raised at the last try, for the dead letter
CAUSE_CHARACTERS = 900
#: the longest pause between two tries
PAUSE_LONGEST_S = 365 * 24 * 3600.0


def _check_dead_letters(handled: Queue, tries: int) -> None:
    """Raises UsageError when what is rejected would certainly be dropped, or come back to the same queue.

    An exchange that does not exist is no such case: letters wait for it. Nor is one whose way depends on the messages.
    """
    arguments = arguments_of(handled)
    exchange, key = arguments.get("dead_letter_exchange"), arguments.get("dead_letter_routing_key")
    name = handled.name
    otherwise = "or give retries=None (tried until it succeeds)"
    if exchange is None:
        raise UsageError(
            f"queue {name!r} has no dead_letter_exchange, so a message that fails {tries} times would be dropped: "
            f"declare the queue with one, {otherwise}"
        )
    router = client_of(handled).router()
    if exchange not in router.catalog.exchanges or exchange in router.by_headers:
        return
    routed = router.route(exchange, name if key is None else key)
    queues = {queue.name for queue in routed.queues}
    said = f"dead_letter_exchange={exchange!r}" + ("" if key is None else f" and dead_letter_routing_key={key!r}")
    if name in queues:
        raise UsageError(
            f"{said} of queue {name!r} would send dead letters back to it, so a message that fails {tries} times "
            "would be tried again for ever: "
            f"declare the queue with the dead_letter_routing_key of another one, {otherwise}"
        )
    if not routed and key is not None:
        raise UsageError(
            f"{said} of queue {name!r} would send dead letters to no queue, so a message that fails {tries} times "
            "would be dropped: "
            f"{f'declare queue {key!r}' if not exchange else 'bind a queue there'} first, {otherwise}"
        )


@dataclass(frozen=True)
class Retries:
    """How often a message is tried again, and when."""

    retries: int | None  #: None: until it succeeds
    backoff: float  #: seconds before the second try; each further one waits twice as long
    backoff_max: float  #: but never longer than this

    @staticmethod
    def of(retries: int | None, backoff: float, backoff_max: float, handled: Queue) -> Retries:
        """Checked: what fails for good needs a place to go to. Raises UsageError."""
        checked_seconds(backoff, endless=False, what="backoff")
        checked_seconds(backoff_max, endless=False, what="backoff_max")
        if min(backoff, backoff_max) > PAUSE_LONGEST_S:
            raise UsageError(
                f"backoff and backoff_max ({backoff:g} s, {backoff_max:g} s) are longer than a year: give less"
            )
        if retries is not None:
            checked_count(retries, "retries", 0)
            _check_dead_letters(handled, retries + 1)
        return Retries(retries, backoff, backoff_max)

    def pause(self, message: Message) -> float | None:
        """Seconds until the next try of a message whose function raised, None when that was the last one."""
        if self.retries is not None and message.delivery_count >= self.retries:
            return None
        return min(self.backoff_max, PAUSE_LONGEST_S, self.backoff * 2.0 ** min(message.delivery_count, 64))

    def spent(self, message: Message, handled: Queue) -> bool:
        """Whether it had all its tries, and comes again because of the queue's ack_timeout."""
        return (
            self.retries is not None
            and message.delivery_count > self.retries
            and arguments_of(handled).get("ack_timeout") is not None
        )


#: what was done with a message came after the queue's ack_timeout
TOO_LATE = (
    "but that took longer than the queue's ack_timeout: it went back to the queue before, and is delivered again; "
    "declare the queue with an ack_timeout well above the time that the function takes"
)


def log_failure(
    message: Message, queue_name: str, error: BaseException, pause: float | None, done: bool, trouble: Exception | None
) -> None:
    """What a function raised, and what came of the message: `done`, the function had settled it itself; `trouble`, what
    prevented its nack or reject."""
    last = False
    if done:
        then = "the function had settled the message before"
    elif isinstance(trouble, AckTimedOut):
        then = TOO_LATE
    elif trouble is not None:
        then = f"and it could not be given back: {trouble}"
    elif pause is None:
        last, then = True, "it was the last try: rejected to the dead letters"
    else:
        then = f"tried again in {pause:g} s"
    log.log(
        logging.ERROR if last else logging.WARNING,
        "queue %r: message %s failed at try %d (%s); %s",
        queue_name, message.message_id.hex(), message.delivery_count + 1, raised(error), then,
        exc_info=error,
    )  # fmt: skip


def log_trouble(message: Message, queue_name: str, trouble: Exception | None) -> None:
    """What prevented the ack of a message that was handled, or the return of one that was not."""
    if isinstance(trouble, AckTimedOut):
        tries = message.delivery_count + 1
        log.warning("queue %r: message %s: try %d ended, %s", queue_name, message.message_id.hex(), tries, TOO_LATE)
    elif trouble is not None:
        log.warning("queue %r: message %s: %s", queue_name, message.message_id.hex(), trouble)


def log_spent(message: Message, queue_name: str, trouble: Exception | None) -> None:
    """A message was to be rejected because it was delivered too often."""
    if trouble is not None:
        log_trouble(message, queue_name, trouble)
        return
    log.error(
        "queue %r: message %s was given to a function %d times before, which did not settle it within the queue's "
        "ack_timeout, raised, or died with its process: rejected to the dead letters, without a further try",
        queue_name, message.message_id.hex(), message.delivery_count,
    )  # fmt: skip


def checked_function(function: object, asynchronous: bool) -> None:
    """Raises UsageError for what is no function, or one of the other interface."""
    if not callable(function):
        raise UsageError(f"function must be callable with one message, not {type(function).__name__}")
    both = (function, getattr(function, "__call__", None))  # noqa: B004  # an object with `async def __call__`
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in both):
        raise UsageError(f"function is a generator function, whose body nobody runs when it is called: {WITHOUT_YIELD}")
    coroutine = any(map(inspect.iscoroutinefunction, both))
    if coroutine != asynchronous:
        raise UsageError(
            "function must be a coroutine function (async def); a plain one runs with warren.Node.worker"
            if asynchronous
            else "function must be a plain function; a coroutine function (async def) runs with warren.aio"
        )


def checked_prefetch(prefetch: int | None, concurrency: int) -> int | None:
    """How many messages lie here at most; None: as many as pay, which consume() can tell of one thread alone. Raises
    UsageError."""
    if prefetch is None:
        return None if concurrency == 1 else concurrency
    return checked_count(prefetch, "prefetch", concurrency)


class Worker:
    """Handles messages of a queue with a function. Created by `node.worker`."""

    def __init__(
        self,
        handled: Queue,
        function: Callable[[Message], object],
        concurrency: int,
        prefetch: int | None,
        retries: Retries,
    ) -> None:
        checked_function(function, asynchronous=False)
        self._queue = handled
        self._function = function
        self._threads_n = checked_count(concurrency, "concurrency")
        self._prefetch = checked_prefetch(prefetch, self._threads_n)
        self._retries = retries
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._raised: BaseException | None = None
        self._interrupted: list[Message] = []  #: they return when no thread of ours can get them again

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a worker stays in the process that made it: give another one the queue, and call node.worker there"
        )

    def __repr__(self) -> str:
        return f"<Worker of {self._queue.name!r}, {self._threads_n} at a time>"

    @property
    def counts(self) -> dict[str, int]:
        """Messages since it was made: `handled` (acked), `failed` (tried again later; of node.serve: the caller was
        told what the function raised, or the log), `rejected` (after the last try), `late` (the function took longer
        than the queue's ack_timeout: they are delivered again)."""
        with self._lock:
            return dict(self._counts)

    def stop(self) -> None:
        """No further message is taken; run() returns when those in hand are done. From any thread or signal handler."""
        self._stop.set()

    def run(self, grace: float = 30.0) -> None:
        """Handle messages until stop(), or SIGTERM or SIGINT if this is the main thread.

        With concurrency=1 the function runs in this thread. Otherwise it runs in threads, and after a stop what they
        have in hand has `grace` seconds; TimedOut says how many are still at it. A node that is stopped or restarted
        is waited for. Raises QueueNotFound (the queue was deleted), ClosedError (this node was closed), and what
        interrupts a function (SystemExit, KeyboardInterrupt).
        """
        checked_seconds(grace, endless=False, what="grace")
        try:
            with stopped_by_signals(self.stop):
                if self._threads_n == 1:
                    self._take(self._handle)
                else:
                    self._run_threads(grace)
        finally:
            while self._interrupted:
                message = self._interrupted.pop()
                log_trouble(message, self._queue.name, self._settle(message, message.nack))
        if self._raised is not None:
            raise self._raised

    def _run_threads(self, grace: float) -> None:
        given: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        free = threading.Semaphore(self._threads_n - 1)

        def work() -> None:
            while (message := given.get()) is not None:
                self._handle(message)
                free.release()

        def hand(message: Message) -> None:
            given.put(message)
            while not free.acquire(timeout=LOOK_S) and not self._stop.is_set():
                pass  # the next one stays where it is until a thread is free

        threads = [
            threading.Thread(target=work, name=f"warren-worker-{n}", daemon=True) for n in range(self._threads_n)
        ]
        for thread in threads:
            thread.start()
        try:
            self._take(hand)
        finally:
            for _thread in threads:
                given.put(None)
            deadline = time.monotonic() + grace
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        running = sum(thread.is_alive() for thread in threads)
        if running:
            raise TimedOut(
                f"queue {self._queue.name!r}: functions that still run {grace:g} s after the stop: {running}; their "
                f"messages return to the queue when this process ends or closes the node"
            )

    def _take(self, hand: Callable[[Message], None]) -> None:
        """Hand over what arrives, until the stop."""
        pause = PAUSE_FIRST_S
        while not self._stop.is_set():
            try:
                for message in self._queue.consume(self._prefetch, LOOK_S):
                    pause = PAUSE_FIRST_S
                    if self._retries.spent(message, self._queue):
                        log_spent(message, self._queue.name, self._settle(message, message.reject, "rejected"))
                    else:
                        hand(message)
                    if self._stop.is_set():
                        break
            except (*TROUBLE, ClosedError) as error:
                if client_of(self._queue).closed:
                    raise
                log.warning("queue %r: %s; the worker tries again in %g s", self._queue.name, error, pause)
                self._stop.wait(pause)
                pause = min(2 * pause, PAUSE_MOST_S)

    def _handle(self, message: Message) -> None:
        try:
            found = finished(self._function(message))
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failed(message, error)
        except BaseException as error:  # noqa: BLE001 - an interrupt: run() raises it, and the message is another's
            self._raised = error
            self._interrupted.append(message)
            self.stop()
        else:
            counted = "failed" if found is HAS_FAILED else "handled"
            log_trouble(message, self._queue.name, self._settle(message, message.ack, counted))

    def _failed(self, message: Message, error: Exception) -> None:
        pause, done = self._retries.pause(message), message.settled
        if pause is None:
            if not done:
                tell_cause(self._queue, message, shortly(error, CAUSE_CHARACTERS))
            trouble = self._settle(message, message.reject, "rejected")
        else:
            trouble = self._settle(message, lambda: message.nack(delay=pause), "failed")
        log_failure(message, self._queue.name, error, pause, done, trouble)

    def _settle(self, message: Message, how: Callable[[], None], counted: str | None = None) -> Exception | None:
        """Settle it, unless the function did, and count it; what prevented that."""
        trouble: Exception | None = None
        if not message.settled:
            try:
                how()
            except AckTimedOut as error:
                trouble, counted = error, "late"
            except TROUBLE as error:
                trouble, counted = error, None
        if counted:
            with self._lock:
                self._counts[counted] += 1
        return trouble


def count_into(worker: Worker, counts: dict[str, int]) -> None:
    """Let a worker that does not run yet go on with these counts: those of a ProcessWorker, which others read."""
    worker._counts = counts


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, once; a second one does what it did before. Elsewhere than in the main thread
    signals stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def told(number: int, _frame: object) -> None:
        restore()
        stop()

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)

    for number in before:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()
