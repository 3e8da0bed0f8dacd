"""How a worker that ends finishes what its clients have submitted: turn by turn, as long as it gets on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

TURN_NS = 1_000_000
#: a worker that has got nowhere for so long does not: a disk has no room, or a request is not answered
STUCK_S = 2.0


class Behind(Protocol):
    """The C engine of a worker."""

    def behind(self) -> int: ...


def catch_up(engine: Behind, turn: Callable[[], object], deadline: float) -> bool:
    """Take turns until nothing is left of what was submitted; False: it was stuck, or the deadline has passed."""
    left, moved = engine.behind(), time.monotonic()
    while left:
        turn()
        now, left_before, left = time.monotonic(), left, engine.behind()
        if left != left_before:
            moved = now
        if now >= deadline or now - moved >= STUCK_S:
            break
    turn()  # what belongs to the last of them
    return not left
