"""Goal: garbage is collected while the store is used: the disk holds a small multiple of what lives, every message
stays what it is, whoever dies or stops at whatever moment, and nothing that was removed comes back.

Method: a real node with small files; a churn of writes and removes that knows what must be there; readers beside it;
named crash points, signals, a full disk and flipped bits during collections; restarts after them.
"""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.kernel.quarantine import entries
from warren.ipc.superblock import Superblock

from support.files import contents, gone, sizes
from support.long import in_part
from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

FILE = 256 * 1024
SETTINGS: dict[str, Any] = {
    "workers": 1,
    "file_bytes": FILE,
    "arena_bytes": 1 << 20,
    "message_bytes_max": 100_000,
    "summary_rows": 1024,
    "disk_free_bytes_min": 0,
}


class Churn:
    """Writes and removes, and what must be in the store."""

    def __init__(self, store: Any, seed: int, keep: int = 300, body_max: int = 3000) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.keep = keep
        self.body_max = body_max
        self.live: dict[bytes, bytes] = {}
        self.gone: list[bytes] = []
        self.written = 0

    def body(self) -> bytes:
        return self.chance.randbytes(self.chance.randrange(1, self.body_max))

    def step(self) -> None:
        """Write a few, remove as many when there are enough; sometimes an id comes again with other bytes."""
        chance = self.chance
        new = {self.store.new_id(): self.body() for _ in range(20)}
        if self.gone and chance.random() < 0.5:
            new[self.gone.pop(chance.randrange(len(self.gone)))] = self.body()
        self.store.write_many(list(new), list(new.values()), durability=chance.choice(("none", "written", "synced")))
        self.live |= new
        self.written += len(new)
        while len(self.live) > self.keep:
            removed = chance.sample(list(self.live), min(40, len(self.live)))
            self.store.remove(removed)
            for id in removed:
                del self.live[id]
            self.gone = [*self.gone, *removed][-200:]

    def until(self, over: Callable[[], Any], timeout: float = 30.0) -> None:
        """Go on until something has happened."""
        deadline = time.monotonic() + timeout * patience()
        while not over():
            assert time.monotonic() < deadline, "it did not happen while the store was used"
            self.step()

    def check(self, store: Any | None = None) -> None:
        """Everything that must be there is there with its bytes, and nothing that was removed."""
        store = store or self.store
        store.barrier(timeout=30.0)
        wrong = [id for id, body in self.live.items() if store.read(id) != body]
        assert not wrong, f"{len(wrong)} of {len(self.live)} messages are missing or wrong"
        back = [id for id in self.gone if id not in self.live and store.contains(id)]
        assert not back, f"{len(back)} removed messages are there again"

    @property
    def bytes(self) -> int:
        return sum(map(len, self.live.values()))


@contextlib.contextmanager
def superblock_of(directory: Path) -> Iterator[Superblock]:
    superblock = Superblock.attach(NodeDirectory(directory).shared_id, LAYOUT_HASH)
    try:
        yield superblock
    finally:
        superblock.close()


def folder(directory: Path) -> Path:
    return directory / "store" / "persistent"


def on_disk(directory: Path) -> int:
    """Bytes of the store's files, spares not among them."""
    return sum(size for size, _taken in sizes(folder(directory), "*.rdq").values())


def log(directory: Path, name: str = "store") -> str:
    return "".join(text.decode() for text in contents(directory / "log", f"{name}.log*").values())


def read_on(directory: Path, given: Connection, over: Event) -> None:
    """A reader's process: read what it was given again and again, and tell what was wrong."""
    wanted: dict[bytes, bytes] = {}
    wrong = reads = 0
    with warren.attach(directory) as node:
        store = node.store()
        while not over.is_set():
            while given.poll():
                wanted = given.recv()
            for id, body in wanted.items():
                reads += 1
                wrong += store.read(id) != body
    given.send((reads, wrong))


