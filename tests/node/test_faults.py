"""Goal: bad surroundings (full disk, foreign and newer files, other users) give a clear error of the right class, lose
nothing, and leave the node serving.

Method: a real node on a small tmpfs of its own, or on a directory that was tampered with while it was down.
"""

import contextlib
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from warren.engine._core import crc32c
from warren.workers.process.exit_codes import EXIT_DO_NOT_RESTART

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_full_disk_refuses_loses_nothing_and_goes_on(small_disk: Path) -> None:
    """Bodies for the store until the disk is full: an error of the right class; then everything confirmed is there."""
    directory = small_disk / "node"
    body = os.urandom(60_000)
    with RealNode(directory, disk_free_bytes_min=0), warren.attach(directory) as node:
        queue = node.queue("work")
        bystander = node.queue("bystander", durable=False)
        bystander.put(b"still here")
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(9 << 20))
        confirmed = 0

        def put_until_refused() -> None:
            nonlocal confirmed
            while confirmed < 1000:
                queue.put(confirmed.to_bytes(4, "big") + body, timeout=4.0)
                confirmed += 1

        with pytest.raises(warren.DiskFull, match="disk_free_bytes_min"):
            put_until_refused()
        assert confirmed > 10
        wait_until(lambda: any("disk" in alarm for alarm in node.status()["alarms"]), what="the alarm")
        # consumers are served meanwhile
        assert bystander.get(timeout=1.0).body == b"still here"
        ballast.unlink()
        wait_until(lambda: not node.status()["alarms"], 10, what="the alarm to clear")
        queue.put(b"there is space again", timeout=5.0)
        bodies = []
        while True:
            try:
                message = queue.get(timeout=1.0)
            except warren.QueueEmpty:
                break
            bodies.append(message.body)
            message.ack()
        numbers = [int.from_bytes(found[:4], "big") for found in bodies[:-1]]
        # the refused one may have been stored after all: it was handed over
        assert numbers[:confirmed] == list(range(confirmed))
        assert set(numbers[confirmed:]) <= {confirmed}
        assert bodies[-1] == b"there is space again"


def _fill(directory: Path, clean: bool = True, workers: int = 2) -> None:
    with RealNode(directory, workers=workers) as real:
        with warren.attach(directory) as node:
            node.queue("work").put_many([b"small", b"L" * 10_000])
        if not clean:
            real.kill_all()


def _drain(directory: Path) -> list[int]:
    with warren.attach(directory) as node:
        return [len(message.body) for message in node.queue("work").get_many(10, timeout=2.0)]


@pytest.mark.parametrize("folder", ["store/persistent", "queues/worker-0/journal"])
def test_foreign_files_are_left_alone(tmp_path: Path, folder: str) -> None:
    """Somebody's notes and a file that only looks like a segment file: reported, never lost, the rest is served."""
    directory = tmp_path / "node"
    _fill(directory)
    suffix = "rdq" if folder.startswith("store") else "jnl"
    strangers = {
        directory / folder / "notes.txt": b"do not delete me",
        directory / folder / f"999.{suffix}": b"not a segment file at all".ljust(8192, b"?"),
    }
    for path, content in strangers.items():
        path.write_bytes(content)
    with RealNode(directory):
        assert _drain(directory) == [5, 10_000]
    # what claims to be one of the own files is put there
    name, home = (f"999.{suffix}", folder) if suffix == "rdq" else (f"journal-999.{suffix}", "queues/worker-0")
    aside = directory / home / "quarantine" / name
    for path, content in strangers.items():
        assert (aside if aside.exists() and not path.exists() else path).read_bytes() == content
    logged = "".join(path.read_text() for path in (directory / "log").glob("*.log"))
    assert "notes.txt" in logged
    assert f"999.{suffix}" in logged


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("folder", ["store/persistent", "queues/worker-0/journal"])
def test_a_file_of_a_newer_version_stops_the_start(tmp_path: Path, folder: str, clean: bool) -> None:
    """A newer Warren wrote here: this one says so, changes nothing, and does not try again and again."""
    directory = tmp_path / "node"
    _fill(directory, clean, workers=1)  # a node goes on as long as there is another worker
    path = min(path for path in (directory / folder).iterdir() if path.suffix in (".rdq", ".jnl"))
    content = bytearray(path.read_bytes())
    content[8:12] = (99).to_bytes(4, "big")
    content[4092:4096] = crc32c(bytes(content[:4092])).to_bytes(4, "big")
    path.write_bytes(content)
    process = subprocess.Popen(
        [sys.executable, "-m", "warren.workers.cli.main", "up", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)},
    )
    try:
        said, _nothing = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.terminate()  # in good order: a killed supervisor would be followed by another
        said, _nothing = process.communicate(timeout=60)
    assert process.returncode == EXIT_DO_NOT_RESTART, said
    assert "version 99" in said
    assert path.name in said
    assert "Traceback" not in said
    assert path.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_is_refused(tmp_path: Path) -> None:
    """Only the owner gets in: directory, socket and shared memory."""
    directory = tmp_path / "node"
    nobody = pwd.getpwnam("nobody")
    with RealNode(directory), contextlib.ExitStack() as undo:
        for parent in [tmp_path, *tmp_path.parents[:2]]:
            mode = parent.stat().st_mode & 0o7777
            parent.chmod(mode | 0o055)
            undo.callback(parent.chmod, mode)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            said = b"it got in"
            try:
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
                warren.attach(directory, timeout=1.0)
            except warren.Error as error:
                said = f"{type(error).__name__}: {error}".encode()
            finally:
                os.write(write, said)
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read().decode()
        os.waitpid(child, 0)
        assert answer.startswith("PermissionRefused"), answer
        with warren.attach(directory) as node:
            node.queue("work").put(b"the owner is served")
