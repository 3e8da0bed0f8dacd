"""What a record of a topic carries of a message that was published to an exchange, and back: for bindings of topics,
and for replay into a queue.

A record has room for text alone, in at most 32,767 bytes, without the characters \\x00, \\x01 and \\x02, under names
that are not reserved. So of a message (exchange, routing key, headers, properties, priority, …)

    KEYS, TAGS       what the binding says (engine/catalog/topic_bindings.py). Characters that have no place there are
                     escaped as in a URL: %00, %01, %02, in a key %20 for a space, and bytes that are no UTF-8
    name = value     a header or a property that is text, or a number: readable by whoever reads the topic
    WARREN_MESSAGE   the rest, in base64 of msgpack: `Told`. Headers that are no text lie there whole, and for those
                     that were numbers it says of which kind. Of a message that came by AMQP all of its properties lie
                     there, as they were on the wire; where both have no room, they alone

The body is the message's, byte for byte.

Invariants
  `message_of(record of a message)` is that message: equal, with the types that its headers had.
  A record of anybody else is a message whose headers are its properties. So is one whose WARREN_MESSAGE is not ours.
  What finds no room is refused (MessageTooLarge) by who makes the record, before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from warren.engine import _core
from warren.engine.catalog import amqp_metadata, topic_bindings
from warren.engine.catalog.metadata import PROPERTIES, Metadata
from warren.engine.catalog.topic_bindings import TopicRoute
from warren.engine.errors import MessageTooLarge
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX

#: the property that holds what has no place elsewhere
TOLD = "WARREN_MESSAGE"
#: names that begin so are Warren's
OWN = "WARREN_"
#: the name of a property by which a record is found, which no message has: a header of that name is carried in TOLD
UNIQUE = "UNIQ_KEY"
#: characters that no property can have
_NO_PLACE = frozenset("\0\1\2")
_ESCAPES = {ord(character): f"%{ord(character):02X}" for character in "\0\1\2"}
_KEY_ESCAPES = {**_ESCAPES, ord(" "): "%20"}
_BYTE_ESCAPES = {0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)}
#: kinds of what is written as text and was none: of a header, and with "p" of a property
_INT, _FLOAT, _BOOL, _PROPERTY = "i", "f", "b", "p"


class Message(NamedTuple):
    """A message beside its body, as a consumer of a queue sees it. `ttl_ms`: how long it lives, None: for ever;
    `due_ms`: when it was to be delivered, 0: at once (milliseconds since 1970).
    """

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    priority: int = 0
    ttl_ms: int | None = None
    due_ms: int = 0
    persistent: bool = True
    amqp: bytes | None = None


class Told(msgspec.Struct, array_like=True):
    """What WARREN_MESSAGE holds: `headers` and `properties` that are not written as text, `kinds` of those that are, by
    name. Defaults at the end are left out, and a reader ignores elements that it does not know.
    """

    exchange: str
    routing_key: str
    kinds: dict[str, str] | None = None
    headers: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None
    priority: int = 0
    ttl_ms: int | None = None
    due_ms: int = 0
    persistent: bool = True
    amqp: bytes | None = None


_DEFAULTS = (None, None, *Told.__struct_defaults__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


def message(
    meta: Metadata, priority: int = 0, ttl_ms: int | None = None, due_ms: int = 0, persistent: bool = True
) -> Message:
    """A message of its metadata and delivery options."""
    headers, properties = meta.headers or {}, meta.properties or {}
    return Message(
        meta.exchange, meta.routing_key, headers, properties, priority, ttl_ms, due_ms, persistent, meta.amqp
    )


# -- from a message ---------------------------------------------------------------------------------------------


def properties_of(of: Message) -> bytes:
    """The properties of its record, but for KEYS and TAGS, as bytes of the log. Raises MessageTooLarge."""
    texts: dict[str, str] = {}
    kinds: dict[str, str] = {}
    properties = _written(of.properties, texts, kinds, _PROPERTY) or None
    headers = _written(of.headers, texts, kinds, "") or None
    if of.amqp is not None:
        return _amqp_properties_of(of, texts)
    told = [of.exchange, of.routing_key, kinds or None, headers, properties, *of[4:]]
    while len(told) > 2 and told[-1] == _DEFAULTS[len(told) - 1]:
        told.pop()
    return _packed({TOLD: base64.b64encode(_encode(told)).decode(), **texts})


def _amqp_properties_of(of: Message, texts: dict[str, str]) -> bytes:
    told = {TOLD: base64.b64encode(_encode([of.exchange, of.routing_key, None, None, None, *of[4:]])).decode()}
    try:
        return _packed({**told, **texts})
    except MessageTooLarge:
        return _packed(told)


def _written(values: Mapping[str, Any], texts: dict[str, str], kinds: dict[str, str], prefix: str) -> dict[str, Any]:
    """Put what can be text into `texts` with its kind; returns the rest."""
    rest: dict[str, Any] = {}
    for name, value in values.items():
        written = None if name in texts or not _nameable(name) else _text_of(value)
        if written is None:
            rest[name] = value
            continue
        text, kind = written
        texts[name] = text
        if prefix + kind:
            kinds[name] = prefix + kind
    return rest


def _nameable(name: str) -> bool:
    if not name or name == UNIQUE or name.startswith(OWN) or not _NO_PLACE.isdisjoint(name):
        return False
    return not _core.property_reserved(name)


def _text_of(value: object) -> tuple[str, str] | None:
    """A value as text, and its kind; None: it has no place there."""
    if type(value) is str:
        return (value, "") if _NO_PLACE.isdisjoint(value) else None
    if type(value) is bool:
        return "true" if value else "false", _BOOL
    if type(value) is int:
        return str(value), _INT
    if type(value) is float:
        return repr(value), _FLOAT
    return None


def named(route: TopicRoute, of: Message) -> tuple[str | None, bytes]:
    """The key of its record in a topic, and KEYS and TAGS as bytes of the log. Raises MessageTooLarge."""
    key, tag = _source(route.key, of), _source(route.tag, of)
    texts: dict[str, str] = {}
    if key:
        texts["KEYS"] = key = key.translate(_KEY_ESCAPES)
    if tag:
        texts["TAGS"] = tag.translate(_ESCAPES)
    return key or None, _packed(texts)


def _source(source: str, of: Message) -> str:
    """What a binding makes a key or a tag of, as text; '' when the message has none."""
    if not source:
        return ""
    if source == topic_bindings.ROUTING_KEY:
        return of.routing_key
    header = source.startswith(topic_bindings.HEADER)
    value = of.headers.get(source.removeprefix(topic_bindings.HEADER)) if header else of.properties.get(source)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape").translate(_BYTE_ESCAPES)
    if type(value) is str:
        return value
    written = _text_of(value)
    return "" if written is None else written[0]


def _packed(texts: dict[str, str]) -> bytes:
    try:
        return _core.properties_encode(texts)
    except ValueError:
        raise too_large() from None


def too_large() -> MessageTooLarge:
    """What is told of a message beside its body has no room in a record."""
    return MessageTooLarge(
        "the message goes to a topic, and headers, properties, exchange and routing key of one that does have "
        f"{PROPERTIES_BYTES_MAX} bytes at most as the log writes them: put large things into the body"
    )


# -- from a record ----------------------------------------------------------------------------------------------


def message_of(properties: Mapping[str, str], queue: str) -> Message:
    """The message that a record's properties tell of (without KEYS and TAGS); of a record that was none, one for the
    queue `queue` whose headers are the properties.
    """
    told = properties.get(TOLD)
    found = None if told is None else _read(told, properties)
    return found or Message("", queue, dict(properties), {})


def _read(told: str, properties: Mapping[str, str]) -> Message | None:
    """None: it is not what `properties_of` writes."""
    try:
        rest = _decode(base64.b64decode(told, validate=True))
        if rest.amqp is not None:
            return _amqp_message(rest, rest.amqp)
        headers, known = dict(rest.headers or {}), dict(rest.properties or {})
        kinds = rest.kinds or {}
        for name, text in properties.items():
            if name == TOLD:
                continue
            kind = kinds.get(name, "")
            target = known if kind.startswith(_PROPERTY) else headers
            target[name] = _value(text, kind.removeprefix(_PROPERTY))
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, ValueError):  # UsageError is a ValueError
        return None
    ttl = rest.ttl_ms
    return Message(rest.exchange, rest.routing_key, headers, known, rest.priority, ttl, rest.due_ms, rest.persistent)


def _amqp_message(rest: Told, amqp: bytes) -> Message:
    """Raises UsageError: these are no properties of AMQP."""
    headers, properties = amqp_metadata.read(amqp, PROPERTIES)
    ttl, due = rest.ttl_ms, rest.due_ms
    return Message(
        rest.exchange, rest.routing_key, headers or {}, properties or {}, rest.priority, ttl, due, rest.persistent, amqp
    )


def _value(text: str, kind: str) -> Any:
    """What a text was. Raises ValueError."""
    if kind == "":
        return text
    if kind == _INT:
        return int(text)
    if kind == _FLOAT:
        return float(text)
    if kind == _BOOL and text in ("true", "false"):
        return text == "true"
    raise ValueError(f"{text!r} is no {kind!r}")
