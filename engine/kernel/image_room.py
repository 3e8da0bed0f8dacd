"""What of the images of a log is reserved when their region is made.

The other memory of images comes as it is needed, and may run short later. Then a log leaves its file for an image that
has memory (engine/kernel/log.c). With enough of two images for whatever comes at once, it never waits for memory.

Invariant: what is reserved of an image has room for the largest frame of its log, also behind what a file begins with.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.engine.config import Settings
from warren.engine.kernel.formats import FILE_HEADER_BYTES
from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc.layout import PAGE_BYTES, whole_pages

IMAGES_SURE = 2
#: head and end of a frame, and the padding behind it
_FRAME_BYTES = 4 * PAGE_BYTES
#: a list of ids that are removed together
_IDS_BYTES = 128 * 1024
#: exchange, routing key, headers and queue ids of an embedded message
_ROUTES_BYTES = 384 * 1024
#: what a journal file begins with: the numbers of queues, 24 bytes each
_NUMBERS_BYTES = 256 * 1024


class Sure(NamedTuple):
    """Bytes at the start of an image that are reserved, per kind of log."""

    store: int
    journal: int
    transient_journal: int


def sure(settings: Settings) -> Sure:
    """What a node with these settings reserves of an image."""
    embedded = settings.embed_bytes_max + _ROUTES_BYTES
    begun = settings.file_bytes // PROTOCOL["JOURNAL_KEYS_PART"] + _NUMBERS_BYTES
    moved = settings.file_bytes // PROTOCOL["JOURNAL_MOVE_PART"]
    most = (max(settings.shared_bytes_max, _IDS_BYTES), begun + max(embedded, moved), embedded)
    return Sure(*(min(settings.file_bytes, whole_pages(bytes_ + FILE_HEADER_BYTES + _FRAME_BYTES)) for bytes_ in most))


def parts(sure_bytes: int, file_bytes: int) -> list[tuple[int, int]]:
    """The parts of a region of images that are reserved: its header page, and the start of the first images."""
    return [(0, PAGE_BYTES), *((PAGE_BYTES + image * file_bytes, sure_bytes) for image in range(IMAGES_SURE))]
