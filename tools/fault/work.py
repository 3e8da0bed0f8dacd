"""What the clients of a fault campaign do, and what they write down outside of the node.

Each runs in a process of its own with a log, one `write` for each entry, before what it announces or after what it
reports:

    i QUEUE NUMBER…   are about to be put              c QUEUE NUMBER…   were confirmed
    r QUEUE NUMBER F  was received (F 1: marked)       a QUEUE NUMBER…   were acked
    b TEXT            a body that is not what it says
    w ID SIZE         is about to be written           k ID…             were confirmed
    x ID…             are about to be removed          d ID…             are removed, and that is synced
    l QUEUE N…        are about to be appended to the topic, together
    m LEVEL QUEUE N:OFFSET:POSITION…  were confirmed   n QUEUE N:OFFSET:POSITION…  are all that a queue of it has
    e CALL TEXT       an error of Warren               E CALL TEXT       another error: a violation
    v V y Y           what compacted.py says     h H f F p u  what halves.py says
    t SECONDS CALL    a call took longer than its timeout and some more
    A TEXT            an alarm                         z                 everything was done

A body is told from its queue and number (history.py), a message published to the exchange from `fan` and its number.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import warren
from warren import Durability
from warren.engine._core import Confirm
from warren.tools.crash.history import body_of, message_of
from warren.tools.crash.logs import Log
from warren.tools.fault import compacted, halves
from warren.workers.client.client import Client as NodeClient
from warren.workers.process.control import ControlClient

FAN = "fan"
FANNED = ("fan-a", "fan-b")
#: is only emptied at the end of a session: it grows, is flushed, and is read from disk
PILE = "pile"
SOFT = "soft"
GIANT = "giant"  #: messages that are too large for shared memory
TOPIC, TOPIC_QUEUES = "flights", 2
TAKEN = ("small", "large", SOFT, GIANT, *FANNED)
DURABLE = ("small", "large", PILE, GIANT, *FANNED)
PUBLISHED_AT_MOST = 10_000  #: messages of one client
TIMEOUT_S = 1.0
#: of a call beyond its timeout, on a machine that others load
GRACE_S = 10.0
SURE_TIMEOUT_S = 10.0
THREAD_ENDED = 3  #: exit status
ERRORS_MAX = 4
PASS_S = 1.0  #: how long a client that works waits for a pass of compaction


#: topic, queue → up to where it was confirmed
Ends = dict[tuple[str, int], int]


class Client:
    """One client, from its attach to its close."""

    def __init__(self, directory: Path, log: Log, number: int, seed: int, timeout: float = TIMEOUT_S) -> None:
        self.directory = directory
        self.log = log
        self.rng = random.Random(seed)
        self.timeout = timeout
        self.next_number = number * PUBLISHED_AT_MOST
        self.number = number
        self.errors = 0
        self.ends: Ends = {}  #: of its own appends
        self.memory = False  #: our own allocations may fail, so MemoryError is an answer
        self.node: warren.Node

    # -- calls --------------------------------------------------------------------------------------------------

    def attempt(self, what: str, call: Callable[..., Any], *values: Any, within: float = 0.0, **named: Any) -> Any:
        """What a call returns, or None after noting its error."""
        return self._call(what, within, call, values, named)[1]

    def done(self, what: str, call: Callable[..., Any], *values: Any, within: float = 0.0, **named: Any) -> bool:
        """Whether a call went well; its error is noted."""
        return self._call(what, within, call, values, named)[0]

    def _call(
        self, what: str, within: float, call: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[bool, Any]:
        began = time.monotonic()
        try:
            return True, call(*values, **named)
        except warren.Error as error:
            self.errors += 1
            self.log.write(f"e {what} {type(error).__name__}: {error}".replace("\n", " "))
        except BaseException as error:  # noqa: BLE001 - whatever else comes out is what the campaign looks for
            self.errors += 1
            kind = "e" if self.memory and isinstance(error, MemoryError) else "E"
            last = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(last))
            self.log.write(f"{kind} {what} {type(error).__name__}: {error} ({where})".replace("\n", " "))
        finally:
            took = time.monotonic() - began
            if took > (within or self.timeout) + GRACE_S:
                self.log.write(f"t {took:.1f} {what}")
        return False, None

    def attach(self) -> bool:
        """Attach; False when that was refused."""
        bounds = {"timeout": self.timeout, "call_timeout": self.timeout}  # a get with timeout 0 takes the latter
        node = self.attempt("attach", warren.attach, self.directory, name="fault-client", **bounds)
        if node is not None:
            self.node = node
        return node is not None

    def close(self) -> None:
        """Leave the node."""
        self.attempt("close", self.node.close, within=SURE_TIMEOUT_S)

    # -- steps --------------------------------------------------------------------------------------------------

    def declare(self) -> None:
        """What all work with, once."""
        for name in (*TAKEN, PILE):
            self.attempt("declare", self.queue, name)
        for opened in (self.topic, functools.partial(compacted.opened, self), functools.partial(halves.opened, self)):
            self.attempt("topic", opened)
        self.attempt("exchange", self.node.declare_exchange, FAN, type="fanout")
        for name in FANNED:
            self.attempt("bind", self.node.bind, name, FAN)

    def queue(self, name: str) -> warren.Queue:
        """One of the queues."""
        return self.node.queue(name, durable=name != SOFT)

    # -- the topic ----------------------------------------------------------------------------------------------

    def topic(self) -> warren.Topic:
        """The topic of all clients."""
        return self.node.topic(TOPIC, queues=TOPIC_QUEUES)

    def append(self, count: int, sizes: Sequence[int], level: Durability, *, together: bool = True) -> None:
        """Messages into one queue of the topic: together, or one by one without waiting; then what was confirmed. Those
        of a batch take less than a quarter of `topic_ring_bytes`: more would be sent in parts.
        """
        items = self.items(count, sizes)
        queue = self.rng.randrange(TOPIC_QUEUES)
        for batch in [items] if together else [[item] for item in items]:
            self.log.write(f"l {queue} {' '.join(str(number) for number, _size in batch)}")
            bodies = [message_of(TOPIC, *item) for item in batch]
            keys = [[f"n{number}", "often"] for number, _size in batch]
            tags = [f"t{number % 3}" for number, _size in batch]
            options: dict[str, Any] = {"queue": queue, "durability": level, "timeout": self.timeout}
            found = self.attempt("append", lambda: self.topic().append_many(bodies, keys, tags, **options))  # noqa: B023
            if found is not None:
                self.log.write(f"m {level} {queue} {_placed(batch, found)}")
                if level != "none":
                    self.ends[TOPIC, queue] = found[-1].offset + 1
            elif self.errors >= ERRORS_MAX:
                return

    def read_queue(
        self, topic: Callable[[], warren.Topic], queue: int, end: int, name: str
    ) -> list[warren.Record] | None:
        """Everything that a queue of a topic has, None after an error. `end`: up to where it was confirmed: what had no
        space is waited for.
        """
        records: list[warren.Record] = []
        at, end = 0, max(end, self.ends.get((name, queue), 0))
        while True:
            wait = SURE_TIMEOUT_S if at < end else 0
            options: dict[str, Any] = {"max": 1000, "max_bytes": 1 << 24, "timeout": wait}
            found = self.attempt("read", lambda: topic().read(queue, at, **options))  # noqa: B023
            if found is None:
                return None
            if not found.records and found.next_offset <= at:
                return records
            records += found.records
            at = found.next_offset

    def look_at_topic(self, ends: Ends) -> None:
        """Everything that the topic has, in all its queues; some of it by key and by id."""
        for queue in range(TOPIC_QUEUES):
            records = self.read_queue(self.topic, queue, ends.get((TOPIC, queue), 0), TOPIC)
            if records is None:
                return
            items = [(int.from_bytes(record.body[:4], "big"), len(record.body)) for record in records]
            for item, record in zip(items, records, strict=True):
                if len(record.body) < 8 or record.body != message_of(TOPIC, *item) or record.tag != f"t{item[0] % 3}":
                    self.log.write(
                        f"b topic: {queue}:{record.offset}, {len(record.body)} bytes {record.body[:24].hex()}"
                    )
            self.log.write(f"n {queue} {_placed(items, records)}".rstrip())
            for item, record in self.rng.sample(list(zip(items, records, strict=True)), min(4, len(items))):
                self._look_for(item[0], record)

    def _look_for(self, number: int, record: warren.Record) -> None:
        found = self.attempt("find", lambda: self.topic().find(f"n{number}"))
        by_id = self.attempt("find_id", lambda: self.topic().find_id(record.message_id))
        for what in (*(found or []), *([by_id] if by_id is not None else [])):
            if what.physical_offset != record.physical_offset:
                self.log.write(
                    f"b topic: {number} lies at {record.physical_offset}, and is found at {what.physical_offset}"
                )
        if not self.errors and (found is None or len(found) != 1 or by_id is None):
            self.log.write(f"b topic: {number} is found {len(found or [])} times by key, by id {by_id}")

    def items(self, count: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Numbers that nobody else uses, each with one of the sizes."""
        first = self.next_number
        self.next_number += count
        return [(first + n, self.rng.choice(sizes)) for n in range(count)]

    def _say(self, letter: str, names: Sequence[str], items: Sequence[tuple[int, int]]) -> None:
        numbers = " ".join(str(number) for number, _size in items)
        self.log.write(*(f"{letter} {name} {numbers}" for name in names))

    def put(self, name: str, count: int, sizes: Sequence[int]) -> None:
        """A batch into a queue, waited for."""
        items = self.items(count, sizes)
        self._say("i", [name], items)
        bodies = [message_of(name, *item) for item in items]
        if self.done(f"put {name}", lambda: self.queue(name).put_many(bodies, timeout=self.timeout)):
            self._say("c", [name], items)

    def put_each(self, name: str, count: int, sizes: Sequence[int]) -> None:
        """One by one without waiting, then all confirms."""
        confirms = []
        for item in self.items(count, sizes):
            self._say("i", [name], [item])
            body = message_of(name, *item)
            confirm = self.attempt(f"put {name}", self._put_one, name, body)
            if confirm is not None:
                confirms.append((item, confirm))
        for item, confirm in confirms:
            if self.done("confirm", confirm.wait, self.timeout):
                self._say("c", [name], [item])

    def _put_one(self, name: str, body: bytes) -> Confirm | None:
        return self.queue(name).put(body, wait=False, timeout=self.timeout)

    def fan(self, count: int) -> None:
        """Messages to an exchange with two queues."""
        items = self.items(count, (100, 2000, 6000))
        self._say("i", FANNED, items)
        bodies = [message_of(FAN, *item) for item in items]
        if self.done("publish", self.node.publish_many, bodies, FAN, timeout=self.timeout):
            self._say("c", FANNED, items)

    def take(self, name: str, count: int, *, back: bool) -> int:
        """Take some and ack them, or give a part of them back."""
        messages = self.attempt(f"get {name}", lambda: self.queue(name).get_many(count, timeout=0))
        if not messages:
            return 0
        numbers = {id(message): self._received(name, message) for message in messages}
        given, kept = (messages[1::3], [*messages[0::3], *messages[2::3]]) if back else ([], messages)
        if given:
            self.done("nack", lambda: self.queue(name).nack(given))
        acked = [number for message in kept if (number := numbers[id(message)]) is not None]
        if self.done("ack", lambda: self.queue(name).ack(kept)) and acked:
            self.log.write(f"a {name} {' '.join(map(str, acked))}")
        return len(messages)

    def _received(self, name: str, message: warren.Message) -> int | None:
        """Note a message; its number, if it can be told."""
        body = self.attempt("body", lambda: bytes(message.body))
        if body is None:
            return None
        number, size = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
        if len(body) < 8 or size != len(body) or body != message_of(FAN if name in FANNED else name, number, size):
            self.log.write(f"b {name}: {len(body)} bytes {body[:24].hex()}")
            return None
        self.log.write(f"r {name} {number} {int(message.redelivered)}")
        return number

    def store(self, count: int) -> None:
        """Write, read and remove messages of the store."""
        store = self.attempt("store", self.node.store)
        ids = None if store is None else self.attempt("new_id", lambda: [store.new_id() for _ in range(count)])
        if not ids:
            return
        sizes = [self.rng.choice((50, 900, 7000, 30_000)) for _ in ids]
        self.log.write(*(f"w {id.hex()} {size}" for id, size in zip(ids, sizes, strict=True)))
        bodies = [body_of(id, 0, size) for id, size in zip(ids, sizes, strict=True)]
        if self.done("write", store.write_many, ids, bodies, timeout=self.timeout):
            self.log.write("k " + " ".join(id.hex() for id in ids))
            for id, body, found in zip(
                ids, bodies, self.attempt("read", lambda: store.read_many(ids)) or [], strict=False
            ):
                if found != body:
                    self.log.write(
                        f"b store: {id.hex()} reads {None if found is None else len(found)} of {len(body)} bytes"
                    )
        gone = [id for id in ids if self.rng.random() < 0.8]
        self.remove(store, gone)

    def remove(self, store: warren.Store, ids: Sequence[bytes]) -> None:
        """Remove messages, and wait until that is synced."""
        if not ids:
            return
        names = " ".join(id.hex() for id in ids)
        self.log.write(f"x {names}")
        if self.done("remove", store.remove, list(ids), timeout=self.timeout) and self.done(
            "barrier", store.barrier, "synced", timeout=self.timeout
        ):
            self.log.write(f"d {names}")

    # -- whole lives --------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Enough of everything that files roll, are flushed and collected; ends early when nothing goes."""
        if not self.attach():
            return
        steps: list[Callable[[], object]] = [
            lambda: self.store(16),
            lambda: self.put("small", 60, (100, 3500)),
            lambda: self.put("large", 6, (5000, 20_000)),
            lambda: self.put(PILE, 70, (300, 3800)),
            lambda: self.fan(6),
            lambda: self.put(SOFT, 6, (200, 6000)),
            lambda: self.put(GIANT, 2, (260_000, 390_000)),
            lambda: self.put_each("small", 3, (500, 4500)),
            lambda: self.append(40, (100, 1200), "synced"),
            lambda: self.append(3, (9000, 20_000), "written"),
            lambda: self.append(6, (60, 800), self.rng.choice(("synced", "none")), together=False),
            lambda: compacted.renew_and_wait(self, PASS_S, ERRORS_MAX),
            lambda: halves.play(self, ERRORS_MAX),
        ]
        self.rng.shuffle(steps)
        steps += [functools.partial(self.take, name, 30, back=True) for name in ("small", "large", SOFT, GIANT)]
        steps += [self._come_and_go, functools.partial(self.take, "fan-a", 10, back=False)]
        for step in steps:
            step()
            if self.errors >= ERRORS_MAX:
                break
        self.close()
        self.log.write("z")

    def _come_and_go(self) -> None:
        """A queue that lives for a moment: the catalog changes."""
        name = f"moment-{self.number}"
        if self.done("declare", self.node.queue, name):
            self.done("delete", self.node.delete_queue, name)

    def prove(self, *, all_of_it: bool, held: dict[bytes, tuple[int, int]], ends: Ends) -> None:
        """Everything goes again, and what is there is what was confirmed: take it all. Without the pile but at the end.
        Then a pass of compaction has to come, too, and each half message is answered for.

        `held`: what the store has to have of each id, (size, 1 there, 0 not there). `ends`: up to where topics were
        confirmed.
        """
        if not self.attach():
            return
        steps: list[Callable[[], object]] = [
            self.declare,
            functools.partial(self.put, "small", 3, (100, 5000)),
            functools.partial(self.fan, 2),
            functools.partial(self.put, SOFT, 2, (100, 5000)),
            functools.partial(self.put, GIANT, 1, (270_000,)),
            functools.partial(self.append, 3, (100, 5000), "synced"),
            functools.partial(self.look_at_topic, ends),
            functools.partial(halves.opened, self, answers=True),
            functools.partial(compacted.append, self, self.number % compacted.QUEUES, compacted.SMALL, "synced"),
            functools.partial(compacted.look, self, ends),
            functools.partial(halves.look, self, ends),
        ]
        if all_of_it:
            steps += [
                functools.partial(compacted.prove_pass, self, SURE_TIMEOUT_S),
                functools.partial(compacted.look, self, ends),
                functools.partial(halves.answer_all, self, SURE_TIMEOUT_S),
                functools.partial(halves.look, self, ends),
            ]
        steps += [functools.partial(self._empty, name) for name in ((*TAKEN, PILE) if all_of_it else TAKEN)]
        steps += [functools.partial(self._look, held, remove=all_of_it)]
        for step in steps:
            step()
            if self.errors:
                self._alarms()
                break
        self.close()
        if self.errors == 0:
            self.log.write("z")

    def _empty(self, name: str) -> None:
        deadline = time.monotonic() + SURE_TIMEOUT_S
        while not self.errors:
            if self.take(name, 500, back=False):
                continue
            stats = self.attempt("stats", lambda: self.queue(name).stats())
            if stats is None or not (stats["ready"] or stats["unacked"]):
                return
            if time.monotonic() > deadline:
                self.errors += 1
                self.log.write(f"e empty {name} does not become empty: {stats}")
                return
            time.sleep(0.005)  # what dead clients held is on its way back

    def _look(self, held: dict[bytes, tuple[int, int]], *, remove: bool) -> None:
        store = self.attempt("store", self.node.store)
        if store is None:
            return
        ids = list(held)
        found = self.attempt("read", lambda: store.read_many(ids)) if ids else []
        for id, body in zip(ids, found or [], strict=False):
            size, there = held[id]
            if there and body != body_of(id, 0, size):
                what = "is gone" if body is None else f"reads {len(body)} bytes"
                self.log.write(f"b store: {id.hex()} of {size} bytes was confirmed and {what}")
            elif not there and body is not None:
                self.log.write(f"b store: {id.hex()} was removed and is there")
        if remove:
            self.remove(store, [id for id, (_size, there) in held.items() if there])

    def _alarms(self) -> None:
        def ask() -> None:
            with ControlClient(self.directory) as control:
                for row in control.call("status", timeout=SURE_TIMEOUT_S)["alarm_details"]:
                    self.log.write(f"A {row['alarm']}: {row['cause']}".replace("\n", " "))

        self.attempt("status", ask, within=SURE_TIMEOUT_S)


