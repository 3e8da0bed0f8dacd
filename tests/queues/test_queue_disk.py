"""A disk that fails while the queue index moves on: full, short of space within a write, with errors of its own.

Goal: whatever call fails, and however often, the next try or the next start finds every message with its bytes; nothing
that is needed goes before what replaces it is whole. Method: the flush of one journal file, called directly; the n-th
call of the system that changes a file fails, for each n, until one flush gets through. Then the journal file is
removed, as the worker does, and the next incarnation reads what there is.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_JOURNAL, LISTED_JOURNAL
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.queues import flush as queue_flush
from warren.engine.queues import next_files

from support.long import in_part
from support.queue_probe import SERVER_INDEX, Incarnation, Node, Queue

MULTIPLE = PROTOCOL["FLAG_MULTIPLE"]
NODE_ID = 7
N, ACKED = 60, 45
CALLS = ("pwrite", "fsync", "fdatasync", "rename", "link", "posix_fallocate", "open", "mkdir")
FAILURES = ("full", "error", "short", "nothing")


class Disk:
    """The n-th call that changes a file fails; `failed` says whether it came to that. Those of other threads do not
    count: the worker's own makes the next journal file meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self.how = how
        self.thread = threading.get_ident()
        self.left = -1
        self.failed = self.shortened = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def fail_at(self, n: int) -> None:
        self.left, self.failed, self.shortened = n, False, False

    def heal(self) -> None:
        self.left = -1

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            reads = name == "open" and not arguments[1] & (os.O_RDWR | os.O_WRONLY)
            if reads or threading.get_ident() != self.thread:
                return real(*arguments, **named)
            self.left -= 1
            if self.left != -1:
                return real(*arguments, **named)
            self.failed = True
            if self.how in ("short", "nothing") and name == "pwrite" and not self.shortened:
                if self.how == "nothing":
                    return 0
                fd, data, at = arguments
                self.left, self.shortened = 0, True  # the rest finds no room
                return real(fd, memoryview(data)[: len(data) // 2], at)
            raise OSError(errno.EIO if self.how == "error" else errno.ENOSPC, "as the test wants it")

        return call


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, queues=[Queue(1), Queue(2), Queue(3)])


def body(i: int) -> bytes:
    return b"%08d" % i + bytes([i % 251]) * 1500


def fill(node: Node, acked: int) -> Incarnation:
    """A worker whose first journal file is sealed, with N messages of which some are acked; two queues."""
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    for i in range(N):
        producer.publish([1, 2] if i % 2 else 1, body(i))
    worker.until(lambda: producer.get("synced") == producer.prepared)
    if acked:
        consumer.credit(1, credit=acked)
        worker.turns()
        consumer.ack(1, consumer.receive(worker)[-1].sequence, MULTIPLE)
        worker.until(lambda: consumer.get("head") == consumer.prepared)
    while len(worker.engine.files(False)) < 3:
        for _ in range(20):
            producer.publish(3, bytes(1500))
        worker.until(lambda: producer.get("synced") == producer.prepared)
    if acked:  # so little is alive that it is copied
        assert "count" in consumer.control(worker, op="purge", queue=3)
    worker.until(lambda: worker.engine.may_delete(0))
    return worker


def flush(node: Node, worker: Incarnation) -> memoryview:
    """The rows, with their new places."""
    found = worker.service.recovered
    into = bytearray()
    size = worker.engine.export_file(0, into)
    rows = memoryview(into)[:size]
    files = worker.service._list
    queue_flush.flush(node.folder, NODE_ID, SERVER_INDEX, 0, rows, found.segment_live, found.named, files)
    return rows


def bodies(worker: Incarnation, node: Node, queue: int) -> list[bytes]:
    """All that is ready, with its bytes."""
    consumer = node.peer(worker)
    consumer.credit(queue)
    found = []
    worker.turns()
    while more := consumer.receive(worker):
        found += [item.body for item in more]
        consumer.ack_many(queue, [item.sequence for item in more])
        worker.turns()
    return found


def judge(node: Node, worker: Incarnation, placed: memoryview, acked: int) -> None:
    """The journal file goes; a start from what is on disk has everything."""
    worker.engine.flushed(0, placed)
    worker.service._list.note(gone=[(LISTED_JOURNAL, 0, 0)])
    worker.kill()
    node.folder.journal_file(0).unlink()
    node.peers.clear()
    worker = node.worker(salvage=False)
    assert not worker.service.recovered.damaged
    assert bodies(worker, node, 1) == [body(i) for i in range(acked, N)]
    assert bodies(worker, node, 2) == [body(i) for i in range(1, N, 2)]
    worker.kill()
    found = segment.read_header(
        node.folder.data_file(0), kind=FILE_JOURNAL, node_id=NODE_ID, owner=SERVER_INDEX, file=0
    )
    data = node.folder.data_file(0).read_bytes()
    for at in np.frombuffer(placed, dtype=queue_flush.ROW)["offset"].tolist():
        assert not isinstance(_core.frame_check(data, at, found.salt), str)


@pytest.mark.parametrize("acked", [0, ACKED], ids=["linked", "copied"])
@pytest.mark.parametrize("how", FAILURES)
def test_a_flush_that_fails_at_any_call_loses_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, how: str, acked: int
) -> None:
    worker = fill(node, acked)
    disk = Disk(monkeypatch, how)
    for n in range(200):
        disk.fail_at(n)
        try:
            placed = flush(node, worker)
        except StoreError:
            assert disk.failed
            continue
        if not disk.failed:
            break
    else:
        pytest.fail("no flush got through")
    assert n > 4
    disk.heal()
    judge(node, worker, placed, acked)


