"""Goal: when the power fails at any point of a move, everything is where the catalog says, once, and the next start
finishes the move; what the old worker's files hold never comes back.

Method: the moves of a filled directory are recorded as a power-loss campaign records a node (warren.tools.crash), and
the disk model makes states of it. In each state the queues are read as a move reads them, and compared with what was
in them before; then the moves are done to the end, and it is read again. Faults are planted to see that they are found.
"""

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.queues.flush import LOCATION_JOURNAL, LOCATION_SEGMENT, ROW
from warren.engine.queues.moving import Source
from warren.tools.crash import powerloss
from warren.tools.crash.disk import Disk, put_down
from warren.tools.crash.recording import Record

from support.long import rounds
from support.moving_recorded import move
from support.real_node import RealNode
from support.recorded import run_recorded

pytestmark = pytest.mark.crash

STATES = rounds(100)
SETTINGS = {"file_bytes": 1 << 18, "arena_bytes": 1 << 19, "message_bytes_max": 1 << 16, "journal_files_max": 2}
#: of a message: sequence, id, body or b"" (in the store), priority and reason
Content = dict[str, list[tuple[int, bytes, bytes, bytes]]]


def fill(directory: Path) -> None:
    with RealNode(directory, workers=3, **SETTINGS), warren.attach(directory) as node:
        for i in range(8):
            queue = node.queue(f"queue-{i}", max_priority=4)
            queue.put_many([b"%d %d" % (i, n) + b"." * 2500 for n in range(60)], priority=[n % 5 for n in range(60)])
            queue.put(b"L" * 9000)
            for message in queue.get_many(12, timeout=10.0):
                message.ack()
        claimed = node.queue("claimed")
        claimed.put_many([b"claim %d" % n for n in range(10)])
        assert claimed.subscription("reader").claim(4) == (0, 4)


def content(directory: Path) -> Content:
    """All that the catalog's queues hold, read off the disk."""
    node_id = NodeDirectory(directory).read().node_id
    catalog = Catalog.load(directory)
    found: Content = {}
    for worker in {item.worker for item in catalog.queues.values()}:
        queues = catalog.of_worker(worker)
        source = Source(directory, node_id, worker, queues, 1 << 26)
        try:
            source.read()
            for item in queues:
                rows, next = source._engine.export_queue(item.id, 0, 1 << 20)
                found[item.name] = [_message(source, row) for row in np.frombuffer(rows, ROW)]
                found[item.name + " next"] = [(next, b"", source._engine.terms(item.id), b"")]
        finally:
            source.close()
    return found


def _message(source: Source, row: np.void) -> tuple[int, bytes, bytes, bytes]:
    path = {
        LOCATION_JOURNAL: source.folder.journal_file(int(row["file"])),
        LOCATION_SEGMENT: source.folder.data_file(int(row["file"])),
    }.get(int(row["where"]))
    body = b""
    if path is not None:
        with open(path, "rb") as file:
            file.seek(int(row["offset"]))
            frame = file.read(int(row["frame_length"]))
        start = int(row["blob_offset"])
        body = frame[start : start + int(row["body_length"])]
        assert frame[8:24] == row["id"].tobytes()
    return int(row["sequence"]), row["id"].tobytes(), body, row["rest"].tobytes()[7:15]


@dataclasses.dataclass
class Recorded:
    records: list[Record]
    root: str
    folder: Path
    before: Content

    def wrong(self, records: list[Record], seed: str, states: int = STATES) -> list[str]:
        """What is not as it was in crash states between the copy and the end."""
        copied = next(n for n, record in enumerate(records) if record.kind == "note")
        rng = random.Random(seed)
        points = sorted(rng.randint(copied, len(records)) for _ in range(states))
        disk = Disk(records, self.root, powerloss.nothing_relies_on)
        wrong = []
        for number, point in enumerate(points):
            disk.advance(point)
            directory = self.folder / "state"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            put_down(disk.crash(random.Random(f"{seed}/{number}")), directory)
            try:
                if content(directory) != self.before:
                    wrong.append(f"state {number} at {point}: not what it was")
                move(directory, 1)
                if content(directory) != self.before:
                    wrong.append(f"state {number} at {point}: not what it was, after the next start")
            except (warren.Error, AssertionError, OSError) as error:
                wrong.append(f"state {number} at {point}: {error}")
        return wrong


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    with powerloss.scratch("warren-moves-test-") as folder:
        base = folder / "base"
        fill(base)
        root = folder / "node"
        records = run_recorded(folder, root, "moving_recorded", str(base), str(root), "1")
        before = content(base)
        assert content(root) == before
        assert {item.worker for item in Catalog.load(root).queues.values()} == {0}
        yield Recorded(records, str(root), folder, before)


def test_nothing_is_lost_or_doubled(recorded: Recorded, seed: int) -> None:
    assert recorded.wrong(recorded.records, str(seed)) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "missing",
    [lambda record: not record.path, lambda record: bool(record.path)],
    ids=["syncs of files", "syncs of directories"],
)
def test_planted_faults_are_found(recorded: Recorded, missing: Callable[[Record], bool]) -> None:
    copied = next(n for n, record in enumerate(recorded.records) if record.kind == "note")
    planted = [
        dataclasses.replace(record, result=-1) if n > copied and record.kind == "sync" and missing(record) else record
        for n, record in enumerate(recorded.records)
    ]
    assert recorded.wrong(planted, "planted")
