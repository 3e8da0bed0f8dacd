"""The columns of a row that is written: their types, and which have a place where the row goes.

Names are compared without case, as Spark does. Columns that say where a row was read from (`offset`, `msg_id`, …) are
left out, so that what was read can be written.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from warren.engine.errors import UsageError
from warren.workers.spark.sink_options import TARGETS, SinkOptions

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TEXTS = (BinaryType, StringType)
_SECONDS = (*_WHOLE, FloatType, DoubleType, DecimalType, DayTimeIntervalType)


class _Column(NamedTuple):
    types: tuple[type[DataType], ...]
    wanted: str  #: in words
    places: tuple[str, ...] = TARGETS  #: where a row with it can go


_COLUMNS = {
    "value": _Column(_TEXTS, "binary or string"),
    "key": _Column(_TEXTS, "binary or string"),
    "headers": _Column((ArrayType,), "array<struct<key:string,value:binary>>"),
    "timestamp": _Column((TimestampType,), "timestamp"),
    "born_timestamp": _Column((TimestampType,), "timestamp"),
    "tag": _Column((StringType,), "string"),
    "partition": _Column(_WHOLE, "int"),
    "topic": _Column((StringType,), "string"),
    "queue": _Column((StringType,), "string"),
    "exchange": _Column((StringType,), "string"),
    "message_id": _Column(_TEXTS, "binary or string", ("queue", "exchange")),
    "priority": _Column(_WHOLE, "int", ("queue", "exchange")),
    "ttl": _Column(_SECONDS, "a number of seconds, or an interval", ("queue", "exchange")),
    "delay": _Column(_SECONDS, "a number of seconds, or an interval"),
}
#: columns of a row read from Warren that a write has no use for
_LEFT_OUT = frozenset({"offset", "msg_id", "delivery_count"})


def check_sink_schema(schema: StructType, options: SinkOptions, overwrite: bool) -> None:
    """Raise UsageError unless rows of `schema` can be published as `options` say."""
    if overwrite:
        raise UsageError(
            'Warren appends: use .mode("append"), or outputMode "append" for a stream; totals that change are written '
            "by foreachBatch, each batch with a write of its own"
        )
    types: dict[str, DataType] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in types:
            raise UsageError(f"there are two columns named {name!r}: leave one out")
        types[name] = field.dataType
    fixed = next((target for target in TARGETS if getattr(options, target) is not None), None)
    for name, kind in types.items():
        _check_column(name, kind, fixed)
    if "value" not in types:
        raise UsageError("a write needs a column named value, of type binary or string")
    if fixed is None and not types.keys() & set(TARGETS):
        raise UsageError(
            'a write needs one of the options "queue", "exchange" and "topic", or a column of such a name that says '
            "where each row goes"
        )
    if fixed == "exchange" and "key" not in types and options.routing_key is None:
        raise UsageError('a write to an exchange needs a column named key, or the option "routingKey"')
    if fixed is None and options.routing_key is not None and "exchange" not in types:
        raise UsageError('option "routingKey" goes with an exchange, and no row names one')


def _check_column(name: str, kind: DataType, fixed: str | None) -> None:
    """`fixed`: what an option says that all rows go to, None: each row says it."""
    if name in _LEFT_OUT:
        return
    column = _COLUMNS.get(name)
    if column is None:
        raise UsageError(
            f"column {name!r} has no place in a message; select value, and what else there is to say of "
            f"{', '.join(list(_COLUMNS)[1:])} (for a row as JSON: to_json(struct(*)) as value)"
        )
    if fixed is not None and name in ("queue", "exchange"):
        raise UsageError(
            f"column {name!r} says where each row goes, and option {fixed!r} where all go: leave one of them out"
        )
    if fixed is not None and fixed not in column.places:
        raise UsageError(f"column {name!r} has no place in a message of a topic: leave it out")
    if isinstance(kind, NullType) and name != "value":
        return
    if not isinstance(kind, column.types) or (name == "headers" and not are_headers(kind)):
        raise UsageError(f"column {name!r} must be {column.wanted}, not {kind.simpleString()}")


def are_headers(kind: DataType) -> bool:
    """Whether a column of this type can be headers."""
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType):
        return False
    named = {field.name.lower(): field.dataType for field in element.fields}
    return (
        len(element.fields) == len(named) == 2
        and isinstance(named.get("key"), StringType)
        and isinstance(named.get("value"), _TEXTS)
    )


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a batch that a write has a use for, by their names in lower case."""
    kept = {name.lower(): place for place, name in enumerate(batch.schema.names) if name.lower() in _COLUMNS}
    return pa.RecordBatch.from_arrays([batch.column(place) for place in kept.values()], names=list(kept))
