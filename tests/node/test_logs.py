"""Goal: every process of a node logs lines of one shape, from its start to its end; files are rotated while they are
written, and no line is lost or torn by that; a full disk costs lines and no process.

Method: nodes as a user starts them, whose logs are read line by line; several processes that write to one small log
file; a small disk that is filled.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warren
from warren.engine.config import Settings
from warren.workers.node import children, forked
from warren.workers.process import interpreter, logs
from warren.workers.process.control import ControlClient
from warren.workers.process.logs import Lines, LogFile

from support.real_node import SMALL
from support.small_disk import Disk
from support.waiting import wait_until

LINE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (debug|info|warning|error|critical) "
    r"(supervisor|store|collector|worker-\d+)\[(\d+)\]: (.+)"
)
ROLES = {"supervisor", "store", "collector", "worker-0"}


def run(*words: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        interpreter.command("warren", *map(str, words)),
        env=interpreter.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a node that is stopped at the end if it still runs."""
    place = tmp_path / "node"
    yield place
    stop = interpreter.command("warren", "stop", str(place))
    subprocess.run(stop, env=interpreter.environment(), capture_output=True, timeout=300)


def up(directory: Path, *words: str) -> None:
    settings = [f"--set={name}={value}" for name, value in (SMALL | {"workers": 1}).items()]
    run("up", directory, "--detach", *settings, *words)


def processes(directory: Path) -> dict[str, int]:
    with ControlClient(directory) as control:
        rows = control.call("status", timeout=60)["processes"]
    return {f"worker-{row['index']}" if row["role"] == "queue_worker" else row["role"]: row["pid"] for row in rows}


