"""Who is at the other end of a socket: what the kernel, or TLS, says of it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import pwd
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """One client's end. `uid` and `pid` are of a Unix socket alone (else -1), `certificate` of TLS: its common name."""

    name: str  #: for people, unique among those of a gateway at any time
    host: str = ""
    port: int = 0
    uid: int = -1
    pid: int = -1
    tls: bool = False
    certificate: str = ""

    @property
    def local(self) -> bool:
        """It is a process of this host, as far as the socket tells."""
        if self.uid >= 0:
            return True
        try:
            address = ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    @property
    def external(self) -> str:
        """The name that it proves by itself, for SASL EXTERNAL: of its Unix user, or its certificate; "" for none."""
        if self.uid >= 0:
            try:
                return pwd.getpwuid(self.uid).pw_name
            except KeyError:
                return str(self.uid)
        return self.certificate


def peer_of(transport: asyncio.Transport, number: int) -> Peer:
    """The peer of a connection that was just accepted; `number`: of the connection in its gateway."""
    sock: socket.socket = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        pid, uid, _gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return Peer(f"unix:{pid}#{os.getpid()}.{number}", uid=uid, pid=pid)
    there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    certificate = transport.get_extra_info("peercert")
    return Peer(
        f"{_place(there)} -> {_place(here)}",
        str(there[0]),
        int(there[1]),
        tls=transport.get_extra_info("sslcontext") is not None,
        certificate=_common_name(certificate or {}),
    )


def _place(address: tuple[object, ...]) -> str:
    host = str(address[0])
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


def _common_name(certificate: dict[str, object]) -> str:
    subject = certificate.get("subject", ())
    if not isinstance(subject, tuple):
        return ""
    names = [value for part in subject for name, value in part if name == "commonName"]
    return str(names[0]) if names else ""
