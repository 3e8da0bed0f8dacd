"""Results of tasks in a topic: the result backend `warren:///DIRECTORY`.

Each result is appended to one topic, under the key of its task, and goes after `result_expires`. So any process finds
the newest one by its key, as often as it likes; whoever waits reads the end of the topic, and is woken by what comes.
A queue for each caller (as Celery's rpc backend has it) would give a result to that caller alone, and once. `forget`
appends a record without a body, behind which there is nothing.

    Backend          store, get, forget, groups, chords
    ResultConsumer   waits for many results at once: one reader of the topic for a process

Chords
  Each part appends its id under the key of the chord. The order of the log says which part is the last one: it calls
  the body, and when that is published it appends that this round of the chord is over, with its own offset. So one
  process calls it, however many end at once. Parts behind that offset are of another round, which calls the body if the
  chord was applied again since: a part that runs once more does not. Now and then a part appends how many have ended,
  so that the next ones need not look at all of them; whoever seems to be the last one does.

The node is away
  A task that has ended waits for it (workers/celery/patience.py). When time is up it is not a failure: NotStored goes
  through Celery as a Reject, so the message returns, if it is acked late; else nobody learns what became of the task.
  Whoever waits for results goes on, and when the node is back looks for what it may have missed.

Crash points
  Killed before the append: no result; a task that is acked late runs again.
  Between the append and the ack of a task that is acked late: it runs again; a SUCCESS that is there stays.
  The last part of a chord, before its record: a part that is acked late runs again, and appends it.
  Behind it, before the body is published: the same; it finds itself the last one, and calls the body.
  Behind the publish, before the record that closes the round: the body is called again, if the part is acked late.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from billiard.exceptions import SoftTimeLimitExceeded
from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import BackendError, Reject
from kombu.utils.functional import LRUCache

from warren.engine._core import Record
from warren.workers.celery.kept import Kept, key_of
from warren.workers.celery.patience import AWAY, PAUSE_S, TROUBLE, in_task, logger
from warren.workers.celery.place import Place
from warren.workers.faces.topic_reader import Reader
from warren.workers.faces.topics import Topic

#: results read in one step
READ = 500
#: how long a thread waits for another one that gives out results
GIVING_S = 0.5
#: chords of which the number of parts is remembered
SIZES = 1000
#: how many parts of a chord are looked at
CHORD_MAX = 1 << 20
#: so many of its records tell how many parts have ended; after so many there is a checkpoint
LOOKED_AT, CHECKPOINT = 256, 64
#: among the records of a chord: it was applied; its body was called, with the last part at this offset
AGAIN, CLOSED = b"=again", "=closed,"
#: in the options of result backends, and Celery's own business
_CELERY = frozenset({"global_keyprefix"})


class NotStored(Reject):  # type: ignore[misc]  # Celery has no types
    """What became of a task could not be stored in time. Celery gives its message back, if it is acked late."""

    def __init__(self, reason: object = None, requeue: bool = True) -> None:
        super().__init__(reason, requeue)


class ResultConsumer(BaseResultConsumer):  # type: ignore[misc]  # Celery has no types
    """Reads what comes for the process, and gives it to whoever waits. One thread reads at a time, for all.

    No lock is held while Celery's code runs, or the program's that it calls: that may wait for other results, here or
    in another thread. A thread that finds another one reading, or giving out what it read, waits for it; but for one
    that gives out no longer than GIVING_S, because that one may wait for this one.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.Lock())  # of what follows
        self._reading = False
        self._read_until = 0.0  # others wait until then for who gives out
        self._giving: list[int] = []  # threads that give out what they read, some more than once
        self._turns = 0  # how often results were given out
        self._missed = False  # results may have come that the reader did not read: the node was away
        self._reader: Reader | None = None
        self._pid = os.getpid()

    def start(self, initial_task_id: str, **_unused: Any) -> None:
        """Read from now on; from when the node is back, if it is away."""
        if self._pid != os.getpid():
            self._begin()
        try:
            self._opened()
        except AWAY:
            self._missed = True

    def _opened(self) -> Reader:
        with self._changed:
            if self._reader is None:
                self._reader = self.backend.topic.reader(
                    start="latest", tags=sorted(states.READY_STATES), damage="skip", on_data_loss="skip"
                )
            return self._reader

    def on_wait_for_pending(self, result: Any, **named: Any) -> None:
        """Somebody begins to wait: what is there already, he gets."""
        self.start("")  # a set of results has no id
        try:
            for meta in result._iter_meta(**{**named, "interval": 0}):
                if meta is not None:
                    self.on_state_change(meta, None)
        except AWAY:
            self._missed = True

    def consume_from(self, task_id: str) -> None:
        """Somebody will wait for it."""
        self.start(task_id)

    def cancel_for(self, task_id: str) -> None:
        """Nobody does any more: its result is passed by."""

    def drain_events(self, timeout: float | None = None) -> None:
        """Give out what comes within `timeout`. Raises TimeoutError."""
        if self._pid != os.getpid() or self._reader is None:
            self.start("")
        end = None if timeout is None else time.monotonic() + timeout
        if not self._may_read(end):
            return  # another thread has given out some meanwhile
        missed = self._missed
        try:
            try:
                reader = self._opened()
                records = [] if missed else reader.get_many(READ, _left(end))
            finally:
                self._has_read()
            if missed:
                self._missed = False
                self._look()
            for record in records:
                self._give(record.key, record.body)
        except AWAY:  # the node is restarted; the reader goes on where it was
            self._missed = True
            time.sleep(PAUSE_S if end is None else min(PAUSE_S, _left(end) or 0.0))
            raise TimeoutError("the node is away") from None
        finally:
            self._has_given()
        if not records and not missed:
            raise TimeoutError("no result came in time")

    def _may_read(self, end: float | None) -> bool:
        """Wait for this thread's turn; False: another one has given out results meanwhile. Raises TimeoutError."""
        me = threading.get_ident()
        with self._changed:
            turns = self._turns
            while self._reading or (me not in self._giving and self._giving and _left(self._read_until)):
                left, pause = _left(end), None if self._reading else _left(self._read_until)
                if left == 0.0:
                    raise TimeoutError("another thread waits for results")
                self._changed.wait(min((seconds for seconds in (left, pause) if seconds is not None), default=None))
                if turns != self._turns and me not in self._giving:
                    return False
            self._reading = True
            self._giving.append(me)
            return True

    def _has_read(self) -> None:
        """Another thread may read."""
        with self._changed:
            self._reading, self._read_until = False, time.monotonic() + GIVING_S
            self._changed.notify_all()

    def _has_given(self) -> None:
        """All that this thread read has been given out."""
        with self._changed:
            self._giving.remove(threading.get_ident())
            self._turns += 1
            self._changed.notify_all()

    def _look(self) -> None:
        """Give out what anybody waits for, if it is there."""
        for task_id in {name for waiting in self._pending_results for name in list(waiting)}:
            meta = self.backend.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                self.on_state_change(meta, None)

    def _give(self, key: str | None, body: bytes) -> None:
        task_id = self.backend.task_of(key)
        if task_id is None or not body or not any(task_id in waiting for waiting in self._pending_results):
            return
        value = self.backend.kept.whole(body)
        if value is not None:
            self.on_state_change(self.backend.decode_result(value), None)

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._pid != os.getpid():
            self._begin()  # the lock may be held by a thread of the parent
        with self._changed:
            while self._reading:
                self._changed.wait()
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def on_after_fork(self) -> None:
        """A child reads for itself."""
        self._begin()


