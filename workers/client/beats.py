"""The thread by which members of groups of readers say that this process runs: a store in shared memory every few
seconds for each (engine/topics/sessions.py sees it), and nothing else.

Invariants
  It beats while there is a member, and waits on nothing but its own clock: a program that hangs does not stop it.
  Who beats is held weakly. A child of fork has no members, and no thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from warren.engine.errors import SystemLimit

#: between two beats at most, as in Kafka
BEAT_S = 3.0
#: so many beats go into the shortest time after which somebody is given up
PER_LIMIT = 4
_NO_THREAD = "the system has no thread more, and a reader of a group needs one: see `ulimit -u` and the pids limit"


class Beating(Protocol):
    """A member, or several with the same program."""

    beat_s: float  #: between two beats

    def beat(self) -> None:
        """The process runs."""


def beat_s_of(*limits: float | None) -> float:
    """How often to beat so that none of these times runs out."""
    return min([BEAT_S, *(limit / PER_LIMIT for limit in limits if limit is not None)])


class Beats:
    """Who beats in this process."""

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
            pause = min(each.beat_s for each in beating)
            for each in beating:
                each.beat()
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
