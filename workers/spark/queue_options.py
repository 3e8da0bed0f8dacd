"""The options of reading a queue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import UsageError
from warren.workers.spark.options import BATCH_MAX, COUNT_MAX, TASKS_MAX, TIMEOUT_S, Given, absolute

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
NAME_BYTES_MAX = 255


@dataclass(frozen=True)
class QueueReadOptions:
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
    def parse(cls, options: Mapping[str, str]) -> QueueReadOptions:
        """Check the options of a read; UsageError says what is wrong."""
        given = Given(options, _SOURCE_OPTIONS, "source")
        queue = given.text("queue")
        if queue is None:
            raise UsageError(
                "nothing says what is read: give option 'queue', or for topics one of 'subscribe', 'subscribePattern' "
                'and \'assign\', as in .option("subscribe", "flights")'
            )
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
            offsets_per_trigger_max=given.count("maxOffsetsPerTrigger", COUNT_MAX),
            bytes_per_trigger_max=given.count("maxBytesPerTrigger", COUNT_MAX),
            partitions_min=given.number("minPartitions", min(16, os.cpu_count() or 1), TASKS_MAX),
            records_per_partition_max=given.count("maxRecordsPerPartition", COUNT_MAX),
            batch_rows=given.number("batchRows", 10_000, BATCH_MAX),
            batch_bytes=given.number("batchBytes", 16 << 20, BATCH_MAX),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
        )
