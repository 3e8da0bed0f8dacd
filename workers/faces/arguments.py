"""What callers give, checked: a wrong argument is a UsageError in words, before anything is done.

Hot paths (put, get, ack, publish) check in the core, or where a check costs nothing. Flags are taken for their truth,
as everywhere in Python; a call with parameters that do not exist is Python's TypeError.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from warren.engine.errors import InvalidName, UsageError

T = TypeVar("T")


def checked_client_name(name: object) -> str | None:
    """The name of a client, None for the default one. Raises UsageError."""
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name, which `warren status` shows, must be None or a str, not {type(name).__name__}")
    return name


def checked_count(value: object, what: str, low: int = 1) -> int:
    """A whole number from `low` on. Raises UsageError."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # numpy's are welcome
    except TypeError:
        found = low - 1
    if found < low or isinstance(value, bool):
        raise UsageError(f"{what} must be a whole number from {low} on, not {value!r}")
    return found


def checked_exchange(name: object) -> str:
    """The name of an exchange that may be there; the default one has an empty name. Raises InvalidName."""
    if not isinstance(name, str):
        raise InvalidName(f"an exchange name must be a str, not {type(name).__name__}")
    return name


def checked_mapping(arguments: object) -> dict[str, Any]:
    """The arguments of a binding or of a queue, a copy; none for None. Raises UsageError."""
    if arguments is not None and not isinstance(arguments, Mapping):
        raise UsageError(f"arguments must be a mapping, not {type(arguments).__name__}")
    return dict(arguments or {})


def listed(many: Iterable[T], what: str) -> list[T] | tuple[T, ...]:
    """Many things as a list or tuple. Raises UsageError for what is no iterable, and for text or bytes, which would
    be taken apart.
    """
    if isinstance(many, (list, tuple)):
        return many
    if isinstance(many, (str, bytes, bytearray, memoryview)):
        raise UsageError(f"{what} must be a list, not one {type(many).__name__}: give [{type(many).__name__}, …]")
    try:
        iterator = iter(many)
    except TypeError as error:
        raise UsageError(f"{what} must be a list or another iterable, not {type(many).__name__}") from error
    return list(iterator)