def files(log: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    return [
        *(log.with_name(name) for _number, name in sorted(logs.older(log.name, os.listdir(log.parent)), reverse=True)),
        log,
    ]


def lines_of(directory: Path, role: str) -> list[str]:
    found = files(directory / "log" / f"{role}.log")
    return [line for path in found for line in path.read_text().splitlines()]


def replaced(directory: Path, role: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Kill a process and wait for the next one that has its role; returns the pid of who was killed."""
    old = processes(directory)[role]
    os.kill(old, number)

    def another() -> bool:
        try:
            return processes(directory).get(role) not in (None, old)
        except warren.Error:
            return False

    wait_until(another, 60, what=f"a new {role}")
    return old


# -- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_each_process_logs_lines_of_one_shape_from_its_start_to_its_end(directory: Path) -> None:
    up(directory)
    wait_until(lambda: all(processes(directory).values()), 60, what="the collector, which no start waits for")
    first = processes(directory)
    killed = replaced(directory, "worker-0")
    with warren.attach(directory) as node:
        node.queue("q").put(b"a body that no log has", headers={"token": "a header that no log has"})
    run("stop", directory)
    assert {path.stem for path in (directory / "log").iterdir()} == ROLES
    for role in ROLES:
        found = [LINE.fullmatch(line) for line in lines_of(directory, role)]
        assert all(found), lines_of(directory, role)
        said = [(match[2], int(match[4]), match[5]) for match in found if match]
        assert {match[3] for match in found if match} == {role}
        level, pid, text = said[0]
        assert (level, pid) == ("info", first[role])
        assert text == f"warren {warren.__version__} starts: profile default, directory {directory}"
        level, pid, text = said[-1]
        assert level == "info"
        assert re.fullmatch(r"ends: .+; served for [\d.]+ s, stopped in [\d.]+ s", text), text
        times = [match[1] for match in found if match]
        assert times == sorted(times)
    assert any("asked by `stop`" in line for line in lines_of(directory, "supervisor"))
    told = [line for line in lines_of(directory, "supervisor") if f"worker-0 (process {killed}) was killed" in line]
    assert len(told) == 1
    assert " warning supervisor[" in told[0]
    ready = [line for line in lines_of(directory, "worker-0") if re.search(r"ready in [\d.]+ s: \d+ messages?,", line)]
    assert len(ready) == 2, "each start says what was recovered, and how long that took"
    assert any(re.search(r"persistent store: .* in [\d.]+ s", line) for line in lines_of(directory, "store"))
    everything = "\n".join(line for role in ROLES for line in lines_of(directory, role))
    assert "that no log has" not in everything


@pytest.mark.integration
def test_lines_are_json_also_after_every_process_was_killed(directory: Path) -> None:
    """A supervisor that the servers start keeps what `up` was told."""
    up(directory, "--log", "json")
    old = replaced(directory, "supervisor")
    replaced(directory, "store")
    replaced(directory, "worker-0")
    run("stop", directory)
    for role in ROLES:
        rows = [json.loads(line) for line in lines_of(directory, role)]
        assert rows
        for row in rows:
            assert set(row) == {"time", "level", "process", "pid", "text"}, row
            assert row["process"] == role
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"])
            assert isinstance(row["pid"], int)
    rows = [json.loads(line) for line in lines_of(directory, "supervisor")]
    assert {row["pid"] == old for row in rows} == {True, False}
    assert any(f"takes over the node of supervisor {old}" in row["text"] for row in rows)


@pytest.mark.integration
def test_a_level_leaves_out_what_is_below_it(directory: Path) -> None:
    up(directory, "--log-level", "warning")
    killed = replaced(directory, "worker-0")
    run("stop", directory)
    everything = [line for role in ROLES for line in lines_of(directory, role)]
    levels = {match[2] for line in everything if (match := LINE.fullmatch(line))}
    assert "warning" in levels
    assert not levels & {"debug", "info"}
    assert any(f"worker-0 (process {killed}) was killed by SIGKILL" in line for line in everything)


@pytest.mark.integration
def test_a_node_in_the_foreground_logs_to_standard_error_too(directory: Path) -> None:
    command = interpreter.command("warren", "up", str(directory), "--workers", "1")
    process = subprocess.Popen(
        command, env=interpreter.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "is up for" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    logged = [line for line in said.splitlines() if not line.startswith("warren: waiting: ")]
    assert logged == lines_of(directory, "supervisor")
    assert all(LINE.fullmatch(line) for line in logged), said
    assert "stopping: SIGTERM came" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "log_level=loud"], "setting log_level must be one of debug, info, warning, error, not 'loud'"),
        (["--set", "log_format=xml"], "setting log_format must be one of text, json, not 'xml'"),
        (["--set", "log_files=1"], "setting log_files must lie between 2 and 100, not 1"),
        (["--log-level", "loud"], "'loud' is not a valid log_level: known are debug, error, info, warning"),
    ],
)
def test_what_a_log_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in run("up", tmp_path / "node", *words, code=2).stderr
    assert not (tmp_path / "node").exists()


def record(text: str, *values: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("warren.node", logging.ERROR, __file__, 1, text, values, info)


def test_an_exception_is_part_of_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        found = record("it went wrong", error=error)
    row = json.loads(Lines("store", True).format(found))
    assert row["text"] == "it went wrong"
    assert row["exception"].startswith("Traceback (most recent call last):\n")
    assert row["exception"].endswith("ValueError: two\nlines")
    first, *rest = Lines("store", False).format(found).split("\n")
    match = LINE.fullmatch(first)
    assert match
    assert match[5] == "it went wrong"
    assert rest
    assert all(line.startswith("    ") for line in rest), "what does not begin with spaces is a record"


def test_no_name_can_forge_a_line() -> None:
    forged = "x\n2026-01-01T00:00:00.000Z info store[1]: \x1b[2Jall is well\r\udcff"
    first, second = Lines("store", False).format(record("client %s", forged)).split("\n")
    assert LINE.fullmatch(first)
    assert second.startswith("    2026")
    assert "\x1b" not in second
    assert "\r" not in second
    second.encode()
    assert json.loads(Lines("store", True).format(record("client %s", forged)))["text"].endswith("\\r\\udcff")


# -- what Python does not write -------------------------------------------------------------------------------------


def child(path: Path, main: Callable[[], None], settings: Settings) -> None:
    """Run this as a server that the supervisor forks, and wait for its end."""
    role = children.Role("worker-0", "queue_worker", 0, (2,), lambda _pidfd: main() or 0, path, settings)
    gate, opened = os.pipe()
    pidfd = os.pidfd_open(os.getpid())
    pid = forked.fork(lambda: children._be_child(role, gate, pidfd, lambda _role: None))
    os.write(opened, b"g")
    for descriptor in (gate, opened, pidfd):
        os.close(descriptor)
    os.waitpid(pid, 0)


def test_standard_error_of_a_server_follows_its_log(tmp_path: Path) -> None:
    """C code writes to descriptor 2, which leads to the file in use after a rotation, too."""
    path = tmp_path / "log" / "worker-0.log"
    path.parent.mkdir()

    def main() -> None:
        os.write(2, b"C: first\n")
        for number in range(60):
            logs.log.info("line %d %s", number, "x" * 100)
        os.write(2, b"C: last\n")

    child(path, main, Settings(log_rotate_bytes=4096, log_files=9))
    assert len(files(path)) > 1
    assert "C: last" in path.read_text().splitlines()
    everything = [line for one in files(path) for line in one.read_text().splitlines()]
    assert everything.count("C: first") == 1
    assert [line for line in everything if not LINE.fullmatch(line)] == ["C: first", "C: last"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_ends_a_server_or_a_thread_is_one_record(tmp_path: Path, log_format: str) -> None:
    path = tmp_path / "log" / "worker-0.log"
    path.parent.mkdir()

    def fail() -> None:
        raise RuntimeError("a mistake")

    def main() -> None:
        thread = threading.Thread(target=fail, name="helper")
        thread.start()
        thread.join()
        fail()

    child(path, main, Settings(log_format=log_format))
    if log_format == "json":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = [row for row in rows if "exception" in row]
        assert [(row["level"], row["text"]) for row in found] == [
            ("error", "thread helper ends"),
            ("critical", "worker-0 ends: RuntimeError"),
        ]
        assert all(row["exception"].endswith("RuntimeError: a mistake") for row in found)
    else:
        begins = [line for line in path.read_text().splitlines() if not line.startswith("    ")]
        assert all(LINE.fullmatch(line) for line in begins), begins
        assert len(begins) == 3


@pytest.mark.crash
@pytest.mark.integration
def test_a_crash_of_the_interpreter_lands_in_the_log(directory: Path) -> None:
    up(directory, "--log", "json")
    replaced(directory, "worker-0", signal.SIGSEGV)
    run("stop", directory)
    said = lines_of(directory, "worker-0")
    assert any(line.startswith("Fatal Python error: Segmentation fault") for line in said), said
    assert json.loads(said[-1])["process"] == "worker-0"


# -- rotation -------------------------------------------------------------------------------------------------------

WRITER = """
import logging, sys
from pathlib import Path
from warren.workers.process.logs import Lines, LogFile
path, name, count, size, files_n = sys.argv[1:]
handler = LogFile(Path(path), int(size), int(files_n), False)
handler.setFormatter(Lines(name, True))
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)
sys.stdin.read(1)
for number in range(int(count)):
    logging.info("%d %s", number, "x" * (number % 300))
"""


def writers(path: Path, count: int, size: int, files_n: int, writers_n: int = 4) -> None:
    """Processes that write at the same time."""
    words = [str(path), *map(str, (count, size, files_n))]
    begun = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, words[0], f"writer-{n}", *words[1:]],
            stdin=subprocess.PIPE,
            env=interpreter.environment(),
            text=True,
        )
        for n in range(writers_n)
    ]
    for process in begun:
        assert process.stdin is not None
        process.stdin.write("g")
        process.stdin.close()
    for process in begun:
        assert process.wait(300) == 0


def test_no_line_is_lost_or_torn_when_several_processes_rotate(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.log"
    writers(path, 400, 8192, 100)
    rows = [json.loads(line) for one in files(path) for line in one.read_text().splitlines()]
    assert len(files(path)) > 5  # whoever waits for the lock writes on: on a busy machine files are larger
    for n in range(4):
        mine = [int(row["text"].split()[0]) for row in rows if row["process"] == f"writer-{n}"]
        assert sorted(mine) == list(range(400))
    assert all(row["text"] == f"{(number := row['text'].split()[0])} {'x' * (int(number) % 300)}" for row in rows)


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[LogFile]:
    made = LogFile(tmp_path / "store.log", 4096, 4, False)
    made.setFormatter(Lines("store", False))
    yield made
    made.close()


def test_logs_stay_bounded_and_keep_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    writers(path, 400, 8192, 3, writers_n=1)
    assert [one.name for one in files(path)] == ["store.log.2", "store.log.1", "store.log"]
    assert all(one.stat().st_size <= 8192 for one in files(path))
    rows = [json.loads(line) for one in files(path) for line in one.read_text().splitlines()]
    assert rows[-1]["text"].startswith("399 ")


def test_the_first_line_of_a_process_rotates_a_file_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    for _start in range(60):
        handler = LogFile(path, 4096, 4, False)
        handler.setFormatter(Lines("store", False))
        handler.handle(record("%s", logs.starts(tmp_path, Settings())))
        handler.close()
        assert path.stat().st_size <= 4096
    assert len(files(path)) > 1


def test_several_processes_keep_as_many_files_as_one(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    writers(path, 400, 8192, 3)
    assert [one.name for one in files(path)] == ["store.log.2", "store.log.1", "store.log"]
    rows = [json.loads(line) for one in files(path) for line in one.read_text().splitlines()]
    assert any(row["text"].startswith("399 ") for row in rows)


def test_a_line_does_not_wait_for_the_rotation_of_another_process(tmp_path: Path, handler: LogFile) -> None:
    path = tmp_path / "store.log"
    handler.handle(record("first"))
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(10):
            handler.handle(record("x" * 900))
        assert files(path) == [path]
    handler.handle(record("last"))
    assert [one.name for one in files(path)] == ["store.log.1", "store.log"]
    assert path.read_text().endswith(": last\n")
    assert path.read_text().count("\n") == 1


FORKED = """
import logging, os, sys
from pathlib import Path
from warren.engine.config import Settings
from warren.workers.process import logs
place = Path(sys.argv[1])
logs.begin("supervisor", place / "log" / "supervisor.log", Settings(), streams=False)
os.rename(place, place.with_name("old"))
(place / "log").mkdir(parents=True)
child = os.fork()
if not child:
    logs.begin("store", place / "log" / "store.log", Settings(), streams=True)
    logging.getLogger("warren.node").info("here")
    os.write(2, b"and there\\n")
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_server_logs_into_the_folder_that_its_supervisor_opened(tmp_path: Path) -> None:
    """Another directory was put in the place of the node's a moment before a server was started again."""
    (tmp_path / "node" / "log").mkdir(parents=True)
    words = [sys.executable, "-P", "-c", FORKED, str(tmp_path / "node")]
    subprocess.run(words, env=interpreter.environment(), check=True, timeout=100)
    assert list((tmp_path / "node" / "log").iterdir()) == []
    said = (tmp_path / "old" / "log" / "store.log").read_text()
    assert ": here\n" in said
    assert said.endswith("and there\n")


def test_a_file_that_was_compressed_keeps_its_number(tmp_path: Path, handler: LogFile) -> None:
    def rotate() -> None:
        for _ in range(5):
            handler.handle(record("x" * 900))

    rotate()
    (tmp_path / "store.log.1").rename(tmp_path / "store.log.1.gz")
    (tmp_path / "store.log.other").touch()
    rotate()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"store.log", "store.log.1", "store.log.2.gz", "store.log.other"}
    for _ in range(3):
        rotate()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"store.log", "store.log.1", "store.log.2", "store.log.3", "store.log.other"}


