"""Where a gateway listens. Ports are shared by the gateways of a node when there are several (SO_REUSEPORT: the kernel
deals connections out among them), and so are Unix sockets (unix_sockets.py). Ports that speak TLS: tls_port.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio import sslproto
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from warren.engine.addresses import Address, addresses
from warren.engine.config import Settings
from warren.engine.errors import UsageError
from warren.workers.amqp.tls_port import TlsPort
from warren.workers.process import tls

BACKLOG = 1024
#: asyncio has a buffer of 256 KiB for each peer of TLS, and fills it with zeros before the peer has said anything
TLS_BUFFER_BYTES = 1 << 15
#: the file of a Unix socket stays while another gateway accepts from it
_KEEP_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class Listening(Protocol):
    """What accepts connections."""

    def close(self) -> None:
        """Accept no more of them; those that are there go on."""


async def listen(
    settings: Settings, unix: Mapping[str, socket.socket], handshakes: int, protocol: Callable[[], asyncio.BaseProtocol]
) -> tuple[list[Listening], list[str]]:
    """Listen at all addresses, `unix`: those that are open; returns what accepts, and the addresses with the ports that
    they have. `handshakes`: of TLS at once. Raises UsageError (saying what to do), OSError.
    """
    loop = asyncio.get_running_loop()
    servers: list[Listening] = []
    listening: list[str] = []
    found = addresses("amqp", settings.amqp)
    tls_context = None
    limit = asyncio.Semaphore(handshakes)
    if any(one.kind == "tls" for one in found):
        tls_context = tls.context(settings)
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    try:
        for sock in unix.values():
            kept = sock.dup()  # the server closes its own
            servers.append(await loop.create_unix_server(protocol, sock=kept, backlog=BACKLOG, **_KEEP_FILE))
        for address in found:
            if address.kind == "unix":
                continue
            try:
                server = await loop.create_server(
                    protocol,
                    address.host,
                    address.port,
                    backlog=BACKLOG,
                    reuse_address=True,
                    reuse_port=settings.amqp_processes > 1,
                    start_serving=address.kind != "tls",
                )
                servers.append(server)
                port = server.sockets[0].getsockname()[1]
                if address.kind == "tls" and tls_context is not None:
                    socks = [sock.dup() for sock in server.sockets]
                    server.close()
                    servers += [TlsPort(sock, tls_context, limit, protocol) for sock in socks]
                    for sock in socks:
                        sock.listen(BACKLOG)
            except OSError as error:
                raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from error
            listening.append(str(Address(address.kind, address.host, port)))
        listening += [f"unix:{path}" for path in unix]
    except BaseException:
        for one in servers:
            one.close()
        raise
    return servers, listening
