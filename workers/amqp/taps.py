"""Taps: what comes for a queue, and which of the gateway's consumers gets it.

A gateway is one client of the node, and so one consumer of a queue, whatever many AMQP consumers it has there. A tap is
that consumer: it asks the worker for as much as its consumers may hold together (a prefetch, which costs no command
for each message), and hands out what comes in turn, by priority and room. `basic.get` takes from the same place.

What is handed out and not acked lies in a delivery slot of the gateway, and those are not endless: a tap asks for what
its consumers may have of them (shares.py), so that a program which never acks does not stop the others.

Invariants
  A message is in the core, in the line (read from a file), or in the hands of one channel: nowhere else, and never
  copied. What is settled is settled by the handle that it came by (`generation`): when the attachment ends, the servers
  have returned what it held, and an ack of that means nothing.
  Acks of one turn of the event loop go to the worker as one. Whatever else a channel asks of a queue waits for them.

Crash points: killed before the acks of a turn are submitted, these messages come again, marked redelivered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

from warren.engine import _core
from warren.engine._core import AttachmentLost, Delivery
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.exchanges import DEFAULT_EXCHANGES
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import (
    AckTimedOut,
    Error,
    LimitError,
    PeerLost,
    PreconditionFailed,
    QueueNotFound,
    ResourceLocked,
)
from warren.engine.kernel.protocol import QUEUE_STATS
from warren.engine.saying import counted, inert, quoted, shown
from warren.ipc.layout import DELIVERY_SLOTS_MAX
from warren.workers.amqp.arguments import QUORUM, type_of_declared
from warren.workers.amqp.content import Told, teller
from warren.workers.amqp.mapping import DEFAULT_VHOST, engine_name
from warren.workers.amqp.shares import AHEAD, PAUSE_S, Shares
from warren.workers.amqp.stream_watch import StreamWatch
from warren.workers.faces.aio.base import RETRY_S, Underneath
from warren.workers.faces.aio.line import Line, Share
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.message import Message

log = logging.getLogger("warren.amqp")

#: messages handed out at once, and their bytes, about
BATCH, BATCH_BYTES = 512, 1 << 18
#: batches before others have their turn
ROUNDS = 4
#: messages read from files at once
FILL = 1024
#: queues that a tap is kept for though nobody consumes there, for gets
KEPT = 256
#: how long it is waited until what lies here has returned
REST_S = 2.0
#: consumers of one queue from which on those who come and go are not looked at one by one
MANY = 16
#: the part of the time in which those are looked at who are short of delivery slots: one of so many
LOOK_SHARE = 20
#: when it is said that a consumer holds all it may: after so long, and not of others within so long
FULL_S, FULL_PAUSE_S = 10.0, 10.0
#: what acks may need: commands, bytes, the largest blob
ROOM = (16, 1 << 16, 1 << 15)


class Receiver(Protocol):
    """A consumer, as its tap knows it (consumers.py)."""

    held: int
    allowed: int
    asked: int
    full_since: float

    @property
    def tag(self) -> str: ...
    @property
    def channel(self) -> Any: ...
    @property
    def priority(self) -> int: ...
    @property
    def exclusive(self) -> bool: ...
    @property
    def asks(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def room(self) -> int: ...
    def deliver(self, deliveries: list[Delivery]) -> None: ...
    def lost(self) -> None: ...


class Reader(Protocol):
    """A consumer of a stream (streams.py)."""

    @property
    def stream(self) -> TopicDeclaration: ...
    def lost(self) -> None: ...


class Tap(Line):
    """The gateway's consumer of one queue."""

    def __init__(self, taps: Taps, queue: Underneath, lasting_id: int) -> None:
        self.taps = taps
        self.consumers: list[Receiver] = []  #: by priority, the highest first
        self.counts_deliveries = False  #: it was declared as a quorum queue: consumers hear how often
        self.single = False  #: single active consumer: the first one gets all, the others follow it by priority
        self.lasting_id = lasting_id
        self.generation = 0  #: rises with each handle
        self._all = Share(1)  # stands for all of them where the line asks
        self._turn = 0
        self._getting = 0
        self._size = 0  # of bodies, on average
        self._granted = 0  # unacked and ahead
        self._widens = False  # some consumer is granted more when it holds more
        self._anew_at: asyncio.TimerHandle | None = None
        self._look_s = 0.0  # that the last look at all consumers took
        self._settling: list[tuple[bool, bool, list[Delivery]]] = []
        self._flushing = False
        self._resting: asyncio.Future[Any] | None = None
        self._left_last: Receiver | None = None  # the active one that left last, of a single active consumer
        super().__init__(taps.loop, queue)
        self._of_gateway()

    @property
    def backlog(self) -> int:
        """Messages that are ready in its queue; 0 if nobody can say."""
        attachment = self.loop.client.attached
        row = None if attachment is None else attachment.statistics_of(self.queue.server, self.queue.id)
        return 0 if row is None else QUEUE_STATS.unpack(row, "ready")

    def told_full(self, consumer: Receiver) -> str:
        """What is said of a consumer that holds all it may."""
        limit = "it has no prefetch" if not consumer.asks else f"its prefetch is {consumer.asks:,}"
        channel, slots = consumer.channel, self.taps.shares_of(self.queue.server).slots
        held = counted(consumer.held, "message")
        return (
            f"consumer {shown(consumer.tag)} of queue {shown(self.queue.name)} (connection "
            f"{channel.connection.peer.name}, channel {channel.number}) has held {held} for {FULL_S:g} s "
            f"without an ack ({limit}): it may hold no more, and gets none of those that wait until it "
            "acks. Let it ack earlier, or set a prefetch (basic.qos); or start the node with more amqp_processes"
            f"{f', or a larger amqp_delivery_slots ({slots:,})' if slots < DELIVERY_SLOTS_MAX else ''}"
        )

    @property
    def waiting_here(self) -> int:
        """Messages that lie here and are nobody's yet."""
        return self.kept + (self.handle.pending if self.handle.usable else 0)

    # -- consumers ----------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        return bool(self.consumers)

    async def enter(self, consumer: Receiver) -> None:
        """A consumer comes; from now on it gets messages."""
        first = min(1, len(self.consumers)) if self.single else 0  # who is active stays so
        at = bisect_right(self.consumers, -consumer.priority, first, key=lambda one: -one.priority)
        self.consumers.insert(at, consumer)
        self.taps.came(self, consumer)
        if len(self.consumers) == 1:
            await self.rested()  # what lay here for those before has returned: it comes in its order
            if self.consumers and not self._joined:
                await self.join(self._all)
        else:
            self._anew_soon()

    @property
    def _joined(self) -> bool:
        """Whether the worker delivers to those here."""
        return self._all in self._consumers

    def leave(self, consumer: Receiver) -> None:
        """A consumer goes. Its channel keeps what it holds; messages that are here for nobody return."""
        if consumer not in self.consumers:
            return
        if self.single and consumer is self.consumers[0] and consumer.held and not self.held_up:
            self._left_last = consumer
        self.consumers.remove(consumer)
        self.taps.went(self, consumer)
        if self.consumers:
            self._anew_soon()
            return
        self._resting = self.part(self._all)

    @property
    def held_up(self) -> bool:
        """A single active consumer has left with unacked messages: these may return, and come first. Messages that the
        worker has taken back (ack_timeout) have returned.
        """
        leaving = self._left_last
        return leaving is not None and leaving.held > 0 and self.handle.usable and self.handle.unacked > 0

    def let_next(self) -> None:
        """The queue has no message that must wait for those of the consumer that left: the next one starts."""
        self._left_last = None
        self.anew()

    def _anew_soon(self) -> None:
        """A consumer came or went. Each look at all of them takes its time: of very many, not one for each of them."""
        if self._anew_at is None:
            pause_s = LOOK_SHARE * self._look_s if len(self.consumers) > MANY else 0.0
            self._anew_at = self.loop.events.call_later(pause_s, self._anew_now)

    def _anew_now(self) -> None:
        self._anew_at = None
        if not self.consumers:
            return
        began = time.monotonic()
        self.anew()
        self._look_s = time.monotonic() - began

    def anew(self) -> None:
        """What consumers ask for has changed."""
        shares = self.taps.shares_of(self.queue.server)
        for one in self.consumers:
            if one.asked != one.asks:
                shares.went(one.asked)
                one.asked = one.asks
                shares.came(one.asked)
        self.reconsider()

    def reconsider(self) -> None:
        """What consumers may hold has changed."""
        self._prefetch()
        self._wait()
        self.pump()

    def _prefetch(self) -> None:
        if self._away or self._making_way or not self._joined or not self.consumers or not self.handle.usable:
            return
        attachment = self.loop.client.attached
        if attachment is None:
            return
        self._numbered = True
        shares = self.taps.shares_of(self.queue.server)
        self._granted = min(self._divide(shares), attachment.delivery_slots)
        self.handle.begin(max(1, self._granted))

    def _divide(self, shares: Shares) -> int:
        """What each consumer may hold from now on, and how much the worker may have out here for all of them."""
        active = self.consumers
        if self.single:
            active = [] if self.held_up else active[:1]
        floor, held = shares.floor, sum(one.held for one in self.consumers)
        fair = [shares.fair(one.asked) for one in active]
        each = shares.free(self) // max(1, sum(most > floor for most in fair))
        granted = max(0, self.handle.unacked - self.kept - held) + self._getting
        granted += sum(one.held for one in self.consumers[len(active) :])
        short = self._widens = False
        for one, most in zip(active, fair, strict=True):
            one.allowed = min(most, floor + each)
            ahead = one.held + AHEAD
            granted += max(one.held, min(one.allowed, ahead))
            self._widens |= one.allowed > ahead
            short |= one.allowed < ahead and (not one.asked or one.asked > one.allowed)
        if short:
            shares.short.add(self)
        else:
            shares.short.discard(self)
        if shares.grant(self, granted - floor * len(active)):
            self.taps.look_soon(shares)
        return granted

    def _wait(self) -> None:
        self.loop.waiting.setdefault(self.queue.server, set()).add(self)
        self.loop.look_soon()
        self.loop.tick_later()

    def _unwait(self) -> None:
        if not self.consumers:
            super()._unwait()

    async def renew_for_getters(self, by_node: bool = False) -> None:
        await super().renew_for_getters(by_node)
        if self.consumers and self.handle.usable:
            self.anew()

    def renew(self) -> None:
        found = self.loop.client.catalog().queues.get(self.queue.name)
        if found is None or found.lasting_id != self.lasting_id:
            raise QueueNotFound(f"queue {quoted(self.queue.name)} was deleted")
        super().renew()

    def _follow(self) -> None:
        if self._of is not self.queue.handle:
            self.generation += 1
            self._settling.clear()
            self._left_last = None
            self._of_gateway()
        super()._follow()

    def _of_gateway(self) -> None:
        """A get asks for no more than it returns: what lies here would not count as ready."""
        self.queue.handle.exact = True

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if isinstance(error, QueueNotFound | ResourceLocked):
            for consumer in list(self.consumers):
                self.leave(consumer)
                consumer.lost()
        elif not isinstance(error, LimitError | PeerLost) and self.consumers:
            log.warning("queue %s: %s", quoted(self.queue.name), inert(str(error)))

    # -- handing out --------------------------------------------------------------------------------------------

    def pump(self) -> None:
        super().pump()
        if self.consumers and self._joined and not self.getters and not self._away:
            self._hand_out()

    def _hand_out(self) -> None:
        for _round in range(ROUNDS):
            ready = self._ready()
            if not ready:
                return
            most = min(BATCH, sum(room for _one, room in ready))
            if self._size > BATCH_BYTES // BATCH:
                most = max(1, min(most, BATCH_BYTES // self._size))
            try:
                found = self._take(most, 1)
            except (Error, OSError) as error:  # a damaged message, which is not delivered again
                name, why = quoted(self.queue.name), inert(str(error))
                log.error("queue %s: a message cannot be read, and is not delivered: %s", name, why)
                continue
            if not found:
                return
            deliveries = cast("list[Delivery]", found)
            self._size = (3 * self._size + len(deliveries[-1].body)) // 4
            self._share_out(deliveries, ready)
            if self._widens and self._granted - sum(one.held for one in self.consumers) < AHEAD // 2:
                self._prefetch()
        self.loop.look_soon()  # others first

    @property
    def _fill_most(self) -> int:
        return FILL  # and not more bytes than a poll gives

    def _ready(self) -> list[tuple[Receiver, int]]:
        """Who has room, and how much: those of the highest priority that has any."""
        if self.single:
            room = 0 if self.held_up else self.consumers[0].room
            return [(self.consumers[0], room)] if room > 0 else []
        found: list[tuple[Receiver, int]] = []
        for one in self.consumers:
            if found and one.priority < found[0][0].priority:
                break
            room = one.room
            if room > 0:
                found.append((one, room))
        return found

    def _share_out(self, deliveries: list[Delivery], ready: list[tuple[Receiver, int]]) -> None:
        """To each in turn, as RabbitMQ does: with three consumers the first one gets messages 1, 4, 7, …"""
        while deliveries:
            many = len(ready)
            if many == 1:
                ready[0][0].deliver(deliveries)
                return
            turn = self._turn % many
            ready = ready[turn:] + ready[:turn]
            each = min(-(-len(deliveries) // many), *(room for _one, room in ready))
            now, deliveries = deliveries[: each * many], deliveries[each * many :]
            self._turn += len(now)
            for at, (one, _room) in enumerate(ready[: len(now)]):
                one.deliver(now[at::many])
            ready = [(one, room - each) for one, room in ready if room > each]

    async def get_one(self) -> tuple[Delivery, int] | None:
        """The next message and its generation, for basic.get; None: the queue is empty. Raises what Line.get does."""
        self._getting += 1
        try:
            self._prefetch()
            found = await self.get(1, 0)
        finally:
            self._getting -= 1
            if self.consumers:
                self.anew()
        return (cast("list[Delivery]", found)[0], self.generation) if found else None

    # -- settling -----------------------------------------------------------------------------------------------

    def settle_later(self, deliveries: list[Delivery], generation: int, ack: bool, requeue: bool) -> None:
        """Ack or nack at the end of this turn of the event loop; what others said before goes first."""
        if generation != self.generation:
            return  # the servers have returned them
        last = self._settling[-1] if self._settling else None
        if last is not None and last[0] == ack and last[1] == requeue:
            last[2].extend(deliveries)
        else:
            self._settling.append((ack, requeue, list(deliveries)))
        if requeue and not ack and self.consumers:
            self.make_way()
        if not self._flushing:
            self._flushing = True
            self.loop.events.call_soon(self._flush)

    def _flush(self) -> None:
        core = self.loop.core
        if core is None or core.ended:
            self._settling.clear()
        try:
            while self._settling and core is not None:
                if core.room(self.queue.server, *ROOM) is not None:
                    self.loop.spawn(self._flush_when_there_is_room())
                    return
                ack, requeue, deliveries = self._settling.pop(0)
                try:
                    self.handle.settle_many(deliveries, ack, requeue)
                except AckTimedOut:
                    log.info("queue %s: messages were acked after its ack_timeout", quoted(self.queue.name))
        except (AttachmentLost, PeerLost):
            self._settling.clear()  # the servers return them
        except Error as error:
            log.warning("queue %s: messages stay unacked: %s", quoted(self.queue.name), inert(str(error)))
        self._flushing = False
        if self._left_last is not None and not self.held_up:
            self._left_last = None
            self._prefetch()
        if self.consumers:
            if self.handle.usable and self.handle.unacked > self.kept + sum(one.held for one in self.consumers):
                self._prefetch()
            shares = self.taps.shares_of(self.queue.server)
            if shares.short:
                self.taps.look_soon(shares)
            if self.waiting_here or not self.handle.usable:
                self.pump()

    async def _flush_when_there_is_room(self) -> None:
        core = self.loop.core
        try:
            while core is not None and not core.ended:
                blocked = core.room(self.queue.server, *ROOM)
                if blocked is None:
                    break
                await self.loop.passed(blocked[0], _core.WANT_HEAD, blocked[1], None, _core.FOR_ROOM)
        except (AttachmentLost, Error):
            self._settling.clear()  # the servers return them
        self._flush()

    async def _submitted(self) -> None:
        settle_now([self])
        while self._flushing and self.handle.usable:
            await asyncio.sleep(RETRY_S)

    async def rested(self) -> None:
        """Wait until what nobody here takes has returned, but not for long."""
        resting = self._resting
        if resting is not None and not resting.done():
            await asyncio.wait([resting], timeout=REST_S)


class Taps:
    """What the channels of a gateway share: taps, and which connection owns which exclusive queue."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.watch = StreamWatch(loop)
        self.exclusives: dict[str, object] = {}  #: connection of an exclusive queue, by name in the node
        self._dropping: set[asyncio.Task[None]] = set()
        self._vhosts = {DEFAULT_VHOST}  # whose own exchanges are there
        self._others: dict[str, Callable[[bytes | None], Told]] = {}
        self._streams: dict[str, list[Reader]] = {}  # by name of the topic
        self._taps: WeakValueDictionary[str, Tap] = WeakValueDictionary()
        self._kept: OrderedDict[str, Tap] = OrderedDict()
        self._shares: dict[int, Shares] = {}  # by server
        self._looking: set[Shares] = set()  # at which a look is due
        self._look_pause = PAUSE_S
        self._said_full = 0.0

    def known(self, name: str) -> Tap | None:
        """The tap of a queue (its name in the node), if there is one."""
        return self._taps.get(name)

    def of(self, declaration: QueueDeclaration) -> Tap:
        """The tap of a queue. It may block for a moment; raises ResourceLocked, ClosedError."""
        found = self._taps.get(declaration.name)
        if found is None or found.lasting_id != declaration.lasting_id:
            messages = cast("type[Message]", Delivery)  # nobody here asks one for more than the core's
            found = Tap(self, Underneath(self.loop.client, declaration, messages), declaration.lasting_id)
            found.single = bool(declaration.arguments.get("single_active_consumer"))
            found.counts_deliveries = type_of_declared(declaration) == QUORUM
            self._taps[declaration.name] = found
        self._kept[declaration.name] = found
        self._kept.move_to_end(declaration.name)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    def look(self, name: str) -> None:
        """The queue of that name may have gone: its consumers are told now, not at the next look."""
        found = self._taps.get(name)
        if found is not None:
            found.pump()

    def other(self, queue: str) -> Callable[[bytes | None], Told]:
        """What tells of messages of a queue that did not come by AMQP."""
        found = self._others.get(queue)
        if found is None:
            if len(self._others) >= KEPT:
                self._others.clear()
            found = self._others[queue] = teller(queue)
        return found

    # -- what goes with a connection or a consumer --------------------------------------------------------------

    def left(self, connection: object) -> None:
        """A connection is over, and its channels are: its exclusive queues go."""
        names = [name for name, owner in self.exclusives.items() if owner is connection]
        for name in names:
            del self.exclusives[name]
        if names:
            self._drop(self._delete(names))

    def _drop(self, work: Coroutine[Any, Any, None]) -> None:
        """Something goes; who asks for the queue by its name waits for that."""
        if self.loop.closing:
            work.close()  # it goes with the attachment
            return
        task = self.loop.spawn(work)
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    @property
    def dropping(self) -> bool:
        """Whether a queue is going just now."""
        return bool(self._dropping)

    async def dropped(self) -> None:
        """Wait until what goes has gone."""
        while self._dropping:
            await asyncio.wait(list(self._dropping))

    def drop_soon(self, name: str) -> None:
        """An exclusive queue of this process goes."""
        self.exclusives.pop(name, None)
        self._drop(self._delete([name]))

    async def _delete(self, names: list[str]) -> None:
        for name in names:
            try:
                await self.loop.do(self.loop.client.declare, "delete_queue", name=name)
            except QueueNotFound:
                continue
            except Error as error:
                log.warning("queue %s stays until this gateway ends: %s", quoted(name), inert(str(error)))
        for name in names:
            self.look(name)

    async def unused(self, tap: Tap) -> None:
        """A consumer of this queue went: if it was the last of an auto_delete queue, the queue goes now."""
        name = tap.queue.name
        if tap.consumers or not tap.queue.is_auto_delete or self.loop.closing:
            return
        try:
            await tap.rested()
            await self.loop.do(self.loop.client.declare, "delete_queue", name=name, if_unused=True)
        except (QueueNotFound, PreconditionFailed):
            return
        except Error as error:
            log.info("queue %s is not deleted yet: %s", quoted(name), inert(str(error)))  # the supervisor does it later
            return
        self.exclusives.pop(name, None)
        self.look(name)

    def unused_soon(self, tap: Tap) -> None:
        """The same, when nobody waits for it."""
        if not tap.consumers and tap.queue.is_auto_delete:
            self._drop(self.unused(tap))

    # -- vhosts -------------------------------------------------------------------------------------------------

    def has_vhost(self, vhost: str) -> bool:
        """Whether its own exchanges (amq.direct, …) are known to be there."""
        return vhost in self._vhosts

    def vhost_entered(self, vhost: str) -> None:
        """A connection came: the vhost may be another one of this name, whose exchanges are still to be made."""
        if vhost != DEFAULT_VHOST:
            self._vhosts.discard(vhost)

    async def make_vhost(self, vhost: str) -> None:
        """Declare them. Raises errors of the node."""
        await self.loop.ready()
        exchanges = self.loop.client.router().catalog.exchanges
        for own in DEFAULT_EXCHANGES:
            name = engine_name(vhost, own.name)
            if own.name and name not in exchanges:
                await self.loop.do(
                    self.loop.client.control, "declare_exchange", name=name, type=own.type, internal=own.internal
                )
        self._vhosts.add(vhost)

    # -- streams ------------------------------------------------------------------------------------------------

    def stream_came(self, consumer: Reader) -> None:
        """A consumer of a stream."""
        self._streams.setdefault(consumer.stream.name, []).append(consumer)

    def stream_went(self, consumer: Reader) -> None:
        """It is none any more."""
        found = self._streams.get(consumer.stream.name, [])
        if consumer in found:
            found.remove(consumer)
        if not found:
            self._streams.pop(consumer.stream.name, None)

    def stream_consumers(self, name: str) -> int:
        """How many consumers the stream of a topic has here."""
        return len(self._streams.get(name, ()))

    def stream_gone(self, name: str) -> None:
        """It was deleted."""
        for consumer in list(self._streams.get(name, ())):
            consumer.lost()

    # -- shares of the delivery slots ---------------------------------------------------------------------------

    def shares_of(self, server: int) -> Shares:
        """How the delivery slots of a worker are divided."""
        found = self._shares.get(server)
        if found is None:
            found = self._shares[server] = Shares(self.loop.client.attachment().delivery_slots)
        return found

    def came(self, tap: Tap, consumer: Receiver) -> None:
        """A consumer of this tap comes."""
        consumer.asked = consumer.asks
        self.shares_of(tap.queue.server).came(consumer.asked)

    def went(self, tap: Tap, consumer: Receiver) -> None:
        """A consumer of this tap goes."""
        shares = self.shares_of(tap.queue.server)
        shares.went(consumer.asked)
        if not tap.consumers:
            shares.short.discard(tap)
            shares.grant(tap, 0)
        self.look_soon(shares)

    def look_soon(self, shares: Shares) -> None:
        """Something has become free, or may be: those who are short may have it."""
        if shares.short and shares not in self._looking:
            self._looking.add(shares)
            self.loop.events.call_later(self._look_pause, self._look_at, shares)

    def _look_at(self, shares: Shares) -> None:
        began = time.monotonic()
        for tap in [*shares.granted, *shares.short]:
            tap._prefetch()
        self._looking.discard(shares)
        for tap in list(shares.short):
            tap.reconsider()
        self._look_pause = max(PAUSE_S, LOOK_SHARE * (time.monotonic() - began))

    def end_late(self) -> None:
        """Close channels whose consumer is the only one, a single active or an exclusive one, and holds a message for
        longer than the queue's ack timeout: others wait for them.
        """
        for tap in list(self._taps.values()):
            if tap.handle.usable and tap.handle.ack_timeout:
                for one in list(tap.consumers):
                    if tap.single or one.exclusive:
                        one.channel.end_if_late(tap)

    def tell_full(self) -> None:
        """Say in the log, once, which consumers hold all they may and ack nothing, while messages wait for them."""
        now = time.monotonic()
        for shares in self._shares.values():
            for tap in list(shares.short):
                for one in tap.consumers:
                    if not one.full:
                        one.full_since = 0.0
                    elif not one.full_since:
                        one.full_since = now
                    elif 0 < one.full_since < now - FULL_S and now - self._said_full > FULL_PAUSE_S and tap.backlog:
                        one.full_since, self._said_full = -1.0, now
                        log.warning("%s", inert(tap.told_full(one)))


def settle_now(taps: Sequence[Tap]) -> None:
    """Submit what was acked in these taps."""
    for tap in taps:
        if tap._settling:
            tap._flush()
