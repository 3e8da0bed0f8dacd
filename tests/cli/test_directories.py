"""Goal: a directory that is no node's, or whose node cannot run, is told apart from one whose node just does not run,
by every command alike; a start that is refused leaves nothing behind.

Method: the command line as processes of their own, on directories made for it.
"""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import data_files
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-m", "warren"]
ROOT = Path(__file__).parents[2]
ASKING = {
    "status": ("status", "DIR"),
    "stop": ("stop", "DIR"),
    "top": ("top", "DIR", "--count", "1"),
    "inspect": ("inspect", "DIR"),
    "queue list": ("queue", "list", "DIR"),
    "queue show": ("queue", "show", "DIR", "q"),
    "queue declare": ("queue", "declare", "DIR", "q"),
    "queue purge": ("queue", "purge", "DIR", "q"),
    "exchange list": ("exchange", "list", "DIR"),
    "publish": ("publish", "DIR", "q", "--body", "x"),
    "consume": ("consume", "DIR", "q"),
    "peek": ("peek", "DIR", "q"),
    "check": ("check", "DIR"),
}


def run(directory: Path, words: tuple[str, ...], code: int) -> str:
    ended = subprocess.run(
        [*COMMAND, *(str(directory) if word == "DIR" else word for word in words)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    return ended.stderr + ended.stdout


@pytest.mark.parametrize("command", ASKING)
def test_a_directory_of_somebody_else_is_no_place_for_a_node(tmp_path: Path, command: str) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    said = run(tmp_path, ASKING[command], 3)
    assert f"{tmp_path} is not a data directory of Warren (it has no node.json)" in said
    assert "start one" not in said
    assert ("`warren up DIR` makes one" in said) == (command != "check")
    file = tmp_path / "letter.txt"
    assert f"{file} is not a data directory of Warren (it is a file" in run(file, ASKING[command], 3)


@pytest.mark.parametrize("command", [*ASKING, "attach"])
def test_a_directory_that_does_not_exist_is_named_as_such(tmp_path: Path, command: str) -> None:
    """A path that was mistyped is the likeliest cause: to start a node there would be bad advice."""
    missing = tmp_path / "missing"
    if command == "attach":
        with pytest.raises(warren.NodeNotRunning) as caught:
            warren.attach(missing)
        said = str(caught.value)
    else:
        said = run(missing, ASKING[command], 3)
    assert f"no such directory: {missing}, so no node runs for it" in said
    assert ("`warren up DIR` makes one" in said) == (command != "check")
    assert not missing.exists()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "node"
    with RealNode(path, workers=1):
        pass
    return path


@pytest.mark.parametrize("command", [*ASKING, "up", "up --detach"])
@pytest.mark.parametrize("damage", ["cut", "a directory"])
def test_a_damaged_node_json_is_named_by_every_command(stopped: Path, command: str, damage: str) -> None:
    """`start one` would be no advice: it cannot start."""
    file = stopped / "node.json"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:10]) if damage == "cut" else file.mkdir()
    try:
        said = run(stopped, ASKING.get(command) or (*command.split()[:1], "DIR", *command.split()[1:]), 3)
        assert f"{file} at byte 0" in said
        assert "restore node.json from a backup" in said
        for enter in (warren.attach, warren.open):
            with pytest.raises(warren.CorruptRecord, match=r"restore node\.json from a backup"):
                enter(stopped)
    finally:
        file.unlink() if damage == "cut" else file.rmdir()
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["", "--detach"])
@pytest.mark.parametrize(
    ("limit", "settings", "code"),
    [("ulimit -n 100", "", 1), ("true", "--set arena_bytes=7", 2)],
    ids=["limit", "setting"],
)
def test_a_refused_start_leaves_no_directory(tmp_path: Path, limit: str, settings: str, code: int, how: str) -> None:
    new, there = tmp_path / "a" / "b" / "c" / "new", tmp_path / "there"
    there.mkdir()
    (tmp_path / "a").mkdir()
    for directory in (new, there):
        script = f"{limit}; exec {sys.executable} -m warren up {directory} {how} {settings}"
        ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100)
        assert ended.returncode == code, ended.stderr
    assert list((tmp_path / "a").iterdir()) == [], "what it made on the way there has gone, too"
    assert there.exists(), "which was there before"


def test_a_refused_start_leaves_what_others_have_put_beside_it(tmp_path: Path) -> None:
    new, longer = tmp_path / "a" / "b" / "new", tmp_path / "c" / ("x" * 300)
    made = NodeDirectory(new).missing()
    NodeDirectory(new).make()
    (tmp_path / "a" / "letter").touch()
    NodeDirectory(new).unmake(made)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["letter"]
    with pytest.raises(warren.StoreError, match="File name too long"):
        warren.open(longer)
    assert not longer.parent.exists(), "made before the name was found to be too long"


