"""What the parts of warren.aio share: time, the threads for what blocks, the blocking queue underneath."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

from warren.engine import _core
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import DiskFull, QueueFull, QueueNotFound, TimedOut
from warren.engine.kernel.atomic_file import explained
from warren.workers.client import joining
from warren.workers.client.arguments import checked_seconds
from warren.workers.client.client import Client
from warren.workers.client.publish import Batch, Publish
from warren.workers.client.publish import Body as Body
from warren.workers.client.trouble import restated
from warren.workers.faces import queues
from warren.workers.faces.full import Room
from warren.workers.faces.message import Message

P = ParamSpec("P")
T = TypeVar("T")

#: threads for what blocks, shared by all nodes of the process
BLOCKING_THREADS = 8
#: pause before what found no room is tried again
RETRY_S = 0.001
#: what a message takes in the arena besides its body: metadata, routes
META = 4096

_pool: ThreadPoolExecutor | None = None


def blocking() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="warren-blocking")
    return _pool


def _in_child() -> None:
    global _pool
    _pool = None  # its threads are the parent's


os.register_at_fork(after_in_child=_in_child)


async def run_blocking(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call something that blocks, in one of the shared threads."""
    with explained("cannot start a thread for what blocks"):
        running = asyncio.get_running_loop().run_in_executor(blocking(), functools.partial(call, *args, **named))
    return await running


def time_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Deadline(float):
    """A time of the monotonic clock, and the timeout that it comes from."""

    given: float

    @classmethod
    def after(cls, timeout: float) -> Self:
        """In so many seconds from now."""
        made = cls(time.monotonic() + timeout)
        made.given = timeout
        return made


def deadline_of(timeout: float | None) -> Deadline | None:
    checked_seconds(timeout)
    return None if timeout is None else Deadline.after(timeout)


def in_all(error: TimedOut | DiskFull, deadline: float | None) -> TimedOut | DiskFull:
    """What a last try said that did not wait, with the timeout that its caller gave."""
    return restated(error, deadline.given) if isinstance(deadline, Deadline) else error


def is_late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def size_of(body: Any) -> int:
    """Bytes of a body; -1 for what is none."""
    if isinstance(body, (bytes, bytearray)):
        return len(body)
    try:
        return memoryview(body).nbytes
    except TypeError:
        return -1


class Underneath(queues.Queue):
    """The queue of the blocking API underneath: the same options, the same checks. Its messages are of another class,
    whose `queue` is the face in the event loop.
    """

    face: Any

    def __init__(self, client: Client, declaration: QueueDeclaration, messages: type[Message]) -> None:
        self._messages = messages
        super().__init__(client, declaration)

    @classmethod
    def of(cls, client: Client, name: str, messages: type[Message]) -> Underneath:
        """The queue that has the name now. Raises QueueNotFound."""
        return cls(client, client.catalog().queue(name), messages)

    def _put_back(self) -> bool:
        """What lies ahead is the event loop's, and this is another thread."""
        return False

    @property
    def handle(self) -> _core.QueueHandle:
        """The handle in use; it may belong to an attachment that has ended."""
        return self._handle

    @property
    def id(self) -> int:
        """The id of the queue that had the name when it was looked for last."""
        return self._declaration.id

    @property
    def server(self) -> int:
        """The server that has the queue."""
        return self._server

    @property
    def is_auto_delete(self) -> bool:
        """Whether it is deleted when its last consumer has gone."""
        return bool(self._declaration.arguments.get("auto_delete"))

    def level(self, durability: object, said: Publish) -> int:
        """The level of a durability for what is published to it. Raises UsageError."""
        return said.level(durability, self.durable, self._what)

    def put_part(self, bodies: Sequence[Body], level: int, said: Batch) -> _core.Confirm:
        """Submit some of many messages that were checked and packed before; it does not wait for room."""
        confirm = self._put_many(bodies, level, said, 0.0, False)
        assert confirm is not None
        return confirm

    def room(self, block: bool, timeout: float | None, wait: bool) -> Room | None:
        """The wait of a put that blocks. Raises UsageError."""
        return self._room(block, timeout, wait)

    async def wait_for(self, room: Room, end: queues.End | None = None) -> bool:
        """After a refusal: wait until there seems to be room; False when no time is left, or it is the end."""
        room.refused()
        while (pause_s := room.pause(self._declaration, self._server)) is not None:
            await asyncio.sleep(pause_s)
            if end is not None and end.come:
                return False
        return not room.late

    def join(self, exclusive: bool) -> None:
        """Ask the worker whether this client may consume. It blocks; as joining.join."""
        joining.join(self._client, self._declaration, exclusive)

    @property
    def has_to_ask(self) -> bool:
        """Whether it has to ask before it consumes beside others."""
        return joining.somebody_is_alone(self._client, self._declaration)

    @property
    def is_own(self) -> bool:
        """Whether no other client can use it: it is an exclusive queue."""
        return bool(self._declaration.owner)

    def checked_exclusive(self, exclusive: object) -> bool:
        """Raises UsageError."""
        return self._checked_exclusive(exclusive)

    def renew(self) -> None:
        """A handle of the attachment in use. Raises QueueNotFound, ClosedError."""
        self._renew()

    def leave_to_next(self) -> None:
        """What lies here returns by the next node: nobody lives who would do it now."""
        self._leave_to_next(None)

    def late(self, error: TimedOut) -> TimedOut | QueueNotFound:
        """The same error, with the name of the queue."""
        return self._named(error)

    def told(self, error: QueueFull) -> QueueFull:
        """The same error, with the name and the limits of this queue."""
        return self._full(error)
