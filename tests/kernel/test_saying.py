"""Goal: what is tried again and again is said once, then each minute with a count; what changes is said at once.

Method: `Repeats` with a clock that the test sets.
"""

import ast
import logging
from pathlib import Path

import pytest

from warren.engine.saying import BURST, EVERY_S, LINES_KEPT, Repeats, Voice

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_one_line_four_times_a_second(clock: Clock) -> None:
    repeats = Repeats(clock)
    said = []
    for _ in range(int(4 * 3 * EVERY_S)):
        said.append(repeats.passed("no new file"))
        clock.now += 0.25
    assert [line for line in said if line] == [
        "no new file",
        "no new file (239 times more in the last 60 s)",
        "no new file (239 times more in the last 60 s)",
    ]


def test_two_lines_in_turn(clock: Clock) -> None:
    repeats = Repeats(clock)
    said = [repeats.passed(f"no file for {n % 2}") for n in range(100)]
    assert len([line for line in said if line]) == 2 * BURST
    clock.now += EVERY_S
    assert repeats.passed("no file for 0") == f"no file for 0 ({50 - BURST} times more in the last 60 s)"
    assert repeats.passed("no file for 1") == f"no file for 1 ({50 - BURST} times more in the last 60 s)"


def test_what_changes_is_said(clock: Clock) -> None:
    repeats = Repeats(clock)
    lines = ["alarm raised", "alarm cleared", "alarm raised", "alarm cleared", "worker 1 died", "worker 2 died"]
    assert [repeats.passed(line) for line in lines] == lines
    clock.now += EVERY_S
    assert repeats.passed("alarm raised") == "alarm raised", "nothing was held back"


def test_no_more_lines_are_kept_than_are_of_use(clock: Clock) -> None:
    repeats = Repeats(clock)
    for n in range(LINES_KEPT * 3):
        assert repeats.passed(f"line {n}")
    assert len(repeats._lines) == LINES_KEPT


def test_a_voice_logs_a_line_once(caplog: pytest.LogCaptureFixture) -> None:
    say = Voice()
    with caplog.at_level(logging.INFO, "warren"):
        for _ in range(10):
            say("no space", logging.WARNING)
        say("ready")
    assert caplog.record_tuples == [
        ("warren.node", logging.WARNING, "no space"),
        ("warren.node", logging.INFO, "ready"),
    ]


def test_processes_of_a_node_print_nothing() -> None:
    """What they say are records of a logger, so that each line has a time, a level and a process."""
    found = {}
    for folder in ("engine", "ipc", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.name == "cli":
                continue  # it speaks to people, through output.py
            calls = [
                node
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            ]
            if calls:
                found[str(path.relative_to(ROOT))] = len(calls)
    assert found == {}
