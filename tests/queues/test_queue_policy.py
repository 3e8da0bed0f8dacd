"""What people declare of a queue and say of a message: times, priorities, limits, dead letters (design note 004, §2).

Goal: each rule holds while the worker runs, after a clean restart and after a kill. Method: a worker's engine and a
client played by hand (support.queue_probe); times are in the past or the far future, so that no test waits.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warren.engine import _core
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.kernel.formats import QUEUE_SEGMENT_ENTRY
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.queues.control import POLICY_COUNTS
from warren.engine.queues.flush import ROW

from support.queue_probe import DUPLICATE, FILE_BYTES, OK, REFUSED, Delivery, Incarnation, Node, Peer, Queue
from support.waiting import patience, wait_until

pytestmark = pytest.mark.contract

PAST, FUTURE = 1_000, 1 << 47
KEY = b"k" * PROTOCOL["KEY_BYTES"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(3, durable=False)], journal_files_max=2, with_store=True)


def start(node: Node) -> Incarnation:
    node.store.up()
    worker = node.worker()
    for _ in range(4):
        worker.turns()
    return worker


def flush(node: Node, worker: Incarnation, producer: Peer) -> None:
    """Publish into queue 2 until the first journal file has gone to segments."""
    file = worker.engine.files(False)[0][0]
    while node.folder.journal_file(file).exists():
        for _ in range(20):
            producer.publish(2, b"." * 3000)
        worker.until(lambda: producer.get("synced") == producer.prepared)
        worker.turns()


@pytest.mark.parametrize("how", ["running", "killed", "flushed"])
@pytest.mark.parametrize("size", [20, 5000])
def test_what_a_publish_says_of_a_message_lasts(node: Node, how: str, size: int) -> None:
    worker = start(node)
    producer = node.peer(worker)
    body = b"b" * size
    producer.publish([1, 2], body, meta=b"\x90", expires=FUTURE, due=PAST, priority=7, key=KEY)
    producer.publish(1, body, expires=FUTURE)
    producer.publish(1, body)
    worker.until(lambda: producer.get("synced") == 3)
    if how == "flushed":
        flush(node, worker, producer)
    if how != "running":
        worker.kill()
        worker = start(node)
    consumer = node.peer(worker)
    consumer.credit(1)
    worker.turns()
    found = sorted(consumer.receive(worker), key=lambda item: item.sequence)
    assert [(item.priority, item.reason) for item in found] == [(7, 0), (0, 0), (0, 0)]
    if size < 4096:
        assert [item.body for item in found] == [b"\x90" + body, body, body]
    worker.kill()


def row(**fields: int) -> np.ndarray:
    made = np.zeros(1, ROW)
    for name, value in fields.items():
        made[name] = value
    made["id"] = bytes(range(16))
    return made


def test_an_entry_counts_at_its_place_alone(node: Node) -> None:
    """The CRC covers salt, queue and sequence, which the entry does not name."""
    worker = start(node)
    made = row(queue=1, sequence=5, location=3, where=3, file=9, offset=4096, frame_length=100, body_length=40)
    entry = worker.engine.encode_entries(made.tobytes(), 77)
    places = {(1, 5, 77): (1, 0), (1, 6, 77): (0, 1), (2, 5, 77): (0, 1), (1, 5, 78): (0, 1)}
    for (queue, slot, salt), found in places.items():
        content = bytes(slot * QUEUE_SEGMENT_ENTRY.size) + entry
        assert worker.engine.load_segment(queue, 0, content, salt) == found
    worker.kill()


@pytest.mark.parametrize(("field", "value"), [("state", 2), ("location", 1), ("expires", 1 << 48), ("reason", 5)])
def test_an_entry_that_says_nonsense_is_none(node: Node, field: str, value: int) -> None:
    worker = start(node)
    entry = bytearray(worker.engine.encode_entries(row(queue=1, location=3, where=3).tobytes(), 77))
    QUEUE_SEGMENT_ENTRY.pack_into(entry, field, value)
    place = (77).to_bytes(8, "big") + (1).to_bytes(4, "big") + bytes(8)
    QUEUE_SEGMENT_ENTRY.pack_into(entry, "crc", _core.crc32c(place + entry[4:]))
    assert worker.engine.load_segment(1, 0, bytes(entry), 77) == (0, 1)
    worker.kill()


# -- rules of queues --------------------------------------------------------------------------------------------------

REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT = (
    PROTOCOL[f"REASON_{name}"] for name in ("REJECTED", "EXPIRED", "MAXLEN", "DELIVERY_LIMIT")
)
DEAD = 9
HOWS = ["running", "stopped", "killed"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def single(path: Path, durable: bool = True, letters: bool = True, **arguments: object) -> Node:
    """A node with queue 1 of these arguments and, if `letters`, its dead letters in queue 9."""
    queues = [Queue(1, durable, policy=QueueArguments.of("q", arguments)), Queue(2)]
    if letters:
        queues.append(Queue(DEAD, durable, dead_letters_of=1))
    return Node(path, queues=queues, journal_files_max=2, with_store=True)


def again(node: Node, worker: Incarnation, how: str) -> Incarnation:
    """The worker, or the one after it."""
    if how == "running":
        return worker
    worker.turns()
    if how == "stopped":
        assert worker.stop()
    else:
        worker.kill()
    return start(node)


def put(worker: Incarnation, producer: Peer, *bodies: bytes, **words: Any) -> list[int]:
    """Publish to queue 1; the results."""
    sent = [producer.publish(1, body, **words) for body in bodies]
    worker.until(lambda: producer.get("synced") == producer.prepared)
    return [producer.result(one) for one in sent]


def take(worker: Incarnation, consumer: Peer, queue: int = 1, ack: bool = True) -> list[Delivery]:
    """Everything that is delivered to a consumer of a queue."""
    consumer.credit(queue)
    found: list[Delivery] = []
    worker.turns()
    while some := consumer.receive(worker):
        found += some
        if ack:
            consumer.ack_many(queue, [item.sequence for item in some])
        worker.turns()
    return found


def letters(worker: Incarnation, node: Node) -> list[tuple[bytes, int]]:
    return [(item.body, item.reason) for item in take(worker, node.peer(worker), DEAD)]


def counts(worker: Incarnation, queue: int = 1) -> dict[str, int]:
    ready, unacked = worker.engine.stats(queue)[:2]
    return {
        "ready": ready,
        "unacked": unacked,
        **dict(zip(POLICY_COUNTS, worker.engine.policy_counts(queue), strict=True)),
    }


def wait_until_ms(moment: int) -> None:
    wait_until(lambda: now_ms() > moment, 60, what="the clock")


@pytest.mark.parametrize("how", HOWS)
def test_a_message_expires_at_the_head_and_not_before(tmp_path: Path, how: str) -> None:
    node = single(tmp_path)
    worker = start(node)
    producer = node.peer(worker)
    soon = now_ms() + int(1500 * patience())
    put(worker, producer, b"stays")
    put(worker, producer, b"dies", expires=soon)
    put(worker, producer, b"lives")
    worker = again(node, worker, how)
    worker.turns()
    wait_until_ms(soon)
    worker.turns(3)
    assert counts(worker)["ready"] == 3  # what is behind the head stays
    consumer = node.peer(worker)
    assert [item.body for item in take(worker, consumer)] == [b"stays", b"lives"]
    assert counts(worker)["expired"] == 1
    worker = again(node, worker, how)
    assert letters(worker, node) == [(b"dies", EXPIRED)]
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.kill()


@pytest.mark.parametrize("durable", [True, False])
def test_a_queues_own_time_to_live_works_by_the_clock_alone(tmp_path: Path, durable: bool) -> None:
    node = single(tmp_path, durable, message_ttl=0.3)
    worker = start(node)
    producer = node.peer(worker)
    producer.publish(1, b"a", expires=FUTURE)
    producer.publish(1, b"b", expires=now_ms() - 1)
    worker.until(lambda: counts(worker)["expired"] == 2)  # nobody asks for a message
    assert letters(worker, node) == [(b"a", EXPIRED), (b"b", EXPIRED)]
    worker.kill()


@pytest.mark.parametrize("how", ["stopped", "killed", "flushed"])
def test_a_queues_time_to_live_counts_on_while_the_node_is_down(tmp_path: Path, how: str) -> None:
    node = single(tmp_path, message_ttl=0.5)
    worker = start(node)
    producer = node.peer(worker)
    put(worker, producer, b"a", b"b")
    holder = node.peer(worker)
    holder.credit(1, credit=1)
    worker.turns()
    (held,) = holder.receive(worker)
    if how == "flushed":
        flush(node, worker, producer)
        how = "killed"
    worker = again(node, worker, how)
    worker.until(lambda: counts(worker)["ready"] == 0)
    assert counts(worker)["unacked"] == 1  # what is held does not expire
    returned = holder.nack(1, held.sequence)
    worker.until(lambda: holder.get("processed") > returned)
    worker.until(lambda: counts(worker)["ready"] == 0)  # but when it comes back
    assert letters(worker, node) == [(b"b", EXPIRED), (b"a", EXPIRED)]
    worker.kill()


def test_without_dead_letters_what_expires_is_gone_for_good(tmp_path: Path) -> None:
    node = single(tmp_path, letters=False)
    worker = start(node)
    put(worker, node.peer(worker), b"a", expires=PAST)
    worker.until(lambda: counts(worker)["expired"] == 1)
    worker = again(node, worker, "killed")
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.kill()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_length_bytes": 30}])
def test_above_the_maximum_the_oldest_go(tmp_path: Path, durable: bool, limit: dict[str, int]) -> None:
    node = single(tmp_path, durable, **limit)
    worker = start(node)
    producer = node.peer(worker)
    assert put(worker, producer, *(b"%010d" % n for n in range(10))) == [OK] * 10
    worker.turns()
    assert counts(worker)["ready"] == 3
    assert counts(worker)["dropped"] == 7
    assert letters(worker, node) == [(b"%010d" % n, MAXLEN) for n in range(7)]
    assert [item.body for item in take(worker, node.peer(worker))] == [b"%010d" % n for n in (7, 8, 9)]
    worker.kill()


def test_what_a_consumer_takes_does_not_count_for_the_maximum(tmp_path: Path) -> None:
    for name, arguments in (("drop", {}), ("refuse", {"overflow": "reject-publish"})):
        node = single(tmp_path / name, max_length=2, **arguments)
        worker = start(node)
        producer, consumer = node.peer(worker), node.peer(worker)
        consumer.credit(1)
        worker.turns()
        assert put(worker, producer, *(b"%d" % n for n in range(50))) == [OK] * 50
        worker.turns()
        assert [item.body for item in consumer.receive(worker)] == [b"%d" % n for n in range(50)]
        worker.kill()


def test_what_somebody_waits_for_is_no_length(tmp_path: Path) -> None:
    """Though it is more than one round delivers."""
    queue = Queue(1, policy=QueueArguments.of("q", {"max_length": 2}))
    node = Node(tmp_path, queues=[queue], with_store=True, delivery_slots=4096)
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    worker.turns()
    peers = [producer, node.peer(worker), node.peer(worker)]  # a ring holds 1,024 commands
    for peer in peers:
        for n in range(1000):
            peer.publish(1, b"%d" % n)
    worker.until(lambda: all(peer.get("synced") == 1000 for peer in peers))
    found: list[bytes] = []
    while some := consumer.receive(worker):
        found += [item.body for item in some]
        worker.turns()
    assert sorted(found) == sorted(b"%d" % (n % 1000) for n in range(3000))
    assert counts(worker)["dropped"] == 0
    worker.kill()


@pytest.mark.parametrize("how", ["running", "killed", "flushed"])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_maximum_in_bytes_counts_bodies(tmp_path: Path, overflow: str, how: str) -> None:
    """As RabbitMQ's: what is said of a message (headers, properties) does not count."""
    node = single(tmp_path, letters=False, max_length_bytes=30, overflow=overflow)
    worker = start(node)
    producer = node.peer(worker)
    meta = b"\x91" + b"\xc4\xc8" + b"h" * 200
    for number in range(3):
        producer.publish(1, b"%010d" % number, meta=meta)
    worker.until(lambda: producer.get("synced") == producer.prepared)
    if how == "flushed":
        flush(node, worker, producer)
    if how != "running":
        worker.kill()
        worker = start(node)
    assert worker.engine.stats(1)[0] == 3
    at = producer.publish(1, b"3", meta=meta)
    worker.until(lambda: producer.get("processed") > at)
    worker.turns(2)
    assert producer.result(at) == (OK if overflow == "drop-head" else REFUSED)
    assert worker.engine.stats(1)[0] == 3
    worker.engine.check()
    worker.kill()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("limit", [{"max_length": 0}, {"max_length_bytes": 0}])
