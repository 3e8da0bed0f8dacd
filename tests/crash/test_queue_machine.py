"""Queues against a model, with kills, pauses and restarts among the steps: a Hypothesis state machine.

Goal: whatever two clients do with queues in whatever order, and whoever is killed or stopped in between, nothing
confirmed is lost, nothing comes twice without the mark, and order is kept and restored. Method:
tools/crash/queue_machine.py with few examples; `scripts/crash-campaign queues --examples N` runs more, and
WARREN_MACHINE_EXAMPLES makes this test do so. The model itself is tried with answers that are wrong.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from warren.tools.crash import queue_machine
from warren.tools.crash.hands import body_of, key_of
from warren.tools.crash.queue_model import QueueModel


@pytest.mark.crash
@pytest.mark.integration
def test_queues_are_what_the_model_says(tmp_path: Path, seed: int) -> None:
    examples = int(os.environ.get("WARREN_MACHINE_EXAMPLES", "4"))
    found = queue_machine.run(tmp_path, examples, 35, shrink=False, seed=seed)
    assert found.steps > examples * 10
    assert found.kills + found.node_kills > 0
    assert found.received > 0


def model(*keys: str, **arguments: Any) -> QueueModel:
    queue = QueueModel("q", True, arguments)
    queue.publish(keys)
    return queue


def rows(*keys: str) -> list[tuple[str | None, int, bool, int]]:
    return [(key, n, False, 0) for n, key in enumerate(keys)]


def test_the_model_sees_a_message_that_came_before_its_turn() -> None:
    queue = model("a|1", "b|1")
    with pytest.raises(AssertionError, match="before"):
        queue.deliver("me", "b|1", 1, False, 0)


def test_the_model_sees_a_message_that_came_twice() -> None:
    queue = model("a|1")
    queue.deliver("me", "a|1", 0, False, 0)
    with pytest.raises(AssertionError, match="while me holds it"):
        queue.deliver("puppet", "a|1", 0, True, 1)
    queue.settle("me", [0], multiple=False, how="nack")
    with pytest.raises(AssertionError, match="bears no mark"):
        queue.deliver("puppet", "a|1", 0, False, 1)
    queue.deliver("puppet", "a|1", 0, True, 1)
    queue.settle("puppet", [0], multiple=False, how="ack")
    with pytest.raises(AssertionError, match="is not in the queue"):
        queue.deliver("me", "a|1", 0, True, 2)


def test_the_model_sees_a_mark_that_nobody_deserved_and_a_wrong_count() -> None:
    queue = model("a|1")
    with pytest.raises(AssertionError, match="never came"):
        queue.compare([("a|1", 0, True, 0)], learn=False)
    with pytest.raises(AssertionError, match="counts 1"):
        queue.compare([("a|1", 0, False, 1)], learn=False)
    queue.compare([("a|1", 0, True, 0)], learn=True)


def test_the_model_sees_what_is_lost_or_too_much_and_an_order_that_was_not_restored() -> None:
    queue = model("a|1", "b|1", "c|1")
    for found in (["a|1", "c|1"], ["a|1", "b|1", "c|1", "d|1"], ["a|1", "c|1", "b|1"]):
        with pytest.raises(AssertionError, match="missing"):
            queue.compare([(key, n, False, 0) for n, key in enumerate(found)], learn=False)


def test_after_a_death_the_model_takes_what_was_unsure_and_no_less() -> None:
    queue = model("a|1", "b|1", "c|1")
    for n, key in enumerate(("a|1", "b|1", "c|1")):
        queue.deliver("me", key, n, False, 0)
    queue.settle("me", [0, 1], multiple=False, how="ack")
    queue.release("me")
    queue.shake()
    ghosts = queue.recent_ghosts()
    assert [entry.key for entry in ghosts] == ["a|1", "b|1"]
    with pytest.raises(AssertionError, match="missing"):
        queue.adopt([("b|1", 1, True, 0)], ghosts)
    with pytest.raises(AssertionError, match="from nowhere"):
        queue.adopt([("x|1", 1, True, 0), ("c|1", 2, True, 0)], ghosts)
    for entry in ghosts:
        entry.shaken = True
    queue.adopt([("b|1", 1, True, 0), ("c|1", 2, True, 0)], ghosts)
    assert [entry.key for entry in queue.ready] == ["b|1", "c|1"]


def test_the_model_knows_priorities() -> None:
    queue = model(max_priority=4)
    for key, priority in (("a|1", 0), ("b|1", 3), ("c|1", 9), ("d|1", 4), ("e|1", 0)):
        queue.publish([key], priority=priority)
    assert [entry.key for entry in queue.in_turn()] == ["c|1", "d|1", "b|1", "a|1", "e|1"]
    with pytest.raises(AssertionError, match="came before c"):
        queue.deliver("me", "d|1", 3, False, 0)


def test_the_model_knows_the_greatest_length() -> None:
    queue = model("a|1", "b|1", "c|1", max_length=2, dead_letter_exchange="x")
    assert [entry.key for entry in queue.entries] == ["b|1", "c|1"]
    queue.deliver("me", "b|1", 1, False, 0)
    queue.publish(["d|1"])
    queue.settle("me", [1], multiple=False, how="nack")
    assert [entry.key for entry in queue.entries] == ["c|1", "d|1"], "what returns is too much again"
    assert [(letter.entry.key, letter.reason) for letter in queue.letters] == [("a|1", "maxlen"), ("b|1", "maxlen")]
    refusing = model("a|1", max_length=2, overflow="reject-publish")
    assert refusing.room() == 1
    refusing.publish(["b|1"])
    assert refusing.room() == 0


def test_the_model_knows_expiry() -> None:
    now = time.time()
    queue = model(message_ttl=10.0, dead_letter_exchange="x")
    queue.publish(["a|1", "b|1"], published=(now - 20, now - 19))
    queue.publish(["c|1"], published=(now, now))
    with pytest.raises(AssertionError, match="after its time"):
        queue.deliver("me", "a|1", 0, False, 0)
    with pytest.raises(AssertionError, match="should have expired"):
        queue.compare(rows("a|1", "b|1", "c|1"), learn=False)
    with pytest.raises(AssertionError, match="missing"):
        queue.compare(rows("b|1"), learn=False)
    queue.deliver("me", "c|1", 2, False, 0)
    assert [(letter.entry.key, letter.reason) for letter in queue.letters] == [("a|1", "expired"), ("b|1", "expired")]


def test_the_model_counts_what_expired_behind_another_until_it_is_the_head() -> None:
    queue = model("a|1")
    queue.publish(["b|1", "c|1"], ttl=1.0)
    for _ in range(2):
        queue.compare(rows("a|1"), learn=False)
        assert queue.bounds() == (1, 3)
    for seen in (
        lambda: queue.deliver("me", "b|1", 1, False, 0),
        lambda: queue.compare(rows("a|1", "b|1"), learn=False),
    ):
        with pytest.raises(AssertionError, match="seen again after it expired"):
            seen()
    queue.deliver("me", "a|1", 0, False, 0)
    queue.settle("me", [0], multiple=False, how="ack")
    queue.compare([], learn=False)
    assert queue.bounds() == (0, 0)


def test_the_model_knows_delay() -> None:
    now = time.time()
    queue = model("a|1")
    queue.publish(["b|1"], delay=100.0, published=(now, now))
    with pytest.raises(AssertionError, match="before its time"):
        queue.deliver("me", "b|1", 1, False, 0)
    queue.compare(rows("a|1"), learn=False)
    with pytest.raises(AssertionError, match="too many"):
        queue.compare(rows("a|1", "b|1"), learn=False)


def test_the_model_knows_the_delivery_limit() -> None:
    queue = model("a|1", delivery_limit=1, dead_letter_exchange="x")
    for count in range(2):
        queue.deliver("me", "a|1", 0, count > 0, count)
        queue.settle("me", [0], multiple=False, how="nack")
    assert not queue.entries
    assert queue.letters[0].reason == "delivery_limit"


def test_the_model_knows_message_ids() -> None:
    queue = model(deduplication_window=60.0)
    given = [("a|1", "i"), ("b|1", "j"), ("c|1", "i")]
    with pytest.raises(AssertionError, match="with message id i"):
        queue.let_in(given, ["a|1", "b|1", "c|1"])
    queue = model(deduplication_window=60.0)
    assert queue.let_in(given, ["a|1", "b|1"]) == ["a|1", "b|1"]
    queue.forget_seen()
    assert queue.let_in([("d|1", "i"), ("e|1", "j"), ("f|1", "j")], ["e|1"]) == ["e|1"]


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_body_that_was_changed_is_none_of_its_key(size: int) -> None:
    body = body_of(f"a7|{size}")
    assert key_of(body) == f"a7|{size}"
    assert key_of(body + b"x") is None
    assert key_of(body[:-1]) is None
