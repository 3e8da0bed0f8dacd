"""Goal: a node that stops leaves no output of a collection that nobody takes any more.

Method: this process is the collector of a real store server, which is told to end at a chosen moment of a job.
"""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warren.engine.kernel import atomic_file, segment
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.process.tie import Tie
from warren.workers.servers.collector import Collector

from support.store_node import StoreNode, message_id


def leave_garbage(node: StoreNode) -> None:
    """So much that a collection is due."""
    client = node.client()
    for first in range(0, 600, 100):
        client.write([(message_id(n), bytes(2000)) for n in range(first, first + 100)])
    client.remove([message_id(n) for n in range(600) if n % 4])


@pytest.mark.parametrize("draining", [True, False])
@pytest.mark.parametrize("when", ["before its list", "after its list", "after its answer"])
def test_a_collector_that_ends_with_its_store_server_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, draining: bool
) -> None:
    """The server gives the job up while its output is being finished. Unless the node stops another server follows,
    which may just be taking the output: then it stays, and the next start removes it."""
    ended: list[int] = []

    def end_of_the_server() -> None:
        if draining:
            node.superblock.set_state(CONSTANTS["NODE_DRAINING"])
        ended.append(node.stop())
        collector.stopping = True  # both are told

    def write(path: Path, content: Any) -> None:
        if when == "before its list":
            end_of_the_server()
        written(path, content)
        if when == "after its list":
            end_of_the_server()

    def post(self: Collector, kind: str, fields: Any) -> None:
        if kind == "collected" and when == "after its answer":
            # the server has no time to read it
            os.kill(node.pid, signal.SIGSTOP)
            posted(self, kind, fields)
            os.kill(node.pid, signal.SIGTERM)
            os.kill(node.pid, signal.SIGCONT)
            if draining:
                node.superblock.set_state(CONSTANTS["NODE_DRAINING"])
            ended.append(node.wait_end())
        else:
            posted(self, kind, fields)
        self.stopping = True

    written, posted = atomic_file.write_synced, Collector._post
    monkeypatch.setattr(atomic_file, "write_synced", write)
    monkeypatch.setattr(Collector, "_post", post)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        node.superblock.set_state(CONSTANTS["NODE_RUNNING"])
        me = Identity.current()
        tie = cast(Tie, SimpleNamespace(look=lambda: 0))
        superblock = Superblock.attach(node.node_id, LAYOUT_HASH)
        collector = Collector(node.directory, node.node_id, node.settings, superblock, tie)
        monkeypatch.setattr(os, "nice", lambda _by: 0)
        node.superblock.set_collector(me.pid, me.start_time)
        leave_garbage(node)
        assert collector.run() == 0
        assert ended == [0]
        if draining:
            assert not list(node.folder().glob(f"*{segment.UNFINISHED}"))
        node.superblock.set_state(CONSTANTS["NODE_STARTING"])
        node.start()
        assert not list(node.folder().glob(f"*.lst{segment.UNFINISHED}"))
        assert node.client().read(message_id(0)) == bytes(2000)
        assert node.client().read(message_id(1), timeout=0.1) is None
