"""Goal: what is read in the background after an unclean start is called damaged when it is, and not because its file
went meanwhile.

Method: this process is the collector of a real store server; between its open and its reading a file is damaged, cut
and removed, or made another one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.store.folder import list_files
from warren.ipc.superblock import Superblock
from warren.workers.process.tie import Tie
from warren.workers.servers.collector import Collector

from support.store_node import StoreNode, message_id


def change(path: Path, how: str) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        if how == "cut":
            path.unlink()
            file.truncate(0)
            return
        if how == "recycled":
            path.rename(path.with_suffix(".spare"))
        file.write(os.urandom(size))


@pytest.mark.parametrize("how", ["damaged", "cut", "recycled"])
def test_damage_is_that_of_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    told: list[tuple[str, Any]] = []
    real = Collector.step

    def post(self: Collector, kind: str, fields: Any) -> None:
        told.append((kind, fields))
        self.stopping = kind == "verified"

    def step(self: Collector, *arguments: Any) -> Iterator[float]:
        nonlocal path
        if path is not None:
            change(path, how)
            path = None
        yield from real(self, *arguments)

    monkeypatch.setattr(Collector, "_post", post)
    monkeypatch.setattr(Collector, "step", step)
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        client = node.client()
        client.write([(message_id(n), bytes(2000)) for n in range(300)])
        path = list_files(node.folder()).files[0][1]
        superblock = Superblock.attach(node.node_id, LAYOUT_HASH)
        tie = cast(Tie, SimpleNamespace(look=lambda: 0))
        collector = Collector(node.directory, node.node_id, node.settings, superblock, tie)
        collector._begin_verification(0, superblock.server_get(0, "epoch"), 1 << 30)
        assert collector.run() == 0
        assert path is None
        assert [kind for kind, _fields in told] == (["damage", "verified"] if how == "damaged" else ["verified"])
        assert bool(told[-1][1]["damaged_n"]) == (how == "damaged")
