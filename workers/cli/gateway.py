"""`warren gateway …`: the AMQP gateway of a node: who may use it, and who does."""

from __future__ import annotations

import click

from warren.workers.cli.gateway_connections import close, connections
from warren.workers.cli.gateway_permissions import permissions
from warren.workers.cli.gateway_users import users
from warren.workers.cli.gateway_vhosts import vhosts


@click.group()
def gateway() -> None:
    """Connections, users, permissions and virtual hosts of the AMQP gateway."""


gateway.add_command(connections)
gateway.add_command(close)
gateway.add_command(users)
gateway.add_command(permissions)
gateway.add_command(vhosts)
