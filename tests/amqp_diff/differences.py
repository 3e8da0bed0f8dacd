"""Where the gateway's transcript is meant to differ from RabbitMQ's: the case, the reason, and the gateway's lines.

docs/amqp.md names each of them for users. A case that stands here and does not differ fails.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Why, and which lines stand in the transcript instead."""

    reason: str
    #: recorded line (as it stands, or its beginning up to a `…`), and what stands in its place; None: there is none
    instead: tuple[tuple[str, str | None], ...]


DIFFERENCES: dict[str, Difference] = {}
