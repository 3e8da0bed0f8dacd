"""`warren bench spark-queue`: a queue read by Spark, as a batch and as a stream, beside the most that Spark takes.

The limit (tools/bench/spark_limit.py) has the same rows, columns and size of Arrow batches, is read in the same session
into the sink that discards, and takes turns with the queue; that of a stream is a stream of as many micro-batches: one.
Messages have a routing key each. A stream's are published anew before each of its rounds, outside the clock; its time
is that of its micro-batches, without the start and the end of the query.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import warren
from warren.tools.bench import spark_limit
from warren.tools.bench.harness import Result, cell, temporary_node

INTO = ("batch", "stream")
QUEUE, EXCHANGE = "flights", "departures"
#: of the row; all of them have values
COLUMNS = ("key", "value", "topic", "partition", "offset", "msg_id", "delivery_count")
PUBLISH = 1000
ROWS_MAX = 1_000_000
#: of the bodies of one run
BYTES_MAX = 200 << 20
PARTITIONS = 2


def rows_of(size: int) -> int:
    """How many messages a run reads."""
    return min(ROWS_MAX, max(10_000, BYTES_MAX // max(1, size)))


def _fill(node: warren.Node, size: int, rows: int) -> None:
    bodies, keys = [bytes(size)] * PUBLISH, [f"key{n:05}" for n in range(PUBLISH)]
    confirm = None
    for left in range(rows, 0, -PUBLISH):
        count = min(PUBLISH, left)
        confirm = node.publish_many(bodies[:count], exchange=EXCHANGE, routing_keys=keys[:count], wait=False)
    if confirm is not None:
        confirm.wait(120)


def _batch_s(spark: SparkSession, source: str, options: dict[str, str]) -> float:
    fields = spark_limit.columns(*COLUMNS)
    return spark_limit.noop_s(spark.read.format(source).schema(fields).options(**options).load())


def _stream_s(spark: SparkSession, source: str, options: dict[str, str], folder: Path, rows: int) -> float:
    fields = spark_limit.columns(*COLUMNS)
    frame = spark.readStream.format(source).schema(fields).options(**options).load()
    return spark_limit.stream_noop_s(frame, folder, rows)[0]


def run_spark_queue(folder: Path, size: int, rows: int, into: str) -> Result:
    """Reads of a queue and of the limit, in turn; medians of the rounds."""
    limits = {"rows": str(rows), "size": str(size), "partitions": str(PARTITIONS)}
    with (
        temporary_node(folder) as temporary,
        spark_limit.bench_session(folder) as spark,
        tempfile.TemporaryDirectory(prefix="warren-bench-checkpoints-", dir=folder) as made,
    ):
        node, checkpoints = temporary.node, Path(made)
        node.declare_exchange(EXCHANGE, "fanout")
        node.queue(QUEUE).bind(EXCHANGE)
        options = {"path": str(temporary.directory), "queue": QUEUE, "minPartitions": str(PARTITIONS)}

        def stream() -> float:
            _fill(node, size, rows)
            return _stream_s(spark, "warren", options, checkpoints, rows)

        if into == "batch":
            _fill(node, size, rows)
            sides = {
                "read": lambda: _batch_s(spark, "warren", options),
                "limit": lambda: _batch_s(spark, "repeating", limits),
            }
        else:
            sides = {"read": stream, "limit": lambda: _stream_s(spark, "repeating", limits, checkpoints, rows)}
        found = spark_limit.in_turn(sides)
    seconds, limit_s = (statistics.median(found[side]) for side in ("read", "limit"))
    batch = int(spark_limit.BATCH_ROWS)
    run = cell("spark-queue", size, "synced", batch, PARTITIONS, rows, seconds, None, into=into, rounds_s=found)
    rate = round(rows / limit_s, 1)
    name = f"a {into} of a source that repeats one Arrow batch"
    run["limit"] = {"name": name, "messages_per_s": rate, "bytes_per_s": round(rate * size, 1)}
    run["ratio_to_limit"] = round(spark_limit.ratio(found, "read", "limit"), 3)
    return run
