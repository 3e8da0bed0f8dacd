"""One thread that waits for all attachments of this process: asyncio's clients, and confirms that call back.

    watch(core, listener)       the thread calls listener() when a want of the core is met, or it has ended; about once
                                a second also `check`, if there is one
    Promises                    confirms that are waited for, by the sequences that decide; who collects them calls back
    add_done_callback, future   Confirm's methods of these names

Invariants (tools/model/waiting.py shows that each is needed)
  Whether something waits is decided before anything is registered for it, and what is registered is watched: both are
  one step, under one lock. So who finds a listener finds a thread that calls it.
  A listener never blocks, and says anew what it wants: a want ends when it is met (engine/binding/sleeper.c). Who
  learns while saying it that it is met already has the listener called (`ring`).
  The thread ends when nobody is watched any more, and there is none in a child of fork before the child watches. One
  that has died is replaced by whoever watches or rings next.
  A callback is called once, without a lock held, by the thread, or by who adds it when its confirm is done by then;
  never by who adds another one, who may hold locks of his own. What it raises is logged and nothing else, as in
  concurrent.futures.
  When every process of the node has died nothing is confirmed any more: a callback is called then, too, and a future
  fails with NodeNotRunning, as wait() does.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm
from warren.engine.errors import Error, NodeNotRunning

log = logging.getLogger("warren.client")

#: how long the thread sleeps when nothing wakes it; also how long it outlives its last listener
SLEEP_S = 1.0
#: its pause after trouble of its own
SHORT_S = 0.05
#: how long the end of the process waits for the thread
JOIN_S = 1.0

T = TypeVar("T")
Listener = Callable[[], None]
Callback = Callable[[Confirm[Any]], object]
#: the same inside, with what ended the wait if it was not the confirm
Call = Callable[[Confirm[Any], Error | None], object]


class _Waiter:
    def __init__(self, waitv: bool = True) -> None:
        self.waitv = waitv
        self.lock = threading.Lock()
        self.listeners: dict[_core.Client, list[Listener]] = {}
        self.checks: dict[Listener, Listener] = {}
        self.rung: list[Listener] = []
        self.thread: threading.Thread | None = None
        self.ending = False

    def watch(self, core: _core.Client, listener: Listener, check: Listener | None) -> None:
        with self.lock:
            self._run()
            self.listeners.setdefault(core, []).append(listener)
            if check is not None:
                self.checks[listener] = check
        _core.waiter_kick()

    def ring(self, listener: Listener) -> None:
        """Call this listener soon, on the thread."""
        with self.lock:
            self._run()
            self.rung.append(listener)
        _core.waiter_kick()

    def unwatch(self, core: _core.Client, listener: Listener) -> None:
        with self.lock:
            found = self.listeners.get(core, [])
            if listener in found:
                found.remove(listener)
            self.checks.pop(listener, None)
            if not found:
                self.listeners.pop(core, None)
        _core.waiter_kick()

    def _run(self) -> None:
        """Under the lock: there is a thread; RuntimeError when there cannot be one, before anything is registered."""
        if self.thread is None or not self.thread.is_alive():
            thread = threading.Thread(target=self.run, name="warren-waiter", daemon=True)
            thread.start()  # it begins by taking the lock
            self.thread = thread

    def run(self) -> None:
        idle = False
        check_at = time.monotonic() + SLEEP_S
        while True:
            seen = _core.waiter_kicks()
            with self.lock:
                cores = list(self.listeners)
                # Servers ring an event loop themselves, if it has a doorbell, and wake this thread for all others.
                shared = [core for core, listeners in self.listeners.items() if len(listeners) > 1]
                rung, self.rung = self.rung, []
                if self.ending or (idle and not cores and not rung):
                    self.thread = None
                    return
            for listener in rung:
                _tell(listener)
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + SLEEP_S
                with self.lock:
                    checks = list(self.checks.values())
                for check in [*(callbacks.check for callbacks in list(_callbacks.values())), *checks]:
                    _tell(check)
            try:
                met = _core.wait_any(cores, shared, seen, SLEEP_S, self.waitv)
            except Exception:  # no memory: the wait of everybody goes on, a moment later
                log.exception("warren's waiting thread could not wait")
                met = []
                time.sleep(SHORT_S)
            idle = not cores and seen == _core.waiter_kicks()
            del cores, shared
            while met:
                self.tell(met.pop())

    def tell(self, core: _core.Client) -> None:
        with self.lock:
            listeners = list(self.listeners.get(core, ()))
            if core.ended:
                for listener in self.listeners.pop(core, ()):  # nothing more comes of it
                    self.checks.pop(listener, None)
        for listener in listeners:
            _tell(listener)

    def end(self) -> None:
        with self.lock:
            self.ending = True
            thread = self.thread
        _core.waiter_kick()
        if thread is not None:
            thread.join(JOIN_S)


def _tell(listener: Listener) -> None:
    try:
        listener()
    except BaseException:  # one listener must not end the thread of all
        log.exception("a listener of warren's waiting thread failed")


_waiter = _Waiter()


def watch(core: _core.Client, listener: Listener, check: Listener | None = None) -> None:
    """Call `listener` when something that the core watches is met, and `check` about once a second: neither blocks."""
    _waiter.watch(core, listener, check)


def unwatch(core: _core.Client, listener: Listener) -> None:
    """No longer. Of a core that has ended every listener is forgotten after its last call."""
    _waiter.unwatch(core, listener)


class Promises:
    """Confirms of one core that somebody waits for, each with a thing to call."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[int, int], list[tuple[int, int, Confirm[Any], Call]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def servers(self) -> set[int]:
        """Servers that something is waited for from."""
        return {server for server, _level in list(self._heaps)}

    def add(self, confirm: Confirm[Any], call: Call) -> bool:
        """Wait for it; False when it is done already."""
        place = None if confirm.done() else confirm.waits_for()
        if place is None:
            return False
        server, level, sequence = place
        with self._lock:
            heap = self._heaps.setdefault((server, level), [])
            heapq.heappush(heap, (sequence, next(self._numbers), confirm, call))
        return True

    def collect(self) -> list[tuple[Confirm[Any], Call]]:
        """Those that are done, in order for each server; they are forgotten here."""
        found = []
        with self._lock:
            heaps = list(self._heaps.items())
            for key, heap in heaps:
                while heap and (heap[0][2].waits_for() is None or heap[0][2].done()):
                    _sequence, _number, confirm, call = heapq.heappop(heap)
                    found.append((confirm, call))
                moved = heap and heap[0][2].waits_for()
                # This part of it is done, another is not; that may have the same number at another server.
                while moved and (moved[:2], moved[2]) != (key, heap[0][0]):
                    _sequence, number, confirm, call = heapq.heappop(heap)
                    heapq.heappush(self._heaps.setdefault(moved[:2], []), (moved[2], number, confirm, call))
                    moved = heap and heap[0][2].waits_for()
            for key in [key for key, heap in self._heaps.items() if not heap]:
                del self._heaps[key]
        return found

    def take_all(self) -> list[tuple[Confirm[Any], Call]]:
        """All of them, done or not; they are forgotten here."""
        with self._lock:
            heaps, self._heaps = self._heaps, {}
            return [(confirm, call) for heap in heaps.values() for _sequence, _number, confirm, call in sorted(heap)]

    def watch(self, core: _core.Client) -> bool:
        """Say to the core what is waited for; True when something of it is met already: collect again."""
        with self._lock:
            wanted = [(server, level, heap[0][0]) for (server, level), heap in self._heaps.items()]
        return any(core.watch(server, level, sequence) for server, level, sequence in wanted)


