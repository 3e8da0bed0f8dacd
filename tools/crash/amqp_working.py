"""What actors that speak AMQP have in common: how they connect, and again, what they log, and the keys of what they
publish.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from warren.tools.crash.actors import EXPIRED_QUEUE, QUEUES, REJECTED_QUEUE, key_of, stopping
from warren.tools.crash.amqp_client import Client, Closed, Lost, Message, Silent
from warren.tools.crash.logs import Log

EXCHANGE = "kill-direct"
PUT = (*QUEUES, REJECTED_QUEUE, EXPIRED_QUEUE)
#: where the campaign says at which port the gateways are, and at which with TLS (0: at none)
PORTS_FILE = "amqp-ports"
#: of connections, if there is a port for it
TLS_SHARE = 0.25
BOUND_S = 15.0
RETRY_S = 0.05
PAUSE_S = 0.04
LIVED_THROUGH = (OSError, Lost, Closed, Silent)


def ports(directory: str) -> tuple[int, int]:
    """The one without TLS, and the one with it."""
    plain, tls = (Path(directory).parent / PORTS_FILE).read_text().split()
    return int(plain), int(tls)


def connect(directory: str, rng: random.Random, timeout_s: float = BOUND_S) -> Client:
    """A new connection, one in some with TLS. Raises what is in LIVED_THROUGH."""
    plain, tls = ports(directory)
    if tls and rng.random() < TLS_SHARE:
        return Client(tls, timeout_s, tls=True)
    return Client(plain, timeout_s)


def connected(directory: str, log: Log, kind: str, rng: random.Random, work: Callable[[Client], None]) -> None:
    """Connect and work; after an error connect anew, until told to stop."""
    while not stopping():
        try:
            client = connect(directory, rng)
            try:
                work(client)
                client.close()
            finally:
                client.socket.close()
        except Silent as error:
            hang(log, kind, BOUND_S, str(error))
        except LIVED_THROUGH as error:
            log.error(error)
            time.sleep(RETRY_S)


def hang(log: Log, kind: str, seconds: float, text: str) -> None:
    """Note what took longer than its bound."""
    log.write(f"f {kind} {int(seconds * 1e6)} {time.monotonic():.3f} {text}".replace("\n", " "))


def received(log: Log, messages: Sequence[Message]) -> None:
    """Note messages before anything is done with them."""
    lines = []
    for message in messages:
        key = key_of(message.body)
        if key is None:
            lines.append(f"b body {message.body[:60]!r} of {len(message.body)} bytes, key {message.key}")
        else:
            lines.append(f"r {key} {int(message.redelivered)} 0")
    if lines:
        log.write(*lines)


class Keys:
    """Keys of one connection, that nobody else has: what two connections publish has no order, and what one left when
    its gateway was killed may come after what the next one published.
    """

    def __init__(self) -> None:
        self._incarnation = f"{os.getpid()}.{time.monotonic_ns() & 0xFFFFFFFF:x}"
        self._counter = 0

    def make(self, name: str, count: int) -> list[str]:
        """So many for a queue; the last part is a priority, of which there is none here."""
        first, self._counter = self._counter, self._counter + count
        return [f"{name}.{self._incarnation}.{first + n}.0" for n in range(count)]
