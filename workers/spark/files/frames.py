"""Files of frames as rows: those of the message store, journals and data files of queue workers.

A row is a frame, the padding behind a commit, the header page, or a range of bytes that is no frame. The core scans
and checks; behind damage it says where frames go on. Torn or damaged is told as a start tells it: in the newest file
with a frame, when no later frame says that these bytes were synced, it is `torn`.

A data file may be a second link to a journal file, so the same bytes may be counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError
from warren.engine.kernel import file_register, segment
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_STORE,
    FRAME,
    KIND_ACK,
    KIND_ADD_REFERENCE,
    KIND_DELAY,
    KIND_KEYS,
    KIND_MESSAGE,
    KIND_MOVE,
    KIND_PUBLISH,
    KIND_REMOVE,
    LISTED_DATA,
    LISTED_JOURNAL,
    LISTED_STORE,
)
from warren.engine.kernel.paths import store_folder
from warren.engine.kernel.rows import FRAME_ROW
from warren.engine.queues.folder import Folder
from warren.engine.store import folder as store
from warren.engine.store.scanning import read_file
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_WORKER_FIRST
from warren.workers.process.tie import workers_there
from warren.workers.spark.files import schema
from warren.workers.spark.files.directory import Directory, FilesPartition, Part, Told, partitions
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.reading import Gone, opened, read_at

_ROW = np.dtype(FRAME_ROW.columns())
_KINDS = {
    KIND_MESSAGE: "message",
    KIND_ADD_REFERENCE: "reference",
    KIND_REMOVE: "remove",
    KIND_PUBLISH: "publish",
    KIND_ACK: "ack",
    KIND_DELAY: "delay",
    KIND_MOVE: "move",
    KIND_KEYS: "keys",
}
_WORDS = [_KINDS.get(number, f"kind {number}") for number in range(256)]
_MARKER_BYTES = 1


# ---- plan -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    """The files of a folder that are appended to one after the other, or made whole."""

    kind: int
    owner: int
    listing: list[tuple[int, Path]]
    appended: bool


def plan_store(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Files of the persistent store. Raises StoreError."""
    folder = store_folder(directory.path, SERVER_STORE_PERSISTENT)
    if not folder.is_dir():
        return []
    listing = store.list_files(folder)
    told: list[Told] = [
        (directory.relative(path), 0, _bytes(path), "file", "foreign")
        for path in listing.foreign
        if path.name not in store.OWN_NAMES
    ]
    told += [(directory.relative(path), 0, _bytes(path), "file", "unfinished") for path in listing.unfinished]
    told += [(directory.relative(path), 0, _bytes(path), "spare", "ok") for _number, path in listing.spares]
    wanted = _listed(folder / store.FILES, directory.node_id, SERVER_STORE_PERSISTENT, LISTED_STORE)
    wanted |= set(listing.lists)
    files = _Files(FILE_STORE, SERVER_STORE_PERSISTENT, listing.files, True)
    told += _missing(directory, wanted, listing.files, lambda number: store.data_path(folder, number))
    return partitions(_parts(directory, files), told, options.partition_bytes)


