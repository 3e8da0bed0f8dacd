"""Queues as a Hypothesis state machine: random steps on a real node, compared with a model after each.

Two clients (one of them a process that can be killed) publish, get, consume, settle in any order, purge and delete;
the store server, workers, supervisor, the client, or everything is killed or stopped for a while; the node is ended
and started. Files and images are tiny, so that journal files are flushed into segments all the time. The model
(queue_model.py) knows each message of each queue: nothing confirmed is lost, nothing comes twice without the mark,
order is kept and restored, and the counters fit.

Hypothesis takes examples that fail apart until few steps are left; `main` runs as many as wanted.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from warren.ipc.layout import CONSTANTS
from warren.tools.bench.harness import real_folder
from warren.tools.crash.hands import Hands
from warren.tools.crash.machine import SETTINGS as STORE_SETTINGS
from warren.tools.crash.machine import WAIT_S, Home
from warren.tools.crash.queue_model import GRACE_S, Consumer, Entry, Letter, Presence, QueueModel, Span
from warren.tools.crash.victims import send

SETTINGS = STORE_SETTINGS | {
    "workers": 2,
    "journal_files_max": 2,
    "images_n": 2,
    "queue_memory_bytes": 128 << 10,
    "delivery_slots": 256,
    "ring_records": 256,
}
ME, PUPPET = "me", "puppet"
#: queues of every example: letter, durable
PLAIN = (("a", True), ("b", True), ("t", False))
FANOUT, TOPIC, DEAD = "fanout", "topic", "dead"
#: and some of these: what they are declared with; DEAD stands for an exchange of the example
TTL_S = 0.3
KINDS: dict[str, dict[str, Any]] = {
    "p": {"max_priority": 4},
    "m": {"max_length": 8, "dead_letter_exchange": DEAD},
    "r": {"max_length": 8, "overflow": "reject-publish"},
    "l": {"delivery_limit": 2, "dead_letter_exchange": DEAD},
    "x": {"message_ttl": TTL_S, "dead_letter_exchange": DEAD},
    "d": {"dead_letter_exchange": DEAD},
    "s": {"single_active_consumer": True},
    "o": {"deduplication_window": 3600.0},
}
#: what an open consumer, a purge of doubt, or a death in the middle of a put would make unforeseeable
COUNTED = {"max_length", "delivery_limit", "deduplication_window", "message_ttl"}
KINDS_N = 3
LOOK_S = 0.0
BEHIND_S = 0.03
STOPPED_S_MAX = 0.15
READY = CONSTANTS["SERVER_READY"]
BROWSED_MAX = 100_000
#: entries of a queue that gets no more thousands
MANY = 3000

clients = st.sampled_from((ME, PUPPET))
queues = st.integers(0, len(PLAIN) + KINDS_N - 1)
#: embedded and, from 4096 bytes on, in the store
sizes = st.sampled_from((30, 30, 30, 500, 3000, 5000, 40_000))
lives = st.sampled_from((None, None, None, None, TTL_S, 3600.0))
delays = st.sampled_from((None, None, None, None, 0.2))
#: a transient body lives and dies with its worker only while it is embedded
SIZE_TRANSIENT_MAX = 3000
workers = st.integers(0, SETTINGS["workers"] - 1)


class QueueHome(Home):
    """The node that the examples of a run share."""

    def __init__(self, folder: Path) -> None:
        self.examples = 0
        self.messages = self.received = self.redelivered = self.letters = 0
        self.node_kills = 0
        self.failures: list[str] = []
        self._continuing: list[threading.Thread] = []
        super().__init__(folder, SETTINGS, "warren.tools.crash.hands")

    def open(self) -> None:
        """Start or find the node, and both clients."""
        super().open()
        self.hands = Hands(self.public)

    def _leave(self) -> None:
        self.wait_for_stopped()
        if self.puppet.process.poll() is None:
            self.puppet.close()
        else:
            self.puppet.kill()  # it ended with an error, which it has printed
        self.hands.close()

    def kill(self, name: str) -> str | None:
        """As for the store, while others of the node are left that start it again: kill_node is a step of its own."""
        return super().kill(name) if len(self.node.all()) > 2 else None

    def note_failure(self, story: list[str]) -> None:
        """An example failed, now."""
        if not isinstance(sys.exception(), UnsatisfiedAssumption | StopTest):
            self.failures.append(f"{traceback.format_exc()}\n" + "\n".join(story[-30:]))

    def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP a process of the node; it goes on after a while, during which everything else does."""
        victim = self.node.find(name)
        if victim is None or not send(victim, signal.SIGSTOP):
            return

        def go_on() -> None:
            time.sleep(seconds)
            send(victim, signal.SIGCONT)

        thread = threading.Thread(target=go_on)
        thread.start()
        self._continuing.append(thread)

    def wait_for_stopped(self) -> None:
        """Until whoever was stopped goes on."""
        while self._continuing:
            self._continuing.pop().join()

    def kill_node(self) -> None:
        """kill -9 of every process of the node at once, and of the client; then somebody opens it again."""
        self.wait_for_stopped()
        self.puppet.kill()
        while found := self.node.all():
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for identity in found:
                    send(identity, number)
            for identity in found:
                while identity.alive():
                    time.sleep(0.0005)
        self.node_kills += 1
        self.hands.close()
        self.node.superblock.close()
        self.open()

    def wait_for_workers(self) -> None:
        """Until every worker serves."""
        self.wait_for_stopped()
        deadline = time.monotonic() + WAIT_S
        superblock = self.node.superblock
        for name, server in self.node.servers().items():
            while self.node.find(name) is None or superblock.server_get(server, "state") != READY:
                assert time.monotonic() < deadline, f"{name} does not come back"
                time.sleep(0.002)


