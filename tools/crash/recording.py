"""What a process and its children did to the files of a directory, in one order: made by record.c, read here.

`Recorder(folder)` compiles the library and makes the file of records; `environment(below)` is for the process that is
to be recorded; `read()` afterwards gives its records. `note` is called in the recorded process itself.

    Record.kind, the rest by kind:
    write     inode, at, data; `over`: number of the record after which the call had returned, and `result`
    sync      inode of a file, or path of a directory; `over`, `result`
    create    path, inode            mkdir, rmdir, unlink   path            rename   path, to
    size      inode, at (the size)   space  inode, at, length (fallocate)
    note      data
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("record.c")
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
KINDS = ("", "write", "end", "sync", "create", "rename", "unlink", "mkdir", "rmdir", "size", "space", "note", "strange")
MAGIC = 0x5741525245435244
HEAD = struct.Struct("=QQQQ")
RECORD = struct.Struct("=QQIIQQQII")
CAPACITY = 256 << 20
NEVER = 1 << 62


class RecordingError(Exception):
    """A history that cannot be used; the message says why."""


@dataclass(slots=True)
class Record:
    """One thing that happened. `over`, `result`: of calls that take a while; NEVER, -1 when it was not seen to end."""

    kind: str
    pid: int
    inode: int
    at: int
    length: int
    path: str
    to: str
    data: bytes
    over: int = NEVER
    result: int = -1


def note(data: bytes) -> None:
    """In a recorded process: write down `data` between what happens to the files."""
    _library().warren_record_note(data, len(data))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    try:
        library.warren_record_note.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    except AttributeError:
        raise RecordingError("this process is not recorded: start it with Recorder.environment") from None
    return library


class Recorder:
    """The library and one file of records, both in a folder of the caller's."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "record.so"
        self.file = folder / "record"
        command = [os.environ.get("CC", "gcc"), *FLAGS, str(SOURCE), "-o", str(self.library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise RecordingError(f"no {command[0]} to compile {SOURCE.name}: apt-get install gcc libc6-dev") from None
        if done.returncode:
            raise RecordingError(f"{SOURCE.name} does not compile: {done.stderr.strip()}")

    def begin(self) -> None:
        """Make the file empty."""
        with open(self.file, "wb") as file:
            file.write(HEAD.pack(MAGIC, HEAD.size, CAPACITY, 0))
            file.truncate(CAPACITY)

    def environment(self, below: Path) -> dict[str, str]:
        """Environment of a process to be recorded. `below` must be a real path."""
        return os.environ | {
            "LD_PRELOAD": str(self.library),
            "WARREN_RECORD": str(self.file),
            "WARREN_RECORD_BELOW": str(below),
        }

    def read(self) -> list[Record]:
        """All records in order. Raises RecordingError for what has no model."""
        with open(self.file, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            return parse(memory)


def parse(memory: mmap.mmap | bytes) -> list[Record]:
    """The records in a file's bytes. END records are folded into those they end."""
    magic, end, capacity, lost = HEAD.unpack_from(memory)
    if magic != MAGIC:
        raise RecordingError("this is no file of records")
    if lost or end > capacity:
        raise RecordingError(f"the file of {capacity} bytes was too small for the history: make it shorter")
    records: list[Record] = []
    places: dict[int, int] = {}
    at = HEAD.size
    while at < end:
        magic, size, kind, pid, inode, a, b, text, data = RECORD.unpack_from(memory, at)
        if magic != MAGIC:  # whoever took this place was killed at once: the next record tells where it begins
            at = _next(memory, at + 8, end)
            continue
        start, place, at = at + RECORD.size, at, at + size
        if not kind:
            continue
        name = KINDS[kind]
        if name == "end":
            if a in places:
                began = records[places[a]]
                began.over, began.result = len(records), b - (1 << 64) if b >> 63 else b
            continue
        path, _, to = memory[start : start + text].decode().partition("\0")
        if name == "strange":
            raise RecordingError(f"something that the campaign has no model of: {path}")
        places[place] = len(records)
        records.append(Record(name, pid, inode, a, b, path, to, bytes(memory[start + text : start + text + data])))
    return records


def _next(memory: mmap.mmap | bytes, at: int, end: int) -> int:
    magic = MAGIC.to_bytes(8, "little")
    while at < end and memory[at : at + 8] != magic:
        at += 8
    return at


def main() -> None:
    """By hand: `python -m warren.tools.crash.recording COMMAND…` counts what a command does below this directory."""
    import collections
    import sys

    with tempfile.TemporaryDirectory(prefix="warren-record-") as folder:
        recorder = Recorder(Path(folder))
        recorder.begin()
        subprocess.run(sys.argv[1:], env=recorder.environment(Path.cwd().resolve()), check=False)
        print(dict(collections.Counter(record.kind for record in recorder.read())))


if __name__ == "__main__":
    main()
