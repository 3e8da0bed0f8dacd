"""The house itself: leaks are found and blamed rightly, import directions are enforced, the machine's limits measured,
the rules are defined, held and cited rightly.

Method: each kind of leak is made on purpose and looked for by the same functions as the fixtures use, with no grace;
what another run leaves, or an older node of the same run, must be excused. The rules are read from docs/rules.md, and
looked for in all sources.
"""

import ast
import functools
import json
import mmap
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc
import psutil
import pytest
import sysv_ipc

from warren.tools.bench import limits

from support import leaks
from support.leaks import Census, Leak
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NODE = f"warren-{os.urandom(6).hex()}"


@pytest.fixture
def before() -> Iterator[Census]:
    """A census, and the removal of whatever a test made after it."""
    census = Census.take()
    yield census
    leaks.clean_up(leaks.leaks_since(census, ROOT / "nowhere", grace_s=0, own_process=False))


def found_since(census: Census, root: Path = ROOT / "nowhere") -> list[tuple[str, str]]:
    """What the fixtures would report at once, by kind and name."""
    return [(leak.kind, leak.name) for leak in leaks.leaks_since(census, root, grace_s=0)]


def start(code: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a Python that runs `code`, says `on`, and stays until its standard input closes."""
    whole = f"{code}\nimport sys; print('on', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", whole],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.communicate(timeout=60)


def make_mapping(name: str) -> Callable[[], None]:
    """Map a new shared memory of one page; the result unmaps it and removes its name."""
    memory = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, size=4096)
    mapped = mmap.mmap(memory.fd, 4096)
    memory.close_fd()

    def remove() -> None:
        mapped.close()
        memory.unlink()

    return remove


def test_nothing_is_found_where_nothing_was_left(before: Census) -> None:
    assert found_since(before) == []


def test_shared_memory_is_found_by_its_name_and_its_mapping(before: Census) -> None:
    remove = make_mapping(f"{NODE}-super")
    path = f"/dev/shm/{NODE}-super"
    shared, descriptor, mapping = leaks.leaks_since(before, ROOT / "nowhere", grace_s=0)
    assert shared == Leak("shared memory", path)
    assert (descriptor.kind, descriptor.detail) == ("descriptor", path)  # Python's mmap keeps one
    assert (mapping.kind, mapping.name) == ("mapping", path)
    remove()
    assert found_since(before) == []


def test_more_of_a_node_known_before_is_left_to_the_wider_fixture() -> None:
    remove_old = make_mapping(f"{NODE}-super")
    census = Census.take()
    remove_new = make_mapping(f"{NODE}-index-1")
    assert found_since(census) == []
    remove_new()
    remove_old()


def test_system_v_objects_are_found(before: Census) -> None:
    segment = sysv_ipc.SharedMemory(None, sysv_ipc.IPC_CREX, size=4096)
    semaphore = sysv_ipc.Semaphore(None, sysv_ipc.IPC_CREX, initial_value=1)
    semaphore.acquire()
    assert found_since(before) == [
        ("System V segment", str(segment.id)),
        ("System V semaphore", str(semaphore.id)),
        ("mapping", f"segment {segment.id}"),
    ]
    segment.detach()
    segment.remove()
    semaphore.remove()
    assert found_since(before) == []


def test_a_segment_that_a_dead_child_left_is_found(before: Census) -> None:
    child = start("import sysv_ipc; sysv_ipc.SharedMemory(None, sysv_ipc.IPC_CREX, size=4096).detach()")
    Census.take()  # sees the child while it lives: other runs on this machine excuse nothing
    end(child)
    assert [kind for kind, _name in found_since(before)] == ["System V segment"]


def test_what_a_stranger_made_with_the_number_of_a_dead_process_of_ours_is_his(before: Census) -> None:
    """On a busy machine numbers of processes are given again within a minute."""
    child = start("")
    Census.take()
    end(child)
    world = leaks.World.look(before, Census.take())
    world.strangers_test = True
    assert not world.excuses("it", set(), leaks.Maker(child.pid, time.time() - 60)), "it lived then"
    assert world.excuses("it", set(), leaks.Maker(child.pid, time.time() + 60))


def test_what_a_stranger_holds_is_his(before: Census) -> None:
    """A process that carries another run's mark and has left our tree maps a region, and that region is not ours."""
    code = (
        "import mmap, os, posix_ipc\n"
        "if os.fork(): os._exit(0)\n"
        f"memory = posix_ipc.SharedMemory('/{NODE}-super', posix_ipc.O_CREX, size=4096)\n"
        "mapped = mmap.mmap(memory.fd, 4096)"
    )
    stranger = start(code, **{leaks.MARK: "another run"})
    stranger.wait(timeout=60)
    assert Path(f"/dev/shm/{NODE}-super").exists()
    assert found_since(before) == []
    assert stranger.stdin is not None
    stranger.stdin.close()
    posix_ipc.unlink_shared_memory(f"/{NODE}-super")
    assert stranger.stdout is not None
    assert stranger.stdout.read() == ""  # ends when the stranger does
    stranger.stdout.close()


@pytest.mark.parametrize("detached", [False, True])
def test_a_process_is_found_even_when_it_left_the_tree(before: Census, detached: bool) -> None:
    child = start("import os\nif os.fork(): os._exit(0)\nos.setsid()" if detached else "")
    if detached:
        child.wait(timeout=60)
    (found,) = leaks.leaks_since(before, ROOT, grace_s=0, own_process=False)
    assert (found.kind, int(found.name) == child.pid) == ("process", not detached)
    assert psutil.Process(int(found.name)).is_running()
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.stdout.read()
    child.stdout.close()
    child.wait(timeout=60)
    assert leaks.leaks_since(before, ROOT, grace_s=5) == []


def test_a_zombie_is_found(before: Census) -> None:
    child = start("")
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (found,) = leaks.leaks_since(before, ROOT, grace_s=0, own_process=False)
    assert (found.kind, found.name, found.detail.split(",")[0]) == ("process", str(child.pid), "zombie")
    child.communicate()


def test_descriptors_of_warren_files_are_found(before: Census, tmp_path: Path) -> None:
    with open(tmp_path / "00000001.log", "wb") as file:
        assert found_since(before, tmp_path) == [("descriptor", str(file.fileno()))]
    pidfd = os.pidfd_open(os.getpid())
    assert found_since(before) == [("descriptors", "[pidfd]")]
    os.close(pidfd)
    assert found_since(before, tmp_path) == []


@pytest.fixture(params=["alone", "beside another run"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this run is the only one on the machine, whatever goes on there."""
    only = request.param == "alone"
    for what in ("_is_of_another_run", "_is_beside_another_run"):
        monkeypatch.setattr(leaks, what, lambda *_: not only)
    return only


def test_a_temporary_directory_is_found_and_removed(before: Census, alone: bool) -> None:
    folder = tempfile.mkdtemp(prefix="warren-")
    leak = Leak("temporary directory", folder)
    assert (leak in leaks.leaks_since(before, ROOT, grace_s=0)) == alone, "a stranger's run could have made it"
    leaks.clean_up([leak])
    assert not Path(folder).exists()


@pytest.mark.skipif(leaks.message_queues() is None, reason="message queues are listed for root, or in /dev/mqueue")
def test_a_mailbox_is_found_and_removed(before: Census, alone: bool) -> None:
    name = f"{NODE}-mail"
    posix_ipc.MessageQueue(f"/{name}", posix_ipc.O_CREX).close()
    assert f"/dev/mqueue/{name}" in Census.take().names
    leak = Leak("message queue", f"/dev/mqueue/{name}")
    assert (leak in leaks.leaks_since(before, ROOT, grace_s=0)) == alone, "a stranger's run could have made it"
    leaks.clean_up([leak])
    assert f"/dev/mqueue/{name}" not in Census.take().names


def test_a_leak_that_goes_away_in_time_is_none(before: Census) -> None:
    remove = make_mapping(f"{NODE}-late")
    timer = threading.Timer(0.05, remove)
    timer.start()
    assert leaks.leaks_since(before, ROOT, grace_s=10) == []
    timer.join()


def run_tests(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of a folder in a pytest of their own, with our conftest.py."""
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "WARREN_LEAK_GRACE_S": "0.1"}
    return subprocess.run(
        [*command, f"--rootdir={folder}", f"--basetemp={folder / 'base'}", *options, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )


def test_what_a_lane_leaves_when_it_has_ended_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_lanes.py").write_text(
        "import atexit, subprocess, sys\n\n\ndef test_leaks():\n"
        "    code = 'import time; time.sleep(30)'\n"
        "    @atexit.register\n    def late():\n"
        "        at = subprocess.Popen([sys.executable, '-c', code, 'left'], start_new_session=True)\n"
    )
    done = run_tests(tmp_path, "-n", "2")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    said = done.stdout[done.stdout.index("the lanes left behind") :]
    assert "process" in said
    assert "time.sleep(30) left" in said


def test_a_module_stays_in_one_lane(tmp_path: Path) -> None:
    """Its fixtures are made once, and the tests of a module never run beside each other."""
    told = tmp_path / "told"
    for name in ("test_one.py", "test_two.py", "test_three.py"):
        (tmp_path / name).write_text(
            "import os\nimport pytest\n\n\n@pytest.mark.parametrize('n', range(8))\ndef test_it(n: int) -> None:\n"
            f"    with open({str(told)!r}, 'a') as file:\n        print({name!r}, os.getpid(), file=file)\n"
        )
    done = run_tests(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = told.read_text().splitlines()
    assert len(lines) == 24
    assert len(set(lines)) == 3


def test_the_modules_that_are_begun_with_are_there() -> None:
    names = re.findall(r'^        "([\w/]+\.py)",$', (ROOT / "tests/conftest.py").read_text(), re.MULTILINE)
    assert len(names) > 10
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []


def test_a_leaking_test_fails_with_the_name_of_the_leak(tmp_path: Path) -> None:
    """The fixtures of conftest.py are at work: a run over a leaking test reports it, and removes the leak."""
    (tmp_path / "test_leak.py").write_text(
        "import posix_ipc\n\n\ndef test_leaks():\n"
        f"    posix_ipc.SharedMemory('/{NODE}-left', posix_ipc.O_CREX, size=4096).close_fd()\n"
        "    import mmap, os\n    global kept\n"
        f"    fd = os.open('/dev/shm/{NODE}-left', os.O_RDWR)\n    kept = mmap.mmap(fd, 4096)\n    os.close(fd)\n"
    )
    done = run_tests(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"shared memory /dev/shm/{NODE}-left" in done.stdout
    assert "the test left behind" in done.stdout
    assert not Path(f"/dev/shm/{NODE}-left").exists()


def test_wait_until_returns_what_came_true_and_says_what_did_not() -> None:
    answers = iter([0, "", 7])
    assert wait_until(lambda: next(answers)) == 7
    with pytest.raises(AssertionError, match=r"the tide did not come true within 0\.01 s"):
        wait_until(lambda: False, 0.01, what="the tide")


ROOMS = ("process", "client", "servers", "node", "faces", "spark", "amqp", "celery", "cli")
#: an import of each wrong direction, by the file that it stands in
IMPORTS = {
    "warren/engine/a.py": "from warren.workers import a",
    "warren/ipc/a.py": "import warren.engine.a",
    "warren/workers/faces/b.py": "import warren.tools",
    "warren/workers/client/b.py": "import warren",
    "warren/workers/process/a.py": "import warren.workers.client.a",
    "warren/workers/client/a.py": "import warren.workers.node.a",
    "warren/workers/servers/a.py": "import warren.workers.faces.a",
    "warren/workers/servers/b.py": "import warren.workers.node.a",
    "warren/workers/node/a.py": "import warren.workers.faces.a",
    "warren/workers/faces/a.py": "import warren.workers.node.a",
    "warren/workers/faces/c.py": "import warren.workers.servers.a",
    "warren/workers/spark/a.py": "import warren.workers.cli.a",
    "warren/workers/amqp/a.py": "import warren.workers.node.a",
    "warren/workers/amqp/b.py": "import warren.workers.spark.a",
    "warren/workers/celery/a.py": "import warren.workers.servers.a",
    "warren/workers/celery/b.py": "import warren.workers.amqp.a",
    "warren/engine/amqp/a.py": "import warren.engine.catalog.a",
    "warren/engine/kernel/a.py": "import warren.engine.catalog.a",
    "warren/engine/catalog/a.py": "import warren.engine.queues.a",
    "warren/engine/store/a.py": "import warren.engine.queues.a",
    "warren/engine/store/b.py": "import warren.engine.catalog.a",
    "warren/engine/queues/a.py": "import warren.engine.store.a",
    "warren/engine/topics/a.py": "import warren.engine.queues.a",
    "warren/engine/topics/b.py": "import warren.engine.catalog.a",
    "warren/engine/transactions/a.py": "import warren.engine.topics.a",
    "warren/engine/transactions/b.py": "import warren.engine.catalog.a",
}
#: what the contracts name
ENGINE_ROOMS = (
    "engine/amqp",
    "engine/kernel",
    "engine/catalog",
    "engine/store",
    "engine/queues",
    "engine/topics",
    "engine/transactions",
)
MODULES = ("engine/config.py", "engine/errors.py", "engine/saying.py")


@pytest.mark.parametrize("wrong", [None, *IMPORTS])
def test_import_directions_are_enforced(tmp_path: Path, wrong: str | None) -> None:
    pytest.importorskip("importlinter")
    for package in ("", "engine", "ipc", "workers", *(f"workers/{room}" for room in ROOMS), *ENGINE_ROOMS, "tools"):
        folder = tmp_path / "warren" / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "a.py").touch()
    for module in MODULES:
        (tmp_path / "warren" / module).touch()
    (tmp_path / "warren/workers/cli/a.py").write_text("import warren\nfrom warren.tools import a\n")
    (tmp_path / "warren/workers/faces/a.py").write_text("from warren.engine import a\nimport warren.ipc.a\n")
    if wrong:
        (tmp_path / wrong).write_text(f"{IMPORTS[wrong]}\n")
    done = subprocess.run(
        ["lint-imports", "--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if wrong else 0), done.stdout + done.stderr


def test_no_file_uses_private_names_of_another() -> None:
    """What begins with an underscore belongs to its file; a class that inherits it says `self`, or `super()`."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "workers").rglob("*.py"))}
    owned = {path: set(private_names(tree)) for path, tree in trees.items()}
    everywhere = set[str]().union(*owned.values())
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in everywhere - owned[path]
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]
    assert found == []


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with one underscore that a file defines: functions, classes, and what is assigned to."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            name = node.attr
        if name.startswith("_") and not name.startswith("__"):
            yield name


def test_every_mapped_folder_is_a_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, folder in project["tool"]["setuptools"]["package-dir"].items():
        assert (ROOT / folder / "__init__.py").is_file(), name


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
@pytest.mark.parametrize(
    ("script", "line", "call", "stream"),
    [
        ("setup", r"say\(\) \{.*\}", "say told", 2),
        ("steps", r"step\(\) \{(?s:.*?)\n\}", "reasons=/dev/null; step told true", 1),
    ],
)
def test_scripts_write_codes_of_a_terminal_to_a_terminal_alone(
    script: str, line: str, call: str, stream: int, terminal: bool
) -> None:
    found = re.search(rf"^{line}", (ROOT / "scripts" / script).read_text(), re.MULTILINE)
    assert found is not None
    ours, its = pty.openpty() if terminal else os.pipe()
    try:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, ("stdout", "stderr")[stream - 1]: its}
        subprocess.run(["bash", "-c", f"{found[0]}\n{call}"], check=True, timeout=60, **streams)
        said = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(its)
    assert b"told" in said
    assert (b"\033[" in said) == terminal


def test_what_commands_say_beside_their_result_goes_one_way() -> None:
    """As a line of JSON where that was asked for (output.note); what a start says is its result."""
    aside = re.compile(r'say\(\s*f?"warren: (?!\{(?:line|output\.escaped_lines\(line\))\}")[^\n]*')
    said = {
        path.name: aside.findall(path.read_text())
        for path in (ROOT / "workers" / "cli").glob("*.py")
        if path.name != "output.py"
    }
    assert {name: lines for name, lines in said.items() if lines} == {}


def test_scripts_are_sound_and_can_be_run() -> None:
    for path in [ROOT / ".ci/run", *(ROOT / "scripts").iterdir()]:
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert os.access(path, os.X_OK) == (path.name != "steps"), path


@pytest.mark.parametrize("size_bytes", [1, 100, 3 << 20])
def test_limits_are_measured_and_leave_nothing(tmp_path: Path, size_bytes: int) -> None:
    found = limits.measure(tmp_path, size_bytes, 0.2)
    assert {"append", "append_recycled", "fsync_latency_us", "ring", "wake_us", "memcpy_bytes_per_s"} <= set(found)
    for key in ("append", "append_recycled"):
        assert found[key]["messages_per_s"] > 0
        assert found[key]["bytes_per_s"] == pytest.approx(found[key]["messages_per_s"] * size_bytes, rel=0.01)
    assert 0 < found["fsync_latency_us"]["p50"] <= found["fsync_latency_us"]["p99"] <= found["fsync_latency_us"]["p999"]
    assert json.loads(json.dumps(found)) == found
    assert list(tmp_path.iterdir()) == []


def test_limits_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such file or directory"):
        limits.measure(tmp_path / "missing", 100, 0.1)
    with pytest.raises(ValueError, match="must be positive, not 0"):
        limits.measure(tmp_path, 0, 1.0)


WRITES = re.compile(r"\bos\.(write|pwrite|writev|pwritev)\(|\b(?!os\b)\w+\.(write|writelines|write_bytes|write_text)\(")
#: no files: pipes, a module's own methods
WRITES_ALLOWED = {
    "engine/kernel/atomic_file.py": 1,  # write_all itself
    "engine/catalog/node_directory.py": 1,  # NodeDirectory.write
}


def test_the_engine_writes_to_files_in_one_place_that_looks_at_what_was_written() -> None:
    """A write that was cut short is no error for the system: whoever does not look leaves half a file."""
    found = {
        str(path.relative_to(ROOT)): len(
            [line for line in path.read_text().splitlines() if WRITES.search(line.split("#")[0])]
        )
        for path in sorted((ROOT / "engine").rglob("*.py"))
    }
    assert {name: n for name, n in found.items() if n} == WRITES_ALLOWED


#: a rule of docs/rules.md, up to the next one; S: store, Q: queues, N: node, T: topics, X: transactions, C: clients
RULE = re.compile(r"^- \*\*([SQNTXCA][0-9]+) .*?(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)
#: file::function of a test, file::rule of a model
HOLDER = re.compile(r"`([\w/]+\.(?:py|c))::(\w+)`")
#: what cites rules: their numbers behind the word, also over lines of a comment; the name of a test
CITATION = re.compile(
    r"\b[Rr]ules?[\s*#]+[SQNTXCA][0-9]+\b(?:(?:,| and| to)[\s*#]+[SQNTXCA][0-9]+\b)*|\bdef test_[sqntxca][0-9]+(?=_)"
)
NUMBER = re.compile(r"[SQNTXCA][0-9]+", re.IGNORECASE)
#: N and C are not looked for without the word: C1 is a set of control characters, too
UNCITED = re.compile(r"\b[SQ][0-9]{1,2}\b")


def rules() -> dict[str, str]:
    """Each rule of docs/rules.md with its text; a number that stands there twice is an error."""
    found = list(RULE.finditer((ROOT / "docs/rules.md").read_text()))
    numbers = [rule[1] for rule in found]
    wanted = [f"{kind}{n + 1}" for kind in "SQNTXCA" for n in range(sum(number[0] == kind for number in numbers))]
    assert numbers == wanted, "the rules of a kind are numbered from 1 on, without a gap"
    return {rule[1]: rule[0] for rule in found}


@functools.cache
def functions(path: Path) -> set[str]:
    """The tests of a file: of Python what pytest calls so, of C what is defined and called; of a model its rules."""
    text = path.read_text()
    if path.suffix == ".c":
        defined = re.findall(r"^(?:static )?void \*?(\w+)\(", text, re.MULTILINE)
        return {name for name in defined if len(re.findall(rf"\b{name}\b", text)) > 1}
    nodes = list(ast.walk(ast.parse(text)))
    if path.is_relative_to(ROOT / "tools"):
        fields = [node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == "Rules"]
        return {ast.unparse(item.target) for body in fields for item in body if isinstance(item, ast.AnnAssign)}
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_children_of_c_tests_end_with_them() -> None:
    """One that waits for its parent's word spins for ever when a check of the parent has failed."""
    sources = [path for path in (ROOT / "tests").glob("*/*.[ch]") if re.search(r"(?<!\w)v?fork\(\)", path.read_text())]
    assert [path.name for path in sources] == ["check.h"], "fork_child() of tests/support/check.h is for this"


def test_c_tests_have_one_check() -> None:
    """support/check.h: it says where a test failed, and removes what the test made."""
    sources = [path for suffix in ("c", "h") for path in sorted((ROOT / "tests").rglob(f"*.{suffix}"))]
    own = [str(path.relative_to(ROOT)) for path in sources if "#define CHECK(" in path.read_text()]
    assert own == ["tests/support/check.h"]


def test_every_rule_says_what_breaks_and_is_held_by_tests_that_exist() -> None:
    wrong = []
    for number, text in rules().items():
        kinds = dict(re.findall(r"^  - (If broken|Tests|Models): (.*?)(?=^  - |\Z)", text, re.MULTILINE | re.DOTALL))
        assert kinds.get("If broken"), f"{number} does not say what breaks"
        for kind, folder in (("Tests", "tests"), ("Models", "tools")):
            holders = HOLDER.findall(kinds.get(kind, ""))
            assert holders or kind == "Models", f"{number} has no test"
            assert len(holders) == kinds.get(kind, "").count("`") // 2, f"{number}: {kind} are `file::name`"
            for file, name in holders:
                path = ROOT / folder / file
                if not path.is_file() or name not in functions(path):
                    wrong.append(f"{number}: {folder}/{file}::{name}")
    assert not wrong, "docs/rules.md names what is not there"


def test_every_rule_that_is_cited_is_defined() -> None:
    defined = rules()
    files = [
        path
        for folder in ("engine", "ipc", "workers", "tools", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".pyi", ".c", ".h")
    ]
    cited: set[str] = set()
    wrong = []
    for path in files:
        text = path.read_text()
        numbers = {number.upper() for citation in CITATION.findall(text) for number in NUMBER.findall(citation)}
        cited |= numbers
        wrong += [f"{path.relative_to(ROOT)}: {number} is not defined" for number in sorted(numbers - defined.keys())]
        bare = sorted(set(UNCITED.findall(CITATION.sub("", text))))
        wrong += [f"{path.relative_to(ROOT)}: {number} is cited as `rule {number}`" for number in bare]
    assert not wrong, "cite it as `rule S4`, and define it in docs/rules.md"
    assert {f"S{n}" for n in range(1, 13)} <= cited, "citations are found"


def test_documents_name_files_that_exist() -> None:
    """Living documents, not the design notes: those are history. A name may leave out the folder."""
    files = [
        str(path.relative_to(ROOT))
        for folder in ("engine", "ipc", "workers", "warren", "tools", "tests", "scripts", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    wrong = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        if page.name in ("rules.md", "formats.md"):
            continue  # have tests of their own, or are generated
        named = sorted(set(re.findall(r"`([\w/]+\.(?:py|c|h))`", page.read_text())))
        wrong += [
            f"{page.name}: {name}" for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)
        ]
    assert wrong == []
