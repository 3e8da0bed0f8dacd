"""`warren bench amqp`: the AMQP gateway, and with `--compare rabbitmq` RabbitMQ beside it, by the same clients.

Sides take turns within each cell and each repetition, and nothing of one side runs while the other is measured; figures
are medians, ratios are those of medians. Messages are persistent, queues durable, and what counts is confirmed (the
libraries that do not wait for confirms end with a round trip). RabbitMQ is the installed one, started for the run.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from warren.engine.errors import Error
from warren.tools.bench import amqp_clients, amqp_raw
from warren.tools.bench.harness import (
    BenchError,
    Result,
    TemporaryNode,
    cell,
    percentiles_us,
    real_folder,
    run_clients,
    temporary_node,
)
from warren.tools.rabbitmq import NoRabbitMQ, RabbitMQ

CELLS = ("publish", "consume", "latency", "libraries", "idle", "many")
FEW, MANY = 4, 200
PER_S = 500
IDLE = 1000
IDLE_WATCH_S = 10.0
#: of a connection when there are many: together they have as many messages under way as the few
MANY_WINDOW = 200


class Side:
    """A server that is measured: where it listens, and its processes."""

    name = ""
    port = 0

    def processes(self) -> list[psutil.Process]:
        """Those that serve AMQP; their memory is that of connections."""
        raise NotImplementedError


class WarrenSide(Side):
    """A temporary node with one gateway."""

    name = "warren"

    def __init__(self, temporary: TemporaryNode) -> None:
        from warren.workers.amqp import asking

        self._temporary = temporary
        listening = asking.ask(temporary.directory, 0, 30.0, op="facts")["listening"]
        self.port = int(str(listening[0]).rpartition(":")[2])

    def processes(self) -> list[psutil.Process]:
        """The gateway."""
        return [process for role, process in self._temporary.processes() if role == "amqp_gateway"]


class RabbitSide(Side):
    """A RabbitMQ of this run's own."""

    name = "rabbitmq"

    def __init__(self, server: RabbitMQ) -> None:
        self._server = server
        self.port = server.port

    def processes(self) -> list[psutil.Process]:
        """The Erlang machine."""
        return [psutil.Process(self._server.pid)]


@contextmanager
def _sides(folder: Path, compare: str | None) -> Iterator[list[Side]]:
    with temporary_node(folder, amqp="127.0.0.1:0") as temporary:
        sides: list[Side] = [WarrenSide(temporary)]
        if compare is None:
            yield sides
            return
        before = tempfile.tempdir
        tempfile.tempdir = str(folder)  # both on the same disk
        try:
            with RabbitMQ() as server:
                tempfile.tempdir = before
                yield [*sides, RabbitSide(server)]
        finally:
            tempfile.tempdir = before


