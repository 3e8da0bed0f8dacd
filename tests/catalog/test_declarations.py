"""Goal: declarations of many queues are one change; whoever uses the node meanwhile goes on, and sees each change.

Method: a real node; other clients in threads and processes; kill -9 of the supervisor and of workers in between.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.process.control import ControlClient

from support.files import contents
from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration


#: a node whose supervisor stands still between having a queue on the disk and telling of it, while there is a gate
SLOW_TO_TELL = """
import os, sys, time
from pathlib import Path
from warren.engine.kernel import atomic_file
from warren.workers.cli import main

gate, directory, supervisor = Path(sys.argv[1]), Path(sys.argv[2]), os.getpid()
sync_directory, fdatasync = atomic_file.sync_directory, os.fdatasync

def contents():
    for path in directory.glob("catalog.*"):
        try:
            yield path.read_bytes()
        except FileNotFoundError:
            pass  # another thread has given it its name

def stands_still():
    while os.getpid() == supervisor:
        try:
            wanted = gate.read_bytes()
        except FileNotFoundError:
            return  # it was opened
        if not wanted or not any(wanted in content for content in contents()):
            return
        time.sleep(0.005)

def slow_directory(path):
    sync_directory(path)
    stands_still()

def slow_file(descriptor):
    fdatasync(descriptor)
    stands_still()

