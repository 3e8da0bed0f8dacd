"""Goal: what a command prints is for whoever reads it: a reader that goes away leaves what it did not take, a disk
without space and a terminal that knows ASCII alone are told apart from mistakes, and programs get JSON, also of errors.

Method: the command line as processes of their own, with standard streams that are pipes, /dev/full and the like.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import warren
from warren.workers.cli import output
from warren.workers.process.exit_codes import ERRORS_VARIABLE

from support.real_node import RealNode
from support.said import without_waiting

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-m", "warren"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("output") / "data", workers=1) as running:
        yield running.directory


def begin(*words: object, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes], code: int) -> str:
    """Wait until it has ended; what it said on standard error, but for what it waited for."""
    _stdout, said = process.communicate(timeout=100)
    assert process.returncode == code, said.decode()
    assert b"Traceback" not in said
    assert b"Exception ignored" not in said
    return without_waiting(said.decode())


# -- a reader that goes ------------------------------------------------------------------------------------------------


def lines_of(process: subprocess.Popen[bytes], count: int, size: int) -> list[bytes]:
    """So many lines, with reads of so many bytes, as `head` does; then the reader goes."""
    pipe = process.stdout
    assert pipe is not None
    found = b""
    while found.count(b"\n") < count:
        part = os.read(pipe.fileno(), size)
        assert part, "it ended early"
        found += part
    pipe.close()
    process.stdout = None
    return found.splitlines()


@pytest.mark.parametrize("style", ["raw", "json"])
@pytest.mark.parametrize("size", [1, 65_536])
def test_a_reader_that_goes_leaves_what_it_did_not_take(directory: Path, name: str, style: str, size: int) -> None:
    """`warren consume | head -n 3`: three messages are gone, and the others are there, in order, whatever fits into a
    pipe. What the reader has in its hands is acked, also when it goes right then.
    """
    bodies = [b"%d" % number for number in range(500)]
    with warren.attach(directory) as node:
        node.queue(name).put_many(bodies)
    taken: list[bytes] = []
    for count in (1, 3):
        consuming = begin("consume", directory, name, "--format", style)
        lines = lines_of(consuming, count, size)
        assert end(consuming, 0) == ""
        assert len(lines) == count, "each message is written when the one before it was taken"
        taken += lines if style == "raw" else [json.loads(line)["body"].encode() for line in lines]
    assert taken == bodies[:4]
    with warren.attach(directory) as node:
        queue = node.queue(name)
        assert [message.body for message in queue.browse(1000)] == bodies[4:]
        queue.delete()


def test_a_message_larger_than_a_pipe_is_taken_as_a_whole_or_not(directory: Path, name: str) -> None:
    large = bytes(200_000).replace(b"\0", b"x")
    with warren.attach(directory) as node:
        node.queue(name).put_many([large, large])
    consuming = begin("consume", directory, name)
    assert consuming.stdout is not None
    found = b""
    while len(found) < len(large) + 1 + 10:  # the first, and the begin of the second
        found += os.read(consuming.stdout.fileno(), 1000)
    consuming.stdout.close()
    consuming.stdout = None
    end(consuming, 0)
    with warren.attach(directory) as node:
        queue = node.queue(name)
        assert [(message.body, message.redelivered) for message in queue.browse()] == [(large, True)]
        queue.delete()


def test_all_of_a_queue_goes_through_a_pipe(directory: Path, name: str) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    with warren.attach(directory) as node:
        node.queue(name).put_many(bodies)
    consuming = begin("consume", directory, name, "--timeout", 0.5)
    found, said = consuming.communicate(timeout=100)
    assert (consuming.returncode, without_waiting(said.decode())) == (0, "")
    assert found.splitlines() == bodies
    with warren.attach(directory) as node:
        assert node.queue(name).stats()["ready"] == node.queue(name).stats()["unacked"] == 0
        node.queue(name).delete()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("consume DIR NAME --timeout 1", "takes"),
        *(
            (command, "prints")
            for command in (
                *("peek DIR NAME", "top DIR --count 1", "inspect DIR"),
                *("queue list DIR", "queue show DIR NAME", "exchange list DIR"),
            )
        ),
    ],
)
def test_without_a_standard_output_nothing_is_taken_or_shown(
    directory: Path, name: str, command: str, what: str
) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put(b"unseen")
        words = [{"DIR": str(directory), "NAME": name}.get(word, word) for word in command.split()]
        closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words]
        done = subprocess.run(closed, capture_output=True, timeout=100)
        assert (done.returncode, done.stdout) == (2, b"")
        assert f"standard output is closed, so nobody would see what this {what}".encode() in done.stderr
        assert queue.stats()["ready"] == 1
        queue.delete()


@pytest.mark.parametrize("command", ["status", "check", "queue declare"])
def test_what_is_asked_for_its_exit_code_needs_no_standard_output(directory: Path, name: str, command: str) -> None:
    words = [*command.split(), str(directory), *([name] if " " in command else [])]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words]
    done = subprocess.run(closed, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_peek_leaves_everything_as_it_is(directory: Path, name: str) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put_many([b"%d" % number for number in range(20)], headers={"a": 1})
    for _again in range(2):
        peeking = begin("peek", directory, name)
        found, _said = peeking.communicate(timeout=100)
        assert found.split() == [b"%d" % number for number in range(10)]
    whole = subprocess.run(
        [*COMMAND, "peek", str(directory), name, "--count", "30", "--json"], capture_output=True, timeout=100
    )
    rows = [json.loads(line) for line in whole.stdout.splitlines()]
    assert len(rows) == 20
    assert not any(row["redelivered"] or row["delivery_count"] for row in rows)
    assert rows[0]["headers"] == {"a": 1}
    with warren.attach(directory) as node:
        queue = node.queue(name)
        assert (queue.stats()["delivered"], queue.depth()) == (0, 20)
        queue.delete()


def test_peek_has_the_id_that_logs_name_a_message_by(
    directory: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put(b"not for us", message_id="ours")

        def fail(_message: warren.Message) -> None:
            worker.stop()
            raise ValueError("no")

        worker = node.worker(queue, fail, backoff=0.001)
        worker.run()
        for command in (("peek",), ("consume", "--count", "1")):
            shown = begin(command[0], directory, name, "--json", *command[1:])
            row = json.loads(shown.communicate(timeout=100)[0])
            assert any(f"message {row['id']}" in record.getMessage() for record in caplog.records)
            assert row["properties"] == {"message_id": "ours"}
        queue.delete()


def test_json_marks_what_it_cannot_say(directory: Path, name: str) -> None:
    headers = {"raw": b"\xff", "text": "/w==", "rates": [1.5, float("nan"), {"most": float("-inf")}]}
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put(b"x", headers=headers, properties={"correlation_id": b"\x00"})
        (row,) = map(json.loads, begin("peek", directory, name, "--json").communicate(timeout=100)[0].splitlines())
        marked = {
            "raw": {"base64": "/w=="},
            "text": "/w==",
            "rates": [1.5, {"float": "nan"}, {"most": {"float": "-inf"}}],
        }
        assert row["headers"] == marked
        assert row["properties"] == {"correlation_id": {"base64": "AA=="}}
        queue.delete()


# -- what a message is published with ----------------------------------------------------------------------------------


def test_publish_says_of_a_message_what_a_program_can_say(directory: Path, name: str) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name, deduplication_window=600)
        told = ("--property", "content_type=text/plain", "--property", "timestamp=12.5", "--property", "app_id=a=b")
        once = ("publish", directory, name, "--message-id", "one", "--reply-to", "back", *told, "--header", "h=v")
        for _again in range(2):  # the second is dropped: its id was seen
            end(begin(*once, "--body", "x", "--priority", 3, "--ttl", 600), 0)
        message = queue.get(20)
        wanted = {"content_type": "text/plain", "timestamp": 12.5, "app_id": "a=b", "reply_to": "back"}
        assert message.properties == wanted | {"message_id": "one"}
        assert (message.headers, message.priority, message.reply_to) == ({"h": "v"}, 3, "back")
        message.ack()
        latin = ("--header", "name=caf\udce9", "--property", "type=\udcff", "--message-id", "\udcfe")
        end(begin("publish", directory, name, "--body", "caf\udce9", *latin), 0)
        message = queue.get(20)
        assert (message.body, message.headers) == (b"caf\xe9", {"name": b"caf\xe9"})
        assert message.properties == {"type": b"\xff", "message_id": b"\xfe"}
        message.ack()
        assert (queue.stats()["published"], queue.stats()["duplicates"]) == (2, 1)
        queue.delete()


# -- what is for people -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "list", "NONE"),
        ("queue", "show", "NONE", "q"),
        ("queue", "declare", "NONE", "q"),
        ("queue", "delete", "NONE", "q"),
        ("queue", "bind", "NONE", "q", "amq.topic", "k"),
        ("exchange", "list", "NONE"),
    ],
    ids=" ".join,
)
def test_a_directory_that_is_not_there_is_said_to_be_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    said = end(begin(*(tmp_path / "none" if word == "NONE" else word for word in words)), 3)
    assert "no such directory: " in said


def test_top_writes_whole_looks_into_a_pipe(directory: Path) -> None:
    shown, _said = begin("top", directory, "--count", 2, "--interval", 0.1).communicate(timeout=100)
    assert shown.endswith(b"\n")
    assert shown.count(b"store: ") == 2
    assert shown.count(b"under way") == 2
    assert b"\x1b" not in shown


def test_check_gives_the_size_of_each_file(directory: Path) -> None:
    shown, _said = begin("check", directory, "--verbose").communicate(timeout=100)
    for name in ("node.json", "catalog.json"):
        (line,) = [line for line in shown.decode().splitlines() if f"{name}:" in line]
        assert not line.endswith(", 0 B"), line


# -- output that fails, terminals, JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("status", "DIR", "--json"), ("status", "DIR"), ("queue", "list", "DIR", "--all"), ("exchange", "list", "DIR")],
    ids=" ".join,
)
def test_an_output_without_space_is_named(directory: Path, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        said = end(begin(*(directory if word == "DIR" else word for word in words), stdout=full), 1)
    if "--json" in words:
        said = json.loads(said)["message"]
    assert "cannot write to standard output: No space left on device" in said


def test_a_message_that_could_not_be_printed_stays(directory: Path, name: str) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put(b"x")
        with open("/dev/full", "wb") as full:
            said = end(begin("consume", directory, name, "--count", 1, stdout=full), 1)
        assert "cannot write to standard output" in said
        assert queue.get(20).body == b"x"
        queue.delete()


def printed(*words: object, code: int = 0, **environment: str) -> bytes:
    """Standard output of a command; standard error, if there is anything else."""
    ended = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, env=os.environ | environment, timeout=100)
    assert b"Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    return ended.stdout or ended.stderr


def test_names_that_the_terminal_cannot_show_are_escaped(directory: Path) -> None:
    """And what programs read is UTF-8."""
    environment: dict[str, Any] = {"PYTHONIOENCODING": "ascii"}
    with warren.attach(directory) as node:
        node.queue("käse").put(b"\xc3\xa4")
    for words in (("status",), ("queue", "list"), ("queue", "list", "--all"), ("exchange", "list")):
        printed(*words[:2], directory, *words[2:], **environment).decode("ascii")
    assert b"k\\xe4se" in printed("queue", "show", directory, "käse", **environment)
    (row,) = json.loads(printed("queue", "list", directory, "k*se", "--json", **environment))
    assert row["name"] == "käse"
    assert printed("peek", directory, "käse", **environment) == b"\xc3\xa4\n"
    assert (
        json.loads(printed("consume", directory, "käse", "--count", 1, "--format", "json", **environment))["body"]
        == "ä"
    )
    with warren.attach(directory) as node:
        node.delete_queue("käse")


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("status", "NONE", "--json"), 3, "NodeNotRunning"),
        (("stop", "NONE", "--json"), 3, "NodeNotRunning"),
        (("check", "NONE", "--json"), 3, "NodeNotRunning"),
        (("status", "--json"), 2, "UsageError"),
        (("queue", "delete", "DIR", "none", "--json"), 2, "QueueNotFound"),
        (("queue", "declare", "DIR", "a/b", "--json"), 2, "InvalidName"),
        (("publish", "DIR", "none", "--json", "--body", "x"), 2, "QueueNotFound"),
        (("publish", "DIR", "--exchange", "amq.topic", "--mandatory", "--json", "--body", "x"), 1, "Unroutable"),
        (("consume", "DIR", "none", "--format", "json"), 2, "QueueNotFound"),
        (("consume", "DIR", "none", "--format=json"), 2, "QueueNotFound"),
        (("peek", "DIR", "none", "--json"), 2, "QueueNotFound"),
        (("nonsense", "--json"), 2, "UsageError"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_errors_are_json_where_it_was_asked_for(
    directory: Path, tmp_path: Path, words: tuple[str, ...], code: int, kind: str
) -> None:
    places = {"DIR": directory, "NONE": tmp_path / "none"}
    said = end(begin(*(places.get(word, word) for word in words)), code)
    error = json.loads(said)
    assert (error["error"], len(said.splitlines())) == (kind, 1)
    assert error["message"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("consume", "DIR", "notes", "--count", "1", "--timeout", "0.1"), 4),
        (("consume", "DIR", "notes", "--timeout", "0.1"), 0),
        (("topic", "find", "DIR", "notes", "--key", "zz"), 1),
        (("topic", "tail", "DIR", "notes", "--timeout", "0.1"), 0),
    ],
)
def test_what_is_said_beside_the_result_is_json_too(directory: Path, words: tuple[str, ...], code: int) -> None:
    with warren.attach(directory) as node:
        node.queue("notes")
        node.topic("notes")
    said = end(begin(*(directory if word == "DIR" else word for word in words), "--json"), code)
    assert [list(json.loads(line)) for line in said.splitlines()] == [["note"]]


def test_what_looks_like_the_option_and_is_a_value_is_none(directory: Path) -> None:
    said = end(begin("queue", "delete", directory, "--", "--json"), 2)
    assert said.startswith("warren: there is no queue '--json'")


@pytest.mark.parametrize("say", [lambda text: output.starting(text, False), output.started])
def test_what_a_program_is_told_of_a_directory_that_is_no_utf8_is_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """A start that takes long says so to the program that waits for it."""
    monkeypatch.setenv(ERRORS_VARIABLE, "1")
    say("/data/n\udcffde")
    assert "/data/n\\udcffde" in json.loads(capsys.readouterr().err).values()
