"""Shares: how the gateway's delivery slots at one queue worker are divided among consumers.

A message that is unacked, or lies in the gateway for its consumers, is in a slot, and there are so many for all
(setting amqp_delivery_slots). A quarter of them is a reserve: each consumer can have a few of it (`floor`), however
much others hold. The rest, `common`, is for those that want more: each may have the same part of it, and what some do
not ask for is for those without a prefetch. Like this a program that never acks stops nobody, a prefetch is kept
exactly unless very many are large, and a consumer without one gets nearly all as long as it is alone.

What counts is what a tap was granted: what its consumers hold, and what the worker may send beyond that. The common
part is never granted twice, so a consumer that came when it was all held gets its floor, and the rest when others ack.

Invariants
  The sum of what is granted above the floors is at most `common`, but for floors that shrank since (when there are
  more consumers than a reserve has floors).
  `short`: the taps of which a consumer would take more than it may. Only these are looked at again when something
  changes for others, at most every PAUSE_S, so a consumer that comes or goes costs no look at all the others.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

#: of the slots, the part that consumers share beyond their floors
COMMON = 0.75
#: what a consumer can always have: at least, while the reserve lasts, and in slots of a gateway for each
FLOOR_LEAST, FLOOR_PART = 16, 4096
#: a consumer that may hold very many is granted so many beyond what it holds; again when half of them came
AHEAD = 8192
#: between two looks at those who are short, at least
PAUSE_S = 0.05


class Shares:
    """The slots of one worker; consumers are known by what they ask for: a number of messages, 0: no limit."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.common = int(slots * COMMON)
        self.consumers_n = 0
        self.short: set[Any] = set()
        self._endless_n = 0
        self._asked = 0  # by the others
        self._over: dict[Hashable, int] = {}  # by tap: what it was granted beyond floors
        self._over_sum = 0

    def came(self, asks: int) -> None:
        """A consumer comes."""
        self._count(asks, 1)

    def went(self, asks: int) -> None:
        """A consumer that asked for this goes."""
        self._count(asks, -1)

    def _count(self, asks: int, more: int) -> None:
        self.consumers_n += more
        self._endless_n += 0 if asks else more
        self._asked += more * min(asks, self.slots)

    @property
    def floor(self) -> int:
        """What each consumer can have, whatever others do."""
        least = max(FLOOR_LEAST, self.slots // FLOOR_PART)
        return max(1, min(least, (self.slots - self.common) // max(1, self.consumers_n)))

    def fair(self, asks: int) -> int:
        """How many messages a consumer may hold that asks for so many, if others hold no more than their part."""
        each = self.common // max(1, self.consumers_n)
        if self._endless_n:
            each = max(each, (self.common - self._asked) // self._endless_n)
        elif self._asked <= self.common:
            each = self.common
        most = self.floor + each
        return min(asks, most) if asks else most

    def free(self, tap: Hashable) -> int:
        """What other taps leave of the common part."""
        return max(0, self.common - self._over_sum + self._over.get(tap, 0))

    def grant(self, tap: Hashable, over: int) -> bool:
        """A tap has so many beyond the floors of its consumers from now on. True: that leaves more to others."""
        before = self._over.pop(tap, 0)
        if over > 0:
            self._over[tap] = over
        self._over_sum += max(0, over) - before
        return over < before

    @property
    def granted(self) -> list[Any]:
        """The taps that have something of the common part."""
        return list(self._over)
