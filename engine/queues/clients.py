"""The clients of a queue worker (engine/kernel/clients.py).

Invariant: a publisher's region stays as long as a dead incarnation of this worker may have submitted bodies that lie in
it.
"""

from __future__ import annotations

from warren.engine import _core
from warren.engine.kernel import clients
from warren.engine.queues.options import Options
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING


class Clients(clients.Clients):
    """The regions of those whom one worker serves."""

    def __init__(self, engine: _core.QueueEngine, options: Options, server: int) -> None:
        super().__init__(engine, options.superblock, server, options.say)
        self._queues = engine
        self._options = options

    def let_go(self) -> None:
        """Clients that have ended and of whom nothing is left.

        A publisher's arena holds the bodies that a dead incarnation of this worker wrote to the stores, until these are
        done with it: a store that is killed meanwhile executes those writes again. Until then no publisher may go.
        """
        if self._predecessor_there():
            self._queues.pending(_core.QUEUE_EVENT_FINISHED, True)  # until the slots change, or the next timer
            return
        super().let_go()

    def _predecessor_there(self) -> bool:
        """Whether a dead incarnation of this worker that may have submitted something still has its slot."""
        superblock = self._options.superblock
        own = (superblock.slot(slot) for slot in superblock.slots_of_worker(self._options.worker))
        return any(view.slot != self._options.own_slot and view.state in (ACTIVE, LEAVING, DEAD) for view in own)