def test_a_start_makes_again_what_a_refused_one_removes_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts of new directories of the same new one: one is refused just when the other is on the way."""
    new, made = NodeDirectory(tmp_path / "a" / "new"), []

    def removed(path: Path, *, mode: int | None = None) -> None:
        if path == new.path and not made:
            (tmp_path / "a").rmdir()
            made.append(path)
        make(path, mode=mode)

    make = data_files.make_folder
    monkeypatch.setattr(data_files, "make_folder", removed)
    new.make()
    assert made == [new.path]
    assert new.path.is_dir()


def test_a_refused_start_removes_only_what_it_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts another directory in the place of the new one in just that moment: it stays as it is."""
    new, away = NodeDirectory(tmp_path / "new"), tmp_path / "away"
    new.make()
    new.make_log()
    listed = os.listdir

    def replaced(place: int) -> list[str]:
        found = listed(place)
        new.path.rename(away)
        new.path.mkdir()
        (new.path / "lock").write_text("of somebody")
        return found

    monkeypatch.setattr(os, "listdir", replaced)
    new.unmake()
    monkeypatch.undo()
    assert (new.path / "lock").read_text() == "of somebody"
    assert listed(away) == []


REFUSED_MEANWHILE = """
import sys
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.cli.main import invoke

lock, told = NodeDirectory.lock, []

def locked(self, **options):
    if not told:
        told.append(True)
        NodeDirectory(self.path).unmake()  # of another start, which made the directory and was refused just now
        assert not self.path.exists()
    lock(self, **options)

NodeDirectory.lock = locked
sys.exit(invoke(["up", sys.argv[1], "--profile", "small", *sys.argv[2:]]))
"""


def test_a_start_makes_a_directory_again_that_a_refused_one_removed(tmp_path: Path) -> None:
    """Two starts of a new directory at once: one is refused, and removes what both had made. The other one is up, and
    its log is a file of the directory.
    """
    directory = tmp_path / "new"
    program = [sys.executable, "-P", "-c", REFUSED_MEANWHILE, str(directory), "--detach"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    with ControlClient(directory) as control:
        pid = control.call("ping")["pid"]
        assert os.readlink(f"/proc/{pid}/fd/2") == str(directory / "log" / "supervisor.log")
        with warren.attach(directory) as node:
            node.queue("q").put(b"x")
        control.call("stop")
    wait_until(lambda: not NodeDirectory(directory).locked(), 60, what="the end of the node")


def test_a_directory_that_is_removed_is_made_again_by_no_lock_but_that_of_a_start(tmp_path: Path) -> None:
    start, repair = NodeDirectory(tmp_path / "new"), NodeDirectory(tmp_path / "new")
    with pytest.raises(warren.UsageError, match="does not exist"):
        repair.lock()
    start.lock(making=True)
    try:
        assert (tmp_path / "new" / "lock").exists()
    finally:
        start.unlock()
    repair.unmake()
    assert not (tmp_path / "new").exists()


REFUSED: dict[str, tuple[type[Exception], Callable[[Path], object]]] = {
    "no node": (warren.NodeNotRunning, warren.attach),
    "no path": (warren.UsageError, lambda path: warren.open("")),
    "no path of text": (warren.UsageError, lambda path: warren.open(5)),  # type: ignore[arg-type]
    "a file": (warren.UsageError, lambda path: warren.open(__file__)),
    "a directory of somebody": (warren.UsageError, lambda path: warren.open(ROOT / "tests")),
    "no setting": (warren.UsageError, lambda path: warren.open(path, colour="red")),
    "a wrong setting": (warren.UsageError, lambda path: warren.open(path, arena_bytes=7)),
    "a setting of no kind": (warren.UsageError, lambda path: warren.open(path, workers="many")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_one_traceback(tmp_path: Path, case: str) -> None:
    """What was tried on the way to it is nobody's business."""
    kind, call = REFUSED[case]
    with pytest.raises(kind) as caught:
        call(tmp_path / "none")
    assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


# -- the folder of the sources -----------------------------------------------------------------------------------------


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """This Python as one that Warren is not installed for, started in the folder of the sources."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-S", *words], cwd=ROOT, env=plain | environment, capture_output=True, text=True, timeout=60
    )


def test_a_python_without_warren_says_so_in_the_folder_of_the_sources(tmp_path: Path) -> None:
    """And one that it is installed for finds all of it, although the folder of its public face comes first."""
    ended = python("-c", "import warren")
    assert ended.returncode == 1
    assert f"ImportError: warren is not installed for {sys.executable}: run ./scripts/setup" in ended.stderr
    assert ended.stderr.count("Traceback") == 1
    (tmp_path / "warren").mkdir()
    for folder in ("engine", "ipc", "workers", "tools"):
        (tmp_path / "warren" / folder).symlink_to(ROOT / folder)
    (tmp_path / "warren" / "__init__.py").symlink_to(ROOT / "warren" / "__init__.py")
    (tmp_path / "warren" / "_sources.py").symlink_to(ROOT / "warren" / "_sources.py")
    packages = Path(pytest.__file__).parents[1]
    found = python("-c", "import warren; print(warren.__file__, warren.open)", PYTHONPATH=f"{tmp_path}:{packages}")
    assert found.stdout.startswith(f"{ROOT / 'warren' / '__init__.py'} <function open"), found.stderr
