"""Goal: a queue worker that cannot run any more takes its own queues with it and nothing else: their calls say at once
what to do, other queues go on, and the next start finds everything.

Method: a real node of two workers; one finds a journal file of a newer Warren after a kill, so that it says it cannot
serve.
"""

import os
import signal
import threading
from pathlib import Path

import pytest

import warren
from warren.engine import _core
from warren.engine.kernel.formats import FILE_HEADER, FILE_HEADER_BYTES
from warren.workers.process.control import ControlClient

from support.command_line import warren as warren_of_the_shell
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SAYS = "worker-1 has failed"


def state_of(directory: Path, worker: int) -> str:
    with ControlClient(directory) as control:
        rows = control.call("status")["processes"]
    return next(str(row["state"]) for row in rows if (row["role"], row["index"]) == ("queue_worker", worker))


def two_queues(node: warren.Node, directory: Path) -> tuple[str, str]:
    """Names of a queue on worker 0 and of one on worker 1."""
    for i in range(6):
        node.queue(f"queue-{i}")
    with ControlClient(directory) as control:
        placed = {item["worker"]: item["name"] for item in control.call("status")["queues"]}
    return placed[0], placed[1]


def of_a_newer_version(journal: Path) -> Path:
    """A journal file as a newer Warren might have left it: no damage, and not readable by this one."""
    page = bytearray(next(journal.glob("*.jnl")).read_bytes()[:FILE_HEADER_BYTES])
    FILE_HEADER.pack_into(page, "version", 99)
    FILE_HEADER.pack_into(page, "crc", _core.crc32c(bytes(page[: FILE_HEADER.offset("crc")])))
    path = journal / "1000.jnl"
    path.write_bytes(page)
    return path


def test_other_queues_go_on(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory) as real, warren.attach(directory) as node:
        well, ill = two_queues(node, directory)
        for name in (well, ill):
            node.declare_exchange("all", "fanout")
            node.bind(name, "all")
            node.queue(name).put_many([b"first", b"L" * 10_000])
        waiter: list[object] = []
        other = warren.attach(directory)
        empty = other.queue(ill)
        taken = [message.body for message in empty.get_many(2, timeout=10.0)]
        assert taken == [b"first", b"L" * 10_000]

        def wait_for_a_message() -> None:
            try:
                waiter.append(empty.get(timeout=None))
            except warren.Error as error:
                waiter.append(error)

        thread = threading.Thread(target=wait_for_a_message)
        thread.start()
        newer = of_a_newer_version(directory / "queues" / "worker-1" / "journal")
        pid = real.pids()["worker-1"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state_of(directory, 1) == "failed", 30, what="the worker to be given up")
        thread.join(30)
        assert not thread.is_alive(), "who waits without a timeout is told"
        assert isinstance(waiter[0], warren.PeerLost)
        assert SAYS in str(waiter[0])
        for call in (
            lambda: node.queue(ill).put(b"later", timeout=None),
            lambda: node.queue(ill).put(b"later", durability="none"),
            lambda: node.queue(ill).put_many([b"later"] * 3, timeout=None),
            lambda: node.queue(ill).get(timeout=None),
            lambda: node.queue(ill).purge(),
            lambda: node.publish(b"to both", exchange="all"),
        ):
            with pytest.raises(warren.PeerLost, match=SAYS):
                call()
        assert "worker-1" in node.status()["alarms"][0]
        for words in (("queue", "list", directory), ("queue", "show", directory, ill)):
            assert SAYS in warren_of_the_shell(*words).stderr
        for words in (
            ("topic", "list", directory),
            ("queue", "show", directory, well),
            ("queue", "list", directory, well),
        ):
            assert not warren_of_the_shell(*words).stderr
        node.queue(well).put(b"second")
        messages = node.queue(well).get_many(10, timeout=10.0)
        assert [message.body for message in messages] == [b"first", b"L" * 10_000, b"second"], "nothing for one of two"
        for message in messages:
            message.ack()
        other.close()
    newer.unlink()
    with RealNode(directory), warren.attach(directory) as node:
        assert state_of(directory, 1) == "ready"
        assert [message.body for message in node.queue(ill).get_many(10, timeout=10.0)] == [b"first", b"L" * 10_000]
        assert node.queue(well).stats()["ready"] == 0
