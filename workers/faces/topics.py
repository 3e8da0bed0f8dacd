"""Topics as a client sees them: logs that are appended to, and read again and again.

Appending is one call into the core (engine/binding/topic_handle.c); this file checks what people give, and comes back
with another handle when the catalog has changed or the attachment is over (AttachmentLost: nothing was submitted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, cast, overload

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm, Position, Record
from warren.engine.catalog import group_topics
from warren.engine.catalog.topics import TopicDeclaration, checked_retention
from warren.engine.errors import TimedOut, TopicNotFound, UsageError
from warren.engine.saying import shown
from warren.workers.client.arguments import checked_seconds, level_of, listed
from warren.workers.client.later import When, later_of
from warren.workers.client.publish import Body, Durability
from warren.workers.client.shared import Place, place_of, shared
from warren.workers.client.told import Key, Properties, Told, plain, plain_each
from warren.workers.faces import topic_groups
from warren.workers.faces.queues import Queue, time_left
from warren.workers.faces.replay import Plan, Replay, Replayed, Where
from warren.workers.faces.topic_halves import LISTED, Half, HalfMessage, half_of
from warren.workers.faces.topic_halves import listed as halves_listed
from warren.workers.faces.topic_holds import Hold
from warren.workers.faces.topic_reader import POLL_S, RECONSUME_TIMES, SESSION_S, Commit, Reader, Start
from warren.workers.faces.topic_reading import ReadResult, TopicReading, named

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.workers.client.client import Client

__all__ = ["Topic", "Position"]

T = TypeVar("T")
P = ParamSpec("P")
_SYNCED = _core.LEVEL_SYNCED


class _Unopened:
    """In the place of a handle: whoever uses it is told to make one."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._refuse

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise AttachmentLost("the topic was not opened yet")


_UNOPENED = cast("_core.TopicHandle", _Unopened())


#: what a queue's calls are called here
_WORDS = {
    **dict.fromkeys(("put", "publish", "send", "write"), "append"),
    **dict.fromkeys(("put_many", "publish_many"), "append_many"),
    **dict.fromkeys(("get", "consume", "get_many"), "read, or reader(group=…)"),
    "browse": "read",
    "purge": "delete, or the retention (`warren topic set`)",
}


def other_words(name: str) -> str:
    """The error for a name that a topic does not have."""
    return f"a topic has no {name!r}" + (f": it is {_WORDS[name]}" if name in _WORDS else "")


