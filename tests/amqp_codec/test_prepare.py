"""Goal: a message that comes by AMQP is metadata and delivery options that say the same, and what is odd is found.

Method: properties made one by one, and runs of them; the metadata read back as all readers read it.
"""

from typing import Any

import msgspec
import pytest

from warren.engine import _core
from warren.engine.amqp import spec
from warren.engine.amqp.values import Int64, Timestamp
from warren.engine.catalog import amqp_metadata, metadata
from warren.engine.kernel.protocol import PROTOCOL

NOW = 1_700_000_000_000
PACKED = _core.amqp_properties_bytes
NONE = b"\0\0"


def one(**properties: Any) -> tuple[Any, Any, int]:
    """Metadata, options and what is odd, of a message."""
    metas, options, odd = _core.amqp_prepare("e", "k", [PACKED(properties)], NOW)
    return metas, options, odd[0][1] if odd else 0


def test_metadata_has_the_bytes_that_came() -> None:
    properties = PACKED({"headers": {"a": 1, "é": None}, "message_id": "m", "cluster_id": "c", "delivery_mode": 2})
    meta, options, odd = _core.amqp_prepare("é" * 100, "k" * 255, [properties], NOW)
    assert msgspec.msgpack.decode(meta) == ["é" * 100, "k" * 255, None, None, None, properties]
    found = metadata.decode(meta)
    assert (found.exchange, found.routing_key, found.amqp) == ("é" * 100, "k" * 255, properties)
    assert (found.headers, found.properties) == ({"a": 1, "é": None}, {"message_id": "m"})
    assert (options, odd) == ((0, 0, None, True), [])
    assert (
        metadata.passed_on(found.exchange, found.routing_key, {"not": "this"}, {"nor": "this"}, None, found.amqp)
        == meta
    )


def test_options() -> None:
    shift = PROTOCOL["PRIORITY_SHIFT"]
    assert one()[1] == (0, 0, None, False), "without a delivery mode it is transient"
    assert one(delivery_mode=1)[1] == (0, 0, None, False)
    assert one(delivery_mode=2, priority=5)[1] == (5 << shift, 0, None, True)
    assert one(priority=255)[1] == (PROTOCOL["PRIORITY_MAX"] << shift, 0, None, False)
    assert one(expiration="1000")[1:] == ((NOW + 1001, 0, None, False), 0)
    assert one(expiration="0")[1] == (PROTOCOL["EXPIRES_AT_ONCE"], 0, None, False), "for who waits at that moment"
    assert one(expiration="1000")[1][0] == metadata.options(ttl=1.0, persistent=False, now_ms=NOW)[0]  # type: ignore[index]


def test_what_is_odd() -> None:
    assert one(expiration="4294967295")[2] == 0
    for wrong in ("", "-1", "1.5", "x", "4294967296", "10000000000", " 1"):
        assert one(expiration=wrong)[2] == spec.ODD_EXPIRATION
    assert one(delivery_mode=0)[2] == one(delivery_mode=3)[2] == spec.ODD_DELIVERY_MODE
    assert one(headers={"CC": ["a"]})[2] == one(headers={"x": {}, "BCC": 7})[2] == spec.ODD_COPIES
    assert one(headers={"C": 1, "cc": 1, "x": {"CC": ["a"]}})[2] == 0
    assert one(user_id="guest", delivery_mode=9)[2] == spec.ODD_USER_ID | spec.ODD_DELIVERY_MODE
    meta, _options, odd = one(headers={"x": "y" * 65_520})
    assert (meta, odd) == (None, spec.ODD_SIZE)
    for size in (255, 256, 65_400):
        meta, _options, odd = one(headers={"x": "y" * size})
        assert odd == 0
        assert metadata.decode(meta).headers == {"x": "y" * size}


def test_a_run_makes_one_of_what_is_alike() -> None:
    first, second = PACKED({"type": "a"}), PACKED({"user_id": "u", "delivery_mode": 2})
    metas, options, odd = _core.amqp_prepare("e", "k", [second] * 3, NOW)
    assert isinstance(metas, bytes)
    assert isinstance(options, tuple)
    assert odd == [(at, spec.ODD_USER_ID) for at in range(3)]
    metas, options, odd = _core.amqp_prepare("e", "k", [first, first, second, first], NOW)
    assert isinstance(metas, list)
    assert isinstance(options, list)
    assert metas[0] is metas[1]
    assert options[0] is options[1]
    assert [metadata.decode(meta or b"").amqp for meta in metas] == [first, first, second, first]
    assert [chosen[3] for chosen in options if chosen] == [False, False, True, False]
    assert odd == [(2, spec.ODD_USER_ID)]
    assert _core.amqp_prepare("e", "k", [], NOW) == ([], [], [])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="bad properties: the properties have no flags"):
        _core.amqp_prepare("e", "k", [b""], NOW)
    with pytest.raises(TypeError, match="properties must be a list"):
        _core.amqp_prepare("e", "k", (NONE,), NOW)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exchange must be str"):
        _core.amqp_prepare(b"e", "k", [NONE], NOW)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="properties are bytes"):
        _core.amqp_prepare("e", "k", ["x"], NOW)  # type: ignore[list-item]


def test_damaged_properties_are_damaged_metadata() -> None:
    packed = metadata.passed_on("e", "k", amqp=b"\x80\0")
    with pytest.raises(msgspec.MsgspecError, match="no bytes of AMQP"):
        metadata.decode(packed)


def test_a_message_of_python_for_amqp() -> None:
    headers = {"n": 1 << 63, "deep": None, "x" * 300: b"raw", "f": 1.5}
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    headers["deep"] = deep
    properties = {"timestamp": 7.9, "correlation_id": "é" * 200, "type": b"\xff" * 300, "reply_to": "r"}
    found = _core.amqp_properties(amqp_metadata.written(headers, properties))
    told = found.pop("headers")
    assert found == {"timestamp": 7, "correlation_id": "é" * 127, "type": b"\xff" * 255, "reply_to": "r"}
    assert (told["n"], told["x" * 255], told["f"]) == (str(1 << 63), b"raw", 1.5)
    deaths = [{"queue": "q", "reason": "expired", "count": 1, "time": 7, "exchange": "", "routing-keys": ["k"]}, "none"]
    (death, other) = _core.amqp_properties(amqp_metadata.written({"x-death": deaths}, None))["headers"]["x-death"]
    assert (death, other) == (deaths[0], "none")
    assert (type(death["count"]), type(death["time"])) == (Int64, Timestamp), "as clients of RabbitMQ find them"
    assert amqp_metadata.written(None, None) == amqp_metadata.written({}, {}) == NONE
    more = amqp_metadata.with_more(PACKED({"headers": {"a": 1}, "type": "t"}), {"b": 2}, {"type": "u", "app_id": "x"})
    assert _core.amqp_properties(more) == {"headers": {"a": 1, "b": 2}, "type": "t", "app_id": "x"}
