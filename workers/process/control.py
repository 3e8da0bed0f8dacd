"""The control protocol: questions and orders to the supervisor, over the unix socket `DIR/control.sock`.

A request is length:4 (big-endian) and a msgpack map {"op": …, fields}; the answer is {"ok": true, …} or {"ok":
false, "error": class of warren.engine.errors, "message": text}. One connection carries any number, one after
another.

    ping                                              {pid, state}
    status                                            the map of `warren status --json`
    settings                                          {settings, node_id, node_epoch}
    stop {timeout?, force?}                           {pid}, at once; the node has stopped when that process ends
    queues                                            {version, queues, exchanges, bindings}: the catalog
    declare_queue {name, durable?, arguments?, client?}
                                                      {queue: declaration, created, version}
    delete_queue {name, client?}                      {queue, version}
    declare_queues {queues: [{name, durable?, arguments?}], client?}
                                                      {new: [name], created, version}
    delete_queues {names, client?}                    {queues: how many, version}
    release_queues {client}                           {queues: names}: the exclusive queues of a client that leaves
    declare_exchange {name, type?, durable?, alternate?}
                                                      {exchange, created, version}
    delete_exchange {name}                            {exchange, version}
    bind {queue, exchange, routing_key?, arguments?, client?}
                                                      {version}
    unbind {queue, exchange, routing_key?, arguments?, client?}
                                                      {removed, version}
    bind_many, unbind_many {bindings: [{queue, exchange, routing_key?, arguments?}], client?}
                                                      {new or removed: how many, version}
    subscription {queue, name, delete?, client?}      {queue: declaration of the hidden queue, created, version}
    note {text}                                       {}: a line for the log and for `status`

`client` is the client epoch of who asks: exclusive queues belong to one.
Declarations are the maps of warren.engine.catalog.catalog. A request for many is one change: all of it or nothing. A
change is durable, and visible in `superblock.catalog_version`, before its answer. Only processes of the same user (or
root) are served. A connection that sends nonsense is closed; it harms nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import math
import os
import selectors
import socket
import stat
import struct
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from warren.engine import errors
from warren.engine.catalog.node_directory import CONTROL_SOCKET, NodeDirectory
from warren.engine.errors import Error, NodeNotRunning, PeerLost, SystemLimit, TimedOut, UsageError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.saying import command
from warren.ipc.layout import CONSTANTS
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock

NEW_SOCKET = CONTROL_SOCKET + atomic_file.NEW_SUFFIX
MESSAGE_BYTES_MAX = 64 << 20
CONNECTIONS_MAX = 512
WAIT_MAX_S = 1e6  #: the system takes no longer times than a few weeks
TELL_S = 0.8  #: after so long without an answer a client is told what it waits for
_HEAD = struct.Struct(">I")
_PEER = struct.Struct("3i")
#: operations that may be sent again when the answer was lost
REPEATABLE = {
    "ping",
    "status",
    "settings",
    "queues",
    "declare_queue",
    "declare_queues",
    "declare_exchange",
    "release_queues",
    "bind",
    "unbind",
    "bind_many",
    "unbind_many",
    "stop",
    "note",
}


def readable(text: str) -> str:
    """Text as it can be sent and printed: of a path that is no UTF-8, what is not is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class WantedQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue of a request for many."""

    name: str
    durable: bool = True
    arguments: dict[str, Any] | None = None


class WantedBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One binding of a request for many."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None


@functools.cache
def _fields_of(function: Callable[..., Any]) -> type[msgspec.Struct]:
    hints = typing.get_type_hints(function)
    parameters = [item for item in inspect.signature(function).parameters.values() if item.name != "self"]
    fields = [
        (item.name, hints[item.name]) if item.default is item.empty else (item.name, hints[item.name], item.default)
        for item in parameters
    ]
    return msgspec.defstruct("Fields", fields, forbid_unknown_fields=True)


def checked_fields(handler: Callable[..., Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request in the types that its handler says. Raises msgspec.ValidationError for any others."""
    wanted = msgspec.convert(fields, _fields_of(getattr(handler, "__func__", handler)))
    return {name: getattr(wanted, name) for name in wanted.__struct_fields__}


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path of the socket that fits into a socket address, however deep the directory lies."""
    path = str(directory / CONTROL_SOCKET)
    if len(os.fsencode(path)) < 100:
        yield path
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
    finally:
        os.close(descriptor)


def encode(message: dict[str, Any]) -> bytes:
    """One message with its length. Raises UsageError for what cannot be sent."""
    try:
        payload = msgspec.msgpack.encode(message)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"text must be UTF-8, and {error.object[error.start : error.end]!r} in {error.object[:40]!r} is not: "
            "give text without lone surrogates"
        ) from error
    except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"this cannot be sent to the supervisor: {error}") from error
    return _HEAD.pack(len(payload)) + payload


class _Connection:
    """One client of the control socket: what came and is not complete, what goes and was not taken yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.incoming = bytearray()
        self.outgoing = bytearray()

    def requests(self) -> Iterator[dict[str, Any]]:
        """The complete requests that have come. Raises ValueError on nonsense."""
        while len(self.incoming) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self.incoming)
            if length > MESSAGE_BYTES_MAX:
                raise ValueError(f"a request of {length} bytes")
            if len(self.incoming) < _HEAD.size + length:
                return
            payload = bytes(self.incoming[_HEAD.size : _HEAD.size + length])
            del self.incoming[: _HEAD.size + length]
            message = msgspec.msgpack.decode(payload)
            if not isinstance(message, dict) or not isinstance(message.get("op"), str):
                raise ValueError("a request must be a map with an op")
            yield message


