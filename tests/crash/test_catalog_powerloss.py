"""Goal: when the power fails at any point of a history of declarations, the catalog that is found afterwards is one
that there was, not older than the last one that was told; and it can be changed further.

Method: a history with many logs and several writers is recorded as a power-loss campaign records a node
(warren.tools.crash), and the disk model makes states of it. Faults are planted to see that they are found.
"""

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog
from warren.tools.crash import powerloss
from warren.tools.crash.disk import Disk, put_down
from warren.tools.crash.recording import Record

from support.catalog_history import alone, states
from support.recorded import run_recorded
from support.seeds import new_seed

pytestmark = pytest.mark.crash

CHANGES = 150
STATES = 400


@dataclasses.dataclass
class Recorded:
    records: list[Record]
    root: str
    folder: Path
    seed: int

    def wrong(self, records: list[Record]) -> list[str]:
        """What is not as it should be in crash states of the history."""
        expected = states(self.seed, CHANGES)
        begun = next(n for n, record in enumerate(records) if record.kind == "note")
        rng = random.Random(self.seed)
        points = sorted(rng.randint(begun + 1, len(records)) for _ in range(STATES))
        disk = Disk(records, self.root, powerloss.nothing_relies_on)
        wrong = []
        for number, point in enumerate(points):
            disk.advance(point)
            told = max(int(record.data) for record in records[:point] if record.kind == "note")
            directory = self.folder / "state"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            put_down(disk.crash(random.Random(f"{self.seed}/{number}")), directory)
            try:
                loaded = catalog_log.load(directory)
                version = loaded.catalog.version
                if version < told:
                    wrong.append(f"state {number} at {point}: version {version}, {told} was told")
                if alone(loaded.catalog) != expected.get(version):
                    wrong.append(f"state {number} at {point}: version {version} never was so")
                writer = catalog_log.Writer(directory, loaded)
                writer.change(lambda catalog: catalog.declare_queue("one more", workers_n=2))
                if alone(Catalog.load(directory)) != alone(writer.catalog):
                    wrong.append(f"state {number} at {point}: what was declared then is not there")
            except warren.Error as error:
                wrong.append(f"state {number} at {point}: {error}")
        return wrong


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    seed = new_seed()
    with powerloss.scratch("warren-catalog-test-") as folder:
        root = folder / "node"
        records = run_recorded(folder, root, "catalog_history", str(root), str(seed), str(CHANGES))
        yield Recorded(records, str(root), folder, seed)


def test_what_was_told_is_there(recorded: Recorded) -> None:
    assert recorded.wrong(recorded.records) == []


@pytest.mark.parametrize(
    "missing",
    [lambda record: not record.path, lambda record: bool(record.path)],
    ids=["syncs of files", "syncs of directories"],
)
def test_planted_faults_are_found(recorded: Recorded, missing: Callable[[Record], bool]) -> None:
    planted = [
        dataclasses.replace(record, result=-1) if record.kind == "sync" and missing(record) else record
        for record in recorded.records
    ]
    assert recorded.wrong(planted)
