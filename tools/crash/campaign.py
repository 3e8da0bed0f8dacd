"""Kill campaign: a real node under load, and SIGKILL / SIGSTOP / SIGCONT of any of its processes from a seed.

Method: actors (actors.py, keeper.py) log what was confirmed and received outside of the node. The campaign kills and
stops at random the store server, queue workers, supervisor, collector, and its own actors, singly or several at once,
some again while they recover; and it arms named crash points (ipc/layout.py), so that whoever gets there kills itself,
also again and again while it starts. The files are small, so that they roll, empty, are collected and recycled all the
time. At the end it takes what is left itself, and compares the logs.

Invariants (violations of them are the result)
  every confirmed message was received, or is still there; of durability none, as long as a process of the node lives
  of all receipts of a message at most one is without the redelivered mark
  a consumer gets the messages of one publisher in one queue (with one priority) in order, but for those that are marked
  every confirmed message that was dropped, or that expired, comes out of the exchange for dead letters, with its reason
  no body differs from what its key, or its id and version, says
  a stored message has as many references as its writers have confirmed and not removed, and when all are removed
  nothing is left and the disk is nearly empty
  no probe takes longer than `probe_s` for each death that falls into it
  nothing stays behind in /dev/shm, as message queue, System V segment or semaphore, or as a process
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import warren
from warren.engine.errors import Error
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT
from warren.tools.crash.actors import (
    EXPIRED_QUEUE,
    LETTERS_QUEUE,
    NONE_QUEUE,
    PRIORITY_QUEUE,
    PROBE_QUEUE,
    QUEUES,
    REASONS,
    REJECTED_QUEUE,
    declare_all,
    key_of,
    log_received,
    opened,
)
from warren.tools.crash.keeper import reckon
from warren.tools.crash.ledger import Ledger
from warren.tools.crash.logs import Log
from warren.tools.crash.points import Points
from warren.tools.crash.report import Report
from warren.tools.crash.victims import Actor, Node, names_in, processes_of, send, system_v_left

PROBE_S = 10.0
STOPPED_S_MAX = 0.25
PAUSE_S_MAX = 0.3
DRAIN_S = 60.0
SHRINK_S = 10.0
FILES_LEFT_MAX = 8
NONE_EXCUSED_S = 20.0
RECOVERING = CONSTANTS["SERVER_RECOVERING"]
ACTORS = (("producer", 2), ("none", 1), ("consumer", 2), ("keeper", 2), ("queue-probe", 1), ("store-probe", 1))
DRAINED_FIRST = ("producer", "none", "keeper", "queue-probe", "store-probe", "consumer")
#: small files, so that rolls, flushes, collections and deletions happen all the time
SETTINGS: dict[str, Any] = {
    "workers": 2,
    "file_bytes": 256 << 10,
    "arena_bytes": 2 << 20,
    "journal_files_max": 3,
    "message_bytes_max": 512 << 10,
    "index_rows": 1024,
    "ring_records": 1024,
    "delivery_slots": 512,
}
#: counters of the store's row that are summed up over its lives
COUNTERS = ("collected_n", "retired_n", "eliminated_n", "written_n", "lost_n", "evicted_n")

#: what is done to whom, and how often
WEIGHTS = {
    ("kill", "producer"): 3,
    ("kill", "none"): 1,
    ("kill", "consumer"): 3,
    ("kill", "keeper"): 4,
    ("kill", "worker"): 5,
    ("kill", "store"): 5,
    ("kill", "collector"): 4,
    ("kill", "supervisor"): 1,
    ("again", "store"): 2,
    ("again", "worker"): 1,
    ("several", "node"): 2,
    ("end", "store"): 1,
    ("stop", "producer"): 1,
    ("stop", "consumer"): 1,
    ("stop", "keeper"): 1,
    ("stop", "worker"): 1,
    ("stop", "store"): 1,
    ("stop", "collector"): 1,
    ("stop", "supervisor"): 1,
}


class Campaign:
    """One node, its actors, and the hand that kills them. topic_campaign.py has other actors and other logs."""

    settings: ClassVar[dict[str, Any]] = SETTINGS
    actor_module: ClassVar[str] = "warren.tools.crash.actors"
    actor_roles: ClassVar[tuple[tuple[str, int], ...]] = ACTORS
    weights: ClassVar[dict[tuple[str, str], int]] = WEIGHTS
    #: points that are armed more often than others
    points_more: ClassVar[tuple[str, ...]] = ()
    report_of: ClassVar[type[Report]] = Report
    node_of: ClassVar[type[Node]] = Node
    #: whose logs say what was published, and received
    publishers: ClassVar[tuple[str, ...]] = ("producer", "none")
    takers: ClassVar[tuple[str, ...]] = ("consumer",)

    def __init__(
        self,
        folder: Path,
        seed: int,
        say: Callable[[str], None] = lambda _text: None,
        *,
        probe_s: float = PROBE_S,
        points: bool = True,
        pause_s: float = PAUSE_S_MAX,
    ) -> None:
        self.rng = random.Random(seed)
        self.say = say
        self.probe_s, self.pause_s = probe_s, pause_s
        self.report = self.report_of(seed)
        self.root = Path(tempfile.mkdtemp(prefix="warren-crash-", dir=folder))
        self.directory, self.logs = self.root / "node", self.root / "logs"
        self.logs.mkdir()
        self.hits = Log(str(self.logs / "hits.log"))
        self.points = Points(self.rng, self.report, self._note, self.points_more) if points else None
        self._pids = {os.getpid()}
        self._since = time.time() - 1  # whole seconds, there
        self._keys: set[int] = set()
        self.actors: list[Actor] = []
        self._found: Node | None = None
        self._observer: warren.Node | None = None
        self._counted: dict[str, int] = {}
        self._hits: list[tuple[float, str, bool]] = []
        self._last: dict[str, Identity] = {}
        #: who was told to die, and may not be dead yet
        self._dying: list[Identity] = []
        self._node_deaths: list[float] = []
        #: from when until when there was no node, and a client had to wait until somebody opened it
        self._down: list[tuple[float, float]] = []
        self.began = time.monotonic()
        self.stopping = False  #: kill no more; what was found until now is compared

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, kills: int, seconds: float) -> Report:
        """Kill until `kills` have happened or `seconds` are over; drain, compare, clean up (but for a violation)."""
        try:
            observer = self._open()
            self._prepare(observer)
            self._storm(kills, seconds)
            if self.points is not None:
                self.points.disarm(self._node)
            self._await_deaths()
            observer = self._revive()
            self._drain(observer)
            self._compare(observer)
            observer.close()
            self._stop_node()
            self._compare_files()
        finally:
            self._end_all()
            self.hits.close()
        self._look_for_leaks()
        self.report.seconds = time.monotonic() - self.began
        if self.report.violations:
            self.say(f"the node's directory and the logs stay in {self.root}")
        else:
            shutil.rmtree(self.root, ignore_errors=True)
        return self.report

    def _prepare(self, observer: warren.Node) -> None:
        """What actors find when they begin."""
        declare_all(observer)
        for n in range(2):
            observer.queue(PROBE_QUEUE.format(n))

    def _settings(self) -> dict[str, Any]:
        """Those of the node."""
        return self.settings

    def _open(self) -> warren.Node:
        self._observer = warren.open(self.directory, name="kill-observer", idle_exit=120.0, **self._settings())
        if self._found is not None:
            self._pids |= self._found.pids
            self._found.superblock.close()
        self._found = self.node_of(self.directory)
        self._keys |= {self._found.superblock.get(name) for name in ("live_semaphore_key", "store_lock_key")}
        self._counted.clear()
        return self._observer

    @property
    def _node(self) -> Node:
        assert self._found is not None, "the node was never opened"
        return self._found

    def _revive(self) -> warren.Node:
        """Start the node again when every process of it was killed before one could start another."""
        assert self._observer is not None
        if self._node.all():
            return self._observer
        self._note("nothing is left of the node", death=True)
        died = time.monotonic()
        self._node_deaths.append(died)
        self.report.node_deaths += 1
        self._observer.close()
        opened = self._open()
        self._note("the node is open again")
        self._down.append((died, time.monotonic()))
        return opened

    def _await_deaths(self) -> None:
        """Until everyone who was sent a signal that ends him is dead: on a busy machine a killed process lives on for a
        while, and looks like one that starts the others again.
        """
        deadline = time.monotonic() + DRAIN_S
        while any(identity.alive() for identity in self._dying):
            if time.monotonic() > deadline:
                self.report.violations.append(f"told to end, and still there after {DRAIN_S:g} s: {self._dying}")
                return
            time.sleep(0.01)

    def _storm(self, kills: int, seconds: float) -> None:
        self.actors = [
            Actor(role, number, self.directory, self.logs, self.rng, self.actor_module)
            for role, count in self.actor_roles
            for number in range(count)
        ]
        deadline = self.began + seconds
        if not self._wait_for_load(deadline):
            return
        choices, weights = list(self.weights), list(self.weights.values())
        last_said = time.monotonic()
        while self.report.kills_n < kills and time.monotonic() < deadline and not self.stopping:
            self._revive()
            self._node.watch()
            self._count()
            if self.points is not None:
                self.points.turn(self._node)
            what, role = self.rng.choices(choices, weights)[0]
            self._hit(self._node, what, role)
            time.sleep(self.rng.random() ** 2 * self.pause_s)
            self._look_at_actors()
            if time.monotonic() - last_said > 5:
                last_said = time.monotonic()
                self.say(f"{self.report.kills_n} of {kills} kills, {last_said - self.began:.0f} s, {self._sizes()}")

    def _look_at_actors(self) -> bool:
        """Complain of those that ended by themselves, and start them again. Whether there was one."""
        complaints = 0
        for actor in self.actors:
            failed = actor.failed()
            if failed:
                self.report.violations.append(failed)
                actor.kill()
                complaints += 1
        return bool(complaints)

    def _sizes(self) -> str:
        get = self._node.superblock.server_get
        files, used, valid = (get(SERVER_STORE_PERSISTENT, name) for name in ("files", "file_bytes_sum", "valid_bytes"))
        return (
            f"store: {files} files, {used >> 10:,} KiB, {valid >> 10:,} KiB live; {self.report.store['retired']} gone"
        )

    def _count(self) -> None:
        """Sum up the store's counters over its lives."""
        for name in COUNTERS:
            value = self._node.superblock.server_get(SERVER_STORE_PERSISTENT, name)
            before = self._counted.get(name, 0)
            self.report.store[name.removesuffix("_n")] += value - before if value >= before else value
            self._counted[name] = value

    def _wait_for_load(self, deadline: float) -> bool:
        """Until everybody has written something into his log: killing who has not begun shows nothing. False: that will
        not be, and the report says why.
        """
        while idle := sorted({actor.role for actor in self.actors if not actor.working()}):
            if self.stopping:
                return False
            if self._look_at_actors() or time.monotonic() >= deadline:
                self.report.violations.append(f"nobody was killed: these did not begin to work: {', '.join(idle)}")
                return False
            time.sleep(0.02)
        return True

    # -- hitting --------------------------------------------------------------------------------------------------

    def _hit(self, node: Node, what: str, role: str) -> None:
        actors = [actor for actor in self.actors if actor.role == role]
        if actors:
            actor = self.rng.choice(actors)
            if what == "kill":
                actor.kill()
                self.report.kills[role] += 1
                self._note(f"killed a {role}")
            else:
                self._stopped(Identity.of(actor.process.pid), role)
        elif what == "several":
            names = ["supervisor", "collector", *node.servers()]
            for name in self.rng.sample(names, self.rng.choice((2, 2, 3, 4))):
                self._kill(node, name)
        else:
            name = self.rng.choice(node.names(role))
            if what == "stop":
                self._stopped(node.find(name), role)
            elif what == "end":
                self._end(node, name)
            elif self._kill(node, name) and what == "again":
                self._kill_again(node, name)

    def _kill(self, node: Node, name: str) -> bool:
        """kill -9, or the supervisor in its place when it has died too often for this one. False: not done."""
        if not node.may_die(name):
            name = "supervisor"
        identity = node.find(name)
        if (
            identity is None
            or identity == self._last.get(name)
            or (name == "supervisor" and not node.supervisor_ready())
        ):
            return False  # it is just being restarted
        if not send(identity, signal.SIGKILL):
            return False
        self._dying.append(identity)
        self._last[name] = identity
        role = name.partition("-")[0]
        self.report.kills[role] += 1
        self._note(f"killed {name} {identity.pid}", death=True)
        return True

    def _kill_again(self, node: Node, name: str) -> None:
        """Once more, while it recovers."""
        if name not in node.servers() or not node.may_die(name, 2):
            return
        before = node.find(name)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            found = node.find(name)
            if found is not None and found != before:
                time.sleep(self.rng.random() ** 2 * 0.05)
                recovering = node.superblock.server_get(node.servers()[name], "state") == RECOVERING
                if send(found, signal.SIGKILL):
                    self._dying.append(found)
                    self.report.kills[f"{name.partition('-')[0]} again" if not recovering else "recovering"] += 1
                    self._note(
                        f"killed {name} {found.pid} {'while it recovered' if recovering else 'again'}", death=True
                    )
                return
            time.sleep(0.001)

    def _end(self, node: Node, name: str) -> None:
        """SIGTERM: it saves everything, ends, and is started again."""
        identity = node.find(name)
        if identity is not None and node.may_die(name) and send(identity, signal.SIGTERM):
            self._dying.append(identity)
            self.report.stops[f"{name} ended"] += 1
            self._note(f"ended {name} {identity.pid}", death=True)

    def _note(self, text: str, *, death: bool = False) -> None:
        now = time.monotonic()
        self._hits.append((now, text, death))
        self.hits.write(f"{time.strftime('%H:%M:%S')} {now:.3f} {text}")

    def _stopped(self, identity: Identity | None, role: str) -> None:
        if identity is None or not send(identity, signal.SIGSTOP):
            return
        try:
            self.report.stops[role] += 1
            self._note(f"stopped a {role} {identity.pid}")
            time.sleep(self.rng.random() * STOPPED_S_MAX)
        finally:
            send(identity, signal.SIGCONT)
            self._note(f"continued {identity.pid}")

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, node: warren.Node) -> None:
        """End the actors, consumers last, and take what is left."""
        self._end_actors(DRAINED_FIRST)
        log = Log(str(self.logs / "drain.log"))
        kept = (*QUEUES, NONE_QUEUE, PRIORITY_QUEUE)
        for name in (*kept, *(PROBE_QUEUE.format(n) for n in range(2)), REJECTED_QUEUE, EXPIRED_QUEUE):
            self._drain_queue(opened(node, name), log if name in (*kept, REJECTED_QUEUE) else None)
        self._drain_letters(node.queue(LETTERS_QUEUE), log)
        log.close()

    def _end_actors(self, roles: Sequence[str]) -> None:
        """In good order, one role after the other."""
        for actor in (actor for role in roles for actor in self.actors if actor.role == role):
            complaint = actor.end(30.0)
            if complaint:
                self.report.violations.append(complaint)

    def _drain_queue(self, queue: warren.Queue, log: Log | None) -> None:
        """Take everything, or wait until it has expired."""
        deadline = time.monotonic() + DRAIN_S
        while True:
            messages = [] if queue.name == EXPIRED_QUEUE else self._taken(queue)
            if messages:
                if log is not None:
                    log_received(log, messages)
                if queue.name == REJECTED_QUEUE:
                    queue.nack(messages, requeue=False)
                else:
                    queue.ack(messages)
                continue
            stats = queue.stats()
            if not stats["ready"] and not stats["unacked"]:
                return
            if time.monotonic() > deadline:
                self.report.violations.append(f"queue {queue.name} does not drain: {stats}")
                return
            time.sleep(0.02)  # what dead consumers held is on its way back

    @staticmethod
    def _taken(queue: warren.Queue) -> list[warren.Message]:
        """A batch; an empty one also while the worker is being restarted or has too much to do."""
        try:
            return queue.get_many(500, timeout=0.2)
        except (warren.PeerLost, warren.TimedOut):
            return []

    def _drain_letters(self, queue: warren.Queue, log: Log) -> None:
        """Until every confirmed message that has to die came as a letter; what is still missing is said by _compare."""
        confirmed = {entry[1] for role in self.publishers for entry in self._entries(role) if entry[0] == "c"}
        missing = {key for key in confirmed if key.split(".")[0] in REASONS}
        for role in (*self.takers, "drain"):
            missing -= {entry[1] for entry in self._entries(role) if entry[0] == "l"}
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            messages = self._taken(queue)
            log_received(log, messages)
            queue.ack(messages)
            if messages:
                deadline = time.monotonic() + DRAIN_S  # of what comes, there may be much
            missing -= {key for message in messages if (key := key_of(message.body)) is not None}
            stats = queue.stats()
            if not messages and not missing and not stats["ready"] and not stats["unacked"]:
                return

    def _entries(self, role: str) -> Iterator[list[str]]:
        for path in sorted(self.logs.glob(f"{role}-*.log" if role != "drain" else "drain.log")):
            for line in path.read_text(errors="replace").split("\n")[:-1]:
                yield line.split(" ")

    def _compare(self, node: warren.Node) -> None:
        self._compare_messages()
        self._compare_store(node)
        for kind in ("queue", "store"):
            self._compare_probes(kind)
        for role in ("producer", "none", "consumer", "queue-probe", "store-probe"):
            self.report.errors.update(entry[1].rstrip(":") for entry in self._entries(role) if entry[0] == "e")
        self._end_store(node)

    def _compare_messages(self) -> None:
        """What was confirmed, with what was received."""
        report = self.report
        confirmed: dict[str, float] = {}
        announced: set[str] = set()
        for role in self.publishers:
            for entry in self._entries(role):
                if entry[0] == "c":
                    confirmed[entry[1]] = float(entry[2])
                elif entry[0] == "i":
                    announced.add(entry[1])
        first: Counter[str] = Counter()
        received: Counter[str] = Counter()
        letters: Counter[str] = Counter()
        for role in (*self.takers, "drain"):
            for entry in self._entries(role):
                if entry[0] == "r":
                    received[entry[1]] += 1
                    first[entry[1]] += entry[2] == "0"
                elif entry[0] == "l":
                    letters[entry[1]] += 1
                    if entry[2:] != [name := entry[1].split(".")[0], REASONS.get(name)]:
                        report.violations.append(f"dead letter {entry[1]} died in {entry[2]} of {entry[3]}")
                elif entry[0] == "b":
                    report.violations.append("wrong bytes: " + " ".join(entry[1:]))
        report.letters = letters.total()
        report.letters_again = report.letters - len(letters)
        report.violations += self._out_of_order()
        report.confirmed, report.received = len(confirmed), received.total()
        report.redelivered = report.received - first.total()
        report.unconfirmed_received = len(set(received) - set(confirmed))
        for key in sorted(confirmed):
            if key.split(".")[0] in REASONS and not letters[key]:
                report.violations.append(f"lost: {key} was confirmed at {confirmed[key]:.3f} and is no dead letter")
        dying = {key for key in confirmed if key.startswith(EXPIRED_QUEUE)}
        for key in sorted(set(confirmed) - set(received) - dying):
            if key.startswith(NONE_QUEUE) and self._node_died_after(confirmed[key]):
                report.excused += 1
            else:
                report.violations.append(f"lost: {key} was confirmed at {confirmed[key]:.3f} and never received")
        report.violations += [f"doubled: {key} came {n} times without the mark" for key, n in first.items() if n > 1]
        report.violations += [
            f"invented: {key} was received and never put" for key in {*received, *letters} - announced
        ]

    def _compare_files(self) -> None:
        """With the node stopped in good order: nothing of its own here."""

    def _out_of_order(self) -> Iterator[str]:
        """Receipts without the mark go up in each consumer, for each publisher, queue and priority."""
        taken = [path for role in self.takers for path in self.logs.glob(f"{role}-*.log")]
        for path in sorted((*taken, self.logs / "drain.log")):
            highest: dict[tuple[str, ...], int] = {}
            for line in path.read_text(errors="replace").split("\n")[:-1]:
                entry = line.split(" ")
                if entry[0] != "r" or entry[2] != "0":
                    continue
                name, *publisher, number, priority = entry[1].split(".")
                whose = (name, *publisher, priority)
                if int(number) < highest.get(whose, -1):
                    yield f"order: {entry[1]} came to {path.stem} after number {highest[whose]}"
                highest[whose] = max(highest.get(whose, -1), int(number))

    def _node_died_after(self, when: float) -> bool:
        """Whether every process of the node died soon after: what was in memory only is gone with it."""
        return any(when <= death <= when + NONE_EXCUSED_S for death in self._node_deaths)

    def _compare_store(self, node: warren.Node) -> None:
        report = self.report
        ledgers = []
        for path in sorted({path.with_suffix("") for path in self.logs.glob("keeper-*.log.*")}):
            ledger, _next = Ledger.latest(path)
            ledgers.append(ledger)
            for incarnation in sorted(self.logs.glob(f"{path.name}.*")):
                for line in incarnation.read_text(errors="replace").split("\n")[:-1]:
                    if line.startswith("b "):
                        report.violations.append(f"store: {line[2:]} ({incarnation.name})")
                    elif line.startswith("e "):
                        report.errors[line.split(" ")[1].rstrip(":")] += 1
        report.stored = sum(ledger.confirmed for ledger in ledgers)
        report.removed = sum(ledger.removed for ledger in ledgers)
        report.reads = sum(ledger.reads for ledger in ledgers)
        self._wait_for_sweep()
        try:
            report.violations += [f"store: {text}" for text in reckon(node.store(), ledgers)]
        except Error as error:
            report.violations.append(f"store: the check at the end failed: {type(error).__name__}: {error}")

    def _wait_for_sweep(self) -> None:
        """Until the servers are done with every actor."""
        node = self._node
        own = {os.getpid(), *(identity.pid for identity in node.all()), *self._not_clients()}
        deadline = time.monotonic() + DRAIN_S
        while left := [view for view in node.superblock.slots() if view.pid not in own]:
            if time.monotonic() > deadline:
                self.report.violations.append(f"slots of clients that ended are not free: {left}")
                return
            time.sleep(0.02)

    def _not_clients(self) -> set[int]:
        """Processes of the node's own that have slots as clients do."""
        return set()

    def _end_store(self, node: warren.Node) -> None:
        """Everything was removed: nothing is left in the store but a few files."""

        def count(name: str) -> int:
            return self._node.superblock.server_get(SERVER_STORE_PERSISTENT, name)

        store = node.store()
        for entry in self._entries("store-probe"):
            if entry[0] == "u":  # a probe without an answer: it may be there or not
                store.remove(bytes.fromhex(entry[1]), timeout=30)
        deadline, fewest = time.monotonic() + SHRINK_S, count("files")
        while count("messages") or count("valid_bytes") or count("files") > FILES_LEFT_MAX:
            if count("files") < fewest:  # they go one by one where each speaks of the next
                deadline, fewest = time.monotonic() + SHRINK_S, count("files")
            if time.monotonic() > deadline:
                self.report.violations.append(
                    f"store: {count('messages')} messages, {count('valid_bytes')} bytes in {count('files')} files are "
                    f"left after everything was removed, and none went for {SHRINK_S:.0f} s"
                )
                return
            time.sleep(0.05)
            store.barrier(timeout=30)

    def _compare_probes(self, kind: str) -> None:
        report = self.report
        values: list[float] = []
        for entry in self._entries(f"{kind}-probe"):
            if entry[0] == "b":
                report.violations.append(" ".join(entry[1:]))
            if entry[0] not in "pf":
                continue
            seconds, ended = int(entry[2]) / 1e6, float(entry[3])
            if entry[0] == "p":
                values.append(seconds * 1000)
            else:
                report.probe_failures.append(" ".join(entry[1:]))
            if seconds > 1.0 or entry[0] == "f":
                self._slow(kind, seconds, ended)
        if values:
            p50, p99, p999 = np.percentile(values, [50, 99, 99.9])
            report.probes[kind] = {
                "n": len(values), "p50_ms": float(p50), "p99_ms": float(p99), "p999_ms": float(p999),
                "max_ms": max(values), "over_1s": sum(value > 1000 for value in values),
            }  # fmt: skip

    def _slow(self, kind: str, seconds: float, ended: float) -> None:
        """A probe over a second: what was done to the node meanwhile."""
        meanwhile = [hit for hit in self._hits if ended - seconds - 0.6 <= hit[0] <= ended]
        deaths = sum(death for when, _text, death in meanwhile)
        what = ", ".join(f"{when - ended + seconds:+.2f} {text}" for when, text, _death in meanwhile)
        down = sum(max(0.0, min(to, ended) - max(since, ended - seconds)) for since, to in self._down)
        text = f"a probe of the {kind} took {seconds:.2f} s (ended at {ended:.3f}): {what or 'nothing was done'}"
        self.report.slow.append(text)
        if seconds - down > self.probe_s * max(deaths, 1):
            self.report.violations.append(f"hang: {text}")

    def _stop_node(self) -> None:
        told: set[int] = set()
        deadline = time.monotonic() + 30
        while self._node.all() and time.monotonic() < deadline:
            supervisor = self._node.find("supervisor")  # one that was just killed has a successor soon
            if supervisor is not None and supervisor.pid not in told:
                told.add(supervisor.pid)
                send(supervisor, signal.SIGTERM)
            time.sleep(0.02)
        for identity in self._node.all():
            self.report.violations.append(f"process {identity.pid} of the node did not end within 30 s of SIGTERM")

    def _end_all(self) -> None:
        self._pids |= self._node.pids.union(*(actor.pids for actor in self.actors))
        for actor in self.actors:
            if actor.process.poll() is None:
                actor.process.kill()
                actor.process.wait()
        for process in processes_of(self.directory):
            process.kill()
            process.wait(10)
        if self._observer is not None:
            self._observer.close()
        if self._found is not None:
            self._found.superblock.close()

    def _look_for_leaks(self) -> None:
        node = f"warren-{self._node.superblock.shared_id:012x}"
        deadline = time.monotonic() + 5
        while True:
            left = [f"shared memory {name}" for name in names_in("/dev/shm", node)]
            left += [f"message queue {name}" for name in names_in("/dev/mqueue", node)]
            left += [f"System V {what}" for what in system_v_left(self._pids, self._keys, self._since)]
            left += [f"process {process.pid}" for process in processes_of(self.directory)]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.report.violations += [f"left behind: {what}" for what in left]
