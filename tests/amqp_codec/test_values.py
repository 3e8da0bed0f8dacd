"""Goal: tables and properties come back as they were, with their types, and others' encoders and decoders agree.

Method: Hypothesis makes tables of all types; pika and py-amqp encode and decode beside us; bytes that are damaged
anywhere are refused or read, and never anything else.
"""

import datetime
import decimal
import math
from typing import Any

import amqp.serialization
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import data as pika_data

from warren.engine import _core
from warren.engine.amqp import spec, values
from warren.engine.amqp.values import (
    Decimal,
    Float32,
    Int8,
    Int16,
    Int64,
    LongString,
    OtherInt64,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from warren.engine.errors import UsageError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
#: of which Python gives each by itself
USUAL = st.one_of(TEXT, st.none(), st.booleans(), INT64, st.binary(max_size=12))
TAGGED = st.one_of(
    st.floats(),
    st.integers(-128, 127).map(Int8),
    st.integers(0, 255).map(UInt8),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Int16),
    st.integers(0, (1 << 16) - 1).map(UInt16),
    st.integers(0, (1 << 32) - 1).map(UInt32),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int64),
    INT64.map(OtherInt64),
    st.integers(0, (1 << 64) - 1).map(Timestamp),
    st.floats(width=32).map(Float32),
    st.binary(max_size=9).map(lambda found: LongString(b"\xff" + found)),
    st.builds(lambda n, scale: Decimal(f"{n}E-{scale}"), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 255)),
)


def tables(leaves: Any) -> Any:
    return st.dictionaries(
        NAMES,
        st.recursive(
            leaves,
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
            max_leaves=8,
        ),
        max_size=5,
    )


