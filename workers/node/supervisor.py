"""The supervisor: one run of a node under the directory's lock (supervise.py), from its opening to its end. Its parts:
the servers (upkeep.py), what is said of the start (start_watch.py), the clients, the catalog's desk, alarms, status.

One thread, one selector loop; nothing in it blocks. A node is CREATING → STARTING → RUNNING → DRAINING → STOPPED.

Invariants
  It holds the directory's lock from before it changes anything until everything is removed; its children never do.
  A superblock in use is never replaced.
  The superblock is unlinked last: as long as it is there, it names what is left.
Crash points (its successor holds the lock, so it is alone)
  before the superblock: node.json has the new epoch, what the superblock is to be called, and the semaphores' keys;
  the next start removes the semaphores
  CREATING, STARTING, RUNNING with a living server or client: adopted; clients notice nothing
  the same with nobody left alive, or STOPPED: the remains are removed, and the node starts cold
  DRAINING: the drain is finished first
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any

import msgspec

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog import ownership
from warren.engine.catalog.catalog import FILE_NAME, Catalog
from warren.engine.catalog.node_directory import Launch, NodeDirectory, NodeFile, changed_settings
from warren.engine.config import Settings
from warren.engine.errors import (
    CatalogCut,
    ClosedError,
    Error,
    StoreError,
)
from warren.engine.kernel.atomic_file import explained
from warren.engine.kernel.paths import queues_of
from warren.engine.saying import Repeats, counted, readable
from warren.ipc import doorbells
from warren.ipc.identity import Identity
from warren.ipc.layout import CLIENT_SLOTS, CONSTANTS, QUEUE_GONE_ROWS, SERVER_WORKER_FIRST
from warren.ipc.mailbox import AHEAD_MAX, Mailbox
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock
from warren.workers.node import absence, children, cold_start, gateway_roles, room
from warren.workers.node.alarms import Alarms
from warren.workers.node.children import Role
from warren.workers.node.clients_watch import ClientsWatch
from warren.workers.node.control_server import ControlServer, Later, Table
from warren.workers.node.desk import Desk
from warren.workers.node.drain import Drain
from warren.workers.node.options import Options, Servers
from warren.workers.node.queue_life import Sight
from warren.workers.node.start_watch import StartWatch
from warren.workers.node.status import NODE_STATES, SAMPLE_S, Statistics
from warren.workers.node.topic_life import TopicLife
from warren.workers.node.upkeep import Upkeep
from warren.workers.process import abandoned, logs, remains, requests
from warren.workers.process.lack import size
from warren.workers.process.tie import (
    COLLECTOR,
    MOVED,
    REMOVED,
    STORE,
    Tie,
    described,
)

STARTING, RUNNING, DRAINING = CONSTANTS["NODE_STARTING"], CONSTANTS["NODE_RUNNING"], CONSTANTS["NODE_DRAINING"]
READY = CONSTANTS["SERVER_READY"]

LOST_STOP_TIMEOUT_S = 5.0  #: of a node whose directory was removed
LOAD_LATER_S = 0.5
FIRST_CLIENT_S = 5.0  #: a node that a program started waits so long at least for it, whatever idle_exit says
ANSWER_LATER_S = 0.005  #: how often it is looked for an answer that somebody waits for
LIFE_S = 0.25  #: how often it is looked which queues have to go
MESSAGES_KEPT = 50

log = logging.getLogger("warren.node")


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
        self._began = time.monotonic()
        self._start: StartWatch
        self._node: NodeFile
        self._shared_id: int
        self._tie: Tie | None = None
        self._superblock: Superblock
        self._catalog: Catalog
        self._declarations: catalog_log.Writer
        self._roles: list[Role] = []
        self._upkeep: Upkeep
        self._selector = selectors.DefaultSelector()
        self._control: ControlServer | None = None
        self._mailbox: Mailbox | None = None
        self._clients: ClientsWatch
        self._statistics: Statistics
        self._alarms: Alarms
        self._wake_read, self._wake_write = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._signals: list[int] = []
        self._desk: Desk
        self._drain: Drain
        self._created = False
        self._next_sample = 0.0
        self._life_at = 0.0
        self._seen_client = 0.0
        self._had_client = False

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start or take over the node, serve until it ends; returns the exit code."""
        handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        wakeup = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        try:
            try:
                with explained(f"cannot start the node of {self.directory.path}", limits_alone=True):
                    self._open()
            except BaseException as error:
                self._abandon()
                logs.end(terminal_only=True)  # who started it prints the error itself
                log.error("ends: %s", str(error) or type(error).__name__)
                raise
            self._loop()
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._close()
        return self._drain.code

    def _open(self) -> None:
        changes, chosen = room.chosen(self.directory, self.options.changes)
        if not self.directory.exists():  # a refusal leaves nothing
            gateway_roles.check(self.directory.path, changed_settings(Settings(), changes).checked())
        self._node = self.directory.open_or_make(changes)
        ownership.share(self._node.settings.group)
        options, path = self.options, self.directory.log_file("supervisor")
        logs.begin("supervisor", path, self._node.settings, streams=options.detached, terminal=not options.detached)
        log.info("%s", logs.starts(self.directory.path, self._node.settings))
        if chosen:
            self._say(chosen, WARNING)
        loaded, unreadable = self._read_catalog()
        # Before anything is removed, also of what a killed node left in memory.
        absence.refuse(self.directory.path, self._node.node_epoch, loaded.catalog if loaded is not None else None)
        found = cold_start.find(self.directory, self._node, self._say)
        if found is None and self.options.successor:
            raise ClosedError(f"nothing is left of the node of {self.directory.path} that could be taken over")
        if found is None:
            gateway_roles.check(self.directory.path, self._node.settings)
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
            abandoned.end_earlier(self.directory, self._say)
            self._clean()
            self._node, self._catalog, self._superblock = cold_start.create(
                self.directory, self._node, self._catalog, self._say, lambda: bool(self._signals)
            )
            self._created = True
            try:
                doorbells.make(self.directory.itself)
            except OSError as error:
                self._say(f"no doorbells in {self.directory.path} ({error.strerror}): event loops wake later", WARNING)
        else:
            self._superblock = found
            log.info("takes over the node of supervisor %d, which is gone", found.supervisor.pid)
            self._take_launch()
        if not self._catalog.log:  # the start has saved another one, or there never was a log
            loaded = catalog_log.Loaded(self._catalog, None)
        self._declarations = catalog_log.Writer(self.directory.path, loaded)
        superblock = self._superblock
        self._shared_id = superblock.shared_id
        self._tie = Tie(self.directory.path, superblock)
        superblock.set_supervisor(Identity.current())
        superblock.set("catalog_version", self._catalog.version)
        workers_n = superblock.workers_n
        settings = room.with_images(self._node.settings, superblock.get("images_n"))
        # a predecessor may have told the version and not got further
        superblock.queues_gone(range(QUEUE_GONE_ROWS), self._catalog.version)
        superblock.queues_changed(range(workers_n), self._catalog.version)
        superblock.topics_changed(self._catalog.version)
        self._tie.watch(STORE, COLLECTOR, *map(queues_of, range(workers_n)))
        self._roles = children.make_roles(
            lambda pidfd: self._load_servers().store(self.directory.path, self._shared_id, settings, pidfd),
            lambda index: (
                lambda pidfd: self._load_servers().worker(self.directory.path, self._shared_id, index, settings, pidfd)
            ),
            lambda pidfd: self._load_servers().topics(self.directory.path, self._shared_id, settings, pidfd),
            lambda pidfd: self._load_servers().collector(self.directory.path, self._shared_id, settings, pidfd),
            workers_n,
            superblock.topic_server,
            self.directory.log_file,
            settings,
        )
        self._roles += gateway_roles.make(self.directory.path, self.directory.log_file, settings)
        self._statistics = Statistics(superblock)
        self._upkeep = Upkeep(
            self.directory.path,
            superblock,
            self._roles,
            self._selector,
            self.options.stop_timeout,
            own_pidfd=self._own_pidfd,
            load=self._load_servers,
            close_in_child=self._close_in_child,
            scan=self._scan,
            alarms=self._check_alarms,
            say=self._say,
            no_room=self.options.no_room,
        )
        self._drain = self._upkeep.drain
        self._start = StartWatch(
            self.directory.path,
            self._node.node_id,
            f"{settings.profile}{f' ({chosen})' if chosen else ''}",
            superblock,
            self._upkeep,
            self.options,
            self._began,
            self._created,
            self._ready,
            self._say,
        )
        self._alarms = Alarms(superblock, self.directory.path, settings, self._node_pids)
        self._clients = ClientsWatch(
            superblock,
            self._selector,
            self._upkeep.that_sweep,
            self._upkeep.pids,
            lambda view: doorbells.forget(self.directory.itself, view.slot, view.generation),
        )
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wakeups)
        self._open_mailbox()
        topic_role = next(role for role in self._roles if role.kind == "topic_worker")
        topics = TopicLife(self.directory.path, superblock, topic_role, self._upkeep.start, self._tie)
        self._desk = Desk(
            self.directory.path,
            superblock,
            self._catalog,
            self._declarations,
            self._tie,
            self._clients,
            self._node.settings.workers,  # those beyond only keep what they have
            lambda: {role.index for role in self._upkeep.failed_workers()},
            topics,
            self._say,
        )
        for role in self._roles:
            if found is not None and children.adopt(role, superblock, self._tie.directory):
                self._upkeep.watch(role)
        if self._catalog.topics or topic_role.running:
            topics.want()
        if superblock.state == DRAINING:
            self.begin_anew = not self.options.successor
            self._drain.begin("the drain that a killed supervisor began is finished first", 0, again=True)
        else:
            self._control = ControlServer(self.directory, self._selector, self._table())
            if superblock.state != RUNNING:
                superblock.set_state(STARTING)
            for role in self._roles:
                if role.wanted and not role.running and role.kind != gateway_roles.GATEWAY:
                    self._upkeep.start(role)
        self.directory.write_launch(Launch(self.options.idle_exit))
        self._clients.scan()
        self._seen_client = time.monotonic()
        # one that took over answers first, and loads what it does not need yet when it has time
        self._load_at = self._seen_client + LOAD_LATER_S
        self._next_sample = self._load_at if self._loaded is None else 0.0

    def _abandon(self) -> None:
        """The start failed: end what was started, and remove what was made. What was taken over goes on."""
        if hasattr(self, "_upkeep"):
            self._upkeep.end_own()
        if self._created:
            remains.remove(self.directory, self._node, self._shared_id, self._superblock, self._say)
        elif self._tie is not None:  # servers that ended meanwhile left what they have to this process
            self._superblock.set("supervisor_pid", 0)
            remains.remove_lost(self._superblock, self._tie)

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
        if (at := self._drain.due) is not None:
            due.append(at)
        if self._looks_after_queues():
            due.append(self._life_at)
        if not self._start.announced and self._superblock.state in (STARTING, RUNNING):
            due.append(now + self._start.poll_s)
        if self._control is not None and self._control.owes:
            due.append(now + ANSWER_LATER_S)
        return max(0.0, min(due) - now)

    def _tick(self, now: float) -> None:
        if self._superblock.state == DRAINING and not self._drain.began:
            # a server that found no supervisor has begun it just when this one came: without this, nobody would be told
            # to end, nor killed when the time to stop is over
            self._end_for(self._superblock.get("ending"), again=True)
        if self._signals:
            self._stop_for_signal()
        if not self._start.announced and self._superblock.state in (STARTING, RUNNING) and self._start.up():
            self._seen_client = time.monotonic()
            self._tell_up()
        if not self._start.announced:
            self._look_after_start(now)
        self._upkeep.start_those_due(now)
        if self._control is not None:
            self._control.turn()
            self._desk.tick(now)
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
                self._upkeep.reap_strangers()
        if self._superblock.state == DRAINING:
            self._drain.turn(now)

    def _tell_up(self) -> None:
        workers = counted(self._superblock.workers_n, "queue worker")
        topics = ", topics" if any(role.kind == "topic_worker" and role.running for role in self._roles) else ""
        log.info("serves after %.3f s: store server, %s%s", time.monotonic() - self._began, workers, topics)

    def _look_after_start(self, now: float) -> None:
        if self._superblock.state == DRAINING and not self.begin_anew:
            return
        if self.options.left():  # then nobody knows of the node
            self.begin_anew = False
            self._drain.begin("the process that started it ended before it was up", 1)
            return
        self._start.look(now)

    # -- beginning ----------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """What killed nodes of this user left, of which no process has anything any more."""
        try:
            found = [left for left in abandoned.clean(most=abandoned.AT_A_START) if not left.kept]
        except RegionError as error:
            self._say(f"it was not looked what killed nodes have left: {error.strerror}", WARNING)
            return
        if found:
            whose = ", ".join(sorted({left.directory or f"{left.shared_id:012x}" for left in found})[:3])
            self._say(
                f"removed what {counted(len(found), 'killed node')} had left in shared memory, "
                f"{size(sum(left.bytes for left in found))}: {whose}{', …' if len(found) > 3 else ''}"
            )

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
            self._mailbox = Mailbox(self.directory.itself, "supervisor")
        except OSError as error:
            self._say(f"no control mailbox ({error}): clients are noticed a quarter of a second later", WARNING)
            return
        self._selector.register(self._mailbox.fileno(), selectors.EVENT_READ, self._read_mailbox)

    # -- servers ------------------------------------------------------------------------------------------------

    def _load_servers(self) -> Servers:
        """What runs in the children, loaded before the first fork, so that a restart has nothing to load."""
        if self._loaded is None:
            self._loaded = self._make_servers()
            children.freeze()
        return self._loaded

    def _node_pids(self) -> list[int]:
        return [os.getpid(), *self._upkeep.pids()]

    def _close_in_child(self, role: children.Role) -> None:
        """In a child, right after the fork: close what is the supervisor's. Nothing is unregistered: the epoll set is
        shared. A server works in the data directory from now on.
        """
        self.options.close_in_child()
        self.directory.forget_lock()
        if self._tie is not None:
            if role.kind != gateway_roles.GATEWAY:
                self._tie.enter()
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

    # -- signals, mailbox, alarms, idleness ---------------------------------------------------------------------

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(OSError):  # none is there; or the system is short of memory, and select tells again
            while self._wake_read.recv(4096):
                pass

    def _stop_for_signal(self) -> None:
        came, self._signals = self._signals, []
        if self._superblock.state == DRAINING:
            self._drain.force("a second signal came")
        else:
            self._drain.begin(f"{signal.Signals(came[0]).name} came", 0)
            if len(came) > 1:
                self._drain.force("two signals came")

    def _read_mailbox(self) -> None:
        assert self._mailbox is not None
        for _turn in range(AHEAD_MAX):
            message = self._mailbox.receive()
            if message is None:
                return
            slot = message.get("slot")
            if isinstance(slot, int) and 0 <= slot < CLIENT_SLOTS:
                self._clients.look(slot)
            if message.get("kind") == "deregister":
                self._life_at = 0.0  # what was the client's alone goes at once

    def _scan(self) -> None:
        self._clients.scan()

    def _check_alarms(self) -> None:
        """The alarms of the node: what the machine is short of, and what the servers raise themselves."""
        for role in self._roles:
            if role.lack and role.running and role.served(self._superblock):
                role.lack = 0
                for server in role.servers:
                    self._superblock.server_set(server, "lacks", 0)
        failed = any(role.failed and role.vital for role in self._roles)
        for line in self._alarms.check(failed, children.failing(self._roles, time.monotonic())):
            self._say(line, INFO if line.endswith(" cleared") else WARNING)

    def _check_tie(self) -> None:
        """Are directory and shared memory still those of this node? Without them nobody finds what is confirmed."""
        ending = self._tie.look() if self._tie is not None else 0
        if ending and not self._superblock.get("ending"):
            self._superblock.set("ending", ending)
            self._end_for(ending)
        if not ending and self._control is not None:
            self._mend_control(self._control)

    def _end_for(self, ending: int, *, again: bool = False) -> None:
        # what has no directory any more cannot be saved, so nobody waits long for it
        timeout = LOST_STOP_TIMEOUT_S if ending == CONSTANTS["ENDING_REMOVED"] else None
        reason = described(ending, self.directory.path) or "a server has begun it"
        self._drain.begin(reason, 1, timeout=timeout, again=again)

    def _mend_control(self, control: ControlServer) -> None:
        """Be found again after somebody removed or replaced the socket."""
        name = self.directory.control_socket
        try:
            if control.mend():
                self._say(
                    f"{name} was removed or replaced, and is made again; if files were copied into the directory of "
                    "this node, stop it and restore a whole backup: it does not notice files that were overwritten",
                    WARNING,
                )
        except Error as error:
            self._say(
                f"{name} was removed, replaced or closed to this user, and cannot be made again: {error}; trying again "
                "each second",
                WARNING,
            )

    def _check_idle(self, now: float) -> None:
        own = set(self._upkeep.pids())
        used = gateway_roles.connections(self._superblock, self._roles)
        if used or any(view.pid not in own for view in self._clients.clients()):
            self._seen_client, self._had_client = now, True
        if self._control is not None:
            self._seen_client = max(self._seen_client, self._control.asked_at)
        limit = self.options.idle_exit
        if limit is not None and self.options.adopt and not self.options.successor and not self._had_client:
            limit = max(limit, FIRST_CLIENT_S)  # who started it is on its way, and on a busy machine that takes a while
        if (
            limit is not None
            and (self._start.announced or self._start.outside_since is not None)
            and self._superblock.state == RUNNING
            and now - self._seen_client > limit
        ):
            self._drain.begin(f"no client for {limit:g} s", 0)

    def _looks_after_queues(self) -> bool:
        return self._superblock.state == RUNNING and self._desk.has_leases()

    def _sight(self, now: float) -> Sight:
        """What is to be seen of queues that may go by themselves. A gateway owns queues like any client."""
        superblock = self._superblock
        own = {
            role.identity.pid
            for role in self._roles
            if role.identity is not None and role.kind != gateway_roles.GATEWAY
        }
        serving = {
            server - SERVER_WORKER_FIRST
            for server in superblock.queue_workers
            if superblock.server_get(server, "state") == READY
        }
        clients = {view.client_epoch for view in self._clients.clients() if view.pid not in own}
        return Sight(now, self._statistics.queues(self._catalog.leased), serving, clients)

    def _say(self, text: str, level: int = INFO, *, exc_info: bool = False) -> None:
        """A line for people, in the log and in `status`."""
        said = self._repeats.passed(text)
        if said is None:
            return
        self.messages = [*self.messages, readable(f"{logs.stamp(time.time())} {said}")][-MESSAGES_KEPT:]
        log.log(level, "%s", said, exc_info=exc_info)

    # -- requests about the node --------------------------------------------------------------------------------

    def _table(self) -> Table:
        return {
            requests.Ping: self._ping,
            requests.Status: self._status,
            requests.Settings: self._settings,
            requests.Stop: self._stop,
            requests.Ended: lambda _asked: self._drain.outcome,
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

    def _stop(self, asked: requests.Stop) -> dict[str, Any] | Later:
        if self._superblock.state != DRAINING or not asked.force:
            self._drain.begin("asked by `stop`", 0)
        if asked.finish_s is not None:
            self._drain.extend(asked.finish_s)
        if asked.force:
            self._drain.force("that was asked for", asked=True)
        return self._drain.outcome if asked.at_end else {"pid": os.getpid()}

    def _note(self, asked: requests.Note) -> dict[str, Any]:
        self._say(asked.text[:500], WARNING)
        return {}

    # -- ending -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Every server is gone: remove everything."""
        lost = self._tie is not None and self._tie.look_now() in (REMOVED, MOVED)  # its path may be another node's
        self._drain.end(self._control, None if lost or self._upkeep.catalog_cut else self._declarations)
        remains.remove(self.directory, self._node, self._shared_id, self._superblock, self._say)
        now = time.monotonic()
        log.info("%s", logs.ended(self._drain.reason, self._drain.began - self._began, now - self._drain.began))

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
