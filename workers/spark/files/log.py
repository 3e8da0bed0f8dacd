"""The commit log of topics as rows: a record each, and a row for every range of bytes that is none.

A file is cut at positions that consume queues name, each of which was read as a record, checksum included. Behind
damage a task goes on at the next such position. Nothing is looked for in the bytes themselves.

Statuses: `ok`; `uncommitted` (no commit ends behind it: nobody was told that it is there); `torn` (no record, at the
end of the newest file); `bad_…` (no record, and why); `zeros` (nothing where records were); of whole files `missing`,
`cut`, `surplus`, `foreign`, `gone`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.errors import StoreError, UsageError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.rows import LOG_ROW
from warren.engine.topics import foreign
from warren.engine.topics.formats import SYSTEM_TOPICS
from warren.engine.topics.records import Checks, Found
from warren.workers.spark.files import schema
from warren.workers.spark.files.directory import Directory, FilesPartition, Part, Told, partitions
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.reading import Gone, opened, read_at
from warren.workers.spark.files.units import Units
from warren.workers.spark.schema import BY_NAME as MESSAGE_COLUMNS

WINDOW_BYTES = 16 << 20  #: of a file in memory at once; a larger record makes its own room
COMMIT_BYTES_MAX = 64 << 20  #: no commit is larger (engine/topics/walk.h)
_HEAD = struct.Struct(">II")
_ROW = np.dtype(LOG_ROW.columns())


class LogEnd(NamedTuple):
    """Where the log ends, as its files are now."""

    committed: int  #: behind the last commit record
    newest: int  #: base of the newest file with anything in it; -1: there is none


# ---- plan -----------------------------------------------------------------------------------------------------------


def files_of(directory: Directory) -> tuple[list[int], list[Told]]:
    """Where files begin, and what else lies there or is missing."""
    folder, size = directory.topics_folder.log, directory.settings.log_file_bytes
    bases: list[int] = []
    told: list[Told] = []
    with atomic_file.explained(f"cannot read {folder}"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in paths:
            name = directory.relative(path)
            if not foreign.POSITION.fullmatch(path.name) or int(path.name) % size or foreign.instead(path):
                told.append((name, 0, _size_of(path), "file", "foreign"))
                continue
            base, there = int(path.name), path.stat().st_size
            bases.append(base)
            if there < size:
                told.append((name, there, size - there, "file", "cut"))
            elif there > size:
                told.append((name, size, there - size, "file", "surplus"))
    for before, base in itertools.pairwise(bases):
        gaps = range(before + size, base, size)
        told += [(directory.relative(folder / f"{missing:020d}"), 0, size, "file", "missing") for missing in gaps]
    return bases, told


def _size_of(path: Any) -> int | None:
    return path.lstat().st_size if path.is_file() and not path.is_symlink() else None


def log_end(directory: Directory, bases: list[int], units: Units) -> LogEnd:
    """Where the log ends: from the newest position that is named, less the largest commit, the records are walked."""
    size = directory.settings.log_file_bytes
    for base in reversed(bases):
        with _log_file(directory, base) as fd:
            if fd is None or not any(read_at(fd, 0, _HEAD.size)):
                continue
            newest = units.last_below(base + size)
            start: int = base
            if newest is not None and newest - COMMIT_BYTES_MAX > base:
                start = units.first_from(newest - COMMIT_BYTES_MAX, _is_record(directory, newest)) or base
            committed = base
            at: int | None = start
            while at is not None:
                walk = _Walk(directory, fd, base, at, base + size)
                for rows, _buffer in walk.rows():
                    if len(ends := np.flatnonzero(rows["commit"])):
                        committed = int(rows["position"][ends[-1]]) + int(rows["size"][ends[-1]])
                at = units.first_behind(walk.at, base + size, _is_record(directory, base))  # behind damage
            return LogEnd(committed, base)
    return LogEnd(0, -1)


def plan(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Ranges of files. Raises UsageError (positions that no file has), StoreError."""
    bases, told = files_of(directory)
    size = directory.settings.log_file_bytes
    units = Units(directory)
    end = log_end(directory, bases, units)
    low = options.start if options.start is not None else (bases[0] if bases else 0)
    high = options.end if options.end is not None else (bases[-1] + size if bases else 0)
    if bases and options.start is not None and low < bases[0]:
        raise UsageError(
            f"the log of {directory.path} begins at position {bases[0]:,}, and startingPosition is {low:,}: retention "
            "removed what lay between"
        )
    parts = []
    for base in bases:
        start, stop = max(base, low), min(base + size, high)
        if start >= stop:
            continue
        cuts = [start, *units.cuts(start, stop, options.partition_bytes, _is_record(directory, start)), stop]
        for first, last in itertools.pairwise(cuts):
            name = directory.relative(directory.topics_folder.log / f"{base:020d}")
            more: dict[str, int | str] = {
                "base": base,
                "newest": int(base >= end.newest),
                "committed": end.committed if base == end.newest else base + size,
                "bounded": int(last < base + size),
            }
            parts.append(Part(name, first - base, last - base, more))
    limited = options.start is not None or options.end is not None
    return partitions(parts, [] if limited else told, options.partition_bytes)


