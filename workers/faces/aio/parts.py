"""Many messages in an event loop go in parts that fit into ring and arena beside those of other tasks."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from warren.engine import _core
from warren.ipc.superblock import Superblock
from warren.workers.faces.aio.base import META, size_of

#: messages of one part, and its share of the arena
PART = 256
ARENA_SHARE = 4

#: prepare messages start ... end, without waiting for room
Send = Callable[[int, int], _core.Confirm]
#: call something when there is room for so many messages and bytes
Submit = Callable[[Callable[[], _core.Confirm], tuple[int, int]], Awaitable[_core.Confirm]]


async def in_parts(
    superblock: Superblock,
    bodies: Sequence[Any],
    meta_bytes: Sequence[int],
    send: Send,
    submit: Submit,
    topics: tuple[int, Sequence[int]] = (0, ()),
) -> list[tuple[int, _core.Confirm]]:
    """Submit them in order; the confirms of the parts, each with the number of its first message. One that is too large
    or no body refuses all of them before the first is sent. `topics`: to how many one of them goes at most, and what
    each takes for them beside its body.
    """
    most_message = superblock.get("message_bytes_max")
    sizes = [size_of(body) for body in bodies]
    for number, more in enumerate(meta_bytes):
        if sizes[number] < 0 or sizes[number] + more > most_message:
            send(number, number + 1)  # it says what is wrong
    most_bytes = superblock.get("arena_bytes") // ARENA_SHARE
    commands, more_bytes = topics
    if commands:
        sizes = [max(0, size) + more for size, more in zip(sizes, more_bytes, strict=True)]
    most = max(1, min(PART, superblock.get("ring_records") // 4 // max(1, commands)))
    parts: list[tuple[int, _core.Confirm]] = []
    start = 0
    while start < len(bodies):
        end, size = start, 0
        while end < len(bodies) and end - start < most and (end == start or size + sizes[end] + META <= most_bytes):
            size += sizes[end] + META
            end += 1
        parts.append((start, await submit(functools.partial(send, start, end), (end - start, size))))
        start = end
    return parts
