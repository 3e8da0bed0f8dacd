"""The processes that a kill campaign runs and kills: producer, none-producer, consumer, keeper, probes.

`python -m warren.tools.crash.actors ROLE DIRECTORY LOG SEED`. Each writes one log: append-only, one `write` for each
entry, so a kill leaves whole lines (and at most one torn last one). An entry is written before what it announces, or
after what it reports has happened. Times are of the machine's monotonic clock:

    producer  i KEY          is about to be put             c KEY TIME      was confirmed (`synced`, or `none`)
    consumer  r KEY FLAG N   was received (FLAG 1: marked redelivered, N deliveries before), before it is acked
              l KEY REASON   a dead letter was received, before it is acked
              b …            a body that is not what its key says
    probes    p KIND US TIME an answer took so long         f KIND US TIME TEXT  no answer
              u ID           a message that was given up: it may be in the store or not
    all       e TEXT         an error that an actor lived through
    keeper    its own: ledger.py

A producer or consumer that gets SIGTERM finishes what it does and leaves the node in good order.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import warren
from warren import Durability
from warren.tools.crash.keeper import Keeper
from warren.tools.crash.logs import Log

QUEUES = ("kill-0", "kill-1", "kill-2")
NONE_QUEUE = "kill-none"
#: messages of it have a priority, which is the last part of the key
PRIORITY_QUEUE = "kill-priority"
PRIORITY_MAX = 3
#: everything in these dies: nobody acks what is in the first, and the second one's expires
REJECTED_QUEUE, EXPIRED_QUEUE = "kill-rejected", "kill-expired"
LETTERS_QUEUE, LETTERS_EXCHANGE = "kill-letters", "kill-dead"
REASONS = {REJECTED_QUEUE: "rejected", EXPIRED_QUEUE: "expired"}
#: what a queue is declared with
ARGUMENTS: dict[str, dict[str, Any]] = {
    PRIORITY_QUEUE: {"max_priority": PRIORITY_MAX},
    REJECTED_QUEUE: {"dead_letter_exchange": LETTERS_EXCHANGE},
    EXPIRED_QUEUE: {"dead_letter_exchange": LETTERS_EXCHANGE, "message_ttl": 0.2},
}
#: every queue that `producer` puts into, and what `consumer` takes from
PUT = (*QUEUES, *ARGUMENTS)
TAKEN = (*QUEUES, NONE_QUEUE, PRIORITY_QUEUE, REJECTED_QUEUE, LETTERS_QUEUE)
PROBE_QUEUE = "probe-{}"
OPERATION_TIMEOUT_S = 15.0
#: an answer that took so long may be one without the worker of topics, which says what there was
LATE_S = 8.0
RETRY_S = 0.02
PROBE_PAUSE_S = 0.02
PRODUCER_PAUSE_S = 0.04

_stopping = False


def stopping() -> bool:
    """Whether this process was told to end."""
    return _stopping


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _stopping
    _stopping = True


#: of a message that has a file of its own, with the settings of the campaign
LARGE_BYTES = 300_000


def body_of(key: str) -> bytes:
    """The body that belongs to a key; its size follows from the key: most are small, some go to the store, and a few
    are too large for shared memory."""
    seed = key.encode()
    pick = sum(seed) % 16
    size = 100 if pick < 12 else 1000 if pick < 14 else 6000 if pick < 15 else 70_000
    if pick == 15 and zlib.crc32(seed) % 4 == 0:
        size = LARGE_BYTES
    return (seed + b"|") * (size // (len(seed) + 1) + 1)


def key_of(body: bytes) -> str | None:
    """The key of a body, None when the body is not what its key says."""
    key = body.split(b"|", 1)[0].decode("ascii", "replace")
    return key if body_of(key) == body else None


def attached(directory: str, log: Log, name: str, work: Callable[[warren.Node], None]) -> None:
    """Attach and work; after an error attach anew, until told to stop."""
    while not _stopping:
        try:
            with warren.attach(directory, timeout=OPERATION_TIMEOUT_S, name=name) as node:
                work(node)
        except warren.Error as error:
            log.error(error)
            time.sleep(RETRY_S)


def complain(node: warren.Node, log: Log, text: str, took_s: float) -> None:
    """Write down what is wrong with an answer about a topic, which took so many seconds: a violation, or an error where
    the worker was not there to be asked, as what it had not shown yet waits for its next start.
    """
    text = text.replace("\n", " ")
    if node._client.attachment().deserted():
        log.write(f"e Deserted: {text}")
    elif took_s >= LATE_S:
        log.write(f"e Late: {text} ({took_s:.3f} s)")
    else:
        log.write(f"b {time.monotonic():.3f} {text} ({took_s:.3f} s)")


def opened(node: warren.Node, name: str) -> warren.Queue:
    """A queue of a campaign, declared as it has to be."""
    return node.queue(name, **ARGUMENTS.get(name, {}))


def declare_all(node: warren.Node) -> None:
    """All queues of a campaign but the probes', and where dead letters go."""
    node.declare_exchange(LETTERS_EXCHANGE, type="fanout")
    for name in (*PUT, NONE_QUEUE, LETTERS_QUEUE):
        opened(node, name)
    node.bind(LETTERS_QUEUE, LETTERS_EXCHANGE)


