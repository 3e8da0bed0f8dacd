"""The thread that makes a log's next files ahead, because that costs several syncs. It never touches the engine but by
`kick`; the serving thread takes up what was made, and raises what ended the thread.
"""

from __future__ import annotations

import queue as queues
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from warren.engine.errors import StoreError

Wanted = TypeVar("Wanted")
Made = TypeVar("Made")


class FileMaker(threading.Thread, Generic[Wanted, Made]):
    """Makes what is wanted, in that order."""

    def __init__(self, make: Callable[[Wanted], Made], kick: Callable[[], None]) -> None:
        super().__init__(name="warren-files", daemon=True)
        self._make = make
        self._kick = kick
        self._wanted: queues.SimpleQueue[tuple[Wanted] | None] = queues.SimpleQueue()
        self.made: deque[tuple[Wanted, Made | StoreError]] = deque()
        self.crash: BaseException | None = None

    def want(self, wanted: Wanted) -> None:
        self._wanted.put((wanted,))

    def stop(self) -> None:
        self._wanted.put(None)

    def run(self) -> None:
        while (item := self._wanted.get()) is not None:
            (wanted,) = item
            try:
                self.made.append((wanted, self._make(wanted)))
            except StoreError as error:
                self.made.append((wanted, error))
            except BaseException as error:  # noqa: BLE001 - the serving thread raises it: a worker without helpers must end
                self.crash = error
            self._kick()
