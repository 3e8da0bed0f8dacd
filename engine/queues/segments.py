"""The segments `<m>.idx` of a start: loaded, misplaced ones put right, unusable ones given up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import CorruptRecord, FormatVersionError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_register import Entry, Key
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_SEGMENT,
    LISTED_INDEX,
    LISTED_SUBSCRIPTIONS,
    LISTED_TERMS,
)
from warren.engine.queues import segment_stamp
from warren.engine.queues.folder import NO_SUBSCRIPTIONS, Folder
from warren.engine.queues.read_ahead import contents
from warren.engine.queues.recovered import Recovered, put_right
from warren.engine.queues.terms import take_queue_terms
from warren.engine.saying import counted


def load_segments(
    engine: _core.QueueEngine, folder: Folder, node_id: int, server: int, found: Recovered, mend: bool
) -> None:
    """Load every segment of a worker, and what moved queues brought along; what is listed and not there is reported."""
    known = set(engine.queues())
    segments: list[tuple[int, int, Path]] = []
    for entry in sorted(os.scandir(folder.segments), key=lambda item: item.name):
        if not entry.name.isascii() or not entry.name.isdigit() or not entry.is_dir(follow_symlinks=False):
            continue
        queue = int(entry.name)
        if queue not in known:
            engine.declare(queue, True, True)  # deleted since; frames of the journal may still speak of it
        listing = segment.list_files(Path(entry.path), ".idx")
        for path in listing.unfinished if mend else ():
            data_files.unlink(path, missing_ok=True)
        segments += [(queue, number, path) for number, path in listing.files]
    wrong: dict[Key, int] = {}
    loader = _Segments(engine, folder, node_id, server, found, mend)
    for (queue, number, path), data in zip(segments, contents([item[2] for item in segments]), strict=True):
        misplaced = loader.load(queue, number, path, data)
        if misplaced is not None:
            wrong[LISTED_INDEX, queue, number] = misplaced
    there = {(LISTED_INDEX, queue, number) for queue, number, _path in segments}
    for key in put_right(folder, wrong, found) if mend else []:
        wrong.pop(key, None)
        there.add(key)
        path = folder.path_of(key)
        loader.load(key[1], key[2], path, memoryview(data_files.read(path)))
    for key in wrong:
        path = folder.path_of(key)
        if path.exists():
            loader.give_up(key, path, "another segment, or an older one, has this name")
    for key, listed in found.listed.entries.items():
        if key[0] == LISTED_INDEX and key not in there:
            loader.lose(key, folder.path_of(key), "is missing", listed.messages)
        elif key[0] == LISTED_TERMS and (path := folder.path_of(key)).exists():
            found.there[key] = listed
        elif key[0] == LISTED_TERMS:
            found.hurt(folder, path, "is missing: marks and keys that a moved queue brought along are lost", 0)
        elif key[0] == LISTED_SUBSCRIPTIONS and not folder.subscriptions.exists():
            found.hurt(folder, folder.subscriptions, NO_SUBSCRIPTIONS)
    for queue in known:
        take_queue_terms(engine, folder, node_id, server, queue, found)
    if folder.subscriptions.exists():
        found.there[LISTED_SUBSCRIPTIONS, 0, 0] = Entry()


@dataclass
class _Segments:
    """Loads the segments of a start."""

    engine: _core.QueueEngine
    folder: Folder
    node_id: int
    server: int
    found: Recovered
    mend: bool

    def load(self, queue: int, number: int, path: Path, data: memoryview) -> int | None:
        """One file. Returns the salt of one that is not the one which should be here; nothing is loaded then."""
        key, found = (LISTED_INDEX, queue, number), self.found
        listed = found.listed.entries.get(key)
        page = bytes(data[:FILE_HEADER_BYTES])
        try:
            header, right = segment.check_or_mend(
                path, page, kind=FILE_SEGMENT, node_id=self.node_id, owner=self.server, file=number
            )
            salt, why = header.salt, "its header page had one wrong bit"
            if listed is not None and salt != listed.salt:
                return salt
        except FormatVersionError:
            raise
        except CorruptRecord as error:
            misplaced = segment.salt_of(page)
            if misplaced is not None and listed is not None and misplaced != listed.salt:
                return misplaced
            if listed is None or len(data) <= FILE_HEADER_BYTES:
                self.give_up(key, path, str(error))
                return None
            # the entries say by themselves whether they are of the file that should be here
            right = _core.file_header_pack(FILE_SEGMENT, self.node_id, self.server, number, listed.salt, 0)
            salt, why = listed.salt, "its header page was damaged"
        live, bad = self.engine.load_segment(queue, number, data[FILE_HEADER_BYTES:], salt)
        if right is not None:
            if bad and not live:
                self.give_up(key, path, "neither its header page nor an entry is valid")
                return None
            costs = listed is not None and live < listed.messages  # said below
            found.hurt(self.folder, path, f"{why}, and is rewritten", None if costs else 0)
            if self.mend:
                segment.rewrite_header(path, right)
        written = data[segment_stamp.STAMP_AT : segment_stamp.STAMP_AT + segment_stamp.STAMP_BYTES]
        changes = segment_stamp.changes_of(written, salt, queue, number)
        cost = max(0, listed.messages - live) if listed is not None else bad
        if len(data) < segment_stamp.STAMP_AT:
            self.lose(key, path, f"was cut to {len(data)} bytes", cost)
            if self.mend:
                changes = listed.end if listed is not None else 1
                _lengthen(path, segment_stamp.stamp(salt, queue, number, changes))
        elif bad:
            # a torn zero is one, too: its ACK is in the journal
            self.lose(key, path, f"{counted(bad, 'entry', 'entries')} neither valid nor empty", bad)
        elif listed is not None and listed.end and (changes or 0) < listed.end:
            what = (
                "its stamp is damaged"
                if changes is None
                else "it is an older copy: some messages are missing, some that were removed are back"
            )
            self.lose(key, path, what, cost)
        elif listed is not None and live < listed.messages:
            self.lose(
                key, path, f"{counted(cost, 'missing entry', 'missing entries')}: something wrote zeros there", cost
            )
        found.messages_from_segments += live
        found.segment_live[queue, number] = live
        found.there[key] = Entry(salt, changes or 0, live)
        return None

    def lose(self, key: Key, path: Path, reason: str, messages: int) -> None:
        """Messages of one queue are lost, at most so many."""
        self.found.hurt(self.folder, path, f"queue {key[1]}: {reason}", messages)
        if messages and key[1] in self.engine.queues():
            self.engine.lost(key[1], messages)

    def give_up(self, key: Key, path: Path, reason: str) -> None:
        """A file that cannot be used."""
        listed = self.found.listed.entries.get(key)
        self.lose(key, path, f"{reason}; it is set aside", listed.messages if listed is not None else 0)
        self.found.aside.append((path, reason))


def _lengthen(path: Path, stamp: bytes) -> None:
    """A segment that was cut gets its length again, durably. Raises OSError."""
    fd = data_files.open(path, os.O_WRONLY)
    try:
        atomic_file.write_all(fd, stamp, segment_stamp.STAMP_AT)
        os.fsync(fd)
    finally:
        os.close(fd)
