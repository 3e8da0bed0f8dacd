"""A reader of a topic: messages of its queues, one after the other, and how far it is done with them.

    client/group_member.py   what it asks the topic worker, as a member of a group
    client/beats.py          the thread that shows that its process runs
    faces/topic_reading.py   where messages come from; no server is asked for them
    faces/group_places.py    of each queue, how far it is handed out, done and committed
    faces/topic_retries.py   messages that the group could not handle, and that come again

A call of the reader synchronises with the group first, if that has changed: what is to be given back is given back
there, with what is done of it. Then it hands out what was read ahead, or reads of the next queue that has something, in
turns, or sleeps until a message comes, the group changes, or it is time to commit.

Invariants
  A message is handed out again only behind a seek, or when its queue was another's meanwhile; none is left out.
  What is committed was handed out (or skipped, because it was lost, or did not match), and with commit="auto" before
  the last call that asked for more: who asks for the next message is done with those before it. Where a group begins is
  committed before its first message is handed out, unless it begins with the first that is there.
  Nothing is handed out of a queue that is to be given back.
  One thread is inside at a time, in the process that made the reader. `close` may come from any thread.
  A reader that was silent for too long raises SessionExpired once, has no queues then, and joins with its next call.
Crash points: what was handed out and not committed is handed out again, to whoever has the queue next.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from logging import getLogger
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeVar

from warren.engine._core import Record
from warren.engine.catalog.group_topics import check_group
from warren.engine.errors import (
    ClosedError,
    Error,
    Fenced,
    NodeNotRunning,
    PeerLost,
    QueueEmpty,
    SessionExpired,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.engine.saying import shown
from warren.workers.client import retried
from warren.workers.client.arguments import checked_count, checked_seconds, milliseconds
from warren.workers.client.beats import beat_s_of, beats
from warren.workers.client.group_member import NO_GROUP, Member
from warren.workers.client.later import later_of
from warren.workers.faces.group_places import Place, Places, not_handed_out
from warren.workers.faces.topic_reading import (
    SLICE_S,
    TopicReading,
    checked_damage,
    checked_tags,
    data_loss,
)
from warren.workers.faces.topic_retries import TURN, Retries
from warren.workers.faces.topic_scans import TIME_MAX, ReadStatus

if TYPE_CHECKING:
    from warren.workers.client.client import Client
    from warren.workers.client.retried import Stands

T = TypeVar("T")

#: from where to read: where a group has committed nothing, or to seek to
Start = Literal["earliest", "latest"] | datetime | float
Commit = Literal["auto", "manual"]

#: between two commits of commit="auto"
COMMIT_S = 0.2
#: how often it is looked whether the worker was restarted
LOOK_S = 0.1
#: how long a get waits for the worker's answer, whatever its timeout
ANSWER_S = 1.0
#: how long a get reads on over messages that do not match, when its time is up
MATCH_S = 0.1
#: of log that one batch holds at most
BATCH_BYTES = 1 << 20
PREFETCH_MAX = 1 << 20
#: how often a message comes again before it is given up, as in RocketMQ
RECONSUME_TIMES = 16
RECONSUME_TIMES_MAX = 10_000
#: defaults of session_timeout and max_poll_interval, as in Kafka
SESSION_S, POLL_S = 45.0, 300.0
LIMIT_MIN_S = 1.0
#: changes of the group that one call follows before it goes on
CHANGES_MAX = 8

log = getLogger("warren.reader")


class Reader:
    """Reads queues of a topic, alone or as a member of a group, for one thread at a time. Made by `topic.reader()`."""

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str | None,
        start: Start,
        tags: str | Sequence[str] | None,
        prefetch: int,
        commit: Commit,
        on_data_loss: str,
        damage: str,
        max_reconsume_times: int = RECONSUME_TIMES,
        session_timeout: float | None = SESSION_S,
        max_poll_interval: float | None = POLL_S,
        join: bool = True,
        inner: bool = False,
    ) -> None:
        """`join`: now; else with the first call. `inner`: it reads the retry topic for a reader of the group, by whom
        it beats.
        """
        self.topic = topic  #: its name
        self.group = group
        self.skipped = 0  #: messages that were gone before they were read (on_data_loss="skip")
        self.damaged = 0  #: places that were passed by because they were damaged (damage="skip")
        self.fenced = 0  #: how often queues were taken away with work that was done and not committed yet
        self._closed = True
        name: object = group
        if name is not None and not (isinstance(name, str) and name):
            raise UsageError(f"group must be a name, or None to read all queues alone, not {shown(group)}")
        if group is not None:
            check_group(group)
        if commit not in ("auto", "manual"):
            raise UsageError(f"commit must be 'auto' or 'manual', not {shown(commit)}")
        if on_data_loss not in ("error", "skip"):
            raise UsageError(f"on_data_loss must be 'error' or 'skip', not {shown(on_data_loss)}")
        checked_tags(tags)
        checked_damage(damage)
        self._start = _checked_start(start, "start")
        self._all_done = False  # by the end of a `with` block
        self._prefetch = checked_count(prefetch, "prefetch", 1, PREFETCH_MAX)
        self._client = client
        self._tags = tags
        self._auto = commit == "auto" and group is not None
        self._on_data_loss = on_data_loss
        self._skips = on_data_loss == "skip"
        self._damage = damage
        self._max_times = checked_count(max_reconsume_times, "max_reconsume_times", 0, RECONSUME_TIMES_MAX)
        if group is None and max_reconsume_times != RECONSUME_TIMES:
            raise UsageError("max_reconsume_times is of a group: without one nothing comes again; give group=…")
        self._limits = (
            _checked_limit(session_timeout, SESSION_S, "session_timeout", group),
            _checked_limit(max_poll_interval, POLL_S, "max_poll_interval", group),
        )
        self._beat_s = beat_s_of(*self._limits)  #: between two beats
        self._calls = 0
        self._with_retries = self._beats = not inner and group is not None
        self._retries: Retries | None = None
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._inside = 0  # the thread
        self._closing = self._closed = False
        self._reading: TopicReading | None = None
        self._member: Member | None = None
        self._places = Places()
        self._batch: deque[Record] = deque()  #: read ahead, of the queue of …
        self._current: Place | None = None
        self._again: list[Record] = []  #: that come again: what this call hands out
        self._handed: list[Place] = []  #: by the last call that asked for messages
        self._look_at = self._commit_at = 0.0
        if join:
            join_group(self)

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a reader is a member of its group, and one process's: give another process the topic, and make a reader "
            "of its own there"
        )

    def __repr__(self) -> str:
        what = "closed" if self._closed else f"queues {self.assigned}"
        return f"<Reader of {self.topic!r}, group {self.group!r}, {what}>"

    # -- messages -----------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Record:
        """The next message of one of its queues, in turns; of each queue in order. With commit="auto" those that were
        handed out before this call are done, also if it gets none. Waits for `timeout` seconds (None: without end).

        It may wait for the topic worker for a second beyond that. Raises QueueEmpty (none came), DataLoss (with
        on_data_loss="error": messages are gone; `seek` goes on), CorruptRecord (with damage="error"), TopicNotFound
        (once; the next call reads the topic that has the name then), PeerLost, ClosedError, UsageError (another thread
        is inside, or this is a child of fork).
        """
        self._go_in()
        try:
            if self._ready(timeout, 1):
                return self._again.pop() if self._again else self._hand_one()
        finally:
            self._come_out()
        raise QueueEmpty(no_message(self, timeout))

    def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Record]:
        """The next messages, 1 to `max`, as they are there; an empty list if none comes within `timeout` seconds.
        Else as `get`: with commit="auto" all of the list is done with the next call, or commit(), and not by close().
        """
        most = checked_count(max, "max", 1, PREFETCH_MAX)
        self._go_in()
        try:
            if not self._ready(timeout, most):
                return []
            if self._again:
                again, self._again = self._again, []
                return again
            found: list[Record] = []
            while True:
                self._hand(found, most - len(found))
                if len(found) == most or not self._more():
                    return found
        finally:
            self._come_out()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """The next message, without end: until the reader is closed."""
        try:
            return self.get()
        except ClosedError:
            if self._closed:
                raise StopIteration from None
            raise

    def _ready(self, timeout: float | None, most: int) -> bool:
        """Have a message to hand out, or up to `most` that come again in `_again`; False: none came in time."""
        checked_seconds(timeout)
        self._finish()
        if self._retries is not None and self._take_again(most):
            return True
        if self._batch and time.monotonic() < self._look_at and not self._changed():
            return True
        left, deadline = timeout, None if timeout is None else time.monotonic() + timeout
        while self._within(functools.partial(self._wait, left)):
            if self._take_again(most) or self._batch:
                return True
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return False

    def _take_again(self, most: int) -> bool:
        """Messages that come again, if it is their turn."""
        if self._retries is not None and self._retries.has_turn:
            self._again = self._retries.take(most)
        return bool(self._again)

    def _wait(self, timeout: float | None) -> bool:
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        while True:
            self._look(deadline)
            if self._auto:
                self._places.take_lost()  # who asks for more does not ask for these
            if (self._retries is not None and self._again_has_turn(self._retries)) or self._batch:
                return True
            now = time.monotonic()
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - now)
            left = min(left, self._look_at - now)
            came = self._fetch(max(0.0, left))  # perhaps only over what does not match
            if self._batch:
                continue
            if deadline is not None and time.monotonic() >= (deadline if not came else max(deadline, began + MATCH_S)):
                return False
            self._topic_reading().check_served()

    def _again_has_turn(self, retries: Retries) -> bool:
        """Whether messages that come again are to be handed out next: in turns with others."""
        if retries.rests():
            if not self._batch:
                self._fetch(0.0)
            if self._batch:
                return False
        try:
            return retries.prepare()
        finally:
            skipped, damaged, fenced = retries.counted()
            self.skipped += skipped
            self.damaged += damaged
            self.fenced += fenced

    def _more(self) -> bool:
        """Without waiting: of what is there, the next batch. What is wrong there says the next call: messages that were
        handed out are not lost by that.
        """
        until = time.monotonic() + MATCH_S
        with contextlib.suppress(Error):
            while not self._batch and self._fetch(0.0) and time.monotonic() < until:
                pass
        return bool(self._batch)

    # -- handing out --------------------------------------------------------------------------------------------

    def _hand_one(self) -> Record:
        place, batch = self._current, self._batch
        assert place is not None
        record = batch.popleft()
        place.given = record.offset + 1
        place.position = batch[0].offset if batch else place.fetched
        self._handed.append(place)
        return record

    def _hand(self, found: list[Record], most: int) -> None:
        place, batch = self._current, self._batch
        assert place is not None
        while batch and most:
            found.append(batch.popleft())
            most -= 1
        place.given = found[-1].offset + 1
        place.position = batch[0].offset if batch else place.fetched
        self._handed.append(place)

    def _finish(self) -> None:
        """Who asks for more is done with what it has (commit="auto")."""
        for place in self._handed:
            place.done = place.position
        self._handed.clear()
        if self._retries is not None:
            self._retries.finish()

    def _drop_batch(self, place: Place) -> None:
        """What was read ahead of a queue is not handed out."""
        if self._current is place:
            self._current = None
            self._batch.clear()

    # -- reading ahead ------------------------------------------------------------------------------------------

    def _fetch(self, left: float) -> bool:
        """Read of the next queue that has something; wait for it for `left` seconds. False: there is nothing."""
        reading, places = self._topic_reading(), self._places.in_turn()
        row = NO_GROUP if self._member is None else self._member.row
        which = reading.wait_any([place.queue for place in places], [place.fetched for place in places], row, left)
        if which is None:
            return False
        place = places[which]
        self._places.had_its_turn(place)
        share = max(1, self._prefetch // len(places))
        found = reading.read(place.queue, place.fetched, share, BATCH_BYTES, self._tags, 0, damage=self._damage)
        self.damaged += len(found.damaged)
        at = place.fetched
        if found.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.MESSAGE_WAS_REMOVING):
            minimum = found.min_offset if found.min_offset > at else found.next_offset
            if not self._skips:
                error = data_loss(self.topic, place.queue, at, minimum)
                error.add_note(f"reader.seek({place.queue}, {minimum}) goes on there; on_data_loss='skip' does always")
                raise error
            self.skipped += minimum - at
            log.warning(
                "topic %s, queue %d: %d messages were gone before %s read them",
                self.topic,
                place.queue,
                minimum - at,
                "a reader" if self.group is None else f"group {self.group}",
            )
            self._pass(place, minimum)
        elif found.records:
            self._batch.extend(found.records)
            self._current = place
            self._pass(place, found.records[0].offset)
            place.fetched = found.next_offset
        else:  # none matches; or the queue ends before: it was put back from a backup meanwhile
            self._pass(place, found.next_offset)
        return True

    def _pass(self, place: Place, offset: int) -> None:
        """Nothing of a queue below this is handed out any more."""
        place.passed(offset)
        if not any(handed is place for handed in self._handed):
            place.done = offset

    # -- the group ----------------------------------------------------------------------------------------------

    def _beat_now(self) -> None:
        """The process runs; a program that is inside of a call calls. By the thread of client/beats.py."""
        if self._inside:
            self._calls += 1
        self._beat(self._calls)

    def _beat(self, calls: int) -> None:
        member, retries = self._member, self._retries
        if member is not None:
            member.beat(calls)
        if retries is not None:
            retries.beat(calls)

    def _expired(self) -> None:
        """Drop all queues: others have them, and the caller raises that."""
        for place in self._places.all():
            self._drop_batch(place)
            self._lose(place)
        self._places.take_lost()
        self._again = []
        self._look_at = 0.0
        self.fenced += 1
        if self._member is not None:
            self._member.expired()
        if self._retries is not None:
            self._retries.expired()

    def _changed(self) -> bool:
        return self._closing or (self._member is not None and self._member.changed())

    def _look(self, deadline: float | None) -> None:
        """Follow the group, commit what is due. Raises ClosedError when the reader is being closed."""
        if self._closing:
            raise ClosedError("this reader was closed")
        now = time.monotonic()
        if now < self._look_at and not self._changed():
            return
        member = self._open()
        if member is not None:
            joined = member.joined
            try:
                if member.look() or self._places.unpinned() or self._places.leaves(whole=True):
                    self._sync(_after(deadline, now) if not joined else now + ANSWER_S)
                elif now >= self._commit_at:
                    self._commit_done(now + ANSWER_S)
            except (TimedOut, PeerLost) as error:  # a worker that stands still or is restarted; what is read needs none
                if not joined or isinstance(error, NodeNotRunning):
                    raise
        self._look_at = time.monotonic() + LOOK_S

    def _open(self) -> Member | None:
        """Be a reader of the topic that has the name now, if it is of none. Raises TopicNotFound."""
        if self._reading is None:
            declared = self._client.catalog().topics.get(self.topic)
            if declared is None:
                raise TopicNotFound(f"there is no topic {self.topic!r}, or it was deleted: declare it with node.topic")
            self._reading = TopicReading(self._client, declared)
            if self.group is not None:
                self._member = Member(self._client, declared.id, self.group, *self._limits)
                if self._beats:
                    beats().add(self)
                if self._with_retries:
                    commit: Commit = "auto" if self._auto else "manual"
                    told = (self.group, commit, self._on_data_loss, self._damage, self._limits)
                    make = functools.partial(_Again, self._client, *told)
                    self._retries = Retries(self._client, declared, self.group, make, self._max_times)
            else:
                for queue in range(declared.queues):
                    begin = self._offset_of(queue, self._start)
                    self._places.add(Place(queue, 0, begin, begin))
        return self._member

    def _topic_reading(self) -> TopicReading:
        assert self._reading is not None
        return self._reading

    def _sync(self, deadline: float | None, *, whole: bool = True) -> None:
        """Take over what is its own, and give back what it has to: all of that, or (not `whole`) only queues of which
        nothing is handed out and not committed.
        """
        member = self._member
        assert member is not None
        released: list[int] = []
        for _ in range(CHANGES_MAX):
            due = self._due()
            try:
                told = member.sync(due, released, deadline)
            except SessionExpired:
                raise
            except Fenced as error:  # refused as a whole: without that, it says whose they are
                log.warning("topic %s, group %s: %s", self.topic, self.group, error)
                self.fenced += 1
                told = member.sync({}, (), deadline)
                due = {}
            self._places.were_committed(due)
            self._take_over(told.given, told.give_back)
            self._pin(member, deadline)
            released = [queue for queue in told.give_back if whole or not self._owes(queue)]
            if not released and not member.changed():
                break
        self._commit_at = time.monotonic() + COMMIT_S
        if self._places.leaves(whole=True):
            self._look_at = 0.0  # the next get gives that back

    def _owes(self, queue: int) -> bool:
        place = self._places.get(queue)
        return place is not None and place.owes

    def _take_over(self, given: list[tuple[int, int, int]], give_back: list[int]) -> None:
        mine = {queue: generation for queue, generation, _offset in given}
        for place in self._places.all():
            leaving = place.queue in give_back
            if leaving or mine.get(place.queue) != place.generation:
                self._drop_batch(place)
                place.leaving = leaving
                if not leaving:
                    self._lose(place)
        for queue, generation, offset in given:
            known = self._places.get(queue)
            if known is None:
                begin = offset if offset >= 0 else self._offset_of(queue, self._start)
                self._places.add(Place(queue, generation, begin, begin, offset >= 0 or self._start == "earliest"))
            else:
                known.leaving = False

    def _lose(self, place: Place) -> None:
        """A queue is another's: what was handed out of it and not committed, others get again."""
        self._places.lose(place)
        self._handed = [handed for handed in self._handed if handed is not place]

    def _pin(self, member: Member, deadline: float | None) -> None:
        """Where the group begins is the same for who comes after."""
        begins = self._places.unpinned()
        if begins:
            try:
                member.commit(begins, deadline)
            except Fenced:
                return  # they are others' by now: the next look sees it
            self._places.were_committed(begins)

    def _due(self) -> dict[int, int]:
        """What is committed without a word of the program: offsets by queue."""
        return self._places.done() if self._auto else self._places.retried()

    def _commit_done(self, deadline: float) -> None:
        member = self._member
        assert member is not None
        due = self._due()
        self._commit_at = time.monotonic() + COMMIT_S
        if due:
            try:
                member.commit(due, deadline)
            except Fenced:
                self._sync(deadline)  # which commits what is its own still
                return
            self._places.were_committed(due)

    def _offset_of(self, queue: int, where: Start) -> int:
        reading = self._topic_reading()
        if isinstance(where, str):
            return reading.offsets(queue)[where == "latest"]
        found = reading.offset_at(queue, where)
        assert found is not None  # of a lower bound
        return found

    # -- what a program says --------------------------------------------------------------------------------------

    def commit(self, record: Record | None = None, timeout: float | None = None) -> None:
        """Commit, durably: all that was handed out, or with `record` that message and those before it in its queue.

        Raises Fenced: queues of which something was handed out are others' by now, who get that again; the rest is
        committed, and the reader goes on with what it has. Raises UsageError (no group; a message that it has not
        handed out), TimedOut (after `timeout` seconds, else call_timeout: it may be committed), TopicNotFound,
        PeerLost, ClosedError.
        """
        if self.group is None:
            raise UsageError("this reader has no group, and keeps nothing: give topic.reader(group=…) a name")
        checked_seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if record is None:
            self._calling(lambda: self._commit_all(deadline))
            return
        at = retried.stands(_checked_record(record, "commit"))
        self._calling(lambda: self._commit_one(at, deadline))

    def _commit_all(self, deadline: float | None) -> None:
        try:
            self._commit(None, deadline)
        finally:
            if self._retries is not None:
                self._retries.commit(None, deadline)

    def _commit_one(self, at: Stands, deadline: float | None) -> None:
        if at.again:
            self._again_of(at).commit(at, deadline)
        else:
            self._commit((at.queue, at.offset), deadline)

    def _again_of(self, at: Stands) -> Retries:
        if self._retries is None:
            raise not_handed_out(at.offset, at.queue, ", which has no messages that come again")
        return self._retries

    def _commit(self, at: tuple[int, int] | None, deadline: float | None) -> None:
        """All that was handed out, or up to the message at this queue and offset."""
        lost: list[int] = []
        while True:
            wanted = self._places.handed_out() if at is None else self._places.up_to(*at)
            lost += self._places.take_lost() if at is None else []
            member = self._member
            if member is None:
                return  # of a topic that was deleted: nothing was handed out since
            try:
                member.commit(wanted, deadline)
            except SessionExpired:
                raise
            except Fenced:
                self._sync(deadline, whole=False)  # and what is its own still is committed
                continue
            break
        self._places.were_committed(wanted)
        self._handed.clear()
        if member.changed() or self._places.leaves(whole=False):
            self._sync(deadline, whole=False)
        if lost:
            raise Fenced(
                f"topic {self.topic!r}, group {self.group!r}: queues {sorted(set(lost))} went to other readers before "
                "this commit, or the group was set elsewhere: what was not committed is handed out again; the rest is "
                "committed, and get() goes on with what this reader has"
            )

    def retry(self, record: Record, delay: float | None = None, timeout: float | None = None) -> None:
        """Give a message that was handed out to the group again, later: to any of its readers, with `reconsume_times`
        one higher. It comes after `delay` seconds (up to 3 days), else after 10 s, 30 s, 1 min … 2 h, as RocketMQ has
        it, by how often it was tried. After `max_reconsume_times` it lies among the group's dead letters instead
        (`topic.dead_letters(group)`).

        When this returns that is durable, and the message is done: as soon as those before it in its queue are, it is
        committed by one of the next calls, or by close(), also with commit="manual". If it raises, the message is
        handed out again, with those behind it in its queue that are not committed. Raises Fenced (it is another
        reader's by now, who gets it again), UsageError (no group; a message that it has not handed out, or that was
        retried before), MessageTooLarge (no room for what is told of it), InvalidName (group and topic have too long
        names), TimedOut (after `timeout` seconds, else call_timeout), PeerLost, LimitError, DiskFull, SyncFailed,
        TopicNotFound, ClosedError.
        """
        if self.group is None:
            raise UsageError("this reader has no group to which a message could come again: give topic.reader(group=…)")
        _checked_record(record, "retry")
        self._calling(lambda: self._retry(record, delay, timeout))

    def _retry(self, record: Record, delay: float | None, timeout: float | None) -> None:
        at = retried.stands(record)
        self._open()
        retries = self._again_of(at)
        retries.check_topic(record)
        if at.again:
            retries.check(at)
        else:
            self._places.to_retry(at.queue, at.offset)
        try:
            checked_seconds(timeout)
            if delay is not None:
                later_of(delay, None, None)
            limit = self._client.call_timeout if timeout is None else timeout
            deadline = None if limit is None else time.monotonic() + limit
            retries.append(record, at, delay, deadline)
        except BaseException:
            if at.again:
                retries.put_back(at)
            else:
                self._put_back(at.queue, at.offset)
            raise
        if at.again:
            retries.was_retried(at)
        else:
            self._was_retried(at.queue, at.offset)

    def _was_retried(self, queue: int, offset: int) -> None:
        place = self._places.get(queue)
        if place is not None:
            place.was_retried(offset)

    def _put_back(self, queue: int, offset: int) -> None:
        """A message that was handed out is handed out again."""
        place = self._places.get(queue)
        if place is not None and place.back_to(offset):
            self._drop_batch(place)

    def seek(self, queue: int, where: int | Start, timeout: float | None = None) -> None:
        """Go on at another place of one of its queues: an offset, a datetime (the first message stored then or later),
        "earliest" or "latest". With commit="auto" that is what is committed next; else commit() does.

        Raises UsageError (the queue is not its own now; behind the end), TimedOut, TopicNotFound, PeerLost and
        ClosedError.
        """
        checked_count(queue, "queue", 0)
        if isinstance(where, (str, datetime)):
            _checked_start(where, "where")
        else:
            checked_count(where, "where: an offset, a datetime, 'earliest' or 'latest';", 0, TIME_MAX)
        checked_seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._calling(lambda: self._seek(queue, where, deadline))

    def _seek(self, queue: int, where: int | Start, deadline: float | None) -> None:
        self._look(deadline)
        place = self._places.get(queue)
        if place is None or place.leaving:
            raise UsageError(f"queue {queue} is not this reader's now: it has queues {self.assigned}")
        offset = where if isinstance(where, int) else self._offset_of(queue, where)
        end = self._topic_reading().offsets(queue)[1]
        if offset > end:
            raise UsageError(f"queue {queue} ends at offset {end}: seek to {offset} is not possible")
        self._drop_batch(place)
        place.seek(offset)
        self._commit_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def assigned(self) -> list[int]:
        """The queues that it reads, as far as it has heard."""
        return sorted(place.queue for place in self._places.all() if not place.leaving)

    def lag(self) -> dict[int, int]:
        """Of each of its queues how many offsets are not committed (without a group: not handed out); also those of
        messages that were removed.
        """
        return self._calling(self._lag)

    def _lag(self) -> dict[int, int]:
        self._look(_after(None))
        reading = self._topic_reading()
        found: dict[int, int] = {}
        for place in sorted(self._places.in_turn(), key=lambda place: place.queue):
            base = place.position if self.group is None else place.begin if place.kept < 0 else place.kept
            found[place.queue] = max(0, reading.offsets(place.queue)[1] - base)
        return found

    # -- its end ------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Leave the group: its queues go to others at once. With commit="auto" what is done is committed before: all
        but what the last call of `get` or `get_many` handed out, the whole list, which comes again unless commit() said
        that it is done, or it was retried. (The end of a `with` block is done with that, too, unless by an exception.)

        May be called by another thread, too, and ends its call with ClosedError. Raises TimedOut, SyncFailed, PeerLost:
        it is closed all the same, and what was not committed is handed out again, to others.
        """
        checked_seconds(timeout)
        if self._closed or self._pid != os.getpid():
            return
        self._closing = True
        if self._inside == threading.get_ident():
            return  # a signal handler, in the middle of a call: that one ends with ClosedError, and closes
        with self._busy:
            self._end(None if timeout is None else time.monotonic() + timeout)

    def _end(self, deadline: float | None) -> None:
        if self._closed:
            return
        self._closed = True
        if self._all_done:
            self._finish()
        member, self._member = self._member, None
        retries, self._retries = self._retries, None
        due = self._due()
        self._forget()
        if member is None or self._client.closed:
            return
        try:
            member.leave(due, deadline)
        except Fenced:
            self.fenced += 1
        except (TopicNotFound, ClosedError):
            pass  # deleted, or the node has ended: there is nothing to leave
        finally:
            member.forget()
            if retries is not None:
                retries.close(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._all_done = kind is None
        try:
            self.close()
        except Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        if not self._closed and self._pid == os.getpid():
            member = self._member
            self._closed = True
            if member is not None:
                member.drop()

    def _forget(self) -> None:
        """It is a reader of no topic."""
        if self._beats:
            beats().remove(self)
        if self._member is not None:
            self._member.forget()
        self._reading, self._member, self._retries = None, None, None
        self._again = []
        self._places = Places()
        self._batch.clear()
        self._current = None
        self._handed.clear()
        self._look_at = self._commit_at = 0.0

    # -- calls --------------------------------------------------------------------------------------------------

    def _go_in(self) -> None:
        if self._pid != os.getpid():
            raise UsageError("this reader is the parent process's, of which this one is a fork: make another one here")
        if not self._busy.acquire(blocking=False):
            if self._closing:
                raise ClosedError("this reader was closed")
            raise UsageError(
                "another thread is inside this reader: a reader is one thread's at a time, make one for each"
            )
        self._inside = threading.get_ident()
        self._calls += 1
        if self._closed:
            self._come_out()
            raise ClosedError(f"this reader of topic {self.topic!r} was closed: make another with topic.reader()")

    def _come_out(self) -> None:
        self._inside = 0
        try:
            if self._closing and not self._closed:
                self._end(time.monotonic() + ANSWER_S)
        finally:
            self._busy.release()

    def _calling(self, call: Callable[[], T]) -> T:
        self._go_in()
        try:
            return self._within(call)
        finally:
            self._come_out()

    def _within(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except TopicNotFound:
            self._forget()  # said once: the next call is of the topic that has the name then
            raise
        except SessionExpired:
            self._expired()
            raise
        except PeerLost:
            self._look_at = 0.0
            raise


class _Again:
    """A reader of a group's retry topic, inside of one of the group's readers (faces/topic_retries.py)."""

    def __init__(
        self,
        client: Client,
        group: str,
        commit: Commit,
        on_data_loss: str,
        damage: str,
        limits: tuple[float | None, float | None],
        topic: str,
    ) -> None:
        # No tags: what was handed out comes again, whatever its tag.
        self._reader = Reader(
            client,
            topic,
            group,
            "earliest",
            None,
            TURN,
            commit,
            on_data_loss,
            damage,
            RECONSUME_TIMES,
            *limits,
            join=False,
            inner=True,
        )

    def prepare(self) -> bool:
        return prepare(self._reader)

    def take(self, most: int) -> list[Record]:
        return take_ready(self._reader, most, False)

    def finish(self) -> None:
        self._reader._finish()

    def commit(self, at: tuple[int, int] | None, deadline: float | None) -> None:
        self._reader._calling(lambda: self._reader._commit(at, deadline))

    def check(self, queue: int, offset: int) -> None:
        self._reader._places.to_retry(queue, offset)

    def was_retried(self, queue: int, offset: int) -> None:
        self._reader._was_retried(queue, offset)

    def put_back(self, queue: int, offset: int) -> None:
        self._reader._put_back(queue, offset)

    def go_on(self, queue: int, offset: int) -> None:
        place = self._reader._places.get(queue)
        if place is not None:
            self._reader._drop_batch(place)
            self._reader._pass(place, offset)

    def counted(self) -> tuple[int, int, int]:
        reader = self._reader
        found = reader.skipped, reader.damaged, reader.fenced
        reader.skipped = reader.damaged = reader.fenced = 0
        return found

    def beat(self, calls: int) -> None:
        self._reader._beat(calls)

    def expired(self) -> None:
        self._reader._expired()

    def close(self, timeout: float | None) -> None:
        self._reader.close(timeout)

    def forget(self) -> None:
        self._reader._closed = True
        self._reader._forget()


# -- for other faces ------------------------------------------------------------------------------------------------


def all_done(reader: Reader) -> None:
    """What it handed out is done, when it is closed now."""
    reader._all_done = True


def join_group(reader: Reader) -> None:
    """Be a member of its group. Raises TopicNotFound, TimedOut, PeerLost, ClosedError."""
    reader._calling(lambda: reader._look(None))


def prepare(reader: Reader) -> bool:
    """Follow the group, and have a message to hand out, if one is there. Raises as `get`."""
    reader._go_in()
    try:
        return reader._within(lambda: reader._wait(0.0))
    finally:
        reader._come_out()


def take_ready(reader: Reader, most: int, sure: bool) -> list[Record]:
    """The next messages of those that lie ready, without waiting; none: prepare. `sure`: that was done just now."""
    try:
        reader._go_in()
    except UsageError:
        if reader._inside == threading.get_ident() or not reader._inside:
            raise
        return []  # the call of a task that was cancelled
    try:
        reader._finish()
        if reader._take_again(most):
            found, reader._again = reader._again, []
            return found
        found = []
        if reader._batch and not reader._changed() and (sure or time.monotonic() < reader._look_at):
            reader._hand(found, most)
        return found
    finally:
        reader._come_out()


def no_message(reader: Reader, timeout: float | None) -> str:
    """What is said when none came in time."""
    return f"topic {reader.topic!r} had no message for this reader within {timeout or 0:g} s"


def _after(deadline: float | None, now: float | None = None) -> float | None:
    """Until when an answer of the worker is waited for. None: for call_timeout."""
    if deadline is None:
        return None
    return max(deadline, (time.monotonic() if now is None else now) + ANSWER_S)


def _checked_limit(limit: float | None, default: float, what: str, group: str | None) -> float | None:
    if group is None and limit != default:
        raise UsageError(f"{what} is of a group: without one nobody else gets the queues; give group=…")
    checked_seconds(limit, what=what)
    if limit is None or limit == math.inf:
        return None
    if limit < LIMIT_MIN_S:
        raise UsageError(f"{what} must be at least {LIMIT_MIN_S:g} s, or None for no limit, not {shown(limit)}")
    return float(limit)


def _checked_record(record: object, call: str) -> Record:
    if not isinstance(record, Record):
        raise UsageError(f"{call} takes a message that this reader has handed out, not a {type(record).__name__}")
    return record


def _checked_start(start: object, what: str) -> Start:
    if start == "earliest" or start == "latest":
        return start
    if isinstance(start, str):
        raise UsageError(
            f"{what} must be 'earliest', 'latest', a datetime or milliseconds since 1970, not {shown(start)}"
        )
    milliseconds(start, what, up=True, offsets="with seek(queue, offset)")
    return start  # type: ignore[return-value]