def producer(directory: str, log: Log, rng: random.Random) -> None:
    """Put messages into the queues, singly and in batches, and log what was confirmed."""
    _produce(directory, log, rng, PUT, None)


def none_producer(directory: str, log: Log, rng: random.Random) -> None:
    """The same with durability `none`: confirmed while it lies in memory, which outlives every single process."""
    _produce(directory, log, rng, (NONE_QUEUE,), "none")


def _produce(directory: str, log: Log, rng: random.Random, names: Sequence[str], durability: Durability | None) -> None:
    incarnation = f"{os.getpid()}.{time.monotonic_ns() & 0xFFFFFFFF:x}"
    counter = 0

    def work(node: warren.Node) -> None:
        nonlocal counter
        queues = {name: opened(node, name) for name in names}
        while not _stopping:
            name = rng.choice(names)
            count = rng.choice((1, 1, 5, 40))
            priority = rng.randrange(PRIORITY_MAX + 1) if name == PRIORITY_QUEUE else 0
            keys = [f"{name}.{incarnation}.{counter + n}.{priority}" for n in range(count)]
            counter += count
            log.write(*(f"i {key}" for key in keys))
            try:
                if count == 1:
                    queues[name].put(
                        body_of(keys[0]), durability=durability, timeout=OPERATION_TIMEOUT_S, priority=priority
                    )
                else:
                    bodies = [body_of(key) for key in keys]
                    queues[name].put_many(bodies, durability=durability, timeout=OPERATION_TIMEOUT_S, priority=priority)
            except warren.Error as error:
                log.error(error)  # they may be there or not
                if isinstance(error, warren.ClosedError):
                    raise
                continue
            now = time.monotonic()
            log.write(*(f"c {key} {now:.3f}" for key in keys))
            time.sleep(rng.random() * PRODUCER_PAUSE_S)

    attached(directory, log, "kill-producer", work)


def log_received(log: Log, messages: list[warren.Message]) -> None:
    """Note messages, or dead letters, before anything is done with them."""
    lines = []
    for message in messages:
        key = key_of(message.body)
        if key is not None and message.queue.name == LETTERS_QUEUE:
            death = message.headers["x-death"][0]
            lines.append(f"l {key} {death['queue']} {death['reason']}")
        elif key is None:
            lines.append(f"b body {message.body[:60]!r} of {len(message.body)} bytes in {message.queue.name}")
        else:
            lines.append(f"r {key} {int(message.redelivered)} {message.delivery_count}")
    log.write(*lines)


