"""The pictures of a report, and its page. Drawn by matplotlib, without a display."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from warren.engine.errors import Error
from warren.engine.saying import counted
from warren.workers.spark.pipelines import retention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from warren.workers.spark.pipelines.facts import Facts, Kept

#: name, title, what is seen
PICTURES = (
    ("throughput", "Throughput of topics", "Messages that were stored, by when."),
    ("latency", "Latency of topics", "From when a message was sent, as its producer says, to when it was stored."),
    (
        "sizes",
        "Sizes of bodies",
        "Each bar has the bodies with fewer bytes than it says, and at least as many as the bar before it says.",
    ),
    ("keys", "Hot keys", "The keys with the most messages."),
    ("queues", "Queues", "What queues hold: bodies beside the row, and bodies in the message store."),
    ("store", "Message store", "Bytes of each file: what is needed, and garbage that waits for a collection."),
)
#: told from each other also by people who see no red and green (Okabe and Ito)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5B5B5B")
GREY, INK = "#C4C4C4", "#333333"
WIDTH, HEIGHT, DPI = 9.0, 3.6, 110
BARS_MAX = 40
TICKS_MAX = 8
LATENCY_MIN_MS = 0.5  #: clocks of milliseconds tell nothing below: what takes none is shown here
UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))
#: lines of so few points show each of them
POINTS_FEW = 30
#: a shorter time is shown as what came second by second, and not as a rate
RATE_MIN_S = 10


def check_matplotlib() -> None:
    """Raise Error unless matplotlib is there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Error("a report draws with matplotlib, which is not installed: pip install 'warren[spark]'")


def draw(name: str, facts: Facts) -> bytes | None:
    """A picture as PNG; None: there is nothing to show."""
    return _DRAWN[name](facts)


def _figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#ECECEC", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _png(figure: Figure) -> bytes:
    to = io.BytesIO()
    figure.savefig(to, format="png")
    return to.getvalue()


