"""The Unix sockets of a gateway. Several gateways of a node accept from the same ones.

A path can be bound once, so the first gateway binds it, and each that comes gets the descriptor from one that has it
(`asking.listeners_of`). As long as one gateway lives the socket lives, with the connections that wait in it: a gateway
that is killed costs nobody who connects more than what it had accepted.

Who looks for a socket, and binds it when nobody has it, does so under a lock (`SharedFile.binding`), so that two do not
bind the same path.

Crash points: killed with the lock, it is free; killed after the bind, before anybody else has the descriptor: nobody
listens at the file, and the next one replaces it. All killed at once: the same, and what waited is lost.
The file is removed by a gateway that ends with its node, or is the only one, if it is still the one that was bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warren.engine.errors import Error, UsageError
from warren.engine.kernel import data_files
from warren.workers.amqp import asking
from warren.workers.process import unix_socket

#: how long another gateway is asked
ASK_S = 2.0


@dataclass(frozen=True)
class UnixSocket:
    """One that this gateway listens at; `place`: device and inode of its file."""

    sock: socket.socket
    place: tuple[int, int]


class UnixSockets:
    """Those of one gateway, by path."""

    def __init__(self, directory: Path, index: int, gateways: int) -> None:
        self._directory = directory
        self._others = [other for other in range(gateways) if other != index]
        self.held: dict[str, UnixSocket] = {}

    def open(self, paths: Iterable[Path]) -> list[socket.socket]:
        """Get them from other gateways, or bind them; nobody else does so meanwhile. It blocks. Raises UsageError,
        OSError.
        """
        silent: dict[int, Error] = {}
        for path in paths:
            for other in self._others:
                if other not in silent and str(path) not in self.held:
                    try:
                        self._take_from(other)
                    except Error as error:  # it does not run, or not yet
                        silent[other] = error
            if str(path) not in self.held:
                self._bind(path, silent)
        return [self.held[str(path)].sock for path in paths]

    def _take_from(self, other: int) -> None:
        for path, (descriptor, place) in asking.listeners_of(self._directory, other, ASK_S).items():
            sock = socket.socket(fileno=descriptor)
            if path in self.held:
                sock.close()
            else:
                sock.setblocking(False)
                self.held[path] = UnixSocket(sock, place)

    def _bind(self, path: Path, silent: dict[int, Error]) -> None:
        try:
            sock = unix_socket.bound(path)
        except UsageError as error:
            if silent:
                raise UsageError(f"{error} (and of the gateways: {'; '.join(map(str, silent.values()))})") from error
            raise
        try:
            found = os.lstat(path)
            sock.listen()  # before anybody gets it
        except BaseException:
            sock.close()
            raise
        self.held[str(path)] = UnixSocket(sock, (found.st_dev, found.st_ino))

    def close(self, remove: bool) -> None:
        """At the end; `remove`: nobody else goes on with them."""
        for path, one in self.held.items():
            if remove:
                with contextlib.suppress(OSError):
                    found = os.lstat(path)
                    if (found.st_dev, found.st_ino) == one.place:
                        data_files.unlink(path)
            one.sock.close()
        self.held.clear()
