"""Reading topics from Spark: a batch is a range of offsets of each partition, a stream one range after another.

    topic_options.py   what was asked for
    topic_offsets.py   offsets in the checkpoint, limits, parts
    topic_plan.py      what the node has of it
    topic_rows.py      columns as Spark takes them

A range that is read twice gives the same rows, whoever was killed in between: messages keep their offsets, and Spark
writes down the range before it reads it. So a stream needs nothing of the node but the messages.

Where a stream begins is written down, too: `latestOffset` answers the first time with what `initialOffset` said, so
that the first micro-batch is empty. Spark does not keep the initial offset; after a kill it would ask again, and
"latest" is another offset by then. The same holds for a topic that is found later (topic_offsets.py).

What Spark plans is held (faces/topic_holds.py), so that retention leaves it alone: by the stream's own process from
`partitions` to the `latestOffset` that shows that the micro-batch was committed; by a batch's planner for HOLD_S at
most; by each task while it reads. A hold ends with its process. Planners take theirs again when the node comes back.

The native scan's batches are held for as long as they are read (java/warren/spark/Leases.java). Here that cannot be:
who plans is a worker of Spark's pool, which is asked once, is told nothing of queries and jobs, and is ended when it
has been idle for a minute; and Spark's own class stands between it and the events in the driver's JVM.

Incarnations are compared where Spark plans, and in each task before and after it reads.

Crash points of a stream (driver killed)
  before Spark logged the first batch: the next run asks for the initial offset anew, and has read nothing
  after it was logged, before it was committed: the batch is replayed, and is empty whatever the initial offset is now
  a later batch logged, not committed: replayed, the same ranges
  batch committed, offsets of `groupId` not published: published by the first `latestOffset` of the next run
Task or executor killed: Spark repeats the task, which reads its range from the begin.
Node stopped and started, or killed: who plans and who reads waits for it, for `timeout` seconds, and goes on; holds are
gone with it, and planners take them again within KEEP_S. Retention may have been faster: DataLoss, as ever.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from warren.engine.errors import DataLoss, Error, PeerLost, StoreError, TimedOut, TopicNotFound, UsageError
from warren.workers.faces.topic_scans import ReadStatus, Scan
from warren.workers.spark.client import APPLICATION_VARIABLE, outlasting
from warren.workers.spark.hosts import check_here, host_name
from warren.workers.spark.topic_offsets import (
    Place,
    Range,
    TopicOffsets,
    TopicPosition,
    share,
    share_bytes,
    split,
)
from warren.workers.spark.topic_options import TopicReadOptions
from warren.workers.spark.topic_plan import Topics
from warren.workers.spark.topic_rows import TopicRows

if TYPE_CHECKING:
    from warren.engine.catalog.topics import TopicDeclaration
    from warren.workers.faces.topic_holds import Hold
    from warren.workers.faces.topic_scans import TopicScans

log = logging.getLogger(__name__)

T = TypeVar("T")

#: how long Python's planner of a batch keeps its ranges from retention, if Spark does not end it before
HOLD_S = 600.0
#: between two looks whether the node that keeps what is held still runs
KEEP_S = 1.0
_GONE = (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.MESSAGE_WAS_REMOVING)
#: behind these a scan goes on; with any other answer the range has not what was planned
_THERE = (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_FOUND_NULL)
_ON_DAMAGE = (
    "failOnDataLoss=false passes it by: partition {queue} goes on at offset {next}, and the worker's log says so"
)


@dataclass
class TopicPartition(InputPartition):
    """The offsets [start, end) of a partition of a topic, of one incarnation of it."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    planned_on: str  #: which host


@dataclass(eq=False)
class _HeldRange:
    """What holds a range, and how it is taken: again when the node was started anew, or later when it does not run."""

    take: Callable[[], Hold | None]
    hold: Hold | None


