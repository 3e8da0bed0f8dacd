"""A producer of the demo: publishes every second block of the input with its manifest, and waits for the confirms.

While a batch is being confirmed it encodes the next ones. It counts a batch when that is confirmed, and the time for
which it was in Warren's hands: in the calls that publish, and waiting for confirms.

Run as `python -m warren.tools.demo.producer '{"directory": …, "input": {…}, "part": 0, "parts": 2}'`. Prints lines of
JSON: {"published": n, "bytes": b} as it goes on, and {"done": true, …} at the end.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from warren.tools.demo.inputs import EXCHANGE, Input, Manifest, Message, Record
from warren.tools.demo.talk import Talk, child
from warren.workers.faces.node import attach

if TYPE_CHECKING:
    from warren.engine._core import Confirm

TIMEOUT_S = 120.0
UNDER_WAY = 4  #: batches that may be unconfirmed while the next one is encoded


class Task(msgspec.Struct, frozen=True):
    """What this process has to do."""

    directory: str
    input: Input
    part: int
    parts: int
    batch: int = 1000


def run(task: Task, talk: Talk) -> None:
    """Publish this part of the input."""
    published = size = 0
    in_calls_ns = 0
    under_way: deque[tuple[Confirm, int, int]] = deque()

    def settle(most: int) -> None:
        """Wait until no more than so many batches are unconfirmed."""
        nonlocal published, size
        while len(under_way) > most:
            confirm, messages, length = under_way.popleft()
            confirm.wait(TIMEOUT_S)
            published += messages
            size += length
            talk.say_sometimes(published=published, bytes=size)

    with attach(task.directory, timeout=TIMEOUT_S, name=f"demo-producer-{task.part}") as node:
        for bodies, keys in _batches(task):
            before = time.monotonic_ns()
            confirm = node.publish_many(
                bodies, exchange=EXCHANGE, routing_keys=keys, durability="synced", wait=False, timeout=TIMEOUT_S
            )
            under_way.append((confirm, len(bodies), sum(map(len, bodies))))
            settle(UNDER_WAY)
            in_calls_ns += time.monotonic_ns() - before
        before = time.monotonic_ns()
        settle(0)
        in_calls_ns += time.monotonic_ns() - before
    talk.say(done=True, published=published, bytes=size, publishing_seconds=in_calls_ns / 1e9)


def _batches(task: Task) -> Iterator[tuple[list[bytes], list[str]]]:
    """The messages of this part, with their routing keys; a block's manifest comes with its last records."""
    encoder = msgspec.json.Encoder()
    for number, records in enumerate(task.input.blocks()):
        if number % task.parts != task.part:
            continue
        for first in range(0, len(records), task.batch):
            part = records[first : first + task.batch]
            at = time.time_ns()
            bodies = [encoder.encode(_message(record, at)) for record in part]
            keys = [record.routing_key for record in part]
            if first + task.batch >= len(records):
                bodies.append(encoder.encode(_manifest(records, at)))
                keys.append(f"manifest.{records[0].block}")
            yield bodies, keys


def _plain(value: float | None) -> float | int | None:
    """A whole number without its `.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _message(record: Record, at: int) -> Message:
    return Message(record.n, at, record.key, record.hour, _plain(record.value), record.row)


def _manifest(records: list[Record], at: int) -> Manifest:
    return Manifest(records[0].block, at, [(r.n, r.key, r.hour, _plain(r.value)) for r in records])


if __name__ == "__main__":
    sys.exit(child(Task, run))
