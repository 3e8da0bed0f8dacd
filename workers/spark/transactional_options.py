"""The options of a write with delivery=transactional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.engine.transactions.folder import checked_sink
from warren.workers.spark.options import TIMEOUT_S, Given, absolute

_OPTIONS = ("path", "topic", "queue", "delivery", "sinkId", "takeOver", "timeout")
_ELSEWHERE = {
    "exchange": "an exchange routes by what is bound to it at that moment, so nobody could tell after a crash where a "
    "message went: write to a topic, or to a queue with a deduplication_window",
    "routingkey": 'it goes with "exchange", which takes no transactions',
    "durability": "all of a transaction is synced",
    "mandatory": 'it goes with "exchange", which takes no transactions',
    "perhost": "a transaction is of one node",
    "batchrows": "a transaction is staged, and appended in parts of a fixed size",
}


def is_transactional(options: Mapping[str, str]) -> bool:
    """Whether a write asks for transactions."""
    return {key.lower(): value for key, value in options.items()}.get("delivery", "").lower() == "transactional"


@dataclass(frozen=True)
class TransactionalOptions:
    """Where a transactional write goes. Without topic and queue each row says it, in a column of that name."""

    path: str
    topic: str | None
    queue: str | None
    sink: str
    take_over: bool
    timeout_s: float
    checkpoint: str  #: of the query, if it is an option; else empty

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TransactionalOptions:
        """Check the options; UsageError says what is wrong."""
        for key in options:
            if key.lower() in _ELSEWHERE:
                raise UsageError(
                    f"option {shown(key)} does not go with delivery=transactional: {_ELSEWHERE[key.lower()]}"
                )
        given = Given(options, _OPTIONS, "transactional sink")
        topic, queue = given.text("topic"), given.text("queue")
        if topic is not None and queue is not None:
            raise UsageError('options "topic" and "queue" are given, and a write goes to one of them: leave one out')
        meaning = (
            "the name under which this query's batches are told from those that are written already, one for each query"
        )
        return cls(
            path=absolute(given.required("path", "the data directory of a running Warren node")),
            topic=topic,
            queue=queue,
            sink=checked_sink(given.required("sinkId", meaning)),
            take_over=given.flag("takeOver", False),
            timeout_s=given.seconds("timeout", TIMEOUT_S),
            checkpoint=given.text("checkpointLocation") or "",
        )
