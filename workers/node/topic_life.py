"""The topic worker of one run: it is started with the first topic, and whoever declares one is answered when it serves.

Invariants
  A node without topics has no such process, no region of it and no folder.
  It never ends the node, and never keeps it from starting for want of room: queues are served without it.
  The folder is there, and has the stamp of this start, before the catalog has a topic (absence.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.engine.errors import ClosedError, DiskFull, Error, LimitError, PeerLost, TimedOut
from warren.engine.kernel.paths import TOPICS
from warren.engine.saying import quoted
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node import absence, children
from warren.workers.node.children import Role
from warren.workers.process import lack
from warren.workers.process.refusals import because
from warren.workers.process.tie import Tie

DRAINING, READY = CONSTANTS["NODE_DRAINING"], CONSTANTS["SERVER_READY"]
#: who lacks room is started again meanwhile: room may be there by now
LACK_SURE_S = 2 * children.LACK_EVERY_S


class TopicLife:
    """What the desk knows of the topic worker."""

    def __init__(
        self, directory: Path, superblock: Superblock, role: Role, start: Callable[[Role], None], tie: Tie
    ) -> None:
        """`start`: what starts a role (Upkeep.start)."""
        self._directory = directory
        self._superblock = superblock
        self._role = role
        self._start = start
        self._tie = tie

    def prepare(self) -> None:
        """Before the catalog has a topic. Raises StoreError and its kinds."""
        absence.prepare_topics(self._directory, self._superblock.get("node_epoch"))

    def refuse(self, name: str) -> None:
        """Nothing is declared that cannot be served before the next start of the node. Raises PeerLost."""
        if self._role.failed:
            raise PeerLost(f"topic {quoted(name)} cannot be declared: {self._failed()}")

    def changed(self, version: int, *, any_left: bool) -> None:
        """Topics came or went with a version of the catalog, which was told before."""
        self._superblock.topics_changed(version)
        if any_left and not self._role.wanted:
            self.want()
            self._start(self._role)

    def want(self) -> None:
        """There is a topic, or the worker runs: it belongs to this run."""
        self._role.wanted = True
        self._tie.watch(TOPICS)

    def awaited(self, name: str, until: float, answer: dict[str, Any]) -> Callable[[], dict[str, Any] | None]:
        """What returns the answer when the worker serves and shows the topics of now, and None until then.

        It raises DiskFull, LimitError (the worker finds no room to run), PeerLost (it has failed), TimedOut (at `until`
        of the monotonic clock), ClosedError.
        """
        superblock, role = self._superblock, self._role
        server, asked = role.servers[0], time.monotonic()
        version = superblock.server_get(server, "queues_version")

        def look() -> dict[str, Any] | None:
            ready = superblock.server_get(server, "state") == READY and role.running
            if ready and superblock.server_get(server, "catalog_read") >= version:
                return answer
            said = f"topic {quoted(name)} is declared, but "
            if superblock.state == DRAINING:
                raise ClosedError(f"{said}the node of {self._directory} is stopping: it serves it after its next start")
            if role.failed:
                raise PeerLost(f"{said}{self._failed()}")
            now = time.monotonic()
            if role.lack and now >= min(asked + LACK_SURE_S, until):
                raise self._lacks(said)
            if now >= until:
                raise TimedOut(
                    f"{said}the topic worker did not begin to serve it within {now - asked:.1f} s: see {role.log}, or "
                    "give more time"
                )
            return None

        return look

    def _failed(self) -> str:
        return (
            f"{self._role.name} has failed and is not restarted{because(self._role.log)}: see {self._role.log}, remove "
            "the cause that it names, then stop and start the node"
        )

    def _lacks(self, said: str) -> Error:
        kind = self._role.lack
        text = f"{said}{lack.missing(kind, [self._role.name])}: {lack.advice(kind)}; it is started again each second"
        return DiskFull(text) if kind == lack.DISK else LimitError(text)
