"""Benchmarks, and the limits of the machine beside them: `warren bench WORKLOAD [options]`.

Each run has a temporary node of its own, on the real disk, removed afterwards. Never a test: figures depend on the
machine.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from rich.console import Console

from warren.engine.config import PROFILES
from warren.engine.errors import Error
from warren.tools.bench.harness import BenchError, Result, filesystem_of, node_arguments, real_folder

WORKLOADS = (
    "store", "store-read", "store-read-old", "queue", "queue-publish", "queue-fanout", "store-latency", "queue-latency",
    "call-latency", "backlog", "restart", "store-restart", "store-collect", "fanout", "fairness", "declare", "idle",
    "startup", "topic", "topic-latency", "topic-beside", "topic-many", "topic-read", "topic-find",
    "celery", "spark-sink", "spark-topic", "spark-queue", "spark-stream", "spark-audit", "amqp", "all",
)  # fmt: skip
#: these repeat by themselves: what they are compared with has its turn in each round
IN_TURN = ("queue-publish", "queue-fanout", "celery")
#: these measure the limits that they need by themselves: they know what was really written, or read
OWN_LIMITS = ("topic", "spark")
#: of spark-topic
SCANS = {"python": "Python", "native": "Java"}
BATCH = 1000
LIMIT_SECONDS = 8.0
RESTART_MESSAGES = 1_000_000
BACKLOG_MESSAGES = 10_000_000
MANY = 1000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warren bench", description="Measure Warren, and this machine beside it.")
    parser.add_argument(
        "workload",
        nargs="?",
        default="all",
        choices=WORKLOADS,
        help="store: writes into the message store; store-read: reads from memory, store-read-old: from files; "
        "queue: publish, consume, ack; queue-publish: without a consumer, queue-fanout: to 4 consumed queues, both "
        "beside LMDB in turn; …-latency: one message at a time; "
        "backlog: a queue that only grows, then only shrinks; "
        "restart: kill -9 with a backlog; store-restart: the same with messages in the store; "
        "store-collect: writes beside garbage collection, and without it; fanout: to 4 queues beside 1, rate and "
        "bytes on disk; fairness: light queues beside a heavy one; declare: declarations and bindings in a "
        "node with many queues, and round trips beside them; idle: what a node costs that nobody uses; "
        "startup: import, --help, and the first put into a node that runs; "
        "topic: appends; topic-latency: append to receive, beside a queue; topic-beside: a producer with 4 readers, "
        "and alone; topic-many: appends to 1,000 topics beside one, and the time to open them; topic-read: from files "
        "into Arrow and as objects; topic-find: look-ups by key; "
        "spark-sink: a DataFrame into a queue and into a topic, beside a sink that discards it; "
        "spark-topic: a topic read by Spark, as a batch and as a stream (--scan native: by Java, also "
        "beside Parquet); spark-queue: the same of a queue; "
        "spark-stream: small micro-batches of a topic into sinks, beside those of a source that does nothing; "
        "spark-audit: queues against the message store; celery: empty tasks of Celery over Warren, Redis and RabbitMQ, "
        "those that are here; celery and spark-… are not part of all; amqp: the AMQP gateway, "
        "and RabbitMQ beside it (warren bench amqp --help)",
    )
    parser.add_argument("--size", type=int, action="append", metavar="BYTES", help="bytes of a body (100; repeatable)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run (5)")
    parser.add_argument(
        "--durability", choices=("none", "written", "synced"), default="synced", help="what a confirm says (synced)"
    )
    parser.add_argument(
        "--batch", type=int, action="append", metavar="N", help=f"messages in a call; 1: single calls ({BATCH} and 1)"
    )
    parser.add_argument(
        "--clients", type=int, default=1, metavar="N", help="producers, readers, or pairs with a queue each (1)"
    )
    parser.add_argument(
        "--messages",
        type=int,
        help="restart: the backlog (1,000,000); backlog: the same (10,000,000); topic-find: messages with a key "
        "(10,000,000); topic-read: messages that are read again and again (as many as 192 MiB have); spark-…: rows "
        "of a run; spark-stream: micro-batches of each sink",
    )
    parser.add_argument("--topics", type=int, default=MANY, metavar="N", help="topic-many: topics (1,000)")
    parser.add_argument(
        "--queues",
        type=int,
        default=1,
        metavar="N",
        help="restart: queues that share the backlog (1); declare: queues that are there (4,000)",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each cell; the median is shown (1)")
    parser.add_argument("--limits", action="store_true", help="measure the machine's own limits, too, and show ratios")
    parser.add_argument(
        "--scan",
        choices=tuple(SCANS),
        default="python",
        help="spark-topic, spark-stream: who reads the files (python); native: Java",
    )
    parser.add_argument("--profile", choices=PROFILES, help="of the temporary nodes (default)")
    parser.add_argument("--dir", metavar="DIR", help="folder for the temporary nodes")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _cells(
    options: argparse.Namespace, folder: Any, tell: Callable[[str], None]
) -> Generator[tuple[str, int, Callable[[], Result]], None, None]:
    """(what it is, size of a body, the run) of everything that was asked for; `tell`: how far a run is."""
    from warren.tools.bench.declare import CHANGES, QUEUES, run_declare
    from warren.tools.bench.fairness import LOADS, run_fairness
    from warren.tools.bench.fanout import run_fanout
    from warren.tools.bench.queue import (
        run_backlog,
        run_call_latency,
        run_idle,
        run_queue,
        run_queue_latency,
        run_queue_latency_aio,
        run_restart,
    )
    from warren.tools.bench.queue_publish import run_queue_fanout, run_queue_publish
    from warren.tools.bench.startup import WAITS, run_startup
    from warren.tools.bench.store import run_store, run_store_latency, run_store_read, run_store_read_old
    from warren.tools.bench.store_life import COLLECT, NOTHING, ONLY_COPY, run_store_collect, run_store_restart

    def wanted(name: str) -> bool:
        return options.workload in (name, "all")

    seconds, durability, clients = options.seconds, options.durability, options.clients
    for size in options.size or [100]:
        for batch in options.batch or [BATCH, 1]:
            for name, run in (("store", run_store), ("queue", run_queue)):
                if wanted(name):
                    text = f"{name}, {size} bytes, {durability}, batch {batch}"
                    yield (
                        text,
                        size,
                        lambda run=run, size=size, batch=batch: run(  # type: ignore[misc]
                            folder, size, seconds, durability, batch, clients
                        ),
                    )
            for name, reads in (("store-read", run_store_read), ("store-read-old", run_store_read_old)):
                if wanted(name):
                    text = f"{name}, {size} bytes, batch {batch}"
                    yield (
                        text,
                        size,
                        lambda reads=reads, size=size, batch=batch: reads(  # type: ignore[misc]
                            folder, size, seconds, batch, clients
                        ),
                    )
        batch = (options.batch or [BATCH])[0]
        if wanted("queue-publish"):
            text = f"queue-publish, {size} bytes, {durability}, batch {batch}"
            yield (
                text,
                size,
                lambda size=size, batch=batch: run_queue_publish(  # type: ignore[misc]
                    folder, size, seconds, durability, batch, clients, options.repeat, options.limits
                ),
            )
        if wanted("queue-fanout"):
            text = f"queue-fanout, {size} bytes, {durability}, batch {batch}"
            yield (
                text,
                size,
                lambda size=size, batch=batch: run_queue_fanout(  # type: ignore[misc]
                    folder, size, seconds, durability, batch, options.repeat
                ),
            )
        for name, more, timed in (
            ("store-latency", "", run_store_latency),
            ("queue-latency", "", run_queue_latency),
            ("queue-latency", "-aio", run_queue_latency_aio),
        ):
            if wanted(name):
                text = f"{name}{more}, {size} bytes, {durability}"
                yield text, size, lambda timed=timed, size=size: timed(folder, size, seconds, durability)  # type: ignore[misc]
        if wanted("call-latency"):
            text = f"call-latency, {size} bytes"
            yield text, size, lambda size=size: run_call_latency(folder, size, seconds)  # type: ignore[misc]
        messages = options.messages or RESTART_MESSAGES
        if wanted("backlog"):
            n = options.messages or BACKLOG_MESSAGES
            text = f"backlog of {n:,} messages of {size} bytes"
            yield text, size, lambda size=size, n=n: run_backlog(folder, size, n, seconds)  # type: ignore[misc]
        if wanted("restart"):
            text = f"restart with {messages:,} messages of {size} bytes in {options.queues} queues"
            yield (
                text,
                size,
                lambda size=size, n=messages: run_restart(folder, size, n, options.queues),  # type: ignore[misc]
            )
        if wanted("store-restart"):
            text = f"store restart with {messages:,} messages of {size} bytes"
            yield text, size, lambda size=size, n=messages: run_store_restart(folder, size, n)  # type: ignore[misc]
        if wanted("store-collect"):
            for beside in (COLLECT, NOTHING, *([ONLY_COPY] if options.limits else [])):
                text = f"store, {size} bytes, nine of ten removed: {beside}"
                yield (
                    text,
                    size,
                    lambda size=size, beside=beside: run_store_collect(  # type: ignore[misc]
                        folder, size, seconds, (options.batch or [BATCH])[0], beside
                    ),
                )
        if wanted("fanout"):
            batch = (options.batch or [BATCH])[0]
            text = f"fanout to 1 and 4 queues, {size} bytes, {durability}"
            yield (
                text,
                size,
                lambda size=size, batch=batch: run_fanout(  # type: ignore[misc]
                    folder, size, seconds, durability, batch
                ),
            )
        yield from _topic_cells(options, folder, size, wanted, tell)
        yield from _spark_cells(options, folder, size, tell)
    if wanted("fairness"):
        for load in LOADS:
            yield f"ten light queues beside: {load}", 0, lambda load=load: run_fairness(folder, seconds, load)  # type: ignore[misc]
    if wanted("declare"):
        for what in CHANGES:
            n = options.queues if options.queues > 1 else QUEUES
            yield f"declare: {what}, {n} queues", 0, lambda what=what, n=n: run_declare(folder, seconds, what, n)  # type: ignore[misc]
    if wanted("idle"):
        yield "idle", 0, lambda: run_idle(folder, max(seconds, 2.0))
    if options.workload == "spark-audit":
        from warren.tools.bench.spark_audit import MESSAGES, run_spark_audit

        n = options.messages or MESSAGES
        yield f"spark-audit of {n:,} messages", 0, lambda: run_spark_audit(folder, n, tell)
    if options.workload == "celery":
        from warren.tools.bench import celery

        tasks = options.messages or celery.TASKS
        found = celery.measured(folder, tasks, options.repeat, tell)
        for what in celery.WHAT:
            for broker in found.rates:
                yield f"celery {what} over {broker}", 0, partial(found.run, broker, what)
    if wanted("startup"):
        for what in WAITS:
            yield f"startup: {what}", 0, lambda what=what: run_startup(folder, seconds, what)  # type: ignore[misc]


def _topic_cells(
    options: argparse.Namespace, folder: Any, size: int, wanted: Callable[[str], bool], tell: Callable[[str], None]
) -> Iterator[tuple[str, int, Callable[[], Result]]]:
    """The same of topics, for one size of a body."""
    from warren.tools.bench.topic import run_topic, run_topic_beside, run_topic_latency, run_topic_many
    from warren.tools.bench.topic_find import MESSAGES, run_topic_find
    from warren.tools.bench.topic_read import INTO, messages_of, run_topic_read

    seconds, durability, clients, raw = options.seconds, options.durability, options.clients, options.limits
    batch = (options.batch or [BATCH])[0]
    if wanted("topic"):
        for each in options.batch or [BATCH, 1]:
            text = f"topic, {size} bytes, {durability}, batch {each}"
            yield text, size, partial(run_topic, folder, size, seconds, durability, each, clients, raw)
    if wanted("topic-latency"):
        text = f"topic-latency, {size} bytes, {durability}"
        yield text, size, partial(run_topic_latency, folder, size, seconds, durability)
    if wanted("topic-beside"):
        text = f"topic-beside, {size} bytes, {durability}, batch {batch}"
        yield text, size, partial(run_topic_beside, folder, size, seconds, durability, batch)
    if wanted("topic-many"):
        text = f"topic-many, {options.topics:,} topics, {size} bytes, {durability}, batch {batch}"
        run = partial(run_topic_many, folder, size, seconds, durability, batch, options.topics)
        yield text, size, lambda: run(lambda done: tell(f"{text}: {done}"))
    if wanted("topic-read"):
        for into in INTO:
            stored = options.messages or messages_of(size)
            text = f"topic-read, {into}, {size} bytes"
            yield (
                text,
                size,
                lambda into=into, text=text, stored=stored: run_topic_read(  # type: ignore[misc]
                    folder, size, seconds, into, batch, clients, stored, raw, lambda done: tell(f"{text}: {done}")
                ),
            )
    if wanted("topic-find"):
        stored = options.messages or MESSAGES
        text = f"topic-find, {stored:,} messages of {size} bytes"
        find = partial(run_topic_find, folder, size, seconds, stored, clients, raw)
        yield text, size, lambda: find(lambda done: tell(f"{text}: {done}"))


def _spark_cells(
    options: argparse.Namespace, folder: Any, size: int, tell: Callable[[str], None]
) -> Iterator[tuple[str, int, Callable[[], Result]]]:
    """The same of Spark; its medians are of rounds within a run."""
    if options.workload == "spark-sink":
        from warren.tools.bench.spark_sink import INTO, rows_of, run_spark_sink

        rows = options.messages or rows_of(size)
        for into in INTO:
            text = f"spark-sink, {rows:,} rows of {size} bytes into a {into}, {options.durability}"
            yield text, size, partial(run_spark_sink, folder, size, options.durability, rows, into)
    if options.workload == "spark-topic":
        from warren.tools.bench import spark_topic
        from warren.tools.bench.spark_limit import ROUNDS

        rows = options.messages or spark_topic.rows_of(size)
        for side in spark_topic.SIDES:
            text = f"spark-topic-{side}, read in {SCANS[options.scan]}, {size} bytes, {rows:,} messages"
            yield text, size, partial(spark_topic.run_spark_topic, folder, size, rows, ROUNDS, side, options.scan, tell)
    if options.workload == "spark-stream":
        from warren.tools.bench import spark_stream

        with spark_stream.measured(folder, size, options.messages or spark_stream.BATCHES, tell) as found:
            for sink in spark_stream.SINKS:
                text = f"spark-stream, read in {SCANS[options.scan]}, into the sink {sink}"
                yield text, size, partial(found.run, sink, options.scan, tell)
    if options.workload == "spark-queue":
        from warren.tools.bench import spark_queue

        rows = options.messages or spark_queue.rows_of(size)
        for into in spark_queue.INTO:
            text = f"spark-queue, {rows:,} messages of {size} bytes as a {into}"
            yield text, size, partial(spark_queue.run_spark_queue, folder, size, rows, into)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; the exit code is 0, 1 when a run failed, 2 for wrong options."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["amqp"]:  # which has options of its own
        from warren.tools.bench import amqp

        return amqp.main(words[1:])
    options = _parser().parse_args(words)
    sizes = options.size or [100]
    if (
        min(sizes) < 0
        or options.seconds <= 0
        or min(options.batch or [1]) < 1
        or options.clients < 1
        or options.repeat < 1
        or options.queues < 1
        or options.topics < 1
        or (options.messages is not None and options.messages < options.queues)
    ):
        print("warren bench: sizes, seconds, batches, clients and repeats must be positive", file=sys.stderr)
        return 2
    from warren.tools.bench import limits, report

    folder = real_folder(options.dir)
    talk = Console(stderr=True, quiet=options.json and not sys.stderr.isatty())
    if filesystem_of(folder) == "tmpfs":
        talk.print(f"[yellow]{folder} is a tmpfs: syncs cost nothing there; choose another folder with --dir[/yellow]")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the temporary node goes with us
    if options.profile:
        node_arguments["profile"] = options.profile
    found: dict[int, dict[str, Any]] = {}
    runs: list[Result] = []
    shown = talk.status("")
    cells = _cells(options, folder, shown.update)
    try:
        for text, size, run in cells:
            in_turn = text.startswith(IN_TURN)
            if options.limits and size and size not in found and not text.startswith((*IN_TURN, *OWN_LIMITS)):
                with talk.status(f"limits of this machine, {size} bytes"):
                    found[size] = limits.measure(folder, size, LIMIT_SECONDS)
                if options.json:
                    report.print_limits({"size_bytes": size, **found[size]})
            shown.update(text)
            with shown:
                several = [run() for _ in range(1 if in_turn else options.repeat)]
            cell = report.with_limit(report.median_of(several), found.get(size))
            runs.append(cell)
            if options.json:
                report.print_json(cell)
    except (BenchError, Error, RuntimeError, OSError) as error:
        talk.print(f"[red]warren bench: {error}[/red]", soft_wrap=True)
        if talk.quiet:
            print(f"warren bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        cells.close()  # a session that several of them share
        if not options.json:
            report.print_people(runs)
    return 0
