"""Dead letters that came by AMQP: what RabbitMQ makes of the properties of one, and where it goes.

    x-death              an array of tables {count: long, exchange, original-expiration, queue, reason,
                         routing-keys: array, time: timestamp}; names of queues and exchanges are those of AMQP
    routing-keys         the routing key, then the keys in the headers CC and BCC, to which the message went, too
    original-expiration  the property expiration, which the letter loses: it would die again

A dead_letter_routing_key takes the place of all keys, and takes CC from the headers. Without one the letter goes by
the keys by which the message went. All else stays as it was on the wire.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from warren.engine import _core
from warren.engine.amqp.names import DEFAULT_VHOST, amqp_name, node_name
from warren.engine.catalog import amqp_metadata

#: headers with more routing keys
_COPIES = ("CC", "BCC")


class Letter(NamedTuple):
    """What a letter says of itself: `queue`: where it died, in AMQP's words; `headers`: with AMQP's types."""

    queue: str
    vhost: str
    exchange: str
    keys: list[str]
    properties: dict[str, Any]

    @property
    def headers(self) -> dict[str, Any]:
        """Its headers before this death."""
        found = self.properties.get("headers")
        return found if isinstance(found, dict) else {}


def letter_of(amqp: bytes, exchange: str, routing_key: str, origin: str) -> Letter:
    """The letter that these properties tell of; `origin`: the queue of the node in which it died. Raises UsageError."""
    vhost, queue = amqp_name(origin)
    properties = amqp_metadata.all_of(amqp)
    found = Letter(queue, vhost, exchange, [routing_key], properties)
    for name in _COPIES:
        copies = found.headers.get(name)
        if isinstance(copies, list):
            found.keys.extend(key for key in copies if isinstance(key, str))
    return found


def routing_keys(letter: Letter, exchange: str, chosen: str | None) -> list[str]:
    """The keys by which it is routed, as the node has them; `chosen`: the queue's dead_letter_routing_key."""
    if chosen is not None:
        return [chosen]
    return letter.keys if exchange else [node_name(letter.vhost, key) for key in letter.keys]


def own_key(origin: str, came_by: str, key: str, exchange: str) -> str:
    """The key of a letter that did not come by AMQP: it is its own; only the default exchange takes one that named no
    queue before as the name of a queue of the same vhost.
    """
    vhost = amqp_name(origin)[0]
    return node_name(vhost, key) if came_by and not exchange and vhost != DEFAULT_VHOST else key


def said_key(exchange: str, key: str) -> str:
    """The routing key that a letter says it came by."""
    return key if exchange else amqp_name(key)[1]


def packed(letter: Letter, headers: dict[str, Any], chosen: str | None) -> bytes:
    """Its properties on the wire, with the headers of `dead_letters.with_death`."""
    told = dict(headers)
    if chosen is not None:
        told.pop("CC", None)
    newest, *others = told["x-death"]
    if newest["count"] == 1 and "expiration" in letter.properties:
        newest = {**newest, "original-expiration": letter.properties["expiration"]}
    told["x-death"] = [amqp_metadata.death(newest), *others]
    properties = {name: value for name, value in letter.properties.items() if name != "expiration"}
    return _core.amqp_properties_bytes({**properties, "headers": told})
