"""A raw connection to a node's control socket, for what no client would send."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from warren.engine.catalog.node_directory import CONTROL_SOCKET


@contextlib.contextmanager
def connected(directory: Path) -> Iterator[socket.socket]:
    """A socket to the supervisor of a node, however long the directory's path is."""
    descriptor = os.open(directory, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}")
            yield sock
    finally:
        os.close(descriptor)
