"""A loop that handles the messages of a queue in processes, each of which has a worker (workers/faces/worker.py).

Invariants
  A process that dies is started again, later and later, as long as that may be of use: what it tells when it comes up
  (`_Process`), and its exit code, say so.
  Processes do not outlive the program by more than what they hold takes, or the grace.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from warren.engine.errors import ClosedError, QueueNotFound, UsageError
from warren.workers.client.arguments import checked_count, checked_seconds
from warren.workers.faces.calls import TROUBLE
from warren.workers.faces.queues import Queue
from warren.workers.faces.worker import (
    COUNTED,
    LOOK_S,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    Worker,
    checked_function,
    count_into,
    log,
    stopped_by_signals,
)

if TYPE_CHECKING:
    from ctypes import Array, c_uint64
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from warren.workers.faces.message import Message

#: so many starts of a process in a row are in vain at most
STARTS_MOST = 3


def _check_importable(function: object) -> None:
    """Raises UsageError for a function that another process cannot have."""
    from multiprocessing.reduction import ForkingPickler  # here: few need it, and it takes its time to load
    from pickle import PicklingError

    try:
        ForkingPickler.dumps(function)
    except (PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"function cannot be sent to a process ({error}): give one that the process can import, as one at the top "
            f"of a module; or let threads run it (processes=False)"
        ) from error


class ProcessWorker:
    """The same in processes of their own, each with one function at a time. Created by `node.worker`."""

    def __init__(
        self,
        handled: Queue,
        attach: Callable[[], Any],
        function: Callable[[Message], object],
        processes: int,
        options: dict[str, Any],
    ) -> None:
        checked_function(function, asynchronous=False)
        _check_importable(function)
        self._queue = handled
        self._arguments = (attach, handled.name, function, options)
        self._processes_n = checked_count(processes, "concurrency")
        self._stop = threading.Event()
        self._relays: list[threading.Thread] = []
        self._cells: Array[c_uint64] | None = None  #: what the processes count, COUNTED of each in its place

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a worker stays in the process that made it: give another one the queue, and call node.worker there"
        )

    def __repr__(self) -> str:
        return f"<ProcessWorker of {self._queue.name!r}, {self._processes_n} processes>"

    @property
    def counts(self) -> dict[str, int]:
        """As Worker.counts, of all processes together: also of those that died, but for what they settled just then."""
        cells = [0] * len(COUNTED) if self._cells is None else self._cells[:]
        return {name: sum(cells[at :: len(COUNTED)]) for at, name in enumerate(COUNTED)}

    def stop(self) -> None:
        """As Worker.stop."""
        self._stop.set()

    def run(self, grace: float = 30.0) -> None:
        """As Worker.run. A process that dies is started again, and its message goes to another one at once.

        Raises UsageError when that is of no use: the worker is refused by now (as when its dead letters lead nowhere
        any more), or processes end three times in a row before they come up, and none is at work.

        After `grace` seconds the processes that are still at work are killed.
        """
        checked_seconds(grace, endless=False, what="grace")
        running: dict[int, _Process] = {}
        due = [0.0] * self._processes_n  #: when it starts, or started
        pauses = [PAUSE_FIRST_S] * self._processes_n
        in_vain = [0] * self._processes_n  #: starts since one came up
        with stopped_by_signals(self.stop):
            try:
                while not self._stop.is_set():
                    for place in range(self._processes_n):
                        if place not in running and time.monotonic() >= due[place]:
                            running[place], due[place] = self._start(place, grace), time.monotonic()
                    self._stop.wait(LOOK_S / 5)
                    if sum(one.comes_up() for one in running.values()):
                        in_vain = [0] * self._processes_n
                    for place, one in list(running.items()):
                        if one.process.is_alive():
                            continue
                        one.comes_up()  # or it said why it did not
                        del running[place]
                        at_work = any(other.up for other in running.values())
                        self._look_at_the_end(one, in_vain, place, at_work)
                        if time.monotonic() - due[place] > PAUSE_MOST_S:
                            pauses[place] = PAUSE_FIRST_S  # it worked for a while: this is another trouble
                        log.warning(
                            "queue %r: process %s of its worker ended with %s; another one starts in %g s",
                            self._queue.name, one.process.pid, one.process.exitcode, pauses[place],
                        )  # fmt: skip
                        due[place] = time.monotonic() + pauses[place]
                        pauses[place] = min(2 * pauses[place], PAUSE_MOST_S)
                        one.close()
            finally:
                _end(list(running.values()), grace)
                for relay in self._relays:
                    relay.join(PAUSE_FIRST_S)  # longer if a child of that process has its pipe, which nobody waits for

    def _look_at_the_end(self, one: _Process, in_vain: list[int], place: int, at_work: bool) -> None:
        """Raises when it is of no use to start another one: the queue is gone, the worker would be refused, or
        processes end each time before they come up, and no other one is at work."""
        code = one.process.exitcode or 0
        if code == _DELETED:
            self._queue.depth()  # raises QueueNotFound
        if one.refused:
            raise UsageError(one.refused)
        if one.up or code <= 0 or code == _NO_NODE:
            return
        in_vain[place] += 1
        if in_vain[place] >= STARTS_MOST and not at_work:
            raise UsageError(
                f"queue {self._queue.name!r}: the processes of its worker cannot come up: {in_vain[place]} in a row "
                f"ended with exit code {code} before they took a message. What they raised is on standard error: the "
                f"module of the function, and the program's own, must be importable, and what the program does must "
                f'stand below `if __name__ == "__main__":`'
            )

    def _start(self, place: int, grace: float) -> _Process:
        import multiprocessing  # here: few need it, and it takes its time to load

        from warren.workers.faces import worker_logs

        context = multiprocessing.get_context("spawn")
        if self._cells is None:
            self._cells = context.RawArray("Q", self._processes_n * len(COUNTED))
        source, logs = context.Pipe(duplex=False)
        heard, tells = context.Pipe(duplex=False)
        with logs, tells:
            process = context.Process(
                target=_serve,
                args=(*self._arguments, os.getpid(), grace, self._cells, place, tells, logs, worker_logs.level()),
                name="warren-worker",
            )
            process.start()
        self._relays = [relay for relay in self._relays if relay.is_alive()] + [worker_logs.relay(source)]
        return _Process(process, heard)


@dataclass
class _Process:
    """A process of a ProcessWorker, and what it tells of its start."""

    process: SpawnProcess
    heard: Connection
    up: bool = False  #: it takes messages
    refused: str = ""  #: why there will be no worker

    def comes_up(self) -> bool:
        """Read what it tells; whether it has come up since the last look."""
        before = self.up
        with contextlib.suppress(EOFError, OSError):  # it has ended
            while self.heard.poll():
                self.refused = self.heard.recv_bytes().decode()
                self.up = not self.refused
        return self.up and not before

    def close(self) -> None:
        """It has ended."""
        self.process.close()
        self.heard.close()


class _Counts(dict[str, int]):
    """What one process counts, in cells that it shares with its parent: the next one in its place goes on with them."""

    def __init__(self, cells: Array[c_uint64], place: int) -> None:
        first = place * len(COUNTED)
        super().__init__(zip(COUNTED, cells[first : first + len(COUNTED)], strict=True))
        self._cells, self._first = cells, first

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__(name, count)
        self._cells[self._first + COUNTED.index(name)] = count


#: exit codes of a process whose queue was deleted, and of one that found no node
_DELETED = 64
_NO_NODE = 65


def _serve(
    attach: Callable[[], Any],
    name: str,
    function: Callable[[Message], object],
    options: dict[str, Any],
    parent: int,
    grace: float,
    cells: Array[c_uint64],
    place: int,
    tells: Connection,
    logs: Connection,
    level: int,
) -> None:
    """A process of a ProcessWorker: it ends when it is told to, or when its parent has gone. `tells` the parent that it
    has come up, or why it is refused."""
    from warren.workers.faces import worker_logs

    sender = worker_logs.forward(logs, level)
    try:
        with attach() as node:
            try:
                worker = node.worker(name, function, concurrency=1, **options)
            except UsageError as error:
                tells.send_bytes(str(error).encode(errors="backslashreplace"))
                raise SystemExit(1) from None
            count_into(worker, _Counts(cells, place))
            tells.send_bytes(b"")
            threading.Thread(target=_end_with, args=(parent, worker, grace), name="warren-parent", daemon=True).start()
            worker.run()
    except QueueNotFound:
        raise SystemExit(_DELETED) from None
    except (*TROUBLE, ClosedError) as error:
        log.warning("queue %r: %s", name, error)
        raise SystemExit(_NO_NODE) from None
    finally:
        sender.finish()


def _end_with(parent: int, worker: Worker, grace: float) -> None:
    """When the parent has gone, the worker is stopped; what is in hand has `grace` seconds, then the process ends."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    worker.stop()
    time.sleep(grace)
    os._exit(1)


def _end(running: list[_Process], grace: float) -> None:
    for one in running:
        one.process.terminate()
    deadline = time.monotonic() + grace
    for one in running:
        process = one.process
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            log.warning("process %s of a worker was still at work after %g s: killed", process.pid, grace)
            process.kill()
            process.join()
        one.close()
