"""Messages that are to come later: their snapshot (`topics/later`), and what is said of them.

What is pending is in the core's memory (engine/topics/pending.h), and is what the log says: records of messages that
are to come, and records by which they came. When a snapshot of it is written, kept.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import ERROR
from typing import ClassVar

from warren.engine.topics.kept import Copied, Kept


@dataclass
class Later(Kept):
    """The snapshot, and what is said of messages that are to come."""

    WHAT: ClassVar[str] = "messages that come later"
    LOST: ClassVar[str] = "those that were to come are lost there, and those that had come may come again"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unreadable = 0

    def _take_up(self, file: bytes) -> tuple[int, int, int]:
        return self.server.later_read(file)

    def _walk(self, anew: bool, position: int, epoch: int, number: int) -> tuple[int, int]:
        return self.server.later_walk(anew, position, epoch, number)

    def _copy(self) -> Copied:
        return Copied(*self.server.later_copy())

    def _encode(self, copied: Copied, epoch: int) -> bytes:
        return self.server.later_encode(self.node, copied.position, epoch, copied.number, copied.content)

    def _lowest(self) -> int | None:
        return self.server.later_lowest()

    def on_timer(self, now: float) -> None:
        super().on_timer(now)
        counters = self.server.counters()
        if counters["unreadable"] != self._unreadable:
            self._unreadable = counters["unreadable"]
            self.say(
                "a message that is due cannot be read, at position "
                f"{counters['unreadable_at']:,} of the log of topics: it is tried again each minute; "
                "`warren check` says what is damaged",
                ERROR,
            )
