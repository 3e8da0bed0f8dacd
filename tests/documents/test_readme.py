"""Goal: a newcomer who types what README shows gets what it says. Method: its snippets are run, in order, in an empty
folder, as are its lines for the shell.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.snippets import ROOT, snippets

pytestmark = pytest.mark.integration

#: of `warren stop` when no node runs
EXIT_NOT_RUNNING = 3

README = (ROOT / "README.md").read_text()
SNIPPETS = [snippet.code for snippet in snippets(ROOT / "README.md")]
SHELL = [line.partition("#")[0] for line in README.splitlines() if re.match(r"warren [\w ]+ shop\b", line)]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_as_it_stands(tmp_path: Path, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SNIPPETS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    stopped = subprocess.run([sys.executable, "-m", "warren", "stop", "data"], cwd=tmp_path, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert stopped.returncode in (0, EXIT_NOT_RUNNING), "on a busy machine its 10 s may be over"
    assert done.stdout == ("b'two rabbits, one burrow'\n[b'EWR 05:17']\n" if number == 0 else "")


def test_the_lines_for_the_shell_do_what_is_said_of_them_right_after_the_first_snippet(tmp_path: Path) -> None:
    assert [line.split()[1] for line in SHELL] == ["up", "queue", "publish", "peek", "consume"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "first.py").write_text(SNIPPETS[0])
    typed = [f"{sys.executable} first.py", *SHELL, "warren stop shop"]  # the snippet's node runs on for 10 s
    script = f"set -e\ntrap 'warren stop data || [ $? = {EXIT_NOT_RUNNING} ]' EXIT\n" + "\n".join(typed) + "\n"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("two rabbits, one burrow") == 2, "seen, and taken"
