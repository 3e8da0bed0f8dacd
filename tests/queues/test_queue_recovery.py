"""Queues across deaths: what a kill, a torn journal, a clean stop and a flush into segments leave, and what the next
start makes of it.

Goal: every confirmed message is there once and in order; acked ones stay away; who held what still holds it; replayed
commands have no second effect. Method: incarnations of one worker over one directory and one set of client regions; a
kill drops the engine and keeps images, files and regions as they are (support.queue_probe). `salvage=False` plays the
loss of the images.
"""

import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import StoreError, SyncFailed
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_register import FileRegister
from warren.engine.kernel.formats import FILE_HEADER_BYTES, LISTED_JOURNAL, TERM
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.engine.queues import journal_images
from warren.engine.queues.terms import read_terms
from warren.ipc.layout import CONSTANTS, SUPERBLOCK

from support.queue_probe import NO, OK, SERVER_INDEX, Incarnation, Node, Peer, Queue
from support.waiting import wait_until

MULTIPLE, SYNCED = PROTOCOL["FLAG_MULTIPLE"], PROTOCOL["FLAG_SYNCED"]
PERSISTENT = PROTOCOL["FLAG_PERSISTENT"]


class Killed(Exception):
    """The process died at a named point."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(3, durable=False)])


def publish(worker: Incarnation, producer: Peer, queue: int, n: int, size: int = 20, first: int = 0) -> None:
    """Publish n numbered bodies and wait until they are synced."""
    for i in range(first, first + n):
        producer.publish(queue, b"%08d" % i + b"." * (size - 8))
        if producer.prepared % 64 == 0:
            worker.until(lambda: producer.get("head") + 900 > producer.prepared)
    worker.until(lambda: producer.get("synced") == producer.prepared)


def drain(worker: Incarnation, consumer: Peer, queue: int) -> list[tuple[int, bool]]:
    """Take and ack everything ready; (number in the body, redelivered) in order of arrival."""
    consumer.credit(queue)
    seen: list[tuple[int, bool]] = []
    worker.turns()
    while found := consumer.receive(worker):
        seen += [(int(item.body[:8]), item.redelivered) for item in found]
        consumer.ack_many(queue, [item.sequence for item in found])
        worker.turns()
    return seen


def test_an_unclean_start_marks_survivors_and_forgets_what_was_acked(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 10)
    consumer.credit(1, credit=4)
    worker.turns()
    consumer.ack(1, 1, MULTIPLE)
    worker.until(lambda: consumer.get("head") == consumer.prepared)
    worker.kill()
    node.peers.clear()  # everybody is dead
    worker = node.worker()
    assert drain(worker, node.peer(worker), 1) == [(i, True) for i in range(2, 10)]
    worker.kill()


def test_held_messages_stay_held_by_who_lives(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 6)
    consumer.credit(1, credit=3)
    worker.turns()
    before = consumer.receive(worker)
    worker.kill()
    worker = node.worker()
    assert worker.engine.stats(1)[:2] == (3, 3)
    assert consumer.get("server_epoch") == worker.epoch
    done = consumer.ack(1, before[1].sequence)
    worker.turns()
    assert consumer.result(done) == OK
    other = node.peer(worker)
    assert [number for number, _marked in drain(worker, other, 1)] == [3, 4, 5]
    consumer.nack(1, 0)
    worker.turns()
    assert [item.sequence for item in other.receive(worker)] == [0]
    worker.kill()


def test_acks_submitted_to_a_dead_worker_are_executed_by_the_next(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 5)
    consumer.credit(1)
    worker.turns()
    worker.kill()
    consumer.ack(1, 2, MULTIPLE)  # nobody serves now
    worker = node.worker()
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 2)
    worker.kill()


@pytest.mark.parametrize("salvage", [True, False])
def test_replayed_publishes_have_no_second_effect(node: Node, salvage: bool) -> None:
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 1, 20)
    head = producer.get("head")
    for i in range(20, 30):
        producer.publish(1, b"%08d" % i)
    worker.engine.run(0, False)  # processed, perhaps not written
    producer.put("head", head - 15)  # as if the confirms had not been told
    producer.put("synced", head - 15)
    for i in range(30, 35):
        producer.publish(1, b"%08d" % i)
    worker.kill()
    worker = node.worker(salvage=salvage)
    worker.until(lambda: producer.get("synced") == producer.prepared)
    consumer = node.peer(worker)
    assert [number for number, _marked in drain(worker, consumer, 1)] == list(range(35))
    worker.kill()


def test_what_was_processed_and_not_written_is_salvaged_from_the_images(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(1)
    for i in range(50):
        producer.publish(1, b"%08d" % i, flags=PERSISTENT)
    worker.engine.run(0, False)
    worker.engine.run(0, False)
    held = consumer.receive(worker)
    assert len(held) == 50
    worker.kill()
    worker = node.worker()
    assert worker.engine.stats(1)[:2] == (0, 50)
    worker.turns()
    assert worker.engine.stats(1)[:2] == (0, 50)  # the producer's commands were not executed again
    consumer.ack(1, 49, MULTIPLE)
    worker.turns()
    assert worker.engine.counters()["messages"] == 0
    worker.kill()


def test_a_transient_message_dies_with_the_worker_and_its_slot_is_freed(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    consumer.credit(3)
    producer.publish(3, b"x")
    producer.publish(1, b"not persistent", flags=0)
    worker.until(lambda: consumer.held_slots() == 1)
    worker.kill()
    worker = node.worker()
    assert worker.engine.counters()["messages"] == 0
    assert consumer.held_slots() == 0
    worker.kill()


def test_hostile_slots_are_believed_once_and_only_if_they_fit(node: Node) -> None:
    worker = node.worker()
    producer, honest, liar = node.peer(worker), node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 4)
    honest.credit(1, credit=2)
    worker.turns()
    honest.receive(worker)
    real = [bytes(honest.buffer[honest.slot_at(slot) : honest.slot_at(slot) + DELIVERY.size]) for slot in range(2)]
    worker.kill()
    for slot in range(node.delivery_slots):
        at = liar.slot_at(slot)
        liar.buffer[at : at + DELIVERY.size] = real[slot % 2]
        if slot % 8 == 4:  # nobody holds this one, but it has another id
            DELIVERY.pack_into(liar.buffer, "sequence", 3, at)
        if slot % 4 == 2:
            DELIVERY.pack_into(liar.buffer, "sequence", 1 << 62, at)
        if slot % 4 == 3:
            DELIVERY.pack_into(liar.buffer, "queue", 0xFFFFFFFF, at)
    liar.put("delivery_tail", 1 << 40)
    liar.put("slots_used", 0xFFFFFFFF)
    worker = node.worker()
    assert honest.held_slots() == 2
    assert liar.held_slots() == 0
    stolen = liar.ack(1, 0)
    worker.turns()
    assert liar.result(stolen) == NO
    assert worker.engine.stats(1)[:2] == (2, 2)
    worker.kill()
    # the same lie, told by the one who is taken up first: the entry is held once, and comes back when he goes
    node.peers.sort(key=lambda peer: peer is not liar)
    for slot in range(2):
        liar.buffer[liar.slot_at(slot) : liar.slot_at(slot) + DELIVERY.size] = real[0]
    worker = node.worker()
    assert worker.engine.stats(1)[1] == 2
    assert liar.held_slots() + honest.held_slots() == 2
    worker.engine.closing(liar.slot)
    worker.until(lambda: worker.finished(liar))
    worker.kill()


def test_a_head_that_cannot_be_evicts_at_take_up(node: Node) -> None:
    worker = node.worker()
    bad = node.peer(worker)
    publish(worker, bad, 1, 3)
    worker.kill()
    bad.put("head", 1 << 50)
    worker = node.worker()
    assert bad.get("evicted") == CONSTANTS["EVICTED_TAKEUP"]
    assert worker.engine.stats(1)[0] == 3
    worker.kill()


def test_a_clean_stop_keeps_marks_and_counts_exactly(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 6)
    consumer.credit(1, credit=2)
    worker.turns()
    consumer.nack(1, 1)
    worker.turns()
    assert worker.stop()
    kept = read_terms(node.folder, 7, SERVER_INDEX)
    assert kept is not None
    assert {name: TERM.unpack(kept.queues[1][1], name) for name in TERM.by_name} == {
        "sequence": 0, "delivery_count": 1, "redelivered_n": 2,
    }  # fmt: skip
    node.peers.clear()
    worker = node.worker()
    assert worker.service.recovered.clean
    assert not node.folder.terms.exists()  # before work starts
    consumer = node.peer(worker)
    consumer.credit(1)
    worker.turns()
    found = consumer.receive(worker)
    assert [(item.sequence, item.redelivered, item.count) for item in found] == [
        (0, True, 1), (1, True, 1), (2, False, 0), (3, False, 0), (4, False, 0), (5, False, 0),
    ]  # fmt: skip
    worker.kill()
    node.peers.clear()
    assert not node.worker_is_clean()


@pytest.mark.parametrize("damage", ["flip", "cut", "other journal", "foreign"])
def test_a_clean_mark_that_does_not_fit_is_no_clean_mark(node: Node, damage: str) -> None:
    worker = node.worker()
    publish(worker, node.peer(worker), 1, 3)
    assert worker.stop()
    node.peers.clear()
    content = bytearray(node.folder.terms.read_bytes())
    if damage == "flip":
        content[-3] ^= 1
    elif damage == "cut":
        del content[-1:]
    elif damage == "foreign":
        content[:4] = b"abcd"
    else:
        worker = node.worker()
        publish(worker, node.peer(worker), 1, 1)
        worker.kill()
        node.peers.clear()
    node.folder.terms.write_bytes(content)
    assert not node.worker_is_clean()


def test_a_torn_tail_is_cut_at_every_byte(node: Node) -> None:
    worker = node.worker()
    producer = node.peer(worker)
    for i in range(3):
        publish(worker, producer, 1, 1, first=i)
    worker.kill()
    node.peers.clear()
    node.old_images = None
    path = node.folder.journal_file(0)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    rng = random.Random(4)
    cuts = sorted({FILE_HEADER_BYTES, FILE_HEADER_BYTES + 1, end - 1, *rng.sample(range(FILE_HEADER_BYTES, end), 40)})
    survivors = []
    for cut in cuts:
        FileRegister(node.folder.files, 7, SERVER_INDEX).begin({}, [])  # nothing is missed
        for file in node.folder.journal.glob("*.jnl"):
            file.unlink()
        path.write_bytes(
            whole[:cut] + rng.randbytes(min(600, len(whole) - cut)) + bytes(max(0, len(whole) - cut - 600))
        )
        worker = node.worker(salvage=False)
        ready = worker.engine.stats(1)[0]
        assert worker.service.recovered.torn_bytes > 0
        assert worker.service.recovered.damaged == []
        survivors.append(ready)
        worker.kill()
        worker = node.worker(salvage=False)  # the repaired file reads as well
        assert worker.engine.stats(1)[0] == ready
        assert worker.service.recovered.torn_bytes == 0
        worker.kill()
    assert survivors == sorted(survivors)
    assert (survivors[0], survivors[-1]) == (0, 3)


def test_names_are_synced_before_a_start_lists_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gave a file its name may have been killed before that was durable: listed, it would be missed."""
    worker = node.worker()
    publish(worker, node.peer(worker), 1, 1)
    worker.kill()
    node.peers.clear()
    FileRegister(node.folder.files, 7, SERVER_INDEX).begin({}, [])  # as if it had died before it listed its file
    steps: list[Path] = []
    sync, replace = segment.sync_directory, atomic_file.replace
    monkeypatch.setattr(segment, "sync_directory", lambda path: (steps.append(path), sync(path)))
    monkeypatch.setattr(atomic_file, "replace", lambda path, content: (steps.append(path), replace(path, content)))
    worker = node.worker()
    assert node.folder.journal in steps[: steps.index(node.folder.files)]
    worker.kill()


