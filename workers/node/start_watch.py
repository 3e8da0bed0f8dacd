"""A start as those see it who wait for it: the node is announced when it is up. Until then they are told what the start
waits for, and when it gives up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from logging import WARNING
from pathlib import Path

from warren.engine.saying import Say, command, counted
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node import gateway_roles, starting, systemd
from warren.workers.node.options import Options
from warren.workers.node.upkeep import Upkeep
from warren.workers.process import logs
from warren.workers.process.control import TELL_S
from warren.workers.process.exit_codes import EXIT_TIMEOUT

POLL_S, LATE_POLL_S = 0.002, 0.02
LOOK_S = 0.25  #: how often it is looked what a start waits for that takes long


class StartWatch:
    """The start of one run. `created`: the node begins here, and is no living one that was taken over."""

    def __init__(
        self,
        path: Path,
        node_id: int,
        profile: str,
        superblock: Superblock,
        upkeep: Upkeep,
        options: Options,
        began: float,
        created: bool,
        ready: Callable[[str], None],
        say: Say,
    ) -> None:
        self.announced = False
        self.outside_since: float | None = None  #: since when the start waits for what comes from outside
        self._path = path
        self._node_id = node_id
        self._profile = profile
        self._superblock = superblock
        self._upkeep = upkeep
        self._options = options
        self._created = created
        self._ready = ready
        self._say = say
        self._look_at = began + TELL_S
        self._waits: starting.Wait | None = None
        self._gave_up = False
        self._gateways_until: float | None = None  # the announcement waits for them
        self._gateways_since = 0.0  # the time since 1970
        self._told_gateways = False

    @property
    def poll_s(self) -> float:
        """Seconds until it may be up."""
        return POLL_S if self._waits is None else LATE_POLL_S

    def up(self) -> bool:
        """Announce the node when all servers serve that a start waits for, and then the gateways; True: it was
        announced now.
        """
        superblock, upkeep = self._superblock, self._upkeep
        ready = CONSTANTS["SERVER_READY"]
        waited_for = (role for role in upkeep.roles if role.holds_up and not (role.has_rings and role.failed))
        if any(superblock.server_get(server, "state") != ready for role in waited_for for server in role.servers):
            return False
        superblock.set_state(CONSTANTS["NODE_RUNNING"])
        if not self._gateways_settled():
            return False
        self.announced = True
        systemd.notify("READY=1")
        workers_n = superblock.workers_n
        without = [role for role in upkeep.roles if role.has_rings and role.failed]
        failed = "".join(f", {role.name} has failed (see {role.log})" for role in without)
        topics = ", topics" if any(role.kind == "topic_worker" and role.holds_up for role in upkeep.roles) else ""
        topics += ", AMQP" if gateway_roles.of(upkeep.roles) else ""
        for role in upkeep.roles:  # those that a start does not wait for: of some it is known now that they fail
            is_gateway = role.kind == gateway_roles.GATEWAY
            if not role.holds_up and (is_gateway or role.lack or role.deaths) and not role.served(superblock):
                why = logs.last_error(role.log, self._gateways_since)
                failed += f", {role.name} is not up{f': {why}' if why else ''} (see {role.log})"
        self._ready(
            f"node {self._node_id:012x} is up for {self._path}: store server, "
            f"{counted(workers_n, 'queue worker')}{topics}{failed}, profile {self._profile}, "
            f"supervisor pid {os.getpid()}; "
            f"stop it with {command('stop', self._path)}{' or Ctrl-C' if self._options.terminal else ''}"
        )
        return True

    def _gateways_settled(self) -> bool:
        """Start the gateways, which attach to a node that runs. True: they listen, or have shown that they cannot."""
        gateways = gateway_roles.of(self._upkeep.roles)
        if self._gateways_until is None:
            self._gateways_until = time.monotonic() + gateway_roles.UP_S
            self._gateways_since = time.time()
            for role in gateways:
                if not role.running:
                    self._upkeep.start(role)
        if all(role.settled(self._superblock) for role in gateways) or time.monotonic() >= self._gateways_until:
            return True
        if not self._told_gateways and time.monotonic() >= self._look_at:
            self._told_gateways = True
            self._options.waiting("the AMQP gateways are starting", False)
        return False

    def look(self, now: float) -> None:
        """Until the node is up, tell those who started it what it waits for.

        A first start does not wait without end for what comes from outside: nothing lives yet that needs it. What was
        taken over has clients, and keeps trying for them.
        """
        options = self._options
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        wait = starting.wait_of(self._superblock, self._path, self._upkeep.roles)
        if wait is not None and (self._waits is None or wait.key != self._waits.key):
            options.waiting(wait.text, wait.outside)
        self._waits = wait
        if wait is None or not wait.outside:
            self.outside_since = None
            return
        if self.outside_since is None:
            self.outside_since = now
        if now - self.outside_since < options.start_timeout or self._gave_up or options.successor:
            return
        self._gave_up = True
        said = f"it is not up after {options.start_timeout:g} s: {wait.text}"
        if self._created:
            self._upkeep.drain.begin(said, EXIT_TIMEOUT)
            return
        self._say(f"{said}; those of its servers that still run wait, so it keeps trying", WARNING)
        path = self._path
        options.gave_up(
            f"the node of {path} is not up after {options.start_timeout:g} s: {wait.text}; those of its servers that "
            f"still ran were taken over and wait, so its supervisor (process {os.getpid()}) keeps trying: "
            f"{command('status', path)} says how far it is, {command('stop', path)} ends it"
        )
