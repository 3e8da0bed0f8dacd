"""How the queue index moves on: the oldest journal file into segments, acks into segment entries.

Declared with its invariants and crash points in engine/queues/folder.py. A module of its own because it needs
numpy, which a start does not wait for: the thread that keeps the index imports it when there are two journal files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    LISTED_DATA,
    LISTED_INDEX,
    QUEUE_SEGMENT_ENTRY,
    SEGMENT_ENTRY_COUNT,
)
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.kernel.rows import SEGMENT_ACK, SEGMENT_ROW
from warren.engine.queues import segment_stamp
from warren.engine.queues.folder import Folder, Reached, nowhere
from warren.ipc import access

FILES_AT_ONCE = 128  #: segments that a flush has open
LINK_SHARE = 0.5  #: of a journal file that must be alive for it to become a data file as it is
LOCATION_JOURNAL = PROTOCOL["LOCATION_JOURNAL"]
LOCATION_SEGMENT = PROTOCOL["LOCATION_SEGMENT"]
LOCATION_STORE = PROTOCOL["LOCATION_STORE"]
LOCATION_LARGE = PROTOCOL["LOCATION_LARGE"]
ENTRY_BYTES = QUEUE_SEGMENT_ENTRY.size
SEGMENT_BYTES = FILE_HEADER_BYTES + SEGMENT_ENTRY_COUNT * ENTRY_BYTES

ROW, ACK = np.dtype(SEGMENT_ROW.columns()), np.dtype(SEGMENT_ACK.columns())


# ---- flush: the oldest journal file into segments -------------------------------------------------------------------


def flush(
    folder: Folder,
    node_id: int,
    server: int,
    file: int,
    rows: memoryview,
    live: dict[tuple[int, int], int],
    named: set[tuple[int, int]],
    files: FileRegister,
    reached: Reached = nowhere,
) -> None:
    """Bring what is alive of a journal file into segments, durably, and give the rows their new places.

    `rows` comes from engine.export_file and goes to engine.flushed; then the file may go. Runs in a thread of
    its own: the journal file is sealed, nobody changes it. `live` counts the entries of each segment on disk,
    `named` are those whose names are durable.
    Raises DiskFull, SyncFailed, StoreError; then the journal file stays and nothing is lost.
    """
    with atomic_file.file_explained(f"cannot flush {folder.journal_file(file)} into segments"):
        if _write_bodies(folder, file, rows, reached):
            data = folder.data_file(file)
            salt = segment.read_header(data, kind=FILE_JOURNAL, node_id=node_id, owner=server, file=file).salt
            files.note({(LISTED_DATA, 0, file): Entry(salt, data.stat().st_size)})
        reached("flush.dat-synced")
        write_entries(folder, node_id, server, rows, live, named, files, reached)
        reached("flush.idx-synced")


def _write_bodies(folder: Folder, file: int, rows: memoryview, reached: Reached) -> bool:
    """Bring the frames of embedded bodies into <file>.dat, each once, and give the rows their new places. False: there
    are none."""
    embedded_n, frame_bytes, each_once = _core.QueueEngine.look_at_rows(rows)
    if not embedded_n:
        return False
    if not _link_bodies(folder, file, rows, frame_bytes, each_once, reached):
        table = np.frombuffer(rows, dtype=ROW)
        _copy_bodies(folder, file, table, table["location"] == LOCATION_JOURNAL, reached)
    _core.QueueEngine.place_rows(rows, file)
    return True


def _link_bodies(
    folder: Folder, file: int, rows: memoryview, frame_bytes: int, each_once: bool, reached: Reached
) -> bool:
    """A journal file of which most is alive becomes the data file as it is, offsets and all. False: copy."""
    journal, path = folder.journal_file(file), folder.data_file(file)
    try:
        there = path.stat()
    except FileNotFoundError:
        needed = LINK_SHARE * journal.stat().st_size
        if frame_bytes < needed and (each_once or _distinct_bytes(rows) < needed):
            return False
        try:
            data_files.link(journal, path)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EXDEV):
                return False
            raise
        reached("flush.linked")
    else:
        if not os.path.samestat(there, journal.stat()):
            return False  # some frames were copied before; others go behind them
    segment.sync_directory(folder.segments)
    return True


def _distinct_bytes(rows: memoryview) -> int:
    """Of the frames that the rows name: messages of several queues, and perhaps of one in several."""
    table = np.frombuffer(rows, dtype=ROW)
    embedded = table["location"] == LOCATION_JOURNAL
    _offsets, first = np.unique(table["offset"][embedded], return_index=True)
    return int(table["frame_length"][embedded][first].sum(dtype=np.int64))


def _copy_bodies(
    folder: Folder, file: int, table: NDArray[np.void], embedded: NDArray[np.bool_], reached: Reached
) -> None:
    """The frames that are alive go into the data file. A new one is whole and synced before it has its name; one that
    is there has the journal's own header page, or gets it with the rest: its salt validates every frame."""
    journal, path = folder.journal_file(file), folder.data_file(file)
    data = data_files.read(journal)
    offsets, first = np.unique(table["offset"][embedded], return_index=True)
    lengths = table["frame_length"][embedded][first].astype(np.int64)
    if int(offsets[-1]) + int(lengths[-1]) > len(data):
        raise CorruptRecord(journal, int(offsets[-1]), f"a frame of {lengths[-1]} bytes", f"the end at {len(data)}")
    header = data[:FILE_HEADER_BYTES]
    found = segment.read_page(path) if path.exists() else b""
    # A second flush of the same file (claims moved meanwhile) goes behind the first one.
    start = path.stat().st_size if len(found) == FILE_HEADER_BYTES else FILE_HEADER_BYTES
    places = start + np.concatenate(([0], np.cumsum(lengths)[:-1]))
    if int(places[-1] + lengths[-1]) > 0xFFFF_FFFF:
        raise StoreError(f"{path} would grow beyond 4 GiB: lower file_bytes")
    frames = b"".join(data[at : at + size] for at, size in zip(offsets.tolist(), lengths.tolist(), strict=True))
    if found == header:
        _append(path, frames, start, reached)
    else:
        before = data_files.read(path)[FILE_HEADER_BYTES:] if found else b""
        _make_whole(path, header + before + frames, reached)
    segment.sync_directory(folder.segments)
    table["offset"][embedded] = places[np.searchsorted(offsets, table["offset"][embedded])]


