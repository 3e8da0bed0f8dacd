"""How far a reader is with each of its queues: plain numbers, without clock and servers (faces/topic_reader.py).

Of a queue, in this order, all offsets:

    begin ≤ done ≤ position ≤ fetched       kept: what the group has of it

    begin      where the reader began, since it has the queue, or by a seek
    done       what lies before is done (commit="auto")
    given      behind the last message that was handed out; begin, if none was
    position   of the next message to hand out: those in between did not match, or are gone
    fetched    of the next message to read

What was retried is done as soon as all before it is: it needs no commit of the program's (docs/rules.md, T25).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warren.engine.errors import Fenced, UsageError

UNKNOWN = -1
#: of so many retried messages of a queue it is known at least that they were, also behind their commit
RETRIED_MAX = 4096


@dataclass(eq=False, slots=True)
class Place:
    """One queue of a reader."""

    queue: int
    generation: int
    begin: int
    kept: int  #: what is committed, or need not be; UNKNOWN: it has to be told
    pinned: bool = True  #: that the group begins here is committed, or goes without saying
    leaving: bool = False  #: to be given back: nothing is handed out
    done: int = 0
    given: int = 0
    position: int = 0
    fetched: int = 0
    settled: int = 0  #: nothing before this was handed out and is not committed: what did not match lies before it
    retried: set[int] = field(default_factory=set)  #: offsets, of messages that were handed out

    def __post_init__(self) -> None:
        self.done = self.given = self.position = self.fetched = self.settled = self.begin

    @property
    def owes(self) -> bool:
        """Something was handed out of it that is not committed."""
        return self.given > max(self.kept, self.begin)

    def seek(self, offset: int) -> None:
        """Go on there."""
        self.begin = self.done = self.given = self.position = self.fetched = offset
        self.kept = UNKNOWN
        self.retried.clear()

    def passed(self, offset: int) -> None:
        """Nothing below this is handed out any more."""
        self.position = self.fetched = offset
        if not self.owes:
            self.settled = offset

    def was_retried(self, offset: int) -> None:
        """A message that was handed out lies in the retry topic, or among the dead letters."""
        if len(self.retried) >= RETRIED_MAX:
            self.retried = {each for each in self.retried if each >= self.kept}
        self.retried.add(offset)

    def behind_retried(self, offset: int) -> int:
        """From here on, the first offset that was not retried."""
        while offset in self.retried:
            offset = self.position if offset + 1 == self.given else offset + 1
        return offset

    def back_to(self, offset: int) -> bool:
        """A message that was handed out is handed out again, with those behind it; False: it stays as it is, for it is
        committed.
        """
        if not self.kept <= offset < self.given:
            return False
        self.position = self.fetched = self.given = offset
        self.done = min(self.done, offset)
        self.retried = {each for each in self.retried if each < offset}
        return True

    def was_committed(self, offset: int) -> None:
        """The group has it now."""
        self.kept = offset
        self.done = max(self.done, offset)
        self.pinned = True


def not_handed_out(offset: int, queue: int, more: str) -> UsageError:
    """What to raise for a message that a reader does not know."""
    return UsageError(f"offset {offset} of queue {queue} was not handed out by this reader{more}")


class Places:
    """The queues of a reader, in the order of their turns."""

    def __init__(self) -> None:
        self._all: dict[int, Place] = {}
        self._order: list[Place] = []
        self._lost: set[int] = set()  # others', with something handed out that was not committed; to be told
        self._had: set[int] = set()  # that were others' once

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> list[Place]:
        """Each of them."""
        return list(self._all.values())

    def get(self, queue: int) -> Place | None:
        """That of a queue, if there is one."""
        return self._all.get(queue)

    def add(self, place: Place) -> None:
        """A queue that comes, or comes again."""
        self._all[place.queue] = place
        self._order.append(place)

    def lose(self, place: Place) -> None:
        """It is another reader's."""
        if place.owes:
            self._lost.add(place.queue)
        self._had.add(place.queue)
        del self._all[place.queue]
        self._order.remove(place)

    # -- turns --------------------------------------------------------------------------------------------------

    def in_turn(self) -> list[Place]:
        """Those that something may be handed out of, whose turn is next first."""
        return [place for place in self._order if place.pinned and not place.leaving]

    def had_its_turn(self, place: Place) -> None:
        """The others come first."""
        at = self._order.index(place) + 1
        self._order = self._order[at:] + self._order[:at]

    def leaves(self, *, whole: bool) -> bool:
        """Whether something is to be given back: any of it, or (not `whole`) of which everything is committed."""
        return any(place.leaving and (whole or not place.owes) for place in self._order)

    # -- commits ------------------------------------------------------------------------------------------------

    def unpinned(self) -> dict[int, int]:
        """Where the group begins, and nobody knows of yet: by queue."""
        return {place.queue: place.begin for place in self._all.values() if not place.pinned}

    def done(self) -> dict[int, int]:
        """What is done and not committed: offsets by queue."""
        found = {place.queue: place.behind_retried(place.done) for place in self._all.values() if place.pinned}
        return {queue: offset for queue, offset in found.items() if offset != self._all[queue].kept}

    def retried(self) -> dict[int, int]:
        """What was retried directly behind what is committed: offsets by queue."""
        found: dict[int, int] = {}
        for place in self._all.values():
            begin = max(place.kept, place.settled)
            if place.pinned and place.kept != UNKNOWN and begin in place.retried:
                found[place.queue] = place.behind_retried(begin)
        return found

    def handed_out(self) -> dict[int, int]:
        """What was handed out and not committed."""
        return {
            place.queue: place.position for place in self._all.values() if place.position != place.kept and place.pinned
        }

    def handed(self, queue: int, offset: int) -> Place:
        """The queue of a message that was handed out. Raises Fenced and UsageError."""
        place = self._all.get(queue)
        if place is not None and place.begin <= offset < place.given:
            return place
        if queue in self._had:
            raise Fenced(
                f"queue {queue} went to another reader after offset {offset} was handed out: it is handed out again, "
                "and this call does not count"
            )
        raise not_handed_out(
            offset, queue, "" if place is None else f", which began at {place.begin} and came up to {place.given}"
        )

    def to_retry(self, queue: int, offset: int) -> Place:
        """The queue of a message that is to be retried. Raises Fenced and UsageError."""
        place = self.handed(queue, offset)
        if offset in place.retried:
            raise UsageError(f"the message at offset {offset} of queue {queue} was retried: it comes again by itself")
        return place

    def up_to(self, queue: int, offset: int) -> dict[int, int]:
        """A message that was handed out, and those before it; nothing if that is committed. Raises Fenced and
        UsageError."""
        place = self.handed(queue, offset)
        behind = place.position if offset + 1 == place.given else offset + 1
        return {} if behind <= place.kept else {queue: behind}

    def were_committed(self, offsets: Mapping[int, int]) -> None:
        """The group has these."""
        for queue, offset in offsets.items():
            place = self._all.get(queue)
            if place is not None:
                place.was_committed(offset)

    def take_lost(self) -> list[int]:
        """Queues that went with something that was not committed, since this was asked last."""
        lost, self._lost = sorted(self._lost), set()
        return lost