class Backend(AsyncBackendMixin, BaseKeyValueStoreBackend):  # type: ignore[misc]  # Celery has no types
    """See the module."""

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    persistent = True
    implements_incr = True

    ResultConsumer = ResultConsumer

    def __init__(self, app: Any, url: str | None = None, **named: Any) -> None:
        super().__init__(app=app, url=url, **named)
        given = app.conf.get("result_backend_transport_options") or {}
        options = {name: value for name, value in given.items() if name not in _CELERY}
        self.kept = Kept(Place.of(url or "", options), float(self.expires) if self.expires else None, self._waits)
        self._sizes = LRUCache(limit=SIZES)  # of chords
        self._part = threading.local()  # of a chord, which this thread has just ended; whether it waits for the node
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """It is made anew where it is unpickled."""
        return super().__reduce__(args, {"url": self.url, **(kwargs or {})})

    @property
    def topic(self) -> Topic:
        """The topic of the results. Raises NodeNotRunning, ClosedError."""
        return self.kept.topic

    # -- what ends in a worker ----------------------------------------------------------------------------------

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **named: Any) -> Any:
        """Keep what became of a task. A task waits for a node that is away, for `node_timeout`; raises NotStored in it
        then, elsewhere ClosedError and what else ails the node.
        """
        return self._ended(lambda: super(Backend, self).store_result(task_id, result, state, *args, **named), state)

    def mark_as_failure(self, task_id: str, exc: BaseException, *args: Any, **named: Any) -> None:
        """A task has failed, unless it was only its result that could not be stored."""
        if not isinstance(exc, NotStored):
            super().mark_as_failure(task_id, exc, *args, **named)

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """For `result_backend_always_retry`."""
        return isinstance(exc, TROUBLE)

    def _ended(self, call: Callable[[], Any], state: str) -> Any:
        """The end of a task: it has done its work, so neither the node nor a limit of its time makes it fail now."""
        before, self._part.waits = self._waits(), in_task()
        try:
            while True:
                try:
                    return call()
                except SoftTimeLimitExceeded:  # it comes once
                    if state not in states.READY_STATES:
                        raise
        except (*TROUBLE, BackendError) as error:
            if not in_task():
                raise
            logger.error("the state %s of a task could not be stored, so it is not known: %s", state, error)
            raise NotStored(f"the state of the task could not be stored: {error}") from error
        finally:
            self._part.waits = before

    def _waits(self) -> bool:
        return getattr(self._part, "waits", False)

    # -- keys and values ----------------------------------------------------------------------------------------

    def get(self, key: bytes | str) -> bytes | None:
        """The newest value of a key, or None."""
        return self.kept.newest(key_of(key))

    def mget(self, keys: Iterable[bytes | str]) -> list[bytes | None]:
        """The same of many."""
        return [self.get(key) for key in keys]

    def set(self, key: bytes | str, value: bytes | str) -> None:
        """A new value."""
        self.kept.append([key_of(key)], value)

    def _set_with_state(self, key: bytes | str, value: bytes | str, state: str) -> None:
        self.kept.append([key_of(key)], value, state)

    def task_of(self, key: str | None) -> str | None:
        """The id of the task that a key of the topic is of, or None."""
        prefix = key_of(self.task_keyprefix)
        return unquote(key[len(prefix) :]) if key is not None and key.startswith(prefix) else None

    def cleanup(self) -> None:
        """Results go by themselves."""

    # -- chords -------------------------------------------------------------------------------------------------

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """All parts of a chord but the last one were sent; perhaps not for the first time (a frozen signature)."""
        key = key_of(self.get_key_for_chord(group_id))
        if self.kept.find(key, 1):
            self.kept.append([key], AGAIN)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **named: Any) -> None:
        """A part of a chord has ended; the last one calls the body."""
        if not request.group:
            return
        self._ended(lambda: self._count(request, state, result, named), state)

    def _count(self, request: Any, state: str, result: Any, named: dict[str, Any]) -> None:
        said = request.chord.get("chord_size")
        size, members = (said, said) if said else self._size_of(request.group)
        chord, group = key_of(self.get_key_for_chord(request.group)), key_of(self.get_key_for_group(request.group))
        last = self._last_offset(chord, str(request.id), size) if size else 0
        if last is not None:
            self._part.members, self._part.closes = members, (chord, group, last)
            try:
                super().on_chord_part_return(request, state, result, **named)
            finally:
                del self._part.closes

    def _size_of(self, group: str) -> tuple[int, int]:
        """How many parts a chord has that was saved as a group, and how many members the group; 0 if it is not there. A
        member that is a group itself has its own members as parts. It is looked up once.
        """
        size: tuple[int, int] = self._sizes.get(group, (0, 0))
        if not size[0]:
            saved = self.get(self.get_key_for_group(group))
            if saved:
                members = self.decode(saved)["result"][1]
                size = self._sizes[group] = sum(map(_parts, members)), len(members)
        return size

    def _last_offset(self, key: str, part: str, size: int) -> int | None:
        """Where the record of this part is, if it is the last one of its chord, and nobody has called the body; else
        None. It is noted that it ended.
        """
        own = f"{key}/{key_of(part)}"
        mine = self.kept.find(own, 1)
        if not mine or mine[0].offset < _begin_of_round(self.kept.find(key, LOOKED_AT)):
            self.kept.append([key, own], part)
        newest = self.kept.find(key, LOOKED_AT)
        begin = _begin_of_round(newest)
        ended, since = _told([record for record in newest if record.offset >= begin])
        if ended is not None and ended < size:
            if since >= CHECKPOINT:
                self.kept.append([key], f"={ended},{newest[0].offset}")
            return None
        return self._last_offset_of_all(key, part, size)

    def _last_offset_of_all(self, key: str, part: str, size: int) -> int | None:
        """The exact look, at every part; it is taken when there seem to be enough."""
        found = self.kept.find(key, CHORD_MAX)
        begin = _begin_of_round(found)
        this = [record for record in found if record.offset >= begin]
        if begin and all(record.body != AGAIN for record in this):
            return None  # it was called; this part has run once more
        ended: dict[bytes, int] = {}  # the first record of each part
        for record in sorted(this, key=lambda record: record.offset):
            if record.body and not record.body.startswith(b"="):
                ended.setdefault(record.body, record.offset)
        return ended[part.encode()] if len(ended) >= size and list(ended)[size - 1] == part.encode() else None

    def delete(self, key: bytes | str) -> None:
        """No value any more. Of a chord whose body was called: the next round begins behind its last part. Its group
        stays, in which the next round may have been saved already.
        """
        name, (chord, group, last) = key_of(key), getattr(self._part, "closes", ("", "", 0))
        if name != group:
            self.kept.append([name], f"{CLOSED}{last}" if name == chord else b"")

    def incr(self, key: bytes | str) -> int:
        """Only the last part of a chord comes here."""
        return int(self._part.members)

    def expire(self, key: bytes | str, value: float) -> None:
        """All that is kept goes after `result_expires`."""


