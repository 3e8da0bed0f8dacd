"""Topics through a real session: batches that repeat what was planned, and streams that go on where they were, once,
whatever happens to topics and messages meanwhile.

Method: the shared session and a node; each test has topics of its own. What a query took is in Parquet files.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import warren

from support.spark_queries import END_S, begin, finished
from support.waiting import wait_until

pytestmark = pytest.mark.spark
Options = Callable[..., dict[str, str]]


@pytest.fixture
def topic(node: warren.Node) -> Iterator[warren.Topic]:
    """A new topic of two queues."""
    made = node.topic(f"t-{uuid.uuid4().hex[:8]}", queues=2)
    yield made
    if made.name in node.topics():
        node.topic(made.name).delete()


@pytest.fixture
def reading(node: warren.Node, topic: warren.Topic) -> Options:
    """Options for reading that topic."""
    return lambda **more: {"path": str(node.directory), "subscribe": topic.name, **more}


def fill(topic: warren.Topic, count: int, start: int = 0) -> None:
    """Numbers, in both queues in turn."""
    for queue in (0, 1):
        topic.append_many([b"%d" % n for n in range(start, start + count) if n % 2 == queue], queue=queue)


def stream(spark: Any, options: dict[str, str], place: Path) -> list[int]:
    """Run a query until it has taken what is there; how many rows each batch had that has some."""
    frame = spark.readStream.format("warren").options(**options).load()
    writer = frame.writeStream.format("parquet").option("path", str(place / "out"))
    query = finished(writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True))
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def taken(spark: Any, place: Path) -> list[int]:
    """All numbers in the files of `stream`, in order."""
    if not (place / "out" / "_spark_metadata").exists():
        return []
    rows = spark.read.schema("value binary").parquet(str(place / "out")).collect()
    return sorted(int(bytes(row.value)) for row in rows)


def test_a_batch_repeats_what_it_planned(spark: Any, topic: warren.Topic, reading: Options) -> None:
    fill(topic, 100)
    frame = spark.read.format("warren").options(scan="python", **reading(minPartitions="5")).load()
    assert frame.count() == 100
    fill(topic, 50, 100)
    rows = frame.collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(100))
    assert {(row.topic, row.partition) for row in rows} == {(topic.name, 0), (topic.name, 1)}
    assert frame.rdd.getNumPartitions() >= 5
    again = spark.read.format("warren").options(
        scan="python", **reading(startingOffsets=json.dumps({topic.name: {"0": 50, "1": 50}}))
    )
    assert sorted(int(bytes(row.value)) for row in again.load().collect()) == list(range(100, 150))


def test_a_mistake_is_an_error_before_anything_runs(spark: Any, topic: warren.Topic, reading: Options) -> None:
    with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
        spark.read.format("warren").options(scan="python", **reading(subscribe="nowhere")).load().count()
    with pytest.raises(PySparkException, match="maxOffsetsPerTrigger"):
        spark.read.format("warren").options(scan="python", **reading(maxOffsetsPerTrigger="5")).load().count()


def test_an_empty_topic_is_an_empty_frame(spark: Any, topic: warren.Topic, reading: Options) -> None:
    assert spark.read.format("warren").options(scan="python", **reading()).load().collect() == []


def test_a_stream_goes_on_from_its_checkpoint(
    spark: Any, topic: warren.Topic, reading: Options, tmp_path: Path
) -> None:
    fill(topic, 100)
    options = reading(startingOffsets="earliest", maxOffsetsPerTrigger="40", groupId="lag")
    assert stream(spark, options, tmp_path) == [40, 40, 20]
    fill(topic, 30, 100)
    assert [row["lag"] for row in topic.groups()] == [30]
    assert stream(spark, options, tmp_path) == [30]
    assert taken(spark, tmp_path) == list(range(130))
    assert [row["lag"] for row in topic.groups()] == [0]
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (kept,) = [line for line in offsets[-1].read_text().splitlines() if topic.name in line]
    assert re.fullmatch(rf'\{{"{topic.name}": ?\{{"0": ?65, ?"1": ?65, ?"id": ?"[0-9a-f]+-[0-9]+"\}}\}}', kept)


def test_a_stream_of_the_latest_begins_where_it_was_started(
    spark: Any, topic: warren.Topic, reading: Options, tmp_path: Path
) -> None:
    fill(topic, 10)
    assert stream(spark, reading(), tmp_path) == []
    fill(topic, 10, 10)
    assert stream(spark, reading(), tmp_path) == [10]
    assert taken(spark, tmp_path) == list(range(10, 20))


def test_a_pattern_finds_a_topic_that_is_new(
    spark: Any, node: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    options = {"path": str(node.directory), "subscribePattern": f"{topic.name}.*", "startingOffsets": "earliest"}
    fill(topic, 10)
    assert stream(spark, options, tmp_path) == [10]
    other = node.topic(f"{topic.name}-other", queues=2)
    fill(other, 10, 10)
    assert stream(spark, options, tmp_path) == [10]
    assert taken(spark, tmp_path) == list(range(20))
    other.delete()
    with pytest.raises(StreamingQueryException, match="was deleted"):
        stream(spark, options, tmp_path)
    fill(topic, 10, 20)
    assert stream(spark, {**options, "failOnDataLoss": "false"}, tmp_path) == [10]


def test_a_topic_that_was_made_again_is_another_one(
    spark: Any, node: warren.Node, topic: warren.Topic, reading: Options, tmp_path: Path
) -> None:
    fill(topic, 10)
    assert stream(spark, reading(startingOffsets="earliest"), tmp_path) == [10]
    topic.delete()
    fill(node.topic(topic.name, queues=2), 20, 10)
    with pytest.raises(StreamingQueryException, match="made again"):
        stream(spark, reading(), tmp_path)
    assert stream(spark, reading(failOnDataLoss="false"), tmp_path) == [20]
    assert taken(spark, tmp_path) == list(range(30))


def test_messages_that_are_gone_are_an_error_or_passed_by(
    spark: Any, topic: warren.Topic, reading: Options, tmp_path: Path
) -> None:
    fill(topic, 10)
    assert stream(spark, reading(startingOffsets="earliest"), tmp_path) == [10]
    fill(topic, 10, 10)
    topic.set(retention_bytes=1)
    wait_until(lambda: topic.offsets(0)[0] > 5, END_S, what="the retention")
    topic.set(retention_bytes=None)
    left = sum(topic.offsets(queue)[1] - topic.offsets(queue)[0] for queue in (0, 1))
    with pytest.raises(StreamingQueryException, match=r"from offset 5 on (is|are) gone: the first .* has offset"):
        stream(spark, reading(), tmp_path)
    assert stream(spark, reading(failOnDataLoss="false"), tmp_path) == [left]


def test_a_stream_follows_and_reports_its_lag(
    spark: Any, topic: warren.Topic, reading: Options, tmp_path: Path
) -> None:
    frame = spark.readStream.format("warren").options(**reading(startingOffsets="earliest")).load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        for start in (0, 100):
            fill(topic, 100, start)
            wanted = list(range(start + 100))
            wait_until(lambda wanted=wanted: taken(spark, tmp_path) == wanted, timeout=END_S, what="the batch")
        latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert latest[topic.name]["0"] == 100
    finally:
        query.stop()
