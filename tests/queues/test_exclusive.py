"""Who consumes a queue alone: one client at a time, until it leaves, or is gone; no kill of the worker loses or doubles
that.

Method: a worker's engine, and clients played by hand (support.queue_probe). A kill may come at any word that the worker
writes: the states in between are made by hand.
"""

from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.arguments import QueueArguments
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.ipc.layout import LINK

from support.queue_probe import NO, OK, SERVER_INDEX, Delivery, Incarnation, Node, Peer, Queue

pytestmark = pytest.mark.contract

EXCLUSIVE = PROTOCOL["DELIVERY_EXCLUSIVE"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2)], delivery_slots=16)


def join(worker: Incarnation, peer: Peer, exclusive: bool = True, queue: int = 1) -> str | tuple[str, int]:
    """What a client is told, and the slot of who is in the way."""
    answer = peer.control(worker, op="join", queue=queue, exclusive=exclusive)
    return (answer["how"], answer["slot"]) if answer["slot"] else answer["how"]


def settled(worker: Incarnation, peer: Peer, exclusive: bool = True) -> Any:
    """The same, when the worker knows what was before it."""
    while (answer := join(worker, peer, exclusive)) == "early":
        pass
    return answer


def leave(worker: Incarnation, peer: Peer, queue: int = 1) -> int:
    sequence = peer.command("OP_LEAVE", queue=queue)
    worker.until(lambda: peer.get("processed") > sequence)
    return peer.result(sequence)


def slots(peer: Peer, state: int) -> list[int]:
    """The delivery slots in a state."""
    return [
        slot
        for slot in range(peer.node.geometry["delivery_slots"])
        if DELIVERY.unpack(peer.buffer, "state", peer.slot_at(slot)) == state
    ]


def held_n(node: Node) -> int:
    return node.superblock.server_get(SERVER_INDEX, "exclusive_n")


def test_one_client_consumes_alone_until_it_leaves(node: Node) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    assert [join(worker, one), join(worker, one)] == ["in", "in"]
    assert [join(worker, other), join(worker, other, False)] == [("held", one.slot)] * 2
    assert (held_n(node), len(slots(one, EXCLUSIVE))) == (1, 1)
    assert join(worker, other, queue=2) == "in"
    assert (leave(worker, one), leave(worker, one), leave(worker, other)) == (OK, NO, NO)
    assert (held_n(node), slots(one, EXCLUSIVE)) == (1, [])
    assert join(worker, other) == "in"
    worker.kill()


def test_nobody_else_is_served_meanwhile_but_who_gets(node: Node) -> None:
    """A consumer that was not refused, as it asked for nothing, waits; it is served when the holder has left."""
    worker = node.worker()
    holder, consumer, getter = (node.peer(worker) for _ in range(3))
    assert join(worker, holder) == "in"
    consumer.credit(1, 0, prefetch=10)
    getter.credit(1, 1)
    worker.turns()
    for body in (b"a", b"b", b"c"):
        consumer.publish(1, body)
    worker.turns()
    assert [item.body for item in getter.receive(worker)] == [b"a"]
    assert consumer.receive(worker) == []
    holder.credit(1, 0, prefetch=1)
    worker.turns()
    assert [item.body for item in holder.receive(worker)] == [b"b"]
    leave(worker, holder)
    worker.turns()
    assert [item.body for item in consumer.receive(worker)] == [b"c"]
    worker.kill()


@pytest.mark.parametrize("how", ["joined", "credit"])
def test_alone_is_refused_while_another_one_consumes(node: Node, how: str) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    if how == "joined":
        assert join(worker, one, exclusive=False) == "in"
    else:
        one.credit(1, 0, prefetch=1)
        worker.turns()
    assert join(worker, other) == ("consumed", one.slot)
    assert join(worker, other, exclusive=False) == "in"
    one.command("OP_CANCEL", queue=1)
    worker.turns()
    assert join(worker, other) == "in"
    worker.kill()


def test_it_goes_with_its_client(node: Node) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    assert join(worker, one) == "in"
    one.credit(1, 0, prefetch=3)
    other.publish(1, b"held")
    worker.turns()
    assert len(one.receive(worker)) == 1
    worker.engine.closing(one.slot)
    assert settled(worker, other) == "in"
    worker.until(lambda: worker.finished(one))
    assert held_n(node) == 1
    worker.kill()


def test_it_goes_with_the_queue(node: Node) -> None:
    worker = node.worker()
    one = node.peer(worker)
    assert [join(worker, one), join(worker, one, queue=2)] == ["in", "in"]
    node.queues[:] = [Queue(2)]
    node.tell_catalog(2)
    worker.until(lambda: held_n(node) == 1)
    worker.turns()
    assert len(slots(one, EXCLUSIVE)) == 1
    worker.kill()


