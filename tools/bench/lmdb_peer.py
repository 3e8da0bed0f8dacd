"""LMDB as a queue, as fast as it can be made here: what Warren's publishing is compared with.

One environment, keys of 8 bytes that only grow, so that every put is an append (MDB_APPEND), many of them in one call
and one synced transaction; without WRITEMAP, which halves its rate here (2.2 and 1.1 M/s), and with synced metadata,
without which a commit may be undone by a power loss. A consumer reads through the map in its own process and notes how
far it has come in an environment of its own that is never synced; nothing is removed, which favours LMDB. Producers
take turns by LMDB's own lock.

The binding is an extra of its own (`pip install 'warren[bench]'`); without it the benchmarks say so and go on alone.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, islice, repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from warren.tools.bench.harness import BenchError, Result, run_clients, wait_for_go

BATCH = 5000
MAP_BYTES = 64 << 30
IDLE_S = 30.0
NAP_S = 0.0002
MISSING = "LMDB is not installed, so there is no peer to compare with: pip install 'warren[bench]'"


def installed() -> bool:
    """Whether the binding can be imported."""
    return find_spec("lmdb") is not None


def _open(directory: str, name: str, *, sync: bool) -> Any:
    import lmdb

    path = Path(directory, name)
    path.mkdir(exist_ok=True)
    return lmdb.open(str(path), map_size=MAP_BYTES, sync=sync, metasync=sync, max_readers=16)


def _keys(first: int, n: int) -> Iterator[bytes]:
    return chain.from_iterable(struct.iter_unpack("8s", np.arange(first, first + n, dtype=">u8").tobytes()))


def _producer(pipe: Connection, directory: str, size: int, seconds: float) -> None:
    with _open(directory, "queue", sync=True) as environment:
        body = bytes(size)
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        cpu = time.process_time()
        messages = 0
        while time.monotonic_ns() < end:
            with environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                first = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0
                cursor.putmulti(zip(_keys(first, BATCH), repeat(body)), dupdata=False, append=True)
            messages += BATCH
        ended = time.monotonic_ns()
        pipe.send({"messages": messages, "start": start, "end": ended, "cpu_s": time.process_time() - cpu})


def _consumer(pipe: Connection, directory: str, number: int, seconds: float, size: int) -> None:
    with (
        _open(directory, "queue", sync=False) as environment,
        _open(directory, f"cursor-{number}", sync=False) as own,
    ):
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        cpu = time.process_time()
        messages, position, quiet, last = 0, b"", time.monotonic(), start
        while True:
            over = time.monotonic_ns() >= end  # the producer stops now; it is over when nothing comes for a while
            with environment.begin() as transaction:
                cursor = transaction.cursor()
                found = (
                    (cursor.set_range(position) and (cursor.key() != position or cursor.next()))
                    if position
                    else cursor.first()
                )
                batch = list(islice(cursor.iternext(), BATCH)) if found else []
            if batch:
                position = batch[-1][0]
                with own.begin(write=True) as transaction:
                    transaction.put(b"position", position)
                messages += len(batch)
                if len(batch[-1][1]) != size:
                    raise BenchError("LMDB gave back other bytes than were put")
                last = time.monotonic_ns()
                quiet = time.monotonic()
            elif over and time.monotonic() - quiet > 0.5:
                break
            else:
                time.sleep(NAP_S)
        pipe.send({"messages": messages, "start": start, "end": last, "cpu_s": time.process_time() - cpu})


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="lmdb-bench-", dir=folder))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_publish(folder: Path, size: int, seconds: float, producers: int) -> Result:
    """Messages per second that `producers` put, synced; and the processor time that they took."""
    with _folder(folder) as directory:
        _open(str(directory), "queue", sync=True).close()
        results = run_clients([(_producer, {"size": size, "seconds": seconds})] * producers, directory, seconds)
    return _summed(results, results)


def run_fanout(folder: Path, size: int, seconds: float, consumers: int) -> Result:
    """Deliveries per second of one producer to `consumers` cursors; each of them sees every message."""
    with _folder(folder) as directory:
        _open(str(directory), "queue", sync=True).close()
        clients: list[Any] = [(_producer, {"size": size, "seconds": seconds})]
        clients += [(_consumer, {"number": n, "seconds": seconds, "size": size}) for n in range(consumers)]
        sent, *received = run_clients(clients, directory, seconds)
    if any(result["messages"] != sent["messages"] for result in received):
        raise BenchError(
            f"LMDB: {sent['messages']:,} messages were put, and {[r['messages'] for r in received]} were read"
        )
    return _summed(received, [sent, *received])


def _summed(counted: list[Result], all_of_them: list[Result]) -> Result:
    messages = sum(result["messages"] for result in counted)
    start = min(result["start"] for result in all_of_them)
    took = (max(result["end"] for result in all_of_them) - start) / 1e9
    return {"messages": messages, "took": took, "rate": messages / took, "cpu_s": sum(r["cpu_s"] for r in all_of_them)}
