"""Queues on their way to another worker: read from the old one's folder, written into the new one's, at a cold start.

A moved queue gets another id, of the catalog's, that was never used: whatever the new worker's folder holds under it
counts for nothing until a catalog that names it is in place, and from then on what the old one's folder holds under
the old id is of a queue that was deleted. So the catalog's rename is the whole commit, and nothing has to be undone:
neither frames of the old journal nor what an attempt that was killed has left can ever come back, also when a queue
moves to and fro. Sequences stay what they are.

    new worker's segments/<n>.dat        frames of embedded bodies, as they are, under the salt of the file they were in
    new worker's segments/<id>/<m>.idx   entries, as a flush writes them
    new worker's segments/<id>/terms     next sequence, redelivered marks, keys for deduplication

A message in a file of its own gets a second link in the new worker's folder; the old one goes with its queue.

Bodies in the store stay where they are. The new worker claims them with its first resync, the old one lets go of them
with its own, whichever comes first: the store releases nothing before all workers have said what they hold.

Invariants
  Nothing that was there is changed: new files only, under numbers above all others of the folder.
  Everything is synced, names too, before `write` returns.
  Memory: the rows of one worker up to a limit, and BATCH_ROWS on their way.
Crash points (tests kill at each): read, entries (of some batch), terms, named (data files have their names).
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_register import Entry, FileRegister
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FORMAT_VERSION,
    LISTED_DATA,
    LISTED_TERMS,
    SEEN_KEY,
)
from warren.engine.kernel.protocol import QUEUE_STATS
from warren.engine.queues import recovery
from warren.engine.queues.flush import (
    LOCATION_JOURNAL,
    LOCATION_LARGE,
    LOCATION_SEGMENT,
    LOCATION_STORE,
    ROW,
    write_entries,
)
from warren.engine.queues.folder import Folder, Reached, nowhere, open_pages, read_subscriptions
from warren.engine.queues.large_files import link
from warren.engine.queues.policy import give_policy
from warren.engine.queues.terms import QueueTerms, write_queue_terms
from warren.ipc.layout import PAGE_BYTES, SERVER_WORKER_FIRST, SUPERBLOCK, SUPERBLOCK_BYTES

BATCH_ROWS = 1 << 18
DATA_FILE_BYTES_MAX = 1 << 30  #: one file's frames may go to several queues; offsets have 32 bits
COPY_BYTES = 1 << 20
IMAGES_N, IMAGE_FILE_BYTES = 2, 1 << 16


@dataclass
class _DataFile:
    """A data file in the making: its number in the new folder, and the file that its frames come from."""

    number: int
    path: Path
    source: Path
    salt: int
    size: int = FILE_HEADER_BYTES


@dataclass
class Source:
    """What one worker holds, read and never changed. `declared`: its queues in the catalog. `close` it."""

    directory: Path
    node_id: int
    worker: int
    declared: Sequence[QueueDeclaration]
    memory_bytes: int  #: of rows; beyond it they are read from the segments again
    messages_n: int = 0  #: so many were written for other workers
    _engine: _core.QueueEngine = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Folder.of(self.directory, self.worker)
        self._server = SERVER_WORKER_FIRST + self.worker
        self._stats = max(64, len(self.declared) + 1)
        memory = [
            memoryview(mmap.mmap(-1, size))
            for size in (
                SUPERBLOCK_BYTES,
                PAGE_BYTES + IMAGES_N * IMAGE_FILE_BYTES,
                PAGE_BYTES + IMAGES_N * IMAGE_FILE_BYTES,
                self._stats * QUEUE_STATS.size,
            )
        ]
        for name, value in {
            "servers_n": self._server + 1,
            "ring_records": 64,
            "delivery_slots": 64,
            "arena_bytes": 1 << 16,
            "message_bytes_max": 1 << 14,
            "embed_bytes_max": 4096,
            "reply_bytes": 4096,
            "directory_rows": 64,
            "dense_blocks": 64,
        }.items():
            SUPERBLOCK.pack_into(memory[0], name, value)
        self._engine = _core.QueueEngine(
            memory[0],
            self._server,
            memory[1],
            memory[2],
            memory[3],
            None,
            0,
            1,
            1,
            images_n=IMAGES_N,
            file_bytes=IMAGE_FILE_BYTES,
            spin_us=0,
            tick_ms=1000,
            commit_bytes=1 << 16,
            journal_files_max=8,
        )

    def close(self) -> None:
        """Free what was read."""
        self._engine.close()

    def read(self) -> None:
        """Read everything. Raises StoreError when some of it cannot be read, FormatVersionError."""
        if damaged := self._load():
            more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            raise StoreError(
                f"{self.folder.path} has damaged files ({'; '.join(damaged[:3])}{more}): the worker sets them aside "
                "when it starts, and the next start of the node moves its queues"
            )

    def apart(self) -> Iterator[tuple[QueueDeclaration, NDArray[np.bytes_], NDArray[np.bytes_]]]:
        """Instead of `read`: of each queue that outlives the node the ids of messages whose bodies are in the message
        store, and of those that have files of their own, piece by piece. What is damaged is left out: who checks names
        it elsewhere. Raises FormatVersionError, StoreError."""
        by_id = {item.id: item for item in self.declared}
        for id, table in self.rows(BATCH_ROWS):
            stored, large = _ids(table, LOCATION_STORE), _ids(table, LOCATION_LARGE)
            if len(stored) or len(large):
                yield by_id[id], stored, large

    def rows(self, count: int) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Instead of `read`: of each queue that outlives the node its messages (rows.SEGMENT_ROW; `where` their bodies
        lie), up to `count` at a time. What is damaged is left out. Raises FormatVersionError, StoreError."""
        self._load()
        for item in self.declared:
            at, next = 0, self._engine.stats(item.id)[8]
            while item.outlives_node and at < next:
                rows, at = self._engine.export_queue(item.id, at, count)
                if rows:
                    yield item.id, np.frombuffer(rows, dtype=ROW)

    def _load(self) -> list[str]:
        """Fill the engine; returns what is damaged, for people."""
        engine = self._engine
        companions = {item.dead_letters_of: item.id for item in self.declared if item.dead_letters_of}
        for item in self.declared:
            engine.declare(item.id, item.durable, False, item.dead_letters_of != 0)
            give_policy(engine, item.id, item.policy, companions.get(item.id, 0))
        if not self.folder.journal.exists() or not self.folder.segments.exists():
            return []
        # there are no transient rows that would have to be written anywhere
        open_pages(engine, self.folder, self.node_id, self.memory_bytes, spills=False)
        return recovery.look(engine, self.folder, self.node_id, self._server).damaged

    def unknown(self, ids_end: int) -> tuple[set[int], set[int]]:
        """Instead of `read`: as `recovery.unknown_queues`."""
        return recovery.unknown_queues(self._engine, self.folder, self.node_id, self._server, ids_end)

    def claimed(self) -> set[int]:
        """Queues to which claims of a deleted subscription are still to be returned: that is the worker's own task."""
        subscriptions = read_subscriptions(self.folder)
        return {of or subscriptions.get(id, 0) for id, of, entries in self._engine.past_queues() if entries}

    def write(self, to: int, ids: dict[int, int], reached: Reached = nowhere) -> int:
        """Write queues (old → new id) for another worker, durably; returns how many messages. Until a catalog names the
        new ids they are nothing.

        Raises CorruptRecord (of what is read), DiskFull, SyncFailed, StoreError; then nothing has moved.
        """
        target = _Target(Folder.of(self.directory, to), self.node_id, SERVER_WORKER_FIRST + to, self, reached)
        before = self.messages_n
        with atomic_file.file_explained(f"cannot write to {target.folder.path}"):
            target.open()
            for path in segment.list_files(target.folder.segments, ".dat").unfinished:
                data_files.unlink(path)  # of an attempt that was killed
            for old, new in ids.items():
                self._write_queue(target, old, new)
            target.finish()
        if self._engine.counters()["damaged"]:
            raise CorruptRecord(self.folder.segments, 0, "entries of messages", "damaged ones")
        return self.messages_n - before

    def _write_queue(self, target: _Target, old: int, new: int) -> None:
        engine, at = self._engine, 0
        next = engine.stats(old)[8]
        while at < next:
            rows, at = engine.export_queue(old, at, BATCH_ROWS)
            table = np.frombuffer(bytearray(rows), dtype=ROW)
            if len(table):
                target.entries(table, new)
                self.messages_n += len(table)
        keys = np.frombuffer(bytearray(engine.keys(old)), dtype=[("queue", ">u4"), ("rest", f"V{SEEN_KEY.size - 4}")])
        keys["queue"] = new
        target.terms(new, next, engine.terms(old), keys.tobytes())


