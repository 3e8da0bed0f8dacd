"""Holds: ranges of topics that retention leaves alone while somebody is going to read them (engine/topics/holds.h).

Invariants: the word of this client's slot is the lowest position of all its holds, plus 1; 0 when it has none. It is
written before anybody looks whether the range is still there. A child of fork is another client: it holds nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from warren.engine import _core
from warren.engine.errors import TimedOut

if TYPE_CHECKING:
    from warren.workers.client.attachment import Attachment

#: for so long retention may say that it is about to remove what is to be held; it takes milliseconds
CLOSING_S = 10.0


class Holds:
    """What one attachment holds."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._positions: dict[int, int] = {}
        self._next = 0

    def add(self, position: int) -> int:
        """Hold what lies at a position, and behind it: a number for `drop`. Nothing is promised before `settle`."""
        with self._lock:
            self._next += 1
            self._positions[self._next] = position
            self._write()
            return self._next

    def drop(self, number: int) -> None:
        """Once, or again."""
        with self._lock:
            if self._positions.pop(number, None) is not None:
                self._write()

    def lost(self) -> bool:
        """Whether nothing is held any more: the node has ended since, or this is a child of fork."""
        attachment = self._attachment
        if os.getpid() != self._pid or attachment.core.over:
            return True
        if attachment.forsaken():
            attachment.lose()
            return True
        return False

    def _write(self) -> None:
        attachment = self._attachment
        if os.getpid() != self._pid or attachment.core.over:
            return  # the slot is another's, or nobody's
        word = min(self._positions.values(), default=-1) + 1
        _core.topic_hold(attachment.superblock.buffer, attachment.slot.slot, word)


_OF: weakref.WeakKeyDictionary[Attachment, Holds] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def holds_of(attachment: Attachment) -> Holds:
    """The holds of an attachment."""
    with _LOCK:
        found = _OF.get(attachment)
        if found is None:
            found = _OF[attachment] = Holds(attachment)
        return found


def settle(reader: _core.TopicReader, position: int) -> None:
    """Wait until retention has seen the hold of a position, or has taken what lies there. Raises TimedOut."""
    until = time.monotonic() + CLOSING_S
    while reader.closing() > position:
        if time.monotonic() >= until:
            raise TimedOut("retention is about to remove these messages, and does not come to an end: try again")
        time.sleep(0.001)


class Hold:
    """A range of a queue of a topic that stays: `queue`, `start`, `end`. A context."""

    def __init__(self, holds: Holds, number: int, queue: int, start: int, end: int) -> None:
        self.queue, self.start, self.end = queue, start, end
        self._holds, self._number = holds, number

    def __repr__(self) -> str:
        return f"<Hold of queue {self.queue}, offsets {self.start} to {self.end}>"

    def lost(self) -> bool:
        """Whether the node that kept the range has ended, and the hold with it."""
        return self._holds.lost()

    def release(self) -> None:
        """Let it go."""
        self._holds.drop(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.release()
