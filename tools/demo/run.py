"""The main job from start to end: a node, two producers, two consumers, a Spark stream, kills if wanted, and the check.

Everything that was started is stopped at the end, also after an error or Ctrl-C: children first, then the node (unless
it ran before), then the directory (unless it is to be kept). Children that lose this process end by themselves (their
input closes), and so does the node, some seconds after its last client (idle_exit).
"""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, TimedOut, UsageError
from warren.engine.saying import command
from warren.tools.demo import check as checking
from warren.tools.demo import consumer, picture, producer, stream
from warren.tools.demo.chaos import Chaos, Killed, Progress
from warren.tools.demo.direct import Direct, compute
from warren.tools.demo.inputs import AUDIT, EXCHANGE, LATE, MANIFESTS, RECORDS, REPORT, SPARK, Input
from warren.tools.demo.processes import Child, Children, uninterrupted
from warren.workers.faces.node import Node, attach
from warren.workers.process.control import ControlClient
from warren.workers.process.launch import launch
from warren.workers.spark.pipelines.pictures import check_matplotlib
from warren.workers.spark.session import check_spark

PRODUCERS = 2
TOPIC_QUEUES = 4
IDLE_EXIT_S = 20.0
STATUS_EVERY_S = 0.25
LISTEN_S = 0.05
STALLED_S = 240.0
#: how long queues must look empty when less was received than published: a worker that starts anew shows nothing yet
DRAINED_S = 5.0


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    input: Input
    directory: Path | None = None
    chaos: bool = False
    cluster: bool = False
    keep: bool = False
    report: Path | None = None  #: folder for a page with a picture


class Watcher(Protocol):
    """Who shows how the job goes on."""

    def stage(self, text: str) -> None:
        """Something worth a line has happened."""

    def progress(self, progress: Progress) -> None:
        """Numbers have changed."""


class Sample(NamedTuple):
    """How far the job was."""

    second: float
    published: int
    received: int
    streamed: int
    copied: int


@dataclass
class Outcome:
    """What the job did."""

    direct: Direct
    check: checking.Check
    rows: list[stream.Row]
    latencies_ms: dict[str, float]
    published: int
    published_bytes: int
    publish_seconds: float
    in_calls_seconds: float  #: of these, the longest that a producer was in Warren's calls
    received: int
    receive_seconds: float
    streamed: int
    spark_start_seconds: float
    batches: list[stream.Batch]  #: of the stream that groups: those that had rows
    copied: int  #: records of the topic that the other stream has read
    copy_batches: list[stream.Batch]
    seconds: float
    spark_clients: list[str]
    killed: list[Killed]
    status: dict[str, Any]
    kept: Path | None
    segment_files: int
    samples: list[Sample]
    totals: Sample  #: all there was to do
    latencies: NDArray[np.float64]  #: of every delivery, in milliseconds
    restarts: list[str] = field(default_factory=list)
    page: Path | None = None  #: the report


def run(wishes: Wishes, watcher: Watcher) -> Outcome:
    """Run the job. Raises Error when it cannot be done; whether its result is right is in the outcome."""
    check_spark()
    if wishes.report is not None:
        check_matplotlib()
    with _workplace(wishes) as (base, kept):
        node_directory, work = base / "node", base / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        ran_before = NodeDirectory(node_directory).locked()
        try:
            watcher.stage(f"starting a node: look at it with {command('status', node_directory)}")
            with uninterrupted():
                launch(node_directory, idle_exit=IDLE_EXIT_S)
            with attach(node_directory, timeout=60, name="demo") as node:
                outcome = _Job(wishes, watcher, node, node_directory, work, kept).run()
            if wishes.report is not None:
                outcome.page = picture.write(outcome, wishes.input, wishes.report.absolute())
            return outcome
        finally:
            if not ran_before:
                _stop_node(node_directory)


@contextmanager
def _workplace(wishes: Wishes) -> Iterator[tuple[Path, Path | None]]:
    """The directory of the job, and the same again if it stays."""
    if wishes.directory is not None:
        wishes.directory.mkdir(parents=True, exist_ok=True)
        yield wishes.directory.resolve(), wishes.directory.resolve()
        return
    base = Path(tempfile.mkdtemp(prefix="warren-demo-"))
    try:
        yield base, base if wishes.keep else None
    finally:
        if not wishes.keep:
            shutil.rmtree(base, ignore_errors=True)