class ControlServer:
    """The supervisor's side. It lives in the supervisor's selector loop and never blocks.

    `answer(op, fields)` returns the fields of the answer or raises an Error. Register: the selector's data is a
    callable without arguments, which the loop calls when the descriptor is ready.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        selector: selectors.BaseSelector,
        answer: Callable[[str, dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._directory = directory
        self._place = list(directory.place)
        self._selector = selector
        self._answer = answer
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
                os.unlink(NEW_SOCKET, dir_fd=descriptor)
            path = f"/proc/self/fd/{descriptor}/{NEW_SOCKET}"  # in this directory, whatever its name leads to
            try:
                sock.bind(path)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._remove_file()
                sock.bind(path)
            os.chmod(NEW_SOCKET, stat.S_IRUSR | stat.S_IWUSR, dir_fd=descriptor)
            sock.listen(128)
            os.rename(NEW_SOCKET, CONTROL_SOCKET, src_dir_fd=descriptor, dst_dir_fd=descriptor)
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
        with contextlib.suppress(FileNotFoundError):
            if self._name_now() == self._name:
                return False
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

    def _remove_file(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CONTROL_SOCKET, dir_fd=self._directory.descriptor)

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
        if uid not in (0, os.geteuid()) or len(self._connections) >= CONNECTIONS_MAX:
            sock.close()
            return True
        sock.setblocking(False)
        connection = _Connection(sock)
        try:
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._ready(connection))
        except OSError as error:  # whoever asked asks again
            sock.close()
            if not atomic_file.is_limit(error) and error.errno != errno.ENOSPC:
                raise
            return True
        self._connections.add(connection)
        return True

    def _ready(self, connection: _Connection) -> None:
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
        try:
            for request in connection.requests():
                connection.outgoing += self._one(request)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            connection.outgoing += encode(_refusal(UsageError(f"the control socket cannot read this: {error}")))
            self._send(connection)
            self._drop(connection)
            return
        self._send(connection)

    def _one(self, request: dict[str, Any]) -> bytes:
        """The answer to one request, as it is sent."""
        op = request.pop("op")
        at = request.pop("at", None)
        try:
            if at is not None and at != self._place:
                raise NodeNotRunning("this socket is of a node of another directory: it was copied as a hard link")
            return encode({"ok": True, **self._answer(op, request)})
        except Error as error:
            return encode(_refusal(error))
        except (TypeError, msgspec.MsgspecError) as error:  # a field is missing, unknown, or of a wrong type
            return encode(_refusal(UsageError(f"{op}: {error}")))

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
        request = encode({"op": op, "at": self.directory.place, **fields})
        pause = 0.001
        starting: NodeNotRunning | None = None  # what it answered
        while True:
            fresh = self._socket is None
            try:
                return self._exchange(op, request, deadline)
            except TimeoutError as error:
                self.close()
                if starting is not None:
                    raise starting from error
                raise TimedOut(
                    f"the supervisor of {self.directory.path} did not answer {op} within {timeout:g} s: "
                    f"{self.silence()}"
                ) from error
            except _NotSent as error:
                self.close()
                if fresh and not self._node_lives():
                    raise NodeNotRunning(
                        f"no node runs for {self.directory.path}: start one with {command('up', self.directory.path)}"
                    ) from error
            except NodeNotRunning as error:  # it says so itself: nothing was done
                self.close()
                if not self._node_lives():
                    raise
                starting = error
            except (ConnectionError, EOFError) as error:
                self.close()
                if op not in REPEATABLE:
                    raise PeerLost(
                        f"the supervisor of {self.directory.path} died before it answered {op}: "
                        "look whether it was done, and repeat it"
                    ) from error
                if not self._node_lives():
                    raise NodeNotRunning(
                        f"the node of {self.directory.path} stopped before it answered {op}"
                    ) from error
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
        (length,) = _HEAD.unpack(self._receive(sock, _HEAD.size, deadline))
        if length > MESSAGE_BYTES_MAX:
            raise PeerLost(f"the answer to {op} has {length} bytes: this is not a supervisor of Warren")
        answer = msgspec.msgpack.decode(self._receive(sock, length, deadline), type=dict[str, Any])
        if answer.pop("ok", False):
            return answer
        raise errors.by_name(str(answer.get("error")), str(answer.get("message")))

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
                "there is no supervisor, and the servers that live are to start a new one; "
                f"{self.directory.log} says why if they cannot"
            )
        try:
            state = psutil.Process(pid).status()
        except psutil.Error:
            return f"its supervisor (process {pid}) cannot be seen from here: look for it in its own container"
        if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return f"its supervisor (process {pid}) is stopped: let it go on with `kill -CONT {pid}`"
        if not self.directory.control_socket.exists():
            return (
                f"its supervisor (process {pid}) has no socket {self.directory.control_socket}: it is just starting, "
                "or somebody removed it; it makes another one within a second, or says in "
                f"{self.directory.log_file('supervisor')} why it cannot"
            )
        if refused:
            return (
                f"nobody listens at {self.directory.control_socket}: its supervisor (process {pid}) is just starting "
                "or ending, or somebody replaced that file, as by a copy into the directory; it makes it anew "
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
        if self.directory.locked():
            return True
        try:
            superblock = Superblock.attach(self.directory.shared_id, LAYOUT_HASH)
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
