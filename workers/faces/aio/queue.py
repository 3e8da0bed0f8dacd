"""A queue in an event loop, as its tasks see it: Queue, Message, Consumer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

from warren.engine import _core
from warren.engine.errors import AckTimedOut, LimitError, QueueEmpty, QueueFull, ResourceLocked, TimedOut, UsageError
from warren.workers.client.arguments import checked_count, checked_flag, checked_seconds, listed
from warren.workers.client.publish import Durability, Publish, PublishManyOptions, PublishOptions
from warren.workers.faces import message
from warren.workers.faces.aio.base import (
    Body,
    Underneath,
    deadline_of,
    run_blocking,
    size_of,
    time_left,
)
from warren.workers.faces.aio.line import LEAST_S, Line, Share
from warren.workers.faces.aio.loop import Confirm, Loop
from warren.workers.faces.aio.parts import in_parts
from warren.workers.faces.aio.subscription import Subscription
from warren.workers.faces.browse import BATCH_BYTES, UNLIMITED

if TYPE_CHECKING:
    import pyarrow as pa


class Message(message.Message):
    """One received message: `body`, `headers`, `redelivered`, ...; await its ack."""

    __slots__ = ()

    @property
    def queue(self) -> Queue:
        """The queue it came from."""
        return super().queue.face  # type: ignore[no-any-return]  # the handle's owner is an object to the core

    async def ack(self, multiple: bool = False) -> None:  # type: ignore[override]
        """Ack it; with `multiple`, also everything that this node received from the queue before it."""
        checked_flag(multiple, "multiple")
        await self.queue._line.settle([self], functools.partial(super().ack, multiple), multiple)

    async def nack(  # type: ignore[override]
        self, requeue: bool = True, multiple: bool = False, *, delay: float | None = None
    ) -> None:
        """Return it to its place in the queue (marked redelivered), after `delay` seconds if given, or drop it."""
        checked_flag(multiple, "multiple")
        settle = functools.partial(super().nack, requeue, multiple, delay=delay)
        await self.queue._line.settle([self], settle, multiple)

    async def reject(self) -> None:  # type: ignore[override]
        """Drop it or, if its queue has a dead_letter_exchange, dead-letter it: nack(requeue=False)."""
        await self.nack(requeue=False)

    async def __aenter__(self) -> Self:
        message.check_held(self)
        return self

    async def __aexit__(self, error: object, _value: object, _trace: object) -> None:
        """Ack it; after an exception, return it to its queue. What was acked or nacked inside stays so."""
        if self.settled:
            return
        if error is None:
            await self.ack()
        else:
            with contextlib.suppress(AckTimedOut):  # it is back already
                await self.nack()

    def __enter__(self) -> NoReturn:
        raise UsageError("in asyncio it is `async with message`")


class Queue:
    """A queue of the node. Created by `await node.queue(name)`; any number of tasks can use it."""

    def __init__(self, loop: Loop, underneath: Underneath) -> None:
        self._loop = loop
        self._underneath = underneath
        underneath.face = self
        self._line = Line(loop, underneath)

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a queue of warren.aio belongs to its event loop: give another process the node's directory and the "
            "queue's name, and use warren.aio.attach there"
        )

    def __repr__(self) -> str:
        return f"<aio.Queue {self.name!r}, {'durable' if self.durable else 'transient'}>"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._underneath.name

    @property
    def durable(self) -> bool:
        """Whether the queue is on disk."""
        return self._underneath.durable

    # -- publishing ---------------------------------------------------------------------------------------------

    @overload
    async def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[PublishOptions],
    ) -> None: ...
    @overload
    async def put(
        self,
        body: Body,
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    async def put(
        self,
        body: Body,
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    async def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[PublishOptions],
    ) -> Confirm | None: ...
    async def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[PublishOptions],
    ) -> Confirm | None:
        """Publish one message: as warren.Queue.put. Returns when it is as durable as requested.

        With wait=False it returns a Confirm to await, as soon as there was room for the message. If it is cancelled
        while it waits for the confirm, the message may be stored.
        """
        loop = self._loop
        loop.enter()
        deadline = deadline_of(timeout)
        put = self._underneath.put
        checked_flag(wait, "wait")
        room = None if block is False else self._underneath.room(block, timeout, wait)
        while True:
            part = await self._submit(
                lambda: put(body, durability, False, 0.0, headers, **options), (1, size_of(body)), deadline, not wait
            )
            try:
                return await loop.wait_for(Confirm(loop, [(0, part)], self._underneath), wait, deadline)
            except QueueFull:
                if room is None or not await self._underneath.wait_for(room):
                    raise

    @overload
    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> None: ...
    @overload
    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm: ...
    @overload
    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm: ...
    @overload
    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm | None: ...
    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm | None:
        """Publish many messages in order: as warren.Queue.put_many. They are sent in parts; messages of other tasks may
        come in between.

        After a TimedOut for lack of room, the first parts may be stored.
        """
        loop = self._loop
        loop.enter()
        deadline = deadline_of(timeout)
        checked_flag(wait, "wait")
        many = listed(bodies, "bodies")
        said = Publish(headers=headers, **options)
        level = self._underneath.level(durability, said)
        batch = said.batch(len(many), self.name)
        await loop.ready(self._underneath.handle)
        parts = await in_parts(
            loop.client.attachment().superblock,
            many,
            batch.meta_bytes(len(many)),
            lambda start, end: self._underneath.put_part(many[start:end], level, batch.part(start, end)),
            lambda call, need: self._submit(call, need, deadline, not wait),
        )
        return await loop.wait_for(Confirm(loop, parts, self._underneath), wait, deadline)

    async def _submit(
        self, call: Callable[[], _core.Confirm], need: tuple[int, int], deadline: float | None, ahead: bool
    ) -> _core.Confirm:
        await self._line.make_usable()
        return await self._loop.submit(call, need, deadline, queue=self._underneath, ahead=ahead)

    # -- consuming ----------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> Message:
        """The next message. Raises QueueEmpty if none arrives within `timeout` seconds (None: no limit, 0: wait only
        for the worker's answer), and what else warren.Queue.get raises.

        Cancelling a get loses no message.
        """
        found = await self._line.get(1, timeout)
        if not found:
            raise QueueEmpty(f"queue {self.name!r} had no message within {timeout} s")
        return found[0]  # type: ignore[return-value]  # the class given to Underneath

    async def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Message]:
        """As many messages as are ready, 1 to `max`, and no more than half of the setting `delivery_slots`; an empty
        list if none arrives within `timeout`: as warren.Queue.get_many.
        """
        return await self._line.get(checked_count(max, "max", 1, sys.maxsize), timeout)  # type: ignore[return-value]

    def consume(
        self, prefetch: int | None = None, timeout: float | None = None, *, exclusive: bool = False
    ) -> Consumer:
        """Iterate over messages with `async for`, with at most `prefetch` unacked at a time. Without a number, as many
        are delivered ahead as the loop works off in about 4 ms, at least one, and at most 500 are unacked: as
        warren.Queue.consume.

        It ends if none arrives for `timeout` seconds, also because `prefetch` are unacked while others are ready. It is
        an asynchronous context manager: on leaving, messages that were delivered but not handed out return to the
        queue. `exclusive`: it is the only consumer, as of warren.Queue.consume, from its first message wanted on.
        """
        most = None if prefetch is None else checked_count(prefetch, "prefetch")
        return Consumer(self, most, timeout, self._underneath.checked_exclusive(exclusive))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Leave off using it: what was delivered ahead and not handed out returns. It can be used again."""
        await self.release()

    async def release(self) -> None:
        """Return messages that were delivered ahead but not handed out: as warren.Queue.release. What tasks wait for in
        get or consume stays theirs.
        """
        self._loop.enter()
        await self._line.release()

    # -- settling -----------------------------------------------------------------------------------------------

    async def ack(self, messages: Sequence[Message]) -> None:
        """Ack many messages of this queue in as few commands as possible."""
        messages = listed(messages, "messages")
        await self._line.settle(messages, functools.partial(self._underneath.ack, messages), False)

    async def nack(self, messages: Sequence[Message], requeue: bool = True) -> None:
        """Nack many messages of this queue: return them to their places, or drop them."""
        messages = listed(messages, "messages")
        await self._line.settle(messages, functools.partial(self._underneath.nack, messages, requeue), False)

    async def reply(
        self, message: Message, body: Body, headers: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> None:
        """Answer a message of this queue: as warren.Queue.reply."""
        checked_seconds(timeout)
        try:
            self._underneath.reply(message, body, headers, timeout=0.0)
        except TimedOut:  # no room now
            await run_blocking(self._underneath.reply, message, body, headers, timeout=timeout)

    # -- looking, changing --------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, int]:
        """Counters of the queue: as warren.Queue.stats."""
        return await self._loop.do(self._underneath.stats)

    async def depth(self) -> int:
        """Number of ready messages."""
        return await self._loop.do(self._underneath.depth)

    async def browse(self, max: int = 100) -> list[Message]:
        """The first `max` ready messages, without taking them, as warren.Queue.browse. They cannot be acked."""
        return await self._loop.do(self._underneath.browse, max)  # type: ignore[arg-type]  # the class given to it

    async def browse_arrow(self, max: int = UNLIMITED, max_bytes: int = BATCH_BYTES) -> AsyncIterator[pa.RecordBatch]:
        """The first `max` ready messages as Arrow batches of about `max_bytes` of bodies, without taking them."""
        batches = await self._loop.do(self._underneath.browse_arrow, max, max_bytes)
        while (batch := await self._loop.do(next, batches, None)) is not None:
            yield batch

    async def subscription(self, name: str, *, create: bool = True) -> Subscription:
        """A subscription (durable numbered claims) of this queue: as warren.Queue.subscription."""
        found = await self._loop.do(self._underneath.subscription, name, create=create)
        return Subscription(self._loop, self, found)

    async def purge(self, timeout: float | None = 30.0) -> int:
        """Drop all ready messages; returns how many."""
        return await self._loop.do(self._underneath.purge, timeout)

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete the queue with its messages, perhaps on a condition: as warren.Queue.delete."""
        await self._loop.do(self._underneath.delete, if_unused=if_unused, if_empty=if_empty)

    async def bind(self, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None) -> None:
        """As warren.Queue.bind."""
        await self._loop.do(self._underneath.bind, exchange, routing_key, arguments)

    async def unbind(self, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None) -> bool:
        """Remove a binding. Returns False if there was none."""
        return await self._loop.do(self._underneath.unbind, exchange, routing_key, arguments)


def line_of(queue: Queue) -> Line:
    """The tasks that wait for its messages."""
    return queue._line


def underneath_of(queue: Queue) -> Underneath:
    """The queue of the blocking interface that it stands on."""
    return queue._underneath


class Consumer:
    """Messages of a queue, delivered ahead: an async iterator and context manager. Created by `queue.consume`."""

    def __init__(self, queue: Queue, prefetch: int | None, timeout: float | None, exclusive: bool = False) -> None:
        self._queue = queue
        self._timeout = timeout
        self._exclusive = exclusive
        self._share = Share(prefetch)
        self._begun = False
        self._closed = False

    if not TYPE_CHECKING:  # checkers find it

        def __iter__(self):
            """Raises TypeError."""
            raise TypeError("in asyncio it is `async for message in queue.consume(…)`")

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a consumer of warren.aio belongs to its event loop: give another process the node's directory and the "
            "queue's name, and use warren.aio.attach there"
        )

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> Message:
        line, share = self._queue._line, self._share
        line.loop.enter()
        if self._closed:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            try:
                await line.claims.claim(self._exclusive)
            except BaseException:
                self._begun = False
                raise
            await line.join(share)
        deadline = deadline_of(self._timeout)
        while share.holding >= share.most:
            share.room = line.loop.events.create_future()
            if not await line.has_room(share.room, deadline):
                await self.aclose()
                raise StopAsyncIteration
        if share.adapts:
            await line.widen(share)
        left = time_left(deadline)
        try:
            found = await line.get(1, max(left, LEAST_S) if left is not None and self._timeout else left)
        except (LimitError, ResourceLocked):  # as the end of a blocking consume
            await self.aclose()
            raise
        if not found:
            await self.aclose()
            raise StopAsyncIteration
        line.hold(found[0], share)
        return found[0]  # type: ignore[return-value]

    async def aclose(self) -> None:
        """End it: messages that were not handed out are back in the queue afterwards. Those handed out can still be
        acked.
        """
        self._closed = True
        returning = self._queue._line.part(self._share) if self._begun else None
        if returning is not None:
            await asyncio.wait([returning])

    def __del__(self) -> None:
        if not self._begun or self._closed:
            return
        line = self._queue._line
        loop = line.loop
        if not loop.closed and loop.pid == os.getpid() and not loop.events.is_closed():
            loop.events.call_soon_threadsafe(line.part, self._share)
