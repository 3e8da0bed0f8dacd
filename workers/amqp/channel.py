"""What speaks for one channel."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NoReturn

from warren.engine.amqp import spec
from warren.workers.amqp.connection import Connection
from warren.workers.amqp.faults import ConnectionFault


class Channel:
    """A channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def method(self, id: int, arguments: tuple[Any, ...]) -> Awaitable[None] | None:
        """A method of the client; what it returns is awaited before the next one. Raises Fault."""
        self._refuse(id)

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        """A run of messages. Raises Fault."""
        self._refuse(spec.BASIC_PUBLISH)

    def _refuse(self, id: int) -> NoReturn:
        raise ConnectionFault(spec.NOT_IMPLEMENTED, spec.METHODS[id].name)

    def ended(self) -> None:
        """Channel or connection is over."""

    def writable(self) -> None:
        """Deliveries may be sent again."""

    def facts(self) -> dict[str, Any]:
        """For people."""
        return {}
