"""Goal: a member of a node's group uses the node, and gets nothing of its owner's: no file of the owner outside of the
directory is opened, written, removed or given a mode, whatever the member puts where, and no process, semaphore or
segment of the owner ends, whatever he writes into the memory of the node (rule N21).

Method: programs of two users, as root (support/users.py). Each attack is tried in a directory of now, where the member
cannot even make the link, and in one as an older Warren left it, with 02770, in which the links lie ready. What the
owner has in his home is compared before and after.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sysv_ipc

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.ipc import region
from warren.workers.process.shared_objects import segments, semaphore_exists

from support import users
from support.real_node import RealNode
from support.users import ALICE, BOB, GROUP, home, node_of
from support.waiting import wait_until

pytestmark = pytest.mark.integration

MEETING = ("doorbells", "large", "transactions")
#: a name of a queue that a shell runs, if it comes so far
NAME = "x'$(touch PWNED);`touch PWNED`\"; touch PWNED; (touch PWNED) > PWNED & touch PWNED | x"
REFUSED = 2


#: makes a private semaphore and a private segment, and prints key, number, number and the pid of their maker
PRIVATE = """
import os, sysv_ipc
from warren.ipc import region
semaphore = sysv_ipc.Semaphore(None, sysv_ipc.IPC_CREX, 0o600, 1)
print(semaphore.key, semaphore.id, region.sysv_create(1 << 22).id, os.getpid())
"""


@pytest.fixture(scope="module", autouse=True)
def _other_users() -> None:
    if why := users.why_not():
        pytest.skip(why)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    users.let_in(tmp_path)
    return tmp_path


class Owner:
    """ALICE with her node: everything else in her home is hers, too."""

    def __init__(self, place: Path) -> None:
        self.home = home(place, ALICE)
        self.directory = self.home / "data"
        self.docs = self.home / "docs"
        self.docs.mkdir()
        for name in ("5.rdq", "7.jnl", "rows", "precious"):
            (self.docs / name).write_text(f"her {name}")
        (self.home / ".bashrc").write_text("# hers\n")
        for path in (self.docs, *self.docs.iterdir(), self.home / ".bashrc"):
            os.chown(path, ALICE.uid, ALICE.uid)
        self.before = self.belongings()

    def belongings(self) -> dict[str, tuple[int, int, bytes]]:
        """All of her home but the node."""
        found = {}
        for path in (self.home, *self.home.rglob("*")):
            if self.directory in (path, *path.parents):
                continue
            seen = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(seen.st_mode) else b""
            found[str(path)] = seen.st_uid, stat.S_IMODE(seen.st_mode), content
        return found

    def unharmed(self) -> None:
        assert self.belongings() == self.before

    def node(self) -> RealNode:
        return node_of(ALICE, self.directory, group=str(GROUP), message_bytes_max=str(2 << 20))


@pytest.fixture
def owner(place: Path) -> Owner:
    return Owner(place)


def as_of_old(directory: Path) -> None:
    """As a Warren before this one left a shared directory."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o2770 if path.is_dir() else 0o660)


LETTER = """
import sys, warren
with warren.attach(sys.argv[1], timeout=60) as node:
    queue = node.queue(sys.argv[2], dead_letter_exchange="none" + sys.argv[2], create=True)
    queue.put(b"x")
    queue.get(timeout=60).reject()
"""
#: what a member can do to what is there: each is refused, but where members make something
TRY = """
import os, sys
directory, target = sys.argv[1:]
for folder, folders, files in os.walk(directory):
    meeting = os.path.basename(folder) in ("doorbells", "large", "transactions")
    for name in [*folders, *files]:
        path = os.path.join(folder, name)
        for call in (
            lambda: os.rename(path, path + ".away"),
            lambda: os.open(path, os.O_WRONLY),
            lambda: os.rmdir(path) if name in folders else os.unlink(path),
            lambda: os.chmod(path, 0o777),
            lambda: os.truncate(path, 0),
        ):
            try:
                call()
            except (PermissionError, IsADirectoryError, OSError) as error:
                if isinstance(error, PermissionError) or error.errno in (6, 21, 22):  # a socket, a folder
                    continue
                raise
            print("changed", path)
            break
    try:
        os.symlink(target, os.path.join(folder, "planted"))
        if meeting:
            os.unlink(os.path.join(folder, "planted"))
        else:
            print("made", folder)
    except PermissionError:
        if meeting:
            print("not made", folder)
private = {"users.json", "users.lock", "amqp.shared"}
for folder, folders, files in os.walk(directory):
    for name in files:
        if name not in private:
            try:
                open(os.path.join(folder, name), "rb").close()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != 6:
                    print("not read", os.path.join(folder, name), error)
"""


