"""Replay: a queue is filled from a topic, from somewhere on, in the order of the log.

A record becomes the message that it was (workers/client/carried.py), or one whose headers are the record's properties.
It has the header `x-topic` besides: {name, queue, offset, message_id, timestamp, keys, tag} of the record. Its
key of deduplication is the record's message id, so a queue with a deduplication_window takes each record once; its
property message_id is the one that it had, else the record's.

Invariants
  `next_offsets` of what was told last is where to go on: all before was confirmed, nothing behind was.
  A part that was sent and not confirmed may be in the queue: going on gives doubles of it, at most `PART` messages,
  unless the queue has a deduplication_window.
Crash points
  Killed between two parts, or in one: the same; nothing is written about a replay but the messages.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from warren.engine._core import AttachmentLost, Record
from warren.engine.catalog import amqp_metadata, metadata
from warren.engine.catalog.arguments import REFUSING
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import QueueFull, UsageError
from warren.engine.saying import counted, shown
from warren.workers.client import carried
from warren.workers.client.arguments import level_of, milliseconds
from warren.workers.client.client import Client
from warren.workers.client.publish import Durability
from warren.workers.faces.queues import time_left
from warren.workers.faces.topic_reading import ReadResult

#: messages, and about how many bytes of them, that are sent and confirmed together
PART = 500
PART_BYTES = 1 << 20
#: messages that are read of a queue at once
READ = 256
#: with a rate, parts are so short
RATE_PART_S = 0.1
#: between attempts at a queue that is full
FULL_S = 0.05
HEADER = "x-topic"

#: "earliest", "latest", a time (a datetime, or milliseconds since 1970), or the offset in each queue
Where = str | datetime | float | Mapping[int, int]


class Source(Protocol):
    """What is replayed: a topic, as topics.Topic has it."""

    name: str

    @property
    def queues(self) -> int: ...
    def offsets(self, queue: int, /) -> tuple[int, int]: ...
    def offset_at(self, queue: int, when: datetime | float, /) -> int | None: ...
    def read(self, queue: int, offset: int, max: int, /, *, tag: str | Sequence[str] | None) -> ReadResult: ...


@dataclass(frozen=True)
class Replayed:
    """How far a replay has come: messages that the queue has, bytes of their bodies, records that it passed by because
    they have another key, records that were gone before they were read, and for each queue of the topic the offset at
    which to go on.
    """

    messages: int
    bytes: int
    passed_by: int
    lost: int
    next_offsets: dict[int, int]


class Plan(NamedTuple):
    """What is replayed: of each queue of the topic the offsets from `first` on and below `end`."""

    first: dict[int, int]
    end: dict[int, int]

    @staticmethod
    def of(topic: Source, start: Where, end: Where) -> Plan:
        """Raises UsageError."""
        first, last = _offsets(topic, "start", start), _offsets(topic, "end", end)
        there = {queue: topic.offsets(queue)[1] for queue in range(topic.queues)}
        for queue, offset in first.items():
            if offset > there[queue]:
                raise UsageError(
                    f"start: {offset} is behind the end of queue {queue} of topic {topic.name!r}, {there[queue]}"
                )
        return Plan(first, {queue: min(last.get(queue, there[queue]), there[queue]) for queue in first})

    @property
    def records(self) -> int:
        """How many offsets those are."""
        return sum(max(0, self.end[queue] - first) for queue, first in self.first.items())


def _offsets(topic: Source, what: str, where: Where) -> dict[int, int]:
    queues = range(topic.queues)
    if isinstance(where, Mapping):
        for queue, offset in where.items():
            if not (_is_whole(queue) and _is_whole(offset)) or queue not in queues or offset < 0:
                raise UsageError(
                    f"{what}: {shown({queue: offset})} is no offset of topic {topic.name!r}, which has "
                    f"{counted(len(queues), 'queue')} from 0 on"
                )
        return dict(where)
    if isinstance(where, str):
        if where not in ("earliest", "latest"):
            raise UsageError(f"{what} must be earliest, latest, a time, or offsets by queue, not {shown(where)}")
        return {queue: topic.offsets(queue)[where == "latest"] for queue in queues}
    milliseconds(where, what, up=True, offsets="by queue, as {0: 7}")
    return {queue: topic.offset_at(queue, where) or 0 for queue in queues}


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _checked_rate(rate: object) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
        raise UsageError(f"rate must be a number of messages a second above 0, or None, not {shown(rate)}")
    return float(rate)


def _checked_key(key: object) -> str | None:
    if key is None or isinstance(key, str):
        return key
    raise UsageError(f"key must be a str or None, not {shown(key)}")


class Replay:
    """One replay of a topic into a queue."""

    def __init__(
        self,
        client: Client,
        topic: Source,
        queue: QueueDeclaration,
        plan: Plan,
        *,
        tags: str | Sequence[str] | None,
        key: str | None,
        rate: float | None,
        durability: Durability | None,
    ) -> None:
        """Raises UsageError."""
        self._client = client
        self._topic = topic
        self._queue = queue
        self._plan = plan
        self._tags = tags
        self._key = _checked_key(key)
        self._rate = rate = _checked_rate(rate)
        self._level = level_of(durability, queue.durable, f"queue {queue.name!r} is transient")
        self._at = dict(plan.first)  # of what was read
        self._messages = self._bytes = self._passed_by = self._lost = 0
        # a queue that refuses what is too much takes one at a time, so that the order stays
        refuses = queue.arguments.get("overflow") in REFUSING
        self._part = 1 if refuses else PART
        if rate is not None:
            self._part = max(1, min(self._part, int(rate * RATE_PART_S)))

    def run(self, progress: Callable[[Replayed], object] | None, timeout: float | None) -> Replayed:
        """All of it; `timeout`: for each part. Raises what a put raises."""
        began = time.monotonic()
        for records in self._parts():
            if records:
                self._send(records, timeout)
            self._messages += len(records)
            self._bytes += sum(len(record.body) for record in records)
            done = self._so_far()
            if progress is not None:
                progress(done)
            if self._rate is not None:
                ahead = self._messages / self._rate - (time.monotonic() - began)
                if ahead > 0:
                    time.sleep(ahead)
        return self._so_far()

    def _so_far(self) -> Replayed:
        return Replayed(self._messages, self._bytes, self._passed_by, self._lost, dict(self._at))

    # -- reading ------------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[list[Record]]:
        """What is sent together; the last one may be empty, and then `_at` is the end."""
        part: list[Record] = []
        size = looked = 0
        ranges = [self._range(queue, first) for queue, first in self._plan.first.items()]
        for record in heapq.merge(*ranges, key=lambda record: record.physical_offset):
            if part and (len(part) >= self._part or size + len(record.body) > PART_BYTES or looked >= 64 * READ):
                yield part
                part, size, looked = [], 0, 0
            self._at[record.queue] = record.offset + 1
            looked += 1
            if self._key is not None and self._key not in record.keys:
                self._passed_by += 1
                continue
            part.append(record)
            size += len(record.body)
        for queue, end in self._plan.end.items():
            self._at[queue] = max(self._at[queue], end)
        yield part

    def _range(self, queue: int, at: int) -> Iterator[Record]:
        """The records of a queue of the topic, in order."""
        end = self._plan.end[queue]
        while at < end:
            found = self._topic.read(queue, at, min(READ, end - at), tag=self._tags)
            if at < found.min_offset:
                self._lost += min(found.min_offset, end) - at
            for record in found.records:
                if record.offset < end:
                    yield record
            if found.next_offset <= at:
                return  # there is less than was said: the topic was put back from a backup meanwhile
            at = found.next_offset

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self, records: list[Record], timeout: float | None) -> None:
        """Into the queue, and confirmed."""
        told = [self._told(record) for record in records]
        bodies = [record.body for record in records]
        metas, options = [item[0] for item in told], [item[1] for item in told]
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            queue = self._client.current(self._queue)
            route = self._client.route_to([queue], b"")
            try:
                self._client.core.publish_many(route.core, bodies, self._level, metas, timeout, True, options)
                return
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
            except QueueFull as error:
                if len(bodies) > 1 or (deadline is not None and time.monotonic() >= deadline):
                    error.args = (f"{error}; {counted(self._messages, 'message')} replayed so far",)
                    raise
                time.sleep(FULL_S)

    def _told(self, record: Record) -> tuple[bytes, metadata.Options | None]:
        """Metadata and delivery options of a record's message."""
        found = carried.message_of(record.properties, self._queue.name)
        origin = {
            "name": self._topic.name,
            "queue": record.queue,
            "offset": record.offset,
            "message_id": record.message_id,
            "timestamp": record.timestamp,
            "keys": list(record.keys),
            "tag": record.tag,
        }
        properties = {"message_id": record.message_id, **found.properties}
        headers: dict[str, Any] = {**found.headers, HEADER: origin}
        amqp = found.amqp
        if amqp is not None:
            amqp = amqp_metadata.with_more(amqp, {HEADER: origin}, {"message_id": record.message_id})
        meta = metadata.passed_on(found.exchange, found.routing_key, headers, properties, None, amqp)
        life = None if found.ttl_ms is None else found.ttl_ms / 1000
        wait = max(0, found.due_ms - time.time_ns() // 1_000_000) / 1000 or None
        return meta, metadata.options(found.priority, life, wait, record.message_id, found.persistent)
