"""`audit`: what the queues hold, full-outer-joined with what the message store holds, by message id.

Verdicts
  ok       named by a queue, and there
  delta    named and there, but the two differ: another length, several records of one id, or removed there
  orphan   there, and named by no queue: garbage until it is collected, or a message that a program keeps in the store
  lost     named, and not there: the next start drops it and counts it as lost

Exact with the node down. Beside a running node what moved between the two reads looks like a difference; also after a
kill, when a message could be durable before its body, and a body go before its acknowledgement was durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines.rows import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERDICTS = ("ok", "delta", "orphan", "lost")
#: what a row of a queue needs for an audit, and a row of the store
MESSAGE_COLUMNS = ("id_high", "id_low", "queue", "body_bytes", "in_store")
STORE_COLUMNS = ("id_high", "id_low", "kind", "file_number", "bytes", "body_bytes", "holder")


class Queue(NamedTuple):
    """Messages of a queue with bodies in the store."""

    queue: str
    verdict: str
    messages: int


class StoreFile(NamedTuple):
    """Records of a file of the store, and their bytes; `garbage`: of those that nobody needs any more."""

    file: int
    records: int
    bytes: int
    garbage: int
    garbage_bytes: int


class Audit(NamedTuple):
    """What was found. `own`: orphans that a program keeps."""

    ids: dict[str, int]
    own: int
    queues: list[Queue]
    files: list[StoreFile]
    running: bool


def compared(messages: DataFrame, stored: DataFrame) -> DataFrame:
    """A row for each id: verdict, own, queues (how many name it), queue (one of them), file, bytes.

    The join is a sum over the rows of both sides: each is read once, and nothing is sorted.
    """
    from pyspark.sql import functions as f

    none = f.lit(None).cast("bigint")
    named = messages.where("in_store").select(
        "id_high",
        "id_low",
        f.lit(1).alias("named"),
        f.lit(0).alias("there"),
        f.lit(0).alias("references"),
        "queue",
        f.col("body_bytes").alias("named_bytes"),
        f.lit(None).cast("int").alias("there_bytes"),
        none.alias("file"),
        f.lit(0).cast("bigint").alias("bytes"),
        f.lit(None).cast("int").alias("holder"),
    )
    message = f.col("kind") == "message"
    there = stored.where("kind in ('message', 'reference', 'removed')").select(
        "id_high",
        "id_low",
        f.lit(0).alias("named"),
        f.when(message, 1).otherwise(0).alias("there"),
        f.when(f.col("kind") == "removed", -1).otherwise(1).alias("references"),
        none.alias("queue"),
        f.lit(None).cast("int").alias("named_bytes"),
        f.when(message, f.col("body_bytes")).alias("there_bytes"),
        f.when(message, f.col("file_number")).alias("file"),
        f.when(message, f.col("bytes")).otherwise(0).alias("bytes"),
        "holder",
    )
    ids = (
        named.unionAll(there)
        .groupBy("id_high", "id_low")
        .agg(
            f.sum("named").alias("named"),
            f.sum("there").alias("there"),
            f.sum("references").alias("references"),
            f.min("queue").alias("queue"),
            f.min("named_bytes").alias("named_bytes"),
            f.max("named_bytes").alias("named_most"),
            f.min("there_bytes").alias("there_bytes"),
            f.max("file").alias("file"),
            f.sum("bytes").alias("bytes"),
            f.max("holder").alias("holder"),
        )
    )
    own = (f.col("named") == 0) & f.col("holder").isNull() & (f.col("references") > 0)
    differs = (
        (f.col("there") > 1)
        | (f.col("named_bytes") != f.col("there_bytes"))
        | (f.col("named_most") != f.col("there_bytes"))
        | (f.col("holder").isNull() & (f.col("references") <= 0))
    )
    verdict: Any = (
        f.when(f.col("there") == 0, f.when(f.col("named") > 0, "lost"))
        .when(f.col("named") == 0, "orphan")
        .when(differs, "delta")
        .otherwise("ok")
    )
    # a reference or a remove of what was collected long ago is neither
    return ids.select(
        "id_high", "id_low", verdict.alias("verdict"), own.alias("own"), "named", "queue", "file", "there", "bytes"
    ).where("verdict is not null")


def audit(spark: SparkSession, path: str) -> Audit:
    """Compare all queues with the message store. Raises UsageError, StoreError, NodeNotRunning (no data directory)."""
    directory = Directory.read(path)
    ids = compared(files(spark, path, "messages", *MESSAGE_COLUMNS), files(spark, path, "store", *STORE_COLUMNS))
    return summed(ids, directory)


def summed(ids: DataFrame, directory: Directory) -> Audit:
    """The sums of what `compared` found, in one pass."""
    from pyspark.sql import functions as f

    garbage = (f.col("verdict") == "orphan") & ~f.col("own")
    found = (
        ids.groupBy("verdict", "own", "queue", "file")
        .agg(
            f.count("*").alias("ids"),
            f.sum("named").alias("named"),
            f.sum("there").alias("records"),
            f.sum("bytes").alias("bytes"),
            f.sum(f.when(garbage, f.col("there")).otherwise(0)).alias("garbage"),
            f.sum(f.when(garbage, f.col("bytes")).otherwise(0)).alias("garbage_bytes"),
        )
        .collect()
    )
    names = directory.queue_names()
    counts, own = dict.fromkeys(VERDICTS, 0), 0
    queues: dict[tuple[str, str], int] = {}
    of_files: dict[int, StoreFile] = {}
    for row in found:
        counts[row["verdict"]] += row["ids"]
        own += row["ids"] if row["own"] else 0
        if row["queue"] is not None:
            key = names.get(row["queue"], f"id {row['queue']}"), row["verdict"]
            queues[key] = queues.get(key, 0) + row["ids"]
        if row["file"] is not None:
            of = of_files.get(row["file"], StoreFile(row["file"], 0, 0, 0, 0))
            more = row["records"], row["bytes"], row["garbage"], row["garbage_bytes"]
            of_files[of.file] = StoreFile(of.file, *(a + b for a, b in zip(of[1:], more, strict=True)))
    return Audit(
        counts,
        own,
        sorted(Queue(queue, verdict, messages) for (queue, verdict), messages in queues.items()),
        sorted(of_files.values()),
        directory.running,
    )
