"""Goal: `warren topic replay` fills a queue from a shell; one that is interrupted names the command that does the rest,
no less and no more; what it says at its end is so.

Method: a topic whose messages differ in tag and key; a replay that is slow because of its --rate, and a Ctrl-C; what it
says is typed as it stands.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warren

from support.command_line import warren as run
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
TIMEOUT = 60 * patience()


def emptied(node: warren.Node, queue: str) -> list[bytes]:
    """All that is in a queue, in order; it is deleted."""
    found = node.queue(queue, create=False)
    bodies = [message.body for message in found.browse(10_000)]
    found.delete()
    return bodies


def suggested(said: str) -> list[str]:
    """The one command that a text suggests, as a shell reads it."""
    (found,) = re.findall("`([^`]+)`", said)
    return shlex.split(found)[1:]


@pytest.mark.parametrize(("style", "how"), [("", signal.SIGTERM), ("--json", signal.SIGINT)])
def test_what_an_interrupted_replay_suggests_does_the_rest(
    directory: Path, node: warren.Node, name: str, style: str, how: signal.Signals
) -> None:
    """Also when the topic has got more meanwhile, which were not asked for."""
    topic = node.topic(name, queues=2)
    for number in range(400):
        key, tag = f"k{number % 2}", f"t {number % 4}"
        topic.append(b"%d" % number, key, tag, queue=number % 3 % 2, durability="written")
    node.queue(name, deduplication_window=3600)
    wanted = [b"%d" % number for number in range(380) if number % 2 == 0 and number % 4 in (0, 2)]
    ends = [sum(1 for number in range(380) if number % 3 % 2 == queue) for queue in range(2)]
    options = ["--end", f"0={ends[0]},1={ends[1]}", "--tag", "t 0", "--tag", "t 2", "--tag", "t 3", "--key", "k0"]
    program = [sys.executable, "-m", "warren", "topic", "replay", str(directory), name, name, *options]
    replay = subprocess.Popen([*program, "--rate", "20", *style.split()], stdout=-1, stderr=-1, text=True)
    wait_until(lambda: node.queue(name).stats()["ready"] >= 3, 60, what="the first messages")
    replay.send_signal(how)
    _printed, said = replay.communicate(timeout=TIMEOUT)
    assert replay.returncode == 130, said
    topic.append_many([b"later"] * 4, "k0", "t 0", queue=0)
    if style:
        (said,) = [json.loads(line)["note"] for line in said.splitlines() if line]
    words = suggested(said)
    assert words[words.index("--rate") + 1] == "20"
    assert (style in words) == bool(style)
    words[words.index("--rate") + 1] = "1000"  # a test has no time for 20 a second
    rest = run(*words)
    assert (json.loads(rest.stdout)["replayed"] if style else "messages of topic" in rest.stderr) > 0
    assert emptied(node, name) == wanted


def test_one_that_was_refused_suggests_nothing(directory: Path, node: warren.Node, name: str) -> None:
    node.topic(name, queues=1).append(b"x")
    node.queue(name)
    said = run("topic", "replay", directory, name, name, "--tag", "", code=2).stderr
    assert len(said.splitlines()) == 1
    assert "replay" not in said
    assert emptied(node, name) == []


def test_the_last_line_says_what_begins_there(directory: Path, node: warren.Node, name: str) -> None:
    topic = node.topic(name, queues=1)
    topic.append_many([b"%d" % number for number in range(5)])
    node.queue(name)
    replay = ("topic", "replay", directory, name, name)
    said = run(*replay, "--end", "0=3").stderr
    assert said.startswith(f"3 messages of topic {name} replayed into queue {name} in ")
    assert said.endswith("; what --end left out, and what comes, begins at --start '0=3'\n")
    for end in ("0=5", "latest", "2999-01-01"):
        said = run(*replay, "--start", "0=3", "--end", end).stderr
        assert said.endswith("; what was appended since it began, and what comes, begins at --start '0=5'\n")
    assert emptied(node, name) == [b"0", b"1", b"2", *[b"3", b"4"] * 3]
