"""Control messages between processes: Unix datagrams, selectable, that outlive their senders.

    DIR/mail/<role>.sock     bound by the process of that role; removed with the node's shared memory

The system bounds neither their number nor their bytes for a user, their names are nobody else's to take, and they go
with the directory: none of that is true of POSIX message queues (docs/design/045-names.md).

The highest priority is handed out first, FIFO within one (rule N8). A message is a small msgpack map behind a byte with
its priority. Losing one must never matter: each is a hint to look at shared memory, and the receiver also looks there
periodically. So a role without a mailbox serves, too.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from warren.ipc import access, socket_folder

PRIORITY_COLLECTED = 8
PRIORITY_CLIENT = 7  # register, client_dying, recovery query
PRIORITY_READ = 2
PRIORITY_ORDINARY = 0

FOLDER = "mail"
MESSAGE_BYTES_MAX = 4096
#: most messages that are read ahead: a later one of higher priority then comes first
AHEAD_MAX = 64


def name(role: str) -> str:
    """The socket of a role, in the folder."""
    return f"{role}.sock"


class Mailbox:
    """One role's mailbox, made by its receiver."""

    def __init__(self, directory: Path, role: str) -> None:
        """`directory`: the node's. Messages that an earlier receiver had not read are forgotten. Raises OSError."""
        self._ahead: list[tuple[int, int, dict[str, Any]]] = []
        self._numbers = itertools.count()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory / FOLDER, 0o700)
            with socket_folder.opened(directory, FOLDER) as folder:
                access.let_in(folder, access.directory_mode())  # members post, and change nothing in the folder
                socket_folder.remove(folder, name(role))
                self._socket.bind(socket_folder.path(folder, name(role)))  # however long the path of the directory is
                os.chmod(socket_folder.path(folder, name(role)), access.object_mode())  # its group is the folder's
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Descriptor for select and poll: of what `receive` has not read yet."""
        return self._socket.fileno()

    def receive(self) -> dict[str, Any] | None:
        """The next message by priority, None when there is none. Call it until then: what was read ahead is not seen by
        select. A malformed one is dropped.
        """
        if not self._ahead:
            for _turn in range(AHEAD_MAX):
                try:
                    payload = self._socket.recv(1 + MESSAGE_BYTES_MAX + 1)
                except OSError:  # none is there; or the system is short of memory, and select tells again
                    break
                with contextlib.suppress(msgspec.MsgspecError, RecursionError, ValueError):
                    message = msgspec.msgpack.decode(payload[1:]) if len(payload) <= 1 + MESSAGE_BYTES_MAX else None
                    if isinstance(message, dict) and isinstance(message.get("kind"), str):
                        heapq.heappush(self._ahead, (-payload[0], next(self._numbers), message))
        return heapq.heappop(self._ahead)[2] if self._ahead else None

    def close(self) -> None:
        """Close the descriptor; nobody posts any more."""
        self._socket.close()


def post(directory: Path | int, role: str, kind: str, priority: int = PRIORITY_ORDINARY, **fields: Any) -> bool:
    """Put a message into the mailbox of a role; `directory`: the node's, its path or a descriptor of it. False when
    there is no such mailbox or it is full (the receiver will find out by itself).
    """
    payload = bytes([priority]) + msgspec.msgpack.encode({"kind": kind, **fields})
    if len(payload) > 1 + MESSAGE_BYTES_MAX:
        return False
    with contextlib.suppress(OSError), socket_folder.opened(directory, FOLDER) as folder:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(payload, socket_folder.path(folder, name(role)))
        return True
    return False


def clear(directory: Path) -> None:
    """Remove all mailboxes, at the end of a node. Other files stay, and so does their folder then."""
    socket_folder.clear(directory, FOLDER)
