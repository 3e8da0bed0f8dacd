"""Queues as a client sees them. What a Confirm is, the core says.

Hot paths (put, get, ack) are one call into the core each; this file checks what people give, and comes back with
another attachment when the old one is over (AttachmentLost: nothing was submitted).

Invariant
  There is one Queue object for a name in a client, so a process is one consumer of a queue, however often it opens it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, cast, overload

import msgspec

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm
from warren.engine.catalog import metadata
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.exchanges import checked_opaque
from warren.engine.catalog.names import check_name, check_routing_key
from warren.engine.errors import (
    Error,
    NodeNotRunning,
    PeerLost,
    QueueEmpty,
    QueueFull,
    QueueNotFound,
    TimedOut,
    UsageError,
)
from warren.engine.kernel.protocol import QUEUE_STATS
from warren.engine.queues import control
from warren.engine.queues.control import AnswerOf
from warren.engine.saying import shown
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import joining
from warren.workers.client.arguments import (
    checked_count,
    checked_exchange,
    checked_flag,
    checked_seconds,
    level_of,
    listed,
)
from warren.workers.client.publish import (
    PLAIN,
    Batch,
    Body,
    Durability,
    PublishManyOptions,
    PublishOptions,
    publish_options,
)
from warren.workers.client.shared import Place, place_of, shared
from warren.workers.faces.browse import BATCH_BYTES, BROWSE_ROWS, UNLIMITED, browse
from warren.workers.faces.calls import reply_route
from warren.workers.faces.full import Room
from warren.workers.faces.message import Message
from warren.workers.faces.queue_range import QueueRange
from warren.workers.faces.subscription import Subscription

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.workers.client.client import Client

__all__ = ["Queue", "Confirm"]

#: how long the worker is waited for that is told what a message died of
CAUSE_S = 5.0
#: how long a worker that does not answer is waited for to have room, at the end of an exclusive consumer
SILENT_S = 1.0

_STATISTICS = tuple(item.name for item in QUEUE_STATS.fields if item.name != "queue")


class _Unopened:
    """In the place of a handle: whoever uses it is told to make one."""

    usable = perhaps_gone = False
    woken = 0

    def wake(self) -> None:
        """Nobody waits."""

    def settle_many(self, messages: Sequence[Message], *_how: bool) -> None:
        """What was received before was received by another client."""
        if messages:
            raise PeerLost("these messages were delivered to another process: it acks them")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._refuse

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise AttachmentLost("the queue was not opened yet")


_UNOPENED = cast("_core.QueueHandle", _Unopened())


class End:
    """Whether those who wait in get_until are to leave. It is looked at for each message: no call is."""

    __slots__ = ("come",)

    def __init__(self) -> None:
        self.come = False


class Queue:
    """A queue of the node. Created by `node.queue(name)`; thread-safe."""

    _messages: type[Message] = Message  #: what its messages are made of

    def __init__(self, client: Client, declaration: QueueDeclaration, later: bool = False) -> None:
        """`later`: it is opened when it is used, as the queue that has its name then."""
        self.name = declaration.name
        self.durable = declaration.durable
        self._what = f"queue {declaration.name!r} is transient"  #: for an error
        self._client = client
        self._consuming = 0
        self._alone = False  # who consumes here has the queue alone
        self._begun = 0
        self._lock = threading.Lock()
        self._declaration = declaration
        self._handle = _UNOPENED if later else client.handle(declaration, self, self._messages)
        _queues.add(self)

    def __reduce__(self) -> tuple[Callable[[Place, QueueDeclaration], Queue], tuple[Place, QueueDeclaration]]:
        """Another process that unpickles it attaches by itself when it uses it (docs/python.md)."""
        return _unpickled, (place_of(self._client), self._declaration)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, {'durable' if self.durable else 'transient'}>"

    def _renew(self) -> _core.QueueHandle:
        """A handle of the attachment in use, of the queue that has the name now.

        Raises QueueNotFound when the queue was deleted, ResourceLocked when it is another client's now, ClosedError.
        """
        catalog = self._client.catalog()
        declaration = catalog.queues.get(self.name)
        if declaration is None:
            raise QueueNotFound(f"queue {self.name!r} was deleted: declare it again")
        client = self._client.epoch
        mine = self._handle is not _UNOPENED and declaration.lasting_id == self._declaration.lasting_id
        if declaration.owner not in (0, client) and mine:
            raise QueueNotFound(
                f"queue {self.name!r} was exclusive to an attachment of this client that has ended: declare it again"
            )
        catalog.check_owner(declaration, client)
        self._declaration = declaration
        self.durable = declaration.durable
        self._handle = self._client.handle(declaration, self, self._messages)
        return self._handle

    @property
    def _server(self) -> int:
        return SERVER_WORKER_FIRST + self._declaration.worker

    def _ask(
        self,
        request: Callable[[int], control.Request],
        answers: type[AnswerOf],
        timeout: float | EllipsisType | None = ...,
    ) -> AnswerOf:
        """Ask the worker about the queue that has the name now, for at most call_timeout without a `timeout`. Raises
        QueueNotFound, TimedOut."""
        while True:
            if not self._handle.usable:
                self._renew()
            try:
                return self._client.ask_queue(self._declaration, lambda now: request(now.id), answers, timeout)
            except QueueNotFound:  # deleted, perhaps declared anew since
                if self._handle.usable:
                    raise

    # -- publishing ---------------------------------------------------------------------------------------------

    @overload
    def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[PublishOptions],
    ) -> None: ...
    @overload
    def put(
        self,
        body: Body,
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    def put(
        self,
        body: Body,
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Confirm: ...
    @overload
    def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[PublishOptions],
    ) -> Confirm | None: ...
    def put(
        self,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        ttl: float | None = None,
        delay: float | None = None,
        message_id: str | bytes | None = None,
        properties: Mapping[str, Any] | None = None,
        persistent: bool = True,
        block: bool = False,
    ) -> Confirm | None:
        """Publish one message. Returns when it is as durable as requested; with wait=False, returns a Confirm at once.

        `durability`: 'none' (accepted), 'written' (survives every process), 'synced' (on stable storage; the default of
        a durable queue). `timeout` limits the wait for room and confirm together; if it runs out during the confirm
        (TimedOut), the message may still be stored. Without a timeout, wait=True waits without limit, and wait=False at
        most the node's call_timeout for room; if that fails (TimedOut, DiskFull, PeerLost), nothing was stored.

        `block`: if the queue is full (max_length with overflow="reject-publish"), wait for a place within the timeout.
        QueueFull is raised when there is none by then; without `block`, at once.

        `priority`: 0 to 255 (queue argument max_priority). `ttl`: seconds until it expires, counted from the end of the
        delay. `delay`: seconds until it can be delivered. `message_id`: the message is dropped if this id was seen
        within the queue's deduplication_window (Confirm.duplicate). `properties`: content_type, correlation_id,
        reply_to, …. `persistent=False`: kept in memory only, even by a durable queue. Raises QueueFull,
        MessageTooLarge, UsageError, QueueNotFound, TimedOut, PeerLost, SyncFailed.
        """
        said = publish_options(headers, properties, message_id, priority, ttl, delay, persistent)
        options = meta = None
        if said is PLAIN:
            level = level_of(durability, self.durable, self._what)
        else:
            level = said.level(durability, self.durable, self._what)
            options = said.options()
            meta = said.packed("", self.name)
        room = None if block is False else self._room(block, timeout, wait)
        while True:
            try:
                if options is None:
                    return self._handle.put(body, level, meta, timeout, wait)
                return self._handle.put(body, level, meta, timeout, wait, options)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()
            except QueueFull as error:
                if room is None or not self._wait_for(room):
                    raise self._full(error) from None
                timeout = room.left
            except (TimedOut, QueueNotFound) as error:
                raise self._named(error) from None

    def _room(self, block: bool, timeout: float | None, wait: bool) -> Room | None:
        """The wait of a put that blocks. Raises UsageError."""
        if block is True and arguments_of(self).get("overflow") == "reject-publish-dlx":
            raise UsageError(
                f"queue {self.name!r} makes a dead letter of each message that it refuses, so a put into it does not "
                "try again: leave out block"
            )
        if not checked_flag(block, "block"):
            return None
        checked_seconds(timeout)
        if not checked_flag(wait, "wait"):
            raise UsageError(
                "block=True waits until the queue has taken the message, and wait=False for nothing: give one of them"
            )
        return Room(self._client, None if timeout is None else time.monotonic() + timeout)

    def _wait_for(self, room: Room, end: End | None = None) -> bool:
        """After a refusal: wait until there seems to be room; False when no time is left, or it is the end."""
        room.refused()
        while (pause_s := room.pause(self._declaration, self._server)) is not None:
            time.sleep(pause_s)
            if end is not None and end.come:
                return False
        return not room.late

    @overload
    def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> None: ...
    @overload
    def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm: ...
    @overload
    def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm: ...
    @overload
    def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> Confirm | None: ...
    def put_many(
        self,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        ttl: float | Sequence[float | None] | None = None,
        delay: float | Sequence[float | None] | None = None,
        message_id: Sequence[str | bytes | None] | None = None,
        properties: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        persistent: bool | Sequence[bool] = True,
    ) -> Confirm | None:
        """Publish many messages in order. Returns when all are as durable as requested; with wait=False, one Confirm
        for all.

        `headers` and the other options as for `put`: one value for all, or a list or tuple with one per message. If a
        body is too large or of a wrong type, the whole call is refused before anything is sent. QueueFull: `refused`
        lists the refused ones (numbered from 0); the others are stored.
        """
        if not isinstance(bodies, (list, tuple)):
            bodies = listed(bodies, "bodies")
        said = publish_options(headers, properties, message_id, priority, ttl, delay, persistent)
        level = said.level(durability, self.durable, self._what)
        return self._put_many(bodies, level, said.batch(len(bodies), self.name), timeout, wait)

    def _put_many(
        self,
        bodies: Sequence[Body],
        level: int,
        said: Batch,
        timeout: float | None,
        wait: bool,
    ) -> Confirm | None:
        while True:
            try:
                return self._handle.put_many(bodies, level, said.meta, timeout, wait, said.options)
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()
            except QueueFull as error:
                raise self._full(error) from None
            except (TimedOut, QueueNotFound) as error:
                raise self._named(error) from None

    def _named(self, error: TimedOut | QueueNotFound) -> TimedOut | QueueNotFound:
        """The same error, with the name of this queue."""
        begin = f"queue {self.name!r}: "
        return error if str(error).startswith(begin) else type(error)(f"{begin}{error}")

    def _full(self, error: QueueFull) -> QueueFull:
        """The same error, with the name and the limits of this queue."""
        limits = ", ".join(
            f"{name}={self._declaration.arguments[name]}"
            for name in ("max_length", "max_length_bytes")
            if name in self._declaration.arguments
        )
        told = QueueFull(f"queue {self.name!r} ({limits}): {error}")
        told.refused = error.refused
        return told

    # -- consuming ----------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None, ahead: bool = True) -> Message:
        """The next message. Raises QueueEmpty if none arrives within `timeout` seconds (None: no limit); QueueNotFound
        (also if deleted meanwhile), ClosedError, PeerLost, NodeNotRunning (every process of the node is dead; also
        without a timeout), LimitError (too many unacked), CorruptRecord (its body is damaged; it is counted as lost,
        and the next call continues behind it).

        QueueEmpty means that the worker has looked. If it has not, because it is stopped, overloaded or being
        restarted, TimedOut or PeerLost is raised at the end of the timeout, but not before the worker has had a quarter
        of a second. With timeout=0 the call does not wait for a message to arrive, only for the worker's answer, at
        most call_timeout.

        A loop of gets receives messages ahead. With ahead=False nothing is delivered ahead: each get takes one message
        at the price of a round trip, and messages ahead from earlier gets return first.
        """
        # `ahead` may be given by position because Python calls functions with keyword-only parameters slowly.
        try:
            message = self._handle.get(timeout, ahead)
        except AttachmentLost as lost:
            message = self._get_again(time_left(lost, timeout), ahead)
        if message is None:
            raise QueueEmpty(f"queue {self.name!r} had no message within {timeout} s")
        return message  # type: ignore[return-value]  # the class given to the handle

    def _get_again(self, left: float | None, ahead: bool, end: End | None = None) -> _core.Delivery | None:
        """Get with a handle of the attachment in use, after one that was lost or woken; None: nothing came, or it is
        the end.
        """
        while True:
            handle = self._renew()
            woken = handle.woken
            if end is not None and end.come:
                return None
            try:
                return handle.get(left, ahead, woken)
            except AttachmentLost as lost:
                left = time_left(lost, left)

    def get_many(self, max: int = 1000, timeout: float | None = None, *, ahead: bool = True) -> list[Message]:
        """As many messages as are ready, 1 to `max`; an empty list if none arrives within `timeout` (0: as for get).
        Raises what get raises.

        One call returns no more than half of the setting `delivery_slots` (2,048 of 4,096), however large `max` is and
        however many are ready: each message that was delivered and is not settled takes a slot. Nor does it go on when
        the bodies in the list are 64 MiB together. Ack them, and call again.

        `ahead`: as for get. With ahead=False, only the messages in the list have left the queue.
        """
        while True:
            try:
                return self._handle.get_many(max, timeout, ahead)  # type: ignore[return-value]
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)
                self._renew()

    def consume(
        self, prefetch: int | None = None, timeout: float | None = None, *, exclusive: bool = False
    ) -> Iterator[Message]:
        """Iterate over messages; ends if none arrives for `timeout` seconds. Raises what get raises.

        Without a `prefetch`, as many messages are delivered ahead as the loop works off in about 4 ms: many to a fast
        loop; to a slow one, none but the one it works on, so that consumers share the work. It begins with one. If the
        work becomes slower, messages that lie ahead return, in their places, and others receive them. At most 500
        messages are unacked at a time. With a `prefetch`, so many are delivered and unacked at a time, whatever the
        loop does; it holds for all threads of the process that consume this queue.

        While so many messages are unacked, no further one is delivered, however many are ready: the iterator then ends
        at its timeout as with an empty queue, or without one waits forever. Ack as you go, or use a larger prefetch.
        When the iterator is left, messages that were delivered but not handed out return to the queue.

        `exclusive`: it is the only consumer of the queue, in all processes, from its first message wanted until it is
        left, or its process dies; a restart of the queue's worker changes nothing. ResourceLocked is raised when there
        is another consumer, and to others that begin to consume meanwhile. Gets are not kept out.
        """
        return self._consume(prefetch, timeout, self._checked_exclusive(exclusive))

    def _checked_exclusive(self, exclusive: object) -> bool:
        """Raises UsageError."""
        if checked_flag(exclusive, "exclusive") and self._declaration.arguments.get("single_active_consumer"):
            raise UsageError(
                f"queue {self.name!r} is declared with single_active_consumer, so one consumer gets all messages "
                "anyway: leave out exclusive"
            )
        return bool(exclusive)

    def _begins(self, exclusive: bool) -> None:
        """One more consumes here. Raises ResourceLocked."""
        with self._lock:
            if self._alone or (exclusive and self._consuming):
                raise joining.of_own(self.name, self._alone)
            self._consuming += 1
            self._alone = exclusive

    def _consume(self, prefetch: int | None, timeout: float | None, exclusive: bool) -> Iterator[Message]:
        self._begins(exclusive)
        silent = joined = False
        try:
            handle = self._handle
            begun = False
            left = timeout
            while True:
                try:
                    if not begun:
                        if exclusive or joining.somebody_is_alone(self._client, self._declaration):
                            joined = True
                            joining.join(self._client, self._declaration, exclusive)
                        self._begun = handle.begin(prefetch)
                        begun = True
                    message = handle.get(left)
                except AttachmentLost as lost:
                    left = time_left(lost, left)
                    handle, begun = self._renew(), False
                    continue
                if message is None:
                    return
                yield message  # type: ignore[misc]
                left = timeout
        except (TimedOut, PeerLost):
            silent = True  # the worker: it is not waited for once more
            raise
        finally:
            with self._lock:
                self._consuming -= 1
                last = None if self._consuming else self._begun
            try:
                if last is not None:  # another thread may begin now: then it goes on, with what lies here
                    self._give_back_later(last) if silent else self._release(last)
            finally:
                if joined and last is not None and self._handle.usable:
                    joining.leave(self._client, self._handle, SILENT_S if silent else joining.LEAVE_S)
                if exclusive:
                    self._alone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Leave off using it: what was delivered ahead and not handed out returns. It can be used again."""
        self.release()

    def release(self) -> None:
        """Return messages that were delivered ahead but not handed out; the next get or consume starts over. When this
        returns, they are back in the queue. Raises TimedOut or PeerLost if the worker does not answer for 10 s. If
        every process of the node is dead it returns at once, and the next node puts them back.

        Threads that are inside get or consume at that moment continue in order: messages that lie ready for them stay.
        """
        self._release(None)

    def _put_back(self) -> bool:
        """Before a look: what lies ahead here and was handed to nobody returns, unless a loop of consume is under way.
        Whether anything had to.
        """
        with self._lock:  # no consume begins meanwhile
            if self._consuming or not self._handle.usable or not self._handle.hoard():
                return False
            self._release(None)
            return True

    def _release(self, begun: int | None) -> None:
        if self._handle.usable:
            try:
                if self._client.deserted():
                    self._leave_to_next(begun)
                else:
                    self._handle.release(begun)
            except AttachmentLost:
                return  # the servers return it
            except NodeNotRunning:  # all of them died meanwhile
                self._leave_to_next(begun)

    def _give_back_later(self, begun: int) -> None:
        """Nothing more is asked for; what lies here returns when the worker answers again."""
        if self._handle.usable and begun == self._begun:
            with contextlib.suppress(AttachmentLost):
                if self._client.deserted():
                    self._leave_to_next(begun)
                else:
                    self._handle.stop()
                    self._client.look_after(self._handle.queue)

    def _leave_to_next(self, begun: int | None) -> None:
        """Submit what gives back what lies here, and wait for nobody: the next node does it before all else."""
        if begun is None or begun == self._begun:
            with contextlib.suppress(AttachmentLost):
                self._handle.stop()
                self._handle.give_back()

    def ack(self, messages: Sequence[Message]) -> None:
        """Ack many messages of this queue in as few commands as possible. Raises AckTimedOut (`late`) if the queue's
        ack_timeout ran out for some of them; the others are acked.
        """
        self._handle.settle_many(messages, True, False)

    def nack(self, messages: Sequence[Message], requeue: bool = True) -> None:
        """Nack many messages of this queue: return them to their places, or drop them. Raises AckTimedOut, as ack."""
        self._handle.settle_many(messages, False, checked_flag(requeue, "requeue"))

    def reply(
        self,
        message: Message,
        body: Body,
        headers: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Answer a message of this queue: publish to its `reply_to`, with its correlation_id. Returns when there was
        room. The answer to a call (node.call) whose caller has gone is dropped. Raises UsageError (it has no reply_to),
        MessageTooLarge, TimedOut, PeerLost.
        """
        if not isinstance(message, _core.Delivery):
            raise UsageError(f"message must be a message of this queue, not {shown(message)}")
        told = message.properties
        to = told.get("reply_to")
        if not isinstance(to, str):
            raise UsageError("this message has no reply_to, or one that is not text: nobody waits for an answer")
        meta = metadata.encode("", to, headers, {"correlation_id": told.get("correlation_id")})
        while True:
            route = reply_route(self._client, to) or self._client.route("", to).core
            try:
                self._client.core.publish(route, body, _core.LEVEL_NONE, meta, timeout, False)
                return
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)

    # -- looking ------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Counters of the queue. What was confirmed before the call is counted; what was delivered, acked or returned
        just now may not be yet, for a few milliseconds.

        Messages now: `ready`, `unacked`, `delayed`, and `bytes` of the bodies of the first two. What was delivered
        ahead counts as unacked, also to this process: `depth()` returns that first. Of these messages, `alpha` have
        body and row in memory, `beta` the row alone, `gamma` the row in memory and on disk, `delta` on disk alone.

        Since the worker started: `published`, `delivered`, `acked`, `requeued`, `expired`, `dropped` and `refused` (the
        queue was full), `duplicates`, `dead_lettered`, and `lost` (damaged files).

        `consumers` can receive messages now; `consuming` of them consume, others get. `consumed` counts those that
        began to consume since the worker started, `asked` how often any consumer asked for messages. `base` and `next`
        are the lowest sequence in the queue and the next one to be assigned.

        Raises QueueNotFound, TimedOut, PeerLost.
        """
        while True:
            attachment = self._client.attachment()
            if self._handle.perhaps_gone:
                self._client.router()
            if not self._handle.usable:
                self._renew()
            row = attachment.statistics_of(self._server, self._declaration.id)
            if row is not None:
                return {name: QUEUE_STATS.unpack(row, name) for name in _STATISTICS}
            answer = self._ask(control.Stats, control.Counts)
            return {name: int(answer.get(name, 0)) for name in _STATISTICS}

    def depth(self) -> int:
        """Number of ready messages. What was delivered ahead to gets of this process, and handed to nobody, returns
        first and counts (while a consume of this process runs, it stays there, and does not count); what lies ahead at
        other processes does not. Counted is what stats() counts. Raises what stats and release raise.
        """
        return counts_of(self)["ready"] if self._put_back() else self.stats()["ready"]

    def __len__(self) -> int:
        return self.depth()

    def __bool__(self) -> bool:
        return True

    def browse(self, max: int = 100) -> list[Message]:
        """The first `max` ready messages, without taking them. They cannot be acked (UsageError).

        They come in the order in which they were published, whatever their priority; one that was returned, or whose
        delay is over, at its old place. What is unacked, delayed or expired is left out, as a consumer would not get it
        now; `depth()` counts expired ones until they are removed. Messages delivered ahead: as for depth(). One whose
        body is damaged is left out, with a warning of the logger `warren.client`.
        """
        self._put_back()
        return list(self._browse(checked_count(max, "max", 0)))

    def _browse(self, max: int, unreadable: Callable[[int], object] | None = None) -> Iterator[Message]:
        if not self._handle.usable:
            self._renew()
        left, at = max, 0
        while left > 0:
            found, at = browse(
                self._client,
                self,
                self._declaration,
                at,
                min(left, BROWSE_ROWS),
                ready_only=True,
                messages=self._messages,
                unreadable=unreadable,
            )
            if not found and at < 0:
                return
            for message in found:
                if message is not None:
                    left -= 1
                    yield message
            if at < 0:
                return

    def browse_arrow(self, max: int = UNLIMITED, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """The first `max` ready messages as Arrow batches of about `max_bytes` of bodies, without taking them: those of
        browse(), in the same order.
        """
        from warren.workers.faces.arrow import Batches

        most, bytes_most = checked_count(max, "max", 0), checked_count(max_bytes, "max_bytes")
        self._put_back()
        if not self._handle.usable:
            self._renew()
        batches = Batches(self._client, self, self._declaration, ready_only=True)
        return batches.read(0, UNLIMITED, rows_max=most, bytes_max=bytes_most)

    # -- changing -----------------------------------------------------------------------------------------------

    def purge(self, timeout: float | None = 30.0) -> int:
        """Drop all ready messages; returns how many. Unacked ones stay with their consumers."""
        checked_seconds(timeout)
        return self._ask(control.Purge, control.Count, timeout).count

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete the queue with its messages, bindings and subscriptions; conditions as for Node.delete_queue. Raises
        QueueNotFound, ResourceLocked, PreconditionFailed.
        """
        delete_queue(self._client, self.name, if_unused, if_empty)

    def subscription(self, name: str, *, create: bool = True) -> Subscription:
        """A subscription of this queue; created if it does not exist (`create=False`: QueueNotFound). It claims
        messages in numbered batches that outlive its reader: whoever reads again after a failure gets the same batches,
        as Spark does for each batch of a stream. For programs that keep their own place, and settle up to it; others
        get and ack.
        """
        create = checked_flag(create, "create")
        check_name(name, "subscription")
        if not self._handle.usable:
            self._renew()
        declared = self._client.catalog().subscription(self.name, name)
        if declared is None and not create:
            raise QueueNotFound(f"queue {self.name!r} has no subscription {name!r}: it was deleted, or never made")
        if declared is None:
            answer = self._client.declare("subscription", queue=self.name, name=name)
            declared = msgspec.convert(answer["queue"], QueueDeclaration)
        return Subscription(self._client, self, name, declared)

    def bind(self, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None) -> None:
        """Route messages of an exchange with this routing key (pattern) to this queue; `arguments`: see Node.bind.

        Raises ExchangeNotFound, UsageError.
        """
        self._client.declare("bind", **self._binding(exchange, routing_key, arguments))

    def unbind(self, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None) -> bool:
        """Remove the binding with this routing key and these arguments. Returns False if there was none."""
        return bool(self._client.declare("unbind", **self._binding(exchange, routing_key, arguments))["removed"])

    def _binding(self, exchange: str, routing_key: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "queue": self.name,
            "exchange": checked_exchange(exchange),
            "routing_key": check_routing_key(routing_key),
            "arguments": checked_opaque("binding arguments", arguments),
        }


def _unpickled(place: Place, declaration: QueueDeclaration) -> Queue:
    client = shared(place)
    with client.queues_lock:
        found: Queue | None = client.queues.get(declaration.name)
        if found is None:
            found = client.queues[declaration.name] = Queue(client, declaration, later=True)
        return found


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _in_child() -> None:
    """Threads of the parent that held a lock, or consumed, do not exist in a child of fork."""
    for queue in list(_queues):
        queue._lock = threading.Lock()
        queue._consuming = 0
        queue._alone = False


os.register_at_fork(after_in_child=_in_child)


# -- for other faces ------------------------------------------------------------------------------------------------


def refresh(queue: Queue, declaration: QueueDeclaration) -> None:
    """The queue was looked up, and is declared so."""
    if queue.durable != declaration.durable or not queue._handle.usable:
        queue._renew()


def delete_queue(client: Client, name: str, if_unused: object, if_empty: object) -> None:
    """Delete a queue, if the conditions are true."""
    conditions = {"if_unused": checked_flag(if_unused, "if_unused"), "if_empty": checked_flag(if_empty, "if_empty")}
    client.declare("delete_queue", name=name, **conditions)
    client.router()


def client_of(queue: Queue) -> Client:
    """The client that it belongs to."""
    return queue._client


def arguments_of(queue: Queue) -> dict[str, Any]:
    """The arguments that it was declared with, when it was looked up last."""
    return queue._declaration.arguments


def rejected_above(queue: Queue) -> int:
    """How many messages that nobody has received it takes before it refuses others; 0: any number."""
    arguments = arguments_of(queue)
    return int(arguments.get("max_length", 0)) if arguments.get("overflow") == "reject-publish" else 0


def tell_cause(queue: Queue, message: Message, text: str) -> None:
    """What a message dies of that is rejected next: a header of its dead letter, without which it goes, too."""
    if "dead_letter_exchange" in queue._declaration.arguments:
        with contextlib.suppress(Error, AttachmentLost):
            queue._ask(lambda id: control.Cause(id, message.message_id, text), control.Count, CAUSE_S)


def server_of(queue: Queue) -> int:
    """The server of its worker."""
    return queue._server


def range_of(queue: Queue) -> QueueRange:
    """What lies in a queue, by its sequences."""
    return QueueRange(queue._client, queue, queue._declaration)


def counts_of(queue: Queue, timeout: float | EllipsisType | None = ...) -> control.Counts:
    """Counters after all that this process submitted; those of stats() may be a batch old."""
    return queue._ask(control.Stats, control.Counts, timeout)


def waiting_of(queue: Queue) -> int:
    """How many messages nobody has received, after all that this process did: ready, or lying ready at a client."""
    return queue._ask(control.Waiting, control.Count).count


def browse_all(queue: Queue, max: int) -> tuple[list[Message], int]:
    """Queue.browse, and how many messages among those could not be read."""
    unreadable: list[int] = []
    return list(queue._browse(max, unreadable.append)), len(unreadable)


def get_until(queue: Queue, timeout: float | None, ahead: bool, end: End) -> Message | None:
    """Queue.get, but None when none came, or when it is the end; who waits looks at that again after wake(queue)."""
    handle = queue._handle
    woken = handle.woken
    if end.come:
        return None
    try:
        return handle.get(timeout, ahead, woken)  # type: ignore[return-value]  # the class given to the handle
    except AttachmentLost as lost:
        return queue._get_again(time_left(lost, timeout), ahead, end)  # type: ignore[return-value]


def wake(queue: Queue) -> None:
    """Who waits in a get looks again, a twentieth of a second later at most: those of get_until whether it is the end,
    all others go on."""
    queue._handle.wake()


def wait_for_room(queue: Queue, room: Room, end: End) -> bool:
    """After a refusal: wait until there seems to be room; False when no time is left, or it is the end."""
    return queue._wait_for(room, end)


def full(queue: Queue, error: QueueFull) -> QueueFull:
    """The same error, with the name and the limits of the queue."""
    return queue._full(error)


def time_left(lost: AttachmentLost, timeout: float | None) -> float | None:
    """What is left of the timeout of a call that has to be made again, with another attachment or another handle. Only
    what was 0 is 0: that means to wait for the worker's answer.
    """
    deadline = getattr(lost, "deadline", None)
    return timeout if not timeout or deadline is None else max(1e-6, deadline - time.monotonic())
