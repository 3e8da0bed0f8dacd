"""`report`: what a directory holds and how it came, as one page of HTML with pictures, which also lie beside it as PNG.

    OUT/report.html
    OUT/throughput.png, latency.png, sizes.png, keys.png, queues.png, store.png    where there is something to show

Numbers come from the files alone (`format("warren-files")`): throughput and latency (from sent to stored) of topics
over time, sizes of bodies, hot keys, what queues hold and how often that was delivered, dead letters, what retention
will take, and garbage in each file of the message store.

The files are for whoever the umask lets read them: a report is given away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.engine.errors import UsageError
from warren.engine.kernel import atomic_file
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines import audit as auditing
from warren.workers.spark.pipelines import pictures, redelivery, retention
from warren.workers.spark.pipelines.consume_queue_check import bounds
from warren.workers.spark.pipelines.facts import Depth, Facts, Key, Point, Size
from warren.workers.spark.pipelines.rows import files, is_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 120  #: about so many points of time, at most
#: seconds of a point: never less than one, as what came within less is no rate
STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86400 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
TOPICS_MAX = 6  #: that have a colour of their own; the others are one
KEYS_MAX = 15
OTHERS = "other topics"
#: mode of what is made, less the umask
FILE_MODE = 0o666


def facts(spark: SparkSession, path: str) -> Facts:
    """Read what a report needs. Raises StoreError, NodeNotRunning (no data directory)."""
    from pyspark.sql import functions as f

    directory = Directory.read(path)
    now = time.time()
    columns = "topic", "timestamp", "born_timestamp", "bytes", "body_bytes", "key", "kind", "status"
    rows = files(spark, path, "log", *columns, "topic_id", "queue", "offset")
    log = rows.where("kind = 'record' and status = 'ok'")
    hours = _hours(log, directory)
    topics: dict[str, int] = {}
    for hour in hours:
        topics[hour["topic"]] = topics.get(hour["topic"], 0) + hour["n"]
    shown = sorted(topics, key=lambda topic: -topics[topic])[:TOPICS_MAX]
    named = (
        log.withColumn("topic", f.when(f.col("topic").isin(shown), f.col("topic")).otherwise(OTHERS)) if topics else log
    )
    bucket = bucket_s(max(hour["b"] for hour in hours) - min(hour["a"] for hour in hours) if hours else 0.0)
    messages = files(spark, path, "messages", "queue", "sequence", "queue_name", "body_bytes", "in_store")
    depths = {depth.queue: depth for depth in _queues(messages)}
    damage = [
        (row["file"], row["status"], row["n"], row["b"] or 0)
        for row in files(spark, path, "log", "file", "status", "bytes")
        .groupBy("file", "status")
        .agg(f.count("*").alias("n"), f.sum("bytes").alias("b"))
        .collect()
        if is_problem(row["status"])
    ]
    names = {topic.id: topic.name for topic in directory.topics}
    kept = (
        retention.Hour(names[row["topic_id"]], row["first"], row["last"], row["kept"], row["kept_bytes"])
        for row in hours
        if row["topic_id"] in names and row["kept"]
    )
    return Facts(
        str(directory.path),
        directory.running,
        now,
        bucket,
        _points(named, bucket) if topics else [],
        [*_sizes(named, "topic"), *_sizes(messages, "queue_name")],
        _keys(log) if topics else [],
        _with_empty(depths.values(), directory),
        redelivery.delivered(spark, directory, messages),
        redelivery.dead(directory, depths, topics),
        retention.kept(directory.topics, kept),
        auditing.audit(spark, path),
        sorted(damage),
    )


def bucket_s(seconds: float) -> int:
    """How long a point is, of so many seconds in all."""
    return next((step for step in STEPS_S if step * BUCKETS >= seconds), STEPS_S[-1])


def _hours(log: DataFrame, directory: Directory) -> list[Any]:
    """Hours of topics: what was stored (n, from a to b), and what is kept of it (kept, kept_bytes, first to last)."""
    from pyspark.sql import functions as f

    minima: list[tuple[int, int, int]] = []
    if directory.topics_folder.path.is_dir():
        minima = [(topic, queue, low) for (topic, queue), low in bounds(directory).minima.items()]
    lows = log.sparkSession.createDataFrame(minima, "topic_id bigint, queue int, low bigint")
    second = f.unix_millis("timestamp") / 1000
    is_kept = f.col("offset") >= f.coalesce("low", f.lit(0))
    return (
        log.join(f.broadcast(lows), ["topic_id", "queue"], "left")
        .groupBy("topic", "topic_id", f.floor(second / retention.HOUR_S).alias("hour"))
        .agg(
            f.count("*").alias("n"),
            f.min(second).alias("a"),
            f.max(second).alias("b"),
            f.count(f.when(is_kept, 1)).alias("kept"),
            f.sum(f.when(is_kept, f.col("bytes")).otherwise(0)).alias("kept_bytes"),
            f.min(f.when(is_kept, second)).alias("first"),
            f.max(f.when(is_kept, second)).alias("last"),
        )
        .collect()
    )


def _points(log: DataFrame, bucket: int) -> list[Point]:
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
    return [Depth(row[0], row["n"], row["b"], row["s"]) for row in found.collect()]


def _with_empty(depths: Iterable[Depth], directory: Directory) -> list[Depth]:
    """All queues whose messages are in files: of those that hold nothing the ones that somebody declared."""
    found = {depth.queue: depth for depth in depths}
    for queue in directory.queues:
        if queue.outlives_node and not queue.hidden:
            found.setdefault(queue.name, Depth(queue.name, 0, 0, 0))
    return sorted(found.values(), key=lambda depth: (-depth.messages, depth.queue))


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
            atomic_file.replace(made[-1], png, FILE_MODE)
        page = pictures.page(found, there)
        atomic_file.replace(folder / "report.html", page.encode(), FILE_MODE)
    return [folder / "report.html", *made]


def as_json(found: Facts) -> dict[str, Any]:
    """For programs."""
    return {name: getattr(found, name) for name in found._fields if name != "audit"} | {"audit": found.audit._asdict()}
