"""Goal: a file that goes gives its space back, and no other one; what the system refuses changes nothing else.

Method: files in a folder, open as readers have them; names, links and calls that fail.
"""

import os
from pathlib import Path
from unittest import mock

import pytest

from warren.engine.kernel.removal import Removal

SIZE = 1 << 16


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("gone", "renamed", "linked", "kept")]
    for path in made:
        path.write_bytes(b"x" * SIZE)
    return made


def test_only_what_has_no_name_is_cut(paths: list[Path], tmp_path: Path) -> None:
    gone, renamed, linked, kept = paths
    before = set(os.listdir("/proc/self/fd"))
    files = [path.open("rb") for path in paths]
    (tmp_path / "copy").hardlink_to(linked)
    with Removal() as removal:
        for path in (*paths, tmp_path / "absent", tmp_path):
            removal.add(path)
        gone.unlink()
        linked.unlink()
        renamed.rename(tmp_path / "spare")
        assert [os.fstat(file.fileno()).st_size for file in files] == [SIZE] * 4
        removal.give_back()
    assert [os.fstat(file.fileno()).st_size for file in files] == [0, SIZE, SIZE, SIZE]
    assert kept.stat().st_size == SIZE
    for file in files:
        file.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("call", ["open", "fstat", "ftruncate"])
def test_what_the_system_refuses_leaves_the_space_to_the_last_reader(paths: list[Path], call: str) -> None:
    with paths[0].open("rb") as file, Removal() as removal:
        refused = mock.Mock(side_effect=OSError("refused"))
        with mock.patch.object(os, call, refused):
            removal.add(paths[0])
            os.unlink(paths[0])
            removal.give_back()
        assert refused.called
        assert os.stat(file.fileno()).st_size == SIZE
