"""The servers of one run of a node: started, watched, started again after a death, and ended in good order.

Invariant: a server is started only when no process of its role lives (children.py).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from logging import ERROR, WARNING
from pathlib import Path

from warren.engine.saying import Say
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node import children
from warren.workers.node.children import Role, workers_running
from warren.workers.node.drain import Drain
from warren.workers.process import lack, logs
from warren.workers.process.exit_codes import EXIT_DO_NOT_RESTART

CREATING, STARTING, DRAINING = CONSTANTS["NODE_CREATING"], CONSTANTS["NODE_STARTING"], CONSTANTS["NODE_DRAINING"]
DOWN, FAILED = CONSTANTS["SERVER_DOWN"], CONSTANTS["SERVER_FAILED"]


class Upkeep:
    """Keeps the servers alive until `drain` ends them."""

    def __init__(
        self,
        directory: Path,
        superblock: Superblock,
        roles: list[Role],
        selector: selectors.BaseSelector,
        stop_timeout: float,
        *,
        own_pidfd: int,
        load: Callable[[], object],
        close_in_child: Callable[[Role], None],
        scan: Callable[[], None],
        alarms: Callable[[], None],
        say: Say,
        no_room: Callable[[str], None],
    ) -> None:
        """`load` what children run, before the first fork; `scan` the clients when a server has ended, and look at the
        `alarms` when one has failed; `no_room` is told what a server lacked, for which a node does not start.
        """
        self.roles = roles
        self.drain = Drain(superblock, roles, stop_timeout, self.start, say)
        self.catalog_cut = False  #: a worker found that when the node started
        self._directory = directory
        self._superblock = superblock
        self._selector = selector
        self._own_pidfd = own_pidfd
        self._load = load
        self._close_in_child = close_in_child
        self._scan = scan
        self._alarms = alarms
        self._say = say
        self._no_room = no_room

    def start_those_due(self, now: float) -> None:
        """Start the servers whose time has come after a death."""
        for role in self.roles:
            if role.restart_at is not None and now >= role.restart_at:
                self.start(role)

    def end_own(self) -> None:
        """Kill what was started here; what was taken over lives on."""
        for role in self.roles:
            if role.running and not role.adopted:
                children.send(role, signal.SIGKILL)
                self._selector.unregister(role.pidfd)
                children.reap(role)

    def start(self, role: Role) -> None:
        """Start a server; one that the system has no room for is tried again later."""
        self._load()
        try:
            children.start(role, self._superblock, self._own_pidfd, self._close_in_child)
        except OSError as error:
            role.lack = lack.of_error(error)
            self._say(f"cannot start {role.name}: {error}", ERROR)
            self._died(role)
            return
        self.watch(role)

    def watch(self, role: Role) -> None:
        """Notice the death of a server, of one that was adopted, too."""
        self._selector.register(role.pidfd, selectors.EVENT_READ, lambda: self._ended(role))

    def _ended(self, role: Role) -> None:
        """A server's process is dead."""
        self._selector.unregister(role.pidfd)
        pid = role.identity.pid if role.identity else 0
        how = children.reap(role)
        role.identity = None
        self._superblock.slots_changed()
        draining = self._superblock.state == DRAINING
        if draining and how != "ended with exit code 0" and self._owes(role):
            role.finishing = True
            self._say(
                f"{role.name} (process {pid}) {how} while the node was stopping: it is started once more", WARNING
            )
            self.start(role)
            return
        if draining and not (role.kind == "store" and workers_running(self.roles)):
            role.set_state(self._superblock, DOWN)
            # the collector is not waited for at the start: it may be told to end before it can listen
            if how not in ("ended with exit code 0", "ended") and (role.vital or how != "was killed by SIGTERM"):
                why = f"{how} while the node was stopping; see {role.log}"
                self._say(f"{role.name} (process {pid}) {why}", WARNING)
                if role.vital and not self.drain.killed:
                    self.drain.unclean.append({"server": role.name, "pid": pid, "why": why})
            self._scan()
            return
        if role.lack:
            what = lack.WORDS[role.lack]
            # it never was up: it says why, and ends; queues do without topics
            if role.vital and role.kind != "topic_worker" and self._superblock.state in (CREATING, STARTING):
                role.set_state(self._superblock, FAILED)
                figures = lack.figures(role.lack)
                said = f"{role.name} finds no {what}{f' ({figures})' if figures else ''}"
                said = f"{said}; {lack.advice(role.lack)}, then start the node again; see {role.log}"
                self._no_room(said)
                self.drain.begin(said, 1)
                return
            self._say(f"{role.name} finds no {what} and is started again until there is some", WARNING)
        else:
            self._say(f"{role.name} (process {pid}) {how}", WARNING)
        self._died(role)
        # only now: before it is known that the server comes back, nobody would wait for what it owes to dead clients
        self._scan()

    def _owes(self, role: Role) -> bool:
        """A worker that did not end by itself: what was submitted to it would go with the node."""
        lost = self._superblock.get("ending") == CONSTANTS["ENDING_REMOVED"]
        if not role.has_rings or role.finishing or role.failed or self.drain.killed or lost:
            return False
        return self._superblock.server_get(role.servers[0], "state") != DOWN

    def _died(self, role: Role) -> None:
        """Decide what follows a death: a start now or later, or the end of the node."""
        now = time.monotonic()
        fatal = role.failed  # it said so itself
        if not fatal:
            children.record_death(role, now, role.served(self._superblock))
        for server in role.servers:
            self._superblock.server_set(server, "lacks", role.lack)
            if role.lack and role.kind != "topic_worker":  # queues go on without it: their publishers are not blocked
                raised = self._superblock.server_get(server, "alarms") | lack.ALARMS[role.lack]
                self._superblock.server_set(server, "alarms", raised)
        if not role.failed:
            role.set_state(self._superblock, DOWN)
            role.count_restart(self._superblock)
            if role.restart_at is not None and role.restart_at <= now:
                self.start(role)
            return
        role.set_state(self._superblock, FAILED)
        if not role.vital:
            grows = ", and its files only grow" if role.kind == "collector" else ""
            self._say(f"{role.name} cannot run: the node runs on without it{grows}; see {role.log}", ERROR)
            return
        self._alarms()
        how = (
            f"{role.name} cannot run"
            if fatal
            else f"{role.name} died {children.DEATHS_MAX} times within {children.DEATHS_WINDOW_S:.0f} s"
        )
        printed = logs.last_lines(role.log)
        last = f"; its last words were:\n{printed}" if printed else f"; see {role.log}"
        if role.catalog_cut:
            # what is on disk stays as it was found; a catalog that was whole when the node started is saved at its end
            self.catalog_cut = self._superblock.state in (CREATING, STARTING)
            self.drain.begin(
                f"the catalog of {self._directory} was cut, or is an older copy{last}", EXIT_DO_NOT_RESTART
            )
        elif role.kind == "topic_worker":
            self._superblock.ring_all()  # who waits for it need not wait
            self._say(f"{how}: the node runs on without topics, and the next start tries again{last}", ERROR)
        elif role.kind == "queue_worker" and any(
            other.kind == "queue_worker" and not other.failed for other in self.roles
        ):
            self._superblock.ring_all()  # who waits for it need not wait
            self._say(f"{how}: the node runs on without its queues, and the next start tries again{last}", ERROR)
        else:
            self.drain.begin(f"{how}{last}", EXIT_DO_NOT_RESTART if fatal else 1)

    def failed_workers(self) -> list[Role]:
        """Queue workers that are not started again."""
        return [role for role in self.roles if role.kind == "queue_worker" and role.failed]

    def that_sweep(self) -> list[int]:
        """Servers that have to be done with a client before its slot is freed: all that run or will run again."""
        return [server for role in self.roles if role.running or role.restart_at is not None for server in role.servers]

    def pids(self) -> list[int]:
        """Of the servers that run."""
        return [role.identity.pid for role in self.roles if role.identity is not None]

    def reap_strangers(self) -> None:
        """As process 1 of a container: collect orphans that were handed to us."""
        mine = set(self.pids())
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in mine:
                os.waitpid(found.si_pid, 0)
