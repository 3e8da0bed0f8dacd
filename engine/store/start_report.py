"""How a start of a store went: figures for the log, and what was found damaged or missing, with what it costs.

What is lost is said with its name, place and cost, and written down in the quarantine's report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from warren.engine import _core
from warren.engine.kernel import quarantine
from warren.engine.saying import counted
from warren.engine.store.file_lists import Places
from warren.engine.store.folder import DATA

SAID_MAX = 20  #: damaged parts of one file that are said one by one


@dataclass
class Report:
    """How a start went."""

    clean: bool = False
    files: int = 0
    scanned: int = 0  #: files that were read because they had no list
    frames: int = 0
    next_file: int = 0
    dropped: int = 0  #: entries whose file is not there
    torn_bytes: int = 0
    written_again: int = 0  #: bytes that were read, and of which no frame said that they were synced
    lost: int = 0  #: messages that are known to be lost
    unknown: int = 0  #: parts that are damaged or missing, of which nobody can say what they cost
    damaged: list[str] = field(default_factory=list)  #: what was found damaged, for people
    foreign: list[Path] = field(default_factory=list)
    lists: list[_core.FileList] = field(default_factory=list)  #: of the files that were read: the caller writes them

    def damage(self, folder: Path, path: Path, parts: list[tuple[int, int, str]], places: Places | None) -> None:
        """Damaged parts (from, to, reason) of a file that stays where it is; `places`: where its messages lay."""
        entries = []
        for start, end, reason in parts:
            messages = len(places.within(start, end)) if places is not None else None
            entries.append(quarantine.Entry(path.name, start, end, reason, messages, end - start))
            self.lost += messages or 0
            cost = "" if messages is None else f"; {counted(messages, 'message')} lost"
            if len(entries) <= SAID_MAX:
                self.damaged.append(f"{path} has damaged bytes {start} to {end} ({reason}){cost}: the rest is served")
        if len(entries) > SAID_MAX:
            place = folder / quarantine.QUARANTINE / quarantine.REPORT
            self.damaged.append(f"{path} has {len(entries) - SAID_MAX} more damaged parts: see {place}")
        if entries:
            self.note(folder, *entries)

    def missing(self, folder: Path, number: int, messages: int | None) -> None:
        """A file that is not there."""
        name = f"{number}{DATA}"
        cost = "" if messages is None else f"; it held up to {counted(messages, 'message')}"
        self.damaged.append(f"{folder / name} is missing{cost}")
        self.note(folder, quarantine.Entry(name, 0, 0, "the file is missing", messages))

    def note(self, folder: Path, *entries: quarantine.Entry) -> None:
        """Write down what was found, for people."""
        self.unknown += sum(entry.messages is None for entry in entries)
        quarantine.note(folder, *entries)
