"""Warren as a broker and a result backend of Dramatiq.

A delayed message waits in its own queue, so there are no delay queues (`NAME.DQ`); a rejected one goes to `NAME.XQ`,
where it stays for a week. The process is one client for all its queues.

Crash points
  Worker killed with a message that was not acked: the message returns to its place; Dramatiq runs it again.
  Between the enqueue of a retry and the ack of the message that failed: both are there, as with every broker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import dramatiq
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message as DramatiqMessage
from dramatiq.results import Missing, ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT

from warren.engine._core import AttachmentLost
from warren.engine.catalog.arguments import PRIORITY_MAX
from warren.engine.errors import ClosedError, Error, LimitError, PeerLost, TimedOut, UsageError
from warren.workers.celery.kept import Kept, key_of
from warren.workers.celery.place import Place
from warren.workers.client.client import Client
from warren.workers.faces.message import Message
from warren.workers.faces.queues import Queue

P = ParamSpec("P")
T = TypeVar("T")
#: how long rejected messages are kept, as Dramatiq's broker for RabbitMQ keeps them (s)
DEAD_S = 7 * 86400.0
#: how long results are kept when the topic is made
RESULTS_S = 86400.0
#: how often `join` looks
JOIN_LOOK_S = 0.02
#: what Dramatiq connects anew after
_LOST = (ClosedError, PeerLost, LimitError, TimedOut, AttachmentLost)


def _told(call: Callable[P, T]) -> Callable[P, T]:
    """Its errors of the connection are Dramatiq's."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **named: P.kwargs) -> T:
        try:
            return call(*args, **named)
        except _LOST as error:
            raise ConnectionClosed(error) from error

    return wrapped


