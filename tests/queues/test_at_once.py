"""A message that ends at once (`ttl=0`, or a queue's `message_ttl=0`): a consumer that waits gets it; else it has
expired when its command is done (rule Q19). It never counts as ready, and no get receives it.

Method: a worker's engine and clients played by hand (support.queue_probe).
"""

from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.arguments import QueueArguments
from warren.engine.kernel.protocol import PROTOCOL

from support.queue_probe import FILE_BYTES, OK, Incarnation, Node, Peer, Queue

pytestmark = pytest.mark.contract

DEAD = 9
AT_ONCE = PROTOCOL["EXPIRES_AT_ONCE"]
EXPIRED = PROTOCOL["REASON_EXPIRED"]
WHOSE = ["queue", "message"]


def made(path: Path, whose: str, durable: bool = True, **arguments: Any) -> tuple[Node, Incarnation, Peer]:
    """A queue with dead letters, its worker and a publisher."""
    if whose == "queue":
        arguments["message_ttl"] = 0
    policy = QueueArguments.of("q", {"dead_letter_exchange": "x", **arguments})
    node = Node(path, queues=[Queue(1, durable, policy=policy), Queue(DEAD, durable, dead_letters_of=1)])
    worker = node.worker()
    return node, worker, node.peer(worker)


def put(worker: Incarnation, producer: Peer, whose: str, body: bytes, **options: Any) -> None:
    """Publish, and wait for the answer only."""
    at = producer.publish(1, body, expires=AT_ONCE if whose == "message" else 0, **options)
    worker.until(lambda: producer.get("processed") > at)
    assert producer.result(at) == OK


def letters(node: Node, worker: Incarnation) -> list[tuple[bytes, int]]:
    """The dead letters, with their reasons."""
    reader = node.peer(worker)
    reader.credit(DEAD)
    worker.turns(3)
    return [(item.body, item.reason) for item in reader.receive(worker)]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize("whose", WHOSE)
def test_nobody_waits(tmp_path: Path, whose: str, durable: bool) -> None:
    """It is gone before its publish is confirmed: a get after that finds an empty queue."""
    node, worker, producer = made(tmp_path, whose, durable)
    getter = node.peer(worker)
    for number in range(3):
        put(worker, producer, whose, b"%d" % number, flags=5 if durable else 0)
        assert worker.engine.stats(1)[:2] == (0, 0)
        assert producer.control(worker, op="waiting", queue=1) == {"count": 0}
        getter.credit(1, credit=10)
        worker.turns()
        assert getter.receive(worker) == []
        getter.command("OP_CANCEL", queue=1)
    assert letters(node, worker) == [(b"%d" % number, EXPIRED) for number in range(3)]
    worker.engine.check()
    worker.kill()


@pytest.mark.parametrize("whose", WHOSE)
def test_a_get_that_waits_gets_nothing(tmp_path: Path, whose: str) -> None:
    """Of two that may have it, the one that consumes gets it."""
    node, worker, producer = made(tmp_path, whose)
    getter, consumer = node.peer(worker), node.peer(worker)
    getter.credit(1, credit=10)
    worker.turns()
    put(worker, producer, whose, b"0")
    consumer.credit(1, credit=0, prefetch=3)
    worker.turns()
    for body in (b"1", b"2", b"3", b"4"):
        put(worker, producer, whose, body)
        worker.turns()
    assert getter.receive(worker) == []
    found = consumer.receive(worker)
    assert [(item.body, item.redelivered) for item in found] == [(b"1", False), (b"2", False), (b"3", False)]
    assert letters(node, worker) == [(b"0", EXPIRED), (b"4", EXPIRED)]
    worker.kill()


@pytest.mark.parametrize("how", ["in the ring", "one by one"])
@pytest.mark.parametrize("whose", WHOSE)
def test_many_at_once(tmp_path: Path, whose: str, how: str) -> None:
    """More than a turn delivers."""
    node, worker, producer = made(tmp_path, whose)
    consumer = node.peer(worker)
    consumer.credit(1, credit=0, prefetch=100)
    worker.turns()
    for number in range(250):
        producer.publish(1, b"%d" % number, expires=AT_ONCE if whose == "message" else 0)
        if how == "one by one":
            worker.turns()
    worker.until(lambda: producer.get("processed") == producer.prepared)
    worker.turns()
    assert [item.body for item in consumer.receive(worker)] == [b"%d" % number for number in range(100)]
    assert worker.engine.stats(1)[:2] == (0, 100)
    assert letters(node, worker) == [(b"%d" % number, EXPIRED) for number in range(100, 250)]
    worker.engine.check()
    worker.kill()


def test_behind_others(tmp_path: Path) -> None:
    """Nobody waits, so the place in the queue does not matter."""
    node, worker, producer = made(tmp_path, "message")
    for body in (b"a", b"b"):
        producer.publish(1, body)
        put(worker, producer, "message", b"now " + body)
        assert worker.engine.stats(1)[0] == 1 + (body == b"b")
    consumer = node.peer(worker)
    consumer.credit(1, credit=0, prefetch=3)
    worker.turns()
    put(worker, producer, "message", b"now")
    worker.turns()
    put(worker, producer, "message", b"too much")
    worker.turns()
    assert [item.body for item in consumer.receive(worker)] == [b"a", b"b", b"now"]
    assert [body for body, _reason in letters(node, worker)] == [b"now a", b"now b", b"too much"]
    worker.kill()


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("taken", [False, True], ids=["expired", "held"])
def test_over_a_kill(tmp_path: Path, whose: str, taken: bool) -> None:
    """A consumer keeps what it has; what it returns has expired. Expired messages do not come back."""
    node, worker, producer = made(tmp_path, whose)
    consumer = node.peer(worker)
    if taken:
        consumer.credit(1, credit=0, prefetch=1)
        worker.turns()
    put(worker, producer, whose, b"0")
    worker.until(lambda: producer.get("synced") == producer.prepared)
    worker.turns()
    held = consumer.receive(worker)
    assert len(held) == taken
    worker.kill()
    worker = node.worker()
    worker.turns(2)
    assert worker.engine.stats(1)[:2] == (0, int(taken))
    if taken:
        consumer.nack(1, held[0].sequence)
        worker.turns(2)
        assert worker.engine.stats(1)[:2] == (0, 0)
    assert letters(node, worker) == [(b"0", EXPIRED)]
    worker.engine.check()
    worker.kill()


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_beside_a_maximum(tmp_path: Path, overflow: str) -> None:
    """It takes no place."""
    node, worker, producer = made(tmp_path, "message", max_length=2, overflow=overflow)
    put(worker, producer, "message", b"now")
    for body in (b"a", b"b"):
        put(worker, producer, "plain", body)
    assert worker.engine.stats(1)[:2] == (2, 0)
    assert letters(node, worker) == [(b"now", EXPIRED)]
    worker.kill()


def test_it_lasts_over_a_full_journal(tmp_path: Path) -> None:
    """Frames of deaths wait for the next journal file; nothing is lost or doubled."""
    _node, worker, producer = made(tmp_path, "queue")
    body = b"." * 3000
    count = 2 * FILE_BYTES // len(body)
    for _ in range(count):
        producer.publish(1, body)
        worker.until(lambda: producer.get("processed") == producer.prepared)
    worker.until(lambda: worker.engine.stats(DEAD)[0] == count)
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.engine.check()
    worker.kill()