def test_damage_in_an_old_file_is_reported_and_costs_only_that_file(node: Node) -> None:
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 1, 400, size=2000)
    files = sorted(int(path.stem) for path in node.folder.journal.glob("*.jnl"))
    worker.kill()
    node.peers.clear()
    path = node.folder.journal_file(files[1])
    data = bytearray(path.read_bytes())
    data[100_000] ^= 0xFF
    path.write_bytes(data)
    worker = node.worker(salvage=False)
    assert any(str(path) in line for line in worker.service.recovered.damaged)
    assert 250 < worker.engine.stats(1)[0] < 400
    numbers = [number for number, _marked in drain(worker, node.peer(worker), 1)]
    assert numbers == sorted(numbers)
    worker.kill()


@pytest.mark.parametrize("scribbled", [False, True])
def test_files_are_read_from_the_images_that_hold_them(node: Node, scribbled: bool) -> None:
    """But for what lies in an image as no file would: there the file decides."""
    worker = node.worker()
    publish(worker, node.peer(worker), 1, 400, size=2000)
    files = sorted(int(path.stem) for path in node.folder.journal.glob("*.jnl"))
    worker.kill()
    node.peers.clear()
    assert node.old_images is not None
    images = node.old_images.buffer
    held = journal_images.held_files(images, node.images_n, node.file_bytes, node.folder)
    assert len(held[files[-2]]) > 50_000
    if scribbled:
        held[files[-2]][30_000] ^= 0xFF
    else:  # nobody reads the file
        with open(node.folder.journal_file(files[-2]), "r+b") as file:
            file.seek(30_000)
            file.write(b"what no frame has")
    held.clear()
    worker = node.worker()
    assert worker.service.recovered.damaged == []
    assert worker.engine.stats(1)[0] == 400
    if scribbled:
        assert [number for number, _marked in drain(worker, node.peer(worker), 1)] == list(range(400))
    worker.kill()


