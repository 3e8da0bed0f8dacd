"""Where a message goes: exchanges, bindings, routing keys → queues and topics. Pure rules over one version of the
catalog.

    direct   queues bound with exactly this routing key
    fanout   every bound queue, whatever the key
    topic    keys and patterns are words between dots, the empty one has no word; `*` stands for one word, `#` for any
             number, none too
    headers  queues whose binding arguments match the headers, whatever the key; x-match says how:
             all (default), any: arguments whose names begin with "x-" do not count; all-with-x, any-with-x: they do.
             An argument matches a header of its name with the same type and value; None matches any value.
    ''       the default exchange: the queue that is named by the routing key, or else the topic that is reached by_name

A binding may lead to another exchange: what matches goes on from there, as if it had been published there.

Invariants
  A message goes to a queue, and to a topic, once, however many of its bindings match. Key and tag of a topic's record
  are made as its first binding says, in the order of (exchange, routing key, conditions).
  A Router belongs to one catalog, and follows each of its changes: routes that a change concerns are forgotten, and
  only these, so nothing in its cache is ever stale.
  The cache is bounded: keys are chosen by publishers. Routes that depend on headers are worked out every time.
  What no binding of an exchange matches goes to its alternate, as if it had been published there, however it came to
  this exchange. A binding to another exchange matches also when nothing is bound there. Each exchange is asked once, so
  circles end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warren.engine.catalog.catalog import Binding, Catalog, QueueDeclaration, Step
from warren.engine.catalog.exchanges import ExchangeBinding, ExchangeDeclaration
from warren.engine.catalog.topic_bindings import TopicBinding, TopicRoute

#: where a binding leads: a queue, by its name, or the topic or exchange of a binding
Destination = str | TopicBinding | ExchangeBinding
#: what a binding is, whatever it leads to
AnyBinding = Binding | TopicBinding | ExchangeBinding

#: answers kept; when there are more, all are forgotten
CACHE_MAX = 65536
_NONE: Mapping[str, Any] = {}
_NOWHERE: Collection[Any] = ()


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
                if node._one is None:
                    node._one = TopicTree()
                node = node._one
            elif word == "#":
                if node._any is None:
                    node._any = TopicTree(repeats=True)
                node = node._any
            else:
                if word not in node._children:
                    node._children[word] = TopicTree()
                node = node._children[word]
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
            if not last.is_empty:
                return
            if word == "*":
                node._one = None
            elif word == "#":
                node._any = None
            else:
                del node._children[word]
            last = node

    @property
    def is_empty(self) -> bool:
        """There is no pattern in it: a place that has none is removed at once, so what lies below need not be asked."""
        return not (self._queues or self._children) and self._one is None and self._any is None

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
        self._direct: dict[tuple[str, str], dict[Destination, int]] = {}  # → queue → its bindings
        self._fanout: dict[str, dict[Destination, int]] = {}  # exchange → queue → its bindings
        self._topic: dict[str, TopicTree] = {}
        self._headers: dict[str, dict[AnyBinding, HeadersMatch]] = {}
        self._cache: dict[str, dict[str, Routed]] = {}
        self._cached_n = 0
        self._leads: dict[str, dict[str, int]] = {}  # exchange → where its alternate and its bindings lead, how often
        self._led_to: dict[str, dict[str, int]] = {}  # exchange → whose alternates and bindings lead there
        self._types: dict[str, str] = {}  # of each exchange after the steps so far, when the catalog is further on
        for exchange in catalog.exchanges.values():
            self._exchange(exchange, gone=False)
        for binding in catalog.bindings:
            self._binding(binding, gone=False)
        for bound in catalog.topic_bindings:
            self._binding(bound, gone=False)
        for onward in catalog.exchange_bindings:
            self._binding(onward, gone=False)
        #: exchanges whose routes depend on headers, their own or those of one that they lead to
        self.by_headers: set[str] = set()
        for exchange in catalog.exchanges.values():
            if exchange.type == "headers":
                self.by_headers |= self._leading_to(exchange.name) & catalog.exchanges.keys()

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
            elif step.topic is not None:
                stale.keys.add(("", step.topic.name))
            elif step.exchange is not None:
                self._exchange(step.exchange, step.gone)
                stale.exchanges |= self._leading_to(step.exchange.name)
            elif (binding := step.binding or step.topic_binding or step.exchange_binding) is not None:
                self._binding(binding, step.gone)
                leading = self._leading_to(binding.exchange)
                if self._types[binding.exchange] == "direct" and step.exchange_binding is None:
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
        """The exchange, and all whose alternates and bindings lead to it."""
        return _closure(self._led_to, exchange)

    def _exchange(self, exchange: ExchangeDeclaration, gone: bool) -> None:
        if gone:
            del self._types[exchange.name]
        else:
            self._types[exchange.name] = exchange.type
        if exchange.alternate is not None:
            self._lead(exchange.name, exchange.alternate, gone)

    def _lead(self, source: str, destination: str, gone: bool) -> None:
        """One exchange leads to another, by one more or one less binding or alternate."""
        for index, key, value in ((self._leads, source, destination), (self._led_to, destination, source)):
            _count(index.setdefault(key, {}), value, gone)
            if not index[key]:
                del index[key]

    def _binding(self, binding: AnyBinding, gone: bool) -> None:
        exchange, queue = binding.exchange, _destination(binding)
        kind = self._types[exchange]
        if isinstance(binding, ExchangeBinding):
            self._lead(exchange, binding.destination, gone)
        if kind == "direct":
            key = (exchange, binding.routing_key)
            _count(self._direct.setdefault(key, {}), queue, gone)
            if not self._direct[key]:
                del self._direct[key]
        elif kind == "fanout":
            _count(self._fanout.setdefault(exchange, {}), queue, gone)
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
            return self._routed(exchange, (routing_key,), headers or {})
        found = self._cache.get(exchange, _NONE).get(routing_key)
        if found is None:
            found = self._routed(exchange, (routing_key,), {})
            if self._cached_n >= CACHE_MAX:
                self._cache, self._cached_n = {}, 0
            self._cache.setdefault(exchange, {})[routing_key] = found
            self._cached_n += 1
        return found

    def route_all(self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, Any]) -> Routed:
        """Where a message with several routing keys goes: to an alternate exchange when none of them leads anywhere.
        Raises ExchangeNotFound.
        """
        return self._routed(exchange, routing_keys, headers)

    def _routed(self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, Any]) -> Routed:
        catalog = self.catalog
        catalog.exchange(exchange)
        names: set[str] = set()
        bound: list[TopicBinding] = []
        asked, waiting = {exchange}, [exchange]
        while waiting:
            here = waiting.pop()
            found = self._destinations(here, routing_keys, headers)
            following: list[str] = []
            for item in found:
                if isinstance(item, str):
                    names.add(item)
                elif isinstance(item, TopicBinding):
                    bound.append(item)
                else:
                    following.append(item.destination)
            alternate = catalog.exchanges[here].alternate
            if not found and alternate in catalog.exchanges:
                following.append(alternate)
            for name in following:
                if name not in asked:
                    asked.add(name)
                    waiting.append(name)
        return Routed(
            tuple(sorted((catalog.queues[name] for name in names), key=lambda item: item.id)), self._topics(bound)
        )

    def _topics(self, bound: list[TopicBinding]) -> tuple[TopicRoute, ...]:
        """The topics of these bindings, each as its first one says."""
        first: dict[str, TopicBinding] = {}
        for item in sorted(bound):
            first.setdefault(item.topic, item)
        routes = (TopicRoute(self.catalog.topics[item.topic], item.key, item.tag) for item in first.values())
        return tuple(sorted(routes, key=lambda item: item.topic.id))

    def _asks_headers(self, exchange: str) -> bool:
        return any(self._types.get(name) == "headers" for name in _closure(self._leads, exchange))

    def _destinations(
        self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, Any]
    ) -> Collection[Destination]:
        if len(routing_keys) == 1:
            (key,) = routing_keys
            return self._matches(exchange, key, headers)
        return {item for key in routing_keys for item in self._matches(exchange, key, headers)}

    def _matches(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Collection[Destination]:
        if not exchange:
            return self._named(routing_key)
        kind = self.catalog.exchanges[exchange].type
        if kind == "direct":
            return self._direct.get((exchange, routing_key), _NOWHERE)
        if kind == "fanout":
            return self._fanout.get(exchange, _NOWHERE)
        if kind == "headers":
            matches = self._headers.get(exchange, {}).items()
            return {_destination(item) for item, match in matches if match.matches(headers)}
        tree = self._topic.get(exchange)
        return tree.match(routing_key) if tree is not None else set()

    def _named(self, routing_key: str) -> tuple[Destination, ...]:
        """Where the default exchange leads."""
        named = self.catalog.queues.get(routing_key)
        if named is not None:
            return () if named.hidden else (routing_key,)
        topic = self.catalog.topics.get(routing_key)
        return (TopicBinding("", topic.name, routing_key),) if topic is not None and topic.by_name else ()


def _destination(binding: AnyBinding) -> Destination:
    return binding.queue if isinstance(binding, Binding) else binding


def _closure(index: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """What can be reached from there, itself too."""
    found, waiting = {start}, [start]
    while waiting:
        for name in index.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def _count(counts: dict[Any, int], key: Any, gone: bool) -> None:
    """One more, or one less."""
    counts[key] = counts.get(key, 0) + (-1 if gone else 1)
    if not counts[key]:
        del counts[key]