@pytest.mark.parametrize("how", in_part(FAILURES, 2))
def test_a_start_after_a_flush_that_failed_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The same, but the worker is killed after each failure, and the next one starts over what that left."""
    for n in range(200):
        node = Node(tmp_path / str(n), queues=[Queue(1), Queue(2), Queue(3)])
        worker = fill(node, ACKED)
        with monkeypatch.context() as patched:
            disk = Disk(patched, how)
            disk.fail_at(n)
            try:
                flush(node, worker)
            except StoreError:
                assert disk.failed
        worker.kill()
        node.peers.clear()
        worker = node.worker(salvage=False)
        assert not worker.service.recovered.damaged
        assert bodies(worker, node, 1) == [body(i) for i in range(ACKED, N)]
        assert bodies(worker, node, 2) == [body(i) for i in range(1, N, 2)]
        worker.kill()
        if not disk.failed:
            break
    assert n > 4


@pytest.mark.parametrize("found", [b"", b"WRNSEG01", bytes(FILE_HEADER_BYTES), bytes(3 * FILE_HEADER_BYTES)])
@pytest.mark.parametrize("restart", [False, True], ids=["retry", "start"])
def test_a_half_made_data_file_is_never_built_upon(node: Node, found: bytes, restart: bool) -> None:
    """As a full disk left it: a data file without the journal's header page."""
    worker = fill(node, ACKED)
    node.folder.data_file(0).write_bytes(found)
    if restart:
        worker.kill()
        node.peers.clear()
        worker = node.worker(salvage=False)
    placed = flush(node, worker)
    judge(node, worker, placed, ACKED)


def test_a_second_flush_of_a_file_goes_behind_the_first(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fill(node, ACKED)
    flush(node, worker)
    worker.service.recovered.segment_live.clear()  # as if its last sync had failed: its entries were not counted
    size = node.folder.data_file(0).stat().st_size
    disk = Disk(monkeypatch, "short")
    disk.fail_at(1)  # the frames; before it the file is opened
    with pytest.raises(StoreError):
        flush(node, worker)
    assert disk.failed
    disk.heal()
    assert node.folder.data_file(0).stat().st_size == size, "what was not written whole does not stay"
    placed = flush(node, worker)
    assert node.folder.data_file(0).stat().st_size > size
    judge(node, worker, placed, ACKED)


class Listed:
    """The list of files, which cannot be written the first time."""

    def __init__(self) -> None:
        self.refuses = True
        self.noted: list[object] = []

    def note(self, entries: dict[Any, Any]) -> None:
        if self.refuses:
            raise StoreError("no memory")
        self.noted += entries


def test_a_journal_file_that_could_be_neither_listed_nor_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is wanted again; the thread that makes files goes on, and says why it could not."""
    folder = SimpleNamespace(journal_file=lambda number: tmp_path / f"{number}.jnl")
    superblock = SimpleNamespace(get=lambda _name: 0)
    options: Any = SimpleNamespace(folder=folder, superblock=superblock, node_id=NODE_ID, file_bytes=1 << 16)
    files: Any = Listed()
    made = next_files.NextFiles(SimpleNamespace(kick=lambda: None), options, SERVER_INDEX, files)  # type: ignore[arg-type]

    def refused(path: Path, **_options: object) -> None:
        if path.suffix == ".jnl":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as disk:
        disk.setattr(next_files.data_files, "unlink", refused)
        with pytest.raises(StoreError, match="no memory"):
            made._make((False, 5))
        assert (tmp_path / "5.jnl").exists()
        with pytest.raises(StoreError, match="cannot remove"):
            made._make((False, 5))
    files.refuses = False
    os.close(made._make((False, 5)).fd)
    assert files.noted == [(LISTED_JOURNAL, 0, 5)]
