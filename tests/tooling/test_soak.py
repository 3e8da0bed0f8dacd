"""The soak tool: it sees what grows, counts every message, and ends early with its report when it is told to.

Goal: a run whose points rise is exit code 1, one whose points do not is 0. Method: points made by hand; a run of a few
seconds on a real node, once to its end and once until SIGINT.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from warren.engine.config import Settings
from warren.tools import soak
from warren.tools.soak_clock import PHASES, Clock

from support.waiting import wait_until


def points(values: list[float]) -> list[tuple[float, float]]:
    return [(60.0 * n, value) for n, value in enumerate(values)]


def test_what_rises_steadily_grows() -> None:
    found = soak.trend("x", points([100 + 2 * n for n in range(12)]), (10, 0.05))
    assert found.grows
    assert found.per_hour == pytest.approx(120)
    assert found.rise == pytest.approx(22)


@pytest.mark.parametrize(
    "values",
    [
        [100.0] * 12,
        [100.0, 130, 90, 110, 100, 95, 125, 100, 90, 110, 105, 98],
        [100.0] * 11 + [900.0],
        [100 - 3.0 * n for n in range(12)],
        [100 + 0.5 * n for n in range(12)],
    ],
    ids=["flat", "uneven", "one outlier", "falls", "within the allowance"],
)
def test_what_does_not_rise_does_not_grow(values: list[float]) -> None:
    assert not soak.trend("x", points(values), (10, 0.05)).grows


def test_points_are_taken_at_rest_after_the_warm_up() -> None:
    def sample(at: float, phase: str, cycle: int, depth: int, value: float) -> soak.Sample:
        return soak.Sample(at, phase, cycle, depth, {"pss": value})

    samples = [sample(10.0 * cycle, "idle", cycle, 0, 1e9) for cycle in range(2)]
    for cycle in range(2, 8):
        samples += [
            sample(10.0 * cycle, "burst", cycle, 0, 5e9),
            sample(10.0 * cycle + 5, "idle", cycle, 0, 4e9),
            sample(10.0 * cycle + 6, "idle", cycle, 0, 2e9 + cycle * 1e8),
            sample(10.0 * cycle + 7, "idle", cycle, 3, 6e9),
        ]
    (found,) = soak.trends(samples, 2)
    assert (found.points, found.lowest, found.highest) == (6, 2.2e9, 2.7e9)
    assert found.grows
    assert soak.trends(samples[: 2 + 4 * 3], 2) == [], "three points are no line"


def test_phases_follow_each_other_in_every_cycle() -> None:
    clock = Clock(100.0, 20.0)
    seen = [clock.phase(100 + n / 10) for n in range(200)]
    assert list(dict.fromkeys(seen)) == list(PHASES)
    assert seen == [clock.phase(140 + n / 10) for n in range(200)]
    assert (clock.phase(99.0), clock.cycle(145.0)) == ("idle", 2)


def command(directory: Path, minutes: float, cycle: float = 2) -> list[str]:
    arguments = [
        "--minutes",
        str(minutes),
        "--cycle",
        str(cycle),
        "--sample",
        "0.1",
        "--warm-up",
        "0",
        "--rate",
        "0.05",
    ]
    return [sys.executable, "-m", "warren.tools.soak", str(directory), *arguments, "--set", "workers=1", "--json"]


@pytest.mark.integration
def test_a_run_counts_every_message_and_measures_the_node(tmp_path: Path) -> None:
    for cycle in (2, 10, 40):  # s; a busy machine comes to rest in none of the short ones
        directory = tmp_path / f"node-{cycle}"
        done = subprocess.run(command(directory, cycle / 8, cycle), capture_output=True, text=True, timeout=600)
        report = json.loads(done.stdout)
        if report["points"] >= soak.POINTS_MIN:
            break
    assert report["complaints"] == [], done.stderr
    assert report["published"] == report["received"] > 100
    assert report["churned"] > 0
    assert all(report[name] > 0 for name in ("appended", "read", "updates", "looks", "halves"))
    assert report["read"] + report["gone"] >= report["appended"]
    assert done.returncode == (1 if report["grows"] else 0)
    names = {item["name"] for item in report["trends"]}
    assert {"pss", "descriptors", "threads", "disk bytes", "shared memory bytes", "private queue_worker"} <= names
    first, last = (report["all_samples"][n]["values"]["shared memory bytes"] for n in (0, -1))
    images = 2 * Settings().images_n * Settings().file_bytes  # of the worker's two journals, touched before the start
    assert images < first <= last < first + images
    values = report["all_samples"][-1]["values"]
    assert all(values[name] > 0 for name in ("pss", "descriptors", "threads", "shared memory bytes", "disk files"))


@pytest.mark.integration
def test_sigint_ends_a_run_with_its_report(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command(tmp_path / "node", 10), stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stderr is not None
        assert "processes load" in process.stderr.readline()
        with warren.attach(tmp_path / "node") as node:
            queues = [node.queue(flow.queue, create=False) for flow in soak.FLOWS]
            wait_until(lambda: all(queue.stats()["published"] for queue in queues), 60, what="a message in each queue")
        process.send_signal(signal.SIGINT)
        said, _nothing = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    report = json.loads(said)
    assert report["complaints"] == []
    assert report["published"] == report["received"]
    assert report["samples"] > 0
