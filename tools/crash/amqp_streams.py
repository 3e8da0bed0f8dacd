"""Actors of the gateway's kill campaign that use a stream, and what is looked at afterwards. Logs:

    stream-producer  i KEY           is about to be published     c KEY TIME     was confirmed
    stream-reader    o WHERE         begins to read: first, last, next, or an offset
                     s OFFSET KEY    has received
                     b, e, f         as in actors.py

Violations (`judge`): a confirmed message that the stream does not have, or any that it has twice; one that nobody
published; offsets that leave one out; messages of one publisher out of order; a reader that leaves one out, begins
elsewhere than it said, or has seen another message at an offset than the stream has at the end. What was not confirmed
may have gone with the memory of a node whose processes have all died.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from warren.tools.crash.actors import stopping
from warren.tools.crash.amqp_client import Client, Lost, Message
from warren.tools.crash.amqp_working import PAUSE_S, Keys, connected
from warren.tools.crash.logs import Log

STREAM = "kill-stream"
#: published last, so that who reads knows the end
END = "the-end"
PREFETCH = 200


def declare(client: Client) -> None:
    """Have the stream."""
    client.declare(STREAM, {"x-queue-type": "stream"})


def body_of(key: str) -> bytes:
    """The body that belongs to a key; one in some is large, for a log with a small ring."""
    seed = key.encode()
    size = 100 if sum(seed) % 16 else 20_000
    return (seed + b"|") * (size // (len(seed) + 1) + 1)


def key_of(body: bytes) -> str | None:
    """The key of a body, None when the body is not what its key says."""
    key = body.split(b"|", 1)[0].decode("ascii", "replace")
    return key if body_of(key) == body else None


def producer(directory: str, log: Log, rng: random.Random) -> None:
    """Publish into the stream, and log what was confirmed."""

    def work(client: Client) -> None:
        keys = Keys()
        declare(client)
        client.confirm_select()
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            batch = keys.make(STREAM, rng.choice((1, 1, 5, 20)))
            log.write(*(f"i {key}" for key in batch))
            tags = client.publish((("", STREAM, body_of(key)) for key in batch), False)

            def settled(tag: int, acked: bool, tags: range = tags, batch: Sequence[str] = batch) -> None:
                key = batch[tag - tags.start]
                log.write(f"c {key} {time.monotonic():.3f}" if acked else f"e Nacked: {key}")

            client.confirmed(tags, settled)
            time.sleep(rng.random() * PAUSE_S)

    connected(directory, log, "stream-producer", rng, work)


def reader(directory: str, log: Log, rng: random.Random) -> None:
    """Read on where it was, or from somewhere else."""
    next_offset = 0

    def work(client: Client) -> None:
        nonlocal next_offset
        declare(client)
        where: str | int = rng.choices(("first", "last", "next", next_offset), (1, 2, 2, 10))[0]
        client.qos(rng.choice((1, 10, PREFETCH)))
        log.write(f"o {where}")
        client.consume(STREAM, {"x-stream-offset": where})
        until = time.monotonic() + rng.expovariate(0.2)
        while not stopping() and time.monotonic() < until:
            messages = client.gather(0.05, rng.choice((1, 10, 100)))
            if not messages:
                continue
            note(log, messages)
            next_offset = messages[-1].offset + 1
            client.ack(messages[-1].tag, True)
        if rng.random() < 0.3:
            raise Lost("left without a word")

    connected(directory, log, "stream-reader", rng, work)


def note(log: Log, messages: Sequence[Message]) -> None:
    """Log what was read."""
    lines = []
    for message in messages:
        key = key_of(message.body)
        if key is None:
            lines.append(f"b body {message.body[:60]!r} of {len(message.body)} bytes at {message.offset}")
        else:
            lines.append(f"s {message.offset} {key}")
    log.write(*lines)


def read_all(client: Client, log: Log) -> list[tuple[int, str]]:
    """The whole stream: offsets and keys. Raises what `amqp_working.LIVED_THROUGH` has."""
    declare(client)
    client.confirm_select()
    end = f"{END}.{time.monotonic_ns()}"
    client.confirmed(client.publish([("", STREAM, body_of(end))], False), lambda _tag, _acked: None)
    client.qos(PREFETCH)
    client.consume(STREAM, {"x-stream-offset": "first"})
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + client.timeout_s
    while time.monotonic() < deadline:
        messages = client.gather(0.5, PREFETCH)
        note(log, [message for message in messages if key_of(message.body) is None])
        found += [(message.offset, key) for message in messages if (key := key_of(message.body)) is not None]
        if found and found[-1][1] == end:
            return found
        if messages:
            client.ack(messages[-1].tag, True)
            deadline = time.monotonic() + client.timeout_s
    raise Lost(f"the end of {STREAM} did not come within {client.timeout_s:g} s; {len(found)} messages did")


# -- afterwards -------------------------------------------------------------------------------------------------------


def judge(
    there: Sequence[tuple[int, str]],
    announced: set[str],
    confirmed: set[str],
    readers: Mapping[str, Iterable[Sequence[str]]],
    node_died: bool,
) -> Iterator[str]:
    """What is wrong. `there`: offsets and keys of the whole stream at the end; `readers`: their logs, split."""
    offsets: dict[str, int] = {}
    highest: dict[str, int] = {}
    expected = 0
    for offset, key in there:
        if offset != expected:
            yield f"stream: offset {offset} comes where {expected} is next"
        expected = offset + 1
        if key in offsets:
            yield f"stream: {key} is there twice, at {offsets[key]} and {offset}"
        offsets[key] = offset
        if key.startswith(END):
            continue
        if key not in announced:
            yield f"stream: {key} was never published"
        publisher, number, _priority = key.rsplit(".", 2)
        if int(number) < highest.get(publisher, -1):
            yield f"stream: {key} at {offset} comes after number {highest[publisher]} of its publisher"
        highest[publisher] = max(highest.get(publisher, -1), int(number))
    for key in sorted(confirmed - set(offsets)):
        yield f"stream: {key} was confirmed and is not there"
    keys = dict(there)
    for name, entries in readers.items():
        yield from _judge_reader(name, entries, keys, confirmed, node_died)


def _judge_reader(
    name: str, entries: Iterable[Sequence[str]], keys: Mapping[int, str], confirmed: set[str], node_died: bool
) -> Iterator[str]:
    where = ""
    expected: int | None = None
    for entry in entries:
        if entry[0] == "o":
            where = entry[1]
            expected = 0 if where == "first" else int(where) if where.isdecimal() else None
        elif entry[0] == "s":
            offset, key = int(entry[1]), entry[2]
            if offset != (offset if expected is None else expected):
                yield f"{name}: got offset {offset}, and {expected} was next of what it began at {where}"
            expected = offset + 1
            if keys.get(offset) != key and not (node_died and key not in confirmed):
                yield f"{name}: got {key} at {offset}, where the stream has {keys.get(offset, 'nothing')}"
