"""What a start found: counts, what is damaged and what it costs, which files there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warren.engine.kernel import quarantine
from warren.engine.kernel.file_register import Entry, Key, Listed
from warren.engine.queues.folder import Folder, give_names_back
from warren.engine.saying import counted


@dataclass
class Recovered:
    """What a start found."""

    clean: bool = False
    next_file: int = 0  #: number for the next journal file
    frames: int = 0
    messages_from_segments: int = 0
    torn_bytes: int = 0
    written_again: int = 0  #: bytes that were read, and of which nobody said that they were synced
    salvaged_bytes: int = 0
    damaged: list[str] = field(default_factory=list)  #: what could not be read, for people
    strangers: list[str] = field(default_factory=list)  #: files that are not ours, for people
    foreign: set[int] = field(default_factory=set)  #: numbers of journal files that are not ours: never deleted
    seconds: float = 0.0
    marked: set[int] = field(default_factory=set)  #: queue ids that the clean mark names
    segment_live: dict[tuple[int, int], int] = field(default_factory=dict)  #: (queue, segment) → entries on disk
    named: set[tuple[int, int]] = field(default_factory=set)  #: segments whose names are known to be durable
    lost: int = 0  #: messages that are lost to damage, as far as it can be known; of journals: at most
    parts: list[quarantine.Entry] = field(default_factory=list)  #: what is damaged or missing
    unknown: int = 0  #: of these, how many of which nobody can say what they cost
    aside: list[tuple[Path, str]] = field(default_factory=list)  #: files to be set aside
    listed: Listed = field(default_factory=Listed)  #: what should have been there
    there: dict[Key, Entry] = field(default_factory=dict)  #: what is

    def hurt(
        self, folder: Folder, path: Path, reason: str, messages: int | None = None, start: int = 0, end: int = 0
    ) -> None:
        """Something is missing or damaged; `messages`: what it costs, None: nobody can say."""
        cost = "" if messages is None else f"; {counted(messages, 'message') if messages else 'no message'} lost"
        self.damaged.append(f"{path}: {reason}{cost}")
        self.parts.append(
            quarantine.Entry(str(path.relative_to(folder.path)), start, end, reason, messages, end - start)
        )
        self.lost += messages or 0
        self.unknown += messages is None


def put_right(folder: Folder, wrong: Mapping[Key, int], found: Recovered) -> list[Key]:
    """Returns whose files have their places again."""
    moved = give_names_back(folder, wrong, found.listed.entries) if wrong else {}
    for right, key in moved.items():
        path, lay = folder.path_of(right), folder.path_of(key)
        found.hurt(folder, path, f"was found as {lay.relative_to(folder.path)}, and was put back in its place", 0)
    return list(moved)
