"""The queue index on disk: journal files, segments, terms; how they come back. How it moves on: queue_flush.

    queues/worker-<i>/journal/<n>.jnl    frames (warren.engine.kernel.formats), appended by the C engine
    queues/worker-<i>/transient/<n>.jnl  the same for transient messages; removed at every start
    queues/worker-<i>/transient/rows     their rows while they are not in memory (core/spill.h); the same
    queues/worker-<i>/segments/<n>.dat   <n>.jnl itself (a second link), or the few frames of it that were still alive
    queues/worker-<i>/segments/<queue>/<m>.idx   header page, then 16384 entries of 64 bytes, by sequence mod 16384
    queues/worker-<i>/segments/<queue>/terms   what a queue that was moved here brought along (engine/queues/moving.py)
    queues/worker-<i>/subscriptions.json   whose claims a subscription holds, also after its deletion
    queues/worker-<i>/terms              clean mark: who was delivered how often; removed before work starts

Invariants
  An .idx entry that validates names a frame in a .dat that was synced before it.
  A journal file goes only after the entries that it alone knows are in segments, synced, and after all older ones.
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
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from warren.engine import _core
from warren.engine.errors import CatalogCut, CorruptRecord, FormatVersionError, StoreError, SyncFailed
from warren.engine.kernel import atomic_file, quarantine, segment
from warren.engine.kernel.formats import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    FORMAT_VERSION,
    LISTED_DATA,
    LISTED_INDEX,
    LISTED_JOURNAL,
    LISTED_SUBSCRIPTIONS,
    LISTED_TERMS,
)
from warren.engine.queues import files as queue_files
from warren.engine.queues.arguments import QueueArguments
from warren.engine.queues.files import Entry, FileList, Key, Listed
from warren.ipc import _core as atomics
from warren.ipc.layout import IMAGE

TERMS_MAGIC, QUEUE_TERMS_MAGIC = b"WRNTERM1", b"WRNQTRM1"
NO_SUBSCRIPTIONS = "is missing: claims of subscriptions that were deleted cannot go back to their queue"
DAMAGED_PARTS_MAX = 1000  #: of one journal file; behind them the rest of it is given up

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

    @property
    def files(self) -> Path:
        return self.path / "files"

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
    marked: set[int] = field(default_factory=set)  #: queue ids that the clean mark names
    segment_live: dict[tuple[int, int], int] = field(default_factory=dict)  #: (queue, segment) → entries on disk
    named: set[tuple[int, int]] = field(default_factory=set)  #: segments whose names are known to be durable
    lost: int = 0  #: messages that are lost to damage, as far as it can be known; of journals: at most
    parts: list[quarantine.Entry] = field(default_factory=list)  #: what is damaged or missing
    unknown: int = 0  #: of these, how many of which nobody can say what they cost
    aside: list[tuple[Path, str]] = field(default_factory=list)  #: files to be set aside
    listed: Listed = field(default_factory=Listed)  #: what should have been there
    there: dict[Key, Entry] = field(default_factory=dict)  #: what is

    def hurt(
        self, folder: Folder, path: Path, reason: str, messages: int | None = None, start: int = 0, end: int = 0
    ) -> None:
        """Something is missing or damaged; `messages`: what it costs, None: nobody can say."""
        cost = (
            "" if messages is None else f"; {messages or 'no'} messages are lost" if not end else f"; {messages} lost"
        )
        self.damaged.append(f"{path}: {reason}{cost}")
        self.parts.append(
            quarantine.Entry(str(path.relative_to(folder.path)), start, end, reason, messages, end - start)
        )
        self.lost += messages or 0
        self.unknown += messages is None


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
    files: FileList | None = None,
    had_subscriptions: bool | None = None,
    ids_end: int = 0,
) -> Recovered:
    """Fill an engine, whose queues are declared, from segments and journal. Afterwards acks are journalled again.
    `held`: journal files that need not be read (`held_files`). `files`: the worker's list, which is written anew.
    `had_subscriptions`: whether subscriptions.json was there before this start, when it may be there since.
    `ids_end`: the catalog never gave a queue id from here on; 0: nobody knows.

    A torn tail is cut; damage elsewhere is reported in `damaged` and costs what was hit, no more. What is listed and
    not there is reported, too. Raises FormatVersionError and CatalogCut (nothing was removed), StoreError, SyncFailed.
    """
    began = time.monotonic()
    found = Recovered()
    reached("recover.salvaged")
    files = files or FileList(folder.files, node_id, server)
    found.listed = files.load()
    if found.listed.problem:
        found.hurt(folder, folder.files, f"{found.listed.problem}; what is missing cannot be told")
    if not found.listed.there and segment.list_files(folder.journal, ".jnl").files:
        # of a directory that was made before there were lists, or it was removed
        found.hurt(folder, folder.files, "there is no list of files: what is missing cannot be told; it is made anew")
    if had_subscriptions is False and (LISTED_SUBSCRIPTIONS, 0, 0) in found.listed.entries:
        found.hurt(folder, folder.subscriptions, NO_SUBSCRIPTIONS)
    try:
        _give_names_back(folder, found)
        engine.ids_end(ids_end)
        paths, ends, unended = _read(engine, folder, node_id, server, found, dict(held or {}), True)
        _check_data(engine, folder, node_id, server, found, True)
        _end(engine, folder, node_id, server, ends, found)
        if ids_end and (unknown := _beyond(engine, found, ids_end)):
            raise CatalogCut(catalog_lost(folder, unknown, ids_end))
        _judge(paths, ends, unended, found)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot read {folder.path}") from error
    if found.damaged:  # behind a gap a queue says by itself how many are missing
        found.lost = max(found.lost, sum(engine.lost(queue) for queue in engine.queues()))
    if folder.terms.exists():
        folder.terms.unlink()
        segment.sync_directory(folder.path)
    if found.parts:
        quarantine.note(folder.path, *found.parts)
    for path, reason in found.aside:
        queue_files.set_aside(folder.path, path, reason)
    live = engine.data_files()
    listing = segment.list_files(folder.segments, ".dat")
    for path in listing.unfinished:
        path.unlink(missing_ok=True)
    unneeded = []
    for number, path in listing.files:
        found.next_file = max(found.next_file, number + 1)
        if not live.get(number):
            unneeded.append(path)
    # The list first: what goes must not be missed, should this start be the last thing that happens for a while.
    there = found.there | _data_entries(folder, live)
    new = {queue_files.path_of(folder, key).parent for key in there if files.known(key) is None}
    files.begin(there, sorted(new | {directory.parent for directory in new}))
    for path in unneeded:
        # Behind damage nobody can say whether it is needed: who puts a lost index file back finds the bodies, too.
        if not found.damaged or queue_files.set_aside(folder.path, path, "nothing that was found refers to it") is None:
            path.unlink(missing_ok=True)
    found.seconds = time.monotonic() - began
    return found


def _beyond(engine: _core.QueueEngine, found: Recovered, ids_end: int) -> set[int]:
    """Queue ids from `ids_end` on that were read: of a catalog that knew more, as ids are durable first."""
    named = {*engine.unknown(), *(id for id, _of, _n in engine.ghosts()), *found.marked}
    named.update(queue for _kind, queue, _number in found.listed.entries)
    return {id for id in named if id >= ids_end}


def unknown_queues(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, ids_end: int
) -> tuple[set[int], set[int]]:
    """Queue ids from `ids_end` on that a worker's files name: those with records, and all. Nothing on disk is changed;
    the engine, which has no queues, is of no use afterwards. Raises FormatVersionError, StoreError.
    """
    found = Recovered(listed=queue_files.read(folder.files, node_id, server))
    terms = read_terms(folder, node_id, server)
    found.marked = set(terms.queues) if terms is not None else set()
    engine.ids_end(ids_end)
    recorded: set[int] = set()
    try:
        if folder.segments.is_dir():
            names = [entry.name for entry in os.scandir(folder.segments) if entry.is_dir(follow_symlinks=False)]
            recorded = {int(name) for name in names if name.isascii() and name.isdigit() and int(name) >= ids_end}
        if folder.journal.is_dir():
            _read_journal(engine, folder, node_id, server, found, {}, False)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot read {folder.path}") from error
    recorded.update(engine.unknown())
    return recorded, recorded | _beyond(engine, found, ids_end)


def catalog_lost(folder: Folder, ids: Iterable[int], ids_end: int) -> str:
    """What a worker's files say that the catalog does not, and what to do."""
    shown = sorted(ids)
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return (
        f"{folder.path.name} has records of queues with ids {', '.join(map(str, shown[:10]))}{more}, and the catalog "
        f"gave none from {ids_end} on: catalog.json or catalog.*.log was cut, or is an older copy; nothing was "
        "removed; restore them, all of one moment, from a backup, or have these queues declared anew by "
        "`warren check DIR --repair`"
    )