@pytest.mark.long
def test_disk_use_is_bounded_and_reads_go_on(tmp_path: Path) -> None:
    """Slow ackers: some messages live long among many that live shortly. Readers read the long-lived ones meanwhile."""
    directory = tmp_path / "node"
    context = multiprocessing.get_context("spawn")
    with RealNode(directory, **SETTINGS), warren.attach(directory) as node:
        store = node.store()
        churn = Churn(store, 1, keep=400)
        long_lived: dict[bytes, bytes] = {}
        over, readers = context.Event(), []
        for _ in range(2):
            mine, theirs = context.Pipe()
            process = context.Process(target=read_on, args=(directory, theirs, over))
            process.start()
            readers.append((process, mine))
        excess: list[tuple[int, int]] = []
        try:
            while churn.written < 25_000:
                churn.step()
                if churn.chance.random() < 0.2 and len(long_lived) < 200:
                    id = store.new_id()
                    long_lived[id] = churn.body()
                    store.write(id, long_lived[id], "none")
                    for _process, pipe in readers:
                        pipe.send(dict(list(long_lived.items())[:-1]))
                status = node.status()["store"]
                if status["file_bytes"] > 4 * status["valid_bytes"] + 4 * FILE:
                    excess.append((status["file_bytes"], status["valid_bytes"]))
            status = node.status()["store"]
            assert status["collected"] > 5
            churn.live |= long_lived
            churn.check()
        finally:
            over.set()
            told = [pipe.recv() for _process, pipe in readers]
            for process, pipe in readers:
                process.join(20)
                pipe.close()
                process.close()
        assert [wrong for _reads, wrong in told] == [0, 0]
        assert all(reads > 200 for reads, _wrong in told)
        # the bound is what collection works towards; nobody who writes is held up for it, so a burst may be ahead of it
        worst = max((files - 4 * valid - 4 * FILE for files, valid in excess), default=0)
        assert worst <= 48 * FILE, excess

        def half() -> bool:
            found = node.status()["store"]
            return bool(found["file_bytes"] <= 2 * found["valid_bytes"] + 2 * FILE)

        wait_until(half, 20, what="half of the files' bytes in use")
        assert on_disk(directory) <= 4 * churn.bytes + 4 * FILE
        churn.check()


POINTS = (
    "collect_locked",
    "collect_copying",
    "collect_copied",
    "collect_synced",
    "collect_list_renamed",
    "collect_committed",
    "swing_begun",
    "swung",
    "retire_begun",
    "retire_unlinked",
    "retired",
    "list_written",
    "file_recycled",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_a_collection_changes_nothing(tmp_path: Path, point: str) -> None:
    """The process at the point dies; it is replaced, and everything is as it must be; then the whole node dies."""
    directory = tmp_path / "node"
    # a swing of more than one slice takes more records than a slice has entries
    small = {"body_max": 8, "keep": 9000} if point == "swing_begun" else {}
    settings = SETTINGS | ({"file_bytes": 1 << 20} if small else {})
    with RealNode(directory, **settings) as real:
        with warren.attach(directory) as node, superblock_of(directory) as superblock:
            churn = Churn(node.store(), 2, **small)
            churn.until(lambda: node.status()["store"]["retired"] > 1)
            for after in (0, 1):
                superblock.arm_crash(point, after)
                churn.until(lambda: superblock.armed_crash is None, 40)
                collected = node.status()["store"]["collected"]
                churn.until(lambda: node.status()["store"]["collected"] > collected)  # noqa: B023
                churn.check()
            node.store().barrier("synced", timeout=30.0)
        real.kill_all()
        real.start()
        with warren.attach(directory) as node:
            churn.check(node.store())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_collector_that_dies_or_stops_disturbs_nobody(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SETTINGS) as real, warren.attach(directory) as node:
        churn = Churn(node.store(), 3)
        churn.until(lambda: node.status()["store"]["collected"] > 0)
        for _turn in range(6):
            # 0 while there is none: a signal to that would hit everybody in this test's process group
            pid = wait_until(lambda: real.pids()["collector"], 20, what="a collector")
            with contextlib.suppress(ProcessLookupError):  # it ended of the last one a moment ago
                os.kill(pid, number)
            for _step in range(churn.chance.randrange(1, 15)):
                churn.step()
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
        collected = node.status()["store"]["collected"]
        churn.until(lambda: node.status()["store"]["collected"] > collected)
        churn.check()


@pytest.mark.parametrize("seed", in_part(range(3)))
def test_a_store_server_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SETTINGS) as real:
        with warren.attach(directory) as node:
            churn = Churn(node.store(), 10 + seed)
            for _turn in range(5):
                for _step in range(churn.chance.randrange(10, 60)):
                    churn.step()
                real.kill("store")
            churn.check()
            collected = node.status()["store"]["collected"]
            churn.until(lambda: node.status()["store"]["collected"] > collected)
            churn.check()
        real.stop()
        real.start()
        with warren.attach(directory) as node:
            churn.check(node.store())


