"""Messages that clients have begun and not ended: how much of them a gateway takes at a time.

    a connection begins ─▶ queue ─▶ read ─▶ its messages have come as a whole
                             ▲        └─▶ grown: it began more than there is room for, and is not read
                             └── ended one and began another while others wait

Who is in `read` has room for all that it announced: it is read to the end. Others are not read meanwhile, and hold what
little came with their beginning.

Invariants
  The oldest in `read` is never held: messages that are begun cannot fill the room and wait for each other.
  What has come is at most 1.5 times `most`, what the oldest may have begun, and one read of each connection: a small
  one then (`read_bytes`).
  A connection with no more than a fair share need not wait: a few that begin very much do not stop the others.
  A connection that others wait for has to send (watch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from warren.workers.amqp.backlog import LEAST_BYTES, READ_BYTES
from warren.workers.amqp.faults import ConnectionFault


class Owner(Protocol):
    """A connection."""

    bytes_in: int
    paused: bool

    def may_read(self) -> None: ...
    def fail(self, fault: ConnectionFault, method: int = 0) -> None: ...


class Part:
    """What one connection has begun."""

    def __init__(self, begun: Begun, owner: Owner) -> None:
        self._begun = begun
        self.owner = owner
        self.size = 0  #: as announced; 0: nothing worth counting
        self.came = 0  #: of it
        self.counts = 0  #: in the sum
        self.since: float | None = None  #: others wait for it; `bytes_in`: what it had sent then
        self.bytes_in = 0

    @property
    def held(self) -> bool:
        """Its connection is not to be read: `may_read` is called when it may be again."""
        return self in self._begun.queue or self in self._begun.grown

    @property
    def read_bytes(self) -> int:
        """How much is read at once."""
        begun = self._begun
        return LEAST_BYTES if begun.queue and self not in begun.read else READ_BYTES

    def now(self, size: int, came: int, ended: bool = False) -> None:
        """So much is begun, of which so much has come; `ended`: a message was, since the last time."""
        if size <= LEAST_BYTES:
            size = 0
        begun = self._begun
        if ended and came <= READ_BYTES and begun.queue and self in begun.read:
            begun.leaves(self)  # it is the turn of others
        self.came = came
        if size or self.size:
            begun.put(self, size)


class Begun:
    """All of a gateway."""

    def __init__(self, most: int, apart: Callable[[bool], None] = lambda _on: None) -> None:
        self.most = most
        self.bytes = 0
        self._apart = apart  #: told when there is much, so that what ends goes back to the system, and when not
        self._much = False
        self.read: dict[Part, None] = {}  #: the oldest first
        self.grown: dict[Part, None] = {}  #: those in `read` that have to wait all the same
        self.queue: dict[Part, None] = {}

    @property
    def waited_for(self) -> bool:
        """Somebody waits for room."""
        return bool(self.queue or self.grown)

    def bound(self, most: int) -> None:
        """There is so much room now."""
        self.most = most
        self._settle()

    def put(self, part: Part, size: int) -> None:
        """A connection has begun so much."""
        if not size:
            self.leaves(part)
            return
        before, part.size = part.size, size
        if part in self.read:
            self._count(part, size)
            if size > before and self.bytes > self.most and part is not next(iter(self.read)):
                self.grown[part] = None
            elif size < before:
                self._settle()
            return
        self._count(part, part.came)
        self.queue[part] = None
        self._settle()
        if part in self.queue and size <= self._share and self._fits(part, self.most * 3 // 2):
            self._enters(part)

    def leaves(self, part: Part) -> None:
        """It has begun nothing any more."""
        if not part.size:
            return
        part.size = 0
        self._count(part, 0)
        for place in (self.read, self.grown, self.queue):
            place.pop(part, None)
        self._settle()

    @property
    def _share(self) -> int:
        return self.most // (2 * (len(self.read) + len(self.queue)))

    def _count(self, part: Part, counts: int) -> None:
        self.bytes += counts - part.counts
        part.counts = counts
        if self._much != (self.bytes > self.most // (4 if self._much else 2)):
            self._much = not self._much
            self._apart(self._much)

    def _fits(self, part: Part, most: int) -> bool:
        return self.bytes - part.counts + part.size <= most

    def _enters(self, part: Part) -> None:
        del self.queue[part]
        self.read[part] = None
        self._count(part, part.size)
        part.since = None
        part.owner.may_read()

    def _settle(self) -> None:
        """There may be room for those that wait."""
        oldest = next(iter(self.read), None)
        for part in list(self.grown):
            if part is oldest or self.bytes <= self.most:
                del self.grown[part]
                part.since = None
                part.owner.may_read()
        while self.queue:
            first = next(iter(self.queue))
            if self.read and not self._fits(first, self.most):
                return
            self._enters(first)
