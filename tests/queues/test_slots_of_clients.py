"""Each client says how many delivery slots its region has; a worker believes it once, and only what fits the region.

The worker runs in this process, clients are regions that the test writes (support/queue_probe.py).
"""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.ipc import layout

from support.queue_probe import NO, OK, Incarnation, Node, Peer

#: the node's own number, and that of a client that asks for more
FEW, MANY = 64, 1024
MULTIPLE = PROTOCOL["FLAG_MULTIPLE"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, delivery_slots=FEW)


@pytest.fixture
def worker(node: Node) -> Iterator[Incarnation]:
    worker = node.worker()
    yield worker
    worker.kill()


def publish(worker: Incarnation, producer: Peer, n: int) -> None:
    for i in range(n):
        producer.publish(1, b"%d" % i)
        if i % 64 == 63:
            worker.until(lambda: producer.get("head") == producer.prepared)
    worker.until(lambda: producer.get("synced") == producer.prepared)


def receive(worker: Incarnation, consumer: Peer, n: int) -> list[int]:
    """The sequences of n messages, which stay unacked."""
    found: list[int] = []

    def enough() -> bool:
        found.extend(item.sequence for item in consumer.receive(worker))
        return len(found) >= n

    worker.until(enough)
    assert len(found) == n
    return found


def touched(peer: Peer) -> list[int]:
    """The pages of a peer's region that are memory."""
    pages = peer.size // mmap.PAGESIZE
    seen = (ctypes.c_ubyte * pages)()
    buffer = (ctypes.c_char * peer.size).from_buffer(peer.region.memory)
    assert ctypes.CDLL(None).mincore(ctypes.byref(buffer), ctypes.c_size_t(peer.size), seen) == 0
    return [page for page in range(pages) if seen[page] & 1]


def slots_touched(peer: Peer) -> list[int]:
    """Those of them that hold delivery slots, counted from the first."""
    first, end = peer.slots // mmap.PAGESIZE, peer.delivery_ring // mmap.PAGESIZE
    return [page - first for page in touched(peer) if first <= page < end]


def test_each_client_holds_as_many_as_its_own_region_has_slots(node: Node, worker: Incarnation) -> None:
    producer, plain, other = node.peer(worker), node.peer(worker), node.peer(worker, delivery_slots=MANY)
    publish(worker, producer, FEW + MANY + 10)
    plain.credit(1)
    assert receive(worker, plain, FEW) == list(range(FEW))
    worker.turns()
    assert not plain.receive(worker), "all its slots are held"
    other.credit(1)
    assert receive(worker, other, MANY) == list(range(FEW, FEW + MANY))
    worker.turns()
    assert not other.receive(worker)
    other.ack(1, FEW + MANY - 1, MULTIPLE)
    assert receive(worker, other, 10) == list(range(FEW + MANY, FEW + MANY + 10))
    plain.ack(1, FEW - 1, MULTIPLE)
    other.ack(1, FEW + MANY + 9, MULTIPLE)
    worker.until(lambda: worker.engine.stats(1)[:2] == (0, 0))
    assert plain.held_slots() == other.held_slots() == 0


def test_slots_that_were_never_used_are_no_memory(node: Node) -> None:
    worker = node.worker()
    producer, many = node.peer(worker), node.peer(worker, delivery_slots=layout.DELIVERY_SLOTS_MAX)
    publish(worker, producer, 300)
    assert slots_touched(many) == []
    many.credit(1, credit=100)
    held = receive(worker, many, 100)
    assert slots_touched(many) == [0, 1], "64 slots of 64 bytes are a page"
    for _again in range(4):  # what was freed is used again first
        many.ack_many(1, held[:50])
        many.credit(1, credit=many.get("delivery_tail") + 50)
        held = held[50:] + receive(worker, many, 50)
    assert slots_touched(many) == [0, 1]
    worker.kill()
    again = node.worker()
    assert again.engine.stats(1)[1] == 100, "the next worker knows who holds what"
    assert slots_touched(many) == [0, 1], "and looked at no other slot"
    many.ack_many(1, held)
    again.until(lambda: many.held_slots() == 0)
    again.kill()


