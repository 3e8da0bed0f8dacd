"""Model of a large publish: publisher → queue worker → message store, the body fetched from the publisher's own arena.

What is modelled (design note 001, sections 2, 4 and 5)
  publisher  one blob at a time (the arena holds one), reused when `head` at the worker has passed
  worker     per PUBLISH: a STORE_WRITE by reference to the store, a frame in its journal; `head` waits for both; a
             restart reads journal and image, tells the store what it holds (RESYNC), and takes the publisher's link up
             at `head`
  store      executes the rings of all incarnations of the worker; copies the body at that moment
  kills      of publisher, worker and store. The ring of a dead worker is still executed.

A message that was confirmed may be consumed: the worker then sends a STORE_REMOVE, and its body is gone for good.
Invariants: `wrong` and `rest` below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LIVES, DEAD, REMOVED = range(3)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    head_waits_for_store: bool = True  #: the publisher's `head` waits until the store has the body on disk
    body_is_sent_again: bool = True  #: a replayed PUBLISH whose frame exists sends its STORE_WRITE again
    old_rings_first: bool = True  #: the ring of a dead incarnation is executed before a command of its successor
    old_heads_first: bool = True  #: and its `head` rises before its successor's
    region_waits: bool = True  #: a dead publisher's region stays until the worker has finished with it
    written_before_head: bool = True  #: the store's `head` rises only over bodies on disk


class Ring(NamedTuple):
    """What one incarnation of the worker has sent to the store."""

    commands: tuple[tuple[str, int, frozenset[int]], ...]
    processed: int
    head: int


class State(NamedTuple):
    """Everything. Message s is command s of the publisher."""

    publisher: int
    published: int
    head: int
    arena: int  # the message whose body lies in the arena
    worker_up: bool
    processed: int
    step: int  # 1: the STORE_WRITE is sent, the frame is not written yet
    gates: tuple[int, ...]  # per processed command from `head` on: its place in the store's ring
    journal: int  # frames in the image: messages 0 … journal - 1
    journal_durable: int
    sealed: int
    rings: tuple[Ring, ...]
    store_up: bool
    bodies: tuple[tuple[int, int], ...]  # (message, whose bytes), in the order written
    bodies_durable: int
    removed: frozenset[int]
    publisher_kills: int
    worker_kills: int
    store_kills: int


NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StoredModel:
    """How many messages, and how many kills of each."""

    messages: int = 2
    publisher_kills: int = 0
    worker_kills: int = 1
    store_kills: int = 1
    rules: Rules = Rules()

    def start(self) -> State:
        return State(
            LIVES, 0, 0, -1, True, 0, 0, (), 0, 0, 0, (Ring((), 0, 0),), True, (), 0, NOTHING,
            self.publisher_kills, self.worker_kills, self.store_kills,
        )  # fmt: skip

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        if s.publisher == LIVES:
            if s.published < self.messages and s.head == s.published:
                yield "publisher publishes", s._replace(published=s.published + 1, arena=s.published)
            if s.publisher_kills:
                yield "~kill publisher", s._replace(publisher=DEAD, publisher_kills=s.publisher_kills - 1)
        if s.worker_up:
            yield from self._worker_steps(s)
            if s.worker_kills:
                down = s._replace(worker_up=False, processed=0, step=0, gates=(), sealed=0)
                yield "~kill worker", down._replace(worker_kills=s.worker_kills - 1)
        else:
            held = frozenset(range(s.journal)) - s.removed
            rings = (*s.rings, Ring((("resync", -1, held),), 0, 0))
            yield "worker starts", s._replace(worker_up=True, processed=s.head, sealed=s.head, rings=rings)
        if s.store_up:
            yield from self._store_steps(s)
            if s.store_kills:
                rings = tuple(ring._replace(processed=ring.head) for ring in s.rings)
                down = s._replace(store_up=False, bodies=s.bodies[: s.bodies_durable], rings=rings)
                yield "~kill store", down._replace(store_kills=s.store_kills - 1)
        else:
            yield "store starts", s._replace(store_up=True)

    def _send(self, s: State, op: str, m: int) -> State:
        ring = s.rings[-1]
        ring = ring._replace(commands=(*ring.commands, (op, m, NOTHING)))
        return s._replace(rings=(*s.rings[:-1], ring))

    def _worker_steps(self, s: State) -> Iterator[tuple[str, State]]:
        m = s.processed
        place = len(s.rings[-1].commands)
        if m < s.published and s.publisher != REMOVED:
            done = s._replace(processed=m + 1, step=0)
            if m < s.journal:  # its frame is there from before
                if self.rules.body_is_sent_again and m not in s.removed:
                    yield f"worker sends body {m} again", self._send(done, "write", m)._replace(gates=(*s.gates, place))
                else:
                    yield f"worker skips {m}", done._replace(gates=(*s.gates, -1))
            elif s.step == 0:
                yield f"worker sends body {m}", self._send(s, "write", m)._replace(gates=(*s.gates, place), step=1)
            else:
                yield f"worker writes frame {m}", done._replace(journal=m + 1)
        if s.journal_durable < s.journal or s.sealed < s.processed:
            yield "worker commits", s._replace(journal_durable=s.journal, sealed=s.processed)
        may_rise = s.publisher != REMOVED and s.head < s.sealed
        if may_rise and (not self.rules.head_waits_for_store or s.rings[-1].head > s.gates[0]):
            yield "worker publishes head", s._replace(head=s.head + 1, gates=s.gates[1:])
        drained = s.head == s.published or not self.rules.region_waits
        if s.publisher == DEAD and drained and not s.gates:
            yield "worker sweeps publisher", s._replace(publisher=REMOVED, arena=-1)
        for old in range(min(s.head, s.journal)):
            if old not in s.removed:
                yield f"~worker removes {old}", self._send(s, "remove", old)._replace(removed=s.removed | {old})
                break

    def _store_steps(self, s: State) -> Iterator[tuple[str, State]]:
        for i, ring in enumerate(s.rings):
            if ring.processed < len(ring.commands):
                yield self._execute(s, i, ring)
                if self.rules.old_rings_first:
                    break
        unwritten = s.bodies_durable < len(s.bodies)
        if unwritten:
            yield "store commits", s._replace(bodies_durable=len(s.bodies))
        for i, ring in enumerate(s.rings):
            if self.rules.old_heads_first and any(old.head < len(old.commands) for old in s.rings[:i]):
                break
            if ring.head < ring.processed and not (unwritten and self.rules.written_before_head):
                rings = (*s.rings[:i], ring._replace(head=ring.processed), *s.rings[i + 1 :])
                yield f"store publishes head {i}", s._replace(rings=rings)

    def _execute(self, s: State, i: int, ring: Ring) -> tuple[str, State]:
        op, m, held = ring.commands[ring.processed]
        bodies = s.bodies
        if op == "write" and all(body[0] != m for body in bodies) and s.arena >= 0:
            bodies = (*bodies, (m, s.arena))
        elif op == "remove":
            bodies = tuple(body for body in bodies if body[0] != m)
        elif op == "resync":
            bodies = tuple(body for body in bodies if body[0] in held)
        durable = sum(1 for body in s.bodies[: s.bodies_durable] if body in bodies)
        rings = (*s.rings[:i], ring._replace(processed=ring.processed + 1), *s.rings[i + 1 :])
        return f"store executes {op} {m} of ring {i}", s._replace(rings=rings, bodies=bodies, bodies_durable=durable)

    def wrong(self, s: State) -> str | None:
        for m, whose in s.bodies:
            if m != whose:
                return f"the store holds bytes of message {whose} as message {m}"
        durable = {m for m, _ in s.bodies[: s.bodies_durable]}
        for m in range(s.head):
            if m >= s.journal_durable:
                return f"message {m} was confirmed and is not in the journal"
            if m not in durable and m not in s.removed:
                return f"message {m} was confirmed and its body is not in the store"
        return None

    def rest(self, s: State) -> str | None:
        if s.publisher == LIVES and s.head < self.messages:
            return "the publisher hangs"
        if s.publisher == DEAD:
            return "the publisher is dead and was never swept"
        bodies = {m for m, _ in s.bodies}
        if bodies & s.removed:
            return "a body is left that nobody refers to"
        if not set(range(s.journal)) - s.removed <= bodies:
            return "a message is in the journal without its body"
        return None


#: name → model
STANDARD = {
    "kills of worker and store": StoredModel(2, worker_kills=1, store_kills=1),
    "kills of publisher and worker": StoredModel(2, publisher_kills=1, worker_kills=1, store_kills=0),
}

#: what needs one kill more before it shows; searched with the rule broken only
LATE = {"a resync of the worker before last": StoredModel(1, worker_kills=2, store_kills=0)}

#: larger ones, for a minute or two
DEEP = {
    "two kills of the worker": StoredModel(2, publisher_kills=1, worker_kills=2, store_kills=1),
    "three messages": StoredModel(3, publisher_kills=1, worker_kills=1, store_kills=1),
}
