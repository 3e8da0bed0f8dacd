"""Goal: what the log says is committed can be read from its files, by whoever comes after whatever death.

Method: the Log of the C core with real files and a committer thread, small files so that it rolls all the time; files
scanned afterwards; a child process killed in the middle of committing; descriptors and limits that make writes fail.
The C side has its own test with injected faults and sanitizers (tests/kernel/log_test.c).
"""

import errno
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.kernel import frame, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, FRAME_BYTES_MIN, KIND_MESSAGE

SIZE = 64 * 1024
IMAGES = 2
ID = b"i" * 16
BODY_MAX = SIZE - FILE_HEADER_BYTES - FRAME_BYTES_MIN


class Bench:
    """A log with a committer thread over files 0, 1, … of a directory."""

    def __init__(self, directory: Path, may_sync: bool = True, flags: int | None = None) -> None:
        self.directory = directory
        self.flags = flags
        self.region = mmap.mmap(-1, 4096 + IMAGES * SIZE)
        self.log = _core.Log(self.region, IMAGES, SIZE, may_sync)
        self.files = 0
        self.thread = threading.Thread(target=self.log.run_committer)
        self.thread.start()

    def offer(self) -> None:
        made = segment.create(self.path(self.files), FILE_STORE, 1, 0, self.files, SIZE)
        fd = made.fd
        if self.flags is not None:
            os.close(fd)
            fd = os.open(self.path(self.files), self.flags)
        self.log.offer(fd, self.files, made.salt, made.header)
        self.files += 1

    def path(self, file: int) -> Path:
        return self.directory / f"{file}.rdq"

    def append(self, sequence: int, body: bytes, sync: bool = True) -> tuple[int, int]:
        """Append one frame, waiting for the committer and offering files as needed."""
        while True:
            if not self.log.state()["has_next"]:
                self.offer()
            place = self.log.append_frame(KIND_MESSAGE, ID, 0, 1, sequence, 0, 0, body, sync)
            if place is not None:
                return place
            assert self.log.quiesce(60)

    def commit(self, sync: bool = True) -> None:
        assert self.log.seal(sync)
        assert self.log.quiesce(60)

    def scan(self) -> list[int]:
        """Sequences of all frames on disk, in order of files."""
        found: list[int] = []
        for file, path in segment.list_files(self.directory, ".rdq").files:
            frames = segment.scan_file(path, kind=FILE_STORE, node_id=1, owner=0, file=file).frames
            assert frames.clean
            found += frames.rows["sequence"].tolist()
        return found

    def close(self) -> None:
        self.log.stop()
        self.thread.join()
        self.log.close()
        self.region.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@contextmanager
def read_only(directory: Path, flags: int) -> Iterator[Bench]:
    made = Bench(directory, flags=flags)
    yield made
    made.close()


def test_committed_frames_are_in_the_files(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice((rng.randrange(300), rng.randrange(9000)))) for _ in range(400)]
    places = []
    for sequence, body in enumerate(bodies):
        places.append(bench.append(sequence, body, rng.random() < 0.5))
        if rng.random() < 0.1:
            bench.log.seal(rng.random() < 0.5)
    bench.commit()
    assert bench.scan() == list(range(400))
    assert bench.files > 4
    for (file, offset), body in zip(places, bodies, strict=True):
        found = segment.scan_file(bench.path(file), kind=FILE_STORE, node_id=1, owner=0, file=file)
        head = frame.check(found.data, offset, found.header.salt)
        assert head is not None
        assert frame.body(found.data, offset, head.total) == body
    state = bench.log.state()
    assert not state["busy"]
    assert state["sealed_to"] == state["append"]
    assert state["append"] % 4096 == 0
    assert state["bytes_written"] % 4096 == 0


