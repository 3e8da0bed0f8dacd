"""The AMQP gateways of one run, as the supervisor sees them.

A gateway is a client of the node. It is forked like a server, and then executes `python -m warren.workers.amqp`: the
supervisor loads nothing of it, and it has nothing of the supervisor. It is started when the node serves, which is
announced when the gateways listen; a node runs without them, and starts those that died again and again.

Crash points: as of any server (children.py). A supervisor that is killed before it has started a gateway: its successor
does. Between fork and exec the child is found by its pid, which exec keeps.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from warren.engine.addresses import Address, addresses
from warren.engine.config import Settings
from warren.engine.errors import SystemLimit, UsageError
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node.children import Role
from warren.workers.process import interpreter, unix_socket

GATEWAY = "amqp_gateway"
#: a gateway of a killed node gives its ports back within a moment
PORT_FREE_S = 3.0
#: so long the announcement of a node waits for gateways that are neither up nor dead
UP_S = 30.0


@dataclass
class GatewayRole(Role):
    """A gateway process; it serves no row of the superblock, and has one of its own."""

    def served(self, superblock: Superblock) -> bool:
        """The present incarnation, dead or alive, has come up."""
        state = superblock.gateway_get(self.index, "state")
        return state in (CONSTANTS["SERVER_READY"], CONSTANTS["SERVER_STOPPING"])

    def set_state(self, superblock: Superblock, state: int) -> None:
        """SERVER_… where the superblock has it."""
        superblock.gateway_set(self.index, "state", state)
        if state != CONSTANTS["SERVER_READY"]:
            superblock.gateway_set(self.index, "connections", 0)

    def count_restart(self, superblock: Superblock) -> None:
        """One restart more."""
        superblock.gateway_set(self.index, "restarts", superblock.gateway_get(self.index, "restarts") + 1)

    def record(self, superblock: Superblock, pid: int, start_time: int) -> None:
        """Who has the role now; before it may do anything."""
        superblock.set_gateway(self.index, pid, start_time)

    def recorded(self, superblock: Superblock) -> Identity:
        """Who had it last."""
        return superblock.gateway_identity(self.index)

    @property
    def bits(self) -> tuple[int, ...]:
        """Which bits of `failing` in the superblock are its."""
        return (CONSTANTS["FAILING_GATEWAY"] + self.index,)

    def settled(self, superblock: Superblock) -> bool:
        """It listens, or has shown that it cannot now."""
        return self.served(superblock) or bool(self.deaths or self.lack or self.failed)


def make(directory: Path, log_file: Callable[[str], Path], settings: Settings) -> list[GatewayRole]:
    """The gateways of a node with these settings: none without addresses."""

    def main(index: int) -> Callable[[int], int]:
        return lambda _supervisor_pidfd: _become(directory, index)

    count = settings.amqp_processes if settings.amqp else 0
    return [
        GatewayRole(f"amqp-{index}", GATEWAY, index, (), main(index), log_file(f"amqp-{index}"), settings)
        for index in range(count)
    ]


def of(roles: Iterable[Role]) -> list[GatewayRole]:
    """The gateways among the roles of a node."""
    return [role for role in roles if isinstance(role, GatewayRole)]


def connections(superblock: Superblock, roles: Iterable[Role]) -> int:
    """How many connections they have."""
    return sum(superblock.gateway_get(role.index, "connections") for role in of(roles) if role.running)


def _become(directory: Path, index: int) -> NoReturn:
    """In the forked child: be the gateway."""
    command = interpreter.command("warren.workers.amqp", str(directory), str(index))
    os.execve(command[0], command, interpreter.environment())  # noqa: S606 - the interpreter of this process


def check(directory: Path, settings: Settings) -> None:
    """Before a node begins: can its addresses be listened at, and have those of TLS all that they need? Raises
    UsageError, SystemLimit. It waits a moment for those of a killed node. What cannot be known yet, the gateway says.
    """
    found = addresses("amqp", settings.amqp)
    if any(address.kind == "tls" for address in found):
        from warren.workers.process import tls

        tls.context(settings)
    for address in found:
        if address.kind == "unix":
            unix_socket.try_out(directory / address.path)
        deadline = time.monotonic() + PORT_FREE_S
        while address.kind != "unix" and (error := _refused(address)) is not None:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise _explained(address, error)


def _refused(address: Address) -> OSError | None:
    """Why it cannot be listened at."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _name, place in found:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(place)
                tried.listen(1)
    except OSError as error:  # socket.gaierror, too: there is no such host
        return error
    return None


def _explained(address: Address, error: OSError) -> UsageError | SystemLimit:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        return SystemLimit(f"cannot look whether {address} is free ({error.strerror}): see `ulimit -n`")
    advice = {
        errno.EADDRINUSE: f"`ss -ltnp 'sport = :{address.port}'` shows who has it; end that, or give another port",
        errno.EACCES: "ports below 1024 are root's: give another one",
        errno.EADDRNOTAVAIL: "this host has no such address: `ip address` shows those that it has",
    }.get(error.errno or 0, "give an address of this host")
    return UsageError(f"cannot serve AMQP at {address} ({error.strerror}): {advice}")