def _append(path: Path, frames: bytes, start: int, reached: Reached) -> None:
    """Nothing names these bytes before they are synced, so a failure leaves what was there; it gives the space back."""
    fd = data_files.open(path, os.O_WRONLY)
    try:
        try:
            atomic_file.write_all(fd, frames, start)
            reached("flush.dat")
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):  # the first error counts; another flush goes behind what stays
                os.ftruncate(fd, start)
            raise
    finally:
        os.close(fd)


def _make_whole(path: Path, content: bytes, reached: Reached) -> None:
    """A file has all its bytes, synced, when it gets its name. What a failure leaves has no name that counts."""
    unfinished = segment.unfinished_path(path)
    fd = data_files.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, access.file_mode())
    try:
        try:
            atomic_file.write_all(fd, content, 0)
            reached("flush.dat")
            os.fsync(fd)
        finally:
            os.close(fd)
        data_files.rename(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):  # it is full of what found no room; the next start removes it, too
            data_files.unlink(unfinished, missing_ok=True)
        raise


def _open_segment(path: Path, node_id: int, server: int, number: int) -> tuple[int, int]:
    """(descriptor, salt) of a segment file; FileNotFoundError when it is not there."""
    fd = data_files.open(path, os.O_RDWR)
    try:
        page = os.pread(fd, FILE_HEADER_BYTES, 0)
        header = segment.check_header(path, page, kind=FILE_SEGMENT, node_id=node_id, owner=server, file=number)
    except BaseException:
        os.close(fd)
        raise
    return fd, header.salt


