"""Lines of an input that become messages: sent in batches; none waits for others for long, none is dropped silently.

An input may be a file, or a pipe into which something is written now and then (`tail -f`). A line is sent when `BATCH`
are together, or `PAUSE_S` after it came. Ctrl-C and SIGTERM end the reading: what was read whole is sent then, and has
`LAST_S` seconds for it; a second signal ends that, too.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, BinaryIO, NoReturn, Self

from warren.engine.errors import Error, MessageTooLarge, UsageError
from warren.engine.saying import counted
from warren.workers.cli import output

BATCH = 1000
PAUSE_S = 0.2
LAST_S = 10.0
READ_BYTES = 1 << 18
_ENDS = (signal.SIGINT, signal.SIGTERM)
_NUMBERED = re.compile(r"message (\d+) of \d+: ")
_SIZED = re.compile(r"\(body (\d+), ")


class _Stopped(Exception):
    """A signal came while the input was waited for."""


class Lines:
    """The lines of an input; a context in which signals end it. `pauses`: whether a batch is given when the input
    pauses, not only when it is full.
    """

    def __init__(self, source: BinaryIO, *, pauses: bool = True) -> None:
        self._descriptor = source.fileno()
        self._pauses = pauses
        self._lines: list[bytes] = []  # read, and not given out
        self._rest: list[bytes] = []  # what was read of a line that has not ended
        self._waiting = False
        self._before: dict[int, Any] = {}
        self._stopped: int | None = None

    def __enter__(self) -> Self:
        for number in _ENDS:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # a job in the background is not meant
                self._before[number] = handler
                signal.signal(number, self._stop)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _give_up)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stopped is not None:
            raise KeyboardInterrupt
        self._stopped = number
        signal.setitimer(signal.ITIMER_REAL, LAST_S)
        if self._waiting:
            raise _Stopped

    def end(self) -> None:
        """Behind the context, when all else is done: ends the process as the signal does, if one came."""
        if self._stopped == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        if self._stopped is not None:
            raise KeyboardInterrupt

    def send(self, put: Callable[[list[bytes]], int], done: str) -> None:
        """Give all to `put`, in batches, which returns how many messages are what `done` says ("published"). If this
        ends early, it is said how many are.
        """
        sent = made = 0
        under_way: list[bytes] = []
        try:
            for batch in self._batches():
                under_way = batch
                made += put(batch)
                sent += len(batch)
                under_way = []
        except BaseException as error:
            left = len(under_way) + len(self._lines)
            refused = isinstance(error, UsageError)
            if sent or (left > 1 and not refused):
                others = f", and {counted(left, 'line')} that were read may not be" if left and not refused else ""
                output.note(f"{counted(made, 'message')} {done} before{others}")
            if isinstance(error, Error):
                _name_line(error, under_way, sent)
            raise
        if self._stopped is not None and any(self._rest):
            output.note("the last line had not ended, and was left out")

    def _batches(self) -> Iterator[list[bytes]]:
        """What is to be sent together, at most `BATCH` lines, without their ends."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        due = 0.0
        while True:
            left = max(0.0, due - time.monotonic()) if self._lines and self._pauses else None
            if left == 0:
                yield self._take()
                continue
            ready = self._wait(poll, left)
            if self._stopped is not None:
                break
            if not ready:
                continue
            first = not self._lines
            if not self._read():
                if any(self._rest):
                    self._lines.append(b"".join(self._rest).rstrip(b"\r\n"))
                    self._rest = []
                break
            while len(self._lines) >= BATCH:
                yield self._take()
                first = True
            if first:
                due = time.monotonic() + PAUSE_S
        while self._lines:
            yield self._take()

    def _take(self) -> list[bytes]:
        batch = self._lines[:BATCH]
        del self._lines[:BATCH]
        return batch

    def _wait(self, poll: select.poll, left: float | None) -> bool:
        """Whether there is something to read, within so many seconds, before a signal comes."""
        try:
            try:
                self._waiting = True
                return self._stopped is None and bool(poll.poll(None if left is None else left * 1000))
            finally:
                self._waiting = False
        except _Stopped:  # also from within `finally`
            return False

    def _read(self) -> bool:
        """Read what is there; False: that was the end."""
        try:
            part = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:  # others read of it, too
            return True
        first, *others = part.split(b"\n")
        self._rest.append(first)
        if others:
            lines = [b"".join(self._rest), *others]
            self._rest = [lines.pop()]
            self._lines += [line.rstrip(b"\r\n") for line in lines]
        return bool(part)


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _name_line(error: Error, batch: list[bytes], before: int) -> None:
    """Which line is wrong, as people count: errors of a batch of a topic count its messages from 0, and those of queues
    tell the size. All but the body is the same for all lines.
    """
    said = str(error)
    numbered = _NUMBERED.match(said)
    if numbered is not None:
        number: int | None = int(numbered[1])
        said = said[numbered.end() :]
    else:
        sized = _SIZED.search(said)
        sizes = list(map(len, batch))
        number = sizes.index(int(sized[1])) if sized is not None and int(sized[1]) in sizes else None
    if isinstance(error, MessageTooLarge) and number is not None:
        said = f"line {before + number + 1}: {said}"
    error.args = (said,)