def _log_file(directory: Directory, base: int) -> opened:
    return opened(directory.topics_folder.log / f"{base:020d}")


def _is_record(directory: Directory, near: int) -> Callable[[int], bool]:
    """Whether a record begins at a position of the log: all of it is read."""
    size = directory.settings.log_file_bytes

    def looked(position: int) -> bool:
        base = position // size * size
        with _log_file(directory, base) as fd:
            if fd is None:
                return False
            head = read_at(fd, position - base, _HEAD.size)
            length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else 0
            if not 0 < length <= base + size - position:
                return False
            found, *_rest = _core.record_scan(read_at(fd, position - base, length), 0, position, Checks.ALL)
            return found == Found.RECORD

    return looked


# ---- read -----------------------------------------------------------------------------------------------------------


@dataclass
class _Walk:
    """Goes through the records of a range of a file, window by window, and stops at the first bytes that are none."""

    directory: Directory
    fd: int
    base: int
    at: int
    stop: int
    found: int = Found.END
    size: int = 0
    word: str = "good"
    cut: bool = False  #: the file ends before the range does

    def rows(self) -> Iterator[tuple[NDArray[np.void], memoryview]]:
        """Records, and the bytes in which their places are; both good until the next are asked for."""
        room = bytearray(min(WINDOW_BYTES, max(self.stop - self.at, _HEAD.size)))
        while self.at < self.stop:
            view = memoryview(room)[: min(len(room), self.stop - self.at)]
            got = read_at(self.fd, self.at - self.base, len(view), view)
            self.cut = len(got) < len(view)
            packed, end, self.found, self.size, self.word = _core.log_rows(got, 0, self.at, Checks.ALL)
            if len(packed):
                yield np.frombuffer(memoryview(packed), dtype=_ROW), got
            here, self.at = self.at, self.at + end
            more = not self.cut and here + len(got) < self.stop
            if more and self.found == Found.END and len(got) - end < _HEAD.size:
                continue
            if more and self.found == Found.BAD and self.word == "truncated":
                if not end:  # one record is larger than the window
                    room = bytearray(min(_HEAD.unpack_from(got)[0] + _HEAD.size, self.stop - self.at))
                continue
            return


