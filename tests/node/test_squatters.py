"""Goal: a user without any right stops no node: neither by names in /dev/shm, nor by message queues or semaphore keys.

Method: alice's node runs; eve, who may see nothing of it, makes whatever its next names may be, as far as she can list
any: of the next 40 generations, of the superblock before and after, of mailboxes, and files that carry the node's
prefix. Each server is killed, the supervisor too; it is stopped, killed whole, and started; a client publishes and
consumes all the while. A key and a superblock's name that are drawn twice are passed by.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.ipc import names, region
from warren.ipc.superblock import Superblock
from warren.workers.node import cold_start
from warren.workers.process import shared_objects

from support import users
from support.users import User
from support.waiting import kill, wait_until

#: of this process alone: other lanes look at what theirs have, and each start of a node removes what is left of theirs
ALICE, EVE = (User(first + os.getpid() % 400_000) for first in (600_000, 1_000_000))
pytestmark = pytest.mark.skipif(bool(why := users.why_not()), reason=why)

#: makes what is given, as far as it can be made, and says when it is done; what it made goes when its input ends
SQUAT = """
import os, sys
import posix_ipc
made = []
for name in sys.stdin.readline().split():
    try:
        os.close(os.open('/dev/shm' + name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
        made.append(name)
    except FileExistsError:
        pass
queues = []
for name in sys.argv[1:]:
    try:
        posix_ipc.MessageQueue(name, posix_ipc.O_CREX, max_messages=1, max_message_size=16)
        queues.append(name)
    except (posix_ipc.Error, OSError):
        pass
print(len(made), len(queues), flush=True)
sys.stdin.readline()
for name in queues:
    posix_ipc.unlink_message_queue(name)
for name in made:
    os.unlink('/dev/shm' + name)
"""


def foretold(prefix: str) -> list[str]:
    """Names that a user could guess from the listed names of a node: the next generations of all of them, with the
    listed tags and without any, and names of the previous version.
    """
    found = [f"{prefix}super", f"{prefix}junk"]
    for seen in region.posix_names(prefix):
        what, *rest = seen.removeprefix(prefix).split("-")
        if len(rest) == 3:
            server, generation, tag = rest
            for later in range(int(generation), int(generation) + 41):
                found += [f"{prefix}{what}-{server}-{later}", f"{prefix}{what}-{server}-{later}-{tag}"]
    return found


@contextlib.contextmanager
def squatting(prefix: str) -> Iterator[int]:
    """Eve has taken all that she can foretell; how many names in /dev/shm."""
    mailboxes = [f"{prefix}mail-{role}" for role in ("supervisor", "store", "collector")]
    command = [*users.prefix(EVE), sys.executable, "-P", "-c", SQUAT, *mailboxes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as eve:
        assert eve.stdin is not None
        assert eve.stdout is not None
        eve.stdin.write(" ".join(foretold(prefix)) + "\n")
        eve.stdin.flush()
        made, _queues = eve.stdout.readline().split()
        try:
            yield int(made)
        finally:
            eve.stdin.close()
            assert eve.wait(120) == 0


def prefix_of(directory: Path) -> str:
    return names.node_prefix(NodeDirectory(directory).shared_id)


def published_and_consumed(directory: Path) -> None:
    """Alice uses her node."""
    program = (
        "import sys, warren\n"
        "with warren.attach(sys.argv[1]) as node:\n"
        "    queue, topic = node.queue('q'), node.topic('t')\n"
        "    for body in (b'small', b'x' * 100_000):\n"
        "        queue.put(body, timeout=60)\n"
        "        message = queue.get(timeout=60)\n"
        "        assert message.body == body\n"
        "        message.ack()\n"
        "    topic.append(b'record', timeout=60)\n"
    )
    _pid, code, said = users.python(ALICE, program, directory)
    assert code == 0, said


def processes(directory: Path) -> dict[str, int]:
    """Roles and pids of alice's node, as root sees them."""
    with contextlib.closing(NodeDirectory(directory).superblock()) as superblock:
        return {
            "supervisor": superblock.supervisor.pid,
            **{superblock.role_of(n): superblock.server_identity(n).pid for n in range(superblock.servers_n)},
            "collector": superblock.collector.pid,
        }


def killed_and_back(directory: Path, role: str) -> None:
    pid = processes(directory)[role]
    kill(pid)
    wait_until(lambda: processes(directory)[role] not in (0, pid), 120, what=f"the next {role}")
    published_and_consumed(directory)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    users.let_in(tmp_path)
    return users.home(tmp_path, ALICE)


def test_a_node_lives_beside_a_squatter(home: Path) -> None:
    """The squatter's names are there while each process is killed, at the stop, and at the start after it."""
    directory = home / "node"
    node = users.node_of(ALICE, directory)
    with contextlib.ExitStack() as stack:
        stack.callback(node.stop)
        node.start()
        published_and_consumed(directory)
        made = stack.enter_context(squatting(prefix_of(directory)))
        assert made > 40
        for role in ("store", "worker-0", "topics", "collector", "supervisor"):
            killed_and_back(directory, role)
        stack.enter_context(squatting(prefix_of(directory)))  # those of now, too
        _pid, code, said = users.warren(ALICE, "stop", directory)
        assert code == 0, said
        assert "Permission" not in said
        stack.enter_context(squatting(prefix := prefix_of(directory)))
        assert region.posix_owner(names.superblock(NodeDirectory(directory).shared_id)) == EVE.uid
        _pid, code, said = users.warren(ALICE, "up", "--detach", directory)
        assert code == 0, said
        assert prefix_of(directory) != prefix, "a new node has new names"
        published_and_consumed(directory)
        _pid, code, said = users.warren(ALICE, "status", "--json", directory)
        assert f"user {EVE.uid}" in said, "whose the names are that were passed by"
        kill(*set(processes(directory).values()) - {0})
        stack.enter_context(squatting(prefix_of(directory)))
        _pid, code, said = users.warren(ALICE, "up", "--detach", directory)
        assert code == 0, said
        published_and_consumed(directory)
        log = (directory / "log" / "supervisor.log").read_text()
        assert "PermissionsError" not in log + said
        assert users.warren(ALICE, "stop", directory)[1] == 0


def test_names_that_are_taken_are_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are drawn belong to somebody else twice: a semaphore's key, and the name of a superblock."""
    taken_id, taken_key = names.draw(), names.draw_key()
    region.posix_create(names.superblock(taken_id), 4096).close()
    # what is of this user's, and of no node, any other start removes
    os.chown(region.SHM_DIRECTORY + names.superblock(taken_id), ALICE.uid, ALICE.uid)
    assert shared_objects.create_semaphore(taken_key, 0)
    later, free = names.draw_key, [names.draw_key(), names.draw_key(), names.draw_key()]
    ids, keys = iter([taken_id, names.draw(), names.draw()]), iter([*free, taken_key])
    monkeypatch.setattr(cold_start.names, "draw", lambda: next(ids))
    monkeypatch.setattr(cold_start.names, "draw_key", lambda: next(keys, 0) or later())
    said: list[str] = []
    directory = NodeDirectory(tmp_path / "node")
    directory.make()
    directory.lock()
    try:
        node = cold_start._named(directory.open_or_make({}))
        directory.write(node)
        made, superblock = cold_start._make_superblock(
            directory, node, cold_start.geometry(node.settings, 1), lambda text, level=0: said.append(text)
        )
        try:
            assert made == directory.read()
            assert made.shared_id not in (taken_id, 0)
            assert taken_key not in made.semaphore_keys
            assert len(said) == 2, said
            assert shared_objects.semaphore_exists(taken_key), "what is somebody else's stays"
        finally:
            superblock.unlink()
            superblock.close()
            for key in made.semaphore_keys:
                shared_objects.remove_semaphore(key)
    finally:
        directory.unlock()
        region.posix_unlink(names.superblock(taken_id))
        shared_objects.remove_semaphore(taken_key)


def test_no_name_follows_from_those_that_can_be_seen() -> None:
    """Two nodes of the same number differ in all names of regions, and no name contains another's tag."""
    sizes = cold_start.geometry(Settings(), 1)
    made = []
    for _turn in range(2):
        superblock = Superblock.create(names.draw(), 1, 1, 1, sizes, layout_hash=1)
        superblock.set("shared_id", 7)
        made.append([superblock.region_name("images", 2, generation) for generation in range(1, 50)])
        superblock.unlink()
        superblock.close()
    tags = [name.rpartition("-")[2] for part in made for name in part]
    assert len(set(tags)) == 98
    assert all(len(tag) == 16 for tag in tags)
