"""`warren stress`: producers and consumers under fire. Processes are killed at random, and every message is counted.

Each producer writes down what was confirmed to it, after the confirm; each consumer writes down what it received,
before its ack. Both write to files of their own, outside of Warren. At the end, with the queue empty:

    lost      confirmed and never received: must be 0
    doubled   received again without the redelivered mark: must be 0
    foreign   received and never sent, or with a wrong body: must be 0

What was sent and not confirmed (its producer was killed) may or may not be there. A message may come again, marked,
when its consumer was killed between receiving and acking. The same --seed gives the same order of kills. With --topic
it is a topic and a group of readers: stress_topic.py.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from warren.engine.errors import ClosedError, Error, NodeNotRunning, PeerLost, TimedOut, UsageError
from warren.tools import stress_topic
from warren.workers.process import interpreter

QUEUE = "stress"
TARGETS = ("producer", "consumer", "store", "worker", "supervisor")
TOPIC_TARGETS = ("producer", "consumer", "topics", "supervisor")
#: roles of processes as `status` names them
ROLES = {"store": "store", "worker": "queue_worker", "topics": "topic_worker", "supervisor": "supervisor"}
#: producer, incarnation, number: the first bytes of a body; the rest repeats them
BODY = struct.Struct("<IIQ")
#: confirmed: producer, incarnation, first number, how many, how long the call took
CONFIRMED = np.dtype(
    [("producer", "<u4"), ("incarnation", "<u4"), ("first", "<u8"), ("count", "<u4"), ("microseconds", "<u4")]
)
#: received; `whole`: the body was what was sent
RECEIVED = np.dtype(
    [("producer", "<u4"), ("incarnation", "<u4"), ("number", "<u8"), ("redelivered", "u1"), ("whole", "u1")]
)
CALL_TIMEOUT_S = 30.0
SAYS_S = 5.0
RETRY_S = 0.01
PATIENCE = 10  #: times the time between kills: how long a kill waits for something to be confirmed since the one before
BACKLOG_LOOK = 20  #: batches between two looks at the depth of the queue


def body_of(producer: int, incarnation: int, number: int, size: int) -> bytes:
    """The body of a message: every byte of it is known from its first sixteen."""
    head = BODY.pack(producer, incarnation, number)
    return (head * (size // BODY.size + 1))[: max(size, BODY.size)]


def known(body: bytes, size: int) -> tuple[tuple[int, int, int], bool]:
    """(producer, incarnation, number) of a body, and whether it is what that producer sent."""
    if len(body) < BODY.size:
        return (0, 0, 0), False
    producer, incarnation, number = BODY.unpack_from(body)
    return (producer, incarnation, number), body == body_of(producer, incarnation, number, size)


# ---- the processes under fire ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _attached(directory: str, name: str) -> Iterator[Any]:
    """A client; waits while the node is just being replaced."""
    import warren

    deadline = time.monotonic() + CALL_TIMEOUT_S
    node = None
    while node is None:
        try:
            node = warren.attach(directory, timeout=CALL_TIMEOUT_S, name=name)
        except (NodeNotRunning, PeerLost):
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
    with node:
        yield node


def _producer(options: argparse.Namespace) -> int:
    stopping = _stop_flag()
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    number = 0
    with _attached(options.directory, f"stress-producer-{options.index}") as node:
        target = stress_topic.opened(node, options) if options.topic else _queue(node, options)
        batches = 0
        while not stopping and (not options.messages or number < options.messages):
            batches += 1
            if batches % BACKLOG_LOOK == 0:
                with contextlib.suppress(PeerLost, TimedOut):
                    while not stopping and _behind(target, options) > options.backlog_max:
                        time.sleep(RETRY_S)
            batch = [
                body_of(options.index, options.incarnation, number + i, options.size) for i in range(options.batch)
            ]
            with contextlib.suppress(PeerLost, TimedOut):  # not known whether it is there: it counts as not confirmed
                send = stress_topic.append if options.topic else _put
                send(target, batch, options, number, log, CALL_TIMEOUT_S)
            number += len(batch)
    return 0


def _queue(node: Any, options: argparse.Namespace) -> Any:
    return node.queue(QUEUE, durable=options.durability != "none")


def _behind(target: Any, options: argparse.Namespace) -> int:
    """How many messages the consumers have before them."""
    return (stress_topic.lag(target) or 0) if options.topic else target.depth()


def _put(queue: Any, batch: list[bytes], options: argparse.Namespace, number: int, log: int, timeout: float) -> None:
    """One call of a producer, and what was confirmed to it. Raises PeerLost, TimedOut."""
    began = time.monotonic()
    queue.put_many(batch, durability=options.durability, timeout=timeout)
    took = min(0xFFFF_FFFF, int((time.monotonic() - began) * 1e6))
    row = np.array([(options.index, options.incarnation, number, len(batch), took)], CONFIRMED)
    os.write(log, row.tobytes())


def _consumer(options: argparse.Namespace) -> int:
    stopping = _stop_flag()
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with _attached(options.directory, f"stress-consumer-{options.index}") as node:
        if options.topic:
            stress_topic.consume(stress_topic.opened(node, options), options, log, stopping, known)
            return 0
        queue = _queue(node, options)
        while not stopping:
            try:
                messages = queue.get_many(options.batch, timeout=0.2)
            except (PeerLost, TimedOut):
                continue
            if not messages:
                continue
            rows = np.empty(len(messages), RECEIVED)
            for i, message in enumerate(messages):
                head, whole = known(bytes(message.body), options.size)
                rows[i] = (*head, message.redelivered, whole)
            os.write(log, rows.tobytes())
            queue.ack(messages)
    return 0


def _stop_flag() -> list[int]:
    """A list that is no longer empty after SIGTERM. After SIGUSR1 the process says on standard error where it is."""
    faulthandler.register(signal.SIGUSR1)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return told


# ---- the campaign ---------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """One producer or consumer that there has to be; killed ones are followed by the next incarnation."""

    kind: str
    index: int
    incarnation: int = 0
    process: subprocess.Popen[bytes] | None = None
    done: bool = False


@dataclass
class Verdict:
    """What a campaign found."""

    seed: int
    seconds: float
    confirmed: int = 0
    received: int = 0
    redelivered: int = 0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    longest_put_s: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.failures)


class Campaign:
    """Runs the processes, kills them, and keeps their logs."""

    def __init__(self, options: argparse.Namespace, directory: Path, logs: Path) -> None:
        self.options = options
        self.directory = directory
        self.logs = logs
        self.random = random.Random(options.seed)
        self.places = [_Place("producer", i) for i in range(options.producers)]
        self.places += [_Place("consumer", i) for i in range(options.consumers)]
        self.kills = dict.fromkeys(options.kill, 0)
        self.shots: list[tuple[float, str]] = []  # when which server was killed
        self.failures: list[str] = []

    def start(self, place: _Place) -> None:
        """Start the next incarnation of a producer or consumer."""
        place.incarnation += 1
        options = self.options
        log = self.logs / f"{place.kind}-{place.index}-{place.incarnation}"
        command = interpreter.command("warren.tools.stress", f"--role={place.kind}", f"--directory={self.directory}")
        command += [
            f"--log={log}",
            f"--index={place.index}",
            f"--incarnation={place.incarnation}",
            f"--size={options.size}",
        ]
        command += [f"--backlog-max={options.backlog_max}", f"--batch={options.batch}"]
        command += [f"--durability={options.durability}", f"--messages={options.messages}"]
        if options.topic:
            command += ["--topic", f"--queues={options.queues}"]
        with open(self.logs / f"{place.kind}-{place.index}.log", "ab") as errors:
            place.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=interpreter.environment()
            )

    def look_after(self) -> None:
        """Start what died; note what failed by itself."""
        for place in self.places:
            if place.process is None or place.done or (code := place.process.poll()) is None:
                continue
            if code in (0, -signal.SIGTERM):  # told to end, perhaps before it listened
                place.done = True
            else:
                if code != -signal.SIGKILL:
                    self.failures.append(f"{place.kind} {place.index} ended with {code}: {self.last_line(place)}")
                self.start(place)

    def last_line(self, place: _Place) -> str:
        """What a process said last."""
        text = (self.logs / f"{place.kind}-{place.index}.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "nothing was said"

    def shoot(self) -> None:
        """Kill one process of a random kind, if one is there. Servers that were killed so often in the last minute that
        the supervisor would give them up soon are left alone.
        """
        from warren.workers.node.children import (
            DEATHS_MAX,
            DEATHS_WINDOW_S,
        )  # here: producers and consumers need it not

        kind = self.random.choice(self.options.kill)
        pids = {
            place.process.pid: "" for place in self.places if place.kind == kind and place.process and not place.done
        }
        now = time.monotonic()
        if kind in ROLES:
            with contextlib.suppress(Error):
                processes = [item for item in self.call("status")["processes"] if item["role"] == ROLES[kind]]
                named = kind != "supervisor"  # which may die as often as it likes
                pids = {item["pid"]: f"{kind} {item['index']}" if named else "" for item in processes if item["pid"]}
        self.shots = [(when, name) for when, name in self.shots if now - when < DEATHS_WINDOW_S]
        shots = Counter(name for _when, name in self.shots)
        targets = [pid for pid, name in pids.items() if not name or shots[name] < DEATHS_MAX - 2]
        if targets:
            pid = self.random.choice(targets)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills[kind] += 1
                self.shots.append((now, pids[pid]))

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the supervisor."""
        from warren.workers.process.control import ControlClient

        with ControlClient(self.directory) as client:
            return client.call(op, timeout=CALL_TIMEOUT_S, **fields)

    def restarts(self) -> dict[str, int]:
        """How often servers were started again, by kind."""
        found: dict[str, int] = {}
        kinds = {role: kind for kind, role in ROLES.items()}
        for item in self.call("status")["processes"]:
            kind = kinds.get(item["role"], item["role"])
            found[kind] = found.get(kind, 0) + item["restarts"]
        return found

    def left(self, topic: Any) -> int | None:
        """Messages in the queue, ready and unacked, or those of `topic` that the group has not committed; None: not
        known at this moment.
        """
        if topic is not None:
            return stress_topic.lag(topic)
        queues = [item for item in self.call("status")["queues"] if item["name"] == QUEUE]
        return sum(int(item["ready"]) + int(item["unacked"]) for item in queues)

    def drain(self, progress: Callable[[str], None]) -> None:
        """Wait until the consumers have done all. Raises TimedOut."""
        options, deadline = self.options, time.monotonic() + self.options.drain_timeout
        with contextlib.ExitStack() as attached:
            topic = None
            if options.topic:
                topic = stress_topic.opened(attached.enter_context(_attached(str(self.directory), "stress")), options)
            while (left := self.left(topic)) != 0:
                self.look_after()
                known_left = "not known how many" if left is None else f"{left:,}"
                if time.monotonic() > deadline:
                    what = "not committed by the group" if options.topic else "still in the queue"
                    raise TimedOut(
                        f"{known_left} messages are {what} after {options.drain_timeout:g} s (--drain-timeout)"
                    )
                progress(f"draining, {known_left} left")
                time.sleep(0.05)

    def end(self, kind: str) -> None:
        """Let the producers or consumers finish what they do."""
        for place in self.places:
            if place.kind == kind and place.process is not None:
                place.process.terminate()
        deadline = time.monotonic() + CALL_TIMEOUT_S
        for place in self.places:
            if place.kind == kind and place.process is not None:
                try:
                    code = place.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    at = self.stands_at(place)
                    self.failures.append(f"{kind} {place.index} did not end within {CALL_TIMEOUT_S:g} s: it is at {at}")
                    place.process.kill()
                    place.process.wait()
                    continue
                if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
                    self.failures.append(f"{kind} {place.index} ended with {code}: {self.last_line(place)}")

    def stands_at(self, place: _Place) -> str:
        """What the threads of a process do (_stop_flag), the innermost call of each first."""
        assert place.process is not None
        log = self.logs / f"{place.kind}-{place.index}.log"
        before = log.stat().st_size
        place.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + SAYS_S
        while log.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        time.sleep(RETRY_S)  # until it has said all
        said = log.read_bytes()[before:].decode(errors="replace")
        return " < ".join(line.strip() for line in said.splitlines()) or "a place that it does not tell"

    def kill_all(self) -> None:
        """Whatever happens, nothing of ours stays."""
        for place in self.places:
            if place.process is not None and place.process.poll() is None:
                place.process.kill()
                place.process.wait()

    def logged(self) -> int:
        """How much the producers have written of what was confirmed; it only grows."""
        return sum(path.stat().st_size for path in self.logs.glob("producer-*-*"))

    def logs_of(self, kind: str, rows: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
        """All rows that the processes of a kind wrote; what a kill cut off at the end of a file is left out."""
        parts = []
        for path in sorted(self.logs.glob(f"{kind}-*-*")):
            content = path.read_bytes()
            parts.append(np.frombuffer(content, rows, len(content) // rows.itemsize))
        return np.concatenate(parts) if parts else np.empty(0, rows)


def judge(confirmed: np.ndarray[Any, Any], received: np.ndarray[Any, Any], verdict: Verdict) -> None:
    """Compare what was confirmed with what came."""
    keys = np.dtype([("producer", "<u4"), ("incarnation", "<u4"), ("number", "<u8")])
    counts = confirmed["count"].astype(np.int64)
    sent = np.empty(int(counts.sum()), keys)
    for name in ("producer", "incarnation"):
        sent[name] = np.repeat(confirmed[name], counts)
    within = np.arange(len(sent), dtype=np.uint64) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.uint64)
    sent["number"] = np.repeat(confirmed["first"], counts) + within
    came = stress_topic.values_of(received, stress_topic.KEYS)
    known, times = np.unique(came, return_counts=True)
    fresh = came[received["redelivered"] == 0]
    verdict.confirmed = len(sent)
    verdict.received = len(known)
    verdict.redelivered = int((received["redelivered"] != 0).sum())
    verdict.lost = len(np.setdiff1d(stress_topic.values_of(sent, stress_topic.KEYS), known))
    # the first receipt may be the marked one (its delivery before never reached anybody); a second unmarked one may not
    verdict.doubled = len(fresh) - len(np.unique(fresh))
    verdict.foreign = int((received["whole"] == 0).sum())
    assert times.sum() == len(came)
    if len(confirmed):
        verdict.longest_put_s = round(float(confirmed["microseconds"].max()) / 1e6, 3)


def campaign(options: argparse.Namespace, directory: Path, logs: Path, progress: Any = None) -> Verdict:
    """Run a campaign against a node that runs already, and judge it. Raises TimedOut when the queue does not run
    empty.
    """
    run = Campaign(options, directory, logs)
    began = time.monotonic()
    with _attached(str(directory), "stress") as node:
        stress_topic.opened(node, options) if options.topic else _queue(node, options)
    before = run.restarts()
    try:
        for place in run.places:
            run.start(place)
        next_shot, latest_shot, logged = began + options.kill_every, began + PATIENCE * options.kill_every, 0
        while time.monotonic() - began < options.seconds and not all(
            place.done for place in run.places if place.kind == "producer"
        ):
            run.look_after()
            now = time.monotonic()
            if options.kill and now >= next_shot and (now >= latest_shot or run.logged() > logged):
                run.shoot()
                logged = run.logged()
                next_shot, latest_shot = now + options.kill_every, now + PATIENCE * options.kill_every
            if progress is not None:
                progress("producing and consuming", time.monotonic() - began, run.kills)
            time.sleep(0.02)
        run.end("producer")
        run.drain(lambda what: None if progress is None else progress(what, time.monotonic() - began, run.kills))
        run.end("consumer")
        for kind, count in run.restarts().items():
            if (unasked := count - before.get(kind, 0) - run.kills.get(kind, 0)) > 0:
                run.failures.append(
                    f"{kind} died {unasked} times without being killed: {run.call('status')['messages']}"
                )
    finally:
        run.kill_all()
    verdict = Verdict(options.seed, round(time.monotonic() - began, 2), kills=run.kills, failures=run.failures)
    if options.topic:
        confirmed, received = run.logs_of("producer", stress_topic.APPENDED), run.logs_of("consumer", stress_topic.READ)
        stress_topic.judge(confirmed, received, verdict)
    else:
        judge(run.logs_of("producer", CONFIRMED), run.logs_of("consumer", RECEIVED), verdict)
    if not verdict.confirmed:
        verdict.failures.append(
            "nothing was confirmed, so nothing is proven: run for longer (--seconds), or kill less often (--kill-every)"
        )
    return verdict


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warren stress", description="Kill processes at random, and count every message."
    )
    parser.add_argument("--dir", metavar="DIR", help="use the node of DIR, which runs (default: a temporary one)")
    parser.add_argument("--topic", action="store_true", help="a topic, and a group of readers, instead of a queue")
    parser.add_argument("--queues", type=int, default=4, metavar="N", help="queues of the topic (4)")
    parser.add_argument("--producers", type=int, default=2, metavar="N", help="producer processes (2)")
    parser.add_argument("--consumers", type=int, default=2, metavar="N", help="consumer processes (2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to produce (10)")
    parser.add_argument("--messages", type=int, default=0, metavar="N", help="end a producer after so many messages")
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="bytes of a body (100)")
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="messages in a call (100)")
    parser.add_argument(
        "--durability", choices=("none", "written", "synced"), default="synced", help="what a confirm says"
    )
    parser.add_argument(
        "--kill",
        default="",
        metavar="WHAT,…",
        help=f"what to kill: any of {','.join(TARGETS)}, or with --topic of {','.join(TOPIC_TARGETS)}, or all; "
        "default: nothing",
    )
    parser.add_argument(
        "--kill-every",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="time between kills (0.5); up to 10 times that until something is confirmed; a server is killed 8 times a "
        "minute at most, for one that dies 10 times ends the node",
    )
    parser.add_argument(
        "--drain-timeout", type=float, default=60.0, metavar="SECONDS", help="longest wait at the end (60)"
    )
    parser.add_argument(
        "--backlog-max", type=int, default=100_000, metavar="N", help="producers wait above this depth (100,000)"
    )
    parser.add_argument("--seed", type=int, help="repeat the kills of another run")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    for name, kind in (("role", str), ("directory", str), ("log", str), ("index", int), ("incarnation", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


def _options(arguments: list[str] | None) -> argparse.Namespace:
    options = _parser().parse_args(arguments)
    wanted = [word for word in options.kill.split(",") if word]
    targets = TOPIC_TARGETS if options.topic else TARGETS
    options.kill = list(targets) if wanted == ["all"] else wanted
    for word in options.kill:
        if word not in targets:
            mode = " with --topic" if options.topic else ""
            raise UsageError(f"--kill {word}: choose among {', '.join(targets)}{mode}, or all")
    if options.durability == "none" and (unsafe := {"worker", "topics", "supervisor"} & set(options.kill)):
        raise UsageError(
            f"--durability none promises nothing after the death of a worker: leave {' and '.join(sorted(unsafe))} out "
            "of --kill"
        )
    for name in ("producers", "consumers", "batch", "queues"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} must be at least 1")
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(32)
    return options


def _stop(directory: Path) -> None:
    """Stop the node of a directory and wait for its end; nothing when none runs."""
    from warren.workers.process.control import ControlClient

    with contextlib.suppress(NodeNotRunning, ClosedError), ControlClient(directory) as client:
        pidfd = os.pidfd_open(client.call("stop")["pid"])
        with os.fdopen(pidfd, "rb", closefd=True):
            select.select([pidfd], [], [], CALL_TIMEOUT_S)


@contextlib.contextmanager
def _node(options: argparse.Namespace) -> Iterator[Path]:
    """The node to fire at: the one that was named, or a temporary one."""
    if options.dir:
        yield Path(options.dir)
        return
    import warren

    folder = Path(tempfile.mkdtemp(prefix="warren-stress-"))
    directory = folder / "node"
    try:
        with warren.open(directory, idle_exit=300.0, name="stress"):
            yield directory
    finally:
        _stop(directory)
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; 0: every message is accounted for, 1: not, 4: it took too long."""
    options = _options(arguments)
    if options.role == "producer":
        return _producer(options)
    if options.role == "consumer":
        return _consumer(options)
    # the temporary node goes with us; not as SIGINT is, which a job in the background ignores, and its children with it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _node(options) as directory, tempfile.TemporaryDirectory(prefix="warren-stress-logs-") as logs:
        if options.json or not sys.stderr.isatty():
            verdict = campaign(options, directory, Path(logs))
        else:
            verdict = _with_progress(options, directory, Path(logs))
    if options.json:
        sys.stdout.write(msgspec.json.encode({**msgspec.to_builtins(verdict), "good": verdict.good}).decode() + "\n")
    else:
        _print(verdict, options.topic)
    return 0 if verdict.good else 1


def _with_progress(options: argparse.Namespace, directory: Path, logs: Path) -> Verdict:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[kills]} kills"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=options.seconds, kills=0)
        return campaign(
            options,
            directory,
            logs,
            lambda what, seconds, kills: bar.update(
                task, description=what, completed=min(seconds, options.seconds), kills=sum(kills.values())
            ),
        )


def _print(verdict: Verdict, topic: bool) -> None:
    kills = ", ".join(f"{count} × {kind}" for kind, count in verdict.kills.items()) or "none"
    print(
        f"{verdict.confirmed:,} confirmed, {verdict.received:,} received, "
        f"{verdict.redelivered:,} {'read again' if topic else 'redelivered and marked'}"
    )
    print(f"killed: {kills}; longest put {verdict.longest_put_s:.3f} s; seed {verdict.seed}")
    for failure in verdict.failures:
        print(f"FAILURE  {failure}")
    print(
        f"lost {verdict.lost}, doubled {verdict.doubled}, foreign {verdict.foreign}: "
        f"{'good' if verdict.good else 'NOT GOOD'}"
    )


if __name__ == "__main__":
    from warren.workers.cli import output

    sys.exit(output.run(main))