def test_a_member_changes_nothing_where_the_owner_works(owner: Owner) -> None:
    """While the node runs, and when it is down."""
    with owner.node():
        for name in ("q", "long"):
            _pid, code, said = users.warren(BOB, "queue", "declare", owner.directory, name)
            assert code == 0, said
        _pid, code, said = users.warren(BOB, "topic", "create", owner.directory, "t")
        assert code == 0, said
        _pid, code, said = users.python(BOB, TRY, owner.directory, owner.docs)
        assert (code, said) == (0, f"changed {owner.directory / 'lock'}\n"), "locks of its bytes are taken"
    _pid, code, said = users.python(BOB, TRY, owner.directory, owner.docs)
    assert (code, said) == (0, f"changed {owner.directory / 'lock'}\n")
    owner.unharmed()


USES = """
import glob, os, sys, warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.transactions.sink import Batch, Sink
from warren.workers.faces import subscription_owner
directory = sys.argv[1]
with warren.attach(directory, timeout=60) as node:
    work = node.queue("work", create=True)
    for size in (5, 64 << 10, 1_500_000):
        work.put(b"b" * size)
        message = work.get(timeout=60)
        assert len(message.body) == size
        message.ack()
    topic = node.topic("flights", create=True)
    topic.append(b"landed")
    with topic.reader(group="report", start="earliest") as reader:
        assert reader.get(timeout=60).body == b"landed"
    work.put(b"L" * 1_500_000)
node_id = NodeDirectory(directory).read().node_id
assert not Sink(directory_path := NodeDirectory(directory).path, "bobs", node_id, 5).enter(Batch("id"))
held = subscription_owner.Owner(directory, 7, "it")
assert subscription_owner.is_owned(directory, 7)
held.release()
print("used")
"""
ANOTHERS_SINK = """
import sys, warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.transactions.sink import Batch, Sink
directory = NodeDirectory(sys.argv[1])
sink = Sink(directory.path, "bobs", directory.read().node_id, 5)
assert sink.load() is not None
try:
    sink.enter(Batch("another"))
except warren.PermissionRefused as error:
    print(error)
"""


def test_a_member_uses_all_that_he_is_promised(owner: Owner) -> None:
    """Messages of any size, topics, subscriptions, sinks; what he leaves is the owner's to read and to remove."""
    with owner.node():
        _pid, code, said = users.python(BOB, USES, owner.directory)
        assert (code, said) == (0, "used\n")
        _pid, code, said = users.python(ALICE, ANOTHERS_SINK, owner.directory)
        assert f"sink 'bobs' belongs to user {BOB.uid}, and this process runs as user {ALICE.uid}" in said, said
    assert [path.stat().st_uid for path in owner.directory.glob("queues/*/large/*")] == [BOB.uid]
    _pid, code, said = users.warren(ALICE, "check", owner.directory)
    assert code == 0, said
    with owner.node():
        _pid, code, said = users.warren(ALICE, "queue", "purge", owner.directory, "work", "--yes")
        assert code == 0, said
        wait_until(lambda: not list(owner.directory.glob("queues/*/large/*")), 60, what="the removal of his file")
    owner.unharmed()


def test_what_a_log_quotes_is_nothing_that_a_shell_runs(owner: Owner, tmp_path: Path) -> None:
    """A name of a queue with a command in it, which its worker says in its log; a shell gets the whole log."""
    log = owner.directory / "log" / "worker-0.log"
    with owner.node():
        _pid, code, said = users.python(BOB, LETTER, owner.directory, NAME)
        assert code == 0, said
        wait_until(lambda: "dead letters of queue" in log.read_text(), 60, what="a line of the worker")
    [line] = [line for line in log.read_text().splitlines() if "dead letters of queue" in line]
    assert not set(line.split("queue ", 1)[1].split(" wait for", 1)[0]) & set('$`;&|<>()"\\n') - {"\\"}
    for shell in ("sh", "bash"):
        if shutil.which(shell):
            work = tmp_path / f"in-{shell}"
            work.mkdir()
            subprocess.run([shell, str(log)], cwd=work, capture_output=True, timeout=60, check=False)
            assert list(work.iterdir()) == [], shell


