"""Where a gateway listens. Ports are shared by the gateways of a node when there are several (SO_REUSEPORT: the kernel
deals connections out among them), and so are Unix sockets (unix_sockets.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from warren.engine.addresses import UNIX_PATH_MAX, Address, addresses
from warren.engine.config import Settings
from warren.engine.errors import UsageError
from warren.ipc import access

BACKLOG = 1024
TLS_HANDSHAKE_S = 10.0
#: the file of a Unix socket stays while another gateway accepts from it
_KEEP_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


async def listen(
    settings: Settings, unix: Mapping[str, socket.socket], protocol: Callable[[], asyncio.BaseProtocol]
) -> tuple[list[asyncio.Server], list[str]]:
    """Listen at all addresses, `unix`: those that are open; returns the servers, and the addresses with the ports that
    they have. Raises UsageError (saying what to do), OSError.
    """
    loop = asyncio.get_running_loop()
    servers: list[asyncio.Server] = []
    listening: list[str] = []
    tls = _tls(settings)
    try:
        for sock in unix.values():
            kept = sock.dup()  # the server closes its own
            servers.append(await loop.create_unix_server(protocol, sock=kept, backlog=BACKLOG, **_KEEP_FILE))
        for address in addresses("amqp", settings.amqp):
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
                    ssl=tls if address.kind == "tls" else None,
                    ssl_handshake_timeout=TLS_HANDSHAKE_S if address.kind == "tls" else None,
                )
            except OSError as error:
                raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from error
            servers.append(server)
            port = server.sockets[0].getsockname()[1]
            listening.append(str(Address(address.kind, address.host, port)))
        listening += [f"unix:{path}" for path in unix]
    except BaseException:
        for server in servers:
            server.close()
        raise
    return servers, listening


def unix_socket(path: Path) -> socket.socket:
    """A socket bound to a path, of the node's user or group. A socket file at which nobody listens is removed. Raises
    UsageError, OSError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    folder = -1
    try:
        _remove_stale(path)
        place = str(path)
        if len(os.fsencode(place)) > UNIX_PATH_MAX:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            place = f"/proc/self/fd/{folder}/{path.name}"
        before = os.umask(0o777 & ~access.file_mode())
        try:
            sock.bind(place)
        finally:
            os.umask(before)
        os.chmod(path, access.file_mode())
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen at unix:{path}: {error.strerror}: give another path") from error
    except BaseException:
        sock.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return sock


def _remove_stale(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"cannot listen at unix:{path}: there is a file of this name; move it away, or give another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                return
    raise UsageError(f"cannot listen at unix:{path}: another process does; end it, or give another path")


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """What tls: addresses are served with. Raises UsageError."""
    if not settings.amqp_tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.amqp_tls_certificate, settings.amqp_tls_key or None)
        if settings.amqp_tls_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(settings.amqp_tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot use the certificate {settings.amqp_tls_certificate} ({error}): see settings amqp_tls_certificate, "
            "amqp_tls_key and amqp_tls_ca"
        ) from error
    return context
