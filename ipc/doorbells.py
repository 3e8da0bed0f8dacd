"""The folder of doorbells of a node: sockets of its clients' event loops, which its servers ring (ipc/core/doorbell.h).

    DIR/doorbells/<slot>-<generation>   bound by the client of that slot; the supervisor removes it with the slot

It is made with the node's shared memory and removed with it. Without it, or where sockets cannot be, clients are woken
in another way; so nothing here is trouble for a node.

Of a node that is shared with a group every member may write there, and removes only his own. So nothing follows a
symbolic link, neither at the name of the folder nor in it, and only a socket is given a mode or removed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from warren.ipc import access, socket_folder

FOLDER = "doorbells"  #: twin of WR_DOORBELLS, ipc/core/doorbell.h


def name(slot: int, generation: int) -> str:
    """The socket of a client, in the folder. Twin of `reach`, ipc/core/doorbell.c."""
    return f"{slot}-{generation}"


def make(directory: Path) -> None:
    """An empty folder, at the begin of a node. Raises OSError."""
    clear(directory)
    with contextlib.suppress(FileExistsError):  # something else is in there
        os.mkdir(directory / FOLDER, 0o700)
    with socket_folder.opened(directory, FOLDER) as folder:
        access.let_in(folder, access.meeting_mode())


def bind(sock: socket.socket, directory: int, slot: int, generation: int) -> None:
    """Give a socket the name of a client's doorbell, in the directory of this descriptor. Raises OSError."""
    with socket_folder.opened(directory, FOLDER) as folder:
        sock.bind(socket_folder.path(folder, name(slot, generation)))  # however long the path of the directory is
        made = os.open(name(slot, generation), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISSOCK(os.fstat(made).st_mode):
                raise FileExistsError(17, "somebody has put something else in its place")
            shared = os.fstat(folder).st_mode & 0o020
            os.chmod(socket_folder.path(made), 0o660 if shared else 0o600)
        finally:
            os.close(made)


def forget(directory: Path, slot: int, generation: int) -> None:
    """The client of this slot is gone."""
    with contextlib.suppress(OSError), socket_folder.opened(directory, FOLDER) as folder:
        socket_folder.remove(folder, name(slot, generation))


def clear(directory: Path) -> None:
    """Remove all of it, at the end of a node. What is no socket stays, and so does its folder."""
    socket_folder.clear(directory, FOLDER)