APPEND = """
import sys, warren
with warren.attach(sys.argv[1], timeout=60) as node:
    node.topic("t", create=True).append(b"x")
"""
#: what the owner's processes open, make, append to or remove, and what it was led to
LINKS = {
    "log/worker-0.log": ".bashrc",
    "log/collector.log": ".bashrc",
    "log/supervisor.log": "new-file",
    "log": "docs",
    "store": "docs",
    "store/persistent": "docs",
    "store/transient": "docs",
    "queues": "docs",
    "queues/worker-0": "docs",
    "queues/worker-0/transient": "docs",
    "queues/worker-0/journal": "docs",
    "queues/worker-0/segments": "docs",
    "queues/worker-0/large": "docs",
    "queues/worker-0/files": "docs/precious",
    "topics": "docs",
    "topics/commitlog": "docs",
    "topics/checkpoint": "docs/precious",
    "transactions": "docs",
    "doorbells": "docs",
    "lock": "docs/precious",
    "node.json": "docs/precious",
    "catalog.json": "docs/precious",
    "launch.json": "docs/precious",
    "users.json": "docs/precious",
    "users.lock": "docs/precious",
    "amqp.shared": "docs/precious",
}


@contextlib.contextmanager
def planted(link: Path, target: Path) -> Iterator[None]:
    """A link of BOB's in the place of what is there."""
    aside = link.with_name(link.name + ".aside") if link.exists() else None
    if aside is not None:
        link.rename(aside)
    link.symlink_to(target)
    os.lchown(link, BOB.uid, GROUP)
    yield
    link.unlink()
    if aside is not None:
        aside.rename(link)


def test_links_in_a_directory_of_an_older_warren_refuse_the_start(owner: Owner) -> None:
    """Each is named with its owner, and nothing that it leads to is touched; the start then renews the modes."""
    with owner.node():
        _pid, code, said = users.warren(ALICE, "queue", "declare", owner.directory, "q")
        assert code == 0, said
        _pid, code, said = users.python(ALICE, APPEND, owner.directory)
        assert code == 0, said
    for name, target in LINKS.items():
        as_of_old(owner.directory)
        link = owner.directory / name
        with planted(link, owner.home / target):
            for command in (("up", owner.directory), ("check", owner.directory, "--repair")):
                _pid, code, said = users.warren(ALICE, *command)
                assert code == REFUSED, (name, command, said)
                assert f"{link} is a symbolic link of user {BOB.uid}, and a data directory has none" in said, said
            users.warren(ALICE, "check", owner.directory)
            owner.unharmed()
    as_of_old(owner.directory)
    deep = next(owner.directory.glob("topics/consumequeue/*/*")) / "link"
    with planted(deep, owner.docs / "precious"):
        _pid, code, said = users.warren(ALICE, "up", owner.directory)
        assert code == REFUSED, said
        assert f"{deep} is a symbolic link of user {BOB.uid}" in said, said
        assert stat.S_IMODE(owner.directory.stat().st_mode) == 0o1700, "nobody else comes in until it is looked through"
    with owner.node():
        _pid, code, said = users.python(BOB, TRY, owner.directory, owner.docs)
        assert (code, said) == (0, f"changed {owner.directory / 'lock'}\n")
    owner.unharmed()


def test_links_that_are_put_into_a_running_node_lead_nowhere(owner: Owner) -> None:
    """Of a node whose folders the members could write: a log, a folder that is wiped, one in which files are made."""
    with owner.node() as node:
        _pid, code, said = users.warren(ALICE, "queue", "declare", owner.directory, "q")
        assert code == 0, said
        as_of_old(owner.directory)
        log = owner.directory / "log" / "worker-0.log"
        log.rename(log.with_suffix(".aside"))
        log.symlink_to(owner.home / ".bashrc")
        for name in ("store/transient", "queues/worker-0/transient", "queues/worker-0/journal"):
            folder = owner.directory / name
            folder.rename(folder.with_name("moved-away"))
            folder.symlink_to(owner.docs)
            folder.with_name("moved-away").rename(folder.with_name(f"{folder.name}-aside"))
        users.python(BOB, LETTER, owner.directory, NAME)
        with contextlib.suppress(warren.Error):
            node.kill("worker-0")
        node.stop()
    owner.unharmed()


