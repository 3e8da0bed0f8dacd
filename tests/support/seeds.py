"""Seeds of tests that draw by lot: said, so that a run can be repeated."""

import os
import random


def new_seed() -> int:
    """Return a seed, new in each run, and print it; WARREN_TEST_SEED=… repeats one."""
    value = int(os.environ.get("WARREN_TEST_SEED") or random.getrandbits(32))
    print(f"WARREN_TEST_SEED={value}")
    return value
