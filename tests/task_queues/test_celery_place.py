"""URLs of the broker and the result backend: what they lead to, and what is wrong with them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from warren.engine.errors import UsageError
from warren.workers.celery.arguments import queue_arguments
from warren.workers.celery.place import Place
from warren.workers.celery.results import Backend

from support.celery_client import client
from support.waiting import patience


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
        ("warren:///data", {"node_timeout": 0}, "a number of seconds above 0"),
        ("warren:///data", {"priority_steps": [0, 3]}, "task_queue_max_priority"),
        ("warren:///data", {"nothing": 1}, "unknown option 'nothing'"),
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


def test_a_result_backend_refuses_options_that_it_does_not_know() -> None:
    app = Celery("options", set_as_current=False)
    app.conf.result_backend_transport_options = {"retry_policy": {"timeout": 5.0}}
    with pytest.raises(UsageError, match=r"retry_policy.*node_timeout"):
        Backend(app, url="warren:///data")


def test_results_of_two_applications_are_kept_apart_by_a_prefix(directory: Path) -> None:
    with client(f"warren:///{directory}", result_backend_transport_options={"global_keyprefix": "one"}) as one:
        one.backend.store_result("same", 1, "SUCCESS")
        assert one.AsyncResult("same").get(timeout=60) == 1
        with client(f"warren:///{directory}") as other:
            assert other.AsyncResult("same").state == "PENDING"


def test_a_setting_names_the_transport_where_nothing_is_imported(directory: Path) -> None:
    program = (
        "import sys; from celery import Celery\n"
        "app = Celery('none', broker=sys.argv[1], backend=sys.argv[1])\n"
        "app.conf.broker_transport = 'warren.celery:Transport'\n"
        "app.send_task('nothing', queue='named-by-a-setting')\n"
        "with app.connection_for_read() as read: print(read.channel().queue_purge('named-by-a-setting'))\n"
    )
    words = [sys.executable, "-c", program, f"warren:///{directory}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60 * patience(), check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
