"""The command line as a user starts it: a process of its own."""

import json
import os
import subprocess
import sys


class Ended(subprocess.CompletedProcess[str]):
    """A command that has ended; `said` is what it said on standard error."""

    @property
    def said(self) -> str:
        return self.stderr

    def json(self) -> object:
        return json.loads(self.stdout)


def warren(*words: object, given: str = "", code: int = 0, environment: dict[str, str] | None = None) -> Ended:
    """Run a command and check its exit code; nothing it prints is ever a traceback."""
    found = subprocess.run(
        [sys.executable, "-m", "warren", *map(str, words)],
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | (environment or {}),
    )
    assert "Traceback" not in found.stderr + found.stdout, found.stderr
    assert found.returncode == code, f"{words}: exit code {found.returncode}\n{found.stdout}\n{found.stderr}"
    return Ended(found.args, found.returncode, found.stdout, found.stderr)
