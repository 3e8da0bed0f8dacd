"""Heartbeats of one connection: something is sent in each half of the agreed time, and something has to come within two
of them.

While the gateway itself does not read (too much waits, an alarm is on) silence proves nothing: then what lies in the
socket, or leaves it, counts, and in an alarm nothing does, as a peer that is blocked has nothing to say. Nor does a
peer that has filled the socket: it has no room for a heartbeat.
"""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from typing import TYPE_CHECKING

from warren.engine.amqp import spec

if TYPE_CHECKING:
    import asyncio

    from warren.workers.amqp.interfaces import Link

#: halves of the agreed time without a sign of life after which the peer counts as gone
SILENT_HALVES = 4
#: bytes in a socket that may be all it takes
FILLED = 1 << 15
FRAME = bytes((spec.FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, spec.FRAME_END))


class Heartbeat:
    """The timer of one connection."""

    def __init__(self, connection: Link, seconds: int) -> None:
        self._connection = connection
        self._half_s = seconds / 2
        self._sent = self._heard = self._lying = 0
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._again()

    def stop(self) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = self._connection.gateway.events.call_later(self._half_s, self._tick)

    def _tick(self) -> None:
        connection = self._connection
        if self._alive():
            self._silent = 0
        else:
            self._silent += 1
            if self._silent >= SILENT_HALVES:
                self._timer = None
                connection.lost_peer(f"it sent nothing for {self._silent * self._half_s:g} s")
                return
        if connection.bytes_out == self._sent:
            connection.send(FRAME)
        self._sent = connection.bytes_out
        self._again()

    def _alive(self) -> bool:
        connection = self._connection
        heard, self._heard = self._heard, connection.bytes_in
        if connection.bytes_in != heard:
            return True
        if connection.blocked:
            return True
        if not connection.paused:
            return False
        lying, unsent = lying_in(connection.socket), connection.unsent
        before, self._lying = self._lying, lying - unsent
        if lying >= FILLED and not connection.flooded:
            return True
        return self._lying > before  # more has come, or more has gone


def lying_in(sock: socket.socket | None) -> int:
    """Bytes that have come and were not read."""
    if sock is None or sock.fileno() < 0:
        return 0
    found = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, found)
    return found[0]
