"""The file summary: what every segment file of a store holds, as the server keeps it in shared memory.

Rows are at file number modulo rows; `left` and `right` link the files by position. The server alone writes
(`engine/store/files.c`); whoever else looks sees each number whole, and a file just deleted for a moment more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warren.engine.kernel.protocol import SUMMARY_ROW
from warren.ipc import _core as shared


class FileRow(NamedTuple):
    """One file. `left`, `right`: neighbours by position; `pin_low`, `pin_high`: positions + 1, 0: none."""

    file: int
    valid_total_size: int
    file_size: int
    left: int | None
    right: int | None
    locked: bool
    image: int | None
    pin_low: int
    pin_high: int
    position_low: int
    position_high: int
    replay_free: bool
    ghosts: bool
    messages: int


def region_bytes(rows: int) -> int:
    """Size of the region."""
    return rows * SUMMARY_ROW.size


def files(buffer: memoryview) -> Iterator[FileRow]:
    """The files of a summary, by rising number."""
    found = []
    for at in range(0, len(buffer) // SUMMARY_ROW.size * SUMMARY_ROW.size, SUMMARY_ROW.size):
        file = shared.load64(buffer, at)
        if file:
            found.append((file - 1, at))
    for file, at in sorted(found):

        def field(name: str, at: int = at) -> int:
            return int(SUMMARY_ROW.unpack(buffer, name, at))

        def neighbour(name: str, at: int = at) -> int | None:
            value = field(name, at)
            return value - 1 if value else None

        yield FileRow(
            file,
            field("valid_total_size"),
            field("file_size"),
            neighbour("left"),
            neighbour("right"),
            bool(field("locked")),
            neighbour("image"),
            field("pin_low"),
            field("pin_high"),
            field("position_low"),
            field("position_high"),
            bool(field("replay_free")),
            bool(field("ghosts")),
            field("messages"),
        )
