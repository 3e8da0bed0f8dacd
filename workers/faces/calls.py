"""Calls: a message that is answered. node.call puts it, node.serve answers it.

    node.queue("prices")
    node.serve("prices", lambda message: message.body.upper()).run()      # one process, or several
    node.call("prices", b"gold", timeout=5.0)                             # any other: b"GOLD"

How the answer finds its way
  Each worker has a queue of replies for each client that calls: its id is made of the client's slot and generation, no
  catalog knows it, the client's first credit makes it, and it goes with the client. `reply_to` names it, and whoever
  answers publishes there; nobody there any more: the answer is dropped. Answers are held in memory only.

Who reads
  Of the threads that wait for an answer one reads for all. When it has its own, another one goes on. An event loop has
  a thread that reads for it while somebody waits there.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog import metadata
from warren.engine.errors import CallFailed, Error, NodeNotRunning, PeerLost, TimedOut, UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import raised, readable
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client.arguments import checked_seconds
from warren.workers.faces.interrupts import is_interrupt
from warren.workers.faces.message import Message
from warren.workers.process import standstill

if TYPE_CHECKING:
    from warren.workers.client.client import Client

log = logging.getLogger("warren.worker")

#: what passes: the node or one of its processes is restarted
TROUBLE = (PeerLost, TimedOut, NodeNotRunning)
#: how long the reader of an event loop reads on when nobody waits
LOOK_S = 0.5
#: how many answers lie here at most
REPLIES_AHEAD = 1000
#: `reply_to` of a call: PREFIX worker.queue
PREFIX = "warren.reply."
#: header of an answer: what the function raised
FAILED = "warren-failed"
#: characters of it at most
FAILED_MOST = 4000
#: how long the last answer of a server that ends may wait for room
LAST_S = 2.0
#: what a function of `serve` returns to the loop that called it: it has failed, and nothing is to be tried again
HAS_FAILED = object()
#: of a function with `yield`
WITHOUT_YIELD = "return when the work is done, without yield"


class Waiting:
    """One call that waits for its answer."""

    def __init__(self, told: Callable[[], object] | None = None) -> None:
        self.reply: _core.Delivery | None = None
        self.lost: BaseException | None = None
        self._event = threading.Event() if told is None else None
        self._told = told  #: for an event loop: there is an answer, or none will come

    @property
    def unanswered(self) -> bool:
        """Neither an answer, nor a reason why none will come."""
        return self.reply is None and self.lost is None

    def tell(self) -> None:
        """There is something to see, or nobody reads any more."""
        if self._event is not None:
            self._event.set()
        elif self._told is not None and not self.unanswered:
            self._told()

    def wait(self, seconds: float) -> None:
        """Until told, or for so long."""
        assert self._event is not None
        self._event.wait(seconds)
        self._event.clear()


class Replies:
    """The answers of one worker to one attachment."""

    def __init__(self, client: Client, server: int) -> None:
        attachment = client.attachment()
        slot = attachment.slot
        low = PROTOCOL["REPLY_QUEUE"] - 1
        queue = PROTOCOL["REPLY_QUEUE"] | (slot.generation << PROTOCOL["REPLY_SHIFT"] & low) | slot.slot
        self.core = attachment.core
        self.to = f"{PREFIX}{server - SERVER_WORKER_FIRST}.{queue}"
        self._handle = _core.QueueHandle(self.core, server, queue, self, Message)
        self._handle.begin(REPLIES_AHEAD)
        self._superblock, self._server = attachment.superblock, server
        self._epoch = 0  #: of the worker that knows of us
        self._numbers = itertools.count(int.from_bytes(os.urandom(6), "big"))
        self._waiting: dict[str, Waiting] = {}
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None

    name = "replies"  #: for messages, which know their queue

    @property
    def announced(self) -> bool:
        """Whether the worker of now sends answers here."""
        return bool(self._superblock.server_get(self._server, "epoch") == self._epoch)

    def announce(self) -> None:
        """Before the first call, and after a restart of the worker: it knows of us when this returns. Raises TimedOut,
        PeerLost, ClosedError, NodeNotRunning, AttachmentLost."""
        epoch = self._superblock.server_get(self._server, "epoch")
        early = self._handle.get(0)  # asks the worker, and waits for its word
        if early is not None:
            self._dispatch(early)
        self._epoch = epoch

    def begin(self, waiting: Waiting) -> str:
        """Somebody waits from now on; returns the correlation id."""
        number = f"{next(self._numbers):x}"
        with self._lock:
            self._waiting[number] = waiting
        return number

    def end(self, number: str) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(number, None)
        if not self._reading.locked():  # who left may have been the reader, or the one who was to be
            self._next()

    def begin_reading(self) -> None:
        """A thread reads, from now on and as long as somebody waits: for event loops, which cannot."""
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_on, name="warren-replies", daemon=True)
                self._reader.start()

    def _read_on(self) -> None:
        try:
            while True:
                with self._reading:
                    self.read(LOOK_S, lambda: False)
                with self._lock:
                    if not self._waiting:
                        self._reader = None
                        return
        except (AttachmentLost, Error) as error:
            with self._lock:
                self._reader = None
                for waiting in self._waiting.values():
                    waiting.lost = error
                    waiting.tell()

    def wait(self, waiting: Waiting, deadline: float) -> None:
        """Until there is an answer, or the deadline. Raises AttachmentLost, PeerLost, ClosedError, NodeNotRunning."""
        while waiting.reply is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._reading.acquire(blocking=False):
                try:
                    self.read(left, lambda: waiting.reply is not None)
                finally:
                    self._reading.release()
            else:
                waiting.wait(left)

    def read(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Give answers to those who wait for them, until it is enough or for so long."""
        deadline = time.monotonic() + seconds
        while not enough() and (left := deadline - time.monotonic()) > 0:
            try:
                message = self._handle.get(left)
            except TimedOut:  # the worker is late to say that there is none: who waits knows his own time
                return
            if message is None:
                return
            self._dispatch(message)

    def _dispatch(self, message: _core.Delivery) -> None:
        message.ack()
        told = metadata.decode(message.meta).properties if message.meta is not None else None
        waiting = self._waiting.pop((told or {}).get("correlation_id", ""), None)
        if waiting is not None:  # else it gave up
            waiting.reply = message
            waiting.tell()

    def _next(self) -> None:
        """Who read has left: another one goes on."""
        for waiting in list(self._waiting.values()):
            if waiting.reply is None:
                waiting.tell()
                return


