"""AMQP 0-9-1 on the wire, as an oracle: methods, tables and frames written once more, and nothing of the product's.

A `Wire` is a connection that says in the scene's transcript what it sends (`>`) and what it is sent (`<`). It hides
nothing and adds nothing but answers to closes.
"""

import contextlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

#: how long an answer may take before it is "nothing": servers of tests share a busy machine
PATIENCE_S = 60.0
#: how long nothing has to come for `nothing`
QUIET_S = 0.2
#: a `>` frame's end
END = b"\xce"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
HELLO = b"AMQP\x00\x00\x09\x01"

# id, name, arguments: o octet, h short, l long, L long long, s short string, S long string, T table, t time, b bit.
# `0` stands for a reserved argument of that type, sent as nothing and not shown.
_METHODS = """
10.10 connection.start major:o minor:o server_properties:T mechanisms:S locales:S
10.11 connection.start-ok client_properties:T mechanism:s response:S locale:s
10.20 connection.secure challenge:S
10.21 connection.secure-ok response:S
10.30 connection.tune channel_max:h frame_max:l heartbeat:h
10.31 connection.tune-ok channel_max:h frame_max:l heartbeat:h
10.40 connection.open vhost:s 0:s 0:b
10.41 connection.open-ok 0:s
10.50 connection.close code:h text:s class:h method:h
10.51 connection.close-ok
10.60 connection.blocked reason:s
10.61 connection.unblocked
10.70 connection.update-secret secret:S reason:s
10.71 connection.update-secret-ok
20.10 channel.open 0:s
20.11 channel.open-ok 0:S
20.20 channel.flow active:b
20.21 channel.flow-ok active:b
20.40 channel.close code:h text:s class:h method:h
20.41 channel.close-ok
40.10 exchange.declare 0:h exchange:s type:s passive:b durable:b auto_delete:b internal:b nowait:b arguments:T
40.11 exchange.declare-ok
40.20 exchange.delete 0:h exchange:s if_unused:b nowait:b
40.21 exchange.delete-ok
40.30 exchange.bind 0:h destination:s source:s routing_key:s nowait:b arguments:T
40.31 exchange.bind-ok
40.40 exchange.unbind 0:h destination:s source:s routing_key:s nowait:b arguments:T
40.51 exchange.unbind-ok
50.10 queue.declare 0:h queue:s passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:T
50.11 queue.declare-ok queue:s messages:l consumers:l
50.20 queue.bind 0:h queue:s exchange:s routing_key:s nowait:b arguments:T
50.21 queue.bind-ok
50.30 queue.purge 0:h queue:s nowait:b
50.31 queue.purge-ok messages:l
50.40 queue.delete 0:h queue:s if_unused:b if_empty:b nowait:b
50.41 queue.delete-ok messages:l
50.50 queue.unbind 0:h queue:s exchange:s routing_key:s arguments:T
50.51 queue.unbind-ok
60.10 basic.qos size:l count:h global:b
60.11 basic.qos-ok
60.20 basic.consume 0:h queue:s tag:s no_local:b no_ack:b exclusive:b nowait:b arguments:T
60.21 basic.consume-ok tag:s
60.30 basic.cancel tag:s nowait:b
60.31 basic.cancel-ok tag:s
60.40 basic.publish 0:h exchange:s routing_key:s mandatory:b immediate:b
60.50 basic.return code:h text:s exchange:s routing_key:s
60.60 basic.deliver tag:s delivery:L redelivered:b exchange:s routing_key:s
60.70 basic.get 0:h queue:s no_ack:b
60.71 basic.get-ok delivery:L redelivered:b exchange:s routing_key:s messages:l
60.72 basic.get-empty 0:s
60.80 basic.ack delivery:L multiple:b
60.90 basic.reject delivery:L requeue:b
60.100 basic.recover-async requeue:b
60.110 basic.recover requeue:b
60.111 basic.recover-ok
60.120 basic.nack delivery:L multiple:b requeue:b
85.10 confirm.select nowait:b
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""
PROPERTIES = (
    "content_type:s content_encoding:s headers:T delivery_mode:o priority:o correlation_id:s reply_to:s expiration:s "
    "message_id:s timestamp:t type:s user_id:s app_id:s cluster_id:s"
)


def _declared(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (word.split(":") for word in text.split())]


METHODS: dict[int, tuple[str, list[tuple[str, str]]]] = {}
for _line in _METHODS.strip().splitlines():
    _id, _name, *_arguments = _line.split(" ")
    _class, _method = map(int, _id.split("."))
    METHODS[_class << 16 | _method] = (_name, _declared(" ".join(_arguments)))
IDS = {name: number for number, (name, _) in METHODS.items()}
PROPERTY_LIST = _declared(PROPERTIES)
WITH_CONTENT = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}
#: what may answer a call, beside a close
ANSWERS = {"basic.get": ("basic.get-ok", "basic.get-empty"), "basic.recover-async": ()}


class Typed(tuple[str, Any]):
    """A field value with the tag that it goes out with: `Typed("s", -5)`."""

    __slots__ = ()

    def __new__(cls, tag: str, value: Any) -> "Typed":
        return super().__new__(cls, (tag, value))


NUMBERS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "f": ">f", "d": ">d", "T": ">Q"}


def short_string(text: str | bytes) -> bytes:
    """A short string."""
    data = text if isinstance(text, bytes) else text.encode()
    return bytes([len(data)]) + data


def long_string(text: str | bytes) -> bytes:
    """A long string."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(data)) + data


