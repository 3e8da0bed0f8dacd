"""The mark of a stop in good order, `clean`: it names the files and the next number, and goes before work begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files, quarantine, segment
from warren.engine.store.folder import CLEAN

MARK_VERSION = 2


class CleanMark(msgspec.Struct):
    """Content of `clean`."""

    version: int
    node_id: int
    owner: int
    next_file: int
    files: list[int]
    crc: int = 0


def save(folder: Path, node_id: int, owner: int, next_file: int, files: Iterable[int]) -> None:
    """Write the clean mark, last of all. Raises StoreError."""
    mark = CleanMark(MARK_VERSION, node_id, owner, next_file, sorted(files))
    mark.crc = _core.crc32c(msgspec.json.encode(mark))
    atomic_file.replace(folder / CLEAN, msgspec.json.encode(mark))


def read(folder: Path, node_id: int, owner: int) -> CleanMark | None:
    """The clean mark, if it is whole and of this store."""
    try:
        mark = msgspec.json.decode(data_files.read(folder / CLEAN), type=CleanMark)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    crc, mark.crc = mark.crc, 0
    if crc != _core.crc32c(msgspec.json.encode(mark)):
        return None
    return mark if (mark.version, mark.node_id, mark.owner) == (MARK_VERSION, node_id, owner) else None


def forget(folder: Path) -> None:
    """Remove the mark, durably: from here on the directory counts as in use."""
    if what := data_files.instead(folder / CLEAN):
        quarantine.move(folder, folder / CLEAN, f"{what} lay in the place of the clean mark")
    try:
        data_files.unlink(folder / CLEAN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise atomic_file.explain(error, f"cannot remove {folder / CLEAN}") from error
    segment.sync_directory(folder)
