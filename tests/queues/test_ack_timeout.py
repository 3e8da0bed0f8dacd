"""The ack timeout of a queue, in its worker: what is held for too long goes back, whatever its client says or does not.

Goal: what a program has had for too long goes to another, marked and counted; what only lay ahead at a silent client
goes unmarked; who acks in time, or shows that it lives, notices nothing; nothing that a client writes breaks that.
Method: a worker's engine and clients played by hand (support.queue_probe), with the shortest timeout. Time passes by
itself: a test waits for what has to come, and what must not have come meanwhile is looked at then.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.engine.catalog.arguments import ACK_TIMEOUT_MIN, QueueArguments
from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc.layout import CONSTANTS

from support.queue_probe import NO, OK, Delivery, Incarnation, Node, Peer, Queue

pytestmark = pytest.mark.contract

TAKEN = CONSTANTS["HANDED_TAKEN"]
DEAD = 9


def made(path: Path, **arguments: object) -> Node:
    """A node with queue 1 of these arguments, an ack timeout among them, and its dead letters."""
    policy = QueueArguments.of("q", {"ack_timeout": ACK_TIMEOUT_MIN, **arguments})
    queues = [Queue(1, policy=policy), Queue(DEAD, dead_letters_of=1)]
    return Node(path, queues=queues)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return made(tmp_path)


def filled(node: Node, worker: Incarnation, count: int, **options: int) -> Peer:
    """So many messages; who put them."""
    producer = node.peer(worker)
    for number in range(count):
        producer.publish(1, b"%d" % number, **options)
    worker.until(lambda: producer.get("synced") == producer.prepared)
    return producer


def holding(node: Node, worker: Incarnation, count: int, out: int) -> tuple[Peer, list[Delivery]]:
    """A client that has so many, and of these so many handed out."""
    peer = node.peer(worker)
    peer.credit(1, credit=count)
    worker.turns()
    found = peer.receive(worker)
    assert len(found) == count
    for item in found[:out]:
        peer.hand_out(item)
    return peer, found


def received(worker: Incarnation, peer: Peer, count: int) -> list[Delivery]:
    """Wait for so many messages."""
    found: list[Delivery] = []
    worker.until(lambda: found.extend(peer.receive(worker)) or len(found) >= count)
    return found


def told(found: list[Delivery]) -> list[tuple[bytes, bool, int]]:
    return [(item.body, item.redelivered, item.count) for item in found]


def test_what_is_held_too_long_goes_to_another_marked_and_counted(node: Node) -> None:
    worker = node.worker()
    filled(node, worker, 2)
    stuck, held = holding(node, worker, 2, out=2)
    other = node.peer(worker)
    other.credit(1)
    found = received(worker, other, 2)
    assert told(found) == [(b"0", True, 1), (b"1", True, 1)]
    assert [stuck.said_of(item) for item in held] == [TAKEN, TAKEN]
    assert stuck.held_slots() == 0
    late = stuck.ack(1, held[0].sequence)
    worker.turns()
    assert stuck.result(late) == NO
    assert worker.engine.stats(1)[:2] == (0, 2), "the other still holds both"
    worker.engine.check()
    worker.kill()


def test_what_nobody_has_seen_goes_back_unmarked_and_uncounted(node: Node) -> None:
    worker = node.worker()
    filled(node, worker, 4)
    _stuck, _held = holding(node, worker, 4, out=1)
    other = node.peer(worker)
    other.credit(1)
    found = sorted(received(worker, other, 4), key=lambda item: item.sequence)
    assert told(found) == [(b"0", True, 1), (b"1", False, 0), (b"2", False, 0), (b"3", False, 0)]
    worker.engine.check()
    worker.kill()


def test_what_is_unseen_below_something_seen_is_marked(node: Node) -> None:
    """Without a mark a consumer gets messages in order, and this one had a later one."""
    worker = node.worker()
    filled(node, worker, 3)
    stuck, held = holding(node, worker, 3, out=0)
    stuck.hand_out(held[2])
    other = node.peer(worker)
    other.credit(1)
    found = sorted(received(worker, other, 3), key=lambda item: item.sequence)
    assert told(found) == [(b"0", True, 0), (b"1", True, 0), (b"2", True, 1)]
    worker.kill()


def test_an_ack_that_is_on_its_way_is_in_time(tmp_path: Path) -> None:
    """It is said to come at a part of the timeout, which another queue's has, and comes when that is over."""
    node = made(tmp_path, ack_timeout=5 * ACK_TIMEOUT_MIN)
    node.queues.append(Queue(2, policy=QueueArguments.of("q", {"ack_timeout": ACK_TIMEOUT_MIN})))
    worker = node.worker()
    producer = filled(node, worker, 2)
    acking, held = holding(node, worker, 1, out=1)
    stuck, lost = holding(node, worker, 1, out=1)
    producer.publish(2, b"part")
    stuck.credit(2, credit=1)
    worker.turns()
    (part,) = stuck.receive(worker)
    stuck.hand_out(part)
    worker.until(lambda: stuck.said_of(part) == TAKEN)
    acking.say_of(held[0], "HANDED_SETTLING")
    worker.until(lambda: stuck.said_of(lost[0]) == TAKEN)
    assert acking.held_slots() == 1
    done = acking.ack(1, held[0].sequence)
    worker.turns()
    assert acking.result(done) == OK
    assert worker.engine.stats(1)[:2] == (1, 0)
    worker.kill()


def test_an_ack_that_never_comes_holds_nothing(node: Node) -> None:
    worker = node.worker()
    filled(node, worker, 1)
    liar, held = holding(node, worker, 1, out=1)
    liar.say_of(held[0], "HANDED_SETTLING")
    other = node.peer(worker)
    other.credit(1)
    assert told(received(worker, other, 1)) == [(b"0", True, 1)]
    assert liar.said_of(held[0]) == TAKEN
    worker.kill()


