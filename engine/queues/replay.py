"""The journal files of a start: replayed in order; damage is passed over and reported, a torn tail is cut.

Invariant: only the newest file with a record may have a torn tail, or records that were never synced; nothing of a file
is durable while an older one is not. So what is wrong in an older file is damage, and what is missing there was cut.
Order of its end: what stands behind its records is zeroed, what no record says was synced is written again, and last
it says that it ends. A start that does not get through is repeated: what it reads, zeros too, may not be on the disk.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import CorruptRecord
from warren.engine.kernel import atomic_file, data_files, segment, unsynced
from warren.engine.kernel.file_register import Entry
from warren.engine.kernel.formats import FILE_HEADER, FILE_HEADER_BYTES, FILE_JOURNAL, LISTED_JOURNAL
from warren.engine.queues.folder import Folder
from warren.engine.queues.read_ahead import contents
from warren.engine.queues.recovered import Recovered
from warren.engine.queues.terms import Terms, read_terms
from warren.engine.saying import inert

DAMAGED_PARTS_MAX = 1000  #: of one journal file; behind them the rest of it is given up


@dataclass
class Tail:
    """The end of a journal file that may have a torn tail, or records that were never synced."""

    path: Path
    salt: int
    end: int  #: of its records
    torn: bool = False  #: other bytes follow there
    ended: bool = False  #: it says by itself that nothing follows, or is full


def read_journal(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    found: Recovered,
    held: dict[int, memoryview],
    mend: bool,
) -> tuple[dict[int, int], dict[int, Tail]]:
    """Replay the journal: where the frames of each file end, by number; of the newest with a record and those after it
    how.

    `held`: files that need not be read. `mend`: damaged ones may be put right. Raises FormatVersionError, StoreError.
    """
    listing = segment.list_files(folder.journal, ".jnl")
    for path in listing.unfinished if mend else ():
        data_files.unlink(path, missing_ok=True)
    found.strangers += [f"{inert(str(path))}: not a file of this queue index, left alone" for path in listing.foreign]
    ends: dict[int, int] = {}
    tails: dict[int, Tail] = {}
    paths = dict(listing.files)
    listed = {number for kind, _queue, number in found.listed.entries if kind == LISTED_JOURNAL}
    if paths:
        held.pop(max(paths), None)  # what follows the frames of the newest has to be seen
    last = last_begun(listing.files)
    terms = read_terms(folder, node_id, server)
    unread = [path for number, path in listing.files if number not in held]
    with atomic_file.file_explained(f"cannot read {folder.journal}"), contextlib.closing(contents(unread)) as ahead:
        for number in sorted(listed | set(paths)):
            found.next_file = max(found.next_file, number + 1)
            if number not in paths:
                entry = found.listed.entries[LISTED_JOURNAL, 0, number]
                empty = entry.sealed and entry.end <= FILE_HEADER_BYTES
                reason = "is missing; what only it recorded is lost, and what it said was acked is delivered again"
                found.hurt(folder, folder.journal_file(number), reason, 0 if empty else None)
                engine.gap()
                continue
            path = paths[number]
            data = held[number] if number in held else next(ahead)
            one = _Journal(engine, folder, path, number, node_id, server, found, mend, number >= last, terms)
            ends[number] = one.replay(data, number in held, tails)
    return ends, tails


def last_begun(files: list[tuple[int, Path]]) -> int:
    """Number of the newest file with a record; newer ones were prepared ahead. Only it may have a torn tail."""
    for number, path in reversed(files):
        with contextlib.suppress(FileNotFoundError), data_files.reading(path) as file:
            file.seek(FILE_HEADER_BYTES)
            if any(file.read(8)):
                return number
    return -1


@dataclass
class _Journal:
    """One journal file that is replayed. `newest`: it, or one behind it, may have a torn tail. `terms`: of a stop in
    good order, which say where the journal ended.
    """

    engine: _core.QueueEngine
    folder: Folder
    path: Path
    number: int
    node_id: int
    server: int
    found: Recovered
    mend: bool
    newest: bool
    terms: Terms | None

    def replay(self, data: memoryview, held: bool, tails: dict[int, Tail]) -> int:
        """Returns where its frames end, and says more of it in `tails` when it may have a torn tail."""
        found, key = self.found, (LISTED_JOURNAL, 0, self.number)
        entry = found.listed.entries.get(key)
        salt = self._salt(data, entry)
        if salt is None:
            found.foreign.add(self.number)
            self.engine.gap()
            return 0
        at, parts, torn = FILE_HEADER_BYTES, 0, False
        size = self.path.stat().st_size
        cut = was_cut(size, entry)
        while True:
            end, frames, reason = self.engine.replay(data, self.number, salt, at)
            found.frames += frames
            if held and end < len(data):  # the image is not what was written: the file decides
                data, held, at = memoryview(data_files.read(self.path)), False, end
                continue
            if reason in ("end", "last") or not _any_bit(data[end:]):
                break
            if self.newest and not self._stopped_behind(end) and not vouched(data, end, salt):
                torn = True
                break
            at = _core.frame_behind(data, end, salt) if parts < DAMAGED_PARTS_MAX else 0
            parts += 1
            what = f"no valid record at byte {end} ({reason})"
            self.engine.gap()
            if not at:
                found.hurt(self.folder, self.path, f"{what}; what follows in this file is lost", None, end, len(data))
                break
            found.hurt(self.folder, self.path, f"{what}; what follows from byte {at} on is served", None, end, at)
        found.there[key] = Entry(salt, end, 0, True)
        if self.newest:
            tails[self.number] = Tail(self.path, salt, end, torn, reason == "last" or end == size)
        if cut:
            self.engine.gap()
            found.hurt(self.folder, self.path, f"{cut}; what only it recorded beyond byte {end} is lost")
        elif entry is not None and not parts and not torn:
            self._check_end(entry, end, reason)
        return end

    def _stopped_behind(self, end: int) -> bool:
        """Whether a stop in good order found this file whole beyond a place: then what lies there is no torn tail."""
        return self.terms is not None and self.terms.file == self.number and end < self.terms.end

    def _check_end(self, entry: Entry, end: int, reason: str) -> None:
        """Frames that are missing at the end of a file leave no trace in it."""
        if entry.sealed and end < entry.end:
            what = f"its records end at byte {end}, and once ended at {entry.end}: it was cut, or is an older copy"
        elif not entry.sealed and not self.newest and reason != "last" and end < entry.end:
            what = f"its records end at byte {end} without the last one: it was cut, or is an older copy"
        else:
            return
        self.engine.gap()
        self.found.hurt(self.folder, self.path, what)

    def _salt(self, data: memoryview, entry: Entry | None) -> int | None:
        """The file's salt, None: it is not the file that should be here."""
        page = bytes(data[:FILE_HEADER_BYTES])
        try:
            header, right = segment.check_or_mend(
                self.path, page, kind=FILE_JOURNAL, node_id=self.node_id, owner=self.server, file=self.number
            )
            salt, why = header.salt, "its header page had one wrong bit"
            if entry is not None and salt != entry.salt:
                raise CorruptRecord(self.path, FILE_HEADER.offset("salt"), f"salt {entry.salt:#x}", f"salt {salt:#x}")
        except CorruptRecord as error:
            first = _core.frame_check(data, FILE_HEADER_BYTES, entry.salt) if entry is not None else "no list"
            if entry is None or isinstance(first, str) or segment.salt_of(page) is not None:
                self.found.hurt(self.folder, self.path, f"{error}; it is set aside")
                self.found.aside.append((self.path, "not the file that should be here"))
                return None
            right = _core.file_header_pack(FILE_JOURNAL, self.node_id, self.server, self.number, entry.salt, 0)
            salt, why = entry.salt, "its header page was damaged"
        if right is not None:
            self.found.hurt(self.folder, self.path, f"{why}, and is rewritten", 0)
            if self.mend:
                segment.rewrite_header(self.path, right)
        return salt


