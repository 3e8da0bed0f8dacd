"""The processes that the kill campaign of the AMQP gateway runs and kills. Logs as in actors.py.

    producer        publishes batches by raw frames, to the default exchange and another, and waits for confirms
    consumer        raw frames: acks (one, or many at once), gives back, rejects, recovers, leaves without a word
    getter          raw frames: basic.get
    pika-producer   the same by pika, as programs do it
    pika-consumer
    amqp-probe      a connection, a publish, its confirm, a get, an ack, a close: how long all of it takes
    tx-…, stream-…  amqp_tx.py, amqp_streams.py

Whatever takes longer than `BOUND_S` is an `f` line of its role, which the campaign judges like a probe without an
answer: a hang, unless deaths excuse it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

from warren.tools.crash import actors, amqp_streams, amqp_tx
from warren.tools.crash.actors import QUEUES, REJECTED_QUEUE, body_of, stopping
from warren.tools.crash.amqp_client import Client, Lost, Message, Silent
from warren.tools.crash.amqp_working import (
    BOUND_S,
    EXCHANGE,
    LIVED_THROUGH,
    PAUSE_S,
    PUT,
    RETRY_S,
    Keys,
    connect,
    connected,
    hang,
    ports,
    received,
)
from warren.tools.crash.logs import Log

TAKEN = (*QUEUES, REJECTED_QUEUE)
PROBE_QUEUE = "probe-amqp"


# -- producers --------------------------------------------------------------------------------------------------------


def producer(directory: str, log: Log, rng: random.Random) -> None:
    """Publish, and log what was confirmed."""

    def work(client: Client) -> None:
        keys = Keys()
        client.confirm_select()
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            name, exchange = rng.choice(PUT), rng.choice(("", EXCHANGE))
            batch = keys.make(name, rng.choice((1, 1, 5, 40)))
            log.write(*(f"i {key}" for key in batch))
            tags = client.publish(((exchange, name, body_of(key)) for key in batch), rng.random() < 0.5)

            def settled(tag: int, acked: bool, tags: range = tags, batch: Sequence[str] = batch) -> None:
                key = batch[tag - tags.start]
                log.write(f"c {key} {time.monotonic():.3f}" if acked else f"e Nacked: {key}")

            client.confirmed(tags, settled)
            if client.returned:
                log.write(*(f"b returned as unroutable: {message.key}" for message in client.returned))
                client.returned.clear()
            time.sleep(rng.random() * PAUSE_S)

    connected(directory, log, "producer", rng, work)


# -- consumers --------------------------------------------------------------------------------------------------------


def consumer(directory: str, log: Log, rng: random.Random) -> None:
    """Take messages, log them, then settle them in one of many ways."""

    def work(client: Client) -> None:
        for name in rng.sample(TAKEN, rng.choice((1, 2, len(TAKEN)))):
            client.qos(rng.choice((1, 20, 200)))
            client.consume(name)
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            messages = client.gather(0.05, rng.choice((1, 10, 100)))
            received(log, messages)
            _settle(client, rng, messages)
        if rng.random() < 0.3:
            raise Lost("left without a word")

    connected(directory, log, "consumer", rng, work)


def _settle(client: Client, rng: random.Random, messages: Sequence[Message]) -> None:
    dying = [message for message in messages if message.key == REJECTED_QUEUE]
    others = [message for message in messages if message.key != REJECTED_QUEUE]
    for message in dying:
        if rng.random() < 0.5:
            client.reject(message.tag, False)
        else:
            client.nack(message.tag, False, False)
    if not others:
        return
    pick = rng.random()
    if pick < 0.03:
        client.recover()
    elif pick < 0.08:
        for message in others:
            client.nack(message.tag, False, True)
    elif pick < 0.6 and not dying:
        client.ack(others[-1].tag, True)  # nothing else is held
    else:
        for message in others:
            client.ack(message.tag)


def getter(directory: str, log: Log, rng: random.Random) -> None:
    """Take messages one by one."""

    def work(client: Client) -> None:
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            message = client.get(rng.choice(QUEUES))
            if message is None:
                time.sleep(PAUSE_S)
                continue
            received(log, [message])
            if rng.random() < 0.1:
                client.nack(message.tag, False, True)
            else:
                client.ack(message.tag)

    connected(directory, log, "getter", rng, work)


# -- by pika ----------------------------------------------------------------------------------------------------------


class TooLongError(Exception):
    """A call of pika's did not come back."""


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TooLongError(f"a call did not come back within {seconds:g} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _by_pika(directory: str, log: Log, kind: str, work: Callable[..., None]) -> None:
    """As `connected`; every call of pika's is within `_bounded`."""
    import pika
    from pika.exceptions import AMQPError

    logging.getLogger("pika").setLevel(logging.CRITICAL)
    port, _tls = ports(directory)
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, heartbeat=6, socket_timeout=BOUND_S, connection_attempts=1
    )
    while not stopping():
        connection = None
        try:
            with _bounded(BOUND_S):
                connection = pika.BlockingConnection(parameters)
            work(connection)
            with _bounded(BOUND_S):
                connection.close()
        except TooLongError as error:
            hang(log, kind, BOUND_S, str(error))
            connection = None
            gc.collect()  # its socket is closed
        except (AMQPError, OSError) as error:
            log.error(error)
            time.sleep(RETRY_S)


