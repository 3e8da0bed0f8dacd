"""Goal: whoever has namespaces or a /dev/shm of their own beside a node on a shared volume is told in one sentence
which one differs and what to share, in whatever state the node is; and the node goes on.

Method: a node here; programs in namespaces of their own that attach, open, start and look.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

#: what is of one's own → options of unshare, what is said of it, what is to be shared
KINDS = {
    "shm": (["--mount"], "another /dev/shm", "one volume at /dev/shm"),
    "ipc": (["--ipc"], "another IPC namespace", "--ipc=container:NAME or --ipc=host"),
    "pid": (["--pid", "--fork", "--mount-proc"], "another PID namespace", "--pid=container:NAME or --pid=host"),
}
PROGRAM = """
import sys, warren
call, directory = sys.argv[1:]
try:
    if call == "attach":
        warren.attach(directory, timeout=20)
    else:
        warren.open(directory, timeout=20, idle_exit=1)
except warren.Error as error:
    print(f"{type(error).__name__}: {error}")
else:
    print("attached")
"""


def elsewhere(kinds: tuple[str, ...], *command: str) -> str:
    """What a command says in namespaces of its own."""
    options = dict.fromkeys(option for kind in kinds for option in KINDS[kind][0])
    script = "mount -t tmpfs -o size=1g none /dev/shm || exit 77; " if "shm" in kinds else ""
    done = subprocess.run(
        ["unshare", *options, "sh", "-c", f'{script}exec "$@"', "sh", *command],
        env=interpreter.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"a namespace of its own needs the rights of root: {done.stderr.strip()}")
    return done.stdout + done.stderr


def program(call: str, directory: Path) -> tuple[str, ...]:
    return (sys.executable, "-P", "-c", PROGRAM, call, str(directory))


def told(said: str, kinds: tuple[str, ...]) -> None:
    assert said.startswith("UsageError: a node runs for "), said
    assert said.count("\n") == 1, "one sentence"
    for kind, (_options, differs, share) in KINDS.items():
        assert (differs in said) == (kind in kinds), said
        assert kind not in kinds or share in said, said


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealNode]:
    node = RealNode(tmp_path / "node", workers=1)
    with node:
        yield node


COMBINATIONS = [("shm",), ("ipc",), ("pid",), ("shm", "ipc"), ("shm", "pid"), ("ipc", "pid"), ("shm", "ipc", "pid")]


@pytest.mark.parametrize("kinds", COMBINATIONS, ids="+".join)
def test_a_client_elsewhere_is_told_what_differs(real: RealNode, kinds: tuple[str, ...]) -> None:
    for call in ("attach", "open"):
        told(elsewhere(kinds, *program(call, real.directory)), kinds)
    up = elsewhere(kinds, sys.executable, "-P", "-m", "warren", "up", str(real.directory), "--detach")
    assert f"is in use by process {real.pids()['supervisor']} in another " in up
    assert '"running"' in elsewhere(
        kinds, sys.executable, "-P", "-m", "warren", "status", str(real.directory), "--json"
    ), "status works from anywhere"
    with warren.attach(real.directory) as node:
        node.queue("q").put(b"it goes on")


def test_a_mount_namespace_with_the_same_shared_memory_is_no_other_place(real: RealNode) -> None:
    done = elsewhere(("shm",)[:0], "unshare", "--mount", *program("attach", real.directory))
    if "unshare failed" in done:
        pytest.skip("a namespace of its own needs the rights of root")
    assert done == "attached\n"


def test_servers_elsewhere_that_lost_their_supervisor_are_no_free_directory(real: RealNode) -> None:
    """Nobody waits for their folders, and their own successor takes over when they run again."""
    before = real.pids()
    servers = [pid for role, pid in before.items() if role != "supervisor"]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    try:
        os.kill(before["supervisor"], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{before['supervisor']}/exe"), 10, what="its end")
        for call in ("attach", "open"):
            told(elsewhere(("shm",), *program(call, real.directory)), ("shm",))
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    with warren.open(real.directory, timeout=60, idle_exit=None) as node:
        node.queue("q").put(b"it goes on", timeout=60)
        assert node.queue("q").get(timeout=60).body == b"it goes on"
    with ControlClient(real.directory) as control:
        control.call("stop")
    wait_until(lambda: not NodeDirectory(real.directory).locked(), 60, what="the end of the node")
