"""Model of the doorbell of event loops, beside threads that sleep on the same word (design note 042).

  servers  two; each raises its word, looks whether anybody is to be told of it, takes all of `waiting`, rings the
           socket of the loop, and wakes who sleeps. From some moment on a server may not reach the socket any more
  loop     wants everything: takes in what is there, says for each server that it is to be rung, looks once more, rests;
           is rung by the socket, or told by the waiting thread
  thread   sleeps on the word until a server has come so far
  waiter   the waiting thread: sleeps on the word for the case that the loop is not reached, and then tells it; there
           may be somebody else whom it has to tell (a callback)
Sleeps have no time limit in here, so that a lost wake shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = 99
#: bits of the word: threads; the loop, for each server; the mark of who said last that it sleeps
THREAD, LOOP, MARK = "thread", ("loop 0", "loop 1"), ("mark of the thread", "mark of the waiter")
MARKS = frozenset(MARK)


@dataclass(frozen=True)
class Rules:
    """The rules; False breaks one."""

    raised_first: bool = True  #: a server raises its word before it looks who waits
    taken_at_once: bool = True  #: it takes the word and makes it empty in one step
    both_are_told: bool = True  #: it wakes threads, whether it has rung or not
    fails_over: bool = True  #: who cannot be rung is told by who sleeps on the word
    given_back: bool = True  #: and what the loop has said is said still: it does not learn that it was taken
    loop_looks_again: bool = True  #: after saying that it waits
    all_is_said_again: bool = True  #: who was rung says everything anew: a server takes what was said to the other, too
    read_before_look: bool = True  #: a ring is read before the look, not after it
    bits_are_added: bool = True  #: who goes to sleep leaves what the loop has said
    sleeper_looks_again: bool = True  #: after saying that it sleeps
    word_is_compared: bool = True  #: it sleeps only if the word is what it was
    waiter_sleeps_there: bool = True  #: the waiting thread does, though the loop has a doorbell
    others_need_a_thread: bool = True  #: it says so itself when somebody beside the loop is to be told
    sleepers_differ: bool = True  #: each leaves a mark of its own: the word is not what it was by another's doing


class Server(NamedTuple):
    """`took`: what it found in the word."""

    step: str = "idle"
    took: frozenset[str] = frozenset()
    rung: bool = False


class Sleeper(NamedTuple):
    """`seen`: the word as it was."""

    step: str = "says"
    seen: frozenset[str] = frozenset()


class State(NamedTuple):
    """`wants`: of the loop, as the waiting thread sees them."""

    words: tuple[int, int] = (0, 0)
    waiting: frozenset[str] = frozenset()
    servers: tuple[Server, Server] = (Server(), Server())
    reached: tuple[bool, bool] = (True, True)
    socket: bool = False
    told: bool = False
    loop: str = "takes"
    at: int = 0
    only: int = NONE
    got: tuple[int, int] = (0, 0)
    wants: tuple[int, int] = (NONE, NONE)
    thread: Sleeper = Sleeper()
    waiter: Sleeper = Sleeper()
    other: bool = False


def _with(pair: tuple[Any, Any], place: int, value: Any) -> tuple[Any, Any]:
    return (value, pair[1]) if place == 0 else (pair[0], value)


@dataclass(frozen=True)
class DoorbellModel:
    """`raises`: how often each server has news; `thread`: what the thread waits for, if there is one (server, above);
    `other`: the same of who is told by the waiting thread, which is there or not (`waiter`).
    """

    raises: tuple[int, int] = (2, 1)
    fails: bool = False
    waiter: bool = True
    thread: tuple[int, int] | None = (1, 0)
    other: tuple[int, int] | None = None
    rules: Rules = Rules()

    def start(self) -> State:
        return State()

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for n, server in enumerate(s.servers):
            for name, after in self._server(s, n, server):
                yield f"server {n} {name}", after
            if self.fails and s.reached[n]:
                yield f"~server {n} reaches the socket no more", s._replace(reached=_with(s.reached, n, False))
        for name, after in self._loop(s):
            yield f"loop {name}", after
        if self.thread is not None:
            for name, after in self._sleeper(s, 0, s.thread):
                yield f"thread {name}", after
        if self.waiter:
            for name, after in self._sleeper(s, 1, s.waiter):
                yield f"waiter {name}", after

    def _server(self, s: State, n: int, server: Server) -> Iterator[tuple[str, State]]:
        def at(state: State, step: str, took: frozenset[str] = frozenset(), rung: bool = False) -> State:
            return state._replace(servers=_with(state.servers, n, Server(step, took, rung)))

        raised = s._replace(words=_with(s.words, n, s.words[n] + 1))
        interest = s.waiting & {THREAD, LOOP[n]}
        if server.step == "idle" and s.words[n] < self.raises[n]:
            if self.rules.raised_first:
                yield "raises its word", at(raised, "looks")
            else:
                yield "looks, and will raise its word", at(s, "raises", s.waiting if interest else frozenset())
        elif server.step == "raises":
            yield "raises its word", at(raised, "takes" if server.took else "idle", server.took)
        elif server.step == "looks":
            yield "looks who waits", at(s, "takes", s.waiting) if interest else at(s, "idle")
        elif server.step == "takes":
            took = s.waiting if self.rules.taken_at_once else server.took
            yield "takes the word", at(s._replace(waiting=frozenset()), "rings" if took else "idle", took)
        elif server.step == "rings":
            rung = bool(server.took & {*LOOP}) and s.reached[n]
            following = "gives back" if server.took & {*LOOP} and not rung and self.rules.given_back else "wakes"
            yield "rings", at(s._replace(socket=s.socket or rung), following, server.took, rung)
        elif server.step == "gives back":
            given = s._replace(waiting=s.waiting | server.took & {*LOOP})
            yield "gives back what the loop has said", at(given, "wakes", server.took)
        elif server.step == "wakes":
            threads = THREAD in server.took and (self.rules.both_are_told or not server.rung)
            if threads or (server.took & {*LOOP} and not server.rung and self.rules.fails_over):
                woken = [Sleeper() if one.step == "sleeps" else one for one in (s.thread, s.waiter)]
                s = s._replace(thread=woken[0], waiter=woken[1])
            yield "wakes who sleeps", at(s, "idle")

    def _loop(self, s: State) -> Iterator[tuple[str, State]]:
        rules = self.rules
        if s.loop == "rests":
            if s.socket:
                read = s._replace(socket=not rules.read_before_look)
                yield "is rung", read._replace(loop="takes")
            if s.told:
                yield "is told", s._replace(told=False, loop="takes")
        elif s.loop == "takes":
            fresh = [n for n in (0, 1) if s.words[n] > s.got[n]]
            only = NONE if rules.all_is_said_again or not fresh or s.got == (0, 0) else fresh[0]
            yield "takes in what is there", s._replace(got=s.words, loop="says", at=0, only=only)
        elif s.loop == "says":
            n = s.at
            if s.got[n] < self.raises[n] and s.only in (NONE, n):
                said = s._replace(wants=_with(s.wants, n, min(s.wants[n], s.got[n])), waiting=s.waiting | {LOOP[n]})
                yield f"says that it waits for server {n}", said._replace(loop="looks")
            else:
                yield f"wants nothing of server {n}", self._following(s)
        elif s.loop == "looks":
            met = s.words[s.at] > s.got[s.at] and rules.loop_looks_again
            yield "looks once more", s._replace(loop="takes") if met else self._following(s)
        elif s.loop == "reads":
            yield "reads the ring", s._replace(socket=False, loop="rests")

    def _following(self, s: State) -> State:
        if s.at == 0:
            return s._replace(loop="says", at=1)
        reads = s.socket and not self.rules.read_before_look
        return s._replace(loop="reads" if reads else "rests", at=0, only=NONE)

    def _sleeper(self, s: State, which: int, one: Sleeper) -> Iterator[tuple[str, State]]:
        rules = self.rules

        def at(state: State, step: str, seen: frozenset[str] = frozenset()) -> State:
            sleeper = Sleeper(step, seen)
            return state._replace(thread=sleeper) if which == 0 else state._replace(waiter=sleeper)

        if one.step == "says":
            woken = which == 0 or (self.other is not None and rules.others_need_a_thread)
            kept = s.waiting - MARKS if rules.bits_are_added else frozenset()
            marks = frozenset({MARK[which]}) if rules.sleepers_differ else frozenset()
            s = s._replace(waiting=kept | marks | ({THREAD} if woken else frozenset()))
            yield "says that it sleeps", at(s, "looks", s.waiting)
        elif one.step == "looks":
            yield from self._looks(s, which, at)
        elif one.step == "tries":
            there = (one.seen == s.waiting or not rules.word_is_compared) and (which == 0 or rules.waiter_sleeps_there)
            if there:
                yield "sleeps", at(s, "sleeps")
            elif which == 0 or rules.waiter_sleeps_there:
                yield "finds another word", at(s, "says")

    def _looks(self, s: State, which: int, at: Any) -> Iterator[tuple[str, State]]:
        again = self.rules.sleeper_looks_again
        waits = self.thread if which == 0 else self.other
        met = again and waits is not None and s.words[waits[0]] > waits[1]
        if which == 0:
            yield ("is done", at(s, "done")) if met else ("looks once more", at(s, "tries", s.thread.seen))
            return
        hit = [n for n in (0, 1) if s.words[n] > s.wants[n] and again]
        if hit or (met and not s.other):
            wants = tuple(NONE if n in hit else s.wants[n] for n in (0, 1))
            told = s._replace(told=s.told or bool(hit), wants=(wants[0], wants[1]), other=s.other or met)
            yield "tells", at(told, "says")
        else:
            yield "looks once more", at(s, "tries", s.waiter.seen)

    def wrong(self, s: State) -> str | None:
        return None

    def rest(self, s: State) -> str | None:
        if s.words != self.raises or any(server.step != "idle" for server in s.servers):
            return "a server stands still"
        if s.loop != "rests" or s.got != s.words:
            return "the loop is not told what is there"
        if self.thread is not None and s.thread.step != "done":
            return "the thread sleeps, and what it waits for is there"
        if self.other is not None and not s.other:
            return "nobody tells who waits beside the loop"
        return None


STANDARD: Mapping[str, Any] = {
    "the bell alone": DoorbellModel(raises=(1, 1), waiter=False),
    "servers reach it no more": DoorbellModel(raises=(2, 0), fails=True, thread=None),
    "news of two servers": DoorbellModel(waiter=False, thread=None),
    "somebody beside the loop": DoorbellModel(raises=(1, 0), thread=(0, 0), other=(0, 0), fails=True),
}
DEEP: Mapping[str, Any] = {
    "more news": DoorbellModel(waiter=False),
}
#: the model that shows what a broken rule does, soonest
WHERE: Mapping[str, str] = {
    "given_back": "servers reach it no more",
    "all_is_said_again": "news of two servers",
    "fails_over": "servers reach it no more",
    "word_is_compared": "servers reach it no more",
    "waiter_sleeps_there": "servers reach it no more",
    "others_need_a_thread": "somebody beside the loop",
    "sleepers_differ": "somebody beside the loop",
}