def test_a_queue_in_which_nothing_waits(tmp_path: Path, limit: dict[str, int], how: str) -> None:
    """A consumer that waits gets what comes; else it is a dead letter, and so is what a consumer gives back."""
    node = single(tmp_path, **limit)
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    put(worker, producer, b"nobody")
    consumer.credit(1)
    worker.turns()
    put(worker, producer, b"somebody")
    (held,) = consumer.receive(worker)
    assert held.body == b"somebody"
    after = again(node, worker, how)
    if after is not worker:
        worker = after
    consumer.credit(1, credit=0, epoch=worker.epoch)
    consumer.nack(1, held.sequence)
    worker.turns()
    assert letters(worker, node) == [(b"nobody", MAXLEN), (b"somebody", MAXLEN)]
    assert counts(worker)["ready"] == 0
    worker.kill()


def test_a_queue_of_no_length_that_refuses_takes_nothing(tmp_path: Path) -> None:
    """Also when a consumer waits, as with RabbitMQ."""
    node = single(tmp_path, max_length=0, overflow="reject-publish")
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    worker.turns()
    assert put(worker, producer, b"a") == [REFUSED]
    assert not consumer.receive(worker)
    worker.kill()


def test_a_full_queue_refuses_and_the_others_take(tmp_path: Path) -> None:
    node = single(tmp_path, max_length=2, overflow="reject-publish")
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    assert put(worker, producer, b"a", b"b", b"c") == [OK, OK, REFUSED]
    both = producer.publish([1, 2], b"d")
    worker.until(lambda: producer.get("synced") == producer.prepared)
    assert producer.result(both) == REFUSED
    assert (worker.engine.stats(1)[0], worker.engine.stats(2)[0]) == (2, 1)
    assert counts(worker)["refused"] == 2
    assert [item.body for item in take(worker, consumer)] == [b"a", b"b"]
    assert put(worker, producer, b"e") == [OK]
    worker.kill()


