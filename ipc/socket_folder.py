"""A folder of sockets below a node's directory, held by a descriptor: mailboxes (`ipc/mailbox.py`), doorbells.

Members of the node's group may write into some. So it is opened along no link, names in it count from its descriptor,
and only sockets are removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def opened(directory: Path | int, name: str) -> Iterator[int]:
    """The folder `name` in the node's directory, which is a path or a descriptor. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if isinstance(directory, int):
        descriptor = os.open(name, flags, dir_fd=directory)
    else:
        descriptor = os.open(directory / name, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def path(descriptor: int, *inside: str) -> str:
    """A short path to what is open here, or to what is in it: a socket's address has 107 bytes at most."""
    return "/".join((f"/proc/self/fd/{descriptor}", *inside))


def remove(folder: int, name: str) -> None:
    """Remove a socket; what is gone, or is none, is passed by. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)


def clear(directory: Path, name: str) -> None:
    """Remove the folder and all sockets in it, at the end of a node. Other files stay, and so does the folder then."""
    with contextlib.suppress(OSError):
        with opened(directory, name) as folder:
            for entry in os.listdir(folder):
                remove(folder, entry)
        os.rmdir(directory / name)
