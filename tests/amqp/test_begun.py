"""Goal: messages that clients have begun have a bound together; those beyond it wait their turn, and nothing that is
begun waits for ever. In a memory alarm it goes, and who has died is noticed although nobody reads its socket.

Method: the sums alone, with connections that are records; then attacks by raw frames on real nodes with little memory,
by clients that send half of their messages, and the rest of them later, or never.
"""

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warren.engine.amqp import spec
from warren.workers.amqp import watch
from warren.workers.amqp.begun import Begun, Part
from warren.workers.amqp.faults import ConnectionFault
from warren.workers.process.control import ControlClient

from amqp_diff.wire import Wire, frame, header, method
from support.gateway_node import GatewayNode, alarm
from support.two_gateways import gateway_pid
from support.waiting import wait_until

MIB = 1 << 20
KIB = 1 << 10


class Client:
    """A connection, as a record."""

    def __init__(self, begun: Begun) -> None:
        self.begun = Part(begun, self)
        self.bytes_in = 0
        self.over = False
        self.socket: socket.socket | None = None
        self.said: list[str] = []

    @property
    def paused(self) -> bool:
        return self.begun.held or self.socket is not None

    def may_read(self) -> None:
        pass

    def fail(self, fault: ConnectionFault, method: int = 0) -> None:
        self.said.append(str(fault))
        self.begun.now(0, 0)

    def abort(self, why: str) -> None:
        self.said.append(why)
        self.over = True


def clients(begun: Begun, *sizes: int) -> list[Client]:
    """They have begun so much, one after the other, and nothing of it has come."""
    made = [Client(begun) for _ in sizes]
    for client, size in zip(made, sizes, strict=True):
        client.begun.now(size, 0)
    return made


def held(*asked: Client) -> list[bool]:
    return [client.begun.held for client in asked]


def test_who_begins_when_there_is_no_room_waits_until_there_is() -> None:
    begun = Begun(1000 * KIB)
    first, second, third, fourth = clients(begun, 600 * KIB, 300 * KIB, 200 * KIB, 500 * KIB)
    assert held(first, second, third, fourth) == [False, False, True, True]
    second.begun.now(0, 0)
    assert held(first, third, fourth) == [False, False, True]
    first.begun.now(0, 0)
    assert held(third, fourth) == [False, False]
    third.begun.now(0, 0)
    fourth.begun.now(0, 0)
    assert (begun.bytes, begun.read, begun.queue) == (0, {}, {})


def test_a_fair_share_does_not_wait() -> None:
    begun = Begun(1000 * KIB)
    large, small, other = clients(begun, 1000 * KIB, 250 * KIB, 251 * KIB)
    assert held(large, small, other) == [False, False, True]


def test_more_room_is_used_at_once() -> None:
    begun = Begun(1000 * KIB)
    first, second = clients(begun, 1000 * KIB, 1000 * KIB)
    begun.bound(2000 * KIB)
    assert held(first, second) == [False, False]


def test_what_is_larger_than_the_bound_is_read_alone() -> None:
    begun = Begun(100 * KIB)
    first, second = clients(begun, 500 * KIB, 500 * KIB)
    assert held(first, second) == [False, True]
    first.begun.now(0, 0)
    assert held(second) == [False]


def test_the_oldest_goes_on_when_all_have_begun_too_much() -> None:
    """On further channels: together they fill the room, and none of them has ended anything."""
    begun = Begun(1000 * KIB)
    one, two, three = clients(begun, 300 * KIB, 300 * KIB, 300 * KIB)
    for client in (three, two, one):
        client.begun.now(900 * KIB, 100 * KIB)
    assert held(one, two, three) == [False, True, True]
    one.begun.now(0, 0)
    assert held(two, three) == [False, True]
    two.begun.now(0, 0)
    assert held(three) == [False]


