"""The store's index as policy sees it: how large its region is, when it grows, and how readers learn of a new one.

The tables are C's (`engine/store/index.c`): the dense one has a fixed size and gets extents, the hash part grows.
Order of a growth, so that a reader always has a table that is true: new region made (on a helper thread: first touches
of pages take long), filled (the server answers from it), its generation published, the old header marked as replaced,
the old name unlinked. A reader that still maps the old one sees the mark and opens the new one.
"""

from __future__ import annotations

from warren.engine.kernel.protocol import DENSE_TABLE_ROW, INDEX_ENTRY, INDEX_HEADER, INDEX_ROW, PROTOCOL
from warren.ipc import _core as shared
from warren.ipc.layout import PAGE_BYTES

#: a table whose live rows are fewer than this share of it is only cleaned of tombstones, not enlarged
CLEAN = 0.25
#: a table that cannot be enlarged any more takes this share of live rows, and is cleaned of tombstones until then
FULL = 0.7
ROWS_MAX = 1 << 31
#: one extent of the dense part
EXTENT_BYTES = PROTOCOL["DENSE_EXTENT_BLOCKS"] * PROTOCOL["DENSE_BLOCK_ENTRIES"] * INDEX_ENTRY.size


def region_bytes(rows: int) -> int:
    """Size of the region of a table with `rows` rows (a power of two)."""
    return PAGE_BYTES + rows * INDEX_ROW.size


def dense_bytes(blocks: int) -> int:
    """Size of the region of a dense table for so many blocks (a power of two)."""
    return PAGE_BYTES + blocks * DENSE_TABLE_ROW.size


def rows_for(messages: int, least: int) -> int:
    """Rows of a new table that takes `messages` at half load; a power of two, `least` at the least."""
    rows = least
    while rows < 2 * messages:
        rows *= 2
    return min(rows, ROWS_MAX)


def rows_after(rows: int, live: int) -> int:
    """Rows of the table that follows a full one of `rows` rows, `live` of them alive."""
    return rows if live < rows * CLEAN else min(2 * rows, ROWS_MAX)


def mark_replaced(buffer: memoryview) -> None:
    """Tell readers that this table was replaced."""
    shared.store32(buffer, INDEX_HEADER.offset("replaced"), 1)