#: set while a run lasts
home: QueueHome | None = None


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule whose steps are written down: a failure that depends on timing does not come again when it is repeated."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def noted(self: QueueMachine, **arguments: Any) -> None:
            self.story.append(f"{function.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})")
            try:
                function(self, **arguments)
            except BaseException:
                self.home.note_failure(self.story)
                raise

        wrapped: Callable[..., None] = rule(**strategies)(noted)  # type: ignore[call-overload]
        return wrapped

    return decorate


class QueueMachine(RuleBasedStateMachine):
    """One example."""

    def __init__(self) -> None:
        super().__init__()
        assert home is not None
        self.home = home
        self.story: list[str] = []
        self.queues: list[QueueModel] = []
        self.counter = 0
        self.shocks = 0
        #: of queues that were deleted: their letters may have gone with them
        self.old_letters: list[Letter] = []
        #: queues of which a death may have taken what was transient
        self.unsure: set[int] = set()

    @initialize(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=KINDS_N, max_size=KINDS_N, unique=True))
    def begin(self, kinds: list[str]) -> None:
        """New queues and exchanges, bound."""
        home = self.home
        home.examples += 1
        mark = f"e{home.examples}"
        self.story.append(f"begin({kinds})")
        self.exchanges = {kind: f"{mark}-{kind}" for kind in (FANOUT, TOPIC, DEAD)}
        for kind, name in self.exchanges.items():
            home.public.declare_exchange(name, type=TOPIC if kind == TOPIC else FANOUT)
        self.dead = f"{mark}-letters"
        self._do(ME, "declare", self.dead, True, {})
        home.public.bind(self.dead, self.exchanges[DEAD])
        for letter, durable in PLAIN:
            self.queues.append(QueueModel(f"{mark}-{letter}", durable))
        for kind in kinds:
            arguments = {name: self.exchanges[DEAD] if value == DEAD else value for name, value in KINDS[kind].items()}
            self.queues.append(QueueModel(f"{mark}-{kind}", True, arguments))
        for at in range(len(self.queues)):
            self._declare(at)

    def _declare(self, at: int) -> None:
        queue = self.queues[at]
        self._do(ME, "declare", queue.name, queue.durable, queue.arguments)
        if at < len(PLAIN):
            self.home.public.bind(queue.name, self.exchanges[FANOUT])
            self.home.public.bind(queue.name, self.exchanges[TOPIC], f"{'ab'[at % 2]}.*")

    def _declare_transient(self) -> None:
        """A transient queue goes with the node."""
        for at, queue in enumerate(self.queues):
            if not queue.durable:
                self.queues[at] = QueueModel(queue.name, False)
                self._declare(at)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _do(self, client: str, operation: str, *arguments: Any) -> Any:
        self.home.steps += 1
        if client == PUPPET:
            return self.home.puppet.ask(operation, *arguments)
        return self.home.hands.perform(operation, *arguments)

    def _keys(self, at: int, count: int, size: int) -> list[str]:
        """New keys for messages to one queue, or to several (-1)."""
        letter = self.queues[at].name.rpartition("-")[2] if at >= 0 else "x"
        first, self.counter = self.counter, self.counter + count
        self.home.messages += count
        return [f"{letter}{number}|{size}" for number in range(first, first + count)]

    def _sure(self, at: int) -> QueueModel:
        """The queue, after a look at what a death has left of it."""
        queue = self.queues[at]
        if at in self.unsure:
            self.unsure.remove(at)
            self.home.wait_for_workers()
            for client in list(queue.consumers):
                self._cancel(at, client)
            rows = self._browse(queue)
            if rows:
                self._check(at, learn=True)
            else:
                queue.entries.clear()
                self._wait(queue, lambda stats: not stats["ready"] and not stats["unacked"])
        return queue

    def _browse(self, queue: QueueModel) -> list[tuple[str | None, int, bool, int]]:
        return [tuple(row) for row in self._do(ME, "browse", queue.name, BROWSED_MAX)]

    def _arrived(self, queue: QueueModel, keys: list[str]) -> list[str]:
        """Which of these are there, in the queue's order."""
        wanted = set(keys)
        return [key for key, *_ in self._browse(queue) if key is not None and key in wanted]

    def _wait(self, queue: QueueModel, fits: Callable[[dict[str, int]], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not fits(stats := self._do(ME, "stats", queue.name)):
            assert time.monotonic() < deadline, (
                f"{queue.name} counts {stats}; expected {len(queue.ready)} ready of {len(queue.entries)}, "
                f"consumers {queue.consumers}"
            )
            time.sleep(0.001)

    def _check(self, at: int, *, learn: bool = False) -> None:
        """The queue is what the model says."""
        queue = self.queues[at]
        if at in self.unsure:
            return

        def fits(stats: dict[str, int]) -> bool:
            in_hand = len(queue.entries) - len(queue.ready)
            least, most = queue.bounds()
            if not least <= stats["ready"] + stats["unacked"] - in_hand <= most or stats["unacked"] < in_hand:
                return False
            return bool(queue.consumers) or stats["unacked"] == in_hand

        self._wait(queue, fits)
        before = time.time()
        rows = self._browse(queue)
        queue.compare(rows, learn=learn, asked=(before, time.time()))

    def _cancel(self, at: int, client: str) -> None:
        queue = self.queues[at]
        self._do(client, "cancel", queue.name)
        del queue.consumers[client]

    def _received(self, at: int, client: str, message: list[Any] | None, asked: Span) -> bool:
        if message is None:
            return False
        self.queues[at].deliver(client, *message, asked=asked)
        self.home.received += 1
        self.home.redelivered += bool(message[2])
        return True

    def _died(self, name: str | None) -> None:
        """A worker was killed: what it hands out from now on is marked, and what was transient is gone."""
        if name is None:
            return
        self.shocks += 1
        if not name.startswith("worker"):
            return
        for at, queue in enumerate(self.queues):
            if name == f"worker-{self._worker_of(queue)}":
                queue.shake()
                queue.forget_seen()
                if not queue.durable:
                    self.unsure.add(at)

    def _worker_of(self, queue: QueueModel) -> int:
        catalog = self.home.public._client.router().catalog
        return int(catalog.queue(queue.name).worker)

    # -- publishing -----------------------------------------------------------------------------------------------

    def _size(self, at: int, size: int) -> int:
        return size if self.queues[at].durable else min(size, SIZE_TRANSIENT_MAX)

    def _put(self, client: str, at: int, keys: list[str], *, weak: bool = False, **options: Any) -> None:
        """Publish with options of put_many that are the same for all, and let the model do so."""
        queue = self.queues[at]
        durability = ("none" if weak else None) if queue.durable else None
        given = {name: value for name, value in options.items() if value}
        before = time.time()
        refused = self._do(client, "put", queue.name, keys, durability, given)
        published = (before, time.time())
        room = queue.room()
        wanted = list(range(room, len(keys))) if 0 <= room < len(keys) else []
        assert refused == wanted, f"{queue.name}: of {len(keys)} it refused {refused}, not {wanted}"
        taken = [key for n, key in enumerate(keys) if n not in set(refused)]
        queue.publish(taken, weak=weak, published=published, **options)

    @step(
        client=clients, at=queues, count=st.integers(1, 12), size=sizes, weak=st.booleans(), priority=st.integers(0, 9)
    )
    def put(self, client: str, at: int, count: int, size: int, weak: bool, priority: int) -> None:
        queue = self._sure(at)
        if "max_length" in queue.arguments:
            self._close_consumers(at)
            self._check(at, learn=True)
        self._put(client, at, self._keys(at, count, self._size(at, size)), weak=weak, priority=priority)
        self._check(at)

    @step(
        client=clients,
        count=st.integers(1, 10),
        priority=st.integers(0, 9),
        taken=st.integers(0, 4),
        how=st.sampled_from(("ack", "nack", "drop")),
    )
    def stir(self, client: str, count: int, priority: int, taken: int, how: str) -> None:
        """Some messages through each of the queues that are declared with something."""
        for at in range(len(PLAIN), len(self.queues)):
            queue = self._sure(at)
            self._close_consumers(at)
            self._check(at, learn="delivery_limit" not in queue.arguments)
            self._put(client, at, self._keys(at, count, 30), priority=(priority + at) % 10)
            tags = []
            for _ in range(taken):
                tags += [message[1] for message in self._take(at, client, "get", True)]
            if tags:
                operation = ("ack", tags, False) if how == "ack" else ("nack", tags, False, how == "nack")
                self._do(client, operation[0], queue.name, *operation[1:])
                queue.settle(client, tags, multiple=False, how=how)
            self._check(at)

    @step(client=clients, at=queues, count=st.integers(1, 5), ttl=lives, delay=delays)
    def put_timed(self, client: str, at: int, count: int, ttl: float | None, delay: float | None) -> None:
        """Messages that expire, or come later."""
        queue = self._sure(at)
        if COUNTED & set(queue.arguments) or (ttl is None and delay is None):
            return
        self._put(client, at, self._keys(at, count, 30), ttl=ttl, delay=None if ttl else delay)
        self._check(at)

    @step(at=queues)
    def ripen(self, at: int) -> None:
        """Wait until what expires soon has done so, and what is delayed is there."""
        queue = self._sure(at)
        self._close_consumers(at)
        self._check(at, learn=True)
        now = time.time()
        spans = [span for entry in queue.ready for span in (entry.due, entry.expires) if span is not None]
        soon = [span[1] for span in spans if span[1] < now + 2]
        if not soon:
            return
        time.sleep(max(0.0, max(soon) - now))
        deadline = time.monotonic() + GRACE_S
        while True:
            now = time.time()
            there = {key for key, *_ in self._browse(queue)}
            late = [entry for entry in queue.ready if entry.due and entry.due[1] < now and entry.key not in there]
            head = next((entry for entry in queue.in_turn() if entry.key in there), None)
            if not late and (head is None or head.expires is None or head.expires[1] >= now):
                break
            assert time.monotonic() < deadline, f"{queue.name}: {late} should have come, or {head} have gone"
            time.sleep(0.005)
        for entry in queue.ready:
            if entry.due is not None and entry.due[1] < now:
                entry.due = None  # from now on it is there
        self._check(at)

    @step(client=clients, at=queues, numbers=st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def put_once(self, client: str, at: int, numbers: list[int]) -> None:
        """Message ids, some of which were there before."""
        queue = self._sure(at)
        if "deduplication_window" not in queue.arguments:
            return
        self._close_consumers(at)
        self._check(at, learn=True)
        keys = self._keys(at, len(numbers), 30)
        ids = [f"{queue.name}.{number}" for number in numbers]
        options = {"message_id": ids if len(ids) > 1 else ids[0]}
        self._do(client, "put", queue.name, keys, None, options)
        arrived = self._arrived(queue, keys)
        queue.publish(queue.let_in(list(zip(keys, ids, strict=True)), arrived))
        self._check(at)

    @step(client=clients, at=queues)
    def put_much(self, client: str, at: int) -> None:
        """More than a journal file, so that one is flushed."""
        queue = self._sure(at)
        if COUNTED & set(queue.arguments):
            return
        self._put(client, at, self._keys(at, 120, 2500))
        self._check(at)

    @step(client=clients, at=queues, dice=st.integers(1, 4))
    def put_thousands(self, client: str, at: int, dice: int) -> None:
        """So many rows that some leave memory."""
        queue = self._sure(at)
        if COUNTED & set(queue.arguments) or dice != 4 or len(queue.entries) > MANY:
            return
        for _ in range(2):
            self._put(client, at, self._keys(at, 1200, 30))
        self._check(at)

    @step(client=clients, kind=st.sampled_from((FANOUT, TOPIC)), count=st.integers(1, 5), size=sizes)
    def publish(self, client: str, kind: str, count: int, size: int) -> None:
        """A message to several queues."""
        to = [at for at in range(len(PLAIN)) if kind == FANOUT or at % 2 == 0]
        for at in to:
            self._sure(at)
        keys = self._keys(-1, count, min(size, SIZE_TRANSIENT_MAX))
        self._do(client, "publish", self.exchanges[kind], "" if kind == FANOUT else "a.x", keys)
        for at in to:
            self.queues[at].publish(keys)
        for at in to:
            self._check(at)

    @step(at=queues, counts=st.tuples(st.integers(1, 30), st.integers(1, 30)), size=sizes)
    def put_at_once(self, at: int, counts: tuple[int, int], size: int) -> None:
        """Two publishers at the same time: the messages of each keep their order."""
        queue = self._sure(at)
        if COUNTED & set(queue.arguments):
            return
        self._close_consumers(at)
        self._check(at, learn=True)
        keys = [self._keys(at, count, self._size(at, size)) for count in counts]
        self.home.puppet.tell("put", queue.name, keys[0], None, {})
        self._do(ME, "put", queue.name, keys[1], None, {})
        self.home.puppet.hear()
        arrived = self._arrived(queue, [*keys[0], *keys[1]])
        for own in keys:
            found = [key for key in arrived if key in set(own)]
            assert found == own, f"{queue.name}: the order of a publisher became {found}, not {own}"
        queue.publish(arrived)
        self._check(at)

    # -- taking ---------------------------------------------------------------------------------------------------

    def _take(self, at: int, client: str, operation: str, *arguments: Any) -> list[list[Any]]:
        """Ask for messages; what comes has to be there, and what has to be there has to come."""
        queue = self.queues[at]
        sure = queue.obtainable(client) > 0
        before = time.time()
        answer = self._do(client, operation, queue.name, *arguments, WAIT_S if sure else LOOK_S)
        asked = (before, time.time())
        found = answer if operation == "get_many" else [] if answer is None else [answer]
        assert found or not sure, f"{queue.name}: {operation} gave nothing of {queue.in_turn()[:3]}"
        for message in found:
            self._received(at, client, message, asked)
        self._check(at, learn="delivery_limit" not in queue.arguments)
        return found

    @step(client=clients, at=queues)
    def get(self, client: str, at: int) -> None:
        queue = self._sure(at)
        if not queue.consumers:
            self._take(at, client, "get", "delivery_limit" in queue.arguments)

    @step(client=clients, at=queues, most=st.integers(1, 20))
    def get_many(self, client: str, at: int, most: int) -> None:
        queue = self._sure(at)
        if not queue.consumers and "delivery_limit" not in queue.arguments:
            assert len(self._take(at, client, "get_many", most)) <= most

    @step(client=clients, at=queues, prefetch=st.sampled_from((1, 2, 5, 30)))
    def consume(self, client: str, at: int, prefetch: int) -> None:
        """Open a consumer and take a message, or take the next from one that is open."""
        queue = self._sure(at)
        if "delivery_limit" in queue.arguments:
            return  # what is delivered ahead and comes back counts
        fresh = client not in queue.consumers
        if fresh:
            queue.consumers[client] = Consumer(prefetch)
        if not queue.obtainable(client):
            if fresh:
                del queue.consumers[client]
                if queue.consumers and "single_active_consumer" in queue.arguments:
                    message = self._do(client, "consume", queue.name, prefetch, BEHIND_S)
                    assert message is None, f"{queue.name}: {message} came to {client} behind an active consumer"
            return
        before = time.time()
        if fresh:
            message = self._do(client, "consume", queue.name, prefetch, WAIT_S)
        else:
            message = self._do(client, "next", queue.name)
        asked = (before, time.time())
        assert self._received(at, client, message, asked), f"{queue.name}: nothing came to the consumer of {client}"
        self._check(at, learn=True)

    def _close_consumers(self, at: int) -> None:
        for client in list(self.queues[at].consumers):
            self._cancel(at, client)

    @step(client=clients, at=queues)
    def cancel(self, client: str, at: int) -> None:
        """What a consumer has not handed out returns to its place."""
        queue = self._sure(at)
        if client in queue.consumers:
            self._cancel(at, client)
            self._check(at, learn=True)

    # -- settling -------------------------------------------------------------------------------------------------

    @step(
        client=clients,
        at=queues,
        choice=st.integers(0, 2**16 - 1),
        how=st.sampled_from(("ack", "ack", "nack", "drop")),
        multiple=st.booleans(),
    )
    def settle(self, client: str, at: int, choice: int, how: str, multiple: bool) -> None:
        """Ack, return or drop some of what is in hand, in any order."""
        queue = self._sure(at)
        held = queue.held(client)
        chosen = [entry for n, entry in enumerate(held) if choice >> (n % 16) & 1]
        if not chosen:
            return
        if multiple:
            chosen = chosen[-1:]
        if choice & 1:
            chosen.reverse()
        tags = [entry.tag or 0 for entry in chosen]
        if how == "ack":
            self._do(client, "ack", queue.name, tags, multiple)
        else:
            self._do(client, "nack", queue.name, tags, multiple, how == "nack")
        queue.settle(client, tags, multiple=multiple, how=how)
        self._check(at)

    @step(client=clients, at=queues)
    def purge(self, client: str, at: int) -> None:
        queue = self._sure(at)
        self._close_consumers(at)
        self._check(at, learn=True)
        now = time.time()
        if any(entry.presence(now, now + GRACE_S) is not Presence.SURE for entry in queue.ready):
            return
        ready = queue.ready
        count = self._do(client, "purge", queue.name)
        assert count == len(ready), f"{queue.name}: purge says {count}, not {len(ready)}"
        for entry in ready:
            queue.remove(entry, ghost=False)
        self._check(at)

    @step(at=queues)
    def delete(self, at: int) -> None:
        """Delete a queue, whoever holds what, and declare it anew."""
        self._delete(at)
        queue = self.queues[at]
        for letter in queue.letters:
            letter.sure = False
        expired = [Letter(entry, "expired", sure=False) for entry in queue.entries if entry.expires]
        self.old_letters += [*queue.letters, *expired]
        self.queues[at] = QueueModel(queue.name, queue.durable, queue.arguments)
        self._declare(at)
        self._check(at)

    def _delete(self, at: int) -> None:
        queue = self.queues[at]
        self.unsure.discard(at)
        self._do(PUPPET, "forget", queue.name)
        self._do(ME, "delete", queue.name)

    # -- deaths ---------------------------------------------------------------------------------------------------

    @step(number=workers)
    def kill_worker(self, number: int) -> None:
        self._died(self.home.kill(f"worker-{number}"))

    @step()
    def kill_store(self) -> None:
        self._died(self.home.kill("store"))

    @step()
    def kill_supervisor(self) -> None:
        self._died(self.home.kill("supervisor"))

    @step(name=st.sampled_from(("store", "worker-0", "worker-1", "supervisor")), share=st.floats(0.1, 1.0))
    def pause(self, name: str, share: float) -> None:
        self.home.pause(name, STOPPED_S_MAX * share)

    @step(client=clients, at=queues, count=st.integers(1, 60), size=sizes, number=workers)
    def kill_worker_in_a_put(self, client: str, at: int, count: int, size: int, number: int) -> None:
        """A worker, perhaps this queue's, dies while it is published to."""
        queue = self._sure(at)
        if not queue.durable or COUNTED & set(queue.arguments):
            return
        keys = self._keys(at, count, size)
        self._do(client, "submit", queue.name, keys, None, {})
        self._died(self.home.kill(f"worker-{number}"))
        self._do(client, "confirm")
        queue.publish(keys)
        self._check(at, learn=True)
        for entry in queue.entries[-count:]:
            entry.shaken = True  # who knows whether it was there when the worker died

    @step(at=queues, count=st.integers(1, 60), size=sizes)
    def kill_client_in_a_put(self, at: int, count: int, size: int) -> None:
        """Of what a dying client was publishing the first part is there."""
        self._settle_down()
        queue = self._sure(at)
        if COUNTED & set(queue.arguments):
            return
        keys = self._keys(at, count, self._size(at, size))
        self.home.puppet.tell("put", queue.name, keys, None, {})
        self._kill_puppet()
        arrived = self._arrived(queue, keys)
        assert arrived == keys[: len(arrived)], f"{queue.name}: {arrived} of {keys} are there"
        queue.publish(arrived)
        self._check(at)

    @step(at=queues, choice=st.integers(1, 2**16 - 1))
    def kill_client_in_an_ack(self, at: int, choice: int) -> None:
        """What a dying client was acking is gone, or is back."""
        self._settle_down()
        queue = self._sure(at)
        chosen = [entry for n, entry in enumerate(queue.held(PUPPET)) if choice >> (n % 16) & 1]
        if not chosen or {"max_length", "delivery_limit"} & set(queue.arguments):
            return
        self.home.puppet.tell("ack", queue.name, [entry.tag for entry in chosen], False)
        self._kill_puppet()
        self._adopt(queue, chosen)
        self._check(at)

    @step(dice=st.integers(1, 3))
    def kill_client(self, dice: int) -> None:
        if dice != 3:
            return
        self._settle_down()
        self._kill_puppet()
        for at in range(len(self.queues)):
            self._check(at)

    def _settle_down(self) -> None:
        """No consumer is open, so that everything is either in a hand or ready."""
        for at in range(len(self.queues)):
            self._sure(at)
            self._close_consumers(at)
            self._check(at, learn=True)

    def _adopt(self, queue: QueueModel, unsure: list[Entry]) -> None:
        before = time.time()
        rows = self._browse(queue)
        queue.adopt(rows, unsure, asked=(before, time.time()))

    def _kill_puppet(self) -> None:
        self.shocks += 1
        self.home.kill_client()
        for queue in self.queues:
            queue.release(PUPPET)

    @step(dice=st.integers(1, 3))
    def kill_node(self, dice: int) -> None:
        if dice != 3:  # it takes long
            return
        for at in range(len(self.queues)):
            self._sure(at)
        self.shocks += 1
        self.home.kill_node()
        self._declare_transient()
        for queue in self.queues:
            queue.shake()
            for client in (ME, PUPPET):
                queue.release(client)
            queue.forget_seen()
            unsure = [*queue.recent_ghosts(), *(entry for entry in queue.entries if entry.weak)]
            if "max_length" in queue.arguments:  # what comes back may push out what is there
                unsure += [entry for entry in queue.entries if not entry.weak]
            for entry in unsure:
                entry.shaken, entry.holder = True, None
            there = list(queue.entries)
            self._adopt(queue, unsure)
            queue.ghosts.clear()
            left = set(queue.entries)
            gone = [entry for entry in there if entry not in left]  # with the node, or before it
            queue.letters += [Letter(entry, "expired", sure=False) for entry in gone if entry.expires is not None]
            if "max_length" in queue.arguments:
                queue.letters += [Letter(entry, "maxlen", sure=False) for entry in gone]
        for at in range(len(self.queues)):
            self._check(at)

    @step(dice=st.integers(1, 3))
    def restart(self, dice: int) -> None:
        """A clean stop and start: everything durable is there, with its marks."""
        if dice != 3:
            return
        self._settle_down()
        self.shocks += 1
        self.home.restart()
        self._declare_transient()
        for at, queue in enumerate(self.queues):
            for client in (ME, PUPPET):
                queue.release(client)
            queue.ghosts.clear()
            queue.forget_seen()
            self._check(at)

    #: what queues are for comes more often than what is done to them
    put_again = put_once_more = put
    get_again = get_once_more = get
    settle_again = settle_once_more = settle
    stir_again = stir_once_more = stir

    def teardown(self) -> None:
        """Everything comes, in order, and is gone when it is acked."""
        if not self.queues:
            return
        self.story.append("teardown()")
        try:
            self._settle_down()
            for at, queue in enumerate(self.queues):
                for client in (ME, PUPPET):
                    tags = [entry.tag or 0 for entry in queue.held(client)]
                    if tags:
                        self._do(client, "nack", queue.name, tags, False, True)
                        queue.settle(client, tags, multiple=False, how="nack")
                self._check(at)
                self._drain(at)
            self._read_letters()
        except BaseException:
            self.home.note_failure(self.story)
            raise
        finally:
            self._clean()

    def _drain(self, at: int) -> None:
        """Everything comes that has to; what expires or comes later is not waited for."""
        queue = self.queues[at]
        limited = "delivery_limit" in queue.arguments
        while queue.obtainable(PUPPET):
            found = self._take(at, PUPPET, "get", True) if limited else self._take(at, PUPPET, "get_many", 200)
            tags = [message[1] for message in found]
            self._do(PUPPET, "ack", queue.name, tags, False)
            queue.settle(PUPPET, tags, multiple=False, how="ack")
            self._check(at, learn=not limited)

    def _read_letters(self) -> None:
        """What died where dead letters are kept came out of the exchange, with the queue and the reason."""
        letters = [(queue.name, letter) for queue in self.queues for letter in queue.letters]
        sure = Counter((letter.entry.key, name, letter.reason) for name, letter in letters if letter.sure)
        names = {queue.name for queue in self.queues}
        allowed = {(letter.entry.key, name, letter.reason) for name, letter in letters}
        allowed |= {(letter.entry.key, name, letter.reason) for name in names for letter in self.old_letters}
        timed = {entry.key for queue in self.queues for entry in queue.entries if entry.expires}
        found: Counter[tuple[str, str, str]] = Counter()
        deadline = time.monotonic() + WAIT_S
        while missing := set(sure) - set(found):
            assert time.monotonic() < deadline, f"dead letters do not come: {sorted(missing)[:5]}"
            for letter in self._do(PUPPET, "letters", self.dead, 1000, 0.05):
                key, name, reason = letter
                found[key, name, reason] += 1
        strangers = {key for key in found if key not in allowed and not (key[0] in timed and key[2] == "expired")}
        assert not strangers, f"dead letters of messages that did not die so: {sorted(strangers)[:5]}"
        again = {key: n for key, n in found.items() if n > 1}
        assert self.shocks or not again, f"dead letters came again though nobody died: {again}"
        self.home.letters += found.total()

    def _clean(self) -> None:
        """The next example finds nothing of this one."""
        self.home.wait_for_stopped()
        if self.home.puppet.process.poll() is not None:
            self.home.kill_client()
        for at, queue in enumerate(self.queues):
            if queue.name in self.home.public.queues():
                self._delete(at)
        self.home.public.delete_queue(self.dead)
        for name in self.exchanges.values():
            self.home.public.delete_exchange(name)


def run(folder: Path, examples: int, steps: int, *, shrink: bool = True, seed: int | None = None) -> QueueHome:
    """Run the machine on a node below `folder`; raises what the first failing example raises. Returns counts."""
    global home
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))
    home = QueueHome(folder)

    class Machine(QueueMachine):
        """One that takes the seed."""

    machine = Machine if seed is None else hypothesis.seed(seed)(Machine)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                phases=phases,
                suppress_health_check=list(HealthCheck),
                database=None,
                print_blob=True,
            ),
        )
        return home
    except BaseException as error:
        for text in home.failures[:1]:
            error.add_note(f"the first failure:\n{text}")
        raise
    finally:
        home.close()


def main(argv: list[str] | None = None) -> int:
    """`python -m warren.tools.crash queues`."""
    parser = argparse.ArgumentParser(prog="warren.tools.crash queues", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--examples", type=int, default=100, help="examples (100)")
    parser.add_argument("--steps", type=int, default=50, help="steps of each (50)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run")
    parser.add_argument("--no-shrink", action="store_true", help="show the first example that fails as it is")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    options = parser.parse_args(argv)
    began = time.monotonic()
    found = run(
        real_folder(options.dir), options.examples, options.steps, shrink=not options.no_shrink, seed=options.seed
    )
    print(
        f"{found.examples} examples, {found.steps:,} commands, {found.messages:,} messages, {found.received:,} "
        f"receipts, {found.redelivered:,} of them marked redelivered, {found.letters:,} dead letters, "
        f"{found.kills:,} kills of processes, {found.node_kills} of the whole node, {found.restarts} restarts, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0
