"""Goal: a sync that failed makes nothing that is confirmed later rest upon what is not on the disk: after it the files
are read as they were written, the next sync returns 0, and a loss of power takes what the failed one dropped.

Method: a real node in which one sync fails, and what had it is killed, is recorded as a power-loss campaign records one
(warren.tools.crash); the disk model drops what a failed sync covered (tools/crash/disk.py), and each state is started
and compared with what was confirmed.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from warren.tools.crash import powerloss
from warren.tools.crash.afterwards import Checker, Truth
from warren.tools.crash.disk import Disk
from warren.tools.crash.recording import Record, Recorder

from support.failed_sync_recorded import SCENES

pytestmark = pytest.mark.crash

TESTS = Path(__file__).parents[1]
STATES = 60


def recorded(folder: Path, scene: str) -> tuple[list[Record], str]:
    recorder, root = Recorder(folder), folder / "node"
    recorder.begin()
    environment = recorder.environment(root)
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-m", "support.failed_sync_recorded", str(root), scene],
        env=environment,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = recorder.read()
    assert powerloss.differences(records, root) == []
    return records, str(root)


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_rests_upon_what_a_failed_sync_dropped(scene: str) -> None:
    seed = os.environ.get("WARREN_TEST_SEED") or str(random.getrandbits(32))
    print(f"WARREN_TEST_SEED={seed}")
    with powerloss.scratch("warren-failed-sync-") as folder:
        records, root = recorded(folder, scene)
        [failed] = [n for n, record in enumerate(records) if record.kind == "sync" and record.result == -1]
        truth, checker = Truth(records), Checker(folder)
        assert max(truth.confirmed.values()) > failed, "something is confirmed later"
        rng = random.Random(seed)
        points = sorted(rng.randint(failed + 1, len(records)) for _ in range(STATES // 2))
        disk = Disk(records, root, powerloss.nothing_relies_on)
        wrong = []
        try:
            for number, point in enumerate([*points, *[len(records)] * (STATES // 2)]):
                disk.advance(point)
                state = disk.crash(random.Random(f"{seed}/{number}"))
                wrong += [f"state {number} at {point}: {text}" for text in checker.check(state, truth, point)]
        finally:
            checker.close()
    assert wrong == []