def _tag_of(value: Any) -> str:
    if value is None:
        return "V"
    for kind, tag in ((bool, "t"), (float, "d"), (str, "S"), (bytes, "x"), (dict, "F"), (list, "A")):
        if isinstance(value, kind):
            return tag
    return "I" if -(2**31) <= value < 2**31 else "l"


def field(value: Any) -> bytes:
    """A field value behind its tag."""
    tag, value = value if isinstance(value, Typed) else (_tag_of(value), value)
    head = tag.encode()
    if tag in NUMBERS:
        return head + struct.pack(NUMBERS[tag], value)
    if tag == "V":
        return head
    if tag == "t":
        return head + bytes([value])
    if tag == "D":
        return head + struct.pack(">BI", *value)
    if tag in "Sx":
        return head + long_string(value)
    if tag == "F":
        return head + table(value)
    if tag == "A":
        return head + long_string(b"".join(map(field, value)))
    raise ValueError(f"no field type {tag!r}")


def table(fields: dict[str, Any]) -> bytes:
    """A field table."""
    return long_string(b"".join(short_string(name) + field(value) for name, value in fields.items()))


class Cursor:
    """Reads one frame's bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        assert self.at + size <= len(self.data), "the server's frame is shorter than what it announces"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> Any:
        """The next number."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def field(self) -> Any:
        """A field value: a string as itself, all others as `[tag, value]`."""
        tag = self.take(1).decode()
        if tag in NUMBERS:
            return [tag, self.number(NUMBERS[tag])]
        if tag == "V":
            return ["V"]
        if tag == "t":
            return bool(self.number(">B"))
        if tag == "D":
            return ["D", self.number(">B"), self.number(">I")]
        if tag in "Sx":
            text = self.take(self.number(">I")).decode("latin-1")
            return text if tag == "S" else ["x", text]
        if tag == "F":
            return self.table()
        assert tag == "A", f"the server sent a field of type {tag!r}"
        end = self.number(">I") + self.at
        values = []
        while self.at < end:
            values.append(self.field())
        return ["A", *values]

    def table(self) -> dict[str, Any]:
        """A field table."""
        end = self.number(">I") + self.at
        found: dict[str, Any] = {}
        while self.at < end:
            name = self.take(self.number(">B")).decode("latin-1")
            found[name] = self.field()
        return found

    def values(self, declared: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Arguments or properties, as declared."""
        found: dict[str, Any] = {}
        bits = 8
        octet = 0
        for name, kind in declared:
            value: Any
            if kind == "b":
                if bits == 8:
                    octet, bits = self.number(">B"), 0
                value = bool(octet >> bits & 1)
                bits += 1
            else:
                bits = 8
                if kind == "s":
                    value = self.take(self.number(">B")).decode("latin-1")
                elif kind == "S":
                    value = self.take(self.number(">I")).decode("latin-1")
                elif kind == "T":
                    value = self.table()
                else:
                    value = self.number({"o": ">B", "h": ">H", "l": ">I", "L": ">Q", "t": ">Q"}[kind])
            if name != "0":
                found[name] = value
        return found


def packed(declared: Iterable[tuple[str, str]], given: dict[str, Any]) -> bytes:
    """Arguments as declared: what is not given is 0, empty or off."""
    parts: list[bytes] = []
    bits = 8
    for name, kind in declared:
        value = given.get(name, 0)
        if kind == "b":
            if bits == 8:
                parts.append(b"\0")
                bits = 0
            parts[-1] = bytes([parts[-1][0] | bool(value) << bits])
            bits += 1
            continue
        bits = 8
        if kind == "s":
            parts.append(short_string(value or ""))
        elif kind == "S":
            parts.append(long_string(value or ""))
        elif kind == "T":
            parts.append(value if isinstance(value, bytes) else table(value or {}))
        else:
            parts.append(struct.pack({"o": ">B", "h": ">H", "l": ">I", "L": ">Q", "t": ">Q"}[kind], value))
    return b"".join(parts)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(channel: int, name: str, given: dict[str, Any]) -> bytes:
    """A method's frame."""
    number = IDS[name]
    declared = METHODS[number][1]
    unknown = set(given) - {argument for argument, _ in declared}
    assert not unknown, f"{name} has no {unknown}"
    return frame(METHOD, channel, struct.pack(">HH", number >> 16, number & 0xFFFF) + packed(declared, given))


def header(channel: int, size: int, properties: dict[str, Any] | bytes, class_id: int = 60) -> bytes:
    """A content header's frame; `properties` may be bytes: flags and values."""
    if isinstance(properties, bytes):
        encoded = properties
    else:
        flags = 0
        for at, (name, _) in enumerate(PROPERTY_LIST):
            flags |= (name in properties) << 15 - at
        chosen = [(name, kind) for name, kind in PROPERTY_LIST if name in properties]
        encoded = struct.pack(">H", flags) + packed(chosen, properties)
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, 0, size) + encoded)