class _Names:
    """Queues of a run, deleted after it."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._made: list[str] = []

    def __enter__(self) -> _Names:
        return self

    def new(self, count: int = 1) -> list[str]:
        """Names of new queues."""
        self._made += [f"bench-{time.monotonic_ns()}-{number}" for number in range(count)]
        return self._made[-count:]

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            amqp_raw.drained(self._side.port, name)


def _seconds(results: list[Result]) -> float:
    return float(max(one["end"] for one in results) - min(one["start"] for one in results)) / 1e9


def publish(side: Side, folder: Path, size: int, seconds: float) -> Result:
    """One connection publishes into a queue that nobody consumes."""
    with _Names(side) as names:
        (found,) = run_clients(
            [(amqp_raw.publisher, {"port": side.port, "queues": names.new(), "size": size, "seconds": seconds})],
            folder, seconds,
        )  # fmt: skip
    return cell(
        "amqp-publish", size, "synced", amqp_raw.CHUNK, 1, found["messages"], _seconds([found]), None,
        client_cpu_us=round(found["cpu_s"] / found["messages"] * 1e6, 3),
    )  # fmt: skip


def consume(side: Side, folder: Path, size: int, seconds: float) -> Result:
    """One connection publishes, another consumes and acks."""
    with _Names(side) as names:
        (queue,) = names.new()
        sent, taken = run_clients(
            [
                (amqp_raw.publisher, {"port": side.port, "queues": [queue], "size": size, "seconds": seconds}),
                (amqp_raw.consumer, {"port": side.port, "queue": queue}),
            ],
            folder, seconds,
        )  # fmt: skip
    if sent["messages"] != taken["messages"]:
        raise BenchError(f"{sent['messages']} messages were confirmed, {taken['messages']} came")
    return cell(
        "amqp-consume", size, "synced", amqp_raw.CHUNK, 2, taken["messages"], _seconds([taken]), None,
        client_cpu_us=round((sent["cpu_s"] + taken["cpu_s"]) / taken["messages"] * 1e6, 3),
    )  # fmt: skip


def latency(side: Side, folder: Path, size: int, seconds: float) -> Result:
    """From publish to receive, at a pace that loads nobody."""
    count = int(seconds * PER_S)
    with _Names(side) as names:
        (queue,) = names.new()
        pace = {"port": side.port, "queue": queue, "size": size, "seconds": seconds, "per_s": PER_S}
        sent, found = run_clients(
            [
                (amqp_raw.paced_publisher, pace),
                (amqp_raw.timing_consumer, {"port": side.port, "queue": queue, "count": count}),
            ],
            folder, seconds,
        )  # fmt: skip
    return cell("amqp-latency", size, "synced", 1, 2, count, _seconds([sent]), percentiles_us(found["latencies"]))


def library(side: Side, folder: Path, size: int, seconds: float, name: str) -> list[Result]:
    """A library publishes, then consumes what it published, with an ack for each."""
    publisher, consumer = amqp_clients.LIBRARIES[name]
    with _Names(side) as names:
        (queue,) = names.new()
        given = {"port": side.port, "queue": queue}
        (sent,) = run_clients([(publisher, given | {"size": size, "seconds": seconds})], folder, seconds)
        count = sent["messages"]
        (taken,) = run_clients([(consumer, given | {"count": count})], folder, seconds)
    return [
        cell(
            f"amqp-{name}-{what}", size, "synced", 1, 1, count, _seconds([found]), None,
            client_cpu_us=round(found["cpu_s"] / count * 1e6, 3),
        )
        for what, found in (("publish", sent), ("consume", taken))
    ]  # fmt: skip


def many(side: Side, folder: Path, size: int, seconds: float, clients: int) -> Result:
    """So many connections publish at once, each into a queue of its own."""
    window = amqp_raw.WINDOW // FEW if clients == FEW else MANY_WINDOW
    with _Names(side) as names:
        given = {"port": side.port, "queues": names.new(clients), "size": size, "seconds": seconds, "window": window}
        (found,) = run_clients([(amqp_raw.publisher, given)], folder, seconds)
    return cell(
        f"amqp-{clients}-connections", size, "synced", amqp_raw.CHUNK, clients, found["messages"], _seconds([found]),
        None,
    )  # fmt: skip


def idle(side: Side, folder: Path, count: int) -> Result:
    """Memory and processor time that connections cost which do nothing."""
    import multiprocessing

    from warren.tools.bench.harness import _client_main, _receive  # a run in three steps

    before = sum(process.memory_info().rss for process in side.processes())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(
        target=_client_main,
        args=(theirs, amqp_raw.idle_connections, str(folder), {"port": side.port, "count": count}),
        daemon=True,
    )
    holder.start()
    theirs.close()
    try:
        _receive(ours, 120.0, "connect")
        ours.send(time.monotonic_ns())
        time.sleep(2.0)
        used, began = _cpu_s(side), time.monotonic()
        time.sleep(IDLE_WATCH_S)
        share = (_cpu_s(side) - used) / (time.monotonic() - began)
        after = sum(process.memory_info().rss for process in side.processes())
        ours.send("enough")
        _receive(ours, 60.0, "close")
    finally:
        ours.close()
        holder.join(10)
        if holder.is_alive():
            holder.kill()
            holder.join()
    return cell(
        "amqp-idle", 0, "none", 0, count, 0, IDLE_WATCH_S, None,
        rss_bytes=after, rss_more_bytes=after - before, cpu_share=round(share, 4),
    )  # fmt: skip


def _cpu_s(side: Side) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in side.processes()))


def _runs(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Callable[[Side], list[Result]]]]:
    """What was asked for: a text, and the run on one side."""
    seconds = options.seconds
    for size in options.size or [100, 1024]:
        for name, run in (("publish", publish), ("consume", consume), ("latency", latency)):
            if name in options.cells:
                text = f"{name}, {size} bytes"
                yield text, lambda side, run=run, size=size: [run(side, folder, size, seconds)]  # type: ignore[misc]
        if "libraries" in options.cells:
            for name in amqp_clients.LIBRARIES:
                if reason := amqp_clients.missing(name):
                    print(f"warren bench amqp: without {name}: {reason}", file=sys.stderr)
                    continue
                yield (
                    f"{name}, {size} bytes",
                    lambda side, name=name, size=size: library(side, folder, size, seconds, name),  # type: ignore[misc]
                )
        if "many" in options.cells:
            for clients in (FEW, MANY):
                yield (
                    f"{clients} connections, {size} bytes",
                    lambda side, clients=clients, size=size: [many(side, folder, size, seconds, clients)],  # type: ignore[misc]
                )
    if "idle" in options.cells:
        yield f"{options.idle} idle connections", lambda side: [idle(side, folder, options.idle)]


def _measure(run: Result) -> float:
    """What a cell is compared by."""
    if run["latency_us"]:
        return float(run["latency_us"]["p50"])
    return float(run["rss_more_bytes"] if "rss_more_bytes" in run else run["messages_per_s"])


def _median(runs: list[Result]) -> Result:
    middle = sorted(runs, key=_measure)[len(runs) // 2]
    return {**middle, "runs": [_measure(one) for one in runs]} if len(runs) > 1 else middle


def _compared(found: dict[str, list[list[Result]]]) -> list[Result]:
    """The medians of a cell, side by side; Warren's have the ratio."""
    medians = {name: [_median(list(same)) for same in zip(*several, strict=True)] for name, several in found.items()}
    lines = []
    for at, ours in enumerate(medians["warren"]):
        ratio = None
        if theirs := medians.get("rabbitmq"):
            ratio = round(_measure(ours) / _measure(theirs[at]), 3) if _measure(theirs[at]) else None
        lines.append({**ours, "side": "warren", "ratio_to_rabbitmq": ratio})
        if theirs:
            lines.append({**theirs[at], "side": "rabbitmq"})
    return lines