def test_what_a_member_puts_where_members_make_something_is_passed_by(owner: Owner) -> None:
    """Links in the place of large messages and sinks: no start, no repair and no stop follows one."""
    with owner.node():
        users.warren(BOB, "queue", "declare", owner.directory, "q")
    for name in (f"queues/worker-0/large/{'ab' * 16}", "transactions/sink", "transactions/.gone-1"):
        link = owner.directory / name
        link.symlink_to(owner.docs)
        os.lchown(link, BOB.uid, GROUP)
    with owner.node():
        _pid, code, said = users.warren(ALICE, "transactions", owner.directory, "--forget", "sink", "--force")
        assert code != 0, said
        _pid, code, said = users.warren(ALICE, "publish", owner.directory, "q", "--body", "x")
        assert code == 0, said
    users.warren(ALICE, "check", owner.directory)
    users.warren(ALICE, "check", owner.directory, "--repair")
    assert NodeDirectory(owner.directory).exists()
    owner.unharmed()


OVERWRITE = """
import sys
from warren.engine.catalog.node_directory import NodeDirectory
from warren.ipc import region
from warren.ipc.identity import Identity
directory, pid, key, shmid, creator, size = sys.argv[1], *map(int, sys.argv[2:])
superblock = NodeDirectory(directory).superblock()
victim = Identity.of(pid)
for server in range(superblock.servers_n):
    superblock.server_set(server, "start_time", victim.start_time)
    superblock.server_set(server, "pid", victim.pid)
superblock.set_collector(victim.pid, victim.start_time)
superblock.set_gateway(0, victim.pid, victim.start_time)
for name in ("live_semaphore_key", "store_lock_key"):
    superblock.set(name, key)
superblock.set("client_base_bytes", superblock.get("client_base_bytes") + size - superblock.region_bytes())
view = superblock.claim(Identity(creator, 1, victim.namespace), "bob")
superblock.set_segment(view, shmid)
print("written")
"""


def test_what_a_member_writes_into_shared_memory_ends_nothing_of_the_owner(owner: Owner) -> None:
    """In the superblock stands a process of the owner in the place of every server, the key of a semaphore of hers, and
    a client with a segment of hers. The supervisor is killed, a successor takes over, and the node is stopped.
    """
    with contextlib.ExitStack() as undo:
        victim = undo.enter_context(subprocess.Popen([*users.prefix(ALICE), "sleep", "1000"]))
        undo.callback(victim.kill)
        comm = Path(f"/proc/{victim.pid}/comm")
        wait_until(lambda: comm.read_text() == "sleep\n", 60, what="the owner's process")
        _pid, code, said = users.python(ALICE, PRIVATE)
        assert code == 0, said
        key, semaphore, segment, creator = map(int, said.split())
        undo.callback(sysv_ipc.remove_semaphore, semaphore)
        undo.callback(region.sysv_remove, segment)
        node = undo.enter_context(owner.node())
        before = node.pids()
        own = NodeDirectory(owner.directory).read().semaphore_keys
        undo.callback(users.warren, ALICE, "stop", owner.directory)  # there is nothing to stop if all is well
        superblock = undo.enter_context(contextlib.closing(NodeDirectory(owner.directory).superblock()))
        base = superblock.get("client_base_bytes")
        os.kill(before["supervisor"], signal.SIGSTOP)  # it sees all that he writes at once
        _pid, code, said = users.python(BOB, OVERWRITE, owner.directory, victim.pid, key, segment, creator, 1 << 22)
        os.kill(before["supervisor"], signal.SIGCONT)
        assert (code, said) == (0, "written\n")
        wait_until(lambda: creator not in {view.pid for view in superblock.slots()}, 60, what="the sweep of his slot")
        superblock.set("client_base_bytes", base)  # with another one, segments of clients would stay behind
        assert segment in {item.id for item in segments()}, "a segment of the owner was removed"
        node.kill("supervisor")
        after = node.pids()
        assert victim.pid not in after.values()
        kept = before.keys() - {"supervisor"}
        assert {role: after[role] for role in kept} == {role: before[role] for role in kept}, "found by their locks"
        _pid, code, said = users.warren(ALICE, "stop", owner.directory)
        assert code == 0, said
        assert victim.poll() is None, "a process of the owner was signalled"
        assert semaphore_exists(key), "a semaphore of the owner was removed"
        assert segment in {item.id for item in segments()}, "a segment of the owner was removed"
        assert not any(map(semaphore_exists, own)), "the node leaves its own semaphores behind"
    owner.unharmed()


