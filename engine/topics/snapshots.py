"""A snapshot of something that the topic worker keeps, which the log says, too: it says from where on a start has to
read the log. Groups of readers and messages that come later have one each.

A file, replaced as a whole by a thread of its own, so that nobody waits for the disk. It is a cache of the log: one
that is damaged is set aside and named, one that is missing is named, and all is read from the log again. What a log
that does not begin at 0 has no more is lost then: its owner knows what that is, and says it.

What is in it, as of when, and when another one is due, its owner says.
Invariant: one is written at a time, so the newest one wins.
Crash points: between two steps of writing it (atomic_file) the old one is there, and more log is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.file_maker import FileMaker
from warren.engine.saying import Say
from warren.engine.topics import foreign

AGAIN_S = 1.0  #: until one that could not be written is tried again


def log_from(first: int) -> str:
    """The log that begins there, in words."""
    return f"log of topics, which begins at position {first:,}" if first else "whole log of topics"


class Unreadable(Exception):
    """It is no snapshot; says why."""


class Copy(Protocol):
    """What goes into one: nobody changes it, because a thread writes it."""

    @property
    def position(self) -> int:
        """What the log says below is in it."""


Copied = TypeVar("Copied", bound=Copy)
Found = TypeVar("Found")


@dataclass
class Snapshot(Generic[Copied]):
    """The file, and who writes it."""

    path: Path
    what: str  #: is in it, in words
    encode: Callable[[Copied], bytes]  #: on any thread
    kick: Callable[[], None]  #: the serving thread hears that one was written, or not
    say: Say
    reached: Callable[[], None] = lambda: None  #: it has its name
    saved: int = -1  #: position of the file; -1: there is none that counts
    size: int = 0  #: of the file, bytes
    refused: bool = False  #: the last one could not be written
    writing: bool = field(default=False, init=False)
    _again_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.writer: FileMaker[Copied, tuple[int, int]] = FileMaker(self._write, self.kick)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, decode: Callable[[bytes], Found], expected: bool, first: int) -> Found | None:
        """What `decode` makes of it, which raises Unreadable; None: there is none. What is no snapshot is set aside.
        `expected`: say so when there is no file; `first`: where the log begins. The position in it is the owner's to
        note. Raises OSError.
        """
        again = f"{self.what} are read from the {log_from(first)}"
        try:
            found = self._decoded(decode)
        except FileNotFoundError:
            if expected:
                self.say(f"{self.path} is missing: {again}", WARNING)
            return None
        except Unreadable as why:
            aside = foreign.set_aside(self.path)
            self.say(f"{self.path} is damaged ({why}): it was moved to {aside.name}, and {again}", ERROR)
            return None
        return found

    def _decoded(self, decode: Callable[[bytes], Found]) -> Found:
        try:
            file = foreign.read(self.path)
        except IsADirectoryError as error:
            raise Unreadable(error.strerror) from error
        found = decode(file)
        self.size = len(file)
        return found

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, copied: Copied) -> tuple[int, int]:
        """On the writer's thread, too. Its position and size. Raises StoreError."""
        file = self.encode(copied)
        atomic_file.replace(self.path, file)
        self.reached()
        return copied.position, len(file)

    def save(self, copied: Copied) -> None:
        """Write one now, while nobody else does. Raises StoreError."""
        self.saved, self.size = self._write(copied)

    def may_write(self, now: float) -> bool:
        """None is being written, and it is not too early to try again."""
        return not self.writing and now >= self._again_at

    def want(self, copied: Copied) -> None:
        """Have one written."""
        self.writing = True
        self.writer.want(copied)

    def take(self) -> bool:
        """Hear of what the thread has written. False: one could not be written, and another one is to be wanted."""
        if self.writer.crash is not None:
            raise self.writer.crash
        good = True
        while self.writer.made:
            _copied, made = self.writer.made.popleft()
            self.writing = False
            if isinstance(made, StoreError):
                if not self.refused:
                    self.say(f"no new snapshot of the {self.what}, tried again: {made}", WARNING)
                self.refused, self._again_at, good = True, time.monotonic() + AGAIN_S, False
            else:
                self.refused = False
                self.saved, self.size = made
        return good

    # -- end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop the writer's thread."""
        self.writer.stop()
        if self.writer.ident is not None:
            self.writer.join()

    def close(self, last: Callable[[], Copied | None]) -> None:
        """Nobody is served any more: hear of what was written, then write the last one, if `last` has one. Without it
        the next start reads more of the log.
        """
        self.end()
        self.take()
        copied = last()
        if copied is None:
            return
        try:
            self.save(copied)
        except StoreError as error:
            self.say(f"no last snapshot of the {self.what}: {error}", WARNING)
