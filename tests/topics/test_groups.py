"""Goal: a queue of a group is one member's at a time; members share evenly; who lost a queue can never step over its
successor, whatever is lost, late or restarted.

Method: hypothesis runs members against the state machine, with time, deaths, members that stand still and keep
believing, and restarts of the worker that forget all but the offsets. A model of each queue says which reader was the
last one to be given it, and a commit must count for that one alone. Sharing is checked for all small numbers.
"""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warren.engine.errors import Fenced, UsageError
from warren.engine.topics.groups import Committed, Group, Member

RELEASE_S = 10.0
A, B, C, D = (Member(slot, 1, 1) for slot in range(4))


def settled(queues: int) -> Group:
    return Group(queues)


def has(group: Group, member: Member) -> list[int]:
    return [queue for queue, _generation in group.given(member)]


def synced(group: Group, member: Member, *released: int, now: float = 0.0) -> list[int]:
    group.sync(member, (), released, now)
    return has(group, member)


def test_the_first_one_has_all_and_gives_half_back() -> None:
    group = settled(4)
    assert synced(group, A) == [0, 1, 2, 3]
    assert synced(group, B) == []
    assert (has(group, A), group.to_give_back(A)) == ([0, 1], [2, 3])
    assert synced(group, A, 2) == [0, 1]
    assert synced(group, B) == [2]
    synced(group, A, 3)
    assert synced(group, B) == [2, 3]
    assert group.to_give_back(A) == []


@pytest.mark.parametrize("queues", range(1, 9))
@pytest.mark.parametrize("members", range(1, 6))
def test_shares_are_even_and_only_surplus_moves(queues: int, members: int) -> None:
    for gone in range(members):
        group = settled(queues)
        them = [Member(slot, 1, 1) for slot in range(members)]
        for count, member in enumerate(them, 1):
            before = {owner: set(has(group, owner)) for owner in them[: count - 1]}
            synced(group, member)
            for owner in them[: count - 1]:
                synced(group, owner, *group.to_give_back(owner))
                assert set(has(group, owner)) <= before[owner], "one that stays was given a queue of another"
            even(group, queues)
        left = {owner: set(has(group, owner)) for owner in them if owner != them[gone]}
        group.leave(them[gone], 0.0)
        even(group, queues)
        for owner, kept in left.items():
            assert kept <= set(has(group, owner)), "one lost a queue because another one left"


def even(group: Group, queues: int) -> None:
    counts = [len(has(group, member)) for member in group.members]
    if counts:
        assert sum(counts) == queues
        assert max(counts) - min(counts) <= 1


def test_who_gives_nothing_back_loses_it_in_time() -> None:
    group = settled(2)
    synced(group, A)
    ((_, generation), _) = group.given(A)
    synced(group, B, now=1.0)
    group.tick(1.0 + RELEASE_S - 0.1)
    assert has(group, B) == []
    group.check(A, [(1, generation, 0)])
    group.tick(1.0 + RELEASE_S)
    assert has(group, B) == [1]
    with pytest.raises(Fenced, match=r"queues \[1\]"):
        group.check(A, [(0, generation, 0), (1, generation, 0)])
    group.check(A, [(0, generation, 0)])


def test_a_generation_of_before_is_fenced_though_the_queue_is_ones_own_again() -> None:
    group = settled(1)
    synced(group, A)
    ((_, old),) = group.given(A)
    group.leave(A, 0.0)
    synced(group, B)
    group.leave(B, 0.0)
    synced(group, A)
    with pytest.raises(Fenced):
        group.check(A, [(0, old, 5)])


def test_members_of_before_a_restart_keep_what_they_have_and_newcomers_wait() -> None:
    group = Group(2, settled_at=RELEASE_S, offsets={0: Committed(4, 17)})
    group.sync(A, [(0, 4)], (), 0.0)
    group.sync(B, (), (), 0.0)
    assert (has(group, A), has(group, B)) == ([0], [])
    group.check(A, [(0, 4, 18)])
    group.tick(RELEASE_S)
    assert (has(group, A), has(group, B)) == ([0], [1])
    assert group.given(B)[0][1] > 4


def test_of_two_that_say_so_the_later_one_is_right() -> None:
    for first, second in ((A, B), (B, A)):
        group = Group(1, settled_at=RELEASE_S)
        for member in (first, second):
            group.sync(member, [(0, 3 if member == A else 5)], (), 0.0)
        with pytest.raises(Fenced):
            group.check(A, [(0, 3, 1)])
        group.check(B, [(0, 5, 1)])


