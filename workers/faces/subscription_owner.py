"""Whose a subscription is: one query's at a time.

Two readers of one subscription would each plan the claims that the other made, so its rows would come twice: as in a
union of two streams that were loaded with the same options. (One that was loaded once has one reader, however often the
query names it.) So the reader that plans takes the
subscription's byte of the node's lock file, at the number of the subscription, with a lock of the open file: the kernel
gives it back when the process ends, however it ends. (The supervisor holds the file itself by flock, which is another
lock and does not meet these.)

Crash points: a killed planner's lock is free at once. One that is stopped in order ends a moment later, so a successor
waits for it a while.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import weakref
from pathlib import Path

from warren.engine.catalog.node_directory import LOCK
from warren.engine.errors import UsageError
from warren.engine.kernel import data_files

#: how long a successor waits for the process of a query that ends
WAIT_S = 15.0
PAUSE_S = 0.05
# struct flock: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = struct.Struct("hh4xqqi4x")


class Owner:
    """Holds a subscription until `release`, or until the process ends."""

    def __init__(self, directory: str, number: int, what: str) -> None:
        """Take it; `number` tells it from the other ones of the node, `what` is its name for people.

        Raises UsageError when another query has it and does not let go within WAIT_S.
        """
        self._file = data_files.open(Path(directory, LOCK), os.O_RDWR)
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            self._take(number, what)
        except BaseException:
            self.release()
            raise

    def _take(self, number: int, what: str) -> None:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        end = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, wanted)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return
            if time.monotonic() >= end:
                raise UsageError(
                    f"{what} is read by another query, or by two streams of this query: its messages would come twice. "
                    "Load a stream once to use the same messages twice in a query; or give each its own "
                    '.option("subscription", "…"): they share the queue\'s messages'
                )
            time.sleep(PAUSE_S)

    def release(self) -> None:
        """Let go."""
        self._close()


def is_owned(directory: str, number: int) -> bool:
    """Whether a query holds the subscription now."""
    file = data_files.open(Path(directory, LOCK), os.O_RDONLY)
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)