def pika_producer(directory: str, log: Log, rng: random.Random) -> None:
    """Publish one after the other, each confirmed."""
    import pika

    properties = pika.BasicProperties(delivery_mode=2, headers={"by": "pika"})

    def work(connection: pika.BlockingConnection) -> None:
        keys = Keys()
        with _bounded(BOUND_S):
            channel = connection.channel()
            channel.confirm_delivery()
        until = time.monotonic() + rng.expovariate(0.1)
        while not stopping() and time.monotonic() < until:
            name = rng.choice(PUT)
            (key,) = keys.make(name, 1)
            log.write(f"i {key}")
            with _bounded(BOUND_S):
                channel.basic_publish(rng.choice(("", EXCHANGE)), name, body_of(key), properties, mandatory=True)
            log.write(f"c {key} {time.monotonic():.3f}")
            with _bounded(BOUND_S):
                connection.sleep(rng.random() * PAUSE_S)

    _by_pika(directory, log, "pika-producer", work)


def pika_consumer(directory: str, log: Log, rng: random.Random) -> None:
    """Consume one queue at a time, and ack each."""
    import pika

    def work(connection: pika.BlockingConnection) -> None:
        name = rng.choice(QUEUES)
        with _bounded(BOUND_S):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=rng.choice((1, 30)))
        until = time.monotonic() + rng.expovariate(0.2)
        source = channel.consume(name, inactivity_timeout=0.05)
        while not stopping() and time.monotonic() < until:
            with _bounded(BOUND_S):
                method, properties, body = next(source)
            if method is None:
                continue
            received(log, [Message(method.delivery_tag, method.redelivered, method.routing_key, body)])
            if properties.headers and properties.headers != {"by": "pika"}:
                log.write(f"b headers {properties.headers} of {body[:40]!r}")
            with _bounded(BOUND_S):
                channel.basic_ack(method.delivery_tag)
        with _bounded(BOUND_S):
            channel.cancel()

    _by_pika(directory, log, "pika-consumer", work)


# -- probe ------------------------------------------------------------------------------------------------------------


def probe(directory: str, log: Log, rng: random.Random) -> None:
    """Ask for a sign of life all the time, and log how long each took. A connection that breaks is made anew."""
    while not stopping():
        began = time.monotonic()
        failed = ""
        while not stopping():
            left = BOUND_S - (time.monotonic() - began)
            if left <= 0:
                failed = failed or "nothing"
                break
            try:
                _ask(directory, rng, left)
                failed = ""
                break
            except LIVED_THROUGH as error:
                failed = f"{type(error).__name__}: {error}"
                time.sleep(RETRY_S)
        took = time.monotonic() - began
        if failed and not stopping():
            hang(log, "amqp", took, failed)
        elif not failed:
            log.write(f"p amqp {int(took * 1e6)} {time.monotonic():.3f}")
        time.sleep(rng.random() * 0.1)


def _ask(directory: str, rng: random.Random, seconds: float) -> None:
    client = connect(directory, rng, seconds)
    try:
        client.confirm_select()
        body = os.urandom(16)
        nacked: list[int] = []
        tags = client.publish([("", PROBE_QUEUE, body)], True)
        client.confirmed(tags, lambda tag, acked: None if acked else nacked.append(tag))
        if nacked or client.returned:
            raise Lost(f"the probe was not taken: {len(nacked)} nacked, {len(client.returned)} returned")
        deadline = time.monotonic() + seconds
        while True:
            message = client.get(PROBE_QUEUE)
            if message is not None:
                client.ack(message.tag)
                if message.body == body:  # else an older probe, which was given up
                    break
            elif time.monotonic() > deadline:
                raise Silent(f"a confirmed message cannot be got within {seconds:.1f} s")
            else:
                time.sleep(0.01)
        client.close()
    finally:
        client.socket.close()


ROLES: dict[str, actors.Role] = {
    "producer": producer,
    "consumer": consumer,
    "getter": getter,
    "pika-producer": pika_producer,
    "pika-consumer": pika_consumer,
    "amqp-probe": probe,
    "tx-producer": amqp_tx.producer,
    "tx-consumer": amqp_tx.consumer,
    "stream-producer": amqp_streams.producer,
    "stream-reader": amqp_streams.reader,
}


if __name__ == "__main__":
    sys.exit(actors.main(sys.argv[1:], ROLES))
