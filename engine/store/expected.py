"""Which files of a store must be there, and how long: what the clean mark and the list of files say of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from warren.engine.kernel import segment
from warren.engine.kernel.file_register import Entry, Listed
from warren.engine.kernel.formats import LISTED_STORE
from warren.engine.store.clean_mark import CleanMark
from warren.engine.store.folder import Listing, key_of
from warren.engine.store.scanning import StoreFile
from warren.ipc.layout import PAGE_BYTES

END_BYTES_MAX = 2 * PAGE_BYTES  #: by so much the end of a file may be cut when it is ended (segment.end_file)


def wanted(mark: CleanMark | None, listed: Listed) -> list[int]:
    """Numbers of the files that must be there."""
    noted = sorted(number for kind, _queue, number in listed.entries if kind == LISTED_STORE)
    return list(dict.fromkeys([*(mark.files if mark is not None else ()), *noted]))


def was_cut(file: StoreFile, listed: Listed) -> Entry | None:
    """What the list of files says of a file that is shorter than it was made."""
    entry = listed.entries.get(key_of(file.number))
    return entry if entry is not None and file.size + END_BYTES_MAX < entry.end else None


def never_used(listing: Listing, good: Iterable[StoreFile], mark: CleanMark | None, listed: Listed) -> int | None:
    """The file that was being made when the node ended, if it is there without its header. Raises StoreError.

    There is nothing in it, and nothing says that there ever was: no list, no clean mark, no file that was made later.
    Was it used all the same, then the queues miss the bodies, and count them.
    """
    right = {file.number for file in good}
    number, path = max((entry for entry in listing.files if entry[0] not in right), default=(-1, Path()))
    if number < max((file.number for file in good if not file.collected), default=0):
        return None
    if number in listing.lists or (mark is not None and number in mark.files) or key_of(number) in listed.entries:
        return None
    return number if segment.never_begun(path) else None
