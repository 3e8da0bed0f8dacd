"""The thread that shows that this process runs: every few seconds it stores a beat in shared memory for each member of
a group of readers (engine/topics/sessions.py reads it).

Invariants
  The thread runs while there is a member, and waits for nothing but its own clock: a program that hangs does not stop
  it. Members are held weakly. A child of fork has neither members nor the thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from warren.engine.errors import SystemLimit

#: between two beats at most, as in Kafka
BEAT_S = 3.0
#: beats in the shortest limit of a member
PER_LIMIT = 4
_NO_THREAD = "a reader of a group needs a thread, and the system has none left: see `ulimit -u` and the pids limit"


class Beating(Protocol):
    """A member, or several with the same program."""

    _beat_s: float  #: between two beats

    def _beat_now(self) -> None:
        """The process runs."""


def beat_s_of(*limits: float | None) -> float:
    """How often to beat so that none of these times runs out."""
    return min([BEAT_S, *(limit / PER_LIMIT for limit in limits if limit is not None)])


class Beats:
    """All members that beat in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._all: weakref.WeakSet[Beating] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, beating: Beating) -> None:
        """It beats from now on, until it is removed, or forgotten. Raises SystemLimit."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="warren-beats", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    raise SystemLimit(_NO_THREAD) from None
                self._thread = thread
            self._all.add(beating)
        self._more.set()  # it may have to be sooner than the others

    def remove(self, beating: Beating) -> None:
        """It beats no more."""
        with self._lock:
            self._all.discard(beating)
        self._more.set()

    def _run(self) -> None:
        while True:
            self._more.clear()
            with self._lock:
                beating = list(self._all)
                if not beating:
                    self._thread = None
                    return
            pause = min(each._beat_s for each in beating)
            for each in beating:
                each._beat_now()
            del beating, each
            self._more.wait(pause)


_beats = Beats()


def beats() -> Beats:
    """Those of this process."""
    return _beats


def _in_child() -> None:
    global _beats
    _beats = Beats()


os.register_at_fork(after_in_child=_in_child)
