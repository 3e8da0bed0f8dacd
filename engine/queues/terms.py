"""The terms of queues on disk: who was delivered how often.

    terms                    of all queues of a worker: the clean mark, written last of all and removed by a start
    segments/<queue>/terms   of a queue that was moved here

Both are sealed: magic, CRC32 of the body, body (engine/kernel/formats.py). One that is not whole is none.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import msgspec

from warren.engine import _core
from warren.engine.kernel import atomic_file
from warren.engine.kernel.formats import FORMAT_VERSION
from warren.engine.queues.folder import Folder
from warren.engine.queues.recovered import Recovered

TERMS_MAGIC, QUEUE_TERMS_MAGIC = b"WRNTERM1", b"WRNQTRM1"


class Terms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of `terms`. `queues`: id → (next sequence, packed sequence:8 | delivery_count:4 | n:4 of rows that were
    delivered; n: neighbours from this one on that are marked redelivered, 0: this one, not marked)."""

    format_version: int
    node_id: int
    server: int
    file: int
    end: int
    queues: dict[int, tuple[int, bytes]]


class QueueTerms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a moved queue's `terms`. `next`: the sequence that it goes on with; `rows`: as in Terms; `keys`: what
    its window of deduplication held, rows of a KEYS frame."""

    format_version: int
    node_id: int
    server: int
    queue: int
    next: int
    rows: bytes
    keys: bytes


def write_terms(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, file: int, end: int) -> None:
    """The clean mark, after everything else is synced. Raises DiskFull, SyncFailed, StoreError."""
    queues = {queue: (engine.stats(queue)[8], engine.terms(queue)) for queue in engine.queues()}
    body = msgspec.msgpack.encode(Terms(FORMAT_VERSION, node_id, server, file, end, queues))
    _seal(folder.terms, TERMS_MAGIC, body)


def write_queue_terms(folder: Folder, terms: QueueTerms) -> None:
    """What a moved queue brings along, durably. Raises DiskFull, SyncFailed, StoreError."""
    path = folder.queue_terms(terms.queue)
    try:
        atomic_file.make_directories(path.parent)
    except OSError as error:
        raise atomic_file.explain(error, f"cannot make {path.parent}") from error
    _seal(path, QUEUE_TERMS_MAGIC, msgspec.msgpack.encode(terms))


def read_terms(folder: Folder, node_id: int, server: int) -> Terms | None:
    """The clean mark, None when there is none that counts."""
    body = _sealed(folder.terms, TERMS_MAGIC)
    if body is None:
        return None
    try:
        terms = msgspec.msgpack.decode(body, type=Terms)
    except msgspec.MsgspecError:
        return None
    return terms if (terms.format_version, terms.node_id, terms.server) == (FORMAT_VERSION, node_id, server) else None


def take_queue_terms(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, queue: int, found: Recovered
) -> None:
    """What a moved queue brought along. It stays beside the segments: what the journal and the clean mark say of the
    same messages is newer, and comes after it."""
    path = folder.queue_terms(queue)
    body = _sealed(path, QUEUE_TERMS_MAGIC)
    if body is None:
        if path.exists():
            found.hurt(folder, path, "not the terms of a moved queue; its marks and last sequence are lost", 0)
        return
    try:
        terms = msgspec.msgpack.decode(body, type=QueueTerms)
    except msgspec.MsgspecError as error:
        found.hurt(folder, path, str(error), 0)
        return
    if (terms.format_version, terms.node_id, terms.server, terms.queue) != (FORMAT_VERSION, node_id, server, queue):
        found.hurt(folder, path, "the terms of another queue", 0)
        return
    engine.set_terms(queue, terms.next, terms.rows)
    engine.set_keys(terms.keys)


def _seal(path: Path, magic: bytes, body: bytes) -> None:
    atomic_file.replace(path, struct.pack(">8sI", magic, zlib.crc32(body)) + body)


def _sealed(path: Path, magic: bytes) -> bytes | None:
    """The body of a sealed file; None: not there, or not whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    if len(content) < 12 or content[:8] != magic:
        return None
    return content[12:] if zlib.crc32(content[12:]) == struct.unpack(">I", content[8:12])[0] else None
