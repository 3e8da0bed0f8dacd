"""The stamp of a segment `<m>.idx` (formats.QUEUE_SEGMENT_STAMP): how often the file was changed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from warren.engine import _core
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    QUEUE_SEGMENT_ENTRY,
    QUEUE_SEGMENT_STAMP,
    SEGMENT_ENTRY_COUNT,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

STAMP_AT = FILE_HEADER_BYTES + SEGMENT_ENTRY_COUNT * QUEUE_SEGMENT_ENTRY.size
STAMP_BYTES = QUEUE_SEGMENT_STAMP.size
_STAMP_SEED = struct.Struct(">QIQ")


def stamp(salt: int, queue: int, number: int, changes: int) -> bytes:
    """What says how often a segment file was changed."""
    content = bytearray(STAMP_BYTES)
    QUEUE_SEGMENT_STAMP.pack_into(content, "changes", changes)
    seed = _core.crc32c(_STAMP_SEED.pack(salt, queue, number))
    QUEUE_SEGMENT_STAMP.pack_into(content, "crc", _core.crc32c(content[4:], seed))
    return bytes(content)


def changes_of(content: Buffer, salt: int, queue: int, number: int) -> int | None:
    """How often a segment with this stamp was changed; None: nobody can say."""
    content = bytes(content)
    if len(content) < STAMP_BYTES:
        return None
    changes = QUEUE_SEGMENT_STAMP.unpack(content, "changes")
    return changes if stamp(salt, queue, number, changes) == content[:STAMP_BYTES] else None
