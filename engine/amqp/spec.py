"""AMQP 0-9-1 with RabbitMQ's extensions, declared once: classes, methods and their arguments, properties, reply codes.

`engine/amqp/methods.h` is generated from this file (`python -m warren.tools.generate_layout`).

A method is a number, `class << 16 | method`, by which METHODS knows its name, its arguments and their types. Arguments
are given and returned as a tuple in this order, without those that the protocol reserves: they are zero or empty on
the wire. A method with `content` is followed by a content header and a body. `by_client`, `by_server`: who may send it.

Types of arguments

    bit        bool; bits that follow each other share octets, the first one the lowest
    octet, short, long, longlong       unsigned, 1, 2, 4, 8 bytes, big-endian
    shortstr   str, at most 255 bytes of UTF-8 behind an octet
    longstr    bytes behind 4 bytes of length
    table      dict (engine/amqp/values.py)
    timestamp  seconds since 1970, 8 bytes (in properties alone)

Properties of a content stand in the order of PROPERTIES behind 16 bits that say which are there, the first property
the highest bit.
"""

from __future__ import annotations

from typing import NamedTuple

#: what a client sends first; 0, 0, 9, 1 is the version
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
PORT, TLS_PORT = 5672, 5671

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
#: bytes of a frame beside its payload: type, channel, size, and the end
FRAME_OVERHEAD = 8
#: the smallest frame_max that may be agreed on
FRAME_MIN = 4096
#: tables and arrays that may lie in each other
DEPTH_MAX = 64
#: contents that a connection may have begun and not ended at any time: one for each channel, of a usual channel_max
CONTENTS_MAX = 2048

#: what `AmqpReader.read` returns: the first element of each tuple (docs/design/039-amqp-gateway.md)
METHOD, PUBLISH, HEARTBEAT, FAULT, REFUSED = 1, 2, 3, 4, 5

#: why Python has to look at a message: bits of the second element of each pair in `amqp_prepare`'s third answer
ODD_EXPIRATION, ODD_DELIVERY_MODE, ODD_COPIES, ODD_USER_ID, ODD_SIZE, ODD_REPLY_TO = 1, 2, 4, 8, 16, 32
#: a reply_to that stands for the channel that publishes (ODD_REPLY_TO)
REPLY_TO = "amq.rabbitmq.reply-to"


class Argument(NamedTuple):
    """One argument of a method."""

    name: str
    type: str
    reserved: bool


