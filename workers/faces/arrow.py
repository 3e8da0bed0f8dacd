"""Messages as Arrow batches, without a Python object for each: the core reads bodies straight into the columns.

Columns: offset, msg_id, exchange, routing_key, key, value, headers, timestamp, delivery_count, redelivered. `offset` is
the position in the queue (of a subscription: the number of the claim). `key` is the routing key, null for a message
that was put into the queue without one. `headers` is null without any; values that are neither bytes nor text become
JSON, but for None, which is null. `timestamp` is the property that its publisher gave it, null without: a queue stores
no time of its own. Who asks for some columns gets those alone: bodies that are not wanted are not read.

A batch is one call of the core: the rows of several answers of the worker are put together before their bodies are
read. Only where a file moved meanwhile, so that a part had to be asked for again, a batch is put together from several.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog import metadata
from warren.engine.errors import UsageError
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.queues.control import Browse, Rows
from warren.engine.saying import shown
from warren.workers.faces.browse import BROWSE_ROWS, Patience, left_out
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
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("delivery_count", pa.int32()),
        pa.field("redelivered", pa.bool_()),
    ]
)
COLUMNS = frozenset(SCHEMA.names)
#: bodies of one batch must stay below what 32-bit offsets reach
BYTES_MAX = 1 << 30
#: rows of one call of the core, so that a batch of small messages without a limit stays one that fits anywhere
ROWS_MAX = 1 << 20
ROWS_KEPT = 20_000
_ROW = np.dtype(DELIVERY.columns("sequence", "meta_length", "body_length"))
_KNOWN_MAX = 10_000
#: first byte of metadata with properties, and of one that says what its row had (engine/catalog/metadata.py): msgpack's
#: array of four, of five, or of more
_WITH_PROPERTIES, _WITH_ROW = 0x94, 0x95
#: the year 10000: times from then on have no datetime
_TIME_END_S = 253_402_300_800


class _Meta(NamedTuple):
    key: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int | None  #: microseconds since 1970


class Found(NamedTuple):
    """What `Client.columns` gives."""

    rows: int
    tags: bytes
    ids: bytes
    value_ends: bytes
    values: bytes
    exchange_ends: bytes
    exchanges: bytes
    key_ends: bytes
    keys: bytes
    meta_ends: bytes
    metas: bytes
    counts: bytes
    redelivered: bytes


def _header_value(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _time_of(properties: dict[str, Any] | None) -> int | None:
    """The property timestamp in microseconds; None without one, or with one that no datetime can be."""
    told = (properties or {}).get("timestamp")
    if not isinstance(told, (int, float)) or not 0 <= told < _TIME_END_S:
        return None
    return round(told * 1_000_000)


@lru_cache(maxsize=32)
def _repeated(value: str | bytes | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def repeated(value: str | bytes | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value; that of a batch of usual length is made once."""
    return (_repeated if rows <= ROWS_KEPT else _repeated.__wrapped__)(value, kind, rows)


def _texts(kind: pa.DataType, rows: int, ends: bytes, texts: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends), pa.py_buffer(texts)])


