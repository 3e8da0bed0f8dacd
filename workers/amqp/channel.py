"""One channel of a connection: what its methods do, by class.

    channel.py             dispatch; class basic without publish; class confirm
    publisher.py           basic.publish, confirms         odd.py: what Python looks at of a message
    declarations.py        classes exchange and queue      arguments.py: what they are declared with
    consumers.py, taps.py  consumers, unacked messages, where they come from
    transactions.py        class tx

The connection calls `method` and `publish` one after the other: while one waits, it calls no other of this channel.
What is raised (faults.py) ends the channel or the connection; then, and when the client is gone, `ended` is called.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.amqp import spec
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import LimitError, QueueNotFound, ResourceLocked
from warren.workers.amqp import permissions
from warren.workers.amqp.consumers import Consumer, Run, Taken, Unacked
from warren.workers.amqp.content import told_by
from warren.workers.amqp.declarations import Declarations
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.mapping import REPLY_TO, described
from warren.workers.amqp.publisher import Publisher
from warren.workers.amqp.streams import StreamConsumer
from warren.workers.amqp.taps import Tap, Taps, settle_now
from warren.workers.amqp.transactions import Transaction
from warren.workers.amqp.types import class_of, type_of
from warren.workers.amqp.users import User

if TYPE_CHECKING:
    from warren.workers.amqp.interfaces import Link

#: consumers of one channel
CONSUMERS_MAX = 65535
#: how much a consumer counts, added to its tag (backlog.py), and each message that one of a stream may hold
CONSUMER_BYTES, STREAM_ITEM_BYTES = 2048, 48


class Channel:
    """A channel. `number` is its number in the connection."""

    def __init__(self, connection: Link, number: int) -> None:
        self.connection, self.number = connection, number
        self.taps: Taps = connection.gateway.taps
        self.over = False
        self.last_queue = ""  #: declared last: what an empty name of a queue means
        self.prefetch = 0  #: of consumers that come, each; 0: no limit
        self.limit = 0  #: of all consumers together; 0: none
        self.consumed = 0  #: what consumers got, and is unacked
        self.delivered_n = 0
        self.acked_n = 0
        self.unacked = Unacked()
        self.consumers: dict[str, Consumer | StreamConsumer] = {}
        self.reply_name: str | None = None  #: where answers to this channel go, while somebody listens
        self.publisher = Publisher(self)
        self.transaction: Transaction | None = None
        self.declarations = Declarations(self)
        self._next_tag = 1
        self._coming: set[str] = set()  # tags of consumers that are being made

    @property
    def user(self) -> User:
        """Who logged in."""
        user = self.connection.user
        assert user is not None
        return user

    # -- what the connection calls ------------------------------------------------------------------------------

    def method(self, id: int, arguments: tuple[Any, ...]) -> Awaitable[None] | None:
        """Do what a method asks. None: it is done; else it is under way. Raises faults."""
        if not self.taps.has_vhost(self.connection.vhost):
            return self._after_vhost(self.method, id, arguments)
        if id == spec.BASIC_ACK:
            self._ack(*arguments)
            return None
        do = _METHODS.get(id)
        if do is None:
            name = spec.METHODS[id].name if id in spec.METHODS else str(id)
            raise ConnectionFault(spec.COMMAND_INVALID, f"unimplemented method: {name}")
        settle_now(tuple(self.unacked.taps) if self.unacked.count else ())
        return do(self, *arguments)

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        """Publish a run of messages. As `method`."""
        if not self.taps.has_vhost(self.connection.vhost):
            return self._after_vhost(self.publish, exchange, key, flags, properties, bodies)
        if self.transaction is not None:
            return self.transaction.publish(exchange, key, flags, properties, bodies)
        return self.publisher.publish(exchange, key, flags, properties, bodies)

    @property
    def held(self) -> bool:
        return self.publisher.held > 0

    async def _after_vhost(self, do: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
        """The first use of a vhost: its own exchanges are declared before."""
        await self.taps.make_vhost(self.connection.vhost)
        under_way = do(*arguments)
        if under_way is not None:
            await under_way

    def writable(self) -> None:
        """The socket takes more again."""
        for tap in {consumer.tap for consumer in self.consumers.values() if isinstance(consumer, Consumer)}:
            tap.pump()
        for consumer in list(self.consumers.values()):
            if isinstance(consumer, StreamConsumer):
                consumer.wake()

    def ended(self) -> None:
        """The channel is over: its consumers go, and what it held returns to its queues."""
        if self.over:
            return
        self.over = True
        self.publisher.ended()
        gone = list(self.consumers.values())
        self.consumers.clear()
        for consumer in gone:
            self._made_room(consumer)
        if self.transaction is not None:
            self.transaction.ended()
        returned = self.unacked.take_up_to(0)
        for taken in returned:
            taken.run.settle(taken.deliveries, False, True)
        settle_now([taken.run.tap for taken in returned if taken.run.tap is not None])
        for consumer in gone:  # their successors get the returned messages first
            self._leave(consumer)
        if self.reply_name is not None:
            self.declarations.drop_reply_queue(self.reply_name)

    def end_if_late(self, tap: Tap) -> None:
        """Close it if it holds a message of this tap that went back because the ack timeout of its queue ran out."""
        held = self.unacked.first_of(tap)
        if held is not None and held.timed_out and not self.over:
            timeout_ms = round(1000 * tap.handle.ack_timeout)
            text = f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {timeout_ms} ms"
            self.connection.tenants[self.number].fail(
                ChannelFault(406, f"{text}. The argument ack_timeout of the queue sets it")
            )

    def facts(self) -> dict[str, Any]:
        """What there is to say of it to people."""
        return {
            "prefetch": self.limit or self.prefetch,
            "consumers": len(self.consumers),
            "unacked": self.unacked.count,
            "full": sum(isinstance(one, Consumer) and one.full for one in self.consumers.values()),
            "unconfirmed": self.publisher.unconfirmed,
            "confirms": self.publisher.confirming,
            "transactional": self.transaction is not None,
            "published": self.publisher.published_n,
            "returned": self.publisher.returned_n,
            "delivered": self.delivered_n,
            "acked": self.acked_n,
        }

    # -- what consumers use -------------------------------------------------------------------------------------

    def tagged(self, count: int) -> int:
        """The first of so many delivery tags."""
        first = self._next_tag
        self._next_tag += count
        return first

    def consumer_lost(self, consumer: Consumer | StreamConsumer) -> None:
        """The queue of a consumer has gone: the client is told, if it wants to hear that."""
        if self.consumers.pop(consumer.tag, None) is None:
            return
        self._made_room(consumer)
        if self.connection.capable("consumer_cancel_notify"):
            self.send(spec.BASIC_CANCEL, (consumer.tag, True))

    def send(self, id: int, arguments: tuple[Any, ...] = ()) -> None:
        """Send a method without content."""
        self.connection.send(_core.amqp_method(self.number, id, arguments))

    # -- basic: consumers ---------------------------------------------------------------------------------------

    def _qos(self, size: int, count: int, together: bool) -> None:
        if size:
            raise ConnectionFault(spec.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})")
        if together:
            self.limit = count
            for tap in {consumer.tap for consumer in self.consumers.values() if isinstance(consumer, Consumer)}:
                tap.anew()
        else:
            self.prefetch = count
        self.send(spec.BASIC_QOS_OK)

    async def _consume(
        self,
        queue: str,
        tag: str,
        _no_local: bool,
        no_ack: bool,
        exclusive: bool,
        nowait: bool,
        arguments: dict[str, Any],
    ) -> None:
        if tag in self.consumers or tag in self._coming:
            raise ConnectionFault(spec.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if len(self.consumers) + len(self._coming) >= CONSUMERS_MAX:
            raise ChannelFault(406, f"reached maximum ({CONSUMERS_MAX}) of consumers per channel")
        tag = tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if queue == REPLY_TO:
            await self._consume_replies(tag, no_ack, nowait)
            return
        queue = self.declarations.named(queue)
        connection = self.connection
        permissions.check(self.user, connection.vhost, "read", "queue", queue)
        await self.declarations.ready()
        stream = self.declarations.stream(queue)
        if stream is not None:
            await self._consume_stream(stream, queue, tag, no_ack, exclusive, nowait, arguments)
            return
        declaration = self.declarations.found(queue)
        priority = arguments.get("x-priority", 0)
        if class_of(priority) != "int":
            raise ChannelFault(
                406,
                f"invalid arg 'x-priority' for {described('queue', queue, connection.vhost)}: "
                f'"expected integer, got {type_of(priority)}"',
            )
        self._coming.add(tag)
        try:
            tap = await self.tap(declaration, queue)
            await self._claim(tap, queue, exclusive)
        finally:
            self._coming.discard(tag)
        if self.over:
            tap.claims.unclaim()
            return
        consumer = Consumer(self, tag, tap, queue, no_ack, exclusive, int(priority), self.prefetch)
        if not self._finds_room(consumer):
            tap.claims.unclaim()
            raise _no_room()
        await self._begin(consumer, nowait)

    async def _claim(self, tap: Tap, queue: str, exclusive: bool) -> None:
        """May a consumer come, of all clients of the node? Raises ChannelFault."""
        what = described("queue", queue, self.connection.vhost)
        try:
            if exclusive and tap.single:
                raise ResourceLocked("one at a time is active anyway")
            await tap.claims.claim(exclusive, always=True)
        except ResourceLocked:
            raise ChannelFault(403, f"{what} in exclusive use") from None
        except QueueNotFound:
            raise ChannelFault(404, f"no {what}") from None
        except LimitError as error:
            raise ChannelFault(406, f"{what} cannot be consumed: {error}") from None

    def _finds_room(self, consumer: Consumer | StreamConsumer) -> bool:
        """It counts from now on, if it may."""
        return self.connection.kept.reserve(_size(consumer))

    def _made_room(self, consumer: Consumer | StreamConsumer) -> None:
        """It goes, and counts no more."""
        self.connection.kept.release(_size(consumer))

    async def _begin(self, consumer: Consumer, nowait: bool) -> None:
        """A consumer comes: the client hears of that before its first message."""
        self.consumers[consumer.tag] = consumer
        if not nowait:
            self.send(spec.BASIC_CONSUME_OK, (consumer.tag,))
        await consumer.tap.enter(consumer)

    async def _consume_replies(self, tag: str, no_ack: bool, nowait: bool) -> None:
        if self.reply_name is not None:
            raise ChannelFault(406, "reply consumer already set")
        if not no_ack:
            raise ChannelFault(406, "reply consumer cannot acknowledge")
        self._coming.add(tag)
        try:
            declaration = await self.declarations.reply_queue()
            tap = await self.tap(declaration, declaration.name)
        finally:
            self._coming.discard(tag)
        if self.over:
            self.declarations.drop_reply_queue(declaration.name)
            return
        consumer = Consumer(self, tag, tap, declaration.name, True, True, 0, 0)
        if not self._finds_room(consumer):
            self.declarations.drop_reply_queue(declaration.name)
            raise _no_room()
        self.reply_name = declaration.name
        await self._begin(consumer, nowait)

    async def _consume_stream(
        self,
        stream: Any,
        queue: str,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        nowait: bool,
        arguments: dict[str, Any],
    ) -> None:
        consumer = await StreamConsumer.made(self, stream, queue, tag, no_ack, exclusive, arguments)
        if self.over:
            return
        if not self._finds_room(consumer):
            raise _no_room()
        self.consumers[tag] = consumer
        if not nowait:
            self.send(spec.BASIC_CONSUME_OK, (tag,))
        consumer.begin()

    async def _cancel(self, tag: str, nowait: bool) -> None:
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self._made_room(consumer)
            self._leave(consumer)
            if consumer.queue == self.reply_name:
                self.declarations.drop_reply_queue(self.reply_name)
                self.reply_name = None
            elif isinstance(consumer, Consumer):
                await consumer.tap.rested()  # others may have the queue alone when the client hears of it
                if consumer.tap.held_up and consumer.tap.in_use:
                    await self.declarations.let_next(consumer.tap)
                await self.declarations.consumer_went(consumer.tap)
        if not nowait:
            self.send(spec.BASIC_CANCEL_OK, (tag,))

    def _leave(self, consumer: Consumer | StreamConsumer) -> None:
        if isinstance(consumer, StreamConsumer):
            consumer.end()
            return
        consumer.tap.leave(consumer)
        if self.over:
            self.declarations.consumer_went_soon(consumer.tap)

    async def tap(self, declaration: QueueDeclaration, queue: str) -> Tap:
        """The tap of a queue. Raises ChannelFault."""
        vhost = self.connection.vhost
        while True:
            try:
                return self.taps.of(declaration)
            except AttachmentLost:
                await self.declarations.ready()
                declaration = self.declarations.found(queue)
            except QueueNotFound:
                raise ChannelFault(404, f"no {described('queue', queue, vhost)}") from None
            except ResourceLocked:
                raise self.declarations.locked(queue) from None

    # -- basic: get, settle -------------------------------------------------------------------------------------

    async def _get(self, queue: str, no_ack: bool) -> None:
        queue = self.declarations.named(queue)
        connection = self.connection
        permissions.check(self.user, connection.vhost, "read", "queue", queue)
        await self.declarations.ready()
        if self.declarations.stream(queue) is not None:
            raise ConnectionFault(
                spec.NOT_IMPLEMENTED,
                f"basic.get not supported by stream queues {described('queue', queue, connection.vhost)}",
            )
        async with connection.gets:
            if connection.flooded:
                await connection.until_writable()
            await self._get_from(queue, no_ack)

    async def _get_from(self, queue: str, no_ack: bool) -> None:
        connection = self.connection
        declaration = self.declarations.found(queue)
        tap = await self.tap(declaration, queue)
        try:
            found = await tap.get_one()
        except (QueueNotFound, ResourceLocked):
            raise ChannelFault(404, f"no {described('queue', queue, connection.vhost)}") from None
        except LimitError as error:
            raise ChannelFault(
                406, f"this server's gateway holds as many unacked messages as it can: {error}"
            ) from None
        if found is None:
            self.send(spec.BASIC_GET_EMPTY)
            return
        delivery, generation = found
        run = Run(self.tagged(1), [delivery], tap, generation, None)
        if self.over:
            run.settle([delivery], False, True)
            return
        left = (await self.declarations.counts(declaration))[0]
        exchange, key, properties = told_by(delivery, self.taps.other(queue), counted=tap.counts_deliveries)
        connection.send(
            _core.amqp_content(
                self.number,
                spec.BASIC_GET_OK,
                (run.first, delivery.redelivered, exchange, key, left),
                properties,
                delivery.body,
                connection.frame_max,
            )
        )
        self.delivered_n += 1
        if no_ack or self.over:
            run.settle([delivery], no_ack, True)
        else:
            _core.amqp_shed([delivery])
            self.unacked.add(run)

    def _ack(self, tag: int, multiple: bool) -> None:
        if self.transaction is not None:
            self.transaction.settle(tag, multiple, True, False)
            return
        if multiple:
            self.done(self.take_up_to(tag), True, False)
            return
        found = self.unacked.take(tag)
        if found is None:
            raise unknown(tag)
        self.acked_n += 1
        found.run.settle(found.deliveries, True, False)

    def _nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        if self.transaction is not None:
            self.transaction.settle(tag, multiple, False, requeue)
        elif multiple:
            self.done(self.take_up_to(tag), False, requeue)
        else:
            self.done([self.take(tag)], False, requeue)

    def _reject(self, tag: int, requeue: bool) -> None:
        self._nack(tag, False, requeue)

    def take(self, tag: int) -> Taken:
        """The message with a tag, which is held no more. Raises ChannelFault."""
        found = self.unacked.take(tag)
        if found is None:
            raise unknown(tag)
        return found

    def take_up_to(self, tag: int, tags_too: bool = False) -> list[Taken]:
        """The same of all up to a tag; 0: of all."""
        if tag and not self.unacked.known(tag):
            raise unknown(tag)
        return self.unacked.take_up_to(tag, tags_too)

    def done(self, taken: list[Taken], ack: bool, requeue: bool) -> None:
        """Ack or nack what was taken out."""
        for part in taken:
            if ack:
                self.acked_n += len(part.deliveries)
            part.run.settle(part.deliveries, ack, requeue)
        if not ack:
            settle_now([part.run.tap for part in taken if part.run.tap is not None])

    def _recover(self, requeue: bool) -> None:
        if requeue:
            self.send(spec.BASIC_RECOVER_OK)  # what there is room for then comes after it, as RabbitMQ's does
        self._recover_async(requeue)

    def _recover_async(self, requeue: bool) -> None:
        if not requeue:
            raise ConnectionFault(spec.NOT_IMPLEMENTED, "requeue=false")
        self.done(self.unacked.take_up_to(0), False, True)

    # -- confirm, tx, access ------------------------------------------------------------------------------------

    def _confirm_select(self, nowait: bool) -> None:
        if self.transaction is not None:
            raise ChannelFault(406, "cannot switch from tx to confirm mode")
        self.publisher.confirming = True
        if not nowait:
            self.send(spec.CONFIRM_SELECT_OK)

    def _tx_select(self) -> None:
        if self.publisher.confirming:
            raise ChannelFault(406, "cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction(self)
        self.send(spec.TX_SELECT_OK)

    async def _tx_commit(self) -> None:
        if self.transaction is None:
            raise ChannelFault(406, "channel is not transactional")
        await self.transaction.commit()
        self.send(spec.TX_COMMIT_OK)

    def _tx_rollback(self) -> None:
        if self.transaction is None:
            raise ChannelFault(406, "channel is not transactional")
        self.transaction.rollback()
        self.send(spec.TX_ROLLBACK_OK)

    def _access(self, *_asked: object) -> None:
        self.send(spec.ACCESS_REQUEST_OK, (1,))

    # -- exchange, queue ----------------------------------------------------------------------------------------

    def _exchange_declare(self, *arguments: Any) -> Awaitable[None] | None:
        return self.declarations.exchange_declare(*arguments)

    def _exchange_delete(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.exchange_delete(*arguments)

    def _exchange_bind(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.exchange_bind(*arguments)

    def _exchange_unbind(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.exchange_unbind(*arguments)

    def _queue_declare(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.queue_declare(*arguments)

    def _queue_bind(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.queue_bind(*arguments)

    def _queue_unbind(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.queue_unbind(*arguments)

    def _queue_purge(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.queue_purge(*arguments)

    def _queue_delete(self, *arguments: Any) -> Awaitable[None]:
        return self.declarations.queue_delete(*arguments)


def _size(consumer: Consumer | StreamConsumer) -> int:
    """How much a consumer counts."""
    held = STREAM_ITEM_BYTES * consumer.prefetch if isinstance(consumer, StreamConsumer) else 0
    return CONSUMER_BYTES + len(consumer.tag) + held


def _no_room() -> ChannelFault:
    return ChannelFault(
        406,
        "this server's gateway keeps as much for its clients as it can: cancel consumers, or raise setting "
        "amqp_backlog_bytes",
    )


def unknown(tag: int) -> ChannelFault:
    """What a tag that nothing is held with is answered by."""
    return ChannelFault(406, f"unknown delivery tag {tag}")


#: what each method calls
_METHODS: dict[int, Callable[..., Awaitable[None] | None]] = {
    spec.BASIC_QOS: Channel._qos,
    spec.BASIC_CONSUME: Channel._consume,
    spec.BASIC_CANCEL: Channel._cancel,
    spec.BASIC_GET: Channel._get,
    spec.BASIC_NACK: Channel._nack,
    spec.BASIC_REJECT: Channel._reject,
    spec.BASIC_RECOVER: Channel._recover,
    spec.BASIC_RECOVER_ASYNC: Channel._recover_async,
    spec.CONFIRM_SELECT: Channel._confirm_select,
    spec.TX_SELECT: Channel._tx_select,
    spec.TX_COMMIT: Channel._tx_commit,
    spec.TX_ROLLBACK: Channel._tx_rollback,
    spec.ACCESS_REQUEST: Channel._access,
    spec.EXCHANGE_DECLARE: Channel._exchange_declare,
    spec.EXCHANGE_DELETE: Channel._exchange_delete,
    spec.EXCHANGE_BIND: Channel._exchange_bind,
    spec.EXCHANGE_UNBIND: Channel._exchange_unbind,
    spec.QUEUE_DECLARE: Channel._queue_declare,
    spec.QUEUE_BIND: Channel._queue_bind,
    spec.QUEUE_UNBIND: Channel._queue_unbind,
    spec.QUEUE_PURGE: Channel._queue_purge,
    spec.QUEUE_DELETE: Channel._queue_delete,
}