def test_a_log_that_was_removed_or_moved_is_begun_anew(tmp_path: Path, handler: LogFile) -> None:
    handler.handle(record("first"))
    (tmp_path / "store.log").rename(tmp_path / "kept")
    handler.handle(record("second"))
    (tmp_path / "store.log").unlink()
    handler.handle(record("third"))
    assert (tmp_path / "kept").read_text().endswith(": first\n")
    assert (tmp_path / "store.log").read_text().count("\n") == 1


def test_the_folder_of_the_logs_is_made_again_and_that_is_said_once(tmp_path: Path) -> None:
    """Where the directory of the node is by then; a folder that somebody else made meanwhile is taken."""
    place = tmp_path / "node" / "log"
    place.mkdir(parents=True)
    handlers = [LogFile(place / f"{name}.log", 1 << 20, 3, False) for name in ("store", "worker-0")]
    for handler in handlers:
        handler.setFormatter(Lines("store", False))
        handler.handle(record("before"))
    (tmp_path / "node").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "log")
    for handler in handlers:
        for text in ("after", "later"):
            handler.handle(record(text))
        lines = (tmp_path / "moved" / "log" / handler._path.name).read_text().splitlines()
        assert [line.partition("]: ")[2] for line in lines] == [
            "after",
            f"{place} was removed while the node ran: it was made again",
            "later",
        ]
    shutil.rmtree(tmp_path / "moved")
    handlers[0].handle(record("nowhere"))
    assert not (tmp_path / "moved").exists()
    for handler in handlers:
        handler.close()