class Method(NamedTuple):
    """One method; `id`: class << 16 | method."""

    id: int
    name: str
    arguments: tuple[Argument, ...]
    content: bool
    by_client: bool
    by_server: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arguments that are given and returned, in their order."""
        return tuple(argument.name for argument in self.arguments if not argument.reserved)


class Reply(NamedTuple):
    """A reply code: its name, and whether it ends the connection (or a channel alone)."""

    code: int
    name: str
    hard: bool


TYPES = ("bit", "octet", "short", "long", "longlong", "shortstr", "longstr", "table", "timestamp")
CLASSES = {
    "connection": 10,
    "channel": 20,
    "access": 30,
    "exchange": 40,
    "queue": 50,
    "basic": 60,
    "confirm": 85,
    "tx": 90,
}

#: by id
METHODS: dict[int, Method] = {}
#: by name
METHOD_IDS: dict[str, int] = {}


def _method(by: str, name: str, number: int, arguments: str = "", content: bool = False) -> int:
    """Declare a method. `by`: C the client sends it, S the server; `arguments`: name:type …, `-` for a reserved one."""
    id = CLASSES[name.partition(".")[0]] << 16 | number
    found = []
    for at, word in enumerate(arguments.split()):
        argument, _, type = word.partition(":")
        if type not in TYPES:
            raise ValueError(f"{name}: {word}")
        found.append(Argument(f"reserved_{at}" if argument == "-" else argument, type, argument == "-"))
    if id in METHODS or name in METHOD_IDS:
        raise ValueError(f"{name} is declared twice")
    METHODS[id] = Method(id, name, tuple(found), content, "C" in by, "S" in by)
    METHOD_IDS[name] = id
    return id


CONNECTION_START = _method(
    "S", "connection.start", 10,
    "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr",
)  # fmt: skip
CONNECTION_START_OK = _method(
    "C", "connection.start-ok", 11, "client_properties:table mechanism:shortstr response:longstr locale:shortstr"
)
CONNECTION_SECURE = _method("S", "connection.secure", 20, "challenge:longstr")
CONNECTION_SECURE_OK = _method("C", "connection.secure-ok", 21, "response:longstr")
CONNECTION_TUNE = _method("S", "connection.tune", 30, "channel_max:short frame_max:long heartbeat:short")
CONNECTION_TUNE_OK = _method("C", "connection.tune-ok", 31, "channel_max:short frame_max:long heartbeat:short")
CONNECTION_OPEN = _method("C", "connection.open", 40, "virtual_host:shortstr -:shortstr -:bit")
CONNECTION_OPEN_OK = _method("S", "connection.open-ok", 41, "-:shortstr")
CONNECTION_CLOSE = _method(
    "CS", "connection.close", 50, "reply_code:short reply_text:shortstr class_id:short method_id:short"
)
CONNECTION_CLOSE_OK = _method("CS", "connection.close-ok", 51)
CONNECTION_BLOCKED = _method("S", "connection.blocked", 60, "reason:shortstr")
CONNECTION_UNBLOCKED = _method("S", "connection.unblocked", 61)
CONNECTION_UPDATE_SECRET = _method("C", "connection.update-secret", 70, "new_secret:longstr reason:shortstr")
CONNECTION_UPDATE_SECRET_OK = _method("S", "connection.update-secret-ok", 71)

CHANNEL_OPEN = _method("C", "channel.open", 10, "-:shortstr")
CHANNEL_OPEN_OK = _method("S", "channel.open-ok", 11, "-:longstr")
CHANNEL_FLOW = _method("CS", "channel.flow", 20, "active:bit")
CHANNEL_FLOW_OK = _method("CS", "channel.flow-ok", 21, "active:bit")
CHANNEL_CLOSE = _method(
    "CS", "channel.close", 40, "reply_code:short reply_text:shortstr class_id:short method_id:short"
)
CHANNEL_CLOSE_OK = _method("CS", "channel.close-ok", 41)

ACCESS_REQUEST = _method(
    "C", "access.request", 10, "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit"
)
ACCESS_REQUEST_OK = _method("S", "access.request-ok", 11, "ticket:short")

EXCHANGE_DECLARE = _method(
    "C", "exchange.declare", 10,
    "-:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit nowait:bit "
    "arguments:table",
)  # fmt: skip
EXCHANGE_DECLARE_OK = _method("S", "exchange.declare-ok", 11)
EXCHANGE_DELETE = _method("C", "exchange.delete", 20, "-:short exchange:shortstr if_unused:bit nowait:bit")
EXCHANGE_DELETE_OK = _method("S", "exchange.delete-ok", 21)
EXCHANGE_BIND = _method(
    "C", "exchange.bind", 30,
    "-:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table",
)  # fmt: skip
EXCHANGE_BIND_OK = _method("S", "exchange.bind-ok", 31)
EXCHANGE_UNBIND = _method(
    "C", "exchange.unbind", 40,
    "-:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table",
)  # fmt: skip
EXCHANGE_UNBIND_OK = _method("S", "exchange.unbind-ok", 51)

QUEUE_DECLARE = _method(
    "C", "queue.declare", 10,
    "-:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit arguments:table",
)  # fmt: skip
QUEUE_DECLARE_OK = _method("S", "queue.declare-ok", 11, "queue:shortstr message_count:long consumer_count:long")
QUEUE_BIND = _method(
    "C", "queue.bind", 20,
    "-:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table",
)  # fmt: skip
QUEUE_BIND_OK = _method("S", "queue.bind-ok", 21)
QUEUE_PURGE = _method("C", "queue.purge", 30, "-:short queue:shortstr nowait:bit")
QUEUE_PURGE_OK = _method("S", "queue.purge-ok", 31, "message_count:long")
QUEUE_DELETE = _method("C", "queue.delete", 40, "-:short queue:shortstr if_unused:bit if_empty:bit nowait:bit")
QUEUE_DELETE_OK = _method("S", "queue.delete-ok", 41, "message_count:long")
QUEUE_UNBIND = _method(
    "C", "queue.unbind", 50, "-:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table"
)
QUEUE_UNBIND_OK = _method("S", "queue.unbind-ok", 51)

BASIC_QOS = _method("C", "basic.qos", 10, "prefetch_size:long prefetch_count:short global:bit")
BASIC_QOS_OK = _method("S", "basic.qos-ok", 11)
BASIC_CONSUME = _method(
    "C", "basic.consume", 20,
    "-:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit arguments:table",
)  # fmt: skip
BASIC_CONSUME_OK = _method("S", "basic.consume-ok", 21, "consumer_tag:shortstr")
BASIC_CANCEL = _method("CS", "basic.cancel", 30, "consumer_tag:shortstr nowait:bit")
BASIC_CANCEL_OK = _method("CS", "basic.cancel-ok", 31, "consumer_tag:shortstr")
BASIC_PUBLISH = _method(
    "C", "basic.publish", 40, "-:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit", True
)
BASIC_RETURN = _method(
    "S", "basic.return", 50, "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr", True
)
BASIC_DELIVER = _method(
    "S", "basic.deliver", 60,
    "consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr", True,
)  # fmt: skip
BASIC_GET = _method("C", "basic.get", 70, "-:short queue:shortstr no_ack:bit")
BASIC_GET_OK = _method(
    "S", "basic.get-ok", 71,
    "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long", True,
)  # fmt: skip
BASIC_GET_EMPTY = _method("S", "basic.get-empty", 72, "-:shortstr")
BASIC_ACK = _method("CS", "basic.ack", 80, "delivery_tag:longlong multiple:bit")
BASIC_REJECT = _method("C", "basic.reject", 90, "delivery_tag:longlong requeue:bit")
BASIC_RECOVER_ASYNC = _method("C", "basic.recover-async", 100, "requeue:bit")
BASIC_RECOVER = _method("C", "basic.recover", 110, "requeue:bit")
BASIC_RECOVER_OK = _method("S", "basic.recover-ok", 111)
BASIC_NACK = _method("CS", "basic.nack", 120, "delivery_tag:longlong multiple:bit requeue:bit")

CONFIRM_SELECT = _method("C", "confirm.select", 10, "nowait:bit")
CONFIRM_SELECT_OK = _method("S", "confirm.select-ok", 11)

TX_SELECT = _method("C", "tx.select", 10)
TX_SELECT_OK = _method("S", "tx.select-ok", 11)
TX_COMMIT = _method("C", "tx.commit", 20)
TX_COMMIT_OK = _method("S", "tx.commit-ok", 21)
TX_ROLLBACK = _method("C", "tx.rollback", 30)
TX_ROLLBACK_OK = _method("S", "tx.rollback-ok", 31)

#: properties of class basic, with their types
PROPERTIES: tuple[tuple[str, str], ...] = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "timestamp"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)

#: by code
REPLIES: dict[int, Reply] = {}


def _reply(code: int, name: str, hard: bool = False) -> int:
    REPLIES[code] = Reply(code, name, hard)
    return code


REPLY_SUCCESS = _reply(200, "REPLY_SUCCESS")
CONTENT_TOO_LARGE = _reply(311, "CONTENT_TOO_LARGE")
NO_ROUTE = _reply(312, "NO_ROUTE")
NO_CONSUMERS = _reply(313, "NO_CONSUMERS")
CONNECTION_FORCED = _reply(320, "CONNECTION_FORCED", True)
INVALID_PATH = _reply(402, "INVALID_PATH", True)
ACCESS_REFUSED = _reply(403, "ACCESS_REFUSED")
NOT_FOUND = _reply(404, "NOT_FOUND")
RESOURCE_LOCKED = _reply(405, "RESOURCE_LOCKED")
PRECONDITION_FAILED = _reply(406, "PRECONDITION_FAILED")
FRAME_ERROR = _reply(501, "FRAME_ERROR", True)
SYNTAX_ERROR = _reply(502, "SYNTAX_ERROR", True)
COMMAND_INVALID = _reply(503, "COMMAND_INVALID", True)
CHANNEL_ERROR = _reply(504, "CHANNEL_ERROR", True)
UNEXPECTED_FRAME = _reply(505, "UNEXPECTED_FRAME", True)
RESOURCE_ERROR = _reply(506, "RESOURCE_ERROR", True)
NOT_ALLOWED = _reply(530, "NOT_ALLOWED", True)
NOT_IMPLEMENTED = _reply(540, "NOT_IMPLEMENTED", True)
INTERNAL_ERROR = _reply(541, "INTERNAL_ERROR", True)
