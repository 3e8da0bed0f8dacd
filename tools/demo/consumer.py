"""A consumer of the demo: receives from its queues, writes down what it got, and only then acks.

Each message becomes a fixed row of 24 bytes in an append-only file, a batch with one write() before its ack: whatever
was acked is in the file, however this process ends. What was written down and not acked comes again, marked
redelivered, to the next incarnation, which has a file of its own.

Run as `python -m warren.tools.demo.consumer '{…}'`. Ends when its standard input is closed and its queues are empty.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from warren.engine.errors import Error, PeerLost, TimedOut
from warren.tools.demo.talk import SAY_EVERY_S, Talk, child
from warren.workers.faces.node import attach

if TYPE_CHECKING:
    from warren.workers.faces.message import Message
    from warren.workers.faces.node import Node
    from warren.workers.faces.queues import Queue

TIMEOUT_S = 120.0
WAIT_S = 0.2
REDELIVERED, BAD = 1, 2

#: one received message: index of the queue in the task, flags, number (-1 - block: a manifest), time since publishing
ROW = np.dtype([("queue", "<u4"), ("flags", "<u4"), ("n", "<i8"), ("latency_ns", "<i8")])


class Task(msgspec.Struct, frozen=True):
    """What this process has to do."""

    directory: str
    queues: list[str]
    records_file: str
    name: str
    batch: int = 1000


class Head(msgspec.Struct, gc=False):
    """What a consumer looks at: a record's message has `n`, a manifest has `block` and `records`."""

    at: int
    n: int | None = None
    block: int | None = None
    records: msgspec.Raw = msgspec.Raw()


def run(task: Task, talk: Talk) -> None:
    """Receive, write down, ack: a thread a queue, all of them with one client and one file."""
    output = os.open(task.records_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with attach(task.directory, timeout=TIMEOUT_S, name=task.name) as node:
        readers = [_Reader(node, name, index, task, output) for index, name in enumerate(task.queues)]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            talk.listen(SAY_EVERY_S)
            talk.say(received=sum(reader.received for reader in readers))
            problem = next((reader.problem for reader in readers if reader.problem), None)
            if talk.ended or problem:
                for reader in readers:
                    reader.may_end.set()
                for reader in readers:
                    reader.join()
            if problem:
                raise problem
    os.close(output)
    talk.say(done=True, received=sum(reader.received for reader in readers))


class _Reader(threading.Thread):
    """Receives from one queue until it may end and the queue gives nothing more."""

    def __init__(self, node: Node, name: str, index: int, task: Task, output: int) -> None:
        super().__init__(name=f"reader of {name}", daemon=True)
        self._queue = node.queue(name, durable=True)
        self._index = index
        self._batch = task.batch
        self._output = output
        self.received = 0
        self.may_end = threading.Event()
        self.problem: Error | None = None

    def run(self) -> None:
        try:
            self._receive()
        except Error as problem:
            self.problem = problem

    def _receive(self) -> None:
        decoder = msgspec.json.Decoder(Head)
        while True:
            ending = self.may_end.is_set()
            messages = take(self._queue, self._batch, WAIT_S)
            if messages:
                now = time.time_ns()
                rows = [_row(self._index, message, decoder, now) for message in messages]
                _append(self._output, np.array(rows, ROW).tobytes())
                messages[-1].ack(multiple=True)
                self.received += len(messages)
            elif ending:
                return


def take(queue: Queue, most: int, wait_s: float) -> list[Message]:
    """What is there, at most so many; none when the queue's worker says that there is none. A worker that is being
    restarted, or gets no processor, is asked again for two minutes, then its PeerLost or TimedOut is raised."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return queue.get_many(most, timeout=wait_s)
        except (PeerLost, TimedOut):
            if time.monotonic() > until:
                raise


def _row(index: int, message: Message, decoder: msgspec.json.Decoder[Head], now: int) -> tuple[int, int, int, int]:
    flags = REDELIVERED if message.redelivered else 0
    try:
        head = decoder.decode(message.body)
    except msgspec.MsgspecError:
        return index, flags | BAD, 0, 0
    if head.n is not None:
        return index, flags, head.n, now - head.at
    if head.block is None or not _is_whole(head.records):
        return index, flags | BAD, 0, 0
    return index, flags, -1 - head.block, now - head.at


def _is_whole(records: msgspec.Raw) -> bool:
    """A manifest has its records, one after the other without a gap."""
    try:
        numbers = [
            record[0] for record in msgspec.json.decode(records, type=list[tuple[int, str, int | None, float | None]])
        ]
    except msgspec.MsgspecError:
        return False
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _append(output: int, data: bytes) -> None:
    """One write: O_APPEND, so that the file is rows from its start, and at most its last row is torn."""
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


if __name__ == "__main__":
    sys.exit(child(Task, run))