def _data_entries(folder: Folder, live: dict[int, int]) -> dict[Key, Entry]:
    entries = {}
    for number in (number for number, n in live.items() if n):
        path = folder.data_file(number)
        if path.exists():
            salt = queue_files.salt_of(segment.read_page(path)) or 0
            entries[LISTED_DATA, 0, number] = Entry(salt, path.stat().st_size)
    return entries


def _give_names_back(folder: Folder, found: Recovered) -> None:
    """Journal and data files that lie under each other's names."""
    wrong = {}
    for key, entry in found.listed.entries.items():
        if key[0] in (LISTED_JOURNAL, LISTED_DATA) and (path := queue_files.path_of(folder, key)).is_file():
            salt = queue_files.salt_of(segment.read_page(path))
            if salt is not None and salt != entry.salt:
                wrong[key] = salt
    _put_right(folder, wrong, found)


def _put_right(folder: Folder, wrong: Mapping[Key, int], found: Recovered) -> list[Key]:
    """Returns whose files have their places again."""
    moved = queue_files.put_right(folder, wrong, found.listed.entries) if wrong else {}
    for right, key in moved.items():
        path, lay = queue_files.path_of(folder, right), queue_files.path_of(folder, key)
        found.hurt(folder, path, f"lay under the name of {lay.relative_to(folder.path)}, and is at its place again", 0)
    return list(moved)


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
    """As `recover`, but nothing on disk is changed, and the engine is not for serving: for a move (moving.py).

    Raises FormatVersionError, StoreError.
    """
    found = Recovered(listed=queue_files.read(folder.files, node_id, server))
    if found.listed.problem:
        found.hurt(folder, folder.files, found.listed.problem)
    _paths, ends, _torn = _read(engine, folder, node_id, server, found, {}, False)
    _check_data(engine, folder, node_id, server, found, False)
    _end(engine, folder, node_id, server, ends, found)
    return found


