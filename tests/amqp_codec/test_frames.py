"""Goal: what the gateway sends is AMQP, byte for byte, and what others' decoders read.

Method: each method that pika knows, with its arguments made at random, beside pika's encoder; contents of all sizes
around the end of a frame, read by pika's decoder; a node's own deliveries.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from amqp_codec.wire import decoded, method, parsed
from hypothesis import given
from hypothesis import strategies as st
from pika import spec as pika_spec

import warren
from warren.engine import _core
from warren.engine.amqp import spec
from warren.engine.amqp.values import Decimal, Int64, Timestamp
from warren.engine.catalog import amqp_metadata, metadata
from warren.engine.errors import UsageError

from support import command_line

NONE = b"\0\0"
SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
VALUES = {
    "bit": st.booleans(),
    "octet": st.integers(0, (1 << 8) - 1),
    "short": st.integers(0, (1 << 16) - 1),
    "long": st.integers(0, (1 << 32) - 1),
    "longlong": st.integers(0, (1 << 64) - 1),
    "shortstr": SHORT,
    "longstr": SHORT,
    "table": st.dictionaries(SHORT, st.one_of(SHORT, st.booleans(), st.none(), st.integers(-(1 << 31), (1 << 63) - 1))),
}
#: of pika's classes, by id
PIKA = {id: kind for id, kind in pika_spec.methods.items() if id in spec.METHODS}
#: names that pika has for arguments that are called otherwise here
RENAMED = {"global": "global_qos"}


def of_pika(id: int, arguments: dict[str, Any]) -> Any:
    """The method as pika's object."""
    known = set(inspect.signature(PIKA[id].__init__).parameters)
    given = {RENAMED.get(name, name): value for name, value in arguments.items()}
    return PIKA[id](**{name: value for name, value in given.items() if name in known})


def test_all_that_pika_knows_is_known() -> None:
    assert set(pika_spec.methods) <= set(spec.METHODS)
    assert {spec.METHODS[id].content for id in PIKA} == {False, True}
    for id, kind in PIKA.items():
        assert kind.NAME.lower().replace(".", "") == spec.METHODS[id].name.replace("-", "").replace(".", "")


@given(st.data())
def test_methods_are_those_of_pika(data: st.DataObject) -> None:
    id = data.draw(st.sampled_from(sorted(PIKA)))
    known = spec.METHODS[id]
    arguments = {item.name: data.draw(VALUES[item.type]) for item in known.arguments if not item.reserved}
    channel = data.draw(st.integers(0, 65535))
    made = _core.amqp_method(channel, id, tuple(arguments.values()))
    assert made == method(channel, of_pika(id, arguments))
    if id != spec.CONNECTION_UPDATE_SECRET:  # which pika cannot decode
        (found,) = decoded(made)
        assert (found.channel_number, found.method.INDEX) == (channel, id)


@given(st.data())
def test_methods_of_clients_are_read_as_they_were_written(data: st.DataObject) -> None:
    ids = [id for id, known in spec.METHODS.items() if known.by_client and not known.content]
    id = data.draw(st.sampled_from(ids))
    arguments = tuple(data.draw(VALUES[item.type]) for item in spec.METHODS[id].arguments if not item.reserved)
    (found,) = _core.AmqpReader(1 << 20, 1).read(_core.amqp_method(7, id, arguments))
    wanted = tuple(
        value.encode() if item.type == "longstr" else value
        for value, item in zip(arguments, (i for i in spec.METHODS[id].arguments if not i.reserved), strict=True)
    )
    assert parsed(found) == (spec.METHOD, 7, id, wanted)
    has_fields = any(isinstance(value, dict) and value for value in wanted)
    assert isinstance(found[3], bytes) == has_fields, "objects are made when they are needed"


def test_arguments_that_are_damaged_are_refused() -> None:
    """Those of a reader never are."""
    with pytest.raises(UsageError, match="ends before its last argument"):
        _core.amqp_arguments(spec.QUEUE_DECLARE, b"")
    with pytest.raises(UsageError, match="no such method"):
        _core.amqp_arguments(99, b"")
    with pytest.raises(UnicodeDecodeError):
        _core.amqp_arguments(spec.QUEUE_DECLARE, b"\0\0\1\xff\0\0\0\0\0")


def test_what_has_no_place_in_a_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"basic\.ack has 2 arguments"):
        _core.amqp_method(1, spec.BASIC_ACK, (1,))
    with pytest.raises(ValueError, match="no method 99 of class 60"):
        _core.amqp_method(1, spec.BASIC_ACK + 19, ())
    with pytest.raises(OverflowError, match="16 bits"):
        _core.amqp_method(1 << 16, spec.BASIC_ACK, (1, True))
    with pytest.raises(UsageError, match="has 256 bytes, and AMQP has room for 255"):
        _core.amqp_method(1, spec.BASIC_CANCEL_OK, ("x" * 256,))
    with pytest.raises(UsageError, match="must be a dict"):
        _core.amqp_method(1, spec.QUEUE_UNBIND, ("q", "e", "k", [1]))
    with pytest.raises(ValueError, match=r"basic\.ack has no content"):
        _core.amqp_content(1, spec.BASIC_ACK, (1, True), NONE, b"", 4096)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 20_000])
