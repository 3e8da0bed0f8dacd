"""Topics as Spark reads them, without Spark: what is planned, what is read, what is refused.

Method: a real node, and readers made, pickled and asked as Spark does it: `partitions` and `read` in copies, offsets
through JSON. Faults are those of the node: topics deleted and made again, retention, compaction.
"""

import dataclasses
import json
import os
import pickle
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

import warren
from warren.engine.errors import CorruptRecord, DataLoss, StoreError, TopicNotFound, UsageError
from warren.workers.spark import topic_source
from warren.workers.spark.client import close_clients
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.options import BATCH_MAX, COUNT_MAX, SECONDS_MAX, TASKS_MAX
from warren.workers.spark.topic_schema import TOPIC_COLUMNS, topic_row_schema
from warren.workers.spark.topic_source import TopicBatchReader, TopicPartition, TopicStreamReader

from support.real_node import RealNode
from support.spark_reads import read
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def let_go() -> None:
    """End what planners of batches hold until some time has passed."""
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.cancel()
            timer.function()
            timer.join()


@pytest.fixture(autouse=True)
def own_client() -> Iterator[None]:
    """The client of the readers, which in Spark's workers stays until they are killed."""
    yield
    let_go()
    close_clients()


@pytest.fixture
def topic(client: warren.Node) -> Iterator[warren.Topic]:
    made = client.topic(f"t-{uuid.uuid4().hex[:8]}", queues=2)
    yield made
    for name in client.topics():
        if name.startswith(made.name):
            client.topic(name).delete()


def source(topic: warren.Topic, **more: str) -> WarrenDataSource:
    """Of this topic, if nothing else is said; an empty option is none."""
    path = str(topic._client.directory.path)
    given = {"path": path, "subscribe": topic.name, **more}
    return pickle.loads(pickle.dumps(WarrenDataSource({name: value for name, value in given.items() if value})))


def batch(topic: warren.Topic, **more: str) -> TopicBatchReader:
    made = source(topic, **more)
    reader = made.reader(made.schema())
    assert isinstance(reader, TopicBatchReader)
    return reader


def stream(topic: warren.Topic, **more: str) -> TopicStreamReader:
    made = source(topic, **more)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, TopicStreamReader)
    return reader


