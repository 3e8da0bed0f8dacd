"""Goal: whatever members of a group do, in whatever order, and whoever dies: nothing is committed that no member was
done with, no message is passed by, and what is committed never goes back.

Method: the true state machine of the worker (engine/topics/groups.py) and members that do what readers do (sync, hand
out, commit, give back), each step by itself; all orders of steps are searched, with kills of the worker and of
members, members that are silent for too long or give up what they have, and with time that runs out. With a rule broken
the search finds what that does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import pytest

from warren.engine.errors import Fenced, SessionExpired
from warren.engine.topics.groups import Committed, Group, Member, _Place

MEMBERS = (Member(1, 1, 1), Member(2, 1, 1))
#: a step is done at time 0, and what runs out then does so at LATER
SOON, LATER = 1.0, 2.0


class Held(NamedTuple):
    """A queue as its member has it."""

    queue: int
    generation: int
    begin: int
    position: int
    done: int
    kept: int
    leaving: bool


class One(NamedTuple):
    """A member."""

    alive: bool = True
    held: tuple[Held, ...] = ()
    rejoins: bool = False  #: it knows that it has lost all


class Place(NamedTuple):
    owner: Member | None
    generation: int
    wanted: Member | None
    runs_out: bool


class Worker(NamedTuple):
    settled: bool
    generation: int
    members: tuple[Member, ...]
    expired: tuple[Member, ...]
    places: tuple[Place, ...]
    offsets: tuple[Committed | None, ...]


class State(NamedTuple):
    worker: Worker
    members: tuple[One, ...]
    handed: tuple[int, ...]  #: of each queue so many messages were handed out
    worked: tuple[int, ...]  #: and these some member is done with, a bit each
    worker_kills: int
    member_kills: int
    silences: int  #: so often a member can lose all of its queues
    broken: str = ""


class Search:
    """All states of so many queues, messages of each, and kills."""

    def __init__(self, queues: int, messages: int, worker_kills: int, member_kills: int, silences: int = 0) -> None:
        self.queues, self.messages = queues, messages
        nobody = Place(None, 0, None, False)
        worker = Worker(True, 0, (), (), (nobody,) * queues, (None,) * queues)
        none = (0,) * queues
        self.start = State(worker, (One(), One()), none, none, worker_kills, member_kills, silences)
        self.begins_at_what_is_committed = True  #: a rule that can be broken

    # -- the worker -------------------------------------------------------------------------------------------------

    def group(self, worker: Worker) -> Group:
        offsets = {queue: found for queue, found in enumerate(worker.offsets) if found is not None}
        group = Group(self.queues, 0.0 if worker.settled else SOON, SOON, offsets, worker.generation)
        group.generation = worker.generation
        group._members = dict.fromkeys(worker.members)
        group._expired = dict.fromkeys(worker.expired, "it was silent")
        group._settled = worker.settled
        group._places = [
            _Place(place.owner, place.generation, place.wanted, SOON if place.runs_out else None)
            for place in worker.places
        ]
        return group

    def worker(self, group: Group) -> Worker:
        return Worker(
            group._settled,
            group.generation,
            tuple(group.members),
            tuple(group._expired),
            tuple(Place(at.owner, at.generation, at.wanted, at.until is not None) for at in group._places),
            tuple(group.offsets.get(queue) for queue in range(self.queues)),
        )

    def ask(self, s: State, who: int, commits: bool, released: list[int]) -> tuple[State, Group]:
        """A SyncGroup, as the keeper answers it. Raises Fenced."""
        group, member = self.group(s.worker), MEMBERS[who]
        held = [(at.queue, at.generation) for at in s.members[who].held]
        due = [(at.queue, at.generation, at.done) for at in s.members[who].held if commits and at.done != at.kept]
        if s.members[who].rejoins:
            group.sync(member, (), (), 0.0)
        group.check(member, ())
        if not group.settled(0.0):
            group.sync(member, held, (), 0.0)
        group.check(member, due)
        broken = s.broken
        for queue, generation, offset in due:
            broken = broken or self.wrong(s, group, queue, offset)
            group.offsets[queue] = Committed(generation, offset)
        group.sync(member, (), released, 0.0)
        return s._replace(worker=self.worker(group), broken=broken), group

    @staticmethod
    def wrong(s: State, group: Group, queue: int, offset: int) -> str:
        """What is wrong with a commit that was accepted."""
        before = group.offsets.get(queue, Committed(0, 0)).offset
        if offset < before:
            return f"queue {queue}: {before} was committed, then {offset}"
        undone = [at for at in range(offset) if not s.worked[queue] >> at & 1]
        return f"queue {queue}: {offset} is committed, and nobody is done with {undone}" if undone else ""

    # -- members ----------------------------------------------------------------------------------------------------

    def sync(self, s: State, who: int, released: list[int]) -> State:
        try:
            s, group = self.ask(s, who, True, released)
            committed = True
        except SessionExpired:
            return self.with_member(s, who, One(rejoins=True))
        except Fenced:
            s, group = self.ask(s, who, False, [])
            committed = False
        member, known = MEMBERS[who], {at.queue: at for at in s.members[who].held}
        held = [known[queue]._replace(leaving=True) for queue in group.to_give_back(member) if queue in known]
        for queue, generation in group.given(member):
            found = known.get(queue)
            if found is None or found.generation != generation:
                at = group.offsets[queue].offset if queue in group.offsets else 0
                at = at if self.begins_at_what_is_committed else s.handed[queue]
                found = Held(queue, generation, at, at, at, at, False)
            held.append(found._replace(leaving=False))
        if committed:
            held = [at._replace(kept=at.done) for at in held]
        return self.with_member(s, who, One(True, tuple(sorted(held))))

    def with_member(self, s: State, who: int, one: One) -> State:
        return s._replace(members=(*s.members[:who], one, *s.members[who + 1 :]))

    def hand_out(self, s: State, who: int, queue: int) -> State:
        """The next message, to a program that is done with those before it."""
        held, handed, worked, broken = [], list(s.handed), list(s.worked), s.broken
        for at in s.members[who].held:
            for done in range(at.done, at.position):
                worked[at.queue] |= 1 << done
            if at.queue == queue and at.position > handed[queue]:
                broken = f"queue {queue}: {at.position} is handed out, and {handed[queue]} never was"
            more = at.queue == queue
            handed[at.queue] = max(handed[at.queue], at.position + more)
            held.append(at._replace(done=at.position, position=at.position + more))
        s = s._replace(handed=tuple(handed), worked=tuple(worked), broken=broken)
        return self.with_member(s, who, One(True, tuple(held)))

    def commit(self, s: State, who: int) -> State:
        """A CommitOffsets of what is done; who is fenced synchronises."""
        held = s.members[who].held
        group, due = self.group(s.worker), [(at.queue, at.generation, at.done) for at in held if at.done != at.kept]
        if not due:
            return s
        try:
            group.check(MEMBERS[who], ())
        except SessionExpired:
            return self.with_member(s, who, One(rejoins=True))
        if not group.settled(0.0):
            group.sync(MEMBERS[who], [(queue, generation) for queue, generation, _done in due], (), 0.0)
        try:
            group.check(MEMBERS[who], due)
        except Fenced:
            return self.sync(s._replace(worker=self.worker(group)), who, [])
        broken = s.broken
        for queue, generation, offset in due:
            broken = broken or self.wrong(s, group, queue, offset)
            group.offsets[queue] = Committed(generation, offset)
        s = self.with_member(s, who, One(True, tuple(at._replace(kept=at.done) for at in held)))
        return s._replace(worker=self.worker(group), broken=broken)

    # -- all steps ----------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for who, one in enumerate(s.members):
            if not one.alive:
                continue
            yield f"{who} synchronises", self.sync(s, who, [])
            leaving = [at.queue for at in one.held if at.leaving]
            if leaving:
                yield f"{who} gives back {leaving}", self.sync(s, who, leaving)
            yield f"{who} commits", self.commit(s, who)
            for at in one.held:
                if not at.leaving and at.position < self.messages:
                    yield f"{who} hands out {at.queue}:{at.position}", self.hand_out(s, who, at.queue)
            if s.member_kills:
                killed = self.with_member(s, who, One(False))
                yield f"{who} is killed", killed._replace(member_kills=s.member_kills - 1)
            if s.silences:
                less = s._replace(silences=s.silences - 1)
                yield f"{who} gives up", self.with_member(less, who, One(rejoins=True))
                if MEMBERS[who] in s.worker.members:
                    yield (
                        f"{who} was silent",
                        self.after(less, partial(Group.expire, member=MEMBERS[who], why="", now=0.0)),
                    )
        yield "time passes", self.after(s, lambda group: group.tick(LATER))
        alive = {(MEMBERS[who].slot, 1) for who, one in enumerate(s.members) if one.alive}
        yield "links of the dead end", self.after(s, lambda group: group.keep(alive, 0.0))
        if s.worker_kills:
            committed = [found.generation if found else 0 for found in s.worker.offsets]
            places = tuple(Place(None, generation, None, False) for generation in committed)
            again = Worker(False, max(committed), (), (), places, s.worker.offsets)
            yield "the worker is killed", s._replace(worker=again, worker_kills=s.worker_kills - 1)

    def after(self, s: State, step: Callable[[Group], None]) -> State:
        group = self.group(s.worker)
        step(group)
        return s._replace(worker=self.worker(group))

    def run(self, most: int) -> tuple[int, list[str]]:
        """How many states there are, up to `most`; the steps that break something, the fewest."""
        came: dict[State, tuple[State, str] | None] = {self.start: None}
        waiting = deque([self.start])
        while waiting and len(came) < most:
            s = waiting.popleft()
            for name, after in self.steps(s):
                if after in came:
                    continue
                came[after] = (s, name)
                if after.broken:
                    return len(came), [*self.path(came, after), after.broken]
                if after.worker.generation < 12:  # generations rise without end
                    waiting.append(after)
        return len(came), []

    @staticmethod
    def path(came: dict[State, tuple[State, str] | None], s: State) -> list[str]:
        found: list[str] = []
        while (before := came[s]) is not None:
            s, name = before
            found.append(name)
        return found[::-1]


STATES = 40_000


@pytest.mark.parametrize(
    ("queues", "messages", "worker_kills", "member_kills", "silences"),
    [
        (1, 3, 1, 1, 0),
        (2, 3, 0, 0, 0),
        (2, 2, 0, 1, 0),
        (2, 1, 1, 0, 0),
        (1, 2, 2, 0, 0),
        (1, 2, 1, 0, 2),
        (2, 2, 0, 0, 2),
    ],
)
def test_no_order_of_steps_breaks_a_promise(
    queues: int, messages: int, worker_kills: int, member_kills: int, silences: int
) -> None:
    states, broken = Search(queues, messages, worker_kills, member_kills, silences).run(STATES)
    assert not broken
    assert states > 500


def test_without_fencing_one_steps_over_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "check", lambda *_told: None)
    _states, broken = Search(2, 3, 0, 0).run(STATES)
    assert "was committed, then" in broken[-1]


def test_who_was_silent_and_may_commit_steps_over_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Group, member: Member, commits: Iterable[tuple[int, int, int]]) -> None:
        if member not in self._expired:
            checked(self, member, commits)

    checked = Group.check
    monkeypatch.setattr(Group, "check", check)
    _states, broken = Search(1, 3, 0, 0, 1).run(STATES)
    assert "was committed, then" in broken[-1]


def test_a_lower_generation_that_wins_steps_over_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(self: Group, member: Member, queue: int, generation: int) -> None:
        place = self._places[queue]
        place.owner, place.generation = member, generation
        self.generation = max(self.generation, generation)

    monkeypatch.setattr(Group, "_claim", claim)
    _states, broken = Search(2, 3, 1, 0).run(2 * STATES)
    assert "was committed, then" in broken[-1]


def test_who_begins_behind_what_was_handed_out_passes_by_what_was_not_done() -> None:
    search = Search(1, 3, 0, 1)
    search.begins_at_what_is_committed = False
    _states, broken = search.run(STATES)
    assert "nobody is done with [0]" in broken[-1]
