"""What travels with a message besides its body: metadata (for who reads it) and delivery options (for the queues).

Metadata is a msgpack array [exchange, routing key, headers or nil, properties or nil, row or nil, amqp or nil];
trailing nils are left out, a plain put has none at all, and a reader ignores elements that it does not know. Delivery
options are words of the PUBLISH command: (expires | priority << 56, due, key of deduplication or None, persistent).

Properties are those of AMQP: content_type, content_encoding, correlation_id, reply_to, message_id, timestamp, type,
user_id, app_id. They mean nothing to the queues, but for message_id, which deduplicates.

Row is an array [key or nil, repeated or nil] of what a row of columns (Arrow, Spark) said and the rest cannot hold:

    key        bytes: the key of a row for a queue that is no routing key: no UTF-8, too long, or the queue's own name
    repeated   pairs [name, value], in order: the headers of a row in which a name comes more than once. Headers have
               the last value of each such name, for who reads headers by name

Amqp is bytes: the properties of a message that came by AMQP, headers among them, as they stood in its content header
(flags, then values). Headers, properties and row are nil then, and `decode` fills in what these bytes say of them
(amqp_metadata.py).

A header comes back equal to what was given, or is refused: msgspec can write more than these kinds, as a set or a
datetime, but who reads it gets something else. What is one of these kinds by inheritance comes back as that kind.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from warren.engine._core import plain_headers
from warren.engine.catalog import amqp_metadata
from warren.engine.errors import MessageTooLarge, UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import counted, shown

PRIORITY_MAX = PROTOCOL["PRIORITY_MAX"]
PRIORITY_SHIFT = PROTOCOL["PRIORITY_SHIFT"]
KEY_BYTES = PROTOCOL["KEY_BYTES"]
_TIME_MAX = (1 << PROTOCOL["TIME_BITS"]) - 1
_AT_ONCE = PROTOCOL["EXPIRES_AT_ONCE"]
_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
PROPERTIES = (*_TEXTS, "timestamp")

#: (expires | priority << 56, due, key, persistent), as the core takes it
Options = tuple[int, int, bytes | None, bool]


class Row(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a row of columns said of a message, and headers and routing key cannot hold."""

    key: bytes | None = None
    repeated: list[tuple[str, Any]] | None = None


class Metadata(msgspec.Struct, array_like=True, omit_defaults=True):
    """Metadata of one message."""

    exchange: str
    routing_key: str
    headers: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None
    row: Row | None = None
    amqp: bytes | None = None


_decode = msgspec.msgpack.Decoder(Metadata).decode


def decode(packed: bytes) -> Metadata:
    """Metadata as it travels. Raises msgspec.MsgspecError: this is none."""
    found = _decode(packed)
    if found.amqp is not None:
        try:
            found.headers, found.properties = amqp_metadata.read(found.amqp, PROPERTIES)
        except UsageError as error:
            raise msgspec.ValidationError(str(error)) from None
    return found


#: bytes of the metadata of one message (its length is 16 bits wide)
META_BYTES_MAX = (1 << 16) - 1
#: what msgspec raises of what cannot be sent
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, BufferError, msgspec.MsgspecError)
_KINDS = "None, bool, int, float, str, bytes, list and dict"
#: steps into a header that an error shows
_PARTS_SHOWN = 5
#: what to give instead, by the name of the class or of one that it comes from
_INSTEAD = {
    **dict.fromkeys(("tuple", "set", "frozenset", "deque", "range", "generator"), "a list"),
    "date": "its isoformat()",
    "time": "its isoformat()",
    "datetime": "its isoformat() or timestamp()",
    "timedelta": "its total_seconds()",
    "Enum": "its value",
    "UUID": "its bytes, or str() of it",
    "Decimal": "str() of it",
    "Fraction": "str() of it",
    "PurePath": "str() of it",
    "generic": "its item()",  # of numpy
    "ndarray": "its tolist() or tobytes()",
}


