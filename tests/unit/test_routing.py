"""Goal: messages reach exactly the queues that the rules name. Method: by hand, and against a naive matcher."""

import random
import re

import pytest

from warren.engine.catalog import Catalog
from warren.engine.errors import ExchangeNotFound
from warren.engine.routing import CACHE_MAX, Router, TopicTree


def catalog_with(*queues: str) -> Catalog:
    catalog = Catalog()
    for name in queues:
        catalog.declare_queue(name, workers_n=2)
    return catalog


def names(router: Router, exchange: str, key: str) -> list[str]:
    return [queue.name for queue in router.route(exchange, key)]


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
        ("*", "", True),  # an empty key is one empty word
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


def naive(pattern: str, key: str) -> bool:
    """The same rule as a regular expression over words, each ended by a dot."""
    parts = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    expression = "".join(parts.get(word, re.escape(word) + r"\.") for word in pattern.split("."))
    return re.fullmatch(expression, key + ".") is not None


def test_topic_agrees_with_a_naive_matcher(seed: int) -> None:
    rng = random.Random(seed)
    patterns = [".".join(rng.choices(["a", "b", "*", "#"], k=rng.randint(1, 5))) for _ in range(60)]
    tree = TopicTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, f"{number}")
    for _ in range(300):
        key = ".".join(rng.choices(["a", "b", "c", ""], k=rng.randint(1, 6)))
        expected = {f"{number}" for number, pattern in enumerate(patterns) if naive(pattern, key)}
        assert tree.match(key) == expected, key


def test_many_hashes_do_not_explode() -> None:
    tree = TopicTree()
    tree.add(".".join(["#"] * 12 + ["end"]), "q")
    assert tree.match(".".join("abcdefgh" * 8)) == set()


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
    assert len(router._cache) <= CACHE_MAX
    assert router.route("x", "1") == router.route("x", "2")
