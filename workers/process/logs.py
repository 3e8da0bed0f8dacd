"""The log of a process of a node: its records as lines, in a file that is rotated while it is written.

    2026-11-23T12:32:48.123Z info worker-0[1234]: text                 lines that go on begin with four spaces
    {"time": "2026-11-23T12:32:48.123Z", "level": "info", "process": "worker-0", "pid": 1234, "text": "text"}

A file per process: `worker-0.log`, the ones before it `worker-0.log.1`, `.2`, … Who compresses one of these may give it
another suffix (`.1.gz`); it keeps its number. Standard output and error of a server lead to the same file: what C code
or a crash of the interpreter writes lies there as it is, between the lines.

Invariants
  The file is found from the folder that was opened at first, by the supervisor for all: a directory that is put in the
  place of this node's is another one's. When it was removed it is made again where it was, and the log says so.
  A log is a file. What is none, as a FIFO, whose opening would wait for its reader, is refused by a start
  (node_directory.py); one that is put there later costs lines.
  A line is one write to the end of the file, so those of several processes do not mix: a server that waits for the one
  before it has the same file, and so have those that begin to be supervisor at the same time.
  Who rotates holds a flock on the file, and has looked that it still has its name. Nobody waits for that lock: who does
  not get it writes on. Before each line it is looked whether the name is another file's by now. So a line that meets a
  rotation lies in the file that has just got another name, and none is lost.
  What the disk does not take costs the line and nothing else. The next one that is taken says how many are missing, and
  of a line that was taken in part nothing stays.
Crash points of a rotation: every rename is whole; one that was killed between two leaves a number out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from warren.engine import VERSION
from warren.engine.config import Settings
from warren.engine.kernel import data_files
from warren.engine.saying import counted, readable
from warren.ipc import access

log = logging.getLogger("warren.node")

#: characters that a terminal or a line reader would interpret; tabs and line ends are handled separately
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_GOES_ON = "\n    "
#: errors of opening something that is not a regular file of the owner; ENXIO: a FIFO without a reader
_NO_FILE = (errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.EPERM)


def stamp(seconds: float) -> str:
    """A time since 1970 in UTC, with milliseconds: 2026-11-23T12:32:48.123Z."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{thousandths:03d}Z"


def _printable(text: str) -> str:
    """As it can be written: of a path that is no UTF-8, what is not is escaped, and so are control characters."""
    escaped = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return readable(escaped)


class Lines(logging.Formatter):
    """A record as a line of text, or as a JSON object on one line."""

    def __init__(self, process: str, as_json: bool) -> None:
        super().__init__()
        self._process = process
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        when, level, pid = stamp(record.created), record.levelname.lower(), os.getpid()
        text = _printable(record.getMessage())
        trace = _printable(self.formatException(record.exc_info)) if record.exc_info and record.exc_info[0] else ""
        if self._as_json:
            found = {"time": when, "level": level, "process": self._process, "pid": pid, "text": text}
            return msgspec.json.encode(found | ({"exception": trace} if trace else {})).decode()
        said = f"{text}\n{trace}" if trace else text
        return f"{when} {level} {self._process}[{pid}]: {said.replace(chr(10), _GOES_ON)}"


