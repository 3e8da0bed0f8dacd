"""The queue index on disk: journal files, segments, terms; how they come back, and how the journal is flushed.

    queues/worker-<i>/journal/<n>.jnl    frames (warren.engine.formats), appended by the C engine
    queues/worker-<i>/transient/<n>.jnl  the same for transient messages; removed at every start
    queues/worker-<i>/segments/<n>.dat   <n>.jnl itself (a second link), or the few frames of it that were still alive
    queues/worker-<i>/segments/<queue>/<m>.idx   header page, then 16384 entries of 64 bytes, by sequence mod 16384
    queues/worker-<i>/subscriptions.json   whose claims a subscription holds, also after its deletion
    queues/worker-<i>/terms              clean mark: who was delivered how often; removed before work starts

Invariants
  An .idx entry that validates names a frame in a .dat that was synced before it.
  A journal file goes only after the entries that it alone knows are in segments, synced.
  An .idx entry is zeroed only for a message that is gone; the journal file with its ACK goes only after that is synced.
  `terms` counts only if it names the very end of the journal.
Crash points (tests kill at each): flush.linked, flush.dat, flush.dat-synced, flush.idx-new (a segment under its
unfinished name), flush.idx, flush.idx-synced, flush.forgotten (journal file still there), acks.zeroed, acks.synced,
recover.salvaged. After each the next start finds every message once.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from warren.engine import _core, atomic_file, segment
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError, SyncFailed
from warren.engine.formats import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    FORMAT_VERSION,
    QUEUE_SEGMENT_ENTRY,
    SEGMENT_ENTRY_COUNT,
)
from warren.ipc import _core as atomics
from warren.ipc.layout import CONSTANTS, IMAGE

IN_SEGMENT = 0xFFFF_FFFF
FILES_AT_ONCE = 128  #: segments that a flush has open
LINK_SHARE = 0.5  #: of a journal file that must be alive for it to become a data file as it is
LOCATION_JOURNAL = CONSTANTS["LOCATION_JOURNAL"]
LOCATION_SEGMENT = CONSTANTS["LOCATION_SEGMENT"]
ENTRY_BYTES = QUEUE_SEGMENT_ENTRY.size
SEGMENT_BYTES = FILE_HEADER_BYTES + SEGMENT_ENTRY_COUNT * ENTRY_BYTES

#: wr_segment_row of engine/core/segment_entry.h, without gaps: numpy does not copy what no field covers
ROW = np.dtype(
    [
        ("queue", "<u4"),
        ("location", "<u4"),
        ("sequence", "<u8"),
        ("due", "<u8"),
        ("id", "V16"),
        ("file", "<u4"),
        ("offset", "<u4"),
        ("frame_length", "<u4"),
        ("body_length", "<u4"),
        ("blob_offset", "<u2"),
        ("meta_length", "<u2"),
        ("index_file", "<u4"),
        ("where", "u1"),
        ("rest", "V15"),
    ]
)
assert ROW.itemsize == 80
#: wr_segment_ack of engine/core/queue.h
ACK = np.dtype(
    [("queue", "<u4"), ("count", "<u4"), ("first", "<u8"), ("token", "<u8"), ("file", "<u4"), ("unused", "<u4")]
)

#: called with the name of a crash point; tests kill the process there
Reached = Callable[[str], None]


def _pass(point: str) -> None:
    """The crash points of a process that is not being tested."""


class Terms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of `terms`. `queues`: id → (next sequence, packed sequence:8 | delivery_count:4 | n:4 of rows that were
    delivered; n: neighbours from this one on that are marked redelivered, 0: this one, not marked)."""

    format_version: int
    node_id: int
    server: int
    file: int
    end: int
    queues: dict[int, tuple[int, bytes]]


@dataclass(frozen=True)
class Folder:
    """The directory of one queue worker."""

    path: Path

    @classmethod
    def of(cls, directory: Path, worker: int) -> Folder:
        return cls(directory / "queues" / f"worker-{worker}")

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def transient(self) -> Path:
        return self.path / "transient"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def subscriptions(self) -> Path:
        return self.path / "subscriptions.json"

    @property
    def terms(self) -> Path:
        return self.path / "terms"

    def journal_file(self, file: int) -> Path:
        return self.journal / f"{file}.jnl"

    def transient_file(self, file: int) -> Path:
        return self.transient / f"{file}.jnl"

    def data_file(self, file: int) -> Path:
        return self.segments / f"{file}.dat"

    def index_file(self, queue: int, number: int) -> Path:
        return self.segments / str(queue) / f"{number}.idx"

    def make(self) -> None:
        """Make the directories and empty the transient one. Raises PermissionRefused, DiskFull, StoreError."""
        try:
            for path in (self.journal, self.transient, self.segments):
                atomic_file.make_directories(path)
            for entry in os.scandir(self.transient):
                os.unlink(entry.path)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot make the directories of {self.path}") from error


