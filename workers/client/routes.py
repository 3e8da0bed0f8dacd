"""Where messages of one exchange and routing key go, as a client keeps it: for the core, and what of it lasts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from warren.engine import _core
from warren.engine.catalog import metadata
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.topic_bindings import TopicRoute
from warren.engine.errors import UsageError
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import carried


@dataclass(frozen=True, eq=False)
class Route:
    """Where messages of one exchange and routing key go: for the core, and what of it lasts."""

    core: _core.Route
    queues: tuple[QueueDeclaration, ...]
    durable: bool
    meta: bytes
    topics: tuple[TopicRoute, ...] = ()

    @functools.cached_property
    def servers(self) -> tuple[int, ...]:
        """The queue workers that it leads to."""
        return tuple(sorted({SERVER_WORKER_FIRST + queue.worker for queue in self.queues}))

    @functools.cached_property
    def plain(self) -> tuple[tuple[TopicRoute, str | None, bytes], ...]:
        """For each topic the key and the properties of a message of which nothing is said but where it goes."""
        return records_of(self.topics, carried.message(metadata.decode(self.meta)))


def records_of(
    topics: Sequence[TopicRoute], message: carried.Message
) -> tuple[tuple[TopicRoute, str | None, bytes], ...]:
    """For each topic the key of the message's record, and its properties. Raises MessageTooLarge, UsageError (no key
    for a compacted one).
    """
    common = carried.properties_of(message)
    found = []
    for item in topics:
        key, named = carried.named(item, message)
        if key is None and item.topic.compacted:
            raise UsageError(
                f"it goes to topic {item.topic.name!r}, which is compacted, and has no {item.key}, its key there"
            )
        if len(named) + len(common) > PROPERTIES_BYTES_MAX:
            raise carried.too_large()
        found.append((item, key, named + common))
    return tuple(found)
