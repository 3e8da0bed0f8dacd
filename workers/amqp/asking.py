"""How a gateway is asked for its connections, and told to close some: the questions are those of control.py."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.errors import NodeNotRunning, PeerLost, PermissionRefused, TimedOut
from warren.engine.kernel import data_files

ASK_S = 5.0
#: Unix sockets that a gateway hands out at once; the kernel takes 253 at most
LISTENERS_MAX = 64


def socket_path(directory: Path, index: int) -> Path:
    """Where the gateway of this number answers."""
    return directory / f"amqp-{index}.sock"


def ask(directory: Path, index: int, timeout: float = ASK_S, **question: str) -> dict[str, Any]:
    """The answer of one gateway. Raises NodeNotRunning (it does not run), TimedOut, PeerLost."""
    deadline = time.monotonic() + timeout
    received = bytearray()
    with _told(directory, index, timeout), _connected(socket_path(directory, index), timeout) as sock:
        sock.sendall(msgspec.json.encode(question) + b"\n")
        while not received.endswith(b"\n"):
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            part = sock.recv(1 << 16)
            if not part:
                raise PeerLost(f"gateway {index} of {directory} ended before it answered: try again")
            received += part
    answer: dict[str, Any] = msgspec.json.decode(bytes(received), type=dict[str, Any])
    if "error" in answer:
        raise PeerLost(f"gateway {index} of {directory}: {answer['error']}")
    return answer


@contextlib.contextmanager
def _told(directory: Path, index: int, timeout: float) -> Iterator[None]:
    """What goes wrong with the socket becomes an error that says what to do."""
    try:
        yield
    except PeerLost:
        raise
    except TimeoutError:
        raise TimedOut(f"gateway {index} of {directory} did not answer within {timeout:g} s: it is busy") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise NodeNotRunning(
            f"gateway {index} of {directory} does not run: see {directory / 'log'}/amqp-{index}.log"
        ) from None
    except PermissionError as error:
        raise PermissionRefused(f"{directory} is another user's: ask its gateways as its owner") from error
    except OSError as error:
        raise PeerLost(f"cannot ask gateway {index} of {directory}: {error.strerror}") from error


def listeners_of(directory: Path, index: int, timeout: float) -> dict[str, tuple[int, tuple[int, int]]]:
    """The Unix sockets at which a gateway listens: descriptors, the caller's from now on, and the device and inode of
    their files, by path. Raises NodeNotRunning, TimedOut, PeerLost.
    """
    with _told(directory, index, timeout), _connected(socket_path(directory, index), timeout) as sock:
        sock.sendall(msgspec.json.encode({"op": "listeners"}) + b"\n")
        line, descriptors, _flags, _address = socket.recv_fds(sock, 1 << 16, LISTENERS_MAX)
    try:
        places = msgspec.json.decode(line, type=dict[str, list[tuple[str, int, int]]]).get("listeners", [])
    except msgspec.MsgspecError:
        places = []
    if len(places) != len(descriptors):
        for descriptor in descriptors:
            os.close(descriptor)
        raise PeerLost(f"gateway {index} of {directory} did not hand out its Unix sockets: try again")
    return {
        path: (descriptor, (device, inode))
        for (path, device, inode), descriptor in zip(places, descriptors, strict=True)
    }


@contextlib.contextmanager
def _connected(path: Path, timeout: float) -> Iterator[socket.socket]:
    folder = data_files.open_folder(path.parent)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout)
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")  # however long its path is
            yield sock
    finally:
        os.close(folder)
