"""Many messages for an exchange, checked before any of them is sent: all at once, or in parts (asyncio).

A route is looked for when what it leads to is sent, because queues come and go; which durability is possible is decided
for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from warren.engine._core import AttachmentLost, Confirm
from warren.engine.catalog import metadata
from warren.engine.catalog.names import check_routing_key
from warren.engine.errors import UsageError
from warren.engine.saying import counted
from warren.workers.client import topic_parts
from warren.workers.client.arguments import checked_flag, level_of, listed
from warren.workers.client.client import Client
from warren.workers.client.publish import Body, Durability, Publish
from warren.workers.client.routes import Route
from warren.workers.faces.queues import time_left


@dataclass(frozen=True)
class Destination:
    """Where messages go: an exchange, with one routing key for all or one for each. `mandatory`: some queue has to take
    each."""

    exchange: str
    routing_key: str
    routing_keys: Sequence[str] | None
    mandatory: bool


class Many:
    """The messages of one publish_many."""

    def __init__(
        self, client: Client, bodies: Iterable[Body], to: Destination, durability: Durability | None, said: Publish
    ) -> None:
        """Raises UsageError."""
        self.bodies: Sequence[Body] = bodies if isinstance(bodies, (list, tuple)) else listed(bodies, "bodies")
        count = len(self.bodies)
        keys = [to.routing_key] * count if to.routing_keys is None else listed(to.routing_keys, "routing_keys")
        if len(keys) != count:
            raise UsageError(f"routing_keys: {len(keys)} for {counted(count, 'body', 'bodies')}")
        self._client = client
        self._exchange = to.exchange
        self._keys = keys
        self._durability = durability
        self._said = said
        self._options = said.options_each(count)
        self._headers = said.headers_each(count)
        self._same = to.routing_keys is None and (said.headers is None or isinstance(said.headers, Mapping))
        self._meta: Any = None  #: of each, or of all; None: that of the route
        self._packed = False
        self._find = client.mandatory_route if checked_flag(to.mandatory, "mandatory") else client.route

    def send(self, timeout: float | None, wait: bool) -> Confirm | None:
        """All of them, in one call of the core."""
        while True:
            routes = self._routes(0, len(self.bodies))
            level = level_to(self._durability, set(routes), self._said)
            core = (routes[0].core if routes else []) if self._same else [route.core for route in routes]
            meta = self._meta_of(routes)
            told = self._told(routes, len(self.bodies), meta, self._options)
            try:
                if told is None:
                    return self._client.core.publish_many(core, self.bodies, level, meta, timeout, wait, self._options)
                return self._client.core.publish_many(
                    core, self.bodies, level, meta, timeout, wait, self._options, told
                )
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)

    # -- in parts -----------------------------------------------------------------------------------------------

    def level(self) -> int:
        """The level of all of them together, by the catalog of now. Raises UsageError, Unroutable, ExchangeNotFound."""
        return level_to(self._durability, set(self._routes(0, len(self.bodies))), self._said)

    def meta_bytes(self) -> list[int]:
        """Bytes of the metadata of each. Raises UsageError, MessageTooLarge."""
        meta = self._meta_of(self._routes(0, 1) if self.bodies else [])
        return [len(item) for item in meta] if isinstance(meta, list) else [len(meta or b"")] * len(self.bodies)

    def send_part(self, start: int, end: int, level: int) -> Confirm:
        """Some of them; it waits for no room. Raises AttachmentLost, and what refuses them."""
        routes = self._routes(start, end)
        meta, options = self._meta_of(routes), self._options
        meta = meta[start:end] if isinstance(meta, list) else meta
        options = options[start:end] if isinstance(options, list) else options
        confirm = self._client.core.publish_many(
            routes[0].core if self._same else [route.core for route in routes],
            self.bodies[start:end],
            level,
            meta,
            0.0,
            False,
            options,
            self._told(routes, end - start, meta, options, start),
        )
        assert confirm is not None
        return confirm

    def topics(self) -> tuple[int, list[int]]:
        """To how many topics one of them goes at most, and the bytes that each takes for them beside its body. Raises
        MessageTooLarge when a topic has no room for one of them.
        """
        count = len(self.bodies)
        routes = self._routes(0, count)
        most = max((len(route.topics) for route in routes), default=0)
        told = self._told(routes, count, self._meta_of(routes), self._options) if most else None
        if told is None:
            return 0, [0] * count
        limit = self._client.attachment().record_limit
        each = [told] * count if isinstance(told, tuple) else told
        for at, (body, parts) in enumerate(zip(self.bodies, each, strict=True)):
            if parts is not None:
                route = routes[at] if len(routes) > 1 else routes[0]
                topic_parts.check_room(route, parts, _size(body), limit)
        return most, [topic_parts.bytes_of(parts) for parts in each]

    # -- routes -------------------------------------------------------------------------------------------------

    def _told(
        self, routes: list[Route], count: int, meta: Any, options: Any, start: int = 0
    ) -> topic_parts.Parts | list[topic_parts.Parts | None] | None:
        """What topics get of `count` messages from `start` on; None: they go to none."""
        if not any(route.topics for route in routes):
            return None
        said, end = self._said, start + count
        if start or count < len(self.bodies):
            ttl = said.ttl[start:end] if isinstance(said.ttl, (list, tuple)) else said.ttl
            said = msgspec.structs.replace(said, ttl=ttl)
        return topic_parts.parts_each(self._client.turns, routes, count, meta, options, said)

    def _routes(self, start: int, end: int) -> list[Route]:
        """The route of each of them, or one for all that are the same."""
        find, exchange = self._find, self._exchange
        if self._same:
            return [find(exchange, key, self._headers[0]) for key in self._keys[:1]]
        keys, headers = self._keys[start:end], self._headers[start:end]
        if exchange in self._client.router().by_headers:
            return [find(exchange, key, own) for key, own in zip(keys, headers, strict=True)]
        known = {key: find(exchange, key, headers[0]) for key in _distinct(keys)}
        return [known[key] for key in keys]

    def _meta_of(self, routes: list[Route]) -> Any:
        if not self._packed:  # after the routes were looked for: what is wrong with a routing key is told there
            self._packed = True
            if self._same and self._said.is_same:
                self._meta = self._said.packed(self._exchange, self._keys[0]) if self._keys else None
            else:
                told = self._said.told_each(len(self._keys))
                self._meta = [
                    metadata.encode(self._exchange, key, *row) for key, row in zip(self._keys, told, strict=True)
                ]
        return routes[0].meta if self._meta is None and routes else self._meta


def level_to(durability: Durability | None, routes: Iterable[Route], said: Publish) -> int:
    """The level of a durability for what is published to these routes. Raises UsageError."""
    known = list(routes)
    if any(route.topics for route in known):
        return level_of(durability, True, "")  # a log keeps every message
    if not any(route.queues for route in known):
        return level_of(durability, True, "nothing") if durability is not None else 0
    return said.level(durability, any(route.durable for route in known), "every queue that this goes to is transient")


def _size(body: Any) -> int:
    """Bytes of a body; of what is none 0: who sends it says so."""
    try:
        return memoryview(body).nbytes
    except TypeError:
        return 0


def _distinct(keys: Sequence[str]) -> set[str]:
    try:
        return set(keys)
    except TypeError:  # one of them is no str
        return {check_routing_key(key) for key in keys}
