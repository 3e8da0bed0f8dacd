"""One message in hand, as a program sees it: what it carries besides its body, and how it is acked.

A message belongs to the attachment that it was delivered to. When that is over the message returns to its queue, and
ack() says so. So it does when the queue's ack_timeout has run out.
"""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn, Self

from warren.engine import _core
from warren.engine.catalog import amqp_metadata, metadata
from warren.engine.errors import AckTimedOut, UsageError
from warren.engine.saying import beginning, counted


def check_held(message: _core.Delivery) -> None:
    """Raises UsageError for a message that `with` could not ack at its end."""
    if message.browsed:
        raise UsageError(
            "`with` acks a message at its end, and this one was only looked at (browse): get or consume it"
        )


class Message(_core.Delivery):
    """One received message, to be acked.

    `body`: bytes. `headers`, `properties`, `exchange`, `routing_key`: as it was published; `priority` (0 to 255),
    `persistent`. `message_id`: the engine's id, 16 bytes, by whose hex logs name the message; the publisher's is
    `properties["message_id"]`. `delivery_tag`: its position in the queue. `redelivered`: perhaps seen before;
    `delivery_count`: deliveries before this one. `settled`, `timed_out`, `browsed`: what became of it here. `reason`:
    why it is a dead letter: 1 rejected, 2 expired, 3 maximum length, 4 delivery_limit (0: it is none). `amqp`: all its
    properties in AMQP's types, if it came by AMQP.

    `view()` is the body as a read-only memoryview, for numpy or Arrow: no copy, and valid for as long as something
    refers to it, also after the ack.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """A message cannot be pickled: TypeError."""
        raise TypeError(
            "a message stays in the process that received it, which acks it: give others its body, or the queue to "
            "receive from themselves"
        )

    @property
    def exchange(self) -> str:
        """The exchange it was published to; '' is the default exchange."""
        return metadata.decode(self.meta).exchange if self.meta is not None else ""

    @property
    def routing_key(self) -> str:
        """The routing key it was published with."""
        return metadata.decode(self.meta).routing_key if self.meta is not None else str(self.queue.name)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was published with; empty if there were none."""
        return (metadata.decode(self.meta).headers or {}) if self.meta is not None else {}

    @property
    def properties(self) -> dict[str, Any]:
        """The properties it was published with (content_type, correlation_id, message_id, …), without those that were
        not set.
        """
        return (metadata.decode(self.meta).properties or {}) if self.meta is not None else {}

    @property
    def amqp(self) -> dict[str, Any] | None:
        """All properties of a message that came by AMQP by their names there, `headers` among them, with AMQP's types
        (warren.engine.amqp.values); None: it did not.
        """
        found = None if self.meta is None else metadata.decode(self.meta).amqp
        return None if found is None else amqp_metadata.all_of(found)

    @property
    def content_type(self) -> str | None:
        """Property content_type."""
        return self.properties.get("content_type")

    @property
    def correlation_id(self) -> str | bytes | None:
        """Property correlation_id."""
        return self.properties.get("correlation_id")

    @property
    def reply_to(self) -> str | None:
        """Property reply_to: where the answer goes, as the routing key of the default exchange."""
        found = self.properties.get("reply_to")
        return found.decode(errors="replace") if isinstance(found, bytes) else found

    @property
    def timestamp(self) -> float | None:
        """Property timestamp, seconds since 1970."""
        return self.properties.get("timestamp")

    @property
    def app_id(self) -> str | None:
        """Property app_id."""
        return self.properties.get("app_id")

    @property
    def type(self) -> str | None:
        """Property type."""
        return self.properties.get("type")

    def nack(self, requeue: bool = True, multiple: bool = False, *, delay: float | None = None) -> None:
        """Return it to its place in the queue (marked redelivered), or drop it.

        `delay` (seconds): nobody receives it before; it keeps its place, its identity and its delivery_count. The
        delay outlives a restart, a clean stop and a kill; a message that is not persistent forgets it with itself.

        Raises AckTimedOut (as ack and reject do) if the queue's ack_timeout ran out before: it went back already.
        """
        if delay is None:
            super().nack(requeue, multiple)
        elif not requeue or multiple:
            raise UsageError("delay is for one message that returns to its queue: give it without requeue and multiple")
        else:
            self.nack_until(metadata.due_after(delay))

    def __enter__(self) -> Self:
        check_held(self)
        return self

    def __exit__(self, error: object, _value: object, _trace: object) -> None:
        """Ack it; after an exception, return it to its queue. What was acked or nacked inside stays so."""
        if self.settled:
            return
        if error is None:
            self.ack()
        else:
            with contextlib.suppress(AckTimedOut):  # it is back already
                self.nack()

    def reject(self) -> None:
        """Drop it or, if its queue has a dead_letter_exchange, dead-letter it: nack(requeue=False)."""
        self.nack(requeue=False)

    def __repr__(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        size = counted(len(self.body), "byte")
        return f"<Message {self.delivery_tag} of {self.queue.name!r}, {size}: {beginning(self.body)}{again}>"
