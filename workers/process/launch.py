"""Starting a supervisor from another process: for `warren.open`, and for servers whose supervisor died.

The new process is detached (own session, output in DIR/log/supervisor.log) and belongs to nobody: whoever asked may
die. Any number may ask at once: the directory's lock lets one win, and the others end quietly when it serves.

Invariant: of the servers of a node at most one starts a successor at a time. Who starts it holds a flock on
DIR/node.json, which the successor inherits and lets go of when it has the directory's lock, or ends. It is the
kernel's, and needs no space on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import errors, saying
from warren.engine.catalog.node_directory import NODE, NodeDirectory
from warren.engine.errors import Error, StartFailed, TimedOut
from warren.engine.kernel import data_files
from warren.engine.kernel.atomic_file import explained
from warren.workers.process import interpreter
from warren.workers.process.control import WAIT_MAX_S
from warren.workers.process.exit_codes import ERRORS_VARIABLE

#: how long a start that is let go on in the background may take to say so
LET_GO_S = 1.0
log = logging.getLogger("warren.client")
#: after a successor that did not come up
AGAIN_FIRST_S, AGAIN_MAX_S = 0.5, 30.0


def launch(
    directory: Path | str,
    *,
    idle_exit: float | None = None,
    settings: dict[str, Any] | None = None,
    timeout: float = 60.0,
) -> None:
    """Start a node for a directory if none runs; returns when one serves (state RUNNING).

    Raises what refused the start (UsageError, FormatVersionError, PermissionRefused, DiskFull, …), TimedOut.
    """
    timeout = min(timeout, WAIT_MAX_S)
    deadline = time.monotonic() + timeout
    with explained(f"cannot start a node for {directory}"):
        process = _start(directory, ["--adopt", f"--start-timeout={timeout}"], idle_exit, settings or {})
    heard = _Heard(process)
    try:
        in_time = heard.until(deadline)
    except BaseException:  # Ctrl-C, say: what was begun ends with it
        process.kill()
        heard.end()
        raise
    if not in_time:
        process.send_signal(signal.SIGUSR1)  # what recovers goes on recovering
        heard.until(time.monotonic() + LET_GO_S)
        process.kill()
        heard.end()
        raise TimedOut(
            f"the node of {directory} did not serve within {timeout:.3g} s{f': {heard.waits}' if heard.waits else ''}; "
            f"it may go on starting in the background: see {Path(directory) / 'log'}, or end it with "
            f"{saying.command('stop', directory)}"
        )
    heard.end()
    if process.returncode:
        raise _error_in(heard.printed.decode("utf-8", "replace"), directory)


class _Line(msgspec.Struct):
    """A line of a start: what it waits for, if that takes long; what was started."""

    waiting: str = ""
    outside: bool = False
    started: str = ""


class _Heard:
    """What a start prints, told to the log `warren` as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.printed = b""
        self.waits = ""  #: what it waits for

    def until(self, deadline: float) -> bool:
        """Listen until it ends; False: it does not by the deadline."""
        pipe = self._process.stderr
        assert pipe is not None
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                return True
            before, self.printed = self.printed.count(b"\n"), self.printed + part
            for line in self.printed.split(b"\n")[before:-1]:
                with contextlib.suppress(msgspec.MsgspecError):  # the error that it ends with
                    said = msgspec.json.decode(line, type=_Line)
                    if said.started:
                        log.info("%s", said.started)
                    elif said.waiting:
                        self.waits = said.waiting
                        log.log(logging.WARNING if said.outside else logging.INFO, "waiting: %s", said.waiting)

    def end(self) -> None:
        """Let go of the process, which ends."""
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.wait()


def start_successor(directory: NodeDirectory) -> subprocess.Popen[bytes] | None:
    """Start a supervisor that takes over a living node, and do not wait; None when another process has one started, or
    there is a supervisor. The caller polls the process, so that it leaves no zombie. Raises OSError.
    """
    held = data_files.open(directory.path / NODE, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if directory.locked():  # by the successor of before, which let go of the other lock since
            return None
        return _start(directory.path, ["--adopt", "--successor", f"--starting={held}"], None, {}, pass_fds=(held,))
    finally:
        os.close(held)


class Succession:
    """What a server does when its supervisor is dead: another one is started, one at a time, and after one that did not
    come up the next one later and later.
    """

    def __init__(self, directory: NodeDirectory, say: saying.Say) -> None:
        self._directory = directory
        self._say = say
        self._started: subprocess.Popen[bytes] | None = None
        self._pause_s = AGAIN_FIRST_S
        self._next_at = 0.0

    def poll(self) -> None:
        """Note how the supervisor that was started here has ended its start; to be called now and then."""
        process = self._started
        if process is None or process.poll() is None:
            return
        assert process.stderr is not None
        with process.stderr as pipe:  # without waiting for whoever else may have it
            os.set_blocking(pipe.fileno(), False)
            printed = pipe.read() or b""
        self._started = None
        if process.returncode:
            self._failed(str(_error_in(printed.decode("utf-8", "replace"), self._directory.path)))
        else:
            self._pause_s = AGAIN_FIRST_S

    def start(self, why: str) -> None:
        """There is no supervisor: start one, unless one is being started."""
        self.poll()
        if self._started is not None or time.monotonic() < self._next_at:
            return
        try:
            if self._directory.locked():
                return
            self._started = start_successor(self._directory)
        except (OSError, Error) as error:  # no descriptor, no process, …
            self._failed(str(error))
            return
        if self._started is not None:
            self._say(f"{why}: a new supervisor is started", logging.WARNING)

    def _failed(self, reason: str) -> None:
        self._say(f"no new supervisor came up: {reason}; tried again in {self._pause_s:g} s", logging.WARNING)
        self._next_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)


def _start(
    directory: Path | str,
    flags: list[str],
    idle_exit: float | None,
    settings: dict[str, Any],
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    command = interpreter.command("warren.workers.cli.main", "up", str(directory), "--detach", "--quiet", *flags)
    if idle_exit is not None:
        command += ["--idle-exit", str(idle_exit)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    environment = interpreter.environment() | {ERRORS_VARIABLE: "1"}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=pass_fds,
    )


def _error_in(printed: str, directory: Path | str) -> Error:
    lines = printed.strip().splitlines()
    for line in reversed(lines):
        try:
            found = msgspec.json.decode(line, type=dict[str, str])
            return errors.by_name(found["error"], found["message"])
        except (msgspec.MsgspecError, KeyError):
            continue
    return StartFailed(f"the node of {directory} did not start: {lines[-1] if lines else 'no reason was given'}")
