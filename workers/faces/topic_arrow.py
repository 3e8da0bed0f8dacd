"""Messages of a topic as Arrow batches: the columns are the core's memory, nothing is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from warren.engine._core import Columns, Memory

_PROPERTIES = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("born_timestamp", _TIME, nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("properties", _PROPERTIES, nullable=False),
    ]
)
EMPTY = pa.RecordBatch.from_pylist([], SCHEMA)


def batch(columns: Columns) -> pa.RecordBatch:
    """The batch of the core's columns."""
    rows, no_keys, no_tags, _none, offsets, times, born, key_valid, key_ends, keys, tag_valid, tag_ends, tags = columns[
        :13
    ]
    value_ends, values, id_ends, ids, _some, *properties = columns[13:]
    return pa.RecordBatch.from_arrays(
        [
            number_column(pa.int64(), rows, offsets),
            text_column(pa.string(), rows, key_ends, keys, key_valid, no_keys),
            text_column(pa.string(), rows, tag_ends, tags, tag_valid, no_tags),
            text_column(pa.binary(), rows, value_ends, values),
            number_column(_TIME, rows, times),
            number_column(_TIME, rows, born),
            text_column(pa.string(), rows, id_ends, ids),
            _pairs(rows, *properties),
        ],
        schema=SCHEMA,
    )


def number_column(kind: pa.DataType, rows: int, numbers: Memory) -> pa.Array:
    """A column of numbers."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers)])


def text_column(
    kind: pa.DataType, rows: int, ends: Memory, texts: Memory, valid: Memory | None = None, nulls: int = 0
) -> pa.Array:
    """A column of texts, of which `nulls` are None where `valid` says so."""
    bits = None if valid is None or not nulls else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(ends), pa.py_buffer(texts)], nulls)


def _pairs(rows: int, ends: Memory, name_ends: Memory, names: Memory, text_ends: Memory, texts: Memory) -> pa.Array:
    pairs = len(name_ends) // 4 - 1
    entries = pa.StructArray.from_arrays(
        [text_column(pa.string(), pairs, name_ends, names), text_column(pa.string(), pairs, text_ends, texts)],
        fields=[_PROPERTIES.key_field, _PROPERTIES.item_field],
    )
    return pa.Array.from_buffers(_PROPERTIES, rows, [None, pa.py_buffer(ends)], children=[entries])
