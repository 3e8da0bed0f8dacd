"""A process as a client of a node: its attachment, what it knows of the catalog, and how it comes back after trouble.

    client.py      Client: one per warren.open / warren.attach, until close(); makes attachments, as many as it takes
    attachment.py  Attachment: one registration, with a slot, a region, the core that uses them, the servers' regions
    trouble.py     Trouble: what a waiting call says when nobody answers, or something is wrong
    notices.py     Notices: what the program's log is told: alarms, blocked publishers, messages that came again
    routes.py      Route: where messages of one exchange and routing key go
    arguments.py   what callers give, checked
    waiter.py      the thread that sleeps for all that is awaited in event loops, and calls back

When an attachment is over (node stopped and started anew, link closed by a server, fork) the core raises AttachmentLost
before anything is submitted; whoever called asks for another attachment and calls again. What was submitted and not
confirmed is reported as PeerLost, never repeated by itself. Whoever asks for the attachment in use gets none that is
over: a node that was stopped says so in the superblock, which stays mapped (`over`, one load), so nobody is told what
the catalog or the statistics of a node of the past say.

Invariant: waiting is the core's; `hook` sets right what it can (regions of a restarted server, a new catalog), or
raises.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

import msgspec

from warren.engine import _core, errors
from warren.engine._core import AttachmentLost
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog import metadata
from warren.engine.catalog.arguments import ack_timeout_of
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.names import check_routing_key
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.catalog.routing import Router
from warren.engine.catalog.topic_bindings import TopicRoute
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import (
    ClosedError,
    Error,
    NodeNotRunning,
    PeerLost,
    QueueNotFound,
    StoreError,
    SyncFailed,
    TimedOut,
    TopicNotFound,
    Unroutable,
    UsageError,
)
from warren.engine.kernel.atomic_file import explained
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.kernel.refusal import Refusal
from warren.engine.queues.control import AnswerOf, Request
from warren.engine.saying import DECLARE
from warren.engine.topics import control as topic_control
from warren.engine.topics.names import store_host
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST
from warren.workers.client.arguments import checked_client_name, checked_exchange, checked_seconds, checked_timeout
from warren.workers.client.attachment import NODE_DRAINING, NODE_STOPPED, Attachment, find_superblock
from warren.workers.client.notices import Notices
from warren.workers.client.routes import Route
from warren.workers.client.topic_parts import Turns
from warren.workers.client.trouble import Trouble
from warren.workers.process import standstill
from warren.workers.process.control import WAIT_MAX_S, ControlClient

#: how long a call without a timeout waits for room, when it does not wait for what becomes of a thing
CALL_TIMEOUT_S = 30.0
#: how long close() waits for what was submitted
CLOSE_WAIT_S = 10.0
#: how long close() waits for the worker's last word on what was delivered ahead
GIVE_BACK_S = 1.0
#: how often queues with messages delivered ahead are looked at, after a hot loop of gets
HOARD_S = 0.1
ROUTES_MAX = 65536
#: why the core asks when a wait takes long: then it is looked what there is to tell
_LONG = frozenset({_core.HOOK_CHECK, _core.HOOK_EPOCH, _core.HOOK_TIMED_OUT, _core.HOOK_SILENT})
#: what is not done in time when publishing is blocked
_PUBLISHING = ("publish", "room for the message")
_NO_ROUTES: Mapping[Any, Route] = {}

log = logging.getLogger("warren.client")


class Client:
    """This process at one node, from attach to close; safe for threads and for fork."""

    def __init__(
        self,
        directory: Path | str,
        name: str | None,
        timeout: float,
        *,
        counted: bool = True,
        call_timeout: float | None = CALL_TIMEOUT_S,
        attach: bool = True,
        for_many: bool = False,
    ) -> None:
        """Attach within `timeout`; with attach=False, when it is used first. `for_many`: it consumes for many programs
        or tasks, and can hold as many messages unacked as the setting amqp_delivery_slots says.
        """
        self._for_many = for_many
        self._counted = counted
        checked_seconds(timeout, endless=False)
        self.call_timeout = checked_timeout(call_timeout)
        self.directory = NodeDirectory(directory)
        self.name = checked_client_name(name) or _default_name()
        self.closed = False
        #: called first when it is closed, with the seconds that each may take
        self.at_close: list[Callable[[float], None]] = []
        self.pid = os.getpid()
        self._lock = threading.RLock()
        self._control_lock = threading.Lock()
        self._control = ControlClient(self.directory.path)
        self._attachment: Attachment | None = None
        self._catalog = catalog_log.Reader(self.directory.path)
        self._router: Router | None = None
        self._routes: dict[str, dict[Any, Route]] = {}  # of each exchange, by routing key
        self._routes_n = 0
        self.turns = Turns()  #: of topics that are bound to exchanges
        self._handles: weakref.WeakValueDictionary[int, _core.QueueHandle] = weakref.WeakValueDictionary()
        self._older: weakref.WeakSet[_core.QueueHandle] = weakref.WeakSet()
        self._hot: dict[int, _core.QueueHandle] = {}
        self._tidier: threading.Thread | None = None
        self._trouble = Trouble(self.directory)
        self._notices = Notices()
        self._owner_epoch = 0  #: the attachment that declared an exclusive queue
        #: the one object for each queue, by name: a process is one consumer of a queue (workers/faces/queues.py)
        self.queues: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.queues_lock = threading.Lock()
        self._was_attached = attach
        if attach:
            self._attachment = self._attach(timeout)
            _close_with_child()
        _clients.add(self)

    # -- attachments --------------------------------------------------------------------------------------------

    def attachment(self, timeout: float = 5.0) -> Attachment:
        """The attachment in use; a new one when there is none any more. Raises ClosedError, LimitError."""
        attachment = self._attachment
        if attachment is not None and not attachment.core.over:
            return attachment
        with self._lock:
            if self.closed:
                raise ClosedError(f"this client of {self.directory.path} is closed: attach again")
            attachment = self._attachment
            if attachment is not None and not attachment.core.over:
                return attachment
            forget_control = self.pid != os.getpid()
            if attachment is not None:
                self._tell_over(attachment)
                attachment.leave(None)
                self._attachment = None
            self.pid = os.getpid()
            if forget_control:
                self.name = child_name(self.name)
            try:
                self._attachment = self._attach(timeout)
            except NodeNotRunning as error:
                if not self._was_attached:
                    raise
                raise ClosedError(
                    f"the node of {self.directory.path} was stopped: start it again, or close this client"
                ) from error
            if self._was_attached:
                node = self._attachment.superblock.supervisor.pid
                log.info("attached again to the node of %s (supervisor %d)", self.directory.path, node)
            self._was_attached = True
            _close_with_child()
            return self._attachment

    def _tell_over(self, attachment: Attachment) -> None:
        self._notices.came_again(attachment, at_once=True)
        if attachment.superblock.state == NODE_STOPPED:
            log.warning("the node of %s has ended: it was stopped, or had no client for long", self.directory.path)

    @property
    def attached(self) -> Attachment | None:
        """The attachment in use, over or not; None when there is none."""
        return self._attachment

    @property
    def epoch(self) -> int:
        """The client epoch of the attachment in use; exclusive queues belong to one."""
        return self.attachment().slot.client_epoch

    @property
    def core(self) -> _core.Client:
        """The core of the attachment in use."""
        return self.attachment().core

    def _attach(self, timeout: float) -> Attachment:
        with explained(f"cannot attach to the node of {self.directory.path}"):
            return self._attach_within(time.monotonic() + timeout)

    def _attach_within(self, deadline: float) -> Attachment:
        while True:
            superblock, descriptor = find_superblock(self.directory, deadline)
            try:
                slots = self.directory.read().settings.amqp_delivery_slots if self._for_many else 0
                attachment = Attachment(
                    superblock,
                    self.directory,
                    self.name,
                    self._hook_weakly(),
                    self._counted,
                    self.call_timeout,
                    descriptor,
                    slots,
                )
            except BaseException:
                with contextlib.suppress(BufferError):
                    superblock.close()
                os.close(descriptor)
                raise
            self._router = None
            here = f"/proc/self/fd/{attachment.descriptor}"  # of no other directory
            self._catalog = catalog_log.Reader(here, self.directory.path)
            self._routes, self._routes_n = {}, 0
            self._trouble.forget()
            try:
                if superblock.state < NODE_STOPPED:
                    return attachment
            except BaseException:
                attachment.leave(None)
                raise
            attachment.leave(None)

    def _hook_weakly(self) -> Callable[..., None]:
        """The hook for a core. It does not keep the client: one that is forgotten goes away."""
        reference = weakref.ref(self)

        def hook(code: int, server: int, what: str, seconds: float = -1.0) -> None:
            client = reference()
            if client is None:
                raise ClosedError("the client was dropped")
            client.hook(code, server, what, seconds)

        return hook

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Wait for what was submitted, deregister, detach: `wait_s` at most in all. When this returns in time, what was
        delivered and not acked is back in its queues, and exclusive queues are gone.
        """
        deadline = time.monotonic() + wait_s
        for end in self.at_close:
            end(min(wait_s, GIVE_BACK_S))
        with self._lock:
            if self.closed:
                return
            self.closed = True
            attachment, self._attachment = self._attachment, None
            self._hot.clear()
        if attachment is not None:
            error = ClosedError(f"this client of {self.directory.path} was closed: attach again")
            mine = attachment.pid == os.getpid()
            self._notices.came_again(attachment, at_once=True)
            if mine:
                with contextlib.suppress(Error, AttachmentLost):  # the servers return it all the same
                    self._give_back(attachment, min(wait_s, GIVE_BACK_S))
                if self._owner_epoch == attachment.slot.client_epoch and not attachment.deserted():
                    with contextlib.suppress(Error):  # the supervisor finds them without an owner
                        self._release_queues(attachment, min(wait_s, GIVE_BACK_S))
            attachment.leave(error, max(0.0, deadline - time.monotonic()) if mine else 0.0)
        self._control.close()
        _clients.discard(self)

    def deserted(self) -> bool:
        """Whether nobody lives at the node of the attachment in use, if there is one."""
        attachment = self._attachment
        if attachment is None or attachment.core.over:
            return False
        self._look_for(attachment)
        return attachment.deserted()

    def _look_for(self, attachment: Attachment) -> None:
        """Is it the memory of a node that died, whose name or path is another's by now? Then it is over."""
        if not attachment.core.over and attachment.forsaken():
            attachment.lose()

    def _release_queues(self, attachment: Attachment, wait_s: float) -> None:
        """Delete the exclusive queues of this client, so that their names are free when it has left."""
        deadline = time.monotonic() + wait_s
        if attachment.superblock.state < NODE_DRAINING and self._control_lock.acquire(timeout=wait_s):
            try:
                left = max(0.0, deadline - time.monotonic())
                self._control.call("release_queues", timeout=left, client=attachment.slot.client_epoch)
            finally:
                self._control_lock.release()

    def _give_back(self, attachment: Attachment, wait_s: float) -> None:
        """What was delivered ahead and handed to nobody returns as such: its delivery does not count."""
        handles = [handle for handle in list(self._handles.values()) if handle.usable]
        asked = [handle for handle in handles if handle.stop() is not None or handle.pending]
        if asked and attachment.superblock.state < NODE_DRAINING and not attachment.deserted():
            attachment.core.wait_submitted(wait_s)  # behind the CANCEL nothing comes any more
            for handle in asked:
                handle.give_back()

    def _after_fork(self) -> None:
        """In a child: locks are new, the parent's memory is let go."""
        self._lock = threading.RLock()
        self._control_lock = threading.Lock()
        self.queues_lock = threading.Lock()
        self._hot = {}
        self._tidier = None
        self._notices = Notices()
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.core.end(None)
            attachment.unmap()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not sys.is_finalizing():
            self.close()

    # -- trouble ------------------------------------------------------------------------------------------------

    def hook(self, code: int, server: int, what: str = "", seconds: float = -1.0) -> None:
        """The core waits, and something is not as it should be: set it right, or raise what ends the wait. `seconds`:
        how long it waited for `what`, when the time is up.
        """
        attachment = self._attachment
        if attachment is None:
            raise ClosedError(f"this client of {self.directory.path} was closed: attach again")
        try:
            with explained(f"cannot use the node of {self.directory.path}"):
                self._act(attachment, code, server, what, seconds)
        except ValueError:  # of memory that another thread has just let go: it attaches anew, or has closed the client
            if not attachment.core.over:
                raise
            raise AttachmentLost("another thread has ended this attachment") from None

    def _act(self, attachment: Attachment, code: int, server: int, what: str, seconds: float) -> None:
        if code in _LONG:
            self._notices.look(attachment, what in _PUBLISHING)
            self._notices.came_again(attachment)
        if code == _core.HOOK_EPOCH:
            with self._lock:
                if server < SERVER_WORKER_FIRST:
                    attachment.open_store(server)
                else:
                    attachment.open_worker(server)
        elif code == _core.HOOK_CATALOG:
            self._reload(attachment)
        elif code == _core.HOOK_LARGE:
            attachment.open_large(server)
        elif code == _core.HOOK_HOT:
            self.look_after(server)
        else:
            try:
                self._trouble.judge(attachment, code, server, what, seconds)
            finally:
                if self._trouble.missing and not attachment.core.over:
                    self._notices.down(attachment, self._trouble.missing)

    # -- catalog ------------------------------------------------------------------------------------------------

    def router(self) -> Router:
        """Routes by the catalog of now."""
        attachment = self.attachment()
        router = self._router
        if router is None or attachment.core.behind:
            while not self._reload(attachment):
                attachment = self.attachment()
            router = self._router
            assert router is not None
        return router

    def catalog(self) -> Catalog:
        """The catalog of now, for whoever asks what there is. That is asked less often than routes are, so it is looked
        as well whether this is the memory of a node that died, and whose name is another's by now.
        """
        self._look_for(self.attachment())
        return self.router().catalog

    def _reload(self, attachment: Attachment) -> bool:
        """Read what is new in the catalog; False when another attachment was made meanwhile."""
        with self._lock:
            if attachment is not self._attachment:
                return False
            version = attachment.superblock.get("catalog_version")
            if self._router is not None and version == attachment.core.catalog_seen:
                return True
            if not self._follow(version):
                catalog = self._catalog.load(version)
                self._routes, self._routes_n = {}, 0
                self._router = Router(catalog)
                for handle in [*self._handles.values(), *self._older]:
                    if handle.queue not in catalog.by_id:
                        self._kill(handle)
            attachment.core.catalog_seen = version
            return True

    def _follow(self, version: int) -> bool:
        """Do what changed in the catalog since it was read; False when all of it has to be read."""
        router = self._router
        news = self._catalog.follow(version) if router is not None else None
        if router is None or news is None:
            return False
        if news.state is None:
            return True
        try:
            router.catalog.follow(news.steps, news.state)
            stale = router.follow(news.steps)
        except (KeyError, ValueError):  # it is not what the writer has: begin anew
            self._router = None
            return False
        for exchange in stale.exchanges:
            self._routes_n -= len(self._routes.pop(exchange, ()))
        for exchange, key in stale.keys:
            if key in self._routes.get(exchange, _NO_ROUTES):
                del self._routes[exchange][key]
                self._routes_n -= 1
        for step in news.steps:
            if step.gone and step.queue is not None:
                self._deleted(step.queue.id)
        return True

    def _deleted(self, queue: int) -> None:
        found = self._handles.get(queue)
        for handle in [*([] if found is None else [found]), *(item for item in self._older if item.queue == queue)]:
            self._kill(handle)

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Route:
        """The route of an exchange, a routing key and (headers exchange) headers.

        Raises ExchangeNotFound, UsageError.
        """
        self.router()
        routes = self._routes
        try:
            known = routes.get(exchange)
            found = known.get(routing_key) if known is not None else None
        except TypeError:  # it cannot be looked for, and is no name
            found = None
        return found if found is not None else self._find_route(exchange, routing_key, headers)

    def _find_route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None) -> Route:
        checked_exchange(exchange)
        check_routing_key(routing_key)
        if not exchange and not routing_key:
            raise UsageError(
                "give an exchange or a routing key: no queue has an empty name, so nobody would get the message"
            )
        with self._lock:  # nobody follows the catalog meanwhile
            router = self.router()
            queues, topics = router.route(exchange, routing_key, headers)
            if router.catalog.exchanges[exchange].internal:
                raise UsageError(
                    f"exchange {exchange!r} is internal: it gets what other exchanges send, so publish to one that it "
                    "is bound to"
                )
            key: Any = routing_key
            if exchange in router.by_headers:
                key = (routing_key, *(queue.id for queue in queues), *topics)
            found = self._routes.get(exchange, _NO_ROUTES).get(key)
            if found is None:
                found = self.route_to(queues, metadata.encode(exchange, routing_key), topics)
                if self._routes_n >= ROUTES_MAX:
                    self._routes, self._routes_n = {}, 0
                self._routes.setdefault(exchange, {})[key] = found
                self._routes_n += 1
            return found

    def route_all(self, exchange: str, routing_keys: Sequence[str], headers: Mapping[str, Any]) -> Route:
        """The route of a message with several routing keys, without metadata. Raises ExchangeNotFound, LimitError."""
        with self._lock:  # nobody follows the catalog meanwhile
            queues, topics = self.router().route_all(exchange, routing_keys, headers)
            return self.route_to(queues, b"", topics)

    def route_to(self, queues: Iterable[QueueDeclaration], meta: bytes, topics: tuple[TopicRoute, ...] = ()) -> Route:
        """The route to just these queues and topics. Raises LimitError."""
        targets = tuple(queues)
        by_worker: dict[int, list[int]] = {}
        for queue in targets:
            by_worker.setdefault(SERVER_WORKER_FIRST + queue.worker, []).append(queue.id)
        durable = any(queue.durable for queue in targets)
        if not topics:
            return Route(_core.Route(list(by_worker.items())), targets, durable, meta)
        attachment = self.attachment()
        told = [(item.topic.id, item.topic.queues, item.topic.name) for item in topics]
        logs = (attachment.superblock.topic_server, *attachment.record_limit, told)
        return Route(_core.Route(list(by_worker.items()), logs), targets, True, meta, topics)

    def mandatory_route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Route:
        """The same; raises Unroutable when it leads nowhere."""
        route = self.route(exchange, routing_key, headers)
        if not route.queues and not route.topics:
            if not exchange:
                raise Unroutable(
                    f"there is no queue {routing_key!r}, and the default exchange '' routes to the queue of that name: "
                    f"{DECLARE}, or publish without mandatory"
                )
            what = "these headers" if exchange in self.router().by_headers else f"routing key {routing_key!r}"
            raise Unroutable(f"exchange {exchange!r} has no queue for {what}: bind one, or publish without mandatory")
        return route

    def handle(self, queue: QueueDeclaration, owner: object, messages: type[_core.Delivery]) -> _core.QueueHandle:
        """A core handle of a queue; one per queue and attachment."""
        with self._lock:
            core = self.attachment().core
            found = self._handles.get(queue.id)
            if found is not None and found.usable and found.owner is owner:
                return found
            made = _core.QueueHandle(core, SERVER_WORKER_FIRST + queue.worker, queue.id, owner, messages)
            if found is not None:
                self._older.add(found)  # its owner may wait with it still
            # what lay ready at a client would not count there, and pass the maximum
            made.exact = bool({"max_length", "max_length_bytes"} & queue.arguments.keys())
            made.ack_timeout = ack_timeout_of(queue.arguments) or 0.0
            self._handles[queue.id] = made
            # Under the lock of _reload: a queue that went since the caller looked is not waited for. When the catalog
            # has another version by now, the next call or the next slice of a wait reads it.
            router = self._router
            if router is not None and queue.id not in router.catalog.by_id and not self._catalog_is_old(core):
                self._kill(made)
            return made

    def store_host(self) -> bytes:
        """What ids of messages of the node begin with."""
        return store_host(self.attachment().superblock.node_id)

    def topic_handle(self, name: str) -> tuple[_core.TopicHandle, TopicDeclaration]:
        """A core handle of the topic that has the name now, good for the catalog of now; its declaration. Raises
        TopicNotFound.
        """
        while True:
            with self._lock:  # nobody follows the catalog meanwhile
                topic = self.catalog().topics.get(name)
                if topic is None:
                    raise TopicNotFound(f"there is no topic {name!r}, or it was deleted: declare it with node.topic")
                attachment = self.attachment()
                core, server, most = attachment.core, attachment.superblock.topic_server, attachment.append_bytes
                size, version = len(name.encode()), core.catalog_seen
                host = store_host(attachment.superblock.node_id)
                with contextlib.suppress(AttachmentLost):  # another thread has ended it
                    handle = _core.TopicHandle(
                        core, server, topic.id, size, topic.queues, host, most, version, topic.compacted
                    )
                    handle.tell(name, *attachment.record_limit)
                    return handle, topic

    def prefer(self, handle: _core.QueueHandle) -> None:
        """Of several handles of a queue this one is its client's: it hears of the catalog."""
        self._handles[handle.queue] = handle

    def _catalog_is_old(self, core: _core.Client) -> bool:
        attachment = self._attachment
        return attachment is None or attachment.superblock.get("catalog_version") != core.catalog_seen

    def _kill(self, handle: _core.QueueHandle) -> None:
        """Its queue is gone: who calls or waits with it looks for the queue anew."""
        handle.kill("the queue was deleted")
        if self._handles.get(handle.queue) is handle:
            del self._handles[handle.queue]
        self._older.discard(handle)

    # -- questions ----------------------------------------------------------------------------------------------

    def control(self, op: str, *, timeout: float | EllipsisType | None = ..., **fields: Any) -> dict[str, Any]:
        """Ask the supervisor (warren.workers.process.control); `timeout`, else call_timeout, is for waiting for other
        threads of this client, too.
        """
        if self.closed:
            raise ClosedError(f"this client of {self.directory.path} is closed: attach again")
        given = self.call_timeout if isinstance(timeout, EllipsisType) else timeout
        limit = WAIT_MAX_S if given is None else min(given, WAIT_MAX_S)
        deadline = time.monotonic() + limit
        if not self._control_lock.acquire(timeout=limit):
            raise TimedOut(
                f"the supervisor of {self.directory.path} did not answer other threads within {round(limit, 3):g} s"
            )
        try:
            return self._control.call(op, timeout=max(0.0, deadline - time.monotonic()), **fields)
        finally:
            self._control_lock.release()

    def declare(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the supervisor as this client, to whom exclusive queues may belong."""
        self._look_for(self.attachment())
        epoch = self.epoch
        answer = self.control(op, client=epoch, **fields)
        if op == "declare_queue" and answer["queue"].get("owner"):
            self._owner_epoch = epoch
        return answer

    def current(self, queue: QueueDeclaration) -> QueueDeclaration:
        """The queue as the catalog has it now: a node that was started with other workers has it elsewhere, under
        another id. Raises QueueNotFound when it was deleted: its worker may not have heard of that yet.
        """
        found = self.catalog().queues.get(queue.name)
        if found is None or found.lasting_id != queue.lasting_id:
            raise QueueNotFound(f"{_called(queue)} was deleted: declare it again")
        return found

    def ask_queue(
        self,
        queue: QueueDeclaration,
        request: Callable[[QueueDeclaration], Request],
        answers: type[AnswerOf],
        timeout: float | EllipsisType | None = ...,
    ) -> AnswerOf:
        """Ask the worker of a queue, wherever it is; `request`, `answers`: of engine/queues/control.py. Raises what it
        refused, PeerLost, TimedOut (without a `timeout` after call_timeout).
        """
        limit = self.call_timeout if isinstance(timeout, EllipsisType) else timeout
        while True:
            now = self.current(queue)
            try:
                return self._ask_worker(SERVER_WORKER_FIRST + now.worker, request(now), answers, limit)
            except AttachmentLost:
                continue
            except (TimedOut, PeerLost) as error:
                raise type(error)(f"{_called(queue)}: {error}") from None

    def ask_topics(
        self, request: topic_control.Request, answers: type[AnswerOf], timeout: float | EllipsisType | None = ...
    ) -> AnswerOf:
        """Ask the topic worker (warren.engine.topics.control). Raises what it refused, AttachmentLost, PeerLost,
        TimedOut (without a `timeout` after call_timeout).
        """
        limit = self.call_timeout if isinstance(timeout, EllipsisType) else timeout
        try:
            return self._ask_worker(self.attachment().superblock.topic_server, request, answers, limit)
        except (TimedOut, PeerLost) as error:
            topics = {} if self._router is None else self._router.catalog.topics
            name = next((f"topic {name!r}: " for name, topic in topics.items() if topic.id == request.topic), "")
            raise type(error)(f"{name}{error}") from None

    def _ask_worker(
        self, server: int, request: msgspec.Struct, answers: type[AnswerOf], timeout: float | None
    ) -> AnswerOf:
        """Ask a queue worker, or the topic worker (OP_CONTROL)."""
        content = msgspec.msgpack.encode(request)
        attachment = self.attachment()
        if server >= len(attachment.control_locks):
            raise AttachmentLost("the node has been started with fewer workers since")
        deadline = None if timeout is None else time.monotonic() + timeout
        lock = attachment.control_locks[server]  # one answer area for each server
        if not lock.acquire(timeout=-1 if timeout is None else min(timeout, WAIT_MAX_S)):
            role = attachment.superblock.role_of(server)
            why = standstill.behind(attachment.superblock, server)
            raise TimedOut(f"{role} did not answer other threads within {round(timeout or 0, 3):g} s{why}")
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            result, reply = attachment.core.control(server, content, left)
        finally:
            lock.release()
        try:
            if result == PROTOCOL["RESULT_ERROR"]:
                if not reply:
                    role = attachment.superblock.role_of(server)
                    raise SyncFailed(f"{role} could not make it durable: check the disk and restart the node")
                refusal = msgspec.msgpack.decode(reply, type=Refusal)
                raise errors.by_name(refusal.error, refusal.message)
            return msgspec.msgpack.decode(reply, type=answers)
        except msgspec.MsgspecError as error:
            what = type(request).__name__
            raise StoreError(
                f"{attachment.superblock.role_of(server)} answered {what} with nonsense: {error}"
            ) from error

    # -- what was delivered ahead and is not asked for ----------------------------------------------------------

    def look_after(self, queue: int) -> None:
        """A hot loop of gets has messages delivered ahead: a thread returns them when the loop stops, and ends then."""
        handle = self._handles.get(queue)
        if handle is None:
            return
        with self._lock:
            self._hot[queue] = handle
            if self._tidier is None or not self._tidier.is_alive():
                tidier = threading.Thread(target=_tidy, args=(weakref.ref(self),), name="warren-tidier", daemon=True)
                tidier.start()
                self._tidier = tidier

    def _tidy_once(self) -> bool:
        """Return what idle loops left; False when there is nothing more to look after."""
        attachment = self._attachment
        if attachment is not None:
            self._notices.came_again(attachment)
        for queue, handle in list(self._hot.items()):
            with self._lock:  # a handle that begins to hoard again says so under this lock, after this look
                hoard = handle.hoard()
                if hoard == 0:
                    self._hot.pop(queue, None)
            if hoard > 0:
                with contextlib.suppress(Error, AttachmentLost):  # when the attachment is over the servers return it
                    handle.tidy()
        with self._lock:
            if self._hot and not self.closed:
                return True
            self._tidier = None
            return False


def _tidy(reference: weakref.ref[Client]) -> None:
    """Body of the thread that returns what a stopped loop of gets left."""
    while True:
        time.sleep(HOARD_S)
        client = reference()
        if client is None or not client._tidy_once():
            return
        del client


def _called(queue: QueueDeclaration) -> str:
    """What a queue, or what belongs to one, is called in an error."""
    return f"{'subscription' if queue.subscription_of else 'queue'} {queue.name!r}"


def _default_name() -> str:
    program = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else sys.executable)
    return f"{program}-{os.getpid()}"


def child_name(name: str) -> str:
    """What a client of this name is called in this process."""
    head, _dash, tail = name.rpartition("-")
    return f"{head if head and tail.isdigit() else name}-{os.getpid()}"


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_clients):
        client._after_fork()


def _at_exit() -> None:
    for client in list(_clients):
        if client.pid == os.getpid():
            client.close()


_closes_with = 0


def _close_with_child() -> None:
    """A child of multiprocessing ends without what atexit has registered, if it was forked: it closes its clients all
    the same, so that what was delivered ahead returns as such."""
    global _closes_with
    util = sys.modules.get("multiprocessing.util")
    if util is None or _closes_with == os.getpid() or sys.modules["multiprocessing.process"].parent_process() is None:
        return
    _closes_with = os.getpid()
    util.Finalize(None, _at_exit, exitpriority=-100)


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
assert SERVER_STORE_TRANSIENT == SERVER_STORE_PERSISTENT + 1
