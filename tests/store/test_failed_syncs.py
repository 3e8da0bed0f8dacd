"""Goal: a start of the store writes again what no frame says was synced of its youngest file, and no more; one that
cannot do that fails. So does a repair before it makes the list of a file.

Method: a real server killed and started anew, and what it says; folders made by hand, whose writes and syncs are
watched, or fail. That nothing confirmed is lost is shown in crash/test_failed_syncs.py.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.errors import SyncFailed
from warren.engine.store import scanning
from warren.engine.store.check import StoreCheck
from warren.engine.store.folder import list_path

from support.store_folder import ALL, NODE, OWNER, Folder, three
from support.store_node import StoreNode, message_id

PAGE = 4096


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    with StoreNode(tmp_path / "node") as made:
        made.start()
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "store").mkdir()
    return Folder(tmp_path / "store")


def used(folder: Folder, number: int) -> int:
    return scanning.scan(folder.file(number), number, folder.salts[number])[0].used


class Watched:
    """Bytes of a file that are written, up to its last sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.path = path
        self.synced: set[int] = set()
        written: set[int] = set()
        pwrite, fsync = os.pwrite, os.fsync

        def write(descriptor: int, data: bytes, at: int) -> int:
            if self.meant(descriptor):
                written.update(range(at, at + len(data)))
            return pwrite(descriptor, data, at)

        def sync(descriptor: int) -> None:
            fsync(descriptor)
            if self.meant(descriptor):
                self.synced.update(written)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "fsync", sync)

    def meant(self, descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(self.path)


def test_a_start_writes_little_again(node: StoreNode) -> None:
    """After a clean stop nothing; after a kill the end of the youngest file, which no later frame vouches for."""

    def written_again() -> list[int]:
        said = node.log_text().split("warren ")[-1]
        return [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes? written again", said)]

    client = node.client()
    client.write([(message_id(n), bytes(3000)) for n in range(20)])
    assert node.stop() == 0
    node.restart_cold()
    node.start()
    assert written_again() == []
    client = node.client()
    for n in range(20, 40):
        client.write([(message_id(n), bytes(3000))])
    node.kill()
    node.restart_cold()
    node.start()
    [count] = written_again()
    assert 3000 < count <= 2 * PAGE
    assert node.client().read(message_id(39)) == bytes(3000)


def test_a_start_writes_again_what_nobody_says_was_synced(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the youngest file alone: those before it were synced before it had a frame."""
    three(folder, listed=False)
    end = used(folder, 2)
    with monkeypatch.context() as patched:
        watched = Watched(patched, folder.file(2))
        started = folder.start()
    assert started.report.written_again == end - PAGE
    assert watched.synced == set(range(PAGE, end))
    assert started.served == ALL
    assert folder.start().report.written_again == 0, "it has a list now"


def test_what_ends_a_file_is_written_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start ends a torn tail, and fails at the sync of that. The next one finds it ended; the disk may lack it."""
    three(folder, listed=False)
    end = used(folder, 2)
    with folder.file(2).open("r+b") as file:
        file.seek(end)
        file.write(os.urandom(600))
    with monkeypatch.context() as patched:
        _refuse(patched, "fsync", folder.file(2))
        with pytest.raises(SyncFailed):
            folder.start()
    assert used(folder, 2) > end, "it is read as ended"
    with monkeypatch.context() as patched:
        watched = Watched(patched, folder.file(2))
        assert folder.start().served == ALL
    assert set(range(end, end + 600)) <= watched.synced


def _refuse(monkeypatch: pytest.MonkeyPatch, call: str, path: Path) -> None:
    real = getattr(os, call)

    def refused(descriptor: int, *arguments: object) -> object:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, call, refused)


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_start_that_cannot_make_its_youngest_file_durable_fails(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    three(folder, listed=False)
    with monkeypatch.context() as patched:
        _refuse(patched, call, folder.file(2))
        with pytest.raises(
            SyncFailed, match=r"the disk may lack of .*/2\.rdq: .*; check the disk, then start the node"
        ):
            folder.start()
    assert folder.start().served == ALL


def test_a_repair_makes_no_list_of_what_may_not_be_synced(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    three(folder, listed=False)
    end = used(folder, 2)
    watched = Watched(monkeypatch, folder.file(2))
    check = StoreCheck(folder.path, NODE, OWNER, False)
    check.examine()
    check.repair()
    assert list_path(folder.path, 2).exists()
    assert watched.synced >= set(range(PAGE, end))
