"""What is said of a message when it is published, besides its body and where it goes.

Faces take these as keyword arguments and make one Publish of them; what the core is given (delivery options, packed
metadata) is made here. Of many messages each value is one for all, or a list or tuple with one for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from warren.engine.catalog import metadata
from warren.engine.errors import UsageError
from warren.workers.client.arguments import level_of

Mappings = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
Ids = str | bytes | Sequence[str | bytes | None] | None
Seconds = float | Sequence[float | None] | None

_NOT_KEPT = "a message that is not persistent"  #: what would be transient, for an error


class Publish(msgspec.Struct, frozen=True, gc=False):
    """The options of a publish. Nothing is checked before it is used."""

    headers: Mappings = None
    properties: Mappings = None
    message_id: Ids = None
    priority: int | Sequence[int] = 0
    ttl: Seconds = None
    delay: Seconds = None
    persistent: bool | Sequence[bool] = True

    def level(self, durability: object, durable: bool, what: str) -> int:
        """The level of a durability, of `what` goes to. Raises UsageError."""
        if self.persistent is True:
            return level_of(durability, durable, what)
        kept = metadata.any_kept(self.persistent)
        return level_of(durability, durable and kept, what if kept else _NOT_KEPT)

    # -- one message --------------------------------------------------------------------------------------------

    def options(self) -> metadata.Options | None:
        """Delivery options; None when they are all plain. Raises UsageError."""
        return metadata.options(self.priority, self.ttl, self.delay, self.message_id, self.persistent)

    def packed(self, exchange: str, routing_key: str) -> bytes | None:
        """Metadata as it travels; None when there is no more to tell than where it went. Raises UsageError."""
        if self.headers is None and self.properties is None and self.message_id is None:
            return None
        return metadata.encode(exchange, routing_key, self.headers, self.properties, self.message_id)

    # -- many ---------------------------------------------------------------------------------------------------

    def options_each(self, count: int) -> metadata.Options | list[metadata.Options | None] | None:
        """Delivery options, one for all or one for each. Raises UsageError."""
        return metadata.options_each(count, self.priority, self.ttl, self.delay, self.message_id, self.persistent)

    def headers_each(self, count: int) -> Sequence[Any]:
        """The headers of each. Raises UsageError."""
        return metadata.each(self.headers, count, "headers")

    @property
    def is_same(self) -> bool:
        """Whether all that are published with one routing key have the same metadata."""
        return (
            self.properties is None
            and self.message_id is None
            and (self.headers is None or isinstance(self.headers, Mapping))
        )

    def told_each(self, count: int) -> list[tuple[Any, Any, Any]]:
        """Headers, properties, message id of each. Raises UsageError."""
        columns = zip(
            self.headers_each(count),
            metadata.each(self.properties, count, "properties"),
            metadata.each(self.message_id, count, "message_id"),
            strict=True,
        )
        return list(columns)

    def check_lengths(self, count: int) -> None:
        """Raises UsageError for a list that has not one value for each of `count` messages."""
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, (list, tuple)) and len(value) != count:
                raise UsageError(f"{name}: {len(value)} for {count} bodies")

    def part(self, start: int, end: int) -> dict[str, Any]:
        """The keyword arguments of some of many messages."""
        return {
            name: value[start:end] if isinstance(value, (list, tuple)) else value
            for name, value in msgspec.structs.asdict(self).items()
        }


#: nothing is said
PLAIN = Publish()


def publish_options(
    headers: Mappings,
    properties: Mappings,
    message_id: Ids,
    priority: int | Sequence[int],
    ttl: Seconds,
    delay: Seconds,
    persistent: bool | Sequence[bool],
) -> Publish:
    """What a face was given. PLAIN for nothing, which most publishes say, costs no object."""
    if (
        headers is None
        and ttl is None
        and properties is None
        and message_id is None
        and delay is None
        and persistent is True
        and type(priority) is int
        and priority == 0
    ):
        return PLAIN
    return Publish(headers, properties, message_id, priority, ttl, delay, persistent)
