"""Programs of the documents, run as a user runs them: by a Python of their own, in a folder of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from support.waiting import patience, wait_until

LIMIT_S = 120


def run_program(program: Path, folder: Path, options: Sequence[str] = ("-W", "error"), stop: bool = True) -> str:
    """Run it to its end, and wait for what it started and left; then `stop` the node that it made. Returns what
    it printed; AssertionError if it failed.
    """
    with (folder / "errors").open("w+") as errors, (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, *options, str(program)], cwd=folder, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_S * patience())
        except subprocess.TimeoutExpired:
            for other in session_of(process.pid):
                other.kill()
            process.wait()
            code = None
        wait_until(lambda: not session_of(process.pid), LIMIT_S, what="the end of what the program started")
        if stop:
            made = "data" if (folder / "data").exists() else "examples-data"
            subprocess.run([sys.executable, "-m", "warren", "stop", made], cwd=folder, timeout=LIMIT_S, check=True)
        errors.seek(0)
        said.seek(0)
        told = said.read()
        assert code == 0, f"{'it did not end' if code is None else code}\n{told}\n{errors.read()}"
        return told


def session_of(leader: int) -> list[psutil.Process]:
    """The processes of a session that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found
