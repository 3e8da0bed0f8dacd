"""Goal: a start that waits says within a second or two for what, ends within its start timeout with what to do, and
leaves nothing behind that nobody knows of.

Method: real nodes. The test has the lock of a folder that a server needs (nothing of the node lives yet), or a node is
killed on a full disk while a client of it lives (it is taken over). `up`, `up --detach` and `warren.open` wait for it.
"""

import contextlib
import fcntl
import logging
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support.long import in_part
from support.real_node import SMALL, RealNode
from support.small_disk import Disk, alarm_off, status
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

WAIT_S = 60.0
LEFT = 64 << 10
SETTINGS = tuple(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}"))
NOT_UP = 4
INTERRUPTED = 130


def begin(directory: Path, *words: str) -> "subprocess.Popen[str]":
    """`warren up`, with what it prints in one stream."""
    command = interpreter.command("warren", "up", str(directory), *words)
    return subprocess.Popen(
        command,
        env=interpreter.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def up(directory: Path, *words: str) -> tuple[int, str]:
    """Exit code of `warren up`, and what it printed."""
    with begin(directory, *words) as process:
        said, _nothing = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def heard(process: "subprocess.Popen[str]", words: str) -> str:
    """Read until a line has these words."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended: {said}")


def stop(directory: Path) -> None:
    target = NodeDirectory(directory)
    with contextlib.suppress(warren.NodeNotRunning), ControlClient(directory) as control:
        control.call("stop")
    wait_until(lambda: not target.locked(), WAIT_S, what="the end of the node")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A node that was started once, and does not run."""
    with RealNode(tmp_path / "node") as real, warren.attach(real.directory) as node:
        node.queue("work").put(b"confirmed")
    return tmp_path / "node"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Somebody else has a folder of the node."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def nothing_left(directory: Path) -> bool:
    return not NodeDirectory(directory).locked()


@pytest.mark.parametrize("detach", in_part([True, False]))
@pytest.mark.parametrize(("folder", "role"), [("store", "store"), ("queues/worker-0", "worker-0")])
def test_a_first_start_does_not_wait_for_a_folder_for_ever(
    directory: Path, folder: str, role: str, detach: bool
) -> None:
    most_s = round(2 * patience())
    words = ["--start-timeout", f"{most_s}", *(["--detach"] if detach else [])]
    with held(directory / folder):
        code, said = up(directory, *words)
        assert code == NOT_UP, said
        assert f"waiting: {role} waits for process {os.getpid()}, which has {directory / folder}" in said
        assert f"it is not up after {most_s} s" in said
        assert "stop the node that it belongs to" in said
        wait_until(lambda: nothing_left(directory), WAIT_S, what="the end of the supervisor")
    with warren.open(directory, idle_exit=None) as node:
        assert node.queue("work").get(timeout=WAIT_S).body == b"confirmed"
    stop(directory)


@pytest.mark.parametrize("detach", [True, False])
def test_a_folder_that_becomes_free_ends_the_wait(directory: Path, detach: bool) -> None:
    with contextlib.ExitStack() as holding:
        holding.enter_context(held(directory / "store"))
        with begin(directory, *(["--detach"] if detach else [])) as process:
            heard(process, "waiting: store waits for")
            holding.close()
            heard(process, "is up for")
            stop(directory)
            assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_who_ends_a_start_before_it_is_up_ends_what_it_began(
    directory: Path, number: signal.Signals, code: int
) -> None:
    with held(directory / "store"), begin(directory, "--detach") as process:
        heard(process, "waiting: store waits for")
        process.send_signal(number)
        assert process.wait(WAIT_S) == code
        wait_until(lambda: nothing_left(directory), WAIT_S, what="the end of the supervisor")


def test_open_says_what_it_waits_for(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with held(directory / "store"), caplog.at_level(logging.WARNING, "warren"):
        with pytest.raises(
            warren.TimedOut, match=f"did not serve within .* s: store waits for process {os.getpid()}, which has"
        ):
            warren.open(directory, timeout=3 * patience(), idle_exit=None)
        assert any("waiting: store waits for process" in line for line in caplog.messages)
        wait_until(lambda: nothing_left(directory), WAIT_S, what="the end of the supervisor")


def test_a_second_start_says_whom_it_waits_for(directory: Path) -> None:
    with held(directory / "store"), begin(directory) as first:
        heard(first, "waiting: store waits for")
        with begin(directory, "--detach", "--adopt") as second:
            said = heard(second, "waiting: ")
            assert re.search(rf"in use by process {first.pid}\b.* not up yet", said)
            first.send_signal(signal.SIGINT)
            first.wait(WAIT_S)
            heard(second, "waiting: store waits for")
            second.send_signal(signal.SIGINT)
            assert second.wait(WAIT_S) == INTERRUPTED


# -- a node that was killed, and has a client ------------------------------------------------------------------------


@contextlib.contextmanager
def killed_with_a_client(disk: Disk) -> Iterator[warren.Queue]:
    """Every process of a node is dead, and a client of it lives (this process). The test keeps the disk full."""
    real = RealNode(disk.directory, disk_free_bytes_min=0)
    real.start()
    with warren.attach(disk.directory) as node:
        queue = node.queue("work")
        queue.put(b"confirmed")
        real.kill_all()
        try:
            yield queue
        finally:
            stop(disk.directory)


NO_SPACE = "waiting: there is no space on the disk to start the "


def served_again(disk: Disk, queue: warren.Queue) -> None:
    assert not nothing_left(disk.directory)
    disk.empty()
    wait_until(lambda: all(row["state"] == "ready" for row in status(disk.directory)["processes"][1:]), WAIT_S)
    alarm_off(disk.directory)
    assert queue.get(timeout=WAIT_S).body == b"confirmed"


def test_a_node_taken_over_goes_on_trying_and_says_so(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with killed_with_a_client(disk) as queue:
        most_s = round(2 * patience())
        with disk.kept_full(LEFT):
            code, said = up(disk.directory, "--detach", "--start-timeout", f"{most_s}")
        assert code == NOT_UP, said
        assert NO_SPACE in said
        assert f"is not up after {most_s} s" in said
        assert "keeps trying" in said
        assert f"`warren stop {disk.directory}` ends it" in said
        served_again(disk, queue)


def test_a_node_taken_over_in_the_foreground_says_what_it_waits_for(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with contextlib.ExitStack() as holding, killed_with_a_client(disk) as queue:
        with disk.kept_full(LEFT):
            process = holding.enter_context(begin(disk.directory, "--start-timeout", "1"))
            heard(process, NO_SPACE)
            heard(process, "so it keeps trying")
        served_again(disk, queue)
        heard(process, "is up for")
        stop(disk.directory)
        assert process.wait(WAIT_S) == 0


def test_open_of_a_node_taken_over_says_what_it_waits_for(small_disk: Path) -> None:
    disk = Disk(small_disk)
    for _try in range(5):  # a start cuts files, too, and may take what that sets free before the disk is full again
        with killed_with_a_client(disk) as queue:
            said = ""
            with disk.kept_full(LEFT):
                try:
                    warren.open(disk.directory, timeout=4 * patience(), idle_exit=None).close()
                except warren.TimedOut as error:
                    said = str(error)
            served_again(disk, queue)
        if said:
            break
    assert "there is no space on the disk to start the" in said
