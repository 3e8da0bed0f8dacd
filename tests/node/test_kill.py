"""A short kill campaign over a real node: nothing confirmed is lost or comes twice without its mark, nothing is left.

Goal: whoever is killed or stopped at whatever moment, or kills itself at a named crash point, the logs that its clients
kept outside of the node agree with it.
Method: tools/crash/campaign.py with a seed that is printed; `python -m warren.tools.crash --seed …` repeats its
choices.
"""

from pathlib import Path

import pytest

from warren.tools.crash.campaign import Campaign

KILLS = 40
SECONDS = 120.0  # a quiet machine needs 12


@pytest.mark.crash
@pytest.mark.integration
def test_kill_campaign(tmp_path: Path, seed: int) -> None:
    report = Campaign(tmp_path, seed, print).run(KILLS, SECONDS)
    print(report)
    assert not report.violations, str(report)
    assert report.kills_n >= KILLS // 2
    assert report.confirmed > 0
    assert report.received > 0
    assert report.stored > 0
    assert report.reads > 0
    assert report.probes, "no probe was answered"
