"""Tests wait for conditions, and never sleep for a while that is long enough today."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 5.0, *, what: str = "the condition") -> T:
    """Call `condition` until it returns something true, and return that; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause_s = 0.0005
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s; last seen: {result!r}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)
