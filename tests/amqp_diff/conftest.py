"""The servers that the cases run against: the gateway of a node, and with `--rabbitmq` a RabbitMQ of the tests' own."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import warren
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.tools.rabbitmq import RabbitMQ
from warren.workers.amqp import users_file
from warren.workers.amqp.users_file import ALL, Rights, Vhost
from warren.workers.faces.node import client_of

from amqp_diff.scene import Server
from amqp_diff.wire import Wire
from support.gateway_node import GatewayNode
from support.waiting import wait_until

#: messages of a mebibyte fit
SETTINGS: dict[str, Any] = {"file_bytes": 4 << 20, "arena_bytes": 8 << 20, "message_bytes_max": 2 << 20}
#: as long as `/`, so that texts are cut where they are there, and written otherwise in names of the node
VHOST = ":"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Seen where this folder is named on the command line."""
    parser.addoption("--rabbitmq", action="store_true", help="run each case against RabbitMQ, too")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Where the gateway of the module's own node listens."""
    directory = tmp_path_factory.mktemp("amqp") / "data"
    with GatewayNode(directory, amqp="127.0.0.1:0", **SETTINGS) as running, warren.attach(directory) as node:
        superblock = client_of(node).attachment().superblock

        def alarm(on: bool) -> None:
            """As when a queue worker finds its disk full."""
            superblock.server_set(SERVER_WORKER_FIRST, "alarms", CONSTANTS["ALARM_DISK"] if on else 0)
            wait_until(lambda: bool(running.ask()["alarm"]) == on, 60, what=f"alarm {on} at the gateway")

        yield Server("127.0.0.1", running.port, alarm=alarm, directory=directory)


@pytest.fixture(scope="module")
def in_vhost(gateway: Server) -> Server:
    """The same gateway, for connections to another virtual host."""
    assert gateway.directory is not None
    with users_file.changing(gateway.directory) as accounts:
        accounts.vhosts[VHOST] = Vhost()
        accounts.users["guest"].permissions[VHOST] = Rights(ALL, ALL, ALL)

    def enters() -> bool:
        wire = Wire("", lambda _line: None, gateway.host, gateway.port, VHOST)
        try:
            wire.opened()
        except AssertionError:  # the gateway looks once a second whether its users have changed
            wire.shut()
            return False
        wire.close()
        return True

    wait_until(enters, 60, what=f"virtual host {VHOST}")
    return replace(gateway, vhost=VHOST)


@pytest.fixture(scope="module")
def rabbitmq(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """A RabbitMQ, when it is asked for."""
    if not request.config.getoption("--rabbitmq", default=False):
        yield None
        return
    with RabbitMQ() as server:
        yield Server(server.host, server.port, alarm=server.alarm)
