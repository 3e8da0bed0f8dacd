"""What messages died of, as a program said before it rejected them: the headers of their dead letters tell it.

It is held in memory, of the newest deaths, until the letter is forwarded. Without room, or when the worker is killed in
between, a text is lost, and no message.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

#: characters of one text, and of all of them
CAUSE_MOST = 1000
CAUSES_MOST = 4 << 20


class Causes:
    """By queue and id of the message. One thread notes, another one looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[tuple[int, bytes], str] = OrderedDict()
        self._size = 0

    def note(self, queue: int, message: bytes, text: str) -> None:
        """A message of a queue is about to die of this."""
        with self._lock:
            self._drop(queue, message)
            self._texts[queue, message] = text[:CAUSE_MOST]
            self._size += len(self._texts[queue, message])
            while self._size > CAUSES_MOST:
                self._size -= len(self._texts.popitem(last=False)[1])

    def of(self, queue: int, message: bytes) -> str | None:
        """What a message of a queue died of, if that was said."""
        with self._lock:
            return self._texts.get((queue, message))

    def forget(self, queue: int, message: bytes) -> None:
        """Its letter is where it was to go."""
        with self._lock:
            self._drop(queue, message)

    def _drop(self, queue: int, message: bytes) -> None:
        self._size -= len(self._texts.pop((queue, message), ""))
