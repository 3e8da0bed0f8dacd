"""Streams through a real session: every message once, acks after commits, restarts, lost checkpoints, the sink."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import warren

from support.waiting import wait_until

pytestmark = pytest.mark.spark
Options = Callable[..., dict[str, str]]
Taking = Callable[[warren.Queue, int], list[bytes]]
END_S = 60


class Sink:
    """Collects batches: batch id → values. A replayed batch takes the place of the former."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def __call__(self, frame: Any, batch: int) -> None:
        self.batches[batch] = sorted(int(bytes(row.value)) for row in frame.collect())

    @property
    def all(self) -> list[int]:
        return sorted(value for batch in self.batches.values() for value in batch)


def run(spark: Any, options: dict[str, str], checkpoint: Path, sink: Callable[[Any, int], None]) -> Any:
    """Run a query until it has taken what is there; raises what it failed with."""
    frame = spark.readStream.format("warren").options(**options).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(END_S), "the query did not end"
    return started


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def claims(queue: warren.Queue) -> tuple[int, int]:
    return queue.subscription(f"spark-{queue.name}").range()


def test_available_now_takes_all_and_acks_all(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(1000))
    sink = Sink()
    query = run(spark, reading(maxOffsetsPerTrigger="400", maxRecordsPerPartition="100"), tmp_path, sink)
    assert [len(batch) for batch in sink.batches.values()] == [400, 400, 200]
    assert sink.all == list(range(1000))
    assert claims(queue) == (1000, 1000)
    assert queue.depth() == 0
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [400, 400, 200]


def test_it_goes_on_from_its_checkpoint(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    sink = Sink()
    for start in (0, 10, 20):
        queue.put_many(numbers(10, start))
        run(spark, reading(), tmp_path, sink)
    assert list(sink.batches.values()) == [list(range(start, start + 10)) for start in (0, 10, 20)]


def test_a_failed_batch_is_replayed_as_it_was(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(30))
    seen: list[int] = []

    def failing(frame: Any, batch: int) -> None:
        seen.extend(int(bytes(row.value)) for row in frame.collect())
        raise RuntimeError("the sink is out of order")

    with pytest.raises(StreamingQueryException, match="out of order"):
        run(spark, reading(maxOffsetsPerTrigger="20"), tmp_path, failing)
    assert claims(queue) == (0, 20), "acked what was not committed, or claimed too much"
    queue.put_many(numbers(5, 30))
    sink = Sink()
    run(spark, reading(maxOffsetsPerTrigger="20"), tmp_path, sink)
    assert sink.batches[0] == sorted(seen) == list(range(20))
    assert sink.all == list(range(35))


def test_a_lost_checkpoint_delivers_claims_again(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    queue.put_many(numbers(30))

    def failing(_frame: Any, _batch: int) -> None:
        raise RuntimeError("before the commit")

    with pytest.raises(StreamingQueryException):
        run(spark, reading(maxOffsetsPerTrigger="20"), tmp_path / "first", failing)
    sink = Sink()
    run(spark, reading(), tmp_path / "second", sink)
    assert sink.all == list(range(30))
    assert claims(queue) == (30, 30)


def test_a_foreign_checkpoint_is_refused(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    queue.put_many(numbers(3))
    run(spark, reading(), tmp_path, Sink())
    with pytest.raises(StreamingQueryException, match="new checkpointLocation"):
        run(spark, reading(subscription="another"), tmp_path, Sink())


def test_messages_of_two_subscriptions_are_shared_out(
    spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path
) -> None:
    """A queue has competing readers: each message goes to one subscription."""
    queue.put_many(numbers(10))
    first, second = Sink(), Sink()
    run(spark, reading(subscription="one"), tmp_path / "one", first)
    queue.put_many(numbers(10, 10))
    run(spark, reading(subscription="two"), tmp_path / "two", second)
    assert first.all == list(range(10))
    assert second.all == list(range(10, 20))


def test_a_continuous_query_follows(spark: Any, queue: warren.Queue, reading: Options, tmp_path: Path) -> None:
    sink = Sink()
    frame = spark.readStream.format("warren").options(**reading()).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()
    try:
        for start in (0, 100, 200):
            queue.put_many(numbers(100, start))
            wait_until(lambda upto=start + 100: sink.all == list(range(upto)), timeout=END_S, what="the batch")  # type: ignore[misc]
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
    started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert started.awaitTermination(END_S)
    assert sorted(map(int, taking(target, 500))) == list(range(500))
    target.delete()
