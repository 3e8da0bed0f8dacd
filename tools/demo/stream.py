"""The demo's Spark streams, in one driver.

The first reads the queue `spark`, groups, and writes Parquet; its rows go into the queue `report` at the end. It keeps
the groups in Spark's state, so that each claim counts once whatever is killed: a micro-batch is a range of claims, and
a replay reads the same range. The second reads the topic `records` and writes some of them into the topic `late`, in
transactions: each exactly once.

They run with Trigger.AvailableNow again and again; a run that began after the producers had ended, and found nothing,
is the last. A query that fails (a server is gone for longer than a task's tries) is started again from its checkpoint,
and so is a driver that was killed.

Run as `python -m warren.tools.demo.stream '{…}'`. Reads the order `finished` (the producers have ended).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from warren.engine.errors import Error, StoreError
from warren.tools.demo.inputs import LATE, RECORDS, REPORT, SPARK
from warren.tools.demo.talk import Talk, child
from warren.workers.spark.session import LOCAL, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CLUSTER = "local-cluster[2,1,1024]"
MESSAGE_SCHEMA = "n BIGINT, key STRING, hour INT, value DOUBLE"
RESTARTS_MAX = 5
#: rows of a micro-batch, and the milliseconds that it took
Batch = tuple[int, int]
POLL_S = 0.1


class Task(msgspec.Struct, frozen=True):
    """What this process has to do."""

    directory: str
    work: str  #: for the checkpoint, the results and Spark's scratch files
    cluster: bool
    late_from: float | None  #: the lowest value that is copied into the topic `late`; None: every one
    messages_per_batch: int = 60_000


class Row(msgspec.Struct, gc=False, kw_only=True):
    """One result row: a group's figures. As JSON in the queue `report`; absent fields are null."""

    key: str
    hour: int | None = None
    messages: int
    n_sum: int
    present: int
    value_sum: float | None = None
    value_mean: float | None = None
    value_p95: float | None = None
    redelivered: int


def results_path(work: str) -> Path:
    """Return the folder of the Parquet files."""
    return Path(work, "result.parquet")


def run(task: Task, talk: Talk) -> None:
    """Stream until everything is through, then publish the result."""
    scratch = Path(task.work, "scratch")
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    with session("demo", master=CLUSTER if task.cluster else LOCAL, memory="768m", settings=settings) as spark:
        talk.say(stage="session", version=spark.version)
        rows = _stream(spark, task, talk)
        _publish(spark, task)
        talk.say(done=True, rows=rows)


def _groups(spark: SparkSession, task: Task) -> DataFrame:
    """The running figures per key and hour, from the messages of the queue."""
    from pyspark.sql import functions as f

    messages = (
        spark.readStream.format("warren")
        .option("path", task.directory)
        .option("queue", SPARK)
        .option("maxOffsetsPerTrigger", str(task.messages_per_batch))
        .load()
    )
    parsed = messages.select(
        f.from_json(messages.value.cast("string"), MESSAGE_SCHEMA).alias("m"),
        (messages.delivery_count > 0).cast("long").alias("again"),
    ).select("m.*", "again")
    return parsed.groupBy("key", "hour").agg(
        f.count("*").alias("messages"),
        f.sum("n").alias("n_sum"),
        f.count("value").alias("present"),
        f.sum("value").alias("value_sum"),
        f.avg("value").alias("value_mean"),
        f.percentile("value", 0.95).alias("value_p95"),
        f.sum("again").alias("redelivered"),
    )


def _start_groups(spark: SparkSession, task: Task) -> StreamingQuery:
    target = results_path(task.work)

    def save(frame: DataFrame, batch: int) -> None:
        """Write all groups as of this batch, then put them in place of the former ones, in one step."""
        fresh = target.with_name(f"result-{batch}.parquet")
        frame.coalesce(1).write.mode("overwrite").parquet(str(fresh))
        link = target.with_name("result.link")
        link.unlink(missing_ok=True)
        link.symlink_to(fresh.name)
        os.replace(link, target)

    return (
        _groups(spark, task)
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(Path(task.work, "checkpoint")))
        .foreachBatch(save)
        .trigger(availableNow=True)
        .start()
    )


def _start_late(spark: SparkSession, task: Task) -> StreamingQuery:
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("warren")
        .option("path", task.directory)
        .option("subscribe", RECORDS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(task.messages_per_batch))
        .load()
    )
    parsed = records.select(f.from_json(records.value.cast("string"), MESSAGE_SCHEMA).alias("m")).select("m.*")
    late = parsed.where(parsed.value.isNotNull() if task.late_from is None else parsed.value >= task.late_from)
    return (
        late.select(late.key, f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("warren")
        .option("path", task.directory)
        .option("topic", LATE)
        .option("delivery", "transactional")
        .option("sinkId", "demo")
        .option("checkpointLocation", str(Path(task.work, "checkpoint-late")))
        .trigger(availableNow=True)
        .start()
    )


#: what is said of each stream, by what starts it
_STREAMS = {"groups": _start_groups, "late": _start_late}


def _stream(spark: SparkSession, task: Task, talk: Talk) -> int:
    """Run until nothing is left; return the number of messages that went through, replays counted again."""
    batches: dict[str, list[Batch]] = {name: [] for name in _STREAMS}
    failures = 0
    while True:
        talk.listen()
        if talk.ended:
            raise Error("the demo ended before the streams did")
        last = "finished" in talk.orders
        queries = {name: start(spark, task) for name, start in _STREAMS.items()}
        came = _follow(queries, batches, talk)
        for name, found in came.items():
            batches[name] += found
        problems = [problem for query in queries.values() if (problem := query.exception()) is not None]
        if not problems:
            if not any(came.values()):
                if last:
                    return sum(rows for found in batches.values() for rows, _ms in found)
                talk.listen(POLL_S)
            continue
        failures += 1
        talk.say(stage="restart", reason=_last_line(str(problems[0])))
        if failures > RESTARTS_MAX:
            raise StoreError(f"the streams failed {failures} times, at last with: {problems[0]}")


def _follow(queries: dict[str, StreamingQuery], before: dict[str, list[Batch]], talk: Talk) -> dict[str, list[Batch]]:
    """Tell the parent about the queries' batches until all have ended; return those that had rows."""
    batches: dict[str, dict[int, Batch]] = {name: {} for name in queries}
    running = dict(queries)
    while running:
        for name, query in list(running.items()):
            try:
                ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]  # its stub knows whole seconds
            except Exception as problem:  # noqa: BLE001 - whatever ended the query is in query.exception()
                ended = True
                print(problem, file=sys.stderr)
            found = {
                progress.batchId: (progress.numInputRows, progress.durationMs.get("triggerExecution", 0))
                for progress in query.recentProgress
                if progress.numInputRows
            }
            if found != batches[name]:
                batches[name] = found
                talk.say(batches={of: [*before[of], *each.values()] for of, each in batches.items()})
            if ended:
                del running[name]
        talk.listen()
        if talk.ended:
            for query in running.values():
                query.stop()
    return {name: list(found.values()) for name, found in batches.items()}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("warren.")]
    return (told or lines or [""])[0][:300]


def _publish(spark: SparkSession, task: Task) -> None:
    """Send the result rows into the queue `report`, from the Parquet files."""
    from pyspark.sql import functions as f

    result = spark.read.parquet(str(results_path(task.work)))
    rows = result.select(f.to_json(f.struct("*")).alias("value"))
    rows.write.format("warren").option("path", task.directory).option("queue", REPORT).mode("append").save()


if __name__ == "__main__":
    sys.exit(child(Task, run))
