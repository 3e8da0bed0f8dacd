"""The sink without Spark: which rows can be written, and what goes to the node for them."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from warren.engine.errors import UsageError
from warren.workers.spark import sink
from warren.workers.spark.schema import row_schema
from warren.workers.spark.sink_options import SinkOptions

TO_QUEUE = {"path": "/data", "queue": "results"}
TO_EXCHANGE = {"path": "/data", "exchange": "events"}
PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def rows(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (rows(value=BinaryType()), TO_QUEUE),
        (rows(value=StringType(), key=StringType()), TO_EXCHANGE),
        (rows(value=StringType()), {**TO_EXCHANGE, "routingKey": "a.b"}),
        (rows(value=BinaryType(), headers=ArrayType(PAIR)), TO_QUEUE),
        (row_schema(headers=True), TO_QUEUE),  # what was read can be written
    ],
)
def test_schemas_that_can_be_written(schema: StructType, options: dict[str, str]) -> None:
    sink.check_sink_schema(schema, SinkOptions.parse(options), overwrite=False)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        (rows(key=StringType()), TO_QUEUE, "column named value"),
        (rows(value=LongType()), TO_QUEUE, "binary or string, not bigint"),
        (rows(value=StringType(), key=LongType()), TO_QUEUE, "'key'"),
        (rows(value=StringType(), price=LongType()), TO_QUEUE, "'price' has no place"),
        (rows(value=StringType(), headers=StringType()), TO_QUEUE, "array<struct<key:string,value:binary>>"),
        (rows(value=StringType()), TO_EXCHANGE, "routingKey"),
    ],
)
def test_schemas_that_cannot(schema: StructType, options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        sink.check_sink_schema(schema, SinkOptions.parse(options), overwrite=False)


def test_overwriting_is_refused() -> None:
    with pytest.raises(UsageError, match="append"):
        sink.check_sink_schema(rows(value=StringType()), SinkOptions.parse(TO_QUEUE), overwrite=True)


class Recorder:
    """Stands for the node: notes what is published."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def queue(self, name: str, *, create: bool) -> "Recorder":
        assert not create
        self.name = name
        return self

    def put_many(self, bodies: list[bytes], **more: Any) -> None:
        self.calls.append({"queue": self.name, "bodies": bodies, **more})

    def publish_many(self, bodies: list[bytes], **more: Any) -> None:
        self.calls.append({"bodies": bodies, **more})


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(sink, "node_of", lambda *_: made)
    return made


def test_rows_to_a_queue(recorder: Recorder) -> None:
    options = SinkOptions.parse({**TO_QUEUE, "batchRows": "2"})
    batches = iter(
        [pa.RecordBatch.from_pydict({"value": ["ä", "b", "c"]}), pa.RecordBatch.from_pydict({"value": [b"d"]})]
    )
    assert sink.publish(options, batches) == sink.Published(4, 5)
    assert [call["bodies"] for call in recorder.calls] == [["ä".encode(), b"b"], [b"c"], [b"d"]]
    assert all(call["durability"] == "synced" and call["headers"] is None for call in recorder.calls)


def test_rows_to_an_exchange(recorder: Recorder) -> None:
    options = SinkOptions.parse({**TO_EXCHANGE, "routingKey": "other", "mandatory": "true"})
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a.b", None], pa.binary()),
            "value": pa.array([b"1", b"2"], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    sink.publish(options, iter([batch]))
    [call] = recorder.calls
    assert call["routing_keys"] == ["a.b", "other"]
    assert call["headers"] == [{"h": b"x"}, None]
    assert (call["exchange"], call["mandatory"]) == ("events", True)


def test_a_null_body_is_refused(recorder: Recorder) -> None:
    with pytest.raises(UsageError, match="null"):
        sink.publish(SinkOptions.parse(TO_QUEUE), iter([pa.RecordBatch.from_pydict({"value": ["a", None]})]))
    assert recorder.calls == []


def test_an_empty_partition_writes_nothing(recorder: Recorder) -> None:
    assert sink.publish(SinkOptions.parse(TO_QUEUE), iter([])) == sink.Published(0, 0)
