"""Half messages as a client sees them: prepared, then committed or rolled back, by whoever has the object, or the id.

The topic worker says what became of one (engine/topics/control.py), and says the same to whoever asks again, as long as
that is kept. So a call that was lost with a worker, or with the node, is made again.

    half_checks.py   answers for those that were left behind
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from warren.engine import _core
from warren.engine._core import AttachmentLost, Position, Record
from warren.engine.errors import Error, HalfFinished, HalfNotFound, PeerLost, TimedOut, UsageError
from warren.engine.saying import shown
from warren.engine.topics import control
from warren.engine.topics.formats import HALF_COMMITTED, HALF_PUT_ASIDE
from warren.engine.topics.names import NO_HOST
from warren.workers.client.arguments import checked_count, checked_seconds
from warren.workers.faces.topic_reading import TopicReading, named

if TYPE_CHECKING:
    from warren.workers.client.client import Client

T = TypeVar("T")

LISTED = 1000  #: half messages in a list, if nothing else is said
_OWN = frozenset({"TRAN_MSG", "REAL_TOPIC", "REAL_QID"})  #: what the record has beside the message's properties
#: how long a call without a timeout goes on while attachments end under it
LOST_S = 30.0


class Half:
    """A half message: it is durable, and no reader sees it before `commit`. Made by `topic.prepare` and `topic.half`;
    safe for threads. As a context it is committed at the end of the block, and rolled back when that raises.
    """

    def __init__(
        self, client: Client, topic: str, topic_id: int, message_id: str, place: int, prepared: bool = True
    ) -> None:
        """`place`: the position of its record in the log, which the id says, too. `prepared`: just now; else nothing is
        known of it but the id.
        """
        self.topic = topic  #: name of the topic
        self.message_id = message_id  #: of the half message; the committed message has another one
        self._client = client
        self._topic_id = topic_id
        self._place = place
        self._prepared = prepared
        self._lock = threading.Lock()
        self._finished: control.Finished | None = None  # what became of it, once this object was told

    def __repr__(self) -> str:
        return f"<Half {self.message_id} of topic {self.topic!r}, {self.state}>"

    @property
    def state(self) -> str:
        """ "pending", "committed" or "rolled back", as far as this object has been told; "unknown" of one that was made
        of an id (topic.half) and has been told nothing.
        """
        if self._finished is None:
            return "pending" if self._prepared else "unknown"
        return _word(self._finished)

    @property
    def position(self) -> Position | None:
        """Where the message lies, once this object has been told that it was committed."""
        return None if self._finished is None else _position(self._finished, self._client)

    def commit(self, timeout: float | EllipsisType | None = ...) -> Position:
        """Append the message to its topic; returns where it lies, when that is on stable storage. If it was committed
        before, returns the same. `timeout`: seconds, None: without limit; without one the node's call_timeout.

        Raises HalfFinished (it was rolled back), HalfNotFound, TopicNotFound, TimedOut, PeerLost, SyncFailed,
        ClosedError. After TimedOut and PeerLost it may have been committed: call it again.
        """
        found = _position(self._finish(True, timeout), self._client)
        assert found is not None
        return found

    def rollback(self, timeout: float | EllipsisType | None = ...) -> None:
        """The message will never be seen. If it was rolled back before, nothing is done. Errors as for `commit`, and
        HalfFinished: it was committed.
        """
        self._finish(False, timeout)

    def _finish(self, commit: bool, timeout: float | EllipsisType | None) -> control.Finished:
        checked_seconds(None if isinstance(timeout, EllipsisType) else timeout)
        found = self._finished
        if found is None:
            request = control.FinishHalf(self._topic_id, self._place, commit)
            try:
                found = asked(self._client, request, control.Finished, timeout)
            except (HalfNotFound, TimedOut) as error:
                raise named(error, self.topic) from None
            with self._lock:
                self._finished = found
        if (found.kind == HALF_COMMITTED) is not commit:
            wanted = "committed" if commit else "rolled back"
            why = ", because nobody answered for it," if found.kind == HALF_PUT_ASIDE else ""
            raise HalfFinished(
                f"topic {self.topic!r}: the half message {self.message_id} was {_word(found)}{why} and cannot be "
                f"{wanted}"
            )
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._finished is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except Error as failed:  # the block's own error says more
            error.add_note(f"the half message {self.message_id} could not be rolled back: {failed}")


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message that is pending: what was given to it, and how often it was asked for. `damaged`: its record
    cannot be read, so it has no more than its id.
    """

    message_id: str
    asked: int
    body: bytes = b""
    queue: int = -1
    keys: tuple[str, ...] = ()
    tag: str | None = None
    properties: dict[str, str] | None = None
    timestamp: int = 0  #: when it was stored, milliseconds since 1970
    born_timestamp: int = 0
    damaged: bool = False

    @property
    def key(self) -> str | None:
        """The first key."""
        return self.keys[0] if self.keys else None

    def __repr__(self) -> str:
        return f"<HalfMessage {self.message_id}, asked {self.asked} times, {len(self.body)} bytes>"


