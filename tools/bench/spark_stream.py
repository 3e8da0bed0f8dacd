"""`warren bench spark-stream`: how long small micro-batches take: a topic to which messages come in a trickle is
streamed into the sink that discards, into another topic, and into another topic in transactions, one query at a time.

The trigger is as soon as possible, so there is always a micro-batch under way, of what came during the one before. Its
time is Spark's `triggerExecution`, from asking for the newest offset to the written commit; where it goes is told by
phases. The limit is what Spark itself takes: as many micro-batches of a source that repeats one small Arrow batch into
the sink that discards, in the same session (tools/bench/spark_limit.py). Each query warms up first: Spark loads and
compiles in its first micro-batches. What came out is counted.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import warren
from warren.tools.bench import spark_limit
from warren.tools.bench.harness import BenchError, Result, cell, percentiles_us, temporary_node
from warren.tools.bench.topic import Tell

#: by the name of the cell: the options of the sink; none: the one that discards
SINKS: Mapping[str, Mapping[str, str]] = {
    "noop": {},
    "direct": {"delivery": "direct"},
    "transactional": {"delivery": "transactional", "sinkId": "copy", "takeOver": "true"},
}
#: micro-batches that are measured, and before them those that are not
BATCHES = 50
WARM = 10
TOPIC, COPY = "trickle", "copied"
PARTITIONS = 2
#: messages of a call, to each partition in turn, and seconds between two calls
EACH = 10
PACE_S = 0.02
#: rows of a micro-batch of the limit: about as many as came during one
LIMIT_ROWS = 100
QUERY_TIMEOUT_S = 300
LOOK_S = 0.1
#: how many micro-batches a query remembers
REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"


@contextmanager
def _trickle(topic: warren.Topic, size: int) -> Iterator[None]:
    """Messages come, until the end of the block. Raises what appending raised."""
    end = threading.Event()
    failed: list[Exception] = []

    def append() -> None:
        bodies, keys, queue = [bytes(size)] * EACH, [f"key{n}" for n in range(EACH)], 0
        try:
            while not end.wait(PACE_S):
                topic.append_many(bodies, keys, queue=queue)
                queue = (queue + 1) % PARTITIONS
        except Exception as problem:  # noqa: BLE001 - told to whoever waits
            failed.append(problem)

    thread = threading.Thread(target=append, name="trickle")
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    if failed:
        raise failed[0]


def _run(frame: DataFrame, sink: Mapping[str, str], folder: Path, batches: int, tell: Tell, what: str) -> list[Any]:
    """The progress of so many micro-batches with rows, after those that warm up."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=folder) as checkpoint:
        writer = frame.writeStream.format("warren" if sink else "noop").options(**sink)
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        try:
            until = time.monotonic() + QUERY_TIMEOUT_S
            done = 0
            while done < WARM + batches:
                if time.monotonic() > until:
                    raise BenchError(f"{what}: {done} micro-batches in {QUERY_TIMEOUT_S} s")
                time.sleep(LOOK_S)
                if not query.isActive:
                    raise BenchError(f"{what}: the query ended: {query.exception()}")
                last = query.lastProgress
                done = 0 if last is None else int(last["batchId"])
                tell(f"{what}: {done} micro-batches")
        finally:
            query.stop()
        found = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return found[WARM:]


def _phases(found: list[Any]) -> dict[str, float]:
    """The median of each phase of a micro-batch, in milliseconds."""
    names = {name for progress in found for name in progress["durationMs"]}
    return {
        name: round(statistics.median(progress["durationMs"].get(name, 0) for progress in found), 1)
        for name in sorted(names)
    }


def _took_ns(found: list[Any]) -> list[int]:
    return [progress["durationMs"]["triggerExecution"] * 1_000_000 for progress in found]


def _limit(spark: SparkSession, folder: Path, size: int, batches: int, tell: Tell) -> list[Any]:
    rows = 100 * LIMIT_ROWS * (WARM + batches)  # more than there will be time for
    options = {"rows": str(rows), "size": str(size), "partitions": str(PARTITIONS), "batchRows": str(LIMIT_ROWS)}
    options["maxOffsetsPerTrigger"] = str(LIMIT_ROWS)
    schema = spark_limit.columns("key", "value")
    frame = spark.readStream.format("repeating").schema(schema).options(**options).load()
    return _run(frame, {}, folder, batches, tell, "limit")


@dataclass
class Measured:
    """A session, a node with the topic, and what the limit took."""

    spark: SparkSession
    node: warren.Node
    folder: Path
    topic: warren.Topic
    size: int
    batches: int
    limit: dict[str, float]

    def run(self, name: str, scan: str, tell: Tell) -> Result:
        """Micro-batches into a sink of SINKS."""
        path = str(self.node.directory)
        sink = {"path": path, "topic": COPY, **SINKS[name]} if SINKS[name] else {}
        copied = self.node.topic(COPY, queues=PARTITIONS)
        with _trickle(self.topic, self.size):
            given = {"path": path, "subscribe": TOPIC, "scan": scan}
            frame = self.spark.readStream.format("warren").options(**given).load().select("key", "value")
            found = _run(frame, sink, self.folder, self.batches, tell, name)
        rows, came = sum(progress["numInputRows"] for progress in found), copied.stats()["messages"]
        copied.delete()
        if sink and came < rows:
            raise BenchError(f"{rows:,} messages were read, and {came:,} written")
        took = _took_ns(found)
        latency = percentiles_us(took)
        assert latency is not None
        made = cell(
            f"spark-stream-{name}{'-native' if scan == 'native' else ''}", self.size, "synced" if sink else "none",
            rows // len(found), PARTITIONS, rows, sum(took) / 1e9, latency,
            micro_batches=len(found), phases_ms=_phases(found),
        )  # fmt: skip
        made["limit"] = {
            "name": "micro-batches of a source that repeats one Arrow batch", "messages_per_s": None,
            "bytes_per_s": None, "p50_us": self.limit["p50"], "p99_us": self.limit["p99"],
        }  # fmt: skip
        made["ratio_to_limit"] = round(latency["p50"] / self.limit["p50"], 3)
        return made


@contextmanager
def measured(folder: Path, size: int, batches: int, tell: Tell) -> Iterator[Measured]:
    """A session and a node for all sinks; the limit is measured first."""
    remembered = {REMEMBERED: str(10 * (WARM + batches))}
    with (
        temporary_node(folder) as temporary,
        spark_limit.bench_session(folder, remembered) as spark,
        tempfile.TemporaryDirectory(prefix="warren-bench-checkpoints-", dir=folder) as place,
    ):
        limit = percentiles_us(_took_ns(_limit(spark, Path(place), size, batches, tell)))
        assert limit is not None
        topic = temporary.node.topic(TOPIC, queues=PARTITIONS)
        yield Measured(spark, temporary.node, Path(place), topic, size, batches, limit)
