"""A topic in an event loop: warren.Topic, awaited.

An append is handed over in the loop when there is room for it, and its confirm awaited; many tasks share one fsync.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from warren.engine import _core
from warren.engine._core import Position, Record
from warren.engine.errors import CorruptRecord, TimedOut
from warren.workers.client.arguments import checked_flag, level_of, listed
from warren.workers.client.later import When, later_of
from warren.workers.client.publish import Durability
from warren.workers.client.told import Key, Properties, Told, plain, plain_each
from warren.workers.faces import topics
from warren.workers.faces.aio.base import Body, deadline_of, is_late, size_of, time_left
from warren.workers.faces.aio.half import Half
from warren.workers.faces.aio.loop import Confirm, Loop
from warren.workers.faces.aio.queue import Queue
from warren.workers.faces.aio.reader import Reader
from warren.workers.faces.replay import Replayed, Where
from warren.workers.faces.topic_halves import LISTED, HalfMessage
from warren.workers.faces.topic_holds import Hold
from warren.workers.faces.topic_reader import POLL_S, RECONSUME_TIMES, SESSION_S, Commit, Start
from warren.workers.faces.topic_reading import ReadResult, named
from warren.workers.faces.topic_scans import ReadStatus
from warren.workers.faces.topics import append_row, append_rows, check_rows, reader_of, turn_of

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")

#: messages of one part of a batch, and its share of the arena; what is told of a message takes so many bytes, mostly
PART = 4096
ARENA_SHARE = 4
TOLD = 128
#: of a read: there may be something later
NOTHING_YET = (
    ReadStatus.NO_MATCHED_MESSAGE,
    ReadStatus.OFFSET_OVERFLOW_ONE,
    ReadStatus.NO_MESSAGE_IN_QUEUE,
    ReadStatus.OFFSET_FOUND_NULL,
)
#: how often who waits for a message to read looks for one: first and at most
LOOK_FIRST_S, LOOK_S = 0.001, 0.02


class Topic:
    """A topic of the node. Created by `await node.topic(name)`; any number of tasks can use it."""

    def __init__(self, loop: Loop, topic: topics.Topic) -> None:
        self._loop = loop
        self._topic = topic

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a topic of warren.aio belongs to its event loop: give another process the node's directory and the "
            "topic's name, and use warren.aio.attach there"
        )

    if not TYPE_CHECKING:  # checkers find it

        def __getattr__(self, name):
            """Topics have other words than queues. Raises AttributeError."""
            raise AttributeError(topics.other_words(name))

    def __repr__(self) -> str:
        return f"<aio.Topic {self.name!r}, {self.queues} queues{', compacted' * self.compacted}>"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def queues(self) -> int:
        """How many queues it has; they are numbered from 0."""
        return self._topic.queues

    @property
    def compacted(self) -> bool:
        """Whether the newest message of each key alone stays (`node.topic(name, compacted=True)`)."""
        return self._topic.compacted

    @overload
    async def append(
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
    async def append(
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
    async def append(
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
    async def append(
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
        """Append one message: as warren.Topic.append. With wait=False it returns a Confirm to await, as soon as there
        was room. If it is cancelled while it waits for the confirm, the message may be stored.
        """
        checked_flag(wait, "wait")
        level = level_of(durability, True, "this topic")
        later = later_of(delay, at, delay_level)
        told = Told(key, tag, None if properties is None else plain(properties), queue, None, later)
        deadline = await self._begin(timeout)
        send = functools.partial(append_row, self._topic, body, told, level)
        with self._naming():
            part = await self._submit(send, (1, size_of(body)), deadline, not wait)
            return await self._loop.appended(Confirm(self._loop, [(0, part)], join=_only), wait, deadline)

    @overload
    async def append_many(
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
    async def append_many(
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
    async def append_many(
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
    async def append_many(
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
        """Append many messages: as warren.Topic.append_many. What does not fit into a quarter of the arena is sent in
        parts; those of other tasks may come in between. After a TimedOut for lack of room, the first may be stored.
        """
        checked_flag(wait, "wait")
        level = level_of(durability, True, "this topic")
        told = Told(keys, tags, plain_each(properties), queue, None, later_of(delay, at, delay_level))
        return await self._append_many(listed(bodies, "bodies"), told, level, wait, timeout)

    async def _append_many(
        self, bodies: Sequence[Body], told: Told, level: int, wait: bool, timeout: float | None
    ) -> list[Position] | Confirm[list[Position]]:
        deadline = await self._begin(timeout)
        if told.keys is None and told.queues is None:
            told = told._replace(queues=turn_of(self._topic))  # of all parts
        parts = self._cut(bodies)
        if len(parts) > 1:
            check_rows(self._topic, bodies, told)
        confirms: list[tuple[int, _core.Confirm[list[Position]]]] = []
        for start, end, size in parts:
            send = functools.partial(append_rows, self._topic, bodies[start:end], told.part(start, end), level)
            with self._naming():
                confirms.append((start, await self._submit(send, (end - start, size), deadline, not wait)))
        with self._naming():
            return await self._loop.appended(Confirm(self._loop, confirms, join=_all), wait, deadline)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """What was waited for in vain names the topic."""
        try:
            yield
        except TimedOut as error:
            raise named(error, self.name) from None

    async def _begin(self, timeout: float | None) -> float | None:
        """The deadline. Raises UsageError, ClosedError."""
        self._loop.enter()
        deadline = deadline_of(timeout)
        await self._loop.ready()
        return deadline

    def _cut(self, bodies: Sequence[Body]) -> list[tuple[int, int, int]]:
        """Parts that fit beside those of other tasks: start, end, bytes."""
        superblock = self._loop.client.attachment().superblock
        most = max(1, min(PART, superblock.get("ring_records") // 4))
        most_bytes = superblock.get("arena_bytes") // ARENA_SHARE
        parts = []
        start = size = 0
        for number, body in enumerate(bodies):
            more = max(0, size_of(body)) + TOLD
            if number - start == most or (number > start and size + more > most_bytes):
                parts.append((start, number, size))
                start, size = number, 0
            size += more
        return [*parts, (start, len(bodies), size)] if bodies else []

    async def _submit(
        self, send: Callable[[], _core.Confirm[R]], need: tuple[int, int], deadline: float | None, ahead: bool
    ) -> _core.Confirm[R]:
        server = self._loop.client.attachment().superblock.topic_server
        return await self._loop.submit(send, need, deadline, ahead=ahead, store=server)

    @overload
    async def append_arrow(
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
    async def append_arrow(
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
    async def append_arrow(
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
    async def append_arrow(
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
        """Append the rows of an Arrow table or record batch: as warren.Topic.append_arrow."""
        from warren.workers.faces import topic_rows  # here: most programs have no Arrow

        checked_flag(wait, "wait")
        level = level_of(durability, True, "this topic")
        later = later_of(delay, at, delay_level)
        bodies, told = topic_rows.rows_of(data, queue)
        return await self._append_many(bodies, told._replace(later=later), level, wait, timeout)

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(
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
        """Messages of a queue from an offset on: as warren.Topic.read. Who waits looks every 20 ms."""
        deadline = deadline_of(timeout)
        pause_s = LOOK_FIRST_S
        damaged: tuple[CorruptRecord, ...] = ()
        while True:
            found = await self._loop.do(self._topic.read, queue, offset, max, max_bytes, tag, 0, damage=damage)
            damaged += found.damaged
            if found.status not in NOTHING_YET or is_late(deadline):
                return dataclasses.replace(found, damaged=damaged)
            offset = found.next_offset
            while (await self._loop.do(self._topic.offsets, queue))[1] <= offset and not is_late(deadline):
                await asyncio.sleep(pause_s if deadline is None else min(pause_s, time_left(deadline) or 0))
                pause_s = min(2 * pause_s, LOOK_S)

    async def read_arrow(
        self,
        queue: int = 0,
        start: int = 0,
        end: int | None = None,
        max_bytes: int = 32 << 20,
        *,
        damage: str = "error",
    ) -> pa.RecordBatch:
        """A range of a queue as an Arrow batch: as warren.Topic.read_arrow."""
        return await self._loop.do(self._topic.read_arrow, queue, start, end, max_bytes, damage=damage)

    async def replay(
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
        """Put messages into a queue: as warren.Topic.replay. `progress` is called in another thread."""
        name = queue if isinstance(queue, str) else queue.name
        replay = self._topic.replay
        return await self._loop.do(replay, name, start, end, tags, key, rate, durability, timeout, progress)

    async def offsets(self, queue: int = 0) -> tuple[int, int]:
        """The first offset, and behind the last: as warren.Topic.offsets."""
        return await self._loop.do(self._topic.offsets, queue)

    async def offset_at(self, queue: int, when: datetime | float, boundary: str = "lower") -> int | None:
        """The offset of a time: as warren.Topic.offset_at."""
        return await self._loop.do(self._topic.offset_at, queue, when, boundary)

    async def find(
        self,
        key: str,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        limit: int = 64,
        *,
        damage: str = "error",
    ) -> list[Record]:
        """The newest messages with a key: as warren.Topic.find."""
        return await self._loop.do(self._topic.find, key, since, until, limit, damage=damage)

    async def find_id(self, message_id: str) -> Record | None:
        """The message with an id: as warren.Topic.find_id."""
        return await self._loop.do(self._topic.find_id, message_id)

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
        """A reader of all queues, or a member of a group: as warren.Topic.reader. Use it with `async with`."""
        self._loop.enter()
        told = (group, start, tags, prefetch, commit, on_data_loss, damage, max_reconsume_times)
        limits = (session_timeout, max_poll_interval)
        return Reader(self._loop, reader_of(self._topic, *told, *limits))

    async def groups(self) -> list[dict[str, Any]]:
        """Its groups of readers: as warren.Topic.groups."""
        return await self._loop.do(self._topic.groups)

    async def group(self, group: str) -> dict[str, Any]:
        """One of them: as warren.Topic.group."""
        return await self._loop.do(self._topic.group, group)

    async def seek_group(
        self,
        group: str,
        where: int | datetime | Literal["earliest", "latest"],
        queue: int | None = None,
        *,
        force: bool = False,
    ) -> dict[int, int]:
        """Set what a group has committed: as warren.Topic.seek_group."""
        return await self._loop.do(self._topic.seek_group, group, where, queue, force=force)

    async def dead_letters(self, group: str) -> Topic:
        """The topic of what a group has given up: as warren.Topic.dead_letters."""
        return Topic(self._loop, await self._loop.do(self._topic.dead_letters, group))

    async def delete_group(self, group: str) -> None:
        """Forget a group: as warren.Topic.delete_group."""
        await self._loop.do(self._topic.delete_group, group)

    # -- the rest -----------------------------------------------------------------------------------------------

    async def set(
        self,
        retention_s: float | Literal["keep"] | None = "keep",
        retention_bytes: int | Literal["keep"] | None = "keep",
    ) -> None:
        """Give the topic another retention: as warren.Topic.set."""
        await self._loop.do(self._topic.set, retention_s, retention_bytes)

    async def hold(self, queue: int, start: int, end: int | None = None) -> Hold:
        """Keep a range from retention: as warren.Topic.hold. What comes is used in a plain `with`."""
        return await self._loop.do(self._topic.hold, queue, start, end)

    async def stats(self) -> dict[str, int]:
        """Counts of messages: as warren.Topic.stats."""
        return await self._loop.do(self._topic.stats)

    async def queue_of(self, key: Key) -> int:
        """The queue that messages with this key go to: as warren.Topic.queue_of."""
        return await self._loop.do(self._topic.queue_of, key)

    # -- half messages ------------------------------------------------------------------------------------------

    async def prepare(
        self,
        body: Body,
        key: Key | None = None,
        tag: str | None = None,
        properties: Properties | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> Half:
        """A half message: as warren.Topic.prepare. A task that is cancelled meanwhile may leave one behind."""
        return Half(self._loop, await self._loop.do(self._topic.prepare, body, key, tag, properties, queue, timeout))

    async def half(self, message_id: str) -> Half:
        """The half message with an id: as warren.Topic.half."""
        return Half(self._loop, await self._loop.do(self._topic.half, message_id))

    async def halves(self, limit: int = LISTED, timeout: float | EllipsisType | None = ...) -> list[HalfMessage]:
        """Those that are neither committed nor rolled back: as warren.Topic.halves."""
        return await self._loop.do(self._topic.halves, limit, timeout)

    async def delete(self) -> None:
        """Delete the topic with its messages: as warren.Topic.delete."""
        await self._loop.do(self._topic.delete)


def _only(results: list[Any]) -> Position:
    position: Position = results[0]
    return position


def _all(results: list[Any]) -> list[Position]:
    return list(itertools.chain.from_iterable(results))
