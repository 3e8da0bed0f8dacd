"""Columns of the core as the Arrow batches that Spark takes: only those that the schema has, nothing copied.

What is the same in all rows of a task (topic, partition) is made once, and cut to each batch's length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from warren.engine import _core
from warren.workers.faces.topic_arrow import number_column, text_column
from warren.workers.spark.topic_schema import topic_arrow_schema, topic_column

if TYPE_CHECKING:
    from warren.engine._core import Columns

#: what `timestampType` says in all rows, as in Kafka: `timestamp` is when the message was stored
LOG_APPEND_TIME = 1
_WANTS = {
    "key": _core.WANT_KEY,
    "value": _core.WANT_VALUE,
    "offset": _core.WANT_OFFSET,
    "timestamp": _core.WANT_TIMESTAMP,
    "born_timestamp": _core.WANT_BORN_TIMESTAMP,
    "tag": _core.WANT_TAG,
    "msg_id": _core.WANT_ID,
    "headers": _core.WANT_PROPERTIES,
}


class TopicRows:
    """Batches of one partition of a topic, of exactly the schema that Spark asked for."""

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._schema = topic_arrow_schema(schema)
        self._names = [topic_column(field.name).name for field in schema.fields]
        self._values = {"topic": topic, "partition": partition, "timestampType": LOG_APPEND_TIME}
        self._constants: dict[str, pa.Array] = {}
        #: the columns that a scan makes for them
        self.want = sum({_WANTS[name] for name in self._names if name in _WANTS})

    def batch(self, columns: Columns) -> pa.RecordBatch:
        """Return the rows of a scan."""
        rows = columns[0]
        arrays = [
            _MADE[name](field.type, columns) if name in _MADE else self._constant(name, field.type, rows)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, kind: pa.DataType, rows: int) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < rows:
            made = self._constants[name] = pa.repeat(pa.scalar(self._values[name], kind), rows)
        return made.slice(0, rows)


def _number(at: int) -> Callable[[pa.DataType, Columns], pa.Array]:
    return lambda kind, columns: number_column(kind, columns[0], columns[at])  # type: ignore[arg-type]


def _text(at: int, nulls: int | None = None) -> Callable[[pa.DataType, Columns], pa.Array]:
    """Of the buffers from `at` on: which are there, if some may be missing, ends, and bytes."""
    if nulls is None:
        return lambda kind, columns: text_column(kind, columns[0], columns[at], columns[at + 1])  # type: ignore[arg-type]
    return lambda kind, columns: text_column(
        kind, columns[0], columns[at + 1], columns[at + 2], columns[at], columns[nulls]  # type: ignore[arg-type]
    )  # fmt: skip


def _headers(kind: pa.DataType, columns: Columns) -> pa.Array:
    """Names and values of properties; of a message that has none, null."""
    _some, ends, name_ends, names, text_ends, texts = columns[17:]
    pairs = len(name_ends) // 4 - 1
    fields = list(kind.value_type)
    entries = pa.StructArray.from_arrays(
        [text_column(fields[0].type, pairs, name_ends, names), text_column(fields[1].type, pairs, text_ends, texts)],
        fields=fields,
    )
    nulls = columns[3]
    bits = pa.py_buffer(columns[17]) if nulls else None
    return pa.Array.from_buffers(kind, columns[0], [bits, pa.py_buffer(ends)], nulls, children=[entries])


#: of the columns that the core makes (binding/topic_columns.h)
_MADE: dict[str, Callable[[pa.DataType, Columns], pa.Array]] = {
    "offset": _number(4),
    "timestamp": _number(5),
    "born_timestamp": _number(6),
    "key": _text(7, nulls=1),
    "tag": _text(10, nulls=2),
    "value": _text(13),
    "msg_id": _text(15),
    "headers": _headers,
}
