"""A short kill campaign of the AMQP gateway: what was confirmed to a client is there once, and nobody waits for ever.

Goal: whoever is killed or stopped at whatever moment, the logs that AMQP clients kept agree with what comes out of the
queues; no connection hangs, and nothing is left of those that are gone. Method: tools/crash/amqp_campaign.py with a
seed that is printed (`python -m warren.tools.crash amqp --seed …` repeats its choices).
"""

from pathlib import Path

import pytest

from warren.tools.crash.amqp_campaign import AmqpCampaign

from support.covering import run_covering

KILLS = 20


@pytest.mark.crash
@pytest.mark.integration
def test_kill_campaign_of_the_gateway(tmp_path: Path) -> None:
    wanted = ("confirmed", "received", "probes")
    run_covering(lambda seed: AmqpCampaign(tmp_path, seed, print, pause_s=0.6), KILLS, wanted)
