"""Queues of the workers as rows: entries of segment files as they lie there, and messages as the next start finds them.

`messages` are read by the core's own replay of segments and journals (engine/queues/moving.py), a worker at a time and
within the memory that a worker has for its rows. What is damaged is left out of them; `journal` and `queues` name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError
from warren.engine.kernel import atomic_file, data_files, file_register, segment
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_SEGMENT,
    LISTED_INDEX,
    QUEUE_SEGMENT_ENTRY,
    SEGMENT_ENTRY_COUNT,
)
from warren.engine.kernel.protocol import PROTOCOL, REASONS
from warren.engine.queues import segment_stamp
from warren.engine.queues.folder import Folder
from warren.engine.queues.moving import Source
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.process.tie import workers_there
from warren.workers.spark.files import schema
from warren.workers.spark.files.directory import Directory, FilesPartition, Part, Told, partitions
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.reading import Gone, opened, read_at

_ENTRY = np.dtype(QUEUE_SEGMENT_ENTRY.columns())
_IN_STORE = PROTOCOL["LOCATION_STORE"]
_EMPTY, _LIVE, _BAD = range(3)
TRIES = 10  #: to read a worker's files while it moves rows between them


# ---- entries --------------------------------------------------------------------------------------------------------


def plan_entries(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Segment files of all queues. Raises StoreError."""
    parts: list[Part] = []
    told: list[Told] = []
    for worker in workers_there(directory.path):
        folder, owner = Folder.of(directory.path, worker), SERVER_WORKER_FIRST + worker
        if not folder.segments.is_dir():
            continue
        there: set[tuple[int, int]] = set()
        with atomic_file.explained(f"cannot read {folder.segments}"):
            queues = sorted(path for path in folder.segments.iterdir() if path.is_dir() and path.name.isdigit())
        for place in queues:
            listing = segment.list_files(place, ".idx")
            told += [
                (directory.relative(path), 0, path.lstat().st_size if path.is_file() else None, "file", "foreign")
                for path in listing.foreign
                if path.name != "terms"
            ]
            for number, path in listing.files:
                there.add((int(place.name), number))
                more: dict[str, int | str] = {"owner": owner, "queue": int(place.name), "number": number}
                try:
                    parts.append(Part(directory.relative(path), 0, path.stat().st_size, more))
                except FileNotFoundError:
                    continue
        told += _missing(directory, folder, owner, there)
    return partitions(parts, told, options.partition_bytes)


def _missing(directory: Directory, folder: Folder, owner: int, there: set[tuple[int, int]]) -> Iterator[Told]:
    try:
        entries = file_register.read(folder.files, directory.node_id, owner).entries
    except (StoreError, FileNotFoundError):
        return  # nobody can say what is missing
    for key in sorted(entries):
        path = folder.path_of(key)
        if key[0] == LISTED_INDEX and key[1:] not in there and not path.exists():
            yield directory.relative(path), 0, None, "file", Gone.status(directory)


