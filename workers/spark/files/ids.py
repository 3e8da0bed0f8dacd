"""Ids of what the queues name and of what the store holds, in blocks: for an audit of millions.

Ids that Warren makes are counted, so 1024 neighbours are one row, with what is known of each packed behind the other.
Rows go through the JVM by the thousand, and what is done for each id is done by numpy on both sides. Ids that programs
choose at random have a row each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warren.workers.spark.files import schema
from warren.workers.spark.files.directory import Directory, FilesPartition, Part
from warren.workers.spark.files.frames import FrameReader, plan_store
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.queues import MessageReader, plan_messages

BLOCK_BITS = 10
#: what a row of a queue or a frame of the store says of its id
NAMED, MESSAGE, REFERENCE, REMOVED = range(4)
_KINDS = {"message": MESSAGE, "reference": REFERENCE, "removed": REMOVED}
NOBODY = 255  #: holder of what a program wrote
ITEM = np.dtype(
    [
        ("low", "<u2"),
        ("kind", "u1"),
        ("holder", "u1"),
        ("queue", "<u4"),
        ("body_bytes", "<u4"),
        ("bytes", "<u4"),
        ("file", "<i8"),
    ]
)
_OF_STORE = "id_high", "id_low", "kind", "file_number", "bytes", "body_bytes", "holder"
_OF_QUEUES = "id_high", "id_low", "queue", "body_bytes", "in_store"


def plan(directory: Directory, options: FilesOptions) -> list[FilesPartition]:
    """Queue workers and store files. Raises CorruptRecord, StoreError."""
    parts = [*plan_messages(directory, options), *plan_store(directory, options)]
    return [FilesPartition(partition.parts) for partition in parts if partition.parts]


class IdReader(PartReader):
    """Makes blocks of ids; runs in an executor."""

    def __init__(self, directory: Directory, options: FilesOptions, wanted: pa.Schema) -> None:
        super().__init__(directory, options, wanted)
        self._store = FrameReader(directory, options, _columns("store", _OF_STORE))
        self._messages = MessageReader(directory, options, _columns("messages", _OF_QUEUES))

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The blocks of a file of the store, or of a worker's queues. Raises StoreError."""
        if "worker" in part.more:
            for batch in self._messages.read(part):
                yield self._blocks(part, batch.filter(batch.column("in_store")), NAMED)
            return
        for batch in self._store.read(part):
            for kind, number in _KINDS.items():
                some = batch.filter(pc.fill_null(pc.equal(batch.column("kind"), kind), False))
                if some.num_rows:
                    yield self._blocks(part, some, number)

    def _blocks(self, part: Part, batch: pa.RecordBatch, kind: int) -> pa.RecordBatch:
        items = np.zeros(batch.num_rows, dtype=ITEM)
        items["kind"], items["holder"], items["file"] = kind, NOBODY, -1
        for name, null in (("queue", 0), ("body_bytes", 0), ("bytes", 0), ("holder", NOBODY), ("file_number", -1)):
            if name in batch.schema.names:
                values = pc.fill_null(batch.column(name), null).to_numpy(zero_copy_only=False)
                items["file" if name == "file_number" else name] = values
        high, low = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("id_high", "id_low"))
        return self.packed(part.file, high, low, items)

    def packed(self, file: str, high: NDArray[Any], low: NDArray[Any], items: NDArray[np.void]) -> pa.RecordBatch:
        """Blocks of items."""
        block = low >> BLOCK_BITS
        order = np.lexsort((block, high))
        high, block, items = high[order], block[order], items[order]
        items["low"] = low[order] & ((1 << BLOCK_BITS) - 1)
        begins = np.flatnonzero(np.concatenate(([len(items) > 0], (np.diff(high) != 0) | (np.diff(block) != 0))))
        ends = (np.concatenate((begins, [len(items)])) * ITEM.itemsize).astype(np.int32)
        n = len(begins)
        makers: dict[str, schema.Maker] = {
            "file": schema.repeated(file, n),
            "kind": schema.repeated("ids", n),
            "status": schema.repeated("ok", n),
            "id_high": schema.longs(high[begins]),
            "block": schema.longs(block[begins]),
            "items": lambda: pa.Array.from_buffers(
                pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(items.view(np.uint8).data)]
            ),
        }
        return schema.batch(self.wanted, n, makers)


def _columns(files: str, names: tuple[str, ...]) -> pa.Schema:
    known = {column.name: column.arrow for column in schema.COLUMNS[files]}
    return pa.schema([pa.field(name, known[name]) for name in names])
