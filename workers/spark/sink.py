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
  the node is stopped in order: it says what it took, and the task sends the rest when the node runs again
  a worker is killed while the node is stopped, twice, or all of the node is: it says nothing, and the task fails
  a full queue refuses rows: they are sent again, alone, until it takes them or the time is up
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren.engine.errors import (
    ClosedError,
    NodeNotRunning,
    PeerLost,
    QueueFull,
    TimedOut,
    UsageError,
)
from warren.workers.client.arguments import level_of
from warren.workers.faces.node import client_of
from warren.workers.faces.row_columns import Rows
from warren.workers.faces.row_publish import ExchangePiece, Piece, QueuePiece, topic_pieces, wait_for_room
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
    piece: Piece
    confirm: Confirm[Any]


#: (target, its name, the rows)
_Left = tuple[str, str, Piece]


class Publisher:
    """Publishes the rows of one task."""

    def __init__(self, options: SinkOptions, node: Node) -> None:
        self._options = options
        self._node = node
        self._topics: dict[str, Topic] = {}
        self._left: deque[_Left] = deque()  # to be sent, in order
        self._ahead: deque[_Sent] = deque()
        self._rows = 0
        self._bytes = 0

    def publish(self, batch: pa.RecordBatch) -> None:
        """Publish the rows of a batch; those of an earlier one are confirmed then. Raises what refuses them."""
        whole = canonical(batch)
        for first in range(0, whole.num_rows, self._options.batch_rows):
            rows = Rows(whole.slice(first, self._options.batch_rows), self._rows)
            for target, name, part in self._parts(rows):
                self._left.extend((target, name, piece) for piece in self._pieces(target, name, part))
                self._go_on(AHEAD)
            self._rows += rows.count
            self._bytes += pc.sum(pc.binary_length(rows.batch.column("value"))).as_py() or 0

    def finish(self) -> Published:
        """Wait until all is confirmed."""
        self._go_on(0)
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

    def _pieces(self, target: str, name: str, rows: Rows) -> list[Piece]:
        options, client = self._options, client_of(self._node)
        if target == "queue":
            return [QueuePiece(client, name, rows, options.durability)]
        if target == "exchange":
            key, mandatory = options.routing_key or "", options.mandatory
            return [ExchangePiece(client, name, key, rows, options.durability, mandatory)]
        if (topic := self._topics.get(name)) is None:
            call = partial(self._node.topic, name, create=False)
            topic = self._topics[name] = outlasting(options.path, options.timeout_s, call)
        return topic_pieces(topic, rows, options.durability)

    def _go_on(self, ahead_max: int) -> None:
        """Send what is left, and wait for confirms until those of no more than so many calls are missing."""
        while self._left or len(self._ahead) > ahead_max:
            over = bool(self._ahead) and self._ahead[0].confirm.core.over  # what is left of it goes first
            if over or len(self._ahead) > ahead_max or not self._left:
                rest = self._settled()
            else:
                rest = self._send()
            if rest:
                self._outlast(rest)

    def _send(self) -> list[_Left]:
        """Send what comes next. Returns what is to be sent when the node runs again: it is being stopped."""
        target, name, piece = self._left.popleft()
        confirm: Confirm[Any] | None
        try:
            confirm = piece.send(self._options.timeout_s)
        except TimedOut as error:
            raise self._late(target, name, error) from None
        except (ClosedError, NodeNotRunning, PeerLost) as problem:
            if not is_stop(self._options.path, problem):
                raise
            confirm = getattr(problem, "confirm", None)
            if confirm is None:
                rest: list[_Left] = []
                while self._ahead:  # what is left of these goes before it
                    rest += self._settled()
                return [*rest, (target, name, piece)]
        self._ahead.append(_Sent(target, name, piece, confirm))
        return []

    def _outlast(self, rest: list[_Left]) -> None:
        """The node is stopped. What it took of all calls is finished; the rest is sent when it runs again, in order."""
        later: list[_Left] = []
        while self._ahead:
            later += self._settled()
        self._left.extendleft(reversed([*rest, *later]))
        outlasting(self._options.path, self._options.timeout_s, lambda: check_runs(self._node))

    def _settled(self) -> list[_Left]:
        """Wait for the call that was sent first; what a full queue refused of it is sent again while there is time.
        Returns what a node that was stopped never took of it.
        """
        sent = self._ahead.popleft()
        until, refused = time.monotonic() + self._options.timeout_s, sent.piece.rows.count + 1
        while True:
            try:
                sent.confirm.wait(self._options.timeout_s)
                return []
            except TimedOut as error:
                raise self._late(sent.target, sent.name, error) from None
            except (ClosedError, PeerLost):
                untaken = sent.confirm.untaken()
                if not untaken:  # it is not known
                    raise
                return [(sent.target, sent.name, piece) for piece in sent.piece.rest(untaken)]
            except QueueFull as full:
                if sent.target != "queue":  # others of its queues have the message
                    raise QueueFull(f"{sent.target} {sent.name!r}: {full}") from None
                if len(full.refused) < refused:  # it takes some
                    until, refused = time.monotonic() + self._options.timeout_s, len(full.refused)
                sent.piece = sent.piece.part(sent.piece.rows.taken(np.array(full.refused, np.int64)))
                if not self._again(sent, until):
                    return [(sent.target, sent.name, sent.piece)]

    def _again(self, sent: _Sent, until: float) -> bool:
        """Send again what a full queue refused, when there is room. False: the node is being stopped; nothing was sent.

        Raises QueueFull when it is `until`.
        """
        try:
            if not wait_for_room(client_of(self._node), sent.name, until):
                raise QueueFull(
                    f"queue {sent.name!r} was full for {self._options.timeout_s:g} s (its max_length or "
                    f"max_length_bytes, with overflow reject-publish), and refused {sent.piece.rows.count} rows: start "
                    'its consumers, or wait longer, with .option("timeout", "…")'
                )
            sent.confirm = sent.piece.send(self._options.timeout_s)
        except TimedOut as error:
            raise self._late(sent.target, sent.name, error) from None
        except (ClosedError, NodeNotRunning, PeerLost) as problem:
            if not is_stop(self._options.path, problem):
                raise
            confirm: Confirm[Any] | None = getattr(problem, "confirm", None)
            if confirm is None:
                return False
            sent.confirm = confirm
        return True

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
    elif options.exchange is not None:
        catalog.exchange(options.exchange)
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

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool, committing: bool) -> None:
        """`committing`: it is made anew by Spark, to commit a batch whose rows are there: the node may be stopped."""
        check_sink_schema(schema, options, overwrite)
        if not committing:
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