def kinds(value: Any) -> Any:
    """A value with its types; all NaN are alike."""
    if isinstance(value, dict):
        return {name: kinds(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [kinds(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return type(value), "nan"
    return type(value), str(value) if isinstance(value, decimal.Decimal) else value


@given(tables(st.one_of(USUAL, TAGGED)))
def test_tables_come_back_with_their_types(table: dict[str, Any]) -> None:
    packed = _core.amqp_table_bytes(table)
    found = _core.amqp_table(packed)
    assert kinds(found) == kinds(table)
    assert list(found) == list(table), "in their order"
    assert _core.amqp_table_bytes(found) == packed
    assert _core.amqp_table(b"xy" + packed, 2).keys() == table.keys()


@given(tables(st.one_of(USUAL, TAGGED)))
def test_a_message_has_plain_headers(table: dict[str, Any]) -> None:
    packed = _core.amqp_properties_bytes({"headers": table, "timestamp": 1})
    found = _core.amqp_properties(packed, True)

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(name) is str and plain(inner) for name, inner in value.items())
        if isinstance(value, list):
            return all(plain(inner) for inner in value)
        return value is None or type(value) in (bool, int, float, str, bytes)

    assert plain(found)
    assert _core.plain_headers(found["headers"])


@given(tables(USUAL))
def test_pika_reads_what_we_write_and_the_other_way_round(table: dict[str, Any]) -> None:
    packed = _core.amqp_table_bytes(table)
    found, end = pika_data.decode_table(packed, 0)
    assert (found, end) == (table, len(packed))
    pieces: list[bytes] = []
    pika_data.encode_table(pieces, table)
    assert _core.amqp_table(b"".join(pieces)) == table


@given(tables(st.one_of(TEXT, st.none(), st.booleans(), INT64, st.floats(allow_nan=False))))
def test_py_amqp_reads_what_we_write_and_the_other_way_round(table: dict[str, Any]) -> None:
    packed = _core.amqp_table_bytes(table)
    (found,), _end = amqp.serialization.loads("F", packed, 0)
    assert found == table
    assert _core.amqp_table(amqp.serialization.dumps("F", [table])) == table


def test_what_python_has_becomes_the_nearest_type() -> None:
    when = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    given_table = {
        "t": when,
        "d": decimal.Decimal("1E+2"),
        "n": decimal.Decimal("-1.50"),
        "v": (1, 2),
        "m": bytearray(b"x"),
    }
    found = _core.amqp_table(_core.amqp_table_bytes(given_table))
    assert found == {"t": 1577836800, "d": 100, "n": decimal.Decimal("-1.50"), "v": [1, 2], "m": b"x"}
    assert str(found["n"]) == "-1.50"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1 << 63, "type l must fit into 8 bytes"),
        (Int8(128), "type b must fit into 1 bytes"),
        (UInt8(-1), "type B must fit into 1 bytes"),
        (Timestamp(-1), "type T must fit"),
        (decimal.Decimal("NaN"), "give it as text"),
        (decimal.Decimal(1 << 31), "give it as text"),
        (decimal.Decimal("1E-256"), "give it as text"),
        ("\ud800", "lone surrogates"),
        ({1: 2}, "names in a table must be str"),
        ({"x" * 256: 1}, "AMQP has room for 255"),
        (object(), "None, bool, int, float, Decimal, str, bytes, datetime, list or dict, not object"),
        ({1, 2}, "not set"),
    ],
)
def test_what_has_no_place_in_a_table_is_refused(value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _core.amqp_table_bytes({"a": value})
    with pytest.raises(UsageError, match=words):
        _core.amqp_table_bytes({"a": [{"b": value}]})


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return found


def test_depth_is_bounded() -> None:
    deepest = nested(spec.DEPTH_MAX + 1)
    assert _core.amqp_table(_core.amqp_table_bytes(deepest)) == deepest
    with pytest.raises(UsageError, match="nested too deeply"):
        _core.amqp_table_bytes({"a": deepest})
    table = b""
    for _ in range(spec.DEPTH_MAX + 1):
        table = b"\1aF" + len(table).to_bytes(4) + table
    with pytest.raises(UsageError, match="nested too deeply"):
        _core.amqp_table(len(table).to_bytes(4) + table)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested too deeply"):
        _core.amqp_table_bytes({"a": endless})


@given(tables(st.one_of(USUAL, TAGGED)), st.data())
def test_damaged_tables_are_refused_or_read(table: dict[str, Any], data: st.DataObject) -> None:
    packed = bytearray(_core.amqp_table_bytes(table))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    words = ""
    try:
        found = _core.amqp_table(packed)
    except UsageError as error:
        words = str(error)
    if words:
        assert words.startswith("these are no bytes of AMQP: ")
        return
    again = _core.amqp_table_bytes(found)
    assert kinds(_core.amqp_table(again)) == kinds(found)


def test_names_that_are_no_utf8_and_that_come_twice() -> None:
    assert _core.amqp_table(b"\0\0\0\4\2a\xffV") == {"a\\xff": None}
    assert _core.amqp_table(b"\0\0\0\x08\1at\1\1at\0") == {"a": False}
    assert _core.amqp_table(b"\0\0\0\4\1at\7") == {"a": True}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: {
                "shortstr": TEXT,
                "octet": st.integers(0, 255),
                "timestamp": st.integers(0, (1 << 64) - 1),
                "table": tables(st.one_of(USUAL, TAGGED)),
            }[kind]
            for name, kind in spec.PROPERTIES
        },
    )
)
def test_properties_come_back(properties: dict[str, Any]) -> None:
    packed = _core.amqp_properties_bytes(properties)
    assert kinds(_core.amqp_properties(packed)) == kinds(properties)
    assert _core.amqp_properties_bytes(_core.amqp_properties(packed)) == packed
    assert (
        _core.amqp_properties_bytes({**dict.fromkeys(name for name, _kind in spec.PROPERTIES), **properties}) == packed
    )
    for at in range(len(packed)):
        with pytest.raises(UsageError):
            _core.amqp_properties(packed[:at])


def test_properties_that_are_none() -> None:
    assert _core.amqp_properties(b"\x80\0\1\xff") == {"content_type": b"\xff"}, "what is no UTF-8 is bytes"
    assert _core.amqp_properties_bytes({"content_type": b"\xff"}) == b"\x80\0\1\xff"
    with pytest.raises(UsageError, match="no such property"):
        _core.amqp_properties_bytes({"colour": "red"})
    with pytest.raises(UsageError, match="content_type must be str or bytes"):
        _core.amqp_properties_bytes({"content_type": 7})
    with pytest.raises(OverflowError):
        _core.amqp_properties_bytes({"priority": 256})
    assert {kind.__name__ for kind in values.CLASSES.values()} == {
        *("Int8", "UInt8", "Int16", "UInt16", "UInt32", "Int64", "OtherInt64", "Timestamp", "Float32"),
        *("LongString", "Decimal"),
    }
