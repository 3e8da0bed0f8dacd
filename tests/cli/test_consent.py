"""Goal: commands that destroy messages say how many and want an answer, or --yes; without a terminal they do nothing.

Method: the command line as a user starts it, on one node; a terminal is the end of a pseudo terminal.
"""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren

from support.command_line import TIMEOUT_S
from support.command_line import warren as run
from support.real_node import RealNode
from support.waiting import patience

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("consent") / "data", profile="small") as running:
        yield running.directory


#: a command, what it says of what is lost, and of nothing
COMMANDS = {
    "queue purge": (("queue", "purge"), ("q",), "queue 'q': 3 messages would be lost, and nothing was dropped"),
    "queue delete": (("queue", "delete"), ("q",), "queue 'q': 4 messages would be lost, and nothing was deleted"),
    "several": (("queue", "delete"), ("q", "more"), "2 queues: 5 messages would be lost, and nothing was deleted"),
    "one, twice": (("queue", "delete"), ("q", "q"), "queue 'q': 4 messages would be lost, and nothing was deleted"),
    "if unused": (
        ("queue", "delete", "--if-unused"), ("q",), "queue 'q': 4 messages would be lost, and nothing was deleted",
    ),
    "topic delete": (("topic", "delete"), ("t",), "topic 't': 2 messages would be lost, and nothing was deleted"),
}  # fmt: skip


@pytest.fixture
def filled(directory: Path) -> Iterator[Path]:
    """Queue q with three ready messages and a delayed one, queue more with one, topic t with two."""
    with warren.attach(directory) as node:
        node.queue("q").put_many([b"1", b"2", b"3"])
        node.queue("q").put(b"later", delay=3600)
        node.queue("more").put(b"1")
        topic = node.topic("t", queues=1)
        topic.append(b"1")
        topic.append(b"2")
    yield directory
    run("queue", "delete", directory, "--yes", "q", code=run_code(directory, "q"))
    run("queue", "delete", directory, "--yes", "more", code=run_code(directory, "more"))
    with warren.attach(directory) as node:
        if "t" in node.topics():
            node.topic("t", create=False).delete()


def run_code(directory: Path, name: str) -> int:
    """The exit code that a deletion of this queue should have."""
    with warren.attach(directory) as node:
        return 0 if name in node.queues() else 2


def left(directory: Path) -> tuple[int, int]:
    with warren.attach(directory) as node:
        depth = node.queue("q", create=False).depth() if "q" in node.queues() else 0
        return depth, node.topic("t", create=False).stats()["messages"] if "t" in node.topics() else 0


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["", "json"])
@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_nothing_goes(filled: Path, name: str, json: tuple[str, ...]) -> None:
    words, targets, said = COMMANDS[name]
    refused = run(*words, filled, *targets, *json, code=2)
    assert f"{said}: --yes agrees to that" in refused.stderr
    assert left(filled) == (3, 2)
    run(*words, filled, *targets, *json, "--yes")
    assert left(filled) != (3, 2)


@pytest.mark.parametrize("name", ["queue purge", "queue delete", "topic delete"])
def test_a_terminal_is_asked(filled: Path, name: str) -> None:
    words, targets, said = COMMANDS[name]
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        assert left(filled) == (3, 2)
        ours, its = pty.openpty()
        try:
            os.write(ours, answer)
            ended = subprocess.run(
                [sys.executable, "-m", "warren", *words, str(filled), *targets],
                stdin=its, capture_output=True, text=True, timeout=TIMEOUT_S * patience(),
            )  # fmt: skip
        finally:
            os.close(ours)
            os.close(its)
        assert ended.returncode == code, ended.stderr
        assert said.split(" would")[0] + " will be lost. Continue?" in ended.stderr
        assert ("nothing was" in ended.stderr) == (code == 1)
    assert left(filled) != (3, 2)


def test_what_is_empty_needs_no_answer(directory: Path) -> None:
    with warren.attach(directory) as node:
        node.queue("empty")
        node.queue("held").put(b"1")
        node.topic("empty", queues=1)
        held = node.queue("held").get(timeout=20)
        run("queue", "purge", directory, "empty")
        run("queue", "purge", directory, "held")
        run("queue", "delete", directory, "empty")
        run("queue", "delete", directory, "held", code=2)
        run("queue", "delete", directory, "--if-empty", "held")
        run("topic", "delete", directory, "empty")
        assert held.body == b"1"


def test_half_and_delayed_messages_count(directory: Path) -> None:
    """A topic that readers see nothing of is deleted with --yes alone."""
    with warren.attach(directory) as node:
        topic = node.topic("halves", queues=1)
        topic.prepare(b"undecided")
        topic.append(b"later", delay=3600)
    refused = run("topic", "delete", directory, "halves", code=2).stderr
    assert "2 messages would be lost, and nothing was deleted" in refused
    run("topic", "delete", directory, "halves", "--yes")


def test_the_end_of_input_is_a_no(filled: Path) -> None:
    """Ctrl-D at the question says that nothing was deleted, and ends as an interrupted command does."""
    ours, its = pty.openpty()
    try:
        os.write(ours, b"\x04")
        ended = subprocess.run(
            [sys.executable, "-m", "warren", "queue", "delete", str(filled), "q"],
            stdin=its, capture_output=True, text=True, timeout=TIMEOUT_S * patience(),
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(its)
    assert ended.returncode == 130
    assert ended.stderr.endswith("\nnothing was deleted\n")
    assert left(filled) == (3, 2)


def test_what_is_not_there_is_said_first(directory: Path) -> None:
    with warren.attach(directory) as node:
        node.queue("there").put(b"1")
    assert "there is no queue 'nope': nothing" in run("queue", "delete", directory, "there", "nope", code=2).stderr
    run("queue", "delete", directory, "there", "--yes")
    assert "no queue 'nope'" in run("queue", "delete", directory, "nope", code=2).stderr
    assert "no queue 'nope'" in run("queue", "purge", directory, "nope", code=2).stderr
    assert "no topic 'nope'" in run("topic", "delete", directory, "nope", code=2).stderr
