"""The example project of docs/celery.md, by its two commands, in a folder of its own; and what that page shows."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import session_of
from support.real_node import RealNode
from support.snippets import ROOT, snippets
from support.waiting import patience, wait_until

SNIPPETS = snippets(ROOT / "docs/celery.md")
WAIT_S = 60.0


@pytest.mark.integration
def test_two_commands_are_enough(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "docs/examples/celery_project", folder)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "2"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    try:
        said = subprocess.run(
            [sys.executable, "main.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert said.stdout.splitlines() == ["144", "[0, 1, 4, 9, 16]", "328350", "PENDING True"], (
            said.stderr + (folder / "log").read_text()
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(WAIT_S * patience())
        wait_until(lambda: not session_of(worker.pid), WAIT_S, what="the end of the worker")
        subprocess.run([sys.executable, "-m", "warren", "stop", "examples-data"], cwd=folder, timeout=120, check=True)


@pytest.mark.integration
def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data"):
        for number, snippet in enumerate(SNIPPETS):
            script = tmp_path / f"snippet{number}.py"
            script.write_text(snippet.code)
            done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
