"""`warren spark run NAME DIR`: pipelines over the files of a data directory (workers/spark/pipelines/), each in a Spark
session of its own. Exit code 1: something is damaged, or two sides differ; 130, 143: ended by Ctrl-C, by SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from warren.engine.errors import UsageError
from warren.engine.saying import command, counted
from warren.workers.cli import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from warren.workers.spark.pipelines.running import Tell

DIRECTORY = click.argument("directory", metavar="DIR")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
EXIT_PROBLEMS = 1
#: what ends a pipeline in good order
ENDS = (signal.SIGINT, signal.SIGTERM)
#: seconds between two lines of progress, where no terminal is
TOLD_EVERY_S = 30.0
#: how to go on with what only reads, if it was interrupted
ANEW = "nothing was changed; the same command begins anew"
#: lines of a table that are shown when not all are asked for
ROWS = 60
_Command = TypeVar("_Command", bound=Callable[..., Any])


def session_options(decorated: _Command) -> _Command:
    """What every pipeline takes that runs in a session."""
    decorated = click.option("--memory", metavar="SIZE", help="Heap of the driver, as Spark writes it; default: 1g.")(
        decorated
    )
    return click.option(
        "--master", metavar="URL", help="Spark's master, on this machine; default: local[2,3], two tasks at a time."
    )(decorated)


class Lines:
    """Progress in lines, for where no terminal is: one every `TOLD_EVERY_S` seconds, also while nothing moves."""

    def __init__(self, what: str, unit: str, before: str) -> None:
        self._what, self._unit, self._before = what, unit, before
        self._at: tuple[int, int] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)

    def tell(self, done: int, total: int) -> None:
        """So many are done, of those known so far."""
        self._at = done, total

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(TOLD_EVERY_S):
            at = self._at
            far = self._before if at is None else f"{self._what}: {at[0]:,} of {at[1]:,} {self._unit}"
            output.note(f"{far}, {time.monotonic() - began:.0f} s")

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


@contextlib.contextmanager
def progress(what: str, as_json: bool, unit: str = "tasks", before: str = "starting Spark") -> Iterator[Tell | None]:
    """How far it is, on standard error: a bar, or lines where no terminal is. `before`: what it does until it tells."""
    if as_json:
        yield None
        return
    if not sys.stderr.isatty():
        with Lines(what, unit, before) as lines:
            yield lines.tell
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@contextlib.contextmanager
def interruptible(rest: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end what runs here in good order, with a line that says how to go on (`rest`)."""
    before = {number: signal.getsignal(number) for number in ENDS}
    for number in ENDS:
        signal.signal(number, _end)
    try:
        yield
    except KeyboardInterrupt as end:
        output.note(f"interrupted: {rest}")
        raise click.exceptions.Exit(end.args[0] if end.args else output.EXIT_INTERRUPTED) from None
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """End once, with the exit code of a signal. `timeout` sends SIGTERM twice: to us, and to our group."""
    for each in ENDS:
        signal.signal(each, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)  # whatever call into the JVM this cuts short would be logged with its stack
    raise KeyboardInterrupt(128 + number)


@contextlib.contextmanager
def started(
    name: str, what: str, master: str | None, memory: str | None, as_json: bool, rest: str = ANEW
) -> Iterator[SparkSession]:
    """A session, and how far it is. `rest`: how to go on if it is interrupted."""
    from warren.workers.spark.pipelines.running import running

    with interruptible(rest), progress(what, as_json) as tell, running(name, master, memory, tell) as spark:
        # PySpark's own handler asks the JVM to cancel, in the middle of another question to it; it is ended anyway
        signal.signal(signal.SIGINT, _end)
        yield spark


def look(directory: str) -> bool:
    """Whether the node of a directory runs. Raises NodeNotRunning: it is none; before a session is started."""
    from warren.workers.spark.files.directory import Directory
    from warren.workers.spark.session import check_spark

    found = Directory.read(directory)
    check_spark()
    return found.running


