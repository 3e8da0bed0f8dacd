"""Goal: a full disk is an alarm of the topic worker, and not its death, on file systems that write a block elsewhere
when a snapshot shares it.

Method: a real node on such a file system in a file (tools/crash/loop_image.py), in a process that mounts it for itself
(support/full_snapshot.py): appends, a snapshot, appends while the disk is filled and stays full, appends when there is
space again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warren.tools.crash.loop_image import refusal

pytestmark = [pytest.mark.crash, pytest.mark.integration]

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["btrfs", pytest.param("xfs", marks=pytest.mark.long)])
def test_behind_a_snapshot_a_full_disk_is_an_alarm(kind: str, tmp_path: Path) -> None:
    if why := refusal(kind):
        pytest.skip(why)
    done = subprocess.run(
        [sys.executable, "-m", "support.full_snapshot", kind, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode and ("no mounts of its own" in done.stderr or "mount: " in done.stderr):
        pytest.skip(f"this container may not mount: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["refused"], "the disk was full"
    assert any("disk" in alarm for alarm in found["alarms"])
    assert len(set(found["pids"])) == 1, "the topic worker died"
    assert (found["lost"], found["doubled"], found["unfound"], found["said"]) == ([], 0, [], [])
