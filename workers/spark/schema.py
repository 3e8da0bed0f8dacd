"""The rows that Spark sees, declared once: names, Spark types, Arrow types.

Invariant: a batch handed to Spark equals the schema it was asked for exactly, as Spark checks types, nullability and
order and then reads buffers blindly. So `to_spark_batch` casts nothing but what is named here, and `arrow_schema` is
tested against PySpark's own conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
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
from warren.workers.faces.arrow import repeated

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


def column_of(name: str) -> Column:
    """Return the column of this name, in whatever case, as Spark's SQL compares names. UsageError: there is none."""
    column = BY_NAME.get(name.lower())
    if column is None:
        raise UsageError(f"Warren has no column {name!r}; its columns are {', '.join(COLUMN_NAMES)}")
    return column


def check_schema(schema: StructType, find: Callable[[str], Column] = column_of) -> None:
    """Raise UsageError unless every field of a user's `.schema(...)` is a column of the row, of the row's type; `find`
    has the columns.
    """
    seen: set[str] = set()
    for field in schema.fields:
        column = find(field.name)
        if column.name in seen:
            raise UsageError(f"column {field.name!r} is twice in .schema(...)")
        seen.add(column.name)
        if field.dataType != column.spark:
            raise UsageError(
                f"Warren's column {field.name!r} is {column.spark.simpleString()}, not "
                f"{field.dataType.simpleString()}; declare it so in .schema(...), and cast afterwards"
            )


def arrow_schema(schema: StructType, find: Callable[[str], Column] = column_of) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for `schema` (a schema that `check_schema` accepts)."""
    return pa.schema([pa.field(f.name, find(f.name).arrow, nullable=f.nullable) for f in schema.fields])


#: those that the engine has
_ENGINES = {name: name for name in ("key", "value", "offset", "msg_id", "headers", "timestamp", "delivery_count")}
#: when the message was made, as its publisher says: the only time that a queue can tell
_ENGINES["born_timestamp"] = "timestamp"


def columns_of(wanted: pa.Schema) -> list[str]:
    """The columns that the engine is asked for (faces/arrow.py), for batches of that schema; `offset` always."""
    return sorted({_ENGINES[name] for name in map(str.lower, wanted.names) if name in _ENGINES} | {"offset"})


def to_spark_batch(batch: pa.RecordBatch, wanted: pa.Schema, topic: str, again_below: int = 0) -> pa.RecordBatch:
    """Return `batch` (columns of the engine's `read_arrow`) as a batch of exactly the schema `wanted`.

    The name of the queue becomes `topic`; what the engine does not know is null. Messages with an offset below
    `again_below` count as delivered once more than the engine knows.
    """
    rows = batch.num_rows
    there = set(batch.schema.names)
    arrays = []
    for field in wanted:
        name = _ENGINES.get(field.name.lower(), field.name.lower())
        if name == "topic":
            array = repeated(topic, field.type, rows)
        elif name == "partition":
            array = repeated(0, field.type, rows)
        elif name not in there:
            array = repeated(None, field.type, rows)
        elif name == "delivery_count":
            array = _deliveries(batch, again_below)
        elif name == "msg_id":
            array = _ids(batch.column(name))
        else:
            array = batch.column(name)
            if array.type != field.type:
                array = array.cast(field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _deliveries(batch: pa.RecordBatch, again_below: int) -> pa.Array:
    counts, offsets = batch.column("delivery_count"), batch.column("offset")
    if not batch.num_rows or offsets[0].as_py() >= again_below:
        return counts
    again = pc.less(offsets, pa.scalar(again_below, pa.int64())).cast(counts.type)
    return pc.add(counts, again)


@lru_cache(maxsize=8)
def _ends(rows: int, each: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(0, (rows + 1) * each, each, dtype=np.int32))


def _ids(ids: pa.Array) -> pa.Array:
    """Ids of a fixed length as binary, without a copy."""
    if ids.offset or ids.null_count or not isinstance(ids.type, pa.FixedSizeBinaryType):
        return ids.cast(pa.binary())
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, _ends(len(ids), ids.type.byte_width), ids.buffers()[1]])
