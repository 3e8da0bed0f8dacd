"""Goal: requests that make no sense are refused or dropped by supervisor, queue workers, store server, collector; none
of them dies.

Method: a real node; nonsense by its control socket, by OP_CONTROL, by its mailboxes. The same processes serve after it.
"""

import fcntl
import random
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warren
from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc import mailbox
from warren.ipc.layout import CONSTANTS

from support.raw_control import connected
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

DEEP = b"\x91" * 3000  # arrays in arrays: deeper than a decoder goes
EDGES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 63,
    -(1 << 63),
    1.5,
    float("inf"),
    float("nan"),
    "",
    "x" * 500,
    b"\xff" * 9,
    [],
    {},
    [[]],
    {"a": 1},
)


def op_with(op: bytes, value: bytes) -> bytes:
    """A map of an op and something more, as bytes."""
    return b"\x82\xa2op" + bytes([0xA0 | len(op)]) + op + b"\xa5queue" + value


KINDS = ("register", "deregister", "client_dying", "collect", "collected", "damage", "verified", "verify", "x")

REQUESTS = [
    b"",
    b"\xc1",
    b"\x80",
    b"\x81\xa2op\xc0",
    b"\x81\xa2op" + DEEP,
    op_with(b"stats", DEEP),
    op_with(b"stats", b"\xdd\xff\xff\xff\xff"),
    op_with(b"stats", b"\xa3\xff\xfe\xfd"),
    op_with(b"status", b"\xc9\xff\xff\xff\xff\x01"),
    b"\xdf\xff\xff\xff\xff",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("nonsense") / "node", workers=1) as made:
        yield made


def ask(directory: Path, request: bytes) -> bytes:
    """One raw request to the supervisor; what it answers, or nothing when it hangs up."""
    with connected(directory) as sock:
        sock.sendall(struct.pack(">I", len(request)) + request)
        return sock.recv(1 << 16)


def test_control_socket(node: RealNode) -> None:
    before = node.pids()
    for request in REQUESTS:
        assert b"ok" in ask(node.directory, request)
    for op in ("declare_queue", "bind", "settings", "status", "subscription", "ping", "stop_not"):
        for edge in EDGES:
            answer = ask(
                node.directory, msgspec.msgpack.encode({"op": op, "name": edge, "queue": edge, "durable": edge})
            )
            assert msgspec.msgpack.decode(answer[4:])["ok"] in (True, False)
    assert ask(node.directory, b"x" * 10) is not None
    with connected(node.directory) as sock:
        sock.sendall(b"\xff" * 100)  # a length beyond every limit
    assert node.pids() == before


def test_control_requests_of_workers(node: RealNode, seed: int) -> None:
    before = node.pids()
    chance = random.Random(seed)
    with warren.attach(node.directory) as attached:
        queue = attached.queue("work")
        queue.put(b"before")
        client = attached._client
        core = client.attachment().core
        id = queue._declaration.id
        server = CONSTANTS["SERVER_WORKER_FIRST"]
        requests = list(REQUESTS)
        for op in ("stats", "ranges", "purge", "ack_to", "browse", "claim", "release", "nothing"):
            for edge in EDGES:
                fields = {
                    name: chance.choice((edge, id))
                    for name in ("queue", "sequence", "count", "start", "subscription_queue", "max_messages")
                }
                requests.append(msgspec.msgpack.encode({"op": op, **fields}))
        for request in requests:
            if not request:
                continue
            result, reply = core.control(server, request, 10.0)
            assert result in (PROTOCOL["RESULT_OK"], PROTOCOL["RESULT_ERROR"])
            assert isinstance(msgspec.msgpack.decode(reply), dict)
        queue.purge()
        queue.put(b"after")
        message = queue.get(timeout=5.0)
        assert message is not None
        assert message.body == b"after"
    assert node.pids() == before


def unread(sender: socket.socket) -> int:
    """Bytes that a socket has sent and nobody has read."""
    found = bytearray(4)
    fcntl.ioctl(sender, termios.TIOCOUTQ, found)
    return int.from_bytes(found, sys.byteorder)


def test_mailboxes(node: RealNode) -> None:
    before = node.pids()
    victim = warren.attach(node.directory)  # a message about somebody who is there is not put aside early
    victim.store().write(victim.store().new_id(), b"known to the store")
    attachment = victim._client.attachment()
    slot = attachment.slot
    for role in ("supervisor", "store", "collector"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(20)
            sender.connect(str(node.directory / mailbox.FOLDER / mailbox.name(role)))
            messages = [request for request in REQUESTS if request]
            for kind in KINDS:
                sensible: dict[str, Any] = {"kind": kind, "slot": slot.slot, "generation": slot.generation, "server": 0}
                sensible |= {
                    "store": 0,
                    "store_epoch": attachment.superblock.server_get(0, "epoch"),
                    "until": 1,
                    "output": 1 << 30,
                    "salt": 1,
                    "file": 0,
                    "below": 0,
                    "sources": [],
                    "bytes": 0,
                    "paced": True,
                }
                for name in sensible:
                    messages += [msgspec.msgpack.encode(sensible | {name: edge}) for edge in EDGES]
            for message in messages:
                try:
                    sender.send(b"\x07" + message)  # it waits while the mailbox is full
                except TimeoutError:
                    raise AssertionError(f"{role} does not read its mailbox, before {message!r}") from None
            wait_until(lambda sender=sender: not unread(sender), 10, what=f"{role} reading its mailbox")  # type: ignore[misc]
    victim.close()
    with warren.attach(node.directory) as attached:
        attached.queue("work").put(b"still")
        attached.queue("work").purge()
        store = attached.store()
        (id,) = store.new_ids(1)
        store.write(id, b"body")
        assert store.read(id) == b"body"
    assert node.pids() == before