def test_who_says_it_has_a_queue_that_another_committed_of_later_has_it_not() -> None:
    group = Group(1, settled_at=RELEASE_S, offsets={0: Committed(5, 9)})
    group.sync(A, [(0, 3)], (), 0.0)
    assert has(group, A) == []


def test_clients_that_are_gone_take_their_members_along() -> None:
    group = settled(2)
    for member in (A, B):
        synced(group, member)
    group.keep({(B.slot, B.generation)}, 0.0)
    assert (group.members, has(group, B)) == ([B], [0, 1])
    group.keep({(B.slot, B.generation + 1)}, 0.0)
    assert group.members == []
    assert group.empty


def test_a_seek_fences_all() -> None:
    group = settled(2)
    synced(group, A)
    before = group.given(A)
    group.seek(0.0)
    for queue, generation in before:
        with pytest.raises(Fenced):
            group.check(A, [(queue, generation, 0)])
    assert has(group, A) == [0, 1]
    group.check(A, [(queue, generation, 0) for queue, generation in group.given(A)])


def test_queues_that_are_not_there() -> None:
    group = settled(1)
    group.sync(A, [(7, 1)], [9], 0.0)
    with pytest.raises(UsageError, match="there is no queue 7"):
        group.check(A, [(7, 1, 0)])


class Readers(RuleBasedStateMachine):
    """Readers that believe what they were told last, and a model of whom each queue was given to last."""

    @initialize(queues=st.integers(1, 5))
    def begin(self, queues: int) -> None:
        self.queues = queues
        self.now = 0.0
        self.numbers = itertools.count()
        self.group = Group(queues)
        self.believes: dict[Member, dict[int, int]] = {}  # queue → generation
        self.offsets = dict.fromkeys(range(queues), 0)
        self.last = dict.fromkeys(range(queues), 0)  # the highest generation that committed

    @precondition(lambda self: len(self.believes) < 4)
    @rule()
    def come(self) -> None:
        self.talk(Member(next(self.numbers), 1, 1), give=True)

    def talk(self, member: Member, give: bool) -> None:
        held = self.believes.get(member, {})
        released = [queue for queue in self.group.to_give_back(member) if queue in held] if give else []
        self.group.sync(member, held.items(), released, self.now)
        self.believes[member] = dict(self.group.given(member))
        for queue in self.group.to_give_back(member):
            if queue in held:
                self.believes[member][queue] = held[queue]

    def chosen(self, data: st.DataObject) -> Member:
        return data.draw(st.sampled_from(list(self.believes)))

    @precondition(lambda self: self.believes)
    @rule(data=st.data(), give=st.booleans())
    def sync(self, data: st.DataObject, give: bool) -> None:
        self.talk(self.chosen(data), give)

    @precondition(lambda self: self.believes)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        member = self.chosen(data)
        for queue, generation in self.believes[member].items():
            newer = any(
                other != member and theirs.get(queue, 0) > generation for other, theirs in self.believes.items()
            )
            try:
                self.group.check(member, [(queue, generation, self.offsets[queue] + 1)])
            except Fenced:
                continue
            assert not newer, "a member stepped over its successor"
            assert generation >= self.last[queue]
            self.last[queue] = generation
            self.offsets[queue] += 1
            self.group.offsets[queue] = Committed(generation, self.offsets[queue])

    @precondition(lambda self: self.believes)
    @rule(data=st.data(), told=st.booleans())
    def go(self, data: st.DataObject, told: bool) -> None:
        member = self.chosen(data)
        del self.believes[member]
        if told:
            self.group.leave(member, self.now)
        else:
            self.group.keep({(left.slot, left.generation) for left in self.believes}, self.now)

    @rule(seconds=st.sampled_from([0.5, 9.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.group.tick(self.now)

    @rule()
    def restart(self) -> None:
        """All of it but what was committed is forgotten; members that are alive all say so before it is settled."""
        self.group = Group(self.queues, self.now + RELEASE_S, RELEASE_S, dict(self.group.offsets))
        for member in self.believes:
            self.group.sync(member, self.believes[member].items(), (), self.now)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "group"):
            return
        members = set(self.group.members)
        for queue in range(self.queues):
            owner = self.group.owner(queue)
            assert owner is None or owner in members
            assert owner is not None or not members or not self.group.settled(self.now)
        highest = max((held.generation for held in self.group.offsets.values()), default=0)
        assert self.group.generation >= highest

    @rule()
    def rest(self) -> None:
        """When nothing happens any more, all queues are shared evenly."""
        self.now += 100.0
        self.group.tick(self.now)
        for _ in range(2):
            for member in list(self.believes):
                self.talk(member, give=True)
        even(self.group, self.queues)


Readers.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReaders = Readers.TestCase
