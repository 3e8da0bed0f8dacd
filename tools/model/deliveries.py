"""Model of deliveries: slot table, delivery ring, acks and nacks, kills of the queue worker and of consumers.

What is modelled (design note 001, section 5)
  worker    delivers the lowest READY message: slot fields, state HELD, ring entry, delivery_tail, each a step; executes
            ACK (frame into the journal's image, entry gone, slot free) and NACK (entry READY again); commits; raises
            `processed` and `head`
  restart   entries from the journal, completed from the image that the dead worker left; HELD slots below
            delivery_tail stay with their client, other slots become free; commands from `head` on are executed again
  consumer  takes deliveries, hands them out, acks each or gives it back (NACK, CANCEL), and may ack what it gave back,
            too late; what it has not handed out it may return unseen
  kills     of the worker and of consumers; the region of a dead consumer, which says what it had handed out, is swept
            by the worker, or, while the worker is down, removed by the supervisor

Messages are published and durable when the model starts. Invariants: `wrong` and `rest` below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

FREE, HELD = range(2)
GONE, READY, UNACKED = range(3)
LIVES, DEAD, REMOVED = range(3)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    state_after_fields: bool = True  #: HELD is written after the fields of the slot
    tail_after_ring: bool = True  #: delivery_tail rises after the ring entry is written
    frame_before_release: bool = True  #: the ACK frame lies in the image before the slot is free
    image_is_salvaged: bool = True  #: a restart reads what the dead worker left in the image
    consumer_checks_position: bool = True  #: a delivery counts only if the slot's pushed_at is the ring position
    unpushed_are_freed: bool = True  #: a restart frees HELD slots that were never pushed
    held_stay_held: bool = True  #: a restart leaves pushed HELD slots with their client
    restart_marks: bool = True  #: messages that are READY after an unclean restart count as redelivered
    return_marks: bool = True  #: what a consumer gives back counts as redelivered
    death_marks: bool = True  #: what a consumer had handed out when it died counts as redelivered
    unseen_was_not_handed: bool = True  #: what returns unseen, and is not marked, was handed to nobody
    dead_are_returned: bool = True  #: what a dead consumer held becomes READY
    head_after_durability: bool = True  #: `head` rises only over what is on disk
    acks_need_holding: bool = True  #: an ACK of what the client does not hold is ignored
    nacks_are_not_repeated: bool = True  #: a restart skips NACKs below the link's `processed` word
    processed_before_delivery: bool = True  #: `processed` covers what was executed before anything is delivered
    cancel_is_awaited: bool = True  #: a consumer takes nothing between its CANCEL and the answer
    delivery_after_replay: bool = True  #: nothing is delivered to a client whose old commands are still to be replayed


class Slot(NamedTuple):
    """A delivery slot."""

    state: int
    message: int
    pushed_at: int
    redelivered: bool


class Consumer(NamedTuple):
    """A consumer: its region, and what the model remembers."""

    life: int
    slots: tuple[Slot, ...]
    ring: tuple[int, ...]
    delivery_tail: int
    popped: int
    have: tuple[int, ...]  # received, not settled
    late: tuple[int, ...]  # received, and given back by a CANCEL: an ACK of it comes too late
    commands: tuple[tuple[str, int], ...]  # all that were submitted, by sequence
    head: int
    processed: int  # the link's word; it outlives the worker
    replay: int  # commands when the link was taken up
    ahead: tuple[tuple[int, bool], ...] = ()  # taken, not handed out: (message, redelivered)


class Worker(NamedTuple):
    """The worker: memory that dies with it, and the journal."""

    up: bool
    entries: tuple[tuple[int, bool, int, int], ...]  # (state, redelivered, consumer, slot)
    processed: tuple[int, ...]
    sealed: tuple[int, ...]
    step: int  # of the delivery in work
    doing: tuple[int, int, int]  # consumer, slot, message
    log: tuple[int, ...]  # messages acked, in the image
    durable: int


class State(NamedTuple):
    """Everything."""

    consumers: tuple[Consumer, ...]
    worker: Worker
    received: tuple[int, ...]  # receipts per message
    acked: frozenset[int]  # messages that somebody who had them has acked
    broken: str
    worker_kills: int
    consumer_kills: int
    nacks: int
    unseen: int


NOTHING = (-1, -1, -1)


@dataclass(frozen=True)
class DeliveryModel:
    """Messages in one queue, consumers with some slots each, and how many kills and nacks may happen."""

    messages: int = 2
    consumers: int = 1
    slots: int = 1
    worker_kills: int = 1
    consumer_kills: int = 0
    nacks: int = 0
    unseen: int = 0  # returns of what was not handed out; 0: what is taken is handed out at once
    rules: Rules = Rules()

    def start(self) -> State:
        slot = Slot(FREE, -1, -1, False)
        consumer = Consumer(LIVES, (slot,) * self.slots, (-1,) * self.slots, 0, 0, (), (), (), 0, 0, 0)
        zeros = (0,) * self.consumers
        entries = ((READY, False, -1, -1),) * self.messages
        worker = Worker(True, entries, zeros, zeros, 0, NOTHING, (), 0)
        return State(
            (consumer,) * self.consumers, worker, (0,) * self.messages, frozenset(), "",
            self.worker_kills, self.consumer_kills, self.nacks, self.unseen,
        )  # fmt: skip

    @staticmethod
    def _with(state: State, c: int, consumer: Consumer) -> State:
        return state._replace(consumers=(*state.consumers[:c], consumer, *state.consumers[c + 1 :]))

    @staticmethod
    def _slot(consumer: Consumer, s: int, slot: Slot) -> Consumer:
        return consumer._replace(slots=(*consumer.slots[:s], slot, *consumer.slots[s + 1 :]))

    @staticmethod
    def _entry(worker: Worker, m: int, entry: tuple[int, bool, int, int]) -> Worker:
        return worker._replace(entries=(*worker.entries[:m], entry, *worker.entries[m + 1 :]))

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for c, consumer in enumerate(state.consumers):
            if consumer.life == LIVES:
                yield from self._consumer_steps(state, c, consumer)
                if state.consumer_kills:
                    dead = self._with(state, c, consumer._replace(life=DEAD))
                    yield f"~kill consumer {c}", dead._replace(consumer_kills=state.consumer_kills - 1)
        worker = state.worker
        if not worker.up:
            yield self._restart(state)
            for c, consumer in enumerate(state.consumers):
                if consumer.life == DEAD:
                    yield f"~supervisor removes {c}", self._with(state, c, consumer._replace(life=REMOVED))
            return
        if worker.step:
            yield self._deliver_on(state)
        else:
            yield from self._deliver(state)
            yield from self._commands(state)
        yield from self._commit(state)
        if state.worker_kills:
            survives = worker.log if self.rules.image_is_salvaged else worker.log[: worker.durable]
            down = Worker(False, (), (), (), 0, NOTHING, survives, min(worker.durable, len(survives)))
            yield "~kill worker", state._replace(worker=down, worker_kills=state.worker_kills - 1)

    def _consumer_steps(self, state: State, c: int, consumer: Consumer) -> Iterator[tuple[str, State]]:
        waits = ("cancel", -1) in consumer.commands[consumer.processed :] and self.rules.cancel_is_awaited
        if consumer.popped < consumer.delivery_tail and not waits:
            s = consumer.ring[consumer.popped % self.slots]
            after = consumer._replace(popped=consumer.popped + 1)
            slot = consumer.slots[s] if s >= 0 else Slot(FREE, -1, -1, False)
            ours = slot.state == HELD and (slot.pushed_at == consumer.popped or not self.rules.consumer_checks_position)
            if not ours:
                yield f"consumer {c} skips", self._with(state, c, after)
            else:
                m = slot.message
                taken = self._with(state, c, after)
                if m in consumer.have or m in [other for other, _marked in consumer.ahead]:
                    taken = taken._replace(broken="a consumer took one delivery twice")
                if self.unseen:
                    after = after._replace(ahead=(*consumer.ahead, (m, slot.redelivered)))
                    yield f"consumer {c} takes {m}", self._with(taken, c, after)
                else:
                    yield f"consumer {c} receives {m}", self._hand(taken, c, m, slot.redelivered)
        if consumer.ahead:
            m, marked = consumer.ahead[0]
            handed = self._with(state, c, consumer._replace(ahead=consumer.ahead[1:]))
            yield f"consumer {c} hands out {m}", self._hand(handed, c, m, marked)
            m, _marked = consumer.ahead[-1]
            if state.unseen and not waits:
                returned = consumer._replace(ahead=consumer.ahead[:-1], commands=(*consumer.commands, ("unseen", m)))
                yield (
                    f"~consumer {c} returns {m} unseen",
                    self._with(state, c, returned)._replace(unseen=state.unseen - 1),
                )
        for m in consumer.have:
            settled = consumer._replace(have=tuple(other for other in consumer.have if other != m))
            acked = settled._replace(commands=(*consumer.commands, ("ack", m)))
            yield f"consumer {c} acks {m}", self._with(state, c, acked)._replace(acked=state.acked | {m})
            if state.nacks:
                op = "nack" if self.rules.unseen_was_not_handed else "unseen"
                nacked = settled._replace(commands=(*consumer.commands, (op, m)))
                yield f"~consumer {c} nacks {m}", self._with(state, c, nacked)._replace(nacks=state.nacks - 1)
        for m in consumer.late:
            tries = consumer._replace(late=(), commands=(*consumer.commands, ("late", m)))
            yield f"~consumer {c} acks {m} too late", self._with(state, c, tries)._replace(acked=state.acked | {m})
        if state.nacks and consumer.delivery_tail:
            commands = (*consumer.commands, ("cancel", -1))
            returned = consumer._replace(have=(), ahead=(), late=consumer.have, commands=commands)
            yield f"~consumer {c} cancels", self._with(state, c, returned)._replace(nacks=state.nacks - 1)

    def _hand(self, state: State, c: int, m: int, marked: bool) -> State:
        """A program has the message."""
        consumer, broken = state.consumers[c], state.broken
        if state.received[m] and not marked:
            broken = "a message was delivered twice without the redelivered mark"
        received = (*state.received[:m], min(state.received[m] + 1, 2), *state.received[m + 1 :])
        after = self._with(state, c, consumer._replace(have=(*consumer.have, m)))
        return after._replace(received=received, broken=broken)

    def _deliver(self, state: State) -> Iterator[tuple[str, State]]:
        worker = state.worker
        ready = [m for m, entry in enumerate(worker.entries) if entry[0] == READY]
        told = all(
            consumer.life == REMOVED or consumer.processed == worker.processed[c]
            for c, consumer in enumerate(state.consumers)
        )
        if not ready or not (told or not self.rules.processed_before_delivery):
            return
        m = ready[0]
        for c, consumer in enumerate(state.consumers):
            held = {entry[3] for entry in worker.entries if entry[0] == UNACKED and entry[2] == c}
            free = [s for s in range(self.slots) if s not in held]
            replayed = worker.processed[c] >= consumer.replay or not self.rules.delivery_after_replay
            if consumer.life == LIVES and free and replayed:
                doing = self._entry(worker, m, (UNACKED, worker.entries[m][1], c, free[0]))
                yield (
                    f"worker delivers {m} to {c}",
                    state._replace(worker=doing._replace(step=1, doing=(c, free[0], m))),
                )

    def _deliver_on(self, state: State) -> tuple[str, State]:
        worker = state.worker
        c, s, m = worker.doing
        consumer = state.consumers[c]
        slot = consumer.slots[s]
        first, second = ("fields", "state") if self.rules.state_after_fields else ("state", "fields")
        third, fourth = ("ring", "tail") if self.rules.tail_after_ring else ("tail", "ring")
        what = (first, second, third, fourth)[worker.step - 1]
        if what == "fields":
            slot = Slot(slot.state, m, consumer.delivery_tail, worker.entries[m][1])
            consumer = self._slot(consumer, s, slot)
        elif what == "state":
            consumer = self._slot(consumer, s, slot._replace(state=HELD))
        elif what == "ring":
            position = consumer.delivery_tail - (0 if self.rules.tail_after_ring else 1)
            at = position % self.slots
            consumer = consumer._replace(ring=(*consumer.ring[:at], s, *consumer.ring[at + 1 :]))
        else:
            consumer = consumer._replace(delivery_tail=consumer.delivery_tail + 1)
        done = worker.step == 4
        worker = worker._replace(step=0 if done else worker.step + 1, doing=NOTHING if done else worker.doing)
        return f"worker writes {what}", self._with(state, c, consumer)._replace(worker=worker)

    def _commands(self, state: State) -> Iterator[tuple[str, State]]:
        worker = state.worker
        for c, consumer in enumerate(state.consumers):
            if consumer.life == REMOVED:
                continue
            done = worker.processed[c]
            if done == len(consumer.commands):
                if consumer.life == DEAD:
                    yield self._sweep(state, c, consumer)
                continue
            op, m = consumer.commands[done]
            processed = (*worker.processed[:c], done + 1, *worker.processed[c + 1 :])
            answered = done < consumer.processed and self.rules.nacks_are_not_repeated
            if op in ("nack", "unseen", "cancel") and answered:
                yield f"worker skips {op}", state._replace(worker=worker._replace(processed=processed))
                continue
            if op == "cancel":
                returned = self._return(worker, c)
                slots = tuple(
                    slot._replace(state=FREE) if self._holds(worker, c, s) else slot
                    for s, slot in enumerate(consumer.slots)
                )
                after = self._with(state, c, consumer._replace(slots=slots))
                yield f"worker cancels {c}", after._replace(worker=returned._replace(processed=processed))
                continue
            entry = worker.entries[m]
            held = entry[0] == UNACKED and entry[2] == c
            if held and op in ("nack", "unseen"):
                freed = self._slot(consumer, entry[3], consumer.slots[entry[3]]._replace(state=FREE))
                marks = op == "nack" and self.rules.return_marks
                back = self._entry(worker, m, (READY, entry[1] or marks, -1, -1))
                yield (
                    f"worker requeues {m}",
                    self._with(state, c, freed)._replace(worker=back._replace(processed=processed)),
                )
            elif held:
                yield self._ack(state, c, consumer, m, processed)
            elif op not in ("nack", "unseen") and entry[0] != GONE and not self.rules.acks_need_holding:
                gone = self._entry(worker, m, (GONE, False, -1, -1))._replace(processed=processed, log=(*worker.log, m))
                yield f"worker acks {m}, not held by {c}", state._replace(worker=gone)
            else:
                yield f"worker ignores {op} {m}", state._replace(worker=worker._replace(processed=processed))

    @staticmethod
    def _holds(worker: Worker, c: int, s: int) -> bool:
        return any(entry[0] == UNACKED and entry[2:] == (c, s) for entry in worker.entries)

    def _return(self, worker: Worker, c: int) -> Worker:
        for m, entry in enumerate(worker.entries):
            if entry[0] == UNACKED and entry[2] == c:
                worker = self._entry(worker, m, (READY, entry[1] or self.rules.return_marks, -1, -1))
        return worker

    def _ack(self, state: State, c: int, consumer: Consumer, m: int, processed: tuple[int, ...]) -> tuple[str, State]:
        """Two steps with the log in between: the frame into the image, then the slot."""
        worker = state.worker
        s = worker.entries[m][3]
        in_log = m in worker.log
        is_free = consumer.slots[s].state == FREE
        if not in_log and (self.rules.frame_before_release or is_free):
            worker = worker._replace(log=(*worker.log, m))
            if is_free:
                worker = self._entry(worker, m, (GONE, False, -1, -1))._replace(processed=processed)
            return f"worker writes ACK {m}", state._replace(worker=worker)
        consumer = self._slot(consumer, s, consumer.slots[s]._replace(state=FREE))
        if in_log:
            worker = self._entry(worker, m, (GONE, False, -1, -1))._replace(processed=processed)
        return f"worker frees slot {c}:{s}", self._with(state, c, consumer)._replace(worker=worker)

    def _sweep(self, state: State, c: int, consumer: Consumer) -> tuple[str, State]:
        worker = state.worker
        handed = consumer.have if self.rules.death_marks else ()
        for m, entry in enumerate(worker.entries):
            if self.rules.dead_are_returned and entry[0] == UNACKED and entry[2] == c:
                worker = self._entry(worker, m, (READY, entry[1] or m in handed, -1, -1))
        return f"worker sweeps {c}", self._with(state, c, consumer._replace(life=REMOVED))._replace(worker=worker)

    def _commit(self, state: State) -> Iterator[tuple[str, State]]:
        worker = state.worker
        if worker.durable < len(worker.log) or worker.sealed != worker.processed:
            committed = worker._replace(durable=len(worker.log), sealed=worker.processed)
            yield "worker commits", state._replace(worker=committed)
        limits = worker.sealed if self.rules.head_after_durability else worker.processed
        for c, consumer in enumerate(state.consumers):
            if consumer.life != REMOVED and consumer.processed < worker.processed[c]:
                told = self._with(state, c, consumer._replace(processed=worker.processed[c]))
                yield f"worker publishes processed {c}", told
            if consumer.life != REMOVED and consumer.head < limits[c]:
                yield f"worker publishes head {c}", self._with(state, c, consumer._replace(head=limits[c]))

    def _restart(self, state: State) -> tuple[str, State]:
        log = state.worker.log
        mark = self.rules.restart_marks
        entries = [(GONE, False, -1, -1) if m in log else (READY, mark, -1, -1) for m in range(self.messages)]
        consumers = list(state.consumers)
        for c, consumer in enumerate(consumers):
            if consumer.life == REMOVED:
                continue
            for s, slot in enumerate(consumer.slots):
                if slot.state != HELD:
                    continue
                pushed = slot.pushed_at < consumer.delivery_tail or not self.rules.unpushed_are_freed
                mine = slot.message >= 0 and entries[slot.message][0] == READY
                if pushed and mine and self.rules.held_stay_held:
                    entries[slot.message] = (UNACKED, slot.redelivered, c, s)
                else:
                    consumer = self._slot(consumer, s, slot._replace(state=FREE))
            consumers[c] = consumer._replace(replay=len(consumer.commands))
        heads = tuple(consumer.head for consumer in consumers)
        worker = Worker(True, tuple(entries), heads, heads, 0, NOTHING, log, state.worker.durable)
        return "worker starts", state._replace(worker=worker, consumers=tuple(consumers))

    # -- invariants --------------------------------------------------------------------------------------------------

    def wrong(self, state: State) -> str | None:
        if state.broken:
            return state.broken
        worker = state.worker
        for m in worker.log:
            if m not in state.acked:
                return f"message {m} left the queue and nobody had acked it"
        if len(set(worker.log)) != len(worker.log):
            return "an ack was written twice"
        durable = worker.log[: worker.durable]
        for consumer in state.consumers:
            for op, m in consumer.commands[: consumer.head]:
                if op == "ack" and m not in durable:
                    return f"the ack of {m} was confirmed and is not durable"
        return None

    def rest(self, state: State) -> str | None:
        worker = state.worker
        for c, consumer in enumerate(state.consumers):
            if consumer.life == DEAD:
                return f"consumer {c} is dead and was never swept"
            if consumer.life == LIVES and any(slot.state == HELD for slot in consumer.slots):
                return f"consumer {c}: a delivery slot is left HELD"
            if consumer.life == LIVES and consumer.head != len(consumer.commands):
                return f"consumer {c} was not confirmed"
        if any(entry[0] == UNACKED for entry in worker.entries):
            return "a message is held by nobody who lives"
        if any(consumer.life == LIVES for consumer in state.consumers) and any(e[0] != GONE for e in worker.entries):
            return "a message was never delivered"
        return None


#: name → model
STANDARD = {
    "one consumer, two kills of the worker": DeliveryModel(2, 1, 1, worker_kills=2, nacks=1),
    "one consumer, two slots": DeliveryModel(2, 1, 2, worker_kills=1),
    "two consumers, kills of both sides": DeliveryModel(2, 2, 1, worker_kills=1, consumer_kills=1),
    "two consumers, one that gives back": DeliveryModel(1, 2, 1, worker_kills=0, nacks=1),
    "two consumers, one that returns unseen": DeliveryModel(1, 2, 1, worker_kills=1, unseen=1),
}

#: larger ones, for a minute or two
DEEP = {
    "two consumers, kills and nacks": DeliveryModel(2, 2, 1, worker_kills=1, consumer_kills=1, nacks=1),
    "one consumer, two slots, one that gives back": DeliveryModel(2, 1, 2, worker_kills=1, nacks=1),
    "one consumer, two slots, one that returns unseen": DeliveryModel(2, 1, 2, worker_kills=1, nacks=1, unseen=1),
    "three messages, two slots": DeliveryModel(3, 1, 2, worker_kills=2, consumer_kills=1),
}
