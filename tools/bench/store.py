"""`warren bench store`: the message store itself, without queues.

store: batch > 1: `write_many` of new ids, some batches under way at once, the latency of a batch's confirm. batch 1:
`write(wait=False)`, confirms awaited in a window; every 64th confirm is timed.
store-latency: one `write` at a time, each awaited.
store-read: what lies in the images in memory: `read` in random order (batch 1), or `read_many` of neighbours, at random
places.
store-read-old: the same of what lies in files alone (in the page cache, as they were just written); its limit is a loop
of pread in C over the same files, in the same run.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import warren
from warren import Durability
from warren.engine.kernel.formats import FRAME
from warren.tools.bench import limits
from warren.tools.bench.harness import (
    BenchError,
    Result,
    cell,
    percentiles_us,
    pipelined,
    run_clients,
    temporary_node,
    wait_for_go,
)

BATCHES_UNDER_WAY = 12
WINDOW = 4096
SAMPLE_EACH = 64
IDS_AHEAD = 65536
#: messages that readers find: as many as fit into this much memory, so that the images hold them
READ_BYTES = 24 << 20
READ_MESSAGES_MAX = 200_000
#: store-read-old: what is written is this much larger than all images
OLD_FILE_BYTES = 4 << 20
OLD_IMAGES = 4
OLD_BYTES = 96 << 20


def _writer(pipe: Connection, directory: str, size: int, seconds: float, durability: Durability, batch: int) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        body = os.urandom(size)
        store.write_many(store.new_ids(64), [body] * 64, durability="written")  # touch what is touched once
        start = wait_for_go(pipe)
        write = _write_batches if batch > 1 else _write_singles
        messages, latencies = write(store, body, start + int(seconds * 1e9), durability, batch)
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns(), "latencies": latencies})


def _write_batches(
    store: warren.Store, body: bytes, end: int, durability: Durability, batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    bodies = [body] * batch
    return pipelined(
        lambda: (batch, store.write_many(store.new_ids(batch), bodies, durability=durability, wait=False)),
        end,
        BATCHES_UNDER_WAY,
    )


def _write_singles(
    store: warren.Store, body: bytes, end: int, durability: Durability, _batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    write = store.write
    ahead: list[bytes] = []
    at = 0

    def some() -> tuple[int, Any]:
        nonlocal ahead, at
        if at == len(ahead):
            ahead, at = store.new_ids(IDS_AHEAD), 0
        part = ahead[at : at + SAMPLE_EACH]
        at += SAMPLE_EACH
        for id in part[:-1]:
            write(id, body, durability, False)
        return len(part), write(part[-1], body, durability, False)

    return pipelined(some, end, WINDOW // SAMPLE_EACH)


def _one_at_a_time(pipe: Connection, directory: str, size: int, seconds: float, durability: Durability) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        body = os.urandom(size)
        store.write_many(store.new_ids(64), [body] * 64, durability="written")
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        latencies = []
        clock = time.monotonic_ns
        now = clock()
        while now < end:
            id = store.new_id()
            began = clock()
            store.write(id, body, durability)
            now = clock()
            latencies.append(now - began)
        pipe.send({"messages": len(latencies), "start": start, "end": now, "latencies": np.array(latencies)})


def _joined(workload: str, results: list[Result], size: int, durability: Durability, batch: int, **more: Any) -> Result:
    seconds = (max(result["end"] for result in results) - min(result["start"] for result in results)) / 1e9
    latencies = np.concatenate([result["latencies"] for result in results])
    messages = sum(result["messages"] for result in results)
    return cell(workload, size, durability, batch, len(results), messages, seconds, percentiles_us(latencies), **more)


def run_store(folder: Path, size: int, seconds: float, durability: Durability, batch: int, clients: int) -> Result:
    """Throughput of writes: messages confirmed per second, latency of a confirm."""
    arguments = {"size": size, "seconds": seconds, "durability": durability, "batch": batch}
    with temporary_node(folder) as temporary:
        results = run_clients([(_writer, arguments)] * clients, temporary.directory, seconds)
        return _joined("store", results, size, durability, batch)


def run_store_latency(folder: Path, size: int, seconds: float, durability: Durability) -> Result:
    """Latency of one write at a time, each awaited."""
    arguments = {"size": size, "seconds": seconds, "durability": durability}
    with temporary_node(folder) as temporary:
        results = run_clients([(_one_at_a_time, arguments)], temporary.directory, seconds)
        return _joined("store-latency", results, size, durability, 1)


def _reader(
    pipe: Connection, directory: str, ids: list[bytes], size: int, seconds: float, batch: int, seed: int
) -> None:
    with warren.attach(directory, name="bench-reader") as node:
        store = node.store()
        if batch == 1:
            random.Random(seed).shuffle(ids)
            ids = [bytes(bytearray(id)) for id in ids]  # one behind the other: what is measured is not finding the ids
        assert all(found is not None and len(found) == size for found in store.read_many(ids[:1000]))
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        clock = time.monotonic_ns
        read, read_many = store.read, store.read_many
        calls = SAMPLE_EACH if batch == 1 else 1
        parts = [ids[at : at + calls * batch] for at in range(0, len(ids) - calls * batch + 1, calls * batch)]
        random.Random(seed).shuffle(parts)
        latencies = []
        messages = 0
        for part in itertools.cycle(parts):
            began = clock()
            if began >= end:
                break
            if batch == 1:
                for id in part:
                    read(id)
            else:
                read_many(part)
            latencies.append((clock() - began) // calls)
            messages += len(part)
        pipe.send({"messages": messages, "start": start, "end": clock(), "latencies": np.array(latencies)})


def _fill(store: warren.Store, size: int, count: int) -> list[bytes]:
    body = os.urandom(size)
    ids: list[bytes] = []
    while len(ids) < count:
        some = store.new_ids(min(1000, count - len(ids)))
        store.write_many(some, [body] * len(some), durability="written")
        ids += some
    store.barrier("synced")
    return ids


def run_store_read(folder: Path, size: int, seconds: float, batch: int, clients: int) -> Result:
    """Throughput of reads from memory."""
    with temporary_node(folder) as temporary:
        ids = _fill(temporary.node.store(), size, min(READ_MESSAGES_MAX, max(READ_BYTES // (size + 64), 1000)))
        results = run_clients(_readers(ids, size, seconds, batch, clients), temporary.directory, seconds)
        return _joined("store-read", results, size, "none", batch)


def run_store_read_old(folder: Path, size: int, seconds: float, batch: int, clients: int) -> Result:
    """Throughput of reads from files, beside that of a loop of pread over the same files."""
    with temporary_node(folder, file_bytes=OLD_FILE_BYTES, images_n=OLD_IMAGES, message_bytes_max=1 << 20) as temporary:
        ids = _fill(temporary.node.store(), size, OLD_BYTES // (size + 64))
        files = sorted((temporary.directory / "store" / "persistent").glob("*.rdq"), key=lambda path: int(path.stem))
        old = files[: -OLD_IMAGES - 2]
        if not old:
            raise BenchError("too little was written: nothing lies in files alone")
        ids = ids[: len(ids) * len(old) // len(files)]
        length = FRAME.size + 1 + size
        before = limits.measure_reads(old, length, min(seconds, 2.0))
        results = run_clients(_readers(ids, size, seconds, batch, clients), temporary.directory, seconds)
        rate = (before + limits.measure_reads(old, length, min(seconds, 2.0))) / 2
    found = _joined("store-read-old", results, size, "none", batch)
    name = "pread in a loop from C, the same files"
    found["limit"] = {"name": name, "messages_per_s": rate, "bytes_per_s": round(rate * size, 1)}
    found["ratio_to_limit"] = round(found["messages_per_s"] / rate, 4)
    return found


def _readers(
    ids: list[bytes], size: int, seconds: float, batch: int, clients: int
) -> list[tuple[Callable[..., None], dict[str, Any]]]:
    batch = min(batch, len(ids))
    arguments = {"ids": ids, "size": size, "seconds": seconds, "batch": batch}
    return [(_reader, {**arguments, "seed": seed}) for seed in range(clients)]