def test_damage_before_what_was_synced_is_no_torn_tail(node: Node) -> None:
    """A later frame of the newest file says that what lies before it was synced: it is left as it is, and reported."""
    worker = node.worker()
    producer = node.peer(worker)
    for i in range(20):
        publish(worker, producer, 1, 1, first=i)
    worker.kill()
    node.peers.clear()
    node.old_images = None
    path = node.folder.journal_file(0)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    first_bad = data.index(b"%08d" % 7)
    data[first_bad] ^= 1
    path.write_bytes(data)
    worker = node.worker()
    assert worker.engine.stats(1)[0] == 19, "what is sound behind the damage is served"
    assert worker.service.recovered.torn_bytes == 0
    assert [str(path) in line for line in worker.service.recovered.damaged] == [True]
    worker.kill()
    assert path.read_bytes()[:end] == data[:end]


def test_sequences_do_not_begin_anew_when_all_was_acked_and_files_are_gone(node: Node) -> None:
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(worker, producer, 1, 300, size=2000)
    drain(worker, consumer, 1)
    publish(worker, producer, 2, 300, size=2000)
    worker.until(lambda: not node.folder.journal_file(0).exists() and not node.folder.journal_file(1).exists())
    worker.kill()
    node.peers.clear()
    worker = node.worker()
    assert worker.engine.stats(1)[8] == 300
    worker.kill()


# ---- segments -------------------------------------------------------------------------------------------------------


def fill_and_flush(node: Node, worker: Incarnation, producer: Peer, n: int = 700) -> None:
    """More journal files than the worker keeps: the oldest are flushed."""
    publish(worker, producer, 1, n, size=1500)
    worker.until(lambda: len(worker.engine.files(False)) <= node.journal_files_max)


@pytest.fixture
def small(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(5, subscription_of=1)], journal_files_max=2)


def test_flushed_messages_are_read_from_segments_by_holders_and_after_restarts(small: Node) -> None:
    worker = small.worker()
    producer, holder = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 5, size=1500)
    holder.credit(1, credit=3)
    worker.turns()
    held = holder.receive(worker)
    fill_and_flush(small, worker, producer)
    assert not small.folder.journal_file(0).exists()
    for item in held:
        located = holder.command("OP_LOCATE", queue=1, tag=item.sequence)
        worker.turns()
        assert holder.result(located) == OK
        base = holder.slot_at(item.slot)
        assert (
            DELIVERY.unpack(holder.buffer, "flags", base) >> PROTOCOL["DELIVERY_LOCATION_SHIFT"]
            == PROTOCOL["LOCATION_SEGMENT"]
        )
        assert worker.body(holder.buffer, base) == item.body
    assert worker.engine.stats(1)[4] > 0  # gamma
    worker.kill()
    worker = small.worker()
    assert worker.service.recovered.messages_from_segments > 0
    assert worker.engine.stats(1)[:2] == (702, 3)
    holder.ack(1, 2, MULTIPLE)
    numbers = [number for number, _marked in drain(worker, small.peer(worker), 1)]
    assert numbers == [3, 4, *range(700)]
    worker.kill()


def snapshot(folder: Path) -> dict[Path, bytes]:
    """Every file and its bytes; the serving thread may delete one meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def made_what_it_was(small: Node, worker: Incarnation, point: str, load: Callable[[], object]) -> None:
    """Kill the worker, and leave its folder as it was when it came to a point under this load. The flush waits there,
    and the serving thread writes nothing meanwhile: what is copied is of one moment.
    """
    image: dict[Path, bytes] = {}
    there, copied = threading.Event(), threading.Event()

    def reached(name: str) -> None:
        if name != point or there.is_set():
            return
        if threading.current_thread() is threading.main_thread():
            image.update(snapshot(small.folder.path))
        there.set()
        assert image or copied.wait(600)

    worker.service.options.reached = reached
    load()
    worker.until(there.is_set)
    if not image:
        image.update(snapshot(small.folder.path))
    copied.set()
    worker.kill()
    for path in small.folder.path.rglob("*"):
        if path.is_file() and path not in image:
            path.unlink()
    for path, content in image.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    small.peers.clear()


POINTS = (
    "flush.linked", "flush.dat-synced", "flush.idx-new", "flush.idx", "flush.idx-synced", "flush.forgotten",
)  # fmt: skip


@pytest.mark.parametrize(
    ("point", "alive"), [*((point, 1.0) for point in POINTS), ("flush.dat", 0.2), ("flush.dat-synced", 0.2)]
)
@pytest.mark.crash
def test_a_kill_at_each_step_of_a_flush_loses_and_doubles_nothing(small: Node, point: str, alive: float) -> None:
    """`alive`: share of the first file's messages that nobody has taken: its frames are copied, or it is linked."""
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    gone = 0
    if alive < 1:
        gone = 100
        publish(worker, producer, 1, 120, size=1500)
        consumer.credit(1, credit=gone)
        worker.turns()
        consumer.ack(1, consumer.receive(worker)[-1].sequence, MULTIPLE)
        worker.until(lambda: consumer.get("head") == consumer.prepared)
        consumer.command("OP_CANCEL", queue=1)
        worker.turns()

    # everything confirmed up to then is in the folder, and the images have the rest
    made_what_it_was(
        small, worker, point, lambda: publish(worker, producer, 1, 700, size=1500, first=120 if gone else 0)
    )
    for _start in range(2):
        worker = small.worker(salvage=True)
        ready = worker.engine.stats(1)[0]
        worker.turns()
        worker.kill()
    worker = small.worker()
    numbers = [number for number, _marked in drain(worker, small.peer(worker), 1)]
    assert numbers == list(range(gone, gone + ready))
    assert ready > 160  # more than a file has
    worker.kill()