class EntryReader(PartReader):
    """Makes rows of segment files; runs in an executor."""

    def __init__(self, directory: Directory, options: FilesOptions, wanted: pa.Schema) -> None:
        super().__init__(directory, options, wanted)
        self._names = directory.queue_names()

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a file. Raises StoreError."""
        path = self.directory.whole(part.file)
        with opened(path) as fd:
            data = read_at(fd, 0, path.stat().st_size) if fd is not None else None
        if data is None:
            row = (part.file, 0, part.bytes, "file", Gone.status(self.directory))
            yield schema.told(self.wanted, [row])
            return
        salt, status = self._header(part, path, data)
        others: list[Told] = [(part.file, 0, min(FILE_HEADER_BYTES, len(data)), "header", status)]
        if salt is None:
            if len(data) > FILE_HEADER_BYTES:
                others.append((part.file, FILE_HEADER_BYTES, len(data) - FILE_HEADER_BYTES, "bytes", "unread"))
            yield schema.told(self.wanted, others)
            return
        queue, number = int(part.more["queue"]), int(part.more["number"])
        body = data[FILE_HEADER_BYTES : segment_stamp.STAMP_AT]
        body = body[: len(body) // _ENTRY.itemsize * _ENTRY.itemsize]
        first = number * SEGMENT_ENTRY_COUNT
        kinds = np.frombuffer(_core.QueueEngine.check_entries(body, salt, queue, first), dtype=np.uint8)
        entries = np.frombuffer(body, dtype=_ENTRY)
        empty = int((kinds == _EMPTY).sum())
        if empty:
            others.append((part.file, None, empty * _ENTRY.itemsize, "empty", "ok"))
        if len(data) < segment_stamp.STAMP_AT:
            others.append((part.file, len(data), segment_stamp.STAMP_AT - len(data), "file", "cut"))
        elif len(data) > segment_stamp.STAMP_AT:
            changes = segment_stamp.changes_of(data[segment_stamp.STAMP_AT :], salt, queue, number)
            size = len(data) - segment_stamp.STAMP_AT
            others.append((part.file, segment_stamp.STAMP_AT, size, "stamp", "bad_crc" if changes is None else "ok"))
        yield schema.told(self.wanted, others)
        for which in np.array_split(np.flatnonzero(kinds), max(1, -(-len(kinds) // self.options.batch_rows))):
            if len(which):
                yield self._entries(part, entries[which], kinds[which], which)

    def _header(self, part: Part, path: Path, data: memoryview) -> tuple[int | None, str]:
        try:
            header, right = segment.check_or_mend(
                path,
                bytes(data[:FILE_HEADER_BYTES]),
                kind=FILE_SEGMENT,
                node_id=self.directory.node_id,
                owner=int(part.more["owner"]),
                file=int(part.more["number"]),
            )
        except FormatVersionError:
            return None, "newer"
        except CorruptRecord:
            return None, "bad_header" if segment.salt_of(data[:FILE_HEADER_BYTES]) is None else "foreign"
        return header.salt, "ok" if right is None else "flipped_bit"

    def _entries(
        self, part: Part, entries: NDArray[np.void], kinds: NDArray[np.uint8], which: NDArray[np.int64]
    ) -> pa.RecordBatch:
        n, queue = len(entries), int(part.more["queue"])
        sequence = int(part.more["number"]) * SEGMENT_ENTRY_COUNT + which
        reasons = np.minimum(entries["reason"], len(REASONS) + 1)
        makers: dict[str, Any] = {
            "file": schema.repeated(part.file, n),
            "position": schema.longs(FILE_HEADER_BYTES + which * _ENTRY.itemsize),
            "bytes": schema.longs(np.full(n, _ENTRY.itemsize)),
            "kind": schema.repeated("entry", n),
            "status": schema.chosen(kinds == _BAD, ("ok", "bad_crc")),
            **schema.ids(entries["id"]),
            "queue": schema.repeated(queue, n, pa.int64()),
            "queue_name": schema.repeated(self._names.get(queue), n),
            "sequence": schema.longs(sequence),
            "in_store": lambda: pa.array(entries["location"] == _IN_STORE),
            **_place(entries["location"], entries),
            "frame_bytes": schema.ints(entries["frame_length"]),
            "body_bytes": schema.ints(entries["body_length"]),
            "delivery_count": schema.ints(entries["delivery_count"]),
            "priority": schema.ints(entries["priority"]),
            "reason": schema.chosen(reasons, (None, *REASONS, "unknown")),  # type: ignore[arg-type]
            "expires": schema.times(_possible(entries["expires"]), zero_is_none=True),
            "due": schema.times(_possible(entries["due"]), zero_is_none=True),
        }
        return schema.batch(self.wanted, n, makers)


def _place(where: NDArray[Any], rows: NDArray[np.void]) -> dict[str, schema.Maker]:
    """Where bodies lie; null: in no file of the worker's, but in the store, or each in a file of its own."""
    elsewhere = where >= _IN_STORE
    return {
        "body_file": lambda: pa.array(rows["file"].astype(np.int64), mask=elsewhere),
        "body_position": lambda: pa.array(rows["offset"].astype(np.int64), mask=elsewhere),
    }


