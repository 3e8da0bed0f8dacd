"""Goal: the judge of `warren stress` notices a lost, a doubled and a foreign message, and nothing else.

Method: logs made by hand, each with one thing wrong; the right ones hold kills as they happen.
"""

from typing import Any

import numpy as np
import pytest

from warren.engine.errors import UsageError
from warren.tools.stress import BODY, CONFIRMED, RECEIVED, Verdict, _options, body_of, judge


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
