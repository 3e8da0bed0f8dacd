"""What a store or a queue worker found damaged: files moved aside, and a report of every damaged part.

    <folder>/quarantine/<name>         a file that cannot be served: foreign, damaged in its first page, misnamed
    <folder>/quarantine/report.jsonl   a line of JSON for each damaged part: Entry

Nothing here is ever read to serve messages, and nothing is ever deleted: that is for people. A part of a file that
stays in its file is reported in the same way, with `moved` empty. A damaged part that was reported already (the same
bytes of the same file for the same reason) is not reported again.

Order of a move: report line written and synced, then the rename, then both directories synced. A kill in between leaves
a line and the file at its place: the next start moves it, and the line is not repeated.
A full disk must not keep a store from starting: what cannot be reported or moved stays where it is, and the caller is
told so by None.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.ipc import access

QUARANTINE = "quarantine"  #: folder of what does not belong among the files
REPORT = "report.jsonl"
ENTRIES_MAX = 10000  #: parts of one file that are reported
REPORT_BYTES_MAX = 64 << 20  #: above this no line is added
TAIL_BYTES = 1 << 16


class Entry(msgspec.Struct, rename={"start": "from", "end": "to"}):
    """One damaged part."""

    file: str  #: name of the file in the store's folder
    start: int
    end: int
    reason: str
    messages: int | None = None  #: what it cost, None: nobody can say
    bytes: int = 0
    moved: str = ""  #: name in the quarantine, if the file was moved there
    time: float = 0.0  #: seconds since 1970

    @property
    def key(self) -> tuple[str, int, int, str]:
        return (self.file, self.start, self.end, self.reason)


def entries(folder: Path) -> list[Entry]:
    """All that was reported for a store's folder; lines that are no entries (a torn one) are passed over."""
    return _decoded(_tail(folder, REPORT_BYTES_MAX * 2))


def is_reported(folder: Path, entry: Entry) -> bool:
    """Whether a part was reported before."""
    return any(entry.key == known.key for known in entries(folder))


def _tail(folder: Path, size: int) -> list[bytes]:
    """The last lines of a report, so many bytes at most."""
    try:
        with data_files.reading(folder / QUARANTINE / REPORT) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).splitlines()
    except OSError:
        return []


def _decoded(lines: list[bytes]) -> list[Entry]:
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=Entry))
    return found


def of_unknown_cost(folder: Path) -> list[str]:
    """Names of files of which nobody can say what they cost, each once, the last reported ones at the end. Only the end
    of the report is read: it is asked for whenever somebody asks for the status."""
    last = [entry.file for entry in _decoded(_tail(folder, TAIL_BYTES)) if entry.messages is None]
    return list(reversed(dict.fromkeys(reversed(last))))


def note(folder: Path, *new: Entry) -> bool:
    """Report damaged parts durably, each once. False: all were reported before, or the report cannot be written."""
    known = {entry.key for entry in entries(folder)}
    lines = []
    for entry in new[:ENTRIES_MAX]:
        if entry.key not in known:
            entry.time = entry.time or time.time()
            lines.append(msgspec.json.encode(entry) + b"\n")
    if not lines:
        return False
    place = folder / QUARANTINE
    try:
        atomic_file.make_directories(place)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = data_files.open(place / REPORT, flags, access.file_mode())
        try:
            size = os.fstat(fd).st_size
            if size > REPORT_BYTES_MAX:
                return False
            torn = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""  # the line of a killed writer
            atomic_file.write_all(fd, torn + b"".join(lines), size)
            os.fsync(fd)
        finally:
            os.close(fd)
        segment.sync_directory(place)
        segment.sync_directory(folder)
    except (OSError, StoreError):
        return False
    return True


def free_name(folder: Path, name: str) -> str:
    """The name, or with a number behind it, as nothing in the quarantine is called."""
    taken = set(os.listdir(folder / QUARANTINE))
    names = (name, *(f"{name}.{n}" for n in range(1, len(taken) + 2)))
    return next(each for each in names if each not in taken)


def move(folder: Path, path: Path, reason: str, messages: int | None = None) -> Path | None:
    """Move a file of a folder, or of one below it, into its quarantine, and report it. None: it is where it was."""
    name = str(path.relative_to(folder))
    try:
        size = path.lstat().st_size
        atomic_file.make_directories(folder / QUARANTINE)
        target = folder / QUARANTINE / free_name(folder, name.replace("/", "-"))
        note(folder, Entry(name, 0, size, reason, messages, size, target.name))
        data_files.rename(path, target)
        for directory in dict.fromkeys((target.parent, path.parent, folder)):
            segment.sync_directory(directory)
    except (OSError, StoreError):
        return None
    return target
