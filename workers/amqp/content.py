"""What a message says of itself to an AMQP client: exchange, routing key, properties.

A message that came by AMQP has its properties as they were on the wire (docs/design/039). One that a Python program
published gets those that it can have: headers as a table, properties under their names.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from warren.engine import _core
from warren.engine._core import Delivery
from warren.engine.amqp.values import Int64
from warren.engine.catalog import amqp_metadata, metadata

Told = tuple[str, str, bytes]
#: no properties at all
NONE = b"\0\0"
PERSISTENT, TRANSIENT = 2, 1
#: the element of the metadata that has properties as they were on the wire
AMQP = 5
DELIVERY_COUNT = "x-delivery-count"


def teller(queue: str) -> Callable[[bytes | None], Told]:
    """What tells of messages in a queue whose metadata is not AMQP's."""

    def told(meta: bytes | None) -> Told:
        if meta is None:
            return "", queue, NONE
        found = metadata.decode(meta)
        return found.exchange, found.routing_key, amqp_metadata.written(found.headers, found.properties)

    return told


def told_by(delivery: Delivery, other: Callable[[bytes | None], Told], counted: bool = False) -> Told:
    """Exchange, routing key and properties of one message; `counted`: x-delivery-count is one of its headers."""
    exchange, key, properties = _told_by(delivery, other)
    if counted:
        properties = amqp_metadata.with_more(properties, {DELIVERY_COUNT: Int64(delivery.delivery_count)}, {})
    return exchange, key, properties


def _told_by(delivery: Delivery, other: Callable[[bytes | None], Told]) -> Told:
    if delivery.meta is not None:
        fields = msgspec.msgpack.decode(delivery.meta)
        if len(fields) > AMQP and fields[AMQP] is not None:
            return fields[0], fields[1], fields[AMQP]
    exchange, key, packed = other(delivery.meta)
    properties = _core.amqp_properties(packed)
    properties.setdefault("delivery_mode", PERSISTENT if delivery.persistent else TRANSIENT)
    if delivery.priority:
        properties.setdefault("priority", delivery.priority)
    return exchange, key, _core.amqp_properties_bytes(properties)
