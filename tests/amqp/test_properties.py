"""Goal: what a client says of a message comes to programs, and what programs say to clients; both keep what is theirs.

Method: pika and a program of this package at one node, with one gateway.
"""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import warren
from warren.engine.amqp.values import Int64, Timestamp

from support.gateway_node import GatewayNode

Properties = pika.BasicProperties


@pytest.fixture
def channel(gateway: GatewayNode) -> Iterator[BlockingChannel]:
    """A channel with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(gateway.url))
    made = connection.channel()
    made.confirm_delivery()
    yield made
    connection.close()


@pytest.fixture
def node(gateway: GatewayNode) -> Iterator[warren.Node]:
    with warren.attach(gateway.directory) as attached:
        yield attached


def test_a_program_reads_what_a_client_published(channel: BlockingChannel, node: warren.Node) -> None:
    channel.queue_declare("to-program", durable=True)
    headers = {"text": "ü", "list": [1, None, {"deep": True}], "big": 1 << 40}
    said = Properties("text/plain", headers=headers, delivery_mode=2, priority=3, message_id="m", timestamp=7)
    channel.basic_publish("", "to-program", b"body", said)
    with node.queue("to-program").get(timeout=60) as message:
        assert (message.body, message.exchange, message.routing_key) == (b"body", "", "to-program")
        assert message.headers == headers
        assert message.properties == {"content_type": "text/plain", "message_id": "m", "timestamp": 7}
        assert (message.persistent, message.content_type, message.timestamp) == (True, "text/plain", 7)
        assert message.amqp == {
            "content_type": "text/plain",
            "headers": headers,
            "delivery_mode": 2,
            "priority": 3,
            "message_id": "m",
            "timestamp": 7,
        }
        node.queue("again").put(message.body, headers=message.headers, properties=message.properties)
    found, properties, body = channel.basic_get("again", auto_ack=True)
    assert (found.routing_key, body, properties.headers) == ("again", b"body", headers)
    assert (properties.content_type, properties.message_id, properties.delivery_mode) == ("text/plain", "m", 2)


def test_a_client_reads_what_a_program_published(channel: BlockingChannel, node: warren.Node) -> None:
    queue = node.queue("to-client")
    queue.put(b"plain")
    queue.put(b"told", headers={"n": 1 << 63, "raw": b"\xff"}, properties={"type": "t", "timestamp": 7.5}, priority=4)
    found = [channel.basic_get("to-client", auto_ack=True) for _ in range(2)]
    assert sorted(body for _got, _properties, body in found) == [b"plain", b"told"]
    plain, told = sorted(found, key=lambda item: item[2])
    assert (plain[0].exchange, plain[0].routing_key, plain[1].delivery_mode) == ("", "to-client", 2)
    assert plain[1].headers is None
    assert told[1].headers == {"n": str(1 << 63), "raw": b"\xff"}
    assert (told[1].type, told[1].timestamp, told[1].priority) == ("t", 7, 4)


def test_a_dead_letter_keeps_what_its_publisher_said(channel: BlockingChannel, node: warren.Node) -> None:
    channel.queue_declare("graves", durable=True)
    channel.queue_declare(
        "dying", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    )
    said = Properties(headers={"CC": ["copy"], "mine": 1 << 40}, expiration="60000", delivery_mode=2, app_id="a")
    channel.basic_publish("", "dying", b"body", said)
    node.queue("dying", create=False).get(timeout=60).reject()
    with node.queue("graves", create=False).get(timeout=60) as letter:
        assert letter.amqp is not None
        (death,) = letter.amqp["headers"]["x-death"]
        assert (type(death["count"]), type(death["time"])) == (Int64, Timestamp)
        assert list(death) == ["count", "exchange", "original-expiration", "queue", "reason", "routing-keys", "time"]
        assert (death["queue"], death["reason"], death["routing-keys"]) == ("dying", "rejected", ["dying", "copy"])
        assert "CC" not in letter.headers
        assert (letter.headers["mine"], letter.amqp["app_id"]) == (1 << 40, "a")
        assert "expiration" not in letter.amqp


def test_a_letter_without_a_key_goes_where_its_message_went(channel: BlockingChannel) -> None:
    for name in ("one", "copy"):
        channel.queue_declare(name, durable=True, arguments={"x-dead-letter-exchange": "wake"})
        channel.queue_declare(f"{name}-dead", durable=True)
    channel.exchange_declare("wake", durable=True)
    for name in ("one", "copy"):
        channel.queue_bind(f"{name}-dead", "wake", name)
    channel.basic_publish("", "one", b"body", Properties(headers={"CC": ["copy"]}))
    got, _properties, _body = channel.basic_get("one")
    channel.basic_reject(got.delivery_tag, requeue=False)
    for name in ("one-dead", "copy-dead"):
        found = next(iter(channel.consume(name, auto_ack=True, inactivity_timeout=60)))
        channel.cancel()
        assert (found[0].exchange, found[0].routing_key, found[2]) == ("wake", "one", b"body")
        assert found[1].headers["CC"] == ["copy"]


def test_properties_that_have_no_room_are_refused(channel: BlockingChannel) -> None:
    channel.queue_declare("small", durable=True)
    channel.basic_publish("", "small", b"body", Properties(headers={"x": "y" * 65_000}))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="send large things as the body") as raised:
        channel.basic_publish("", "small", b"body", Properties(headers={"x": "y" * 66_000}))
    assert raised.value.reply_code == 311