def test_a_killed_worker_leaves_it_with_its_holder(node: Node) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    assert join(worker, one) == "in"
    for _ in range(3):
        worker.kill()
        worker = node.worker()
        assert held_n(node) == 1
        assert join(worker, other) == ("held", one.slot)
        assert join(worker, one) == "in"
        assert len(slots(one, EXCLUSIVE)) == 1
    assert leave(worker, one) == OK
    worker.kill()
    worker = node.worker()
    assert held_n(node) == 0
    assert settled(worker, other) == "in"
    worker.kill()


def test_a_kill_before_the_answer_answers_the_same(node: Node) -> None:
    """The slot is written, and `processed` is not raised: the next worker is asked again."""
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    sequence = one.send_control(op="join", queue=1, exclusive=True)
    while not slots(one, EXCLUSIVE):
        assert one.get("processed") == sequence
        worker.service.turn(0)
    if one.get("processed") > sequence:
        one.put("processed", sequence)  # killed a word earlier
    worker.kill()
    worker = node.worker()
    worker.until(lambda: one.get("processed") > sequence)
    assert one.answer()["how"] == "in"
    assert join(worker, other) == ("held", one.slot)
    assert len(slots(one, EXCLUSIVE)) == 1
    worker.kill()


def test_a_kill_after_a_leave_that_was_not_told_does_it_again(node: Node) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    assert join(worker, one) == "in"
    sequence = one.command("OP_LEAVE", queue=1)
    worker.kill()  # before it was executed
    worker = node.worker()
    worker.until(lambda: one.get("processed") > sequence)
    assert (one.result(sequence), slots(one, EXCLUSIVE)) == (OK, [])
    assert settled(worker, other) == "in"
    assert settled(worker, one) == ("held", other.slot)
    worker.kill()


def test_a_leave_that_was_told_does_not_end_what_came_after_it(node: Node) -> None:
    """`head` may lie below it: it is still in the ring that the next worker goes through."""
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    assert join(worker, one) == "in"
    leave(worker, one)
    assert join(worker, one) == "in"
    one.put("head", 0)
    worker.kill()
    worker = node.worker()
    worker.turns()
    assert join(worker, other) == ("held", one.slot)
    worker.kill()


def test_what_a_client_says_of_its_slots_harms_no_other(node: Node) -> None:
    """A second holder, of a queue that is not there, twice: the first one stays the only one."""
    worker = node.worker()
    one, liar = node.peer(worker), node.peer(worker)
    assert join(worker, one) == "in"
    for slot, queue in enumerate((1, 1, 77, 0)):
        DELIVERY.pack_into(liar.buffer, "queue", queue, liar.slot_at(slot))
        DELIVERY.pack_into(liar.buffer, "state", EXCLUSIVE, liar.slot_at(slot))
    LINK.pack_into(liar.buffer, "slots_used", 4, liar.link)
    worker.kill()
    worker = node.worker()
    first = join(worker, liar)
    assert first in ("in", ("held", one.slot))  # whoever is looked at first: only one of them
    assert (first == "in") == (join(worker, one) == ("held", liar.slot))
    assert held_n(node) == 1
    assert len(slots(liar, EXCLUSIVE)) + len(slots(one, EXCLUSIVE)) == 1
    worker.kill()


def test_the_next_worker_lets_nobody_in_alone_before_the_consumers_have_announced_themselves(node: Node) -> None:
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    one.credit(1, 0, prefetch=1)
    worker.turns()
    worker.kill()
    worker = node.worker()
    assert join(worker, other) == "early"
    one.credit(1, 0, prefetch=1, epoch=worker.epoch)
    worker.turns()
    assert settled(worker, other) == ("consumed", one.slot)
    worker.kill()


def test_who_holds_a_message_of_before_consumes_until_it_speaks(node: Node) -> None:
    """It works on what it got, and has not looked whether there is another worker."""
    worker = node.worker()
    one, other = node.peer(worker), node.peer(worker)
    one.credit(1, 0, prefetch=1)
    other.publish(1, b"long work")
    worker.until(lambda: other.get("synced") == 1)
    worker.turns()
    (message,) = one.receive(worker)
    worker.kill()
    worker = node.worker()
    assert settled(worker, other) == ("consumed", one.slot)
    one.ack(1, message.sequence)
    worker.turns()
    assert settled(worker, other) == "in"
    worker.kill()


def test_a_client_keeps_most_of_its_slots_for_messages(node: Node) -> None:
    node.queues[:] = [Queue(number) for number in range(1, 6)]
    worker = node.worker()
    one = node.peer(worker)
    assert [join(worker, one, queue=number) for number in (1, 2, 3)] == ["in", "in", "no slot"]
    leave(worker, one)
    assert join(worker, one, queue=3) == "in"
    worker.kill()