class Caller:
    """The calls of one client. Thread-safe; a child of fork has its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._replies: dict[int, Replies] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def replies(self, server: int) -> Replies:
        """Where answers of a worker arrive, in the attachment of now. It may wait for the worker."""
        if self._pid != os.getpid():  # a child of fork: the lock may have been held, and the answers are its parent's
            self._lock, self._replies, self._pid = threading.Lock(), {}, os.getpid()
        while (found := self.known(server)) is None:
            with self._lock, contextlib.suppress(AttachmentLost):
                found = self._replies.get(server)
                if found is None or found.core is not self._client.core:
                    found = self._replies[server] = Replies(self._client, server)
                if not found.announced:
                    found.announce()
        return found

    def known(self, server: int) -> Replies | None:
        """The same if there is one that its worker knows of, without waiting."""
        found = self._replies.get(server) if self._pid == os.getpid() else None
        return found if found is not None and found.core is self._client.core and found.announced else None

    def call(self, queue: Any, server: int, body: Any, timeout: float, options: Mapping[str, Any]) -> bytes:
        """Put a message and wait for its answer."""
        checked_seconds(timeout, endless=False)
        deadline = time.monotonic() + timeout
        replies = self.replies(server)
        waiting = Waiting()
        number = replies.begin(waiting)
        try:
            confirm = queue.put(body, wait=False, **asked(replies.to, number, timeout, options))
            try:
                replies.wait(waiting, deadline)
            except AttachmentLost as error:
                waiting.lost = error
        finally:
            replies.end(number)
        if waiting.unanswered and confirm.done():
            confirm.result(0)  # raises when it was refused
        return self.answer(queue.name, server, timeout, waiting)

    def answer(self, queue_name: str, server: int, timeout: float, waiting: Waiting) -> bytes:
        """What a call returns, or raises."""
        reply = waiting.reply
        if reply is None:
            if isinstance(waiting.lost, AttachmentLost):
                raise PeerLost(f"queue {queue_name!r}: the call was lost with the attachment: {waiting.lost}")
            if waiting.lost is not None:
                raise waiting.lost
            attachment = self._client.attached
            still = ""
            if attachment is not None and not attachment.core.over:
                still = standstill.behind(attachment.superblock, server)
            why = f"{still}." if still else "; is anybody serving it (node.serve)?"
            raise TimedOut(
                f"queue {queue_name!r}: no answer within {timeout:g} s{why} An answer that comes later is dropped"
            )
        headers = metadata.decode(reply.meta).headers if reply.meta is not None else None
        if headers and FAILED in headers:
            raise CallFailed(f"queue {queue_name!r}: the function that served the call raised {headers[FAILED]}")
        return reply.body


def asked(to: str, number: str, timeout: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a put that asks: nobody needs it when its time is over."""
    given = options.get("properties")
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"properties must be a mapping, not {type(given).__name__}")
    properties = dict(given or {})
    if {"reply_to", "correlation_id"} & properties.keys():
        raise UsageError("reply_to and correlation_id are the call's own: leave them out of properties")
    properties |= {"reply_to": to, "correlation_id": number}
    return {**options, "durability": "none", "persistent": False, "ttl": timeout, "properties": properties}


