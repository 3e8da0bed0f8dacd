"""A channel of kombu: declaring, publishing, consuming and settling.

What is consumed, and exclusive queues, belong to the connection's own client, which goes with it; all else is done by
the one client of the process. So a web server publishes through one attachment, however many connections it pools.

Crash points
  Publisher killed after `basic_publish` returned: the task is in its queue, as durable as was asked for.
  Killed inside: it is, or it is not; nobody was told that it is.
  Worker killed with a task that was not acked: the task returns to its place, marked redelivered.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import uuid
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kombu.message import Message as KombuMessage
from kombu.transport import base

from warren.engine._core import AttachmentLost
from warren.engine.amqp.names import DEFAULT_VHOST, node_name
from warren.engine.errors import Error, ExchangeNotFound, PeerLost, QueueNotFound, UsageError
from warren.engine.saying import shown
from warren.workers.celery.arguments import queue_arguments
from warren.workers.celery.inbox import Consumer, Inbox
from warren.workers.celery.messages import Outgoing, incoming
from warren.workers.celery.patience import in_task, patient
from warren.workers.faces.message import Message
from warren.workers.faces.node import Node, client_of

if TYPE_CHECKING:
    from warren.workers.celery.place import Place

T = TypeVar("T")
#: mailboxes of remote control: a second worker of one name shares it, and says so, as on Redis
PIDBOX = ".pidbox"
queue_declare_ok = namedtuple("queue_declare_ok", ("queue", "message_count", "consumer_count"))
#: the default exchange, which routes to the queue of the routing key
DEFAULT = ""


class Connection(Protocol):
    """What a channel needs of its connection (workers/celery/transport.py)."""

    inbox: Inbox
    place: Place
    channels: dict[int, Channel]
    exclusive: set[str]  #: names of exclusive queues that were declared here
    transient: dict[str, tuple[int, Callable[[], object]]]  #: exchanges, as transport.py says

    @property
    def own(self) -> Node:
        """The node, as the client that consumes here."""

    def attach(self) -> None:
        """Be a client that consumes."""


def _called(name: str) -> str:
    """What a queue or an exchange is called in the node: as the gateway calls it, so any name of AMQP will do."""
    return node_name(DEFAULT_VHOST, name)


class Channel(base.StdChannel):
    """See the module. Acks may come from any thread, everything else from one."""

    auto_decode = False

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection: Connection | None = connection
        self.channel_id = number
        self.no_ack_consumers: set[str] = set()  # type: ignore[assignment]  # kombu has None
        self.prefetch_count = 0
        self._active = True
        self._inbox: Inbox = connection.inbox
        self._place = connection.place
        self._node = connection.place.node  # it attaches when it is used
        self._consumers: dict[str, Consumer] = {}
        self._callbacks: dict[str, Callable[[KombuMessage], object]] = {}
        self._tags = itertools.count(1)
        self._unacked: dict[int, tuple[Consumer | None, Message]] = {}

    # -- exchanges ----------------------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange; with `passive`, ExchangeNotFound if it is not there."""
        if passive:
            client_of(self._node).route(_called(exchange), "")
            return
        given = dict(arguments or {})
        alternate = given.pop("alternate-exchange", None)
        alternate = alternate and _called(alternate)
        declare = functools.partial(
            self._node.declare_exchange,
            _called(exchange),
            type,
            bool(durable),
            alternate,
            auto_delete=bool(auto_delete),
            arguments=given or None,
        )
        self._waiting(declare)
        if not durable:
            self._open().transient[_called(exchange)] = self._node_epoch(), declare

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange, if it is there."""
        with contextlib.suppress(ExchangeNotFound):
            self._node.delete_exchange(_called(exchange), if_unused=bool(if_unused))

    def exchange_bind(
        self,
        destination: str,
        source: str = DEFAULT,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Send what comes to the exchange `source` to another one, too."""
        self._node.bind_exchange(_called(destination), _called(source), routing_key or "", arguments or None)

    def exchange_unbind(
        self,
        destination: str,
        source: str = DEFAULT,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """No longer."""
        self._node.unbind_exchange(_called(destination), _called(source), routing_key or "", arguments or None)

    # -- queues -------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **named: Any) -> dict[str, Any]:
        """Arguments of a queue of kombu: its own names, in seconds, besides those of RabbitMQ."""
        return queue_arguments({**(arguments or {}), **named})

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> tuple[str, int, int]:
        """Declare a queue; without a name it gets one. Raises DeclarationMismatch, QueueNotFound (passive)."""
        queue = queue or f"gen-{uuid.uuid4().hex}"
        name = _called(queue)
        given = queue_arguments(arguments)
        exclusive = bool(exclusive) and not queue.endswith(PIDBOX)
        node = self._open().own if exclusive else self._of(name)
        if exclusive:
            given["exclusive"] = True
        if auto_delete:
            given["auto_delete"] = True
        if passive:
            found = node.queue(name, create=False)
        elif exclusive:  # it has gone with its connection, if that was lost
            found = node.queue(name, bool(durable), **given)
        else:
            found = self._waiting(lambda: node.queue(name, bool(durable), **given))
        if exclusive and not passive:
            self._open().exclusive.add(name)
        if nowait:
            return queue_declare_ok(queue, 0, 0)
        counts = found.stats()
        return queue_declare_ok(queue, counts["ready"], counts["consumers"])

    def queue_bind(
        self,
        queue: str,
        exchange: str = DEFAULT,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind a queue to an exchange. To the default one every queue is bound already."""
        if exchange != DEFAULT:
            name = _called(queue)
            node = self._of(name)
            self._waiting(lambda: node.bind(name, _called(exchange), routing_key or "", arguments or None))

    def queue_unbind(
        self,
        queue: str,
        exchange: str = DEFAULT,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Remove a binding, if it is there."""
        name = _called(queue)
        self._of(name).unbind(name, _called(exchange), routing_key or "", arguments or None)

    def queue_purge(self, queue: str, nowait: bool = False) -> int:
        """Drop the ready messages of a queue; how many."""
        name = _called(queue)
        return self._of(name).queue(name, create=False).purge()

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False) -> int:
        """Delete a queue, if it is there; how many messages were ready just before. Raises PreconditionFailed: it has
        consumers or messages, and that was not wanted."""
        name = _called(queue)
        node = self._of(name)
        try:
            ready: int = node.queue(name, create=False).stats()["ready"]
            node.delete_queue(name, if_unused=bool(if_unused), if_empty=bool(if_empty))
        except QueueNotFound:
            ready = 0
        self._open().exclusive.discard(name)
        return ready

    def after_reply_message_received(self, queue: str) -> None:
        """Queues of replies stay for the next call; they go with the connection, or when nobody uses them."""

    def _of(self, queue: str) -> Node:
        """Whose client a queue is used by."""
        connection = self._open()
        return connection.own if queue in connection.exclusive else self._node

    # -- publishing ---------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: str | bytes,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Outgoing:
        """A message for `basic_publish`."""
        return Outgoing(body, priority, content_type, content_encoding, headers, properties)

    def basic_publish(
        self,
        message: Outgoing | str | bytes,
        exchange: str = DEFAULT,
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_unknown: Any,
    ) -> None:
        """Publish; returns when the message is as durable as was asked for (option confirm_publish), at once if it is
        not persistent. With `mandatory`, Unroutable when no queue gets it. Within a task of Celery, also when it is
        called by what follows from its end (link, chord), a node that is away is waited for."""
        if immediate:
            raise UsageError("immediate is not supported, as in RabbitMQ since 3.0")
        if isinstance(message, (str, bytes)):  # `celery amqp basic.publish`
            message = self.prepare_message(message)
        exchange, routing_key = _called(exchange or DEFAULT), routing_key or ""
        key = routing_key if exchange else _called(routing_key)

        def publish() -> None:
            given = message, exchange, key, bool(mandatory), confirm_timeout or timeout
            try:
                self._publish(*given)
            except ExchangeNotFound:
                if not self._declared_again(exchange):
                    raise
                self._publish(*given)

        try:
            self._waiting(publish)
        except AttachmentLost as lost:
            raise PeerLost(f"{lost}: connect again") from lost

    def _node_epoch(self) -> int:
        return client_of(self._node).attachment().node_epoch

    def _declared_again(self, exchange: str) -> bool:
        """Declare a transient exchange again that a stop of the node removed: kombu declares once per connection.
        Returns False if this exchange was not lost in that way.
        """
        transient = self._open().transient
        epoch, declare = transient.get(exchange, (0, None))
        if declare is None or epoch == self._node_epoch():
            return False
        declare()
        transient[exchange] = self._node_epoch(), declare
        return True

    def _waiting(self, call: Callable[[], T]) -> T:
        return patient(call, self._place.node_timeout) if in_task() else call()

    def _publish(
        self, message: Outgoing, exchange: str, routing_key: str, mandatory: bool, timeout: float | None
    ) -> None:
        place = self._place
        if not message.persistent:
            durability: Any = "none"
        else:
            durability = place.durability
            if durability is not None and not self._lasting(exchange, routing_key, message.headers):
                durability = None
        delay = message.delay if place.hold_eta else None
        wait = message.persistent and place.confirm_publish
        for again in (False, True):
            try:
                self._node.publish(
                    message.body,
                    exchange,
                    routing_key,
                    mandatory,
                    durability,
                    wait,
                    timeout if timeout is not None or not wait else place.call_timeout,
                    message.headers,
                    priority=message.priority,
                    ttl=message.ttl,
                    delay=delay,
                    message_id=message.properties.get("message_id"),
                    properties=message.properties,
                    persistent=message.persistent,
                )
                return
            except UsageError as error:
                # A queue that went meanwhile is one, too, and others have the message by then.
                if again or type(error) is not UsageError or not message.plainer():
                    raise

    def _lasting(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None) -> bool:
        """Whether some queue that it goes to is durable."""
        return client_of(self._node).route(exchange, routing_key, headers).durable

    # -- consuming ----------------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        consumer_tag: str = "",
        callback: Callable[[KombuMessage], object] | None = None,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        on_cancel: Callable[[str], object] | None = None,
        exclusive: bool = False,
        **_unknown: Any,
    ) -> str:
        """A consumer of a queue; `callback` gets its messages, in the event loop or in drain_events."""
        if exclusive:
            raise UsageError("exclusive consumers are not supported here: declare the queue x-single-active-consumer")
        if arguments:
            raise UsageError(f"unknown consumer argument {shown(next(iter(arguments)))}: there are none")
        tag = consumer_tag or f"ctag{self.channel_id}.{uuid.uuid4().hex[:12]}"
        if tag in self._consumers:
            raise UsageError(f"there is a consumer {shown(tag)} on this channel already: give another tag")
        consumer = Consumer(tag, _called(queue), bool(no_ack), self.prefetch_count, self._deliver)
        consumer.flows = self._active
        self._open().attach()
        self._consumers[tag] = consumer
        if callback is not None:
            self._callbacks[tag] = callback
        if no_ack:
            self.no_ack_consumers.add(tag)
        try:
            self._inbox.consume(consumer)
        except AttachmentLost as lost:
            self._forget(tag)
            raise PeerLost(f"{lost}: connect again") from lost
        except BaseException:
            self._forget(tag)
            raise
        return tag

    def _forget(self, tag: str) -> Consumer | None:
        self.no_ack_consumers.discard(tag)
        self._callbacks.pop(tag, None)
        return self._consumers.pop(tag, None)

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """A consumer goes. What it was given and did not settle stays with the channel."""
        consumer = self._forget(consumer_tag)
        if consumer is not None:
            self._inbox.cancel(consumer)

    def _deliver(self, consumer: Consumer, message: Message) -> None:
        tag = next(self._tags)
        if not consumer.no_ack:
            self._unacked[tag] = (consumer, message)
        callback = self._callbacks.get(consumer.tag)
        if callback is not None:
            callback(incoming(self, message, tag, consumer.tag))

    def message_to_python(self, message: KombuMessage) -> KombuMessage:
        """It is one already."""
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **_unknown: Any) -> KombuMessage | None:
        """The next message of a queue, or None."""
        self._open().attach()
        try:
            message = self._inbox.get(_called(queue))
        except AttachmentLost as lost:
            raise PeerLost(f"{lost}: connect again") from lost
        if message is None:
            return None
        tag = next(self._tags)
        if no_ack:
            message.ack()
        else:
            self._unacked[tag] = (None, message)
        return incoming(self, message, tag, None)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """How many messages each consumer of the channel may hold unacked (0: no limit), those that there are and those
        that come. `prefetch_size` must be 0."""
        if prefetch_size:
            raise UsageError("prefetch_size is not supported, as in RabbitMQ: give prefetch_count")
        self.prefetch_count = max(0, int(prefetch_count))
        for consumer in list(self._consumers.values()):
            self._inbox.limit(consumer, self.prefetch_count)

    def flow(self, active: bool) -> None:
        """Pause, or go on."""
        self._active = bool(active)
        for consumer in list(self._consumers.values()):
            self._inbox.flow(consumer, self._active)

    # -- settling -----------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Settle a message; with `multiple` also those of this channel before it. Raises PeerLost, AckTimedOut."""
        self._settle(self._tagged(delivery_tag, multiple), Message.ack)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Return a message to its place, marked redelivered, or drop or dead-letter it."""
        self._settle(self._tagged(delivery_tag, False), lambda message: message.nack(requeue=bool(requeue)))

    def basic_recover(self, requeue: bool = True) -> None:
        """Return all messages that were not settled."""
        if not requeue:
            raise UsageError("recover with requeue=False is not supported, as in RabbitMQ")
        self._return_all()

    basic_recover_async = basic_recover

    def _tagged(self, delivery_tag: int, multiple: bool) -> list[tuple[Consumer | None, Message]]:
        if multiple:
            tags = sorted(tag for tag in list(self._unacked) if tag <= delivery_tag or not delivery_tag)
        else:
            tags = [delivery_tag]
        found = [held for tag in tags if (held := self._unacked.pop(tag, None)) is not None]
        if not found and not multiple:
            if self.connection is None or not self._inbox.alive:
                raise PeerLost("the connection was lost: the message returned to its queue, and will be redelivered")
            raise UsageError(f"delivery tag {delivery_tag} is not held by this channel: it was settled, or never given")
        return found

    def _settle(self, held: list[tuple[Consumer | None, Message]], how: Callable[[Message], object]) -> None:
        failed: Exception | None = None
        for consumer, message in held:  # all of them, also behind one that fails
            if consumer is not None:
                self._inbox.settled(consumer)
            try:
                how(message)
            except AttachmentLost as lost:
                failed = failed or PeerLost(f"{lost}: the message returned to its queue")
            except Error as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _return_all(self) -> None:
        held = [self._unacked.pop(tag) for tag in sorted(self._unacked, reverse=True)]
        for consumer, message in held:
            if consumer is not None:
                self._inbox.settled(consumer)
            with contextlib.suppress(Error, AttachmentLost):  # then it has returned, or the servers return it
                message.nack()

    # -- the end ------------------------------------------------------------------------------------------------

    def _open(self) -> Connection:
        if self.connection is None:
            raise PeerLost("the channel is closed: open another one")
        return self.connection

    def close(self) -> None:
        """Its consumers go, and what they hold returns."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.channels.pop(self.channel_id, None)
        if not self._inbox.alive:
            self._unacked.clear()  # all of it has returned
            return
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self._return_all()
