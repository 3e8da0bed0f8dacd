"""The control protocol: questions and orders to the supervisor, over the unix socket `DIR/control.sock`.

A request is length:4 (big-endian) and a msgpack map {"op": …, fields} (requests.py says which); the answer is
{"ok": true, …} or {"ok": false, "error": class of warren.engine.errors, "message": text}. One connection carries any
number, one after another. Who is served says engine/catalog/ownership.py. This is the side that asks; the other
one is workers/node/control_server.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import errors
from warren.engine.catalog import ownership
from warren.engine.catalog.metadata import plain
from warren.engine.catalog.node_directory import CONTROL_SOCKET, NodeDirectory
from warren.engine.errors import Error, NodeNotRunning, PeerLost, SystemLimit, TimedOut, UsageError
from warren.engine.kernel import atomic_file, data_files
from warren.ipc.layout import CONSTANTS
from warren.ipc.region import RegionError
from warren.workers.process.requests import OPERATIONS

MESSAGE_BYTES_MAX = 64 << 20
WAIT_MAX_S = 1e6  #: the system takes no longer times than a few weeks
WITHIN = 0.9  #: of the time of a call: then the supervisor says why its answer takes longer
ANSWER_S = 0.05  #: a supervisor that has nothing else to do needs a part of this
TELL_S = 0.8  #: after so long without an answer a client is told what it waits for
HEAD = struct.Struct(">I")


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path of the socket that fits into a socket address, however deep the directory lies."""
    path = str(directory / CONTROL_SOCKET)
    if len(os.fsencode(path)) < 100:
        yield path
        return
    descriptor = data_files.open_folder(directory)
    try:
        yield f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
    finally:
        os.close(descriptor)


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode


def encode(message: dict[str, Any]) -> bytes:
    """One message with its length. Raises UsageError for what cannot be sent."""
    try:
        payload = _encode(message)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"text must be UTF-8, and {error.object[error.start : error.end]!r} in {error.object[:40]!r} is not: "
            "give text without lone surrogates"
        ) from error
    except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"this cannot be sent to the supervisor: {error}") from error
    return HEAD.pack(len(payload)) + payload


