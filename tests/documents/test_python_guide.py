"""Goal: what docs/python.md shows works. Method: it is run; test_types.py checks its types."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.real_node import RealNode
from support.snippets import ROOT, snippets

pytestmark = pytest.mark.integration

EXAMPLES = [(snippet.heading, snippet.code) for snippet in snippets(ROOT / "docs/python.md")]
SAID = {
    "Queues": "b'two' {'shop': 7} False\nb'three' {} False\nb'four' {} False\n",
    "Bodies for numpy and Arrow": "0.5 1.0\n",
    "Handling messages, with retries": "handled b'plain'\nhandled b'flaky'\nhandled b'last'\nb'by hand'\n",
    "Calls": "b'42'\nqueue 'prices': the function that served the call raised KeyError: 'no such metal'\n",
    "Many queues at once": "1000 b'21.5'\n",
    "Exchanges behind exchanges": "b'open'\n",
    "As `queue.Queue`": "page 0\npage 1\npage 2\nempty\n",
    "The message store": "9000 [b'0', b'1']\nTrue\nNone\n",
    "Other processes": "[0, 1, 4, 9, 16, 25, 36, 49]\n",
    "asyncio": "100\n1\n",
    "Confirms": "stored: True\n",
}


def test_every_face_has_an_example() -> None:
    assert [title for title, _code in EXAMPLES] == list(SAID)


@pytest.mark.parametrize(("title", "code"), EXAMPLES)
def test_an_example_runs_and_says_what_it_should(tmp_path: Path, title: str, code: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    with RealNode(tmp_path / "data"):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(SAID[title]), done.stdout
