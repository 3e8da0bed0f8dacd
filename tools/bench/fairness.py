"""`warren bench fairness`: what ten light queues feel of one heavy queue on their worker.

One client puts a message of 100 bytes into each of ten queues in turn, gets it and acks it, at a pace of its own; the
time of that round trip counts (durability `none`, so that the disk's syncs are not what is measured). Beside it:
nobody; a queue with bodies of 4000 or of 64 KB in batches; one with a long backlog that is drained; one whose consumer
never acks. Each load runs on the worker of the light queues and on another one: what the second column does not have
comes from sharing the worker, the rest from sharing the machine.
"""

from __future__ import annotations

import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warren
from warren.tools.bench.harness import (
    Result,
    TemporaryNode,
    cell,
    percentiles_us,
    run_clients,
    temporary_node,
    wait_for_go,
)

LIGHT_N = 10
PAUSE_S = 0.002
BACKLOG = 300_000
HELD_MAX = 3000  #: what a consumer that never acks takes
#: heavy producers: bytes of a body, messages in a call
BATCHES = {"4000 bytes": (4000, 500), "64 KB": (65536, 50), "never acks": (100, 1000)}
LOADS = ("nobody", *BATCHES, "backlog")


def _light(pipe: Connection, directory: str, seconds: float, queues: list[str]) -> None:
    with warren.attach(directory, name="bench-light") as node:
        opened = [node.queue(name) for name in queues]
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        latencies: list[int] = []
        while (now := time.monotonic_ns()) < end:
            queue = opened[len(latencies) % len(opened)]
            queue.put(b"x" * 100, durability="none", wait=False)
            queue.get(timeout=60).ack()
            latencies.append(time.monotonic_ns() - now)
            time.sleep(PAUSE_S)
        pipe.send({"start": begun, "end": end, "latencies": latencies})


def _heavy_producer(pipe: Connection, directory: str, queue: str, seconds: float, size: int, batch: int) -> None:
    with warren.attach(directory, name="bench-heavy-producer") as node:
        target = node.queue(queue)
        bodies = [b"\0" * size] * batch
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        under_way: deque[Any] = deque()
        messages = 0
        while time.monotonic_ns() < end:
            under_way.append(target.put_many(bodies, durability="written", wait=False))
            messages += batch
            if len(under_way) > 2:
                under_way.popleft().wait(60)
        for confirm in under_way:
            confirm.wait(60)
        pipe.send({"messages": messages})


def _heavy_consumer(pipe: Connection, directory: str, queue: str, seconds: float, acks: bool) -> None:
    with warren.attach(directory, name="bench-heavy-consumer") as node:
        source = node.queue(queue)
        begun = wait_for_go(pipe)
        end = begun + int(seconds * 1e9)
        messages = 0
        held: list[Any] = []
        while time.monotonic_ns() < end:
            if not acks and messages >= HELD_MAX:
                time.sleep(0.05)
                continue
            found = source.get_many(1000, timeout=0.05)
            messages += len(found)
            if found and acks:
                found[-1].ack(multiple=True)
            elif found:
                held = found
        if held:
            held[-1].ack(multiple=True)
        pipe.send({"messages": messages})


def _fill(node: Any, queue: str) -> None:
    target = node.queue(queue)
    for _turn in range(BACKLOG // 10_000):
        target.put_many([b"\0" * 100] * 10_000, durability="none")


def _names_on(temporary: TemporaryNode, prefix: str, worker: int, n: int) -> list[str]:
    """Make `n` queues on a worker; names that fall to another one are deleted again."""
    found: list[str] = []
    number = 0
    while len(found) < n:
        name = f"{prefix}-{number}"
        number += 1
        temporary.node.queue(name)
        (row,) = (item for item in temporary.node.status()["queues"] if item["name"] == name)
        if row["worker"] == worker:
            found.append(name)
        else:
            temporary.node.queue(f"{name}-ballast")  # so that the next one falls elsewhere
    return found


def run_fairness(folder: Path, seconds: float, load: str) -> Result:
    """Round trips of the light queues beside one load: on their worker (`latency_us`), on the other (`apart_us`)."""
    figures: dict[str, Any] = {}
    messages = heavy_messages = 0
    for where, worker in (("together", 0), ("apart", 1)):
        with temporary_node(folder, workers=2) as temporary:
            names = _names_on(temporary, "light", 0, LIGHT_N)
            (heavy,) = _names_on(temporary, "heavy", worker, 1)
            clients: list[tuple[Any, dict[str, Any]]] = [(_light, {"seconds": seconds, "queues": names})]
            beside = {"queue": heavy, "seconds": seconds}
            if load in BATCHES:
                size, batch = BATCHES[load]
                clients.append((_heavy_producer, {**beside, "size": size, "batch": batch}))
            if load == "backlog":
                _fill(temporary.node, heavy)
            if load != "nobody":
                clients.append((_heavy_consumer, {**beside, "acks": load != "never acks"}))
            results = run_clients(clients, temporary.directory, seconds)
            figures[where] = percentiles_us(results[0]["latencies"])
            if where == "together":
                messages = len(results[0]["latencies"])
                heavy_messages = results[-1].get("messages", 0)
    return cell(
        f"fairness: {load}", 100, "none", 1, LIGHT_N, messages, seconds, figures["together"],
        apart_us=figures["apart"], heavy_messages=heavy_messages,
    )  # fmt: skip
