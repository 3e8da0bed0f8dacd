"""The end of a node, in order: gateways first, which tell their clients and wait a moment for what they have under way;
then queue workers, because they are clients of the store, and with them the topic worker; then the store; then what is
left is killed: a gateway or the collector, which then has nothing to save, soon, and a server when the time to stop is
over. The log says now and then who is waited for.

The request `Ended` is answered with the servers that were killed, and why; then the exit code says so, too.

Crash point: the state DRAINING stands in the superblock, so a successor of a killed supervisor finishes the drain.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from logging import ERROR, INFO, WARNING
from typing import Any

from warren.engine.catalog import log as catalog_log
from warren.engine.errors import (
    Error,
)
from warren.engine.saying import Say
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node import children, gateway_roles, systemd
from warren.workers.node.children import Role, workers_running
from warren.workers.node.control_server import ControlServer
from warren.workers.node.progress import Progress
from warren.workers.process.exit_codes import EXIT_KILLED

#: how long the other servers wait for the gateways
GATEWAYS_S = 5.0
#: how long gateways and collector have when every server is gone
LEFT_S = 2.0
#: how often the log says who is waited for
SAID_EVERY_S = 5.0

DRAINING, STOPPED = CONSTANTS["NODE_DRAINING"], CONSTANTS["NODE_STOPPED"]


class Drain:
    """Ends the servers of one run. Nothing in it waits: the supervisor's loop calls `turn` until it is `finished`."""

    def __init__(
        self,
        superblock: Superblock,
        roles: list[Role],
        stop_timeout: float,
        start: Callable[[Role], None],
        say: Say,
    ) -> None:
        self._superblock = superblock
        self._roles = roles
        self._stop_timeout = stop_timeout
        self._start = start
        self._say = say
        self._store_told = False
        self._workers_at: float | None = None  # the gateways end until then
        self._left_at: float | None = None  # what has nothing to save is killed then
        self._said_at = 0.0
        self.code = 0  #: the exit code of the supervisor
        self.kill_at: float | None = None  #: when what is left is killed
        self.killed: list[dict[str, Any]] = []  #: {server, pid, why} of those that did not end by themselves
        self.unclean: list[dict[str, Any]] = []  #: the same of those that ended, and say that they did not save all
        self.ended = False  #: every server is gone
        self._progress = Progress(superblock)
        self._limit = 0.0  # seconds that they have
        self.reason = ""  #: why the node ends
        self.began = 0.0

    def begin(self, reason: str, code: int, *, timeout: float | None = None, again: bool = False) -> None:
        """Tell the queue workers. A drain that has begun keeps its first code, unless it is begun `again` by another
        supervisor.
        """
        if self._superblock.state == DRAINING and not again:
            self.code = self.code or code
            return
        self.code, self.reason, self.began = code, reason, time.monotonic()
        self._say(f"stopping: {reason}", ERROR if code else INFO)
        self._superblock.set_state(DRAINING)
        self._superblock.ring_all()
        systemd.notify("STOPPING=1")
        self._limit = self._stop_timeout if timeout is None else timeout
        self.kill_at = self.began + self._limit
        self._progress.look(self._roles, self.began)
        self._store_told, self._left_at, self._said_at = False, None, self.began + SAID_EVERY_S
        gateways = gateway_roles.of(self._roles)
        for role in gateways:
            role.restart_at = None
            children.send(role, signal.SIGTERM)
        self._workers_at = time.monotonic() + (GATEWAYS_S if timeout is None else min(GATEWAYS_S, timeout / 2))
        if not any(role.running for role in gateways):
            self._end_workers()

    def extend(self, seconds: float) -> None:
        """The servers have at least so long from now on."""
        limit = time.monotonic() - self.began + seconds
        if self.kill_at is not None and limit > self._limit:
            self._limit = limit
            self.kill_at = self.began + limit

    def _end_workers(self) -> None:
        self._workers_at = None
        for role in self._roles:
            if role.kind not in ("store", gateway_roles.GATEWAY):
                waiting, role.restart_at = role.restart_at is not None, None
                if waiting and role.has_rings:
                    role.finishing = True
                    self._start(role)  # it sees that the node ends when it has done what is in the rings
                else:
                    children.send(role, signal.SIGTERM)

    @property
    def due(self) -> float | None:
        """When `turn` has something to do that no event tells."""
        waits = (self._workers_at, self._left_at, self.kill_at, self._said_at or None)
        return min((at for at in waits if at is not None), default=None)

    def turn(self, now: float) -> None:
        """What the drain does next: when the gateways are gone, or late, the workers end; when those are gone the store
        ends; when time is over what is left is killed.
        """
        if self._workers_at is not None:
            gone = not any(role.running for role in gateway_roles.of(self._roles))
            if gone or now >= self._workers_at:
                self._end_workers()
        elif not workers_running(self._roles) and not self._store_told:
            self._store_told = True
            for role in self._roles:
                role.restart_at = None
                children.send(role, signal.SIGTERM)
        self._look_at_the_left(now)
        if self._said_at and now >= self._said_at:
            self._said_at = now + SAID_EVERY_S
            self._progress.look(self._roles, now)
            names = [f"{role.name} (process {role.identity.pid})" for role in self._roles if role.identity is not None]
            self._say(f"stopping for {now - self.began:.0f} s, waits for {', '.join(names) or 'nobody'}", INFO)
        if self.kill_at is not None and now >= self.kill_at:
            self.force(f"it took longer than {self._limit:.3g} s")

    def _look_at_the_left(self, now: float) -> None:
        """When every server is gone, what is left has nothing to save: nobody waits long for it."""
        if any(role.servers and (role.running or role.restart_at is not None) for role in self._roles):
            self._left_at = None
        elif self._left_at is None:
            self._left_at = now + LEFT_S
        elif now >= self._left_at:
            self._left_at = now + LEFT_S
            for role in self._roles:
                if role.running:
                    self._say(f"{role.name} is killed: every server has ended, and it goes on", WARNING)
                    children.send(role, signal.SIGKILL)

    def force(self, reason: str, asked: bool = False) -> None:
        """Kill the remaining servers. Confirmed messages are safe: the next start recovers them. `asked`: on request,
        so what the servers were doing explains nothing.
        """
        now = time.monotonic()
        self.kill_at = self._workers_at = None
        self._said_at = 0.0
        self._progress.look(self._roles, now)
        for role in self._roles:
            role.restart_at = None
            if role.running:
                waits = role.kind == "store" and not self._store_told
                doing = "it waited for the workers, whose store it is" if waits else self._progress.text(role, now)
                why = reason if asked else f"{reason}; {doing}"
                self._say(f"{role.name} is killed, because {why}", WARNING)
                pid = role.identity.pid if role.identity is not None else 0
                self.killed.append({"server": role.name, "pid": pid, "why": why})
                children.send(role, signal.SIGKILL)

    def outcome(self) -> dict[str, Any] | None:
        """What `Ended` answers; None: not yet."""
        return {"killed": self.killed, "unclean": self.unclean} if self.ended else None

    def finished(self) -> bool:
        """Whether every server is gone."""
        return self._superblock.state == DRAINING and not any(
            role.running or role.restart_at is not None for role in self._roles
        )

    def end(self, control: ControlServer | None, declarations: catalog_log.Writer | None) -> None:
        """Every server is gone. The catalog becomes one file, unless it must not be touched (None)."""
        if self._superblock.get("ending") and not self.code:
            self.code = 1
        if self.killed and not self.code:
            self.code = EXIT_KILLED
        self.ended = True
        self._superblock.set_state(STOPPED)
        if control is not None:
            control.turn()  # answers `Ended`
            control.flush(0.2)
        try:
            if declarations is not None:
                declarations.close()
        except Error as error:
            self._say(f"the catalog stays in two files: {error}", WARNING)
