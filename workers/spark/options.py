"""The options of `format("warren")`, checked when source or sink is made: a typo fails before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import NotYet, UsageError
from warren.engine.saying import shown
from warren.workers.client.publish import Durability

#: options of Kafka's connector, and of Warren's topics, that make no sense before there are topics
_TOPIC_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "tags",
    "keys",
    "timestampFrom",
    "timestampTo",
    "groupId",
    "pushdown",
)
_SOURCE_OPTIONS = (
    "path",
    "queue",
    "subscription",
    "includeValue",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "batchRows",
    "batchBytes",
    "failOnDataLoss",
    "timeout",
)
_SINK_OPTIONS = (
    "path",
    "queue",
    "exchange",
    "routingKey",
    "durability",
    "mandatory",
    "batchRows",
    "timeout",
    "delivery",
)
_DURABILITIES: dict[str, Durability] = {"none": "none", "written": "written", "synced": "synced"}
#: options that Spark itself puts beside ours, or reads from among ours
_SPARKS_OPTIONS = ("checkpointLocation", "queryName", "mergeSchema")

NAME_BYTES_MAX = 255
TIMEOUT_S = 60.0


class _Reading:
    """A mapping of options, case-insensitive, with typed look-ups whose errors name the option."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {key.lower(): value for key, value in options.items()}
        spelled = {name.lower(): name for name in (*known, *_SPARKS_OPTIONS)}
        later = {name.lower(): name for name in _TOPIC_OPTIONS}
        for key in self._values:
            if key in spelled:
                continue
            if key in later:
                raise NotYet(
                    f"option {later[key]!r} belongs to topics, which this version of Warren does not have yet; "
                    'name a queue: .option("queue", "…")'
                )
            raise UsageError(f"unknown option {shown(key)}; the options of this {what} are {', '.join(known)}")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def required(self, name: str, meaning: str) -> str:
        value = self.text(name)
        if value is None:
            raise UsageError(f'option {name!r} is missing: {meaning}, as in .option("{name}", "…")')
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise UsageError(f"option {name!r} must be true or false, not {shown(value)}")
        return value == "true"

    def count(self, name: str, default: int | None) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            raise UsageError(f"option {name!r} must be a whole number from 1, not {shown(value)}")
        return number

    def number(self, name: str, default: int) -> int:
        found = self.count(name, default)
        assert found is not None
        return found

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            number = default if value is None else float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            raise UsageError(f"option {name!r} must be a number of seconds above 0, not {shown(value)}")
        return number


@dataclass(frozen=True)
class SourceOptions:
    """What a read was asked for."""

    path: str
    queue: str
    subscription: str
    include_value: bool
    include_headers: bool
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    partitions_min: int
    records_per_partition_max: int | None
    batch_rows: int
    batch_bytes: int
    fail_on_data_loss: bool
    timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options of a read; UsageError or NotYet say what is wrong."""
        given = _Reading(options, _SOURCE_OPTIONS, "source")
        queue = given.required("queue", "the queue to read")
        subscription = given.text("subscription") or f"spark-{queue}"
        if len(subscription.encode()) > NAME_BYTES_MAX:
            raise UsageError(
                f"the name of the subscription has more than {NAME_BYTES_MAX} bytes; "
                'choose a shorter one with .option("subscription", "…")'
            )
        return cls(
            path=absolute(given.required("path", "the data directory of a running Warren node")),
            queue=queue,
            subscription=subscription,
            include_value=given.flag("includeValue", True),
            include_headers=given.flag("includeHeaders", False),
            offsets_per_trigger_max=given.count("maxOffsetsPerTrigger", None),
            bytes_per_trigger_max=given.count("maxBytesPerTrigger", None),
            partitions_min=given.number("minPartitions", min(16, os.cpu_count() or 1)),
            records_per_partition_max=given.count("maxRecordsPerPartition", None),
            batch_rows=given.number("batchRows", 10_000),
            batch_bytes=given.number("batchBytes", 16 << 20),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
        )


@dataclass(frozen=True)
class SinkOptions:
    """Where a write goes."""

    path: str
    queue: str | None
    exchange: str | None
    routing_key: str | None
    durability: Durability
    mandatory: bool
    batch_rows: int
    timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check the options of a write; UsageError or NotYet say what is wrong."""
        given = _Reading(options, _SINK_OPTIONS, "sink")
        queue, exchange = given.text("queue"), given.text("exchange")
        if (queue is None) == (exchange is None):
            raise UsageError('a write needs one of the options "queue" and "exchange"')
        if queue is not None and given.text("routingKey") is not None:
            raise UsageError('option "routingKey" goes with "exchange"; a write to a queue needs none')
        named = given.text("durability") or "synced"
        durability = _DURABILITIES.get(named)
        if durability is None:
            raise UsageError(f'option "durability" must be none, written or synced, not {shown(named)}')
        delivery = given.text("delivery") or "direct"
        if delivery == "transactional":
            raise NotYet(
                'delivery "transactional" is not part of this version; "direct" writes at least once: '
                "make the reader idempotent, by a key of your own in the message"
            )
        if delivery != "direct":
            raise UsageError(f'option "delivery" must be direct, not {shown(delivery)}')
        return cls(
            path=absolute(given.required("path", "the data directory of a running Warren node")),
            queue=queue,
            exchange=exchange,
            routing_key=given.text("routingKey"),
            durability=durability,
            mandatory=given.flag("mandatory", False),
            batch_rows=given.number("batchRows", 1000),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
        )


def absolute(path: str) -> str:
    """Return the directory without `file:`, made absolute where the driver stands; executors may stand elsewhere."""
    plain = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if "://" in plain:
        raise UsageError(f"option 'path' must be a directory of this machine, not {shown(path)}")
    return os.path.abspath(plain)
