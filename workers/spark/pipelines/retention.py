"""Retention, as a report forecasts it: when the oldest message of a topic goes, and how fast the topic grows.

What a topic keeps are its records from the minimum of each queue on, as the checkpoint has it: what retention has taken
may be in the files still. Growth is what was stored in the last week of the log, or since the topic's first message if
that is later, and at least a day ago: less says nothing of a day.

A message goes when one of both is reached: its age, or, by what came after it, the size of the topic. The node looks
every few seconds, so what is due goes at once, or at its next start. How full the disk is is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from warren.engine.catalog.topics import TopicDeclaration
from warren.workers.spark.pipelines.facts import Kept

HOUR_S, DAY_S = 3600, 86400.0
#: of the log's end, by which growth is judged
WINDOW_S = 7 * DAY_S


class Hour(NamedTuple):
    """What a topic stored in an hour, and keeps. `first`, `last`: when, in seconds since 1970."""

    topic: str
    first: float
    last: float
    messages: int
    bytes: int


def kept(topics: Iterable[TopicDeclaration], hours: Iterable[Hour]) -> list[Kept]:
    """What each topic keeps, the largest first."""
    by_topic: dict[str, list[Hour]] = {}
    for hour in hours:
        by_topic.setdefault(hour.topic, []).append(hour)
    end = max((hour.last for found in by_topic.values() for hour in found), default=0.0)
    made = []
    for topic in topics:
        found = by_topic.get(topic.name, [])
        oldest = min((hour.first for hour in found), default=None)
        made.append(
            Kept(
                topic.name,
                sum(hour.messages for hour in found),
                sum(hour.bytes for hour in found),
                oldest,
                _growth(found, oldest, end),
                topic.retention_s,
                topic.retention_bytes,
                topic.compacted,
            )
        )
    return sorted(made, key=lambda item: (-item.bytes, item.topic))


def _growth(hours: Iterable[Hour], oldest: float | None, end: float) -> float | None:
    if oldest is None or end - oldest < DAY_S:
        return None
    begin = max(oldest, end - WINDOW_S)
    stored = sum(hour.bytes for hour in hours if hour.last >= begin)
    return stored / (end - begin) * DAY_S


def goes_in(item: Kept, now: float) -> float | None:
    """Seconds until the oldest message of a topic goes; 0: it is due; infinite: it stays as things are; None: its
    growth decides, and is not known."""
    if item.oldest is None:
        return math.inf
    by_age = math.inf if item.retention_s is None else max(0.0, item.oldest + item.retention_s - now)
    if item.retention_bytes is None:
        return by_age
    room = item.retention_bytes - item.bytes
    if room < 0:
        return 0.0
    if item.growth is None:
        return None if math.isinf(by_age) else by_age
    return min(by_age, room / item.growth * DAY_S if item.growth else math.inf)


def steady_bytes(item: Kept) -> float | None:
    """Bytes that a topic will have when what comes and what goes are the same; None: that is not known, or never."""
    if item.growth is None or (item.retention_s is None and item.retention_bytes is None):
        return None
    by_age = math.inf if item.retention_s is None else item.growth * item.retention_s / DAY_S
    return min(by_age, math.inf if item.retention_bytes is None else float(item.retention_bytes))