def _read(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    found: Recovered,
    held: dict[int, memoryview],
    mend: bool,
) -> tuple[dict[int, Path], dict[int, int], dict[int, str]]:
    """Segments, then the journal: its files by number, where the frames of each end, why other bytes follow there.
    `mend`: damaged files may be put right."""
    _load_segments(engine, folder, node_id, server, found, mend)
    return _read_journal(engine, folder, node_id, server, found, held, mend)


def _read_journal(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    found: Recovered,
    held: dict[int, memoryview],
    mend: bool,
) -> tuple[dict[int, Path], dict[int, int], dict[int, str]]:
    listing = segment.list_files(folder.journal, ".jnl")
    for path in listing.unfinished if mend else ():
        path.unlink(missing_ok=True)
    found.strangers += [f"{path}: not a file of this queue index, left alone" for path in listing.foreign]
    ends: dict[int, int] = {}
    unended: dict[int, str] = {}
    paths = dict(listing.files)
    listed = {number for kind, _queue, number in found.listed.entries if kind == LISTED_JOURNAL}
    if paths:
        held.pop(max(paths), None)  # what follows the frames of the newest has to be seen
    last = last_begun(listing.files)
    try:
        with contextlib.closing(_contents([path for number, path in listing.files if number not in held])) as contents:
            for number in sorted(listed | set(paths)):
                found.next_file = max(found.next_file, number + 1)
                if number not in paths:
                    entry = found.listed.entries[LISTED_JOURNAL, 0, number]
                    empty = entry.sealed and entry.end <= FILE_HEADER_BYTES
                    reason = "is missing; what it alone knew is lost, and what it said was acked comes again"
                    found.hurt(folder, folder.journal_file(number), reason, 0 if empty else None)
                    engine.gap()
                    continue
                path = paths[number]
                data = held[number] if number in held else next(contents)
                one = _Journal(engine, folder, path, number, node_id, server, found, mend, number >= last)
                ends[number] = one.replay(data, number in held, unended)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise atomic_file.explain(error, f"cannot read {folder.journal}") from error
    return paths, ends, unended


