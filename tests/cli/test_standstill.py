"""Goal: whoever waits for a server that somebody has stopped (SIGSTOP), or looks at it, is told so, and what lets it go
on.

Method: real nodes, of which one process after the other is stopped.
"""

import asyncio
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from warren.workers.process import interpreter

from support.command_line import warren as run
from support.real_node import RealNode, frozen

pytestmark = pytest.mark.integration
WORKER, STORE, TOPICS = ("worker-0", "worker-0"), ("store", "store"), ("topic_worker", "topics")
#: what the store keeps, and no queue by itself
LARGE = bytes(50_000)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("still") / "data", workers=1) as running:
        run("queue", "declare", running.directory, "a")
        run("topic", "create", running.directory, "st")
        yield running


@pytest.fixture
def client(node: RealNode) -> Iterator[warren.Node]:
    with warren.attach(node.directory, call_timeout=0.5) as attached:
        yield attached


def told(name: str, pid: int) -> str:
    """What is said of it, as a pattern."""
    return re.escape(
        f"{name} stands still: its process {pid} was stopped (by SIGSTOP, or a debugger); `kill -CONT {pid}` lets"
    )


@pytest.mark.parametrize(("role", "name"), [WORKER, STORE, TOPICS, ("collector", "collector")])
def test_status_shows_it(node: RealNode, role: str, name: str) -> None:
    pid = node.pids()[role]
    with frozen(node, role):
        report: Any = run("status", node.directory, "--json").json()
        shown, top = (
            run(*words).stdout for words in (("status", node.directory), ("top", node.directory, "--count", 1))
        )
        servers: Any = run("inspect", node.directory, "servers", "--json").json()
    (process,) = (row for row in report["processes"] if row["pid"] == pid)
    assert process["state"] == "stopped"
    assert [line for line in report["messages"] if re.match(told(name, pid), line)]
    for text in shown, top:
        assert re.search(rf"{pid} .*\bstopped\b", text)
        assert f"`kill -CONT {pid}`" in text.replace("\n", " ")
    rows = [row for row in servers["servers"] if row["pid"] == pid]
    assert {row["state"] for row in rows} == (set() if role == "collector" else {"stopped"})
    report = run("status", node.directory, "--json").json()
    assert {row["state"] for row in report["processes"]} == {"ready"}
    assert not [line for line in report["messages"] if "stands still" in line]


Call = Callable[[warren.Node], object]
CALLS: dict[str, tuple[tuple[str, str], str, Call]] = {
    "put": (WORKER, "queue 'a'", lambda node: node.queue("a").put(b"x", timeout=0.5)),
    "put, store": (STORE, "queue 'a'", lambda node: node.queue("a").put(LARGE, timeout=0.5)),
    "confirm": (WORKER, "queue 'a'", lambda node: node.queue("a").put(b"x", wait=False).result(timeout=0.5)),
    "confirms": (WORKER, "queue 'a'", lambda node: node.queue("a").put_many([b"x"], wait=False).result(timeout=0.5)),
    "get": (WORKER, "queue 'a'", lambda node: node.queue("a").get(timeout=0.5)),
    "purge": (WORKER, "queue 'a'", lambda node: node.queue("a").purge()),
    "append": (TOPICS, "topic 'st'", lambda node: node.topic("st").append(b"x", timeout=0.5)),
    "appended": (TOPICS, "topic 'st'", lambda node: node.topic("st").append(b"x", wait=False).result(timeout=0.5)),
    "groups": (TOPICS, "topic 'st'", lambda node: node.topic("st").groups()),
    "halves": (TOPICS, "topic 'st'", lambda node: node.topic("st").halves()),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_timeout_says_it(node: RealNode, client: warren.Node, call: str) -> None:
    (role, name), whose, made = CALLS[call]
    client.queue("a"), client.topic("st")  # known before
    pid = node.pids()[role]
    with frozen(node, role), pytest.raises(warren.TimedOut, match=told(f"server {name}", pid)) as raised:
        made(client)
    assert str(raised.value).startswith(f"{whose}: ")
    assert str(raised.value).count(whose) == 1


def test_a_timeout_in_asyncio_says_it(node: RealNode) -> None:
    async def confirms() -> list[str]:
        async with await warren.aio.attach(node.directory) as attached:
            queue, topic = await attached.queue("a"), await attached.topic("st")
            said = []
            with frozen(node), frozen(node, "topic_worker"):
                for waiting in (await queue.put(b"x", wait=False), await topic.append(b"x", wait=False)):
                    with pytest.raises(warren.TimedOut) as raised:
                        await waiting.wait(0.5)
                    said.append(str(raised.value))
                with pytest.raises(warren.TimedOut) as raised:
                    await queue.put(b"x", timeout=0.5)
                said.append(str(raised.value))
            return said

    pids = node.pids()
    expected = [("queue 'a': ", WORKER), ("topic 'st': ", TOPICS), ("queue 'a': ", WORKER)]
    for said, (begin, (role, name)) in zip(asyncio.run(confirms()), expected, strict=True):
        assert said.startswith(begin)
        assert said.count(begin) == 1
        assert re.search(told(f"server {name}", pids[role]), said)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_without_an_answer_says_it(node: RealNode, asynchronous: bool) -> None:
    """But not if it is for another reason: nobody serves the queue."""

    async def calls() -> list[str]:
        async with await warren.aio.attach(node.directory) as attached:
            with pytest.raises(warren.TimedOut) as before:
                await attached.call("a", b"x", 0.2)
            with frozen(node), pytest.raises(warren.TimedOut) as meanwhile:
                await attached.call("a", b"x", 0.5)
            return [str(raised.value) for raised in (before, meanwhile)]

    def called() -> list[str]:
        with warren.attach(node.directory) as attached:
            with pytest.raises(warren.TimedOut) as before:
                attached.call("a", b"x", 0.2)
            with frozen(node), pytest.raises(warren.TimedOut) as meanwhile:
                attached.call("a", b"x", 0.5)
            return [str(raised.value) for raised in (before, meanwhile)]

    before, meanwhile = asyncio.run(calls()) if asynchronous else called()
    assert "is anybody serving it" in before
    assert "stands still" not in before
    assert re.search(told("server worker-0", node.pids()["worker-0"]), meanwhile)


@pytest.mark.parametrize(("given", "said"), [("3", "3"), ("4", "4"), ("2.5", "2.5")])
def test_a_stop_says_what_it_waits_for(tmp_path: Path, given: str, said: str) -> None:
    with RealNode(tmp_path / "data", workers=1) as running:
        pids = [running.pids()[role] for role in ("store", "worker-0")]
        with frozen(running, "store"), frozen(running, "worker-0"):
            command = interpreter.command("warren", "stop", str(running.directory), "--timeout", given)
            done = subprocess.run(command, capture_output=True, text=True)
            first, last = done.stderr.splitlines()
        assert done.returncode == 4
        assert first.startswith("warren: waiting: server store stands still")
        assert f"this command waits for at most {said} s for that" in first
        for line in first, last:
            assert all(f"`kill -CONT {pid}` lets it go on" in line for pid in pids)
        assert "finishing" not in first
