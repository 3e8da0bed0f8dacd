"""Kill campaign of Celery over warren://: `python -m warren.tools.crash celery --minutes M --seed S`.

Senders and workers of Celery (celery_tasks.py), a prefork one whose processes end after a few tasks and one with
threads, work on a node. Killed at random are workers as a whole, their consuming process alone, a process of a pool,
senders, queue workers, store, topic worker and supervisor; workers are also shut down warmly and coldly, and the node
is stopped, for up to three seconds, and started again.

Violations
  a task that did its work failed, for whoever asks: its result could not be stored, or what follows not be sent
  a task that its sender was told of did not run to its end, or the body of a chord was not called
  a task began twice without being marked redelivered (each is sent once; bodies may come twice, as results.py says)
  the body of a chord got other results than its parts returned
  at the end something is unacked, or a worker does not end within its time
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from celery import Celery, states

import warren
from warren.tools.bench.harness import real_folder
from warren.tools.crash.victims import Node, send
from warren.workers.celery.results import Backend
from warren.workers.process import interpreter

QUEUE, TASKS = "kills", "warren.tools.crash.celery_tasks"
POOLS = (
    ("prefork", "-c", "2", "--max-tasks-per-child", "25"),
    ("threads", "-c", "4"),
)
SENDERS = 2
#: what is done, and how often
WEIGHTS = {
    "kill worker": 8,
    "kill consuming process": 6,
    "kill process of a pool": 10,
    "kill sender": 5,
    "end worker warmly": 4,
    "end worker coldly": 4,
    "kill worker-0": 4,
    "kill worker-1": 4,
    "kill store": 4,
    "kill topics": 4,
    "kill supervisor": 3,
    "restart node": 10,
}
#: how long the node is away, at most
AWAY_S = 3.0
#: between two blows, at most
PAUSE_S = 3.0
START_S, END_S, DRAIN_S = 120.0, 60.0, 300.0


def members_of(session: int) -> list[psutil.Process]:
    """The processes of a session."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


