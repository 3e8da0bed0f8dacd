"""The terms of queues on disk: who was delivered how often.

    terms                    of all queues of a worker: the clean mark, written last of all and removed by a start
    segments/<queue>/terms   of a queue that was moved here

Both are sealed (engine/kernel/formats.py: SEAL, TERM); the C core makes and takes the terms of one queue.
One that is not whole is none.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from warren.engine import _core
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import FORMAT_VERSION, QUEUE_TERMS_MAGIC, SEAL, TERMS_MAGIC
from warren.engine.queues.folder import Folder
from warren.engine.queues.recovered import Recovered


class Terms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of `terms`. `queues`: id → (next sequence, formats.TERM rows)."""

    format_version: int
    node_id: int
    server: int
    file: int
    end: int
    queues: dict[int, tuple[int, bytes]]


class QueueTerms(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a moved queue's `terms`. `next`: the sequence that it goes on with; `rows`: formats.TERM; `keys`: what
    its window of deduplication held, formats.SEEN_KEY."""

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
    atomic_file.replace(folder.terms, encode(Terms(FORMAT_VERSION, node_id, server, file, end, queues)))


def write_queue_terms(folder: Folder, terms: QueueTerms) -> None:
    """What a moved queue brings along, durably. Raises DiskFull, SyncFailed, StoreError."""
    path = folder.queue_terms(terms.queue)
    try:
        atomic_file.make_directories(path.parent)
    except OSError as error:
        raise atomic_file.explain(error, f"cannot make {path.parent}") from error
    atomic_file.replace(path, encode(terms))


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


def read_queue_terms(folder: Folder, queue: int) -> QueueTerms | None:
    """What a moved queue brought along; None: nothing, or nothing whole. Raises MsgspecError, StoreError."""
    body = _sealed(folder.queue_terms(queue), QUEUE_TERMS_MAGIC)
    return None if body is None else msgspec.msgpack.decode(body, type=QueueTerms)


def take_queue_terms(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, queue: int, found: Recovered
) -> None:
    """What a moved queue brought along. It stays beside the segments: what the journal and the clean mark say of the
    same messages is newer, and comes after it."""
    path = folder.queue_terms(queue)
    if not path.exists():
        return
    try:
        terms = read_queue_terms(folder, queue)
    except msgspec.MsgspecError as error:
        found.hurt(folder, path, str(error), 0)
        return
    if terms is None:
        found.hurt(folder, path, "not the terms of a moved queue; its marks and last sequence are lost", 0)
        return
    if (terms.format_version, terms.node_id, terms.server, terms.queue) != (FORMAT_VERSION, node_id, server, queue):
        found.hurt(folder, path, "the terms of another queue", 0)
        return
    engine.set_terms(queue, terms.next, terms.rows)
    engine.set_keys(terms.keys)


def encode(terms: Terms | QueueTerms) -> bytes:
    """A sealed file."""
    body = msgspec.msgpack.encode(terms)
    seal = bytearray(SEAL.size)
    SEAL.set_bytes(seal, "magic", TERMS_MAGIC if isinstance(terms, Terms) else QUEUE_TERMS_MAGIC)
    SEAL.pack_into(seal, "crc", zlib.crc32(body))
    return bytes(seal) + body


def _sealed(path: Path, magic: bytes) -> bytes | None:
    """The body of a sealed file; None: not there, not whole, or no file."""
    if data_files.instead(path):
        return None
    try:
        content = data_files.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    body = content[SEAL.size :]
    if len(content) < SEAL.size or SEAL.get_bytes(content, "magic") != magic:
        return None
    return body if zlib.crc32(body) == SEAL.unpack(content, "crc") else None
