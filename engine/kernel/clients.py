"""The clients of a worker, of queues or of topics: their regions are attached when a slot is taken, and let go when its
client has ended.

Invariant: a region is detached only when the engine has finished its client; then server_done is written.
"""

from __future__ import annotations

from logging import ERROR, WARNING
from typing import TYPE_CHECKING, Protocol

from warren.engine.kernel import atomic_file
from warren.engine.saying import Say, quoted
from warren.ipc import region as regions
from warren.ipc.superblock import ACTIVE, DEAD, LEAVING, SlotView, Superblock

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Serves(Protocol):
    """The C engine of a worker."""

    def attach(self, slot: int, generation: int, client_epoch: int, region: Buffer, /) -> None: ...
    def closing(self, slot: int, /) -> None: ...
    def detach(self, slot: int, /) -> bool: ...
    def attached(self) -> list[tuple[int, int, bool, bool, bool]]: ...
    def slots_seen(self, version: int, /) -> None: ...


class Clients:
    """The regions of those whom one worker serves."""

    def __init__(self, engine: Serves, superblock: Superblock, server: int, say: Say) -> None:
        self._engine = engine
        self._superblock = superblock
        self._server = server
        self._say = say
        self._regions: dict[int, tuple[int, regions.Region]] = {}
        self._unserved: set[int] = set()  # claims of clients whose regions there was no memory to attach

    def on_timer(self) -> None:
        """Clients that wait until there is memory are tried again."""
        if self._unserved:
            self.scan()

    def close(self) -> None:
        """Let go of all regions; the engine is closed."""
        for _generation, region in self._regions.values():
            region.close()
        self._regions.clear()

    def scan(self, *, starting: bool = False) -> None:
        """Attach new clients and finish those that leave. At a start raises RegionError: no memory for a region."""
        version = self._superblock.get("slots_version")
        unserved: set[int] = set()
        for view in self._superblock.slots():
            if view.state not in (ACTIVE, LEAVING, DEAD) or self._superblock.worker_of(view.slot) >= 0:
                continue  # a worker asks the stores alone for something
            known = self._regions.get(view.slot)
            try:
                if known is None and not self._attach(view):
                    continue
            except regions.RegionError as error:  # what it submitted is there: the next timer tries again
                if starting:
                    raise
                unserved.add(view.claim)
                if view.claim not in self._unserved:
                    self._say(
                        f"client {quoted(view.name)} (slot {view.slot}) waits until there is memory: {error}", WARNING
                    )
                continue
            if view.state != ACTIVE and self._regions[view.slot][0] == view.generation:
                self._engine.closing(view.slot)
        self._unserved = unserved
        self._engine.slots_seen(version)

    def _attach(self, view: SlotView) -> bool:
        """Serve a client; False: nothing of it can be served. Raises RegionError when the system has no memory now."""
        superblock = self._superblock
        done = superblock.server_done(view.slot, self._server) == view.generation & 0xFF
        if view.state != ACTIVE and done:
            return False
        try:
            region = regions.sysv_attach(view.shmid)
        except regions.RegionError as error:
            if atomic_file.is_limit(error):
                raise
            if view.state != ACTIVE:
                superblock.set_server_done(view.slot, self._server, view.generation)
            else:
                self._say(f"client {quoted(view.name)} (slot {view.slot}) cannot be attached: {error}", ERROR)
            return False
        try:
            self.take_up(view.slot, view.generation, view.client_epoch, region)
        except OSError as error:
            region.close()
            self._say(f"client {quoted(view.name)} (slot {view.slot}) has a region of the wrong form: {error}", ERROR)
            superblock.set_server_done(view.slot, self._server, view.generation)
            return False
        return True

    def take_up(self, slot: int, generation: int, client_epoch: int, region: regions.Region) -> None:
        """Serve a client; its region is closed when it has ended. Raises OSError (a region of the wrong form)."""
        self._engine.attach(slot, generation, client_epoch, region.buffer)
        self._regions[slot] = (generation, region)

    def let_go(self) -> None:
        """Clients that have ended and of whom nothing is left."""
        for slot, generation, _closing, finished, _evicted in self._engine.attached():
            if finished and self._engine.detach(slot):
                self._regions.pop(slot)[1].close()
                self._superblock.set_server_done(slot, self._server, generation)
                self._superblock.ring_all()
