"""One group of readers as a state machine: who its members are, which queue is whose, and how far each queue is done.
Without clock, files and threads: callers give the time and make durable what they commit (engine/topics/keeper.py).

A queue is given to one member at a time, in a generation; each time it is given, the generation is a higher one. The
members share the queues as evenly as it goes, with as few moves as possible. A queue that moves is given back first:
its owner has `release_s` for that, and loses it then whatever it does.

Invariants
  A commit names for each queue the generation in which it was given to the member, and counts only while the queue is
  still that member's: who lost a queue cannot step over its successor (`Fenced`).
  A queue has one owner at most, a member; each queue has one as soon as there are members and none is waited for.
  A member that was silent for too long (sessions.py) is removed, and gets an error before it can join again.
  Members of a worker before this one are waited for (until `settled_at`): what they say they own is theirs, and nothing
  moves until then. Of two who say so the one with the higher generation is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from warren.engine.errors import Fenced, SessionExpired, UsageError

RELEASE_S = 10.0  #: for so long a member may keep what it has to give back
GENERATION_MAX = 1 << 53


class Member(NamedTuple):
    """A reader: its client's slot, the generation of that slot, and the number that the client has drawn."""

    slot: int
    generation: int
    number: int


class Committed(NamedTuple):
    """How far a queue is done: `offset` of the first message that is not; given to its owner in `generation`."""

    generation: int
    offset: int


@dataclass
class _Place:
    """One queue, as the group has it."""

    owner: Member | None = None
    generation: int = 0  #: in which it was given to its owner, or to the last one
    wanted: Member | None = None  #: whose it shall be
    until: float | None = None  #: when the owner loses it, if it has to give it back


