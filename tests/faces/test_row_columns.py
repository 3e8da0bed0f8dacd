"""Rows of Arrow columns as the core takes them: metadata that comes back equal, whatever a row says."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.catalog import metadata
from warren.engine.errors import UsageError
from warren.workers.faces.row_columns import Rows, pairs, texts

QUEUE = "orders"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KEYS = st.one_of(st.none(), st.binary(max_size=300), st.text(max_size=8).map(str.encode), st.just(QUEUE.encode()))
NAMES = st.one_of(st.sampled_from(["a", "b", ""]), st.text(max_size=40))
LISTS = st.one_of(st.none(), st.lists(st.tuples(NAMES, st.one_of(st.none(), st.binary(max_size=70))), max_size=20))
IDS = st.one_of(st.none(), st.text(min_size=1, max_size=40))
TIMES = st.one_of(st.none(), st.integers(0, 4_000_000_000_000_000))
ROWS = st.lists(st.tuples(KEYS, LISTS, IDS, TIMES), min_size=1, max_size=30)


def packed(keys: Any, headers: Any, ids: Any, times: Any, exchange: str = "") -> list[bytes]:
    """The metadata of rows, one by one."""
    seconds = np.array([np.nan if item is None else item / 1e6 for item in times])
    columns = (texts(keys), pairs(headers), seconds, texts(ids), True, 0)
    ends, content = _core.row_metadata(len(keys), exchange, QUEUE, *columns)
    bounds = np.frombuffer(ends, np.int32)
    return [bytes(memoryview(content)[bounds[row] : bounds[row + 1]]) for row in range(len(keys))]


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, skipped=st.integers(0, 5))
def test_metadata_comes_back_equal(rows: list[Any], skipped: int) -> None:
    """Of slices, too: `skipped` rows lie before those that are packed."""
    keys, headers, ids, times = (list(column) for column in zip(*rows, strict=True))
    first = min(skipped, len(rows) - 1)
    arrays = (pa.array(keys, pa.binary()), pa.array(headers, HEADERS), pa.array(ids, pa.string()))
    metas = packed(*(array.slice(first) for array in arrays), times[first:])
    for meta, key, told, id, time in zip(
        metas, *(column[first:] for column in (keys, headers, ids, times)), strict=True
    ):
        if not meta:
            assert (key, told, id, time) == (None, None, None, None)
            continue
        found = metadata.decode(meta)
        assert metadata.key_of_row(found, QUEUE) == key
        assert metadata.headers_of_row(found) == told
        assert (found.headers or {}) == dict(told or [])
        properties = found.properties or {}
        assert properties.get("message_id") == id
        assert (None if time is None else round(properties["timestamp"] * 1_000_000)) == time


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.one_of(st.none(), st.text(max_size=60)), min_size=1, max_size=20))
def test_the_key_for_an_exchange_is_its_routing_key(keys: list[str | None]) -> None:
    nothing = pa.nulls(len(keys), HEADERS)
    metas = packed(pa.array(keys), nothing, pa.nulls(len(keys), pa.string()), [None] * len(keys), "events")
    found = [metadata.decode(meta) for meta in metas]
    assert [(item.exchange, item.routing_key) for item in found] == [
        ("events", QUEUE if key is None else key) for key in keys
    ]


@pytest.mark.parametrize(
    "column",
    [
        (bytes(4), b"", None),  # too few ends
        (np.array([0, 5, 3], np.int32), b"12345", None),  # they fall
        (np.array([0, 2, 9], np.int32), b"12345", None),  # they lie outside
        (np.array([-1, 2, 3], np.int32), b"12345", None),
        (np.array([0, 2, 3], np.int32), b"12345", b"\1"),  # validity of one row
        (np.array([0, 2, 3], np.int32), b"12345"),
    ],
)
def test_the_core_looks_at_what_it_is_given(column: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        _core.row_metadata(2, "", QUEUE, column, None, None, None, False, 0)
    headers = (np.array([0, 1, 2], np.int32), None, column, column, None, False)
    with pytest.raises((ValueError, TypeError)):
        _core.row_metadata(2, "", QUEUE, None, headers, None, None, False, 0)


def test_rows_are_named_by_their_numbers() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b", None], "priority": [1, 256, None]})
    rows = Rows(batch, 100).taken(np.array([0, 2, 1]))
    assert [rows.number(row) for row in range(3)] == [100, 102, 101]
    with pytest.raises(UsageError, match=r"^row 102: its value is null"):
        rows.values()
    with pytest.raises(UsageError, match=r"^row 101: its priority"):
        rows.priorities()
    headers = (np.array([0, 1], np.int32), None, (np.array([0, 1], np.int32), b"a", b"\0"), *[None] * 3)
    with pytest.raises(UsageError, match=r"^row 7: the key of header 0 is null"):
        _core.row_metadata(1, "", QUEUE, None, headers, None, None, False, np.array([7], np.int64))


MICROS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("ttl", [pa.array([1, value], kind) for value, kind in ((-1, pa.int8()), (1 << 62, pa.int64()))]),
        ("ttl", [pa.array([1, value], pa.int64()) for value in (-(1 << 63), (1 << 63) - 1, (1 << 53) + 1, 10**9 + 1)]),
        ("ttl", [pa.array([1.0, value]) for value in (float("nan"), float("inf"), -0.1, 1e300)]),
        ("ttl", [pa.array([1, value], pa.int64()).cast(pa.decimal128(38, 0)) for value in (1 << 62, -1)]),
        ("ttl", [pa.array([1, value], pa.duration(unit)) for unit in ("s", "us") for value in (-1, (1 << 63) - 1)]),
        ("priority", [pa.array([1, value], pa.int64()) for value in (256, -1, 1 << 40, (1 << 63) - 1, -(1 << 63))]),
        ("partition", [pa.array([1, value], pa.int64()) for value in (-1, 1 << 31, 1 << 62, -(1 << 63))]),
        (
            "timestamp",
            [pa.array([1, value], MICROS) for value in (-1, -(1 << 62), 253_402_300_800_000_000, (1 << 63) - 1)],
        ),
    ],
)
def test_numbers_out_of_range_are_refused_by_row_and_column(column: str, wrong: list[pa.Array]) -> None:
    asked = {
        "ttl": lambda rows: rows.milliseconds("ttl"),
        "priority": Rows.priorities,
        "partition": Rows.partitions,
        "timestamp": Rows.born_us,
    }[column]
    for array in wrong:
        rows = Rows(pa.RecordBatch.from_pydict({"value": [b"a", b"b"], column: array}), 40)
        with pytest.raises(UsageError, match=rf"^row 41: .*{column}"):
            asked(rows)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.decimal128(38, 3), pa.duration("s"), pa.duration("ms")])
def test_the_longest_ttl_is_taken(kind: pa.DataType) -> None:
    per_second = 1000 if kind == pa.duration("ms") else 1
    array = pa.array([0, 10**9 * per_second, None], pa.int64()).cast(kind)
    rows = Rows(pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"], "ttl": array}))
    found = rows.milliseconds("ttl")
    assert found is not None
    assert found.to_pylist() == [0, 10**12, None]


def test_the_last_moment_is_taken() -> None:
    last = 253_402_300_799_999_999
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "timestamp": pa.array([0, last], MICROS)})
    found = Rows(batch).born_us()
    assert found is not None
    assert found.to_pylist() == [0, last]
