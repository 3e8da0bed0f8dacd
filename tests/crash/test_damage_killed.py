"""Goal: what happens to the files of a node that was killed is told as it is for one that was stopped: `check` before,
and the next start. Method: a real node with bodies in its store is killed; each case damages a copy of its directory,
checks it, starts it, and reads its queues to the end.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warren
from warren.engine import quarantine
from warren.engine.formats import FILE_HEADER_BYTES
from warren.engine.node_directory import NodeDirectory
from warren.workers.cli.check import verify

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.crash

SETTINGS = {"workers": 1, "file_bytes": 512 * 1024, "message_bytes_max": 100_000}
LARGE, SMALL = 60, 40
SIZE = 20_000


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("killed") / "node"
    node = RealNode(path, **SETTINGS)
    node.start()
    try:
        with warren.attach(path) as client:
            client.queue("large").put_many([b"%08d" % number + bytes(SIZE) for number in range(LARGE)])
            client.queue("small").put_many([b"%08d" % number for number in range(SMALL)])
        wait_until((store(path) / "1.lst").exists, 30, what="lists of full files")
    finally:
        node.kill_all()
    yield path
    node.start()  # with what it left in shared memory: nothing of it stays
    node.stop()
    reported = [*quarantine.entries(store(path)), *quarantine.entries(worker(path))]
    assert reported == [], "a kill is no damage"


@pytest.fixture
def copied(killed: Path, tmp_path: Path) -> Path:
    path = tmp_path / "node"
    shutil.copytree(killed, path, ignore=shutil.ignore_patterns("*.sock"))
    return path


def store(path: Path) -> Path:
    return path / "store" / "persistent"


def worker(path: Path) -> Path:
    return path / "queues" / "worker-0"


def problems(path: Path) -> list[str]:
    return verify(NodeDirectory(path)).problems


def begun(folder: Path, suffix: str) -> list[Path]:
    """Files with a record, by rising number."""
    files = sorted(folder.glob(f"*{suffix}"), key=lambda path: int(path.stem))
    return [path for path in files if any(path.read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 64])]


def remove_old(path: Path) -> Path:
    target = begun(store(path), ".rdq")[0]
    target.with_suffix(".lst").unlink()
    target.unlink()
    return target


def remove_new(path: Path) -> Path:
    target = begun(store(path), ".rdq")[-1]
    assert not target.with_suffix(".lst").exists()
    target.unlink()
    return target


def cut_new(path: Path) -> Path:
    target = begun(store(path), ".rdq")[-1]
    os.truncate(target, FILE_HEADER_BYTES + SIZE // 2)
    return target


def head_new(path: Path) -> Path:
    target = max(store(path).glob("*.rdq"), key=lambda found: int(found.stem))
    with target.open("r+b") as file:
        file.write(bytes(FILE_HEADER_BYTES))
    return target


STORE: dict[str, tuple[Callable[[Path], Path], bool]] = {  # whether it costs messages
    "old file and its list removed": (remove_old, True),
    "newest file removed": (remove_new, True),
    "newest file cut": (cut_new, True),
    "first page of the next file": (head_new, False),
}


@pytest.mark.parametrize("how", STORE)
def test_damage_of_the_store_is_named_by_check_and_by_the_start(copied: Path, how: str) -> None:
    damage, costs = STORE[how]
    assert problems(copied) == []
    target = damage(copied)
    found = problems(copied)
    assert any(line.startswith(str(target)) for line in found), found
    with RealNode(copied, **SETTINGS):
        with warren.attach(copied) as client:
            large = client.queue("large", create=False)

            def lost() -> int:
                rows = client.status()["queues"]
                return next(row["lost"] for row in rows if row["name"] == "large")

            if costs:
                wait_until(lambda: lost() > 0, 30, what="the count of what is lost")
            missing = LARGE - sum(1 for _ in large.consume(timeout=2.0))
            assert lost() == missing
            assert (missing > 0) == costs
            assert sum(1 for _ in client.queue("small", create=False).consume(timeout=2.0)) == SMALL

            def workers_lost() -> int:
                return sum(row["lost"] for row in client.status()["processes"] if row["role"] == "queue_worker")

            wait_until(lambda: workers_lost() == missing, 30, what="the count of the worker")
            if costs:
                counted = lambda: sum(entry.messages or 0 for entry in quarantine.entries(worker(copied)))  # noqa: E731
                wait_until(lambda: counted() == missing, 30, what="the report of the worker")
        reported = [entry.file for entry in quarantine.entries(store(copied))]
        assert target.name in reported
        assert f"/{target.name} " in (copied / "log" / "store.log").read_text()
    assert problems(copied) == [], "each damage is told once"


def test_the_list_of_a_store_that_is_damaged_is_named_and_made_anew(copied: Path) -> None:
    path = store(copied) / "files"
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)
    assert any(line.startswith(str(path)) for line in problems(copied))
    with RealNode(copied, **SETTINGS), warren.attach(copied) as client:
        assert sum(1 for _ in client.queue("large", create=False).consume(timeout=2.0)) == LARGE
    assert [entry.file for entry in quarantine.entries(store(copied))] == ["files"]
    assert problems(copied) == []


def test_files_of_a_store_that_go_are_not_missed(copied: Path) -> None:
    with RealNode(copied, **SETTINGS) as node:
        with warren.attach(copied) as client:
            first = begun(store(copied), ".rdq")[0]
            for message in client.queue("large", create=False).consume(timeout=2.0):
                message.ack()
            wait_until(lambda: not first.exists(), 60, what="a file that goes")
        node.kill_all()
    assert problems(copied) == []
    with RealNode(copied, **SETTINGS):
        pass
    assert quarantine.entries(store(copied)) == []


def test_a_journal_that_was_cut_is_named_by_check_and_by_the_start(copied: Path) -> None:
    target = begun(worker(copied) / "journal", ".jnl")[-1]
    os.truncate(target, FILE_HEADER_BYTES + 1000)
    assert any(line.startswith(str(target)) and "it was cut" in line for line in problems(copied))
    with RealNode(copied, **SETTINGS):
        pass
    assert any("it was cut" in entry.reason for entry in quarantine.entries(worker(copied)))
    assert f"{target.name}: has " in (copied / "log" / "worker-0.log").read_text()
    assert problems(copied) == [], "each damage is told once"