def _possible(milliseconds: NDArray[Any]) -> NDArray[Any]:
    """Damaged entries have any number: what is no time is none."""
    return np.where(milliseconds < 1 << PROTOCOL["TIME_BITS"], milliseconds, 0)


# ---- messages -------------------------------------------------------------------------------------------------------


def plan_messages(directory: Directory, _options: FilesOptions) -> list[FilesPartition]:
    """One task for each worker. Raises CorruptRecord: without the catalog nobody knows what the queues are."""
    if directory.nameless:
        raise CorruptRecord(
            directory.path / "catalog.json", 0, "the catalog, which says what the queues are", directory.nameless
        )
    parts = [Part(f"queues/worker-{worker}", 0, 0, {"worker": worker}) for worker in workers_there(directory.path)]
    return [FilesPartition([part]) for part in parts]


class MessageReader(PartReader):
    """Makes rows of what the queues of a worker hold; runs in an executor."""

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The messages of a worker. Raises FormatVersionError, StoreError."""
        worker = int(part.more["worker"])
        declared = [queue for queue in self.directory.queues if queue.worker == worker]
        names = self.directory.queue_names()
        for queue, rows in self._found(worker, declared):
            yield self._messages(part, names[queue], queue, worker, rows)

    def _found(self, worker: int, declared: list[QueueDeclaration]) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Rows by queue."""
        if not self.directory.running:
            yield from self._rows(worker, declared)
            return
        # A running worker moves rows from file to file. Who reads one before and another one behind that misses them,
        # or has acked ones back: so what was read counts if the worker's list of its files did not change meanwhile.
        register = Folder.of(self.directory.path, worker).files
        for _try in range(TRIES):
            before = _bytes_of(register)
            try:
                found = list(self._rows(worker, declared))
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                continue
            if _bytes_of(register) == before:
                yield from found
                return
        raise StoreError(
            f"worker {worker} changes its files faster than they can be read: {TRIES} tries found no moment for all of "
            "them; stop the node, or read a snapshot of the directory"
        )

    def _rows(self, worker: int, declared: list[QueueDeclaration]) -> Iterator[tuple[int, NDArray[np.void]]]:
        memory = self.directory.settings.queue_memory_bytes // 2
        source = Source(self.directory.path, self.directory.node_id, worker, declared, memory)
        try:
            yield from source.rows(self.options.batch_rows)
        finally:
            source.close()

    def _messages(self, part: Part, name: str, queue: int, worker: int, rows: NDArray[np.void]) -> pa.RecordBatch:
        n = len(rows)
        makers: dict[str, Any] = {
            "file": schema.repeated(part.file, n),
            "kind": schema.repeated("message", n),
            "status": schema.repeated("ok", n),
            **schema.ids(rows["id"]),
            "worker": schema.repeated(worker, n, pa.int32()),
            "queue": schema.repeated(queue, n, pa.int64()),
            "queue_name": schema.repeated(name, n),
            "sequence": schema.longs(rows["sequence"]),
            "in_store": lambda: pa.array(rows["where"] == _IN_STORE),
            **_place(rows["where"], rows),
            "frame_bytes": schema.ints(rows["frame_length"]),
            "body_bytes": schema.ints(rows["body_length"]),
        }
        return schema.batch(self.wanted, n, makers)


def _bytes_of(path: Path) -> bytes:
    with atomic_file.explained(f"cannot read {path}"):
        try:
            return data_files.read(path)
        except FileNotFoundError:
            return b""
