"""Kill campaign: a real node under load, and SIGKILL / SIGSTOP / SIGCONT of any of its processes from a seed.

Method: actors (actors.py) log what was confirmed and received outside of the node. The campaign kills and stops at
random the store server, queue workers, supervisor, producers, consumers and storers, and starts its own actors anew. At
the end it takes what is left itself, and compares the logs.

Invariants (violations of them are the result)
  every confirmed message was received, or is still there
  of all receipts of a message at most one is without the redelivered mark
  no body differs from what its key says
  a stored message that was confirmed and not removed can be read; one whose removal was applied is gone
  no probe takes longer than HANG_S; nothing stays behind in /dev/shm, as System V segment or semaphore, or as a process

The supervisor gives a server up that dies ten times within a minute, and waits longer after each death: the campaign
kills each server at most four times a minute and supervisor, so it measures restarts, not the back-off.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import warren
from warren.ipc.identity import Identity
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.ipc.superblock import Superblock
from warren.tools.crash.actors import PROBE_QUEUE, QUEUES, Log, body_of, log_received

HANG_S = 10.0
SERVER_KILLS = 4
SERVER_KILLS_WINDOW_S = 60.0
STOPPED_S_MAX = 0.3
DRAIN_S = 60.0
ACTORS = (("producer", 2), ("consumer", 2), ("storer", 1))
#: small files, so that rolls, flushes and deletions happen all the time
SETTINGS = {"file_bytes": 1 << 20, "journal_files_max": 3, "message_bytes_max": 256 << 10, "index_rows": 4096}

#: what is done to whom, and how often
WEIGHTS = {
    ("kill", "producer"): 4,
    ("kill", "consumer"): 4,
    ("kill", "storer"): 2,
    ("kill", "worker"): 5,
    ("kill", "store"): 4,
    ("kill", "supervisor"): 2,
    ("stop", "producer"): 1,
    ("stop", "consumer"): 1,
    ("stop", "worker"): 1,
    ("stop", "store"): 1,
    ("stop", "supervisor"): 1,
}


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    node_deaths: int = 0
    seconds: float = 0.0
    confirmed: int = 0
    received: int = 0
    redelivered: int = 0
    unconfirmed_received: int = 0
    stored: int = 0
    removed: int = 0
    probes: dict[str, dict[str, float]] = field(default_factory=dict)
    probe_failures: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def kills_n(self) -> int:
        return sum(self.kills.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {**self.__dict__, "kills_n": self.kills_n}
        return {key: dict(value) if isinstance(value, Counter) else value for key, value in plain.items()}

    def __str__(self) -> str:
        probes = "; ".join(
            f"{kind} p50 {row['p50_ms']:.1f} p99 {row['p99_ms']:.0f} max {row['max_ms']:.0f} ms ({row['n']:.0f}, "
            f"{row['over_1s']:.0f} over 1 s)"
            for kind, row in self.probes.items()
        )
        queues = (
            f"queues: {self.confirmed:,} confirmed, {self.received:,} receipts, {self.redelivered:,} marked redelivered"
            f", {self.unconfirmed_received:,} received that were never confirmed"
        )
        lines = [
            f"seed {self.seed}: {self.kills_n} kills {dict(self.kills)} in {self.seconds:.0f} s",
            f"stops: {dict(self.stops)}; {self.node_deaths} times nothing was left of the node",
            queues,
            f"store: {self.stored:,} confirmed, {self.removed:,} removed",
            f"probes: {probes}; {len(self.probe_failures)} without an answer",
            f"errors lived through: {dict(self.errors)}",
            f"violations: {len(self.violations)}",
            *(f"  {text}" for text in self.violations[:40]),
        ]
        return "\n".join(lines)


class Actor:
    """A process of ours that is started anew when it dies; all its incarnations share one log."""

    def __init__(self, role: str, number: int, directory: Path, logs: Path, rng: random.Random) -> None:
        self.role = role
        self.path = logs / f"{role}-{number}.log"
        self._directory = directory
        self._rng = rng
        self._errors = logs / f"{role}-{number}.err"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "warren.tools.crash.actors", self.role, str(self._directory), str(self.path)]
        with open(self._errors, "ab") as errors:
            return subprocess.Popen(
                [*command, str(self._rng.getrandbits(32))], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )

    def kill(self) -> None:
        """kill -9, and start the next incarnation."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def failed(self) -> str | None:
        """What it printed when it died by itself, None while it lives."""
        if self.process.poll() is None:
            return None
        text = self._errors.read_text(errors="replace").strip()
        return f"a {self.role} ended with {self.process.returncode}: {text[-800:]}"

    def end(self, timeout: float) -> str | None:
        """SIGTERM and wait; the complaint when it does not end, or ends badly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"a {self.role} did not end within {timeout:g} s of SIGTERM"
        ended_early = -signal.SIGTERM  # it had not come to its signal handler yet
        return None if self.process.returncode in (0, ended_early) else self.failed()


class Node:
    """The processes of a node, as its superblock names them: what there is to kill."""

    def __init__(self, directory: Path) -> None:
        node_id = json.loads((directory / "node.json").read_text())["node_id"]
        self.node_id = int(node_id, 16) if isinstance(node_id, str) else int(node_id)
        self.superblock = Superblock.attach(self.node_id)
        self._deaths: dict[str, list[float]] = {}

    def processes(self, role: str) -> list[Identity]:
        """Those that are alive."""
        if role == "supervisor":
            found = [self.superblock.supervisor]
        elif role == "store":
            found = [self.superblock.server_identity(0)]
        else:
            found = [self.superblock.server_identity(n) for n in range(SERVER_WORKER_FIRST, self.superblock.servers_n)]
        return [identity for identity in found if identity.pid and identity.alive()]

    def all(self) -> list[Identity]:
        """Every process of the node that is alive."""
        return [identity for role in ("supervisor", "store", "worker") for identity in self.processes(role)]

    def may_die(self, role: str, pid_of: int) -> bool:
        """Whether the supervisor would restart it (nearly) at once."""
        if role == "supervisor":
            return True
        now = time.monotonic()
        name = f"{role}-{pid_of}"
        self._deaths[name] = [when for when in self._deaths.get(name, []) if now - when < SERVER_KILLS_WINDOW_S]
        return len(self._deaths[name]) < SERVER_KILLS

    def died(self, role: str, number: int) -> None:
        """Count a death; a new supervisor counts anew."""
        if role == "supervisor":
            self._deaths.clear()
        else:
            self._deaths.setdefault(f"{role}-{number}", []).append(time.monotonic())


class Campaign:
    """One node, its actors, and the hand that kills them."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = lambda _text: None) -> None:
        self.rng = random.Random(seed)
        self.say = say
        self.report = Report(seed)
        self.root = Path(tempfile.mkdtemp(prefix="warren-crash-", dir=folder))
        self.directory, self.logs = self.root / "node", self.root / "logs"
        self.logs.mkdir()
        self.hits = Log(str(self.logs / "hits.log"))
        self._before = _left_on_machine()
        self.actors: list[Actor] = []
        self._found: Node | None = None
        self._observer: warren.Node | None = None
        self.began = time.monotonic()

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, kills: int, seconds: float) -> Report:
        """Kill until `kills` have happened or `seconds` are over; drain, compare, clean up (but for a violation)."""
        try:
            observer = self._open()
            for name in [*QUEUES, *(PROBE_QUEUE.format(n) for n in range(2))]:
                observer.queue(name)
            self._storm(kills, seconds)
            observer = self._revive()
            self._drain(observer)
            self._compare(observer)
            observer.close()
            self._stop_node()
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

    def _open(self) -> warren.Node:
        self._observer = warren.open(self.directory, name="kill-observer", idle_exit=120.0, **SETTINGS)
        if self._found is not None:
            self._found.superblock.close()
        self._found = Node(self.directory)
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
        self._note("nothing is left of the node")
        self.report.node_deaths += 1
        self._observer.close()
        return self._open()

    def _storm(self, kills: int, seconds: float) -> None:
        self.actors = [
            Actor(role, number, self.directory, self.logs, self.rng)
            for role, count in (*ACTORS, ("probe", 1))
            for number in range(count)
        ]
        deadline = self.began + seconds
        self._wait_for_load(deadline)
        choices, weights = list(WEIGHTS), list(WEIGHTS.values())
        last_said = time.monotonic()
        while self.report.kills_n < kills and time.monotonic() < deadline:
            what, role = self.rng.choices(choices, weights)[0]
            self._revive()
            self._hit(self._node, what, role)
            time.sleep(self.rng.random() ** 2 * 0.3)
            for actor in self.actors:
                failed = actor.failed()
                if failed:
                    self.report.violations.append(failed)
                    actor.kill()
            if time.monotonic() - last_said > 5:
                last_said = time.monotonic()
                self.say(f"{self.report.kills_n} of {kills} kills")

    def _wait_for_load(self, deadline: float) -> None:
        """Until everybody has written something into his log: killing who has not begun shows nothing."""
        while time.monotonic() < deadline:
            if all(actor.path.exists() and actor.path.stat().st_size for actor in self.actors):
                return
            time.sleep(0.02)

    def _hit(self, node: Node, what: str, role: str) -> None:
        actors = [actor for actor in self.actors if actor.role == role]
        if actors:
            actor = self.rng.choice(actors)
            if what == "kill":
                actor.kill()
                self.report.kills[role] += 1
            else:
                self._stopped(Identity.of(actor.process.pid), role)
            return
        found = node.processes(role)
        if not found:
            return  # it is just being restarted
        identity = self.rng.choice(found)
        number = identity.pid if role != "worker" else self._server_of(node, identity)
        if what == "stop":
            self._stopped(identity, role)
        elif node.may_die(role, 0 if role == "store" else number) and _signal(identity, signal.SIGKILL):
            node.died(role, 0 if role == "store" else number)
            self.report.kills[role] += 1
            others = " ".join(str(other.pid) for other in node.all() if other != identity)
            self._note(f"killed {role} {identity.pid}; alive: {others}")

    @staticmethod
    def _server_of(node: Node, identity: Identity) -> int:
        servers = range(SERVER_WORKER_FIRST, node.superblock.servers_n)
        return next((n for n in servers if node.superblock.server_identity(n) == identity), 0)

    def _note(self, text: str) -> None:
        self.hits.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began:.3f} {text}")

    def _stopped(self, identity: Identity | None, role: str) -> None:
        if identity is None or not _signal(identity, signal.SIGSTOP):
            return
        try:
            self.report.stops[role] += 1
            time.sleep(self.rng.random() * STOPPED_S_MAX)
        finally:
            _signal(identity, signal.SIGCONT)

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, node: warren.Node) -> None:
        """End the actors, consumers last, and take what is left."""
        for role in ("producer", "storer", "probe", "consumer"):
            for actor in self.actors:
                if actor.role == role:
                    complaint = actor.end(30.0)
                    if complaint:
                        self.report.violations.append(complaint)
        log = Log(str(self.logs / "drain.log"))
        deadline = time.monotonic() + DRAIN_S
        for name in QUEUES:
            queue = node.queue(name)
            while True:
                messages = queue.get_many(500, timeout=0.2)
                if messages:
                    log_received(log, messages)
                    queue.ack(messages)
                    continue
                stats = queue.stats()
                if not stats["ready"] and not stats["unacked"]:
                    break
                if time.monotonic() > deadline:
                    self.report.violations.append(f"queue {name} does not drain: {stats}")
                    break
                time.sleep(0.02)  # what dead consumers held is on its way back
        log.close()

    def _entries(self, role: str) -> Iterator[list[str]]:
        for path in sorted(self.logs.glob(f"{role}*.log")):
            for line in path.read_text(errors="replace").split("\n")[:-1]:
                yield line.split(" ")

    def _compare(self, node: warren.Node) -> None:
        report = self.report
        confirmed = {entry[1] for entry in self._entries("producer") if entry[0] == "c"}
        announced = {entry[1] for entry in self._entries("producer") if entry[0] == "i"}
        first: Counter[str] = Counter()
        received: Counter[str] = Counter()
        for role in ("consumer", "drain"):
            for entry in self._entries(role):
                if entry[0] == "r":
                    received[entry[1]] += 1
                    first[entry[1]] += entry[2] == "0"
                elif entry[0] == "b":
                    report.violations.append("wrong bytes: " + " ".join(entry[1:]))
        report.confirmed, report.received = len(confirmed), received.total()
        report.redelivered = report.received - first.total()
        report.unconfirmed_received = len(set(received) - confirmed)
        lost = sorted(confirmed - set(received))
        report.violations += [f"lost: {key} was confirmed and never received" for key in lost]
        report.violations += [f"doubled: {key} came {n} times without the mark" for key, n in first.items() if n > 1]
        report.violations += [f"invented: {key} was received and never put" for key in set(received) - announced]
        self._compare_store(node.store())
        self._compare_probes()
        for role in ("producer", "consumer", "storer", "probe"):
            report.errors.update(entry[1].rstrip(":") for entry in self._entries(role) if entry[0] == "e")

    def _compare_store(self, store: warren.Store) -> None:
        report = self.report
        by_kind: dict[str, set[str]] = {kind: set() for kind in "icxd"}
        for entry in self._entries("storer"):
            if entry[0] == "b":
                report.violations.append("store: " + " ".join(entry[1:]))
            elif entry[0] in by_kind:
                by_kind[entry[0]].add(entry[1])
        report.stored, report.removed = len(by_kind["c"]), len(by_kind["d"])
        for id in sorted(by_kind["c"] - by_kind["x"]):
            body = store.read(bytes.fromhex(id))
            if body != body_of(id):
                what = "is gone" if body is None else "reads wrong"
                report.violations.append(f"store: {id} was confirmed, never removed, and {what}")
        for id in sorted(by_kind["d"]):
            if store.contains(bytes.fromhex(id)):
                report.violations.append(f"store: {id} was removed and is there again")

    def _compare_probes(self) -> None:
        report = self.report
        times: dict[str, list[float]] = {}
        for entry in self._entries("probe"):
            if entry[0] == "p":
                times.setdefault(entry[1], []).append(int(entry[2]) / 1000)
            elif entry[0] == "f":
                report.probe_failures.append(" ".join(entry[1:]))
                if int(entry[2]) > HANG_S * 1e6:
                    report.violations.append("hang: " + " ".join(entry[1:]))
        for kind, values in times.items():
            p50, p99 = np.percentile(values, [50, 99])
            slow = sum(value > 1000 for value in values)
            report.probes[kind] = {
                "n": len(values), "p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(values), "over_1s": slow,
            }  # fmt: skip
            if max(values) > HANG_S * 1000:
                report.violations.append(f"hang: a probe of the {kind} took {max(values) / 1000:.1f} s")

    def _stop_node(self) -> None:
        for identity in self._node.processes("supervisor"):
            _signal(identity, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while self._node.all() and time.monotonic() < deadline:
            time.sleep(0.02)
        for identity in self._node.all():
            self.report.violations.append(f"process {identity.pid} of the node did not end within 30 s of SIGTERM")

    def _end_all(self) -> None:
        for actor in self.actors:
            if actor.process.poll() is None:
                actor.process.kill()
                actor.process.wait()
        for process in _processes_of(self.directory):
            process.kill()
            process.wait(10)
        if self._observer is not None:
            self._observer.close()
        if self._found is not None:
            self._found.superblock.close()

    def _look_for_leaks(self) -> None:
        node = f"warren-{self._node.node_id:012x}"
        deadline = time.monotonic() + 5
        while True:
            left = [f"shared memory {name}" for name in _names_in("/dev/shm", node)]
            left += [f"message queue {name}" for name in _names_in("/dev/mqueue", node)]
            left += [f"System V {what}" for what in sorted(_left_on_machine() - self._before)]
            left += [f"process {process.pid}" for process in _processes_of(self.directory)]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.report.violations += [f"left behind: {what}" for what in left]


def _signal(identity: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone."""
    pidfd = identity.open_pidfd()
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _names_in(folder: str, part: str) -> list[str]:
    return [name for name in os.listdir(folder) if part in name] if os.path.isdir(folder) else []


def _left_on_machine() -> set[str]:
    """System V segments that nobody is attached to: "segment 7"."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {f"segment {row[1]}" for row in rows if row[6] == "0"}


def _processes_of(directory: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(directory) in (process.info["cmdline"] or []) and process.pid != os.getpid()
    ]
