"""Goal: a queue far longer than its memory loses nothing, keeps its order, and doubles nothing, whatever dies on the
way; its rows stay within the setting. Method: a real node with small files and the least memory, its worker and the
whole node killed while it fills and while it drains.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
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
            found = states(node)
            assert found["ready"] == N
            assert sum(found[state] for state in ("alpha", "beta", "gamma", "delta")) == N
            # heads, tails and what lies in two or three journal files stay beside the limit
            wait_until(
                lambda: (states(node)["ready"] - states(node)["delta"]) * ROW_BYTES < 2 * MEMORY, 30, what="memory"
            )
        running.kill_all()
        running.start()
        with warren.attach(running.directory) as node:
            queue = node.queue("long")
            assert states(node)["delta"] > N // 2  # a start does not bring them all into memory
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


def test_the_benches_of_long_queues_count_every_message(tmp_path: Path) -> None:
    found = run_backlog(tmp_path, 100, 30_000, 0.5)
    assert found["messages"] == 30_000
    assert min(found[name] for name in ("drain_per_s", "filled_per_s", "into_backlog_per_s", "top_pss_bytes")) > 0
    found = run_restart(tmp_path, 100, 20_000, 10)
    assert found["queues"] == 10
