"""By py-amqp, which Celery and kombu speak AMQP with."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import amqp
import amqp.exceptions

from amqp_diff.scene import Scene, case

NO_NEWS = socket.timeout


@contextmanager
def _connection(s: Scene, **options: Any) -> Iterator[Any]:
    given = {"userid": "guest", "password": "guest", "virtual_host": s.server.vhost}
    given |= {"connect_timeout": 30, "read_timeout": 30} | options
    connection = amqp.Connection(f"{s.server.host}:{s.server.port}", **given)
    connection.connect()
    try:
        yield connection
    finally:
        if connection.connected:
            connection.close()


def _said(s: Scene, what: str, call: Any, *given: Any, **options: Any) -> Any:
    try:
        found = call(*given, **options)
    except (amqp.exceptions.AMQPError, amqp.exceptions.MessageNacked) as error:
        s.say(f"{what}: {type(error).__name__} {error}")
        return None
    s.say(f"{what}: {found}")
    return found


def _message(s: Scene, message: Any) -> None:
    if message is None:
        s.say("no message")
        return
    info = {name: message.delivery_info[name] for name in sorted(message.delivery_info) if name != "consumer_tag"}
    s.say(f"{info} {dict(sorted(message.properties.items()))} {message.body!r}")


@case
def declare_publish_get(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        _said(s, "declare", channel.queue_declare, queue, durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("hello", content_type="text/plain", delivery_mode=2), "", queue)
        message = channel.basic_get(queue)
        _message(s, message)
        channel.basic_ack(message.delivery_tag)
        _message(s, channel.basic_get(queue))


@case
def all_properties(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        headers = {"int": 1, "big": 2**40, "text": "ä", "list": [1, "b", None, True], "table": {"x": 1.5}, "none": None}
        message = amqp.Message(
            b"\x00\xff", content_type="application/octet-stream", content_encoding="binary",
            application_headers=headers,
            delivery_mode=2, priority=3, correlation_id="c", reply_to="r", expiration="60000", message_id="m",
            type="t", user_id="guest", app_id="a", cluster_id="k",
        )  # fmt: skip
        channel.basic_publish(message, "", queue)
        channel.queue_declare(queue, passive=True)
        _message(s, channel.basic_get(queue, no_ack=True))


@case
def consume_with_prefetch(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        for number in range(5):
            channel.basic_publish(amqp.Message(str(number)), "", queue)
        channel.basic_qos(0, 2, False)
        heard: list[Any] = []
        _said(s, "tag", channel.basic_consume, queue, "mine", callback=heard.append)
        _drain(connection, heard, 2)
        s.say(f"{[message.body for message in heard]}")
        channel.basic_ack(heard[-1].delivery_tag, multiple=True)
        _drain(connection, heard, 4)
        s.say(f"{[message.body for message in heard]}")
        _said(s, "cancel", channel.basic_cancel, "mine")


def _drain(connection: Any, heard: list[Any], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(heard) < count and time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=1)
        except NO_NEWS:
            continue


@case
def confirmed_publish(s: Scene) -> None:
    with _connection(s, confirm_publish=True) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.basic_publish(amqp.Message("1"), "", queue)
        s.say("first: confirmed")
        _said(s, "second", channel.basic_publish, amqp.Message("2"), "", queue)


@case
def returned(s: Scene) -> None:
    with _connection(s, confirm_publish=True) as connection:
        channel = connection.channel()
        heard: list[Any] = []
        channel.events["basic_return"].add(lambda *given: heard.append((*given[:3], given[3].body)))
        channel.basic_publish(amqp.Message("x"), "", "nobody", mandatory=True)
        for given in heard:
            s.say(f"{[str(one) for one in given]}")


@case
def errors(s: Scene) -> None:
    with _connection(s) as connection:
        for what, name, given, options in (
            ("missing", "queue_declare", (s.name("missing"),), {"passive": True}),
            ("reserved", "queue_declare", ("amq.mine",), {}),
            ("missing exchange", "exchange_declare", (s.name("x"), "direct"), {"passive": True}),
            ("get", "basic_get", (s.name("missing"),), {}),
            ("purge", "queue_purge", (s.name("missing"),), {}),
            ("bind", "queue_bind", (s.name("missing"), "amq.direct"), {}),
        ):
            channel = connection.channel()
            _said(s, what, getattr(channel, name), *given, **options)
            s.say(f"connection is open {connection.connected}")


@case
def connection_errors(s: Scene) -> None:
    with _connection(s) as connection:
        _said(s, "unknown type", connection.channel().exchange_declare, s.name("x"), "wonder")
        s.say(f"connection is open {connection.connected}")


@case
def wrong_password(s: Scene) -> None:
    try:
        with _connection(s, password="wrong"):
            s.say("in")
    except (amqp.exceptions.AMQPError, OSError) as error:
        s.say(f"{type(error).__name__} {error}")


@case
def login_by_amqplain(s: Scene) -> None:
    with _connection(s, login_method="AMQPLAIN") as connection:
        s.say(f"open {connection.connected}, server {sorted(connection.server_properties['capabilities'])}")


@case
def fanout_of_a_worker_pool(s: Scene) -> None:
    """As Celery's remote control: a fanout exchange and a queue of each worker that goes with it."""
    with _connection(s) as connection, _connection(s) as other:
        channel = connection.channel()
        exchange = s.name("pidbox")
        channel.exchange_declare(exchange, "fanout", durable=False, auto_delete=False)
        for word in ("one", "two"):
            channel.queue_declare(
                s.name(word), auto_delete=True, arguments={"x-message-ttl": 300000, "x-expires": 10000}
            )
            channel.queue_bind(s.name(word), exchange)
        other.channel().basic_publish(amqp.Message("ping"), exchange)
        heard: list[Any] = []
        for word in ("one", "two"):
            channel.basic_consume(s.name(word), word, no_ack=True, callback=heard.append)
        _drain(connection, heard, 2)
        s.say(f"{sorted((message.delivery_info['consumer_tag'], message.body) for message in heard)}")


