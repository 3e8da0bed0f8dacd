"""Types of values in field tables, by the names that RabbitMQ's texts have for them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

_BY_TAG = {
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "S": "longstr",
    "T": "timestamp",
    "D": "decimal",
    "x": "binary",
}
_INT32 = 1 << 31


def type_of(value: Any) -> str:
    """The type of a value."""
    tag = getattr(value, "amqp_tag", None)
    if tag is not None:
        return _BY_TAG[tag]
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -_INT32 <= value < _INT32 else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, list):
        return "array"
    if isinstance(value, dict):
        return "table"
    if isinstance(value, datetime.datetime):
        return "timestamp"
    if isinstance(value, decimal.Decimal):
        return "decimal"
    raise TypeError(f"{type(value).__name__} is no type of a field table")


def class_of(value: Any) -> str:
    """What types are compared with each other: "int", "float", or the type."""
    kind = type_of(value)
    if kind in ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"):
        return "int"
    return "float" if kind in ("float", "double") else kind
