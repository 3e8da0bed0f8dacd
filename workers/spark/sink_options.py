"""The options of writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.client.publish import Durability
from warren.workers.spark.options import BATCH_MAX, TIMEOUT_S, Given, absolute

#: where a write can go, by an option for all rows, or by a column for each
TARGETS = ("queue", "exchange", "topic")
_SINK_OPTIONS = (
    "path",
    *TARGETS,
    "routingKey",
    "durability",
    "mandatory",
    "batchRows",
    "perHost",
    "timeout",
    "delivery",
)
_DURABILITIES: dict[str, Durability] = {"none": "none", "written": "written", "synced": "synced"}
#: rows of one call of the core
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class SinkOptions:
    """Where a write goes. Without queue, exchange and topic each row says it. `durability`: None is what the target
    has: synced for what is durable.
    """

    path: str
    queue: str | None
    exchange: str | None
    topic: str | None
    routing_key: str | None
    durability: Durability | None
    mandatory: bool
    batch_rows: int
    per_host: bool  #: each task writes into the node of its own host
    timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check the options of a write; UsageError says what is wrong."""
        given = Given(options, _SINK_OPTIONS, "sink")
        named = {name: target for name in TARGETS if (target := given.text(name)) is not None}
        if len(named) > 1:
            raise UsageError(
                f"options {' and '.join(map(repr, named))} are given, and a write goes to one of them; for a target in "
                f"each row leave them out, and select a column {' or '.join(named)}"
            )
        if ("queue" in named or "topic" in named) and given.text("routingKey") is not None:
            raise UsageError(
                'option "routingKey" goes with "exchange"; a message for a queue or a topic has its column "key"'
            )
        durability = given.text("durability")
        if durability is not None and durability.lower() not in _DURABILITIES:
            raise UsageError(f'option "durability" must be none, written or synced, not {shown(durability)}')
        delivery = (given.text("delivery") or "direct").lower()
        if delivery != "direct":
            raise UsageError(f'option "delivery" must be direct or transactional, not {shown(delivery)}')
        return cls(
            path=absolute(given.required("path", "the data directory of a running Warren node")),
            queue=named.get("queue"),
            exchange=named.get("exchange"),
            topic=named.get("topic"),
            routing_key=given.text("routingKey"),
            durability=None if durability is None else _DURABILITIES[durability.lower()],
            mandatory=given.flag("mandatory", False),
            batch_rows=given.number("batchRows", BATCH_ROWS, BATCH_MAX),
            per_host=given.flag("perHost", False),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
        )