def test_acks_of_segment_entries_survive_the_journal_file_that_held_them(small: Node) -> None:
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    consumer.credit(1, credit=100)
    worker.turns()
    consumer.receive(worker)
    consumer.ack(1, 49, MULTIPLE)
    worker.turns()
    acked_in = worker.engine.position()[0]
    worker.engine.closing(consumer.slot)
    publish(worker, producer, 2, 700, size=1500)
    worker.until(lambda: not small.folder.journal_file(acked_in).exists())
    worker.kill()
    small.peers.clear()
    worker = small.worker()
    assert worker.engine.stats(1)[:2] == (650, 0)
    assert worker.engine.stats(1)[7] == 50
    worker.kill()


@pytest.mark.parametrize("point", ["acks.zeroed", "acks.synced"])
@pytest.mark.crash
def test_a_kill_while_acks_are_applied(small: Node, point: str) -> None:
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    consumer.credit(1, credit=60)
    worker.turns()
    consumer.receive(worker)
    consumer.ack(1, 59, MULTIPLE)
    made_what_it_was(small, worker, point, lambda: publish(worker, producer, 2, 700, size=1500))
    worker = small.worker()
    assert worker.engine.stats(1)[:2] == (640, 0)
    worker.kill()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("step", ["list", "unlink", "sync"])
def test_a_journal_file_that_stays_keeps_those_behind_it(
    small: Node, monkeypatch: pytest.MonkeyPatch, step: str, end: str
) -> None:
    """The oldest file cannot be removed: it publishes what a younger one acks, so a start has both of them."""
    oldest = small.folder.journal_file(0)
    refused = threading.Event()
    allowed = threading.Event()

    def refuse() -> None:
        if not allowed.is_set():
            refused.set()
            raise StoreError("the disk does not want to")

    def note(files: FileRegister, there: Any = None, gone: Any = ()) -> None:
        gone = list(gone)
        if step == "list" and (LISTED_JOURNAL, 0, 0) in gone:
            refuse()
        noted(files, there, gone)

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if step == "unlink" and path == oldest:
            refuse()
        unlinked(path, missing_ok=missing_ok)

    def sync(path: Path) -> None:
        if step == "sync" and path == oldest.parent and threading.current_thread().name == "warren-index":
            refuse()
        synced(path)

    noted, unlinked, synced = FileRegister.note, data_files.unlink, segment.sync_directory
    monkeypatch.setattr(FileRegister, "note", note)
    monkeypatch.setattr(data_files, "unlink", unlink)
    monkeypatch.setattr(segment, "sync_directory", sync)
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 700, size=1500)  # more than the first file
    publish(worker, producer, 2, 100, size=1500)
    seen = drain(worker, consumer, 1)
    acked_in = worker.engine.position()[0]
    assert [number for number, _marked in seen] == list(range(700))
    assert acked_in > 0
    worker.engine.closing(consumer.slot)
    publish(worker, producer, 2, 1400, size=1500)
    worker.until(lambda: worker.engine.files(False)[0][0] > acked_in and refused.is_set())
    if end == "stop":
        assert worker.stop()
    else:
        worker.kill()
    there = {int(path.stem) for path in small.folder.journal.glob("*.jnl")}
    assert {*range(1, acked_in + 1)} <= there, "nothing is gone for good before the oldest is"
    allowed.set()
    small.peers.clear()
    small.old_images = None
    worker = small.worker()
    assert worker.service.recovered.clean == (end == "stop")
    assert worker.service.recovered.damaged == []
    assert worker.engine.stats(1)[:2] == (0, 0)
    assert worker.engine.stats(2)[:2] == (1500, 0)
    worker.kill()


