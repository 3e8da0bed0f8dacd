"""Power-loss campaign: `python -m warren.tools.crash powerloss [--topics [KIND]] --states N --seed S`.

Method: a real node with small files is recorded (record.c, recording.py) while a client writes, removes, publishes and
acks, servers are killed, syncs fail, and the node is stopped and started (history.py). Then the power fails at many
points of that record: a model of the disk (disk.py) drops, tears and reorders what no sync covered, names too; each
state that comes out is started as a node starts it, twice, and compared with what had been confirmed (afterwards.py).

With --topics the history is one of topics (topic_history.py), and topic_afterwards.py judges. KIND says what it surely
is: "plain", or "compacted", with a compacted topic and files of the log that go; without it, it is any of both.

A violation names history and state. Its recording is kept, so that the very state can be looked at again:
`python -m warren.tools.crash powerloss --replay FILE --state N [--build DIR]`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from warren.tools.crash.afterwards import Checker, Truth
from warren.tools.crash.disk import Disk, State
from warren.tools.crash.history import wait_unlocked
from warren.tools.crash.recording import NEVER, Record, Recorder, RecordingError, parse
from warren.tools.crash.topic_afterwards import TopicChecker
from warren.tools.crash.topic_history import KINDS
from warren.tools.crash.topic_truth import TopicTruth
from warren.workers.process import interpreter

STATES_PER_HISTORY = 400
OPERATIONS = 300
STATES_PER_POINT = 4
HISTORY_TIMEOUT_S = 120.0
SHOWN = 40
WRONG_SHOWN = 3
MEMORY = Path("/dev/shm")


class AnyTruth(Protocol):
    """What a history's notes say."""

    confirmed: dict[int, int]
    kills: Counter[str]
    did: Counter[str]  #: what a history had of note


class AnyChecker(Protocol):
    """Checks states of one history."""

    def build(self, state: State) -> None:
        """Put a state into its folder."""

    def check(self, state: State, truth: Any, point: int) -> list[str]:
        """What is wrong with it."""

    def close(self) -> None:
        """Remove the last one."""


@dataclass(frozen=True)
class Load:
    """What a history is made of, and who judges its states."""

    history: str = "warren.tools.crash.history"
    truth: Callable[[Sequence[Record]], AnyTruth] = Truth
    checker: Callable[[Path], AnyChecker] = Checker
    arguments: tuple[str, ...] = ()  #: more of the history's


STORE_AND_QUEUES = Load()
#: by kind of the history
TOPICS = {kind: Load("warren.tools.crash.topic_history", TopicTruth, TopicChecker, (kind,)) for kind in KINDS}


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    histories: int = 0
    states: int = 0
    records: Counter[str] = field(default_factory=Counter)
    failed_syncs: int = 0
    confirmed: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    checking_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {key: dict(value) if isinstance(value, Counter) else value for key, value in self.__dict__.items()}

    def __str__(self) -> str:
        rate = self.states / self.checking_s if self.checking_s else 0.0
        done = f"{self.states:,} states of {self.histories} histories"
        lines = [
            f"seed {self.seed}: {done} in {self.seconds:.0f} s ({rate:.0f} states/s)",
            f"recorded: {dict(self.records)}; {self.confirmed:,} confirms",
            *([f"of topics: {dict(self.did)}"] if self.did else []),
            f"killed: {dict(self.kills)}; {self.failed_syncs} syncs failed",
            f"violations: {len(self.violations)}",
            *(f"  {text}" for text in self.violations[:SHOWN]),
            *(f"  kept: {path}" for path in self.kept),
        ]
        return "\n".join(lines)


def nothing_relies_on(path: str) -> bool:
    """Files that a start removes, and what is for people or for the life of one node."""
    return (
        path.startswith(("store/transient/", "log/"))
        or (path.startswith("queues/") and "/transient/" in path)
        or path in ("lock", "control.sock", "launch.json", "launch.json.new")
    )


