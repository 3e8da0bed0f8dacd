"""What Spark's benchmarks share: a session, runs in turn, and the limit: a source that repeats one Arrow batch.

The limit is what Spark takes from any data source in Python: `Repeating` builds one Arrow batch before the clock
starts, and yields that same batch again and again, so all that is left is Spark's own work with batches of those
columns. It is measured in the same session, in turn with what is compared with it, into the same `noop` sink. For
streams it is a stream, too, so that both pay for the same micro-batches.

The JVM runs with both of its compilers: what `warren.spark.session` sets for short jobs would make the limit lower.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from warren.tools.bench.harness import BenchError
from warren.workers.spark.schema import arrow_schema, row_schema
from warren.workers.spark.session import JAVA_OPTIONS, session

MASTER = "local[2]"
MEMORY = "1g"
ROUNDS = 3
BATCH_ROWS = 10_000
#: of a stream's run, micro-batches included
STREAM_TIMEOUT_S = 600


class Repeating(DataSource):
    """`format("repeating")`: options `rows`, `size` (bytes of a value), `batchRows`, `partitions` (2), for streams
    `maxOffsetsPerTrigger`; the columns are those of `.schema(…)`, of Warren's row.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "repeating"

    def schema(self) -> StructType:
        """Return Warren's row; `.schema(…)` chooses from it."""
        return row_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return RepeatingReader(self.options, schema)  # Spark's, which finds names in any case

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return RepeatingStreamReader(self.options, schema)


class RepeatingReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.fields = schema
        self.rows = int(options.get("rows", "1000000"))
        self.size = int(options.get("size", "100"))
        self.batch_rows = int(options.get("batchRows") or BATCH_ROWS)
        self.parts = int(options.get("partitions", "2"))

    def partitions(self) -> Sequence[InputPartition]:
        """Share the rows out."""
        return self._parts(self.rows)

    def _parts(self, rows: int) -> Sequence[InputPartition]:
        bounds = [rows * part // self.parts for part in range(self.parts + 1)]
        return [InputPartition(bounds[part + 1] - bounds[part]) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield as many rows as the partition says."""
        batch = sample(self.fields, self.size, self.batch_rows)
        left = partition.value
        while left > 0:
            part = batch if left >= batch.num_rows else batch.slice(0, left)
            yield part
            left -= part.num_rows


class RepeatingStreamReader(RepeatingReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same, as a stream of `rows` rows."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        most = options.get("maxOffsetsPerTrigger")
        self.limit: ReadLimit = ReadMaxRows(int(most)) if most else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning."""
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return self.limit

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the end stands."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        end = start["next"] + limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows
        return {"next": min(end, self.rows)}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end."""
        return {"next": self.rows}

    def partitions(  # type: ignore[override]  # both readers have one, with other arguments
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Share out the rows of a micro-batch."""
        return self._parts(end["next"] - start["next"])


def sample(schema: StructType, size: int, rows: int) -> pa.RecordBatch:
    """A batch of Warren's columns as a reader gives them: values of `size` bytes, keys of 8, ids of 16, no nulls."""
    made: dict[str, list[Any]] = {
        "key": [b"key%05d" % (n % 100_000) for n in range(rows)],
        "value": [bytes([n % 251]) * size for n in range(rows)],
        "topic": ["flights"] * rows,
        "partition": [n % 4 for n in range(rows)],
        "offset": list(range(rows)),
        "timestamp": [1_764_000_000_000_000 + n for n in range(rows)],
        "born_timestamp": [1_764_000_000_000_000 + n for n in range(rows)],
        "tag": ["late"] * rows,
        "msg_id": [b"%016d" % n for n in range(rows)],
        "headers": [[] for _ in range(rows)],
        "delivery_count": [0] * rows,
    }
    wanted = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([pa.array(made[field.name], field.type) for field in wanted], schema=wanted)


def columns(*names: str) -> StructType:
    """The schema of these columns of Warren's row, for `.schema(…)` of both sides."""
    return StructType([field for name in names for field in row_schema(headers=True).fields if field.name == name])


@contextmanager
def bench_session(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session on two cores with `format("warren")` and `format("repeating")`; its files lie in `folder` meanwhile."""
    scratch = Path(tempfile.mkdtemp(prefix="warren-bench-spark-", dir=folder))
    java = JAVA_OPTIONS.replace("-XX:TieredStopAtLevel=1 ", "")
    wanted = {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.log.level": "ERROR",
        **(settings or {}),
    }
    try:
        with session("bench", master=MASTER, memory=MEMORY, settings=wanted) as spark:
            spark.dataSource.register(Repeating)
            yield spark
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def noop_s(frame: DataFrame) -> float:
    """Seconds that it takes to read a frame into the sink that discards."""
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def stream_noop_s(frame: DataFrame, folder: Path, rows: int) -> tuple[float, list[float]]:
    """Seconds that a stream takes into the sink that discards until nothing is there (AvailableNow), without its start
    and end; and those of each micro-batch. BenchError when it did not have `rows` rows."""
    checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
    try:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(STREAM_TIMEOUT_S):
                raise BenchError(f"a stream did not end within {STREAM_TIMEOUT_S} s")
        finally:
            query.stop()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        if (found := sum(progress.numInputRows for progress in batches)) != rows:
            raise BenchError(f"{rows:,} messages were there, and the stream had {found:,}")
        seconds = [progress.durationMs["triggerExecution"] / 1000 for progress in batches]
        return sum(seconds), seconds
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def in_turn(sides: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, warm: int = 1) -> dict[str, list[float]]:
    """Run each side once per round, one after the other, after rounds that warm up; the seconds of each.

    Each round begins with another side, so that none is always the one behind the slowest.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(warm + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = sides[name]()
            if number >= warm:
                found[name].append(seconds)
    return found


def ratio(found: Mapping[str, Sequence[float]], side: str, limit: str) -> float:
    """The rate of a side over that of its limit, of the same rows: of the medians of their rounds."""
    return statistics.median(found[limit]) / statistics.median(found[side])