def test_a_content_is_cut_into_frames(size: int) -> None:
    properties = _core.amqp_properties_bytes({"content_type": "t", "delivery_mode": 2})
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = _core.amqp_content(3, spec.BASIC_GET_OK, (7, True, "e", "k", 9), properties, memoryview(data), 4096)
    start, header, *bodies = decoded(made)
    assert (start.method.delivery_tag, start.method.redelivered, start.method.message_count) == (7, True, 9)
    assert (header.body_size, header.properties.content_type, header.properties.delivery_mode) == (size, "t", 2)
    assert [len(found.fragment) for found in bodies] == [4088] * (size // 4088) + [size % 4088] * (size % 4088 > 0)
    assert b"".join(found.fragment for found in bodies) == data
    whole = _core.amqp_content(3, spec.BASIC_GET_OK, (7, True, "e", "k", 9), properties, data, 0)
    assert len(decoded(whole)) == 2 + (size > 0), "frame_max 0: there is none"


# -- deliveries of a node -------------------------------------------------------------------------------------------


def put_amqp(queue: Any, properties: dict[str, Any], *bodies: bytes, exchange: str = "e", key: str = "k") -> None:
    """Messages that came by AMQP, into a queue."""
    packed = [_core.amqp_properties_bytes(properties)] * len(bodies)
    metas, _options, odd = _core.amqp_prepare(exchange, key, packed, 1)
    assert not odd
    assert isinstance(metas, bytes)
    for data in bodies:
        queue._handle.put(data, 2, metas, 10, True)


def told(meta: bytes | None) -> tuple[str, str, bytes]:
    """As the gateway tells of messages that did not come by AMQP."""
    if meta is None:
        return "", "orders", NONE
    found = metadata.decode(meta)
    return found.exchange, found.routing_key, amqp_metadata.written(found.headers, found.properties)


def unasked(meta: bytes | None) -> tuple[str, str, bytes]:
    raise AssertionError(f"it says all itself: {meta!r}")


def test_deliveries_have_the_bytes_that_were_published(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    properties = {"headers": {"a": [1, {"b": b"c"}]}, "priority": 200, "timestamp": 7}
    put_amqp(queue, properties, b"one", b"", b"x" * 9000)
    first, second, third = queue.get_many(3, timeout=30)
    assert (first.exchange, first.routing_key, first.headers) == ("e", "k", {"a": [1, {"b": b"c"}]})
    assert (first.properties, first.timestamp, first.amqp) == ({"timestamp": 7}, 7, properties)
    first.nack()
    again = queue.get(timeout=30)
    made = _core.amqp_deliver(5, "tag", 41, [again, second, third], 4096, unasked)
    frames = decoded(made)
    starts = [found.method for found in frames if hasattr(found, "method")]
    assert [(found.consumer_tag, found.delivery_tag, found.exchange, found.routing_key) for found in starts] == [
        ("tag", tag, "e", "k") for tag in (41, 42, 43)
    ]
    assert [found.redelivered for found in starts] == [True, False, False]
    assert {found.channel_number for found in frames} == {5}
    headers = [found for found in frames if hasattr(found, "properties")]
    assert [found.body_size for found in headers] == [3, 0, 9000]
    packed = _core.amqp_properties_bytes(properties)
    assert made.count(packed) == 3, "as they were on the wire"
    assert [len(found.fragment) for found in frames if hasattr(found, "fragment")] == [3, 4088, 4088, 824]
    again.ack(multiple=True)


def test_deliveries_that_did_not_come_by_amqp(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"plain")
    queue.put(b"told", headers={"n": 1 << 63}, properties={"content_type": "t"}, priority=4)
    queue.put(b"told", headers={"n": 1 << 63}, properties={"content_type": "t"}, persistent=False)
    messages = sorted(queue.get_many(3, timeout=30), key=lambda message: message.delivery_tag)
    asked: list[bytes | None] = []

    def other(meta: bytes | None) -> tuple[str, str, bytes]:
        asked.append(meta)
        return told(meta)

    frames = decoded(_core.amqp_deliver(1, "t", 1, messages, 4096, other))
    starts = [found.method for found in frames if hasattr(found, "method")]
    assert [(found.exchange, found.routing_key) for found in starts] == [("", "orders"), ("", name), ("", name)]
    said = [found.properties for found in frames if hasattr(found, "properties")]
    assert [(found.delivery_mode, found.priority) for found in said] == [(2, None), (2, 4), (1, None)]
    assert [found.content_type for found in said] == [None, "t", "t"]
    assert [found.headers for found in said] == [None, {"n": str(1 << 63)}, {"n": str(1 << 63)}]
    assert asked == [None, messages[1].meta, messages[2].meta]
    asked.clear()
    _core.amqp_deliver(1, "t", 1, [messages[1]] * 5, 4096, other)
    assert asked == [messages[1].meta], "those that are alike are asked for once"
    for wrong, error in ((("", "k"), TypeError), (("x" * 256, "k", NONE), ValueError), (("", "k", b"\0"), ValueError)):
        with pytest.raises(error):
            _core.amqp_deliver(1, "t", 1, messages, 4096, lambda _meta, wrong=wrong: wrong)
    with pytest.raises(TypeError, match="deliveries"):
        _core.amqp_deliver(1, "t", 1, [b"x"], 4096, told)  # type: ignore[list-item]
    messages[-1].ack(multiple=True)


def test_delivery_mode_and_priority_stand_where_they_belong(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"body", priority=4)
    message = queue.get(timeout=30)
    around = {"content_type": "t", "content_encoding": "e", "headers": {"a": 1}, "correlation_id": "c", "app_id": "x"}
    for said in ({}, around, {"headers": {"a": 1}}, {"correlation_id": "c"}):
        for own in ({}, {"delivery_mode": 1}, {"priority": 9}, {"delivery_mode": 1, "priority": 9}):
            packed = _core.amqp_properties_bytes({**said, **own})
            made = _core.amqp_deliver(1, "t", 1, [message], 4096, lambda _meta, packed=packed: ("", "k", packed))
            found = decoded(made)[1].properties
            wanted = {"delivery_mode": 2, "priority": 4, **said, **own}
            assert {name: value for name, value in vars(found).items() if value is not None} == wanted
    message.ack()


def test_columns_and_the_command_line_read_them_like_others(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    headers = {"n": Int64(1), "at": Timestamp(7), "d": Decimal("1.50"), "t": {"raw": b"\xff"}}
    put_amqp(queue, {"headers": headers, "timestamp": 7, "type": "t", "delivery_mode": 2}, b"one")
    queue.put(b"two", headers={"n": 1})
    (batch,) = queue.browse_arrow()
    rows = {row["value"]: row for row in batch.to_pylist()}
    assert (rows[b"one"]["exchange"], rows[b"one"]["routing_key"]) == ("e", "k")
    pairs = {body: {pair["key"]: pair["value"] for pair in row["headers"]} for body, row in rows.items()}
    assert pairs[b"one"] == {"n": b"1", "at": b"7", "d": b"1.50", "t": b'{"raw":"/w=="}'}
    assert rows[b"one"]["timestamp"].timestamp() == 7
    assert pairs[b"two"] == {"n": b"1"}
    said = command_line.warren("peek", directory, name, "--json").stdout
    one = next(found for found in map(json.loads, said.splitlines()) if found["body"] == "one")
    assert one["headers"] == {"n": 1, "at": 7, "d": "1.50", "t": {"raw": {"base64": "/w=="}}}
    assert one["properties"] == {"timestamp": 7, "type": "t"}
    queue.purge()


def test_a_dead_letter_that_came_by_amqp(node: warren.Node, name: str) -> None:
    dead = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=dead.name)
    said = {"headers": {"mine": 1, "CC": ["copy"]}, "expiration": "60000", "message_id": "m", "delivery_mode": 2}
    packed = _core.amqp_properties_bytes(said)
    metas, _options, odd = _core.amqp_prepare("e", "k", [packed], 1)
    assert odd == [(0, spec.ODD_COPIES)]
    assert isinstance(metas, bytes)
    queue._handle.put(b"body", 2, metas, 10, True)
    queue.get(timeout=30).reject()
    letter = dead.get(timeout=30)
    assert (letter.exchange, letter.routing_key, letter.body) == ("", dead.name, b"body")
    found = letter.amqp
    assert found is not None
    (death,) = found["headers"].pop("x-death")
    assert type(death.pop("time")).__name__ == "Timestamp"
    assert death == {
        "count": 1,
        "exchange": "e",
        "original-expiration": "60000",
        "queue": name,
        "reason": "rejected",
        "routing-keys": ["k", "copy"],
    }
    assert type(death["count"]).__name__ == "Int64"
    first = {"x-first-death-exchange": "e", "x-first-death-queue": name, "x-first-death-reason": "rejected"}
    assert found == {"headers": {"mine": 1, **first}, "message_id": "m", "delivery_mode": 2}
    assert letter.headers["x-death"][0]["count"] == 1, "Python reads the same"
    letter.ack()
