"""The options of reading topics. Names and meanings are those of Spark's connector for Kafka, where it has them.

What can be checked without a node is checked here: `TopicReadOptions.parse` what each option says,
`for_batch` and `for_stream` what belongs together. Topics, partitions and offsets are checked by `topic_plan`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from warren.engine.catalog.group_topics import check_group
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.client.arguments import milliseconds
from warren.workers.faces.topic_scans import TAGS_MAX, TIME_MAX, TIME_MIN
from warren.workers.spark.options import BATCH_MAX, COUNT_MAX, TASKS_MAX, TIMEOUT_S, Given, absolute

#: what says that topics are read, and which
SELECTIONS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_OF_STREAMS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupId",
    "groupIdPrefix",
)
_OPTIONS = (
    "path",
    *SELECTIONS,
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    *_ENDS,
    *_OF_STREAMS,
    "minPartitions",
    "maxRecordsPerPartition",
    "tags",
    "keys",
    "timestampFrom",
    "timestampTo",
    "includeValue",
    "includeHeaders",
    "includeTimestampType",
    "failOnDataLoss",
    "batchRows",
    "batchBytes",
    "scan",
    "mount",
    "host",
    "timeout",
)

#: how files are read: natively where that is possible, natively or not at all, or in Python
SCANS = ("auto", "native", "python")

#: offsets in JSON that mean a place, as in Kafka's connector
LATEST, EARLIEST = -1, -2
TRIGGER_DELAY_S = 15 * 60.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

#: a number for each partition of each topic
Numbers = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Selection:
    """Which topics and partitions are read."""

    option: str  #: of SELECTIONS
    names: tuple[str, ...] = ()  #: subscribe, assign
    pattern: str = ""  #: subscribePattern: a regular expression that a whole name matches
    partitions: Mapping[str, tuple[int, ...]] | None = None  #: assign

    def __str__(self) -> str:
        """As it was given, for texts."""
        return f"{self.option} {self.pattern or ', '.join(self.names)}"


@dataclass(frozen=True)
class Bound:
    """Where a read begins, or ends: a place, a number for each partition, or a time for all."""

    option: str
    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    numbers: Numbers | None = None  #: offsets (or LATEST, EARLIEST); milliseconds since 1970
    time_ms: int = 0

    @property
    def fixed(self) -> bool:
        """Whether it means the same offsets whenever it is asked."""
        if self.kind != "offsets" or self.numbers is None:
            return False
        return all(number >= 0 for each in self.numbers.values() for number in each.values())


@dataclass(frozen=True)
class TopicReadOptions:
    """What a read was asked for."""

    path: str
    selection: Selection
    start: Bound | None
    end: Bound | None
    latest_if_no_message_is_so_late: bool
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_s: float
    partitions_min: int | None
    records_per_partition_max: int | None
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    since_ms: int
    until_ms: int
    include_value: bool
    include_headers: bool
    include_timestamp_type: bool
    fail_on_data_loss: bool
    group_id: str | None
    group_id_prefix: str | None
    batch_rows: int
    batch_bytes: int
    scan: str  #: of SCANS
    mount: str | None  #: where hosts on which the node does not run see its directory
    host: str | None  #: where the node runs, as Spark names it
    timeout_s: float
    given: tuple[str, ...]  #: names of options that are of streams or of batches alone

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TopicReadOptions:
        """Check what each option says; UsageError says what is wrong."""
        check_one_kind(options)
        given = Given(options, _OPTIONS, "source of topics")
        least, most = (given.count(name, COUNT_MAX) for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
        if least is not None and most is not None and least > most:
            raise UsageError(f"option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most})")
        delay = given.text("maxTriggerDelay")
        if delay is not None and least is None:
            raise UsageError(
                "option 'maxTriggerDelay' is the longest wait for 'minOffsetsPerTrigger', which is missing"
            )
        since, until = _time(given, "timestampFrom", TIME_MIN), _time(given, "timestampTo", TIME_MAX)
        if since >= until:
            raise UsageError("option 'timestampFrom' must be before 'timestampTo', which is not read itself")
        group, prefix = given.text("groupId"), given.text("groupIdPrefix")
        if group is not None and prefix is not None:
            raise UsageError("give one of the options 'groupId' and 'groupIdPrefix': the prefix is for a made name")
        for name in (group, None if prefix is None else f"{prefix}-{'0' * 12}"):
            if name is not None:
                check_group(name)
        return cls(
            path=absolute(given.required("path", "the data directory of a running Warren node")),
            selection=_selection(given),
            start=_bound(given, _STARTS),
            end=_bound(given, _ENDS),
            latest_if_no_message_is_so_late=_strategy(given),
            offsets_per_trigger_max=most,
            bytes_per_trigger_max=given.count("maxBytesPerTrigger", COUNT_MAX),
            offsets_per_trigger_min=least,
            trigger_delay_s=TRIGGER_DELAY_S if delay is None else _duration("maxTriggerDelay", delay),
            partitions_min=given.count("minPartitions", TASKS_MAX),
            records_per_partition_max=given.count("maxRecordsPerPartition", COUNT_MAX),
            tags=_texts(given, "tags"),
            keys=_texts(given, "keys"),
            since_ms=since,
            until_ms=until,
            include_value=given.flag("includeValue", True),
            include_headers=given.flag("includeHeaders", False),
            include_timestamp_type=given.flag("includeTimestampType", False),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            group_id=group,
            group_id_prefix=prefix,
            batch_rows=given.number("batchRows", 10_000, BATCH_MAX),
            batch_bytes=given.number("batchBytes", 16 << 20, BATCH_MAX),
            scan=given.one_of("scan", SCANS),
            mount=None if given.text("mount") is None else absolute(given.required("mount", "files"), "mount"),
            host=given.text("host"),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
            given=tuple(name for name in (*_OF_STREAMS, *_ENDS) if given.text(name) is not None),
        )

    def for_batch(self) -> TopicReadOptions:
        """The options of a batch, which reads from the earliest to the latest if nothing else is said. UsageError."""
        for name in _OF_STREAMS:
            if name in self.given:
                raise UsageError(f"option {name!r} is for streams (readStream); a batch reads all from start to end")
        start = self.start or Bound("startingOffsets", "earliest")
        end = self.end or Bound("endingOffsets", "latest")
        if start.kind == "latest" or _says(start, LATEST):
            raise UsageError(
                f"option {start.option!r}: a batch cannot begin at the latest offset: nothing is behind it"
            )
        if end.kind == "earliest" or _says(end, EARLIEST):
            raise UsageError(f"option {end.option!r}: a batch cannot end at the earliest offset: nothing is before it")
        if start.kind == end.kind == "time" and start.time_ms > end.time_ms:
            raise UsageError(f"option {start.option!r} ({start.time_ms}) is behind {end.option!r} ({end.time_ms})")
        return replace(self, start=start, end=end)

    def for_stream(self) -> TopicReadOptions:
        """The options of a stream, which begins at the latest offset if nothing else is said. UsageError."""
        for name in _ENDS:
            if name in self.given:
                raise UsageError(f"option {name!r} is for batches (read); a stream has no end")
        return replace(self, start=self.start or Bound("startingOffsets", "latest"))


def check_one_kind(options: Mapping[str, str]) -> bool:
    """Return whether a read is of topics, not of a queue. UsageError: it is of both."""
    told = {name.lower() for name, value in options.items() if value}
    selections = [name for name in SELECTIONS if name.lower() in told]
    if selections and "queue" in told:
        raise UsageError(f"give one of the options 'queue' and {selections[0]!r}: a read is of a queue, or of topics")
    return bool(selections)


def _says(bound: Bound, place: int) -> bool:
    if bound.kind != "offsets" or bound.numbers is None:
        return False
    return any(number == place for each in bound.numbers.values() for number in each.values())


def _selection(given: Given) -> Selection:
    named = [name for name in SELECTIONS if given.text(name) is not None]
    if len(named) != 1:
        raise UsageError(f"give one of the options {', '.join(SELECTIONS)}, not {' and '.join(named) or 'none'}")
    option = named[0]
    value = given.required(option, "which topics are read")
    if option == "subscribePattern":
        try:
            re.compile(value)
        except re.error as problem:
            raise UsageError(f"option {option!r} is no regular expression: {problem} in {shown(value)}") from problem
        return Selection(option, pattern=value)
    if option == "subscribe":
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not names:
            raise UsageError(f"option {option!r} must be names of topics with commas between them, not {shown(value)}")
        return Selection(option, names)
    example = '{"flights": [0, 1]}'
    told = _json(option, value, example)
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in told.items():
        if not isinstance(partitions, list) or not partitions or not all(_whole(number) for number in partitions):
            raise UsageError(
                f"option {option!r}: partitions of a topic are a list as in {example}, not {shown(partitions)}"
            )
        if len(set(partitions)) != len(partitions):
            raise UsageError(f"option {option!r} names a partition of topic {topic!r} twice")
        found[topic] = tuple(sorted(partitions))
    return Selection(option, tuple(found), partitions=found)


def _bound(given: Given, options: tuple[str, str, str]) -> Bound | None:
    """The start, or the end, of the three options that can say it."""
    named = [name for name in options if given.text(name) is not None]
    if not named:
        return None
    if len(named) > 1:
        raise UsageError(f"give one of the options {', '.join(named)}: each says where to begin or to end")
    by_offset, by_time, _by_times = options
    option = named[0]
    value = given.required(option, "where to begin or to end")
    if option == by_time:
        return Bound(option, "time", time_ms=_moment(option, value))
    if option == by_offset and value.lower() in ("earliest", "latest"):
        return Bound(option, "earliest" if value.lower() == "earliest" else "latest")
    if option == by_offset:
        numbers = _numbers(option, value, '{"flights": {"0": 23, "1": -2}}', "earliest, latest, or offsets")
        for each in numbers.values():
            for number in each.values():
                if not EARLIEST <= number <= COUNT_MAX:
                    raise UsageError(
                        f"option {option!r}: an offset is from 0 to {COUNT_MAX}, -1 (latest) or -2 (earliest), not "
                        f"{shown(number)}"
                    )
        return Bound(option, "offsets", numbers)
    times = _numbers(option, value, '{"flights": {"0": 1767225600000}}', "milliseconds since 1970")
    for each in times.values():
        for number in each.values():
            _moment(option, str(number))
    return Bound(option, "times", times)


def _strategy(given: Given) -> bool:
    option = "startingOffsetsByTimestampStrategy"
    value = (given.text(option) or "error").lower()
    if value not in ("error", "latest"):
        raise UsageError(f"option {option!r} must be error or latest, not {shown(value)}")
    if given.text(option) is not None and not any(given.text(name) for name in _STARTS[1:]):
        raise UsageError(
            f"option {option!r} is about startingTimestamp and startingOffsetsByTimestamp: neither is given"
        )
    return value == "latest"


def _json(option: str, value: str, example: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise UsageError(f"option {option!r} has a name twice: {shown(value)}")
        return found

    try:
        told = json.loads(value, object_pairs_hook=once)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, UsageError):
            raise
        raise UsageError(f"option {option!r} must be JSON as in {example}, not {shown(value)} ({problem})") from problem
    if not isinstance(told, dict) or not told:
        raise UsageError(f"option {option!r} must be JSON as in {example}, not {shown(value)}")
    return told


def _numbers(option: str, value: str, example: str, what: str) -> Numbers:
    found: dict[str, dict[int, int]] = {}
    for topic, each in _json(option, value, f"{example} ({what})").items():
        if not isinstance(each, dict) or not each or not all(isinstance(number, int) for number in each.values()):
            raise UsageError(f"option {option!r}: a topic has numbers by partition as in {example}, not {shown(each)}")
        if not all(re.fullmatch("[0-9]{1,9}", partition) for partition in each):
            raise UsageError(
                f"option {option!r}: topic {topic!r} has partitions that are no numbers: {shown(list(each))}"
            )
        if any(isinstance(number, bool) for number in each.values()):
            raise UsageError(f"option {option!r}: a topic has numbers by partition as in {example}, not {shown(each)}")
        found[topic] = {int(partition): number for partition, number in each.items()}
        if len(found[topic]) != len(each):
            raise UsageError(f"option {option!r} names a partition of topic {topic!r} twice")
    return found


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31


def _moment(option: str, value: str) -> int:
    """Milliseconds since 1970."""
    if not re.fullmatch("[0-9]{1,18}", value):
        raise UsageError(
            f"option {option!r} must be a time in milliseconds since 1970, in 18 digits at most, not {shown(value)}"
        )
    return milliseconds(int(value), f"option {option!r}", up=True)


def _time(given: Given, name: str, default: int) -> int:
    value = given.text(name)
    return default if value is None else _moment(name, value)


def _duration(option: str, value: str) -> float:
    """Seconds of a time with a unit, as Spark's: 500ms, 90s, 15m, 1h, 1d; a number alone is milliseconds."""
    found = re.fullmatch(r" *([0-9]{1,12}) *([a-z]*) *", value.lower())
    unit = None if found is None else _UNITS_S.get(found.group(2) or "ms")
    if found is None or unit is None:
        raise UsageError(
            f"option {option!r} must be a time as 500ms, 90s, 15m or 1h, in 12 digits at most, not {shown(value)}"
        )
    return int(found.group(1)) * unit


def _texts(given: Given, name: str) -> tuple[str, ...]:
    """Texts with commas between them, or a JSON list for those that have commas."""
    value = given.text(name)
    if value is None:
        return ()
    if value.lstrip().startswith("["):
        try:
            told = json.loads(value)
        except (ValueError, RecursionError) as problem:
            raise UsageError(f"option {name!r} begins as a JSON list and is none: {problem}") from problem
        if not all(isinstance(text, str) for text in told):
            raise UsageError(f"option {name!r} must be a list of texts, not {shown(value)}")
    else:
        told = [part.strip() for part in value.split(",")]
    if not told or not all(told):
        raise UsageError(
            f"option {name!r} must be texts with commas between them, none of them empty, not {shown(value)}"
        )
    if len(told) > TAGS_MAX:
        raise UsageError(f"option {name!r} has {len(told)} texts, and takes {TAGS_MAX} at most")
    if name == "keys" and any(" " in key for key in told):
        raise UsageError(f"option {name!r}: a key has no spaces, which separate keys: {shown(value)}")
    return tuple(dict.fromkeys(told))
