"""Goal: a command that gets no answer says what it waits for, and ends at its timeout with exit code 4.

Method: real nodes with an alarm, or with a server that is stopped by a signal.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.workers.cli import attached
from warren.workers.process.control import ControlClient

from support.command_line import warren
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """One with a queue and a topic, and a message in the queue."""
    with RealNode(tmp_path_factory.mktemp("waits") / "data", workers=1) as running:
        warren("queue", "declare", running.directory, "q")
        warren("topic", "create", running.directory, "t")
        warren("publish", running.directory, "q", "--body", "first")
        yield running


@pytest.fixture(scope="module")
def alarmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node whose disk is too small for its settings."""
    directory = tmp_path_factory.mktemp("alarm") / "data"
    with RealNode(directory, workers=1):
        warren("queue", "declare", directory, "q")
        warren("topic", "create", directory, "t")
    with RealNode(directory, disk_free_bytes_min=1 << 60), ControlClient(directory) as control:
        wait_until(lambda: control.call("status")["alarm_details"], what="the alarm")
        yield directory


@pytest.mark.parametrize("words", [("publish", "q"), ("topic", "append", "t")])
def test_what_publishes_says_that_an_alarm_blocks_it(alarmed: Path, words: tuple[str, ...]) -> None:
    *command, name = words
    done = warren(*command, alarmed, name, "--body", "x", "--timeout", 2, code=4)
    assert "warren: waiting: alarm of the node of " in done.said
    assert "setting disk_free_bytes_min" in done.said
    assert "warren: publishing is blocked, and was not free within 2 s" in done.said


def test_lines_that_are_blocked_end_at_the_timeout(alarmed: Path) -> None:
    done = warren("publish", alarmed, "q", "--timeout", 1, "--json", given="a\nb\n", code=4)
    assert '{"waiting":"alarm of the node' in done.said
    assert '{"error":"TimedOut","message":"publishing is blocked' in done.said


def test_who_takes_messages_is_told_of_the_alarm_beside_it(alarmed: Path) -> None:
    """It waits for messages, which come no more while publishers are blocked."""
    done = warren("consume", alarmed, "q", "--timeout", 2, code=0)
    assert "warren: alarm of the node of " in done.said
    assert "waiting" not in done.said


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("publish", "q", "--body", "x", "--timeout", 3), "queue_worker"),
        (("topic", "append", "t", "--body", "x", "--timeout", 3), "topic_worker"),
        (("consume", "q", "--count", 1, "--timeout", 3), "queue_worker"),
    ],
)
def test_a_server_that_stands_still_is_named(node: RealNode, words: tuple[object, ...], role: str) -> None:
    at = 2 if words[0] == "topic" else 1
    pid = node.pids()["worker-0" if role == "queue_worker" else role]
    os.kill(pid, signal.SIGSTOP)
    try:
        done = warren(*words[:at], node.directory, *words[at:], code=4)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"`kill -CONT {pid}` lets it go on" in done.said


def test_what_is_awaited_is_said_when_nothing_else_is_known(
    node: RealNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attached, "PATIENCE_S", 0.0)
    said: list[str] = []

    def told() -> bool:
        said.append(capfd.readouterr().err)
        return "warren: waiting: the answer" in "".join(said)

    with attached.attached(str(node.directory), "test"), attached.awaited("the answer"):
        wait_until(told, what="what is said")
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
