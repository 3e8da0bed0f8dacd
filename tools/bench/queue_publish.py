"""`warren bench queue-publish` and `queue-fanout`: Warren beside LMDB and beside a raw log, turn by turn in one run.

queue-publish: producers fill one queue that nobody consumes, in batches, each confirmed; the raw log (limits.c) and
LMDB with batches of 5,000 do the same with bodies of the same size. queue-fanout: one producer publishes to a fanout
exchange with four queues, each with a consumer in a process of its own that acks; LMDB has four cursors. Nothing of one
side runs while another is measured.

A shared machine is noisy: the sides take turns, `--repeat` rounds of them, each shows its median, and the ratios are
those of medians. The processor time of a message, of all processes of a side together, varies far less than the rates.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warren
from warren import Durability
from warren.tools.bench import limits, lmdb_peer
from warren.tools.bench.harness import (
    BenchError,
    Result,
    TemporaryNode,
    cell,
    percentiles_us,
    pipelined,
    run_clients,
    temporary_node,
    wait_for_go,
)

BATCHES_UNDER_WAY = 8  #: what a ring of 8192 commands holds
#: published before the start: images get their memory when they are used first, and a worker loads numpy once
WARM_BYTES = 48 << 20
FRAME_BYTES = 70
QUEUES = 4
EXCHANGE = "fanout"
IDLE_S = 30.0
LAST = b"last message"
Sides = dict[str, list[Result]]


def _producer(
    pipe: Connection, directory: str, size: int, seconds: float, durability: Durability, batch: int, fanout: bool
) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        bodies = [os.urandom(size)] * batch
        queue = None if fanout else node.queue("publish", durable=durability != "none")

        def some() -> tuple[int, Any]:
            if queue is not None:
                return batch, queue.put_many(bodies, durability=durability, wait=False)
            return batch, node.publish_many(bodies, EXCHANGE, durability=durability, wait=False)

        warm, confirm = some()
        while warm < WARM_BYTES // (size + FRAME_BYTES):
            confirm = some()[1]
            warm += batch
        confirm.wait()
        if fanout:
            node.publish(b"", EXCHANGE)
        start = wait_for_go(pipe)
        cpu = time.process_time()
        messages, latencies = pipelined(some, start + int(seconds * 1e9), BATCHES_UNDER_WAY)
        end = time.monotonic_ns()
        used = time.process_time() - cpu
        if fanout:
            node.publish(LAST, EXCHANGE, durability=durability)
        pipe.send(
            {"messages": messages, "start": start, "end": end, "cpu_s": used, "latencies": latencies, "warm": warm}
        )


def _consumer(pipe: Connection, directory: str, name: str, durability: Durability, batch: int) -> None:
    with warren.attach(directory, name="bench-consumer") as node:
        source = node.queue(name, durable=durability != "none")
        taken = 0
        while warm := source.get_many(batch, IDLE_S):  # until the empty one that is the last before the start
            warm[-1].ack(multiple=True)
            if not warm[-1].body:
                break
        start = wait_for_go(pipe)
        cpu = time.process_time()
        while True:
            messages = source.get_many(batch, IDLE_S)
            if not messages:
                raise BenchError(f"the consumer of {name} got nothing for {IDLE_S:g} s after {taken:,} messages")
            last = messages[-1].body
            messages[-1].ack(multiple=True)
            taken += len(messages)
            if last == LAST:
                break
        node.close()  # returns when the acks are applied
        pipe.send(
            {"messages": taken - 1, "start": start, "end": time.monotonic_ns(), "cpu_s": time.process_time() - cpu}
        )


def _node_cpu_s(temporary: TemporaryNode) -> dict[str, float]:
    used: dict[str, float] = {}
    for role, process in temporary.processes():
        times = process.cpu_times()
        used[role] = used.get(role, 0.0) + times.user + times.system
    return used


def _measured(temporary: TemporaryNode, clients: list[Any], seconds: float) -> tuple[list[Result], dict[str, float]]:
    before: dict[str, float] = {}
    results = run_clients(clients, temporary.directory, seconds, lambda: before.update(_node_cpu_s(temporary)))
    after = _node_cpu_s(temporary)
    return results, {role: after[role] - before.get(role, 0.0) for role in after}


def _published(folder: Path, size: int, seconds: float, durability: Durability, batch: int, clients: int) -> Result:
    with temporary_node(folder) as temporary:
        queue = temporary.node.queue("publish", durable=durability != "none")
        load = {"size": size, "seconds": seconds, "durability": durability, "batch": batch, "fanout": False}
        results, node = _measured(temporary, [(_producer, load)] * clients, seconds)
        messages = sum(result["messages"] for result in results)
        there = queue.stats()["ready"]
        confirmed = messages + sum(result["warm"] for result in results)
        if there != confirmed:
            raise BenchError(f"{confirmed:,} messages were confirmed, and {there:,} are there")
    return _side(messages, results, results, node)


def _fanned_out(folder: Path, size: int, seconds: float, durability: Durability, batch: int) -> Result:
    with temporary_node(folder) as temporary:
        temporary.node.declare_exchange(EXCHANGE, type="fanout")
        names = [f"fanout-{n}" for n in range(QUEUES)]
        for name in names:
            temporary.node.queue(name, durable=durability != "none").bind(EXCHANGE)
        load = {"size": size, "seconds": seconds, "durability": durability, "batch": batch, "fanout": True}
        clients: list[Any] = [(_producer, load)]
        clients += [(_consumer, {"name": name, "durability": durability, "batch": batch}) for name in names]
        results, node = _measured(temporary, clients, seconds)
    sent, received = results[0], results[1:]
    if any(result["messages"] != sent["messages"] for result in received):
        raise BenchError(f"{sent['messages']:,} messages were published, and {[r['messages'] for r in received]} came")
    return _side(sum(result["messages"] for result in received), [sent], results, node)


def _side(messages: int, producers: list[Result], results: list[Result], node: dict[str, float]) -> Result:
    start = min(result["start"] for result in results)
    took = (max(result["end"] for result in results) - start) / 1e9
    cpu = {"producers": sum(result["cpu_s"] for result in producers)}
    if len(results) > len(producers):
        cpu["consumers"] = sum(result["cpu_s"] for result in results) - cpu["producers"]
    cpu |= node
    return {
        "messages": messages, "took": took, "rate": messages / took, "cpu_s": sum(cpu.values()),
        "cpu_by_role": cpu, "latencies": [ns for result in producers for ns in result["latencies"]],
    }  # fmt: skip


def _raw(folder: Path, size: int, seconds: float) -> Result:
    found = limits.measure_append(folder, size, seconds)
    return {
        "messages": found["messages"],
        "took": found["seconds"],
        "rate": found["messages_per_s"],
        "cpu_s": found["cpu_s"],
    }


def _in_turn(sides: dict[str, Callable[[], Result]], repeat: int) -> Sides:
    runs: Sides = {name: [] for name in sides}
    for _ in range(repeat):
        for name, run in sides.items():
            runs[name].append(run())
    return runs


def _median(runs: list[Result], what: str) -> float:
    return float(statistics.median(run[what] for run in runs))


def _cell(
    workload: str, size: int, durability: Durability, batch: int, clients: int, runs: Sides, **more: Any
) -> Result:
    own = sorted(runs["warren"], key=lambda run: run["rate"])[len(runs["warren"]) // 2]

    def ns_each(run: Result) -> float:
        return float(run["cpu_s"] / run["messages"] * 1e9)

    return {
        **cell(
            workload, size, durability, batch, clients, own["messages"], own["took"], percentiles_us(own["latencies"])
        ),
        "sides": {
            name: {
                "messages_per_s": round(_median(of, "rate"), 1),
                "runs": [round(run["rate"], 1) for run in of],
                "cpu_ns_per_message": round(statistics.median(map(ns_each, of)), 1),
                "warren_to_it": round(_median(runs["warren"], "rate") / _median(of, "rate"), 3),
            }
            for name, of in runs.items()
        },
        "cpu_ns_by_role": {role: round(s / own["messages"] * 1e9, 1) for role, s in own["cpu_by_role"].items()},
        **more,
    }


def run_queue_publish(
    folder: Path, size: int, seconds: float, durability: Durability, batch: int, clients: int, repeat: int, raw: bool
) -> Result:
    """Publishing without a consumer: Warren, LMDB, and with `raw` the log in C, in turn."""
    sides = {"warren": lambda: _published(folder, size, seconds, durability, batch, clients)}
    if lmdb_peer.installed():
        sides["lmdb"] = lambda: lmdb_peer.run_publish(folder, size, seconds, clients)
    if raw:
        sides["raw log"] = lambda: _raw(folder, size, seconds)
    return _cell("queue-publish", size, durability, batch, clients, _in_turn(sides, repeat))


def run_queue_fanout(
    folder: Path, size: int, seconds: float, durability: Durability, batch: int, repeat: int
) -> Result:
    """One message to four queues with a consumer each, beside LMDB with four cursors; the rates are of deliveries."""
    sides = {"warren": lambda: _fanned_out(folder, size, seconds, durability, batch)}
    if lmdb_peer.installed():
        sides["lmdb"] = lambda: lmdb_peer.run_fanout(folder, size, seconds, QUEUES)
    return _cell("queue-fanout", size, durability, batch, 1, _in_turn(sides, repeat), queues=QUEUES)


def sentences(run: Result) -> list[str]:
    """What the sides did, for people."""
    said = []
    for name, side in run["sides"].items():
        ns = side["cpu_ns_per_message"]
        text = f"{name}: {side['messages_per_s'] / 1e6:.2f} M/s, {ns:.0f} ns of processor a message"
        said.append(text if name == "warren" else f"{text}; Warren does {side['warren_to_it']:.2f} of it")
    roles = ", ".join(f"{role} {ns:.0f} ns" for role, ns in run["cpu_ns_by_role"].items())
    said.append(f"Warren's processor time a message: {roles}")
    if not lmdb_peer.installed():
        said.append(lmdb_peer.MISSING)
    return [f"{run['workload']}, {run['size_bytes']} bytes, {run['clients']} producer(s)", *said]
