"""Goal: what is missing above the level of files, or what two sound parts of a directory do not have in common, is told
before it costs anything. Method: real nodes, stopped or killed; each case takes folders away (or puts folders of
another moment together), checks, starts, puts back, repairs, and reads the queues to the end.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.engine.kernel import atomic_file, quarantine
from warren.engine.queues.folder import Folder
from warren.workers.cli.check import Report, verify
from warren.workers.node import absence
from warren.workers.process.control import ControlClient

from support.long import LONG, in_part
from support.real_node import RealNode
from support.waiting import wait_until

SOCKETS = shutil.ignore_patterns("*.sock")
pytestmark = pytest.mark.crash

SETTINGS = {"workers": 2, "file_bytes": 512 * 1024, "message_bytes_max": 100_000}
NAMES = [f"q{number}" for number in range(6)]
SMALL, LARGE = 20, 12  #: messages of each queue, by size
SIZE = 20_000
EACH = SMALL + LARGE


@pytest.fixture(scope="module", params=in_part(["stopped", "killed"]))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("made") / "node"
    node = RealNode(path, **SETTINGS)
    node.start()
    with warren.attach(path) as client:
        for name in NAMES:
            client.queue(name).put_many(bodies())
        client.store().write(b"k" * 16, b"kept by a program")
    node.stop() if request.param == "stopped" else node.kill_all()
    assert verify(NodeDirectory(path)).problems == []
    yield path
    node.start()  # with what it left in shared memory: nothing of it stays
    node.stop()


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    path = tmp_path / "node"
    shutil.copytree(made, path, ignore=shutil.ignore_patterns("*.sock"))
    return path


def bodies() -> list[bytes]:
    return [b"%08d" % number + bytes(SIZE if number >= SMALL else 10) for number in range(EACH)]


def check(path: Path, repair: bool = False) -> Report:
    target = NodeDirectory(path)
    if not repair:
        return verify(target)
    target.lock()
    try:
        return verify(target, repair=True)
    finally:
        target.unlock()


def problems(path: Path) -> list[str]:
    return check(path).problems


def worker(path: Path, number: int) -> Path:
    return path / "queues" / f"worker-{number}"


def queues_of(path: Path, number: int) -> list[str]:
    return [item.name for item in Catalog.load(path).of_worker(number)]


def tree(path: Path) -> dict[str, bytes]:
    """What a start that is refused may not touch."""
    parts = ["queues", "store"]
    files = [item for part in parts for item in (path / part).rglob("*") if item.is_file()]
    files += [path / "node.json", *path.glob("catalog*")]
    return {str(item.relative_to(path)): item.read_bytes() for item in files}


def refused(path: Path, **settings: Any) -> str:
    """What a start says that finds something missing; it changes nothing."""
    before, folders = tree(path), sorted(path.rglob("queues*/**/")) + sorted(path.rglob("store*/**/"))
    node = RealNode(path, **SETTINGS | settings)
    with pytest.raises(AssertionError) as failed:
        node.start()
    assert node.process is not None
    assert node.process.returncode == 3
    assert tree(path) == before
    assert sorted(path.rglob("queues*/**/")) + sorted(path.rglob("store*/**/")) == folders
    return str(failed.value)


def holds(path: Path, wanted: dict[str, list[bytes]], **settings: Any) -> None:
    """A start serves just that, in order."""
    with RealNode(path, **SETTINGS | settings), warren.attach(path) as client:
        for name, bodies_wanted in wanted.items():
            queue = client.queue(name, create=False)
            assert [bytes(queue.get(timeout=60).body) for _ in bodies_wanted] == bodies_wanted
            wait_until(lambda queue=queue: queue.depth() == 0, 60, what="nothing else")  # type: ignore[misc]


def status(path: Path) -> dict[str, Any]:
    with warren.attach(path) as client:
        found: dict[str, Any] = client.status()
    return found


def take_worker(path: Path) -> list[Path]:
    return [worker(path, 1)]


def take_queues(path: Path) -> list[Path]:
    return [path / "queues"]


def take_all(path: Path) -> list[Path]:
    return [
        item
        for item in path.iterdir()
        if item.name not in ("node.json", "catalog.json") and "catalog." not in item.name
    ]


def take_store(path: Path) -> list[Path]:
    return [path / "store"]


def take_persistent(path: Path) -> list[Path]:
    return [path / "store" / "persistent"]


TAKEN = {
    "a worker's folder": (take_worker, ["worker-1"]),
    "queues": (take_queues, ["worker-0", "worker-1"]),
    "everything but node.json and the catalog": (take_all, ["persistent", "worker-0", "worker-1"]),
    "store": (take_store, ["persistent"]),
    "store/persistent": (take_persistent, ["persistent"]),
}


@pytest.mark.parametrize("what", TAKEN)
def test_a_start_without_a_folder_is_refused_and_putting_it_back_brings_everything(
    copied: Path, tmp_path: Path, what: str
) -> None:
    take, names = TAKEN[what]
    aside = tmp_path / "aside"
    aside.mkdir()
    taken = take(copied)
    for path in taken:
        shutil.move(path, aside / path.name)
    for workers in (2, 1, 3):  # nothing is moved, either
        found = [line for line in problems(copied) if "put it back from a backup" in line]
        assert [Path(line.partition(": ")[0]).name for line in found] == names, found
        assert all(f"warren check {copied} --repair" in line for line in found)
        said = refused(copied, workers=workers)
        assert all(f"{name} is missing" in said for name in names)
    if "worker-1" in names:
        assert repr(queues_of(copied, 1)[0]) in said
    for path in taken:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.move(aside / path.name, path)
    assert problems(copied) == []
    holds(copied, dict.fromkeys(NAMES, bodies()))


@pytest.mark.parametrize("what", TAKEN)
def test_a_repair_accepts_the_loss_and_names_it(copied: Path, what: str) -> None:
    take, names = TAKEN[what]
    lost = {name for number in (0, 1) if f"worker-{number}" in names for name in queues_of(copied, number)}
    for path in take(copied):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = check(copied, repair=True)
    assert report.problems == []
    said = [line for line in report.repaired if "is made again" in line]
    assert [Path(line.partition(": ")[0]).name for line in said] == names
    assert all(any(repr(name) in line for line in said) for name in lost)
    again = check(copied)
    assert again.problems == []
    assert any(
        "made again by `warren check --repair`" in entry.reason
        for entry in quarantine.entries(folder_of(copied, names[0]))
    )
    small = [body for body in bodies() if len(body) < SIZE]
    kept = small if "persistent" in names else bodies()
    if "persistent" in names and lost != set(NAMES):
        assert any(f"{LARGE * len(queues_of(copied, 0))} messages without a body" in line for line in again.notes)
    holds(copied, {name: [] if name in lost else kept for name in NAMES})
    assert problems(copied) == []


def folder_of(path: Path, name: str) -> Path:
    return path / "store" / name if name == "persistent" else path / "queues" / name


@pytest.mark.parametrize("how", ["emptied", "made anew by hand"])
def test_a_folder_without_anything_in_it_is_as_good_as_none(copied: Path, how: str) -> None:
    for path in (worker(copied, 1), copied / "store" / "persistent"):
        shutil.rmtree(path)
        path.mkdir()
    if how == "emptied":
        for name in ("journal", "segments", "transient"):
            (worker(copied, 1) / name).mkdir()
    found = problems(copied)
    assert any(line.startswith(str(worker(copied, 1))) and "neither its list" in line for line in found)
    assert any(line.startswith(str(copied / "store" / "persistent")) and "is empty" in line for line in found)
    said = refused(copied)
    assert "is empty" in said
    assert "neither its list" in said


def test_the_error_of_a_program_that_opens_such_a_node_says_what_is_missing(copied: Path) -> None:
    shutil.rmtree(worker(copied, 1))
    with pytest.raises(Error, match=r"worker-1 is missing(.|\n)*put it back from a backup"):
        warren.open(copied, timeout=60)


def test_queues_that_go_with_the_node_are_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "node"
    for kill in (False, True):
        node = RealNode(path, **SETTINGS)
        node.start()
        with warren.attach(path) as client:
            for number in range(6):
                client.queue(f"transient{number}", durable=False).put(b"x")
                client.queue(f"own{number}", exclusive=True).put(b"x")
                client.queue(f"gone{number}").put(b"x")
                client.queue(f"gone{number}").delete()
            node.kill_all() if kill else node.stop()
        shutil.rmtree(path / "queues")
        assert problems(path) == []
    with RealNode(path, **SETTINGS):
        pass


def test_a_first_start_that_was_killed_anywhere_is_no_loss(tmp_path: Path) -> None:
    """Killed before and after each call that makes something durable, up to the superblock."""
    plain = tmp_path / "plain"
    with RealNode(plain, **SETTINGS):
        pass
    ends = 0
    for number in range(0, 200, 2 if LONG else 5):
        path = tmp_path / f"node-{number}"
        code = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from warren.engine.kernel import atomic_file\n"
            "left = [int(sys.argv[2])]\n"
            "def dying(real):\n"
            "    def call(*args, **named):\n"
            "        if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "        left[0] -= 1\n"
            "        return real(*args, **named)\n"
            "    return call\n"
            "for name in ('mkdir', 'rename', 'fsync'): setattr(os, name, dying(getattr(os, name)))\n"
            "from warren.workers.node.options import Options\n"
            "from warren.workers.node.supervise import supervise\n"
            "from warren.workers.node.supervisor import Supervisor\n"
            "def stop(self): raise SystemExit(0)\n"
            "Supervisor._open_mailbox = stop\n"
            f"supervise(Path(sys.argv[1]), Options(changes={SETTINGS!r}))\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path), str(number)], capture_output=True, text=True)
        if done.returncode == 0:
            ends = number
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        if (path / "node.json").exists():
            assert problems(path) == []
        if number % 6 == 0:
            with RealNode(path, **SETTINGS):
                pass
            assert problems(path) == []
    assert ends > 10, "it was killed at each of the calls"


def test_what_a_catalog_relies_on_is_durable_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that exists may be of a start that was killed before it was durable: its name is synced anyway."""
    (tmp_path / "queues").mkdir()
    synced: list[Path] = []
    real = atomic_file.sync_directory
    monkeypatch.setattr(atomic_file, "sync_directory", lambda path, *rest: (synced.append(path), real(path, *rest)))
    absence.prepare_workers(tmp_path, 7, 1, [0])
    assert synced == [tmp_path, tmp_path / "queues", worker(tmp_path, 0), worker(tmp_path, 0)]  # list, stamp
    assert Folder(worker(tmp_path, 0)).files.exists()


