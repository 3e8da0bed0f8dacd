"""Queues in memory: order, credit, prefetch, acks, returns, routes, hostile clients.

Goal: a consumer sees each message once and in order; what comes back comes back in its place, marked; nobody's nonsense
costs others. Method: one worker's engine in this process, clients played by hand (support.queue_probe).
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.engine.queues import declared
from warren.engine.queues.options import Changes
from warren.ipc import _core as atomics
from warren.ipc.identity import Identity
from warren.ipc.layout import CLIENT, CONSTANTS

from support.queue_probe import NO, OK, SERVER_INDEX, Incarnation, Node, Peer, Queue

MULTIPLE = PROTOCOL["FLAG_MULTIPLE"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(3, durable=False)])


@pytest.fixture
def worker(node: Node) -> Iterator[Incarnation]:
    incarnation = node.worker()
    yield incarnation
    incarnation.kill()


def bodies(found: list) -> list[bytes]:
    return [item.body for item in found]


def test_messages_arrive_in_order_and_acks_empty_the_queue(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    sent = [b"body %d" % i for i in range(100)]
    for body in sent:
        producer.publish(1, body)
    worker.turns()
    found = consumer.receive(worker)
    assert bodies(found) == sent
    assert [item.sequence for item in found] == list(range(100))
    assert not any(item.redelivered for item in found)
    for item in found:
        consumer.ack(1, item.sequence)
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 0)
    assert consumer.held_slots() == 0


def test_what_is_handed_to_nobody_counts_as_waiting(node: Node, worker: Incarnation) -> None:
    producer, consumer, idle = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(10):
        producer.publish(1, b"%d" % i)
    worker.turns()
    assert producer.control(worker, op="waiting", queue=1) == {"count": 10}
    consumer.credit(1, credit=4)
    worker.turns()
    idle.credit(1, credit=3)
    worker.turns()
    found = consumer.receive(worker)
    assert worker.engine.stats(1)[:2] == (3, 7)
    assert producer.control(worker, op="waiting", queue=1) == {"count": 10}
    consumer.hand_out(found[0])
    consumer.hand_out(found[1])
    assert producer.control(worker, op="waiting", queue=1) == {"count": 8}
    consumer.ack(1, found[0].sequence)
    consumer.credit(1, credit=5)
    worker.turns()
    (next_one,) = consumer.receive(worker)
    assert next_one.slot == found[0].slot, "in its place: what is said of that slot is of the past"
    assert producer.control(worker, op="waiting", queue=1) == {"count": 8}
    consumer.hand_out(next_one)
    assert producer.control(worker, op="waiting", queue=1) == {"count": 7}
    for item in (found[1], next_one):
        consumer.nack(1, item.sequence)
    worker.turns()
    assert producer.control(worker, op="waiting", queue=1) == {"count": 9}
    assert producer.control(worker, op="waiting", queue=2) == {"count": 0}


def test_a_client_that_waits_to_be_taken_up_is_woken(node: Node, worker: Incarnation) -> None:
    client = node.peer()
    atomics.store32(client.buffer, CLIENT.offset("waiting"), 1)
    worker.service.take_up(client.slot, client.generation, client.epoch, client.region)
    assert client.get("server_epoch") == worker.epoch
    assert atomics.load32(client.buffer, CLIENT.offset("waiting")) == 0


def test_credit_is_absolute_and_counts_deliveries(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(10):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=3)
    worker.turns()
    assert len(consumer.receive(worker)) == 3
    consumer.credit(1, credit=5)
    worker.turns()
    assert len(consumer.receive(worker)) == 2
    consumer.credit(1, credit=2)  # less than it had: nothing more
    worker.turns()
    assert consumer.receive(worker) == []


def test_a_credit_counted_under_another_worker_is_ignored(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    producer.publish(1, b"x")
    stale = consumer.credit(1, epoch=worker.epoch + 7)
    worker.turns()
    assert consumer.result(stale) == NO
    assert consumer.receive(worker) == []
    consumer.credit(1, epoch=worker.epoch)
    worker.turns()
    assert len(consumer.receive(worker)) == 1


def test_prefetch_bounds_what_is_held(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(10):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=0, prefetch=4)
    worker.turns()
    first = consumer.receive(worker)
    assert len(first) == 4
    consumer.ack(1, first[1].sequence, MULTIPLE)
    worker.turns()
    assert [item.sequence for item in consumer.receive(worker)] == [4, 5]


def test_two_consumers_take_turns(node: Node, worker: Incarnation) -> None:
    producer, one, two = node.peer(worker), node.peer(worker), node.peer(worker)
    one.credit(1)
    two.credit(1)
    worker.turns()
    for i in range(10):
        producer.publish(1, b"%d" % i)
    worker.turns()
    assert len(one.receive(worker)) == len(two.receive(worker)) == 5


def test_multiple_ack_takes_what_this_client_holds_up_to_the_tag(node: Node, worker: Incarnation) -> None:
    producer, one, two = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(6):
        producer.publish(1, b"%d" % i)
    one.credit(1, credit=3)
    worker.turns()
    two.credit(1, credit=3)
    worker.turns()
    answer = one.ack(1, 4, MULTIPLE)
    worker.turns()
    assert one.result(answer) == OK
    assert worker.engine.stats(1)[:2] == (0, 3)
    assert [item.sequence for item in two.receive(worker)] == [3, 4, 5]


def test_acks_of_what_is_not_held_change_nothing(node: Node, worker: Incarnation) -> None:
    producer, one, two = node.peer(worker), node.peer(worker), node.peer(worker)
    producer.publish(1, b"x")
    one.credit(1, credit=1)
    worker.turns()
    foreign = two.ack(1, 0)
    unknown = two.ack(99, 0)
    beyond = one.ack(1, 1 << 60)
    mine = one.ack(1, 0)
    again = one.ack(1, 0)
    worker.turns()
    assert [two.result(foreign), two.result(unknown), one.result(beyond)] == [NO, NO, NO]
    assert [one.result(mine), one.result(again)] == [OK, NO]
    assert worker.engine.counters()["acked"] == 1


def test_requeued_messages_come_back_in_their_place_and_marked(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(6):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=4)
    worker.turns()
    consumer.receive(worker)
    for tag in (2, 0, 3):
        consumer.nack(1, tag)
    worker.turns()
    consumer.credit(1, credit=100)
    worker.turns()
    found = consumer.receive(worker)
    assert [item.sequence for item in found] == [0, 2, 3, 4, 5]
    assert [item.redelivered for item in found] == [True, True, True, False, False]
    assert [item.count for item in found] == [1, 1, 1, 0, 0]


def test_what_nobody_has_seen_returns_as_if_it_had_never_come(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(4):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=4)
    worker.turns()
    consumer.receive(worker)
    consumer.nack(1, 1)
    worker.turns()
    consumer.credit(1, credit=5)
    worker.turns()
    unseen = PROTOCOL["FLAG_REQUEUE"] | PROTOCOL["FLAG_UNSEEN"]
    for tag in (3, 2, 1, 0):
        consumer.command("OP_NACK", queue=1, tag=tag, flags=unseen)
    worker.turns()
    consumer.credit(1, credit=100)
    worker.turns()
    found = [(item.sequence, item.redelivered, item.count) for item in consumer.receive(worker)[-4:]]
    assert found == [(0, False, 0), (1, True, 1), (2, False, 0), (3, False, 0)]


def test_what_returns_behind_others_is_marked(node: Node, worker: Incarnation) -> None:
    """Who has got later messages must not meet earlier ones without their mark."""
    producer, slow, other = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(6):
        producer.publish(1, b"%d" % i)
    slow.credit(1, credit=5)
    worker.turns()
    assert len(slow.receive(worker)) == 5
    unseen = PROTOCOL["FLAG_REQUEUE"] | PROTOCOL["FLAG_UNSEEN"]
    for tag in (4, 3):
        slow.command("OP_NACK", queue=1, tag=tag, flags=unseen)  # nobody is behind them
    other.credit(1, credit=1)
    worker.turns()
    assert [(item.sequence, item.redelivered) for item in other.receive(worker)] == [(3, False)]
    slow.command("OP_NACK", queue=1, tag=2, flags=unseen)  # the other one has got a later one
    other.credit(1, credit=100)
    worker.turns()
    found = [(item.sequence, item.redelivered, item.count) for item in other.receive(worker)]
    assert found == [(2, True, 0), (4, False, 0), (5, False, 0)]


def test_a_credit_with_a_prefetch_keeps_both(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(20):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=7, prefetch=3)
    worker.turns()
    assert len(consumer.receive(worker)) == 3
    for tag in range(3):
        consumer.ack(1, tag)
    worker.turns()
    assert len(consumer.receive(worker)) == 3
    for tag in range(3, 6):
        consumer.ack(1, tag)
    worker.turns()
    assert len(consumer.receive(worker)) == 1, "the credit is used up"
    consumer.credit(1, credit=7, prefetch=100)
    worker.turns()
    assert consumer.receive(worker) == []
    consumer.credit(1, credit=0, prefetch=2)
    worker.turns()
    assert len(consumer.receive(worker)) == 1, "a prefetch alone has no end"


def test_a_nack_without_requeue_drops(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(3):
        producer.publish(1, b"%d" % i)
    consumer.credit(1)
    worker.turns()
    consumer.nack(1, 1, requeue=False, multiple=True)
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 1)


def test_cancel_with_requeue_returns_what_is_held(node: Node, worker: Incarnation) -> None:
    producer, one, two = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(5):
        producer.publish(1, b"%d" % i)
    one.credit(1)
    worker.turns()
    one.command("OP_CANCEL", queue=1, flags=PROTOCOL["FLAG_REQUEUE"])
    worker.turns()
    assert one.receive(worker) == []  # the ring's entries are stale now
    two.credit(1)
    worker.turns()
    assert [item.sequence for item in two.receive(worker)] == [0, 1, 2, 3, 4]
    producer.publish(1, b"new")
    worker.turns()
    assert one.receive(worker) == []


def test_a_dead_consumers_messages_go_to_the_next_in_order(node: Node, worker: Incarnation) -> None:
    producer, one, two = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(6):
        producer.publish(1, b"%d" % i)
    one.credit(1, credit=5)
    worker.turns()
    had = one.receive(worker)
    for item in (had[1], had[2]):
        one.hand_out(item)
    one.ack(1, 1)  # submitted before its death: still executed
    worker.engine.closing(one.slot)
    two.credit(1)
    worker.until(lambda: worker.finished(one))
    worker.turns()
    found = two.receive(worker)
    assert [item.sequence for item in found] == [0, 2, 3, 4, 5]
    assert [item.redelivered for item in found] == [False, True, False, False, False]  # the program had that one alone
    assert [item.count for item in found] == [0, 1, 0, 0, 0]


def test_a_link_is_finished_only_when_its_commands_are_confirmed(node: Node, worker: Incarnation) -> None:
    producer = node.peer(worker)
    for i in range(300):
        producer.publish(1, b"%d" % i)
    worker.engine.closing(producer.slot)
    worker.until(lambda: worker.finished(producer))
    assert worker.engine.stats(1)[0] == 300
    assert producer.get("head") == 300


def test_one_message_to_durable_and_transient_queues(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    answer = producer.publish([1, 2, 3, 2], b"body", meta=b"\x93abc")
    consumer.credit(1)
    consumer.credit(2)
    consumer.credit(3)
    worker.until(lambda: producer.result(answer))  # the first file of the transient journal is made now
    worker.turns()
    found = consumer.receive(worker)
    assert producer.result(answer) == OK
    assert sorted(item.queue for item in found) == [1, 2, 3]  # the same queue twice is once
    assert {item.body for item in found} == {b"\x93abcbody"}
    places = {item.queue: item.location for item in found}
    assert places[1] == places[2] == PROTOCOL["LOCATION_JOURNAL"]
    assert places[3] == PROTOCOL["LOCATION_JOURNAL_TRANSIENT"]


def test_an_unknown_queue_waits_for_the_catalog_once(node: Node, worker: Incarnation) -> None:
    producer = node.peer(worker)
    node.queues.append(Queue(9))  # declared a moment ago: the worker has not seen it
    fresh = producer.publish(9, b"x")
    nowhere = producer.publish(77, b"x")
    worker.turns(3)
    assert producer.result(fresh) == OK
    assert producer.result(nowhere) == NO
    assert worker.engine.counters()["unroutable"] == 1
    assert worker.engine.stats(9)[0] == 1


def test_others_are_served_while_many_queues_come_and_go(
    node: Node, worker: Incarnation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for the catalog each turn takes up a few queues; in each turn a message is executed, too. Who asks
    for a queue whose turn has not come gets it."""
    monkeypatch.setattr(declared, "TURN_S", 0.0)
    producer = node.peer(worker)
    service = worker.service
    many = [Queue(id) for id in range(1000, 1100)]
    for version, wanted in ((2, [*node.queues, *many]), (3, list(node.queues))):
        node.queues = wanted
        node.tell_catalog(version)
        service.turn(0, False)
        assert 80 < service.queues.unfinished < 100
        if version == 2:
            assert 1099 not in worker.engine.queues()
            assert producer.control(worker, op="stats", queue=1099)["ready"] == 0
            assert 1099 in worker.engine.queues()
        count = service.queues.unfinished
        while service.queues.unfinished:
            sent = producer.publish(1, b"x")
            service.turn(0, False)
            assert producer.result(sent) == OK, "a message of another queue waits for no catalog"
            now = service.queues.unfinished
            assert count - 2 * declared.TURN_N <= now < count, "a turn, and the timer's when that is due"
            count = now
        assert {item.id for item in many} <= set(worker.engine.queues()) if version == 2 else True
    assert not {item.id for item in many} & set(worker.engine.queues())


