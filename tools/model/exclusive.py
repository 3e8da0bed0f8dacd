"""Model of consuming a queue alone: who has it, over kills of the worker (engine/queues/exclusive.h).

Two clients, each with a ring and a delivery slot, and one worker:
  clients    ask to have the queue alone (JOIN), take note of the answer, give it back (LEAVE), may die at any time
  worker     executes a command in memory, writes the slot, raises `processed` (the client sees the answer); each is a
             step, and between any two of them it may be killed
  successor  reads `processed` and the slots, and executes the commands that were not told again
  sweep      of a client that is dead, once, when its ring is empty: what it had is free

A slot lies in the memory of its client. Who consumes beside others, and that a successor waits for them, is not in
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

JOIN, LEAVE = "join", "leave"
NOBODY = -1
#: of a client: it wants nothing, waits for an answer, has the queue, is dead, and swept
IDLE, ASKS, HAS, DEAD, SWEPT = "idle", "asks", "has", "dead", "swept"
#: commands that were told and lie in the ring still, at most
KEPT = 3


@dataclass(frozen=True)
class Rules:
    """The rules; False breaks one."""

    slot_before_answer: bool = True  #: the slot is written before the answer can be seen
    freed_at_once: bool = True  #: it is freed before anybody else can have the queue
    told_is_not_repeated: bool = True  #: a successor executes no command that its predecessor told
    slots_are_believed: bool = True  #: a successor takes up what the slots say before it executes anything
    who_has_it_keeps_it: bool = True  #: another one is refused while somebody has it
    asking_again_is_no_refusal: bool = True  #: who has it is told so again: its first answer may have been lost
    goes_with_the_client: bool = True  #: a sweep frees what the dead one had
    sweep_after_ring: bool = True  #: and not before all that it submitted is executed


class Client(NamedTuple):
    """`ring`: commands that were not told; `told`: those that were, and lie there still; `slot`: it says that he has
    the queue; `done`: the result of the first command, which is executed and not told; `owed`: what the slot shall say.
    """

    state: str = IDLE
    ring: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    slot: bool = False
    done: str = ""
    owed: bool | None = None
    joins: int = 0
    again: int = 0  #: of those that were told, so many are executed again by a successor that should not


class State(NamedTuple):
    """`holder`: in the worker's memory."""

    clients: tuple[Client, Client] = (Client(), Client())
    holder: int = NOBODY
    kills: int = 0


@dataclass(frozen=True)
class ExclusiveModel:
    """So many joins of each client, and kills of the worker."""

    joins: int = 2
    kills: int = 2
    deaths: bool = True
    rules: Rules = Rules()

    def start(self) -> State:
        return State()

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for i, c in enumerate(s.clients):
            yield from self._client(s, i, c)
            yield from self._worker(s, i, c)
        if s.kills < self.kills:
            yield "~the worker is killed", self._killed(s)

    def wrong(self, s: State) -> str | None:
        has = [i for i in (0, 1) if s.clients[i].state == HAS]
        if len(has) == 2:
            return "two have it alone"
        if has and s.holder != has[0]:
            return "who was told that he has it does not have it"
        return None

    def rest(self, s: State) -> str | None:
        if any(c.state == ASKS for c in s.clients):
            return "a client waits for ever"
        if s.holder != NOBODY and s.clients[s.holder].state != HAS:
            return "nobody has it, and it is kept"
        return None

    @staticmethod
    def _with(s: State, i: int, c: Client) -> State:
        return s._replace(clients=(c, s.clients[1]) if i == 0 else (s.clients[0], c))

    def _client(self, s: State, i: int, c: Client) -> Iterator[tuple[str, State]]:
        if c.state == IDLE and c.joins < self.joins:
            yield f"~{i} asks", self._with(s, i, c._replace(state=ASKS, ring=(*c.ring, JOIN), joins=c.joins + 1))
        if c.state == HAS:
            yield f"~{i} leaves", self._with(s, i, c._replace(state=IDLE, ring=(*c.ring, LEAVE)))
        if self.deaths and c.state in (IDLE, ASKS, HAS):
            yield f"~{i} dies", self._with(s, i, c._replace(state=DEAD))

    def _worker(self, s: State, i: int, c: Client) -> Iterator[tuple[str, State]]:
        if c.again:
            command = c.told[-c.again]
            yield f"{command} of {i} is repeated", self._execute(s, i, c._replace(again=c.again - 1), command, False)
            return
        if c.ring and not c.done:
            yield f"{c.ring[0]} of {i} is executed", self._execute(s, i, c, c.ring[0], True)
        if c.owed is not None:
            yield f"the slot of {i} is written", self._with(s, i, c._replace(slot=c.owed, owed=None))
        if c.done and (c.owed is None or (c.owed and not self.rules.slot_before_answer)):
            state = c.state
            if c.ring[0] == JOIN and state == ASKS:
                state = HAS if c.done == "in" else IDLE
            told = (*c.told, c.ring[0])[-KEPT:]
            yield (
                f"{i} is told {c.done}",
                self._with(s, i, c._replace(state=state, ring=c.ring[1:], told=told, done="")),
            )
        empty = not (c.ring or c.done) or not self.rules.sweep_after_ring
        if c.state == DEAD and empty and c.owed is None:
            swept = self._with(s, i, c._replace(state=SWEPT, slot=False))
            if s.holder == i and self.rules.goes_with_the_client:
                swept = swept._replace(holder=NOBODY)
            yield f"{i} is swept", swept

    def _execute(self, s: State, i: int, c: Client, command: str, first: bool) -> State:
        holder, result = s.holder, "no"
        if command == JOIN:
            mine = holder == i and self.rules.asking_again_is_no_refusal
            if holder == NOBODY or mine or (holder != i and not self.rules.who_has_it_keeps_it):
                holder, result = i, "in"
                c = c._replace(owed=True)
        elif holder == i:
            holder, result = NOBODY, "ok"
            c = c._replace(slot=False, owed=None) if self.rules.freed_at_once else c._replace(owed=False)
        if first:
            c = c._replace(done=result)
        return self._with(s._replace(holder=holder), i, c)

    def _killed(self, s: State) -> State:
        holder = NOBODY
        clients = []
        for i, c in enumerate(s.clients):
            slot = c.slot and self.rules.slots_are_believed and holder == NOBODY
            if slot:
                holder = i
            again = 0 if self.rules.told_is_not_repeated else len(c.told)
            clients.append(c._replace(slot=slot, done="", owed=None, again=again))
        return State((clients[0], clients[1]), holder, s.kills + 1)


#: name → model
STANDARD = {
    "two clients, two kills": ExclusiveModel(),
    "three joins, one kill, nobody dies": ExclusiveModel(joins=3, kills=1, deaths=False),
}

#: larger ones
DEEP = {"three joins, three kills": ExclusiveModel(joins=3, kills=3)}
