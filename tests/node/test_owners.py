"""Goal: the owner of a directory decides. Others, root too, are refused at once in one sentence and leave nothing
behind; members of a group that he lets in use the node as he does.

Method: programs of other users (numeric ids, support/users.py) beside a node of one of them: each entry is tried by
root and by somebody, and what the kernel knows of files and shared memory is compared before and after.
"""

import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.ipc import mailbox, names
from warren.workers.process.control import ControlClient

from support import leaks, users
from support.long import in_part
from support.users import ALICE, BOB, EVE, GROUP, SUPERUSER, User, home, node_of
from support.waiting import wait_until

pytestmark = pytest.mark.integration

REFUSED = 3
#: segments that were there before, of a run that was killed
OLD: set[str] = set()
STRANGERS = {"root": SUPERUSER, "somebody": EVE}
#: entries that only the owner has, or a member of the group, too
OWNERS = {
    "up": ("up", "DIR"),
    "up --detach": ("up", "DIR", "--detach"),
    "up --adopt": ("up", "DIR", "--adopt", "--idle-exit", "1"),
    "up --group": ("up", "DIR", "--group", str(GROUP)),
    "stop": ("stop", "DIR"),
    "check --repair": ("check", "DIR", "--repair"),
}
USERS = {
    "publish": ("publish", "DIR", "q", "--body", "x"),
    "consume": ("consume", "DIR", "q"),
    "peek": ("peek", "DIR", "q"),
    "queue declare": ("queue", "declare", "DIR", "new"),
    "queue purge": ("queue", "purge", "DIR", "q", "--yes"),
    "queue delete": ("queue", "delete", "DIR", "q", "--yes"),
    "exchange declare": ("exchange", "declare", "DIR", "e"),
}
READING = {
    "status": ("status", "DIR"),
    "top": ("top", "DIR", "--count", "1"),
    "inspect": ("inspect", "DIR"),
    "check": ("check", "DIR"),
    "queue list": ("queue", "list", "DIR"),
}
ENTER = """
import sys, warren
call, directory = sys.argv[1:]
try:
    (warren.attach if call == "attach" else warren.open)(directory, timeout=20)
except warren.PermissionRefused as error:
    print(f"warren: {error}")
    sys.exit(3)
"""


