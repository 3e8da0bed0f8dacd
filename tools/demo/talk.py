"""How the demo's processes talk: a task as JSON in the argument, JSON lines on the output, orders on the input.

The parent closes a child's standard input (or dies, which closes it, too) to say that there is nothing more to do; a
child notices that and ends. Errors come as a line {"error": class, "message": text} before the exit code 1.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from warren.engine.errors import Error

SAY_EVERY_S = 0.1
EXIT_TERMINATED = 143
T = TypeVar("T")


class Talk:
    """A child's end."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._next = 0.0
        self.orders: set[str] = set()
        self.ended = False

    def say(self, **fields: Any) -> None:
        """Print a line for the parent."""
        line = self._encoder.encode(fields) + b"\n"
        while line:
            line = line[os.write(1, line) :]

    def say_sometimes(self, **fields: Any) -> None:
        """Print a line unless one was printed a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SAY_EVERY_S
            self.say(**fields)

    def listen(self, timeout_s: float = 0.0) -> None:
        """Take up orders that have come: words, a line each; the end of the input sets `ended`."""
        while not self.ended and select.select([0], [], [], timeout_s)[0]:
            text = os.read(0, 4096)
            if not text:
                self.ended = True
            self.orders.update(text.decode().split())
            timeout_s = 0.0


def child(kind: type[T], run: Callable[[T, Talk], None]) -> int:
    """The main function of a child: decode its task, run it, report its error; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, who ends us in order
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(EXIT_TERMINATED))  # with everything cleaned up
    talk = Talk()
    try:
        run(msgspec.json.decode(sys.argv[1], type=kind), talk)
    except Error as problem:
        talk.say(error=type(problem).__name__, message=str(problem))
        return 1
    except BrokenPipeError:
        return 1  # the parent is gone
    return 0