def _new_segment(path: Path, node_id: int, server: int, number: int) -> tuple[int, int]:
    """(descriptor, salt) of a new segment under its unfinished name; whoever renames it has synced it."""
    salt = secrets.randbits(64)
    unfinished = segment.unfinished_path(path)
    fd = data_files.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, access.file_mode())
    try:
        os.posix_fallocate(fd, 0, segment_stamp.STAMP_AT + segment_stamp.STAMP_BYTES)
        page = _core.file_header_pack(FILE_SEGMENT, node_id, server, number, salt, time.time_ns())
        atomic_file.write_all(fd, page, 0)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            data_files.unlink(unfinished, missing_ok=True)
        raise
    return fd, salt


def _write_runs(fd: int, slots: NDArray[np.int64], content: bytes | memoryview) -> None:
    """Write entries to their places, neighbours in one write."""
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    view = memoryview(content)
    for begin, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(slots)], strict=True):
        at = FILE_HEADER_BYTES + int(slots[begin]) * ENTRY_BYTES
        atomic_file.write_all(fd, view[begin * ENTRY_BYTES : stop * ENTRY_BYTES], at)


def _stamp(fd: int, files: FileRegister, queue: int, number: int, salt: int) -> Entry:
    """Say in a segment that it is changed once more; what the list is to say when that is durable. Before the change:
    where the file says no more than the list, nothing was changed since its last sync."""
    known = files.known((LISTED_INDEX, queue, number)) or Entry()
    changes = known.end + 1
    atomic_file.write_all(fd, segment_stamp.stamp(salt, queue, number, changes), segment_stamp.STAMP_AT)
    return Entry(salt, changes, known.messages)


def write_entries(
    folder: Folder,
    node_id: int,
    server: int,
    rows: memoryview,
    live: dict[tuple[int, int], int],
    named: set[tuple[int, int]],
    files: FileRegister,
    reached: Reached = nowhere,
) -> None:
    """Bring entries into segments, durably; the list knows the segments then."""
    groups = _core.QueueEngine.groups_of_rows(rows)
    changed: dict[tuple[int, int], Entry] = {}
    for first in range(0, len(groups), FILES_AT_ONCE):
        _write_groups(
            folder, node_id, server, rows, groups[first : first + FILES_AT_ONCE], named, changed, files, reached
        )
    there = {}
    for queue, number, first, end in groups:
        entry = changed[queue, number]
        there[LISTED_INDEX, queue, number] = entry._replace(messages=live.get((queue, number), 0) + end - first)
    files.note(there)
    for queue, number, first, end in groups:
        named.add((queue, number))
        live[queue, number] = live.get((queue, number), 0) + end - first


def _write_groups(
    folder: Folder,
    node_id: int,
    server: int,
    rows: memoryview,
    groups: list[tuple[int, int, int, int]],
    named: set[tuple[int, int]],
    changed: dict[tuple[int, int], Entry],
    files: FileRegister,
    reached: Reached,
) -> None:
    """Written first, synced afterwards: the first sync of many files takes most of the others with it."""
    fds: list[int] = []
    new: list[Path] = []
    unnamed: set[Path] = set()
    try:
        for queue, number, first, end in groups:
            path = folder.index_file(queue, number)
            try:
                fd, salt = _open_segment(path, node_id, server, number)
                if (queue, number) not in named:  # whoever made it may have been killed before he synced its name
                    unnamed.add(path.parent)
            except FileNotFoundError:
                atomic_file.make_directories(path.parent)
                fd, salt = _new_segment(path, node_id, server, number)
                new.append(path)
                unnamed.add(path.parent)
            fds.append(fd)
            changed[queue, number] = _stamp(fd, files, queue, number, salt)
            _core.QueueEngine.write_rows(fd, rows, first, end, salt)
            reached("flush.idx-new" if new and new[-1] == path else "flush.idx")
        for fd in fds:
            os.fdatasync(fd)
        for path in new:
            data_files.rename(segment.unfinished_path(path), path)
    except OSError:
        for path in new:  # a full disk gets its space back; the next start removes what stays
            with contextlib.suppress(OSError):
                data_files.unlink(segment.unfinished_path(path), missing_ok=True)
        raise
    finally:
        for fd in fds:
            os.close(fd)
    for directory in unnamed:
        segment.sync_directory(directory)


