"""The processes that a kill campaign runs and kills: producer, consumer, storer, probe.

`python -m warren.tools.crash.actors ROLE DIRECTORY LOG SEED`. Each writes one log: append-only, one `write` for each
entry, so a kill leaves whole lines (and at most one torn last one). An entry is written before what it announces, or
after what it reports has happened:

    producer  i KEY          is about to be put             c KEY           was confirmed at `synced`
    consumer  r KEY FLAG N   was received (FLAG 1: marked redelivered, N deliveries before), before it is acked
              b …            a body that is not what its key says
    storer    i ID           is about to be written         c ID            was confirmed at `synced`
              x ID           is about to be removed         d ID            its removal was applied
              b …            a confirmed message that cannot be read, or reads wrong
    probe     p KIND US      an answer took so long         f KIND US TEXT  no answer
    all       e TEXT         an error that an actor lived through

A producer or consumer that gets SIGTERM finishes what it does and leaves the node in good order.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import warren

QUEUES = ("kill-0", "kill-1", "kill-2")
PROBE_QUEUE = "probe-{}"
OPERATION_TIMEOUT_S = 15.0
RETRY_S = 0.02
PROBE_PAUSE_S = 0.03

_stopping = False


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _stopping
    _stopping = True


class Log:
    """An append-only log that survives the death of its writer at any point."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *lines: str) -> None:
        """Append whole lines with one write."""
        data = ("\n".join(lines) + "\n").encode()
        written = os.write(self._fd, data)
        assert written == len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def error(self, error: Exception) -> None:
        """Note an error that was lived through."""
        self.write(f"e {type(error).__name__}: {error}".replace("\n", " "))


def body_of(key: str) -> bytes:
    """The body that belongs to a key; its size follows from the key: most are small, some go to the store."""
    seed = key.encode()
    pick = sum(seed) % 16
    size = 100 if pick < 12 else 1000 if pick < 14 else 6000 if pick < 15 else 70_000
    return (seed + b"|") * (size // (len(seed) + 1) + 1)


def key_of(body: bytes) -> str | None:
    """The key of a body, None when the body is not what its key says."""
    key = body.split(b"|", 1)[0].decode("ascii", "replace")
    return key if body_of(key) == body else None


def _attached(directory: str, log: Log, name: str, work: Callable[[warren.Node], None]) -> None:
    """Attach and work; after an error attach anew, until told to stop."""
    while not _stopping:
        try:
            with warren.attach(directory, timeout=OPERATION_TIMEOUT_S, name=name) as node:
                work(node)
        except warren.Error as error:
            log.error(error)
            time.sleep(RETRY_S)


def producer(directory: str, log: Log, rng: random.Random) -> None:
    """Put messages into the queues, singly and in batches, and log what was confirmed."""
    incarnation = f"{os.getpid()}.{time.monotonic_ns() & 0xFFFFFFFF:x}"
    counter = 0

    def work(node: warren.Node) -> None:
        nonlocal counter
        queues = {name: node.queue(name) for name in QUEUES}
        while not _stopping:
            name = rng.choice(QUEUES)
            count = rng.choice((1, 1, 5, 40))
            keys = [f"{name}.{incarnation}.{counter + n}" for n in range(count)]
            counter += count
            log.write(*(f"i {key}" for key in keys))
            try:
                if count == 1:
                    queues[name].put(body_of(keys[0]), timeout=OPERATION_TIMEOUT_S)
                else:
                    queues[name].put_many([body_of(key) for key in keys], timeout=OPERATION_TIMEOUT_S)
            except warren.Error as error:
                log.error(error)  # they may be there or not
                if isinstance(error, warren.ClosedError):
                    raise
                continue
            log.write(*(f"c {key}" for key in keys))
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)

    _attached(directory, log, "kill-producer", work)


def log_received(log: Log, messages: list[warren.Message]) -> None:
    """Note messages before anything is done with them."""
    lines = []
    for message in messages:
        key = key_of(message.body)
        if key is None:
            lines.append(f"b body {message.body[:60]!r} of {len(message.body)} bytes in {message.queue.name}")
        else:
            lines.append(f"r {key} {int(message.redelivered)} {message.delivery_count}")
    log.write(*lines)


