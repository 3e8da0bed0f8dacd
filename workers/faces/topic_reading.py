"""Reading a topic, in any process, without asking a server: ranges of a queue, times, keys, ids.

A read answers by a status (ReadStatus) where there is nothing to give, and says where the next one begins. What does
not hold the bytes that were written to it is a CorruptRecord, or with damage="skip" passed by, and named in the answer.

What was confirmed before a call is seen by it: the core waits until that is shown, mostly some microseconds. When the
worker was killed in between, or one has served and gone that this process never saw, the next one shows it: `_ask` asks
that one, for CATCH_UP_S at most.

A topic that was deleted, and perhaps made again, is TopicNotFound: what is there now is another one. While the topic
worker is restarted the log is read as far as it went. A start may make derived files again: what looks damaged
meanwhile is asked of the next worker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar

from warren.engine import _core
from warren.engine._core import AttachmentLost, Record
from warren.engine.errors import CorruptRecord, DataLoss, Error, PeerLost, UsageError
from warren.engine.kernel.atomic_file import explain
from warren.engine.saying import shown
from warren.workers.client.arguments import checked_count, checked_seconds, listed, milliseconds
from warren.workers.client.attachment import REGION_WAIT_S, SERVER_FAILED, SERVER_RECOVERING, given_up
from warren.workers.faces.topic_holds import Hold, holds_of, settle
from warren.workers.faces.topic_scans import (
    DAMAGED,
    END,
    TAGS_MAX,
    TIME_MAX,
    TIME_MIN,
    ReadStatus,
    TopicScans,
    deleted,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from warren.engine.catalog.catalog import Catalog
    from warren.engine.catalog.topics import TopicDeclaration
    from warren.workers.client.attachment import Attachment
    from warren.workers.client.client import Client

T = TypeVar("T")
E = TypeVar("E", bound=Error)
P = ParamSpec("P")

#: how long a thread sleeps before it looks whether the worker was restarted, or the client closed
SLICE_S = 0.1
#: how long a call waits for what was confirmed before it, while the worker is restarted or stands still
CATCH_UP_S = 10.0
RECORDS_MAX = 1 << 24
#: property with the id that a producer of RocketMQ gives
UNIQUE_KEY = "UNIQ_KEY"
_UNIQUE = re.compile(r"[0-9A-Fa-f]{32}")
BYTES_MAX = 1 << 30
#: there may be something later
_NOTHING_YET = (
    ReadStatus.NO_MATCHED_MESSAGE,
    ReadStatus.OFFSET_OVERFLOW_ONE,
    ReadStatus.NO_MESSAGE_IN_QUEUE,
    ReadStatus.OFFSET_FOUND_NULL,
)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a read gives. `status`: why there is nothing, if so; `next_offset`: where the next one begins; `min_offset`,
    `max_offset`: the first message of the queue, and behind the last; `damaged`: what was passed by (damage="skip").
    """

    status: ReadStatus
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: tuple[CorruptRecord, ...] = ()


