"""Where the gateway's transcript is meant to differ from RabbitMQ's: the case, the reason, and the gateway's lines.

docs/amqp.md names each of them for users.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Why, and which lines stand in the transcript instead."""

    reason: str
    #: recorded lines by their number from 0, and what stands in their place; None: nothing does
    instead: dict[int, str | None]
    #: lines that follow the last one
    then: tuple[str, ...] = ()

    def applied(self, lines: list[str]) -> list[str]:
        """The recorded transcript with these differences."""
        changed = [self.instead.get(number, line) for number, line in enumerate(lines)]
        return [line for line in changed if line is not None] + list(self.then)


DIFFERENCES: dict[str, Difference] = {}
