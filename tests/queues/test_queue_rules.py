"""What a worker owes to store, disk and clients (rules Q1, Q2, Q5, Q6, Q7, Q8).

Goal: a body at or above the embed limit is in the store before its publisher hears of it; one reference for all queues;
the last ack takes it away; while store or disk refuse, who does not need them is served; a failed disk confirms
nothing. Method: a worker's engine against a store played by hand (support.queue_probe.FakeStore), with faults between
its steps.
"""

import errno
import os
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.errors import DiskFull
from warren.engine.kernel import segment
from warren.engine.kernel.protocol import PROTOCOL, QUEUE_STATS
from warren.engine.queues.service import TURN_NS
from warren.ipc.layout import CONSTANTS
from warren.ipc.region import RegionError

from support.queue_probe import ERROR, OK, Delivery, Incarnation, Node, Queue

pytestmark = pytest.mark.contract

SYNCED, PERSISTENT, MULTIPLE = PROTOCOL["FLAG_SYNCED"], PROTOCOL["FLAG_PERSISTENT"], PROTOCOL["FLAG_MULTIPLE"]
BIG = b"B" * 4096
SMALL = b"s" * 4095


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(3, durable=False)], with_store=True)


def start(node: Node) -> Incarnation:
    """A worker whose store is up, after their first agreement."""
    node.store.up()
    worker = node.worker()
    for _ in range(4):
        worker.turns()
    return worker


def test_the_embed_limit_decides_where_a_body_lies(node: Node) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    small, big = producer.new_id(), producer.new_id()
    producer.publish(1, SMALL, id=small)
    producer.publish(1, BIG, id=big)
    worker.until(lambda: producer.get("synced") == 2)
    worker.turns()
    assert [item.location for item in consumer.receive(worker)] == [
        PROTOCOL["LOCATION_JOURNAL"],
        PROTOCOL["LOCATION_STORE"],
    ]
    assert node.store.ids == {big}
    worker.kill()


def test_metadata_counts_for_the_limit(node: Node) -> None:
    worker = start(node)
    producer = node.peer(worker)
    producer.publish(1, SMALL, meta=b"\x91", id=b"i" * 16)
    worker.until(lambda: producer.get("synced") == 1)
    assert node.store.ids == {b"i" * 16}
    worker.kill()


def test_a_stored_message_is_confirmed_only_after_the_store_has_it(node: Node) -> None:
    worker = start(node)
    producer, other = node.peer(worker), node.peer(worker)
    node.store.confirm = False
    producer.publish(1, SMALL)
    producer.publish(1, BIG)
    producer.publish(1, SMALL)
    other.publish(1, SMALL)
    worker.until(lambda: other.get("synced") == 1)  # nobody else waits for it
    worker.until(lambda: producer.get("synced") == 1)
    for _ in range(5):
        worker.turns()
    assert (producer.get("written"), producer.get("synced"), producer.get("head")) == (1, 1, 1)
    node.store.confirm = True
    worker.until(lambda: producer.get("head") == 3)
    assert producer.get("synced") == 3
    worker.kill()


def test_one_reference_for_all_queues_and_the_last_ack_removes(node: Node) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    producer.publish([1, 2], BIG, id=b"x" * 16)
    consumer.credit(1)
    consumer.credit(2)
    worker.until(lambda: producer.get("synced") == 1)
    worker.turns()
    assert node.store.log.count(("write", b"x" * 16)) == 1
    consumer.ack(1, 0)
    worker.turns()
    assert b"x" * 16 in node.store.ids
    consumer.ack(2, 0)
    worker.turns(2)
    assert node.store.ids == set()
    worker.kill()


def test_a_message_acked_before_the_store_took_it_never_reaches_it(node: Node) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    region, node.store.region = node.store.region, None  # the store is busy with something else
    producer.publish(1, BIG, id=b"x" * 16)
    worker.turns()
    assert len(consumer.receive(worker)) == 1
    consumer.ack(1, 0)
    worker.turns()
    node.store.region = region
    worker.until(lambda: producer.get("head") == 1)
    assert ("eliminated", b"x" * 16) in node.store.log
    assert ("write", b"x" * 16) not in node.store.log
    worker.kill()


def test_while_the_store_is_down_only_stored_bodies_wait(node: Node) -> None:
    worker = start(node)
    small, big = node.peer(worker), node.peer(worker)
    node.store.down()
    big.publish(1, BIG)
    for _ in range(20):
        small.publish(1, SMALL)
    worker.until(lambda: small.get("synced") == 20)
    assert big.get("processed") == 0
    node.store.up(epoch=2)
    worker.until(lambda: big.get("synced") == 1)
    assert worker.engine.stats(1)[0] == 21
    worker.kill()


