"""Reading files that may go, or be cut, while they are read. They are read and never mapped: one that somebody cuts is
damage, and no signal.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

from warren.engine.kernel import atomic_file, data_files, segment
from warren.workers.spark.files.directory import Directory


class Gone(Exception):
    """A file is not there any more."""

    @staticmethod
    def status(directory: Directory) -> str:
        """What is said of it: a running node removes files, a stopped one does not."""
        return "gone" if directory.running else "missing"


class opened:
    """A descriptor of a file; None: it is not there. Raises StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def __enter__(self) -> int | None:
        try:
            self._fd = segment.again(lambda: data_files.open(self._path, os.O_RDONLY))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise atomic_file.explain(error, f"cannot open {self._path}") from error
        return self._fd

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise atomic_file.explain(error, f"the disk cannot read {self._path}") from error


def read_at(fd: int, at: int, size: int, into: memoryview | None = None) -> memoryview:
    """`size` bytes of a file from a place on, fewer where it ends. Raises OSError."""
    view = memoryview(bytearray(size)) if into is None else into[:size]
    got = 0
    while got < size:
        n = segment.again(lambda: os.preadv(fd, [view[got:]], at + got))  # noqa: B023 - called at once
        if n == 0:
            break
        got += n
    return view[:got]