def was_cut(size: int, entry: Entry | None) -> str:
    """A journal file gets all its bytes, durably, before it is listed, and no crash takes them away."""
    if entry is None or entry.sealed or size >= entry.end:
        return ""
    return f"has {size} bytes, and was made with {entry.end}: it was cut"


def _any_bit(data: memoryview) -> bool:
    step = 1 << 16
    zeros = bytes(step)
    return any(data[at : at + step].tobytes() != zeros[: len(data) - at] for at in range(0, len(data), step))


def judge(tails: dict[int, Tail], found: Recovered) -> None:
    """What follows the frames of the newest file that has any, and of those after it, is a torn tail or what the
    blocks held before: it is cut, unless a later frame of the file says that it was synced. An older file ends with its
    LAST frame, or was cut when it was the newest. What was read of the newest may lie in the page cache alone; from now
    on things are built upon it, unless the last worker said in the end that all is synced."""
    for _number, tail in sorted(tails.items()):
        if tail.torn:
            found.torn_bytes += segment.truncate_torn_tail(tail.path, tail.end)
        if found.clean and not tail.torn:
            continue
        found.written_again += unsynced.write_again(tail.path, synced_to(tail), tail.end)
        if not tail.ended:
            segment.end_file(tail.path, tail.end, tail.salt)


def synced_to(tail: Tail) -> int:
    """Up to where the records of a file were synced, as they say themselves."""
    with data_files.reading(tail.path) as file:
        listed, _reason = _core.scan_list(0, tail.salt, file.read(tail.end))
    return min(max(listed.vouched, FILE_HEADER_BYTES), tail.end)


def vouched(data: memoryview, end: int, salt: int) -> bool:
    """Whether a frame behind `end` says that what lies there was synced: then it is damage, and no torn tail."""
    listed, _reason = _core.scan_list(0, salt, data)
    return listed.vouched > end