def _table(lines: list[Result]) -> Table:
    """The lines, without columns that say nothing of any."""
    rows = [_row(line) for line in lines]
    table = Table(header_style="bold")
    said = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in said:
        table.add_column(name, justify="left" if name in ("workload", "side") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] or "–" for name in said))
    return table


def _row(line: Result) -> dict[str, str]:
    latency_us = line["latency_us"] or {}
    memory, ratio = line.get("rss_more_bytes"), line.get("ratio_to_rabbitmq")
    return {
        "workload": line["workload"],
        "bytes": str(line["size_bytes"]),
        "side": line["side"],
        "messages/s": f"{line['messages_per_s']:,.0f}" if line["messages"] else "",
        "client µs": f"{line['client_cpu_us']:.1f}" if "client_cpu_us" in line else "",
        **{f"{name} µs": f"{latency_us[name]:,.0f}" if name in latency_us else "" for name in ("p50", "p99")},
        "memory": "" if memory is None else f"{memory / 1e6:.1f} MB",
        "processor": f"{line['cpu_share']:.1%}" if "cpu_share" in line else "",
        "ratio": "" if ratio is None else f"{ratio:.2f}",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warren bench amqp", description="Measure the AMQP gateway, and RabbitMQ beside it in the same run."
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(CELLS)}; all by default")
    parser.add_argument("--compare", choices=("rabbitmq",), help="also measure the installed RabbitMQ, in turn")
    parser.add_argument(
        "--size", type=int, action="append", metavar="BYTES", help="of a body (100 and 1024; repeatable)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run (4)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each cell; the median is shown (1)")
    parser.add_argument("--idle", type=int, default=IDLE, metavar="N", help=f"connections of `idle` ({IDLE:,})")
    parser.add_argument("--dir", metavar="DIR", help="folder for the temporary node, and for RabbitMQ")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def main(words: list[str]) -> int:
    """Run it; returns the exit code."""
    options = _parser().parse_args(words)
    unknown = set(options.cells) - set(CELLS)
    if unknown:
        print(f"warren bench amqp: no such cell: {min(unknown)}; there are {', '.join(CELLS)}", file=sys.stderr)
        return 2
    if options.seconds <= 0 or options.repeat < 1 or options.idle < 1 or any(size < 8 for size in options.size or []):
        print("warren bench amqp: seconds, repeats and connections must be positive, sizes at least 8", file=sys.stderr)
        return 2
    options.cells = options.cells or list(CELLS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both servers go with us
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the idle connections
    talk = Console(stderr=True, quiet=options.json and not sys.stderr.isatty())
    folder = real_folder(options.dir)
    lines: list[Result] = []
    try:
        with talk.status("starting") as shown, _sides(folder, options.compare) as sides:
            for text, run in _runs(options, folder):
                found: dict[str, list[list[Result]]] = {side.name: [] for side in sides}
                for _ in range(options.repeat):
                    for side in sides:
                        shown.update(f"{text}: {side.name}")
                        found[side.name].append(run(side))
                fresh = _compared(found)
                lines += fresh
                if options.json:
                    for line in fresh:
                        print(json.dumps(line), flush=True)
    except (BenchError, NoRabbitMQ, Error, RuntimeError, OSError) as error:
        print(f"warren bench amqp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if not options.json and lines:
            (Console() if sys.stdout.isatty() else Console(width=150)).print(_table(lines))
    return 0
