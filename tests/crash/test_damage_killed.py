"""Goal: what happens to the files of a node that was killed is told as it is for one that was stopped: `check` before,
and the next start. Method: a real node with bodies in its store is killed; each case damages a copy of its directory,
checks it, starts it, and reads its queues to the end.
"""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import quarantine
from warren.engine.kernel.formats import FILE_HEADER_BYTES
from warren.engine.store.folder import STAMP
from warren.workers.cli.check import verify
from warren.workers.process.control import ControlClient

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
        wait_until(
            lambda: len(begun(store(path), ".rdq")) < len(list(store(path).glob("*.rdq"))), 30, what="a next file"
        )
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
    """Files with a record, by rising number; a living node may remove some meanwhile."""
    found = []
    for path in sorted(folder.glob(f"*{suffix}"), key=lambda path: int(path.stem)):
        with contextlib.suppress(FileNotFoundError):
            if any(path.read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 64]):
                found.append(path)
    return found


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


def cut_catalog(path: Path, changes: int) -> None:
    """Cut the last changes off the log of the catalog, at the end of a line."""
    (log,) = path.glob("catalog.*.log")
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) > changes
    log.write_bytes(b"".join(lines[: len(lines) - changes]))


def held(path: Path) -> dict[str, bytes]:
    """Every file of the catalog and of the workers, but for those of transient messages and the numbers of starts."""
    files = [*path.glob("catalog*"), *(item for item in path.glob("queues/**/*") if item.is_file())]
    kept = [file for file in files if "transient" not in file.parts and file.name != STAMP]
    return {str(file.relative_to(path)): file.read_bytes() for file in kept}


def refused(path: Path, **settings: Any) -> str:
    """What a start says that finds that the catalog was cut; it changes nothing."""
    before, node = held(path), RealNode(path, **SETTINGS | settings)
    with pytest.raises(AssertionError) as failed:
        node.start()
    assert node.process is not None
    assert node.process.wait(60) == 3
    node.stop()
    assert held(path) == before
    return str(failed.value)


def repaired(path: Path) -> list[str]:
    target = NodeDirectory(path)
    target.lock()
    try:
        report = verify(target, repair=True)
    finally:
        target.unlock()
    assert report.problems == []
    assert problems(path) == []
    return report.repaired


def numbers(client: Any, name: str) -> list[bytes]:
    return [bytes(message.body[:8]) for message in client.queue(name, create=False).consume(timeout=2.0)]


def test_a_catalog_whose_log_was_cut_is_refused_and_repaired(copied: Path) -> None:
    cut_catalog(copied, 1)
    for _again in range(2):  # a refused start gives no id, and says the same again
        (found,) = problems(copied)
        assert found.startswith(str(copied / "catalog.json"))
        assert "worker-0 has records of queues with ids 2," in found
        assert "ids 2," in (said := refused(copied))
        assert "warren check DIR --repair" in said
    assert any("'recovered-2'" in line for line in repaired(copied))
    with RealNode(copied, **SETTINGS) as node:
        with warren.attach(copied) as client:
            assert numbers(client, "large") == [b"%08d" % number for number in range(LARGE)]
            assert numbers(client, "recovered-2") == [b"%08d" % number for number in range(SMALL)]
            assert client.queue("small").depth() == 0, "an id that was given is not given again"
        node.kill_all()
        assert problems(copied) == []
        node.start()


def test_an_older_catalog_of_a_stopped_node_is_refused_and_repaired(copied: Path) -> None:
    with RealNode(copied, **SETTINGS):
        pass
    older = (copied / "catalog.json").read_bytes()
    with RealNode(copied, **SETTINGS), warren.attach(copied) as client:
        client.queue("empty")
        client.queue("later").put_many([b"%08d" % number for number in range(SMALL)])
    (copied / "catalog.json").write_bytes(older)
    assert "ids 3, 4," in "".join(problems(copied))
    assert "ids 3, 4," in refused(copied)
    repaired(copied)
    with RealNode(copied, **SETTINGS), warren.attach(copied) as client:
        assert numbers(client, "recovered-4") == [b"%08d" % number for number in range(SMALL)]


