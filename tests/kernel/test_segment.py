"""Goal: segment files are made whole or not at all, foreign and damaged ones are named clearly, torn tails are cut.

Method: real files, a full tmpfs (the kernel refuses more than it could ever hold), errors put into the system's calls,
and files cut and damaged by hand.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import (
    CorruptRecord,
    DiskFull,
    FormatVersionError,
    PermissionRefused,
    StoreError,
    SyncFailed,
    SystemLimit,
)
from warren.engine.kernel import atomic_file, data_files, frame, segment
from warren.engine.kernel.formats import FILE_HEADER, FILE_HEADER_BYTES, FILE_JOURNAL, FILE_STORE, KIND_MESSAGE
from warren.engine.store.folder import Spares, list_files, recycle
from warren.ipc.layout import CONSTANTS

SIZE = 64 * 1024
PLACE = {"kind": FILE_STORE, "node_id": 77, "owner": 2, "file": 5}


def make(path: Path, data: bytes = b"") -> segment.Created:
    """A file with frames (bytes) behind its header; its descriptor is closed."""
    made = segment.create(path, FILE_STORE, 77, 2, 5, SIZE)
    os.close(made.fd)
    if data:
        with path.open("r+b") as file:
            file.seek(FILE_HEADER_BYTES)
            file.write(data)
    return made


def test_created_file(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    made = segment.create(path, FILE_STORE, 77, 2, 5, SIZE)
    try:
        assert path.stat().st_size == SIZE
        assert path.stat().st_blocks * 512 >= SIZE
        assert path.stat().st_mode & 0o777 == 0o600
        assert os.stat(made.fd).st_ino == path.stat().st_ino
        assert path.read_bytes() == made.header + bytes(SIZE - FILE_HEADER_BYTES)
        assert not os.get_inheritable(made.fd)
    finally:
        os.close(made.fd)
    header = segment.read_header(path, **PLACE)
    assert header == segment.Header(1, FILE_STORE, 77, 2, 5, made.salt, header.created_ns, 5, 5)
    assert os.listdir(tmp_path) == ["5.rdq"]
    found = segment.scan_file(path, **PLACE)
    assert (len(found.frames), found.frames.end, found.frames.reason) == (0, FILE_HEADER_BYTES, "zeros")
    other = segment.create(tmp_path / "6.rdq", FILE_STORE, 77, 2, 6, SIZE)
    os.close(other.fd)
    assert other.salt != made.salt


def test_left_over_of_a_killed_create_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    (tmp_path / "5.rdq.new").write_bytes(b"half made")
    make(path)
    assert segment.list_files(tmp_path, ".rdq") == ([(5, path)], [], [], {})


def test_existing_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    made = make(path)
    with pytest.raises(StoreError, match="exists already"):
        segment.create(path, FILE_STORE, 77, 2, 5, SIZE)
    assert segment.read_header(path, **PLACE).salt == made.salt


@pytest.fixture
def small_disk() -> Iterator[Path]:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="warren-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_full_disk(small_disk: Path) -> None:
    size = os.statvfs(small_disk)
    with pytest.raises(DiskFull, match="continues by itself"):
        segment.create(small_disk / "5.rdq", FILE_STORE, 77, 2, 5, 2 * size.f_blocks * size.f_frsize)
    assert os.listdir(small_disk) == []
    made = segment.create(small_disk / "5.rdq", FILE_STORE, 77, 2, 5, SIZE)
    os.close(made.fd)
    assert segment.read_header(small_disk / "5.rdq", **PLACE).salt == made.salt


def fail(name: str, error: int, after: int = 0) -> Callable[[pytest.MonkeyPatch], None]:
    """Let os.<name>, or the opening of a data file, fail from its call number `after` on."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        place = data_files if name == "open" else os
        real = getattr(place, name)
        calls = iter(range(1000))

        def call(*args: object) -> object:
            if next(calls) >= after:
                raise OSError(error, os.strerror(error))
            return real(*args)

        monkeypatch.setattr(place, name, call)

    return patch


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (fail("posix_fallocate", errno.ENOSPC), DiskFull),
        (fail("posix_fallocate", errno.EDQUOT), DiskFull),
        (fail("posix_fallocate", errno.EFBIG), StoreError),
        (fail("pwrite", errno.EIO), StoreError),
        (fail("pwrite", errno.ENOSPC), DiskFull),
        (fail("fsync", errno.EIO), SyncFailed),
        (fail("fsync", errno.EIO, after=1), SyncFailed),  # of the directory
        (fail("fsync", errno.ENOSPC), DiskFull),
        (fail("open", errno.EACCES), PermissionRefused),
        (fail("open", errno.EROFS), PermissionRefused),
        (fail("fsync", errno.EROFS), SyncFailed),  # the disk became read-only under it
        (fail("open", errno.EMFILE), SystemLimit),
        (fail("open", errno.EMFILE, after=1), SystemLimit),  # the second descriptor, for O_DIRECT
    ],
)
def test_create_fails_without_leavings(
    tmp_path: Path, patch: Callable[[pytest.MonkeyPatch], None], expected: type[StoreError]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch)
        with pytest.raises(expected, match=r"5\.rdq|cannot sync") as caught:
            segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE)
    assert type(caught.value) is expected
    assert os.listdir(tmp_path) == []
    make(tmp_path / "5.rdq")


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENOMEM, errno.EIO],
)
def test_what_the_system_says_means_the_same_for_all_files(tmp_path: Path, call: str, number: int) -> None:
    """Segments and small files: the same class, and the same advice, for the same answer of the same call."""
    told = []
    for make in (
        lambda: segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE),
        lambda: atomic_file.replace(tmp_path / "mark", b"content"),
    ):
        with pytest.MonkeyPatch.context() as monkeypatch:
            fail(call, number)(monkeypatch)
            with pytest.raises(StoreError) as caught:
                make()
        reason, advice = str(caught.value).split(f": {os.strerror(number)}")
        assert str(tmp_path) in reason
        assert isinstance(caught.value.__cause__, OSError)
        told.append((type(caught.value), advice))
    assert told[0] == told[1]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("spared", [False, True])
