"""Goal: a member loses its queues when it was silent for all of its time, and never sooner: not by what the worker
slept through, nor by what another wrote into its row, nor for want of a row; it is told, and joins again.

Method: sessions and rows by hand, with the test's clock; the worker's server and service without a node, a client by
hand (support/topic_probe.py), whose clock the test lets pass.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.kernel.protocol import TOPIC_MEMBER_ROW, TOPIC_MEMBERS_AT
from warren.engine.topics.group_rows import NO_ROW, digest
from warren.engine.topics.groups import Member
from warren.engine.topics.sessions import STEP_S, Sessions

from support.topic_probe import OK, Appender, Life, Topic, TopicNode

KEY = (1, "report")
ONE, OTHER = Member(1, 1, 1), Member(2, 1, 2)
SESSION_S, POLL_S = 45.0, 300.0


class Rows:
    """Shared memory."""

    def __init__(self) -> None:
        self.owners: dict[int, int] = {}
        self.words: dict[int, tuple[int, int]] = {}
        self.full = False

    def give_member(self, row: int, member: int, _group: int, _called: int, /) -> bool:
        if not self.full:
            self.owners[row] = member
        return not self.full

    def member(self, row: int, /) -> tuple[int, int]:
        return self.words.get(row, (0, 0))

    def beat(self, row: int, called: bool = False) -> None:
        beats, calls = self.member(row)
        self.words[row] = beats + 1, calls + called


class World:
    """Sessions, and a clock that goes in steps shorter than STEP_S."""

    def __init__(self, most: int = 8) -> None:
        self.rows = Rows()
        self.sessions = Sessions(self.rows, most)
        self.now = 1000.0
        self.sessions.pass_time(self.now)

    def passes(self, seconds: float) -> list[Member]:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + STEP_S / 2)
            self.sessions.pass_time(self.now)
        return self.over()

    def over(self) -> list[Member]:
        return [member for _key, member, _why in self.sessions.over()]


def test_a_process_that_does_not_beat_is_given_up_after_its_time() -> None:
    world = World()
    row, _number = world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
    assert world.passes(SESSION_S - 1) == []
    world.rows.beat(row)
    assert world.over() == []
    assert world.passes(SESSION_S - 1) == []
    assert world.passes(1) == [ONE]
    ((_key, _member, why),) = world.sessions.over()
    assert "session_timeout is 45 s" in why
    assert "the last sign of life of its process is 45.0 s old" in why


def test_a_program_that_does_not_call_is_given_up_whatever_its_process_says() -> None:
    world = World()
    row, _number = world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
    for _ in range(3):  # it calls in time
        for _ in range(10):
            world.rows.beat(row)
            assert world.passes((POLL_S - 10) / 10) == []
        world.rows.beat(row, called=True)
        assert world.over() == []
    while world.sessions.age(KEY, ONE) < POLL_S - 10:
        world.rows.beat(row)
        assert world.passes(10) == []
    world.rows.beat(row)
    assert world.passes(10) == [ONE]
    ((_key, _member, why),) = world.sessions.over()
    assert "max_poll_interval is 300 s" in why


def test_a_request_is_a_call() -> None:
    world = World()
    world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
    for _ in range(20):
        assert world.passes(SESSION_S - 1) == []
        world.sessions.heard(KEY, ONE)


def test_without_limits_nobody_is_given_up() -> None:
    world = World()
    world.sessions.begin(KEY, ONE, None, None)
    assert world.passes(1_000) == []
    assert world.sessions.age(KEY, ONE) == pytest.approx(1_000)


def test_what_the_worker_slept_through_counts_for_nobody() -> None:
    """A worker that is stopped, or a machine that is suspended: the first look afterwards comes before any beat."""
    world = World()
    row, _number = world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
    for _ in range(10):
        world.now += 10 * POLL_S
        world.sessions.pass_time(world.now)
        assert world.over() == []
    world.rows.beat(row, called=True)
    assert world.over() == []
    assert world.passes(SESSION_S - 1) == []
    assert world.passes(1) == [ONE]


def test_without_a_row_a_member_is_seen_by_its_requests_alone() -> None:
    world = World(most=1)
    first, _number = world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
    second, _number = world.sessions.begin(KEY, OTHER, SESSION_S, POLL_S)
    assert (first, second) == (0, NO_ROW)
    while world.sessions.age(KEY, OTHER) < POLL_S - 40:
        world.rows.beat(first, called=True)
        assert world.passes(40) == []
    assert world.passes(40) == [OTHER]
    world.sessions.end(KEY, ONE)
    row, _number = world.sessions.begin(KEY, OTHER, SESSION_S, POLL_S)  # the next request gets what is free
    assert row == first
    assert world.passes(SESSION_S) == [OTHER]
    world.sessions.end(KEY, OTHER)
    world.rows.full = True
    assert world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)[0] == NO_ROW
    world.rows.full = False
    assert world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)[0] == 0


def test_a_row_is_free_when_its_member_is_gone() -> None:
    world = World()
    ends = [
        lambda: world.sessions.end(KEY, ONE),
        lambda: world.sessions.keep({(OTHER.slot, OTHER.generation)}),
        lambda: world.sessions.forget(KEY),
    ]
    numbers = set()
    for end in ends:
        row, number = world.sessions.begin(KEY, ONE, SESSION_S, POLL_S)
        assert (row, world.rows.owners[row]) == (0, number)
        numbers.add(number)
        world.rows.beat(row, called=True)
        end()
        assert world.rows.owners[row] == 0
        assert world.passes(10 * POLL_S) == []
    assert len(numbers) == len(ends)


# -- the worker -------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path / "node", [Topic(1, "flights", 2)])


@pytest.fixture
def life(node: TopicNode) -> Iterator[Life]:
    life = node.life()
    yield life
    assert life.stop()


def ask(life: Life, appender: Appender, op: str, **told: Any) -> dict[str, Any]:
    """A request and its answer; `error` is in it when it was refused."""
    sequence = appender.send_control(op=op, topic=1, group="report", **told)
    life.until(lambda: appender.get("processed") > sequence)
    answer = appender.told()
    assert (appender.result(sequence) == OK) == ("error" not in answer)
    return answer


def watch_of(life: Life, told: dict[str, Any]) -> _core.TopicWatch:
    return _core.TopicWatch(life.rows, told["row"], told["stamp"], told["own_row"], told["own_number"])


def let_pass(life: Life, seconds: float) -> None:
    """So much time, at once, for all sessions."""
    life.service.groups._sessions.clock += seconds


def word(life: Life, row: int, name: str) -> int:
    return TOPIC_MEMBER_ROW.unpack(life.rows, name, TOPIC_MEMBERS_AT + row * TOPIC_MEMBER_ROW.size)


def queues_of(told: dict[str, Any]) -> list[int]:
    return [queue for queue, _generation, _offset in told["given"]]


def test_who_is_silent_loses_its_queues_and_hears_it_until_it_joins_again(node: TopicNode, life: Life) -> None:
    one, other = node.appender(life), node.appender(life)
    last = one.append_many(1, 0, [b"1", b"2"])
    life.until(lambda: one.get("synced") > last)
    limits = {"session_s": SESSION_S, "poll_s": POLL_S}
    mine = ask(life, one, "sync_group", member=1, **limits)
    assert queues_of(mine) == [0, 1]
    watch = watch_of(life, mine)
    assert word(life, mine["own_row"], "member") == mine["own_number"]
    assert word(life, mine["own_row"], "group") == digest((1, "report"))
    theirs = ask(life, other, "sync_group", member=2)  # without limits
    assert theirs["given"] == []  # it waits for what the other has to give back
    let_pass(life, SESSION_S)
    life.until(lambda: len(ask(life, other, "describe_group")["members"]) == 1)
    assert watch.changed()
    theirs = ask(life, other, "sync_group", member=2)
    assert queues_of(theirs) == [0, 1]
    generation = mine["given"][0][1]
    late = [
        ask(life, one, "commit_offsets", member=1, commits=[(0, generation, 2)]),
        ask(life, one, "sync_group", member=1, commits=[(0, generation, 2)], **limits),
        ask(life, one, "sync_group", member=1, **limits),
    ]
    assert [answer["error"] for answer in late] == ["SessionExpired"] * 3
    assert ask(life, one, "describe_group")["offsets"] == [-1, -1]
    watch.beat(1)  # into a row that is not its own any more
    assert word(life, mine["own_row"], "beats") == 0
    watch.close()
    again = ask(life, one, "sync_group", member=1, rejoin=True, **limits)
    assert len(ask(life, one, "describe_group")["members"]) == 2
    assert ask(life, one, "sync_group", member=1, rejoin=True, **limits)["own_number"] == again["own_number"]


def test_who_beats_and_calls_keeps_its_queues(node: TopicNode, life: Life) -> None:
    one = node.appender(life)
    mine = ask(life, one, "sync_group", member=1, session_s=SESSION_S, poll_s=POLL_S)
    watch = watch_of(life, mine)
    for calls in range(1, 20):
        watch.beat(calls)
        life.until(lambda: life.service.groups._sessions.age(KEY, Member(one.slot, one.generation, 1)) < 1)
        let_pass(life, SESSION_S - 1)
        ((_slot, _number, age),) = ask(life, one, "describe_group")["members"]
        assert age >= SESSION_S - 1
    assert not watch.changed()
    watch.close()
    assert "error" not in ask(life, one, "sync_group", member=1)


def test_a_worker_that_was_stopped_gives_nobody_up(node: TopicNode, life: Life) -> None:
    one = node.appender(life)
    mine = ask(life, one, "sync_group", member=1, session_s=SESSION_S, poll_s=POLL_S)
    now = time.monotonic()
    for stop in range(1, 10):
        life.service.groups.on_timer(now + 10 * POLL_S * stop)
    assert queues_of(ask(life, one, "sync_group", member=1)) == queues_of(mine) == [0, 1]


def test_who_has_no_offsets_and_lost_all_is_told_all_the_same(node: TopicNode, life: Life) -> None:
    """The group has nothing else that is worth keeping. When its client is gone, it is forgotten."""
    one, other = node.appender(life), node.appender(life)
    ask(life, one, "sync_group", member=1, poll_s=POLL_S)
    let_pass(life, POLL_S)
    life.until(lambda: ask(life, other, "describe_group")["members"] == [])
    assert ask(life, one, "sync_group", member=1)["error"] == "SessionExpired"
    assert ask(life, one, "leave_group", member=1)["error"] == "SessionExpired"
    assert "error" not in ask(life, one, "sync_group", member=1)
    let_pass(life, POLL_S)
    ask(life, one, "sync_group", member=1, poll_s=POLL_S)
    let_pass(life, POLL_S)
    life.until(lambda: ask(life, other, "describe_group")["members"] == [])
    assert KEY in life.service.groups._groups
    life.service.groups.clients_changed({(other.slot, other.generation)}, 0.0)
    assert KEY not in life.service.groups._groups