def consumer(directory: str, log: Log, rng: random.Random) -> None:
    """Take messages, log them, then ack them (or give some back, or drop what is to die)."""

    def work(node: warren.Node) -> None:
        queues = [opened(node, name) for name in TAKEN]
        while not _stopping:
            queue = rng.choice(queues)
            try:
                messages = queue.get_many(rng.choice((1, 10, 64)), timeout=0.05)
            except (warren.TimedOut, warren.PeerLost):  # the worker was killed, or has much to do
                continue
            if not messages:
                continue
            log_received(log, messages)
            try:
                if rng.random() < 0.05:
                    queue.nack(messages)
                elif queue.name == REJECTED_QUEUE:
                    queue.nack(messages, requeue=False)
                elif rng.random() < 0.5:
                    messages[-1].ack(multiple=True)
                else:
                    queue.ack(messages)
            except warren.ClosedError:
                raise
            except warren.Error as error:
                log.error(error)

    attached(directory, log, "kill-consumer", work)


def keeper(directory: str, base: str, rng: random.Random) -> None:
    """Write, read and remove messages of the store itself."""
    Keeper(directory, base, rng, lambda: _stopping).run()


def probing(directory: str, log: Log, kind: str, prepare: Callable[[warren.Node], Callable[[], None]]) -> None:
    """Ask for a sign of life all the time, and log how long each took."""

    def timed(ask: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            ask()
        except warren.Error as error:
            took = int((time.monotonic() - began) * 1e6)
            log.write(f"f {kind} {took} {time.monotonic():.3f} {type(error).__name__}: {error}".replace("\n", " "))
            if isinstance(error, warren.ClosedError):
                raise
        else:
            log.write(f"p {kind} {int((time.monotonic() - began) * 1e6)} {time.monotonic():.3f}")

    def work(node: warren.Node) -> None:
        ask = prepare(node)
        while not _stopping:
            timed(ask)
            time.sleep(PROBE_PAUSE_S)

    attached(directory, log, f"kill-probe-{kind}", work)


def queue_probe(directory: str, log: Log, rng: random.Random) -> None:
    """A message through a queue."""

    def prepare(node: warren.Node) -> Callable[[], None]:
        queues = [node.queue(PROBE_QUEUE.format(n)) for n in range(2)]

        def ask() -> None:
            queue = rng.choice(queues)
            body = os.urandom(16)
            queue.put(body, timeout=OPERATION_TIMEOUT_S)
            while True:
                message = queue.get(OPERATION_TIMEOUT_S)
                message.ack()
                if message.body == body:  # else an older probe, which was given up
                    return

        return ask

    probing(directory, log, "queue", prepare)


def store_probe(directory: str, log: Log, _rng: random.Random) -> None:
    """A message through the store."""

    def prepare(node: warren.Node) -> Callable[[], None]:
        store = node.store()

        def ask() -> None:
            id = store.new_id()
            try:
                store.write(id, b"probe", timeout=OPERATION_TIMEOUT_S)
                body = store.read(id)
                if body != b"probe":
                    log.write(f"b store: {id.hex()} was confirmed and reads {body!r}")
                store.remove(id, timeout=OPERATION_TIMEOUT_S)
            except warren.Error:
                log.write(f"u {id.hex()}")
                raise

        return ask

    probing(directory, log, "store", prepare)


Role = Callable[[str, Log, random.Random], None]
#: what a role does with (directory, log, dice); the keeper keeps its logs itself
ROLES: dict[str, Role] = {
    "producer": producer,
    "consumer": consumer,
    "none": none_producer,
    "queue-probe": queue_probe,
    "store-probe": store_probe,
}


def main(argv: list[str], roles: Mapping[str, Role] = ROLES) -> int:
    """Play one role until SIGTERM."""
    role, directory, path, seed = argv
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rng = random.Random(int(seed))
    if role == "keeper":
        keeper(directory, path, rng)
    else:
        roles[role](directory, Log(path), rng)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
