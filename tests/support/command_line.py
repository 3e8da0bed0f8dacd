"""The command line as a user starts it: a process of its own."""

import json
import os
import subprocess
import sys

from support import warm
from support.waiting import patience

TIMEOUT_S = 100


class Ended(subprocess.CompletedProcess[str]):
    """A command that has ended; `said` is what it said on standard error."""

    @property
    def said(self) -> str:
        return self.stderr

    def json(self) -> object:
        return json.loads(self.stdout)


def warren(*words: object, given: str = "", code: int = 0, environment: dict[str, str] | None = None) -> Ended:
    """Run a command and check its exit code; nothing it prints is ever a traceback."""
    arguments = [str(word) for word in words]
    if environment or not all(map(_is_plain, arguments)):  # another Python, perhaps; words that are no text
        found = subprocess.run(
            [sys.executable, "-m", "warren", *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S * patience(),
            env=os.environ | (environment or {}),
        )
        ended = Ended(found.args, found.returncode, found.stdout, found.stderr)
    else:
        ended = Ended(arguments, *warm.run(arguments, given, TIMEOUT_S * patience()))
    assert "Traceback" not in ended.stderr + ended.stdout, ended.stderr
    assert ended.returncode == code, f"{words}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended


def _is_plain(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
