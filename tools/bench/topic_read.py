"""`warren bench topic-read`: a topic that lies in files in the page cache is read from its begin to its end, for ever.

arrow: `read_arrow`, as it is called. objects: `read` of a batch of messages, and the body of each as bytes. With
several readers, each in a process of its own, one alone has its turn before (`to_one`). The limit is a copy of memory
in the same run (64 MiB to 64 MiB, both written before), by bytes of bodies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import warren
from warren.tools.bench import limits
from warren.tools.bench.harness import (
    BenchError,
    Result,
    cell,
    percentiles_us,
    run_clients,
    temporary_node,
    wait_for_go,
)
from warren.tools.bench.topic import BATCH_BYTES, QUEUES, TOPIC, Tell, batch_of, to_one

INTO = ("arrow", "objects")
#: of records; the log keeps much less of it in memory
READ_BYTES = 192 << 20
HEAD_BYTES = 110
MESSAGES_MAX = 1_000_000
COPY_SECONDS = 0.5


def messages_of(size: int) -> int:
    """How many messages are read again and again."""
    return max(QUEUES, min(MESSAGES_MAX, READ_BYTES // (size + HEAD_BYTES)))


def fill(topic: warren.Topic, size: int, messages: int, tell: Tell, keyed: bool = False) -> None:
    """Append so many messages, in batches to the queues in turn; `keyed`: each with a key of its own, `key_of`."""
    batch = batch_of(1000, size)
    bodies = [os.urandom(size)] * batch
    under_way: list[warren.Confirm[Any]] = []
    for done in range(0, messages, batch):
        count = min(batch, messages - done)
        keys = [key_of(number) for number in range(done, done + count)] if keyed else None
        queue = done // batch % QUEUES
        under_way.append(topic.append_many(bodies[:count], keys, queue=queue, durability="written", wait=False))
        if len(under_way) > 8:
            under_way.pop(0).wait()
        if done // batch % 100 == 0:
            tell(f"{done:,} of {messages:,} messages appended")
    for confirm in under_way:
        confirm.wait()


def key_of(number: int) -> str:
    """The key of the message with this number."""
    return f"key-{number}"


def _arrow(topic: warren.Topic, queue: int, end: int, _batch: int) -> Iterator[int]:
    at = 0
    while at < end:
        found = topic.read_arrow(queue, at, end)
        at = found.column(0)[-1].as_py() + 1
        yield found.num_rows


def _objects(topic: warren.Topic, queue: int, end: int, batch: int) -> Iterator[int]:
    at = 0
    while at < end:
        found = topic.read(queue, at, batch, BATCH_BYTES)
        bodies = [record.body for record in found.records]
        at = found.next_offset
        yield len(bodies)


_READS: dict[str, Callable[[warren.Topic, int, int, int], Iterator[int]]] = {"arrow": _arrow, "objects": _objects}


def _passes(topic: warren.Topic, into: str, batch: int) -> Iterator[int]:
    """Messages of one call after another, for ever; 0 after each pass."""
    ends = [topic.offsets(queue)[1] for queue in range(topic.queues)]
    while True:
        for queue, end in enumerate(ends):
            yield from _READS[into](topic, queue, end, batch)
        yield 0


def _reader(pipe: Connection, directory: str, into: str, messages: int, seconds: float, batch: int) -> None:
    with warren.attach(directory, name="bench-reader") as node:
        calls = _passes(node.topic(TOPIC), into, batch)
        warm = sum(iter(lambda: next(calls), 0))  # from here on, the files are in the page cache
        if warm != messages:
            raise BenchError(f"{messages:,} messages were appended and {warm:,} read")
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        latencies = []
        read = 0
        now = time.monotonic_ns()
        while now < end:
            began = now
            count = next(calls)
            now = time.monotonic_ns()
            read += count
            if count:
                latencies.append(now - began)
        pipe.send({"messages": read, "start": start, "end": now, "latencies": np.array(latencies, dtype=np.int64)})


def _read(directory: Path, arguments: dict[str, Any], readers: int) -> Result:
    results = run_clients([(_reader, arguments)] * readers, directory, arguments["seconds"])
    took = (max(result["end"] for result in results) - min(result["start"] for result in results)) / 1e9
    messages = sum(result["messages"] for result in results)
    latencies = np.concatenate([result["latencies"] for result in results])
    return {"messages": messages, "took": took, "rate": messages / took, "latency_us": percentiles_us(latencies)}


def run_topic_read(
    folder: Path, size: int, seconds: float, into: str, batch: int, clients: int, messages: int, raw: bool, tell: Tell
) -> Result:
    """Throughput of reads; `clients` readers in processes of their own."""
    arguments = {"into": into, "messages": messages, "seconds": seconds, "batch": batch}
    with temporary_node(folder) as temporary:
        fill(temporary.node.topic(TOPIC, queues=QUEUES), size, messages, tell)
        tell("reading")
        one = _read(temporary.directory, arguments, 1) if clients > 1 else None
        found = _read(temporary.directory, arguments, clients)
        bytes_per_s = limits.measure_memcpy(folder, COPY_SECONDS) if raw else 0.0
    made = cell(
        "topic-read", size, "none", 0 if into == "arrow" else batch, clients, found["messages"], found["took"],
        found["latency_us"], into=into, stored=messages, **({} if one is None else to_one(found, one)),
    )  # fmt: skip
    if bytes_per_s and size:
        made["limit"] = {"name": "copy of memory", "messages_per_s": bytes_per_s / size, "bytes_per_s": bytes_per_s}
        made["ratio_to_limit"] = round(made["bytes_per_s"] / bytes_per_s, 4)
    return made
