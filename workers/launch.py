"""Starting a supervisor from another process: for `warren.open`, and for servers whose supervisor died.

The new process is detached (own session, output in DIR/log/supervisor.log) and belongs to nobody: whoever asked may
die. Any number may ask at once: the directory's lock lets one win, and the others end quietly when it serves.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import errors
from warren.engine.atomic_file import explained
from warren.engine.errors import Error, TimedOut
from warren.workers import interpreter

#: set for a child that is to print an error as JSON {"error", "message"} in its last line
ERRORS_VARIABLE = "WARREN_ERRORS_AS_JSON"


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
    with explained(f"cannot start a node for {directory}"):
        process = _start(directory, ["--adopt"], idle_exit, settings or {})
    try:
        _out, printed = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise TimedOut(
            f"the node of {directory} did not serve within {timeout:g} s; "
            f"it may still be recovering: see {Path(directory) / 'log'}"
        ) from error
    if process.returncode:
        raise _error_in(printed.decode("utf-8", "replace"), directory)


def start_successor(directory: Path | str) -> subprocess.Popen[bytes]:
    """Start a supervisor that takes over a living node, and do not wait. The caller polls the process, so that it
    leaves no zombie.
    """
    return _start(directory, ["--adopt", "--successor"], None, {})


def _start(
    directory: Path | str, flags: list[str], idle_exit: float | None, settings: dict[str, Any]
) -> subprocess.Popen[bytes]:
    command = interpreter.command("warren.workers.cli.main", "up", str(directory), "--detach", "--quiet", *flags)
    if idle_exit is not None:
        command += ["--idle-exit", str(idle_exit)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    environment = interpreter.environment() | {ERRORS_VARIABLE: "1"}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )


def _error_in(printed: str, directory: Path | str) -> Error:
    lines = printed.strip().splitlines()
    for line in reversed(lines):
        try:
            found = msgspec.json.decode(line, type=dict[str, str])
            return errors.by_name(found["error"], found["message"])
        except (msgspec.MsgspecError, KeyError):
            continue
    return Error(f"the node of {directory} did not start: {lines[-1] if lines else 'no reason was given'}")
