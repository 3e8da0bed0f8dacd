"""The register of a folder's files: `files` of a queue worker and of the persistent store (formats.FILES_HEADER).

A file that is missing looks like one that was never there: its messages would be gone without a word, and acked ones
back. So each file stands in this list from when something relies on it until it may go. When that is, the
owner of the folder says (engine/queues/folder.py, engine/store/recovery.py).

Invariants
  What is listed is there: a file gets its durable name before it is listed, and leaves the list before it is unlinked.
  A start writes the list anew when it is not what it should be, after it has told what is missing. Between, records
  are appended and synced.
  What is gone on with is written again and synced first: who wrote it may have been killed before its sync, or that
  may have failed. Else files whose leaving was only in the page cache would be unlinked, and after a loss of power be
  missed.
  Writers: the owner, from the thread at hand; without one, a move or a repair. Never on the path of messages.
Crash points: after each append (a file that is there and not listed is of no matter: what it replaces is still there,
or what undoes it, or nothing was appended to it); within one: any part of it may be there, which `before` tells from
damage; within a rewriting: the old list or the new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from warren.engine import _core
from warren.engine.errors import FormatVersionError
from warren.engine.kernel import atomic_file, data_files, quarantine, segment, unsynced
from warren.engine.kernel.formats import FILES_HEADER, FILES_MAGIC, FILES_RECORD, FILES_VERSION

REWRITE_FACTOR, REWRITE_MIN = 4, 4096  #: so many records of a file on average, and in all, before the list is rewritten
SLACK_BYTES = 1 << 16  #: written behind a list, so that files can leave it, and make room, on a full disk
_RECORD = struct.Struct(">BB?xIIQQQQ")  # behind the CRC
_SEED = struct.Struct(">QQ")
assert _RECORD.size + 4 == FILES_RECORD.size

#: (LISTED_…, queue id or 0, number)
Key = tuple[int, int, int]


class Entry(NamedTuple):
    """What is known of a listed file; names as in formats.FILES_RECORD."""

    salt: int = 0
    end: int = 0
    messages: int = 0
    sealed: bool = False


@dataclass
class Listed:
    """A list as it was read."""

    there: bool = False  #: there is such a file
    entries: dict[Key, Entry] = field(default_factory=dict)
    problem: str = ""  #: what is wrong with the list itself, for people
    torn: bool = False  #: a part of the last append is missing: it was not synced, and nothing relies on it


# ---- the list -------------------------------------------------------------------------------------------------------


def encode(node_id: int, owner: int, salt: int, entries: Mapping[Key, Entry]) -> bytes:
    """A whole list."""
    header = bytearray(FILES_HEADER.size)
    FILES_HEADER.set_bytes(header, "magic", FILES_MAGIC)
    names = {"version": FILES_VERSION, "node_id": node_id, "owner": owner, "salt": salt, "records": len(entries)}
    for name, value in names.items():
        FILES_HEADER.pack_into(header, name, value)
    FILES_HEADER.pack_into(header, "crc", _core.crc32c(header[:12] + header[16:]))
    return bytes(header) + b"".join(
        _records(salt, number, [(key, 1, entry)]) for number, (key, entry) in enumerate(entries.items())
    )


def _records(salt: int, first: int, changes: Iterable[tuple[Key, int, Entry]]) -> bytes:
    """The records of one append, of which `first` is the number of the first."""
    parts = []
    for before, ((kind, queue, file), there, entry) in enumerate(changes):
        body = _RECORD.pack(kind, there, entry.sealed, queue, entry.messages, file, entry.salt, entry.end, before)
        crc = _core.crc32c(body, _core.crc32c(_SEED.pack(salt, first + before)))
        parts.append(crc.to_bytes(4, "big") + body)
    return b"".join(parts)


def _decode(content: bytes, node_id: int, owner: int) -> tuple[Listed, int, int]:
    """(list, salt, records)."""
    listed = Listed(True)
    head = content[: FILES_HEADER.size]
    if len(head) < FILES_HEADER.size or head[:8] != FILES_MAGIC:
        listed.problem = "is no list of files"
        return listed, 0, 0
    version = FILES_HEADER.unpack(head, "version")
    if FILES_HEADER.unpack(head, "crc") != _core.crc32c(head[:12] + head[16:]):
        listed.problem = "has a damaged head"
        return listed, 0, 0
    if version > FILES_VERSION:
        raise FormatVersionError(
            f"a list of files has version {version}, this Warren reads up to {FILES_VERSION}: "
            "open the directory with the Warren that wrote it, or a newer one"
        )
    if (FILES_HEADER.unpack(head, "node_id"), FILES_HEADER.unpack(head, "owner")) != (node_id, owner):
        listed.problem = "is the list of another worker or another directory"
        return listed, 0, 0
    salt, wanted = FILES_HEADER.unpack(head, "salt"), FILES_HEADER.unpack(head, "records")
    n, wrong, pending = 0, 0, 0
    append, torn = 0, 0  # where the last append begins, and what it lacks: that it was ever synced nobody can say
    for at in range(FILES_HEADER.size, len(content) - FILES_RECORD.size + 1, FILES_RECORD.size):
        number = (at - FILES_HEADER.size) // FILES_RECORD.size
        body = content[at + 4 : at + FILES_RECORD.size]
        crc = _core.crc32c(body, _core.crc32c(_SEED.pack(salt, number)))
        if crc != int.from_bytes(content[at : at + 4], "big"):
            pending += 1
            continue
        kind, there, sealed, queue, messages, file, of, end, before = _RECORD.unpack(body)
        if number - before > append:
            wrong, append, torn = wrong + torn, number - before, 0
        of_it = min(pending, before)
        wrong, torn, pending, n = wrong + pending - of_it, torn + of_it, 0, number + 1
        if there:
            listed.entries[kind, queue, file] = Entry(of, end, messages, sealed)
        else:
            listed.entries.pop((kind, queue, file), None)
    if wrong or n < wanted:
        listed.problem = f"has lost {wrong + max(0, wanted - n)} of its records"
    listed.torn = torn > 0
    return listed, salt, n


def _content(path: Path) -> bytes:
    """All of a list; what is no file is no list. Raises OSError."""
    return b"" if data_files.instead(path) else data_files.read(path)


def read(path: Path, node_id: int, owner: int) -> Listed:
    """The list of a folder; nothing is changed. Raises FormatVersionError, StoreError."""
    try:
        return _decode(_content(path), node_id, owner)[0]
    except FileNotFoundError:
        return Listed()
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error


class FileRegister:
    """The register that a process writes. Any thread."""

    def __init__(self, path: Path, node_id: int, owner: int) -> None:
        self.path = path
        self._node_id, self._owner = node_id, owner
        self._lock = threading.Lock()
        self._entries: dict[Key, Entry] = {}
        self._salt = 0
        self._records_n = 0
        self._whole = False  #: what is on disk is what is known here: it can be appended to

    def load(self) -> Listed:
        """Go on with the list that is there, and make it durable. Raises FormatVersionError, SyncFailed, StoreError."""
        with self._lock:
            try:
                if data_files.instead(self.path):
                    return _decode(b"", self._node_id, self._owner)[0]
                content = data_files.read(self.path)
            except FileNotFoundError:
                return Listed()
            except OSError as error:
                raise atomic_file.explain(error, f"cannot read {self.path}") from error
            listed, self._salt, self._records_n = _decode(content, self._node_id, self._owner)
            unsynced.write_again(self.path, 0, FILES_HEADER.size + self._records_n * FILES_RECORD.size)
            segment.sync_directory(self.path.parent)
            self._entries = dict(listed.entries)
            self._whole = not listed.problem and not listed.torn
            return listed

    def begin(self, entries: Mapping[Key, Entry], directories: Iterable[Path]) -> None:
        """Begin the list anew. Raises DiskFull, SyncFailed, StoreError; then the old one stands for now.

        `directories`: of files that are listed for the first time. They are synced before: who gave a file its name
        may have been killed before it was durable.
        """
        for directory in directories:
            segment.sync_directory(directory)
        if what := data_files.instead(self.path):
            quarantine.move(self.path.parent, self.path, f"{what} lay in the place of the list of files")
        with self._lock:
            self._entries, self._whole = dict(entries), False
            self._replace(dict(entries))

    def known(self, key: Key) -> Entry | None:
        """What the list says of a file."""
        with self._lock:
            return self._entries.get(key)

    def note(self, there: Mapping[Key, Entry] | None = None, gone: Iterable[Key] = ()) -> None:
        """Files that are there, or have changed, and files that are about to go, durably.

        Raises DiskFull, SyncFailed, StoreError; then nothing that depends on it may be done, and it can be repeated.
        """
        with self._lock:
            leaving = [key for key in gone if key in self._entries]
            there = there or {}
            if not there and not leaving:
                return
            n = self._records_n + len(there) + len(leaving)
            if not self._whole or n > REWRITE_MIN + REWRITE_FACTOR * len(self._entries):
                entries = self._entries | dict(there)
                for key in leaving:
                    del entries[key]
                self._replace(entries)
                return
            changes = [*((key, 1, entry) for key, entry in there.items()), *((key, 0, Entry()) for key in leaving)]
            self._append(_records(self._salt, self._records_n, changes))
            self._entries |= there
            for key in leaving:
                del self._entries[key]
            self._records_n = n

    def _append(self, content: bytes) -> None:
        at = FILES_HEADER.size + self._records_n * FILES_RECORD.size
        syncing = False
        try:
            fd = data_files.open(self.path, os.O_WRONLY)
            try:
                try:
                    atomic_file.write_all(fd, content, at)
                    syncing = True
                    os.fdatasync(fd)
                except OSError:
                    self._whole = False  # what stands there now nobody knows: the next change writes the list anew
                    with contextlib.suppress(OSError):
                        os.ftruncate(fd, at)
                    raise
            finally:
                os.close(fd)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot write {self.path}", syncing=syncing) from error

    def _replace(self, entries: dict[Key, Entry]) -> None:
        salt = secrets.randbits(64)
        self._whole = False
        atomic_file.replace(self.path, encode(self._node_id, self._owner, salt, entries) + bytes(SLACK_BYTES))
        self._entries, self._salt, self._records_n, self._whole = entries, salt, len(entries), True
