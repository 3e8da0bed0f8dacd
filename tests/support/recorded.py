"""A program of a test, recorded as a power-loss campaign records a node: what it and its children did to the files of a
directory, in one order.
"""

import os
import subprocess
import sys
from pathlib import Path

from warren.tools.crash.recording import Record, Recorder

TESTS = Path(__file__).parents[1]


def run_recorded(folder: Path, root: Path, module: str, *arguments: str, timeout_s: float = 120) -> list[Record]:
    """Run `python -m support.<module> ARGUMENTS…` to its good end; returns what was done below `root`. The files of the
    recorder lie in `folder`.
    """
    recorder = Recorder(folder)
    recorder.begin()
    environment = recorder.environment(root)
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-m", f"support.{module}", *arguments],
        env=environment,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return recorder.read()
