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
    rows, no_keys, no_tags, offsets, times, born, key_valid, key_ends, keys, tag_valid, tag_ends, tags = columns[:12]
    value_ends, values, id_ends, ids, *properties = columns[12:]
    return pa.RecordBatch.from_arrays(
        [
            _fixed(pa.int64(), rows, offsets),
            _texts(pa.string(), rows, key_ends, keys, key_valid, no_keys),
            _texts(pa.string(), rows, tag_ends, tags, tag_valid, no_tags),
            _texts(pa.binary(), rows, value_ends, values),
            _fixed(_TIME, rows, times),
            _fixed(_TIME, rows, born),
            _texts(pa.string(), rows, id_ends, ids),
            _pairs(rows, *properties),
        ],
        schema=SCHEMA,
    )


def _fixed(kind: pa.DataType, rows: int, numbers: Memory) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers)])


def _texts(
    kind: pa.DataType, rows: int, ends: Memory, texts: Memory, valid: Memory | None = None, nulls: int = 0
) -> pa.Array:
    bits = None if valid is None or not nulls else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(ends), pa.py_buffer(texts)], nulls)


def _pairs(rows: int, ends: Memory, name_ends: Memory, names: Memory, text_ends: Memory, texts: Memory) -> pa.Array:
    pairs = len(name_ends) // 4 - 1
    entries = pa.StructArray.from_arrays(
        [_texts(pa.string(), pairs, name_ends, names), _texts(pa.string(), pairs, text_ends, texts)],
        fields=[_PROPERTIES.key_field, _PROPERTIES.item_field],
    )
    return pa.Array.from_buffers(_PROPERTIES, rows, [None, pa.py_buffer(ends)], children=[entries])
