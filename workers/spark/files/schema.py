"""The rows of `format("warren-files")`, declared once: of each kind of file its columns, and how a batch is made.

Invariant: as of `workers/spark/schema.py`, a batch equals the schema it was asked for exactly. Columns that were not
asked for are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.spark.schema import BY_NAME as MESSAGE_COLUMNS
from warren.workers.spark.schema import Column

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LONG, _INT, _TEXT, _BYTES = (
    (LongType(), pa.int64()),
    (IntegerType(), pa.int32()),
    (StringType(), pa.string()),
    (BinaryType(), pa.binary()),
)
_FLAG, _TIME = (BooleanType(), pa.bool_()), (TimestampType(), pa.timestamp("us", tz="UTC"))


def _columns(**types: tuple[Any, pa.DataType]) -> tuple[Column, ...]:
    return tuple(Column(name, *kinds) for name, kinds in types.items())


#: what every row has: the file below the data directory, where in it, how many bytes, what it is, whether it is sound
_FIRST = _columns(file=_TEXT, position=_LONG, bytes=_LONG, kind=_TEXT, status=_TEXT)
_ID = _columns(id=_BYTES, id_high=_LONG, id_low=_LONG)
_HEADERS = MESSAGE_COLUMNS["headers"]
#: kind of files → its columns
COLUMNS: dict[str, tuple[Column, ...]] = {
    "store": (*_FIRST, *_ID, *_columns(file_number=_LONG, holder=_INT, meta_bytes=_INT, body_bytes=_INT, value=_BYTES)),
    "journal": (*_FIRST, *_ID, *_columns(queues=_INT, meta_bytes=_INT, frame_bytes=_INT)),
    "queues": (
        *_FIRST,
        *_ID,
        *_columns(queue=_LONG, queue_name=_TEXT, sequence=_LONG, in_store=_FLAG, body_file=_LONG, body_position=_LONG),
        *_columns(frame_bytes=_INT, body_bytes=_INT, delivery_count=_INT, priority=_INT, reason=_TEXT),
        *_columns(expires=_TIME, due=_TIME),
    ),
    "messages": (
        *_FIRST,
        *_ID,
        *_columns(worker=_INT, queue=_LONG, queue_name=_TEXT, sequence=_LONG, in_store=_FLAG, body_file=_LONG),
        *_columns(body_position=_LONG, frame_bytes=_INT, body_bytes=_INT),
    ),
    "ids": (*_FIRST, *_columns(id_high=_LONG, block=_LONG, items=_BYTES)),
    "log": (
        *_FIRST,
        *_columns(log_position=_LONG, topic=_TEXT, topic_id=_LONG, queue=_INT, offset=_LONG, timestamp=_TIME),
        *_columns(born_timestamp=_TIME, key=_TEXT, tag=_TEXT, tags_code=_LONG, reconsume_times=_INT, sys_flag=_INT),
        *_columns(body_bytes=_INT, value=_BYTES),
        _HEADERS,
    ),
    "consumequeue": (
        *_FIRST,
        *_columns(topic=_TEXT, topic_id=_LONG, queue=_INT, offset=_LONG, log_position=_LONG, record_bytes=_INT),
        *_columns(tags_code=_LONG),
    ),
    "keyindex": (
        *_FIRST,
        *_columns(number=_LONG, key_hash=_LONG, log_position=_LONG, timestamp=_TIME, previous=_LONG),
    ),
}
#: columns that are made only when they are asked for: by includeValue, or by `.schema(…)`
_ASKED_FOR = frozenset({"value", "headers", "id_high", "id_low"})
#: makes a column
Maker = Callable[[], pa.Array]


def row_schema(files: str, *, value: bool = False) -> StructType:
    """The row of a kind of files; `value`: with bodies and headers."""
    left_out = (_ASKED_FOR - ({"value", "headers"} if value else set())) if files != "ids" else frozenset()
    return StructType([StructField(c.name, c.spark) for c in COLUMNS[files] if c.name not in left_out])


def check_schema(files: str, schema: StructType) -> None:
    """Raise UsageError unless every field of a user's `.schema(...)` is a column of these files, of its type."""
    known = {column.name: column for column in COLUMNS[files]}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise UsageError(f"files={files} has no column {shown(field.name)}; its columns are {', '.join(known)}")
        if field.dataType != column.spark:
            raise UsageError(
                f"column {field.name!r} of files={files} is {column.spark.simpleString()}, not "
                f"{field.dataType.simpleString()}; declare it so in .schema(...), and cast afterwards"
            )


