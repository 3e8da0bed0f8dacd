"""What the demo shows: progress while it runs, and at the end the result, the check and the figures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from warren.tools.demo.chaos import Progress
from warren.tools.demo.inputs import LATE, Input
from warren.tools.demo.run import Outcome
from warren.tools.demo.stream import Batch, Row

PLAIN_EVERY_S = 5.0
ROWS_SHOWN = 12
PROBLEMS_SHOWN = 20


class Bar:
    """Progress bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", justify="right"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._since: dict[str, float] = {}

    def stage(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(f"[dim]·[/] {text}", highlight=False)

    def progress(self, progress: Progress) -> None:
        """Move the bars."""
        now = time.monotonic()
        names = {"publish": "published", "receive": "received", "stream": "streamed", "copy": "copied"}
        for name, counter in names.items():
            done = getattr(progress, counter)
            total = getattr(progress, f"{name}_total")
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=total, rate="")
            if done:
                since = self._since.setdefault(name, now)
                if now > since and done < total:
                    self._bars.update(self._tasks[name], rate=f"{done / (now - since):,.0f}/s")
                self._bars.update(self._tasks[name], completed=min(done, total), total=total)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bars within the block."""
        with self._bars:
            yield


def _waits_for(progress: Progress) -> str:
    """What is not through yet, the first of it: lines that stay the same for long say why."""
    if progress.published < progress.publish_total:
        return "; publishing"
    if progress.received < progress.receive_total:
        return "; waiting for the consumers"
    if not progress.spark_up:
        return "; waiting for Spark, which takes longest to start"
    if not progress.streamed:
        return "; waiting for the first batch of Spark's stream"
    if progress.streamed < progress.stream_total or progress.copied < progress.copy_total:
        return "; waiting for Spark's streams"
    return "; comparing the results"


class Plain:
    """Lines, for where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def stage(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False)

    def progress(self, progress: Progress) -> None:
        """Print a line every few seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PLAIN_EVERY_S
        self.stage(
            f"published {progress.published:,} of {progress.publish_total:,}, "
            f"received {progress.received:,} of {progress.receive_total:,}, "
            f"streamed {progress.streamed:,} of {progress.stream_total:,}, "
            f"copied {progress.copied:,} of {progress.copy_total:,}{_waits_for(progress)}"
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Nothing to be shown or removed."""
        yield


class Silent:
    """For --json."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def progress(self, progress: Progress) -> None:
        """Say nothing."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show nothing."""
        yield


def watcher(console: Console, json: bool) -> Bar | Plain | Silent:
    """Return who shows the progress."""
    if json:
        return Silent()
    return Bar(console) if console.is_terminal else Plain(console)


# ---- the end --------------------------------------------------------------------------------------------------------


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _warm(batches: list[Batch]) -> tuple[int, float]:
    """Messages and seconds of a stream's batches behind the first, in which Spark loads and compiles."""
    later = batches[1:]
    return sum(rows for rows, _ms in later), sum(ms for _rows, ms in later) / 1000


def elided(outcome: Outcome) -> dict[str, int]:
    """What never had to be done."""
    status = outcome.status
    return {
        "manifests": outcome.direct.blocks,
        "manifest_references": 2 * outcome.direct.blocks,
        "store_writes_eliminated": sum(status[store]["eliminated"] for store in ("store", "store_transient")),
        "queue_entries": sum(len(found) for found in outcome.direct.expected.values()),
        "segment_files_seen": outcome.segment_files,
    }


def _batches_text(batches: list[Batch]) -> str:
    messages, seconds = _warm(batches)
    text = f"the first took {batches[0][1] / 1000:.1f} s (Spark loads and compiles)"
    return text + (f", the others {seconds:.1f} s: {_rate(messages, seconds):,.0f}/s" if messages else "")