def test_a_change_is_read_in_pieces_and_others_are_served_between(
    node: Node, worker: Incarnation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is taken up before all of it is read, because what belongs to a queue may come in the last piece.
    Who asks for one of its queues has all of it read at once."""
    monkeypatch.setattr(declared, "TURN_S", 0.0)
    producer, consumer = node.peer(worker), node.peer(worker)
    service = worker.service
    dead = QueueArguments.of("q", {"dead_letter_exchange": "x"})
    pieces = [[Queue(50, policy=dead)], [Queue(52)], [Queue(51, dead_letters_of=50)]]
    asked: list[int] = []

    def follow(version: int) -> Changes:
        asked.append(version)
        return Changes([*pieces.pop(0)] if pieces else [], [], bool(pieces))

    service.options.follow_catalog = follow
    node.tell_catalog(2)
    for left in (2, 1):
        sent = producer.publish(1, b"x")
        service.turn(0, False)
        assert len(pieces) == left
        assert producer.result(sent) == OK
        assert not {50, 51, 52} & set(worker.engine.queues())
    service.turn(0, False)
    assert {50, 51, 52} <= set(worker.engine.queues())
    consumer.credit(50, credit=1)
    producer.publish(50, b"bad")
    worker.turns(2)
    (held,) = consumer.receive(worker)
    consumer.nack(50, held.sequence, requeue=False)
    worker.turns(3)
    assert producer.control(worker, op="stats", queue=51)["ready"] == 1, "its companion was known"
    pieces += [[Queue(60)], [Queue(61)], [Queue(62)]]
    node.tell_catalog(3)
    assert producer.control(worker, op="stats", queue=62)["ready"] == 0


def test_a_change_of_the_catalog_that_does_not_concern_a_worker_waits_for_its_tick(
    node: Node, worker: Incarnation
) -> None:
    service = worker.service
    asked: list[int] = []

    def follow(version: int) -> Changes:
        asked.append(version)
        return Changes([], [], False)

    service.options.follow_catalog = follow
    worker.turns(2)
    for version in range(2, 50):
        node.superblock.set("catalog_version", version)
        assert not worker.engine.run(0, False) & _core.QUEUE_EVENT_CATALOG_CHANGED
    asked.clear()
    service._timer_at = 0.0
    service.turn(0, False)
    assert asked == [49], "in its tick, all at once"
    node.tell_catalog(50)
    assert worker.engine.run(0, False) & _core.QUEUE_EVENT_CATALOG_CHANGED
    service._timer_at = math.inf
    service.turn(0, False)
    assert asked == [49, 50]
    assert not worker.engine.run(0, False) & _core.QUEUE_EVENT_CATALOG_CHANGED


def test_a_deleted_queue_takes_its_messages_along(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(5):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=2)
    worker.turns()
    node.queues = [queue for queue in node.queues if queue.id != 1]
    node.tell_catalog(2)
    worker.turns(3)
    assert 1 not in worker.engine.queues()
    assert worker.engine.counters()["messages"] == 0
    assert consumer.held_slots() == 0
    late = consumer.ack(1, 0)
    worker.turns()
    assert consumer.result(late) == NO


def test_durabilities_rise_no_earlier_than_they_are_true(node: Node, worker: Incarnation) -> None:
    producer = node.peer(worker)
    producer.publish(1, b"x", flags=PROTOCOL["FLAG_PERSISTENT"])
    worker.engine.run(0, False)
    assert producer.get("processed") == 1
    assert producer.get("synced") == 0
    worker.until(lambda: producer.get("head") == 1)
    barrier = producer.command("OP_BARRIER", flags=PROTOCOL["FLAG_SYNCED"])
    worker.until(lambda: producer.get("synced") == barrier + 1)
    syncs = worker.engine.counters()["syncs"]
    assert syncs >= 1
    transient = producer.publish(3, b"x", flags=0)
    worker.until(lambda: producer.get("head") == transient + 1)
    assert worker.engine.counters()["syncs"] == syncs  # it needs no disk


@pytest.mark.parametrize(
    "fields",
    [
        {"op": 99},
        {"op": "OP_PUBLISH", "body": (1 << 22) - 4, "length": 100, "queue": 1},
        {"op": "OP_PUBLISH", "length": 10, "meta_length": 11, "queue": 1},
        {"op": "OP_PUBLISH", "length": 5, "queue": 1, "flags": PROTOCOL["FLAG_LARGE"]},
        {"op": "OP_PUBLISH", "length": 8, "queue": 3, "flags": PROTOCOL["FLAG_ROUTES"]},
        {"op": "OP_PUBLISH", "length": 8, "queue": 0x40000000, "flags": PROTOCOL["FLAG_ROUTES"]},
        {"op": "OP_PUBLISH", "length": 8, "queue": 1, "count": 1 << 48},
        {"op": "OP_PUBLISH", "length": 8, "queue": 1, "tag": 1 << 48},
        {"op": "OP_PUBLISH", "length": 15, "queue": 1, "flags": PROTOCOL["FLAG_DEDUPLICATE"]},
        {"op": "OP_ACK", "length": 8, "queue": 1, "count": 2},
        {"op": "OP_ACK", "length": 8, "queue": 1, "count": (1 << 61) + 1},
        {"op": "OP_CONTROL", "body": (1 << 22) - 1, "length": 50},
    ],
)
def test_nonsense_costs_its_author_the_link_and_nobody_else_anything(
    node: Node, worker: Incarnation, fields: dict
) -> None:
    good, bad = node.peer(worker), node.peer(worker)
    bad.publish(1, b"before")
    unknown = fields["op"] == 99
    bad.command(fields.pop("op"), **fields)
    bad.publish(1, b"after")
    good.publish(1, b"good")
    worker.turns()
    assert bad.get("evicted") == CONSTANTS["EVICTED_OPERATION" if unknown else "EVICTED_BLOB"]
    assert worker.engine.stats(1)[0] == 2
    assert good.get("processed") == 1


def test_a_tail_outside_the_ring_evicts(node: Node, worker: Incarnation) -> None:
    bad = node.peer(worker)
    bad.put("tail", 1 << 63)
    worker.turns()
    assert bad.get("evicted") == CONSTANTS["EVICTED_TAIL"]
    worker.engine.closing(bad.slot)
    worker.turns()
    assert worker.engine.attached() == []


def test_a_control_request_that_is_no_map_gets_an_error(node: Node, worker: Incarnation) -> None:
    peer = node.peer(worker)
    data = struct.pack("<Q", 0xFFFFFFFFFFFFFFFF)
    sequence = peer.command("OP_CONTROL", body=peer.blob(data), length=len(data))
    worker.until(lambda: peer.get("processed") > sequence)
    assert peer.answer()["error"] == "UsageError"
    assert peer.control(worker, op="stats", queue=4711)["error"] == "QueueNotFound"
    assert peer.control(worker, op="fly")["error"] == "UsageError"


def test_a_client_that_scribbles_over_its_delivery_slots_harms_only_itself(node: Node, worker: Incarnation) -> None:
    producer, bad, good = node.peer(worker), node.peer(worker), node.peer(worker)
    for i in range(4):
        producer.publish(1, b"%d" % i)
    bad.credit(1, credit=2)
    good.credit(1, credit=2)
    worker.turns()
    for slot in range(node.delivery_slots):
        DELIVERY.pack_into(bad.buffer, "state", 1, bad.slot_at(slot))
        DELIVERY.pack_into(bad.buffer, "queue", 1, bad.slot_at(slot))
        DELIVERY.pack_into(bad.buffer, "sequence", slot, bad.slot_at(slot))
    for tag in range(4):
        bad.ack(1, tag)
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 2)
    assert len(good.receive(worker)) == 2


def test_more_messages_than_delivery_slots(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    n = 3 * node.delivery_slots
    for i in range(n):
        producer.publish(1, b"%d" % i)
    consumer.credit(1)
    seen = []
    while len(seen) < n:
        worker.turns()
        found = consumer.receive(worker)
        assert found
        seen += [item.sequence for item in found]
        consumer.ack_many(1, [item.sequence for item in found])
    assert seen == list(range(n))


def test_a_free_slot_serves_every_queue_of_the_client(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for _ in range(node.delivery_slots):
        producer.publish(1, b"x")
    consumer.credit(1)
    consumer.credit(2)
    worker.turns()
    producer.publish(2, b"y")
    worker.turns()
    assert {item.queue for item in consumer.receive(worker)} == {1}
    consumer.ack(1, 0)
    worker.turns()
    assert [item.queue for item in consumer.receive(worker)] == [2]


def test_statistics_and_browsing(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(20):
        producer.publish(1, b"%d" % i)
    consumer.credit(1, credit=5)
    worker.turns()
    answer = consumer.control(worker, op="stats", queue=1)
    assert (answer["ready"], answer["unacked"], answer["base"], answer["next"]) == (15, 5, 0, 20)
    assert answer["alpha"] + answer["beta"] + answer["gamma"] + answer["delta"] == 20
    found = consumer.control(worker, op="browse", queue=1, start=3, count=4)
    rows = [found["rows"][at : at + DELIVERY.size] for at in range(0, len(found["rows"]), DELIVERY.size)]
    assert [DELIVERY.unpack(row, "sequence") for row in rows] == [3, 4, 5, 6]
    assert [DELIVERY.unpack(row, "state") for row in rows] == [1, 1, 0, 0]
    assert found["next"] == 7
    assert worker.body(memoryview(bytearray(rows[0])), 0) == b"3"
    ready = consumer.control(worker, op="browse", queue=1, start=0, count=100, ready_only=True)
    assert len(ready["rows"]) == 15 * DELIVERY.size
    assert consumer.control(worker, op="purge", queue=1) == {"count": 15}
    assert worker.engine.stats(1)[:2] == (0, 5)


def spans(worker: Incarnation, peer: Peer, start: int = 0) -> list[tuple[int, int]]:
    """(first, how many) of the ready messages."""
    found = peer.control(worker, op="ready_spans", queue=1, start=start)
    assert found["next"] == found["end"]
    return list(struct.iter_unpack("<QQ", found["spans"]))


def publish_in_turns(worker: Incarnation, producer: Peer, bodies: list[bytes]) -> None:
    """The ring has no room for all of them."""
    for i, body in enumerate(bodies):
        producer.publish(1, body)
        if i % 50 == 49:  # without a next file the worker waits for it
            worker.until(lambda: producer.get("processed") == producer.prepared)
    worker.until(lambda: producer.get("processed") == producer.prepared)


def test_where_ready_messages_are(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    assert spans(worker, producer) == []
    publish_in_turns(worker, producer, [b"%d" % i for i in range(2500)])
    assert spans(worker, producer) == [(0, 2500)]
    assert spans(worker, producer, 2000) == [(2000, 500)]
    assert spans(worker, producer, 9999) == []
    consumer.credit(1, credit=6)
    worker.turns()
    consumer.ack(1, 2)
    worker.turns()
    assert spans(worker, producer) == [(6, 2494)], "held by a consumer"
    consumer.nack(1, 3)
    consumer.nack(1, 5)
    worker.turns()
    assert spans(worker, producer) == [(3, 1), (5, 2495)]


def test_how_far_so_many_bytes_go(node: Node, worker: Incarnation) -> None:
    producer = node.peer(worker)
    publish_in_turns(worker, producer, [bytes(10 if i < 1500 else 100) for i in range(2000)])

    def measured(start: int, end: int, size: int, one: bool = False) -> tuple[int, int, bool]:
        found = producer.control(worker, op="measure", queue=1, start=start, end=end, bytes=size, one=one)
        return found["next"], found["bytes"], found["full"]

    assert measured(0, 2000, 35) == (3, 30, True)
    assert measured(0, 2, 35) == (2, 20, False)
    assert measured(1490, 2000, 250) == (1501, 200, True)
    assert measured(1500, 2000, 1) == (1500, 0, True)
    assert measured(1500, 2000, 1, one=True) == (1501, 100, True)
    assert measured(0, 9999, 1 << 40) == (2000, 65_000, False)
    assert measured(5000, 9999, 10)[1:] == (0, False)


def test_a_locate_tells_only_the_holder(node: Node, worker: Incarnation) -> None:
    producer, consumer, other = node.peer(worker), node.peer(worker), node.peer(worker)
    producer.publish(1, b"x")
    consumer.credit(1)
    worker.turns()
    slot = consumer.receive(worker)[0].slot
    DELIVERY.pack_into(consumer.buffer, "offset", 0, consumer.slot_at(slot))
    mine = consumer.command("OP_LOCATE", queue=1, tag=0)
    foreign = other.command("OP_LOCATE", queue=1, tag=0)
    worker.turns()
    assert (consumer.result(mine), other.result(foreign)) == (OK, NO)
    assert DELIVERY.unpack(consumer.buffer, "offset", consumer.slot_at(slot)) >= 4096


def test_the_servers_row_counts(node: Node, worker: Incarnation) -> None:
    producer, consumer = node.peer(worker), node.peer(worker)
    for _ in range(7):
        producer.publish(1, b"x")
    consumer.credit(1)
    worker.turns()
    consumer.ack(1, 2, MULTIPLE)
    worker.turns()
    counts = {
        name: node.superblock.server_get(SERVER_INDEX, name)
        for name in ("published_n", "delivered_n", "acked_n", "messages")
    }
    assert counts == {"published_n": 7, "delivered_n": 7, "acked_n": 3, "messages": 4}


def test_who_waits_for_a_dead_incarnation_costs_no_processor(node: Node, worker: Incarnation) -> None:
    """A client that has ended is kept until the stores are done with a worker's dead predecessor, without asking."""
    client = node.peer(worker)
    predecessor = node.superblock.activate(node.superblock.claim(Identity.current(), "dead", 0))
    worker.turns()
    worker.engine.closing(client.slot)
    assert any(worker.service.turn(0, False) & _core.QUEUE_EVENT_TIMER for _ in range(1000)), "it never comes to rest"
    assert not worker.finished(client)
    assert node.superblock.give_back(predecessor)
    node.superblock.slots_changed()
    worker.until(lambda: worker.finished(client))
