"""Messages of kombu as messages of Warren, and back.

Headers and properties of AMQP are those of Warren, so a task that was published here can be taken by AMQP, by
`warren peek`, or by a program that calls `queue.get`, and the other way round. Properties that AMQP does not have stay
behind, as with every AMQP library.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any

from kombu.message import Message as KombuMessage

from warren.engine.amqp.names import amqp_name
from warren.engine.catalog import metadata
from warren.engine.catalog.arguments import PRIORITY_MAX
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.faces.message import Message

_TEXTS = ("correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")
#: delivery modes of AMQP
TRANSIENT, PERSISTENT = 1, 2


class Outgoing:
    """A message that is about to be published."""

    __slots__ = ("body", "headers", "priority", "properties", "persistent", "ttl", "eta")

    def __init__(
        self,
        body: str | bytes,
        priority: int | None,
        content_type: str | None,
        content_encoding: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        given = properties or {}
        self.body = body.encode(_encoding(content_encoding)) if isinstance(body, str) else body
        self.headers = dict(headers) if headers else None
        self.priority = min(max(int(priority or 0), 0), PRIORITY_MAX)
        self.properties: dict[str, Any] = {name: given[name] for name in _TEXTS if given.get(name) is not None}
        if content_type is not None:
            self.properties["content_type"] = content_type
        if content_encoding is not None:
            self.properties["content_encoding"] = content_encoding
        moment = given.get("timestamp")
        if moment is not None:
            self.properties["timestamp"] = moment.timestamp() if isinstance(moment, datetime.datetime) else moment
        self.persistent = given.get("delivery_mode") != TRANSIENT
        expiration = given.get("expiration")
        self.ttl = None if expiration is None else _ttl(expiration)
        self.eta = self.headers.get("eta") if self.headers and "task" in self.headers else None

    @property
    def delay(self) -> float | None:
        """Seconds until the task is due; None when it is."""
        if not self.eta:
            return None
        try:
            due = datetime.datetime.fromisoformat(self.eta)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the header eta of the task is no time: {shown(self.eta)}") from error
        if due.tzinfo is None:
            due = due.replace(tzinfo=datetime.UTC)
        left = due.timestamp() - time.time()
        return left if left > 0 else None

    def plainer(self) -> bool:
        """Tuples of the headers become lists, as in every serializer of Celery; whether there were any."""
        if not self.headers:
            return False
        before, self.headers = self.headers, {name: _listed(value) for name, value in self.headers.items()}
        return before != self.headers


def _encoding(name: str | None) -> str:
    return "utf-8" if name in (None, "binary") else name


def _ttl(expiration: Any) -> float:
    try:
        milliseconds = int(expiration)
    except (TypeError, ValueError) as error:
        raise UsageError(f"expiration must be a number of milliseconds, not {shown(expiration)}") from error
    return max(0.001, milliseconds / 1000)


def _listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return value


def incoming(channel: Any, message: Message, tag: int, consumer_tag: str | None) -> KombuMessage:
    """What a consumer of kombu gets."""
    meta = message.meta
    exchange, routing_key = "", message.queue.name
    told = metadata.decode(meta) if meta is not None else None
    if told is not None:
        exchange, routing_key = told.exchange, told.routing_key
    properties = dict(told.properties) if told is not None and told.properties else {}
    properties["delivery_mode"] = PERSISTENT if message.persistent else TRANSIENT
    properties["priority"] = message.priority
    info: dict[str, Any] = {
        "delivery_tag": tag,
        "redelivered": message.redelivered,
        "exchange": amqp_name(exchange)[1],
        "routing_key": routing_key if exchange else amqp_name(routing_key)[1],
        "priority": message.priority,
    }
    if consumer_tag is not None:
        info["consumer_tag"] = consumer_tag
    return KombuMessage(
        body=message.body,
        delivery_tag=tag,
        content_type=properties.get("content_type"),
        content_encoding=properties.get("content_encoding"),
        delivery_info=info,
        properties=properties,
        headers=dict(told.headers) if told is not None and told.headers else {},
        channel=channel,
    )