def test_who_ends_one_message_and_begins_another_lets_others_go_first() -> None:
    begun = Begun(1000 * KIB)
    steady, waits = clients(begun, 900 * KIB, 900 * KIB)
    steady.begun.now(900 * KIB, 100 * KIB, ended=True)
    assert held(steady, waits) == [True, False]
    waits.begun.now(0, 0)
    assert held(steady) == [False]


def test_memory_goes_back_to_the_system_while_much_is_begun() -> None:
    said: list[bool] = []
    begun = Begun(1000 * KIB, said.append)
    first, second = clients(begun, 300 * KIB, 201 * KIB)
    assert said == [True]
    second.begun.now(0, 0)
    assert said == [True], "not at each message"
    first.begun.now(0, 0)
    assert said == [True, False]


def _watched(begun: Begun, *clients: Client) -> watch.Watch:
    house: Any = SimpleNamespace(begun=begun, connections={client for client in clients if client.socket})
    return watch.Watch(house)


def test_who_sends_nothing_while_others_wait_is_closed() -> None:
    begun = Begun(1000 * KIB)
    silent, waits = clients(begun, 900 * KIB, 900 * KIB)
    looks = _watched(begun, silent, waits)
    for second in range(100):
        waits.bytes_in += 1
        if second == 20:
            silent.bytes_in += watch.PACE_BYTES
        looks.look(float(second), False)
        if silent.said:
            break
    assert second == 20 + watch.PACE_S
    assert "506 RESOURCE_ERROR" in silent.said[0]
    assert "publish it again" in silent.said[0]
    assert (held(waits), waits.said) == ([False], [])


def test_who_sends_nothing_is_left_alone_when_nobody_waits() -> None:
    begun = Begun(1000 * KIB)
    (silent,) = clients(begun, 900 * KIB)
    looks = _watched(begun, silent)
    for second in range(100):
        looks.look(float(second), False)
    assert silent.said == []


def test_in_a_memory_alarm_the_largest_go_until_little_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    begun = Begun(1000 * KIB)
    made = clients(begun, *[100 * KIB] * 10)
    for number, client in enumerate(made):
        client.begun.now(100 * KIB, (10 + number) * KIB)
    looks = _watched(begun, *made)
    looks.look(0.0, True)
    looks.look(watch.DROP_S - 1, True)
    assert not any(client.said for client in made), "it may be over soon"
    looks.look(watch.DROP_S, True)
    gone = [bool(client.said) for client in made]
    assert gone == [False] * 5 + [True] * 5
    second = watch.DROP_S
    while begun.read and second < 100:
        second += watch.DROP_AGAIN_S
        looks.look(second, True)
    left = [client.begun.came for client in made if not client.said]
    assert sum(left) <= 1000 * KIB // watch.LEFT_PART


def test_in_another_alarm_nobody_goes() -> None:
    begun = Begun(1000 * KIB)
    (client,) = clients(begun, 900 * KIB)
    client.begun.now(900 * KIB, 800 * KIB)
    looks = _watched(begun, client)
    for second in range(100):
        looks.look(float(second), False)
    assert client.said == []


@pytest.mark.parametrize("unread", [b"", b"unread"])
def test_a_peer_that_has_gone_is_noticed_unless_it_is_still_being_read(unread: bytes) -> None:
    begun = Begun(1000 * KIB)
    client = Client(begun)
    client.socket, peer = socket.socketpair()
    with client.socket, peer:
        looks = _watched(begun, client)
        peer.sendall(unread or b"x")
        if not unread:
            client.socket.recv(1)
        for second in range(10):
            looks.look(float(second), False)
        assert client.said == []
        peer.close()
        for second in range(10, 20):
            client.bytes_in += 1
            looks.look(float(second), False)
        assert client.said == [], "what it left is heard to its end"
        for second in range(20, 30):
            looks.look(float(second), False)
            if client.said:
                break
        assert client.said == ["its client has gone"]


# -- real nodes -----------------------------------------------------------------------------------------------------

BODY, PART = 2_000_000, 131_064
#: what has come of each when its client stops
FRAMES = 14


