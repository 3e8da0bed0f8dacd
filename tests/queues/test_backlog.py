"""Goal: a queue far longer than its memory loses nothing, keeps its order, and doubles nothing, whatever dies on the
way; its rows stay within the setting, within less of it when memory runs short, and those of transient messages too.
Method: a real node with small files and the least memory, its worker and the whole node killed while it fills and while
it drains. Pressure: a node with memory for all, its supervisor stopped, and the word that it writes set in its place.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.superblock import Superblock
from warren.tools.bench.queue import run_backlog, run_restart

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

N = 150_000
BATCH = 500
ROW_BYTES = 56
MEMORY = 1 << 20
SETTINGS = {
    "workers": 1,
    "queue_memory_bytes": MEMORY,
    "journal_files_max": 4,
    "file_bytes": 512 * 1024,
    "message_bytes_max": 100_000,
}


def batches() -> Iterator[list[bytes]]:
    for first in range(0, N, BATCH):
        yield [b"%08d" % n + b"." * 60 for n in range(first, first + BATCH)]


def states(node: warren.Node) -> dict[str, int]:
    """The row of the queue in the node's status."""
    return next(item for item in node.status()["queues"] if item["name"] == "long")


def together(found: dict[str, int]) -> int:
    """Messages of all states. One after the other is read: while rows go from one to another they may not add up."""
    return sum(found[state] for state in ("alpha", "beta", "gamma", "delta"))


