"""`python -m warren.tools.crash --kills N --seed S [--minutes M]`: a kill campaign.

The exit code is 1 when it found something.
"""

from __future__ import annotations

import argparse
import json
import random
import sys

from warren.tools.bench.harness import real_folder
from warren.tools.crash.campaign import Campaign


def main(argv: list[str] | None = None) -> int:
    """Run campaigns until the kills are reached or the minutes are over."""
    parser = argparse.ArgumentParser(prog="warren.tools.crash", description="Kill the processes of a node under load.")
    parser.add_argument("--kills", type=int, default=100, help="kills altogether (100)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier campaign")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after so long, however many kills (10)")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    campaign = Campaign(real_folder(options.dir), seed, lambda text: print(text, file=sys.stderr, flush=True))
    report = campaign.run(options.kills, options.minutes * 60)
    print(json.dumps(report.as_json()) if options.json else report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
