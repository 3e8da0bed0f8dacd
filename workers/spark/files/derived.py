"""Consume queues and key index of topics as rows: a unit each, an entry each; and a row for what is none.

Neither has a checksum of its own: `ok` says that the numbers are possible, `consumequeue-check` and
`keyindex-rebuild` whether they are right.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.kernel import atomic_file
from warren.engine.topics import foreign
from warren.engine.topics.formats import (
    KEY_INDEX_ENTRY,
    KEY_INDEX_HEADER,
    KEY_INDEX_LINK,
    KEY_INDEX_SLOT,
    UNIT_EMPTY,
    consume_queue_bytes,
    key_index_bytes,
)
from warren.workers.spark.files import schema
from warren.workers.spark.files.directory import Directory, FilesPartition, Part, Told, partitions
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.reading import Gone, opened, read_at
from warren.workers.spark.files.units import UNIT

_ENTRY = np.dtype(KEY_INDEX_ENTRY.columns())


def plan_units(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Ranges of units. Raises StoreError."""
    folder = directory.topics_folder.queues
    parts: list[Part] = []
    told: list[Told] = []
    ids = {topic.name: topic.id for topic in directory.topics}
    with atomic_file.explained(f"cannot read {folder}"):
        for topic in sorted(folder.iterdir()) if folder.is_dir() else ():
            if options.topics and topic.name not in options.topics:
                continue
            known = topic.is_dir() and (topic.name in ids or bool(directory.nameless))
            for queue in sorted(topic.iterdir()) if known else (topic,):
                if queue is topic or not foreign.NUMBER.fullmatch(queue.name) or not queue.is_dir():
                    told.append((directory.relative(queue), None, None, "file", "foreign"))
                    continue
                more: dict[str, int | str] = {
                    "topic": topic.name,
                    "topic_id": ids.get(topic.name, -1),
                    "queue": int(queue.name),
                }
                _plan_queue(directory, options, queue, more, parts, told)
    return partitions(parts, told, options.partition_bytes)


