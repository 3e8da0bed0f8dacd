"""Goal: an alarm blocks publishers and nobody else, says why and with which figures, and ends by itself; nothing that
was under way is lost. What a client has under way, and why it waits, stands in `warren status`.

Method: a real node on a small tmpfs of its own that is filled and emptied, with kills of the supervisor meanwhile.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.small_disk import LIMIT, MIB, Disk, Later, alarm_off, alarm_on, filled, status
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def taken(queue: warren.Queue, wanted: int) -> list[bytes]:
    """So many bodies, or fewer if no more come."""
    bodies: list[bytes] = []
    while len(bodies) < wanted and (more := queue.get_many(wanted, timeout=20)):
        bodies += [bytes(message.body) for message in more]
    return bodies


def test_a_short_disk_blocks_publishers_alone_and_says_so(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT), warren.attach(disk.directory) as node:
        queue, store = node.queue("work"), node.store()
        queue.put_many([b"%d" % i for i in range(20)])
        kept = store.new_id()
        store.write(kept, b"x" * 5000)
        under_way = [queue.put(b"under way %d" % i, wait=False) for i in range(50)]
        row = filled(disk)
        assert row["limit_bytes"] == LIMIT
        assert 0 < row["free_bytes"] < LIMIT
        assert row["blocks_publishers"]
        refusals: list[Callable[[], Any]] = [
            lambda: queue.put(b"no", timeout=0.1),
            lambda: queue.put(b"no", timeout=0.1, wait=False),
            lambda: queue.put_many([b"no"] * 3, timeout=0.1),
            lambda: store.write(store.new_id(), b"no", timeout=0.1),
            lambda: store.write_many([store.new_id()], [b"no"], timeout=0.1),
        ]
        for refused in refusals:
            with pytest.raises(warren.DiskFull) as caught:
                refused()
            said = str(caught.value)
            assert "publishing is blocked" in said
            assert "MiB are free on the disk of the node, less than 4 MiB (setting disk_free_bytes_min)" in said
            assert "until 4.4 MiB are free" in said
        # what was handed over before is confirmed, and consumers, acks and removes go on
        for confirm in under_way:
            confirm.wait(20)
        for i in range(20):
            message = queue.get(timeout=20)
            assert message.body == b"%d" % i
            message.ack()
        store.remove(kept)
        assert len(taken(queue, 50)) == 50
        assert queue.purge(timeout=20) == 0
        # somebody who waits is counted, and goes on when there is space
        waiting = Later(lambda: queue.put(b"at last"))
        wait_until(lambda: status(disk.directory)["blocked_publishers"]["alarm"] == 1, 20, what="a blocked publisher")
        (client,) = (row for row in status(disk.directory)["clients"] if row["kind"] == "client")
        assert (client["blocked"], client["blocked_threads"]) == ("alarm", 1)
        assert "disk_free_bytes_min" in client["blocked_because"]
        human = subprocess.run(
            [sys.executable, "-m", "warren.workers.cli.main", "status", str(disk.directory)],
            capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "250"},
        ).stdout  # fmt: skip
        assert "ALARM since 20" in human
        assert "disk_free_bytes_min" in human
        assert "blocked publishers: 1 by an alarm" in human
        disk.empty()
        waiting.end()
        alarm_off(disk.directory)
        assert queue.get(timeout=20).body == b"at last"
        assert status(disk.directory)["blocked_publishers"] == {"alarm": 0, "credit": 0}


def test_memory_blocks_publishers_alone(tmp_path: Path) -> None:
    """A limit that this machine is above from the beginning: nothing can be published, everything else works."""
    with RealNode(tmp_path / "node", workers=1, memory_used_max=0.001) as real, warren.attach(real.directory) as node:
        row = alarm_on(real.directory, "memory")
        assert row["used_bytes"] > row["limit_bytes"] > 0
        assert row["own_bytes"] > MIB
        queue = node.queue("work")
        with pytest.raises(
            warren.TimedOut, match=r"[GM]iB of the memory .* more than [\d.]+ [KMG]iB \(setting memory_used_max\)"
        ):
            queue.put(b"no", timeout=0.1)
        assert queue.get_many(1, timeout=0.05) == []
        assert queue.purge() == 0


def test_a_batch_stops_where_the_alarm_finds_it(small_disk: Path) -> None:
    """A batch larger than what a client may have under way: the alarm holds it back in the middle."""
    disk = Disk(small_disk)
    with (
        RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT, ring_records=64) as real,
        warren.attach(disk.directory) as node,
    ):
        queue = node.queue("work")
        queue.put(b"first")
        worker = real.pids()["worker-0"]
        os.kill(worker, signal.SIGSTOP)
        try:
            batch = Later(lambda: queue.put_many([b"%d" % i for i in range(500)]))
            wait_until(lambda: status(disk.directory)["blocked_publishers"]["credit"] == 1, 20, what="a full ring")
            client = next(row for row in status(disk.directory)["clients"] if row["kind"] == "client")
            (link,) = (row for row in client["under_way"] if row["server"] == "worker-0")
            assert link == {"server": "worker-0", "commands": 64, "unprocessed": 64, "room": 0}
            assert "waits for worker-0" in client["blocked_because"]
            filled(disk)
        finally:
            os.kill(worker, signal.SIGCONT)
        wait_until(lambda: status(disk.directory)["blocked_publishers"]["alarm"] == 1, 20, what="the batch to stop")
        (row,) = status(disk.directory)["queues"]
        assert row["ready"] < 200
        disk.empty()
        batch.end()
        assert taken(queue, 501) == [b"first", *(b"%d" % i for i in range(500))]


def test_a_dead_supervisor_leaves_the_alarm_to_its_successor(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT) as real, warren.attach(disk.directory) as node:
        queue = node.queue("work")
        queue.put(b"x")
        since = filled(disk)["since"]
        waiting = Later(lambda: queue.put(b"y"))
        wait_until(lambda: status(disk.directory)["blocked_publishers"]["alarm"] == 1, 20, what="a blocked publisher")
        real.kill("supervisor")
        with pytest.raises(warren.DiskFull, match="less than 4 MiB"):
            queue.put(b"no", timeout=0.1)
        assert queue.get(timeout=20).body == b"x"
        assert alarm_on(disk.directory)["since"] == since
        disk.empty()
        waiting.end()
        alarm_off(disk.directory)
        assert queue.get(timeout=20).body == b"y"
        with ControlClient(disk.directory) as control:
            control.call("stop")
        wait_until(lambda: not (disk.directory / "control.sock").exists(), 40, what="the end")


def test_a_dead_publisher_is_no_longer_blocked(small_disk: Path) -> None:
    disk = Disk(small_disk)
    program = "import sys, warren\nwith warren.attach(sys.argv[1]) as node: node.queue('work').put(b'never')"
    with RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT), warren.attach(disk.directory) as node:
        queue = node.queue("work")
        filled(disk)
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(disk.directory)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            wait_until(lambda: status(disk.directory)["blocked_publishers"]["alarm"] == 1, 20, what="it to block")
        finally:
            other.kill()
            other.wait()
        wait_until(lambda: status(disk.directory)["blocked_publishers"]["alarm"] == 0, 20, what="it to be forgotten")
        disk.empty()
        alarm_off(disk.directory)
        queue.put(b"mine", timeout=20)
        assert [message.body for message in queue.get_many(5, timeout=1.0)] == [b"mine"]


def test_inspect_shows_who_is_blocked(small_disk: Path) -> None:
    disk = Disk(small_disk)
    with RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT), warren.attach(disk.directory) as node:
        queue = node.queue("work")
        queue.put(b"x")
        filled(disk)
        waiting = Later(lambda: queue.put(b"y"))

        def looked() -> dict[str, Any]:
            found = subprocess.run(
                [sys.executable, "-m", "warren.workers.cli.main", "inspect", str(disk.directory), "--json"],
                capture_output=True,
                text=True,
                check=True,
            )
            return json.loads(found.stdout)  # type: ignore[no-any-return]

        wait_until(lambda: any(row["blocked_alarm"] == 1 for row in looked()["links"]), 30, what="it in inspect")
        wait_until(lambda: looked()["superblock"]["shortages"] == ["disk"], 20, what="the supervisor has looked, too")
        disk.empty()
        waiting.end()
