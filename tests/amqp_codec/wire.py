"""Bytes of clients, made by pika: an encoder that shares nothing with the product."""

from typing import Any

from pika import frame, spec

from warren.engine import _core
from warren.engine.amqp import spec as amqp


def method(channel: int, sent: Any) -> bytes:
    """A frame with a method."""
    return bytes(frame.Method(channel, sent).marshal())


def publish(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    properties: "spec.BasicProperties | None" = None,
    frame_max: int = 4096,
    flags: tuple[bool, bool] = (False, False),
) -> list[bytes]:
    """The frames of a message."""
    mandatory, immediate = flags
    sent = spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
    made = [method(channel, sent)]
    made.append(bytes(frame.Header(channel, len(body), properties or spec.BasicProperties()).marshal()))
    room = frame_max - 8
    made += [bytes(frame.Body(channel, body[at : at + room]).marshal()) for at in range(0, len(body), room)]
    return made


def decoded(data: bytes) -> list[Any]:
    """What pika's decoder makes of bytes that are whole frames."""
    found = []
    while data:
        n, value = frame.decode_frame(data)
        assert n, "frames end with the bytes"
        data = data[n:]
        found.append(value)
    return found


def parsed(event: tuple[Any, ...]) -> tuple[Any, ...]:
    """An event of a reader with its arguments as a tuple, also where the reader gives bytes."""
    if event[0] != amqp.METHOD or not isinstance(event[3], bytes):
        return event
    return *event[:3], _core.amqp_arguments(event[2], event[3])
