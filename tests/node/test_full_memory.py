"""Goal: whoever of a node dies while /dev/shm is full is started again until there is room, says so in words, and
nothing confirmed is lost; a node that cannot start for it says why.

Method: a program in a mount namespace of its own, with a small /dev/shm, so that nobody else's is filled. It fills what
is left, kills a process of its node, looks at the alarm, makes room, and reads everything.
"""

import errno
import json
import subprocess
import sys
from pathlib import Path

import posix_ipc
import pytest

from warren.engine.errors import DiskFull, LimitError, StoreError
from warren.engine.saying import BURST
from warren.ipc import region
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import SlotsFull
from warren.workers.process import interpreter, lack

from support.long import in_part

pytestmark = pytest.mark.integration

IN_NAMESPACE = """
import os, subprocess, sys
if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={sys.argv.pop(1)}", "none", "/dev/shm"]).returncode:
    sys.exit(77)
"""
PROGRAM = (
    IN_NAMESPACE
    + """
import json, signal, time
import warren
from warren.workers.process.control import ControlClient

directory, role, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
settings = {"workers": 2, "file_bytes": 1 << 20, "arena_bytes": 1 << 20, "message_bytes_max": 1 << 18}

def until(condition, what):
    end = time.monotonic() + 300  # a process of its own: it does not know how busy the machine is
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found

def report():
    with ControlClient(directory) as control:
        return control.call("status", timeout=30)

def process():
    return next(p for p in report()["processes"] if (p["role"], p["index"]) == (role, index))

def fill():
    with open("/dev/shm/ballast", "ab") as file:
        size = 1 << 20
        while size:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), size)
                file.seek(0, 2)
            except OSError:
                size //= 2

with warren.open(directory, idle_exit=60, **settings) as node:
    queues = [node.queue(f"q{n}") for n in range(8)]
    for queue in queues:
        queue.put_many([b"small", bytes(9000)])
    old = process()
    fill()
    os.kill(old["pid"], signal.SIGKILL)
    said = {}
    if role in ("store", "queue_worker"):
        def alarm():
            fill()  # what died leaves some
            rows = [row for row in report()["alarm_details"] if row["alarm"] == "memory"]
            return next((row for row in rows if "to start" in row["text"]), None)
        said["alarm"] = until(alarm, "an alarm")
        first = process()["restarts"]
        until(lambda: process()["restarts"] >= first + 2, "more starts")
        said["messages"] = report()["messages"]
    os.unlink("/dev/shm/ballast")
    until(lambda: process()["state"] == "ready" and process()["pid"] not in (None, old["pid"]), "another process")
    until(lambda: not report()["alarms"], "the end of the alarm")
    bodies = [message.body for queue in queues for message in queue.get_many(2, timeout=30)]
    assert bodies == [b"small", bytes(9000)] * 8, [len(body) for body in bodies]
    said["left"] = sorted(name for name in os.listdir("/dev/shm") if "qstats" in name)
    with ControlClient(directory) as control:
        control.call("stop")
print(json.dumps(said))
"""
)


