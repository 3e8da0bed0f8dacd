"""The public face of a node: what `warren.open` and `warren.attach` return."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Unpack, overload

from warren.engine._core import AttachmentLost, Confirm
from warren.engine.catalog.arguments import QueueArguments, QueueOptions
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.exchanges import EXCHANGE_TYPES, checked_opaque
from warren.engine.catalog.group_topics import is_declared
from warren.engine.catalog.names import check_name, check_routing_key, check_topic_name
from warren.engine.catalog.node_directory import NodeDirectory, changed_settings, check_running, with_places
from warren.engine.catalog.topic_bindings import KEY, TAG, checked_source
from warren.engine.catalog.topics import TOPIC_QUEUES_MAX, checked
from warren.engine.config import NodeSettings, Settings
from warren.engine.errors import (
    ClosedError,
    NodeNotRunning,
    QueueNotFound,
    TimedOut,
    TopicNotFound,
    Unroutable,
    UsageError,
)
from warren.engine.saying import DECLARE_QUEUE, DECLARE_TOPIC, command, shown
from warren.workers.client import waiter  # noqa: F401 - gives Confirm its callbacks
from warren.workers.client.arguments import (
    checked_client_name,
    checked_count,
    checked_exchange,
    checked_flag,
    checked_mapping,
    checked_queue,
    checked_seconds,
    checked_timeout,
    listed,
)
from warren.workers.client.client import CALL_TIMEOUT_S, Client
from warren.workers.client.publish import PLAIN, Body, Durability, PublishManyOptions, PublishOptions, publish_options
from warren.workers.client.shared import Place, place_of, shared
from warren.workers.client.topic_parts import parts_of
from warren.workers.faces import half_checks
from warren.workers.faces.calls import Answering, Caller
from warren.workers.faces.many import Destination, Many, level_to
from warren.workers.faces.message import Message
from warren.workers.faces.queues import Queue, delete_queue, refresh, rejected_above, server_of, time_left
from warren.workers.faces.store import Store
from warren.workers.faces.topic_halves import Check
from warren.workers.faces.topics import Topic
from warren.workers.faces.work_queue import WorkQueue, limited
from warren.workers.process.launch import launch

if TYPE_CHECKING:
    from warren.workers.faces.worker import Worker
    from warren.workers.faces.worker_processes import ProcessWorker

#: seconds without clients after which a node started by `open` ends
IDLE_EXIT_S = 10.0
START_TIMEOUT_S = 60.0
ATTACH_TIMEOUT_S = 5.0
#: between attempts of `open` to attach to a node that goes away
AGAIN_FIRST_S, AGAIN_MAX_S = 0.01, 1.0


class Node:
    """A node that this process is attached to. A context manager; close() ends the attachment, not the node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._caller = Caller(client)
        self._called: dict[str, Queue] = {}

    def __reduce__(self) -> tuple[Callable[[Place], Node], tuple[Place]]:
        """Another process that unpickles it attaches by itself when it uses it (docs/python.md)."""
        return _unpickled, (place_of(self._client),)

    def __repr__(self) -> str:
        return f"<Node {str(self.directory)!r}{', closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The data directory."""
        return self._client.directory.path

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._client.closed

    @property
    def client_name(self) -> str:
        """The name of this client in `warren status`."""
        return self._client.name

    def close(self) -> None:
        """Wait for what was submitted, then leave the node. Takes at most 10 s, and up to 2 s more for threads inside.

        When this returns, unacked messages are back in their queues, marked redelivered, and exclusive queues are
        deleted.
        """
        self._client.close()

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        durable: bool | None = None,
        *,
        create: bool = True,
        origin: Mapping[str, Any] | None = None,
        **arguments: Unpack[QueueOptions],
    ) -> Queue:
        """Open a queue; declare it if it does not exist (durable, if nothing else is said). Arguments:
        docs/operations.md.

        Without `durable` and arguments, a queue that exists is opened as it is. With some, DeclarationMismatch says
        where it differs. With create=False it is opened as it is, whatever is given; QueueNotFound if it does not
        exist. `origin` is for gateways: what the client of another protocol declared it with, kept with a new queue,
        compared with nothing. Raises ResourceLocked if it is exclusive to another client, InvalidName, and UsageError
        (unknown or wrong argument).
        """
        wanted = _Wanted.of(name, durable, arguments)
        checked_flag(create, "create")
        catalog = self._client.catalog()
        declaration = catalog.queues.get(name)
        if not create:
            if declaration is None:
                raise QueueNotFound(f"there is no queue {name!r}: {DECLARE_QUEUE}")
            catalog.check_owner(declaration, self._client.epoch)
            if "expires" in declaration.arguments:
                self._client.declare("use_queue", name=name)
        elif declaration is None or not wanted.is_declared(declaration, self._client.epoch):
            self._client.declare("declare_queue", origin=_origin(name, origin), **wanted.request())
            declaration = self._client.catalog().queue(name)
        with self._client.queues_lock:
            found: Queue | None = self._client.queues.get(name)
            if found is None:
                found = self._client.queues[name] = Queue(self._client, declaration)
        refresh(found, declaration)
        return found

    @overload
    def work_queue(
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
    def work_queue(
        self,
        name: str,
        maxsize: int = 0,
        *,
        serializer: object,
        durable: bool | None = None,
        create: bool = True,
        **arguments: Unpack[QueueOptions],
    ) -> WorkQueue[Any]: ...
    def work_queue(
        self,
        name: str,
        maxsize: int = 0,
        *,
        serializer: object = None,
        durable: bool | None = None,
        create: bool = True,
        **arguments: Unpack[QueueOptions],
    ) -> WorkQueue[Any]:
        """A queue that behaves like queue.Queue (put, get, task_done, join, ...); opened or declared as by queue().

        `maxsize` limits the items that nobody has received yet (0: no limit, or that of the queue if it exists).
        `serializer` packs items: 'pickle', 'json', 'msgpack', or an object with dumps and loads or with encode and
        decode (None: items are bytes). Unpickling can run code: use 'pickle' only if everyone who can put is trusted.
        """
        queue = self.queue(name, durable, create=create, **limited(maxsize, arguments))
        return WorkQueue(queue, rejected_above(queue), serializer)

    @overload
    def worker(
        self,
        queue: str | Queue,
        function: Callable[[Message], object],
        *,
        concurrency: int = 1,
        processes: Literal[False] = False,
        prefetch: int | None = None,
        retries: int | None = None,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
    ) -> Worker: ...
    @overload
    def worker(
        self,
        queue: str | Queue,
        function: Callable[[Message], object],
        *,
        concurrency: int = 1,
        processes: Literal[True],
        prefetch: int | None = None,
        retries: int | None = None,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
    ) -> ProcessWorker: ...
    @overload
    def worker(
        self,
        queue: str | Queue,
        function: Callable[[Message], object],
        *,
        concurrency: int = 1,
        processes: bool = False,
        prefetch: int | None = None,
        retries: int | None = None,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
    ) -> Worker | ProcessWorker: ...
    def worker(
        self,
        queue: str | Queue,
        function: Callable[[Message], object],
        *,
        concurrency: int = 1,
        processes: bool = False,
        prefetch: int | None = None,
        retries: int | None = None,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
    ) -> Worker | ProcessWorker:
        """A loop that calls `function` with each message of a queue, `concurrency` at a time; its run() blocks.

        When the function returns, the message is acked. When it raises, the message waits for `backoff` seconds (twice
        as long after each further try, at most `backoff_max`) and is delivered again, at its old place; after `retries`
        of them it is rejected, for which the queue needs a dead_letter_exchange that leads to another queue.
        retries=None tries until it succeeds.
        In a queue with an ack_timeout, one that was delivered more often than that is rejected without a call.
        `prefetch` messages lie here at most; without it, as many as pay (with threads: `concurrency`).

        Threads run the function, or with `processes=True` processes of their own, started as by multiprocessing's
        "spawn": the function must be importable there, and the program needs `if __name__ == "__main__":`.
        Raises QueueNotFound, UsageError (a generator function, too: nobody would run it).
        """
        from warren.workers.faces import worker  # here: most programs handle messages themselves

        given = checked_queue(queue, Queue)
        handled = self.queue(given, create=False) if isinstance(given, str) else given
        chosen = worker.Retries.of(retries, backoff, backoff_max, handled)
        if not checked_flag(processes, "processes"):
            return worker.Worker(handled, function, concurrency, prefetch, chosen)
        from warren.workers.faces.worker_processes import ProcessWorker

        worker.checked_prefetch(prefetch, 1)
        options = {"prefetch": prefetch, "retries": retries, "backoff": backoff, "backoff_max": backoff_max}
        return ProcessWorker(handled, functools.partial(attach, self.directory), function, concurrency, options)

    def call(
        self,
        queue: str | Queue,
        body: Body,
        timeout: float = 30.0,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Put a message into a queue, and return the answer of whoever serves it (`serve`, or Queue.reply).

        Neither the message nor the answer is stored: a killed queue worker loses the calls under way. Raises TimedOut
        (no answer in time: nobody serves the queue, or it takes too long), CallFailed (the function raised),
        QueueNotFound, QueueFull, MessageTooLarge, PeerLost.
        """
        given = checked_queue(queue, Queue)
        found = self._called.get(given) if isinstance(given, str) else given
        if found is None:
            found = self._called[str(given)] = self.queue(str(given), create=False)
        options = {"headers": headers, "priority": priority, "properties": properties}
        return self._caller.call(found, server_of(found), body, timeout, options)

    def serve(
        self,
        queue: str | Queue,
        function: Callable[[Message], bytes | None],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
    ) -> Worker:
        """A loop that answers calls: what `function` returns for a message is the answer, what it raises is raised by
        the call as CallFailed. run(), stop(), `concurrency` and `prefetch` as for `worker`; any number of processes
        can serve a queue.
        """
        from warren.workers.faces import worker  # here: most programs serve nothing

        worker.checked_function(function, asynchronous=False)
        given = checked_queue(queue, Queue)
        handled = self.queue(given, create=False) if isinstance(given, str) else given
        chosen = worker.Retries.of(None, 1.0, 60.0, handled)
        return worker.Worker(handled, Answering(function), concurrency, prefetch, chosen)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue with its messages, bindings and subscriptions. Raises QueueNotFound, ResourceLocked.

        `if_unused`: only if nobody consumes from it (gets do not count); `if_empty`: only if it has no messages but
        those that consumers hold. Else PreconditionFailed, and the queue stays. Both are true when the queue goes:
        nothing comes in between.
        """
        check_name(name)
        delete_queue(self._client, name, if_unused, if_empty)

    def declare_queues(
        self, queues: Iterable[str | Mapping[str, Any]], durable: bool | None = None, **arguments: Unpack[QueueOptions]
    ) -> list[str]:
        """Declare many queues in one change: all of them, or none if one is refused. Returns the names of the new ones.

        Each is a name, or a mapping with `name` and its own `durable` or `arguments`. One that exists and of which
        nothing is said stays as it is, as with `queue`. This takes one request and one sync; afterwards `queue(name)`
        opens any of them without asking. Raises what `queue` raises.
        """
        wanted = [_Wanted.among(item, durable, arguments) for item in listed(queues, "queues")]
        known = self._client.catalog().queues
        epoch = self._client.epoch
        missing = [
            item for item in wanted if (found := known.get(item.name)) is None or not item.is_declared(found, epoch)
        ]
        if not missing:
            return []
        specifications = [item.request() for item in missing]
        answer = self._client.declare("declare_queues", queues=specifications)
        self._client.router()
        return list(answer["new"])

    def delete_queues(self, names: Iterable[str]) -> None:
        """Delete many queues in one change: all, or none if one is refused. Raises what `delete_queue` raises."""
        checked = [check_name(name) for name in listed(names, "names")]
        if checked:
            self._client.declare("delete_queues", names=checked)
            self._client.router()

    def queues(self) -> list[str]:
        """Names of all declared queues."""
        queues = list(self._client.catalog().queues.values())  # at once: another thread may follow the catalog
        return sorted(item.name for item in queues if not item.hidden)

    # -- exchanges ----------------------------------------------------------------------------------------------

    def declare_exchange(
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
        """Declare an exchange (direct, fanout, topic or headers). Messages that match no binding go to the exchange
        `alternate`, if it is given and exists. Raises DeclarationMismatch, InvalidName, UsageError.

        `internal`: nobody publishes to it; it gets what exchanges send that it is bound to, and dead letters.
        `auto_delete`: it is deleted with the last binding of something to it. `arguments` mean nothing here: they are
        kept, and part of the declaration. `origin`: as that of a queue.
        """
        if type not in EXCHANGE_TYPES:
            types = ", ".join(EXCHANGE_TYPES)
            raise UsageError(f"exchange {shown(name)}: there is no type {shown(type)}; choose one of {types}")
        if alternate is not None:
            checked_exchange(alternate)
        for what, flag in (("durable", durable), ("internal", internal), ("auto_delete", auto_delete)):
            checked_flag(flag, what)
        given = checked_opaque(f"exchange {shown(name)}: arguments", arguments)
        found = self._client.catalog().exchanges.get(checked_exchange(name))
        wanted = (type, durable, alternate, internal, auto_delete)
        if (
            found is None
            or (found.type, found.durable, found.alternate, found.internal, found.auto_delete) != wanted
            or found.arguments
            or given
        ):
            if found is None:
                check_name(name, "exchange")
            self._client.control(
                "declare_exchange",
                name=name,
                type=type,
                durable=durable,
                alternate=alternate,
                internal=internal,
                auto_delete=auto_delete,
                arguments=given,
                origin=_origin(name, origin),
            )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings; with `if_unused` only if nothing is bound to it. Raises
        ExchangeNotFound, PreconditionFailed.
        """
        checked_flag(if_unused, "if_unused")
        self._client.control("delete_exchange", name=checked_exchange(name), if_unused=if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Send what is published to the exchange `source` with this routing key to the exchange `destination`, too, as
        if it had been published there. `arguments`: as for `bind`. Raises ExchangeNotFound, UsageError.

        A queue gets a message once, whatever the ways to it, and each exchange is asked once, so circles do no harm.
        """
        self._client.control("bind_exchange", **_onward(destination, source, routing_key, arguments))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Remove the binding with this routing key and these arguments. Returns False if there was none."""
        answer = self._client.control("unbind_exchange", **_onward(destination, source, routing_key, arguments))
        return bool(answer["removed"])

    def bind(
        self,
        queue: str | Queue,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Route messages of an exchange with this routing key to the queue. Raises QueueNotFound, ExchangeNotFound,
        ResourceLocked, UsageError.

        `arguments` of a binding to a headers exchange are the headers that a message must have (None: any value), and
        `x-match`: "all" (default), "any", "all-with-x", "any-with-x". Of other exchanges they mean nothing: they are
        kept, and two bindings may differ in them alone.
        """
        self._client.declare("bind", **_binding((queue, exchange, routing_key, arguments)))

    def unbind(
        self,
        queue: str | Queue,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Remove the binding with this routing key and these arguments. Returns False if there was none."""
        answer = self._client.declare("unbind", **_binding((queue, exchange, routing_key, arguments)))
        return bool(answer["removed"])

    def bind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Add bindings in one change: all of them, or none if one is refused. Returns how many are new.

        Each is (queue, exchange), (queue, exchange, routing key) or (queue, exchange, routing key, arguments).
        """
        wanted = [_binding(item) for item in listed(bindings, "bindings")]
        return int(self._client.declare("bind_many", bindings=wanted)["new"]) if wanted else 0

    def unbind_many(self, bindings: Iterable[Sequence[Any]]) -> int:
        """Remove bindings in one change, given as for `bind_many`. Returns how many existed."""
        wanted = [_binding(item) for item in listed(bindings, "bindings")]
        return int(self._client.declare("unbind_many", bindings=wanted)["removed"]) if wanted else 0

    @overload
    def publish(
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
    def publish(
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
    def publish(
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
    def publish(
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
    def publish(
        self,
        body: Body,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        ttl: float | None = None,
        delay: float | None = None,
        message_id: str | bytes | None = None,
        properties: Mapping[str, Any] | None = None,
        persistent: bool = True,
    ) -> Confirm | None:
        """Publish a message to an exchange. It is stored once, however many queues receive it.

        Returns when it is as durable as requested (default: 'synced' if any of its queues is durable, or it goes to a
        topic) wherever it goes; with wait=False, returns a Confirm. A message that matches no queue and no topic is
        dropped, or with `mandatory` refused with Unroutable before anything is sent. `priority` and the other options:
        see Queue.put. QueueFull, TopicNotFound: a queue refused the message, or a topic was deleted meanwhile, and the
        others have it.
        """
        client = self._client
        find = (
            client.route if mandatory is False or not checked_flag(mandatory, "mandatory") else client.mandatory_route
        )
        said = publish_options(headers, properties, message_id, priority, ttl, delay, persistent)
        options = None if said is PLAIN else said.options()
        while True:
            route = find(exchange, routing_key, headers)
            level = level_to(durability, [route], said)
            meta = route.meta if said is PLAIN else said.packed(exchange, routing_key) or route.meta
            try:
                if route.topics:
                    told = parts_of(client.turns, route, meta, options, ttl)
                    return client.core.publish(route.core, body, level, meta, timeout, wait, options, told)
                return client.core.publish(route.core, body, level, meta, timeout, wait, options)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
            except QueueNotFound as error:
                if mandatory:
                    raise Unroutable(f"the queue was deleted just now, the message was dropped: {error}") from error
                raise
            except TopicNotFound as error:
                if mandatory and not route.queues:
                    raise Unroutable(f"the topic was deleted just now, the message was dropped: {error}") from error
                raise

    @overload
    def publish_many(
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
    def publish_many(
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
    def publish_many(
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
    def publish_many(
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
        priority: int | Sequence[int] = 0,
        ttl: float | Sequence[float | None] | None = None,
        delay: float | Sequence[float | None] | None = None,
        message_id: Sequence[str | bytes | None] | None = None,
        properties: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        persistent: bool | Sequence[bool] = True,
    ) -> Confirm | None:
        """Publish many messages in order, with one Confirm for all. With `routing_keys` each has its own.

        The other options are one value for all, or a list or tuple with one per message. QueueFull: `refused` lists the
        refused ones.
        """
        said = publish_options(headers, properties, message_id, priority, ttl, delay, persistent)
        checked_flag(wait, "wait")
        to = Destination(exchange, routing_key, routing_keys, mandatory)
        return Many(self._client, bodies, to, durability, said).send(timeout, wait)

    # -- the rest -----------------------------------------------------------------------------------------------

    def store(self, transient: bool = False) -> Store:
        """The message store itself."""
        return Store(self._client, checked_flag(transient, "transient"))

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(
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
        """Open a topic; declare it if it does not exist, with 4 queues if nothing else is said (1 to 1,024).

        Retention: messages go that were stored longer than `retention_s` seconds ago, and the oldest when those of the
        topic take more than `retention_bytes` of the log; None: they stay, or what the topic has (Topic.set changes
        it).

        `compacted`: of each key the newest message stays, and one without a body takes its key away; each message needs
        a key. Nothing can change that later, and there is no retention beside it; None: as it is, a new one is not.
        docs/topics.md.

        `by_name`: what is published to the default exchange with the topic's name as routing key is appended to it, if
        no queue has that name; None: as it is, a new one is not reached so. `origin`: as that of a queue.

        `on_check`: from now on until the node is closed, this client answers for half messages of the topic (prepare)
        that were left behind: the function is called with a HalfMessage, in a thread of its own, and returns True or
        "commit", False or "rollback", None or "unknown" (it is asked again later). docs/topics.md.

        With create=False it is opened as it is; TopicNotFound if it does not exist. Raises DeclarationMismatch if it
        has another number of queues than `queues`, another retention than what is given, or is compacted and should not
        be, or the other way, InvalidName, UsageError, LimitError (too many queues in all).
        """
        checked_flag(create, "create")
        for what, flag in (("compacted", compacted), ("by_name", by_name)):
            if flag is not None:
                checked_flag(flag, what)
        told = (queues, retention_s, retention_bytes, compacted, by_name)
        if _is_of_group(name):
            return self._group_topic(name, told == (None,) * 5)
        check_topic_name(name)
        half_checks.checked(on_check)
        if queues is not None:
            queues = checked_count(queues, f"topic {name!r}: queues", 1, TOPIC_QUEUES_MAX)
        kept = checked(1, name, queues or 1, retention_s, retention_bytes, False)
        retention_s, retention_bytes = kept.retention_s, kept.retention_bytes
        declared = self._client.catalog().topics.get(name)
        if declared is None and not create:
            raise TopicNotFound(f"there is no topic {name!r}: {DECLARE_TOPIC}")
        told = (queues, retention_s, retention_bytes, compacted, by_name)
        if create and (
            declared is None
            or compacted not in (None, declared.compacted)
            or by_name not in (None, bool(declared.by_name))
            or queues not in (None, declared.queues)
            or retention_s not in (None, declared.retention_s)
            or retention_bytes not in (None, declared.retention_bytes)
        ):
            self._client.declare(
                "declare_topic",
                name=name,
                queues=queues,
                retention_s=retention_s,
                retention_bytes=retention_bytes,
                compacted=compacted,
                by_name=by_name,
                as_it_is=told == (None,) * 5,
                origin=_origin(name, origin),
            )
            declared = self._client.catalog().topic(name)
        assert declared is not None
        opened = Topic(self._client, declared)
        if on_check is not None:
            half_checks.answer_for(self._client, name, on_check)
        return opened

    def _group_topic(self, name: str, as_it_is: bool) -> Topic:
        """A topic that belongs to a group of readers."""
        declared = self._client.catalog().topics.get(name)
        if declared is None:
            raise TopicNotFound(
                f"there is no topic {shown(name)}: a group has it from the first message on that it gives back"
            )
        if not as_it_is:
            raise UsageError(f"topic {name!r} is a group's: it is opened as it is, without queues and retention")
        return Topic(self._client, declared)

    def bind_topic(
        self,
        topic: str | Topic,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = KEY,
        tag: str | None = TAG,
    ) -> None:
        """Append what is published to an exchange with this routing key to the topic, too. `arguments`: as for `bind`.

        `key`, `tag`: what of a message becomes the key and the tag of its record: "routing_key", "message_id" or
        another property, "header:NAME", or None. docs/topics.md says how a record carries the rest. Raises
        TopicNotFound, ExchangeNotFound, UsageError, DeclarationMismatch (it is bound so, with another key or tag).
        """
        wanted = _topic_binding(topic, exchange, routing_key, arguments)
        wanted |= {"key": checked_source("key", key), "tag": checked_source("tag", tag)}
        self._client.control("bind_topic", **wanted)

    def unbind_topic(
        self,
        topic: str | Topic,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Remove the binding of the topic with this routing key and these arguments. Returns False if there was
        none.
        """
        answer = self._client.control("unbind_topic", **_topic_binding(topic, exchange, routing_key, arguments))
        return bool(answer["removed"])

    def topics(self, all: bool = False) -> list[str]:
        """Names of all declared topics; with `all` those, too, that belong to groups of readers (%RETRY%…, %DLQ%…)."""
        checked_flag(all, "all")
        return sorted(name for name in self._client.catalog().topics if all or is_declared(name))

    def status(self) -> dict[str, Any]:
        """The report of `warren status --json` (docs/operations.md). Raises TimedOut, NodeNotRunning, ClosedError."""
        return self._client.control("status")

    def ping(self) -> dict[str, Any]:
        """Ask the supervisor whether it answers: {pid, state}."""
        return self._client.control("ping")


def _is_of_group(name: object) -> bool:
    return isinstance(name, str) and not is_declared(name)


def _unpickled(place: Place) -> Node:
    return Node(shared(place))


def client_of(node: Node) -> Client:
    """What a node's face stands on, for other faces of it."""
    return node._client


def _name(queue: str | Queue) -> str:
    return queue.name if isinstance(queue, Queue) else check_name(queue)


class _Wanted(NamedTuple):
    """A queue as a program wants it."""

    name: str
    durable: bool
    arguments: QueueArguments
    asked: bool  #: whether more was said than the name

    @staticmethod
    def of(name: str, durable: object, arguments: Mapping[str, Any]) -> _Wanted:
        """Checked. Raises InvalidName, UsageError."""
        check_name(name)
        asked = durable is not None or any(value is not None for value in arguments.values())
        kept = durable is None or checked_flag(durable, f"queue {name!r}: durable")
        return _Wanted(name, kept, QueueArguments.of(name, arguments), asked)

    @staticmethod
    def among(item: str | Mapping[str, Any], durable: object, arguments: Mapping[str, Any]) -> _Wanted:
        """One of many, with what is said of all."""
        if not isinstance(item, Mapping):
            return _Wanted.of(item, durable, arguments)
        if unknown := item.keys() - {"name", "durable", "arguments"}:
            raise UsageError(f"a queue has name, durable and arguments; there is no {shown(next(iter(unknown)))}")
        own = {**arguments, **checked_mapping(item.get("arguments"))}
        return _Wanted.of(check_name(item.get("name")), item.get("durable", durable), own)

    def is_declared(self, found: QueueDeclaration, client: int) -> bool:
        """True when declaring it again would change nothing. A queue with a lease is declared again all the same: that
        counts as a use of it. One of another client is asked for: that may be gone.
        """
        if found.arguments.keys() & {"expires", "auto_delete"} or found.owner not in (0, client):
            return False
        return not self.asked or (found.durable, found.arguments) == (self.durable, self.arguments.given())

    def request(self) -> dict[str, Any]:
        """What the supervisor is asked for."""
        return {
            "name": self.name,
            "durable": self.durable,
            "arguments": self.arguments.given(),
            "as_it_is": not self.asked,
        }


def _binding(item: object) -> dict[str, Any]:
    if not isinstance(item, (list, tuple)) or not 2 <= len(item) <= 4:
        raise UsageError(
            f"a binding is (queue, exchange, routing key, arguments), the last two may be left out: {shown(item)}"
        )
    queue, exchange, *rest = item
    return {
        "queue": _name(queue),
        "exchange": checked_exchange(exchange),
        "routing_key": check_routing_key(rest[0]) if rest else "",
        "arguments": checked_opaque("binding arguments", rest[1] if len(rest) > 1 else None),
    }


def _onward(destination: object, source: object, routing_key: object, arguments: object) -> dict[str, Any]:
    return {
        "destination": checked_exchange(destination),
        "source": checked_exchange(source),
        "routing_key": check_routing_key(routing_key),
        "arguments": checked_opaque("binding arguments", arguments),
    }


def _origin(name: str, origin: object) -> dict[str, Any] | None:
    return None if origin is None else checked_opaque(f"{shown(name)}: what origin names", origin)


def _topic_binding(topic: object, exchange: object, routing_key: object, arguments: object) -> dict[str, Any]:
    return {
        "topic": topic.name if isinstance(topic, Topic) else check_topic_name(topic),
        "exchange": checked_exchange(exchange),
        "routing_key": check_routing_key(routing_key),
        "arguments": checked_opaque("binding arguments", arguments),
    }


def attach(
    directory: str | Path,
    timeout: float = ATTACH_TIMEOUT_S,
    *,
    name: str | None = None,
    call_timeout: float | None = CALL_TIMEOUT_S,
) -> Node:
    """Attach to the running node of a directory. `timeout` covers a node that is just starting.

    `call_timeout` limits calls that have no timeout of their own, and publishing with wait=False, in seconds (None: no
    limit); docs/python.md lists them. `name` is shown in `warren status`. Raises NodeNotRunning, PermissionRefused,
    FormatVersionError, LimitError.
    """
    return Node(Client(directory, name, timeout, call_timeout=call_timeout))


def open(
    directory: str | Path,
    *,
    timeout: float = START_TIMEOUT_S,
    name: str | None = None,
    idle_exit: float | None = IDLE_EXIT_S,
    call_timeout: float | None = CALL_TIMEOUT_S,
    profile: str | None = None,
    group: str | int | None = None,
    **settings: Unpack[NodeSettings],
) -> Node:
    """Attach to the node of a directory; start one if none runs. `name`, `call_timeout`: as for attach.

    A node that is started this way ends `idle_exit` seconds after its last client has left (None: never), and waits for
    its first one for 5 s at least. `settings` are the node's settings (docs/operations.md); a node that already runs
    must have the same. `profile` (small, default or large) sets all sizes; a new directory gets small by itself where
    default does not fit, and an existing one keeps its sizes (docs/containers.md). `group`: its members may use the
    node, too; only its owner starts it (docs/operations.md). Raises what makes the start fail: UsageError, NoRoom (too
    little shared memory, memory or disk), FormatVersionError, PermissionRefused, DiskFull, LimitError, StartFailed,
    TimedOut.
    """
    target = NodeDirectory(directory)
    checked_seconds(timeout, endless=False)
    checked_seconds(idle_exit, what="idle_exit")
    idle_exit = None if idle_exit == math.inf else idle_exit
    checked_timeout(call_timeout)
    checked_client_name(name)
    wanted = with_places({**settings})
    if profile is not None:
        wanted["profile"] = profile
    if group is not None:
        wanted["group"] = group
    if wanted:
        changed_settings(Settings(), wanted)
    deadline = time.monotonic() + timeout
    left, pause, why = timeout, AGAIN_FIRST_S, ""
    while True:
        try:
            node = None
            with contextlib.suppress(NodeNotRunning):
                node = attach(target.path, left, name=name, call_timeout=call_timeout)
            if node is None:
                left = max(deadline - time.monotonic(), 0.0)
                launch(target.path, idle_exit=idle_exit, settings=wanted, timeout=left)
                left = max(deadline - time.monotonic(), 0.0)
                node = attach(target.path, left, name=name, call_timeout=call_timeout)
            try:
                _check_settings(node, wanted)
            except ClosedError as error:
                node.close()
                raise NodeNotRunning(str(error)) from None
            except BaseException:
                node.close()
                raise
            return node
        except NodeNotRunning as error:  # it is going away, or has ended for lack of clients
            why = str(error)
            left = deadline - time.monotonic()
            if left <= pause:
                raise TimedOut(_not_opened(target, timeout, why)) from None
        except TimedOut as error:
            if not why:
                raise
            raise TimedOut(f"{error} (before that: {why})") from None
        time.sleep(pause)
        left -= pause
        pause = min(2 * pause, AGAIN_MAX_S)


def _not_opened(directory: NodeDirectory, timeout: float, why: str) -> str:
    return (
        f"no node of {directory.path} could be attached to within {timeout:g} s: {why}; stop a node that does not end "
        f"by itself with {command('stop', directory.path)}; {directory.log} says what it is doing"
    )


def _check_settings(node: Node, settings: dict[str, Any]) -> None:
    if not settings:
        return
    check_running(node.directory, node._client.control("settings")["settings"], settings)
