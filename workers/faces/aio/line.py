"""The line at a queue: the tasks that wait for messages, in order, and where a message is until a task has it.

Invariants
  A message is in one place: lying in the core (`pending`), read from a file (`_read`), read ahead (`_ahead`), given to
  a getter (`_given`), or in use. Who takes it out of one of these has it: each such step is one of the interpreter's.
  Messages are handed out in the order in which they came; while `_filling` reads from files nobody else takes any.
  When nobody waits for messages any more, what was asked for is cancelled at the worker, and what came all the same
  returns to the queue. The prefetch that the worker knows is that of all consumers, and what others hold besides. If
  none of them has a number, it is told how many are wanted ahead instead, and what lies here while all of them are busy
  returns.
  What comes for an event loop that was closed, or rests, is returned by a thread (`leave_behind`). Meanwhile (`_away`)
  the loop takes nothing, should it run again just then; afterwards it asks anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.errors import AckTimedOut, Error, TimedOut
from warren.workers.client.attachment import SERVER_READY
from warren.workers.client.trouble import not_done
from warren.workers.faces.aio.base import (
    RETRY_S,
    Underneath,
    deadline_of,
    is_late,
    run_blocking,
    time_left,
)
from warren.workers.faces.aio.claims import Claims
from warren.workers.faces.aio.loop import Loop
from warren.workers.faces.message import Message

#: how long an idle loop of gets, or consumers without a number that are all busy, keep what was delivered ahead
IDLE_S = 0.1
#: consumers without a number: so much work is ahead at most, a message counts as so much at most, the average is of so
#: many, so many messages are ahead at most, so many unacked (as in engine/binding/queue_get.c)
AHEAD_S = 0.004
HOLDING_MOST_S = 2 * AHEAD_S
HOLDINGS = 32
WINDOW_MOST = 1024
#: a single pause makes the average five times as long at most
PAUSE_TIMES, PAUSE_S = 128, 0.000065
UNACKED_MOST = 500
#: how long the worker's last word is waited for when nobody wants messages any more
LAST_LOOK_S = 0.5
#: the same of a get that knows that the worker has looked
LAST_WORD_S = 0.1
#: how long a first look (timeout 0) waits for a worker that has not seen this client yet
BEGIN_S = 1.0
#: what is left, at least, of a timeout that was not 0: that means to wait for the worker's answer
LEAST_S = 1e-6
#: how long release waits for the worker
RELEASE_S = 10.0
#: how often who waits for room looks whether the queue is still there
LOOK_S = 0.5
#: messages read from files at once
FILL = 64


class Question(NamedTuple):
    """What a get has asked a worker for."""

    handle: _core.QueueHandle
    epoch: int  #: of the worker
    told: int  #: so many things were told to it by then
    seen: tuple[int, int]  #: what had come, and the last command that asked for no more


class Getter:
    """A task that waits for messages."""

    __slots__ = ("future", "most", "of")

    def __init__(self, future: asyncio.Future[list[Message]], most: int, of: object) -> None:
        self.future = future
        self.most = most
        self.of = of  #: whoever may send it away


class Held(NamedTuple):
    """Who has a message; with an ack timeout another one may come to have the same."""

    share: Share
    message: Message | None  #: of a queue with an ack timeout
    identity: int


class Share:
    """What one consumer takes of a queue. The queue knows it; the Consumer may be forgotten."""

    def __init__(self, prefetch: int | None) -> None:
        self.adapts = prefetch is None
        self.most = UNACKED_MOST if prefetch is None else prefetch  #: it holds so many unacked
        self.window = 1  #: without a number: so many are ahead
        self.holding_s = 0.0  #: how long it holds a message, on average
        self.given_at: float | None = None
        self.holding = 0
        self.room: asyncio.Future[None] | None = None

    @property
    def prefetch(self) -> int:
        """So many may be unacked for it, in hand or ahead."""
        return min(self.most, self.holding + self.window) if self.adapts else self.most

    def looks_ahead(self) -> int:
        """It wants the next message: how many are ahead from now on."""
        if self.given_at is not None:
            held = min(time.monotonic() - self.given_at, HOLDING_MOST_S)
            if self.holding_s:
                held = min(held, PAUSE_TIMES * self.holding_s + PAUSE_S)
            self.holding_s += (held - self.holding_s) / HOLDINGS if self.holding_s else held
            if 2 * self.window * self.holding_s <= AHEAD_S and self.window < WINDOW_MOST:
                self.window *= 2
            while self.window > 1 and self.window * self.holding_s > AHEAD_S:
                self.window //= 2
        return self.window

    def settled(self) -> None:
        """A message less in hand."""
        self.holding = max(0, self.holding - 1)
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def anew(self) -> None:
        """What it held belongs to an attachment that has ended."""
        self.holding = 0
        self.settled()


def _drained(messages: deque[Message]) -> list[Message]:
    """All that lies there, taken out one by one."""
    found: list[Message] = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(messages.popleft())
    return found


class Line:
    """Who waits for messages of a queue in an event loop."""

    def __init__(self, loop: Loop, queue: Underneath) -> None:
        self.loop = loop
        self.queue = queue
        loop.takers[queue.name] = self
        self.begin()

    @property
    def handle(self) -> _core.QueueHandle:
        """The handle of the queue in use."""
        return self.queue.handle

    def begin(self) -> None:
        """Nobody waits yet, and nothing has come."""
        self._ahead: deque[Message] = deque()
        self._given: dict[Getter, list[Message]] = {}  # and the tasks have not seen it yet
        self._read: deque[Message] = deque()
        self._of = self.queue.handle  # by which all that lies here came
        self._away = False
        self._making_way = self._returned = False
        self._leaving = threading.Lock()
        self._reading = 0  # threads that read
        self._nobody()

    @property
    def in_use(self) -> bool:
        """Whether somebody consumes here."""
        return bool(self._consumers)

    def _nobody(self) -> None:
        self.getters: OrderedDict[Getter, None] = OrderedDict()
        self._consumers: list[Share] = []
        self.claims = Claims(self.loop, self.queue, lambda: self.in_use, self._heard_soon)
        self._numbered = False  # some consumer has a number
        self._window = 0  # of all consumers
        self._unacked_most = 0
        self._held: dict[int, Held] = {}
        self._filling = False
        self._polled = _core.POLL_UNBORN  # what the last look said
        self.tidier: asyncio.TimerHandle | None = None
        self.left = False  #: nothing is to be left behind, since the loop ran last
        self._coming_back = False
        self.loop.by_id[self.queue.id] = self

    def begin_again(self) -> None:
        """In another event loop: who waited in the one before has gone; what came for it is here, or returns."""
        self._nobody()
        unseen = self._unclaimed()
        if self.queue.handle.usable:
            self._put_back(unseen)
            with contextlib.suppress(AttachmentLost):
                self.queue.handle.stop()
            self._tidy_later()

    async def get(self, most: int, timeout: float | None, of: object = None) -> list[Message]:
        """At least one message, at most so many; none when none came within the timeout. `of`: for `send_away`."""
        loop = self.loop
        loop.enter()
        deadline = deadline_of(timeout)
        limit = timeout or loop.client.call_timeout
        if timeout == 0:
            answer_by: float | None = deadline_of(loop.client.call_timeout)
        else:
            answer_by = None if deadline is None else max(deadline, time.monotonic() + _core.ANSWER_MS / 1000)
        self._begin_anew()
        if not self.getters and (found := self._take(most, most)):
            self._tidy_later()
            return found
        getter = Getter(loop.events.create_future(), most, of)
        self.getters[getter] = None
        self.loop.waiting.setdefault(self.queue.server, set()).add(self)
        self.pump()
        asked = None if getter.future.done() else self._asked()
        loop.look_soon()
        loop.tick_later()
        try:
            came = await loop.in_time(getter.future, deadline)
            if came:
                self._tidy_later()
            found = getter.future.result() if came else await self._last_look(getter, asked, answer_by, limit)
            if not getter.future.done() or self._given.pop(getter, None) is not None:
                return found
        except asyncio.CancelledError:
            if (given := self._given.pop(getter, None)) is not None:
                self._put_back(given)
            raise
        finally:
            self._leave(getter)
        return await self.get(most, time_left(deadline), of)  # the loop rested, and what was given went back

    def _begin_anew(self) -> None:
        """Before a get: a message that went back is the next one, and what lies here was delivered before that."""
        handle = self.queue.handle
        if handle.nacked and not self.in_use and handle.usable and (self._ahead or handle.hoard()):
            self.make_way()

    def _leave(self, getter: Getter) -> None:
        """A getter goes; what it leaves is for the next one, and nobody's is returned."""
        getter.future.cancel()
        self.getters.pop(getter, None)
        if self.getters:
            self.pump()
            return
        self._unwait()
        if not self._consumers:
            self._tidy()

    def _unwait(self) -> None:
        for waiting in self.loop.waiting.values():
            waiting.discard(self)

    def _put_back(self, messages: list[Message]) -> None:
        """Messages that nobody saw: they are the next ones again, in order."""
        self._ahead.extend(messages)
        self._ahead = deque(sorted(self._ahead, key=lambda message: message.delivery_tag))

    async def _last_look(
        self, getter: Getter, asked: Question | None, answer_by: float | None, limit: float | None
    ) -> list[Message]:
        """Time is up. The worker may have sent something that is on its way, or not have seen us yet. "None" has to be
        its word, as in engine/binding/queue_get.c. `answer_by`: when its answer has to be there,
        because of this `limit` (s).
        """
        loop, future = self.loop, getter.future
        while not future.done():
            if self._away:
                await asyncio.sleep(RETRY_S)
                continue
            if not self.queue.handle.usable:  # another attachment, or another queue of that name
                await loop.ready()
                await self.renew_for_getters()
                if not self.queue.handle.usable:
                    await run_blocking(self.renew)
                continue
            begun = time.monotonic() + BEGIN_S
            by = answer_by if answer_by is None or not self._served() else max(answer_by, begun)
            while not future.done() and self._unborn() and not is_late(by):
                loop.look_soon()
                await loop.in_time(future, time.monotonic() + RETRY_S)
            self.pump()  # if it was not asked for anything before, it is now
            while (self._filling or self._making_way) and not future.done():  # messages are being read or given back
                await loop.in_time(future, time.monotonic() + RETRY_S)
            if future.done():
                break
            with contextlib.suppress(AttachmentLost):  # it is met again below
                self.queue.handle.check_slots()
            end = None if answer_by is None else max(answer_by, time.monotonic() + LAST_WORD_S)
            now, handle = self._asked(), self.queue.handle
            if now is None or not await self._last_word(now, future, end) or not self._same(now):
                if future.done() or not handle.usable:
                    continue
                if not is_late(answer_by):  # it has changed meanwhile: asked anew
                    await asyncio.sleep(RETRY_S)
                    continue
                known = asked is not None and self._same(asked) and self._horizon("processed") >= asked.told
                code = _core.HOOK_SILENT if known else _core.HOOK_TIMED_OUT
                what = f"queue {self.queue.name!r}: {_core.THE_ANSWER}"
                seconds = -1.0 if limit is None else limit
                await loop.hook(code, handle.server, what, seconds)
                if not known:
                    raise TimedOut(not_done(what, seconds))
            if future.done():
                break
            found = self._take(getter.most, 0) if next(iter(self.getters), None) is getter else []
            if found or (handle.usable and not (self._filling or self._making_way or self._away)):
                return found
        return future.result() if future.done() else []

    def _asked(self) -> Question | None:
        """What the worker was asked for by the last look; None when it could not be asked."""
        handle = self.queue.handle
        if self._polled != _core.POLL_EMPTY or not handle.usable:
            return None
        try:
            return Question(handle, self._epoch(), self._horizon("tail"), (handle.came, handle.cancelled))
        except (AttachmentLost, Error):
            return None

    def _horizon(self, name: str) -> int:
        core = self.loop.core
        return 0 if core is None else core.horizons(self.queue.handle.server)[name]

    def _epoch(self) -> int:
        core = self.loop.core
        return 0 if core is None else core.link_epoch(self.queue.handle.server)

    def _same(self, asked: Question) -> bool:
        """Does the worker serve that was asked?"""
        handle = self.queue.handle
        return handle is asked.handle and handle.usable and self._epoch() == asked.epoch and not self._unborn()

    def _served(self) -> bool:
        """Is there a worker? Then it takes a new client up at once."""
        attachment, server = self.loop.client.attached, self.queue.handle.server
        return attachment is not None and attachment.superblock.server_get(server, "state") == SERVER_READY

    async def _last_word(self, asked: Question, future: asyncio.Future[list[Message]], end: float | None) -> bool:
        """Has the worker said, before `end`, that there is nothing? It says it has heard, and then delivers: behind
        its next answer that is over. What came meanwhile was for others, and may have been all that was asked for: then
        it has to be asked again. Who is the last one here asks for no more.
        """
        handle = asked.handle

        def unchanged() -> bool:
            return not future.done() and (handle.came, handle.cancelled) == asked.seen

        try:
            if not await self._heard(end) or not unchanged():
                return False
            if len(self.getters) == 1 and not self._consumers:
                return await self._stop(end, 1)
            while (sent := handle.again()) is False and not is_late(end):
                await asyncio.sleep(RETRY_S)
            if sent is None or sent is False:
                return False
            if not await self.loop.passed(handle.server, _core.WANT_PROCESSED, sent, end, _core.FOR_REPLY):
                return False
        except AttachmentLost:
            return False  # the next question meets it again
        self.pump()
        return unchanged()

    def _unborn(self) -> bool:
        """Does the worker not know us yet, or is its present incarnation not open?"""
        core = self.loop.core
        if core is None or core.ended:
            return False
        handle = self.queue.handle
        if not handle.usable:
            return False
        try:
            code = core.trouble(handle.server, _core.FOR_DELIVERY)
            return code == _core.HOOK_EPOCH or core.link_epoch(handle.server) == 0
        except (AttachmentLost, Error):
            return False

    async def _stop(self, end: float | None, getters: int = 0) -> bool:
        """Ask for no more, and wait until nothing more can come; whether that is known by `end`. Not when more than so
        many want messages again.
        """
        loop, handle = self.loop, self.queue.handle
        try:
            stopped: int | bool | None = False
            while stopped is False and not is_late(end):
                if self._consumers or len(self.getters) > getters:
                    return False  # somebody wants messages again
                stopped = handle.stop()
                if stopped is False:
                    await asyncio.sleep(RETRY_S)
            if stopped is not None and stopped is not False:
                return await loop.passed(handle.server, _core.WANT_PROCESSED, stopped, end, _core.FOR_REPLY)
        except AttachmentLost:
            return False  # the servers return it
        return stopped is None

    async def _heard(self, end: float | None) -> bool:
        """Wait until the worker has done what was submitted; whether it has by `end`."""
        server, tail = self.queue.handle.server, self._horizon("tail")
        return not tail or await self.loop.passed(server, _core.WANT_PROCESSED, tail - 1, end, _core.FOR_REPLY)

    async def _heard_soon(self) -> None:
        await self._heard(time.monotonic() + LAST_LOOK_S)

    def _rest(self) -> asyncio.Task[None] | None:
        """Nobody wants anything any more: what is here returns to the queue."""
        if self.loop.closing or self.loop.events.is_closed():
            return None
        return self.loop.spawn(self._give_back())

    async def _give_back(self) -> None:
        try:
            if self.loop.client.deserted():
                self._leave_to_next()
                return
            await self._stop(time.monotonic() + LAST_LOOK_S)
            while not self.getters and not self._consumers and not self._filling and self.queue.handle.usable:
                if not self.queue.handle.quiet:  # somebody came and went meanwhile, or the worker does not answer
                    self._tidy_later()
                    break
                if self.queue.handle.give_back():  # the last ones first: whoever comes now gets what is below them
                    messages, self._ahead = list(self._ahead), deque()
                    if messages:
                        self.queue.handle.settle_many(messages, False, True, True)
                    await self._heard(time.monotonic() + LAST_LOOK_S)
                    break
                await asyncio.sleep(RETRY_S)
        except (AttachmentLost, Error):
            return  # the attachment is over: the servers return it
        if self.getters:
            self.pump()
            self.loop.look_soon()

    def make_way(self) -> None:
        """A message returned to its place in the queue. Messages that are here for nobody, or on their way here, come
        after it: give them back, too, before anything is delivered.
        """
        self._returned = True
        if not self._making_way and not self.loop.closing and not self.loop.events.is_closed():
            self._making_way = True
            self.loop.spawn(self._make_way())

    async def _make_way(self) -> None:
        try:
            while self._returned and self.queue.handle.usable:
                self._returned = False
                await self._submitted()
                handle = self.queue.handle
                while (handle.take_back() if self.in_use else handle.stop()) is False:
                    await asyncio.sleep(RETRY_S)
                while not await self._executed() or self._filling:
                    await asyncio.sleep(RETRY_S)
                while not handle.give_back():  # the last ones first: while one is left, no later one is delivered
                    await asyncio.sleep(RETRY_S)
                messages, self._ahead = list(self._ahead), deque()
                if messages:
                    handle.settle_many(messages, False, True, True)
        except (AttachmentLost, Error):
            pass  # the attachment is over: the servers return it
        finally:
            self._making_way = False
        self._prefetch()
        with contextlib.suppress(AttachmentLost, Error):
            while not self._making_way and not self.queue.handle.ask():
                await asyncio.sleep(RETRY_S)
        self.pump()
        self.loop.look_soon()

    async def _executed(self) -> bool:
        """Whether the worker has done all that was submitted. One that was killed has a successor soon."""
        if not self.queue.handle.usable:
            raise AttachmentLost
        try:
            return await self._heard(time.monotonic() + LAST_LOOK_S)
        except Error:
            return False

    async def _submitted(self) -> None:
        """Wait until all that was settled here is submitted."""

    def _leave_to_next(self) -> None:
        """Nobody lives at the node: the next one is told what returns, and nobody waits for it."""
        if not self.getters and not self._consumers and not self._filling and self.queue.handle.usable:
            self.queue.leave_to_next()
            messages, self._ahead = list(self._ahead), deque()
            if messages:
                self.queue.handle.settle_many(messages, False, True, True)

    def _tidy_later(self) -> None:
        """After a loop of gets has stopped, what was delivered ahead returns."""
        if self.tidier is None and not (self._consumers and self._numbered):
            self.tidier = self.loop.events.call_later(IDLE_S, self._tidy)

    def _tidy(self) -> None:
        self.tidier = None
        if self.getters or self.loop.closing or not self.queue.handle.usable:
            return
        if self._consumers and self._numbered:
            return
        hoard = self.queue.handle.hoard()
        if hoard < 0:
            self._tidy_later()
        elif hoard and self._consumers:
            for share in self._consumers:
                share.window = 1
            self._prefetch()
            self.loop.spawn(self._thin(0))
        elif hoard or self._ahead:
            self._rest()

    def _cancel_soon(self) -> None:
        """No consumer is left, and some get messages still: from now on what they wait for is asked for, one by one."""
        if self.queue.handle.usable and self.getters and not self._consumers:
            if self.queue.handle.stop() is False:
                self.loop.events.call_later(RETRY_S, self._cancel_soon)
            else:
                self.pump()
                self.loop.look_soon()

    # -- taking -------------------------------------------------------------------------------------------------

    def _take(self, most: int, wanted: int) -> list[Message]:
        """Up to `most` messages that are here; else what is missing is asked for, or set right."""
        found: list[Message] = []
        self._follow()
        if self._making_way:
            return found
        while self._ahead and len(found) < most:
            found.append(self._ahead.popleft())
        if found or self._filling or self._away:
            return found
        self._polled = _core.POLL_STALE
        try:
            answer = self.queue.handle.poll(most, wanted, True)
        except AttachmentLost:
            if wanted:
                self.loop.spawn(self.renew_for_getters())
            return []
        if isinstance(answer, list):
            return answer  # type: ignore[return-value]  # the class given to the handle
        self._polled = answer
        if answer == _core.POLL_SLOW:
            self._filling = True
            self.loop.spawn(self._fill())
        elif answer == _core.POLL_STALE:
            self.loop.mend(self.queue.server, _core.HOOK_EPOCH)
        elif answer == _core.POLL_NO_ROOM:
            self.loop.events.call_later(RETRY_S, self.pump)
        return []

    def pump(self) -> None:
        """Give the getters what has come, in order."""
        while self.getters:
            getter = next(iter(self.getters))
            if getter.future.done():
                del self.getters[getter]
                continue
            try:
                found = self._take(getter.most, len(self.getters) - 1 + getter.most)
            except (Error, OSError) as error:  # a damaged message: whoever would have got it is told
                del self.getters[getter]
                getter.future.set_exception(error)
                continue
            if not found:
                break
            del self.getters[getter]
            self._given[getter] = found
            getter.future.set_result(found)
        if not self.getters:
            self._unwait()

    async def _fill(self) -> None:
        """Read messages that lie in files."""
        handle = self.queue.handle
        try:
            await asyncio.shield(run_blocking(self._read_some, handle))
            found = _drained(self._read)
            self._follow()
            if self._of is handle:
                self._put_back(found)
        except AttachmentLost:
            self.loop.lost()
        except (Error, OSError) as error:
            if self.getters:
                getter, _none = self.getters.popitem(last=False)
                if not getter.future.done():
                    getter.future.set_exception(error)
        finally:
            self._filling = False
        self.pump()
        self.loop.look_soon()
        if self._ahead and not self.getters:
            self._tidy_later()

    @property
    def _fill_most(self) -> int:
        """How many messages are read from files at once, at most."""
        return FILL

    def _read_some(self, handle: _core.QueueHandle) -> None:
        """In a thread: messages from files."""
        self._reading += 1
        try:
            answer = handle.poll(self._fill_most, 0, False)
            if isinstance(answer, list):
                self._read.extend(answer)  # type: ignore[arg-type]  # the class given to the handle
        finally:
            self._reading -= 1

    # -- an event loop that does not run ------------------------------------------------------------------------

    def _unclaimed(self) -> list[Message]:
        """What came, and no task has seen, in order; it is the caller's now."""
        found = [*_drained(self._ahead), *_drained(self._read)]
        while self._given:
            with contextlib.suppress(KeyError):  # its task has seen it just now
                found += self._given.popitem()[1]
        return sorted(found, key=lambda message: message.delivery_tag)

    def leave_behind(self) -> None:
        """The event loop was closed, or rests: nothing more is asked for, and what came returns to the queue as if
        nobody had seen it, which is so. In a thread. What cannot be done now is done after the next look.
        """
        if not self._leaving.acquire(blocking=False):
            return  # another thread is at it
        self._away = True  # before the look whether the loop runs: from then on it takes nothing
        try:
            if not self.loop.runs and not self._lives_by_consumers():
                self.left = self._return_all()
        except (AttachmentLost, Error):
            return  # the attachment is over, and the servers return it; or the next look meets the trouble
        finally:
            self._away = False
            self._leaving.release()
            if not self._coming_back:
                with contextlib.suppress(RuntimeError):  # it was closed: nobody comes back
                    self.loop.events.call_soon_threadsafe(self._come_back)
                    self._coming_back = True

    def _lives_by_consumers(self) -> bool:
        """Whether the queue would go with the consumers of a loop that may run again."""
        return bool(self._consumers) and self.queue.is_auto_delete and not self.loop.events.is_closed()

    def _return_all(self) -> bool:
        """Whether nothing is here any more, and nothing will come."""
        handle, core = self.queue.handle, self.loop.core
        if not handle.usable or core is None:
            self._unclaimed()
            return True
        if self._reading:
            return False
        if self.loop.client.deserted():
            self.queue.leave_to_next()
        elif (
            not self.claims.left()
            or handle.stop() is False
            or not core.wait_submitted(LAST_LOOK_S)
            or not handle.quiet
            or not handle.give_back()  # the last ones first
        ):
            return False
        messages = self._unclaimed()
        if messages:
            handle.settle_many(messages, False, True, True)
        return True

    def _come_back(self) -> None:
        """The loop runs again: who waits asks anew."""
        self._coming_back = self.left = False
        if self.getters or self._consumers:
            self._prefetch()
            self.loop.waiting.setdefault(self.queue.server, set()).add(self)
            self.pump()
            self.loop.look_soon()

    @property
    def idle(self) -> bool:
        """Nothing lies here that whoever waits is about to get."""
        return not self._ahead and not self._filling and not (self.queue.handle.usable and self.queue.handle.pending)

    def fail(self, error: Exception) -> None:
        """Whoever waits gets this error."""
        getters, self.getters = self.getters, OrderedDict()
        for getter in getters:
            if not getter.future.done():
                getter.future.set_exception(error)
                getter.future.exception()  # it may have been cancelled meanwhile
        self._unwait()

    def send_away(self, of: object, error: Callable[[], Exception]) -> None:
        """Those getters get an error; messages that came for them are the next ones'."""
        for getter in [getter for getter in self.getters if getter.of is of]:
            del self.getters[getter]
            if not getter.future.done():
                getter.future.set_exception(error())
                getter.future.exception()  # it may have been cancelled meanwhile

    @property
    def kept(self) -> int:
        """How many messages were read ahead, and are nobody's yet; the core does not know of them any more."""
        return len(self._ahead)

    async def release(self) -> None:
        """What was delivered ahead and is nobody's returns. Who waits keeps what comes. Raises TimedOut and what else
        ends a wait."""
        end = time.monotonic() + RELEASE_S
        while not self.getters:
            if self._consumers:
                await self._thin(0)
                return
            handle = self.queue.handle
            if not handle.usable:
                return  # the servers return it
            await self._give_back()
            if self.loop.client.deserted():
                return  # the next node returns it
            if self.getters or self._consumers:
                continue
            if handle.quiet and not handle.pending and not self._ahead and await self._heard(end):
                return
            if is_late(end):
                what = f"queue {self.queue.name!r}: the return of what was delivered ahead"
                await self.loop.hook(_core.HOOK_TIMED_OUT, handle.server, what, RELEASE_S)
                raise TimedOut(not_done(what, RELEASE_S))
            await asyncio.sleep(RETRY_S)

    def renew(self) -> None:
        """A handle of the attachment in use; it blocks."""
        self.queue.renew()
        self.loop.by_id[self.queue.id] = self
        self.claims.again()

    async def make_usable(self) -> None:
        """What is to be published needs a handle of an attachment that is good."""
        if not self.queue.handle.usable:
            await self.loop.ready()
            await run_blocking(self.renew)

    async def renewed(self) -> None:
        """The node has another attachment."""
        await self.renew_for_getters(by_node=True)

    def _follow(self) -> None:
        """What lies here and what is held came by another handle than the one in use: it returns by itself. Before
        anything is taken by a new handle, so what that one brings stays, whoever made it.
        """
        if self._of is self.queue.handle:
            return
        self._of = self.queue.handle
        self._unclaimed()
        self._held.clear()
        for consumer in self._consumers:
            consumer.anew()

    async def renew_for_getters(self, by_node: bool = False) -> None:
        """Who waits goes on with a handle that is good; `by_node`: the loop makes the attachment, and waits."""
        if not self.queue.handle.usable:
            try:
                if not by_node:
                    await self.loop.ready()
                await run_blocking(self.renew)
            except AttachmentLost:
                return  # it went again; the next look comes back here
            except Error as error:
                self.fail(error)
                return
        self._follow()
        self._prefetch()
        if self.getters:
            self.loop.waiting.setdefault(self.queue.server, set()).add(self)
            self.pump()
            self.loop.look_soon()

    def _prefetch(self) -> None:
        """Tell the worker how much all consumers together take ahead, besides what others here hold unacked."""
        if self._away:
            return  # whoever comes back says it
        handle, attachment = self.queue.handle, self.loop.client.attached
        if self._consumers and handle.usable and attachment is not None:
            slots = attachment.delivery_slots
            others = max(0, handle.unacked - len(self._ahead) - sum(share.holding for share in self._consumers))
            self._numbered = any(not share.adapts for share in self._consumers)
            self._window = sum(share.window for share in self._consumers)
            if self._numbered:
                handle.begin(max(1, min(sum(share.prefetch for share in self._consumers) + others, slots)))
            else:
                self._unacked_most = sum(share.most for share in self._consumers) + others
                handle.adapt(self._window, self._unacked_most)

    async def widen(self, share: Share) -> None:
        """A consumer without a number wants its next message: what is ahead follows its work."""
        before, handle = share.window, self.queue.handle
        if share.looks_ahead() != before or self._numbered:
            if self._numbered:
                self._prefetch()
                return
            self._window += share.window - before
            if handle.usable:
                handle.adapt(self._window, self._unacked_most)
        lying = handle.pending if handle.usable else 0
        if lying > 2 * self._window and lying * share.holding_s > 4 * AHEAD_S * len(self._consumers):
            await self._thin(self._window)

    async def _thin(self, keep: int) -> None:
        """More lies here than pays: others shall have it. The worker still counts us as a consumer."""
        handle = self.queue.handle
        try:
            taken = handle.take_back()
            if taken is not None and taken is not False:
                end = time.monotonic() + LAST_WORD_S
                await self.loop.passed(handle.server, _core.WANT_PROCESSED, taken, end, _core.FOR_REPLY)
            if not self.getters and not self._filling and handle.usable and handle.still:
                handle.give_back(keep)  # the last ones first: whoever comes now gets what is below them
        except (AttachmentLost, Error):
            return  # the attachment is over, and the servers return it; or whoever waits next meets the trouble
        if self.getters:
            self.pump()
            self.loop.look_soon()

    # -- consumers ----------------------------------------------------------------------------------------------

    async def join(self, share: Share) -> None:
        """A consumer comes."""
        self._consumers.append(share)
        await self.renew_for_getters()

    async def has_room(self, room: asyncio.Future[None], deadline: float | None) -> bool:
        """Wait until a consumer may take another message; False at the deadline. Raises QueueNotFound when there will
        be none, because the queue was deleted: an ack would end the wait, and nobody has to ack what is gone.
        """
        loop = self.loop
        while True:
            look_at = time.monotonic() + LOOK_S
            if await loop.in_time(room, look_at if deadline is None else min(deadline, look_at)):
                return True
            if is_late(deadline):
                return False
            self._let_timed_out_go()
            await loop.ready(self.queue.handle)
            with contextlib.suppress(AttachmentLost):
                await loop.hook(_core.HOOK_CHECK, self.queue.server)
            if not self.queue.handle.usable:
                await self.renew_for_getters()
                if not self.queue.handle.usable:
                    await run_blocking(self.renew)

    def part(self, share: Share) -> asyncio.Future[Any] | None:
        """A consumer goes; what the others want stays asked for. The task that returns what was for nobody else."""
        if share not in self._consumers or self.loop.closing:
            return None
        self._consumers.remove(share)
        if self._consumers:
            self._prefetch()
            return None
        resting = None
        if self.getters:
            self._cancel_soon()
        else:
            resting = self._rest()
        return self.claims.depart(resting)

    def hold(self, message: Message, share: Share) -> None:
        """The message is in the consumer's hand."""
        share.holding += 1
        share.given_at = time.monotonic()
        timed = self.queue.handle.ack_timeout > 0
        self._let_go(message.delivery_tag)  # it had timed out, and came again
        self._held[message.delivery_tag] = Held(share, message if timed else None, id(message))

    def _let_go(self, tag: int) -> None:
        held = self._held.pop(tag, None)
        if held is not None:
            held.share.settled()

    def _let_timed_out_go(self) -> None:
        """What nobody settled in time, and nobody may settle any more, leaves its place to the next message."""
        for tag, held in list(self._held.items()):
            if held.message is not None and held.message.timed_out:
                self._let_go(tag)

    def settle_soon(self, messages: Sequence[Message], call: Callable[[], None]) -> None:
        """Ack or nack by a call: now, or when there is room for it."""
        loop = self.loop
        loop.enter()
        core = loop.core
        with contextlib.suppress(AttachmentLost):  # then the call says so, in words
            if core is not None and not core.ended and core.room(self.queue.server, 1, 0, 0) is not None:
                loop.spawn(self.settle(messages, call, False))
                return
        self._settle(messages, call, False)

    def release_soon(self) -> None:
        """What was delivered ahead and is nobody's returns; nobody waits for that."""
        if not self.getters and not self._consumers:
            self._rest()

    async def settle(self, messages: Sequence[Message], call: Callable[[], None], multiple: bool) -> None:
        """Ack or nack by a call, when there is room for it."""
        loop = self.loop
        loop.enter()
        core = loop.core
        if core is not None and not core.ended:
            many = multiple or len(messages) > 1
            need = (16, 1 << 16, 1 << 15) if many else (1, 0, 0)
            with contextlib.suppress(AttachmentLost):  # then the call says so, in words
                while (blocked := core.room(self.queue.server, *need)) is not None:
                    await loop.passed(blocked[0], _core.WANT_HEAD, blocked[1], None, _core.FOR_ROOM)
        self._settle(messages, call, multiple)

    def _settle(self, messages: Sequence[Message], call: Callable[[], None], multiple: bool) -> None:
        try:
            call()
        except AckTimedOut:  # they are nobody's here, either
            self._settled(messages, multiple)
            raise
        self._settled(messages, multiple)

    def _settled(self, messages: Sequence[Message], multiple: bool) -> None:
        """Consumers do not have these in hand any more."""
        if multiple:
            self._let_go_up_to(messages[-1])
        for message in messages:
            held = self._held.get(message.delivery_tag)
            if held is not None and held.identity == id(message):
                self._let_go(message.delivery_tag)

    def _let_go_up_to(self, message: Message) -> None:
        """What consumers were handed before a message. Of one that a get had only its place in the queue is known."""
        tag = message.delivery_tag
        in_order = list(self._held)
        for before in in_order[: in_order.index(tag)] if tag in self._held else [one for one in in_order if one <= tag]:
            self._let_go(before)
