"""Goal: a loss of power at any point leaves no register that names a file that was removed in good order, also when
the process that wrote that the file goes was killed before its sync, or as that failed, and another one removed it.

Method: both processes are recorded as a power-loss campaign records a node (warren.tools.crash), and the disk model
makes states of it: for a register alone, and for a store that starts and removes what was collected.
"""

import random
import shutil
from pathlib import Path

import pytest

from warren.engine.kernel import file_register
from warren.tools.crash import powerloss
from warren.tools.crash.disk import Disk, put_down

from support.long import rounds
from support.recorded import run_recorded
from support.register_recorded import LEAVING, data_file, register
from support.store_folder import ALL, NODE, OWNER, Folder

pytestmark = pytest.mark.crash

STATES_PER_POINT = rounds(20)


def missed(directory: Path) -> list[str]:
    listed = file_register.read(register(directory).path, NODE, OWNER)
    gone = [str(key) for key in listed.entries if not data_file(directory, key).exists()]
    return [*gone, *([listed.problem] if listed.problem else [])]


def missed_by_a_start(directory: Path) -> list[str]:
    started = Folder(directory).start()
    assert started.served == ALL
    return started.report.damaged


@pytest.mark.parametrize("what", ["register", "rewritten", "store", "failed"])
def test_what_another_process_let_go_is_not_missed(tmp_path: Path, what: str, seed: int) -> None:
    root, directory = tmp_path / "node", tmp_path / "state"
    records = run_recorded(tmp_path, root, "register_recorded", str(root), what)
    removed = ["0.rdq", "1.rdq"] if what == "store" else [f"data/{key[2]}" for key in LEAVING]
    assert not any((root / name).exists() for name in removed)
    begun = next(n for n, record in enumerate(records) if record.kind == "note")
    disk = Disk(records, str(root), powerloss.nothing_relies_on)
    wrong = []
    for point in range(begun + 1, len(records) + 1):
        disk.advance(point)
        for number in range(STATES_PER_POINT):
            directory.mkdir()
            put_down(disk.crash(random.Random(f"{seed}/{point}/{number}")), directory)
            found = missed_by_a_start(directory) if what == "store" else missed(directory)
            wrong += [f"state {number} at {point}: {text}" for text in found]
            shutil.rmtree(directory)
    assert wrong == []
