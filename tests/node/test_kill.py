"""A short kill campaign over a real node: nothing confirmed is lost or comes twice without its mark, nothing is left.

Goal: whoever is killed or stopped at whatever moment, or kills itself at a named crash point, the logs that its clients
kept outside of the node agree with it.
Method: tools/crash/campaign.py with a seed that is printed; `python -m warren.tools.crash --seed …` repeats its
choices. Actors that do not begin: a campaign that kills nobody says so.
"""

import time
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest

from warren.tools.crash.campaign import Campaign

from support.covering import run_covering

KILLS = 40


@pytest.mark.crash
@pytest.mark.integration
def test_kill_campaign(tmp_path: Path) -> None:
    wanted = ("confirmed", "received", "stored", "reads", "probes")
    run_covering(lambda seed: Campaign(tmp_path, seed, print), KILLS, wanted)


class OfNobody(Campaign):
    """Its only actor ends with a KeyError: there is no such role."""

    actor_roles: ClassVar[tuple[tuple[str, int], ...]] = (("nobody", 1),)


@pytest.mark.crash
@pytest.mark.integration
def test_a_campaign_ends_when_an_actor_does_not_begin(tmp_path: Path, seed: int) -> None:
    report = OfNobody(tmp_path, seed).run(KILLS, 600.0)
    assert report.seconds < 600
    assert not report.kills_n
    assert any("a nobody ended with 1" in text and "KeyError: 'nobody'" in text for text in report.violations)
    assert "nobody was killed: these did not begin to work: nobody" in report.violations


def test_a_campaign_that_has_no_time_to_begin_says_so(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 1)
    campaign.hits.close()
    slow = mock.Mock(role="reader", **{"working.return_value": False, "failed.return_value": None})
    begun = mock.Mock(role="probe", **{"working.return_value": True, "failed.return_value": None})
    campaign.actors = [begun, slow]
    assert not campaign._wait_for_load(time.monotonic())
    assert campaign.report.violations == ["nobody was killed: these did not begin to work: reader"]
    slow.working.return_value = True
    assert campaign._wait_for_load(time.monotonic()), "all work"
