"""Connections to a gateway of one's choice, of a node with several: whoever does not run cannot accept."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from warren.engine.errors import Error
from warren.workers.amqp import asking

from amqp_diff.wire import PATIENCE_S, Wire
from support.gateway_node import GatewayNode
from support.waiting import wait_until


class UnixWire(Wire):
    """A connection by raw frames, through a Unix socket."""

    def __init__(self, path: Path) -> None:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            super().__init__("u", lambda _line: None, f"/proc/self/fd/{folder}/{path.name}", 0)
        finally:
            os.close(folder)

    @staticmethod
    def connect(host: str, port: int) -> socket.socket:
        """`host` is the path."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(host)
        return sock


def gateway_pid(node: GatewayNode, index: int) -> int:
    """The process of a gateway."""
    pid: int = node.ask(index=index)["pid"]
    return pid


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what=f"{pid} to stand still")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)


def wire_at(node: GatewayNode, index: int, gateways: int = 2, **opened: Any) -> UnixWire:
    """A connection that this gateway has."""
    with contextlib.ExitStack() as others:
        for other in range(gateways):
            if other != index:
                others.enter_context(stopped(gateway_pid(node, other)))
        wire = UnixWire(node.directory / "amqp.sock")
        try:
            wire.opened(**opened)
        except BaseException:
            wire.shut()
            raise
    return wire


def kill_gateway(node: GatewayNode, index: int) -> int:
    """SIGKILL; returns at once, with the pid that it had."""
    pid = gateway_pid(node, index)
    os.kill(pid, signal.SIGKILL)
    return pid


def is_replaced(node: GatewayNode, index: int, pid: int) -> bool:
    """Whether the successor of a killed gateway listens."""
    with contextlib.suppress(Error):
        facts = asking.ask(node.directory, index, 5.0, op="facts")
        return bool(facts["pid"] != pid and facts["listening"])
    return False
