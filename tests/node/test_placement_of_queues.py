"""Goal: a node takes more or fewer workers at a start; nothing in a queue is lost, reordered or forgotten by it.

Method: a real node, started again with other settings, in good order and after a kill of everything.
"""

from pathlib import Path

import pytest

import warren
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

NAMES = [f"queue-{i}" for i in range(8)]
BODIES = [b"small", b"L" * 10_000, b"again"]


def processes(directory: Path) -> dict[int, bool]:
    """Queue workers: number → is it retiring?"""
    with ControlClient(directory) as control:
        found = control.call("status")["processes"]
    return {item["index"]: item["retiring"] for item in found if item["role"] == "queue_worker"}


def place_of(directory: Path) -> dict[str, int]:
    with ControlClient(directory) as control:
        return {item["name"]: item["worker"] for item in control.call("status")["queues"]}


@pytest.mark.parametrize("clean", [True, False])
def test_fewer_workers_take_over_what_is_there(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, workers=3) as real:
        with warren.attach(directory) as node:
            for name in NAMES:
                node.queue(name).put_many(BODIES)
        before = place_of(directory)
        assert set(before.values()) == {0, 1, 2}
        if not clean:
            real.kill_all()
    with RealNode(directory, workers=2), warren.attach(directory) as node:
        assert processes(directory) == {0: False, 1: False}
        after = place_of(directory)
        assert all(after[name] == before[name] for name in NAMES if before[name] < 2), "only what has to move"
        for name in NAMES:
            node.queue(name).put(b"later")
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        assert processes(directory) == {0: False}
        for name in NAMES:
            messages = node.queue(name).get_many(10, timeout=5.0)
            assert [message.body for message in messages] == [*BODIES, b"later"]
            for message in messages:
                message.ack()
        with ControlClient(directory) as control:
            wait_until(lambda: control.call("status")["store"]["messages"] == 0, 20, what="an empty store")


def test_more_workers_get_their_share(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        for name in NAMES:
            node.queue(name).put_many(BODIES)
    with RealNode(directory, workers=3), warren.attach(directory) as node:
        assert processes(directory) == {0: False, 1: False, 2: False}
        placed = list(place_of(directory).values())
        assert max(placed.count(worker) for worker in range(3)) <= 3
        for name in NAMES:
            assert [message.body for message in node.queue(name).get_many(10, timeout=5.0)] == BODIES
