"""The rows of groups of readers in shared memory: by a stamp there a member sees that its group has changed.

A group has a row while it has members. Its stamp is another one after each change, told to whoever sleeps for messages
of the topic, and none comes again: it begins with the worker's epoch, so not after a restart either. What has changed
the member asks, and is told the stamp that it is of. Without a row (there are TOPIC_GROUPS_MAX, and shared memory may
be full) members ask by the clock.

Invariant: whoever was told a stamp sees another one after the next change, or its topic's worker is another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

from warren.engine.kernel.protocol import PROTOCOL

GROUPS_MAX = PROTOCOL["TOPIC_GROUPS_MAX"]
NO_ROW = -1
STAMP_SHIFT = 32  #: of the epoch


def digest(key: tuple[int, str]) -> int:
    """A group (topic id, name) as a word, by which `warren status` finds its members."""
    return int.from_bytes(hashlib.blake2b(f"{key[0]} {key[1]}".encode(), digest_size=8).digest(), "little")


class Told(Protocol):
    """Who writes rows (_core.TopicServer)."""

    def tell_group(self, row: int, topic: int, stamp: int, /) -> bool:
        """False: there is no memory for it."""


@dataclass
class GroupRow:
    """A group's row, and what it says."""

    topic: int
    number: int = NO_ROW
    stamp: int = 0
    generation: int = -1  #: of which the stamp is


@dataclass
class GroupRows:
    """Which rows are used."""

    server: Told
    most: int = GROUPS_MAX
    epoch: int = 0  #: of the worker
    _free: list[int] = field(default_factory=list)
    _used: int = 0
    _drawn: int = 0

    def show(self, row: GroupRow, generation: int) -> None:
        """A group with members is in this generation."""
        if generation == row.generation:
            return
        if row.number == NO_ROW:
            row.number = self._give()
        self._drawn += 1
        stamp = self.epoch << STAMP_SHIFT | self._drawn
        if row.number != NO_ROW and not self.server.tell_group(row.number, row.topic, stamp):
            self._free.append(row.number)  # of which nobody was told
            row.number = NO_ROW
        row.stamp, row.generation = stamp, generation

    def take(self, row: GroupRow) -> None:
        """The group has no members any more, or is gone: who thinks to be one hears of it."""
        if row.number != NO_ROW:
            self.server.tell_group(row.number, row.topic, 0)
            self._free.append(row.number)
        row.number, row.generation = NO_ROW, -1

    def _give(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == self.most:
            return NO_ROW
        self._used += 1
        return self._used - 1
