"""What one event loop does for a client: its bell, all that is waited for, and how it comes back after trouble.

Invariants
  All state is the event loop's: only `_ring` is called by another thread. Nothing here waits but by awaiting.
  A bell looks after everybody: confirms, horizons, getters; each look says to the core what is still wanted.
  One task makes a new attachment, for all who need it; one for each server opens the regions of its next incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.errors import (
    ClosedError,
    DiskFull,
    Error,
    LimitError,
    NodeNotRunning,
    PeerLost,
    QueueFull,
    TimedOut,
    UsageError,
)
from warren.engine.saying import counted
from warren.workers.client import waiter
from warren.workers.client.client import Client
from warren.workers.faces.aio.base import (
    META,
    Underneath,
    blocking,
    deadline_of,
    in_all,
    is_late,
    run_blocking,
    time_left,
)
from warren.workers.faces.aio.doorbell import Doorbell

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", covariant=True, default=None)
else:
    R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")

#: how often the servers' lives and the catalog are looked at while somebody waits
TICK_S = 0.5
#: how long all delivery slots are held before who waits is told (as in engine/binding/queue_get.c)
FULL_S = 1.0
#: an event loop that rests for so many looks of the waiting thread in a row gets nothing more until it runs again
STILL_LOOKS = 2
#: pause before the next try while an alarm is on
ALARM_S = 0.02
#: of messages that a node which was stopped did not take, as in engine/binding/confirm.c
NOT_TAKEN = "they are not stored, the others are; start the node, and publish those that `not_taken` names again"


class Confirm(Generic[R]):
    """The promise of a put with wait=False. Await it, once or several times; it raises what put raises. That of an
    append to a topic gives the Position, or a list of them.
    """

    def __init__(
        self,
        loop: Loop,
        parts: Sequence[tuple[int, _core.Confirm[Any]]],
        queue: Underneath | None = None,
        join: Callable[[list[Any]], R] | None = None,
    ) -> None:
        self._loop = loop
        self._parts = parts  # with the number of its first message, each
        self._queue = queue
        self._join = join  # makes what awaiting it gives, of what the parts give

    def __repr__(self) -> str:
        return f"<Confirm, {'done' if self.done() else 'pending'}>"

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a Confirm of warren.aio belongs to its event loop: await it there, and tell others what came of it"
        )

    def done(self) -> bool:
        """Whether awaiting it would not wait."""
        return all(part.done() for _start, part in self._parts)

    @property
    def duplicate(self) -> bool:
        """It is confirmed, and a message was dropped because its id was seen within the deduplication window."""
        return any(part.duplicate for _start, part in self._parts)

    async def wait(self, timeout: float | None = None) -> None:
        """Return when it is confirmed. Raises QueueFull, TimedOut (it may still be stored), PeerLost, SyncFailed."""
        await self._until(deadline_of(timeout))

    async def _until(self, deadline: float | None) -> list[Any]:
        refused: list[int] = []
        left: list[int] = []
        results: list[Any] = []
        full: QueueFull | None = None
        for start, part in self._parts:
            try:
                results.append(await self._loop.confirmed(part, deadline))
            except QueueFull as error:
                refused += [start + number for number in error.refused]
                full = error
            except ClosedError as error:
                if not error.not_taken:
                    raise
                left += [start + number for number in error.not_taken]
            except TimedOut as error:
                raise error if self._queue is None else self._queue.late(error) from None
        if full is not None:
            told = full if self._queue is None else self._queue.told(full)
            told.refused = tuple(sorted(refused + left))
            raise told
        if left:
            closed = ClosedError(
                f"the node was stopped before it took {counted(len(left), 'message')} of the call: {NOT_TAKEN}"
            )
            closed.not_taken = tuple(left)
            raise closed
        return results

    async def _kept(self, deadline: float | None) -> R:
        results = await self._until(deadline)
        return cast("R", None) if self._join is None else self._join(results)

    def __await__(self) -> Generator[Any, None, R]:
        return self._kept(None).__await__()


class Taker(Protocol):
    """Who messages are awaited for: the line of a queue."""

    @property
    def handle(self) -> _core.QueueHandle: ...

    def begin(self) -> None:
        """The client belongs to another process, a child of fork: whoever waited is not there any more."""

    def begin_again(self) -> None:
        """The same in another event loop: what came for the one before is here still."""

    def leave_behind(self) -> None:
        """The event loop does not run: what came for it returns. In a thread; it may block."""

    @property
    def left(self) -> bool:
        """Nothing is to be left behind, or all of it has been."""

    def pump(self) -> None:
        """Something may have come."""

    @property
    def idle(self) -> bool:
        """Nothing lies here that whoever waits is about to get."""

    def fail(self, error: Exception) -> None:
        """Whoever waits gets this error."""

    def renew(self) -> None:
        """A handle of the attachment in use; it may block."""

    async def renewed(self) -> None:
        """There is another attachment."""


class Loop:
    """A client in an event loop. It belongs to the loop that it was made in, until that is closed or the process forks;
    then to the next one that uses it.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.closing = False  #: close() has begun
        self.takers: weakref.WeakValueDictionary[str, Taker] = weakref.WeakValueDictionary()  #: by name of the queue
        self._doorbell: Doorbell | None = None
        self._begin(asyncio.get_running_loop())
        self.watch()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything that belongs to one loop, in one process."""
        self.events = loop
        self.pid = os.getpid()
        self.core: _core.Client | None = None
        self._listener: Callable[[], None] | None = None
        self._belled = False
        self._promises = waiter.Promises()
        self._until: set[tuple[int, int, int, asyncio.Future[None]]] = set()
        self.waiting: dict[int, set[Taker]] = {}  # queues with getters, by server
        self.by_id: weakref.WeakValueDictionary[int, Taker] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._coming_back: asyncio.Task[None] | None = None
        self._stores: dict[int, tuple[object, int]] = {}  # of which attachment and epoch the regions are open
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._full_since: dict[int, float] = {}  # servers whose delivery slots are all held here
        self._still = 0  # looks in a row that found the event loop at rest

    @property
    def closed(self) -> bool:
        """True after close(), of this or of the client."""
        return self.closing or self.client.closed

    async def close(self, leave: Callable[[], None]) -> None:
        """Who waits gets ClosedError; `leave` ends the client, and may block. Raises UsageError in another loop."""
        self.enter()
        self.closing = True
        error = ClosedError(f"this client of {self.client.directory.path} was closed: attach again")
        for taker in list(self.by_id.values()):
            taker.fail(error)
        for *_want, future in self._until:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be there any more
        if self._ticker is not None:
            self._ticker.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The waiting thread holds the memory as long as it watches it; the end of the core wakes it.
        try:
            await run_blocking(leave)
            self._bell()
            if self.core is not None and self._listener is not None:
                waiter.unwatch(self.core, self._listener)
        finally:
            if self._doorbell is not None:
                self._doorbell.close()

    # -- entering -----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Is this the node's loop? Raises UsageError, ClosedError."""
        if self.closing:
            raise ClosedError(f"this client of {self.client.directory.path} is closed: attach again")
        loop, forked = asyncio.get_running_loop(), self.pid != os.getpid()
        if loop is self.events and not forked:
            return
        if forked or self.events.is_closed():
            if self.core is not None and self._listener is not None and not forked:
                waiter.unwatch(self.core, self._listener)
            self._begin(loop)
            for taker in list(self.takers.values()):
                taker.begin() if forked else taker.begin_again()
            if not forked:
                self.watch()
        else:
            raise UsageError("this node belongs to another event loop: open one in each, with warren.aio.attach")

    async def do(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call something that blocks, in a thread."""
        self.enter()
        return await run_blocking(call, *args, **named)

    def watch(self) -> None:
        """Let the waiting thread watch the attachment in use."""
        core = self.client.core
        if core is self.core:
            return
        reference = weakref.ref(self)

        def ring() -> None:
            loop = reference()
            if loop is not None:
                loop._ring()

        def look() -> None:
            loop = reference()
            if loop is not None:
                loop._look_after_the_left()

        waiter.watch(core, ring, look)
        self.core, self._listener = core, ring
        self._have_doorbell()

    def _have_doorbell(self) -> None:
        """One of the attachment in use, where there can be one."""
        old, self._doorbell = self._doorbell, None
        if old is not None and old.core is not self.core:
            old.close()
            old = None
        attachment = self.client.attached
        if attachment is None or attachment.core is not self.core:
            return
        reference = weakref.ref(self)

        def rung() -> None:
            loop = reference()
            if loop is not None and not loop._belled:  # else it has a look before it
                loop._bell()

        try:
            doorbell = old or Doorbell(attachment)
        except OSError:
            return
        try:
            doorbell.watch(self.events, rung)
        except (NotImplementedError, OSError, AttachmentLost, Error):
            doorbell.close()
        else:
            self._doorbell = doorbell

    async def ready(self, *handles: _core.QueueHandle) -> _core.Client:
        """The core of an attachment that is good, with the catalog of now, or with what it says of these queues."""
        core = self.core
        if core is None or core.over:
            await self._come_back()
            core = self.core
            assert core is not None
        if handles:
            old = any(handle.perhaps_gone for handle in handles)
        else:
            old = core.behind
        if old:
            await run_blocking(self.client.router)
        return core

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that close() cancels."""
        task = self.events.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- publishing ---------------------------------------------------------------------------------------------

    async def submit(
        self,
        call: Callable[[], T],
        need: tuple[int, int],
        deadline: float | None,
        queue: Underneath | None = None,
        ahead: bool = False,
        store: int | None = None,
        topics: int = 0,
    ) -> T:
        """Call something that publishes, or writes to a `store`, without waiting, when there is room for it, or when no
        time is left (`ahead`, and no deadline: call_timeout).

        Without a queue or store there has to be room at every worker: it goes to all of its queues or to none. So
        there has to be at the topic worker, when a message goes to `topics`, at most.

        A message that is too large for shared memory takes none; its file is written and synced in a thread.
        """
        count, size = need[0], max(0, need[1]) + META
        if ahead and deadline is None:
            deadline = deadline_of(self.client.call_timeout)
        while True:
            core = await self.ready(*([] if queue is None else [queue.handle]))
            try:
                large = (
                    store is None and count == 1 and size > self.client.attachment().superblock.get("shared_bytes_max")
                )
                room = META if large else size
                servers = [queue.server] if queue is not None else self._workers() if store is None else [store]
                wanted = [(one, count) for one in servers]
                if topics:
                    wanted.append((self.client.attachment().superblock.topic_server, count * topics))
                blocked = next(filter(None, (core.room(one, n, room, room) for one, n in wanted)), None)
            except AttachmentLost:
                continue
            if blocked is not None and not is_late(deadline):
                await self.passed(blocked[0], _core.WANT_HEAD, blocked[1], deadline, _core.FOR_ROOM)
                continue
            try:
                return await run_blocking(call) if large else call()
            except AttachmentLost:
                continue
            except (TimedOut, DiskFull) as error:
                if is_late(deadline):
                    raise in_all(error, deadline) from None
            except PeerLost:  # the worker is down and the ring is full, or there is nobody left
                if blocked is None or is_late(deadline):
                    raise
            await asyncio.sleep(ALARM_S if deadline is None else min(ALARM_S, time_left(deadline) or 0))

    async def store_opened(self, store: int) -> None:
        """The regions of a store's present incarnation are opened in a thread, once for all who wait."""
        attachment = self.client.attachment()
        now = attachment, attachment.superblock.server_get(store, "epoch")
        if self._stores.get(store) == now:
            return
        opening = self._opening.get(store)
        if opening is None:
            opening = self._opening[store] = self.spawn(self._open_store(store, now))
            opening.add_done_callback(lambda _task: self._opening.pop(store, None))
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ClosedError(f"this client of {self.client.directory.path} was closed: attach again")
        opening.result()

    async def _open_store(self, store: int, now: tuple[object, int]) -> None:
        with contextlib.suppress(AttachmentLost):  # whoever submits next finds that out, and another one
            await self.hook(_core.HOOK_EPOCH, store)
            self._stores[store] = now

    def _workers(self) -> list[int]:
        return list(self.client.attachment().superblock.queue_workers)

    async def wait_for(self, confirm: Confirm, wait: bool, deadline: float | None) -> Confirm | None:
        """What a publish returns: the promise, or (`wait`) nothing, when it is kept."""
        if not wait:
            return confirm
        await confirm._until(deadline)
        return None

    async def appended(self, confirm: Confirm[R], wait: bool, deadline: float | None) -> R | Confirm[R]:
        """What an append returns: the promise, or (`wait`) what it is of, when it is kept."""
        return await confirm._kept(deadline) if wait else confirm

    async def confirmed(self, confirm: _core.Confirm[R], deadline: float | None) -> R:
        """Wait for a confirm of the core; its result. Raises what it says, TimedOut."""
        if not confirm.done():
            self.enter()
            future: asyncio.Future[None] = self.events.create_future()
            if self._promises.add(confirm, functools.partial(_set, future)):
                self.look_soon()
                self.tick_later()
                try:
                    await self.in_time(future, deadline)
                finally:
                    future.cancel()
        try:
            return confirm.result(0)
        except TimedOut as error:
            raise in_all(error, deadline) from None

    def when_confirmed(
        self, confirm: _core.Confirm[Any], call: Callable[[_core.Confirm[Any], Error | None], None]
    ) -> bool:
        """`call(confirm, error)` in this loop when it is done, or nothing can confirm it any more (`error`); False: it
        is done already, and nobody calls.
        """
        if not self._promises.add(confirm, call):
            return False
        self.look_soon()
        self.tick_later()
        return True

    @staticmethod
    async def in_time(future: asyncio.Future[T], deadline: float | None) -> bool:
        """Wait for a future until the deadline; whether it is done then."""
        if deadline is None:
            await future
            return True
        done, _pending = await asyncio.wait([future], timeout=time_left(deadline))
        if done:
            future.result()
        return bool(done)

    # -- waiting ------------------------------------------------------------------------------------------------

    async def passed(self, server: int, kind: int, above: int, deadline: float | None, purpose: int) -> bool:
        """Wait until a horizon has passed `above`; False at the deadline. Raises what ends a wait for this purpose."""
        core = self.core
        if core is None or core.ended:
            return True
        code = core.trouble(server, purpose)
        if code and code != _core.HOOK_EPOCH:
            await self.hook(code, server)
        future: asyncio.Future[None] = self.events.create_future()
        want = (server, kind, above, future)
        self._until.add(want)
        self.look_soon()
        self.tick_later()
        try:
            return await self.in_time(future, deadline)
        finally:
            self._until.discard(want)

    def _ring(self) -> None:
        """Another thread: something that was wanted is there."""
        if not self._belled:
            self._belled = True
            try:
                self.events.call_soon_threadsafe(self._bell)
            except RuntimeError:  # the loop is closed: nobody waits in it
                self._belled = False
                self._look_after_the_left()

    @property
    def runs(self) -> bool:
        """Whether the event loop is there, and runs."""
        return self.events.is_running() and not self.events.is_closed()

    def _look_after_the_left(self) -> None:
        """The waiting thread, about once a second: does the event loop run? What comes for one that was closed, or
        rests between two runs for longer than that, would wait there for nobody, or for long.
        """
        self._still = 0 if self.runs else self._still + 1
        if self._still < (1 if self.events.is_closed() else STILL_LOOKS) or self.closing or self.pid != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # the process ends
            for reference in self.takers.valuerefs():
                taker = reference()
                if taker is not None and not taker.left:
                    blocking().submit(taker.leave_behind)

    def look_soon(self) -> None:
        """Something may have changed, or somebody else waits: look after everybody in the next turn of the loop."""
        if not self._belled:
            self._belled = True
            self.events.call_soon(self._bell)

    def _bell(self) -> None:
        """Look after everybody who waits, and say what is still wanted."""
        self._belled = False
        for confirm, call in self._promises.collect():
            call(confirm, None)
        core = self.core
        if core is None:
            return
        again = False
        try:
            for server, queues_waiting in list(self.waiting.items()):
                for id in core.lying(server):
                    queue = self.by_id.get(id)
                    if queue is not None:
                        queue.pump()
                if queues_waiting:
                    again |= core.watch(server, _core.WANT_DELIVERY, 0)
                    code = core.trouble(server, _core.FOR_DELIVERY)
                    if code:
                        self.mend(server, code)
                else:
                    del self.waiting[server]
            for want in list(self._until):
                server, kind, above, future = want
                if core.watch(server, kind, above):
                    self._until.discard(want)
                    if not future.done():
                        future.set_result(None)
            again |= self._promises.watch(core)
        except (AttachmentLost, Error):
            self.lost()
            return
        if again:
            self.look_soon()

    def lost(self) -> None:
        """The attachment is over."""
        for *_want, future in self._until:
            if not future.done():
                future.set_result(None)  # whoever waits looks again
        self._until.clear()
        if len(self._promises):
            self.look_soon()
        if any(self.waiting.values()) and not self.closing and self._coming_back is None:
            self.spawn(self._come_back_for_getters())

    async def _come_back_for_getters(self) -> None:
        try:
            await self._come_back()
        except Error as error:
            for queue in list(self.by_id.values()):
                queue.fail(error)

    async def _come_back(self) -> None:
        """Another attachment; one task makes it for all. Raises ClosedError, LimitError."""
        if self._coming_back is None:
            self._coming_back = self.spawn(self._attach_again())
            self._coming_back.add_done_callback(self._came_back)
        coming = self._coming_back
        await asyncio.wait([coming])
        if coming.cancelled():
            raise ClosedError(f"this client of {self.client.directory.path} was closed: attach again")
        coming.result()

    def _came_back(self, task: asyncio.Task[None]) -> None:
        self._coming_back = None
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it

    async def _attach_again(self) -> None:
        await run_blocking(self.client.attachment)
        self.watch()
        for taker in list(self.takers.values()):
            await taker.renewed()
        self.look_soon()

    def mend(self, server: int, code: int) -> None:
        """Something is wrong with a server that messages are awaited from."""
        if server not in self._mending and not self.closing:
            task = self._mending[server] = self.spawn(self._mended(server, code))
            task.add_done_callback(lambda _task: self._mending.pop(server, None))

    async def _mended(self, server: int, code: int) -> None:
        try:
            await self.hook(code, server)
        except AttachmentLost:
            self.lost()
        except Error as error:
            for queue in list(self.waiting.get(server, ())):
                queue.fail(error)
        self.look_soon()

    async def hook(self, code: int, server: int, what: str = "", seconds: float = -1.0) -> None:
        """Set right what the core says is wrong, or raise what ends the wait; `seconds`: it took longer than that.

        Who waits for messages of that server looks anew: a look before found no worker to ask, and what is set right
        now, whoever wanted it, is no trouble any more that would lead to another look.
        """
        await run_blocking(self.client.hook, code, server, what, seconds)
        for taker in list(self.waiting.get(server, ())):
            taker.pump()

    def tick_later(self) -> None:
        """Somebody waits: look from time to time whether who has to answer lives."""
        if self._ticker is None and not self.closing:
            self._ticker = self.events.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        servers = {server for server, waiting in self.waiting.items() if waiting}
        servers |= {server for server, *_want in self._until} | self._promises.servers()
        if not servers or self.closing:
            self._full_since.clear()
            return
        self.tick_later()
        self.look_soon()
        for waiting in [queue for queues in self.waiting.values() for queue in queues]:
            if waiting.handle.ack_timeout:
                waiting.pump()  # the worker hears that somebody waits (engine/queues/overdue.h)
        self._look_for_slots()
        if self._coming_back is None:
            self.spawn(self._check(servers))

    def _look_for_slots(self) -> None:
        """Who waits while this client holds all that a worker may deliver to it is told, as in a blocking get: nothing
        comes before something is settled. That may happen in a moment."""
        self._full_since = {server: since for server, since in self._full_since.items() if self.waiting.get(server)}
        for server, waiting in list(self.waiting.items()):
            try:
                for handle in [one.handle for one in waiting if one.handle.usable][:1]:
                    handle.check_slots()
                self._full_since.pop(server, None)
            except LimitError as error:
                if time.monotonic() - self._full_since.setdefault(server, time.monotonic()) > FULL_S:
                    for taker in [one for one in waiting if one.idle]:
                        taker.fail(error)
            except AttachmentLost:
                self._full_since.pop(server, None)  # others find that out, too

    async def _check(self, servers: set[int]) -> None:
        """Is anybody alive? Does the catalog still have the queues that are waited for?"""
        try:
            waiting = [queue.handle for queues in self.waiting.values() for queue in queues]
            core = await self.ready(*waiting)
            for server in servers:
                code = core.trouble(server, _core.FOR_REPLY)  # what confirms cannot get over, they say themselves
                await self.hook(code or _core.HOOK_CHECK, server)
        except AttachmentLost:
            self.lost()
        except Error as error:
            for queue in list(self.by_id.values()):
                queue.fail(error)
            for *_want, future in self._until:
                if not future.done():
                    future.set_exception(error)
            if isinstance(error, NodeNotRunning):
                for confirm, call in self._promises.take_all():
                    call(confirm, error)
        for queue in [queue for waiting in list(self.waiting.values()) for queue in waiting]:
            if not queue.handle.usable:
                queue.pump()


def _set(future: asyncio.Future[None], _confirm: object, error: Error | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