def values(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def all_of(topic: warren.Topic, **more: str) -> list[dict[str, Any]]:
    reader = batch(topic, **more)
    return read(reader, reader.partitions())


def fill(topic: warren.Topic, count: int, start: int = 0, queues: Sequence[int] = (0, 1), **more: Any) -> None:
    """Numbers, in these queues in turn."""
    for place, queue in enumerate(queues):
        numbers = [n for n in range(start, start + count) if n % len(queues) == place]
        topic.append_many([b"%d" % n for n in numbers], queue=queue, **more)


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    told: dict[str, Any] = json.loads(json.dumps(offset))
    return told


def shrink(topic: warren.Topic, least: int, queue: int = 0) -> None:
    """Let retention take messages, so that a queue begins at `least` or later."""
    topic.set(retention_bytes=1)
    wait_until(lambda: topic.offsets(queue)[0] >= least, 60, what="the retention")
    topic.set(retention_bytes=None)


# -- rows -----------------------------------------------------------------------------------------------------------


def test_rows(topic: warren.Topic) -> None:
    where = topic.append(b"\x00\xff", key=["N1", "N2"], tag="UA", properties={"to": "IAH", "ä": "ö"}, queue=1)
    topic.append(b"", queue=1)
    first, second = all_of(topic, includeHeaders="true", includeTimestampType="true")
    record, other = topic.read(1, max=2).records
    assert (first["key"], first["value"], first["topic"], first["partition"], first["offset"]) == (
        b"N1 N2",
        b"\x00\xff",
        topic.name,
        1,
        0,
    )
    assert first["timestamp"].timestamp() == record.timestamp / 1000
    assert first["born_timestamp"].timestamp() == record.born_timestamp / 1000
    assert (first["tag"], first["timestampType"]) == ("UA", 1)
    assert first["msg_id"] == bytes.fromhex(where.message_id)
    assert [(pair["key"], pair["value"]) for pair in first["headers"]] == [("to", b"IAH"), ("ä", "ö".encode())]
    assert (second["key"], second["value"], second["tag"], second["headers"]) == (None, b"", None, None)
    assert second["msg_id"] == bytes.fromhex(other.message_id)


@pytest.mark.parametrize("name", [column.name for column in TOPIC_COLUMNS])
def test_any_single_column_is_what_spark_expects(topic: warren.Topic, name: str) -> None:
    fill(topic, 20, keys="k", tags="t", properties={"a": "b"})
    (field,) = [each for each in topic_row_schema(headers=True, timestamp_type=True).fields if each.name == name]
    schema = StructType([field])
    reader = source(topic).reader(schema)
    for part in reader.partitions():
        for found in reader.read(part):
            assert isinstance(found, pa.RecordBatch)
            found.validate(full=True)
            assert found.schema == to_arrow_schema(schema, timezone="UTC")
            assert found.num_rows == 10
            assert found.column(0).null_count == 0


def test_columns_in_an_order_of_their_own(topic: warren.Topic) -> None:
    fill(topic, 4, queues=[1])
    schema = StructType([StructField("partition", IntegerType()), StructField("VALUE", BinaryType(), nullable=False)])
    reader = source(topic).reader(schema)
    (part,) = reader.partitions()
    (found,) = reader.read(part)
    assert isinstance(found, pa.RecordBatch)
    assert found.schema == to_arrow_schema(schema, timezone="UTC")
    assert found.to_pylist() == [{"partition": 1, "VALUE": b"%d" % n} for n in range(4)]


def test_batches_are_as_large_as_is_said(topic: warren.Topic) -> None:
    topic.append_many([b"x" * 1000] * 100, queue=0)

    def sizes(**more: str) -> list[int]:
        reader = batch(topic, **more)
        (part,) = reader.partitions()
        return [found.num_rows for found in reader.read(part)]

    assert sizes() == [100]
    assert sizes(batchRows="30") == [30, 30, 30, 10]
    assert max(sizes(batchBytes="12000")) in (10, 11)
    assert sizes(batchBytes="1") == [1] * 100


# -- batches --------------------------------------------------------------------------------------------------------


def test_a_plan_is_frozen(topic: warren.Topic) -> None:
    fill(topic, 10)
    reader = batch(topic)
    parts = reader.partitions()
    fill(topic, 10, 10)
    assert values(read(reader, parts)) == values(read(reader, parts)) == list(range(10))


def test_parts(topic: warren.Topic) -> None:
    fill(topic, 100)

    def sizes(**more: str) -> list[int]:
        reader = batch(topic, **more)
        parts = reader.partitions()
        assert values(read(reader, parts)) == list(range(100))
        return [part.end - part.start for part in parts if isinstance(part, TopicPartition)]

    assert sizes() == [50, 50]
    assert sizes(minPartitions="4") == [25] * 4
    assert sizes(maxRecordsPerPartition="20") == [16, 17, 17] * 2
    assert len(sizes(maxRecordsPerPartition="20", minPartitions="10")) == 10


def test_nothing_is_read_of_nothing(topic: warren.Topic) -> None:
    reader = batch(topic)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # Spark makes it up


def test_where_a_batch_begins_and_ends(topic: warren.Topic) -> None:
    fill(topic, 20)
    moments = [topic.read(queue, 5).records[0].timestamp for queue in (0, 1)]

    def count(**more: str) -> list[int]:
        found = all_of(topic, **more)
        return [sum(row["partition"] == queue for row in found) for queue in (0, 1)]

    def json_of(first: int, second: int) -> str:
        return json.dumps({topic.name: {"0": first, "1": second}})

    assert count(startingOffsets=json_of(3, 10), endingOffsets=json_of(8, -1)) == [5, 0]
    assert count(startingOffsets=json_of(-2, 9), endingOffsets="latest") == [10, 1]
    assert count(assign=json.dumps({topic.name: [1]}), subscribe="") == [0, 10]
    assert count(subscribePattern=topic.name[:-1] + ".", subscribe="") == [10, 10]
    late = str(max(moments) + 100_000)
    assert count(startingTimestamp="0", endingTimestamp=late) == [10, 10]
    assert count(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == [0, 0]
    assert count(startingOffsetsByTimestamp=json_of(*moments), endingOffsetsByTimestamp=json_of(0, int(late)))[0] == 0
    with pytest.raises(UsageError, match="no message stored at"):
        count(startingTimestamp=late)


def test_the_highest_numbers_are_no_limits(topic: warren.Topic) -> None:
    fill(topic, 20)
    sizes = {
        "minPartitions": str(TASKS_MAX),
        "maxRecordsPerPartition": str(COUNT_MAX),
        "batchRows": str(BATCH_MAX),
        "batchBytes": str(BATCH_MAX),
        "timeout": str(SECONDS_MAX),
    }
    assert values(all_of(topic, **sizes)) == list(range(20))
    least = json.dumps({topic.name: {"0": 0, "1": 0}})
    for limit in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"):
        delay = {"maxTriggerDelay": "0"} if limit.startswith("min") else {}
        reader = stream(topic, startingOffsets=least, **sizes, **delay, **{limit: str(COUNT_MAX)})
        start = kept(reader.initialOffset())
        end = kept(reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert values(read(reader, reader.partitions(start, end))) == list(range(20)), limit
        reader.stop()


def test_mistakes_that_the_node_knows(topic: warren.Topic) -> None:
    fill(topic, 20)

    def refused(told: str, **more: str) -> None:
        with pytest.raises(UsageError, match=told):
            batch(topic, **more).partitions()

    name = topic.name
    refused("there is no topic 'nowhere'.*topics there: .*", subscribe=f"{name},nowhere")
    refused("has no partition 7: it has 2 partitions", subscribe="", assign=json.dumps({name: [0, 7]}))
    refused("names topic 'other', which is not read", startingOffsets='{"other": {"0": 1}}')
    refused("it lacks 1", startingOffsets=json.dumps({name: {"0": 1}}))
    refused("no partition 2 that is read", endingOffsets=json.dumps({name: {"0": 1, "1": 1, "2": 1}}))
    refused("ends at offset 10: 11 is behind", endingOffsets=json.dumps({name: {"0": 11, "1": 1}}))
    refused("begins at offset 5, behind its end 4", startingOffsets=json.dumps({name: {"0": 5, "1": 1}}),
            endingOffsets=json.dumps({name: {"0": 4, "1": 4}}))  # fmt: skip
    assert issubclass(TopicNotFound, UsageError)


def test_a_pattern_may_find_nothing(topic: warren.Topic) -> None:
    assert all_of(topic, subscribe="", subscribePattern="nothing-.*") == []


def test_filters(topic: warren.Topic) -> None:
    for n in range(60):
        topic.append(b"%d" % n, key=[f"k{n % 3}", f"m{n % 4}"], tag=[None, "A", "B", "C,D"][n % 4], wait=False)
    topic.append(b"60")  # the others are there, too

    def wanted(**more: str) -> list[int]:
        return values(all_of(topic, batchRows="7", **more))

    assert wanted(tags="A") == [n for n in range(60) if n % 4 == 1]
    assert wanted(tags='["A", "C,D"]') == [n for n in range(60) if n % 4 in (1, 3)]
    assert wanted(keys="k1") == [n for n in range(60) if n % 3 == 1]
    assert wanted(keys="k1,m2") == [n for n in range(60) if n % 3 == 1 or n % 4 == 2]
    assert wanted(keys="k1", tags="A,B") == [n for n in range(60) if n % 3 == 1 and n % 4 in (1, 2)]
    assert wanted(keys="k") == wanted(tags="D") == []
    times = {int(row["value"]): round(row["timestamp"].timestamp() * 1000) for row in all_of(topic)}
    first, last = min(times.values()), max(times.values())
    assert wanted(timestampFrom=str(first)) == list(range(61))
    assert wanted(timestampFrom=str(last)) == sorted(n for n, when in times.items() if when >= last)
    assert wanted(timestampTo=str(last)) == sorted(n for n, when in times.items() if when < last)
    assert wanted(timestampFrom=str(last + 1)) == []


# -- what is gone ---------------------------------------------------------------------------------------------------


def test_data_loss_names_both_numbers(topic: warren.Topic, caplog: pytest.LogCaptureFixture) -> None:
    fill(topic, 20, queues=[0])
    explicit = json.dumps({topic.name: {"0": 2, "1": 0}})
    reader = batch(topic, startingOffsets=explicit)
    parts = reader.partitions()
    tolerant = batch(topic, startingOffsets=explicit, failOnDataLoss="false")
    let_go()
    shrink(topic, 10)
    low = topic.offsets(0)[0]
    with pytest.raises(DataLoss, match=f"from offset 2 on are gone: .* has offset {low}") as loss:
        batch(topic, startingOffsets=explicit).partitions()
    assert (loss.value.queue, loss.value.wanted, loss.value.minimum) == (0, 2, low)
    with pytest.raises(DataLoss, match=f"from offset 2 on are gone: .* has offset {low}"):
        read(reader, parts)
    assert values(read(tolerant, parts)) == list(range(low, 20))
    assert f"{low - 2} messages from offset 2 on are gone" in caplog.text
    assert values(all_of(topic, startingOffsets=explicit, failOnDataLoss="false")) == list(range(low, 20))
    assert values(all_of(topic)) == list(range(low, 20))


def test_what_is_planned_is_held(topic: warren.Topic, client: warren.Node) -> None:
    """Method: messages of another topic, which lie before, show that retention has looked."""
    earlier = client.topic(f"{topic.name}-earlier", queues=1)
    fill(earlier, 20, queues=[0])
    fill(topic, 20, queues=[0])
    reader = stream(topic, startingOffsets=json.dumps({topic.name: {"0": 0, "1": 0}}), maxOffsetsPerTrigger="10")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    parts = reader.partitions(start, end)
    fill(topic, 20, 20, queues=[0])
    topic.set(retention_bytes=1)
    shrink(earlier, 10)
    assert topic.offsets(0)[0] == 0
    assert values(read(reader, parts)) == list(range(10))
    assert reader.latestOffset(end, ReadMaxRows(10)) != end  # committed: it is let go
    wait_until(lambda: topic.offsets(0)[0] > 0, 60, what="the retention")


def test_a_topic_made_again_is_seen_in_the_task(topic: warren.Topic, client: warren.Node) -> None:
    fill(topic, 10)
    reader = batch(topic)
    parts = reader.partitions()
    topic.delete()
    with pytest.raises(StoreError, match="was deleted,"):
        read(reader, parts)
    fill(client.topic(topic.name, queues=2), 10)
    with pytest.raises(StoreError, match="deleted and made again"):
        read(reader, parts)
    assert read(batch(topic, failOnDataLoss="false"), parts) == []


def test_a_topic_that_goes_while_it_is_read_is_no_shorter_topic(topic: warren.Topic) -> None:
    fill(topic, 10, queues=[0])
    reader = batch(topic, batchRows="4")
    (part,) = reader.partitions()
    rows = reader.read(part)
    assert next(rows).num_rows == 4
    topic.delete()
    with pytest.raises(StoreError, match="was deleted"):
        list(rows)


def test_a_plan_of_more_than_there_is(topic: warren.Topic) -> None:
    fill(topic, 10, queues=[0])
    reader = batch(topic)
    (part,) = reader.partitions()
    assert isinstance(part, TopicPartition)
    with pytest.raises(StoreError, match="older than the plan"):
        read(reader, [dataclasses.replace(part, end=11)])


def test_holes_of_a_compacted_topic_are_no_loss(client: warren.Node, topic: warren.Topic) -> None:
    compacted = client.topic(f"{topic.name}-newest", queues=1, compacted=True)
    for n in range(3000):
        compacted.append(b"%d" % n * 200, key=f"k{n % 10}", wait=False)
    compacted.append(b"3000", key="last")
    explicit = json.dumps({compacted.name: {"0": 0}})
    reader = batch(compacted, startingOffsets=explicit)
    parts = reader.partitions()
    let_go()

    def alive() -> list[int]:
        return [row["offset"] for row in read(reader, parts)]

    wait_until(lambda: len(alive()) < 3001, 60, what="the compaction")
    found = alive()
    assert found[-11:] == list(range(2990, 3001))
    limited = stream(compacted, startingOffsets=explicit, maxBytesPerTrigger="20000")
    start = limited.initialOffset()
    seen: list[int] = []
    while (end := limited.latestOffset(start, ReadMaxBytes(20000))) != start:
        seen += [row["offset"] for row in read(limited, limited.partitions(start, end))]
        start = kept(end)
    assert seen == found


def test_half_and_delayed_messages_are_read_when_they_are_there(topic: warren.Topic) -> None:
    fill(topic, 4, queues=[0])
    half = topic.prepare(b"5", queue=0)
    topic.append(b"4", delay=0.01, queue=0)
    wait_until(lambda: topic.offsets(0)[1] == 5, 60, what="the delayed message")
    assert values(all_of(topic)) == [0, 1, 2, 3, 4]
    half.commit()
    assert values(all_of(topic)) == [0, 1, 2, 3, 4, 5]


# -- streams --------------------------------------------------------------------------------------------------------


def run(reader: TopicStreamReader, start: dict[str, Any], limit: ReadLimit) -> tuple[list[list[int]], dict[str, Any]]:
    """Micro-batches until nothing is left, as AvailableNow does it: their numbers, and the last offset."""
    batches: list[list[int]] = []
    first = True
    while True:
        end = reader.latestOffset(start, limit)
        if kept(end) == kept(start) and not first:
            return batches, end
        first = False
        batches.append(values(read(reader, reader.partitions(start, end))))
        start = kept(end)


def test_the_first_batch_writes_down_where_a_stream_begins(topic: warren.Topic) -> None:
    fill(topic, 10)
    reader = stream(topic)
    start = reader.initialOffset()
    fill(topic, 10, 10)
    assert reader.initialOffset() == start
    end = kept(reader.latestOffset(start, ReadAllAvailable()))
    assert end == start
    fill(topic, 10, 20)
    # Killed before it was committed: Spark asks for the initial offset once more, then replays the logged batch.
    again = stream(topic)
    assert again.partitions(again.initialOffset(), end) == []
    assert run(again, end, ReadAllAvailable())[0] == [list(range(10, 30))]


def test_offsets_that_are_named_need_no_empty_batch(topic: warren.Topic) -> None:
    fill(topic, 10)
    reader = stream(topic, startingOffsets=json.dumps({topic.name: {"0": 1, "1": 0}}))
    assert run(reader, reader.initialOffset(), ReadAllAvailable())[0] == [[1, *range(2, 10)]]


def test_limits(topic: warren.Topic) -> None:
    topic.append_many([b"%04d" % n for n in range(30)], queue=0)
    topic.append_many([b"%04d" % n for n in range(30, 40)], queue=1)
    earliest = {"startingOffsets": "earliest"}

    def sizes(limit: ReadLimit, **more: str) -> list[int]:
        reader = stream(topic, **earliest, **more)
        batches, _end = run(reader, reader.initialOffset(), limit)
        assert sorted(n for each in batches for n in each) == list(range(40))
        return [len(each) for each in batches if each]

    assert sizes(ReadAllAvailable(), maxOffsetsPerTrigger="1") == [40]
    assert sizes(ReadMaxRows(16)) == [16, 16, 8]
    record = topic._ask(lambda reading: reading.span(0, 0, 1, 1 << 30))[1]
    assert sizes(ReadMaxBytes(20 * record)) == [20, 20]
    assert sizes(ReadMaxBytes(1)) == [1] * 40
    assert sizes(ReadMaxRows(20), maxBytesPerTrigger=str(10 * record)) == [10] * 4


def test_the_limit_of_the_options(topic: warren.Topic) -> None:
    assert stream(topic).getDefaultReadLimit() == ReadAllAvailable()
    assert stream(topic, maxOffsetsPerTrigger="9", maxBytesPerTrigger="5").getDefaultReadLimit() == ReadMaxRows(9)
    assert stream(topic, maxBytesPerTrigger="9").getDefaultReadLimit() == ReadMaxBytes(9)
    assert stream(topic, minOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMinRows(9)


def test_a_minimum_is_waited_for_as_long_as_is_said(topic: warren.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(topic_source.time, "monotonic", lambda: clock[0])
    reader = stream(topic, startingOffsets=json.dumps({topic.name: {"0": 0, "1": 0}}), minOffsetsPerTrigger="10",
                    maxTriggerDelay="60s")  # fmt: skip
    limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
    fill(topic, 9)
    assert reader.latestOffset(start, limit) == start
    clock[0] += 61
    end = reader.latestOffset(start, limit)
    assert values(read(reader, reader.partitions(start, end))) == list(range(9))
    fill(topic, 9, 9)
    assert reader.latestOffset(end, limit) == end
    fill(topic, 1, 18, queues=[0])
    last = reader.latestOffset(end, limit)
    assert values(read(reader, reader.partitions(end, last))) == list(range(9, 19))
    fill(topic, 1, 19, queues=[0])
    reader.prepareForTriggerAvailableNow()  # which has an end, so it does not wait
    assert values(read(reader, reader.partitions(last, reader.latestOffset(last, limit)))) == [19]


def test_available_now_ends_although_messages_keep_coming(topic: warren.Topic, client: warren.Node) -> None:
    fill(topic, 10)
    reader = stream(topic, subscribe="", subscribePattern=f"{topic.name}.*", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    start, seen = reader.initialOffset(), []
    fill(client.topic(f"{topic.name}-later", queues=2), 5)
    end = reader.latestOffset(start, ReadMaxRows(4))
    for _ in range(100):
        fill(topic, 10, 1000)
        seen += read(reader, reader.partitions(start, end))
        start, end = end, reader.latestOffset(end, ReadMaxRows(4))
        if start == end:
            break
    assert values(seen) == list(range(10))


def test_nothing_new_is_the_very_same_offset(topic: warren.Topic) -> None:
    fill(topic, 10)
    reader = stream(topic, startingOffsets="earliest")
    _batches, end = run(reader, reader.initialOffset(), ReadAllAvailable())
    assert json.dumps(reader.latestOffset(kept(end), ReadAllAvailable())) == json.dumps(end)
    assert json.dumps(reader.reportLatestOffset()) == json.dumps(end)


def test_a_new_topic_begins_where_it_was_found(topic: warren.Topic, client: warren.Node) -> None:
    fill(topic, 4)
    reader = stream(topic, subscribe="", subscribePattern=f"{topic.name}.*", startingOffsets="latest")
    _batches, start = run(reader, reader.initialOffset(), ReadAllAvailable())
    other = client.topic(f"{topic.name}-x", queues=1)
    fill(other, 6, queues=[0])
    found = reader.latestOffset(start, ReadAllAvailable())
    assert found[other.name]["0"] == 0
    assert reader.partitions(start, found) == []
    following = reader.latestOffset(found, ReadAllAvailable())
    replayed = stream(topic, subscribe="", subscribePattern=f"{topic.name}.*")
    for each in (reader, replayed):
        assert values(read(each, each.partitions(kept(found), kept(following)))) == list(range(6))


def test_checkpoints_of_others_are_refused(topic: warren.Topic, client: warren.Node) -> None:
    fill(topic, 4)
    reader = stream(topic)
    offset = reader.initialOffset()
    other = client.topic(f"{topic.name}-other", queues=2)
    some = stream(topic, subscribe="", assign=json.dumps({topic.name: [1]}))
    with pytest.raises(UsageError, match=r"has 1 partition of topic .* that the query does not read .*: 0; a changed"):
        some.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(UsageError, match="which the query does not read"):
        stream(topic, subscribe=other.name).latestOffset(offset, ReadAllAvailable())
    with pytest.raises(TopicNotFound, match="there is no topic 'nowhere'"):
        stream(topic, subscribe=f"{topic.name},nowhere").latestOffset(offset, ReadAllAvailable())
    newer = {topic.name: {**offset[topic.name], "0": 99}}
    with pytest.raises(StoreError, match="older than the checkpoint"):
        stream(topic).latestOffset(newer, ReadAllAvailable())
    with pytest.raises(StoreError, match="older than the checkpoint"):
        stream(topic).partitions(offset, newer)
    with pytest.raises(UsageError, match="not of Warren's topics"):
        stream(topic).latestOffset({"orders": {"next": 3}}, ReadAllAvailable())


def test_the_group_shows_the_lag_and_is_nobody_elses(topic: warren.Topic) -> None:
    fill(topic, 10)
    reader = stream(topic, startingOffsets="earliest", groupIdPrefix="spark")
    _batches, end = run(reader, reader.initialOffset(), ReadAllAvailable())
    (group,) = topic.groups()
    assert group["name"].startswith("spark-")
    assert group["lag"] == 0
    fill(topic, 4, 10)
    assert topic.groups()[0]["lag"] == 4
    again = stream(topic, groupIdPrefix="spark")
    again.latestOffset(end, ReadAllAvailable())
    assert [each["name"] for each in topic.groups()] == [group["name"]]
    with topic.reader(group="taken") as other:
        other.get(timeout=10)
        with pytest.raises(UsageError, match="members"):
            stream(topic, groupId="taken").latestOffset(end, ReadAllAvailable())


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_crashes_lose_and_double_nothing(client: warren.Node, data: st.DataObject) -> None:
    """Killed between any two steps of Spark: what is committed is every message once, from where the query began."""
    topic = client.topic(f"crash-{uuid.uuid4().hex[:8]}", queues=2)
    try:
        wrote = data.draw(st.integers(0, 6))
        fill(topic, wrote)
        committed: list[int] = []
        checkpoint: dict[str, Any] | None = None
        planned: dict[str, Any] | None = None
        began: int | None = (
            0 if (start_at := data.draw(st.sampled_from(["earliest", "latest"]))) == "earliest" else None
        )
        for _step in range(60):
            reader = stream(topic, startingOffsets=start_at)
            while data.draw(st.integers(0, 4)):
                if data.draw(st.booleans()):
                    fill(topic, 2, wrote)
                    wrote += 2
                if planned is None:
                    start = checkpoint if checkpoint is not None else reader.initialOffset()
                    if checkpoint is None and start_at == "latest":
                        began = sum(int(start[topic.name][queue]) for queue in "01")
                    limit = data.draw(st.sampled_from([ReadAllAvailable(), ReadMaxRows(3), ReadMaxBytes(400)]))
                    end = reader.latestOffset(start, limit)
                    if data.draw(st.integers(0, 4)) == 0:
                        break  # killed before the batch was logged
                    planned = kept(end)
                first = checkpoint if checkpoint is not None else reader.initialOffset()
                found = values(read(reader, reader.partitions(first, planned)))
                if data.draw(st.integers(0, 4)) == 0:
                    break  # killed before the commit
                committed += found
                checkpoint, planned = planned, None
            if planned is None and checkpoint is None:
                began = 0 if start_at == "earliest" else None
        if checkpoint is None and planned is None:
            return
        reader = stream(topic, startingOffsets=start_at)
        if planned is not None:
            first = checkpoint if checkpoint is not None else reader.initialOffset()
            committed += values(read(reader, reader.partitions(first, planned)))
            checkpoint = planned
        assert checkpoint is not None
        committed += [n for each in run(reader, checkpoint, ReadAllAvailable())[0] for n in each]
        assert began is not None
        assert sorted(committed) == list(range(began, wrote))
    finally:
        topic.delete()


def test_a_node_that_was_stopped_and_started_has_the_same_ranges(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data", workers=1) as running:
        with warren.attach(running.directory) as client:
            fill(client.topic("kept", queues=2), 100)
            reader = stream(client.topic("kept"), startingOffsets="earliest")
            start = reader.initialOffset()
            end = [reader.latestOffset(start, ReadMaxRows(60)) for _written_down in range(2)][1]
            parts = reader.partitions(start, end)
            before = values(read(reader, parts))
            rows = stream(client.topic("kept"), batchRows="4").read(parts[0])
            first = next(rows).to_pylist()
        running.stop()
        starting = threading.Thread(target=running.start)
        starting.start()
        try:  # which is in the middle of it, and waits
            rest = [row for found in rows for row in found.to_pylist()]
        finally:
            starting.join()
        assert values([*first, *rest]) == values(read(reader, parts[:1]))
        assert values(read(reader, parts)) == before
        close_clients()
        with warren.attach(running.directory) as client:
            again = stream(client.topic("kept"))
            assert values(read(again, again.partitions(start, end))) == before
            batches, _end = run(again, end, ReadAllAvailable())
            assert sorted([*before, *batches[0]]) == list(range(100))
        close_clients()


def test_damage_is_an_error_that_names_the_place_or_passed_by(tmp_path: Path) -> None:
    """Of a file of the log that has left memory; a bit of a body is another one."""
    with (
        RealNode(tmp_path / "data", workers=1, topic_ring_bytes=1 << 17, log_file_bytes=1 << 20) as running,
        warren.attach(running.directory) as client,
    ):
        topic = client.topic("damaged", queues=1)
        positions = topic.append_many([b"%04d" % n * 200 for n in range(1000)], queue=0)
        reader = batch(topic)
        parts = reader.partitions()
        with open(running.directory / "topics" / "commitlog" / ("0" * 20), "r+b") as file:
            file.seek(positions[7].physical_offset + 200)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(CorruptRecord, match=r"commitlog.*: failOnDataLoss=false passes it by.* at offset 8,"):
            read(reader, parts)
        tolerant = batch(topic, failOnDataLoss="false")
        assert [row["offset"] for row in read(tolerant, parts)] == [n for n in range(1000) if n != 7]
        assert len(read(batch(topic, includeValue="false"), parts)) == 1000  # no body is read
        close_clients()
