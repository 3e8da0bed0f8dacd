"""What threads of the topic worker want done on its serving thread, which alone may call the server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

LOOK_S = 0.02  #: between two looks whether something was done


class Stopped(Exception):
    """The worker ends."""


class ServingCalls:
    """Calls of one thread, which ends when `stop` is set. `kick`: wakes the serving thread."""

    def __init__(self, kick: Callable[[], None], stop: threading.Event) -> None:
        self._kick, self._stop = kick, stop
        self._calls: deque[_Call] = deque()

    def ask(self, call: Callable[[], T]) -> T:
        """What the call returns there. Raises Stopped, and what it raises."""
        asked = _Call(call)
        self._calls.append(asked)
        self._kick()
        while not asked.done.wait(LOOK_S):
            if self._stop.is_set():
                raise Stopped
        return cast("T", asked.answer())

    def take(self) -> None:
        """Do what is asked for. On the serving thread."""
        while self._calls:
            self._calls.popleft().run()

    def refuse(self) -> None:
        """The thread has ended. On the serving thread."""
        while self._calls:
            self._calls.popleft().refuse()


class _Call:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            self._error = error
        self.done.set()

    def refuse(self) -> None:
        self._error = Stopped()
        self.done.set()

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer
