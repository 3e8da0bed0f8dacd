"""A thread of the topic worker that looks every few seconds what there is to do; what belongs to the serving thread,
which alone may call the server, it has done there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from logging import WARNING
from typing import Any, TypeVar, cast

from warren.engine.errors import StoreError
from warren.engine.saying import Say

T = TypeVar("T")

LOOK_S = 0.02  #: between two looks whether something was done


class Stopped(Exception):
    """The worker ends."""


class Looker:
    """Such a thread; its looks are `look`'s of the class that is one. The serving thread calls take, wake and end."""

    REFUSED: str  #: what is said when a look failed, before the error: the next one tries again

    def __init__(self, name: str, kick: Callable[[], None], check_s: Callable[[], float], say: Say) -> None:
        """`name`: of the thread; `kick`: wakes the serving thread; `check_s`: seconds between two looks."""
        self._kick, self._check_s, self._say = kick, check_s, say
        self._calls: deque[_Call] = deque()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.looks_n = 0  #: that were done
        self.crash: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- the serving thread -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def take(self) -> None:
        """Do what the thread asks for."""
        if self.crash is not None:
            raise self.crash
        while self._calls:
            self._calls.popleft().run()

    def end(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._wake.set()
        if self.thread.ident is not None:
            self.thread.join()
        while self._calls:
            self._calls.popleft().refuse()

    # -- the thread ---------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Do what there is to do; whether to look again at once. Raises StoreError, OSError, MemoryError, Stopped."""
        raise NotImplementedError

    def _run(self) -> None:
        again, refused = False, ""
        while True:
            if not again:
                self._wake.wait(self._check_s())  # also before the first look: a start has other things to do
                self._wake.clear()
            if self._stop.is_set():
                return
            try:
                again = self.look()
                refused = ""
            except Stopped:
                return
            except (StoreError, OSError, MemoryError) as error:
                again = False
                if str(error) != refused:
                    refused = str(error)
                    self._say(f"{self.REFUSED}, tried again: {error}", WARNING)
            except BaseException as error:  # noqa: BLE001 - the serving thread raises it: a worker without it must end
                self.crash = error
                self._kick()
                return
            self.looks_n += 1

    def _on_loop(self, call: Callable[[], T]) -> T:
        """What the serving thread says. Raises Stopped, and what it raises."""
        asked = _Call(call)
        self._calls.append(asked)
        self._kick()
        while not asked.done.wait(LOOK_S):
            self._check_stop()
        return cast("T", asked.answer())

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped


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
