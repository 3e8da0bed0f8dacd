"""Goal: what docs/topics.md shows works. Method: it is run, in order, in one directory; test_types.py checks types."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.real_node import RealNode
from support.snippets import ROOT, snippets
from support.waiting import patience

pytestmark = pytest.mark.integration

EXAMPLES = [(snippet.heading, snippet.code) for snippet in snippets(ROOT / "docs/topics.md")]
SAID = {
    "Appending": "0\n[{0}, {1}, {2}]\n1000\n",
    "Later": "-1\nb'closed'\n",
    "Prepare and commit": "0 True\n",
    "Reading": "[0, 1, 2] 3\nb'EWR 05:17' UA IAH\nTrue\n",
    "Groups": "[('report', 0)]\n",
    "Trying again": "[(b'closed', '3', 1)]\n",
    "Dead letters": "3 True\n",
    "Arrow": "2\n3\n",
    "Together with queues": "b'one book'\norder.new 12.5\nTrue\n",
    "Replay": "1 order.new 12.5 ['ada']\n0\n",
    "In asyncio": "100\nTrue\n",
    "Keeping and removing": "1 (0, 1)\n",
    "The newest of each key": "b'14C'\n{'ada': b'14C'}\n",
}


def test_the_examples_run_and_say_what_they_should(tmp_path: Path) -> None:
    assert [heading for heading, _code in EXAMPLES] == list(SAID)
    with RealNode(tmp_path / "data"):
        for heading, code in EXAMPLES:
            script = tmp_path / "example.py"
            script.write_text(code)
            done = subprocess.run(
                [sys.executable, "-W", "error", str(script)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60 * patience(),
            )
            assert done.returncode == 0, done.stderr
            said = SAID[heading]
            if heading == "Appending":
                first = int(done.stdout.split("[")[1].split(",")[0])
                said = said.format(first, first + 1, first + 2)
            assert done.stdout == said, heading