def test_what_cannot_be_cleared_away_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spared: bool
) -> None:
    """Every unlink fails: that is a StoreError like others, and the next try works."""
    if spared:
        spare(tmp_path, 3)
    (tmp_path / f"5.rdq{segment.UNFINISHED}").write_bytes(b"of an earlier try")
    spares = Spares(tmp_path) if spared else None

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "refused", str(path))

    with monkeypatch.context() as refusing:
        refusing.setattr(data_files, "unlink", refuse)
        with pytest.raises(StoreError, match=r"5\.rdq"):
            segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE, spares=spares)
        refusing.setattr(os, "fsync", refuse)
        (tmp_path / f"5.rdq{segment.UNFINISHED}").replace(tmp_path / "away")
        with pytest.raises(StoreError):
            segment.create(tmp_path / "6.rdq", FILE_STORE, 77, 2, 6, SIZE, spares=spares)
    os.close(segment.create(tmp_path / "6.rdq", FILE_STORE, 77, 2, 6, SIZE, spares=spares).fd)


def test_file_system_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by open, or only by the first write: either way the file is there, buffered."""
    real_open, real_pwrite = data_files.open, os.pwrite

    def refuse_open(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return real_open(path, flags, *rest)

    monkeypatch.setattr(data_files, "open", refuse_open)
    made = segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE)
    os.close(made.fd)
    assert not made.direct
    monkeypatch.undo()

    writes = []

    def refuse_first(fd: int, data: bytes, at: int) -> int:
        writes.append(fd)
        if len(writes) == 1:
            raise OSError(errno.EINVAL, "not aligned enough")
        return real_pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", refuse_first)
    made = segment.create(tmp_path / "6.rdq", FILE_STORE, 77, 2, 6, SIZE)
    os.close(made.fd)
    assert segment.read_header(tmp_path / "6.rdq", **{**PLACE, "file": 6}).salt == made.salt


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        segment.create(tmp_path / "gone" / "5.rdq", FILE_STORE, 77, 2, 5, SIZE)
    with pytest.raises(StoreError, match="No such file or directory"):
        segment.list_files(tmp_path / "gone", ".rdq")
    with pytest.raises(StoreError, match="No such file or directory"):
        segment.read_header(tmp_path / "5.rdq", **PLACE)


# ---- headers ----


def damage(path: Path, at: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value)


def test_foreign_and_damaged_headers(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    path.write_bytes(b"")
    with pytest.raises(CorruptRecord, match="a file of 0 bytes"):
        segment.read_header(path, **PLACE)
    path.write_bytes(b"PK\x03\x04" * 2000)
    with pytest.raises(CorruptRecord, match="foreign file"):
        segment.read_header(path, **PLACE)
    path.unlink()
    make(path)
    for wrong, found in (
        ({"kind": FILE_JOURNAL}, "kind 2, found kind 1"),
        ({"node_id": 78}, "node_id 78, found node_id 77"),
        ({"owner": 3}, "owner 3, found owner 2"),
        ({"file": 6}, "file 6, found file 5"),
    ):
        with pytest.raises(CorruptRecord, match=found) as caught:
            segment.scan_file(path, **{**PLACE, **wrong})
        assert caught.value.path == path
        assert caught.value.position == FILE_HEADER.offset(next(iter(wrong)))
    damage(path, 2000, b"\1")
    with pytest.raises(CorruptRecord, match="CRC32C"):
        segment.read_header(path, **PLACE)


def test_newer_version_is_told_from_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    make(path)
    page = bytearray(path.read_bytes()[:FILE_HEADER_BYTES])
    FILE_HEADER.pack_into(page, "version", 3)
    damage(path, 0, bytes(page))
    with pytest.raises(CorruptRecord, match="format version 1, found 3"):
        segment.read_header(path, **PLACE)
    FILE_HEADER.pack_into(page, "crc", _core.crc32c(page[:4092]))
    damage(path, 0, bytes(page))
    with pytest.raises(FormatVersionError, match="newer one"):
        segment.read_header(path, **PLACE)
    FILE_HEADER.pack_into(page, "version", 0)
    damage(path, 0, bytes(page))
    with pytest.raises(CorruptRecord, match="found 0"):
        segment.read_header(path, **PLACE)


# ---- scan and repair ----


def frames(salt: int, count: int) -> bytes:
    return b"".join(frame.encode(KIND_MESSAGE, b"x" * n, salt=salt, sequence=n) for n in range(count))


def test_scan_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    made = make(path)
    data = frames(made.salt, 100)
    damage(path, FILE_HEADER_BYTES, data)
    found = segment.scan_file(path, **PLACE)
    assert found.header.salt == made.salt
    assert found.frames.rows["sequence"].tolist() == list(range(100))
    assert found.frames.end == FILE_HEADER_BYTES + len(data)
    row = found.frames.rows[42]
    assert frame.body(found.data, int(row["offset"]), int(row["total"])) == b"x" * 42


@pytest.mark.parametrize("cut", [1, 30, 56, 57, 100, 155])
def test_torn_tail_is_cut_and_zeroed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "5.rdq"
    made = make(path)
    data = frames(made.salt, 100)  # the last frame: 156 bytes
    damage(path, FILE_HEADER_BYTES, data[:-cut] + b"\xee" * 5000)
    found = segment.scan_file(path, **PLACE).frames
    assert not found.clean
    assert len(found) == 99
    assert segment.truncate_torn_tail(path, found.end) == SIZE - found.end
    assert path.stat().st_size == SIZE
    again = segment.scan_file(path, **PLACE)
    assert again.frames == frame.Scan(found.packed, found.end, "zeros")
    assert not any(again.data[found.end :])


def test_cut_outside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    make(path)
    for at in (0, FILE_HEADER_BYTES - 1, SIZE + 1):
        with pytest.raises(ValueError, match="cannot be cut"):
            segment.truncate_torn_tail(path, at)
    assert segment.truncate_torn_tail(path, SIZE) == 0


def test_shortened_file_is_scanned(tmp_path: Path) -> None:
    """As left by a death between the two truncations of a repair, or by a copy that ended early."""
    path = tmp_path / "5.rdq"
    made = make(path)
    damage(path, FILE_HEADER_BYTES, frames(made.salt, 10))
    end = segment.scan_file(path, **PLACE).frames.end
    os.truncate(path, end)
    assert segment.scan_file(path, **PLACE).frames.reason == "end"
    os.truncate(path, end - 1)
    found = segment.scan_file(path, **PLACE).frames
    assert (len(found), found.clean) == (9, False)


def test_unreadable_sector_is_an_error_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "5.rdq"
    make(path)
    fail("preadv", errno.EIO)(monkeypatch)
    with pytest.raises(StoreError, match="cannot read byte 0 of"):
        segment.scan_file(path, **PLACE)


# ---- listing ----


def test_listing(tmp_path: Path) -> None:
    ours = ["0.rdq", "2.rdq", "10.rdq"]
    unfinished = ["11.rdq.new"]
    foreign = ["01.rdq", "-1.rdq", "a.rdq", "3.jnl", "3.rdq~", ".rdq", "٣.rdq", "README", "1" * 20 + ".rdq"]
    for name in ours + unfinished + foreign:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "4.rdq").mkdir()
    (tmp_path / "5.rdq").symlink_to(tmp_path / "0.rdq")
    found = segment.list_files(tmp_path, ".rdq")
    assert found.files == [(int(name[:-4]), tmp_path / name) for name in ours]
    assert found.unfinished == [tmp_path / "11.rdq.new"]
    assert {path.name for path in found.foreign} == {*foreign, "4.rdq", "5.rdq"}


# -- recycling -------------------------------------------------------------------------------------------------


def spare(folder: Path, number: int, size: int = SIZE) -> tuple[Path, int]:
    """A file full of records that went, as a spare; and its salt."""
    path = folder / f"{number}.rdq"
    made = segment.create(path, FILE_STORE, 77, 2, number, size)
    os.close(made.fd)
    with path.open("r+b") as file:
        file.seek(FILE_HEADER_BYTES)
        file.write(frames(made.salt, 300)[: size - FILE_HEADER_BYTES])
    assert recycle(path, size, Spares(folder), 9)
    return folder / f"{number}.free", made.salt


def test_a_spare_becomes_the_next_file_and_none_of_its_records(tmp_path: Path) -> None:
    old, salt = spare(tmp_path, 3)
    inode = old.stat().st_ino
    passed: list[int] = []
    made = segment.create(
        tmp_path / "5.rdq",
        FILE_STORE,
        77,
        2,
        5,
        SIZE,
        spares=Spares(tmp_path),
        passed=passed.append,
        positions=(2, 4),
    )
    os.close(made.fd)
    assert os.listdir(tmp_path) == ["5.rdq"]
    assert passed == [CONSTANTS["CRASH_FILE_RECYCLED"]]
    assert (tmp_path / "5.rdq").stat().st_ino == inode
    found = segment.scan_file(tmp_path / "5.rdq", **PLACE)
    assert found.header[:6] == (1, FILE_STORE, 77, 2, 5, made.salt)
    assert (found.header.position_low, found.header.position_high) == (2, 4)
    assert made.salt != salt
    assert len(found.frames) == 0
    listed, _reason = _core.scan_list(5, made.salt, bytes(found.data))
    assert (listed.messages, listed.damage, listed.used) == (0, [], FILE_HEADER_BYTES)
    assert _core.scan_list(5, salt, bytes(found.data))[0].messages > 200  # they are there, and do not count


def test_reuse_is_asked_for_and_only_fits_the_size(tmp_path: Path) -> None:
    spare(tmp_path, 3, 2 * SIZE)
    kept, _salt = spare(tmp_path, 4)
    os.close(segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE).fd)
    assert sorted(os.listdir(tmp_path)) == ["3.free", "4.free", "5.rdq"]
    inode = kept.stat().st_ino
    made = segment.create(tmp_path / "6.rdq", FILE_STORE, 77, 2, 6, SIZE, spares=Spares(tmp_path))
    os.close(made.fd)
    assert sorted(os.listdir(tmp_path)) == ["5.rdq", "6.rdq"]  # of another size: of no use, and gone
    assert (tmp_path / "6.rdq").stat().st_ino == inode


def test_recycle_keeps_a_few(tmp_path: Path) -> None:
    for number in range(4):
        make_number(tmp_path, number)
    assert recycle(tmp_path / "0.rdq", SIZE, Spares(tmp_path), 2)
    assert recycle(tmp_path / "1.rdq", SIZE, Spares(tmp_path), 2)
    assert recycle(tmp_path / "2.rdq", SIZE, Spares(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == ["0.free", "1.free", "3.rdq"]
    assert recycle(tmp_path / "3.rdq", 2 * SIZE, Spares(tmp_path), 9)  # not of the size that is wanted
    assert sorted(os.listdir(tmp_path)) == ["0.free", "1.free"]
    assert not recycle(tmp_path / "3.rdq", SIZE, Spares(tmp_path), 9)


def make_number(folder: Path, number: int) -> None:
    os.close(segment.create(folder / f"{number}.rdq", FILE_STORE, 77, 2, number, SIZE).fd)


@pytest.mark.parametrize("victim", ["pwrite", "fsync", "rename"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_kill_at_any_step_leaves_a_spare_or_an_empty_file(tmp_path: Path, victim: str, after: int) -> None:
    """The directory is copied as it is at each call: what a kill there leaves. Never a file with old records."""
    spare(tmp_path, 3)
    image = tmp_path.with_name("image")
    real = {"pwrite": os.pwrite, "fsync": os.fsync, "rename": data_files.rename}[victim]
    calls = iter(range(100))

    def call(*args: object) -> object:
        if next(calls) == after:
            shutil.copytree(tmp_path, image)
        return real(*args)  # type: ignore[operator]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(data_files if victim == "rename" else os, victim, call)
        os.close(segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE, spares=Spares(tmp_path)).fd)
    if not image.exists():
        return  # fewer calls than that
    listing = list_files(image)
    assert listing.foreign == listing.unfinished == []
    for number, path in listing.files:
        found = segment.scan_file(path, kind=FILE_STORE, node_id=77, owner=2, file=number)
        assert len(found.frames) == 0
    assert len(listing.files) + len(listing.spares) == 1
    shutil.rmtree(image)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (fail("fsync", errno.EIO), SyncFailed),  # of the directory, before anything
        (fail("fsync", errno.EIO, after=1), SyncFailed),
        (fail("fsync", errno.EIO, after=2), SyncFailed),
    ],
)
def test_reuse_fails_without_a_file(
    tmp_path: Path, patch: Callable[[pytest.MonkeyPatch], None], expected: type[StoreError]
) -> None:
    spare(tmp_path, 3)
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch)
        with pytest.raises(expected):
            segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE, spares=Spares(tmp_path))
    assert segment.list_files(tmp_path, ".rdq").files == []
    made = segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE, spares=Spares(tmp_path))
    os.close(made.fd)


def test_a_spare_that_cannot_be_written_is_dropped(tmp_path: Path) -> None:
    spare(tmp_path, 3)
    with pytest.MonkeyPatch.context() as monkeypatch:
        real = os.pwrite
        calls = iter(range(100))

        def call(*args: object) -> object:
            if next(calls) == 0:
                raise OSError(errno.EIO, "bad sector")
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "pwrite", call)
        os.close(segment.create(tmp_path / "5.rdq", FILE_STORE, 77, 2, 5, SIZE, spares=Spares(tmp_path)).fd)
    assert os.listdir(tmp_path) == ["5.rdq"]
    data = (tmp_path / "5.rdq").read_bytes()
    assert data[FILE_HEADER_BYTES:] == bytes(SIZE - FILE_HEADER_BYTES)  # made afresh


def test_listing_of_a_store(tmp_path: Path) -> None:
    for name in ("3.rdq", "4.rdq", "3.lst", "7.lst", "9.free", "1.free", "5.rdq.new", "5.lst.new", "x.lst", "03.free"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "8.lst").mkdir()
    listing = list_files(tmp_path)
    assert [number for number, _path in listing.files] == [3, 4]
    assert listing.lists == {3: tmp_path / "3.lst", 7: tmp_path / "7.lst"}
    assert [number for number, _path in listing.spares] == [1, 9]
    assert [path.name for path in listing.unfinished] == ["5.lst.new", "5.rdq.new"]
    assert [path.name for path in listing.foreign] == ["03.free", "8.lst", "x.lst"]
    journals = segment.list_files(tmp_path, ".jnl")
    assert (journals.files, journals.beside) == ([], {})


def test_positions_must_make_sense(tmp_path: Path) -> None:
    path = tmp_path / "5.rdq"
    make(path)
    for low, high in ((4, 3), (0, 6)):
        page = _core.file_header_pack(FILE_STORE, 77, 2, 5, 1, 2, low, high)
        with path.open("r+b") as file:
            file.write(page)
        with pytest.raises(CorruptRecord, match="positions"):
            segment.read_header(path, **PLACE)


def test_what_a_disk_refuses_once_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what it refuses again and again is damage; other errors are none of the disk's, and are raised at once."""
    path = tmp_path / "0.rdq"
    path.write_bytes(b"x" * FILE_HEADER_BYTES)
    refusals: list[int] = []
    real = os.preadv

    def refuse(*arguments: Any) -> int:
        if refusals:
            raise OSError(refusals.pop(), "refused")
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", refuse)
    refusals += [errno.EIO] * (segment.READS_MAX - 1)
    assert segment.read_page(path) == b"x" * FILE_HEADER_BYTES
    refusals += [errno.EIO] * segment.READS_MAX
    with pytest.raises(StoreError, match="cannot read byte 0"):
        segment.read_page(path)
    assert refusals == []
    refusals += [errno.ENOMEM, errno.ENOMEM]
    with pytest.raises(StoreError):
        segment.read_page(path)
    assert refusals == [errno.ENOMEM]