def beside(running: bool) -> None:
    """What two sides of a running node are worth."""
    if running:
        output.note("the node runs: what moved between the two reads looks like a difference; exact with the node down")


@click.group()
def spark() -> None:
    """Pipelines on Spark, over the files of a data directory, with its node up or down."""


@spark.group()
def run() -> None:
    """Run a pipeline. Each has a Spark session of its own, which is stopped at the end."""


# ---- look -----------------------------------------------------------------------------------------------------------


@run.command("scan")
@DIRECTORY
@click.option("--files", "kinds", multiple=True, metavar="KIND", help="Only these kinds of files; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Every file, and not the sums of each kind.")
@session_options
@JSON
def scan_files(
    directory: str, kinds: tuple[str, ...], everything: bool, master: str | None, memory: str | None, as_json: bool
) -> int:
    """Count records and bytes of all files, by kind and status: store, journal, queues, log, consumequeue, keyindex."""
    from warren.workers.spark.pipelines.rows import is_problem
    from warren.workers.spark.pipelines.scan import KINDS, check_kinds, scan

    check_kinds(kinds)
    running = look(directory)
    with started("scan", "reading files", master, memory, as_json) as session:
        lines = scan(session, directory, kinds or KINDS)
    problems = [line for line in lines if is_problem(line.status)]
    if as_json:
        output.print_json({"running": running, "ok": not problems, "files": [line._asdict() for line in lines]})
        return EXIT_PROBLEMS if problems else 0
    rows: dict[tuple[str, ...], list[int]] = {}
    for line in lines:
        one = everything or is_problem(line.status)
        sums = rows.setdefault((line.files, line.file if one else "", line.kind, line.status), [0, 0, 0])
        sums[0] += 1
        sums[1] += line.records
        sums[2] += line.bytes
    right = output.Column("records", right=True), output.Column("bytes", right=True)
    heads = [output.Column(name) for name in ("files", "of", "kind", "status")]
    output.print_rows(
        [*heads, *right],
        [
            [files, file or counted(n, "file"), kind, status, f"{records:,}", output.bytes_text(size)]
            for (files, file, kind, status), (n, records, size) in sorted(rows.items())
        ],
    )
    total = sum(line.bytes for line in lines)
    verdict = counted(len(problems), "problem") if problems else "no problem"
    print(f"{output.bytes_text(total)} in {counted(len({line.file for line in lines}), 'file')}: {verdict}")
    return EXIT_PROBLEMS if problems else 0


@run.command("audit")
@DIRECTORY
@session_options
@JSON
def audit_queues(directory: str, master: str | None, memory: str | None, as_json: bool) -> int:
    """Compare what the queues hold with the message store: ok, delta, orphan, lost; and garbage of each store file."""
    from warren.workers.spark.pipelines.audit import audit

    running = look(directory)
    with started("audit", "comparing queues and store", master, memory, as_json) as session:
        found = audit(session, directory)
    bad = bool(found.ids["lost"] or found.ids["delta"])
    if as_json:
        output.print_json(
            {
                "running": running,
                "ok": not bad,
                "ids": found.ids,
                "own": found.own,
                "queues": [queue._asdict() for queue in found.queues],
                "files": [file._asdict() for file in found.files],
            }
        )
        return EXIT_PROBLEMS if bad else 0
    columns = [output.Column("queue"), output.Column("verdict"), output.Column("messages", right=True)]
    if found.queues:
        output.print_rows(columns, [[row.queue, row.verdict, f"{row.messages:,}"] for row in found.queues])
    _print_garbage(found.files)
    ids = found.ids
    print(
        f"{ids['ok']:,} ok, {ids['delta']:,} delta, {ids['lost']:,} lost, {counted(ids['orphan'], 'orphan')} "
        f"({found.own:,} of them kept by programs)"
    )
    beside(running)
    return EXIT_PROBLEMS if bad else 0