@pytest.mark.parametrize("told", [True, False])
def test_a_refusal_stays_one_when_the_worker_dies(tmp_path: Path, told: bool) -> None:
    """Neither is a stored command refused when it is replayed, nor a refused one stored."""
    node = single(tmp_path, max_length=2, overflow="reject-publish")
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    sent = [producer.publish(1, b"%d" % n) for n in range(4)] + [producer.publish([1, 2], b"both")]
    worker.engine.run(0, False)  # all are processed, nothing is confirmed: head stays
    assert producer.get("processed") == 5
    wanted = [OK, OK, REFUSED, REFUSED, REFUSED]
    assert [producer.result(one) for one in sent] == wanted
    producer.put("head", 0)
    if not told:
        producer.put("processed", 0)
    worker.kill()
    worker = start(node)
    worker.until(lambda: producer.get("synced") == 5)
    assert [producer.result(one) for one in sent] == wanted
    assert [item.body for item in take(worker, consumer)] == [b"0", b"1"]
    assert [item.body for item in take(worker, consumer, 2)] == [b"both"]
    worker.kill()


@pytest.mark.parametrize("how", [*HOWS, "flushed"])
def test_the_highest_priority_comes_first_in_it_the_oldest(tmp_path: Path, how: str) -> None:
    node = single(tmp_path, max_priority=5)
    worker = start(node)
    producer = node.peer(worker)
    given = [0, 3, 200, 3, 5, 0, 1]  # 200 counts as 5
    for n, priority in enumerate(given):
        put(worker, producer, b"%d" % n, priority=priority)
    if how == "flushed":
        flush(node, worker, producer)
        how = "killed"
    worker = again(node, worker, how)
    consumer = node.peer(worker)
    consumer.credit(1, credit=2)
    worker.turns()
    first = consumer.receive(worker)
    assert [(item.body, item.priority) for item in first] == [(b"2", 200), (b"4", 5)]
    consumer.nack(1, first[0].sequence)  # back to its place
    found = take(worker, consumer)
    assert [item.body for item in found] == [b"2", b"1", b"3", b"6", b"0", b"5"]
    assert found[0].redelivered
    worker.kill()


