"""How a queue index comes back at a start: segments, then the journal, then the clean mark.

    recover           fill an engine that is going to serve: what is damaged is put right, set aside or given up
    look              the same for a move or a check: nothing on disk is changed
    unknown_queues    which queues a worker's files name that no catalog can have given

What the files are, their invariants and crash points: engine/queues/folder.py. How the index moves on: flush.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import CatalogCut, CorruptRecord, FormatVersionError, StoreError
from warren.engine.kernel import atomic_file, data_files, file_register, quarantine, segment, unsynced
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    LISTED_DATA,
    LISTED_INDEX,
    LISTED_JOURNAL,
    LISTED_SUBSCRIPTIONS,
)
from warren.engine.queues import replay, segments
from warren.engine.queues.folder import NO_SUBSCRIPTIONS, Folder, Reached, nowhere
from warren.engine.queues.recovered import Recovered, put_right
from warren.engine.queues.terms import read_terms


def recover(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    reached: Reached = nowhere,
    held: Mapping[int, memoryview] | None = None,
    files: FileRegister | None = None,
    had_subscriptions: bool | None = None,
    ids_end: int = 0,
) -> Recovered:
    """Fill an engine, whose queues are declared, from segments and journal. Afterwards acks are journalled again.
    `held`: journal files that need not be read (`held_files`). `files`: the worker's list, which is written anew.
    `had_subscriptions`: whether subscriptions.json was there before this start, when it may be there since.
    `ids_end`: the catalog never gave a queue id from here on; 0: nobody knows.

    A torn tail is cut; damage elsewhere is reported in `damaged` and costs what was hit, no more. What is listed and
    not there is reported, too. Raises FormatVersionError and CatalogCut (nothing was removed), StoreError, SyncFailed.
    """
    began = time.monotonic()
    found = Recovered()
    reached("recover.salvaged")
    files = files or FileRegister(folder.files, node_id, server)
    found.listed = files.load()
    if found.listed.problem:
        found.hurt(folder, folder.files, f"{found.listed.problem}; missing files cannot be noticed")
    if not found.listed.there and segment.list_files(folder.journal, ".jnl").files:
        # of a directory that was made before there were lists, or it was removed
        found.hurt(folder, folder.files, "there is no list of files: missing files cannot be noticed; it is made now")
    if had_subscriptions is False and (LISTED_SUBSCRIPTIONS, 0, 0) in found.listed.entries:
        found.hurt(folder, folder.subscriptions, NO_SUBSCRIPTIONS)
    with atomic_file.file_explained(f"cannot read {folder.path}"):
        _give_names_back(folder, found)
        engine.ids_end(ids_end)
        ends, tails = _read(engine, folder, node_id, server, found, dict(held or {}), True)
        _check_data(engine, folder, node_id, server, found, True)
        _end(engine, folder, node_id, server, ends, found)
        if ids_end and (unknown := _beyond(engine, found, ids_end)):
            raise CatalogCut(catalog_lost(folder, unknown, ids_end))
        replay.judge(tails, found)
    if found.damaged:  # behind a gap a queue says by itself how many are missing
        found.lost = max(found.lost, sum(engine.lost(queue) for queue in engine.queues()))
    if what := data_files.instead(folder.terms):
        found.aside.append((folder.terms, f"{what} lay in its place"))
    elif folder.terms.exists():
        data_files.unlink(folder.terms)
        segment.sync_directory(folder.path)
    if found.parts:
        quarantine.note(folder.path, *found.parts)
    for path, reason in found.aside:
        quarantine.move(folder.path, path, reason)
    live = engine.data_files()
    listing = segment.list_files(folder.segments, ".dat")
    for path in listing.unfinished:
        data_files.unlink(path, missing_ok=True)
    unneeded = []
    for number, path in listing.files:
        found.next_file = max(found.next_file, number + 1)
        if not live.get(number):
            unneeded.append(path)
    _settle_segments(folder, found)
    # The list first: what goes must not be missed, should this start be the last thing that happens for a while.
    there = found.there | _data_entries(folder, live)
    new = {folder.path_of(key).parent for key in there if files.known(key) is None}
    files.begin(there, sorted(new | {directory.parent for directory in new}))
    for path in unneeded:
        # Behind damage nobody can say whether it is needed: who puts a lost index file back finds the bodies, too.
        if not found.damaged or quarantine.move(folder.path, path, "nothing that was found refers to it") is None:
            data_files.unlink(path, missing_ok=True)
    found.seconds = time.monotonic() - began
    return found


def _beyond(engine: _core.QueueEngine, found: Recovered, ids_end: int) -> set[int]:
    """Queue ids from `ids_end` on that were read: of a catalog that knew more, as ids are durable first."""
    named = {*engine.unknown(), *(id for id, _of, _n in engine.past_queues()), *found.marked}
    named.update(queue for _kind, queue, _number in found.listed.entries)
    return {id for id in named if id >= ids_end}


def unknown_queues(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, ids_end: int
) -> tuple[set[int], set[int]]:
    """Queue ids from `ids_end` on that a worker's files name: those with records, and all. Nothing on disk is changed;
    the engine, which has no queues, is of no use afterwards. Raises FormatVersionError, StoreError.
    """
    found = Recovered(listed=file_register.read(folder.files, node_id, server))
    terms = read_terms(folder, node_id, server)
    found.marked = set(terms.queues) if terms is not None else set()
    engine.ids_end(ids_end)
    recorded: set[int] = set()
    with atomic_file.file_explained(f"cannot read {folder.path}"):
        if folder.segments.is_dir():
            names = [entry.name for entry in os.scandir(folder.segments) if entry.is_dir(follow_symlinks=False)]
            recorded = {int(name) for name in names if name.isascii() and name.isdigit() and int(name) >= ids_end}
        if folder.journal.is_dir():
            replay.read_journal(engine, folder, node_id, server, found, {}, False)
    recorded.update(engine.unknown())
    return recorded, recorded | _beyond(engine, found, ids_end)


def catalog_lost(folder: Folder, ids: Iterable[int], ids_end: int) -> str:
    """What a worker's files say that the catalog does not, and what to do."""
    shown = sorted(ids)
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return (
        f"{folder.path.name} has records of queues with ids {', '.join(map(str, shown[:10]))}{more}, and the catalog "
        f"gave out none from {ids_end} on: catalog.json or catalog.*.log was cut, or is an older copy; nothing was "
        "removed; restore them, all from the same moment, from a backup, or let these queues be declared again by "
        "`warren check DIR --repair`"
    )


