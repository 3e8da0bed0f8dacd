"""What a row of columns said of a message and headers and routing key cannot hold: packed, read, and passed on."""

import msgspec
import pytest

from warren.engine.catalog import metadata
from warren.engine.catalog.metadata import Metadata, Row


def packed(*fields: object) -> Metadata:
    return metadata.decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        (("", "orders"), None),
        (("", "orders", {"a": 1}), None),
        (("", "N14228"), b"N14228"),
        (("events", "orders"), b"orders"),
        (("", "orders", None, None, [b"\xff"]), b"\xff"),
        (("", "orders", None, None, [b"orders"]), b"orders"),
    ],
)
def test_keys(fields: tuple[object, ...], key: bytes | None) -> None:
    assert metadata.key_of_row(packed(*fields), "orders") == key


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        (("", "orders"), None),
        (("", "orders", {}), []),
        (("", "orders", {"a": None, "b": b"1"}), [("a", None), ("b", b"1")]),
        (
            ("", "orders", {"a": b"2", "x-death": []}, None, [None, [["a", b"1"], ["a", b"2"]]]),
            [("a", b"1"), ("a", b"2"), ("x-death", [])],
        ),
    ],
)
def test_headers(fields: tuple[object, ...], headers: object) -> None:
    assert metadata.headers_of_row(packed(*fields)) == headers


def test_it_is_passed_on() -> None:
    row = Row(key=b"\xff", repeated=[("a", b"1"), ("a", None)])
    found = metadata.decode(metadata.passed_on("", "orders", {"a": None}, None, row))
    assert found == Metadata("", "orders", {"a": None}, None, row)
    assert metadata.passed_on("", "orders", None, None, None) == metadata.passed_on("", "orders")
