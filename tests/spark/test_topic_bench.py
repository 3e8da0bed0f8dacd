"""Goal: `warren bench spark-topic` reads every message, on both sides. Method: few messages; no figure is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import patience

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_both_sides_have_a_limit_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warren.tools.bench", "spark-topic", "--messages", "4000", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)], capture_output=True, text=True, timeout=200 * patience(), check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [cell["workload"] for cell in found] == ["spark-topic-batch", "spark-topic-stream"]
    for cell in found:
        assert cell["messages"] == 4000
        assert len(cell["runs"]) == len(cell["limit_runs"]) == 3
        assert cell["ratio_to_limit"] > 0
    assert list(tmp_path.iterdir()) == []
