"""The named crash points of a campaign: arms one at a time, sees who died there, and arms it again while it starts.

Points that lie on the way of a start or of a clean stop are armed together with a SIGKILL or SIGTERM of the process;
the others wait for the load to get there. A point that is not reached within its patience is counted as missed.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from warren.ipc.layout import CRASH_POINTS
from warren.tools.crash.report import Report
from warren.tools.crash.victims import Node, send

PATIENCE_S = 3.0
#: what it takes to get there, where the load alone does not: (process, signal)
TRIGGERS: dict[str, tuple[str, signal.Signals]] = {
    "start_mark_gone": ("store", signal.SIGTERM),
    "start_superseded": ("store", signal.SIGKILL),
    "start_half": ("store", signal.SIGKILL),
    "start_torn": ("store", signal.SIGKILL),
    "start_applied": ("store", signal.SIGKILL),
    "start_attached": ("store", signal.SIGKILL),
    "stop_lists": ("store", signal.SIGTERM),
    "stop_marked": ("store", signal.SIGTERM),
    "worker_resync": ("store", signal.SIGKILL),
    "worker_claimed": ("worker-0", signal.SIGKILL),
    "worker_recovered": ("worker-0", signal.SIGKILL),
    "worker_attached": ("worker-0", signal.SIGKILL),
    "topic_recovered": ("topics", signal.SIGKILL),
    "topic_settled": ("topics", signal.SIGKILL),
    "topic_begun": ("topics", signal.SIGKILL),
}
#: a file that is damaged is needed for it: tests/crash/test_points.py
LEFT_OUT = ("start_quarantined",)
#: passed so often that the first passes are let go
FREQUENT = ("roll", "batch_written", "batch_synced", "batch_done", "file_made", "list_written", "worker_flush_data")
OF_COLLECTOR = ("collect_copying", "collect_copied", "collect_synced")
#: of the topic worker; its retention raises the minima of compacted topics, too
OF_TOPICS = tuple(name for name in CRASH_POINTS if name.startswith(("topic_", "retain_", "compact_")))
#: on the way of a start: whoever died there may die there again
STARTS = tuple(name for name in CRASH_POINTS if name.startswith("start_") or (name in OF_TOPICS and name in TRIGGERS))


def owner_of(name: str) -> str:
    """The process that dies at a point: of queue workers and the store's, the one that the campaign counts."""
    if name in OF_COLLECTOR:
        return "collector"
    return "topics" if name in OF_TOPICS else TRIGGERS.get(name, ("store", signal.SIGKILL))[0]


class Noting(Protocol):
    """Writes down what was done."""

    def __call__(self, text: str, *, death: bool = False) -> None: ...


class Points:
    """What is armed now."""

    def __init__(
        self, rng: random.Random, report: Report, note: Noting | Callable[..., None], more: Sequence[str] = ()
    ) -> None:
        """`more`: points that are chosen as often again, as the load is made for them."""
        self._more = more
        self._rng = rng
        self._report = report
        self._note = note
        self._armed: str | None = None
        self._until = 0.0
        self._again = 0

    def turn(self, node: Node) -> None:
        """Look whether somebody died at the armed point, and arm another now and then."""
        now = time.monotonic()
        if self._armed is not None:
            if node.superblock.armed_crash is None:
                self._reached(node)
            elif now > self._until:
                self.disarm(node)
                self._report.missed[self._armed or ""] += 1
                self._armed = None
        elif self._rng.random() < 0.9:
            self._arm(node, self._rng.choice([*CRASH_POINTS, *self._more]))

    def disarm(self, node: Node) -> None:
        """Nobody dies by itself any more."""
        node.superblock.disarm_crash()

    def _reached(self, node: Node) -> None:
        assert self._armed is not None
        self._report.points[self._armed] += 1
        self._note(f"died at {self._armed}", death=True)
        if self._again and self._armed in STARTS and node.may_die(owner_of(self._armed), 2):
            self._again -= 1
            node.superblock.arm_crash(self._armed)
            self._until = time.monotonic() + PATIENCE_S
        else:
            self._armed = None

    def _arm(self, node: Node, name: str) -> None:
        again = self._rng.choice((0, 0, 1, 2)) if name in STARTS else 0
        victim, number = TRIGGERS.get(name, (None, signal.SIGKILL))
        owner = owner_of(name)
        if name in LEFT_OUT or (owner == "topics" and owner not in node.servers()):
            return
        if not node.may_die(owner, 2 if victim is None else 2 + again):
            return
        identity = node.find(victim) if victim else None
        if victim and identity is None:
            return
        after = self._rng.randrange(20) if name in FREQUENT else self._rng.choice((0, 0, 0, 1, 3))
        node.superblock.arm_crash(name, 0 if victim else after)
        self._armed, self._again, self._until = name, again, time.monotonic() + PATIENCE_S
        self._note(f"armed {name}")
        if identity is not None and send(identity, number):
            if number == signal.SIGKILL:
                self._report.kills[victim or "store"] += 1
            else:
                self._report.stops["store ended"] += 1
            self._note(f"sent {number.name} to {victim} {identity.pid}", death=True)