def apply_acks(
    folder: Folder, acks: bytes, live: dict[tuple[int, int], int], files: FileRegister, reached: Reached = nowhere
) -> int:
    """Zero the entries of messages that are gone, durably; remove segments without entries. Returns how many were
    removed.

    Runs in the thread that flushes. Entries that are not there (a deleted queue, a flush that came too late) do not
    matter.
    """
    changed: dict[Key, Entry] = {}
    work: list[tuple[int, int, NDArray[np.int64], int | None]] = []
    emptied: list[tuple[int, int]] = []
    parents: set[Path] = set()  #: of files that are gone
    with atomic_file.file_explained(f"cannot write to the segments of {folder.path}"):
        for (queue, number), gone in _masks(np.frombuffer(acks, dtype=ACK)).items():
            path = folder.index_file(queue, number)
            try:
                left, salt = _left(path, gone)
            except FileNotFoundError:
                live.pop((queue, number), None)
                if path.parent.is_dir():  # the last attempt may have removed it, and not got to make that durable
                    parents.add(path.parent)
                continue
            live[queue, number] = left
            if not left:
                emptied.append((queue, number))
                continue
            work.append((queue, number, np.flatnonzero(gone), salt))
            if (known := files.known((LISTED_INDEX, queue, number))) is not None:
                changed[LISTED_INDEX, queue, number] = known._replace(messages=left)
        # Before they are zeroed: fewer entries than the list says are damage.
        files.note(changed, [(LISTED_INDEX, queue, number) for queue, number in emptied])
        for queue, number, slots, salt in work:
            fd = data_files.open(folder.index_file(queue, number), os.O_RDWR)
            try:
                if salt is not None:
                    entry = _stamp(fd, files, queue, number, salt)
                    changed[LISTED_INDEX, queue, number] = entry._replace(messages=live[queue, number])
                _write_runs(fd, slots, bytes(ENTRY_BYTES * len(slots)))
                reached("acks.zeroed")
                os.fdatasync(fd)
            finally:
                os.close(fd)
        files.note(changed)
        for queue, number in emptied:
            path = folder.index_file(queue, number)
            data_files.unlink(path, missing_ok=True)
            parents.add(path.parent)
            live.pop((queue, number), None)
        for parent in parents:
            segment.sync_directory(parent)
        reached("acks.synced")
    return len(emptied)


def _left(path: Path, gone: NDArray[np.bool_]) -> tuple[int, int | None]:
    """How many entries of a segment are left when some have gone, and its salt, if its header page is whole. That is
    read off the file, so that a damaged entry is never taken for nothing."""
    fd = data_files.open(path, os.O_RDONLY)
    try:
        if gone.all():
            return 0, None
        content = os.pread(fd, SEGMENT_BYTES, 0)
    finally:
        os.close(fd)
    entries = np.frombuffer(content, dtype=np.uint64, offset=FILE_HEADER_BYTES)
    used: NDArray[np.bool_] = np.asarray(entries.reshape(-1, ENTRY_BYTES // 8).any(axis=1))
    used[gone[: len(used)]] = False
    return int(used.sum()), segment.salt_of(content[:FILE_HEADER_BYTES])


def _masks(ranges: NDArray[np.void]) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """(queue, segment) → which of its entries the ranges name."""
    found: dict[tuple[int, int], NDArray[np.bool_]] = {}
    columns = (ranges[name].tolist() for name in ("queue", "first", "count"))
    for queue, first, count in zip(*columns, strict=True):
        end = first + count
        while first < end:
            number, slot = divmod(first, SEGMENT_ENTRY_COUNT)
            n = min(end - first, SEGMENT_ENTRY_COUNT - slot)
            mask = found.get((queue, number))
            if mask is None:
                mask = found[queue, number] = np.zeros(SEGMENT_ENTRY_COUNT, dtype=np.bool_)
            mask[slot : slot + n] = True
            first += n
    return found