class ControlClient:
    """A client's side: `call(op, timeout=…, **fields)`. Not for several threads at once. Its connection opens by
    itself.

    While a node lives but its supervisor is being replaced, a call waits for the new one within its timeout.
    """

    def __init__(self, directory: Path | str, waiting: Callable[[str], None] | None = None) -> None:
        """`waiting` is told, once for each call that takes longer than a second, what is waited for."""
        self.directory = NodeDirectory(directory)
        self._waiting = waiting
        self._tell_at = math.inf
        self._socket: socket.socket | None = None
        self._refused = False  #: the last try found a socket file at which nobody listens
        self._pid = os.getpid()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, op: str, *, timeout: float = 30.0, **fields: Any) -> dict[str, Any]:
        """One request, and the fields of its answer.

        Raises what the supervisor refused it with, NodeNotRunning (no supervisor and nothing that would start one, or
        it is starting and takes longer), TimedOut, SystemLimit, PeerLost (the supervisor died before it answered:
        perhaps it was done, perhaps not).
        """
        with atomic_file.explained(f"cannot ask the supervisor of {self.directory.path}"):
            return self._call(op, timeout, fields)

    def _call(self, op: str, timeout: float, fields: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != self._pid:  # after a fork the parent's connection is not ours
            self.close()
            self._pid = os.getpid()
        deadline = time.monotonic() + timeout
        self._tell_at = time.monotonic() + TELL_S if self._waiting is not None else math.inf
        ownership.check_user(self.directory.path, reading=op in OPERATIONS and OPERATIONS[op].reads)
        if op in OPERATIONS and OPERATIONS[op].waits:
            fields = {"within": WITHIN * timeout, **fields}
        request = encode({"op": op, "at": self.directory.place, **fields})
        pause = 0.001
        starting: NodeNotRunning | None = None  # what it answered
        while True:
            fresh = self._socket is None
            try:
                answer = self._exchange(op, request, deadline)
                if answer.pop("ok", False):
                    return answer
                refused = errors.by_name(str(answer.get("error")), str(answer.get("message")))
                if isinstance(refused, NodeNotRunning):
                    raise refused
            except TimeoutError:
                self.close()
                if starting is not None:
                    raise starting from None
                why = "that is too short for an answer: give more" if timeout < ANSWER_S else self.silence()
                raise TimedOut(
                    f"the supervisor of {self.directory.path} did not answer {op} within {round(timeout, 3):g} s: {why}"
                ) from None
            except _NotSent:
                self.close()
                if fresh and not self._node_lives():
                    raise self.directory.none_runs() from None
            except NodeNotRunning as error:  # it says so itself: nothing was done
                self.close()
                if not self._node_lives():
                    raise
                starting = error
            except (ConnectionError, EOFError) as error:
                self.close()
                if op in OPERATIONS and not OPERATIONS[op].repeatable:
                    raise PeerLost(
                        f"the supervisor of {self.directory.path} died before it answered {op}: "
                        "check whether it was done, and repeat it if not"
                    ) from error
                if not self._node_lives():
                    raise NodeNotRunning(
                        f"the node of {self.directory.path} stopped before it answered {op}"
                    ) from error
            else:
                raise refused
            left = deadline - time.monotonic()
            if left <= 0:
                if starting is not None:
                    raise starting
                raise TimedOut(
                    f"no supervisor of {self.directory.path} answered {op} within {timeout:g} s: {self.silence()}"
                )
            self._tell()
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.02)

    def _exchange(self, op: str, request: bytes, deadline: float) -> dict[str, Any]:
        sock = self._socket
        if sock is None:
            sock = self._connect(deadline)
            self._socket = sock
        try:
            self._limit(sock, deadline)
            sock.sendall(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _NotSent from error
        (length,) = HEAD.unpack(self._receive(sock, HEAD.size, deadline))
        if length > MESSAGE_BYTES_MAX:
            raise PeerLost(f"the answer to {op} has {length} bytes: this is not a supervisor of Warren")
        return msgspec.msgpack.decode(self._receive(sock, length, deadline), type=dict[str, Any])

    def _connect(self, deadline: float) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._limit(sock, deadline)
            with _short_path(self.directory.path) as path:
                sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError, BlockingIOError) as error:
            sock.close()
            self._refused = isinstance(error, ConnectionRefusedError)
            raise _NotSent from error
        except PermissionError as error:
            sock.close()
            raise atomic_file.explain(error, f"cannot reach {self.directory.control_socket}") from error
        except BaseException:
            sock.close()
            raise
        return sock

    @staticmethod
    def _limit(sock: socket.socket, deadline: float, earlier: float = math.inf) -> None:
        """The next call on the socket takes no longer than until the deadline, or `earlier`."""
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError
        sock.settimeout(min(WAIT_MAX_S, max(0.001, min(deadline, earlier) - now)))

    def _tell(self) -> None:
        if self._waiting is not None and time.monotonic() >= self._tell_at:
            self._tell_at = math.inf
            self._waiting(self.silence())

    def silence(self) -> str:
        """Why nobody answers, as far as that can be seen, and what to do."""
        pid = self.directory.lock_holder() if self.directory.locked() else 0
        refused, self._refused = self._refused, False
        if not pid:
            return (
                f"there is no supervisor, and the servers that still run are to start a new one; {self.directory.log} "
                "says why if they cannot"
            )
        import psutil

        try:
            state = psutil.Process(pid).status()
        except psutil.Error:
            return f"its supervisor (process {pid}) cannot be seen from here: look for it in its own container"
        if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return f"its supervisor (process {pid}) is stopped: resume it with `kill -CONT {pid}`"
        if not self.directory.control_socket.exists():
            return (
                f"its supervisor (process {pid}) has no socket {self.directory.control_socket}: it is just starting, "
                "or the socket was removed; it makes another one within a second, or says in "
                f"{self.directory.log_file('supervisor')} why it cannot"
            )
        if refused:
            return (
                f"nothing listens at {self.directory.control_socket}: its supervisor (process {pid}) is just starting "
                "or ending, or that file was replaced, for example by a copy into the directory; it makes it again "
                f"within a second, or says in {self.directory.log_file('supervisor')} why it cannot"
            )
        return f"its supervisor (process {pid}) is busy; {self.directory.log_file('supervisor')} may say with what"

    def _receive(self, sock: socket.socket, length: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < length:
            self._limit(sock, deadline, self._tell_at)
            try:
                part = sock.recv(length - len(received))
            except TimeoutError:
                self._tell()
                continue  # `_limit` knows whether there is time left
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _node_lives(self) -> bool:
        """True while a supervisor starts or stops, or servers live that will start a new one."""
        if self.directory.in_use():
            return True
        try:
            superblock = self.directory.superblock()
        except SystemLimit:
            raise
        except (Error, RegionError):
            return False
        try:
            if superblock.state == CONSTANTS["NODE_STOPPED"]:
                return False
            return any(
                identity.pid and identity.alive()
                for identity in map(superblock.server_identity, range(superblock.servers_n))
            )
        finally:
            superblock.close()


class _NotSent(Exception):
    """The request has certainly not reached a supervisor."""