# ---- older copies ----------------------------------------------------------------------------------------------------

OLDER = {
    "queues": (["worker-0", "worker-1"], True),
    "queues/worker-0": (["worker-0"], True),
    "store": (["persistent"], False),
    "store and queues": (["persistent", "worker-0", "worker-1"], True),
}
ACKED, NEWER = 7, 5


@pytest.fixture(scope="module", params=in_part(["stopped", "killed"]))
def moments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A backup of a stopped node, and the node some time and one start later."""
    path, backup = tmp_path_factory.mktemp("moments") / "node", tmp_path_factory.mktemp("backup") / "node"
    node = RealNode(path, **SETTINGS)
    with node, warren.attach(path) as client:
        for name in NAMES:
            client.queue(name).put_many(bodies())
    shutil.copytree(path, backup)
    node.start()
    with warren.attach(path) as client:
        for name in NAMES:
            queue = client.queue(name)
            queue.ack(queue.get_many(ACKED, timeout=30))
            queue.put_many([b"newer %d" % number + bytes(SIZE) for number in range(NEWER)])
        wait_until(lambda: all(client.queue(name).stats()["acked"] == ACKED for name in NAMES), what="the acks")
    node.stop() if request.param == "stopped" else node.kill_all()
    yield backup, path
    node.start()
    node.stop()


def combined(moments: tuple[Path, Path], path: Path, *parts: str) -> Path:
    """A copy of the later moment in which some parts are of the backup."""
    backup, later = moments
    shutil.copytree(later, path, ignore=shutil.ignore_patterns("*.sock"))
    for part in parts:
        if (backup / part).is_dir():
            shutil.rmtree(path / part)
            shutil.copytree(backup / part, path / part)
        else:
            shutil.copy(backup / part, path / part)
    return path


@pytest.mark.parametrize("what", OLDER)
def test_an_older_copy_of_a_folder_is_refused_and_accepted_by_a_repair(
    moments: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    names, of_queues = OLDER[what]
    path = combined(moments, tmp_path / "node", *what.split(" and "))
    found = [line for line in problems(path) if "is an older copy" in line]
    assert [Path(line.partition(": ")[0]).name for line in found] == names, found
    assert "is an older copy: it is of start 1 of the node, and the last one was start 2" in refused(path)
    refused(path, workers=1)
    report = check(path, repair=True)
    said = [line for line in report.repaired if "accepted as it is" in line]
    assert [Path(line.partition(": ")[0]).name for line in said] == names
    assert not [line for line in problems(path) if "older copy" in line]
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        if not of_queues:
            lost = lambda: sum(row["lost"] for row in client.status()["queues"])  # noqa: E731
            wait_until(lambda: lost() == NEWER * len(NAMES), 30, what="the count of what the store lacks")
        for name in NAMES if of_queues else []:
            messages = list(client.queue(name, create=False).consume(timeout=2.0))
            if what != "queues/worker-0" or name in queues_of(path, 0):
                assert all(message.redelivered for message in messages), "some of them were acked"
                assert len(messages) >= SMALL, "what is sound is served"
            else:
                assert len(messages) == EACH - ACKED + NEWER


@pytest.mark.parametrize("stamp", [b"foo\n", b"", b"-1\n", b"9" * 40, "٣\n".encode()], ids=repr)
@pytest.mark.parametrize("part", ["store/persistent", "queues/worker-0"])
def test_a_stamp_that_is_damaged_may_hide_an_older_copy(
    moments: tuple[Path, Path], tmp_path: Path, part: str, stamp: bytes
) -> None:
    """Nobody can tell: the start is refused, and a repair accepts the folder as it is, with all that is in it."""
    path = combined(moments, tmp_path / "node")
    (path / part / "epoch").write_bytes(stamp)
    found = problems(path)
    assert [Path(line.partition(": ")[0]).name for line in found] == [Path(part).name]
    assert "its file `epoch`, which names the last start that used it, is damaged" in found[0]
    assert "if so, it lacks" in refused(path)
    assert any("it is accepted as it is" in line for line in check(path, repair=True).repaired)
    assert problems(path) == []
    rest = bodies()[ACKED:] + [b"newer %d" % number + bytes(SIZE) for number in range(NEWER)]
    holds(path, dict.fromkeys(NAMES, rest))


def test_parts_of_one_moment_are_no_older_copy(moments: tuple[Path, Path], tmp_path: Path) -> None:
    path = combined(moments, tmp_path / "node")
    assert problems(path) == []
    rest = bodies()[ACKED:] + [b"newer %d" % number + bytes(SIZE) for number in range(NEWER)]
    holds(path, dict.fromkeys(NAMES, rest))


def test_an_older_node_json_gives_no_epoch_again(moments: tuple[Path, Path], tmp_path: Path) -> None:
    path = combined(moments, tmp_path / "node", "node.json")
    with RealNode(path, **SETTINGS), ControlClient(path) as control:
        assert control.call("status")["epoch"] == 3
    assert problems(path) == []


@pytest.mark.parametrize("part", ["worker", "store"])
def test_a_folder_that_goes_while_its_server_is_dead_is_not_made_anew(tmp_path: Path, part: str) -> None:
    path = tmp_path / "node"
    node = RealNode(path, **SETTINGS | {"workers": 1})
    node.start()
    with warren.attach(path) as client:
        for name in NAMES:
            client.queue(name).put_many(bodies())
    pids = node.pids()
    taken = path / ("queues/worker-0" if part == "worker" else "store/persistent")
    os.kill(pids["supervisor"], signal.SIGSTOP)  # it would start another one at once
    try:
        os.kill(pids["worker-0" if part == "worker" else "store"], signal.SIGKILL)
        os.rename(taken, tmp_path / "aside")
    finally:
        os.kill(pids["supervisor"], signal.SIGCONT)
    assert node.process is not None
    assert node.process.wait(120) == 1
    node.stop()
    assert not taken.exists()
    os.rename(tmp_path / "aside", taken)
    holds(path, dict.fromkeys(NAMES, bodies()), workers=1)


# ---- the lists ------------------------------------------------------------------------------------------------------


def test_a_list_that_is_missing_is_told_alike_by_store_and_worker(copied: Path) -> None:
    lists = [copied / "store" / "persistent" / "files", worker(copied, 0) / "files", worker(copied, 1) / "files"]
    for path in lists:
        path.unlink()
    found = problems(copied)
    words = "is missing, so other missing files cannot be noticed; the next start of the node makes it again"
    assert sorted(found) == sorted(f"{path}: {words}" for path in lists)
    holds(copied, dict.fromkeys(NAMES, bodies()))
    for path in lists:
        assert path.exists()
        assert any(entry.file == "files" for entry in quarantine.entries(path.parent))
    assert problems(copied) == [], "it is told once"
    with RealNode(copied, **SETTINGS):
        assert not [line for line in status(copied)["messages"] if "nobody can say" in line], "by one start"


def test_a_repair_makes_the_list_of_the_store(copied: Path) -> None:
    path = copied / "store" / "persistent" / "files"
    path.unlink()
    assert check(copied, repair=True).problems == []
    assert path.exists()


# ---- rows and bodies ------------------------------------------------------------------------------------------------


def copy(source: Path, target: Path, *parts: str) -> None:
    """As `cp -a`, one part after the other; files that go meanwhile are not in the copy."""

    def one(from_: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(from_, to)

    target.mkdir(exist_ok=True)
    for part in parts:
        for path in source.glob(part):
            if path.is_dir():
                shutil.copytree(path, target / path.name, dirs_exist_ok=True, copy_function=one, ignore=SOCKETS)
            elif not path.is_socket():
                shutil.copy2(path, target / path.name)


def lost_by_start(path: Path, wanted: int) -> dict[str, int]:
    with RealNode(path, **SETTINGS):

        def found() -> dict[str, int]:
            return {row["name"]: row["lost"] for row in status(path)["queues"] if row["lost"]}

        wait_until(lambda: sum(found().values()) >= wanted, 60, what="the count of what is lost")
        return found()


def test_a_copy_whose_parts_are_of_different_moments_is_a_problem(tmp_path: Path) -> None:
    path, target = tmp_path / "node", tmp_path / "copy"
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        for name in NAMES:
            client.queue(name).put_many(bodies())
        copy(path, target, "store")
        for name in NAMES:
            client.queue(name).put_many(bodies())
        copy(path, target, "queues", "*.json", "*.log")
    found = problems(target)
    wanted = {number: len(queues_of(target, number)) * LARGE for number in (0, 1)}
    for number, n in wanted.items():
        (said,) = [line for line in found if line.startswith(f"{worker(target, number)}: {n} messages without a body")]
        assert "copied while its node ran" in said
        assert all(f"{name!r} ({LARGE})" in said for name in queues_of(target, number))
    assert lost_by_start(target, sum(wanted.values())) == dict.fromkeys(NAMES, LARGE)
    assert problems(target) == [], "the start that drops them ends it"


def test_a_copy_whose_store_was_repaired_is_not_one_of_a_running_node(copied: Path) -> None:
    """What the repair writes is younger than the copy. What it gave up is a note, as in the original."""
    assert check(copied).problems == []
    (file, *_more) = sorted((copied / "store" / "persistent").glob("*.rdq"))
    place = file.read_bytes().index(b"%08d" % SMALL + bytes(SIZE - 8))
    kept = file.stat()
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"!")
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    for found in (check(copied, repair=True), check(copied)):
        assert found.problems == []
        (said,) = [note for note in found.notes if "1 message without a body" in note]
        assert "a repair of the store has given them up" in said or "did not stop in good order" in said


def test_an_older_store_of_a_stopped_node_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        client.queue("q0").put_many(bodies())
    copy(path, tmp_path / "older", "store")
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        client.queue("q0").put_many(bodies()[:-1])
    shutil.rmtree(path / "store")
    copy(tmp_path / "older", path, "store")
    (path / "store" / "persistent" / absence.STAMP).unlink()  # as of a node from before there were stamps
    (said,) = problems(path)
    assert f"{LARGE - 1} messages without a body in the message store, of queues 'q0' ({LARGE - 1});" in said
    done = subprocess.run(
        [sys.executable, "-m", "warren.workers.cli.main", "check", str(path), "--json"], capture_output=True, text=True
    )
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (1, [said])
    assert lost_by_start(path, LARGE - 1) == {"q0": LARGE - 1}


def test_rows_in_segments_and_moved_ones_are_compared(tmp_path: Path) -> None:
    path, settings = tmp_path / "node", SETTINGS | {"journal_files_max": 2}
    with RealNode(path, **settings), warren.attach(path) as client:
        copy(path, tmp_path / "older", "store")
        for name in NAMES:
            queue = client.queue(name)
            for _ in range(3):
                queue.put_many(bodies())
                queue.put_many([bytes(4000)] * 200)
        wait_until(lambda: list(path.glob("queues/*/segments/*/*.idx")), 60, what="segments")
    with RealNode(path, **settings | {"workers": 3}):
        pass
    assert problems(path) == []
    shutil.rmtree(path / "store")
    copy(tmp_path / "older", path, "store")
    (path / "store" / "persistent" / "files").unlink()
    found = "\n".join(check(path).problems + check(path).notes)
    assert all(f"{name!r} ({3 * LARGE})" in found for name in NAMES), found


def kill_under_load(path: Path, acks: bool) -> None:
    """A node that is killed while programs publish (and get and ack) as fast as they can."""
    node = RealNode(path, **SETTINGS)
    node.start()
    ending, published = threading.Event(), [0]

    def publish() -> None:
        with contextlib.suppress(Error), warren.attach(path) as client:
            queues = [client.queue(name) for name in NAMES]
            while not ending.is_set():
                for queue in queues:
                    queue.put_many([bytes(SIZE)] * 3, wait=False, timeout=5)
                    published[0] += 3

    def consume() -> None:
        with contextlib.suppress(Error), warren.attach(path) as client:
            for message in client.queue(NAMES[0]).consume(timeout=5):
                message.ack()

    threads = [threading.Thread(target=publish, name="publish")]
    threads += [threading.Thread(target=consume, name="consume")] if acks else []
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: published[0] > 300, 60, what="load")
        node.kill_all()
    finally:
        ending.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("acks", [False, True], ids=["published", "published and acked"])
def test_a_node_that_is_killed_under_load_has_no_problem(tmp_path: Path, acks: bool) -> None:
    path = tmp_path / "node"
    for _again in range(2):
        kill_under_load(path, acks)
        assert problems(path) == []
        target = tmp_path / "copy"
        copy(path, target, "*")
        assert problems(target) == [], "nor has a copy of it"
        shutil.rmtree(target)
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.sock"), copy_function=shutil.copyfile)
        assert problems(target) == [], "nor has one that keeps no times"
        shutil.rmtree(target)
    with RealNode(path, **SETTINGS):
        pass
    assert problems(path) == []


# ---- what nobody can count ------------------------------------------------------------------------------------------


def test_a_loss_that_nobody_can_count_has_a_line_in_status_and_no_zero_in_check(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with RealNode(path, **SETTINGS), warren.attach(path) as client:
        for name in NAMES:
            client.queue(name).put_many([b"%d" % number for number in range(200)])
    journals = sorted((worker(path, 1) / "journal").glob("*.jnl"))
    for journal in journals:
        journal.unlink()
    with RealNode(path, **SETTINGS):
        (said,) = [line for line in status(path)["messages"] if "worker-1" in line]
    assert "cannot tell how many messages that cost" in said
    assert f"journal/{journals[0].name}" in said
    assert str(worker(path, 1) / "quarantine" / "report.jsonl") in said
    assert str(path / "log" / "worker-1.log") in said
    report = check(path)
    assert report.problems == []
    (note,) = [line for line in report.notes if line.startswith(str(worker(path, 1) / "quarantine"))]
    assert "how many messages that cost is not known" in note
    assert "0 messages lost" not in note
    with RealNode(path, **SETTINGS):
        assert not [line for line in status(path)["messages"] if "worker-1" in line], "each loss is told by one start"


def test_a_store_file_whose_content_nobody_knows_has_a_line_in_status(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "node"
    shutil.copytree(made, path, ignore=shutil.ignore_patterns("*.sock"))
    target = min((path / "store" / "persistent").glob("*.rdq"), key=lambda item: int(item.stem))
    target.with_suffix(".lst").unlink(missing_ok=True)
    target.unlink()
    with RealNode(path, **SETTINGS):
        said = [line for line in status(path)["messages"] if line.startswith("the message store")]
    assert len(said) == 1
    assert target.name in said[0]
    assert "cannot tell how many messages that cost" in said[0]
    notes = [line for line in check(path).notes if "persistent/quarantine" in line]
    assert len(notes) == 1
    assert "is not known" in notes[0]
    assert "0 messages lost" not in notes[0]
