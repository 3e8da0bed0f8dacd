"""The server processes of a node, as the supervisor sees them: forked here, or adopted from a supervisor that died.

Invariants
  A child does nothing before its pid stands in the superblock: it waits at a gate (a pipe) which the supervisor opens
  after writing the pid. So a supervisor that is killed at any point leaves only servers that its successor finds
  there, or children that leave at once (the gate closes with its death). Never two servers for one role.
  A child holds nothing of the supervisor: no lock, socket, mailbox or pidfd of another process.
  A process is signalled through its pidfd only, so a signal never hits a stranger with the same pid; one that was not
  forked here only after the kernel has said that it is a server of this node (workers/process/tie.py, open_server).
Back-off: at once, then 0.1, 0.2, 0.4 … 5 s after each death within 60 s; at the tenth the role has failed (but for
those of collector and gateways, without which the node runs: they are tried again every 5 s). The node goes on without
a failed queue worker as long as there is another one, and ends with the store server. It ends with a worker that found
that the catalog was cut, too: ids would be given again. Without the topic worker it goes on in any case.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import posix_ipc
import sysv_ipc

from warren.engine.config import Settings
from warren.engine.errors import Error, FormatVersionError, PermissionRefused
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST
from warren.ipc.names import TOPICS
from warren.ipc.superblock import Superblock
from warren.workers.node import forked
from warren.workers.process import lack, logs
from warren.workers.process.exit_codes import EXIT_CATALOG_CUT, EXIT_DO_NOT_RESTART
from warren.workers.process.tie import lock_holder, open_server

DEATHS_MAX = 10
DEATHS_WINDOW_S = 60.0
#: so many deaths of incarnations that served are no reason to wait before the next start
DEATHS_AT_ONCE = 4
#: deaths of incarnations that never served, from which on an alarm is raised
DEATHS_TOLD = 2
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
LACK_EVERY_S = 1.0

log = logging.getLogger("warren.node")

#: what runs in a child: (supervisor_pidfd) → exit code
Main = Callable[[int], int]


@dataclass
class Role:
    """One process that there has to be, its present incarnation, and how often it died lately."""

    name: str  #: store, worker-<i>, topics, collector, amqp-<i>
    kind: str  #: role in `status`: store, queue_worker, topic_worker, collector, amqp_gateway
    index: int
    servers: tuple[int, ...]  #: rows of the superblock it serves; none: collector and gateways (gateway_roles.py)
    main: Main
    log: Path
    settings: Settings = field(default_factory=Settings)  #: how it logs
    identity: Identity | None = None
    pidfd: int = -1
    adopted: bool = False
    deaths: list[tuple[float, bool]] = field(default_factory=list)  #: when, and whether it had served
    restart_at: float | None = None
    failed: bool = False
    catalog_cut: bool = False  #: it found records of queues that the catalog never named
    lack: int = 0  #: LACK_…: what the last incarnation lacked when it could not start
    finishing: bool = False  #: started while the node ends, to do what is still submitted; once
    wanted: bool = True  #: False: the node has no use for it, and no such process

    @property
    def running(self) -> bool:
        return self.pidfd >= 0

    @property
    def vital(self) -> bool:
        """False: the node runs without it, so it is started again for ever."""
        return bool(self.servers)

    @property
    def bits(self) -> tuple[int, ...]:
        """Which bits of `failing` in the superblock are its."""
        return self.servers or (CONSTANTS["FAILING_COLLECTOR"],)

    @property
    def has_rings(self) -> bool:
        """Clients submit to it what would go with the node, and the node can go on without it."""
        return self.kind in ("queue_worker", "topic_worker")

    @property
    def holds_up(self) -> bool:
        """The node is not up before it serves. The topic worker is not waited for that lacks something, or has failed:
        queues need none of it."""
        if self.kind == "topic_worker":
            return self.wanted and not self.failed and not self.lack
        return self.vital

    def served(self, superblock: Superblock) -> bool:
        """The present incarnation, dead or alive, has come up."""
        state = superblock.server_get(self.servers[0], "state") if self.servers else superblock.get("collector_state")
        return state in (CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_STOPPING"])

    def set_state(self, superblock: Superblock, state: int) -> None:
        """SERVER_… where the superblock has it."""
        for server in self.servers:
            superblock.server_set(server, "state", state)
        if not self.servers:
            superblock.set("collector_state", state)

    def count_restart(self, superblock: Superblock) -> None:
        """One restart more."""
        for server in self.servers:
            superblock.server_add(server, "restarts", 1)
        if not self.servers:
            superblock.set("collector_restarts", superblock.get("collector_restarts") + 1)

    def record(self, superblock: Superblock, pid: int, start_time: int) -> None:
        """Who has the role now; before it may do anything."""
        for server in self.servers:
            superblock.server_set(server, "start_time", start_time)
            superblock.server_set(server, "pid", pid)
        if not self.servers:
            superblock.set_collector(pid, start_time)

    def recorded(self, superblock: Superblock) -> Identity:
        """Who had it last."""
        return superblock.server_identity(self.servers[0]) if self.servers else superblock.collector


def failing(roles: Iterable[Role], now: float) -> int:
    """The roles that cannot start, or end again and again, as bits of the superblock's word. Of what a vital role lacks
    another alarm tells, and of one that was given up.
    """
    bits = 0
    for role in roles:
        lately = [up for when, up in role.deaths if now - when < DEATHS_WINDOW_S]
        again = len(lately) > DEATHS_AT_ONCE or lately.count(False) >= DEATHS_TOLD
        alone = role.lack and role.kind in ("collector", "amqp_gateway", "topic_worker")
        if role.wanted and (again or alone or (role.failed and not role.vital)) and not (role.failed and role.vital):
            for bit in role.bits:
                bits |= 1 << bit
    return bits


def workers_running(roles: Iterable[Role]) -> bool:
    """Whether any queue worker runs."""
    return any(role.running for role in roles if role.kind == "queue_worker")


def make_roles(
    store: Main,
    worker: Callable[[int], Main],
    topics: Main,
    collector: Main,
    workers_n: int,
    topic_server: int,
    log_file: Callable[[str], Path],
    settings: Settings,
) -> list[Role]:
    """The roles of a node: store server, `workers_n` queue workers, topic worker (not wanted yet), collector."""

    def role(name: str, kind: str, index: int, servers: tuple[int, ...], main: Main) -> Role:
        return Role(name, kind, index, servers, main, log_file(name), settings)

    of_topics = role(TOPICS, "topic_worker", 0, (topic_server,), topics)
    of_topics.wanted = False
    return [
        role("store", "store", 0, (SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT), store),
        *(role(f"worker-{n}", "queue_worker", n, (SERVER_WORKER_FIRST + n,), worker(n)) for n in range(workers_n)),
        of_topics,
        role("collector", "collector", 0, (), collector),
    ]


def start(role: Role, superblock: Superblock, supervisor_pidfd: int, close_inherited: Callable[[Role], None]) -> None:
    """Fork a server. On return its pid is in the superblock and `role.pidfd` open. Raises OSError when the system has
    no room.

    `close_inherited` runs in the child, closes what is the supervisor's, and enters the data directory: a successor
    knows the server by that and its name, both before the gate.
    """
    gate_read, gate_write = os.pipe()

    def be_child() -> int:
        os.close(gate_write)
        return _be_child(role, gate_read, supervisor_pidfd, close_inherited)

    try:
        pid = forked.fork(be_child)
    except OSError:
        os.close(gate_write)
        raise
    finally:
        os.close(gate_read)
    try:
        try:
            role.pidfd = os.pidfd_open(pid)
        except OSError:
            os.close(gate_write)  # so it leaves at once
            gate_write = -1
            os.waitpid(pid, 0)
            raise
        role.identity = Identity.of(pid)
        role.adopted = False
        role.restart_at = None
        role.set_state(superblock, CONSTANTS["SERVER_RECOVERING"])
        role.record(superblock, pid, role.identity.start_time if role.identity else 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(gate_write, b"g")
    finally:
        if gate_write >= 0:
            os.close(gate_write)


def adopt(role: Role, superblock: Superblock, directory: Path) -> bool:
    """Take over a server that a dead supervisor left, if it is alive, and the kernel says that it is one."""
    identity = role.recorded(superblock)
    pidfd = open_server(identity, role.name, directory)
    if pidfd is None:  # a member of the node's group may have written another one over it
        holder = lock_holder(role.name, directory)
        pidfd = open_server(holder, role.name, directory) if holder is not None else None
        if holder is None or pidfd is None:
            return False
        identity = holder
        role.record(superblock, holder.pid, holder.start_time)
    role.identity, role.pidfd, role.adopted = identity, pidfd, True
    return True


def reap(role: Role) -> str:
    """Forget a process whose pidfd became readable; returns how it ended, for people. Sets `role.failed` for exit codes
    that say that another start is of no use, and `role.catalog_cut`.
    """
    assert role.identity is not None
    pid = role.identity.pid
    os.close(role.pidfd)
    role.pidfd = -1
    role.lack = 0
    if role.adopted:
        return "ended"
    with contextlib.suppress(ChildProcessError):
        _pid, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code in (EXIT_DO_NOT_RESTART, EXIT_CATALOG_CUT):
            role.failed = True
        role.catalog_cut = code == EXIT_CATALOG_CUT
        role.lack = lack.of_exit_code(code)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return "ended"


def record_death(role: Role, now: float, served: bool) -> None:
    """Count a death: sets when to start the role again, or `failed` when it died too often.

    At once after the first death, and after some more when the role had come up each time: then something outside of it
    killed it, and its clients wait. Else later and later. Who lacks room (lack.py) does not die of it: it is tried for
    as long as that lasts.
    """
    if role.lack:
        role.restart_at = now + LACK_EVERY_S
        return
    role.deaths = [(when, up) for when, up in role.deaths if now - when < DEATHS_WINDOW_S] + [(now, served)]
    if len(role.deaths) >= DEATHS_MAX and role.vital:
        role.failed = True
    up_n = sum(up for _when, up in role.deaths)
    steps = len(role.deaths) - max(1, min(up_n, DEATHS_AT_ONCE))
    delay = 0.0 if steps == 0 else min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** (steps - 1))
    role.restart_at = None if role.failed else now + delay


def send(role: Role, number: signal.Signals) -> None:
    """Signal a role's process, if it is there."""
    if role.running:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(role.pidfd, number)


