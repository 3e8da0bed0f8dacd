"""Goal: an alarm stops those who publish and nobody else, says so to those who can hear it, and ends with the alarm.

Method: an alarm raised as a server of the node raises one; pika and raw frames.
"""

import time
from collections.abc import Callable

import pika
import pytest

from warren.engine.amqp import spec
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.layout import CONSTANTS, SERVER_STORE_TRANSIENT
from warren.ipc.superblock import Superblock

from amqp_diff.wire import Wire, frame, header, method
from support.gateway_node import GatewayNode, alarm
from support.waiting import wait_until

pytestmark = pytest.mark.integration
Connect = Callable[..., Wire]


@pytest.mark.parametrize(("name", "said"), [("ALARM_MEMORY", "low on memory"), ("ALARM_DISK", "low on disk")])
def test_a_publisher_is_blocked_others_are_not(gateway: GatewayNode, name: str, said: str) -> None:
    with (
        pika.BlockingConnection(pika.URLParameters(gateway.url)) as publisher,
        pika.BlockingConnection(pika.URLParameters(gateway.url)) as consumer,
    ):
        blocked: list[str] = []
        publisher.add_on_connection_blocked_callback(lambda _who, frame: blocked.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda *_: blocked.append("over"))
        sending, taking = publisher.channel(), consumer.channel()
        taking.queue_declare(name, exclusive=True)
        taking.basic_publish("", name, b"before")
        with alarm(gateway, name):
            sending.basic_publish("", name, b"held back")
            deadline = time.monotonic() + 60
            while not blocked and time.monotonic() < deadline:
                publisher.process_data_events(0.1)
            assert blocked == [said]
            (found,) = (item for item in gateway.connections() if item["state"] == "blocked")
            assert found["blocked_since"]
            assert gateway.ask()["blocked_n"] == 1
            _method, _properties, body = taking.basic_get(name, auto_ack=True)
            assert body == b"before"
            assert taking.basic_get(name) == (None, None, None)
        while len(blocked) < 2 and time.monotonic() < deadline:
            publisher.process_data_events(0.1)
        assert blocked == [said, "over"]
        got = wait_until(lambda: taking.basic_get(name, auto_ack=True)[2], 20, what="the message")
        assert got == b"held back"


def test_who_published_before_the_gateway_knew_of_the_alarm_is_told(connect: Connect, gateway: GatewayNode) -> None:
    """Whoever takes the last space raises the alarm; the gateway looks some times a second."""
    wire = connect()
    wire.opened()
    lane = wire.channel()
    lane.call("queue.declare", queue="unaware", exclusive=True)
    superblock = Superblock.attach(NodeDirectory(gateway.directory).shared_id, LAYOUT_HASH)
    try:
        superblock.server_alarm(SERVER_STORE_TRANSIENT, CONSTANTS["ALARM_DISK"], True)
        superblock.raise_alarm(CONSTANTS["ALARM_DISK"])
        lane.publish("unaware", "x")
        wire.wait(0, ["connection.blocked"])
    finally:
        superblock.server_alarm(SERVER_STORE_TRANSIENT, CONSTANTS["ALARM_DISK"], False)
        superblock.close()
    wire.wait(0, ["connection.unblocked"])
    wait_until(lambda: lane.call("basic.get", queue="unaware", no_ack=True).name == "basic.get-ok", what="the message")


def test_heartbeats_go_on_while_it_is_blocked(connect: Connect, gateway: GatewayNode) -> None:
    """And it is not taken for dead because nobody reads what it says."""
    wire = connect()
    wire.opened(heartbeat=1)
    lane = wire.channel()
    lane.call("queue.declare", queue="hearts", exclusive=True)
    with alarm(gateway):
        lane.publish("hearts", "x")
        found = wire.wait(0, ["connection.blocked"])
        assert found is not None
        assert found.name == "connection.blocked"
        beats, until = 0, time.monotonic() + 3.5  # longer than the two heartbeats after which silence is death
        while beats < 3 or time.monotonic() < until:
            came = wire.next(until if beats >= 3 else time.monotonic() + 60)
            if came is not None:
                assert came.name == "heartbeat", came
                beats += 1
        wire.raw(bytes((spec.FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, spec.FRAME_END)))
    found = wire.wait(0, ["connection.unblocked"], 30)
    assert found is not None
    assert found.name == "connection.unblocked"
    assert lane.call("basic.get", queue="hearts", no_ack=True).body == b"x"


def test_a_client_that_cannot_hear_it_is_told_nothing(connect: Connect, gateway: GatewayNode) -> None:
    wire = connect()
    wire.opened(client_properties={})
    lane = wire.channel()
    lane.call("queue.declare", queue="deaf", exclusive=True)
    with alarm(gateway):
        lane.publish("deaf", "x")
        wire.raw(method(1, "basic.get", {"queue": "deaf", "no_ack": True}))
        wait_until(lambda: gateway.ask()["blocked_n"] == 1, what="the block")
        assert wire.next(time.monotonic() + 0.2) is None
    found = wire.wait(1, ["basic.get-ok"], 30)
    assert found is not None
    assert found.body == b"x"


def test_a_client_that_dies_while_its_commit_waits(connect: Connect, gateway: GatewayNode) -> None:
    """What it had acked returns, as nothing was committed."""
    wire, other = connect(), connect()
    for one in (wire, other):
        one.opened()
    lane, witness = wire.channel(), other.channel()
    witness.call("queue.declare", queue="committed")
    lane.publish("committed", "job")
    lane.call("basic.get", queue="committed")
    lane.call("tx.select")
    lane.publish("committed", "result")
    lane.send("basic.ack", delivery=1)
    lane.alive()
    with alarm(gateway):
        lane.send("tx.commit")
        assert wire.wait(1, ["tx.commit-ok"], 0.5) is None
        wire.shut()
        wait_until(lambda: len(gateway.connections()) == 1, what="the end of the connection")
        found = witness.call("basic.get", queue="committed", no_ack=True)
        assert (found.body, found["redelivered"]) == (b"job", True)
        assert witness.call("basic.get", queue="committed", no_ack=True).name == "basic.get-empty"
    assert witness.call("queue.delete", queue="committed")["messages"] == 0


def test_messages_that_are_begun_stop_growing(connect: Connect, gateway: GatewayNode) -> None:
    """Else many of them, never ended, would take memory while the node is short of it."""
    wire = connect()
    wire.opened()
    wire.channel()
    with alarm(gateway):
        wire.raw(method(1, "basic.publish", {"routing_key": "nowhere"}) + header(1, 8 << 20, {}))
        part = frame(spec.FRAME_BODY, 1, bytes(100_000))
        while gateway.ask()["blocked_n"] == 0 and gateway.connections()[0]["bytes_in"] < 4 << 20:
            wire.raw(part)
        found = wire.wait(0, ["connection.blocked"], 30)
        assert found is not None
        assert found.name == "connection.blocked"
