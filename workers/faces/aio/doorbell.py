"""The doorbell of an event loop: a datagram socket that the node's servers ring (ipc/core/doorbell.h), so that the loop
wakes when something is there that it waits for, and no other thread has to wake first and tell it.

It is a file DIR/doorbells/<slot>-<generation> of the attachment. Where there can be none (another file system, a loop
without sockets, as many descriptors as may be) the waiting thread does its work, as it does when servers do not reach
it (docs/design/042-doorbells.md).

Invariants
  Servers are told of it only while a loop watches it: set_doorbell comes after the loop has it, and is taken back
  before it goes. Rung too often is no harm: who is rung looks.
  The loop knows the number of the descriptor alone. Of a loop that keeps the object (uvloop) it would stay open when
  that loop is closed.

Crash points
  Killed or not, the file stays until the supervisor frees the slot.
  A loop that is closed reads it no more: the servers' first ring lies in it, and the waiting thread finds what came at
  its next look (50 ms), until the next loop of this client watches it.
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

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.errors import Error
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: weakref.finalize[..., object] = weakref.finalize(self, self._socket.close)

    def watch(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """`call()` in this loop when it is rung; the loop before is closed. Raises NotImplementedError, OSError: this
        loop cannot watch it; AttachmentLost, ClosedError.
        """
        loop.add_reader(self._socket.fileno(), functools.partial(_rung, self._socket, call))
        self._end.detach()
        self._loop, self._pid = loop, os.getpid()
        self._end = weakref.finalize(self, _forgotten, self.core, loop, self._socket, self._pid)
        self.core.set_doorbell(True)

    def close(self) -> None:
        """It is rung no more; in its loop, in another process, or when its loop is closed."""
        if self._end.detach() is not None and self._loop is not None and self._pid == os.getpid():
            _silence(self.core)
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


def _rung(sock: socket.socket, call: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # none is there; or the system is short of memory, and the loop is told again
        sock.recv(RING_BYTES)
    call()


def _silence(core: _core.Client) -> None:
    """The waiting thread does it again, for whoever is left."""
    with contextlib.suppress(AttachmentLost, Error):  # it has ended: nobody is told anything
        core.set_doorbell(False)


def _forgotten(core: _core.Client, loop: asyncio.AbstractEventLoop, sock: socket.socket, pid: int) -> None:
    """Nobody has the doorbell any more, and nobody has closed it; in any thread."""
    if pid == os.getpid():
        _silence(core)
        try:
            loop.call_soon_threadsafe(_unwatch, loop, sock)
        except RuntimeError:  # the loop is closed
            sock.close()
    else:
        sock.close()


def _unwatch(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    loop.remove_reader(sock.fileno())
    sock.close()
