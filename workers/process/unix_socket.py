"""A Unix socket at a path: bound, or tried before a node begins, so that a path that cannot be refuses the start.

A socket file at which nobody listens is what a killed process left: it is removed. Any other file stays.

Crash point of a trial: killed between bind and removal, it leaves such a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from warren.engine.addresses import UNIX_PATH_MAX
from warren.engine.errors import UsageError
from warren.engine.kernel import data_files
from warren.ipc import access

#: a process of a killed node ends within a moment
FREE_S = 3.0
_ADVICE = {
    errno.ENOENT: "make the folder that it is to lie in, or give another path",
    errno.ENOTDIR: "what stands before its last / is no folder; give another path",
    errno.EACCES: "the node's user may not write into its folder; let him, or give another path",
    errno.EPERM: "the node's user may not write into its folder; let him, or give another path",
    errno.EROFS: "its file system takes no files; give another path",
}


def try_out(path: Path) -> None:
    """Can a socket be bound here? Nothing is left of the trial. It waits a moment for one that is in use. Raises
    UsageError.
    """
    deadline = time.monotonic() + FREE_S
    while _answers(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    with bound(path), contextlib.suppress(FileNotFoundError):
        data_files.unlink(path)


def bound(path: Path) -> socket.socket:
    """A socket bound to a path, of the node's user or group. Raises UsageError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        _remove_stale(path)
        with _short(path) as place:
            before = os.umask(0o777 & ~access.object_mode())
            try:
                sock.bind(place)
            finally:
                os.umask(before)
        data_files.set_mode(path, access.object_mode())
    except OSError as error:
        sock.close()
        advice = _ADVICE.get(error.errno or 0, "give another path")
        raise UsageError(f"cannot listen at unix:{path}: {error.strerror}: {advice}") from error
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path that fits into a socket address, while this lasts. Raises OSError."""
    if len(os.fsencode(path)) <= UNIX_PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove_stale(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"cannot listen at unix:{path}: there is a file of this name; move it away, or give another")
    if _answers(path):
        raise UsageError(f"cannot listen at unix:{path}: another process does; end it, or give another path")
    with contextlib.suppress(FileNotFoundError):
        data_files.unlink(path)


def _answers(path: Path) -> bool:
    """Whether a process listens there, or may: it cannot be asked. False: nobody does, or there is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1.0)
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                return False
            with _short(path) as place:
                probe.connect(place)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True