@dataclass
class Group:
    """A group of readers of one topic."""

    queues: int
    settled_at: float = 0.0
    release_s: float = RELEASE_S
    offsets: dict[int, Committed] = field(default_factory=dict)
    generation: int = 0  #: rises with each change of who has, or shall have, which queue

    def __post_init__(self) -> None:
        self._members: dict[Member, None] = {}  # in the order in which they came
        self._expired: dict[Member, str] = {}  # removed for silence, and why, until they join again
        self._settled = False
        self._places = [_Place() for _ in range(self.queues)]
        for queue, committed in self.offsets.items():
            self._places[queue].generation = committed.generation
            self.generation = max(self.generation, committed.generation)

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        """Those that there are, in the order in which they came."""
        return list(self._members)

    @property
    def empty(self) -> bool:
        """Nothing of it is worth keeping."""
        return not self._members and not self.offsets and not self._expired

    @property
    def waits(self) -> bool:
        """Time alone changes something: `tick`."""
        return not self._settled or any(place.until is not None for place in self._places)

    def settled(self, now: float) -> bool:
        """No member of a worker before this one is waited for."""
        return self._settled or now >= self.settled_at

    def owner(self, queue: int) -> Member | None:
        """Whose a queue is."""
        return self._places[queue].owner

    def given(self, member: Member) -> list[tuple[int, int]]:
        """(queue, generation) of each queue that is a member's and that it may keep."""
        places = enumerate(self._places)
        return [(queue, place.generation) for queue, place in places if place.owner == member == place.wanted]

    def to_give_back(self, member: Member) -> list[int]:
        """Queues that are a member's and shall be another's."""
        return [queue for queue, place in enumerate(self._places) if place.owner == member != place.wanted]

    def check(self, member: Member, commits: Iterable[tuple[int, int, int]]) -> None:
        """May a member commit offsets of these (queue, generation, offset)? Raises SessionExpired, Fenced, UsageError.

        SessionExpired also without any.
        """
        if (why := self._expired.get(member)) is not None:
            raise SessionExpired(
                f"this reader lost its queues: {why}. Messages that it has not committed go to the readers "
                "that have the queues now; the next call joins the group again"
            )
        lost = []
        for queue, generation, _offset in commits:
            if not 0 <= queue < self.queues:
                raise UsageError(f"the topic has {self.queues} queues: there is no queue {queue}")
            place = self._places[queue]
            if place.owner != member or place.generation != generation:
                lost.append(queue)
        if lost:
            raise Fenced(
                f"queues {lost} are not this reader's any more: others read on from what was committed before; nothing "
                "of this commit counts"
            )

    # -- members ------------------------------------------------------------------------------------------------

    def sync(self, member: Member, held: Iterable[tuple[int, int]], released: Iterable[int], now: float) -> None:
        """A member says that it is there; one that is new comes last. `held`: (queue, generation) that it says it has;
        `released`: what it gives back. What becomes of it: given, to_give_back.
        """
        self._look_at(now)
        self._expired.pop(member, None)
        self._members.setdefault(member)
        if not self._settled:
            for queue, generation in held:
                self._claim(member, queue, generation)
        for queue in released:
            if 0 <= queue < self.queues and self._places[queue].owner == member != self._places[queue].wanted:
                self._places[queue].owner = None
        self._share(now)

    def leave(self, member: Member, now: float) -> None:
        """A member goes: its queues are others'."""
        self._look_at(now)
        self._members.pop(member, None)
        self._expired.pop(member, None)
        self._share(now)

    def expire(self, member: Member, why: str, now: float) -> None:
        """Remove a member that was silent for too long. Its requests raise SessionExpired until it joins again."""
        self.leave(member, now)
        self._expired[member] = why

    def keep(self, slots: set[tuple[int, int]], now: float) -> None:
        """Members go whose clients are not among these (slot, generation)."""
        for members in (self._members, self._expired):
            for member in [each for each in members if (each.slot, each.generation) not in slots]:
                members.pop(member)
        self.tick(now)

    def tick(self, now: float) -> None:
        """What time changes: who is not waited for any more, and what was not given back in time."""
        self._look_at(now)
        self._share(now)

    def seek(self, now: float) -> int:
        """The program sets offsets from outside: all queues are given anew, and members that commit what they read
        before are fenced. In which generation."""
        for place in self._places:
            place.owner, place.until = None, None
        self.generation += 1
        for place in self._places:
            place.generation = self.generation
        self._share(now)
        return self.generation

    # -- inside -------------------------------------------------------------------------------------------------

    def _look_at(self, now: float) -> None:
        self._settled = self._settled or now >= self.settled_at
        for place in self._places:
            if place.until is not None and now >= place.until:
                place.owner, place.until = None, None

    def _claim(self, member: Member, queue: int, generation: int) -> None:
        """A member of before says that a queue is its own."""
        if not 0 <= queue < self.queues or not 0 < generation < GENERATION_MAX:
            return
        place = self._places[queue]
        if place.owner == member or generation < place.generation:
            return
        if place.owner is None or generation > place.generation:
            place.owner, place.generation = member, generation
            self.generation = max(self.generation, generation)

    def _share(self, now: float) -> None:
        """Say whose each queue shall be, and give away those that nobody has."""
        for place in self._places:
            if place.owner not in self._members:
                place.owner, place.until = None, None
        if self._settled:
            shares = self._shares()
        else:
            shares = [place.owner for place in self._places]
        changed = any(place.wanted != wanted for place, wanted in zip(self._places, shares, strict=True))
        free = self._settled and any(place.owner is None for place in self._places)
        if not changed and not (free and self._members):
            return
        self.generation += 1
        for place, wanted in zip(self._places, shares, strict=True):
            place.wanted = wanted
            if place.owner == wanted:
                place.until = None
            elif place.owner is None:
                place.owner, place.generation, place.until = wanted, self.generation, None
            elif place.until is None:
                place.until = now + self.release_s

    def _shares(self) -> list[Member | None]:
        """For each queue whose it shall be: even shares. Who has more gives of it, and nothing else moves."""
        shares: list[Member | None] = []
        count = dict.fromkeys(self._members, 0)
        for place in self._places:
            share = place.wanted if place.wanted in self._members else place.owner
            shares.append(share)
            if share is not None:
                count[share] += 1
        if not self._members:
            return shares
        least, more = divmod(self.queues, len(self._members))
        order = sorted(self._members, key=lambda member: -count[member])  # stable: who came first, among equals
        quota = {member: least + (place < more) for place, member in enumerate(order)}
        # What is not its owner's yet goes first: giving it to another is no move.
        for queue in sorted(range(self.queues), key=lambda queue: (self._places[queue].owner == shares[queue], -queue)):
            share = shares[queue]
            if share is not None and count[share] > quota[share]:
                shares[queue] = None
                count[share] -= 1
        for queue, share in enumerate(shares):
            if share is None:
                owner = self._places[queue].owner  # it may keep what it was to give back
                if owner is None or count[owner] >= quota[owner]:
                    owner = next(member for member in self._members if count[member] < quota[member])
                shares[queue] = owner
                count[owner] += 1
        return shares