@pytest.mark.parametrize("what", ["a FIFO", "a device", "a directory"])
def test_what_is_no_file_costs_lines_and_never_waits(tmp_path: Path, handler: LogFile, what: str) -> None:
    place = tmp_path / "store.log"
    handler.handle(record("first"))
    place.rename(tmp_path / "kept")
    if what == "a FIFO":
        os.mkfifo(place)
    elif what == "a device":
        place.symlink_to("/dev/null")
    else:
        place.mkdir()
    for _again in range(3):
        handler.handle(record("lost"))
    assert logs.last_lines(place) == ""
    place.rmdir() if what == "a directory" else place.unlink()
    handler.handle(record("last"))
    told = [line.partition("]: ")[2] for line in place.read_text().splitlines()]
    assert told == ["last", "3 lines before the last one could not be written"]
    assert (tmp_path / "kept").read_text().endswith(": first\n")


@pytest.mark.integration
@pytest.mark.parametrize("how", [[], ["--detach"]], ids=["", "detach"])
def test_a_start_refuses_a_log_that_is_no_file(directory: Path, how: list[str]) -> None:
    (directory / "log").mkdir(parents=True)
    os.mkfifo(directory / "log" / "supervisor.log")
    os.mkfifo(directory / "log" / "worker-0.log")
    said = run("up", directory, *how, code=2).stderr
    assert f"{directory / 'log' / 'supervisor.log'} is a directory, a FIFO or a device, and a log is a file" in said


