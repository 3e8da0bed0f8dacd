"""Rows of Arrow batches as they are staged for a transaction: where each goes, and what is said of it.

Invariant: nothing is staged that the node would refuse (`transactions.Checks`), but for what is changed between that
and the commit (settings, a queue that is deleted).

Rows that say no partition and have no key go to the queues of a topic in turns, a frame at a time, beginning with the
number of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from warren.engine.catalog.catalog import Catalog
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.engine.transactions.parts import Destination, PartWriter
from warren.engine.transactions.state import State
from warren.workers.faces import transactions
from warren.workers.faces.node import Node, client_of
from warren.workers.faces.topic_rows import LEFT_BEHIND
from warren.workers.spark.client import outlasting
from warren.workers.spark.sink_schema import are_headers
from warren.workers.spark.transactional_options import TransactionalOptions

_TEXTS = (StringType, BinaryType)
#: names and values
_Headers = list[tuple[str | None, bytes | str | None]] | None
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


class _Row(NamedTuple):
    """A message, and what it goes to."""

    kind: str
    name: str
    body: bytes
    key: Any
    partition: int | None
    tag: str | None
    told: Any


class Stager:
    """Stages the rows of one task."""

    def __init__(self, options: TransactionalOptions, node: Node, state: State, writer: PartWriter, task: int) -> None:
        """`state`: of the sink; `task`: its number, by which tasks begin with different queues."""
        self._options = options
        self._catalog: Catalog = client_of(node).catalog()
        self._node = node
        self._checks = transactions.Checks(client_of(node), state)
        self._writer = writer
        self._task = task
        self._topics: dict[str, tuple[list[Destination], Callable[[str], int]]] = {}
        self._queues: dict[str, Destination] = {}
        self._turns: dict[str, int] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage the rows of a batch, if none of them is refused. Raises UsageError, LimitError, which name the row;
        StoreError and its kinds.
        """
        columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
        rows = []
        for row in zip(*self._columns(columns, batch.num_rows), strict=True):
            try:
                rows.append(self._row(*row))
            except UsageError as error:
                raise type(error)(f"row {self._rows + len(rows)}: {error}") from None
        self._check(rows)
        for row in rows:
            self._stage(row)
        self._rows += len(rows)

    def _columns(self, columns: dict[str, pa.Array], rows: int) -> Iterator[list[Any]]:
        nothing = [None] * rows
        for name in ("value", "key", "topic", "queue", "partition", "tag", "headers"):
            found = columns.get(name)
            fixed = getattr(self._options, name, None)
            if fixed is not None:
                yield [fixed] * rows
            elif found is None or (name in ("topic", "queue") and (self._options.topic or self._options.queue)):
                yield nothing
            elif name == "headers":
                yield _listed(found)
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
        headers: _Headers,
    ) -> _Row:
        """Raises UsageError."""
        if body is None:
            raise UsageError("its value is null; a message needs a body: filter such rows out, or coalesce")
        if topic is not None:
            destinations, _queue_of = self._topic(topic)
            if partition is not None and not 0 <= partition < len(destinations):
                raise UsageError(f"topic {topic!r} has partitions 0 to {len(destinations) - 1}, and no {partition}")
            return _Row("topic", topic, body, _text(key, "key"), partition, tag, _properties(headers))
        if queue is not None:
            if tag is not None:
                raise UsageError("a message of a queue has no tag: drop the column, or make a header of it")
            self._queue(queue)
            raw = key.encode() if isinstance(key, str) else key
            return _Row("queue", queue, body, raw, None, None, _checked(headers))
        raise UsageError("it says in no column (topic, queue) where it goes")

    def _check(self, rows: Sequence[_Row]) -> None:
        """Raise what the node would refuse of rows when they are committed already."""
        places: dict[tuple[str, str], list[int]] = {}
        for at, row in enumerate(rows):
            places.setdefault((row.kind, row.name), []).append(at)
        for (kind, name), chosen in places.items():
            bodies = [rows[at].body for at in chosen]
            keys, tags, told = (_some([getattr(rows[at], name) for at in chosen]) for name in ("key", "tag", "told"))
            numbers = [self._rows + at for at in chosen]
            check = (
                partial(self._checks.topic, name, bodies, keys, tags, told, numbers)
                if kind == "topic"
                else partial(self._checks.queue, name, bodies, keys, told, numbers)
            )
            outlasting(self._options.path, self._options.timeout_s, check)

    def _stage(self, row: _Row) -> None:
        if row.kind == "queue":
            self._writer.add(self._queue(row.name), row.body, row.key, None, row.told)
            return
        turns = row.partition is None and row.key is None
        frame_ended = self._writer.add(self._in_topic(row), row.body, row.key, row.tag, row.told)
        if frame_ended and turns:
            self._turns[row.name] += 1

    def _topic(self, name: str) -> tuple[list[Destination], Callable[[str], int]]:
        """The queues of a topic, and which of them a key goes to. Raises TopicNotFound, UsageError."""
        found = self._topics.get(name)
        if found is None:
            id, queues = transactions.topic_of(self._catalog, name)
            where = [Destination("topic", name, id, queue) for queue in range(queues)]
            waiting = partial(outlasting, self._options.path, self._options.timeout_s)
            found = self._topics[name] = where, waiting(partial(self._node.topic, name, create=False)).queue_of
            self._turns[name] = self._task
        return found

    def _in_topic(self, row: _Row) -> Destination:
        destinations, queue_of = self._topic(row.name)
        if row.partition is not None:
            return destinations[row.partition]
        if row.key is None:
            return destinations[self._turns[row.name] % len(destinations)]
        return destinations[queue_of(transactions.apart(row.key)[0])]

    def _queue(self, name: str) -> Destination:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Destination("queue", name, transactions.queue_of(self._catalog, name))
        return found


def _some(values: list[Any]) -> list[Any] | None:
    return None if all(each is None for each in values) else values


def _listed(column: pa.Array) -> list[_Headers]:
    """Headers as names and values, whatever the order of the struct's fields."""
    entries = column.values
    fields = {item.name.lower(): entries.field(place).to_pylist() for place, item in enumerate(entries.type)}
    there = entries.is_valid().to_pylist()
    pairs = [
        (name, value) if valid else (None, None)
        for name, value, valid in zip(fields["key"], fields["value"], there, strict=True)
    ]
    ends = column.offsets.to_pylist()
    rows = zip(ends, ends[1:], column.is_valid().to_pylist(), strict=False)
    return [pairs[first:end] if valid else None for first, end, valid in rows]


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


def _checked(headers: _Headers) -> _Headers:
    """Headers of a message of a queue, which can come twice, and have no value. Raises UsageError."""
    for name, _value in headers or ():
        if name is None:
            raise UsageError("a header has no name: filter such out of the column headers")
    return headers


def _properties(headers: _Headers) -> dict[str, str] | None:
    """Headers as properties of a message of a topic, without those that a copy has not. Raises UsageError."""
    told: dict[str, str] = {}
    for name, value in _checked(headers) or ():
        assert name is not None
        text = _text(value, f"header {shown(name)}")
        if text is None or name in told:
            what = "has no value" if text is None else "comes twice"
            raise UsageError(f"header {shown(name)} {what}, and a message of a topic cannot say so: leave it out")
        if name in ("KEYS", "TAGS"):
            raise UsageError(
                f"header {name!r} is named as the log names keys and tag: give them as the columns key and tag"
            )
        told[name] = text
    for name in LEFT_BEHIND & told.keys():
        del told[name]
    return told or None
