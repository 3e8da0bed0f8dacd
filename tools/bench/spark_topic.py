"""`warren bench spark-topic`: a topic that lies in files in the page cache, read by Spark from its begin to its end, as
a batch and as a stream, beside the most that Spark takes from a source in Python.

Both sides have the same rows, columns and tasks, run in one session into the sink that discards, and take turns
(tools/bench/spark_limit.py). Bodies are checked against their checksums, as always. A stream's time is that of its
micro-batches, without the start of the query. Files are read in Python, or natively; a native batch also beside plain
Parquet of the same rows.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from warren.tools.bench.harness import Result, cell, temporary_node
from warren.tools.bench.topic import QUEUES, TOPIC, Tell
from warren.tools.bench.topic_read import HEAD_BYTES, fill

#: of the row; all of them have values
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "msg_id")
#: of log that is read in a run, if not said otherwise
BYTES = 512 << 20
ROWS_MAX = 2_000_000
SIDES = ("batch", "stream")
#: Parquet without what would make more of bodies that repeat than of others
PLAIN = {"compression": "none", "parquet.enable.dictionary": "false"}


def rows_of(size: int) -> int:
    """Messages of that size that make a run of about a second."""
    return max(QUEUES, min(ROWS_MAX, BYTES // (size + HEAD_BYTES)))


def run_spark_topic(folder: Path, size: int, rows: int, rounds: int, side: str, scan: str, tell: Tell) -> Result:
    """A side ("batch", "stream") of a scan, and its limit; of a native batch also plain Parquet of the same rows."""
    from warren.tools.bench import spark_limit

    fields = spark_limit.columns(*COLUMNS)
    with temporary_node(folder) as temporary, spark_limit.bench_session(folder) as spark:
        fill(temporary.node.topic(TOPIC, queues=QUEUES), size, rows, tell, keyed=True)
        options = {"path": str(temporary.directory), "subscribe": TOPIC, "scan": scan}
        limits = {"rows": str(rows), "size": str(size), "partitions": str(QUEUES)}

        def batch() -> float:
            return spark_limit.noop_s(spark.read.format("warren").schema(fields).options(**options).load())

        def repeated() -> float:
            return spark_limit.noop_s(spark.read.format("repeating").schema(fields).options(**limits).load())

        def stream() -> float:
            frame = spark.readStream.format("warren").schema(fields).options(**options)
            return spark_limit.stream_noop_s(frame.option("startingOffsets", "earliest").load(), scratch, rows)[0]

        def repeated_stream() -> float:
            frame = spark.readStream.format("repeating").schema(fields).options(**limits).load()
            return spark_limit.stream_noop_s(frame, scratch, rows)[0]

        sides: dict[str, Callable[[], float]] = {
            side: batch if side == "batch" else stream,
            "limit": repeated if side == "batch" else repeated_stream,
        }
        with tempfile.TemporaryDirectory(prefix="warren-bench-checkpoints-", dir=folder) as place:
            scratch = Path(place)
            parquet = str(scratch / "parquet")
            if scan == "native" and side == "batch":
                tell(f"writing {rows:,} rows as Parquet")
                same = spark.read.format("warren").schema(fields).options(**options).load()
                same.write.options(**PLAIN).parquet(parquet)
                sides["parquet"] = lambda: spark_limit.noop_s(spark.read.schema(fields).parquet(parquet))
            tell(f"reading {rows:,} messages of {size} bytes")
            found = spark_limit.in_turn(sides, rounds)
    name = f"spark-topic-{side}{'-native' if scan == 'native' else ''}"
    made = cell(
        name, size, "none", 0, 2, rows, statistics.median(found[side]), None,
        runs=[round(rows / each, 1) for each in found[side]],
        limit_runs=[round(rows / each, 1) for each in found["limit"]],
    )  # fmt: skip
    rate = rows / statistics.median(found["limit"])
    name = f"a {'stream' if side == 'stream' else 'source'} that repeats one Arrow batch"
    made["limit"] = {"name": name, "messages_per_s": round(rate, 1), "bytes_per_s": round(rate * size, 1)}
    made["ratio_to_limit"] = round(spark_limit.ratio(found, side, "limit"), 4)
    if "parquet" in found:
        made["parquet_runs"] = [round(rows / each, 1) for each in found["parquet"]]
        made["ratio_to_parquet"] = round(spark_limit.ratio(found, side, "parquet"), 4)
    return made
