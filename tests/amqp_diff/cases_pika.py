"""By pika, as programs use it: the blocking connection."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from amqp_diff.scene import Scene, case


@contextmanager
def _connection(s: Scene, **options: Any) -> Iterator[BlockingConnection]:
    given = {"virtual_host": s.server.vhost, "heartbeat": 0, "socket_timeout": 30, "blocked_connection_timeout": 60}
    given |= options
    connection = pika.BlockingConnection(pika.ConnectionParameters(s.server.host, s.server.port, **given))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@contextmanager
def _channel(s: Scene, **options: Any) -> Iterator[BlockingChannel]:
    with _connection(s, **options) as connection:
        yield connection.channel()


def _said(s: Scene, what: str, call: Any, *given: Any, **options: Any) -> Any:
    """Call, and say what is returned or raised."""
    try:
        found = call(*given, **options)
    except (pika.exceptions.AMQPError, ValueError) as error:
        s.say(f"{what}: {type(error).__name__} {error}")
        return None
    s.say(f"{what}: {found.method if hasattr(found, 'method') else found}")
    return found


def _message(s: Scene, method: Any, properties: Any, body: Any) -> None:
    s.say(f"message {method} {properties} {body!r}")


@case
def hello_world(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        _said(s, "declare", channel.queue_declare, queue)
        channel.basic_publish("", queue, b"Hello World!")
        for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=15):
            _message(s, method.routing_key if method else None, properties, body)
            break
        _said(s, "cancel", channel.cancel)


@case
def work_queue(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.queue_declare(queue, durable=True)
        for number in range(5):
            channel.basic_publish("", queue, f"task {number}".encode(), pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=1)
        bodies: list[Any] = []

        def on_message(one: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            bodies.append((method.delivery_tag, method.redelivered, properties.delivery_mode, body))
            one.basic_ack(method.delivery_tag)
            if len(bodies) == 5:
                one.stop_consuming()

        channel.basic_consume(queue, on_message)
        channel.start_consuming()
        for line in bodies:
            s.say(str(line))
        _said(s, "count", channel.queue_declare, queue, passive=True)


@case
def publish_subscribe(s: Scene) -> None:
    with _channel(s) as channel:
        exchange = s.name("logs")
        channel.exchange_declare(exchange, "fanout")
        names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
        s.say(f"generated {[name.startswith('amq.gen-') for name in names]}")
        for name in names:
            channel.queue_bind(name, exchange)
        channel.basic_publish(exchange, "", b"to all")
        for name in names:
            method, properties, body = _get(channel, name)
            _message(s, method and (method.exchange, method.routing_key), properties, body)


def _get(channel: BlockingChannel, queue: str, patience: float = 15.0) -> Any:
    deadline = time.monotonic() + patience
    while True:
        found = channel.basic_get(queue, auto_ack=True)
        if found[0] is not None or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


@case
def topics(s: Scene) -> None:
    with _channel(s) as channel:
        exchange = s.name("topics")
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(s.name())
        for key in ("*.orange.*", "lazy.#"):
            channel.queue_bind(s.name(), exchange, key)
        channel.confirm_delivery()
        for key in ("quick.orange.rabbit", "lazy.orange.elephant", "quick.brown.fox", "lazy.pink.rabbit.two"):
            channel.basic_publish(exchange, key, key.encode())
        for _ in range(4):
            _method, _properties, body = channel.basic_get(s.name(), auto_ack=True)
            s.say(str(body))


@case
def remote_procedure_call(s: Scene) -> None:
    with _connection(s) as connection:
        server, client = connection.channel(), connection.channel()
        queue = s.name("rpc")
        server.queue_declare(queue)

        def serve(one: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            one.basic_publish("", properties.reply_to, str(int(body) * 2).encode(), answer)
            one.basic_ack(method.delivery_tag)

        server.basic_consume(queue, serve)
        answers: list[Any] = []
        client.basic_consume(
            "amq.rabbitmq.reply-to", lambda *given: answers.append((given[2].correlation_id, given[3])), auto_ack=True
        )
        client.basic_publish(
            "", queue, b"21", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
        )
        deadline = time.monotonic() + 60
        while not answers and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        s.say(str(answers))


@case
def confirms_and_returns(s: Scene) -> None:
    with _channel(s) as channel:
        channel.confirm_delivery()
        queue = s.name()
        channel.queue_declare(queue)
        _said(s, "routed", channel.basic_publish, "", queue, b"1", mandatory=True)
        try:
            channel.basic_publish("", "nobody", b"2", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            for one in error.messages:
                s.say(f"unroutable {one.method} {one.properties} {one.body!r}")
        _said(s, "not mandatory", channel.basic_publish, "", "nobody", b"3")


@case
def refused_by_length(s: Scene) -> None:
    with _channel(s) as channel:
        channel.confirm_delivery()
        queue = s.name()
        channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        _said(s, "first", channel.basic_publish, "", queue, b"1")
        try:
            channel.basic_publish("", queue, b"2")
            s.say("second: confirmed")
        except pika.exceptions.NackError as error:
            s.say(f"second: NackError of {len(error.messages)}")


@case
def closed_by_the_broker(s: Scene) -> None:
    with _connection(s) as connection:
        for what, call in {
            "passive": lambda channel: channel.queue_declare(s.name("missing"), passive=True),
            "unknown tag": lambda channel: (channel.basic_ack(9), channel.basic_qos(prefetch_count=1)),
            "reserved": lambda channel: channel.queue_declare("amq.mine"),
            "exchange": lambda channel: channel.exchange_declare("amq.fanout", "direct"),
        }.items():
            channel = connection.channel()
            _said(s, what, call, channel)
            s.say(f"channel is open {channel.is_open}, connection is open {connection.is_open}")


@case
def connection_closed_by_the_broker(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        _said(s, "unknown type", channel.exchange_declare, s.name("x"), "wonder")
        s.say(f"connection is open {connection.is_open}")


@case
def wrong_password(s: Scene) -> None:
    credentials = pika.PlainCredentials("guest", "wrong")
    try:
        with _connection(s, credentials=credentials):
            s.say("in")
    except pika.exceptions.AMQPConnectionError as error:
        s.say(f"{type(error).__name__} {error}")


@case
def unknown_vhost(s: Scene) -> None:
    try:
        with _connection(s, virtual_host="nowhere"):
            s.say("in")
    except pika.exceptions.AMQPConnectionError as error:
        s.say(f"{type(error).__name__} {error}")


@case
def all_properties(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.queue_declare(queue)
        properties = pika.BasicProperties(
            "application/json", "gzip", {"a": 1, "b": [1, "x", None], "c": {"d": True}}, 2, 3, "corr",
            "reply", "60000", "id", 1700000000, "type", "guest", "app", "cluster",
        )  # fmt: skip
        channel.basic_publish("", queue, b"body", properties)
        method, properties, body = _get(channel, queue)
        _message(s, (method.delivery_tag, method.redelivered, method.message_count), properties, body)


@case
def large_messages(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.queue_declare(queue)
        for size in (0, 1, 131064, 131065, 1_000_000):
            channel.basic_publish("", queue, b"x" * size)
            _method, _properties, body = _get(channel, queue)
            s.say(f"{size}: {body == b'x' * size}")


@case
def consumer_cancelled_by_a_delete(s: Scene) -> None:
    with _connection(s) as connection:
        channel, other = connection.channel(), connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        heard: list[str] = []
        channel.add_on_cancel_callback(lambda frame: heard.append(frame.method.NAME))
        channel.basic_consume(queue, lambda *given: None)
        other.queue_delete(queue)
        deadline = time.monotonic() + 60
        while not heard and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        s.say(str(heard))


@case
def nack_reject_and_recover(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.queue_declare(queue)
        for number in range(3):
            channel.basic_publish("", queue, str(number).encode())
        channel.queue_declare(queue, passive=True)
        for method, _properties, body in channel.consume(queue, inactivity_timeout=15):
            if method is None:
                break
            s.say(f"{body!r} {method.delivery_tag} {method.redelivered}")
            if method.delivery_tag == 1:
                channel.basic_nack(1)
            elif method.delivery_tag == 2:
                channel.basic_reject(2, requeue=False)
            elif method.delivery_tag < 6:
                channel.basic_ack(method.delivery_tag)
            if method.delivery_tag == 4:
                break
        s.say(f"cancelled, requeued {channel.cancel()}")
        _said(s, "left", channel.queue_declare, queue, passive=True)


@case
def transactions(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.queue_declare(queue)
        _said(s, "select", channel.tx_select)
        channel.basic_publish("", queue, b"1")
        _said(s, "before", channel.queue_declare, queue, passive=True)
        _said(s, "commit", channel.tx_commit)
        channel.basic_publish("", queue, b"2")
        _said(s, "rollback", channel.tx_rollback)
        _said(s, "after", channel.queue_declare, queue, passive=True)


@case
def exchange_bindings(s: Scene) -> None:
    with _channel(s) as channel:
        for word in ("a", "b"):
            channel.exchange_declare(s.name(word), "direct")
        _said(s, "bind", channel.exchange_bind, s.name("b"), s.name("a"), "k")
        channel.queue_declare(s.name())
        channel.queue_bind(s.name(), s.name("b"), "k")
        channel.basic_publish(s.name("a"), "k", b"through")
        s.say(str(_get(channel, s.name())[2]))
        _said(s, "unbind", channel.exchange_unbind, s.name("b"), s.name("a"), "k")


@case
def purge_and_delete(s: Scene) -> None:
    with _channel(s) as channel:
        queue = s.name()
        channel.confirm_delivery()
        channel.queue_declare(queue)
        for _ in range(3):
            channel.basic_publish("", queue, b"x")
        _said(s, "purge", channel.queue_purge, queue)
        channel.basic_publish("", queue, b"x")
        _said(s, "delete", channel.queue_delete, queue)
        _said(s, "again", channel.queue_delete, queue)


@case
def heartbeats_go_on(s: Scene) -> None:
    with _connection(s, heartbeat=2) as connection:
        connection.sleep(5)
        s.say(f"open {connection.is_open}")


@case
def priorities_of_consumers(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        heard: list[str] = []
        for word, priority in (("low", 1), ("high", 9)):
            channel.basic_consume(
                queue, lambda *given, word=word: heard.append(word), auto_ack=True, arguments={"x-priority": priority}
            )
        other = connection.channel()
        for _ in range(3):
            other.basic_publish("", queue, b"x")
        deadline = time.monotonic() + 60
        while len(heard) < 3 and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        s.say(str(heard))
