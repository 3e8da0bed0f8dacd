"""Goal: what channels do for a client of RabbitMQ's. Method: pika, against a node with one gateway."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import warren
from warren.workers.amqp import users_file
from warren.workers.process.control import ControlClient

from support.gateway_node import GatewayNode
from support.waiting import wait_until

Properties = pika.BasicProperties
_numbers = itertools.count()


@pytest.fixture
def connection(gateway: GatewayNode) -> Iterator[pika.BlockingConnection]:
    """A connection of pika's."""
    made = pika.BlockingConnection(pika.URLParameters(gateway.url))
    yield made
    if made.is_open:
        made.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel of it."""
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    """A durable queue of the test's own."""
    name = f"q{next(_numbers)}"
    channel.queue_declare(name, durable=True)
    return name


def _until(connection: pika.BlockingConnection, done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        connection.process_data_events(0.05)


def _closed(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        call()
    return raised.value.reply_code, raised.value.reply_text


def _all(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


# -- publish, get, consume --------------------------------------------------------------------------------------------


def test_properties_come_back(channel: BlockingChannel, queue: str) -> None:
    said = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"text": "ü", "number": 7, "list": [1, "two", None], "table": {"deep": True}, "big": 1 << 40},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1234567890,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="x",
    )
    channel.basic_publish("", queue, b"body", said)
    method, got, body = channel.basic_get(queue)
    assert (body, method.routing_key, method.exchange, method.redelivered) == (b"body", queue, "", False)
    assert vars(got) == vars(said)


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 400_000])
def test_bodies_of_several_frames(channel: BlockingChannel, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_messages_come_in_order_and_acks_of_many_count(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    for number in range(1000):
        channel.basic_publish("", queue, b"%d" % number)
    got: list[int] = []

    def take(on: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        got.append(int(body))
        if method.delivery_tag % 100 == 0:
            on.basic_ack(method.delivery_tag, multiple=True)

    channel.basic_qos(prefetch_count=150)
    channel.basic_consume(queue, take)
    _until(connection, lambda: len(got) == 1000)
    assert got == list(range(1000))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_prefetch_is_a_limit(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    got: list[Any] = []
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(queue, lambda _on, method, _properties, body: got.append((method.delivery_tag, body)))
    _until(connection, lambda: len(got) == 3)
    assert channel.queue_declare(queue, passive=True).method.message_count == 7
    channel.basic_ack(got[1][0])
    _until(connection, lambda: len(got) == 4)
    channel.basic_ack(0, multiple=True)
    _until(connection, lambda: len(got) == 7)
    assert [body for _tag, body in got] == [b"%d" % number for number in range(7)]


def test_consumers_take_turns(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    got: dict[str, list[bytes]] = {"a": [], "b": []}
    for tag in got:
        channel.basic_consume(
            queue, lambda _on, method, _p, body: got[method.consumer_tag].append(body), auto_ack=True, consumer_tag=tag
        )
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    _until(connection, lambda: len(got["a"]) + len(got["b"]) == 100)
    assert 40 <= len(got["a"]) <= 60


def test_a_consumer_of_higher_priority_is_served_first(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    got: dict[str, list[bytes]] = {"low": [], "high": []}
    channel.basic_qos(prefetch_count=2)
    for tag, priority in (("low", 0), ("high", 5)):
        channel.basic_consume(
            queue,
            lambda _on, method, _p, body: got[method.consumer_tag].append(body),
            consumer_tag=tag,
            arguments={"x-priority": priority},
        )
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    _until(connection, lambda: len(got["low"]) + len(got["high"]) == 3)
    assert got == {"high": [b"0", b"1"], "low": [b"2"]}


def test_what_is_returned_comes_again_in_its_place(channel: BlockingChannel, queue: str) -> None:
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    first, second = channel.basic_get(queue), channel.basic_get(queue)
    channel.basic_nack(second[0].delivery_tag, multiple=True)
    again = channel.basic_get(queue)
    assert (again[2], again[0].redelivered) == (first[2], True)
    channel.basic_reject(again[0].delivery_tag, requeue=False)
    assert _all(channel, queue) == [b"1", b"2"]


def test_a_channel_that_ends_returns_what_it_held(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    other = connection.channel()
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    for _number in range(3):
        other.basic_get(queue)
    other.close()
    assert _all(channel, queue) == [b"%d" % number for number in range(5)]


def test_recover(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"one")
    channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    assert channel.basic_get(queue, auto_ack=True)[0].redelivered


def test_a_queue_that_is_deleted_cancels_its_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(queue, lambda *_got: None, consumer_tag="t")
    connection.channel().queue_delete(queue)
    _until(connection, lambda: bool(cancelled))
    assert cancelled[0].method.consumer_tag == "t"


# -- confirms, returns, transactions ----------------------------------------------------------------------------------


def test_confirms(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, Properties(delivery_mode=1 + number % 2), mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as raised:
        channel.basic_publish("", "nobody", b"lost", Properties(app_id="me"), mandatory=True)
    returned = raised.value.messages[0]
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.properties.app_id, returned.body) == ("me", b"lost")
    assert len(_all(channel, queue)) == 20


def test_a_full_queue_refuses(channel: BlockingChannel) -> None:
    name = f"q{next(_numbers)}"
    channel.queue_declare(name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"3")
    assert _all(channel, name) == [b"1", b"2"]


def test_transactions(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    other = connection.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"one")
    assert other.queue_declare(queue, passive=True).method.message_count == 0
    channel.tx_rollback()
    channel.basic_publish("", queue, b"two")
    channel.tx_commit()
    got = channel.basic_get(queue)
    assert got[2] == b"two"
    channel.basic_ack(got[0].delivery_tag)
    channel.tx_rollback()
    channel.basic_nack(got[0].delivery_tag)
    channel.tx_commit()
    assert _all(other, queue) == [b"two"]


def test_copies_have_an_end(channel: BlockingChannel) -> None:
    """So that no message is work for seconds."""
    channel.confirm_delivery()
    keys = [f"k{number}" for number in range(1023)]
    channel.basic_publish("amq.direct", "k", b"x", Properties(headers={"CC": keys}))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="1024 routing keys at most") as error:
        channel.basic_publish("amq.direct", "k", b"x", Properties(headers={"CC": [*keys, "more"]}))
    assert error.value.reply_code == 406


def test_copies(channel: BlockingChannel) -> None:
    names = [f"q{next(_numbers)}" for _number in range(3)]
    for name in names:
        channel.queue_declare(name)
    channel.basic_publish("", names[0], b"x", Properties(headers={"CC": [names[1]], "BCC": [names[2]], "mine": 1}))
    for name in names:
        _method, properties, body = channel.basic_get(name, auto_ack=True)
        assert (body, properties.headers) == (b"x", {"CC": [names[1]], "mine": 1})


def test_direct_reply_to(
    gateway: GatewayNode, connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    got: list[Any] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *answer: got.append(answer), auto_ack=True)
    channel.basic_publish("", queue, b"question", Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="1"))
    other = pika.BlockingConnection(pika.URLParameters(gateway.url))
    serving = other.channel()
    _method, asked, _body = serving.basic_get(queue, auto_ack=True)
    serving.basic_publish("", asked.reply_to, b"answer", Properties(correlation_id=asked.correlation_id))
    _until(connection, lambda: bool(got))
    assert (got[0][2].correlation_id, got[0][3]) == ("1", b"answer")
    other.close()


# -- exchanges, queues ------------------------------------------------------------------------------------------------


def test_exchanges(channel: BlockingChannel, queue: str) -> None:
    source, headers = f"x{next(_numbers)}", f"x{next(_numbers)}"
    channel.exchange_declare(source, "topic", durable=True)
    channel.exchange_declare(headers, "headers")
    channel.exchange_bind(headers, source, "a.#")
    channel.queue_bind(queue, headers, arguments={"x-match": "any", "colour": "red", "size": 3})
    for key, told in (("a.b", {"colour": "red"}), ("a", {"size": 4}), ("b", {"colour": "red"}), ("a", {"size": 3})):
        channel.basic_publish(source, key, key.encode(), Properties(headers=told))
    assert _all(channel, queue) == [b"a.b", b"a"]
    channel.exchange_delete(source)
    channel.exchange_delete(headers)


def test_a_queue_and_its_connection(gateway: GatewayNode, channel: BlockingChannel) -> None:
    other = pika.BlockingConnection(pika.URLParameters(gateway.url))
    mine = other.channel()
    name = mine.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    code, text = _closed(lambda: channel.queue_declare(name, passive=True))
    assert (code, text.partition(" - ")[0]) == (405, "RESOURCE_LOCKED")
    other.close()
    with pika.BlockingConnection(pika.URLParameters(gateway.url)) as third:
        code, _text = _closed(lambda: third.channel().queue_declare(name, passive=True))
        assert code == 404


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel) -> None:
    name = f"q{next(_numbers)}"
    channel.queue_declare(name, auto_delete=True)
    channel.basic_consume(name, lambda *_got: None, consumer_tag="t")
    channel.basic_cancel("t")
    assert _closed(lambda: channel.queue_declare(name, passive=True))[0] == 404


def test_refusals_have_rabbitmqs_words(connection: pika.BlockingConnection, queue: str) -> None:
    def on_another(call: Callable[[BlockingChannel], Any]) -> tuple[int, str]:
        return _closed(lambda: call(connection.channel()))

    assert on_another(lambda one: one.queue_declare(queue, durable=False)) == (
        406,
        (
            f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
            "received 'false' but current is 'true'"
        ),
    )
    assert on_another(lambda one: one.basic_get("nobody")) == (404, "NOT_FOUND - no queue 'nobody' in vhost '/'")
    assert on_another(lambda one: one.queue_bind(queue, "")) == (
        403,
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    )
    assert on_another(lambda one: (one.basic_ack(7), one.queue_declare(queue, passive=True))) == (
        406,
        "PRECONDITION_FAILED - unknown delivery tag 7",
    )


def test_names_of_other_vhosts_are_their_own(gateway: GatewayNode, channel: BlockingChannel, queue: str) -> None:
    with users_file.changing(gateway.directory) as accounts:
        accounts.vhosts["shop"] = users_file.Vhost()
        accounts.users["guest"].permissions["shop"] = users_file.Rights(".*", ".*", ".*")
    parameters = pika.URLParameters(gateway.url)
    parameters.virtual_host = "shop"

    def connected() -> pika.BlockingConnection | None:
        try:
            return pika.BlockingConnection(parameters)
        except pika.exceptions.ProbableAccessDeniedError:  # the gateway looks at the file every second
            return None

    found = wait_until(connected, 30, what="a connection to the new vhost")
    assert found is not None
    with found as there:
        one = there.channel()
        one.queue_declare(queue, durable=True)
        one.queue_bind(queue, "amq.topic", "a.*")
        one.basic_publish("amq.topic", "a.b", b"there")
        one.basic_publish("", queue, b"too")
        assert _all(one, queue) == [b"there", b"too"]
        # a letter's own key names a queue of the vhost in which it died
        one.queue_declare("dying", durable=True, arguments={"x-dead-letter-exchange": "", "x-max-length": 0})
        one.queue_bind("dying", "amq.topic", queue)
        one.basic_publish("amq.topic", queue, b"letter")
        with warren.attach(gateway.directory) as node:
            node.publish(b"a program's letter", exchange="@shop:amq.topic", routing_key=queue)
        letters: list[bytes] = []
        _until(found, lambda: len(letters.extend(_all(one, queue)) or letters) == 2)
        assert letters == [b"letter", b"a program's letter"]
    assert _all(channel, queue) == []


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_read_again_and_again(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    name = f"stream.{next(_numbers)}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number, Properties(headers={"n": number}, delivery_mode=2))
    for start, wanted in (("first", range(10)), (4, range(4, 10)), ("last", range(9, 10))):
        got: list[tuple[int, int, bytes]] = []
        one = connection.channel()
        one.basic_qos(prefetch_count=2)

        def take(on: BlockingChannel, method: Any, properties: Any, body: bytes, got: list[Any] = got) -> None:
            got.append((properties.headers["x-stream-offset"], properties.headers["n"], body))
            on.basic_ack(method.delivery_tag)

        one.basic_consume(name, take, arguments={"x-stream-offset": start})
        _until(connection, lambda got=got, wanted=wanted: len(got) >= len(wanted))  # type: ignore[misc]
        assert got == [(number, number, b"%d" % number) for number in wanted]
        one.close()
    channel.queue_delete(name)


def test_a_get_is_no_consumer_in_the_status(gateway: GatewayNode, channel: BlockingChannel, queue: str) -> None:
    def consumers() -> tuple[int, int]:
        with ControlClient(gateway.directory) as control:
            (row,) = control.call("status", pattern=queue)["queues"]
        return row["delivered"], row["consumers"]

    channel.basic_publish("", queue, b"x")
    method, _properties, _body = channel.basic_get(queue)
    assert method is not None
    wait_until(lambda: consumers() == (1, 0), what="the get")
    channel.basic_ack(method.delivery_tag)
    tag = channel.basic_consume(queue, lambda *_: None)
    wait_until(lambda: consumers() == (1, 1), what="the consumer")
    channel.basic_cancel(tag)
    wait_until(lambda: consumers() == (1, 0), what="its end")


def test_more_queues_than_a_message_goes_to_are_the_channels_fault(tmp_path: Path) -> None:
    """Of one worker; the connection goes on."""
    with GatewayNode(tmp_path / "data", workers=1) as node, node.connected() as connection:
        channel = connection.channel()
        channel.exchange_declare("fan", "fanout")
        channel.exchange_declare("other", "headers", arguments={"alternate-exchange": "fan"})
        for number in range(1025):
            channel.queue_declare(f"q{number}", exclusive=True)
            channel.queue_bind(f"q{number}", "fan")
        for exchange in ("fan", "other"):
            publishing = connection.channel()
            publishing.confirm_delivery()
            said = _closed(lambda ch=publishing, to=exchange: ch.basic_publish(to, "", b"x"))  # type: ignore[misc]
            assert said[0] == 406
            assert "1025 queues of one worker, more than 1024" in said[1]
        channel.queue_unbind("q0", "fan")
        channel.confirm_delivery()
        channel.basic_publish("fan", "", b"x")