def _plan_queue(
    directory: Directory,
    options: FilesOptions,
    queue: Path,
    of: dict[str, int | str],
    parts: list[Part],
    told: list[Told],
) -> None:
    """The files of one queue."""
    wanted = consume_queue_bytes(directory.settings.consume_queue_entries)
    step = max(options.partition_bytes // UNIT.itemsize, 1) * UNIT.itemsize
    before: int | None = None
    for path in sorted(queue.iterdir()):
        name = directory.relative(path)
        if not foreign.POSITION.fullmatch(path.name) or int(path.name) % wanted or foreign.instead(path):
            told.append((name, 0, path.lstat().st_size if path.is_file() else None, "file", "foreign"))
            continue
        base, size = int(path.name), path.stat().st_size
        gaps = range(before + wanted, base, wanted) if before is not None else ()
        told += [(directory.relative(queue / f"{missing:020d}"), 0, wanted, "file", "missing") for missing in gaps]
        before = base
        told += _size_told(name, size, wanted)
        end = min(size, wanted) // UNIT.itemsize * UNIT.itemsize
        more = {**of, "first": base // UNIT.itemsize}
        parts += [Part(name, at, min(at + step, end), more) for at in range(0, end, step)]


def _size_told(name: str, size: int, wanted: int) -> list[Told]:
    """A file that has another size than it was made with; one of no bytes was just being made."""
    if size > wanted:
        return [(name, wanted, size - wanted, "file", "surplus")]
    return [(name, size, wanted - size, "file", "cut")] if 0 < size < wanted else []


class _Reader(PartReader):
    """Makes rows of ranges of files; runs in an executor."""

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Raises StoreError."""
        data = _content(self.directory.whole(part.file), part)
        if data is None:
            yield schema.told(self.wanted, [(part.file, part.start, part.bytes, "file", Gone.status(self.directory))])
            return
        yield from self._rows(part, data)

    @abstractmethod
    def _rows(self, part: Part, data: memoryview) -> Iterator[pa.RecordBatch]: ...


class UnitReader(_Reader):
    """Makes rows of ranges of consume queues."""

    def _rows(self, part: Part, data: memoryview) -> Iterator[pa.RecordBatch]:
        units = np.frombuffer(data[: len(data) // UNIT.itemsize * UNIT.itemsize], dtype=UNIT)
        first = part.start // UNIT.itemsize
        size, position = units["size"], units["physical_offset"]
        blank = (size == 0) & (position == 0) & (units["tags_code"] == 0)
        empty = (size == UNIT_EMPTY) & (position == 0)
        yield from self._runs(part, first, blank, "unwritten", "ok")
        yield from self._runs(part, first, empty, "empty", "ok")
        there = np.flatnonzero(~(blank | empty))
        for at in range(0, len(there), self.options.batch_rows):
            yield self._units(part, first, units, there[at : at + self.options.batch_rows])

    def _units(self, part: Part, first: int, units: NDArray[np.void], at: NDArray[np.int64]) -> pa.RecordBatch:
        n, some = len(at), units[at]
        possible = (some["size"] > 0) & (some["size"] < UNIT_EMPTY) & (some["physical_offset"] < 1 << 63)
        makers = {
            "file": schema.repeated(part.file, n),
            "position": schema.longs((first + at) * UNIT.itemsize),
            "bytes": schema.longs(np.full(n, UNIT.itemsize)),
            "kind": schema.repeated("unit", n),
            "status": schema.chosen(possible, ("bad_numbers", "ok")),
            "topic": schema.repeated(part.more["topic"], n),
            "topic_id": schema.repeated(part.more["topic_id"], n, pa.int64()),
            "queue": schema.repeated(part.more["queue"], n, pa.int32()),
            "offset": schema.longs(int(part.more["first"]) + first + at),
            "log_position": schema.longs(some["physical_offset"]),
            "record_bytes": schema.ints(some["size"]),
            "tags_code": schema.longs(some["tags_code"]),
        }
        return schema.batch(self.wanted, n, makers)

    def _runs(
        self, part: Part, first: int, where: NDArray[np.bool_], kind: str, status: str
    ) -> Iterator[pa.RecordBatch]:
        """A row for each run of units that say nothing."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], where.view(np.int8), [0]))))
        begins, ends = edges[::2], edges[1::2]
        if len(begins):
            makers = {
                "file": schema.repeated(part.file, len(begins)),
                "position": schema.longs((first + begins) * UNIT.itemsize),
                "bytes": schema.longs((ends - begins) * UNIT.itemsize),
                "kind": schema.repeated(kind, len(begins)),
                "status": schema.repeated(status, len(begins)),
                "topic": schema.repeated(part.more["topic"], len(begins)),
                "queue": schema.repeated(part.more["queue"], len(begins), pa.int32()),
                "offset": schema.longs(int(part.more["first"]) + first + begins),
            }
            yield schema.batch(self.wanted, len(begins), makers)


# ---- key index ------------------------------------------------------------------------------------------------------


def plan_index(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Ranges of entries. Raises StoreError."""
    folder = directory.topics_folder.index
    parts: list[Part] = []
    told: list[Told] = []
    with atomic_file.explained(f"cannot read {folder}"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if foreign.TIME.fullmatch(path.name) and not foreign.instead(path):
                _plan_index_file(directory, options, path, parts, told)
            else:
                size = path.lstat().st_size if path.is_file() else None
                told.append((directory.relative(path), 0, size, "file", "foreign"))
    return partitions(parts, told, options.partition_bytes)


def _plan_index_file(
    directory: Directory, options: FilesOptions, path: Path, parts: list[Part], told: list[Told]
) -> None:
    settings, name = directory.settings, directory.relative(path)
    wanted = key_index_bytes(settings.index_slots, settings.index_entries)
    entries_at = KEY_INDEX_HEADER.size + settings.index_slots * KEY_INDEX_SLOT.size
    first = entries_at + _ENTRY.itemsize
    with opened(path) as fd:
        size = path.stat().st_size if fd is not None else 0
        header = bytes(read_at(fd, 0, KEY_INDEX_HEADER.size)) if fd is not None else b""
        link = bytes(read_at(fd, entries_at, _ENTRY.itemsize)) if fd is not None else b""
    told += _size_told(name, size, wanted)
    if size < first:
        return
    count = KEY_INDEX_HEADER.unpack(header, "index_count")
    used = 0 < count <= settings.index_entries
    sound = used or header == bytes(KEY_INDEX_HEADER.size)
    told.append((name, 0, KEY_INDEX_HEADER.size, "header", "ok" if sound else "bad_numbers"))
    told.append((name, KEY_INDEX_HEADER.size, entries_at - KEY_INDEX_HEADER.size, "slots", "ok"))
    told.append((name, entries_at, _ENTRY.itemsize, "link", _link_status(path.name, link)))
    # entry 0 is the link, and `count` counts it
    end = max(min(entries_at + count * _ENTRY.itemsize, size, wanted), first) if used else first
    end = first + (end - first) // _ENTRY.itemsize * _ENTRY.itemsize
    if (left := min(size, wanted) - end) > 0:
        told.append((name, end, left, "unwritten" if sound else "bytes", "ok" if sound else "unread"))
    begin = KEY_INDEX_HEADER.unpack(header, "begin_timestamp")
    more: dict[str, int | str] = {"entries": entries_at, "begin": begin}
    step = max(options.partition_bytes // _ENTRY.itemsize, 1) * _ENTRY.itemsize
    parts += [Part(name, at, min(at + step, end), more) for at in range(first, end, step)]


def _link_status(name: str, link: bytes) -> str:
    if link == bytes(KEY_INDEX_LINK.size):
        return "none"
    at = KEY_INDEX_LINK.offset("crc")
    right = _core.crc32c(name.encode() + link[:at]) == struct.unpack_from(">I", link, at)[0]
    return "ok" if right else "bad_crc"


class IndexReader(_Reader):
    """Makes rows of ranges of the key index."""

    def _rows(self, part: Part, data: memoryview) -> Iterator[pa.RecordBatch]:
        entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], dtype=_ENTRY)
        first = (part.start - int(part.more["entries"])) // _ENTRY.itemsize
        for at in range(0, len(entries), self.options.batch_rows):
            some = entries[at : at + self.options.batch_rows]
            yield self._entries(part, first + at, some)

    def _entries(self, part: Part, first: int, some: NDArray[np.void]) -> pa.RecordBatch:
        n = len(some)
        number = first + np.arange(n, dtype=np.int64)
        possible = (some["previous"] < number) & (some["key_hash"] < 1 << 31) & (some["physical_offset"] < 1 << 63)
        stored = int(part.more["begin"]) + some["time_diff"].astype(np.int64) * 1000
        makers: dict[str, Any] = {
            "file": schema.repeated(part.file, n),
            "position": schema.longs(int(part.more["entries"]) + number * _ENTRY.itemsize),
            "bytes": schema.longs(np.full(n, _ENTRY.itemsize)),
            "kind": schema.repeated("entry", n),
            "status": schema.chosen(possible, ("bad_numbers", "ok")),
            "number": schema.longs(number),
            "key_hash": schema.longs(some["key_hash"]),
            "log_position": schema.longs(some["physical_offset"]),
            "timestamp": schema.times(stored),
            "previous": schema.longs(some["previous"]),
        }
        return schema.batch(self.wanted, n, makers)


def _content(path: Path, part: Part) -> memoryview | None:
    with opened(path) as fd:
        return None if fd is None else read_at(fd, part.start, part.bytes)
