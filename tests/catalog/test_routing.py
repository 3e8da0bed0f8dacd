"""Goal: messages reach exactly the queues that the rules name. Method: by hand, and against a naive matcher."""

import enum
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.routing import CACHE_MAX, Router, TopicTree
from warren.engine.errors import ExchangeNotFound


class Number(enum.IntEnum):
    FIVE = 5


class Letter(enum.StrEnum):
    FIVE = "5"


def catalog_with(*queues: str) -> Catalog:
    catalog = Catalog()
    for name in queues:
        catalog.declare_queue(name, workers_n=2)
    return catalog


def names(router: Router, exchange: str, key: str) -> list[str]:
    return [queue.name for queue in router.route(exchange, key).queues]


def test_default_exchange_routes_by_queue_name() -> None:
    catalog = catalog_with("a", "b")
    catalog.declare_subscription("a", "s")
    router = Router(catalog)
    assert names(router, "", "a") == ["a"]
    assert names(router, "", "nobody") == []
    assert names(router, "", "a/s") == [], "hidden queues are not reached by name"


def test_direct_wants_the_same_key() -> None:
    catalog = catalog_with("a", "b", "c")
    catalog.declare_exchange("x", type="direct")
    catalog.bind("a", "x", "k")
    catalog.bind("b", "x", "k")
    catalog.bind("c", "x", "other")
    router = Router(catalog)
    assert names(router, "x", "k") == ["a", "b"]
    assert names(router, "x", "other") == ["c"]
    assert names(router, "x", "k.") == []


def test_fanout_ignores_the_key() -> None:
    catalog = catalog_with("a", "b", "c")
    catalog.declare_exchange("x", type="fanout")
    catalog.bind("a", "x", "k")
    catalog.bind("b", "x")
    assert names(Router(catalog), "x", "whatever") == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*", "", False),  # an empty key has no word, as in RabbitMQ
        ("*", ".", False),
        ("*.*", ".", True),
        ("", "", True),
        ("", ".", False),
        ("", "a", False),
        ("#.#", "", True),
        ("#.*", "", False),
        ("#.*", "a", True),
        ("*.#", "a.b", True),
        ("*.*", "a", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b.a", False),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "a.c.b", False),
        ("a.#.d", "a.d", True),
        ("a.#.d", "a.b.c.d", True),
        ("a.*.#", "a", False),
        ("a.*.#", "a.b", True),
        ("#.*.#", "a", True),
        ("*.b", "*.b", True),
        ("a.b", "a.*", False),
        ("a.b", "#", False),
    ],
)
def test_topic_patterns(pattern: str, key: str, matches: bool) -> None:
    tree = TopicTree()
    tree.add(pattern, "q")
    assert bool(tree.match(key)) is matches


def naive(pattern: list[str], words: list[str]) -> bool:
    """The rule, word by word, with nothing clever; remembers what it has tried."""

    @functools.cache
    def from_here(at: int, used: int) -> bool:
        if at == len(pattern):
            return used == len(words)
        if pattern[at] == "#":
            return any(from_here(at + 1, later) for later in range(used, len(words) + 1))
        return used < len(words) and pattern[at] in ("*", words[used]) and from_here(at + 1, used + 1)

    return from_here(0, 0)


def split(text: str) -> list[str]:
    return text.split(".") if text else []


WORDS = st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=6).map(".".join)


@given(st.lists(WORDS, max_size=8), st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=7).map(".".join))
def test_topic_agrees_with_a_naive_matcher(patterns: list[str], key: str) -> None:
    """Also after patterns were taken back, in any order, when what is left of the tree is as small as it can be."""
    tree = TopicTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, f"{number}")
    for kept in range(len(patterns), -1, -1):
        expected = {f"{number}" for number in range(kept) if naive(split(patterns[number]), split(key))}
        assert tree.match(key) == expected
        if kept:
            tree.remove(patterns[kept - 1], f"{kept - 1}")
    assert tree.is_empty


def visits(patterns: list[str], key: str) -> int:
    """Lines that a match executes."""
    tree = TopicTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, f"{number}")
    return lines_of(lambda: tree.match(key))


