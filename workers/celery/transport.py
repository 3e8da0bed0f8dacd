"""Warren as a transport of kombu: `warren:///DIRECTORY`, without a broker and without a socket.

    Transport     what kombu makes of the URL
    Connection    one connection: channels, and the inbox of their consumers

A connection that consumes has a client of its own, so what it holds returns when it is closed. Publishing and declaring
go through the one client of the process (workers/client/shared.py), which comes back by itself when a node was
restarted, and attaches anew in a child of fork.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import amqp
from kombu.transport import base
from kombu.utils.compat import detect_environment

from warren.engine import VERSION
from warren.engine._core import AttachmentLost
from warren.engine.amqp.names import amqp_name
from warren.engine.errors import (
    AckTimedOut,
    ClosedError,
    LimitError,
    PeerLost,
    QueueFull,
    StartFailed,
    Unroutable,
    UsageError,
)
from warren.workers.celery.channel import Channel
from warren.workers.celery.inbox import Inbox
from warren.workers.celery.patience import in_task, patient
from warren.workers.celery.place import ATTACH_S, Place
from warren.workers.client.client import Client
from warren.workers.faces.node import Node

#: messages delivered in one turn of an event loop
TURN = 32


class Connection:
    """One connection of kombu."""

    def __init__(self, client: Any, place: Place) -> None:
        self.client = client  #: kombu's Connection
        self.place = place
        self.inbox = Inbox()
        self.channels: dict[int, Channel] = {}
        self.exclusive: set[str] = set()
        #: transient exchanges that were declared here: the epoch of the node then, and how
        self.transient: dict[str, tuple[int, Callable[[], object]]] = {}
        self._numbers = itertools.count(1)
        self._own: Node | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """It can be used."""
        return not self._closed and self.inbox.alive

    @property
    def own(self) -> Node:
        """The node, as the client that consumes here."""
        if self._own is None:
            timeout = self.place.call_timeout
            client = Client(self.place.directory, None, ATTACH_S, call_timeout=timeout, for_many=True)
            try:
                self.inbox.attach(client)
            except BaseException:
                client.close()
                raise
            self._own = Node(client)
        elif not self.connected:
            raise PeerLost("the connection was lost: connect again")
        return self._own

    def attach(self) -> None:
        """Be a client that consumes."""
        assert self.own is not None

    def channel(self) -> Channel:
        """Open a channel."""
        if not self.connected:
            raise PeerLost("the connection is closed: connect again")
        number = next(self._numbers)
        made = self.channels[number] = Channel(self, number)
        return made

    def deliver(self, most: int) -> int:
        """Give consumers what has come, `most` messages at most; how many it was."""
        if not self.connected:
            raise PeerLost("the connection was lost: its node was stopped, or it was closed")
        taken = self.inbox.take(most)
        for at, (consumer, message) in enumerate(taken):
            try:
                consumer.deliver(consumer, message)
            except BaseException:
                self.inbox.give_back(taken[at + 1 :])
                raise
        return len(taken)

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for one message, and deliver it. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.deliver(1):
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left <= 0) or not self.inbox.wait(left):
                raise TimeoutError("no message came in time")

    def close(self) -> None:
        """Channels close; what was held returns."""
        if self._closed:
            return
        try:
            if self.inbox.pid == os.getpid():
                for channel in list(self.channels.values()):
                    channel.close()
        finally:
            self._closed = True
            self.channels.clear()
            self.inbox.close()


class Manager:
    """What is declared in the node."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def get_bindings(self) -> Iterator[dict[str, Any]]:
        """Bindings of queues, as RabbitMQ's management names them; each queue has one to the default exchange."""
        catalog = self._place.client.catalog()
        for queue in sorted(catalog.queues):
            name = amqp_name(queue)[1]
            yield {"source": "", "destination": name, "routing_key": name, "arguments": {}}
        for found in sorted(catalog.bindings):
            source, name = amqp_name(found.exchange)[1], amqp_name(found.queue)[1]
            named = {"source": source, "destination": name, "routing_key": found.routing_key}
            yield named | {"arguments": found.arguments}


class Transport(base.Transport):
    """See the module."""

    can_parse_url = True
    driver_type = "warren"
    driver_name = "warren"

    # Kombu raises those of the package amqp by itself, whatever the transport is. Other transports name OSError, too:
    # TimedOut is one, after which nobody knows whether a message was published, and a retry might double it.
    connection_errors: Any = (
        *(amqp.exceptions.ConnectionError, ConnectionError),
        *(ClosedError, PeerLost, LimitError, StartFailed, AttachmentLost),
    )
    recoverable_connection_errors: Any = (amqp.exceptions.RecoverableConnectionError, *connection_errors[1:])
    channel_errors: Any = (amqp.exceptions.ChannelError, UsageError, QueueFull, Unroutable, AckTimedOut)
    recoverable_channel_errors: Any = (amqp.exceptions.RecoverableChannelError,)

    implements = base.Transport.implements.extend(asynchronous=True, heartbeats=False)

    @property
    def url(self) -> str:
        """Where it leads. Of the second URL of a list, kombu has what it takes for the name of a virtual host."""
        client: Any = self.client
        return client.hostname or f"warren:///{quote(client.virtual_host)}"

    def driver_version(self) -> str:
        """The version of Warren."""
        return VERSION

    def establish_connection(self) -> Connection:
        """Attach to the node. Raises NodeNotRunning, UsageError."""
        client: Any = self.client
        environment = detect_environment()
        if environment != "default":
            raise UsageError(
                f"{environment} replaces threads, and Warren waits in one: use the pool prefork, threads or solo"
            )
        place = Place.of(self.url, client.transport_options)
        if len(client.alt) > 1:
            place = place._replace(node_timeout=0.0)  # the next one is tried at once
        attach = functools.partial(place.attach, client.connect_timeout or ATTACH_S)
        if in_task():
            patient(attach, place.node_timeout)
        else:
            attach()
        return Connection(client, place)

    def close_connection(self, connection: Connection) -> None:
        """See Connection.close."""
        connection.client = None
        connection.close()

    def create_channel(self, connection: Connection) -> Channel:
        """Open a channel."""
        return connection.channel()

    def close_channel(self, channel: Channel) -> None:
        """See Channel.close."""
        channel.close()

    def drain_events(self, connection: Connection, timeout: float | None = None, **_unknown: Any) -> None:
        """Wait for one message, and deliver it. Raises TimeoutError."""
        connection.drain_events(timeout)

    def verify_connection(self, connection: Connection) -> bool:
        """It can be used."""
        return connection.connected

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """The loop reads the bell."""
        loop.add_reader(connection.inbox.fd, self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """The loop reads it no more."""
        loop.remove_reader(connection.inbox.fd)

    def on_readable(self, connection: Connection, loop: Any) -> None:
        """The bell has rung."""
        connection.deliver(TURN)

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        """A change of the prefetch count has to reach the consumers that there are: global, in the words of AMQP."""
        return False

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL: it has no secrets."""
        return uri or self.url

    def get_manager(self, *_given: Any, **_named: Any) -> Manager:
        """What `celery list bindings` asks."""
        client: Any = self.client
        return Manager(client.connection.place)
