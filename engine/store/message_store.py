"""One message store around its C core (`engine/store/store.h`): its regions, its files, growth, start and stop.

Invariants
  A file number is never used twice in a folder, also over restarts.
  Regions are new at every start; when they are announced (epoch, last), the old ones are marked as replaced and
  unlinked.
  What blocks may be called on any thread, and says so; the rest is called in the loop's (engine/store/host.py).
Crash points
  anywhere: regions of a dead server are removed by the next one; files are recovered (`engine/store/recovery.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from logging import WARNING
from pathlib import Path

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import LimitError, StoreError
from warren.engine.kernel import atomic_file, data_files, low_disk, quarantine, segment
from warren.engine.kernel.file_register import Entry, FileRegister
from warren.engine.kernel.formats import FILE_STORE, KIND_MESSAGE
from warren.engine.kernel.image_room import parts, sure
from warren.engine.kernel.paths import store_folder
from warren.engine.kernel.protocol import SUMMARY_ROW
from warren.engine.kernel.removal import Removal
from warren.engine.saying import Voice
from warren.engine.store import clean_mark, file_lists, file_summary, index, recovery, start_report
from warren.engine.store.folder import (
    Spares,
    data_path,
    key_of,
    list_files,
    list_path,
    recycle,
    remove_leftovers,
)
from warren.engine.store.job import Loss
from warren.ipc import _core as shared
from warren.ipc import names
from warren.ipc.layout import CONSTANTS, PAGE_BYTES, SERVER_STORE_TRANSIENT
from warren.ipc.region import (
    Region,
    RegionError,
    free_bytes,
    posix_create,
    posix_drop,
    posix_names,
    posix_open,
)
from warren.ipc.superblock import Superblock

ALARM_MEMORY, ALARM_DISK = CONSTANTS["ALARM_MEMORY"], CONSTANTS["ALARM_DISK"]
ALARM_SYNC_FAILED = CONSTANTS["ALARM_SYNC_FAILED"]


#: after so long without a new file, one spare is enough
SPARES_USED_S = 10.0

#: one line for people, into the server's log
say = Voice()


class MessageStore:
    """One store of a StoreHost."""

    def __init__(
        self, core: _core.StoreServer, superblock: Superblock, number: int, directory: Path, settings: Settings
    ) -> None:
        self.core = core
        self.superblock = superblock
        self.number = number
        self.folder = store_folder(directory, number)
        self.spares = Spares(self.folder)
        self.settings = settings
        self.node_id = superblock.node_id
        self.next_file = 0
        self.generation = 0
        self.index_generation = 0
        self.regions: dict[str, Region] = {}
        self.index_rows = 0
        self.file_wanted = False  #: the log asks for its next file
        self.file_coming = False  #: a helper thread makes it
        self.index_wanted = self.index_coming = False
        self.extents = 0
        self._ahead: dict[int, Future[Region]] = {}  #: extents that a start will want
        self.extent_wanted = self.extent_coming = False
        self.no_extent = False  #: none could be made, and that was said
        self.folder_fd = -1
        self.disk_full = False  #: there is no next file
        self.no_space = 0  #: errno of a write to the current one that found no space
        self.short_of: set[str] = set()  #: parts of the store that find no memory
        self.made: set[int] = set()  #: files offered to the log and perhaps not yet used
        self.made_at = time.monotonic()  #: when the last one was made
        self.listed: FileRegister | None = None  #: which files there are; the transient store has no such list

    # -- regions ------------------------------------------------------------------------------------------------

    def _name(self, what: str, generation: int) -> str:
        return self.superblock.region_name(what, self.number, generation)

    def _existing(self, what: str) -> list[int]:
        return self.superblock.generations(what, self.number)

    def _make_regions(self, messages: int, extents: int = 0) -> None:
        """New regions under a generation that was never used, with an index for so many messages.

        `extents` of its dense part are made beside them, by a thread: a start will want them at once.
        """
        published = self.superblock.server_get(self.number, "generation")
        published_index = self.superblock.server_get(self.number, "index_generation")
        whats = ("images", "summary", "directory", "dense")
        self.generation = max([published, *(n for what in whats for n in self._existing(what))]) + 1
        self.index_generation = max([published_index, *self._existing("index")]) + 1
        for what in whats:  # of a server that died before it announced them
            for leftover in self._existing(what):
                if leftover != published:
                    posix_drop(self._name(what, leftover))
        for leftover in self._existing("index"):
            if leftover != published_index:
                posix_drop(self._name("index", leftover))
        for name, generation in self._existing_extents():
            if generation != published:
                posix_drop(name)
        if extents:
            maker = ThreadPoolExecutor(1, thread_name_prefix="make-extent")
            for n in range(extents):
                self._ahead[n] = maker.submit(self._new_extent, n)
            maker.shutdown(wait=False)
        get = self.superblock.get
        self.index_rows = index.rows_for(messages, self.settings.index_rows)
        sizes = {
            "images": PAGE_BYTES + get("images_n") * get("file_bytes"),
            "directory": get("directory_rows") * 8,
            "summary": file_summary.region_bytes(get("summary_rows")),
            "dense": index.dense_bytes(get("dense_blocks")),
        }
        for what, size in sizes.items():
            # The log asks for more memory of its images itself, as it needs it.
            reserve = parts(sure(self.settings).store, get("file_bytes")) if what == "images" else None
            self.regions[what] = posix_create(self._name(what, self.generation), size, reserve)
        self.regions["index"] = posix_create(
            self._name("index", self.index_generation), index.region_bytes(self.index_rows)
        )
        region = self.regions
        self.core.open(
            self.number,
            region["images"].buffer,
            region["directory"].buffer,
            region["summary"].buffer,
            region["index"].buffer,
            region["dense"].buffer,
        )
        self.folder_fd = data_files.open_folder(self.folder)
        self.core.set_folder(self.number, self.folder_fd)

    def _existing_extents(self) -> list[tuple[str, int]]:
        """Names and generations of the extents of this store's index, whoever made them."""
        prefix = f"{names.node_prefix(self.superblock.shared_id)}dense"
        pattern = re.compile(rf"{re.escape(prefix)}([0-9]+)-{self.number}-([0-9]+)-[0-9a-f]+", re.ASCII)
        matches = [(name, pattern.fullmatch(name)) for name in posix_names(prefix)]
        found = [(name, match[1], int(match[2])) for name, match in matches if match is not None]
        return [(name, generation) for name, number, generation in found if name == self._extent(number, generation)]

    def _extent(self, number: int | str, generation: int) -> str:
        return self._name(f"dense{number}", generation)

    def announce(self) -> None:
        """Publish the generations and remove the regions of the server before.

        Both parts of its index are marked as replaced first, so that no reader takes an old part and a new one for one.
        """
        old_index = [
            name for n in self._existing("index") if n != self.index_generation for name in [self._name("index", n)]
        ]
        old_dense = [name for n in self._existing("dense") if n != self.generation for name in [self._name("dense", n)]]
        for name in old_index + old_dense:
            self._mark_replaced(name)
        self.superblock.server_set(self.number, "generation", self.generation)
        self.superblock.server_set(self.number, "index_generation", self.index_generation)
        for name in old_index + old_dense:
            posix_drop(name)
        for what in ("images", "summary", "directory"):
            for generation in self._existing(what):
                if generation != self.generation:
                    posix_drop(self._name(what, generation))
        for name, generation in self._existing_extents():
            if generation != self.generation:
                posix_drop(name)

    @staticmethod
    def _mark_replaced(name: str) -> None:
        try:
            old = posix_open(name, writable=True)
        except RegionError:
            return
        index.mark_replaced(old.buffer)
        old.close()

    def alarm(self, bit: int, on: bool) -> None:
        """Raise or clear an alarm of this store; the supervisor sums up those of all servers."""
        self.superblock.server_alarm(self.number, bit, on)

    def short(self, what: str, on: bool) -> bool:
        """Part of it finds no memory, or finds it again; the alarm is on as long as any does. False: that is known."""
        if on == (what in self.short_of):
            return False
        (self.short_of.add if on else self.short_of.discard)(what)
        self.alarm(ALARM_MEMORY, bool(self.short_of))
        return True

    def make_index(self, rows_now: int, live: int) -> tuple[Region, int]:
        """A region for a larger or cleaned table, its pages touched; any thread. Raises RegionError, LimitError."""
        rows = index.rows_after(rows_now, live)
        if rows == rows_now and live > rows * index.FULL:
            raise LimitError(f"the index of the store has reached its limit of {index.ROWS_MAX} rows")
        region = posix_create(self._name("index", self.index_generation + 1), index.region_bytes(rows))
        _core.populate(region.buffer)
        self.superblock.crash_point(CONSTANTS["CRASH_INDEX_GROWING"])
        return region, rows

    def take_index(self, region: Region, rows: int) -> Region:
        """Go over to the index that was made; returns the old one, for drop_index."""
        self.core.replace_index(self.number, region.buffer)
        old, self.regions["index"] = self.regions["index"], region
        self.index_generation, self.index_rows = self.index_generation + 1, rows
        if self.superblock.server_get(self.number, "generation") == self.generation:
            self.superblock.server_set(self.number, "index_generation", self.index_generation)
        index.mark_replaced(old.buffer)
        return old

    def grow_index(self) -> None:
        """Make a new index and go over to it at once (recovery). Raises RegionError, LimitError."""
        look = self.core.look(self.number)
        self.drop_index(self.take_index(*self.make_index(look["index_rows"], look["index_live"])))

    def make_extent(self) -> Region:
        """The next extent of the index, its pages touched; any thread. Raises RegionError."""
        ahead = self._ahead.pop(self.extents, None)
        return ahead.result() if ahead is not None else self._new_extent(self.extents)

    def _new_extent(self, number: int) -> Region:
        name = self._extent(number, self.generation)
        if not self._room_for_whole():
            return posix_create(name, index.EXTENT_BYTES, ())
        try:
            region = posix_create(name, index.EXTENT_BYTES)
        except RegionError as error:
            if error.errno != errno.ENOSPC:
                raise
            region = posix_create(name, index.EXTENT_BYTES, ())  # each block gets its memory when it is used
        else:
            _core.populate(region.buffer)
        self.superblock.crash_point(CONSTANTS["CRASH_INDEX_EXTENT"])
        return region

    def _room_for_whole(self) -> bool:
        """Whether an extent may have all its memory now: as much is left for the next one, and for the regions of a
        server after this one, which are made beside ours.
        """
        return free_bytes() >= 2 * index.EXTENT_BYTES + sum(region.size for region in list(self.regions.values()))

    def take_extent(self, region: Region) -> None:
        """Give the index the extent that was made."""
        self.core.add_extent(self.number, region.buffer)
        self.regions[f"dense{self.extents}"] = region
        self.extents += 1

    def add_extent(self) -> None:
        """Make an extent and take it at once (recovery). Raises RegionError."""
        self.take_extent(self.make_extent())

    @staticmethod
    def drop_index(old: Region) -> None:
        """Unlink and unmap an index that was replaced. On any thread: freeing its pages takes long."""
        posix_drop(old.name)
        old.close()

    # -- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> start_report.Report:
        """Make the regions and fill them from the folder. Raises StoreError and its kinds, RegionError, LimitError."""
        with atomic_file.file_explained(f"cannot make {self.folder}, or clean it"):
            atomic_file.make_directories(self.folder)
            remove_leftovers(self.folder)
        if self.number == SERVER_STORE_TRANSIENT:
            report = self._wipe()
        else:
            starting = recovery.Recovery(
                self.core,
                self.number,
                self.folder,
                self.node_id,
                self._make_regions,
                self.grow_index,
                self.add_extent,
                self.superblock,
                say,
            )
            report = starting.run()
            self.listed = starting.files
            self.superblock.server_add(self.number, "lost_unknown_n", report.unknown)
        self.next_file = report.next_file
        self.spares.read()
        return report

    def _wipe(self) -> start_report.Report:
        """The transient store begins empty; its numbers go on, so that no reader takes a new file for an old one."""
        listing = list_files(self.folder)
        there = (*listing.files, *listing.spares)
        report = start_report.Report(next_file=max((number for number, _path in there), default=-1) + 1)
        report.foreign = listing.foreign
        for path in [*(path for _number, path in listing.files), *listing.unfinished, *listing.lists.values()]:
            data_files.unlink(path, missing_ok=True)
        self._make_regions(0)
        self.core.finish(self.number)
        return report

    def save(self) -> None:
        """After the committer has ended: the lists that are missing, and last the clean mark. Raises StoreError."""
        if self.number == SERVER_STORE_TRANSIENT:
            data_files.remove_tree(self.folder, ignore_errors=True)
            return
        while (rolled := self.core.take_list(self.number)) is not None:
            self.write_list(rolled)
        current = self.core.current_list(self.number)
        if current is not None:
            # Behind its frames may lie what the blocks held before; its list may go before it does.
            segment.end_file(data_path(self.folder, current.file), current.used, current.salt)
            self.write_list(current)
        self.superblock.crash_point(CONSTANTS["CRASH_STOP_LISTS"])
        files = [row.file for row in file_summary.files(self.regions["summary"].buffer)]
        unused = self.made - set(files)  # made ahead, and never written to
        self.forget(unused)
        for number in unused:
            data_files.unlink(data_path(self.folder, number), missing_ok=True)
        missing = [n for n in files if not list_path(self.folder, n).exists()]
        if missing:
            say(f"{self.folder}: files {missing} have no list; the next start reads them", WARNING)
            return
        clean_mark.save(self.folder, self.node_id, self.number, self.next_file, files)
        self.superblock.crash_point(CONSTANTS["CRASH_STOP_MARKED"])

    def close(self, unlink: bool) -> None:
        """Unmap the regions, after the core let go of them; `unlink`: the node ends."""
        for number, ahead in self._ahead.items():
            with contextlib.suppress(RegionError):
                self.regions[f"dense{number}"] = ahead.result()
        self._ahead.clear()
        for region in self.regions.values():
            region.close()
            if unlink:
                posix_drop(region.name)
        self.regions.clear()
        if self.folder_fd >= 0:
            os.close(self.folder_fd)
            self.folder_fd = -1

    # -- files --------------------------------------------------------------------------------------------------

    def take_number(self) -> int:
        """A number for a file, whose row of the summary is free. In the loop thread."""
        summary, rows = self.regions["summary"].buffer, self.superblock.get("summary_rows")
        coming = {number % rows for number in self.made}
        for number in range(self.next_file, self.next_file + rows):
            row = number % rows
            if row not in coming and not shared.load64(summary, row * SUMMARY_ROW.size):
                break
        else:
            number = self.next_file  # none is free: who wants to use it is told so
        self.next_file = number + 1
        return number

    def give_back(self, number: int) -> None:
        """The file with this number was not made; the number is free again if nothing has its name."""
        if self.next_file == number + 1 and not os.path.lexists(data_path(self.folder, number)):
            self.next_file = number

    def make_file(self, number: int) -> segment.Created:
        """On a helper thread: the next file. Raises DiskFull, StoreError."""
        path = data_path(self.folder, number)
        size = self.superblock.get("file_bytes")
        made = segment.create(
            path,
            FILE_STORE,
            self.node_id,
            self.number,
            number,
            size,
            spares=self.spares,
            passed=self.superblock.crash_point,
        )
        try:
            self.remember(number, made.salt, size)
        except StoreError:
            os.close(made.fd)
            with contextlib.suppress(OSError):  # the first error counts
                data_files.unlink(path, missing_ok=True)
            raise
        self.superblock.crash_point(CONSTANTS["CRASH_FILE_MADE"])
        self.made_at = time.monotonic()
        low_disk.look(self.superblock, self.folder)
        return made

    def remember(self, number: int, salt: int, size: int) -> None:
        """On a helper thread: a file is there for good; from now on it is missed. Raises StoreError."""
        if self.listed is not None:
            self.listed.note({key_of(number): Entry(salt, size)})

    def forget(self, numbers: Iterable[int]) -> None:
        """On a helper thread: files are about to go. Raises StoreError; then they must stay."""
        if self.listed is not None:
            self.listed.note(gone=[key_of(number) for number in numbers])

    def write_list(self, file_list: _core.FileList) -> None:
        """Any thread: write the list of a file. Raises StoreError."""
        file_lists.write_list(self.folder, self.node_id, self.number, file_list)
        self.superblock.crash_point(CONSTANTS["CRASH_LIST_WRITTEN"])

    def files(self) -> list[file_summary.FileRow]:
        """The file summary as it is now."""
        return list(file_summary.files(self.regions["summary"].buffer))

    def discard(self, path: Path) -> None:
        """On a helper thread: a file that goes becomes a spare, while there are few. Raises StoreError."""
        full = self.disk_full or self.superblock.get("alarms") & ALARM_DISK
        recycle(path, self.superblock.get("file_bytes"), self.spares, 0 if full else self.spares_useful())

    def spares_useful(self) -> int:
        """How many spares are of use: as many as the settings say while files are made, then one."""
        used = time.monotonic() - self.made_at < SPARES_USED_S
        return self.settings.spare_files if used else min(1, self.settings.spare_files)

    def drop_spares(self, most: int) -> None:
        """On a helper thread: spares above this number go, and their space. Raises StoreError, OSError."""
        with Removal() as removal:
            while len(self.spares) > most and (path := self.spares.take()) is not None:
                removal.add(path)
                data_files.unlink(path, missing_ok=True)
            segment.sync_directory(self.folder)
            removal.give_back()

    def quarantine(self, path: Path, losses: list[Loss]) -> None:
        """On a helper thread: a damaged file that was collected is kept for people. Raises StoreError."""
        for loss in losses:
            entry = quarantine.Entry(path.name, loss.offset, loss.offset + loss.total, loss.reason)
            entry.messages, entry.bytes = int(loss.kind == KIND_MESSAGE), loss.total
            quarantine.note(self.folder, entry)
        lost = sum(loss.kind == KIND_MESSAGE for loss in losses)
        if quarantine.move(self.folder, path, "damaged records found by a collection", lost) is None:
            raise StoreError(f"{path} cannot be moved to {self.folder / quarantine.QUARANTINE}")
