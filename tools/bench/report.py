"""Cells of a benchmark beside the machine's limits: as JSON lines, or as a table for people."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from warren.tools.bench import queue_publish, topic
from warren.tools.bench.harness import Result


def median_of(runs: list[Result]) -> Result:
    """The run in the middle: by rate, or by p50 where the latency is what was asked for; with the rates of all runs."""

    def key(run: Result) -> float:
        timed = run["workload"].endswith("latency") or run["workload"].startswith("spark-stream")
        if timed and run["latency_us"]:
            return float(run["latency_us"]["p50"])
        if "cpu_share" in run:
            return float(run["cpu_share"])
        return float(run["seconds"] if run["workload"].endswith("restart") else run["messages_per_s"])

    ordered = sorted(runs, key=key)
    middle = dict(ordered[len(ordered) // 2])
    if len(runs) > 1:
        middle["runs"] = [key(run) for run in runs]
    return middle


def with_limit(run: Result, limits: dict[str, Any] | None) -> Result:
    """The cell with the machine's own limit for what it does, and the ratio: of rates, or for latency of p50."""
    if limits is None:
        return run
    workload = run["workload"]
    if workload in ("store", "queue"):
        synced = run["durability"] == "synced"
        append = limits["append"]
        limit = {
            "name": append["name"] if synced else f"{append['name']} (which is more than was asked for)",
            "messages_per_s": append["messages_per_s"],
            "bytes_per_s": append["bytes_per_s"],
        }
        if run["durability"] == "none":
            rate = limits["ring"]["records_per_s"]
            limit = {"name": "ring of 64-byte records, two processes", "messages_per_s": rate, "bytes_per_s": None}
        return {**run, "limit": limit, "ratio_to_limit": round(run["messages_per_s"] / limit["messages_per_s"], 4)}
    if workload in ("store-latency", "queue-latency", "queue-latency-aio", "call-latency"):
        key, name = {
            "store-latency": ("fsync_latency_us", "one raw append + fdatasync"),
            "queue-latency": ("wake_us", "one wake of another process"),
            "queue-latency-aio": ("wake_us", "one wake of another process"),
            "call-latency": ("wake_us", "one wake of another process"),
        }[workload]
        p50 = limits[key]["p50"]
        limit = {"name": name, "messages_per_s": round(1e6 / p50, 1), "bytes_per_s": None, "p50_us": p50}
        ratio = round(run["latency_us"]["p50"] / p50, 3) if run["latency_us"] else None
        return {**run, "limit": limit, "ratio_to_limit": ratio}
    return run


def print_json(run: Result) -> None:
    """One line."""
    print(json.dumps(run), flush=True)


def print_limits(limits: dict[str, Any]) -> None:
    """The machine's limits, as a line of their own."""
    print(json.dumps({"workload": "limits", **limits}), flush=True)


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {letter}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def table_of(runs: list[Result]) -> Table:
    """Throughput and latency cells as a table."""
    table = Table(title=None, header_style="bold")
    columns = (
        "workload",
        "bytes",
        "durability",
        "batch",
        "clients",
        "messages/s",
        "B/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in ("workload", "durability") else "right")
    table.add_column("limit", justify="right")
    table.add_column("ratio", justify="right")
    for run in runs:
        latency = run["latency_us"] or {}
        limit = run["limit"] or {}
        p50 = limit.get("p50_us")
        bound = _number(limit.get("messages_per_s")) if p50 is None else f"{p50:.0f} µs"
        table.add_row(
            f"{run['workload']} {run['into']}" if "into" in run else run["workload"],
            str(run["size_bytes"]),
            run["durability"],
            str(run["batch"]),
            str(run["clients"]),
            _number(run["messages_per_s"]),
            _number(run["bytes_per_s"], "B"),
            *(f"{latency[name]:,.0f}" if name in latency else "–" for name in ("p50", "p99", "p999")),
            bound,
            "–" if run["ratio_to_limit"] is None else f"{run['ratio_to_limit']:.2f}",
        )
    return table


def print_people(runs: list[Result]) -> None:
    """Tables, and sentences for what no table fits."""
    console = Console() if sys.stdout.isatty() else Console(width=150)
    rows = [run for run in runs if run["workload"] not in ("idle", "restart", "backlog")]
    if rows:
        console.print(table_of(rows))
    for run in runs:
        if run["workload"] == "idle":
            shares = ", ".join(f"{role} {share:.2%}" for role, share in run["cpu_share_by_role"].items())
            console.print(
                f"idle: {run['cpu_share']:.2%} of a core ({shares}); {run['processes']} processes, "
                f"{_number(run['rss_bytes'], 'B')} resident, {_number(run['pss_bytes'], 'B')} proportional"
            )
        elif run["workload"] == "backlog":
            console.print(
                f"backlog of {run['messages']:,} messages of {run['size_bytes']} bytes: filled at "
                f"{_number(run['filled_per_s'], '/s')} ({_number(run['into_backlog_per_s'], '/s')} into the backlog, "
                f"{_number(run['empty_per_s'], '/s')} at its begin), drained at {_number(run['drain_per_s'], '/s')} "
                f"(an empty queue's flow: {_number(run['flow_per_s'], '/s')}); the workers' proportional memory: "
                f"{_number(run['idle_pss_bytes'], 'B')} before, {_number(run['top_pss_bytes'], 'B')} at the top, "
                f"{_number(run['after_pss_bytes'], 'B')} afterwards"
            )
        elif run["workload"] == "restart":
            console.print(
                f"kill -9 with {run['messages']:,} messages of {run['size_bytes']} bytes: first message after "
                f"{run['first_message_s']:.3f} s (node open after {run['open_s']:.3f} s); of a worker alone "
                f"{run['worker_first_message_s']:.3f} s, of the store alone (first write) "
                f"{run['store_first_write_s']:.3f} s"
            )
        elif "sides" in run:
            for line in queue_publish.sentences(run):
                console.print(line)
        elif run["workload"].startswith("topic"):
            for line in topic.sentences(run):
                console.print(line)
        elif run["workload"] == "fanout":
            console.print(
                f"fanout of {run['size_bytes']} bytes to {run['queues']} queues: {run['disk_bytes_per_message']:,.0f} "
                f"bytes on disk a message, {run['disk_ratio']:.2f} × of one queue; {run['rate_ratio']:.2f} × its rate"
            )
