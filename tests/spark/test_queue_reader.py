"""Readers of queues at a real node, without Spark: what was planned is what is read, or the reader says what is gone.

Method: a reader plans, is pickled with its partitions, as Spark sends them to tasks, and reads; in between the queue is
changed by others.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

import warren
from warren.engine import _core
from warren.engine.errors import QueueNotFound, StoreError, UsageError
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.queues import control
from warren.workers.faces import subscription_owner as owner
from warren.workers.faces.message import Message
from warren.workers.spark import client
from warren.workers.spark.options import BATCH_MAX, COUNT_MAX, SECONDS_MAX, TASKS_MAX
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_source import QueueReader, QueueStreamReader
from warren.workers.spark.schema import row_schema

Options = Callable[..., dict[str, str]]


@pytest.fixture(scope="module", autouse=True)
def _client(node: warren.Node) -> Iterator[None]:
    """The client that readers have in this process: there before the first test, and gone before the node."""
    attached = client.node_of(str(node.directory), "tests", 60)
    for number in range(8):  # links to both workers
        attached.queue(f"first-{number}").depth()
        attached.delete_queue(f"first-{number}")
    yield
    attached.close()
    client._clients.clear()


def reader_of(options: dict[str, str], schema: StructType | None = None) -> QueueReader:
    return QueueReader(QueueReadOptions.parse(options), schema or row_schema())


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def read(reader: Any, partitions: Sequence[Any]) -> list[int]:
    """The numbers in the values of all partitions, each read by a copy of the reader."""
    found = []
    for partition in partitions:
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        found += [int(value) for batch in copy.read(part) for value in batch.column("value").to_pylist()]
    return found


def take(queue: warren.Queue, count: int) -> None:
    left = count
    while left:
        got = queue.get_many(left, timeout=30)
        queue.ack(got)
        left -= len(got)
    queue.release()


def test_a_plan_is_read_or_what_is_gone_is_said(queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(1000))
    reader = reader_of(reading(minPartitions="4", batchRows="100"))
    tolerant = reader_of(reading(failOnDataLoss="false", batchRows="100"))
    plan = reader.partitions()
    assert len(plan) == 4
    assert read(reader, plan) == list(range(1000))
    take(queue, 500)
    queue.put_many(numbers(2000, 1000))
    with pytest.raises(StoreError, match=r"250 messages|100 messages"):
        read(reader, plan[:1])
    assert read(reader, plan[2:]) == list(range(500, 1000)), "none of the new ones, and all that are there"
    assert read(tolerant, plan) == list(range(500, 1000))
    assert read(reader, reader.partitions()) == list(range(500, 3000))


def test_the_highest_numbers_are_no_limits(queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(20))
    sizes = {
        "minPartitions": str(TASKS_MAX),
        "maxRecordsPerPartition": str(COUNT_MAX),
        "batchRows": str(BATCH_MAX),
        "batchBytes": str(BATCH_MAX),
        "timeout": str(SECONDS_MAX),
    }
    browsing = reader_of(reading(**sizes))
    assert sorted(read(browsing, browsing.partitions())) == list(range(20))
    for first, limit in ((0, "maxOffsetsPerTrigger"), (20, "maxBytesPerTrigger")):
        stream = QueueStreamReader(QueueReadOptions.parse(reading(**sizes, **{limit: str(COUNT_MAX)})), row_schema())
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert sorted(read(stream, stream.partitions(start, end))) == list(range(first, first + 20))
        assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end  # acks them
        stream.stop()
        queue.put_many(numbers(20, 20))


def test_what_a_consumer_has_is_read_until_it_acks(queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(10))
    reader = reader_of(reading(minPartitions="2"))
    plan = reader.partitions()
    held = queue.get_many(4, timeout=30)
    while len(held) < 4:
        held += queue.get_many(4 - len(held), timeout=30)
    queue.release()
    assert read(reader, plan) == list(range(10)), "held ones are there"
    assert read(reader, reader.partitions()) == list(range(4, 10)), "and are in no new plan"
    held[1].nack()
    queue.ack([held[0], held[3]])
    with pytest.raises(StoreError, match="2 messages of queue"):
        read(reader, plan[:1])
    assert read(reader_of(reading(failOnDataLoss="false")), plan) == [1, 2, *range(4, 10)]
    held[2].ack()
    assert read(reader, reader.partitions()) == [1, *range(4, 10)], "a returned one is at its place"


def test_expired_and_delayed_ones_are_not_planned(node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    queue.put(b"0", priority=3)
    queue.put(b"1", ttl=0)
    queue.put(b"2", delay=3600)
    queue.put(b"3", priority=9)
    assert read(reader_of(reading()), reader_of(reading()).partitions()) == [0, 3]


def test_times_are_those_that_publishers_gave(queue: warren.Queue, reading: Options) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    queue.put(b"0", properties={"timestamp": moment})
    queue.put(b"1", headers={"a": "b"})
    queue.put(b"2", properties={"timestamp": 1e300})
    queue.put(b"3", properties={"timestamp": 0, "type": "t"}, headers={"a": "b"})
    for schema in (None, StructType([field for field in row_schema() if field.name in ("value", "timestamp")])):
        reader = reader_of(reading(minPartitions="1"), schema)
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["timestamp"] for row in rows] == [moment, None, None, datetime(1970, 1, 1, tzinfo=UTC)]
        if schema is None:
            assert [row["born_timestamp"] for row in rows] == [row["timestamp"] for row in rows]
    queue.purge()
    queue.put_many([b"4", b"5"])
    (batch,) = reader_of(reading(minPartitions="1")).read(reader_of(reading(minPartitions="1")).partitions()[0])
    assert batch.column("timestamp").null_count == 2


def test_rows_are_shared_out(queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(100))

    def sizes(**more: str) -> list[int]:
        reader = reader_of(reading(**more))
        plan = reader.partitions()
        assert read(reader, plan) == list(range(100))
        return [len(read(reader, [partition])) for partition in plan]

    assert sizes(minPartitions="3") == [33, 33, 34]
    assert sizes(minPartitions="1", maxRecordsPerPartition="40") == [33, 33, 34]
    assert sizes(minPartitions="500") == [1] * 100
    reader = reader_of(reading(minPartitions="1", batchRows="30"))
    assert [batch.num_rows for batch in reader.read(reader.partitions()[0])] == [30, 30, 30, 10]


def test_a_queue_declared_anew_is_another(node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(5))
    reader = reader_of(reading())
    plan = reader.partitions()
    node.delete_queue(queue.name)
    with pytest.raises(QueueNotFound):
        read(reader, plan)
    node.queue(queue.name).put_many(numbers(5, 100))
    with pytest.raises(StoreError, match="declared again"):
        read(reader, plan)


def test_bodies_that_are_not_wanted_are_not_read(queue: warren.Queue) -> None:
    """Method: rows of an answer whose bodies lie nowhere can be read as long as nobody wants the bodies."""
    queue.put_many(numbers(3))
    mine = queue._client
    rows = mine.ask_queue(queue._declaration, lambda now: control.Browse(now.id, 0, 3, True), control.Rows).rows
    astray = bytearray(rows)
    for at in range(0, len(rows), DELIVERY.size):
        DELIVERY.pack_into(astray, "file", 4_000_000, at)
    handle = mine.handle(mine.current(queue._declaration), queue, Message)
    name = queue.name.encode()
    assert mine.core.columns(handle, rows, _core.COLUMNS_VALUES, name)[0] == 3
    assert mine.core.columns(handle, bytes(astray), _core.COLUMNS_VALUES, name)[0] == 0
    assert mine.core.columns(handle, bytes(astray), _core.COLUMNS_PLACES | _core.COLUMNS_METAS, name)[0] == 3


# -- streams ----------------------------------------------------------------------------------------------------------


def stream_of(options: dict[str, str]) -> QueueStreamReader:
    return QueueStreamReader(QueueReadOptions.parse(options), row_schema())


def test_a_micro_batch_has_all_that_is_ready(queue: warren.Queue, reading: Options) -> None:
    """More than one answer of a claim has (262,144)."""
    count = 280_000
    for start in range(0, count, 10_000):
        queue.put_many(numbers(10_000, start), wait=False)
    queue.put_many([b"%d" % count])
    stream = stream_of(reading())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end[queue.name]["next"] == count + 1
    again = stream_of(reading())  # whose checkpoint is lost
    stream.stop()
    stop = again.latestOffset(again.initialOffset(), ReadMaxBytes(1_000_000))
    assert 150_000 < stop[queue.name]["next"] < 260_000
    assert again.latestOffset(again.initialOffset(), ReadMaxRows(270_000))[queue.name]["next"] == 270_000
    last = {queue.name: {**end[queue.name], "next": count - 2}}
    assert read(again, again.partitions(last, end)) == [count - 2, count - 1, count]
    again.stop()


def test_a_task_knows_its_subscription(node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    queue.put_many(numbers(10))
    stream = stream_of(reading())
    start = stream.initialOffset()
    plan = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert read(stream, plan) == list(range(10))
    stream.stop()
    queue.subscription(f"spark-{queue.name}").delete()
    with pytest.raises(QueueNotFound, match="deleted, or never made"):
        read(stream, plan)
    names = [item["name"] for item in node.status()["subscriptions"]]
    assert f"spark-{queue.name}" not in names, "a task made a subscription"
    with pytest.raises(StoreError, match="new checkpointLocation"):
        stream_of(reading()).latestOffset(start, ReadAllAvailable())
    take(queue, 10)
    queue.put_many(numbers(10, 100))
    assert queue.subscription(f"spark-{queue.name}").claim(10) == (0, 10)
    with pytest.raises(StoreError, match="made again"):
        read(stream, plan)


def test_a_subscription_has_one_query(queue: warren.Queue, reading: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "WAIT_S", 0.1)
    queue.put_many(numbers(10))
    one, two = stream_of(reading()), stream_of(reading())
    start = one.initialOffset()
    number = int(start[queue.name]["id"].split("-")[1])
    assert owner.is_owned(one.options.path, number)
    for call in (
        two.initialOffset,
        two.prepareForTriggerAvailableNow,
        lambda: two.latestOffset(start, ReadAllAvailable()),
    ):
        with pytest.raises(UsageError, match="read by another query, or by two streams"):
            call()
    other = stream_of(reading(subscription="another"))
    other.initialOffset()
    other.stop()
    one.stop()
    assert not owner.is_owned(one.options.path, number)
    two.initialOffset()
    two.stop()
