"""Power-cut campaign: `python -m warren.tools.crash powercut --fs ext4,xfs,btrfs --rounds N --seed S`, as root.

Method: a node on a file system in a file (loop_image.py) under load (powercut_load.py). At some moment the power of
that file system is cut, every process is killed, and it is mounted again. Then `warren check` must find no problem, the
node must start, and what was confirmed before the cut must be there once: messages of queues and of topics with their
bytes, topics' at their offsets and by their keys; a group does not go back behind what it committed; `check` must find
no problem after the stop, either. Messages whose confirm nobody saw may be there, once.

The rounds of one file system take turns with the others. Time and space are bounded: an image has loop_image.BYTES.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, QueueEmpty
from warren.tools.crash.loop_image import KINDS, ImageError, LoopImage, own_mounts, refusal
from warren.tools.crash.powercut_load import GROUP, QUEUES, TOPICS, number_of
from warren.tools.crash.victims import kill_all
from warren.workers.cli.check import verify
from warren.workers.process import interpreter

LOAD_S = (0.3, 4.0)  #: from the first confirms to the cut
BEGIN_S = 120.0
DRAIN_S = 60.0
LOOKS = 200
SHOWN = 40


@dataclass
class Confirmed:
    """Confirms that the load received before the cut."""

    queues: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    topics: dict[str, dict[int, tuple[int, int]]] = field(default_factory=lambda: {name: {} for name in TOPICS})
    group: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, log: Path, until: float) -> Confirmed:
        """The lines that were written before a moment."""
        found = cls()
        for line in log.read_text().splitlines():
            when, what, rest = line.split(" ", 2)
            if float(when) >= until:
                continue
            if what == "queue":
                name, first, count = rest.split()
                found.queues[name].update(range(int(first), int(first) + int(count)))
            elif what == "topic":
                name, number, queue, offset = rest.split()
                found.topics[name][int(number)] = int(queue), int(offset)
            elif what == "group":
                queue, behind = rest.split()
                found.group[int(queue)] = max(int(behind), found.group.get(int(queue), 0))
            else:
                found.wrong.append(f"before the cut: {rest}")
        return found

    def count(self) -> int:
        """Confirms."""
        return sum(map(len, (*self.queues.values(), *self.topics.values()))) + sum(self.group.values())


@dataclass
class Report:
    """The findings of a campaign."""

    seed: int
    rounds: Counter[str] = field(default_factory=Counter)
    confirmed: int = 0
    unconfirmed_there: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {key: dict(value) if isinstance(value, Counter) else value for key, value in self.__dict__.items()}

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {sum(self.rounds.values())} power cuts {dict(self.rounds)} in {self.seconds:.0f} s",
            f"{self.confirmed:,} confirms; {self.unconfirmed_there:,} messages there that nobody had seen confirmed",
            f"violations: {len(self.violations)}",
            *(f"  {text}" for text in self.violations[:SHOWN]),
        ]
        return "\n".join(lines)


class Round:
    """One cut."""

    def __init__(self, kind: str, folder: Path, seed: str) -> None:
        self.kind, self.folder, self.rng, self.seed = kind, folder, random.Random(seed), seed
        self.log, self.said = folder / "confirms", folder / "said"
        self.confirmed = Confirmed()
        self.unconfirmed_there = 0

    def run(self) -> list[str]:
        """Run it, and return the violations. Raises ImageError, Error."""
        with LoopImage(self.kind, self.folder) as image:
            self.directory = image.place / "node"
            try:
                when = self._load(image)
                self.confirmed = Confirmed.read(self.log, when)
                image.mount_again()
                return self.confirmed.wrong + list(self._unlike())
            finally:
                kill_all(self.directory)

    def _load(self, image: LoopImage) -> float:
        arguments = str(self.directory), str(self.log), str(self.rng.getrandbits(32))
        with open(self.said, "wb") as said:
            process = subprocess.Popen(
                interpreter.command("warren.tools.crash.powercut_load", *arguments),
                env=interpreter.environment(),
                stdout=said,
                stderr=said,
            )
        try:
            self._await_confirms(process)
            time.sleep(self.rng.uniform(*LOAD_S))
            return image.cut()
        finally:
            process.kill()
            process.wait()
            kill_all(self.directory)

    def _await_confirms(self, process: subprocess.Popen[bytes]) -> None:
        """Until everybody of the load has confirms."""
        deadline = time.monotonic() + BEGIN_S
        while True:
            log = self.log.read_text() if self.log.exists() else ""
            if all(f" {what} " in log for what in (*(f"queue {name}" for name in QUEUES), "topic cut-wide", "group")):
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise ImageError(f"the load did not begin: {self.said.read_text()[-2000:]} {log[-500:]}")
            time.sleep(0.05)

    # -- afterwards ---------------------------------------------------------------------------------------------

    def _unlike(self) -> Iterator[str]:
        for text in verify(NodeDirectory(self.directory)).problems:
            yield f"check after the cut: {text}"
        try:
            node = warren.open(self.directory, name="powercut-judge", idle_exit=60.0)
        except (Error, OSError) as error:
            yield f"the start fails: {error!r}"
            return
        with node:
            for name in QUEUES:
                yield from self._unlike_queue(node, name)
            for name in TOPICS:
                yield from self._unlike_topic(node.topic(name), name)
            yield from self._unlike_group(node)
        self._stop()
        for text in verify(NodeDirectory(self.directory)).problems:
            yield f"check after the stop: {text}"

    def _stop(self) -> None:
        subprocess.run(
            interpreter.command("warren.workers.cli.main", "stop", str(self.directory)),
            env=interpreter.environment(),
            capture_output=True,
            check=False,
            timeout=DRAIN_S,
        )

    def _unlike_queue(self, node: warren.Node, name: str) -> Iterator[str]:
        queue, there = node.queue(name), Counter[int]()
        while True:
            try:
                messages = queue.get_many(500, timeout=1)
            except QueueEmpty:
                messages = []
            if not messages:
                break
            for message in messages:
                number = number_of(bytes(message.body))
                if number is None:
                    yield f"queue {name} has a message that nobody put: {bytes(message.body[:40])!r}"
                else:
                    there[number] += 1
                message.ack()
        yield from self._unlike_numbers(f"queue {name}", there, self.confirmed.queues[name])

    def _unlike_numbers(self, where: str, there: Counter[int], confirmed: set[int]) -> Iterator[str]:
        lost = sorted(confirmed - there.keys())
        doubled = sorted(number for number, count in there.items() if count > 1)
        self.unconfirmed_there += len(there.keys() - confirmed)
        if lost:
            yield f"{where}: {len(lost)} confirmed messages are gone, the first is {lost[0]}"
        if doubled:
            yield f"{where}: {len(doubled)} messages are there more than once, the first is {doubled[0]}"

    def _unlike_topic(self, topic: warren.Topic, name: str) -> Iterator[str]:
        there: Counter[int] = Counter()
        places: dict[int, tuple[int, int]] = {}
        for queue in range(topic.queues):
            offset, end = topic.offsets(queue)
            while offset < end:
                records = topic.read(queue, offset, max=500, max_bytes=4 << 20).records
                if not records:
                    yield f"topic {name}/{queue} has nothing at offset {offset} of {end}"
                    break
                for record in records:
                    number = number_of(bytes(record.body))
                    if number is None:
                        yield f"topic {name}/{queue}:{record.offset} is a message that nobody appended"
                        continue
                    there[number] += 1
                    places[number] = queue, record.offset
                offset = records[-1].offset + 1
        confirmed = self.confirmed.topics[name]
        yield from self._unlike_numbers(f"topic {name}", there, set(confirmed))
        moved = [number for number, place in confirmed.items() if number in places and places[number] != place]
        if moved:
            yield f"topic {name}: {len(moved)} messages moved; {moved[0]} was at {confirmed[moved[0]]}"
        for number in self.rng.sample(sorted(places), min(LOOKS, len(places))):
            found = [(record.queue, record.offset) for record in topic.find(f"{name}-{number}")]
            if found != [places[number]]:
                yield f"topic {name}: key {name}-{number} leads to {found}, and the message is at {places[number]}"

    def _unlike_group(self, node: warren.Node) -> Iterator[str]:
        first: defaultdict[int, int] = defaultdict(lambda: 1 << 62)
        with node.topic(TOPICS[0]).reader(GROUP, commit="manual") as reader:
            while True:
                try:
                    record = reader.get(2)
                except QueueEmpty:
                    break
                first[record.queue] = min(first[record.queue], record.offset)
        for queue, behind in self.confirmed.group.items():
            if first[queue] < behind:
                yield f"the group had committed up to {behind} of queue {queue}, and gets {first[queue]}"


class Campaign:
    """Rounds, until there are enough."""

    def __init__(self, seed: int, folder: str | None, keep: Path, say: Callable[[str], None]) -> None:
        self.folder, self.keep, self.say = folder, keep, say
        self.report = Report(seed)

    def run(self, kinds: list[str], rounds: int, seconds: float) -> Report:
        """So many rounds of each kind, as long as there is time."""
        began = time.monotonic()
        for number in range(rounds):
            for kind in kinds:
                if time.monotonic() - began < seconds:
                    self._round(kind, number)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _round(self, kind: str, number: int) -> None:
        report = self.report
        with tempfile.TemporaryDirectory(prefix="warren-powercut-", dir=self.folder) as made:
            one = Round(kind, Path(made).resolve(), f"{report.seed}/{kind}/{number}")
            try:
                wrong = one.run()
            except Error as error:
                wrong = [repr(error)]
            if wrong:
                self._keep(one, kind, number)
        report.rounds[kind] += 1
        report.confirmed += one.confirmed.count()
        report.unconfirmed_there += one.unconfirmed_there
        report.violations += [f"{kind}, round {number}: {text}" for text in wrong]
        self.say(f"{kind}, round {number}: {one.confirmed.count():,} confirms, {len(wrong)} violations")

    def _keep(self, one: Round, kind: str, number: int) -> None:
        """Keep the output of the load; the image is gone."""
        place = self.keep / f"powercut-{self.report.seed}-{kind}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        for path in (one.log, one.said):
            if path.exists():
                shutil.copy(path, place)


def main(argv: list[str] | None = None) -> int:
    """Run a campaign; 1 when something is wrong, 2 when it cannot run here."""
    parser = argparse.ArgumentParser(
        prog="warren.tools.crash powercut", description="Cut the power of real file systems under a node's load."
    )
    parser.add_argument("--fs", default="ext4", help=f"file systems: {','.join(KINDS)} (ext4)")
    parser.add_argument("--rounds", type=int, default=3, help="cuts of each (3)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no round after so long (30)")
    parser.add_argument("--dir", help="folder for the images (a temporary one)")
    kept = Path(tempfile.gettempdir())
    parser.add_argument("--keep", type=Path, default=kept, help="where logs of bad rounds are kept")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    kinds = options.fs.split(",")
    for kind in kinds:
        if why := refusal(kind):
            print(f"powercut cannot run here: {why}", file=sys.stderr)
            return 2
    try:
        own_mounts()
    except ImageError as error:
        print(f"powercut cannot run here: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the mounts go with us
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = Campaign(seed, options.dir, options.keep, lambda text: print(text, file=sys.stderr, flush=True))
    report = campaign.run(kinds, options.rounds, options.minutes * 60)
    print(json.dumps(report.as_json()) if options.json else report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
