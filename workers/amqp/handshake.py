"""How a connection begins: protocol header, login, limits, virtual host. It is RabbitMQ's behaviour, step by step.

    client                          gateway
    header                    →
                              ←     connection.start (mechanisms, properties)
    start-ok (mechanism)      →     who is it? in a thread (login.py)
                              ←     tune (channel_max, frame_max, heartbeat)
    tune-ok                   →     within what was offered
    open (vhost)              →     is there one, and may this user enter?
                              ←     open-ok

A client may send all of it at once, and what it publishes behind it: each step is taken in its turn, as if it had been
waited for.

A client that does something else is told nothing, but for what follows: the socket stays still for SILENT_S, so that
guessing is slow, and closes. Another protocol header is answered by ours. A client that announced
`authentication_failure_close` hears that its login was refused (403); a vhost that it may not open is 530.
"""

from __future__ import annotations

import logging
from typing import Any

from warren.engine import VERSION
from warren.engine._core import amqp_arguments
from warren.engine.amqp import spec
from warren.engine.saying import quoted
from warren.workers.amqp import login
from warren.workers.amqp.faults import ConnectionFault
from warren.workers.amqp.interfaces import Link
from warren.workers.amqp.permissions import check_vhost, check_vhost_connections
from warren.workers.amqp.users import User

log = logging.getLogger("warren.amqp")

