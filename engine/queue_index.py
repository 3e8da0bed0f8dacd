"""The queue index on disk: journal files, segments, terms; how they come back, and how the journal is flushed.

    queues/worker-<i>/journal/<n>.jnl    frames (warren.engine.formats), appended by the C engine
    queues/worker-<i>/transient/<n>.jnl  the same for transient messages; removed at every start
    queues/worker-<i>/segments/<n>.dat   frames of <n>.jnl that were still alive when it was flushed
    queues/worker-<i>/segments/<queue>/<m>.idx   header page, then 16384 entries of 64 bytes, by sequence mod 16384
    queues/worker-<i>/subscriptions.json   whose claims a subscription holds, also after its deletion
    queues/worker-<i>/terms              clean mark: who was delivered how often; removed before work starts

Invariants
  An .idx entry that validates names a frame in a .dat that was synced before it.
  A journal file goes only after the entries that it alone knows are in segments, synced.
  An .idx entry is zeroed only for a message that is gone; the journal file with its ACK goes only after that is synced.
  `terms` counts only if it names the very end of the journal.
Crash points (tests kill at each): flush.dat, flush.dat-synced, flush.idx, flush.idx-synced, flush.forgotten (journal
file still there), acks.zeroed, acks.synced, recover.salvaged. After each the next start finds every message once.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from warren.engine import _core, atomic_file, segment
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError, SyncFailed
from warren.engine.formats import (
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
        ("id", "V16"),
        ("file", "<u4"),
        ("offset", "<u4"),
        ("frame_length", "<u4"),
        ("body_length", "<u4"),
        ("blob_offset", "<u2"),
        ("meta_length", "<u2"),
        ("index_file", "<u4"),
        ("where", "u1"),
        ("rest", "V7"),
    ]
)
assert ROW.itemsize == 64
#: wr_segment_ack of engine/core/queue.h
ACK = np.dtype([("queue", "<u4"), ("file", "<u4"), ("sequence", "<u8")])

#: called with the name of a crash point; tests kill the process there
Reached = Callable[[str], None]


def _pass(point: str) -> None:
    """The crash points of a process that is not being tested."""


class Terms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of `terms`. `queues`: id → (next sequence, packed sequence:8 | delivery_count:4 | redelivered:4)."""

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
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
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


# ---- what a killed worker had in memory -----------------------------------------------------------------------------


