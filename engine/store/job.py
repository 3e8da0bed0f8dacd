"""A job of collection: what the store server asks of the collector, and what both do with the files of a store.

The collector writes `<output>.rdq.new`, its list and, if something could not be copied, `<output>.lost.new`; the server
checks them and gives them their names (engine/store/collection.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from warren.engine import _core
from warren.engine.errors import CorruptRecord
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, LIST_HEADER
from warren.engine.store.folder import data_path, list_path


class Source(NamedTuple):
    """A file that is collected or retired, open for reading: whoever has it closes `fd`."""

    fd: int
    list: _core.FileList
    size: int


def open_source(folder: Path, node_id: int, owner: int, number: int) -> Source:
    """A file and what lies in it: by its list, or by reading it all when there is no good list.

    Raises CorruptRecord (neither header nor list can be read), StoreError, OSError.
    """
    fd = data_files.open(data_path(folder, number), os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        try:
            stored = data_files.read(list_path(folder, number))
        except OSError:
            stored = b""
        salt = _salt_of(fd, folder, node_id, owner, number, stored)
        found = _core.decode_list(stored, node_id, owner, number, salt, size) if stored else "none"
        if isinstance(found, str):
            found, _reason = _core.scan_list(number, salt, _read_all(fd, size))
        with contextlib.suppress(OSError):  # from here on whole pages are read, once; a file system may not have it
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        return Source(fd, found, size)
    except BaseException:
        os.close(fd)
        raise


def _salt_of(fd: int, folder: Path, node_id: int, owner: int, number: int, stored: bytes) -> int:
    path = data_path(folder, number)
    try:
        page = os.pread(fd, FILE_HEADER_BYTES, 0)
        return segment.check_header(path, page, kind=FILE_STORE, node_id=node_id, owner=owner, file=number).salt
    except (CorruptRecord, OSError):
        # a damaged header page: the list knows the salt as well, and is checked by its own sum
        if len(stored) >= LIST_HEADER.size:
            return LIST_HEADER.unpack(stored, "salt")
        raise


def _read_all(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = os.preadv(fd, [view[got : got + (8 << 20)]], got)
        if n == 0:
            break
        got += n
    return data


@dataclass
class Job:
    """What the collector is asked to do. Travels as a message."""

    server: int
    store_epoch: int
    output: int
    salt: int
    sources: list[tuple[int, int, int, bool]]  #: file, position_low, position_high, keep every control frame
    bytes: int  #: how much will be copied, about
    paced: bool

    def message(self) -> dict[str, Any]:
        """Fields of the message `collect`."""
        return {**vars(self), "sources": [list(source) for source in self.sources]}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Job:
        """Back from a message. Raises KeyError, TypeError, ValueError on nonsense."""
        sources = [(int(file), int(low), int(high), bool(keep)) for file, low, high, keep in message["sources"]]
        if not sources:
            raise ValueError("a job without sources")
        server, store_epoch = int(message["server"]), int(message["store_epoch"])
        output, salt = int(message["output"]), int(message["salt"])
        return cls(server, store_epoch, output, salt, sources, int(message["bytes"]), bool(message["paced"]))

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What an answer is recognised by."""
        return self.server, self.store_epoch, self.output, self.salt


class Loss(NamedTuple):
    """A record that a collection could not copy."""

    id: bytes
    file: int
    offset: int
    total: int
    reason: str
    kind: int


def write_losses(path: Path, losses: Sequence[tuple[bytes, int, int, int, str, int]]) -> None:
    """What a collection could not copy, beside its output; nothing when it copied all. Raises OSError."""
    data_files.unlink(path, missing_ok=True)
    if losses:
        atomic_file.write_synced(path, msgspec.msgpack.encode(losses))


def read_losses(path: Path) -> list[Loss]:
    try:
        stored = data_files.read(path)
    except FileNotFoundError:
        return []
    try:
        return msgspec.msgpack.decode(stored, type=list[Loss])
    except msgspec.MsgspecError as error:
        raise Failed(f"{path} is not what the collector wrote: {error}") from error


class Failed(Exception):
    """A collection came to nothing; its sources stay as they are."""
