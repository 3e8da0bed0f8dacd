"""Which node is whose: copies, moved, removed and replaced directories, shared memory that went, other namespaces.

Goal: never two writers, never the wrong node, and what was confirmed is there.
Method: real nodes, and what people and machines do to their directories and to their shared memory; a publisher that
goes on all the time writes down what was confirmed, outside of the node.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import DirectoryInUse, NodeNotRunning, StoreError
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import names, region
from warren.ipc.identity import Identity, Namespaces
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.faces import node as node_module
from warren.workers.node.supervisor import Supervisor
from warren.workers.process import remains
from warren.workers.process.control import ControlClient
from warren.workers.process.shared_objects import remove_semaphore
from warren.workers.process.tie import Tie
from warren.workers.servers.worker_process import WorkerProcess, run_worker

from support.long import in_part
from support.real_node import RealNode
from support.waiting import patience, wait_until

QUEUE = "jobs"
PUBLISHER = Path(__file__).parents[1] / "support" / "steady_publisher.py"
#: an IPC namespace of its own, which is without System V and POSIX message queues of the machine
OTHER_IPC = ("unshare", "--ipc")
#: and a /dev/shm of its own: what a container is like
OTHER_SHM = ("unshare", "--ipc", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
CONTAINER = ("unshare", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", *OTHER_SHM)
OTHER_PID = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
OTHER_TIME = ("unshare", "--time", "--fork", "--kill-child", "--boottime", "1000")


def can(*prefix: str) -> bool:
    """Whether this user may run something so."""
    try:
        return subprocess.run([*prefix, "true"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def needs(*prefix: str) -> pytest.MarkDecorator:
    """Skip where namespaces cannot be made."""
    return pytest.mark.skipif(not can(*prefix), reason=f"this user may not run {' '.join(prefix[:3])}")


def bodies(directory: Path, name: str = QUEUE) -> list[int]:
    """What is in a queue, taken out of it."""
    found: list[int] = []
    with warren.attach(directory) as node:
        queue = node.queue(name)
        there = queue.depth()
        while len(found) < there:
            messages = queue.get_many(10_000, timeout=20.0)
            assert messages, f"{len(found)} of {there} messages came"
            found += [int(message.body) for message in messages]
            queue.ack(messages)
    return found


def depth(directory: Path, name: str = QUEUE) -> int:
    """How many messages a queue has."""
    with warren.attach(directory) as node:
        return node.queue(name).depth()


def put(directory: Path, numbers: range, name: str = QUEUE) -> None:
    """Publish numbers, and wait for their confirms."""
    with warren.attach(directory) as node:
        node.queue(name).put_many([b"%d" % number for number in numbers])


class Publisher:
    """steady_publisher.py in a process of its own; `confirmed` is what it wrote down."""

    def __init__(self, directory: Path, log: Path, first: int = 0, prefix: tuple[str, ...] = ()) -> None:
        self.log = log
        self.said = log.with_suffix(".err")
        command = [*prefix, sys.executable, str(PUBLISHER), str(directory), QUEUE, str(log), str(first)]
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said)

    def confirmed(self) -> list[int]:
        """Numbers that were confirmed."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def goes_on(self, n: int = 20) -> None:
        """Wait until more were confirmed."""
        before = len(self.confirmed())
        wait_until(
            lambda: len(self.confirmed()) >= before + n,
            40,
            what=f"{n} confirms; it said {self.said.read_text()[-500:]}",
        )

    def stop(self) -> list[int]:
        """End it; returns what was confirmed."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        return self.confirmed()


@pytest.fixture
def publish(tmp_path: Path) -> Iterator[list[Publisher]]:
    started: list[Publisher] = []
    yield started
    for publisher in started:
        publisher.process.kill()
        publisher.process.wait(60)


@pytest.fixture
def nodes() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def up(nodes: contextlib.ExitStack, directory: Path, prefix: tuple[str, ...] = (), **settings: int) -> RealNode:
    """A node for a directory; stopped at the end of the test."""
    return nodes.enter_context(RealNode(directory, prefix=prefix, workers=1, **settings))


def refused(directory: Path, *prefix: str) -> str:
    """What `warren up` says that does not start."""
    command = [*prefix, sys.executable, "-m", "warren.workers.cli.main", "up", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def ended(node: RealNode) -> str:
    """Wait for the end of a node that ends by itself; returns what it said. None of its processes is there then."""
    assert node.process is not None
    process = node.process
    wait_until(lambda: process.poll() is not None, 30, what="the end of the node")
    assert process.returncode == 1
    return node.wait()


def alive(pids: dict[str, int]) -> list[str]:
    """Roles whose process is there (a zombie is not)."""
    found = []
    for role, pid in pids.items():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(role)
    return found


def all_gone(pids: dict[str, int]) -> None:
    wait_until(lambda: not alive(pids), 30, what=f"the end of {pids}")


def print_of(directory: Path) -> dict[str, str]:
    """Every file of a directory and what is in it."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_socket()
    }


