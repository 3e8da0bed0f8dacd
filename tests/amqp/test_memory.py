"""Goal: what one client makes a gateway keep is bounded, by connection and for all together; a client with too much is
not read until it is done, and loses nothing; others are served meanwhile.

Method: attacks by raw frames on the gateway of a real node whose queue worker stands still, so that nothing that needs
it is done; the most memory that the gateway's process has had (VmHWM) is compared with what was sent.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warren.workers.amqp.backlog import CHANNEL, WAITS_MAX
from warren.workers.amqp.heartbeat import SILENT_HALVES

from amqp_diff.wire import BODY, Lane, Wire, frame, header, method
from support.files import contents
from support.gateway_node import GatewayNode
from support.real_node import frozen
from support.two_gateways import gateway_pid
from support.waiting import wait_until

pytestmark = pytest.mark.integration
MIB = 1 << 20
#: what an attack would send, and what the gateway may take more of memory: without bounds it takes far more
SENT_BYTES, MORE_BYTES = 24 * MIB, 24 * MIB
CHANNELS = 40


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """One queue worker: what stops it stops all that needs one."""
    directory = tmp_path_factory.mktemp("memory") / "data"
    with GatewayNode(directory, workers=1, amqp_backlog_bytes=16 * MIB) as running:
        yield running


@pytest.fixture
def wire(node: GatewayNode) -> Iterator[Wire]:
    """A connection of the test."""
    made = connected(node)
    yield made
    made.shut()


def connected(node: GatewayNode) -> Wire:
    wire = Wire("a", lambda _line: None, "127.0.0.1", node.port)
    wire.opened()
    return wire


def most_memory(pid: int) -> int:
    """The most that a process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextlib.contextmanager
def no_more_memory(node: GatewayNode, more: int = MORE_BYTES) -> Iterator[None]:
    """Memory of the gateway never grows by `more` bytes within this block."""
    pid = gateway_pid(node, 0)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the most is what there is now
    before = most_memory(pid)
    yield
    assert gateway_pid(node, 0) == pid
    assert most_memory(pid) - before < more


def busy_channels(wire: Wire, count: int = CHANNELS) -> list[Lane]:
    """Channels each of which waits for the queue worker."""
    lanes = [wire.channel() for _ in range(count)]
    lanes[0].call("queue.declare", queue="busy")
    return lanes


def until_held_back(node: GatewayNode, sending: threading.Thread) -> None:
    """The gateway does not read the connection that sends: the only one that is not at rest."""

    def held_back() -> bool:
        assert sending.is_alive(), "all was taken"
        return any(item["state"] == "flow" for item in node.connections())

    wait_until(held_back, 60, what="a connection that is not read")


def table(size: int) -> bytes:
    """A table of `size` bytes, of booleans: as objects they take 13 times as much."""
    fields, at = [], 0
    while at < size:
        name = b"%x" % len(fields)
        fields.append(bytes([len(name)]) + name + b"t\1")
        at += len(fields[-1])
    made = b"".join(fields)
    return len(made).to_bytes(4) + made


WIDE = table(100_000)
DEEP = len(NESTED := b"\1aF\0\0\0\0" * 15_000).to_bytes(4) + NESTED


def _declares(number: int) -> bytes:
    asked = {"queue": "busy", "passive": True, "arguments": (WIDE, DEEP)[number % 2]}
    return method(number, "queue.declare", asked)


def _properties(number: int) -> bytes:
    """Messages without a body, and with different headers."""
    name = b"%x" % number
    headers = table(60_000)[4:] + bytes([len(name)]) + name + b"V"
    properties = b"\x20\0" + len(headers).to_bytes(4) + headers
    return method(number, "basic.publish", {"routing_key": "nowhere"}) + header(number, 0, properties)


def _bodies(number: int) -> bytes:
    return (
        method(number, "basic.publish", {"routing_key": "nowhere"})
        + header(number, 100_000, {})
        + frame(BODY, number, bytes(100_000))
    )


