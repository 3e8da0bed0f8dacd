"""What the parts of a channel know of it, and what taps know of consumers: the roots below channel.py.

channel ─▶ declarations, publisher, transactions, streams ─▶ consumers ─▶ taps ─▶ (Receiver, Reader)
           each of them knows its channel as a `Speaker`
"""

from __future__ import annotations

from typing import Any, Protocol

from warren.workers.amqp.interfaces import Link
from warren.workers.amqp.taps import Taps
from warren.workers.amqp.users import User


class Speaker(Protocol):
    """A channel (channel.py)."""

    over: bool
    last_queue: str
    prefetch: int
    limit: int
    consumed: int
    delivered_n: int
    reply_name: str | None

    @property
    def connection(self) -> Link: ...
    @property
    def number(self) -> int: ...
    @property
    def taps(self) -> Taps: ...
    @property
    def user(self) -> User: ...
    @property
    def publisher(self) -> Any: ...
    @property
    def declarations(self) -> Any: ...
    @property
    def unacked(self) -> Any: ...
    def tagged(self, count: int) -> int: ...
    def send(self, id: int, arguments: tuple[Any, ...] = ()) -> None: ...
    def consumer_lost(self, consumer: Any) -> None: ...
    def take(self, tag: int) -> Any: ...
    def take_up_to(self, tag: int, tags_too: bool = False) -> list[Any]: ...
    def done(self, taken: list[Any], ack: bool, requeue: bool) -> None: ...
