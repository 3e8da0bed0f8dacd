"""The queue index on disk: journal files, segments, terms; how they come back. How it moves on: queue_flush.

    queues/worker-<i>/journal/<n>.jnl    frames (warren.engine.formats), appended by the C engine
    queues/worker-<i>/transient/<n>.jnl  the same for transient messages; removed at every start
    queues/worker-<i>/transient/rows     their rows while they are not in memory (core/spill.h); the same
    queues/worker-<i>/segments/<n>.dat   <n>.jnl itself (a second link), or the few frames of it that were still alive
    queues/worker-<i>/segments/<queue>/<m>.idx   header page, then 16384 entries of 64 bytes, by sequence mod 16384
    queues/worker-<i>/segments/<queue>/terms   what a queue that was moved here brought along (engine/moving.py)
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

import contextlib
import os
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from warren.engine import _core, atomic_file, segment
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError, SyncFailed
from warren.engine.formats import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    FORMAT_VERSION,
)
from warren.engine.queue_arguments import QueueArguments
from warren.ipc import _core as atomics
from warren.ipc.layout import IMAGE

TERMS_MAGIC, QUEUE_TERMS_MAGIC = b"WRNTERM1", b"WRNQTRM1"

#: called with the name of a crash point; tests kill the process there
Reached = Callable[[str], None]


def nowhere(point: str) -> None:
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


class QueueTerms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a moved queue's `terms`. `next`: the sequence that it goes on with; `rows`: as in Terms; `keys`: what
    its window of deduplication held, rows of a KEYS frame."""

    format_version: int
    node_id: int
    server: int
    queue: int
    next: int
    rows: bytes
    keys: bytes


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
    def spill(self) -> Path:
        return self.transient / "rows"

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

    def queue_terms(self, queue: int) -> Path:
        return self.segments / str(queue) / "terms"

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
    strangers: list[str] = field(default_factory=list)  #: files that are not ours, for people
    foreign: set[int] = field(default_factory=set)  #: numbers of journal files that are not ours: never deleted
    seconds: float = 0.0
    segment_live: dict[tuple[int, int], int] = field(default_factory=dict)  #: (queue, segment) → entries on disk
    named: set[tuple[int, int]] = field(default_factory=set)  #: segments whose names are known to be durable


# ---- what a killed worker had in memory -----------------------------------------------------------------------------


class _Image(NamedTuple):
    """What an image of a journal holds: a file's number, where in the region its bytes start, how many were
    appended, and how many of them are durable. Numbers, no views: whoever fails with one in hand could not
    unmap the region."""

    file: int
    start: int
    appended: int
    durable: int


def _images(buffer: memoryview, images_n: int, file_bytes: int) -> list[_Image]:
    """The images of a region that hold frames, by file."""
    found = []
    for image in range(images_n):
        base = image * IMAGE.size
        file = atomics.load64(buffer, base + IMAGE.offset("file")) - 1
        appended = atomics.load64(buffer, base + IMAGE.offset("appended"))
        durable = atomics.load64(buffer, base + IMAGE.offset("durable"))
        if file >= 0 and FILE_HEADER_BYTES < appended <= file_bytes:
            found.append(_Image(file, FILE_HEADER_BYTES + image * file_bytes, appended, durable))
    return sorted(found)