def consumer(directory: str, log: Log, rng: random.Random) -> None:
    """Take messages, log them, then ack them (or give some back)."""

    def work(node: warren.Node) -> None:
        queues = [node.queue(name) for name in QUEUES]
        while not _stopping:
            queue = rng.choice(queues)
            messages = queue.get_many(rng.choice((1, 10, 64)), timeout=0.05)
            if not messages:
                continue
            log_received(log, messages)
            try:
                if rng.random() < 0.05:
                    queue.nack(messages)
                elif rng.random() < 0.5:
                    messages[-1].ack(multiple=True)
                else:
                    queue.ack(messages)
            except warren.ClosedError:
                raise
            except warren.Error as error:
                log.error(error)

    _attached(directory, log, "kill-consumer", work)


def storer(directory: str, log: Log, rng: random.Random) -> None:
    """Write, read and remove messages of the store itself."""

    def work(node: warren.Node) -> None:
        store = node.store()
        alive: list[bytes] = []
        while not _stopping:
            ids = [os.urandom(16) for _ in range(rng.choice((1, 3, 20)))]
            log.write(*(f"i {id.hex()}" for id in ids))
            bodies = [body_of(id.hex()) for id in ids]
            store.write_many(ids, bodies, timeout=OPERATION_TIMEOUT_S)
            log.write(*(f"c {id.hex()}" for id in ids))
            alive += ids
            for id in rng.sample(alive, min(3, len(alive))):
                body = store.read(id)
                if body != body_of(id.hex()):
                    log.write(f"b store {id.hex()} reads {None if body is None else body[:40]!r}")
            if len(alive) > 30:
                gone = [alive.pop(rng.randrange(len(alive))) for _ in range(10)]
                log.write(*(f"x {id.hex()}" for id in gone))
                store.remove(gone, timeout=OPERATION_TIMEOUT_S)
                store.barrier("synced", timeout=OPERATION_TIMEOUT_S)
                log.write(*(f"d {id.hex()}" for id in gone))
            time.sleep(rng.random() * 0.02)

    _attached(directory, log, "kill-storer", work)


def probe(directory: str, log: Log, _rng: random.Random) -> None:
    """Ask every server for a sign of life all the time, and log how long each took."""

    def timed(kind: str, ask: Callable[[], object]) -> None:
        began = time.monotonic_ns()
        try:
            ask()
        except warren.Error as error:
            took = (time.monotonic_ns() - began) // 1000
            log.write(f"f {kind} {took} {type(error).__name__}: {error}".replace("\n", " "))
            if isinstance(error, warren.ClosedError):
                raise
        else:
            log.write(f"p {kind} {(time.monotonic_ns() - began) // 1000}")

    def work(node: warren.Node) -> None:
        store = node.store()
        queues = [node.queue(PROBE_QUEUE.format(n)) for n in range(2)]

        def through(queue: warren.Queue) -> None:
            body = os.urandom(16)
            queue.put(body, timeout=OPERATION_TIMEOUT_S)
            while True:
                message = queue.get(OPERATION_TIMEOUT_S)
                message.ack()
                if message.body == body:  # else an older probe, which was given up
                    return

        def stored() -> None:
            id = store.new_id()
            store.write(id, b"probe", timeout=OPERATION_TIMEOUT_S)
            assert store.read(id) == b"probe"
            store.remove(id, timeout=OPERATION_TIMEOUT_S)

        while not _stopping:
            for queue in queues:
                timed("queue", lambda queue=queue: through(queue))  # type: ignore[misc]
            timed("store", stored)
            time.sleep(PROBE_PAUSE_S)

    _attached(directory, log, "kill-probe", work)


ROLES: dict[str, Callable[[str, Log, random.Random], None]] = {
    "producer": producer,
    "consumer": consumer,
    "storer": storer,
    "probe": probe,
}


def main(argv: list[str]) -> int:
    """Play one role until SIGTERM."""
    role, directory, path, seed = argv
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ROLES[role](directory, Log(path), random.Random(int(seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
