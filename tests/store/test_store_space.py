"""Goal: a store that is not written to takes no more of the disk than rule S24 says: twice what lives in it and two
files; an empty one is one file and at most one spare, whoever of the node died or stopped before.

Method: a real node with small files; writes, removes, kills and restarts, chosen by Hypothesis, too. After them the
test waits until the folder is as small as the rule says, and reads what must be there.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT
from warren.ipc.superblock import Superblock

from support.files import sizes
from support.long import rounds
from support.real_node import RealNode
from support.waiting import wait_until

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

both_stores = pytest.mark.parametrize("transient", [False, True], ids=["persistent", "transient"])


class World:
    """A node, one of its stores, and what must be in that."""

    def __init__(self, real: RealNode, transient: bool) -> None:
        self.real = real
        self.transient = transient
        self.folder = real.directory / "store" / ("transient" if transient else "persistent")
        self.live: dict[bytes, bytes] = {}
        self.attach()

    def attach(self) -> None:
        self.node = warren.attach(self.real.directory)
        self.store = self.node.store(transient=self.transient)

    def write(self, count: int, size: int) -> None:
        new = {self.store.new_id(): os.urandom(size) for _ in range(count)}
        for ids in (list(new)[at : at + 20] for at in range(0, count, 20)):
            self.store.write_many(ids, [new[id] for id in ids], durability="none")
        self.live |= new

    def remove(self, share: float, seed: int) -> None:
        gone = random.Random(seed).sample(list(self.live), int(len(self.live) * share))
        for at in range(0, len(gone), 100):
            self.store.remove(gone[at : at + 100])
        for id in gone:
            del self.live[id]
        self.store.barrier(timeout=60.0)

    def kill(self, role: str) -> None:
        self.store.barrier(timeout=60.0)
        self.real.kill(role)
        if role == "store" and self.transient:
            self.live.clear()

    def restart(self) -> None:
        self.node.close()
        self.real.stop()
        self.real.start()
        self.attach()
        if self.transient:
            self.live.clear()

    def step(self, kind: str, *values: Any) -> None:
        getattr(self, kind)(*values)

    # -- what the disk holds --

    def of_server(self, *names: str) -> list[int]:
        number = SERVER_STORE_TRANSIENT if self.transient else SERVER_STORE_PERSISTENT
        superblock = Superblock.attach(NodeDirectory(self.real.directory).shared_id, LAYOUT_HASH)
        try:
            return [superblock.server_get(number, name) for name in names]
        finally:
            superblock.close()

    def found(self) -> dict[str, int]:
        """Data files and spares by name."""
        pairs = [*sizes(self.folder, "*.rdq").items(), *sizes(self.folder, "*.free").items()]
        return {str(name): size for name, (size, _taken) in pairs}

    def empty(self) -> str:
        """Why the folder is not that of an empty store; "": it is."""
        names = sorted(self.found())
        files, spares = ([name for name in names if name.endswith(end)] for end in (".rdq", ".free"))
        return "" if len(files) <= 1 and len(spares) <= 1 else str(names)

    def too_large(self) -> str:
        """The violation of rule S24, or "" if there is none."""
        messages, valid = self.of_server("messages", "valid_bytes")
        found = self.found()
        over = sum(found.values()) - 2 * valid - 2 * FILE
        fits = messages == len(self.live) and over <= 0
        return "" if fits else f"{over} bytes: {messages} messages, {valid} bytes live, {found}"

    def settles(self) -> None:
        for _turn in range(2):  # after a start a store is small, makes a spare, and is small again when it is quiet
            wait_until(lambda: not self.too_large(), 20, what="a store within its bound, but " + self.too_large())
            for id, body in self.live.items():
                assert self.store.read(id) == body

    def empties(self) -> None:
        wait_until(lambda: not self.empty(), 20, what="an empty store of one file and a spare")


@both_stores
def test_an_empty_store_is_one_file_and_at_most_one_spare(tmp_path: Path, transient: bool) -> None:
    with RealNode(tmp_path / "node", **SETTINGS) as real:
        world = World(real, transient)
        world.write(2000, 2000)
        assert len(world.found()) > 12
        world.remove(1.0, 0)
        world.empties()

        world.restart()
        world.empties()
        world.write(10, 10)
        world.kill("store")
        world.remove(1.0, 0)
        world.empties()
        world.node.close()


@both_stores
def test_empty_files_need_no_collector(tmp_path: Path, transient: bool) -> None:
    with RealNode(tmp_path / "node", **SETTINGS) as real:
        world = World(real, transient)
        collector = real.pids()["collector"]
        os.kill(collector, signal.SIGSTOP)
        try:
            world.write(1000, 2000)
            world.remove(1.0, 0)
            world.empties()
        finally:
            os.kill(collector, signal.SIGCONT)
        world.node.close()


def test_files_of_stops_are_collected_together(tmp_path: Path) -> None:
    """Each start begins a file, so that the one before it is as large as the others, with little in it."""
    with RealNode(tmp_path / "node", **SETTINGS) as real:
        world = World(real, False)
        for _ in range(4):
            world.write(3, 100)
            world.restart()
        world.settles()
        world.node.close()


step = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 300), st.sampled_from([1, 500, 3000, 20_000])),
    st.tuples(st.just("remove"), st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.integers(0, 1000)),
    st.tuples(st.just("kill"), st.sampled_from(["store", "collector"])),
    st.tuples(st.just("restart")),
)


@both_stores
def test_disk_use_of_a_quiet_store_is_bounded(tmp_path: Path, transient: bool) -> None:
    with RealNode(tmp_path / "node", **SETTINGS) as real:
        world = World(real, transient)

        @settings(
            max_examples=rounds(12),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps=st.lists(step, min_size=2, max_size=6))
        def bounded(steps: list[tuple[Any, ...]]) -> None:
            for each in steps:
                world.step(*each)
            world.settles()
            world.remove(1.0, 0)
            world.empties()

        bounded()
        world.node.close()
