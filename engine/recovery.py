"""How a store starts and stops: a snapshot and a clean mark after a clean stop, else a scan of all files.

    <folder>/<n>.rdq          segment files
    <folder>/index.snapshot   magic:8 | crc32c:4 (of all that follows) | header_bytes:4 | header (msgpack) | rows
    <folder>/clean            the mark (JSON): node id, size and CRC of the snapshot; it goes before work begins

The snapshot is a cache of what the files say. Its rows are `index_row`s in the order of this machine, so it also names
the layout that wrote it; what does not fit (another layout, a file more or less, a wrong checksum) leads to a scan.

Order of a stop: everything synced; snapshot written, synced and renamed; the same for the mark; directory synced.
Order of a start: mark checked, mark removed and the directory synced, then the snapshot is used. So work never goes on
beside a mark, and a stop or kill during recovery leaves a directory without one.
Crash points: between snapshot and mark: the next start scans. During a scan: nothing was changed but torn tails cut.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from warren.engine import _core, atomic_file, segment
from warren.engine.errors import CorruptRecord, FormatVersionError, LimitError, StoreError
from warren.engine.file_summary import FileRow
from warren.engine.formats import FILE_HEADER_BYTES, FILE_STORE
from warren.ipc.layout import INDEX_ROW, LAYOUT_HASH, PAGE_BYTES

SUFFIX = ".rdq"
SNAPSHOT = "index.snapshot"
CLEAN = "clean"
MAGIC = b"WRNSNP01"
SNAPSHOT_VERSION = 1


class SnapshotFile(msgspec.Struct, array_like=True):
    """What a snapshot remembers of a file."""

    file: int
    used: int
    pin_low: int
    pin_high: int


class SnapshotHeader(msgspec.Struct):
    """Header of a snapshot."""

    version: int
    node_id: int
    owner: int
    layout_hash: int
    next_file: int
    rows: int
    files: list[SnapshotFile]


class CleanMark(msgspec.Struct):
    """Content of `clean`."""

    version: int
    node_id: int
    snapshot_bytes: int
    snapshot_crc: int


@dataclass
class Report:
    """How a start went."""

    clean: bool = False
    files: int = 0
    frames: int = 0
    next_file: int = 0
    dropped: int = 0  #: rows whose file is not there
    torn_bytes: int = 0
    damaged: list[str] = field(default_factory=list)  #: what was found damaged and skipped, for people
    foreign: list[Path] = field(default_factory=list)


class Snapshot(NamedTuple):
    """A checked snapshot."""

    header: SnapshotHeader
    rows: memoryview


# -- stop -------------------------------------------------------------------------------------------------------------


def save(folder: Path, node_id: int, owner: int, next_file: int, rows: bytes, files: Iterable[FileRow]) -> None:
    """Write the snapshot, and the clean mark last. Everything must be synced before. Raises StoreError."""
    header = msgspec.msgpack.encode(
        SnapshotHeader(
            SNAPSHOT_VERSION,
            node_id,
            owner,
            LAYOUT_HASH,
            next_file,
            len(rows) // INDEX_ROW.size,
            [SnapshotFile(row.file, row.file_size, row.pin_low, row.pin_high) for row in files],
        )
    )
    body = len(header).to_bytes(4, "big") + header
    crc = _core.crc32c(rows, _core.crc32c(body))
    content = b"".join((MAGIC, crc.to_bytes(4, "big"), body, rows))
    atomic_file.replace(folder / SNAPSHOT, content)
    mark = CleanMark(SNAPSHOT_VERSION, node_id, len(content), crc)
    atomic_file.replace(folder / CLEAN, msgspec.json.encode(mark))


# -- start ------------------------------------------------------------------------------------------------------------


def _read_snapshot(folder: Path, node_id: int, owner: int, present: list[int]) -> Snapshot | None:
    """The snapshot if the clean mark vouches for it and it fits the files; None: scan."""
    try:
        mark = msgspec.json.decode((folder / CLEAN).read_bytes(), type=CleanMark)
        content = memoryview((folder / SNAPSHOT).read_bytes())
        if (mark.version, mark.node_id, mark.snapshot_bytes) != (SNAPSHOT_VERSION, node_id, len(content)):
            return None
        header_end = 16 + int.from_bytes(content[12:16], "big")
        if bytes(content[:8]) != MAGIC or int.from_bytes(content[8:12], "big") != mark.snapshot_crc:
            return None
        if _core.crc32c(content[12:]) != mark.snapshot_crc:
            return None
        header = msgspec.msgpack.decode(content[16:header_end], type=SnapshotHeader)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    rows = content[header_end:]
    fits = (header.version, header.node_id, header.owner, header.layout_hash) == (
        SNAPSHOT_VERSION,
        node_id,
        owner,
        LAYOUT_HASH,
    )
    if not fits or len(rows) != header.rows * INDEX_ROW.size or [item.file for item in header.files] != present:
        return None
    return Snapshot(header, rows)


def _forget_clean(folder: Path) -> None:
    """Remove the mark, durably: from here on the directory counts as in use."""
    try:
        os.unlink(folder / CLEAN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise atomic_file.explain(error, f"cannot remove {folder / CLEAN}") from error
    segment.sync_directory(folder)


class Recovery:
    """One start of one store. `grow` makes a larger index when the present one is full."""

    def __init__(
        self,
        core: _core.StoreServer,
        owner: int,
        folder: Path,
        node_id: int,
        begin: Callable[[int], None],
        grow: Callable[[], None],
    ) -> None:
        self.core = core
        self.owner = owner
        self.folder = folder
        self.node_id = node_id
        self.begin = begin  #: called once with the number of messages to expect; makes the regions
        self.grow = grow
        self.report = Report()

    def run(self) -> Report:
        """Fill the store. Raises FormatVersionError, LimitError, StoreError; damage is reported, not raised."""
        listing = segment.list_files(self.folder, SUFFIX)
        ours = {SNAPSHOT, CLEAN, SNAPSHOT + atomic_file.NEW_SUFFIX, CLEAN + atomic_file.NEW_SUFFIX}
        self.report.foreign = [path for path in listing.foreign if path.name not in ours]
        numbers = [number for number, _path in listing.files]
        self.report.next_file = max(numbers, default=-1) + 1
        good = self._check_headers(listing.files)
        snapshot = _read_snapshot(self.folder, self.node_id, self.owner, [number for number, _path, _salt in good])
        _forget_clean(self.folder)
        for path in [*listing.unfinished, self.folder / (SNAPSHOT + atomic_file.NEW_SUFFIX)]:
            path.unlink(missing_ok=True)
        if snapshot is not None:
            self._load(snapshot)
        else:
            self.begin(sum(path.stat().st_size for _number, path, _salt in good) // 1024)
            self._scan(good)
        self.report.files = len(good)
        self.report.dropped = self.core.finish(self.owner)
        return self.report

    def _check_headers(self, files: list[tuple[int, Path]]) -> list[tuple[int, Path, int]]:
        """The files whose first page is in order, with their salts; the others are reported and left alone."""
        good = []
        for number, path in files:
            try:
                header = segment.read_header(path, kind=FILE_STORE, node_id=self.node_id, owner=self.owner, file=number)
            except FormatVersionError:
                raise
            except CorruptRecord as error:
                self.report.damaged.append(f"{error}; the file is left alone, and none of it is served")
            else:
                good.append((number, path, header.salt))
        return good

    def _add_file(self, number: int, used: int) -> None:
        try:
            self.core.add_file(self.owner, number, used)
        except OSError as error:
            raise LimitError(
                f"{self.folder} has more files than the file summary has rows: raise the setting summary_rows"
            ) from error

    def _load(self, snapshot: Snapshot) -> None:
        header = snapshot.header
        self.begin(header.rows)
        for item in header.files:
            self._add_file(item.file, item.used)
        self.core.load_rows(self.owner, snapshot.rows)
        for item in header.files:
            self.core.load_pins(self.owner, item.file, item.pin_low, item.pin_high)
        self.report.clean = True
        self.report.next_file = max(self.report.next_file, header.next_file)

    def _scan(self, files: list[tuple[int, Path, int]]) -> None:
        ends: list[tuple[int, Path, int, int, str]] = []  # file, path, end, frames, reason
        with mmap.mmap(-1, max((path.stat().st_size for _n, path, _s in files), default=PAGE_BYTES)) as memory:
            buffer = memoryview(memory)
            try:
                for number, path, salt in files:
                    length = self._read(path, buffer)
                    self._add_file(number, FILE_HEADER_BYTES)
                    end, frames, reason = self._apply(number, buffer[:length], salt)
                    if reason not in ("end", "zeros") and self._goes_on(buffer[:length], end, salt):
                        reason = "damage"
                    ends.append((number, path, end, frames, reason))
                    self.report.frames += frames
            finally:
                buffer.release()
        self._judge(ends)

    def _read(self, path: Path, buffer: memoryview) -> int:
        """Read a file; what the disk cannot read counts as zeros from there on, and is reported."""
        got = 0
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while got < len(buffer):
                n = os.preadv(fd, [buffer[got:]], got)
                if n == 0:
                    break
                got += n
        except OSError as error:
            if error.errno != errno.EIO:
                raise StoreError(f"cannot read {path}: {error}") from error
            self.report.damaged.append(f"{path} cannot be read from byte {got} on: {error.strerror}")
        finally:
            os.close(fd)
        return got

    def _apply(self, number: int, data: memoryview, salt: int) -> tuple[int, int, str]:
        at, frames = FILE_HEADER_BYTES, 0
        while True:
            at, more, reason = self.core.scan_file(self.owner, number, data, salt, at)
            frames += more
            if reason != "index":
                return at, frames, reason
            self.grow()

    def _goes_on(self, data: memoryview, end: int, salt: int) -> bool:
        """Is there a valid frame at the start of a later page, as after a group commit? Then it is no torn tail."""
        start = (end // PAGE_BYTES + 1) * PAGE_BYTES
        return any(
            not isinstance(_core.frame_check(data, at, salt), str) for at in range(start, len(data) - 64, PAGE_BYTES)
        )

    def _judge(self, ends: list[tuple[int, Path, int, int, str]]) -> None:
        """Cut the torn tail, report damage, and make durable what may only be in the page cache."""
        last = max((i for i, (_n, _p, _e, frames, _r) in enumerate(ends) if frames), default=-1)
        for i, (_number, path, end, _frames, reason) in enumerate(ends):
            if reason in ("end", "zeros"):
                continue
            if reason == "damage" or i < last:
                self.report.damaged.append(
                    f"{path} has bytes at {end} that are no record ({reason}): what follows in this file is not served"
                )
            else:
                self.report.torn_bytes += segment.truncate_torn_tail(path, end)
        # Files before the last two were synced at their roll, before anything was written to the next.
        for _number, path, _end, _frames, _reason in ends[max(0, last - 1) :]:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError as error:
                raise atomic_file.explain(error, f"cannot sync {path}", syncing=True) from error
            finally:
                os.close(fd)
