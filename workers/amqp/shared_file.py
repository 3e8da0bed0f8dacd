"""`DIR/amqp.shared`: what the gateway processes of a node share when there are several: locks, and a section of each.

Each has a section that it alone writes, and holds a lock while it lives: whose lock is free is dead, and what stands in
its section counts for nothing. The kernel frees locks however a process dies, together with its sockets. One gateway
alone has no such file.

Locks are those of open file descriptions, on single bytes that need not be there:

    0 …     of the gateway with this number, all its life
    1000    whoever decides by what stands in all sections (`deciding`)
    1001    whoever looks who has a Unix socket, and makes it (`binding`)

Crash points: killed anywhere, its locks are free, and its successor empties the section before it counts. The file
stays when the node ends; what stands in it means nothing then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from warren.engine.errors import PeerLost, TimedOut
from warren.engine.kernel import data_files
from warren.ipc import access

NAME = "amqp.shared"
_DECIDING, _BINDING = 1000, 1001
#: struct flock, with l_pid 0 as locks of open file descriptions want it
_FLOCK = struct.Struct("hhqqi4x")
#: how long the gateway that had the number before is waited for
PREDECESSOR_S = 5.0
#: how long who decides is waited for: it takes some microseconds unless its process was stopped
DECIDING_S = 0.05
PAUSE_S = 0.001


class SharedFile:
    """The file as one gateway has it open."""

    def __init__(self, directory: Path, index: int, gateways: int, section_bytes: int) -> None:
        """It blocks for a moment. Raises PeerLost, OSError."""
        self.index, self.gateways = index, gateways
        self._section = -(-section_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._descriptor = data_files.open(directory / NAME, os.O_RDWR | os.O_CREAT, access.PRIVATE)
        try:
            if not self._wait_for(index, PREDECESSOR_S):
                raise PeerLost(f"another process is still gateway {index} of {directory}: wait until it ends")
            size = gateways * self._section
            if os.fstat(self._descriptor).st_size < size:
                os.ftruncate(self._descriptor, size)
            self._map = mmap.mmap(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._bytes = memoryview(self._map)

    def close(self) -> None:
        """Give it back."""
        self._bytes.release()
        self._map.close()
        os.close(self._descriptor)

    def section(self, index: int) -> memoryview:
        """That of a gateway; the caller writes into its own alone, and releases it."""
        return self._bytes[index * self._section : (index + 1) * self._section]

    def find(self, index: int, wanted: bytes, start: int, end: int) -> int:
        """The first place of these bytes in [start, end) of a gateway's section, -1: none."""
        base = index * self._section
        found = self._map.find(wanted, base + start, base + end)
        return found - base if found >= 0 else -1

    def living(self) -> list[int]:
        """Which other gateways live."""
        return [index for index in range(self.gateways) if index != self.index and self._is_held(index)]

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Nobody else decides meanwhile, unless whoever did was stopped while it had the lock."""
        locked = self._wait_for(_DECIDING, DECIDING_S)
        try:
            yield
        finally:
            if locked:
                self._lock(_DECIDING, fcntl.F_UNLCK)

    @contextlib.contextmanager
    def binding(self, timeout: float, given_up: Callable[[], bool]) -> Iterator[bool]:
        """No other gateway looks for Unix sockets meanwhile; False: it was given up. It blocks. Raises TimedOut."""
        if not self._wait_for(_BINDING, timeout, given_up):
            if given_up():
                yield False
                return
            raise TimedOut(f"another gateway has looked for its Unix sockets for {timeout:g} s, and has not ended it")
        try:
            yield True
        finally:
            self._lock(_BINDING, fcntl.F_UNLCK)

    # -- locks --------------------------------------------------------------------------------------------------

    def _wait_for(self, byte: int, timeout: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        deadline = time.monotonic() + timeout
        while not self._lock(byte, fcntl.F_WRLCK):
            if time.monotonic() >= deadline or given_up():
                return False
            time.sleep(PAUSE_S)
        return True

    def _lock(self, byte: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _is_held(self, byte: int) -> bool:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
