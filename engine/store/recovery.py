"""How a store starts: by the lists of its files; files without one are read, several at a time.

What lies in the folder: folder.py. Its parts here: the lists (file_lists.py), the mark of a stop in good order
(clean_mark.py), what must be there (expected.py), reading (scanning.py), what is said of it (start_report.py).

A list that is missing or wrong costs a scan of its file and nothing else. Files are applied in the order of their
positions. A collected file stands for the files whose positions it covers; those that are still there are removed,
unless it is damaged and they hold all that it holds.

Damage never stops a start. What is lost is reported; files that are not what their name says are moved to the
quarantine. Only a newer format and the files of another node stop it: then nothing is touched.

Order of a start: headers checked; mark read and removed, the directory synced; files set aside and removed; lists and
scans applied; torn tail of the youngest file ended, its end written again, everything synced. Each step leaves a
folder from which the same state is reached again, so a kill or stop anywhere, any number of times, changes nothing.
Order of a stop: everything synced; the last lists written; the mark; the directory synced.
Crash points: start_…
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Protocol

from warren.engine import _core
from warren.engine.errors import CorruptRecord, LimitError, StoreError
from warren.engine.kernel import atomic_file, data_files, quarantine, segment, unsynced
from warren.engine.kernel.file_register import Entry, FileRegister, Listed
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, FORMAT_VERSION, FRAME
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.kernel.removal import Removal
from warren.engine.saying import Say, counted, silent
from warren.engine.store import clean_mark
from warren.engine.store.clean_mark import CleanMark
from warren.engine.store.expected import never_used, wanted, was_cut
from warren.engine.store.file_lists import Places, list_alone, read_list, same_items
from warren.engine.store.folder import DATA, FILES, LIST, OWN_NAMES, Listing, key_of, list_files, list_path
from warren.engine.store.scanning import Readers, Scanned, StoreFile, read_file, scan, scan_into
from warren.engine.store.start_report import Report
from warren.ipc.layout import CONSTANTS

PROGRESS_S = 1.0
#: of versions before the lists; a cache, so it may go
_STALE = ("index.snapshot", "index.snapshot.new")


class CrashPoints(Protocol):
    """What a recovery wants of the superblock."""

    def crash_point(self, point: int) -> None: ...


class Recovery:
    """One start of one store. `grow` makes a larger hash part of the index, `extent` gives it one more extent."""

    def __init__(
        self,
        core: _core.StoreServer,
        owner: int,
        folder: Path,
        node_id: int,
        begin: Callable[[int, int], None],
        grow: Callable[[], None],
        extent: Callable[[], None],
        superblock: CrashPoints,
        say: Say = silent,
    ) -> None:
        self.core = core
        self.owner = owner
        self.folder = folder
        self.node_id = node_id
        #: called once, makes the regions: messages to expect in the hash part of the index, extents in the dense one
        self.begin = begin
        self.grow = grow
        self.extent = extent
        self.superblock = superblock
        self.say = say
        self.report = Report()
        self.files = FileRegister(folder / FILES, node_id, owner)
        self._listed = Listed()
        self._lists: dict[int, _core.FileList] = {}
        self._scanned: dict[int, Scanned] = {}
        self._mark: CleanMark | None = None
        self._absent: list[int] = []  #: files that are set aside or missing
        self._told = time.monotonic()

    def run(self) -> Report:
        """Fill the store. Raises FormatVersionError, LimitError, StoreError; damage is reported, not raised."""
        listing = list_files(self.folder)
        self.report.foreign = [path for path in listing.foreign if path.name not in OWN_NAMES | {*_STALE}]
        good, bad, mended = self._check_headers(listing.files)
        self._listed = self.files.load()
        # Up to here nothing was changed.
        self._mark = clean_mark.read(self.folder, self.node_id, self.owner)
        self.report.next_file = self._next_file(listing)
        unused = never_used(listing, good, self._mark, self._listed)
        clean_mark.forget(self.folder)
        self._crash("START_MARK_GONE")
        self._tidy(listing)
        for path, page in mended:
            said = f"{path} had a flipped bit in its first page"
            try:
                segment.rewrite_header(path, page)
            except StoreError as error:  # its records are served all the same; the next start tries again
                self.report.damaged.append(f"{said}, which cannot be repaired: {error}")
                continue
            self.report.damaged.append(f"{said}: it was repaired, nothing is lost")
            quarantine.note(self.folder, quarantine.Entry(path.name, 0, len(page), "a flipped bit, repaired", 0))
        for number, path, reason in bad:
            if number == unused:
                data_files.unlink(path, missing_ok=True)
                self.say(f"{path} never had its header, so it was never used: it is removed", WARNING)
            else:
                self._set_aside(number, path, reason)
        self._miss(listing)
        files = self._supersede(sorted(good, key=lambda file: (file.low, file.number)))
        self._read_lists(files)
        unlisted = [file for file in files if file.number not in self._lists and file.number not in self._scanned]
        scans = Readers(unlisted, lambda file, view: scan_into(file.path, file.number, file.salt, view))
        try:
            self.begin(0, self._extents())
            self._apply_all(files, scans)
        finally:
            scans.close()
        self._judge(files)
        self._list_anew(files)
        self.report.files = len(files)
        self.report.clean = (
            self._mark is not None and not self._scanned and self._mark.files == sorted(file.number for file in files)
        )
        self.core.note_lost(self.owner, self.report.lost)
        self.report.dropped = self.core.finish(self.owner)
        self._crash("START_APPLIED")
        return self.report

    def _crash(self, name: str) -> None:
        self.superblock.crash_point(CONSTANTS[f"CRASH_{name}"])

    def _progress(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_S:
            self._told = now
            self.say(text)

    def _next_file(self, listing: Listing) -> int:
        """Numbers are never used twice, not even those of files that were set aside or half made."""
        numbers = [number for number, _path in (*listing.files, *listing.spares)] + list(listing.lists)
        names = [path.name for path in listing.unfinished]
        with contextlib.suppress(OSError):
            names += os.listdir(self.folder / quarantine.QUARANTINE)
        numbers += [int(name.split(".")[0]) for name in names if re.match(r"[0-9]{1,18}\.", name, re.ASCII)]
        found = max((number for number in numbers if number < 1 << 62), default=-1) + 1
        return max(found, self._mark.next_file) if self._mark is not None else found

    # -- what does not belong there -----------------------------------------------------------------------------

    def _check_headers(
        self, files: list[tuple[int, Path]]
    ) -> tuple[list[StoreFile], list[tuple[int, Path, str]], list[tuple[Path, bytes]]]:
        """Files whose first page is in order, the others with the reason, and pages in which one bit is wrong.

        Raises FormatVersionError, StoreError.
        """
        good: list[StoreFile] = []
        bad: list[tuple[int, Path, str]] = []
        mended: list[tuple[Path, bytes]] = []
        strangers = 0
        for number, path in files:
            place = {"kind": FILE_STORE, "node_id": self.node_id, "owner": self.owner, "file": number}
            try:
                page = segment.read_page(path)
                header, right = segment.check_or_mend(path, page, **place)
                if right is not None:
                    mended.append((path, right))
                size = min(path.stat().st_size, segment.FILE_BYTES_MAX)
            except CorruptRecord as error:
                strangers += error.expected.startswith("node_id")
                bad.append((number, path, f"expected {error.expected} at byte {error.position}, found {error.found}"))
            except StoreError as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EIO:
                    raise
                bad.append((number, path, "its first page cannot be read"))
            else:
                good.append(StoreFile(number, path, header.salt, header.position_low, header.position_high, size))
        if strangers and not good:
            raise StoreError(
                f"the files in {self.folder} belong to another data directory ({bad[0][2]}): give each node its own"
            )
        return good, bad, mended

    def _tidy(self, listing: Listing) -> None:
        """Remove what killed processes left half made."""
        for path in [*listing.unfinished, *(self.folder / name for name in _STALE)]:
            with contextlib.suppress(FileNotFoundError):
                data_files.unlink(path)

    def _set_aside(self, number: int, path: Path, reason: str, costs: bool = True) -> None:
        """A file that is not what its name says goes to the quarantine, and its list with it."""
        self._absent.append(number)
        beside = list_path(self.folder, number)
        listed = list_alone(beside, self.node_id, self.owner, number)
        messages = listed.messages if listed is not None else None
        target = None
        with contextlib.suppress(StoreError):  # said below
            self.files.note(gone=[key_of(number)])
            target = quarantine.move(self.folder, path, reason, messages)
        where = f"it was moved to {target}" if target else "it cannot be moved to the quarantine, and stays where it is"
        cost = "" if messages is None else f"; it held {counted(messages, 'message')}"
        self.report.damaged.append(f"{path} is not served: {reason}{cost}; {where}")
        self.report.lost += messages or 0
        self.report.unknown += costs and messages is None
        if target is not None and beside.exists():
            with contextlib.suppress(OSError):
                data_files.rename(beside, target.with_name(target.name + LIST))
        self._crash("START_QUARANTINED")

    def _miss(self, listing: Listing) -> None:
        """Files that should be there: a list goes before its file, and the mark names all of them."""
        there = {number for number, _path in listing.files}
        coming = {path.name for path in listing.unfinished}
        for number, path in sorted(listing.lists.items()):
            if number in there:
                continue
            listed = list_alone(path, self.node_id, self.owner, number)
            # A collection that was killed between the names of its list and of its file lost nothing.
            if listed is not None and f"{number}{DATA}{segment.UNFINISHED}" not in coming:
                self._missing(number, listed.messages)
            data_files.unlink(path, missing_ok=True)
        for number in wanted(self._mark, self._listed):
            if number not in there and number not in listing.lists:
                self._missing(number, None)
        if self._listed.problem or (not self._listed.there and listing.files):
            # of a directory that was made before there were lists, or it was removed
            what = f"{self._listed.problem or 'there is no list of files'}; missing files cannot be noticed"
            self.report.damaged.append(f"{self.files.path}: {what}; it is made again")
            self.report.note(self.folder, quarantine.Entry(FILES, 0, 0, what))

    def _missing(self, number: int, messages: int | None) -> None:
        self._absent.append(number)
        self.report.missing(self.folder, number, messages)

    # -- collected files ----------------------------------------------------------------------------------------

    def _supersede(self, files: list[StoreFile]) -> list[StoreFile]:
        """Without the files that a collected one stands for: they are removed. Or without the collected one, if it is
        damaged and they hold all that it holds: then it is set aside.
        """
        kept = list(files)
        for output in sorted((file for file in files if file.collected), key=lambda file: -file.number):
            if output not in kept:
                continue
            sources = [
                file
                for file in kept
                if file is not output
                and output.low <= file.low
                and file.high <= output.high
                and file.number < output.number
            ]
            if not sources:
                continue
            damage = self._damage_of(output)
            if damage is None:
                self._remove(sources)
                gone = sources
            elif self._sources_suffice(output, sources):
                why = "a collected file that is damaged; its sources are served"
                self._set_aside(output.number, output.path, why, costs=False)
                self._scanned.pop(output.number, None)
                gone = [output]
            else:  # it had taken their place; they may still hold what it lost
                for file in sources:
                    self._set_aside(file.number, file.path, f"collected into {output.path.name}, which is damaged")
                if output.number not in self._scanned:
                    self.report.damage(self.folder, output.path, damage, None)
                gone = sources
            kept = [file for file in kept if file not in gone]
        return kept

    def _damage_of(self, output: StoreFile) -> list[tuple[int, int, str]] | None:
        """What of a collected file is damaged; None: it is whole. It was synced whole before it got its name."""
        with segment.scan_memory(output.path) as memory, memoryview(memory) as view:
            scanned = scan_into(output.path, output.number, output.salt, view)
        listed = read_list(self.folder, self.node_id, self.owner, output.number, output.salt, output.size)
        if scanned.whole and (listed is None or same_items(listed, scanned.found)):
            return None
        if listed is None:
            self._scanned[output.number] = scanned
        return scanned.found.damage

    def _sources_suffice(self, output: StoreFile, sources: list[StoreFile]) -> bool:
        """Do the sources that are there hold all that the collected file should hold?"""
        listed = read_list(self.folder, self.node_id, self.owner, output.number, output.salt, output.size)
        wanted = listed if listed is not None else self._scanned[output.number].found
        held: set[tuple[bytes, int]] = set()
        for file in sources:
            found = read_list(self.folder, self.node_id, self.owner, file.number, file.salt, file.size)
            if found is None:
                found, _reason = scan(file.path, file.number, file.salt)
            held |= {(item[0], item[5]) for item in found.items()}
        return all((item[0], item[5]) in held for item in wanted.items())

    def _remove(self, files: list[StoreFile]) -> None:
        """Superseded files go, each after its list."""
        if not files:
            return
        self.files.note(gone=[key_of(file.number) for file in files])
        explained = atomic_file.file_explained(f"cannot remove files of {self.folder} that were collected")
        with explained, Removal() as removal:
            for file in files:
                data_files.unlink(list_path(self.folder, file.number), missing_ok=True)
            segment.sync_directory(self.folder)  # a list without its file would say that the file is missing
            for file in files:
                removal.add(file.path)
                data_files.unlink(file.path, missing_ok=True)
                self._crash("START_SUPERSEDED")
            segment.sync_directory(self.folder)
            removal.give_back()

    # -- what the files say -------------------------------------------------------------------------------------

    def _read_lists(self, files: list[StoreFile]) -> None:
        for file in files:
            found = read_list(self.folder, self.node_id, self.owner, file.number, file.salt, file.size)
            if found is not None:
                self._lists[file.number] = found
                self._scanned.pop(file.number, None)

    def _extents(self) -> int:
        """Extents of the index that the lists will want: their messages, as far as they have consecutive ids."""
        counted = sum(found.messages for found in self._lists.values() if found.messages >= 4 * found.runs)
        extent = PROTOCOL["DENSE_EXTENT_BLOCKS"] * PROTOCOL["DENSE_BLOCK_ENTRIES"]
        return counted * 9 // 8 // extent + 1 if counted else 0  # the next one is wanted before the last is full

    def _apply_all(self, files: list[StoreFile], scans: Readers[Scanned]) -> None:
        for done, file in enumerate(files):
            found = self._lists.get(file.number)
            if found is None:
                if file.number not in self._scanned:
                    self._scanned[file.number] = scans.take(file.number)
                self._end_torn_batch(files, done, scans)
                found = self._scanned[file.number].found
            if done == len(files) // 2:
                self._crash("START_HALF")
            self._apply(file, found)
            self.report.frames += found.messages + found.controls
            self._progress(
                f"{self.folder}: {done + 1} of {len(files)} files, {self.report.frames:,} records taken up so far"
            )
        self.report.scanned = len(self._scanned)

    def _end_torn_batch(self, files: list[StoreFile], at: int, scans: Readers[Scanned]) -> None:
        """Frames behind a hole in the youngest file do not count when no padding frame says that the hole was synced:
        then the power failed while the pages of a batch were written in any order, and nothing from there on was
        confirmed. In any other place a hole is damage.
        """
        file = files[at]
        scanned = self._scanned[file.number]
        hole = next((part for part in scanned.found.damage if part[0] >= scanned.found.vouched), None)
        if hole is None or file.collected or scanned.unreadable:
            return
        if any(number > file.number for number in self._absent):
            return  # what followed it cannot be asked; its own first page was synced before the file had its name
        if self._mark is not None and file.number in self._mark.files:
            return
        for later in files[at + 1 :]:
            found = self._lists.get(later.number)
            if found is None:
                if later.number not in self._scanned:
                    self._scanned[later.number] = scans.take(later.number)
                found = self._scanned[later.number].found
            if not later.collected and (found.messages or found.controls):
                return
        with segment.scan_memory(file.path) as memory, memoryview(memory) as view:
            read_file(file.path, view)
            found, _reason = _core.scan_list(file.number, file.salt, view[: hole[0]])
            self._scanned[file.number] = Scanned(found, hole[2], [], bytes(view[hole[0] : hole[0] + 64]))

    def _apply(self, file: StoreFile, found: _core.FileList) -> None:
        try:
            self.core.add_file(self.owner, file.number, found.used, file.low, file.high)
        except OSError as error:
            raise LimitError(
                f"{self.folder} has more files than the file summary has rows: raise the setting summary_rows"
            ) from error
        cursor, wants = self.core.apply_list(self.owner, found)
        while wants is not None:
            (self.extent if wants == "extent" else self.grow)()
            cursor, wants = self.core.apply_list(self.owner, found, cursor)

    def _judge(self, files: list[StoreFile]) -> None:
        """Report damage, end the torn tail, and make durable what may only be in the page cache: of the youngest file
        what no frame says was synced is written again, because its sync may have failed."""
        youngest = -1
        for file in files:
            found = self._lists.get(file.number) or self._scanned[file.number].found
            if not file.collected and (found.messages or found.controls):
                youngest = max(youngest, file.number)
        for file in files:
            scanned = self._scanned.get(file.number)
            if scanned is None:
                continue
            self._judge_file(file, scanned, youngest)
            if file.collected or file.number < youngest:
                segment.sync_file(file.path)  # it was, before it got its name, or the next one its first frame
            else:
                synced_to = max(scanned.found.vouched, FILE_HEADER_BYTES)
                self.report.written_again += unsynced.write_again(file.path, synced_to, scanned.found.used)
            self.report.lists.append(scanned.found)

    def _list_anew(self, files: list[StoreFile]) -> None:
        """The list of files as they are now; as a rule nothing has changed."""
        entries = {key_of(file.number): Entry(file.salt, file.path.stat().st_size) for file in files}
        if not self._listed.there or self._listed.problem or entries != self._listed.entries:
            try:
                self.files.begin(entries, [self.folder])
            except StoreError as error:  # it is tried again with the next file
                self.say(
                    f"a file that disappears before the list of files is written will not be noticed: {error}", WARNING
                )

    def _judge_file(self, file: StoreFile, scanned: Scanned, youngest: int) -> None:
        found = scanned.found
        # Its list names what is there no more, if the file was cut off behind it.
        listed = list_alone(list_path(self.folder, file.number), self.node_id, self.owner, file.number)
        if listed is not None and listed.salt != file.salt:
            listed = None
        places = Places(listed) if listed is not None else None
        parts = [(start, end, "the disk cannot read them") for start, end in scanned.unreadable] + found.damage
        if listed is not None and listed.used > file.size:
            parts.append((file.size, listed.used, "cut off"))
        elif (made := was_cut(file, self._listed)) is not None:
            parts.append((file.size, made.end, "cut off"))
        elif scanned.reason in ("end", "zeros"):
            pass
        elif file.collected or file.number < youngest or (self._mark is not None and file.number in self._mark.files):
            parts.append((found.used, file.size, scanned.reason))
        else:
            if _begins(scanned.head):
                self.report.torn_bytes += file.size - found.used
            segment.end_file(file.path, found.used, file.salt)
            self._crash("START_TORN")
        self.report.damage(self.folder, file.path, parts, places)


def _begins(head: bytes) -> bool:
    """Do the bytes look like the beginning of a record? Else they are what a spare held before."""
    return len(head) == 64 and head[FRAME.offset("version")] == FORMAT_VERSION and 0 < head[FRAME.offset("kind")] < 16
