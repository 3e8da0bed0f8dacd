"""The processes that a campaign of Spark's starts: a driver, and for `--master standalone` a cluster of this host.

Each is begun in a session of its own (setsid), by which whatever came of it is found later, also when its parents are
dead: nothing is ever looked for by name alone. Executors are found among the processes of the driver (local mode, local
cluster) or of the cluster's workers; the Python processes of Spark among all of them.

A standalone cluster is a master and two workers with one core each. It writes below the campaign's folder alone; `end`
kills all of it, executors included, and returns when they are dead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import psutil

from warren.workers.process import interpreter
from warren.workers.spark.java import check_java
from warren.workers.spark.session import JAVA_OPTIONS

#: an address, and no command that runs a program elsewhere
HERE: tuple[str, tuple[str, ...]] = ("127.0.0.1", ())
LOOK_S = 0.05
START_S = 120.0
END_S = 30.0
#: of an executor's JVM
EXECUTOR = "CoarseGrainedExecutorBackend"
#: what a Python process of Spark is for: the first word that its command line has
PURPOSES = (
    ("python_streaming_sink_runner", "committing"),
    ("pyspark.daemon", "tasks"),
    ("native_planner", "planning"),
    ("pyspark", "planning"),
)
#: the Python of Spark's processes: without Spark's zipped sources, which have no bytecode and are compiled by each anew
PYTHON = """#!/bin/bash
kept=""
IFS=: read -ra entries <<<"${{PYTHONPATH:-}}"
for entry in "${{entries[@]}}"; do [[ $entry == *.zip ]] || kept+="${{kept:+:}}$entry"; done
PYTHONPATH="$kept" exec "{python}" "$@"
"""


def write_python(path: Path) -> None:
    """Make the Python of Spark's processes."""
    path.write_text(PYTHON.format(python=sys.executable))
    path.chmod(0o700)


def java_options(scratch: Path) -> str:
    """Options of small JVMs that leave nothing outside of `scratch` when they are killed."""
    return f"{JAVA_OPTIONS} -XX:-UsePerfData -Djava.io.tmpdir={scratch}"


def living(sessions: Collection[int]) -> list[psutil.Process]:
    """All living processes of these sessions."""
    found = []
    for other in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(other.pid) in sessions and other.status() != psutil.STATUS_ZOMBIE:
                found.append(other)
    return found


def jvms(sessions: Collection[int], word: str) -> list[psutil.Process]:
    """The Java processes of these sessions whose command line has a word."""
    return [each for each in living(sessions) if "java" in _line(each).split(" ")[0] and word in _line(each)]


def python_workers(sessions: Collection[int]) -> list[tuple[str, psutil.Process]]:
    """The Python processes of Spark in these sessions, and what each is for."""
    found = []
    for each in living(sessions):
        line = _line(each)
        if each.pid in sessions or "java" in line.split(" ")[0]:
            continue
        found += [(purpose, each) for word, purpose in PURPOSES if word in line][:1]
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that came of it; returns when they are dead."""
    sessions = {process.pid}
    deadline = time.monotonic() + END_S
    while left := living(sessions):  # who was being started meanwhile is seen by the next look
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        if process.poll() is None:
            process.wait(END_S)
        psutil.wait_procs(left, timeout=END_S)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[each.pid for each in left]} do not die")
    process.wait(END_S)


class Driver:
    """A driver, of Spark or of a sink alone."""

    def __init__(self, module: str, task: dict[str, Any], log: Path, python: Path) -> None:
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                interpreter.command(module, json.dumps(task)),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                env=_environment(PYSPARK_PYTHON=str(python)),
            )

    @property
    def session(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """Kill what is left of it."""
        end(self.process)


class Standalone:
    """A standalone cluster: with Standalone(folder) as cluster: …; `cluster.url` is its master's. `hosts`: of each
    worker its address, and a command that runs a program there; the master is where the first one is.
    """

    def __init__(self, folder: Path, hosts: Sequence[tuple[str, tuple[str, ...]]] = (HERE, HERE)) -> None:
        """Start it, in an empty folder. Raises JavaMissing, TimeoutError (with what its processes said)."""
        self._folder = folder
        folder.mkdir()
        self._scratch = folder / "tmp"
        self._scratch.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master", hosts[0], "master.Master", "--port", "0", "--webui-port", "0")
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)", 1)[0]
            for number, host in enumerate(hosts):
                words = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
                work = folder / f"work-{number}"
                self._start(f"worker-{number}", host, "worker.Worker", *words, "--work-dir", str(work), self.url)
            self._said("master", r"Registering worker (\S+)", len(hosts))
        except BaseException:
            self.end()
            raise

    def _start(self, name: str, host: tuple[str, tuple[str, ...]], kind: str, *words: str) -> None:
        address, prefix = host
        specification = importlib.util.find_spec("pyspark")
        assert specification is not None
        assert specification.origin is not None
        home = Path(os.environ.get("SPARK_HOME") or Path(specification.origin).parent)
        # Not those of `java_options`: their log has errors alone, and the starts are known by what is logged.
        java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir={self._scratch}"
        environment = _environment(
            JAVA_HOME=str(Path(check_java()).resolve().parents[1]),
            SPARK_HOME=str(home),
            SPARK_LOCAL_IP=address,
            SPARK_PUBLIC_DNS=address,
            SPARK_LOCAL_DIRS=str(self._scratch),
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=java,
        )
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", address, *words]
        with open(self._log(name), "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*prefix, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                )
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str, pattern: str, count: int) -> list[str]:
        """Wait until a process's log has so many lines of a pattern; returns them."""
        deadline = time.monotonic() + START_S
        while True:
            text = self._log(name).read_text(errors="replace")
            if len(found := re.findall(pattern, text)) >= count:
                return found
            if time.monotonic() > deadline or self.dead():
                said = "\n".join(path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*.log"))
                raise TimeoutError(f"the standalone cluster does not start, its {name} says: {said}")
            time.sleep(LOOK_S)

    @property
    def sessions(self) -> set[int]:
        """Of its master and workers, and of their executors."""
        return {process.pid for process in self._processes}

    def dead(self) -> list[int]:
        """The pids of its master and workers that have ended."""
        return [process.pid for process in self._processes if process.poll() is not None]

    def end(self) -> None:
        """Kill all of it; the master first, which would have executors started anew."""
        for process in self._processes:
            end(process)
        self._processes.clear()

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *_told: object) -> None:
        self.end()


def _environment(**more: str) -> dict[str, str]:
    return {**interpreter.environment(), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