def reply_route(client: Client, to: str) -> _core.Route | None:
    """Where an answer goes; None: `reply_to` names no caller."""
    worker, _dot, queue = to.removeprefix(PREFIX).partition(".")
    if not to.startswith(PREFIX) or not worker.isdecimal() or not queue.isdecimal():
        return None
    server, id = SERVER_WORKER_FIRST + int(worker), int(queue)
    if not PROTOCOL["REPLY_QUEUE"] <= id < 1 << 32 or server >= len(client.attachment().control_locks):
        return None
    return _core.Route([(server, [id])])


def failed(error: BaseException) -> dict[str, str]:
    """The headers of an answer that says what a function raised."""
    return {FAILED: shortly(error, FAILED_MOST)}


def shortly(error: BaseException, most: int) -> str:
    """What was raised, as text that can be sent, of so many characters and a mark that there were more."""
    text = readable(raised(error))
    return text if len(text) <= most else text[:most] + " …"


def asks(message: Any, error: BaseException | None = None) -> bool:
    """Whether somebody waits for an answer: a message that was merely put has no reply_to, and is done when the
    function was called. What it raised is logged then.
    """
    if isinstance(message.properties.get("reply_to"), str):
        return True
    if error is not None:
        log.warning(
            "queue %r: message %s failed (%s); it has no reply_to, so nobody is told",
            message.queue.name, message.message_id.hex(), raised(error), exc_info=error,
        )  # fmt: skip
    return False


@contextlib.contextmanager
def unanswerable(message: Any) -> Iterator[None]:
    """An answer that leads nowhere is logged, and dropped: another try of the function would end so, too."""
    try:
        yield
    except TROUBLE:
        raise
    except Error as error:
        log.warning(
            "queue %r: message %s cannot be answered (%s: %s)",
            message.queue.name, message.message_id.hex(), type(error).__name__, error,
        )  # fmt: skip


def finished(found: Any, asynchronous: bool = False) -> Any:
    """What a function returned, or a coroutine function (`asynchronous`). Raises UsageError for what has done nothing
    yet: something to be awaited, or a generator, which nobody runs.
    """
    if found is None:
        return None
    name = type(found).__name__
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        raise UsageError(f"the function returned {name}, which nobody runs: {WITHOUT_YIELD}")
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()
        instead = "await it there" if asynchronous else "give a coroutine function to the worker of warren.aio"
        raise UsageError(
            f"the function returned {name}, which nobody awaits: {instead}, or return when the work is done"
        )
    return found


class Answering:
    """A function of node.worker that answers with what `function` returns, or says what it raised."""

    def __init__(self, function: Callable[[Message], Any]) -> None:
        self._function = function

    def __call__(self, message: Message) -> object:
        """Returns HAS_FAILED when the function has; raises what ends a program, as sys.exit: run() raises it, too."""
        queue: Any = message.queue
        try:
            body = finished(self._function(message))
        except Exception as error:  # noqa: BLE001 - the caller is told
            failure = error
        except BaseException as error:
            with contextlib.suppress(*TROUBLE):  # then nobody was told: another server may have it
                asked = asks(message, error)
                if asked:
                    with unanswerable(message):
                        queue.reply(message, b"", failed(error), timeout=LAST_S)
                if asked or not is_interrupt(error):  # the same call ends no other server
                    message.ack()
            raise
        else:
            try:
                if asks(message):
                    queue.reply(message, b"" if body is None else body)
                return None
            except TROUBLE:
                raise  # nobody was answered: another try
            except Exception as error:  # noqa: BLE001 - it is no answer, and the caller is told so
                failure = error
        if asks(message, failure):
            with unanswerable(message):
                queue.reply(message, b"", failed(failure))
        return HAS_FAILED
