"""What comes for the consumers of one connection, and the bell that says so: a descriptor for an event loop.

The waiting thread of the process (workers/client/waiter.py) sleeps for the client, and rings by writing to an eventfd;
whoever is woken takes what came, and says what is wanted next. Nothing is polled, and no thread is needed for a queue.

Invariants
  A message is delivered to a consumer only while that one has room: the worker keeps at most as many here as the
  consumers of the queue may hold together.
  Whoever takes says anew what it waits for before it sleeps; what was there already rings at once.
  One attachment, for as long as the connection: when it is over (the node was stopped, the link was closed) taking
  raises, and what was held returns to its queues. Killed servers are waited for, and what is held stays held.
  A child of fork has the descriptor and nothing else: the parent's consumers are not its own. It waits for no lock,
  which a thread may have held that the child does not have.

Crash points
  Taken, not delivered to the program: unacked as everything else; returned, marked redelivered, when the process dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import Error, PeerLost, QueueNotFound
from warren.engine.queues import control
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import waiter
from warren.workers.client.client import Client
from warren.workers.faces.message import Message

log = logging.getLogger("warren.celery")
#: messages read from files at once
FILL = 64
#: what a consumer without a limit has ahead, and one that acks at once
AHEAD = 1000


class Delivered(NamedTuple):
    """A message for a consumer."""

    consumer: Consumer
    message: Message


class Consumer:
    """One consumer of a queue."""

    def __init__(
        self, tag: str, queue: str, no_ack: bool, prefetch: int, deliver: Callable[[Consumer, Message], None]
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.prefetch = prefetch  #: 0: no limit
        self.deliver = deliver
        self.held = 0
        self.ahead = AHEAD  #: what it may hold, without a limit: more whenever it holds most of it
        self.flows = True
        self._lock = threading.Lock()  # of `held`: pools of threads ack

    def takes(self, count: int) -> None:
        """It is given messages, or (below 0) has settled some."""
        with self._lock:
            self.held = max(0, self.held + count)

    @property
    def most(self) -> int:
        """How many messages it may hold."""
        if self.no_ack:
            return AHEAD
        return self.prefetch or self.ahead

    @property
    def room(self) -> int:
        """How many more it may be given."""
        return max(0, self.most - self.held) if self.flows else 0

    def grow(self) -> bool:
        """Without a limit: hold more, if it is time to; whether it was."""
        if self.no_ack or self.prefetch or self.held * 2 < self.ahead:
            return False
        self.ahead = self.held + AHEAD
        return True


class Source:
    """A queue that is consumed here. `name` is what its messages say of where they came from."""

    def __init__(self, client: Client, declaration: QueueDeclaration) -> None:
        self.name = declaration.name
        self.client = client
        self.declaration = declaration
        self.consumers: deque[Consumer] = deque()
        self.kept = False  #: something lies here for which nobody had room
        self.first: Message | None = None  #: it came when the worker was asked for more
        self.told = False  #: that all delivery slots are taken, the log was told
        self.handle = client.handle(declaration, self, Message)

    @property
    def server(self) -> int:
        """The server of its worker."""
        return SERVER_WORKER_FIRST + self.declaration.worker

    def prefetch(self) -> None:
        """Tell the worker how much all consumers together may hold."""
        slots = self.client.attachment().delivery_slots
        self.handle.begin(max(1, min(sum(consumer.most for consumer in self.consumers), slots)))

    def tell_full(self) -> None:
        """Tell the log, once, when nothing more can come before something is acked."""
        slots = self.client.attachment().delivery_slots
        if not self.told and self.handle.unacked >= slots and any(consumer.room for consumer in self.consumers):
            self.told = True
            log.warning(
                "queue %s: this process holds %d messages unacked, and can hold no more: the next ones come when it "
                "acks some. Give a prefetch (worker_prefetch_multiplier), or raise the setting amqp_delivery_slots",
                self.name,
                slots,
            )

    def next(self) -> Consumer | None:
        """Who gets the next message: the consumers take turns."""
        for _turn in range(len(self.consumers)):
            self.consumers.rotate(-1)
            if self.consumers[-1].room:
                return self.consumers[-1]
        return None


class Inbox:
    """The consumers of a connection. One thread takes at a time; `settled` and `ring` are for any."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pid = os.getpid()
        self.closed = False
        self._fd_lock = threading.Lock()
        self._client: Client | None = None
        self._core: _core.Client | None = None
        self._listener: Callable[[], None] | None = None
        self._sources: dict[str, Source] = {}  # that have consumers
        self._known: dict[str, Source] = {}  # that had some, too
        self._error: Exception | None = None  #: what the waiting thread met

    # -- the bell -----------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Whoever waits looks."""
        if self.pid != os.getpid():
            return
        with self._fd_lock:
            if not self.closed:
                with contextlib.suppress(BlockingIOError):  # it rings 2^64 times over
                    os.eventfd_write(self.fd, 1)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the bell; False when time is up."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(0, round(timeout * 1000))))

    def attach(self, client: Client) -> None:
        """Consume as this client, until the end of its attachment."""
        core = client.attachment().core
        reference = weakref.ref(self)

        def ring() -> None:
            inbox = reference()
            if inbox is not None:
                inbox.ring()

        def look() -> None:
            inbox = reference()
            if inbox is not None:
                inbox._look()

        self._client, self._core, self._listener = client, core, ring
        waiter.watch(core, ring, look)

    @property
    def client(self) -> Client | None:
        """Who consumes here; None before anything is consumed."""
        return self._client

    @property
    def alive(self) -> bool:
        """Nothing has ended yet."""
        return not self.closed and self.pid == os.getpid() and (self._core is None or not self._core.over)

    def _look(self) -> None:
        """The waiting thread, about once a second: does whoever has to send something live? Are the queues there?"""
        core = self._core
        if core is None or self.closed or self.pid != os.getpid():
            return
        try:
            sources = list(self._sources.values())
            for server in {source.server for source in sources}:
                core.check(server)
                if core.trouble(server, _core.FOR_DELIVERY):
                    self.ring()
            for source in sources:
                source.tell_full()
            if core.over or any(source.handle.perhaps_gone or not source.handle.usable for source in sources):
                self.ring()
        except (Error, AttachmentLost) as error:
            self._error = error
            self.ring()

    # -- consumers ----------------------------------------------------------------------------------------------

    def consume(self, consumer: Consumer) -> None:
        """A consumer comes. Raises QueueNotFound, ResourceLocked, ClosedError, TimedOut."""
        source = self._sources.get(consumer.queue)
        if source is None:
            source = self._source(consumer.queue)
            source.consumers.append(consumer)
            try:
                source.prefetch()
                self._ask(source)  # the worker answers, so it knows this client by then
                source.first = self._poll(source)
                self._ask(source)  # and this consumer
            except BaseException:
                source.consumers.clear()
                self._release(source)
                raise
            self._sources[consumer.queue] = source
        else:
            source.consumers.append(consumer)
            source.prefetch()
        self.ring()

    def _ask(self, source: Source) -> None:
        self._of().ask_queue(source.declaration, lambda now: control.Stats(now.id), control.Counts)

    def get(self, queue: str) -> Message | None:
        """The next message of a queue, or None. Raises QueueNotFound, ResourceLocked, ClosedError."""
        source = self._sources.get(queue) or self._source(queue)
        return source.handle.get(0, False)  # type: ignore[return-value]  # the class given to the handle

    def _source(self, queue: str) -> Source:
        """A queue as it is now. One that was used before keeps its handle: this process is one consumer of it."""
        client = self._of()
        catalog = client.catalog()
        declaration = catalog.queue(queue)
        catalog.check_owner(declaration, client.epoch)
        known = self._known.get(queue)
        if known is None or known.declaration.id != declaration.id or not known.handle.usable:
            known = self._known[queue] = Source(client, declaration)
        return known

    def cancel(self, consumer: Consumer) -> None:
        """A consumer goes; what was delivered ahead for it returns to the queue. What it holds stays with it."""
        source = self._sources.get(consumer.queue)
        if source is None or consumer not in source.consumers:
            return
        source.consumers.remove(consumer)
        if source.consumers:
            with contextlib.suppress(AttachmentLost):
                source.prefetch()
            return
        del self._sources[consumer.queue]
        self._release(source)

    def _release(self, source: Source) -> None:
        """What lies here for nobody returns."""
        first, source.first = source.first, None
        if source.handle.usable and self.alive:
            with contextlib.suppress(AttachmentLost):  # then the servers return it
                if first is not None:
                    source.handle.settle_many([first], False, True, True)
                source.handle.release()

    def limit(self, consumer: Consumer, prefetch: int) -> None:
        """A consumer may hold another number of messages."""
        consumer.prefetch = prefetch
        source = self._sources.get(consumer.queue)
        if source is not None:
            with contextlib.suppress(AttachmentLost):  # whoever takes next says so
                source.prefetch()
            self.ring()

    def settled(self, consumer: Consumer) -> None:
        """A consumer holds one message less."""
        consumer.takes(-1)
        source = self._sources.get(consumer.queue)
        if source is not None and source.kept:
            self.ring()

    def flow(self, consumer: Consumer, flows: bool) -> None:
        """A consumer wants nothing, or goes on."""
        consumer.flows = flows
        self.ring()

    def _of(self) -> Client:
        assert self._client is not None, "attach comes before consume"
        return self._client

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, most: int) -> list[Delivered]:
        """Up to `most` messages that are here. Waits for nothing but a restarted server's memory. Raises what ends the
        connection: ClosedError, PeerLost, NodeNotRunning; CorruptRecord for a message that is damaged.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        if self._error is not None:
            error, self._error = self._error, None
            raise self._ended(error)
        if self._core is None:
            return []
        found: list[Delivered] = []
        try:
            if self._core.over:
                raise AttachmentLost("the attachment is over")
            for server in {source.server for source in self._sources.values()}:
                self._core.lying(server)
            for source in list(self._sources.values()):
                found.extend(self._take_from(source, most - len(found)))
                if len(found) >= most:
                    self.ring()
                    return found
            if self._say_what_is_wanted():
                self.ring()
        except (Error, AttachmentLost, OSError) as error:
            if not found:
                raise self._ended(error) from error
            self.ring()  # it is met again
        return found

    def _take_from(self, source: Source, most: int) -> Iterator[Delivered]:
        source.kept = False
        if sum(consumer.grow() for consumer in source.consumers):
            source.prefetch()
        while most > 0:
            consumer = source.next()
            if consumer is None:
                source.kept = source.first is not None or source.handle.pending > 0
                return
            message = self._poll(source)
            if message is None:
                return
            if consumer.no_ack:
                message.ack()
            else:
                consumer.takes(1)
            most -= 1
            yield Delivered(consumer, message)

    def _poll(self, source: Source) -> Message | None:
        handle = source.handle
        if source.first is not None:
            first, source.first = source.first, None
            return first
        if handle.perhaps_gone:
            source.client.router()
        for _try in range(3):
            answer = handle.poll(1, 1, True)
            if answer == _core.POLL_SLOW:
                answer = handle.poll(1, 1, False)
            if isinstance(answer, list):
                return answer[0]  # type: ignore[return-value]  # the class given to the handle
            if answer != _core.POLL_STALE:
                break
            source.client.hook(_core.HOOK_EPOCH, handle.server)
        return None

    def _say_what_is_wanted(self) -> bool:
        """True when something of it is there already, or has been set right now."""
        core, client, again = self._core, self._of(), False
        assert core is not None
        for server in {source.server for source in self._sources.values()}:
            code = core.trouble(server, _core.FOR_DELIVERY)
            if code:
                client.hook(code, server)
                again |= code == _core.HOOK_EPOCH
            again |= core.watch(server, _core.WANT_DELIVERY, 0)
            blocked = core.room(server, 1, 0, 0)  # an announcement may have had none
            if blocked is not None:
                again |= core.watch(blocked[0], _core.WANT_HEAD, blocked[1])
        return again

    def _ended(self, error: Exception) -> Exception:
        """What the program is told: an error of the connection, so that it connects and declares anew."""
        gone = [source.name for source in self._sources.values() if not source.handle.usable]
        if (
            self._core is not None
            and not self._core.over
            and gone
            and isinstance(error, (AttachmentLost, QueueNotFound))
        ):
            return PeerLost(f"queue {gone[0]!r} was deleted while it was consumed: connect and declare it again")
        if isinstance(error, AttachmentLost):
            return PeerLost(f"{error}: connect again")
        return error

    def give_back(self, rest: list[Delivered]) -> None:
        """Messages that no program saw return to their places."""
        for consumer, message in reversed(rest):
            if not consumer.no_ack:
                self.settled(consumer)
                with contextlib.suppress(AttachmentLost, Error):  # then the servers return it
                    source = self._known.get(consumer.queue)
                    if source is not None:
                        source.handle.settle_many([message], False, True, True)
                    else:
                        message.nack()

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """What is held returns to its queues. In a child of fork nothing of the parent's ends."""
        if not self._close_fd() or self.pid != os.getpid():
            return
        if self._core is not None and self._listener is not None:
            waiter.unwatch(self._core, self._listener)
        self._sources.clear()
        self._known.clear()
        if self._client is not None:
            self._client.close()

    def __del__(self) -> None:
        """A connection that was dropped: its client ends by itself."""
        if hasattr(self, "_fd_lock"):
            self._close_fd()

    def _close_fd(self) -> bool:
        """Close the descriptor; False if it was closed before."""
        with self._fd_lock if self.pid == os.getpid() else contextlib.nullcontext():
            if self.closed:
                return False
            self.closed = True
            os.close(self.fd)
            return True
