"""`warren bench store`: writes into the message store itself, without queues.

batch > 1: `write_many`, some batches under way at once, the latency of a batch's confirm. batch 1: `write(wait=False)`,
confirms awaited in a window; every 64th confirm is timed. `store-latency`: one `write` at a time, each awaited.
"""

from __future__ import annotations

import os
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import warren
from warren.tools.bench.harness import Result, cell, percentiles_us, run_clients, temporary_node, wait_for_go

BATCHES_UNDER_WAY = 4
WINDOW = 4096
SAMPLE_EACH = 64
IDS_AHEAD = 65536


class Ids:
    """16-byte ids that nobody else makes: 8 random bytes, 8 bytes of counter."""

    def __init__(self) -> None:
        self._prefix = np.frombuffer(os.urandom(8), dtype=np.uint8)
        self._next = 0

    def take(self, count: int) -> list[bytes]:
        """The next ids."""
        rows = np.empty((count, 16), dtype=np.uint8)
        rows[:, :8] = self._prefix
        rows[:, 8:] = np.arange(self._next, self._next + count, dtype=">u8").view(np.uint8).reshape(count, 8)
        self._next += count
        data = rows.tobytes()
        return [data[at : at + 16] for at in range(0, len(data), 16)]


def _writer(pipe: Connection, directory: str, size: int, seconds: float, durability: str, batch: int) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        ids = Ids()
        body = os.urandom(size)
        store.write_many(ids.take(64), [body] * 64, durability="written")  # touch what is touched once
        start = wait_for_go(pipe)
        write = _write_batches if batch > 1 else _write_singles
        messages, latencies = write(store, ids, body, start + int(seconds * 1e9), durability, batch)
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns(), "latencies": latencies})


def _write_batches(
    store: warren.Store, ids: Ids, body: bytes, end: int, durability: str, batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    bodies = [body] * batch
    under_way: deque[tuple[int, Any]] = deque()
    latencies = []
    messages = 0
    clock = time.monotonic_ns
    while (now := clock()) < end:
        under_way.append((now, store.write_many(ids.take(batch), bodies, durability=durability, wait=False)))
        messages += batch
        if len(under_way) > BATCHES_UNDER_WAY:
            began, confirm = under_way.popleft()
            confirm.wait()
            latencies.append(clock() - began)
    for began, confirm in under_way:
        confirm.wait()
        latencies.append(clock() - began)
    return messages, np.array(latencies, dtype=np.int64)


def _write_singles(
    store: warren.Store, ids: Ids, body: bytes, end: int, durability: str, _batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    under_way: deque[tuple[int, Any]] = deque()
    latencies = []
    messages = 0
    clock = time.monotonic_ns
    write = store.write
    ahead: list[bytes] = []
    while clock() < end:
        if not ahead:
            ahead = ids.take(IDS_AHEAD)
        part, ahead = ahead[:SAMPLE_EACH], ahead[SAMPLE_EACH:]
        began = clock()
        for id in part[:-1]:
            write(id, body, durability, False)
        under_way.append((began, write(part[-1], body, durability, False)))
        messages += len(part)
        if len(under_way) > WINDOW // SAMPLE_EACH:
            began, confirm = under_way.popleft()
            confirm.wait()
            latencies.append(clock() - began)
    for began, confirm in under_way:
        confirm.wait()
        latencies.append(clock() - began)
    return messages, np.array(latencies, dtype=np.int64)


def _one_at_a_time(pipe: Connection, directory: str, size: int, seconds: float, durability: str) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        ids = Ids()
        body = os.urandom(size)
        store.write_many(ids.take(64), [body] * 64, durability="written")
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        latencies = []
        clock = time.monotonic_ns
        now = clock()
        while now < end:
            (id,) = ids.take(1)
            began = clock()
            store.write(id, body, durability)
            now = clock()
            latencies.append(now - began)
        pipe.send({"messages": len(latencies), "start": start, "end": now, "latencies": np.array(latencies)})


def _joined(workload: str, results: list[Result], size: int, durability: str, batch: int, **more: Any) -> Result:
    seconds = (max(result["end"] for result in results) - min(result["start"] for result in results)) / 1e9
    latencies = np.concatenate([result["latencies"] for result in results])
    messages = sum(result["messages"] for result in results)
    return cell(workload, size, durability, batch, len(results), messages, seconds, percentiles_us(latencies), **more)


def run_store(folder: Path, size: int, seconds: float, durability: str, batch: int, clients: int) -> Result:
    """Throughput of writes: messages confirmed per second, latency of a confirm."""
    arguments = {"size": size, "seconds": seconds, "durability": durability, "batch": batch}
    with temporary_node(folder) as temporary:
        results = run_clients([(_writer, arguments)] * clients, temporary.directory, seconds)
        return _joined("store", results, size, durability, batch)


def run_store_latency(folder: Path, size: int, seconds: float, durability: str) -> Result:
    """Latency of one write at a time, each awaited."""
    arguments = {"size": size, "seconds": seconds, "durability": durability}
    with temporary_node(folder) as temporary:
        results = run_clients([(_one_at_a_time, arguments)], temporary.directory, seconds)
        return _joined("store-latency", results, size, durability, 1)