def points_of(records: Sequence[Record], count: int, rng: random.Random) -> list[int]:
    """Points where the power fails: anywhere, and as often next to what changes names and to ends of syncs."""
    turns = [
        number + after
        for number, record in enumerate(records)
        if record.kind not in ("note", "write")
        for after in (0, 1)
    ]
    turns += [record.over for record in records if record.kind == "sync" and record.over <= len(records)]
    chosen = [rng.choice(turns) if turns and rng.random() < 0.5 else rng.randint(0, len(records)) for _ in range(count)]
    return sorted(chosen)


def states_of(records: Sequence[Record], root: str, count: int, seed: str) -> Iterator[tuple[int, int, State]]:
    """(number, point, state) of so many crashes of a recording, in order of time; the same for the same seed."""
    points = points_of(records, -(-count // STATES_PER_POINT), random.Random(f"{seed}/points"))
    disk = Disk(records, root, nothing_relies_on)
    for number in range(count):
        point = points[number // STATES_PER_POINT]
        disk.advance(point)
        yield number, point, disk.crash(random.Random(f"{seed}/{number}"))


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder in memory."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made).resolve()


def record_history(
    recorder: Recorder, folder: Path, seed: int, operations: int, load: Load = STORE_AND_QUEUES
) -> tuple[list[Record], str]:
    """Live through a history and return its records, and the directory. Raises RecordingError."""
    directory = folder / "node"
    recorder.begin()
    try:
        done = subprocess.run(
            interpreter.command(load.history, str(directory), str(seed), str(operations), *load.arguments),
            env=interpreter.environment(recorder.environment(directory)),
            capture_output=True,
            text=True,
            timeout=HISTORY_TIMEOUT_S,
            check=False,
        )
    except KeyboardInterrupt:
        wait_unlocked(directory)  # it ends without its client, and its folder goes after it
        raise
    if done.returncode:
        raise RecordingError(f"history {seed} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    records = recorder.read()
    if differs := differences(records, directory):
        raise RecordingError(f"the record of history {seed} is not what was done: {', '.join(differs[:WRONG_SHOWN])}")
    return records, str(directory)


def differences(records: Sequence[Record], directory: Path) -> list[str]:
    """Paths that are not on the real disk as the record says, after all of it."""
    disk = Disk(records, str(directory), nothing_relies_on)
    disk.advance(len(records))
    said = disk.now()
    there = {str(path.relative_to(directory)): path for path in directory.rglob("*")}
    differs = {path for path in said.keys() ^ there.keys() if not nothing_relies_on(path)}
    for path in said.keys() & there.keys():
        if (None if there[path].is_dir() else there[path].read_bytes()) != said[path]:
            differs.add(path)
    return sorted(differs)


def named_early(records: Sequence[Record], root: str) -> list[str]:
    """Files that got a name before their bytes were certain: a sync of another file may make the name certain alone."""
    disk = Disk(records, root, nothing_relies_on)
    disk.advance(len(records))
    return disk.early


class Campaign:
    """Histories and their states, until there are enough."""

    def __init__(
        self,
        seed: int,
        operations: int,
        keep: Path,
        say: Callable[[str], None],
        load: Load = STORE_AND_QUEUES,
    ) -> None:
        self.load = load
        self.operations = operations
        self.keep = keep
        self.say = say
        self.report = Report(seed)

    def run(self, states: int, per_history: int) -> Report:
        """Check so many states."""
        began = time.monotonic()
        with scratch("warren-powerloss-") as folder:
            recorder = Recorder(folder)
            while self.report.states < states:
                number = self.report.histories
                with tempfile.TemporaryDirectory(prefix="warren-powerloss-") as real:
                    records, root = record_history(
                        recorder, Path(real).resolve(), self.report.seed * 1000 + number, self.operations, self.load
                    )
                bad = self.check(folder, records, root, number, min(per_history, states - self.report.states))
                if bad:
                    self._keep(recorder.file, root, number)
                self.report.histories += 1
                self.report.seconds = time.monotonic() - began
                self.say(f"{self.report.states} states, {len(self.report.violations)} violations")
        return self.report

    def check(self, folder: Path, records: Sequence[Record], root: str, number: int, count: int) -> bool:
        """Check the states of one history; true when something was wrong."""
        report = self.report
        truth = self.load.truth(records)
        report.records.update(record.kind for record in records)
        report.failed_syncs += sum(
            record.kind == "sync" and record.result < 0 and record.over != NEVER for record in records
        )
        report.confirmed += len(truth.confirmed)
        report.kills.update(truth.kills)
        report.did.update(truth.did)
        checker = self.load.checker(folder)
        before, began = len(report.violations), time.monotonic()
        report.violations += [f"history {number}: {text}" for text in named_early(records, root)]
        try:
            for state_number, point, state in states_of(records, root, count, f"{report.seed}/{number}"):
                if wrong := checker.check(state, truth, point):
                    more = f"; and {len(wrong) - WRONG_SHOWN} more" if len(wrong) > WRONG_SHOWN else ""
                    where = f"history {number}, state {state_number} (record {point})"
                    report.violations.append(f"{where}: {'; '.join(wrong[:WRONG_SHOWN])}{more}")
                    self.say(report.violations[-1])
                report.states += 1
        finally:
            checker.close()
            report.checking_s += time.monotonic() - began
        return len(report.violations) > before

    def _of(self) -> dict[str, bool]:
        return {"topics": True} if self.load in TOPICS.values() else {}

    def _keep(self, file: Path, root: str, number: int) -> None:
        path = self.keep / f"powerloss-{self.report.seed}-{number}.gz"
        self.keep.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wb", compresslevel=1) as kept:
            head = json.dumps({"seed": self.report.seed, "history": number, "root": root} | self._of()).encode() + b"\n"
            data = file.read_bytes()
            kept.write(head + data[: int.from_bytes(data[8:16], "little")])
        self.report.kept.append(str(path))


def replay(path: Path, number: int, count: int, build: Path | None) -> list[str]:
    """Check one state of a recording that was kept; `build`: leave the state there before anything is started on it."""
    with gzip.open(path, "rb") as kept:
        head = json.loads(kept.readline())
        records = parse(kept.read())
    load = TOPICS["any"] if head.get("topics") else STORE_AND_QUEUES
    truth = load.truth(records)
    with scratch("warren-powerloss-") as folder:
        checker = load.checker(folder)
        for state_number, point, state in states_of(records, head["root"], count, f"{head['seed']}/{head['history']}"):
            if state_number == number:
                if build is not None:
                    load.checker(build).build(state)
                return [f"record {point}: {text}" for text in checker.check(state, truth, point)]
    raise RecordingError(f"the recording was checked in {count} states: there is no state {number}")


def main(argv: list[str] | None = None) -> int:
    """Run a campaign, or look at one state again; 1 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="warren.tools.crash powerloss", description="Crash states of recorded histories, started and compared."
    )
    parser.add_argument(
        "--topics",
        nargs="?",
        const="any",
        choices=KINDS,
        help="histories of topics, instead of store and queues; of one kind, or any",
    )
    parser.add_argument("--states", type=int, default=1000, help="crash states altogether (1000)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help=f"of a history ({OPERATIONS})")
    parser.add_argument("--per-history", type=int, default=STATES_PER_HISTORY, help=f"states ({STATES_PER_HISTORY})")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="where bad recordings are kept")
    parser.add_argument("--replay", type=Path, help="a recording that was kept")
    parser.add_argument("--state", type=int, help="which state of it")
    parser.add_argument("--build", type=Path, help="leave that state in this directory")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    if options.replay is not None:
        if options.state is None:
            parser.error("--replay needs --state")
        wrong = replay(options.replay, options.state, options.per_history, options.build)
        print("\n".join(wrong) or "nothing is wrong with it")
        return 1 if wrong else 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the temporary folders go with us
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    load = TOPICS[options.topics] if options.topics else STORE_AND_QUEUES
    campaign = Campaign(
        seed, options.operations, options.keep, lambda text: print(text, file=sys.stderr, flush=True), load
    )
    report = campaign.run(options.states, options.per_history)
    print(json.dumps(report.as_json()) if options.json else report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
