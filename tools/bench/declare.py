"""`warren bench declare`: declarations, bindings, deletions in a node with many queues, and what others feel of them.

One client changes the catalog as fast as it can: in batches, or one by one; another one puts a message of 100 bytes
into a queue, gets it and acks it, at a pace of its own (durability `none`, so that the disk's syncs are not what is
measured). The time of that round trip counts, first while nobody declares (`quiet_us`), then beside the changes
(`latency_us`), in the same node. A change is on disk before it is answered: `fsync_us` is one append and fdatasync.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warren
from warren.tools.bench.harness import Result, cell, percentiles_us, run_clients, temporary_node, wait_for_go

QUEUES = 4000  #: that are there already
BATCH = 1000
PAUSE_S = 0.002
APPENDS = 200
#: what is done, and how many in a call
CHANGES = {"in batches": BATCH, "one by one": 1, "bind": 1, "unbind": 1, "delete": 1}


def _round_trips(pipe: Connection, directory: str, seconds: float) -> None:
    with warren.attach(directory, name="bench-round-trips") as node:
        queue = node.queue("round-trips")
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        latencies: list[int] = []
        while (now := time.monotonic_ns()) < end:
            queue.put(b"x" * 100, durability="none", wait=False)
            queue.get(timeout=60).ack()
            latencies.append(time.monotonic_ns() - now)
            time.sleep(PAUSE_S)
        pipe.send({"latencies": latencies})


def _changes(node: Any, what: str, queues: int) -> Iterator[Callable[[], Any]]:
    """Calls that change the catalog, one after another."""
    if what == "in batches":
        for number in itertools.count():
            yield partial(node.declare_queues, [f"new-{number}-{i}" for i in range(BATCH)])
    elif what == "one by one":
        for number in itertools.count():
            yield partial(node.queue, f"new-{number}")
    elif what == "delete":
        for number in range(queues):
            yield partial(node.delete_queue, f"old-{number}")
    else:
        call = node.bind if what == "bind" else node.unbind
        for binding in _bindings(queues):
            yield partial(call, *binding)


def _bindings(queues: int) -> Iterator[tuple[str, str, str]]:
    return ((f"old-{n % queues}", "amq.topic", f"key.{n // queues}.*.{n}") for n in range(queues * 8))


def _changer(pipe: Connection, directory: str, what: str, queues: int, seconds: float) -> None:
    with warren.attach(directory, name="bench-changes") as node:
        if what == "unbind":
            node.bind_many(_bindings(queues))
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        done = 0
        for change in _changes(node, what, queues):
            if time.monotonic_ns() >= end:
                break
            change()
            done += CHANGES[what]
        pipe.send({"changes": done, "seconds": (time.monotonic_ns() - begun) / 1e9})


def _fsync_us(folder: Path) -> dict[str, float] | None:
    path = folder / "append"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    spent = []
    try:
        for number in range(APPENDS):
            began = time.monotonic_ns()
            os.pwrite(descriptor, b"x" * 200, number * 200)
            os.fdatasync(descriptor)
            spent.append(time.monotonic_ns() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return percentiles_us(spent)


def run_declare(folder: Path, seconds: float, what: str, queues: int = QUEUES) -> Result:
    """Changes of one kind in a node with so many queues, and round trips beside them."""
    with temporary_node(folder) as temporary:
        temporary.node.declare_queues(f"old-{number}" for number in range(queues))
        round_trips: tuple[Any, dict[str, Any]] = (_round_trips, {"seconds": seconds})
        (quiet,) = run_clients([round_trips], temporary.directory, seconds)
        changer: tuple[Any, dict[str, Any]] = (_changer, {"what": what, "queues": queues, "seconds": seconds})
        beside, done = run_clients([round_trips, changer], temporary.directory, seconds)
        fsync_us = _fsync_us(temporary.directory / "log")
    return cell(
        f"declare: {what}", 0, "synced", CHANGES[what], 1, done["changes"], done["seconds"],
        percentiles_us(beside["latencies"]), quiet_us=percentiles_us(quiet["latencies"]), queues=queues,
        fsync_us=fsync_us,
    )  # fmt: skip
