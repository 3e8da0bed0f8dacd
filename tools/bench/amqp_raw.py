"""A client of `warren bench amqp` that costs as little as Python can: frames that were encoded before, on raw sockets.

A message is three frames that never change, so a run of them is one buffer and one send. What is delivered differs in
its delivery tag alone, so deliveries are counted by their bytes. Confirms come in any order and merged: they are
counted exactly. The same code runs against both servers; heartbeats are off.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from warren.tools.bench.harness import wait_for_go

HOST = "127.0.0.1"
CHUNK = 250  #: messages of one send
WINDOW = 10_000  #: messages without a confirm
ACK_EVERY = 500  #: deliveries of one ack
PATIENCE_S = 60.0
METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
BASIC_ACK = struct.Struct(">BHIIQBB")  #: a whole frame
ACK_ID = 60 << 16 | 80
NACK_ID = 60 << 16 | 120
TAG = "t"
RECEIVE_BYTES = 1 << 18


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def _method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return _frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def message(queue: str, body: bytes) -> bytes:
    """A persistent message for a queue, as it goes out."""
    publish = _method(1, 60, 40, b"\0\0" + _short("") + _short(queue) + b"\0")
    header = _frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, len(body), 1 << 12, 2))
    return publish + header + _frame(BODY, 1, body)


class Peer:
    """One connection with one channel."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bytes = b""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(10, 10)
        start_ok = struct.pack(">I", 0) + _short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest" + _short("en_US")
        self.socket.sendall(_method(0, 10, 11, start_ok))
        tune = self._expect(10, 30)
        self.socket.sendall(_method(0, 10, 31, tune[:2] + struct.pack(">IH", 131072, 0)))
        self.call(0, 10, 40, _short("/") + b"\0\0")
        self.call(1, 20, 10, _short(""))

    def _expect(self, class_id: int, method_id: int) -> bytes:
        """The arguments of that method, which comes next."""
        while True:
            if len(self._bytes) >= 7:
                size = struct.unpack_from(">I", self._bytes, 3)[0] + 8
                if len(self._bytes) >= size:
                    found, self._bytes = self._bytes[7 : size - 1], self._bytes[size:]
                    got = struct.unpack_from(">HH", found)
                    if got != (class_id, method_id):
                        raise RuntimeError(f"method {class_id}.{method_id} was due, {got[0]}.{got[1]} came: {found!r}")
                    return found[4:]
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise RuntimeError("the server closed the connection")
            self._bytes += data

    def call(self, channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
        """Send a method, return the arguments of its answer."""
        self.socket.sendall(_method(channel, class_id, method_id, arguments))
        return self._expect(class_id, method_id + 1)

    def declare(self, queue: str) -> None:
        """A durable queue."""
        self.call(1, 50, 10, b"\0\0" + _short(queue) + b"\x02" + struct.pack(">I", 0))

    def delete(self, queue: str) -> None:
        """Delete a queue, with what is in it."""
        self.call(1, 50, 40, b"\0\0" + _short(queue) + b"\0")

    def confirm(self) -> None:
        """Ask for confirms."""
        self.call(1, 85, 10, b"\0")

    def consume(self, queue: str, prefetch: int) -> None:
        """Consume with acks."""
        self.call(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0))
        self.call(1, 60, 20, b"\0\0" + _short(queue) + _short(TAG) + b"\0" + struct.pack(">I", 0))

    def ack(self, tag: int) -> None:
        """Everything up to that tag."""
        self.socket.sendall(_method(1, 60, 80, struct.pack(">QB", tag, 1)))

    def close(self) -> None:
        """Close, without waiting for the answer."""
        self.socket.close()


