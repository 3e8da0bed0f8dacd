"""Goal: nothing below a data directory is opened, made, named, removed or given a mode but by
engine/kernel/data_files.py, or in C by kernel/data_files.h, which follow no link (rule N21).

Method: the syntax tree of all modules of a node, and the C sources without comments and strings, are searched for calls
of the system that take a path. What is none of a data directory is listed with its reason, and must be there.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "ipc", "workers")
#: files that call the system themselves: what for
OTHERS = {
    "engine/kernel/data_files.py": "it is the one that does",
    "engine/catalog/ownership.py": "gives modes to what it has opened without following a link, and to nothing else",
    "ipc/access.py": "of descriptors alone",
    "ipc/doorbells.py": "a mode and a name of its socket, in a folder of ipc/socket_folder.py",
    "ipc/mailbox.py": "a mode and a name of its socket, in a folder of ipc/socket_folder.py",
    "ipc/region.py": "shared memory",
    "ipc/socket_folder.py": "below the engine: sockets, in a folder that it opens without following a link",
    "workers/servers/queue_worker.py": "names of shared memory",
    "workers/servers/topic_worker.py": "shared memory",
    "workers/process/abandoned.py": "shared memory, and /proc",
    "workers/process/unix_socket.py": "the folder of a socket, where the user has it",
    "workers/process/tls.py": "certificates, where the user has them",
    "workers/amqp/definitions.py": "a file of definitions, where the user has it",
    "workers/cli/definitions.py": "the same",
    "workers/celery/place.py": "warren.open",
    "workers/cli/gateway_users.py": "a file with a password, where the user has it",
    "workers/cli/output.py": "standard streams",
    "workers/node/alarms.py": "/proc and /sys, below a root that tests give",
    "workers/node/progress.py": "/proc",
    "workers/spark/native.py": "the package itself",
    "workers/spark/session.py": "folders of Spark",
    "workers/spark/transactional_sink.py": "a checkpoint of Spark",
    "workers/spark/pipelines/export.py": "an export, where the user has it",
    "workers/spark/pipelines/report.py": "a report, where the user has it",
}
OTHERS_IN_C = {
    "engine/kernel/data_files.c": "it is the one that does",
    "engine/topics/walk.c": "a parameter of that name",
    "ipc/core/doorbell.c": "below the engine: sockets, in a folder that it opens without following a link",
}
OF_OS = {
    "open", "unlink", "remove", "rename", "renames", "replace", "mkdir", "makedirs", "rmdir", "removedirs", "link",
    "symlink", "chmod", "lchmod", "chown", "lchown", "truncate", "mkfifo", "mknod", "utime",
}  # fmt: skip
OF_SHUTIL = {"rmtree", "copy", "copy2", "copyfile", "copytree", "copymode", "copystat", "move", "chown"}
OF_PATH = {
    "unlink", "mkdir", "rename", "rmdir", "read_bytes", "write_bytes", "read_text", "write_text", "touch", "chmod",
    "lchmod", "symlink_to", "hardlink_to",
}  # fmt: skip
#: modules of our own that have functions of these names
OURS = {"data_files", "mailbox", "socket_folder"}
IN_C = re.compile(
    r"(?<![\w>.])(open|open64|openat|openat2|creat|fopen|opendir|unlink|unlinkat|remove|rename|renameat|renameat2|mkdir|"
    r"mkdirat|rmdir|link|linkat|symlink|symlinkat|truncate|chmod|fchmodat|chown|lchown|fchownat|mknod|mknodat)\s*\("
)
NOT_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def named(call: ast.Call) -> str:
    """The name of a call of the system; "": another call."""
    function = call.func
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" else ""
    if not isinstance(function, ast.Attribute):
        return ""
    of = function.value.id if isinstance(function.value, ast.Name) else ""
    if of == "os":
        return f"os.{function.attr}" if function.attr in OF_OS else ""
    if of == "shutil":
        return f"shutil.{function.attr}" if function.attr in OF_SHUTIL else ""
    if of in OURS:
        return ""
    mode = call.args[0].value if len(call.args) == 1 and isinstance(call.args[0], ast.Constant) else None
    if function.attr in OF_PATH or (function.attr == "open" and isinstance(mode, str) and set(mode) <= set("rwaxb+t")):
        return f"Path.{function.attr}"
    return ""


def of_the_system(path: ast.expr) -> bool:
    """Whether a path says that it is /dev/null, or one of /proc."""
    if isinstance(path, ast.Attribute):
        return path.attr == "devnull"
    if isinstance(path, ast.Call) and isinstance(path.func, ast.Name) and path.func.id == "Path":
        path = path.args[0]
    if isinstance(path, ast.JoinedStr):
        path = path.values[0]
    return isinstance(path, ast.Constant) and isinstance(path.value, str) and path.value.startswith("/proc/")


def calls(source: str) -> Iterator[str]:
    """The calls of a module that take a path themselves: `line: name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := named(node)):
            method = name.startswith("Path.") and isinstance(node.func, ast.Attribute)
            if not of_the_system(node.func.value if method else node.args[0]):
                yield f"{node.lineno}: {name}"


def calls_in_c(source: str) -> Iterator[str]:
    code = NOT_CODE.sub(lambda found: "\n" * found[0].count("\n"), source)
    for found in IN_C.finditer(code):
        yield f"{code.count(chr(10), 0, found.start()) + 1}: {found[1]}"


def sources(suffix: str) -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted(ROOT.joinpath(room).rglob(f"*{suffix}")):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_modules_of_a_node_open_and_remove_through_one() -> None:
    found = {path: told for path, source in sources(".py") if (told := list(calls(source)))}
    assert {path: told for path, told in found.items() if path not in OTHERS} == {}
    assert set(OTHERS) - set(found) == set(), "these call nothing of the system any more"


def test_c_sources_open_and_remove_through_one() -> None:
    found = {path: told for path, source in sources(".c") if (told := list(calls_in_c(source)))}
    found |= {path: told for path, source in sources(".h") if (told := list(calls_in_c(source)))}
    assert {path: told for path, told in found.items() if path not in OTHERS_IN_C} == {}
    assert set(OTHERS_IN_C) - set(found) == set(), "these call nothing of the system any more"


@pytest.mark.parametrize(
    "line",
    [
        "os.open(path, os.O_RDONLY)",
        "os.unlink(name, dir_fd=folder)",
        "os.replace(old, new)",
        "shutil.rmtree(path)",
        "with open(path) as file: pass",
        "path.open('rb')",
        "(folder / 'x').unlink(missing_ok=True)",
        "path.read_bytes()",
        "path.mkdir(parents=True)",
        "os.chmod(path, 0o600)",
        "open(f'{path}/proc/1')",
    ],
)
def test_each_call_is_found(line: str) -> None:
    assert len(list(calls(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "data_files.open(path, os.O_RDONLY)",
        "data_files.unlink(path)",
        "os.open(os.devnull, os.O_RDWR)",
        "open(f'/proc/{pid}/stat')",
        "Path('/proc/self/mounts').read_text()",
        "os.fstat(descriptor)",
        "node.open()",
        "text.replace('a', 'b')",
    ],
)
def test_nothing_else_is(line: str) -> None:
    assert list(calls(line)) == []


def test_calls_in_c_are_told_from_words_and_methods() -> None:
    code = (
        'int f(void) {\n  /* open(x) */ v->open(c); wr_data_open(r, "unlink(a)", 0, 0);\n  return openat(r, "x", 0);\n}'
    )
    assert list(calls_in_c(code)) == ["3: openat"]
