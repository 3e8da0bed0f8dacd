"""A node for asyncio; what waits, waits in the event loop.

    node.py    Node
    queue.py   Queue, Message, Consumer
    work_queue.py, subscription.py, store.py, topic.py
    worker.py  Worker: a loop that handles messages
    parts.py   many messages, in parts that fit
    line.py    how messages reach tasks
    loop.py    the bell, everything that is waited for, Confirm, and another attachment after trouble
    base.py    time, the threads for what blocks, the blocking queue underneath

How it waits
  Nothing in the loop's thread waits in the core: get and put there are tries (engine/binding/queue_poll.c). When a try
  has to wait, the node says what for (wants), and one thread of the process (workers/client/waiter.py) sleeps for all
  nodes and loops; it rings in the loop. Attaching, declaring, reading bodies from files, regions of a restarted
  server: in a few threads shared by the process.

How a message reaches a task
  Who calls get and finds nothing is a getter, in order. A bell hands what has come to the first getters. A getter that
  is cancelled when a message was just given to it gives it to the next one, or back to the queue, at its place. Nobody
  waits any more: what was asked for is cancelled at the worker, what came all the same returns to the queue.

Loops
  A node belongs to the loop that it was opened in. After a fork, and after that loop was closed, it belongs to the next
  one that uses it; whoever waited in the other is not there any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from warren.engine._core import Record
from warren.engine.config import NodeSettings
from warren.engine.kernel.atomic_file import explained
from warren.workers.client.client import CALL_TIMEOUT_S
from warren.workers.faces import node as nodes
from warren.workers.faces.aio.base import blocking
from warren.workers.faces.aio.half import Half
from warren.workers.faces.aio.loop import Confirm
from warren.workers.faces.aio.node import Node
from warren.workers.faces.aio.queue import Consumer, Message, Queue
from warren.workers.faces.aio.reader import Reader
from warren.workers.faces.aio.store import Store
from warren.workers.faces.aio.subscription import Subscription
from warren.workers.faces.aio.topic import Topic
from warren.workers.faces.aio.work_queue import QueueEmpty, QueueFull, ShutDown, WorkQueue
from warren.workers.faces.aio.worker import Worker
from warren.workers.faces.topic_halves import HalfMessage
from warren.workers.faces.topic_reading import ReadResult
from warren.workers.faces.topic_scans import ReadStatus
from warren.workers.faces.topics import Position

__all__ = [
    "open",
    "attach",
    "Node",
    "Queue",
    "Message",
    "Consumer",
    "Confirm",
    "Subscription",
    "WorkQueue",
    "Worker",
    "Store",
    "Topic",
    "Position",
    "Record",
    "Half",
    "HalfMessage",
    "Reader",
    "ReadResult",
    "ReadStatus",
    "QueueEmpty",
    "QueueFull",
    "ShutDown",
]


class _Opening:
    """The result of open and attach: `async with` it, or await it."""

    def __init__(self, make: Callable[[], nodes.Node]) -> None:
        self._make = make
        self._node: Node | None = None

    if not TYPE_CHECKING:  # checkers find it

        def __getattr__(self, name):
            """A node has that, when it was awaited. Raises AttributeError."""
            raise AttributeError(
                f"this is no node yet, and has no {name!r}: write `async with warren.aio.open(…) as node` or "
                "`node = await warren.aio.open(…)` (attach: the same)"
            )

        def __enter__(self):
            """Raises TypeError."""
            raise TypeError("in asyncio it is `async with warren.aio.open(…) as node` (attach: the same)")

        def __exit__(self, *error):
            """Never called."""

    async def _opened(self) -> Node:
        loop = asyncio.get_running_loop()
        with explained("cannot start a thread for what blocks"):
            making = loop.run_in_executor(blocking(), self._make)
        try:
            return Node(await asyncio.shield(making))
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)  # nobody will
            raise

    def __await__(self) -> Generator[Any, None, Node]:
        return self._opened().__await__()

    async def __aenter__(self) -> Node:
        self._node = await self._opened()
        return self._node

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._node is not None:
            await self._node.close()


def _close_made(making: asyncio.Future[nodes.Node]) -> None:
    if not making.cancelled() and making.exception() is None:
        blocking().submit(making.result().close)


def attach(
    directory: str | Path,
    timeout: float = nodes.ATTACH_TIMEOUT_S,
    *,
    name: str | None = None,
    call_timeout: float | None = CALL_TIMEOUT_S,
) -> _Opening:
    """`async with attach(DIR) as node`, or `node = await attach(DIR)`: as warren.attach."""
    return _Opening(lambda: nodes.attach(directory, timeout, name=name, call_timeout=call_timeout))


def open(
    directory: str | Path,
    *,
    timeout: float = nodes.START_TIMEOUT_S,
    name: str | None = None,
    idle_exit: float | None = nodes.IDLE_EXIT_S,
    call_timeout: float | None = CALL_TIMEOUT_S,
    profile: str | None = None,
    group: str | int | None = None,
    **settings: Unpack[NodeSettings],
) -> _Opening:
    """`async with open(DIR) as node`, or `node = await open(DIR)`: as warren.open."""
    return _Opening(
        lambda: nodes.open(
            directory,
            timeout=timeout,
            name=name,
            idle_exit=idle_exit,
            call_timeout=call_timeout,
            profile=profile,
            group=group,
            **settings,
        )
    )
