"""Where a message goes: exchanges, bindings, routing keys → queues and topics. Pure rules over one version of the
catalog.

    direct   queues bound with exactly this routing key
    fanout   every bound queue, whatever the key
    topic    keys and patterns are words between dots, the empty one has no word; `*` stands for one word, `#` for any
             number, none too
    headers  queues whose binding arguments match the headers, whatever the key; x-match says how:
             all (default), any: arguments whose names begin with "x-" do not count; all-with-x, any-with-x: they do.
             An argument matches a header of its name with the same type and value; None matches any value.
    ''       the default exchange: the queue that is named by the routing key

Invariants
  A message goes to a queue, and to a topic, once, however many of its bindings match. Key and tag of a topic's record
  are made as its first binding says, in the order of (exchange, routing key, conditions).
  A Router belongs to one catalog, and follows each of its changes: routes that a change concerns are forgotten, and
  only these, so nothing in its cache is ever stale.
  The cache is bounded: keys are chosen by publishers. Routes that depend on headers are worked out every time.
  What an exchange cannot route goes to its alternate, as if it had been published there; each exchange is tried once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warren.engine.catalog.catalog import Binding, Catalog, ExchangeDeclaration, QueueDeclaration, Step
from warren.engine.catalog.topic_bindings import TopicBinding, TopicRoute

#: where a binding leads: a queue, by its name, or the topic of a binding
Destination = str | TopicBinding

#: answers kept; when there are more, all are forgotten
CACHE_MAX = 65536
_NONE: Mapping[str, Any] = {}


class Routed(NamedTuple):
    """Where a message goes: queues by id, topics by id."""

    queues: tuple[QueueDeclaration, ...]
    topics: tuple[TopicRoute, ...]

    def __bool__(self) -> bool:
        """False when it goes nowhere."""
        return bool(self.queues or self.topics)


class TopicTree:
    """Patterns of a topic exchange, as a tree of words.

    A match goes through the words of the key once, with the set of places in the tree that the words so far lead to:
    it costs at most words × places, whatever the patterns. Wildcards beside each other are put in one order, `*` before
    `#` and one `#` for several, which means the same.
    """

    __slots__ = ("_any", "_children", "_one", "_queues", "_repeats")

    def __init__(self, repeats: bool = False) -> None:
        self._children: dict[str, TopicTree] = {}
        self._one: TopicTree | None = None
        self._any: TopicTree | None = None
        self._queues: dict[Destination, int] = {}  # how many patterns of the queue end here
        self._repeats = repeats  # the place after a `#`, which takes any number of words

    def add(self, pattern: str, queue: Destination) -> None:
        """Bind a queue to a pattern."""
        node = self
        for word in _canonical(pattern):
            if word == "*":
                node._one = node = node._one or TopicTree()
            elif word == "#":
                node._any = node = node._any or TopicTree(repeats=True)
            else:
                node = node._children.setdefault(word, TopicTree())
        node._queues[queue] = node._queues.get(queue, 0) + 1

    def remove(self, pattern: str, queue: Destination) -> None:
        """Take back what `add` did."""
        words = _canonical(pattern)
        path = [self]
        for word in words:
            node = path[-1]
            following = node._one if word == "*" else node._any if word == "#" else node._children[word]
            assert following is not None
            path.append(following)
        last = path[-1]
        last._queues[queue] -= 1
        if not last._queues[queue]:
            del last._queues[queue]
        for node, word in zip(reversed(path[:-1]), reversed(words), strict=True):
            if last:
                return
            if word == "*":
                node._one = None
            elif word == "#":
                node._any = None
            else:
                del node._children[word]
            last = node

    def __bool__(self) -> bool:
        """False when there is no pattern in it."""
        return bool(self._queues or self._children or self._one or self._any)

    def match(self, key: str) -> set[Destination]:
        """Those that have a pattern that matches the key."""
        here = {self} if self._any is None else {self, self._any}
        for word in _words(key):
            there: set[TopicTree] = set()
            for node in here:
                if node._repeats:
                    there.add(node)
                for following in (node._children.get(word), node._one):
                    if following is not None:
                        there.add(following)
                        if following._any is not None:
                            there.add(following._any)
            if not there:
                return set()
            here = there
        return {queue for node in here for queue in node._queues}


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _canonical(pattern: str) -> list[str]:
    """The words of a pattern; of wildcards beside each other first every `*`, then one `#`."""
    words: list[str] = []
    ones, many = 0, False
    for word in [*_words(pattern), None]:
        if word == "*":
            ones += 1
        elif word == "#":
            many = True
        else:
            words += ["*"] * ones + ["#"] * many
            ones, many = 0, False
            if word is not None:
                words.append(word)
    return words


#: what a header can be compared with
_KINDS = (bool, int, float, str)


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
    """1, 1.0 and True are equal in Python, and different headers. What is a str by inheritance is sent as a str."""
    kind = type(value)
    return kind if kind in _KINDS else next((base for base in _KINDS if isinstance(value, base)), kind)


@dataclass
class Stale:
    """Routes that are not true any more: all of some exchanges, and those of some routing keys (exchange, key)."""

    exchanges: set[str] = field(default_factory=set)
    keys: set[tuple[str, str]] = field(default_factory=set)


class Router:
    """Routes by a catalog; a route is worked out once for each exchange and routing key."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._direct: dict[tuple[str, str], set[Destination]] = {}
        self._fanout: dict[str, dict[Destination, int]] = {}  # exchange → queue → its bindings
        self._topic: dict[str, TopicTree] = {}
        self._headers: dict[str, dict[Binding | TopicBinding, HeadersMatch]] = {}
        self._cache: dict[str, dict[str, Routed]] = {}
        self._cached_n = 0
        self._alternate_of: dict[str, set[str]] = {}  # exchange → those whose alternate it is
        self._types: dict[str, str] = {}  # of each exchange after the steps so far, when the catalog is further on
        for exchange in catalog.exchanges.values():
            self._exchange(exchange, gone=False)
        #: exchanges whose routes depend on headers, their own or those of an alternate
        self.by_headers = {name for name in catalog.exchanges if self._asks_headers(name)}
        for binding in catalog.bindings:
            self._binding(binding, gone=False)
        for bound in catalog.topic_bindings:
            self._binding(bound, gone=False)

    @property
    def version(self) -> int:
        """The version of its catalog."""
        return self.catalog.version

    # -- following its catalog ----------------------------------------------------------------------------------

    def follow(self, steps: Iterable[Step]) -> Stale:
        """The catalog has just done these steps: forget what they concern. Returns what was to be forgotten."""
        stale = Stale()
        for step in steps:
            if step.queue is not None:
                stale.keys.add(("", step.queue.name))
            elif step.exchange is not None:
                self._exchange(step.exchange, step.gone)
                stale.exchanges |= self._leading_to(step.exchange.name)
            elif (binding := step.binding or step.topic_binding) is not None:
                self._binding(binding, step.gone)
                leading = self._leading_to(binding.exchange)
                if self._types[binding.exchange] == "direct":
                    stale.keys |= {(exchange, binding.routing_key) for exchange in leading}
                else:
                    stale.exchanges |= leading
        for name in stale.exchanges:
            if name in self.catalog.exchanges and self._asks_headers(name):
                self.by_headers.add(name)
            else:
                self.by_headers.discard(name)
            self._cached_n -= len(self._cache.pop(name, ()))
        for exchange, key in stale.keys:
            if key in self._cache.get(exchange, _NONE):
                del self._cache[exchange][key]
                self._cached_n -= 1
        return stale

    def _leading_to(self, exchange: str) -> set[str]:
        """The exchange, and all whose chain of alternates leads to it."""
        found, waiting = {exchange}, [exchange]
        while waiting:
            for name in self._alternate_of.get(waiting.pop(), ()):
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return found

    def _exchange(self, exchange: ExchangeDeclaration, gone: bool) -> None:
        if gone:
            del self._types[exchange.name]
        else:
            self._types[exchange.name] = exchange.type
        if exchange.alternate is None:
            return
        names = self._alternate_of.setdefault(exchange.alternate, set())
        if not gone:
            names.add(exchange.name)
            return
        names.discard(exchange.name)
        if not names:
            del self._alternate_of[exchange.alternate]

    def _binding(self, binding: Binding | TopicBinding, gone: bool) -> None:
        exchange, queue = binding.exchange, _destination(binding)
        kind = self._types[exchange]
        if kind == "direct":
            key = (exchange, binding.routing_key)
            names = self._direct.setdefault(key, set())
            if not gone:
                names.add(queue)
                return
            names.discard(queue)
            if not names:
                del self._direct[key]
        elif kind == "fanout":
            counts = self._fanout.setdefault(exchange, {})
            counts[queue] = counts.get(queue, 0) + (-1 if gone else 1)
            if not counts[queue]:
                del counts[queue]
        elif kind == "headers":
            matches = self._headers.setdefault(exchange, {})
            if gone:
                del matches[binding]
            else:
                matches[binding] = HeadersMatch(binding.arguments)
        else:
            tree = self._topic.setdefault(exchange, TopicTree())
            if gone:
                tree.remove(binding.routing_key, queue)
            else:
                tree.add(binding.routing_key, queue)

    # -- routing ------------------------------------------------------------------------------------------------

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Routed:
        """The queues and topics that a message goes to; false when there is none. Raises ExchangeNotFound."""
        if exchange in self.by_headers:
            return self._routed(exchange, routing_key, headers or {})
        found = self._cache.get(exchange, _NONE).get(routing_key)
        if found is None:
            found = self._routed(exchange, routing_key, {})
            if self._cached_n >= CACHE_MAX:
                self._cache, self._cached_n = {}, 0
            self._cache.setdefault(exchange, {})[routing_key] = found
            self._cached_n += 1
        return found

    def _routed(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Routed:
        found: set[Destination] = set()
        for tried in self._chain(exchange):
            found = self._destinations(tried, routing_key, headers)
            if found:
                break
        catalog = self.catalog
        names: Iterable[Destination] = found
        topics: tuple[TopicRoute, ...] = ()
        if catalog.topic_bindings:
            bound: dict[str, TopicBinding] = {}
            for item in sorted(item for item in found if isinstance(item, TopicBinding)):
                bound.setdefault(item.topic, item)
            routes = (TopicRoute(catalog.topics[item.topic], item.key, item.tag) for item in bound.values())
            topics = tuple(sorted(routes, key=lambda item: item.topic.id))
            names = (item for item in found if not isinstance(item, TopicBinding))
        return Routed(tuple(sorted((catalog.queues[str(name)] for name in names), key=lambda item: item.id)), topics)

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

    def _destinations(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> set[Destination]:
        if not exchange:
            named = self.catalog.queues.get(routing_key)
            return set() if named is None or named.hidden else {routing_key}
        kind = self.catalog.exchange(exchange).type
        if kind == "direct":
            return self._direct.get((exchange, routing_key), set())
        if kind == "fanout":
            return set(self._fanout.get(exchange, ()))
        if kind == "headers":
            matches = self._headers.get(exchange, {}).items()
            return {_destination(item) for item, match in matches if match.matches(headers)}
        tree = self._topic.get(exchange)
        return tree.match(routing_key) if tree is not None else set()


def _destination(binding: Binding | TopicBinding) -> Destination:
    return binding if isinstance(binding, TopicBinding) else binding.queue
