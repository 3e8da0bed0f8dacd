"""Goal: topics of a real node: what was appended is there once after kills of the topic worker and of all of the node;
its regions and its log are its own, and go; alone it brings the node back.

Method: a real node with small files, a client of it, kills by process id. The log is read from its files by the tables
of the format (support/topic_tables.py).
"""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine import _core
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.engine.topics.names import store_host
from warren.ipc.region import SHM_DIRECTORY
from warren.workers.cli.check import verify
from warren.workers.client.client import Client
from warren.workers.process.control import ControlClient

from support import topic_tables
from support.command_line import warren as warren_of_the_shell
from support.real_node import RealNode
from support.topic_log import log_files
from support.waiting import wait_until

pytestmark = pytest.mark.integration
SMALL = {
    "log_file_bytes": 1 << 20,
    "topic_ring_bytes": 1 << 18,
    "consume_queue_entries": 200,
    "index_slots": 100,
    "index_entries": 500,
}
COMMAND_BYTES = 1 << 16
SYNCED, WRITTEN = _core.LEVEL_SYNCED, _core.LEVEL_WRITTEN


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", **SMALL) as node:
        yield node


def asked(directory: Path, what: str, **told: Any) -> dict[str, Any]:
    with ControlClient(directory) as control:
        return control.call(what, **told)


