"""The public face of a node: what `warren.open` and `warren.attach` return."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from warren.engine._core import Confirm, SessionLost
from warren.engine.catalog import EXCHANGE_TYPES
from warren.engine.config import Settings
from warren.engine.errors import (
    ClosedError,
    DeclarationMismatch,
    NodeNotRunning,
    QueueNotFound,
    UsageError,
)
from warren.engine.names import check_name, check_routing_key
from warren.engine.node_directory import NodeDirectory, changed_settings
from warren.workers.client import Client, Route, level_of
from warren.workers.launch import launch
from warren.workers.queues import Queue, encode_meta
from warren.workers.store import Store
from warren.workers.topics import topic

#: seconds without clients after which a node started by `open` ends
IDLE_EXIT_S = 10.0
START_TIMEOUT_S = 60.0
ATTACH_TIMEOUT_S = 5.0


class Node:
    """A node that this process is attached to. A context manager; close() ends the attachment, not the node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queues: weakref.WeakValueDictionary[str, Queue] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

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
        """Wait for what was submitted, then leave the node. Messages not acked return to their queues, redelivered."""
        self._client.close()

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, name: str, durable: bool = True, *, create: bool = True, **arguments: Any) -> Queue:
        """Open a queue, declaring it when it is not there.

        Raises DeclarationMismatch when it exists with other properties, InvalidName, UsageError (unknown argument).
        With create=False it is opened as it is, and QueueNotFound is raised when it is not there.
        """
        check_name(name)
        declaration = self._client.router().catalog.queues.get(name)
        if not create:
            if declaration is None:
                raise QueueNotFound(f"there is no queue {name!r}: declare it with node.queue({name!r}) first")
        elif declaration is None or declaration.durable != durable or declaration.arguments != arguments:
            self._client.control("declare_queue", name=name, durable=bool(durable), arguments=arguments)
            declaration = self._client.router().catalog.queue(name)
        with self._lock:
            found = self._queues.get(name)
            if found is None:
                found = self._queues[name] = Queue(self._client, declaration)
        if found.durable != declaration.durable or not found._handle.usable:
            found._renew()
        return found

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages, bindings and subscriptions. Raises QueueNotFound."""
        check_name(name)
        self._client.control("delete_queue", name=name)
        self._client.router()

    def queues(self) -> list[str]:
        """Names of the queues that are declared."""
        return sorted(item.name for item in self._client.router().catalog.queues.values() if not item.hidden)

    # -- exchanges ----------------------------------------------------------------------------------------------

    def declare_exchange(self, name: str, type: str = "direct", durable: bool = True) -> None:
        """Declare an exchange (direct, fanout or topic). Raises DeclarationMismatch, InvalidName, UsageError."""
        if type not in EXCHANGE_TYPES:
            raise UsageError(f"exchange {name!r}: there is no type {type!r}; choose one of {', '.join(EXCHANGE_TYPES)}")
        found = self._client.router().catalog.exchanges.get(name)
        if found is not None and (found.type, found.durable) != (type, durable):
            raise DeclarationMismatch(
                f"exchange {name!r} exists as {'durable' if found.durable else 'transient'} {found.type}: "
                "use it as it is, or delete it first"
            )
        if found is None:
            check_name(name, "exchange")
            self._client.control("declare_exchange", name=name, type=type, durable=bool(durable))

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings. Raises ExchangeNotFound."""
        self._client.control("delete_exchange", name=name)

    def bind(self, queue: str | Queue, exchange: str, routing_key: str = "") -> None:
        """Let messages of an exchange with this routing key go to the queue. Raises QueueNotFound, ExchangeNotFound."""
        check_routing_key(routing_key)
        self._client.control("bind", queue=_name(queue), exchange=exchange, routing_key=routing_key)

    def unbind(self, queue: str | Queue, exchange: str, routing_key: str = "") -> bool:
        """Remove a binding; False when there was none."""
        answer = self._client.control("unbind", queue=_name(queue), exchange=exchange, routing_key=routing_key)
        return bool(answer["removed"])

    def publish(
        self,
        body: bytes | bytearray | memoryview,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Confirm | None:
        """Publish a message to an exchange; it is stored once, however many queues it goes to.

        Returns when it is as durable as asked for (default: 'synced' if any of its queues is durable); with
        wait=False a Confirm. A message without a queue is dropped, or with `mandatory` refused with Unroutable.
        """
        client = self._client
        while True:
            route = client.mandatory_route(exchange, routing_key) if mandatory else client.route(exchange, routing_key)
            level = _level(durability, [route])
            meta = route.meta if headers is None else encode_meta(exchange, routing_key, headers)
            try:
                return client.core.publish(route.core, body, level, meta, timeout, wait)
            except SessionLost:
                continue

    def publish_many(
        self,
        bodies: Iterable[bytes | bytearray | memoryview],
        exchange: str = "",
        routing_key: str = "",
        *,
        routing_keys: Sequence[str] | None = None,
        mandatory: bool = False,
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Confirm | None:
        """Publish many messages in order; with `routing_keys` each has its own. One Confirm for all of them."""
        client = self._client
        listed = bodies if isinstance(bodies, (list, tuple)) else list(bodies)
        each = None if headers is None or isinstance(headers, Mapping) else list(headers)
        for what, given in (("routing_keys", routing_keys), ("headers", each)):
            if given is not None and len(given) != len(listed):
                raise UsageError(f"{what}: {len(given)} for {len(listed)} bodies")
        find = client.mandatory_route if mandatory else client.route
        while True:
            keys = routing_keys if routing_keys is not None else [routing_key]
            known = {key: find(exchange, key) for key in set(keys)} if listed else {}
            level = _level(durability, known.values())
            if routing_keys is None and each is None:
                meta: Any = encode_meta(exchange, routing_key, headers)
            else:
                pairs = zip(
                    keys if routing_keys is not None else [routing_key] * len(listed),
                    each if each is not None else [headers] * len(listed),
                    strict=True,
                )
                meta = [known[key].meta if not item else encode_meta(exchange, key, item) for key, item in pairs]
            routes = [known[key].core for key in keys] if routing_keys is not None else known.get(routing_key)
            try:
                core = routes.core if isinstance(routes, Route) else (routes or [])
                return client.core.publish_many(core, listed, level, meta, timeout, wait)
            except SessionLost:
                continue

    # -- the rest -----------------------------------------------------------------------------------------------

    def store(self, transient: bool = False) -> Store:
        """The message store itself."""
        return Store(self._client, bool(transient))

    def topic(self, name: str, queues: int = 4) -> Any:
        """A topic (replayable log). Raises NotYet in this version."""
        return topic(name)

    def status(self) -> dict[str, Any]:
        """What `warren status --json` tells."""
        return self._client.control("status")

    def ping(self) -> dict[str, Any]:
        """Ask the supervisor for a sign of life: {pid, state}."""
        return self._client.control("ping")


def _name(queue: str | Queue) -> str:
    return queue.name if isinstance(queue, Queue) else check_name(queue)


def _level(durability: str | None, routes: Iterable[Route]) -> int:
    known = list(routes)
    durable = any(route.durable for route in known)
    if not any(route.queues for route in known):
        return level_of(durability, True, "nothing") if durability is not None else 0
    return level_of(durability, durable, "every queue that this goes to")


def attach(directory: str | Path, timeout: float = ATTACH_TIMEOUT_S, *, name: str | None = None) -> Node:
    """Attach to the node that runs for a directory; `timeout` is for one that is just starting.

    `name` is for people (`warren status`). Raises NodeNotRunning, PermissionRefused, FormatVersionError, LimitError.
    """
    return Node(Client(directory, name, timeout))


def open(
    directory: str | Path,
    *,
    timeout: float = START_TIMEOUT_S,
    name: str | None = None,
    idle_exit: float | None = IDLE_EXIT_S,
    **settings: Any,
) -> Node:
    """Attach to the node of a directory, and start one if none runs.

    A node that was started so ends `idle_exit` seconds after its last client (None: never).
    `settings` are settings of the node (docs/operations.md); a node that runs already must have the same. Raises what
    refuses the start: UsageError, FormatVersionError, PermissionRefused, DiskFull, LimitError, TimedOut.
    """
    target = NodeDirectory(directory)
    if settings:
        changed_settings(Settings(), settings)
    while True:
        try:
            node = attach(target.path, timeout, name=name)
        except NodeNotRunning:
            launch(target.path, idle_exit=idle_exit, settings=settings, timeout=timeout)
            try:
                node = attach(target.path, timeout, name=name)
            except NodeNotRunning:  # it ended for lack of clients before we came
                continue
        try:
            _check_settings(node, settings)
        except (ClosedError, NodeNotRunning):  # it was just going away
            node.close()
            continue
        except BaseException:
            node.close()
            raise
        return node


def _check_settings(node: Node, settings: dict[str, Any]) -> None:
    if not settings:
        return
    running = node._client.control("settings")["settings"]
    wanted = changed_settings(Settings(), settings)
    for name in settings:
        value = getattr(wanted, name)
        if name == "workers" and not value:
            continue
        if running[name] != value:
            raise UsageError(
                f"the node of {node.directory} runs with {name}={running[name]}, not {value}: "
                "stop it to change that, or leave the setting out"
            )
