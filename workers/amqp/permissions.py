"""What each operation needs of who asks for it; a refusal has RabbitMQ's code and text.

| operation | needs |
|---|---|
| connection.open | the vhost exists, and the user has permissions in it (`check_vhost`) |
| exchange.declare | configure on it; with an alternate exchange that is new: read on it, write on the alternate |
| exchange.delete | configure on it |
| exchange.bind, unbind | write on the destination, read on the source; if that is a topic exchange: read of the key |
| queue.declare | configure on it; new, with a dead letter exchange: read on it, write on that exchange |
| queue.delete | configure on it |
| queue.bind, unbind | write on the queue, read on the exchange; if that is a topic exchange: read of the key |
| queue.purge, basic.get, basic.consume | read on the queue |
| basic.publish | write on the exchange; if it is a topic exchange: write of the key |

A passive declare needs nothing. The default exchange is called `amq.default` in permissions. Direct reply-to
(`amq.rabbitmq.reply-to`) needs no permission to consume, and write on the default exchange to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.users import DEFAULT_EXCHANGE, Kind, Permission, User, Users


def check(user: User, vhost: str, permission: Permission, kind: Kind, name: str) -> None:
    """Raises ChannelFault 403 unless the user may configure, write or read this queue or exchange."""
    if not user.may(permission, kind, name, vhost):
        raise ChannelFault(403, f"access to {_resource(kind, name, vhost)} refused for user '{user.name}'")


def check_topic(user: User, vhost: str, permission: Literal["write", "read"], exchange: str, key: str) -> None:
    """The same for a routing key of a topic exchange."""
    if not user.may_topic(permission, exchange, key, vhost):
        resource = _resource("exchange", exchange, vhost)
        raise ChannelFault(403, f"access to topic '{key}' in {resource} refused for user '{user.name}'")


def check_vhost(users: Users, user: User, vhost: str) -> None:
    """Raises ConnectionFault 530 unless there is this vhost and the user may enter it."""
    if users.vhost(vhost) is None:
        raise ConnectionFault(530, f"vhost {vhost} not found")
    if not user.enters(vhost):
        raise ConnectionFault(530, f"access to vhost '{vhost}' refused for user '{user.name}'")


def check_vhost_connections(users: Users, user: User, vhost: str, in_vhost: int, of_user: int) -> None:
    """Raises ConnectionFault 530 when there are as many connections already as the vhost or the user may have."""
    found = users.vhost(vhost)
    limit = -1 if found is None else found.limits.get("max-connections", -1)
    if 0 <= limit <= in_vhost:
        raise ConnectionFault(
            530, f"access to vhost '{vhost}' refused for user '{user.name}': connection limit ({limit}) is reached"
        )
    most = user.limit("max-connections")
    if most is not None and of_user >= most:
        raise ConnectionFault(
            530, f"Connection refused for user '{user.name}': user connection limit ({most}) is reached"
        )


def check_vhost_queues(users: Users, vhost: str, name: str, in_vhost: Callable[[], int]) -> None:
    """Raises ChannelFault 406 when a vhost has as many queues already as it may have; they are counted when there is a
    limit.
    """
    found = users.vhost(vhost)
    limit = -1 if found is None else found.limits.get("max-queues", -1)
    if limit >= 0 and in_vhost() >= limit:
        raise ChannelFault(406, f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached")


def _resource(kind: Kind, name: str, vhost: str) -> str:
    shown = DEFAULT_EXCHANGE if kind == "exchange" and not name else name
    return f"{kind} '{shown}' in vhost '{vhost}'"