def _settle_segments(folder: Folder, found: Recovered) -> None:
    """Who wrote entries, zeroed them, or removed a segment may have been killed before its sync, or that may have
    failed. What was read here is relied upon: journal files of which nothing else is needed go. A segment that says of
    itself what the list says of it has been synced since it was changed."""
    for key, entry in found.there.items():
        listed = found.listed.entries.get(key)
        if key[0] == LISTED_INDEX and (listed is None or not entry.end or entry.end != listed.end):
            found.written_again += unsynced.write_again(folder.path_of(key))
    if found.clean:
        return
    with atomic_file.file_explained(f"cannot read {folder.segments}"):
        own = [Path(entry.path) for entry in os.scandir(folder.segments) if entry.is_dir(follow_symlinks=False)]
    for directory in own:
        segment.sync_directory(directory)


def _data_entries(folder: Folder, live: dict[int, int]) -> dict[Key, Entry]:
    entries = {}
    for number in (number for number, n in live.items() if n):
        path = folder.data_file(number)
        if path.exists():
            salt = segment.salt_of(segment.read_page(path)) or 0
            entries[LISTED_DATA, 0, number] = Entry(salt, path.stat().st_size)
    return entries


def _give_names_back(folder: Folder, found: Recovered) -> None:
    """Journal and data files that lie under each other's names."""
    wrong = {}
    for key, entry in found.listed.entries.items():
        if key[0] in (LISTED_JOURNAL, LISTED_DATA) and (path := folder.path_of(key)).is_file():
            salt = segment.salt_of(segment.read_page(path))
            if salt is not None and salt != entry.salt:
                wrong[key] = salt
    put_right(folder, wrong, found)


def look(engine: _core.QueueEngine, folder: Folder, node_id: int, server: int) -> Recovered:
    """As `recover`, but nothing on disk is changed, and the engine is not for serving: for a move (moving.py).

    Raises FormatVersionError, StoreError.
    """
    found = Recovered(listed=file_register.read(folder.files, node_id, server))
    if found.listed.problem:
        found.hurt(folder, folder.files, found.listed.problem)
    ends, _tails = _read(engine, folder, node_id, server, found, {}, False)
    _check_data(engine, folder, node_id, server, found, False)
    _end(engine, folder, node_id, server, ends, found)
    return found


