"""Data files that go, and their space with them, although processes that only look have them open.

An idle reader keeps its descriptors as long as it lives, and with them gigabytes that no `du` shows. So who removes a
file cuts it when its name is durably gone: a reader finds it shorter than what it looks for, opens anew what it has
open, and finds that it has gone.

A file that has another name keeps its bytes: a copy by links, a spare, a place in quarantine.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType

from warren.engine.kernel import data_files


class Removal:
    """with Removal() as removal: removal.add(path); path.unlink(); sync_directory(path.parent); removal.give_back()"""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __enter__(self) -> Removal:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def add(self, path: Path) -> None:
        """A file that is to go. One that cannot be opened goes as well; its space comes when nobody has it open."""
        with contextlib.suppress(OSError):
            self._descriptors.append(data_files.open(path, os.O_WRONLY))

    def give_back(self) -> None:
        """Their names are gone for good."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):  # then it comes when nobody has it open
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                    os.ftruncate(descriptor, 0)
