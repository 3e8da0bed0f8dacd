"""`python -m warren.tools.soak [DIR] --minutes N`: a node under changing load for long, and what grows meanwhile.

Every cycle goes through the same phases: steady, burst, backlog (nobody consumes), drain, churn (clients and queues
come and go), idle. One producer and one consumer process for each queue: small, middle and large bodies, durable, and
transient ones. Each consumer checks that every message comes once and in order. Beside them topics: one with a
retention and a group, a compacted one, half messages (soak_topics.py, which judges them while the run goes on).

Every few seconds memory (PSS of all; the private part by role), descriptors, threads, bytes and files on disk, shared
memory and System V segments are read. A leak shows at rest: one point of each cycle, the last sample of its idle phase
with empty queues, counts. Before the first cycle every worker's journals are filled once around, so that memory which
is touched for the first time is not taken for a leak. After a warm-up a line is put through these points (Theil and
Sen: the median of all slopes, so a single outlier does nothing); what rises by more than its allowance, by the line and
between the first and the last third, grows.

Exit code: 0 nothing grows, 1 something does, or a message was lost, doubled or out of order, or a topic did not keep
what it promises, 2 wrong options. SIGINT and SIGTERM end the run early, with its report.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Column, Table

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.ipc import names
from warren.tools import soak_topics
from warren.tools.bench.harness import real_folder
from warren.tools.crash.logs import shared_id_of
from warren.tools.soak_clock import CALL_TIMEOUT_S, END_TIMEOUT_S, HEAD, Clock, paced, told_to_stop
from warren.workers.process import interpreter

MIB = 1 << 20
POINTS_MIN = 4
FILL_BODY, FILL_BATCH = 3000, 256
FILL_TRIES = 64  #: queues that are declared for each worker at most, until each has one
TOLD_MAX = 20  #: messages out of order that a consumer tells about


@dataclass(frozen=True)
class Flow:
    """One queue, and how many messages a second it gets in a phase."""

    queue: str
    size: int
    durable: bool
    rates: dict[str, float]


FLOWS = (
    Flow("soak-small", 100, True, {"steady": 2000, "burst": 100_000, "backlog": 20_000, "churn": 200}),
    Flow("soak-middle", 1500, True, {"steady": 500, "burst": 10_000, "backlog": 3000}),
    Flow("soak-large", 20_000, True, {"steady": 100, "burst": 1000, "backlog": 300, "churn": 20}),
    Flow("soak-transient", 200, False, {"steady": 1000, "burst": 50_000, "backlog": 5000}),
)


# ---- producers and consumers ----------------------------------------------------------------------------------------


def _producer(directory: str, flow: Flow, clock: Clock, scale: float) -> dict[str, int]:
    """Publish as the phases want until SIGTERM, then say how much that was."""
    told = told_to_stop()
    incarnation, number = os.getpid(), 0
    filler = bytes(max(0, flow.size - HEAD.size))
    with warren.attach(directory, name=f"{flow.queue}-producer") as node:
        queue = node.queue(flow.queue, durable=flow.durable)
        for count in paced(clock, flow.rates, scale, told):
            if count:
                bodies = [HEAD.pack(incarnation, number + n) + filler for n in range(count)]
                queue.put_many(bodies, timeout=CALL_TIMEOUT_S)
                number += count
    return {"published": number}


def _tell(flow: Flow, messages: Sequence[warren.Message], wrong: warren.Message, expected: int) -> None:
    """What came around a message that should not have come now, for whoever has to find out why."""
    at = messages.index(wrong)
    around = [
        f"{message.delivery_tag}: number {HEAD.unpack_from(message.body)[1]}, {len(message.body)} bytes, "
        f"delivery {message.delivery_count}{', redelivered' if message.redelivered else ''}"
        for message in messages[max(0, at - 3) : at + 4]
    ]
    threads = ", ".join(thread.name for thread in threading.enumerate())
    print(
        f"warren.tools.soak: {flow.queue}: expected {expected} at place {at} of {len(messages)}; {'; '.join(around)}; "
        f"threads {threads}",
        file=sys.stderr,
        flush=True,
    )


def _consumer(directory: str, flow: Flow, clock: Clock) -> dict[str, int]:
    """Take and check but in the backlog phase, until SIGTERM; then take what is left."""
    told = told_to_stop()
    received = wrong = 0
    following: dict[int, int] = {}
    with warren.attach(directory, name=f"{flow.queue}-consumer") as node:
        queue = node.queue(flow.queue, durable=flow.durable)
        while True:
            if clock.phase(time.monotonic()) == "backlog" and not told:
                queue.release()
                time.sleep(0.05)
                continue
            try:
                messages = queue.get_many(1000, timeout=0.2)
            except warren.TimedOut:  # the worker got no processor: that is no defect of a soak on a busy machine
                continue
            for message in messages:
                producer, number = HEAD.unpack_from(message.body)
                if number != following.get(producer, 0) or len(message.body) != flow.size:
                    wrong += 1
                    if wrong <= TOLD_MAX:
                        _tell(flow, messages, message, following.get(producer, 0))
                following[producer] = number + 1
            received += len(messages)
            if messages:
                messages[-1].ack(multiple=True)
            elif told:
                break
    return {"received": received, "wrong": wrong}


def _role(options: argparse.Namespace) -> int:
    clock = Clock(options.start, options.cycle)
    if options.role in soak_topics.ROLES:
        print(json.dumps(soak_topics.play(options.role, options.flow, options.dir, clock, options.rate)), flush=True)
        return 0
    flow = next(flow for flow in FLOWS if flow.queue == options.flow)
    found = (
        _producer(options.dir, flow, clock, options.rate)
        if options.role == "producer"
        else _consumer(options.dir, flow, clock)
    )
    print(json.dumps(found), flush=True)
    return 0


# ---- samples --------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """What was there at one moment."""

    at: float
    phase: str
    cycle: int
    depth: int
    values: dict[str, float]


def disk_of(directory: Path) -> tuple[int, int]:
    """(bytes that the files take, files) below a directory that changes meanwhile."""
    taken = files = 0
    for folder, _folders, members in os.walk(directory):
        for name in members:
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                taken += os.lstat(os.path.join(folder, name)).st_blocks * 512
                files += 1
    return taken, files


def _processes(pairs: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Memory, descriptors and threads of processes, in sum; private memory by role, too."""
    values: dict[str, float] = {"pss": 0.0, "descriptors": 0.0, "threads": 0.0}
    for role, pid in pairs:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory = process.memory_full_info()
                descriptors, threads = process.num_fds(), process.num_threads()
        except psutil.NoSuchProcess:
            continue
        values["pss"] += memory.pss
        values[f"private {role}"] = values.get(f"private {role}", 0.0) + memory.uss
        values["descriptors"] += descriptors
        values["threads"] += threads
    return values