def test_what_is_held_is_in_order_after_a_restart(node: Node) -> None:
    """Slots are used again in any order; what a consumer holds is acked up to a sequence."""
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker, delivery_slots=MANY)
    publish(worker, producer, 900)
    consumer.credit(1, credit=600)
    held = receive(worker, consumer, 600)
    gone = held[1::3] + held[2::7]
    consumer.ack_many(1, gone)
    consumer.credit(1, credit=900)
    held = sorted((set(held) - set(gone)) | set(receive(worker, consumer, 300)))
    worker.kill()
    worker = node.worker()
    assert worker.engine.stats(1)[:2] == (0, len(held))
    middle = held[len(held) // 2]
    consumer.ack(1, middle, MULTIPLE)
    worker.until(lambda: worker.engine.stats(1)[1] == sum(sequence > middle for sequence in held))
    worker.engine.check()
    consumer.ack_many(1, [sequence for sequence in held if sequence > middle])
    worker.until(lambda: worker.engine.stats(1)[1] == 0)
    worker.kill()


@pytest.mark.parametrize(
    "said",
    [2 * MANY, layout.DELIVERY_SLOTS_MAX, 2 * layout.DELIVERY_SLOTS_MAX, 1 << 31, 0xFFFFFFFF, MANY - 1, 3 * 256],
    ids=["more than it has", "very many", "more than there can be", "2^31", "2^32 - 1", "odd", "no power of two"],
)
def test_a_row_that_does_not_fit_its_region_is_refused(node: Node, worker: Incarnation, said: int) -> None:
    liar, honest = node.peer(delivery_slots=MANY), node.peer(worker)
    node.superblock.say_slots(liar.slot, said)
    with pytest.raises(OSError, match="Invalid argument"):
        worker.service.take_up(liar.slot, liar.generation, liar.epoch, liar.region)
    publish(worker, honest, 3)
    honest.credit(1)
    assert len(receive(worker, honest, 3)) == 3


def test_a_row_that_changes_concerns_only_the_next_worker(node: Node) -> None:
    worker = node.worker()
    producer, liar, honest = node.peer(worker), node.peer(worker, delivery_slots=MANY), node.peer(worker)
    publish(worker, producer, 200)
    liar.credit(1, credit=100)
    receive(worker, liar, 100)
    node.superblock.say_slots(liar.slot, 1 << 20)
    liar.credit(1, credit=150)
    receive(worker, liar, 50)
    worker.kill()
    node.peers.remove(liar)
    worker = node.worker()
    with pytest.raises(OSError, match="Invalid argument"):
        worker.service.take_up(liar.slot, liar.generation, liar.epoch, liar.region)
    assert worker.engine.stats(1)[:2] == (200, 0), "what it held is there for others"
    worker.kill()
    node.peers.append(liar)
    node.superblock.say_slots(liar.slot, FEW)  # fewer than it has: ring and words lie elsewhere
    worker = node.worker()
    held = worker.engine.stats(1)[1]
    assert held <= FEW
    honest.credit(1)
    receive(worker, honest, min(FEW, 200 - held))
    worker.engine.check()
    worker.engine.closing(liar.slot)
    worker.until(lambda: worker.finished(liar))
    assert worker.engine.stats(1)[1] == min(FEW, 200 - held)
    worker.kill()


@pytest.mark.parametrize("used", [0, 10, FEW, 0xFFFFFFFF])
def test_who_lies_about_the_slots_it_used_loses_what_it_held(node: Node, used: int) -> None:
    worker = node.worker()
    producer, liar, honest = node.peer(worker), node.peer(worker), node.peer(worker)
    publish(worker, producer, 40)
    liar.credit(1)
    held = receive(worker, liar, 40)
    liar.put("slots_used", used)
    worker.kill()
    worker = node.worker()
    kept = min(used, 40)
    assert worker.engine.stats(1)[:2] == (40 - kept, kept)
    honest.credit(1)
    assert sorted(receive(worker, honest, 40 - kept)) == held[kept:]
    late = [liar.ack(1, tag) for tag in (held[0], held[-1])]
    worker.turns()
    assert [liar.result(one) for one in late] == [OK if kept else NO, OK if kept == 40 else NO]
    for slot in range(FEW):  # never used, it says, and yet held: what stands there is written over
        DELIVERY.pack_into(liar.buffer, "state", 1, liar.slot_at(slot))
    worker.engine.check()
    worker.kill()