def copy(source: Path, target: Path, *flags: str) -> Path:
    """`cp -a`; of a node that runs, too: a file may go between the reading of its folder and the copying."""
    done = subprocess.run(
        ["cp", "-a", *flags, str(source), str(target)], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert all("No such file or directory" in line for line in done.stderr.splitlines()), done.stderr
    return target


def remove_shared_memory(directory: Path) -> None:
    """What RemoveIPC of systemd does when a user logs out: names go, who uses something keeps it."""
    shared_id = NodeDirectory(directory).shared_id
    superblock = Superblock.attach(shared_id, LAYOUT_HASH)
    try:
        for view in superblock.slots():
            if view.shmid >= 0:
                region.sysv_remove(view.shmid)
        for key in NodeDirectory(directory).read().semaphore_keys:
            remove_semaphore(key)
    finally:
        superblock.close()
    for name in region.posix_names(names.node_prefix(shared_id)):
        region.posix_unlink(name)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive({"it": pid}), 20, what="the end of who was killed")


def kill_supervisor(node: RealNode) -> None:
    """SIGKILL; its servers go on."""
    assert node.process is not None
    process, node.process = node.process, None
    process.kill()
    process.wait(60)
    node.close_output()


def checked(directory: Path) -> str:
    """What `warren check` says; it must find nothing wrong."""
    command = [sys.executable, "-m", "warren.workers.cli.main", "check", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- copies -------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_running_node_is_a_node_of_its_own(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    original = up(nodes, tmp_path / "node")
    put(original.directory, range(500))
    copied = copy(original.directory, tmp_path / "copy")
    for attempt in (lambda: warren.attach(copied), lambda: ControlClient(copied).call("stop")):
        with pytest.raises(NodeNotRunning, match="no node runs"):
            attempt()
    other = up(nodes, copied)
    with ControlClient(copied) as control, ControlClient(original.directory) as first:
        mine, its = control.call("status"), first.call("status")
    assert mine["node_id"] == its["node_id"], "the id of the data"
    assert mine["shared_id"] != its["shared_id"]
    assert not {item["pid"] for item in mine["processes"]} & {item["pid"] for item in its["processes"]}
    put(copied, range(1000, 1010), "only here")
    assert sorted(bodies(copied)) == list(range(500))
    assert depth(original.directory) == 500
    with ControlClient(original.directory) as control:
        assert [item["name"] for item in control.call("queues")["queues"]] == [QUEUE]
    other.stop()
    put(original.directory, range(500, 600))
    assert sorted(bodies(original.directory)) == list(range(600))


def test_a_copy_of_a_stopped_node_starts_beside_it(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    with RealNode(tmp_path / "node", workers=1) as first:
        put(first.directory, range(100))
    copied = copy(tmp_path / "node", tmp_path / "copy")
    both = [up(nodes, copied), up(nodes, tmp_path / "node")]
    for node in both:
        assert sorted(bodies(node.directory)) == list(range(100))
    servers = [pid for role, pid in both[0].pids().items() if role != "supervisor"]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)  # they would start another supervisor
    kill_supervisor(both[0])  # the copy's next start must not take the original's semaphores
    said = begin(nodes, copied, tmp_path / "said")
    for pid in servers:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: b"is up" in said.read_bytes(), 40, what="the copy's next start")
    put(copied, range(5))
    put(both[1].directory, range(7))
    assert (depth(copied), depth(both[1].directory)) == (5, 7)


def test_a_copy_made_of_links_is_refused(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    original = up(nodes, tmp_path / "node")
    put(original.directory, range(10))
    linked = copy(original.directory, tmp_path / "linked", "--link")
    assert "copied with hard links" in refused(linked)
    with pytest.raises(NodeNotRunning):  # its socket is the original's
        ControlClient(linked).call("stop", timeout=5.0)
    assert sorted(bodies(original.directory)) == list(range(10))


# ---- the same directory, by other names ---------------------------------------------------------------------------


def test_links_and_other_names_lead_to_the_one_node(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(3))
    (tmp_path / "link").symlink_to(node.directory)
    assert depth(tmp_path / "link") == 3
    assert "is in use by" in refused(tmp_path / "link")


@needs("unshare", "--mount")
def test_a_bind_mount_leads_to_the_one_node(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(3))
    there = tmp_path / "mounted"
    there.mkdir()
    mounting = ("unshare", "--mount", "sh", "-c", f'mount --bind {node.directory} {there} && exec "$@"', "sh")
    look = "import sys, warren; print(warren.attach(sys.argv[1]).queue('jobs').depth())"
    done = subprocess.run(
        [*mounting, sys.executable, "-c", look, str(there)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "3\n", done.stderr
    assert "is in use by" in refused(there, *mounting)


def test_without_the_lock_file_the_lock_holds(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    node = up(nodes, tmp_path / "node")
    (node.directory / "lock").unlink()
    assert "is in use by" in refused(node.directory)
    assert NodeDirectory(node.directory).locked()
    with pytest.raises(DirectoryInUse):
        NodeDirectory(node.directory).lock()
    put(node.directory, range(3))
    assert depth(node.directory) == 3


# ---- moved, removed, replaced -------------------------------------------------------------------------------------


def test_a_stopped_node_may_be_moved(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    with RealNode(tmp_path / "node", workers=1) as first:
        put(first.directory, range(100))
        before = NodeDirectory(first.directory).read().node_id
    moved = (tmp_path / "node").rename(tmp_path / "moved")
    node = up(nodes, moved)
    assert NodeDirectory(moved).read().node_id == before
    assert sorted(bodies(node.directory)) == list(range(100))


def test_a_node_whose_directory_is_moved_ends_and_keeps_what_it_confirmed(
    tmp_path: Path, nodes: contextlib.ExitStack, publish: list[Publisher]
) -> None:
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(-1, 0))
    pids = node.pids()
    publish.append(Publisher(node.directory, tmp_path / "confirmed"))
    publish[0].goes_on()
    moved = node.directory.rename(tmp_path / "moved")
    assert "was moved, or replaced by another one" in ended(node)
    all_gone(pids)
    confirmed = publish[0].stop()
    up(nodes, moved)
    assert set(confirmed) <= set(bodies(moved))


def test_a_directory_put_in_the_place_of_a_running_one_is_not_touched(
    tmp_path: Path, nodes: contextlib.ExitStack, publish: list[Publisher]
) -> None:
    """A backup is restored under a running node: the old servers neither write into it nor remove from it."""
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(-50, 0))
    backup = copy(node.directory, tmp_path / "backup")
    (backup / "control.sock").unlink()
    before = print_of(backup)
    pids = node.pids()
    publish.append(Publisher(node.directory, tmp_path / "confirmed"))
    publish[0].goes_on()
    old = node.directory.rename(tmp_path / "old")
    backup.rename(tmp_path / "node")
    ended(node)
    all_gone(pids)
    confirmed = publish[0].stop()
    assert print_of(tmp_path / "node") == before
    up(nodes, tmp_path / "node")
    assert sorted(bodies(tmp_path / "node")) == list(range(-50, 0))
    up(nodes, old)
    assert set(confirmed) | set(range(-50, 0)) <= set(bodies(old))


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "supervisor killed"])
def test_nothing_is_confirmed_into_a_removed_directory(
    tmp_path: Path, nodes: contextlib.ExitStack, supervised: bool
) -> None:
    node = up(nodes, tmp_path / "node")
    pids = node.pids()
    with warren.attach(node.directory) as client:
        queue = client.queue(QUEUE)
        queue.put(b"1")
        if not supervised:
            os.kill(pids["store"], signal.SIGSTOP)  # so that nobody starts another supervisor
            kill_supervisor(node)
        while node.directory.exists():  # a server may make a file in a folder that is just being removed
            shutil.rmtree(node.directory, ignore_errors=True)
        os.kill(pids["store"], signal.SIGCONT)
        for _turn in range(3):
            with pytest.raises(warren.Error, match=r"removed|stopped|died|no node runs") as caught:
                queue.put(b"2", timeout=10.0 * patience())
        assert not isinstance(caught.value, warren.TimedOut)
        if supervised:
            assert "was removed while the node ran" in ended(node)
        all_gone(pids)
    fresh = up(nodes, tmp_path / "node")
    put(fresh.directory, range(3))
    assert depth(fresh.directory) == 3


def orphaned(node: RealNode) -> tuple[Superblock, Tie]:
    """Every process of a node is dead, and nobody has removed anything."""
    pids = node.pids()
    superblock = Superblock.attach(NodeDirectory(node.directory).shared_id, LAYOUT_HASH)
    tie = Tie(node.directory, superblock)
    for role in pids.keys() - {"supervisor"}:
        os.kill(pids[role], signal.SIGSTOP)  # so that nobody starts another supervisor
    kill_supervisor(node)
    for role in pids.keys() - {"supervisor"}:
        os.kill(pids[role], signal.SIGKILL)
    servers = range(superblock.servers_n)
    wait_until(lambda: not any(superblock.server_identity(server).alive() for server in servers), 30)
    assert not superblock.supervisor.alive()
    return superblock, tie


@pytest.mark.parametrize("state", ["SERVER_READY", "SERVER_DOWN"])
def test_of_servers_that_end_at_once_one_removes_what_is_left(
    tmp_path: Path, nodes: contextlib.ExitStack, state: str
) -> None:
    """Each sees that the other one lives still; what it says of itself decides. Of a node without a supervisor, whose
    directory was removed, nobody else removes the shared memory.
    """
    superblock, tie = orphaned(up(nodes, tmp_path / "node"))
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            worker, alive = superblock.servers_n - 1, Identity.of(other.pid)
            assert alive is not None
            superblock.server_set(worker, "pid", alive.pid)
            superblock.server_set(worker, "start_time", alive.start_time)
            superblock.server_set(worker, "state", CONSTANTS[state])
            superblock.set("ending", CONSTANTS["ENDING_REMOVED"])
            assert superblock.server_identity(worker).alive()
            remains.remove_lost(superblock, tie)
            assert superblock.named == (state == "SERVER_READY")
        finally:
            other.kill()
    remains.remove_lost(superblock, tie)
    assert not superblock.named
    assert superblock.state == CONSTANTS["NODE_STOPPED"]
    tie.close()
    superblock.close()


class Failing:
    """A worker that fails while its node ends."""

    def __init__(self, superblock: Superblock, tie: Tie) -> None:
        self.superblock, self.tie = superblock, tie

    def run(self) -> int:
        raise StoreError("its folder has gone")

    def close(self) -> None:
        """It has nothing open."""


@pytest.mark.parametrize("role", ["worker", "supervisor"])
def test_who_fails_as_the_last_one_removes_what_is_left(tmp_path: Path, nodes: contextlib.ExitStack, role: str) -> None:
    """A worker whose end is an error; a supervisor that took over, so that the servers left all to it, and does not
    come up because the directory goes at this moment.
    """
    superblock, tie = orphaned(up(nodes, tmp_path / "node"))
    superblock.set("ending", CONSTANTS["ENDING_REMOVED"])
    if role == "worker":
        assert run_worker(lambda: cast("WorkerProcess", Failing(superblock, tie)), lambda _line, _level=0: None) == 1
    else:
        superblock.set_supervisor(Identity.current())
        remains.remove_lost(superblock, tie)
        assert superblock.named
        supervisor = Supervisor.__new__(Supervisor)
        supervisor._created, supervisor._superblock, supervisor._tie = False, superblock, tie
        supervisor._abandon()
    assert not superblock.named
    assert superblock.state == CONSTANTS["NODE_STOPPED"]
    tie.close()
    superblock.close()


def test_a_data_folder_that_goes_ends_the_node(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    node = up(nodes, tmp_path / "node")
    pids = node.pids()
    put(node.directory, range(3))
    (node.directory / "queues").rename(tmp_path / "queues")
    assert "was removed while the node ran" in ended(node)
    all_gone(pids)
    (tmp_path / "queues").rename(node.directory / "queues")
    up(nodes, node.directory)
    assert sorted(bodies(node.directory)) == list(range(3))


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "supervisor killed"])
@pytest.mark.parametrize("what", in_part(["store/persistent/*.rdq", "queues/worker-0/journal/*.jnl"]))
def test_nothing_is_confirmed_into_a_file_that_was_cut(
    tmp_path: Path, nodes: contextlib.ExitStack, what: str, supervised: bool
) -> None:
    """`truncate -s 0` of what the servers write, while they write nothing: the node ends, and says why."""
    node = up(nodes, tmp_path / "node")
    pids = node.pids()
    with warren.attach(node.directory) as client:
        queue = client.queue(QUEUE)
        queue.put(bytes(10_000))
        if not supervised:
            os.kill(pids["store"], signal.SIGSTOP)  # so that nobody starts another supervisor
            kill_supervisor(node)
        files = list(node.directory.glob(what))
        assert files
        for file in files:
            os.truncate(file, 0)
        os.kill(pids["store"], signal.SIGCONT)
        if supervised:
            assert "or a file in use was cut" in ended(node)
        all_gone(pids)
        with pytest.raises(warren.Error, match=r"cut|stopped|died|no node runs"):
            queue.put(bytes(10_000), timeout=10.0)
    started = up(nodes, node.directory)  # with what was not cut
    put(started.directory, range(3))


def test_no_file_in_use_is_taken_for_cut_while_files_come_and_go(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    """Rolled, flushed, collected and recycled by the node itself: it goes on."""
    node = up(nodes, tmp_path / "node", file_bytes=1 << 18, message_bytes_max=100_000, journal_files_max=2)
    pids = node.pids()
    with warren.attach(node.directory) as client:
        queue = client.queue(QUEUE)
        for _turn in range(30):
            queue.put_many([bytes(20_000)] * 20 + [bytes(100)] * 200)
            messages = []
            while len(messages) < 200:
                messages += queue.get_many(200 - len(messages), timeout=30.0)
            queue.ack(messages)
        assert not client.status()["alarms"]
        assert sum(client.status()[name]["retired"] for name in ("store", "store_transient")) > 0
    assert node.pids() == pids
    node.stop()
    checked(node.directory)


@pytest.mark.parametrize("how", ["removed", "copied", "a file"])
def test_a_control_socket_that_was_replaced_is_made_anew(tmp_path: Path, nodes: contextlib.ExitStack, how: str) -> None:
    """As by `cp -a COPY/. DIR/`: who asks gets an answer, who was connected still is, and the node says so."""
    node = up(nodes, tmp_path / "node")
    name = NodeDirectory(node.directory).control_socket
    with ControlClient(node.directory) as before, ControlClient(node.directory) as after:
        pid = before.call("ping")["pid"]
        if how == "copied":
            backup = copy(node.directory, tmp_path / "backup")
            subprocess.run(["cp", "-a", f"{backup}/control.sock", f"{name}"], check=True, timeout=60)
        else:
            name.unlink()
        if how == "a file":
            name.write_text("x")
        assert after.call("ping", timeout=60.0)["pid"] == pid
        assert before.call("ping", timeout=60.0)["pid"] == pid
        assert any("was removed or replaced, and is made again" in line for line in after.call("status")["messages"])
        assert not list(node.directory.glob("*.new"))
    put(node.directory, range(3))


def test_silence_says_that_nothing_listens_at_a_replaced_socket(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    """While the supervisor cannot mend it: a folder stands where it would make the new one."""
    node = up(nodes, tmp_path / "node")
    name = NodeDirectory(node.directory).control_socket
    backup = copy(node.directory, tmp_path / "backup")
    obstacle = name.with_name(name.name + ".new")
    (obstacle / "full").mkdir(parents=True)
    subprocess.run(["cp", "-a", f"{backup}/control.sock", f"{name}"], check=True, timeout=60)
    with ControlClient(node.directory) as client:
        with pytest.raises(warren.TimedOut, match=r"nothing listens at .*control\.sock"):
            client.call("ping", timeout=1.0)
        shutil.rmtree(obstacle)
        client.call("ping", timeout=60.0)


# ---- shared memory that goes --------------------------------------------------------------------------------------


def test_a_node_whose_shared_memory_is_removed_ends_in_good_order(
    tmp_path: Path, nodes: contextlib.ExitStack, publish: list[Publisher]
) -> None:
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(-1, 0))
    pids = node.pids()
    publish.append(Publisher(node.directory, tmp_path / "confirmed"))
    publish[0].goes_on()
    remove_shared_memory(node.directory)
    said = ended(node)
    assert "the shared memory of the node" in said
    assert "is killed" not in said
    all_gone(pids)
    up(nodes, node.directory)
    publish[0].goes_on()
    confirmed = publish[0].stop()
    assert set(confirmed) <= set(bodies(node.directory))


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_whose_semaphore_is_removed_ends_in_good_order(
    tmp_path: Path, nodes: contextlib.ExitStack, which: int
) -> None:
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(3))
    pids = node.pids()
    assert remove_semaphore(NodeDirectory(node.directory).read().semaphore_keys[which])
    assert "or a semaphore of it, was removed" in ended(node)
    all_gone(pids)
    up(nodes, node.directory)
    assert sorted(bodies(node.directory)) == list(range(3))


def test_open_keeps_its_timeout_when_a_node_never_lets_it_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that refuses clients and is there for `up --adopt`: what is wrong is said when the time is over."""
    rounds: list[float] = []

    def refused(*_given: object, **_named: object) -> None:
        raise NodeNotRunning("the node is going away")

    def runs_already(*_given: object, timeout: float, **_named: object) -> None:
        assert 0 <= timeout <= 0.3
        assert len(rounds) < 1000, "it goes on for ever"
        rounds.append(timeout)

    monkeypatch.setattr(node_module, "attach", refused)
    monkeypatch.setattr(node_module, "launch", runs_already)
    with pytest.raises(warren.TimedOut, match=r"within 0\.3 s: the node is going away; .* `warren stop"):
        warren.open(tmp_path / "node", timeout=0.3)
    assert len(rounds) > 1
    assert sorted(rounds, reverse=True) == rounds, "each round has what is left"


def test_no_split_brain_when_shared_memory_goes_and_the_supervisor_dies(
    tmp_path: Path, nodes: contextlib.ExitStack, publish: list[Publisher]
) -> None:
    """Old and new servers never confirm into the same files: what both confirmed is there."""
    node = up(nodes, tmp_path / "node")
    put(node.directory, range(-1, 0))
    pids = node.pids()
    publish.append(Publisher(node.directory, tmp_path / "old"))
    publish[0].goes_on()
    os.kill(pids["store"], signal.SIGSTOP)  # the old ones cannot end before the new ones are there
    remove_shared_memory(node.directory)
    kill_supervisor(node)
    said = begin(nodes, node.directory, tmp_path / "said")
    waits = f"waits for process {pids['store']} of an earlier node"
    wait_until(lambda: waits in "".join(messages(node.directory)), 30, what="the new store server to say that it waits")
    os.kill(pids["store"], signal.SIGCONT)
    wait_until(lambda: b"is up" in said.read_bytes(), 40, what="the new node")
    publish.append(Publisher(node.directory, tmp_path / "new", 1_000_000))
    publish[1].goes_on()
    publish[0].goes_on()
    all_gone({role: pid for role, pid in pids.items() if role != "supervisor"})
    confirmed = publish[0].stop() + publish[1].stop()
    assert set(confirmed) <= set(bodies(node.directory))
    nodes.close()
    checked(node.directory)


def begin(nodes: contextlib.ExitStack, directory: Path, said: Path) -> Path:
    """Begin to start a node; returns the file of what it says. Stopped at the end of the test."""
    command = [sys.executable, "-m", "warren.workers.cli.main", "up", str(directory), "--set", "workers=1"]
    with open(said, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def stop() -> None:
        process.terminate()
        process.wait(60)

    nodes.callback(stop)
    wait_until(lambda: NodeDirectory(directory).lock_holder() == process.pid, 30, what="it to have the lock")
    return said


def messages(directory: Path) -> list[str]:
    """What `status` tells people."""
    with contextlib.suppress(warren.Error), ControlClient(directory) as control:
        return list(control.call("status", timeout=5.0)["messages"])
    return []


@needs(*OTHER_SHM)
@pytest.mark.parametrize("prefix", [OTHER_IPC, OTHER_SHM], ids=["IPC", "IPC and /dev/shm"])
def test_no_split_brain_in_two_ipc_namespaces(
    tmp_path: Path, nodes: contextlib.ExitStack, publish: list[Publisher], prefix: tuple[str, ...]
) -> None:
    node = up(nodes, tmp_path / "node", prefix)
    pids = node.pids()
    with ControlClient(node.directory) as control:
        control.call("declare_queue", name=QUEUE)
    publish.append(Publisher(node.directory, tmp_path / "there", 0, ("nsenter", "-t", str(pids["store"]), "-i", "-m")))
    publish[0].goes_on()
    refusal = refused(node.directory)
    assert "another IPC namespace" in refusal, refusal
    servers = {role: pid for role, pid in pids.items() if role != "supervisor"}
    for pid in servers.values():
        os.kill(pid, signal.SIGSTOP)  # they would start another supervisor there
    kill_supervisor(node)
    said = begin(nodes, node.directory, tmp_path / "said")
    for pid in servers.values():
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: b"is up" in said.read_bytes(), 40, what="the new node")
    publish.append(Publisher(node.directory, tmp_path / "here", 1_000_000))
    publish[1].goes_on()
    all_gone(servers)
    confirmed = publish[0].stop() + publish[1].stop()
    assert set(confirmed) <= set(bodies(node.directory))
    nodes.close()
    checked(node.directory)


def test_nothing_is_repaired_under_servers_without_a_supervisor(tmp_path: Path, nodes: contextlib.ExitStack) -> None:
    node = up(nodes, tmp_path / "node")
    pids = node.pids()
    servers = {role: pid for role, pid in pids.items() if role != "supervisor"}
    for pid in servers.values():
        os.kill(pid, signal.SIGSTOP)  # they would start another supervisor
    try:
        kill_supervisor(node)
        command = [sys.executable, "-m", "warren.workers.cli.main", "check", str(node.directory)]
        done = subprocess.run([*command, "--repair"], capture_output=True, text=True, timeout=60)
        assert f"is in use by process {pids['store']}" in done.stdout + done.stderr
        assert done.returncode == 2
        looked = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
        assert json.loads(looked.stdout)["running"] is True
    finally:
        for pid in servers.values():
            os.kill(pid, signal.SIGCONT)
    wait_until(NodeDirectory(node.directory).locked, 30, what="a supervisor that takes over")
    with ControlClient(node.directory) as control:
        control.call("stop")
    all_gone(servers)
    wait_until(lambda: not NodeDirectory(node.directory).locked(), 30, what="the end of the node")


# ---- clients elsewhere --------------------------------------------------------------------------------------------

ATTACH = """
import sys, warren
try:
    warren.attach(sys.argv[1], timeout=30)
except warren.Error as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        pytest.param(OTHER_IPC, "IPC namespace", marks=needs(*OTHER_IPC), id="IPC"),
        pytest.param(OTHER_PID, "PID namespace", marks=needs(*OTHER_PID), id="PID"),
        pytest.param(OTHER_TIME, "time namespace", marks=needs(*OTHER_TIME), id="time"),
        pytest.param(OTHER_SHM, "/dev/shm", marks=needs(*OTHER_SHM), id="shm"),
        pytest.param(CONTAINER, "PID namespace and another IPC namespace", marks=needs(*CONTAINER), id="container"),
    ],
)
def test_a_client_that_cannot_see_the_node_is_told_what_differs(
    tmp_path_factory: pytest.TempPathFactory, directory: Path, prefix: tuple[str, ...], word: str
) -> None:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ATTACH, str(directory)], capture_output=True, text=True, timeout=25
    )
    assert "UsageError" in done.stdout, done.stdout + done.stderr
    assert word in done.stdout
    share = done.stdout.partition(", or share ")[2]
    for item in word.split(" and another "):
        assert f"{item} (" in share, "each that differs is named, with how it is shared"


def test_every_process_owns_what_it_writes(directory: Path) -> None:
    """The locks end with their owners: no other process has a descriptor of them."""
    with ControlClient(directory) as control:
        processes = control.call("status")["processes"]
    owners = {}
    for item in processes:
        pid = item["pid"]
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if "FLOCK" in Path(f"/proc/{pid}/fdinfo/{name}").read_text():
                    owners.setdefault(os.readlink(f"/proc/{pid}/fd/{name}"), []).append((item["role"], item["index"]))
    assert owners == {
        str(directory): [("supervisor", 0)],
        str(directory / "store"): [("store", 0)],
        str(directory / "store/persistent"): [("collector", 0)],
        str(directory / "queues/worker-0"): [("queue_worker", 0)],
        str(directory / "queues/worker-1"): [("queue_worker", 1)],
    }


def test_namespaces_are_compared_as_far_as_they_are_known() -> None:
    mine = Namespaces(1, 2, 3, 4)
    assert mine.unlike(Namespaces(0, 0, 0, 0)) == []
    assert mine.unlike(Namespaces(1, 9, 3, 0)) == ["IPC namespace"]
    assert mine.unlike(Namespaces(8, 2, 9, 9)) == ["PID namespace", "time namespace", "/dev/shm"]
