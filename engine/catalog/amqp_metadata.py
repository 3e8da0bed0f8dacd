"""What a message that came by AMQP says of itself, for whoever reads messages; and of any message, for AMQP's clients.

Such a message keeps its properties as they were on the wire (`Metadata.amqp`): who sends it on does not change them.
Its headers and properties are read there. What Python has no word for is the nearest thing: timestamps and
narrow integers are int, floats of 4 bytes float, decimals text. A name that comes twice has its last value.

Of AMQP's properties those of Warren are properties of the message; delivery_mode, priority and expiration are what its
delivery options say, and stand, as cluster_id does, in `all_of` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warren.engine import _core
from warren.engine.amqp.values import Int64, Timestamp

_SHORT_MAX = 255
#: tables in tables that are written; what lies deeper is written as text
_DEPTH_MAX = 60
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_TIME_MAX = (1 << 64) - 1


def read(amqp: bytes, known: tuple[str, ...]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """(headers, those properties that are among `known`), None: there are none. Raises UsageError: these are none."""
    told = _core.amqp_properties(amqp, True)
    return told.get("headers"), {name: told[name] for name in known if name in told} or None


def all_of(amqp: bytes) -> dict[str, Any]:
    """All properties by name, `headers` among them, with AMQP's types (engine/amqp/values.py)."""
    return _core.amqp_properties(amqp)


def with_more(amqp: bytes, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> bytes:
    """The same, and these; properties that are there stay as they are."""
    told = _core.amqp_properties(amqp)
    told["headers"] = {**told.get("headers", {}), **headers}
    return _core.amqp_properties_bytes({**properties, **told})


def written(headers: Mapping[str, Any] | None, properties: Mapping[str, Any] | None) -> bytes:
    """Headers and properties of a message that did not come by AMQP, as properties on the wire.

    AMQP has room for less: properties and names of headers are cut after 255 bytes; an int from 2**63 on, and what is
    nested more than 60 deep, become text. A timestamp is whole seconds.
    """
    made: dict[str, Any] = {}
    for name, value in (properties or {}).items():
        made[name] = _time(value) if name == "timestamp" else _short(value)
    if headers:
        made["headers"] = told = _table(headers, _DEPTH_MAX)
        if isinstance(deaths := told.get("x-death"), list):
            told["x-death"] = [death(item) if isinstance(item, dict) else item for item in deaths]
    return _core.amqp_properties_bytes(made)


def death(told: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of x-death with the types and in the order that RabbitMQ's have, which clients count on."""
    made = dict(sorted(told.items()))
    for name, kind in (("count", Int64), ("time", Timestamp)):
        if type(value := made.get(name)) is int and 0 <= value <= _INT_MAX:
            made[name] = kind(value)
    return made


def _time(seconds: float) -> int:
    return min(max(0, int(seconds)), _TIME_MAX)


def _short(value: str | bytes) -> str | bytes:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    if len(data) <= _SHORT_MAX:
        return value
    return data[:_SHORT_MAX] if isinstance(value, bytes) else data[:_SHORT_MAX].decode("utf-8", "ignore")


def _table(table: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {str(_short(name)): _value(value, depth) for name, value in table.items()}


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return _table(value, depth - 1) if depth else str(value)
    if isinstance(value, (list, tuple)):
        return [_value(item, depth - 1) for item in value] if depth else str(value)
    if type(value) is int and not _INT_MIN <= value <= _INT_MAX:
        return str(value)
    return value