class LogFile(logging.Handler):
    """Writes to the log file of a process. `streams`: its standard output and error lead there, too."""

    def __init__(self, path: Path, bytes_max: int, files_n: int, streams: bool, folder: int = -1) -> None:
        """`folder`: a descriptor of the folder that the path was in when it was opened; it is this handler's now."""
        super().__init__()
        self._path = path
        self._bytes_max = bytes_max
        self._files_n = files_n
        self._streams = streams
        self._folder = folder
        self._fd = -1
        self._lost_n = 0
        self._made_again = False
        if folder < 0:
            with contextlib.suppress(OSError):  # a line that finds no folder is lost, and counted
                self._find()

    def _find(self) -> None:
        self._folder = data_files.open_folder(self._path.parent)

    def folder_of(self, path: Path) -> int:
        """Another descriptor of its folder, for a log that lies there, too; -1: it does not, or there is none."""
        if self._folder < 0 or path.parent != self._path.parent:
            return -1
        try:
            return fcntl.fcntl(self._folder, fcntl.F_DUPFD_CLOEXEC, 0)
        except OSError:
            return -1

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Never raises."""
        try:
            line = self.format(record).encode() + b"\n"
        except Exception:  # noqa: BLE001 - as every handler: a mistake in a call of the logger does not end who made it
            self.handleError(record)
            return
        try:
            self._write(line)
        except OSError:
            self._lost_n += 1
            return
        with contextlib.suppress(OSError):  # the next one says so
            if self._lost_n:
                self._tell(f"{counted(self._lost_n, 'line')} before the last one could not be written")
                self._lost_n = 0
            if self._made_again:
                self._tell(f"{self._path.parent} was removed while the node ran: it was made again")
                self._made_again = False

    def _tell(self, said: str) -> None:
        record = log.makeRecord(log.name, logging.WARNING, "", 0, said, (), None)
        self._write(self.format(record).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        self._look(len(line))
        written = os.write(self._fd, line)
        if written < len(line):
            end = os.lseek(self._fd, 0, os.SEEK_CUR)
            if os.fstat(self._fd).st_size == end:  # nobody has written behind it
                os.ftruncate(self._fd, end - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _look(self, more: int) -> None:
        """Have the file of this name open, with room for so many bytes more. Raises OSError: there is none at all."""
        try:
            if self._fd < 0 or not self._in_place():
                self._open()
            if os.fstat(self._fd).st_size + more > self._bytes_max:
                self._rotate()
        except OSError as error:
            if self._fd < 0 or error.errno in _NO_FILE:
                raise  # else what is open takes the line: it is another one's by name, and nothing is lost

    def _in_place(self) -> bool:
        try:
            named = os.stat(self._path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

    def _open(self) -> None:
        if self._folder < 0:
            self._find()
        try:
            opened = open_to_append(self._path.name, self._folder)
        except FileNotFoundError:
            if os.fstat(self._folder).st_nlink:
                raise
            self._make_folder()
            opened = open_to_append(self._path.name, self._folder)
        old, self._fd = self._fd, opened
        if old >= 0:
            os.close(old)
        if self._streams:
            os.dup2(opened, 1)
            os.dup2(opened, 2)

    def _make_folder(self) -> None:
        """It was removed: another one of its name, in the directory that it was in, wherever that is by now."""
        again, above = self._path.parent.name, data_files.above(self._folder)
        try:
            with contextlib.suppress(FileExistsError):  # another process was first
                data_files.make_folder(again, folder=above)
            found = data_files.open_folder(again, folder=above)
        finally:
            os.close(above)
        os.close(self._folder)
        self._folder, self._made_again = found, True

    def _rotate(self) -> None:
        """Give the file its next name, and begin another one; not now when another process is at it."""
        if not os.fstat(self._fd).st_size:
            return  # one line that is larger than a file
        locked = self._fd
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            if self._in_place():
                self._rename()
            self._open()
        finally:
            if self._fd == locked:  # else it went with the file
                fcntl.flock(locked, fcntl.LOCK_UN)

    def _rename(self) -> None:
        mine = self._path.name
        for number, name in sorted(older(mine, os.listdir(self._folder)), reverse=True):
            if number >= self._files_n - 1:
                data_files.unlink(name, folder=self._folder)
            else:
                self._name_it(name, f"{mine}.{number + 1}{name.removeprefix(f'{mine}.{number}')}")
        self._name_it(mine, f"{mine}.1")

    def _name_it(self, old: str, new: str) -> None:
        data_files.rename(old, new, folder=self._folder)

    def close(self) -> None:
        """Close the file; the streams stay where they are."""
        self.acquire()
        try:
            for opened in (self._fd, self._folder):
                if opened >= 0:
                    os.close(opened)
            self._fd = self._folder = -1
        finally:
            self.release()
        super().close()


class _Terminal(logging.StreamHandler[Any]):
    """Standard error of a supervisor in the foreground. Who reads it may go away."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that nobody takes is not waited for, and no mistake."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handleError(record)


def older(log_name: str, names: Iterable[str]) -> list[tuple[int, str]]:
    """The rotated files of a log among the names of its folder, as (number, name)."""
    begins = f"{log_name}."
    found = []
    for name in names:
        number = name.removeprefix(begins).partition(".")[0] if name.startswith(begins) else ""
        if number.isdecimal():
            found.append((int(number), name))
    return found


