"""A node in an event loop, as its tasks see it. What it waits with is loop.py."""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, Unpack, overload

from warren.engine.catalog.arguments import QueueOptions
from warren.engine.catalog.names import check_name
from warren.engine.catalog.topic_bindings import KEY, TAG
from warren.workers.client.arguments import checked_flag, checked_queue, checked_seconds, listed
from warren.workers.client.publish import Durability, Publish, PublishManyOptions, PublishOptions
from warren.workers.faces import node as nodes
from warren.workers.faces.aio.base import Body, Underneath, deadline_of, run_blocking, size_of
from warren.workers.faces.aio.half import Check, check_in
from warren.workers.faces.aio.loop import Confirm, Loop
from warren.workers.faces.aio.parts import in_parts
from warren.workers.faces.aio.queue import Message, Queue, underneath_of
from warren.workers.faces.aio.store import Store
from warren.workers.faces.aio.topic import Topic
from warren.workers.faces.aio.work_queue import WorkQueue
from warren.workers.faces.aio.worker import Answering, Worker
from warren.workers.faces.calls import Caller, Waiting, asked
from warren.workers.faces.many import Destination, Many
from warren.workers.faces.queues import rejected_above
from warren.workers.faces.work_queue import limited
from warren.workers.faces.worker import Retries


