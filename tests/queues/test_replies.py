"""The queue of replies to a client: made by its own first credit, by no other, and gone with its link.

Method: a worker's engine and clients played by hand (support.queue_probe).
"""

from pathlib import Path

import pytest

from warren.engine.kernel.protocol import PROTOCOL

from support.queue_probe import NO, OK, Incarnation, Node, Peer, Queue

pytestmark = pytest.mark.contract


def replies_of(peer: Peer) -> int:
    return int(PROTOCOL["REPLY_QUEUE"] | peer.generation << PROTOCOL["REPLY_SHIFT"] | peer.slot)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1)], with_store=True)


def start(node: Node) -> Incarnation:
    node.store.up()
    worker = node.worker()
    worker.turns(4)
    return worker


def sent(worker: Incarnation, publisher: Peer, queue: int, body: bytes) -> int:
    """The result of a publish."""
    sequence = publisher.publish(queue, body, flags=0)
    worker.until(lambda: publisher.get("processed") > sequence)
    return publisher.result(sequence)


def test_a_reply_reaches_the_client_that_asked_for_it(node: Node) -> None:
    worker = start(node)
    caller, server = node.peer(worker), node.peer(worker)
    assert sent(worker, server, replies_of(caller), b"too early") == NO
    caller.credit(replies_of(caller), prefetch=10)
    worker.turns()
    for body in (b"one", b"two"):
        assert sent(worker, server, replies_of(caller), body) == OK
        worker.turns()
        (found,) = caller.receive(worker)
        assert found.body == body
        caller.ack(replies_of(caller), found.sequence)
    worker.turns()
    assert worker.engine.counters()["messages"] == 0
    assert caller.held_slots() == 0
    worker.kill()


def test_nobody_else_makes_or_reads_it(node: Node) -> None:
    worker = start(node)
    caller, other = node.peer(worker), node.peer(worker)
    asked = other.credit(replies_of(caller), prefetch=10)
    worker.until(lambda: other.get("processed") > asked)
    assert other.result(asked) == NO
    assert sent(worker, other, replies_of(caller), b"to nobody") == NO
    caller.generation += 1  # of the next one that has its slot
    asked = caller.credit(replies_of(caller), prefetch=10)
    worker.until(lambda: caller.get("processed") > asked)
    assert caller.result(asked) == NO
    assert not other.get("evicted")
    assert not caller.get("evicted")
    worker.kill()


def test_it_goes_with_its_client(node: Node) -> None:
    worker = start(node)
    caller, server = node.peer(worker), node.peer(worker)
    caller.credit(replies_of(caller), credit=1)
    worker.turns()
    for body in (b"held", b"ready"):
        assert sent(worker, server, replies_of(caller), body) == OK
    worker.turns()
    assert worker.engine.counters()["messages"] == 2
    worker.engine.closing(caller.slot)
    worker.until(lambda: worker.finished(caller))
    assert worker.engine.counters()["messages"] == 0
    assert sent(worker, server, replies_of(caller), b"late") == NO
    worker.kill()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nothing_on_disk_names_it(node: Node, how: str) -> None:
    worker = start(node)
    caller, server = node.peer(worker), node.peer(worker)
    caller.credit(replies_of(caller), prefetch=10)
    worker.turns()
    assert sent(worker, server, replies_of(caller), b"lost with the worker") == OK
    done = server.publish(1, b"kept")
    worker.until(lambda: server.get("synced") > done)
    assert worker.engine.queues() == [1]
    if how == "stopped":
        assert worker.stop()
    else:
        worker.kill()
    worker = start(node)
    assert worker.engine.queues() == [1]
    assert worker.engine.counters()["messages"] == 1
    assert not caller.get("evicted")
    caller.credit(replies_of(caller), prefetch=10, epoch=worker.epoch)
    worker.turns()
    assert sent(worker, server, replies_of(caller), b"again") == OK
    worker.turns()
    assert [item.body for item in caller.receive(worker)] == [b"again"]
    worker.kill()