@pytest.mark.integration
def test_a_node_goes_on_whose_logs_were_removed(directory: Path) -> None:
    up(directory)
    before = processes(directory)
    shutil.rmtree(directory / "log")
    os.kill(before["worker-0"], signal.SIGKILL)
    wait_until((directory / "log" / "worker-0.log").exists, 60, what="the log of the next worker")
    with warren.attach(directory) as node:
        node.queue("q").put(b"x")
    assert "was removed while the node ran: it was made again" in (directory / "log" / "supervisor.log").read_text()
    assert {role: pid for role, pid in processes(directory).items() if role != "worker-0"} == {
        role: pid for role, pid in before.items() if role != "worker-0"
    }


DIES_WITH_QUEUES = """
import os, sys, warren
node = warren.attach(sys.argv[1])
for name in sys.argv[2:]:
    node.queue(name, durable=False, exclusive=True)
os._exit(0)
"""


@pytest.mark.integration
def test_a_running_node_rotates_its_logs(directory: Path) -> None:
    up(directory, "--set", "log_rotate_bytes=4096", "--set", "log_files=50")
    names = [f"queue-{n:03}" for n in range(150)]
    command = [sys.executable, "-P", "-c", DIES_WITH_QUEUES, str(directory), *names]
    subprocess.run(command, env=interpreter.environment(), check=True, timeout=300)

    def told() -> list[str]:
        try:
            text = "\n".join(lines_of(directory, "supervisor"))
        except FileNotFoundError:  # it was just renamed
            return []
        return re.findall(r"queue '(queue-\d+)' is deleted", text)

    wait_until(lambda: len(told()) >= 150, 20, what="a line for each queue")
    assert sorted(told()) == names
    assert len(files(directory / "log" / "supervisor.log")) > 2
    assert all(LINE.fullmatch(line) for line in lines_of(directory, "supervisor"))