def declared(directory: Path, name: str = "flights", queues: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = asked(directory, "declare_topic", name=name, queues=queues)["topic"]
    return found


class Program:
    """A program that appends."""

    def __init__(self, client: Client, topic: dict[str, Any]) -> None:
        self.client = client
        superblock = client.attachment().superblock
        name_n, version = len(topic["name"]), superblock.get("catalog_version")
        client.core.catalog_seen = version
        host = store_host(superblock.node_id)
        self.handle = _core.TopicHandle(
            client.core, superblock.topic_server, topic["id"], name_n, topic["queues"], host, COMMAND_BYTES, version
        )

    def append(self, body: bytes, queue: int | None = None, *, level: int = SYNCED, wait: bool = True) -> Any:
        return self.handle.append(body, None, None, None, queue, None, None, level, 60.0, wait)


@contextlib.contextmanager
def appending(directory: Path, topic: dict[str, Any]) -> Iterator[Program]:
    client = Client(directory, None, 30.0)
    try:
        yield Program(client, topic)
    finally:
        client.close()


def topics_process(directory: Path) -> dict[str, Any] | None:
    """What `status` says of the topic worker; None: the supervisor is not there."""
    try:
        processes = asked(directory, "status")["processes"]
    except Error:
        return None
    return next((item for item in processes if item["role"] == "topic_worker"), None)


def logged(directory: Path) -> list[dict[str, Any]]:
    """All records of the log but the commit records."""
    found = []
    for path in log_files(directory / "topics/commitlog"):
        data, base, at = path.read_bytes(), int(path.name), 0
        while at < len(data):
            what, size, fields = topic_tables.read(data, base + at, at)
            if what in ("end", "blank"):
                break
            assert what == "record", (path, at)
            assert fields is not None
            if fields["topic"] != "WARREN_SYS_COMMIT":
                found.append(fields)
            at += size
    return found


def expect(directory: Path, bodies: list[bytes], positions: list[Any]) -> None:
    """Each once, where its position says."""
    records = logged(directory)
    assert sorted(record["body"] for record in records) == sorted(bodies)
    there = {record["physical_offset"]: record for record in records}
    for body, position in zip(bodies, positions, strict=True):
        record = there[position.physical_offset]
        assert (record["body"], record["queue_id"], record["queue_offset"]) == (body, position.queue, position.offset)


def test_appends_outlive_kills_of_the_topic_worker(running: RealNode) -> None:
    directory = running.directory
    topic = declared(directory)
    bodies: list[bytes] = []
    confirms: list[Any] = []
    with appending(directory, topic) as program:
        for round in range(6):
            for i in range(200):
                bodies.append(b"%d of %d" % (i, round))
                confirms.append(program.append(bodies[-1], i % 2, wait=False, level=SYNCED if i % 3 else WRITTEN))
                if i == 100:
                    running.kill("topic_worker")
        positions = [confirm.result(60) for confirm in confirms]
        for queue in (0, 1):
            of_queue = [position.offset for position in positions if position.queue == queue]
            assert of_queue == list(range(len(of_queue)))
    running.stop()
    expect(directory, bodies, positions)


def test_appends_outlive_a_kill_of_all_of_the_node(running: RealNode) -> None:
    directory = running.directory
    topic = declared(directory)
    bodies, positions = [], []
    for round in range(2):
        with appending(directory, topic) as program:
            for i in range(50):
                bodies.append(b"%d of %d" % (i, round))
                positions.append(program.append(bodies[-1], 0))
            if round == 0:
                running.kill_all()
        if round == 0:
            running.start()
    running.stop()
    assert [position.offset for position in positions] == list(range(100))
    expect(directory, bodies, positions)


def test_regions_go_with_their_incarnation_and_the_log_tells_of_each(running: RealNode) -> None:
    directory = running.directory
    declared(directory)
    prefix = f"warren-{asked(directory, 'status')['shared_id']}-tr"

    def regions() -> set[str]:
        return {name for name in os.listdir(SHM_DIRECTORY) if name.startswith(prefix)}

    before = regions()
    assert len(before) == 2  # the ring, and the rows
    running.kill("topic_worker")
    wait_until(lambda: (found := topics_process(directory)) and found["state"] == "ready", 20, what="a new worker")
    assert len(regions()) == 2
    assert not regions() & before
    log = (directory / "log/topics.log").read_text()
    assert log.count("ready in") == 2
    assert "1 topic, the log ends at 0" in log
    running.stop()
    assert not regions()
    assert "everything is saved" in (directory / "log/topics.log").read_text()


def test_alone_it_brings_the_node_back(running: RealNode) -> None:
    directory = running.directory
    topic = declared(directory)
    with appending(directory, topic) as program:
        program.append(b"before")
        pids = running.pids()
        mine = pids.pop("topic_worker")
        killed = [pid for pid in pids.values() if pid]
        for pid in killed:
            os.kill(pid, signal.SIGSTOP)  # so that nobody restarts anybody
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        found = wait_until(
            lambda: (item := topics_process(directory)) and item["state"] == "ready" and item, 60, what="the node"
        )
        assert found["pid"] == mine  # it was adopted, and goes on
        assert program.append(b"after").physical_offset > 0
        assert not set(running.pids().values()) & set(killed)
    asked(directory, "stop")
    wait_until(lambda: not NodeDirectory(directory).locked(), 60, what="the end of the node")


def test_damage_stops_topics_alone_and_says_where(running: RealNode) -> None:
    directory = running.directory
    topic = declared(directory)
    with appending(directory, topic) as program:
        positions = [program.append(b"%d" % i * 40, 0) for i in range(20)]
    running.stop()
    (directory / "topics/checkpoint").unlink()
    path = directory / "topics/commitlog" / f"{0:020d}"
    with open(path, "r+b") as file:
        file.seek(positions[5].physical_offset + 100)
        file.write(b"\xff")
    before = path.read_bytes()
    running.start()
    wait_until(lambda: (found := topics_process(directory)) and found["state"] == "failed", 30, what="a failed worker")
    said = (directory / "log/topics.log").read_text()
    assert f"topics/commitlog/{0:020d}" in said.replace(str(directory) + "/", "")
    assert "restore the folder of topics from a backup" in said
    assert asked(directory, "declare_queue", name="queue")["queue"]["name"] == "queue"  # queues go on
    for words in (("topic", "list", directory), ("topic", "list", directory, "--json")):
        listed = warren_of_the_shell(*words)
        assert "topics has failed and is not restarted" in listed.stderr
        assert "restore the folder of topics from a backup" in listed.stderr
    assert not warren_of_the_shell("queue", "list", directory).stderr
    checked = warren_of_the_shell("check", directory, code=1)  # nobody writes there, though the node runs
    assert f"PROBLEM  {path}: " in checked.stdout
    assert "topics do not serve" in checked.stdout
    running.stop()
    assert path.read_bytes() == before


def test_the_log_of_another_node_stops_topics_alone_and_is_said_to_all(running: RealNode, tmp_path: Path) -> None:
    directory = running.directory
    declared(directory)
    running.stop()
    with RealNode(tmp_path / "other", **SMALL) as other:
        with appending(other.directory, declared(other.directory)) as program:
            program.append(b"theirs", 0)
        other.stop()
        log = directory / "topics/commitlog"
        shutil.rmtree(log)
        shutil.copytree(other.directory / "topics/commitlog", log)
    before = {path: path.read_bytes() for path in log_files(log)}
    running.start()
    wait_until(lambda: (found := topics_process(directory)) and found["state"] == "failed", 30, what="a failed worker")
    said = "expected a commit of this node, found one of node .*restore the folder of topics"
    assert re.search(said, (directory / "log/topics.log").read_text())
    assert any(re.search(said, line) for line in asked(directory, "status")["messages"])
    with warren.attach(directory) as node:
        with pytest.raises(warren.PeerLost, match=said):
            node.topic("flights", create=False).append(b"x")
        with pytest.raises(warren.PeerLost, match=said):
            node.topic("another")
        queue = node.queue("queue")  # queues go on
        queue.put(b"a message")
        with queue.get(timeout=30) as message:
            assert message.body == b"a message"
    running.stop()
    assert {path: path.read_bytes() for path in log_files(log)} == before


def test_what_the_log_does_not_take_is_refused_with_both_numbers(running: RealNode) -> None:
    """This node has a message_bytes_max that its small ring has no room for."""
    with warren.attach(running.directory) as node:
        topic = node.topic("flights", queues=1)
        most = _core.topic_record_bytes_max(SMALL["topic_ring_bytes"], SMALL["log_file_bytes"])
        body = most - _core.record_size(0, len("flights"), 0, 0)
        took = f"the message takes {most + 1} bytes in the log, which takes {most} at most"
        says = f"topic 'flights': {took}, by the setting "
        with pytest.raises(warren.MessageTooLarge, match=f"{says}topic_ring_bytes = {SMALL['topic_ring_bytes']}: "):
            topic.append(bytes(body + 1))
        with pytest.raises(warren.MessageTooLarge, match=f"message 1 of 2: {says}"):
            topic.append_many([b"x", bytes(body + 1)])
        assert topic.append(bytes(body)).offset == 0
        assert topic.read(timeout=30).records[0].body == bytes(body)


def test_the_loss_of_the_log_can_be_accepted(running: RealNode) -> None:
    directory = running.directory
    with warren.attach(directory) as node:
        node.topic("flights", queues=1).append_many([b"lost"] * 5)
    running.stop()
    shutil.rmtree(directory / "topics/commitlog")
    made = verify(NodeDirectory(directory), repair=True)
    assert any("is made again: the messages of topic 'flights' are lost" in line for line in made.repaired)
    running.start()
    with warren.attach(directory) as node:
        topic = node.topic("flights", create=False)
        assert topic.append(b"new").offset == 0
        assert [record.body for record in topic.read(timeout=30).records] == [b"new"]