#: a client has so long from its first byte to open-ok
HANDSHAKE_S = 10.0
#: so long a client that made a mistake waits for the end
SILENT_S = 3.0
#: of AMQP 0-8 and 0-9, after which RabbitMQ closes without a word
OLD_HEADERS = (b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x00\x09")
LOCALES = b"en_US"
#: what the gateway does beyond the protocol, as RabbitMQ names it
CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
#: of the product that clients adapt to, as kombu does: the gateway behaves like this one
PRODUCT, PRODUCT_VERSION = "RabbitMQ", "3.10.8"


class Silence(Exception):
    """The handshake went wrong in a way of which a client is told nothing; the text is for the log."""


def server_properties(node_id: int) -> dict[str, Any]:
    """What connection.start says of this server."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": f"warren@{node_id:012x}",
        "copyright": "Warren, Apache-2.0",
        "information": f"AMQP gateway of Warren {VERSION}, which behaves like {PRODUCT}",
        "platform": f"Warren {VERSION}",
        "product": PRODUCT,
        "version": PRODUCT_VERSION,
    }


class Handshake:
    """From the first byte to open-ok. Everything raises Silence or ConnectionFault, of which the connection makes its
    end.
    """

    def __init__(self, connection: Link) -> None:
        self._connection = connection
        self._head = b""
        self._awaited = 0  #: the method that has to come next; 0: none, something is under way
        self.busy = False  #: a login is being checked: what comes meanwhile waits
        self.logged_in: User | None = None
        self._timer = connection.gateway.events.call_later(HANDSHAKE_S, self._late)

    def end(self) -> None:
        """It is done, or does not matter any more."""
        self._timer.cancel()

    def _late(self) -> None:
        self._connection.abort(f"the handshake took longer than {HANDSHAKE_S:g} s")

    @property
    def opening(self) -> bool:
        """Only the vhost is missing: mistakes are told."""
        return self._awaited == spec.CONNECTION_OPEN

    def header(self, data: bytes) -> bytes | None:
        """The first bytes; what follows the protocol header, None while that is not whole. Raises Silence after another
        protocol's was answered.
        """
        self._head += data
        if not spec.PROTOCOL_HEADER.startswith(self._head[:8]):
            if len(self._head) < 8 and spec.PROTOCOL_HEADER[:4].startswith(self._head[:4]):
                return None
            if self._head[:8] not in OLD_HEADERS:
                self._connection.send(spec.PROTOCOL_HEADER)
            self._connection.hang_up(f"it does not speak AMQP 0-9-1, but sent {self._head[:8]!r}")
            return None
        if len(self._head) < 8:
            return None
        rest, self._head = self._head[8:], b""
        gateway = self._connection.gateway
        mechanisms = " ".join(login.mechanisms(self._connection.peer))
        arguments = (0, 9, server_properties(gateway.node_id), mechanisms.encode(), LOCALES)
        self._connection.send_method(0, spec.CONNECTION_START, arguments)
        self._awaited = spec.CONNECTION_START_OK
        return rest

    def method(self, id: int, said: tuple[Any, ...] | bytes) -> None:
        """A method on channel 0 before open-ok."""
        arguments = amqp_arguments(id, said) if isinstance(said, bytes) else said
        if id != self._awaited:
            name = spec.METHODS[id].name if id in spec.METHODS else str(id)
            raise Silence(f"it sent {name} out of turn")
        self._awaited = 0
        if id == spec.CONNECTION_START_OK:
            if isinstance(said, bytes):  # with a table, which is the first of them
                self._connection.introduced(said[: 4 + int.from_bytes(said[:4])])
            self._start_ok(*arguments)
        elif id == spec.CONNECTION_TUNE_OK:
            self._tune_ok(*arguments)
        else:
            self._awaited = id  # a fault of it is told
            self._open(arguments[0])

    # -- login --------------------------------------------------------------------------------------------------

    def _start_ok(self, _properties: dict[str, Any], mechanism: str, response: bytes, _locale: str) -> None:
        connection = self._connection
        asked = login.credentials(mechanism, response, connection.peer)
        if asked is None:
            raise Silence(f"it logged in by {quoted(mechanism)}, which is not offered, or cannot be read")
        self.busy = True
        connection.gateway.logins.submit(connection, asked, lambda user: self._known(mechanism, asked.name, user))

    def _known(self, mechanism: str, name: str, user: User | None) -> None:
        """The answer of the thread."""
        connection = self._connection
        self.busy = False
        if connection.over or connection.closing:
            return
        if user is None:
            if connection.capable("authentication_failure_close"):
                text = (
                    f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
                )
                arguments = (spec.ACCESS_REFUSED, f"ACCESS_REFUSED - {text}", 0, 0)
                connection.send_method(0, spec.CONNECTION_CLOSE, arguments)
            connection.fall_silent(f"user {quoted(name)} was refused")
            return
        self.logged_in = user
        settings = connection.gateway.settings
        offered = (settings.amqp_channel_max, settings.amqp_frame_max, settings.amqp_heartbeat_s)
        connection.send_method(0, spec.CONNECTION_TUNE, offered)
        self._awaited = spec.CONNECTION_TUNE_OK
        connection.handshake_goes_on()

    # -- limits and vhost ---------------------------------------------------------------------------------------

    def _tune_ok(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        connection = self._connection
        settings = connection.gateway.settings
        for name, least, offered, chosen in (
            ("frame_max", spec.FRAME_MIN, settings.amqp_frame_max, frame_max),
            ("channel_max", 1, settings.amqp_channel_max, channel_max),
        ):
            if chosen and chosen < least:
                raise Silence(f"it chose {name} {chosen}, which is below {least}")
            if offered and (not chosen or chosen > offered):
                raise Silence(f"it chose {name} {chosen or 'without limit'}, and was offered {offered}")
        connection.set_limits(channel_max, frame_max or settings.amqp_frame_max, heartbeat)
        self._awaited = spec.CONNECTION_OPEN

    def _open(self, vhost: str) -> None:
        connection, user = self._connection, self.logged_in
        assert user is not None
        gateway = connection.gateway
        check_vhost(gateway.users, user, vhost)
        counts = gateway.counts
        with counts.deciding():
            counts.came("connections of user", user.name)
            counts.came("connections in vhost", vhost)
            try:
                in_vhost = counts.total("connections in vhost", vhost) - 1
                of_user = counts.total("connections of user", user.name) - 1
                check_vhost_connections(gateway.users, user, vhost, in_vhost, of_user)
            except ConnectionFault:
                counts.went("connections of user", user.name)
                counts.went("connections in vhost", vhost)
                raise
        self.end()
        connection.opened(user, vhost)


def refused(error: ConnectionFault, handshake: Handshake) -> bool:
    """Whether a client in its handshake hears of a fault."""
    return handshake.opening and error.code in (spec.NOT_ALLOWED, spec.ACCESS_REFUSED)
