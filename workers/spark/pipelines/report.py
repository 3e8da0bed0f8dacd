"""`report`: what a directory holds and how it came, as one page of HTML with pictures, which also lie beside it as PNG.

    OUT/report.html
    OUT/throughput.png, latency.png, sizes.png, keys.png, queues.png, store.png    where there is something to show

Numbers come from the files alone (`format("warren-files")`): throughput and latency (from sent to stored) of topics
over time, sizes of bodies, hot keys, what queues hold, and garbage in each file of the message store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.engine.errors import UsageError
from warren.engine.kernel import atomic_file
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines import audit as auditing
from warren.workers.spark.pipelines import pictures
from warren.workers.spark.pipelines.facts import Depth, Facts, Key, Point, Size
from warren.workers.spark.pipelines.rows import files, is_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 120  #: about so many points of time
TOPICS_MAX = 6  #: that have a colour of their own; the others are one
KEYS_MAX = 15
OTHERS = "other topics"


def facts(spark: SparkSession, path: str) -> Facts:
    """Read what a report needs. Raises StoreError, NodeNotRunning (no data directory)."""
    from pyspark.sql import functions as f

    directory = Directory.read(path)
    columns = "topic", "timestamp", "born_timestamp", "bytes", "body_bytes", "key", "kind", "status"
    rows = files(spark, path, "log", *columns)
    log = rows.where("kind = 'record' and status = 'ok'")
    largest = log.groupBy("topic").agg(
        f.count("*").alias("n"), f.min("timestamp").alias("a"), f.max("timestamp").alias("b")
    )
    topics = sorted(largest.collect(), key=lambda row: -row["n"])
    shown = [row["topic"] for row in topics[:TOPICS_MAX]]
    named = (
        log.withColumn("topic", f.when(f.col("topic").isin(shown), f.col("topic")).otherwise(OTHERS)) if topics else log
    )
    seconds = max(((row["b"] - row["a"]).total_seconds() for row in topics), default=0.0)
    if topics:
        seconds = (max(row["b"] for row in topics) - min(row["a"] for row in topics)).total_seconds()
    bucket = max(0.01, seconds / BUCKETS)
    messages = files(spark, path, "messages", "queue_name", "body_bytes", "in_store")
    damage = [
        (row["file"], row["status"], row["n"], row["b"] or 0)
        for row in files(spark, path, "log", "file", "status", "bytes")
        .groupBy("file", "status")
        .agg(f.count("*").alias("n"), f.sum("bytes").alias("b"))
        .collect()
        if is_problem(row["status"])
    ]
    return Facts(
        str(directory.path),
        directory.running,
        bucket,
        _points(named, bucket) if topics else [],
        [*_sizes(named, "topic"), *_sizes(messages, "queue_name")],
        _keys(log) if topics else [],
        _queues(messages),
        auditing.audit(spark, path),
        sorted(damage),
    )


def _points(log: DataFrame, bucket: float) -> list[Point]:
    from pyspark.sql import functions as f

    latency = f.unix_millis("timestamp") - f.unix_millis("born_timestamp")
    at = (f.floor(f.unix_millis("timestamp") / (bucket * 1000)) * bucket).alias("second")
    quantiles = f.percentile_approx(latency, f.array(f.lit(0.5), f.lit(0.99)), f.lit(1000))
    found = (
        log.groupBy("topic", at)
        .agg(
            f.count("*").alias("n"),
            f.sum("body_bytes").alias("bytes"),
            quantiles.alias("q"),
            f.max(latency).alias("most"),
        )
        .collect()
    )
    return sorted(
        Point(row["topic"], float(row["second"]), row["n"], row["bytes"], *map(float, (*row["q"], row["most"])))
        for row in found
    )


def _sizes(rows: DataFrame, name: str) -> list[Size]:
    from pyspark.sql import functions as f

    size = f.col("body_bytes")
    power = f.when(size > 0, f.floor(f.log2(size.cast("double"))) + 1).otherwise(0).cast("int").alias("power")
    found = rows.groupBy(name, power).agg(f.count("*").alias("n")).collect()
    return sorted(Size(row[name], row["power"], row["n"]) for row in found)


def _keys(log: DataFrame) -> list[Key]:
    from pyspark.sql import functions as f

    counted = log.where("key is not null").groupBy("topic", "key")
    found = counted.agg(f.count("*").alias("n"), f.sum("body_bytes").alias("b")).orderBy(f.desc("n"), "topic", "key")
    return [Key(row["topic"], row["key"], row["n"], row["b"]) for row in found.limit(KEYS_MAX).collect()]


def _queues(messages: DataFrame) -> list[Depth]:
    from pyspark.sql import functions as f

    stored = f.sum(f.col("in_store").cast("int"))
    found = messages.groupBy("queue_name").agg(
        f.count("*").alias("n"), f.sum("body_bytes").alias("b"), stored.alias("s")
    )
    return sorted(
        (Depth(row[0], row["n"], row["b"], row["s"]) for row in found.collect()), key=lambda row: -row.messages
    )


def report(spark: SparkSession, path: str, to: str) -> list[Path]:
    """Write a report of a directory into a folder; what was written. Raises UsageError, StoreError."""
    pictures.check_matplotlib()
    folder = Path(to).absolute()
    if folder.is_file():
        raise UsageError(f"{folder} is a file: a report is a page with pictures, so give a folder")
    return write(facts(spark, path), folder)


def write(found: Facts, folder: Path) -> list[Path]:
    """The page and its pictures. Raises StoreError."""
    with atomic_file.file_explained(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [(name, title, text, pictures.draw(name, found)) for name, title, text in pictures.PICTURES]
        there: list[tuple[str, str, str, bytes]] = [(n, t, x, png) for n, t, x, png in drawn if png is not None]
        made = []
        for name, _title, _text, png in there:
            made.append(folder / f"{name}.png")
            atomic_file.replace(made[-1], png)
        page = pictures.page(found, there)
        atomic_file.replace(folder / "report.html", page.encode())
    return [folder / "report.html", *made]


def as_json(found: Facts) -> dict[str, Any]:
    """For programs."""
    return {name: getattr(found, name) for name in found._fields if name != "audit"} | {"audit": found.audit._asdict()}