@pytest.mark.parametrize("file_bytes", [62 * 4096, FILE_BYTES], ids=["two files", "one file"])
def test_priorities_over_many_chunks(tmp_path: Path, file_bytes: int) -> None:
    """Against a model, with requeues and a kill; messages of each level lie far apart.

    Nothing is synced: what follows a drop is seen when its frame lies in the image, so a kill brings nothing back. With
    two files the last publishes wait until the second one is made.
    """
    node = single(tmp_path, max_priority=9, max_length=2500)
    node.file_bytes = file_bytes
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    rnd = random.Random(1)
    model: list[tuple[int, int]] = []
    for n in range(3000):
        priority = rnd.choice([0, 0, 0, 0, 2, 9])
        producer.publish(1, b"%d" % n, priority=priority, flags=PROTOCOL["FLAG_PERSISTENT"])
        model.append((-priority, n))
        if n % 100 == 0:
            worker.until(lambda: producer.get("processed") == producer.prepared)
    # before there is a consumer: what it holds counts for no maximum, so what comes later would not be too much
    worker.until(lambda: producer.get("processed") == producer.prepared and counts(worker)["dropped"] == 500)
    for _ in range(500):  # too many: the oldest of the lowest priority
        model.remove(max(model, key=lambda item: (item[0], -item[1])))
    consumer.credit(1, prefetch=200)
    returned: list[Delivery] = []
    worker.until(lambda: returned.extend(consumer.receive(worker)) or len(returned) >= 200)
    assert [int(item.body) for item in returned] == [n for _p, n in sorted(model)[:200]]
    nacked = consumer.nack(1, 1 << 40, multiple=True)
    worker.until(lambda: consumer.get("processed") > nacked)
    worker = again(node, worker, "killed")
    consumer = node.peer(worker)
    assert [int(item.body) for item in take(worker, consumer)] == [n for _p, n in sorted(model)[200:]]
    worker.kill()


