"""When a message of a topic comes, as properties of its record: what RocketMQ's producers say it with
(engine/topics/scheduled.h).
"""

from __future__ import annotations

import math
import time
from datetime import datetime

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.engine.topics.formats import DELAY_LEVELS_MS, DELAY_MS_MAX
from warren.workers.client.arguments import milliseconds

#: a time: a datetime, or milliseconds since 1970
When = datetime | float
_DAYS = DELAY_MS_MAX // 86_400_000


def later_of(delay: float | None, at: When | None, delay_level: int | None) -> bytes | None:
    """The properties that say when a message comes; None: at once. Raises UsageError."""
    if delay is None and at is None and delay_level is None:
        return None
    given = [name for name, value in (("delay", delay), ("at", at), ("delay_level", delay_level)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both say when the message comes: give only one of them")
    if delay is not None:
        return _property("TIMER_DELAY_MS", _delay(delay))
    if at is not None:
        return _property("TIMER_DELIVER_MS", _at(at))
    return _property("DELAY", _level(delay_level))


def _property(name: str, value: int) -> bytes:
    return b"%s\x01%d\x02" % (name.encode(), value)


def _delay(delay: object) -> int:
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay * 1000 <= DELAY_MS_MAX:
        raise UsageError(
            f"delay must be a number of seconds from 0 to {DELAY_MS_MAX // 1000} ({_DAYS} days), not {shown(delay)}"
        )
    return math.ceil(delay * 1000)


def _at(when: object) -> int:
    moment = milliseconds(when, "at", up=True)
    if moment - time.time_ns() // 1_000_000 > DELAY_MS_MAX:
        raise UsageError(f"at must be a time up to {_DAYS} days from now, not {shown(when)}")
    return max(moment, 0)


def _level(level: object) -> int:
    most = len(DELAY_LEVELS_MS)
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= most:
        raise UsageError(f"delay_level must be a whole number from 1 to {most}, not {shown(level)}")
    return level
