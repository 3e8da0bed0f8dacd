"""A node in an event loop: its attachment, what is waited for in it, and how it comes back after trouble.

Invariants
  All state is the loop's: only `_ring` is called by another thread. Nothing here waits but by awaiting.
  A bell looks after everybody: confirms, horizons, getters; each look says to the core what is still wanted.
  One task makes a new attachment, for all who need it; one for each server opens the regions of its next incarnation.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog.names import check_name
from warren.engine.errors import ClosedError, DiskFull, Error, NodeNotRunning, PeerLost, QueueFull, TimedOut, UsageError
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import waiter
from warren.workers.client.arguments import listed
from warren.workers.faces import node as nodes
from warren.workers.faces.aio.base import META, Body, deadline_of, is_late, run_blocking, size_of, time_left
from warren.workers.faces.aio.queue import Queue, Underneath
from warren.workers.faces.queues import Queue as BlockingQueue

P = ParamSpec("P")
T = TypeVar("T")

#: how often the servers' lives and the catalog are looked at while somebody waits
TICK_S = 0.5
#: pause before the next try while an alarm is on
ALARM_S = 0.02


class Confirm:
    """The promise of a put with wait=False. Await it, once or several times; it raises what put raises."""

    def __init__(
        self, node: Node, parts: Sequence[tuple[int, _core.Confirm]], queue: BlockingQueue | None = None
    ) -> None:
        self._node = node
        self._parts = parts  # with the number of its first message, each
        self._queue = queue

    def done(self) -> bool:
        """Whether awaiting it would not wait."""
        return all(part.done() for _start, part in self._parts)

    @property
    def duplicate(self) -> bool:
        """It is confirmed, and a message was dropped because its id was seen within the deduplication window."""
        return any(part.duplicate for _start, part in self._parts)

    async def wait(self, timeout: float | None = None) -> None:
        """Return when it is confirmed. Raises QueueFull, TimedOut (it may still be stored), PeerLost, SyncFailed."""
        await self._until(deadline_of(timeout))

    async def _until(self, deadline: float | None) -> None:
        refused: list[int] = []
        full: QueueFull | None = None
        for start, part in self._parts:
            try:
                await self._node._confirmed(part, deadline)
            except QueueFull as error:
                refused += [start + number for number in error.refused]
                full = error
        if full is not None:
            told = full if self._queue is None else self._queue._full(full)
            told.refused = tuple(refused)
            raise told

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()


class Node:
    """A node as used by one event loop. An asynchronous context manager; close() ends the attachment, not the node."""

    def __init__(self, node: nodes.Node) -> None:
        self._node = node
        self._client = node._client
        self._begin(asyncio.get_running_loop())
        self._closed = False
        self._watch()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything that belongs to one loop, in one process."""
        self._loop = loop
        self._pid = os.getpid()
        self._core: _core.Client | None = None
        self._listener: Callable[[], None] | None = None
        self._belled = False
        self._promises = waiter.Promises()
        self._until: set[tuple[int, int, int, asyncio.Future[None]]] = set()
        self._waiting: dict[int, set[Queue]] = {}  # queues with getters, by server
        self._queues: weakref.WeakValueDictionary[str, Queue] = weakref.WeakValueDictionary()
        self._by_id: weakref.WeakValueDictionary[int, Queue] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._coming_back: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<aio.Node {str(self.directory)!r}{', closed' if self.closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def directory(self) -> Path:
        """The data directory."""
        return self._node.directory

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed or self._node.closed

    @property
    def client_name(self) -> str:
        """The name of this client in `warren status`."""
        return self._node.client_name

    async def close(self) -> None:
        """Wait for what was submitted, then leave the node. Tasks that are waiting get ClosedError.

        Unacked messages, and those delivered ahead, return to their places in their queues, marked redelivered.
        """
        if self._closed:
            return
        self._closed = True
        error = ClosedError(f"this client of {self.directory} was closed: attach again")
        for queue in list(self._by_id.values()):
            queue._fail(error)
        for *_want, future in self._until:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be there any more
        if self._ticker is not None:
            self._ticker.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The waiting thread holds the memory as long as it watches it; the end of the core wakes it.
        await run_blocking(self._node.close)
        self._bell()
        if self._core is not None and self._listener is not None:
            waiter.unwatch(self._core, self._listener)

    # -- queues and exchanges -----------------------------------------------------------------------------------

    async def queue(self, name: str, durable: bool = True, *, create: bool = True, **arguments: Any) -> Queue:
        """Open a queue; declare it if it does not exist: as warren.Node.queue."""
        self._enter()
        check_name(name)
        await run_blocking(self._node.queue, name, durable, create=create, **arguments)
        found = self._queues.get(name)
        if found is not None:
            if not found._sync._handle.usable:
                await run_blocking(found._renew)
            # the blocking face has just made a handle of its own: ours is the one to hear of the catalog
            self._client._handles[found._sync._declaration.id] = found._sync._handle
            return found
        made = Queue(self, await run_blocking(Underneath.of, self._client, name))
        return self._queues.setdefault(name, made)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages. Raises QueueNotFound."""
        await self._do(self._node.delete_queue, name)

    async def declare_queues(
        self, queues: Iterable[str | Mapping[str, Any]], durable: bool = True, **arguments: Any
    ) -> list[str]:
        """Declare many queues in one change, all or none: as warren.Node.declare_queues."""
        return await self._do(self._node.declare_queues, listed(queues, "queues"), durable, **arguments)

    async def delete_queues(self, names: Iterable[str]) -> None:
        """Delete many queues in one change, all or none."""
        await self._do(self._node.delete_queues, listed(names, "names"))

    async def queues(self) -> list[str]:
        """Names of all declared queues."""
        return await self._do(self._node.queues)

    async def declare_exchange(self, name: str, type: str = "direct", durable: bool = True, **arguments: Any) -> None:
        """As warren.Node.declare_exchange."""
        await self._do(self._node.declare_exchange, name, type, durable, **arguments)

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings. Raises ExchangeNotFound."""
        await self._do(self._node.delete_exchange, name)

    async def bind(self, queue: str | Queue, exchange: str, routing_key: str = "", **arguments: Any) -> None:
        """As warren.Node.bind."""
        await self._do(self._node.bind, _name(queue), exchange, routing_key, **arguments)

    async def unbind(self, queue: str | Queue, exchange: str, routing_key: str = "", **arguments: Any) -> bool:
        """Remove a binding. Returns False if there was none."""
        return await self._do(self._node.unbind, _name(queue), exchange, routing_key, **arguments)

    async def bind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Bind in one change, all or nothing: as warren.Node.bind_many."""
        return await self._do(self._node.bind_many, [_plain(item) for item in listed(bindings, "bindings")])

    async def unbind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Remove bindings in one change; returns how many existed."""
        return await self._do(self._node.unbind_many, [_plain(item) for item in listed(bindings, "bindings")])

    async def status(self) -> dict[str, Any]:
        """The report of `warren status --json`."""
        return await self._do(self._node.status)

    async def ping(self) -> dict[str, Any]:
        """Ask the supervisor whether it answers: {pid, state}."""
        return await self._do(self._node.ping)

    async def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Confirm | None:
        """Publish a message to an exchange: as warren.Node.publish; with wait=False a Confirm to await."""
        self._enter()
        deadline = deadline_of(timeout)
        call = functools.partial(
            self._node.publish, body, exchange, routing_key, mandatory, durability, False, 0.0, headers, **options
        )
        confirm = Confirm(self, [(0, await self._submit(call, (1, size_of(body)), deadline, ahead=not wait))])
        return await self._wait_for(confirm, wait, deadline)

    # -- entering -----------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Is this the node's loop? Raises UsageError, ClosedError."""
        if self._closed:
            raise ClosedError(f"this client of {self.directory} is closed: attach again")
        loop, forked = asyncio.get_running_loop(), self._pid != os.getpid()
        if loop is self._loop and not forked:
            return
        if forked or self._loop.is_closed():
            queues_known = dict(self._queues)
            if self._core is not None and self._listener is not None and not forked:
                waiter.unwatch(self._core, self._listener)
            self._begin(loop)
            for name, queue in queues_known.items():
                queue._begin()
                self._queues[name] = queue
            if not forked:
                self._watch()
        else:
            raise UsageError("this node belongs to another event loop: open one in each, with warren.aio.attach")

    async def _do(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        self._enter()
        return await run_blocking(call, *args, **named)

    def _watch(self) -> None:
        """Let the waiting thread watch the attachment in use."""
        core = self._client.core
        if core is self._core:
            return
        reference = weakref.ref(self)

        def ring() -> None:
            node = reference()
            if node is not None:
                node._ring()

        waiter.watch(core, ring)
        self._core, self._listener = core, ring

    async def _ready(self, *handles: _core.QueueHandle) -> _core.Client:
        """The core of an attachment that is good, with the catalog of now, or with what it says of these queues."""
        core = self._core
        if core is None or core.over:
            await self._come_back()
            core = self._core
            assert core is not None
        if handles:
            old = any(handle.perhaps_gone for handle in handles)
        else:
            old = core.behind
        if old:
            await run_blocking(self._client.router)
        return core

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _submit(
        self,
        call: Callable[[], _core.Confirm | None],
        need: tuple[int, int],
        deadline: float | None,
        queue: BlockingQueue | None = None,
        ahead: bool = False,
    ) -> _core.Confirm:
        """Call something that publishes without waiting, when there is room for it, or when no time is left (`ahead`,
        and no deadline: call_timeout).

        Without a queue there has to be room at every worker: it goes to all of its queues or to none.
        """
        count, size = need[0], max(0, need[1]) + META
        if ahead and deadline is None:
            deadline = deadline_of(self._client.call_timeout)
        while True:
            core = await self._ready(*([] if queue is None else [queue._handle]))
            try:
                servers = [queue._server] if queue is not None else self._workers()
                blocked = next(filter(None, (core.room(one, count, size, size) for one in servers)), None)
            except AttachmentLost:
                continue
            if blocked is not None and not is_late(deadline):
                await self._passed(blocked[0], _core.WANT_HEAD, blocked[1], deadline, _core.FOR_ROOM)
                continue
            try:
                confirm = call()
                assert confirm is not None
                return confirm
            except (TimedOut, DiskFull):
                if is_late(deadline):
                    raise
            except PeerLost:  # the worker is down and the ring is full, or there is nobody left
                if blocked is None or is_late(deadline):
                    raise
            await asyncio.sleep(ALARM_S if deadline is None else min(ALARM_S, time_left(deadline) or 0))

    def _workers(self) -> list[int]:
        return list(range(SERVER_WORKER_FIRST, self._client.attachment().superblock.servers_n))

    def _promise(self, parts: Sequence[tuple[int, _core.Confirm]], queue: BlockingQueue) -> Confirm:
        return Confirm(self, parts, queue)

    async def _wait_for(self, confirm: Confirm, wait: bool, deadline: float | None) -> Confirm | None:
        if not wait:
            return confirm
        await confirm._until(deadline)
        return None

    async def _confirmed(self, confirm: _core.Confirm, deadline: float | None) -> None:
        if not confirm.done():
            self._enter()
            future: asyncio.Future[None] = self._loop.create_future()
            if self._promises.add(confirm, functools.partial(_set, future)):
                self._look_soon()
                self._tick_later()
                try:
                    await self._in_time(future, deadline)
                finally:
                    future.cancel()
        confirm.result(0)

    @staticmethod
    async def _in_time(future: asyncio.Future[T], deadline: float | None) -> bool:
        """Wait for a future until the deadline; whether it is done then."""
        if deadline is None:
            await future
            return True
        done, _pending = await asyncio.wait([future], timeout=time_left(deadline))
        if done:
            future.result()
        return bool(done)

    # -- waiting ------------------------------------------------------------------------------------------------

    async def _passed(self, server: int, kind: int, above: int, deadline: float | None, purpose: int) -> bool:
        """Wait until a horizon has passed `above`; False at the deadline. Raises what ends a wait for this purpose."""
        core = self._core
        if core is None or core.ended:
            return True
        code = core.trouble(server, purpose)
        if code and code != _core.HOOK_EPOCH:
            await self._hook(code, server)
        future: asyncio.Future[None] = self._loop.create_future()
        want = (server, kind, above, future)
        self._until.add(want)
        self._look_soon()
        self._tick_later()
        try:
            return await self._in_time(future, deadline)
        finally:
            self._until.discard(want)

    def _ring(self) -> None:
        """Another thread: something that was wanted is there."""
        if not self._belled:
            self._belled = True
            try:
                self._loop.call_soon_threadsafe(self._bell)
            except RuntimeError:  # the loop is closed: nobody waits in it
                self._belled = False

    def _look_soon(self) -> None:
        if not self._belled:
            self._belled = True
            self._loop.call_soon(self._bell)

    def _bell(self) -> None:
        """Look after everybody who waits, and say what is still wanted."""
        self._belled = False
        for confirm, call in self._promises.collect():
            call(confirm, None)
        core = self._core
        if core is None:
            return
        again = False
        try:
            for server, queues_waiting in list(self._waiting.items()):
                for id in core.lying(server):
                    queue = self._by_id.get(id)
                    if queue is not None:
                        queue._pump()
                if queues_waiting:
                    again |= core.watch(server, _core.WANT_DELIVERY, 0)
                    code = core.trouble(server, _core.FOR_DELIVERY)
                    if code:
                        self._mend(server, code)
                else:
                    del self._waiting[server]
            for want in list(self._until):
                server, kind, above, future = want
                if core.watch(server, kind, above):
                    self._until.discard(want)
                    if not future.done():
                        future.set_result(None)
            again |= self._promises.watch(core)
        except (AttachmentLost, Error):
            self._lost()
            return
        if again:
            self._look_soon()

    def _lost(self) -> None:
        """The attachment is over."""
        for *_want, future in self._until:
            if not future.done():
                future.set_result(None)  # whoever waits looks again
        self._until.clear()
        if len(self._promises):
            self._look_soon()
        if any(self._waiting.values()) and not self._closed and self._coming_back is None:
            self._spawn(self._come_back_for_getters())

    async def _come_back_for_getters(self) -> None:
        try:
            await self._come_back()
        except Error as error:
            for queue in list(self._by_id.values()):
                queue._fail(error)

    async def _come_back(self) -> None:
        """Another attachment; one task makes it for all. Raises ClosedError, LimitError."""
        if self._coming_back is None:
            self._coming_back = self._spawn(self._attach_again())
            self._coming_back.add_done_callback(self._came_back)
        coming = self._coming_back
        await asyncio.wait([coming])
        if coming.cancelled():
            raise ClosedError(f"this client of {self.directory} was closed: attach again")
        coming.result()

    def _came_back(self, task: asyncio.Task[None]) -> None:
        self._coming_back = None
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it

    async def _attach_again(self) -> None:
        await run_blocking(self._client.attachment)
        self._watch()
        for queue in list(self._queues.values()):
            await queue._renewed()
        self._look_soon()

    def _mend(self, server: int, code: int) -> None:
        """Something is wrong with a server that messages are awaited from."""
        if server not in self._mending and not self._closed:
            task = self._mending[server] = self._spawn(self._mended(server, code))
            task.add_done_callback(lambda _task: self._mending.pop(server, None))

    async def _mended(self, server: int, code: int) -> None:
        try:
            await self._hook(code, server)
        except AttachmentLost:
            self._lost()
        except Error as error:
            for queue in list(self._waiting.get(server, ())):
                queue._fail(error)
        for queue in list(self._waiting.get(server, ())):
            queue._pump()
        self._look_soon()

    async def _hook(self, code: int, server: int, what: str = "") -> None:
        await run_blocking(self._client.hook, code, server, what)

    def _tick_later(self) -> None:
        if self._ticker is None and not self._closed:
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        servers = {server for server, waiting in self._waiting.items() if waiting}
        servers |= {server for server, *_want in self._until} | self._promises.servers()
        if not servers or self._closed:
            return
        self._tick_later()
        self._look_soon()
        if self._coming_back is None:
            self._spawn(self._check(servers))

    async def _check(self, servers: set[int]) -> None:
        """Is anybody alive? Does the catalog still have the queues that are waited for?"""
        try:
            waiting = [queue._sync._handle for queues in self._waiting.values() for queue in queues]
            core = await self._ready(*waiting)
            for server in servers:
                code = core.trouble(server, _core.FOR_REPLY)  # what confirms cannot get over, they say themselves
                await self._hook(code or _core.HOOK_CHECK, server)
        except AttachmentLost:
            self._lost()
        except Error as error:
            for queue in list(self._by_id.values()):
                queue._fail(error)
            for *_want, future in self._until:
                if not future.done():
                    future.set_exception(error)
            if isinstance(error, NodeNotRunning):
                for confirm, call in self._promises.take_all():
                    call(confirm, error)
        for queue in [queue for waiting in list(self._waiting.values()) for queue in waiting]:
            if not queue._sync._handle.usable:
                queue._pump()


def _set(future: asyncio.Future[None], _confirm: object, error: Error | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _plain(binding: Sequence[Any]) -> Sequence[Any]:
    """A binding with the name of its queue."""
    if isinstance(binding, (list, tuple)) and binding:
        return [_name(binding[0]), *binding[1:]]
    return binding


def _name(queue: str | Queue) -> str:
    return queue.name if isinstance(queue, Queue) else queue