def _shared_memory(prefix: str) -> tuple[int, int]:
    """(bytes, names) of POSIX shared memory of a node."""
    taken = count = 0
    for name in os.listdir("/dev/shm"):
        if name.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):
                taken += os.lstat(f"/dev/shm/{name}").st_blocks * 512
                count += 1
    return taken, count


def _system_v(pids: set[int]) -> int:
    """System V segments that one of these processes made."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return sum(int(row.split()[4]) in pids for row in rows)


#: allowance of what is measured at rest: so much, or such a share of it
ALLOWED: dict[str, tuple[float, float]] = {
    "pss": (8 * MIB, 0.05),
    "descriptors": (4, 0.0),
    "threads": (1, 0.0),
    "disk bytes": (64 * MIB, 0.1),
    "disk files": (16, 0.1),
    "shared memory bytes": (4 * MIB, 0.02),
    "shared memory names": (0.5, 0.0),
    "System V segments": (0.5, 0.0),
}
ALLOWED_OF_ROLE = (6 * MIB, 0.06)


@dataclass(frozen=True)
class Trend:
    """How one value went from cycle to cycle."""

    name: str
    points: int
    first: float
    last: float
    lowest: float
    highest: float
    per_hour: float
    rise: float
    allowed: float

    @property
    def grows(self) -> bool:
        return self.rise > self.allowed and self.last - self.first > self.allowed


def trend(name: str, points: Sequence[tuple[float, float]], allowed: tuple[float, float]) -> Trend:
    """The line through (seconds, value); `first` and `last` are medians of the first and the last third."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if b[0] > a[0]]
    slope = statistics.median(slopes) if slopes else 0.0
    values = [value for _at, value in points]
    third = max(1, len(values) // 3)
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    rise = slope * (points[-1][0] - points[0][0])
    most = max(allowed[0], allowed[1] * first)
    return Trend(name, len(points), first, last, min(values), max(values), slope * 3600, rise, most)


def at_rest(samples: Sequence[Sample], warm_up: int) -> list[Sample]:
    """The last sample of each idle phase after the warm-up in which nothing was left in a queue."""
    found: dict[int, Sample] = {}
    for sample in samples:
        if sample.phase == "idle" and not sample.depth and sample.cycle >= warm_up:
            found[sample.cycle] = sample
    return list(found.values())


def trends(samples: Sequence[Sample], warm_up: int) -> list[Trend]:
    """How everything went that was measured; empty when there are too few points."""
    rest = at_rest(samples, warm_up)
    if len(rest) < POINTS_MIN:
        return []
    return [
        trend(name, [(sample.at, sample.values[name]) for sample in rest], ALLOWED.get(name, ALLOWED_OF_ROLE))
        for name in rest[0].values
        if all(name in sample.values for sample in rest)
    ]


# ---- before the run ----


def fill_images(node: warren.Node, settings: Settings) -> None:
    """Send so much through a queue of every worker, durable and not, that each image of its journals was full once."""
    size = min(FILL_BODY, settings.embed_bytes_max - 1)
    if size < 1:
        return  # journals without bodies: they are full after very many messages only
    bodies = [bytes(size)] * FILL_BATCH
    batches = (settings.images_n + 1) * settings.file_bytes // (size * FILL_BATCH) + 1
    for durable in (True, False):
        done: set[int] = set()
        for number in range(FILL_TRIES * settings.workers):
            if len(done) == settings.workers:
                break
            queue = node.queue(f"soak-fill-{number}", durable=durable)
            rows = node.status()["queues"]
            worker = next(row["worker"] for row in rows if row["name"] == queue.name)
            if worker not in done:
                done.add(worker)
                for _ in range(batches):
                    queue.put_many(bodies, timeout=CALL_TIMEOUT_S)
                    queue.ack(queue.get_many(FILL_BATCH, timeout=CALL_TIMEOUT_S))
            queue.delete()


# ---- the run --------------------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """One run."""

    directory: Path
    clock: Clock
    sample_s: float
    rate: float
    stopping: bool = False
    samples: list[Sample] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    churned: int = 0
    _actors: list[tuple[str, subprocess.Popen[str]]] = field(default_factory=list)
    _made: set[int] = field(default_factory=set)
    _topics: soak_topics.Judge | None = None

    def run(self, node: warren.Node, seconds: float) -> None:
        """Load the node for so long, or until `stopping`."""
        queues = [node.queue(flow.queue, durable=flow.durable) for flow in FLOWS]
        self._made.add(os.getpid())
        settings = NodeDirectory(self.directory).read().settings
        fill_images(node, settings)
        self._topics = soak_topics.Judge(node, settings.topics_disk_forced)
        self.clock = Clock(time.monotonic() + 1.0, self.clock.cycle_s)
        try:
            actors = [(role, flow.queue) for flow in FLOWS for role in ("consumer", "producer")]
            for role, name in (*actors, *soak_topics.ACTORS):
                self._actors.append((role, self._start(role, name)))
            for role, process in self._actors:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    self.complaints.append(f"a {role} did not start")
            print(
                f"warren.tools.soak: {len(self._actors)} processes load {self.directory}", file=sys.stderr, flush=True
            )
            following = time.monotonic()
            deadline = following + seconds
            while (now := time.monotonic()) < deadline and not self.stopping and not self.complaints:
                if self.clock.phase(now) == "churn":
                    self._churn()
                if now >= following:
                    following = max(following + self.sample_s, now)
                    self._sample(node, queues)
                for role, process in self._actors:
                    if process.poll() is not None:
                        self.complaints.append(f"a {role} ended by itself with {process.returncode}")
                time.sleep(0.05)
        finally:
            self._end()

    def _start(self, role: str, name: str) -> subprocess.Popen[str]:
        command = interpreter.command("warren.tools.soak", str(self.directory), "--role", role, "--flow", name)
        command += ["--start", repr(self.clock.start), "--cycle", str(self.clock.cycle_s), "--rate", str(self.rate)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=interpreter.environment()
        )
        self._made.add(process.pid)
        return process

    def _churn(self) -> None:
        """A client comes, makes a queue, uses it, deletes it, and goes; now and then it does so with a topic."""
        self.churned += 1
        with warren.attach(self.directory, name="soak-churn") as client:
            queue = client.queue(f"soak-churn-{self.churned % 7}", durable=self.churned % 2 == 0)
            bodies = [os.urandom(100), os.urandom(9000)]
            queue.put_many(bodies, timeout=CALL_TIMEOUT_S)
            for body in bodies:
                message = queue.get(CALL_TIMEOUT_S)
                if message.body != body:
                    self.complaints.append("churn: a message came out of order")
                message.ack()
            queue.delete()
            if self.churned % 5 == 0:
                topic = client.topic("soak-churn-topic", queues=2, compacted=self.churned % 2 == 0)
                position = topic.append(bodies[0], key="key", timeout=CALL_TIMEOUT_S)
                answer = topic.read(position.queue, position.offset, timeout=CALL_TIMEOUT_S)
                if [record.body for record in answer.records] != bodies[:1]:
                    self.complaints.append("churn: a message of a topic is not there")
                topic.delete()

    def _sample(self, node: warren.Node, queues: Sequence[warren.Queue]) -> None:
        now = time.monotonic()
        processes = [(str(item["role"]), int(item["pid"])) for item in node.status()["processes"] if item["pid"]]
        clients = [("clients", process.pid) for _role, process in self._actors]
        values = _processes([*processes, *clients, ("soak", os.getpid())])
        values["disk bytes"], values["disk files"] = map(float, disk_of(self.directory))
        shared = _shared_memory(names.node_prefix(shared_id_of(self.directory)).lstrip("/"))
        values["shared memory bytes"], values["shared memory names"] = map(float, shared)
        values["System V segments"] = float(_system_v(self._made | {pid for _role, pid in processes}))
        if self._topics is not None:
            self.complaints += self._topics.look(node, self.directory)
        depth = 0
        for queue in queues:
            stats = queue.stats()
            depth += stats["ready"] + stats["unacked"]
        self.samples.append(Sample(now - self.clock.start, self.clock.phase(now), self.clock.cycle(now), depth, values))

    def _end(self) -> None:
        """Producers first, then the consumers, who take what is left; add up what they say."""
        for kind in ("producer", "consumer", *soak_topics.ROLES):
            for role, process in self._actors:
                if role == kind and process.poll() is None:
                    process.terminate()
            for role, process in self._actors:
                if role != kind:
                    continue
                try:
                    said, _nothing = process.communicate(timeout=END_TIMEOUT_S)
                    found = json.loads(said or "{}")
                    if self._topics is not None:
                        self.complaints += self._topics.take(found)
                    for name, number in found.items():
                        self.totals[name] = self.totals.get(name, 0) + int(number)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    self.complaints.append(f"a {role} did not end within {END_TIMEOUT_S:.0f} s of SIGTERM")
        lost = self.totals.get("published", 0) - self.totals.get("received", 0)
        if lost:
            self.complaints.append(f"{lost:,} messages that were confirmed did not come")
        if self._topics is not None and not self.complaints:
            self.complaints += self._topics.end()
        if self.totals.get("wrong"):
            self.complaints.append(f"{self.totals['wrong']:,} messages came twice, out of order or with another length")


def _report(soak: Soak, found: Sequence[Trend], warm_up: int) -> dict[str, Any]:
    grows = [item.name for item in found if item.grows]
    return {
        "seconds": round(soak.samples[-1].at, 1) if soak.samples else 0.0,
        "cycle_s": soak.clock.cycle_s,
        "warm_up_cycles": warm_up,
        "samples": len(soak.samples),
        "points": len(at_rest(soak.samples, warm_up)),
        **soak.totals,
        "churned": soak.churned,
        "depth_max": max((sample.depth for sample in soak.samples), default=0),
        "trends": [{**item.__dict__, "grows": item.grows} for item in found],
        "grows": grows,
        "complaints": soak.complaints,
    }


def _number(name: str, value: float) -> str:
    memory = name == "pss" or name.startswith("private") or name.endswith("bytes")
    return f"{value / MIB:,.1f} MiB" if memory else f"{value:,.1f}"


def _table(found: Sequence[Trend]) -> Table:
    titles = ("at rest", "first third", "last third", "lowest", "highest", "per hour", "rise", "allowed", "")
    table = Table(*(Column(title, no_wrap=True, justify="left" if title == "at rest" else "right") for title in titles))
    for item in found:
        cells = [item.first, item.last, item.lowest, item.highest, item.per_hour, item.rise, item.allowed]
        table.add_row(
            item.name, *(_number(item.name, cell) for cell in cells), "[red]grows[/red]" if item.grows else "flat"
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warren.tools.soak", description="Load a node for long, and see what grows.")
    parser.add_argument("dir", nargs="?", help="directory of the node; made, and kept (a temporary one)")
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (60)")
    parser.add_argument("--cycle", type=float, default=30.0, metavar="SECONDS", help="length of a cycle of phases (30)")
    parser.add_argument("--sample", type=float, default=2.0, metavar="SECONDS", help="time between two samples (2)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="CYCLES", help="cycles that do not count (3)")
    parser.add_argument("--rate", type=float, default=1.0, metavar="FACTOR", help="times the rates of the phases (1)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the node")
    parser.add_argument("--json", action="store_true", help="the report as JSON, samples too")
    roles = ("producer", "consumer", *soak_topics.ROLES)
    parser.add_argument("--role", choices=roles, help=argparse.SUPPRESS)
    parser.add_argument("--flow", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=float, help=argparse.SUPPRESS)
    return parser


@contextlib.contextmanager
def _directory(wanted: str | None) -> Iterator[Path]:
    if wanted is not None:
        yield Path(wanted).resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="warren-soak-", dir=real_folder(None)))
    try:
        yield folder / "node"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stop_node(node: warren.Node) -> None:
    """End the node that this run started, and wait for it."""
    pids = [int(item["pid"]) for item in node.status()["processes"] if item["role"] == "supervisor"]
    supervisors = [psutil.Process(pid) for pid in pids]
    node.close()
    for process in supervisors:
        process.terminate()
    psutil.wait_procs(supervisors, timeout=60)


def main(argv: list[str] | None = None) -> int:
    """Run it; see the module's text for the exit code."""
    options = _parser().parse_args(argv)
    if options.role:
        return _role(options)
    if min(options.minutes, options.cycle, options.sample, options.rate) <= 0 or options.warm_up < 0:
        print("warren.tools.soak: minutes, cycle, sample and rate must be positive", file=sys.stderr)
        return 2
    settings: dict[str, Any] = {}
    for text in options.set:
        name, _, value = text.partition("=")
        settings[name] = float(value) if "." in value else int(value)
    with _directory(options.dir) as directory:
        if not directory.exists():
            settings = soak_topics.SETTINGS | settings
        try:
            warren.attach(directory, timeout=0.5).close()
            ours = False
        except warren.Error:
            ours = True
        node = warren.open(directory, name="soak", idle_exit=60.0, **settings)
        soak = Soak(directory, Clock(time.monotonic() + 1.0, options.cycle), options.sample, options.rate)

        def stop(_number: int, _frame: object) -> None:
            soak.stopping = True

        old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            soak.run(node, options.minutes * 60)
            for flow in FLOWS:
                node.delete_queue(flow.queue)
            for name in (soak_topics.LOG, soak_topics.TABLE, soak_topics.HALVES):
                node.topic(name).delete()
        finally:
            if ours:
                _stop_node(node)
            else:
                node.close()
            for number, handler in old.items():
                signal.signal(number, handler)
    found = trends(soak.samples, options.warm_up)
    report = _report(soak, found, options.warm_up)
    if options.json:
        print(json.dumps({**report, "all_samples": [sample.__dict__ for sample in soak.samples]}))
    else:
        console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
        console.print(
            f"{report['seconds']:.0f} s, {report.get('published', 0):,} published, {report.get('received', 0):,} "
            f"received, at most {report['depth_max']:,} in the queues, {soak.churned:,} clients came and went; "
            f"{report['points']} points at rest; topics: {report.get('appended', 0):,} appended, "
            f"{report.get('read', 0):,} read by the group, {report.get('gone', 0):,} removed before, "
            f"{report.get('updates', 0):,} updates of keys, {report.get('looks', 0):,} looks at all of them, "
            f"{report.get('halves', 0):,} half messages, {report.get('answered', 0):,} answered for"
        )
        console.print(_table(found) if found else "too few points at rest for a line: run it for more cycles")
        for text in soak.complaints:
            console.print(f"[red]{text}[/red]")
    return 1 if report["grows"] or soak.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
