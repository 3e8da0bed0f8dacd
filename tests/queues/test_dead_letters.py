"""Goal: headers of dead letters say what RabbitMQ's say, and cycles end where its cycles end. Method: by example."""

from typing import Any

import pytest

from warren.engine.queues.causes import CAUSE_MOST, Causes
from warren.workers.servers.dead_letters import deaths_of, is_cycle, with_death


def died(headers: dict[str, Any] | None, queue: str, reason: str, now: int = 100) -> dict[str, Any]:
    return with_death(headers, queue, reason, "x", ["k"], now)


def test_a_first_death() -> None:
    assert died({"mine": 1}, "q", "rejected") == {
        "mine": 1,
        "x-death": [
            {"queue": "q", "reason": "rejected", "count": 1, "time": 100, "exchange": "x", "routing-keys": ["k"]}
        ],
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-first-death-exchange": "x",
    }


def test_deaths_are_counted_by_queue_and_reason_newest_first() -> None:
    headers = died(None, "a", "expired", 1)
    headers = died(headers, "b", "rejected", 2)
    before = [dict(item) for item in headers["x-death"]]
    headers = died(headers, "a", "expired", 3)
    assert [(item["queue"], item["reason"], item["count"]) for item in headers["x-death"]] == [
        ("a", "expired", 2),
        ("b", "rejected", 1),
    ]
    assert headers["x-death"][0]["time"] == 1
    assert before[0]["queue"] == "b", "the headers of the letter itself are not changed"
    headers = died(headers, "a", "maxlen", 4)
    assert [(item["queue"], item["reason"]) for item in headers["x-death"]] == [
        ("a", "maxlen"),
        ("a", "expired"),
        ("b", "rejected"),
    ]
    assert headers["x-first-death-queue"] == "a"
    assert headers["x-first-death-reason"] == "expired"


def test_what_a_function_raised_is_told_of_the_last_death_alone() -> None:
    first = with_death({"mine": 1}, "a", "rejected", "x", ["k"], 1, "KeyError: 'shop'")
    assert first["x-last-death-exception"] == "KeyError: 'shop'"
    assert "x-last-death-exception" not in died(first, "b", "expired")
    assert first["mine"] == 1


def test_texts_are_kept_of_the_newest_deaths() -> None:
    causes = Causes()
    for number in range(10_000):
        causes.note(7, b"%016d" % number, f"{number}: {'x' * 2000}")
    assert causes.of(7, b"%016d" % 0) is None
    assert causes.of(8, b"%016d" % 9999) is None
    text = causes.of(7, b"%016d" % 9999)
    assert text is not None
    assert (text[:5], len(text)) == ("9999:", CAUSE_MOST)
    causes.note(7, b"%016d" % 9999, "another")
    assert causes.of(7, b"%016d" % 9999) == "another"
    causes.forget(7, b"%016d" % 9999)
    assert causes.of(7, b"%016d" % 9999) is None


@pytest.mark.parametrize("told", [None, 5, "q", [5, None], [{"queue": 7}], {"queue": "q"}])
def test_a_header_of_that_name_may_hold_anything(told: object) -> None:
    assert deaths_of({"x-death": told}) == []
    assert len(died({"x-death": told}, "q", "expired")["x-death"]) == 1


def test_a_count_that_is_none_begins_anew() -> None:
    odd = {"x-death": [{"queue": "q", "reason": "expired", "count": "many"}]}
    assert died(odd, "q", "expired")["x-death"][0]["count"] == 1


def test_cycles() -> None:
    automatic = died(died(None, "work", "expired"), "wait", "expired")["x-death"]
    assert is_cycle("work", automatic)
    assert is_cycle("wait", automatic)
    assert not is_cycle("other", automatic)
    retried = died(died(None, "work", "rejected"), "wait", "expired")["x-death"]
    assert not is_cycle("work", retried), "somebody rejected it: a retry, not a circle"
    assert is_cycle("wait", retried)
    assert not is_cycle("wait", died({"x-death": retried}, "wait", "rejected")["x-death"])