def test_ids_come_again_while_their_files_are_collected(tmp_path: Path) -> None:
    """Few ids, removed and written again with other bytes (rule S12): never the old ones, over kills and restarts."""
    directory = tmp_path / "node"
    chance = random.Random(5)
    ids = [bytes([7] * 8) + n.to_bytes(8, "big") for n in range(40)]
    truth: dict[bytes, bytes] = {}
    with RealNode(directory, **SETTINGS) as real:
        for turn in range(3):
            with warren.attach(directory) as node:
                store = node.store()
                for id in ids:  # what the last turn left
                    assert store.read(id) == truth.get(id), turn
                started = node.status()["store"]["collected"]
                deadline = time.monotonic() + 30 * patience()
                while node.status()["store"]["collected"] < started + 4:
                    assert time.monotonic() < deadline
                    for id in chance.sample(ids, 20):
                        if id in truth and id[15] < 10 and chance.random() < 0.9:
                            continue  # some stay long, so that files do not just become empty
                        if id in truth:
                            store.remove(id)
                            del truth[id]
                        else:
                            truth[id] = chance.randbytes(chance.randrange(1, 9000))
                            store.write(id, truth[id], "none")
                    store.barrier(timeout=30.0)
                    for id in ids:
                        assert store.read(id) == truth.get(id)
                store.barrier("synced", timeout=30.0)
            if turn == 0:
                real.kill_all()
            else:
                real.stop()
            real.start()


def test_the_transient_store_is_collected(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SETTINGS), warren.attach(directory) as node:
        churn = Churn(node.store(transient=True), 4)
        churn.step = lambda step=churn.step: step()  # type: ignore[method-assign]
        churn.chance.choice = lambda _levels: "none"  # type: ignore[method-assign,assignment]
        churn.until(lambda: node.status()["store_transient"]["collected"] > 3)
        churn.check()
        assert node.status()["store"]["collected"] == 0