@case
def acknowledge_late_and_reject(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        for number in range(3):
            channel.basic_publish(amqp.Message(str(number)), "", queue)
        channel.queue_declare(queue, passive=True)
        first, second = channel.basic_get(queue), channel.basic_get(queue)
        channel.basic_reject(first.delivery_tag, True)
        channel.basic_reject(second.delivery_tag, False)
        for _ in range(3):
            _message(s, channel.basic_get(queue))


@case
def transactions(s: Scene) -> None:
    with _connection(s) as connection:
        channel = connection.channel()
        queue = s.name()
        channel.queue_declare(queue)
        channel.tx_select()
        channel.basic_publish(amqp.Message("1"), "", queue)
        _said(s, "before", channel.queue_declare, queue, passive=True)
        channel.tx_commit()
        _said(s, "after", channel.queue_declare, queue, passive=True)


@case
def many_channels(s: Scene) -> None:
    with _connection(s) as connection:
        channels = [connection.channel() for _ in range(20)]
        queue = s.name()
        channels[0].queue_declare(queue)
        for number, channel in enumerate(channels):
            channel.basic_publish(amqp.Message(str(number)), "", queue)
            channel.queue_declare(queue, passive=True)
        _said(s, "count", channels[-1].queue_declare, queue, passive=True)
        for channel in channels[:10]:
            channel.close()
        s.say(f"open {connection.connected}")


@case
def heartbeat(s: Scene) -> None:
    with _connection(s, heartbeat=2) as connection:
        s.say(f"heartbeat {connection.heartbeat}")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            connection.heartbeat_tick()
            try:
                connection.drain_events(timeout=0.5)
            except NO_NEWS:
                continue
        _said(s, "open", connection.channel().queue_declare, s.name())