def test_resync_drops_what_the_store_has_lost_and_counts_it(node: Node) -> None:
    worker = start(node)
    producer = node.peer(worker)
    kept, lost = producer.new_id(), producer.new_id()
    producer.publish(1, BIG, id=kept)
    producer.publish(1, BIG, id=lost)
    worker.until(lambda: producer.get("synced") == 2)
    node.store.ids.discard(lost)
    node.store.up(epoch=2)  # it was restarted, without that one
    worker.until(lambda: worker.engine.counters()["lost"] == 1)
    assert worker.engine.stats(1)[0] == 1
    worker.until(lambda: any("do" in line and "not have" in line for line in node.said))
    worker.kill()
    worker = node.worker()
    worker.turns(3)
    assert worker.engine.stats(1)[0] == 1  # that it was dropped is in the journal
    worker.kill()


def test_a_held_message_whose_body_is_lost_does_not_come_back(node: Node) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    producer.publish(1, BIG, id=b"x" * 16)
    consumer.credit(1)
    worker.until(lambda: consumer.receive(worker))
    node.store.ids.clear()
    node.store.up(epoch=2)
    worker.until(lambda: ("resync", b"x" * 16) in node.store.log)
    worker.turns(3)
    assert worker.engine.stats(1)[:2] == (0, 1)
    consumer.nack(1, 0)
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 0)
    worker.kill()


def test_a_worker_killed_between_journal_and_store_sends_the_body_again(node: Node) -> None:
    worker = start(node)
    producer = node.peer(worker)
    node.store.region = None  # whatever the dead worker sent is gone with the store
    producer.publish(1, BIG, id=b"x" * 16)
    worker.until(lambda: worker.engine.all_durable() and producer.get("processed") == 1)
    assert producer.get("head") == 0
    worker.kill()
    node.store.up(epoch=2)
    worker = node.worker()
    worker.until(lambda: producer.get("head") == 1)
    worker.turns(3)
    assert worker.engine.stats(1)[0] == 1
    assert node.store.log[-2:] == [("write", b"x" * 16), ("resync", b"x" * 16)]
    worker.kill()


@pytest.mark.parametrize("before", [0, 10])
def test_what_was_acked_behind_a_body_that_waits_for_the_store_does_not_come_back(node: Node, before: int) -> None:
    """While a body sent again holds `head` back, the frames of the commands behind it say that they were executed."""
    node.journal_files_max = 1
    worker = start(node)
    producer, other, consumer = node.peer(worker), node.peer(worker), node.peer(worker)
    node.store.region = None
    producer.publish(2, BIG)
    for _ in range(before):
        producer.publish(1, SMALL)
    worker.until(lambda: worker.engine.all_durable() and producer.get("processed") == 1 + before)
    worker.kill()
    worker = node.worker()
    node.store.region = None  # it is up, and does not get to it
    consumer.credit(1)
    for _ in range(10 - before):
        producer.publish(1, SMALL)
    received: list[Delivery] = []

    def acked() -> bool:
        for item in consumer.receive(worker):
            received.append(item)
            consumer.ack(1, item.sequence)
        return worker.engine.stats(1)[:2] == (0, 0)

    def rolled() -> bool:
        while other.get("tail") - other.get("head") < 8:
            other.publish(1, SMALL)
        acked()
        return worker.engine.position()[0] > written_in + 4

    worker.until(lambda: producer.get("processed") == 11 and acked())
    assert (len(received), producer.get("head")) == (10, 0)
    written_in = worker.engine.position()[0]
    worker.until(rolled)
    worker.until(lambda: acked() and consumer.get("head") == consumer.get("tail"))
    worker.turns(3)
    received.clear()
    worker.kill()
    worker = node.worker()
    worker.turns(3)
    assert acked()
    assert not received
    worker.until(lambda: producer.get("head") == 11)
    worker.kill()


def test_a_restarted_worker_names_all_its_ids(node: Node) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    ids = [producer.new_id() for _ in range(30)]
    for id in ids:
        producer.publish(1, BIG, id=id)
    worker.until(lambda: producer.get("synced") == 30)
    consumer.credit(1, credit=10)
    worker.turns()
    consumer.ack(1, 9, MULTIPLE)
    worker.until(lambda: len(node.store.ids) == 20)
    worker.kill()
    node.store.log.clear()
    worker = node.worker()
    worker.turns(4)
    assert {id for what, id in node.store.log if what == "resync"} == set(ids[10:])
    worker.kill()


