"""Short kill campaigns in tests: none finds a violation, and together they meet all that the test wants."""

from collections.abc import Callable, Iterable

from warren.tools.crash.campaign import Campaign

from support.seeds import new_seed

CAMPAIGNS = 4
SECONDS = 120.0  # a quiet machine needs 12


def run_covering(make: Callable[[int], Campaign], kills: int, wanted: Iterable[str]) -> None:
    """Run campaigns, each with a seed of its own, until each `wanted` field of the report was more than nothing.

    How far a campaign comes in its time is up to the machine, and what it meets there to chance.
    """
    missing = {"kills_n", *wanted}
    for number in range(CAMPAIGNS):
        report = make(new_seed(number)).run(kills, SECONDS)
        print(report)
        assert not report.violations, str(report)
        missing = {name for name in missing if not getattr(report, name)}
        if not missing:
            return
    raise AssertionError(f"none of {CAMPAIGNS} campaigns had any {', '.join(sorted(missing))}")