def plan_journal(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Journals and data files of all queue workers. Raises StoreError."""
    parts: list[Part] = []
    told: list[Told] = []
    for worker in workers_there(directory.path):
        folder, owner = Folder.of(directory.path, worker), SERVER_WORKER_FIRST + worker
        for place, suffix, listed, appended in (
            (folder.journal, ".jnl", LISTED_JOURNAL, True),
            (folder.segments, ".dat", LISTED_DATA, False),
        ):
            if not place.is_dir():
                continue
            listing = segment.list_files(place, suffix)
            strange = [path for path in listing.foreign if suffix != ".dat" or not path.is_dir()]
            told += [(directory.relative(path), 0, _bytes(path), "file", "foreign") for path in strange]
            told += [(directory.relative(path), 0, _bytes(path), "file", "unfinished") for path in listing.unfinished]
            wanted = _listed(folder.files, directory.node_id, owner, listed)
            of = folder.journal_file if suffix == ".jnl" else folder.data_file
            told += _missing(directory, wanted, listing.files, of)
            parts += _parts(directory, _Files(FILE_JOURNAL, owner, listing.files, appended))
    return partitions(parts, told, options.partition_bytes)


def _listed(path: Path, node_id: int, owner: int, kind: int) -> set[int]:
    """Numbers of the files that a register names; it may be missing or damaged, then nobody can say."""
    try:
        return {number for listed, _queue, number in file_register.read(path, node_id, owner).entries if listed == kind}
    except (StoreError, FileNotFoundError):
        return set()


def _missing(
    directory: Directory, wanted: set[int], there: list[tuple[int, Path]], of: Callable[[int], Path]
) -> list[Told]:
    names = {number for number, _path in there}
    paths = [of(number) for number in sorted(wanted - names)]
    # what went since the listing did so in good order
    return [(directory.relative(path), 0, None, "file", Gone.status(directory)) for path in paths if not path.exists()]


def _bytes(path: Path) -> int | None:
    try:
        return path.lstat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def _parts(directory: Directory, files: _Files) -> list[Part]:
    newest = _newest(files) if files.appended else -1
    parts = []
    for number, path in files.listing:
        size = _bytes(path)
        more: dict[str, int | str] = {
            "kind": files.kind,
            "owner": files.owner,
            "number": number,
            "newest": newest,
            "appended": int(files.appended),
        }
        if size is not None:
            parts.append(Part(directory.relative(path), 0, size, more))
    return parts


def _newest(files: _Files) -> int:
    """The newest file with a frame: those behind it were prepared ahead, or are spares with what they held before."""
    for number, path in reversed(files.listing):
        with opened(path) as fd:
            head = read_at(fd, 0, FILE_HEADER_BYTES + (1 << 16)) if fd is not None else memoryview(b"")
        salt = segment.salt_of(head[:FILE_HEADER_BYTES])
        if salt is None or len(head) <= FILE_HEADER_BYTES:
            continue
        first = _core.frame_check(head, FILE_HEADER_BYTES, salt)
        listed, _reason = _core.scan_list(number, salt, head)
        if not isinstance(first, str) or listed.messages or listed.controls:
            return number
    return -1


# ---- read -----------------------------------------------------------------------------------------------------------


class FrameReader(PartReader):
    """Makes rows of files of frames; runs in an executor."""

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a file. Raises StoreError."""
        path = self.directory.whole(part.file)
        with segment.scan_memory(path) as memory, memoryview(memory) as view:
            try:
                length, unreadable = read_file(path, view)
                size = path.stat().st_size
            except (StoreError, FileNotFoundError) as error:
                if not isinstance(error, FileNotFoundError) and not isinstance(error.__cause__, FileNotFoundError):
                    raise
                row = (part.file, 0, part.bytes, "file", Gone.status(self.directory))
                yield schema.told(self.wanted, [row])
                return
            with view[:length] as data:
                yield from self._rows(part, path, data, size, unreadable)

    def _rows(
        self, part: Part, path: Path, data: memoryview, size: int, unreadable: list[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        others: list[Told] = []
        salt, status = self._header(part, path, data)
        others.append((part.file, 0, min(FILE_HEADER_BYTES, size), "header", status))
        if salt is None:
            if size > FILE_HEADER_BYTES:
                others.append((part.file, FILE_HEADER_BYTES, size - FILE_HEADER_BYTES, "bytes", "unread"))
            yield schema.told(self.wanted, others)
            return
        at, number, newest = FILE_HEADER_BYTES, int(part.more["number"]), int(part.more["newest"])
        while True:
            packed, end, reason = _core.frame_scan(data, salt, at)
            rows = np.frombuffer(packed, dtype=_ROW)
            for first in range(0, len(rows), self.options.batch_rows):
                yield self._frames(part, rows[first : first + self.options.batch_rows], data)
            if len(removes := rows[rows["kind"] == KIND_REMOVE]):
                yield self._removed(part, removes, data)
            yield from self._padding(part, rows, at, end)
            if reason in ("end", "zeros"):
                if end < size:
                    others.append((part.file, end, size - end, "unwritten", "ok"))
                break
            behind = _core.frame_behind(data, end, salt)
            to = behind or size
            lost = any(start < to and stop > end for start, stop in unreadable)
            if number > newest >= 0 and at == FILE_HEADER_BYTES == end and not behind and part.more["appended"]:
                others.append((part.file, end, to - end, "unwritten", "ok"))  # prepared ahead: what a spare held before
            else:
                torn = number == newest and not lost and not self._vouched(data, end, salt)
                others.append((part.file, end, to - end, "bytes", _status(torn, lost, reason)))
            if not behind:
                break
            at = behind
        yield schema.told(self.wanted, others)

    def _header(self, part: Part, path: Path, data: memoryview) -> tuple[int | None, str]:
        more = {name: int(part.more[name]) for name in ("kind", "owner")}
        number = int(part.more["number"])
        try:
            header, right = segment.check_or_mend(
                path, bytes(data[:FILE_HEADER_BYTES]), node_id=self.directory.node_id, file=number, **more
            )
        except FormatVersionError:
            return None, "newer"
        except CorruptRecord:
            own = segment.salt_of(data[:FILE_HEADER_BYTES])
            return None, "bad_header" if own is None else "foreign"
        return header.salt, "ok" if right is None else "flipped_bit"

    @staticmethod
    def _vouched(data: memoryview, end: int, salt: int) -> bool:
        listed, _reason = _core.scan_list(0, salt, data)
        return listed.vouched > end

    def _frames(self, part: Part, rows: NDArray[np.void], data: memoryview) -> pa.RecordBatch:
        n = len(rows)
        makers = {
            "file": schema.repeated(part.file, n),
            "position": schema.longs(rows["offset"]),
            "bytes": schema.longs(rows["total"]),
            "kind": schema.chosen(rows["kind"], _WORDS),
            "status": schema.repeated("ok", n),
            **schema.ids(rows["id"]),
            "file_number": schema.repeated(int(part.more["number"]), n, pa.int64()),
            "holder": lambda: _or_null(rows["extra"].astype(np.int32) - 1, rows["extra"] != 0),
            "queues": schema.ints(rows["extra"]),
            "meta_bytes": schema.ints(rows["meta_length"]),
            "frame_bytes": schema.ints(rows["total"]),
            "body_bytes": schema.ints(rows["total"] - np.uint64(FRAME.size + _MARKER_BYTES)),
            "value": lambda: _bodies(rows, data),
        }
        return schema.batch(self.wanted, n, makers)

    def _removed(self, part: Part, rows: NDArray[np.void], data: memoryview) -> pa.RecordBatch:
        """A row without bytes for each id that a remove names: the frame has its own row."""
        counts = rows["extra"].astype(np.int64)
        places = (rows["offset"].astype(np.int64) + FRAME.size).astype(np.uint32)
        _ends, ids = _core.gather(data, places.data, (16 * counts).astype(np.uint32).data)
        n = int(counts.sum())
        makers = {
            "file": schema.repeated(part.file, n),
            "file_number": schema.repeated(int(part.more["number"]), n, pa.int64()),
            "position": schema.longs(np.repeat(rows["offset"].astype(np.int64), counts)),
            "bytes": schema.longs(np.zeros(n, dtype=np.int64)),
            "kind": schema.repeated("removed", n),
            "status": schema.repeated("ok", n),
            **schema.ids(np.frombuffer(memoryview(ids), dtype=np.uint8)),
        }
        return schema.batch(self.wanted, n, makers)

    def _padding(self, part: Part, rows: NDArray[np.void], at: int, end: int) -> Iterator[pa.RecordBatch]:
        """The core leaves padding frames out: what lies between the others is one."""
        offsets = rows["offset"].astype(np.int64)
        begins = np.concatenate(([at], offsets + rows["total"].astype(np.int64)))
        ends = np.concatenate((offsets, [end]))
        gaps = np.flatnonzero(ends > begins)
        if len(gaps):
            n = len(gaps)
            makers = {
                "file": schema.repeated(part.file, n),
                "position": schema.longs(begins[gaps]),
                "bytes": schema.longs(ends[gaps] - begins[gaps]),
                "kind": schema.repeated("padding", n),
                "status": schema.repeated("ok", n),
            }
            yield schema.batch(self.wanted, n, makers)


def _status(torn: bool, lost: bool, reason: str) -> str:
    return "torn" if torn else "unreadable" if lost else f"bad_{reason}"


def _or_null(values: NDArray[np.int32], there: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=~there)


def _bodies(rows: NDArray[np.void], data: memoryview) -> pa.Array:
    """What was stored, behind the metadata."""
    meta = rows["meta_length"].astype(np.int64)
    places = (rows["offset"].astype(np.int64) + FRAME.size + meta).astype(np.uint32)
    lengths = (rows["total"].astype(np.int64) - FRAME.size - _MARKER_BYTES - meta).astype(np.uint32)
    return schema.texts(pa.binary(), len(rows), _core.gather(data, places.data, lengths.data), None)
