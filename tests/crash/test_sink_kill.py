"""Goal: drivers that write into a transactional sink, the topic worker and the node may be killed or restarted at any
instant: each number is in the topics once.

Method: a small run of the campaign `python -m warren.tools.crash sink`; one whose judge is shown other numbers.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.tools.crash.spark_campaign import KINDS_OF_SINK, SparkCampaign

from support.long import rounds

pytestmark = pytest.mark.crash


def test_kill_campaign_of_a_sink(tmp_path: Path, seed: int) -> None:
    said: list[str] = []
    kills = rounds(24)
    campaign = SparkCampaign(tmp_path, seed, said.append, KINDS_OF_SINK, rows=2000, spark=False)
    report = campaign.run(kills, seconds=600)
    assert report.violations == [], said
    assert report.kills.total() >= kills
    assert report.messages >= 2000 * report.batches > 0
    assert list(tmp_path.iterdir()) == []


class _Wrong(SparkCampaign):
    """Number 0 is there twice, and 5 is not."""

    def _numbers(self) -> Iterator[int]:
        yield 0
        yield from (number for number in super()._numbers() if number != 5)


def test_the_judge_sees_what_is_lost_and_doubled(tmp_path: Path, seed: int) -> None:
    report = _Wrong(tmp_path, seed, lambda _text: None, ("topics",), rows=100, spark=False).run(1, seconds=600)
    assert any("1 numbers are doubled, the first are [0]" in text for text in report.violations), report.violations
    assert any("are lost, the first are [5]" in text for text in report.violations)