@pytest.mark.crash
def test_a_backlog_far_beyond_memory_survives_kills_and_drains_once_and_in_order(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data", **SETTINGS) as running:
        with warren.attach(running.directory) as node:
            queue = node.queue("long")
            killed = threading.Thread(target=lambda: running.kill("worker-0"))
            for number, bodies in enumerate(batches()):
                if number == 150:
                    killed.start()
                queue.put_many(bodies, timeout=60)
            killed.join()
            wait_until(lambda: states(node)["delta"] > N // 2, 30, what="pages")
            assert states(node)["ready"] == N
            wait_until(lambda: together(states(node)) == N, 30, what="as many as there are")
            # heads, tails and what lies in two or three journal files stay beside the limit
            wait_until(
                lambda: (states(node)["ready"] - states(node)["delta"]) * ROW_BYTES < 2 * MEMORY, 30, what="memory"
            )
        running.kill_all()
        running.start()
        with warren.attach(running.directory) as node:
            queue = node.queue("long")
            wait_until(
                lambda: states(node)["delta"] > N // 2, 30, what="pages, which a start does not bring all into memory"
            )
            expected = 0
            killed = threading.Thread(target=lambda: running.kill("worker-0"))
            while expected < N:
                taken = queue.get_many(BATCH, timeout=30)
                assert [int(message.body[:8]) for message in taken] == list(range(expected, expected + len(taken)))
                assert taken[0].redelivered
                queue.ack(taken)
                if expected < N // 2 <= expected + len(taken):
                    killed.start()
                expected += len(taken)
            killed.join()
            wait_until(lambda: queue.stats()["unacked"] == 0)
            assert queue.stats()["ready"] == 0
            assert queue.get_many(1, timeout=0.2) == []
        data_files = running.directory / "queues" / "worker-0" / "segments"
        wait_until(lambda: len(list(data_files.glob("*.dat"))) <= 2, 30, what="data files that are gone")


def drained(queue: warren.Queue, first: int, n: int) -> None:
    """Take and ack messages `first` to `n`, each once, in order and with its content."""
    expected = first
    while expected < n:
        taken = queue.get_many(min(BATCH, n - expected), timeout=30)
        numbers = range(expected, expected + len(taken))
        assert [message.body for message in taken] == [b"%08d" % number + b"." * 60 for number in numbers]
        queue.ack(taken)
        expected += len(taken)


def test_a_transient_backlog_far_beyond_memory_drains_in_order_and_does_not_outlive_its_worker(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data", **SETTINGS) as running, warren.attach(running.directory) as node:
        queue = node.queue("long")  # durable: its messages are not
        rows = running.directory / "queues" / "worker-0" / "transient" / "rows"
        for bodies in batches():
            queue.put_many(bodies, timeout=60, persistent=False)

        wait_until(lambda: queue.stats()["ready"] == N)  # accepted is not yet counted

        def is_within_memory() -> bool:
            found = queue.stats()
            assert found["ready"] == N
            return together(found) == N and int(N - found["delta"]) * ROW_BYTES < MEMORY

        wait_until(is_within_memory, 30, what="memory")
        assert rows.stat().st_size > N // 2 * ROW_BYTES
        drained(queue, 0, N // 2)
        wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == N - N // 2)
        running.kill("worker-0")
        wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == 0, 30, what="an empty queue")
        assert rows.stat().st_size == 0
        for bodies in batches():
            queue.put_many(bodies, timeout=60, persistent=False)
        queue.put(b"it lives", persistent=True)
        assert queue.purge() == N + 1
        wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == 0, 30, what="an empty queue")
        assert rows.stat().st_size == 0
        for bodies in batches():
            queue.put_many(bodies, timeout=60, persistent=False)
        drained(queue, 0, N)
        wait_until(lambda: queue.stats()["unacked"] == 0)
        wait_until(lambda: len(list(rows.parent.glob("*.jnl"))) <= 2, 30, what="files that are gone")


def test_under_memory_pressure_rows_leave_memory_and_the_drain_is_in_order(tmp_path: Path) -> None:
    settings = SETTINGS | {"queue_memory_bytes": 64 << 20}
    with RealNode(tmp_path / "data", **settings) as running, warren.attach(running.directory) as node:
        superblock = Superblock.attach(NodeDirectory(running.directory).shared_id, LAYOUT_HASH)
        durable, transient = node.queue("durable"), node.queue("transient", durable=False)
        for bodies in batches():
            durable.put_many(bodies, timeout=60)
            transient.put_many(bodies, timeout=60)
        wait_until(lambda: transient.stats()["ready"] == N)

        def resident() -> int:
            found = [queue.stats() for queue in (durable, transient)]
            assert [item["ready"] for item in found] == [N, N]
            return sum(item["ready"] - item["delta"] for item in found)

        assert resident() == 2 * N
        pids = running.pids()
        supervisor, status = pids["supervisor"], Path(f"/proc/{pids['worker-0']}/status")

        def private() -> int:
            return next(int(line.split()[1]) for line in status.read_text().splitlines() if "RssAnon" in line) * 1024

        used = private()
        os.kill(supervisor, signal.SIGSTOP)  # it would write its own figure each second
        try:
            before = 2 * N
            for pressure, most in ((800, N), (1000, N // 2)):
                superblock.set("pressure", pressure)
                wait_until(lambda most=most: resident() < most, 30, what="rows that leave memory")
                assert resident() < before
                before = resident()
            # at least half of what rows took is the system's again
            wait_until(lambda: used - private() > (2 * N - before) * ROW_BYTES // 2, 30, what="memory given back")
            drained(durable, 0, N)
            drained(transient, 0, N)
        finally:
            os.kill(supervisor, signal.SIGCONT)
            superblock.close()


@pytest.mark.long
def test_the_benches_of_long_queues_count_every_message(tmp_path: Path) -> None:
    found = run_backlog(tmp_path, 100, 30_000, 0.5)
    assert found["messages"] == 30_000
    assert min(found[name] for name in ("drain_per_s", "filled_per_s", "into_backlog_per_s", "top_pss_bytes")) > 0
    found = run_restart(tmp_path, 100, 20_000, 10)
    assert found["queues"] == 10


def test_what_a_flush_needs_is_loaded_before_the_first_one_and_not_by_an_idle_worker(tmp_path: Path) -> None:
    def loaded(worker: str) -> bool:
        return "numpy" in Path(f"/proc/{running.pids()[worker]}/maps").read_text()

    settings = SETTINGS | {"workers": 2, "journal_files_max": 64}
    with RealNode(tmp_path / "data", cold=True, **settings) as running:
        with warren.attach(running.directory) as node:
            queue = node.queue("long")
            queue.put_many([bytes(1000)] * 1500, timeout=60)
            busy = next(row["worker"] for row in node.status()["queues"] if row["name"] == "long")
        wait_until(lambda: loaded(f"worker-{busy}"), 20, what="the loaded library")
        assert not loaded(f"worker-{1 - busy}")
