"""The demo's parts by themselves: inputs of every kind, the direct computation, and a check that can fail.

And the whole of it on a small file, with kills.
"""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from warren.engine.errors import UsageError
from warren.tools.demo import check, inputs, picture
from warren.tools.demo.chaos import Chaos, Progress
from warren.tools.demo.consumer import BAD, REDELIVERED, ROW
from warren.tools.demo.direct import Direct, Group, compute, percentile
from warren.tools.demo.report import Plain
from warren.tools.demo.stream import Row

from support.waiting import patience, wait_until

CSV = 'city,price,note\nRome,10,a\nOslo,12.5,"b, with a comma"\nRome,,c\nRome,-3,d\n,NaN,e\n'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a file and return its path; .gz and .zip are packed."""

    def make(name: str, text: str) -> str:
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        elif name.endswith(".zip"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(name.removesuffix(".zip"), text)
        else:
            path.write_text(text)
        return str(path)

    return make


def read(path: str, key: str | None = None, value: str | None = None, rows: int | None = None) -> list[inputs.Record]:
    return list(inputs.find_input(path, key, value, rows).records())


# ---- inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zip"])
def test_csv(write: Any, name: str) -> None:
    records = read(write(name, CSV), value="price")
    assert [(r.n, r.key, r.value) for r in records] == [
        (0, "Rome", 10.0),
        (1, "Oslo", 12.5),
        (2, "Rome", None),
        (3, "Rome", -3.0),
        (4, "", None),
    ]
    assert records[1].row == ["Oslo", "12.5", "b, with a comma"]


def test_csv_with_other_delimiters_and_a_chosen_key(write: Any) -> None:
    assert [r.key for r in read(write("a.tsv", "x\ty\n1\ta\n2\tb\n"), key="y")] == ["a", "b"]
    assert [r.key for r in read(write("a.csv", "x;y\n1;a\n2\n"), key="y")] == ["a", ""]


def test_json_lines(write: Any) -> None:
    text = '{"who": "a", "n": 1}\n\n{"n": 2.5}\n{"who": null, "n": "x"}\n'
    assert [(r.key, r.value) for r in read(write("a.jsonl", text), value="n")] == [("a", 1.0), ("", 2.5), ("", None)]
    assert [r.key for r in read(write("odd.txt", '{"k": 7}\n'))] == ["7"]


def test_logs(write: Any) -> None:
    text = "GET /a 200\n\nPOST /b 500\nGET\n"
    records = read(write("access.log", text), key="1", value="3")
    assert [(r.key, r.value, r.row) for r in records] == [
        ("GET", 200.0, "GET /a 200"),
        ("POST", 500.0, "POST /b 500"),
        ("GET", None, "GET"),
    ]


def test_bad_bytes_and_long_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\xfe rest\n" + b"k" * 5000 + b"\n")
    keys = [r.key for r in read(str(path))]
    assert keys == ["��", "k" * inputs.KEY_LENGTH_MAX]


@pytest.mark.parametrize(
    ("name", "text", "more", "told"),
    [
        ("a.csv", CSV, {"key": "country"}, "--key 'country' is no column.*city, price, note"),
        ("a.csv", "", {}, "no header"),
        ("a.csv", "x,y\n", {}, "no records"),
        ("a.jsonl", "{}\n[1]\n", {}, "line 2"),
        ("a.jsonl", "not json\n", {}, "line 1"),
        ("a.log", "a b\n", {"key": "first"}, "number of a word"),
    ],
)
def test_mistakes(write: Any, name: str, text: str, more: dict[str, str], told: str) -> None:
    path = write(name, text)
    with pytest.raises(UsageError, match=told):
        read(path, **more)


def test_no_such_file() -> None:
    with pytest.raises(UsageError, match="not a file"):
        inputs.find_input("/no/such/file.csv", None, None, None)
    with pytest.raises(UsageError, match="--input"):
        inputs.find_input(None, "carrier", None, None)


def test_flights() -> None:
    given_input = inputs.find_input(None, None, None, 2000)
    records = list(given_input.records())
    assert [r.n for r in records] == list(range(2000))
    first = records[0]
    assert (first.key, first.hour, first.value, first.block, first.routing_key) == ("UA", 5, 2, 0, "flight.EWR.UA")
    assert first.row["tailnum"] == "N14228"
    assert [block[0].block for block in given_input.blocks()] == [0, 1, 2]
    direct = compute(given_input)
    assert (direct.records, direct.blocks, direct.whole_numbers) == (2000, 3, True)
    sizes = {name: len(found) for name, found in direct.expected.items()}
    origins = Counter(r.routing_key.split(".")[1] for r in records)
    assert sizes == {
        "audit": 2003,
        **{f"departures.{origin}": count for origin, count in sorted(origins.items())},
        "manifests": 3,
        "spark": 2000,
    }


# ---- direct computation ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=200), st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]))
def test_percentile_is_numpys(values: list[int], share: float) -> None:
    found = percentile([float(v) for v in values], share)
    assert found == pytest.approx(np.percentile(values, share * 100), rel=1e-12, abs=1e-9)


def test_groups(write: Any) -> None:
    direct = compute(inputs.find_input(write("a.csv", CSV), None, "price", None))
    assert direct.groups["Rome", None] == Group(3, 5, 2, 7.0, 3.5, percentile([-3.0, 10.0], 0.95))
    assert direct.groups["", None] == Group(1, 4, 0, 0.0, None, None)
    assert not direct.whole_numbers
    assert sum(len(direct.expected[f"part.{part}"]) for part in range(inputs.PARTS)) == 5


# ---- the check ------------------------------------------------------------------------------------------------------

EXPECTED = np.array([-1, 0, 1, 2], np.int64)


def rows(*given_rows: tuple[int, int]) -> Any:
    return np.array([(0, flags, n, 5) for n, flags in given_rows], ROW)


@pytest.mark.parametrize(
    ("received", "wrong"),
    [
        ([(-1, 0), (0, 0), (1, 0), (2, 0)], {}),
        ([(2, 0), (1, REDELIVERED), (0, 0), (-1, 0), (1, 0)], {}),
        ([(-1, 0), (0, 0), (0, REDELIVERED), (0, REDELIVERED), (1, 0), (2, 0)], {}),
        ([(-1, 0), (0, 0), (1, 0)], {"missing": 1}),
        ([(-1, 0), (0, 0), (1, 0), (2, 0), (2, 0)], {"doubled": 1}),
        ([(-1, 0), (0, 0), (0, 0), (0, REDELIVERED), (1, 0), (2, 0)], {"doubled": 1}),
        ([(-1, 0), (0, 0), (1, 0), (2, 0), (3, 0)], {"foreign": 1}),
        ([(-1, 0), (0, 0), (1, 0), (2, 0), (0, BAD)], {"foreign": 1}),
        ([], {"missing": 4}),
    ],
)
def test_queues(received: list[tuple[int, int]], wrong: dict[str, int]) -> None:
    found = check.check_queue("q", EXPECTED, rows(*received))
    assert {name: getattr(found, name) for name in ("missing", "foreign", "doubled") if getattr(found, name)} == wrong
    assert found.ok == (not wrong)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([0, 1, 2, -1], {}),
        ([0, 1, 2], {"missing": 1}),
        ([0, 1, 2, -1, 2], {"doubled": 1}),
        ([0, 1, 2, -1, 7], {"foreign": 1}),
    ],
)
def test_topics(found: list[int], wrong: dict[str, int]) -> None:
    checked = check.check_topic("t", EXPECTED, np.array(found, np.int64))
    assert {name: count for name in ("missing", "foreign", "doubled") if (count := getattr(checked, name))} == wrong
    assert checked.ok == (not wrong)


def direct_of() -> Direct:
    return Direct(groups={("UA", 5): Group(3, 3, 2, 10.0, 5.0, 9.0), ("AA", None): Group(1, 9, 0, 0.0, None, None)})


def row_of(**changed: Any) -> Row:
    return Row(
        **{
            "key": "UA",
            "hour": 5,
            "messages": 3,
            "n_sum": 3,
            "present": 2,
            "value_sum": 10.0,
            "value_mean": 5.0,
            "value_p95": 9.0,
            "redelivered": 0,
        }
        | changed
    )


EMPTY_ROW = Row(key="AA", messages=1, n_sum=9, present=0, redelivered=0)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([row_of(), EMPTY_ROW], None),
        ([row_of(), row_of(), EMPTY_ROW], None),
        ([row_of(redelivered=2), EMPTY_ROW], None),
        ([row_of()], "missing"),
        ([row_of(messages=4), EMPTY_ROW], "messages is 4"),
        ([row_of(n_sum=4), EMPTY_ROW], "sum of record numbers"),
        ([row_of(value_sum=10.5), EMPTY_ROW], "sum is 10.5"),
        ([row_of(value_p95=9.1), EMPTY_ROW], "95th percentile"),
        ([row_of(value_p95=None), EMPTY_ROW], "95th percentile"),
        ([row_of(), row_of(messages=4), EMPTY_ROW], "came twice"),
        ([row_of(), EMPTY_ROW, row_of(key="XX")], "no group"),
    ],
)
def test_result_rows(found: list[Row], told: str | None) -> None:
    problems = check.check_groups(direct_of(), found, "report")
    assert (told is None and not problems) or (told is not None and any(told in problem for problem in problems))


def test_records_of_a_killed_consumer(tmp_path: Path) -> None:
    """A torn last row is left out; files of all incarnations count."""
    first, second = tmp_path / "0", tmp_path / "1"
    first.write_bytes(rows((0, 0), (1, 0)).tobytes() + b"torn")
    second.write_bytes(rows((1, REDELIVERED), (2, 0)).tobytes())
    found = check.read_records({first: ["q"], second: ["q"], tmp_path / "never": ["q"]})
    assert found["q"]["n"].tolist() == [0, 1, 1, 2]


def test_lines_of_progress_say_what_is_waited_for() -> None:
    shown = io.StringIO()
    progress = Progress(publish_total=10, receive_total=10, stream_total=10, copy_total=10)
    for done, words in (
        ({}, "publishing"),
        ({"published": 10}, "waiting for the consumers"),
        ({"received": 10}, "waiting for Spark, which takes longest to start"),
        ({"spark_up": True}, "waiting for the first batch of Spark's stream"),
        ({"streamed": 5}, "waiting for Spark's streams"),
        ({"streamed": 10}, "waiting for Spark's streams"),
        ({"copied": 10}, "comparing the results"),
    ):
        for name, count in done.items():
            setattr(progress, name, count)
        Plain(Console(file=shown, width=200)).progress(progress)
        assert shown.getvalue().splitlines()[-1].endswith(f"of 10; {words}")


def test_chaos_kills_once_each_and_in_time() -> None:
    chaos = Chaos()
    status: dict[str, Any] = {"processes": [], "clients": []}
    progress = Progress(publish_total=100, receive_total=100, stream_total=100, copy_total=100)
    assert chaos.tick(progress, lambda: status, lambda _index: 0, lambda: 0) == []
    progress.received = progress.copied = progress.streamed = 90
    assert chaos.tick(progress, lambda: status, lambda _index: 0, lambda: 0) == [], "there was nothing to kill"
    assert len(chaos.plan) == 8


# ---- the picture ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(14.0, 15.0), (1.0, 500.0), (0.5, 0.5), (200.0, 3.0)])
def test_labels_of_latencies_stand_above_the_bars(low: float, high: float) -> None:
    """Both, wherever they are: neither is drawn over a bar, the other label, or the edge."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    taken = np.concatenate([np.linspace(low, low * 1.2, 5000), np.linspace(low, high, 500)])
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.add_subplot()
    picture._latencies(axes, SimpleNamespace(latencies=taken))  # type: ignore[arg-type]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    labels = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text().split()[0] for text in axes.texts] == ["p50", "p99"]
    bars = [bar.get_window_extent() for bar in axes.patches if bar.get_height()]
    assert bars
    assert not any(label.overlaps(bar) for label in labels for bar in bars)
    assert not labels[0].overlaps(labels[1])
    assert all(axes.bbox.y0 <= label.y0 and label.y1 <= axes.bbox.y1 + 1 for label in labels)
    assert all(figure.bbox.x0 <= label.x0 and label.x1 <= figure.bbox.x1 for label in labels)


