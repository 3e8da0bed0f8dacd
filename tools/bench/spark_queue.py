"""`warren bench spark-queue`: a queue read by Spark, as a batch and as a stream, beside the most that Spark takes.

Both sides have the same rows, columns and size of Arrow batches, run in one session into the sink that discards, and
take turns (tools/bench/spark_limit.py). A stream's messages are published anew before each of its rounds, outside the
clock; its time is that of its micro-batches, without the start of the query.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.tools.bench.harness import Result, cell, temporary_node

QUEUE = "flights"
#: of the row; all of them have values
COLUMNS = ("key", "value", "topic", "partition", "offset", "msg_id", "delivery_count")
PUBLISH = 1000
#: bytes of the queue's bodies, if not said otherwise
BYTES = 200 << 20
ROWS_MAX = 1_000_000


def rows_of(size: int) -> int:
    """Messages of that size that make a run of about a second."""
    return min(ROWS_MAX, max(10_000, BYTES // max(1, size)))


def _fill(queue: Any, size: int, rows: int) -> None:
    left = rows
    confirm = None
    while left:
        count = min(PUBLISH, left)
        confirm = queue.put_many([bytes(size)] * count, wait=False)
        left -= count
    if confirm is not None:
        confirm.wait(60)


def run_spark_queue(folder: Path, size: int, rows: int, rounds: int, tell: Callable[[str], None]) -> list[Result]:
    """Batch and stream; each result has its own limit."""
    from warren.tools.bench import spark_limit

    fields = spark_limit.columns(*COLUMNS)
    with temporary_node(folder) as temporary, spark_limit.bench_session(folder) as spark:
        batched, streamed = temporary.node.queue(QUEUE), temporary.node.queue(f"{QUEUE}-stream")
        tell(f"publishing {rows:,} messages")
        _fill(batched, size, rows)
        options = {"path": str(temporary.directory), "queue": QUEUE}
        limits = {"rows": str(rows), "size": str(size)}

        def batch() -> float:
            frame = spark.read.format("warren").schema(fields).options(**options).load()
            return spark_limit.noop_s(frame)

        def stream() -> float:
            _fill(streamed, size, rows)
            reader = spark.readStream.format("warren").schema(fields)
            frame = reader.options(**{**options, "queue": streamed.name}).load()
            return spark_limit.stream_noop_s(frame, scratch, rows)[0]

        def repeated() -> float:
            return spark_limit.noop_s(spark.read.format("repeating").schema(fields).options(**limits).load())

        def repeated_stream() -> float:
            frame = spark.readStream.format("repeating").schema(fields).options(**limits).load()
            return spark_limit.stream_noop_s(frame, scratch, rows)[0]

        with tempfile.TemporaryDirectory(prefix="warren-bench-checkpoints-", dir=folder) as made:
            scratch = Path(made)
            tell(f"reading {rows:,} messages of {size} bytes")
            found = spark_limit.in_turn(
                {"batch": batch, "limit": repeated, "stream": stream, "stream limit": repeated_stream}, rounds
            )
    results = []
    for side, limit in (("batch", "limit"), ("stream", "stream limit")):
        seconds = statistics.median(found[side])
        made_cell = cell(
            f"spark-queue-{side}", size, "synced", PUBLISH, 2, rows, seconds, None,
            runs=[round(rows / each, 1) for each in found[side]],
            limit_runs=[round(rows / each, 1) for each in found[limit]],
        )  # fmt: skip
        rate = rows / statistics.median(found[limit])
        name = f"a {'stream' if side == 'stream' else 'source'} that repeats one Arrow batch"
        made_cell["limit"] = {"name": name, "messages_per_s": round(rate, 1), "bytes_per_s": round(rate * size, 1)}
        made_cell["ratio_to_limit"] = round(spark_limit.ratio(found, side, limit), 4)
        results.append(made_cell)
    return results
