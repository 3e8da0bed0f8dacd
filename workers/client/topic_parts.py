"""What topics get of messages that are published to exchanges: for each topic of a route the queue there, and the
properties of the record, as the core takes them.

A key decides the queue, as it does for `Topic.append`; messages without one go to the queues in turns. All of it is
made before anything is sent, so what has no room in a record refuses the message everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from warren.engine import _core
from warren.engine.catalog import metadata
from warren.engine.catalog.metadata import PRIORITY_SHIFT, Metadata, Options
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import MessageTooLarge
from warren.workers.client import carried
from warren.workers.client.publish import Publish
from warren.workers.client.routes import Route, records_of

#: for each topic of a route: (queue, properties)
Parts = tuple[tuple[int, bytes], ...]


class Turns:
    """Which queue of a topic a message goes to. Two threads may get the same turn, which does no harm."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}  # by id of the topic

    def queue(self, topic: TopicDeclaration, key: str | None) -> int:
        """The queue that messages with this key go to, as `Topic.append` has it; without one: the next in turn."""
        if key is not None:
            return abs(_core.tags_code(key.encode())) % topic.queues
        turn = self._next.get(topic.id)
        if turn is None:  # processes do not all begin with the same queue
            turn = os.getpid()
        self._next[topic.id] = turn + 1
        return turn % topic.queues


def parts_of(turns: Turns, route: Route, meta: bytes | None, options: Options | None, ttl: Any) -> Parts:
    """What the topics of a route get of a message with this metadata. Raises MessageTooLarge, UsageError (no key for a
    compacted one).
    """
    if options is None and ttl is None and meta is route.meta:
        kept = route.plain  # its metadata is the route's own: nothing depends on the message
    else:
        told = metadata.decode(meta) if meta is not None else Metadata("", "")
        expires, due, _key, persistent = options or (0, 0, None, True)
        life = None if ttl is None else round(ttl * 1000)
        kept = records_of(
            route.topics, carried.message(told, expires >> PRIORITY_SHIFT, life, due, persistent is not False)
        )
    return tuple((turns.queue(item.topic, key), packed) for item, key, packed in kept)


def parts_each(
    turns: Turns, routes: Sequence[Route], count: int, meta: Any, options: Any, said: Publish
) -> Parts | list[Parts | None]:
    """The same for `count` messages: `routes`, `meta`, `options`: one for all, or a list with one for each. A tuple is
    for all.
    """
    ttls = metadata.each(said.ttl, count, "ttl")
    if len(routes) == 1 and not isinstance(meta, list) and not isinstance(options, list):
        return parts_of(turns, routes[0], meta, options, ttls[0] if count else None)
    found: list[Parts | None] = []
    for at in range(count):
        route = routes[at] if len(routes) > 1 else routes[0]
        own = meta[at] if isinstance(meta, list) else meta
        chosen = options[at] if isinstance(options, list) else options
        found.append(parts_of(turns, route, own, chosen, ttls[at]) if route.topics else None)
    return found


def bytes_of(parts: Parts | None) -> int:
    """Bytes that the parts of a message take beside its body."""
    return 0 if parts is None else sum(len(properties) for _queue, properties in parts)


def check_room(route: Route, parts: Parts, body_bytes: int, limit: tuple[int, str]) -> None:
    """Raises MessageTooLarge when a topic has no room for a record of this; `limit`: Attachment.record_limit."""
    for item, (_queue, properties) in zip(route.topics, parts, strict=True):
        name = item.topic.name
        try:
            size = _core.record_size(0, len(name.encode()), len(properties), body_bytes)
        except ValueError:
            size = limit[0] + 1
        if size > limit[0]:
            raise MessageTooLarge(
                f"it goes to topic {name!r}: the message takes {size} bytes in the log, which takes {limit[0]} at "
                f"most, by the setting {limit[1]}"
            )
