"""The load of a power-cut campaign: `python -m warren.tools.crash.powercut_load DIRECTORY LOG SEED`.

It opens the node of the directory and puts messages into queues, appends to topics, reads in a group and commits, and
looks up keys, in a thread each, until it is killed. Each confirm is a line of LOG, which lies on another disk:

    when queue NAME FIRST COUNT       messages from number FIRST on were confirmed
    when topic NAME NUMBER QUEUE OFFSET
    when group QUEUE NEXT             offsets below NEXT were committed
    when wrong TEXT                   a look-up did not find what had been confirmed

`when` is by the monotonic clock, read after the confirm. What has failed because the power is gone has no line.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import warren
from warren.engine.errors import Error

#: small files, so that new ones get names all the time
SETTINGS: dict[str, Any] = {
    "workers": 2,
    "file_bytes": 256 << 10,
    "arena_bytes": 2 << 20,
    "message_bytes_max": 128 << 10,
    "index_rows": 1024,
    "ring_records": 1024,
    "delivery_slots": 512,
    "log_file_bytes": 1 << 20,
    "topic_ring_bytes": 1 << 20,
    "consume_queue_entries": 300,
    "index_slots": 61,
    "index_entries": 200,
}
QUEUES = ("cut-a", "cut-b")
TOPICS = ("cut-topic", "cut-wide")
GROUP = "cut-group"
SIZES = (20, 300, 3000, 30_000)
PUT_MANY = 20
Work = Callable[[str, random.Random], None]


def body_of(number: int, size: int) -> bytes:
    """Bytes that say which message it is, and that all of it is there."""
    head = b"%d %d " % (number, size)
    return head + bytes([number % 251]) * (size - len(head)) + b"."


def number_of(body: bytes) -> int | None:
    """Which message a body is of; None: nobody's."""
    parts = body.split(b" ", 2)
    if len(parts) != 3 or not parts[0].isdigit() or not parts[1].isdigit():
        return None
    number = int(parts[0])
    return number if body == body_of(number, int(parts[1])) else None


class _Load:
    def __init__(self, directory: Path, log: Path, seed: int) -> None:
        self.node = warren.open(directory, name="powercut", idle_exit=60.0, **SETTINGS)
        self.seed = seed
        self.descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, *words: object) -> None:
        """A line that is whole or not there; this host lives on."""
        os.write(self.descriptor, f"{time.monotonic():.6f} {' '.join(map(str, words))}\n".encode())

    def put(self, name: str, rng: random.Random) -> None:
        queue, number = self.node.queue(name), 1
        while True:
            bodies = [body_of(number + at, rng.choice(SIZES)) for at in range(rng.choice((1, 1, PUT_MANY)))]
            queue.put_many(bodies)
            self.say("queue", name, number, len(bodies))
            number += len(bodies)

    def append(self, name: str, rng: random.Random) -> None:
        topic, number = self.node.topic(name), 1
        while True:
            position = topic.append(body_of(number, rng.choice(SIZES[:3])), key=[f"{name}-{number}", "often"])
            self.say("topic", name, number, position.queue, position.offset)
            if number % 50 == 0 and not topic.find(f"{name}-{number - 1}"):
                self.say("wrong", f"key {name}-{number - 1} was not found before the cut")
            number += 1

    def read(self, name: str, _rng: random.Random) -> None:
        with self.node.topic(name).reader(GROUP, commit="manual") as reader:
            while True:
                record = reader.get(60)
                reader.commit(record)
                self.say("group", record.queue, record.offset + 1)

    def run(self) -> None:
        for name in TOPICS:
            self.node.topic(name)
        works: list[tuple[Work, str]] = [(self.read, TOPICS[0])]
        works.extend((self.put, name) for name in QUEUES)
        works.extend((self.append, name) for name in TOPICS)
        for number, (work, name) in enumerate(works):
            rng = random.Random(f"{self.seed}/{number}")
            threading.Thread(target=self._until_the_cut, args=(work, name, rng), daemon=True).start()
        threading.Event().wait()

    def _until_the_cut(self, work: Work, name: str, rng: random.Random) -> None:
        try:
            work(name, rng)
        except (Error, OSError) as error:
            self.say("ended", name, repr(error).replace("\n", " "))


def main() -> None:
    """Until it is killed."""
    directory, log, seed = sys.argv[1:]
    _Load(Path(directory), Path(log), int(seed)).run()


if __name__ == "__main__":
    main()