class Confirms:
    """Counts what is confirmed on a channel."""

    def __init__(self) -> None:
        self.upto = 0  #: all up to here are
        self._beyond: set[int] = set()
        self._left = b""

    @property
    def count(self) -> int:
        """How many messages are confirmed."""
        return self.upto + len(self._beyond)

    def take(self, data: bytes) -> None:
        """Bytes that the server sent. Raises RuntimeError for anything but acks."""
        data = self._left + data
        whole = len(data) // BASIC_ACK.size * BASIC_ACK.size
        self._left = data[whole:]
        for _, _, _, method_id, tag, multiple, _ in BASIC_ACK.iter_unpack(data[:whole]):
            if method_id != ACK_ID:
                raise RuntimeError("a message was refused" if method_id == NACK_ID else f"method {method_id:#x} came")
            if multiple:
                self.upto = max(self.upto, tag)
                if self._beyond:
                    self._beyond = {one for one in self._beyond if one > self.upto}
            else:
                self._beyond.add(tag)
            while self.upto + 1 in self._beyond:
                self.upto += 1
                self._beyond.remove(self.upto)


class _Publishing:
    """One connection that publishes within its window; never waits."""

    def __init__(self, port: int, queue: str, body: bytes, window: int) -> None:
        self.peer = Peer(port)
        self.peer.declare(queue)
        self.peer.confirm()
        self.chunk_n = min(CHUNK, window)
        self.chunk = message(queue, body) * self.chunk_n
        self.window = window
        self.confirms = Confirms()
        self.sent = 0
        self._rest = memoryview(b"")
        self.peer.socket.setblocking(False)

    def has_to_send(self, more: bool) -> bool:
        """There is a rest to send, or (`more`) room for new messages."""
        return bool(self._rest) or (more and self.sent - self.confirms.count + self.chunk_n <= self.window)

    def send(self, more: bool) -> None:
        """Send what the socket takes; `more`: new messages, too."""
        while self.has_to_send(more):
            if not self._rest:
                self._rest = memoryview(self.chunk)
                self.sent += self.chunk_n
            try:
                self._rest = self._rest[self.peer.socket.send(self._rest) :]
            except BlockingIOError:
                return

    def receive(self) -> None:
        """Take what came."""
        data = self.peer.socket.recv(RECEIVE_BYTES)
        if not data:
            raise RuntimeError("the server closed the connection")
        self.confirms.take(data)


def publisher(
    pipe: Connection, _directory: str, port: int, queues: list[str], size: int, seconds: float, window: int = WINDOW
) -> None:
    """Publish for so long, a connection for each queue, and wait for the last confirms."""
    body = b"x" * size
    several = [_Publishing(port, queue, body, window) for queue in queues]
    selector = selectors.DefaultSelector()
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    for one in several:
        selector.register(one.peer.socket, both, one)
    start = wait_for_go(pipe)
    cpu = time.process_time()
    end = start + int(seconds * 1e9)
    deadline = end + int(PATIENCE_S * 1e9)
    left = set(several)
    while left:
        now = time.monotonic_ns()
        if now > deadline:
            raise RuntimeError(f"confirms did not come within {PATIENCE_S:g} s")
        for key, events in selector.select(1.0):
            ready: _Publishing = key.data
            if events & selectors.EVENT_READ:
                ready.receive()
            ready.send(now < end)
            wanted = both if ready.has_to_send(now < end) else selectors.EVENT_READ
            if key.events != wanted:
                selector.modify(ready.peer.socket, wanted, ready)
        if now >= end:
            for done in [one for one in left if one.confirms.count == one.sent]:
                selector.unregister(done.peer.socket)
                left.discard(done)
    finished = time.monotonic_ns()
    for one in several:
        one.peer.close()
    pipe.send(
        {
            "messages": sum(one.sent for one in several),
            "start": start,
            "end": finished,
            "cpu_s": time.process_time() - cpu,
        }
    )


def consumer(pipe: Connection, _directory: str, port: int, queue: str, idle_s: float = 3.0) -> None:
    """Consume and ack until nothing comes for a while; says what came, and when the last of it did."""
    peer = Peer(port)
    peer.declare(queue)
    peer.consume(queue, 4 * ACK_EVERY)
    start = wait_for_go(pipe)
    cpu = time.process_time()
    sock = peer.socket
    first = _first_delivery(sock)
    delivery_bytes = _delivery_bytes(first)
    received = len(first)
    acked = 0
    last = time.monotonic_ns()
    sock.settimeout(idle_s)
    while True:
        came = received // delivery_bytes
        if came - acked >= ACK_EVERY:
            peer.ack(came)
            acked = came
        try:
            data = sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            if acked == came:
                break
            peer.ack(came)
            acked = came
            continue
        if not data:
            raise RuntimeError("the server closed the connection")
        received += len(data)
        last = time.monotonic_ns()
    used = time.process_time() - cpu
    if received % delivery_bytes:
        raise RuntimeError("deliveries are not all of one length")
    peer.close()
    pipe.send({"messages": acked, "start": start, "end": last, "cpu_s": used})