@pytest.mark.parametrize("how", [*HOWS, "flushed"])
def test_a_delayed_message_waits_for_its_time(tmp_path: Path, how: str) -> None:
    node = single(tmp_path)
    worker = start(node)
    producer = node.peer(worker)
    soon = now_ms() + int(1200 * patience())  # the messages are put, and another worker started, before that
    put(worker, producer, b"late", due=soon + 400)
    put(worker, producer, b"soon", due=soon)
    put(worker, producer, b"now", due=PAST)
    if how == "flushed":
        flush(node, worker, producer)
        how = "killed"
    worker = again(node, worker, how)
    consumer = node.peer(worker)
    assert [item.body for item in take(worker, consumer)] == [b"now"]
    worker.until(lambda: counts(worker)["delayed"] == 0)
    assert now_ms() >= soon + 400
    assert [item.body for item in take(worker, consumer)] == [b"soon", b"late"]
    worker.kill()


def held(worker: Incarnation, consumer: Peer, *bodies: bytes) -> dict[bytes, Delivery]:
    """The first messages of queue 1 in a consumer's hands."""
    consumer.credit(1, len(bodies))
    worker.turns()
    found = {item.body: item for item in consumer.receive(worker)}
    assert sorted(found) == sorted(bodies)
    return found


@pytest.mark.parametrize("how", [*HOWS, "flushed", "in a segment before", "in a segment, its frame's file gone"])
def test_a_returned_message_waits_for_its_time_at_its_place(tmp_path: Path, how: str) -> None:
    node = single(tmp_path)
    worker = start(node)
    producer = node.peer(worker)
    put(worker, producer, b"first", b"second", b"third")
    if how.startswith("in a segment"):
        flush(node, worker, producer)
    consumer = node.peer(worker)
    found = held(worker, consumer, b"first", b"second")
    consumer.nack(1, found[b"first"].sequence, due=FUTURE)
    soon = now_ms() + int(1500 * patience())
    done = consumer.nack(1, found[b"second"].sequence, due=soon)
    worker.until(lambda: consumer.get("synced") > done)
    assert consumer.held_slots() == 0
    if how == "flushed" or how.endswith("gone"):
        flush(node, worker, producer)
    worker = again(node, worker, how if how in HOWS else "killed")
    now = counts(worker)
    assert (now["delayed"], now["ready"]) == (2, 1) if now_ms() < soon else now["delayed"] >= 1
    worker.until(lambda: counts(worker)["delayed"] == 1)
    assert now_ms() >= soon
    late = take(worker, node.peer(worker))
    assert [item.body for item in late] == [b"second", b"third"]  # in their old order
    assert late[0].redelivered
    if how in ("running", "stopped"):  # a kill forgets how often
        assert [item.count for item in late] == [1, 0]
    assert counts(worker)["delayed"] == 1
    worker = again(node, worker, "killed")  # what was acked does not come back, what waits still waits
    assert (counts(worker)["delayed"], counts(worker)["ready"]) == (1, 0)
    worker.kill()