def _print_garbage(files: list[Any]) -> None:
    if not files:
        return
    names = ("store file", "records", "bytes", "garbage", "of it")
    most = sorted(files, key=lambda file: -file.garbage_bytes)[:ROWS]
    output.print_rows(
        [output.Column(name, right=bool(n)) for n, name in enumerate(names)],
        [
            [
                f"{file.file}.rdq",
                f"{file.records:,}",
                output.bytes_text(file.bytes),
                output.bytes_text(file.garbage_bytes),
                f"{file.garbage_bytes / max(file.bytes, 1):.0%}",
            ]
            for file in most
        ],
    )
    if left := output.more(len(most), len(files), "--json has all"):
        print(left)


@run.command("consumequeue-check")
@DIRECTORY
@session_options
@JSON
def check_consume_queues(directory: str, master: str | None, memory: str | None, as_json: bool) -> int:
    """Compare consume queues of topics with the log: each unit with the record that it names, and back."""
    from warren.workers.spark.pipelines.consume_queue_check import FINE, consume_queue_check

    running = look(directory)
    with started("consumequeue-check", "comparing consume queues and log", master, memory, as_json) as session:
        found = consume_queue_check(session, directory)
    bad = [row for row in found if row.verdict not in FINE]
    if as_json:
        output.print_json({"running": running, "ok": not bad, "queues": [row._asdict() for row in found]})
        return EXIT_PROBLEMS if bad else 0
    columns = [
        output.Column(name, right=name in ("messages", "first position"))
        for name in ("topic", "queue", "verdict", "messages", "first position")
    ]
    if found:
        output.print_rows(
            columns, [[row.topic, str(row.queue), row.verdict, f"{row.messages:,}", f"{row.first:,}"] for row in found]
        )
    total = sum(row.messages for row in found)
    wrong = sum(row.messages for row in bad)
    print(f"{counted(total, 'message')}: {f'{wrong:,} differ' if bad else 'no difference'}")
    if bad:
        print(f"{command('check', directory, '--repair')} makes consume queues again from the log, with the node down")
        beside(running)
    return EXIT_PROBLEMS if bad else 0


@run.command("keyindex-rebuild")
@DIRECTORY
@click.option("--compare", is_flag=True, help="Only compare; also beside a running node.")
@JSON
def rebuild_key_index(directory: str, compare: bool, as_json: bool) -> int:
    """Compare the key index of topics with the log and, if it differs, make it again; the node is down.

    Consume queues and checkpoint are made again with it. No session is started: the core does this by itself.
    """
    from warren.workers.spark.pipelines import key_index

    rest = ANEW if compare else "the same command begins anew, and makes again what is not whole"
    told = progress("comparing the key index with the log", as_json, "MiB", "comparing the key index with the log")
    with interruptible(rest), told as tell:
        found = key_index.compare(directory, tell or (lambda _done, _all: None), rebuild=not compare)
    if as_json:
        output.print_json({"ok": not found.problems, **found._asdict()})
    else:
        for line in found.rebuilt:
            print(output.escaped(line))
        for line in [*found.problems, *found.other]:
            print(f"PROBLEM  {output.escaped(line)}")
        verdict = counted(len(found.problems), "problem") if found.problems else "no problem"
        print(f"{counted(found.keys, 'key')}: {verdict}")
    return EXIT_PROBLEMS if found.problems else 0


# ---- move -----------------------------------------------------------------------------------------------------------


