"""By aio-pika, on asyncio."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
from aio_pika.exceptions import AMQPError
from pamqp.base import Frame

from amqp_diff.scene import Scene, case

PATIENCE_S = 90


def asynchronous(script: Callable[[Scene, Any], Awaitable[None]]) -> Callable[[Scene], None]:
    """A case of its own event loop, with a connection."""

    @functools.wraps(script)
    def run(s: Scene) -> None:
        async def connected() -> None:
            connection = await aio_pika.connect(s.server.url, timeout=PATIENCE_S)
            async with connection:
                await asyncio.wait_for(script(s, connection), PATIENCE_S)

        asyncio.run(connected())

    return run


async def _said(s: Scene, what: str, waiting: Awaitable[Any]) -> Any:
    try:
        found = await waiting
    except AMQPError as error:
        s.say(f"{what}: {type(error).__name__} {error}")
        return None
    s.say(f"{what}: {_shown(found)}")
    return found


def _shown(found: Any) -> str:
    """A method with its arguments; what aiormq gives has no text of its own."""
    if isinstance(found, Frame):
        return f"{found.name} {dict(found)}"
    return "a message" if isinstance(found, aio_pika.abc.AbstractMessage) else str(found)


def _message(s: Scene, message: Any) -> None:
    info = {name: value for name, value in message.info().items() if value is not None and name != "consumer_tag"}
    s.say(f"{dict(sorted(info.items()))} {message.body!r}")


@case
@asynchronous
async def publish_and_get(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name(), durable=True)
    s.say(_shown(queue.declaration_result))
    confirm = await channel.default_exchange.publish(
        aio_pika.Message(b"hello", headers={"a": 1}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), queue.name
    )
    s.say(f"{type(confirm).__name__} {confirm.delivery_tag}")
    message = await queue.get(timeout=15)
    _message(s, message)
    await message.ack()
    s.say(f"{await queue.get(fail=False)}")


@case
@asynchronous
async def iterate(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=2)
    queue = await channel.declare_queue(s.name())
    for number in range(5):
        await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), queue.name)
    bodies = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                bodies.append(message.body)
            if len(bodies) == 5:
                break
    s.say(str(bodies))
    s.say(_shown((await channel.declare_queue(s.name(), passive=True)).declaration_result))


@case
@asynchronous
async def unroutable(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    returned = await channel.default_exchange.publish(aio_pika.Message(b"x"), "nobody")
    s.say(f"{type(returned).__name__} {_shown(returned.delivery)}")
    strict = await connection.channel(on_return_raises=True)
    await _said(s, "raises", strict.default_exchange.publish(aio_pika.Message(b"x"), "nobody"))


@case
@asynchronous
async def topics(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    exchange = await channel.declare_exchange(s.name("x"), aio_pika.ExchangeType.TOPIC)
    queue = await channel.declare_queue(exclusive=True)
    s.say(f"{queue.name}")
    await _said(s, "bind", queue.bind(exchange, "a.#"))
    for key in ("a.b", "b.a", "a"):
        await exchange.publish(aio_pika.Message(key.encode()), key, mandatory=False)
    bodies = [(await queue.get(no_ack=True, timeout=15)).body for _ in range(2)]
    s.say(str(bodies))
    await _said(s, "unbind", queue.unbind(exchange, "a.#"))


@case
@asynchronous
async def exchange_bindings(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    first = await channel.declare_exchange(s.name("first"), "fanout")
    second = await channel.declare_exchange(s.name("second"), "fanout", internal=True)
    await _said(s, "bind", second.bind(first))
    queue = await channel.declare_queue(s.name())
    await queue.bind(second)
    await first.publish(aio_pika.Message(b"through"), "")
    s.say(f"{(await queue.get(no_ack=True, timeout=15)).body!r}")


@case
@asynchronous
async def errors_close_the_channel(s: Scene, connection: Any) -> None:
    for what, script in {
        "passive": lambda channel: channel.declare_queue(s.name("missing"), passive=True),
        "reserved": lambda channel: channel.declare_queue("amq.mine"),
        "exchange": lambda channel: channel.get_exchange(s.name("missing"), ensure=True),
    }.items():
        channel = await connection.channel()
        await _said(s, what, script(channel))
        s.say(f"connection is closed {connection.is_closed}")


@case
@asynchronous
async def reject_and_requeue(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name())
    for number in range(2):
        await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), queue.name)
    message = await queue.get(timeout=15)
    await message.nack(requeue=True)
    message = await queue.get(timeout=15)
    _message(s, message)
    await message.reject(requeue=False)
    message = await queue.get(timeout=15)
    _message(s, message)
    await message.ack()


@case
@asynchronous
async def all_properties(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name())
    message = aio_pika.Message(
        b"body", headers={"n": 1, "t": "x", "l": [1, 2], "d": {"k": "v"}, "b": True}, content_type="text/plain",
        content_encoding="utf-8", delivery_mode=2, priority=4, correlation_id="c", reply_to="r", expiration=60,
        message_id="m", timestamp=1700000000, type="t", user_id="guest", app_id="a",
    )  # fmt: skip
    await channel.default_exchange.publish(message, queue.name)
    _message(s, await queue.get(no_ack=True, timeout=15))


@case
@asynchronous
async def transactions(s: Scene, connection: Any) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(s.name())
    async with channel.transaction():
        await channel.default_exchange.publish(aio_pika.Message(b"1"), queue.name)
    s.say(_shown((await channel.declare_queue(s.name(), passive=True)).declaration_result))
    transaction = channel.transaction()
    await transaction.select()
    await channel.default_exchange.publish(aio_pika.Message(b"2"), queue.name)
    await transaction.rollback()
    s.say(_shown((await channel.declare_queue(s.name(), passive=True)).declaration_result))


@case
@asynchronous
async def many_publishes_at_once(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name())
    await asyncio.gather(
        *(channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name) for number in range(200))
    )
    s.say(_shown((await channel.declare_queue(s.name(), passive=True)).declaration_result))


@case
@asynchronous
async def consumers_on_two_channels(s: Scene, connection: Any) -> None:
    one, two = await connection.channel(), await connection.channel()
    queue = await one.declare_queue(s.name())
    heard: list[str] = []
    enough = asyncio.Event()

    def listener(word: str) -> Callable[[Any], Awaitable[None]]:
        async def listen(message: Any) -> None:
            heard.append(word)
            await message.ack()
            if len(heard) == 4:
                enough.set()

        return listen

    for word, channel in (("one", one), ("two", two)):
        await channel.set_qos(prefetch_count=1)
        await (await channel.get_queue(s.name())).consume(listener(word))
    for _ in range(4):
        await one.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
    await asyncio.wait_for(enough.wait(), 15)
    s.say(f"{sorted(set(heard))} {len(heard)}")


@case
@asynchronous
async def delete_what_is_used(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name())
    await channel.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
    await _said(s, "if empty", queue.delete(if_empty=True))
    channel = await connection.channel()
    queue = await channel.get_queue(s.name())
    await _said(s, "purge", queue.purge())
    await _said(s, "delete", queue.delete())


@case
@asynchronous
async def large_message(s: Scene, connection: Any) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(s.name())
    body = bytes(range(256)) * 4096
    await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
    message = await queue.get(no_ack=True, timeout=15)
    s.say(f"{len(message.body)} {message.body == body}")