def plain(value: object) -> object:
    """What msgspec does not know but what is one of these kinds all the same, as a subclass of str is."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode


def encode(
    exchange: str, routing_key: str, headers: object = None, properties: object = None, message_id: object = None
) -> bytes:
    """Metadata of a message as it travels. Raises UsageError for headers or properties that cannot, MessageTooLarge."""
    told: dict[Any, Any] | None = None
    if type(headers) is dict:
        told = headers
    elif isinstance(headers, Mapping):
        told = dict(headers)
    elif headers is not None:
        raise UsageError(f"headers must be a mapping with str keys, not {type(headers).__name__}")
    if told and not plain_headers(told):
        _check(told)
    fields: list[Any] = [exchange, routing_key, told or None]
    known = None
    if (properties is not None or message_id is not None) and (known := _properties(properties, message_id)):
        fields.append(known)
    try:
        packed = _encode(fields)
    except _REFUSALS:
        packed = b""
    if 0 < len(packed) <= META_BYTES_MAX:
        return packed
    packed = packed or _encode_named(exchange, routing_key, told or {}, known or {})
    if len(packed) > META_BYTES_MAX:
        raise _too_large(len(packed), told, known)
    return packed


class _Place(NamedTuple):
    """Where in the headers something is: header 'a'['b'][0]."""

    part: str | int
    around: _Place | None

    def __str__(self) -> str:
        parts: list[str] = []
        place: _Place | None = self
        while place is not None and len(parts) < _PARTS_SHOWN:
            parts.append(shown(place.part))
            place = place.around
        if place is not None:
            return f"what lies deep in a header, at …{''.join(f'[{part}]' for part in reversed(parts))}"
        return f"header {parts.pop()}{''.join(f'[{part}]' for part in reversed(parts))}"


def _check(headers: Mapping[Any, Any]) -> None:
    """Raises UsageError for a header that would not come back as it was given, or has such a thing in it."""
    left: list[tuple[object, _Place]] = []
    for name, value in headers.items():
        if not isinstance(name, str):
            raise UsageError(f"header names must be str, not {type(name).__name__}: {shown(name)}")
        left.append((value, _Place(name, None)))
    seen: dict[int, object] = {}  #: by id; kept, so that no other gets it
    while left:
        found, place = left.pop()
        if isinstance(found, (str, int, float, bytes, bytearray, memoryview)) or found is None or id(found) in seen:
            continue  # what is in itself is refused when it is written
        seen[id(found)] = found
        if isinstance(found, list):
            left += [(inner, _Place(at, place)) for at, inner in enumerate(found)]
        elif isinstance(found, Mapping):
            for key, inner in found.items():
                if not isinstance(key, str):
                    raise UsageError(f"{place}: keys of a dict must be str, not {type(key).__name__}: {shown(key)}")
                left.append((inner, _Place(key, place)))
        else:
            instead = next((_INSTEAD[kind.__name__] for kind in type(found).__mro__ if kind.__name__ in _INSTEAD), "")
            if hasattr(found, "__dataclass_fields__"):
                instead = "dataclasses.asdict() of it"
            advice = f": give {instead}" if instead else ""
            raise UsageError(f"{place} must be made of {_KINDS}: {type(found).__name__} cannot be sent{advice}")


def _encode_named(exchange: str, routing_key: str, headers: dict[str, Any], properties: dict[str, Any]) -> bytes:
    """What msgspec refused. It is sent if only a name is of a class made of str; raises UsageError for the rest."""
    told = {str.__str__(name): value for name, value in headers.items()}
    known = {str.__str__(name): value for name, value in properties.items()}
    if blamed := _blamed(told, known):
        raise blamed
    try:
        return passed_on(exchange, routing_key, told, known)
    except _REFUSALS as error:
        raise UsageError(f"headers must be made of {_KINDS}: {error}") from None


def passed_on(
    exchange: str,
    routing_key: str,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    row: Row | None = None,
    amqp: bytes | None = None,
) -> bytes:
    """Metadata of a message that goes on to another place, whatever its publisher wrote: nothing is checked. `amqp`: of
    one that came by AMQP; its headers and properties lie there.
    """
    fields = [exchange, routing_key, headers or None, properties or None, row, amqp]
    if amqp is not None:
        fields[2:5] = [None, None, None]
    while len(fields) > 3 and fields[-1] is None:
        fields.pop()
    return _encode(fields)


def key_of_row(found: Metadata, queue: str) -> bytes | None:
    """The key of a message as a column has it: its routing key; None if it was put into the queue without one."""
    if found.row is not None and found.row.key is not None:
        return found.row.key
    if not found.exchange and found.routing_key == queue:
        return None
    return found.routing_key.encode("utf-8", "surrogatepass")


def headers_of_row(found: Metadata) -> list[tuple[str, Any]] | None:
    """The headers of a message as a column has them: pairs, those whose name is repeated first; None: there are none.
    (An empty list: there are none, and its row said so.)
    """
    if found.headers is None:
        return None
    repeated = None if found.row is None else found.row.repeated
    if not repeated:
        return list(found.headers.items())
    names = {name for name, _value in repeated}
    return [*repeated, *((name, value) for name, value in found.headers.items() if name not in names)]


def _parts(headers: dict[str, Any] | None, properties: dict[str, Any] | None) -> Iterator[tuple[str, str, object]]:
    """What a message carries, part by part, with what it is called."""
    for name, value in (headers or {}).items():
        yield f"header {shown(name)}", name, value
    for name, value in (properties or {}).items():
        yield "message_id" if name == "message_id" else f"property {name}", name, value


def _blamed(headers: dict[str, Any] | None, properties: dict[str, Any] | None) -> UsageError | None:
    """The error that names the part which cannot be sent; None when each can."""
    for what, name, value in _parts(headers, properties):
        try:
            _encode((name, value))
        except UnicodeEncodeError as error:
            wrong = error.object[error.start : error.end]
            return UsageError(
                f"{what}: text must be UTF-8, and {shown(wrong)} is not ({error.reason}): "
                "give bytes, or text without lone surrogates"
            )
        except OverflowError:
            return UsageError(f"{what}: an int is sent if it lies from -2**63 to 2**64 - 1: give others as text")
        except RecursionError:
            return UsageError(f"{what} is nested too deeply, or contains itself: send it as the body")
        except (TypeError, ValueError, BufferError, msgspec.MsgspecError) as error:
            return UsageError(f"{what} must be made of {_KINDS}: {error}")
    return None


def _too_large(size: int, headers: dict[str, Any] | None, properties: dict[str, Any] | None) -> MessageTooLarge:
    largest, of = max((len(_encode((name, value))) - 1, what) for what, name, value in _parts(headers, properties))
    return MessageTooLarge(
        f"exchange, routing key, headers and properties of a message take {size} bytes, and may take "
        f"{META_BYTES_MAX}: {of} alone takes {largest}; send large things as the body"
    )


def _properties(properties: object, message_id: object) -> dict[str, Any]:
    if properties is not None and not isinstance(properties, Mapping):
        raise UsageError(f"properties must be a mapping, not {type(properties).__name__}")
    found: dict[str, Any] = {}
    for name, value in (properties or {}).items():
        if value is None:
            continue
        if name == "timestamp":
            if isinstance(value, datetime.datetime):
                value = value.timestamp()
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UsageError(
                    "property timestamp must be a finite number of seconds since 1970, or a datetime, not "
                    f"{shown(value)}"
                )
        elif name not in _TEXTS:
            if name == "headers":
                raise UsageError("headers are no property: give them as headers=…")
            raise UsageError(
                f"there is no property {shown(name)}: choose one of {', '.join(PROPERTIES)}, or give it as a header"
            )
        elif type(value) is not str:
            if name == "reply_to" and not isinstance(value, str):
                raise UsageError(
                    f"property reply_to must be a str, the name of a queue, not {type(value).__name__}: who answers "
                    "publishes to it"
                )
            if not isinstance(value, (str, bytes)):
                raise UsageError(f"property {name} must be str or bytes, not {type(value).__name__}")
        found[name] = value
    if message_id is not None:
        found["message_id"] = message_id
    return found


def key_of(message_id: object) -> bytes:
    """The key of deduplication of a message id: its hash. Raises UsageError when it is neither str nor bytes."""
    key = message_id.encode("utf-8", "surrogatepass") if isinstance(message_id, str) else message_id
    if not isinstance(key, (bytes, bytearray)) or not key:
        raise UsageError(f"message_id must be str or bytes, and not empty, not {shown(message_id)}")
    return hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


def options(
    priority: object = 0,
    ttl: object = None,
    delay: object = None,
    message_id: object = None,
    persistent: object = True,
    now_ms: int | None = None,
) -> Options | None:
    """Delivery options of one message, None when they are all plain. `ttl`, `delay` in seconds; `ttl` counts from the
    end of the delay. Raises UsageError.
    """
    if type(priority) is not int and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise _no_priority(priority)
    if priority == 0 and ttl is None and delay is None and message_id is None and persistent is True:
        return None
    if not 0 <= priority <= PRIORITY_MAX:
        raise _no_priority(priority)
    if persistent is not True and persistent is not False:
        raise UsageError(f"persistent must be True or False, not {shown(persistent)}")
    expires = due = 0
    if ttl is not None or delay is not None:
        # a millisecond that has begun: from the next one on, so that nothing comes or ends before its time
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        wait = 0 if delay is None else _milliseconds("delay", delay)
        if wait:
            due = now + 1 + wait
        if ttl is not None:
            life = _milliseconds("ttl", ttl)
            expires = due + life if due else now + 1 + life if life else _AT_ONCE
        if expires > _TIME_MAX or due > _TIME_MAX:
            long = " and ".join(name for name, value in (("ttl", ttl), ("delay", delay)) if value is not None)
            raise _too_long(long)
    return (
        expires | priority << PRIORITY_SHIFT,
        due,
        None if message_id is None else key_of(message_id),
        persistent,
    )


def due_after(delay: object) -> int:
    """When a delay of so many seconds is over: milliseconds since 1970, 0 for no delay. Raises UsageError."""
    chosen = options(delay=delay)
    return 0 if chosen is None else chosen[1]


def _no_priority(priority: object) -> UsageError:
    return UsageError(f"priority must be a whole number from 0 to {PRIORITY_MAX}, not {shown(priority)}")


def options_each(
    count: int, priority: Any, ttl: Any, delay: Any, message_id: Any, persistent: Any
) -> Options | list[Options | None] | None:
    """Delivery options of `count` messages: one for all, or a list with one for each when a value is a list or tuple.

    Raises UsageError, also for one message_id for several messages, and for as many values as there are no messages.
    """
    values = {"priority": priority, "ttl": ttl, "delay": delay, "message_id": message_id, "persistent": persistent}
    lists = {name: value for name, value in values.items() if isinstance(value, (list, tuple))}
    for name, value in lists.items():
        if len(value) != count:
            raise UsageError(f"{name}: {counted(len(value), 'value')} for {counted(count, 'message')}")
    if not lists:
        if message_id is not None and count > 1:
            raise UsageError("one message_id for several messages would drop all but the first: give a list of them")
        return options(priority, ttl, delay, message_id, persistent)
    now = time.time_ns() // 1_000_000
    rows = zip(*(lists.get(name, [value] * count) for name, value in values.items()), strict=True)
    return [options(first, life, later, id, kept, now) for first, life, later, id, kept in rows]


def any_kept(persistent: object) -> bool:
    """Whether any of many messages is kept on disk, `persistent` being one for all or one for each. `options_each`
    refuses what is neither.
    """
    return (
        any(kept is not False for kept in persistent)
        if isinstance(persistent, (list, tuple))
        else persistent is not False
    )


def each(value: Any, count: int, what: str) -> Sequence[Any]:
    """`value` for each of `count` messages: itself, or the elements of a list or tuple. Raises UsageError."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise UsageError(f"{what}: {counted(len(value), 'value')} for {counted(count, 'message')}")
    return value


def _milliseconds(name: str, seconds: Any) -> int:
    kind = type(seconds)
    is_number = kind is int or kind is float or (isinstance(seconds, (int, float)) and kind is not bool)
    if not is_number or not seconds >= 0:
        raise UsageError(f"{name} must be a number of seconds from 0 on, not {shown(seconds)}")
    if seconds * 1000 > _TIME_MAX:
        raise _too_long(name)
    milliseconds: int = round(seconds * 1000)
    return milliseconds


def _too_long(what: str) -> UsageError:
    return UsageError(f"{what} must not reach beyond the year 10889: give less, or leave it out")
