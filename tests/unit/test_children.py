"""Goal: who is killed from outside comes back at once; who dies while it comes up is started later and later."""

from pathlib import Path

import pytest

from warren.workers import children, lack


def role(vital: bool = True) -> children.Role:
    return children.Role("store", "store", 0, (0, 1) if vital else (), lambda _pidfd: 0, Path("log"))


def delays(died: children.Role, served: list[bool], every_s: float = 1.0) -> list[float | None]:
    """What is waited after each death."""
    found: list[float | None] = []
    for number, up in enumerate(served):
        now = number * every_s
        children.record_death(died, now, up)
        found.append(None if died.restart_at is None else pytest.approx(died.restart_at - now))
    return found


def test_deaths_while_it_comes_up_double_the_wait() -> None:
    assert delays(role(), [False] * 9) == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


def test_deaths_after_it_came_up_are_free_at_first() -> None:
    assert delays(role(), [True] * 8) == [0, 0, 0, 0, 0.1, 0.2, 0.4, 0.8]
    assert delays(role(), [True, True, False, False, True]) == [0, 0, 0.1, 0.2, 0.2]


def test_old_deaths_are_forgotten() -> None:
    assert delays(role(), [False] * 20, children.DEATHS_WINDOW_S) == [0] * 20


def test_too_many_deaths_are_the_end_of_a_vital_role_only() -> None:
    for vital in (True, False):
        died = role(vital)
        last = delays(died, [True] * children.DEATHS_MAX)[-1]
        assert died.failed == vital
        assert (last is None) == vital


def test_a_server_without_space_is_tried_for_as_long_as_that_lasts() -> None:
    died = role()
    delays(died, [True] * 3)
    died.lack = lack.DISK
    assert delays(died, [False] * 3 * children.DEATHS_MAX) == [children.LACK_EVERY_S] * 3 * children.DEATHS_MAX
    assert not died.failed
    died.lack = 0
    assert delays(died, [True]) == [0]
