"""A port that speaks TLS. What is in its handshake costs some 80 KiB, and has no name yet: so many at once are limited,
and the others wait in the listen queue of the kernel, where they cost nothing.

Invariants
  No more than `limit` connections that were accepted are in their handshake; each ends within TLS_HANDSHAKE_S.
  After it a connection is one of the gateway's, which counts it against its own limit.
  Without a free descriptor nothing is accepted for ACCEPT_AGAIN_S, as asyncio's own servers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

TLS_HANDSHAKE_S = 10.0
ACCEPT_AGAIN_S = 1.0


class TlsPort:
    """Accepts from a socket that listens, and closes it at its end."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        limit: asyncio.Semaphore,
        protocol: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """`limit`: handshakes at once, of all ports that have it."""
        sock.setblocking(False)
        self._sock = sock
        self._context = context
        self._limit = limit
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting = self._loop.create_task(self._accept())
        self._accepting.add_done_callback(self._ended)

    def close(self) -> None:
        """Accept nothing more, and end the handshakes. Connections after theirs go on."""
        self._accepting.cancel()
        for task in self._shaking:
            task.cancel()

    async def _accept(self) -> None:
        while True:
            await self._limit.acquire()
            try:
                sock, _address = await self._loop.sock_accept(self._sock)
            except OSError as error:
                self._limit.release()
                if isinstance(error, ConnectionError):  # the peer has gone already
                    continue
                self._loop.call_exception_handler({"message": "a TLS port cannot accept", "exception": error})
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            except asyncio.CancelledError:
                self._limit.release()
                raise
            task = self._loop.create_task(self._shake(sock))
            self._shaking[task] = sock
            task.add_done_callback(self._shaken)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sock.close()  # the loop looks at it no more
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a TLS port accepts no more", "exception": error})

    def _shaken(self, task: asyncio.Task[None]) -> None:
        sock = self._shaking.pop(task)
        self._limit.release()
        if task.cancelled():
            sock.close()
        elif (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a TLS handshake failed", "exception": error})

    async def _shake(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # of ssl, too: it spoke no TLS, had no known certificate, was slow, or left
            await self._loop.connect_accepted_socket(
                self._protocol, sock, ssl=self._context, ssl_handshake_timeout=TLS_HANDSHAKE_S
            )