def test_a_message_returned_twice_waits_for_the_later_time(tmp_path: Path) -> None:
    node = single(tmp_path)
    worker = start(node)
    put(worker, node.peer(worker), b"again")
    consumer = node.peer(worker)
    consumer.nack(1, held(worker, consumer, b"again")[b"again"].sequence, due=now_ms() + 300)
    worker.until(lambda: counts(worker)["delayed"] == 1)
    worker.until(lambda: counts(worker)["ready"] == 1)
    consumer.credit(1, 2)
    worker.until(lambda: counts(worker)["unacked"] == 1)
    (item,) = consumer.receive(worker)
    done = consumer.nack(1, item.sequence, due=FUTURE)
    worker.until(lambda: consumer.get("synced") > done)
    worker = again(node, worker, "killed")
    worker.turns(3)
    assert (counts(worker)["delayed"], counts(worker)["ready"]) == (1, 0)
    worker.kill()


@pytest.mark.parametrize("due", [PAST, 0])
def test_a_return_whose_time_has_come_is_a_plain_one(tmp_path: Path, due: int) -> None:
    node = single(tmp_path)
    worker = start(node)
    put(worker, node.peer(worker), b"again")
    consumer = node.peer(worker)
    consumer.nack(1, held(worker, consumer, b"again")[b"again"].sequence, due=due)
    worker.turns()
    assert (counts(worker)["delayed"], counts(worker)["ready"]) == (0, 1)
    worker.kill()


def test_a_return_until_no_time_closes_the_link(tmp_path: Path) -> None:
    node = single(tmp_path)
    worker = start(node)
    put(worker, node.peer(worker), b"again")
    consumer = node.peer(worker)
    consumer.nack(1, held(worker, consumer, b"again")[b"again"].sequence, due=1 << 48)
    worker.turns()
    assert consumer.get("evicted")
    worker.kill()


@pytest.mark.parametrize("durable", [True, False])
def test_a_delayed_return_counts_for_the_limit(tmp_path: Path, durable: bool) -> None:
    node = single(tmp_path, durable, delivery_limit=1)
    worker = start(node)
    put(worker, node.peer(worker), b"poison", flags=PROTOCOL["FLAG_PERSISTENT"] if durable else 0)
    consumer = node.peer(worker)
    consumer.credit(1, 2)
    items: list[Delivery] = []
    for delivery in range(2):
        worker.until(lambda: items.extend(consumer.receive(worker)) or len(items) > delivery)  # noqa: B023  # at once
        consumer.nack(1, items[-1].sequence, due=now_ms() + 50)
    worker.until(lambda: counts(worker)["unacked"] == 0)
    assert letters(worker, node) == [(b"poison", DELIVERY_LIMIT)]
    assert (counts(worker)["delayed"], counts(worker)["ready"]) == (0, 0)
    worker.kill()


def test_a_purge_leaves_what_is_delayed(tmp_path: Path) -> None:
    node = single(tmp_path)
    worker = start(node)
    producer = node.peer(worker)
    put(worker, producer, b"late", due=FUTURE)
    put(worker, producer, b"ready")
    assert producer.control(worker, op="purge", queue=1) == {"count": 1}
    stats = producer.control(worker, op="stats", queue=1)
    assert (stats["ready"], stats["delayed"]) == (0, 1)
    worker = again(node, worker, "killed")
    assert (counts(worker)["ready"], counts(worker)["delayed"]) == (0, 1)
    worker.kill()


@pytest.mark.parametrize("how", HOWS)
def test_a_message_that_comes_back_too_often_dies(tmp_path: Path, how: str) -> None:
    node = single(tmp_path, delivery_limit=2)
    worker = start(node)
    put(worker, node.peer(worker), b"poison")
    consumer = node.peer(worker)
    consumer.credit(1)
    for delivery in range(3):
        worker.turns()
        (found,) = consumer.receive(worker)
        assert (found.count, found.redelivered) == (delivery, delivery > 0)
        if delivery == 1:
            held = again(node, worker, how)
            if held is not worker:
                worker = held
                consumer.nack(1, found.sequence)  # who lives holds it still, and its count with it
                consumer.credit(1, epoch=worker.epoch)
                continue
        consumer.nack(1, found.sequence)
    worker.turns()
    assert letters(worker, node) == [(b"poison", DELIVERY_LIMIT)]
    worker.kill()


