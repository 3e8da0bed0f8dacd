"""Goal: who is killed from outside comes back at once; who dies while it comes up is started later and later."""

import errno
from pathlib import Path

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import StoreError, SystemLimit
from warren.ipc.region import RegionError
from warren.workers.node import children, cold_start
from warren.workers.process import lack


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


def test_a_node_that_cannot_be_looked_for_is_not_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor or memory for its superblock nothing is known of a node: what it has in memory stays."""
    directory = NodeDirectory(tmp_path / "node")
    directory.make()
    directory.lock()
    try:
        node = directory.open_or_make({})
        removed: list[object] = []
        monkeypatch.setattr(cold_start.remains, "remove", lambda *what: removed.append(what))
        for number, kind in ((errno.EMFILE, SystemLimit), (errno.ENOMEM, SystemLimit), (errno.EIO, StoreError)):

            def refuse(_shared_id: int, _hash: int, _owner: int, number: int = number) -> None:
                raise RegionError(number, "refused")

            with monkeypatch.context() as patched:
                patched.setattr(cold_start.Superblock, "attach", refuse)
                with pytest.raises(kind, match="cannot look for the node"):
                    cold_start.find(directory, node, print)
        assert removed == []
        assert cold_start.find(directory, node, print) is None  # there is none
        assert len(removed) == 1
    finally:
        directory.unlock()
