"""Where a gateway listens: the words of a setting, and what they mean.

    5672                    127.0.0.1, this port
    HOST:PORT, [IPV6]:PORT  this address of the host; 0.0.0.0 and [::] are all of them; port 0: any that is free
    tls:HOST:PORT           the same with TLS
    unix:PATH               a Unix socket; a relative path lies in the data directory

Several are separated by commas.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from warren.engine.errors import UsageError
from warren.engine.saying import shown

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
#: bytes of a path that fit into a socket address, with the zero behind it
UNIX_PATH_MAX = 107


@dataclass(frozen=True)
class Address:
    """One place to listen at."""

    kind: Literal["tcp", "tls", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.kind == 'tls' else ''}{host}:{self.port}"


def addresses(setting: str, text: str) -> tuple[Address, ...]:
    """The addresses that a setting has. Raises UsageError, which names the setting and the part that is wrong."""
    found = tuple(_address(setting, part.strip()) for part in text.split(",") if part.strip())
    doubled = {str(address) for address in found if found.count(address) > 1 and (address.path or address.port)}
    if doubled:
        raise UsageError(f"setting {setting} has {shown(min(doubled))} twice: leave one out")
    return found


def _address(setting: str, text: str) -> Address:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path:
            raise UsageError(f"setting {setting}: unix: is followed by the path of a socket, not {shown(path)}")
        if len(os.fsencode(path)) > UNIX_PATH_MAX:
            raise UsageError(f"setting {setting}: the path of a Unix socket has at most {UNIX_PATH_MAX} bytes: {path}")
        return Address("unix", path=path)
    scheme, url, rest = text.partition("://")
    if url:
        place = rest.partition("/")[0].rpartition("@")[2]
        example = f"{'tls:' if scheme.lower() == 'amqps' else ''}{place or 'HOST:PORT'}"
        raise UsageError(
            f"setting {setting} takes an address, not a URL as {shown(text)}, which is for clients: write {example}"
        )
    kind: Literal["tcp", "tls"] = "tls" if text.startswith("tls:") else "tcp"
    host, colon, port = text.removeprefix("tls:").rpartition(":")
    if not colon:
        host = LOOPBACK
    elif host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"setting {setting}: write the IPv6 address of {shown(text)} in brackets, as [::1]:5672")
    if not host or host.isspace():
        raise UsageError(
            f"setting {setting}: {shown(text)} names no address; 0.0.0.0{colon}{port} is all of this host's"
        )
    if not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise UsageError(
            f"setting {setting} takes HOST:PORT, a port alone (of {LOOPBACK}), tls:HOST:PORT or unix:PATH, not "
            f"{shown(text)}"
        )
    return Address(kind, host, int(port))
