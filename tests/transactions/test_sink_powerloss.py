"""Goal: a loss of power at any point, also after drivers that were killed or whose sync failed, loses no message of a
batch that Spark's log has, and doubles none of any.

Method: drivers that write into a sink are recorded as a power-loss campaign records a node; the disk model makes states
of it (warren.tools.crash.disk), and in each the next driver goes on from Spark's log.
"""

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from warren.tools.crash.disk import Disk, put_down

from support.long import rounds
from support.recorded import run_recorded
from support.sink_recorded import rows_of, run

pytestmark = pytest.mark.crash

BATCHES = 4
STATES = rounds(400)
WHOLE = Counter(
    (destination.queue, body)
    for batch in range(BATCHES)
    for partition in range(2)
    for destination, body in rows_of(batch, partition)
)


def test_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    root, directory = tmp_path / "node", tmp_path / "state"
    records = run_recorded(tmp_path, root, "sink_recorded", str(root), str(BATCHES), str(seed))
    done = {number: int(record.data) for number, record in enumerate(records) if record.kind == "note"}
    begun = min(done)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # the power fails only once
    disk = Disk(records, str(root), lambda path: path.endswith("/lock"))
    rng = random.Random(seed)
    points = sorted(rng.randrange(begun + 1, len(records) + 1) for _ in range(STATES))
    wrong = []
    for number, point in enumerate(points):
        disk.advance(point)
        directory.mkdir()
        put_down(disk.crash(random.Random(f"{seed}/{number}")), directory)
        noted = max(batches for at, batches in done.items() if at < point)
        log = directory / "spark"
        assert (int(log.read_bytes()) if log.exists() else 0) >= noted
        found = Counter((queue, body) for queue, _mark, body in run(directory, BATCHES, "after"))
        if found != WHOLE:
            wrong.append(f"state {number} at {point}: lost {WHOLE - found}, doubled {found - WHOLE}")
        shutil.rmtree(directory)
    assert wrong == []