def last_begun(files: list[tuple[int, Path]]) -> int:
    """Number of the newest file with a record; newer ones were prepared ahead. Only it may have a torn tail."""
    for number, path in reversed(files):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(FILE_HEADER_BYTES)
            if any(file.read(8)):
                return number
    return -1


def _end(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, ends: dict[int, int], found: Recovered
) -> None:
    """Was the last stop a clean one? A worker that never made a journal file has never served, which is as good."""
    terms = read_terms(folder, node_id, server)
    found.marked = set(terms.queues) if terms is not None else set()
    found.clean = not ends or (
        terms is not None
        and ends.get(terms.file) == terms.end
        and all(end <= FILE_HEADER_BYTES for number, end in ends.items() if number > terms.file)
    )
    if terms is None and folder.terms.exists():
        found.hurt(folder, folder.terms, "is damaged: whatever is there counts as delivered before", 0)
    elif terms is not None and not found.clean:
        # A mark is written when all has ended, and removed before anything begins.
        at = f"the journal ends at byte {ends.get(terms.file, 0)} of file {terms.file}"
        found.hurt(
            folder, folder.terms, f"{at}, and not at {terms.end}: it was cut, or one of the two is an older copy"
        )
    found.clean = found.clean and not found.damaged
    engine.recovered(found.clean)
    for number, end in ends.items():
        key = LISTED_JOURNAL, 0, number
        if number not in found.foreign:
            found.there[key] = found.there.get(key, Entry())._replace(end=end, sealed=True)
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


@dataclass
class _Journal:
    """One journal file that is replayed. `newest`: it, or one behind it, may have a torn tail."""

    engine: _core.QueueEngine
    folder: Folder
    path: Path
    number: int
    node_id: int
    server: int
    found: Recovered
    mend: bool
    newest: bool

    def replay(self, data: memoryview, held: bool, unended: dict[int, str]) -> int:
        """Returns where its frames end, and says why in `unended` when there may be a torn tail."""
        found, key = self.found, (LISTED_JOURNAL, 0, self.number)
        entry = found.listed.entries.get(key)
        salt = self._salt(data, entry)
        if salt is None:
            found.foreign.add(self.number)
            self.engine.gap()
            return 0
        at, parts = FILE_HEADER_BYTES, 0
        cut = was_cut(self.path.stat().st_size, entry)
        while True:
            end, frames, reason = self.engine.replay(data, self.number, salt, at)
            found.frames += frames
            if held and end < len(data):  # the image is not what was written: the file decides
                data, held, at = memoryview(self.path.read_bytes()), False, end
                continue
            if reason in ("end", "last") or not _any_bit(data[end:]):
                break
            if self.newest and not vouched(data, end, salt):
                unended[self.number] = reason
                break
            at = _core.frame_behind(data, end, salt) if parts < DAMAGED_PARTS_MAX else 0
            parts += 1
            what = f"no valid record at byte {end} ({reason})"
            self.engine.gap()
            if not at:
                found.hurt(self.folder, self.path, f"{what}; what follows in this file is lost", None, end, len(data))
                break
            found.hurt(self.folder, self.path, f"{what}; what follows from byte {at} on is served", None, end, at)
        found.there[key] = Entry(salt, end, 0, True)
        if cut:
            self.engine.gap()
            found.hurt(self.folder, self.path, f"{cut}; what it alone knew behind byte {end} is lost")
        elif entry is not None and not parts and self.number not in unended:
            self._check_end(entry, end, reason)
        return end

    def _check_end(self, entry: Entry, end: int, reason: str) -> None:
        """Frames that are missing at the end of a file leave no trace in it."""
        if entry.sealed and end < entry.end:
            what = f"its records end at byte {end}, and once ended at {entry.end}: it was cut, or is an older copy"
        elif not entry.sealed and not self.newest and reason != "last" and end < entry.end:
            what = f"its records end at byte {end} without the last one: it was cut, or is an older copy"
        else:
            return
        self.engine.gap()
        self.found.hurt(self.folder, self.path, what)

    def _salt(self, data: memoryview, entry: Entry | None) -> int | None:
        """The file's salt, None: it is not the file that should be here."""
        page = bytes(data[:FILE_HEADER_BYTES])
        try:
            header, right = segment.check_or_mend(
                self.path, page, kind=FILE_JOURNAL, node_id=self.node_id, owner=self.server, file=self.number
            )
            salt, why = header.salt, "its header page had one wrong bit"
            if entry is not None and salt != entry.salt:
                raise CorruptRecord(self.path, FILE_HEADER.offset("salt"), f"salt {entry.salt:#x}", f"salt {salt:#x}")
        except CorruptRecord as error:
            first = _core.frame_check(data, FILE_HEADER_BYTES, entry.salt) if entry is not None else "no list"
            if entry is None or isinstance(first, str) or queue_files.salt_of(page) is not None:
                self.found.hurt(self.folder, self.path, f"{error}; it is set aside")
                self.found.aside.append((self.path, "not the file that should be here"))
                return None
            right = _core.file_header_pack(FILE_JOURNAL, self.node_id, self.server, self.number, entry.salt, 0)
            salt, why = entry.salt, "its header page was damaged"
        if right is not None:
            self.found.hurt(self.folder, self.path, f"{why}, and is written anew", 0)
            if self.mend:
                segment.rewrite_header(self.path, right)
        return salt