class WarrenBroker(Broker):
    """A broker of Dramatiq in a node: `WarrenBroker("warren:///data")`.

    `max_priority`: queues have priorities 0 to that (255 at most), which actors say by `broker_priority`. `options`:
    those of the URL (docs/celery.md). Nothing is attached before it is used.
    """

    def __init__(
        self,
        url: str,
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        max_priority: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(middleware)
        if max_priority is not None and not 0 < max_priority <= PRIORITY_MAX:
            raise UsageError(f"max_priority must be 1 to {PRIORITY_MAX}, not {max_priority}")
        self.place = Place.of(url, options)
        self.max_priority = max_priority
        self.actor_options |= {"broker_priority"}
        self._opened: dict[tuple[int, str], tuple[Client, Queue]] = {}  # of each process

    # -- queues -------------------------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; in the node it is made when it is used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def queue(self, queue_name: str) -> Queue:
        """The queue in the node. Raises QueueNotFound (of Dramatiq), ClosedError, NodeNotRunning."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        opened = self._opened.get((os.getpid(), queue_name))
        if opened is None or opened[0].closed:  # another user of the process's client may have closed it
            self.place.attach()
            node, dead = self.place.node, f"{queue_name}.XQ"
            node.queue(dead, durable=True, message_ttl=DEAD_S)
            given: dict[str, Any] = {"max_priority": self.max_priority} if self.max_priority else {}
            found = node.queue(
                queue_name,
                durable=True,
                dead_letter_exchange="",
                dead_letter_routing_key=dead,
                **given,
            )
            opened = self._opened[os.getpid(), queue_name] = (self.place.client, found)
        return opened[1]

    @_told
    def enqueue(self, message: DramatiqMessage[Any], *, delay: int | None = None) -> DramatiqMessage[Any]:
        """Put a message into its queue, where it waits for `delay` milliseconds."""
        queue = self.queue(message.queue_name)
        priority = message.options.get("broker_priority") or 0
        self.emit_before("enqueue", message, delay)
        place = self.place
        queue.put(
            message.encode(),
            place.durability,
            place.confirm_publish,
            place.call_timeout if place.confirm_publish else None,
            {"actor": message.actor_name},
            priority=min(max(int(priority), 0), PRIORITY_MAX),
            delay=delay / 1000 if delay else None,
            properties={"message_id": message.message_id, "content_type": "application/octet-stream"},
        )
        self.emit_after("enqueue", message, delay)
        return message

    @_told
    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """A consumer of a queue; `timeout` in milliseconds."""
        return WarrenConsumer(self.queue(queue_name), prefetch, timeout)

    @_told
    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue."""
        self.queue(queue_name).purge()

    def flush_all(self) -> None:
        """Drop the messages of all queues."""
        for name in list(self.queues):
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty and nothing of it is at work; for tests. Raises QueueJoinTimeout."""
        queue, end = self.queue(queue_name), None if timeout is None else time.monotonic() + timeout / 1000
        while any((counts := queue.stats())[what] for what in ("ready", "unacked", "delayed")):
            if end is not None and time.monotonic() > end:
                raise QueueJoinTimeout(f"{queue_name}: {counts['ready']} ready, {counts['unacked']} unacked")
            time.sleep(JOIN_LOOK_S)

    def close(self) -> None:
        """This process leaves the node; what it held returns."""
        self._opened.clear()
        self.place.client.close()


class WarrenConsumer(Consumer):
    """What one thread of Dramatiq receives; acks may come from any."""

    def __init__(self, queue: Queue, prefetch: int, timeout: int) -> None:
        self._queue = queue
        self._prefetch = max(1, prefetch)
        self._timeout_s = timeout / 1000
        self._messages: Iterator[Message] | None = None

    @_told
    def __next__(self) -> MessageProxy | None:
        """The next message; None when none came in time."""
        if self._messages is None:
            self._messages = self._queue.consume(self._prefetch, self._timeout_s)
        found = next(self._messages, None)
        if found is None:
            self._messages = None
            return None
        try:
            return WarrenMessage(DramatiqMessage.decode(found.body), found)
        except DecodeError:
            found.reject()
            return None

    @_told
    def ack(self, message: MessageProxy) -> None:
        """It is done."""
        _held(message).ack()

    @_told
    def nack(self, message: MessageProxy) -> None:
        """It goes to the dead letters."""
        _held(message).reject()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """They return to their places."""
        for message in messages:
            with contextlib.suppress(Error, AttachmentLost):  # then they have returned, or the servers return them
                _held(message).nack()

    def close(self) -> None:
        """What was delivered ahead returns."""
        messages, self._messages = self._messages, None
        if messages is not None:
            with contextlib.suppress(Error, AttachmentLost):  # then the servers return it
                messages.close()  # type: ignore[attr-defined]  # it is a generator


class WarrenMessage(MessageProxy):
    """A message of Dramatiq, and the one of Warren that it came in."""

    def __init__(self, message: DramatiqMessage[Any], held: Message) -> None:
        super().__init__(message)
        self.held = held


def _held(message: MessageProxy) -> Message:
    assert isinstance(message, WarrenMessage)
    return message.held


class WarrenBackend(ResultBackend):
    """A result backend of Dramatiq in a topic of a node. Results go when their `ttl` is over, and from the disk as the
    topic's retention says (a day, if it is made here)."""

    def __init__(self, url: str, *, options: Mapping[str, Any] | None = None, **named: Any) -> None:
        super().__init__(**named)
        place = Place.of(url, {"topic": "dramatiq-results", **(options or {})})
        self.kept = Kept(place, RESULTS_S)
        self._stored = Kept(place, RESULTS_S, lambda: True)  # Dramatiq acks, and forgets what could not be stored

    def _get(self, message_key: str) -> Any:
        return self._value(self.kept.newest(key_of(message_key)))

    def _value(self, data: bytes | None) -> Any:
        if data is None:
            return Missing
        until, _colon, value = data.partition(b":")
        return self.encoder.decode(value) if time.time() < float(until) else Missing

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        until = time.time() + ttl / 1000
        self._stored.append([key_of(message_key)], b"%.3f:" % until + self.encoder.encode(result))

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message; with `block` it is waited for, without looking again and again."""
        key = key_of(self.build_message_key(message))
        seconds = (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        found = self._value(self.kept.wait_for(key, seconds)) if block else self._value(self.kept.newest(key))
        if found is Missing:
            raise ResultTimeout(message) if block else ResultMissing(message)
        return self.unwrap_result(found)  # type: ignore[no-untyped-call]  # of an untyped base
