"""`python -m warren.tools.crash spark --kills N --seed S`: Spark drivers, executors, their workers and the node are
killed, and the node is stopped and started, while a stream writes into topics with delivery=transactional; in the end
each number is there once.

    driver      kill -9 of the JVM, which in local mode is the executor, too; a new driver goes on with its checkpoint
    front       kill -9 of the Python process in front of it: the JVM ends by itself
    executor    kill -9 of an executor's JVM (with --master local-cluster[…] or standalone)
    worker      kill -9 of a Python process of Spark's: a task's, one that plans, or the one that commits
    topics      kill -9 of the topic worker of the node
    queues      kill -9 of a queue worker of the node
    restart     the node is stopped in good order, and started anew a moment later

`--source` topic or queue copies one of the node (spark_numbers.py); a topic with `--scan` python, native, or by turns.
`--master standalone` starts a cluster of this host, a master and two workers, and ends it (spark_processes.py). The
stream outlives all but the deaths of its driver, its planner and its committer: then it is started again with its
checkpoint.

`… crash sink` does the same with a driver that is no Spark, and is quick to begin (sink_driver.py).

A blow falls at a random instant after the sink's state moved. Judged is what readers see: both topics together have
each number that the committed batches had, once, and as it was; nothing is pending or staged. In between that no number
is there twice. And what the node says: slots of the dead are given back, `warren check` finds no problem.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.tools.bench.harness import real_folder
from warren.tools.crash.spark_numbers import SOURCE, FromQueue, FromTopic, Rate
from warren.tools.crash.spark_processes import (
    EXECUTOR,
    Driver,
    Standalone,
    jvms,
    living,
    python_workers,
    write_python,
)
from warren.workers.cli.check import verify
from warren.workers.faces.transactions import sink_of
from warren.workers.process.control import ControlClient
from warren.workers.spark.session import remove_cluster_work

SINK = "campaign"
TOPICS = ("even", "odd")
KINDS = ("driver", "front", "worker", "topics", "restart")
KINDS_OF_SINK = ("driver", "topics", "restart")
WEIGHTS = {"driver": 5, "front": 1, "worker": 3, "topics": 1, "restart": 1, "executor": 3, "queues": 1}
SERVERS = {"topics": "topic_worker", "queues": "queue_worker"}
SOURCES: dict[str, type[FromTopic | FromQueue] | None] = {"rate": None, "topic": FromTopic, "queue": FromQueue}
SCANS = ("auto", "python", "native", "turns")
STANDALONE = "standalone"
#: how long anything may take before it is a violation
STALLS_S = 240.0
LOOK_S = 0.02
#: how long a node is away at most that is stopped in good order
AWAY_S_MAX = 6.0
#: after so many blows it is judged whether anything is doubled; at the end all is
JUDGED = 10


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)  #: what the killed Python processes did
    queries_ended: int = 0
    batches: int = 0
    messages: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        hit = ", ".join(f"{count} {what}" for what, count in sorted(self.hit.items()))
        lines = [
            f"seed {self.seed}: {self.kills.total()} blows ({kills}) in {self.seconds:.0f} s; killed: {hit or 'none'}",
            f"{self.batches:,} batches, {self.messages:,} messages, {self.queries_ended} times a query began again",
            *(self.violations or ["0 lost, 0 doubled"]),
        ]
        return "\n".join(lines)


class SparkCampaign:
    """One run; `say` is told what happens."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        say: Callable[[str], None],
        kinds: tuple[str, ...] = KINDS,
        rows: int = 300,
        master: str = "local[2,3]",
        spark: bool = True,
        source: str = "rate",
        scan: str = "auto",
        weights: Mapping[str, float] = WEIGHTS,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._kinds = kinds
        self._weights = [weights[kind] for kind in kinds]
        self._rows = rows
        self._master = master
        self._source = source
        self._scan = scan
        self._cluster: Standalone | None = None
        self.report = Report(seed)
        self.stopping = False
        self._began = 0.0

    def run(self, kills: int, seconds: float) -> Report:
        """Kill so often, or for so long; then let it end, and judge."""
        began = self._began = time.monotonic()
        base = Path(tempfile.mkdtemp(prefix="warren-spark-", dir=self._folder))
        # Spark makes sockets there, whose paths may have 107 bytes, however long that of the folder is.
        self._scratch = Path(tempfile.mkdtemp(prefix="warren-spark-"))
        try:
            self._run(base, kills, began + seconds)
        finally:
            for place in (base, self._scratch):
                shutil.rmtree(place, ignore_errors=True)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _run(self, base: Path, kills: int, until: float) -> None:
        self._base, self._work, self._data = base, base / "work", base / "data"
        self._work.mkdir()
        self._log = base / "driver.log"
        write_python(base / "python")
        with warren.open(self._data, name="campaign", idle_exit=600.0) as node:
            for name in TOPICS:
                node.topic(name, queues=2)
        try:
            source = SOURCES[self._source]
            self._numbers_of = Rate(self._rows) if source is None else source(self._data, self._rows)
            self._numbers_of.keep_ahead(self._work)
            with contextlib.ExitStack() as things:
                if self._master == STANDALONE:
                    self._cluster = things.enter_context(Standalone(base / "cluster"))
                self._drive(kills, until)
        finally:
            self._end_node()
            for list_of in base.glob("*/applications"):  # what drivers that were killed have left
                for application in list_of.read_text().splitlines():
                    remove_cluster_work(application)
        if not self.report.violations:
            self._judge_files()

    def _drive(self, kills: int, until: float) -> None:
        if self._spark:
            self._warm()
        driver = self._start(self._work)
        try:
            while self.report.kills.total() < kills and time.monotonic() < until and not self.stopping:
                if not self._moved(driver):
                    return
                driver = self._blow(driver)
                if self.report.kills.total() % JUDGED == 0:
                    self._judge(ended=False)
                if self.report.violations:
                    return
            if not self._moved(driver):
                return
            (self._work / "stop").touch()
            code = driver.process.wait(timeout=STALLS_S)
            if code != 0:
                self._violation(f"the last driver ended with {code}", driver)
            else:
                self._judge(ended=True)
        except subprocess.TimeoutExpired:
            self._violation("the last driver did not end", driver)
        finally:
            driver.end()
            self.report.queries_ended = self._log.read_text(errors="replace").count("query ended:")

    def _task(self, work: Path, source: str) -> dict[str, Any]:
        return {
            "path": str(self._data),
            "work": str(work),
            "topics": TOPICS,
            "rows": self._rows,
            "master": self._cluster.url if self._cluster is not None else self._master,
            "archive": str(self._base / "warm.jsa"),
            "scratch": str(self._scratch),
            "source": source,
            "name": SOURCE,
            "scan": self._scan,
        }

    def _start(self, work: Path, source: str = "") -> Driver:
        work.mkdir(exist_ok=True)
        module = "spark_driver" if self._spark else "sink_driver"
        return Driver(
            f"warren.tools.crash.{module}", self._task(work, source or self._source), self._log, self._base / "python"
        )

    def _sessions(self, driver: Driver) -> set[int]:
        """In which the processes of Spark are."""
        return {driver.session} | (self._cluster.sessions if self._cluster is not None else set())

    def _warm(self) -> None:
        """A first life that ends in good order leaves an archive of Java's classes: others begin in half the time."""
        warm = self._base / "warm"
        driver = self._start(warm, "rate")  # it takes nothing from what is counted
        try:
            if not self._moved(driver):
                raise RuntimeError(f"the first driver did nothing: {self._log.read_text(errors='replace')[-2000:]}")
            (warm / "stop").touch()
            driver.process.wait(timeout=STALLS_S)
        finally:
            driver.end()
        sink_of(self._data, SINK, STALLS_S).forget()
        with warren.attach(self._data) as node:
            for name in TOPICS:
                node.topic(name).delete()
                node.topic(name, queues=2)

    # -- blows --------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        """Of the last transaction."""
        state = sink_of(self._data, SINK, 10.0).load()
        return state.number if state is not None else 0

    def _moved(self, driver: Driver) -> bool:
        """Wait for one or two more transactions; false: they do not come, which is a violation."""
        self._numbers_of.keep_ahead(self._work)
        first, deadline = self._number() + self._rng.randrange(2), time.monotonic() + STALLS_S
        while self._number() <= first:
            if driver.process.poll() is not None or time.monotonic() > deadline:
                self._violation("the sink stood still", driver)
                return False
            if self._cluster is not None and self._cluster.dead():
                self._violation(f"processes of the cluster have ended: {self._cluster.dead()}", driver)
                return False
            time.sleep(LOOK_S)
        return True

    def _blow(self, driver: Driver) -> Driver:
        """One blow at a random instant; returns the driver that goes on."""
        kind = self._rng.choices(self._kinds, self._weights)[0]
        time.sleep(self._rng.random() ** 2 * (1.5 if self._spark else 0.3))
        if kind in ("driver", "front"):
            with contextlib.suppress(psutil.Error):
                if kind == "front" or not self._spark:
                    driver.process.kill()
                for jvm in jvms({driver.session}, "SparkSubmit") if kind == "driver" and self._spark else ():
                    jvm.kill()
            self._count(kind)
            # The JVM and Python processes of before may live on for a while beside the next driver, as they do.
            old, driver = driver, self._start(self._work)
            psutil.wait_procs(living({old.session}), timeout=self._rng.random() * 4)
            old.end()
        elif kind in ("worker", "executor"):
            self._kill_one(driver, kind)
        elif kind in SERVERS:
            with warren.attach(self._data) as node:
                servers = [each["pid"] for each in node.status()["processes"] if each["role"] == SERVERS[kind]]
            if there := [pid for pid in servers if pid]:
                os.kill(self._rng.choice(there), signal.SIGKILL)
                self._count(kind)
        else:
            with ControlClient(self._data) as control:
                control.call("stop")
            time.sleep(self._rng.random() ** 2 * AWAY_S_MAX)
            self._open_again()
            self._count(kind)
        return driver

    def _kill_one(self, driver: Driver, kind: str) -> None:
        """A Python process of Spark's, of whatever purpose there is one just now; or an executor."""
        sessions = self._sessions(driver)
        found = (
            python_workers(sessions) if kind == "worker" else [("executor", each) for each in jvms(sessions, EXECUTOR)]
        )
        if not found:
            return
        what = self._rng.choice(sorted({purpose for purpose, _process in found}))
        _purpose, chosen = self._rng.choice([each for each in found if each[0] == what])
        with contextlib.suppress(psutil.Error):
            chosen.kill()
            self.report.hit[what] += 1
            self._count(kind)

    def _open_again(self) -> None:
        deadline = time.monotonic() + STALLS_S
        while True:
            try:
                warren.open(self._data, name="campaign", idle_exit=600.0).close()
            except Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _end_node(self) -> None:
        with contextlib.suppress(Error, OSError), ControlClient(self._data) as control:
            control.call("stop")
        deadline = time.monotonic() + STALLS_S
        while NodeDirectory(self._data).locked() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _count(self, kind: str) -> None:
        self.report.kills[kind] += 1
        now = time.monotonic() - self._began
        self._say(f"{self.report.kills.total()}: {kind}, after transaction {self._number()}, at {now:.0f} s")

    # -- the judge ----------------------------------------------------------------------------------------------

    def _numbers(self) -> Iterator[int]:
        number_of = self._numbers_of.number
        with warren.attach(self._data, name="judge") as node:
            for name in TOPICS:
                topic = node.topic(name)
                for queue in range(topic.queues):
                    at, end = topic.offsets(queue)
                    while at < end:
                        batch = topic.read_arrow(queue, at, end)
                        for value, key in zip(
                            batch.column("value").to_pylist(), batch.column("key").to_pylist(), strict=True
                        ):
                            try:
                                yield number_of(value, key)
                            except ValueError as wrong:
                                self.report.violations.append(f"offset {at} and on of {name}, {queue}: {wrong}")
                        at = batch.column("offset")[-1].as_py() + 1

    def _judge(self, ended: bool) -> None:
        found = Counter(self._numbers())
        doubled = sorted(number for number, count in found.items() if count > 1)
        if doubled:
            self.report.violations.append(f"{len(doubled)} numbers are doubled, the first are {doubled[:10]}")
        self._judge_slots(ended)
        if not ended:
            return
        commits = [int(path.name) for path in (self._work / "checkpoint" / "commits").iterdir() if path.name.isdigit()]
        state = sink_of(self._data, SINK, 10.0).load()
        assert state is not None
        assert state.stream is not None
        self.report.batches, self.report.messages = state.stream.batch + 1, found.total()
        wanted = self._numbers_of.wanted(self._work, state.stream.batch)
        lost = sorted(wanted - set(found))
        if lost:
            self.report.violations.append(f"{len(lost)} of {len(wanted)} numbers are lost, the first are {lost[:10]}")
        if strange := sorted(set(found) - wanted):
            self.report.violations.append(f"{len(strange)} numbers are of no committed batch: {strange[:10]}")
        if state.stream.batch not in (max(commits), max(commits) + 1):
            self.report.violations.append(f"the sink is at batch {state.stream.batch}, Spark's log at {max(commits)}")
        if state.pending is not None:
            self.report.violations.append(f"a batch is pending: {state.pending.done} of {state.pending.messages}")
        if left := sink_of(self._data, SINK, 10.0).folder.parts():
            newer = [name for name, _path in left if name.batch <= state.stream.batch]
            if newer:
                self.report.violations.append(f"{len(newer)} staged parts of committed batches are left")

    def _judge_slots(self, ended: bool) -> None:
        """No client is attached whose process is dead; at the end none of Spark's at all."""
        deadline = time.monotonic() + STALLS_S
        while True:
            with warren.attach(self._data, name="judge") as node:
                clients = node.status()["clients"]
            left = [
                f"{client['name']} ({client['pid']})"
                for client in clients
                if not psutil.pid_exists(client["pid"]) or (ended and client["name"].startswith("spark-"))
            ]
            if not left:
                return
            if time.monotonic() > deadline:
                self.report.violations.append(f"slots of processes that have ended are not given back: {left}")
                return
            time.sleep(LOOK_S)

    def _judge_files(self) -> None:
        """What `warren check` finds, when the node is stopped."""
        self.report.violations += [f"check: {text}" for text in verify(NodeDirectory(self._data)).problems]

    def _violation(self, text: str, driver: Driver) -> None:
        said = self._log.read_text(errors="replace")[-3000:]
        self.report.violations.append(f"{text} (driver {driver.process.pid}, exit {driver.process.poll()}): {said}")


