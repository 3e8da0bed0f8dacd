"""Goal: rule C17, at the worker: it closes each ring where it stopped taking, and nobody takes more from it.

Method: one worker's engine in this process, clients played by hand (support.queue_probe); the node ends, and clients
submit more behind the worker's last look.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.queues import service
from warren.ipc.layout import CONSTANTS

from support.queue_probe import Incarnation, Node, Queue

DRAINING = CONSTANTS["NODE_DRAINING"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2, durable=False)])


@pytest.fixture
def worker(node: Node) -> Iterator[Incarnation]:
    incarnation = node.worker()
    yield incarnation
    incarnation.kill()


def counted(node: Node) -> int:
    """Messages of the durable queue, as the next start finds them."""
    worker = node.worker()
    found = worker.engine.stats(1)[0]
    worker.kill()
    return int(found)


def test_a_stop_takes_all_that_was_submitted_and_closes_there(node: Node) -> None:
    worker = node.worker()
    peers = [node.peer(worker) for _ in range(3)]
    for number, peer in enumerate(peers):
        for n in range(300 * number):
            peer.publish(1 + n % 2, b"%d" % n)
    node.superblock.set("state", DRAINING)
    assert worker.stop()
    for number, peer in enumerate(peers):
        assert peer.get("closed") == 300 * number + 1
        assert peer.get("head") == peer.get("synced") == 300 * number
    assert counted(node) == 150 + 300


def test_what_comes_behind_the_last_look_is_not_taken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: it is submitted when the worker has done what it took, before it syncs and says where it closed."""
    worker = node.worker()
    peer, late = node.peer(worker), node.peer(worker)
    for _ in range(100):
        peer.publish(1, b"taken")
    catch_up = service.ending.catch_up

    def behind(*given: object) -> bool:
        done = catch_up(*given)  # type: ignore[arg-type]
        peer.publish(1, b"late")
        late.publish(1, b"late")
        return done

    monkeypatch.setattr(service.ending, "catch_up", behind)
    node.superblock.set("state", DRAINING)
    assert worker.stop()
    assert (peer.get("tail"), peer.get("closed"), peer.get("head")) == (101, 101, 100)
    assert (late.get("tail"), late.get("closed"), late.get("head")) == (1, 1, 0)
    assert counted(node) == 100


def test_a_client_that_comes_while_the_node_ends(node: Node, worker: Incarnation) -> None:
    """What it had submitted when it was taken up is done."""
    worker.engine.end_links()
    peer = node.peer()
    peer.publish(1, b"x")
    worker.service.take_up(peer.slot, peer.generation, peer.epoch, peer.region)
    assert worker.engine.behind() == 1
    peer.publish(1, b"late")
    worker.turns()
    assert worker.engine.behind() == 0
    assert worker.engine.stats(1)[0] == 1
    assert worker.engine.sync(10_000_000_000)
    worker.turns()
    assert worker.engine.close_links() == 0
    assert peer.get("closed") == 2


def test_a_worker_that_is_started_once_more_takes_nothing_from_a_closed_ring(node: Node) -> None:
    """Killed after it closed the rings, before it was done: what its clients were told stays true."""
    worker = node.worker()
    peer, other = node.peer(worker), node.peer(worker)
    peer.publish(1, b"x")
    worker.turns()
    worker.engine.end_links()
    assert worker.engine.sync(10_000_000_000)
    worker.turns()
    other.publish(1, b"late")
    assert worker.engine.close_links() == 0
    worker.kill()
    peer.publish(1, b"late")
    again = node.worker()
    again.turns()
    assert again.engine.stats(1)[0] == 1
    assert again.engine.behind() == 0
    assert (peer.get("closed"), other.get("closed")) == (2, 1)
    again.kill()


def test_what_is_not_durable_is_not_closed(node: Node, worker: Incarnation) -> None:
    """Without a sync, and where something is left, nothing is said; nor by a worker whose node goes on."""
    peer = node.peer(worker)
    peer.publish(1, b"x")
    assert worker.engine.close_links() == 1, "the node does not end"
    worker.engine.end_links()
    assert worker.engine.behind() == 1
    assert worker.engine.close_links() == 1
    assert peer.get("closed") == 0
    worker.turns()
    assert worker.engine.sync(10_000_000_000)
    worker.turns()
    assert worker.engine.close_links() == 0
    assert peer.get("closed") == 2


def test_a_worker_alone_that_ends_leaves_the_rings_open(node: Node) -> None:
    """It was told to end, and the node goes on: the next one takes what comes behind it."""
    worker = node.worker()
    peer = node.peer(worker)
    peer.publish(1, b"x")
    assert worker.stop()
    assert peer.get("closed") == 0
    peer.publish(1, b"y")
    again = node.worker()
    again.turns()
    assert again.engine.stats(1)[0] == 2
    again.kill()
