"""The supervisor's side of the control protocol (workers/process/control.py): it listens, reads requests, and answers.

It lives in the supervisor's selector loop and never blocks. A request is checked as a whole before its handler is
called. A connection that sends nonsense is closed; it harms nobody else. When there are CONNECTIONS_MAX, a new one
replaces the one that was silent for longest; its client opens another with its next request.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from warren.engine.catalog.node_directory import CONTROL_SOCKET, NodeDirectory
from warren.engine.errors import Error, NodeNotRunning, PermissionRefused, UsageError
from warren.engine.kernel import atomic_file, data_files
from warren.engine.saying import readable
from warren.ipc import access
from warren.workers.process.control import HEAD, MESSAGE_BYTES_MAX, encode
from warren.workers.process.requests import OPERATIONS, Request

NEW_SOCKET = CONTROL_SOCKET + atomic_file.NEW_SUFFIX
CONNECTIONS_MAX = 512
_PEER = struct.Struct("3i")
#: what returns the fields of an answer, or None while it is not there yet; it may raise an Error
Later = Callable[[], dict[str, Any] | None]
#: requests of one class → what answers them, with the fields of the answer or an Error, or later
Table = Mapping[type[Request], Callable[[Any], dict[str, Any] | Later]]


class _Connection:
    """One client of the control socket: what came and is not complete, what goes and was not taken yet."""

    def __init__(self, sock: socket.socket, uid: int) -> None:
        self.sock = sock
        self.uid = uid  #: of who asks
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.later: tuple[str, Later] | None = None  #: operation whose answer is not there; the next ones wait for it
        self.heard_at = time.monotonic()

    def silent(self) -> bool:
        """No request of it is being answered, or waits to be read."""
        if self.later is not None:
            return False
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except OSError:  # BlockingIOError: nothing is there
            return True

    def requests(self) -> Iterator[dict[str, Any]]:
        """The complete requests that have come, up to one whose answer comes later. Raises ValueError on nonsense."""
        while self.later is None and len(self.incoming) >= HEAD.size:
            (length,) = HEAD.unpack_from(self.incoming)
            if length > MESSAGE_BYTES_MAX:
                raise ValueError(f"a request of {length} bytes")
            if len(self.incoming) < HEAD.size + length:
                return
            payload = bytes(self.incoming[HEAD.size : HEAD.size + length])
            del self.incoming[: HEAD.size + length]
            message = msgspec.msgpack.decode(payload)
            if not isinstance(message, dict) or not isinstance(message.get("op"), str):
                raise ValueError("a request must be a map with an op")
            yield message


class ControlServer:
    """Listens at the socket of a directory. The data that it registers with the selector is a callable without
    arguments, which the loop calls when the descriptor is ready.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        selector: selectors.BaseSelector,
        table: Table,
    ) -> None:
        self._directory = directory
        self._place = list(directory.place)
        self._selector = selector
        self._table = table
        self.asked_at = -math.inf  #: when the last request came that it knows
        self._connections: set[_Connection] = set()
        self._socket, self._name = self._listen()
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _listen(self) -> tuple[socket.socket, tuple[int, int]]:
        """A socket that listens at the name, and the place of that name, which leads to this one or to the one before
        at every moment, unless there is no room for two. Raises StoreError and its kinds.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        descriptor = self._directory.descriptor
        try:
            with contextlib.suppress(FileNotFoundError):
                data_files.unlink(NEW_SOCKET, folder=descriptor)
            path = f"/proc/self/fd/{descriptor}/{NEW_SOCKET}"  # in this directory, whatever its name leads to
            try:
                sock.bind(path)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._remove_file()
                sock.bind(path)
            data_files.set_mode(NEW_SOCKET, access.object_mode(), folder=descriptor)  # its group is the directory's
            sock.listen(128)
            data_files.rename(NEW_SOCKET, CONTROL_SOCKET, folder=descriptor)
            return sock, self._name_now()
        except OSError as error:
            sock.close()
            raise atomic_file.explain(error, f"cannot listen on {self._directory.control_socket}") from error

    def _name_now(self) -> tuple[int, int]:
        found = os.stat(CONTROL_SOCKET, dir_fd=self._directory.descriptor, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def mend(self) -> bool:
        """Listen anew when the socket's name is gone or leads elsewhere, as after a copy into the directory. True: so
        it was. Raises StoreError and its kinds when that cannot be mended now.
        """
        try:
            if self._name_now() == self._name:
                return False
        except FileNotFoundError:
            pass
        except OSError as error:  # the directory was given to another user, say: no node ends of that
            raise atomic_file.explain(error, f"cannot look at {self._directory.control_socket}") from error
        sock, name = self._listen()
        while self._accept():  # who asked the old one just before
            pass
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket, self._name = sock, name
        self._selector.register(sock, selectors.EVENT_READ, self._accept)
        return True

    def close(self, *, remove: bool = True) -> None:
        """Close every connection and the socket; `remove` false is for a child after a fork."""
        for connection in list(self._connections):
            self._drop(connection, unregister=remove)
        if remove:
            self._selector.unregister(self._socket)
            self._remove_file()
        self._socket.close()

    def flush(self, timeout: float) -> None:
        """Give clients a moment to take their answers, before the socket is closed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and any(item.outgoing for item in self._connections):
            for connection in list(self._connections):
                self._send(connection)

    @property
    def owes(self) -> bool:
        """Whether somebody waits for an answer that is not there yet: `turn` looks for it."""
        return any(item.later is not None for item in self._connections)

    def turn(self) -> None:
        """Send the answers that are there by now."""
        for connection in [item for item in self._connections if item.later is not None]:
            assert connection.later is not None
            op, look = connection.later
            if answer := self._said(op, look):
                connection.outgoing += answer
                connection.later = None
                self._serve(connection)

    def _remove_file(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            data_files.unlink(CONTROL_SOCKET, folder=self._directory.descriptor)

    def _accept(self) -> bool:
        """Take one connection that waits. False: there is none, or no room for it."""
        try:
            sock, _address = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:
            if atomic_file.is_limit(error):
                return False  # it stays in the backlog until there is a descriptor, or memory
            raise
        uid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
        known = access.group() != access.ALONE or uid in (0, os.geteuid())  # the socket's mode has let in a member
        if not known or not self._has_room():
            sock.close()
            return True
        sock.setblocking(False)
        connection = _Connection(sock, uid)
        try:
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._ready(connection))
        except OSError as error:  # whoever asked asks again
            sock.close()
            if not atomic_file.is_limit(error) and error.errno != errno.ENOSPC:
                raise
            return True
        self._connections.add(connection)
        return True

    def _has_room(self) -> bool:
        """Whether there is room for one more; if not, the connection that was silent for longest is closed."""
        if len(self._connections) < CONNECTIONS_MAX:
            return True
        by_silence = sorted(self._connections, key=lambda connection: connection.heard_at)
        silent = next((connection for connection in by_silence if connection.silent()), None)
        if silent is None:
            return False
        self._drop(silent)
        return True

    def _ready(self, connection: _Connection) -> None:
        connection.heard_at = time.monotonic()
        self._send(connection)
        if connection not in self._connections:
            return
        try:
            received = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(connection)
            return
        connection.incoming += received
        if connection.later is not None and len(connection.incoming) > MESSAGE_BYTES_MAX + HEAD.size:
            self._drop(connection)  # it asks and asks, before it was answered
            return
        self._serve(connection)

    def _serve(self, connection: _Connection) -> None:
        """Answer what has come."""
        try:
            for request in connection.requests():
                connection.outgoing += self._one(request, connection)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            connection.outgoing += encode(_refusal(UsageError(f"the control socket cannot read this: {error}")))
            self._send(connection)
            self._drop(connection)
            return
        self._send(connection)

    def _one(self, request: dict[str, Any], connection: _Connection) -> bytes:
        """The answer to one request, as it is sent; empty: it comes later."""
        op = request.pop("op")
        at = request.pop("at", None)

        def answer() -> dict[str, Any] | None:
            if at is not None and at != self._place:
                raise NodeNotRunning("this socket is of a node of another directory: it was copied as a hard link")
            found = self._answer(op, request, connection.uid)
            if isinstance(found, dict):
                return found
            connection.later = op, found
            return found()

        said = self._said(op, answer)
        if said:
            connection.later = None
        return said

    def _said(self, op: str, answer: Later) -> bytes:
        """An answer or an error, as it is sent; empty: it is not there yet."""
        try:
            found = answer()
            return b"" if found is None else encode({"ok": True, **found})
        except Error as error:
            return encode(_refusal(error))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:  # in the handler: a defect
            return encode(_refusal(Error(f"{op} failed in the supervisor: {type(error).__name__}: {error}")))

    def _answer(self, op: str, fields: dict[str, Any], uid: int) -> dict[str, Any] | Later:
        kind = OPERATIONS.get(op)
        if kind is None:
            raise UsageError(f"the supervisor knows no operation {op!r}: are client and node of the same version?")
        if uid != os.geteuid() and not kind.reads and (kind.owners or access.group() == access.ALONE):
            raise PermissionRefused(
                f"{self._directory.path} belongs to {access.user(os.geteuid())}, and {access.user(uid)} asked "
                f"its node for {op}: ask as its owner"
            )
        self.asked_at = time.monotonic()
        try:
            request = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:  # a field is missing, unknown, or of a wrong type
            raise UsageError(f"{op}: {error}") from error
        return self._table[kind](request)

    def _send(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            while connection.outgoing:
                sent = connection.sock.send(connection.outgoing)
                del connection.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if len(connection.outgoing) > MESSAGE_BYTES_MAX:
            self._drop(connection)  # it asks and asks, and reads nothing
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, lambda: self._ready(connection))

    def _drop(self, connection: _Connection, *, unregister: bool = True) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            if unregister:
                self._selector.unregister(connection.sock)
            connection.sock.close()


def _refusal(error: Error) -> dict[str, Any]:
    return {"ok": False, "error": type(error).__name__, "message": readable(str(error))}
