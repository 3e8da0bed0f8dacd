"""What ends a channel or a connection, in RabbitMQ's words.

A fault is raised where it is found, and answered by channel.close or connection.close where methods are dispatched.
`text` is what comes after the name of the reply code: `ACCESS_REFUSED - access to queue …`.
"""

from __future__ import annotations

from warren.engine.amqp import spec


class Fault(Exception):
    """Base of both: `code`, `text`, and `said`, the reply text as it is sent."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    @property
    def said(self) -> str:
        """The reply text: the name of the code, and what happened."""
        return f"{spec.REPLIES[self.code].name} - {self.text}"

    def __str__(self) -> str:
        return f"{self.code} {self.said}"


class ChannelFault(Fault):
    """The channel is closed by the gateway; the others of its connection go on."""


class ConnectionFault(Fault):
    """The connection is closed by the gateway."""
