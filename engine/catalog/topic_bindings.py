"""A topic bound to an exchange: each message that the binding matches is appended to the topic's log, beside the queues
that it goes to.

    key, tag    what of a message becomes the key and the tag of its record:
                routing_key       the routing key
                message_id, …     a property of the message (metadata.PROPERTIES)
                header:NAME       a header
                ''                nothing: the record has none

Invariants
  A topic has one binding for each exchange, routing key and conditions: what makes keys and tags is no part of which
  binding it is.
  A record has a key only if the message has what the binding names, as text or a number. How that is written:
  workers/client/carried.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from warren.engine.catalog.metadata import PROPERTIES
from warren.engine.catalog.names import NAME_BYTES_MAX
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import UsageError
from warren.engine.saying import shown

#: what becomes key and tag when nothing is said
KEY, TAG = "message_id", "routing_key"
ROUTING_KEY = "routing_key"
HEADER = "header:"


class Place(NamedTuple):
    """Which binding of a topic one is."""

    exchange: str
    routing_key: str
    conditions: str


class TopicBinding(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Messages of an exchange whose routing key (headers exchange: whose headers) match are appended to the topic.
    `conditions`: as those of a binding of a queue.
    """

    exchange: str
    topic: str
    routing_key: str
    conditions: str = ""
    key: str = KEY
    tag: str = TAG

    @property
    def place(self) -> Place:
        """Which binding of its topic this is."""
        return Place(self.exchange, self.routing_key, self.conditions)

    @property
    def arguments(self) -> dict[str, Any]:
        """What a headers exchange compares with the headers of a message, and `x-match`."""
        found: dict[str, Any] = msgspec.json.decode(self.conditions) if self.conditions else {}
        return found


class TopicRoute(NamedTuple):
    """A topic that a message goes to, and what makes its key and tag there."""

    topic: TopicDeclaration
    key: str
    tag: str


def checked_source(what: str, source: object) -> str:
    """What becomes the key or the tag (`what`) of a record, '' for None. Raises UsageError."""
    if source is None or source == "":
        return ""
    if isinstance(source, str):
        text = str.__str__(source)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            size = NAME_BYTES_MAX + 1
        if size <= NAME_BYTES_MAX and (
            text == ROUTING_KEY or text in PROPERTIES or (text.startswith(HEADER) and text != HEADER)
        ):
            return text
    raise UsageError(
        f"{what} must be routing_key, {', '.join(PROPERTIES)}, header:NAME (at most {NAME_BYTES_MAX} bytes) or None, "
        f"not {shown(source)}"
    )