def _shown_body(body: bytes) -> str:
    if len(body) > 64:
        return f"<{len(body)} bytes, {body[:8].decode('latin-1')}…{body[-8:].decode('latin-1')}>"
    return body.decode("latin-1")


def shown(name: str, given: dict[str, Any], properties: Any = None, body: bytes | None = None) -> str:
    """A method in a transcript: its name, what of its arguments is not 0, empty or off, its properties and its body."""
    text = name
    there = {key: value for key, value in given.items() if value or value is None}
    if there:
        text += " " + json.dumps(there, ensure_ascii=False, default=_plain)
    if body is not None:
        properties = _without_order(properties)
        text += " | " + json.dumps(properties or {}, ensure_ascii=False, default=_plain)
        text += " | " + json.dumps(_shown_body(body), ensure_ascii=False)
    return text


def _without_order(properties: Any) -> Any:
    """The headers of a dead letter by their names: the server that writes them may put them in any order."""
    headers = properties.get("headers") if isinstance(properties, dict) else None
    if not isinstance(headers, dict) or "x-death" not in headers:
        return properties
    deaths = headers["x-death"]
    if isinstance(deaths, list):
        deaths = [dict(sorted(death.items())) if isinstance(death, dict) else death for death in deaths]
    return properties | {"headers": dict(sorted((headers | {"x-death": deaths}).items()))}


