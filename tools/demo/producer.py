"""A producer of the demo: publishes every second block of the input with its manifest, and waits for the confirms.

Run as `python -m warren.tools.demo.producer '{"directory": …, "input": {…}, "part": 0, "parts": 2}'`. Prints lines of
JSON: {"published": n, "bytes": b} as it goes on, and {"done": true, …} at the end.
"""

from __future__ import annotations

import sys
import time

import msgspec

from warren.tools.demo.inputs import EXCHANGE, Input, Manifest, Message, Record
from warren.tools.demo.talk import Talk, child
from warren.workers.faces.node import attach

TIMEOUT_S = 120.0


class Task(msgspec.Struct, frozen=True):
    """What this process has to do."""

    directory: str
    input: Input
    part: int
    parts: int
    batch: int = 1000


def run(task: Task, talk: Talk) -> None:
    """Publish this part of the input."""
    encoder = msgspec.json.Encoder()
    published = size = 0
    waiting_ns = 0
    started = time.monotonic()
    with attach(task.directory, timeout=TIMEOUT_S, name=f"demo-producer-{task.part}") as node:
        for number, records in enumerate(task.input.blocks()):
            if number % task.parts != task.part:
                continue
            for first in range(0, len(records), task.batch):
                part = records[first : first + task.batch]
                last = first + task.batch >= len(records)
                at = time.time_ns()
                bodies = [encoder.encode(_message(record, at)) for record in part]
                keys = [record.routing_key for record in part]
                if last:
                    bodies.append(encoder.encode(_manifest(records, at)))
                    keys.append(f"manifest.{records[0].block}")
                before = time.monotonic_ns()
                node.publish_many(bodies, exchange=EXCHANGE, routing_keys=keys, durability="synced", timeout=TIMEOUT_S)
                waiting_ns += time.monotonic_ns() - before
                published += len(bodies)
                size += sum(map(len, bodies))
                talk.say_sometimes(published=published, bytes=size)
    seconds = time.monotonic() - started
    talk.say(done=True, published=published, bytes=size, seconds=seconds, publishing_seconds=waiting_ns / 1e9)


def _plain(value: float | None) -> float | int | None:
    """A whole number without its `.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _message(record: Record, at: int) -> Message:
    return Message(record.n, at, record.key, record.hour, _plain(record.value), record.row)


def _manifest(records: list[Record], at: int) -> Manifest:
    return Manifest(records[0].block, at, [(r.n, r.key, r.hour, _plain(r.value)) for r in records])


if __name__ == "__main__":
    sys.exit(child(Task, run))
