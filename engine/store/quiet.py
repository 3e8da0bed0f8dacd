"""Whether a store is quiet: nothing was written to it and nothing removed from it for a while. Then it gives back what
it does not need (`GarbageCollection.settle`, rule S24). While it is used, files that come and go are kept as spares.
"""

from __future__ import annotations

from collections.abc import Hashable

QUIET_S = 1.0  #: without a change
LOOK_AGAIN_S = 5.0  #: when something stood in the way the last time


class Quiet:
    """Looked at by the timer of one store."""

    def __init__(self) -> None:
        self._state: Hashable = None
        self._since = 0.0
        self._done: Hashable = None
        self._done_at = 0.0
        self._again = False

    def look(self, state: Hashable, now: float) -> bool:
        """Is it time to settle? `state`: what changes with each write and each remove."""
        if state != self._state:
            self._state, self._since = state, now
        if now - self._since < QUIET_S:
            return False
        return state != self._done or (self._again and now - self._done_at >= LOOK_AGAIN_S)

    def settled(self, now: float, again: bool) -> None:
        """It has given back what it can in the state of the last look; `again`: that was not all."""
        self._done, self._done_at, self._again = self._state, now, again
