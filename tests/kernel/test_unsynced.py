"""Goal: what may not be on the disk is written again with the bytes that are read, and synced; nothing else is touched.

Method: real files, and errors put into the system's calls.
"""

import errno
import os
from pathlib import Path

import pytest

from warren.engine.errors import DiskFull, StoreError, SyncFailed
from warren.engine.kernel import unsynced

PAGE = 4096
SIZE = 5 * PAGE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Some pages, one of zeros among them."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * PAGE) + bytes(PAGE) + os.urandom(SIZE - 3 * PAGE))
    return path


class Calls:
    """What is written and synced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[tuple[int, int]] = []
        self.synced_behind = -1
        pwrite, fsync = os.pwrite, os.fsync

        def write(descriptor: int, data: bytes, at: int) -> int:
            self.writes.append((at, len(data)))
            return pwrite(descriptor, data, at)

        def sync(descriptor: int) -> None:
            self.synced_behind = len(self.writes)
            fsync(descriptor)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize(
    ("start", "end", "writes"),
    [
        (0, None, [(0, SIZE)]),
        (100, 200, [(100, 100)]),
        (PAGE, 3 * PAGE + 1, [(PAGE, 2 * PAGE + 1)]),
        (500, 500, []),
        (SIZE - PAGE, 1 << 40, [(SIZE - PAGE, PAGE)]),
    ],
)
def test_the_same_bytes_are_written_and_then_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch, start: int, end: int | None, writes: list[tuple[int, int]]
) -> None:
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        calls = Calls(patched)
        assert unsynced.write_again(path, start, end) == sum(size for _at, size in writes)
    assert calls.writes == writes
    assert calls.synced_behind == len(writes), "synced last"
    assert path.read_bytes() == before


def test_a_long_file_is_written_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "STEP_BYTES", 3 * PAGE)
    calls = Calls(monkeypatch)
    assert unsynced.write_again(path, 100) == SIZE - 100
    assert calls.writes == [(100, 3 * PAGE), (3 * PAGE + 100, SIZE - 3 * PAGE - 100)]
    assert calls.synced_behind == 2


@pytest.mark.parametrize("bad", range(5))
def test_what_the_disk_refuses_to_read_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    pread = os.pread

    def read(descriptor: int, size: int, at: int) -> bytes:
        if at < (bad + 1) * PAGE and at + size > bad * PAGE:
            raise OSError(errno.EIO, "bad sector")
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", read)
    calls = Calls(monkeypatch)
    assert unsynced.write_again(path) == 4 * PAGE
    written = [page for at, size in calls.writes for page in range(at // PAGE, (at + size) // PAGE)]
    assert written == [page for page in range(5) if page != bad]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_an_error_says_what_and_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(number: int) -> None:
        def failing(*_args: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, call, failing)

    fail(errno.EIO)
    with pytest.raises(SyncFailed, match=f"what the disk may lack of {path}: Input/output error; check the disk"):
        unsynced.write_again(path)
    fail(errno.ENOSPC)
    with pytest.raises(DiskFull, match="make space"):
        unsynced.write_again(path)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="No such file"):
        unsynced.write_again(path.with_name("other"))
