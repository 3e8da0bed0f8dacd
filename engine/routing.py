"""Where a message goes: exchanges, bindings, routing keys → queues. Pure rules over one version of the catalog.

    direct   queues bound with exactly this routing key
    fanout   every bound queue, whatever the key
    topic    keys and patterns are words between dots; `*` stands for one word, `#` for any number, none too
    ''       the default exchange: the queue that is named by the routing key

Invariants
  A message goes to a queue once, however many of its bindings match.
  A Router belongs to one catalog; another version gets another Router, so nothing in its cache is ever stale.
  The cache is bounded: keys are chosen by publishers.
"""

from __future__ import annotations

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


class Router:
    """Routes by one version of the catalog; a route is worked out once for each exchange and routing key."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.version = catalog.version
        self._direct: dict[tuple[str, str], set[str]] = {}
        self._fanout: dict[str, set[str]] = {}
        self._topic: dict[str, TopicTree] = {}
        self._cache: dict[tuple[str, str], tuple[QueueDeclaration, ...]] = {}
        for binding in catalog.bindings:
            kind = catalog.exchanges[binding.exchange].type
            if kind == "direct":
                self._direct.setdefault((binding.exchange, binding.routing_key), set()).add(binding.queue)
            elif kind == "fanout":
                self._fanout.setdefault(binding.exchange, set()).add(binding.queue)
            else:
                self._topic.setdefault(binding.exchange, TopicTree()).add(binding.routing_key, binding.queue)

    def route(self, exchange: str, routing_key: str) -> tuple[QueueDeclaration, ...]:
        """The queues that a message goes to, by id; empty when there is none. Raises ExchangeNotFound."""
        found = self._cache.get((exchange, routing_key))
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            names = self._names(exchange, routing_key)
            queues = (self.catalog.queues[name] for name in names)
            found = self._cache[exchange, routing_key] = tuple(sorted(queues, key=lambda item: item.id))
        return found

    def _names(self, exchange: str, routing_key: str) -> set[str]:
        if not exchange:
            named = self.catalog.queues.get(routing_key)
            return set() if named is None or named.hidden else {routing_key}
        kind = self.catalog.exchange(exchange).type
        if kind == "direct":
            return self._direct.get((exchange, routing_key), set())
        if kind == "fanout":
            return self._fanout.get(exchange, set())
        tree = self._topic.get(exchange)
        return tree.match(routing_key) if tree is not None else set()