def was_cut(size: int, entry: Entry | None) -> str:
    """A journal file gets all its bytes, durably, before it is listed, and no crash takes them away."""
    if entry is None or entry.sealed or size >= entry.end:
        return ""
    return f"has {size} bytes, and was made with {entry.end}: it was cut"


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
    for number in unended:
        found.torn_bytes += segment.truncate_torn_tail(paths[number], ends[number])
    if last >= 0:
        segment.sync_file(paths[last])


def vouched(data: memoryview, end: int, salt: int) -> bool:
    """Whether a frame behind `end` says that what lies there was synced: then it is damage, and no torn tail."""
    listed, _reason = _core.scan_list(0, salt, data)
    return listed.vouched > end


def _load_segments(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered, mend: bool
) -> None:
    known = set(engine.queues())
    segments: list[tuple[int, int, Path]] = []
    for entry in sorted(os.scandir(folder.segments), key=lambda item: item.name):
        if not entry.name.isascii() or not entry.name.isdigit() or not entry.is_dir(follow_symlinks=False):
            continue
        queue = int(entry.name)
        if queue not in known:
            engine.declare(queue, True, True)  # deleted since; frames of the journal may still speak of it
        listing = segment.list_files(Path(entry.path), ".idx")
        for path in listing.unfinished if mend else ():
            path.unlink(missing_ok=True)
        segments += [(queue, number, path) for number, path in listing.files]
    wrong: dict[Key, int] = {}
    loader = _Segments(engine, folder, node_id, server, found, mend)
    for (queue, number, path), data in zip(segments, _contents([item[2] for item in segments]), strict=True):
        misplaced = loader.load(queue, number, path, data)
        if misplaced is not None:
            wrong[LISTED_INDEX, queue, number] = misplaced
    there = {(LISTED_INDEX, queue, number) for queue, number, _path in segments}
    for key in _put_right(folder, wrong, found) if mend else []:
        wrong.pop(key, None)
        there.add(key)
        path = queue_files.path_of(folder, key)
        loader.load(key[1], key[2], path, memoryview(path.read_bytes()))
    for key in wrong:
        path = queue_files.path_of(folder, key)
        if path.exists():
            loader.give_up(key, path, "another segment, or one of another time, under this name")
    for key, listed in found.listed.entries.items():
        if key[0] == LISTED_INDEX and key not in there:
            loader.lose(key, queue_files.path_of(folder, key), "is missing", listed.messages)
        elif key[0] == LISTED_TERMS and (path := queue_files.path_of(folder, key)).exists():
            found.there[key] = listed
        elif key[0] == LISTED_TERMS:
            found.hurt(folder, path, "is missing: marks and keys that a moved queue brought along are lost", 0)
        elif key[0] == LISTED_SUBSCRIPTIONS and not folder.subscriptions.exists():
            found.hurt(folder, folder.subscriptions, NO_SUBSCRIPTIONS)
    for queue in known:
        _take_queue_terms(engine, folder, node_id, server, queue, found)
    if folder.subscriptions.exists():
        found.there[LISTED_SUBSCRIPTIONS, 0, 0] = Entry()


