"""A client of AMQP 0-9-1 for campaigns: one connection, one channel, blocking, every wait bounded. It shares no code
with the gateway.

Whatever it waits for has a time: `Silent` when nothing comes, which is what a campaign calls a hang. While it waits it
sends heartbeats, as a client must; a peer that sends none for two intervals is `Silent`, too.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = b"\xce"
HEARTBEAT_S = 6
FRAME_MAX = 131072
CHANNEL = 1
#: methods: class << 16 | method
START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = 0x0A000B, 0x0A001E, 0x0A001F, 0x0A0028, 0x0A0029
START, CLOSE, CLOSE_OK, BLOCKED, UNBLOCKED = 0x0A000A, 0x0A0032, 0x0A0033, 0x0A003C, 0x0A003D
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = 0x14000A, 0x14000B, 0x140028, 0x140029
QOS, QOS_OK, CONSUME, CONSUME_OK, CANCEL, PUBLISH = 0x3C000A, 0x3C000B, 0x3C0014, 0x3C0015, 0x3C001E, 0x3C0028
RETURN, DELIVER, GET, GET_OK, GET_EMPTY = 0x3C0032, 0x3C003C, 0x3C0046, 0x3C0047, 0x3C0048
ACK, REJECT, NACK, RECOVER, RECOVER_OK = 0x3C0050, 0x3C005A, 0x3C0078, 0x3C006E, 0x3C006F
SELECT, SELECT_OK = 0x55000A, 0x55000B
DECLARE, DECLARE_OK = 0x32000A, 0x32000B
TX_SELECT, TX_SELECT_OK, TX_COMMIT, TX_COMMIT_OK = 0x5A000A, 0x5A000B, 0x5A0014, 0x5A0015
TX_ROLLBACK, TX_ROLLBACK_OK = 0x5A001E, 0x5A001F
#: the header that says where in its stream a message is: a 64-bit integer
_OFFSET = b"\x0fx-stream-offsetl"
_CONTENT = (RETURN, DELIVER, GET_OK)


class Silent(Exception):
    """Nothing came within the time that was given."""


class Lost(Exception):
    """The connection has ended."""


class Closed(Exception):
    """The peer closed the connection, or the channel, with a code and a text."""


class Message(NamedTuple):
    """One that was delivered, got or returned. `tag`: 0 of a returned one; `offset`: -1 of one from no stream."""

    tag: int
    redelivered: bool
    key: str
    body: bytes
    offset: int = -1


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def _table(items: Mapping[str, str | int]) -> bytes:
    """Of texts and numbers."""
    parts = []
    for name, value in items.items():
        told = b"S" + _long(value.encode()) if isinstance(value, str) else b"l" + struct.pack(">q", value)
        parts.append(_short(name) + told)
    return _long(b"".join(parts))


def _encrypted(plain: socket.socket) -> ssl.SSLSocket:
    """By TLS; whose certificate it is does not matter here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def _method(id: int, arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return _frame(METHOD, channel, struct.pack(">I", id) + arguments)


class Client:
    """A connection with an open channel. Raises OSError, Silent, Lost, Closed."""

    def __init__(self, port: int, timeout_s: float, *, tls: bool = False) -> None:
        self.timeout_s = timeout_s
        self.messages: deque[Message] = deque()  #: delivered, and not taken
        self.returned: list[Message] = []
        self.settled: list[tuple[int, bool, bool]] = []  #: confirms: tag, multiple, whether it is an ack
        self._answers: deque[tuple[int, bytes]] = deque()
        self._data = bytearray()
        #: method, arguments, size (-1: its header is still to come), body, offset in a stream
        self._content: tuple[int, bytes, int, bytearray, int] | None = None
        self._published = 0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = self._spoke = time.monotonic()
        try:
            if tls:
                self.socket = _encrypted(self.socket)
            self._begin("guest", "guest")
        except BaseException:
            self.socket.close()
            raise

    def _begin(self, user: str, password: str) -> None:
        self.send(b"AMQP\0\0\x09\x01")
        self.wait(START)
        login = _long(f"\0{user}\0{password}".encode())
        self.send(_method(START_OK, _long(b"") + _short("PLAIN") + login + _short("en_US"), 0))
        self.wait(TUNE)
        self.send(_method(TUNE_OK, struct.pack(">HIH", 16, FRAME_MAX, HEARTBEAT_S), 0))
        self.send(_method(OPEN, _short("/") + _short("") + b"\0", 0))
        self.wait(OPEN_OK)
        self.send(_method(CHANNEL_OPEN, _short("")))
        self.wait(CHANNEL_OPEN_OK)

    # -- what is sent -------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.settimeout(self.timeout_s)
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise Silent(f"{len(data)} bytes were not taken within {self.timeout_s:g} s") from None
        self._spoke = time.monotonic()

    def confirm_select(self) -> None:
        """Have publishes confirmed."""
        self.send(_method(SELECT, b"\0"))
        self.wait(SELECT_OK)

    def publish(self, items: Iterable[tuple[str, str, bytes]], mandatory: bool) -> range:
        """Publish persistent messages: (exchange, routing key, body). The tags that their confirms have."""
        parts = []
        first = self._published + 1
        for exchange, key, body in items:
            parts.append(_method(PUBLISH, b"\0\0" + _short(exchange) + _short(key) + bytes((mandatory,))))
            # one property: delivery mode 2
            parts.append(_frame(HEADER, CHANNEL, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)))
            most = FRAME_MAX - 8
            parts += [_frame(BODY, CHANNEL, body[at : at + most]) for at in range(0, len(body), most)]
            self._published += 1
        self.send(b"".join(parts))
        return range(first, self._published + 1)

    def qos(self, prefetch: int) -> None:
        """At most so many unacked messages for each consumer to come."""
        self.send(_method(QOS, struct.pack(">IHB", 0, prefetch, 0)))
        self.wait(QOS_OK)

    def declare(self, queue: str, arguments: Mapping[str, str | int]) -> None:
        """Have a durable queue."""
        self.send(_method(DECLARE, b"\0\0" + _short(queue) + b"\2" + _table(arguments)))
        self.wait(DECLARE_OK)

    def tx_select(self) -> None:
        """From now on what is published and settled takes effect when it is committed."""
        self.send(_method(TX_SELECT))
        self.wait(TX_SELECT_OK)

    def tx_commit(self) -> None:
        """Have it take effect."""
        self.send(_method(TX_COMMIT))
        self.wait(TX_COMMIT_OK)

    def tx_rollback(self) -> None:
        """Have it forgotten."""
        self.send(_method(TX_ROLLBACK))
        self.wait(TX_ROLLBACK_OK)

    def consume(self, queue: str, arguments: Mapping[str, str | int] | None = None) -> None:
        """Have its messages delivered."""
        flags = b"\0"
        self.send(_method(CONSUME, b"\0\0" + _short(queue) + _short(f"c-{queue}") + flags + _table(arguments or {})))
        self.wait(CONSUME_OK)

    def get(self, queue: str) -> Message | None:
        """One message, unacked; None: there is none."""
        self.send(_method(GET, b"\0\0" + _short(queue) + b"\0"))
        id, _arguments = self.wait(GET_OK, GET_EMPTY)
        return self.messages.pop() if id == GET_OK else None

    def ack(self, tag: int, multiple: bool = False) -> None:
        """Settle one, or all up to it."""
        self.send(_method(ACK, struct.pack(">QB", tag, multiple)))

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        """Give back or drop one, or all up to it."""
        self.send(_method(NACK, struct.pack(">QB", tag, multiple | requeue << 1)))

    def reject(self, tag: int, requeue: bool) -> None:
        """Give back or drop one."""
        self.send(_method(REJECT, struct.pack(">QB", tag, requeue)))

    def recover(self) -> None:
        """Give back all that is unacked."""
        self.send(_method(RECOVER, b"\1"))
        self.wait(RECOVER_OK)

    def close(self) -> None:
        """Close the connection in good order."""
        try:
            self.send(_method(CLOSE, struct.pack(">H", 200) + _short("bye") + b"\0\0\0\0", 0))
            self.wait(CLOSE_OK)
        finally:
            self.socket.close()

    # -- what comes ---------------------------------------------------------------------------------------------

    def wait(self, *ids: int) -> tuple[int, bytes]:
        """The answer to what was asked: one of these methods, with its arguments."""
        deadline = time.monotonic() + self.timeout_s
        while not self._answers:
            self._step(deadline, f"an answer of {', '.join(f'{id:x}' for id in ids)}")
        id, arguments = self._answers.popleft()
        if id not in ids:
            raise Lost(f"method {id:x} came instead of {', '.join(f'{wanted:x}' for wanted in ids)}")
        return id, arguments

    def confirmed(self, tags: range, on_settled: Callable[[int, bool], None]) -> None:
        """Until all of these are confirmed; each is handed over once, with whether it is an ack."""
        left = dict.fromkeys(tags)
        deadline = time.monotonic() + self.timeout_s
        while left:
            for tag, multiple, acked in self.settled:
                for one in [known for known in left if known <= tag] if multiple else [tag] if tag in left else []:
                    del left[one]
                    on_settled(one, acked)
            self.settled.clear()
            if left:
                self._step(deadline, f"{len(left)} confirms")

    def gather(self, seconds: float, most: int) -> list[Message]:
        """What is delivered within this time."""
        deadline = time.monotonic() + seconds
        while len(self.messages) < most:
            if not self._some(deadline):
                break
        return [self.messages.popleft() for _ in range(min(most, len(self.messages)))]

    def _step(self, deadline: float, what: str) -> None:
        if not self._some(deadline):
            raise Silent(f"{what} did not come within {self.timeout_s:g} s")

    def _some(self, deadline: float) -> bool:
        """Take what comes; False when nothing came until then."""
        while True:
            if self._frames():
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            if now - self._spoke > HEARTBEAT_S / 2:
                self.send(_frame(HEARTBEAT, 0, b""))
            if now - self._heard > 2 * HEARTBEAT_S:
                raise Silent(
                    f"the peer sent nothing for {now - self._heard:.1f} s, with a heartbeat of {HEARTBEAT_S} s"
                )
            self.socket.settimeout(max(0.001, min(deadline - now, 0.5)))
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                raise Lost("the connection has ended")
            self._heard = time.monotonic()
            self._data += data

    def _frames(self) -> bool:
        """Take the whole frames that are here; whether any meant something."""
        at, any_n = 0, 0
        data = self._data
        try:
            while len(data) - at >= 8:
                kind, channel, size = struct.unpack_from(">BHI", data, at)
                if size > FRAME_MAX:
                    raise Lost(f"a frame of {size} bytes came")
                if len(data) - at < size + 8:
                    break
                payload = bytes(data[at + 7 : at + 7 + size])
                at += size + 8
                if data[at - 1] != END[0]:
                    raise Lost("a frame has no end")
                any_n += self._frame(kind, channel, payload)
        finally:
            del data[:at]
        return any_n > 0

    def _frame(self, kind: int, channel: int, payload: bytes) -> bool:
        if kind == HEARTBEAT:
            return False
        if kind == METHOD:
            self._method(int.from_bytes(payload[:4], "big"), payload[4:])
            return self._content is None
        if self._content is None or channel != CHANNEL:
            raise Lost(f"a frame of kind {kind} came without its method")
        id, arguments, _size, body, _offset = self._content
        if kind == HEADER:
            at = payload.find(_OFFSET) + len(_OFFSET)
            offset = int.from_bytes(payload[at : at + 8], "big") if at >= len(_OFFSET) else -1
            self._content = id, arguments, struct.unpack_from(">Q", payload, 4)[0], body, offset
        else:
            body += payload
        return self._whole()

    def _whole(self) -> bool:
        assert self._content is not None
        id, arguments, size, body, offset = self._content
        if size < 0 or len(body) < size:
            return False
        self._content = None
        message = _message(id, arguments, bytes(body))._replace(offset=offset)
        if id == RETURN:
            self.returned.append(message)
        else:
            self.messages.append(message)
            if id == GET_OK:
                self._answers.append((id, arguments))
        return True

    def _method(self, id: int, arguments: bytes) -> None:
        if id in _CONTENT:
            self._content = id, arguments, -1, bytearray(), -1
        elif id in (ACK, NACK):
            tag, bits = struct.unpack_from(">QB", arguments)
            self.settled.append((tag, bool(bits & 1), id == ACK))
        elif id in (CLOSE, CHANNEL_CLOSE):
            code, size = struct.unpack_from(">HB", arguments)
            answer = _method(CLOSE_OK, b"", 0) if id == CLOSE else _method(CHANNEL_CLOSE_OK)
            self.send(answer)
            raise Closed(f"{'connection' if id == CLOSE else 'channel'} {code} {arguments[3 : 3 + size].decode()}")
        elif id == CANCEL:
            raise Closed("a consumer was cancelled")
        elif id not in (BLOCKED, UNBLOCKED):
            if id == RECOVER_OK:
                self.messages.clear()  # they went back; what comes from now on is new
            self._answers.append((id, arguments))


def _message(id: int, arguments: bytes, body: bytes) -> Message:
    def text(at: int) -> tuple[str, int]:
        end = at + 1 + arguments[at]
        return arguments[at + 1 : end].decode(), end

    if id == RETURN:
        _said, at = text(2)
        _exchange, at = text(at)
        return Message(0, False, text(at)[0], body)
    at = text(0)[1] if id == DELIVER else 0
    tag, redelivered = struct.unpack_from(">QB", arguments, at)
    _exchange, at = text(at + 9)
    return Message(tag, bool(redelivered), text(at)[0], body)
