"""Actors of the gateway's kill campaign that use transactions. Logs as in actors.py, and of the consumer

    h KEY           has to come again: what this channel does with it is never committed

A message that is rolled back, or never committed, is no message: nobody says `i` of it, so whoever receives it has
received what was never put.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from warren.tools.crash.actors import QUEUES, body_of, key_of, stopping
from warren.tools.crash.amqp_client import Client, Lost, Message
from warren.tools.crash.amqp_working import EXCHANGE, PAUSE_S, PUT, Keys, connected, received
from warren.tools.crash.logs import Log

COMMIT, ROLL_BACK, FORGET = "commit", "rollback", "forget"


def producer(directory: str, log: Log, rng: random.Random) -> None:
    """Publish to some queues at once, and commit it; or not."""

    def work(client: Client) -> None:
        keys = Keys()
        client.tx_select()
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            batch = [key for name in rng.sample(PUT, rng.randint(1, 3)) for key in keys.make(name, rng.choice((1, 6)))]
            how = rng.choices((COMMIT, ROLL_BACK, FORGET), (12, 4, 1))[0]
            if how == COMMIT:
                log.write(*(f"i {key}" for key in batch))
            exchange = rng.choice(("", EXCHANGE))
            client.publish(((exchange, key.split(".")[0], body_of(key)) for key in batch), False)
            if how == FORGET:
                raise Lost("left without a commit")
            if how == ROLL_BACK:
                client.tx_rollback()
                continue
            client.tx_commit()
            now = time.monotonic()
            log.write(*(f"c {key} {now:.3f}" for key in batch))
            time.sleep(rng.random() * PAUSE_S)

    connected(directory, log, "tx-producer", rng, work)


def consumer(directory: str, log: Log, rng: random.Random) -> None:
    """Take messages and settle them in transactions, of which some are rolled back, and some never committed."""

    def work(client: Client) -> None:
        client.tx_select()
        client.qos(rng.choice((1, 20)))
        client.consume(rng.choice(QUEUES))
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            messages = client.gather(0.05, rng.choice((1, 10)))
            if not messages:
                continue
            how = rng.choices((COMMIT, ROLL_BACK, FORGET), (12, 3, 1))[0]
            received(log, messages)
            if how != COMMIT:
                log.write(*(f"h {key}" for key in _keys(messages)))
            for message in messages:
                client.ack(message.tag)
            if how == FORGET:
                raise Lost("left without a commit")
            if how == ROLL_BACK:
                client.tx_rollback()
                client.nack(messages[-1].tag, True, True)  # they are held as before
            client.tx_commit()

    connected(directory, log, "tx-consumer", rng, work)


def _keys(messages: Sequence[Message]) -> list[str]:
    return [key for message in messages if (key := key_of(message.body)) is not None]
