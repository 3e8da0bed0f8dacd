"""`warren bench fanout`: one message to one queue, and to four: what goes to the disk, and how fast.

The same load is published to a fanout exchange with 1 and with 4 queues, each on a node of its own. `disk_ratio` is
what the processes of the node have written to the disk for four queues by what they have written for one (write_bytes
of /proc/PID/io), a second after everything is confirmed; `rate_ratio` is the same of messages a second. Nobody consumes
meanwhile: an ack that overtakes a write would eliminate it. Then every queue is emptied, and what came is counted.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warren
from warren import Durability
from warren.tools.bench.harness import (
    BenchError,
    Result,
    TemporaryNode,
    cell,
    percentiles_us,
    run_clients,
    temporary_node,
    wait_for_go,
)

EXCHANGE = "fanout"
QUEUES = (1, 4)
BATCHES_UNDER_WAY = 2
#: bytes of bodies in one call at most: half an arena
BATCH_BYTES = 2 << 20
SETTLE_S = 1.0


def _publisher(pipe: Connection, directory: str, size: int, seconds: float, durability: Durability, batch: int) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        bodies = [os.urandom(size) for _ in range(batch)]
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        under_way: list[tuple[int, Any]] = []
        latencies: list[int] = []
        messages = 0
        while (now := time.monotonic_ns()) < end or under_way:
            if now < end:
                confirm = node.publish_many(bodies, EXCHANGE, durability=durability, wait=False)
                under_way.append((now, confirm))
                messages += batch
            if now >= end or len(under_way) > BATCHES_UNDER_WAY:
                since, confirm = under_way.pop(0)
                confirm.wait()
                latencies.append(time.monotonic_ns() - since)
        pipe.send({"messages": messages, "start": begun, "end": time.monotonic_ns(), "latencies": latencies})


def _written(temporary: TemporaryNode) -> int:
    return sum(process.io_counters().write_bytes for _role, process in temporary.processes())


def _measured(
    folder: Path, size: int, seconds: float, durability: Durability, batch: int, queues_n: int
) -> dict[str, Any]:
    with temporary_node(folder) as temporary:
        node = temporary.node
        node.declare_exchange(EXCHANGE, type="fanout")
        queues = [node.queue(f"fanout-{number}", durable=durability != "none") for number in range(queues_n)]
        for queue in queues:
            queue.bind(EXCHANGE)
        time.sleep(SETTLE_S)
        before = _written(temporary)
        load = {"size": size, "seconds": seconds, "durability": durability, "batch": batch}
        (sent,) = run_clients([(_publisher, load)], temporary.directory, seconds)
        time.sleep(SETTLE_S)
        written = _written(temporary) - before
        for queue in queues:
            came = 0
            while messages := queue.get_many(1000, timeout=2.0 if came < sent["messages"] else 0):
                came += len(messages)
                messages[-1].ack(multiple=True)
            if came != sent["messages"]:
                raise BenchError(f"{sent['messages']:,} messages were published and {came:,} came to {queue.name}")
    took = (sent["end"] - sent["start"]) / 1e9
    return {**sent, "took": took, "rate": sent["messages"] / took, "written": written / sent["messages"]}


def run_fanout(folder: Path, size: int, seconds: float, durability: Durability, batch: int) -> Result:
    """Publish to one queue and to four; the cell is that of four, with the ratios to one."""
    batch = max(1, min(batch, BATCH_BYTES // max(size, 1)))
    one, four = (_measured(folder, size, seconds, durability, batch, queues_n) for queues_n in QUEUES)
    if not one["written"]:
        raise BenchError("the node wrote nothing to the disk: is the folder on a tmpfs?")
    return cell(
        "fanout", size, durability, batch, 1, four["messages"], four["took"], percentiles_us(four["latencies"]),
        queues=QUEUES[-1], disk_bytes_per_message=round(four["written"], 1),
        disk_bytes_per_message_of_one=round(one["written"], 1), disk_ratio=round(four["written"] / one["written"], 3),
        messages_per_s_of_one=round(one["rate"], 1), rate_ratio=round(four["rate"] / one["rate"], 3),
    )  # fmt: skip
