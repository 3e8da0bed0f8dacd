"""URLs of the broker and the result backend: what they lead to, and what is wrong with them."""

import os
from typing import Any

import pytest

from warren.engine.errors import UsageError
from warren.workers.celery.arguments import queue_arguments
from warren.workers.celery.place import Place


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("warren:////var/lib/node", "/var/lib/node"),
        ("warren:///data", os.path.abspath("data")),
        ("warren:///Data/Of%20Ours", os.path.abspath("Data/Of Ours")),
    ],
)
def test_a_url_names_a_directory(url: str, directory: str) -> None:
    assert Place.of(url) == Place(directory)


def test_options_come_from_the_url_and_from_the_application_and_those_of_the_url_count_more() -> None:
    given = {"durability": "none", "hold_eta": False, "max_retries": 3}
    found = Place.of("warren:///data?durability=written&start=true&call_timeout=2.5", given)
    assert (found.durability, found.hold_eta, found.start, found.call_timeout) == ("written", False, True, 2.5)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("warren://", {}, "names no directory"),
        ("warren:///", {}, "names no directory"),
        ("warren://host/data", {}, "a node is on this host"),
        ("redis:///data", {}, "no URL of Warren"),
        ("warren:///data?durability=always", {}, "one of none, written, synced"),
        ("warren:///data?start=perhaps", {}, "true or false"),
        ("warren:///data", {"visibility_timeout": 3600}, "there is no visibility timeout"),
        ("warren:///data", {"call_timeout": -1}, "a number of seconds above 0"),
    ],
)
def test_what_is_wrong_is_said(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Place.of(url, options)


def test_arguments_of_queues_are_those_of_rabbitmq_and_of_warren() -> None:
    given = {"x-max-priority": 10, "x-message-ttl": 1500, "x-queue-type": "quorum", "dead_letter_exchange": "", "x": 1}
    assert queue_arguments(given) == {"max_priority": 10, "message_ttl": 1.5, "dead_letter_exchange": "", "x": 1}
    for wrong, said in (
        ({"x-unknown": 1}, "not known"),
        ({"x-queue-type": "stream"}, "queues"),
        ({"x-expires": "a"}, "x-expires"),
    ):
        with pytest.raises(UsageError, match=said):
            queue_arguments(wrong)