def salvage(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> int:
    """Write into the journal files what the images of a dead worker hold beyond them, and sync; returns the bytes.

    The image's header page must be the file's: an image of another life is left alone. Raises SyncFailed, StoreError.
    """
    salvaged = 0
    # Older files first: nothing of a file may be durable while an older one is not.
    for file, start, appended, durable in _images(buffer, images_n, file_bytes):
        if durable >= appended:
            continue
        path = folder.journal_file(file)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if os.pread(fd, FILE_HEADER_BYTES, 0) != buffer[start : start + FILE_HEADER_BYTES]:
                continue
            at = max(durable, FILE_HEADER_BYTES)
            with buffer[start + at : start + appended] as rest:
                atomic_file.write_all(fd, rest, at)
            os.fdatasync(fd)
            salvaged += appended - at
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


def held_files(buffer: memoryview, images_n: int, file_bytes: int, folder: Folder) -> dict[int, memoryview]:
    """Journal files that images hold as they are on disk (after `salvage`): number → bytes. Whoever reads them there
    does not wait for the disk. Good until the journals begin."""
    held = {}
    for file, start, appended, _durable in _images(buffer, images_n, file_bytes):
        with contextlib.suppress(FileNotFoundError), open(folder.journal_file(file), "rb", buffering=0) as disk:
            if disk.read(FILE_HEADER_BYTES) == buffer[start : start + FILE_HEADER_BYTES]:
                held[file] = buffer[start : start + appended]
    return held


# ---- start ----------------------------------------------------------------------------------------------------------


def recover(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    reached: Reached = nowhere,
    held: Mapping[int, memoryview] | None = None,
) -> Recovered:
    """Fill an engine, whose queues are declared, from segments and journal. Afterwards acks are journalled again.
    `held`: journal files that need not be read (`held_files`).

    A torn tail is cut; damage elsewhere is reported in `damaged` and costs what lies behind it in that file, no more.
    Raises FormatVersionError (nothing was changed), StoreError, SyncFailed.
    """
    began = time.monotonic()
    found = Recovered()
    reached("recover.salvaged")
    paths, ends, unended = _read(engine, folder, node_id, server, found, dict(held or {}))
    _judge(paths, ends, unended, found)
    _end(engine, folder, node_id, server, ends, found)
    if folder.terms.exists():
        folder.terms.unlink()
        segment.sync_directory(folder.path)
    live = engine.data_files()
    listing = segment.list_files(folder.segments, ".dat")
    for path in listing.unfinished:
        path.unlink(missing_ok=True)
    for number, path in listing.files:
        found.next_file = max(found.next_file, number + 1)
        if not live.get(number):
            path.unlink(missing_ok=True)
    found.seconds = time.monotonic() - began
    return found


def give_policy(engine: _core.QueueEngine, queue: int, policy: QueueArguments, companion: int) -> None:
    """What a queue's arguments ask of the engine; a queue without any stays a plain one. `companion`: queue of its dead
    letters, 0: none."""
    wanted: dict[str, Any] = {
        "message_ttl_ms": policy.message_ttl_ms,
        "max_length": policy.max_length or 0,
        "max_length_bytes": policy.max_length_bytes or 0,
        "deduplication_ms": policy.deduplication_window_ms,
        "delivery_limit": policy.delivery_limit or 0,
        "dead_letters": companion,
        "max_priority": policy.max_priority,
        "reject_publish": policy.rejects_publish,
        "single_active": policy.single_active_consumer,
    }
    if any(wanted.values()):
        engine.set_policy(queue, **wanted)


def look(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int) -> Recovered:
    """As `recover`, but nothing on disk is changed, and the engine is not for serving: for a move (engine/moving.py).

    Raises FormatVersionError, StoreError.
    """
    found = Recovered()
    paths, ends, unended = _read(engine, folder, node_id, server, found, {})
    last = max((number for number, end in ends.items() if end > FILE_HEADER_BYTES), default=-1)
    for number, reason in unended.items():
        if number < last or _vouched(paths[number], ends[number]):
            found.damaged.append(f"{paths[number]} at byte {ends[number]}: {reason}")
    _end(engine, folder, node_id, server, ends, found)
    return found


def _read(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    found: Recovered,
    held: dict[int, memoryview],
) -> tuple[dict[int, Path], dict[int, int], dict[int, str]]:
    """Segments, then the journal: its files by number, where the frames of each end, why other bytes follow there."""
    _load_segments(engine, folder, node_id, server, found)
    listing = segment.list_files(folder.journal, ".jnl")
    for path in listing.unfinished:
        path.unlink(missing_ok=True)
    found.strangers += [f"{path}: not a file of this queue index, left alone" for path in listing.foreign]
    ends: dict[int, int] = {}
    unended: dict[int, str] = {}
    if listing.files:
        held.pop(listing.files[-1][0], None)  # what follows the frames of the newest has to be seen
    try:
        with contextlib.closing(_contents([path for number, path in listing.files if number not in held])) as contents:
            for number, path in listing.files:
                found.next_file = max(found.next_file, number + 1)
                data = held[number] if number in held else next(contents)
                ends[number] = _replay(engine, path, data, number, node_id, server, found, unended, number in held)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot read {folder.journal}") from error
    return dict(listing.files), ends, unended


def _end(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, ends: dict[int, int], found: Recovered
) -> None:
    """Was the last stop a clean one? A worker that never made a journal file has never served, which is as good."""
    terms = read_terms(folder, node_id, server)
    found.clean = not ends or (
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


def _contents(paths: list[Path]) -> Generator[memoryview, None, None]:
    """The bytes of each file, each good until the next is asked for. A thread reads one ahead, into memory that is used
    again: reading costs as much as what is done with the bytes. Raises OSError."""
    if not paths:
        return
    buffers = [memoryview(segment.scan_memory(*paths)) for _ in range(min(2, len(paths)))]

    def read(n: int) -> memoryview:
        with open(paths[n], "rb", buffering=0) as file:
            view, got = buffers[n % 2], 0
            while got < len(view) and (more := file.readinto(view[got:])):
                got += more
            return view[:got]

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
    held: bool,
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
    if held and end < len(data):  # the image is not what was written: the file decides
        data = memoryview(path.read_bytes())
        end, frames, reason = engine.replay(data, number, header.salt, end)
        found.frames += frames
    if reason != "end" and _any_bit(data[end:]):
        unended[number] = reason
    return end


def _any_bit(data: memoryview) -> bool:
    step = 1 << 16
    zeros = bytes(step)
    return any(data[at : at + step].tobytes() != zeros[: len(data) - at] for at in range(0, len(data), step))


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
    for queue in known:
        _take_queue_terms(engine, folder, node_id, server, queue, found)


def _take_queue_terms(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, queue: int, found: Recovered
) -> None:
    """What a moved queue brought along. It stays beside the segments: what the journal and the clean mark say of the
    same messages is newer, and comes after it."""
    path = folder.queue_terms(queue)
    body = _sealed(path, QUEUE_TERMS_MAGIC)
    if body is None:
        if path.exists():
            found.damaged.append(f"{path}: not the terms of a moved queue; its marks and last sequence are lost")
        return
    try:
        terms = msgspec.msgpack.decode(body, type=QueueTerms)
    except msgspec.MsgspecError as error:
        found.damaged.append(f"{path}: {error}")
        return
    if (terms.format_version, terms.node_id, terms.server, terms.queue) != (FORMAT_VERSION, node_id, server, queue):
        found.damaged.append(f"{path}: the terms of another queue")
        return
    engine.set_terms(queue, terms.next, terms.rows)
    engine.set_keys(terms.keys)


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
    _seal(folder.terms, TERMS_MAGIC, body)


def write_queue_terms(folder: Folder, terms: QueueTerms) -> None:
    """What a moved queue brings along, durably. Raises DiskFull, SyncFailed, StoreError."""
    path = folder.queue_terms(terms.queue)
    try:
        atomic_file.make_directories(path.parent)
    except OSError as error:
        raise atomic_file.explain(error, f"cannot make {path.parent}") from error
    _seal(path, QUEUE_TERMS_MAGIC, msgspec.msgpack.encode(terms))


def _seal(path: Path, magic: bytes, body: bytes) -> None:
    atomic_file.replace(path, struct.pack(">8sI", magic, zlib.crc32(body)) + body)


def _sealed(path: Path, magic: bytes) -> bytes | None:
    """The body of a sealed file; None: not there, or not whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    if len(content) < 12 or content[:8] != magic:
        return None
    return content[12:] if zlib.crc32(content[12:]) == struct.unpack(">I", content[8:12])[0] else None


def read_terms(folder: Folder, node_id: int, server: int) -> Terms | None:
    """The clean mark, None when there is none that counts."""
    body = _sealed(folder.terms, TERMS_MAGIC)
    if body is None:
        return None
    try:
        terms = msgspec.msgpack.decode(body, type=Terms)
    except msgspec.MsgspecError:
        return None
    return terms if (terms.format_version, terms.node_id, terms.server) == (FORMAT_VERSION, node_id, server) else None


def remove_queue(folder: Folder, queue: int, live: dict[tuple[int, int], int]) -> None:
    """The segments of a deleted queue."""
    own = folder.segments / str(queue)
    try:
        names = os.listdir(own)
    except FileNotFoundError:
        names = []
    for number in (name.removesuffix(".idx") for name in names):
        if number.isdigit():
            live.pop((queue, int(number)), None)
    shutil.rmtree(own, ignore_errors=True)