def test_claims_of_a_lost_subscription_are_at_its_queue_again(tmp_path: Path) -> None:
    path = tmp_path / "node"
    node = RealNode(path, **SETTINGS)
    node.start()
    try:
        with warren.attach(path) as client:
            client.queue("kept")
            queue = client.queue("lost")
            queue.put_many([b"%08d" % number for number in range(SMALL)])
            queue.subscription("half").claim(SMALL // 2)
    finally:
        node.kill_all()
    assert problems(path) == []
    cut_catalog(path, 2)
    assert "worker-0 has records of queues with ids 2, 3," in refused(path)
    (_done, next_id) = repaired(path)
    assert next_id.endswith("the next queue gets id 4")
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        assert sorted(numbers(client, "recovered-2")) == [b"%08d" % number for number in range(SMALL)]


def test_a_start_with_fewer_workers_moves_and_removes_nothing_behind_a_catalog_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "node"
    names = [f"q{number}" for number in range(8)]
    node = RealNode(path, **SETTINGS | {"workers": 2})
    node.start()
    try:
        with warren.attach(path) as client:
            for name in names:
                client.queue(name).put(name.encode())
    finally:
        node.kill_all()
    with RealNode(path, **SETTINGS | {"workers": 2}):  # and a clean stop: no worker has to be started to look
        pass
    whole = Catalog.load(path)
    cut, moved = Catalog(whole.version), whole.copy()
    cut.save(path)  # it knows nothing: nothing has to move, and no queue is where a folder goes
    assert "worker-1 has records" in refused(path, workers=1)
    first = next(id for id in sorted(moved.by_id) if moved.by_id[id].worker == 1)
    for id in [id for id in moved.by_id if id > first]:
        moved.delete_queue(moved.by_id[id].name)
    moved.next_queue_id = first + 1
    moved.save(path)  # a queue has to move
    assert re.search(r"queues move(.|\n)*has records of queues with ids", refused(path, workers=1))
    repaired(path)
    with RealNode(path, **SETTINGS | {"workers": 1}), warren.attach(path) as client:
        wanted = {id: item.name if id <= first else f"recovered-{id}" for id, item in whole.by_id.items()}
        found = {wanted[id]: bytes(client.queue(wanted[id], create=False).get(timeout=30).body) for id in wanted}
    assert found == {wanted[id]: item.name.encode() for id, item in whole.by_id.items()}


def test_a_catalog_that_is_cut_under_a_running_node_is_whole_again_when_it_has_ended(copied: Path) -> None:
    node = RealNode(copied, **SETTINGS)
    node.start()
    with warren.attach(copied) as client:
        client.queue("late").put_many([b"%08d" % number for number in range(SMALL)])
        cut_catalog(copied, 1)
        os.kill(node.pids()["worker-0"], signal.SIGKILL)
        assert node.process is not None
        assert node.process.wait(60) == 3
    node.stop()
    assert problems(copied) == []
    with RealNode(copied, **SETTINGS), warren.attach(copied) as client:
        assert numbers(client, "late") == [b"%08d" % number for number in range(SMALL)]


def test_a_catalog_that_is_cut_behind_a_killed_supervisor_is_not_taken_over(copied: Path) -> None:
    node = RealNode(copied, **SETTINGS)
    node.start()
    with warren.attach(copied) as client:
        client.queue("late").put_many([b"%08d" % number for number in range(SMALL)])
    pids = node.pids()
    servers = [pid for role, pid in pids.items() if role != "supervisor"]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)  # they would start another supervisor
    try:
        os.kill(pids["supervisor"], signal.SIGKILL)
        node.wait()
        (log,) = copied.glob("catalog.*.log")
        whole = log.read_bytes()
        cut_catalog(copied, 1)
        assert "or is an older copy" in refused(copied)
        log.write_bytes(whole)
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    wait_until(NodeDirectory(copied).locked, 30, what="a supervisor that takes over")
    with warren.attach(copied) as client:
        assert numbers(client, "late") == [b"%08d" % number for number in range(SMALL)]
    with ControlClient(copied) as control:
        control.call("stop")
    wait_until(lambda: not NodeDirectory(copied).locked(), 30, what="the end of the node")


def test_queues_that_went_or_are_of_a_client_are_no_sign_of_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "node"
    node = RealNode(path, **SETTINGS | {"workers": 2})
    node.start()
    try:
        with warren.attach(path) as client:
            for number in range(6):
                client.queue(f"gone{number}").put(b"x" * 1000)
                client.queue(f"transient{number}", durable=False).put(b"x" * 1000)
                client.queue(f"own{number}", exclusive=True).put(b"x" * 1000)
                client.queue(f"kept{number}").put(b"x" * 1000)
                client.queue(f"kept{number}").subscription("some").claim(1)
            for number in range(6):
                client.queue(f"gone{number}").delete()
            client.queue("last").delete()
    finally:
        node.kill_all()
    for workers in (2, 1, 3):
        assert problems(path) == []
        node = RealNode(path, **SETTINGS | {"workers": workers})
        node.start()
        node.kill_all()
    assert problems(path) == []
    with RealNode(path, **SETTINGS):
        pass