def open_to_append(path: Path | str, folder: int | None = None) -> int:
    """A descriptor of a log file, which is made if it is not there. Raises OSError, also for what is no file; it does
    not wait for the reader of a FIFO.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return data_files.open(path, flags, access.file_mode(), folder=folder)


def redirect(path: Path, folder: int | None = None) -> None:
    """Standard output and error to a log file (to nowhere when it cannot be written), standard input from nowhere.
    `folder`: a descriptor of its folder.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        opened = open_to_append(path) if folder is None else open_to_append(path.name, folder)
    except OSError:
        opened = os.dup(null)
    os.dup2(null, 0)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.close(null)
    os.close(opened)


def begin(process: str, path: Path, settings: Settings, *, streams: bool, terminal: bool = False) -> None:
    """Lead all that this process logs to a file, in the place of what it had. `streams`: see LogFile; `terminal`: to
    standard error, too. A child of fork whose log lies beside its parent's finds the folder that the parent opened.
    """
    beside = next((handler for handler in logging.getLogger().handlers if isinstance(handler, LogFile)), None)
    folder = beside.folder_of(path) if beside is not None else -1
    end()
    file = LogFile(path, settings.log_rotate_bytes, settings.log_files, streams, folder)
    handlers: list[logging.Handler] = [file]
    if streams:
        redirect(path, folder if folder >= 0 else None)
    if terminal:
        handlers.append(_Terminal())
    for handler in handlers:
        handler.setFormatter(Lines(process, settings.log_format == "json"))
        logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(settings.log_level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _thread_ended
    sys.unraisablehook = _unraisable


def begun() -> bool:
    """Whether this process has a log."""
    return any(isinstance(handler, LogFile) for handler in logging.getLogger().handlers)


def end(*, terminal_only: bool = False) -> None:
    """Close the log; what follows is told to nobody."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Terminal) or (isinstance(handler, LogFile) and not terminal_only):
            root.removeHandler(handler)
            handler.close()


def starts(directory: Path, settings: Settings) -> str:
    """The first line of a process."""
    return f"warren {VERSION} starts: profile {settings.profile}, directory {directory}"


def ended(why: str, served_s: float, stop_s: float) -> str:
    """The last line of a process."""
    return f"ends: {why}; served for {served_s:.3f} s, stopped in {stop_s:.3f} s"


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    kind, error, trace = ended.exc_type, ended.exc_value, ended.exc_traceback
    name = ended.thread.name if ended.thread is not None else "?"
    _raised(f"thread {name} ends", kind, error, trace)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    what = found.err_msg or "exception ignored in"
    _raised(f"{what} {found.object!r}", found.exc_type, found.exc_value, found.exc_traceback)


def _raised(text: str, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    log.error("%s", text, exc_info=(kind, error if error is not None else kind(), trace))


def last_lines(path: Path, lines: int = 5) -> str:
    """The end of a log file, for a message."""
    return "\n".join(_end(path)[-lines:])


def last_error(path: Path, since: float) -> str:
    """The text of the last error that a process wrote into its log, not before a time since 1970; "": none."""
    for line in reversed(_end(path)):
        if line.startswith("{"):
            with contextlib.suppress(msgspec.MsgspecError):
                found = msgspec.json.decode(line, type=_Record)
                if found.time >= stamp(since) and found.level in _ERRORS:
                    return found.text
        elif (matched := _LINE.match(line)) and matched["time"] >= stamp(since) and matched["level"] in _ERRORS:
            return matched["text"]
    return ""


class _Record(msgspec.Struct):
    """A line in JSON, as far as it is read again."""

    time: str
    level: str
    text: str


_ERRORS = ("error", "critical")
_LINE = re.compile(r"(?P<time>\d\S+Z) (?P<level>\w+) \S+\[\d+\]: (?P<text>.*)")


def _end(path: Path) -> list[str]:
    """The last lines of a log file; the first one may be a part; none when it cannot be read."""
    try:
        opened = data_files.open(path, os.O_RDONLY)
    except OSError:
        return []
    try:
        text = os.pread(opened, 8192, max(0, os.fstat(opened).st_size - 8192)).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(opened)
    return text.splitlines()