def _left(end: float | None) -> float | None:
    """Seconds until then; None: there is no end."""
    return None if end is None else max(0.0, end - time.monotonic())


def _parts(result: Any) -> int:
    """How many tasks end a result, as it is saved: [[id, parent], members of a group or nothing]."""
    _own, members = result
    return 1 if members is None else sum(map(_parts, members))


def _begin_of_round(records: list[Record]) -> int:
    """The first offset behind the last part that a chord had when its body was called the last time; 0: it was not."""
    begin = 0
    for record in records:
        if not record.body:  # of a version before this one
            begin = max(begin, record.offset + 1)
        elif record.body.startswith(CLOSED.encode()):
            begin = max(begin, int(record.body[len(CLOSED) :]) + 1)
    return begin


def _told(newest: list[Record]) -> tuple[int | None, int]:
    """How many parts of a chord have ended, seen from its newest records, the newest first, and how many of them since
    the last checkpoint (`=parts,offset`: so many up to that offset). None: not known from these.
    """
    since: list[int] = []
    for record in newest:
        if not record.body.startswith(b"="):
            since.append(record.offset)
            continue
        if record.body == AGAIN or record.body.startswith(CLOSED.encode()):
            continue
        ended, upto = (int(number) for number in record.body[1:].split(b","))
        if len(newest) == LOOKED_AT and newest[-1].offset > upto:
            return None, 0  # between the two there may be more than was looked at
        later = sum(other.offset > upto for other in newest if not other.body.startswith(b"="))
        return ended + later, later
    return (None, 0) if len(newest) == LOOKED_AT else (len(since), len(since))
