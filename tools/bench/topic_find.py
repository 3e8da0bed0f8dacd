"""`warren bench topic-find`: look-ups by key among many messages, each with a key of its own.

One `find` after the other, of keys drawn at random, in a process of its own, after some that warm it up. The limit is
a loop of pread in C, of as many bytes at random places of the log's files: it knows where everything is.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

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
from warren.tools.bench.topic import QUEUES, TOPIC, Tell
from warren.tools.bench.topic_read import fill, key_of

MESSAGES = 10_000_000
WARM = 2000


def _finder(pipe: Connection, directory: str, messages: int, seconds: float, seed: int) -> None:
    with warren.attach(directory, name="bench-finder") as node:
        topic = node.topic(TOPIC)
        draw = random.Random(seed)

        def one() -> int:
            key = key_of(draw.randrange(messages))
            began = time.monotonic_ns()
            found = topic.find(key)
            took = time.monotonic_ns() - began
            if len(found) != 1 or found[0].keys != (key,):
                raise BenchError(f"{len(found)} messages were found by {key!r}")
            return took

        for _ in range(WARM):
            one()
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        latencies = [one()]
        while time.monotonic_ns() < end:
            latencies.append(one())
        pipe.send({"messages": len(latencies), "start": start, "end": time.monotonic_ns(), "latencies": latencies})


def run_topic_find(
    folder: Path, size: int, seconds: float, messages: int, clients: int, raw: bool, tell: Tell
) -> Result:
    """Look-ups by key: how many a second, and how long one takes."""
    with temporary_node(folder) as temporary:
        topic = temporary.node.topic(TOPIC, queues=QUEUES)
        before = topic.append(b"").physical_offset
        began = time.monotonic()
        fill(topic, size, messages, tell, keyed=True)
        end = topic.append(b"", durability="synced").physical_offset
        filled = time.monotonic() - began
        if topic.stats()["messages"] != messages + 2:
            raise BenchError(f"{messages:,} messages were appended, and readers see {topic.stats()['messages'] - 2:,}")
        tell("looking for keys")
        finders = [(_finder, {"messages": messages, "seconds": seconds, "seed": seed}) for seed in range(clients)]
        results = run_clients(finders, temporary.directory, seconds)
        length = max(1, (end - before) // messages)
        files = sorted((temporary.directory / "topics" / "commitlog").iterdir())
        reads = limits.measure_reads(files, length, min(seconds, 2.0)) if raw else 0.0
    took = (max(result["end"] for result in results) - min(result["start"] for result in results)) / 1e9
    latencies = np.concatenate([np.array(result["latencies"], dtype=np.int64) for result in results])
    made = cell(
        "topic-find", size, "none", 1, clients, len(latencies), took, percentiles_us(latencies), stored=messages,
        filled_per_s=round(messages / filled, 1), log_bytes_per_message=length,
    )  # fmt: skip
    if reads:
        name = "pread in a loop from C, the log's files"
        made["limit"] = {"name": name, "messages_per_s": reads, "bytes_per_s": round(reads * length, 1)}
        made["ratio_to_limit"] = round(made["messages_per_s"] / reads, 4)
    return made
