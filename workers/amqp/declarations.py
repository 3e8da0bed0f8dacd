"""Classes exchange and queue: what a channel declares, binds, purges and deletes.

What exists is looked up in the gateway's own copy of the catalog, so declaring again what is there costs no request to
the supervisor; every change is one, durable before it is answered. How many messages a queue has is its worker's word,
given after everything that this gateway has submitted before.

Exclusive queues belong to the gateway's attachment, and within it to a connection (`Taps.exclusives`): they go when the
connection ends, or with the gateway.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warren.engine.amqp import spec
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import (
    ClosedError,
    DeclarationMismatch,
    Error,
    ExchangeNotFound,
    LimitError,
    NodeNotRunning,
    PreconditionFailed,
    QueueNotFound,
    ResourceLocked,
    TopicNotFound,
    UsageError,
)
from warren.engine.kernel.protocol import QUEUE_STATS
from warren.engine.queues import control
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.amqp import permissions
from warren.workers.amqp.arguments import (
    STREAM,
    QueueWanted,
    check_alternate,
    check_headers_match,
    check_same_exchange,
    check_same_queue,
    check_same_stream,
    exchange_wanted,
    plain_arguments,
    queue_wanted,
    typed,
)
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.mapping import (
    GENERATED,
    REPLY_TO,
    RESERVED,
    amqp_name,
    described,
    engine_name,
    stream_called,
    stream_name,
)
from warren.workers.amqp.taps import Tap, settle_now
from warren.workers.amqp.users import Kind, Permission

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker

_LINES = str.maketrans("", "", "\r\n")
#: what declaring again what another one has just deleted is tried
TRIES = 5


class Declarations:
    """Those of one channel."""

    def __init__(self, channel: Speaker) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.taps = channel.taps
        self.loop = channel.taps.loop
        self.client = channel.taps.loop.client

    @property
    def vhost(self) -> str:
        return self.connection.vhost

    @property
    def catalog(self) -> Catalog:
        """The catalog, as new as the node says that it is."""
        return self.client.router().catalog

    def _may(self, permission: Permission, kind: Kind, name: str) -> None:
        permissions.check(self.channel.user, self.vhost, permission, kind, name)

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Have the supervisor change the catalog."""
        return await self.loop.do(self.client.declare, op, **fields)

    def _failed(self, error: Error) -> ChannelFault | ConnectionFault:
        """What else may go wrong with a change."""
        if isinstance(error, ClosedError | NodeNotRunning):
            return ConnectionFault(320, f"the node is not there any more: {error}")
        if isinstance(error, UsageError | LimitError):
            return ChannelFault(406, str(error))
        return ConnectionFault(541, str(error))

    # -- queues: looking ----------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """The catalog is as new as the node says, and what went with other connections and consumers here is gone."""
        await self.taps.dropped()
        await self.loop.ready()

    def named(self, name: str) -> str:
        """The name of a queue that a method means: the queue declared last, if it says none. Raises ChannelFault."""
        name = name.translate(_LINES)
        if name:
            return name
        if not self.channel.last_queue:
            raise ChannelFault(404, "no previously declared queue")
        return self.channel.last_queue

    def found(self, name: str) -> QueueDeclaration:
        """A queue that is there, and that this connection may use. Raises ChannelFault 404, 405."""
        found = self.catalog.queues.get(engine_name(self.vhost, name))
        if found is None or found.hidden:
            raise ChannelFault(404, f"no {described('queue', name, self.vhost)}")
        self._check_access(found, name)
        return found

    def stream(self, name: str) -> TopicDeclaration | None:
        """The stream of that name."""
        found = self.catalog.topics.get(stream_name(self.vhost, name))
        return found if found is not None and found.by_name else None

    def locked(self, name: str) -> ChannelFault:
        """Another connection's."""
        return ChannelFault(
            405,
            f"cannot obtain exclusive access to locked {described('queue', name, self.vhost)}. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original "
            "declaration.",
        )

    def _check_access(self, found: QueueDeclaration, name: str) -> None:
        if self._is_others(found):
            raise self.locked(name)

    def _is_others(self, found: QueueDeclaration) -> bool:
        """Whether a queue is another connection's alone; of this gateway, or of another client of the node."""
        mine = found.owner == self.client.epoch and self.taps.exclusives.get(found.name) is self.connection
        return bool(found.owner) and not mine

    async def counts(self, declaration: QueueDeclaration) -> tuple[int, int]:
        """Ready messages and consumers of a queue. Raises ChannelFault: it has gone."""
        tap = self.taps.known(declaration.name)
        if tap is not None:
            settle_now([tap])
        try:
            answer = await self.loop.do(
                self.client.ask_queue, declaration, lambda now: control.Stats(now.id), control.Counts
            )
        except QueueNotFound:
            return 0, 0
        ready = answer["ready"] + (0 if tap is None else tap.waiting_here)
        own = 0 if tap is None else len(tap.consumers)
        attachment = self.client.attached
        row = None
        if attachment is not None:
            row = attachment.statistics_of(SERVER_WORKER_FIRST + declaration.worker, declaration.id)
        all_n = 0 if row is None else QUEUE_STATS.unpack(row, "consuming")
        return ready, own + max(0, all_n - (1 if own else 0))

    # -- queues: declare ----------------------------------------------------------------------------------------

    async def queue_declare(
        self,
        name: str,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        nowait: bool,
        arguments: dict[str, Any],
    ) -> None:
        """queue.declare"""
        name = name.translate(_LINES)
        await self.ready()
        if name.startswith(REPLY_TO):
            self._reply_name_declared(name, nowait)
            return
        if passive:
            await self._look(name, nowait)
            return
        if not name:
            name = GENERATED + secrets.token_urlsafe(16)
        elif name.startswith(RESERVED):
            raise ChannelFault(403, f"queue name '{name}' contains reserved prefix '{RESERVED}*'")
        self._may("configure", "queue", name)
        said, what = typed(arguments), described("queue", name, self.vhost)
        for _try in range(TRIES):
            stream = self.stream(name)
            if stream is not None:
                check_same_stream(stream, said, what)
                counts = 0, self.taps.stream_consumers(stream.name)
                break
            found = self.catalog.queues.get(engine_name(self.vhost, name))
            if found is not None and not found.hidden:
                self._check_access(found, name)
                if bool(found.owner) != exclusive:
                    raise self.locked(name)
                check_same_queue(found, durable, auto_delete, said, what)
                if found.leased and not found.owner:
                    await self._renew(found)
                counts = await self.counts(found)
                break
            wanted = queue_wanted(self.vhost, name, durable, exclusive, auto_delete, arguments)
            if await (self._new_stream(name, wanted) if wanted.type == STREAM else self._new_queue(name, wanted)):
                counts = 0, 0
                break
        else:
            raise ChannelFault(406, f"{described('queue', name, self.vhost)} is declared and deleted all the time")
        self.channel.last_queue = name
        if not nowait:
            self.channel.send(spec.QUEUE_DECLARE_OK, (name, *counts))

    def _reply_name_declared(self, name: str, nowait: bool) -> None:
        if name != REPLY_TO and engine_name(self.vhost, name) not in self.catalog.queues:
            raise ChannelFault(404, f"no {described('queue', name, self.vhost)}")
        self.channel.last_queue = name
        if not nowait:
            self.channel.send(spec.QUEUE_DECLARE_OK, (name, 0, 1))

    async def _look(self, name: str, nowait: bool) -> None:
        stream = self.stream(name)
        if stream is not None:
            counts = (0, self.taps.stream_consumers(stream.name))
        else:
            found = self.found(name)
            if "expires" in found.arguments:
                await self._renew(found)
            counts = await self.counts(found)
        self.channel.last_queue = name
        if not nowait:
            self.channel.send(spec.QUEUE_DECLARE_OK, (name, *counts))

    async def _renew(self, found: QueueDeclaration) -> None:
        """The lease of a queue begins anew."""
        try:
            await self._ask("declare_queue", name=found.name, durable=found.durable, as_it_is=True)
        except Error as error:
            raise self._failed(error) from None

    async def _new_queue(self, name: str, wanted: QueueWanted) -> bool:
        """Declare it; False: look again, somebody else was faster."""
        if wanted.dead_letter_exchange is not None:
            self._may("read", "queue", name)
            self._may("write", "exchange", wanted.dead_letter_exchange)
        self._check_limit(name)
        if wanted.exclusive:
            self.taps.exclusives[wanted.name] = self.connection
        try:
            answer = await self._ask(
                "declare_queue",
                name=wanted.name,
                durable=wanted.durable,
                arguments=wanted.arguments,
                origin=wanted.origin or None,
            )
        except DeclarationMismatch:
            await self.ready()
            return False
        except ResourceLocked:
            self.taps.exclusives.pop(wanted.name, None)
            raise self.locked(name) from None
        except Error as error:
            self.taps.exclusives.pop(wanted.name, None)
            raise self._failed(error) from None
        await self.ready()
        if not answer["created"]:
            return False
        if wanted.exclusive and (self.channel.over or self.connection.over):
            self.taps.left(self.connection)
        return True

    def _check_limit(self, name: str) -> None:
        """Whether the vhost may have one queue more. Raises ChannelFault."""

        def count() -> int:
            queues = (amqp_name(item.name) for item in self.catalog.queues.values() if not item.hidden)
            streams = (stream_called(item.name) for item in self.catalog.topics.values() if item.by_name)
            found = itertools.chain(queues, streams)
            return sum(vhost == self.vhost and not called.startswith(REPLY_TO) for vhost, called in found)

        permissions.check_vhost_queues(self.connection.gateway.users, self.vhost, name, count)

    async def _new_stream(self, name: str, wanted: QueueWanted) -> bool:
        """The same of a stream."""
        self._check_limit(name)
        try:
            answer = await self._ask(
                "declare_topic",
                name=stream_name(self.vhost, name),
                queues=1,
                by_name=True,
                origin=wanted.origin or None,
                **wanted.arguments,
            )
        except DeclarationMismatch:
            await self.ready()
            return False
        except Error as error:
            raise self._failed(error) from None
        await self.ready()
        return bool(answer["created"])

    async def reply_queue(self) -> QueueDeclaration:
        """A queue for answers to this channel, and its only. Raises faults."""
        name = engine_name(self.vhost, f"{REPLY_TO}.{secrets.token_urlsafe(20)}")
        self.taps.exclusives[name] = self.connection
        try:
            await self._ask("declare_queue", name=name, durable=False, arguments={"exclusive": True})
            await self.ready()
            return self.catalog.queue(name)
        except QueueNotFound:
            raise ChannelFault(406, "fast reply consumer does not exist") from None
        except Error as error:
            raise self._failed(error) from None

    def drop_reply_queue(self, name: str) -> None:
        """Nobody listens for answers any more."""
        self.taps.drop_soon(name)

    # -- queues: delete, purge ----------------------------------------------------------------------------------

    async def queue_delete(self, name: str, if_unused: bool, if_empty: bool, nowait: bool) -> None:
        """queue.delete"""
        name = self.named(name)
        self._may("configure", "queue", name)
        await self.ready()
        what = described("queue", name, self.vhost)
        stream = self.stream(name)
        messages = 0
        if stream is not None:
            if if_unused and self.taps.stream_consumers(stream.name):
                raise ChannelFault(406, f"{what} in use")
            if if_empty:
                raise ConnectionFault(540, f"cannot delete {what}. queue.delete operations with if-empty flag set are "
                                           "not supported by stream queues")  # fmt: skip
            try:
                await self._ask("delete_topic", name=stream.name)
            except TopicNotFound:
                pass  # it has gone
            except Error as error:
                raise self._failed(error) from None
            await self.ready()
            self.taps.stream_gone(stream.name)
        else:
            found = self.catalog.queues.get(engine_name(self.vhost, name))
            if found is not None and not found.hidden:
                self._check_access(found, name)
                messages = await self._delete(found, what, if_unused, if_empty)
        if not nowait:
            self.channel.send(spec.QUEUE_DELETE_OK, (messages,))

    async def _delete(self, found: QueueDeclaration, what: str, if_unused: bool, if_empty: bool) -> int:
        messages, consumers = await self.counts(found)
        if if_unused and consumers:
            raise ChannelFault(406, f"{what} in use")
        if if_empty and messages:
            raise ChannelFault(406, f"{what} not empty")
        try:
            await self._ask("delete_queue", name=found.name, if_unused=if_unused, if_empty=if_empty)
        except QueueNotFound:
            return 0
        except PreconditionFailed:
            messages, _consumers = await self.counts(found)
            raise ChannelFault(406, f"{what} {'not empty' if if_empty and messages else 'in use'}") from None
        except Error as error:
            raise self._failed(error) from None
        self.taps.exclusives.pop(found.name, None)
        await self.ready()
        self.taps.look(found.name)
        return messages

    async def queue_purge(self, name: str, nowait: bool) -> None:
        """queue.purge"""
        name = self.named(name)
        self._may("read", "queue", name)
        await self.ready()
        if self.stream(name) is not None:
            what = described("queue", name, self.vhost)
            raise ConnectionFault(540, f"queue.purge not supported by stream queues {what}")
        found = self.found(name)
        try:
            answer = await self.loop.do(self.client.ask_queue, found, lambda now: control.Purge(now.id), control.Count)
        except QueueNotFound:
            raise ChannelFault(404, f"no {described('queue', name, self.vhost)}") from None
        except Error as error:
            raise self._failed(error) from None
        if not nowait:
            self.channel.send(spec.QUEUE_PURGE_OK, (answer.count,))

    async def let_next(self, tap: Tap) -> None:
        """A single active consumer left and still holds messages. Only those in the queue now wait for that."""
        declaration = self.client.catalog().queues.get(tap.queue.name)
        if declaration is not None and not (await self.counts(declaration))[0]:
            tap.let_next()

    async def consumer_went(self, tap: Tap) -> None:
        """A queue that goes with its last consumer goes now."""
        await self.taps.unused(tap)

    def consumer_went_soon(self, tap: Tap) -> None:
        """The same, when nobody can wait for it."""
        self.taps.unused_soon(tap)

    # -- bindings -----------------------------------------------------------------------------------------------

    async def queue_bind(self, name: str, exchange: str, key: str, nowait: bool, arguments: dict[str, Any]) -> None:
        """queue.bind"""
        await self._queue_binding("bind", name, exchange, key, arguments)
        if not nowait:
            self.channel.send(spec.QUEUE_BIND_OK)

    async def queue_unbind(self, name: str, exchange: str, key: str, arguments: dict[str, Any]) -> None:
        """queue.unbind"""
        await self._queue_binding("unbind", name, exchange, key, arguments)
        self.channel.send(spec.QUEUE_UNBIND_OK)

    async def _queue_binding(self, op: str, name: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        if not name and not key and self.channel.last_queue:
            key = self.channel.last_queue  # as the specification has it
        name, exchange = self.named(name), exchange.translate(_LINES)
        self._may("write", "queue", name)
        await self._may_read_source(exchange, key)
        if not exchange:
            raise _not_default()
        fields: dict[str, Any] = {
            "exchange": engine_name(self.vhost, exchange),
            "routing_key": key,
            "arguments": plain_arguments(arguments) or None,
        }
        stream = self.stream(name)
        if stream is not None:
            fields |= {"topic": stream.name}
            op += "_topic"
        else:
            if op == "bind":
                source = self.catalog.exchanges.get(fields["exchange"])
                if source is None:
                    raise ChannelFault(404, f"no {described('exchange', exchange, self.vhost)}")
                self.found(name)
                if source.type == "headers":
                    check_headers_match(arguments)
            fields |= {"queue": engine_name(self.vhost, name)}
            if op == "unbind":
                found = self.catalog.queues.get(fields["queue"])
                if found is not None and self._is_others(found):
                    if self.catalog.has_binding(**fields):
                        raise self.locked(name)
                    return
        try:
            if stream is not None:
                await self.loop.do(self.client.control, op, **fields)
            else:
                await self._ask(op, **fields)
        except (QueueNotFound, TopicNotFound):
            if "un" not in op:
                raise ChannelFault(404, f"no {described('queue', name, self.vhost)}") from None
        except ExchangeNotFound:
            if "un" not in op:
                raise ChannelFault(404, f"no {described('exchange', exchange, self.vhost)}") from None
        except ResourceLocked:
            raise self.locked(name) from None
        except Error as error:
            raise self._failed(error) from None
        await self.ready()

    async def exchange_bind(
        self, destination: str, source: str, key: str, nowait: bool, arguments: dict[str, Any]
    ) -> None:
        """exchange.bind"""
        await self._exchange_binding("bind_exchange", destination, source, key, arguments)
        if not nowait:
            self.channel.send(spec.EXCHANGE_BIND_OK)

    async def exchange_unbind(
        self, destination: str, source: str, key: str, nowait: bool, arguments: dict[str, Any]
    ) -> None:
        """exchange.unbind"""
        await self._exchange_binding("unbind_exchange", destination, source, key, arguments)
        if not nowait:
            self.channel.send(spec.EXCHANGE_UNBIND_OK)

    async def _exchange_binding(
        self, op: str, destination: str, source: str, key: str, arguments: Mapping[str, Any]
    ) -> None:
        destination, source = destination.translate(_LINES), source.translate(_LINES)
        self._may("write", "exchange", destination)
        await self._may_read_source(source, key)
        if not destination or not source:
            raise _not_default()
        names = {name: engine_name(self.vhost, name) for name in (source, destination)}
        if op == "bind_exchange":
            for name, own in names.items():
                if own not in self.catalog.exchanges:
                    raise ChannelFault(404, f"no {described('exchange', name, self.vhost)}")
            if self.catalog.exchanges[names[source]].type == "headers":
                check_headers_match(arguments)
        try:
            await self.loop.do(
                self.client.control,
                op,
                destination=names[destination],
                source=names[source],
                routing_key=key,
                arguments=plain_arguments(arguments) or None,
            )
        except ExchangeNotFound:
            if op == "bind_exchange":
                raise ChannelFault(404, f"no {described('exchange', source, self.vhost)}") from None
        except Error as error:
            raise self._failed(error) from None
        await self.ready()

    async def _may_read_source(self, exchange: str, key: str) -> None:
        self._may("read", "exchange", exchange)
        await self.ready()
        found = self.catalog.exchanges.get(engine_name(self.vhost, exchange)) if exchange else None
        if found is not None and found.type == "topic":
            permissions.check_topic(self.channel.user, self.vhost, "read", exchange, key)

    # -- exchanges ----------------------------------------------------------------------------------------------

    async def exchange_declare(
        self,
        name: str,
        type: str,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        nowait: bool,
        arguments: dict[str, Any],
    ) -> None:
        """exchange.declare"""
        name = name.translate(_LINES)
        what = described("exchange", name, self.vhost)
        await self.ready()
        if passive:
            if not name:
                raise _not_default()
            if engine_name(self.vhost, name) not in self.catalog.exchanges:
                raise ChannelFault(404, f"no {what}")
        else:
            wanted = exchange_wanted(self.vhost, name, type, durable, auto_delete, internal, arguments)
            if not name:
                raise _not_default()
            self._may("configure", "exchange", name)
            found = self.catalog.exchanges.get(wanted.name)
            if found is None and name.startswith(RESERVED):
                raise ChannelFault(403, f"exchange name '{name}' contains reserved prefix '{RESERVED}*'")
            if found is None:
                check_alternate(arguments, what)
                if wanted.alternate_exchange is not None:
                    self._may("read", "exchange", name)
                    self._may("write", "exchange", wanted.alternate_exchange)
                try:
                    await self.loop.do(
                        self.client.control,
                        "declare_exchange",
                        name=wanted.name,
                        type=type,
                        durable=durable,
                        alternate=wanted.alternate,
                        internal=internal,
                        auto_delete=auto_delete,
                        arguments=wanted.arguments or None,
                        origin=wanted.origin or None,
                    )
                except DeclarationMismatch:
                    pass  # somebody else was faster
                except Error as error:
                    raise self._failed(error) from None
                await self.ready()
                found = self.catalog.exchanges.get(wanted.name)
            if found is not None:
                check_same_exchange(found, wanted, what)
        if not nowait:
            self.channel.send(spec.EXCHANGE_DECLARE_OK)

    async def exchange_delete(self, name: str, if_unused: bool, nowait: bool) -> None:
        """exchange.delete"""
        name = name.translate(_LINES)
        what = described("exchange", name, self.vhost)
        if not name:
            raise _not_default()
        if name.startswith(RESERVED):
            raise ChannelFault(403, f"deletion of system {what} not allowed")
        self._may("configure", "exchange", name)
        try:
            await self.loop.do(
                self.client.control, "delete_exchange", name=engine_name(self.vhost, name), if_unused=if_unused
            )
        except ExchangeNotFound:
            pass
        except PreconditionFailed:
            raise ChannelFault(406, f"{what} in use") from None
        except Error as error:
            raise self._failed(error) from None
        await self.ready()
        if not nowait:
            self.channel.send(spec.EXCHANGE_DELETE_OK)


def _not_default() -> ChannelFault:
    return ChannelFault(403, "operation not permitted on the default exchange")