def _legend(axes: Axes, entries: int) -> None:
    if entries > 1:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _short(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _quantity(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:,.3g} TiB"


def _counts(axis: Any) -> None:
    """An axis of numbers of things: there are no halves of them."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=TICKS_MAX, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    _label(axis, _quantity)


def _label(axis: Any, text: Callable[[float], str]) -> None:
    axis.set_major_formatter(lambda value, _place: text(value))


def _whole(number: float) -> str:
    """Bytes at powers of two are whole, whatever the float says."""
    return _bytes(round(number))


def _powers_of_two(axes: Axes, most: float) -> None:
    """Places of an axis of bytes that are whole numbers of KiB, MiB …"""
    from matplotlib.ticker import MultipleLocator

    step = 1
    while step * TICKS_MAX < most:
        step *= 2
    axes.xaxis.set_major_locator(MultipleLocator(step))


# ---- over time ------------------------------------------------------------------------------------------------------


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, label: str, width: float = 1.6) -> None:
    """A line, of few points with each of them, which no axis cuts."""
    few = len(x) <= POINTS_FEW
    axes.plot(
        x,
        y,
        color=colour,
        linewidth=width,
        label=label,
        marker="o" if few else None,
        markersize=2.5 + width,
        clip_on=not few,
        zorder=3,
    )


def _first(facts: Facts) -> float:
    return min(point.second for point in facts.points)


def _span(facts: Facts) -> float:
    """Seconds from the beginning of the first point to the end of the last one."""
    return max(point.second for point in facts.points) - _first(facts) + facts.bucket_s


def _time_axis(axes: Axes, facts: Facts) -> None:
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    span = _span(facts)
    size, unit = next(((size, unit) for size, unit in UNITS if span > 3 * size), (1, "seconds"))
    if size > 1:
        steps = (n * size for n in (1, 2, 3, 6, 12, 24, 48, 168, 336, 672))
        axes.xaxis.set_major_locator(MultipleLocator(next((step for step in steps if span / step <= 12), span / 8)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    begin = datetime.fromtimestamp(_first(facts), UTC).strftime("%Y-%m-%d %H:%M:%S")
    axes.set_xlabel(f"{unit} from {begin} UTC", color=INK, fontsize=9)
    _label(axes.xaxis, lambda seconds: f"{seconds / size:g}")
    axes.set_xlim(0, span)


def _throughput(facts: Facts) -> bytes | None:
    if not facts.points:
        return None
    figure, axes = _figure()
    first, bucket = _first(facts), facts.bucket_s
    is_rate = _span(facts) >= RATE_MIN_S
    topics = sorted(
        {point.topic for point in facts.points},
        key=lambda topic: -sum(point.messages for point in facts.points if point.topic == topic),
    )
    for number, topic in enumerate(topics):
        mine = {round((p.second - first) / bucket): p.messages for p in facts.points if p.topic == topic}
        places = range(min(mine), max(mine) + 1)  # where nothing came there is no gap, but none
        x = [(place + 0.5) * bucket for place in places]
        y = [mine.get(place, 0) / (bucket if is_rate else 1) for place in places]
        _line(axes, x, y, COLOURS[min(number, len(COLOURS) - 1)], _short(topic))
    axes.set_ylabel("messages/s" if is_rate else "messages, second by second", color=INK, fontsize=9)
    axes.set_ylim(0, 1.08 * max(axes.get_ylim()[1], 1e-9))
    if is_rate:
        _label(axes.yaxis, _quantity)
    else:
        _counts(axes.yaxis)
    _time_axis(axes, facts)
    _legend(axes, len(topics))
    return _png(figure)


def _latency(facts: Facts) -> bytes | None:
    from matplotlib.ticker import LogLocator, NullLocator

    if not facts.points:
        return None
    figure, axes = _figure()
    first = _first(facts)
    merged: dict[float, list[Any]] = {}
    for point in facts.points:
        merged.setdefault(point.second, []).append(point)
    x = [at - first + facts.bucket_s / 2 for at in sorted(merged)]
    # the lower line is the thinner one, so that none hides another where both are the same
    lines: tuple[tuple[str, str, float, Callable[[Any], float]], ...] = (
        ("all messages", GREY, 6.0, lambda p: p.most),
        ("99 of 100 (p99)", COLOURS[1], 3.6, lambda p: p.p99),
        ("half of them (p50)", COLOURS[0], 2.0, lambda p: p.p50),
    )
    thinner = 1 if len(x) <= POINTS_FEW else 0.6
    for label, colour, width, of in lines:
        y = [max(*(of(point) for point in merged[at]), LATENCY_MIN_MS) for at in sorted(merged)]
        _line(axes, x, y, colour, label, thinner * width)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * 1.3)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    _label(axes.yaxis, lambda ms: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    axes.set_ylabel("at most, of the slowest topic", color=INK, fontsize=9)
    _time_axis(axes, facts)
    _legend(axes, 3)
    return _png(figure)


# ---- bars -----------------------------------------------------------------------------------------------------------


def _sizes(facts: Facts) -> bytes | None:
    if not facts.sizes:
        return None
    figure, axes = _figure()
    names = sorted(
        {size.of for size in facts.sizes}, key=lambda name: -sum(s.messages for s in facts.sizes if s.of == name)
    )
    kept = names[: len(COLOURS) - 1]
    powers = range(min(s.power for s in facts.sizes), max(s.power for s in facts.sizes) + 1)
    below = dict.fromkeys(powers, 0)
    for number, name in enumerate([*kept, "others"]):
        mine = dict.fromkeys(powers, 0)
        for size in facts.sizes:
            if size.of == name or (name == "others" and size.of not in kept):
                mine[size.power] += size.messages
        if any(mine.values()):
            axes.bar(
                list(powers),
                [mine[p] for p in powers],
                bottom=[below[p] for p in powers],
                width=0.85,
                color=COLOURS[number],
                label=_short(name),
            )
        below = {p: below[p] + mine[p] for p in powers}
    axes.set_xticks(list(powers), [_bytes(2.0**p) if p else "empty" for p in powers], rotation=0, fontsize=8)
    axes.set_xlabel("bytes of the body: fewer than", color=INK, fontsize=9)
    axes.set_ylabel("messages", color=INK, fontsize=9)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    _counts(axes.yaxis)
    _legend(axes, min(len(names), len(COLOURS)))
    return _png(figure)


def _across(
    names: Sequence[str], parts: Iterable[tuple[str, str, Sequence[float]]], what: str, text: Callable[[float], str]
) -> bytes:
    """Bars from left to right, one below the other."""
    figure, axes = _figure(0.75 + 0.3 * len(names))
    axes.grid(visible=False)
    axes.grid(axis="x", color="#ECECEC", linewidth=0.8)
    left = [0.0] * len(names)
    shown = 0
    for label, colour, values in parts:
        if any(values):
            axes.barh(range(len(names)), values, left=left, color=colour, height=0.75, label=label)
            shown += 1
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(
            text(total), (total, place), (4, 0), textcoords="offset points", va="center", fontsize=8, color=INK
        )
    axes.set_yticks(range(len(names)), [_short(name, 40) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * max(left) or 1)
    if text is _whole:
        _label(axes.xaxis, text)
        _powers_of_two(axes, 1.12 * max(left))
    else:
        _counts(axes.xaxis)
    axes.set_xlabel(what, color=INK, fontsize=9)
    _legend(axes, shown)
    return _png(figure)


def _keys(facts: Facts) -> bytes | None:
    if not facts.keys:
        return None
    names = [f"{_short(key.topic, 16)}: {_short(key.key, 24)}" for key in facts.keys]
    counts = [float(key.messages) for key in facts.keys]
    return _across(names, [("messages", COLOURS[0], counts)], "messages", _quantity)


def _queues(facts: Facts) -> bytes | None:
    some = facts.queues[:BARS_MAX]
    if not any(queue.messages for queue in some):
        return None
    parts = (
        ("beside the row", COLOURS[0], [float(q.messages - q.stored) for q in some]),
        ("in the store", COLOURS[1], [float(q.stored) for q in some]),
    )
    return _across([q.queue for q in some], parts, "messages", _quantity)


def _store(facts: Facts) -> bytes | None:
    some = sorted(facts.audit.files, key=lambda file: (-file.garbage_bytes, file.file))[:BARS_MAX]
    if not some:
        return None
    parts = (
        ("needed", COLOURS[0], [float(file.bytes - file.garbage_bytes) for file in some]),
        ("garbage", COLOURS[5], [float(file.garbage_bytes) for file in some]),
    )
    return _across([f"{file.file}.rdq" for file in some], parts, "bytes", _whole)


_DRAWN: dict[str, Callable[[Facts], bytes | None]] = {
    "throughput": _throughput,
    "latency": _latency,
    "sizes": _sizes,
    "keys": _keys,
    "queues": _queues,
    "store": _store,
}


# ---- the page -------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 0 }
p { margin: .2rem 0 .6rem; color: #555 }
img { width: 100%; height: auto } table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .15rem 1.2rem .15rem 0; text-align: right } td:first-child, th:first-child { text-align: left }
th { font-weight: 600; border-bottom: 1px solid #ccc } .bad { color: #B00020; font-weight: 600 }
"""


def page(facts: Facts, drawn: Sequence[tuple[str, str, str, bytes]]) -> str:
    """The report as one file: pictures are in it."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(facts.path)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(facts.path)}</h1>",
        f"<p>{_now(facts)}</p>",
        _summary(facts),
        _redelivery(facts),
        _retention(facts),
    ]
    for _name, title, text, png in drawn:
        data = base64.b64encode(png).decode()
        parts.append(f"<h2>{title}</h2><p>{text}</p>")
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    return "\n".join([*parts, "</html>\n"])


def _now(facts: Facts) -> str:
    when = f"read {_when(facts.read)} UTC"
    return (
        f"{when}, beside its running node: what moved meanwhile may be counted twice or not" if facts.running else when
    )


def _when(second: float) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M}"


def _summary(facts: Facts) -> str:
    topics: dict[str, list[int]] = {}
    for point in facts.points:
        sums = topics.setdefault(point.topic, [0, 0])
        sums[0] += point.messages
        sums[1] += point.bytes
    rows = [(name, f"{n:,}", _bytes(size)) for name, (n, size) in sorted(topics.items(), key=lambda item: -item[1][0])]
    found = _table(("topic", "messages", "bodies"), rows)
    found += _table(
        ("queue", "messages", "bodies", "of them in the store"),
        [(q.queue, f"{q.messages:,}", _bytes(q.bytes), f"{q.stored:,}") for q in facts.queues],
    )
    ids = facts.audit.ids
    garbage = sum(file.garbage_bytes for file in facts.audit.files)
    total = sum(file.bytes for file in facts.audit.files)
    if total or any(ids.values()):
        share = f" ({garbage / total:.0%})" if total else ""
        found += f"<p>Message store: {_bytes(total)} of records, {_bytes(garbage)} of them garbage{share}. "
        found += f"Kept by programs: {counted(facts.audit.own, 'message')}.</p>"
    problems = [
        f"{counted(ids[word], 'message')} {text}"
        for word, text in (("lost", "named by queues and not in the store"), ("delta", "with a body that differs"))
        if ids[word]
    ]
    problems += [f"{file}: {counted(n, 'range')} {status}, {_bytes(size)}" for file, status, n, size in facts.damage]
    lines = "".join(f'<p class="bad">{html.escape(problem)}</p>' for problem in problems)
    return found + (lines or "<p>Nothing damaged was found.</p>")


def _redelivery(facts: Facts) -> str:
    if not facts.queues and not facts.dead:
        return ""
    found = "<h2>Redelivery</h2>"
    if not facts.queues:
        pass
    elif facts.delivered is None:
        found += (
            "<p>How often messages of queues were delivered is written down when a node stops in good order: it is not "
            f"known of one that {'runs' if facts.running else 'was killed'}.</p>"
        )
    elif not facts.delivered:
        found += "<p>Nothing that queues hold was delivered before.</p>"
    else:
        found += "<p>What queues hold, and was delivered before: by how often.</p>"
        found += _table(("queue", "messages", *_TIMES, "most often"), _times(facts))
    if facts.dead:
        found += (
            "<p>Dead letters. A queue that they go to may hold other messages, too; of groups, what the log has.</p>"
        )
        rows = [(dead.of, dead.where, f"{dead.messages:,}") for dead in facts.dead]
        found += _table(("of", "where", "messages"), rows)
    return found


_TIMES = ("never", "once", "2 to 4 times", "5 times or more")


def _times(facts: Facts) -> list[tuple[str, ...]]:
    assert facts.delivered is not None
    rows = []
    for queue in facts.queues:
        mine = [item for item in facts.delivered if item.queue == queue.queue]
        if not mine:
            continue
        counts = [0, 0, 0, 0]
        for item in mine:
            counts[1 if item.times == 1 else 2 if item.times < 5 else 3] += item.messages
        counts[0] = queue.messages - sum(counts)
        most = max(item.times for item in mine)
        rows.append((queue.queue, f"{queue.messages:,}", *(f"{count:,}" for count in counts), f"{most:,}"))
    return rows


def _retention(facts: Facts) -> str:
    if not facts.kept:
        return ""
    rows = [
        (
            item.topic,
            _promise(item),
            f"{item.messages:,}",
            _bytes(item.bytes),
            "–" if item.oldest is None else _when(item.oldest),
            "not known" if item.growth is None else _bytes(item.growth),
            _goes(item, facts.read),
            "–" if (size := retention.steady_bytes(item)) is None else _bytes(size),
        )
        for item in facts.kept
    ]
    heads = (
        "topic",
        "keeps",
        "messages",
        "bytes in the log",
        "oldest (UTC)",
        "bytes a day",
        "oldest goes",
        "will have",
    )
    return (
        "<h2>Retention</h2><p>When the oldest message of each topic goes, if its messages go on coming as in the log's "
        "last week; “will have” is its size when as much goes as comes. Growth needs messages of a day or more. A full "
        "disk takes more, and files of the log go when no topic needs them.</p>" + _table(heads, rows)
    )


def _promise(item: Kept) -> str:
    if item.compacted:
        return "the newest of each key"
    ends = [] if item.retention_s is None else [_time(item.retention_s)]
    ends += [] if item.retention_bytes is None else [_bytes(item.retention_bytes)]
    return ", ".join(ends) or "all"


def _goes(item: Kept, now: float) -> str:
    if item.oldest is None:
        return "–"
    if item.compacted:
        return "when a newer one replaces it"
    seconds = retention.goes_in(item, now)
    if seconds is None:
        assert item.retention_bytes is not None
        return f"{_bytes(item.retention_bytes - item.bytes)} later"
    if math.isinf(seconds):
        return "never"
    if seconds <= 0:
        return "now"
    unsure = item.growth is None and item.retention_bytes is not None
    return f"{'at the latest ' if unsure else ''}in {_time(seconds)}"


def _time(seconds: float) -> str:
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows[:BARS_MAX])
    more = f"<p>and {len(rows) - BARS_MAX:,} more</p>" if len(rows) > BARS_MAX else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"
