"""`consumequeue-check`: are the consume queues what the log says? Each unit with the record that it names, and back.

Judged is what a start does not make again by itself: records below the checkpoint's position. Not expected are units
of records that no queue of a topic has: Warren's own (commits, offsets, messages that come later), and those of topics
that were deleted; and of offsets below a queue's minimum, whose units retention may have removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import data_files
from warren.engine.topics.names import node_bytes
from warren.engine.topics.service import boot_bytes
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines.rows import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: verdicts that are no problem: `later` is made by the next start, `retained` went with its file, `undeclared` is of a
#: topic that was deleted
FINE = frozenset({"ok", "later", "retained", "undeclared"})


class Verdict(NamedTuple):
    """How many units or records of a queue got a verdict, and the position of the first of them in the log."""

    topic: str
    queue: int
    verdict: str
    messages: int
    first: int


class Bounds(NamedTuple):
    """What is judged."""

    #: records of the log are there from here on
    first: int
    #: units of records below are on disk
    checkpoint: int
    #: (topic id, queue) → the first offset that has to have a unit
    minima: dict[tuple[int, int], int]


def bounds(directory: Directory) -> Bounds:
    """What the checkpoint says; without one all units are made again by the next start. Raises StoreError."""
    settings = directory.settings
    folder = directory.topics_folder
    try:
        root = data_files.open_folder(folder.path)
    except FileNotFoundError as error:
        raise StoreError(f"{folder.path} is missing: this node never had a topic") from error
    try:
        sizes = settings.consume_queue_entries, settings.index_slots, settings.index_entries
        whose = node_bytes(directory.node_id), boot_bytes(root)
        _kind, found = _core.topics_checkpoint(root, *whose, settings.log_file_bytes, *sizes)
    finally:
        os.close(root)
    bases = [int(path.name) for path in folder.log.iterdir() if path.name.isdigit()] if folder.log.is_dir() else []
    if found is None:
        return Bounds(min(bases, default=0), 0, {})
    minima = {(row[0], row[1]): row[2] for row in found["rows"] if row[2]}
    return Bounds(min(bases, default=0), found["position"], minima)


def compared(units: DataFrame, records: DataFrame, known: Bounds, declared: Iterable[int]) -> DataFrame:
    """A row for each position of the log that a unit or a record has: topic_id, queue, log_position, verdict.

    `units`: topic_id, queue, offset, log_position, record_bytes, tags_code. `records`: the same with bytes in the place
    of record_bytes. `declared`: ids of topics. Positions meet in a sum and not in a join, so nothing is sorted.
    """
    from pyspark.sql import functions as f

    topics = list(declared)
    sides = units.select(
        f.lit(1).alias("unit"),
        f.lit(0).alias("record"),
        "log_position",
        "topic_id",
        "queue",
        "offset",
        f.col("record_bytes").cast("bigint").alias("size"),
        "tags_code",
    ).unionAll(
        records.select(
            f.lit(0).alias("unit"),
            f.lit(1).alias("record"),
            "log_position",
            "topic_id",
            "queue",
            "offset",
            f.col("bytes").alias("size"),
            "tags_code",
        )
    )
    both = sides.groupBy("log_position").agg(
        f.sum("unit").alias("units"),
        f.sum("record").alias("records"),
        *(f.min(name).alias(f"low_{name}") for name in ("topic_id", "queue", "offset", "size", "tags_code")),
        *(f.max(name).alias(f"high_{name}") for name in ("topic_id", "queue", "offset", "size", "tags_code")),
    )

    def differs(name: str) -> Any:
        return f.col(f"low_{name}") != f.col(f"high_{name}")

    known_topic = f.col("low_topic_id").isin(topics) if topics else f.lit(False)
    minimum: Any = f.lit(0)
    for (topic, queue), low in known.minima.items():
        minimum = f.when((f.col("low_topic_id") == topic) & (f.col("low_queue") == queue), low).otherwise(minimum)
    verdict = (
        f.when((f.col("units") == 0) & ~known_topic, "undeclared")
        .when((f.col("units") == 0) & (f.col("low_offset") < minimum), "retained")
        .when((f.col("units") == 0) & (f.col("log_position") >= known.checkpoint), "later")
        .when(f.col("units") == 0, "no_unit")
        .when((f.col("records") == 0) & (f.col("log_position") < known.first), "retained")
        .when((f.col("records") == 0) & (f.col("low_offset") < minimum), "retained")
        .when((f.col("records") == 0) & (f.col("log_position") >= known.checkpoint), "later")
        .when(f.col("records") == 0, "no_record")
        .when(differs("topic_id") | differs("queue"), "wrong_queue")
        .when(differs("offset"), "wrong_offset")
        .when(differs("size"), "wrong_size")
        .when(differs("tags_code"), "wrong_tag")
        .when(f.col("units") > 1, "two_units")
        .otherwise("ok")
    )
    return both.select(
        f.col("low_topic_id").alias("topic_id"),
        f.col("low_queue").alias("queue"),
        "log_position",
        verdict.alias("verdict"),
    )


def consume_queue_check(spark: SparkSession, path: str) -> list[Verdict]:
    """Compare all consume queues with the log. Raises UsageError, StoreError, NodeNotRunning (no data directory)."""
    from pyspark.sql import functions as f

    directory = Directory.read(path)
    known = bounds(directory)
    same = ("topic_id", "queue", "offset", "log_position", "tags_code")
    units = files(spark, path, "consumequeue", *same, "record_bytes", "kind").where("kind = 'unit'").drop("kind")
    records = files(spark, path, "log", *same, "bytes", "kind").where("kind = 'record'").drop("kind")
    both = compared(units, records, known, [topic.id for topic in directory.topics])
    names = {topic.id: topic.name for topic in directory.topics}
    found = (
        both.groupBy("topic_id", "queue", "verdict")
        .agg(f.count("*").alias("count"), f.min("log_position").alias("first"))
        .collect()
    )
    return sorted(
        Verdict(
            names.get(row["topic_id"], f"id {row['topic_id']}"),
            row["queue"],
            row["verdict"],
            row["count"],
            row["first"],
        )
        for row in found
    )
