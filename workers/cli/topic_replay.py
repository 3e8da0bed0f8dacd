"""`warren topic replay`: a queue is filled from a topic."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from warren.engine.errors import UsageError
from warren.engine.saying import command, counted, shown
from warren.workers.cli import output
from warren.workers.cli.attached import attached
from warren.workers.cli.topic_words import DIRECTORY, JSON, NAME, found, moment

if TYPE_CHECKING:
    from warren.workers.faces.replay import Replayed, Where
    from warren.workers.faces.topics import Topic

_EARLIEST, _LATEST = "earliest", "latest"
_OFFSETS = re.compile(r"\d+=\d+(,\d+=\d+)*")
_WHERE = "earliest, latest, a time as 2026-05-01T12:30 (local; with Z or +02:00: of that zone), or QUEUE=OFFSET,…"


def _where(option: str, text: str, topic: Topic) -> Where:
    """A place in a topic. Raises UsageError."""
    if text in (_EARLIEST, _LATEST):
        return text
    if text.isascii() and text.isdigit():
        if topic.queues > 1:
            raise UsageError(
                f"{option} {text} is an offset, and offsets are a queue's: write 0={text},1=… or give a time"
            )
        return {0: int(text)}
    if _OFFSETS.fullmatch(text):
        return {int(queue): int(offset) for queue, offset in (item.split("=") for item in text.split(","))}
    return moment(option, text, "earliest, latest, QUEUE=OFFSET,… or ")


def _places(offsets: Mapping[int, int]) -> str:
    """Offsets by queue, as --start and --end take them."""
    return ",".join(f"{queue}={offset}" for queue, offset in sorted(offsets.items()))


class _Bar:
    """A progress bar on a terminal, else nothing."""

    def __init__(self, total: int, seen: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("replayed"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not seen)
        self._task = self._bar.add_task("", total=total)
        self.last: Replayed | None = None

    def __enter__(self) -> Callable[[Replayed], None]:
        self._bar.start()
        return self._show

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def _show(self, done: Replayed) -> None:
        self.last = done
        self._bar.update(self._task, completed=done.messages + done.passed_by + done.lost)


@click.command("replay")
@DIRECTORY
@NAME
@click.argument("queue")
@click.option("--start", default=_EARLIEST, show_default=True, metavar="WHERE", help=f"From there on: {_WHERE}.")
@click.option("--end", default=_LATEST, show_default=True, metavar="WHERE", help="Before that: the same.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@click.option("--key", help="Only messages with this key.")
@click.option("--rate", type=output.Rate(), help="Messages a second, at most.")
@JSON
def replay_topic(
    directory: str,
    name: str,
    queue: str,
    start: str,
    end: str,
    tags: tuple[str, ...],
    key: str | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Put messages of the topic NAME into QUEUE, in the order of the log, confirmed. They stay in the topic.

    Each is the message that it was, with the header x-topic. When it ends early, it says which command does the rest;
    a queue with a deduplication_window takes no message twice.
    """
    from warren.workers.faces.replay import Plan

    began = time.monotonic()
    with (
        output.found_in(directory, queue=queue),
        found(directory, name),
        attached(directory, "warren-replay") as node,
    ):
        topic = node.topic(name, create=False)
        target = node.queue(queue, create=False)
        plan = Plan.of(topic, _where("--start", start, topic), _where("--end", end, topic))
        bar = _Bar(plan.records, sys.stderr.isatty() and not as_json)
        try:
            with output.terminated_as_interrupted(), bar as show:
                done = topic.replay(target, plan.first, plan.end, tags=tags or None, key=key, rate=rate, progress=show)
        except BaseException as error:
            if bar.last is not None or not isinstance(error, UsageError):  # else it would be refused again
                at = bar.last.next_offsets if bar.last is not None else plan.first
                words = ["--start", _places(at), "--end", _places(plan.end)]
                words += [word for tag in tags for word in ("--tag", tag)]
                words += [] if key is None else ["--key", key]
                words += [] if rate is None else ["--rate", f"{rate:.15g}"]
                words += ["--json"] if as_json else []
                rest = command("topic", "replay", directory, name, queue, *words)
                made = counted(bar.last.messages if bar.last else 0, "message")
                output.note(f"{made} replayed; {rest} does the rest")
            raise
        left_out = end != _LATEST and any(topic.offsets(of)[1] > last for of, last in plan.end.items())
    seconds = time.monotonic() - began
    if as_json:
        told = {"replayed": done.messages, "bytes": done.bytes, "passed_by": done.passed_by, "lost": done.lost}
        output.print_json({**told, "seconds": round(seconds, 3), "next": done.next_offsets})
        return
    behind = "what --end left out, and what comes," if left_out else "what was appended since it began, and what comes,"
    lost = f", {done.lost:,} were gone before they were read" if done.lost else ""
    output.say(
        f"{counted(done.messages, 'message')} of topic {name} replayed into queue {queue} in {seconds:.2f} s{lost}; "
        f"{behind} begins at --start {shown(_places(done.next_offsets))}",
        error=True,
    )


COMMANDS = (replay_topic,)
