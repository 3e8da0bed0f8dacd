"""Records as Python sees them: encode, check and scan frames. The work is done in C (`engine/kernel/frame.c`).

Invariant: what `check` and `scan` accept was written whole with this salt; what they refuse is never interpreted.
numpy is imported when the rows of a scan are looked at, not before: who has nothing to recover never needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from warren.engine import _core
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FRAME
from warren.engine.kernel.rows import FRAME_ROW

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from typing_extensions import Buffer

NO_ID = bytes(16)


class Frame(NamedTuple):
    """Head of a valid frame; `total` bytes from its first to its marker."""

    total: int
    kind: int
    flags: int
    id: bytes
    client_epoch: int
    sequence: int
    extra: int
    meta_length: int


@dataclass(frozen=True)
class Scan:
    """What a scan found, without the padding.

    `end` is the position behind the last valid frame, `reason` why the scan ended there: `end` (of the bytes, or a
    padding frame that says that it is the last), `zeros` (nothing but zeros follows: the unused rest of a preallocated
    file), or what is wrong with the bytes at `end`:
    `short`, `size`, `marker`, `version`, `kind`, `crc`.
    """

    packed: bytes
    end: int
    reason: str

    @property
    def clean(self) -> bool:
        """Nothing follows the last frame: no torn tail, no damage."""
        return self.reason in ("end", "zeros")

    def __len__(self) -> int:
        return len(self.packed) // FRAME_ROW.size

    @property
    def rows(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """All frames in order as a structured array with the columns of rows.FRAME_ROW (a view, read only)."""
        import numpy

        return numpy.frombuffer(self.packed, dtype=numpy.dtype(FRAME_ROW.columns()))


def encode(
    kind: int,
    body: Buffer = b"",
    *,
    salt: int,
    id: Buffer = NO_ID,
    flags: int = 0,
    client_epoch: int = 0,
    sequence: int = 0,
    extra: int = 0,
    meta_length: int = 0,
) -> bytes:
    """One frame around `body` (metadata, then payload)."""
    return _core.frame_encode(kind, id, flags, client_epoch, sequence, extra, meta_length, body, salt)


def pad(size: int, *, salt: int, last: bool = False) -> bytes:
    """A padding frame of `size` bytes; `last`: nothing follows in its file. Raises ValueError below FRAME_BYTES_MIN."""
    return _core.frame_pad(size, salt, last)


def check(buffer: Buffer, at: int, salt: int) -> Frame | None:
    """The frame at byte `at`, or None when there is no valid one."""
    found = _core.frame_check(buffer, at, salt)
    return None if isinstance(found, str) else Frame(*found)


def why_not(buffer: Buffer, at: int, salt: int) -> str | None:
    """Why there is no valid frame at byte `at` (see Scan.reason), or None when there is one."""
    found = _core.frame_check(buffer, at, salt)
    return found if isinstance(found, str) else None


def body(buffer: Buffer, offset: int, total: int) -> memoryview:
    """The body of a checked frame, without a copy."""
    return memoryview(buffer)[offset + FRAME.size : offset + total - 1]


def scan(buffer: Buffer, salt: int, start: int = FILE_HEADER_BYTES) -> Scan:
    """All frames from byte `start` on, up to the first bytes that are none. Runs without the GIL."""
    return Scan(*_core.frame_scan(buffer, salt, start))
