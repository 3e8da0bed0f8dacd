"""Writing to queues, exchanges and topics from Spark: at least once (delivery "direct").

A task publishes its rows, several calls of the core ahead of their confirms, and returns when the node confirmed all
of them (synced, unless the option `durability` says less). Nothing is staged: rows are visible when they are published,
not when Spark commits, and a task that Spark repeats publishes its rows again. A queue with a deduplication window
drops those of a `message_id` that it knows; other readers tell doubles by a key in the message.

What can be known before anything runs is checked where the writer is made, in the driver: options, columns, and
whether the target is there.

Crash points
  a task dies: what it handed over is stored, whether it was confirmed or not; Spark repeats the whole task
  a row is refused: the rows of the calls before are stored; the task fails with the row's number
  the node is stopped in order: it finishes what it was handed, and the task sends the rest when the node runs again
  a full queue refuses rows: they are sent again, alone, until it takes them or the time is up
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren.engine.errors import (
    ClosedError,
    ExchangeNotFound,
    NodeNotRunning,
    PeerLost,
    QueueFull,
    TimedOut,
    UsageError,
)
from warren.workers.client.arguments import level_of
from warren.workers.faces.node import client_of
from warren.workers.faces.row_columns import Rows
from warren.workers.faces.row_publish import append_rows, publish_rows, put_rows, wait_for_room
from warren.workers.spark.client import check_runs, is_stop, node_of, outlasting
from warren.workers.spark.hosts import Planned, host_name, node_name_at
from warren.workers.spark.sink_options import TARGETS, SinkOptions
from warren.workers.spark.sink_schema import canonical, check_sink_schema

if TYPE_CHECKING:
    from warren.engine._core import Confirm
    from warren.workers.faces.node import Node
    from warren.workers.faces.topics import Topic

#: calls whose confirms are not waited for yet
AHEAD = 8


@dataclass
class Published(WriterCommitMessage):
    """What a task wrote."""

    messages: int
    bytes: int


@dataclass
class _Sent:
    """A call of the core that was not confirmed yet."""

    target: str
    name: str
    rows: Rows
    confirm: Confirm[Any]


class Publisher:
    """Publishes the rows of one task."""

    def __init__(self, options: SinkOptions, node: Node) -> None:
        self._options = options
        self._node = node
        self._topics: dict[str, Topic] = {}
        self._ahead: deque[_Sent] = deque()
        self._rows = 0
        self._bytes = 0

    def publish(self, batch: pa.RecordBatch) -> None:
        """Publish the rows of a batch; those of an earlier one are confirmed then. Raises what refuses them."""
        whole = canonical(batch)
        for first in range(0, whole.num_rows, self._options.batch_rows):
            rows = Rows(whole.slice(first, self._options.batch_rows), self._rows)
            for target, name, part in self._parts(rows):
                self._send(target, name, part)
            self._rows += rows.count
            self._bytes += pc.sum(pc.binary_length(rows.batch.column("value"))).as_py() or 0

    def finish(self) -> Published:
        """Wait until all is confirmed."""
        while self._ahead:
            self._settle(self._ahead.popleft())
        return Published(self._rows, self._bytes)

    def _parts(self, rows: Rows) -> Iterator[tuple[str, str, Rows]]:
        """Where rows go: (target, its name, the rows)."""
        for target in TARGETS:
            name = getattr(self._options, target)
            if name is not None:
                yield target, name, rows
                return
        columns = {target: found for target in TARGETS if (found := rows.column(target)) is not None}
        named = np.zeros(rows.count, np.int64)
        for found in columns.values():
            named += np.asarray(found.is_valid().to_numpy(zero_copy_only=False), np.int64)
        rows.refuse(
            pa.array(named != 1),
            lambda _value: "it must name one of queue, exchange and topic, in the column of that name",
            "value",
        )
        for target, found in columns.items():
            known = found.dictionary_encode()
            which = known.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            for place, name in enumerate(known.dictionary.to_pylist()):
                chosen = np.flatnonzero(which == place)
                yield target, name, rows if len(chosen) == rows.count else rows.taken(chosen)

    def _send(self, target: str, name: str, rows: Rows) -> None:
        while True:
            try:
                for confirm in self._confirms(target, name, rows):
                    self._ahead.append(_Sent(target, name, rows, confirm))
                break
            except (ClosedError, NodeNotRunning, PeerLost) as problem:
                if target == "topic" or not is_stop(self._options.path, problem):
                    raise
                rows = self._outlast(target, name, rows, problem)
        while len(self._ahead) > AHEAD:
            self._settle(self._ahead.popleft())

    def _confirms(self, target: str, name: str, rows: Rows) -> list[Confirm[Any]]:
        options, client = self._options, client_of(self._node)
        try:
            if target == "queue":
                return [put_rows(client, name, rows, options.durability, options.timeout_s)]
            if target == "exchange":
                key, mandatory = options.routing_key or "", options.mandatory
                return [publish_rows(client, name, key, rows, options.durability, options.timeout_s, mandatory)]
            if (topic := self._topics.get(name)) is None:
                topic = self._topics[name] = self._node.topic(name, create=False)
            return append_rows(topic, rows, options.durability, options.timeout_s)
        except TimedOut as error:
            raise self._late(target, name, error) from None

    def _outlast(self, target: str, name: str, rows: Rows, problem: Exception) -> Rows:
        """The node is being stopped. It finishes what it has; the rows that are left are for when it runs again."""
        handed = int(getattr(problem, "handed_over", 0))
        if handed:
            part = rows.taken(np.arange(handed, dtype=np.int64))
            self._ahead.append(_Sent(target, name, part, problem.confirm))  # type: ignore[attr-defined]
            rows = rows.taken(np.arange(handed, rows.count, dtype=np.int64))
        while self._ahead:
            self._settle(self._ahead.popleft())
        outlasting(self._options.path, self._options.timeout_s, lambda: check_runs(self._node))
        return rows

    def _settle(self, sent: _Sent) -> None:
        """Wait for what was sent; what a full queue refused is sent again while there is time."""
        until, refused = time.monotonic() + self._options.timeout_s, sent.rows.count + 1
        while True:
            try:
                sent.confirm.wait(self._options.timeout_s)
                return
            except TimedOut as error:
                raise self._late(sent.target, sent.name, error) from None
            except QueueFull as full:
                if sent.target != "queue":  # others of its queues have the message
                    raise QueueFull(f"{sent.target} {sent.name!r}: {full}") from None
                if len(full.refused) < refused:  # it takes some
                    until, refused = time.monotonic() + self._options.timeout_s, len(full.refused)
                if not wait_for_room(client_of(self._node), sent.name, until):
                    raise QueueFull(
                        f"queue {sent.name!r} was full for {self._options.timeout_s:g} s (its max_length or "
                        f"max_length_bytes, with overflow reject-publish), and refused {len(full.refused)} rows: start "
                        'its consumers, or wait longer, with .option("timeout", "…")'
                    ) from None
                sent.rows = sent.rows.taken(np.array(full.refused, np.int64))
                [sent.confirm] = self._confirms(sent.target, sent.name, sent.rows)

    def _late(self, target: str, name: str, error: TimedOut) -> TimedOut:
        return TimedOut(f"{target} {name!r}: {error}; option timeout says how long a task waits")


def publish(options: SinkOptions, batches: Iterator[pa.RecordBatch], planned: Planned | None = None) -> Published:
    """Publish all rows, wait for the confirms of all of them, and say how many there were; runs in an executor.
    `planned`: the one node that all tasks write into; None: each into that of its host.
    """
    if planned is not None:
        planned.check(options.path)
    elif node_name_at(options.path) is None:
        raise UsageError(
            f"option 'perHost': host {host_name()!r} has no node at {options.path}: each host that may run a task of "
            "this job needs one, with what is written to declared"
        )
    node = outlasting(options.path, options.timeout_s, lambda: node_of(options.path, "executor", options.timeout_s))
    publisher = Publisher(options, node)
    for batch in batches:
        publisher.publish(batch)
    return publisher.finish()


def check_target(options: SinkOptions, schema: StructType) -> None:
    """Raise unless what the options name is there, and takes such rows; in the driver, before anything runs. With
    perHost each task finds it on its own host, and the driver's need not have a node.
    """
    if options.per_host and node_name_at(options.path) is None:
        return
    node = node_of(options.path, "planner", options.timeout_s)
    client = client_of(node)
    catalog = client.catalog()
    if options.queue is not None:
        queue = catalog.queue(options.queue)
        catalog.check_owner(queue, client.epoch)
        level_of(options.durability, queue.durable, f"queue {queue.name!r} is transient")
    elif options.exchange is not None and options.exchange not in catalog.exchanges:
        raise ExchangeNotFound(f"there is no exchange {options.exchange!r}: declare it first")
    elif options.topic is not None:
        topic = catalog.topic(options.topic)
        if topic.compacted and "key" not in {field.name.lower() for field in schema.fields}:
            raise UsageError(
                f"topic {topic.name!r} is compacted, which keeps the newest message of each key: select a column key"
            )


class DirectWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink_schema(schema, options, overwrite)
        check_target(options, schema)
        self.options = options
        self._planned = None if options.per_host else Planned.here(options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one partition."""
        return publish(self.options, iterator, self._planned)


class DirectStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink_schema(schema, options, overwrite)
        check_target(options, schema)
        self.options = options
        self._planned = None if options.per_host else Planned.here(options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one partition of a micro-batch."""
        return publish(self.options, iterator, self._planned)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the rows are durable since their tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was published stays, and Spark's replay publishes it again (at least once)."""
