"""`warren bench queue`: one producer and one consumer process for each queue, with acks; latency; restart; idle.

batch > 1: `put_many`, `get_many`, one `ack(multiple=True)` for each batch. batch 1: `put(wait=False)`, `get`, `ack` for
each message, confirms awaited in a window. The rate counts messages that were published, received and acked, from the
start until nothing is left. `queue-latency`: paced, from before `put` until `get` has returned, in another process,
and once more with `get` of warren.aio there. `call-latency`: one call after the other, until each has its answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import warren
import warren.aio
from warren import Durability
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

BATCHES_UNDER_WAY = 4
WINDOW = 4096
SAMPLE_EACH = 64
RATE_PER_S = 500
LAST = b"last message"
IDLE_S = 30.0


def _durable(durability: Durability) -> bool:
    return durability != "none"


def _body(size: int) -> bytes:
    return b"\0" * size if size < 8 else b"\0" * 8 + os.urandom(size - 8)


# -- throughput -------------------------------------------------------------------------------------------------------


def _producer(
    pipe: Connection, directory: str, queue: str, size: int, seconds: float, durability: Durability, batch: int
) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        target = node.queue(queue, durable=_durable(durability))
        start = wait_for_go(pipe)
        put = _put_batches if batch > 1 else _put_singles
        messages, latencies = put(target, _body(size), start + int(seconds * 1e9), durability, batch)
        end = time.monotonic_ns()
        target.put(LAST, durability=durability)
        pipe.send({"messages": messages, "start": start, "end": end, "latencies": latencies})


def _put_batches(
    queue: warren.Queue, body: bytes, end: int, durability: Durability, batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    bodies = [body] * batch
    return pipelined(lambda: (batch, queue.put_many(bodies, durability=durability, wait=False)), end, BATCHES_UNDER_WAY)


def _put_singles(
    queue: warren.Queue, body: bytes, end: int, durability: Durability, _batch: int
) -> tuple[int, np.ndarray[Any, Any]]:
    put = queue.put

    def some() -> tuple[int, Any]:
        for _ in range(SAMPLE_EACH - 1):
            put(body, durability, False)
        return SAMPLE_EACH, put(body, durability, False)

    return pipelined(some, end, WINDOW // SAMPLE_EACH)


def _consumer(pipe: Connection, directory: str, queue: str, durability: Durability, batch: int) -> None:
    with warren.attach(directory, name="bench-consumer") as node:
        source = node.queue(queue, durable=_durable(durability))
        start = wait_for_go(pipe)
        messages = _take_batches(source, batch) if batch > 1 else _take_singles(source)
        node.close()  # returns when the acks are applied
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns()})


def _take_batches(queue: warren.Queue, batch: int) -> int:
    messages = 0
    while True:
        taken = queue.get_many(batch, IDLE_S)
        if not taken:
            raise BenchError(f"the consumer got nothing for {IDLE_S:g} s after {messages:,} messages")
        last = taken[-1]
        last.ack(multiple=True)
        messages += len(taken)
        if last.body == LAST:
            return messages - 1


def _take_singles(queue: warren.Queue) -> int:
    messages = 0
    get = queue.get
    while True:
        message = get(IDLE_S)
        message.ack()
        if message.body == LAST:
            return messages
        messages += 1


def run_queue(folder: Path, size: int, seconds: float, durability: Durability, batch: int, clients: int) -> Result:
    """Throughput of publish → consume → ack; `clients` pairs of producer and consumer, each with a queue of its own."""
    with temporary_node(folder) as temporary:
        pairs: list[Any] = []
        for n in range(clients):
            name = f"bench-{n}"
            temporary.node.queue(name, durable=_durable(durability))
            common = {"queue": name, "durability": durability, "batch": batch}
            pairs += [(_producer, {**common, "size": size, "seconds": seconds}), (_consumer, common)]
        results = run_clients(pairs, temporary.directory, seconds)
    producers, consumers = results[::2], results[1::2]
    sent = sum(result["messages"] for result in producers)
    received = sum(result["messages"] for result in consumers)
    if sent != received:
        raise BenchError(f"{sent:,} messages were sent and {received:,} received")
    start = min(result["start"] for result in results)
    took = (max(result["end"] for result in consumers) - start) / 1e9
    publishing = (max(result["end"] for result in producers) - start) / 1e9
    latency = percentiles_us(np.concatenate([result["latencies"] for result in producers]))
    return cell(
        "queue", size, durability, batch, clients, received, took, latency,
        published_per_s=round(sent / publishing, 1) if publishing > 0 else 0.0,
    )  # fmt: skip


# -- latency ----------------------------------------------------------------------------------------------------------


def _paced_producer(pipe: Connection, directory: str, size: int, seconds: float, durability: Durability) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        target = node.queue("latency", durable=_durable(durability))
        rest = os.urandom(max(size - 8, 0))
        at = wait_for_go(pipe)
        start, messages = at, int(seconds * RATE_PER_S)
        step = int(1e9 / RATE_PER_S)
        for _ in range(messages):
            at += step
            left = at - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)
            target.put(struct.pack("<Q", time.monotonic_ns()) + rest, durability, False)
        end = time.monotonic_ns()
        target.put(LAST, durability=durability)
        pipe.send({"messages": messages, "start": start, "end": end})


def _timing_consumer(pipe: Connection, directory: str, durability: Durability) -> None:
    with warren.attach(directory, name="bench-consumer") as node:
        source = node.queue("latency", durable=_durable(durability))
        wait_for_go(pipe)
        latencies = []
        while True:
            message = source.get(IDLE_S)
            now = time.monotonic_ns()
            message.ack()
            if message.body == LAST:
                break
            latencies.append(now - struct.unpack_from("<Q", message.body)[0])
        pipe.send({"latencies": np.array(latencies, dtype=np.int64)})


def _timing_in_a_loop(pipe: Connection, directory: str, durability: Durability) -> None:
    asyncio.run(_timing(pipe, directory, durability))


async def _timing(pipe: Connection, directory: str, durability: Durability) -> None:
    async with await warren.aio.attach(directory, name="bench-consumer") as node:
        source = await node.queue("latency", durable=_durable(durability))
        await asyncio.to_thread(wait_for_go, pipe)
        latencies = []
        while True:
            message = await source.get(IDLE_S)
            now = time.monotonic_ns()
            await message.ack()
            if message.body == LAST:
                break
            latencies.append(now - struct.unpack_from("<Q", message.body)[0])
        pipe.send({"latencies": np.array(latencies, dtype=np.int64)})


def run_queue_latency(
    folder: Path, size: int, seconds: float, durability: Durability, in_a_loop: bool = False
) -> Result:
    """Latency put → get at 500 messages a second; the message is handed out before it is durable, as RabbitMQ does.
    `in_a_loop`: the consumer is one of warren.aio.
    """
    size = max(size, 8)
    with temporary_node(folder) as temporary:
        temporary.node.queue("latency", durable=_durable(durability))
        common = {"durability": durability}
        clients: list[Any] = [
            (_paced_producer, {**common, "size": size, "seconds": seconds}),
            (_timing_in_a_loop if in_a_loop else _timing_consumer, common),
        ]
        sent, received = run_clients(clients, temporary.directory, seconds)
    took = (sent["end"] - sent["start"]) / 1e9
    latency = percentiles_us(received["latencies"])
    name = "queue-latency-aio" if in_a_loop else "queue-latency"
    return cell(name, size, durability, 1, 1, sent["messages"], took, latency, rate_per_s=RATE_PER_S)


def run_queue_latency_aio(folder: Path, size: int, seconds: float, durability: Durability) -> Result:
    """The same, received in an event loop."""
    return run_queue_latency(folder, size, seconds, durability, in_a_loop=True)


def _caller(pipe: Connection, directory: str, size: int, seconds: float) -> None:
    with warren.attach(directory, name="bench-caller") as node:
        body = os.urandom(size)
        wait_for_go(pipe)
        start = time.monotonic_ns()
        latencies, before = [], start
        while before - start < seconds * 1e9:
            node.call("latency", body, IDLE_S)
            now = time.monotonic_ns()
            latencies.append(now - before)
            before = now
        pipe.send({"messages": len(latencies), "took": (before - start) / 1e9, "latencies": np.array(latencies)})
        node.call("latency", LAST, IDLE_S)


def _called(pipe: Connection, directory: str) -> None:
    with warren.attach(directory, name="bench-called") as node:

        def answer(message: warren.Message) -> bytes:
            if message.body == LAST:
                server.stop()
            return message.body

        server = node.serve("latency", answer)
        wait_for_go(pipe)
        server.run()
        pipe.send({})


def run_call_latency(folder: Path, size: int, seconds: float) -> Result:
    """One call after the other, with its answer: a round trip through two processes."""
    with temporary_node(folder) as temporary:
        temporary.node.queue("latency")
        clients: list[Any] = [(_caller, {"size": size, "seconds": seconds}), (_called, {})]
        asked, _nothing = run_clients(clients, temporary.directory, seconds)
    latency = percentiles_us(asked["latencies"])
    return cell("call-latency", size, "none", 1, 1, asked["messages"], asked["took"], latency)


# -- restart ----------------------------------------------------------------------------------------------------------


def _filler(pipe: Connection, directory: str, size: int, messages: int, queues: list[str]) -> None:
    with warren.attach(directory, name="bench-producer") as node:
        targets = [node.queue(name) for name in queues]
        body = _body(size)
        start = wait_for_go(pipe)
        step = max(1, min(10_000, messages // len(queues)))
        for n, done in enumerate(range(0, messages, step)):
            targets[n % len(targets)].put_many([body] * min(step, messages - done))
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns()})


def _first_message_s(queue: warren.Queue, since: int) -> float:
    message = queue.get(60.0)
    took = (time.monotonic_ns() - since) / 1e9
    message.nack()
    queue.release()
    return took


def run_restart(folder: Path, size: int, messages: int, queues_n: int = 1) -> Result:
    """kill -9 with a backlog: of one worker, of the store, of everything; the time until the first message is there."""
    names = ["backlog", *(f"backlog-{n}" for n in range(1, queues_n))]
    with temporary_node(folder) as temporary:
        for name in names:
            temporary.node.queue(name)
        (filled,) = run_clients(
            [(_filler, {"size": size, "messages": messages, "queues": names})],
            temporary.directory,
            messages / 10_000,
        )
        one: dict[str, float] = {}
        for role in ("queue_worker", "store"):
            for found, process in temporary.processes():
                if found == role:
                    process.send_signal(signal.SIGKILL)
            since = time.monotonic_ns()
            if role == "store":  # a backlog of small bodies does not need it: ask it for a write
                store = temporary.node.store()
                store.write(store.new_id(), b"first", timeout=60.0)
                one[role] = (time.monotonic_ns() - since) / 1e9
            else:
                one[role] = _first_message_s(temporary.node.queue("backlog"), since)
        pss = sum(process.memory_full_info().pss for _, process in temporary.processes())
        temporary.kill()
        temporary.node.close()
        since = time.monotonic_ns()
        temporary.node = warren.open(temporary.directory, name="bench", idle_exit=60.0)
        opened = (time.monotonic_ns() - since) / 1e9
        queue = temporary.node.queue("backlog")
        first = _first_message_s(queue, since)
        left = 0
        for name in names:
            stats = temporary.node.queue(name).stats()
            left += stats["ready"] + stats["unacked"]
        temporary.processes()
        if left != messages:
            raise BenchError(f"{messages:,} messages were confirmed, and {left:,} are there after the restart")
        return cell(
            "restart", size, "synced", 10_000, 1, messages, first, None, queues=queues_n,
            first_message_s=round(first, 4), open_s=round(opened, 4),
            worker_first_message_s=round(one["queue_worker"], 4), store_first_write_s=round(one["store"], 4),
            filled_per_s=round(messages / ((filled["end"] - filled["start"]) / 1e9), 1), pss_bytes=pss,
        )  # fmt: skip


# -- backlog ----------------------------------------------------------------------------------------------------------

BACKLOG_STEPS = 100
BACKLOG_SEEN = 1_000_000  #: publishing into a backlog is compared from here on


def _backlog_step(messages: int) -> int:
    return max(1000, messages // BACKLOG_STEPS // 1000 * 1000)


def _backlog_producer(pipe: Connection, directory: str, size: int, messages: int) -> None:
    """Fill the queue; when each step of it was confirmed."""
    with warren.attach(directory, name="bench-producer") as node:
        target = node.queue("backlog")
        bodies = [_body(size)] * 1000
        step = _backlog_step(messages)
        start = wait_for_go(pipe)
        under_way: deque[Any] = deque()
        at = []
        for done in range(0, messages, 1000):
            under_way.append(target.put_many(bodies[: messages - done], wait=False))
            if len(under_way) > BATCHES_UNDER_WAY:
                under_way.popleft().wait()
            if done % step == 0:
                at.append(time.monotonic_ns())
        for confirm in under_way:
            confirm.wait()
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns(), "at": at})


def _backlog_consumer(pipe: Connection, directory: str, messages: int) -> None:
    with warren.attach(directory, name="bench-consumer") as node:
        source = node.queue("backlog")
        start = wait_for_go(pipe)
        taken = 0
        while taken < messages:
            batch = source.get_many(1000, IDLE_S)
            if not batch:
                raise BenchError(f"the consumer got nothing for {IDLE_S:g} s after {taken:,} of {messages:,} messages")
            batch[-1].ack(multiple=True)
            taken += len(batch)
        node.close()
        pipe.send({"messages": taken, "start": start, "end": time.monotonic_ns()})


def _worker_pss(temporary: TemporaryNode) -> int:
    return sum(process.memory_full_info().pss for role, process in temporary.processes() if role == "queue_worker")


def run_backlog(folder: Path, size: int, messages: int, seconds: float) -> Result:
    """A queue that only grows, then only shrinks: both speeds beside an empty queue's flow, and the workers' memory."""
    flow = run_queue(folder, size, seconds, "synced", 1000, 1)
    with temporary_node(folder) as temporary:
        temporary.node.queue("backlog")
        idle = _worker_pss(temporary)
        (filled,) = run_clients(
            [(_backlog_producer, {"size": size, "messages": messages})], temporary.directory, messages / 10_000
        )
        top = _worker_pss(temporary)
        time.sleep(1.0)  # what the last message left to do
        rested = _worker_pss(temporary)
        stats = temporary.node.queue("backlog").stats()
        (drained,) = run_clients([(_backlog_consumer, {"messages": messages})], temporary.directory, messages / 10_000)
        after = _worker_pss(temporary)
        left = temporary.node.queue("backlog").stats()
        if left["ready"] + left["unacked"]:
            raise BenchError(f"{left['ready']:,} messages are left after as many were taken as were published")
    at = np.array([*filled["at"], filled["end"]], dtype=np.int64)
    step = _backlog_step(messages)
    steps = np.minimum(np.arange(len(at)) * step, messages)
    first = max(1, len(at) // 20)
    into = min(BACKLOG_SEEN // step, len(at) // 2)
    empty_rate = steps[first] / max(1, at[first] - filled["start"]) * 1e9
    into_rate = (steps[-1] - steps[into]) / max(1, at[-1] - at[into]) * 1e9
    drain_s = (drained["end"] - drained["start"]) / 1e9
    return cell(
        "backlog", size, "synced", 1000, 1, messages, drain_s, None,
        flow_per_s=flow["messages_per_s"], drain_per_s=round(messages / drain_s, 1),
        filled_per_s=round(messages / ((filled["end"] - filled["start"]) / 1e9), 1),
        empty_per_s=round(float(empty_rate), 1), into_backlog_per_s=round(float(into_rate), 1),
        idle_pss_bytes=idle, top_pss_bytes=max(top, rested), after_pss_bytes=after,
        states={key: stats[key] for key in ("alpha", "beta", "gamma", "delta")},
    )  # fmt: skip


# -- idle -------------------------------------------------------------------------------------------------------------


def _cpu_s(processes: list[tuple[str, psutil.Process]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for role, process in processes:
        times = process.cpu_times()
        total[role] = total.get(role, 0.0) + times.user + times.system
    return total


def run_idle(folder: Path, seconds: float) -> Result:
    """Share of a core and memory of a node that nobody uses."""
    with temporary_node(folder) as temporary:
        temporary.node.queue("idle").put(b"once")
        time.sleep(1.0)  # what the start has left to do is not idling
        processes = temporary.processes()
        before, began = _cpu_s(processes), time.monotonic()
        time.sleep(seconds)
        after, took = _cpu_s(processes), time.monotonic() - began
        memory = [process.memory_full_info() for _, process in processes]
    shares = {role: round((after[role] - before[role]) / took, 5) for role in after}
    return cell(
        "idle", 0, "none", 0, 0, 0, took, None,
        cpu_share=round(sum(shares.values()), 5), cpu_share_by_role=shares, processes=len(memory),
        rss_bytes=sum(info.rss for info in memory), pss_bytes=sum(info.pss for info in memory),
    )  # fmt: skip