def _ids(table: NDArray[np.void], where: int) -> NDArray[np.bytes_]:
    """Of the messages whose bodies lie there."""
    ids = np.ascontiguousarray(table["id"][table["where"] == where])
    return ids.view(np.dtype((np.bytes_, 16)))


@dataclass
class _Target:
    """The new worker's folder."""

    folder: Folder
    node_id: int
    server: int
    source: Source
    reached: Reached
    _files: dict[tuple[int, int], _DataFile] = field(default_factory=dict)
    _made: list[_DataFile] = field(default_factory=list)
    _next: int = -1

    def __post_init__(self) -> None:
        self.list = FileRegister(self.folder.files, self.node_id, self.server)

    def open(self) -> None:
        """Make the folder and its list, if there is none, durably: the catalog will rely on both."""
        self.folder.make()
        if not self.list.load().there:
            self.list.begin({}, [])
        segment.sync_directory(self.folder.path)  # it may have been made by an attempt that was killed

    def entries(self, table: NDArray[np.void], queue: int) -> None:
        """Some neighbouring entries of one queue, with their bodies."""
        where, files = table["where"].copy(), table["file"].copy()  # what is copied gets another place
        for location in (LOCATION_JOURNAL, LOCATION_SEGMENT):
            there = where == location
            for file in np.unique(files[there]).tolist():
                self._copy(table, there & (files == file), location, file)
        for id in np.unique(table["id"][where == LOCATION_LARGE]).tolist():
            link(self.source.folder, self.folder, id.ljust(16, b"\0"))
        segment.sync_directory(self.folder.large)
        table["queue"] = queue
        write_entries(self.folder, self.node_id, self.server, table.view(np.uint8).data, {}, set(), self.list)
        self.reached("entries")

    def terms(self, queue: int, next: int, rows: bytes, keys: bytes) -> None:
        write_queue_terms(self.folder, QueueTerms(FORMAT_VERSION, self.node_id, self.server, queue, next, rows, keys))
        self.list.note({(LISTED_TERMS, queue, 0): Entry()})
        self.reached("terms")

    def finish(self) -> None:
        """Give the data files their names, durably."""
        for made in self._made:
            segment.sync_file(made.path)
        for made in self._made:
            data_files.rename(made.path, self.folder.data_file(made.number))
        segment.sync_directory(self.folder.segments)
        self.list.note({(LISTED_DATA, 0, made.number): Entry(made.salt, made.size) for made in self._made})
        self.reached("named")

    def _copy(self, table: NDArray[np.void], rows: NDArray[np.bool_], location: int, file: int) -> None:
        """The frames of some rows, all of one file, go behind what is in its successor already."""
        made = self._file(location, file)
        offsets = table["offset"][rows].astype(np.int64)
        lengths = table["frame_length"][rows].astype(np.int64)
        places = made.size + np.concatenate(([0], np.cumsum(lengths)[:-1]))
        with data_files.writing(made.path) as target, data_files.reading(made.source) as source:
            place = made.size
            # neighbours in the old file are neighbours in the new one
            cuts = np.flatnonzero(offsets[1:] != offsets[:-1] + lengths[:-1]) + 1
            for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True):
                at, stop = int(offsets[first]), int(offsets[end - 1] + lengths[end - 1])
                while at < stop:
                    part = os.pread(source.fileno(), min(COPY_BYTES, stop - at), at)
                    if not part:
                        raise CorruptRecord(made.source, at, f"a frame up to {stop}", "the end of the file")
                    atomic_file.write_all(target.fileno(), part, place)
                    at += len(part)
                    place += len(part)
        made.size = int(places[-1] + lengths[-1])
        table["file"][rows] = made.number
        table["offset"][rows] = places
        table["location"][rows] = table["where"][rows] = LOCATION_SEGMENT

    def _file(self, location: int, file: int) -> _DataFile:
        found = self._files.get((location, file))
        if found is not None and found.size < DATA_FILE_BYTES_MAX:
            return found
        folder = self.source.folder
        path = folder.journal_file(file) if location == LOCATION_JOURNAL else folder.data_file(file)
        with data_files.reading(path) as old:
            page = old.read(FILE_HEADER_BYTES)
        owner = SERVER_WORKER_FIRST + self.source.worker
        header = segment.check_header(path, page, kind=FILE_JOURNAL, node_id=self.node_id, owner=owner, file=file)
        number = self._number()
        new = self.folder.data_file(number)
        new = segment.unfinished_path(new)
        page = _core.file_header_pack(FILE_JOURNAL, self.node_id, self.server, number, header.salt, time.time_ns())
        with data_files.writing(new, os.O_CREAT | os.O_TRUNC) as target:
            atomic_file.write_all(target.fileno(), page, 0)
        made = self._files[location, file] = _DataFile(number, new, path, header.salt)
        self._made.append(made)
        return made

    def _number(self) -> int:
        """Above all numbers of the folder: a journal file and a data file of one number would be the same file."""
        if self._next < 0:
            names = [*os.listdir(self.folder.journal), *os.listdir(self.folder.segments)]
            numbers = [name.split(".")[0] for name in names if "." in name]
            self._next = max((int(item) for item in numbers if item.isascii() and item.isdigit()), default=-1) + 1
        self._next += 1
        return self._next - 1
