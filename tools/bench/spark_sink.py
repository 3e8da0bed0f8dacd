"""`warren bench spark-sink`: rows of a DataFrame written to a queue, and to a topic, beside a sink that discards them.

The limit is what Spark hands to any sink in Python: `Discarding` takes the same Arrow batches of the same frame, and
counts their rows. Both have their turn in each round, in one session on two cores; what was written is counted. Rows
for a topic have keys, which decide their queue there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren import Durability, Node
from warren.tools.bench import spark_limit
from warren.tools.bench.harness import BenchError, Result, cell, temporary_node

INTO = ("queue", "topic")
ROWS_MAX = 2_000_000
#: of the bodies of one run
BYTES_MAX = 1 << 30
PARTITIONS = 2
KEYS = 100_000
NAME = "written"


def rows_of(size: int) -> int:
    """How many rows a run writes."""
    return max(1000, min(ROWS_MAX, BYTES_MAX // max(size, 1)))


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task was given."""

    rows: int


class Discarding(DataSource):
    """`format("discarding")`: takes rows, and keeps none."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "discarding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        return DiscardingWriter(dict(self.options))


class DiscardingWriter(DataSourceArrowWriter):
    """Counts the rows of Arrow batches."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rows = int(options["rows"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of one partition."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raise unless all rows were there."""
        found = sum(message.rows for message in messages if isinstance(message, Counted))
        if found != self.rows:
            raise BenchError(f"{found:,} rows of {self.rows:,} came to the sink")


def _frame(spark: SparkSession, rows: int, size: int, into: str) -> DataFrame:
    key = [f"cast(id % {KEYS} as string) as key"] if into == "topic" else []
    value = f"cast(repeat('x', {size}) as binary) as value"
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(value, *key)


def _discard_s(frame: DataFrame, rows: int) -> float:
    began = time.monotonic()
    frame.write.format("discarding").option("rows", str(rows)).mode("append").save()
    return time.monotonic() - began


def _write_s(frame: DataFrame, node: Node, into: str, durability: Durability, rows: int) -> float:
    """Seconds of one write, with a queue or topic of its own, whose messages are counted and removed."""
    made = node.queue(NAME) if into == "queue" else node.topic(NAME)
    writer = frame.write.format("warren").option("path", str(node.directory)).option(into, NAME)
    began = time.monotonic()
    writer.option("durability", durability).mode("append").save()
    seconds = time.monotonic() - began
    found = made.stats()["ready" if into == "queue" else "messages"]
    made.delete()
    if found != rows:
        raise BenchError(f"{rows:,} rows were written, and the {into} has {found:,}")
    return seconds


def run_spark_sink(folder: Path, size: int, durability: Durability, rows: int, into: str) -> Result:
    """Writes to a queue or a topic, and their limit, in turn; medians of the rounds."""
    with temporary_node(folder) as temporary, spark_limit.bench_session(folder) as spark:
        spark.dataSource.register(Discarding)
        frame = _frame(spark, rows, size, into)
        found = spark_limit.in_turn(
            {
                "discarded": lambda: _discard_s(frame, rows),
                "written": lambda: _write_s(frame, temporary.node, into, durability, rows),
            }
        )
    seconds = statistics.median(found["written"])
    batch = int(spark_limit.BATCH_ROWS)
    run = cell("spark-sink", size, durability, batch, PARTITIONS, rows, seconds, None, into=into, rounds_s=found)
    run["limit"] = {"messages_per_s": round(rows / statistics.median(found["discarded"]), 1)}
    run["ratio_to_limit"] = round(spark_limit.ratio(found, "written", "discarded"), 3)
    return run