# ---- the whole ------------------------------------------------------------------------------------------------------


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "warren.workers.cli.main", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.crash
def test_the_demo_with_kills(write: Any, tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    lines = [
        f"{key},{value}"
        for key, value in zip(generator.integers(0, 50, 20_000), generator.normal(size=20_000), strict=True)
    ]
    path = write("numbers.csv", "key,value\n" + "\n".join(lines) + "\n")
    process = demo("--input", path, "--value", "value", "--chaos", "--json", "--dir", str(tmp_path / "demo"))
    output, errors = process.communicate(timeout=280 * patience())
    assert process.returncode == 0, output + errors
    report = json.loads(output)
    assert report["ok"]
    assert (report["records"], report["groups"], report["problems"]) == (20_000, 50, [])
    killed = Counter(kill["what"] for kill in report["killed"])
    once = dict.fromkeys(("consumer", "topic_worker", "spark_worker", "driver"), 1)
    assert killed == {"store": 2, "queue_worker": 2, **once}
    assert [topic["received"] for topic in report["topics"]] == [20_000, 20_000]
    assert all(queue["received"] == queue["expected"] for queue in report["queues"])


@pytest.mark.spark
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    process = demo("--dir", str(tmp_path / "demo"), "--rows", "5000")
    stream_log = tmp_path / "demo" / "work" / "consumer-0-0.log"
    try:
        wait_until(stream_log.exists, timeout=60, what="the first consumer")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60 * patience())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130
    left = [
        p.info["cmdline"]
        for p in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(p.info["cmdline"] or [])
    ]
    assert left == []


@pytest.mark.spark
def test_a_demo_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", os.devnull)
    process = demo("--rows", "10")
    _output, errors = process.communicate(timeout=60 * patience())
    assert process.returncode == 1
    assert "Spark needs Java 17 or newer" in errors
    assert "Traceback" not in errors