@pytest.fixture(scope="module", autouse=True)
def _other_users() -> None:
    if why := users.why_not():
        pytest.skip(why)
    OLD.update(item["shmid"] for item in system_v("shm"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    users.let_in(tmp_path)
    return tmp_path


def declared_and_put(directory: Path, body: str) -> None:
    for entry in (("queue", "declare", directory, "q"), ("publish", directory, "q", "--body", body)):
        _pid, code, said = users.warren(ALICE, *entry)
        assert code == 0, said


def words(entry: tuple[str, ...], directory: Path) -> list[str]:
    return [str(directory) if word == "DIR" else word for word in entry]


def parts(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """A directory and all in it; a node makes and renames files in the background."""
    for path in [directory, *directory.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.lstat()


#: of files that lie ready, which are made in the background
REGISTER = "files"


def tree(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Who has what in a directory, and what stands in it, but for what a node that runs writes by itself."""
    found = {}
    for path, seen in parts(directory):
        if path.suffix not in (".log", ".jnl", ".rdq", ".new") and path.name != REGISTER:
            content = path.read_bytes() if stat.S_ISREG(seen.st_mode) else b""
            found[str(path)] = (seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode), content)
    return found


def system_v(kind: str) -> list[dict[str, str]]:
    header, *rows = (line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines())
    return [dict(zip(header, row, strict=False)) for row in rows]


def made_by(pid: int, user: User) -> list[dict[str, str]]:
    """System V segments that a process, or anybody of its user, made."""
    segments = [item for item in system_v("shm") if item["shmid"] not in OLD]
    return [item for item in segments if int(item["cpid"]) == pid or (user.uid and int(item["cuid"]) == user.uid)]


def is_refused(user: User, done: tuple[int, int, str], directory: Path, owner: User = ALICE) -> None:
    pid, code, said = done
    me = "user root (0)" if user == SUPERUSER else f"user {user.uid}"
    assert code == REFUSED, said
    who = f"belongs to user {owner.uid}, and this process runs as {me}"
    closed = f"warren: {directory} lies below {directory.parent} {who}, who may not look into it: "
    assert said.startswith((f"warren: {directory} {who}: ", closed)), said
    assert f"sudo -u '#{owner.uid}'" in said
    assert said.count("\n") == 1, "one sentence"
    assert made_by(pid, user) == []


def entries(user: User, directory: Path) -> None:
    """Every entry refuses a stranger, and nothing has changed."""
    before, shared = tree(directory), shared_names(directory)
    for entry in (*OWNERS.values(), *USERS.values()):
        is_refused(user, users.warren(user, *words(entry, directory)), directory)
    for call in ("attach", "open"):
        is_refused(user, users.python(user, ENTER, call, directory), directory)
    if user != SUPERUSER:
        for entry in READING.values():
            is_refused(user, users.warren(user, *words(entry, directory)), directory)
    assert tree(directory) == before
    assert shared_names(directory) == shared


def shared_names(directory: Path) -> set[str]:
    prefix = names.node_prefix(NodeDirectory(directory).shared_id)[1:]
    found = [Path("/dev/shm")]
    if isinstance(queues := leaks.message_queues(), Path):
        found.append(queues)
    return {str(path) for folder in found for path in folder.glob(f"{prefix}*")}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_refused_at_once_and_leave_nothing(place: Path, who: str) -> None:
    """Beside a node that runs, and one that is stopped; the owner goes on as before."""
    directory = home(place, ALICE) / "data"
    with node_of(ALICE, directory):
        declared_and_put(directory, "alice's")
        entries(STRANGERS[who], directory)
        if who == "root":
            for entry in READING.values():
                _pid, code, said = users.warren(SUPERUSER, *words(entry, directory))
                assert code == 0, (entry, said)
    entries(STRANGERS[who], directory)
    if who == "root":
        before = tree(directory)
        assert users.warren(SUPERUSER, "check", directory)[1] == 0
        assert tree(directory) == before, "a look writes nothing"
    assert {seen.st_uid for _path, seen in parts(directory)} == {ALICE.uid}
    with node_of(ALICE, directory):
        _pid, code, said = users.warren(ALICE, "consume", directory, "q", "--count", "1")
        assert (code, said) == (0, "alice's\n")


def test_the_supervisor_asks_the_kernel_who_asks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not look at the owner first is refused at the other end of the socket."""
    directory = home(place, ALICE) / "data"
    with node_of(ALICE, directory):
        monkeypatch.setattr(ownership, "check_user", lambda _path, **_options: None)
        with ControlClient(directory) as control:
            assert control.call("status")["state"] == "running"
            for op, fields in (("declare_queue", {"name": "q"}), ("stop", {}), ("note", {"text": "hello"})):
                with pytest.raises(warren.PermissionRefused, match=rf"user root \(0\) asked its node for {op}"):
                    control.call(op, **fields)
            assert control.call("queues")["queues"] == []


def test_a_new_directory_belongs_to_who_starts_it(place: Path) -> None:
    directory = home(place, EVE) / "a" / "b"
    with node_of(EVE, directory):
        for path, found in parts(directory.parent):
            assert (found.st_uid, found.st_gid) == (EVE.uid, EVE.uid)
            assert stat.S_IMODE(found.st_mode) == (0o700 if stat.S_ISDIR(found.st_mode) else 0o600), path


@pytest.mark.parametrize("how", [("--detach",), ()])
def test_a_place_where_nothing_can_be_made_is_named_with_its_owner(place: Path, how: tuple[str, ...]) -> None:
    home(place, ALICE)
    for parent, owner in ((place, "user root (0)"), (place / f"home-{ALICE.uid}", f"user {ALICE.uid}")):
        directory = parent / "new" / "data"
        pid, code, said = users.warren(EVE, "up", directory, *how)
        assert code == REFUSED, said
        assert f"cannot make {directory}: {parent} belongs to {owner}, and user {EVE.uid} may not write there" in said
        assert made_by(pid, EVE) == []
        assert not directory.parent.exists()


def test_a_directory_with_files_of_root_says_how_its_owner_gets_them_back(place: Path) -> None:
    """As after `sudo warren up` of a Warren that let root in."""
    directory = home(place, ALICE) / "data"
    with node_of(ALICE, directory):
        pass
    os.chown(directory / "node.json", 0, 0)
    before = tree(directory)
    _pid, code, said = users.warren(ALICE, "up", directory)
    assert code == REFUSED
    assert f"{directory} belongs to user {ALICE.uid}, but node.json in it to user root (0)" in said
    assert f"(sudo chown -R {ALICE.uid} {directory})" in said
    assert tree(directory) == before
    os.chown(directory / "node.json", ALICE.uid, ALICE.uid)
    with node_of(ALICE, directory):
        pass


def test_a_node_that_runs_as_another_user_than_the_owner_is_not_used(place: Path) -> None:
    """The directory was given away, or to a group, while its node ran: no client hangs, and no segment stays."""
    directory = home(place, ALICE) / "data"
    with node_of(ALICE, directory) as alices:
        for path, _seen in parts(directory):
            os.chown(path, 0, 0)
        not_served(SUPERUSER, "user root (0)", directory)
        assert alices.output is not None
        assert any("closed to this user" in line for line in alices.output), "it looks each second, and goes on"
        for path, _seen in parts(directory):
            os.chown(path, ALICE.uid, GROUP)
            path.chmod(0o770)
        not_served(BOB, f"user {BOB.uid}", directory)
    with node_of(ALICE, directory):
        assert {stat.S_IMODE(seen.st_mode) for _path, seen in parts(directory)} == {0o700, 0o600}, "private again"


def not_served(user: User, called: str, directory: Path) -> None:
    pid, code, said = users.python(user, ENTER, "attach", directory)
    assert code == REFUSED, said
    runs = f"runs as user {ALICE.uid} without a group of this process, which runs as {called}: "
    assert f"the node of {directory} {runs}" in said
    assert made_by(pid, user) == []


# -- a group -----------------------------------------------------------------------------------------------------------

MEMBER = """
import glob, os, signal, sys, time, warren
directory = sys.argv[1]
with warren.open(directory, timeout=60) as node:
    work = node.queue("work")
    work.put(b"small")
    work.put(b"L" * 100_000)
    work.put(b"F" * 1_500_000)
    node.store().write(os.urandom(16), b"stored")
    assert len(glob.glob(directory + "/queues/*/large/*")) == 1, "it has a file of its own"
    for size in (5, 100_000, 1_500_000):
        message = work.get(timeout=60)
        assert len(message.body) == size
        message.ack()
    while glob.glob(directory + "/queues/*/large/*"):
        time.sleep(0.01)
    warren.attach(directory).queue("work").put(b"of another client")
print("member")
"""
HOLDER = """
import os, signal, sys, warren
node = warren.attach(sys.argv[1], timeout=60)
node.queue("work").put(b"held")
held = [node.queue("work").get(timeout=60) for _ in range(2)]
[segment] = [line.split() for line in open("/proc/sysvipc/shm") if line.split()[4] == str(os.getpid())]
print(*segment[:8], held[0].body, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def all_shared(directory: Path) -> None:
    """By its mode, only the owner and the group may use each part of the node. The group can read it, and write only
    where nothing that it writes can be mistaken for a file of the owner.
    """
    for path, found in parts(directory):
        if stat.S_ISDIR(found.st_mode):
            mode = 0o3770 if path.name in ("doorbells", "large", "transactions") else 0o2750
        else:
            mode = 0o660 if stat.S_ISSOCK(found.st_mode) or path == directory / "lock" else 0o640
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (ALICE.uid, GROUP, mode), path
    shared = shared_names(directory)
    assert any(name.endswith("-super") for name in shared)
    for name in shared:
        found = os.stat(name)
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (ALICE.uid, GROUP, 0o660), name
    for role in ("supervisor", "store", "collector"):
        found = os.stat(directory / mailbox.FOLDER / mailbox.name(role))
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (ALICE.uid, GROUP, 0o660), role
    keys = NodeDirectory(directory).read().semaphore_keys
    semaphores = [item for item in system_v("sem") if int(item["key"]) in keys]
    assert [(item["uid"], item["gid"], item["perms"]) for item in semaphores] == [
        (str(ALICE.uid), str(GROUP), "660")
    ] * 2
    for item in system_v("shm"):
        if int(item["cuid"]) in (ALICE.uid, BOB.uid) and item["shmid"] not in OLD:
            mode = int(item["perms"], 8) & 0o777  # without the mark of those that are going
            assert (item["uid"], item["gid"], mode) == (str(ALICE.uid), str(GROUP), 0o660)


@pytest.mark.parametrize("umask", in_part(["077", "000"]))
def test_members_of_the_group_use_the_node(place: Path, umask: str) -> None:
    """Whatever umask either has. A member that is killed leaves nothing; strangers and root stay out."""
    directory = home(place, ALICE) / "above" / "data"
    masked = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    bobs = (*masked, sys.executable, "-P", "-c")
    with node_of(ALICE, directory, *masked, group=str(GROUP), message_bytes_max=str(2 << 20)) as alices:
        all_shared(directory)
        found = directory.parent.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o2750), "the way there is open, too"
        _pid, code, said = users.run(BOB, *bobs, MEMBER, str(directory))
        assert (code, said) == (0, "member\n")
        pid, code, said = users.run(BOB, *bobs, HOLDER, str(directory))
        assert code == -9, said
        _key, segment, perms, _size, cpid, _lpid, attached, uid = said.split()[:8]
        assert (perms, cpid, uid) == ("660", str(pid), str(ALICE.uid)), "the owner may remove it"
        assert int(attached) > 1, "the servers have it"
        wait_until(
            lambda: segment not in [item["shmid"] for item in system_v("shm")], 20, what="the end of his segment"
        )
        _pid, code, said = users.warren(ALICE, "consume", directory, "work", "--count", "2")
        assert (code, sorted(said.split("\n"))) == (0, ["", "held", "of another client"])
        for entry in OWNERS.values():
            is_refused(BOB, users.warren(BOB, *words(entry, directory)), directory)
        _pid, _code, said = users.warren(BOB, "stop", directory)
        assert f"the group {GROUP} may use its node, and only its owner starts, stops and repairs" in said
        for user in STRANGERS.values():
            entries(user, directory)
        for role in ("worker-0", "store", "supervisor"):
            alices.kill(role)
        try:  # of the successor nobody here is the parent
            _pid, code, said = users.run(BOB, *bobs, MEMBER, str(directory))
            assert (code, said) == (0, "member\n"), "servers that were restarted, too"
            all_shared(directory)
        finally:
            _pid, code, said = users.warren(ALICE, "stop", directory)
        assert code == 0, said
        alices.wait()
        for command in (("publish", directory, "work", "--body", "x"), ("status", directory)):
            _pid, code, said = users.warren(BOB, *command)
            assert code == 3
            assert f"only its owner may: have user {ALICE.uid} start one with `" in said, said
    assert made_by(0, BOB) == []
    assert made_by(0, ALICE) == []


def test_the_group_is_kept_changed_and_ended(place: Path) -> None:
    """A directory with messages gets a group, keeps it, and is private again; each time all of it."""
    directory = home(place, ALICE) / "data"
    put = ("publish", str(directory), "q", "--body", "after")
    with node_of(ALICE, directory):
        declared_and_put(directory, "before")
        is_refused(BOB, users.warren(BOB, *put), directory)
        _pid, code, said = users.warren(ALICE, "up", directory, "--adopt", "--group", GROUP)
        assert code == 2, said
        assert f"runs with group=none, not {GROUP}: stop it to change that" in said
    for given in ({"group": str(GROUP)}, {}):
        is_refused(BOB, users.python(BOB, ENTER, "open", directory), directory)  # a member does not start it either
        with node_of(ALICE, directory, **given):
            all_shared(directory)
            assert json.loads((directory / "node.json").read_text())["settings"]["group"] == str(GROUP)
            _pid, code, said = users.warren(BOB, "peek", directory, "q")
            assert code == 0, said
            assert "before" in said
    (directory / "store").chmod(0o700)  # as after a start that was killed when it had begun to end it
    with node_of(ALICE, directory, group=""):
        for path, found in parts(directory):
            assert stat.S_IMODE(found.st_mode) == (0o700 if stat.S_ISDIR(found.st_mode) else 0o600), path
        is_refused(BOB, users.warren(BOB, *put), directory)
        _pid, code, said = users.warren(ALICE, "consume", directory, "q", "--count", "1")
        assert (code, said) == (0, "before\n")


OPEN = """
import sys, warren
directory, group = sys.argv[1:]
try:
    with warren.open(directory, timeout=60, idle_exit=0.1, group=group, workers=1) as node:
        print(node.queue("q").put(b"x"))
except warren.UsageError as error:
    print(error)
"""


def test_a_group_that_cannot_be_let_in_is_refused_and_nothing_is_made(place: Path) -> None:
    directory = home(place, ALICE) / "data"
    for group, why in (
        ("no-such-group", r"there is no group 'no-such-group': give the name of one \(getent group\), a number, or ''"),
        ("61999", rf"user {ALICE.uid} is not in the group 61999, and cannot let it in: choose one of .*{GROUP}"),
    ):
        for how in ((), ("--detach",)):
            _pid, code, said = users.warren(ALICE, "up", directory, "--group", group, *how)
            assert code == 2, said
            assert re.search(why, said), said
        _pid, _code, said = users.python(ALICE, OPEN, directory, group)
        assert re.search(why, said), said
        assert not directory.exists()
    _pid, code, said = users.python(ALICE, OPEN, directory, str(GROUP))
    assert (code, said) == (0, "None\n"), f"and one that can be is taken by warren.open, too: {said}"
    wait_until(lambda: not NodeDirectory(directory).locked(), 60, what="the end of the node")
    assert NodeDirectory(directory).read().settings.group == str(GROUP)


def test_a_group_is_refused_where_its_processes_cannot_be_seen(place: Path) -> None:
    directory = home(place, ALICE) / "data"
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 none /proc || exit 77; exec "$@"', "sh")
    up = (sys.executable, "-P", "-m", "warren", "up", str(directory), "--group", str(GROUP))
    _pid, code, said = users.run(SUPERUSER, *hidden, *users.prefix(ALICE), *up)
    if code == users.CANNOT:
        pytest.skip(said)
    assert code == 2, said
    assert "/proc is mounted with hidepid" in said
    assert not directory.exists()


@pytest.mark.parametrize("given", [True, -1, "1 2", 1.5, object(), "a\0b"])
def test_what_is_no_group_is_refused(tmp_path: Path, given: object) -> None:
    with pytest.raises(warren.UsageError, match="there is no group"):
        warren.open(tmp_path / "data", group=given)  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists()
