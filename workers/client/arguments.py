"""What callers give, checked: a wrong argument is a UsageError in words, before anything is done.

Hot paths (put, get, ack, publish) check in the core, or where a check costs nothing. A flag is True or False, and
nothing else: 0, "no" or an array that is taken for its truth is a mistake more often than not. A call with parameters
that do not exist is Python's TypeError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from warren.engine import _core
from warren.engine.errors import InvalidName, UsageError
from warren.engine.saying import shown

T = TypeVar("T")
#: numbers of seconds since 1970 from 2001 on; as milliseconds, times of 1970 to 1973
SECONDS_FROM, SECONDS_TO = 10**9, 10**11
LEVELS = {"none": _core.LEVEL_NONE, "written": _core.LEVEL_WRITTEN, "synced": _core.LEVEL_SYNCED}


def checked_client_name(name: object) -> str | None:
    """The name of a client, None for the default one. Raises UsageError."""
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name, which `warren status` shows, must be None or a str, not {type(name).__name__}")
    return name


def checked_flag(value: object, what: str, *, numbers: bool = False) -> bool:
    """True or False (as engine/binding/session.h, wr_flag); `numbers`: 1 and 0, too. Raises UsageError."""
    if value is True or value is False:
        return value
    if numbers and type(value) is int and value in (0, 1):
        return value == 1
    raise UsageError(f"{what} must be True or False, not {shown(value)}")


def checked_count(value: object, what: str, low: int = 1, most: int | None = None) -> int:
    """A whole number from `low` on, to `most` if there is one. Raises UsageError."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # numpy's are welcome
    except TypeError:
        found = low - 1
    if found < low or isinstance(value, bool) or (most is not None and found > most):
        raise UsageError(
            f"{what} must be a whole number from {low} {'on' if most is None else f'to {most}'}, not {shown(value)}"
        )
    return found


def checked_queue(queue: object, kind: type[T]) -> T | str:
    """A queue of this face, or the name of one. Raises UsageError."""
    if isinstance(queue, (kind, str)):
        return queue
    raise UsageError(f"queue must be a Queue of this node, or the name of one, not {shown(queue)}")


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
        raise UsageError(f"{what} must be a list, not one {type(many).__name__}: put it into a list")
    try:
        iterator = iter(many)
    except TypeError:
        raise UsageError(f"{what} must be a list or another iterable, not {type(many).__name__}") from None
    return list(iterator)


def checked_timeout(call_timeout: float | None) -> float | None:
    """The same; raises UsageError for what is no time."""
    if call_timeout is not None and not (_is_seconds(call_timeout) and call_timeout > 0):
        raise UsageError(f"call_timeout must be None or a number of seconds above 0, not {shown(call_timeout)}")
    return call_timeout


def _is_seconds(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) >= 0
    except OverflowError:
        return False


def checked_seconds(timeout: float | None, *, endless: bool = True, what: str = "timeout") -> None:
    """Raises UsageError for a `timeout` that is no time; without `endless` None is none."""
    if timeout is None and endless:
        return
    if not _is_seconds(timeout):
        kinds = "None or a non-negative number of seconds" if endless else "a non-negative number of seconds"
        raise UsageError(f"{what} must be {kinds}, not {shown(timeout)}")


def level_of(durability: object, durable: bool, what: str) -> int:
    """Level of a durability; raises UsageError for an unknown one, and for what cannot be promised without a `durable`
    place (`what` says why there is none: "queue 'x' is transient").
    """
    if durability is None:
        return _core.LEVEL_SYNCED if durable else _core.LEVEL_NONE
    level = LEVELS.get(durability) if isinstance(durability, str) else None
    if level is None:
        raise UsageError(f"durability must be one of 'none', 'written', 'synced' or None, not {shown(durability)}")
    if level and not durable:
        raise UsageError(
            f"{what}, and such messages are kept in memory only: durability can only be 'none', not {shown(durability)}"
        )
    return level


def milliseconds(when: object, what: str, *, up: bool, offsets: str = "") -> int:
    """Milliseconds since 1970; what lies between two is the later one if `up`. Of a datetime without a zone: local
    time. `offsets`: how an offset is given there, as an error says it. Raises UsageError: neither of them, or a number
    that must be seconds, or an offset.
    """
    if isinstance(when, datetime):
        try:
            there = when.astimezone(UTC)
        except (ValueError, OverflowError):  # the first or last hours that there are, where a zone changes nothing
            there = when.replace(tzinfo=UTC)
        passed = there - datetime(1970, 1, 1, tzinfo=UTC)
        micros = (passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds
        return -(-micros // 1000) if up else micros // 1000
    if isinstance(when, (int, float)) and not isinstance(when, bool) and abs(when) < 1 << 62:  # no NaN either
        if SECONDS_FROM <= when < SECONDS_TO:
            raise UsageError(
                f"{what} is in milliseconds since 1970, and {shown(when)} looks like seconds: give a datetime, or "
                f"{math.floor(when)} * 1000"
            )
        if 0 < when < SECONDS_FROM:
            raise UsageError(
                f"{what} is a time in milliseconds since 1970, and {shown(when)} is none that a message has"
                + (f": an offset is given {offsets}" if offsets else "")
            )
        return math.ceil(when) if up else math.floor(when)
    raise UsageError(f"{what} must be a datetime, or milliseconds since 1970, not {shown(when)}")