def _placed(items: Sequence[tuple[int, int]], places: Sequence[warren.Position | warren.Record]) -> str:
    pairs = zip(items, places, strict=True)
    return " ".join(f"{item[0]}:{place.offset}:{place.physical_offset}" for item, place in pairs)


def load() -> None:
    """What a client loads when it first needs it: here before it is forked."""
    for name in ("attach", "Node", "Error", "Confirm"):
        getattr(warren, name)


def shorten_declarations(seconds: float) -> None:
    """Declarations wait for the supervisor 30 s, and take no other time: in this process they wait so long."""
    for call in (NodeClient.control, ControlClient.call):
        assert call.__kwdefaults__ is not None
        call.__kwdefaults__["timeout"] = seconds


def _end_of_thread(found: threading.ExceptHookArgs) -> None:
    """A thread of Warren that ends with an error ends the client: that is seen."""
    traceback.print_exception(found.exc_type, found.exc_value, found.exc_traceback)
    os._exit(THREAD_ENDED)


def play_client(path: Path, run: Callable[[], None]) -> None:
    """In a forked process: do it, then end. SIGUSR1 prints where it is to `path`."""
    code = 1
    try:
        said = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        for number, fd in ((0, null), (1, said), (2, said)):
            os.dup2(fd, number)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        threading.excepthook = _end_of_thread
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - the last line of a process
        traceback.print_exc()
    finally:
        os._exit(code)
