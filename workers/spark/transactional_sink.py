"""Writing exactly once into topics and queues (delivery "transactional"): tasks stage, the driver commits.

A task stages its rows in a part of the sink (engine/transactions), and tells the driver its name. `commit` runs in a
process of its own, on a writer made anew: all that it knows comes with the messages. What is visible when, and what
every kind of death leaves: docs/design/031-transactions.md.

Who a batch is: of a stream the query, the batch and the run, which Spark puts into the local properties of its tasks;
of a write that is no stream an id that the planner draws. An empty batch is none: Spark makes it empty again. Numbers
of batches tell them apart as long as Spark's checkpoint is what it was: so the plan of a batch is synced before the
batch is committed, and its digest is in the commit record (`seal_of`).

Crash points
  a task dies: its part is collected; Spark repeats the task, with a part of another name
  the driver dies before the commit record, or the commit raises before it: Spark repeats the batch
  after it: the batch is there once, finished by the next commit; Spark's repetition of it finds it committed
  the node is stopped, and started again: planner, tasks and commit wait for it, for `timeout` seconds
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren.engine.errors import StoreError, UsageError
from warren.engine.kernel import atomic_file
from warren.engine.transactions.folder import PartName
from warren.engine.transactions.parts import Part, PartWriter
from warren.engine.transactions.sink import Batch
from warren.workers.faces import transactions
from warren.workers.faces.node import Node, client_of
from warren.workers.spark.client import check_runs, client_name, node_of, outlasting
from warren.workers.spark.hosts import Planned
from warren.workers.spark.transactional_options import TransactionalOptions
from warren.workers.spark.transactional_rows import Stager, check_schema

#: local properties in which Spark says what a task of a stream is for
QUERY_PROPERTY, BATCH_PROPERTY, RUN_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged; no part: it had no rows, or its batch is committed already."""

    batch: Batch
    part: Part | None


def seal_of(checkpoint: str, number: int) -> str:
    """What tells a micro-batch from another one of its number: a digest of what Spark has written down of it before it
    ran it. That is durable when this returns, so that no loss of power takes the plan of a batch that is committed.

    Empty: Spark does not say where, or it is on no file system of this machine. Raises StoreError and its kinds.
    """
    path = checkpoint.removeprefix("file://") if checkpoint.startswith("file:///") else checkpoint.removeprefix("file:")
    if not path or "://" in path:
        return ""
    planned = Path(path, "offsets", str(number))
    try:
        with open(planned, "rb") as file:
            content = file.read()
            os.fsync(file.fileno())
        atomic_file.sync_directory(planned.parent)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise atomic_file.explain(error, f"cannot sync {planned}", syncing=True) from error
    return hashlib.sha256(content).hexdigest()[:32]


def _node(options: TransactionalOptions, role: str) -> Node:
    """This process's client, attached to the node. One that was stopped meanwhile is waited for."""

    def attached() -> Node:
        node = node_of(options.path, role, options.timeout_s)
        check_runs(node)
        return node

    return outlasting(options.path, options.timeout_s, attached, role)


def check_target(options: TransactionalOptions) -> None:
    """Raise unless what the options name is there, and takes transactions; in the driver, before anything runs."""
    catalog = client_of(_node(options, "planner")).catalog()
    if options.topic is not None:
        transactions.topic_of(catalog, options.topic)
    elif options.queue is not None:
        transactions.queue_of(catalog, options.queue)


def batch_of_task() -> Batch:
    """The micro-batch that this task is for."""
    context = TaskContext.get()
    told = [context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY)] if context is not None else []
    if len(told) != 2 or None in told:
        raise UsageError(
            f"this task does not know its query and batch (local properties {QUERY_PROPERTY}, {BATCH_PROPERTY}): "
            "delivery=transactional needs the micro-batches of Spark 4"
        )
    assert context is not None
    return Batch(str(told[0]), int(str(told[1])), context.getLocalProperty(RUN_PROPERTY) or "")


def stage(options: TransactionalOptions, batch: Batch, rows: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of a task; runs in an executor."""
    sink = transactions.sink_of(options.path, options.sink, options.timeout_s)
    if sink.enter(batch, options.take_over):
        for _ in rows:  # Spark has begun to send them
            pass
        return Staged(batch, None)
    first = next((each for each in rows if each.num_rows), None)
    if first is None:
        return Staged(batch, None)
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    node = _node(options, "executor")
    with PartWriter(sink.folder, PartName.new(batch.owner, batch.number or 0, task)) as writer:
        state = sink.load()
        assert state is not None  # `enter` has made it
        stager = Stager(options, node, state, writer, task)
        stager.add(first)
        for each in rows:
            stager.add(each)
        return Staged(batch, writer.close())


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    found = []
    for message in messages:
        if message is not None and not isinstance(message, Staged):
            raise UsageError(f"a message of another sink came to this one: {type(message).__name__}")
        if message is not None:
            found.append(message)
    return found


def commit(options: TransactionalOptions, messages: Sequence[WriterCommitMessage | None], number: int | None) -> bool:
    """Commit what tasks have staged, and append it; false: the batch was committed before."""
    staged = _staged(messages)
    if len(staged) < len(messages):
        raise StoreError(f"{len(messages) - len(staged)} tasks of a batch said nothing: nothing is committed")
    batches = {each.batch for each in staged}
    parts = [each.part for each in staged if each.part is not None]
    if not staged or (number is None and not parts):
        return False
    if len(batches) != 1 or next(iter(batches)).number != number:
        raise StoreError(f"tasks of different batches are to be committed as batch {number}: nothing is committed")
    batch = batches.pop()
    sink = transactions.sink_of(options.path, options.sink, options.timeout_s)
    if number is not None:
        if not parts and not sink.concerns(batch):
            return False
        batch = batch._replace(seal=seal_of(options.checkpoint, number))
    return transactions.commit(options.path, sink, batch, parts, options.timeout_s, client_name("committer"))


def abort(options: TransactionalOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what tasks have staged, unless it is committed all the same."""
    parts = [each.part for each in _staged(messages) if each.part is not None]
    if parts:
        transactions.sink_of(options.path, options.sink, options.timeout_s).abort(parts)


class TransactionalWriter(DataSourceArrowWriter):
    """Writes a batch: one transaction."""

    def __init__(self, options: TransactionalOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(schema, options, overwrite)
        check_target(options)
        self.options = options
        self._planned = Planned.here(options.path)
        self.batch = Batch(f"write-{uuid.uuid4()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition."""
        self._planned.check(self.options.path)
        return stage(self.options, self.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of all partitions, and append them."""
        commit(self.options, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged; what is committed stays."""
        abort(self.options, messages)


class TransactionalStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream: each is a transaction, fenced by sink, query and number."""

    def __init__(self, options: TransactionalOptions, schema: StructType, overwrite: bool, committing: bool) -> None:
        """`committing`: it is made anew by Spark, to commit a batch that was planned."""
        check_schema(schema, options, overwrite)
        if not committing:  # the commit finds out by itself what is there, and waits for a node that is stopped
            check_target(options)
        self.options = options
        self._planned = Planned.here(options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition of a micro-batch."""
        self._planned.check(self.options.path)
        return stage(self.options, batch_of_task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of all partitions, and append them; of a batch that is committed finish what is left."""
        commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged; what is committed stays."""
        abort(self.options, messages)
