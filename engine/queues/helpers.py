"""The thread that does slow things with the disk for a queue worker: `IndexKeeper` flushes, zeroes and removes. It
never touches the engine but by `kick`; the serving thread takes its results up, and raises what ended it.
"""

from __future__ import annotations

import queue as queues
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from warren.engine.errors import StoreError


class IndexKeeper(threading.Thread):
    """Flushes journal files, applies acks to segments and removes files, in the order asked for."""

    def __init__(self, kick: Callable[[], None]) -> None:
        super().__init__(name="warren-index", daemon=True)
        self._kick = kick
        self._jobs: queues.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queues.SimpleQueue()
        self.done: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.crash: BaseException | None = None

    def ask(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` in the thread, then `then(result or StoreError)` in the serving thread."""
        self._jobs.put((job, then))

    def stop(self) -> None:
        self._jobs.put(None)

    def run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            result: Any
            try:
                result = job()
            except (StoreError, OSError) as error:
                result = error if isinstance(error, StoreError) else StoreError(str(error))
            except BaseException as error:  # noqa: BLE001 - the serving thread raises it: a worker without helpers must end
                self.crash = error
                self._kick()
                continue
            self.done.append((then, result))
            self._kick()


def prepare() -> None:
    """Load what flushes need. A start does not wait for numpy, and an idle worker does without its 20 MB; nor does the
    first flush wait, which comes when there is most to do: it is loaded with the second journal file."""
    from warren.engine.queues import flush as queue_flush  # noqa: F401 - loading it is all