# ---- callbacks of confirms -----------------------------------------------------------------------------------------


class _Callbacks:
    """Confirms of one core with callbacks; the waiting thread calls them."""

    def __init__(self, core: _core.Client) -> None:
        self.core = core
        self.promises = Promises()

    def __call__(self) -> None:
        while True:
            for confirm, call in self.promises.collect():
                _call(confirm, call)
            if not self.says():
                return

    def says(self) -> bool:
        """Say to the core what is waited for; True when something of it is met already."""
        try:
            return self.promises.watch(self.core)
        except (AttachmentLost, Error):  # it has ended: all of them are done, one way or the other
            return len(self.promises) > 0

    def check(self) -> None:
        """Is anybody left who could confirm? Some time after the last process of the node has died nobody is."""
        try:
            for server in self.promises.servers():
                self.core.check(server)
        except NodeNotRunning as error:
            for confirm, call in self.promises.take_all():
                _call(confirm, call, error)
        except (AttachmentLost, Error):
            self()  # it has ended


def _call(confirm: Confirm[Any], call: Call, error: Error | None = None) -> None:
    """Also what would end the thread (SystemExit) does not end it: all wait for it. In the thread of who adds a
    callback to what is done, it is his.
    """
    try:
        call(confirm, error)
    except BaseException as raised:  # its errors are its own, as in concurrent.futures
        if not isinstance(raised, Exception) and threading.current_thread() is not _waiter.thread:
            raise
        log.exception("a callback of a Confirm failed")


_callbacks: dict[_core.Client, _Callbacks] = {}
_callbacks_lock = threading.Lock()


def add_done_callback(confirm: Confirm[Any], call: Callback) -> None:
    """Call `call(confirm)` once when it is done: by the waiting thread, or at once when it is done already."""
    if not callable(call):
        raise TypeError(f"a callback must be callable, not {type(call).__name__}")
    _when_done(confirm, lambda confirm, _error: call(confirm))


def _when_done(confirm: Confirm[Any], call: Call) -> None:
    core = confirm.core
    if confirm.done():  # nothing is registered for what does not wait
        _call(confirm, call)
        return
    with _callbacks_lock:
        for other in [other for other in _callbacks if other.ended]:
            del _callbacks[other]
        found = _callbacks.get(core)
        if found is None:
            found = _Callbacks(core)
            if not core.ended:
                watch(core, found)  # under the lock: who finds it there finds it watched
                _callbacks[core] = found
    if not found.promises.add(confirm, call):
        _call(confirm, call)
    elif found.says():
        _waiter.ring(found)


def future(confirm: Confirm[T]) -> concurrent.futures.Future[T]:
    """A Future of a Confirm. It runs already: cancel() is False."""
    made: concurrent.futures.Future[T] = concurrent.futures.Future()
    made.set_running_or_notify_cancel()

    def done(confirm: Confirm[Any], error: BaseException | None) -> None:
        try:
            error = error or confirm.exception(0)
            result = None if error is not None else confirm.result(0)
        except BaseException as raised:  # whatever it is, it is the answer: a future without one is waited for for ever
            made.set_exception(raised)
            raise
        if error is None:
            made.set_result(cast("T", result))
        else:
            made.set_exception(error)

    _when_done(confirm, done)
    return made


def _at_exit() -> None:
    _waiter.end()


def _in_child() -> None:
    global _waiter, _callbacks_lock
    _waiter = _Waiter(_waiter.waitv)
    _callbacks.clear()
    _callbacks_lock = threading.Lock()
    _core.waiter_forked()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
_core.set_confirm_face(add_done_callback, future)