class Held:
    """Ranges that retention leaves alone until they are released."""

    def __init__(self, *, kept: bool = False) -> None:
        """`kept`: what is held is taken again when the node was started anew."""
        self._lock = threading.Lock()
        self._keeping = threading.Lock()
        self._kept = kept
        self._ranges: list[_HeldRange] = []

    def hold(self, reading: TopicScans, partition: int, start: int, end: int) -> None:
        """Hold a range, as far as it is there: what is missing is for whoever reads it to say."""
        take = partial(_hold_of, reading, partition, start, end)
        taken = take()
        if taken is not None:
            self._add(_HeldRange(take, taken))

    def hold_planned(self, options: TopicReadOptions, parts: Iterable[TopicPartition]) -> None:
        """Hold ranges that were planned before, as far as they are there; as soon as the node runs, if it does not."""
        for part in parts:
            self._add(_HeldRange(partial(_hold_of_planned, options, part), None))
        self.keep()

    def _add(self, held: _HeldRange) -> None:
        with self._lock:
            self._ranges.append(held)
        if self._kept:
            _keeper.keep(self)

    def keep(self) -> bool:
        """Hold what ought to be held and is not. False: there is nothing of that kind any more."""
        with self._keeping:
            with self._lock:
                ranges = list(self._ranges)
            for each in ranges:
                if each.hold is not None and not each.hold.lost():
                    continue
                try:
                    self._put(each, each.take())
                except TopicNotFound:
                    self._put(each, None)
                except Error as problem:  # the node does not run, or is about to end: the next time
                    log.debug("a range is not held: %s", problem)
                    return True
        return self.any

    def _put(self, held: _HeldRange, taken: Hold | None) -> None:
        with self._lock:
            wanted = held in self._ranges
            if wanted and taken is None:
                self._ranges.remove(held)  # nothing of it is there any more
            elif wanted:
                held.hold = taken
        if taken is not None and not wanted:
            taken.release()  # all were released meanwhile

    @property
    def any(self) -> bool:
        """Whether something is held, or ought to be."""
        with self._lock:
            return bool(self._ranges)

    def release(self) -> None:
        """Let all of them go."""
        with self._lock:
            ranges, self._ranges = self._ranges, []
        for each in ranges:
            if each.hold is not None:
                each.hold.release()


