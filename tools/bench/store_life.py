"""The message store's life around its throughput: `store-restart` and `store-collect`.

`store-restart`: messages in the store, kill -9 of the store server, then of the whole node; the time until a body
written long ago is read, and until a new one is stored. `store-collect`: synced batches of writes, each removed again
but for every tenth message, so that the collector is never idle; then the same with the collector stopped, and, with
--limits, with the collector stopped and a loop beside it that only reads each finished file once and writes and syncs a
tenth of it: what moving the bytes alone costs.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warren
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.store.file_summary import files
from warren.ipc.layout import SERVER_STORE_PERSISTENT
from warren.ipc.region import posix_open
from warren.ipc.superblock import Superblock
from warren.tools.bench.harness import (
    BenchError,
    Client,
    Result,
    TemporaryNode,
    cell,
    percentiles_us,
    run_clients,
    temporary_node,
    wait_for_go,
)

FILL_BATCH = 10_000
BATCHES_UNDER_WAY = 12
KEPT_OF = 10  #: one message of so many stays when a batch is removed
ANSWER_TIMEOUT_S = 60.0
COPY_CHUNK = 1 << 20
FILES_UNFINISHED = 2  #: the one that is written, and the next, which is there before it is needed
#: what runs beside the writer in `store-collect`, and how the result is called
COLLECT, NOTHING, ONLY_COPY = "store-collect", "store-churn", "store-churn-copy"


def _fill(pipe: Connection, directory: str, size: int, messages: int) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        body = os.urandom(size)
        ids = []
        start = wait_for_go(pipe)
        for done in range(0, messages, FILL_BATCH):
            some = store.new_ids(min(FILL_BATCH, messages - done))
            store.write_many(some, [body] * len(some))
            ids += [some[0], some[-1]]
        pipe.send({"messages": messages, "start": start, "end": time.monotonic_ns(), "ids": ids, "body": body})


def _first_answers(store: warren.Store, ids: list[bytes], body: bytes, since: int) -> tuple[float, float]:
    """Seconds from `since` to a body of the first, middle and last file, and to the confirm of a write."""
    for id in (ids[0], ids[len(ids) // 2], ids[-1]):
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (found := store.read(id)) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if found != body:
            raise BenchError(f"message {id.hex()} was confirmed, and is not there after the restart")
    read = (time.monotonic_ns() - since) / 1e9
    store.write(store.new_id(), body, timeout=ANSWER_TIMEOUT_S)
    return read, (time.monotonic_ns() - since) / 1e9


def _kill(temporary: TemporaryNode, role: str) -> int:
    """SIGKILL the processes of a role; returns when that was."""
    for found, process in temporary.processes():
        if found == role:
            process.send_signal(signal.SIGKILL)
    return time.monotonic_ns()


def run_store_restart(folder: Path, size: int, messages: int) -> Result:
    """kill -9 with so many messages in the store: of the store server, of the whole node."""
    with temporary_node(folder) as temporary:
        (filled,) = run_clients(
            [(_fill, {"size": size, "messages": messages})], temporary.directory, max(60.0, messages / 10_000)
        )
        ids, body = filled["ids"], filled["body"]
        time.sleep(1.0)  # lists of the last files are written by then, as in a node that lives for more than a moment
        since = _kill(temporary, "store")
        store_read, store_write = _first_answers(temporary.node.store(), ids, body, since)
        pss = sum(process.memory_full_info().pss for _, process in temporary.processes())
        temporary.kill()
        temporary.node.close()
        since = time.monotonic_ns()
        temporary.node = warren.open(temporary.directory, name="bench", idle_exit=60.0)
        opened = (time.monotonic_ns() - since) / 1e9
        read, write = _first_answers(temporary.node.store(), ids, body, since)
        temporary.processes()
        held = int(temporary.node.status()["store"]["messages"])
        if held < messages:
            raise BenchError(f"{messages:,} messages were confirmed, and {held:,} are there after the restarts")
    return cell(
        "store-restart", size, "synced", FILL_BATCH, 1, messages, read, None,
        open_s=round(opened, 4), first_read_s=round(read, 4), first_write_s=round(write, 4),
        store_first_read_s=round(store_read, 4), store_first_write_s=round(store_write, 4),
        filled_per_s=round(messages / ((filled["end"] - filled["start"]) / 1e9), 1), pss_bytes=pss,
    )  # fmt: skip


def _churn(pipe: Connection, directory: str, size: int, seconds: float, batch: int) -> None:
    with warren.attach(directory, name="bench-writer") as node:
        store = node.store()
        bodies = [os.urandom(size)] * batch
        store.write_many(store.new_ids(batch), bodies, durability="written")
        under_way: deque[tuple[int, list[bytes], Any]] = deque()
        latencies: list[int] = []
        messages = 0
        start = wait_for_go(pipe)
        end = start + int(seconds * 1e9)
        clock = time.monotonic_ns

        def take_back() -> None:
            began, ids, confirm = under_way.popleft()
            confirm.wait()
            latencies.append(clock() - began)
            store.remove([id for at, id in enumerate(ids) if at % KEPT_OF])

        while (now := clock()) < end:
            ids = store.new_ids(batch)
            under_way.append((now, ids, store.write_many(ids, bodies, wait=False)))
            messages += batch
            if len(under_way) > BATCHES_UNDER_WAY:
                take_back()
        while under_way:
            take_back()
        pipe.send({"messages": messages, "start": start, "end": clock(), "latencies": latencies})


def _copy(pipe: Connection, directory: str, seconds: float) -> None:
    """The least that any collector must do: each finished file is read once, and a tenth as many bytes are written."""
    folder = Path(directory, "store", "persistent")
    chunk = mmap.mmap(-1, COPY_CHUNK)  # page-aligned, as O_DIRECT wants it
    done: set[int] = set()
    copied = 0
    with tempfile.NamedTemporaryFile(dir=folder.parent.parent) as file:
        output = os.open(file.name, os.O_WRONLY | os.O_DIRECT)
        try:
            start = wait_for_go(pipe)
            while time.monotonic_ns() < start + int(seconds * 1e9):
                numbers = sorted(int(path.stem) for path in folder.glob("*.rdq"))[:-FILES_UNFINISHED]
                fresh = [number for number in numbers if number not in done]
                if not fresh:
                    time.sleep(0.001)
                for number in fresh:
                    copied += _copy_file(folder / f"{number}.rdq", chunk, output)
                    done.add(number)
        finally:
            os.close(output)
    pipe.send({"bytes": copied})


def _copy_file(path: Path, chunk: mmap.mmap, output: int) -> int:
    source = os.open(path, os.O_RDONLY)
    try:
        at = written = 0
        while got := os.preadv(source, [chunk], at):
            at += got
            if written * KEPT_OF < at:
                written += os.pwritev(output, [chunk], written)
        os.fdatasync(output)
    finally:
        os.close(source)
    return at


def _disk(shared_id: int) -> tuple[int, int]:
    """(valid bytes, file bytes) of the persistent store as its summary says."""
    superblock = Superblock.attach(shared_id, LAYOUT_HASH)
    try:
        generation = superblock.server_get(SERVER_STORE_PERSISTENT, "generation")
        region = posix_open(superblock.region_name("summary", SERVER_STORE_PERSISTENT, generation))
    finally:
        superblock.close()
    try:
        rows = list(files(region.buffer))
    finally:
        region.close()
    return sum(row.valid_total_size for row in rows), sum(row.file_size for row in rows)


def run_store_collect(folder: Path, size: int, seconds: float, batch: int, beside: str = COLLECT) -> Result:
    """Throughput of writes while nine of ten messages are removed again, with the collector at work or stopped.

    The collector is stopped by SIGSTOP, so that the runs do the same but for the collection itself.
    """
    with temporary_node(folder) as temporary:
        shared_id = int(temporary.node.status()["shared_id"], 16)
        stopped = []
        if beside != COLLECT:
            stopped = [process for role, process in temporary.processes() if role == "collector"]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            clients: list[tuple[Client, dict[str, Any]]] = [
                (_churn, {"size": size, "seconds": seconds, "batch": batch})
            ]
            if beside == ONLY_COPY:
                clients.append((_copy, {"seconds": seconds}))
            result, *copied = run_clients(clients, temporary.directory, seconds)
        finally:
            for process in stopped:
                process.send_signal(signal.SIGCONT)
        valid, used = _disk(shared_id)
        calm = time.monotonic() + 30.0
        later_valid, later_used = valid, used
        while later_used > 2 * later_valid + 3 * (16 << 20) and time.monotonic() < calm:
            time.sleep(0.5)
            later_valid, later_used = _disk(shared_id)
        took = (result["end"] - result["start"]) / 1e9
    return cell(
        beside, size, "synced", batch, 1, result["messages"], took,
        percentiles_us(result["latencies"]),
        valid_bytes=valid, file_bytes=used, file_bytes_after=later_used, valid_bytes_after=later_valid,
        copied_bytes=sum(other["bytes"] for other in copied),
    )  # fmt: skip
