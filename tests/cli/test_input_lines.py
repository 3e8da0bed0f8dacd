"""Goal: lines of an input become messages when they come, in batches where many are there; a signal drops none that was
read, and an error counts lines as people do.

Method: the command line with a pipe that stays open; and the lines of a pipe in this process, where a signal comes at
the moment that is looked at.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.cli.lines import BATCH, Lines

from support.command_line import warren as command
from support.said import without_waiting
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
TIMEOUT = 60 * patience()
KINDS = ("topic append", "publish")


def declare(directory: Path, kind: str, name: str) -> None:
    if kind == "publish":
        command("queue", "declare", directory, name)
    else:
        command("topic", "create", directory, name, "--queues", 1)


def bodies(node: warren.Node, kind: str, name: str) -> list[bytes]:
    """What has come."""
    if kind == "publish":
        return [message.body for message in node.queue(name, create=False).browse(10_000)]
    return [record.body for record in node.topic(name, create=False).read(max=10_000).records]


def wait_for(node: warren.Node, kind: str, name: str, count: int) -> None:
    wait_until(lambda: len(bodies(node, kind, name)) >= count, 60, what=f"{count} messages")


class Fed:
    """A command whose standard input stays open."""

    def __init__(self, *words: object) -> None:
        program = [sys.executable, "-m", "warren", *map(str, words)]
        self.process = subprocess.Popen(program, stdin=-1, stdout=-1, stderr=-1)

    def give(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def end(self, code: int) -> tuple[bytes, str]:
        """Close its input and wait for its end: what it printed and said."""
        printed, said = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == code, said.decode()
        assert b"Traceback" not in said
        return printed, without_waiting(said.decode())


@pytest.fixture
def fed() -> Iterator[Callable[..., Fed]]:
    begun: list[Fed] = []

    def begin(*words: object) -> Fed:
        begun.append(Fed(*words))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_a_pipe_that_stays_open_is_sent(
    directory: Path, node: warren.Node, name: str, kind: str, fed: Callable[..., Fed]
) -> None:
    declare(directory, kind, name)
    process = fed(*kind.split(), directory, name, "--json")
    sent: list[bytes] = []
    for content, lines in (
        (b"one\n", [b"one"]),
        (b"two\nthr", [b"two"]),
        (b"ee\r\n\nfour\n", [b"three", b"", b"four"]),
    ):
        process.give(content)
        sent += lines
        wait_for(node, kind, name, len(sent))
        assert bodies(node, kind, name) == sent
    process.give(b"five")
    printed, said = process.end(0)
    assert bodies(node, kind, name) == [*sent, b"five"], "the last line need not end"
    assert json.loads(printed)["published" if kind == "publish" else "appended"] == len(sent) + 1
    assert said == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_reading_and_says_what_was_sent(
    directory: Path, node: warren.Node, name: str, kind: str, number: int, code: int, fed: Callable[..., Fed]
) -> None:
    declare(directory, kind, name)
    process = fed(*kind.split(), directory, name, "--json")
    process.give(b"one\ntwo\n")
    wait_for(node, kind, name, 2)
    process.give(b"three\nfou")  # it may be read before the signal comes, or not
    process.process.send_signal(number)
    process.process.wait(TIMEOUT)
    printed, said = process.end(code)
    came = bodies(node, kind, name)
    assert json.loads(printed)["published" if kind == "publish" else "appended"] == len(came)
    assert came == [b"one", b"two", b"three"][: len(came)]
    notes = [json.loads(line) for line in said.splitlines() if line]
    assert notes == [{"note": "the last line had not ended, and was left out"}] * (len(came) == 3)


def test_an_id_of_one_message_waits_for_the_end_of_the_input(
    directory: Path, node: warren.Node, name: str, fed: Callable[..., Fed]
) -> None:
    declare(directory, "publish", name)
    process = fed("publish", directory, name, "--message-id", "a")
    process.give(b"one\n")
    process.give(b"two\n")
    assert "the input has several lines" in process.end(2)[1]
    assert bodies(node, "publish", name) == []


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    read, write = os.pipe()
    with open(read, "rb") as from_it, open(write, "wb", buffering=0) as to_it:
        yield from_it, to_it


def test_what_was_read_is_sent_after_a_signal(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    """It comes while the first of several batches is sent, or while the input is waited for."""
    source, to = pipe
    numbers = [b"%d" % number for number in range(2 * BATCH + 5)]
    to.write(b"\n".join(numbers) + b"\nnot whole")
    sent: list[list[bytes]] = []

    def put(batch: list[bytes]) -> int:
        if not sent:
            os.kill(os.getpid(), signal.SIGINT)
        sent.append(batch)
        return len(batch)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Lines(source) as lines:
        lines.send(put, "sent")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert list(map(len, sent)) == [BATCH, BATCH, 5]
    assert [line for batch in sent for line in batch] == numbers
    with pytest.raises(KeyboardInterrupt):
        lines.end()


def test_a_second_signal_ends_it_and_says_what_may_be_missing(
    pipe: tuple[BinaryIO, BinaryIO], capsys: pytest.CaptureFixture[str]
) -> None:
    source, to = pipe
    to.write(b"line\n" * (2 * BATCH))
    sent = 0

    def put(batch: list[bytes]) -> int:
        nonlocal sent
        if sent:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        sent += len(batch)
        return len(batch)

    with pytest.raises(KeyboardInterrupt), Lines(source) as lines:
        lines.send(put, "sent")
    assert "1,000 messages sent before, and 1,000 lines that were read may not be" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_names_the_line_from_1_on(directory: Path, node: warren.Node, name: str, kind: str) -> None:
    declare(directory, kind, name)
    large = "x" * (NodeDirectory(directory).read().settings.message_bytes_max + 1)
    send = (*kind.split(), directory, name)
    said = command(*send, given=f"a\nb\nc\n{large}\ne\n", code=2).stderr
    assert said.startswith(f"warren: line 4: a message of {len(large)} bytes"), said[:200]
    said = command(*send, given="a\n" * BATCH + f"b\n{large}\n", code=2).stderr
    assert f"1,000 messages {'published' if kind == 'publish' else 'appended'} before\n" in said
    assert "warren: line 1002: a message of" in said
    assert bodies(node, kind, name) == [b"a"] * BATCH


def test_what_is_wrong_of_all_lines_is_no_lines_fault(directory: Path, node: warren.Node, name: str) -> None:
    declare(directory, "topic append", name)
    said = command("topic", "append", directory, name, "--key", "a b", given="a\nb\n", code=2).stderr
    assert said.startswith("warren: a key must not contain a space")
    assert bodies(node, "topic append", name) == []
