"""Goal: a sync that failed makes nothing that is confirmed later rest upon what is not on the disk: after it the files
are read as they were written, the next sync returns 0, and a loss of power takes what the failed one dropped.

Method: a real node in which one sync fails, and what had it is killed, is recorded as a power-loss campaign records one
(warren.tools.crash); the disk model drops what a failed sync covered (tools/crash/disk.py), and each state is started
and compared with what was confirmed.
"""

import random

import pytest

from warren.tools.crash import powerloss
from warren.tools.crash.afterwards import Checker, Truth
from warren.tools.crash.disk import Disk

from support.failed_sync_recorded import SCENES
from support.long import in_part, rounds
from support.recorded import run_recorded

pytestmark = pytest.mark.crash

STATES = rounds(60)


@pytest.mark.parametrize("scene", in_part(SCENES, 3))
def test_nothing_rests_upon_what_a_failed_sync_dropped(scene: str, seed: int) -> None:
    with powerloss.scratch("warren-failed-sync-") as folder:
        root = folder / "node"
        records = run_recorded(folder, root, "failed_sync_recorded", str(root), scene, timeout_s=240)
        assert powerloss.differences(records, root) == []
        [failed] = [n for n, record in enumerate(records) if record.kind == "sync" and record.result == -1]
        truth, checker = Truth(records), Checker(folder)
        assert max(truth.confirmed.values()) > failed, "something is confirmed later"
        rng = random.Random(seed)
        points = sorted(rng.randint(failed + 1, len(records)) for _ in range(STATES // 2))
        disk = Disk(records, str(root), powerloss.nothing_relies_on)
        wrong = []
        try:
            for number, point in enumerate([*points, *[len(records)] * (STATES // 2)]):
                disk.advance(point)
                state = disk.crash(random.Random(f"{seed}/{number}"))
                wrong += [f"state {number} at {point}: {text}" for text in checker.check(state, truth, point)]
        finally:
            checker.close()
    assert wrong == []