@dataclass
class _Segments:
    """Loads the segments of a start."""

    engine: _core.QueueEngine
    folder: Folder
    node_id: int
    server: int
    found: Recovered
    mend: bool

    def load(self, queue: int, number: int, path: Path, data: memoryview) -> int | None:
        """One file. Returns the salt of one that is not the one which should be here; nothing is loaded then."""
        key, found = (LISTED_INDEX, queue, number), self.found
        listed = found.listed.entries.get(key)
        page = bytes(data[:FILE_HEADER_BYTES])
        try:
            header, right = segment.check_or_mend(
                path, page, kind=FILE_SEGMENT, node_id=self.node_id, owner=self.server, file=number
            )
            salt, why = header.salt, "its header page had one wrong bit"
            if listed is not None and salt != listed.salt:
                return salt
        except FormatVersionError:
            raise
        except CorruptRecord as error:
            misplaced = queue_files.salt_of(page)
            if misplaced is not None and listed is not None and misplaced != listed.salt:
                return misplaced
            if listed is None or len(data) <= FILE_HEADER_BYTES:
                self.give_up(key, path, str(error))
                return None
            # the entries say by themselves whether they are of the file that should be here
            right = _core.file_header_pack(FILE_SEGMENT, self.node_id, self.server, number, listed.salt, 0)
            salt, why = listed.salt, "its header page was damaged"
        live, bad = self.engine.load_segment(queue, number, data[FILE_HEADER_BYTES:], salt)
        if right is not None:
            if bad and not live:
                self.give_up(key, path, "neither its header page nor an entry is valid")
                return None
            costs = listed is not None and live < listed.messages  # said below
            found.hurt(self.folder, path, f"{why}, and is written anew", None if costs else 0)
            if self.mend:
                segment.rewrite_header(path, right)
        stamp = data[queue_files.STAMP_AT : queue_files.STAMP_AT + queue_files.STAMP_BYTES]
        changes = queue_files.changes_of(stamp, salt, queue, number)
        cost = max(0, listed.messages - live) if listed is not None else bad
        if len(data) < queue_files.STAMP_AT:
            self.lose(key, path, f"was cut to {len(data)} bytes", cost)
            if self.mend:
                changes = listed.end if listed is not None else 1
                _lengthen(path, queue_files.stamp(salt, queue, number, changes))
        elif bad:
            # a torn zero is one, too: its ACK is in the journal
            self.lose(key, path, f"{bad} entries are neither valid nor empty", bad)
        elif listed is not None and listed.end and (changes or 0) < listed.end:
            what = (
                "its stamp is damaged"
                if changes is None
                else "it is an older copy: some messages are missing, some are back"
            )
            self.lose(key, path, what, cost)
        elif listed is not None and live < listed.messages:
            self.lose(key, path, f"{cost} entries are missing: something wrote zeros over them", cost)
        found.messages_from_segments += live
        found.segment_live[queue, number] = live
        found.there[key] = Entry(salt, changes or 0, live)
        return None

    def lose(self, key: Key, path: Path, reason: str, messages: int) -> None:
        """Messages of one queue are lost, at most so many."""
        self.found.hurt(self.folder, path, f"queue {key[1]}: {reason}", messages)
        if messages and key[1] in self.engine.queues():
            self.engine.lost(key[1], messages)

    def give_up(self, key: Key, path: Path, reason: str) -> None:
        """A file that cannot be used."""
        listed = self.found.listed.entries.get(key)
        self.lose(key, path, f"{reason}; it is set aside", listed.messages if listed is not None else 0)
        self.found.aside.append((path, reason))


