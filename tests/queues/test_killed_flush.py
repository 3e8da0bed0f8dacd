"""Goal: a worker that is killed in a flush, before it synced what it wrote into a segment, loses nothing when the power
fails after the next worker has removed the journal file for which that stood.

Method: a worker over one directory is killed between the write and its sync (support.queue_probe); the next one is
watched for what it syncs. Then the segment gets the bytes back that were certain, if nobody has synced the others.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.queue_probe import Incarnation, Node, Peer, Queue


def publish(worker: Incarnation, producer: Peer, first: int, n: int) -> None:
    for i in range(first, first + n):
        producer.publish(1, b"%08d" % i + b"." * 1492)
        if producer.prepared % 64 == 0:
            worker.until(lambda: producer.get("head") + 900 > producer.prepared)
    worker.until(lambda: producer.get("synced") == producer.prepared)


def snapshot(folder: Path) -> dict[Path, bytes]:
    """Every file and its bytes; the serving thread may rename one meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def put_back(folder: Path, image: dict[Path, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path not in image:
            path.unlink()
    for path, content in image.items():
        path.write_bytes(content)


@pytest.mark.crash
def test_what_a_killed_flush_wrote_is_synced_before_its_journal_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, queues=[Queue(1)], journal_files_max=2)
    folder, index = node.folder.path, node.folder.index_file(1, 0)
    worker = node.worker()
    producer = node.peer(worker)
    publish(worker, producer, 0, 700)
    worker.until(lambda: len(worker.engine.files(False)) <= node.journal_files_max and index.exists())
    certain, oldest = b"", -1
    image: dict[Path, bytes] = {}

    def killed(name: str) -> None:
        nonlocal certain, oldest
        if name == "flush.dat-synced" and not image:
            certain = index.read_bytes()
            oldest = min(int(path.stem) for path in node.folder.journal.glob("*.jnl"))
        elif name == "flush.idx" and not image:
            image.update(snapshot(folder))

    worker.service.options.reached = killed
    publish(worker, producer, 700, 700)
    worker.until(lambda: image)
    worker.kill()
    put_back(folder, image)
    assert index.read_bytes() != certain
    node.peers.clear()
    node.old_images = None

    synced: set[str] = set()

    def watch(sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(descriptor: int) -> None:
            synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        return watched

    monkeypatch.setattr(os, "fsync", watch(os.fsync))
    monkeypatch.setattr(os, "fdatasync", watch(os.fdatasync))
    then: set[str] = set()
    image.clear()

    def removed(name: str) -> None:
        if name == "flush.dat-synced" and not image:
            then.update(synced)
            image.update(snapshot(folder))

    worker = node.worker(salvage=False)
    ready = worker.engine.stats(1)[0]
    worker.service.options.reached = removed
    worker.until(lambda: image)
    worker.kill()
    monkeypatch.undo()
    assert node.folder.journal_file(oldest) not in image
    put_back(folder, image)
    if str(index) not in then:
        index.write_bytes(certain)
    node.peers.clear()
    node.old_images = None
    worker = node.worker(salvage=False)
    assert worker.service.recovered.damaged == []
    assert worker.engine.stats(1)[0] == ready
    worker.kill()
    assert str(index.parent) in then, "what was removed there may come back, without the acks that emptied it"
