"""The supervisor: makes a node, keeps its servers alive, watches its clients, and ends it in good order.

One thread, one selector loop; nothing in it blocks. A node is CREATING → STARTING → RUNNING → DRAINING → STOPPED.

Invariants
  It holds the directory's lock from before it changes anything until everything is removed; its children never do.
  A server is started only when no process of that role lives (children.py). A superblock in use is never replaced.
  The superblock is unlinked last: as long as it is there, it names what is left.
Crash points (its successor holds the lock, so it is alone)
  before the superblock: node.json has the new epoch and the semaphores' keys; the next start removes the semaphores
  CREATING, STARTING, RUNNING with a living server or client: adopted; clients notice nothing
  the same with nobody left alive, or STOPPED: the remains are removed, and the node starts cold
  DRAINING: the drain is finished first
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import posix_ipc

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import FILE_NAME, Catalog
from warren.engine.catalog.node_directory import Launch, NodeDirectory, NodeFile, check_running
from warren.engine.config import Settings
from warren.engine.errors import (
    CatalogCut,
    ClosedError,
    DirectoryInUse,
    Error,
    LimitError,
    NodeNotRunning,
    StoreError,
)
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.queues.folder import queues_of
from warren.engine.saying import Repeats, command
from warren.ipc import names
from warren.ipc.identity import Identity, Namespaces
from warren.ipc.layout import CLIENT_SLOTS, CONSTANTS, QUEUE_GONE_ROWS, SERVER_WORKER_FIRST
from warren.ipc.mailbox import Mailbox
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock
from warren.workers.node import absence, children, cold_start, starting, systemd
from warren.workers.node.alarms import Alarms
from warren.workers.node.children import Role, workers_running
from warren.workers.node.clients_watch import ClientsWatch
from warren.workers.node.control_server import ControlServer, Table
from warren.workers.node.desk import Desk
from warren.workers.node.drain import Drain
from warren.workers.node.queue_life import Sight
from warren.workers.node.status import NODE_STATES, SAMPLE_S, Statistics
from warren.workers.process import lack, remains, requests
from warren.workers.process.control import TELL_S, ControlClient, readable
from warren.workers.process.exit_codes import EXIT_DO_NOT_RESTART, EXIT_TIMEOUT
from warren.workers.process.tie import (
    COLLECTOR,
    MOVED,
    REMOVED,
    STORE,
    Tie,
    described,
    elsewhere,
)

CREATING, STARTING, RUNNING = CONSTANTS["NODE_CREATING"], CONSTANTS["NODE_STARTING"], CONSTANTS["NODE_RUNNING"]
DRAINING, STOPPED = CONSTANTS["NODE_DRAINING"], CONSTANTS["NODE_STOPPED"]
READY, DOWN, FAILED = CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_DOWN"], CONSTANTS["SERVER_FAILED"]

STOP_TIMEOUT_S = 30.0
#: descriptors: without so many a node does not start, and more than so many are of no use to it
DESCRIPTORS_MIN, DESCRIPTORS_MAX = 512, 65_536
LOST_STOP_TIMEOUT_S = 5.0  #: of a node whose directory was removed
START_WAIT_S = 60.0  #: how long one that lost the race for the lock waits until the winner serves
STARTING_POLL_S, STARTING_LATE_POLL_S = 0.002, 0.02
START_LOOK_S = 0.25  #: how often it is looked what a start waits for that takes long
LOAD_LATER_S = 0.5
LIFE_S = 0.25  #: how often it is looked which queues have to go
MESSAGES_KEPT = 50


class Servers(Protocol):
    """What the supervisor runs in its children; tests inject their own."""

    def store(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Serve both stores; returns an exit code."""

    def worker(self, directory: Path, shared_id: int, worker: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Serve the queues of one worker; returns an exit code."""

    def collector(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Collect garbage for the stores; returns an exit code."""


class RealServers:
    """Store server, queue workers, collector. Made before forking, so that a restart has nothing to load."""

    def __init__(self) -> None:
        from warren.workers.servers.collector import run_collector
        from warren.workers.servers.queue_worker import run_queue_worker
        from warren.workers.servers.store_server import run_store_server

        self.store: Callable[[Path, int, Settings, int], int] = run_store_server
        self.worker: Callable[[Path, int, int, Settings, int], int] = run_queue_worker
        self.collector: Callable[[Path, int, Settings, int], int] = run_collector


@dataclass(frozen=True)
class Options:
    """How a supervisor is started. `idle_exit`: seconds without clients after which the node ends, None: never."""

    idle_exit: float | None = None
    adopt: bool = False  #: losing the race for the directory is fine
    successor: bool = False  #: takes over from a killed supervisor, and never begins a node anew
    changes: dict[str, Any] = field(default_factory=dict)  #: settings by name
    stop_timeout: float = STOP_TIMEOUT_S
    close_in_child: Callable[[], None] = lambda: None  #: closes in a child what the starter of the supervisor opened
    locked: Callable[[], None] = lambda: None  #: called once it has the directory's lock
    terminal: bool = False  #: a Ctrl-C reaches it
    start_timeout: float = starting.START_TIMEOUT_S  #: how long a start waits for what comes from outside
    #: called with what is waited for, and whether that comes from outside, when the node is not up at once
    waiting: Callable[[str, bool], None] = lambda text, outside: None
    gave_up: Callable[[str], None] = lambda text: None  #: the start timeout is over, and it goes on trying
    left: Callable[[], bool] = lambda: False  #: whether the process that started it ended before it was up


def supervise(
    path: Path | str,
    options: Options,
    servers: Callable[[], Servers] = RealServers,
    ready: Callable[[str], None] = lambda line: None,
) -> int:
    """Be the supervisor of a directory until the node ends; returns the exit code of the process.

    `ready` is called once with a line for people when the node runs (also by one that lost the race and need not).
    Raises DirectoryInUse, UsageError, StoreError and its kinds, LimitError.
    """
    os.umask(0o077)
    raise_descriptors()
    directory = NodeDirectory(path)
    if options.successor and not directory.exists():
        raise ClosedError(f"nothing is left of the node of {directory.path} that could be taken over")
    directory.check_new(options.changes)
    directory.make()
    while not _lock(directory, options):
        if _serves(directory, options.changes):
            other = options.idle_exit not in (None, directory.read_launch().idle_exit)
            ready(f"a node runs for {directory.path} already{', with the --idle-exit of its start' if other else ''}")
            return 0
    options.locked()
    try:
        while True:
            supervisor = Supervisor(directory, options, servers, ready)
            code = supervisor.run()
            if not supervisor.begin_anew:
                return code
    finally:
        directory.unlock()


def raise_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard one, as far as that is of use. Raises LimitError: too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        raise LimitError(
            f"a process of a node needs up to {DESCRIPTORS_MIN} descriptors (one for each of {CLIENT_SLOTS} clients, "
            f"and for files), and may have {soft}: raise the limit (`ulimit -Hn`, LimitNOFILE of systemd)"
        )


def _lock(directory: NodeDirectory, options: Options) -> bool:
    """Take the directory's lock. False: somebody else has it, serves, and that is fine. Raises DirectoryInUse."""
    deadline = time.monotonic() + START_WAIT_S
    tell_at = time.monotonic() + TELL_S
    seen = False
    while True:
        try:
            directory.lock()
        except DirectoryInUse as error:
            if options.successor:
                return False  # somebody else takes over, and if that fails the servers start another one
            if not options.adopt or time.monotonic() > deadline:
                raise
            unlike = directory.holder_namespaces().unlike(Namespaces.current())
            if unlike and seen:  # what the lock file says is of before for an instant
                raise elsewhere(directory, unlike) from error
            seen = True
            if time.monotonic() > tell_at:
                tell_at = deadline
                options.waiting(f"{error}, which is not up yet", True)
        else:
            return True
        with contextlib.suppress(Error, RegionError):
            superblock = Superblock.attach(directory.shared_id, LAYOUT_HASH)
            try:
                if superblock.wait_state({RUNNING}, 0.05) and superblock.supervisor.alive():
                    return False
            finally:
                superblock.close()
        time.sleep(0.005)


def _serves(directory: NodeDirectory, changes: dict[str, Any]) -> bool:
    """Whether the node that runs has the settings that are asked for; False: it has ended just now. Raises UsageError
    when it has others.
    """
    if changes:
        try:
            with ControlClient(directory.path) as running:
                check_running(directory.path, running.call("settings")["settings"], changes)
        except (NodeNotRunning, ClosedError):
            return False
    return True


class Supervisor:
    """One run of a node under the directory's lock."""

    def __init__(
        self,
        directory: NodeDirectory,
        options: Options,
        servers: Callable[[], Servers],
        ready: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.options = options
        self.begin_anew = (
            False  #: after run(): a drain was finished for a dead supervisor, and the node is to start now
        )
        self.messages: list[str] = []
        self._repeats = Repeats()
        self._make_servers = servers
        self._loaded: Servers | None = None
        self._load_at = 0.0
        self._ready = ready
        self._announced = False
        self._look_at_start = time.monotonic() + TELL_S
        self._waits: starting.Wait | None = None
        self._outside_since: float | None = None  #: since when the start waits for what comes from outside
        self._gave_up = False
        self._node: NodeFile
        self._shared_id: int
        self._tie: Tie | None = None
        self._superblock: Superblock
        self._catalog: Catalog
        self._declarations: catalog_log.Writer
        self._roles: list[Role] = []
        self._selector = selectors.DefaultSelector()
        self._control: ControlServer | None = None
        self._mailbox: Mailbox | None = None
        self._clients: ClientsWatch
        self._statistics: Statistics
        self._alarms: Alarms
        self._wake_read, self._wake_write = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._signals = 0
        self._desk: Desk
        self._drain: Drain
        self._catalog_cut = False
        self._created = False
        self._next_sample = 0.0
        self._life_at = 0.0
        self._seen_client = 0.0

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start or take over the node, serve until it ends; returns the exit code."""
        handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        wakeup = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        try:
            try:
                self._open()
            except BaseException:
                self._abandon()
                raise
            self._loop()
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._close()
        return self._drain.code

    def _open(self) -> None:
        self._node = self.directory.open_or_make(self.options.changes)
        self._shared_id = names.shared_id(self._node.node_id, self.directory.place)
        loaded, unreadable = self._read_catalog()
        # Before anything is removed, also of what a killed node left in memory.
        absence.refuse(self.directory.path, self._node.node_epoch, loaded.catalog if loaded is not None else None)
        found = cold_start.find(self.directory, self._node, self._shared_id)
        if found is None and self.options.successor:
            raise ClosedError(f"nothing is left of the node of {self.directory.path} that could be taken over")
        if found is None:
            self._load_servers()
        if loaded is None:
            raise unreadable
        self._catalog = loaded.catalog
        if found is not None and loaded.catalog.version < (told := found.get("catalog_version")):
            raise CatalogCut(  # ids that its workers know would be given again; they go on with what they have
                f"{self.directory.path / FILE_NAME}: it was cut, or is an older copy: the node that runs without a "
                f"supervisor has changes up to {told}, and the files only to {loaded.catalog.version}: restore "
                f"{FILE_NAME} and catalog.*.log, all from the same moment, or end its processes and start it again"
            )
        if found is None:
            self._node, self._catalog, self._superblock = cold_start.create(
                self.directory, self._node, self._catalog, self._shared_id, self._say, lambda: self._signals > 0
            )
            self._created = True
        else:
            self._superblock = found
            self._take_launch()
        if not self._catalog.log:  # the start has saved another one, or there never was a log
            loaded = catalog_log.Loaded(self._catalog, None)
        self._declarations = catalog_log.Writer(self.directory.path, loaded)
        superblock = self._superblock
        self._tie = Tie(self.directory.path, superblock)
        superblock.set_supervisor(Identity.current())
        superblock.set("catalog_version", self._catalog.version)
        workers_n = superblock.servers_n - SERVER_WORKER_FIRST
        # a predecessor may have told the version and not got further
        superblock.queues_gone(range(QUEUE_GONE_ROWS), self._catalog.version)
        superblock.queues_changed(range(workers_n), self._catalog.version)
        self._tie.watch(STORE, COLLECTOR, *map(queues_of, range(workers_n)))
        self._roles = children.make_roles(
            lambda pidfd: self._load_servers().store(self.directory.path, self._shared_id, self._node.settings, pidfd),
            lambda index: (
                lambda pidfd: self._load_servers().worker(
                    self.directory.path, self._shared_id, index, self._node.settings, pidfd
                )
            ),
            lambda pidfd: self._load_servers().collector(
                self.directory.path, self._shared_id, self._node.settings, pidfd
            ),
            workers_n,
            self.directory.log_file,
        )
        self._statistics = Statistics(superblock)
        self._alarms = Alarms(superblock, self.directory.path, self._node.settings, self._node_pids)
        self._clients = ClientsWatch(superblock, self._selector, self._servers_that_sweep, self._server_pids)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wakeups)
        self._open_mailbox()
        self._drain = Drain(superblock, self._roles, self.options.stop_timeout, self._start, self._say)
        self._desk = Desk(
            self.directory.path,
            superblock,
            self._catalog,
            self._declarations,
            self._tie,
            self._clients,
            self._node.settings.workers,  # those beyond only keep what they have
            lambda: {role.index for role in self._failed_workers()},
            self._say,
        )
        for role in self._roles:
            if found is not None and children.adopt(role, superblock):
                self._watch(role)
        if superblock.state == DRAINING:
            self.begin_anew = not self.options.successor
            self._say("the drain that a killed supervisor began is finished first")
            self._drain.begin("", 0, again=True)
        else:
            self._control = ControlServer(self.directory, self._selector, self._table())
            if superblock.state != RUNNING:
                superblock.set_state(STARTING)
            for role in self._roles:
                if not role.running:
                    self._start(role)
        self.directory.write_launch(Launch(self.options.idle_exit))
        self._clients.scan()
        self._seen_client = time.monotonic()
        # one that took over answers first, and loads what it does not need yet when it has time
        self._load_at = self._seen_client + LOAD_LATER_S
        self._next_sample = self._load_at if self._loaded is None else 0.0

    def _abandon(self) -> None:
        """The start failed: end what was started, and remove what was made. What was taken over goes on."""
        for role in self._roles:
            if role.running and not role.adopted:
                children.send(role, signal.SIGKILL)
                self._selector.unregister(role.pidfd)
                children.reap(role)
        if self._created:
            remains.remove(self.directory, self._node, self._shared_id, self._superblock)

    def _loop(self) -> None:
        while not self._drain.finished():
            for key, _events in self._selector.select(self._timeout()):
                if key.data is not None:
                    key.data()
            self._tick(time.monotonic())
        self._finish()

    def _timeout(self) -> float:
        """Seconds until something has to be done without being asked."""
        now = time.monotonic()
        due = [self._next_sample, self._clients.next_scan]
        due += [role.restart_at for role in self._roles if role.restart_at is not None]
        if self._drain.kill_at is not None:
            due.append(self._drain.kill_at)
        if self._looks_after_queues():
            due.append(self._life_at)
        if not self._announced and self._superblock.state in (STARTING, RUNNING):
            due.append(now + (STARTING_POLL_S if self._waits is None else STARTING_LATE_POLL_S))
        return max(0.0, min(due) - now)

    def _tick(self, now: float) -> None:
        if self._signals:
            self._stop_for_signal()
        if not self._announced and self._superblock.state in (STARTING, RUNNING):
            self._announce_when_ready()
        if not self._announced:
            self._look_after_start(now)
        for role in self._roles:
            if role.restart_at is not None and now >= role.restart_at:
                self._start(role)
        if now >= self._clients.next_scan:
            self._clients.scan()
            self._check_idle(now)
        if now >= self._life_at and self._looks_after_queues():
            self._life_at = now + LIFE_S
            self._desk.end_queues(self._sight(now))
        if self._loaded is None and now >= self._load_at:
            self._load_servers()
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self._statistics.sample()
            self._check_alarms()
            self._check_tie()
            if os.getpid() == 1:
                self._reap_strangers()
        if self._superblock.state == DRAINING:
            self._drain.turn(now)

    def _announce_when_ready(self) -> None:
        superblock = self._superblock
        waited_for = (role for role in self._roles if not (role.kind == "queue_worker" and role.failed))
        if any(superblock.server_get(server, "state") != READY for role in waited_for for server in role.servers):
            return
        superblock.set_state(RUNNING)
        self._announced = True
        self._seen_client = time.monotonic()
        systemd.notify("READY=1")
        workers_n = self._superblock.servers_n - SERVER_WORKER_FIRST
        failed = "".join(f", {role.name} has failed (see {role.log})" for role in self._failed_workers())
        self._ready(
            f"node {self._node.node_id:012x} is up for {self.directory.path}: store server, "
            f"{workers_n} queue worker{'s' if workers_n != 1 else ''}{failed}, supervisor pid {os.getpid()}; "
            f"stop it with {command('stop', self.directory.path)}{' or Ctrl-C' if self.options.terminal else ''}"
        )

    def _look_after_start(self, now: float) -> None:
        """Until the node is up whoever started it is told what it waits for; and if he has left, nobody knows of it.

        A first start does not wait for ever for what comes from outside: nothing lives yet that needs it. What was
        taken over has clients, and goes on trying for them.
        """
        options, state = self.options, self._superblock.state
        if state == DRAINING and not self.begin_anew:
            return
        if options.left():
            self.begin_anew = False
            self._drain.begin("the process that started it ended before it was up", 1)
            return
        if now < self._look_at_start:
            return
        self._look_at_start = now + START_LOOK_S
        wait = starting.wait_of(self._superblock, self.directory.path, self._roles)
        if wait is not None and (self._waits is None or wait.key != self._waits.key):
            options.waiting(wait.text, wait.outside)
        self._waits = wait
        if wait is None or not wait.outside:
            self._outside_since = None
            return
        if self._outside_since is None:
            self._outside_since = now
        if now - self._outside_since < options.start_timeout or self._gave_up or options.successor:
            return
        self._gave_up = True
        said = f"it is not up after {options.start_timeout:g} s: {wait.text}"
        if self._created:
            self._drain.begin(said, EXIT_TIMEOUT)
            return
        self._say(f"{said}; those of its servers that still run wait, so it keeps trying")
        path = self.directory.path
        options.gave_up(
            f"the node of {path} is not up after {options.start_timeout:g} s: {wait.text}; those of its servers that "
            f"still ran were taken over and wait, so its supervisor (process {os.getpid()}) keeps trying: "
            f"{command('status', path)} says how far it is, {command('stop', path)} ends it"
        )

    # -- beginning ----------------------------------------------------------------------------------------------

    def _read_catalog(self) -> tuple[catalog_log.Loaded | None, StoreError]:
        """The catalog on disk, or why it cannot be read: that counts when nothing else ends the start before."""
        try:
            return catalog_log.load(self.directory.path), StoreError()
        except StoreError as error:
            return None, error

    def _take_launch(self) -> None:
        """Take over from a killed supervisor: keep how it was started, unless this one was told otherwise."""
        if self.options.idle_exit is None and (self.options.adopt or self.options.successor):
            launch = self.directory.read_launch()
            self.options = dataclasses.replace(self.options, idle_exit=launch.idle_exit)

    def _open_mailbox(self) -> None:
        try:
            self._mailbox = Mailbox(names.mailbox(self._shared_id, "supervisor"), create=True, bytes_max=512)
        except (posix_ipc.Error, OSError) as error:
            self._say(f"no control mailbox ({error}): clients are noticed a quarter of a second later")
            return
        self._selector.register(self._mailbox.fileno(), selectors.EVENT_READ, self._read_mailbox)

    # -- servers ------------------------------------------------------------------------------------------------

    def _load_servers(self) -> Servers:
        """What runs in the children, loaded before the first fork, so that a restart has nothing to load."""
        if self._loaded is None:
            self._loaded = self._make_servers()
            children.freeze()
        return self._loaded

    def _start(self, role: Role) -> None:
        self._load_servers()
        try:
            children.start(role, self._superblock, self._own_pidfd, self._close_in_child)
        except OSError as error:
            role.lack = lack.of_error(error)
            self._say(f"cannot start {role.name}: {error}")
            self._died(role)
            return
        self._watch(role)

    def _watch(self, role: Role) -> None:
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
            self._say(f"{role.name} (process {pid}) {how} while the node was stopping: it is started once more")
            self._start(role)
            return
        if draining and not (role.kind == "store" and workers_running(self._roles)):
            role.set_state(self._superblock, DOWN)
            # the collector is not waited for at the start: it may be told to end before it can listen
            if how not in ("ended with exit code 0", "ended") and (role.vital or how != "was killed by SIGTERM"):
                self._say(f"{role.name} (process {pid}) {how} while the node was stopping; see {role.log}")
            self._clients.scan()
            return
        if role.lack:
            what = lack.WORDS[role.lack]
            if role.vital and self._superblock.state in (CREATING, STARTING):  # it never was up: it says why, and ends
                role.set_state(self._superblock, FAILED)
                figures = lack.figures(role.lack)
                said = f"{role.name} finds no {what}{f' ({figures})' if figures else ''}"
                self._drain.begin(f"{said}; {lack.advice(role.lack)}; see {role.log}", 1)
                return
            self._say(f"{role.name} finds no {what} and is started again until there is some")
        else:
            self._say(f"{role.name} (process {pid}) {how}")
        self._died(role)
        # only now: before it is known that the server comes back, nobody would wait for what it owes to dead clients
        self._clients.scan()

    def _owes(self, role: Role) -> bool:
        """A queue worker that did not end by itself: what was submitted to it would go with the node."""
        lost = self._superblock.get("ending") == CONSTANTS["ENDING_REMOVED"]
        if role.kind != "queue_worker" or role.finishing or role.failed or self._drain.killed or lost:
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
            if role.lack:
                raised = self._superblock.server_get(server, "alarms") | lack.ALARMS[role.lack]
                self._superblock.server_set(server, "alarms", raised)
        if not role.failed:
            role.set_state(self._superblock, DOWN)
            role.count_restart(self._superblock)
            if role.restart_at is not None and role.restart_at <= now:
                self._start(role)
            return
        role.set_state(self._superblock, FAILED)
        if not role.vital:
            self._say(f"{role.name} cannot run: the node runs on without it, and its files only grow; see {role.log}")
            return
        self._check_alarms()
        how = (
            f"{role.name} cannot run"
            if fatal
            else f"{role.name} died {children.DEATHS_MAX} times within {children.DEATHS_WINDOW_S:.0f} s"
        )
        printed = children.last_lines(role.log)
        last = f"; its last words were:\n{printed}" if printed else f"; see {role.log}"
        if role.catalog_cut:
            # what is on disk stays as it was found; a catalog that was whole when the node started is saved at its end
            self._catalog_cut = self._superblock.state in (CREATING, STARTING)
            self._drain.begin(
                f"the catalog of {self.directory.path} was cut, or is an older copy{last}", EXIT_DO_NOT_RESTART
            )
        elif role.kind == "queue_worker" and any(
            other.kind == "queue_worker" and not other.failed for other in self._roles
        ):
            self._superblock.ring_all()  # who waits for it need not wait
            self._say(f"{how}: the node runs on without its queues, and the next start tries again{last}")
        else:
            self._drain.begin(f"{how}{last}", EXIT_DO_NOT_RESTART if fatal else 1)

    def _failed_workers(self) -> list[Role]:
        return [role for role in self._roles if role.kind == "queue_worker" and role.failed]

    def _servers_that_sweep(self) -> list[int]:
        """Servers that have to be done with a client before its slot is freed: all that run or will run again."""
        return [
            server for role in self._roles if role.running or role.restart_at is not None for server in role.servers
        ]

    def _server_pids(self) -> list[int]:
        return [role.identity.pid for role in self._roles if role.identity is not None]

    def _node_pids(self) -> list[int]:
        return [os.getpid(), *self._server_pids()]

    def _close_in_child(self) -> None:
        """In a child, right after the fork: close what is the supervisor's. Nothing is unregistered: the epoll set is
        shared.
        """
        self.options.close_in_child()
        self.directory.forget_lock()
        if self._tie is not None:
            self._tie.close()
        self._selector.close()
        if self._control is not None:
            self._control.close(remove=False)
        if self._mailbox is not None:
            self._mailbox.close()
        self._clients.close(unregister=False)
        self._wake_read.close()
        self._wake_write.close()
        for role in self._roles:
            if role.pidfd >= 0:
                os.close(role.pidfd)
        self._superblock.close()

    def _reap_strangers(self) -> None:
        """As process 1 of a container: collect orphans that were handed to us."""
        mine = set(self._server_pids())
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in mine:
                os.waitpid(found.si_pid, 0)

    # -- signals, mailbox, alarms, idleness ---------------------------------------------------------------------

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signals += 1

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass

    def _stop_for_signal(self) -> None:
        count, self._signals = self._signals, 0
        if self._superblock.state == DRAINING:
            self._drain.force("a second signal came")
        else:
            self._drain.begin("", 0)
            if count > 1:
                self._drain.force("two signals came")

    def _read_mailbox(self) -> None:
        assert self._mailbox is not None
        for _turn in range(64):
            message = self._mailbox.receive()
            if message is None:
                return
            slot = message.get("slot")
            if isinstance(slot, int) and 0 <= slot < CLIENT_SLOTS:
                self._clients.look(slot)
            if message.get("kind") == "deregister":
                self._life_at = 0.0  # what was the client's alone goes at once

    def _check_alarms(self) -> None:
        """The alarms of the node: what the machine is short of, and what the servers raise themselves."""
        for role in self._roles:
            if role.lack and role.running and role.served(self._superblock):
                role.lack = 0
                for server in role.servers:
                    self._superblock.server_set(server, "lacks", 0)
        for line in self._alarms.check(any(role.failed and role.vital for role in self._roles)):
            self._say(line)

    def _check_tie(self) -> None:
        """Are directory and shared memory still those of this node? Without them nobody finds what is confirmed."""
        ending = self._tie.look() if self._tie is not None else 0
        if ending and not self._superblock.get("ending"):
            self._superblock.set("ending", ending)
            # what has no directory any more cannot be saved, so nobody waits long for it
            hopeless = ending == CONSTANTS["ENDING_REMOVED"]
            reason = described(ending, self.directory.path)
            self._drain.begin(reason, 1, timeout=LOST_STOP_TIMEOUT_S if hopeless else None)
        if not ending and self._control is not None:
            self._mend_control(self._control)

    def _mend_control(self, control: ControlServer) -> None:
        """Be found again after somebody removed or replaced the socket."""
        name = self.directory.control_socket
        try:
            if control.mend():
                self._say(
                    f"{name} was removed or replaced, and is made again; if files were copied into the directory of "
                    "this node, stop it and restore a whole backup: it does not notice files that were overwritten"
                )
        except Error as error:
            self._say(f"{name} was removed or replaced, and cannot be made again: {error}; trying again each second")

    def _check_idle(self, now: float) -> None:
        own = set(self._server_pids())
        if any(view.pid not in own for view in self._clients.clients()):
            self._seen_client = now
        if self._control is not None:
            self._seen_client = max(self._seen_client, self._control.asked_at)
        limit = self.options.idle_exit
        if (
            limit is not None
            and (self._announced or self._outside_since is not None)
            and self._superblock.state == RUNNING
            and now - self._seen_client > limit
        ):
            self._drain.begin(f"no client for {limit:g} s", 0)

    def _looks_after_queues(self) -> bool:
        return self._superblock.state == RUNNING and self._desk.has_leases()

    def _sight(self, now: float) -> Sight:
        """What is to be seen of queues that may go by themselves."""
        superblock, own = self._superblock, set(self._server_pids())
        serving = {
            server - SERVER_WORKER_FIRST
            for server in range(SERVER_WORKER_FIRST, superblock.servers_n)
            if superblock.server_get(server, "state") == READY
        }
        clients = {view.client_epoch for view in self._clients.clients() if view.pid not in own}
        return Sight(now, self._statistics.queues(self._catalog.leased), serving, clients)

    def _say(self, message: str) -> None:
        """A line for people, in the log and in `status`."""
        said = self._repeats.passed(message)
        if said is None:
            return
        line = readable(f"{children.stamp()} {said}")
        self.messages = [*self.messages, line][-MESSAGES_KEPT:]
        with contextlib.suppress(OSError, ValueError):
            print(f"warren: {line}", file=sys.stderr, flush=True)

    # -- requests about the node --------------------------------------------------------------------------------

    def _table(self) -> Table:
        return {
            requests.Ping: self._ping,
            requests.Status: self._status,
            requests.Settings: self._settings,
            requests.Stop: self._stop,
            requests.Note: self._note,
            **self._desk.table(),
        }

    def _ping(self, _asked: requests.Ping) -> dict[str, Any]:
        return {"pid": os.getpid(), "state": NODE_STATES[self._superblock.state]}

    def _status(self, asked: requests.Status) -> dict[str, Any]:
        return self._statistics.report(
            self.directory, self._node, self._roles, self._catalog, self.messages, asked.pattern, asked.most
        )

    def _settings(self, _asked: requests.Settings) -> dict[str, Any]:
        return {
            "settings": msgspec.structs.asdict(self._node.settings),
            "node_id": self._node.node_id,
            "shared_id": self._shared_id,
            "node_epoch": self._node.node_epoch,
        }

    def _stop(self, asked: requests.Stop) -> dict[str, Any]:
        if self._superblock.state == DRAINING and asked.force:
            self._drain.force("it was asked for")
        else:
            self._drain.begin("asked by `stop`", 0, timeout=asked.timeout)
            if asked.force:
                self._drain.force("it was asked for")
        return {"pid": os.getpid()}

    def _note(self, asked: requests.Note) -> dict[str, Any]:
        self._say(asked.text[:500])
        return {}

    # -- ending -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Every server is gone: remove everything."""
        lost = self._tie is not None and self._tie.look_now() in (REMOVED, MOVED)  # its path may be another node's
        self._drain.end(self._control, None if lost or self._catalog_cut else self._declarations)
        remains.remove(self.directory, self._node, self._shared_id, self._superblock)

    def _close(self) -> None:
        if hasattr(self, "_clients"):
            self._clients.close()
        if self._control is not None:
            self._control.close()
        if self._mailbox is not None:
            self._selector.unregister(self._mailbox.fileno())
            self._mailbox.close()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
        os.close(self._own_pidfd)
        if self._tie is not None:
            self._tie.close()
        if hasattr(self, "_superblock"):
            self._superblock.close()
