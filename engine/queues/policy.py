"""What a queue's arguments ask of the engine."""

from __future__ import annotations

from typing import Any

from warren.engine import _core
from warren.engine.catalog.arguments import QueueArguments

#: limits that hold when they are 0; None: there is none
_ZERO_COUNTS = frozenset({"message_ttl_ms", "max_length", "max_length_bytes", "delivery_limit"})


def give_policy(engine: _core.QueueEngine, queue: int, policy: QueueArguments, companion: int) -> None:
    """What a queue's arguments ask of the engine; a queue without any stays a plain one. `companion`: queue of its dead
    letters, 0: none."""
    wanted: dict[str, Any] = {
        "message_ttl_ms": policy.message_ttl_ms,
        "max_length": policy.max_length,
        "max_length_bytes": policy.max_length_bytes,
        "deduplication_ms": policy.deduplication_window_ms,
        "delivery_limit": policy.delivery_limit,
        "dead_letters": companion,
        "max_priority": policy.max_priority,
        "reject_publish": policy.rejects_publish,
        "single_active": policy.single_active_consumer,
        "refused_die": policy.refused_die,
    }
    if any(value or (value is not None and name in _ZERO_COUNTS) for name, value in wanted.items()):
        engine.set_policy(queue, **wanted)
    if policy.ack_timeout_ms:
        engine.set_ack_timeout(queue, policy.ack_timeout_ms)
