"""A real node that serves AMQP at a free port of 127.0.0.1 and at a Unix socket, and what its gateways say."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.layout import CONSTANTS, SERVER_STORE_TRANSIENT
from warren.ipc.superblock import Superblock
from warren.workers.amqp import asking

from support.real_node import RealNode
from support.waiting import wait_until

SOCKET = "amqp.sock"


class GatewayNode(RealNode):
    """`warren up DIR --amqp …`; other settings by name."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **{"amqp": f"127.0.0.1:0,unix:{SOCKET}"} | settings)

    def ask(self, op: str = "facts", index: int = 0, **question: str) -> dict[str, Any]:
        """What a gateway answers; one that has just been killed has a successor soon."""

        def answer() -> dict[str, Any] | None:
            with contextlib.suppress(Error):
                return asking.ask(self.directory, index, 30.0, op=op, **question)
            return None

        found = wait_until(answer, 20, what=f"an answer of gateway {index}")
        assert found is not None
        return found

    @property
    def listening(self) -> list[str]:
        """The addresses of the first gateway, with their ports; it may answer a moment before it listens."""
        return wait_until(lambda: list[str](self.ask()["listening"]), 20, what="a gateway that listens")

    @property
    def port(self) -> int:
        """That of the first TCP address."""
        return next(int(place.rpartition(":")[2]) for place in self.listening if not place.startswith("unix:"))

    @property
    def url(self) -> str:
        """For clients that take one."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def connections(self, index: int = 0) -> list[dict[str, Any]]:
        """Those of a gateway."""
        found: list[dict[str, Any]] = self.ask("connections", index)["connections"]
        return found

    def connected(self) -> pika.BlockingConnection:
        """A connection of pika's; a gateway that has just been killed has a successor soon."""

        def connect() -> pika.BlockingConnection | None:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                return pika.BlockingConnection(pika.URLParameters(self.url))
            return None

        found = wait_until(connect, 60, what="a connection")
        assert found is not None
        return found

    @contextlib.contextmanager
    def unix(self) -> Iterator[socket.socket]:
        """A connected Unix socket."""
        folder = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(60)
                sock.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # however long the path is
                yield sock
        finally:
            os.close(folder)


@contextlib.contextmanager
def alarm(gateway: GatewayNode, name: str = "ALARM_MEMORY") -> Iterator[None]:
    """An alarm is on, and the gateway knows it; afterwards it is off."""
    superblock = Superblock.attach(NodeDirectory(gateway.directory).shared_id, LAYOUT_HASH)
    try:
        superblock.server_alarm(SERVER_STORE_TRANSIENT, CONSTANTS[name], True)
        wait_until(lambda: gateway.ask()["alarm"], what="the alarm at the gateway")
        yield
    finally:
        superblock.server_alarm(SERVER_STORE_TRANSIENT, CONSTANTS[name], False)
        superblock.close()
    wait_until(lambda: not gateway.ask()["alarm"], what="the end of the alarm")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
