"""What a gateway tells of itself, and what it is told: a Unix socket of its own, `DIR/amqp-<i>.sock`. This is the side
that answers; the other one is asking.py.

A socket, and no file or shared memory: who asks gets the present state of all connections without the gateway writing
it again and again for nobody, and the same way leads back, to close one. The supervisor asks nobody, so that it waits
for nobody; those who want it ask the gateways themselves (`warren gateway`, `warren status`, `warren top`).

One line of JSON is the question, one the answer:

    {"op": "facts"}                             addresses, counters
    {"op": "connections"}                       the same, with each connection and its channels
    {"op": "close", "name": …, "reason": …}     {"closed": how many}
    {"op": "listeners"}                         {"listeners": [[path, device, inode]]}, and their descriptors: for
                                                another gateway, which accepts from the same Unix sockets

The socket is its owner's (and the group's); who closes connections is the owner of the node, or root.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from typing import Any

import msgspec

from warren.engine.amqp import spec
from warren.engine.kernel import data_files
from warren.engine.saying import readable
from warren.workers.amqp.asking import ASK_S, LISTENERS_MAX, socket_path
from warren.workers.amqp.faults import ConnectionFault
from warren.workers.amqp.interfaces import House, Link
from warren.workers.process import unix_socket

log = logging.getLogger("warren.amqp")

QUESTION_BYTES_MAX = 1 << 16
REASON_MAX = 200
_PEER = struct.Struct("3i")


async def serve(gateway: House) -> asyncio.Server:
    """Answer from now on. Raises UsageError."""
    path = socket_path(gateway.path, gateway.index)
    with contextlib.suppress(FileNotFoundError):
        data_files.unlink(path)  # of the one before: the role is this process's
    sock = unix_socket.bound(path)
    return await asyncio.start_unix_server(
        lambda reader, writer: _serve_one(gateway, reader, writer), sock=sock, limit=QUESTION_BYTES_MAX
    )


def remove(gateway: House) -> None:
    """At the end."""
    with contextlib.suppress(OSError):
        data_files.unlink(socket_path(gateway.path, gateway.index))


async def _serve_one(gateway: House, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        sock = writer.get_extra_info("socket")
        uid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
        line = await asyncio.wait_for(reader.readline(), ASK_S)
        answer = _answer(gateway, line, uid)
        if "listeners" in answer:
            with sock.dup() as own:
                _hand_out(gateway, own)
            return
        writer.write(msgspec.json.encode(answer) + b"\n")
        await asyncio.wait_for(writer.drain(), ASK_S)
    except (OSError, ValueError, TimeoutError) as error:  # who asks is slow, or gone, or asks for too much
        log.info("a question at the control socket was not answered: %s", repr(error))
    finally:
        writer.close()


def _hand_out(gateway: House, own: socket.socket) -> None:
    """The Unix sockets to another gateway: one short message, for which there is room."""
    held = list(gateway.unix.held.items())[:LISTENERS_MAX]  # _answer leaves that to this
    line = msgspec.json.encode({"listeners": [[path, *one.place] for path, one in held]}) + b"\n"
    socket.send_fds(own, [line], [one.sock.fileno() for _path, one in held])


def _answer(gateway: House, line: bytes, uid: int) -> dict[str, Any]:
    try:
        asked = msgspec.json.decode(line, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return {"error": f"a question is a line of JSON, an object of texts: {error}"}
    op = asked.get("op")
    if op == "facts":
        return facts_of(gateway)
    if op == "connections":
        return facts_of(gateway) | {"connections": [of_connection(one) for one in gateway.connections]}
    if op == "close":
        if uid not in (0, os.geteuid()):
            return {"error": "connections are closed by the owner of the node"}
        return {"closed": _close(gateway, asked.get("name", ""), asked.get("reason", ""))}
    if op == "listeners":
        if uid != os.geteuid():
            return {"error": "the sockets of a gateway are for other gateways of the node"}
        return {"listeners": True}
    return {"error": f"there is no question {op!r}"}


def _close(gateway: House, name: str, reason: str) -> int:
    """As rabbitmqctl close_connection: 320."""
    wanted = [one for one in gateway.connections if name in (one.peer.name, _given_name(one))]
    said = reason[:REASON_MAX] or "closed by an operator"
    for connection in wanted:
        connection.fail(ConnectionFault(spec.CONNECTION_FORCED, said))
    return len(wanted)


def facts_of(gateway: House) -> dict[str, Any]:
    """Of the whole process."""
    connections = gateway.connections
    return {
        "index": gateway.index,
        "pid": os.getpid(),
        "since": gateway.began,
        "listening": gateway.listening,
        "alarm": gateway.alarm,
        "connections_n": len(connections),
        "channels_n": sum(len(one.tenants) for one in connections),
        "blocked_n": sum(one.blocked for one in connections),
        "opened_n": gateway.opened_n,
        "refused_logins_n": gateway.logins.refused_n,
    }


def _given_name(connection: Link) -> str:
    given = connection.client_properties.get("connection_name", "")
    return given if isinstance(given, str) else ""


def of_connection(connection: Link) -> dict[str, Any]:
    """One connection, for people and `--json`."""
    if connection.blocked:
        state = "blocked"
    elif connection.open:
        state = "flow" if connection.paused or not connection.writable else "running"
    else:
        state = "closing" if connection.closing or connection.over else "opening"
    channels: list[dict[str, Any]] = [
        {
            "number": slot.number,
            "busy": slot.busy,
            "published": slot.published,
            **{name: _plain(value) for name, value in slot.channel.facts().items()},
        }
        for slot in connection.tenants.values()
        if not slot.over
    ]
    if state == "running" and any(item.get("full") for item in channels):
        state = "full"
    peer = connection.peer
    return {
        "name": peer.name,
        "given_name": _given_name(connection),
        "peer": f"{peer.host}:{peer.port}" if peer.host else f"process {peer.pid} of user {peer.uid}",
        "tls": peer.tls,
        "user": readable(connection.user_name),
        "vhost": readable(connection.vhost),
        "state": state,
        "blocked_since": connection.blocked_since if connection.blocked else None,
        "since": connection.since,
        "client_properties": _plain(connection.client_properties),
        "frame_max": connection.frame_max,
        "channel_max": connection.channel_max,
        "heartbeat_s": connection.heartbeat_s,
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "unsent_bytes": 0 if connection.over else connection.unsent,
        "channels": channels,
        "consumers": sum(int(item.get("consumers", 0)) for item in channels),
        "unacked": sum(int(item.get("unacked", 0)) for item in channels),
        "published": connection.published + sum(int(item["published"]) for item in channels),
        "seconds": round(time.time() - connection.since, 3),
    }


def _plain(value: object, depth: int = 0) -> object:
    """What JSON can say; a client may send what it likes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return readable(value[:1000])
    if depth < 4 and isinstance(value, dict):
        return {readable(str(key)): _plain(item, depth + 1) for key, item in list(value.items())[:100]}
    if depth < 4 and isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value[:100]]
    return readable(repr(value)[:1000])
