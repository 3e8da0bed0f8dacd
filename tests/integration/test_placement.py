"""Goal: a node takes more or fewer workers at a start; nothing in a queue is lost, reordered or forgotten by it.

Method: a real node, started again with other settings, in good order and after a kill of everything.
"""

from pathlib import Path

import pytest

import warren
from warren.workers.control import ControlClient

from support.real_node import RealNode

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
def test_fewer_workers_keep_what_is_there_until_it_is_gone(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, workers=3) as real:
        with warren.attach(directory) as node:
            for name in NAMES:
                node.queue(name).put_many(BODIES)
        before = place_of(directory)
        assert set(before.values()) == {0, 1, 2}
        if not clean:
            real.kill_all()
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        assert processes(directory) == {0: False, 1: True, 2: True}
        assert place_of(directory) == before
        for name in [*NAMES, "new-1", "new-2", "new-3"]:
            node.queue(name).put(b"later")
        assert {place_of(directory)[f"new-{i}"] for i in (1, 2, 3)} == {0}
        for name in NAMES:
            messages = node.queue(name).get_many(10, timeout=5.0)
            assert [message.body for message in messages] == [*BODIES, b"later"]
            for message in messages:
                message.ack()
        for name in NAMES:
            if before[name] == 2:
                node.delete_queue(name)
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        assert processes(directory) == {0: False, 1: True}
        for name in NAMES:
            if before[name] == 1:
                node.delete_queue(name)
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        assert processes(directory) == {0: False}
        assert node.queue("new-1").get(timeout=5.0).body == b"later"
        with ControlClient(directory) as control:
            assert control.call("status")["store"]["messages"] == 0, "nothing is kept for workers that went"


def test_more_workers_get_new_queues(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, workers=1), warren.attach(directory) as node:
        for name in NAMES:
            node.queue(name).put_many(BODIES)
    with RealNode(directory, workers=3), warren.attach(directory) as node:
        assert processes(directory) == {0: False, 1: False, 2: False}
        for i in range(8):
            node.queue(f"new-{i}").put(b"here")
        placed = place_of(directory)
        assert {placed[name] for name in NAMES} == {0}
        assert {placed[f"new-{i}"] for i in range(8)} == {1, 2}
        for name in NAMES:
            assert [message.body for message in node.queue(name).get_many(10, timeout=5.0)] == BODIES
