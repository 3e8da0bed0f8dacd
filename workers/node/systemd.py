"""What the service manager is told, when there is one."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Tell systemd (Type=notify) how far we are; nothing without it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), address)
