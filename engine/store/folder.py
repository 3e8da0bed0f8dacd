"""The folder of a store: names of its files, and the spares among them.

    DIR/store/persistent, DIR/store/transient
      <n>.rdq        a segment file: data
      <n>.lst        what a file holds, without the bodies (LIST_… in engine/kernel/formats.py)
      <n>.free       a spare
      <n>.lost       what a collection could not copy, beside its output, until that counts (engine/store/job.py)
      <name>.new     any of them until it counts
      files          which of them there are (engine/kernel/file_register.py): one is missed after a kill, too
      clean          the mark (JSON) of a stop in good order
      epoch          the last start that used the folder (workers/node/absence.py)
      quarantine/    what could not be served (engine/kernel/quarantine.py)

Invariants
- A spare is a file of the store that went, kept for its space. Its contents mean nothing, whatever they are. The next
  file takes it: a header page with a new salt is written to it and synced, then it is renamed (segment.create). So the
  records it held never validate again, and its name says what it is at each moment.
- A list lies beside its file, and goes before it.
`recycle` renames or unlinks; only a sync of the directory makes that durable, and only then may the header of the spare
change: `segment.create` syncs the directory first, since after a power loss the old name would stand on the new
contents.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from warren.engine.kernel import atomic_file, data_files, file_register, segment
from warren.engine.kernel.formats import LISTED_STORE
from warren.engine.kernel.quarantine import QUARANTINE
from warren.engine.kernel.segment import unfinished_path

DATA, LIST, SPARE, LOST = ".rdq", ".lst", ".free", ".lost"
CLEAN = "clean"
FILES = "files"
STAMP = "epoch"  #: the last start that used the folder (workers/node/absence.py)
#: files of a store's folder beside its segments
OWN_NAMES = frozenset(name + suffix for name in (CLEAN, FILES, STAMP) for suffix in ("", atomic_file.NEW_SUFFIX))


def data_path(folder: Path, number: int) -> Path:
    """`<n>.rdq`"""
    return folder / f"{number}{DATA}"


def list_path(folder: Path, number: int) -> Path:
    """`<n>.lst`"""
    return folder / f"{number}{LIST}"


def losses_path(folder: Path, number: int) -> Path:
    """`<n>.lost`"""
    return folder / f"{number}{LOST}"


def output_paths(folder: Path, number: int) -> list[Path]:
    """What a collection that was given up may have left."""
    paths = (data_path(folder, number), list_path(folder, number), losses_path(folder, number))
    return [unfinished_path(path) for path in paths]


def remove_leftovers(folder: Path) -> int:
    """Before a start: outputs of collections that were never committed. Raises StoreError, OSError."""
    found = 0
    for suffix in (DATA, LIST, LOST):
        for path in segment.list_files(folder, suffix).unfinished:
            data_files.unlink(path, missing_ok=True)
            found += 1
    return found


def key_of(number: int) -> file_register.Key:
    """A store's file in the list of files."""
    return LISTED_STORE, 0, number


class Listing(NamedTuple):
    """The files of a store."""

    files: list[tuple[int, Path]]  #: by rising number
    foreign: list[Path]  #: not ours: never touched, to be reported
    unfinished: list[Path]  #: left by a `create` or a collection that was killed: to be removed
    lists: dict[int, Path]  #: with or without their file
    spares: list[tuple[int, Path]]


def list_files(folder: Path) -> Listing:
    """What lies in a store's folder. Raises StoreError when it cannot be read."""
    found = segment.list_files(folder, DATA, LIST, SPARE)
    aside = folder / QUARANTINE
    foreign = [path for path in found.foreign if path != aside or not path.is_dir() or path.is_symlink()]
    return Listing(found.files, foreign, found.unfinished, dict(found.beside[LIST]), found.beside[SPARE])


class Spares:
    """The spares of one folder, for the one process that writes to it; any thread.

    The folder is read once: it may hold thousands of files, and new ones are wanted all the time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._paths: deque[Path] | None = None

    def _known(self) -> deque[Path]:
        if self._paths is None:
            self._paths = deque(path for _number, path in list_files(self.folder).spares)
        return self._paths

    def read(self) -> None:
        """Read the folder now, not at the first use. Raises StoreError."""
        with self._lock:
            self._known()

    def __len__(self) -> int:
        with self._lock:
            return len(self._known())

    def take(self) -> Path | None:
        """One that is the caller's from now on; None: there is none."""
        with self._lock:
            return self._known().popleft() if self._known() else None

    def keep(self, path: Path, most: int) -> bool:
        """Make a file a spare when there are fewer than `most`. Raises OSError."""
        with self._lock:
            if len(self._known()) >= most:
                return False
            spare = path.with_suffix(SPARE)
            data_files.rename(path, spare)
            self._known().append(spare)
            return True


def recycle(path: Path, size: int, spares: Spares, most: int) -> bool:
    """A store's file goes: it becomes one of the spares when there are fewer than `most`, else it is unlinked.

    Returns False when it was gone. Its list must be gone before. Durable with the next sync of the directory.
    Raises StoreError, PermissionRefused.
    """
    try:
        # Files of another size (a changed setting) are of no use.
        if path.stat().st_size != size or not spares.keep(path, most):
            data_files.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise atomic_file.explain(error, f"cannot recycle {path}") from error
    return True