def test_a_journal_file_that_stayed_goes_when_it_can(small: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those behind it, in the same life; it was said."""
    oldest = small.folder.journal_file(0)
    left = 3

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        nonlocal left
        if path == oldest and left:
            left -= 1
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path))
        unlinked(path, missing_ok=missing_ok)

    unlinked = data_files.unlink
    monkeypatch.setattr(data_files, "unlink", unlink)
    worker = small.worker()
    producer = small.peer(worker)
    publish(worker, producer, 1, 2100, size=1500)
    worker.until(lambda: {int(path.stem) for path in small.folder.journal.glob("*.jnl")}.isdisjoint(range(3)))
    assert not left
    assert any(f"cannot remove {oldest}; trying again" in line for line in small.said)
    worker.kill()


def test_a_segment_is_gone_for_good_before_the_acks_that_emptied_it(
    small: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sync of its directory fails: the next attempt, which finds no file any more, makes up for it."""
    own = small.folder.segments / "1"
    refused = made_up = False

    def sync(path: Path) -> None:
        nonlocal refused, made_up
        if path == own and not list(own.glob("*.idx")):
            if not refused:
                refused = True
                raise SyncFailed("the disk does not want to")
            made_up = True
        synced(path)

    synced = segment.sync_directory
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    monkeypatch.setattr(segment, "sync_directory", sync)
    drain(worker, consumer, 1)
    acked_in = worker.engine.position()[0]
    worker.engine.closing(consumer.slot)
    publish(worker, producer, 2, 1400, size=1500)
    worker.until(lambda: not small.folder.journal_file(acked_in).exists())
    assert refused
    assert made_up
    worker.kill()


def test_a_flush_waits_for_the_acks(small: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are due at once: what the disk refuses of the acks must not be overtaken."""
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    worker.until(lambda: not worker.service._emptying._at_work)
    drain(worker, consumer, 1)
    asked: list[str] = []
    monkeypatch.setattr(worker.service._index, "ask", lambda job, _then: asked.append(job.__qualname__))
    both = _core.QUEUE_EVENT_FILES_EMPTY | _core.QUEUE_EVENT_FILES_MANY
    while not (events := worker.engine.run(20_000_000, True)) & both:
        small.store.step()
    assert events & _core.QUEUE_EVENT_FILES_EMPTY
    worker.service._emptying.serve(both)
    assert [name.split(".")[1] for name in asked] == ["_apply"]
    worker.kill()


def test_segments_and_data_files_go_when_all_is_acked(small: Node) -> None:
    worker = small.worker()
    producer, consumer = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    assert list(small.folder.segments.rglob("*.idx"))
    drain(worker, consumer, 1)
    # acks are applied when the journal file that has them is to go
    for _ in range(30):
        publish(worker, producer, 2, 200, size=1500)
        drain(worker, consumer, 2)
    worker.until(lambda: not list((small.folder.segments / "1").glob("*.idx")))
    worker.until(lambda: not list(small.folder.segments.glob("*.dat")))
    worker.kill()


# ---- claims of a subscription ---------------------------------------------------------------------------------------


def claims(worker: Incarnation, peer: Peer, n: int) -> tuple[int, int]:
    answer = peer.control(worker, op="claim", queue=1, subscription_queue=5, max_messages=n, max_bytes=1 << 30)
    return answer["start"], answer["end"]


def browse(worker: Incarnation, peer: Peer, queue: int) -> list[int]:
    rows = peer.control(worker, op="browse", queue=queue, start=0, count=1000)["rows"]
    found = []
    for at in range(0, len(rows), DELIVERY.size):
        row = memoryview(bytearray(rows[at : at + DELIVERY.size]))
        found.append(int(worker.body(row, 0)[:8]))
    return found


def test_claims_are_dense_durable_and_belong_to_no_process(small: Node) -> None:
    worker = small.worker()
    producer, spark = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 10)
    producer.credit(1, credit=2)
    worker.turns()  # 0 and 1 are held by somebody: not claimed
    assert claims(worker, spark, 3) == (0, 3)
    assert claims(worker, spark, 100) == (3, 8)
    assert claims(worker, spark, 100) == (8, 8)
    assert browse(worker, spark, 5) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert spark.control(worker, op="ack_to", queue=5, sequence=4) == {"count": 4}
    worker.kill()
    small.peers.clear()
    worker = small.worker(salvage=False)  # durable before the answer
    spark = small.peer(worker)
    assert spark.control(worker, op="ranges", queue=5) == {"base": 4, "next": 8}
    assert browse(worker, spark, 5) == [6, 7, 8, 9]
    assert browse(worker, spark, 1) == [0, 1]
    worker.kill()


def test_a_claim_is_bounded_by_bytes_but_takes_one(small: Node) -> None:
    worker = small.worker()
    producer = small.peer(worker)
    publish(worker, producer, 1, 5, size=100)
    answer = producer.control(worker, op="claim", queue=1, subscription_queue=5, max_messages=10, max_bytes=250)
    assert answer == {"start": 0, "end": 2}
    answer = producer.control(worker, op="claim", queue=1, subscription_queue=5, max_messages=10, max_bytes=1)
    assert answer == {"start": 2, "end": 3}
    worker.kill()


def test_a_claim_that_was_durable_and_not_answered_is_answered_from_the_journal(small: Node) -> None:
    worker = small.worker()
    producer, spark = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 10)
    assert claims(worker, spark, 4) == (0, 4)
    spark.put("processed", spark.get("processed") - 1)  # as if the worker had died before telling
    spark.put("head", spark.get("head") - 1)
    worker.kill()
    worker = small.worker()
    worker.until(lambda: spark.get("processed") == spark.prepared)
    assert spark.answer() == {"start": 0, "end": 4}
    assert worker.engine.stats(1)[0] == 6
    worker.kill()


@pytest.mark.parametrize("restart", [False, True])
def test_deleting_a_subscription_returns_its_claims_to_the_end(small: Node, restart: bool) -> None:
    worker = small.worker()
    producer, spark = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 6)
    claims(worker, spark, 4)
    spark.control(worker, op="ack_to", queue=5, sequence=1)
    small.queues = [queue for queue in small.queues if queue.id != 5]
    if restart:
        worker.kill()
        small.peers.clear()
        worker = small.worker()
    else:
        small.tell_catalog(2)
        worker.turns(3)
    assert 5 not in worker.engine.queues()
    for _start in range(2):
        worker.kill()
        small.peers.clear()
        worker = small.worker()
    seen = drain(worker, small.peer(worker), 1)
    assert [number for number, _marked in seen] == [4, 5, 1, 2, 3]
    worker.kill()


def test_a_release_brings_claims_back_redelivered(small: Node) -> None:
    worker = small.worker()
    producer, spark = small.peer(worker), small.peer(worker)
    publish(worker, producer, 1, 5)
    claims(worker, spark, 2)
    assert spark.control(worker, op="release", queue=1, subscription_queue=5) == {"count": 2}
    assert drain(worker, spark, 1) == [(2, False), (3, False), (4, False), (0, True), (1, True)]
    worker.kill()


def test_claims_of_flushed_messages_survive_flushes_and_restarts(small: Node) -> None:
    worker = small.worker()
    producer, spark = small.peer(worker), small.peer(worker)
    fill_and_flush(small, worker, producer)
    assert claims(worker, spark, 60) == (0, 60)
    spark.control(worker, op="ack_to", queue=5, sequence=10)
    claimed_in = worker.engine.position()[0]
    publish(worker, producer, 2, 500, size=1500)
    worker.until(lambda: not small.folder.journal_file(claimed_in).exists())
    assert browse(worker, spark, 5) == list(range(10, 60))
    for _start in range(2):
        worker.kill()
        small.peers.clear()
        worker = small.worker()
        spark = small.peer(worker)
        assert browse(worker, spark, 5) == list(range(10, 60))
        assert worker.engine.stats(1)[0] == 640
        assert spark.control(worker, op="ranges", queue=5) == {"base": 10, "next": 60}
    worker.kill()


# ---- everything together --------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_random_work_with_kills_keeps_every_message_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    node = Node(tmp_path, queues=[Queue(1)], journal_files_max=2)
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    published = 0
    acked: set[int] = set()
    held: dict[int, int] = {}  # sequence → number

    def publish_some() -> None:
        nonlocal published
        for _ in range(rng.randrange(1, 120)):
            if producer.get("tail") - producer.get("head") > 900:
                return
            producer.publish(
                1, b"%08d" % published + b"." * rng.choice([10, 500, 3000]), flags=PERSISTENT | rng.choice([0, SYNCED])
            )
            published += 1

    def take_some() -> None:
        for item in consumer.receive(worker):
            number = int(item.body[:8])
            assert number not in acked, "an acked message came back"
            held[item.sequence] = number

    def settle_some() -> None:
        for sequence in rng.sample(sorted(held), k=len(held) // 2):
            if rng.random() < 0.8:
                consumer.ack(1, sequence)
                acked.add(held.pop(sequence))
            elif len(held) < 200:
                consumer.nack(1, sequence)
                held.pop(sequence)

    def restart() -> None:
        nonlocal worker
        worker.kill()
        worker = node.worker()
        consumer.credit(1, epoch=worker.epoch)

    consumer.credit(1)

    def serve() -> None:
        worker.turns()

    steps: list[Callable[[], None]] = [publish_some, publish_some, take_some, settle_some, serve]
    for step in range(400):
        rng.choice(steps)()
        if step % 25 == 24:
            restart()
        if consumer.get("tail") - consumer.get("head") > 700:
            worker.until(lambda: consumer.get("head") == consumer.prepared)
    while len(acked) < published:
        worker.service.turn(20_000_000)
        take_some()
        for sequence in list(held):
            if consumer.get("tail") - consumer.get("head") < 900:
                consumer.ack(1, sequence)
                acked.add(held.pop(sequence))
    assert acked == set(range(published))
    worker.turns()
    assert worker.engine.counters()["messages"] == 0
    worker.kill()


def test_a_million_messages_come_back_fast(tmp_path: Path) -> None:
    """Not timed: recovery reads each file once and keeps no copy; the figure is printed for people."""
    n = int(os.environ.get("WARREN_TEST_MESSAGES", "30000"))
    node = Node(tmp_path, file_bytes=16 << 20)
    worker = node.worker()
    publish(worker, node.peer(worker), 1, n, size=100)
    worker.kill()
    node.peers.clear()
    worker = node.worker()
    assert worker.engine.stats(1)[0] == n
    print(f"{n} messages recovered in {worker.service.recovered.seconds:.3f} s")
    worker.kill()


# ---- pages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def paging(tmp_path: Path) -> Node:
    """A worker with memory for one chunk of rows: whatever can leave it does. Journal files of some 1,300 messages."""
    return Node(
        tmp_path,
        queues=[Queue(1), Queue(2), Queue(3, durable=False), Queue(5, subscription_of=1)],
        journal_files_max=2,
        memory_bytes=60_000,
    )


def page_out(worker: Incarnation) -> None:
    """Serve until nothing more can leave memory: two journal files, heads and tails are left."""
    worker.until(lambda: len(worker.engine.files(False)) <= 2)
    worker.turns(2)
    worker.service.turn(50_000_000, False)
    worker.engine.check()


def backlog(worker: Incarnation, producer: Peer, n: int, queue: int = 1) -> None:
    """Publish far more than fits, and wait until what can leave memory has left."""
    publish(worker, producer, queue, n, size=100)
    page_out(worker)
    assert worker.engine.stats(queue)[5] >= n - 7 * 1024


@pytest.mark.parametrize("restart", [None, "kill", "stop"])
def test_a_backlog_beyond_memory_is_delivered_once_and_in_order(paging: Node, restart: str | None) -> None:
    worker = paging.worker()
    producer = paging.peer(worker)
    backlog(worker, producer, 15_000)
    if restart:
        if restart == "kill":
            worker.kill()
        else:
            assert worker.stop()
        paging.peers.clear()
        worker = paging.worker()
        worker.engine.check()
        assert worker.engine.stats(1)[5] > 7_000
        assert worker.engine.counters()["row_bytes"] <= 600_000  # what the journal alone knows stays
    seen = drain(worker, paging.peer(worker), 1)
    assert seen == [(i, restart == "kill") for i in range(15_000)]
    worker.engine.check()
    assert worker.engine.counters()["messages"] == worker.engine.counters()["paged"] == 0
    worker.kill()


def test_acks_and_returns_in_the_middle_of_a_paged_backlog(paging: Node) -> None:
    worker = paging.worker()
    producer, consumer = paging.peer(worker), paging.peer(worker)
    consumer.credit(1, credit=200)
    backlog(worker, producer, 12_000)
    held = [item.sequence for item in consumer.receive(worker)]
    assert held == list(range(200))
    consumer.ack_many(1, held[::2])  # of a chunk that then has gaps
    for sequence in held[1::2]:
        consumer.nack(1, sequence)
    consumer.command("OP_CANCEL", queue=1)
    worker.turns()
    backlog(worker, producer, 12_000, queue=2)  # pushes the first queue's chunks out
    worker.engine.check()
    browsed = browse(worker, consumer, 1)
    assert browsed[:100] == list(range(1, 200, 2))
    assert browsed[100:] == list(range(200, 200 + len(browsed) - 100))
    worker.kill()
    paging.peers.clear()
    worker = paging.worker()
    worker.engine.check()
    numbers = [number for number, _marked in drain(worker, paging.peer(worker), 1)]
    assert numbers == [*range(1, 200, 2), *range(200, 12_000)]
    assert worker.engine.stats(2)[0] == 12_000
    worker.kill()


def test_what_was_acked_and_not_yet_erased_does_not_come_back_with_its_page(paging: Node) -> None:
    """The entries of acked messages are in the segment until their ACK's journal file goes: the page knows better."""
    worker = paging.worker()
    producer, consumer = paging.peer(worker), paging.peer(worker)
    backlog(worker, producer, 9_000)
    consumer.credit(1, credit=40)
    worker.turns()
    held = [item.sequence for item in consumer.receive(worker)]
    consumer.ack_many(1, held[10:30])
    consumer.command("OP_CANCEL", queue=1, flags=PROTOCOL["FLAG_REQUEUE"])
    worker.turns()
    entries = paging.folder.index_file(1, 0).read_bytes()[FILE_HEADER_BYTES:]
    assert all(any(entries[at * 64 : at * 64 + 64]) for at in range(40))
    worker.kill()
    paging.peers.clear()
    worker = paging.worker()
    for chunk in (0, 1):
        assert worker.engine.page_out(1, chunk) in (True, False)
    assert worker.engine.stats(1)[5] >= 2_000
    seen = drain(worker, paging.peer(worker), 1)
    assert [number for number, _marked in seen] == [*range(10), *range(30, 9_000)]
    worker.kill()


def test_marks_and_counts_outlive_the_page(paging: Node) -> None:
    worker = paging.worker()
    producer, consumer = paging.peer(worker), paging.peer(worker)
    backlog(worker, producer, 9_000)
    consumer.credit(1, credit=3)
    worker.turns()
    assert [item.count for item in consumer.receive(worker)] == [0, 0, 0]
    consumer.command("OP_CANCEL", queue=1, flags=PROTOCOL["FLAG_REQUEUE"])
    worker.turns()
    assert worker.engine.page_out(1, 0)
    assert worker.stop()
    paging.peers.clear()
    worker = paging.worker()
    assert worker.service.recovered.clean
    worker.engine.page_out(1, 0)
    consumer = paging.peer(worker)
    consumer.credit(1, credit=5)
    worker.turns()
    found = consumer.receive(worker)
    assert [(item.sequence, item.redelivered, item.count > 0) for item in found] == [
        (0, True, True), (1, True, True), (2, True, True), (3, False, False), (4, False, False),
    ]  # fmt: skip
    worker.kill()


def test_a_purge_and_a_deletion_reach_what_is_not_in_memory(paging: Node) -> None:
    worker = paging.worker()
    producer = paging.peer(worker)
    backlog(worker, producer, 8_000)
    backlog(worker, producer, 8_000, queue=2)
    assert producer.control(worker, op="purge", queue=1) == {"count": 8_000}
    worker.engine.check()
    paging.queues = [queue for queue in paging.queues if queue.id != 2]
    paging.tell_catalog(2)
    worker.turns(3)
    assert worker.engine.counters()["messages"] == worker.engine.counters()["paged"] == 0
    publish(worker, producer, 1, 10)
    worker.kill()
    paging.peers.clear()
    worker = paging.worker()
    assert [number for number, _marked in drain(worker, paging.peer(worker), 1)] == list(range(10))
    worker.kill()


def test_claims_of_paged_messages_and_their_way_back(paging: Node) -> None:
    worker = paging.worker()
    producer = paging.peer(worker)
    backlog(worker, producer, 8_000)
    assert claims(worker, producer, 5_000) == (0, 5_000)
    worker.engine.check()
    publish(worker, producer, 2, 4_000)
    page_out(worker)
    assert producer.control(worker, op="ack_to", queue=5, sequence=1_000) == {"count": 1_000}
    worker.kill()
    paging.peers.clear()
    worker = paging.worker()
    producer = paging.peer(worker)
    assert producer.control(worker, op="release", queue=1, subscription_queue=5) == {"count": 4_000}
    worker.engine.check()
    numbers = [number for number, _marked in drain(worker, producer, 1)]
    assert numbers == [*range(5_000, 8_000), *range(1_000, 5_000)]
    worker.kill()


def test_a_damaged_entry_of_a_paged_chunk_costs_one_message_and_is_reported(paging: Node) -> None:
    worker = paging.worker()
    producer = paging.peer(worker)
    backlog(worker, producer, 9_000)
    assert worker.engine.page_out(1, 2) or worker.engine.stats(1)[5]
    with open(paging.folder.index_file(1, 0), "r+b") as file:
        file.seek(FILE_HEADER_BYTES + 3_000 * 64 + 33)
        file.write(b"\xff")
    numbers = [number for number, _marked in drain(worker, paging.peer(worker), 1)]
    assert numbers == [i for i in range(9_000) if i != 3_000]
    worker.engine.check()
    worker.until(lambda: any("1 message dropped" in line for line in paging.said))
    worker.kill()


def publish_transient(worker: Incarnation, producer: Peer, queue: int, n: int, first: int = 0) -> None:
    """Publish n numbered transient bodies, and wait until the worker has them."""
    for i in range(first, first + n):
        producer.publish(queue, b"%08d" % i + b"." * 90, flags=0)
        if producer.prepared % 64 == 0:
            worker.until(lambda: producer.get("head") + 900 > producer.prepared)
    worker.until(lambda: producer.get("processed") == producer.prepared)
    worker.turns(2)
    worker.engine.check()


def spilled(node: Node) -> int:
    """Bytes in the file of transient rows."""
    return node.folder.spill.stat().st_size


def test_a_transient_backlog_leaves_memory_and_is_delivered_once_and_in_order(paging: Node) -> None:
    worker = paging.worker()
    producer, consumer = paging.peer(worker), paging.peer(worker)
    n = 15_000
    publish_transient(worker, producer, 3, n)
    worker.until(lambda: worker.engine.stats(3)[5] >= n - 4 * 1024)
    ready, _unacked, alpha, beta, gamma, delta = worker.engine.stats(3)[:6]
    assert (ready, gamma, alpha + beta + delta) == (n, 0, n)
    assert worker.engine.counters()["row_bytes"] <= 4 * 1024 * 56
    assert n * 56 > spilled(paging) >= delta * 56
    # some are held, some go, some come back in their places, and leave memory as they are
    consumer.credit(3, credit=200)
    worker.turns()
    held = [item.sequence for item in consumer.receive(worker)]
    assert held == list(range(200))
    consumer.ack_many(3, held[::2])
    consumer.command("OP_CANCEL", queue=3, flags=PROTOCOL["FLAG_REQUEUE"])
    worker.turns()
    assert worker.engine.page_out(3, 0)
    worker.engine.check()
    seen = drain(worker, consumer, 3)
    assert seen == [*((i, True) for i in range(1, 200, 2)), *((i, False) for i in range(200, n))]
    worker.engine.check()
    assert worker.engine.counters()["messages"] == worker.engine.counters()["paged"] == 0
    assert spilled(paging) == 0
    worker.kill()


def test_transient_messages_among_persistent_ones_leave_memory_with_them_and_go_with_the_worker(paging: Node) -> None:
    worker = paging.worker()
    producer, consumer = paging.peer(worker), paging.peer(worker)
    n = 20_000
    for i in range(n):
        producer.publish(1, b"%08d" % i + b"." * 90, flags=0 if i % 3 else PERSISTENT)
        if producer.prepared % 64 == 0:
            worker.until(lambda: producer.get("head") + 900 > producer.prepared)
    worker.until(lambda: producer.get("synced") == producer.prepared)
    page_out(worker)
    worker.until(lambda: worker.engine.stats(1)[5] > n // 3)
    consumer.credit(1, credit=200)
    worker.turns()
    found = consumer.receive(worker)
    assert [int(item.body[:8]) for item in found] == list(range(200))
    consumer.ack_many(1, [item.sequence for item in found])
    worker.turns()
    worker.engine.check()
    worker.kill()
    paging.peers.clear()
    worker = paging.worker()
    assert spilled(paging) == 0
    assert drain(worker, paging.peer(worker), 1) == [(i, True) for i in range(201, n, 3)]
    worker.engine.check()
    worker.kill()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nothing_of_a_transient_backlog_comes_back(paging: Node, end: str) -> None:
    worker = paging.worker()
    publish_transient(worker, paging.peer(worker), 3, 8_000)
    assert spilled(paging) > 0
    if end == "kill":
        worker.kill()
    else:
        assert worker.stop()
    paging.peers.clear()
    worker = paging.worker()
    assert worker.engine.stats(3)[0] == spilled(paging) == 0
    publish_transient(worker, paging.peer(worker), 3, 10)
    assert drain(worker, paging.peer(worker), 3) == [(i, False) for i in range(10)]
    worker.kill()


def test_a_purge_and_a_deletion_reach_transient_messages_that_are_not_in_memory(paging: Node) -> None:
    paging.queues.append(Queue(4, durable=False))
    worker = paging.worker()
    producer = paging.peer(worker)
    publish_transient(worker, producer, 3, 8_000)
    publish_transient(worker, producer, 4, 8_000)
    assert producer.control(worker, op="purge", queue=3) == {"count": 8_000}
    worker.engine.check()
    paging.queues = [queue for queue in paging.queues if queue.id != 4]
    paging.tell_catalog(2)
    worker.turns(3)
    assert worker.engine.counters()["messages"] == worker.engine.counters()["paged"] == spilled(paging) == 0
    worker.until(lambda: len(list(paging.folder.transient.glob("*.jnl"))) <= 2)
    worker.kill()


def test_a_spill_file_that_was_damaged_costs_a_chunk_and_is_reported(paging: Node) -> None:
    worker = paging.worker()
    publish_transient(worker, paging.peer(worker), 3, 8_000)
    with open(paging.folder.spill, "r+b") as file:
        file.write(b"\xff")  # its first slot
    numbers = [number for number, _marked in drain(worker, paging.peer(worker), 3)]
    assert len(numbers) == 8_000 - 1024
    assert numbers == sorted(set(numbers))
    worker.engine.check()
    worker.until(lambda: any("1,024 messages dropped" in line for line in paging.said))
    worker.kill()


def test_a_disk_without_room_for_transient_rows_is_reported_and_costs_memory_only(
    paging: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, *given: int, **named: bool) -> int:
        return os.open("/dev/full", os.O_RDWR) if path == paging.folder.spill else opens(path, *given, **named)

    opens = data_files.open
    monkeypatch.setattr(data_files, "open", opened)
    worker = paging.worker()
    producer = paging.peer(worker)
    publish_transient(worker, producer, 3, 6_000)
    worker.until(lambda: any("No space left" in line for line in paging.said))
    assert worker.engine.stats(3)[5] == 0
    assert drain(worker, producer, 3) == [(i, False) for i in range(6_000)]
    worker.kill()


@pytest.mark.long
def test_under_pressure_rows_leave_memory_earlier_and_order_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, queues=[Queue(1), Queue(3, durable=False)], journal_files_max=4, memory_bytes=8 << 20)
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 1, 40_000, size=100)
    publish_transient(worker, producer, 3, 40_000)
    worker.engine.check()
    counters = worker.engine.counters
    assert counters()["rows_limit"] == 8 << 20
    assert counters()["paged"] == 0
    sizes = [counters()["row_bytes"]]
    for pressure in (700, 850, 1000):
        SUPERBLOCK.pack_into(node.superblock.buffer, "pressure", pressure)
        page_out(worker)
        sizes.append(counters()["row_bytes"])
    assert sizes == sorted(sizes, reverse=True)
    worker.until(lambda: counters()["row_bytes"] <= sizes[0] // 3)
    limit = counters()["rows_limit"]
    assert limit < 4 << 20
    SUPERBLOCK.pack_into(node.superblock.buffer, "pressure", 960)
    worker.turns(3)
    assert counters()["rows_limit"] <= limit, "what leaves lowers the pressure: that must not bring it back"
    consumer = node.peer(worker)
    assert drain(worker, consumer, 1) == [(i, False) for i in range(40_000)]
    assert drain(worker, consumer, 3) == [(i, False) for i in range(40_000)]
    worker.engine.check()
    SUPERBLOCK.pack_into(node.superblock.buffer, "pressure", 0)
    worker.turns(3)
    assert counters()["rows_limit"] == 8 << 20
    worker.kill()


@pytest.mark.long
def test_many_acks_of_a_long_backlog_are_applied_without_waiting_for_their_journal_file(tmp_path: Path) -> None:
    """The last messages of the backlog are not acked: so the file that holds the acks cannot be given up."""
    node = Node(tmp_path, journal_files_max=2, memory_bytes=60_000, file_bytes=1 << 20)
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    n = 40_000
    publish(worker, producer, 1, n, size=100)
    page_out(worker)
    first, live = worker.engine.files(False)[-1]
    assert live > 1000
    segment = node.folder.segments / "1" / "0.idx"
    consumer.credit(1)
    held: list[int] = []
    acked = 0
    rng = random.Random(3)
    while segment.exists() and acked < n - 1000:
        worker.service.turn(20_000_000)
        held += [item.sequence for item in consumer.receive(worker)]
        rng.shuffle(held)
        half, held = (held[: len(held) // 2 + 1], held[len(held) // 2 + 1 :])
        if half:
            consumer.ack_many(1, half)
            acked += len(half)

    def is_gone() -> bool:
        worker.service.turn(20_000_000)
        return not segment.exists()

    wait_until(is_gone, 30, what="the end of the segment")
    assert first in [file for file, _live in worker.engine.files(False)]
    worker.kill()


def test_a_long_queue_that_was_deleted_meanwhile_goes_at_the_start(tmp_path: Path) -> None:
    """Its rows are not in memory: they are read from its segments before these go."""
    node = Node(tmp_path, queues=[Queue(1), Queue(2)], memory_bytes=1, journal_files_max=2)
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 1, 6000, size=200)
    publish(worker, producer, 2, 10)
    segments = node.folder.segments / "1"
    worker.until(lambda: worker.engine.counters()["page_outs"] > 0)
    assert segments.is_dir()
    worker.kill()
    node.peers.clear()
    node.queues = [Queue(2)]
    worker = node.worker()
    assert not segments.exists()
    assert [number for number, _marked in drain(worker, node.peer(worker), 2)] == list(range(10))
    worker.kill()
