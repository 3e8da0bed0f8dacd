"""The lists of store files on disk: written beside their files, read, compared, and asked where messages lie.

A list is bound to its file by number and salt, and checksummed. It goes before its file does: a list without a file
says that the file is lost.
"""

from __future__ import annotations

import bisect
from pathlib import Path

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import KIND_MESSAGE, LIST_HEADER
from warren.engine.store.folder import data_path, list_path


def write_list(folder: Path, node_id: int, owner: int, file_list: _core.FileList) -> None:
    """Write the list of a file, atomically, if the file is still there. Raises StoreError."""
    data = data_path(folder, file_list.file)
    path = list_path(folder, file_list.file)
    if data.exists():
        atomic_file.replace(path, file_list.encode(node_id, owner))
        if not data.exists():  # a list without a file means that the file is lost
            data_files.unlink(path, missing_ok=True)


def read_list(folder: Path, node_id: int, owner: int, file: int, salt: int, file_bytes: int) -> _core.FileList | None:
    """The list of a file; None: it has none that is good."""
    try:
        found = _core.decode_list(data_files.read(list_path(folder, file)), node_id, owner, file, salt, file_bytes)
    except OSError:
        return None
    return None if isinstance(found, str) else found


def list_alone(path: Path, node_id: int, owner: int, file: int) -> _core.FileList | None:
    """A list by itself, whatever its file is: to say what was lost, or to mend it."""
    try:
        data = data_files.read(path)
    except OSError:
        return None
    if len(data) < LIST_HEADER.size:
        return None
    found = _core.decode_list(data, node_id, owner, file, LIST_HEADER.unpack(data, "salt"), 1 << 40)
    return None if isinstance(found, str) else found


def same_items(one: _core.FileList, other: _core.FileList) -> bool:
    """Do two lists of a file name the same records?"""
    if (one.messages, one.controls, one.message_bytes) != (other.messages, other.controls, other.message_bytes):
        return False
    # As a rule they are the same byte for byte, but for the head; else the one may have been made in another way.
    same = one.encode(0, 0)[LIST_HEADER.size :] == other.encode(0, 0)[LIST_HEADER.size :]
    return same or one.items() == other.items()


class Places:
    """Where the messages of a file lie, by its list."""

    def __init__(self, listed: _core.FileList) -> None:
        self._messages = [item[:3] for item in listed.items() if item[5] == KIND_MESSAGE]
        self._starts = [offset for _id, offset, _total in self._messages]

    def within(self, start: int, end: int) -> list[bytes]:
        """Ids of the messages that lie in a part of the file, if only partly."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        return [id for id, offset, total in self._messages[first:last] if offset + total > start]
