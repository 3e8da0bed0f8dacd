"""Rows of Arrow batches as they are staged for a transaction: where each goes, and what is said of it.

Rows that say no partition and have no key go to the queues of a topic in turns, a frame at a time, beginning with the
number of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from warren.engine.catalog.catalog import Catalog
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.engine.transactions.parts import Destination, PartWriter
from warren.workers.faces import transactions
from warren.workers.faces.node import Node, client_of
from warren.workers.spark.sink_schema import are_headers
from warren.workers.spark.transactional_options import TransactionalOptions

_TEXTS = (StringType, BinaryType)
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_TEXTS, "binary or string"),
    "key": (_TEXTS, "binary or string"),
    "topic": ((StringType,), "string"),
    "queue": ((StringType,), "string"),
    "partition": ((IntegerType, LongType), "int"),
    "tag": ((StringType,), "string"),
    "headers": ((ArrayType,), _HEADERS),
}
#: columns of a row read from Warren that say where and when that was
_LEFT_OUT = frozenset({"offset", "timestamp", "born_timestamp", "msg_id", "delivery_count"})


def check_schema(schema: StructType, options: TransactionalOptions, overwrite: bool) -> None:
    """Raise UsageError unless rows of `schema` can be written as `options` say."""
    if overwrite:
        raise UsageError('Warren appends: use .mode("append"), or outputMode "append" for a stream')
    names = set()
    for field in schema.fields:
        name = field.name.lower()
        if name in names:
            raise UsageError(f"there are two columns named {name!r}: leave one out")
        names.add(name)
        if name in _LEFT_OUT:
            continue
        if name not in _TYPES:
            raise UsageError(
                f"column {name!r} has no place in a message that is written with delivery=transactional; select value, "
                f"and what else there is to say of {', '.join(list(_TYPES)[1:])} (for a row as JSON: "
                "to_json(struct(*)) as value)"
            )
        types, wanted = _TYPES[name]
        if not isinstance(field.dataType, types) or (name == "headers" and not are_headers(field.dataType)):
            raise UsageError(f"column {name!r} must be {wanted}, not {field.dataType.simpleString()}")
    if "value" not in names:
        raise UsageError("a write needs a column named value, of type binary or string")
    if options.topic is None and options.queue is None and not names & {"topic", "queue"}:
        raise UsageError(
            'a write with delivery=transactional needs one of the options "topic" and "queue", or a column of such a '
            "name that says where each row goes"
        )
    if options.topic is None and options.queue is None and {"topic", "queue"} <= names:
        raise UsageError("columns 'topic' and 'queue' say both where a row goes: leave one out")


class Stager:
    """Stages the rows of one task."""

    def __init__(self, options: TransactionalOptions, node: Node, writer: PartWriter, task: int) -> None:
        """`task`: its number, by which tasks begin with different queues."""
        self._options = options
        self._catalog: Catalog = client_of(node).catalog()
        self._node = node
        self._writer = writer
        self._task = task
        self._topics: dict[str, tuple[list[Destination], Callable[[str], int]]] = {}
        self._queues: dict[str, Destination] = {}
        self._turns: dict[str, int] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage the rows of a batch. Raises UsageError, which names the row, StoreError and its kinds."""
        columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
        for row in zip(*self._columns(columns, batch.num_rows), strict=True):
            try:
                self._row(*row)
            except UsageError as error:
                raise type(error)(f"row {self._rows}: {error}") from None
            self._rows += 1

    def _columns(self, columns: dict[str, pa.Array], rows: int) -> Iterator[list[Any]]:
        nothing = [None] * rows
        for name in ("value", "key", "topic", "queue", "partition", "tag", "headers"):
            found = columns.get(name)
            fixed = getattr(self._options, name, None)
            if fixed is not None:
                yield [fixed] * rows
            elif found is None or (name in ("topic", "queue") and (self._options.topic or self._options.queue)):
                yield nothing
            else:
                yield _bytes_of(found) if name == "value" else found.to_pylist()

    def _row(
        self,
        body: bytes | None,
        key: bytes | str | None,
        topic: str | None,
        queue: str | None,
        partition: int | None,
        tag: str | None,
        headers: list[dict[str, Any] | None] | None,
    ) -> None:
        if body is None:
            raise UsageError("its value is null; a message needs a body: filter such rows out, or coalesce")
        if topic is not None:
            properties = _properties(headers)
            text = _text(key, "key")
            turns = partition is None and text is None
            frame_ended = self._writer.add(self._in_topic(topic, text, partition), body, text, tag, properties)
            if frame_ended and turns:
                self._turns[topic] += 1
        elif queue is not None:
            if tag is not None:
                raise UsageError("a message of a queue has no tag: drop the column, or make a header of it")
            raw = key.encode() if isinstance(key, str) else key
            self._writer.add(self._in_queue(queue), body, raw, None, _headers(headers))
        else:
            raise UsageError("it says in no column (topic, queue) where it goes")

    def _in_topic(self, name: str, key: str | None, partition: int | None) -> Destination:
        found = self._topics.get(name)
        if found is None:
            id, queues = transactions.topic_of(self._catalog, name)
            where = [Destination("topic", name, id, queue) for queue in range(queues)]
            found = self._topics[name] = where, self._node.topic(name, create=False).queue_of
            self._turns[name] = self._task
        destinations, queue_of = found
        if partition is None:
            turn = self._turns[name] % len(destinations)
            return destinations[turn if key is None else queue_of(key)]
        if not 0 <= partition < len(destinations):
            raise UsageError(f"topic {name!r} has partitions 0 to {len(destinations) - 1}, and no {partition}")
        return destinations[partition]

    def _in_queue(self, name: str) -> Destination:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Destination("queue", name, transactions.queue_of(self._catalog, name))
        return found


def _bytes_of(column: pa.Array) -> list[bytes | None]:
    """A binary or string column as bytes."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _text(value: bytes | str | None, what: str) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"its {what} is {shown(value)}, which is no UTF-8, and a topic has only text there"
            ) from None
    return value


def _pairs(headers: list[dict[str, Any] | None]) -> Iterator[tuple[str, bytes | str | None]]:
    """Names and values of headers. Raises UsageError for one without a name."""
    for pair in headers:
        name, value = (None, None) if pair is None else pair.values()
        if name is None:
            raise UsageError("a header has no name: filter such out of the column headers")
        yield name, value


def _properties(headers: list[dict[str, Any] | None] | None) -> dict[str, str] | None:
    """Headers as properties of a message of a topic, without that of a transaction that has brought it here."""
    told: dict[str, str] = {}
    for name, value in _pairs(headers or []):
        text = _text(value, f"header {shown(name)}")
        if text is None or name in told:
            what = "has no value" if text is None else "comes twice"
            raise UsageError(f"header {shown(name)} {what}, and a message of a topic cannot say so: leave it out")
        told[name] = text
    told.pop(transactions.PROPERTY, None)
    return told or None


def _headers(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | str | None]] | None:
    """Headers of a message of a queue, which can come twice, and have no value."""
    return None if headers is None else list(_pairs(headers))