def _read(
    engine: _core.QueueEngine,
    folder: Folder,
    node_id: int,
    server: int,
    found: Recovered,
    held: dict[int, memoryview],
    mend: bool,
) -> tuple[dict[int, int], dict[int, replay.Tail]]:
    """Segments, then the journal: where the frames of each of its files end, and how its newest ones do. `mend`:
    damaged files may be put right."""
    segments.load_segments(engine, folder, node_id, server, found, mend)
    return replay.read_journal(engine, folder, node_id, server, found, held, mend)


def _end(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, ends: dict[int, int], found: Recovered
) -> None:
    """Was the last stop a clean one? A worker that never made a journal file has never served, which is as good."""
    terms = read_terms(folder, node_id, server)
    found.marked = set(terms.queues) if terms is not None else set()
    found.clean = not ends or (
        terms is not None
        and ends.get(terms.file) == terms.end
        and all(end <= FILE_HEADER_BYTES for number, end in ends.items() if number > terms.file)
    )
    if terms is None and os.path.lexists(folder.terms):
        found.hurt(folder, folder.terms, "is damaged: every message that is found counts as delivered before", 0)
    elif terms is not None and not found.clean and not _is_told(folder.journal_file(terms.file), folder, found):
        # A mark is written when all has ended, and removed before anything begins.
        at = f"the journal ends at byte {ends.get(terms.file, 0)} of file {terms.file}"
        found.hurt(
            folder, folder.terms, f"{at}, and not at {terms.end}: it was cut, or one of the two is an older copy"
        )
    found.clean = found.clean and not found.damaged
    engine.recovered(found.clean)
    for number, end in ends.items():
        key = LISTED_JOURNAL, 0, number
        if number not in found.foreign:
            found.there[key] = found.there.get(key, Entry())._replace(end=end, sealed=True)
    if terms is not None and found.clean:
        known = set(engine.queues())
        for queue, (next_sequence, rows) in terms.queues.items():
            if queue in known:
                engine.set_terms(queue, next_sequence, rows)


def _is_told(path: Path, folder: Folder, found: Recovered) -> bool:
    """Whether a file is known to be damaged or missing."""
    return any(part.file == str(path.relative_to(folder.path)) for part in found.parts)


def _check_data(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered, mend: bool
) -> None:
    """Whether the data files that entries name are there: their heads and sizes. Without its body a message goes; a
    body that is damaged is found when it is read, or by `warren check`."""
    for number, n in engine.data_files().items():
        if not n:
            continue
        path, entry = folder.data_file(number), found.listed.entries.get((LISTED_DATA, 0, number))
        reason, size, page = "", 0, bytearray()
        try:
            page, size = segment.read_page(path), path.stat().st_size
            header, right = segment.check_or_mend(
                path, page, kind=FILE_JOURNAL, node_id=node_id, owner=server, file=number
            )
            if entry is not None and header.salt != entry.salt:
                reason, size = "is not the file that was written", 0
            elif entry is not None and size < entry.end:
                reason = f"has {size} bytes, and had {entry.end}: it was cut, or is an older copy"
        except FormatVersionError:
            raise
        except CorruptRecord as error:
            if entry is None or segment.salt_of(page) is not None or size <= FILE_HEADER_BYTES:
                reason, size, right = str(error), 0, None
            else:
                right = _core.file_header_pack(FILE_JOURNAL, node_id, server, number, entry.salt, 0)
        except StoreError as error:
            if not isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
                raise
            if entry is None and found.listed.there and not found.listed.problem and not found.damaged:
                continue  # it never had its name: of a move that was cut short, to queues that no catalog names
            reason, right = "is missing", None
        if reason:
            found.hurt(
                folder,
                path,
                f"{reason}; messages with bodies in it are lost",
                engine.drop_lost(number, size) if mend else n,
            )
            if not size and path.exists():
                found.aside.append((path, reason))
        elif right is not None:
            found.hurt(folder, path, "its header page was damaged, and is rewritten", 0)
            if mend:
                segment.rewrite_header(path, right)
