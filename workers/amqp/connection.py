"""One connection: what its socket says goes to its channels, and what they say to its socket.

    HANDSHAKE ─▶ OPEN ─▶ CLOSING (close was sent, close-ok is awaited) ─▶ over
        └─▶ SILENT (nothing is said or heard any more)

Invariants
  Nothing here waits. Frames are told apart at once; what a channel cannot take now is kept in its slot (slots.py).
  In the handshake they are taken one by one: what a client sends before it is answered waits for its turn.
  The socket is not read while too much waits (backlog.py), there is no room for what this client has begun (begun.py),
  it floods us with questions and does not read what we say, or an alarm blocks this publisher; it is read again when
  none of these holds. Heartbeats are sent all the while, and a client that is not read is not taken for dead, unless
  its socket says so (watch.py).
  It is read while deliveries lie unsent: a client may write, in one thread, what it cannot stop before it is taken.
  What is sent in one turn of the loop goes out by one call, or by several of UNSENT_MAX bytes.
  Memory: what is counted in `kept`, one read, what the reader puts together (ASSEMBLING messages), UNSENT_MAX of
  deliveries, FLOOD of answers and what one call of each channel adds to it (of `basic.get` GETS together).
Crash points: a gateway has no state of its own; what a client was not told did not happen for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warren.engine._core import AmqpReader, amqp_method, amqp_table
from warren.engine.amqp import spec
from warren.engine.saying import inert
from warren.workers.amqp.backlog import CHANNEL, LEAST_BYTES, Kept
from warren.workers.amqp.begun import Part
from warren.workers.amqp.faults import ChannelFault, ConnectionFault, Fault
from warren.workers.amqp.handshake import CAPABILITIES, SILENT_S, Handshake, Silence, refused
from warren.workers.amqp.heartbeat import Heartbeat
from warren.workers.amqp.interfaces import House, Tenant
from warren.workers.amqp.peers import Peer, peer_of
from warren.workers.amqp.slots import Slot
from warren.workers.amqp.users import User

if TYPE_CHECKING:
    import socket

log = logging.getLogger("warren.amqp")

#: bytes that may lie unsent before nothing large is sent any more (`writable`), and below which it goes on
UNSENT_MAX, UNSENT_LOW = 1 << 19, 1 << 17
#: bytes above which nothing is done for a client that does not read: it has asked for very many answers
FLOOD = 1 << 21
#: calls of basic.get of a connection at a time: each brings a body
GETS = 4
#: messages of the largest size that a client may have begun and not ended; all together: begun.py
ASSEMBLING = 4
#: bytes of messages that are begun which count as publishing in an alarm, so that these, too, stop growing
BEGUN = 1 << 20
#: how long close-ok, or the end of the socket after it, is waited for
CLOSE_S = 30.0
#: how long the channels of a connection that goes may finish what they were asked before
FINISH_S = 5.0
#: bytes of a short string
TEXT_MAX = 255
#: ends a text that is too long for one
CUT = b"..."
#: faults of the reader (nonsense, an unknown method) of which RabbitMQ says nothing, either
_UNSAID = (spec.INTERNAL_ERROR, spec.NOT_IMPLEMENTED)
#: what is looked for after nonsense
_CLOSE_OK = amqp_method(0, spec.CONNECTION_CLOSE_OK, ())
#: methods that a client may send on channel 0 when the connection is open
_OPEN_METHODS = frozenset((spec.CONNECTION_CLOSE, spec.CONNECTION_CLOSE_OK, spec.CONNECTION_UPDATE_SECRET))


def _first_frame(data: bytes, frame_max: int) -> int:
    """The end of the first frame; 0: it has not come as a whole. One that is too large is for the reader as it is."""
    if len(data) < spec.FRAME_OVERHEAD:
        return 0
    size = int.from_bytes(data[3:7])
    if size > frame_max:
        return len(data)
    return size + spec.FRAME_OVERHEAD if len(data) >= size + spec.FRAME_OVERHEAD else 0


class Connection(asyncio.BufferedProtocol):
    """A protocol of asyncio. Everything happens in the gateway's loop."""

    peer: Peer
    socket: socket.socket

    def __init__(self, gateway: House) -> None:
        self.gateway = gateway
        self.user: User | None = None
        self.vhost = ""
        self.client_said = b"\0\0\0\0"
        self._capabilities: frozenset[str] = frozenset()
        self.frame_max = spec.FRAME_MIN
        self.channel_max = 0
        self.heartbeat_s = 0
        self.heartbeat: Heartbeat | None = None
        self.open = False  #: open-ok was sent, and nothing has ended it since
        self.closing = False  #: connection.close was sent, or answered
        self.over = False
        self.writable = True  #: deliveries and bodies may be sent; Channel.writable says when they may again
        self.flooded = False  #: nothing is done before the client has read what is unsent
        self.blocked = False  #: an alarm blocks this publisher
        self.blocked_since = 0.0
        self.paused = False  #: the socket is not read
        self.bytes_in = self.bytes_out = 0
        self.published = 0  #: messages, on channels that have ended
        self.since = time.time()
        self.slots: dict[int, Slot] = {}
        self.kept = Kept(gateway.backlog, self.may_read)
        self.begun = Part(gateway.begun, self)
        self.gets = asyncio.Semaphore(GETS)
        self._transport: asyncio.Transport
        self._handshake: Handshake | None = None
        self._reader: AmqpReader | None = None
        self._ahead = b""  # came in the handshake, and waits for its turn
        self._message_ended = False  # one has come, since that was last looked at
        self._silent = False  # what comes is not looked at any more
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._waiting_to_write: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._going: asyncio.Task[None] | None = None  # the end of all channels
        self._rests: asyncio.Future[None] | None = None

    # -- what the channels use ----------------------------------------------------------------------------------

    @property
    def tenants(self) -> Mapping[int, Tenant]:
        """Its channels, by number."""
        return self.slots

    @property
    def user_name(self) -> str:
        """Who logged in, also when no vhost was opened yet; "" before."""
        user = self.user if self._handshake is None else self._handshake.logged_in
        return user.name if user is not None else ""

    @property
    def _who(self) -> str:
        """For the log."""
        return f"user {inert(self.user_name)}" if self.user_name else "not logged in"

    @property
    def client_properties(self) -> dict[str, Any]:
        """Properties that the client announced; kept as bytes, which need a fraction of the memory."""
        return amqp_table(self.client_said)

    def introduced(self, said: bytes) -> None:
        """The client says what it is, in a table."""
        self.client_said = said
        capabilities = self.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._capabilities = frozenset(name for name in CAPABILITIES if capabilities.get(name) is True)

    def capable(self, name: str) -> bool:
        """Whether the client announced a capability."""
        return name in self._capabilities

    def send(self, data: bytes) -> None:
        """Send bytes with all that is sent in this turn of the loop. It never waits: see `writable`."""
        if self.over:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= UNSENT_MAX:  # else many who send in this turn would not see that nobody reads
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self.gateway.events.call_soon(self._flush)

    def send_method(self, channel: int, id: int, arguments: tuple[Any, ...] = ()) -> None:
        """Send a method without content."""
        self.send(amqp_method(channel, id, arguments))

    def fail(self, fault: ConnectionFault, method: int = 0) -> None:
        """Close the connection with a reply code, and what it holds."""
        if self.closing or self.over:
            return
        log.warning("connection %s (%s) is closed: %s", self.peer.name, self._who, inert(str(fault)))
        self.close(fault, method)

    def told(self, fault: Fault, method: int = 0) -> tuple[int, str, int, int]:
        """The arguments of channel.close and connection.close."""
        said = fault.said.encode("utf-8", "replace")
        if len(said) > TEXT_MAX:
            said = said[: TEXT_MAX - len(CUT)] + CUT
        return fault.code, said.decode("utf-8", "ignore"), method >> 16, method & 0xFFFF

    async def until_writable(self) -> None:
        """Return when a channel may send again, or never will."""
        while not self.writable and not self.over:
            waiting: asyncio.Future[None] = self.gateway.events.create_future()
            self._waiting_to_write.append(waiting)
            await waiting

    # -- what the slots use -------------------------------------------------------------------------------------

    def channel_closes(self, number: int) -> None:
        """The gateway closed a channel: what the client still sends to it is left out."""
        if self._reader is not None:
            self._reader.closing(number)

    def channel_closed(self, number: int) -> None:
        """The client closed a channel, and it has done everything before."""
        self._free(number)
        self.send_method(number, spec.CHANNEL_CLOSE_OK)

    def channel_rests(self) -> None:
        """A channel has nothing under way."""
        if self._rests is not None and not self._rests.done() and not any(slot.busy for slot in self.slots.values()):
            self._rests.set_result(None)

    def may_read(self) -> None:
        """What the socket waited for may be over."""
        if self.over:
            return
        shakes_hands = self._handshake is not None and self._handshake.busy
        wanted = not self.gateway.stopping and (
            self.closing  # nothing of what comes is kept
            or (
                not self.blocked
                and not self.flooded
                and not self.kept.full
                and not self.begun.held
                and not (shakes_hands and len(self._ahead) >= LEAST_BYTES)
            )
        )
        if wanted != self.paused:
            return
        self.paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.socket = transport.get_extra_info("socket")
        try:
            self.peer = peer_of(transport, self.gateway.next_number())
        except OSError:  # it has gone already
            self.over = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=UNSENT_MAX, low=UNSENT_LOW)
        if not self.gateway.enters(self):
            self.over = True
            transport.abort()
            return
        self._handshake = Handshake(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what comes is put: one place for all connections, as it is parsed at once. A new place for each read
        would cost more than all the rest of it. Little of clients that are not known yet, and where much waits.
        """
        room = self.gateway.room
        most = LEAST_BYTES
        if self._handshake is None:
            most = min(self.gateway.backlog.read_bytes, self.begun.read_bytes)
        return room if most == len(room) else room[:most]

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        if self._deaf():
            return
        with self.gateway.room[:nbytes] as data:
            self._came(data)
        if not self.paused and (self.kept.waits or self.begun.size or self._ahead):
            self.may_read()

    def _came(self, data: memoryview | bytes) -> None:
        """Bytes of the client, which lie there until this returns."""
        try:
            if self._handshake is None:
                self._read(data)
            else:
                self._ahead += data
                self._shake_hands()
        except ConnectionFault as fault:
            self.fail(fault)
        except Silence as silence:
            self.fall_silent(str(silence))
        except Exception:
            log.critical("connection %s: what it sent cannot be handled", self.peer.name, exc_info=True)
            self.abort("an internal error")

    def _read(self, data: memoryview | bytes) -> None:
        reader = self._reader
        if reader is None:
            if _CLOSE_OK in bytes(data):
                self._hang_up()
            return
        for event in reader.read(data):
            self._event(event)
            if self._deaf():
                return
        if self._reader is not reader:  # what came made no sense
            return
        begins = reader.kept
        if begins > LEAST_BYTES or self.begun.size:
            self.begun.now(begins, reader.came, self._message_ended)
        self._message_ended = False
        if self.gateway.alarm and not self.blocked and self.open and begins > BEGUN:
            self._block()

    def _shake_hands(self) -> None:
        """Take what has come one by one: a frame may say how the next one is to be read, or need a while."""
        while self._ahead and not self._deaf():
            handshake, reader = self._handshake, self._reader
            data, self._ahead = self._ahead, b""
            if self.closing or handshake is None:
                self._read(data)
            elif reader is None:
                rest = handshake.header(data)
                if rest is None:
                    return
                most = self.gateway.settings.amqp_message_bytes_max
                self._reader = AmqpReader(spec.FRAME_MIN, most, ASSEMBLING * most)
                self._ahead = rest
            else:
                end = 0 if handshake.busy else _first_frame(data, reader.frame_max)
                self._ahead = data[end:]
                if not end:
                    return
                self._read(data[:end])

    def handshake_goes_on(self) -> None:
        """The login is checked: bytes that arrived meanwhile have their turn."""
        if self._ahead:
            self._came(b"")
        self.may_read()

    def _deaf(self) -> bool:
        """What comes is not looked at any more."""
        return self._silent or self.over

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.flooded = False
        self._wake_writers()
        for slot in list(self.slots.values()):
            if not slot.over:
                slot.channel.writable()
        self.may_read()

    def connection_lost(self, error: Exception | None) -> None:
        was_open = self.open
        self._ended()
        if self._timer is not None:
            self._timer.cancel()
        if was_open and not self.closing:
            why = f": {error}" if error else ""
            log.warning("connection %s (%s) was lost%s", self.peer.name, self._who, why)
        if self.slots and self._going is None:
            self._going = self.gateway.spawn(self._end_channels())
        elif not self.slots:
            self.gateway.left(self)

    # -- what comes ---------------------------------------------------------------------------------------------

    def _event(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == spec.PUBLISH:
            self._publish(event)
        elif kind == spec.METHOD:
            if event[1] == 0:
                self._on_channel_0(event[2], event[3])
            else:
                self._on_channel(event)
        elif kind == spec.REFUSED:
            self._refused(event)
        elif kind == spec.FAULT:
            _kind, code, text, class_id, method_id, _channel = event
            if code in _UNSAID and not self.closing:
                self.abort(text)
                return
            self._fault(ConnectionFault(code, text), class_id << 16 | method_id)

    def _publish(self, event: tuple[Any, ...]) -> None:
        slot = self._slot(event[1], spec.BASIC_PUBLISH)
        if slot is None:
            return
        self._message_ended = True
        if self.gateway.alarm and not self.blocked:
            self._block()
        slot.feed(event)

    def _refused(self, event: tuple[Any, ...]) -> None:
        """The reader could not take a message: the channel closes."""
        slot = self._slot(event[1], spec.BASIC_PUBLISH)
        if slot is not None:
            slot.fail(ChannelFault(event[2], event[3]), spec.BASIC_PUBLISH)

    def _slot(self, number: int, method: int) -> Slot | None:
        """The channel of an event; None: it is not to be heard. Raises Silence."""
        if not self.open:
            if self.closing:
                return None
            raise Silence("it used a channel before the connection was open")
        slot = self.slots.get(number)
        if slot is None:
            self.fail(ConnectionFault(spec.CHANNEL_ERROR, "expected 'channel.open'"), method)
            return None
        return None if slot.closing else slot

    def _on_channel(self, event: tuple[Any, ...]) -> None:
        number, id = event[1], event[2]
        slot = self.slots.get(number) if self.open else None
        if slot is not None and not slot.closing:
            if id == spec.CHANNEL_OPEN:
                self.fail(ConnectionFault(spec.CHANNEL_ERROR, "second 'channel.open' seen"), id)
            elif id >> 16 == spec.CLASSES["connection"] or id == spec.CHANNEL_CLOSE_OK:
                self.fail(ConnectionFault(spec.COMMAND_INVALID, "unimplemented method"), id)
            else:
                slot.feed(event)
            return
        if slot is not None:  # it hears of its end only
            if id == spec.CHANNEL_CLOSE_OK:
                self._free(number)
            elif id == spec.CHANNEL_CLOSE:  # it crossed ours, which is answered, too
                self.send_method(number, spec.CHANNEL_CLOSE_OK)
            elif id == spec.CHANNEL_OPEN:
                self.fail(ConnectionFault(spec.CHANNEL_ERROR, "second 'channel.open' seen"), id)
            return
        if self.open and id == spec.CHANNEL_OPEN:
            self._open_channel(number)
        elif not self.closing:
            self._slot(number, id)

    def _open_channel(self, number: int) -> None:
        limit = self.user.limit("max-channels") if self.user is not None else None
        if self.channel_max and len(self.slots) >= self.channel_max:
            self.fail(
                ConnectionFault(
                    spec.NOT_ALLOWED,
                    f"number of channels opened ({len(self.slots)}) has reached the negotiated channel_max "
                    f"({self.channel_max})",
                )
            )
            return
        if not self.kept.reserve(CHANNEL):
            text = "number of channels opened on this node has reached the maximum allowed limit of its gateway"
            self.fail(ConnectionFault(spec.NOT_ALLOWED, f"{text} (setting amqp_backlog_bytes)"), spec.CHANNEL_OPEN)
            return
        if not self._count_channel(limit):
            self.kept.release(CHANNEL)
            text = f"number of channels opened for user '{self.user_name}' has reached the maximum allowed limit of "
            self.fail(ConnectionFault(spec.NOT_ALLOWED, f"{text}({limit})"), spec.CHANNEL_OPEN)
            return
        self.slots[number] = Slot(self, number, self.gateway.channel(self, number))
        self.send_method(number, spec.CHANNEL_OPEN_OK)

    def _count_channel(self, limit: int | None) -> bool:
        """A channel comes; False: its user has as many as he may, in all gateways."""
        counts, user = self.gateway.counts, self.user_name
        if limit is None:
            counts.came("channels of user", user)
            return True
        with counts.deciding():
            counts.came("channels of user", user)
            if counts.total("channels of user", user) <= limit:
                return True
            counts.went("channels of user", user)
            return False

    def _free(self, number: int) -> None:
        """A channel number is not in use any more."""
        if self.slots.pop(number, None) is not None:
            self.kept.release(CHANNEL)
            self.gateway.counts.went("channels of user", self.user_name)

    def _on_channel_0(self, id: int, arguments: tuple[Any, ...]) -> None:
        if self._handshake is not None and not self.open and not self.closing:
            if id == spec.CONNECTION_CLOSE:
                self._client_closes()
                return
            try:
                self._handshake.method(id, arguments)
            except ConnectionFault as fault:
                if not refused(fault, self._handshake):
                    raise Silence(str(fault)) from fault
                self.fail(fault, id)
            return
        if id == spec.CONNECTION_CLOSE_OK and self.closing:
            self._hang_up()
        elif id == spec.CONNECTION_CLOSE:
            self._client_closes()
        elif self.closing:
            return
        elif id not in _OPEN_METHODS:
            self.fail(ConnectionFault(spec.CHANNEL_ERROR, "unexpected method in connection state running"), id)
        elif id == spec.CONNECTION_UPDATE_SECRET:
            self.send_method(0, spec.CONNECTION_UPDATE_SECRET_OK)

    # -- begin, block, end --------------------------------------------------------------------------------------

    def set_limits(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        """What was agreed on."""
        assert self._reader is not None
        self.channel_max, self.heartbeat_s = channel_max, heartbeat_s
        self.frame_max = self._reader.frame_max = frame_max
        if heartbeat_s:
            self.heartbeat = Heartbeat(self, heartbeat_s)

    def opened(self, user: User, vhost: str) -> None:
        """The handshake is done."""
        self.user, self.vhost, self.open = user, vhost, True
        self._handshake = None
        self.gateway.taps.vhost_entered(vhost)
        self.send_method(0, spec.CONNECTION_OPEN_OK)
        log.info("connection %s: user %s opened vhost %s", self.peer.name, inert(user.name), inert(vhost))

    def _open_no_more(self) -> bool:
        """It does not count among the open ones any more; whether it did."""
        was_open, self.open = self.open, False
        if was_open:
            self.gateway.counts.went("connections of user", self.user_name)
            self.gateway.counts.went("connections in vhost", self.vhost)
        return was_open

    def _block(self) -> None:
        """It published in an alarm: it is read again when that is over."""
        self.blocked, self.blocked_since = True, time.time()
        if self.capable("connection.blocked"):
            self.send_method(0, spec.CONNECTION_BLOCKED, (self.gateway.alarm,))
        self.may_read()

    def alarmed(self) -> None:
        """An alarm has begun: whoever published while nobody knew of it, and waits here, has published in an alarm."""
        if not self.blocked and any(slot.channel.held for slot in self.slots.values()):
            self._block()

    def unblock(self) -> None:
        """The alarm is over."""
        if not self.blocked:
            return
        self.blocked = False
        if self.capable("connection.blocked"):
            self.send_method(0, spec.CONNECTION_UNBLOCKED)
        self.may_read()

    def close(self, fault: ConnectionFault, method: int = 0) -> None:
        """Send connection.close, end the channels, and wait for close-ok."""
        if self.closing or self.over:
            return
        self.closing = True
        self.blocked = False
        self._open_no_more()
        self._forget_begun()
        for slot in self.slots.values():
            slot.end()
        self.send_method(0, spec.CONNECTION_CLOSE, self.told(fault, method))
        self._end_later(CLOSE_S)
        if self._handshake is not None:
            self._handshake.end()
        if self.heartbeat is not None:
            self.heartbeat.stop()
        self.may_read()  # close-ok is to be heard, whatever it waited for

    def _forget_begun(self) -> None:
        """Messages that are begun are of no use any more, and no others are taken."""
        if self._reader is not None:
            self._reader.leave_out()
        self.begun.now(0, 0)

    def _fault(self, fault: ConnectionFault, method: int) -> None:
        """Something is wrong with what came: told when the connection is open."""
        if self.open:
            self.fail(fault, method)
            self._reader = None  # what follows makes no sense
        elif not self.closing:
            raise Silence(str(fault))

    def _client_closes(self) -> None:
        """The client ends it: its channels finish what they were asked, then it hears close-ok."""
        was_open = self._open_no_more()
        self._forget_begun()
        if self.closing:  # both at once
            self.send_method(0, spec.CONNECTION_CLOSE_OK)
            self._hang_up()
            return
        self.closing = True
        if self._handshake is not None:
            self._handshake.end()
        if was_open and any(slot.busy for slot in self.slots.values()):
            self._going = self.gateway.spawn(self._close_when_done())
        else:
            self._close_ok()

    async def _close_when_done(self) -> None:
        await self._finish()
        if not self.over:
            self._close_ok()

    def _close_ok(self) -> None:
        for slot in self.slots.values():
            slot.end()
        self.gateway.taps.left(self)
        self.send_method(0, spec.CONNECTION_CLOSE_OK)
        if self.heartbeat is not None:
            self.heartbeat.stop()
        self._silent = True
        self._end_later(CLOSE_S)  # the client closes the socket, or we do

    async def _finish(self) -> None:
        """Wait until no channel has anything under way, but not for long; then cancel it."""
        busy = [slot for slot in self.slots.values() if slot.busy]
        if busy:
            self._rests = self.gateway.events.create_future()
            await asyncio.wait([self._rests], timeout=FINISH_S)
            self._rests = None
        for slot in list(self.slots.values()):
            await slot.stop()

    async def _end_channels(self) -> None:
        """The socket is gone: what the client had asked for before is done, then everything it held returns."""
        try:
            await self._finish()
        finally:
            for number in list(self.slots):
                self._free(number)
            self.gateway.left(self)

    def fall_silent(self, why: str) -> None:
        """Say and hear nothing more, and end a while later."""
        if self.over or self._silent:
            return
        log.warning("connection %s: %s", self.peer.name, inert(why))
        self._silent = self.closing = True
        self._open_no_more()
        self._forget_begun()
        if self._handshake is not None:
            self._handshake.end()
        self._end_later(SILENT_S)

    def hang_up(self, why: str) -> None:
        """Send what is to be sent, and end."""
        log.warning("connection %s: %s", self.peer.name, inert(why))
        self._silent = self.closing = True
        self._forget_begun()
        self._hang_up()

    def abort(self, why: str) -> None:
        """End at once; what was not sent is not sent."""
        if self.over:
            return
        log.warning("connection %s (%s) is ended: %s", self.peer.name, self._who, inert(why))
        self.closing = True
        self._transport.abort()
        self._ended()

    def lost_peer(self, why: str) -> None:
        """There is no sign of life."""
        self.abort(f"missed heartbeats from client: {why}")

    def _end_later(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.gateway.events.call_later(seconds, self._transport.abort)

    def _hang_up(self) -> None:
        self._flush()
        self._transport.close()
        self._end_later(SILENT_S)  # who does not take what is unsent does not keep it for long

    def _ended(self) -> None:
        """Nothing is said or heard any more; what channels were asked before they still do."""
        self.over, self.blocked = True, False
        self._ahead = b""
        self.kept.end()
        self.begun.now(0, 0)
        self._reader = None  # and with it what has come of messages: this connection and its channels hold each other
        self._open_no_more()
        self._out.clear()
        self._out_bytes = 0
        self._wake_writers()
        if self._handshake is not None:
            self._handshake.end()
        if self.heartbeat is not None:
            self.heartbeat.stop()

    # -- sending ------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken."""
        return self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        self._flushing = False
        if not self._out or self.over:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self.bytes_out += len(data)
        self._transport.write(data)
        if not self.writable and not self.flooded and self.unsent > FLOOD:
            self.flooded = True
            self.may_read()

    def _wake_writers(self) -> None:
        waiting, self._waiting_to_write = self._waiting_to_write, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