def test_a_full_disk_makes_publishers_wait_and_loses_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start(node)
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(3)
    full = True
    real = segment.create

    def create(*args: object, **kwargs: object) -> segment.Created:
        if full and "journal" in str(args[0]):
            raise DiskFull("no space left on device: free some space and try again")
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(segment, "create", create)
    for _ in range(400):
        producer.publish(1, b"x" * 3000)
    worker.until(lambda: any("no new journal file" in line for line in node.said))
    worker.turns(3)
    assert producer.get("processed") < 400
    other = node.peer(worker)
    other.publish(3, b"transient")
    worker.until(lambda: consumer.receive(worker))  # who needs no journal is served
    full = False
    worker.until(lambda: producer.get("synced") == 400)
    assert worker.engine.stats(1)[0] == 400
    worker.kill()


def test_a_disk_that_fails_confirms_nothing_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    worker = node.worker()
    producer = node.peer(worker)
    producer.publish(1, b"before")
    worker.until(lambda: producer.get("synced") == 1)
    # the journal's descriptor becomes one that refuses to be written
    target = str(node.folder.journal_file(0))
    for entry in os.listdir("/proc/self/fd"):
        fd = int(entry)
        try:
            if os.readlink(f"/proc/self/fd/{fd}") == target:
                refusing = os.open(target, os.O_RDONLY)
                os.dup2(refusing, fd)
                os.close(refusing)
        except FileNotFoundError:
            continue
    accepted = producer.publish(1, b"after")
    worker.until(lambda: node.superblock.server_get(2, "error") == errno.EBADF)
    assert producer.result(accepted) == OK
    refused = producer.publish(1, b"later")
    worker.until(lambda: producer.get("processed") > refused)
    assert producer.result(refused) == ERROR
    assert (producer.get("written"), producer.get("synced"), producer.get("head")) == (1, 1, 1)
    assert node.superblock.server_get(2, "alarms") & CONSTANTS["ALARM_SYNC_FAILED"]
    assert any("journal failed" in line for line in node.said)
    worker.kill()


def test_statistics_rows_follow_the_queues(node: Node) -> None:
    worker = start(node)
    producer = node.peer(worker)
    for _ in range(5):
        producer.publish(2, b"x")

    def row() -> dict[str, int] | None:
        for at in range(0, worker.stats.size, QUEUE_STATS.size):
            if QUEUE_STATS.unpack(worker.stats.buffer, "queue", at) == 2:
                names = ("ready", "unacked", "published", "base", "next")
                return {name: QUEUE_STATS.unpack(worker.stats.buffer, name, at) for name in names}
        return None

    worker.until(lambda: (row() or {}).get("ready") == 5)
    assert row() == {"ready": 5, "unacked": 0, "published": 5, "base": 0, "next": 5}
    worker.kill()


def test_memory_beside_bodies_is_at_most_64_bytes_a_message_and_is_given_back(tmp_path: Path) -> None:
    node = Node(tmp_path, queues=[Queue(3, durable=False)], file_bytes=4 << 20)
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    n = 20 * 1024
    for _round in range(2):  # what the first filling took serves the second one
        for i in range(n):
            producer.publish(3, b"", flags=0)
            if i % 512 == 511:
                worker.until(lambda: producer.get("processed") == producer.prepared)
        assert worker.engine.stats(3)[0] == n
        assert 48 <= worker.engine.counters()["row_bytes"] / n <= 64
        assert consumer.control(worker, op="purge", queue=3) == {"count": n}
        assert worker.engine.counters()["messages"] == 0
    worker.kill()


def test_the_clock_runs_under_load(node: Node) -> None:
    """A store that could not be opened is tried again though requests come faster than the timer."""
    worker = start(node)
    peer, waiting = node.peer(worker), node.peer(worker)
    tried: list[int] = []
    real = worker.service.options.open_store

    def open_store(store: int) -> None:
        tried.append(store)
        if len(tried) < 3:
            raise RegionError(errno.ENOENT, "it is just starting")
        real(store)

    worker.service.options.open_store = open_store
    node.store.up(epoch=2)
    waiting.publish(1, BIG)
    while waiting.get("synced") < 1:
        peer.send_control(op="ranges", queue=2)  # there is always one more request to answer
        assert not worker.service.turn(TURN_NS) & _core.QUEUE_EVENT_TIMER
        node.store.step()
    assert len(tried) >= 3
    worker.kill()
