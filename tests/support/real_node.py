"""A real node as a process of its own, for tests of what its clients see: start, pids of its parts, kill, stop."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from warren.engine.errors import Error
from warren.workers.process.control import ControlClient

from support import warm
from support.waiting import kill, wait_until

#: enough for tests, quick to make
SMALL = {
    "workers": 2,
    "file_bytes": 1 << 20,
    "arena_bytes": 1 << 21,
    "message_bytes_max": 500_000,
    "ring_records": 1024,
}


class RealNode:
    """`warren up DIR`, with settings; a context manager that stops it. `prefix`: a command that runs it elsewhere;
    `user`: number and groups of who runs it; `cold`: nothing is loaded before it loads it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        prefix: tuple[str, ...] = (),
        user: tuple[int, tuple[int, ...]] | None = None,
        cold: bool = False,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.cold = cold
        self.prefix = prefix
        self.user = user
        self.settings = SMALL | settings
        self.process: subprocess.Popen[bytes] | warm.Forked | None = None
        self.output: TextIO | None = None  #: both its streams

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it serves."""
        command = [*self.prefix, sys.executable, "-m", "warren.workers.cli.main", "up", str(self.directory)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        output, its = os.pipe()
        self.output = open(output)  # noqa: SIM115 - closed with the process
        with open(os.devnull, "rb") as nothing, open(its, "wb") as writing:
            if self.user is None and (self.prefix or self.cold or not warm.same_environment()):
                self.process = subprocess.Popen(command, stdin=nothing, stdout=writing, stderr=writing, env=environment)
            else:
                streams = nothing.fileno(), writing.fileno(), writing.fileno()
                self.process = warm.Forked(command[1:], streams, environment, user=self.user)
        said = ""
        while line := self.output.readline():  # others may come first, as of an alarm
            said += line
            if "is up" in line:
                return
        self.output.close()
        self.process.wait(60)
        raise AssertionError(said)

    def pids(self) -> dict[str, int]:
        """Pids by role: supervisor, store, worker-<i>."""
        with ControlClient(self.directory) as control:
            processes = control.call("status")["processes"]
        return {
            f"worker-{item['index']}" if item["role"] == "queue_worker" else item["role"]: item["pid"]
            for item in processes
        }

    def kill(self, role: str) -> int:
        """SIGKILL a process of the node and wait until another one has its place; returns the new pid."""
        old = self.pids()[role]
        os.kill(old, signal.SIGKILL)

        def replaced() -> int | None:
            try:
                found = self.pids().get(role)
            except Error:
                return None
            return found if found not in (None, old) else None

        return wait_until(replaced, 20, what=f"a new {role}") or 0

    def kill_all(self) -> None:
        """SIGKILL every process of the node at once; they are dead when this returns."""
        assert self.process is not None
        pids = [pid for pid in self.pids().values() if pid]  # a role that is started anew has none for the moment
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # so that nobody restarts anybody
        kill(*pids)
        self.process.wait(120)
        self.close_output()
        self.process = None

    def wait(self) -> str:
        """Wait until it has ended, because it was told to; returns what it said. A signal now would be a second one,
        which kills what is left.
        """
        process, self.process = self.process, None
        assert process is not None
        assert self.output is not None
        process.wait(60)
        said = self.output.read()
        self.close_output()
        return said

    def stop(self) -> None:
        """Stop it in good order and wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(120)
            raise
        finally:
            self.close_output()

    def close_output(self) -> None:
        """Listen no more to what it says: it is dead, or does not matter."""
        assert self.output is not None
        self.output.close()


@contextlib.contextmanager
def frozen(running: RealNode, role: str = "worker-0") -> Iterator[None]:
    """A process of the node stands still: it is alive, and does nothing."""
    pid = running.pids()[role]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed
            os.kill(pid, signal.SIGCONT)
