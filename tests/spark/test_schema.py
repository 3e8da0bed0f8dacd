"""Rows: our Arrow schema is Spark's own, and batches are made to equal it, for every choice of columns."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from warren.engine.errors import UsageError
from warren.workers.spark.schema import COLUMN_NAMES, arrow_schema, check_schema, row_schema, to_spark_batch

ENGINE = pa.RecordBatch.from_pydict(
    {
        "offset": pa.array([5, 6], pa.int64()),
        "msg_id": pa.array([b"a" * 16, b"b" * 16], pa.binary()),
        "exchange": pa.array(["", "events"]),
        "routing_key": pa.array(["orders", "ä.b"]),
        "key": pa.array([None, "ä.b".encode()], pa.binary()),
        "value": pa.array([b"one", b""], pa.binary()),
        "headers": pa.array(
            [None, [{"key": "k", "value": b"v"}]],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        "delivery_count": pa.array([0, 2], pa.int32()),
        "redelivered": pa.array([False, True]),
    }
)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("headers", [True, False])
def test_arrow_schema_is_what_spark_expects(value: bool, headers: bool) -> None:
    schema = row_schema(value=value, headers=headers)
    assert arrow_schema(schema) == to_arrow_schema(schema, timezone="UTC")
    assert to_spark_batch(ENGINE, arrow_schema(schema), "orders").schema == to_arrow_schema(schema, timezone="UTC")


def test_content() -> None:
    batch = to_spark_batch(ENGINE, arrow_schema(row_schema(headers=True)), "orders")
    batch.validate(full=True)
    assert batch.slice(1).to_pylist() == [
        {
            "key": "ä.b".encode(),
            "value": b"",
            "topic": "orders",
            "partition": 0,
            "offset": 6,
            "timestamp": None,
            "born_timestamp": None,
            "tag": None,
            "msg_id": b"b" * 16,
            "headers": [{"key": "k", "value": b"v"}],
            "delivery_count": 2,
        }
    ]


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_any_single_column(name: str) -> None:
    field = next(field for field in row_schema(headers=True).fields if field.name == name)
    schema = StructType([field])
    check_schema(schema)
    assert to_spark_batch(ENGINE, arrow_schema(schema), "orders").schema == to_arrow_schema(schema, timezone="UTC")


def test_empty_batch() -> None:
    schema = arrow_schema(row_schema(headers=True))
    assert to_spark_batch(ENGINE.slice(0, 0), schema, "orders").schema == schema


@pytest.mark.parametrize(
    ("field", "told"),
    [(StructField("price", LongType()), "no column 'price'"), (StructField("value", StringType()), "is binary")],
)
def test_a_schema_that_is_not_ours(field: StructField, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_schema(StructType([StructField("partition", IntegerType()), field]))
