"""Check-back: a client that opened a topic with on_check answers for half messages that were left behind.

One thread a client, which sleeps, looks at a count in shared memory, and asks the topic worker only while there are
half messages; the worker hands each out to one client at a time. So it costs nothing while nobody prepares.

Invariants
  A function is called by this thread alone, with one half message after the other.
  Whatever it raises is logged, and counts as "unknown": the half message is asked for again later.
  A child of fork has no such thread before it opens a topic with on_check itself.
Crash points: whoever dies in a function has decided nothing; another client, or the next of this program, is asked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING

from warren.engine._core import AttachmentLost
from warren.engine.errors import Error, HalfFinished, HalfNotFound, TopicNotFound, UsageError
from warren.engine.saying import shown
from warren.engine.topics import control
from warren.workers.faces import topic_halves
from warren.workers.faces.topic_halves import HalfMessage
from warren.workers.faces.topic_reading import TopicReading

if TYPE_CHECKING:
    from warren.workers.client.client import Client

AGAIN_S = 1.0  #: between two looks, at most
FIRST_S = 0.01  #: until the first one
COMMIT, ROLLBACK, UNKNOWN = "commit", "rollback", "unknown"
#: what a function may say
ANSWERS: dict[object, str] = {
    True: COMMIT,
    False: ROLLBACK,
    None: UNKNOWN,
    **{word: word for word in (COMMIT, ROLLBACK, UNKNOWN)},
}

log = getLogger("warren.halves")


class Checks:
    """The functions of one client, and their thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._checks: dict[str, Callable[[HalfMessage], object]] = {}
        self._readings: dict[str, TopicReading] = {}
        self._asked: set[str] = set()  # topics whose worker has said how often to look
        self._pause = FIRST_S
        self._trouble = ""  # said last
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def add(self, topic: str, check: Callable[[HalfMessage], object]) -> None:
        """Answer for a topic's half messages from now on, by this function instead of the one before."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork: thread and functions are the parent's
                self._pid = os.getpid()
                self._checks, self._readings, self._asked = {}, {}, set()
                self._stop, self._thread = threading.Event(), None
            self._checks[topic] = check
            self._asked.discard(topic)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="warren-halves", daemon=True)
                self._thread.start()

    def end(self, wait_s: float) -> None:
        """Stop. A function that is running is waited for `wait_s` seconds at most."""
        self._stop.set()
        _all.pop(self._client, None)
        thread = self._thread
        if self._pid == os.getpid() and thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stop = self._stop
        while not stop.wait(self._pause):
            pause = AGAIN_S
            for topic, check in list(self._checks.items()):
                if stop.is_set():
                    return
                try:
                    pause = min(pause, self._serve(topic, check, stop))
                    self._trouble = ""
                except TopicNotFound:
                    self._readings.pop(topic, None)  # it may be declared again
                except (Error, AttachmentLost, OSError) as error:
                    if self._client.closed:
                        return
                    self._say(topic, error)
            self._pause = pause

    def _say(self, topic: str, error: Exception) -> None:
        """Once for each kind of trouble."""
        if (text := f"{type(error).__name__}: {error}") != self._trouble:
            self._trouble = text
            log.warning("topic %r: half messages cannot be asked for, tried again: %s", topic, error)

    def _reading(self, topic: str) -> TopicReading:
        found = self._readings.get(topic)
        if found is None:
            found = self._readings[topic] = TopicReading(self._client, self._client.catalog().topic(topic))
        return found

    def _serve(self, topic: str, check: Callable[[HalfMessage], object], stop: threading.Event) -> float:
        """Answer for those that are due; in how many seconds to look again."""
        reading = self._reading(topic)
        if topic in self._asked and not reading.halves():
            return self._pause
        while not stop.is_set():
            told = topic_halves.asked(self._client, control.CheckHalves(reading.declared.id, 1), control.ToCheck, ...)
            self._asked.add(topic)
            if not told.halves:
                return max(told.again_s, FIRST_S)
            self._answer(topic, reading, told.halves[0], check)
        return AGAIN_S

    def _answer(
        self, topic: str, reading: TopicReading, pending: control.Pending, check: Callable[[HalfMessage], object]
    ) -> None:
        message = topic_halves.message_of(reading, pending)
        if message.damaged:
            log.error("topic %r: the half message %s cannot be read: see `warren check`", topic, message.message_id)
            return
        answer = _said(topic, message, check)
        if answer == UNKNOWN:
            return
        half = topic_halves.half_of(self._client, topic, reading.declared.id, message.message_id)
        try:
            half.commit() if answer == COMMIT else half.rollback()
        except (HalfFinished, HalfNotFound) as error:  # somebody else was faster
            log.info("topic %r: %s", topic, error)


def _said(topic: str, message: HalfMessage, check: Callable[[HalfMessage], object]) -> str:
    try:
        said = check(message)
    except BaseException:
        log.exception("topic %r: on_check raised for half message %s: asked again later", topic, message.message_id)
        return UNKNOWN
    answer = ANSWERS.get(said) if isinstance(said, (bool, str, type(None))) else None
    if answer is None:
        log.error(
            "topic %r: on_check returned %s for half message %s: it must be True or 'commit', False or 'rollback', "
            "None or 'unknown'; asked again later",
            topic,
            shown(said),
            message.message_id,
        )
        return UNKNOWN
    return answer


_all: weakref.WeakKeyDictionary[Client, Checks] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _forked() -> None:
    """Another thread may have had the lock when this process was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def checked(check: object) -> None:
    """Raises UsageError: it is no function."""
    if check is not None and not callable(check):
        raise UsageError(f"on_check must be a function of a half message, not {shown(check)}")


def answer_for(client: Client, topic: str, check: Callable[[HalfMessage], object]) -> None:
    """Answer for a topic's half messages by this function, as long as the client is open."""
    with _lock:
        found = _all.get(client)
        if found is None:
            found = _all[client] = Checks(client)
            client.at_close.append(found.end)
    found.add(topic, check)
