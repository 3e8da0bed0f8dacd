"""Looking at messages without taking them: rows of a worker's answer, and the bodies that they name.

The worker answers `browse` with rows of deliveries; the bodies are read here, from images, files or the store. A file
may move into the segments between the answer and the reading: those rows are asked for again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.queues.control import Browse, Rows
from warren.engine.saying import shown
from warren.workers.faces.message import Message

if TYPE_CHECKING:
    from warren.workers.client.client import Client

log = logging.getLogger("warren.client")

#: rows asked of a worker at once when reading a range or browsing
BROWSE_ROWS = 1000
PATIENCE_S = 2.0  #: for bodies of one browse that cannot be read yet
#: bytes of bodies in one Arrow batch, if not said otherwise
BATCH_BYTES = 8 << 20
UNLIMITED = (1 << 62) - 1
_ROW_BYTES = DELIVERY.size


class Owner(Protocol):
    """What browsed messages are of: it has the name of the queue."""

    @property
    def name(self) -> str: ...


class Patience:
    """For stored bodies that cannot be read yet, as in the first moments of a node with moved queues. It ends after
    PATIENCE_S in all, so that damaged messages do not add up."""

    def __init__(self) -> None:
        self._left, self._pause = PATIENCE_S, 0.001

    def again(self) -> bool:
        """Wait a moment; false: no more."""
        if self._left <= 0:
            return False
        time.sleep(self._pause)
        self._left -= self._pause
        self._pause = min(2 * self._pause, 0.05)
        return True


def browse(
    client: Client,
    owner: Owner,
    queue: QueueDeclaration,
    start: int,
    count: int,
    *,
    ready_only: bool,
    messages: type[Message] = Message,
    unreadable: Callable[[int], object] | None = None,
) -> tuple[list[Message | None], int]:
    """Up to `count` messages of a queue from `start` on, and where to go on; -1 when there is nothing behind them. One
    that is None is gone, or stays unreadable: `unreadable` is called for it, else the log has it.
    """
    unreadable = unreadable or partial(left_out, owner.name)
    patience = Patience()
    while True:
        answer = client.ask_queue(queue, lambda now: Browse(now.id, start, count, ready_only), Rows)
        rows, following = answer.rows, answer.next
        if not rows:
            return [], following if following > start else -1
        try:
            handle = client.handle(client.current(queue), owner, messages)
            found = handle_deliveries(client, handle, rows)
            if None in found and any(message is None for message in found):
                # A file moved into the segments between the answer and the reading: those rows have another place now.
                for number, message in enumerate(found):
                    if message is None:
                        again = number, ready_only, messages, patience, unreadable
                        found[number] = _read_again(client, owner, queue, rows, *again)
        except AttachmentLost:
            continue
        return found, following if following > start else -1


def left_out(queue: str, sequence: int) -> None:
    """Say which message of a queue is not among those that were asked for."""
    log.warning("queue %s: message %d is left out, its body is damaged; see `warren check`", shown(queue), sequence)


def handle_deliveries(client: Client, handle: _core.QueueHandle, rows: bytes) -> list[Message | None]:
    """Messages of the rows of a browse answer; None for one that is not where the row says."""
    return client.core.deliveries(handle, rows)  # type: ignore[return-value]


def _read_again(
    client: Client,
    owner: Owner,
    queue: QueueDeclaration,
    rows: bytes,
    number: int,
    ready_only: bool,
    messages: type[Message],
    patience: Patience,
    unreadable: Callable[[int], object],
) -> Message | None:
    """One message of an older answer, asked for anew; None when it is gone, or stays unreadable."""
    row = rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES]
    sequence = DELIVERY.unpack(row, "sequence")
    while True:
        answer = client.ask_queue(queue, lambda now: Browse(now.id, sequence, 1, ready_only), Rows)
        fresh = answer.rows[:_ROW_BYTES]
        if len(fresh) < _ROW_BYTES or DELIVERY.unpack(fresh, "sequence") != sequence:
            return None
        message = handle_deliveries(client, client.handle(client.current(queue), owner, messages), fresh)[0]
        if message is None and patience.again():
            continue
        if message is None:
            unreadable(sequence)
        return message
