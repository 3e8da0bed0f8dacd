"""Goal: a process is told from every other one, dead or alive, and death is never guessed.

Method: real processes: this one, a stopped one, a zombie, one that is gone, one with a recycled pid (played by a
wrong start time).
"""

import os
import platform
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from warren.ipc.identity import Identity, pid_namespace

from support.waiting import wait_until


@pytest.fixture
def child() -> Iterator[int]:
    """A child that waits for signals; killed and collected at the end."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_of_this_process() -> None:
    me = Identity.current()
    assert me == Identity.of(os.getpid())
    assert (me.pid, me.namespace) == (os.getpid(), pid_namespace())
    assert me.alive()
    described = me.describe()
    assert described is not None
    assert described.pid == me.pid


def test_nobody() -> None:
    assert Identity.of(2**22 + 5) is None
    nobody = Identity(2**22 + 5, 1, pid_namespace())
    assert not nobody.alive()
    assert nobody.open_pidfd() is None
    assert nobody.describe() is None


def test_a_recycled_pid_is_somebody_else(child: int) -> None:
    real = Identity.of(child)
    assert real is not None
    older = replace(real, start_time=real.start_time - 1)
    assert real.alive()
    assert not older.alive()
    assert older.open_pidfd() is None
    assert older.describe() is None


def test_a_stopped_process_is_alive(child: int) -> None:
    identity = Identity.of(child)
    assert identity is not None
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: state_of(child) == "T", what="the stop")
    assert identity.alive()
    pidfd = identity.open_pidfd()
    assert pidfd is not None
    assert not select.select([pidfd], [], [], 0)[0]
    os.close(pidfd)


def test_a_zombie_is_dead(child: int) -> None:
    identity = Identity.of(child)
    assert identity is not None
    pidfd = identity.open_pidfd()
    assert pidfd is not None
    os.kill(child, signal.SIGKILL)
    assert select.select([pidfd], [], [], 5)[0], "the pidfd tells the death before anybody waits for the child"
    os.close(pidfd)
    assert state_of(child) == "Z"
    assert not identity.alive()
    assert Identity.of(child) is None
    assert identity.open_pidfd() is None


def test_a_process_whose_first_thread_ended_lives_until_its_last_one_ends() -> None:
    """A killed process with threads looks so for a moment, and has its memory and its locks still."""
    program = (
        "import ctypes, os, sys, threading\n"
        "def last():\n"
        "    while open(f'/proc/{os.getpid()}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': pass\n"
        "    print('alone', flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "threading.Thread(target=last, daemon=True).start()\n"
        f"ctypes.CDLL(None).syscall({93 if platform.machine() == 'aarch64' else 60}, 0)\n"  # exit: of this thread alone
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        identity = Identity.of(process.pid)
        assert identity is not None
        assert process.stdout.readline() == "alone\n"
        assert state_of(process.pid) == "Z"
        assert identity.alive()
        assert Identity.of(process.pid) == identity
        process.stdin.close()
        wait_until(lambda: not identity.alive(), what="the end of its last thread")


def test_another_namespace_is_never_judged_by_pid() -> None:
    foreign = Identity(2**22 + 5, 1, pid_namespace() + 1)
    assert foreign.alive()


def test_a_name_with_brackets_and_spaces() -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/comm", "w") as file:
            file.write("a) R (b 1 2")
        os.write(write_end, b"x")
        while True:
            signal.pause()
    os.read(read_end, 1)
    identity = Identity.of(pid)
    assert identity is not None
    assert identity.start_time >= Identity.current().start_time
    assert identity.alive()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read_end)
    os.close(write_end)