def arrow_schema(files: str, schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for a schema that `check_schema` accepts."""
    known = {column.name: column.arrow for column in COLUMNS[files]}
    return pa.schema([pa.field(f.name, known[f.name], nullable=f.nullable) for f in schema.fields])


# ---- batches --------------------------------------------------------------------------------------------------------


def batch(wanted: pa.Schema, rows: int, makers: Mapping[str, Maker]) -> pa.RecordBatch:
    """A batch of `rows` rows: the columns that are wanted, those that nobody makes are null."""
    arrays = []
    for field in wanted:
        array = makers[field.name]() if field.name in makers else pa.nulls(rows, field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def numbers(values: NDArray[Any], kind: pa.DataType) -> Maker:
    """A column of numbers, of whatever byte order and stride."""
    to = np.int64 if kind in (pa.int64(), pa.timestamp("us", tz="UTC")) else np.int32

    def make() -> pa.Array:
        array = pa.array(np.ascontiguousarray(values).astype(to, copy=False))
        return array.view(kind) if pa.types.is_timestamp(kind) else array

    return make


def longs(values: NDArray[Any]) -> Maker:
    """A column of bigint."""
    return numbers(values, pa.int64())


def ints(values: NDArray[Any]) -> Maker:
    """A column of int."""
    return numbers(values, pa.int32())


def times(milliseconds: NDArray[Any], zero_is_none: bool = False) -> Maker:
    """A column of timestamps, of milliseconds since 1970."""

    def make() -> pa.Array:
        found = numbers(milliseconds.astype(np.int64) * 1000, pa.timestamp("us", tz="UTC"))()
        if not zero_is_none:
            return found
        mask = pa.array(np.ascontiguousarray(milliseconds) == 0)
        return pa.compute.if_else(mask, pa.scalar(None, found.type), found)

    return make


def repeated(value: object, rows: int, kind: pa.DataType | None = None) -> Maker:
    """A column that says the same in each row; None: null."""
    return lambda: pa.repeat(pa.scalar(value, kind or pa.string()), rows)


def chosen(codes: NDArray[Any], words: Iterable[str]) -> Maker:
    """A column of words, by their numbers."""
    return lambda: pa.DictionaryArray.from_arrays(
        pa.array(np.ascontiguousarray(codes).astype(np.int32)), pa.array(list(words), pa.string())
    ).cast(pa.string())


def ids(raw: NDArray[Any]) -> dict[str, Maker]:
    """Columns of message ids, as 16 bytes each."""
    packed = np.ascontiguousarray(raw).view(np.uint8).reshape(-1, 16)
    halves = packed.view(">i8")

    def made() -> pa.Array:
        ends = np.arange(len(packed) + 1, dtype=np.int32) * 16
        return pa.Array.from_buffers(pa.binary(), len(packed), [None, pa.py_buffer(ends), pa.py_buffer(packed)])

    return {"id": made, "id_high": longs(halves[:, 0]), "id_low": longs(halves[:, 1])}


def texts(kind: pa.DataType, rows: int, gathered: tuple[Buffer, Buffer], there: NDArray[np.bool_] | None) -> pa.Array:
    """A column of what the core gathered; `there`: which rows have any, None: all."""
    ends, data = gathered
    bits = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(ends), pa.py_buffer(data)])


def told(wanted: pa.Schema, rows: Iterable[tuple[str, int | None, int | None, str, str]]) -> pa.RecordBatch:
    """A batch of rows that are no records: (file, position, bytes, kind, status)."""
    found = list(rows)
    files, positions, sizes, kinds, statuses = zip(*found, strict=True) if found else ((),) * 5
    return batch(
        wanted,
        len(found),
        {
            "file": lambda: pa.array(files, pa.string()),
            "position": lambda: pa.array(positions, pa.int64()),
            "bytes": lambda: pa.array(sizes, pa.int64()),
            "kind": lambda: pa.array(kinds, pa.string()),
            "status": lambda: pa.array(statuses, pa.string()),
        },
    )