class _Columns:
    """Makes Arrow batches of the columns that are wanted. `name`: of the queue, the routing key of what has none."""

    def __init__(self, name: str, wanted: Collection[str]) -> None:
        self._name = name
        self._wanted = [field for field in SCHEMA if field.name in wanted]
        self._schema = pa.schema(self._wanted)
        places = bool({"exchange", "routing_key", "key"} & set(wanted))
        #: for the core
        self.asked = (
            _core.COLUMNS_VALUES * ("value" in wanted)
            | _core.COLUMNS_PLACES * places
            | _core.COLUMNS_METAS * bool({"headers", "key", "timestamp"} & set(wanted))
        )
        self.plain = name.encode()
        self._known: dict[bytes, _Meta] = {}

    def sizes(self, table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bytes of the bodies of rows, as far as they are read."""
        if not self.asked & _core.COLUMNS_VALUES:
            return np.zeros(len(table), np.int64)
        bodies: np.ndarray[Any, Any] = table["body_length"].astype(np.int64) - table["meta_length"]
        return bodies

    def batch(self, found: Found) -> pa.RecordBatch:
        """The batch of what the core gave."""
        rows = found.rows
        arrays = [self._array(field, found, rows) for field in self._wanted]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, found: Found, rows: int) -> pa.Array:
        match field.name:
            case "offset":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(found.tags)])
            case "msg_id":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(found.ids)])
            case "value":
                return _texts(field.type, rows, found.value_ends, found.values)
            case "delivery_count":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(found.counts)])
            case "redelivered":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(found.redelivered)])
            case "exchange":
                if not found.exchange_ends:
                    return repeated("", field.type, rows)
                return _texts(field.type, rows, found.exchange_ends, found.exchanges)
            case "routing_key":
                if not found.key_ends:
                    return repeated(self._name, field.type, rows)
                return _texts(field.type, rows, found.key_ends, found.keys)
            case "key":
                return self._keys(field.type, found, rows)
            case "timestamp":
                return self._timestamps(field.type, found, rows)
        return self._headers(field.type, found, rows)

    def _keys(self, kind: pa.DataType, found: Found, rows: int) -> pa.Array:
        if not found.metas:
            return repeated(None, kind, rows)
        if self._any_has(found, rows, _WITH_ROW):
            return pa.array([meta.key for meta in self._metas(found, rows)], kind)
        if not found.key_ends:
            return repeated(None, kind, rows)
        keys = _texts(kind, rows, found.key_ends, found.keys)
        if found.exchange_ends:
            directly = np.diff(np.frombuffer(found.exchange_ends, "<i4", rows + 1)) == 0
        else:
            directly = np.ones(rows, bool)
        put = pc.and_(pa.array(directly), pc.equal(keys, pa.scalar(self.plain, kind)))
        return pc.if_else(put, pa.scalar(None, kind), keys) if pc.any(put).as_py() else keys

    def _timestamps(self, kind: pa.DataType, found: Found, rows: int) -> pa.Array:
        if not found.metas or not self._any_has(found, rows, _WITH_PROPERTIES):
            return repeated(None, kind, rows)
        return pa.array([meta.timestamp for meta in self._metas(found, rows)], pa.int64()).cast(kind)

    @staticmethod
    def _any_has(found: Found, rows: int, head: int) -> bool:
        """Whether metadata of a row begins as an array that is so long, without decoding it."""
        ends = np.frombuffer(found.meta_ends, "<i4", rows + 1)
        there = ends[1:] > ends[:-1]
        heads = np.frombuffer(found.metas, np.uint8)[ends[:-1][there]]
        return bool((heads >= head).any())

    def _metas(self, found: Found, rows: int) -> list[_Meta]:
        """What the metadata of each row says."""
        if not found.metas:
            return [self._meta(b"")] * rows
        ends = np.frombuffer(found.meta_ends, "<i4", rows + 1).tolist()
        return [self._meta(found.metas[start:end]) for start, end in itertools.pairwise(ends)]

    def _meta(self, packed: bytes) -> _Meta:
        meta = self._known.get(packed)
        if meta is None:
            if len(self._known) > _KNOWN_MAX:
                self._known.clear()
            meta = self._known[packed] = self._decode(packed)
        return meta

    def _decode(self, packed: bytes) -> _Meta:
        if not packed:
            return _Meta(None, None, None)
        found = metadata.decode(packed)
        told = metadata.headers_of_row(found)
        headers = None if told is None else [(name, _header_value(value)) for name, value in told]
        return _Meta(metadata.key_of_row(found, self._name), headers, _time_of(found.properties))

    def _headers(self, kind: pa.DataType, found: Found, rows: int) -> pa.Array:
        if not found.metas:
            return repeated(None, kind, rows)
        each = [meta.headers for meta in self._metas(found, rows)]
        ends = np.zeros(rows + 1, np.int32)
        np.cumsum([len(headers or ()) for headers in each], out=ends[1:])
        there = np.array([headers is not None for headers in each], bool)
        pairs = [pair for headers in each for pair in headers or ()]
        keys = pa.array([key for key, _value in pairs], pa.string())
        values = pa.array([value for _key, value in pairs], pa.binary())
        entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(ends)], children=[entries])


def checked_columns(columns: Collection[str] | None) -> frozenset[str]:
    """The names of the columns that are wanted. Raises UsageError for others, and for none."""
    if columns is None:
        return COLUMNS
    if not isinstance(columns, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in columns):
        raise UsageError(f"columns must be a list of names, not {shown(columns)}")
    if not columns or (unknown := [name for name in columns if name not in COLUMNS]):
        what = f"there is no column {shown(unknown[0])}" if columns else "no column is wanted"
        raise UsageError(f"{what}: choose from {', '.join(SCHEMA.names)}")
    return frozenset(columns)


def _browse(start: int, count: int, ready_only: bool, queue: QueueDeclaration) -> Browse:
    return Browse(queue.id, start, count, ready_only)


class _Asked:
    """Rows of answers that are to be read together, and where to go on behind them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.rows = 0
        self.bytes = 0  #: of their bodies

    def add(self, rows: bytes, count: int, size: int) -> None:
        """Take the first `count` rows of an answer."""
        self.parts.append(rows[: count * DELIVERY.size])
        self.rows += count
        self.bytes += size


class Batches:
    """Reads a range of a queue as Arrow batches, through `browse` of its worker. `owner` has the name of the queue;
    `columns`: names of SCHEMA, None for all.
    """

    def __init__(
        self,
        client: Client,
        owner: Any,
        queue: QueueDeclaration,
        *,
        ready_only: bool,
        columns: Collection[str] | None = None,
    ) -> None:
        self._client = client
        self._owner = owner
        self._queue = queue
        self._ready_only = ready_only
        self._columns = _Columns(owner.name, COLUMNS if columns is None else columns)

    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        nothing = (bytes(4) if name.endswith("_ends") else b"" for name in Found._fields[1:])
        return self._columns.batch(Found(0, *nothing))

    def read(self, start: int, end: int, *, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages [start, end) in order, `rows_max` at most, in batches of about `bytes_max` bytes of bodies
        (as many rows as there are, if those are not wanted).
        """
        bytes_max = min(bytes_max, BYTES_MAX)
        parts: list[pa.RecordBatch] = []  # of one batch: more than one only where files moved
        at, left, stalled, patience = start, rows_max, 0, Patience()
        room = bytes_max
        while 0 <= at < end and left > 0:
            asked, following, full = self._ask(at, end, min(left, ROWS_MAX), room, more=bool(parts))
            if not asked.rows:
                if parts and full:
                    yield from self._whole(parts)
                    parts, room = [], bytes_max
                    continue
                at = following
                continue
            try:
                handle = self._client.handle(self._client.current(self._queue), self._owner, Message)
                rows = asked.parts[0] if len(asked.parts) == 1 else b"".join(asked.parts)
                found = Found(*self._client.core.columns(handle, rows, self._columns.asked, self._columns.plain))
            except AttachmentLost:
                continue
            left -= found.rows
            if found.rows:
                parts.append(self._columns.batch(found))
                room -= len(found.values)
                stalled = 0
            if found.rows < asked.rows:
                # A row whose file moved into the segments meanwhile is asked for again; one that stays bad is left out.
                at = DELIVERY.unpack(rows[found.rows * DELIVERY.size : (found.rows + 1) * DELIVERY.size], "sequence")
                stalled += 1
                if stalled > 3 and not patience.again():
                    left_out(self._owner.name, at)
                    at += 1
                continue
            at = following
            if full and parts:
                yield from self._whole(parts)
                parts, room = [], bytes_max
        if parts:
            yield from self._whole(parts)

    def _ask(self, start: int, end: int, rows_max: int, room: int, *, more: bool) -> tuple[_Asked, int, bool]:
        """Rows of [start, end) whose bodies fit into `room` bytes, one at least unless they are `more` for a batch;
        where to go on, -1: nowhere; whether the batch is full."""
        asked, at = _Asked(), start
        while 0 <= at < end and asked.rows < rows_max:
            count = min(end - at, rows_max - asked.rows, BROWSE_ROWS)
            answer = self._client.ask_queue(self._queue, partial(_browse, at, count, self._ready_only), Rows)
            following = answer.next if answer.next > at else -1
            table = np.frombuffer(answer.rows, _ROW)
            if not len(table):
                at = following  # behind it there may be some, as behind many expired ones
                continue
            here = len(table) if table["sequence"][-1] < end else int(np.searchsorted(table["sequence"], end))
            sizes = self._columns.sizes(table[:here])
            size = int(sizes.sum())
            fitting = here
            if size > room - asked.bytes:
                fitting = int(np.searchsorted(np.cumsum(sizes), room - asked.bytes, side="right"))
                if not fitting and not asked.rows and not more:
                    fitting = min(1, here)
                size = int(sizes[:fitting].sum())
            if fitting:
                asked.add(answer.rows, fitting, size)
            if fitting < here:
                return asked, int(table["sequence"][fitting]), True
            at = following if here == len(table) else -1
        return asked, at, False

    @staticmethod
    def _whole(parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """One batch, or more where metadata is too long for one."""
        if len(parts) == 1:
            return parts
        whole: list[pa.RecordBatch] = pa.Table.from_batches(parts).combine_chunks().to_batches()
        return whole
