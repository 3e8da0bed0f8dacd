"""`warren bench topic`: appending to topics, and what others feel of it.

topic: batch > 1: `append_many`, some batches under way at once; batch 1: `append(wait=False)`, confirms awaited in a
window. With several producers, one alone has its turn before (`to_one`). The limit is the raw log of limits.c, whose
records are as large as what the topic has really written for a message: with its head, and its part of the commit's.
topic-latency: from before `append` until `read` has returned in another process, at the pace of `queue-latency`, which
has its turn before (`to_queue`). A queue hands a message out before it is durable, a topic does not.
topic-beside: a producer alone, and with four processes that read everything from the end on (`beside_to_alone`), by
rate, and by the processor time that producer and topic worker take for a message: readers use the same cores.
topic-many: batches to many topics in turn, and to one (`to_one`); then everything is killed and opened again.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import warren
from warren import Durability
from warren.tools.bench import limits
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
from warren.tools.bench.queue import RATE_PER_S, run_queue_latency

TOPIC = "bench"
QUEUES = 4
READERS = 4
BATCHES_UNDER_WAY = 12
WINDOW = 4096
SAMPLE_EACH = 64
#: bytes of bodies in a call at most: a quarter of an arena
BATCH_BYTES = 1 << 20
RAW_SECONDS = 4.0
IDLE_S = 30.0
SETTLE_S = 0.3
LAST = b"last message"

Tell = Callable[[str], None]


def batch_of(batch: int, size: int) -> int:
    """Messages in a call: no more than fit into it."""
    return max(1, min(batch, BATCH_BYTES // max(size, 1)))


# -- throughput -------------------------------------------------------------------------------------------------------


def _producer(
    pipe: Connection,
    directory: str,
    topics: Sequence[str],
    size: int,
    seconds: float,
    durability: Durability,
    batch: int,
) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        found = [node.topic(name, queues=QUEUES) for name in topics]
        body = os.urandom(size)
        # touch what is touched once, of each topic's queues
        touched = [topic.append(body, queue=queue, wait=False) for topic in found for queue in range(QUEUES)]
        touched[-1].wait()
        found[-1].offsets(QUEUES - 1)  # returns when all of it is shown
        found[0].append_many([body] * 64)
        start = wait_for_go(pipe)
        used = time.process_time()
        append = _append_batches if batch > 1 else _append_singles
        messages, latencies = append(found, body, start + int(seconds * 1e9), durability, batch)
        end = time.monotonic_ns()
        cpu = time.process_time() - used
        pipe.send({"messages": messages, "start": start, "end": end, "latencies": latencies, "cpu_s": cpu})


def _append_batches(
    topics: Sequence[warren.Topic], body: bytes, end: int, durability: Durability, batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    bodies = [body] * batch
    turn = 0

    def some() -> tuple[int, Any]:
        nonlocal turn
        turn = (turn + 1) % len(topics)
        return batch, topics[turn].append_many(bodies, durability=durability, wait=False)

    return pipelined(some, end, BATCHES_UNDER_WAY)


def _append_singles(
    topics: Sequence[warren.Topic], body: bytes, end: int, durability: Durability, _batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    append = topics[0].append

    def some() -> tuple[int, Any]:
        for _ in range(SAMPLE_EACH - 1):
            append(body, durability=durability, wait=False)
        return SAMPLE_EACH, append(body, durability=durability, wait=False)

    return pipelined(some, end, WINDOW // SAMPLE_EACH)


def _worker_cpu_s(temporary: TemporaryNode) -> float:
    times = [process.cpu_times() for role, process in temporary.processes() if role == "topic_worker"]
    return sum(each.user + each.system for each in times)


def _appended(
    temporary: TemporaryNode,
    topics: Sequence[str],
    load: dict[str, Any],
    producers: int,
    readers: Sequence[tuple[Callable[..., None], dict[str, Any]]] = (),
) -> Result:
    """What all producers did together, and what it came to in the log."""
    first = temporary.node.topic(topics[0], queues=QUEUES)
    before = first.append(b"").physical_offset
    used = _worker_cpu_s(temporary)
    results = run_clients(
        [(_producer, {"topics": topics, **load})] * producers + list(readers), temporary.directory, load["seconds"]
    )[:producers]
    worker = _worker_cpu_s(temporary) - used
    written = first.append(b"").physical_offset - before
    messages = sum(result["messages"] for result in results)
    took = (max(result["end"] for result in results) - min(result["start"] for result in results)) / 1e9
    latencies = np.concatenate([result["latencies"] for result in results])
    cpu = {"producer": sum(result["cpu_s"] for result in results), "topic worker": worker}
    return {
        "messages": messages,
        "took": took,
        "rate": messages / took,
        "latency_us": percentiles_us(latencies),
        "log_bytes": written / messages,
        "cpu_ns": {role: round(s / messages * 1e9, 1) for role, s in cpu.items()},
    }


def _load(size: int, seconds: float, durability: Durability, batch: int) -> dict[str, Any]:
    return {"size": size, "seconds": seconds, "durability": durability, "batch": batch}


def run_topic(
    folder: Path, size: int, seconds: float, durability: Durability, batch: int, clients: int, raw: bool
) -> Result:
    """Throughput of appends: messages confirmed per second, latency of a confirm."""
    load = _load(size, seconds, durability, batch_of(batch, size))
    with temporary_node(folder) as temporary:
        one = _appended(temporary, [TOPIC], load, 1) if clients > 1 else None
        found = _appended(temporary, [TOPIC], load, clients)
    return _cell(
        "topic", load, clients, found, _raw(folder, found["log_bytes"], seconds, durability) if raw else None,
        **({} if one is None else to_one(found, one)),
    )  # fmt: skip


def _raw(folder: Path, log_bytes: float, seconds: float, durability: Durability) -> dict[str, Any]:
    """The raw log with records of so many bytes."""
    length = max(1, round(log_bytes))
    found = limits.measure_append(folder, length, min(seconds, RAW_SECONDS))
    more = "" if durability == "synced" else " (which is more than was asked for)"
    name = f"raw append + fdatasync per MiB, {length} bytes, as the topic's log has for a message{more}"
    return {"name": name, "messages_per_s": found["messages_per_s"], "bytes_per_s": found["bytes_per_s"]}


def to_one(found: Result, one: Result) -> dict[str, Any]:
    """The rate of several, or of many, beside that of one."""
    return {"to_one": round(found["rate"] / one["rate"], 3), "messages_per_s_of_one": round(one["rate"], 1)}


def _cell(
    workload: str, load: dict[str, Any], clients: int, found: Result, limit: dict[str, Any] | None, **more: Any
) -> Result:
    made = cell(
        workload, load["size"], load["durability"], load["batch"], clients, found["messages"], found["took"],
        found["latency_us"], log_bytes_per_message=round(found["log_bytes"], 1), cpu_ns_by_role=found["cpu_ns"], **more,
    )  # fmt: skip
    if limit is not None:
        made["limit"] = limit
        made["ratio_to_limit"] = round(found["rate"] / limit["messages_per_s"], 4)
    return made


# -- latency ----------------------------------------------------------------------------------------------------------


def _paced_producer(pipe: Connection, directory: str, size: int, seconds: float, durability: Durability) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        target = node.topic(TOPIC, queues=QUEUES)
        rest = os.urandom(size - 8)
        at = wait_for_go(pipe)
        start, messages = at, int(seconds * RATE_PER_S)
        step = int(1e9 / RATE_PER_S)
        for _ in range(messages):
            at += step
            left = at - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)
            target.append(struct.pack("<Q", time.monotonic_ns()) + rest, queue=0, durability=durability, wait=False)
        end = time.monotonic_ns()
        target.append(LAST, queue=0, durability=durability)
        pipe.send({"messages": messages, "start": start, "end": end})


def _timing_reader(pipe: Connection, directory: str) -> None:
    with warren.attach(directory, name="bench-reader") as node:
        source = node.topic(TOPIC, queues=QUEUES)
        at = source.offsets(0)[1]
        wait_for_go(pipe)
        latencies: list[int] = []
        last = False
        while not last:
            found = source.read(0, at, timeout=IDLE_S)
            now = time.monotonic_ns()
            if not found.records:
                raise BenchError(f"the reader got nothing for {IDLE_S:g} s after {len(latencies):,} messages")
            bodies = [record.body for record in found.records]
            last = bodies[-1] == LAST
            latencies += [now - struct.unpack_from("<Q", body)[0] for body in bodies[: -1 if last else None]]
            at = found.next_offset
        pipe.send({"latencies": np.array(latencies, dtype=np.int64)})


def run_topic_latency(folder: Path, size: int, seconds: float, durability: Durability) -> Result:
    """Latency append → receive at 500 messages a second, beside that of a queue."""
    size = max(size, 8)
    queue = run_queue_latency(folder, size, seconds, durability)["latency_us"]
    with temporary_node(folder) as temporary:
        temporary.node.topic(TOPIC, queues=QUEUES).append(b"", queue=0)
        clients: list[Any] = [
            (_paced_producer, {"size": size, "seconds": seconds, "durability": durability}),
            (_timing_reader, {}),
        ]
        sent, received = run_clients(clients, temporary.directory, seconds)
    if len(received["latencies"]) != sent["messages"]:
        raise BenchError(f"{sent['messages']:,} messages were appended and {len(received['latencies']):,} received")
    latency = percentiles_us(received["latencies"])
    ratio = round(latency["p50"] / queue["p50"], 3) if latency and queue else None
    took = (sent["end"] - sent["start"]) / 1e9
    return cell(
        "topic-latency", size, durability, 1, 1, sent["messages"], took, latency, rate_per_s=RATE_PER_S,
        queue_latency_us=queue, to_queue=ratio,
    )  # fmt: skip


# -- beside readers ---------------------------------------------------------------------------------------------------


def _following(pipe: Connection, directory: str, seconds: float, batch: int) -> None:
    """Read all queues from their end on, while the producer appends."""
    with warren.attach(directory, name="bench-reader") as node:
        topic = node.topic(TOPIC, queues=QUEUES)
        at = [topic.offsets(queue)[1] for queue in range(QUEUES)]
        end = wait_for_go(pipe) + int(seconds * 1e9)
        messages = 0
        while time.monotonic_ns() < end:
            before = messages
            for queue in range(QUEUES):
                found = topic.read(queue, at[queue], max=max(batch, 32), max_bytes=BATCH_BYTES)
                messages += len(found.records)
                at[queue] = found.next_offset
            if messages == before:
                time.sleep(0.001)
        pipe.send({"messages": messages})


def run_topic_beside(folder: Path, size: int, seconds: float, durability: Durability, batch: int) -> Result:
    """A producer with readers that follow it; the cell is that of the producer, with its ratios to one alone."""
    load = _load(size, seconds, durability, batch_of(batch, size))
    following = [(_following, {"seconds": seconds, "batch": load["batch"]})] * READERS
    with temporary_node(folder) as temporary:
        alone = _appended(temporary, [TOPIC], load, 1)
        found = _appended(temporary, [TOPIC], load, 1, following)
    return _cell(
        "topic-beside", load, 1, found, None, readers=READERS, messages_per_s_alone=round(alone["rate"], 1),
        beside_to_alone=round(found["rate"] / alone["rate"], 3),
        cpu_to_alone=round(sum(found["cpu_ns"].values()) / sum(alone["cpu_ns"].values()), 3),
    )  # fmt: skip


# -- many topics ------------------------------------------------------------------------------------------------------


def run_topic_many(
    folder: Path, size: int, seconds: float, durability: Durability, batch: int, topics_n: int, tell: Tell
) -> Result:
    """Appends to many topics, beside appends to one; then the time until all are there again after kill -9 of all."""
    load = _load(size, seconds, durability, batch_of(batch, size))
    with temporary_node(folder) as temporary:
        one = _appended(temporary, [TOPIC], load, 1)
    with temporary_node(folder) as temporary:
        names = [f"{TOPIC}-{number}" for number in range(topics_n)]
        began = time.monotonic()
        for number, name in enumerate(names):
            temporary.node.topic(name, queues=QUEUES)
            tell(f"{number + 1:,} of {topics_n:,} topics declared")
        declared = time.monotonic() - began
        tell("appending to all of them in turn")
        found = _appended(temporary, names, load, 1)
        time.sleep(SETTLE_S)
        temporary.kill()
        temporary.node.close()
        began = time.monotonic()
        temporary.node = warren.open(temporary.directory, name="bench", idle_exit=60.0)
        opened = time.monotonic() - began
        temporary.node.topic(names[-1]).append(b"")
        first = time.monotonic() - began
        temporary.processes()
    return _cell(
        "topic-many", load, 1, found, None, topics=topics_n, queues=QUEUES, declare_s=round(declared, 4),
        open_s=round(opened, 4), first_append_s=round(first, 4), **to_one(found, one),
    )  # fmt: skip


# -- for people -------------------------------------------------------------------------------------------------------


def sentences(run: Result) -> list[str]:
    """What no table has."""
    said = []
    if run.get("cpu_ns_by_role"):
        roles = ", ".join(f"{role} {ns:.0f} ns" for role, ns in run["cpu_ns_by_role"].items())
        said.append(f"{run['log_bytes_per_message']:,.0f} bytes of log and {roles} of processor a message")
    if run["workload"] == "topic-many":
        said.append(
            f"{run['topics']:,} topics of {run['queues']} queues: {run['to_one']:.2f} × the rate of one topic; "
            f"declared in {run['declare_s']:.2f} s; after kill -9 of all open in {run['open_s']:.3f} s, "
            f"first append confirmed after {run['first_append_s']:.3f} s"
        )
    elif "to_one" in run:
        said.append(f"{run['clients']} together: {run['to_one']:.2f} × one alone")
    elif run["workload"] == "topic-beside":
        said.append(
            f"with {run['readers']} readers: {run['beside_to_alone']:.2f} × the rate alone, and "
            f"{run['cpu_to_alone']:.2f} × the processor time of producer and topic worker"
        )
    elif run["workload"] == "topic-latency" and run["to_queue"]:
        said.append(f"p50 is {run['to_queue']:.2f} × that of a queue ({run['queue_latency_us']['p50']:.0f} µs)")
    elif run["workload"] == "topic-find":
        said.append(f"among {run['stored']:,} messages, which were appended at {run['filled_per_s'] / 1e3:,.0f} k/s")
    return [f"{run['workload']}, {run['size_bytes']} bytes: {text}" for text in said]
