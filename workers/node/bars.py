"""Deleting a queue on a condition, if nobody consumes from it, if it is empty: that is true when the queue goes.

The worker of a queue alone knows what is in it, and the supervisor alone deletes it. So the supervisor names the queue
in the superblock (`barred`); its worker says what it finds and takes no more messages and consumers for it
(engine/queues/barred.h); then it is decided, and the queue goes in a change of the catalog as any other, or the bar is
lifted. Publishers and consumers wait for those few milliseconds, and no other queue's.

Invariants
  One queue is barred at a time: who asks for another one waits. A bar is lifted when it is decided, when nobody looks
  for the answer any more (the client is gone), when time is up, and by the supervisor's successor.
  What was rejected and waits to be forwarded to the dead letter exchange goes there first, if that takes no longer than
  LETTERS_S.
Crash points
  The supervisor is killed before the change: its successor lifts the bar; the queue stays. After it: the queue is gone.
  The worker is killed: whoever follows it obeys the bar before it takes a command.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.errors import PreconditionFailed, TimedOut
from warren.engine.saying import quoted
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.superblock import Superblock

MESSAGES, CONSUMERS = CONSTANTS["BARRED_MESSAGES"], CONSTANTS["BARRED_CONSUMERS"]
LETTERS = CONSTANTS["BARRED_LETTERS"]
#: letters that wait are forwarded before the queue goes, if that takes no longer
LETTERS_S = 2.0
#: between two looks whether they are
AGAIN_S = 0.02
#: a bar whose answer nobody has looked for during this time is lifted
LEFT_S = 0.5


class Bars:
    """The bar of one supervisor."""

    def __init__(self, superblock: Superblock) -> None:
        self._superblock = superblock
        self._number = secrets.randbelow(1 << 31)  # no answer to a predecessor's question is one to ours
        self._holder: object = None  #: whose bar it is
        self._word = 0
        self._looked_at = 0.0
        self._lift()

    def tick(self, now: float) -> None:
        """Lift a bar that nobody looks after any more."""
        if self._holder is not None and now - self._looked_at > LEFT_S:
            self._lift()

    def awaited(
        self,
        find: Callable[[], QueueDeclaration],
        change: Callable[[], dict[str, Any]],
        *,
        if_unused: bool,
        if_empty: bool,
        until: float,
    ) -> Callable[[], dict[str, Any] | None]:
        """What returns the answer of `change` when the conditions were true and it is made, and None until then.
        `find`: the queue that is meant, if who asks may delete it.

        It raises PreconditionFailed (one of them is not), TimedOut (the worker said nothing until `until` of the
        monotonic clock), and what `find` and `change` raise; then nothing was done.
        """
        holder = object()
        letters_until = time.monotonic() + LETTERS_S
        again_at = 0.0

        def decide(queue: QueueDeclaration, now: float) -> dict[str, Any] | None:
            nonlocal again_at
            found = self._found(queue)
            if found is None:
                if now >= until:
                    raise TimedOut(
                        f"queue {quoted(queue.name)} is not deleted: its worker did not say in time what is in it: see "
                        "`warren status`, and try again"
                    )
                return None
            if if_unused and found & CONSUMERS:
                raise PreconditionFailed(
                    f"queue {quoted(queue.name)} is in use: it has consumers, so it is not deleted"
                )
            if if_empty and found & MESSAGES:
                raise PreconditionFailed(f"queue {quoted(queue.name)} is not empty, so it is not deleted")
            if found & LETTERS and now < min(letters_until, until):
                again_at = now + AGAIN_S
                return None
            return change()

        def look() -> dict[str, Any] | None:
            now = time.monotonic()
            if now < again_at or not self._take(holder, now):
                if now >= until:
                    raise TimedOut("another queue is being deleted on a condition, and takes long: try again")
                return None
            done = True
            try:
                queue = find()
                self._bar(queue)
                answer = decide(queue, now)
                done = answer is not None or again_at > now
                return answer
            finally:
                if done:
                    self._lift()

        return look

    def _take(self, holder: object, now: float) -> bool:
        """Whether it is this one's turn."""
        self.tick(now)
        if self._holder not in (None, holder):
            return False
        self._holder, self._looked_at = holder, now
        return True

    def _bar(self, queue: QueueDeclaration) -> None:
        """The queue takes nothing from now on."""
        if self._word & 0xFFFFFFFF != queue.id:
            self._number += 1
            self._word = (self._number & 0x7FFFFFFF) << 32 | queue.id
            self._superblock.set("barred", self._word)
            self._superblock.ring(SERVER_WORKER_FIRST + queue.worker)

    def _found(self, queue: QueueDeclaration) -> int | None:
        """What its worker says; None: nothing yet."""
        server = SERVER_WORKER_FIRST + queue.worker
        if self._superblock.server_get(server, "barred_seen") != self._word:
            return None
        return self._superblock.server_get(server, "barred_found")

    def _lift(self) -> None:
        self._holder, self._word = None, 0
        self._superblock.set("barred", 0)
        for server in self._superblock.queue_workers:
            self._superblock.ring(server)
