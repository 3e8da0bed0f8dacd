"""What every benchmark needs: a node of its own on the real disk, clients in processes of their own, one clock.

A client is a function `(pipe, directory, **arguments)` in a spawned process. It attaches, says "ready", waits for "go",
and sends its result. CLOCK_MONOTONIC is the same in all processes, so the times of different clients compare.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import warren
from warren import Durability

READY_TIMEOUT_S = 60.0
#: how long clients may take beyond the time they were given (a backlog that drains, a disk that is slow)
DRAIN_TIMEOUT_S = 300.0

#: what every temporary node is opened with, beside what its workload asks for (`--profile`)
node_arguments: dict[str, Any] = {}

Result = dict[str, Any]
Client = Callable[..., None]


class BenchError(Exception):
    """A benchmark could not be run; the message says why."""


def filesystem_of(path: Path) -> str:
    """Type of the file system that holds a path, "?" when unknown."""
    found = "?"
    longest = -1
    for part in psutil.disk_partitions(all=True):
        inside = path.is_relative_to(part.mountpoint)
        if inside and len(part.mountpoint) >= longest:
            found, longest = part.fstype, len(part.mountpoint)
    return found


def real_folder(wanted: str | None) -> Path:
    """A folder for temporary nodes: the wanted one, else the first of temporary folder, here, home that is no tmpfs."""
    if wanted:
        return Path(wanted).resolve()
    choices = [Path(tempfile.gettempdir()), Path.cwd(), Path.home()]
    return next((path.resolve() for path in choices if filesystem_of(path.resolve()) != "tmpfs"), choices[0])


class TemporaryNode:
    """A node in a directory of its own; `close` stops it and removes the directory."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="warren-bench-", dir=folder))
        try:
            self.node = warren.open(self.directory, name="bench", idle_exit=60.0, **node_arguments, **settings)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self.ids = self._ask_ids()

    def _ask_ids(self) -> list[tuple[str, int]]:
        processes = self.node.status()["processes"]
        return [(str(process["role"]), int(process["pid"])) for process in processes if process["pid"]]

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """(role, process) of supervisor, store and workers as they are now."""
        self.ids = self._ask_ids()
        return [(role, psutil.Process(pid)) for role, pid in self.ids if psutil.pid_exists(pid)]

    def kill(self) -> None:
        """kill -9 every process of the node, the supervisor first; returns when they are gone."""
        processes = [process for _, process in self.processes()]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30)

    def close(self) -> None:
        """Stop the node and remove what it left on disk."""
        supervisors = [psutil.Process(pid) for role, pid in self.ids if role == "supervisor" and psutil.pid_exists(pid)]
        self.node.close()
        for process in supervisors:
            process.terminate()
        _, alive = psutil.wait_procs(supervisors, timeout=60)
        shutil.rmtree(self.directory, ignore_errors=True)
        if alive:
            raise BenchError(f"the node's supervisor (process {alive[0].pid}) did not end within 60 s")


@contextmanager
def temporary_node(folder: Path, **settings: Any) -> Iterator[TemporaryNode]:
    """A TemporaryNode that is closed at the end."""
    temporary = TemporaryNode(folder, **settings)
    try:
        yield temporary
    finally:
        temporary.close()


def run_clients(
    clients: Sequence[tuple[Client, dict[str, Any]]],
    directory: Path,
    seconds: float,
    ready: Callable[[], object] = lambda: None,
) -> list[Result]:
    """Start the clients, let them go together, and return what they sent. `ready` is called between the two. Raises
    BenchError when one of them fails.
    """
    context = multiprocessing.get_context("spawn")
    running = []
    try:
        for client, arguments in clients:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_client_main, args=(theirs, client, str(directory), arguments), daemon=True
            )
            process.start()
            theirs.close()
            running.append((process, ours))
        for _, pipe in running:
            _receive(pipe, READY_TIMEOUT_S, "attach")
        ready()
        start = time.monotonic_ns() + 20_000_000
        for _, pipe in running:
            pipe.send(start)
        return [_receive(pipe, seconds + DRAIN_TIMEOUT_S, "finish") for _, pipe in running]
    finally:
        for process, pipe in running:
            pipe.close()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(pipe: Connection, timeout: float, what: str) -> Result:
    if not pipe.poll(timeout):
        raise BenchError(f"a client did not {what} within {timeout:g} s")
    try:
        result = pipe.recv()
    except EOFError:
        raise BenchError(f"a client ended before it could {what}; its error is printed above") from None
    if isinstance(result, BaseException):
        raise BenchError(f"a client could not {what}: {result!r}")
    return dict(result)


def _client_main(pipe: Connection, client: Client, directory: str, arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    try:
        client(pipe, directory, **arguments)
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the parent is gone
    except Exception as error:  # noqa: BLE001 -- whatever it is, the parent is to say it
        pipe.send(error)


def wait_for_go(pipe: Connection) -> int:
    """Say "ready", wait for the start, return its time in ns."""
    pipe.send({"ready": True})
    start = int(pipe.recv())
    left = start - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)
    return start


def pipelined(submit: Callable[[], tuple[int, Any]], end: int, most: int) -> tuple[int, np.ndarray[Any, Any]]:
    """Submit until the clock shows `end`, with at most `most` confirms outstanding. `submit` says how many messages it
    has submitted, and their confirm. Returns all messages, and the nanoseconds from each submit to its confirm."""
    under_way: deque[tuple[int, Any]] = deque()
    latencies = []
    messages = 0
    clock = time.monotonic_ns
    while (began := clock()) < end:
        count, confirm = submit()
        under_way.append((began, confirm))
        messages += count
        if len(under_way) > most:
            began, confirm = under_way.popleft()
            confirm.wait()
            latencies.append(clock() - began)
    for began, confirm in under_way:
        confirm.wait()
        latencies.append(clock() - began)
    return messages, np.array(latencies, dtype=np.int64)


def percentiles_us(nanoseconds: Sequence[int] | np.ndarray[Any, Any]) -> dict[str, float] | None:
    """p50, p99, p999 in microseconds; None without samples."""
    if len(nanoseconds) == 0:
        return None
    values = np.percentile(np.asarray(nanoseconds, dtype=np.float64), [50, 99, 99.9]) / 1000
    return {name: round(float(value), 2) for name, value in zip(("p50", "p99", "p999"), values, strict=True)}


def cell(
    workload: str, size_bytes: int, durability: Durability, batch: int, clients: int, messages: int, seconds: float,
    latency_us: dict[str, float] | None, **more: Any,
) -> Result:  # fmt: skip
    """One line of the report; `limit` and `ratio_to_limit` are filled in by report.py."""
    rate = messages / seconds if seconds > 0 else 0.0
    return {
        "workload": workload,
        "size_bytes": size_bytes,
        "durability": durability,
        "batch": batch,
        "clients": clients,
        "messages": messages,
        "seconds": round(seconds, 4),
        "messages_per_s": round(rate, 1),
        "bytes_per_s": round(rate * size_bytes, 1),
        "latency_us": latency_us,
        "limit": None,
        "ratio_to_limit": None,
        **node_arguments,
        **more,
    }
