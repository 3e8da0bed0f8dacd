"""Waiting for a node that is away: what a task has done is not lost, nor a failure, because its node was stopped.

Calls are repeated until they succeed, or time is up; then the last error is raised. Whoever serves others meanwhile
(the event loop of a worker, a web server) does not wait here: tasks do.

Crash points
  Killed while it waits: the task was not acked, if it is acked late, and runs again.
  A call that the node has done but not answered is done twice: another record of the same result, or a message more.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from warren.engine._core import AttachmentLost
from warren.engine.errors import ClosedError, DiskFull, LimitError, PeerLost, StartFailed, SyncFailed, TimedOut

T = TypeVar("T")
#: the node was stopped, or one of its processes is not there
AWAY = (ClosedError, PeerLost, AttachmentLost)
#: what ails the node, and not the call
TROUBLE = (*AWAY, DiskFull, LimitError, StartFailed, SyncFailed, TimedOut)
#: pause between two tries
PAUSE_S = 0.2
logger = logging.getLogger("warren.client")


def in_task() -> bool:
    """Whether a worker of Celery runs a task here, in this thread."""
    state = sys.modules.get("celery._state")  # who uses kombu or Dramatiq alone has none
    return state is not None and state.get_current_worker_task() is not None


def patient(call: Callable[[], T], seconds: float, trouble: tuple[type[Exception], ...] = AWAY) -> T:
    """What `call` returns; it is repeated for so long while it raises one of `trouble`."""
    end, told = time.monotonic() + seconds, False
    while True:
        try:
            return call()
        except trouble as error:
            if time.monotonic() + PAUSE_S > end:
                raise
            if not told:
                told = True
                logger.warning("waiting up to %g s for the node: %s", seconds, error)
            time.sleep(PAUSE_S)
