"""Writing to a queue or an exchange from Spark: at least once.

A task publishes its rows and returns when the node confirmed all of them (synced, unless the option `durability` says
less). Nothing is staged: rows are visible when they are published, not when Spark commits, and a task that Spark
repeats publishes its rows again. A reader that must not see doubles tells them by a key in the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from warren.engine.errors import UsageError
from warren.workers.spark.client import node_of
from warren.workers.spark.schema import COLUMN_NAMES
from warren.workers.spark.sink_options import SinkOptions

#: columns of a row read from Warren that a write has no use for
_IGNORED = frozenset(COLUMN_NAMES) - {"value", "key", "headers"}


@dataclass
class Published(WriterCommitMessage):
    """What a task wrote."""

    messages: int
    bytes: int


def check_sink_schema(schema: StructType, options: SinkOptions, overwrite: bool) -> None:
    """Raise UsageError unless rows of `schema` can be published as `options` say."""
    if overwrite:
        raise UsageError(
            'Warren appends: use .mode("append"), or outputMode "append" for a stream; totals that change are written '
            "by foreachBatch, each batch with a write of its own"
        )
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for name in types:
        if name not in ("value", "key", "headers") and name not in _IGNORED:
            raise UsageError(
                f"column {name!r} has no place in a message; select value, and key or headers if wanted "
                '(for a row as JSON: to_json(struct("*")).alias("value"))'
            )
    if "value" not in types:
        raise UsageError("a write needs a column named value, of type binary or string")
    for name in ("value", "key"):
        if name in types and not isinstance(types[name], (BinaryType, StringType)):
            raise UsageError(f"column {name!r} must be binary or string, not {types[name].simpleString()}")
    headers = types.get("headers")
    if headers is not None:
        element = headers.elementType if isinstance(headers, ArrayType) else None
        named = {f.name: f.dataType for f in element.fields} if isinstance(element, StructType) else {}
        if not isinstance(named.get("key"), StringType) or not isinstance(named.get("value"), (BinaryType, StringType)):
            raise UsageError(
                f"column 'headers' must be array<struct<key:string,value:binary>>, not {headers.simpleString()}"
            )
    if options.exchange is not None and "key" not in types and options.routing_key is None:
        raise UsageError('a write to an exchange needs a column named key, or the option "routingKey"')


def _bytes_of(column: pa.Array) -> list[bytes | None]:
    """The values of a binary or string column as bytes."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _bodies_of(column: pa.Array) -> list[bytes]:
    bodies = [body for body in _bytes_of(column) if body is not None]
    if len(bodies) < len(column):
        raise UsageError("column 'value' is null in some rows; a message needs a body: filter them, or coalesce")
    return bodies


def _headers_of(value: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {pair["key"]: pair["value"] for pair in value} if value else None


def publish(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish all rows, wait for the confirms of all of them, and say how many there were; runs in an executor."""
    node = node_of(options.path, "executor", options.timeout_s)
    messages = size = 0
    for batch in batches:
        for first in range(0, batch.num_rows, options.batch_rows):
            part = batch.slice(first, options.batch_rows)
            there = set(part.schema.names)
            bodies = _bodies_of(part.column("value"))
            headers = [_headers_of(row) for row in part.column("headers").to_pylist()] if "headers" in there else None
            if options.queue is not None:
                queue = node.queue(options.queue, create=False)
                queue.put_many(bodies, headers=headers, durability=options.durability, timeout=options.timeout_s)
            else:
                assert options.exchange is not None
                keys = [options.routing_key or ""] * len(bodies)
                if "key" in there:
                    own = _bytes_of(part.column("key"))
                    keys = [key if found is None else found.decode() for key, found in zip(keys, own, strict=True)]
                node.publish_many(
                    bodies,
                    exchange=options.exchange,
                    routing_keys=keys,
                    headers=headers,
                    durability=options.durability,
                    mandatory=options.mandatory,
                    timeout=options.timeout_s,
                )
            messages += len(bodies)
            size += sum(map(len, bodies))
    return Published(messages, size)


class QueueWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink_schema(schema, options, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one partition."""
        return publish(self.options, iterator)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink_schema(schema, options, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one partition of a micro-batch."""
        return publish(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the rows are durable since their tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was published stays, and Spark's replay publishes it again (at least once)."""
