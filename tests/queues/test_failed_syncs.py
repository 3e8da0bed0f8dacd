"""Goal: a start of a queue worker writes again what nobody said was synced, and no more; what an earlier start could
not make durable is no riddle for a later one.

Method: incarnations of a worker over one directory (support.queue_probe); syncs that fail, and bytes that are put back
as a loss of power may leave them. That nothing confirmed is lost is shown in crash/test_failed_syncs.py.
"""

import errno
import os
from pathlib import Path

import pytest

from warren.engine.errors import SyncFailed
from warren.engine.kernel import atomic_file, file_register
from warren.engine.kernel.file_register import Entry
from warren.engine.kernel.formats import FILE_HEADER_BYTES, LISTED_INDEX, QUEUE_SEGMENT_ENTRY
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.queues import segment_stamp

from support.queue_probe import FILE_BYTES, PAGE, SERVER_INDEX, Incarnation, Node, Peer, Queue

NODE_ID = 7
MULTIPLE = PROTOCOL["FLAG_MULTIPLE"]
BODY = 1492


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2)], journal_files_max=2)


def publish(worker: Incarnation, producer: Peer, n: int, queue: int = 1) -> None:
    for _ in range(n):
        producer.publish(queue, bytes(8) + b"." * BODY)
        if producer.prepared % 64 == 0:
            worker.until(lambda: producer.get("head") + 900 > producer.prepared)
    worker.until(lambda: producer.get("synced") == producer.prepared)


def killed(node: Node, worker: Incarnation) -> None:
    """With all of the node: its images are gone."""
    worker.kill()
    node.peers.clear()
    node.old_images = None


def listed(node: Node) -> tuple[int, int]:
    """How often segment 0 of queue 1 was changed: what it says itself, and what the list says."""
    entry = file_register.read(node.folder.files, NODE_ID, SERVER_INDEX).entries.get((LISTED_INDEX, 1, 0), Entry())
    data = node.folder.index_file(1, 0).read_bytes()[segment_stamp.STAMP_AT :]
    return segment_stamp.changes_of(data, entry.salt, 1, 0) or 0, entry.end


def flushed(node: Node) -> tuple[Incarnation, Peer]:
    """A worker that has flushed files, and has nothing under way; and its client."""
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 600)
    worker.until(lambda: len(worker.engine.files(False)) <= node.journal_files_max and len({*listed(node)}) == 1)
    return worker, producer


def in_use(index: Path) -> int:
    """Entries of a segment."""
    data = index.read_bytes()[FILE_HEADER_BYTES : segment_stamp.STAMP_AT]
    size = QUEUE_SEGMENT_ENTRY.size
    return sum(any(data[at : at + size]) for at in range(0, len(data), size))


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, suffix: str) -> None:
    """Every such call fails for files with this suffix, as on a disk that is lost."""
    real = getattr(os, call)

    def refused(descriptor: int, *arguments: object) -> object:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(suffix):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, call, refused)


def test_a_start_writes_little_again(node: Node) -> None:
    """After a clean stop nothing; after a kill the end of the newest journal file, which no later record vouches for,
    and no segment that the list knows as it is."""
    worker, _producer = flushed(node)
    assert worker.stop()
    worker = node.worker()
    assert worker.service.recovered.clean
    assert worker.service.recovered.written_again == 0
    producer = node.peer(worker)
    for _ in range(10):
        publish(worker, producer, 1)
    killed(node, worker)
    worker = node.worker()
    assert not worker.service.recovered.clean
    assert 0 < worker.service.recovered.written_again <= 2 * PAGE
    worker.kill()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_start_that_cannot_make_its_journal_durable_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    worker = node.worker()
    publish(worker, node.peer(worker), 3)
    killed(node, worker)
    with monkeypatch.context() as patched:
        refuse(patched, call, "/0.jnl")
        with pytest.raises(
            SyncFailed, match=r"the disk may lack of .*/0\.jnl: .*; check the disk, then start the node"
        ):
            node.worker()
    worker = node.worker(salvage=False)
    assert worker.engine.stats(1)[0] == 3
    worker.kill()


def test_a_clean_stop_says_nothing_of_segments(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush may fail while the journal is in order: its file stays, and the stop is a clean one."""
    worker, producer = flushed(node)
    index = node.folder.index_file(1, 0)
    before = in_use(index)
    with monkeypatch.context() as patched:
        refuse(patched, "fdatasync", ".idx")
        publish(worker, producer, 400)
        worker.until(lambda: listed(node)[0] > listed(node)[1])
        assert worker.stop()
    node.peers.clear()
    assert in_use(index) > before, "the next start takes these rows for flushed"
    synced: set[str] = set()
    fsync = os.fsync
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: (synced.add(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
        worker = node.worker()
    found = worker.service.recovered
    assert found.clean
    assert found.written_again == index.stat().st_size, "one segment, and nothing of the journal"
    assert str(index) in synced
    assert len({*listed(node)}) == 1
    worker.kill()


def test_a_segment_says_that_it_changes_before_it_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed in the middle: an entry that is there, or gone, without the stamp would be taken for synced."""
    worker, producer = flushed(node)
    index = node.folder.index_file(1, 0)
    seen: list[int] = []
    write_all = atomic_file.write_all

    def watched(descriptor: int, content: bytes, at: int) -> None:
        if at == segment_stamp.STAMP_AT and os.readlink(f"/proc/self/fd/{descriptor}") == str(index):
            seen.append(in_use(index))
        write_all(descriptor, content, at)

    monkeypatch.setattr(atomic_file, "write_all", watched)
    before = in_use(index)
    publish(worker, producer, 400)
    worker.until(lambda: seen and in_use(index) > before and len({*listed(node)}) == 1)
    assert seen[0] == before
    consumer = node.peer(worker)
    consumer.credit(1, credit=100)
    worker.until(lambda: consumer.get("delivery_tail") >= 100)
    consumer.ack(1, consumer.receive(worker)[-1].sequence, MULTIPLE)
    for _ in range(100):  # till the journal file with the acks is emptied
        publish(worker, producer, 40, queue=2)
        if in_use(index) < seen[-1] and len({*listed(node)}) == 1:
            break
    assert in_use(index) < seen[-1]
    worker.kill()


def test_a_cut_that_was_not_synced_is_made_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start zeroes a torn tail, and fails at the sync of that. The next one reads zeros; the disk has the tail."""
    worker = node.worker()
    publish(worker, node.peer(worker), 3)
    killed(node, worker)
    path = node.folder.journal_file(0)
    whole = path.read_bytes()
    end = -(-len(whole.rstrip(b"\0")) // PAGE) * PAGE
    tail = os.urandom(2 * PAGE)
    path.write_bytes(whole[:end] + tail + bytes(FILE_BYTES - end - len(tail)))
    with monkeypatch.context() as patched:
        refuse(patched, "fsync", "/0.jnl")
        with pytest.raises(SyncFailed):
            node.worker(salvage=False)
    assert path.read_bytes() == whole
    worker = node.worker(salvage=False)
    assert worker.service.recovered.torn_bytes == 0
    publish(worker, node.peer(worker), 1)
    killed(node, worker)
    with path.open("r+b") as file:  # the power fails: what was not written since is what the disk had
        file.seek(end + PAGE)
        file.write(tail[PAGE:])
    worker = node.worker(salvage=False)
    assert worker.service.recovered.damaged == []
    assert worker.engine.stats(1)[0] == 4
    worker.kill()
