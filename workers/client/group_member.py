"""A member of a group of readers of a topic, as its client has it: what it asks the topic worker, and how it hears that
something has changed.

    topics/control.py      the requests
    topics/group_rows.py   the stamp in shared memory, which is another one after each change
    faces/topic_reader.py  the reader, who has the messages

Life: the first `sync` joins; `leave` goes. Whoever has no client any more is gone for the worker, too. Who was silent
for too long is told so (SessionExpired) until it has said `expired`; its next `sync` joins again.
Invariants
  What the worker has given lies in `held`, with the generation in which it was given: a commit names it.
  `changed` is a load of shared memory; whether there is another worker, or another attachment, `look` sees. What is
  looked at of a worker that is dead never changes; its successor, who is asked then, is told what it had given.
Crash points: a request without an answer may have been executed. Asking again does the same again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.errors import Error, TimedOut
from warren.engine.queues.control import AnswerOf
from warren.engine.topics import control
from warren.engine.topics.group_rows import NO_ROW

if TYPE_CHECKING:
    from warren.workers.client.client import Client
    from warren.workers.client.topic_place import TopicPlace

#: how often a group is asked for changes that has no row in shared memory, or whose member has none
ASK_S = 1.0
#: pause before an attachment is tried again that another thread has just ended
PAUSE_S = 0.001
#: how long a reader that was forgotten waits for the worker
LEAVE_S = 1.0
_NUMBER_BITS = 53  #: a whole number in every reader of JSON
#: a row that there is not (topics/rows.h)
NOWHERE = (1 << 32) - 1
#: row and stamp of no group
NO_GROUP = (NOWHERE, 0)


class Member:
    """One reader in a group; used by one thread at a time."""

    def __init__(
        self, client: Client, topic: int, group: str, session_s: float | None = None, poll_s: float | None = None
    ) -> None:
        """`session_s`, `poll_s`: after so much silence of its process, or of its program, it loses its queues; None:
        never."""
        self.held: dict[int, int] = {}  #: queue → generation, of what is its own
        self.row = NO_GROUP  #: row and stamp of the group in shared memory
        self._client = client
        self._topic = topic
        self._group = group
        self._number = int.from_bytes(os.urandom(8), "little") >> (64 - _NUMBER_BITS)
        self._place: TopicPlace | None = None
        self._watch: _core.TopicWatch | None = None
        self._asks = False  # by the clock
        self._ask_at = 0.0
        self._limits = (session_s, poll_s)
        self._rejoins = False

    @property
    def joined(self) -> bool:
        """Whether the worker has said what is its own, and nothing is known to be otherwise."""
        return self._place is not None

    # -- hearing ------------------------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether the group has changed since the last sync, as far as shared memory says."""
        return self._watch is not None and self._watch.changed()

    def look(self) -> bool:
        """The same, and whether the worker or the attachment is another one, or it has not joined yet. Raises
        ClosedError, PeerLost."""
        if self._place is None or self.changed():
            return True
        with contextlib.suppress(AttachmentLost):  # another thread has ended it just now
            if self._client.attachment().topics() is self._place:
                return self._asks and time.monotonic() >= self._ask_at
        return True

    # -- asking -------------------------------------------------------------------------------------------------

    def sync(self, offsets: Mapping[int, int], released: Iterable[int], deadline: float | None) -> control.Assigned:
        """Ask which queues are its own, after these offsets are committed and these queues given back. Raises Fenced
        (nothing was), SessionExpired, TopicNotFound, TimedOut, PeerLost, ClosedError.
        """
        held = list(self.held.items())
        told = self._ask(
            control.SyncGroup(
                self._topic,
                self._group,
                self._number,
                held,
                self._commits(offsets),
                list(released),
                *self._limits,
                self._rejoins,
            ),
            control.Assigned,
            deadline,
        )
        self._rejoins = False
        leaving = {queue: self.held[queue] for queue in told.give_back if queue in self.held}
        self.held = leaving | {queue: generation for queue, generation, _offset in told.given}
        self._follow(told)
        return told

    def commit(self, offsets: Mapping[int, int], deadline: float | None) -> None:
        """Commit offsets of queues that are held: durable when this returns. Raises Fenced, and as `sync`."""
        commits = self._commits(offsets)
        if commits:
            request = control.CommitOffsets(self._topic, self._group, self._number, commits, self._limits[1])
            self._ask(request, control.Done, deadline)

    def leave(self, offsets: Mapping[int, int], deadline: float | None) -> None:
        """Commit, and be no member any more. Raises Fenced: it is none, and nothing was committed; and as `sync`."""
        request = control.LeaveGroup(self._topic, self._group, self._number, self._commits(offsets))
        self._ask(request, control.Done, deadline)

    def beat(self, calls: int) -> None:
        """The process runs, and the program has called so often; any thread."""
        watch = self._watch
        if watch is not None:
            watch.beat(calls)

    def expired(self) -> None:
        """It knows that it was silent for too long."""
        self.forget()
        self._rejoins = True

    def drop(self) -> None:
        """Its reader was forgotten: leave, if that is possible."""
        self.forget()
        if not sys.is_finalizing() and not self._client.closed:
            with contextlib.suppress(Error, OSError):  # then it is gone with its client
                self.leave({}, time.monotonic() + LEAVE_S)

    def forget(self) -> None:
        """Let go of shared memory."""
        self._unwatch()
        self.held = {}

    def _commits(self, offsets: Mapping[int, int]) -> list[tuple[int, int, int]]:
        return [(queue, self.held[queue], offset) for queue, offset in offsets.items() if queue in self.held]

    def _ask(self, request: control.Request, answers: type[AnswerOf], deadline: float | None) -> AnswerOf:
        while True:
            try:
                if deadline is None:
                    return self._client.ask_topics(request, answers)
                return self._client.ask_topics(request, answers, max(0.0, deadline - time.monotonic()))
            except AttachmentLost:  # asked again as another client: a member of before is gone with its client
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimedOut("the topic worker did not answer before its node was started anew") from None
                time.sleep(PAUSE_S)

    def _follow(self, told: control.Assigned) -> None:
        self._unwatch()
        self._ask_at = time.monotonic() + ASK_S
        with contextlib.suppress(AttachmentLost):
            place = self._client.attachment().topics()
            row, own = (NOWHERE if number == NO_ROW else number for number in (told.row, told.own_row))
            self._watch = place.watch(row, told.stamp, own, told.own_number)
            if self._watch is None:
                return  # the place is over: `look` sees that there is another one
            self.row = (row, told.stamp)
            self._asks = NO_ROW in (told.row, told.own_row)
            self._place = place

    def _unwatch(self) -> None:
        place, watch, self._watch, self.row = self._place, self._watch, None, NO_GROUP
        if place is not None and watch is not None:
            place.unwatch(watch)
        self._place = None
