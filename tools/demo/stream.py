"""The demo's Spark stream: the queue `spark`, grouped, to Parquet, and its rows into the queue `report`.

The stream reads by `format("warren")` and keeps the groups in Spark's state, so that each claim counts once whatever
is killed: a micro-batch is a range of claims, and a replay reads the same range. It runs with Trigger.AvailableNow
again and again; a run that began after the producers had ended, and found nothing, is the last. A query that fails (a
server is gone for longer than a task's tries) is started again from its checkpoint.

Run as `python -m warren.tools.demo.stream '{…}'`. Reads the order `finished` (the producers have ended).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from warren.engine.errors import Error, StoreError
from warren.tools.demo.inputs import REPORT, SPARK
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


def _stream(spark: SparkSession, task: Task, talk: Talk) -> int:
    """Run until nothing is left; return the number of messages that went through, replays counted again."""
    target = results_path(task.work)
    groups = _groups(spark, task)

    def save(frame: DataFrame, batch: int) -> None:
        """Write all groups as of this batch, then put them in place of the former ones, in one step."""
        fresh = target.with_name(f"result-{batch}.parquet")
        frame.coalesce(1).write.mode("overwrite").parquet(str(fresh))
        link = target.with_name("result.link")
        link.unlink(missing_ok=True)
        link.symlink_to(fresh.name)
        os.replace(link, target)

    batches: list[Batch] = []
    failures = 0
    while True:
        talk.listen()
        if talk.ended:
            raise Error("the demo ended before the stream did")
        last = "finished" in talk.orders
        query = (
            groups.writeStream.outputMode("complete")
            .option("checkpointLocation", str(Path(task.work, "checkpoint")))
            .foreachBatch(save)
            .trigger(availableNow=True)
            .start()
        )
        came = _follow(query, batches, talk)
        batches += came
        problem = query.exception()
        if problem is None:
            if not came:
                if last:
                    return sum(rows for rows, _ms in batches)
                talk.listen(POLL_S)
            continue
        failures += 1
        talk.say(stage="restart", reason=_last_line(str(problem)))
        if failures > RESTARTS_MAX:
            raise StoreError(f"the stream failed {failures} times, at last with: {problem}")


def _follow(query: StreamingQuery, batches_before: list[Batch], talk: Talk) -> list[Batch]:
    """Tell the parent about a query's batches until it ends; return those that had rows."""
    batches: dict[int, tuple[int, int]] = {}
    ended = False
    while not ended:
        try:
            ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]  # its stub knows whole seconds only
        except Exception as problem:  # noqa: BLE001 - whatever ended the query is in query.exception()
            ended = True
            print(problem, file=sys.stderr)
        found = {
            progress.batchId: (progress.numInputRows, progress.durationMs.get("triggerExecution", 0))
            for progress in query.recentProgress
            if progress.numInputRows
        }
        if found != batches:
            batches = found
            told = [*batches_before, *batches.values()]
            talk.say(streamed=sum(rows for rows, _ms in told), batches=told)
        talk.listen()
        if talk.ended:
            query.stop()
    return list(batches.values())


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
