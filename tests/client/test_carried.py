"""Goal: a record of a topic carries all that a message says, and gives it back equal, whatever it says (Hypothesis).

Method: messages as consumers of queues see them, into the properties of a record and back, beside the core's own reader
of properties; foreign records, and such that somebody else has written WARREN_MESSAGE into.
"""

import base64
import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.amqp.values import Int64, Timestamp
from warren.engine.catalog import metadata
from warren.engine.catalog.topic_bindings import TopicRoute, checked_source
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import MessageTooLarge, UsageError
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX
from warren.workers.client import carried
from warren.workers.client.carried import Message, message_of, named, properties_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
#: names of headers: any, and those that are taken
NAMES = st.one_of(
    TEXT, st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WARREN_MESSAGE", "WARREN_", "type", "x-topic", "\1"])
)
NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), st.booleans())
VALUES: Any = st.recursive(
    st.one_of(TEXT, NUMBERS, st.none(), st.binary(max_size=12), st.sampled_from(["\0", "a\1b", "\2", "true", "7"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
TEXTS = st.one_of(TEXT, st.binary(max_size=12))
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        **{name: TEXTS for name in metadata.PROPERTIES if name != "timestamp"},
        "timestamp": st.one_of(st.integers(0, 1 << 40), st.floats(0, 1e10)),
    },
)
MESSAGES = st.builds(
    Message,
    exchange=TEXT,
    routing_key=TEXT,
    headers=st.dictionaries(NAMES, VALUES, max_size=5),
    properties=PROPERTIES,
    priority=st.integers(0, 9),
    ttl_ms=st.one_of(st.none(), st.integers(0, 1 << 40)),
    due_ms=st.integers(0, 1 << 44),
    persistent=st.booleans(),
    amqp=st.none(),
)
FLIGHTS = TopicDeclaration(7, "flights", 4)


def kinds(value: Any) -> Any:
    """A value with the kinds of all that is in it: 1, 1.0 and True are equal."""
    if isinstance(value, dict):
        return {name: kinds(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(kinds, value)]
    return type(value).__name__, math.copysign(1, value) if isinstance(value, float) else 0, value


@given(MESSAGES)
@example(Message("", "", {}, {}))
@example(Message("e", "k", {"n": 1.0, "m": 1, "b": True, "z": -0.0, "t": "1"}, {"timestamp": 1.0, "type": b"1"}))
@example(Message("e", "k", {"type": 7, "WARREN_MESSAGE": "x", "": "x", "a\1": "x"}, {"type": "t"}))
@example(Message("e", "k", {"UNIQ_KEY": "", "KEYS": "k", "TAGS": "t"}, {}))
@example(Message("e", "k", {"inf": math.inf}, {"message_id": "\2"}, persistent=False))
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    packed = properties_of(message)
    properties = _core.properties_decode(packed)
    assert _core.properties_known(packed) == ([], None, None), "no header becomes a key or a tag"
    found = message_of(properties, "q")
    assert found == message
    assert kinds(found) == kinds(message)


def test_a_message_that_came_by_amqp_keeps_its_types() -> None:
    amqp = _core.amqp_properties_bytes({"headers": {"n": Int64(1), "at": Timestamp(7), "raw": b"\0"}, "type": "t"})
    message = carried.message(metadata.decode(metadata.passed_on("x", "k", amqp=amqp)), 3, due_ms=8)
    assert (message.headers, message.properties) == ({"n": 1, "at": 7, "raw": b"\0"}, {"type": "t"})
    properties = _core.properties_decode(properties_of(message))
    assert (properties["n"], properties["type"]) == ("1", "t"), "others read what they can"
    assert message_of(properties, "q") == message
    large = message._replace(headers={"n": "x" * 20_000}, amqp=_core.amqp_properties_bytes({"type": "t" * 255}))
    assert message_of(_core.properties_decode(properties_of(large)), "q").amqp == large.amqp
    huge = _core.amqp_properties_bytes({"headers": {"n": "x" * 20_000}})
    known = _core.properties_decode(properties_of(message._replace(headers={"n": "x" * 20_000}, amqp=huge)))
    assert "n" not in known, "what has no room twice lies there once"
    assert message_of(known, "q").amqp == huge


@given(MESSAGES)
def test_what_is_text_can_be_read_by_others(message: Message) -> None:
    properties = _core.properties_decode(properties_of(message))
    for name, value in message.headers.items():
        if type(value) is str and name.isalpha() and name.islower() and name not in message.properties:
            assert not {*"\0\1\2"}.isdisjoint(value) or properties[name] == value


@given(MESSAGES, st.sampled_from(["message_id", "correlation_id", "routing_key", "header:x", "header:\1", ""]))
def test_a_key_is_one_key_whatever_it_is_made_of(message: Message, source: str) -> None:
    key, packed = named(TopicRoute(FLIGHTS, source, source), message)
    keys, tag, _unique = _core.properties_known(packed)
    assert keys == ([] if key is None else [key.encode()])
    assert (tag is None) == (key is None)
    if source == "routing_key" and key is not None and not {*"\0\1\2 %"} & {*message.routing_key}:
        assert key == message.routing_key == (tag or b"").decode()


@pytest.mark.parametrize(
    ("value", "key", "tag"),
    [
        ("a b", "a%20b", "a b"),
        ("a\0\1\2", "a%00%01%02", "a%00%01%02"),
        (b"\xffid", "%FFid", "%FFid"),
        ("é".encode(), "é", "é"),
        (7, "7", "7"),
        (True, "true", "true"),
        (1.5, "1.5", "1.5"),
        ("", None, None),
        (None, None, None),
        ([1], None, None),
    ],
)
def test_how_keys_and_tags_are_written(value: Any, key: str | None, tag: str | None) -> None:
    message = Message("e", "k", {"h": value}, {})
    found, packed = named(TopicRoute(FLIGHTS, "header:h", "header:h"), message)
    assert found == key
    assert _core.properties_known(packed)[1] == (None if tag is None else tag.encode())
    assert named(TopicRoute(FLIGHTS, "", "message_id"), message) == (None, b"")


@given(st.dictionaries(TEXT, TEXT, max_size=4))
def test_a_record_of_anybody_else_is_a_message_with_headers(properties: dict[str, str]) -> None:
    assert message_of(properties, "q") == Message("", "q", properties, {})


@pytest.mark.parametrize(
    "told",
    [
        "",
        "no base64",
        base64.b64encode(b"\xc1").decode(),
        base64.b64encode(msgspec.msgpack.encode(["e"])).decode(),
        base64.b64encode(msgspec.msgpack.encode(["e", "k", {"n": "i"}])).decode(),
        base64.b64encode(msgspec.msgpack.encode(["e", "k", {"n": "?"}])).decode(),
        base64.b64encode(msgspec.msgpack.encode(["e", "k", *[None] * 3, 0, None, 0, True, b"\x80"])).decode(),
    ],
)
def test_what_is_not_ours_is_a_header(told: str) -> None:
    properties = {carried.TOLD: told, "n": "no number"}
    assert message_of(properties, "q") == Message("", "q", properties, {})


def test_a_later_version_may_tell_more() -> None:
    told = ["e", "k", None, None, None, 3, None, 0, True, None, "more"]
    found = message_of({carried.TOLD: base64.b64encode(msgspec.msgpack.encode(told)).decode()}, "q")
    assert found == Message("e", "k", {}, {}, 3)


def test_what_has_no_room_is_refused() -> None:
    for headers in ({"h": "x" * PROPERTIES_BYTES_MAX}, {"h": b"x" * PROPERTIES_BYTES_MAX}):
        with pytest.raises(MessageTooLarge, match="put large things into the body"):
            properties_of(Message("e", "k", headers, {}))
    with pytest.raises(MessageTooLarge):
        named(TopicRoute(FLIGHTS, "header:h", ""), Message("e", "k", {"h": "x" * PROPERTIES_BYTES_MAX}, {}))


@pytest.mark.parametrize(
    "source", ["nothing", "header:", "headers", 7, b"routing_key", "header:" + "x" * 300, "header:\ud800"]
)
def test_what_no_key_is_made_of(source: Any) -> None:
    with pytest.raises(UsageError, match="key must be routing_key, "):
        checked_source("key", source)


def test_nothing_is_nothing() -> None:
    assert checked_source("tag", None) == checked_source("tag", "") == ""
