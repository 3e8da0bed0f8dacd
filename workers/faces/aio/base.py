"""What the parts of warren.aio share: time, and the threads for what blocks."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from warren.engine.kernel.atomic_file import explained
from warren.workers.client.arguments import checked_seconds

P = ParamSpec("P")
T = TypeVar("T")
Body = bytes | bytearray | memoryview

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


def deadline_of(timeout: float | None) -> float | None:
    checked_seconds(timeout)
    if timeout is None:
        return None
    return time.monotonic() + timeout


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