class Topic:
    """A topic of the node: a log in queues, each in order. Created by `node.topic(name)`; thread-safe."""

    def __init__(self, client: Client, declared: TopicDeclaration, later: bool = False) -> None:
        """`later`: it is opened when it is used, as the topic that has its name then."""
        self.name = declared.name
        self._client = client
        self._declared = declared
        self._handle = _UNOPENED
        self._reading: TopicReading | None = None
        if not later:
            self._renew()

    def __reduce__(self) -> tuple[Callable[[Place, TopicDeclaration], Topic], tuple[Place, TopicDeclaration]]:
        """Another process that unpickles it attaches by itself when it uses it (docs/python.md)."""
        return _unpickled, (place_of(self._client), self._declared)

    if not TYPE_CHECKING:  # checkers find it

        def __getattr__(self, name):
            """Topics have other words than queues. Raises AttributeError."""
            raise AttributeError(other_words(name))

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}, {self.queues} queues{', compacted' * self.compacted}>"

    @property
    def queues(self) -> int:
        """How many queues it has; they are numbered from 0."""
        return self._declared.queues

    @property
    def compacted(self) -> bool:
        """Whether the newest message of each key alone stays (`node.topic(name, compacted=True)`)."""
        return self._declared.compacted

    def _renew(self) -> None:
        """A handle of the attachment in use, of the topic that has the name now. Raises TopicNotFound, ClosedError."""
        self._handle, self._declared = self._client.topic_handle(self.name)

    # -- appending ----------------------------------------------------------------------------------------------

    @overload
    def append(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: Literal[True] = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Position: ...
    @overload
    def append(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        *,
        wait: Literal[False],
        timeout: float | None = None,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Confirm[Position]: ...
    @overload
    def append(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Position | Confirm[Position]: ...
    def append(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Position | Confirm[Position]:
        """Append one message; returns where it lies when it is as durable as requested. With wait=False, returns a
        Confirm at once, whose result() is the Position.

        `key`: str, or several; messages of one key lie in one queue, in order (`queue_of`), and are found by it. `tag`:
        str, by which readers choose. `properties`: str to str. `queue`: a number; without one the (first) key decides,
        without a key the queues take turns. `durability`: 'none' (accepted), 'written' (survives every process),
        'synced' (on stable storage). Readers see a message when it is as durable as that, and at least written; with
        'none' its position is final only then.

        `delay` (seconds), `at` (a datetime, or milliseconds since 1970) or `delay_level` (1 to 18, as of RocketMQ: 1 s,
        5 s, 10 s, 30 s, 1 min … 2 h): it comes later, 3 days at most. It is confirmed as one that comes at once, and
        is in the topic when its time has come by the clock, with an offset of then. The Position is that of its record
        among those that are to come: `offset` is -1, and nothing is found by `message_id`.

        `timeout` limits the wait for room and confirm together; if it runs out during the confirm (TimedOut), the
        message may still be stored. Without one, wait=True waits without limit, and wait=False at most the node's
        call_timeout for room. Raises UsageError, MessageTooLarge, TopicNotFound, TimedOut, DiskFull, PeerLost,
        SyncFailed; LimitError (more messages would be to come later than delayed_messages_max says).
        """
        level = _SYNCED if durability == "synced" else level_of(durability, True, "this topic")
        later = later_of(delay, at, delay_level)
        told = None if properties is None else plain(properties)
        while True:
            try:
                return self._handle.append(body, key, tag, told, queue, None, later, level, timeout, wait)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()
            except TimedOut as error:
                raise named(error, self.name) from None

    @overload
    def append_many(
        self,
        bodies: Iterable[Body],
        keys: str | Sequence[Key | None] | None = None,
        tags: str | Sequence[str | None] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: Literal[True] = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position]: ...
    @overload
    def append_many(
        self,
        bodies: Iterable[Body],
        keys: str | Sequence[Key | None] | None = None,
        tags: str | Sequence[str | None] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        *,
        wait: Literal[False],
        timeout: float | None = None,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Confirm[list[Position]]: ...
    @overload
    def append_many(
        self,
        bodies: Iterable[Body],
        keys: str | Sequence[Key | None] | None = None,
        tags: str | Sequence[str | None] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position] | Confirm[list[Position]]: ...
    def append_many(
        self,
        bodies: Iterable[Body],
        keys: str | Sequence[Key | None] | None = None,
        tags: str | Sequence[str | None] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position] | Confirm[list[Position]]:
        """Append many messages; returns their positions in the order of `bodies`, or with wait=False one Confirm for
        all. In each queue they keep that order.

        `keys`, `tags`, `properties`: one value for all, or a list or tuple with one for each (of keys: a str, a list of
        str, or None). Without keys and `queue`, all go to one queue, and the next call's to the next. What is wrong
        with one refuses all, before anything is sent.

        Up to 4,096 messages and 256 KiB (in the log) for one queue are appended together, with consecutive offsets, or
        not at all; more are sent in parts of that size. With `delay`, `at` or `delay_level` they come later, one by
        one. Options and errors: as for `append`; after an error in the middle, the first parts may be stored.
        """
        level = level_of(durability, True, "this topic")
        later = later_of(delay, at, delay_level)
        batch = bodies if isinstance(bodies, (list, tuple)) else listed(bodies, "bodies")
        told = Told(keys, tags, plain_each(properties), queue, None, later)
        return self._append_many(batch, told, level, timeout, wait)

    def _append_many(
        self, bodies: Sequence[Body], told: Told, level: int, timeout: float | None, wait: bool
    ) -> list[Position] | Confirm[list[Position]]:
        while True:
            try:
                return self._handle.append_many(bodies, *told, level, timeout, wait)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()
            except TimedOut as error:
                raise named(error, self.name) from None

    @overload
    def append_arrow(
        self,
        data: Any,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: Literal[True] = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position]: ...
    @overload
    def append_arrow(
        self,
        data: Any,
        queue: int | None = None,
        durability: Durability | None = "synced",
        *,
        wait: Literal[False],
        timeout: float | None = None,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> Confirm[list[Position]]: ...
    @overload
    def append_arrow(
        self,
        data: Any,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position] | Confirm[list[Position]]: ...
    def append_arrow(
        self,
        data: Any,
        queue: int | None = None,
        durability: Durability | None = "synced",
        wait: bool = True,
        timeout: float | None = None,
        *,
        delay: float | None = None,
        at: When | None = None,
        delay_level: int | None = None,
    ) -> list[Position] | Confirm[list[Position]]:
        """Append the rows of an Arrow table or record batch; returns what `append_many` returns.

        Columns: `value` (binary or string), and if they are there `key` (string: keys with spaces between them, or list
        of strings), `tag` (string), `queue` (integer), `born_timestamp` (timestamp, or integer of milliseconds since
        1970), and the properties as `headers` or `properties` (map, or list of structs with key and value, of strings).
        What `read_arrow` gives is appended as it was; of its columns `offset`, `timestamp` and `message_id` are left
        alone. Others are refused. A null is nothing, but in `value` it is refused. Rows with different
        born_timestamp are not appended together. `queue`: of all rows, instead of the column. `delay`, `at`,
        `delay_level`: of all rows, as for `append_many`.
        """
        from warren.workers.faces import topic_rows  # here: most programs have no Arrow

        level = level_of(durability, True, "this topic")
        later = later_of(delay, at, delay_level)
        bodies, told = topic_rows.rows_of(data, queue)
        return self._append_many(bodies, told._replace(later=later), level, timeout, wait)

    def queue_of(self, key: Key) -> int:
        """The queue that messages with this key go to: |h| mod queues, h the hash of the first key in Java's
        String.hashCode, as RocketMQ's SelectMessageQueueByHash has it. It stays the same for ever.
        """
        while True:
            try:
                return self._handle.queue_of(key)
            except AttachmentLost:
                self._renew()

    # -- reading ------------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[Concatenate[TopicReading, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Ask a reader of the topic that had the name when it was read first. When that is gone, TopicNotFound says so
        once, for its offsets mean nothing in one that has the name afterwards.
        """
        reading = self._reading
        if reading is None:
            declared = self._client.catalog().topic(self.name)
            reading = self._reading = TopicReading(self._client, declared)
        try:
            return call(reading, *args, **named)
        except TopicNotFound:
            self._reading = None
            raise

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
        size); with `tag` those that have it, or one of several. At the end of the queue it waits for `timeout` seconds
        (None: without end); beyond it, or below its first message, the answer comes at once (ReadStatus). It asks no
        server, and takes nothing away.

        Raises CorruptRecord (with damage="skip" it goes on behind it), TopicNotFound, UsageError, PeerLost,
        ClosedError.
        """
        return self._ask(TopicReading.read, queue, offset, max, max_bytes, tag, timeout, damage=damage)

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
        value, timestamp, born_timestamp, message_id, properties; none for the queue. What follows begins behind the
        last offset of the batch. `damage`: as of `read`.

        Raises DataLoss (messages from `start` on are not there any more), CorruptRecord, TopicNotFound, UsageError.
        """
        return self._ask(TopicReading.read_arrow, queue, start, end, max_bytes, damage=damage)

    def offsets(self, queue: int = 0) -> tuple[int, int]:
        """(the first offset of a queue that is there, behind the last that a reader sees)."""
        return self._ask(TopicReading.offsets, queue)

    def offset_at(self, queue: int, when: datetime | float, boundary: str = "lower") -> int | None:
        """The offset of a time (a datetime, or milliseconds since 1970), by when messages were stored. "lower": of the
        first message that is so late or later, behind the last if there is none; "upper": of the last one that is so
        late or earlier, None if there is none.
        """
        return self._ask(TopicReading.offset_at, queue, when, boundary)

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
        `until` (each a datetime, or milliseconds since 1970). `damage`: "skip" passes by what is damaged, which else
        raises CorruptRecord.
        """
        return self._ask(TopicReading.find, key, since, until, limit, damage=damage)

    def find_id(self, message_id: str) -> Record | None:
        """The message with an id (32 hexadecimal digits), or else the newest whose property UNIQ_KEY, the id that
        RocketMQ's producers give, is this; None: it is not there (any more), or another topic's. Raises UsageError (not
        an id, of 32 digits or RocketMQ's 56), CorruptRecord, and as `read`.
        """
        return self._ask(TopicReading.find_id, message_id)

    # -- groups -------------------------------------------------------------------------------------------------

    def reader(
        self,
        group: str | None = None,
        start: Start = "earliest",
        tags: str | Sequence[str] | None = None,
        prefetch: int = 1000,
        commit: Commit = "auto",
        on_data_loss: Literal["error", "skip"] = "error",
        *,
        damage: Literal["error", "skip"] = "error",
        max_reconsume_times: int = RECONSUME_TIMES,
        session_timeout: float | None = SESSION_S,
        max_poll_interval: float | None = POLL_S,
    ) -> Reader:
        """A reader of all queues, one message after the other: an iterator, and a context manager. The readers with the
        same `group` (up to 255 of A-Z a-z 0-9 _ % | . -) share the queues, and what they commit is kept; without one it
        reads all, and keeps nothing.

        `start`: where the group has committed nothing: "earliest", "latest", or a time (a datetime, or milliseconds
        since 1970). `tags`: only messages with this tag, or one of several. `prefetch`: messages that are read ahead at
        most. `commit`: "auto" commits, with calls that ask for more and at the end, what was handed out before the last
        such call; "manual" what `reader.commit()` says. `on_data_loss`: messages were gone before they were read: raise
        DataLoss, or "skip" them and count them (`reader.skipped`). `damage`: as of `read`. `max_reconsume_times`: so
        often a message comes again that this reader gives back with `reader.retry`, before it is a dead letter.
        `session_timeout`: seconds from the last sign of life of the reader's process (a thread of its own gives one
        each quarter of them, and every 3 s at least), and `max_poll_interval`: for which the program may do without a
        call, before its queues go to others of the group; its next call raises SessionExpired. None: without end.

        Raises TopicNotFound, UsageError, TimedOut, PeerLost, ClosedError.
        """
        told = (group, start, tags, prefetch, commit, on_data_loss, damage, max_reconsume_times)
        limits = (session_timeout, max_poll_interval)
        return Reader(self._client, self.name, *told, *limits)

    def groups(self) -> list[dict[str, Any]]:
        """Its groups of readers: `name`, `members` (how many), `lag` (offsets that are not committed, also of messages
        that were removed). Raises PeerLost, TimedOut, TopicNotFound, ClosedError.
        """
        return self._ask(topic_groups.listed)

    def group(self, group: str) -> dict[str, Any]:
        """One of them: `members` (`client`, `pid`, `slot`, `number` of each), `queues` (of each `queue`, its `owner` by
        its place in `members`, or None, `committed`, or None, `min`, `max` and `lag`), `lag` of all, `generation`.
        Raises UsageError (there is none of that name), and as `groups`.
        """
        return self._ask(topic_groups.described, group)

    def seek_group(
        self,
        group: str,
        where: int | datetime | Literal["earliest", "latest"],
        queue: int | None = None,
        *,
        force: bool = False,
    ) -> dict[int, int]:
        """Set what a group has committed, of all queues or of one: "earliest", "latest", the first message stored at a
        datetime or later, or (of one queue) an offset; returns the offsets by queue, when they are durable. A group
        that does not exist is made.

        Raises UsageError: it has members, who would go on where they are. With `force` they are fenced: what they have
        at hand does not count, and they go on there. And as `groups`.
        """
        return self._ask(topic_groups.seek, group, where, queue, force)

    def dead_letters(self, group: str) -> Topic:
        """The topic of the messages that a group has given up (`reader.retry`), which is read as any topic: each has
        the properties that it had, and DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_QUEUE, DLQ_ORIGIN_OFFSET and DLQ_ORIGIN_MESSAGE_ID.
        Raises TopicNotFound: there are none.
        """
        name = group_topics.name_of("dead", self.name, topic_groups.checked_name(group))
        declared = self._client.catalog().topics.get(name)
        if declared is None:
            raise TopicNotFound(f"group {shown(group)} has no dead letters: there is no topic {name!r}")
        return Topic(self._client, declared)

    def delete_group(self, group: str) -> None:
        """Forget a group and what it has committed, with its messages that would come again and its dead letters.
        Raises UsageError (it has members; there is none of that name), and as `groups`.
        """
        return self._ask(topic_groups.delete, group)

    # -- retention ----------------------------------------------------------------------------------------------

    def set(
        self,
        retention_s: float | Literal["keep"] | None = "keep",
        retention_bytes: int | Literal["keep"] | None = "keep",
    ) -> None:
        """Give the topic another retention, as of node.topic; None: none, "keep": what it has. It counts for the
        messages that are there, too. Raises TopicNotFound, UsageError.
        """
        given = {"retention_s": retention_s, "retention_bytes": retention_bytes}
        told = {name: value for name, value in given.items() if value != "keep"}
        checked_retention(self.name, told.get("retention_s"), told.get("retention_bytes"))  # type: ignore[arg-type]
        self._client.declare("set_topic", name=self.name, **told)
        self._client.router()

    def hold(self, queue: int, start: int, end: int | None = None) -> Hold:
        """Keep the messages of a queue from offset `start` on and below `end` (None: behind the last one) from
        retention, until Hold.release, or the end of its `with`. With them all stay that were appended later, of all
        topics. It ends with this process, its attachment, or when the disk is full (setting topics_disk_full); who
        reads the range then gets DataLoss.

        Raises DataLoss (some are gone already), UsageError (some are not there yet), TopicNotFound.
        """
        return self._ask(TopicReading.hold, queue, start, end)

    # -- the rest -----------------------------------------------------------------------------------------------

    def replay(
        self,
        queue: str | Queue,
        start: Where = "earliest",
        end: Where = "latest",
        tags: str | Sequence[str] | None = None,
        key: str | None = None,
        rate: float | None = None,
        durability: Durability | None = None,
        timeout: float | None = None,
        progress: Callable[[Replayed], object] | None = None,
    ) -> Replayed:
        """Put messages of the topic into a queue, in the order of the log: from `start` on, and before `end` (each
        "earliest", "latest", a time, or a dict of offsets by queue: queues that that of `start` does not name are left
        out, those that that of `end` does not name go to their end). With `tags` those that have one of them, with
        `key` those that have it; at most `rate` messages a second.

        Each becomes the message that it was when it was published, with the header `x-topic` (docs/topics.md). It
        returns when the queue has all of them, as durable as `durability` says (as for put). `progress` is called after
        each part with what was done so far; its `next_offsets`, given as `start`, go on there. `timeout` is for each
        part. Raises what put raises; CorruptRecord, TopicNotFound, QueueNotFound.
        """
        client = self._client
        checked_seconds(timeout)
        if progress is not None and not callable(progress):
            raise UsageError(f"progress must be a function, or None, not {shown(progress)}")
        if not isinstance(queue, str | Queue):
            raise UsageError(f"a replay goes into a queue, or the name of one, not {shown(queue)}")
        declared = client.catalog().queue(queue if isinstance(queue, str) else queue.name)
        client.catalog().check_owner(declared, client.epoch)
        plan = Plan.of(self, start, end)
        made = Replay(client, self, declared, plan, tags=tags, key=key, rate=rate, durability=durability)
        return made.run(progress, timeout)

    def stats(self) -> dict[str, int]:
        """`queues`: how many; `messages`: how many a reader sees; `appended`: the sum of the queues' offsets, of those
        that are gone, too; `delayed`: how many are to come later; `halves`: half messages that are neither committed
        nor rolled back.
        """
        counted = [self._ask(TopicReading.counted, queue) for queue in range(self.queues)]
        return {
            "queues": len(counted),
            "delayed": self._ask(TopicReading.delayed),
            "halves": self._ask(TopicReading.halves),
            "messages": sum(messages for _first, _end, messages in counted),
            "appended": sum(end for _first, end, _messages in counted),
        }

    def delete(self) -> None:
        """Delete the topic with its messages, and what its groups have of them: nobody finds them any more, also in a
        new topic of that name. Raises TopicNotFound.
        """
        self._client.declare("delete_topic", name=self.name)
        self._client.router()

    # -- half messages ------------------------------------------------------------------------------------------

    def prepare(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> Half:
        """A half message: on stable storage when this returns, and seen by nobody until `half.commit()`, which appends
        it; `half.rollback()` drops it. With `with` it is committed at the end of the block, or rolled back by an error.

        Whoever leaves one behind, because it dies or says nothing, is answered for by a client that opened the topic
        with on_check (node.topic); `topic.half(half.message_id)` finishes it from any process.

        Arguments and errors: as for `append`. LimitError: more would be pending than half_messages_max says.
        """
        told = None if properties is None else plain(properties)
        while True:
            handle = self._handle
            try:
                place = handle.prepare(body, key, tag, told, queue, None, None, _SYNCED, timeout, True)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()
            except TimedOut as error:
                raise named(error, self.name) from None
            else:
                assert isinstance(place, Position)
                return Half(self._client, self.name, handle.topic, place.message_id, place.physical_offset)

    def half(self, message_id: str) -> Half:
        """The half message with an id, to be committed or rolled back: one of another process, or of this program
        before it was started anew. What is not there says its `commit()` or `rollback()`. Raises UsageError (it is no
        id of a half message), TopicNotFound.
        """
        return half_of(self._client, self.name, self._client.catalog().topic(self.name).id, message_id)

    def halves(self, limit: int = LISTED, timeout: float | EllipsisType | None = ...) -> list[HalfMessage]:
        """Those that are neither committed nor rolled back, in the order in which they were prepared, `limit` at most.
        `timeout`: seconds, None: without limit; without one the node's call_timeout. Raises TimedOut, PeerLost,
        TopicNotFound, ClosedError.
        """
        return self._ask(halves_listed, limit, timeout)


def _unpickled(place: Place, declared: TopicDeclaration) -> Topic:
    return Topic(shared(place), declared, later=True)


# -- for other faces ------------------------------------------------------------------------------------------------


def reader_of(
    topic: Topic,
    group: str | None,
    start: Start,
    tags: str | Sequence[str] | None,
    prefetch: int,
    commit: Commit,
    on_data_loss: str,
    damage: str,
    max_reconsume_times: int,
    session_timeout: float | None,
    max_poll_interval: float | None,
) -> Reader:
    """A reader as `topic.reader` makes it, which joins its group with its first call."""
    told = (group, start, tags, prefetch, commit, on_data_loss, damage, max_reconsume_times)
    limits = (session_timeout, max_poll_interval)
    return Reader(topic._client, topic.name, *told, *limits, join=False)


def turn_of(topic: Topic) -> int:
    """The queue that the next messages without a key go to."""
    while True:
        try:
            return topic._handle.turn()
        except AttachmentLost:
            topic._renew()


def append_row(topic: Topic, body: Body, told: Told, level: int) -> Confirm[Position]:
    """Submit a message without waiting for room. Raises TimedOut when there is none."""
    while True:
        try:
            return cast("Confirm[Position]", topic._handle.append(body, *told, level, 0.0, False))
        except AttachmentLost:
            topic._renew()


def append_rows(topic: Topic, bodies: Sequence[Body], told: Told, level: int) -> Confirm[list[Position]]:
    """The same of many."""
    return cast("Confirm[list[Position]]", topic._append_many(bodies, told, level, 0.0, False))


#: values, keys, tags, headers, queues, born, delays: as the core takes them
Columns = tuple[Any, Any, Any, Any, Any, Any, Any]


def append_columns(
    topic: Topic, rows: int, columns: Columns, level: int, timeout: float | None, numbers: Any
) -> Confirm[list[Position]]:
    """Submit rows of columns, as the core takes them (workers/faces/row_publish.py)."""
    while True:
        try:
            made = topic._handle.append_rows(rows, *columns, level, timeout, False, numbers)
        except AttachmentLost as lost:
            timeout = time_left(lost, timeout)
            topic._renew()
        except TimedOut as error:
            raise named(error, topic.name) from None
        else:
            return cast("Confirm[list[Position]]", made)


def check_rows(topic: Topic, bodies: Sequence[Body], told: Told) -> None:
    """Look at all messages, as an append of them does. Raises what is wrong."""
    while True:
        try:
            return topic._handle.check_many(bodies, *told)
        except AttachmentLost:
            topic._renew()
