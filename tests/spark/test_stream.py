"""Streams through a real session: every message once, acks after commits, restarts, lost checkpoints, the sink."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import warren

from support.spark_queries import END_S, begin, finished
from support.waiting import wait_until

pytestmark = pytest.mark.spark
Options = Callable[..., dict[str, str]]
Taking = Callable[[warren.Queue, int], list[bytes]]


def run(spark: Any, options: dict[str, str], place: Path, sink: Callable[[Any, int], None] | None = None) -> list[int]:
    """Run a query until it has taken what is there, and return how many rows each batch had, or raise its error.

    Without a sink, what it took is in Parquet files. foreachBatch is for tests that need it: py4j keeps a socket for
    each.
    """
    frame = spark.readStream.format("warren").options(**options).load()
    if sink is not None:
        writer = frame.writeStream.foreachBatch(sink)
    else:
        writer = frame.writeStream.format("parquet").option("path", str(place / "out"))
    query = finished(writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True))
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def taken(spark: Any, place: Path) -> dict[int, int]:
    """Number → delivery count of everything in the files of `run`; AssertionError when a number is there twice."""
    if not (place / "out" / "_spark_metadata").exists():
        return {}
    rows = spark.read.schema("value binary, delivery_count int").parquet(str(place / "out")).collect()
    found = {int(bytes(row.value)): int(row.delivery_count) for row in rows}
    assert len(found) == len(rows), "doubled"
    return found


def new(count: int, start: int = 0) -> dict[int, int]:
    """What `taken` gives for `count` messages delivered for the first time."""
    return dict.fromkeys(range(start, start + count), 0)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def claims(queue: warren.Queue) -> tuple[int, int]:
    return queue.subscription(f"spark-{queue.name}").range()


def failing(_frame: Any, _batch: int) -> None:
    raise RuntimeError("the sink is out of order")


def test_available_now_takes_all_and_acks_all(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(1000))
    assert run(spark, reading(maxOffsetsPerTrigger="400", maxRecordsPerPartition="100"), tmp_path) == [400, 400, 200]
    assert taken(spark, tmp_path) == new(1000)
    assert claims(queue) == (1000, 1000)
    assert queue.depth() == 0


def test_it_goes_on_from_its_checkpoint(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    for start in (0, 10, 20):
        queue.put_many(numbers(10, start))
        assert run(spark, reading(), tmp_path) == [10]
        assert taken(spark, tmp_path) == new(start + 10)
    assert run(spark, reading(), tmp_path) == []


def test_a_failed_batch_is_replayed_as_it_was(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(30))
    with pytest.raises(StreamingQueryException, match="out of order"):
        run(spark, reading(maxOffsetsPerTrigger="20"), tmp_path, failing)
    assert claims(queue) == (0, 20), "acked what was not committed, or claimed too much"
    queue.put_many(numbers(5, 30))
    batches: list[list[int]] = []
    run(
        spark,
        reading(maxOffsetsPerTrigger="20"),
        tmp_path,
        lambda frame, _batch: batches.append(sorted(int(bytes(row.value)) for row in frame.collect())),
    )
    assert batches == [list(range(20)), list(range(20, 35))]


def test_a_lost_checkpoint_delivers_claims_again(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(30))
    with pytest.raises(StreamingQueryException, match="the sink is out of order"):
        run(spark, reading(maxOffsetsPerTrigger="20"), tmp_path / "first", failing)
    run(spark, reading(), tmp_path / "second")
    assert taken(spark, tmp_path / "second") == dict.fromkeys(range(20), 1) | new(10, 20)
    assert claims(queue) == (30, 30)


def test_a_foreign_checkpoint_is_refused(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    queue.put_many(numbers(3))
    run(spark, reading(), tmp_path)
    with pytest.raises(StreamingQueryException, match="new checkpointLocation"):
        run(spark, reading(subscription="another"), tmp_path)


def test_messages_of_two_subscriptions_are_shared_out(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    """A queue has competing readers: each message goes to one subscription."""
    queue.put_many(numbers(10))
    run(spark, reading(subscription="one"), tmp_path / "one")
    queue.put_many(numbers(10, 10))
    run(spark, reading(subscription="two"), tmp_path / "two")
    assert taken(spark, tmp_path / "one") == new(10)
    assert taken(spark, tmp_path / "two") == new(10, 10)


def test_one_subscription_twice_in_one_query_is_refused(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    """Each of two streams would plan the claims of the other."""
    queue.put_many(numbers(10))
    one, two = (spark.readStream.format("warren").options(**reading()).load() for _ in range(2))
    writer = one.union(two).writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="two streams of this query"):
        finished(writer.trigger(availableNow=True))


def test_a_continuous_query_follows(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    frame = spark.readStream.format("warren").options(**reading()).load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        for start in (0, 100, 200):
            queue.put_many(numbers(100, start))
            expected = new(start + 100)
            wait_until(lambda wanted=expected: taken(spark, tmp_path) == wanted, timeout=END_S, what="the batch")
        # Acked while idle, by latestOffset: commit() would wait for the next batch.
        wait_until(lambda: claims(queue) == (300, 300), timeout=END_S, what="the ack of the last batch")
    finally:
        query.stop()


def test_stream_into_a_queue(
    spark: Any, node: warren.Node, queue: warren.Queue, reading: Options, taking: Taking, tmp_path: Path
) -> None:
    target = node.queue(f"target-{uuid.uuid4().hex[:8]}")
    queue.put_many(numbers(500))
    frame = spark.readStream.format("warren").options(**reading()).load().selectExpr("value", "key")
    query = frame.writeStream.format("warren").option("path", str(node.directory)).option("queue", target.name)
    finished(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
    assert sorted(map(int, taking(target, 500))) == list(range(500))
    target.delete()