atomic_file.sync_directory, os.fdatasync = slow_directory, slow_file
sys.argv[:] = ["warren", *sys.argv[6:]]
main.main()
"""


def test_a_queue_that_another_client_declares_just_now_can_be_used(tmp_path: Path) -> None:
    """It is in the files, and the workers were not told of it yet: whoever reads the catalog now does not have it."""
    gate, directory = tmp_path / "gate", tmp_path / "data"
    errors: list[BaseException] = []

    def put(body: bytes) -> None:
        try:
            with warren.attach(directory, timeout=60) as node:
                node.queue("wanted").put(body, timeout=60)
        except BaseException as error:  # noqa: BLE001 - seen below
            errors.append(error)

    def written() -> bool:
        return any(b'"wanted"' in content for content in contents(directory, "catalog.*").values())

    slow = (sys.executable, "-c", SLOW_TO_TELL, str(gate), str(directory))
    with RealNode(directory, prefix=slow), warren.attach(directory) as watching:
        gate.write_bytes(b'"wanted"')
        first = threading.Thread(target=put, args=(b"first",))
        first.start()
        wait_until(written, 20, what="the queue is in a file")
        assert first.is_alive()
        second = threading.Thread(target=put, args=(b"second",))
        second.start()
        second.join(patience())  # it has to wait, or fails: there is nothing that tells when it waits
        gate.unlink()
        for thread in (first, second):
            thread.join(120)
            assert not thread.is_alive()
        assert errors == []
        wanted = watching.queue("wanted", create=False)
        assert {wanted.get(timeout=30).body, wanted.get(timeout=30).body} == {b"first", b"second"}


def test_many_queues_are_declared_in_one_change(node: warren.Node, name: str) -> None:
    version = node.status()["catalog_version"]
    names = [f"{name}-{i}" for i in range(500)]
    new = node.declare_queues(
        [*names[:400], {"name": names[400], "durable": False, "arguments": {"max_length": 5}}, *names[401:], names[0]],
        message_ttl=60.0,
    )
    assert new == names
    rows = {row["name"]: row for row in node.status()["queues"]}
    assert rows[names[400]]["arguments"] == {"message_ttl": 60.0, "max_length": 5}
    assert not rows[names[400]]["durable"]
    assert rows[names[401]]["arguments"] == {"message_ttl": 60.0}
    assert node.declare_queues(names[:400], message_ttl=60.0) == []
    last = node.queue(names[-1], create=False)
    last.put(b"body")
    assert last.get(timeout=5).body == b"body"
    bindings = [(queue, "amq.topic", f"{queue}.#") for queue in names]
    assert node.bind_many(bindings) == 500
    assert node.bind_many(bindings[:10]) == 0
    node.publish(b"bound", "amq.topic", f"{names[7]}.and.more", mandatory=True)
    assert node.queue(names[7], create=False).get(timeout=5).body == b"bound"
    assert node.unbind_many(bindings[:300]) == 300
    with pytest.raises(warren.Unroutable):
        node.publish(b"gone", "amq.topic", f"{names[7]}.x", mandatory=True)
    node.delete_queues([*names, names[0], names[0]])  # who names one twice means it once
    assert not set(names) & set(node.queues())
    assert node.status()["catalog_version"] > version
    assert node.declare_queues([]) == []
    node.delete_queues([])
    assert node.bind_many([]) == node.unbind_many([]) == 0


@pytest.mark.parametrize(
    ("queues", "error"),
    [
        (["{}-a", "{}-b", "a/b"], warren.InvalidName),
        (["{}-a", {"name": "{}-known", "durable": False}], warren.DeclarationMismatch),
        (["{}-a", {"name": "{}-b", "arguments": {"ttl": 5}}], warren.UsageError),
        (["{}-a", {"durable": False}], warren.InvalidName),
        (["{}-a", {"name": "{}-b", "kind": "x"}], warren.UsageError),
        (["{}-a", 5], warren.InvalidName),
        (["{}-a", {"name": "{}-b", "arguments": 5}], warren.UsageError),
        (["{}-a", "\ud800"], warren.InvalidName),
    ],
)
def test_when_one_is_refused_none_is_declared(
    node: warren.Node, name: str, queues: list[object], error: type[Exception]
) -> None:
    node.queue(f"{name}-known")
    filled = json.loads(json.dumps(queues).replace("{}", name))
    with pytest.raises(error):
        node.declare_queues(filled)
    assert [item for item in node.queues() if item.startswith(name)] == [f"{name}-known"]
    for wrong in ([("a",)], ["ab"], [(f"{name}-known", "amq.topic", "k", {}, 5)], [(f"{name}-known", "amq.topic", 7)]):
        with pytest.raises(warren.UsageError):
            node.bind_many([(f"{name}-known", "amq.topic", "k"), *wrong])
    with pytest.raises(warren.QueueNotFound):
        node.delete_queues([f"{name}-known", f"{name}-none"])
    assert f"{name}-known" in node.queues()
    with ControlClient(node.directory) as client:
        for nonsense in ([{}], [5], ["x"], [{"name": 5}], [{"name": f"{name}-c", "more": 1}], 7, None):
            with pytest.raises(warren.UsageError):
                client.call("declare_queues", queues=nonsense)
            with pytest.raises(warren.UsageError):
                client.call("bind_many", bindings=nonsense)
    assert node.ping()["state"] == "running"
    assert not [row for row in node.status()["queues"] if row["name"] == f"{name}-c"]


def test_asyncio_declares_many(node: warren.Node, name: str) -> None:
    async def use() -> None:
        async with await warren.aio.attach(node.directory) as other:
            names = [f"{name}-{i}" for i in range(20)]
            assert await other.declare_queues(names) == names
            assert await other.bind_many([(await other.queue(names[0]), "amq.direct", name)]) == 1
            await other.publish(b"x", "amq.direct", name, mandatory=True)
            assert await other.unbind_many([(names[0], "amq.direct", name)]) == 1
            await other.delete_queues(names)
            assert not set(names) & set(await other.queues())

    asyncio.run(use())


def test_the_command_line_declares_and_deletes_several(node: warren.Node, name: str) -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "warren", "queue", *words], capture_output=True, text=True, timeout=60, check=False
        )

    names = [f"{name}-{i}" for i in range(3)]
    assert run("declare", str(node.directory), *names).stdout == "3 queues declared\n"
    assert run("declare", str(node.directory), *names, f"{name}-4").stdout == "1 queue declared, 3 there already\n"
    assert run("delete", str(node.directory), *names, f"{name}-none").returncode != 0
    assert set(names) < set(node.queues())
    assert run("delete", str(node.directory), *names, f"{name}-4", "--yes").stdout == "4 queues deleted\n"
    assert not [item for item in node.queues() if item.startswith(name)]


def test_others_work_while_thousands_of_queues_come_and_go(node: warren.Node, name: str) -> None:
    """Round trips and declarations of other clients while there are changes; each is right, none waits for all."""
    done = threading.Event()
    errors: list[BaseException] = []
    turns = [0, 0]

    def work(number: int) -> None:
        try:
            with warren.attach(node.directory) as other:
                queue = other.queue(f"{name}-work-{number}")
                while not done.is_set() or not turns[number]:
                    body = b"%d" % turns[number]
                    queue.put(body)
                    message = queue.get(timeout=30)
                    assert message.body == body
                    message.ack()
                    own = f"{name}-own-{number}-{turns[number] % 7}"
                    other.queue(own).put(b"own")
                    other.bind(own, "amq.topic", f"{own}.*")
                    other.publish(b"routed", "amq.topic", f"{own}.x", mandatory=True)
                    assert {item.body for item in other.queue(own).get_many(2, timeout=30)} <= {b"own", b"routed"}
                    other.delete_queue(own)
                    turns[number] += 1
        except BaseException as error:  # noqa: BLE001 - the test tells it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(3):
        names = [f"{name}-many-{turn}-{i}" for i in range(2000)]
        node.declare_queues(names, dead_letter_exchange="" if turn == 1 else None)
        for index in (0, 1999):
            queue = node.queue(names[index], create=False)
            queue.put(b"here")
            assert queue.get(timeout=30).body == b"here"
        node.delete_queues(names)
    done.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert min(turns) > 0


def test_what_was_declared_survives_kills_of_supervisor_and_workers(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, workers=2), warren.attach(directory) as node:
        told: list[str] = []
        for turn in range(4):
            told += node.declare_queues([f"batch-{turn}-{i}" for i in range(300)])
            for i in range(20):
                node.queue(f"single-{turn}-{i}")
                told.append(f"single-{turn}-{i}")
            victims = node.status()["processes"]
            victim = next(item for item in victims if item["role"] == ("supervisor", "queue_worker")[turn % 2])
            os.kill(victim["pid"], signal.SIGKILL)
            node.queue(f"after-{turn}").put(b"x")
            told.append(f"after-{turn}")
        assert set(told) <= set(node.queues())
        last = node.queue("single-3-19", create=False)
        last.put(b"x")
        assert last.get(timeout=30).body == b"x"
        assert set(told) <= set(Catalog.load(directory).queues)
        assert list(directory.glob("catalog.*.log")), "changes are in the log while the node runs"
    with ControlClient(directory) as client:
        client.call("stop")  # its supervisor is not the one that was started
    one_file = lambda: not list(directory.glob("catalog.*.log")) and not NodeDirectory(directory).locked()  # noqa: E731
    wait_until(one_file, timeout=30, what="the end of the node makes one file of it")
    assert set(told) <= set(Catalog.load(directory).queues)


def test_a_node_with_a_damaged_log_does_not_start_and_says_which(tmp_path: Path) -> None:
    """As after a kill of the whole node; what is whole again serves with all that was declared."""
    directory = tmp_path / "node"
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        names = node.declare_queues([f"q{i}" for i in range(50)])
        node.queue("last")
        saved = {path: path.read_bytes() for path in (directory / "catalog.json", *directory.glob("catalog.*.log"))}
    for path in directory.glob("catalog.*"):
        path.unlink()
    for path, content in saved.items():
        path.write_bytes(content)
    (log,) = (path for path in saved if path.suffix == ".log")
    damaged = bytearray(saved[log])
    damaged[len(damaged) // 2] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(warren.Error, match=re.escape(str(log))):
        warren.open(directory, timeout=30)
    log.unlink()
    with pytest.raises(warren.Error, match=re.escape(str(log))):
        warren.open(directory, timeout=30)
    log.write_bytes(saved[log])
    with RealNode(directory), warren.attach(directory) as node:
        assert set(node.queues()) == {*names, "last"}
        node.queue("last", create=False).put(b"x")


def test_a_directory_whose_name_is_no_utf8_has_a_node_like_any_other(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xffde"))
    with warren.open(directory, workers=1, name="client-\udcff") as node:
        node.queue("q").put(b"x")
        status = node.status()
        assert status["dir"].endswith("/n\\udcffde")
        assert any("client" in item["name"] for item in status["clients"])
        with pytest.raises(warren.QueueNotFound):
            node.delete_queue("none")
        assert node.ping()["state"] == "running"
        done = subprocess.run(
            [sys.executable, "-m", "warren", "status", os.fsencode(directory), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["dir"] == status["dir"]
        node._client.control("stop")
    wait_until(lambda: not NodeDirectory(directory).locked(), timeout=30)