@pytest.mark.parametrize("attack", [_declares, _properties, _bodies])
def test_a_client_with_too_much_is_not_read_until_it_is_done(
    node: GatewayNode, wire: Wire, attack: Callable[[int], bytes]
) -> None:
    lanes = busy_channels(wire)
    each = [attack(lane.number) for lane in lanes]
    sent = b"".join(each) * (SENT_BYTES // sum(map(len, each)) + 1)
    sending = threading.Thread(target=wire.raw, args=(sent,))
    with no_more_memory(node):
        with frozen(node):
            for lane in lanes:
                wire.raw(method(lane.number, "queue.declare", {"queue": "busy", "passive": True}))
            sending.start()
            until_held_back(node, sending)
            (found,) = node.connections()
            assert found["bytes_in"] < 2 * WAITS_MAX
            other = connected(node)
            other.channel().alive()
            other.shut()
        answers = read_aside(wire, len(lanes) * (len(sent) // sum(map(len, each)) + 1 if attack is _declares else 1))
        sending.join(60)
        assert not sending.is_alive()
        assert answers() == {"queue.declare-ok"}
        for lane in lanes:
            lane.alive()


def test_a_client_that_is_held_back_is_not_taken_for_dead(node: GatewayNode) -> None:
    """It has filled its socket, and cannot send a heartbeat: each tick of the gateway's own would count against it."""
    wire = Wire("a", lambda _line: None, "127.0.0.1", node.port)
    wire.opened(heartbeat=1)
    lane = busy_channels(wire, 1)[0]
    sending = threading.Thread(target=wire.raw, args=(_bodies(lane.number) * (SENT_BYTES // 100_000),))
    with frozen(node):
        wire.raw(method(lane.number, "queue.declare", {"queue": "busy", "passive": True}))
        sending.start()
        until_held_back(node, sending)
        for _beat in range(SILENT_HALVES + 2):  # one in each half second
            found = wire.next(time.monotonic() + 60)
            assert found is not None
            assert found.name == "heartbeat"
        assert sending.is_alive()
        wire.socket.shutdown(socket.SHUT_RDWR)
        sending.join(60)
    assert not sending.is_alive()
    wire.shut()


def read_aside(wire: Wire, count: int) -> Callable[[], set[str]]:
    """So many answers are read meanwhile; waits for them, and gives their names."""
    names: set[str] = set()

    def read() -> None:
        for _answer in range(count):
            found = wire.wait(None, ["queue.declare-ok", "channel.close"], 60)
            names.add("nothing" if found is None else found.name)

    reading = threading.Thread(target=read)
    reading.start()

    def ended() -> set[str]:
        reading.join(120)
        assert not reading.is_alive()
        return names

    return ended


def test_empty_messages_of_a_transaction_count(node: GatewayNode, wire: Wire) -> None:
    lane, other = wire.channel(), wire.channel()
    lane.call("tx.select")
    other.call("tx.select")
    empty = method(lane.number, "basic.publish", {"routing_key": "nowhere"}) + header(lane.number, 0, {})
    with no_more_memory(node):
        wire.raw(empty * 200_000)
        found = wire.wait(lane.number, ["channel.close"], 60)
        assert found is not None
        assert found["code"] == 406
        assert "commit more often" in found["text"]
    other.publish("nowhere", "")
    other.call("tx.commit")


def test_messages_of_a_transaction_that_was_ended_count_no_more(node: GatewayNode, wire: Wire) -> None:
    """By a commit, a rollback, or the end of its channel: each time as much fits as before."""
    lane = wire.channel()
    empty = header(lane.number, 0, {})
    publishes = (method(lane.number, "basic.publish", {"routing_key": "nowhere"}) + empty) * 60_000
    for end in ("tx.commit", "tx.rollback", "channel.close", "tx.commit"):
        lane.call("tx.select")
        wire.raw(publishes)
        lane.call(end)
        if end == "channel.close":
            lane.open()


def test_consumers_are_refused_at_the_bound_until_others_have_gone(node: GatewayNode, wire: Wire) -> None:
    """Those of a stream may hold very much each, by their prefetch."""
    lane = wire.channel()
    lane.call("queue.declare", queue="stream", durable=True, arguments={"x-queue-type": "stream"})
    for _life in range(2):  # the consumers of a channel go with it
        lane.call("basic.qos", count=65535)
        for number in range(20):  # and those that are cancelled
            lane.call("basic.consume", queue="stream", tag=str(number))
            lane.call("basic.cancel", tag=str(number))
        found = lane.call("basic.consume", queue="stream", tag="a")
        while found.name == "basic.consume-ok":
            found = lane.call("basic.consume", queue="stream", tag=found["tag"] + "a")
        assert found["code"] == 406
        assert "amqp_backlog_bytes" in found["text"]
        lane.again()
    lane.call("queue.delete", queue="stream")


def test_idle_channels_are_refused_at_the_bound_until_others_have_gone(node: GatewayNode) -> None:
    """Three connections have as many as there may be, one with few is still served; those that end count no more."""
    each = 16 * MIB // CHANNEL // 3
    for _life in range(2):
        with contextlib.ExitStack() as stack:
            wires = [connected(node) for _ in range(4)]
            for wire in wires:
                stack.callback(wire.shut)
            *many, small = wires
            with no_more_memory(node, 16 * MIB):
                for wire in many:
                    _open(wire, each)
            small.channel().alive()
            many[0].raw(b"".join(method(number, "channel.open", {}) for number in (each + 1, each + 2)))
            found = many[0].wait(0, ["connection.close"], 60)
            assert found is not None
            assert found["code"] == 530
            assert "has reached the maximum allowed limit" in found["text"]
            assert "amqp_backlog_bytes" in found["text"]
            small.channel().alive()
        wait_until(lambda: not node.connections(), 60, what="the end of the connections")


def _open(wire: Wire, count: int) -> None:
    """So many idle channels."""
    wire.raw(b"".join(method(number, "channel.open", {}) for number in range(1, count + 1)))
    for number in range(1, count + 1):
        assert wire.wait(number, ["channel.open-ok"], 60) is not None


LARGE, MANY = bytes(400_000), 90


def _filled(wire: Wire, *queues: str) -> None:
    """`MANY` large messages, in these queues together."""
    lane = wire.channel()
    for queue in queues:
        lane.call("queue.declare", queue=queue, exclusive=True)
    lane.call("confirm.select")
    for number in range(MANY):
        lane.publish(queues[number % len(queues)], LARGE)
    lane.confirms(MANY)


def test_gets_of_many_channels_bring_a_few_bodies_at_a_time(node: GatewayNode, wire: Wire) -> None:
    queues = [f"large-{number}" for number in range(MANY)]
    _filled(wire, *queues)
    lanes = [wire.channel() for _ in queues]
    asked = [
        method(lane.number, "basic.get", {"queue": queue, "no_ack": True})
        for lane, queue in zip(lanes, queues, strict=True)
    ]
    with no_more_memory(node, 28 * MIB):
        wire.raw(b"".join(asked))
        wait_until(lambda: any(item["unsent_bytes"] for item in node.connections()), 60, what="unsent answers")
        for lane in lanes:
            found = wire.wait(lane.number, ["basic.get-ok", "basic.get-empty"], 60)
            assert found is not None
            assert found.body == LARGE


def test_many_consumers_of_a_slow_reader_are_given_a_little_at_a_time(node: GatewayNode, wire: Wire) -> None:
    queues = [f"slow-{number}" for number in range(MANY)]
    _filled(wire, *queues)
    lane = wire.channel()
    with no_more_memory(node, 28 * MIB):
        wire.raw(b"".join(method(lane.number, "basic.consume", {"queue": name, "no_ack": True}) for name in queues))
        wait_until(lambda: any(item["unsent_bytes"] for item in node.connections()), 60, what="deliveries that wait")
        for _message in range(MANY):
            found = wire.wait(lane.number, ["basic.deliver"], 60)
            assert found is not None
            assert found.body == LARGE


def test_an_exchange_with_much_is_refused_and_keeps_nothing(node: GatewayNode, wire: Wire) -> None:
    """Arguments that mean nothing to anybody are kept all the same, as RabbitMQ does, but few."""
    lane = wire.channel()
    large = {f"a{number:03}": "x" * 240 for number in range(230)}
    for number in range(5):
        found = lane.call("exchange.declare", exchange=f"heavy-{number}", type="direct", arguments=large)
        assert found["code"] == 406
        assert "at most 4096 are kept" in found["text"]
        lane.again()
    assert not [path for path, content in contents(node.directory, "catalog.*").items() if b"heavy-" in content]
    lane.call("exchange.declare", exchange="small", type="direct", arguments={"a": "x" * 3000})
    lane.call("exchange.delete", exchange="small")
