"""Files of a folder in which others work: each may be gone, or have another name, when it is looked at."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO


def contents(folder: Path, pattern: str) -> dict[Path, bytes]:
    """What those have that are still there."""
    found: dict[Path, bytes] = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    return found


def sizes(folder: Path, pattern: str) -> dict[Path, tuple[int, int]]:
    """(bytes, bytes for which room is taken) of those that are still there."""
    found: dict[Path, tuple[int, int]] = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            told = path.lstat()
            found[path] = told.st_size, told.st_blocks * 512
    return found


def gone(file: IO[bytes]) -> bool:
    """Whether an open file has no name any more."""
    return not os.fstat(file.fileno()).st_nlink