def test_a_message_dies_at_its_first_return(tmp_path: Path) -> None:
    node = single(tmp_path, delivery_limit=0)
    worker = start(node)
    put(worker, node.peer(worker), b"once")
    consumer = node.peer(worker)
    consumer.credit(1)
    worker.turns()
    (found,) = consumer.receive(worker)
    consumer.nack(1, found.sequence)
    worker.turns()
    assert letters(worker, node) == [(b"once", DELIVERY_LIMIT)]
    worker.kill()


def test_of_single_active_consumers_the_oldest_gets_all(tmp_path: Path) -> None:
    node = single(tmp_path, single_active_consumer=True)
    worker = start(node)
    producer, first, second = (node.peer(worker) for _ in range(3))
    first.credit(1)
    worker.turns()
    second.credit(1)
    worker.turns()
    put(worker, producer, b"a", b"b")
    worker.turns()
    assert [item.body for item in first.receive(worker)] == [b"a", b"b"]
    assert second.receive(worker) == []
    first.command("OP_CANCEL", queue=1, flags=PROTOCOL["FLAG_REQUEUE"])
    worker.turns()
    assert [item.body for item in second.receive(worker)] == [b"a", b"b"]
    first.credit(1)
    worker.turns()
    put(worker, producer, b"c")
    worker.turns()
    assert first.receive(worker) == []
    assert [item.body for item in second.receive(worker)] == [b"c"]
    worker.kill()


@pytest.mark.parametrize("how", ["running", "killed", "stopped", "flushed"])
def test_a_key_seen_within_the_window_is_dropped(tmp_path: Path, how: str) -> None:
    node = single(tmp_path, deduplication_window=60)
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    assert put(worker, producer, b"a", key=KEY) == [OK]
    assert len(take(worker, consumer)) == 1  # gone or not
    if how == "flushed":
        flush(node, worker, producer)
        how = "killed"
    worker = again(node, worker, how)
    assert put(worker, producer, b"again", key=KEY) == [DUPLICATE]
    assert put(worker, producer, b"other", key=KEY[::-1][:15] + b"!") == [OK]
    assert put(worker, producer, b"without") == [OK]
    both = producer.publish([1, 2], b"both", key=KEY)
    worker.until(lambda: producer.get("synced") == producer.prepared)
    assert producer.result(both) == OK  # queue 2 has no window
    assert counts(worker)["duplicates"] == 2
    assert [item.body for item in take(worker, consumer)] == [b"other", b"without"]
    worker.kill()


def test_after_the_window_a_key_is_new(tmp_path: Path) -> None:
    node = single(tmp_path, deduplication_window=0.2)
    worker = start(node)
    producer = node.peer(worker)
    assert put(worker, producer, b"a", key=KEY) == [OK]
    wait_until_ms(now_ms() + 200)
    assert put(worker, producer, b"b", key=KEY) == [OK]
    worker.kill()


@pytest.mark.parametrize("how", [*HOWS, "flushed"])
@pytest.mark.parametrize("size", [10, 5000])
def test_what_is_rejected_goes_to_the_dead_letters(tmp_path: Path, how: str, size: int) -> None:
    node = single(tmp_path)
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    bodies = [b"%d" % n * size for n in range(4)]
    put(worker, producer, *bodies, priority=3)
    if how == "flushed":
        flush(node, worker, producer)
        how = "killed"
    found = take(worker, consumer, ack=False)
    for number in (1, 2):
        rejected = consumer.nack(1, found[number].sequence, requeue=False)
    consumer.ack(1, found[0].sequence)
    worker.until(lambda: consumer.get("processed") > rejected)
    worker = again(node, worker, how)
    letters = take(worker, node.peer(worker), DEAD, ack=False)
    assert [(item.reason, item.priority, item.count) for item in letters] == [(REJECTED, 3, 0)] * 2
    if size < 4096:
        assert [item.body for item in letters] == bodies[1:3]
    else:
        assert len(node.store.ids) == 3
    assert counts(worker)["unacked"] == 1
    worker.kill()


