"""What tests of the gateway begin with: a node of the module's own that serves AMQP (its address: `gateway.port`,
`gateway.url`), and connections by raw frames."""

from collections.abc import Callable, Iterator

import pytest

from amqp_diff.wire import Wire
from support.gateway_node import GatewayNode

Connect = Callable[..., Wire]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """A node with one gateway, at a port and at a Unix socket."""
    with GatewayNode(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running


@pytest.fixture
def connect(gateway: GatewayNode) -> Iterator[Connect]:
    """Makes connections to it by raw frames; `port`: to another one. They are closed after the test."""
    wires: list[Wire] = []

    def made(port: int = 0) -> Wire:
        wire = Wire("abcdefghijklmnop"[len(wires)], lambda _line: None, "127.0.0.1", port or gateway.port)
        wires.append(wire)
        return wire

    yield made
    for wire in wires:
        wire.shut()
