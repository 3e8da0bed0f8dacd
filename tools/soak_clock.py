"""What all processes of a soak share: which phase it is, and how they are told to stop."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

HEAD = struct.Struct("<QQ")  #: incarnation of who sends, number
TICK_S = 0.01
CALL_TIMEOUT_S = 60.0
END_TIMEOUT_S = 120.0

#: phase → share of a cycle, in this order
PHASES = {"steady": 0.25, "burst": 0.15, "backlog": 0.15, "drain": 0.2, "churn": 0.1, "idle": 0.15}


@dataclass(frozen=True)
class Clock:
    """Which phase it is, for every process alike (CLOCK_MONOTONIC)."""

    start: float
    cycle_s: float

    def phase(self, now: float) -> str:
        """The phase at a moment; before the start it is idle."""
        if now < self.start:
            return "idle"
        share = (now - self.start) % self.cycle_s / self.cycle_s
        for name, length in PHASES.items():
            share -= length
            if share < 0:
                return name
        return "idle"

    def cycle(self, now: float) -> int:
        """The number of the cycle at a moment."""
        return int((now - self.start) / self.cycle_s)


def told_to_stop() -> list[int]:
    """Says that this process is ready; has the signal in it, once SIGTERM has come."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    return told


def paced(clock: Clock, rates: Mapping[str, float], scale: float, told: Sequence[int]) -> Iterator[int]:
    """A tick after the other until told to stop: how many to send now. What is late is not made up for."""
    owed, before = 0.0, time.monotonic()
    while not told:
        now = time.monotonic()
        rate = rates.get(clock.phase(now), 0.0) * scale
        owed = min(owed + rate * (now - before), max(rate * 0.1, 1.0)) if rate else owed % 1.0
        before = now
        count = int(owed)
        owed -= count
        yield count
        time.sleep(max(0.0, TICK_S - (time.monotonic() - now)))