def salvage(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> int:
    """Write into the journal files what the images of a dead worker hold beyond them, and sync; returns the bytes.

    The image's header page must be the file's: an image of another life is left alone. Raises SyncFailed, StoreError.
    """
    salvaged = 0
    for image in range(images_n):
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
    last = _last_with_frames(listing.files)
    ends: dict[int, int] = {}
    for number, path in listing.files:
        found.next_file = max(found.next_file, number + 1)
        ends[number] = _replay(engine, path, number, number == last, node_id, server, found)
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


def _last_with_frames(files: list[tuple[int, Path]]) -> int:
    """Number of the newest file whose first frame is there; only it may have a torn tail."""
    for number, path in reversed(files):
        with open(path, "rb") as file:
            file.seek(FILE_HEADER_BYTES)
            if any(file.read(8)):
                return number
    return -1


def _replay(
    engine: _core.QueueEngine, path: Path, number: int, last: bool, node_id: int, server: int, found: Recovered
) -> int:
    """Replay one journal file; returns where its frames end."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        header = segment.check_header(
            path, data[:FILE_HEADER_BYTES], kind=FILE_JOURNAL, node_id=node_id, owner=server, file=number
        )
    except CorruptRecord as error:
        found.damaged.append(f"{error}; left alone")
        found.foreign.add(number)
        return 0
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    end, frames, reason = engine.replay(data, number, header.salt, FILE_HEADER_BYTES)
    found.frames += frames
    if reason != "end" and data.count(0, end) != len(data) - end:
        if last:
            found.torn_bytes += segment.truncate_torn_tail(path, end)
        else:
            found.damaged.append(f"{path} at byte {end}: {reason}; what follows in this file is lost")
    return end


def _load_segments(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered) -> None:
    known = set(engine.queues())
    for entry in sorted(os.scandir(folder.segments), key=lambda item: item.name):
        if not entry.name.isascii() or not entry.name.isdigit() or not entry.is_dir(follow_symlinks=False):
            continue
        queue = int(entry.name)
        if queue not in known:
            engine.declare(queue, True, True)  # deleted since; frames of the journal may still speak of it
        listing = segment.list_files(Path(entry.path), ".idx")
        for path in listing.unfinished:
            path.unlink(missing_ok=True)
        for number, path in listing.files:
            data = path.read_bytes()
            try:
                header = segment.check_header(
                    path, data[:FILE_HEADER_BYTES], kind=FILE_SEGMENT, node_id=node_id, owner=server, file=number
                )
            except FormatVersionError:
                raise
            except CorruptRecord as error:
                found.damaged.append(str(error))
                continue
            live, bad = engine.load_segment(queue, number, memoryview(data)[FILE_HEADER_BYTES:], header.salt)
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
    reached: Reached = _pass,
) -> bytes:
    """Copy what is alive of a journal file into segments, durably; returns the rows with their new places.

    `rows` comes from engine.export_file, the answer goes to engine.flushed; then the file may go. Runs in a thread of
    its own: the journal file is sealed, nobody changes it. `live` counts the entries of each segment on disk.
    Raises DiskFull, SyncFailed, StoreError; then the journal file stays and nothing is lost.
    """
    table = np.frombuffer(bytearray(rows), dtype=ROW)
    try:
        _write_bodies(folder, file, table, reached)
        reached("flush.dat-synced")
        _write_entries(folder, node_id, server, table, live, reached)
        reached("flush.idx-synced")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot flush {folder.journal_file(file)} into segments") from error
    return table.tobytes()


def _write_bodies(folder: Folder, file: int, table: NDArray[np.void], reached: Reached) -> None:
    """Append the frames of embedded bodies to <file>.dat, each once, and give the rows their new offsets."""
    embedded = table["location"] == LOCATION_JOURNAL
    if not embedded.any():
        return
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
    table["file"][embedded] = file
    table["location"][embedded] = LOCATION_SEGMENT
    table["where"][embedded] = LOCATION_SEGMENT


def _segment_fd(path: Path, node_id: int, server: int, number: int) -> tuple[int, int]:
    """(descriptor, salt) of a segment file, made when it is not there."""
    if path.exists():
        header = segment.read_header(path, kind=FILE_SEGMENT, node_id=node_id, owner=server, file=number)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), header.salt
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700)
        segment.sync_directory(path.parent.parent)
    made = segment.create(path, FILE_SEGMENT, node_id, server, number, SEGMENT_BYTES)
    os.close(made.fd)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC), made.salt


def _groups(queues: NDArray[np.uint32], sequences: NDArray[np.uint64]) -> list[tuple[int, int, NDArray[np.intp]]]:
    """Rows by (queue, segment), each group in order of sequence."""
    numbers = sequences // SEGMENT_ENTRY_COUNT
    order = np.lexsort((sequences, queues))
    if not len(order):
        return []
    changes = np.flatnonzero((np.diff(queues[order]) != 0) | (np.diff(numbers[order]) != 0)) + 1
    return [(int(queues[part[0]]), int(numbers[part[0]]), part) for part in np.split(order, changes)]


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
    reached: Reached,
) -> None:
    for queue, number, part in _groups(table["queue"], table["sequence"]):
        fd, salt = _segment_fd(folder.index_file(queue, number), node_id, server, number)
        try:
            content = _core.QueueEngine.encode_entries(table[part].tobytes(), salt)
            _write_runs(fd, (table["sequence"][part] % SEGMENT_ENTRY_COUNT).astype(np.int64), content)
            reached("flush.idx")
            os.fsync(fd)
        finally:
            os.close(fd)
        live[queue, number] = live.get((queue, number), 0) + len(part)


def apply_acks(
    folder: Folder, node_id: int, server: int, acks: bytes, live: dict[tuple[int, int], int], reached: Reached = _pass
) -> int:
    """Zero the entries of messages that are gone, durably; remove segments without entries. Returns how many were
    removed.

    Runs in the thread that flushes. Entries that are not there (a deleted queue, a flush that came too late) do not
    matter.
    """
    table = np.unique(np.frombuffer(acks, dtype=ACK)[["queue", "sequence"]])
    removed = 0
    zeros = bytes(ENTRY_BYTES)
    try:
        for queue, number, part in _groups(table["queue"], table["sequence"]):
            path = folder.index_file(queue, number)
            if not path.exists():
                live.pop((queue, number), None)
                continue
            slots = (table["sequence"][part] % SEGMENT_ENTRY_COUNT).astype(np.int64)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # What is left is read off the file, so that a damaged entry is never taken for nothing.
                entries = np.frombuffer(os.pread(fd, SEGMENT_BYTES, 0)[FILE_HEADER_BYTES:], dtype=np.uint8)
                used: NDArray[np.bool_] = np.asarray(entries.reshape(-1, ENTRY_BYTES).any(axis=1))
                used[slots] = False
                left = int(used.sum())
                if left:
                    _write_runs(fd, slots, zeros * len(slots))
                    reached("acks.zeroed")
                    os.fsync(fd)
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


def remove_queue(folder: Folder, queue: int, live: dict[tuple[int, int], int]) -> None:
    """The segments of a deleted queue."""
    for key in [key for key in live if key[0] == queue]:
        del live[key]
    shutil.rmtree(folder.segments / str(queue), ignore_errors=True)
