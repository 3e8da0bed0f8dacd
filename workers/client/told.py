"""What is told of a message of a topic besides its body. The core checks it (engine/binding/told.c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from warren.engine.errors import UsageError
from warren.engine.saying import shown

#: one or several keys of a message
Key = str | Sequence[str]
Properties = Mapping[str, str]


class Told(NamedTuple):
    """What is told of messages, besides their bodies: of a batch each is one for all, or a list with one for each.
    `born`: milliseconds since 1970, None: now. `later`: when all of them come (workers/client/later.py), None: at once.
    """

    keys: Any = None
    tags: Any = None
    properties: Any = None
    queues: Any = None
    born: Any = None
    later: Any = None

    def part(self, start: int, end: int) -> Told:
        """The same of some of many."""
        return Told(*(item[start:end] if isinstance(item, (list, tuple)) else item for item in self))


def plain(properties: Properties) -> dict[str, str]:
    """Properties as the core takes them. Raises UsageError."""
    if isinstance(properties, dict):
        return properties
    if not isinstance(properties, Mapping):
        raise UsageError(f"properties must be a mapping of str to str, not {shown(properties)}")
    return dict(properties)


def plain_each(
    properties: Properties | Sequence[Properties | None] | None,
) -> dict[str, str] | list[dict[str, str] | None] | None:
    """The same of many messages: for all, or one for each."""
    if properties is None:
        return None
    if isinstance(properties, (list, tuple)):
        return [None if item is None else plain(item) for item in properties]
    return plain(cast("Properties", properties))