class LogReader(PartReader):
    """Makes rows of ranges of the log; runs in an executor."""

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Raises StoreError."""
        base = int(part.more["base"])
        at, stop = base + part.start, base + part.stop
        with _log_file(self.directory, base) as fd:
            if fd is None:
                yield self._told(part, [(at, stop - at, "file", Gone.status(self.directory))])
                return
            while at < stop:
                walk = _Walk(self.directory, fd, base, at, stop)
                for rows, buffer in walk.rows():
                    for first in range(0, len(rows), self.options.batch_rows):
                        some = rows[first : first + self.options.batch_rows]
                        batch = self._records(part, some, buffer)
                        if batch.num_rows:
                            yield batch
                at = walk.at
                if at < stop:
                    at, row = self._none(part, walk, stop)
                    if row is not None:
                        yield self._told(part, [row])

    def _none(self, part: Part, walk: _Walk, stop: int) -> tuple[int, tuple[int, int, str, str] | None]:
        """What is said of bytes that are no record, and where to go on."""
        at, base, newest = walk.at, int(part.more["base"]), bool(part.more["newest"])
        end = base + self.directory.settings.log_file_bytes
        if walk.found == Found.BLANK and walk.size == end - at:
            return end, (at, end - at, "blank", "ok")
        behind = Units(self.directory).first_behind(at, stop, _is_record(self.directory, at))
        to = stop if behind is None else behind
        if walk.cut:
            return stop, None  # the planner told it, of the whole file
        if walk.found == Found.END:
            unwritten = newest and behind is None and not part.more["bounded"]
            return to, (at, to - at, "unwritten" if unwritten else "bytes", "ok" if unwritten else "zeros")
        word = "blank" if walk.found == Found.BLANK else walk.word.replace(" ", "_")
        torn = newest and behind is None and not part.more["bounded"] and at >= int(part.more["committed"])
        return to, (at, to - at, "bytes", "torn" if torn else f"bad_{word}")

    def _told(self, part: Part, rows: list[tuple[int, int, str, str]]) -> pa.RecordBatch:
        base = int(part.more["base"])
        if self.options.topics:
            rows = [row for row in rows if row[3] != "ok"]  # what is damaged may have been of these topics
        return schema.told(self.wanted, [(part.file, at - base, size, kind, status) for at, size, kind, status in rows])

    def _records(self, part: Part, rows: NDArray[np.void], buffer: memoryview) -> pa.RecordBatch:
        topics = pa.Array.from_buffers(
            pa.string(), len(rows), [None, *map(pa.py_buffer, gathered(rows, buffer, "topic"))]
        ).dictionary_encode()
        names = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy()
        if self.options.topics:
            kept = np.flatnonzero(np.isin(codes, [n for n, name in enumerate(names) if name in self.options.topics]))
            rows, codes = rows[kept], codes[kept]
        n = len(rows)
        system = np.array([name.startswith(SYSTEM_TOPICS) for name in names], dtype=bool)
        late = rows["position"] >= int(part.more["committed"])
        makers = {
            "file": schema.repeated(part.file, n),
            "position": schema.longs(rows["position"] - np.uint64(int(part.more["base"]))),
            "bytes": schema.longs(rows["size"]),
            "kind": schema.chosen(system[codes] if n else codes, ("record", "system")),
            "status": schema.chosen(late, ("ok", "uncommitted")),
            "log_position": schema.longs(rows["position"]),
            "topic": schema.chosen(codes, names),
            "topic_id": schema.longs(rows["flag"]),
            "queue": schema.ints(rows["queue_id"]),
            "offset": schema.longs(rows["queue_offset"]),
            "timestamp": schema.times(rows["store_timestamp"]),
            "born_timestamp": schema.times(rows["born_timestamp"]),
            "key": lambda: text_column(rows, buffer, "keys"),
            "tag": lambda: text_column(rows, buffer, "tag"),
            "tags_code": schema.longs(rows["tags_code"]),
            "reconsume_times": schema.ints(rows["reconsume_times"]),
            "sys_flag": schema.ints(rows["sys_flag"]),
            "body_bytes": schema.ints(rows["body_length"]),
            "value": lambda: schema.texts(pa.binary(), n, gathered(rows, buffer, "body"), None),
            "headers": lambda: _headers(rows, buffer),
        }
        return schema.batch(self.wanted, n, makers)


def gathered(rows: NDArray[np.void], buffer: memoryview, what: str) -> tuple[_core.Memory, _core.Memory]:
    """Parts of records: their topics, bodies, keys, tags."""
    places, lengths = (np.ascontiguousarray(rows[f"{what}_{end}"]).astype(np.uint32) for end in ("at", "length"))
    return _core.gather(buffer, places.data, lengths.data)


def text_column(rows: NDArray[np.void], buffer: memoryview, what: str) -> pa.Array:
    """A text that a record may not have."""
    return schema.texts(pa.string(), len(rows), gathered(rows, buffer, what), rows[f"{what}_at"] != 0)


def _headers(rows: NDArray[np.void], buffer: memoryview) -> pa.Array:
    kind = MESSAGE_COLUMNS["headers"].arrow
    places = np.ascontiguousarray(rows["properties_at"]).astype(np.uint32)
    lengths = np.ascontiguousarray(rows["properties_length"]).astype(np.uint32)
    ends, *pairs = _core.property_pairs(buffer, places.data, lengths.data)
    n = len(pairs[0]) // 4 - 1
    some = np.diff(np.frombuffer(memoryview(ends), dtype=np.int32)) > 0  # without any: null, as in rows of messages
    entries = pa.StructArray.from_arrays(
        [
            schema.texts(pa.string(), n, (pairs[0], pairs[1]), None),
            schema.texts(pa.binary(), n, (pairs[2], pairs[3]), None),
        ],
        fields=list(kind.value_type),
    )
    bits = pa.py_buffer(np.packbits(some, bitorder="little"))
    return pa.Array.from_buffers(kind, len(rows), [bits, pa.py_buffer(ends)], children=[entries])


def committed_end(directory: Directory) -> tuple[int, int]:
    """(position of the log's first file, end of its last commit). Raises StoreError: there is no log."""
    bases, _told = files_of(directory)
    if not bases:
        raise StoreError(f"{directory.topics_folder.log} has no file: this node never had a topic")
    end = log_end(directory, bases, Units(directory))
    return bases[0], max(end.committed, bases[0])
