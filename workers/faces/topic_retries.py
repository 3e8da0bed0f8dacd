"""What a reader of a group does with messages that it could not handle: they go to the group's retry topic, come again
to one of its readers, and after so many tries lie among the group's dead letters (docs/design/028-retry-topics.md).

The retry topic is read by a reader of its own, of the same group, inside of the group's reader: its queues are shared
among the members, and what is done with it is committed, as of any topic. It is there as soon as the group has one.

Invariants
  A message is passed by its reader when it is confirmed in the retry topic, or among the dead letters: not before.
  What comes again is handed out as it stood in its topic (client/retried.py), and in the retry topic it is passed by
  the same rules as any message.
  One thread is inside: that of the reader.
Crash points: between the confirm and the commit of what was there before: the message is handed out again, besides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from warren.engine._core import AttachmentLost, Record
from warren.engine.catalog.group_topics import Kind, name_of
from warren.engine.errors import (
    DataLoss,
    InvalidName,
    NodeNotRunning,
    PeerLost,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.workers.client import retried
from warren.workers.client.retried import Appended, Stands
from warren.workers.faces.group_places import not_handed_out
from warren.workers.faces.topic_reading import named

if TYPE_CHECKING:
    from warren.engine.catalog.topics import TopicDeclaration
    from warren.workers.client.client import Client

#: of messages that come again so many are handed out in one turn, before messages of the topic get theirs
TURN = 100
#: how long a worker that stands still is not asked again
PAUSE_S = 1.0


class Inner(Protocol):
    """The reader of the retry topic, of the same group (faces/topic_reader.py)."""

    def prepare(self) -> bool:
        """Follow the group, commit what is due, and have a message to hand out, if one is there."""

    def take(self, most: int) -> list[Record]:
        """The next messages of those that are ready; none: prepare."""

    def finish(self) -> None:
        """Who asks for more is done with what it has (commit="auto")."""

    def commit(self, at: tuple[int, int] | None, deadline: float | None) -> None:
        """Commit all that was handed out, or up to the message at this queue and offset."""

    def check(self, queue: int, offset: int) -> None:
        """Was this handed out, and not retried? Raises Fenced, UsageError."""

    def was_retried(self, queue: int, offset: int) -> None:
        """This is done when all before it is."""

    def put_back(self, queue: int, offset: int) -> None:
        """A message that was handed out is handed out again."""

    def go_on(self, queue: int, offset: int) -> None:
        """Messages before this are gone: go on there."""

    def counted(self) -> tuple[int, int, int]:
        """Messages that were gone, places that were damaged, queues that were taken away, since it was asked last."""

    def beat(self, calls: int) -> None:
        """The process runs, and the program has called so often."""

    def expired(self) -> None:
        """The group's reader was silent for too long: all is others', and is joined again."""

    def close(self, timeout: float | None) -> None:
        """Leave the group."""

    def forget(self) -> None:
        """Its topic is gone, and so is the group there."""


class Retries:
    """The retry topic of a group, as one of its readers has it."""

    def __init__(
        self, client: Client, of: TopicDeclaration, group: str, make: Callable[[str], Inner], max_reconsume_times: int
    ) -> None:
        """`of`: the topic that the group reads; `make`: a reader of the retry topic of this name."""
        self._client = client
        self._of = of
        self._group = group
        self._make = make
        self._max = max_reconsume_times
        self._inner: Inner | None = None
        self._name: str | None = None  # None: no such topic can be, so no message comes again
        with contextlib.suppress(InvalidName):
            self._name = name_of("retry", of.name, group)
        self._turn = 0  # so many are handed out next, before others
        self._rests = False
        self._again_at = 0.0

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def has_turn(self) -> bool:
        """Some of them are to be handed out now."""
        return self._turn > 0

    def rests(self) -> bool:
        """Whether they had a turn since this was asked last."""
        rests, self._rests = self._rests, False
        return rests

    def finish(self) -> None:
        """Who asks for more is done with what it has (commit="auto")."""
        if self._inner is not None:
            self._inner.finish()

    def prepare(self) -> bool:
        """Follow the group, commit what is due, and see whether there is something: then it has its turn. Raises
        DataLoss (the next call goes on behind what is gone), CorruptRecord.
        """
        self._turn = 0
        inner = self._open()
        if inner is None or time.monotonic() < self._again_at:
            return False
        try:
            self._turn = TURN if inner.prepare() else 0
        except TopicNotFound:  # it was deleted with the group
            self._drop()
        except (TimedOut, PeerLost) as error:  # the worker stands still or is restarted; what can be read is read
            if isinstance(error, NodeNotRunning):
                raise
            self._again_at = time.monotonic() + PAUSE_S
        except DataLoss as error:
            inner.go_on(error.queue, error.minimum)
            error.__notes__ = ["these were messages that came again; the next call goes on behind them"]
            raise
        return self._turn > 0

    def take(self, most: int) -> list[Record]:
        """The next ones of those that are ready; none: prepare."""
        found = [] if self._inner is None else self._inner.take(min(most, self._turn))
        self._turn = self._turn - len(found) if found else 0
        self._rests = not self._turn
        return [retried.shown(record, self._of.name, self._of.id) for record in found]

    def counted(self) -> tuple[int, int, int]:
        """Messages that were gone, places that were damaged, queues that were taken away, since it was asked last."""
        return (0, 0, 0) if self._inner is None else self._inner.counted()

    def _open(self) -> Inner | None:
        """The reader of the retry topic that there is now, if there is one."""
        if self._name is None:
            return None
        if self._name not in self._client.router().catalog.topics:
            self._drop()
        elif self._inner is None:
            self._inner = self._make(self._name)
        return self._inner

    def _drop(self) -> None:
        """Its topic is gone."""
        self._turn = 0
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.forget()

    # -- what was done with them --------------------------------------------------------------------------------

    def commit(self, at: Stands | None, deadline: float | None) -> None:
        """Commit what was handed out, or a message and those before it in its queue of the retry topic."""
        if self._inner is not None:
            with contextlib.suppress(TopicNotFound):  # there is nothing that would come again
                place = None if at is None else (at.queue, at.offset)
                self._inner.commit(place, deadline)

    def beat(self, calls: int) -> None:
        """The process runs, and the program has called so often; any thread."""
        inner = self._inner
        if inner is not None:
            inner.beat(calls)

    def expired(self) -> None:
        """The reader was silent for too long."""
        self._turn = 0
        if self._inner is not None:
            self._inner.expired()

    def check_topic(self, record: Record) -> None:
        """Is it of this topic? Raises UsageError."""
        if retried.topic_of(record) not in (self._of.id, 0):
            raise UsageError(
                f"the message is of another topic than {self._of.name!r}: give it to the reader that has it"
            )

    def check(self, at: Stands) -> None:
        """Was it handed out, and not retried? Raises Fenced, UsageError."""
        if self._inner is None:
            raise not_handed_out(at.offset, at.queue, " of the group's retry topic, which was deleted")
        self._inner.check(at.queue, at.offset)

    def was_retried(self, at: Stands) -> None:
        """It is done when all before it is."""
        if self._inner is not None:
            self._inner.was_retried(at.queue, at.offset)

    def put_back(self, at: Stands) -> None:
        """It is to be handed out again."""
        if self._inner is not None:
            self._inner.put_back(at.queue, at.offset)

    def close(self, deadline: float | None) -> None:
        """Leave the group there. Raises as Reader.close."""
        inner, self._inner, self._turn = self._inner, None, 0
        if inner is not None:
            inner.close(_left(deadline))

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, record: Record, at: Stands, delay: float | None, deadline: float | None) -> None:
        """Put a message into the retry topic, or after so many tries among the dead letters; it is synced and confirmed
        when this returns. Raises MessageTooLarge, InvalidName, TimedOut, PeerLost, SyncFailed, DiskFull, LimitError,
        TopicNotFound (the topic that it is of was deleted), ClosedError.
        """
        kind: Kind = "retry" if at.times < self._max else "dead"
        name = name_of(kind, self._of.name, self._group)
        if kind == "retry":
            appended = retried.retry(record, self._of.name, at.times, delay)
        else:
            appended = retried.dead_letter(record, self._of.name, at.times)
        while True:
            self._declare(kind, name, deadline)
            try:
                self._append(name, appended, record.queue, deadline)
                return
            except TopicNotFound:  # deleted just now: made anew, unless its topic was deleted, too
                continue

    def _declare(self, kind: Kind, name: str, deadline: float | None) -> None:
        if name not in self._client.catalog().topics or self._of.id not in self._client.catalog().topics_by_id:
            asked = {"kind": kind, "topic": self._of.name, "group": self._group, "id": self._of.id}
            self._client.control("declare_group_topic", timeout=_left(deadline), client=self._client.epoch, **asked)

    def _append(self, name: str, appended: Appended, queue: int, deadline: float | None) -> None:
        while True:
            handle, declared = self._client.topic_handle(name)
            with contextlib.suppress(AttachmentLost):  # nothing was submitted
                to = (appended.body, appended.properties, queue % declared.queues, appended.born, appended.later)
                try:
                    handle.append_again(*to, _left(deadline))
                    return
                except TimedOut as error:
                    raise named(error, name) from None


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