@run.command("export")
@DIRECTORY
@click.argument("folder", metavar="OUT")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only these topics; may be repeated.")
@click.option("--skip-lost", is_flag=True, help="Go on where retention removed messages that were never exported.")
@session_options
@JSON
def export_topics(
    directory: str,
    folder: str,
    topics: tuple[str, ...],
    skip_lost: bool,
    master: str | None,
    memory: str | None,
    as_json: bool,
) -> int:
    """Export messages of topics to Parquet: OUT/topic=…/date=…/. A run into the same folder adds what came since."""
    from warren.workers.spark.pipelines.export import export

    look(directory)
    rest = f"{folder} keeps what earlier runs exported; the same command goes on from there"
    with started("export", "exporting", master, memory, as_json, rest) as session:
        done = export(session, directory, folder, topics, skip_lost=skip_lost)
    if as_json:
        output.print_json(done._asdict())
        return EXIT_PROBLEMS if done.damaged else 0
    if done.removed:
        print(f"removed {counted(done.removed, 'file')} of a run that did not end")
    for topic, count in sorted(done.records.items()):
        print(f"{topic}: {counted(count, 'message')}")
    news = f"{counted(sum(done.records.values()), 'message')} in {counted(done.files, 'file')}"
    if not done.records:
        news = "nothing new"
    print(f"{news}; {folder} has {counted(done.total, 'message')}, all up to position {done.end:,} of the log")
    if done.damaged:
        print(
            f"PROBLEM  {counted(done.damaged, 'range')} of the log could not be read: "
            f"{command('spark', 'run', 'scan', directory, '--files', 'log')} shows them"
        )
    return EXIT_PROBLEMS if done.damaged else 0


@run.command("republish")
@DIRECTORY
@click.option("--from-parquet", metavar="PATH", help="Rows of Parquet files: value, and key and headers if there are.")
@click.option("--from-queue", metavar="NAME", help="Messages that are ready in a queue; they are taken from it.")
@click.option("--to-queue", metavar="NAME")
@click.option("--to-topic", metavar="NAME")
@click.option("--to-exchange", metavar="NAME", help="By the key of each message, or by --routing-key.")
@click.option("--routing-key", metavar="KEY")
@click.option("--rate", type=output.Rate(), metavar="N", help="At most N messages per second.")
@click.option("--to-dir", metavar="DIR", help="Publish to another node; default: the same.")
@session_options
@JSON
def republish_messages(
    directory: str,
    from_parquet: str | None,
    from_queue: str | None,
    to_queue: str | None,
    to_topic: str | None,
    to_exchange: str | None,
    routing_key: str | None,
    rate: float | None,
    to_dir: str | None,
    master: str | None,
    memory: str | None,
    as_json: bool,
) -> None:
    """Publish messages again, at least once: from Parquet files, or from a queue as one of dead letters.

    A run that is repeated publishes rows of files again. Messages of a queue leave it when they are published.
    """
    from warren.workers.spark.options import absolute
    from warren.workers.spark.pipelines import republish

    if (from_parquet is None) == (from_queue is None):
        raise UsageError("give one of --from-parquet and --from-queue")
    target = republish.Target(absolute(to_dir or directory), to_queue, to_topic, to_exchange, routing_key)
    if not look(directory) and from_queue is not None:
        raise UsageError(f"the messages of a queue come from a running node: start it with {command('up', directory)}")
    rest = (
        "what was published stays; the same command publishes every row again"
        if from_queue is None
        else "what was published stays; the same command does the rest, and may publish the last batch again"
    )
    with started("republish", "publishing", master, memory, as_json, rest) as session:
        if from_parquet is not None:
            count = republish.from_parquet(session, from_parquet, target, rate)
        else:
            assert from_queue is not None
            count = republish.from_queue(session, absolute(directory), from_queue, target, rate)
    if as_json:
        output.print_json({"messages": count, "to": target.options})
    else:
        print(f"{counted(count, 'message')} published to {target.text}")


@run.command("report")
@DIRECTORY
@click.argument("folder", metavar="OUT")
@session_options
@JSON
def write_report(directory: str, folder: str, master: str | None, memory: str | None, as_json: bool) -> None:
    """Write OUT/report.html with pictures: throughput, latency, sizes, hot keys, queues, garbage of the store.

    And tables: how often what queues hold was delivered, dead letters, and when messages of topics go.
    """
    from warren.workers.spark.pipelines import pictures
    from warren.workers.spark.pipelines.report import report

    pictures.check_matplotlib()
    look(directory)
    with started("report", "reading files", master, memory, as_json) as session:
        made = report(session, directory, folder)
    if as_json:
        output.print_json({"files": [str(path) for path in made]})
    else:
        print(f"wrote {made[0]}, and {counted(len(made) - 1, 'picture')} beside it")
