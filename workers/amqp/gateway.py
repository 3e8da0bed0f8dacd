"""One gateway process: a client of the node that speaks AMQP to programs. One event loop, one attachment.

It is started by the supervisor, and ends when it is told to (SIGTERM), when the node is stopped, and when nobody is
left of it. Then its clients hear connection.close (320); what it held returns to the queues.

Invariants
  The state READY is said when it listens; the number of its connections stands in the superblock, so a node that starts
  and ends with its users does not end under them.
  No connection, however it behaves, stops another one: nothing here blocks, what blocks is in threads.
Crash points: killed at any instant, its sockets close, its slot is swept like any client's, and the supervisor starts
another one. Its Unix sockets stay as files, which the next one replaces if no other gateway listens there
(unix_sockets.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from warren.engine._core import AmqpReader
from warren.engine.addresses import addresses
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.errors import Error, NodeNotRunning
from warren.engine.saying import Voice, counted
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.amqp import control, listener
from warren.workers.amqp.backlog import READ_BYTES, Backlog
from warren.workers.amqp.begun import Begun
from warren.workers.amqp.connection import Connection
from warren.workers.amqp.counts import Counts, section_bytes
from warren.workers.amqp.faults import ConnectionFault
from warren.workers.amqp.interfaces import Channel, Link
from warren.workers.amqp.login import Logins
from warren.workers.amqp.shared_file import SharedFile
from warren.workers.amqp.taps import Taps
from warren.workers.amqp.unix_sockets import UnixSockets
from warren.workers.amqp.users import Users
from warren.workers.amqp.watch import Watch
from warren.workers.client.client import Client
from warren.workers.faces import node as nodes
from warren.workers.faces.aio.base import run_blocking
from warren.workers.faces.aio.loop import Loop
from warren.workers.process import logs
from warren.workers.process.tie import Tie, described

log = logging.getLogger("warren.amqp")
say = Voice()

READY, STOPPING = CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_STOPPING"]
DRAINING, STOPPED = CONSTANTS["NODE_DRAINING"], CONSTANTS["NODE_STOPPED"]
#: alarms that block publishers, as RabbitMQ names them to clients
ALARMS = ((CONSTANTS["ALARM_MEMORY"], "memory"), (CONSTANTS["ALARM_DISK"], "disk"))
TICK_S = 0.25
LOOK_S = 1.0
ATTACH_S = 30.0
#: between two looks whether the gateway is to end
ATTACH_LOOK_S = 0.5
#: what part of the memory that the node may use is for messages that wait in all gateways, and those that are begun
OWN_PARTS = 8
#: what they have before the supervisor has said how much that is
FIRST_BYTES = 16 << 20
#: without supervisor and servers for so long, nobody will start them again
ALONE_S = 10.0
#: descriptors that are no connection's: files that are opened now and then, messages in files of their own, questions
SPARE_DESCRIPTORS = 64
#: handshakes of TLS at once, as far as they are a quarter of the descriptors: others wait to be accepted
TLS_HANDSHAKES = 512
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
#: at the end: for what is not confirmed yet, and for clients that say close-ok
CONFIRM_S, GOODBYE_S = 1.0, 2.0

#: makes what speaks for a channel
ChannelMaker = Callable[[Any, int], Channel]


class Gateway:
    """What the connections share."""

    loop: Loop
    taps: Taps
    events: asyncio.AbstractEventLoop
    users: Users
    logins: Logins
    counts: Counts

    def __init__(self, directory: Path, index: int, channel: ChannelMaker) -> None:
        self.path = NodeDirectory(directory).path  #: the data directory
        self.index = index
        self.channel = channel
        node = NodeDirectory(self.path).read()
        self.settings: Settings = node.settings
        self.node_id = node.node_id
        self.connections: set[Link] = set()
        self.room = memoryview(bytearray(READ_BYTES))
        self.backlog = Backlog(self.settings.amqp_backlog_bytes)
        self.begun = Begun(self.settings.amqp_backlog_bytes, AmqpReader.bodies_apart)
        self._bound_memory(0)
        self.watch = Watch(self)
        self.alarm = ""  #: what the node is short of, "": nothing: publishers are not blocked
        self.stopping = False
        self.began = time.time()
        self.listening: list[str] = []  #: addresses
        self.opened_n = 0  #: connections since it began
        self.unix = UnixSockets(self.path, index, self.settings.amqp_processes)
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Event
        self._why = ""
        self._alone_since: float | None = None
        self._full_said = 0.0
        self.connections_max = self.settings.amqp_connections_max  #: as many as descriptors allow
        self._left: asyncio.Event

    # -- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to end; returns the exit code. Raises UsageError, Error."""
        self.events = asyncio.get_running_loop()
        self.events.set_exception_handler(_failed)
        self._end, self._left = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.events.add_signal_handler(number, self.end, "it was told to")
        self.users = await run_blocking(Users, self.path, say)
        began = time.monotonic()
        node = await self._attached()
        if node is None:
            log.info("%s", logs.ended(self._why, time.monotonic() - began, 0.0))
            return 0
        client = nodes.client_of(node)
        self.loop = Loop(client)
        self.taps = Taps(self.loop)
        superblock = client.attachment().superblock
        tie = Tie(self.path, superblock)
        self.logins = Logins(self.users)
        servers: list[listener.Listening] = []
        shared: SharedFile | None = None
        began = time.monotonic()
        try:
            if self.settings.amqp_processes > 1:
                shared = await run_blocking(self._share)
            self.counts = Counts(shared)
            asked = await control.serve(self)
            servers.append(asked)
            await run_blocking(self._open_unix, shared)
            if not self._end.is_set():
                unix = {path: one.sock for path, one in self.unix.held.items()}
                descriptors = _descriptors_left()
                shaking = min(TLS_HANDSHAKES, max(1, descriptors // 4))
                listening, self.listening = await listener.listen(
                    self.settings, unix, shaking, lambda: Connection(self)
                )
                servers += listening
                if any(one.kind == "tls" for one in addresses("amqp", self.settings.amqp)):
                    descriptors -= shaking
                self.connections_max = min(self.connections_max, max(1, descriptors))
                superblock.gateway_set(self.index, "state", READY)
                most = counted(self.connections_max, "connection")
                log.info("serves AMQP at %s, up to %s", ", ".join(self.listening), most)
            await self._look(superblock, client, tie)
            if superblock.gateway_get(self.index, "state") == READY:
                superblock.gateway_set(self.index, "state", STOPPING)
            stopping = time.monotonic()
            for server in servers[1:]:
                server.close()
            await self._goodbye()
        finally:
            for server in servers:
                server.close()
            control.remove(self)
            self.unix.close(remove=shared is None or superblock.state >= DRAINING)
            if shared is not None:
                shared.close()
            tie.close()
            await run_blocking(self.logins.close)
            with contextlib.suppress(Error):  # the node may be gone
                await self.loop.close(node.close)
        log.info("%s", logs.ended(self._why, stopping - began, time.monotonic() - stopping))
        return 0

    async def _attached(self) -> nodes.Node | None:
        """The node; None when the gateway is to end: a node that is being stopped is waited for by nobody. Raises what
        `warren.attach` raises, when that is not a matter of time.
        """
        deadline = time.monotonic() + ATTACH_S
        while not self._end.is_set():
            try:
                name = f"amqp-{self.index}"
                return nodes.Node(await run_blocking(Client, self.path, name, ATTACH_LOOK_S, for_many=True))
            except NodeNotRunning:
                if time.monotonic() > deadline or not NodeDirectory(self.path).locked():
                    raise
        return None

    def end(self, why: str) -> None:
        """Begin to end; `why` is for the log."""
        self._why = self._why or why
        self._end.set()

    def _share(self) -> SharedFile:
        room = section_bytes(self.settings.amqp_connections_max)
        return SharedFile(self.path, self.index, self.settings.amqp_processes, room)

    def _open_unix(self, shared: SharedFile | None) -> None:
        """Open the Unix sockets, or get them from a gateway that has them."""
        paths = [self.path / one.path for one in addresses("amqp", self.settings.amqp) if one.kind == "unix"]
        if not paths:
            return
        if shared is None:
            self.unix.open(paths)
            return
        with shared.binding(ATTACH_S, self._end.is_set) as alone:
            if alone:
                self.unix.open(paths)

    async def _look(self, superblock: Superblock, client: Client, tie: Tie) -> None:
        """Look at the node now and then, until it is time to end."""
        look_at = 0.0
        while not self._end.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), TICK_S)
            now = time.monotonic()
            superblock.gateway_set(self.index, "connections", len(self.connections))
            self._look_at_alarms(superblock.get("alarms"))
            self._bound_memory(superblock.get("memory_own_limit"))
            if superblock.state >= DRAINING:
                self.end("the node is being stopped")
            if now < look_at:
                continue
            look_at = now + LOOK_S
            self.watch.look(now, bool(superblock.get("alarms") & CONSTANTS["ALARM_MEMORY"]))
            try:
                if ending := tie.look():
                    self.end(described(ending, self.path))
                self._look_for_company(superblock, now)
                self.taps.tell_full()
                self.taps.end_late()
                if self.users.refresh():
                    self._users_changed()
            except OSError as error:  # messages and questions have some, too: it is looked again
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                _say_descriptors(error)

    def _look_for_company(self, superblock: Superblock, now: float) -> None:
        if superblock.supervisor.alive() or any(
            superblock.server_identity(server).alive() for server in range(superblock.servers_n)
        ):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_S:
            self.end(f"nobody of the node has lived for {ALONE_S:g} s")

    def _bound_memory(self, limit: int) -> None:
        """Messages that wait, or are begun, do not by themselves keep the memory alarm on. `limit` 0: not known yet."""
        part = limit // (OWN_PARTS * self.settings.amqp_processes) if limit else FIRST_BYTES
        most = min(self.settings.amqp_backlog_bytes, part)
        if most != self.begun.most:
            self.backlog.most = most
            self.backlog.wake()
            self.begun.bound(most)

    def _look_at_alarms(self, alarms: int) -> None:
        names = [name for bit, name in ALARMS if alarms & bit]
        alarm = f"low on {' & '.join(names)}" if names else ""
        if alarm == self.alarm:
            return
        was, self.alarm = self.alarm, alarm
        for connection in list(self.connections):
            if not alarm:
                connection.unblock()
            elif not was:
                connection.alarmed()

    def _users_changed(self) -> None:
        """Who is no user any more, or in a vhost that is gone, has to go."""
        for connection in list(self.connections):
            if connection.user is not None and (why := self.users.why_closed(connection.user, connection.vhost)):
                connection.fail(ConnectionFault(320, why))

    async def _goodbye(self) -> None:
        """Tell the clients, and give them a moment: first to what is not confirmed yet."""
        self.stopping = True
        for connection in list(self.connections):
            connection.may_read()
        until = time.monotonic() + CONFIRM_S
        while time.monotonic() < until and any(map(_unconfirmed, self.connections)):
            await asyncio.sleep(0.01)
        if self.connections:
            log.info("closes %s", counted(len(self.connections), "connection"))
        self.stopping = False  # close-ok is to be read
        for connection in list(self.connections):
            connection.close(ConnectionFault(320, "broker forced connection closure with reason 'shutdown'"))
            connection.may_read()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_left(), GOODBYE_S)
        for connection in list(self.connections):
            connection.abort("it did not close in time")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_left(), GOODBYE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _all_left(self) -> None:
        while self.connections:
            self._left.clear()
            await self._left.wait()

    # -- for connections ----------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Of a connection."""
        self._number += 1
        return self._number

    def enters(self, connection: Link) -> bool:
        """A connection was accepted; False: there is no room for it, or the gateway ends."""
        if self._end.is_set() or len(self.connections) >= self.connections_max:
            now = time.monotonic()
            if not self._end.is_set() and now - self._full_said > LOOK_S:
                self._full_said = now
                few = self.connections_max < self.settings.amqp_connections_max
                log.warning(
                    "connection %s is refused: there are %d, which %s",
                    connection.peer.name,
                    len(self.connections),
                    "the limit of descriptors allows: raise it (`ulimit -Hn`, LimitNOFILE of systemd) and start the "
                    "node again"
                    if few
                    else "setting amqp_connections_max allows",
                )
            return False
        self.opened_n += 1
        self.connections.add(connection)
        return True

    def left(self, connection: Link) -> None:
        """A connection is over, and its channels are."""
        self.taps.left(connection)
        self.connections.discard(connection)
        self._left.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that the end of the gateway waits for, or cancels."""
        task = self.events.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _descriptors_left() -> int:
    """How many connections and handshakes the limit of descriptors leaves room for."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 31
    return max(2, soft - len(os.listdir("/proc/self/fd")) - SPARE_DESCRIPTORS)


def _failed(events: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody waits for went wrong. A connection for which there is no descriptor is accepted a second later."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
        _say_descriptors(error)
    else:
        events.default_exception_handler(context)


def _say_descriptors(error: OSError) -> None:
    say(
        f"no descriptor is left ({error.strerror}): connections wait until others have gone; raise the limit "
        "(`ulimit -Hn`, LimitNOFILE of systemd) and start the node again",
        logging.WARNING,
    )


def _unconfirmed(connection: Link) -> bool:
    return any(slot.busy or slot.channel.facts().get("unconfirmed") for slot in connection.tenants.values())
