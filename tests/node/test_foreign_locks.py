"""Goal: whoever may read a directory can lock it, and so hold up a start. Then the true holder is named, with its user,
and nobody is told that a node runs there (rule N21).

Method: a member of the node's group, and a process of the owner that is no node, have the lock; the lock file says what
an earlier node, or the member, wrote into it.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import DirectoryInUse
from warren.ipc import kernel_locks

from support import users
from support.users import ALICE, BOB, GROUP, User, home, node_of

pytestmark = pytest.mark.integration

HOLD = """
import fcntl, os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(folder, int(sys.argv[2]))
if len(sys.argv) > 3:
    with open(sys.argv[1] + "/lock", "w") as file:
        file.write(sys.argv[3])
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(user: User, folder: Path, kind: int = fcntl.LOCK_EX, text: str = "") -> Iterator[int]:
    """A process of a user has the lock of a folder; its pid."""
    words = [str(folder), str(kind), *([text] if text else [])]
    with subprocess.Popen(
        [*users.prefix(user), sys.executable, "-P", "-c", HOLD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.stdin.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a node with a group, which has run."""
    if why := users.why_not():
        pytest.skip(why)
    users.let_in(tmp_path)
    path = home(tmp_path, ALICE) / "data"
    with node_of(ALICE, path, group=str(GROUP)):
        pass
    return path


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["exclusive", "shared"])
def test_a_member_who_has_the_lock_is_named(directory: Path, kind: int) -> None:
    said_pid = NodeDirectory(directory)._lock_text()[0]
    with held(BOB, directory, kind) as pid:
        _pid, code, said = users.warren(ALICE, "up", directory, "--detach")
        assert code == 2, said
        assert f"no node runs for {directory}, but process {pid} of user {BOB.uid} has its lock" in said
        assert f"process {said_pid}" not in said
        assert "attach to its node" not in said
        _pid, code, said = users.warren(ALICE, "check", directory, "--repair")
        assert code == 2, said
        assert f"process {pid} of user {BOB.uid} has its lock" in said
        _pid, code, said = users.warren(ALICE, "stop", directory)
        assert code == 3, said
        assert "no node runs" in said
        assert "nothing to stop" in said
        assert f"process {pid} of user {BOB.uid} has its lock" in said
    with node_of(ALICE, directory):
        pass


def test_what_a_member_writes_into_the_lock_file_is_not_believed(directory: Path) -> None:
    """A process of the owner lives, and the member writes its number there: it has no lock."""
    with subprocess.Popen([*users.prefix(ALICE), "sleep", "1000"]) as other:
        try:
            with held(BOB, directory, text=f"{other.pid}\nPID namespace 1\n") as pid:
                _pid, code, said = users.warren(ALICE, "up", directory, "--detach")
                assert code == 2, said
                assert f"process {pid} of user {BOB.uid} has its lock" in said
                assert str(other.pid) not in said
                assert NodeDirectory(directory).lock_holder() == 0
        finally:
            other.kill()


def test_a_member_who_has_the_lock_of_a_folder_is_named(directory: Path) -> None:
    with held(BOB, directory / "store") as pid:
        _pid, code, said = users.warren(ALICE, "check", directory, "--repair")
        assert code == 2, said
        assert f"{directory / 'store'} is locked by process {pid} of user {BOB.uid}" in said


def test_a_process_of_the_owner_that_is_no_node_is_named(tmp_path: Path) -> None:
    """It may be about to start one: then it has not written the lock file yet."""
    (tmp_path / "lock").write_text("1\n")  # it lives, and has no lock
    with held(users.SUPERUSER, tmp_path) as pid:
        with pytest.raises(DirectoryInUse, match=f"in use by process {pid}, which has its lock"):
            NodeDirectory(tmp_path).lock()
        assert NodeDirectory(tmp_path).lock_holder() == 0
        assert [each.pid for each in kernel_locks.holders(os.stat(tmp_path))] == [pid]


def test_a_lock_that_outlived_its_taker_has_no_holder(tmp_path: Path) -> None:
    """A child has the descriptor; the kernel says who took the lock."""
    script = "import os, sys; exec(sys.argv[-1]) if os.fork() == 0 else os._exit(0)"
    rest = "print('forked', flush=True); sys.stdin.read()"
    program = HOLD.replace("sys.stdin.read()", "") + script.replace("import os, sys; ", "")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(tmp_path), str(fcntl.LOCK_EX), f"{os.getpid()}", rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert process.stdout.readline() == b"forked\n"
        process.wait()
        (tmp_path / "lock").write_text(f"{process.pid}\n")
        with pytest.raises(DirectoryInUse, match="in use by another process"):
            NodeDirectory(tmp_path).lock()
        process.stdin.close()
