"""What is said of a message when it is published, besides its body and where it goes.

Faces take these as keyword arguments and make one Publish of them; what the core is given (delivery options, packed
metadata) is made here. Of many messages each value is one for all, or a list or tuple with one for each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import msgspec

from warren.engine.catalog import metadata
from warren.workers.client.arguments import level_of

# a body: bytes, bytearray, memoryview, arrays, …: whatever has contiguous memory
if sys.version_info >= (3, 12):
    from collections.abc import Buffer as Body
elif TYPE_CHECKING:
    from typing_extensions import Buffer as Body
else:
    Body = bytes | bytearray | memoryview

__all__ = ["Batch", "Body", "Durability", "PLAIN", "Publish", "PublishManyOptions", "PublishOptions", "publish_options"]

#: what a confirm means: accepted, handed to the operating system, on stable storage
Durability = Literal["none", "written", "synced"]
Mappings = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
Ids = str | bytes | Sequence[str | bytes | None] | None
Seconds = float | Sequence[float | None] | None


class PublishOptions(TypedDict, total=False):
    """Keywords of every face that publishes one message, for type checkers; `warren.Queue.put` explains them."""

    priority: int
    ttl: float | None
    delay: float | None
    message_id: str | bytes | None
    properties: Mapping[str, object] | None
    persistent: bool


class PublishManyOptions(TypedDict, total=False):
    """The same of many messages: one value for all, or a list or tuple with one for each."""

    priority: int | Sequence[int]
    ttl: Seconds
    delay: Seconds
    message_id: Sequence[str | bytes | None] | None
    properties: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None
    persistent: bool | Sequence[bool]


_NOT_KEPT = "persistent=False was given"  #: why nothing is durable, for an error


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
        """The level of a durability; `what`: why it is not `durable`, when it is not. Raises UsageError."""
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

    def batch(self, count: int, queue: str) -> Batch:
        """What is said of `count` messages of a queue, checked and packed, before any of them is sent. Raises
        UsageError, MessageTooLarge.
        """
        options = self.options_each(count)
        if self.is_same:
            return Batch(options, self.packed("", queue))
        nothing = (None, None, None)
        told = self.told_each(count)
        return Batch(options, [None if row == nothing else metadata.encode("", queue, *row) for row in told])


class Batch(NamedTuple):
    """What is said of many messages, as the core takes it: one for all, or a list with one for each."""

    options: metadata.Options | list[metadata.Options | None] | None
    meta: bytes | list[bytes | None] | None

    def meta_bytes(self, count: int) -> list[int]:
        """Bytes of the metadata of each of `count` messages."""
        if isinstance(self.meta, list):
            return [len(item or b"") for item in self.meta]
        return [len(self.meta or b"")] * count

    def part(self, start: int, end: int) -> Batch:
        """The same of some of them."""
        options, meta = self.options, self.meta
        return Batch(
            options[start:end] if isinstance(options, list) else options,
            meta[start:end] if isinstance(meta, list) else meta,
        )


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