def half_of(client: Client, topic: str, topic_id: int, message_id: str) -> Half:
    """The half message with an id. Raises UsageError: it is none."""
    if not isinstance(message_id, str):
        raise UsageError(f"a message id is a str, not {shown(message_id)}")
    try:
        host, place = _core.message_id_parse(message_id)
    except ValueError:
        raise UsageError(f"{shown(message_id)} is not a message id: one has 32 or 56 hexadecimal digits") from None
    if host not in (client.store_host(), NO_HOST) or place >> 63:
        raise UsageError(f"{message_id} is no id of a half message of this node")
    return Half(client, topic, topic_id, _core.message_id(host, place), place, prepared=False)


def listed(reading: TopicReading, limit: int, timeout: float | EllipsisType | None) -> list[HalfMessage]:
    """Those that are pending, in the order in which they were prepared, `limit` at most, within `timeout` seconds."""
    checked_seconds(None if isinstance(timeout, EllipsisType) else timeout)
    limit_s = reading.client.call_timeout if isinstance(timeout, EllipsisType) else timeout
    deadline = None if limit_s is None else time.monotonic() + limit_s
    left = checked_count(limit, "limit", 1, 1 << 31)
    found: list[HalfMessage] = []
    position, more = 0, True
    while more and left > len(found):
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        request = control.ListHalves(reading.declared.id, position)
        try:
            told = asked(reading.client, request, control.Halves, left_s)
        except TimedOut as error:
            raise named(error, reading.declared.name) from None
        found += [message_of(reading, one) for one in told.halves[: left - len(found)]]
        more = told.more
        if told.halves:
            position = told.halves[-1].position + 1
    return found


def message_of(reading: TopicReading, pending: control.Pending) -> HalfMessage:
    """What a half message is. Raises TopicNotFound, PeerLost, OSError."""
    record = reading.half(pending.position, pending.size)
    if record is None:
        message_id = _core.message_id(reading.client.store_host(), pending.position)
        return HalfMessage(message_id, pending.asked, damaged=True)
    return _message(record.message_id, pending.asked, record)


def _message(message_id: str, count: int, record: Record) -> HalfMessage:
    properties = record.properties
    return HalfMessage(
        message_id,
        count,
        bytes(record.body),
        int(properties["REAL_QID"]),
        tuple(record.keys),
        record.tag,
        {name: value for name, value in properties.items() if name not in _OWN},
        record.timestamp,
        record.born_timestamp,
    )


def asked(client: Client, request: control.Request, answers: type[T], timeout: float | EllipsisType | None) -> T:
    """Ask the topic worker, also of the next attachment: asking twice does once. Raises what it refused, TimedOut,
    PeerLost, ClosedError.
    """
    limit = client.call_timeout if isinstance(timeout, EllipsisType) else timeout
    deadline = None if limit is None else time.monotonic() + limit
    give_up = time.monotonic() + (LOST_S if limit is None else min(limit, LOST_S))
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with suppress(AttachmentLost):
            return client.ask_topics(request, answers, left)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut("the topic worker did not answer before its node was started anew")
        if time.monotonic() >= give_up:
            raise PeerLost("attachments to the node ended again and again: see warren status")
        time.sleep(0.001)


def _word(found: control.Finished) -> str:
    return "committed" if found.kind == HALF_COMMITTED else "rolled back"


def _position(found: control.Finished, client: Client) -> Position | None:
    if found.kind != HALF_COMMITTED:
        return None
    return Position(found.queue, found.offset, found.position, _core.message_id(client.store_host(), found.position))


Check = Callable[[HalfMessage], object]
