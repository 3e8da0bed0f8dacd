"""`python -m warren.tools.fault [--cases N] [--seed S] [--minutes M] [--lanes L] [--only TEXT] [--replay CASES]`.

System calls of a node's processes and of its clients fail, one kind after the other (cases.py says which), and what was
confirmed is looked for. Prints a table of role and call, and what was found; the exit code is 1 with a violation. What
belongs to one is kept, and its cases are tried again one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warren.tools.bench.harness import real_folder
from warren.tools.fault import shim
from warren.tools.fault.cases import Case, plan
from warren.workers.process import interpreter

#: how much of a session a case takes: one that kills or starts costs more
SESSION = 8
SHOWN = 40
COUNTS = 2  #: runs that count; what is in one of them has its cases


class Lane:
    """A process that runs sessions, one at a time."""

    def __init__(self, folder: Path, library: Path) -> None:
        folder.mkdir()
        self.ruler = shim.Shim(folder, library)
        self.errors = open(folder / "lane.err", "wb")  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            interpreter.command("warren.tools.fault.lane", str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=interpreter.environment(self.ruler.environment()),
            start_new_session=True,  # Ctrl-C ends the campaign in good order
            text=True,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Its answer. Raises ShimError when it died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            text = Path(self.errors.name).read_text(errors="replace")[-2000:]
            raise shim.ShimError(f"a lane ended with {self.process.wait()}: {text}")
        return dict(json.loads(line))

    def end(self) -> None:
        """Let it go."""
        with contextlib.suppress(OSError):
            self.process.communicate(json.dumps({"do": "end"}) + "\n", timeout=60)
        self.errors.close()
        self.ruler.close()


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    planned: int = 0
    seconds: float = 0.0
    #: "role call" → cases of which the fault came, cases of which it did not
    fired: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    started: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    tracebacks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    violations: list[dict[str, Any]] = field(default_factory=list)
    confirmed: int = 0
    reads: int = 0
    kept: list[str] = field(default_factory=list)

    def add(self, answer: dict[str, Any], cases: list[str], seed: int) -> None:
        """The answer of a session."""
        if "failed" in answer:
            self.violations.append({"cases": cases, "seed": seed, "text": [answer["failed"]], "kept": answer["kept"]})
            self.kept.append(answer["kept"])
            return
        for outcome in answer["cases"]:
            case = Case.parse(outcome["case"])
            name = f"{case.role} {case.call}"
            (self.fired if outcome["fired"] else self.missed)[name] += 1
            self.faults += outcome["fired"]
            self.started[name] += outcome["started"]
            self.errors.update(outcome["errors"])
            self.slowest = sorted([*self.slowest, (outcome["seconds"], outcome["case"])], reverse=True)[:12]
            for text in outcome["tracebacks"]:
                self.tracebacks[text].append(outcome["case"])
            if outcome["violations"]:
                found = {
                    "cases": [outcome["case"]],
                    "seed": seed,
                    "text": outcome["violations"],
                    "hits": outcome["hits"],
                }
                self.violations.append(found | {"kept": answer["kept"]})
        if answer["violations"]:
            done = [outcome["case"] for outcome in answer["cases"]]
            self.violations.append({"cases": done, "seed": seed, "text": answer["violations"], "kept": answer["kept"]})
        if answer["kept"]:
            self.kept.append(answer["kept"])
        self.confirmed += answer["confirmed"]
        self.reads += answer["reads"]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {**self.__dict__, "cases": self.fired.total()}
        return {
            key: dict(value) if isinstance(value, (Counter, defaultdict)) else value for key, value in plain.items()
        }

    def __str__(self) -> str:
        done, missed = self.fired.total(), self.missed.total()
        head = f"seed {self.seed}: {done:,} cases of {self.planned:,} planned, {self.faults:,} failed calls"
        lines = [
            f"{head}, in {self.seconds:.0f} s; {missed:,} more whose call did not come",
            f"{self.confirmed:,} confirmed messages, {self.reads:,} receipts",
        ]
        lines += self._table()
        lines.append(f"errors of Warren that clients had: {dict(self.errors)}")
        lines.append("slowest: " + ", ".join(f"{seconds:.1f} s {case}" for seconds, case in self.slowest))
        if self.tracebacks:
            lines.append(f"tracebacks in logs: {sum(map(len, self.tracebacks.values()))}")
            for text, cases in sorted(self.tracebacks.items(), key=lambda item: -len(item[1]))[:SHOWN]:
                lines.append(f"  {len(cases)} × {text}  [{cases[0]}]")
        lines.append(f"violations: {len(self.violations)}")
        for found in self.violations[:SHOWN]:
            lines.append(f"  {','.join(found['cases'])} (seed {found['seed']}, {found['kept']})")
            lines += [f"    {text[:700]}" for text in found["text"][:8]]
            lines += [f"    ! {text}" for text in found.get("hits", [])[:3]]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        names = {*self.fired, *self.missed}
        roles = sorted({name.split(" ")[0] for name in names})
        lines = ["cases by call and role (" + ", ".join(roles) + ")"]
        lines += [
            f"  {call:<10}" + "".join(f"{self.fired[f'{role} {call}']:>10,}" for role in roles)
            for call in sorted({name.split(" ")[1] for name in names})
        ]
        lines.append(f"  {'':<10}" + "".join(f"{role:>10}" for role in roles))
        return lines


class Campaign:
    """Lanes, and the sessions that they are given."""

    def __init__(self, folder: Path, seed: int, lanes: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="warren-faults-", dir=folder)).resolve()
        self.report = Report(seed)
        self.rng = random.Random(seed)
        library = shim.compiled(self.root)
        self.lanes = [Lane(self.root / f"lane-{number}", library) for number in range(lanes)]
        self.stopping = False

    def counts(self) -> dict[tuple[str, str, str, str], int]:
        """What there is to fail."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for _ in range(COUNTS):
            found |= Counter({tuple(row[:4]): row[4] for row in self.lanes[0].ask(do="count")["counts"]})
        return dict(found)

    def run(self, cases: list[Case], deadline: float, wanted: int, *, one_by_one: bool = False) -> None:
        """Sessions of these cases, until so many faults came or the time is over."""
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in cases:
            waiting.put(case)
        self.report.planned = len(cases)
        lock = threading.Lock()
        began = time.monotonic()
        failures: list[BaseException] = []

        def next_session() -> list[Case]:
            chosen: list[Case] = []
            room = 1 if one_by_one else SESSION
            with contextlib.suppress(queue.Empty):
                while room > 0:
                    case = waiting.get_nowait()
                    chosen.append(case)
                    room -= 1 if case.scene == "work" and case.how == "once" else 2
            return chosen

        def serve(lane: Lane) -> None:
            try:
                while not self.stopping and time.monotonic() < deadline and not failures:
                    with lock:
                        chosen, seed = next_session(), self.rng.getrandbits(32)
                        enough = self.report.fired.total() >= wanted
                    if not chosen or enough:
                        return
                    texts = [str(case) for case in chosen]
                    answer = lane.ask(do="session", cases=texts, seed=seed)
                    with lock:
                        self.report.add(answer, texts, seed)
                        for text in answer.get("left", []):
                            waiting.put(Case.parse(text))
                        _show(self.report, wanted, time.monotonic() - began)
            except BaseException as error:  # noqa: BLE001 - told to the main thread, which raises it
                failures.append(error)

        threads = [threading.Thread(target=serve, args=[lane]) for lane in self.lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.report.seconds += time.monotonic() - began
        if failures:
            raise failures[0]

    def end(self) -> None:
        """End the lanes; keep what belongs to a violation."""
        for lane in self.lanes:
            lane.end()
        if self.report.kept:
            print(f"directories of violations stay below {self.root}", file=sys.stderr)
        else:
            shutil.rmtree(self.root, ignore_errors=True)


def _show(report: Report, wanted: int, seconds: float) -> None:
    done = report.fired.total()
    if sys.stderr.isatty():
        bar = "#" * (30 * done // max(wanted, 1))
        end = "\r"
        print(
            f"[{bar:<30}] {done:,}/{wanted:,} {seconds:.0f} s, {len(report.violations)} violations",
            end=end,
            file=sys.stderr,
        )
    else:
        print(
            f"{done} of {wanted} cases, {seconds:.0f} s, {len(report.violations)} violations",
            file=sys.stderr,
            flush=True,
        )


def _chosen(cases: Iterable[Case], only: list[str]) -> list[Case]:
    """Those whose text has one of the words of each --only."""
    words = [item.split("|") for item in only]
    return [case for case in cases if all(any(word in f"/{case}/" for word in group) for group in words)]


def main(argv: list[str] | None = None) -> int:
    """Run a campaign; SIGINT and SIGTERM end it early, with its report."""
    parser = argparse.ArgumentParser(prog="warren.tools.fault", description="Let system calls of a node fail.")
    parser.add_argument("--cases", type=int, default=500, help="cases whose fault came, altogether (500)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after so long (60)")
    parser.add_argument("--lanes", type=int, default=1, help="so many nodes at the same time (1)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="cases whose text has it, as /worker/ or EIO|ENOSPC; repeatable",
    )
    parser.add_argument("--replay", metavar="CASE[,CASE…]", help="these cases in one session (with its --seed)")
    parser.add_argument("--times", type=int, default=1, help="replay so often (1)")
    parser.add_argument("--list", action="store_true", help="print the cases, and run none")
    parser.add_argument("--dir", help="folder for the nodes (a real disk)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    try:
        cases = [Case.parse(text) for text in options.replay.split(",")] if options.replay else []
    except ValueError as error:
        parser.error(str(error))
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = Campaign(real_folder(options.dir), seed, options.lanes)

    def stop(_number: int, _frame: object) -> None:
        campaign.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        if options.replay:
            for _ in range(options.times):
                texts = [str(case) for case in cases]
                campaign.report.planned += len(cases)
                campaign.report.add(campaign.lanes[0].ask(do="session", cases=texts, seed=seed), texts, seed)
        else:
            cases = _chosen(plan(campaign.counts(), seed), options.only)
            if options.list:
                print("\n".join(map(str, cases)))
                return 0
            campaign.run(cases, time.monotonic() + options.minutes * 60, min(options.cases, len(cases)))
    finally:
        campaign.end()
    print(json.dumps(campaign.report.as_json()) if options.json else campaign.report)
    return 1 if campaign.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