def test_images_are_read_until_reused(bench: Bench) -> None:
    def read(place: tuple[int, int], size: int) -> bytes | None:
        return _core.image_read(bench.region, IMAGES, SIZE, *place, size)

    body = b"b" * (BODY_MAX // 3)
    first = bench.append(0, body)
    total = len(body) + FRAME_BYTES_MIN
    made = read(first, total)
    assert made is not None  # before any commit
    salt = bench.log.state()["salt"]
    assert frame.check(made, 0, salt) is not None
    assert read((0, first[1]), total + 1) is None
    assert read((1, 4096), 1) is None
    sequence = 1
    while bench.log.state()["file"] < IMAGES:
        assert read(first, total) == made
        bench.append(sequence, body)
        sequence += 1
    assert read(first, total) is None
    data = segment.scan_file(bench.path(0), kind=FILE_STORE, node_id=1, owner=0, file=0).data
    assert data[first[1] :][:total] == made


def test_append_run(bench: Bench) -> None:
    bench.offer()
    bench.offer()
    count = bench.log.append_run(KIND_MESSAGE, ID, 0, 1, 0, 0, 0, b"x" * 100, True, 1_000_000)
    assert 2 * (SIZE - FILE_HEADER_BYTES) // 157 - 3 <= count < 1_000_000
    bench.commit()
    assert bench.scan() == list(range(count))


def test_largest_frame_fills_the_file(bench: Bench) -> None:
    bench.offer()
    for size in (BODY_MAX + 1, BODY_MAX - 1, BODY_MAX - FRAME_BYTES_MIN + 1, SIZE):
        with pytest.raises(OSError, match="too long") as caught:
            bench.log.append_frame(KIND_MESSAGE, ID, 0, 1, 0, 0, 0, bytes(size), True)
        assert caught.value.errno == errno.EMSGSIZE
    assert bench.append(0, bytes(BODY_MAX)) == (0, FILE_HEADER_BYTES)
    assert bench.append(1, bytes(BODY_MAX - FRAME_BYTES_MIN)) == (1, FILE_HEADER_BYTES)
    bench.commit()
    assert bench.scan() == [0, 1]


def test_waits_for_a_file(bench: Bench) -> None:
    assert bench.log.append_frame(KIND_MESSAGE, ID, 0, 1, 0, 0, 0, b"", True) is None
    bench.offer()
    assert bench.log.append_run(KIND_MESSAGE, ID, 0, 1, 0, 0, 0, bytes(20000), True, 10) == 3
    bench.offer()
    made = segment.create(bench.path(2), FILE_STORE, 1, 0, 2, SIZE)
    with pytest.raises(OSError, match="busy") as caught:
        bench.log.offer(made.fd, 2, made.salt, made.header)
    assert caught.value.errno == errno.EBUSY
    os.close(made.fd)  # still the caller's


def test_log_that_never_syncs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, may_sync=False)
    for sequence in range(1000):
        bench.append(sequence, b"x" * 500)
    bench.commit()
    assert bench.log.state()["syncs_n"] == 0
    assert bench.scan() == list(range(1000))
    bench.close()


def test_failed_write_freezes_the_log(tmp_path: Path) -> None:
    with read_only(tmp_path, os.O_RDONLY) as bench:
        bench.append(0, b"never confirmed")
        bench.commit()
        assert bench.log.state()["failed"] == errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor"):
            bench.log.append_frame(KIND_MESSAGE, ID, 0, 1, 1, 0, 0, b"", True)
        bench.commit()
        assert bench.log.state()["bytes_written"] == 0
        assert bench.scan() == []


def test_file_size_limit_freezes_the_log(bench: Bench) -> None:
    """RLIMIT_FSIZE: the first write is short, the next one fails; what was committed before is there."""
    bench.append(0, b"x" * 5000)
    bench.commit()
    bench.append(1, b"y" * 30000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7 * 4096 + 512, hard))
    try:
        bench.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert bench.log.state()["failed"] == errno.EFBIG
    frames = segment.scan_file(bench.path(0), kind=FILE_STORE, node_id=1, owner=0, file=0).frames
    assert frames.rows["sequence"].tolist() == [0]
    assert frames.clean is False
    assert segment.truncate_torn_tail(bench.path(0), frames.end) > 0
    assert bench.scan() == [0]


def test_committer_and_close(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(0, b"")
    with pytest.raises(RuntimeError, match="join its thread"):
        bench.log.close()
    with pytest.raises(RuntimeError, match="committer already"):
        bench.log.run_committer()
    assert bench.log.quiesce(0)
    with pytest.raises(ValueError, match="seconds"):
        bench.log.quiesce(-1)
    assert bench.log.seal(True)
    bench.close()  # what was posted is written first
    assert bench.scan() == [0]
    for call in (bench.log.state, bench.log.stop, bench.log.run_committer):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_region_that_does_not_fit() -> None:
    with mmap.mmap(-1, 4096 + IMAGES * SIZE) as region:
        for images_n, size in ((1, SIZE), (3, SIZE), (2, SIZE + 1), (2, 4096), (65, 8192), (2, 1 << 62)):
            with pytest.raises(OSError, match="Invalid argument"):
                _core.Log(region, images_n, size)
        with pytest.raises(BufferError):
            _core.Log(bytes(region), IMAGES, SIZE)  # read only


CHILD = """
import sys
from pathlib import Path
from kernel.test_log import Bench
bench = Bench(Path(sys.argv[1]))
sequence = 0
while True:
    for _ in range(50):
        bench.append(sequence, b"x" * (sequence % 700))
        sequence += 1
    bench.commit()
    print(sequence, flush=True)
"""


@pytest.mark.crash
def test_kill_leaves_a_prefix_with_all_that_was_confirmed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for round in range(3):
        directory = tmp_path / str(round)
        directory.mkdir()
        paths = [str(Path(__file__).parent.parent), *sys.path]
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        ) as child:
            assert child.stdout is not None
            confirmed = 0
            for _ in range(rng.randrange(1, 40)):
                confirmed = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
            confirmed = int(rest[-1]) if rest else confirmed
        found: list[int] = []
        listing = segment.list_files(directory, ".rdq")
        for file, path in listing.files:
            frames = segment.scan_file(path, kind=FILE_STORE, node_id=1, owner=0, file=file).frames
            assert frames.clean or path == listing.files[-1][1] or path == listing.files[-2][1]
            found += frames.rows["sequence"].tolist()
        assert found == list(range(len(found)))
        assert len(found) >= confirmed
