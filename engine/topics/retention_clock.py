"""What time it is for retention: a clock that steps must not make messages old.

Between two starts of the worker the wall clock is believed, because nothing else knows how long that was. While it runs
time passes as the machine counts it (also asleep). A wall clock that steps back is believed at once: messages stay for
longer. One that steps forward is believed when it has stayed there for HELD_S: by then somebody would have noticed, and
a machine that booted without its time has got it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

HELD_S = 3600.0
STEP_S = 5.0  #: a difference below it is no step: clocks are slewed


def boot_time() -> float:
    """Seconds that the machine counts, also while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RetentionClock:
    """Milliseconds since 1970."""

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = boot_time) -> None:
        self._wall, self._passed = wall, passed
        self._lock = threading.Lock()
        self._ahead = wall() - passed()  # of the wall clock before what is counted, as it is believed
        self._step_at: float | None = None  # when a step forward was seen first

    def now_ms(self) -> int:
        """The time that is believed. Any thread."""
        with self._lock:
            return self._now_ms()

    def _now_ms(self) -> int:
        passed = self._passed()
        ahead = self._wall() - passed
        if ahead < self._ahead + STEP_S:
            self._ahead, self._step_at = ahead, None
        elif self._step_at is None:
            self._step_at = passed
        elif passed - self._step_at >= HELD_S:
            self._ahead, self._step_at = ahead, None
        return int((self._ahead + passed) * 1000)