def _be_child(role: Role, gate: int, supervisor_pidfd: int, close_inherited: Callable[[Role], None]) -> int:
    """Everything that a server does, after the fork; returns its exit code."""
    try:
        close_inherited(role)
        logs.begin(role.name, role.log, role.settings, streams=True)
        faulthandler.enable()  # a crash in C leaves the Python lines it came from in the log
        _name_process(f"warren-{role.name}")
        passed = os.read(gate, 1)
        os.close(gate)
        if not role.lack:  # else the one before has said so, a second ago
            log.info("%s", logs.starts(role.log.parent.parent, role.settings))  # DIR/log/<role>.log
        if passed and not select.select([supervisor_pidfd], [], [], 0)[0]:
            return role.main(supervisor_pidfd)
    except (FormatVersionError, PermissionRefused) as error:
        log.error("%s", error)
        return EXIT_DO_NOT_RESTART
    except BaseException as error:
        lacked = lack.of_error(error)
        if lacked:
            if lacked != role.lack:  # else the one before has said so
                log.error("%s finds no %s: %s", role.name, lack.WORDS[lacked], error)
            return lack.exit_code(lacked)
        if isinstance(error, Error):
            log.error("%s", error)
        elif isinstance(error, OSError | posix_ipc.Error | sysv_ipc.Error):  # the system refused something: no mistake
            log.error("%s ends: %s (%s)", role.name, error, _place(error))
        else:
            log.critical("%s ends: %s", role.name, type(error).__name__, exc_info=True)
    return 1


def _place(error: BaseException) -> str:
    """Where an error was raised, for the log."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def _name_process(name: str) -> None:
    """The name that ps and top show (15 bytes)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name[:15])


def freeze() -> None:
    """Before forking: what was loaded is never collected, so its pages stay shared with the children."""
    gc.collect()
    gc.freeze()
