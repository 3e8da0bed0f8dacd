"""A short kill campaign of the AMQP gateway: what was confirmed to a client is there once, and nobody waits for ever.

Goal: whoever is killed or stopped at whatever moment, the logs that AMQP clients kept agree with what comes out of the
queues; no connection hangs, and nothing is left of those that are gone. Method: tools/crash/amqp_campaign.py with a
seed that is printed (`python -m warren.tools.crash amqp --seed …` repeats its choices).
"""

from pathlib import Path

import pytest

from warren.tools.crash.amqp_campaign import AmqpCampaign

KILLS = 20
SECONDS = 120.0  # a quiet machine needs 12


@pytest.mark.crash
@pytest.mark.integration
def test_kill_campaign_of_the_gateway(tmp_path: Path, seed: int) -> None:
    report = AmqpCampaign(tmp_path, seed, print, pause_s=0.6).run(KILLS, SECONDS)
    print(report)
    assert not report.violations, str(report)
    assert report.kills_n >= KILLS // 2
    assert report.confirmed > 0
    assert report.received > 0
    assert report.probes, "no probe was answered"