def _stop_node(directory: Path) -> None:
    """Stop the node and wait until it has gone; nothing when there is none."""
    node = NodeDirectory(directory)
    if not node.locked():
        return
    with ControlClient(directory) as control:
        try:
            control.call("stop")
        except Error:
            return
    deadline = time.monotonic() + 30
    while node.locked():
        if time.monotonic() > deadline:
            raise TimedOut(f"the node of {directory} did not stop within 30 s: see {directory / 'log'}")
        time.sleep(0.02)


class _Job:
    """The running job."""

    def __init__(
        self, wishes: Wishes, watcher: Watcher, node: Node, node_directory: Path, work: Path, kept: Path | None
    ) -> None:
        self.wishes = wishes
        self.watcher = watcher
        self.node = node
        self.directory = str(node_directory)
        self.work = work
        self.kept = kept
        self.progress = Progress()
        self.control = ControlClient(node_directory)
        self.chaos = Chaos() if wishes.chaos else None
        self.spark_clients: set[str] = set()
        self.segment_files = 0
        self.restarts: list[str] = []
        self.samples: list[Sample] = []
        self.consumers: list[Child] = []
        self.incarnations: list[int] = []
        self.record_files: dict[Path, list[str]] = {}
        self.queues = wishes.input.bindings()
        parts = [name for name in self.queues if name not in (AUDIT, MANIFESTS, SPARK)]
        #: two processes share `audit`; the other queues have one consumer each
        self.shares = [[AUDIT, MANIFESTS], [AUDIT, *parts]]
        self.drivers = 0
        #: batches that drivers had told of which were killed
        self.batches_before: dict[str, list[stream.Batch]] = {"groups": [], "late": []}
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}

    def run(self) -> Outcome:
        """All of it."""
        self._declare()
        children = Children(self.work)
        direct: list[Direct] = []
        computing = threading.Thread(target=lambda: direct.append(compute(self.wishes.input)), daemon=True)
        try:
            self.watcher.stage("starting Spark; computing the same figures straight from the file meanwhile")
            self.stream = self._start_stream(children)
            computing.start()
            computing.join()
            if not direct:
                raise Error(f"{self.wishes.input.path} could not be read to its end")
            self._set_totals(direct[0])
            for index in range(len(self.shares)):
                self.incarnations.append(0)
                self.consumers.append(self._start_consumer(children, index))
            self.producers = [self._start_producer(children, part) for part in range(PRODUCERS)]
            self._follow(children)
            rows = self._read_report(len(direct[0].groups))
            status = self._status()
        finally:
            children.close()
            self.control.close()
        return self._outcome(direct[0], rows, status)

    # -- starting -----------------------------------------------------------------------------------------------

    def _declare(self) -> None:
        for queue in (*self.queues, REPORT):
            declared = self.node.queue(queue, durable=True)
            if len(declared):
                raise UsageError(
                    f"queue {queue!r} of {self.directory} is not empty: an earlier demo was cut off there; "
                    "use another --dir"
                )
        self.topics = {name: self.node.topic(name, queues=TOPIC_QUEUES) for name in (RECORDS, LATE)}
        for topic in self.topics.values():
            if any(topic.offsets(queue)[1] for queue in range(topic.queues)):
                raise UsageError(
                    f"topic {topic.name!r} of {self.directory} is not empty: a demo was there before; use another --dir"
                )
        self.node.declare_exchange(EXCHANGE, "topic")
        for queue, pattern in self.queues.items():
            self.node.bind(queue, EXCHANGE, pattern)
        # What each record is about becomes its key, so that a queue of the topic has all of one kind in order.
        self.node.bind_topic(RECORDS, EXCHANGE, self.wishes.input.pattern, key="routing_key", tag=None)

    def _start_stream(self, children: Children) -> Child:
        late_from = self.wishes.input.late_from
        lowest = late_from if math.isfinite(late_from) else None
        task = stream.Task(self.directory, str(self.work), self.wishes.cluster, lowest)
        child = children.start(f"stream-{self.drivers}", "stream", task)
        self.drivers += 1
        return child

    def _start_producer(self, children: Children, part: int) -> Child:
        task = producer.Task(self.directory, self.wishes.input, part, PRODUCERS)
        return children.start(f"producer-{part}", "producer", task)

    def _start_consumer(self, children: Children, index: int) -> Child:
        incarnation = self.incarnations[index]
        name = f"consumer-{index}-{incarnation}"
        queues = self.shares[index]
        records = self.work / f"{name}.records"
        self.record_files[records] = queues
        return children.start(name, "consumer", consumer.Task(self.directory, queues, str(records), f"demo-{name}"))

    def _set_totals(self, direct: Direct) -> None:
        self.progress.publish_total = direct.records + direct.blocks
        self.progress.receive_total = sum(len(found) for name, found in direct.expected.items() if name != SPARK)
        self.progress.stream_total = self.progress.copy_total = direct.records
        self.watcher.stage(
            f"{direct.records:,} records in {direct.blocks:,} blocks, {len(direct.groups):,} groups; "
            f"{PRODUCERS} producers, {len(self.shares)} consumers"
        )

    # -- following ----------------------------------------------------------------------------------------------

    def _follow(self, children: Children) -> None:
        """Until the producers, the consumers and the stream are done."""
        self.publishing_since = time.monotonic()
        next_status = 0.0
        moved = time.monotonic()
        drained_since = moved
        finished = draining = False
        while True:
            for child, lines in children.listen(LISTEN_S):
                for fields in lines:
                    if "stage" in fields:
                        self._stage_of_stream(fields)
                if lines:
                    moved = time.monotonic()
                if child.exit_code is not None and not child.is_done:
                    self._ended_badly(children, child)
            self._count()
            self.watcher.progress(self.progress)
            if self.chaos is not None:
                self._do_chaos()
            if not finished and all(child.is_done for child in self.producers):
                finished = True
                self.seconds["publish"] = time.monotonic() - self.publishing_since
                self.stream.order("finished")
            now = time.monotonic()
            if now >= next_status:
                next_status = now + STATUS_EVERY_S
                self.samples.append(self._sample())
                status = self._status()
                self._note_clients(status)
                if not (finished and self._drained(status)):
                    drained_since = now
                enough = self.progress.received >= self.progress.receive_total
                if finished and not draining and (enough or now - drained_since > DRAINED_S) and self._drained(status):
                    draining = True
                    self.seconds["receive"] = now - self.publishing_since
                    for child in self.consumers:
                        child.finish()
            all_done = self.stream.is_done and draining and all(child.is_done for child in self.consumers)
            if all_done and (self.chaos is None or not self.chaos.plan):
                return
            if now - moved > STALLED_S:
                raise TimedOut(
                    f"nothing has moved for {STALLED_S:g} s: see {self.work} (with --keep) and `warren status`"
                )

    def _stage_of_stream(self, fields: dict[str, Any]) -> None:
        if fields["stage"] == "session":
            if self.drivers == 1:
                self.seconds["session"] = time.monotonic() - self.started
            self.progress.spark_up = True
            self.watcher.stage(f"Spark {fields['version']} is up after {time.monotonic() - self.started:.0f} s")
        else:
            self.restarts.append(fields["reason"])
            self.watcher.stage(f"the stream goes on from its checkpoint after: {fields['reason']}")

    def _count(self) -> None:
        progress = self.progress
        progress.published = sum(child.heard.get("published", 0) for child in self.producers)
        # what is written down counts, also by a consumer that was killed since
        progress.received = (
            sum(path.stat().st_size for path in self.record_files if path.exists()) // consumer.ROW.itemsize
        )
        groups, late = self._batches("groups"), self._batches("late")
        progress.streamed, progress.batches = sum(rows for rows, _ms in groups), len(groups)
        progress.copied, progress.copy_batches = sum(rows for rows, _ms in late), len(late)

    def _sample(self) -> Sample:
        progress = self.progress
        second = time.monotonic() - self.started
        return Sample(second, progress.published, progress.received, progress.streamed, progress.copied)

    def _batches(self, name: str) -> list[stream.Batch]:
        """Micro-batches of a stream that had rows, of all drivers."""
        told = self.stream.heard.get("batches", {}).get(name, ())
        return [*self.batches_before[name], *((rows, ms) for rows, ms in told)]

    def _do_chaos(self) -> None:
        assert self.chaos is not None
        for killed in self.chaos.tick(self.progress, self._status, self._consumer_pid, self._driver_pid):
            killed.second = time.monotonic() - self.started
            self.watcher.stage(f"SIGKILL to {killed.what} {killed.index} (pid {killed.pid}): {killed.when}")

    def _driver_pid(self) -> int:
        return self.stream.process.pid if self.stream.exit_code is None and not self.stream.is_done else 0

    def _consumer_pid(self, index: int) -> int:
        child = self.consumers[index]
        return child.process.pid if child.exit_code is None else 0

    def _ended_badly(self, children: Children, child: Child) -> None:
        """A child ended before it was done: what was killed is started again, anything else ends the job."""
        if child in self.consumers and self.chaos is not None and child.exit_code == -9:
            index = self.consumers.index(child)
            self.incarnations[index] += 1
            self.consumers[index] = self._start_consumer(children, index)
            self.watcher.stage(f"consumer {index} is started again; what it had not acked comes again, marked")
            return
        if child is self.stream and self.chaos is not None and child.exit_code == -9:
            self.batches_before = {name: self._batches(name) for name in self.batches_before}
            self.stream = self._start_stream(children)
            if all(producer.is_done for producer in self.producers):
                self.stream.order("finished")
            self.watcher.stage("Spark's driver is started again; its streams go on from their checkpoints")
            return
        raise child.failure()

    def _status(self) -> dict[str, Any]:
        return self.control.call("status", timeout=60)

    def _note_clients(self, status: dict[str, Any]) -> None:
        names = (client["name"] for client in status["clients"])
        self.spark_clients.update(name for name in names if name.startswith("spark-"))
        segments = Path(self.directory, "queues").glob("worker-*/segments/*/*.idx")
        self.segment_files = max(self.segment_files, sum(1 for _path in segments))

    def _drained(self, status: dict[str, Any]) -> bool:
        """Nothing is left in the consumers' queues."""
        left = {queue["name"]: queue["ready"] + queue["unacked"] for queue in status["queues"]}
        return not any(left.get(name, 1) for name in self.queues if name != SPARK)

    # -- the end ------------------------------------------------------------------------------------------------

    def _read_report(self, groups: int) -> list[stream.Row]:
        """Receive the result rows, and ack them."""
        queue = self.node.queue(REPORT, durable=True)
        rows: list[stream.Row] = []
        decoder = msgspec.json.Decoder(stream.Row)
        while True:
            messages = consumer.take(queue, 1000, 5.0 if len(rows) < groups else 0.0)
            if not messages:
                return rows
            rows += [decoder.decode(message.body) for message in messages]
            messages[-1].ack(multiple=True)

    def _outcome(self, direct: Direct, rows: list[stream.Row], status: dict[str, Any]) -> Outcome:
        records = checking.read_records(self.record_files)
        parquet = checking.read_parquet(stream.results_path(str(self.work)))
        topics = {name: checking.read_topic(topic) for name, topic in self.topics.items()}
        check = checking.compare(direct, records, topics, rows, parquet)
        if not any("-executor-" in name for name in self.spark_clients):
            check.problems.append("no Spark executor was seen among the node's clients")
        taken = np.concatenate([found["latency_ns"] for found in records.values()]) / 1e6
        return Outcome(
            direct=direct,
            check=check,
            rows=rows,
            latencies_ms={name: float(np.percentile(taken, share)) for name, share in (("p50", 50), ("p99", 99))},
            published=self.progress.published,
            published_bytes=sum(child.heard.get("bytes", 0) for child in self.producers),
            publish_seconds=self.seconds["publish"],
            in_calls_seconds=max(child.heard["publishing_seconds"] for child in self.producers),
            received=self.progress.received,
            receive_seconds=self.seconds["receive"],
            streamed=self.progress.streamed,
            spark_start_seconds=self.seconds["session"],
            batches=self._batches("groups"),
            copied=self.progress.copied,
            copy_batches=self._batches("late"),
            seconds=time.monotonic() - self.started,
            spark_clients=sorted(self.spark_clients),
            killed=self.chaos.done if self.chaos else [],
            status=status,
            kept=self.kept,
            segment_files=self.segment_files,
            samples=[*self.samples, self._sample()],
            totals=Sample(
                0.0,
                self.progress.publish_total,
                self.progress.receive_total,
                self.progress.stream_total,
                self.progress.copy_total,
            ),
            latencies=taken,
            restarts=self.restarts,
        )