class Program:
    """A worker or a sender, in a session of its own; started again whenever it has ended."""

    def __init__(self, name: str, words: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name, self._words, self._environment, self._folder = name, words, environment, folder
        self._log = folder / f"{name}.log"
        self.sessions: set[int] = set()
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                interpreter.command(*self._words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        self.sessions.add(self.process.pid)
        return self.process

    def kill(self) -> None:
        """All of it, with what is left of those before it."""
        for session in sorted(self.sessions):
            for process in members_of(session):
                process.kill()
        self.process.wait(END_S)
        self.sessions = {self.process.pid}

    def end(self, number: signal.Signals) -> bool:
        """Tell it to end; False when it has not, and was killed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


class CeleryCampaign:
    """See the module."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="celery-kills-", dir=folder))
        self.directory = self.root / "data"
        self.ledger = self.root / "ledger"
        self.blows: Counter[str] = Counter()
        self.violations: list[str] = []
        self.results: Counter[str] = Counter()  # by state
        self.stopping = False
        self._environment = interpreter.environment() | {
            "WARREN_CELERY_URL": f"warren:///{self.directory}",
            "WARREN_CELERY_LEDGER": str(self.ledger),
            "C_FORCE_ROOT": "1",
        }
        self._workers: list[Program] = []
        self._senders: list[Program] = []
        self._observer: warren.Node | None = None
        self._node: Node | None = None

    def run(self, seconds: float, blows: int) -> int:
        """Kill for so long, or so often; let what is left come to its end, and look. How many violations there are."""
        try:
            self._open()
            self._workers = [
                self._program(pool[0], "celery", "-A", TASKS, "worker", "-P", *pool, *self._names(pool[0]))
                for pool in POOLS
            ]
            self._senders = [
                self._program(f"sender{number}", TASKS, str(self.rng.getrandbits(32))) for number in range(SENDERS)
            ]
            self._await(lambda: self._count("done") > 0, START_S, "the first task")
            end = time.monotonic() + seconds
            while time.monotonic() < end and self.blows.total() < blows and not self.stopping:
                self._blow()
                self._revive()
                time.sleep(self.rng.uniform(0.0, PAUSE_S))
            self._finish()
        finally:
            self._end_all()
        return len(self.violations)

    def _names(self, pool: str) -> tuple[str, ...]:
        return "-n", f"{pool}@kills", "-Q", QUEUE, "-l", "warning", "--without-mingle"

    def _program(self, name: str, *words: str) -> Program:
        return Program(name, list(words), self._environment, self.root)

    def _open(self) -> None:
        self._observer = warren.open(self.directory, name="kill-observer", idle_exit=120.0, workers=2)
        if self._node is not None:
            self._node.superblock.close()
        self._node = Node(self.directory)

    def _revive(self) -> None:
        assert self._node is not None
        assert self._observer is not None
        self._node.watch()
        for program in (*self._workers, *self._senders):
            if program.process.poll() is not None:
                program.start()
        if not self._node.all():
            self._observer.close()
            self._open()

    # -- blows ----------------------------------------------------------------------------------------------------

    def _blow(self) -> None:
        what = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        worker, sender = self.rng.choice(self._workers), self.rng.choice(self._senders)
        done = True
        if what == "kill worker":
            worker.kill()
        elif what == "kill consuming process":
            worker.process.kill()
        elif what == "kill process of a pool":
            done = self._kill_child(self._workers[0])
        elif what == "kill sender":
            sender.kill()
        elif what.startswith("end worker"):
            number = signal.SIGTERM if what.endswith("warmly") else signal.SIGQUIT
            if not worker.end(number):
                self.violations.append(f"a worker ({worker.name}) did not end within {END_S:g} s of {number.name}")
        elif what == "restart node":
            self._restart()
        else:
            done = self._kill_server(what.removeprefix("kill "))
        if done:
            self.blows[what] += 1

    def _kill_child(self, worker: Program) -> bool:
        try:
            children = psutil.Process(worker.process.pid).children()
        except psutil.NoSuchProcess:
            return False
        if not children:
            return False
        self.rng.choice(children).kill()
        return True

    def _kill_server(self, name: str) -> bool:
        assert self._node is not None
        identity = self._node.find(name)
        if identity is None or not self._node.may_die(name) or not self._node.supervisor_ready():
            return False
        return send(identity, signal.SIGKILL)

    def _restart(self) -> None:
        assert self._node is not None
        assert self._observer is not None
        self._await(self._node.supervisor_ready, START_S, "the supervisor")
        self._observer.close()
        supervisor = self._node.find("supervisor")
        if supervisor is not None:
            send(supervisor, signal.SIGTERM)
        self._await(self._away, END_S, "the end of the node")
        time.sleep(self.rng.uniform(0.0, AWAY_S))
        self._open()

    def _away(self) -> bool:
        return self._node is None or not self._node.all()

    def _await(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.violations.append(f"{what}: not within {seconds:g} s")
                return False
            time.sleep(0.05)
        return True

    # -- the end --------------------------------------------------------------------------------------------------

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def _count(self, word: str) -> int:
        return sum(line[0] == word for line in self._lines())

    def _finish(self) -> None:
        for sender in self._senders:
            sender.end(signal.SIGTERM)
        self._senders.clear()
        assert self._observer is not None
        queue = self._observer.queue(QUEUE, create=False)

        def at_rest() -> bool:
            self._revive()
            counts = queue.stats()
            return not any(counts[what] for what in ("ready", "unacked", "delayed"))

        if not self._await(at_rest, DRAIN_S, "the end of all tasks"):
            self.violations.append(f"left in the queue: {queue.stats()}")
        for worker in self._workers:
            if not worker.end(signal.SIGTERM):
                self.violations.append(f"a worker ({worker.name}) did not end within {END_S:g} s of SIGTERM")
        self._judge()

    def _judge(self) -> None:
        lines = self._lines()
        seen: dict[str, set[str]] = {}
        for word, id, *_more in (line for line in lines if len(line) > 1):
            seen.setdefault(word, set()).add(id)
        new = Counter(line[1] for line in lines if line[0] == "new")
        ended = seen.get("done", set()) | seen.get("body", set())
        for id in sorted(seen.get("sent", set()) - ended):
            self.violations.append(f"{id}: it was sent, and never came to its end")
        for id, times in new.items():
            if times > 1:
                self.violations.append(f"{id}: it began {times} times without the mark")
        for id in sorted(seen.get("wrong", set())):
            self.violations.append(f"{id}: the body of a chord got other results")
        self._judge_results(ended)

    def _judge_results(self, ended: set[str]) -> None:
        """All tasks do their work, so whoever asks learns that. A result is stored before its task is acked."""
        backend = Backend(Celery(set_as_current=False), url=f"warren:///{self.directory}")
        for id in sorted(ended):
            meta = backend.get_task_meta(id, cache=False)
            self.results[meta["status"]] += 1
            if meta["status"] != states.SUCCESS:
                self.violations.append(f"{id}: it ended, and is {meta['status']}: {meta['result']!r}"[:300])
        backend.kept.place.client.close()
        for word, id, *more in (line for line in self._lines() if line[0] == "failure"):
            self.violations.append(f"{id}: {word} {' '.join(more)}"[:300])

    def _end_all(self) -> None:
        for program in (*self._workers, *self._senders):
            program.kill()
        if self._observer is not None:
            self._observer.close()
        if self._node is not None:
            supervisor = self._node.find("supervisor")
            if supervisor is not None:
                send(supervisor, signal.SIGTERM)
            self._await(self._away, END_S, "the end of the node")
            self._node.superblock.close()

    def __str__(self) -> str:
        lines = Counter(line[0] for line in self._lines())
        blows = ", ".join(f"{count} {what}" for what, count in sorted(self.blows.items()))
        sums = ", ".join(f"{count:,} {word}" for word, count in sorted(lines.items()))
        found = [f"{len(self.violations)} violations", *self.violations[:40]]
        results = ", ".join(f"{count:,} {state}" for state, count in sorted(self.results.items()))
        return "\n".join([f"blows: {self.blows.total()} ({blows})", f"lines: {sums}", f"results: {results}", *found])


def main(argv: list[str]) -> int:
    """Run one campaign; SIGINT and SIGTERM end it early. 1 when it found something; then its folder stays."""
    parser = argparse.ArgumentParser(
        prog="warren.tools.crash celery", description="Kill workers of Celery, and a node."
    )
    parser.add_argument("--kills", type=int, default=1000, help="blows altogether (1000)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after so long (10)")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    options = parser.parse_args(argv)
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = CeleryCampaign(real_folder(options.dir), seed)

    def stop(_number: int, _frame: object) -> None:
        campaign.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(f"seed {seed}, in {campaign.root}", file=sys.stderr, flush=True)
    found = campaign.run(options.minutes * 60, options.kills)
    print(campaign, flush=True)
    if not found:
        shutil.rmtree(campaign.root)
    return 1 if found else 0