def _plain(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class Frame:
    """What came: a method with its content, a heartbeat, or the end of the connection."""

    def __init__(self, channel: int, name: str, values: dict[str, Any]) -> None:
        self.channel, self.name, self.values = channel, name, values
        self.properties: dict[str, Any] = {}
        self.body: bytes | None = None

    def __str__(self) -> str:
        return shown(self.name, self.values, self.properties, self.body)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Wire:
    """One connection, by raw frames."""

    def __init__(self, label: str, say: Callable[[str], None], host: str, port: int, vhost: str = "/") -> None:
        self.label, self.say, self.vhost = label, say, vhost
        self.socket = self.connect(host, port)
        self.pending: deque[Frame] = deque()
        self.frame_max = 131072
        self._bytes = b""
        self._content: dict[int, tuple[Frame, int]] = {}
        self.over = False
        self.sizes: list[int] = []  # of the body frames that came last

    @staticmethod
    def connect(host: str, port: int) -> socket.socket:
        """A connected socket."""
        sock = socket.create_connection((host, port), timeout=PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def shut(self) -> None:
        """Close the socket, without a word."""
        self.over = True
        self.socket.close()

    # ---- sending

    def raw(self, data: bytes) -> None:
        """Send bytes; an end by the server is seen when something is waited for."""
        with contextlib.suppress(ConnectionError):  # what the server said before it closed is still to be read
            self.socket.sendall(data)

    def send(self, channel: int, name: str, given: dict[str, Any]) -> None:
        """Send a method, and say so."""
        self.say(f"{self.label}{channel} > {shown(name, given)}")
        self.raw(method(channel, name, given))

    # ---- receiving

    def _read(self, deadline: float) -> bytes | None:
        """Some bytes; empty at the end of the connection, None when the time is over."""
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        self.socket.settimeout(left)
        try:
            return self.socket.recv(1 << 16)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def _frame(self, deadline: float) -> tuple[int, int, bytes] | None:
        while True:
            if len(self._bytes) >= 8 and self._bytes[:4] == b"AMQP":
                self._bytes, found = self._bytes[8:], self._bytes[:8]
                return 0, 0, found
            if len(self._bytes) >= 7:
                kind, channel, size = struct.unpack_from(">BHI", self._bytes)
                if len(self._bytes) >= 8 + size:
                    payload = self._bytes[7 : 7 + size]
                    assert self._bytes[7 + size : 8 + size] == END, "a frame of the server has no end"
                    self._bytes = self._bytes[8 + size :]
                    return kind, channel, payload
            data = self._read(deadline)
            if data is None:
                return None
            if data == b"":
                return -1, 0, b""
            self._bytes += data

    def next(self, deadline: float) -> Frame | None:
        """What comes next, heartbeats as well; None when the time is over."""
        while True:
            found = self._frame(deadline)
            if found is None:
                return None
            kind, channel, payload = found
            if kind < 0:
                self.over = True
                return Frame(0, "(closed)", {})
            if kind == 0:
                return Frame(0, "(header)", {"bytes": payload.decode("latin-1")})
            if kind == HEARTBEAT:
                return Frame(channel, "heartbeat", {})
            cursor = Cursor(payload)
            if kind == METHOD:
                number = cursor.number(">I")
                name, declared = METHODS[number]
                made = Frame(channel, name, cursor.values(declared))
                if name not in WITH_CONTENT:
                    return made
                self._content[channel] = made, -1
                continue
            made, left = self._content.pop(channel)
            if kind == HEADER:
                cursor.number(">I")
                left = cursor.number(">Q")
                flags = cursor.number(">H")
                made.properties = cursor.values(
                    [declared for at, declared in enumerate(PROPERTY_LIST) if flags >> 15 - at & 1]
                )
                made.body = b""
                self.sizes = []
            else:
                assert kind == BODY
                assert made.body is not None
                self.sizes.append(len(payload))
                made.body += payload
                left -= len(payload)
            if left == 0:
                return made
            self._content[channel] = made, left

    def wait(self, channel: int | None, names: Iterable[str], patience: float = PATIENCE_S) -> Frame | None:
        """The first such frame of a channel (None: of any); what else comes meanwhile is kept for later.

        The end of the connection answers everything. None: nothing came.
        """
        wanted = {*names, "connection.close", "(closed)"}

        def fits(found: Frame) -> bool:
            return found.name in wanted and (channel is None or found.channel in (channel, 0))

        for at, found in enumerate(self.pending):
            if fits(found):
                del self.pending[at]
                return found
        deadline = time.monotonic() + patience
        while True:
            if self.over:
                return Frame(0, "(closed)", {})
            found = self.next(deadline)
            if found is None or fits(found):
                return found
            if found.name != "heartbeat":
                self.pending.append(found)

    def took(self, found: Frame | None) -> None:
        """Say what was received."""
        if found is None:
            self.say(f"{self.label} < nothing")
        else:
            number = "" if found.name.startswith("(") else str(found.channel)
            self.say(f"{self.label}{number} < {found}")

    def read_raw_until(self, text: bytes, patience: float = PATIENCE_S) -> bytes:
        """Everything that comes, as it stands on the wire, up to the first `text`, or the end of time."""
        deadline = time.monotonic() + patience
        while text not in self._bytes:
            data = self._read(deadline)
            if not data:
                break
            self._bytes += data
        seen, self._bytes = self._bytes, b""
        self.shut()
        return seen

    # ---- a connection's life

    def hello(self) -> Frame:
        """The protocol header, and connection.start, which is not said."""
        self.raw(HELLO)
        found = self.wait(0, ["connection.start"])
        assert found is not None
        return found

    def start_ok(self, **given: Any) -> None:
        """connection.start-ok as guest, unless told otherwise; not said."""
        usual: dict[str, Any] = {
            "client_properties": {
                "capabilities": {
                    "authentication_failure_close": True,
                    "basic.nack": True,
                    "connection.blocked": True,
                    "consumer_cancel_notify": True,
                    "publisher_confirms": True,
                }
            },
            "mechanism": "PLAIN",
            "response": "\0guest\0guest",
            "locale": "en_US",
        }
        self.raw(method(0, "connection.start-ok", usual | given))

    def opened(
        self, vhost: str = "", channel_max: int = 0, frame_max: int = 131072, heartbeat: int = 0, **start: Any
    ) -> None:
        """Everything up to connection.open-ok, unsaid. `channel_max` 0: what is offered; `vhost` "": the wire's."""
        self.hello()
        self.start_ok(**start)
        tune = self.wait(0, ["connection.tune"])
        assert tune is not None, "no connection.tune came"
        assert tune.name == "connection.tune", f"no connection.tune came: {tune}"
        self.frame_max = frame_max
        given = {"channel_max": channel_max or tune["channel_max"], "frame_max": frame_max, "heartbeat": heartbeat}
        self.raw(method(0, "connection.tune-ok", given))
        self.raw(method(0, "connection.open", {"vhost": vhost or self.vhost}))
        answer = self.wait(0, ["connection.open-ok"])
        assert answer is not None, "no connection.open-ok came"
        assert answer.name == "connection.open-ok", f"no connection.open-ok came: {answer}"

    def channel(self, number: int = 0) -> "Lane":
        """A channel, opened and unsaid; by default the next number."""
        self._last = number or getattr(self, "_last", 0) + 1
        lane = Lane(self, self._last)
        lane.open()
        return lane

    def close(self) -> None:
        """Closed in order, unsaid."""
        if not self.over:
            self.raw(method(0, "connection.close", {"code": 200, "text": "bye"}))
            self.wait(0, ["connection.close-ok"])
        self.shut()

    def expect(self, *names: str, channel: int = 0, patience: float = PATIENCE_S) -> Frame | None:
        """Wait for one of these, and say it. A close by the server is answered."""
        found = self.wait(channel, names, patience)
        self.took(found)
        if found is not None and found.name == "connection.close":
            self.raw(method(0, "connection.close-ok", {}))
            self.took(self.wait(0, ["(closed)"]))
        if found is not None and found.name == "connection.close-ok":
            self.shut()
        return found


class Lane:
    """One channel of a `Wire`."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire, self.number = wire, number
        self.closed = False

    def open(self) -> None:
        """channel.open and its answer, unsaid."""
        self.closed = False
        self.wire.raw(method(self.number, "channel.open", {}))
        found = self.wire.wait(self.number, ["channel.open-ok"])
        assert found is not None, "no channel.open-ok came"
        assert found.name == "channel.open-ok", f"no channel.open-ok came: {found}"

    def send(self, name: str, **given: Any) -> None:
        """Send a method."""
        self.wire.send(self.number, name, given)

    def call(self, name: str, **given: Any) -> Frame:
        """Send a method, and say what answers it: its answer, or a close, which is answered as it must be."""
        self.send(name, **given)
        found = self.expect(*ANSWERS.get(name, (name + "-ok",)))
        assert found is not None, f"nothing answered {name}"
        return found

    def expect(self, *names: str, patience: float = PATIENCE_S) -> Frame | None:
        """Wait for one of these, or a close, and say it."""
        found = self.wire.expect(*names, "channel.close", channel=self.number, patience=patience)
        if found is not None and found.name == "channel.close":
            self.closed = True
            self.wire.raw(method(self.number, "channel.close-ok", {}))
        return found

    def deliveries(self, count: int = 1) -> list[Frame]:
        """Wait for so many deliveries, and say them."""
        found = []
        for _ in range(count):
            came = self.expect("basic.deliver")
            if came is None or came.name != "basic.deliver":
                break
            found.append(came)
        return found

    def expect_any(self, count: int) -> None:
        """Wait for so many deliveries whose consumer is left to the server, and say them without their tag."""
        for _ in range(count):
            found = self.wire.wait(self.number, ["basic.deliver", "channel.close"])
            if found is not None:
                found.values.pop("tag", None)
            self.wire.took(found)

    def nothing(self, *names: str) -> None:
        """Say what comes in a short while, which should be nothing."""
        self.expect(*(names or ("basic.deliver", "basic.return", "basic.cancel")), patience=QUIET_S)

    def alive(self) -> None:
        """The channel answers: what was sent before it is done, and was no error."""
        self.wire.raw(method(self.number, "basic.qos", {}))
        found = self.wire.wait(self.number, ["basic.qos-ok", "channel.close"])
        if found is not None and found.name == "basic.qos-ok":
            self.wire.say(f"{self.wire.label}{self.number} is open")
            return
        self.wire.took(found)
        if found is not None and found.name == "channel.close":
            self.closed = True
            self.wire.raw(method(self.number, "channel.close-ok", {}))
        if found is not None and found.name == "connection.close":
            self.wire.raw(method(0, "connection.close-ok", {}))
            self.wire.took(self.wire.wait(0, ["(closed)"]))

    def again(self) -> None:
        """Open the channel anew, if the server closed it."""
        if self.closed:
            self.open()

    def publish(
        self,
        routing_key: str,
        body: bytes | str = b"",
        exchange: str = "",
        properties: dict[str, Any] | bytes | None = None,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """basic.publish with its content."""
        data = body if isinstance(body, bytes) else body.encode()
        given = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory, "immediate": immediate}
        wire = self.wire
        wire.say(f"{wire.label}{self.number} > {shown('basic.publish', given, properties, data)}")
        room = wire.frame_max - 8
        frames = [method(self.number, "basic.publish", given), header(self.number, len(data), properties or {})]
        frames += [frame(BODY, self.number, data[at : at + room]) for at in range(0, len(data), room)]
        wire.raw(b"".join(frames))

    def confirms(self, last: int, first: int = 1) -> None:
        """Wait until messages `first` … `last` are confirmed; say which were, and not how confirms were merged."""
        open_ = set(range(first, last + 1))
        acked: list[int] = []
        nacked: list[int] = []
        while open_:
            found = self.wire.wait(self.number, ["basic.ack", "basic.nack", "channel.close"])
            if found is None or found.name not in ("basic.ack", "basic.nack"):
                self.wire.took(found)
                break
            tag = found["delivery"]
            done = {one for one in open_ if one <= tag} if found["multiple"] else {tag} & open_
            if not done:
                self.wire.say(f"{self.wire.label}{self.number} < a confirm of what was confirmed: {found}")
                break
            open_ -= done
            (acked if found.name == "basic.ack" else nacked).extend(done)
        self.wire.say(f"{self.wire.label}{self.number} < confirmed {sorted(acked)} refused {sorted(nacked)}")

    def confirmed(self, *given: Any, **options: Any) -> None:
        """Publish on a channel of the connection's own, and wait for the confirm, unsaid: what follows sees it."""
        spare: Lane | None = getattr(self.wire, "_spare", None)
        if spare is None:
            spare = Lane(self.wire, 4000)
            spare.open()
            self.wire.raw(method(4000, "confirm.select", {}))
            assert self.wire.wait(4000, ["confirm.select-ok"]) is not None
            self.wire._spare = spare  # type: ignore[attr-defined]
        spare.publish(*given, **options)
        found = self.wire.wait(4000, ["basic.ack", "basic.nack", "channel.close"])
        if found is None or found.name != "basic.ack":
            self.wire.took(found)

    def confirmed_on(self, *given: Any, **options: Any) -> None:
        """Publish on this channel, and know by a method that follows it that it is routed."""
        self.publish(*given, **options)
        self.alive()

    def emptied(self, queue: str) -> None:
        """Say whether the queue becomes empty by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.wire.raw(method(self.number, "queue.declare", {"queue": queue, "passive": True}))
            found = self.wire.wait(self.number, ["queue.declare-ok", "channel.close"])
            if found is None or found.name != "queue.declare-ok" or not found["messages"]:
                self.wire.took(found)
                return
            time.sleep(0.01)
        self.wire.say(f"{self.wire.label}{self.number}: {queue} does not become empty")

    def message_count(self, queue: str) -> None:
        """Say how many messages are ready, and how many consumers there are."""
        self.call("queue.declare", queue=queue, passive=True)
