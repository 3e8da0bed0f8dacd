"""The doorbell of an event loop: a datagram socket that the node's servers ring (ipc/core/doorbell.h), so that the loop
wakes when something is there that it waits for, and no other thread has to wake first and tell it.

It is a file DIR/doorbells/<slot>-<generation> of the attachment. Where there can be none (another file system, a loop
without sockets, as many descriptors as may be) the waiting thread does its work, as it does when servers do not reach
it.

Crash points: killed or not, the file stays until the supervisor frees the slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.ipc import doorbells

if TYPE_CHECKING:
    from warren.workers.client.attachment import Attachment

#: of one ring; more of them lie there only if somebody else rings
RING_BYTES = 16


class Doorbell:
    """One of an attachment, watched by one event loop at a time."""

    def __init__(self, attachment: Attachment) -> None:
        """Raises OSError when there can be none."""
        slot = attachment.slot
        self.core = attachment.core
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            doorbells.bind(self._socket, attachment.descriptor, slot.slot, slot.generation)
        except BaseException:
            self._socket.close()
            raise
        self._end: weakref.finalize[..., object] = weakref.finalize(self, self._socket.close)

    def watch(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """`call()` in this loop when it is rung; the loop before is closed. Raises NotImplementedError."""
        loop.add_reader(self._socket, functools.partial(_rung, self._socket, call))
        self._end.detach()
        self._end = weakref.finalize(self, _forgotten, loop, self._socket, os.getpid())
        self.core.set_doorbell(True)

    def close(self) -> None:
        """It is rung no more; in its loop, in another process, or when its loop is closed."""
        kept = self._end.detach()
        if kept is not None and kept[1] is _forgotten:
            loop, _socket, pid = kept[2]
            if pid == os.getpid() and not loop.is_closed():
                loop.remove_reader(self._socket)
        self._socket.close()


def _rung(sock: socket.socket, call: Callable[[], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        sock.recv(RING_BYTES)
    call()


def _forgotten(loop: asyncio.AbstractEventLoop, sock: socket.socket, pid: int) -> None:
    """Nobody has the doorbell any more, and nobody has closed it; in any thread."""
    if pid == os.getpid():
        try:
            loop.call_soon_threadsafe(_unwatch, loop, sock)
        except RuntimeError:  # the loop is closed
            sock.close()
    else:
        sock.close()


def _unwatch(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    loop.remove_reader(sock)
    sock.close()
