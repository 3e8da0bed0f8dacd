"""`python -m warren.tools.crash spark --kills N --seed S`: Spark drivers, their workers and the node are killed while a
stream writes into topics with delivery=transactional; in the end each number is there once.

    driver      kill -9 of the JVM, which is driver and executor; a new driver goes on with its checkpoint
    front       kill -9 of the Python process in front of it: the JVM ends by itself
    executor    kill -9 of an executor's JVM (with --master local-cluster[…])
    worker      kill -9 of a Python process of Spark's: a task's, or the one that commits
    topics      kill -9 of the topic worker of the node
    node        the node is stopped in good order, and started anew

`… crash sink` does the same with a driver that is no Spark, and is quick to begin (sink_driver.py).

A blow falls at a random instant after the sink's state moved. Judged is what readers see: the numbers of both topics
together are 0 … n - 1, each once, n the batches of Spark's log times their rows; nothing is pending or staged; and
in between that no number is there twice.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.tools.bench.harness import real_folder
from warren.workers.faces.transactions import sink_of
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

SINK = "campaign"
TOPICS = ("even", "odd")
KINDS = ("driver", "front", "worker", "topics", "node")
KINDS_OF_SINK = ("driver", "topics", "node")
WEIGHTS = {"driver": 5, "front": 1, "worker": 3, "topics": 1, "node": 1, "executor": 3}
#: how long anything may take before it is a violation
STALLS_S = 240.0
LOOK_S = 0.02
#: after so many blows it is judged whether anything is doubled; at the end all is
JUDGED = 10
#: the Python of Spark's processes: without Spark's zipped sources, which have no bytecode and are compiled by each anew
PYTHON = """#!/bin/bash
kept=""
IFS=: read -ra entries <<<"${{PYTHONPATH:-}}"
for entry in "${{entries[@]}}"; do [[ $entry == *.zip ]] || kept+="${{kept:+:}}$entry"; done
PYTHONPATH="$kept" exec "{python}" "$@"
"""


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
            f"seed {self.seed}: {self.kills.total()} kills ({kills}) in {self.seconds:.0f} s; workers: {hit or 'none'}",
            f"{self.batches:,} batches, {self.messages:,} messages, {self.queries_ended} times a query began again",
            *(self.violations or ["0 lost, 0 doubled"]),
        ]
        return "\n".join(lines)


class _Driver:
    """The driver of now, and all processes that came of it."""

    def __init__(self, module: str, task: dict[str, Any], log: Path, python: Path) -> None:
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                interpreter.command(module, json.dumps(task)),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # by which its children are known, also those that outlive it
                env={**interpreter.environment(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
            )

    def family(self) -> list[psutil.Process]:
        """All living processes of its session."""
        found = []
        for other in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getsid(other.pid) == self.process.pid and other.status() != psutil.STATUS_ZOMBIE:
                    found.append(other)
        return found

    def jvms(self, word: str) -> list[psutil.Process]:
        """The Java processes whose command line has a word."""
        return [
            each for each in self.family() if _words(each)[:1] and "java" in _words(each)[0] and word in _line(each)
        ]

    def workers(self) -> list[tuple[str, psutil.Process]]:
        """The Python processes of Spark, and what each is for."""
        found = []
        for each in self.family():
            line = _line(each)
            if each.pid == self.process.pid or "java" in line.split(" ")[0]:
                continue
            if "python_streaming_sink_runner" in line:
                found.append(("committing", each))
            elif "pyspark.daemon" in line:
                found.append(("tasks", each))
            elif "pyspark" in line:
                found.append(("planning", each))
        return found

    def end(self) -> None:
        """Kill what is left of it."""
        for each in self.family():
            with contextlib.suppress(psutil.Error):
                each.kill()
        self.process.wait()
        psutil.wait_procs(self.family(), timeout=30)


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _line(process: psutil.Process) -> str:
    return " ".join(_words(process))


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
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._kinds = kinds
        self._rows = rows
        self._master = master
        self.report = Report(seed)
        self.stopping = False
        self._began = 0.0

    def run(self, kills: int, seconds: float) -> Report:
        """Kill so often, or for so long; then let it end, and judge."""
        began = self._began = time.monotonic()
        base = Path(tempfile.mkdtemp(prefix="warren-spark-", dir=self._folder))
        try:
            self._run(base, kills, began + seconds)
        finally:
            shutil.rmtree(base, ignore_errors=True)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _run(self, base: Path, kills: int, until: float) -> None:
        self._work, self._data = base / "work", base / "data"
        self._work.mkdir()
        self._log = base / "driver.log"
        (base / "python").write_text(PYTHON.format(python=sys.executable))
        (base / "python").chmod(0o700)
        with warren.open(self._data, name="campaign", idle_exit=600.0) as node:
            for name in TOPICS:
                node.topic(name, queues=2)
        if self._spark:
            self._warm(base)
        driver = self._start(base / "warm.jsa", self._work)
        try:
            while self.report.kills.total() < kills and time.monotonic() < until and not self.stopping:
                if not self._moved(driver):
                    self._violation("the sink stood still", driver)
                    return
                driver = self._blow(driver, base)
                if self.report.kills.total() % JUDGED == 0:
                    self._judge(ended=False)
                if self.report.violations:
                    return
            if not self._moved(driver):
                self._violation("the sink stood still", driver)
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
            self._end_node()

    def _task(self, archive: Path, work: Path) -> dict[str, Any]:
        return {
            "path": str(self._data),
            "work": str(work),
            "topics": TOPICS,
            "rows": self._rows,
            "master": self._master,
            "archive": str(archive),
        }

    def _start(self, archive: Path, work: Path) -> _Driver:
        work.mkdir(exist_ok=True)
        module = "spark_driver" if self._spark else "sink_driver"
        return _Driver(
            f"warren.tools.crash.{module}", self._task(archive, work), self._log, archive.with_name("python")
        )

    def _warm(self, base: Path) -> None:
        """A first life that ends in good order leaves an archive of Java's classes: others begin in half the time."""
        warm = base / "warm"
        driver = self._start(base / "warm.jsa", warm)
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

    def _moved(self, driver: _Driver) -> bool:
        """Wait for one or two more transactions; false: they do not come."""
        first, deadline = self._number() + self._rng.randrange(2), time.monotonic() + STALLS_S
        while self._number() <= first:
            if driver.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def _blow(self, driver: _Driver, base: Path) -> _Driver:
        """One blow at a random instant; returns the driver that goes on."""
        kind = self._rng.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])[0]
        time.sleep(self._rng.random() ** 2 * (1.5 if self._spark else 0.3))
        if kind in ("driver", "front"):
            with contextlib.suppress(psutil.Error):
                if kind == "front" or not self._spark:
                    driver.process.kill()
                for jvm in driver.jvms("SparkSubmit") if kind == "driver" and self._spark else ():
                    jvm.kill()
            self._count(kind)
            # The JVM and Python processes of before may live on for a while beside the next driver, as they do.
            old, driver = driver, self._start(base / "warm.jsa", self._work)
            psutil.wait_procs(old.family(), timeout=self._rng.random() * 4)
            old.end()
        elif kind in ("worker", "executor"):
            self._kill_one(driver, kind)
        elif kind == "topics":
            with warren.attach(self._data) as node:
                for process in node.status()["processes"]:
                    if process["role"] == "topic_worker" and process["pid"]:
                        os.kill(process["pid"], signal.SIGKILL)
                        self._count(kind)
        else:
            with ControlClient(self._data) as control:
                control.call("stop")
            self._open_again()
            self._count(kind)
        return driver

    def _kill_one(self, driver: _Driver, kind: str) -> None:
        """A Python process of Spark's, of whatever purpose there is one just now; or an executor."""
        found = (
            driver.workers()
            if kind == "worker"
            else [("executor", each) for each in driver.jvms("CoarseGrainedExecutorBackend")]
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
        with warren.attach(self._data, name="judge") as node:
            for name in TOPICS:
                topic = node.topic(name)
                for queue in range(topic.queues):
                    at, end = topic.offsets(queue)
                    while at < end:
                        batch = topic.read_arrow(queue, at, end)
                        yield from map(int, batch.column("value").to_pylist())
                        at = batch.column("offset")[-1].as_py() + 1

    def _judge(self, ended: bool) -> None:
        found = Counter(self._numbers())
        doubled = sorted(number for number, count in found.items() if count > 1)
        if doubled:
            self.report.violations.append(f"{len(doubled)} numbers are doubled, the first are {doubled[:10]}")
        if not ended:
            return
        commits = [int(path.name) for path in (self._work / "checkpoint" / "commits").iterdir() if path.name.isdigit()]
        state = sink_of(self._data, SINK, 10.0).load()
        assert state is not None
        assert state.stream is not None
        self.report.batches, self.report.messages = state.stream.batch + 1, found.total()
        wanted = (state.stream.batch + 1) * self._rows
        lost = sorted(set(range(wanted)) - set(found))
        if lost:
            self.report.violations.append(f"{len(lost)} of {wanted} numbers are lost, the first are {lost[:10]}")
        if strange := sorted(set(found) - set(range(wanted))):
            self.report.violations.append(f"{len(strange)} numbers are of no committed batch: {strange[:10]}")
        if state.stream.batch not in (max(commits), max(commits) + 1):
            self.report.violations.append(f"the sink is at batch {state.stream.batch}, Spark's log at {max(commits)}")
        if state.pending is not None:
            self.report.violations.append(f"a batch is pending: {state.pending.done} of {state.pending.messages}")
        if left := sink_of(self._data, SINK, 10.0).folder.parts():
            newer = [name for name, _path in left if name.batch <= state.stream.batch]
            if newer:
                self.report.violations.append(f"{len(newer)} staged parts of committed batches are left")

    def _violation(self, text: str, driver: _Driver) -> None:
        said = self._log.read_text(errors="replace")[-3000:]
        self.report.violations.append(f"{text} (driver {driver.process.pid}, exit {driver.process.poll()}): {said}")


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
        help="what is killed (%(default)s); also executor",
    )
    parser.add_argument("--rows", type=int, default=300, help="rows of a batch (300)")
    parser.add_argument("--master", default="local[2,3]", help="of Spark (%(default)s)")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    kinds = tuple(options.kinds.split(","))
    if unknown := set(kinds) - set(WEIGHTS):
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}; there are {', '.join(WEIGHTS)}")
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = SparkCampaign(
        real_folder(options.dir),
        seed,
        lambda text: print(text, file=sys.stderr, flush=True),
        kinds,
        options.rows,
        options.master,
        spark,
    )

    def stop(_number: int, _frame: object) -> None:
        campaign.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    report = campaign.run(options.kills, options.minutes * 60)
    print(json.dumps(report.__dict__) if options.json else report)
    return 1 if report.violations else 0
