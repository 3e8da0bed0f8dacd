"""Goal: a node has a topic worker from its first topic on and not before; who declares one is answered when it is
served, and nobody waits with him; the node goes on without a topic worker that cannot run.

Method: a supervisor process with dummy servers (support/dummy_servers.py), whose topic worker reads the catalog and
nothing else; it is killed, kept from reading, kept from running; supervisors are killed at named moments.
"""

import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import (
    ClosedError,
    DataMissing,
    DeclarationMismatch,
    Error,
    InvalidName,
    LimitError,
    PeerLost,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.engine.kernel.paths import TOPICS, TopicsFolder
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import FREE
from warren.workers.cli.check import verify
from warren.workers.node import absence
from warren.workers.process.control import HEAD, ControlClient, encode

from support.dummy_node import Node, Starter, behave, gone, kill, register, start
from support.waiting import wait_until

pytestmark = pytest.mark.integration
__all__ = ["start"]  # a fixture

READY, FAILED = CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_FAILED"]
LACKS_SHM = 80 + CONSTANTS["LACK_SHM"]  #: exit code of a server that finds no room in /dev/shm


def roles(node: Node) -> list[str]:
    return [item["role"] for item in node.status()["processes"]]


def topics_pid(node: Node) -> int | None:
    pid: int | None = node.pids().get("topic_worker-0")
    return pid


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a call beside this one; what it returned or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Error as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_node_without_topics_has_nothing_of_them(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    node.call("declare_queue", name="q")
    with node.superblock() as superblock:
        assert superblock.topic_server == superblock.servers_n - 1 == 4
        assert superblock.server_identity(superblock.topic_server).pid == 0
        assert superblock.server_get(superblock.topic_server, "state") == CONSTANTS["SERVER_DOWN"]
        view, memory = register(superblock)
        superblock.leave(view.slot, view.generation)
        wait_until(lambda: superblock.slot(view.slot).state == FREE, what="a slot that waits for no topic worker")
        memory.close()
    assert "topic_worker" not in roles(node)
    assert not (tmp_path / "node" / TOPICS).exists()
    assert not (tmp_path / "node" / "log" / "topics.log").exists()
    node.stop()
    assert not (tmp_path / "node" / TOPICS).exists()


def test_the_first_topic_starts_the_worker_and_is_answered_when_it_is_served(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    made = node.call("declare_topic", name="flights", queues=3, retention_s=60)
    assert (made["created"], made["topic"]["name"], made["topic"]["queues"]) == (True, "flights", 3)
    with node.superblock() as superblock:
        server = superblock.topic_server
        assert superblock.server_get(server, "state") == READY
        assert superblock.server_get(server, "catalog_read") >= made["version"] == superblock.get("catalog_version")
    pid = topics_pid(node)
    again = node.call("declare_topic", name="flights", queues=3, retention_s=60.0)
    assert (again["created"], again["topic"]) == (False, made["topic"])
    assert not node.call("declare_topic", name="flights", as_it_is=True)["created"]
    other = node.call("declare_topic", name="more")
    assert (other["topic"]["queues"], other["topic"]["id"]) == (4, made["topic"]["id"] + 1)
    assert topics_pid(node) == pid, "one worker serves all"
    assert [item["name"] for item in node.call("queues")["topics"]] == ["flights", "more"]
    assert [item["name"] for item in node.call("queues", of=["more"])["topics"]] == ["more"]
    status = node.status()
    assert [(item["name"], item["queues"], item["messages"]) for item in status["topics"]] == [
        ("flights", 3, 0),
        ("more", 4, 0),
    ]
    assert [item["name"] for item in node.call("status", pattern="m*")["topics"]] == ["more"]
    for error, fields in (
        (DeclarationMismatch, {"name": "flights", "queues": 5}),
        (InvalidName, {"name": "a.b"}),
        (UsageError, {"name": "t", "queues": 0}),
    ):
        with pytest.raises(error):
            node.call("declare_topic", **fields)
    assert node.call("delete_topic", name="more")["topic"] == other["topic"]
    with pytest.raises(TopicNotFound, match="there is no topic 'more': nothing was deleted"):
        node.call("delete_topic", name="more")
    node.stop()
    found = Catalog.load(tmp_path / "node")
    assert {name: item.id for name, item in found.topics.items()} == {"flights": made["topic"]["id"]}


def test_a_refused_declaration_makes_nothing(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    for fields in ({"name": "a.b"}, {"name": "t", "queues": 5000}, {"name": "t", "retention_s": -1}):
        with pytest.raises(UsageError):
            node.call("declare_topic", **fields)
    assert not (tmp_path / "node" / TOPICS).exists()
    assert "topic_worker" not in roles(node)
    node.stop()


def test_the_next_start_has_the_worker_only_if_there_is_a_topic(start: Starter) -> None:
    node = start().ready()
    node.call("declare_topic", name="t")
    assert ", topics" not in node.printed
    node.stop()
    node = start().ready()
    assert ", topics, profile" in node.printed
    assert topics_pid(node)
    assert not node.call("declare_topic", name="t")["created"]
    node.call("delete_topic", name="t")
    assert topics_pid(node), "it has served, and serves on"
    node.stop()
    node = start().ready()
    assert "topic_worker" not in roles(node)
    node.stop()


def test_another_number_of_workers_changes_only_the_number_of_its_link(start: Starter) -> None:
    node = start().ready()
    node.call("declare_topic", name="t")
    for workers in (3, 1):
        node.stop()
        node = start(f"workers={workers}").ready()
        with node.superblock() as superblock:
            assert superblock.topic_server == 2 + workers
            assert superblock.role_of(2 + workers) == "topics"
            assert superblock.server_get(2 + workers, "state") == READY
        assert not node.call("declare_topic", name="t")["created"]
    node.stop()


def test_a_killed_topic_worker_is_replaced_and_alone(start: Starter) -> None:
    node = start().ready()
    node.call("declare_topic", name="t")
    before = node.pids()
    kill(before["topic_worker-0"])
    wait_until(lambda: topics_pid(node) not in (None, before["topic_worker-0"]), what="another topic worker")
    after = node.pids()
    assert {**before, "topic_worker-0": 0} == {**after, "topic_worker-0": 0}
    assert not node.call("declare_topic", name="t")["created"]
    (row,) = (item for item in node.status()["processes"] if item["role"] == "topic_worker")
    assert (row["restarts"], row["state"]) == (1, "ready")
    node.stop()


def test_the_successor_of_a_supervisor_adopts_it(start: Starter) -> None:
    node = start().ready()
    node.call("declare_topic", name="t")
    before = node.pids()
    node.process.kill()
    node.end()
    again = start("adopt=1", "successor=1").ready()
    after = again.pids()
    assert after["topic_worker-0"] == before["topic_worker-0"]
    assert again.call("declare_topic", name="u")["created"]
    again.stop()
    assert gone(before["topic_worker-0"])


def test_who_waits_is_answered_by_the_successor_of_a_killed_supervisor(start: Starter, tmp_path: Path) -> None:
    """The catalog has a topic, and no worker has served it."""
    node = start().ready()
    behave(tmp_path / "node", "topics", "blind")
    asking, answer = in_thread(lambda: node.call("declare_topic", name="t", timeout=120))
    wait_until(lambda: topics_pid(node), what="a worker that does not read the catalog")
    pid = topics_pid(node) or 0
    node.process.kill()
    node.end()
    kill(pid)
    (tmp_path / "node" / "behave" / "topics.blind").unlink()
    again = start("adopt=1", "successor=1").ready()
    asking.join()
    assert answer[0]["topic"]["name"] == "t", answer
    assert topics_pid(again) not in (None, pid)
    again.stop()


def test_nobody_waits_with_who_declares(start: Starter, tmp_path: Path) -> None:
    """Others are answered meanwhile, and who asks again on the same connection is answered in order."""
    node = start().ready()
    behave(tmp_path / "node", "topics", "blind")
    asking, answer = in_thread(lambda: node.call("declare_topic", name="t", timeout=120))
    wait_until(lambda: topics_pid(node), what="a worker that does not read the catalog")
    with ControlClient(tmp_path / "node") as client:
        for number in range(20):
            assert client.call("declare_queue", name=f"q{number}")["created"]
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(tmp_path / "node" / "control.sock"))
        raw.settimeout(60)
        raw.sendall(encode({"op": "declare_topic", "name": "u", "within": 100.0}) + encode({"op": "ping"}))
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        assert not answer
        (tmp_path / "node" / "behave" / "topics.blind").unlink()
        raw.settimeout(60)
        received = b""
        while received.count(b"version") < 1 or b"state" not in received:
            received += raw.recv(1 << 16)
        first = HEAD.unpack_from(received)[0]
        assert b"state" not in received[: HEAD.size + first], "the answers come in the order of the questions"
    asking.join()
    assert answer[0]["created"]
    node.stop()


def test_what_takes_too_long_is_said_within_the_time(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    behave(tmp_path / "node", "topics", "blind")
    with pytest.raises(TimedOut, match=r"topic 't' is declared, but the topic worker did not begin to serve it within"):
        node.call("declare_topic", name="t", timeout=10.0)
    assert "t" in Catalog.load(tmp_path / "node").topics
    (tmp_path / "node" / "behave" / "topics.blind").unlink()
    assert not node.call("declare_topic", name="t")["created"]
    node.stop()


def test_who_asks_and_leaves_harms_nobody(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    behave(tmp_path / "node", "topics", "blind")
    for name in ("t", "u"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(tmp_path / "node" / "control.sock"))
            raw.sendall(encode({"op": "declare_topic", "name": name, "within": 100.0}))
            wait_until(lambda name=name: name in Catalog.load(tmp_path / "node").topics, what="the declaration")
    (tmp_path / "node" / "behave" / "topics.blind").unlink()
    assert node.call("declare_topic", name="u")["topic"]["name"] == "u"
    node.stop()


def test_a_stop_answers_who_waits(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    behave(tmp_path / "node", "topics", "blind")
    asking, answer = in_thread(lambda: node.call("declare_topic", name="t", timeout=120))
    wait_until(lambda: topics_pid(node), what="a worker that does not read the catalog")
    node.stop()
    asking.join()
    assert isinstance(answer[0], ClosedError), answer
    assert "topic 't' is declared, but the node of" in str(answer[0])


def test_the_node_goes_on_without_a_topic_worker_that_cannot_run(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    behave(tmp_path / "node", "topics", "exit", "3")  # EXIT_DO_NOT_RESTART
    with pytest.raises(PeerLost, match=r"topic 't' is declared, but topics has failed .*: see .*topics\.log"):
        node.call("declare_topic", name="t")
    assert node.call("declare_queue", name="q")["created"]
    status = node.status()
    (row,) = (item for item in status["processes"] if item["role"] == "topic_worker")
    assert (status["state"], row["state"], row["pid"]) == ("running", "failed", None)
    (alarm,) = status["alarms"]
    assert "topics could not run or died again and again" in alarm
    assert "the topics are kept as they are" in alarm
    with pytest.raises(PeerLost, match="topic 'other' cannot be declared: topics has failed"):
        node.call("declare_topic", name="other")
    assert set(Catalog.load(tmp_path / "node").topics) == {"t"}
    with node.superblock() as superblock:
        view, memory = register(superblock)
        superblock.leave(view.slot, view.generation)
        wait_until(lambda: superblock.slot(view.slot).state == FREE, what="a slot that waits for no failed worker")
        memory.close()
    node.stop()
    node = start().ready()
    assert "topics has failed (see " in node.printed, "a start is no reason to end, either"
    (tmp_path / "node" / "behave" / "topics.exit").unlink()
    node.stop()
    node = start().ready()
    assert not node.call("declare_topic", name="t")["created"]
    node.stop()


def test_a_topic_worker_that_dies_again_and_again_has_failed_alone(start: Starter, tmp_path: Path) -> None:
    node = start("deaths_max=3").ready()
    behave(tmp_path / "node", "topics", "exit", "1")
    with pytest.raises(PeerLost, match="topics has failed"):
        node.call("declare_topic", name="t", timeout=60)
    said = "topics died 3 times within 60 s: the node runs on without topics"
    assert any(said in line for line in node.status()["messages"])
    assert node.call("declare_queue", name="q")["created"]
    node.stop()


def test_a_topic_worker_without_room_blocks_no_queue_and_no_start(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    behave(tmp_path / "node", "topics", "exit", str(LACKS_SHM))
    with pytest.raises(LimitError, match=r"'t' is declared, but there is no room in /dev/shm to start the topics \("):
        node.call("declare_topic", name="t", timeout=60)
    alarms = node.status()["alarms"]
    assert all(alarm.startswith("role failing: topics") for alarm in alarms), "publishers of queues are not blocked"
    assert node.call("declare_queue", name="q")["created"]
    node.stop()
    node = start().ready()
    assert ", topics, " not in node.printed, "they do not serve"
    (tmp_path / "node" / "behave" / "topics.exit").unlink()
    assert not node.call("declare_topic", name="t", timeout=60)["created"], "it is started again each second"
    node.stop()


def test_a_stop_waits_for_what_a_killed_topic_worker_was_told(start: Starter, tmp_path: Path) -> None:
    """It is started once more to do what is in the rings, as a queue worker is."""
    node = start().ready()
    node.call("declare_topic", name="t")
    behave(tmp_path / "node", "topics", "deaf")
    kill(topics_pid(node) or 0)
    with node.superblock() as superblock:
        wait_until(lambda: superblock.server_get(superblock.topic_server, "epoch") == 2, what="a deaf one")
        node.process.send_signal(signal.SIGTERM)
        wait_until(lambda: superblock.state == CONSTANTS["NODE_DRAINING"], what="the drain")
        kill(superblock.server_get(superblock.topic_server, "pid"))
    code, _out, error = node.end()
    assert code == 0, error
    log = (tmp_path / "node" / "log" / "supervisor.log").read_text()
    assert re.search(r"topics \(process \d+\) was killed by SIGKILL while .* stopping: it is started once more", log)


# ---- the folder -----------------------------------------------------------------------------------------------------


def with_topic(start: Starter) -> Node:
    node = start().ready()
    node.call("declare_topic", name="flights")
    return node


@pytest.mark.parametrize("whole", [True, False], ids=["the folder", "the log"])
def test_a_missing_folder_is_not_made_anew(start: Starter, tmp_path: Path, whole: bool) -> None:
    with_topic(start).stop()
    path = tmp_path / "node"
    folder = TopicsFolder.of(path)
    moved = folder.path if whole else folder.log
    moved.rename(tmp_path / "aside")
    node = start()
    code, said, _error = node.end()
    assert code != 0
    why = "is missing" if whole else "has no commit log"
    assert f"{folder.path} {why}, and with it the messages of topic 'flights'; nothing was changed" in said
    assert any(why in text for text in verify(NodeDirectory(path)).problems)
    (tmp_path / "aside").rename(moved)
    node = start().ready()
    assert not node.call("declare_topic", name="flights")["created"]
    node.stop()


def test_an_older_copy_of_the_folder_is_noticed_and_accepted_by_repair(start: Starter, tmp_path: Path) -> None:
    with_topic(start).stop()
    path = tmp_path / "node"
    folder = TopicsFolder.of(path).path
    shutil.copytree(folder, tmp_path / "old")
    start().ready().stop()
    shutil.rmtree(folder)
    (tmp_path / "old").rename(folder)
    code, said, _error = start().end()
    assert code != 0
    assert "is an older copy: it is of start 1 of the node, and the last one was start 2" in said
    assert "it lacks what was appended since to topic 'flights'" in said
    node, catalog = NodeDirectory(path).read(), Catalog.load(path)
    with pytest.raises(DataMissing):
        absence.refuse(path, node.node_epoch, catalog)
    absence.repair(path, node.node_id, node.node_epoch, absence.find(path, node.node_epoch, catalog))
    shutil.rmtree(folder)
    done = absence.repair(path, node.node_id, node.node_epoch, absence.find(path, node.node_epoch, catalog))
    assert any("is made again: the messages of topic 'flights' are lost" in line for line in done)
    absence.refuse(path, node.node_epoch, catalog)
    again = start().ready()
    assert not again.call("declare_topic", name="flights")["created"]
    again.stop()
