"""Parts: what one task stages of a batch, a file of frames (engine/kernel/frame.py).

    magic `WRNTXN01`, salt:8, then frames: sequence 1, 2, …; extra: rows; body: msgpack of `Rows`

A frame is rows of one destination, in their order, small enough to be appended with one call. The salt is random and
seeds each checksum. A part counts when a commit names it, with its size, frames and messages; `verify` looks whether
all of that is there. Nobody else ever reads one.

Crash points: until `close` has returned the part is nothing; it and its name are durable then. A writer holds a shared
flock on its part, so that who collects old parts knows the living ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.errors import CorruptRecord, LimitError
from warren.engine.kernel import atomic_file, data_files, frame
from warren.engine.kernel.formats import KIND_MESSAGE, PART_HEADER_BYTES, PART_MAGIC
from warren.engine.saying import counted
from warren.engine.transactions.folder import PartName, SinkFolder

#: of a frame: so much is appended to a queue of a topic in one piece
ROWS_MAX, BYTES_MAX = 1024, 128 << 10
#: what a task holds, over all destinations
HELD_BYTES_MAX = 16 << 20
WRITE_BYTES = 1 << 20
PART_BYTES_MAX = 1 << 40
#: of a batch
DESTINATIONS_MAX = 10_000
#: what a row costs beside its body
_ROW_BYTES = 64


class Destination(msgspec.Struct, frozen=True, array_like=True):
    """Where rows go. `id` tells what was there when they were staged from another thing of that name."""

    kind: str  #: "topic" or "queue"
    name: str
    id: int
    queue: int = 0  #: of a topic


class Rows(msgspec.Struct, array_like=True):
    """Rows of one destination; `keys`, `tags`, `properties`: None, or one for each. For a topic keys are text, and
    properties a dict; for a queue bytes, and a list of pairs.
    """

    destination: Destination
    bodies: list[bytes]
    keys: list[Any] | None = None
    tags: list[str | None] | None = None
    properties: list[Any] | None = None

    def behind(self, n: int) -> Rows:
        """Without the first n."""
        cut = [None if each is None else each[n:] for each in (self.keys, self.tags, self.properties)]
        return Rows(self.destination, self.bodies[n:], *cut)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What a commit says of a part."""

    name: str
    bytes: int
    frames: int
    messages: int
    destinations: tuple[tuple[Destination, int], ...]  #: and messages of each


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Rows)


