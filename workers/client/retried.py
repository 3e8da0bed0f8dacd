"""A message that a group has tried and appends again, as bytes: to the group's retry topic, or its dead letters
(engine/catalog/group_topics.py); and how a reader of the group shows one that comes again.

What its record has besides the message's own properties:

    RETRY_TOPIC, ORIGIN_MESSAGE_ID           of a message that comes again: its topic and id, as RocketMQ says it
    WARREN_ORIGIN                            its queue, offset and store time there
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID  of one that was given up: the same, as RocketMQ 5 says it
    DLQ_ORIGIN_QUEUE, DLQ_ORIGIN_OFFSET      and where it was
    RECONSUME_TIME                           how often it was tried before; the worker makes reconsume_times of it
    DELAY or TIMER_DELAY_MS                  when it comes

Invariants
  What is shown is the message as it stood in its topic (queue, offset, id, times, properties), with reconsume_times and
  one property more, WARREN_RETRY: where it stands in the retry topic. Nothing has to be remembered of it, so it may
  go through another process and come back.
  A record of a retry topic that says nothing of the kind is shown as it is, with WARREN_RETRY.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from warren.engine import _core
from warren.engine._core import Record
from warren.engine.errors import MessageTooLarge, UsageError
from warren.engine.topics import records
from warren.engine.topics.formats import DELAY_LEVELS_MS, PROPERTIES_BYTES_MAX
from warren.workers.client.later import later_of

#: the delay of the first retry is this level, that of the next one the level behind it, as in RocketMQ: 10 s, 30 s …
FIRST_LEVEL = 3
PLACE = "WARREN_RETRY"
_TOPIC, _ID, _ORIGIN, _TIMES = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WARREN_ORIGIN", "RECONSUME_TIME"
#: properties that say how often a message was tried, and where it comes from then
OF_RETRIES = frozenset((PLACE, _TOPIC, _ID, _ORIGIN, _TIMES))
_DEAD_TOPIC, _DEAD_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
_DEAD_QUEUE, _DEAD_OFFSET = "DLQ_ORIGIN_QUEUE", "DLQ_ORIGIN_OFFSET"


class Stands(NamedTuple):
    """Where a message stands for its group: in the retry topic (`again`), or in its own; and how often it was tried
    before.
    """

    again: bool
    queue: int
    offset: int
    times: int


class Appended(NamedTuple):
    """A message that is appended again."""

    body: bytes
    properties: bytes
    born: int
    later: bool


def stands(record: Record) -> Stands:
    """Where a message that a reader has handed out stands."""
    if record.reconsume_times:
        place = record.properties.get(PLACE)
        if place is not None:
            queue, offset = place.split(" ")
            return Stands(True, int(queue), int(offset), record.reconsume_times)
    return Stands(False, record.queue, record.offset, 0)


def topic_of(record: Record) -> int:
    """The id of the topic that a message is of; 0: it does not say so."""
    return _parsed(record).flag


def retry(record: Record, topic: str, times: int, delay: float | None) -> Appended:
    """So that it comes to the group again, after `delay` seconds (None: by how often it was tried). Raises UsageError,
    MessageTooLarge.
    """
    level = min(FIRST_LEVEL + times, len(DELAY_LEVELS_MS))
    when = later_of(delay, None, None if delay is not None else level)
    assert when is not None
    origin = f"{record.queue} {record.offset} {record.timestamp}"
    more = {_TOPIC: topic, _ID: record.message_id, _ORIGIN: origin, _TIMES: str(times + 1)}
    return Appended(record.body, _packed(record, more, when), record.born_timestamp, True)


def dead_letter(record: Record, topic: str, times: int) -> Appended:
    """So that it is among the group's dead letters. Raises MessageTooLarge."""
    more = {
        _DEAD_TOPIC: topic,
        _DEAD_ID: record.message_id,
        _DEAD_QUEUE: str(record.queue),
        _DEAD_OFFSET: str(record.offset),
        _TIMES: str(times),
    }
    return Appended(record.body, _packed(record, more, b""), record.born_timestamp, False)


def shown(record: Record, topic: str, id: int) -> Record:
    """A record of the retry topic as a reader of the topic (its name and id) hands it out."""
    place = f"{record.queue} {record.offset}"
    found = _parsed(record)
    properties = {name: value for name, value in found.properties.items() if name not in OF_RETRIES}
    properties[PLACE] = place
    times = max(found.reconsume_times, 1)
    again = dataclasses.replace(found, topic=topic, flag=id, properties=properties, reconsume_times=times)
    try:
        queue, offset, stored = (int(number) for number in found.properties[_ORIGIN].split(" "))
        host, position = records.parse_message_id(found.properties[_ID])
        of_topic = dataclasses.replace(
            again,
            queue_id=queue,
            queue_offset=offset,
            store_timestamp=stored,
            store_host=host,
            physical_offset=position,
            prepared_transaction_offset=0,
        )
        return Record(records.encode(of_topic))
    except (KeyError, ValueError, UsageError):  # appended by somebody else
        return Record(records.encode(again))


def _parsed(record: Record) -> records.Record:
    reduced: Any = record.__reduce__()  # what pickle takes: the type, and the bytes in the log
    (content,) = reduced[1]
    found = records.scan(content, position=record.physical_offset, checks=records.Checks.TEXT).record
    assert found is not None  # it was read
    return found


def _packed(record: Record, more: dict[str, str], when: bytes) -> bytes:
    """The properties of the message and these."""
    own = {name: value for name, value in _parsed(record).properties.items() if name not in OF_RETRIES}
    told = {**own, **more}
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in told.items()) + len(when)
    if size > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"the message at offset {record.offset} of queue {record.queue} cannot be retried: with what is told of "
            f"that its properties have {size:,} bytes, and {PROPERTIES_BYTES_MAX:,} at most are possible"
        )
    return _core.properties_encode(told) + when
