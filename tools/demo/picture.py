"""The demo's result as a picture, and as a page with it: DIR/report.html and DIR/result.png."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warren.engine.kernel import atomic_file
from warren.tools.demo import report
from warren.tools.demo.inputs import LATE, Input
from warren.workers.spark.pipelines.pictures import COLOURS, GREY, INK, check_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from warren.tools.demo.run import Outcome

PAGE, PICTURE = "report.html", "result.png"
CARRIERS = 5
KEYS = 12
DPI = 110
#: height of what stands above the bars of the latencies, of theirs
LABELS = 0.2
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1180px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.5em}img{width:100%}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .9em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
    ".ok{color:#00794f}.bad{color:#b00020}dt{font-weight:600}dd{margin:0 0 .5em}"
)


def write(outcome: Outcome, given: Input, folder: Path) -> Path:
    """Draw, and return the page. Raises Error (no matplotlib), StoreError."""
    check_matplotlib()
    picture = draw(outcome, given)
    with atomic_file.file_explained(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        # given away: for whoever the umask lets read them
        atomic_file.replace(folder / PICTURE, picture, 0o666)
        atomic_file.replace(folder / PAGE, page(outcome, given, picture).encode(), 0o666)
    return folder / PAGE


def draw(outcome: Outcome, given: Input) -> bytes:
    """The picture as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.6), dpi=DPI, layout="constrained")
    axes = figure.subplots(2, 2)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(GREY)
        each.tick_params(colors=INK, labelsize=9)
        each.grid(axis="y", color="#ECECEC", linewidth=0.8)
        each.set_axisbelow(True)
    (_by_hour if given.is_flights else _by_key)(axes[0, 0], outcome)
    _over_time(axes[0, 1], outcome)
    _latencies(axes[1, 0], outcome)
    _micro_batches(axes[1, 1], outcome)
    to = io.BytesIO()
    figure.savefig(to, format="png")
    return to.getvalue()


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, color=INK)


def _by_hour(axes: Axes, outcome: Outcome) -> None:
    """What the queue `report` says: mean delays of the largest carriers."""
    from matplotlib.ticker import MaxNLocator

    flights: dict[str, int] = {}
    for row in outcome.rows:
        flights[row.key] = flights.get(row.key, 0) + row.messages
    for colour, carrier in zip(COLOURS, sorted(flights, key=lambda key: -flights[key])[:CARRIERS], strict=False):
        points = sorted(
            (row.hour, row.value_mean)
            for row in outcome.rows
            if row.key == carrier and row.hour is not None and row.value_mean is not None
        )
        axes.plot(*zip(*points, strict=True), color=colour, label=carrier, linewidth=1.8)
    axes.legend(frameon=False, fontsize=9, title="carrier", title_fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("hour of departure", fontsize=9)
    axes.set_ylabel("minutes", fontsize=9)
    _title(axes, "Mean delay of departures from New York, 2013")


def _by_key(axes: Axes, outcome: Outcome) -> None:
    largest = sorted(outcome.rows, key=lambda row: (-row.messages, row.key))[:KEYS]
    axes.bar(range(len(largest)), [row.messages for row in largest], color=COLOURS[0])
    axes.set_xticks(range(len(largest)), [row.key[:14] for row in largest], rotation=30, ha="right")
    _title(axes, "Messages of the largest groups")


def _over_time(axes: Axes, outcome: Outcome) -> None:
    at = [sample.second for sample in outcome.samples]
    totals = outcome.totals
    lines = ("published", "received", "streamed", "copied")
    names = ("published", "received and acked", "queue → groups (Spark)", "topic → topic (Spark)")
    for colour, line, name in zip(COLOURS, lines, names, strict=False):
        done = [100 * min(1.0, getattr(sample, line) / max(1, getattr(totals, line))) for sample in outcome.samples]
        axes.plot(at, done, color=colour, label=name, linewidth=1.8)
    for number, killed in enumerate(outcome.killed):
        axes.axvline(
            killed.second, color="#D55E00", linewidth=1, linestyle=":", label="SIGKILL" if not number else None
        )
    axes.legend(frameon=False, fontsize=9, loc="center")
    axes.set_xlabel("seconds since the start", fontsize=9)
    axes.set_ylabel("% done", fontsize=9)
    _title(axes, f"{outcome.published:,} messages from process to process")


def _latencies(axes: Axes, outcome: Outcome) -> None:
    from matplotlib.ticker import LogFormatter

    taken = np.maximum(outcome.latencies, 1e-3)
    bins = np.geomspace(taken.min(), max(taken.max(), taken.min() * 1.01), 60)
    axes.hist(taken, bins=bins.tolist(), color=COLOURS[0])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    axes.set_ylim(0, axes.get_ylim()[1] * (1 + LABELS))  # room above the bars, for a line of text each
    middle = float(np.sqrt(bins[0] * bins[-1]))
    for number, (name, share) in enumerate((("p50", 50), ("p99", 99))):
        where = float(np.percentile(taken, share))
        axes.axvline(where, color=INK, linewidth=1, linestyle="--")
        left = where > middle
        axes.annotate(
            f"{name} {where:,.1f} ms",
            (where, 1 - number * LABELS / 2 / (1 + LABELS)),
            (-4 if left else 4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=9,
            va="top",
            ha="right" if left else "left",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over the other one's line
        )
    axes.set_xlabel("milliseconds from publish to receive, under full load", fontsize=9)
    axes.set_ylabel("messages", fontsize=9)
    _title(axes, "Latency")


def _micro_batches(axes: Axes, outcome: Outcome) -> None:
    from matplotlib.ticker import MaxNLocator

    streams = ((outcome.batches, "queue → groups"), (outcome.copy_batches, "topic → topic, transactional"))
    for number, (batches, name) in enumerate(streams):
        places = [place + 0.8 + 0.4 * number for place in range(len(batches))]
        axes.bar(places, [ms / 1000 for _rows, ms in batches], 0.38, color=COLOURS[number], label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9)
    axes.set_xlabel("micro-batch (the first one of a driver loads and compiles)", fontsize=9)
    axes.set_ylabel("seconds", fontsize=9)
    _title(axes, "Spark's micro-batches")


def page(outcome: Outcome, given: Input, picture: bytes) -> str:
    """The page, with the picture in it."""
    check = outcome.check
    verdict = (
        f'<p class="ok">The check passed: all {check.groups} groups are equal to the direct computation over the same '
        "file, and every message came exactly once into every queue and topic.</p>"
        if check.ok
        else '<p class="bad">The check FAILED.</p>' + _list(check.problems[: report.PROBLEMS_SHOWN])
    )
    rows = [
        (name, *(f"{count:,}" for count in (each.expected, each.received, each.missing, each.doubled + each.foreign)))
        for kind, found in (("queue", check.queues), ("topic", check.topics))
        for each in found
        for name in [f"{kind} {each.name}"]
    ]
    figures = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in report.figures(outcome)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Warren: the demo\'s result</title>'
        f"<style>{_STYLE}</style><h1>Warren: {html.escape(Path(given.path).name)} from process to process, and through "
        f'Spark</h1>{verdict}<img alt="Results" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
        f"<h2>Every message exactly once</h2>{_table(('', 'published', 'received', 'missing', 'doubled'), rows)}"
        f"<p>The topic <code>{LATE}</code> was written by Spark in transactions.</p><dl>{figures}</dl></html>\n"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(heads, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
