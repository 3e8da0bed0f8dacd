"""Options of `format("warren")` as Spark hands them over: a typo fails before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from warren.engine.errors import UsageError
from warren.engine.saying import shown

#: options of reading topics that a queue has not
_TOPIC_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "tags",
    "keys",
    "timestampFrom",
    "timestampTo",
    "includeTimestampType",
    "groupId",
    "groupIdPrefix",
    "mount",
    "host",
)
#: options that Spark itself puts beside ours, or reads from among ours
_SPARKS_OPTIONS = ("checkpointLocation", "queryName", "mergeSchema")

_OF_TRANSACTIONS = {"sinkid": "sinkId", "takeover": "takeOver"}

TIMEOUT_S = 60.0
#: the most that options can say: of messages, bytes and positions (64 bits with a sign, as Spark has them); of rows and
#: of bytes of one Arrow batch; of tasks; of seconds
COUNT_MAX = (1 << 63) - 1
BATCH_MAX = 1 << 30
TASKS_MAX = 1_000_000
SECONDS_MAX = 1_000_000


class Given:
    """A mapping of options, case-insensitive, with typed look-ups whose errors name the option."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {key.lower(): value for key, value in options.items()}
        spelled = {name.lower(): name for name in (*known, *_SPARKS_OPTIONS)}
        of_topics = {name.lower(): name for name in _TOPIC_OPTIONS if name not in known}
        for key in self._values:
            if key in spelled:
                continue
            if key in of_topics:
                raise UsageError(
                    f"option {of_topics[key]!r} is for reading topics (subscribe, subscribePattern, assign); the "
                    f"options of this {what} are {', '.join(known)}"
                )
            if key.startswith("kafka."):
                raise UsageError(
                    f"option {shown(key)} is of Kafka's connector: leave out its options that begin with kafka., the "
                    "option 'path' names the node"
                )
            if key in _OF_TRANSACTIONS and what == "sink":
                raise UsageError(f"option {_OF_TRANSACTIONS[key]!r} goes with delivery=transactional, which is missing")
            raise UsageError(f"unknown option {shown(key)}; the options of this {what} are {', '.join(known)}")

    def text(self, name: str) -> str | None:
        """Return the value; None when it is missing or empty."""
        return self._values.get(name.lower()) or None

    def required(self, name: str, meaning: str) -> str:
        """Return the value; UsageError without one."""
        value = self.text(name)
        if value is None:
            raise UsageError(f'option {name!r} is missing: {meaning}, as in .option("{name}", "…")')
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise UsageError(f"option {name!r} must be true or false, not {shown(value)}")
        return value == "true"

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        """Return one of these words; the first one is the default."""
        value = (self.text(name) or words[0]).lower()
        if value not in words:
            raise UsageError(f"option {name!r} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}")
        return value

    def count(self, name: str, most: int, least: int = 1) -> int | None:
        """Return a whole number from `least` to `most`; None when it is missing."""
        value = self.text(name)
        if value is None:
            return None
        number = int(value) if re.fullmatch("[0-9]{1,20}", value) else -1  # int() takes 1_0, and digits of any script
        if not least <= number <= most:
            raise UsageError(
                f"option {name!r} must be a whole number from {least} to {most}, in digits, not {shown(value)}"
            )
        return number

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number from 1 to `most`, or the default."""
        found = self.count(name, most)
        return default if found is None else found

    def seconds(self, name: str, default: float) -> float:
        """Return a number of seconds above 0."""
        value = self.text(name)
        if value is None:
            return default
        number = float(value) if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20}", value) else 0.0
        if not 0 < number <= SECONDS_MAX:
            raise UsageError(
                f"option {name!r} must be a number of seconds above 0, to {SECONDS_MAX}, in digits, not {shown(value)}"
            )
        return number


def absolute(path: str, option: str = "path") -> str:
    """Return the directory without `file:`, made absolute where the driver stands; executors may stand elsewhere."""
    plain = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if "://" in plain:
        raise UsageError(f"option {option!r} must be a directory of this machine, not {shown(path)}")
    return os.path.abspath(plain)
