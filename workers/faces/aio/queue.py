"""A queue in an event loop: getters, consumers, and where a message is until a task has it.

Invariants
  A message is in one place: lying in the core (`pending`), read ahead (`_ahead`), given to a getter, or in use.
  Messages are handed out in the order in which they came; while `_filling` reads from files nobody else takes any.
  When nobody waits for messages any more, what was asked for is cancelled at the worker, and what came all the same
  returns to the queue. The prefetch that the worker knows is that of all consumers, and what others hold besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.errors import Error, QueueEmpty, TimedOut, UsageError
from warren.workers.client.arguments import checked_count, listed
from warren.workers.client.attachment import SERVER_READY
from warren.workers.faces import message, queues
from warren.workers.faces.aio.base import META, RETRY_S, Body, deadline_of, is_late, run_blocking, size_of, time_left

if TYPE_CHECKING:
    from warren.workers.faces.aio.node import Confirm, Node

PREFETCH = queues.PREFETCH
#: how long an idle loop of gets keeps what was delivered ahead
IDLE_S = 0.1
#: how long the worker's last word is waited for when nobody wants messages any more
LAST_LOOK_S = 0.5
#: the same of a get that knows that the worker has looked
LAST_WORD_S = 0.1
#: how long a first look (timeout 0) waits for a worker that has not seen this client yet
BEGIN_S = 1.0
#: what is left, at least, of a timeout that was not 0: that means to wait for the worker's answer
LEAST_S = 1e-6
#: how often who waits for room looks whether the queue is still there
LOOK_S = 0.5
#: messages read from files at once
FILL = 64
#: messages of one part of a put_many, and its share of the arena
PART = 256
ARENA_SHARE = 4


class Underneath(queues.Queue):
    """The queue of the blocking API underneath: the same options, the same checks."""

    face: Queue

    @classmethod
    def of(cls, client: Any, name: str) -> Underneath:
        return cls(client, client.catalog().queue(name))


class Message(message.Message):
    """One received message: `body`, `headers`, `redelivered`, ...; await its ack."""

    __slots__ = ()

    @property
    def queue(self) -> Queue:
        """The queue it came from."""
        return super().queue.face  # type: ignore[no-any-return]  # the handle's owner is an object to the core

    async def ack(self, multiple: bool = False) -> None:  # type: ignore[override]
        """Ack it; with `multiple`, also everything that this node received from the queue before it."""
        await self.queue._settle([self], functools.partial(super().ack, multiple), multiple)

    async def nack(self, requeue: bool = True, multiple: bool = False) -> None:  # type: ignore[override]
        """Return it to its place in the queue (marked redelivered), or drop it."""
        await self.queue._settle([self], functools.partial(super().nack, requeue, multiple), multiple)


Underneath._messages = Message


class _Question(NamedTuple):
    """What a get has asked a worker for."""

    handle: _core.QueueHandle
    epoch: int  #: of the worker
    told: int  #: so many things were told to it by then


class _Getter:
    __slots__ = ("future", "most")

    def __init__(self, future: asyncio.Future[list[Message]], most: int) -> None:
        self.future = future
        self.most = most


class Queue:
    """A queue of the node. Created by `await node.queue(name)`; any number of tasks can use it."""

    def __init__(self, node: Node, sync: Underneath) -> None:
        self._node = node
        self._sync = sync
        sync.face = self
        self._begin()

    def _begin(self) -> None:
        self._getters: OrderedDict[_Getter, None] = OrderedDict()
        self._ahead: deque[Message] = deque()
        self._consumers: list[_Share] = []
        self._held: dict[int, _Share] = {}
        self._filling = False
        self._polled = _core.POLL_UNBORN  # what the last look said
        self._tidier: asyncio.TimerHandle | None = None
        self._node._by_id[self._sync._declaration.id] = self

    def __repr__(self) -> str:
        return f"<aio.Queue {self.name!r}, {'durable' if self.durable else 'transient'}>"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._sync.name

    @property
    def durable(self) -> bool:
        """Whether the queue is on disk."""
        return self._sync.durable

    # -- publishing ---------------------------------------------------------------------------------------------

    async def put(
        self,
        body: Body,
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Confirm | None:
        """Publish one message: as warren.Queue.put. Returns when it is as durable as requested.

        With wait=False it returns a Confirm to await, as soon as there was room for the message. If it is cancelled
        while it waits for the confirm, the message may be stored.
        """
        node = self._node
        node._enter()
        deadline = deadline_of(timeout)
        call = functools.partial(self._sync.put, body, durability, False, 0.0, headers, **options)
        part = await self._submit(call, (1, size_of(body)), deadline, not wait)
        return await node._wait_for(node._promise([(0, part)], self._sync), wait, deadline)

    async def put_many(
        self,
        bodies: Iterable[Body],
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Any,
    ) -> Confirm | None:
        """Publish many messages in order: as warren.Queue.put_many. They are sent in parts; messages of other tasks may
        come in between.

        After a TimedOut for lack of room, the first parts may be stored.
        """
        node = self._node
        node._enter()
        deadline = deadline_of(timeout)
        many = listed(bodies, "bodies")
        named: dict[str, Any] = {"headers": headers, **options}
        each = {name for name, value in named.items() if isinstance(value, (list, tuple))}
        for name in each:
            if len(named[name]) != len(many):
                raise UsageError(f"{name}: {len(named[name])} for {len(many)} bodies")
        await node._ready(self._sync._handle)
        superblock = node._client.attachment().superblock
        sizes = [size_of(body) for body in many]
        if any(size < 0 or size + META > superblock.get("message_bytes_max") for size in sizes):
            for body, size in zip(many, sizes, strict=True):  # nothing is sent when one of them is wrong
                if size < 0 or size > superblock.get("message_bytes_max"):
                    self._sync.put(body, durability, False, 0.0)
        most_bytes = superblock.get("arena_bytes") // ARENA_SHARE
        most = max(1, min(PART, superblock.get("ring_records") // 4))
        parts: list[tuple[int, _core.Confirm]] = []
        start = 0
        while start < len(many):
            end, size = start, 0
            while end < len(many) and end - start < most and (end == start or size + sizes[end] + META <= most_bytes):
                size += sizes[end] + META
                end += 1
            some = {name: value[start:end] if name in each else value for name, value in named.items()}
            call = functools.partial(self._sync.put_many, many[start:end], durability, False, 0.0, **some)
            parts.append((start, await self._submit(call, (end - start, size), deadline, not wait)))
            start = end
        return await node._wait_for(node._promise(parts, self._sync), wait, deadline)

    async def _submit(
        self, call: Callable[[], _core.Confirm | None], need: tuple[int, int], deadline: float | None, ahead: bool
    ) -> _core.Confirm:
        if not self._sync._handle.usable:
            await self._node._ready()
            await run_blocking(self._renew)
        return await self._node._submit(call, need, deadline, queue=self._sync, ahead=ahead)

    # -- consuming ----------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> Message:
        """The next message. Raises QueueEmpty if none arrives within `timeout` seconds (None: no limit, 0: wait only
        for the worker's answer), and what else warren.Queue.get raises.

        Cancelling a get loses no message.
        """
        found = await self._get(1, timeout)
        if not found:
            raise QueueEmpty(f"queue {self.name!r} had no message within {timeout} s")
        return found[0]

    async def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Message]:
        """As many messages as are ready, 1 to `max`; an empty list if none arrives within `timeout`."""
        return await self._get(checked_count(max, "max", 1, sys.maxsize), timeout)

    def consume(self, prefetch: int = PREFETCH, timeout: float | None = None) -> Consumer:
        """Iterate over messages with `async for`, with at most `prefetch` unacked at a time.

        It ends if none arrives for `timeout` seconds, also because `prefetch` are unacked while others are ready. It is
        an asynchronous context manager: on leaving, messages that were delivered but not handed out return to the
        queue.
        """
        return Consumer(self, checked_count(prefetch, "prefetch"), timeout)

    async def _get(self, most: int, timeout: float | None) -> list[Message]:
        node = self._node
        node._enter()
        deadline = deadline_of(timeout)
        if timeout == 0:
            answer_by = deadline_of(node._client.call_timeout)
        else:
            answer_by = None if deadline is None else max(deadline, time.monotonic() + _core.ANSWER_MS / 1000)
        if not self._getters and (found := self._take(most, most)):
            self._tidy_later()
            return found
        getter = _Getter(node._loop.create_future(), most)
        self._getters[getter] = None
        node._waiting.setdefault(self._sync._server, set()).add(self)
        self._pump()
        asked = None if getter.future.done() else self._asked()
        node._look_soon()
        node._tick_later()
        try:
            if await node._in_time(getter.future, deadline):
                self._tidy_later()
                return getter.future.result()
            return await self._last_look(getter, asked, answer_by)
        except asyncio.CancelledError:
            if getter.future.done() and not getter.future.cancelled() and getter.future.exception() is None:
                self._put_back(getter.future.result())
            raise
        finally:
            self._leave(getter)

    def _leave(self, getter: _Getter) -> None:
        """A getter goes; what it leaves is for the next one, and nobody's is returned."""
        getter.future.cancel()
        self._getters.pop(getter, None)
        if self._getters:
            self._pump()
            return
        self._unwait()
        if not self._consumers:
            self._tidy()

    def _unwait(self) -> None:
        for waiting in self._node._waiting.values():
            waiting.discard(self)

    def _put_back(self, messages: list[Message]) -> None:
        """Messages that nobody saw: they are the next ones again, in order."""
        self._ahead.extend(messages)
        self._ahead = deque(sorted(self._ahead, key=lambda message: message.delivery_tag))

    async def _last_look(self, getter: _Getter, asked: _Question | None, answer_by: float | None) -> list[Message]:
        """Time is up. The worker may have sent something that is on its way, or not have seen us yet. "None" has to be
        its word, as in engine/binding/queue_handle.c. `answer_by`: when its answer has to be there.
        """
        node, future = self._node, getter.future
        while not future.done():
            if not self._sync._handle.usable:  # another attachment, or another queue of that name
                await node._ready()
                await self._renew_for_getters()
                if not self._sync._handle.usable:
                    await run_blocking(self._renew)
                continue
            begun = time.monotonic() + BEGIN_S
            by = answer_by if answer_by is None or not self._served() else max(answer_by, begun)
            while not future.done() and self._unborn() and not is_late(by):
                node._look_soon()
                await node._in_time(future, time.monotonic() + RETRY_S)
            self._pump()  # if it was not asked for anything before, it is now
            while self._filling and not future.done():  # it is there, and is read
                await node._in_time(future, time.monotonic() + RETRY_S)
            if future.done():
                break
            end = None if answer_by is None else max(answer_by, time.monotonic() + LAST_WORD_S)
            now, handle = self._asked(), self._sync._handle
            if now is None or not await self._last_word(future, end) or not self._same(now):
                if future.done() or not handle.usable:
                    continue
                if not is_late(answer_by):  # it has changed meanwhile: asked anew
                    await asyncio.sleep(RETRY_S)
                    continue
                known = asked is not None and self._same(asked) and self._horizon("processed") >= asked.told
                code = _core.HOOK_SILENT if known else _core.HOOK_TIMED_OUT
                await node._hook(code, handle.server, _core.THE_ANSWER)
                if not known:
                    raise TimedOut(f"{_core.THE_ANSWER}: not there in time")
            if future.done() or next(iter(self._getters), None) is not getter:
                break
            found = self._take(getter.most, 0)
            if found or (handle.usable and not self._filling):
                return found
        return future.result() if future.done() else []

    def _asked(self) -> _Question | None:
        """What the worker was asked for by the last look; None when it could not be asked."""
        handle = self._sync._handle
        if self._polled != _core.POLL_EMPTY or not handle.usable:
            return None
        try:
            return _Question(handle, self._epoch(), self._horizon("tail"))
        except (AttachmentLost, Error):
            return None

    def _horizon(self, name: str) -> int:
        core = self._node._core
        return 0 if core is None else core.horizons(self._sync._handle.server)[name]

    def _epoch(self) -> int:
        core = self._node._core
        return 0 if core is None else core.link_epoch(self._sync._handle.server)

    def _same(self, asked: _Question) -> bool:
        """Does the worker serve that was asked?"""
        handle = self._sync._handle
        return handle is asked.handle and handle.usable and self._epoch() == asked.epoch and not self._unborn()

    def _served(self) -> bool:
        """Is there a worker? Then it takes a new client up at once."""
        attachment, server = self._node._client._attachment, self._sync._handle.server
        return attachment is not None and attachment.superblock.server_get(server, "state") == SERVER_READY

    async def _last_word(self, future: asyncio.Future[list[Message]], end: float | None) -> bool:
        """Has the worker done all that it was told, before `end`? Who is the last one here asks for no more."""
        if len(self._getters) == 1 and not self._consumers:
            return await self._stop(future, end)
        return await self._heard(end)

    def _unborn(self) -> bool:
        """Does the worker not know us yet, or is its present incarnation not open?"""
        core = self._node._core
        if core is None or core.ended:
            return False
        handle = self._sync._handle
        if not handle.usable:
            return False
        try:
            code = core.trouble(handle.server, _core.FOR_DELIVERY)
            return code == _core.HOOK_EPOCH or core.link_epoch(handle.server) == 0
        except (AttachmentLost, Error):
            return False

    async def _stop(self, future: asyncio.Future[list[Message]] | None, end: float | None) -> bool:
        """Ask for no more, and wait until nothing more can come; whether that is known by `end`."""
        node, handle = self._node, self._sync._handle
        try:
            if future is not None:  # the worker must have seen what was asked for before that is taken back
                heard = await self._heard(end)
                if future.done() or not heard:
                    return heard
            stopped: int | bool | None = False
            while stopped is False and not is_late(end):
                if self._consumers or len(self._getters) > (future is not None):
                    return future is not None  # somebody wants messages again
                stopped = handle.stop()
                if stopped is False:
                    await asyncio.sleep(RETRY_S)
            if stopped is not None and stopped is not False:
                return await node._passed(handle.server, _core.WANT_PROCESSED, stopped, end, _core.FOR_REPLY)
        except AttachmentLost:
            return False  # the servers return it
        return stopped is None

    async def _heard(self, end: float | None) -> bool:
        """Wait until the worker has done what was submitted; whether it has by `end`."""
        server, tail = self._sync._handle.server, self._horizon("tail")
        return not tail or await self._node._passed(server, _core.WANT_PROCESSED, tail - 1, end, _core.FOR_REPLY)

    def _rest(self) -> asyncio.Task[None] | None:
        """Nobody wants anything any more: what is here returns to the queue."""
        if self._node._closed or self._node._loop.is_closed():
            return None
        return self._node._spawn(self._give_back())

    async def _give_back(self) -> None:
        try:
            if self._node._client.deserted():
                self._leave_to_next()
                return
            await self._stop(None, time.monotonic() + LAST_LOOK_S)
            while not self._getters and not self._consumers and not self._filling and self._sync._handle.usable:
                if not self._sync._handle.quiet:  # somebody came and went meanwhile, or the worker does not answer
                    self._tidy_later()
                    break
                if self._sync._handle.give_back():  # the last ones first: whoever comes now gets what is below them
                    messages, self._ahead = list(self._ahead), deque()
                    if messages:
                        self._sync._handle.settle_many(messages, False, True, True)
                    await self._heard(time.monotonic() + LAST_LOOK_S)
                    break
                await asyncio.sleep(RETRY_S)
        except (AttachmentLost, Error):
            return  # the attachment is over: the servers return it
        if self._getters:
            self._pump()
            self._node._look_soon()

    def _leave_to_next(self) -> None:
        """Nobody lives at the node: the next one is told what returns, and nobody waits for it."""
        if not self._getters and not self._consumers and not self._filling and self._sync._handle.usable:
            self._sync._leave_to_next(None)
            messages, self._ahead = list(self._ahead), deque()
            if messages:
                self._sync._handle.settle_many(messages, False, True, True)

    def _tidy_later(self) -> None:
        """After a loop of gets has stopped, what was delivered ahead returns."""
        if self._tidier is None and not self._consumers:
            self._tidier = self._node._loop.call_later(IDLE_S, self._tidy)

    def _tidy(self) -> None:
        self._tidier = None
        if self._getters or self._consumers or self._node._closed or not self._sync._handle.usable:
            return
        hoard = self._sync._handle.hoard()
        if hoard < 0:
            self._tidy_later()
        elif hoard or self._ahead:
            self._rest()

    def _cancel_soon(self) -> None:
        """No consumer is left, and some get messages still: from now on what they wait for is asked for, one by one."""
        if self._sync._handle.usable and self._getters and not self._consumers:
            if self._sync._handle.stop() is False:
                self._node._loop.call_later(RETRY_S, self._cancel_soon)
            else:
                self._pump()
                self._node._look_soon()

    # -- taking -------------------------------------------------------------------------------------------------

    def _take(self, most: int, wanted: int) -> list[Message]:
        """Up to `most` messages that are here; else what is missing is asked for, or set right."""
        found: list[Message] = []
        while self._ahead and len(found) < most:
            found.append(self._ahead.popleft())
        if found or self._filling:
            return found
        self._polled = _core.POLL_STALE
        try:
            answer = self._sync._handle.poll(most, wanted, True)
        except AttachmentLost:
            if wanted:
                self._node._spawn(self._renew_for_getters())
            return []
        if isinstance(answer, list):
            return answer  # type: ignore[return-value]  # the class given to the handle
        self._polled = answer
        if answer == _core.POLL_SLOW:
            self._filling = True
            self._node._spawn(self._fill())
        elif answer == _core.POLL_STALE:
            self._node._mend(self._sync._server, _core.HOOK_EPOCH)
        elif answer == _core.POLL_NO_ROOM:
            self._node._loop.call_later(RETRY_S, self._pump)
        return []

    def _pump(self) -> None:
        """Give the getters what has come, in order."""
        while self._getters:
            getter = next(iter(self._getters))
            if getter.future.done():
                del self._getters[getter]
                continue
            try:
                found = self._take(getter.most, len(self._getters) - 1 + getter.most)
            except (Error, OSError) as error:  # a damaged message: whoever would have got it is told
                del self._getters[getter]
                getter.future.set_exception(error)
                continue
            if not found:
                break
            del self._getters[getter]
            getter.future.set_result(found)
        if not self._getters:
            self._unwait()

    async def _fill(self) -> None:
        """Read messages that lie in files."""
        try:
            answer = await asyncio.shield(run_blocking(self._sync._handle.poll, FILL, 0, False))
            if isinstance(answer, list):
                self._put_back(answer)  # type: ignore[arg-type]  # the class given to the handle
        except AttachmentLost:
            self._node._lost()
        except (Error, OSError) as error:
            if self._getters:
                getter, _none = self._getters.popitem(last=False)
                if not getter.future.done():
                    getter.future.set_exception(error)
        finally:
            self._filling = False
        self._pump()
        self._node._look_soon()
        if self._ahead and not self._getters:
            self._tidy_later()

    def _fail(self, error: Exception) -> None:
        """Whoever waits gets this error."""
        getters, self._getters = self._getters, OrderedDict()
        for getter in getters:
            if not getter.future.done():
                getter.future.set_exception(error)
                getter.future.exception()  # it may have been cancelled meanwhile
        self._unwait()

    def _renew(self) -> None:
        self._sync._renew()
        self._node._by_id[self._sync._declaration.id] = self

    async def _renewed(self) -> None:
        """The node has another attachment: what lay here belongs to the old one, and returns by itself."""
        self._forget()
        await self._renew_for_getters(by_node=True)

    def _forget(self) -> None:
        """What lay here and what was held came by another handle."""
        self._ahead.clear()
        self._held.clear()
        for consumer in self._consumers:
            consumer.anew()

    async def _renew_for_getters(self, by_node: bool = False) -> None:
        if not self._sync._handle.usable:
            try:
                if not by_node:  # (the node waits for us)
                    await self._node._ready()
                await run_blocking(self._renew)
            except AttachmentLost:
                return  # it went again; the next look comes back here
            except Error as error:
                self._fail(error)
                return
            self._forget()
        self._prefetch()
        if self._getters:
            self._node._waiting.setdefault(self._sync._server, set()).add(self)
            self._pump()
            self._node._look_soon()

    def _prefetch(self) -> None:
        """Tell the worker how much all consumers together take ahead, besides what others here hold unacked."""
        handle, attachment = self._sync._handle, self._node._client._attachment
        if self._consumers and handle.usable and attachment is not None:
            slots = attachment.superblock.get("delivery_slots")
            others = handle.unacked - len(self._ahead) - sum(share.holding for share in self._consumers)
            handle.begin(max(1, min(sum(share.prefetch for share in self._consumers) + max(0, others), slots)))

    async def _has_room(self, room: asyncio.Future[None], deadline: float | None) -> bool:
        """Wait until a consumer may take another message; False at the deadline. Raises QueueNotFound when there will
        be none, because the queue was deleted: an ack would end the wait, and nobody has to ack what is gone.
        """
        node = self._node
        while True:
            look_at = time.monotonic() + LOOK_S
            if await node._in_time(room, look_at if deadline is None else min(deadline, look_at)):
                return True
            if is_late(deadline):
                return False
            await node._ready(self._sync._handle)
            with contextlib.suppress(AttachmentLost):
                await node._hook(_core.HOOK_CHECK, self._sync._server)
            if not self._sync._handle.usable:
                await self._renew_for_getters()
                if not self._sync._handle.usable:
                    await run_blocking(self._renew)

    def _part(self, share: _Share) -> asyncio.Task[None] | None:
        """A consumer goes; what the others want stays asked for. The task that returns what was for nobody else."""
        if share not in self._consumers or self._node._closed:
            return None
        self._consumers.remove(share)
        if self._consumers:
            self._prefetch()
        elif self._getters:
            self._cancel_soon()
        else:
            return self._rest()
        return None

    # -- settling -----------------------------------------------------------------------------------------------

    async def ack(self, messages: Sequence[Message]) -> None:
        """Ack many messages of this queue in as few commands as possible."""
        messages = listed(messages, "messages")
        await self._settle(messages, functools.partial(self._sync.ack, messages), False)

    async def nack(self, messages: Sequence[Message], requeue: bool = True) -> None:
        """Nack many messages of this queue: return them to their places, or drop them."""
        messages = listed(messages, "messages")
        await self._settle(messages, functools.partial(self._sync.nack, messages, requeue), False)

    async def _settle(self, messages: Sequence[Message], call: Callable[[], None], multiple: bool) -> None:
        node = self._node
        node._enter()
        core = node._core
        if core is not None and not core.ended:
            many = multiple or len(messages) > 1
            need = (16, 1 << 16, 1 << 15) if many else (1, 0, 0)
            with contextlib.suppress(AttachmentLost):  # then the call says so, in words
                while (blocked := core.room(self._sync._server, *need)) is not None:
                    await node._passed(blocked[0], _core.WANT_HEAD, blocked[1], None, _core.FOR_ROOM)
        call()
        if not self._held:
            return
        tags = {message.delivery_tag for message in messages}
        if multiple:
            tags |= {tag for tag in self._held if tag <= max(tags)}
        for tag in tags:
            consumer = self._held.pop(tag, None)
            if consumer is not None:
                consumer.settled()

    # -- looking, changing --------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, int]:
        """Counters of the queue: as warren.Queue.stats."""
        return await self._node._do(self._sync.stats)

    async def depth(self) -> int:
        """Number of ready messages."""
        return await self._node._do(self._sync.depth)

    async def purge(self, timeout: float | None = 30.0) -> int:
        """Drop all ready messages; returns how many."""
        return await self._node._do(self._sync.purge, timeout)

    async def delete(self) -> None:
        """Delete the queue with its messages. Raises QueueNotFound."""
        await self._node._do(self._sync.delete)

    async def bind(self, exchange: str, routing_key: str = "", **arguments: Any) -> None:
        """As warren.Queue.bind."""
        await self._node._do(self._sync.bind, exchange, routing_key, **arguments)

    async def unbind(self, exchange: str, routing_key: str = "", **arguments: Any) -> bool:
        """Remove a binding. Returns False if there was none."""
        return await self._node._do(self._sync.unbind, exchange, routing_key, **arguments)


class _Share:
    """What one consumer takes of a queue. The queue knows it; the Consumer may be forgotten."""

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.holding = 0
        self.room: asyncio.Future[None] | None = None

    def settled(self) -> None:
        """A message less in hand."""
        self.holding = max(0, self.holding - 1)
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def anew(self) -> None:
        """What it held belongs to an attachment that has ended."""
        self.holding = 0
        self.settled()


class Consumer:
    """Messages of a queue, delivered ahead: an async iterator and context manager. Created by `queue.consume`."""

    def __init__(self, queue: Queue, prefetch: int, timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout
        self._share = _Share(prefetch)
        self._begun = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> Message:
        queue, share = self._queue, self._share
        queue._node._enter()
        if self._closed:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            queue._consumers.append(share)
            await queue._renew_for_getters()
        deadline = deadline_of(self._timeout)
        while share.holding >= share.prefetch:
            share.room = queue._node._loop.create_future()
            if not await queue._has_room(share.room, deadline):
                await self.aclose()
                raise StopAsyncIteration
        left = time_left(deadline)
        found = await queue._get(1, max(left, LEAST_S) if left is not None and self._timeout else left)
        if not found:
            await self.aclose()
            raise StopAsyncIteration
        share.holding += 1
        queue._held[found[0].delivery_tag] = share
        return found[0]

    async def aclose(self) -> None:
        """End it: messages that were not handed out are back in the queue afterwards. Those handed out can still be
        acked.
        """
        self._closed = True
        returning = self._queue._part(self._share) if self._begun else None
        if returning is not None:
            await asyncio.wait([returning])

    def __del__(self) -> None:
        if self._begun and not self._closed and not self._queue._node.closed:
            node = self._queue._node
            if node._pid == os.getpid() and not node._loop.is_closed():
                node._loop.call_soon_threadsafe(self._queue._part, self._share)
