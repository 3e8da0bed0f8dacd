"""`python -m warren.tools.crash [topics | amqp | celery] --kills N --seed S [--minutes M]`: a kill campaign;
`… machine`, `queues`, `powerloss`, `powercut`, `spark`, `sink`.

The exit code is 1 when it found something.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import signal
import sys

from warren.tools.bench.harness import real_folder
from warren.tools.crash.campaign import PAUSE_S_MAX, Campaign


def main(argv: list[str] | None = None) -> int:
    """Run campaigns until the kills are reached or the minutes are over; SIGINT and SIGTERM end one early."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["machine"]:
        from warren.tools.crash import machine  # needs hypothesis, which only the tests need

        return machine.main(arguments[1:])
    if arguments[:1] == ["queues"]:
        from warren.tools.crash import queue_machine

        return queue_machine.main(arguments[1:])
    if arguments[:1] in (["spark"], ["sink"]):
        from warren.tools.crash import spark_campaign

        return spark_campaign.main(arguments[1:], spark=arguments[0] == "spark")
    if arguments[:1] == ["powerloss"]:
        return _power_losses(arguments[1:])
    if arguments[:1] == ["powercut"]:
        from warren.tools.crash import powercut

        return powercut.main(arguments[1:])
    if arguments[:1] == ["topics"]:
        from warren.tools.crash.topic_campaign import TopicCampaign

        return _kills(arguments[1:], TopicCampaign, "warren.tools.crash topics")
    if arguments[:1] == ["amqp"]:
        from warren.tools.crash.amqp_campaign import AmqpCampaign

        return _kills(arguments[1:], AmqpCampaign, "warren.tools.crash amqp")
    if arguments[:1] == ["celery"]:
        from warren.tools.crash import celery_campaign

        return celery_campaign.main(arguments[1:])
    return _kills(arguments, Campaign, "warren.tools.crash")


def _kills(arguments: list[str], campaign_of: type[Campaign], prog: str) -> int:
    parser = argparse.ArgumentParser(prog=prog, description="Kill the processes of a node under load.")
    parser.add_argument("--kills", type=int, default=100, help="kills altogether (100)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after so long, however many kills (10)")
    parser.add_argument("--no-points", action="store_true", help="arm no named crash points")
    parser.add_argument(
        "--probe-seconds", type=float, default=1.0, help="longest answer for each death that falls into it (1)"
    )
    parser.add_argument(
        "--pause", type=float, default=PAUSE_S_MAX, help="longest pause between two blows (%(default)s s)"
    )
    if campaign_of is Campaign:
        parser.add_argument(
            "--powerloss-states", type=int, default=0, help="then a power-loss campaign of so many states"
        )
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = campaign_of(
        real_folder(options.dir),
        seed,
        lambda text: print(text, file=sys.stderr, flush=True),
        probe_s=options.probe_seconds,
        points=not options.no_points,
        pause_s=options.pause,
    )

    def stop(_number: int, _frame: object) -> None:
        campaign.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    report = campaign.run(options.kills, options.minutes * 60)
    print(json.dumps(report.as_json()) if options.json else report)
    code = 1 if report.violations else 0
    if getattr(options, "powerloss_states", 0):
        code |= _power_losses(["--states", str(options.powerloss_states), "--seed", str(seed)])
    return code


def _power_losses(arguments: list[str]) -> int:
    campaign = importlib.import_module("warren.tools.crash.powerloss")
    return int(campaign.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
