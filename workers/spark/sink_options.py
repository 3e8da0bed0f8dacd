"""The options of writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import NotYet, UsageError
from warren.engine.saying import shown
from warren.workers.client.publish import Durability
from warren.workers.spark.options import TIMEOUT_S, Given, absolute

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
        given = Given(options, _SINK_OPTIONS, "sink")
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