def test_who_holds_every_slot_cannot_consume_alone(node: Node) -> None:
    worker = node.worker()
    one = node.peer(worker)
    one.credit(1)
    for _ in range(20):
        one.publish(1, b".")
    worker.turns()
    found = one.receive(worker)
    assert (len(found), join(worker, one)) == (16, "no slot")
    one.ack(1, found[0].sequence)
    one.command("OP_CANCEL", queue=1)
    worker.turns()
    assert join(worker, one) == "in"
    worker.kill()


@pytest.mark.parametrize("ends", ["announces", "acks", "dies"])
def test_the_single_active_consumer_stays_so_over_a_kill(tmp_path: Path, ends: str) -> None:
    """Another one that announces itself first gets nothing while the one before works."""
    node = Node(tmp_path, queues=[Queue(1, policy=QueueArguments.of("q", {"single_active_consumer": True}))])
    worker = node.worker()
    active, other = node.peer(worker), node.peer(worker)
    for peer in (active, other):
        peer.credit(1, 0, prefetch=1)
        worker.turns()
    for body in (b"1", b"2"):
        other.publish(1, body)
    worker.until(lambda: other.get("synced") == other.prepared)
    worker.turns()
    (first,) = active.receive(worker)
    worker.kill()
    worker = node.worker()
    other.credit(1, 0, prefetch=1, epoch=worker.epoch)
    worker.turns()
    assert (other.receive(worker), active.receive(worker)) == ([], [])
    if ends == "announces":
        active.credit(1, 0, prefetch=2, epoch=worker.epoch)
        worker.turns()
        assert [item.body for item in active.receive(worker)] == [b"2"]
        assert other.receive(worker) == []
    elif ends == "acks":  # it may announce itself still; after a while it is none any more
        active.ack(1, first.sequence)
        worker.turns()
        assert other.receive(worker) == []
        found: list[Delivery] = []
        worker.until(lambda: found.extend(other.receive(worker)) or found)
        assert [item.body for item in found] == [b"2"]
    else:
        worker.engine.closing(active.slot)
        worker.until(lambda: worker.finished(active))
        worker.turns()
        assert [(item.body, item.redelivered) for item in other.receive(worker)] == [(b"1", True)]
    worker.kill()


def forged(node: Node, state: int, queue: int = 1, sequence: int = 0, id: bytes = bytes(16)) -> Peer:
    """A client that no worker has served yet, whose region says that a slot of it is in use."""
    liar = node.peer()
    at = liar.slot_at(0)
    DELIVERY.pack_into(liar.buffer, "queue", queue, at)
    DELIVERY.pack_into(liar.buffer, "sequence", sequence, at)
    DELIVERY.set_bytes(liar.buffer, "id", id, at)
    DELIVERY.pack_into(liar.buffer, "state", state, at)
    for name in ("slots_used", "delivery_tail", "server_epoch"):
        liar.put(name, 1)
    return liar


def test_who_comes_later_is_no_holder_whatever_its_slots_say(node: Node) -> None:
    worker = node.worker()
    one = node.peer(worker)
    one.credit(1, 0, prefetch=1)
    liar = forged(node, EXCLUSIVE)
    worker.service.take_up(liar.slot, liar.generation, liar.epoch, liar.region)
    assert (held_n(node), slots(liar, EXCLUSIVE)) == (0, [])
    one.publish(1, b"1")
    found: list[Delivery] = []
    worker.until(lambda: found.extend(one.receive(worker)) or found)
    worker.kill()


@pytest.mark.parametrize("acked", [True, False])
def test_who_comes_later_is_no_single_active_consumer_whatever_its_slots_say(tmp_path: Path, acked: bool) -> None:
    """Also while the one before it, which holds nothing any more, may still announce itself."""
    node = Node(tmp_path, queues=[Queue(1, policy=QueueArguments.of("q", {"single_active_consumer": True}))])
    worker = node.worker()
    active = node.peer(worker)
    active.credit(1, 0, prefetch=1)
    ids = [active.new_id() for _ in range(3)]
    for id in ids:
        active.publish(1, b"x", id=id)
    worker.until(lambda: active.get("synced") == active.prepared)
    worker.turns()
    (first,) = active.receive(worker)
    worker.kill()
    worker = node.worker()
    if acked:
        active.ack(1, first.sequence)
        worker.turns()
    liar = forged(node, PROTOCOL["DELIVERY_HELD"], sequence=first.sequence + 1, id=ids[1])
    worker.service.take_up(liar.slot, liar.generation, liar.epoch, liar.region)
    active.credit(1, 0, prefetch=2, epoch=worker.epoch)
    found: list[Delivery] = []
    worker.until(lambda: found.extend(active.receive(worker)) or found)
    assert found[0].sequence == first.sequence + 2
    worker.kill()
