"""Who is attached: the supervisor's watch over client slots, from registration to the sweep of what a dead client left.

    FREE → CLAIMED → ACTIVE → LEAVING ─┐
                  ↘        ↘ DEAD ─────┴→ (every server is done) → segment removed → FREE

Invariants
  Death is read from a pidfd (opened first, identity verified after), or for a client of another pid namespace from the
  attach count of its segment; never from a timeout, and never from a pid alone.
  A slot is freed only after every server that can still run has written that it is done with this generation: of a
  queue worker's slot the stores alone, because no worker serves another one. So who waits for a worker that cannot
  start waits, and dead incarnations of that worker do not.
  Its segment is removed before it is freed, and only if it is that client's (its client epoch, or its creator's pid).
  A free slot carries no identity: what stands in a CLAIMED slot was written by its claimer.
Crash points (of the supervisor): after each step its successor finds the slot in a state from which it goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from warren.ipc import region
from warren.ipc.identity import Identity, pid_namespace
from warren.ipc.layout import CLIENT_SLOTS, SERVER_WORKER_FIRST
from warren.ipc.superblock import ACTIVE, CLAIMED, DEAD, FREE, LEAVING, SlotView, Superblock
from warren.workers.process.shared_objects import belongs, mappings_of_segment, remove_unrecorded

SCAN_S = 0.25
#: while somebody is leaving, servers are asked more often
SCAN_ENDING_FIRST_S = 0.002
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def _began(identity: Identity | None) -> float:
    """When a process began, in seconds since 1970; never, when there is none."""
    if identity is None:
        return math.inf
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + identity.start_time / _CLOCK_TICKS


@dataclass
class _Watched:
    view: SlotView
    pidfd: int


class ClientsWatch:
    """Watches every slot of a superblock. The selector's data is a callable that the supervisor's loop calls."""

    def __init__(
        self,
        superblock: Superblock,
        selector: selectors.BaseSelector,
        servers: Callable[[], Iterable[int]],
        server_pids: Callable[[], Iterable[int]],
        freed: Callable[[SlotView], None] = lambda view: None,
    ) -> None:
        """`servers`: those that have to be done before a slot is freed; `server_pids`: their processes; `freed`: what
        else a client leaves.
        """
        self._superblock = superblock
        self._selector = selector
        self._servers = servers
        self._server_pids = server_pids
        self._freed = freed
        self._namespace = pid_namespace()
        self._watched: dict[int, _Watched] = {}
        self._claimed: dict[int, tuple[int, float]] = {}  # slot → (claim word, ticks since boot when first seen)
        self._pause = SCAN_S
        self.swept_n = 0
        self.next_scan = 0.0

    def close(self, *, unregister: bool = True) -> None:
        """Close all pidfds; `unregister` false is for a child after a fork."""
        for watched in self._watched.values():
            if unregister:
                self._selector.unregister(watched.pidfd)
            os.close(watched.pidfd)
        self._watched.clear()

    def clients(self) -> list[SlotView]:
        """The slots that are taken by somebody who is there."""
        return [view for view in self._superblock.slots() if view.state in (CLAIMED, ACTIVE)]

    def scan(self) -> None:
        """Look at every slot: find new clients, notice deaths, free what is done."""
        ending = False
        for view in self._superblock.slots():
            self._look(view)
            ending = ending or view.state in (LEAVING, DEAD)
        for slot in [slot for slot, watched in self._watched.items() if not self._is_current(watched.view)]:
            self._forget(slot)
        self._pause = min(SCAN_S, max(SCAN_ENDING_FIRST_S, self._pause * 2)) if ending else SCAN_S
        self.next_scan = time.monotonic() + self._pause

    def look(self, slot: int) -> None:
        """Look at one slot, because a message named it."""
        if 0 <= slot < CLIENT_SLOTS:
            view = self._superblock.slot(slot)
            if view.state != FREE:
                self._look(view)
            if view.state in (LEAVING, DEAD):
                self.hurry()

    def hurry(self) -> None:
        """Scan soon, and then often until nobody is leaving any more."""
        self._pause = 0.0
        self.next_scan = time.monotonic()

    # -- one slot -----------------------------------------------------------------------------------------------

    def _look(self, view: SlotView) -> None:
        if view.state == CLAIMED:
            self._look_claimed(view)
            return
        self._claimed.pop(view.slot, None)
        if view.state == ACTIVE:
            watched = self._watched.get(view.slot)
            if watched is None or watched.view.claim != view.claim:
                self._forget(view.slot)
                self._watch(view)
        elif view.state in (LEAVING, DEAD):
            self._forget(view.slot)
            done = view.generation & 0xFF
            worker = self._superblock.worker_of(view.slot) >= 0
            servers = (server for server in self._servers() if not worker or server < SERVER_WORKER_FIRST)
            if all(self._superblock.server_done(view.slot, server) == done for server in servers):
                self._free(view)

    def _look_claimed(self, view: SlotView) -> None:
        """A client between claim and activation; its identity may not be written yet, so its death is seen twice."""
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _CLOCK_TICKS
        claim, since = self._claimed.setdefault(view.slot, (view.claim, ticks))
        if claim != view.claim:
            self._claimed[view.slot] = (view.claim, ticks)
            return
        if since == ticks:
            return
        if view.namespace not in (0, self._namespace):
            return  # a foreign one without a segment: nothing can be known about it, and it holds nothing but the slot
        found = Identity.of(view.pid)
        if found is None or found.start_time > since + 1 or (view.namespace and found.start_time != view.start_time):
            self._claimed.pop(view.slot, None)
            if view.shmid < 0:
                # Now: when the slot is free, nobody knows of a segment that was made and not recorded.
                size = self._superblock.region_bytes(view.delivery_slots)
                remove_unrecorded(view.pid, size, _began(found), self._superblock.owner[1])
            self._free(view)

    def _watch(self, view: SlotView) -> None:
        if view.namespace != self._namespace:
            with contextlib.suppress(region.RegionError):  # who cannot be asked after is asked after at the next scan
                if not self._held_by_client(view.shmid):
                    self._dead(view)
            return
        try:
            pidfd = view.identity.open_pidfd()
        except OSError:
            return  # no descriptor for it now: the next scan tries again
        if pidfd is None:
            self._dead(view)
            return
        watched = _Watched(view, pidfd)
        try:
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(watched))
        except OSError:  # as many are watched as may be
            os.close(pidfd)
            return
        self._watched[view.slot] = watched

    def _ended(self, watched: _Watched) -> None:
        """A pidfd became readable: that process is dead."""
        self._forget(watched.view.slot)
        if self._is_current(watched.view):
            self._dead(watched.view)

    def _dead(self, view: SlotView) -> None:
        if self._superblock.slot_move(view, DEAD):
            self._superblock.slots_changed()
            self.hurry()

    def _is_current(self, view: SlotView) -> bool:
        return self._superblock.slot(view.slot).claim == view.claim

    def _forget(self, slot: int) -> None:
        watched = self._watched.pop(slot, None)
        if watched is not None:
            self._selector.unregister(watched.pidfd)
            os.close(watched.pidfd)

    def _free(self, view: SlotView) -> None:
        """Remove the segment of a client that is gone, and free its slot."""
        size = self._superblock.region_bytes(view.delivery_slots)
        if view.shmid >= 0 and belongs(view, size, self._superblock.owner[1]):
            region.sysv_remove(view.shmid)
        self._freed(view)
        if self._superblock.give_back(view):
            self.swept_n += 1
            self._superblock.add("slots_version")

    # -- what the kernel knows ----------------------------------------------------------------------------------

    def _held_by_client(self, shmid: int) -> bool:
        """False when nobody but our servers has a segment attached. True while servers are just attaching or detaching
        it.
        """
        pids = list(self._server_pids())
        before = sum(mappings_of_segment(pid, shmid) for pid in pids)
        attached = region.sysv_attached(shmid)
        after = sum(mappings_of_segment(pid, shmid) for pid in pids)
        return before != after or attached > after