#: what somebody who is not let in shuts or puts there; run as BOB
SHUT = """
import os, socket, sys, warren
directory = sys.argv[1]
with warren.attach(directory, timeout=60) as node:
    node.queue("q", create=True).put(bytes(1_500_000))
[his] = os.listdir(f"{directory}/queues/worker-0/large")
os.unlink(f"{directory}/queues/worker-0/large/{his}")
os.close(os.open(f"{directory}/queues/worker-0/large/{his}", os.O_CREAT, 0))
os.mkdir(f"{directory}/transactions/shut", 0)
os.mkdir(f"{directory}/transactions/half", 0o755)
os.mkdir(f"{directory}/transactions/half/staged", 0)
os.mkdir(f"{directory}/transactions/loops", 0o755)
os.mkdir(f"{directory}/transactions/loops/staged", 0o755)
part = f"{directory}/transactions/loops/staged/q.1.2.{'ab' * 8}"
os.symlink(part, part)
large = f"{directory}/queues/worker-0/large"
os.close(os.open(f"{large}/{'01' * 16}", os.O_CREAT, 0))
os.symlink(f"{large}/{'02' * 16}", f"{large}/{'02' * 16}")
os.chdir(large)
socket.socket(socket.AF_UNIX).bind("03" * 16)
os.mkfifo(f"{large}/{'04' * 16}")
os.mkdir(f"{large}/{'05' * 16}", 0)
os.close(os.open(f"{large}/{'06' * 16}", os.O_CREAT, 0o640))
"""
LOCKED = """
import sys
from pathlib import Path
from warren.engine.queues import large_files
from warren.engine.queues.folder import Folder
folder = Folder.of(Path(sys.argv[1]), 0)
found, busy = large_files._locked(folder, sorted(large_files.ids_in(folder)))
print(*(each.id.hex() for each in found), busy)
"""


def test_what_a_member_shuts_is_named_and_the_rest_is_shown(owner: Owner) -> None:
    """Folders of sinks, and things in the place of large messages, that the owner of the node cannot open."""
    with owner.node():
        _pid, code, said = users.python(BOB, SHUT, owner.directory)
        assert code == 0, said
    good = owner.directory / "transactions" / "good" / "staged"
    good.mkdir(parents=True)
    for path in (good, good.parent):
        os.chown(path, ALICE.uid, GROUP)
    _pid, code, said = users.warren(ALICE, "transactions", owner.directory)
    assert code == 0, said
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert {"good", "shut", "half", "loops"} <= lines.keys(), said
    assert "cannot be read" in lines["shut"]
    assert "cannot be read" in lines["half"]
    assert "cannot be read" not in lines["good"]
    _pid, code, said = users.warren(ALICE, "transactions", owner.directory, "--json")
    assert code == 0, said
    rows = {row["sink"]: row for row in json.loads(said)}
    for name in ("shut", "half"):
        assert f"cannot look into {owner.directory / 'transactions' / name / 'staged'}" in rows[name]["problem"]
    assert rows["good"]["problem"] is None
    assert rows["loops"]["staged_parts"] == 1
    for repair in ((), ("--repair",)):
        _pid, code, said = users.warren(ALICE, "check", owner.directory, *repair)
        assert str(owner.directory / "transactions" / "shut") in said
        assert str(owner.directory / "transactions" / "half" / "staged") in said
        assert "cannot be read: Permission denied" in said, "a large message"
    _pid, code, said = users.python(ALICE, LOCKED, owner.directory)
    assert (code, said) == (0, f"{'06' * 16} False\n"), "those behind are not forgotten"
    with owner.node():  # whose worker may have removed the last one by now
        _pid, code, said = users.warren(ALICE, "inspect", owner.directory, "large", "--json")
        assert code == 0, said
        assert {row["id"] for row in json.loads(said)["large"]} - {"06" * 16} >= {"01" * 16}
    owner.unharmed()