def lines_of(work: Callable[[], object]) -> int:
    """Lines that are executed: the work of it, whatever the machine does beside it."""
    count = 0

    def trace(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("word", ["*", "a", "#.a", "*.a"])
def test_a_pattern_costs_its_words(word: str) -> None:
    """When it comes beside another one that is nearly the same, and when it goes: Celery binds 28 exchanges so."""
    pattern = ".".join([word] * (120 // len(word)))
    tree = TopicTree()
    tree.add(f"{pattern}.1.#", "q")
    assert lines_of(lambda: tree.add(f"{pattern}.0.#", "q")) < 100 * len(pattern)
    assert lines_of(lambda: tree.remove(f"{pattern}.0.#", "q")) < 100 * len(pattern)
    assert tree.match(f"{pattern}.1") == {"q"}


@pytest.mark.parametrize("word", ["#", "*.#", "#.a", "#.*.a", "a.#.#"])
def test_hostile_patterns_cost_words_times_places(word: str) -> None:
    """The longest patterns and keys that there can be: work is bounded by words × places, a handful of lines for each,
    and wildcards beside each other are few places."""
    for size in (16, 32, 64):
        pattern = ".".join([word] * (size // len(split(word))))
        places, words = len(split(pattern)), 2 * size
        assert visits([pattern], ".".join(["a"] * words)) <= 16 * words * places + 16 * words
    assert visits([".".join(["#"] * 127)], ".".join(["a"] * 127)) < 16 * 127


def test_a_queue_gets_a_message_once() -> None:
    catalog = catalog_with("a")
    catalog.declare_exchange("x", type="topic")
    for pattern in ("k", "#", "*"):
        catalog.bind("a", "x", pattern)
    assert names(Router(catalog), "x", "k") == ["a"]


def test_unknown_exchange() -> None:
    with pytest.raises(ExchangeNotFound, match="nowhere"):
        Router(catalog_with("a")).route("nowhere", "k")


def test_the_cache_is_bounded_and_gives_the_same_answer() -> None:
    catalog = catalog_with("a")
    catalog.declare_exchange("x", type="fanout")
    catalog.bind("a", "x")
    router = Router(catalog)
    for number in range(CACHE_MAX + 10):
        router.route("x", str(number))
    assert router._cached_n == sum(map(len, router._cache.values())) <= CACHE_MAX
    assert router.route("x", "1") == router.route("x", "2")


@pytest.mark.parametrize(
    ("arguments", "headers", "goes"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": None}, {"a": [1, 2]}, True),
        ({"a": 5, "b": "5"}, {"a": Number.FIVE, "b": Letter.FIVE}, True),  # sent as an int and a str
        ({"a": None}, {"b": 1}, False),
        ({}, {}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 3}, False),
        ({"x-kind": 1, "a": 1}, {"a": 1}, True),
        ({"x-match": "any", "x-kind": 1}, {"x-kind": 1}, False),
        ({"x-match": "all-with-x", "x-kind": 1, "a": 1}, {"a": 1}, False),
        ({"x-match": "all-with-x", "x-kind": 1, "a": 1}, {"a": 1, "x-kind": 1}, True),
        ({"x-match": "any-with-x", "x-kind": 1, "a": 1}, {"x-kind": 1}, True),
    ],
)
def test_headers_exchange(arguments: dict[str, object], headers: dict[str, object], goes: bool) -> None:
    catalog = catalog_with("q")
    catalog.bind("q", "amq.headers", "ignored", arguments)
    router = Router(catalog)
    for _again in range(2):  # nothing is remembered by key
        assert bool(router.route("amq.headers", "k", headers)) is goes
        assert bool(router.route("amq.headers", "k")) is (not arguments or arguments == {"x-match": "all"})


def test_what_an_exchange_cannot_route_goes_to_its_alternate() -> None:
    catalog = catalog_with("a", "rest", "odd")
    catalog.declare_exchange("first", type="direct", alternate="second")
    catalog.declare_exchange("second", type="headers", alternate="third")
    catalog.declare_exchange("third", type="fanout", alternate="first")
    catalog.bind("a", "first", "k")
    catalog.bind("odd", "second", arguments={"odd": True})
    router = Router(catalog)
    assert names(router, "first", "k") == ["a"]
    assert names(router, "first", "other") == []  # around the circle once
    catalog.bind("rest", "third")
    router = Router(catalog)
    assert names(router, "first", "other") == ["rest"]
    assert [item.name for item in router.route("first", "other", {"odd": True}).queues] == ["odd"]
    catalog.delete_exchange("third")
    assert names(Router(catalog), "first", "other") == []
    with pytest.raises(ExchangeNotFound):
        Router(catalog).route("third", "k")


def test_exchanges_lead_to_exchanges() -> None:
    catalog = catalog_with("a", "b", "c")
    for name, kind in (("in", "topic"), ("mid", "direct"), ("out", "fanout")):
        catalog.declare_exchange(name, type=kind)
    catalog.bind_exchange("mid", "in", "k.#")
    catalog.bind_exchange("out", "mid", "k.1")
    catalog.bind("a", "in", "#")
    catalog.bind("b", "mid", "k.1")
    catalog.bind("c", "out")
    catalog.bind("b", "out")
    router = Router(catalog)
    assert names(router, "in", "k.1") == ["a", "b", "c"], "each queue once, with the key that it was published with"
    assert names(router, "in", "k.2") == ["a"]
    assert names(router, "in", "other") == ["a"]
    assert names(router, "mid", "k.1") == ["b", "c"]
    catalog.bind_exchange("in", "out")  # a circle
    router = Router(catalog)
    assert names(router, "out", "k.1") == ["a", "b", "c"]
    assert names(router, "out", "x") == ["a", "b", "c"]
    assert catalog.unbind_exchange("in", "out")
    assert not catalog.unbind_exchange("in", "out")
    assert not catalog.unbind_exchange("mid", "in", "k.1"), "another key is another binding"


def test_several_keys_ask_the_alternate_together() -> None:
    catalog = catalog_with("one", "two", "rest")
    catalog.declare_exchange("spare", type="fanout")
    catalog.bind("rest", "spare", "")
    catalog.declare_exchange("in", type="direct", alternate="spare")
    for name in ("one", "two"):
        catalog.bind(name, "in", name)
    router = Router(catalog)

    def found(*keys: str) -> list[str]:
        return [queue.name for queue in router.route_all("in", keys, {}).queues]

    assert found("no", "two", "one", "two") == ["one", "two"], "each once; a key that leads nowhere is no matter"
    assert found("no", "neither") == ["rest"]
    assert [queue.name for queue in router.route_all("", ("one", "no"), {}).queues] == ["one"]


def test_an_alternate_is_asked_of_each_exchange_by_itself() -> None:
    """As RabbitMQ does: an exchange whose bindings match nothing asks its own alternate, however the message came; a
    binding to another exchange matches, though nothing is bound there.
    """
    catalog = catalog_with("a", "rest")
    catalog.declare_exchange("in", type="fanout", alternate="spare")
    catalog.declare_exchange("mid", type="direct", alternate="spare")
    catalog.declare_exchange("spare", type="fanout")
    catalog.declare_exchange("dull", type="fanout")
    catalog.bind("rest", "spare")
    assert names(Router(catalog), "in", "k") == ["rest"]
    catalog.bind_exchange("dull", "in")
    assert names(Router(catalog), "in", "k") == [], "a binding matched: the alternate is not asked"
    catalog.bind_exchange("mid", "in")
    assert names(Router(catalog), "in", "k") == ["rest"], "the second has an alternate of its own"
    catalog.bind("a", "mid", "k")
    assert names(Router(catalog), "in", "k") == ["a"]
    assert names(Router(catalog), "in", "other") == ["rest"]


def test_headers_are_asked_for_wherever_a_message_may_come() -> None:
    catalog = catalog_with("a", "b")
    for name in ("in", "mid"):
        catalog.declare_exchange(name, type="fanout")
    catalog.bind("b", "amq.match", arguments={"kind": 1})
    catalog.bind_exchange("mid", "in")
    catalog.bind("a", "mid")
    router = Router(catalog)
    own = {item.name for item in catalog.exchanges.values() if item.type == "headers"}
    assert router.by_headers == own
    assert names(router, "in", "k") == ["a"]
    catalog.begin()
    catalog.bind_exchange("amq.match", "mid", arguments={"x": 1})
    stale = router.follow(catalog.steps or [])
    catalog.end()
    assert stale.exchanges == {"in", "mid"}
    assert router.by_headers == {"in", "mid", *own}
    assert [item.name for item in router.route("in", "k", {"kind": 1}).queues] == ["a", "b"]
    catalog.begin()
    catalog.delete_exchange("mid")
    router.follow(catalog.steps or [])
    catalog.end()
    assert router.by_headers == own == Router(catalog).by_headers
    assert names(router, "in", "k") == []


def test_bindings_that_differ_in_arguments_alone_are_two() -> None:
    for kind in ("direct", "fanout", "topic"):
        catalog = catalog_with("a")
        catalog.declare_exchange("x", type=kind)
        catalog.bind("a", "x", "k", {"n": 1})
        catalog.bind("a", "x", "k", {"n": 2})
        router = Router(catalog)
        assert names(router, "x", "k") == ["a"]
        catalog.begin()
        assert catalog.unbind("a", "x", "k", {"n": 1})
        router.follow(catalog.steps or [])
        assert names(router, "x", "k") == ["a"], "the other one is still there"
        catalog.begin()
        assert catalog.unbind("a", "x", "k", {"n": 2})
        router.follow(catalog.steps or [])
        assert names(router, "x", "k") == []


def test_a_topic_that_is_reached_by_its_name() -> None:
    catalog = catalog_with("a")
    catalog.declare_topic("stream", queues=1, by_name=True)
    catalog.declare_topic("plain", queues=1)
    router = Router(catalog)
    assert [item.topic.name for item in router.route("", "stream").topics] == ["stream"]
    assert not router.route("", "plain")
    catalog.begin()
    catalog.declare_queue("stream", workers_n=1)
    router.follow(catalog.steps or [])
    catalog.end()
    routed = router.route("", "stream")
    assert ([item.name for item in routed.queues], routed.topics) == (["stream"], ()), "a queue of that name is first"
    catalog.begin()
    catalog.delete_queue("stream")
    catalog.delete_topic("stream")
    router.follow(catalog.steps or [])
    assert not router.route("", "stream")
