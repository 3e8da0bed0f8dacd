"""Messages as Arrow batches, without a Python object for each: the core reads bodies straight into the columns.

Columns: offset, msg_id, exchange, routing_key, value, headers, delivery_count, redelivered. `offset` is the position in
the queue (of a subscription: the number of the claim). Header values that are neither bytes nor text become JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from warren.engine._core import AttachmentLost
from warren.engine.catalog import metadata
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.queues.control import Browse, Rows
from warren.workers.faces.browse import BROWSE_ROWS, Patience
from warren.workers.faces.message import Message

if TYPE_CHECKING:
    from warren.engine.catalog.catalog import QueueDeclaration
    from warren.workers.client.client import Client

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("msg_id", pa.binary(16)),
        pa.field("exchange", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
        pa.field("delivery_count", pa.int32()),
        pa.field("redelivered", pa.bool_()),
    ]
)
#: bodies of one batch must stay below what 32-bit offsets reach
BYTES_MAX = 1 << 30
_ROW = np.dtype(DELIVERY.columns("sequence", "meta_length", "body_length"))


class _Meta(NamedTuple):
    exchange: str
    routing_key: str
    headers: list[tuple[str, bytes]]


def _header_value(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


class _Columns:
    """Rows of one batch, collected from several answers of a worker."""

    def __init__(self, name: str) -> None:
        self._plain = _Meta("", name, [])
        self._known: dict[bytes, _Meta] = {}
        self.parts: list[tuple[int, bytes, bytes, bytes, bytes, bytes, bytes]] = []
        self.metas: list[_Meta] = []
        self.rows = 0
        self.bytes = 0

    def add(self, columns: tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]) -> None:
        """Take what `Client.columns` gave."""
        rows, tags, ids, value_offsets, values, meta_offsets, metas, counts, redelivered = columns
        self.parts.append((rows, tags, ids, value_offsets, values, counts, redelivered))
        self.rows += rows
        self.bytes += int.from_bytes(value_offsets[4 * rows : 4 * rows + 4], "little")
        if not metas:
            self.metas += [self._plain] * rows
            return
        ends = np.frombuffer(meta_offsets, "<i4", rows + 1).tolist()
        known = self._known
        for start, end in itertools.pairwise(ends):
            packed = metas[start:end]
            meta = known.get(packed)
            if meta is None:
                meta = known[packed] = self._decode(packed)
                if len(known) > 10_000:
                    known.clear()
            self.metas.append(meta)

    def _decode(self, packed: bytes) -> _Meta:
        if not packed:
            return self._plain
        found = metadata.decode(packed)
        headers = [(key, _header_value(value)) for key, value in (found.headers or {}).items()]
        return _Meta(found.exchange, found.routing_key, headers)

    def batch(self) -> pa.RecordBatch:
        """The Arrow batch."""
        pieces = [
            pa.RecordBatch.from_arrays(
                [
                    pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(tags)]),
                    pa.Array.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(ids)]),
                    pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(values)]),
                    pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(counts)]),
                    pa.array(np.frombuffer(redelivered, np.uint8, rows) != 0),
                ],
                names=["offset", "msg_id", "value", "delivery_count", "redelivered"],
            )
            for rows, tags, ids, offsets, values, counts, redelivered in self.parts
        ]
        whole = pa.Table.from_batches(pieces).combine_chunks().to_batches()
        columns = dict(zip(whole[0].schema.names, whole[0].columns, strict=True))
        columns["exchange"] = pa.array([meta.exchange for meta in self.metas], pa.string())
        columns["routing_key"] = pa.array([meta.routing_key for meta in self.metas], pa.string())
        columns["headers"] = self._headers()
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _headers(self) -> pa.Array:
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum([len(meta.headers) for meta in self.metas], out=offsets[1:])
        pairs = [pair for meta in self.metas for pair in meta.headers]
        keys = pa.array([key for key, _value in pairs], pa.string())
        values = pa.array([value for _key, value in pairs], pa.binary())
        entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        kind = SCHEMA.field("headers").type
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(offsets)], children=[entries])


def _browse(start: int, count: int, ready_only: bool, queue: QueueDeclaration) -> Browse:
    return Browse(queue.id, start, count, ready_only)


class Batches:
    """Reads a range of a queue as Arrow batches, through `browse` of its worker. `owner` has the name of the queue."""

    def __init__(self, client: Client, owner: Any, queue: QueueDeclaration, *, ready_only: bool) -> None:
        self._client = client
        self._owner = owner
        self._queue = queue
        self._ready_only = ready_only

    @staticmethod
    def empty() -> pa.RecordBatch:
        """A batch without rows."""
        return pa.RecordBatch.from_pylist([], SCHEMA)

    def read(self, start: int, end: int, *, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages [start, end) in order, in batches of about `bytes_max` bytes of bodies."""
        bytes_max = min(bytes_max, BYTES_MAX)
        columns = _Columns(self._owner.name)
        at, left, stalled, patience = start, rows_max, 0, Patience()
        while 0 <= at < end and left > 0:
            count = min(end - at, left, BROWSE_ROWS)
            answer = self._client.ask_queue(self._queue, partial(_browse, at, count, self._ready_only), Rows)
            rows, following = answer.rows, answer.next
            table = np.frombuffer(rows, _ROW)
            if not len(table):
                at = following if following > at else -1  # behind it there may be some, as behind many expired ones
                continue
            table = table[: int(np.searchsorted(table["sequence"], end))]
            fitting = self._fitting(table, bytes_max - columns.bytes)
            if not fitting and columns.rows:
                yield columns.batch()
                columns = _Columns(self._owner.name)
                fitting = self._fitting(table, bytes_max)
            wanted = max(fitting, 1) if len(table) else 0
            if not wanted:
                break
            try:
                handle = self._client.handle(self._client.current(self._queue), self._owner, Message)
                found = self._client.core.columns(handle, rows[: wanted * DELIVERY.size])
            except AttachmentLost:
                continue
            read = found[0]
            left -= read
            if read:
                columns.add(found)
                stalled = 0
            # A row whose file moved into the segments meanwhile is asked for again; one that stays bad is left out.
            at = int(table["sequence"][read]) if read < len(table) else following if following > at else -1
            if read < wanted:
                stalled += 1
                at += stalled > 3 and not patience.again()
        if columns.rows:
            yield columns.batch()

    @staticmethod
    def _fitting(table: np.ndarray[Any, Any], room: int) -> int:
        """How many of the rows have bodies that fit into `room` bytes together."""
        sizes = table["body_length"].astype(np.int64) - table["meta_length"]
        return int(np.searchsorted(np.cumsum(sizes), room, side="right"))