@contextlib.contextmanager
def short_of_memory(directory: Path) -> Iterator[GatewayNode]:
    """A node that may use as little as it can, about 280 MiB."""
    with GatewayNode(directory, workers=1, memory_own_max=0.001, queue_memory_bytes=8 * MIB) as running:
        yield running


def _alarms(node: GatewayNode) -> list[str]:
    with ControlClient(node.directory) as control:
        found: list[str] = control.call("status")["alarms"]
        return found


def _own(node: GatewayNode) -> int:
    """Memory of the gateway at the moment, of its own."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{gateway_pid(node, 0)}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _begin(number: int, queue: str) -> bytes:
    return method(number, "basic.publish", {"routing_key": queue}) + header(number, BODY, {})


class Attack:
    """Connections that send the beginnings of messages, each in a thread of its own, and the ends of them when told."""

    def __init__(self, node: GatewayNode, connections: int, channels: int, queue: str) -> None:
        self.wires = [Wire("a", lambda _line: None, "127.0.0.1", node.port) for _ in range(connections)]
        for wire in self.wires:
            wire.opened()
        self.lanes = [[wire.channel() for _ in range(channels)] for wire in self.wires]
        for lanes in self.lanes:
            for lane in lanes:
                lane.call("confirm.select")
        self.go_on = threading.Event()
        self.queue = queue
        self.threads = [threading.Thread(target=self._send, args=(at,), daemon=True) for at in range(connections)]

    def _send(self, at: int) -> None:
        wire, numbers = self.wires[at], [lane.number for lane in self.lanes[at]]
        with contextlib.suppress(OSError):  # it is closed by one side, or by the other
            wire.raw(b"".join(_begin(number, self.queue) for number in numbers))
            for _part in range(FRAMES):
                for number in numbers:
                    wire.raw(frame(spec.FRAME_BODY, number, bytes(PART)))
            self.go_on.wait()
            for number in numbers:
                left = BODY - FRAMES * PART
                while left:
                    wire.raw(frame(spec.FRAME_BODY, number, bytes(min(left, PART))))
                    left -= min(left, PART)

    def begin(self) -> None:
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.go_on.set()
        for wire in self.wires:
            wire.socket.close()
        for thread in self.threads:
            thread.join(60)


def _still(node: GatewayNode) -> bool:
    """What comes has come to an end."""
    before = [item["bytes_in"] for item in node.connections()]
    time.sleep(0.5)
    return before == [item["bytes_in"] for item in node.connections()]


@pytest.mark.integration
@pytest.mark.parametrize(("connections", "channels"), [(200, 1), (14, 14)])
def test_messages_that_are_begun_by_many_are_bounded_and_arrive(
    tmp_path: Path, connections: int, channels: int
) -> None:
    """More than the node may use; without a bound the memory alarm came, stayed, and stopped all of them."""
    with short_of_memory(tmp_path / "data") as node:
        before = _own(node)
        attack = Attack(node, connections, channels, "nowhere")
        attack.begin()
        try:
            wait_until(lambda: _still(node), 60, what="the end of what comes")
            assert _alarms(node) == []
            assert _own(node) - before < 160 * MIB
            attack.go_on.set()
            for lanes in attack.lanes:
                for lane in lanes:
                    found = lane.wire.wait(lane.number, ["basic.ack"], 120)
                    assert found is not None
                    assert found.name == "basic.ack", found
            assert _alarms(node) == []
        finally:
            attack.end()


@pytest.fixture
def node(running: GatewayNode) -> GatewayNode:
    """Without connections of another test."""
    wait_until(lambda: not running.connections(), 60, what="the end of the connections")
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    directory = tmp_path_factory.mktemp("begun") / "data"
    room = {"arena_bytes": 8 * MIB, "message_bytes_max": 2 * BODY}
    with GatewayNode(directory, workers=1, amqp_backlog_bytes=64 * MIB, **room) as made:
        yield made


def _blocked(node: GatewayNode, count: int) -> None:
    wait_until(lambda: node.ask()["blocked_n"] >= count, 60, what="blocked connections")


@pytest.mark.integration
def test_in_a_memory_alarm_what_is_begun_goes_and_who_has_begun_nothing_stays(node: GatewayNode) -> None:
    attack = Attack(node, 26, 1, "nowhere")
    whole = Wire("b", lambda _line: None, "127.0.0.1", node.port)
    whole.opened()
    lane = whole.channel()
    lane.call("queue.declare", queue="whole", exclusive=True)
    before = _own(node)
    attack.begin()
    try:
        wait_until(lambda: _own(node) - before > 40 * MIB, 60, what="much that is begun")
        with alarm(node, "ALARM_MEMORY"):
            lane.publish("whole", "x")
            wait_until(lambda: _own(node) - before < 16 * MIB, 60, what="memory that is given back")
            attack.go_on.set()
            closed = 0
            for wire in attack.wires:
                found = wire.wait(0, ["connection.close"], 0.5)
                if found is not None:
                    assert found.name == "connection.close"
                    assert found["code"] == spec.RESOURCE_ERROR
                    assert "low on memory" in found["text"]
                    closed += 1
            assert closed >= 12
            assert any(item["state"] == "blocked" for item in node.connections())
        wait_until(lambda: lane.call("basic.get", queue="whole", no_ack=True).name == "basic.get-ok", 60, what="it")
    finally:
        attack.end()
        whole.shut()


@pytest.mark.integration
def test_a_disk_alarm_in_the_middle_of_a_message_costs_nothing(node: GatewayNode) -> None:
    attack = Attack(node, 1, 1, "middle")
    lane = attack.lanes[0][0]
    lane.call("queue.declare", queue="middle", exclusive=True)
    try:
        with alarm(node, "ALARM_DISK"):
            attack.begin()
            _blocked(node, 1)
            attack.go_on.set()
            time.sleep(watch.DROP_S + 2 * watch.DROP_AGAIN_S)
            assert node.ask()["blocked_n"] == 1
        found = lane.wire.wait(lane.number, ["basic.ack"])
        assert found is not None
        assert found.name == "basic.ack"
    finally:
        attack.end()


@pytest.mark.integration
@pytest.mark.parametrize("heartbeat", [0, 60])
def test_who_dies_while_it_is_blocked_is_noticed(node: GatewayNode, heartbeat: int) -> None:
    """Bytes that nobody reads lie in one socket, and none in the other."""
    wires = [Wire("ab"[at], lambda _line: None, "127.0.0.1", node.port) for at in range(2)]
    for wire in wires:
        wire.opened(heartbeat=heartbeat)
        wire.channel()
    with alarm(node, "ALARM_DISK"):
        for wire in wires:
            wire.raw(_begin(1, "nowhere"))
            for _part in range(FRAMES):
                wire.raw(frame(spec.FRAME_BODY, 1, bytes(PART)))
            if wire is wires[0]:
                _blocked(node, 1)
                wait_until(lambda: _still(node), 60, what="a connection that is not read")
        _blocked(node, 2)
        wires[0].raw(bytes(100))
        for wire in wires:
            wire.shut()
        wait_until(lambda: not node.connections(), 60, what="the end of the connections")


@pytest.mark.integration
def test_a_client_of_a_unix_socket_that_dies_while_it_is_blocked_is_noticed(node: GatewayNode) -> None:
    with node.unix() as sock, alarm(node, "ALARM_DISK"):
        wire = Wire.__new__(Wire)
        wire.connect = lambda _host, _port: sock  # type: ignore[method-assign]
        wire.__init__("u", lambda _line: None, "", 0)  # type: ignore[misc]
        wire.opened()
        wire.channel()
        wire.raw(_begin(1, "nowhere"))
        sock.settimeout(2)
        with contextlib.suppress(TimeoutError):  # it is not read any more
            for _part in range(FRAMES):
                wire.raw(frame(spec.FRAME_BODY, 1, bytes(PART)))
        _blocked(node, 1)
        wire.shut()
        wait_until(lambda: not node.connections(), 60, what="the end of the connection")