def _first_delivery(sock: socket.socket) -> bytes:
    """What came, with at least one whole delivery in it."""
    data = b""
    while True:
        more = sock.recv(RECEIVE_BYTES)
        if not more:
            raise RuntimeError("the server closed the connection")
        data += more
        if _delivery_bytes(data):
            return data


def _delivery_bytes(data: bytes) -> int:
    """Bytes of the first delivery: its method, its header and its body; 0 when it is not whole."""
    at = 0
    for kind in (METHOD, HEADER, BODY):
        if len(data) < at + 7:
            return 0
        got, _, size = struct.unpack_from(">BHI", data, at)
        if got != kind:
            raise RuntimeError(f"a frame of type {kind} was due, one of type {got} came")
        at += size + 8
    return at if len(data) >= at else 0


def paced_publisher(
    pipe: Connection, _directory: str, port: int, queue: str, size: int, seconds: float, per_s: int
) -> None:
    """Publish at a pace; each body begins with the time when it was sent, in ns."""
    peer = Peer(port)
    peer.declare(queue)
    peer.confirm()
    whole = message(queue, b"x" * size)
    place = len(whole) - 1 - size
    confirms = Confirms()
    peer.socket.settimeout(0)
    start = wait_for_go(pipe)
    count = int(seconds * per_s)
    for number in range(count):
        due = start + int(number * 1e9 / per_s)
        while (left := due - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        data = bytearray(whole)
        struct.pack_into(">Q", data, place, time.monotonic_ns())
        peer.socket.send(data)
        try:
            confirms.take(peer.socket.recv(RECEIVE_BYTES))
        except BlockingIOError:
            continue
    peer.socket.settimeout(PATIENCE_S)
    while confirms.count < count:
        confirms.take(peer.socket.recv(RECEIVE_BYTES))
    peer.close()
    pipe.send({"messages": count, "start": start, "end": time.monotonic_ns()})


def timing_consumer(pipe: Connection, _directory: str, port: int, queue: str, count: int) -> None:
    """Receive so many messages, ack each; the time from publish to receive of each in ns."""
    peer = Peer(port)
    peer.declare(queue)
    peer.consume(queue, 100)
    wait_for_go(pipe)
    latencies = np.zeros(count, np.int64)
    data = b""
    number = 0
    while number < count:
        more = peer.socket.recv(RECEIVE_BYTES)
        now = time.monotonic_ns()
        if not more:
            raise RuntimeError("the server closed the connection")
        data += more
        while number < count and (whole := _delivery_bytes(data)):
            body = _body_at(data)
            latencies[number] = now - struct.unpack_from(">Q", data, body)[0]
            number += 1
            data = data[whole:]
            peer.ack(number)
    time.sleep(0.2)  # the last ack goes out before the socket closes
    peer.close()
    pipe.send({"latencies": latencies})


def _body_at(data: bytes) -> int:
    at = 0
    for _ in range(2):
        at += struct.unpack_from(">I", data, at + 3)[0] + 8
    return at + 7


def idle_connections(pipe: Connection, _directory: str, port: int, count: int) -> None:
    """Open so many connections with a channel each, and hold them until told."""
    peers = [Peer(port) for _ in range(count)]
    wait_for_go(pipe)
    pipe.recv()  # "enough"
    for peer in peers:
        peer.close()
    pipe.send({"connections": count})


def drained(port: int, queue: str) -> Any:
    """Delete a queue of a run that is over."""
    peer = Peer(port)
    peer.delete(queue)
    peer.close()
