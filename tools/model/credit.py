"""Model of the credit chain publisher → queue worker → store: sleeps, wakes, an alarm, acks, and the death of each.

What is modelled (design note 004, section 4)
  publisher  may have so many messages under way as its ring has places and its arena has blobs; both come back with the
             link's `head`. It sleeps on its `waiting` word until somebody rings; an alarm it waits out by looking again
  consumer   acks what was confirmed, in order; its acks go through a ring of their own
  worker     hands each message to the store by reference (the body stays in the publisher's arena) and holds the
             publisher's head at a gate until the store's head has passed that write; an ack becomes a remove. Without
             room in its own ring to the store it leaves its clients' commands where they are: the deferred grant
  store      copies bodies out of the publisher's arena, syncs, raises the head of the worker's link, rings the worker
  alarm      comes at any time and ends when nothing is stored any more: only consumers can end it
  deaths     of publisher, worker and store at any step. A worker takes its clients up at their heads, with a new link
             to the store; the old link is served to its end first. A dead publisher's region goes when its worker is
             done with it

As long as nobody has died sleeps have no time limit, so that a lost wake shows. Invariants: `wrong` and `rest` below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LIVES, DEAD, REMOVED = range(3)
#: DECIDED: it saw nothing to do; SET: its word says that it sleeps, and it has not looked once more
RUNS, DECIDED, SET, ASLEEP = range(4)
#: a rung bell wakes one of these
PUBLISHER, WORKER, STORE = range(3)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    ring_is_credit: bool = True  #: the publisher stops when its ring is full
    arena_follows_head: bool = True  #: a blob is used again only when the head has passed its command
    worker_defers: bool = True  #: without room towards the store a command stays in the publisher's ring
    gates_hold_heads: bool = True  #: the head waits until the store's head has passed the write
    store_head_after_sync: bool = True  #: the store raises the head only over what is on disk
    looks_again: bool = True  #: after setting the word a sleeper looks once more
    publisher_rings: bool = True  #: a publisher rings the worker
    worker_rings_store: bool = True  #: a worker rings the store
    store_rings_worker: bool = True  #: the store rings the worker where it sleeps
    worker_rings_publisher: bool = True  #: the worker rings the publisher after raising its head
    ring_after_raise: bool = True  #: first what it is about is visible, then the bell rings
    alarm_is_looked_at_again: bool = True  #: nobody rings at the end of an alarm: a publisher looks again by itself
    alarm_spares_consumers: bool = True  #: acks and removes go on while an alarm is on
    sleeps_end: bool = True  #: a sleep has a time limit: who died between publishing and ringing rings no more
    restart_takes_up: bool = True  #: a new worker executes again what is above the publisher's head
    old_link_first: bool = True  #: nothing of a worker's new link before its old one is finished
    dead_links_are_finished: bool = True  #: what a dead worker had submitted to the store is executed
    dead_are_swept: bool = True  #: a dead publisher's link is executed to its end, and then let go
    sweep_waits_for_gates: bool = True  #: a dead publisher's region stays until the store has copied its bodies


class Link(NamedTuple):
    """A worker's incarnation's link to the store: commands (message, True: write, False: remove), and how far it is."""

    commands: tuple[tuple[int, bool], ...]
    taken: int
    head: int


class State(NamedTuple):
    """Everything. Positions count from 0 and never come back."""

    # the publisher's region and process
    life: int
    arena: tuple[int, ...]
    tail: int
    head: int
    waiting: bool
    publisher: int  # RUNS, DECIDED, SET, ASLEEP
    # the consumer's ring
    acks: int
    acks_head: int
    # the worker
    up: bool
    next: int
    gates: tuple[tuple[int, int], ...]  # (command, position in the link to the store)
    worker_word: bool
    worker: int
    links: tuple[Link, ...]  # of its incarnations, the living one last
    # the store
    store_up: bool
    store_word: bool
    store: int
    log: tuple[tuple[int, bool, int, int], ...]  # (message, write or remove, link, position in it)
    durable: int
    # bells that are still to be rung, by ringer
    bells: tuple[frozenset[int], frozenset[int], frozenset[int]]
    # the rest
    alarm: bool
    alarms: int
    kills: tuple[int, int, int]
    died: bool
    ever_durable: int
    broken: str


@dataclass(frozen=True)
class CreditModel:
    """Messages, sizes of ring, arena and of the worker's ring to the store; how many alarms and kills may happen."""

    messages: int = 3
    ring: int = 2
    arena: int = 2
    store_ring: int = 1
    alarms: int = 0
    kills: tuple[int, int, int] = (0, 0, 0)  #: of publisher, worker, store
    rules: Rules = Rules()

    def start(self) -> State:
        nobody: frozenset[int] = frozenset()
        return State(
            LIVES, (-1,) * self.arena, 0, 0, False, RUNS, 0, 0,
            True, 0, (), False, RUNS, (Link((), 0, 0),),
            True, False, RUNS, (), 0, (nobody, nobody, nobody),
            False, self.alarms, self.kills, False, 0, "",
        )  # fmt: skip

    # -- bells -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _owes(state: State, who: int, whom: int) -> State:
        bells = list(state.bells)
        bells[who] |= {whom}
        return state._replace(bells=(bells[0], bells[1], bells[2]))

    @staticmethod
    def _rung(state: State, whom: int) -> State:
        """The word is taken back, and who sleeps on it wakes."""
        if whom == PUBLISHER:
            woken = RUNS if state.publisher == ASLEEP and state.waiting else state.publisher
            return state._replace(waiting=False, publisher=woken)
        if whom == WORKER:
            woken = RUNS if state.worker == ASLEEP and state.worker_word else state.worker
            return state._replace(worker_word=False, worker=woken)
        woken = RUNS if state.store == ASLEEP and state.store_word else state.store
        return state._replace(store_word=False, store=woken)

    def _rings(self, state: State, who: int) -> Iterator[tuple[str, State]]:
        names = ("publisher", "worker", "store")
        for whom in state.bells[who]:
            yield f"{names[who]} rings {names[whom]}", self._rung(self._has_rung(state, who, whom), whom)

    def _announce(
        self, state: State, after: State, who: int, whom: int, rule: bool, name: str
    ) -> Iterator[tuple[str, State]]:
        """`after` is visible, and then the bell is to be rung; broken: before it was visible, or never."""
        if not rule:
            yield name, after
        elif self.rules.ring_after_raise:
            yield name, self._owes(after, who, whom)
        elif whom in state.bells[who]:
            yield name, self._has_rung(after, who, whom)
        else:
            yield f"{name}: the bell first", self._rung(self._owes(state, who, whom), whom)

    @staticmethod
    def _has_rung(state: State, who: int, whom: int) -> State:
        bells = list(state.bells)
        bells[who] -= {whom}
        return state._replace(bells=(bells[0], bells[1], bells[2]))

    # -- steps -----------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.life == LIVES:
            yield from self._publisher(state)
        yield from self._consumer(state)
        if state.up:
            yield from self._worker(state)
        else:
            yield self._worker_starts(state)
        if state.store_up:
            yield from self._store(state)
        else:
            restarted = state._replace(store_up=True, store=RUNS, store_word=False)
            log = state.log[: state.durable]
            links = tuple(
                link._replace(taken=max([link.head, *(at + 1 for _m, _write, of, at in log if of == n)]))
                for n, link in enumerate(state.links)
            )
            yield "store starts", restarted._replace(links=links, log=log)
        if state.alarms and not state.alarm:
            yield "~alarm", state._replace(alarm=True, alarms=state.alarms - 1)
        if state.alarm and not self._stored(state):
            yield "alarm ends", state._replace(alarm=False)
        yield from self._deaths(state)

    @staticmethod
    def _stored(state: State) -> set[int]:
        """The messages that were copied and not removed since."""
        stored: set[int] = set()
        for m, write, _link, _position in state.log:
            stored = stored | {m} if write else stored - {m}
        return stored

    def _has_credit(self, state: State) -> bool:
        ring = state.tail - state.head < self.ring or not self.rules.ring_is_credit
        return ring and (state.tail - state.head < self.arena or not self.rules.arena_follows_head)

    def _publisher(self, state: State) -> Iterator[tuple[str, State]]:
        if state.bells[PUBLISHER] and self.rules.ring_after_raise:
            yield from self._rings(state, PUBLISHER)
            return
        if state.tail == self.messages:
            return
        if state.publisher == ASLEEP:
            if state.died and self.rules.sleeps_end and self._has_credit(state):  # else it sleeps again
                yield "publisher's sleep ends", state._replace(publisher=RUNS, waiting=False)
            return
        if state.alarm:
            if not self.rules.alarm_is_looked_at_again and state.publisher == RUNS:
                yield "publisher sleeps for the alarm", state._replace(publisher=ASLEEP, waiting=True)
            return  # it looks again: nothing to be modelled
        credit = self._has_credit(state)
        if state.publisher == DECIDED:
            yield "publisher sets its word", state._replace(waiting=True, publisher=SET)
        elif state.publisher == SET:
            if credit and self.rules.looks_again:
                yield "publisher looks again", state._replace(publisher=RUNS)
            elif not state.waiting:
                yield "publisher was rung", state._replace(publisher=RUNS)
            else:
                yield "publisher sleeps", state._replace(publisher=ASLEEP)
        elif credit:
            place = state.tail % self.arena
            arena = (*state.arena[:place], state.tail, *state.arena[place + 1 :])
            after = state._replace(arena=arena, tail=state.tail + 1)
            if after.tail - after.head > self.ring:
                after = after._replace(broken="a command was written over one that is still needed")
            yield from self._announce(
                state, after, PUBLISHER, WORKER, self.rules.publisher_rings, f"publisher submits {state.tail}"
            )
        elif state.publisher == RUNS:
            yield "publisher sees no credit", state._replace(publisher=DECIDED)

    def _consumer(self, state: State) -> Iterator[tuple[str, State]]:
        """It polls for confirmed messages; its ring has one place."""
        if state.alarm and not self.rules.alarm_spares_consumers:
            return
        if state.acks < state.head and state.acks == state.acks_head:
            yield f"consumer acks {state.acks}", self._rung(state._replace(acks=state.acks + 1), WORKER)

    # the worker

    def _room(self, link: Link) -> bool:
        return len(link.commands) - link.head < self.store_ring

    def _passed(self, state: State) -> tuple[tuple[tuple[int, int], ...], int]:
        """The gates that are left, and the head that they allow."""
        link, gates = state.links[-1], state.gates
        while gates and link.head > gates[0][1]:
            gates = gates[1:]
        return gates, (gates[0][0] if gates and self.rules.gates_hold_heads else state.next)

    def _worker_can(self, state: State) -> bool:
        link = state.links[-1]
        room = self._room(link) or not self.rules.worker_defers
        takes = state.life != REMOVED and state.next < state.tail and room
        removes = state.acks > state.acks_head and self._room(link)
        _gates, head = self._passed(state)
        return takes or removes or (state.life != REMOVED and head > state.head) or self._may_let_go(state)

    def _may_let_go(self, state: State) -> bool:
        done = state.next == state.tail and not (self._passed(state)[0] and self.rules.sweep_waits_for_gates)
        return state.life == DEAD and done and self.rules.dead_are_swept

    @staticmethod
    def _submit(state: State, message: int, write: bool) -> State:
        link = state.links[-1]
        return state._replace(links=(*state.links[:-1], link._replace(commands=(*link.commands, (message, write)))))

    def _worker(self, state: State) -> Iterator[tuple[str, State]]:
        if state.bells[WORKER] and self.rules.ring_after_raise:
            yield from self._rings(state, WORKER)
            return
        if state.worker == ASLEEP:
            if state.died and self.rules.sleeps_end and self._worker_can(state):
                yield "worker's sleep ends", state._replace(worker=RUNS, worker_word=False)
            return
        if state.worker == SET:
            if self._worker_can(state) and self.rules.looks_again:
                yield "worker looks again", state._replace(worker=RUNS, worker_word=False)
            elif not state.worker_word:
                yield "worker was rung", state._replace(worker=RUNS)
            else:
                yield "worker sleeps", state._replace(worker=ASLEEP)
            return
        if state.worker == DECIDED:
            yield "worker sets its word", state._replace(worker=SET, worker_word=True)
            return
        link = state.links[-1]
        if not self._worker_can(state):
            yield "worker sees nothing to do", state._replace(worker=DECIDED)
            return
        takes = self._room(link) or not self.rules.worker_defers
        if takes and state.life != REMOVED and state.next < state.tail:
            after = self._submit(state, state.next, True)
            if len(after.links[-1].commands) - link.head > self.store_ring:
                after = after._replace(broken="the worker has more under way to the store than it has credit for")
            gates = (*state.gates, (state.next, len(link.commands)))
            after = after._replace(next=state.next + 1, gates=gates)
            yield from self._announce(
                state, after, WORKER, STORE, self.rules.worker_rings_store, f"worker takes {state.next}"
            )
        if state.acks > state.acks_head and self._room(link):
            after = self._submit(state, state.acks_head, False)._replace(acks_head=state.acks_head + 1)
            yield from self._announce(
                state, after, WORKER, STORE, self.rules.worker_rings_store, f"worker removes {state.acks_head}"
            )
        gates, head = self._passed(state)
        if state.life != REMOVED and head > state.head:
            after = state._replace(gates=gates, head=head)
            yield from self._announce(
                state, after, WORKER, PUBLISHER, self.rules.worker_rings_publisher, f"worker raises the head to {head}"
            )
        if self._may_let_go(state):
            yield "worker lets the publisher go", state._replace(life=REMOVED, gates=())

    def _worker_starts(self, state: State) -> tuple[str, State]:
        next = state.head if self.rules.restart_takes_up else state.tail
        return "worker starts", state._replace(
            up=True, next=next, gates=(), worker=RUNS, worker_word=False, links=(*state.links, Link((), 0, 0))
        )

    # the store

    def _served(self, state: State) -> list[int]:
        """Links in which something is to be executed now."""
        links = [n for n, link in enumerate(state.links) if link.taken < len(link.commands)]
        return links[:1] if self.rules.old_link_first else links

    def _store(self, state: State) -> Iterator[tuple[str, State]]:
        if state.bells[STORE] and self.rules.ring_after_raise:
            yield from self._rings(state, STORE)
            return
        served = self._served(state)
        heads = [n for n, link in enumerate(state.links) if link.head < link.taken]
        can = bool(served) or state.durable < len(state.log) or bool(heads)
        if state.store == ASLEEP:
            if state.died and self.rules.sleeps_end and can:
                yield "store's sleep ends", state._replace(store=RUNS, store_word=False)
            return
        if state.store == SET:
            if can and self.rules.looks_again:
                yield "store looks again", state._replace(store=RUNS, store_word=False)
            elif not state.store_word:
                yield "store was rung", state._replace(store=RUNS)
            else:
                yield "store sleeps", state._replace(store=ASLEEP)
            return
        if state.store == DECIDED:
            yield "store sets its word", state._replace(store=SET, store_word=True)
            return
        if not can:
            yield "store sees nothing to do", state._replace(store=DECIDED)
            return
        for n in served:
            yield self._execute(state, n)
        if state.durable < len(state.log):
            durable = len(state.log)
            ever = state.ever_durable
            for m, write, _link, _position in state.log:
                ever |= 1 << m if write else 0
            yield "store syncs", state._replace(durable=durable, ever_durable=ever)
        if state.durable == len(state.log) or not self.rules.store_head_after_sync:
            for n in heads:
                link = state.links[n]
                links = (*state.links[:n], link._replace(head=link.taken), *state.links[n + 1 :])
                after = state._replace(links=links)
                yield from self._announce(
                    state, after, STORE, WORKER, self.rules.store_rings_worker, f"store raises the head of link {n}"
                )

    def _execute(self, state: State, n: int) -> tuple[str, State]:
        link = state.links[n]
        m, write = link.commands[link.taken]
        after = state._replace(links=(*state.links[:n], link._replace(taken=link.taken + 1), *state.links[n + 1 :]))
        stored = self._stored(state)
        if write and m not in stored:
            if state.life == REMOVED:
                after = after._replace(broken=f"the store has to copy message {m}, and its publisher's region is gone")
            elif state.arena[m % self.arena] != m:
                after = after._replace(broken=f"the store copied another body as message {m}")
            after = after._replace(log=(*state.log, (m, True, n, link.taken)))
        elif not write and m in stored:
            after = after._replace(log=(*state.log, (m, False, n, link.taken)))
        return f"store {'copies' if write else 'removes'} {m}", after

    # deaths

    def _deaths(self, state: State) -> Iterator[tuple[str, State]]:
        publisher, worker, store = state.kills
        bells = state.bells
        nobody: frozenset[int] = frozenset()
        if publisher and state.life == LIVES:
            # the supervisor tells the servers, with a bell that never fails: it looks again by itself
            dead = state._replace(life=DEAD, kills=(publisher - 1, worker, store), died=True)
            yield "~kill publisher", self._rung(dead._replace(bells=(nobody, bells[1], bells[2])), WORKER)
        if worker and state.up:
            links = state.links
            if not self.rules.dead_links_are_finished:
                old = links[-1]
                links = (*links[:-1], old._replace(commands=old.commands[: old.taken]))
            down = state._replace(up=False, kills=(publisher, worker - 1, store), died=True, links=links)
            yield "~kill worker", down._replace(bells=(bells[0], nobody, bells[2]), gates=(), worker=RUNS)
        if store and state.store_up:
            down = state._replace(store_up=False, kills=(publisher, worker, store - 1), died=True, store=RUNS)
            yield "~kill store", down._replace(bells=(bells[0], bells[1], nobody))

    # -- invariants --------------------------------------------------------------------------------------------------

    def wrong(self, state: State) -> str | None:
        if state.broken:
            return state.broken
        for m in range(state.head):
            if not state.ever_durable >> m & 1:
                return f"message {m} was confirmed and never was durable"
        return None

    def rest(self, state: State) -> str | None:
        if state.life == LIVES and state.tail < self.messages:
            return f"the publisher is blocked for ever before message {state.tail}"
        if state.life == LIVES and state.head < self.messages:
            return f"message {state.head} is never confirmed"
        if state.life == DEAD:
            return "the dead publisher is never let go"
        if state.acks > state.acks_head:
            return f"the ack of {state.acks_head} is never executed"
        for n, link in enumerate(state.links):
            if link.head < len(link.commands):
                return f"link {n} to the store is never clear"
        if state.gates:
            return "a gate is left"
        if self._stored(state) & set(range(state.acks)):
            return "what was acked is still stored"
        if state.alarm:
            return "the alarm never ends"
        return None


#: name → model
STANDARD = {
    "nobody dies": CreditModel(4, 2, 2, 1),
    "an alarm": CreditModel(3, 2, 2, 1, alarms=1),
    "a ring smaller than the arena": CreditModel(3, 1, 2, 1),
    "the publisher dies": CreditModel(2, 2, 2, 1, kills=(1, 0, 0)),
    "the worker dies": CreditModel(2, 2, 1, 1, kills=(0, 1, 0)),
    "the store dies": CreditModel(2, 1, 1, 1, kills=(0, 0, 1)),
}

#: larger ones, for a minute or two
DEEP = {
    "a wide chain": CreditModel(5, 4, 2, 2, alarms=1),
    "the worker dies twice": CreditModel(2, 2, 2, 1, kills=(0, 2, 0)),
    "publisher and worker die": CreditModel(2, 2, 2, 1, kills=(1, 1, 0)),
    "worker and store die, with an alarm": CreditModel(2, 2, 1, 1, alarms=1, kills=(0, 1, 1)),
}
