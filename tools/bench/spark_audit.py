"""`warren bench spark-audit`: what `warren spark run audit` does, with millions of messages that lie in the store.

A node gets the messages and is stopped. Then, in one session, the audit takes turns with its limit: one process reads
every byte of the same files, which lie in the page cache, and does nothing with them. The session's start is not in
the times. Each audit is checked: every message is named, and there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from warren.tools.bench.harness import BenchError, Result, cell, temporary_node
from warren.tools.bench.spark_limit import bench_session, in_turn
from warren.workers.process.control import ControlClient
from warren.workers.spark.pipelines.audit import Audit, audit

MESSAGES = 4_000_000
QUEUES = 4
BATCH = 10_000
BODY_BYTES = 20
ROUNDS = 3
READ_BYTES = 1 << 20
FILES = "store/persistent/*.rdq", "queues/*/journal/*.jnl", "queues/*/segments/*/*.idx"


def run_spark_audit(folder: Path, messages: int, tell: Callable[[str], None]) -> Result:
    """Audit `messages` messages (a multiple of BATCH). Raises BenchError."""
    with temporary_node(folder, embed_bytes_max=0) as temporary:  # all bodies go to the store
        queues = [temporary.node.queue(f"audit-{number}") for number in range(QUEUES)]
        bodies = [bytes(BODY_BYTES)] * BATCH
        for number in range(messages // BATCH):
            queues[number % QUEUES].put_many(bodies)
            if number % 100 == 0:
                tell(f"{number * BATCH:,} messages")
        with ControlClient(temporary.directory) as control:
            control.call("stop")
        with bench_session(folder) as spark:
            times = in_turn(
                {
                    "audit": lambda: _checked(lambda: audit(spark, str(temporary.directory)), messages),
                    "limit": lambda: _read_s(temporary.directory),
                },
                ROUNDS,
            )
    seconds, limit = (statistics.median(times[side]) for side in ("audit", "limit"))
    return cell(
        f"spark-audit of {messages:,} messages", BODY_BYTES, "synced", BATCH, 1, messages, seconds, None,
        limit={"name": "one process reads the same files", "p50_us": None,
               "messages_per_s": round(messages / limit, 1), "bytes_per_s": None},
        ratio_to_limit=round(limit / seconds, 3),
    )  # fmt: skip


def _checked(call: Callable[[], Audit], messages: int) -> float:
    began = time.monotonic()
    found = call()
    seconds = time.monotonic() - began
    if found.ids["ok"] != messages or any(found.ids[word] for word in ("delta", "lost")):
        raise BenchError(f"an audit of {messages:,} sound messages found {found.ids}")
    return seconds


def _read_s(directory: Path) -> float:
    began = time.monotonic()
    room = bytearray(READ_BYTES)
    for pattern in FILES:
        for path in directory.glob(pattern):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(room):
                    pass
    return time.monotonic() - began
