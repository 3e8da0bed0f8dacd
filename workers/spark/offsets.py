"""Offsets of a queue's stream in Spark's checkpoint, and how a range of claims is cut into partitions.

An offset is `{"<queue>": {"id": "<incarnation>", "next": <claim>, "subscription": "<name>"}}`: claims below `next`
have been processed. Spark compares offsets as JSON strings, so keys are emitted in sorted order, always. The
incarnation tells a subscription from a later one of the same name, whose claim numbers mean other messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warren.engine.errors import StoreError, UsageError


@dataclass(frozen=True)
class ClaimOffset:
    """A position in a subscription's claims."""

    queue: str
    subscription: str
    incarnation: str
    next: int

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that goes into the checkpoint, keys sorted."""
        return {self.queue: {"id": self.incarnation, "next": self.next, "subscription": self.subscription}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClaimOffset:
        """Return the offset in a checkpoint; UsageError when it is not one of this source."""
        try:
            [(queue, position)] = value.items()
            offset = cls(queue, position["subscription"], position["id"], position["next"])
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise UsageError(
                f"the checkpoint holds an offset that is not of a Warren queue: {dict(value)!r}; "
                "it is of topics, or of another source: give this query a checkpointLocation of its own"
            ) from problem
        if type(offset.next) is not int or offset.next < 0:
            raise UsageError(f"the checkpoint's offset of queue {queue!r} is damaged: claim {offset.next!r}")
        return offset

    def check_same(self, queue: str, subscription: str, incarnation: str) -> None:
        """Raise unless this offset is of that queue, subscription and incarnation."""
        if (self.queue, self.subscription) != (queue, subscription):
            raise UsageError(
                f"the checkpoint is of queue {self.queue!r}, subscription {self.subscription!r}, but the query "
                f"reads queue {queue!r}, subscription {subscription!r}; a changed query needs a new checkpointLocation"
            )
        if self.incarnation != incarnation:
            raise StoreError(made_again(queue, subscription, self.incarnation, incarnation))


def made_again(queue: str, subscription: str, then: str, now: str) -> str:
    """What is said of claim numbers that mean other messages by now."""
    return (
        f"the subscription {subscription!r} of queue {queue!r} was deleted and made again since the "
        f"checkpoint was written (then {then}, now {now}); its claim numbers mean "
        "other messages. Start with a new checkpointLocation: what is claimed and not acked will be "
        "delivered to it"
    )


def cut(start: int, end: int, *, parts_min: int, records_max: int | None) -> list[tuple[int, int]]:
    """Cut [start, end) into ranges of about equal length: at least `parts_min`, none above `records_max`.

    There are never more ranges than records, and none is empty.
    """
    total = end - start
    if total <= 0:
        return []
    parts = max(1, parts_min)
    if records_max is not None:
        parts = max(parts, -(-total // records_max))
    parts = min(parts, total)
    bounds = [start + total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))
