"""Consuming a queue alone, or beside others: its worker is asked before (engine/queues/exclusive.h).

A client that wants to consume beside others asks only if somebody consumes some queue of that worker alone; when that
begins at the same moment, it is not refused, and waits until the other one has left. Who has to be told (AMQP) asks
anyway, and counts as a consumer from then on.

Crash points: killed at any of them, what was joined goes with the client. A worker's successor knows who consumes
alone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from warren.engine._core import AttachmentLost, QueueHandle
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import LimitError, ResourceLocked, TimedOut
from warren.engine.queues import control
from warren.engine.saying import shown
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.ipc.superblock import Superblock

if TYPE_CHECKING:
    from warren.workers.client.client import Client

#: between two questions whether it is known by now
AGAIN_S = 0.02
#: how long there may be no room to say that one has left
LEAVE_S = 10.0
#: how long the worker is waited for to have heard of it
HEARD_S = 1.0


def join(client: Client, queue: QueueDeclaration, exclusive: bool) -> None:
    """Ask whether this client may consume from now on. It blocks, for at most call_timeout. Raises ResourceLocked,
    LimitError, QueueNotFound; TimedOut and PeerLost, after which the worker may still let it in: `leave` ends that.
    """
    limit = client.call_timeout
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        answer = client.ask_queue(queue, lambda now: control.Join(now.id, exclusive), control.Joined, left)
        if answer.how == "in":
            return
        if answer.how != "early":
            raise _refused(client, queue, answer)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(
                f"queue {queue.name!r}: its worker was started anew, or somebody who consumes is leaving, and after "
                f"{limit:g} s it is not known yet who consumes: try again"
            )
        time.sleep(AGAIN_S)


def somebody_is_alone(client: Client, queue: QueueDeclaration) -> bool:
    """Whether somebody consumes some queue of the same worker alone."""
    attachment = client.attached
    server = SERVER_WORKER_FIRST + queue.worker
    return attachment is None or attachment.superblock.server_get(server, "exclusive_n") > 0


def leave(client: Client, handle: QueueHandle, timeout: float = LEAVE_S) -> None:
    """It does not consume any more: others may when this returns, unless the worker stands still. It waits for room to
    say so. Raises TimedOut.
    """
    deadline = time.monotonic() + timeout
    with contextlib.suppress(AttachmentLost):  # then it goes, or went, with the attachment
        while not handle.leave():
            if time.monotonic() >= deadline:
                raise TimedOut(
                    f"queue {handle.queue} is consumed by this client alone still: there was no room for {timeout:g} s "
                    "to tell its worker that it is not; it ends with this client"
                )
            time.sleep(AGAIN_S)
        client.core.wait_submitted(min(timeout, HEARD_S))


def _refused(client: Client, queue: QueueDeclaration, answer: control.Joined) -> ResourceLocked | LimitError:
    name = f"queue {queue.name!r}"
    if answer.how == "no slot":
        return LimitError(
            f"{name} cannot be consumed alone: each such queue takes a delivery slot, an eighth of them at most, and "
            "all that this client may take are taken: ack messages, or raise the setting delivery_slots"
        )
    who = _called(client.attachment().superblock, answer.slot)
    if answer.how == "held":
        return ResourceLocked(
            f"{name} is consumed by {who} alone (exclusive): end that consumer, or wait until it ends"
        )
    return ResourceLocked(f"{name} has another consumer, {who}, so nobody can consume it alone: end that one first")


def of_own(queue: str, alone: bool) -> ResourceLocked:
    """The same among consumers of one client; `alone`: one of them has the queue alone."""
    if alone:
        return ResourceLocked(f"queue {queue!r} is consumed by another consumer of this client alone: end that first")
    return ResourceLocked(f"queue {queue!r} has another consumer of this client, so none can be alone: end that first")


def _called(superblock: Superblock, slot: int) -> str:
    """Who has a slot, for people."""
    found = superblock.slot(slot)
    return f"process {found.pid}" + (f" ({shown(found.name)})" if found.name else "")
