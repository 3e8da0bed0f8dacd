"""Reading a queue from Spark: as a batch (browse, no ack) and as a stream (durable numbered claims).

A stream owns a subscription. Claiming moves messages from the queue to the subscription's end, under dense numbers,
durably; a micro-batch is a range of numbers, and stays readable until it is acked. That makes a replay exact: a batch
that Spark planned and did not commit is read again with the same content, whoever died.

Ack happens in `latestOffset(start)`: Spark calls it with the offset that it has committed, also when nothing new comes
and at the end of an AvailableNow run; `commit(end)` comes only when the next batch with data is planned.

Crash points of the stream (driver killed)
  after claiming, before Spark logged the batch: the restart finds the claims beyond its offset, and plans them first
  batch logged, not committed: replayed, the same claims
  batch committed, not acked: acked by the restart's first `latestOffset`
  checkpoint lost: the claims not acked are delivered again, marked so by delivery_count

A batch read plans the length of the queue at that moment, and repeats it in every action on the same DataFrame;
messages that consumers acked since are missing from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from warren.engine.errors import StoreError, UsageError
from warren.workers.spark.client import node_of
from warren.workers.spark.offsets import ClaimOffset, cut
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.schema import arrow_schema, to_spark_batch

if TYPE_CHECKING:
    from warren.workers.faces.subscription import Subscription

log = logging.getLogger(__name__)

#: no limit, for the engine's numbers
UNLIMITED = (1 << 62) - 1


@dataclass
class BrowsePartition(InputPartition):
    """The whole of a batch read: up to `messages_max` messages from the head of the queue."""

    messages_max: int


@dataclass
class ClaimPartition(InputPartition):
    """The claims [start, end) of a subscription; those below `again_below` may have been delivered before."""

    start: int
    end: int
    again_below: int = 0


class QueueReader(DataSourceReader):
    """Browses a queue."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: what is ready now, and no more than that."""
        node = node_of(self.options.path, "planner", self.options.timeout_s)
        return [BrowsePartition(len(node.queue(self.options.queue, create=False)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow batches; runs in an executor."""
        assert isinstance(partition, BrowsePartition)
        options = self.options
        queue = node_of(options.path, "executor", options.timeout_s).queue(options.queue, create=False)
        wanted = arrow_schema(self.fields)
        for batch in queue.browse_arrow(partition.messages_max, max_bytes=options.batch_bytes):
            yield to_spark_batch(batch, wanted, options.queue)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue through a subscription; one lives in the driver's planner, copies of it in the executors."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema
        #: end of the claims as this reader left it; another end means that somebody else claims, too
        self._known_end: int | None = None
        #: end of the claims when this reader began: what it delivers of those may have been delivered before
        self._again_below: int | None = None
        #: AvailableNow: claims from here on are for a later run
        self._target: int | None = None

    # -- the driver's side --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts: the lowest claim not acked, which is delivered again."""
        subscription = self._subscription("planner")
        base, end = subscription.range()
        if self._again_below is None:  # Spark asks again after the first claims
            self._again_below = end
        return self._offset(subscription, base).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, as the options say."""
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: what is claimed by now, and as many messages as are ready now."""
        subscription = self._subscription("planner")
        self._target = subscription.range()[1] + subscription.ready()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what is committed (all below `start`), and return the end of the next micro-batch, claiming as needed."""
        position = ClaimOffset.from_json(start)
        subscription = self._subscription("planner")
        base, end = self._checked_range(subscription, position)
        if position.next > base:
            subscription.ack(position.next)
        if end > position.next:
            # Claimed by a run that died before it planned them, or cut off by the limit of the last batch.
            stop = end if self._target is None else min(end, max(self._target, position.next))
            if isinstance(limit, ReadMaxRows):
                stop = min(stop, position.next + limit.max_rows)
        else:
            stop = self._claim(subscription, position.next, limit)
        return self._offset(subscription, stop).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset that a reader without a limit would reach now; Spark shows it as the stream's lag."""
        subscription = self._subscription("planner")
        return self._offset(subscription, subscription.range()[1] + subscription.ready()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the claims of a micro-batch into ranges for the executors."""
        first, last = ClaimOffset.from_json(start), ClaimOffset.from_json(end)
        if last.next <= first.next:
            return []
        subscription = self._subscription("planner")
        _base, known = self._checked_range(subscription, first)
        assert self._again_below is not None
        if last.next > known:
            raise StoreError(self._beyond(last.next, known))
        ranges = cut(
            first.next,
            last.next,
            parts_min=self.options.partitions_min,
            records_max=self.options.records_per_partition_max,
        )
        return [ClaimPartition(low, high, self._again_below) for low, high in ranges]

    # -- the executors' side ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the claims of a range as Arrow batches; StoreError when some of them are gone."""
        assert isinstance(partition, ClaimPartition)
        options = self.options
        subscription = self._subscription("executor")
        wanted = arrow_schema(self.fields)
        position = partition.start
        while position < partition.end:
            stop = min(partition.end, position + options.batch_rows)
            batch = subscription.read_arrow(position, stop, max_bytes=options.batch_bytes)
            if batch.num_rows == 0:
                self._lost(position, partition.end)
                return
            first, last = batch.column("offset")[0].as_py(), batch.column("offset")[-1].as_py()
            if first != position or last - first + 1 != batch.num_rows:
                self._lost(position, last + 1)
            yield to_spark_batch(batch, wanted, options.queue, partition.again_below)
            position = last + 1

    # -- both ---------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known_end": None, "_again_below": None, "_target": None}

    def _subscription(self, role: str) -> Subscription:
        node = node_of(self.options.path, role, self.options.timeout_s)
        return node.queue(self.options.queue, create=False).subscription(self.options.subscription)

    def _offset(self, subscription: Subscription, claim: int) -> ClaimOffset:
        return ClaimOffset(self.options.queue, self.options.subscription, subscription.incarnation, claim)

    def _checked_range(self, subscription: Subscription, position: ClaimOffset) -> tuple[int, int]:
        """The claims there are, after checking that `position` lies within them and nobody else moves them."""
        position.check_same(self.options.queue, self.options.subscription, subscription.incarnation)
        base, end = subscription.range()
        if self._again_below is None:
            self._again_below = end
        if position.next > end:
            raise StoreError(self._beyond(position.next, end))
        if position.next < base:
            self._lost(position.next, base)
        if self._known_end is not None and end != self._known_end:
            raise UsageError(
                f"subscription {self.options.subscription!r} of queue {self.options.queue!r} ends at claim {end}, "
                f"but this query left it at {self._known_end}: another query reads it. "
                'Give each its own .option("subscription", "…")'
            )
        self._known_end = end
        return base, end

    def _claim(self, subscription: Subscription, position: int, limit: ReadLimit) -> int:
        """Claim new messages from `position`, within the limit and the run's target; the end of the claims."""
        messages, size = UNLIMITED, UNLIMITED
        if isinstance(limit, ReadMaxRows):
            messages = limit.max_rows
            size = self.options.bytes_per_trigger_max or UNLIMITED
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if self._target is not None:
            messages = min(messages, self._target - position)
        if messages <= 0:
            return position
        start, end = subscription.claim(messages, size)
        if end > start and start != position:
            raise UsageError(
                f"claims of subscription {self.options.subscription!r} continued at {start} instead of {position}: "
                'another query claims, too. Give each its own .option("subscription", "…")'
            )
        self._known_end = max(position, end)
        return self._known_end

    def _beyond(self, wanted: int, end: int) -> str:
        return (
            f"the checkpoint knows claims of subscription {self.options.subscription!r} up to {wanted}, but the "
            f"node only up to {end}: the data directory is older than the checkpoint. Start with a new "
            "checkpointLocation"
        )

    def _lost(self, first: int, end: int) -> None:
        """Claims [first, end) are not all there: an error, or with failOnDataLoss=false a line in the log."""
        text = (
            f"claims of subscription {self.options.subscription!r} of queue {self.options.queue!r} between "
            f"{first} and {end} are gone: acked by an earlier run with a newer checkpoint, or lost"
        )
        if self.options.fail_on_data_loss:
            raise StoreError(text + "; failOnDataLoss=false continues without them")
        log.warning("%s; continuing without them, as failOnDataLoss=false says", text)
