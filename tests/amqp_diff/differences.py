"""Where the gateway's transcript is meant to differ from RabbitMQ's: `differences.json` has for each such case the
reason, its row in docs/amqp.md, and the gateway's lines in place of recorded ones, which are counted from 0.
"""

import json
from pathlib import Path
from typing import NamedTuple


class Difference(NamedTuple):
    """Why, where docs/amqp.md says so (the beginning of a row), and which lines stand in the transcript instead."""

    reason: str
    page: str
    instead: dict[int, list[str]]

    def applied(self, lines: list[str]) -> list[str]:
        """The recorded transcript with these differences."""
        return [one for number, line in enumerate(lines) for one in self.instead.get(number, [line])]


DIFFERENCES = {
    case: Difference(found["reason"], found["page"], {int(number): lines for number, lines in found["instead"].items()})
    for case, found in json.loads(Path(__file__).with_name("differences.json").read_text()).items()
}
