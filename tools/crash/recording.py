"""What a process and its children did to the files of a directory, in one order: made by record.c, read here.

`Recorder(folder)` compiles the library and makes the file of records; `environment(below)` is for the process that is
to be recorded; `read()` afterwards gives its records. `note`, `kill` and `fail_sync` are called in the recorded process
itself.

    Record.kind, the rest by kind:
    write     inode, at, data; `over`: number of the record after which the call had returned, and `result`
    sync      inode of a file, with at, length of a range (0: all), or path of a directory; `over`, `result`
    syncfs    all files and names; `over`, `result`
    seen      inode, at, data: what a mapped file holds there, stored by no call since it was looked at before
    create    path, inode            mkdir, rmdir, unlink   path            rename, link   path, to
    size      inode, at (the size)   space, hole  inode, at, length (fallocate; a hole reads as zeros)
    note      data
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("record.c")
#: processes that may take part in a history
PROCESSES_MAX = 1024
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", f"-DPROCESSES_MAX={PROCESSES_MAX}"]
KINDS = (
    "",
    "write",
    "end",
    "sync",
    "create",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "size",
    "space",
    "note",
    "strange",
    "link",
    "seen",
    "syncfs",
    "hole",
)
MAGIC = 0x5741525245435244
HEAD = struct.Struct("=QQQQQQQ64s")
HEAD_BYTES = HEAD.size + 8 * PROCESSES_MAX
RECORD = struct.Struct("=QQIIQQQII")
CAPACITY = 256 << 20
NEVER = 1 << 62
KILL_TIMEOUT_S = 20.0
LOOK_AGAIN_S = 0.0005


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


def fail_sync(at: int = 1, of: str = "", hangs: bool = False) -> None:
    """In a recorded process: the `at`-th sync from now of a file with `of` in its path fails, whoever makes it: EIO,
    and nothing is synced. `hangs`: it never returns, so that who makes it can be killed before it knows.
    """
    _library().warren_record_fail(at, of.encode(), hangs)


def failed_sync() -> int:
    """In a recorded process: whose sync has failed since `fail_sync`; 0: nobody's."""
    return int(_library().warren_record_failed())


def fail_no_sync() -> int:
    """In a recorded process: what `fail_sync` asked for does not happen any more. Returns whose sync has failed; 0:
    nobody's."""
    if _library().warren_record_fail(0, b"", False):
        return 0
    while not failed_sync():  # it is just failing
        time.sleep(LOOK_AGAIN_S)
    return failed_sync()


def kill(pids: Iterable[int]) -> None:
    """In a recorded process: kill -9 others, all at one moment, and none of them between a call and its record.

    Such a call has changed the disk, and the record would not know: what the next process finds could not be told. The
    same deaths before and after the call are in other histories. Raises RecordingError when that moment does not come.
    """
    inside = _library().warren_record_inside
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        there = [pid for pid in pids if _signal(pid, signal.SIGSTOP)]
        while not all(map(_still, there)) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)
        within = [pid for pid in there if inside(pid)]
        if not within:
            for pid in there:
                _signal(pid, signal.SIGKILL)
            return
        for pid in there:
            _signal(pid, signal.SIGCONT)
        if time.monotonic() > deadline:
            raise RecordingError(f"processes {within} are in calls that do not end")
        time.sleep(LOOK_AGAIN_S)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _still(pid: int) -> bool:
    """Has every thread stopped, or ended?"""
    try:
        states = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return not Path(f"/proc/{pid}").exists()  # else a thread has just ended
    return all(state.rpartition(") ")[2][0] in "TtZX" for state in states)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    try:
        library.warren_record_note.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        library.warren_record_inside.argtypes = (ctypes.c_uint,)
        library.warren_record_fail.argtypes = (ctypes.c_uint, ctypes.c_char_p, ctypes.c_bool)
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
            file.write(HEAD.pack(MAGIC, HEAD_BYTES, CAPACITY, 0, 0, 0, 0, b""))
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
    magic, end, capacity, lost, *_fails = HEAD.unpack_from(memory)
    if magic != MAGIC:
        raise RecordingError("this is no file of records")
    if lost or end > capacity:
        raise RecordingError(f"the file of {capacity} bytes was too small for the history: make it shorter")
    records: list[Record] = []
    places: dict[int, int] = {}
    at = HEAD_BYTES
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
