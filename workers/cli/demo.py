"""`warren demo`: the main job on real records, from producers to the table, which then checks itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from warren.workers.cli import output

if TYPE_CHECKING:
    from rich.console import Console

EXIT_CHECK_FAILED = 1
PLAIN_WIDTH = 120


@click.command()
@click.option(
    "--input", "path", metavar="FILE", help="CSV, JSON lines or a log, instead of the flights; .gz and .zip too."
)
@click.option(
    "--key", metavar="NAME", help="Column to group by (in a log: the number of the word); default: the first."
)
@click.option("--value", metavar="NAME", help="Column to compute sum, mean and 95th percentile of.")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    help="Directory for node and results, kept afterwards; default: a temporary one.",
)
@click.option("--rows", type=output.Count(min=1), metavar="N", help="Only the first N records.")
@click.option("--chaos", is_flag=True, help="SIGKILL servers, a consumer, and Spark's workers and driver on the way.")
@click.option("--cluster", is_flag=True, help="Spark as a local cluster: two executor JVMs.")
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option(
    "--report", "page", metavar="DIR", help="Write the result as a picture, and a page with it, into this directory."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def demo(
    path: str | None,
    key: str | None,
    value: str | None,
    directory: str | None,
    rows: int | None,
    chaos: bool,
    cluster: bool,
    keep: bool,
    page: str | None,
    as_json: bool,
) -> int:
    """Publish 336,776 real flights, consume them, stream them through Spark, and check the result.

    Two producers publish the flights that left New York in 2013 to an exchange; two consumers receive and ack them;
    a Spark stream computes departures, cancellations, mean and 95th-percentile delay per carrier and hour, writes
    Parquet, and publishes its rows, which are printed. The exchange leads into a topic, too; a second stream copies
    the flights that left an hour late or more into another topic, in transactions. The exit code is 0 only if
    everything equals a direct computation over the same file.
    """
    from warren.tools.demo import report
    from warren.tools.demo.inputs import find_input
    from warren.tools.demo.run import Wishes, run

    given = find_input(path, key, value, rows)
    shown_on = console(as_json)
    watcher = report.watcher(shown_on, as_json)
    place = Path(directory).absolute() if directory else None
    with output.terminated_as_interrupted(), watcher.shown():
        wishes = Wishes(given, place, chaos=chaos, cluster=cluster, keep=keep, report=Path(page) if page else None)
        outcome = run(wishes, watcher)
    if as_json:
        output.print_json(report.as_json(outcome, given))
    else:
        report.show(shown_on, outcome, given)
    return 0 if outcome.check.ok else EXIT_CHECK_FAILED


def console(as_json: bool) -> Console:
    """Where the demo shows what it does. In a file tables are `PLAIN_WIDTH` wide, and a line of text stays one."""
    from rich.console import Console

    made = Console(stderr=as_json)
    return made if made.is_terminal else Console(stderr=as_json, width=PLAIN_WIDTH, soft_wrap=True)
