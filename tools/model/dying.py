"""Model of a dying client: what it had queued is masked from its death point on, and nobody else's reference suffers.

What is modelled (design note 003, sections 8 and 12): the queue of the dying client D (the example of rule S9), its
death message at any point, or lost; another client O that writes and removes some of the same ids; rolls, deletion or
collection of records without references, which keep their place or get a new one; kills of the
server (the log is durable at once; `head` lags behind). Offsets are places in one log; a file is a run of places.

Invariants: O's references are all there; D's masked commands have no effect; what D wrote before its death point and
what it did to what was known then counts as always; a command has one effect at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

WAITING, SENT, HEARD, ENDED = range(4)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    unknown_is_masked: bool = True  #: a command for an id that is not there has no effect
    behind_is_masked: bool = True  #: nor one for a record behind the death point
    at_is_masked: bool = True  #: nor one for a record at the death point
    point_survives: bool = True  #: the death point is kept where a new server finds it
    point_is_not_collected: bool = True  #: the file of the death point keeps its places
    point_until_head: bool = (
        True  #: and until `head` has passed the TERMINATE: what stands before it may be executed again
    )


class Entry(NamedTuple):
    """An id in the index."""

    place: int
    moved: bool  # it lies in a collected file that holds the death point: its place says nothing any more
    d: int  # references of D
    o: int


class State(NamedTuple):
    """Everything."""

    step: int  # of the death message
    at: int  # next command of D
    head: int
    high: int
    other: int
    end: int  # of the log
    point: int
    entries: tuple[Entry | None, ...]  # by id
    first: int  # place at which the current file begins
    kills: int
    moves: int
    broken: str


@dataclass(frozen=True)
class DyingModel:
    """Queue of D (ending in T, the TERMINATE), commands of O, kills and collections."""

    queue: tuple[str, ...] = ("W1", "W2", "W1", "R1", "W3", "R2", "W2", "R1", "R2", "R3", "W0", "T")
    others: tuple[str, ...] = ("W3",)
    kills: int = 1
    moves: int = 1
    rules: Rules = Rules()

    def start(self) -> State:
        return State(WAITING, 0, 0, 0, 0, 0, -1, (None,) * 4, 0, self.kills, self.moves, "")

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        if s.step == WAITING:
            yield "D sends its death message", s._replace(step=SENT)
        elif s.step == SENT and s.at < len(self.queue):
            yield "server records the death point", s._replace(step=HEARD, point=s.end)
            yield "~the message is lost", s._replace(step=ENDED)
        if s.at < len(self.queue) and (self.queue[s.at] != "T" or s.step != WAITING):
            yield f"server executes {self.queue[s.at]} of D", self._execute(s)
        if s.head < s.at:
            ended = s.at == len(self.queue)
            after = s._replace(step=ENDED, point=-1) if ended and s.step == HEARD else s
            yield "server publishes head", after._replace(head=s.at)
        if s.other < len(self.others):
            op = self.others[s.other]
            yield f"server executes {op} of O", self._apply(s, op, 0, 1)._replace(other=s.other + 1)
        if s.first < s.end:
            yield "server rolls", s._replace(first=s.end)
        for id, entry in enumerate(s.entries):
            if entry is None or entry.place >= s.first:
                continue
            dying = s.step == HEARD
            if dying and entry.place >= s.point and self.rules.point_is_not_collected:
                continue  # the file of the death point, or one behind it
            if entry.d + entry.o == 0:
                yield f"server drops {id}", self._put(s, id, None)
            elif s.moves and not entry.moved and dying and not self.rules.point_is_not_collected:
                yield f"server collects {id}", self._put(s, id, entry._replace(moved=True))._replace(moves=s.moves - 1)
        if s.kills:
            keeps = self.rules.point_survives or s.step != HEARD
            yield (
                "~kill server, it starts",
                s._replace(
                    at=s.head,
                    kills=s.kills - 1,
                    step=s.step if keeps else ENDED,
                    point=s.point if keeps else -1,
                    first=s.end,
                ),
            )

    @staticmethod
    def _put(s: State, id: int, entry: Entry | None) -> State:
        return s._replace(entries=(*s.entries[:id], entry, *s.entries[id + 1 :]))

    def _execute(self, s: State) -> State:
        op, sequence = self.queue[s.at], s.at
        s = s._replace(at=s.at + 1)
        if op == "T":
            return s if self.rules.point_until_head else s._replace(step=ENDED, point=-1)
        if sequence < s.high:
            return s  # its frame is on the disk
        entry = s.entries[int(op[1])]
        if s.step == HEARD:
            if entry is None:
                if self.rules.unknown_is_masked:
                    return s
            elif (entry.place > s.point and self.rules.behind_is_masked and not entry.moved) or (
                entry.place == s.point and self.rules.at_is_masked and not entry.moved
            ):
                return s
        after = self._apply(s, op, 1, 0)
        return after._replace(high=sequence + 1) if after is not s else s

    def _apply(self, s: State, op: str, d: int, o: int) -> State:
        """Execute a command: a frame at the end of the log, if it has an effect."""
        id = int(op[1])
        entry = s.entries[id]
        if op[0] == "W":
            after = Entry(s.end, False, d, o) if entry is None else entry._replace(d=entry.d + d, o=entry.o + o)
            return self._put(s, id, after)._replace(end=s.end + 1)
        if entry is None or entry.d + entry.o == 0:
            return s
        mine = entry.d if d else entry.o
        if not mine:
            return s._replace(broken=f"{'D' if d else 'O'} takes a reference of the other's to {id}")
        return self._put(s, id, entry._replace(d=entry.d - d, o=entry.o - o))._replace(end=s.end + 1)

    def wrong(self, s: State) -> str | None:
        if s.broken:
            return s.broken
        for id, entry in enumerate(s.entries):
            ops = [op[0] for op in self.others[: s.other] if int(op[1]) == id]
            if ops.count("W") - ops.count("R") > (entry.o if entry is not None else 0):
                return f"a reference of O to {id} is lost"
            if s.step == HEARD and entry is not None and entry.d and entry.place >= s.point:
                return f"D has written {id} behind its death point"
        return None

    def rest(self, s: State) -> str | None:
        if s.at < len(self.queue):
            return "D's queue is not executed"
        if s.step == HEARD:
            return "D is dying for ever"
        for id in (1, 2, 3):
            entry = s.entries[id]
            if entry is not None and entry.d:
                return f"D has a reference to {id} that it gave back"
        return None


#: name → model
STANDARD = {
    "two ids and an unknown one": DyingModel(("W1", "W3", "R1", "R3", "T"), ("W3",)),
    "another one's record": DyingModel(("W1", "R1", "W1", "R1", "T"), ("W1", "R1")),
}

#: larger ones
DEEP = {
    "the example of rule S9, O writes 3": DyingModel(),
    "the example of rule S9, O writes and removes 1": DyingModel(others=("W1", "R1")),
    "O writes three ids, two kills": DyingModel(
        others=("W3", "W1", "R1", "W2"), kills=2, queue=("W1", "W3", "R1", "R3", "W0", "T")
    ),
}
