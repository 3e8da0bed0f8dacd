"""`republish`: rows of Parquet files, or the messages of a queue (dead letters, say), into a queue, topic or exchange.

**At least once.** Rows are published by the sink of `format("warren")`, which confirms each task's rows; a task that
Spark repeats, and a run that is repeated, publish rows again. Messages of a queue are claimed by a subscription, and
acked when Spark has committed the batch that published them: killed anywhere, the next run begins with what was not.

The rate is divided among the tasks that can run at once. So it is never exceeded (but for bursts of half a second), and
not reached when some of the tasks end before the others.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren.engine.errors import UsageError
from warren.workers.spark.data_source import WarrenDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: what a message is made of, and of a topic's message, too
COLUMNS = ("value", "key", "headers")
OF_TOPICS = ("tag", "born_timestamp")
BURST_S = 0.5
BATCH_ROWS = 10_000
_RATE = "rowsPerSecond"
_ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class Target:
    """Where messages go: one of the three."""

    path: str
    queue: str | None = None
    topic: str | None = None
    exchange: str | None = None
    routing_key: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("queue", "topic", "exchange") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError("a republish needs one target: a queue, a topic or an exchange")
        if self.routing_key is not None and self.exchange is None:
            raise UsageError("a routing key goes with an exchange")

    @property
    def options(self) -> dict[str, str]:
        """For the sink."""
        more = {"queue": self.queue, "topic": self.topic, "exchange": self.exchange, "routingKey": self.routing_key}
        return {"path": self.path, **{name: value for name, value in more.items() if value is not None}}

    @property
    def text(self) -> str:
        """For people, and for names."""
        kind = "queue" if self.queue else "topic" if self.topic else "exchange"
        return f"{kind} {self.queue or self.topic or self.exchange}"


def throttle(rate: float, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a task, at no more than `rate` rows per second."""
    step, began, sent = max(1, int(rate * BURST_S)), time.monotonic(), 0
    for batch in batches:
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            wait = began + sent / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            sent += part.num_rows
            yield part


class CappedWriter(DataSourceArrowWriter):
    """A writer that gets its rows slowly."""

    def __init__(self, writer: DataSourceArrowWriter, rate: float) -> None:
        self.writer = writer
        self.rate = rate

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        return self.writer.write(throttle(self.rate, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """As the writer does."""
        self.writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As the writer does."""
        self.writer.abort(messages)


class CappedDataSource(WarrenDataSource):
    """`format("warren")` for writing, with the option rowsPerSecond: at most so many in each task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._rate = float(given.pop(_RATE.lower(), "inf"))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "warren-capped"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        return CappedWriter(super().writer(schema, overwrite), self._rate)


def messages(frame: DataFrame, target: Target) -> DataFrame:
    """The columns of a frame that are a message's. Raises UsageError: it has no value."""
    if "value" not in frame.columns:
        raise UsageError(f"rows to republish need a column named value; these have {', '.join(frame.columns)}")
    left_out = {"key"} if target.queue is not None or target.routing_key is not None else set()
    wanted = COLUMNS if target.topic is None else COLUMNS + OF_TOPICS
    return frame.select(*(name for name in wanted if name in frame.columns and name not in left_out))


def republish(frame: DataFrame, target: Target, rate: float | None = None) -> int:
    """Publish all rows of a frame; how many. Raises UsageError, and what the sink raises."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation("republish")
    write = messages(frame, target).observe(seen, f.count(f.lit(1)).alias("rows")).write
    if rate is None:
        write = write.format("warren")
    elif not 0 < rate < 1e9:
        raise UsageError(f"a rate is a number of messages per second above 0, and below 1,000,000,000, not {rate}")
    else:
        session = frame.sparkSession
        session.dataSource.register(CappedDataSource)
        of_task = rate / session.sparkContext.defaultParallelism
        # Spark hands rows over in batches: none may be more than a burst
        session.conf.set(_ROWS_SETTING, str(max(1, min(BATCH_ROWS, int(of_task * BURST_S)))))
        write = write.format("warren-capped").option(_RATE, str(of_task))
    write.options(**target.options).mode("append").save()
    return int(seen.get["rows"])


def from_parquet(spark: SparkSession, path: str, target: Target, rate: float | None = None) -> int:
    """Publish the rows of Parquet files, as `export` writes them or of one's own."""
    return republish(spark.read.parquet(path), target, rate)


def from_queue(
    spark: SparkSession, path: str, queue: str, target: Target, rate: float | None = None, timeout_s: int = 24 * 3600
) -> int:
    """Publish the messages that are ready in a queue when this begins, and take them from it. Raises as republish."""
    if (path, queue) == (target.path, target.queue):
        raise UsageError(f"queue {queue!r} cannot be republished into itself")
    totals: list[int] = []

    def publish(batch: DataFrame, _number: int) -> None:
        totals.append(republish(batch, target, rate))

    source: dict[str, Any] = {
        "path": path,
        "queue": queue,
        "subscription": f"republish-{queue}",
        "includeHeaders": "true",
    }
    # A lost checkpoint costs nothing but doubles: the subscription says what was not acked.
    with tempfile.TemporaryDirectory(prefix="warren-republish-") as checkpoint:
        query = (
            spark.readStream.format("warren")
            .options(**source)
            .load()
            .writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(Path(checkpoint, "checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(timeout_s):
            query.stop()
            raise UsageError(f"{timeout_s} s were not enough for queue {queue!r}; what was published is acked")
    return sum(totals)
