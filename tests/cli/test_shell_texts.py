"""Goal: who types a command is told what to type: options and commands, and not arguments and methods of Python.

Method: command lines that are wrong in all ways that topics know; a node that is stopped while somebody waits; a file
of the log that is damaged.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.workers.cli.shell_texts import for_the_command_line

from support.command_line import warren as run
from support.real_node import RealNode
from support.waiting import patience

pytestmark = pytest.mark.integration
TIMEOUT = 60 * patience()

WRONG = {
    "bind DIR t amq.topic --key None": "--key must be routing_key, ",
    "bind DIR t amq.topic --tag price": "or none, not 'price'",
    "append DIR t --body x --delay 1 --delay-level 1": "--delay and --delay-level both say when the message comes",
    "append DIR t --body x --delay 1 --at 2026-01-01 --delay-level 1": "--delay and --at and --delay-level both say",
    "append DIR t --body x --at 2990-01-01": "--at must be a time up to 3 days from now\n",
    "append DIR t --body x --queue 9": "--queue must be a number from 0 to 0, not 9",
    "append DIR t --body x --key 'a b'": "give each of them with --key",
    "lag DIR t nobody": "`warren topic groups DIR t` lists them",
    "lag DIR t ''": "GROUP '': letters, digits, and _ - % | . are allowed",
    "seek DIR t a/b earliest": "GROUP 'a/b': letters, digits",
    "delete-group DIR t a/b": "GROUP 'a/b': letters, digits",
    "seek DIR t g 5 --queue 9": "--queue must be a whole number from 0 to 0, not 9",
    "seek DIR t g 99999999999999999999 --queue 0": "WHERE must be earliest, latest, a time, or an offset from 0 to ",
    "create DIR t --retention-s 5": "retention_s=none, not 5.0: `warren topic set DIR t` changes it",
    "create DIR new --compacted --retention-s 5": "has no retention: leave out one or the other",
    "create DIR new --retention-bytes 99999999999999999999": "is more than can be counted",
    "find DIR t --key ''": "--key must not be empty",
    "replay DIR t q --start 5=5": "--start 5=5 is no offset of topic 't'",
    "replay DIR t q --rate 1e10": "'1e10' is no number of messages a second above 0, and below 1,000,000,000",
    "replay DIR t q --tag ''": "--tag must not be empty: leave it out for all messages",
    "tail DIR %DLQ%g+t": "there is no topic '%DLQ%g+t': `warren topic list DIR --all` shows the names",
}
OF_PYTHON = re.compile(
    r"None\b(?!')|datetime|ValidationError|[a-z]\.[a-z_]+\(|=True|\{\d|delay_level|a list of|close this"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("shell") / "node", workers=1) as running:
        with warren.attach(running.directory) as node:
            node.topic("t", queues=1).append(b"x")
            node.queue("q")
        yield running.directory


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_in_words_of_the_command_line(directory: Path, line: str) -> None:
    words = [str(directory) if word == "DIR" else word for word in shlex.split(line)]
    said = run("topic", *words, code=2).stderr.replace(shlex.quote(str(directory)), "DIR")
    assert WRONG[line] in said
    assert not OF_PYTHON.search(said), said


@pytest.mark.parametrize("line", ["consume DIR q", "topic tail DIR t --follow"])
def test_who_waits_while_the_node_is_stopped(tmp_path: Path, line: str) -> None:
    with RealNode(tmp_path / "node", workers=1) as running:
        directory = running.directory
        with warren.attach(directory) as node:
            node.topic("t", queues=1).append(b"x")
            node.queue("q").put(b"x")
        words = [str(directory) if word == "DIR" else word for word in line.split()]
        words += ["--start", "earliest"] if "tail" in words else []
        process = subprocess.Popen([sys.executable, "-m", "warren", *words], stdout=-1, stderr=-1, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
    _printed, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "stopped" in said.splitlines()[-1], "it is being stopped, or was"
    assert not OF_PYTHON.search(said), said


def test_damage_is_named_without_the_option_of_a_program() -> None:
    path = "/a/topics/index/1 at byte 4: expected 1, found 2"
    for advice, left in (
        (": or give damage='skip', and what is damaged is passed by", ""),
        (": or give damage='skip', and what is damaged is passed by; `warren check` tells", ": `warren check` tells"),
        (": go on at offset 7 of queue 0, or give damage='skip'; see", ": go on at offset 7 of queue 0; see"),
    ):
        assert for_the_command_line(path + advice) == path + left


def test_a_node_that_was_stopped_can_be_started() -> None:
    said = for_the_command_line("the node of /a b was stopped: start it again, or close this client")
    assert said == "the node of /a b was stopped: `warren up '/a b'` starts it"
