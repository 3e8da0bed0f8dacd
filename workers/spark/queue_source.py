"""Reading a queue from Spark: as a batch (browse, no ack) and as a stream (durable numbered claims).

A stream owns a subscription. Claiming moves messages from the queue to the subscription's end, under dense numbers,
durably; a micro-batch is a range of numbers, and stays readable until it is acked. That makes a replay exact: a batch
that Spark planned and did not commit is read again with the same content, whoever died.

Ack happens in `latestOffset(start)`: Spark calls it with the offset that it has committed, also when nothing new comes
and at the end of an AvailableNow run; `commit(end)` comes only when the next batch with data is planned.

Crash points of the stream (driver killed)
  after claiming, before Spark logged the batch: the restart finds the claims beyond its offset, and plans them first
  between two claims of one batch: the same, with fewer of them
  batch logged, not committed: replayed, the same claims
  batch committed, not acked: acked by the restart's first `latestOffset`
  checkpoint lost: the claims not acked are delivered again, marked so by delivery_count

A batch read plans the sequences that are ready at that moment, and every action on the same DataFrame reads those: from
the queue, or from a consumer that has them and did not ack. What has left the queue is an error that says how many they
are, or with failOnDataLoss=false a line in the log.

Invariant of both: a partition carries the incarnation of what it was planned from, and a task looks at it before and
after each read. So numbers of a queue or subscription that was deleted and made anew are never taken for the old ones.
Only the planner of a stream creates a subscription, when there is no checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
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

from warren.engine.errors import ClosedError, NodeNotRunning, PeerLost, QueueNotFound, StoreError, UsageError
from warren.engine.saying import counted
from warren.workers.faces.queue_range import number_of
from warren.workers.faces.queues import range_of
from warren.workers.faces.subscription_owner import Owner
from warren.workers.spark.client import node_of, outlasting
from warren.workers.spark.hosts import check_here, host_name
from warren.workers.spark.offsets import ClaimOffset, cut, made_again
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_spans import Plan, cut_spans
from warren.workers.spark.schema import arrow_schema, columns_of, to_spark_batch

if TYPE_CHECKING:
    from warren.workers.faces.queue_range import QueueRange
    from warren.workers.faces.subscription import Subscription

log = logging.getLogger(__name__)

T = TypeVar("T")

#: no limit, for the engine's numbers
UNLIMITED = (1 << 62) - 1
#: claims of one answer of a worker
ONE_ANSWER = 1 << 18


@dataclass
class BrowsePartition(InputPartition):
    """Messages of a queue: spans of sequences as pairs of 64-bit numbers (first, end), ascending."""

    incarnation: str
    spans: bytes


@dataclass
class ClaimPartition(InputPartition):
    """The claims [start, end) of a subscription; those below `again_below` may have been delivered before."""

    incarnation: str
    start: int
    end: int
    again_below: int = 0


class QueueReader(DataSourceReader):
    """Browses a queue."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema
        self._planned_on = host_name()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: what is ready now, cut into spans of sequences for the executors."""
        found = self._range("planner")
        cuts = cut_spans(
            found.ready(),
            parts_min=self.options.partitions_min,
            records_max=self.options.records_per_partition_max,
        )
        # Spark calls read also where there is no partition, with None.
        return [BrowsePartition(found.incarnation, spans.tobytes()) for spans in cuts] or [
            BrowsePartition(found.incarnation, b"")
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow batches; runs in an executor. StoreError when some of them are gone."""
        assert isinstance(partition, BrowsePartition)
        if not partition.spans:
            return
        options = self.options
        check_here(options.path, partition.incarnation, self._planned_on)
        wanted = arrow_schema(self.fields)
        columns = columns_of(wanted)
        plan = Plan(np.frombuffer(partition.spans, "<i8").reshape(-1, 2))
        position, gone = plan.start, 0

        def read() -> pa.RecordBatch:
            batch = self._checked_range(partition).read_arrow(
                position, plan.end, rows_max=options.batch_rows, bytes_max=options.batch_bytes, columns=columns
            )
            self._checked_range(partition)
            return batch

        while position < plan.end:
            batch = outlasting(options.path, options.timeout_s, read)
            planned, reached = plan.of(batch, position)
            missing = plan.count(position, reached) - planned.num_rows
            if missing and options.fail_on_data_loss:
                raise StoreError(self._gone(missing) + "; failOnDataLoss=false reads the others")
            gone += missing
            position = reached
            if planned.num_rows:
                yield to_spark_batch(planned, wanted, options.queue)
        if gone:
            log.warning("%s; reading the others, as failOnDataLoss=false says", self._gone(gone))

    def _range(self, role: str) -> QueueRange:
        node = node_of(self.options.path, role, self.options.timeout_s)
        return range_of(node.queue(self.options.queue, create=False))

    def _checked_range(self, partition: BrowsePartition) -> QueueRange:
        found = self._range("executor")
        if found.incarnation != partition.incarnation:
            raise StoreError(
                f"queue {self.options.queue!r} was deleted and declared again since this read was planned (then "
                f"{partition.incarnation}, now {found.incarnation}); load a new DataFrame"
            )
        return found

    def _gone(self, count: int) -> str:
        return (
            f"{counted(count, 'message')} of queue {self.options.queue!r} that were there when this read was planned "
            "left it meanwhile: acked, claimed, expired, dropped, delayed by a return, or damaged. Load a new "
            "DataFrame for what is there now"
        )


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue through a subscription; one lives in the driver's planner, copies of it in the executors."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema
        self._planned_on = host_name()
        #: end of the claims as this reader left it; another end means that somebody else claims, too
        self._known_end: int | None = None
        #: end of the claims when this reader began: what it delivers of those may have been delivered before
        self._again_below: int | None = None
        #: AvailableNow: claims from here on are for a later run
        self._target: int | None = None
        #: held by the planner from its first look on
        self._owner: Owner | None = None

    # -- the driver's side --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts: the lowest claim not acked, which is delivered again."""
        return self._outlasting(self._initial)

    def _initial(self) -> dict[str, Any]:
        subscription = self._planned(create=True)
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
        subscription = self._planned(create=True)
        self._target = subscription.range()[1] + subscription.ready()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what is committed (all below `start`), and return the end of the next micro-batch, claiming as needed."""
        return self._outlasting(lambda: self._latest(ClaimOffset.from_json(start), limit))

    def _latest(self, position: ClaimOffset, limit: ReadLimit) -> dict[str, Any]:
        subscription = self._planned()
        base, end = self._checked_range(subscription, position)
        if position.next > base:
            subscription.ack(position.next)
        messages, size = self._limits(limit)
        if self._target is not None:
            messages = min(messages, max(0, self._target - position.next))
        if end == position.next:
            end = self._claim(subscription, end, messages, size)
        # Else they were claimed by a run that died before it planned them, or cut off by the limit of the last batch.
        stop = min(end, position.next + messages)
        if size < UNLIMITED and stop > position.next:
            stop, _bytes = subscription.measure(position.next, stop, size)
        return self._offset(subscription, stop).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset that a reader without a limit would reach now; Spark shows it as the stream's lag."""
        return self._outlasting(self._report)

    def _report(self) -> dict[str, Any]:
        subscription = self._planned()
        return self._offset(subscription, subscription.range()[1] + subscription.ready()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the claims of a micro-batch into ranges for the executors."""
        return self._outlasting(lambda: self._parts(start, end))

    def _parts(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = ClaimOffset.from_json(start), ClaimOffset.from_json(end)
        if last.next <= first.next:
            return []
        subscription = self._planned()
        last.check_same(self.options.queue, self.options.subscription, subscription.incarnation)
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
        return [ClaimPartition(subscription.incarnation, low, high, self._again_below) for low, high in ranges]

    def _outlasting(self, call: Callable[[], T]) -> T:
        """What `call` gives, also when the node is stopped meanwhile and runs again."""
        return outlasting(self.options.path, self.options.timeout_s, lambda: self._looking_anew(call), "planner")

    def _looking_anew(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ClosedError, NodeNotRunning, PeerLost):
            self._known_end = None  # a claim whose answer was lost may have moved it
            raise

    def stop(self) -> None:
        """Let the subscription go."""
        if self._owner is not None:
            self._owner.release()
            self._owner = None

    # -- the executors' side ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the claims of a range as Arrow batches; StoreError when some of them are gone."""
        assert isinstance(partition, ClaimPartition)
        options = self.options
        check_here(options.path, partition.incarnation, self._planned_on)
        wanted = arrow_schema(self.fields)
        columns = columns_of(wanted)
        position = partition.start

        def read() -> pa.RecordBatch:
            batch = self._read_from(partition).read_arrow(
                position,
                partition.end,
                options.batch_bytes,
                max_messages=options.batch_rows,
                columns=columns,
            )
            self._read_from(partition)
            return batch

        while position < partition.end:
            batch = outlasting(options.path, options.timeout_s, read)
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
        return {**self.__dict__, "_known_end": None, "_again_below": None, "_target": None, "_owner": None}

    def _subscription(self, role: str, create: bool = False) -> Subscription:
        node = node_of(self.options.path, role, self.options.timeout_s)
        return node.queue(self.options.queue, create=False).subscription(self.options.subscription, create=create)

    def _planned(self, create: bool = False) -> Subscription:
        """The subscription, for the reader that plans: it is this reader's alone. `create`: there is no checkpoint."""
        try:
            subscription = self._subscription("planner", create)
        except QueueNotFound as problem:
            raise StoreError(
                f"{problem}. If it was deleted, its claims are in the queue again: start with a new checkpointLocation"
            ) from None
        if self._owner is None:
            what = f"subscription {self.options.subscription!r} of queue {self.options.queue!r}"
            self._owner = Owner(self.options.path, number_of(subscription.incarnation), what)
        return subscription

    def _read_from(self, partition: ClaimPartition) -> Subscription:
        """The subscription, for a task: the one that it was planned from, or StoreError."""
        subscription = self._subscription("executor")
        if subscription.incarnation != partition.incarnation:
            raise StoreError(
                made_again(
                    self.options.queue, self.options.subscription, partition.incarnation, subscription.incarnation
                )
            )
        return subscription

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

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """The most messages and bytes of a micro-batch."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self.options.bytes_per_trigger_max or UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            return UNLIMITED, limit.max_bytes
        return UNLIMITED, UNLIMITED

    def _claim(self, subscription: Subscription, position: int, messages: int, size: int) -> int:
        """Claim new messages from `position` on; the end of the claims, which is `position` if nothing is ready.

        An answer has some 260,000 claims at most, so they are asked for until that many are there, or none is ready.
        Without a limit, as many as are ready now: who publishes without a pause does not keep it here.
        """
        if messages == UNLIMITED:
            messages = max(subscription.ready(), ONE_ANSWER)
        end, left = position, size
        while end - position < messages and left > 0:
            start, following = subscription.claim(messages - (end - position), left)
            if following == start:
                break
            if start != end:
                raise UsageError(
                    f"claims of subscription {self.options.subscription!r} continued at {start} instead of {end}: "
                    'another query claims, too. Give each its own .option("subscription", "…")'
                )
            end = following
            if size < UNLIMITED:
                left -= subscription.measure(start, end)[1]
        self._known_end = max(position, end)
        return end

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