def _elided_text(outcome: Outcome) -> str:
    found = elided(outcome)
    segments = found["segment_files_seen"]
    return (
        f"{found['manifests']:,} large bodies went to the store once for {found['manifest_references']:,} queue "
        f"entries, and {found['store_writes_eliminated']:,} of them were acked before they reached the disk; of "
        f"{found['queue_entries']:,} entries {'none' if not segments else f'some (in {segments} files)'} waited for so "
        "long that they were written a second time, into files for long queues"
    )


def as_json(outcome: Outcome, given: Input) -> dict[str, Any]:
    """Return the report of --json."""
    check = outcome.check
    return {
        "ok": check.ok,
        "input": given.path,
        "records": outcome.direct.records,
        "groups": check.groups,
        "problems": check.problems[:PROBLEMS_SHOWN],
        "queues": [dataclasses.asdict(queue) for queue in check.queues],
        "topics": [dataclasses.asdict(topic) for topic in check.topics],
        "publish": {
            "messages": outcome.published,
            "bytes": outcome.published_bytes,
            "seconds": round(outcome.publish_seconds, 3),
            "messages_per_s": _rate(outcome.published, outcome.publish_seconds),
            "in_calls_seconds": round(outcome.in_calls_seconds, 3),
            "messages_per_s_in_calls": _rate(outcome.published, outcome.in_calls_seconds),
        },
        "receive": {
            "messages": outcome.received,
            "seconds": round(outcome.receive_seconds, 3),
            "messages_per_s": _rate(outcome.received, outcome.receive_seconds),
            "latency_ms": {name: round(value, 3) for name, value in outcome.latencies_ms.items()},
        },
        "stream": {
            "messages": outcome.streamed,
            "start_seconds": round(outcome.spark_start_seconds, 3),
            "batches": [{"messages": rows, "ms": ms} for rows, ms in outcome.batches],
            "messages_per_s_warm": _rate(*_warm(outcome.batches)),
            "restarts": outcome.restarts,
            "clients": outcome.spark_clients,
        },
        "copy": {
            "messages": outcome.copied,
            "batches": [{"messages": rows, "ms": ms} for rows, ms in outcome.copy_batches],
            "messages_per_s_warm": _rate(*_warm(outcome.copy_batches)),
        },
        "elided": elided(outcome),
        "killed": [dataclasses.asdict(killed) for killed in outcome.killed],
        "seconds": round(outcome.seconds, 3),
        "kept": str(outcome.kept) if outcome.kept else None,
        "report": str(outcome.page) if outcome.page else None,
    }


def show(console: Console, outcome: Outcome, given: Input) -> None:
    """Print the result, the check and the figures."""
    console.print(_result(outcome.rows, given))
    console.print(_queues(outcome))
    for problem in outcome.check.problems[:PROBLEMS_SHOWN]:
        console.print(f"  {problem}", style="red", markup=False)
    left = len(outcome.check.problems) - PROBLEMS_SHOWN
    if left > 0:
        console.print(f"  and {left} more", style="red")
    console.print(_figures(outcome))
    if outcome.page is not None:
        console.print(f"As a picture: {outcome.page}", markup=False)
    if outcome.kept:
        console.print(f"Kept: node and results in {outcome.kept}", markup=False)
    if outcome.check.ok:
        console.print(
            f"[bold green]The check passed[/]: all {outcome.check.groups} groups are equal to the direct "
            "computation over the same file, and every message came exactly once into every queue and topic."
        )
    else:
        console.print("[bold red]The check FAILED.[/]")


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _result(rows: list[Row], given: Input) -> Table:
    flights = given.is_flights
    shown = sorted(rows, key=lambda row: (-row.messages, row.key))[:ROWS_SHOWN]
    table = Table(
        title=f"From the queue `report`: the {len(shown)} largest of {len(rows)} groups",
        title_justify="left",
    )
    heads = (
        ("carrier", "hour", "flights", "departures", "cancellations", "mean delay (min)", "95th percentile (min)")
        if flights
        else ("key", "", "messages", "with a value", "without", "mean", "95th percentile")
    )
    for index, head in enumerate(heads):
        if flights or index != 1:
            table.add_column(head, justify="left" if index == 0 else "right")
    for row in shown:
        cells = [row.key, "" if row.hour is None else str(row.hour), f"{row.messages:,}", f"{row.present:,}"]
        cells += [f"{row.messages - row.present:,}", _number(row.value_mean), _number(row.value_p95)]
        table.add_row(*(cell for index, cell in enumerate(cells) if flights or index != 1))
    return table


