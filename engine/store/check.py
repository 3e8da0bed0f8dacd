"""`warren check` of a store's folder: every byte is read and checked; and the repair of what is damaged.

`examine` changes nothing and may run beside the node. What is being written, was removed or became a spare meanwhile is
no damage: a file that looks damaged is looked at again, and counts only if it is the same file with the same damage.

`repair` wants the folder for itself (the caller holds the directory's lock). What it does, each step durable before the
next:
  - one wrong bit in a first page: mended
  - a file under a wrong name: put back, when the right name is free; else set aside in the quarantine, like any file
    that cannot be served
  - a file with damaged parts: its good records go to a new file with the same position, which takes its place like a
    collected one; the damaged file goes to the quarantine
  - lists: made where they are missing or wrong, set aside where their file is missing
Kill anywhere: the quarantine has a second name of a damaged file before the new one counts, and the new one counts (it
has its list and its name) before the damaged one goes. A start in between takes the new one, as after a collection.
The clean mark is taken away first and written anew at the end, when every file has its list.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError
from warren.engine.kernel import atomic_file, data_files, file_register, quarantine, segment, unsynced
from warren.engine.kernel.file_register import Entry, FileRegister, Listed
from warren.engine.kernel.formats import FILE_HEADER, FILE_STORE, KIND_MESSAGE
from warren.engine.saying import counted
from warren.engine.store import clean_mark, expected, file_lists, scanning
from warren.engine.store.folder import (
    CLEAN,
    DATA,
    FILES,
    LIST,
    OWN_NAMES,
    Listing,
    data_path,
    key_of,
    list_files,
    list_path,
)
from warren.engine.store.scanning import StoreFile
from warren.ipc import access

LOOKS = 3  #: times in a row that damage of a running node's file must be seen
TRIES = 20  #: for that
IDS_MAX = 100  #: lost ids that are named one by one
Progress = Callable[[int, int], None]


@dataclass
class Damage:
    """A damaged part of a file, and what it costs."""

    start: int
    end: int
    reason: str
    messages: int | None = None  #: None: without a list nobody can say
    ids: list[str] = field(default_factory=list)  #: of the lost messages, as far as a list names them


@dataclass
class Found:
    """What a look at one file found."""

    path: Path
    kind: str = "rdq"
    bytes: int = 0
    records: int = 0
    damage: list[Damage] = field(default_factory=list)
    problem: str = ""  #: bytes that are not what was written
    note: str = ""  #: no damage, but worth knowing
    list_problem: str = ""  #: the list is missing or wrong: the next start reads the file


@dataclass
class _Look:
    """All about a file whose first page is in order."""

    file: StoreFile
    scanned: scanning.Scanned
    listed: _core.FileList | str | None
    bad: list[tuple[bytes, int, int, int, str]]


class StoreCheck:
    """One store's folder."""

    def __init__(self, folder: Path, node_id: int, owner: int, running: bool) -> None:
        self.folder = folder
        self.node_id = node_id
        self.owner = owner
        self.running = running
        self.found: list[Found] = []
        self.actions: list[str] = []
        self._headers: dict[int, StoreFile] = {}
        self._misnamed: dict[int, int] = {}  #: number by name → number by first page
        self._mended: dict[int, bytes] = {}
        self._looks: dict[int, _Look] = {}
        self._youngest = -1
        self._listed = Listed()  #: the list of files
        self._mark: clean_mark.CleanMark | None = None
        self._unused: int | None = None  #: the file that never had its header
        self._absent: set[int] = set()  #: files that cannot be asked what they hold

    # -- look ---------------------------------------------------------------------------------------------------

    def examine(self, progress: Progress = lambda _done, _all: None) -> list[Found]:
        """Look at everything; changes nothing. Raises StoreError when the folder cannot be read."""
        self.found.clear()
        listing = list_files(self.folder)
        mark = self._mark = clean_mark.read(self.folder, self.node_id, self.owner)
        self._read_listed(bool(listing.files))
        self._check_headers(listing, mark)
        self._youngest = self._last_begun()
        self._strangers(listing)
        self._missing(listing, mark)
        files = sorted(self._headers.values(), key=lambda file: (file.low, file.number))
        readers = scanning.Readers(files, self._look)
        try:
            for done, file in enumerate(files, 1):
                try:
                    look = readers.take(file.number)
                    for _ in range(TRIES if self.running else 0):
                        if not self._suspect(look) or self._stays(look):
                            break
                        look = self._again(file)
                except StoreError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):
                        self.found.append(Found(file.path, problem=str(error)))
                    continue
                finally:
                    progress(done, len(files))
                self._looks[file.number] = look
                self.found.append(self._judge(look, mark is not None and file.number in mark.files))
        finally:
            readers.close()
        return self.found

    def _check_headers(self, listing: Listing, mark: clean_mark.CleanMark | None) -> None:
        bad: list[tuple[int, Path, str]] = []
        self._headers.clear()
        self._misnamed.clear()
        self._mended.clear()
        self._looks.clear()
        for number, path in listing.files:
            place = {"kind": FILE_STORE, "node_id": self.node_id, "owner": self.owner, "file": number}
            try:
                page = segment.read_page(path)
                try:
                    header, right = segment.check_or_mend(path, page, **place)
                except CorruptRecord:
                    own = FILE_HEADER.unpack(page, "file") if len(page) == FILE_HEADER.size else number
                    with contextlib.suppress(CorruptRecord, FormatVersionError):
                        segment.check_header(path, page, **{**place, "file": own})
                        self._misnamed[number] = own
                    raise
                if right is not None:
                    self._mended[number] = right
                size = path.stat().st_size
            except (CorruptRecord, FormatVersionError) as error:
                own_number = self._misnamed.get(number)
                said = str(error) if own_number is None else f"it is file {own_number} by its first page"
                bad.append((number, path, said))
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    bad.append((number, path, str(error)))
            except FileNotFoundError:
                continue
            else:
                low, high = header.position_low, header.position_high
                self._headers[number] = StoreFile(number, path, header.salt, low, high, size)
                if number in self._mended:
                    self.found.append(Found(path, problem="a bit of its first page is flipped; nothing is lost"))
        self._unused = expected.never_used(listing, self._headers.values(), mark, self._listed) if bad else None
        self._absent = {number for number, _path, _reason in bad} - {self._unused}
        self._absent |= {*expected.wanted(None, self._listed), *listing.lists} - self._headers.keys()
        for number, path, reason in bad:
            if number == self._unused:
                note = "never had its header, so it was never used; the next start removes it"
                self.found.append(Found(path, "unfinished", note=note))
            else:
                self._bad_header(number, path, reason)

    def _bad_header(self, number: int, path: Path, reason: str) -> None:
        if self.running and not path.exists():
            return  # it became a spare
        listed = file_lists.list_alone(list_path(self.folder, number), self.node_id, self.owner, number)
        messages = listed.messages if listed is not None and number not in self._misnamed else None
        size = path.stat().st_size if path.exists() else 0
        damage = Damage(0, size, reason, messages)
        self.found.append(Found(path, bytes=size, damage=[damage], problem=f"{reason}; none of it is served"))

    def _strangers(self, listing: Listing) -> None:
        for path in listing.foreign:
            if path.name not in OWN_NAMES:
                self.found.append(Found(path, "foreign", note="does not belong here; it is left alone"))
        for path in listing.unfinished:
            if not self.running:
                note = "was being made when its process died; it holds nothing"
                self.found.append(Found(path, "unfinished", note=note))

    def _missing(self, listing: Listing, mark: clean_mark.CleanMark | None) -> None:
        if self.running:
            return  # a list goes before its file, and comes before it
        there = {number for number, _path in listing.files}
        coming = {path.name for path in listing.unfinished}
        for number, path in sorted(listing.lists.items()):
            name = f"{number}{DATA}"
            if number in there or name + segment.UNFINISHED in coming:
                continue
            listed = file_lists.list_alone(path, self.node_id, self.owner, number)
            cost = f": it held up to {counted(listed.messages, 'message')}" if listed is not None else ""
            damage = [Damage(0, listed.used, "missing", listed.messages)] if listed is not None else []
            self.found.append(Found(self.folder / name, damage=damage, problem=f"is missing{cost}"))
        for number in expected.wanted(mark, self._listed):
            if number not in there and number not in listing.lists:
                self.found.append(Found(data_path(self.folder, number), problem="is missing"))

    def _read_listed(self, files: bool) -> None:
        path = self.folder / FILES
        try:
            self._listed = file_register.read(path, self.node_id, self.owner)
        except StoreError as error:
            self._listed = Listed(problem=str(error))
        if self._listed.problem and not self.running:
            problem = f"{self._listed.problem}; missing files cannot be noticed; nothing is lost by that"
            self.found.append(Found(path, FILES, problem=problem))
        elif not self._listed.there and files and not self.running:
            problem = "is missing, so other missing files cannot be noticed; the next start of the node makes it again"
            self.found.append(Found(path, FILES, problem=problem))

    def _last_begun(self) -> int:
        """The newest file with a record; newer ones were prepared ahead. Only it may have a torn tail."""
        for file in sorted(self._headers.values(), key=lambda file: -file.number):
            if file.collected:
                continue
            with contextlib.suppress(
                OSError, StoreError
            ):  # what cannot be read is said when the whole file is looked at
                fd = data_files.open(file.path, os.O_RDONLY)
                try:
                    head = os.pread(fd, 1 << 16, FILE_HEADER.size)
                finally:
                    os.close(fd)
                found, _reason = _core.scan_list(file.number, file.salt, bytes(FILE_HEADER.size) + head)
                # what a spare held before is no record
                if found.messages or found.controls or (not self.running and self._begun_behind_a_hole(file)):
                    return file.number
        return -1

    def _begun_behind_a_hole(self, file: StoreFile) -> bool:
        """The power may have failed when later pages of its first batch were on the disk, and the first ones not."""
        with segment.scan_memory(file.path) as memory, memoryview(memory) as view:
            length, _unreadable = scanning.read_file(file.path, view)
            found, _reason = _core.scan_list(file.number, file.salt, view[:length])
        return bool(found.messages or found.controls)

    def _look(self, file: StoreFile, buffer: memoryview) -> _Look:
        length, unreadable = scanning.read_file(file.path, buffer)
        found, reason = _core.scan_list(file.number, file.salt, buffer[:length])
        listed: _core.FileList | str | None
        try:
            data = data_files.read(list_path(self.folder, file.number))
        except OSError:
            listed = None
        else:
            listed = _core.decode_list(data, self.node_id, self.owner, file.number, file.salt, 1 << 32)
        sound = isinstance(listed, _core.FileList)  # it was written when what it names was synced
        if not sound and not unreadable and (hole := self._torn_batch(file, found)) is not None:
            found, _reason = _core.scan_list(file.number, file.salt, buffer[: hole[0]])
            reason = hole[2]
        scanned = scanning.Scanned(found, reason, unreadable, b"")
        bad = listed.verify(buffer[:length])[0] if isinstance(listed, _core.FileList) else []
        return _Look(file, scanned, listed, bad)

    def _torn_batch(self, file: StoreFile, found: _core.FileList) -> tuple[int, int, str] | None:
        """Where the youngest file, or one begun behind it, ends, as a start sees it (recovery): at a hole of which no
        frame says that it was synced. The power failed while a batch was written; nothing behind it was confirmed."""
        if self.running or file.collected or file.number < self._youngest or self._mark is not None:
            return None
        if any(number > file.number for number in self._absent):
            return None  # what followed it cannot be asked
        return next((part for part in found.damage if part[0] >= found.vouched), None)

    def _again(self, file: StoreFile) -> _Look:
        with mmap.mmap(-1, max(file.size, mmap.PAGESIZE)) as memory, memoryview(memory) as view:
            return self._look(file, view)

    def _suspect(self, look: _Look) -> bool:
        tail = look.scanned.reason not in ("end", "zeros") and look.file.number < self._youngest
        return bool(look.scanned.found.damage or look.scanned.unreadable or look.bad or tail)

    def _stays(self, look: _Look) -> bool:
        """Beside a running node: is it still this very file, and its damage the same however often one looks?"""
        for _ in range(LOOKS - 1):
            again = self._again(look.file)
            same = (again.scanned.found.damage, again.bad) == (look.scanned.found.damage, look.bad)
            salt = FILE_HEADER.unpack(segment.read_page(look.file.path), "salt")
            if salt != look.file.salt:
                raise StoreError(f"{look.file.path} became another file") from FileNotFoundError()
            if not same:
                return False
        return True

    def lists(self) -> Iterator[_core.FileList]:
        """After `examine`: what each file holds, by its bytes, and by its list where that says more. A record that is
        damaged counts as there when a list names it: it is named as damage."""
        for look in self._looks.values():
            yield look.scanned.found
            if isinstance(look.listed, _core.FileList) and (look.scanned.found.damage or look.scanned.unreadable):
                yield look.listed

    # -- judge --------------------------------------------------------------------------------------------------

    def _judge(self, look: _Look, marked: bool) -> Found:
        file, scanned = look.file, look.scanned
        result = Found(file.path, bytes=file.size, records=scanned.found.messages + scanned.found.controls)
        listed = look.listed if isinstance(look.listed, _core.FileList) else None
        current = self.running and file.number >= self._youngest
        places = file_lists.Places(listed) if listed is not None and self._suspect(look) else None
        for start, end in scanned.unreadable:
            result.damage.append(self._cost(places, start, end, "the disk cannot read it"))
        for start, end, reason in scanned.found.damage:
            result.damage.append(self._cost(places, start, end, reason))
        used = scanned.found.used
        if listed is not None and listed.used > used:
            reason = "the file ends here" if scanned.whole else scanned.reason
            places = places or file_lists.Places(listed)
            result.damage.append(self._cost(places, used, listed.used, reason))
        elif listed is None and (made := expected.was_cut(file, self._listed)) is not None:
            result.damage.append(self._cost(None, file.size, made.end, "cut off"))
        elif listed is None and scanned.reason not in ("end", "zeros"):
            if file.number < self._youngest or marked or file.collected:
                result.damage.append(self._cost(None, used, file.size, scanned.reason))
            elif not current:
                result.note = (
                    f"no record at byte {used} ({scanned.reason}): the torn tail of an unclean stop, if anything"
                )
        known = {item[1] for item in look.bad}
        covered = {at for at in known if any(part.start <= at < part.end for part in result.damage)}
        for id, offset, total, kind, reason in look.bad:
            if offset not in covered:
                lost = [id.hex()] if kind == KIND_MESSAGE else []
                result.damage.append(
                    Damage(offset, offset + total, f"not what its list says ({reason})", len(lost), lost)
                )
        if result.damage:
            result.problem = self._say(result.damage)
        elif listed is not None and not file_lists.same_items(listed, scanned.found):
            result.list_problem = "its list does not name all of its records"
        elif isinstance(look.listed, str):
            result.list_problem = f"its list is damaged ({look.listed})"
        elif look.listed is None and not self.running:
            result.list_problem = "it has no list"
        if result.list_problem and not result.note:
            result.note = f"{result.list_problem}: the next start reads the file"
        if isinstance(look.listed, str):
            result.problem = result.problem or f"its list is damaged ({look.listed}); nothing is lost"
        return result

    @staticmethod
    def _cost(places: file_lists.Places | None, start: int, end: int, reason: str) -> Damage:
        if places is None:
            return Damage(start, end, reason)
        lost = places.within(start, end)
        return Damage(start, end, reason, len(lost), [id.hex() for id in lost[:IDS_MAX]])

    @staticmethod
    def _say(parts: list[Damage]) -> str:
        first = parts[0]
        many = f" and {len(parts) - 1} more damaged parts" if len(parts) > 1 else ""
        size = sum(part.end - part.start for part in parts)
        counts = [part.messages for part in parts if part.messages is not None]
        cost = counted(sum(counts), "message") if counts else "an unknown number of messages"
        return f"bytes {first.start} to {first.end} are damaged ({first.reason}){many}: {size} bytes, {cost} lost"

    # -- repair -------------------------------------------------------------------------------------------------

    def repair(self, progress: Progress = lambda _done, _all: None) -> list[Found]:
        """Repair all that can be, and look again. `actions` says what was done. Raises StoreError."""
        before = self.examine(progress)
        if any(found.problem or found.list_problem for found in before) or self._mended:
            mark = clean_mark.read(self.folder, self.node_id, self.owner)
            if mark is not None:
                data_files.unlink(self.folder / CLEAN, missing_ok=True)
            data_files.unlink(self.folder / FILES, missing_ok=True)  # files go and come
            segment.sync_directory(self.folder)
            self._repair_headers()
            restored = self._put_back()
            self._set_aside()
            self._note_missing(mark)
            for found in [found for found in before if found.path not in restored] + list(restored.values()):
                self._repair_file(found)
            self._list_anew()
            if mark is not None:
                self._mark_anew(mark)
        return self.examine(progress)

    def _did(self, text: str) -> None:
        self.actions.append(text)

    def _repair_headers(self) -> None:
        for number, page in self._mended.items():
            path = self._headers[number].path
            segment.rewrite_header(path, page)
            self._did(f"{path}: a flipped bit of its first page was repaired")

    def _put_back(self) -> dict[Path, Found]:
        """Files under wrong names, by way of the quarantine: a kill leaves them there. Returns what they are now."""
        listing = list_files(self.folder)
        taken = {number for number, _path in listing.files} - set(self._misnamed)
        moved: list[tuple[Path, int]] = []
        for number, own in sorted(self._misnamed.items()):
            path = data_path(self.folder, number)
            if own in taken:
                continue  # a copy
            target = quarantine.move(self.folder, path, f"it is file {own} by its first page")
            if target is not None:
                taken.add(own)
                moved.append((target, own))
        restored: dict[Path, Found] = {}
        for target, own in moved:
            path = data_path(self.folder, own)
            data_files.rename(target, path)
            segment.sync_directory(self.folder)
            self._did(f"{path}: was found under another name, and put back")
            header = segment.read_header(path, kind=FILE_STORE, node_id=self.node_id, owner=self.owner, file=own)
            low, high, size = header.position_low, header.position_high, path.stat().st_size
            self._headers[own] = StoreFile(own, path, header.salt, low, high, size)
            self._looks[own] = self._again(self._headers[own])
            restored[path] = self._judge(self._looks[own], True)
        return restored

    def _set_aside(self) -> None:
        """Files that cannot be served; their lists beside them."""
        for number, path in list_files(self.folder).files:
            if number in self._headers:
                continue
            if number == self._unused:
                data_files.unlink(path)
                self._did(f"{path}: removed, it never had its header")
                continue
            reason = next((found.damage[0].reason for found in self.found if found.path == path and found.damage), "")
            beside = list_path(self.folder, number)
            listed = file_lists.list_alone(beside, self.node_id, self.owner, number)
            messages = listed.messages if listed is not None else None
            target = quarantine.move(self.folder, path, reason or "not a file of this store", messages)
            if target is None:
                raise StoreError(f"cannot move {path} to the quarantine: free some space and try again")
            with contextlib.suppress(FileNotFoundError):
                data_files.rename(beside, target.with_name(target.name + LIST))
            self._did(f"{path}: moved to {target}")

    def _note_missing(self, mark: clean_mark.CleanMark | None) -> None:
        """What is missing is written down once; then it is forgotten, or each check would name it again."""
        listing = list_files(self.folder)
        there = {number for number, _path in listing.files}
        lost = [number for number in listing.lists if number not in there]
        lost += [number for number in expected.wanted(mark, self._listed) if number not in there]
        aside = {entry.file for entry in quarantine.entries(self.folder) if entry.moved}
        for number in dict.fromkeys(lost):
            name = f"{number}{DATA}"
            beside = list_path(self.folder, number)
            listed = file_lists.list_alone(beside, self.node_id, self.owner, number)
            messages = listed.messages if listed is not None else None
            if name not in aside:
                quarantine.note(self.folder, quarantine.Entry(name, 0, 0, "the file is missing", messages))
            elif not beside.exists():
                continue
            if beside.exists():
                self._quarantine()
                data_files.rename(
                    beside, self.folder / quarantine.QUARANTINE / quarantine.free_name(self.folder, beside.name)
                )
            self._did(f"{self.folder / name}: is missing; written down in {quarantine.QUARANTINE}/{quarantine.REPORT}")
        for path in listing.unfinished:
            data_files.unlink(path, missing_ok=True)
            self._did(f"{path}: removed, it was half made")
        segment.sync_directory(self.folder)

    def _repair_file(self, found: Found) -> None:
        number = int(found.path.name.split(".")[0]) if found.kind == "rdq" else -1
        look = self._looks.get(number)
        if look is None:
            return
        if found.damage:
            self._rewrite(look, found)
        else:
            self._make_list(look)

    def _make_list(self, look: _Look) -> None:
        listed = look.listed
        if isinstance(listed, _core.FileList) and file_lists.same_items(listed, look.scanned.found):
            return
        if look.scanned.reason not in ("end", "zeros"):
            segment.end_file(look.file.path, look.scanned.found.used, look.file.salt)
        unsynced.write_again(look.file.path, FILE_HEADER.size, look.scanned.found.used)  # its sync may have failed
        file_lists.write_list(self.folder, self.node_id, self.owner, look.scanned.found)
        self._did(f"{look.file.path}: its list was made")

    def _rewrite(self, look: _Look, found: Found) -> None:
        """The good records of a damaged file in a new one at its position."""
        file = look.file
        number = self._free_number()
        path = data_path(self.folder, number)
        unfinished = path.with_name(path.name + segment.UNFINISHED)
        salt = secrets.randbits(64)
        size = max(file.size, self._largest())
        with (
            mmap.mmap(-1, max(file.size, mmap.PAGESIZE)) as old,
            memoryview(old) as source,
            mmap.mmap(-1, size + mmap.PAGESIZE) as new,
            memoryview(new) as target,
        ):
            length, _unreadable = scanning.read_file(file.path, source)
            end = _core.rewrite_list(look.scanned.found, source[:length], target, salt)
            new[: FILE_HEADER.size] = _core.file_header_pack(
                FILE_STORE, self.node_id, self.owner, number, salt, time.time_ns(), file.low, file.high
            )
            listed, _reason = _core.scan_list(number, salt, target[:end])
            _write(unfinished, target[:end], max(size, end))
        self._quarantine()
        name = quarantine.free_name(self.folder, file.path.name)
        aside = self.folder / quarantine.QUARANTINE / name
        with contextlib.suppress(OSError):  # a file system without links: it is moved at the end
            data_files.link(file.path, aside)
        segment.sync_directory(aside.parent)
        atomic_file.replace(list_path(self.folder, number), listed.encode(self.node_id, self.owner))
        data_files.rename(unfinished, path)
        segment.sync_directory(self.folder)
        # From here on the new file stands for the damaged one.
        entries = [
            quarantine.Entry(
                file.path.name, part.start, part.end, part.reason, part.messages, part.end - part.start, name
            )
            for part in found.damage
        ]
        quarantine.note(self.folder, *entries)
        data_files.unlink(list_path(self.folder, file.number), missing_ok=True)
        data_files.unlink(file.path) if aside.exists() else data_files.rename(file.path, aside)
        segment.sync_directory(self.folder)
        self._did(f"{file.path}: its {listed.messages} good messages are in {path.name}, the file is {aside}")

    def _quarantine(self) -> None:
        atomic_file.make_directories(self.folder / quarantine.QUARANTINE)

    def _largest(self) -> int:
        return max((file.size for file in self._headers.values()), default=0)

    def _free_number(self) -> int:
        """A number that no file has or had, as far as anybody can say."""
        names = os.listdir(self.folder)
        with contextlib.suppress(OSError):
            names += os.listdir(self.folder / quarantine.QUARANTINE)
        numbers = [int(name.split(".")[0]) for name in names if name.split(".")[0].isdecimal()]
        return max((number for number in numbers if number < 1 << 62), default=-1) + 1

    def _list_anew(self) -> None:
        entries = {}
        for number, path in list_files(self.folder).files:
            salt = segment.salt_of(segment.read_page(path))
            if salt is not None:
                entries[key_of(number)] = Entry(salt, path.stat().st_size)
        FileRegister(self.folder / FILES, self.node_id, self.owner).begin(entries, [self.folder])

    def _mark_anew(self, mark: clean_mark.CleanMark) -> None:
        listing = list_files(self.folder)
        numbers = [number for number, _path in listing.files]
        if all(number in listing.lists for number in numbers):
            next_file = max(mark.next_file, self._free_number())
            clean_mark.save(self.folder, self.node_id, self.owner, next_file, numbers)


def _write(path: Path, data: memoryview, size: int) -> None:
    """Write a file of `size` bytes that begins with `data`, durably. Raises StoreError; no file is left then."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = data_files.open(path, flags, access.file_mode())
        try:
            os.posix_fallocate(fd, 0, size)
            atomic_file.write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        data_files.unlink(path, missing_ok=True)
        raise atomic_file.explain(error, f"cannot write {path}") from error
