"""Arguments of queues as kombu and RabbitMQ name them, as those of Warren."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warren.engine.amqp.names import DEFAULT_VHOST, node_name
from warren.engine.errors import UsageError
from warren.engine.saying import shown


def _from_milliseconds(value: Any) -> float:
    return max(0.001, float(value) / 1000)


def _as_it_is(value: Any) -> Any:
    return value


_NAMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "x-message-ttl": ("message_ttl", _from_milliseconds),
    "x-expires": ("expires", _from_milliseconds),
    "x-max-length": ("max_length", int),
    "x-max-length-bytes": ("max_length_bytes", int),
    "x-overflow": ("overflow", _as_it_is),
    "x-dead-letter-exchange": ("dead_letter_exchange", _as_it_is),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", _as_it_is),
    "x-max-priority": ("max_priority", int),
    "x-delivery-limit": ("delivery_limit", int),
    "x-single-active-consumer": ("single_active_consumer", bool),
}
#: they choose among implementations, and there is one
_TYPES = ("classic", "quorum")


def queue_arguments(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of Queue.queue_arguments. Those of Warren's own names stay. Raises UsageError."""
    found: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if value is None or name in ("x-queue-mode", "x-queue-version"):
            continue
        if name == "x-queue-type":
            if value not in _TYPES:
                raise UsageError(f"x-queue-type {shown(value)}: tasks are in queues, of type {' or '.join(_TYPES)}")
            continue
        known = _NAMES.get(name)
        if known is None:
            if name.startswith("x-"):
                raise UsageError(f"queue argument {shown(name)} is not known: known are {', '.join(sorted(_NAMES))}")
            found[name] = value
            continue
        try:
            found[known[0]] = known[1](value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"queue argument {name}={shown(value)}: {error}") from None
    exchange, key = found.get("dead_letter_exchange"), found.get("dead_letter_routing_key")
    if isinstance(exchange, str):  # names as the gateway maps them
        found["dead_letter_exchange"] = node_name(DEFAULT_VHOST, exchange)
        if isinstance(key, str) and not exchange:
            found["dead_letter_routing_key"] = node_name(DEFAULT_VHOST, key)
    return found
