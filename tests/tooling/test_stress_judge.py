"""Goal: the judge of `warren stress` notices a lost, a doubled and a foreign message, and nothing else.

Method: logs made by hand, each with one thing wrong; the right ones hold kills as they happen.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warren.engine._core import Position
from warren.engine.errors import UsageError
from warren.tools import stress, stress_topic
from warren.tools.stress import BODY, CONFIRMED, RECEIVED, Campaign, Verdict, _options, body_of, judge, known


def verdict_of(confirmed: list[tuple[Any, ...]], received: list[tuple[Any, ...]]) -> Verdict:
    verdict = Verdict(seed=1, seconds=1.0)
    judge(np.array(confirmed, CONFIRMED), np.array(received, RECEIVED), verdict)
    return verdict


CONFIRMS = [(0, 1, 0, 3, 1000), (0, 2, 0, 1, 9_000_000), (1, 1, 5, 2, 10)]
COMES = [(0, 1, 0, 0, 1), (0, 1, 1, 0, 1), (0, 1, 2, 0, 1), (0, 2, 0, 0, 1), (1, 1, 5, 0, 1), (1, 1, 6, 0, 1)]


def test_all_there() -> None:
    verdict = verdict_of(CONFIRMS, COMES)
    assert verdict.good
    assert (verdict.confirmed, verdict.received, verdict.redelivered, verdict.longest_put_s) == (6, 6, 0, 9.0)


def test_what_kills_excuse() -> None:
    """Unconfirmed ones that came, marked ones that came again, and ones that came marked only."""
    comes = [*COMES[:-1], (1, 1, 6, 1, 1), (0, 1, 3, 0, 1), (0, 1, 0, 1, 1), (0, 1, 0, 1, 1)]
    verdict = verdict_of(CONFIRMS, comes)
    assert verdict.good
    assert (verdict.confirmed, verdict.received, verdict.redelivered) == (6, 7, 3)


@pytest.mark.parametrize("missing", range(len(COMES)))
def test_a_lost_one(missing: int) -> None:
    verdict = verdict_of(CONFIRMS, [row for number, row in enumerate(COMES) if number != missing])
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.good) == (1, 0, 0, False)


def test_a_doubled_one() -> None:
    verdict = verdict_of(CONFIRMS, [*COMES, COMES[2]])
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.good) == (0, 1, 0, False)


def test_a_wrong_body() -> None:
    verdict = verdict_of(CONFIRMS, [*COMES[:-1], (1, 1, 6, 0, 0)])
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.good) == (0, 0, 1, False)


def test_nothing_at_all_is_no_crash() -> None:
    assert verdict_of([], []).confirmed == 0


@pytest.mark.parametrize("size", [0, 15, 16, 17, 100])
def test_bodies(size: int) -> None:
    body = body_of(1, 2, 3, size)
    assert len(body) == max(size, BODY.size)
    assert BODY.unpack_from(body) == (1, 2, 3)


def test_options_are_checked() -> None:
    assert _options(["--kill", "all"]).kill[0] == "producer"
    for words in (["--kill", "dog"], ["--durability", "none", "--kill", "worker"], ["--producers", "0"]):
        with pytest.raises(UsageError):
            _options(words)


# ---- of a topic -----------------------------------------------------------------------------------------------------

APPENDS = [(0, 1, 0, 3, 1000, 2, 10), (0, 2, 0, 1, 9_000_000, 1, 0), (1, 1, 5, 2, 10, 2, 13)]
READS = [
    (0, 1, 0, 2, 10, 1),
    (0, 1, 1, 2, 11, 1),
    (0, 1, 2, 2, 12, 1),
    (0, 2, 0, 1, 0, 1),
    (1, 1, 5, 2, 13, 1),
    (1, 1, 6, 2, 14, 1),
]


def topic_verdict_of(confirmed: list[tuple[Any, ...]], received: list[tuple[Any, ...]]) -> Verdict:
    verdict = Verdict(seed=1, seconds=1.0)
    stress_topic.judge(np.array(confirmed, stress_topic.APPENDED), np.array(received, stress_topic.READ), verdict)
    return verdict


def test_of_a_topic_all_there() -> None:
    """Also what was not confirmed, and what a second member read again."""
    verdict = topic_verdict_of(APPENDS, [*READS, (7, 1, 0, 3, 0, 1), READS[1], READS[1]])
    assert verdict.good
    assert (verdict.confirmed, verdict.received, verdict.redelivered, verdict.longest_put_s) == (6, 7, 2, 9.0)
    assert topic_verdict_of([], []).confirmed == 0


@pytest.mark.parametrize("missing", range(len(READS)))
def test_of_a_topic_a_lost_one(missing: int) -> None:
    verdict = topic_verdict_of(APPENDS, [row for number, row in enumerate(READS) if number != missing])
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.good) == (1, 0, 0, False)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ([*READS, (0, 1, 1, 2, 99, 1)], (0, 1, 0)),  # at two offsets
        ([*READS[:-1], (1, 1, 6, 2, 14, 0)], (0, 0, 1)),  # another body
        ([*READS[:-1], (1, 1, 6, 3, 14, 1)], (0, 0, 1)),  # not where its confirm said
    ],
)
def test_of_a_topic_a_wrong_one(wrong: list[tuple[Any, ...]], found: tuple[int, int, int]) -> None:
    verdict = topic_verdict_of(APPENDS, wrong)
    assert (verdict.lost, verdict.doubled, verdict.foreign) == found
    assert not verdict.good


def test_parts_of_a_call_that_lie_together() -> None:
    positions = [
        Position(q, at, 0, "7F00000100000000" + 16 * "0") for q, at in ((1, 5), (1, 6), (1, 8), (2, 9), (2, 10))
    ]
    assert list(stress_topic.runs(positions)) == [(0, 2, 1, 5), (2, 1, 1, 8), (3, 2, 2, 9)]
    assert list(stress_topic.runs([])) == []


def test_what_is_no_body_is_not_whole() -> None:
    assert known(b"short", 100) == ((0, 0, 0), False)
    assert known(body_of(3, 2, 1, 100), 100) == ((3, 2, 1), True)
    assert known(body_of(3, 2, 1, 100)[:-1] + b"?", 100) == ((3, 2, 1), False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kill", "topics"], "choose among producer, consumer, store, worker, supervisor, or all"),
        (["--topic", "--kill", "worker"], "choose among producer, consumer, topics, supervisor with --topic, or all"),
        (["--topic", "--kill", "topics", "--durability", "none"], "leave topics out of --kill"),
        (["--topic", "--queues", "0"], "--queues must be at least 1"),
    ],
)
def test_what_is_killed_has_to_be_there(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _options(words)


def test_no_server_is_killed_so_often_that_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor ends the node of a server that dies ten times a minute: that is no verdict on its messages."""
    shooting = Campaign(_options(["--kill", "worker,store,supervisor"]), tmp_path, tmp_path)
    named = [("queue_worker", 0), ("queue_worker", 1), ("store", 0), ("supervisor", 0)]
    processes = [{"role": role, "index": index, "pid": 100 + pid} for pid, (role, index) in enumerate(named)]
    monkeypatch.setattr(shooting, "call", lambda _op: {"processes": processes})
    killed: Counter[int] = Counter()
    monkeypatch.setattr(os, "kill", lambda pid, _signal: killed.update([pid]))
    for _ in range(300):
        shooting.shoot()
    assert {pid: count for pid, count in killed.items() if pid != 103} == dict.fromkeys((100, 101, 102), 8)
    assert killed[103] > 8
    shooting.shots = [(when - 61, name) for when, name in shooting.shots]
    for _ in range(300):
        shooting.shoot()
    assert killed[102] == 16


HANGING = """
import signal, time
from warren.tools import stress

def hang():
    while True:
        time.sleep(0.01)

stress._stop_flag()
print("ready", flush=True)
hang()
"""


def test_a_process_that_does_not_end_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "CALL_TIMEOUT_S", 0.2)
    run = Campaign(_options(["--consumers", "1"]), tmp_path, tmp_path)
    place = run.places[-1]
    with (tmp_path / "consumer-0.log").open("ab") as errors:
        place.process = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=errors)
    with place.process as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        run.end("consumer")
    (failure,) = run.failures
    assert failure.startswith("consumer 0 did not end within 0.2 s: it is at ")
    assert "in hang" in failure
