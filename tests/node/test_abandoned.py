"""Goal: what a killed node leaves in shared memory goes, and nothing goes that a living process has.

Method: bob's nodes, so that nobody else's are touched: one is killed whole and its directory removed, another one
lives. `warren clean` and the start of a third one are looked at, by the names in /dev/shm and the System V objects of
his. Parts alone: a superblock that is half made, of another version, of another IPC namespace, whose client lives;
regions and segments whose superblock somebody removed.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import names, region
from warren.ipc.identity import Identity
from warren.ipc.layout import CLIENT, CLIENT_MAGIC
from warren.ipc.superblock import Superblock
from warren.workers.node import cold_start
from warren.workers.process import abandoned, shared_objects

from support import users
from support.real_node import RealNode
from support.users import User
from support.waiting import wait_until

#: of this process alone: other runs leave and remove what is theirs
BOB = User(100_000 + os.getpid() % 400_000)
as_bob = pytest.mark.skipif(bool(why := users.why_not()), reason=why)
SIZES = cold_start.geometry(Settings(profile="small", arena_bytes=1 << 20), 1)


def bobs() -> tuple[set[str], set[int], set[int]]:
    """Names in /dev/shm, System V segments, keys of semaphores of bob's."""
    shared = {name for name in region.posix_names("/warren-") if region.posix_owner(name) == BOB.uid}
    found = []
    for kind in ("shm", "sem"):
        header, *rows = (line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines())
        at, owner = header.index("shmid" if kind == "shm" else "key"), header.index("cuid")
        found.append({int(row[at]) for row in rows if int(row[owner]) == BOB.uid})
    return shared, found[0], found[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    users.let_in(tmp_path)
    return users.home(tmp_path, BOB)


def up(stack: contextlib.ExitStack, directory: Path) -> RealNode:
    node = users.node_of(BOB, directory)
    node.start()
    stack.callback(node.stop)
    return node


def used(directory: Path) -> None:
    """Two commands use the node; the supervisor removes their memory after them, in its own time."""
    segments = bobs()[1]
    _pid, code, said = users.warren(BOB, "queue", "declare", directory, "q")
    assert code == 0, said
    assert users.warren(BOB, "publish", directory, "q", "--body", "x")[1] == 0
    wait_until(lambda: bobs()[1] <= segments, 120, what="the commands' memory to go")


def cleaned(*options: str) -> dict[str, object]:
    _pid, code, said = users.warren(BOB, "clean", "--json", *options)
    assert code == 0, said
    return dict(json.loads(said))


def killed_and_gone(node: RealNode) -> None:
    node.kill_all()
    shutil.rmtree(node.directory)


@as_bob
def test_clean_removes_what_is_nobodys_and_no_more(home: Path) -> None:
    before = bobs()
    with contextlib.ExitStack() as stack:
        living = up(stack, home / "living")
        used(living.directory)
        with_living = bobs()
        dead = up(stack, home / "dead")
        used(dead.directory)
        killed_and_gone(dead)
        left = bobs()
        assert all(len(part) > len(less) for part, less in zip(left, with_living, strict=True))
        looked = cleaned("--dry-run")
        assert bobs() == left, "a look removes nothing"
        [row] = looked["nodes"]  # type: ignore[misc]
        assert row["directory"] == str(dead.directory)
        assert row["bytes"] == looked["bytes"] > 1 << 20  # type: ignore[operator]
        assert row["regions"] == len(left[0] - with_living[0])
        _pid, code, said = users.warren(BOB, "clean")
        assert (code, str(dead.directory) in said) == (0, True), said
        assert bobs() == with_living
        assert cleaned()["nodes"] == []
        used_again = users.warren(BOB, "consume", living.directory, "q", "--count", "1")
        assert used_again[1] == 0, used_again
    assert bobs() == before


@as_bob
def test_a_start_removes_what_other_nodes_left(home: Path) -> None:
    before = bobs()
    with contextlib.ExitStack() as stack:
        dead = up(stack, home / "dead")
        used(dead.directory)
        killed_and_gone(dead)
        other = up(stack, home / "other")
        assert str(dead.directory) in (other.directory / "log" / "supervisor.log").read_text()
    assert bobs() == before


@as_bob
def test_a_living_client_keeps_the_memory_of_a_killed_node(home: Path) -> None:
    """Its node may come back, and then does what the client has submitted."""
    before = bobs()
    program = (
        "import sys, warren\n"
        "node = warren.attach(sys.argv[1])\n"
        "queue = node.queue('q')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "queue.put(b'y', timeout=120)\n"
        "node.close()\n"
    )
    with contextlib.ExitStack() as stack:
        node = up(stack, home / "node")
        used(node.directory)
        client = subprocess.Popen(
            [*users.prefix(BOB), sys.executable, "-P", "-c", program, str(node.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        stack.enter_context(client)
        assert client.stdout is not None
        assert client.stdin is not None
        assert client.stdout.readline() == "ready\n"
        node.kill_all()
        left = bobs()
        answer = cleaned()
        [kept] = answer["nodes"]  # type: ignore[misc]
        assert (kept["directory"], answer["bytes"]) == (str(node.directory), 0)
        assert kept["kept"].startswith("in use by process")
        assert kept["bytes"] > 1 << 20
        _pid, _code, said = users.warren(BOB, "clean")
        assert f"of {node.directory}, in use by process" in said
        assert bobs() == left
        up(stack, home / "other")
        assert left[0] <= bobs()[0]
        node.start()
        client.stdin.write("\n")
        client.stdin.close()
        assert client.wait(120) == 0
    assert bobs() == before


# -- parts alone ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def only(monkeypatch: pytest.MonkeyPatch, *shared_ids: int) -> Iterator[None]:
    """Nothing is looked at but these, for others run nodes here."""
    by_node, all_segments = abandoned._by_node, abandoned.segments
    with monkeypatch.context() as patched:
        patched.setattr(abandoned, "_by_node", lambda: {n: part for n, part in by_node().items() if n in shared_ids})
        patched.setattr(abandoned, "segments", lambda: [item for item in all_segments() if item.creator == os.getpid()])
        yield


def made(directory: str = "/gone", layout_hash: int = LAYOUT_HASH) -> Superblock:
    keys = names.draw_key(), names.draw_key()
    for key in keys:
        assert shared_objects.create_semaphore(key, 0)
    return Superblock.create(names.draw(), 1, *keys, SIZES, layout_hash=layout_hash, directory=directory)


def test_a_superblock_that_somebody_has_open_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    superblock = made()
    other = region.posix_create(superblock.region_name("images", 2, 1), 1 << 20)
    other.close()
    shared_id, keys = superblock.shared_id, [superblock.get(name) for name in shared_objects_keys()]
    with only(monkeypatch, shared_id):
        assert abandoned.clean() == []
        looking = os.open(region.SHM_DIRECTORY + names.superblock(shared_id), os.O_RDONLY)
        superblock.close()
        assert abandoned.clean() == [], "it is open, and not mapped"
        os.close(looking)
        [left] = abandoned.clean()
        assert (left.shared_id, left.directory, left.regions, left.kept) == (shared_id, "/gone", 2, "")
    assert region.posix_names(names.node_prefix(shared_id)) == []
    assert not any(map(shared_objects.semaphore_exists, keys))


def shared_objects_keys() -> tuple[str, ...]:
    return ("live_semaphore_key", "store_lock_key")


def test_half_made_and_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version nothing is known but the names in /dev/shm."""
    half = names.draw()
    region.posix_create(names.superblock(half), 4096).close()
    older = made(layout_hash=1)
    keys = [older.get(name) for name in shared_objects_keys()]
    older.close()
    with only(monkeypatch, half, older.shared_id):
        assert {left.shared_id for left in abandoned.clean()} == {half, older.shared_id}
        assert abandoned.clean() == []
    assert all(map(shared_objects.remove_semaphore, keys)), "they stood where only the other version knows"


def test_of_another_ipc_namespace_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    superblock = made()
    superblock.set("ipc_namespace", 1)
    superblock.close()
    with only(monkeypatch, superblock.shared_id):
        [left] = abandoned.clean()
        assert "IPC namespace" in left.kept
        assert region.posix_names(names.node_prefix(superblock.shared_id))
        here = Superblock.attach(superblock.shared_id, LAYOUT_HASH)
        here.set("ipc_namespace", here.namespaces.current().ipc)
        here.close()
        assert [left.kept for left in abandoned.clean()] == [""]


def test_regions_and_segments_without_a_superblock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `rm /dev/shm/warren-*super`: what somebody has attached stays until he has not."""
    superblock = made()
    view = superblock.claim(Identity.current(), "client")
    segment = region.sysv_create(superblock.region_bytes())
    superblock.set_segment(view, segment.id)
    superblock.sign(segment)
    CLIENT.pack_into(segment.buffer, "magic", CLIENT_MAGIC)
    stranger = region.sysv_create(CLIENT.size)
    mapped = region.posix_create(superblock.region_name("images", 2, 1), 1 << 16)
    region.posix_create(superblock.region_name("images", 2, 2), 1 << 16).close()
    superblock.unlink()
    for name in shared_objects_keys():
        shared_objects.remove_semaphore(superblock.get(name))
    superblock.close()
    with only(monkeypatch, superblock.shared_id):
        [left] = abandoned.clean()
        assert (left.regions, left.segments) == (1, 0)
        mapped.close()
        id = segment.id
        segment.close()
        stranger.close()
        found = abandoned.clean()
        assert [(left.shared_id, left.regions, left.segments) for left in found] == [
            (superblock.shared_id, 1, 0),
            (superblock.shared_id, 0, 1),
        ]
        assert id not in {item.id for item in shared_objects.segments()}
        assert stranger.id in {item.id for item in shared_objects.segments()}, "it says of no node that it is its"
        assert abandoned.clean() == []
    region.sysv_remove(stranger.id)


def test_a_start_removes_the_remains_of_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Living nodes do not count, nor what has to stay: what sorts after them has its turn, too."""
    living, kept, dead = ([made() for _turn in range(4)] for _kind in range(3))
    here = kept[0].namespaces.current().ipc
    for superblock in kept:
        superblock.set("ipc_namespace", 1)
        superblock.close()
    for superblock in dead:
        superblock.close()
    everybody = [superblock.shared_id for superblock in (*living, *kept, *dead)]

    def removed() -> int:
        return sum(not left.kept for left in abandoned.clean(most=3))

    with only(monkeypatch, *everybody):
        assert [removed(), removed()] == [3, 1]
        for superblock in living:
            superblock.close()
        for superblock in kept:
            again = Superblock.attach(superblock.shared_id, LAYOUT_HASH)
            again.set("ipc_namespace", here)
            again.close()
        assert [removed(), removed(), removed(), removed()] == [3, 3, 2, 0]


@as_bob
def test_one_that_starts_is_never_taken_for_a_killed_one(home: Path) -> None:
    """A cleaner runs all the while that nodes start, serve and stop."""
    program = (
        "import sys, threading\n"
        "from warren.workers.process import abandoned\n"
        "over = threading.Event()\n"
        "threading.Thread(target=lambda: (sys.stdin.readline(), over.set())).start()\n"
        "turns = 0\n"
        "while not over.is_set():\n"
        "    abandoned.clean()\n"
        "    turns += 1\n"
        "print(turns)\n"
    )
    with subprocess.Popen(
        [*users.prefix(BOB), sys.executable, "-P", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as cleaner:
        assert cleaner.stdin is not None
        assert cleaner.stdout is not None
        try:
            for turn in range(3):
                with contextlib.ExitStack() as stack:
                    node = up(stack, home / f"node-{turn}")
                    used(node.directory)
                    found = NodeDirectory(node.directory).superblock()
                    stack.callback(found.close)
                    assert found.named
        finally:
            cleaner.stdin.close()
        assert int(cleaner.stdout.readline()) > 0