def test_files_that_go_give_their_space_back_whoever_has_them_open(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with (
        RealNode(directory, **SETTINGS, spare_files=0),
        warren.attach(directory) as node,
        contextlib.ExitStack() as open_,
    ):
        churn = Churn(node.store(), 7)
        churn.until(lambda: churn.written > 1000)
        files = [open_.enter_context(path.open("rb")) for path in folder(directory).glob("*.rdq")]
        churn.until(lambda: sum(gone(file) for file in files) > 2)
        wait_until(
            lambda: not any(gone(file) and os.fstat(file.fileno()).st_size for file in files), 30, what="the space"
        )
        churn.check()


def test_a_full_disk_during_collections(small_disk: Path) -> None:
    """No room for an output: the files stay as they are, the node goes on, and collects when there is room again."""
    directory = small_disk / "node"
    ballast = small_disk / "ballast"
    with RealNode(directory, **SETTINGS, spare_files=0) as real:
        with warren.attach(directory) as node:
            churn = Churn(node.store(), 6)
            churn.until(lambda: node.status()["store"]["collected"] > 2)
            with open(ballast, "wb", buffering=0) as file:
                while shutil.disk_usage(small_disk).free > FILE - 65536:  # too little for a file; logs can go on
                    file.write(bytes(4096))

            def refused() -> bool:
                return "were not collected" in log(directory) or "writes wait" in log(directory)

            failed = threading.Event()

            def make_room() -> None:
                wait_until(lambda: failed.is_set() or refused(), 60, what="a refusal")
                ballast.unlink()

            with ThreadPoolExecutor(1) as beside:  # a write waits for as long as the disk is full
                made = beside.submit(make_room)
                try:
                    churn.until(made.done, 60)
                except warren.Error:  # the disk is full: whatever is refused is not in doubt
                    failed.set()
                made.result()
            wait_until(lambda: not node.status()["alarms"], 20, what="the end of the alarm")
            node.store().barrier(timeout=30.0)
            _resolve_doubts(churn)
            collected = node.status()["store"]["collected"]
            churn.until(lambda: node.status()["store"]["collected"] > collected, 90)
            churn.check()
            node.store().barrier("synced", timeout=30.0)
        real.kill_all()
        real.start()
        with warren.attach(directory) as node:
            churn.check(node.store())


def _resolve_doubts(churn: Churn) -> None:
    """After a refusal it is not known what the last step did: forget what is not as it says."""
    churn.live = {id: body for id, body in churn.live.items() if churn.store.read(id) == body}
    churn.gone = [id for id in churn.gone if not churn.store.contains(id)]


def test_a_damaged_record_is_named_dropped_and_kept_for_people(tmp_path: Path) -> None:
    """A flipped bit in a live record: the pass behind an unclean start finds it; the rest of its file moves on."""
    directory = tmp_path / "node"
    with RealNode(directory, **SETTINGS) as real:
        with warren.attach(directory) as node:
            store = node.store()
            bodies = {store.new_id(): os.urandom(2000) for _ in range(700)}
            store.write_many(list(bodies), list(bodies.values()))
        real.kill_all()
        path = folder(directory) / "1.rdq"
        content = path.read_bytes()
        victim = next(id for id, body in bodies.items() if body in content)
        at = content.index(bodies[victim]) + 1000
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 4]))
        real.start()
        with warren.attach(directory) as node:
            wait_until(lambda: node.status()["store"]["lost"] == 1, 30, what="the loss to be counted")
            wait_until(lambda: "moved to" in log(directory), 10, what="the file to be moved")
            store = node.store()
            assert store.read(victim) is None
            assert not store.contains(victim)
            assert all(store.read(id) == body for id, body in bodies.items() if id != victim)
            # the id may be used again
            store.write(victim, b"again")
            assert store.read(victim) == b"again"
        assert victim.hex() in log(directory)
        assert "1.rdq" in log(directory)
        found = entries(folder(directory))
        assert {entry.file for entry in found} == {"1.rdq"}
        assert (folder(directory) / "quarantine" / "1.rdq").exists()
        assert not path.exists()
        real.kill_all()
        real.start()
        with warren.attach(directory) as node:
            store = node.store()
            assert store.read(victim) == b"again"
            assert all(store.read(id) == body for id, body in bodies.items() if id != victim)


def test_inspect_shows_the_files(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SETTINGS), warren.attach(directory) as node:
        churn = Churn(node.store(), 8)
        churn.until(lambda: node.status()["store"]["collected"] > 2)
        said = subprocess.run(
            [
                sys.executable,
                "-m",
                "warren.workers.cli.main",
                "inspect",
                str(directory),
                "files",
                "collection",
                "--json",
            ],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)},
        )
        shown = json.loads(said.stdout)
        wanted = {"left", "right", "locked", "replay_free", "ghosts", "readers", "valid_total_size", "file_size"}
        assert wanted | {"position_low", "position_high"} <= set(shown["files"][0])
        stores = {row["server"]: row for row in shown["collection"]}
        assert stores[0]["collected_n"] > 2
        assert stores[0]["retired_n"] > 2
        assert 0 < stores[0]["utilisation"] <= 1
