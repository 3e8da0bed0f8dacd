"""What the parts of a gateway know of each other; who imports whom is a tree, and these are its root.

gateway ─▶ connection ─▶ slots, handshake, heartbeat, login ─▶ interfaces
channel ─▶ …                                                   (a slot calls it through `Channel`)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warren.engine.config import Settings
from warren.workers.amqp.backlog import Backlog, Kept
from warren.workers.amqp.begun import Begun, Part
from warren.workers.amqp.faults import ChannelFault, ConnectionFault, Fault
from warren.workers.amqp.peers import Peer
from warren.workers.amqp.users import User, Users

if TYPE_CHECKING:
    from warren.workers.amqp.counts import Counts
    from warren.workers.amqp.taps import Taps
    from warren.workers.amqp.unix_sockets import UnixSockets
    from warren.workers.faces.aio.loop import Loop


class Channel(Protocol):
    """What speaks for one channel (channel.py)."""

    @property
    def held(self) -> bool:
        """A publish of it waits for room, or for the end of an alarm."""

    def method(self, id: int, arguments: tuple[Any, ...], /) -> Awaitable[None] | None:
        """A method of the client; what it returns is awaited before the next one. Raises Fault."""

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes], /
    ) -> Awaitable[None] | None:
        """A run of messages. Raises Fault."""

    def ended(self) -> None:
        """Channel or connection is over: unacked messages return. It does not wait, and raises nothing."""

    def writable(self) -> None:
        """Deliveries may be sent again (`Link.writable`)."""

    def facts(self) -> dict[str, Any]:
        """For people and for the end: prefetch, consumers, unacked, unconfirmed, …"""


class Tenant(Protocol):
    """A channel number in use (slots.py), as others see it."""

    @property
    def number(self) -> int: ...
    @property
    def channel(self) -> Channel: ...
    @property
    def busy(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def published(self) -> int: ...
    def fail(self, fault: ChannelFault, method: int = 0) -> None: ...


class Link(Protocol):
    """A connection (connection.py)."""

    peer: Peer
    socket: socket.socket
    user: User | None
    vhost: str
    frame_max: int
    channel_max: int
    heartbeat_s: int
    open: bool
    closing: bool
    over: bool
    writable: bool
    flooded: bool
    blocked: bool
    blocked_since: float
    paused: bool
    bytes_in: int
    bytes_out: int
    published: int
    since: float
    kept: Kept
    begun: Part
    gets: asyncio.Semaphore  #: calls of basic.get at a time

    @property
    def client_properties(self) -> dict[str, Any]: ...
    @property
    def gateway(self) -> House: ...
    @property
    def tenants(self) -> Mapping[int, Tenant]: ...
    @property
    def user_name(self) -> str: ...
    @property
    def unsent(self) -> int: ...
    def introduced(self, said: bytes) -> None: ...
    def handshake_goes_on(self) -> None: ...
    def capable(self, name: str) -> bool: ...
    def send(self, data: bytes) -> None: ...
    def send_method(self, channel: int, id: int, arguments: tuple[Any, ...] = ()) -> None: ...
    def fail(self, fault: ConnectionFault, method: int = 0) -> None: ...
    def close(self, fault: ConnectionFault, method: int = 0) -> None: ...
    def told(self, fault: Fault, method: int = 0) -> tuple[int, str, int, int]: ...
    async def until_writable(self) -> None: ...
    def may_read(self) -> None: ...
    def alarmed(self) -> None: ...
    def unblock(self) -> None: ...
    def abort(self, why: str) -> None: ...
    def hang_up(self, why: str) -> None: ...
    def fall_silent(self, why: str) -> None: ...
    def lost_peer(self, why: str) -> None: ...
    def set_limits(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None: ...
    def opened(self, user: User, vhost: str) -> None: ...
    def channel_closed(self, number: int) -> None: ...
    def channel_closes(self, number: int) -> None: ...
    def channel_rests(self) -> None: ...


class Checks(Protocol):
    """The threads in which passwords are checked (login.py)."""

    refused_n: int

    def submit(self, link: Link, asked: Any, then: Callable[[User | None], None]) -> None: ...


class House(Protocol):
    """A gateway (gateway.py)."""

    loop: Loop
    taps: Taps
    events: asyncio.AbstractEventLoop
    users: Users
    settings: Settings
    path: Path  #: the data directory
    node_id: int
    index: int
    alarm: str
    stopping: bool
    began: float
    listening: list[str]
    unix: UnixSockets
    opened_n: int
    connections: set[Link]
    counts: Counts
    backlog: Backlog
    begun: Begun
    room: memoryview  #: where each connection reads; good until it has parsed what came

    @property
    def logins(self) -> Checks: ...
    @property
    def channel(self) -> Callable[[Any, int], Channel]: ...
    def next_number(self) -> int: ...
    def enters(self, link: Link) -> bool: ...
    def left(self, link: Link) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...