class _Keeper:
    """A thread that looks after what is held, while something is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def keep(self, held: Held) -> None:
        """From now on, until it has nothing."""
        with self._lock:
            self._held.add(held)
            if self._thread is None or not self._thread.is_alive():  # a fork takes no thread along
                self._thread = threading.Thread(target=self._run, name="warren-holds", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(KEEP_S)
            with self._lock:
                all_held = list(self._held)
            over = [held for held in all_held if not held.keep()]
            del all_held
            with self._lock:
                for held in over:
                    if not held.any:
                        self._held.discard(held)
                if not self._held:
                    self._thread = None
                    return


_keeper = _Keeper()


def _hold_of(reading: TopicScans, partition: int, start: int, end: int) -> Hold | None:
    low, high = reading.offsets(partition)
    while max(start, low) < min(end, high):
        try:
            return reading.hold(partition, max(start, low), min(end, high))
        except DataLoss as gone:  # retention was there before
            low = max(low + 1, gone.minimum)
    return None


def _hold_of_planned(options: TopicReadOptions, part: TopicPartition) -> Hold | None:
    topics = Topics(options, "planner")
    topic = topics.found().get(part.topic)
    if topic is None or topics.incarnation(topic) != part.incarnation:
        return None
    return _hold_of(topics.reading(topic), part.partition, part.start, part.end)


class TopicBatchReader(DataSourceReader):
    """Reads topics from a start to an end, which are fixed when Spark plans the read first."""

    def __init__(self, options: TopicReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: which offsets are read, in which tasks."""
        held = Held(kept=True)
        parts = self.planned(held)
        _release_later(held)
        return parts

    def planned(self, held: Held) -> list[InputPartition]:
        """The same; `held` holds them, unless an error is raised."""
        try:
            return outlasting(self.options.path, self.options.timeout_s, lambda: self._planned(held), "planner")
        except BaseException:
            held.release()
            raise

    def _planned(self, held: Held) -> list[InputPartition]:
        options = self.options
        assert options.start is not None
        assert options.end is not None
        topics = Topics(options, "planner")
        held.release()  # of a try before
        found = topics.all_found()
        ends = topics.resolved(options.end, found, end=True)
        starts = topics.resolved(options.start, found, end=False)
        ranges: dict[Place, Range] = {}
        for (name, partition), start in starts.items():
            end = ends[name, partition]
            if start > end and options.start.kind == options.end.kind == "offsets":
                raise UsageError(
                    f"topic {name!r}, partition {partition} begins at offset {start}, behind its end {end}: give "
                    f"{options.start.option!r} that are not above {options.end.option!r}"
                )
            reading = topics.reading(found[name])
            held.hold(reading, partition, start, end)
            ranges[name, partition] = (topics.checked_start(reading, partition, start, end), end)
        return _parts(options, {name: topics.incarnation(topic) for name, topic in found.items()}, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part as Arrow batches; runs in an executor."""
        return _read(self.options, self.fields, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow; one lives in the driver's planner, copies of it in the executors."""

    def __init__(self, options: TopicReadOptions, schema: StructType) -> None:
        self.options = options
        self.fields = schema
        self._begin()

    def _begin(self) -> None:
        #: where the query begins, if it has no checkpoint; written down when Spark has asked for the first batch
        self._initial: TopicOffsets | None = None
        self._written_down = False
        #: AvailableNow: the end of this run
        self._target: TopicOffsets | None = None
        #: when there was a batch for the last time (minOffsetsPerTrigger)
        self._batch_at = time.monotonic()
        self._published: TopicOffsets | None = None
        self._held = Held(kept=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "fields": self.fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options, self.fields = state["options"], state["fields"]
        self._begin()

    # -- the driver's side --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts. Spark asks again for the first batch: the same."""
        if self._initial is None:
            assert self.options.start is not None
            self._initial = self._outlasting(self._start)
            self._written_down = self.options.start.fixed
        return self._initial.to_json()

    def _start(self) -> TopicOffsets:
        assert self.options.start is not None
        topics = Topics(self.options, "planner")
        found = topics.all_found()
        return _offsets(topics, found, topics.resolved(self.options.start, found, end=False))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, as the options say; `latestOffset` knows the others of them, too."""
        options = self.options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: what is there now."""
        self._target = self._outlasting(self._ends)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch. All below `start` is committed: it is not held any more, and is what
        the group has.
        """
        position = TopicOffsets.from_json(start)
        first, self._written_down = not self._written_down and position == self._initial, True
        if first:
            return position.to_json()
        return self._outlasting(lambda: self._latest(position, limit)).to_json()

    def _latest(self, position: TopicOffsets, limit: ReadLimit) -> TopicOffsets:
        topics = Topics(self.options, "planner")
        self._held.release()
        found = topics.found()
        self._publish(topics, found, position)
        fresh, ranges = self._backlog(topics, found, position)
        limited = self._limited(topics, found, ranges, limit)
        told = _offsets(topics, found, fresh | {place: end for place, (_start, end) in limited.items()})
        if told != position:
            self._batch_at = time.monotonic()
        return told

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset that a reader without a limit would reach now; Spark shows it as the stream's lag."""
        return self._outlasting(self._ends).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the ranges of a micro-batch into parts for the executors."""
        first, last = TopicOffsets.from_json(start), TopicOffsets.from_json(end)
        self._written_down = True
        return self._outlasting(lambda: self._planned(first, last))

    def _planned(self, first: TopicOffsets, last: TopicOffsets) -> list[InputPartition]:
        topics = Topics(self.options, "planner")
        self._held.release()
        ranges: dict[Place, Range] = {}
        for name, position in last.topics.items():
            before = first.topics.get(name)
            if before is None or before.incarnation != position.incarnation:
                continue  # found, or made again: from this offset on it is read
            topic = topics.same(name, position.incarnation)
            if topic is None:
                continue
            reading = topics.reading(topic)
            for partition, stop in position.offsets.items():
                begin = before.offsets.get(partition, stop)
                if begin >= stop:
                    continue
                self._held.hold(reading, partition, begin, stop)
                ranges[name, partition] = (topics.checked_start(reading, partition, begin, stop), stop)
        return _parts(self.options, {name: each.incarnation for name, each in last.topics.items()}, ranges)

    def stop(self) -> None:
        """The query ends."""
        self._held.release()

    def _backlog(
        self, topics: Topics, found: Mapping[str, TopicDeclaration], position: TopicOffsets
    ) -> tuple[dict[Place, int], dict[Place, Range]]:
        """What is there behind `position`: where reading begins in what is seen for the first time, and a range for
        each other partition. With a target, no further than that.
        """
        for name in sorted(set(position.topics) - set(found)):
            topics.check_selected(name)
            topics.replaced(name, position.topics[name].incarnation, None)
        if self.options.fail_on_data_loss:
            topics.all_found()  # one that the query did not read before may be missing, too
        fresh: dict[Place, int] = {}
        ranges: dict[Place, Range] = {}
        for name, topic in found.items():
            incarnation, before = topics.incarnation(topic), position.topics.get(name)
            if before is not None and before.incarnation != incarnation:
                topics.replaced(name, before.incarnation, incarnation)
                before = None
            target = None if self._target is None else self._target.topics.get(name)
            if self._target is not None and (target is None or target.incarnation != incarnation):
                continue  # it was not there when this run began: for a later one
            if before is not None:
                topics.check_partitions(topic, before.offsets)
            reading = topics.reading(topic)
            for partition in topics.partitions(topic):
                low, high = reading.offsets(partition)
                at = None if before is None else before.offsets.get(partition)
                if at is None:
                    fresh[name, partition] = low
                    continue
                high = topics.check_end(reading, partition, at, high)
                if at < low and not topic.compacted and self.options.fail_on_data_loss:
                    topics.lost(name, partition, at, low, low)
                end = high if target is None else min(high, max(at, target.offsets.get(partition, at)))
                ranges[name, partition] = (at, end)
        return fresh, ranges

    def _limited(
        self,
        topics: Topics,
        found: Mapping[str, TopicDeclaration],
        ranges: Mapping[Place, Range],
        limit: ReadLimit,
    ) -> dict[Place, Range]:
        """What of these ranges the next micro-batch has."""
        if isinstance(limit, ReadAllAvailable):
            return dict(ranges)
        options = self.options
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.offsets_per_trigger_max
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_per_trigger_max
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.offsets_per_trigger_min
        there = sum(end - start for start, end in ranges.values())
        early = time.monotonic() - self._batch_at < options.trigger_delay_s
        if least is not None and there < least and early and self._target is None:
            return {place: (start, start) for place, (start, _end) in ranges.items()}
        limited = dict(ranges) if rows is None else share(ranges, rows)
        if size is None:
            return limited
        readings = {name: topics.reading(topic) for name, topic in found.items()}
        return share_bytes(limited, size, lambda place, at, end, most: readings[place[0]].span(place[1], at, end, most))

    def _outlasting(self, call: Callable[[], T]) -> T:
        """What `call` gives, also when the node is stopped meanwhile and runs again."""
        return outlasting(self.options.path, self.options.timeout_s, call, "planner")

    def _ends(self) -> TopicOffsets:
        topics = Topics(self.options, "planner")
        found = topics.found()
        ends = {
            (name, partition): topics.reading(topic).offsets(partition)[1]
            for name, topic in found.items()
            for partition in topics.partitions(topic)
        }
        return _offsets(topics, found, ends)

    def _publish(self, topics: Topics, found: Mapping[str, TopicDeclaration], position: TopicOffsets) -> None:
        """Show how far the query is, as a group's offsets. Nothing reads them for the query, so what fails for a moment
        is said, and done the next time.
        """
        group = _group(self.options)
        if group is None or position == self._published:
            return
        for name, topic in found.items():
            told = position.topics.get(name)
            if told is None or told.incarnation != topics.incarnation(topic) or not told.offsets:
                continue
            try:
                topics.publish(topic, group, told.offsets)
            except (PeerLost, TimedOut, TopicNotFound) as problem:
                log.warning("offsets of group %r of topic %r are not published: %s", group, name, problem)
                return
        self._published = position

    # -- the executors' side ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part as Arrow batches; DataLoss when some of them are gone."""
        return _read(self.options, self.fields, partition)


# -- both -----------------------------------------------------------------------------------------------------------


def _offsets(topics: Topics, found: Mapping[str, TopicDeclaration], offsets: Mapping[Place, int]) -> TopicOffsets:
    """Offsets of places as an offset of the query."""
    by_topic: dict[str, dict[int, int]] = {}
    for (name, partition), offset in offsets.items():
        by_topic.setdefault(name, {})[partition] = offset
    return TopicOffsets({name: TopicPosition(topics.incarnation(found[name]), each) for name, each in by_topic.items()})


def _group(options: TopicReadOptions) -> str | None:
    """The group whose offsets the query publishes; a made name is the same in each run of it."""
    if options.group_id is not None or options.group_id_prefix is None:
        return options.group_id
    what = f"{os.environ.get(APPLICATION_VARIABLE)}\0{options.path}\0{options.selection}"
    return f"{options.group_id_prefix}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def _parts(
    options: TopicReadOptions, incarnations: Mapping[str, str], ranges: Mapping[Place, Range]
) -> list[InputPartition]:
    return [
        TopicPartition(name, incarnations[name], partition, low, high, host_name())
        for (name, partition), low, high in split(ranges, options.partitions_min, options.records_per_partition_max)
    ]


def _release_later(held: Held) -> None:
    timer = threading.Timer(HOLD_S, held.release)
    timer.daemon = True  # the process may end before
    timer.start()


def _wanted(options: TopicReadOptions, rows: TopicRows) -> Scan:
    return Scan(
        rows.want,
        tuple(tag.encode() for tag in options.tags),
        tuple(key.encode() for key in options.keys),
        options.since_ms,
        options.until_ms,
        _ON_DAMAGE,
    )


def _read(options: TopicReadOptions, fields: StructType, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages of a part."""
    if not isinstance(part, TopicPartition):
        return  # Spark makes one up when a plan has none
    if options.mount is None:
        check_here(options.path, part.incarnation, part.planned_on)
    waiting = partial(outlasting, options.path, options.timeout_s)  # for a node that was stopped to come back
    topics = waiting(lambda: Topics(options, "executor"))
    topic = waiting(lambda: topics.same(part.topic, part.incarnation))
    if topic is None:
        return
    reading = topics.reading(topic)
    rows = TopicRows(fields, part.topic, part.partition)
    held = Held()
    try:
        waiting(lambda: reading.reach(part.partition, part.end, options.timeout_s))
        waiting(lambda: held.hold(reading, part.partition, part.start, part.end))
        yield from _scanned(topics, reading, rows, part)
        waiting(reading.check_there)
    except TopicNotFound:  # deleted meanwhile: what comes instead is another one
        topics.replaced(part.topic, part.incarnation, None)
    finally:
        held.release()
    waiting(lambda: topics.same(part.topic, part.incarnation))


def _scanned(topics: Topics, reading: TopicScans, rows: TopicRows, part: TopicPartition) -> Iterator[pa.RecordBatch]:
    options, wanted, at = topics.options, _wanted(topics.options, rows), part.start
    while at < part.end:
        scan = partial(reading.scan, part.partition, at, part.end, options.batch_rows, options.batch_bytes, wanted)
        found = outlasting(options.path, options.timeout_s, scan)
        following = found.next_offset
        if found.damage is not None:
            if options.fail_on_data_loss:
                raise found.damage
            log.warning("%s; going on at offset %d, as failOnDataLoss=false says", found.damage, following)
        elif found.status in _GONE:
            following = min(part.end, max(at + 1, found.min_offset, following))
            topics.lost(part.topic, part.partition, at, following, max(found.min_offset, following))
        elif found.status not in _THERE:
            raise StoreError(
                f"topic {part.topic!r}, partition {part.partition}: offsets {part.start} to {part.end} were planned, "
                f"and it ends at {at}: the data directory is older than the plan"
            )
        if found.columns[0]:
            yield rows.batch(found.columns)
        at = following
