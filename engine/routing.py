"""Where a message goes: exchanges, bindings, routing keys → queues. Pure rules over one version of the catalog.

    direct   queues bound with exactly this routing key
    fanout   every bound queue, whatever the key
    topic    keys and patterns are words between dots; `*` stands for one word, `#` for any number, none too
    headers  queues whose binding arguments match the headers, whatever the key; x-match says how:
             all (default), any: arguments whose names begin with "x-" do not count; all-with-x, any-with-x: they do.
             An argument matches a header of its name with the same type and value; None matches any value.
    ''       the default exchange: the queue that is named by the routing key

Invariants
  A message goes to a queue once, however many of its bindings match.
  A Router belongs to one catalog; another version gets another Router, so nothing in its cache is ever stale.
  The cache is bounded: keys are chosen by publishers. Routes that depend on headers are worked out every time.
  What an exchange cannot route goes to its alternate, as if it had been published there; each exchange is tried once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warren.engine.catalog import Catalog, QueueDeclaration

#: answers kept; when there are more, all are forgotten
CACHE_MAX = 65536


class TopicTree:
    """Patterns of a topic exchange, as a tree of words: a match costs words of the key, not patterns."""

    __slots__ = ("_children", "_queues")

    def __init__(self) -> None:
        self._children: dict[str, TopicTree] = {}
        self._queues: set[str] = set()

    def add(self, pattern: str, queue: str) -> None:
        """Bind a queue to a pattern."""
        node = self
        for word in pattern.split("."):
            node = node._children.setdefault(word, TopicTree())
        node._queues.add(queue)

    def match(self, key: str) -> set[str]:
        """The queues that have a pattern that matches the key."""
        words = key.split(".")
        found: set[str] = set()
        seen: set[tuple[int, int]] = set()  # (node, words used): `#.#.#` would visit the same place again and again
        waiting: list[tuple[TopicTree, int]] = [(self, 0)]
        while waiting:
            node, at = waiting.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            if at == len(words):
                found |= node._queues
            elif (exact := node._children.get(words[at])) is not None and words[at] not in ("*", "#"):
                waiting.append((exact, at + 1))
            if at < len(words) and (one := node._children.get("*")) is not None:
                waiting.append((one, at + 1))
            if (any_number := node._children.get("#")) is not None:
                waiting.extend((any_number, skipped) for skipped in range(at, len(words) + 1))
        return found


class HeadersMatch:
    """What one binding of a headers exchange wants of the headers of a message."""

    __slots__ = ("_any", "_wanted")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        match = str(arguments.get("x-match", "all"))
        self._any = match.startswith("any")
        with_x = match.endswith("-with-x")
        self._wanted = {
            key: (_kind(value), value)
            for key, value in arguments.items()
            if key != "x-match" and (with_x or not key.startswith("x-"))
        }

    def matches(self, headers: Mapping[str, Any]) -> bool:
        """Whether a message with these headers goes to the queue."""
        found = (
            key in headers and (value is None or (_kind(headers[key]) == kind and headers[key] == value))
            for key, (kind, value) in self._wanted.items()
        )
        return any(found) if self._any else all(found)


def _kind(value: Any) -> type:
    """1, 1.0 and True are equal in Python, and different headers."""
    return type(value)


class Router:
    """Routes by one version of the catalog; a route is worked out once for each exchange and routing key."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.version = catalog.version
        self._direct: dict[tuple[str, str], set[str]] = {}
        self._fanout: dict[str, set[str]] = {}
        self._topic: dict[str, TopicTree] = {}
        self._headers: dict[str, list[tuple[HeadersMatch, str]]] = {}
        self._cache: dict[tuple[str, str], tuple[QueueDeclaration, ...]] = {}
        #: exchanges whose routes depend on headers, their own or those of an alternate
        self.by_headers = {name for name in catalog.exchanges if self._asks_headers(name)}
        for binding in catalog.bindings:
            kind = catalog.exchanges[binding.exchange].type
            if kind == "direct":
                self._direct.setdefault((binding.exchange, binding.routing_key), set()).add(binding.queue)
            elif kind == "fanout":
                self._fanout.setdefault(binding.exchange, set()).add(binding.queue)
            elif kind == "headers":
                match = HeadersMatch(binding.arguments)
                self._headers.setdefault(binding.exchange, []).append((match, binding.queue))
            else:
                self._topic.setdefault(binding.exchange, TopicTree()).add(binding.routing_key, binding.queue)

    def route(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> tuple[QueueDeclaration, ...]:
        """The queues that a message goes to, by id; empty when there is none. Raises ExchangeNotFound."""
        if exchange in self.by_headers:
            return self._queues(exchange, routing_key, headers or {})
        found = self._cache.get((exchange, routing_key))
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            found = self._cache[exchange, routing_key] = self._queues(exchange, routing_key, {})
        return found

    def _queues(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> tuple[QueueDeclaration, ...]:
        names: set[str] = set()
        for tried in self._chain(exchange):
            names = self._names(tried, routing_key, headers)
            if names:
                break
        return tuple(sorted((self.catalog.queues[name] for name in names), key=lambda item: item.id))

    def _chain(self, exchange: str) -> list[str]:
        """The exchange, its alternate, the alternate's alternate, …; those that are there, each once."""
        self.catalog.exchange(exchange)
        chain: list[str] = []
        following: str | None = exchange
        while following is not None and following not in chain and following in self.catalog.exchanges:
            chain.append(following)
            following = self.catalog.exchanges[following].alternate
        return chain

    def _asks_headers(self, exchange: str) -> bool:
        return any(self.catalog.exchanges[name].type == "headers" for name in self._chain(exchange))

    def _names(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> set[str]:
        if not exchange:
            named = self.catalog.queues.get(routing_key)
            return set() if named is None or named.hidden else {routing_key}
        kind = self.catalog.exchange(exchange).type
        if kind == "direct":
            return self._direct.get((exchange, routing_key), set())
        if kind == "fanout":
            return self._fanout.get(exchange, set())
        if kind == "headers":
            return {queue for match, queue in self._headers.get(exchange, ()) if match.matches(headers)}
        tree = self._topic.get(exchange)
        return tree.match(routing_key) if tree is not None else set()
