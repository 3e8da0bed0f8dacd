"""The rows that Spark sees, declared once: names, Spark types, Arrow types.

Invariant: a batch handed to Spark equals the schema it was asked for exactly, as Spark checks types, nullability and
order and then reads buffers blindly. So `to_spark_batch` casts nothing but what is named here, and `arrow_schema` is
tested against PySpark's own conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from warren.engine.errors import UsageError

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_ARROW_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]), nullable=True)
)
_ARROW_TIMESTAMP = pa.timestamp("us", tz="UTC")


class Column(NamedTuple):
    """One column of a row: its name, its type in Spark and in Arrow."""

    name: str
    spark: DataType
    arrow: pa.DataType


#: every column, in the order of the row
COLUMNS: tuple[Column, ...] = (
    Column("key", BinaryType(), pa.binary()),
    Column("value", BinaryType(), pa.binary()),
    Column("topic", StringType(), pa.string()),
    Column("partition", IntegerType(), pa.int32()),
    Column("offset", LongType(), pa.int64()),
    Column("timestamp", TimestampType(), _ARROW_TIMESTAMP),
    Column("born_timestamp", TimestampType(), _ARROW_TIMESTAMP),
    Column("tag", StringType(), pa.string()),
    Column("msg_id", BinaryType(), pa.binary()),
    Column("headers", ArrayType(_HEADER), _ARROW_HEADERS),
    Column("delivery_count", IntegerType(), pa.int32()),
)
BY_NAME = {column.name: column for column in COLUMNS}
COLUMN_NAMES = tuple(BY_NAME)


def row_schema(*, value: bool = True, headers: bool = False) -> StructType:
    """Return the row's schema; `value` and `headers` say whether those columns are part of it."""
    left_out = {name for name, wanted in (("value", value), ("headers", headers)) if not wanted}
    return StructType([StructField(c.name, c.spark) for c in COLUMNS if c.name not in left_out])


def check_schema(schema: StructType) -> None:
    """Raise UsageError unless every field of a user's `.schema(...)` is a column of the row, of the row's type."""
    for field in schema.fields:
        column = BY_NAME.get(field.name)
        if column is None:
            raise UsageError(f"Warren has no column {field.name!r}; its columns are {', '.join(COLUMN_NAMES)}")
        if field.dataType != column.spark:
            raise UsageError(
                f"Warren's column {field.name!r} is {column.spark.simpleString()}, not "
                f"{field.dataType.simpleString()}; declare it so in .schema(...), and cast afterwards"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for `schema` (a schema that `check_schema` accepts)."""
    return pa.schema([pa.field(f.name, BY_NAME[f.name].arrow, nullable=f.nullable) for f in schema.fields])


def to_spark_batch(batch: pa.RecordBatch, wanted: pa.Schema, topic: str, again_below: int = 0) -> pa.RecordBatch:
    """Return `batch` (columns of the engine's `read_arrow`) as a batch of exactly the schema `wanted`.

    The routing key becomes `key`, the name of the queue `topic`; what the engine does not know is null. Messages with
    an offset below `again_below` count as delivered once more than the engine knows.
    """
    rows = batch.num_rows
    there = set(batch.schema.names)

    def constant(value: object) -> Callable[[pa.DataType], pa.Array]:
        return lambda kind: pa.repeat(pa.scalar(value, kind), rows)

    def deliveries(kind: pa.DataType) -> pa.Array:
        again = pc.less(batch.column("offset"), pa.scalar(again_below, pa.int64())).cast(kind)
        return pc.add(batch.column("delivery_count"), again)

    made: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "topic": constant(topic),
        "partition": constant(0),
        "delivery_count": deliveries,
    }
    arrays = []
    for field in wanted:
        source = "routing_key" if field.name == "key" else field.name
        if field.name in made:
            array = made[field.name](field.type)
        elif source in there:
            array = batch.column(source)
            if array.type != field.type:
                array = array.cast(field.type)
        else:
            array = pa.nulls(rows, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