def _queues(outcome: Outcome) -> Table:
    table = Table(title="Every message exactly once per queue and topic", title_justify="left")
    table.add_column("queue")
    for head in ("published", "received", "missing", "doubled", "marked redelivered"):
        table.add_column(head, justify="right")
    table.add_column("")
    for queue in outcome.check.queues:
        counts = (queue.expected, queue.received, queue.missing, queue.doubled + queue.foreign, queue.redelivered)
        table.add_row(queue.name, *(f"{count:,}" for count in counts), "[green]ok[/]" if queue.ok else "[red]WRONG[/]")
    records = outcome.direct.records
    counted = sum(row.messages for row in outcome.rows)
    marked = sum(row.redelivered for row in outcome.rows)
    missing, doubled = max(records - counted, 0), max(counted - records, 0)
    good = "[green]ok[/]" if counted == records else "[red]WRONG[/]"
    table.add_row("spark", *(f"{count:,}" for count in (records, counted, missing, doubled, marked)), good)
    for topic in outcome.check.topics:
        found = (topic.expected, topic.received, topic.missing, topic.doubled + topic.foreign)
        good = "[green]ok[/]" if topic.ok else "[red]WRONG[/]"
        table.add_row(f"topic {topic.name}", *(f"{count:,}" for count in found), "–", good)
    return table


def _figures(outcome: Outcome) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, text in figures(outcome):
        table.add_row(name, text)
    return table


def figures(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """What was measured, and what of: (name, text)."""
    megabytes = outcome.published_bytes / 1e6
    published = (
        f"{outcome.published:,} messages, {megabytes:,.0f} MB, synced, in {outcome.publish_seconds:.1f} s: "
        f"{_rate(outcome.published, outcome.publish_seconds):,.0f}/s, of which Warren took "
        f"{outcome.in_calls_seconds:.1f} s ({_rate(outcome.published, outcome.in_calls_seconds):,.0f}/s); the rest is "
        "reading the file and making JSON"
    )
    yield "published", published
    received = (
        f"{outcome.received:,} in {outcome.receive_seconds:.1f} s: "
        f"{_rate(outcome.received, outcome.receive_seconds):,.0f}/s, as fast as they were published"
    )
    yield "received, acked", received
    latencies = ", ".join(f"{name} {value:,.1f} ms" for name, value in outcome.latencies_ms.items())
    yield "publish → receive", f"{latencies} (under full load: the time in the queue)"
    yield "Spark's start", f"{outcome.spark_start_seconds:.1f} s, while everything else went on"
    yield (
        "queue → groups",
        f"{outcome.streamed:,} in {len(outcome.batches)} micro-batches; {_batches_text(outcome.batches)}",
    )
    copied = (
        f"{outcome.copied:,} read in {len(outcome.copy_batches)} micro-batches, "
        f"{len(outcome.direct.in_topics[LATE]):,} written in transactions; {_batches_text(outcome.copy_batches)}"
    )
    yield "topic → topic", copied
    executors = [name for name in outcome.spark_clients if "-executor-" in name]
    yield "Spark's clients", f"{len(executors)} executor workers attached, such as {', '.join(executors[:2])}"
    yield "work saved", _elided_text(outcome)
    if outcome.killed:
        kills = ", ".join(f"{killed.what} {killed.index} ({killed.when})" for killed in outcome.killed)
        yield "killed on the way", kills
    if outcome.restarts:
        yield "stream restarts", f"{len(outcome.restarts)} from the checkpoint"
    yield "in all", f"{outcome.seconds:.1f} s"
