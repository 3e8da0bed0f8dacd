"""Memory that a gateway needs for its clients: counted as bytes arrive, before anything is made of them.

    waits   methods and messages that wait for their turn, and those under way
    stays   as long as a client likes: messages and acks of transactions, consumers, channels

A connection with too much waiting is not read until some of it is done: its socket fills, and TCP holds the client
back. Things that stay do not end by waiting, so more of them are refused.

Invariants
  Nothing is kept that is not counted, with at least FLOOR for each thing: objects cost more than their bytes.
  A connection has at most WAITS_MAX waiting and STAYS_MAX staying, and all together `most` of each. When there is so
  much, whoever has no more than a fair share goes on: a connection that takes all does not stop the others. So all have
  at most 1.5 times `most`, and what one read of each brings: little then (`read_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.engine.amqp import spec

#: of one connection
WAITS_MAX, STAYS_MAX = 4 << 20, 256 << 20
#: of an event or another thing; of each message, added to its bytes
FLOOR, EACH = 512, 160
#: of a channel, with what it remembers: 2.8 KB of an idle one, half a KB more of one that declared and published
CHANNEL = 4 << 10
#: memory of a table as objects for each of its bytes (33 for octets, the worst), and of copies that a method makes
EXPANSION = 40
#: bytes that are read at once; at the bound, and of a client that is not known yet
READ_BYTES, LEAST_BYTES = 1 << 18, 1 << 12


def size_of(event: tuple[Any, ...]) -> int:
    """How much an event of the reader counts while it waits, and until it is done."""
    if event[0] == spec.PUBLISH:
        properties, bodies = event[5], event[6]
        return FLOOR + size_of_messages(properties, bodies)
    arguments = event[3]
    if isinstance(arguments, bytes):
        return FLOOR + EXPANSION * len(arguments)
    return FLOOR + sum(len(one) for one in arguments if isinstance(one, str | bytes))


def size_of_messages(properties: list[bytes], bodies: list[bytes]) -> int:
    """Properties count twice: a submission has a copy of them."""
    return EACH * len(bodies) + 2 * sum(map(len, properties)) + sum(map(len, bodies))


class Backlog:
    """The sums of a gateway."""

    def __init__(self, most: int) -> None:
        self.most = most  #: of what waits
        self.stays_most = most
        self.waits = self.stays = 0
        self.waiting = self.staying = 0  #: connections that have some of it
        self.held_back: dict[Kept, None] = {}  #: woken when others have less

    @property
    def read_bytes(self) -> int:
        """How much is read at once."""
        return min(READ_BYTES, max(LEAST_BYTES, self.most - self.waits))

    def wake(self) -> None:
        """Something is done: those that are held back may go on, if there is room."""
        if self.waits < self.most:
            held_back, self.held_back = self.held_back, {}
            for kept in held_back:
                kept.wake()


class Kept:
    """The part of one connection."""

    def __init__(self, backlog: Backlog, wake: Callable[[], None]) -> None:
        self._backlog = backlog
        self.wake = wake  #: it may be read again, perhaps
        self.waits = self.stays = 0

    def came(self, size: int) -> None:
        """Something waits."""
        if size:
            self._backlog.waiting += not self.waits
            self.waits += size
            self._backlog.waits += size

    def done(self, size: int) -> None:
        """It waits no more."""
        if size:
            self.waits -= size
            backlog = self._backlog
            backlog.waits -= size
            backlog.waiting -= not self.waits
            if backlog.held_back:
                backlog.wake()

    @property
    def full(self) -> bool:
        """Its socket is not to be read: `wake` is called when others are the reason, and it is over."""
        backlog = self._backlog
        if self.waits >= WAITS_MAX:
            return True
        if backlog.waits < backlog.most or self.waits <= backlog.most // (2 * max(1, backlog.waiting)):
            return False
        backlog.held_back[self] = None
        return True

    def reserve(self, size: int) -> bool:
        """Something is to stay; False: there is not enough room."""
        backlog, mine = self._backlog, self.stays + size
        if mine > STAYS_MAX:
            return False
        others = backlog.staying - bool(self.stays)
        if backlog.stays + size > backlog.stays_most and mine > backlog.stays_most // (2 * (others + 1)):
            return False
        backlog.staying += not self.stays and size > 0
        self.stays = mine
        backlog.stays += size
        return True

    def release(self, size: int) -> None:
        """It stays no more."""
        if size:
            self.stays -= size
            self._backlog.stays -= size
            self._backlog.staying -= not self.stays

    def end(self) -> None:
        """The connection is over; what is under way still gives its part back."""
        self._backlog.held_back.pop(self, None)
