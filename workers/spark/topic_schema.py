"""The rows of topics: the columns of the row (schema.py) but deliveries, which are of queues.

`timestampType` is Kafka's column, for jobs that have it: `timestamp` is when a message was stored, in all rows.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from warren.engine.errors import UsageError
from warren.workers.spark.schema import COLUMNS, Column, arrow_schema, check_schema

TOPIC_COLUMNS: tuple[Column, ...] = (
    *(column for column in COLUMNS if column.name != "delivery_count"),
    Column("timestampType", IntegerType(), pa.int32()),
)
#: what a message of a topic may lack
_NULLS = ("key", "tag", "headers")
_BY_NAME = {column.name.lower(): column for column in TOPIC_COLUMNS}


def topic_row_schema(*, value: bool = True, headers: bool = False, timestamp_type: bool = False) -> StructType:
    """Return the row's schema; the arguments say whether those columns are part of it."""
    wanted = (("value", value), ("headers", headers), ("timestampType", timestamp_type))
    left_out = {name for name, there in wanted if not there}
    return StructType([StructField(c.name, c.spark) for c in TOPIC_COLUMNS if c.name not in left_out])


def topic_column(name: str) -> Column:
    """Return the column of this name, in whatever case, as Spark has names. UsageError: there is none."""
    column = _BY_NAME.get(name.lower())
    if column is None:
        raise UsageError(
            f"a topic of Warren has no column {name!r}; its columns are {', '.join(c.name for c in TOPIC_COLUMNS)}"
        )
    return column


def check_topic_schema(schema: StructType) -> None:
    """Raise UsageError unless every field of a user's `.schema(...)` is a column of a topic's row, of its type."""
    check_schema(schema, topic_column)
    for field in schema.fields:
        if not field.nullable and topic_column(field.name).name in _NULLS:
            raise UsageError(f"Warren's column {field.name!r} can be null: leave out NOT NULL in .schema(...)")


def topic_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for `schema` (one that `check_topic_schema` accepts)."""
    return arrow_schema(schema, topic_column)
