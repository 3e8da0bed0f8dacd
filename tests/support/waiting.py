"""Tests wait for conditions, and never sleep for a while that is long enough today."""

import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

from warren.ipc.identity import Identity

T = TypeVar("T")


def patience() -> float:
    """How much longer things may take than on an idle machine: twice the processes that want each processor."""
    return min(12.0, max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1)))


def wait_until(condition: Callable[[], T], timeout: float = 30.0, *, what: str = "the condition") -> T:
    """Call `condition` until it returns something true, and return that; AssertionError after `timeout` seconds.

    That is for a machine that has nothing else to do: a busy one gets more, as it takes longer.
    """
    began = time.monotonic()
    pause_s = 0.0005
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() - began > timeout * patience():
            raise AssertionError(f"{what} did not come true within {timeout:g} s; last seen: {result!r}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)


def kill(*pids: int) -> None:
    """SIGKILL processes, and return when all are dead: on a busy machine that takes seconds."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(Identity.of, pids)), 60, what="the end of who was killed")