def _weights(text: str) -> dict[str, float]:
    """Kinds, and how often each is: `executor=6,driver`. Raises ValueError."""
    found = {}
    for word in text.split(","):
        kind, _, weight = word.partition("=")
        if kind not in WEIGHTS:
            raise ValueError(f"unknown kind {kind!r}; there are {', '.join(WEIGHTS)}")
        found[kind] = float(weight) if weight else float(WEIGHTS[kind])
    return found


def main(arguments: list[str], spark: bool = True) -> int:
    """Run a campaign, of Spark or of sinks alone; SIGINT and SIGTERM end it early. The exit code is 1 when it found
    something.
    """
    parser = argparse.ArgumentParser(
        prog=f"warren.tools.crash {'spark' if spark else 'sink'}",
        description="Kill drivers that write into a transactional sink.",
    )
    parser.add_argument("--kills", type=int, default=50, help="kills altogether (50)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=30.0, help="end after so long, however many kills (30)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS if spark else KINDS_OF_SINK),
        help=f"what is killed (%(default)s), of {', '.join(WEIGHTS)}; executor=6 is six times as often as driver=1",
    )
    parser.add_argument("--rows", type=int, default=300, help="rows of a batch (300)")
    if spark:
        parser.add_argument(
            "--master", default="local[2,3]", help="of Spark (%(default)s), local-cluster[2,1,1024], or standalone"
        )
        parser.add_argument("--source", choices=SOURCES, default="rate", help="what is copied (%(default)s)")
        parser.add_argument("--scan", choices=SCANS, help="who reads a topic (auto); turns: one after the other")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    try:
        weights = _weights(options.kinds)
    except ValueError as problem:
        parser.error(str(problem))
    if spark and options.scan is not None and options.source != "topic":
        parser.error("--scan is for --source topic")
    if "executor" in weights and (not spark or options.master.startswith("local[")):
        parser.error("there are executors with --master local-cluster[2,1,1024] or standalone only")
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = SparkCampaign(
        real_folder(options.dir),
        seed,
        lambda text: print(text, file=sys.stderr, flush=True),
        tuple(weights),
        options.rows,
        options.master if spark else "",
        spark,
        options.source if spark else "rate",
        (options.scan if spark else None) or "auto",
        weights,
    )

    def stop(_number: int, _frame: object) -> None:
        campaign.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    report = campaign.run(options.kills, options.minutes * 60)
    print(json.dumps(report.__dict__) if options.json else report)
    return 1 if report.violations else 0
