"""Goal: a message that a group gives back (`reader.retry`) is never passed by: at every moment it is handled, a dead
letter, or somewhere from where a reader of the group gets it, whoever is killed when, and whatever append fails.

Method: the true places of a reader (faces/group_places.py), of a topic and of its retry topic, moved as a reader moves
them, that commits by itself or by hand; all orders of steps are searched: hand out, handle, retry (confirmed; failed;
appended without a confirm), a message that comes, commit, close, kill. With a rule broken the search finds the message
that is lost.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any, NamedTuple

import pytest

from warren.workers.faces.group_places import Place, Places

OWN, AGAIN = 0, 1


class Hand(NamedTuple):
    """What the program is at: `passed`: it may ask for the next one."""

    source: int
    offset: int
    passed: bool


class State(NamedTuple):
    committed: tuple[int, int] = (0, 0)  #: of the topic, of its retry topic
    again: tuple[tuple[int, int], ...] = ()  #: the retry topic: (message, how often it was tried)
    later: tuple[tuple[int, int], ...] = ()  #: those that are to come
    handled: int = 0  #: a bit each
    dead: int = 0
    places: tuple[tuple[Any, ...], ...] | None = None  #: of the reader that there is
    hand: Hand | None = None
    kills: int = 0
    failures: int = 0


class Search:
    """All states of a queue with so many messages, each of which comes again so often at most."""

    def __init__(self, messages: int, tries: int, kills: int, failures: int, manual: bool = False) -> None:
        self.messages, self.tries, self.manual = messages, tries, manual
        self.start = State(kills=kills, failures=failures)
        self.puts_back = True  #: a rule that can be broken: what could not be appended is handed out again
        self.confirms_first = True  #: another one: it counts as done when it is confirmed

    # -- a reader ---------------------------------------------------------------------------------------------------

    @staticmethod
    def places(s: State) -> list[Places]:
        assert s.places is not None
        found = []
        for fields in s.places:
            places, place = Places(), Place(0, 1, 0, 0)
            for name, value in zip(Place.__slots__, fields, strict=True):
                setattr(place, name, set(value) if name == "retried" else value)
            places.add(place)
            found.append(places)
        return found

    @staticmethod
    def kept(places: list[Places]) -> tuple[tuple[Any, ...], ...]:
        return tuple(
            tuple(tuple(sorted(value)) if isinstance(value, set) else value for value in astuple(of.all()[0]))
            for of in places
        )

    def message(self, s: State, source: int, offset: int) -> tuple[int, int]:
        return (offset, 0) if source == OWN else s.again[offset]

    def begin(self, s: State) -> State:
        """A reader joins, and begins at what is committed."""
        fresh = []
        for committed in s.committed:
            places = Places()
            places.add(Place(0, 1, committed, committed))
            fresh.append(places)
        return s._replace(places=self.kept(fresh), hand=None)

    def hand_out(self, s: State, source: int) -> State:
        """The next message, to a program that asks for it: with that it is done with the one before."""
        places = self.places(s)
        if s.hand is not None:
            before = places[s.hand.source].all()[0]
            before.done = before.position
        place = places[source].all()[0]
        offset = place.position
        place.given = place.position = place.fetched = offset + 1
        return s._replace(places=self.kept(places), hand=Hand(source, offset, False))

    def commit(self, s: State, says_so: bool = False) -> State:
        """What is due by itself; or what a program commits by hand."""
        places, committed = self.places(s), list(s.committed)
        for source, of in enumerate(places):
            due = of.handed_out() if says_so else of.retried() if self.manual else of.done()
            of.were_committed(due)
            committed[source] = due.get(0, committed[source])
        return s._replace(places=self.kept(places), committed=(committed[0], committed[1]))

    def appended(self, s: State, hand: Hand) -> State:
        message, times = self.message(s, hand.source, hand.offset)
        if times >= self.tries:
            return s._replace(dead=s.dead | 1 << message)
        return s._replace(later=tuple(sorted((*s.later, (message, times + 1)))))

    def given_back(self, s: State, hand: Hand) -> State:
        after = self.appended(s, hand)
        places = self.places(after)
        places[hand.source].to_retry(0, hand.offset).was_retried(hand.offset)
        return after._replace(places=self.kept(places), hand=hand._replace(passed=True))

    def put_back(self, s: State, hand: Hand) -> State:
        places = self.places(s)
        if self.puts_back:
            place = places[hand.source].handed(0, hand.offset)
            place.back_to(hand.offset)
        return s._replace(places=self.kept(places), hand=hand._replace(passed=True), failures=s.failures - 1)

    # -- all steps --------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for number, (message, times) in enumerate(s.later):
            came = s._replace(later=s.later[:number] + s.later[number + 1 :], again=(*s.again, (message, times)))
            yield f"{message} comes", came
        if s.places is None:
            yield "a reader joins", self.begin(s)
            return
        if s.kills:
            yield "it is killed", s._replace(places=None, hand=None, kills=s.kills - 1)
            yield "it is closed", self.commit(s)._replace(places=None, hand=None, kills=s.kills - 1)
        committed = self.commit(s)
        if committed != s:
            yield "it commits", committed
        hand = s.hand
        if hand is None or hand.passed:
            if self.manual and (by_hand := self.commit(s, True)) != s:
                yield "the program commits", by_hand
            ends = (self.messages, len(s.again))
            for source, of in enumerate(self.places(s)):
                # hand_out first says that what was at hand is done; a queue that was put back begins there
                if of.all()[0].position < ends[source]:
                    yield f"it hands out {source}:{of.all()[0].position}", self.hand_out(s, source)
            return
        message, _times = self.message(s, hand.source, hand.offset)
        yield f"{message} is handled", s._replace(handled=s.handled | 1 << message, hand=hand._replace(passed=True))
        yield f"{message} is given back", self.given_back(s, hand)
        if s.kills:
            killed = self.appended(s, hand)._replace(places=None, hand=None, kills=s.kills - 1)
            yield f"{message} is given back, and the reader killed", killed
        if s.failures:
            yield f"{message} cannot be given back", self.put_back(s, hand)
            yield f"{message} is given back, and nobody is told", self.put_back(self.appended(s, hand), hand)
        if not self.confirms_first:
            yield f"{message} is passed before it is given back", s._replace(hand=hand._replace(passed=True))

    def wrong(self, s: State) -> str:
        """Which message no reader will get, and nobody has handled."""
        there = s.handled | s.dead
        for message, _times in (*s.later, *s.again[s.committed[AGAIN] :]):
            there |= 1 << message
        lost = [message for message in range(s.committed[OWN]) if not there >> message & 1]
        return f"messages {lost} are lost" if lost else ""

    def run(self, most: int) -> tuple[int, int, list[str]]:
        """How many states there are; in how many of them nothing is left to do; the steps that lose a message."""
        came: dict[State, tuple[State, str] | None] = {self.start: None}
        waiting, ends = deque([self.start]), 0
        while waiting and len(came) < most:
            s = waiting.popleft()
            after = list(self.steps(s))
            if all(name in ("it is killed", "it is closed") for name, _after in after):
                ends += 1
                unfinished = (1 << self.messages) - 1 & ~(s.handled | s.dead)
                if unfinished:
                    return len(came), ends, [*self.path(came, s), f"nothing is left to do, and {unfinished:b} is not"]
            for name, following in after:
                if following in came:
                    continue
                came[following] = (s, name)
                if broken := self.wrong(following):
                    return len(came), ends, [*self.path(came, following), broken]
                waiting.append(following)
        return len(came), ends, []

    @staticmethod
    def path(came: dict[State, tuple[State, str] | None], s: State) -> list[str]:
        found: list[str] = []
        while (before := came[s]) is not None:
            s, name = before
            found.append(name)
        return found[::-1]


STATES = 60_000


@pytest.mark.parametrize("manual", [False, True], ids=["auto", "manual"])
@pytest.mark.parametrize(
    ("messages", "tries", "kills", "failures"), [(2, 2, 0, 0), (2, 1, 1, 0), (2, 0, 1, 1), (2, 1, 0, 1)]
)
def test_none_disappears(messages: int, tries: int, kills: int, failures: int, manual: bool) -> None:
    states, ends, broken = Search(messages, tries, kills, failures, manual).run(STATES)
    print(f"{states} states, {ends} ends")
    assert not broken
    assert ends


def puts_nothing_back(search: Search) -> None:
    search.puts_back = False


def passes_before_the_confirm(search: Search) -> None:
    search.confirms_first = False


@pytest.mark.parametrize("break_it", [puts_nothing_back, passes_before_the_confirm])
def test_a_broken_rule_is_found(break_it: Callable[[Search], None]) -> None:
    search = Search(2, 1, 0, 1)
    break_it(search)
    _states, _ends, broken = search.run(STATES)
    print(*broken, sep="\n")
    assert "lost" in broken[-1]