def test_a_rejection_waits_for_the_journal_and_loses_nothing(tmp_path: Path) -> None:
    """While there is no room for the MOVE frame nothing is answered; a kill then leaves the message with its holder."""
    node = single(tmp_path)
    node.file_bytes = 64 * 1024
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    put(worker, producer, *(b"%d" % n for n in range(3)))
    found = take(worker, consumer, ack=False)
    worker.engine.pending(_core.QUEUE_EVENT_NEED_FILE, True)  # no next file: the journal fills up
    last = 0
    while producer.get("processed") == producer.get("tail"):
        last = producer.publish(2, b"." * 3000, flags=PROTOCOL["FLAG_PERSISTENT"])
        worker.engine.run(0, False)
    small = producer.publish(2, b".", flags=PROTOCOL["FLAG_PERSISTENT"])
    assert small > last
    before = consumer.get("processed")
    consumer.nack(1, 1 << 40, requeue=False, multiple=True)
    for _ in range(20):
        worker.engine.run(0, False)
    waits = worker.engine.counters()["stalled"]
    if waits:
        assert consumer.get("processed") == before
        assert consumer.held_slots() == 3
    worker.kill()
    worker = start(node)
    worker.turns()
    worker.until(lambda: consumer.get("processed") > before)
    assert [body for body, _reason in letters(worker, node)] == [item.body for item in found]
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.kill()


@pytest.mark.parametrize("seed", range(4))
def test_random_work_with_kills_ends_every_message_once(tmp_path: Path, seed: int) -> None:
    """Acked in its queue or among the dead letters, never both, never twice; over flushes into segments."""
    rng = random.Random(seed)
    ttl = rng.choice([None, 0.5])
    node = single(tmp_path, max_priority=3, delivery_limit=2, max_length=120, message_ttl=ttl)
    worker = start(node)
    producer, consumers = node.peer(worker), {1: node.peer(worker), DEAD: node.peer(worker)}
    published = 0
    ended: dict[int, int] = {}
    held: dict[int, dict[int, int]] = {1: {}, DEAD: {}}  # by queue: sequence → number
    reasons: set[int] = set()

    def publish_some() -> None:
        nonlocal published
        for _ in range(rng.randrange(1, 120)):
            if producer.get("tail") - producer.get("head") > 900:
                return
            producer.publish(
                1,
                b"%08d" % published + b"." * rng.choice([10, 500, 3000]),
                flags=PROTOCOL["FLAG_PERSISTENT"] | rng.choice([0, PROTOCOL["FLAG_SYNCED"]]),
                priority=rng.randrange(5),
                due=rng.choice([0, 0, 0, now_ms() + 100]),
            )
            published += 1

    def take_some() -> None:
        for queue, consumer in consumers.items():
            for item in consumer.receive(worker):
                number = int(item.body[:8])
                assert number not in ended, f"message {number} ended before in queue {ended[number]}"
                assert (item.reason != 0) == (queue == DEAD)
                reasons.add(item.reason)
                held[queue][item.sequence] = number

    def settle(queue: int, sequence: int, how: float) -> None:
        consumer = consumers[queue]
        if consumer.get("tail") - consumer.get("head") > 900:
            return
        number = held[queue].pop(sequence)
        if how < 0.5:
            consumer.ack(queue, sequence)
            ended[number] = queue
        else:
            due = now_ms() + 60 if how < 0.56 else 0
            consumer.nack(queue, sequence, requeue=how < 0.9 or queue == DEAD, due=due)

    def settle_some() -> None:
        for queue in held:
            for sequence in rng.sample(sorted(held[queue]), k=len(held[queue]) // 2):
                settle(queue, sequence, rng.random())

    def announce() -> None:
        for queue, consumer in consumers.items():
            consumer.credit(queue, prefetch=100, epoch=worker.epoch)

    def serve() -> None:
        worker.turns()
        if rng.random() < 0.5:  # turns end while the next journal file is made, which may take long
            worker.until(lambda: producer.get("processed") == producer.get("tail"))

    steps: list[Callable[[], None]] = [publish_some, take_some, settle_some, serve]
    announce()
    for step in range(300):
        rng.choice(steps)()
        if step % 25 == 24:
            worker.kill()
            worker = node.worker()
            announce()
    while len(ended) < published:
        worker.service.turn(20_000_000)
        take_some()
        for queue in held:
            for sequence in list(held[queue]):
                settle(queue, sequence, 0)
    worker.turns()
    assert worker.engine.counters()["messages"] == 0
    if ttl is None:  # else it is a matter of time whether they expire first
        assert {0, REJECTED, MAXLEN, DELIVERY_LIMIT} <= reasons
    worker.kill()