@dataclass
class Recovered:
    """What a start found."""

    clean: bool = False
    next_file: int = 0  #: number for the next journal file
    frames: int = 0
    messages_from_segments: int = 0
    torn_bytes: int = 0
    salvaged_bytes: int = 0
    damaged: list[str] = field(default_factory=list)  #: what could not be read, for people
    foreign: set[int] = field(default_factory=set)  #: numbers of journal files that are not ours: never deleted
    seconds: float = 0.0
    segment_live: dict[tuple[int, int], int] = field(default_factory=dict)  #: (queue, segment) → entries on disk
    named: set[tuple[int, int]] = field(default_factory=set)  #: segments whose names are known to be durable


# ---- what a killed worker had in memory -----------------------------------------------------------------------------


def salvage(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> int:
    """Write into the journal files what the images of a dead worker hold beyond them, and sync; returns the bytes.

    The image's header page must be the file's: an image of another life is left alone. Raises SyncFailed, StoreError.
    """
    salvaged = 0

    def file_of(image: int) -> int:
        return int(atomics.load64(buffer, image * IMAGE.size + IMAGE.offset("file")))

    # Older files first: nothing of a file may be durable while an older one is not.
    for image in sorted(range(images_n), key=file_of):
        base = image * IMAGE.size
        file = atomics.load64(buffer, base + IMAGE.offset("file")) - 1
        appended = atomics.load64(buffer, base + IMAGE.offset("appended"))
        durable = atomics.load64(buffer, base + IMAGE.offset("durable"))
        if file < 0 or not FILE_HEADER_BYTES < appended <= file_bytes or durable >= appended:
            continue
        start = FILE_HEADER_BYTES + image * file_bytes
        path = folder.journal_file(file)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if os.pread(fd, FILE_HEADER_BYTES, 0) != buffer[start : start + FILE_HEADER_BYTES]:
                continue
            at = max(durable, FILE_HEADER_BYTES)
            while at < appended:
                at += os.pwrite(fd, buffer[start + at : start + appended], at)
            os.fdatasync(fd)
            salvaged += appended - max(durable, FILE_HEADER_BYTES)
        except OSError as error:
            raise SyncFailed(
                f"cannot complete {path} after the worker's death: {error.strerror}; check the disk"
            ) from error
        finally:
            os.close(fd)
    return salvaged


def next_file_of(buffer: memoryview, images_n: int) -> int:
    """A file number above all that the images of a region hold."""
    return max(atomics.load64(buffer, image * IMAGE.size + IMAGE.offset("file")) for image in range(images_n))


# ---- start ----------------------------------------------------------------------------------------------------------


def recover(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, reached: Reached = _pass
) -> Recovered:
    """Fill an engine, whose queues are declared, from segments and journal. Afterwards acks are journalled again.

    A torn tail is cut; damage elsewhere is reported in `damaged` and costs what lies behind it in that file, no more.
    Raises FormatVersionError (nothing was changed), StoreError, SyncFailed.
    """
    began = time.monotonic()
    found = Recovered()
    reached("recover.salvaged")
    _load_segments(engine, folder, node_id, server, found)
    listing = segment.list_files(folder.journal, ".jnl")
    for path in listing.unfinished:
        path.unlink(missing_ok=True)
    found.damaged += [f"{path}: not a file of this queue index, left alone" for path in listing.foreign]
    ends: dict[int, int] = {}
    unended: dict[int, str] = {}
    try:
        for (number, path), data in zip(
            listing.files, _contents([path for _number, path in listing.files]), strict=True
        ):
            found.next_file = max(found.next_file, number + 1)
            ends[number] = _replay(engine, path, data, number, node_id, server, found, unended)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot read {folder.journal}") from error
    _judge(dict(listing.files), ends, unended, found)
    terms = read_terms(folder, node_id, server)
    found.clean = (
        terms is not None
        and ends.get(terms.file) == terms.end
        and all(end <= FILE_HEADER_BYTES for number, end in ends.items() if number > terms.file)
    )
    engine.recovered(found.clean)
    if terms is not None and found.clean:
        known = set(engine.queues())
        for queue, (next_sequence, rows) in terms.queues.items():
            if queue in known:
                engine.set_terms(queue, next_sequence, rows)
    if folder.terms.exists():
        folder.terms.unlink()
        segment.sync_directory(folder.path)
    live = engine.data_files()
    for number, path in segment.list_files(folder.segments, ".dat").files:
        found.next_file = max(found.next_file, number + 1)
        if not live.get(number):
            path.unlink(missing_ok=True)
    found.seconds = time.monotonic() - began
    return found


def _contents(paths: list[Path]) -> Iterator[memoryview]:
    """The bytes of each file, each good until the next is asked for. A thread reads one ahead, into memory that is used
    again: reading costs as much as what is done with the bytes. Raises OSError."""
    buffers = [bytearray(0), bytearray(0)]

    def read(n: int) -> memoryview:
        with open(paths[n], "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if len(buffers[n % 2]) < size:
                buffers[n % 2] = bytearray(size)
            view = memoryview(buffers[n % 2])
            got = 0
            while got < size and (more := file.readinto(view[got:size])):
                got += more
            return view[:got]

    if not paths:
        return
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(read, 0)
        for n in range(len(paths)):
            content = ahead.result()
            if n + 1 < len(paths):
                ahead = reader.submit(read, n + 1)
            yield content


def _replay(
    engine: _core.QueueEngine,
    path: Path,
    data: memoryview,
    number: int,
    node_id: int,
    server: int,
    found: Recovered,
    unended: dict[int, str],
) -> int:
    """Replay one journal file; returns where its frames end, and why in `unended` when other bytes follow there."""
    try:
        header = segment.check_header(
            path, bytes(data[:FILE_HEADER_BYTES]), kind=FILE_JOURNAL, node_id=node_id, owner=server, file=number
        )
    except CorruptRecord as error:
        found.damaged.append(f"{error}; left alone")
        found.foreign.add(number)
        return 0
    end, frames, reason = engine.replay(data, number, header.salt, FILE_HEADER_BYTES)
    found.frames += frames
    if reason != "end" and np.frombuffer(data, dtype=np.uint8, offset=end).any():
        unended[number] = reason
    return end


def _judge(paths: dict[int, Path], ends: dict[int, int], unended: dict[int, str], found: Recovered) -> None:
    """What follows the frames of the newest file that has any, and of those after it, is a torn tail or what the
    blocks held before: it is cut, unless a later frame of the file says that it was synced. An older file ends with its
    LAST frame, or was cut when it was the newest. What was read of the newest may lie in the page cache alone; from now
    on things are built upon it."""
    last = max((number for number, end in ends.items() if end > FILE_HEADER_BYTES), default=-1)
    for number, reason in unended.items():
        if number >= last and not _vouched(paths[number], ends[number]):
            found.torn_bytes += segment.truncate_torn_tail(paths[number], ends[number])
        else:
            found.damaged.append(f"{paths[number]} at byte {ends[number]}: {reason}; what follows in this file is lost")
    if last >= 0:
        segment.sync_file(paths[last])


def _vouched(path: Path, end: int) -> bool:
    """Whether a frame behind `end` says that what lies there was synced: then it is damage, and no torn tail."""
    data = path.read_bytes()
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    return listed.vouched > end


def _load_segments(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered) -> None:
    known = set(engine.queues())
    segments: list[tuple[int, int, Path]] = []
    for entry in sorted(os.scandir(folder.segments), key=lambda item: item.name):
        if not entry.name.isascii() or not entry.name.isdigit() or not entry.is_dir(follow_symlinks=False):
            continue
        queue = int(entry.name)
        if queue not in known:
            engine.declare(queue, True, True)  # deleted since; frames of the journal may still speak of it
        listing = segment.list_files(Path(entry.path), ".idx")
        for path in listing.unfinished:
            path.unlink(missing_ok=True)
        segments += [(queue, number, path) for number, path in listing.files]
    for (queue, number, path), data in zip(segments, _contents([item[2] for item in segments]), strict=True):
        try:
            header = segment.check_header(
                path, bytes(data[:FILE_HEADER_BYTES]), kind=FILE_SEGMENT, node_id=node_id, owner=server, file=number
            )
        except FormatVersionError:
            raise
        except CorruptRecord as error:
            found.damaged.append(str(error))
            continue
        live, bad = engine.load_segment(queue, number, data[FILE_HEADER_BYTES:], header.salt)
        if bad:
            found.damaged.append(f"{path}: {bad} entries are neither valid nor empty")
        found.messages_from_segments += live
        found.segment_live[queue, number] = live


def read_subscriptions(folder: Folder) -> dict[int, int]:
    """Subscription queue → the queue whose claims it holds, also of subscriptions deleted since."""
    try:
        return msgspec.json.decode(folder.subscriptions.read_bytes(), type=dict[int, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptRecord(folder.subscriptions, 0, "a map of queue ids", str(error)) from error


def write_subscriptions(folder: Folder, subscriptions: dict[int, int]) -> None:
    """Remember it durably. Raises DiskFull, SyncFailed, StoreError."""
    atomic_file.replace(folder.subscriptions, msgspec.json.encode(subscriptions) + b"\n")


# ---- clean stop -----------------------------------------------------------------------------------------------------


def write_terms(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, file: int, end: int) -> None:
    """The clean mark, after everything else is synced. Raises DiskFull, SyncFailed, StoreError."""
    queues = {queue: (engine.stats(queue)[8], engine.terms(queue)) for queue in engine.queues()}
    body = msgspec.msgpack.encode(Terms(FORMAT_VERSION, node_id, server, file, end, queues))
    atomic_file.replace(folder.terms, struct.pack(">8sI", b"WRNTERM1", zlib.crc32(body)) + body)


def read_terms(folder: Folder, node_id: int, server: int) -> Terms | None:
    """The clean mark, None when there is none that counts."""
    try:
        content = folder.terms.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {folder.terms}") from error
    if len(content) < 12 or content[:8] != b"WRNTERM1":
        return None
    body = content[12:]
    if zlib.crc32(body) != struct.unpack(">I", content[8:12])[0]:
        return None
    try:
        terms = msgspec.msgpack.decode(body, type=Terms)
    except msgspec.MsgspecError:
        return None
    return terms if (terms.format_version, terms.node_id, terms.server) == (FORMAT_VERSION, node_id, server) else None


# ---- flush: the oldest journal file into segments -------------------------------------------------------------------


def flush(
    folder: Folder,
    node_id: int,
    server: int,
    file: int,
    rows: bytes,
    live: dict[tuple[int, int], int],
    named: set[tuple[int, int]],
    reached: Reached = _pass,
) -> bytearray:
    """Bring what is alive of a journal file into segments, durably; returns the rows with their new places.

    `rows` comes from engine.export_file, the answer goes to engine.flushed; then the file may go. Runs in a thread of
    its own: the journal file is sealed, nobody changes it. `live` counts the entries of each segment on disk,
    `named` are those whose names are durable.
    Raises DiskFull, SyncFailed, StoreError; then the journal file stays and nothing is lost.
    """
    placed = bytearray(rows)
    table = np.frombuffer(placed, dtype=ROW)
    try:
        _write_bodies(folder, file, table, reached)
        reached("flush.dat-synced")
        _write_entries(folder, node_id, server, table, live, named, reached)
        reached("flush.idx-synced")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot flush {folder.journal_file(file)} into segments") from error
    return placed


def _write_bodies(folder: Folder, file: int, table: NDArray[np.void], reached: Reached) -> None:
    """Bring the frames of embedded bodies into <file>.dat, each once, and give the rows their new places."""
    embedded = table["location"] == LOCATION_JOURNAL
    if not embedded.any():
        return
    if not _link_bodies(folder, file, table, embedded, reached):
        _copy_bodies(folder, file, table, embedded, reached)
    table["file"][embedded] = file
    table["location"][embedded] = LOCATION_SEGMENT
    table["where"][embedded] = LOCATION_SEGMENT


def _link_bodies(
    folder: Folder, file: int, table: NDArray[np.void], embedded: NDArray[np.bool_], reached: Reached
) -> bool:
    """A journal file of which most is alive becomes the data file as it is, offsets and all. False: copy."""
    journal, path = folder.journal_file(file), folder.data_file(file)
    try:
        there = path.stat()
    except FileNotFoundError:
        offsets, lengths = table["offset"][embedded], table["frame_length"][embedded]
        if (offsets[1:] <= offsets[:-1]).any():  # messages of several queues, and perhaps of one in several
            _offsets, first = np.unique(offsets, return_index=True)
            lengths = lengths[first]
        alive = int(lengths.sum(dtype=np.int64))
        if alive < LINK_SHARE * journal.stat().st_size:
            return False
        try:
            os.link(journal, path)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EXDEV):
                return False
            raise
        reached("flush.linked")
    else:
        if not os.path.samestat(there, journal.stat()):
            return False  # some frames were copied before; others go behind them
    segment.sync_directory(folder.segments)
    return True


def _copy_bodies(
    folder: Folder, file: int, table: NDArray[np.void], embedded: NDArray[np.bool_], reached: Reached
) -> None:
    path = folder.data_file(file)
    with open(folder.journal_file(file), "rb") as source:
        data = source.read()
    offsets, first = np.unique(table["offset"][embedded], return_index=True)
    lengths = table["frame_length"][embedded][first].astype(np.int64)
    exists = path.exists()
    with open(path, "r+b" if exists else "x+b") as target:
        os.fchmod(target.fileno(), 0o600)
        if not exists:
            target.write(data[:FILE_HEADER_BYTES])
        # A second flush of the same file (claims moved meanwhile) goes behind the first one.
        start = target.seek(0, os.SEEK_END)
        places = start + np.concatenate(([0], np.cumsum(lengths)[:-1]))
        if int(places[-1] + lengths[-1]) > 0xFFFF_FFFF:
            raise StoreError(f"{path} would grow beyond 4 GiB: lower file_bytes")
        target.write(
            b"".join(data[at : at + size] for at, size in zip(offsets.tolist(), lengths.tolist(), strict=True))
        )
        reached("flush.dat")
        target.flush()
        os.fsync(target.fileno())
    segment.sync_directory(folder.segments)
    table["offset"][embedded] = places[np.searchsorted(offsets, table["offset"][embedded])]


def _open_segment(path: Path, node_id: int, server: int, number: int) -> tuple[int, int]:
    """(descriptor, salt) of a segment file; FileNotFoundError when it is not there."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        page = os.pread(fd, FILE_HEADER_BYTES, 0)
        header = segment.check_header(path, page, kind=FILE_SEGMENT, node_id=node_id, owner=server, file=number)
    except BaseException:
        os.close(fd)
        raise
    return fd, header.salt


def _new_segment(path: Path, node_id: int, server: int, number: int) -> tuple[int, int]:
    """(descriptor, salt) of a new segment under its unfinished name; whoever renames it has synced it."""
    salt = secrets.randbits(64)
    unfinished = path.with_name(path.name + segment.UNFINISHED)
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SEGMENT_BYTES)
        os.pwrite(fd, _core.file_header_pack(FILE_SEGMENT, node_id, server, number, salt, time.time_ns()), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, salt


def _groups(table: NDArray[np.void]) -> list[tuple[int, int, int, int]]:
    """(queue, segment, first row, end); the rows come queue by queue and by rising sequence, as the engine exports."""
    if not len(table):
        return []
    queues, numbers = table["queue"], table["sequence"] // SEGMENT_ENTRY_COUNT
    changes = np.flatnonzero((queues[1:] != queues[:-1]) | (numbers[1:] != numbers[:-1])) + 1
    cuts = [0, *changes.tolist(), len(table)]
    return [(int(queues[first]), int(numbers[first]), first, end) for first, end in itertools.pairwise(cuts)]


def _write_runs(fd: int, slots: NDArray[np.int64], content: bytes | memoryview) -> None:
    """Write entries to their places, neighbours in one write."""
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    view = memoryview(content)
    for begin, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(slots)], strict=True):
        at = FILE_HEADER_BYTES + int(slots[begin]) * ENTRY_BYTES
        part = view[begin * ENTRY_BYTES : stop * ENTRY_BYTES]
        while part:
            n = os.pwrite(fd, part, at)
            part, at = part[n:], at + n


def _write_entries(
    folder: Folder,
    node_id: int,
    server: int,
    table: NDArray[np.void],
    live: dict[tuple[int, int], int],
    named: set[tuple[int, int]],
    reached: Reached,
) -> None:
    groups = _groups(table)
    for first in range(0, len(groups), FILES_AT_ONCE):
        _write_groups(folder, node_id, server, table, groups[first : first + FILES_AT_ONCE], named, reached)
    for queue, number, first, end in groups:
        named.add((queue, number))
        live[queue, number] = live.get((queue, number), 0) + end - first


def _write_groups(
    folder: Folder,
    node_id: int,
    server: int,
    table: NDArray[np.void],
    groups: list[tuple[int, int, int, int]],
    named: set[tuple[int, int]],
    reached: Reached,
) -> None:
    """Written first, synced afterwards: the first sync of many files takes most of the others with it."""
    raw = table.view(np.uint8).data
    fds: list[int] = []
    new: list[Path] = []
    unnamed: set[Path] = set()
    try:
        for queue, number, first, end in groups:
            path = folder.index_file(queue, number)
            try:
                fd, salt = _open_segment(path, node_id, server, number)
                if (queue, number) not in named:  # whoever made it may have been killed before he synced its name
                    unnamed.add(path.parent)
            except FileNotFoundError:
                atomic_file.make_directories(path.parent)
                fd, salt = _new_segment(path, node_id, server, number)
                new.append(path)
                unnamed.add(path.parent)
            fds.append(fd)
            content = _core.QueueEngine.encode_entries(raw[first * ROW.itemsize : end * ROW.itemsize], salt)
            _write_runs(fd, (table["sequence"][first:end] % SEGMENT_ENTRY_COUNT).astype(np.int64), content)
            reached("flush.idx-new" if new and new[-1] == path else "flush.idx")
        for fd in fds:
            os.fdatasync(fd)
        for path in new:
            os.rename(path.with_name(path.name + segment.UNFINISHED), path)
    finally:
        for fd in fds:
            os.close(fd)
    for directory in unnamed:
        segment.sync_directory(directory)


def apply_acks(
    folder: Folder, node_id: int, server: int, acks: bytes, live: dict[tuple[int, int], int], reached: Reached = _pass
) -> int:
    """Zero the entries of messages that are gone, durably; remove segments without entries. Returns how many were
    removed.

    Runs in the thread that flushes. Entries that are not there (a deleted queue, a flush that came too late) do not
    matter.
    """
    removed = 0
    zeros = bytes(ENTRY_BYTES)
    try:
        for (queue, number), gone in _masks(np.frombuffer(acks, dtype=ACK)).items():
            path = folder.index_file(queue, number)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                live.pop((queue, number), None)
                continue
            try:
                left = 0
                if not gone.all():
                    # What is left is read off the file, so that a damaged entry is never taken for nothing.
                    entries = np.frombuffer(os.pread(fd, SEGMENT_BYTES, 0), dtype=np.uint64, offset=FILE_HEADER_BYTES)
                    used: NDArray[np.bool_] = np.asarray(entries.reshape(-1, ENTRY_BYTES // 8).any(axis=1))
                    used[gone[: len(used)]] = False
                    left = int(used.sum())
                if left:
                    slots = np.flatnonzero(gone)
                    _write_runs(fd, slots, zeros * len(slots))
                    reached("acks.zeroed")
                    os.fdatasync(fd)
            finally:
                os.close(fd)
            live[queue, number] = left
            if not left:
                path.unlink()
                segment.sync_directory(path.parent)
                del live[queue, number]
                removed += 1
        reached("acks.synced")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot write to the segments of {folder.path}") from error
    return removed


def _masks(ranges: NDArray[np.void]) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """(queue, segment) → which of its entries the ranges name."""
    found: dict[tuple[int, int], NDArray[np.bool_]] = {}
    columns = (ranges[name].tolist() for name in ("queue", "first", "count"))
    for queue, first, count in zip(*columns, strict=True):
        end = first + count
        while first < end:
            number, slot = divmod(first, SEGMENT_ENTRY_COUNT)
            n = min(end - first, SEGMENT_ENTRY_COUNT - slot)
            mask = found.get((queue, number))
            if mask is None:
                mask = found[queue, number] = np.zeros(SEGMENT_ENTRY_COUNT, dtype=np.bool_)
            mask[slot : slot + n] = True
            first += n
    return found


def remove_queue(folder: Folder, queue: int, live: dict[tuple[int, int], int]) -> None:
    """The segments of a deleted queue."""
    for key in [key for key in live if key[0] == queue]:
        del live[key]
    shutil.rmtree(folder.segments / str(queue), ignore_errors=True)
