"""Clients of `warren bench amqp` as programs write them: pika, py-amqp and, on Node, amqplib."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from warren.tools.bench.harness import BenchError, wait_for_go

HOST = "127.0.0.1"
NODE_SCRIPT = Path(__file__).with_name("amqp_node.js")
PREFETCH = 500


def missing(library: str) -> str:
    """Why this library cannot be used here; empty when it can."""
    import importlib.util

    if library == "amqplib":
        modules = Path(sys.prefix) / "node_modules/amqplib"
        return "" if shutil.which("node") and modules.exists() else "there is no node, or no amqplib: see scripts/setup"
    package = {"py-amqp": "amqp"}.get(library, library)
    return "" if importlib.util.find_spec(package) else f"pip install {package}"


def pika_publisher(pipe: Connection, _directory: str, port: int, queue: str, size: int, seconds: float) -> None:
    """Persistent messages, then one round trip: all of them are taken."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    properties = pika.BasicProperties(delivery_mode=2)
    body = b"x" * size
    start = wait_for_go(pipe)
    cpu = time.process_time()
    end = start + int(seconds * 1e9)
    count = 0
    while time.monotonic_ns() < end:
        for _ in range(100):
            channel.basic_publish("", queue, body, properties)
        count += 100
    channel.queue_declare(queue, passive=True)
    used = time.process_time() - cpu
    pipe.send({"messages": count, "start": start, "end": time.monotonic_ns(), "cpu_s": used})
    connection.close()


def pika_consumer(pipe: Connection, _directory: str, port: int, queue: str, count: int) -> None:
    """Consume so many messages, ack each."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    start = wait_for_go(pipe)
    cpu = time.process_time()
    for taken, (method, _properties, _body) in enumerate(channel.consume(queue), 1):
        channel.basic_ack(method.delivery_tag)
        if taken == count:
            break
    channel.queue_declare(queue, passive=True)
    used = time.process_time() - cpu
    pipe.send({"messages": count, "start": start, "end": time.monotonic_ns(), "cpu_s": used})
    connection.close()


def py_amqp_publisher(pipe: Connection, _directory: str, port: int, queue: str, size: int, seconds: float) -> None:
    """Persistent messages, then one round trip: all of them are taken."""
    import amqp

    connection = amqp.Connection(f"{HOST}:{port}", userid="guest", password="guest")
    connection.connect()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, auto_delete=False)
    body = b"x" * size
    start = wait_for_go(pipe)
    cpu = time.process_time()
    end = start + int(seconds * 1e9)
    count = 0
    while time.monotonic_ns() < end:
        for _ in range(100):
            channel.basic_publish(amqp.Message(body, delivery_mode=2), "", queue)
        count += 100
    channel.queue_declare(queue, passive=True)
    used = time.process_time() - cpu
    pipe.send({"messages": count, "start": start, "end": time.monotonic_ns(), "cpu_s": used})
    connection.close()


def py_amqp_consumer(pipe: Connection, _directory: str, port: int, queue: str, count: int) -> None:
    """Consume so many messages, ack each."""
    import amqp

    connection = amqp.Connection(f"{HOST}:{port}", userid="guest", password="guest")
    connection.connect()
    channel = connection.channel()
    channel.basic_qos(0, PREFETCH, False)
    taken = 0

    def take(message: Any) -> None:
        nonlocal taken
        channel.basic_ack(message.delivery_tag)
        taken += 1

    start = wait_for_go(pipe)
    cpu = time.process_time()
    channel.basic_consume(queue, callback=take)
    while taken < count:
        connection.drain_events(timeout=60)
    channel.queue_declare(queue, passive=True)
    used = time.process_time() - cpu
    pipe.send({"messages": count, "start": start, "end": time.monotonic_ns(), "cpu_s": used})
    connection.close()


def _node(*words: str) -> dict[str, Any]:
    import os

    done = subprocess.run(
        ["node", str(NODE_SCRIPT), *words],
        env={**os.environ, "NODE_PATH": str(Path(sys.prefix) / "node_modules")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"node failed: {done.stderr[-500:]}")
    return dict(json.loads(done.stdout))


def amqplib_publisher(pipe: Connection, _directory: str, port: int, queue: str, size: int, seconds: float) -> None:
    """Persistent messages on a confirm channel, 1,000 at a time."""
    start = wait_for_go(pipe)
    found = _node("publish", str(port), queue, str(size), str(seconds))
    pipe.send(
        {
            "messages": found["messages"],
            "start": start,
            "end": start + int(found["seconds"] * 1e9),
            "cpu_s": found["cpu_s"],
        }
    )


def amqplib_consumer(pipe: Connection, _directory: str, port: int, queue: str, count: int) -> None:
    """Consume so many messages, ack each."""
    start = wait_for_go(pipe)
    found = _node("consume", str(port), queue, str(count))
    pipe.send({"messages": count, "start": start, "end": start + int(found["seconds"] * 1e9), "cpu_s": found["cpu_s"]})


LIBRARIES = {
    "pika": (pika_publisher, pika_consumer),
    "py-amqp": (py_amqp_publisher, py_amqp_consumer),
    "amqplib": (amqplib_publisher, amqplib_consumer),
}