class _Held:
    """Rows of a destination that are not in the file yet."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[Any] = []
        self.tags: list[str | None] = []
        self.properties: list[Any] = []
        self.bytes = 0


class PartWriter:
    """Writes the part of one task: with PartWriter(…) as writer: writer.add(…); writer.close(). Without `close` the
    block removes it."""

    def __init__(self, folder: SinkFolder, name: PartName) -> None:
        self.path = folder.staged / str(name)
        self._salt = secrets.randbits(64)
        self._held: dict[Destination, _Held] = {}
        self._held_bytes = 0
        self._counts: dict[Destination, int] = {}
        self._frames = 0
        self._buffer = bytearray(PART_MAGIC + self._salt.to_bytes(8, "big"))
        self._written = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with atomic_file.file_explained(f"cannot stage rows in {self.path}"):
            self._descriptor = data_files.open(self.path, flags, folder.file_mode)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_told: object) -> None:
        if self._descriptor >= 0:
            self.discard()

    def add(
        self,
        destination: Destination,
        body: bytes,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: dict[str, str] | list[tuple[str, bytes | str | None]] | None = None,
    ) -> bool:
        """A row; true: it was the last of a frame. Raises StoreError and its kinds, LimitError."""
        held = self._held.get(destination)
        if held is None:
            held = self._held[destination] = _Held()
            if len(self._counts) > DESTINATIONS_MAX:
                raise LimitError(f"a batch has at most {counted(DESTINATIONS_MAX, 'destination')}: write it in parts")
        held.bodies.append(body)
        held.keys.append(key)
        held.tags.append(tag)
        held.properties.append(properties)
        size = len(body) + _ROW_BYTES
        if key is not None:
            size += len(key)
        if properties:
            pairs = properties.items() if isinstance(properties, dict) else properties
            size += sum(len(name) + len(value or "") for name, value in pairs)
        held.bytes += size
        self._held_bytes += size
        if len(held.bodies) >= ROWS_MAX or held.bytes >= BYTES_MAX:
            self._frame(destination)
            return True
        if self._held_bytes >= HELD_BYTES_MAX:
            self._frame_all()
            return True
        return False

    def _frame_all(self) -> None:
        for destination in list(self._held):
            self._frame(destination)

    def _frame(self, destination: Destination) -> None:
        """Rows of a destination become a frame."""
        held = self._held.pop(destination)
        self._held_bytes -= held.bytes
        told = [given if any(each is not None for each in given) else None for given in _columns(held)]
        body = _encoder.encode(Rows(destination, held.bodies, *told))
        self._frames += 1
        rows = len(held.bodies)
        self._counts[destination] = self._counts.get(destination, 0) + rows
        self._buffer += frame.encode(KIND_MESSAGE, body, salt=self._salt, sequence=self._frames, extra=rows)
        if len(self._buffer) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._written + len(self._buffer) > PART_BYTES_MAX:
            raise LimitError(f"a task stages at most {PART_BYTES_MAX} bytes: use more partitions")
        with atomic_file.file_explained(f"cannot stage rows in {self.path}"):
            atomic_file.write_all(self._descriptor, self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer.clear()

    def close(self) -> Part:
        """All of it is durable when this returns. Raises StoreError and its kinds."""
        self._frame_all()
        self._write()
        try:
            os.fsync(self._descriptor)
            atomic_file.sync_directory(self.path.parent)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot stage rows in {self.path}", syncing=True) from error
        os.close(self._descriptor)
        self._descriptor = -1
        counts = tuple(self._counts.items())
        return Part(self.path.name, self._written, self._frames, sum(n for _each, n in counts), counts)

    def discard(self) -> None:
        """Nothing of it stays."""
        os.close(self._descriptor)
        self._descriptor = -1
        with contextlib.suppress(OSError):  # then it is collected
            data_files.unlink(self.path)


def _columns(held: _Held) -> tuple[Any, ...]:
    return held.keys, held.tags, held.properties


class PartReader:
    """Reads a part that a commit names: with PartReader(folder, part) as reader: for rows in reader: …"""

    def __init__(self, folder: SinkFolder, part: Part) -> None:
        """Raises StoreError, CorruptRecord: it is not there, or not as long as it was."""
        self.path = folder.staged / part.name
        self._part = part
        with atomic_file.file_explained(f"cannot read what was staged in {self.path}"):
            try:
                descriptor = data_files.open(self.path, os.O_RDONLY, anyones=True)
            except FileNotFoundError:
                raise self._corrupt(0, f"{part.bytes} bytes", "no file") from None
            try:
                size = os.fstat(descriptor).st_size
                if size != part.bytes or size < PART_HEADER_BYTES:
                    raise self._corrupt(min(size, part.bytes), f"{part.bytes} bytes", f"{size} bytes")
                self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        head = self._map[:PART_HEADER_BYTES]
        if head[: len(PART_MAGIC)] != PART_MAGIC:
            self._map.close()
            raise self._corrupt(0, PART_MAGIC.decode(), head[: len(PART_MAGIC)].hex())
        self._salt = int.from_bytes(head[len(PART_MAGIC) :], "big")

    def _corrupt(self, at: int, expected: str, found: str) -> CorruptRecord:
        advice = (
            "rows that were staged are damaged; before their commit Spark repeats the batch, after it the batch cannot "
            "be finished: put the file back, or give the batch up with `warren transactions DIR --forget SINK --force`"
        )
        return CorruptRecord(self.path, at, expected, found, advice)

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, *_told: object) -> None:
        with contextlib.suppress(BufferError):  # a traceback has a frame's body in its hands
            self._map.close()

    def _frames(self) -> Iterator[tuple[int, frame.Frame]]:
        at, number = PART_HEADER_BYTES, 0
        while at < self._part.bytes:
            found = frame.check(self._map, at, self._salt)
            number += 1
            if found is None or found.sequence != number:
                what = frame.why_not(self._map, at, self._salt) if found is None else f"frame {found.sequence}"
                raise self._corrupt(at, f"frame {number}", what or "none")
            yield at, found
            at += found.total
        if number != self._part.frames:
            raise self._corrupt(at, f"{self._part.frames} frames", str(number))

    def verify(self) -> None:
        """Look at all of it. Raises CorruptRecord."""
        messages = sum(found.extra for _at, found in self._frames())
        if messages != self._part.messages:
            raise self._corrupt(0, f"{self._part.messages} messages", str(messages))

    def __iter__(self) -> Iterator[Rows]:
        for at, found in self._frames():
            with frame.body(self._map, at, found.total) as body:
                rows = _decoder.decode(body)
            yield rows


def is_written(path: Path) -> bool:
    """Whether a living task writes this part."""
    try:
        descriptor = data_files.open(path, os.O_RDONLY, anyones=True)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def totals(parts: Sequence[Part]) -> dict[Destination, int]:
    """Messages of each destination, in the order in which they come first."""
    found: dict[Destination, int] = {}
    for part in parts:
        for destination, messages in part.destinations:
            found[destination] = found.get(destination, 0) + messages
    return found