def in_namespace(program: str, *words: str, kind: str = "--mount") -> "subprocess.CompletedProcess[str]":
    command = ["unshare", kind, sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(
        command, env=interpreter.environment(), capture_output=True, text=True, timeout=110, check=False
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"a namespace of its own needs the rights of root: {done.stderr.strip()}")
    return done


SEGMENTS = """
import os, signal, sys, time
import warren
from warren.workers.process.control import ControlClient

def until(condition, what):
    end = time.monotonic() + 300  # a process of its own: it does not know how busy the machine is
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found

def limit(count):
    with open("/proc/sys/kernel/shmmni", "w") as file:
        file.write(str(count))

def report():
    with ControlClient(sys.argv[1]) as control:
        return control.call("status", timeout=30)

try:
    limit(4096)
except OSError:
    sys.exit(77)
settings = {"workers": 1, "file_bytes": 1 << 20, "arena_bytes": 1 << 20, "message_bytes_max": 1 << 18}
with warren.open(sys.argv[1], idle_exit=60, **settings) as node:
    queue = node.queue("q")
    queue.put(b"confirmed")
    limit(0)
    os.kill(next(p["pid"] for p in report()["processes"] if p["role"] == "queue_worker"), signal.SIGKILL)
    text = until(lambda: next(iter(report()["alarms"]), None), "an alarm")
    print(text)
    limit(4096)
    until(lambda: not report()["alarms"], "the end of the alarm")
    assert queue.get(timeout=30).body == b"confirmed"
    with ControlClient(sys.argv[1]) as control:
        control.call("stop")
"""


def test_a_death_while_no_segment_is_to_be_had(tmp_path: Path) -> None:
    """In an IPC namespace of its own, whose limit of segments is lowered."""
    done = in_namespace(SEGMENTS, str(tmp_path / "node"), kind="--ipc")
    assert done.returncode == 0, done.stderr
    assert "there is no System V segment (kernel.shmmni, kernel.shmall) to start the worker-0 (" in done.stdout
    assert "of 0 segments, and " in done.stdout
    assert "raise the limits with sysctl" in done.stdout


STANDSTILL = (
    IN_NAMESPACE
    + """
import json
import warren
from warren.workers.process.control import ControlClient

directory = sys.argv[1]
bodies = [bytes([n % 251]) * size for n in range(20) for size in (1000, 3000, 5000, 60000)]
with warren.open(directory, idle_exit=60) as node:
    queues = [node.queue(f"q{n}") for n in range(4)] + [node.queue("memory", durable=False)]
    with open("/dev/shm/ballast", "wb") as file:
        size = 1 << 20
        while size:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, 2), size)
            except OSError:
                size //= 2
    for _ in range(8):
        for queue in queues:
            queue.put_many(bodies, timeout=60)
    with ControlClient(directory) as control:
        said = {"alarms": control.call("status", timeout=30)["alarms"]}
    found = os.statvfs("/dev/shm")
    said["full"] = found.f_bavail * found.f_frsize < 2 << 20
    for queue in queues:
        first = queue.get(timeout=60)
        assert first.body == bodies[0]
        first.ack()
        queue.release()
        count = 1
        for message in queue.consume(timeout=1):
            assert message.body == bodies[count % len(bodies)]
            message.ack()
            count += 1
        assert count == 8 * len(bodies), count
    with ControlClient(directory) as control:
        control.call("stop")
print(json.dumps(said))
"""
)


@pytest.mark.parametrize("size", ["32m", "256m"])
def test_messages_pass_while_shared_memory_is_full(tmp_path: Path, size: str) -> None:
    """Somebody else fills what a node of either profile wanted to use: publishers and consumers go on with what there
    is.
    """
    done = in_namespace(STANDSTILL, size, str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == {"alarms": [], "full": True}


KILLED = (
    IN_NAMESPACE
    + """
import signal
import warren
from warren.workers.process.control import ControlClient

directory = sys.argv[1]
with warren.open(directory, idle_exit=60, profile="small") as node:
    queue = node.queue("q")
    for _round in range(2):
        for n in range(100):
            queue.put(os.urandom(200_000), timeout=100)
        queue.put_many([b"small"] * 20_000)
        with ControlClient(directory) as control:
            processes = control.call("status", timeout=30)["processes"]
        for process in processes:
            if process["role"] in ("store", "queue_worker"):
                os.kill(process["pid"], signal.SIGKILL)
        queue.put(b"again", timeout=100)
    assert queue.stats()["ready"] + queue.stats()["unacked"] == 2 * 20_101
    with ControlClient(directory) as control:
        control.call("stop")
"""
)


@pytest.mark.parametrize("size", in_part(["20m", "32m", "28m", "48m"], 2))
def test_killed_servers_find_room_beside_what_they_left(tmp_path: Path, size: str) -> None:
    """Nobody but the node itself has filled /dev/shm."""
    done = in_namespace(KILLED, size, str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("who", ["store", "queue_worker", "collector", "supervisor"])
def test_a_death_while_shared_memory_is_full(tmp_path: Path, who: str) -> None:
    directory = tmp_path / "node"
    done = in_namespace(PROGRAM, "80m", str(directory), who, "0")
    logs = {path.name: path.read_text() for path in (directory / "log").glob("*.log")}
    assert done.returncode == 0, done.stderr + str(logs)
    assert not [name for name, text in logs.items() if "Traceback" in text], logs
    said = json.loads(done.stdout)
    assert len(said["left"]) == 2, "one region of statistics for each worker"
    if who in ("store", "queue_worker"):
        name = {"store": "store", "queue_worker": "worker-0"}[who]
        assert f"there is no room in /dev/shm to start the {name} (" in said["alarm"]["text"]
        assert "of 80 MiB are free" in said["alarm"]["text"]
        assert "remount" in said["alarm"]["text"]
        assert said["alarm"]["servers"] == [name]
        assert 1 <= sum("finds no room in /dev/shm" in line for line in said["messages"]) <= BURST
        assert logs[f"{name}.log"].count("finds no room in /dev/shm") == 1


def test_a_start_without_shared_memory_says_why(tmp_path: Path) -> None:
    """What there is, and what is needed, in figures."""
    program = IN_NAMESPACE + "os.execv(sys.executable, [sys.executable, '-P', '-m', 'warren', *sys.argv[1:]])"
    small = ("--set", "file_bytes=1048576", "--set", "message_bytes_max=100000")
    done = in_namespace(program, "3m", "up", str(tmp_path / "node"), *small)
    assert done.returncode == 1
    assert "of shared memory, and 3 MiB are free in /dev/shm: enlarge /dev/shm" in done.stderr
    assert not (tmp_path / "node").exists(), "a refusal leaves nothing"
    assert "Traceback" not in done.stderr


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DiskFull("x"), "DISK"),
        (region.RegionError(errno.ENOSPC, "x"), "SHM"),
        (region.RegionError(errno.ENOMEM, "x"), "MEMORY"),
        (region.SegmentRefused(errno.ENOSPC, "x"), "SEGMENTS"),
        (region.SegmentRefused(errno.ENOMEM, "x"), "MEMORY"),
        (MemoryError(), "MEMORY"),
        (OSError(errno.EAGAIN, "fork"), "FILES"),
        (caused(StoreError("x"), OSError(errno.EMFILE, "x")), "FILES"),
        (SlotsFull(), "SLOTS"),
        (LimitError("x"), None),
        (region.RegionError(errno.ENOENT, "x"), None),
        (OSError(errno.EIO, "x"), None),
        (posix_ipc.ExistentialError("x"), None),
    ],
)
def test_what_a_server_lacked_is_told_by_its_error_and_its_exit_code(error: BaseException, kind: str | None) -> None:
    found = lack.of_error(error)
    assert found == (CONSTANTS[f"LACK_{kind}"] if kind else 0)
    if kind:
        assert lack.of_exit_code(lack.exit_code(found)) == found
        assert lack.advice(found)
    assert [lack.of_exit_code(code) for code in (0, 1, 2, 3, 5, 7, 80, 81, 90, 128)] == [0] * 10


def test_figures_of_limits_can_be_read() -> None:
    assert "segments" in lack.figures(lack.SEGMENTS)
    assert "are free" in lack.figures(lack.SHM)
    assert lack.figures(lack.MEMORY) == ""
