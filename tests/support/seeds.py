"""Seeds of tests that draw by lot: said, so that a run can be repeated."""

import os
import random
import zlib

from support.long import LONG


def new_seed(number: int = 0) -> int:
    """Return a seed and print it: of the test's name, in long tests a new one; WARREN_TEST_SEED=… repeats one.

    So the short tests draw the same in each run, and new draws are made where one looks for them.
    Numbers tell apart the seeds of one test.
    """
    value = int(os.environ.get("WARREN_TEST_SEED") or 0)
    if not value:
        name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without the phase
        value = random.getrandbits(32) if LONG else zlib.crc32(f"{name} {number}".encode())
    print(f"WARREN_TEST_SEED={value}")
    return value
