"""Goal: the topic worker of a real node is there from the first topic on, comes back whatever is killed, and leaves
nothing when the node has ended.

Method: `warren up`, declarations by the control socket; worker, supervisor and everything are killed; regions, rows and
log are looked at from outside. The census of conftest.py fails a test that leaves anything.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import names, region
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

#: sizes with which topics are tried out
LITTLE = {
    "log_file_bytes": 1 << 20,
    "consume_queue_entries": 100,
    "index_slots": 100,
    "index_entries": 400,
    "topic_ring_bytes": 1 << 18,
    "workers": 1,
}


def call(node: RealNode, op: str, **fields: Any) -> dict[str, Any]:
    with ControlClient(node.directory) as control:
        return control.call(op, **fields)


def row(node: RealNode) -> dict[str, int]:
    """What the superblock says of the topic worker."""
    superblock = Superblock.attach(NodeDirectory(node.directory).shared_id, LAYOUT_HASH)
    try:
        words = ("state", "epoch", "catalog_read", "restarts", "generation")
        return {word: superblock.server_get(superblock.topic_server, word) for word in words}
    finally:
        superblock.close()


def shared(node: RealNode, what: str) -> list[str]:
    prefix = names.node_prefix(NodeDirectory(node.directory).shared_id)
    return region.posix_names(f"{prefix}{what}-")


def test_from_the_first_topic_to_the_end(tmp_path: Path) -> None:
    folder = TopicsFolder.of(tmp_path / "node")
    with RealNode(tmp_path / "node", **LITTLE) as node:
        call(node, "declare_queue", name="q")
        assert (shared(node, "tring"), shared(node, "trows"), folder.path.exists()) == ([], [], False)
        made = call(node, "declare_topic", name="flights", queues=3)
        found = row(node)
        assert found["state"] == CONSTANTS["SERVER_READY"]
        assert found["catalog_read"] >= made["version"]
        assert (len(shared(node, "tring")), len(shared(node, "trows"))) == (1, 1)
        assert (folder.log.is_dir(), (tmp_path / "node" / "log" / "topics.log").exists()) == (True, True)
        (shown,) = call(node, "status")["topics"]
        assert (shown["name"], shown["queues"], shown["messages"], shown["appended"]) == ("flights", 3, 0, 0)
        assert call(node, "delete_topic", name="flights")["topic"] == made["topic"]
        again = call(node, "declare_topic", name="flights", queues=2)
        assert again["topic"]["id"] > made["topic"]["id"]
    with RealNode(tmp_path / "node", workers=2) as node:
        assert node.pids()["topic_worker"]
        assert not call(node, "declare_topic", name="flights", queues=2)["created"]


def test_whatever_is_killed(tmp_path: Path) -> None:
    with RealNode(tmp_path / "node", **LITTLE) as node:
        call(node, "declare_topic", name="flights")
        before = row(node)
        node.kill("topic_worker")
        assert not call(node, "declare_topic", name="flights")["created"]
        after = row(node)
        assert (after["restarts"], after["epoch"]) == (before["restarts"] + 1, before["epoch"] + 1)
        assert (len(shared(node, "tring")), len(shared(node, "trows"))) == (1, 1), "those of the dead one are gone"
        node.kill("store")
        node.kill("worker-0")
        assert row(node)["epoch"] == after["epoch"]
        assert call(node, "declare_topic", name="more")["created"]
        pid = node.pids()["topic_worker"]
        node.kill("supervisor")
        assert node.pids()["topic_worker"] == pid, "the successor adopts it"
        assert call(node, "declare_topic", name="after")["created"]
        node.kill("topic_worker")
        names_shown = [item["name"] for item in call(node, "status")["topics"]]
        assert names_shown == ["after", "flights", "more"]
        call(node, "stop")
        wait_until(lambda: not NodeDirectory(node.directory).locked(), what="the end of the successor")
    with RealNode(tmp_path / "node", **LITTLE) as node:
        assert not call(node, "declare_topic", name="after")["created"]
        node.kill_all()
        node.start()
        assert not call(node, "declare_topic", name="after")["created"]


def test_people_see_topics_and_their_worker(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "warren", words[0], str(tmp_path / "node"), *words[1:]],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "160"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with RealNode(tmp_path / "node", **LITTLE) as node:
        before = said("status")
        assert "Topics" not in before
        assert "topic worker" not in before
        assert "topics" not in {item["role"] for item in json.loads(said("inspect", "--json"))["servers"]}
        call(node, "declare_topic", name="flights", queues=3)
        for text in (said("status"), said("status", "--all"), said("top", "--count", "1")):
            assert re.search(r"topic worker\s+.*ready", text), text
            assert re.search(r"Topics\b", text), text
            assert re.search(r"flights\W+3\W+0\W+0", text), text
        report = json.loads(said("status", "--json"))
        assert (report["topics_n"], report["topics"][0]["name"]) == (1, "flights")
        (inspected,) = (item for item in json.loads(said("inspect", "--json"))["servers"] if item["role"] == "topics")
        assert (inspected["state"], inspected["server"]) == ("ready", 3)