def _lengthen(path: Path, stamp: bytes) -> None:
    """A segment that was cut gets its length again, durably. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        atomic_file.write_all(fd, stamp, queue_files.STAMP_AT)
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_data(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered, mend: bool
) -> None:
    """Whether the data files that entries name are there: their heads and sizes. Without its body a message goes; a
    body that is damaged is found when it is read, or by `warren check`."""
    for number, n in engine.data_files().items():
        if not n:
            continue
        path, entry = folder.data_file(number), found.listed.entries.get((LISTED_DATA, 0, number))
        reason, size, page = "", 0, bytearray()
        try:
            page, size = segment.read_page(path), path.stat().st_size
            header, right = segment.check_or_mend(
                path, page, kind=FILE_JOURNAL, node_id=node_id, owner=server, file=number
            )
            if entry is not None and header.salt != entry.salt:
                reason, size = "is not the file that was written", 0
            elif entry is not None and size < entry.end:
                reason = f"has {size} bytes, and had {entry.end}: it was cut, or is an older copy"
        except FormatVersionError:
            raise
        except CorruptRecord as error:
            if entry is None or queue_files.salt_of(page) is not None or size <= FILE_HEADER_BYTES:
                reason, size, right = str(error), 0, None
            else:
                right = _core.file_header_pack(FILE_JOURNAL, node_id, server, number, entry.salt, 0)
        except StoreError as error:
            if not isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
                raise
            if entry is None and found.listed.there and not found.listed.problem and not found.damaged:
                continue  # it never had its name: of a move that was cut short, to queues that no catalog names
            reason, right = "is missing", None
        if reason:
            found.hurt(
                folder,
                path,
                f"{reason}; messages with bodies in it are lost",
                engine.drop_lost(number, size) if mend else n,
            )
            if not size and path.exists():
                found.aside.append((path, reason))
        elif right is not None:
            found.hurt(folder, path, "its header page was damaged, and is written anew", 0)
            if mend:
                segment.rewrite_header(path, right)


def _take_queue_terms(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, queue: int, found: Recovered
) -> None:
    """What a moved queue brought along. It stays beside the segments: what the journal and the clean mark say of the
    same messages is newer, and comes after it."""
    path = folder.queue_terms(queue)
    body = _sealed(path, QUEUE_TERMS_MAGIC)
    if body is None:
        if path.exists():
            found.hurt(folder, path, "not the terms of a moved queue; its marks and last sequence are lost", 0)
        return
    try:
        terms = msgspec.msgpack.decode(body, type=QueueTerms)
    except msgspec.MsgspecError as error:
        found.hurt(folder, path, str(error), 0)
        return
    if (terms.format_version, terms.node_id, terms.server, terms.queue) != (FORMAT_VERSION, node_id, server, queue):
        found.hurt(folder, path, "the terms of another queue", 0)
        return
    engine.set_terms(queue, terms.next, terms.rows)
    engine.set_keys(terms.keys)


def read_subscriptions(folder: Folder) -> dict[int, int]:
    """Subscription queue → the queue whose claims it holds, also of subscriptions deleted since. Raises CorruptRecord,
    StoreError."""
    try:
        return msgspec.json.decode(folder.subscriptions.read_bytes(), type=dict[int, int])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise CorruptRecord(folder.subscriptions, 0, "a map of queue ids", str(error)) from error
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {folder.subscriptions}") from error


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


def remove_queue(folder: Folder, queue: int, live: dict[tuple[int, int], int], files: FileList) -> None:
    """The segments of a deleted queue. Raises DiskFull, SyncFailed, StoreError; then it can be repeated."""
    own = folder.segments / str(queue)
    try:
        names = os.listdir(own)
    except FileNotFoundError:
        names = []
    numbers = [int(number) for name in names if (number := name.removesuffix(".idx")).isdigit()]
    files.note(gone=[(LISTED_TERMS, queue, 0), *((LISTED_INDEX, queue, number) for number in numbers)])
    for each in numbers:
        live.pop((queue, each), None)
    shutil.rmtree(own, ignore_errors=True)
