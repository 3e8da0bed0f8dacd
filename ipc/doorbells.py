"""The folder of doorbells of a node: sockets of its clients' event loops, which its servers ring (ipc/core/doorbell.h).

    DIR/doorbells/<slot>-<generation>   bound by the client of that slot; the supervisor removes it with the slot

It is made with the node's shared memory and removed with it. Without it, or where sockets cannot be, clients are woken
in another way; so nothing here is trouble for a node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from warren.ipc import access

FOLDER = "doorbells"  #: twin of WR_DOORBELLS, ipc/core/doorbell.h


def name(slot: int, generation: int) -> str:
    """The socket of a client, from the data directory. Twin of `reach`, ipc/core/doorbell.c."""
    return f"{FOLDER}/{slot}-{generation}"


def make(directory: Path) -> None:
    """An empty folder, at the begin of a node. Raises OSError."""
    clear(directory)
    folder = directory / FOLDER
    with contextlib.suppress(FileExistsError):  # something else is in there
        os.mkdir(folder, access.directory_mode())
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(20, "it is no directory")
    access.let_in(str(folder))


def bind(sock: socket.socket, directory: int, slot: int, generation: int) -> None:
    """Give a socket the name of a client's doorbell, in the directory of this descriptor. Raises OSError."""
    place = f"/proc/self/fd/{directory}/{name(slot, generation)}"  # however long the path of the directory is
    sock.bind(place)
    shared = os.stat(FOLDER, dir_fd=directory).st_mode & 0o020
    os.chmod(place, 0o660 if shared else 0o600)


def forget(directory: Path, slot: int, generation: int) -> None:
    """The client of this slot is gone."""
    with contextlib.suppress(OSError):
        os.unlink(directory / name(slot, generation))


def clear(directory: Path) -> None:
    """Remove all of it, at the end of a node. What is no socket stays, and so does its folder."""
    try:
        folder = os.open(directory / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    with contextlib.suppress(OSError):
        try:
            for entry in os.listdir(folder):
                if stat.S_ISSOCK(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(entry, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(directory / FOLDER)