class Node:
    """A node as used by one event loop. An asynchronous context manager; close() ends the attachment, not the node."""

    def __init__(self, node: nodes.Node) -> None:
        self._node = node
        self._loop = Loop(nodes.client_of(node))
        self._caller = Caller(nodes.client_of(node))
        self._called: dict[str, Queue] = {}
        self._queues: weakref.WeakValueDictionary[str, Queue] = weakref.WeakValueDictionary()

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a node of warren.aio belongs to its event loop: give another process its directory, and use "
            "warren.aio.attach there"
        )

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
        return self._loop.closed

    @property
    def client_name(self) -> str:
        """The name of this client in `warren status`."""
        return self._node.client_name

    async def close(self) -> None:
        """Wait for what was submitted, then leave the node. Tasks that are waiting get ClosedError.

        Unacked messages, and those delivered ahead, return to their places in their queues, marked redelivered.
        """
        if not self._loop.closing:
            await self._loop.close(self._node.close)

    # -- queues and exchanges -----------------------------------------------------------------------------------

    async def queue(
        self,
        name: str,
        durable: bool | None = None,
        *,
        create: bool = True,
        origin: Mapping[str, Any] | None = None,
        **arguments: Unpack[QueueOptions],
    ) -> Queue:
        """Open a queue; declare it if it does not exist: as warren.Node.queue."""
        self._loop.enter()
        check_name(name)
        await run_blocking(self._node.queue, name, durable, create=create, origin=origin, **arguments)
        found = self._queues.get(name)
        if found is None:
            underneath = await run_blocking(Underneath.of, self._loop.client, name, Message)
            found = self._queues.get(name)  # another task may have opened it meanwhile
            if found is None:
                found = self._queues[name] = Queue(self._loop, underneath)
                return found
        line = self._loop.takers[name]
        if not line.handle.usable:
            await run_blocking(line.renew)
        # the blocking face has just made a handle of its own: ours is the one to hear of the catalog
        self._loop.client.prefer(line.handle)
        return found

    @overload
    async def work_queue(
        self,
        name: str,
        maxsize: int = 0,
        *,
        serializer: None = None,
        durable: bool | None = None,
        create: bool = True,
        **arguments: Unpack[QueueOptions],
    ) -> WorkQueue[bytes]: ...
    @overload
    async def work_queue(
        self,
        name: str,
        maxsize: int = 0,
        *,
        serializer: object,
        durable: bool | None = None,
        create: bool = True,
        **arguments: Unpack[QueueOptions],
    ) -> WorkQueue[Any]: ...
    async def work_queue(
        self,
        name: str,
        maxsize: int = 0,
        *,
        serializer: object = None,
        durable: bool | None = None,
        create: bool = True,
        **arguments: Unpack[QueueOptions],
    ) -> WorkQueue[Any]:
        """A queue that behaves like asyncio.Queue (put, get, task_done, join, ...): as warren.Node.work_queue."""
        queue = await self.queue(name, durable, create=create, **limited(maxsize, arguments))
        return WorkQueue(queue, rejected_above(underneath_of(queue)), serializer)

    async def worker(
        self,
        queue: str | Queue,
        function: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 100,
        retries: int | None = None,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
    ) -> Worker:
        """A loop that awaits `function` with each message of a queue, `concurrency` at a time: as warren.Node.worker,
        with a coroutine function, and a run() to await.
        """
        given = checked_queue(queue, Queue)
        handled = await self.queue(given, create=False) if isinstance(given, str) else given
        chosen = await self._loop.do(Retries.of, retries, backoff, backoff_max, underneath_of(handled))
        return Worker(handled, function, concurrency, chosen)

    async def call(
        self,
        queue: str | Queue,
        body: Body,
        timeout: float = 30.0,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Put a message into a queue, and return the answer of whoever serves it: as warren.Node.call."""
        self._loop.enter()
        checked_seconds(timeout, endless=False)
        deadline = time.monotonic() + timeout
        given = checked_queue(queue, Queue)
        found = self._called.get(given) if isinstance(given, str) else given
        if found is None:
            found = self._called[str(given)] = await self.queue(str(given), create=False)
        server = underneath_of(found).server
        replies = self._caller.known(server)
        if replies is None:
            replies = await run_blocking(self._caller.replies, server)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        waiting = Waiting(functools.partial(loop.call_soon_threadsafe, _finish, answered))
        number = replies.begin(waiting)
        try:
            replies.begin_reading()
            said = {"headers": headers, "priority": priority, "properties": properties}
            options = asked(replies.to, number, timeout, said)
            confirm = await found.put(body, wait=False, timeout=timeout, **options)
            await asyncio.wait([answered], timeout=max(0.0, deadline - time.monotonic()))
        finally:
            replies.end(number)
            answered.cancel()
        if waiting.unanswered and confirm.done():
            await confirm  # raises when it was refused
        return self._caller.answer(found.name, server, timeout, waiting)

    async def serve(
        self, queue: str | Queue, function: Callable[[Message], Awaitable[bytes | None]], *, concurrency: int = 100
    ) -> Worker:
        """A loop that answers calls with a coroutine function, `concurrency` at a time: as warren.Node.serve."""
        return await self.worker(queue, Answering(function), concurrency=concurrency)

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue with its messages, perhaps on a condition: as warren.Node.delete_queue."""
        await self._loop.do(self._node.delete_queue, name, if_unused=if_unused, if_empty=if_empty)

    async def declare_queues(
        self, queues: Iterable[str | Mapping[str, Any]], durable: bool | None = None, **arguments: Unpack[QueueOptions]
    ) -> list[str]:
        """Declare many queues in one change, all or none: as warren.Node.declare_queues."""
        return await self._loop.do(self._node.declare_queues, listed(queues, "queues"), durable, **arguments)

    async def delete_queues(self, names: Iterable[str]) -> None:
        """Delete many queues in one change, all or none."""
        await self._loop.do(self._node.delete_queues, listed(names, "names"))

    async def queues(self) -> list[str]:
        """Names of all declared queues."""
        return await self._loop.do(self._node.queues)

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        durable: bool = True,
        alternate: str | None = None,
        *,
        internal: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """As warren.Node.declare_exchange."""
        await self._loop.do(
            self._node.declare_exchange,
            name,
            type,
            durable,
            alternate,
            internal=internal,
            auto_delete=auto_delete,
            arguments=arguments,
            origin=origin,
        )

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Raises ExchangeNotFound, PreconditionFailed."""
        await self._loop.do(self._node.delete_exchange, name, if_unused=if_unused)

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """As warren.Node.bind_exchange."""
        await self._loop.do(self._node.bind_exchange, destination, source, routing_key, arguments)

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Remove a binding of an exchange to another. Returns False if there was none."""
        return await self._loop.do(self._node.unbind_exchange, destination, source, routing_key, arguments)

    async def bind(
        self, queue: str | Queue, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """As warren.Node.bind."""
        await self._loop.do(self._node.bind, _name(queue), exchange, routing_key, arguments)

    async def unbind(
        self, queue: str | Queue, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Remove a binding. Returns False if there was none."""
        return await self._loop.do(self._node.unbind, _name(queue), exchange, routing_key, arguments)

    async def bind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Bind in one change, all or nothing: as warren.Node.bind_many."""
        return await self._loop.do(self._node.bind_many, [_plain(item) for item in listed(bindings, "bindings")])

    async def unbind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Remove bindings in one change; returns how many existed."""
        return await self._loop.do(self._node.unbind_many, [_plain(item) for item in listed(bindings, "bindings")])

    async def status(self) -> dict[str, Any]:
        """The report of `warren status --json`."""
        return await self._loop.do(self._node.status)

    async def ping(self) -> dict[str, Any]:
        """Ask the supervisor whether it answers: {pid, state}."""
        return await self._loop.do(self._node.ping)

    @overload
    async def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> None: ...
    @overload
    async def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    async def publish(
        self,
        body: Body,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    async def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm | None: ...
    async def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm | None:
        """Publish a message to an exchange: as warren.Node.publish; with wait=False a Confirm to await."""
        self._loop.enter()
        deadline = deadline_of(timeout)
        checked_flag(wait, "wait")
        publish = self._node.publish
        part = await self._loop.submit(
            lambda: publish(body, exchange, routing_key, mandatory, durability, False, 0.0, headers, **options),
            (1, size_of(body)),
            deadline,
            ahead=not wait,
        )
        return await self._loop.wait_for(Confirm(self._loop, [(0, part)]), wait, deadline)

    @overload
    async def publish_many(
        self,
        bodies: Iterable[Body],
        exchange: str = "",
        routing_key: str = "",
        *,
        routing_keys: Sequence[str] | None = None,
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> None: ...
    @overload
    async def publish_many(
        self,
        bodies: Iterable[Body],
        exchange: str = "",
        routing_key: str = "",
        *,
        routing_keys: Sequence[str] | None = None,
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm: ...
    @overload
    async def publish_many(
        self,
        bodies: Iterable[Body],
        exchange: str = "",
        routing_key: str = "",
        *,
        routing_keys: Sequence[str] | None = None,
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm | None: ...
    async def publish_many(
        self,
        bodies: Iterable[Body],
        exchange: str = "",
        routing_key: str = "",
        *,
        routing_keys: Sequence[str] | None = None,
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm | None:
        """Publish many messages in order: as warren.Node.publish_many. They are sent in parts; messages of other tasks
        may come in between. After a TimedOut for lack of room, the first parts may be stored.
        """
        loop = self._loop
        loop.enter()
        deadline = deadline_of(timeout)
        checked_flag(wait, "wait")
        await loop.ready()
        to = Destination(exchange, routing_key, routing_keys, mandatory)
        many = Many(loop.client, bodies, to, durability, Publish(headers=headers, **options))
        level = many.level()
        topics, more = many.topics()
        parts = await in_parts(
            loop.client.attachment().superblock,
            many.bodies,
            many.meta_bytes(),
            lambda start, end: many.send_part(start, end, level),
            lambda call, need: loop.submit(call, need, deadline, ahead=not wait, topics=topics),
            (topics, more),
        )
        return await loop.wait_for(Confirm(loop, parts), wait, deadline)

    def store(self, transient: bool = False) -> Store:
        """The message store itself: as warren.Node.store."""
        self._loop.enter()
        return Store(self._loop, self._node.store(transient))

    async def topic(
        self,
        name: str,
        queues: int | None = None,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        compacted: bool | None = None,
        create: bool = True,
        on_check: Check | None = None,
        *,
        by_name: bool | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> Topic:
        """Open a topic; declare it if it does not exist: as warren.Node.topic. `on_check` may be a coroutine function:
        it runs in this event loop; another function is called in a thread.
        """
        told = (name, queues, retention_s, retention_bytes, compacted, create)
        declare = functools.partial(self._node.topic, *told, by_name=by_name, origin=origin)
        found = await self._loop.do(declare, check_in(asyncio.get_running_loop(), on_check))
        return Topic(self._loop, found)

    async def bind_topic(
        self,
        topic: str | Topic,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = KEY,
        tag: str | None = TAG,
    ) -> None:
        """As warren.Node.bind_topic."""
        name = topic.name if isinstance(topic, Topic) else topic
        bind = functools.partial(self._node.bind_topic, key=key, tag=tag)
        await self._loop.do(bind, name, exchange, routing_key, arguments)

    async def unbind_topic(
        self,
        topic: str | Topic,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Remove a binding of a topic. Returns False if there was none."""
        name = topic.name if isinstance(topic, Topic) else topic
        return await self._loop.do(self._node.unbind_topic, name, exchange, routing_key, arguments)

    async def topics(self, all: bool = False) -> list[str]:
        """Names of all declared topics: as warren.Node.topics."""
        return await self._loop.do(self._node.topics, all)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _plain(binding: Sequence[Any]) -> Sequence[Any]:
    """A binding with the name of its queue."""
    if isinstance(binding, (list, tuple)) and binding:
        return [_name(binding[0]), *binding[1:]]
    return binding


def _name(queue: str | Queue) -> str:
    return queue.name if isinstance(queue, Queue) else queue
