"""The stream reader without Spark: what is claimed, what is acked and when, whatever is killed or lost.

Method: an in-memory subscription with the engine's rules stands behind the reader, and a driver plays Spark's part: it
logs a planned batch, reads it, commits it, or dies at any of these points.
"""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from warren.engine.errors import StoreError, UsageError
from warren.workers.spark import queue_source
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_source import ClaimPartition, QueueStreamReader
from warren.workers.spark.schema import row_schema

BODY_BYTES = 10
ANSWER = 7  #: claims of one answer, at most


class Claims:
    """A subscription and its queue, with the engine's rules."""

    incarnation = "00ab-7"

    def __init__(self, messages: int) -> None:
        self.waiting = list(range(messages))
        self.claimed: list[int] = []
        self.base = 0
        self.acked: list[int] = []

    def range(self) -> tuple[int, int]:
        return self.base, len(self.claimed)

    def ready(self) -> int:
        return len(self.waiting)

    def claim(self, max_messages: int, max_bytes: int) -> tuple[int, int]:
        assert max_messages >= 1
        assert max_bytes >= 1
        start = len(self.claimed)
        count = min(max_messages, ANSWER, max(1, max_bytes // BODY_BYTES))
        self.claimed += self.waiting[:count]
        del self.waiting[:count]
        return start, len(self.claimed)

    def ack(self, upto: int) -> int:
        assert upto <= len(self.claimed), "acked what was never claimed"
        self.acked += self.claimed[self.base : upto]
        self.base = max(self.base, upto)
        return upto

    def measure(self, start: int, end: int, max_bytes: int = 1 << 60) -> tuple[int, int]:
        assert self.base <= start < end <= len(self.claimed)
        stop = min(end, start + max(1, max_bytes // BODY_BYTES))
        return stop, (stop - start) * BODY_BYTES

    def read_arrow(
        self, start: int, end: int, max_bytes: int, *, max_messages: int, columns: list[str]
    ) -> pa.RecordBatch:
        first = max(start, self.base)
        most = min(max_messages, max(1, max_bytes // BODY_BYTES))
        numbers = range(first, min(end, len(self.claimed), first + most))
        self.asked = columns
        return pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(numbers, pa.int64()),
                "value": pa.array([b"%d" % self.claimed[n] for n in numbers], pa.binary()),
                "key": pa.nulls(len(numbers), pa.binary()),
                "delivery_count": pa.array([0 for _ in numbers], pa.int32()),
            }
        )


class NoOwner:
    """Nobody else is there."""

    def __init__(self, directory: str, number: int, what: str) -> None:
        assert (directory, number) == ("/data", 7) or number == 9
        assert "orders" in what


@pytest.fixture(scope="module", autouse=True)
def _here() -> Iterator[None]:
    """There is no directory, which tasks would look at first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_source, "check_here", lambda *_told: None)
        yield


@pytest.fixture
def reader_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make readers of a given subscription; each stands for a new planner process."""

    def make(claims: Claims, **more: str) -> QueueStreamReader:
        monkeypatch.setattr(QueueStreamReader, "_subscription", lambda _self, _role, _create=False: claims)
        monkeypatch.setattr(queue_source, "Owner", NoOwner)
        options = QueueReadOptions.parse({"path": "/data", "queue": "orders", "minPartitions": "3", **more})
        return QueueStreamReader(options, row_schema())

    return make


def as_spark_keeps_it(offset: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


def bodies(reader: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Iterator[int]:
    """Everything in the partitions of a batch, each read by a copy of the reader, as in an executor."""
    for partition in reader.partitions(start, end):
        copy = pickle.loads(pickle.dumps(reader))
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            yield from (int(value) for value in batch.column("value").to_pylist())


def test_a_batch_is_acked_when_the_next_is_asked_for(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert list(bodies(reader, start, end)) == [0, 1, 2, 3]
    assert claims.acked == []
    following = reader.latestOffset(end, ReadMaxRows(4))
    assert claims.acked == [0, 1, 2, 3]
    assert list(bodies(reader, end, following)) == [4, 5, 6, 7]


def test_nothing_new_is_the_very_same_offset(reader_of: Any) -> None:
    claims = Claims(3)
    reader = reader_of(claims)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert json.dumps(reader.latestOffset(as_spark_keeps_it(end), ReadAllAvailable())) == json.dumps(end)
    assert claims.acked == [0, 1, 2]
    assert reader.partitions(end, end) == []


@pytest.mark.parametrize(("limit", "count"), [(ReadMaxRows(7), 7), (ReadMaxBytes(55), 5), (ReadAllAvailable(), 20)])
def test_limits(reader_of: Any, limit: ReadLimit, count: int) -> None:
    reader = reader_of(Claims(20), maxOffsetsPerTrigger="1")  # which ReadAllAvailable must ignore
    start = reader.initialOffset()
    assert len(list(bodies(reader, start, reader.latestOffset(start, limit)))) == count


def test_claims_of_a_dead_run_keep_to_the_limit_of_bytes(reader_of: Any) -> None:
    """As behind a lost checkpoint, where everything is claimed already."""
    claims = Claims(20)
    reader_of(claims).latestOffset(reader_of(claims).initialOffset(), ReadAllAvailable())
    reader = reader_of(claims)
    start, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxBytes(65))) != start:
        batches.append(list(bodies(reader, start, end)))
        start = end
    assert [len(batch) for batch in batches] == [6, 6, 6, 2]
    assert [number for batch in batches for number in batch] == list(range(20))


def test_both_limits_hold(reader_of: Any) -> None:
    for rows, count in ((17, 9), (5, 5)):
        reader = reader_of(Claims(20), maxBytesPerTrigger="95")
        start = reader.initialOffset()
        assert len(list(bodies(reader, start, reader.latestOffset(start, ReadMaxRows(rows))))) == count


def test_only_columns_that_are_wanted_are_asked_for(reader_of: Any) -> None:
    claims = Claims(3)
    reader = reader_of(claims)
    reader.fields = StructType([StructField("DELIVERY_COUNT", IntegerType()), StructField("topic", StringType())])
    start = reader.initialOffset()
    [batch, *_] = reader.read(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))[0])
    assert batch.schema.names == ["DELIVERY_COUNT", "topic"]
    assert batch.to_pylist()[0] == {"DELIVERY_COUNT": 0, "topic": "orders"}
    assert claims.asked == ["delivery_count", "offset"]


def test_a_subscription_made_anew_is_refused_in_the_task(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims, batchRows="2", minPartitions="1")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    reading = reader.read(partition)
    next(reading)
    claims.incarnation = "00ab-9"
    with pytest.raises(StoreError, match="made again"):
        next(reading)
    with pytest.raises(StoreError, match="made again"):
        next(reader.read(partition))


def test_the_limit_of_the_options(reader_of: Any) -> None:
    assert reader_of(Claims(0)).getDefaultReadLimit() == ReadAllAvailable()
    assert reader_of(Claims(0), maxOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(9)
    assert reader_of(Claims(0), maxBytesPerTrigger="9").getDefaultReadLimit() == ReadMaxBytes(9)


def test_available_now_ends_although_messages_keep_coming(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims)
    reader.prepareForTriggerAvailableNow()
    offset, seen = reader.initialOffset(), []
    for _ in range(100):
        claims.waiting += range(1000, 1005)
        end = reader.latestOffset(offset, ReadMaxRows(4))
        if end == offset:
            break
        seen += bodies(reader, offset, end)
        offset = as_spark_keeps_it(end)
    assert seen == list(range(10))
    assert claims.acked == list(range(10))


def test_batches_of_rows_are_split(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims, minPartitions="1", batchRows="4", batchBytes="1000")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert [batch.num_rows for batch in reader.read(partition)] == [4, 4, 2]
    reader = reader_of(claims, batchBytes="30")
    assert [batch.num_rows for batch in reader.read(partition)] == [3, 3, 3, 1]


def test_reporting_shows_the_lag(reader_of: Any) -> None:
    reader = reader_of(Claims(10))
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["orders"]["next"] == 10


def test_another_reader_of_the_subscription_is_noticed(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    claims.claim(2, 10**6)
    with pytest.raises(UsageError, match="subscription"):
        reader.latestOffset(end, ReadMaxRows(4))


def test_claims_of_an_earlier_run_are_marked(reader_of: Any) -> None:
    claims = Claims(10)
    first = reader_of(claims)
    start = first.initialOffset()
    first.latestOffset(first.initialOffset(), ReadMaxRows(4))  # and it is killed

    def counts(reader: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        found = (batch for partition in reader.partitions(start, end) for batch in reader.read(partition))
        return [count for batch in found for count in batch.column("delivery_count").to_pylist()]

    second = reader_of(claims)
    end = second.latestOffset(second.initialOffset(), ReadAllAvailable())
    assert counts(second, start, end) == [1] * 4
    following = second.latestOffset(end, ReadAllAvailable())
    assert counts(second, end, following) == [0] * 6
    assert counts(reader_of(claims), end, following) == [1] * 6, "a replay is a redelivery"


def test_an_old_checkpoint_is_data_loss(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims)
    old = reader.initialOffset()
    end = reader.latestOffset(old, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(StoreError, match="between 0 and 10"):
        reader_of(claims).latestOffset(old, ReadAllAvailable())
    with pytest.raises(StoreError, match="failOnDataLoss"):
        list(reader_of(claims).read(ClaimPartition(Claims.incarnation, 0, 10)))
    tolerant = reader_of(claims, failOnDataLoss="false")
    assert tolerant.latestOffset(old, ReadAllAvailable()) == end
    assert list(tolerant.read(ClaimPartition(Claims.incarnation, 0, 10))) == []


def test_partly_lost_claims_are_an_error(reader_of: Any) -> None:
    claims = Claims(10)
    reader = reader_of(claims)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    claims.ack(4)
    with pytest.raises(StoreError, match="between 2 and"):
        list(reader.read(ClaimPartition(Claims.incarnation, 2, 8)))
    kept = [
        batch.num_rows
        for batch in reader_of(claims, failOnDataLoss="false").read(ClaimPartition(Claims.incarnation, 2, 8))
    ]
    assert sum(kept) == 4


def test_a_checkpoint_newer_than_the_data_is_refused(reader_of: Any) -> None:
    reader = reader_of(Claims(10))
    future = reader._offset(Claims(0), 77).to_json()
    with pytest.raises(StoreError, match="older than the checkpoint"):
        reader.latestOffset(future, ReadAllAvailable())


def test_a_subscription_made_anew_is_refused(reader_of: Any) -> None:
    claims = Claims(10)
    offset = reader_of(claims).initialOffset()
    claims.incarnation = "00ab-9"
    with pytest.raises(StoreError, match="made again"):
        reader_of(claims).latestOffset(offset, ReadAllAvailable())


@settings(deadline=None, max_examples=200)
@given(data=st.data(), messages=st.integers(0, 40))
def test_any_crashes_lose_and_double_nothing(data: st.DataObject, messages: int) -> None:
    """Killed between any two steps: committed batches hold every message once, in order, and only those are acked."""
    claims = Claims(messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueueStreamReader, "_subscription", lambda _self, _role, _create=False: claims)
        patch.setattr(queue_source, "Owner", NoOwner)
        committed: list[int] = []
        checkpoint: dict[str, Any] | None = None  # end of the last committed batch
        planned: tuple[dict[str, Any], dict[str, Any]] | None = None  # in the offset log, and not committed
        for _step in range(300):
            reader = QueueStreamReader(QueueReadOptions.parse({"path": "/data", "queue": "orders"}), row_schema())
            while True:
                if data.draw(st.integers(0, 5)) == 0:
                    break  # killed
                if planned is None:
                    start = checkpoint if checkpoint is not None else reader.initialOffset()
                    assert claims.acked == committed[: len(claims.acked)]
                    limit = data.draw(st.sampled_from([ReadAllAvailable(), ReadMaxRows(3), ReadMaxBytes(25)]))
                    end = reader.latestOffset(start, limit)
                    if data.draw(st.integers(0, 5)) == 0:
                        break  # killed before the batch was logged
                    if end == start:
                        assert committed == list(range(messages))
                        assert claims.acked == committed
                        return
                    planned = as_spark_keeps_it(start), as_spark_keeps_it(end)
                found = list(bodies(reader, *planned))
                if data.draw(st.integers(0, 5)) == 0:
                    break  # killed before the commit
                committed += found
                checkpoint, planned = planned[1], None
        assert committed == list(range(len(committed)))


def test_data_source_survives_pickling() -> None:
    made = WarrenDataSource({"path": "/data", "queue": "orders", "includeHeaders": "true"})
    copy = pickle.loads(pickle.dumps(made))
    assert copy.schema() == row_schema(headers=True)
    assert WarrenDataSource.name() == "warren"
    assert isinstance(copy.streamReader(row_schema()), queue_source.QueueStreamReader)
