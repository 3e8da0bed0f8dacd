"""Goal: the gateway's rules (docs/rules.md) where they are not those of one channel. Method: pika, and kills."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqp_diff.wire import Lane, Wire
from support.gateway_node import GatewayNode
from support.waiting import wait_until


@pytest.fixture
def small(tmp_path: Path) -> Iterator[GatewayNode]:
    """A node with few delivery slots, and a small ring."""
    with GatewayNode(tmp_path / "data", amqp_delivery_slots=256, ring_records=256, workers=1) as running:
        yield running


def _wired(node: GatewayNode) -> tuple[Wire, Lane]:
    """A connection by raw frames, with a channel."""

    def connect() -> Wire | None:
        try:
            return Wire("a", lambda _line: None, "127.0.0.1", node.port)
        except OSError:
            return None

    wire = wait_until(connect, 60, what="a connection")
    assert wire is not None
    wire.opened()
    return wire, wire.channel()


def _until(connection: pika.BlockingConnection, done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        connection.process_data_events(0.05)


def test_a1_confirmed_messages_survive_kills_of_gateway_and_workers(gateway: GatewayNode) -> None:
    confirmed: list[bytes] = []
    for role in ("worker-0", "amqp_gateway", "store", "amqp_gateway"):
        wire, lane = _wired(gateway)
        lane.call("queue.declare", queue="survivors", durable=True)
        lane.call("confirm.select")
        for _turn in range(50):
            confirmed.append(b"%d" % len(confirmed))
            lane.publish("survivors", confirmed[-1], properties={"delivery_mode": 2})
        lane.confirms(50)
        gateway.kill(role)
        wire.shut()
    with gateway.connected() as connection:
        channel = connection.channel()
        got = [channel.basic_get("survivors", auto_ack=True)[2] for _message in confirmed]
    assert got == confirmed


def test_a2_a_killed_gateway_returns_what_its_clients_held(gateway: GatewayNode) -> None:
    wire, lane = _wired(gateway)
    lane.call("queue.declare", queue="held", durable=True)
    for number in range(10):
        lane.publish("held", b"%d" % number, properties={"delivery_mode": 2})
    for _number in range(4):
        lane.call("basic.get", queue="held")
    gateway.kill("amqp_gateway")
    wire.shut()
    with gateway.connected() as again:
        channel = again.channel()
        got = [channel.basic_get("held", auto_ack=True) for _number in range(10)]
    assert [body for _method, _properties, body in got] == [b"%d" % number for number in range(10)]
    assert [method.redelivered for method, _properties, _body in got] == [True] * 4 + [False] * 6


def test_a3_a_consumer_that_never_acks_does_not_stop_others(small: GatewayNode) -> None:
    with small.connected() as connection:
        greedy, other = connection.channel(), connection.channel()
        held: list[int] = []
        got: list[bytes] = []
        for name in ("a", "b"):
            greedy.queue_declare(name)
            for number in range(400):
                greedy.basic_publish("", name, b"%d" % number)
        greedy.basic_consume("a", lambda _on, method, _p, _body: held.append(method.delivery_tag))
        _until(connection, lambda: len(held) >= 208)

        def take(on: Any, method: Any, _properties: Any, body: bytes) -> None:
            got.append(body)
            on.basic_ack(method.delivery_tag)

        other.basic_consume("b", take)
        _until(connection, lambda: len(got) == 400)
        assert len(held) == 208  # three quarters of 256, and what each consumer can have of the rest
        assert got == [b"%d" % number for number in range(400)]


def test_a3_the_prefetch_of_a_channel_is_shared(gateway: GatewayNode) -> None:
    with gateway.connected() as connection:
        channel = connection.channel()
        got: list[int] = []
        channel.basic_qos(prefetch_count=3, global_qos=True)
        for name in ("one", "two"):
            channel.queue_declare(name, exclusive=True)
            for _number in range(5):
                channel.basic_publish("", name, b"x")
            channel.basic_consume(name, lambda _on, method, _p, _body: got.append(method.delivery_tag))
        _until(connection, lambda: len(got) == 3)
        channel.queue_declare("one", passive=True)
        assert len(got) == 3
        for wanted in range(4, 11):
            channel.basic_ack(got[wanted - 4])
            _until(connection, lambda wanted=wanted: len(got) == wanted)  # type: ignore[misc]


def test_a4_what_waits_for_room_stays_in_order(small: GatewayNode) -> None:
    wire, lane = _wired(small)
    lane.call("queue.declare", queue="order", durable=True)
    lane.call("confirm.select")
    for number in range(3000):
        lane.publish("order", str(number) + "x" * 1000, properties={"delivery_mode": 2})
    lane.confirms(3000)
    assert lane.call("queue.declare", queue="order", passive=True)["messages"] == 3000
    wire.close()
    with small.connected() as connection:
        channel = connection.channel()
        got = [channel.basic_get("order", auto_ack=True)[2] or b"" for _number in range(3000)]
        assert [int(body.rstrip(b"x")) for body in got] == list(range(3000))


def test_a5_declarations_are_compared_after_a_restart(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        with node.connected() as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True, arguments={"x-queue-mode": "lazy", "x-max-priority": 5})
            channel.exchange_declare("kept", "topic", durable=True, arguments={"alternate-exchange": "other"})
        node.stop()
        node.start()
        with node.connected() as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 5, "x-queue-mode": "lazy"})
            channel.exchange_declare("kept", "topic", durable=True, arguments={"alternate-exchange": "other"})
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-queue-mode'"):
                channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 5})
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="current is the value 'other'"):
                connection.channel().exchange_declare("kept", "topic", durable=True)
