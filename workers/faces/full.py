"""Waiting for room in a queue that refuses what is above its maximum (overflow="reject-publish").

Nobody tells a publisher that there is room: it looks. The counts of a queue lie in shared memory, so a look sends
nothing; a message is sent again when they leave room for it, and from time to time all the same, because they may be
old, and do not tell how many of the bytes count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from warren.engine.kernel.protocol import QUEUE_STATS

if TYPE_CHECKING:
    from warren.engine.catalog.catalog import QueueDeclaration
    from warren.workers.client.client import Client

#: between two looks: first and at most
LOOK_FIRST_S, LOOK_MOST_S = 0.0005, 0.02
#: how often a message is sent again though the queue seems to be full
TRY_S = 0.25


class Room:
    """The wait of one put. After a refusal: `refused()`, then sleep for each `pause()` until there is none."""

    def __init__(self, client: Client, deadline: float | None) -> None:
        self._client = client
        self._deadline = deadline
        self._pause_s = LOOK_FIRST_S
        self._try_at = 0.0
        self._fresh = False

    @property
    def late(self) -> bool:
        """Whether no time is left."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def left(self) -> float | None:
        """Seconds that are left; None: without end."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def refused(self) -> None:
        """The queue was full."""
        self._try_at = time.monotonic() + TRY_S
        self._fresh = True

    def pause(self, queue: QueueDeclaration, server: int) -> float | None:
        """How long to sleep before the next look; None: try now, or no time is left. There is a pause after each
        refusal: others wait for the same place.
        """
        now = time.monotonic()
        end = self._try_at if self._deadline is None else min(self._try_at, self._deadline)
        if now >= end or (not self._fresh and not self._full(queue, server)):
            return None
        self._fresh = False
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LOOK_MOST_S)
        return min(pause_s, end - now)

    def _full(self, queue: QueueDeclaration, server: int) -> bool:
        """Whether the counts say that there is no place; what they do not tell, a try does."""
        attachment, most = self._client.attached, queue.arguments.get("max_length")
        if most is None or attachment is None or attachment.core.over:
            return False
        row = attachment.statistics_of(server, queue.id)
        return row is not None and QUEUE_STATS.unpack(row, "ready") >= most
