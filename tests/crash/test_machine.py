"""The store against a dictionary, with kills and restarts among the steps: a Hypothesis state machine.

Goal: whatever two clients do in whatever order, and whoever is killed in between, every read is what a dictionary says.
Method: tools/crash/machine.py with few examples; `python -m warren.tools.crash machine --examples N` runs more, and
WARREN_MACHINE_EXAMPLES makes this test do so.
"""

import os
from pathlib import Path

import pytest

from warren.tools.crash import machine


@pytest.mark.crash
@pytest.mark.integration
def test_the_store_is_a_dictionary(tmp_path: Path) -> None:
    examples = int(os.environ.get("WARREN_MACHINE_EXAMPLES", "8"))
    found = machine.run(tmp_path, examples, 40, shrink=False)
    assert found.steps > examples * 10
    assert found.kills > examples
