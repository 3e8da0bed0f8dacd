"""Goal: the processes of a node run Warren's code and what it needs, never a file that happens to lie where somebody
stands who starts one.

And nobody waits for what he does not use: `import warren` and `warren --help` load nothing large.

Method: a program imports Warren, and then puts modules with names of the standard library and of packages (each would
write down that it was imported, and fail) where Python would look for it: beside the script, into the current
directory. It opens a node; its supervisor is killed, so that the servers start another one, which is asked, too.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import click, logging, msgspec, os, queue, signal, sys  # this process has its own already
from pathlib import Path
import warren
from warren.workers.process.control import ControlClient

place, directory = Path(sys.argv[1]), sys.argv[2]
for name in ("click.py", "queue.py", "logging.py", "msgspec.py", "warren/__init__.py"):
    (place / name).parent.mkdir(exist_ok=True)
    said = f"open({str(place / 'imported')!r}, 'a').write(__file__)"
    (place / name).write_text(f"{said}\\nraise SystemExit(9)\\n")
os.chdir(place)
settings = {"workers": 1, "file_bytes": 1 << 20, "arena_bytes": 1 << 20, "message_bytes_max": 1 << 18}
with warren.open(directory, idle_exit=60, **settings) as node:
    queue = node.queue("q")
    queue.put(b"one")
    with ControlClient(directory) as control:
        old = control.call("ping")["pid"]
        os.kill(old, signal.SIGKILL)
        while control.call("ping", timeout=30)["pid"] == old:
            pass
        print(queue.get(timeout=30).body.decode())
        control.call("stop")
"""


def ended(directory: Path) -> bool:
    """True when nobody holds the directory any more."""
    return not ControlClient(directory).directory.locked()


@pytest.mark.parametrize("how", ["script", "isolated", "command", "module", "empty entry"])
def test_what_lies_beside_a_program_is_not_run_in_its_node(tmp_path: Path, how: str) -> None:
    place, directory = tmp_path / "place", tmp_path / "node"
    place.mkdir()
    script = place / "script.py"
    script.write_text(PROGRAM)
    words = {
        "script": [str(script)],
        "isolated": ["-I", str(script)],
        "command": ["-c", PROGRAM],
        "module": ["-m", "script"],
        "empty entry": ["-P", str(script)],
    }[how]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    if how == "empty entry":
        environment["PYTHONPATH"] = os.pathsep + str(tmp_path)
    done = subprocess.run(
        [sys.executable, *words, str(place), str(directory)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr
    assert not (place / "imported").exists(), (place / "imported").read_text()
    wait_until(lambda: ended(directory), 30, what="the end of the node")


def test_packages_from_a_folder_of_ones_own_are_found(tmp_path: Path) -> None:
    """A Python that finds Warren in a folder which it adds itself starts nodes with that Warren."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = (
        f"import site; site.addsitedir({packages!r})\n"
        "import subprocess\nfrom warren.workers.process import interpreter\n"
        "command = interpreter.command('warren', '--version')\n"
        "assert '-m' not in command[:4], command\n"
        "print(subprocess.run(command, env=interpreter.environment(), capture_output=True, text=True))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([base, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert "returncode=0, stdout='warren " in done.stdout, done.stdout + done.stderr


LARGE = {"numpy", "pyarrow", "pandas", "rich", "psutil", "pyspark", "asyncio", "multiprocessing", "ssl"}
LOADED = """
import json, sys
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""
CLIENT = """
import warren
with warren.attach(sys.argv[1]) as node:
    queue = node.queue("loading")
    queue.put(b"x")
    queue.get(timeout=60).ack()
"""
COMMAND = """
from warren.workers.cli.main import invoke
assert invoke({!r}) == 0
"""


def loaded(program: str, *words: object) -> tuple[set[str], set[str]]:
    """What a new Python loads for a program: top-level modules, and those of Warren."""
    command = [sys.executable, "-P", "-c", LOADED.format(program), *map(str, words)]
    done = subprocess.run(command, env=interpreter.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr.splitlines()[-1])
    return {name.split(".")[0] for name in found}, {name for name in found if name.startswith("warren.")}


def test_importing_warren_loads_its_errors_and_no_package() -> None:
    modules, ours = loaded("import warren")
    assert modules & (LARGE | {"click", "msgspec", "posix_ipc", "sysv_ipc", "subprocess", "inspect"}) == set()
    assert ours == {"warren._sources", "warren.engine", "warren.engine.errors"}


def test_a_client_loads_what_a_client_uses(directory: Path) -> None:
    """Arrow, asyncio and Spark are loaded by those who ask for them."""
    modules, ours = loaded(CLIENT, directory)
    assert modules & (LARGE | {"click"}) == set()
    rooms = {"warren.workers.cli", "warren.workers.node", "warren.workers.servers", "warren.workers.spark"}
    assert ours & (rooms | {"warren.aio", "warren.workers.faces.arrow", "warren.tools"}) == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_loads_no_room_of_the_engine(words: list[str]) -> None:
    modules, ours = loaded(COMMAND.format(words))
    assert modules & (LARGE | {"posix_ipc", "sysv_ipc", "subprocess"}) == set()
    assert {name for name in ours if name.startswith(("warren.ipc", "warren.engine.catalog", "warren.tools"))} == set()


def test_a_command_loads_what_it_needs(directory: Path) -> None:
    modules, _ours = loaded(COMMAND.format(["publish", str(directory), "loading", "--body", "x"]))
    assert modules & LARGE == set()


def test_what_is_needed_is_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {word.split(">")[0] for word in project["dependencies"]}
    assert set(interpreter.NEEDED) == {"warren", *named} - {"pyarrow"}


def test_every_python_is_started_with_a_safe_path() -> None:
    """Only interpreter.py knows the path of this Python (but for messages, and for PySpark, which starts its own)."""
    allowed = {
        "workers/process/interpreter.py": 1,
        "workers/client/client.py": 1,
        "workers/spark/session.py": 2,
        "tools/bench/startup.py": 1,
        "tools/crash/spark_processes.py": 1,
        "warren/_sources.py": 1,
    }
    found = {
        str(path.relative_to(ROOT)): count
        for folder in ("warren", "workers", "engine", "ipc", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if (count := path.read_text().count("sys.executable"))
    }
    assert found == allowed
    starts = [
        (str(path.relative_to(ROOT)), text.count("interpreter.command("), text.count("interpreter.environment("))
        for folder in ("workers", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if "interpreter.command(" in (text := path.read_text())
    ]
    assert len(starts) >= 7
    assert [item for item in starts if item[1] != item[2]] == []
