"""Sessions of members of groups of readers: does a member's process run, and does its program call? Members write that
into rows in shared memory (topics/rows.h), which does not wake the worker.

A member loses its queues (groups.py: `expire`) when its process does not beat for `session_s`, or its program does not
call for `poll_s`.

Invariants
  Time passes only while the worker serves: a stop of the worker, or of the machine, counts for no member. So a member
  always has its full time.
  A request counts as a beat and as a call. A member without a row (there are TOPIC_MEMBERS_MAX, and shared memory may
  be full) is judged by its requests alone: `session_s` does not count then, and it asks once a second
  (client/group_member.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.topics.group_rows import NO_ROW, digest
from warren.engine.topics.groups import Member
from warren.engine.topics.offsets import Key

MEMBERS_MAX = PROTOCOL["TOPIC_MEMBERS_MAX"]
#: between two looks of the worker no more time passes than this, however long it takes
STEP_S = 1.0


class Rows(Protocol):
    """The owner of the rows (_core.TopicServer)."""

    def give_member(self, row: int, member: int, group: int, called: int, /) -> bool:
        """False: shared memory is full."""

    def member(self, row: int, /) -> tuple[int, int]:
        """Beats and calls of a row that was given."""


@dataclass
class _Session:
    group: int  #: its digest
    number: int  #: in its row
    session_s: float | None
    poll_s: float | None
    beat_at: float
    called_at: float
    row: int = NO_ROW
    beats: int = 0
    calls: int = 0


@dataclass
class Sessions:
    """Those of all members of all groups."""

    rows: Rows
    most: int = MEMBERS_MAX
    clock: float = 0.0  #: seconds for which this worker has served
    _sessions: dict[tuple[Key, Member], _Session] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _used: int = 0
    _drawn: int = 0
    _passed: float | None = None

    def pass_time(self, now: float) -> None:
        """It is `now`, by the system's clock."""
        if self._passed is not None:
            self.clock += min(now - self._passed, STEP_S)
        self._passed = now

    def heard(self, key: Key, member: Member) -> None:
        """A member has sent a request."""
        session = self._sessions.get((key, member))
        if session is not None:
            session.beat_at = session.called_at = self.clock
            self._show(session)

    def begin(self, key: Key, member: Member, session_s: float | None, poll_s: float | None) -> tuple[int, int]:
        """A member has joined, or has new limits. Returns its row (NO_ROW: none is free), and its number there."""
        session = self._sessions.get((key, member))
        if session is None:
            self._drawn += 1
            session = _Session(digest(key), self._drawn, None, None, self.clock, self.clock)
            self._sessions[key, member] = session
        session.session_s, session.poll_s = session_s, poll_s
        if session.row == NO_ROW:
            self._give(session)
        self.heard(key, member)
        return session.row, session.number

    def end(self, key: Key, member: Member) -> None:
        """The member has left."""
        session = self._sessions.pop((key, member), None)
        if session is not None and session.row != NO_ROW:
            self.rows.give_member(session.row, 0, 0, 0)
            self._free.append(session.row)

    def keep(self, slots: set[tuple[int, int]]) -> None:
        """End the sessions of all clients but these (slot, generation)."""
        for key, member in list(self._sessions):
            if (member.slot, member.generation) not in slots:
                self.end(key, member)

    def forget(self, key: Key) -> None:
        """The group is gone."""
        for other, member in list(self._sessions):
            if other == key:
                self.end(key, member)

    def age(self, key: Key, member: Member) -> float:
        """Seconds since its last call was seen."""
        session = self._sessions.get((key, member))
        return 0.0 if session is None else self.clock - session.called_at

    def over(self) -> list[tuple[Key, Member, str]]:
        """Read all rows. Returns the members that exceeded a limit, each with a text for its reader."""
        found = []
        for (key, member), session in self._sessions.items():
            self._look(session)
            silent, idle = self.clock - session.beat_at, self.clock - session.called_at
            if session.row != NO_ROW and session.session_s is not None and silent >= session.session_s:
                found.append((key, member, _silent(silent, session.session_s)))
            elif session.poll_s is not None and idle >= session.poll_s:
                found.append((key, member, _idle(idle, session.poll_s)))
        return found

    def _look(self, session: _Session) -> None:
        if session.row == NO_ROW:
            return
        beats, calls = self.rows.member(session.row)
        if beats != session.beats:
            session.beats, session.beat_at = beats, self.clock
        if calls != session.calls:
            session.calls, session.called_at = calls, self.clock
            self._show(session)

    def _give(self, session: _Session) -> None:
        if not self._free and self._used == self.most:
            return
        row = self._free.pop() if self._free else self._used
        self._used = max(self._used, row + 1)
        session.row = row
        if not self._show(session):
            self._free.append(row)
            session.row = NO_ROW
            return
        session.beats, session.calls = self.rows.member(row)  # left there by another member

    def _show(self, session: _Session) -> bool:
        return session.row == NO_ROW or self.rows.give_member(
            session.row, session.number, session.group, time.monotonic_ns()
        )


def _silent(silent: float, limit: float) -> str:
    return (
        f"the last sign of life of its process is {silent:.1f} s old (it was stopped, frozen, or without a processor), "
        f"and session_timeout is {limit:g} s: give topic.reader(session_timeout=…) more, if that is to be waited for"
    )


def _idle(idle: float, limit: float) -> str:
    return (
        f"its program made no call of the reader for {idle:.1f} s, and max_poll_interval is {limit:g} s: take fewer "
        "messages at once, or give topic.reader(max_poll_interval=…) more"
    )