# -- a full disk ----------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_lines_and_leaves_no_half_ones(small_disk: Path) -> None:
    path, ballast = small_disk / "store.log", small_disk / "ballast"
    handler = LogFile(path, 1 << 20, 4, False)
    handler.setFormatter(Lines("store", False))
    disk = Disk(small_disk)
    handler.handle(record("before"))
    disk.leave(0)
    for number in range(20):  # the first may still fit into the last page of the file
        handler.handle(record("%d %s", number, "x" * 3000))
    assert all(LINE.fullmatch(line) for line in path.read_text().splitlines())
    lost = 20 - sum("xxx" in line for line in path.read_text().splitlines())
    assert lost >= 18
    ballast.unlink()
    handler.handle(record("after"))
    handler.close()
    said = [match[5] for line in path.read_text().splitlines() if (match := LINE.fullmatch(line))]
    assert len(said) == len(path.read_text().splitlines())
    assert said[0] == "before"
    assert said[-2:] == ["after", f"{lost} lines before the last one could not be written"]


@pytest.mark.integration
def test_a_node_on_a_full_disk_goes_on_without_its_lines(small_disk: Path) -> None:
    """A worker is killed and comes again while nothing can be logged; then lines are written again, whole ones."""
    disk = Disk(small_disk)
    up(disk.directory, "--set", "disk_free_bytes_min=0")
    try:
        with warren.attach(disk.directory) as node:
            queue = node.queue("q")
            queue.put_many([b"%d" % n for n in range(10)])
            supervisor = processes(disk.directory)["supervisor"]
            with disk.kept_full(0):
                replaced(disk.directory, "collector")
                assert {bytes(message.body) for message in queue.get_many(10, timeout=60)} == {
                    b"%d" % n for n in range(10)
                }
            disk.empty()
            replaced(disk.directory, "collector")
            assert processes(disk.directory)["supervisor"] == supervisor
    finally:
        disk.empty()
        run("stop", disk.directory)
    for role in ROLES:
        assert all(LINE.fullmatch(line) for line in lines_of(disk.directory, role)), lines_of(disk.directory, role)


def test_the_settings_are_kept(tmp_path: Path) -> None:
    """They are settings like all others: in node.json, for the supervisor that takes over and for the next start."""
    given = {"log_level": "debug", "log_format": "json", "log_rotate_bytes": 8192, "log_files": 7}
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(Settings(), **given).checked())
    assert {name: found[name] for name in given} == given
