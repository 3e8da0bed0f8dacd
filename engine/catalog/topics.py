"""One topic, as it is declared: its numbers, their bounds, and how two declarations differ."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from warren.engine.catalog.names import check_topic_name
from warren.engine.errors import UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import quoted, shown

#: queues of a topic, and of all topics together: rows of the topic worker's region
TOPIC_QUEUES_MAX = 1024
TOPIC_ROWS_MAX = PROTOCOL["TOPIC_ROWS_MAX"]
#: of a topic that is declared without a number
TOPIC_QUEUES = 4


class TopicDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One topic. Its records name `id`: a topic that is deleted and declared again is another one. Retention: records
    that are older than `retention_s` seconds may go, and the oldest of more than `retention_bytes`; None: they stay.
    `compacted`: of each key the newest record stays. `by_name`: the default exchange appends to it what has its name as
    routing key, if no queue has that name. `origin`: what the client of another protocol declared it with.
    """

    id: int
    name: str
    queues: int
    retention_s: float | None = None
    retention_bytes: int | None = None
    compacted: bool = False
    by_name: bool | msgspec.UnsetType = msgspec.UNSET  #: True, or not there
    origin: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def checked(
    id: int,
    name: str,
    queues: int,
    retention_s: float | None,
    retention_bytes: int | None,
    compacted: bool,
    by_name: bool = False,
) -> TopicDeclaration:
    """A declaration of these numbers. Raises InvalidName, UsageError (which number is out of bounds)."""
    return TopicDeclaration(
        id,
        check_topic_name(name),
        _whole(name, "queues", queues, 1, TOPIC_QUEUES_MAX),
        *checked_retention(name, retention_s, retention_bytes),
        _flag(name, "compacted", compacted),
        _flag(name, "by_name", by_name) or msgspec.UNSET,
    )


def checked_retention(
    name: str, retention_s: float | None, retention_bytes: int | None
) -> tuple[float | None, int | None]:
    """Both, of a topic of that name. Raises UsageError (which number is out of bounds)."""
    return (
        None if retention_s is None else _seconds(name, "retention_s", retention_s),
        None if retention_bytes is None else _whole(name, "retention_bytes", retention_bytes, 1, (1 << 63) - 1),
    )


def check_compacted(topic: TopicDeclaration) -> None:
    """Raises UsageError when a topic is compacted and has a retention."""
    if topic.compacted and (topic.retention_s is not None or topic.retention_bytes is not None):
        raise UsageError(
            f"topic {quoted(topic.name)}: a compacted topic keeps the newest message of each "
            f"key, and has no retention: "
            "leave out retention_s and retention_bytes, or compacted"
        )


def of_group(of: TopicDeclaration, id: int, name: str, queues_max: int) -> TopicDeclaration:
    """A topic that belongs to a group of readers of another one: it keeps its messages as long as that."""
    return TopicDeclaration(id, name, min(of.queues, queues_max), of.retention_s, of.retention_bytes)


def is_retold(found: TopicDeclaration | None, told: TopicDeclaration) -> bool:
    """Whether `told` is the same topic with another retention."""
    if found is None:
        return False
    return msgspec.structs.replace(found, retention_s=told.retention_s, retention_bytes=told.retention_bytes) == told


def differences(found: TopicDeclaration, wanted: TopicDeclaration) -> str:
    """What a topic has and what was wanted, where they differ."""
    names = (name for name in found.__struct_fields__ if name != "origin")
    pairs = ((name, _said(getattr(found, name)), _said(getattr(wanted, name))) for name in names)
    return "; ".join(f"{name}={has!r}, not {shown(other)}" for name, has, other in pairs if has != other)


def _said(value: object) -> object:
    """What is not there is False."""
    return False if value is msgspec.UNSET else value


def _whole(topic: str, what: str, value: object, least: int, most: int) -> int:
    """A number of a topic's declaration. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"topic {quoted(topic)}: {what} must be a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise UsageError(f"topic {quoted(topic)}: {what} must lie between {least} and {most}, not {shown(value)}")
    return value


def _seconds(topic: str, what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"topic {quoted(topic)}: {what} must be a number of seconds, or None, not {shown(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 < seconds < math.inf:
        raise UsageError(f"topic {quoted(topic)}: {what} must be more than 0 seconds and finite, not {shown(value)}")
    return seconds


def _flag(topic: str, what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"topic {quoted(topic)}: {what} must be True or False, not {shown(value)}")
    return value