class TopicReading(TopicScans):
    """Reads one topic for a client; safe for threads and for fork."""

    def __init__(self, client: Client, topic: TopicDeclaration) -> None:
        super().__init__(topic)
        self.client = client

    def _directory(self) -> Path:
        return self.client.directory.path

    # -- ranges -------------------------------------------------------------------------------------------------

    def read(
        self,
        queue: int = 0,
        offset: int = 0,
        max: int = 32,
        max_bytes: int = 1 << 20,
        tag: str | Sequence[str] | None = None,
        timeout: float | None = 0,
        *,
        damage: str = "error",
    ) -> ReadResult:
        """Up to `max` messages of a queue from an offset on, of `max_bytes` of log together (one comes whatever its
        size); with `tag` those that have it, or one of several. Where there is none yet it waits for `timeout` seconds
        (None: without end).

        Raises CorruptRecord (with damage="skip" it goes on behind it), TopicNotFound, UsageError, PeerLost,
        ClosedError.
        """
        queue = self._queue(queue)
        at = checked_count(offset, "offset", 0, TIME_MAX)
        most = checked_count(max, "max", 1, RECORDS_MAX)
        most_bytes = checked_count(max_bytes, "max_bytes", 1, BYTES_MAX)
        tags, strict = checked_tags(tag), checked_damage(damage)
        checked_seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        damaged: list[CorruptRecord] = []
        while True:
            answer = self._ask(_core.TopicReader.read, queue, at, END, most, most_bytes, tags)
            code, following, low, high, records, found = answer
            if code == DAMAGED:
                damaged.append(self._corrupt(found, queue, following, strict))
                at = following
                continue
            status = ReadStatus(code)
            if status in _NOTHING_YET and timeout != 0:
                at = following
                if at < high or self._wait(queue, at, deadline):
                    continue
            if self.declared.compacted and low:
                if status == ReadStatus.OFFSET_FOUND_NULL and at < following < high:
                    at = following  # below the minimum nothing is left: the log has more
                    continue
                low = self.offsets(queue)[0]
            return ReadResult(status, records, following, low, high, tuple(damaged))

    def read_arrow(
        self,
        queue: int = 0,
        start: int = 0,
        end: int | None = None,
        max_bytes: int = 32 << 20,
        *,
        damage: str = "error",
    ) -> pa.RecordBatch:
        """The messages of a queue from offset `start` on and below `end` (None: all that are there), as far as
        `max_bytes` of log go: at least one, if there is one. Columns: offset, key (several: separated by spaces), tag,
        value, timestamp, born_timestamp, message_id, properties. What follows begins behind the last offset of the
        batch.

        Raises DataLoss (messages from `start` on are not there any more), CorruptRecord, TopicNotFound, UsageError.
        """
        for batch in self.arrow_batches(queue, start, end, max_bytes, damage=damage):
            return batch
        from warren.workers.faces.topic_arrow import EMPTY

        return EMPTY

    def arrow_batches(
        self,
        queue: int = 0,
        start: int = 0,
        end: int | None = None,
        max_bytes: int = 32 << 20,
        *,
        damage: str = "error",
    ) -> Iterator[pa.RecordBatch]:
        """The same range whole, in batches."""
        queue = self._queue(queue)
        at = checked_count(start, "start", 0, TIME_MAX)
        stop = END if end is None else checked_count(end, "end", 0, TIME_MAX)
        most_bytes = checked_count(max_bytes, "max_bytes", 1, BYTES_MAX)
        strict = checked_damage(damage)
        return self._batches(queue, at, stop, most_bytes, strict)

    def _batches(self, queue: int, at: int, stop: int, most_bytes: int, strict: bool) -> Iterator[pa.RecordBatch]:
        from warren.workers.faces.topic_arrow import batch

        self.check_there(queue)  # so that an empty range of a deleted topic is an error, too
        while at < stop:
            answer = self._ask(_core.TopicReader.columns, queue, at, stop, RECORDS_MAX, most_bytes)
            code, following, low, high, columns, found = answer
            if code == DAMAGED:
                self._corrupt(found, queue, following, strict)
            elif code in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.MESSAGE_WAS_REMOVING):
                raise data_loss(self.declared.name, queue, at, low if low > at else following)
            elif code == ReadStatus.FOUND:
                yield batch(columns)
            elif code != ReadStatus.OFFSET_FOUND_NULL:
                return
            at = following
            if at >= high:
                return

    # -- times, keys, ids ---------------------------------------------------------------------------------------

    def delayed(self) -> int:
        """How many messages are to come later."""
        return self._ask(_core.TopicReader.delayed)

    def halves(self) -> int:
        """How many half messages are neither committed nor rolled back."""
        return self._ask(_core.TopicReader.halves)

    def half(self, position: int, size: int) -> Record | None:
        """The record of a half message, where the worker says that it lies; None: it is not there."""
        found: Record | Literal[False] = self._ask(_core.TopicReader.half, position, size)
        return found or None

    def find(
        self,
        key: str,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        limit: int = 64,
        *,
        damage: str = "error",
    ) -> list[Record]:
        """The newest `limit` messages with a key, of all queues, the newest first; of those stored from `since` to
        `until`.

        Raises CorruptRecord where a message or a file of the index is damaged (damage="skip": it is passed by).
        """
        wanted = _text(key, "key")
        if not wanted or b" " in wanted:
            raise UsageError(f"key must not be empty, and have no spaces, which separate keys, not {shown(key)}")
        first = TIME_MIN if since is None else milliseconds(since, "since", up=True)
        last = TIME_MAX if until is None else milliseconds(until, "until", up=False)
        most, strict = checked_count(limit, "limit", 1, RECORDS_MAX), checked_damage(damage)
        self.check_there()
        records, found = self._ask(_core.TopicReader.find, wanted, first, last, most, strict)
        if strict and found is not None:
            raise self._named(found, "or give damage='skip', and what is damaged is passed by")
        return records

    def find_id(self, message_id: str) -> Record | None:
        """The message with an id, or with this UNIQ_KEY, the newest one; None: it is not there (any more), or another
        topic's.
        """
        _text(message_id, "message_id")
        self.check_there()
        try:
            records, found = self._ask(_core.TopicReader.find_id, message_id)
        except ValueError as error:
            if str(error) != "message id":
                raise
            if not _UNIQUE.fullmatch(message_id):
                what = f"{shown(message_id)} is not a message id: one has 32 or 56 hexadecimal digits"
                raise UsageError(what) from None
            records, found = [], None  # no position is so high: an id of a producer alone
        if found is not None:
            raise self._named(found, "the message is lost, others are read")
        if records:
            return records[0]
        return next((one for one in self.find(message_id) if one.properties.get(UNIQUE_KEY) == message_id), None)

    # -- holds --------------------------------------------------------------------------------------------------

    def hold(self, queue: int, start: int, end: int | None = None) -> Hold:
        """Keep a range from retention: as Topic.hold."""
        queue = self._queue(queue)
        first, stop = checked_count(start, "start", 0, TIME_MAX), end
        low, high = self.offsets(queue)
        stop = high if stop is None else checked_count(stop, "end", 0, TIME_MAX)
        if stop > high or first > stop:
            raise UsageError(f"queue {queue} ends at offset {high}: messages from {first} to {stop} cannot be held")
        if first < low and not self.declared.compacted:
            raise data_loss(self.declared.name, queue, first, low)
        first = max(first, low)
        position = self._ask(_core.TopicReader.position_of, queue, first) if first < stop else -1
        holds = holds_of(self.client.attachment())
        number = holds.add(position) if position >= 0 else 0  # -1: nothing is there to be held
        try:
            self._settle_hold(queue, first, position)
        except BaseException:
            holds.drop(number)
            raise
        return Hold(holds, number, queue, first, stop)

    def _settle_hold(self, queue: int, first: int, position: int) -> None:
        low = self._ask(_settled, queue, position)
        if low > first and not self.declared.compacted:
            raise data_loss(self.declared.name, queue, first, low)

    # -- waiting ------------------------------------------------------------------------------------------------

    def wait(self, queue: int, offset: int, timeout: float | None = None) -> bool:
        """Wait until a message at this offset, or behind it, can be read; False: `timeout` seconds were not enough."""
        queue = self._queue(queue)
        at = checked_count(offset, "offset", 0, TIME_MAX)
        checked_seconds(timeout)
        return self._wait(queue, at, None if timeout is None else time.monotonic() + timeout)

    def _wait(self, queue: int, seen: int, deadline: float | None) -> bool:
        while True:
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if self._ask(_core.TopicReader.wait, queue, seen, left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self.check_served()

    def wait_any(
        self, queues: Sequence[int], seen: Sequence[int], group: tuple[int, int], timeout: float
    ) -> int | None:
        """Wait until one of these queues ends elsewhere than where it was seen to end: its place in `queues`; or until
        a group has another stamp, or `timeout` seconds are over: None. `group`: row and stamp (group_member.py).
        """
        found = self._ask_for(max(timeout, 0.0), _core.TopicReader.wait_any, queues, seen, *group, timeout)
        return None if found < 0 else found

    def check_served(self) -> None:
        """Raises PeerLost when nobody will append any more before the node is started again."""
        attachment = self.client.attachment()
        superblock = attachment.superblock
        try:
            failed = superblock.server_get(superblock.topic_server, "state") == SERVER_FAILED
        except ValueError:  # of memory that another thread has just let go
            if not attachment.core.over:
                raise
            return
        if failed:
            raise given_up(attachment.directory, superblock.role_of(superblock.topic_server))
        if attachment.forsaken():
            attachment.lose()  # the next look is at the node that is there now
        elif attachment.deserted():
            raise PeerLost(f"no process of the node of {attachment.directory.path} is alive: start it again")

    def _is_starting(self, attachment: Attachment) -> bool:
        superblock = attachment.superblock
        return superblock.server_get(superblock.topic_server, "state") == SERVER_RECOVERING

    def _is_served(self) -> bool:
        try:
            self.check_served()
        except PeerLost:
            return False
        return True

    # -- the core -----------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[Concatenate[_core.TopicReader, P], T | None], *args: P.args, **names: P.kwargs) -> T:
        """The answer of a reader of the present incarnation. None of it says that there is no such queue there."""
        return self._ask_for(CATCH_UP_S, call, *args, **names)

    def _ask_for(
        self,
        catch_up_s: float,
        call: Callable[Concatenate[_core.TopicReader, P], T | None],
        *args: P.args,
        **names: P.kwargs,
    ) -> T:
        """The same; what was confirmed before is waited for so long."""
        deadline = until = 0.0
        while True:
            attachment = self.client.attachment()
            self._check_not_deleted(self.client.router().catalog)  # the worker may show its rows for a moment still
            try:
                place = attachment.topics()
                reader = place.take(self.declared)
                try:
                    answer = call(reader, *args, **names)
                    behind = reader.behind or place.past
                finally:
                    place.give(self.declared, reader)
                if answer is not None and not behind and not _is_damage(answer):
                    return answer
                # Looked at first: who has ended a start has shown its regions before.
                starting = self._is_starting(attachment)
                if attachment.topics() is not place:
                    continue  # of a worker of the past, which knew less, or whose files have gone
                until = until or time.monotonic() + catch_up_s
                if behind and time.monotonic() < until and self._is_served():
                    if place.past:
                        time.sleep(0.002)  # the core waits for what this worker has not shown, and for no other's
                    continue
                if starting and _is_damage(answer):
                    if time.monotonic() >= until:
                        raise PeerLost("the topic worker starts, and makes files again: try again later")
                    time.sleep(0.002)
                    continue
                if answer is not None:
                    if behind and attachment.forsaken():
                        attachment.lose()
                        continue
                    if behind and not _has_records(answer) and attachment.deserted():
                        raise PeerLost(
                            f"no process of the node of {attachment.directory.path} is alive: what it confirmed last "
                            f"can only be seen in topic {self.declared.name!r} when it is started again"
                        )
                    return answer
            except (OSError, ValueError, AttachmentLost) as error:
                if attachment.core.over:
                    continue  # another thread has ended it meanwhile: its memory and its descriptors are gone
                if isinstance(error, Error) or not isinstance(error, OSError):
                    raise
                raise explain(error, f"cannot read topic {self.declared.name!r}") from error
            deadline = self._check_declared(deadline)

    def _check_declared(self, deadline: float) -> float:
        """A topic whose worker shows no row for it: deleted, or the worker has not come so far."""
        self._check_not_deleted(self.client.catalog())
        now = time.monotonic()
        if deadline and now > deadline:
            raise PeerLost(f"the topic worker does not know of topic {self.declared.name!r} yet: try again")
        time.sleep(0.002)
        return deadline or now + REGION_WAIT_S

    def _check_not_deleted(self, catalog: Catalog) -> None:
        name = self.declared.name
        if self.declared.id not in catalog.topics_by_id:
            raise deleted(name)

    def reach(self, queue: int, end: int, timeout: float) -> None:
        """Do nothing: what was there is seen by each call, or is not there any more."""

    def check_there(self, queue: int = 0) -> None:
        """Not all answers of the core say that the topic is gone. Raises TopicNotFound."""
        self._ask(_core.TopicReader.wait, queue, 0, 0.0)


def _settled(reader: _core.TopicReader, queue: int, position: int) -> int | None:
    """The first offset of a queue, when retention has seen the hold of a position (-1: none). None: no such queue."""
    if position >= 0:
        settle(reader, position)
    bounds = reader.bounds(queue)
    return None if bounds is None else bounds[0]


def named(error: E, topic: str) -> E:
    """The same error, with the name of the topic."""
    begin = f"topic {topic!r}: "
    return error if str(error).startswith(begin) else type(error)(f"{begin}{error}")


def data_loss(topic: str, queue: int, wanted: int, minimum: int) -> DataLoss:
    """The error that says that messages from offset `wanted` on are gone, and `minimum` is the first that is there."""
    error = DataLoss(
        f"topic {topic!r}, queue {queue}: offset {wanted} was asked for, and the first message that is still there has "
        f"offset {minimum}: begin there, or keep messages for longer (retention_s, retention_bytes)"
    )
    error.queue, error.wanted, error.minimum = queue, wanted, minimum
    return error


def _is_damage(answer: object) -> bool:
    """Whether an answer of the core names damage, which it does last."""
    return isinstance(answer, tuple) and isinstance(answer[-1], tuple)


def _has_records(answer: object) -> bool:
    """Whether an answer is one of `read`, and has messages: it says nothing of those behind them."""
    return isinstance(answer, tuple) and len(answer) == 6 and isinstance(answer[4], list) and bool(answer[4])


def checked_damage(damage: object) -> bool:
    if not isinstance(damage, str) or damage not in ("error", "skip"):
        raise UsageError(f"damage must be 'error' or 'skip', not {shown(damage)}")
    return damage == "error"


def _text(text: object, what: str) -> bytes:
    """The bytes of a text. Raises UsageError."""
    try:
        if isinstance(text, str):
            return text.encode()
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{what} must be a str that UTF-8 can hold, not {shown(text)}")


def checked_tags(tag: str | Sequence[str] | None) -> tuple[bytes, ...]:
    if tag is None:
        return ()
    wanted = [tag] if isinstance(tag, str) else listed(tag, "tag")
    if not 0 < len(wanted) <= TAGS_MAX:
        raise UsageError(f"tag must be 1 to {TAGS_MAX} tags, or None for all messages, not {len(wanted)}")
    found = tuple(_text(one, "tag") for one in wanted)
    if not all(found):
        raise UsageError(f"tag must not be empty: None is for all messages, not {shown(tag)}")
    return found