def test_who_asks_for_more_keeps_what_lies_ahead(node: Node) -> None:
    worker = node.worker()
    filled(node, worker, 6)
    alive, _ahead = holding(node, worker, 5, out=0)
    stuck, held = holding(node, worker, 1, out=1)

    def stuck_lost_it() -> bool:
        alive.credit(1, credit=5)
        return stuck.said_of(held[0]) == TAKEN

    worker.until(stuck_lost_it)
    assert alive.held_slots() == 5
    assert worker.engine.stats(1)[:2] == (1, 5)
    worker.kill()


def test_who_let_it_pass_gets_nothing_until_it_is_heard_of(node: Node) -> None:
    worker = node.worker()
    producer = filled(node, worker, 1)
    stuck = node.peer(worker)
    stuck.credit(1, credit=0, prefetch=10)
    worker.turns()
    (held,) = stuck.receive(worker)
    stuck.hand_out(held)
    worker.until(lambda: stuck.said_of(held) == TAKEN)
    producer.publish(1, b"1")
    worker.until(lambda: producer.get("synced") == producer.prepared)
    worker.turns(3)
    assert stuck.receive(worker) == []
    assert worker.engine.stats(1)[:2] == (2, 0)
    stuck.credit(1, credit=0, prefetch=10)
    worker.turns()
    assert told(stuck.receive(worker)) == [(b"0", True, 1), (b"1", False, 0)]
    worker.kill()


def test_a_single_active_consumer_that_is_stuck_is_followed_by_the_next(tmp_path: Path) -> None:
    node = made(tmp_path, single_active_consumer=True)
    worker = node.worker()
    filled(node, worker, 2)
    first, held = holding(node, worker, 1, out=1)
    second = node.peer(worker)
    second.credit(1)
    worker.turns()
    assert second.receive(worker) == []
    assert told(received(worker, second, 2)) == [(b"0", True, 1), (b"1", False, 0)]
    assert first.said_of(held[0]) == TAKEN
    first.credit(1, credit=10)
    worker.turns()
    worker.engine.check()
    worker.kill()


def test_it_counts_for_the_delivery_limit(tmp_path: Path) -> None:
    node = made(tmp_path, delivery_limit=1, dead_letter_exchange="x")
    worker = node.worker()
    filled(node, worker, 1)
    stuck = node.peer(worker)
    for count in range(2):
        stuck.credit(1, credit=10)
        (item,) = received(worker, stuck, 1)
        assert item.count == count
        stuck.hand_out(item)
        worker.until(lambda item=item: stuck.said_of(item) == TAKEN)
    letters = node.peer(worker)
    letters.credit(DEAD)
    (dead,) = received(worker, letters, 1)
    assert (dead.body, dead.reason) == (b"0", PROTOCOL["REASON_DELIVERY_LIMIT"])
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.kill()


@pytest.mark.parametrize("taken", [False, True], ids=["held", "taken as it was killed"])
def test_the_next_worker_counts_anew(node: Node, taken: bool) -> None:
    worker = node.worker()
    filled(node, worker, 1)
    stuck, held = holding(node, worker, 1, out=1)
    if taken:
        stuck.say_of(held[0], "HANDED_TAKEN")
    worker.kill()
    worker = node.worker()
    assert stuck.held_slots() == 1, "it is held still"
    other = node.peer(worker)
    other.credit(1)
    ((body, redelivered, _count),) = told(received(worker, other, 1))
    assert (body, redelivered) == (b"0", True)
    worker.kill()


def test_whatever_a_client_writes_it_keeps_nothing(node: Node, seed: int) -> None:
    """Its words change all the time: each delivery goes back all the same, and once."""
    rng = random.Random(seed)
    worker = node.worker()
    filled(node, worker, 20)
    hostile, held = holding(node, worker, 20, out=10)
    other = node.peer(worker)
    other.credit(1)
    found: list[Delivery] = []
    words = ["HANDED_OUT", "HANDED_SETTLING"]

    def all_here() -> bool:
        for item in held:
            if hostile.said_of(item) != TAKEN:
                hostile.say_of(item, rng.choice(words))
        new = other.receive(worker)
        found.extend(new)
        if new:
            other.ack_many(1, [item.sequence for item in new])  # at once: it is not to be stuck itself
        return len(found) >= 20

    worker.until(all_here)
    assert sorted(item.sequence for item in found) == list(range(20))
    worker.engine.check()
    worker.kill()


def test_a_deleted_queue_is_looked_at_no_more(node: Node) -> None:
    worker = node.worker()
    filled(node, worker, 2)
    stuck, held = holding(node, worker, 1, out=1)
    node.queues[:] = [Queue(2, policy=QueueArguments.of("q", {"ack_timeout": ACK_TIMEOUT_MIN}))]
    node.tell_catalog(2)
    worker.turns()
    producer = node.peer(worker)
    producer.publish(2, b"next")
    stuck.credit(2, credit=1)
    worker.turns()
    (item,) = [item for item in stuck.receive(worker) if item.queue == 2]
    stuck.hand_out(item)
    worker.until(lambda: stuck.said_of(item) == TAKEN)
    assert stuck.said_of(held[0]) != TAKEN
    worker.kill()


@pytest.mark.parametrize("bad", [lambda e: e.set_ack_timeout(1, 0), lambda e: e.set_ack_timeout(1, 100)])
def test_it_is_given_once(node: Node, bad: Callable[[object], object]) -> None:
    worker = node.worker()
    with pytest.raises(ValueError, match="queue 1"):
        bad(worker.engine)
    worker.kill()
